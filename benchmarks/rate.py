"""Sending at a rate, noting delays, and logging, in the built-in lab: what each holds and costs.

Prints a table and leaves with 1 where a bar is missed. What a busy machine's stalls cost is listed
as unsent with its time and is no miss. ``rate.py 60s`` is the whole length; left out: 10 s a trial.
Needs root, as the lab does.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from udpbench._native import ffi, lib
from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.result import Result
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter
from udpbench.units import format_duration, parse_duration

ACHIEVED_ERROR = 0.001
DELAY_COST = 0.02
TUNED = {"receive": {"buffer": "64MiB"}, "warmup": "500ms", "repetitions": 1}
SLICES = 301
SLICE_PACKETS = 4000
"""They lie in the socket when a slice begins, so that no sender is in its way."""


def trial(data: dict[str, Any]) -> Result:
    """Return the result of one trial in the built-in lab."""
    experiment = load_experiment_data({"question": "Does it hold?", **TUNED, **data}, "rate")
    lab = load_lab("local")
    header = RunHeader("", now_utc(), ("rate.py",), 1, lab.name, lab.text, (experiment,))
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter.create(Path(folder) / "run", header)
        outcome = run([experiment], lab, writer, lambda _: None, RunOptions(seed=1))
        if outcome.error is not None:
            raise SystemExit(f"rate: {outcome.error}")
        (record,) = read_run(Path(folder) / "run").records
    if record.error is not None:
        raise SystemExit(f"rate: {record.error.message}")
    return judge(record)


def shown(times_ns: tuple[int | None, ...]) -> str:
    """Return times in µs."""
    return "  ".join("-" if time_ns is None else f"{time_ns / 1000:.1f}" for time_ns in times_ns)


def misses(name: str, result: Result) -> list[str]:
    """Return what of the rate's bar a result misses: nothing lost, the rate achieved or listed."""
    results = []
    intended, sent = result.intended_packets or 0, result.sent_packets or 0
    stalled = sum(stall.packets for stall in result.stalls)
    if result.lost_packets:
        results.append(f"{name}: {result.lost_packets} packets lost")
    if abs(intended - sent - stalled) > intended * ACHIEVED_ERROR:
        results.append(f"{name}: {intended - sent - stalled} packets unsent and not listed")
    if result.unaccounted:
        results.append(f"{name}: {result.unaccounted} unaccounted")
    return results


def paced(duration: str) -> list[str]:
    """Hold 40 and 60 kpps by either way of pacing."""
    results = []
    print(f"{'rate':<20} {'achieved':>9} {'stalls':>7} {'lost':>5}   pacing, us: p50 p99 p99.9 max")
    for rate in ("40kpps", "60kpps"):
        for pace in ("spin", "sleep"):
            name = f"{rate} {pace}"
            traffic = {"size": "512B", "rate": rate}
            result = trial({"traffic": traffic, "send": {"pace": pace}, "duration": duration})
            share = (result.sent_packets or 0) / (result.intended_packets or 1)
            times = (
                result.pacing_p50_ns,
                result.pacing_p99_ns,
                result.pacing_p999_ns,
                result.pacing_max_ns,
            )
            row = f"{share:>9.3%} {len(result.stalls):>7} {result.lost_packets:>5}   {shown(times)}"
            print(f"{name:<20} {row}")
            results += misses(name, result)
    return results


