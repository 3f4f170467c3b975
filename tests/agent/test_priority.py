"""Priorities of a thread: its own, read back, and refused in words."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from udpbench.agent.host import native
from udpbench.agent.workers import process

ROOT = os.geteuid() == 0


def in_a_thread(do: Callable[[], Any]) -> Any:
    """Return what a thread of its own returns or raises: a priority stays with it."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(do())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def taken(cpu: str, disk: str) -> tuple[int, int, int, int]:
    """Take priorities and return niceness, policy, its priority and that of the disk."""
    process.set_priorities(cpu, disk)
    own = threading.get_native_id()
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    level = os.sched_getparam(0).sched_priority
    return os.getpriority(os.PRIO_PROCESS, own), policy, level, native.io_priority()


@pytest.mark.parametrize(
    ("cpu", "disk", "expected"),
    [
        ("nice 5", "normal", (5, os.SCHED_OTHER, 0)),
        ("normal", "idle", 3 << 13),
        ("normal", "best-effort 7", 2 << 13 | 7),
    ],
)
def test_a_thread_has_its_own_priority(cpu: str, disk: str, expected: Any) -> None:
    """Anybody may be worse than normal; whoever asks is not changed."""
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    *of_cpu, of_disk = in_a_thread(lambda: taken(cpu, disk))
    assert expected == (tuple(of_cpu) if disk == "normal" else of_disk)
    assert before == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(not ROOT, reason="a priority above normal needs root")
@pytest.mark.parametrize(
    ("cpu", "disk", "expected"),
    [
        ("nice -5", "realtime 1", (-5, os.SCHED_OTHER, 0, 1 << 13 | 1)),
        ("fifo 10", "realtime 0", (7, os.SCHED_FIFO, 10, 1 << 13)),
    ],
)
def test_root_may_be_better_than_normal(cpu: str, disk: str, expected: tuple[int, ...]) -> None:
    """And what a real-time thread starts is not real-time; its niceness stays."""

    def nice_before() -> tuple[int, int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        return taken(cpu, disk)

    assert expected == in_a_thread(nice_before)

    def child() -> int:
        taken(cpu, disk)
        return int(in_a_thread(lambda: os.sched_getscheduler(0)))

    assert os.SCHED_OTHER == in_a_thread(child)


def test_what_the_kernel_refuses_is_reported() -> None:
    """With what was asked for."""
    error = in_a_thread(lambda: process.set_priorities("fifo 200", "normal"))
    assert "priority fifo 200: Invalid argument" == error.strerror


def test_what_needs_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """EPERM and EACCES are of a user without CAP_SYS_NICE."""

    def refuse(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    error = in_a_thread(lambda: process.set_priorities("nice -5", "normal"))
    assert (
        "priority nice -5: Permission denied; a priority above normal needs root or CAP_SYS_NICE; "
        "else leave it out"
    ) == error.strerror


def test_a_value_that_is_not_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only reading back tells."""
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    assert (
        "priority nice 5: read back 0"
        == in_a_thread(lambda: process.set_priorities("nice 5", "normal")).strerror
    )
    monkeypatch.setattr(native, "set_io_priority", lambda _: None)
    text = in_a_thread(lambda: process.set_priorities("normal", "idle")).strerror
    assert text.startswith("priority idle: read back 0x")
