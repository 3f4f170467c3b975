"""The program that drops one port's UDP, run by an interpreter of the few instructions it has."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from bpf_machine import Machine
from test_frames import V4, V6

from udpbench.agent.host.bpf import bpf, instructions
from udpbench.agent.losses.ethernet import frame
from udpbench.model import LossSpec

DROP, PASS = 1, 2
DATA = 1000
"""Where a packet lies in the interpreter's memory."""


def verdict(program: bytes, packet: bytes) -> int:
    """Return what a program says of a packet; AssertionError where it reads beyond its end."""
    context = struct.pack("=II", DATA, DATA + len(packet))
    return Machine({DATA: packet, 8: context}).run(program, 8)


PROGRAM = instructions.drops_port(64109, (0, 4), (DROP, PASS))


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
