"""The run folder: an append-only file of JSON lines, written during a run and read at any time.

Owns the form of ``run.jsonl`` and ``series.jsonl`` and derives no number.
A line is on the disk before the next trial begins, so a run killed at any moment is readable.
A run that went on later has several sessions in one file, and whoever writes it holds its lock.
The schema is ``model.RECORD_SCHEMA``; its history: 1 — the first form.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from udpbench.errors import RecordError
from udpbench.json_lines import append, cut_torn, no_run, read_lines, sync_folder
from udpbench.model import RECORD_SCHEMA, Experiment, Finding, Sample, Snapshot, TrialRecord

RUN_FILE = "run.jsonl"
SERIES_FILE = "series.jsonl"
T = TypeVar("T")


@dataclass(frozen=True)
class RunHeader:
    """What is known of a run before its first trial; enough to repeat it and to judge it later."""

    udpbench: str
    """Version of udpbench that ran it."""
    started_at: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    seed: int
    lab_name: str
    lab_text: str
    """The lab's YAML as read."""
    experiments: tuple[Experiment, ...]
    sets: tuple[str, ...] = ()
    """``--set`` as given; the experiments hold them already."""
    lab_path: str = ""
    """The lab's file, and like those of the experiments relative to the working folder."""
    working_folder: str = ""
    schema: int = RECORD_SCHEMA


@dataclass(frozen=True)
class Begin:
    """Where a session of a run began: the first one's is in the header, every other's in a line."""

    started_at: str
    udpbench: str
    command: tuple[str, ...]
    cut_bytes: int = 0
    """Of a torn last line, left by the session before and cut off by this one."""


@dataclass(frozen=True)
class Ending:
    """How a run ended; a run without one was killed or still goes on."""

    finished_at: str
    status: Literal["complete", "interrupted", "failed"]
    error: dict[str, str] | None = None
    """``{kind, message, host}`` of what ended a failed run early."""
    restore_errors: tuple[dict[str, str], ...] = ()
    lost: tuple[dict[str, str], ...] = ()
    """Likewise, of agents that could not be asked to restore: each does so by itself, unseen."""


@dataclass(frozen=True)
class Session:
    """One stretch of a run; without an ending its process died, or it still goes on."""

    begin: Begin
    trials: int
    ending: Ending | None


@dataclass(frozen=True)
class Run:
    """A run folder as read; ``findings`` tell what was wrong with the files, not with the run."""

    folder: Path
    header: RunHeader
    records: tuple[TrialRecord, ...]
    """Of each trial the one of its latest session."""
    ending: Ending | None
    """Of the latest session."""
    findings: tuple[Finding, ...] = ()
    sessions: tuple[Session, ...] = ()
    replaced: tuple[TrialRecord, ...] = ()
    """Records of trials that a later session ran again."""
    numbers: int = 0
    """Records and series have numbers below it."""


_HEADER: TypeAdapter[RunHeader] = TypeAdapter(RunHeader)
_RECORD: TypeAdapter[TrialRecord] = TypeAdapter(TrialRecord)
_BEGIN: TypeAdapter[Begin] = TypeAdapter(Begin)
_ENDING: TypeAdapter[Ending] = TypeAdapter(Ending)
_SAMPLES: TypeAdapter[tuple[Sample, ...]] = TypeAdapter(tuple[Sample, ...])
_SNAPSHOTS: TypeAdapter[tuple[Snapshot, ...]] = TypeAdapter(tuple[Snapshot, ...])


def now_utc() -> str:
    """Return the time as records write it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_folder(base: Path, name: str) -> Path:
    """Make and return ``<base>/<time>-<name>``, a folder that no other run has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        folder = base / f"{stamp}-{plain}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot("make the run folder", folder, error) from error
        return folder
    raise RecordError(f"{base}: 999 runs of one name within one second; wait and run again")


def last_run(base: Path) -> Path:
    """Return the run folder below ``base`` that was begun last; RecordError where there is none."""
    found = [file.parent for file in base.glob(f"*/{RUN_FILE}")]
    if not found:
        raise RecordError(f"{base}: no run in it; name a run folder, or run an experiment first")
    return max(found, key=lambda folder: (_begun(folder), folder.name))


def _begun(folder: Path) -> str:
    """Return when a run began, as its first line says; of a damaged one, nothing."""
    try:
        with (folder / RUN_FILE).open("rb") as file:
            return str(json.loads(file.readline()).get("started_at", ""))
    except (OSError, ValueError, AttributeError):
        return ""


