"""The program that drops one port's UDP, run by an interpreter of the few instructions it has."""

from __future__ import annotations

import errno
import struct
from contextlib import nullcontext
from dataclasses import replace

import pytest
from bpf_machine import XDP_REDIRECT, Machine
from test_frames import V4, V6

from udpbench.agent.host import native
from udpbench.agent.host.bpf import bpf, instructions
from udpbench.agent.host.bpf.port_taker import takes
from udpbench.agent.losses.inject import flawed_frame
from udpbench.model.work import LossSpec

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
    """Either IP version, whatever the length."""
    assert DROP == verdict(PROGRAM, flawed_frame(spec, "ip_header"))
    assert DROP == verdict(PROGRAM, flawed_frame(replace(spec, size_bytes=0), "ip_header"))
    assert PASS == verdict(PROGRAM, flawed_frame(replace(spec, port=64110), "ip_header"))


@pytest.mark.parametrize("spec", [V4, V6])
def test_what_is_no_such_datagram_passes(spec: LossSpec) -> None:
    """TCP, IP options, another protocol, or too short to tell: nothing is read beyond its end."""
    packet = bytearray(flawed_frame(spec, "ip_header"))
    for length in range(len(packet)):
        assert verdict(PROGRAM, bytes(packet[:length])) in (DROP, PASS)
    protocol_at = 23 if spec.family == 4 else 20
    for at in (12, protocol_at, *([14] if spec.family == 4 else [])):
        changed = bytearray(packet)
        changed[at] ^= 0x07
        assert PASS == verdict(PROGRAM, bytes(changed))


def taken(spec: LossSpec, packet: bytes, queue: int = 1) -> int:
    """Return what becomes of a frame where queue 1 has a socket for two ports of two addresses."""
    addresses = ("10.0.0.1", "10.0.0.200") if spec.family == 4 else ("fd00::1", "fd00::c8")
    program = takes(0, spec.family, (64108, spec.port), addresses)
    context = struct.pack("=IIIII", DATA, DATA + len(packet), 0, 0, queue)
    return Machine({DATA: packet, 8: context}, [{1: 0}]).run(program, 8)


@pytest.mark.parametrize("spec", [V4, V6])
def test_a_socket_takes_the_traffics_datagrams_and_no_others(spec: LossSpec) -> None:
    """To its ports and addresses, of a queue that has one; the rest goes on to the host."""
    other = replace(spec, destination="10.0.0.2" if spec.family == 4 else "fd00::2")
    last = replace(spec, destination="10.0.0.200" if spec.family == 4 else "fd00::c8")
    packets = {name: flawed_frame(loss, "ip_header") for name, loss in (("", spec), ("last", last))}
    assert [XDP_REDIRECT] * 2 == [taken(spec, packet) for packet in packets.values()]
    assert XDP_REDIRECT == taken(spec, flawed_frame(replace(spec, port=64108), "ip_header"))
    assert XDP_REDIRECT == taken(spec, flawed_frame(replace(spec, size_bytes=0), "ip_header"))
    assert PASS == taken(spec, flawed_frame(replace(spec, port=64110), "ip_header"))
    assert PASS == taken(spec, flawed_frame(other, "ip_header"))
    assert PASS == taken(spec, packets[""], queue=2)


@pytest.mark.parametrize("spec", [V4, V6])
def test_a_socket_takes_no_fragment_and_nothing_that_it_cannot_read(spec: LossSpec) -> None:
    """ARP, TCP, IP options, the first fragment and later ones, or frames that end too early."""
    packet = bytearray(flawed_frame(spec, "ip_header"))
    for length in range(len(packet)):
        assert taken(spec, bytes(packet[:length])) in (XDP_REDIRECT, PASS)
    assert PASS == taken(spec, bytes(packet[: 41 if spec.family == 4 else 61]))
    flips = {12: 0x07, 23 if spec.family == 4 else 20: 0x07}
    if spec.family == 4:
        flips |= {14: 0x07, 20: 0x20, 21: 0x01}
    for at, bits in flips.items():
        changed = bytearray(packet)
        changed[at] ^= bits
        assert PASS == taken(spec, bytes(changed))


def test_a_program_that_is_no_program_is_refused() -> None:
    """With the kernel's own reason, and never silently."""
    with pytest.raises(OSError, match=r"program was not loaded|no bpf") as refused:
        bpf.load(bpf.XDP, b"\0" * 8, "udpb_test")
    assert "insn" not in str(refused.value)


@pytest.mark.parametrize(("signals", "loads"), [(0, 1), (4, 5), (5, 5)])
def test_a_load_that_a_signal_interrupts_is_tried_again(
    signals: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times, as libbpf does; then it is refused."""
    answers: list[int | Exception] = [BlockingIOError(errno.EAGAIN, "again")] * signals
    answers.append(7)
    commands = []

    def answer(command: int, attributes: bytearray) -> int:
        commands.append(command)
        result = answers[len(commands) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(native, "bpf", answer)
    expected = nullcontext() if signals < loads else pytest.raises(OSError, match="not loaded")
    with expected:
        assert 7 == bpf.load(bpf.XDP, instructions.passes(2), "udpb_pass")
    assert loads == len(commands)
