"""The reader of iperf3's header: counters, jitter, and whatever anybody may send."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from loops import Receiving, receiving_socket, sending_socket
from waiting import wait_until

from udpbench._native import ffi, lib
from udpbench.agent.host.socket_options import SO_TIMESTAMPNS

NATIVE = Path(__file__).parents[2] / "native"
HERE = Path(__file__).parent
INPUTS = os.environ.get("UDPBENCH_FUZZ", "200000")
"""10 million take a minute."""


def packet(counter: int, sent_us: int = 0, size_bytes: int = 48, wide: bool = False) -> bytes:
    """Return a datagram as a client sends it."""
    head = struct.pack(">II", *divmod(sent_us, 10**6))
    return (head + struct.pack(">Q" if wide else ">I", counter)).ljust(size_bytes, b"\0")


def read(
    datagrams: list[bytes],
    wide: bool = False,
    sock: socket.socket | None = None,
    highest: int = 0,
    **more: Any,
) -> tuple[dict[str, int], Any]:
    """Return what the loop counts, and the stream."""
    stream = ffi.new("struct ub_iperf3_stream *", {"highest": highest})
    own = {"read": lib.UB_READ_IPERF3, "streams": stream, "wide_counters": wide}
    with sock or receiving_socket() as opened:
        loop = Receiving(ffi, lib, opened, 1)
        stats = loop.receive(datagrams, sizes=(48,), room_bytes=64, **own, **more)
    return stats, stream  # what it points to lasts as long as it


@pytest.mark.parametrize("wide", [False, True])
def test_what_each_datagram_counts_as(wide: bool) -> None:
    """In order, late, twice, left out, cut off, a greeting, and too short for a counter."""
    counters = [1, 2, 3, 7, 5, 7, 8]
    datagrams = [packet(counter, wide=wide) for counter in counters]
    datagrams += [packet(9, size_bytes=65, wide=wide), b"9876", b"short", b""]
    stats, stream = read(datagrams, wide)
    assert (11, 6, 1, 1, 1, 3) == tuple(
        stats[f"{name}_packets"]
        for name in ("read", "received", "duplicate", "late", "truncated", "foreign")
    )
    assert (7, 8, 1, 2, 1) == (
        *(stream.read_packets, stream.highest, stream.gap_packets),
        *(stream.behind_packets, stream.hellos),
    )
    assert 7 * 48 == stream.read_bytes


def test_a_counter_of_32_bits_goes_on_beyond_them() -> None:
    """After half a minute at the highest rates of a card."""
    first = [n << 30 for n in range(1, 4)]
    counters = [*first, 2**32 - 1, 2**32 + 0, 2**32 + 1]
    stats, stream = read([packet(n % 2**32) for n in counters])
    assert (6, 0, 2**32 + 1) == (
        *(stats["received_packets"], stats["late_packets"], stream.highest),
    )


def test_a_counter_that_means_nothing_costs_nothing() -> None:
    """Far ahead, then far behind: both are counted, nothing grows with the gap."""
    stats, stream = read([packet(n, wide=True) for n in (1, 2**48 - 1, 2)], True)
    assert (3, 3, 2**48 - 1) == (stats["received_packets"], stream.read_packets, stream.highest)


@pytest.mark.parametrize("wide", [False, True])
def test_a_counter_that_no_test_reaches_is_foreign(wide: bool) -> None:
    """Else sums of streams would have no room; one below 0 in 64 bits, too."""
    beyond = (2**48, 2**63, 2**64 - 1) if wide else (2**48 % 2**32,)
    counters = (*beyond, (2**48 - 1) % (2**64 if wide else 2**32), *beyond)
    stats, stream = read([packet(n, wide=wide) for n in counters], wide, highest=2**48 - 2)
    assert (1, 2 * len(beyond)) == (stats["received_packets"], stats["foreign_packets"])
    assert (1, 2**48 - 1, 0) == (stream.read_packets, stream.highest, stream.gap_packets)


def test_jitter_is_that_of_rfc_3550() -> None:
    """A sixteenth of each difference of transit times, whose clocks may be any."""
    apart_us = 160_000
    _, steady = stamped([0, 0])
    _, jumped = stamped([0, apart_us])
    assert abs(jumped.jitter_16th_ns - steady.jitter_16th_ns - apart_us * 1000) < 50 * 10**6


def stamped(sent_us: list[int]) -> tuple[dict[str, int], Any]:
    """Return what is read of packets of one moment that say they were sent at others."""
    histograms = [ffi.new("struct ub_histogram *") for _ in range(2)]
    named = dict(zip(("stack", "application"), histograms, strict=True))
    with receiving_socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        return read(
            [packet(n, us) for n, us in enumerate(sent_us)], sock=sock, timestamps=1, **named
        )


def test_packets_are_in_the_milliseconds_of_their_arrival() -> None:
    """However long the loop let them wait; without the kernel's times in that of their call."""
    apart_ms = 5
    for stamps in (1, 0):
        counted = ffi.new("struct ub_milliseconds *")
        application = ffi.new("struct ub_histogram *")
        begun_ns = time.monotonic_ns()
        with receiving_socket() as sock:
            if stamps:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            with sending_socket(sock.getsockname()) as sender:
                for counter in (1, 2, 2):
                    sender.send(packet(counter))
            later_ns = time.monotonic_ns() + apart_ms * 10**6
            wait_until("later", lambda until_ns=later_ns: time.monotonic_ns() >= until_ns)
            more = {"stack": application, "application": application} if stamps else {}
            own = {"timestamps": stamps, "milliseconds": counted, "epoch_ns": begun_ns}
            stats, _ = read([packet(3)], sock=sock, **own, **more)
        assert 3 == stats["received_packets"]
        per_ms = [counted.packets[at] for at in range(counted.begun)]
        busy = [(at, packets) for at, packets in enumerate(per_ms) if packets]
        if stamps:
            (*_, (late, last)), (first, _) = busy, busy[0]
            assert (3, 1) == (sum(per_ms), last)
            assert late - first >= apart_ms - 1
        else:
            assert [3] == [packets for _, packets in busy]


def test_whatever_comes_counts_once(
    tmp_path: Path, strict_flags: list[str], plain_environment: dict[str, str]
) -> None:
    """Random datagrams under ASan and UBSan; ten million are run before a release."""
    program = tmp_path / "fuzz_iperf3"
    sources = [str(HERE / "fuzz_iperf3.c")] + [
        str(NATIVE / name)
        for name in ("receiver/iperf3.c", "receiver/window.c", "receiver/stamp.c", "series.c")
    ]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    build = ["gcc", *strict_flags, *sanitize, "-o", str(program), *sources]
    subprocess.run(build, check=True, env=plain_environment)
    run = subprocess.run(
        [str(program), INPUTS, "7"], env=plain_environment, capture_output=True, text=True
    )
    assert (0, "") == (run.returncode, run.stderr)
    counts = list(map(int, re.findall(r"\d+", run.stdout)))
    assert 5 == len(counts)
    assert all(counts)
