"""Attaches an XDP program that takes a known time for datagrams to one port, and passes all packets.

Arguments: interface, port, turns. Prints for how many nanoseconds the kernel itself says that such
a datagram runs it (BPF_PROG_TEST_RUN). The interface keeps it.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

from udpbench.agent.host import native
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.instructions import (
    ADD,
    COPY,
    EXIT,
    IF_GREATER,
    IF_NOT,
    IPV4,
    IPV4_WITHOUT_OPTIONS,
    LOAD_BYTE,
    LOAD_HALF,
    LOAD_WORD,
    SET,
    TIMES,
    UDP,
    Jump,
    assemble,
    network,
    op,
)
from udpbench.agent.host.system import Host

TEST_RUN, RUNS, XDP_PASS = 10, 20_000, 2
HEADERS = struct.Struct("!12xHB8xB12xH4x")
"""What the program looks at of Ethernet, IPv4 and UDP."""


def takes_time(port: int, turns: int) -> bytes:
    """Return a program whose multiplications wait for each other."""
    checks = (
        (LOAD_HALF, 12, network(IPV4)),
        (LOAD_BYTE, 14, IPV4_WITHOUT_OPTIONS),
        (LOAD_BYTE, 23, UDP),
        (LOAD_HALF, 36, network(port)),
    )
    return assemble(
        [
            op(LOAD_WORD, 2, 1, 0) + op(LOAD_WORD, 3, 1, 4),
            op(COPY, 4, 2) + op(ADD, 4, value=HEADERS.size),
            Jump("pass", IF_GREATER, 4, other=3),
            *(
                part
                for load, at, value in checks
                for part in (op(load, 5, 2, at), Jump("pass", IF_NOT, 5, value))
            ),
            op(SET, 6, value=turns) + op(SET, 0, value=1),
            "turn",
            op(TIMES, 0, value=3) * 8 + op(ADD, 6, value=-1),
            Jump("turn", IF_NOT, 6, 0),
            "pass",
            op(SET, 0, value=XDP_PASS) + op(EXIT),
        ]
    )


def known_ns(program: int, port: int) -> int:
    """Return the mean time of a run for a datagram to the port."""
    packet = HEADERS.pack(IPV4, IPV4_WITHOUT_OPTIONS, UDP, port)
    frame = ctypes.create_string_buffer(packet, len(packet))
    attributes = bytearray(bpf.ATTR_BYTES)
    given = (program, 0, len(packet), 0, ctypes.addressof(frame), 0, RUNS)
    struct.pack_into("=IIIIQQI", attributes, 0, *given)
    native.bpf(TEST_RUN, attributes)
    verdict, *_, mean_ns = struct.unpack_from("=4xI24xII", attributes)
    assert XDP_PASS == verdict
    return int(mean_ns)


def main(interface: str, port: int, turns: int) -> None:
    """Attach it."""
    bpf.LOG_BYTES = 2**24  # the verifier follows a loop turn by turn, and writes each down
    program = bpf.load(bpf.XDP, takes_time(port, turns), "planted")
    print(f"the kernel's own test runs of it take {known_ns(program, port)} ns", flush=True)
    flags = [("IFLA_XDP_FD", program), ("IFLA_XDP_FLAGS", bpf.XDP_FLAGS_DRV_MODE)]
    index = socket.if_nametoindex(interface)
    Host().rtnl("link", "set", index=index, xdp={"attrs": flags})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
