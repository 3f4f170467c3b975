"""A run folder over several sessions: taken over, mended, gone on with, and read as one run."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import failed, record, trial
from golden import Golden
from report.stored import COMPLETE, header, stored

from udpbench.errors import RecordError
from udpbench.json_lines import BLOCK_BYTES, append, cut_torn
from udpbench.model.record import Sample
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE, Begin, Run, RunSession
from udpbench.records.writer import RunWriter

FIRST = Begin("2026-11-21T08:00:00.000+00:00", "0.1.0", ("udpbench", "run", "example"))
AGAIN = Begin("2026-11-22T08:00:00.000+00:00", "0.2.0", ("udpbench", "run", "--resume", "r"))
ONE, TWO = record(of=trial("one")), record(of=trial("two"))
SAMPLES = (Sample("left.sender0", 1, {}), Sample("left.sender0", 2, {}))


def resumed(folder: Path, *records: object) -> Run:
    """Return a run that went on with some records and ended well."""
    writer = RunWriter.reopen(folder)
    writer.resume(read_run(folder), AGAIN)
    for again in records:
        writer.write(again)  # type: ignore[arg-type]
    writer.finish(COMPLETE)
    return read_run(folder)


def test_a_run_that_was_never_resumed_has_one_session(tmp_path: Path) -> None:
    """Its beginning is the header's, its ending the run's."""
    run = stored(tmp_path, [ONE, TWO])
    assert ((RunSession(FIRST, 2, COMPLETE),), (), 2) == (run.sessions, run.replaced, run.numbers)


def test_a_killed_run_goes_on_in_its_own_files(tmp_path: Path) -> None:
    """All records are read as one run, each session with its own beginning and ending."""
    stored(tmp_path, [ONE], ending=None)
    run = resumed(tmp_path, TWO)
    assert (ONE, TWO) == run.records
    assert (RunSession(FIRST, 1, None), RunSession(AGAIN, 1, COMPLETE)) == run.sessions
    assert (COMPLETE, ()) == (run.ending, run.findings)


def test_the_newer_record_of_a_trial_wins(tmp_path: Path) -> None:
    """What failed and was run again is kept beside the records, and is none of them."""
    bad = replace(failed(), trial=ONE.trial)
    stored(tmp_path, [bad, TWO], ending=None)
    run = resumed(tmp_path, ONE)
    assert ((TWO, ONE), (bad,)) == (run.records, run.replaced)


def test_a_torn_line_is_cut_off_and_reported(tmp_path: Path) -> None:
    """The next line begins where the last whole one ended, in both files."""
    stored(tmp_path, [ONE], ending=None)
    for name in (RUN_FILE, SERIES_FILE):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"kind":"trial","seq')
    run = resumed(tmp_path, TWO)
    assert ((ONE, TWO), ()) == (run.records, run.findings)
    assert [0, 20] == [session.begin.cut_bytes for session in run.sessions]


def test_a_series_without_its_record_joins_no_later_one(tmp_path: Path) -> None:
    """What a killed trial streamed keeps its number, and the trial that is run again has another."""
    writer = RunWriter.create(tmp_path, header())
    writer.write(ONE)
    writer.stream(SAMPLES, ())
    writer.close()
    run = resumed(tmp_path, replace(TWO, series=SAMPLES[:1]))
    assert [(), SAMPLES[:1]] == [record.series for record in run.records]


def test_what_a_resumed_run_streams_is_its_own(tmp_path: Path) -> None:
    """The parts of the trial that goes on begin behind all that is in the file."""
    stored(tmp_path, [replace(ONE, series=SAMPLES)], ending=None)
    writer = RunWriter.reopen(tmp_path)
    writer.resume(read_run(tmp_path), AGAIN)
    writer.stream(SAMPLES[1:], ())
    assert (SAMPLES[1:], ()) == writer.streamed()
    writer.close()


@pytest.mark.parametrize("begin", ["create", "reopen", "resume"])
def test_a_folder_in_use_is_refused(begin: str, tmp_path: Path, golden: Golden) -> None:
    """Whoever writes a run holds its folder until it ends, and nobody else writes into it."""
    writer = RunWriter.create(tmp_path, header())
    if begin != "create":
        writer.close()
        writer = RunWriter.reopen(tmp_path)
    if begin == "resume":
        writer.resume(read_run(tmp_path), AGAIN)
    with golden.raises(RecordError):
        RunWriter.reopen(tmp_path)
    writer.close()
    RunWriter.reopen(tmp_path).close()


def test_a_disk_without_locks_holds_a_new_run_and_no_second_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A folder that was just made is nobody else's; of an older one nobody can tell."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    stored(tmp_path, [ONE])
    with golden.raises(RecordError):
        RunWriter.reopen(tmp_path)


def test_a_folder_without_a_run_cannot_be_taken_over(tmp_path: Path, golden: Golden) -> None:
    """The message is that of reading it, and no file is made."""
    with golden.raises(RecordError):
        RunWriter.reopen(tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_a_file_that_may_not_be_written_is_reported(tmp_path: Path, golden: Golden) -> None:
    """The message names folder, reason and next step."""
    (tmp_path / RUN_FILE).mkdir()
    with golden.raises(RecordError):
        RunWriter.reopen(tmp_path)


@pytest.mark.parametrize(
    ("content", "cut", "left"),
    [
        (b"", 0, b""),
        (b"a\n", 0, b"a\n"),
        (b"a\nb", 1, b"a\n"),
        (b"b", 1, b""),
        (b"a\n" + b"b" * (3 * BLOCK_BYTES), 3 * BLOCK_BYTES, b"a\n"),
        (b"b" * BLOCK_BYTES, BLOCK_BYTES, b""),
    ],
)
def test_what_is_torn_is_cut(content: bytes, cut: int, left: bytes, tmp_path: Path) -> None:
    """Whole lines stay, however long what follows them is."""
    file = tmp_path / "lines"
    file.write_bytes(content)
    fd = os.open(file, os.O_RDWR)
    assert (cut, left) == (cut_torn(fd), file.read_bytes())
    os.close(fd)


def test_a_line_that_does_not_fit_the_disk_leaves_nothing(tmp_path: Path, golden: Golden) -> None:
    """The lines before it stay readable, and the next one is no part of it."""
    fd = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    append(fd, {"a": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
    try:
        with golden.raises(OSError):
            append(fd, {"long": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append(fd, {"b": 2})
    assert b'{"a":1}\n{"b":2}\n' == (tmp_path / "lines").read_bytes()
    os.close(fd)
