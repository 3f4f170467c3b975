"""The run folder: an append-only file of JSON lines, written during a run and read at any time.

Owns the form of ``run.jsonl`` and ``series.jsonl`` and derives no number.
A line is on the disk before the next trial begins, so a run killed at any moment is readable.
The schema is ``model.RECORD_SCHEMA``; its history: 1 — the first form.
"""

from __future__ import annotations

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
from pydantic_core import from_json

from udpbench.errors import RecordError
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
    schema: int = RECORD_SCHEMA


@dataclass(frozen=True)
class Ending:
    """How a run ended; a run without one was killed or still goes on."""

    finished_at: str
    status: Literal["complete", "interrupted", "failed"]
    error: dict[str, str] | None = None
    """``{kind, message, host}`` of what ended a failed run early."""
    restore_errors: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Run:
    """A run folder as read; ``findings`` tell what was wrong with the files, not with the run."""

    folder: Path
    header: RunHeader
    records: tuple[TrialRecord, ...]
    ending: Ending | None
    findings: tuple[Finding, ...] = ()


_HEADER: TypeAdapter[RunHeader] = TypeAdapter(RunHeader)
_RECORD: TypeAdapter[TrialRecord] = TypeAdapter(TrialRecord)
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
        """Records written so far; the next one's sequence number."""
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
            raise RecordError(f"{folder}: holds a run already; name another folder") from error
        except OSError as error:
            raise _cannot("begin a run", folder, error) from error
        writer = cls(folder, run_fd, series_fd)
        writer._append(run_fd, {"kind": "header", **_plain(_HEADER, header)})
        _sync_folder(folder)
        return writer

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
        self._append(self._run_fd, {"kind": "trial", "sequence": self.written, "record": plain})
        self.written += 1

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
            "sequence": self.written,
            "samples": _SAMPLES.dump_python(samples, mode="json"),
            "snapshots": _SNAPSHOTS.dump_python(snapshots, mode="json"),
        }

    def finish(self, ending: Ending) -> None:
        """Append how the run ended and close the files."""
        self._append(self._run_fd, {"kind": "ending", **_plain(_ENDING, ending)})
        os.close(self._run_fd)
        os.close(self._series_fd)

    def _append(self, fd: int, message: dict[str, Any], sync: bool = True) -> None:
        line = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
            if sync:
                os.fsync(fd)
        except OSError as error:
            raise _cannot("write to the run", self.folder, error) from error


def _plain(adapter: TypeAdapter[Any], value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = adapter.dump_python(value, mode="json")
    return plain


def _sync_folder(folder: Path) -> None:
    """Put the new names themselves on the disk, not the files' content alone (fsync(2))."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    lines, findings = _lines(path)
    if not lines:
        raise RecordError(f"{path}: empty: the run was killed before it began; run again")
    header = _read_header(path, lines[0])
    series, motion, series_findings = _read_series(folder / SERIES_FILE)
    records: list[TrialRecord] = []
    ending: Ending | None = None
    for number, line in enumerate(lines[1:], start=2):
        where = f"{path}:{number}"
        if line.get("kind") == "trial":
            record = _validated(_RECORD, line.get("record"), where)
            number = line.get("sequence", -1)
            own = tuple(series[number]), tuple(motion[number])
            records.append(replace(record, series=own[0], motion=own[1]))
        elif line.get("kind") == "ending":
            ending = _validated(_ENDING, line, where)
        else:
            raise RecordError(f"{where}: neither a trial nor an ending; the file is damaged")
    return Run(folder, header, tuple(records), ending, (*findings, *series_findings))


def _lines(path: Path) -> tuple[list[dict[str, Any]], tuple[Finding, ...]]:
    """Return every whole line as an object; only the last line may be torn."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file; is the folder of a run meant?") from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    *whole, rest = raw.split(b"\n")
    findings = (_torn(path, len(whole) + 1, len(rest)),) if rest else ()
    return list(_objects(path, whole)), findings


def _objects(path: Path, lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            value = from_json(line)  # half the time of json.loads
        except ValueError as error:
            raise RecordError(f"{path}:{number}: not JSON: the file is damaged") from error
        if not isinstance(value, dict):
            raise RecordError(f"{path}:{number}: not an object: the file is foreign or damaged")
        yield value


def _torn(path: Path, number: int, size_bytes: int) -> Finding:
    return Finding(
        "warning",
        "the last line is torn and was left out: the run was killed while it wrote",
        f"{path}:{number}",
        f"{size_bytes}B",
        next_step="what was written before it is whole",
    )


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
    lines, findings = _lines(path)
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
