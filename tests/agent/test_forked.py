"""A child that runs a function: what it has of its parent, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from udpbench.agent.host.forked import Forked

Run = Callable[[Callable[[], int]], tuple[Forked, int]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Yield what starts a child, and returns it with the pipe of its stdout and stderr."""
    children: list[tuple[Forked, int]] = []

    def start(work: Callable[[], int]) -> tuple[Forked, int]:
        reading, writing = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        children.append((Forked(work, (null, writing, writing), (), ("a child",)), reading))
        os.close(null)
        os.close(writing)
        return children[-1]

    yield start
    for child, pipe in children:
        child.kill()
        child.wait()
        os.close(pipe)


def said(pipe: int) -> str:
    """Return all that a child has written."""
    with os.fdopen(os.dup(pipe)) as text:
        return text.read()


def shown() -> int:
    """Say what this process has; a list of a folder has a descriptor for itself."""
    files = sorted(int(file.name) for file in Path("/proc/self/fd").iterdir())
    command = Path("/proc/self/cmdline").read_text().rstrip("\0")
    is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    seen: dict[str, Any] = {"files": files, "command": command, "default": is_default}
    print(json.dumps({**seen, "leads": os.getsid(0) == os.getpid()}))
    print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
    sys.stdout.flush()
    return 7


def test_it_has_nothing_of_its_parent_but_its_code(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, no handler and no session; what is ignored stays so, as across execve(2)."""
    before = [
        signal.signal(signal.SIGTERM, lambda *_: None),
        signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ]
    try:
        child, pipe = run(shown)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])
    assert (7, 7, 7) == (child.wait(), child.wait(), child.poll())
    line, ignored = said(pipe).splitlines()
    seen = json.loads(line)
    assert [0, 1, 2] == seen["files"][:3]
    assert 4 == len(seen["files"])
    assert ("a child", True, True) == (seen["command"], seen["default"], seen["leads"])
    assert "True" == ignored


def test_a_bug_ends_it_with_a_traceback(run: Run) -> None:
    """And never returns to who forked it."""

    def bug() -> int:
        raise LookupError("where?")

    child, pipe = run(bug)
    assert 1 == child.wait()
    assert "LookupError: where?" in said(pipe)


def test_it_is_waited_for_and_killed_as_any_other_process(run: Run) -> None:
    """Its number is not used any more once it was waited for."""

    def stay() -> int:
        time.sleep(60)
        return 0

    child, _ = run(stay)
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.001)
    child.kill()
    assert -signal.SIGKILL == child.wait()
    child.kill()


def test_an_unread_last_word_is_no_failure() -> None:
    """Its status is that of its work, though nobody reads its stderr."""

    def speak() -> int:
        print("unread", end="")
        return 3

    reading, writing = os.pipe()
    os.close(reading)
    child = Forked(speak, (writing, writing, writing), (), ())
    os.close(writing)
    assert 3 == child.wait()
