"""Attaches a BPF program that changes nothing: to tcx of an interface, or to a folder of a cgroup.

Argument: either. Prints a line once it is there, and detaches it at the next line or the end of
standard input.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

from udpbench.agent.host import native
from udpbench.agent.host.bpf import bpf

RETURN = struct.Struct("=BBhiBBhi")
"""Two instructions: a value, and the end."""
NEXT, LET_PASS = -1, 1
"""TCX_NEXT, and what a program of a cgroup says of a packet that may pass."""
CGROUP_EGRESS = 1


def attach(where: str) -> int:
    """Return the descriptor of the link, which ends with it."""
    of_cgroup = where.startswith("/")
    says, kind = (LET_PASS, bpf.CGROUP_SKB) if of_cgroup else (NEXT, bpf.SCHED_CLS)
    program = bpf.load(kind, RETURN.pack(0xB7, 0, 0, says, 0x95, 0, 0, 0), "theirs")
    target = os.open(where, os.O_RDONLY) if of_cgroup else socket.if_nametoindex(where)
    hook = CGROUP_EGRESS if of_cgroup else bpf.TCX_INGRESS
    return native.bpf(bpf.LINK_CREATE, bytearray(struct.pack("=IIII", program, target, hook, 0)))


class OthersProgram:
    """The same as a process in a namespace, until ``end``."""

    def __init__(self, pid: int, where: str) -> None:
        enter = ["nsenter", f"--target={pid}", "--net", sys.executable, __file__, where]
        pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(enter, text=True, **pipes)  # type: ignore[call-overload]
        assert self._process.stdout is not None
        assert "attached\n" == self._process.stdout.readline()

    def end(self) -> None:
        """Detach it; again does nothing."""
        if self._process.poll() is None:
            assert ("detached\n", None) == self._process.communicate("\n", timeout=10)


if __name__ == "__main__":
    link = attach(sys.argv[1])
    print("attached", flush=True)
    sys.stdin.readline()
    os.close(link)
    print("detached", flush=True)
