"""The C loops as the worker process calls them, and the threads beside them."""

from __future__ import annotations

import errno
import mmap
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from udpbench.agent import loops
from udpbench.agent.memory import Memory, layout
from udpbench.agent.plan import phase_order, plan
from udpbench.model import FlowSpec, Log, Receive, Send, Traffic, WorkerSpec

FLOW = FlowSpec(0, "127.0.0.1", 0, "127.0.0.1", 9)
ORDER = {"phase": "measured", "tag": 1, "at_ns": 0, "duration_ns": 1, "count": None}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the results of threads beside a loop that have been waited for."""
    found: list[int] = []

    class Told(loops.Beside):
        def result(self) -> int:
            found.append(super().result())
            return found[-1]

    monkeypatch.setattr(loops, "Beside", Told)
    return found


def made(spec: WorkerSpec) -> tuple[Memory, dict[str, Any]]:
    """Return the memory of a crew of one worker, and its phase."""
    fd = os.memfd_create("test")
    drawn = plan([spec], fd, os.getpid())
    os.ftruncate(fd, max(layout(drawn).total, mmap.PAGESIZE))
    memory = Memory(fd, drawn)
    os.close(fd)
    return memory, phase_order(drawn, ORDER)


def test_an_ear_is_waited_for_where_its_loop_fails(ended: list[int]) -> None:
    """It reads a config that is gone once the phase is over."""
    traffic = Traffic(echo=10)
    spec = WorkerSpec("sender", "left", 0, None, (FLOW,), traffic, send=Send(), rate_pps=2**40)
    memory, phase = made(spec)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        result = loops.Sending(memory, 0, [opened], os.sched_getaffinity(0)).run(phase)
    assert (-errno.EINVAL, [0]) == (result, ended)


def test_a_logs_writer_is_waited_for_where_its_loop_fails(ended: list[int], tmp_path: Path) -> None:
    """It reads a ring and a name that may be gone, too; its files are there."""
    receive = Receive(log=Log(str(tmp_path / "log")), work_ns=2**40)
    spec = WorkerSpec("receiver", "right", 0, None, (FLOW,), Traffic(), receive=receive)
    memory, phase = made(spec)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        result = loops.Receiving(memory, 0, [opened], os.sched_getaffinity(0)).run(phase)
    assert (-errno.EINVAL, [0]) == (result, ended)
    assert ["log.right.receiver0.0"] == [file.name for file in tmp_path.iterdir()]
