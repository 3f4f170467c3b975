"""Work beside: done by a copy of this process or here, its result is the same."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from analysis.build import experiment, record, trial
from test_stored_numbers import counted, written

from udpbench import judged_run, meanwhile
from udpbench.judged_run import judged
from udpbench.meanwhile import Meanwhile
from udpbench.records import lines
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE

pytestmark = pytest.mark.usefixtures("room")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second process begin, however many threads and CPUs the tests have."""
    monkeypatch.setattr(meanwhile, "_has_room", lambda: True)


def test_a_copy_of_this_process_does_the_work() -> None:
    """What it returns comes back, and nothing else of it."""
    seen: list[int] = []

    def work() -> tuple[int, str]:
        seen.append(1)
        return os.getpid(), "x" * 2**20

    elsewhere, text = Meanwhile(work).result()
    assert ([], 2**20) == (seen, len(text))
    assert os.getpid() != elsewhere
    with pytest.raises(ChildProcessError):
        os.waitpid(elsewhere, os.WNOHANG)


@pytest.mark.parametrize("without", ["a second CPU", "a single thread", "worth"])
def test_without_room_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    """A copy would lack the threads, and whatever locks they hold would stay held."""
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert os.getpid() != Meanwhile(os.getpid).result()
    if without == "a second CPU":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    if without == "a single thread":
        monkeypatch.setattr(os, "listdir", lambda _: ["1", "2"])
    assert os.getpid() == Meanwhile(os.getpid, worth_it=without != "worth").result()


def test_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of libraries, too."""
    monkeypatch.undo()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert os.getpid() == Meanwhile(os.getpid).result()
    finally:
        ended.set()
        thread.join()


def test_where_no_process_can_begin_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have no more of them."""

    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert os.getpid() == Meanwhile(os.getpid).result()


def test_a_copy_that_nobody_waits_for_is_ended() -> None:
    """It would go on in the place where others work."""
    reading, writing = os.pipe()
    begun = Meanwhile(signal.pause)
    os.close(writing)
    del begun
    with os.fdopen(reading, "rb") as end:
        assert end.read() == b""  # the copy had the other end, too


@pytest.mark.parametrize("how", ["error", "kill", "not to be pickled"])
def test_what_a_copy_cannot_do_is_done_here(how: str) -> None:
    """An error is raised where it can be handled."""
    own = os.getpid()

    def work() -> object:
        if how == "kill" and os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "error":
            raise LookupError("here")
        return lambda: own if how == "not to be pickled" else None

    begun = Meanwhile(work)
    if how == "error":
        with pytest.raises(LookupError, match="here"):
            begun.result()
    else:
        assert callable(begun.result())


def test_results_are_the_same_whoever_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the trial of its own record."""
    points = [trial("", repetition) for repetition in range(1, 6)]
    trials = [record(1000, of=point) for point in points]
    (alone,) = judged([experiment()], trials)
    monkeypatch.setattr(judged_run, "MANY", 2)
    (beside,) = judged([experiment()], trials)
    assert alone.trials == beside.trials
    assert all(own.trial is each.trial for own, each in zip(beside.trials, trials, strict=True))


def test_a_long_series_is_read_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the same, and what was torn is told of both files."""
    written(tmp_path, counted(), counted())
    for name in (RUN_FILE, SERIES_FILE):
        with (tmp_path / name).open("ab") as file:
            file.write(b"{")
    alone = read_run(tmp_path)
    monkeypatch.setattr(lines, "LONG_BYTES", 1)
    beside = read_run(tmp_path)
    assert (alone.records, alone.findings, alone.numbers) == (
        beside.records,
        beside.findings,
        beside.numbers,
    )
    assert len(beside.findings) == 2
