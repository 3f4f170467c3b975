"""Whole runs on real namespaces: what they measure, and what is left when one is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sampled import sampled

from udpbench.analysis.judge import judge
from udpbench.model import SECOND_NS
from udpbench.records import Run, read_run

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LEASE_NS = 2 * SECOND_NS
DEADLINE_S = 30.0
SYSCTL = Path("/proc/sys/net/core/netdev_budget_usecs")
TINY = {
    "question": "Does it run?",
    "traffic": {"rate": "5kpps"},
    "duration": "300ms",
    "warmup": "100ms",
    "repetitions": 2,
}


def wait_until(what: str, condition: Callable[[], bool], limit_s: float = DEADLINE_S) -> None:
    """Wait for a named condition; AssertionError says what was awaited."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


@dataclass
class Controller:
    """A controller in a process of its own."""

    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    def said(self, text: str) -> bool:
        """Return whether a line with ``text`` was printed."""
        return text in self.log.read_text()

    def await_line(self, text: str) -> None:
        """Wait until it has printed a line, or fail with all it printed."""
        wait_until(
            f"{text!r} in:\n{self.log.read_text()}",
            lambda: self.said(text) or self.process.poll() is not None,
        )
        assert self.said(text), self.log.read_text()

    def family(self) -> list[psutil.Process]:
        """Return agents, guardians and workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def run(self) -> Run:
        """Return what is in the run folder."""
        return read_run(self.folder)


Start = Callable[..., Controller]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a controller; what is left of any is killed by pid."""
    started: list[Controller] = []

    def starting(**keys: Any) -> Controller:
        folder = tmp_path / f"run{len(started)}"
        log = tmp_path / f"log{len(started)}"
        program = str(Path(__file__).with_name("controller.py"))
        data = json.dumps({**TINY, **keys})
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, program, str(folder), str(LEASE_NS), data],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(Controller(folder, process, log))
        return started[-1]

    yield starting
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def namespace(pid: int | str) -> int:
    """Return the inode number of a process's network namespace."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def namespaces(processes: list[psutil.Process]) -> set[int]:
    """Return the network namespaces of processes, except our own."""
    return {namespace(one.pid) for one in processes} - {namespace("self")}


def all_namespaces() -> set[int]:
    """Return the network namespaces of every process there is."""
    found = set()
    for pid in psutil.pids():
        try:
            found.add(namespace(pid))
        except OSError:
            continue
    return found


def await_nothing_left(family: list[psutil.Process], spaces: set[int], limit_s: float) -> None:
    """Wait until no process of a dead run and none of its namespaces is there."""
    wait_until(f"an end of {family}", lambda: not any(one.is_running() for one in family), limit_s)
    assert set() == spaces & all_namespaces()


def test_a_run_measures_and_leaves_nothing(start: Start) -> None:
    """Two trials end, every packet has an entry, settings and namespaces are as before."""
    before = SYSCTL.read_text()
    value = int(before) + 1
    one = start(settings={"receiver": {"sysctl": {"net.core.netdev_budget_usecs": value}}})
    one.await_line("phase 1")
    family = one.family()
    spaces = namespaces(family)
    assert (2, str(value)) == (len(spaces), SYSCTL.read_text().strip())
    assert 0 == one.process.wait(DEADLINE_S), one.log.read_text()
    assert before == SYSCTL.read_text()
    await_nothing_left(family, spaces, 1.0)
    run = one.run()
    results = [judge(record) for record in run.records]
    assert [("done", 0)] * 2 == [(one.status, one.unaccounted) for one in results], results
    assert [1500] * 2 == [result.intended_packets for result in results]
    assert run.ending is not None
    assert "complete" == run.ending.status


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_an_interrupted_run_restores_and_keeps_what_it_has(start: Start, number: int) -> None:
    """Exit 130 although asked twice; the first trial is readable, nothing is left."""
    before = SYSCTL.read_text()
    sysctl = {"net.core.netdev_budget_usecs": int(before) + 1}
    one = start(settings={"receiver": {"sysctl": sysctl}}, duration="2s")
    one.await_line("phase 2 tiny#2 measured")
    family = one.family()
    spaces = namespaces(family)
    one.process.send_signal(number)
    one.process.send_signal(number)
    assert 130 == one.process.wait(DEADLINE_S), one.log.read_text()
    assert before == SYSCTL.read_text()
    await_nothing_left(family, spaces, 1.0)
    run = one.run()
    assert ["done"] == [record.status for record in run.records]
    assert run.ending is not None
    assert "interrupted" == run.ending.status


@pytest.mark.long
def test_two_runs_at_once_do_not_collide(start: Start) -> None:
    """One after the other, each with namespaces, a folder and counters of its own."""
    both = [start(), start()]
    for one in both:  # either may be the first
        assert 0 == one.process.wait(2 * DEADLINE_S), "\n".join(it.log.read_text() for it in both)
    assert any("waiting until run" in one.log.read_text() for one in both)
    for one in both:
        results = [judge(record) for record in one.run().records]
        assert [("done", 0)] * 2 == [(r.status, r.unaccounted) for r in results], results
