"""The program that drops one port's UDP, run by an interpreter of the few instructions it has."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from test_frames import V4, V6

from udpbench.agent.host import bpf
from udpbench.agent.losses.ethernet import frame
from udpbench.model import LossSpec

DROP, PASS = 1, 2
DATA = 1000
"""Where a packet lies in the interpreter's memory."""


def verdict(program: bytes, packet: bytes) -> int:
    """Return what a program says of a packet; AssertionError where it reads beyond its end."""
    context = {0: DATA, 4: DATA + len(packet)}
    registers = [0] * 11
    at = 0
    while True:
        code, both, offset, value = struct.unpack_from("=BBhi", program, 8 * at)
        to, of = both & 15, both >> 4
        at += 1
        if code == 0x95:
            return registers[0]
        if code == 0xB7:
            registers[to] = value
        elif code == 0xBF:
            registers[to] = registers[of]
        elif code == 0x07:
            registers[to] += value
        elif code == 0x61:
            registers[to] = context[offset]
        elif code in (0x71, 0x69):
            size = 1 if code == 0x71 else 2
            start = registers[of] + offset - DATA
            assert 0 <= start <= len(packet) - size, "read beyond the packet"
            registers[to] = struct.unpack_from("=B" if size == 1 else "=H", packet, start)[0]
        elif code == 0x2D:
            at += offset if registers[to] > registers[of] else 0
        else:
            assert 0x55 == code
            at += offset if registers[to] != value else 0


PROGRAM = bpf.drops_port(64109, (0, 4), (DROP, PASS))


@pytest.mark.parametrize("spec", [V4, V6])
def test_datagrams_to_the_port_are_dropped_and_no_others(spec: LossSpec) -> None:
    """Of either IP version, whatever their length."""
    assert DROP == verdict(PROGRAM, frame(spec, "ip_header"))
    assert DROP == verdict(PROGRAM, frame(replace(spec, size_bytes=0), "ip_header"))
    assert PASS == verdict(PROGRAM, frame(replace(spec, port=64110), "ip_header"))


@pytest.mark.parametrize("spec", [V4, V6])
def test_what_is_no_such_datagram_passes(spec: LossSpec) -> None:
    """TCP, IP options, another protocol, or too short to tell: nothing is read beyond its end."""
    made = bytearray(frame(spec, "ip_header"))
    for length in range(len(made)):
        assert verdict(PROGRAM, bytes(made[:length])) in (DROP, PASS)
    protocol_at = 23 if spec.family == 4 else 20
    for at in (12, protocol_at, *([14] if spec.family == 4 else [])):
        changed = bytearray(made)
        changed[at] ^= 0x07
        assert PASS == verdict(PROGRAM, bytes(changed))


def test_a_program_that_is_no_program_is_refused() -> None:
    """With the kernel's own reason, and never silently."""
    with pytest.raises(OSError, match=r"the program was not loaded|no bpf"):
        bpf.load(bpf.XDP, b"\0" * 8, "udpb_test")
