"""A program that takes the CPU of the load, for real: who it was is told, and no rate is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

READER_CPU = 0
PACKETS = 2000


@pytest.fixture(autouse=True)
def shared_machine() -> None:
    """Keep the limits as they are."""


def recorded(folder: Path) -> TrialRecord:
    """Return a trial of two seconds whose reader is on a CPU that we know."""
    data = {
        "question": "Does it run?",
        "traffic": {"rate": "1kpps", "count": PACKETS},
        # Shared CPUs make a sender late, which is beside these tests.
        "send": {"bucket": "10s", "cpus": "1"},
        "receive": {"cpus": f"{READER_CPU}"},
        "duration": "10s",
        "warmup": "0s",
        "repetitions": 1,
    }
    experiment, lab = load_experiment_data(data, "tiny"), load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder / "run", header)
    assert run([experiment], lab, writer, lambda _: None, RunOptions(seed=1)).error is None
    (record,) = read_run(folder / "run").records
    assert "done" == record.status, record.error
    return record


@contextmanager
def busy(cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """Let a program do nothing on a CPU, as fast as it can, and more than others that are there."""
    words = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            os.sched_setaffinity(process.pid, {cpu})
            os.setpriority(os.PRIO_PROCESS, process.pid, -5)
            # Sessions share a CPU by their own weights where they are scheduled as groups, sched(7).
            with suppress(FileNotFoundError):
                Path(f"/proc/{process.pid}/autogroup").write_text("-5")
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_a_program_on_the_readers_cpu_strikes_out_rates(tmp_path: Path) -> None:
    """It is named; counts, loss and ledger are as exact as ever, and the trial is valid."""
    with busy(READER_CPU) as program:
        result = judge(recorded(tmp_path))
    (others,) = (
        finding.value
        for finding in result.struck
        if finding.where == f"machine: CPU {READER_CPU}"
        and finding.what.startswith("other programs")
    )
    assert f"(pid {program.pid})" in (others or "")
    assert (True, PACKETS, 0) == (result.valid, result.sent_packets, result.unaccounted)
    assert result.received_packets == PACKETS - (result.lost_packets or 0)
    assert (None, None, None) == (result.delivered_pps, result.delay_p50_ns, result.send_cpu_load)


def test_everything_of_the_run_is_known(tmp_path: Path) -> None:
    """Controller, agents, workers and NAPI threads: none of them is taken for another program."""
    record = recorded(tmp_path)
    (phase,) = [phase for phase in record.phases if phase.name == "measured"]
    processes = [process for after in phase.after.values() for process in after.processes]
    ours = {process.pid: process for process in processes if process.whose != "other"}
    assert os.getpid() in ours
    assert {stats.pid for stats in phase.stats} <= set(ours)
    assert {"run", "worker", "interface"} == {process.whose for process in ours.values()}
    assert any(process.name.startswith("napi/receive0") for process in ours.values())
