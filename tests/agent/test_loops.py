"""The C loops as the worker process calls them, and the threads beside them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from udpbench.agent.workers import loops
from udpbench.agent.workers.memory import Memory
from udpbench.agent.workers.process_client import phase_order
from udpbench.model import FlowSpec, Log, Receive, Send, Traffic, WorkerSpec

FLOW = FlowSpec(0, "127.0.0.1", 0, "127.0.0.1", 9)
ORDER = {"phase": "measured", "tag": 1, "at_ns": 0, "duration_ns": 1, "count": None}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the results of threads beside a loop that have been waited for."""
    found: list[int] = []

    class Told(loops.SideThread):
        def result(self) -> int:
            found.append(super().result())
            return found[-1]

    monkeypatch.setattr(loops, "SideThread", Told)
    return found


def made(spec: WorkerSpec) -> tuple[Memory, dict[str, Any]]:
    """Return the memory of one worker, and its phase."""
    fd = os.memfd_create("test")
    memory = Memory(fd, [spec])
    os.close(fd)
    return memory, phase_order(spec, ORDER)


def test_a_listener_is_waited_for_if_its_loop_fails(ended: list[int]) -> None:
    """It reads a config that is gone once the phase is over."""
    traffic = Traffic(echo=10)
    spec = WorkerSpec("sender", "left", 0, None, (FLOW,), traffic, send=Send(), rate_pps=2**40)
    memory, phase = made(spec)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        loop = loops.Sending(memory, 0, [opened], os.sched_getaffinity(0))
        text = f"^ub_send: rate_pps: {2**40}; allowed: 0 to 1000000000$"
        with pytest.raises(loops.ConfigRefused, match=text):
            loop.run(phase)
    assert [0] == ended


def test_a_logs_writer_is_waited_for_if_its_loop_fails(ended: list[int], tmp_path: Path) -> None:
    """It reads a ring and a name that may be gone, too; its files are there."""
    receive = Receive(log=Log(str(tmp_path / "log")), work_ns=2**40)
    spec = WorkerSpec("receiver", "right", 0, None, (FLOW,), Traffic(), receive=receive)
    memory, phase = made(spec)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        loop = loops.Receiving(memory, 0, [opened], os.sched_getaffinity(0))
        text = f"^ub_receive: work_ns: {2**40}; allowed: 0 to 1000000000$"
        with pytest.raises(loops.ConfigRefused, match=text):
            loop.run(phase)
    assert [0] == ended
    assert ["log.right.receiver0.0"] == [file.name for file in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("size_bytes", "room", "expected"),
    [(32, "auto", 64), (1472, "auto", 1472), (1472, 100, 100)],
)
def test_auto_room_fits_the_runs_own_datagrams(
    size_bytes: int, room: object, expected: int
) -> None:
    """``auto`` offers the run's size and at least 64 B; a number is taken as it is."""
    receive = Receive(room=room)  # type: ignore[arg-type]
    assert expected == loops.room_bytes(Traffic(size_bytes=size_bytes), receive)
