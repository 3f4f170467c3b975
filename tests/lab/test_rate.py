"""Rates, delays, echoes and logs on real namespaces."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.result import Result
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

PACKETS = 200
"""No ring and no socket buffer overflows, however long a CPU stands still."""
PIPE_BYTES = 8192
"""Two pages: less than the log has, and any first write of it fits (pipe(7), PIPE_BUF)."""
TINY: dict[str, Any] = {
    "question": "Does it run?",
    "traffic": {"rate": f"{PACKETS}pps"},
    # A busy machine may stand still for long; what it makes up then is beside these tests.
    "send": {"bucket": "10s"},
    "duration": "1s",
    "warmup": "0s",
    "repetitions": 1,
}


def result(folder: Path, keep_logs: bool = False, **changes: Any) -> Result:
    """Run one trial in the built-in lab and judge it."""
    experiment = load_experiment_data({**TINY, **changes}, "tiny")
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder / "run", header)
    options = RunOptions(seed=1, keep_logs=keep_logs)
    outcome = run([experiment], lab, writer, lambda _: None, options)
    assert outcome.error is None
    (record,) = read_run(folder / "run").records
    assert "done" == record.status, record.error
    return judge(record)


def packets(outcome: Result, stage: str) -> int | None:
    """Return what ended at a stage."""
    assert outcome.ledger is not None
    (count,) = [entry.packets for entry in outcome.ledger.entries if entry.stage == stage]
    return count


def test_delays_round_trips_and_a_log(tmp_path: Path) -> None:
    """All that is noted beside the counts is in the result, and the log's files go at the end."""
    measured = result(
        tmp_path,
        traffic={"rate": "2kpps", "echo": 10},
        receive={"timestamps": True, "log": {"path": str(tmp_path / "log")}},
    )
    assert (2000, 0) == (measured.sent_packets, measured.unaccounted)
    times = (
        measured.delay_min_ns,
        measured.delay_p50_ns,
        measured.delay_p99_ns,
        measured.delay_max_ns,
    )
    assert list(times) == sorted(time for time in times if time is not None)
    # 2000 delays carry a p99.9 no more than 200 round trips a p99.
    assert (None, None) == (measured.delay_p999_ns, measured.round_trip_p99_ns)
    assert None not in (
        measured.rest_delay_p90_ns,
        measured.round_trip_p90_ns,
        measured.rest_round_trip_p90_ns,
        measured.stack_delay_p99_ns,
        measured.application_delay_p99_ns,
        measured.pacing_p99_ns,
        measured.send_cpu_load,
        measured.receive_memory_bytes,
    )
    received = measured.received_packets or 0
    assert (received, 1, 0) == (
        measured.logged_packets,
        measured.log_files,
        packets(measured, "app_log"),
    )
    assert 24 + received * (16 + 32) == measured.log_bytes
    assert [] == list(tmp_path.glob("log*"))


@pytest.mark.long
@pytest.mark.parametrize("family", [4, 6])
def test_echoes_come_from_every_address_that_was_sent_to(tmp_path: Path, family: int) -> None:
    """A sender is connected to one address of many, and hears no other."""
    flows = {"to": "receiver.addresses[2-3]:4321"}
    traffic = {"rate": f"{PACKETS}pps", "echo": 2, "family": family, "flows": flows}
    measured = result(tmp_path, traffic=traffic)
    assert (PACKETS, PACKETS, 0) == (
        measured.sent_packets,
        measured.received_packets,
        measured.unaccounted,
    )
    assert measured.round_trip_p90_ns is not None
    assert [] == [finding for finding in measured.findings if "echoes" in finding.what]


def test_a_slow_disk_is_stage_app_log_and_nothing_else(tmp_path: Path) -> None:
    """A pipe that nobody empties takes 8 KiB; what it does not take is counted, and kept apart."""
    pipe = tmp_path / "log.receiver.receiver0.0"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert PIPE_BYTES == fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        measured = result(tmp_path, receive={"log": {"path": str(tmp_path / "log")}})
    finally:
        os.close(reading)
    assert (PACKETS, PACKETS, 0) == (
        measured.sent_packets,
        measured.received_packets,
        measured.unaccounted,
    )
    unlogged = packets(measured, "app_log")
    assert unlogged is not None
    assert measured.logged_packets is not None
    assert PACKETS == unlogged + measured.logged_packets
    assert PACKETS - PIPE_BYTES // (16 + 32) <= unlogged < PACKETS
    assert measured.ledger is not None
    assert {"app_log"} == {entry.stage for entry in measured.ledger.entries if entry.packets}


def test_logs_may_stay(tmp_path: Path) -> None:
    """Kept files have the run and the trial in their names."""
    log = {"path": str(tmp_path / "log"), "max_file": "1MiB", "keep": 1}
    result(tmp_path, keep_logs=True, receive={"log": log}, duration="300ms")
    (kept,) = tmp_path.glob("log*")
    assert kept.name.startswith("log.receiver.receiver0.")
    assert kept.name.endswith("-1.0")
