"""The C loops as the worker process calls them, and the threads beside them."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from udpbench.agent.workers import loops, sockets
from udpbench.agent.workers.memory import Memory
from udpbench.agent.workers.orders import LoopOrder, loop_order
from udpbench.model.experiment import Answers, Log, Receive, Send, Traffic
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import PhaseOrder

FLOW = FlowSpec(0, "127.0.0.1", 0, "127.0.0.1", 9)
ORDER = PhaseOrder("measured", 1, 0, 1)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the results of threads beside a loop that have been waited for."""
    results: list[int] = []

    class NotingThread(loops.SideThread):
        def result(self) -> int:
            results.append(super().result())
            return results[-1]

    monkeypatch.setattr(loops, "SideThread", NotingThread)
    return results


def prepared(spec: WorkerSpec) -> tuple[Memory, LoopOrder]:
    """Return the memory of one worker, and its phase."""
    fd = os.memfd_create("test")
    memory = Memory(fd, [spec])
    os.close(fd)
    return memory, loop_order(spec, ORDER)


def test_a_listener_is_waited_for_if_its_loop_fails(ended: list[int]) -> None:
    """It reads a config that is gone once the phase is over."""
    traffic = Traffic(echo=10)
    spec = WorkerSpec("sender", "left", 0, None, (FLOW,), traffic, send=Send(), rate_pps=2**40)
    memory, phase = prepared(spec)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        loop = loops.Sending(memory, 0, [opened], os.sched_getaffinity(0))
        text = f"^ub_send: rate_pps: {2**40}; allowed: 0 to 1000000000$"
        with pytest.raises(loops.ConfigRefused, match=text):
            loop.run(phase)
    assert [0] == ended


def test_what_awaits_answers_leaves_if_its_loop_fails(ended: list[int]) -> None:
    """Nobody would stop it: nothing was sent, and nobody is told that it was."""
    traffic = Traffic(answers=Answers())
    spec = WorkerSpec("sender", "left", 0, None, (FLOW,), traffic, send=Send(), rate_pps=2**40)
    memory, phase = prepared(spec)
    messages: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        cpus = os.sched_getaffinity(0)
        loop = loops.Sending(memory, 0, [opened], cpus, None, lambda: messages.append("sent"))
        with pytest.raises(loops.ConfigRefused):
            loop.run(phase)
    assert ([0], []) == (ended, messages)


def test_answers_of_another_phase_are_forgotten(ended: list[int]) -> None:
    """What waits in the socket before the first packet is no answer, nor is an old error."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened,
    ):
        server.bind(("127.0.0.1", 0))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, sockets.TIMEOUT)
        opened.connect(server.getsockname())
        server.sendto(b"late", opened.getsockname())
        traffic = Traffic(answers=Answers(), count_packets=3)
        spec = WorkerSpec("sender", "left", 0, None, (FLOW,), traffic, send=Send(), count_packets=3)
        memory, phase = prepared(spec)
        phase = replace(phase, at_ns=time.monotonic_ns(), duration_ns=60 * 10**9)

        def answer() -> None:
            for _ in range(3):
                server.sendto(b"yes", server.recvfrom(100)[1])
            memory.stop()

        loop = loops.Sending(memory, 0, [opened], os.sched_getaffinity(0), None, answer)
        assert 0 == loop.run(phase)
    counts = memory.counts(0)
    assert (3, 3, 9) == tuple(
        counts[name] for name in ("sent_packets", "answered_packets", "answered_bytes")
    )


def test_a_logs_writer_is_waited_for_if_its_loop_fails(ended: list[int], tmp_path: Path) -> None:
    """It reads a ring and a name that may be gone, too; its files are there."""
    receive = Receive(log=Log(str(tmp_path / "log")), work_ns=2**40)
    spec = WorkerSpec("receiver", "right", 0, None, (FLOW,), Traffic(), receive=receive)
    memory, phase = prepared(spec)
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