def logged(duration: str, folder: Path) -> list[str]:
    """Log 40 kpps of 512 B on a disk, and then on one that takes nothing more."""
    results = []
    traffic = {"size": "512B", "rate": "40kpps"}
    log = {"path": str(folder / "log"), "max_file": "512MiB", "keep": 2}
    good = trial({"traffic": traffic, "duration": duration, "receive": {"log": log}})
    lost = {entry.stage: entry.packets for entry in good.ledger.entries} if good.ledger else {}
    print(
        f"log: {good.logged_packets} logged at {good.logged_pps or 0:.0f}/s in {good.log_files} "
        f"files of {(good.log_bytes or 0) / 2**20:.0f} MiB, app_log {lost.get('app_log')}; "
        f"receiver {good.receive_cpu_load or 0:.2f} CPUs, "
        f"{(good.receive_memory_bytes or 0) >> 20} MiB"
    )
    if lost.get("app_log") != 0:
        results.append(f"log: app_log {lost.get('app_log')}")
    pipe = folder / "log.receiver.receiver0.0"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    slow = trial({"traffic": traffic, "duration": "3s", "receive": {"log": log}})
    os.close(reading)
    ends = {entry.stage: entry.packets for entry in slow.ledger.entries if entry.packets}
    print(
        f"log on a full disk: {slow.received_packets} received, "
        f"{slow.logged_packets} logged, {ends}"
    )
    ends.pop("unsent", None)
    if set(ends) != {"app_log"} or slow.unaccounted:
        results.append(f"log on a full disk: {ends}, unaccounted {slow.unaccounted}")
    return results


# --- what a delay costs --------------------------------------------------------------------------


def slice_ns(sock: socket.socket, delay: Any) -> float:
    """Return the loop's CPU time per datagram, of datagrams that wait in the socket already."""
    state_bytes = lib.ub_flow_state_bytes(1, 1024)
    state = ffi.new("uint8_t[]", state_bytes)
    control = ffi.new("struct ub_control *")
    stats = ffi.new("struct ub_receive_stats *")
    datagrams = ffi.new("struct ub_datagram[]", [[ffi.NULL, 32]])
    values = {"batch": 64, "room_bytes": 64, "tag": 7, "flow_count": 1}
    values |= {"datagrams": datagrams, "datagram_count": 1}
    sockets = ffi.new("int32_t[]", [sock.fileno()])
    values |= {"sockets": sockets, "socket_count": 1, "window_words": 1024, "control": control}
    values |= {"flows": ffi.cast("struct ub_flow_state *", state), "delay": delay}
    config = ffi.new("struct ub_receive_config *", values)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(sock.getsockname())
        for sequence in range(SLICE_PACKETS):
            number = sequence.to_bytes(6, "big")
            # Each has a time of its own, as with a rate; else one entry would do for many.
            sender.send(((7).to_bytes(4, "big") + bytes(2) + number + number).ljust(32, b"\0"))
    return read_ns(config, stats, control, SLICE_PACKETS) / SLICE_PACKETS


def read_ns(config: Any, stats: Any, control: Any, until: int) -> int:
    """Return the CPU time of a loop that reads until a total."""
    import time

    def watch() -> None:
        while stats.read_packets < until:
            time.sleep(0.0002)
        control.stop = 1

    control.stop = 0
    watching = threading.Thread(target=watch)
    watching.start()
    begun = time.thread_time_ns()
    lib.ub_receive(config, stats)
    spent = time.thread_time_ns() - begun
    watching.join()
    return spent


def delays() -> list[str]:
    """Compare reading with and without a histogram in turn, slice by slice."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 33, 32 * 2**20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, b"\0" * 8 + b"\x20\x4e\0\0\0\0\0\0")
        sock.bind(("127.0.0.1", 0))
        histogram = ffi.new("struct ub_histogram *")
        ways: list[Callable[[], float]] = [
            lambda: slice_ns(sock, ffi.NULL),
            lambda: slice_ns(sock, histogram),
        ]
        pairs = []
        for number in range(SLICES):
            order = ways if number % 2 else ways[::-1]
            taken = {way: way() for way in order}
            pairs.append((taken[ways[0]], taken[ways[1]]))
    cost = median(noted / plain for plain, noted in pairs) - 1
    plain_ns = median(plain for plain, _ in pairs)
    print(f"delay histogram: {cost:+.2%} of {plain_ns:.0f} ns a datagram, {SLICES} paired slices")
    return [f"delay histogram costs {cost:.2%}"] if cost > DELAY_COST else []


def main() -> None:
    """Print all, and leave with 1 where a bar is missed."""
    duration = format_duration(parse_duration(sys.argv[1] if len(sys.argv) > 1 else "10s"))
    missed = delays() + paced(duration)
    with tempfile.TemporaryDirectory() as folder:
        missed += logged(duration, Path(folder))
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
