"""Whole runs on real namespaces: what they measure, and what is left when one is interrupted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from controllers import Controller, controllers
from sampled import sampled
from waiting import wait_until

from udpbench.analysis.judge import judge
from udpbench.model.limits import SECOND_NS

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LEASE_NS = 2 * SECOND_NS
SYSCTL = Path("/proc/sys/net/core/netdev_budget_usecs")
TINY = {
    "question": "Does it run?",
    "traffic": {"rate": "5kpps"},
    "duration": "300ms",
    "warmup": "100ms",
    "repetitions": 2,
}


Start = Callable[..., Controller]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a controller of ``TINY`` with changed keys."""
    with controllers(tmp_path) as group:
        yield lambda **keys: group.start([str(LEASE_NS), json.dumps({**TINY, **keys})])


def namespace(pid: int | str) -> int:
    """Return the inode number of a process's network namespace."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def namespaces(processes: list[psutil.Process]) -> dict[int, int]:
    """Return the network namespaces of processes, except our own, each with its descriptor.

    While that is open, no namespace of another test has the same number.
    """
    files = [os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY) for process in processes]
    spaces = {os.fstat(file).st_ino: file for file in files}
    spaces.pop(namespace("self"), None)
    for file in {*files} - {*spaces.values()}:
        os.close(file)
    return spaces


def all_namespaces() -> set[int]:
    """Return the network namespaces of every process there is."""
    spaces = set()
    for pid in psutil.pids():
        try:
            spaces.add(namespace(pid))
        except OSError:
            continue
    return spaces


def await_nothing_left(family: list[psutil.Process], spaces: dict[int, int]) -> None:
    """Wait until no process of a dead run is there, and none in its namespaces."""
    wait_until(f"an end of {family}", lambda: not any(process.is_running() for process in family))
    left = spaces.keys() & all_namespaces()
    for file in spaces.values():
        os.close(file)
    assert set() == left


def test_a_run_measures_and_leaves_nothing(start: Start) -> None:
    """Two trials end, every packet has an entry, settings and namespaces are as before."""
    before = SYSCTL.read_text()
    value = int(before) + 1
    controller = start(settings={"receiver": {"sysctl": {"net.core.netdev_budget_usecs": value}}})
    controller.await_line("phase 1")
    family = controller.family()
    spaces = namespaces(family)
    assert (2, str(value)) == (len(spaces), SYSCTL.read_text().strip())
    assert 0 == controller.end(), controller.log.read_text()
    assert before == SYSCTL.read_text()
    await_nothing_left(family, spaces)
    run = controller.run()
    results = [judge(record) for record in run.records]
    assert [("done", 0)] * 2 == [(result.status, result.unaccounted) for result in results], results
    assert [1500] * 2 == [result.intended_packets for result in results]
    assert run.ending is not None
    assert "complete" == run.ending.status


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_an_interrupted_run_restores_and_keeps_what_it_has(start: Start, number: int) -> None:
    """Exit 130 although asked twice; the first trial is readable, nothing is left."""
    before = SYSCTL.read_text()
    sysctl = {"net.core.netdev_budget_usecs": int(before) + 1}
    controller = start(settings={"receiver": {"sysctl": sysctl}}, duration="2s")
    controller.await_line("phase 2 tiny#2 measured")
    family = controller.family()
    spaces = namespaces(family)
    controller.process.send_signal(number)
    controller.process.send_signal(number)
    assert 130 == controller.end(), controller.log.read_text()
    assert before == SYSCTL.read_text()
    await_nothing_left(family, spaces)
    run = controller.run()
    assert ["done"] == [record.status for record in run.records]
    assert run.ending is not None
    assert "interrupted" == run.ending.status


@pytest.mark.long
def test_two_runs_at_once_do_not_collide(start: Start) -> None:
    """One after the other, each with namespaces, a folder and counters of its own."""
    both = [start(), start()]
    for controller in both:  # either may be the first
        assert 0 == controller.end(), "\n".join(peer.log.read_text() for peer in both)
    assert any("waiting until run" in controller.log.read_text() for controller in both)
    for controller in both:
        results = [judge(record) for record in controller.run().records]
        assert [("done", 0)] * 2 == [(r.status, r.unaccounted) for r in results], results