class RunWriter:
    """Writes one run; every line is flushed and synced before the call returns."""

    def __init__(self, folder: Path, run_fd: int, series_fd: int) -> None:
        self.folder = folder
        self.written = 0
        """Records written so far."""
        self._number = 0
        """The next record's sequence number: what a death left of a series keeps its own."""
        self._run_fd = run_fd
        self._series_fd = series_fd
        self._series_at = 0
        """Where the parts of the trial that goes on begin in its file."""
        self._streamed = (0, 0)
        """Samples and snapshots of it that are written."""

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
        """Begin a run in ``folder``, made if it is not there; one that holds a run is refused."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run_fd = os.open(folder / RUN_FILE, flags, 0o644)
            series_fd = os.open(folder / SERIES_FILE, flags, 0o644)
        except FileExistsError as error:
            what = "holds a run already" if folder.is_dir() else "is a file, no folder"
            raise RecordError(f"{folder}: {what}; name another folder") from error
        except OSError as error:
            raise _cannot("begin a run", folder, error) from error
        writer = cls(folder, run_fd, series_fd)
        writer._lock(must=False)  # a folder that was just made is nobody else's
        writer._append(run_fd, {"kind": "header", **_plain(_HEADER, header)})
        sync_folder(folder)
        return writer

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Take over a run that has ended or died, changing nothing yet; not one that goes on."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            run_fd = os.open(folder / RUN_FILE, flags)
            series_fd = os.open(folder / SERIES_FILE, flags | os.O_CREAT, 0o644)
        except FileNotFoundError as error:
            raise no_run(folder / RUN_FILE) from error
        except OSError as error:
            what = f"{folder}: cannot go on with the run: {error.strerror}"
            raise RecordError(f"{what}; make the folder yours, or copy it") from error
        writer = cls(folder, run_fd, series_fd)
        writer._lock()
        return writer

    def _lock(self, must: bool = True) -> None:
        """Keep others from this folder; the lock ends with the process, however it dies."""
        try:
            fcntl.flock(self._run_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            why = f"this disk has no locks ({error.strerror}); copy the folder to one that has"
            if isinstance(error, BlockingIOError):
                why = "in use by a run that still goes on; wait for its end, or interrupt it"
            elif not must:
                return
            self.close()
            raise RecordError(f"{self.folder}: {why}") from error

    def resume(self, run: Run, begin: Begin) -> None:
        """Begin another session of ``run``, which is this folder as read under the lock."""
        cut_bytes = cut_torn(self._run_fd)
        cut_torn(self._series_fd)
        self._series_at = os.fstat(self._series_fd).st_size
        self._number = run.numbers
        line = _plain(_BEGIN, replace(begin, cut_bytes=cut_bytes))
        self._append(self._run_fd, {"kind": "resumed", **line})

    def write(self, record: TrialRecord) -> None:
        """Append one record; its series goes first, so that no record stands without it.

        What was streamed of it is there already.
        """
        samples, snapshots = self._streamed
        rest = record.series[samples:], record.motion[snapshots:]
        if any(rest) or any(self._streamed):
            self._append(self._series_fd, self._part(*rest))
        self._series_at, self._streamed = os.fstat(self._series_fd).st_size, (0, 0)
        plain = _plain(_RECORD, replace(record, series=(), motion=()))
        self._append(self._run_fd, {"kind": "trial", "sequence": self._number, "record": plain})
        self.written, self._number = self.written + 1, self._number + 1

    def stream(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Append a part of the series of the trial that goes on; its record begins with it.

        Not synced: a disk that is busy would disturb what is measured.
        """
        self._append(self._series_fd, self._part(samples, snapshots), sync=False)
        before = self._streamed
        self._streamed = before[0] + len(samples), before[1] + len(snapshots)

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return what was streamed of the trial that goes on."""
        if not any(self._streamed):
            return (), ()
        path = self.folder / SERIES_FILE
        with path.open("rb") as file:
            file.seek(self._series_at)
            parts = [json.loads(line) for line in file]
        samples = (_SAMPLES.validate_python(part["samples"]) for part in parts)
        snapshots = (_SNAPSHOTS.validate_python(part["snapshots"]) for part in parts)
        return tuple(chain.from_iterable(samples)), tuple(chain.from_iterable(snapshots))

    def _part(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> dict[str, Any]:
        return {
            "sequence": self._number,
            "samples": _SAMPLES.dump_python(samples, mode="json"),
            "snapshots": _SNAPSHOTS.dump_python(snapshots, mode="json"),
        }

    def finish(self, ending: Ending) -> None:
        """Append how the run ended and close the files."""
        self._append(self._run_fd, {"kind": "ending", **_plain(_ENDING, ending)})
        self.close()

    def close(self) -> None:
        """Close the files, which lets others have them."""
        os.close(self._run_fd)
        os.close(self._series_fd)

    def _append(self, fd: int, message: dict[str, Any], sync: bool = True) -> None:
        try:
            append(fd, message, sync)
        except OSError as error:
            raise _cannot("write to the run", self.folder, error) from error


def _plain(adapter: TypeAdapter[Any], value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = adapter.dump_python(value, mode="json")
    return plain


def _cannot(what: str, folder: Path, error: OSError) -> RecordError:
    return RecordError(f"{folder}: cannot {what}: {error.strerror}; name another with --out")


def read_run(folder: Path) -> Run:
    """Return the run stored in ``folder``, also of a run that was killed or still goes on.

    A torn last line, which is what a kill in the middle of a write leaves, is left out and told as
    a finding. RecordError where the folder is missing, foreign, of another schema, or damaged.
    """
    with _uncollected():
        return _read_run(folder)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Read without the collector of cycles: there are none, and looking took half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _read_run(folder: Path) -> Run:
    path = folder / RUN_FILE
    lines, findings = read_lines(path)
    if not lines:
        raise RecordError(f"{path}: empty: the run was killed before it began; run again")
    header = _read_header(path, lines[0])
    series, motion, series_findings = _read_series(folder / SERIES_FILE)
    begins = [Begin(header.started_at, header.udpbench, header.command)]
    records: list[list[TrialRecord]] = [[]]
    endings: list[Ending | None] = [None]
    numbers = {-1, *series}
    for number, line in enumerate(lines[1:], start=2):
        where, kind = f"{path}:{number}", line.get("kind")
        if kind == "trial":
            record = _validated(_RECORD, line.get("record"), where)
            number = line.get("sequence", -1)
            numbers.add(number)
            own = tuple(series[number]), tuple(motion[number])
            records[-1].append(replace(record, series=own[0], motion=own[1]))
        elif kind == "ending":
            endings[-1] = _validated(_ENDING, line, where)
        elif kind == "resumed":
            begins.append(_validated(_BEGIN, line, where))
            records.append([])
            endings.append(None)
        else:
            raise RecordError(f"{where}: neither a trial nor an ending; the file is damaged")
    told = zip(begins, records, endings, strict=True)
    sessions = tuple(Session(begin, len(own), ending) for begin, own, ending in told)
    latest, replaced = _latest(records)
    found = (*findings, *series_findings)
    last = endings[-1]
    return Run(folder, header, latest, last, found, sessions, replaced, max(numbers) + 1)


def _latest(sessions: list[list[TrialRecord]]) -> tuple[tuple[TrialRecord, ...], ...]:
    """Return of each trial the record of its latest session, and the others."""
    kept: list[TrialRecord] = []
    replaced: list[TrialRecord] = []
    for records in sessions:
        again = {record.trial.name for record in records}
        replaced += [one for one in kept if one.trial.name in again]
        kept = [one for one in kept if one.trial.name not in again] + records
    return tuple(kept), tuple(replaced)


def _read_header(path: Path, line: dict[str, Any]) -> RunHeader:
    if line.get("kind") != "header":
        raise RecordError(f"{path}:1: not the header of a run: the file is foreign")
    schema = line.get("schema")
    if schema != RECORD_SCHEMA:
        raise RecordError(
            f"{path}:1: schema {schema}: this udpbench reads {RECORD_SCHEMA}; "
            f"use udpbench {line.get('udpbench')}, which wrote it"
        )
    return _validated(_HEADER, line, f"{path}:1")


def _read_series(
    path: Path,
) -> tuple[dict[int, list[Sample]], dict[int, list[Snapshot]], tuple[Finding, ...]]:
    """Return sequence number → samples, and → counters; several lines of one trial are joined."""
    lines, findings = read_lines(path)
    series: dict[int, list[Sample]] = defaultdict(list)
    motion: dict[int, list[Snapshot]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        where, sequence = f"{path}:{number}", line.get("sequence", -1)
        samples: tuple[Sample, ...] = _validated(_SAMPLES, line.get("samples"), where)
        # Runs from before counters were watched have none.
        moved: tuple[Snapshot, ...] = _validated(_SNAPSHOTS, line.get("snapshots", ()), where)
        series[sequence] += samples
        motion[sequence] += moved
    return series, motion, findings


def _validated(adapter: TypeAdapter[T], plain: Any, where: str) -> T:
    try:
        return adapter.validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{where}: {key}: {first['msg']}; the file is damaged") from error
