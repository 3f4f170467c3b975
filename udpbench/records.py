"""The run folder: append-only files of JSON lines, written during a run and readable at any time.

Owns the form of ``run.jsonl`` and ``series.jsonl`` and derives no number.
A line is on the disk before the next trial begins, so a run killed at any moment is readable.
A resumed run has several sessions in one file. The writing process holds the file's lock.
The schema is ``model.RECORD_SCHEMA``; its history: 1 — the first form; 2 — ``faults`` are called
``losses``. Runs of both are read. Long, because the form is written and read back in one place.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import stat
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from importlib.metadata import version
from itertools import chain
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from pydantic_core.core_schema import no_info_after_validator_function

from udpbench.errors import RecordError, StoreError
from udpbench.folder import Folder, lock_file, other_writers
from udpbench.host_settings import set_keys
from udpbench.json_lines import (
    BLOCK_BYTES,
    MOST_LEVELS,
    DamagedLine,
    Room,
    append,
    append_line,
    cut_torn,
    object_in,
    open_regular,
    parsed_bytes,
    whole_lines,
)
from udpbench.judged_trials import (
    JUDGED_FILE,
    JudgedTrial,
    LaterRecord,
    SourceDigest,
    own_key,
    sealed,
    unsealed,
)
from udpbench.meanwhile import Meanwhile
from udpbench.model.experiment import Experiment, trial_count
from udpbench.model.lab import Lab
from udpbench.model.limits import (
    ANSWERS_MAX,
    INTEGERS,
    LENGTHS,
    LIMITS,
    NUMBER,
    NUMBERED,
    RAW_NS,
    TRIALS_MAX,
)
from udpbench.model.record import (
    RECORD_SCHEMA,
    Finding,
    RecordedError,
    Sample,
    Snapshot,
    TrialRecord,
)
from udpbench.model.result import Result
from udpbench.printable import printable
from udpbench.protocol import encode
from udpbench.stored_numbers import CutTrial, Pairs

RUN_FILE = "run.jsonl"
SERIES_FILE = "series.jsonl"
CAMPAIGN_FILE = "campaign.json"
"""In the folder of a campaign, whose run folders are two folders below it."""
NAMES = ("name", "experiment", "point", "variant", "values", "host", "worker")
"""Keys of text that is drawn into figures, which cannot show control characters."""
PATH = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,1000}")
"""What a header says of where definitions are; it is shown in messages of one line."""
BEGIN = re.compile(
    rb'\{"kind": ?"header", ?"udpbench": ?"[^"\\]*", ?'
    rb'"started_at": ?"(\d{4}-\d\d-\d\dT[\d:.]+\+00:00)"'
)
"""The beginning of a run's first line, which may be long; as ``now_utc`` has the time."""
NUMBERS, TEXTS = frozenset((int, float, bool)), frozenset((str, list, dict))
"""Types of what has no name in it, and may have."""
COUNTS, SMALL = 2**15, 256
"""Up to which numbers are kept once: by us, and by Python."""
AT_ONCE_BYTES = 2**24
"""Most memory that a line may take as Python's objects to be parsed and validated at once."""
LONG_BYTES = 2**23
"""Size of a series from which on a second process saves more than it takes to begin."""
OWN_TRIAL = re.compile(rb'\{"kind":"trial","sequence":([0-9]{1,18}),"record":\{')
OWN_SERIES = re.compile(rb'\{"sequence":([0-9]{1,18}),"samples":\[')
"""How udpbench begins these lines, which others may write in another way."""
ESCAPE = re.compile(rb'\\[^"\\/]')
"""In JSON, of a character that may have to be shown as such an escape."""
TABBED = (b'"value":', b'"before":', b'"after":')
"""Before text that may have tabs, as sysctls do; none of it is a name."""
NAMES_MAX = 2**16
"""Most names that are kept once while a run is read; a trial on a large host has thousands."""
T = TypeVar("T")


@dataclass(frozen=True)
class RunHeader:
    """A run before its first trial: everything needed to repeat it or to judge it later."""

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
    """The lab's file; like the experiments' files, relative to the working folder."""
    working_folder: str = ""
    same: str | None = None
    """The point that ``--same`` named; the experiments compare it with itself already."""
    schema: int = RECORD_SCHEMA

    @property
    def watched(self) -> bool:
        """Whether this is a recording of ``watch --out`` or ``serve --out``, not a run."""
        return any(
            trial.watched or trial.served for each in self.experiments for trial in each.points
        )

    @property
    def verb(self) -> Literal["run", "tune"]:
        """The command of udpbench that resumes it."""
        return "tune" if any(each.tune is not None for each in self.experiments) else "run"


@dataclass(frozen=True)
class Begin:
    """The start of a session: the first is in the header, each other has its own line."""

    started_at: str
    udpbench: str
    command: tuple[str, ...]
    cut_bytes: int = 0
    """Bytes of a torn last line that the previous session left and this one cut off."""


@dataclass(frozen=True)
class Ending:
    """How a run ended; without it, the run was killed or is in progress."""

    finished_at: str
    status: Literal["complete", "interrupted", "failed"]
    error: RecordedError | None = None
    """What ended a failed run early."""
    restore_errors: tuple[RecordedError, ...] = ()
    lost: tuple[RecordedError, ...] = ()
    """The same for agents that could not be told to restore."""
    seen_restored: tuple[str, ...] = ()
    """Hosts of lost agents that were seen restored after the lease."""

    @property
    def kind(self) -> str:
        """Return the name of the error's class; empty without an error."""
        return self.error.kind if self.error is not None else ""


@dataclass(frozen=True)
class RunSession:
    """One session of a run; without an ending its process died, or it is in progress."""

    begin: Begin
    trials: int
    ending: Ending | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as read; ``findings`` are about the files, not about the run."""

    folder: Path
    header: RunHeader
    records: tuple[TrialRecord, ...]
    """For each trial, the record of its latest session."""
    ending: Ending | None
    """The ending of the latest session."""
    findings: tuple[Finding, ...] = ()
    sessions: tuple[RunSession, ...] = ()
    replaced: tuple[TrialRecord, ...] = ()
    """Records of trials that a later session repeated."""
    numbers: int = 0
    """One more than the highest number of any record or series."""


@dataclass(frozen=True)
class _TrialLine:
    """A line of a trial, whole."""

    kind: Literal["trial"]
    record: TrialRecord
    sequence: int = -1


@dataclass(frozen=True)
class _SeriesLine:
    """A line of a series, whole."""

    samples: tuple[Sample, ...]
    sequence: int = -1
    snapshots: tuple[Snapshot, ...] = ()
    """Older runs have no counters over time."""


_SAMPLES: Any = tuple[Sample, ...]
_SNAPSHOTS: Any = tuple[Snapshot, ...]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what reads and writes a type; made when needed: that of a record takes 0.1 s."""
    return TypeAdapter(kind)


def now_utc() -> str:
    """Return a time in the form of records: UTC, ISO 8601, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_header(
    experiments: Sequence[Experiment],
    lab: Lab,
    command: tuple[str, ...],
    sets: Sequence[str] = (),
    seed: int | None = None,
    same: str | None = None,
) -> RunHeader:
    """Return the header of a run that begins now; without a ``seed``, a random one."""
    return RunHeader(
        udpbench=version("udpbench"),
        started_at=now_utc(),
        command=command,
        seed=seed if seed is not None else int.from_bytes(os.urandom(4), "big"),
        lab_name=lab.name,
        lab_text=lab.text,
        experiments=tuple(experiments),
        sets=tuple(sets),
        lab_path=lab.path,
        working_folder=str(Path.cwd()),
        same=same,
    )


def new_folder(base: Path, name: str) -> Path:
    """Create and return ``<base>/<time>-<name>``, a folder of this run only."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        folder = base / f"{stamp}-{plain}{suffix}"
        try:
            with Folder.open(base, make=True) as held:
                held.make(folder.name).close()
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot("make the run folder", folder, error) from error
        return folder
    raise RecordError(f"{base}: 999 runs of the same name within one second; wait and run again")


def last_run(base: Path) -> Path:
    """Return the most recently started run folder in ``base``; raises RecordError."""
    folders = [file.parent for file in base.glob(f"*/{RUN_FILE}")]
    if not folders:
        raise RecordError(f"{base}: contains no run; name a run folder, or run an experiment first")
    return max(folders, key=lambda folder: (*_begun(folder), folder.name))


def _begun(folder: Path) -> tuple[bool, str]:
    """Return whether a run is of nobody else, and when it began; empty if that is damaged."""
    try:
        with open_regular(folder / RUN_FILE, follow=False) as file:
            begin = BEGIN.match(file.read(BLOCK_BYTES))
        own = not _strangers((folder.resolve(), folder / RUN_FILE))
    except OSError:
        return False, ""
    return own, begin[1].decode() if begin else ""


class RunWriter:
    """Writes one run; every line is flushed and synced before the call returns."""

    def __init__(self, held: Folder, run_fd: int, series_fd: int) -> None:
        self.folder = held.path
        self.written = 0
        """Records written so far."""
        self._number = 0
        """The next record's sequence number; the incomplete series of a killed run keeps its
        own."""
        self._held = held
        self._run_fd = run_fd
        self._series_fd = series_fd
        self._series_at = 0
        """Offset in the series file at which the parts of the current trial begin."""
        self._streamed = (0, 0)
        """Samples and snapshots of the current trial already written."""
        self._source: SourceDigest | None = SourceDigest()
        """The current trial's series; None if not all its names are printable."""
        self._last: tuple[TrialRecord | None, str] = None, ""
        """The record that was written last, and the digest of what it will be judged from."""
        self._judged_fd: int | None = None

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
        """Begin a run in ``folder``, created if missing; a folder that holds a run is refused."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        strange = next(_strange(header), None)
        if strange is not None:
            raise RecordError(f"{folder}: {strange}: such a run could not be read again")
        try:
            held = Folder.open(folder, make=True)
            run_fd, series_fd = held.file(RUN_FILE, flags), held.file(SERIES_FILE, flags)
            writer = cls(held, run_fd, series_fd)
            writer._lock(must=False)  # a new folder has no other owner
            plain = _plain(RunHeader, header)
            for point in chain.from_iterable(
                experiment["points"] for experiment in plain["experiments"]
            ):
                point["settings"] = set_keys(point["settings"])
            append(run_fd, {"kind": "header", **plain})
            os.fsync(held.fd)  # sync the directory entry, too (fsync(2))
        except FileExistsError as error:
            raise RecordError(f"{folder}: already holds a run; name another folder") from error
        except OSError as error:
            raise _cannot("begin a run", folder, error) from error
        return writer

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Take over a run that has ended or died, changing nothing yet; refuse one in progress."""
        flags = os.O_RDWR | os.O_APPEND
        try:
            held = Folder.open(folder)
            run_fd = held.file(RUN_FILE, flags)
            series_fd = held.file(SERIES_FILE, flags | os.O_CREAT)
        except FileNotFoundError as error:
            raise _no_run(folder / RUN_FILE) from error
        except OSError as error:
            what = f"{folder}: cannot continue the run: {error.strerror}"
            raise RecordError(f"{what}; change its owner to you, or copy it") from error
        writer = cls(held, run_fd, series_fd)
        writer._lock()
        return writer

    def _lock(self, must: bool = True) -> None:
        """Lock the folder; the lock ends with this process, however it dies."""
        try:
            locked = lock_file(self._run_fd)
        except OSError as error:
            if not must:
                return
            self.close()
            why = f"this disk has no locks ({error.strerror}); copy the folder to one that has"
            raise RecordError(f"{self.folder}: {why}") from error
        if not locked:
            self.close()
            why = "in use by a run that is still going on; wait until it ends, or interrupt it"
            raise RecordError(f"{self.folder}: {why}")

    def hold(self) -> Folder:
        """Return its folder, which stays open when the run has ended."""
        return Folder(self.folder, os.dup(self._held.fd))

    def read(self) -> Run:
        """Return the run in the folder that is held, wherever its path leads by now."""
        with _uncollected():
            return _read_run(self.folder, self._held.fd)

    def strangers(self) -> list[str]:
        """Return how other users could have written this run, in words."""
        return _strangers((self._held.fd, self._run_fd, self._series_fd))

    def resume(self, run: Run, begin: Begin) -> None:
        """Begin another session of ``run``, which was read from this folder under the lock."""
        cut_bytes = cut_torn(self._run_fd)
        cut_torn(self._series_fd)
        self._series_at = os.fstat(self._series_fd).st_size
        self._number = run.numbers
        line = _plain(Begin, replace(begin, cut_bytes=cut_bytes))
        self._append(self._run_fd, {"kind": "resumed", **line})

    def write(self, record: TrialRecord) -> None:
        """Append one record; its series is written first, so that every record has one.

        Streamed parts of the series are already written. StoreError names the trial.
        """
        try:
            self._write(record)
        except StoreError as error:
            how = "ran" if record.status == "done" else f"ended as {record.status}"
            what = f"{record.trial.name} {how} and could not be stored"
            raise StoreError(f"{what}: {error}") from error

    def _write(self, record: TrialRecord) -> None:
        samples, snapshots = self._streamed
        rest = record.series[samples:], record.motion[snapshots:]
        if any(rest) or any(self._streamed):
            self._append_part(*rest)
        self._series_at, self._streamed = os.fstat(self._series_fd).st_size, (0, 0)
        plain = _plain(TrialRecord, replace(record, series=(), motion=()))
        plain["trial"]["settings"] = set_keys(plain["trial"]["settings"])
        message = {"kind": "trial", "sequence": self._number, "record": plain}
        line, source = self._append(self._run_fd, message), self._source
        self.written, self._number, self._source = (
            self.written + 1,
            self._number + 1,
            SourceDigest(),
        )
        self._last = None, ""
        if source is not None and _is_printable(line):
            self._last = record, source.with_line(line)

    def keep_result(self, record: TrialRecord, result: Result) -> None:
        """Store how the record that was written last was judged, to be read by the same build.

        Nothing is lost if that fails: the record is judged again where its result is asked for.
        """
        last, digest = self._last
        if last is not record:
            return
        kept = JudgedTrial(digest, record.status, record.built_in_lab, result)
        with suppress(OSError, ValueError):  # of a full disk, and of what does not read back alike
            if self._judged_fd is None:
                self._judged_fd = self._open_judged()
            if self._key is not None:
                append_line(self._judged_fd, sealed(_judged_text(kept), self._key))

    def _open_judged(self) -> int:
        fd = self._held.file(JUDGED_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            cut_torn(fd)
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", JUDGED_FILE)

    @cached_property
    def _key(self) -> bytes | None:
        return own_key(make=True)

    def stream(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Append a part of the current trial's series; the trial's record includes it.

        Not synced: a busy disk would disturb the measurement.
        """
        self._append_part(samples, snapshots, sync=False)
        before = self._streamed
        self._streamed = before[0] + len(samples), before[1] + len(snapshots)

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return the streamed parts of the current trial."""
        if not any(self._streamed):
            return (), ()
        with open(self._series_fd, "rb", closefd=False) as file:
            file.seek(self._series_at)
            parts = [json.loads(line) for line in file]
        samples = (_adapter(_SAMPLES).validate_python(part["samples"]) for part in parts)
        snapshots = (_adapter(_SNAPSHOTS).validate_python(part["snapshots"]) for part in parts)
        return tuple(chain.from_iterable(samples)), tuple(chain.from_iterable(snapshots))

    def _append_part(
        self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...], sync: bool = True
    ) -> None:
        line = self._append(self._series_fd, self._part(samples, snapshots), sync)
        if self._source is not None and _is_printable(line):
            self._source.add(line)
        else:
            self._source = None

    def _part(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> dict[str, Any]:
        return {
            "sequence": self._number,
            "samples": _adapter(_SAMPLES).dump_python(samples, mode="json"),
            "snapshots": _adapter(_SNAPSHOTS).dump_python(snapshots, mode="json"),
        }

    def keep_output(self, name: str, text: str) -> None:
        """Write the output of a user's program in a trial to a file of its own."""
        plain = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name)
        try:
            self._held.write(f"{plain}.output", printable(text).encode())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot write {plain}: {error.strerror}") from error

    def finish(self, ending: Ending) -> None:
        """Append how the run ended and close the files."""
        try:
            self._append(self._run_fd, {"kind": "ending", **_plain(Ending, ending)})
        finally:
            self.close()

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._run_fd)
        os.close(self._series_fd)
        if self._judged_fd is not None:
            os.close(self._judged_fd)
        self._held.close()

    def _append(self, fd: int, message: dict[str, Any], sync: bool = True) -> bytes:
        self._refuse_gone()
        try:
            return append(fd, message, sync)
        except OSError as error:
            step = f"free space, then: udpbench run --resume {quote(str(self.folder))}"
            what = f"{self.folder}: cannot write to the run: {error.strerror}"
            raise StoreError(f"{what}; {step}") from error

    def _refuse_gone(self) -> None:
        """Raise StoreError if the run folder was removed or replaced."""
        file = os.fstat(self._run_fd)
        with suppress(OSError):
            if os.path.samestat(file, (self.folder / RUN_FILE).stat()):
                return
        how = "moved away" if file.st_nlink else f"deleted, with {self._number} stored trials,"
        step = (
            "find out who deleted it, and run again"
            if not file.st_nlink
            else "resume it where it is now"
        )
        raise StoreError(f"{self.folder}: the run folder was {how} during the run; {step}")


def writers_of(folder: Path) -> list[str]:
    """Return as ``RunWriter.strangers`` who else could have written a run; OSError if gone."""
    return _strangers((folder / name).resolve() for name in ("", RUN_FILE, SERIES_FILE))


def _strangers(files: Iterable[int | Path]) -> list[str]:
    return sorted({how for file in files for how in other_writers(file)})


def _plain(kind: Any, value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = _adapter(kind).dump_python(value, mode="json")
    return plain


def _cannot(what: str, folder: Path, error: OSError) -> RecordError:
    return RecordError(f"{folder}: cannot {what}: {error.strerror}; name another with --out")


def read_run(folder: Path, folder_fd: int | None = None, later: bool = False) -> Run:
    """Return the run stored in ``folder``, even if it was killed or is in progress.

    With ``later`` results that this user's own run kept are taken, and the rest of their records is
    read where it is asked for, as long as the folder is there. With ``folder_fd`` it is that of the
    open folder, wherever the path leads by now. An incomplete last line, left by a kill during a
    write, is skipped with a finding. Raises RecordError if the folder is missing, foreign, of
    another schema, or damaged.
    """
    with _uncollected():
        return _read_run(folder, folder_fd, later)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Read without garbage collection: there are no cycles, and looking took half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _read_run(folder: Path, folder_fd: int | None = None, later: bool = False) -> Run:
    path = folder / RUN_FILE
    reading = _Reading(Room(), _Names(), folder_fd)
    lines = reading.lines(path)
    first = next(lines, None)
    if first is None:
        raise RecordError(f"{path}: empty: the run was killed before it began; run again")
    header = _read_header(path, reading.parsed(*first), reading)
    kept = _KeptResults.of_run(folder, reading) if later else None
    if kept is not None:
        kept.offset = len(first[1])
    aside = replace(reading, findings=[])
    beside = Meanwhile(
        lambda: _read_series(folder / SERIES_FILE, aside), kept is None and reading.is_long(folder)
    )
    begins = [Begin(header.started_at, header.udpbench, header.command)]
    trials: list[list[tuple[TrialRecord, int, str]]] = [[]]
    endings: list[Ending | None] = [None]
    for where, text in lines:
        line = (kept and kept.trial(where, text)) or reading.line(where, text)
        kind = "trial" if isinstance(line, _TrialLine) else line.get("kind")
        if kind == "trial":
            trials[-1].append((*_trial_of(line, where), where))
        elif kind == "ending":
            endings[-1] = _validated(Ending, line, where)
        elif kind == "resumed":
            begins.append(_validated(Begin, line, where))
            trials.append([])
            endings.append(None)
        else:
            raise RecordError(f"{where}: neither a trial nor an ending; the file is damaged")
    series = beside.result() if kept is None else kept
    records = [[series.join(*trial) for trial in own] for own in trials]
    numbers = {-1, *series.numbers, *(number for own in trials for _, number, _ in own)}
    parts = zip(begins, records, endings, strict=True)
    sessions = tuple(RunSession(begin, len(own), ending) for begin, own, ending in parts)
    latest, replaced = _latest(records)
    notes = (*series.findings, *reading.findings)
    return Run(folder, header, latest, endings[-1], notes, sessions, replaced, max(numbers) + 1)


def _trial_of(line: _TrialLine | dict[str, Any], where: str) -> tuple[TrialRecord, int]:
    """Return record and number of a trial's line."""
    if isinstance(line, _TrialLine):
        return line.record, line.sequence
    return _validated(TrialRecord, line.get("record"), where), _sequence(line, where)


def _told_apart(finding: Finding) -> Finding:
    """Return a finding with its kind; older runs have it only in how the text begins."""
    old = finding.kind == "" and finding.what.startswith("the controller was slow: ")
    return replace(finding, kind="timing") if old else finding


def _refuse_milliseconds(record: TrialRecord, series: Sequence[Sample], where: str) -> None:
    """Raise RecordError for packets of every millisecond of a load that is too long for them."""
    if record.trial.duration_ns > RAW_NS and any(sample.packets_per_ms for sample in series):
        what = f"packets of every millisecond of a load of more than {RAW_NS // 10**9} s"
        raise RecordError(f"{where}: series: {what}; the file is damaged")


@dataclass
class _Reading:
    """What the files of a run have in common while they are read, line by line."""

    room: Room
    names: _Names
    folder_fd: int | None
    """The run's folder, if it is held open."""
    findings: list[Finding] = field(default_factory=list)
    schema: int = RECORD_SCHEMA
    _pairs: Pairs = field(default_factory=Pairs)

    @cached_property
    def _counts(self) -> dict[int, int]:
        """Each count of a millisecond once: they were half of what a fast run takes."""
        return {count: count for count in range(COUNTS)}

    def is_long(self, folder: Path) -> bool:
        """Return whether the series is worth a second process."""
        with suppress(OSError):
            name = folder / SERIES_FILE if self.folder_fd is None else SERIES_FILE
            return os.stat(name, dir_fd=self.folder_fd).st_size >= LONG_BYTES
        return False

    def lines(self, path: Path) -> Iterator[tuple[str, bytes]]:
        """Yield place and text of every complete line; only the last line may be torn."""
        try:
            for number, line, size_bytes in whole_lines(path, self.folder_fd, False):
                if line is None:
                    self.findings.append(_torn(path, number, size_bytes))
                else:
                    yield f"{path}:{number}", line
        except FileNotFoundError as error:
            raise _no_run(path) from error
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
        except DamagedLine as error:
            raise RecordError(f"{path}:{error.number}: {error}") from error

    def trial(self, text: bytes) -> _TrialLine | None:
        """Return the trial of a line; None if it is another line, or one to be looked at closely.

        Parsing and validating at once takes a fifth of the time, and leaves names as they are.
        """
        if self.schema == 1 or not _is_printable(text):
            return None
        with suppress(ValueError):  # ValidationError among them
            line = self._cut_trial(text) or self._whole_trial(text)
            return line if line is not None and line.sequence >= -1 else None
        return None

    def line(self, where: str, text: bytes) -> _TrialLine | dict[str, Any]:
        """Return the trial of a line, or what else it says."""
        return self.trial(text) or self.shown(self.parsed(where, text))

    def _cut_trial(self, text: bytes) -> _TrialLine | None:
        """Return the trial of a line as udpbench writes it."""
        with suppress(ValueError, LookupError):
            trial = CutTrial(text)
            if trial.cost_bytes > AT_ONCE_BYTES:
                return None
            line: _TrialLine = _exactly(_TrialLine).validate_json(trial.rest)
            self.room.hold(text, trial.cost_bytes)
            trial.put_back(line.record.phases, _exactly(Snapshot).validate_json, self._pairs)
            return line
        return None

    def _whole_trial(self, text: bytes) -> _TrialLine | None:
        """Return the trial of a line as others write it."""
        cost_bytes = parsed_bytes(text)
        if cost_bytes > AT_ONCE_BYTES:
            return None
        self.room.hold(text, cost_bytes)
        line: _TrialLine = _exactly(_TrialLine).validate_json(text)
        return line

    def series(self, text: bytes) -> _SeriesLine | None:
        """Return what a line of a series has, as ``trial`` does."""
        cost_bytes = parsed_bytes(text)
        if self.schema == 1 or cost_bytes > AT_ONCE_BYTES or not _is_printable(text):
            return None
        with suppress(ValueError):
            self.room.hold(text, cost_bytes)
            line: _SeriesLine = _exactly(_SeriesLine).validate_json(text)
            count_of = self._counts.get
            samples = tuple(
                replace(each, packets_per_ms=tuple(map(count_of, own, own)))
                if max(own := each.packets_per_ms, default=0) > SMALL
                else each
                for each in line.samples
            )
            return replace(line, samples=samples) if line.sequence >= -1 else None
        return None

    def series_line(self, where: str, text: bytes) -> _SeriesLine:
        """Return what a line of a series has, however it is written."""
        return self.series(text) or _series_line(self.shown(self.parsed(where, text)), where)

    def parsed(self, where: str, text: bytes) -> dict[str, Any]:
        """Return the object of a line."""
        try:
            return object_in(0, text, self.room)
        except DamagedLine as error:
            raise RecordError(f"{where}: {error}") from error

    def shown(self, plain: Any) -> Any:
        """Return a line in the words of this schema, its names printable."""
        plain = _from_schema_1(plain) if self.schema == 1 else plain
        return self._shown(plain)

    def _shown(self, plain: Any, named: bool = False) -> Any:
        # Users of a host name its processes.
        # A trial has thousands of counters: a call for each took four fifths of reading a run.
        if isinstance(plain, dict):
            name_of = self.names.__getitem__
            if {*map(type, plain.values())} <= NUMBERS:
                return dict(zip(map(name_of, plain), plain.values(), strict=True))
            return {
                name_of(key): self._shown(value, named or key in NAMES)
                if type(value) in TEXTS
                else value
                for key, value in plain.items()
            }
        if isinstance(plain, list):
            kinds, count_of = {*map(type, plain)}, self._counts.get
            if kinds == {int}:
                return list(map(count_of, plain, plain))
            # The thousands of pairs of a histogram.
            if kinds == {list} and {*map(type, chain.from_iterable(plain))} <= {int}:
                return [list(map(count_of, pair, pair)) for pair in plain]
            return [self._shown(item, named) for item in plain]
        return self.names[plain] if named and isinstance(plain, str) else plain


def _is_printable(text: bytes) -> bool:
    """Return whether each name in a line is printable as it is."""
    try:
        plain = b"\x7f" not in text if text.isascii() else text[:-1].decode().isprintable()
    except ValueError:
        return False
    return plain and all(
        escape[0] == b"\\t" and text.endswith(TABBED, 0, text.rfind(b'"', 0, escape.start()))
        for escape in ESCAPE.finditer(text)
    )


class _Names(dict[str, str]):
    """Each text that many lines repeat, once: it is half of what a series takes."""

    def __missing__(self, text: str) -> str:
        name = printable(text, keep="")
        if len(self) < NAMES_MAX:
            self[text] = name
        return name


def _no_run(path: Path) -> RecordError:
    inside = sorted(path.parent.glob(f"*/{RUN_FILE}"))
    step = (
        f"it holds runs: name one, such as {inside[-1].parent}"
        if inside
        else "is this a run folder?"
    )
    return RecordError(f"{path}: no such file; {step}")


def _torn(path: Path, number: int, size_bytes: int) -> Finding:
    return Finding(
        "warning",
        "the last line is torn and was skipped: the run was killed while writing it",
        f"{path}:{number}",
        f"{size_bytes}B",
        next_step="everything before it is complete",
    )


def _latest(sessions: list[list[TrialRecord]]) -> tuple[tuple[TrialRecord, ...], ...]:
    """Return each trial's record of its latest session, and all other records."""
    kept: dict[str, list[TrialRecord]] = {}
    replaced: list[TrialRecord] = []
    for records in sessions:
        for name in dict.fromkeys(record.trial.name for record in records):
            replaced += kept.pop(name, ())
        for record in records:
            kept.setdefault(record.trial.name, []).append(record)
    return tuple(chain.from_iterable(kept.values())), tuple(replaced)


def _read_header(path: Path, line: dict[str, Any], reading: _Reading) -> RunHeader:
    if line.get("kind") != "header":
        raise RecordError(f"{path}:1: not the header of a run: not a file of udpbench")
    schema = line.get("schema")
    if schema not in (1, RECORD_SCHEMA) or type(schema) is not int:
        raise RecordError(
            f"{path}:1: schema {str(schema)[:20]}: this udpbench reads {RECORD_SCHEMA}; "
            f"use udpbench {str(line.get('udpbench'))[:20]}, which wrote it"
        )
    reading.schema = schema
    header = _validated(RunHeader, reading.shown(line), f"{path}:1")
    strange = next(_strange(header), None)
    if strange is not None:
        raise RecordError(f"{path}:1: {strange}; the file is damaged")
    return header


def _strange(header: RunHeader) -> Iterator[str]:
    """Yield what no run may have: a path that is none, blocks out of order, endless work."""
    files = (experiment.path for experiment in header.experiments)
    for path in (header.working_folder, header.lab_path, *files):
        if PATH.fullmatch(path) is None:
            what = "longer than 1000 characters, or with control characters"
            yield f"the path {printable(path[:60], keep='')}: {what}"
    for pair in chain.from_iterable(experiment.compare for experiment in header.experiments):
        if not pair.blocks or [*pair.blocks] != sorted(pair.blocks):
            yield f"compare: blocks {pair.blocks[:9]!s}: empty, or not in order"
    for each in header.experiments:
        metrics = {pair.metric for pair in each.compare}
        answers = (len(each.expect) + len(metrics)) * len(each.points)
        if answers > ANSWERS_MAX:
            yield f"{answers} expectations and comparisons at all points: at most {ANSWERS_MAX}"
    most = trial_count(header.experiments)[1]
    if most > TRIALS_MAX:
        yield f"{most} trials: at most {TRIALS_MAX}"


def _from_schema_1(plain: Any) -> Any:
    """Return a line of schema 1 in the words of schema 2: faults are losses."""
    if isinstance(plain, list):
        return [_from_schema_1(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    renamed = {re.sub(r"\Afaults\b", "losses", key): plain[key] for key in plain}
    return {
        key: value.replace(".fault_", ".loss_")
        if key == "worker" and isinstance(value, str)
        else _from_schema_1(value)
        for key, value in renamed.items()
    }


def _sequence(line: dict[str, Any], where: str) -> int:
    """Return the number of a record, which its series has, too."""
    number = line.get("sequence", -1)
    if type(number) is not int or not -1 <= number <= INTEGERS[1]:
        raise RecordError(
            f"{where}: sequence: {str(number)[:20]} is not a sequence number; the file is damaged"
        )
    return number


@dataclass(frozen=True)
class _Series:
    """Sequence number → samples, and → counters; lines of one trial are joined."""

    samples: dict[int, list[Sample]]
    snapshots: dict[int, list[Snapshot]]
    findings: list[Finding]

    @property
    def numbers(self) -> Iterable[int]:
        """Return the sequence numbers of all series."""
        return self.samples

    def join(self, record: TrialRecord, number: int, where: str) -> TrialRecord:
        """Return a record with its series; raises RecordError."""
        own, moved = self.samples.get(number, ()), self.snapshots.get(number, ())
        _refuse_milliseconds(record, own, where)
        findings = tuple(map(_told_apart, record.findings))
        return replace(record, series=tuple(own), motion=tuple(moved), findings=findings)


class _KeptResults:
    """What a run kept of its trials' results, and where the rest of these trials is."""

    def __init__(self, folder: Path, reading: _Reading, texts: dict[str, bytes]) -> None:
        self.findings: list[Finding] = []
        self.offset = 0
        """At which the next line of the run begins."""
        self._folder = folder
        self._reading = replace(reading, findings=self.findings)
        self._texts = texts
        self._series: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        """Sequence number → where, offset and bytes of each line of its series."""
        self._sources: dict[int, SourceDigest] = defaultdict(SourceDigest)
        if reading.folder_fd is not None:  # whoever gave it closes it
            self._reading.folder_fd = os.dup(reading.folder_fd)
            weakref.finalize(self, os.close, self._reading.folder_fd)

    @classmethod
    def of_run(cls, folder: Path, reading: _Reading) -> _KeptResults | None:
        """Return what this user may rely on; None if that is nothing."""
        key = own_key() if reading.schema == RECORD_SCHEMA else None
        texts = unsealed(folder / JUDGED_FILE, reading.folder_fd, key) if key else {}
        kept = cls(folder, reading, texts) if texts else None
        return kept if kept is not None and kept._is_indexed() else None

    def _is_indexed(self) -> bool:
        """Find each trial's series; return False where one is not as udpbench writes it."""
        at = 0
        for where, text in self._reading.lines(self._folder / SERIES_FILE):
            match = OWN_SERIES.match(text)
            if match is None:
                return False
            number = int(match[1])
            self._series[number].append((where, at, len(text)))
            self._sources[number].add(text)
            at += len(text)
        return True

    @property
    def numbers(self) -> Iterable[int]:
        """Return the sequence numbers of all series."""
        return self._series

    def trial(self, where: str, text: bytes) -> _TrialLine | None:
        """Return the trial of a run's next line, of which only the result is read; else None."""
        place = where, self.offset, len(text)
        self.offset += len(text)
        match = OWN_TRIAL.match(text)
        number = int(match[1]) if match is not None else -1
        digest = self._sources.get(number, SourceDigest()).with_line(text)
        content = self._texts.pop(digest, None)
        with suppress(ValueError):
            if content is not None:
                judged: JudgedTrial = _as_judged().validate_json(content)
                read = partial(self._read, digest, number, place)
                return _TrialLine("trial", LaterRecord(judged, read), number)
        return None

    def join(self, record: TrialRecord, number: int, where: str) -> TrialRecord:
        """Return a record with its series, which a record that is read later gets then."""
        if isinstance(record, LaterRecord):
            return record
        return self._joined(record, number, where, self._series_texts(number))

    def _read(self, digest: str, number: int, place: tuple[str, int, int]) -> TrialRecord:
        """Return the record of a trial of which the result is known; raises RecordError."""
        where, text = self._text(RUN_FILE, place)
        source, series = SourceDigest(), self._series_texts(number)
        for _, part in series:
            source.add(part)
        if source.with_line(text) != digest:
            raise RecordError(f"{where}: changed since it was read; try again")
        with _uncollected():
            record, _ = _trial_of(self._reading.line(where, text), where)
            return self._joined(record, number, where, series)

    def _joined(
        self, record: TrialRecord, number: int, where: str, series: Iterable[tuple[str, bytes]]
    ) -> TrialRecord:
        lines = [self._reading.series_line(*each) for each in series]
        samples = {number: [sample for line in lines for sample in line.samples]}
        moved = {number: [snapshot for line in lines for snapshot in line.snapshots]}
        return _Series(samples, moved, []).join(record, number, where)

    def _series_texts(self, number: int) -> list[tuple[str, bytes]]:
        return [self._text(SERIES_FILE, place) for place in self._series.get(number, ())]

    def _text(self, name: str, place: tuple[str, int, int]) -> tuple[str, bytes]:
        """Return where a line is, and its text."""
        where, at, size_bytes = place
        path = self._folder / name
        try:
            with open_regular(path, self._reading.folder_fd, follow=False) as file:
                return where, os.pread(file.fileno(), size_bytes, at)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def _read_series(path: Path, reading: _Reading) -> _Series:
    samples: dict[int, list[Sample]] = defaultdict(list)
    snapshots: dict[int, list[Snapshot]] = defaultdict(list)
    for where, text in reading.lines(path):
        line = reading.series_line(where, text)
        samples[line.sequence] += line.samples
        snapshots[line.sequence] += line.snapshots
    return _Series(samples, snapshots, reading.findings)


def _series_line(line: dict[str, Any], where: str) -> _SeriesLine:
    sequence = _sequence(line, where)
    samples: tuple[Sample, ...] = _validated(_SAMPLES, line.get("samples"), where)
    moved: tuple[Snapshot, ...] = _validated(_SNAPSHOTS, line.get("snapshots", ()), where)
    return _SeriesLine(samples, sequence, moved)


def _validated(kind: type[T], plain: Any, where: str) -> T:
    exactly: Any = _exactly
    try:
        value: T = exactly(kind).validate_python(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = printable(".".join(str(part)[:60] for part in first["loc"]), keep="")
        raise RecordError(f"{where}: {key}: {first['msg']}; the file is damaged") from error
    return value


@cache
def _exactly(kind: Any) -> SchemaValidator:
    """Return a validator that refuses text as numbers, and numbers that mean endless work."""
    return SchemaValidator(_exact(_adapter(kind).core_schema))


@cache
def _as_judged() -> SchemaValidator:
    """Return a validator of judged trials, whose numbers are counts as well as rates."""
    return SchemaValidator(_exact(_with_counts(_adapter(JudgedTrial).core_schema)))


def _with_counts(schema: Any) -> Any:
    """Return a schema that leaves an integer what it is, where a float is expected."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_with_counts, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "float":
        return {"type": "union", "mode": "left_to_right", "choices": [{"type": "int"}, schema]}
    return {key: _with_counts(part) for key, part in schema.items()}


def _judged_text(judged: JudgedTrial) -> bytes:
    """Return a judged trial as JSON; ValueError if that does not read back as it is."""
    text = _compact(judged)
    if _compact(_as_judged().validate_json(text)) != text:
        raise ValueError("not the same when it is read back")
    return text


def _compact(judged: JudgedTrial) -> bytes:
    plain = encode(judged)
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def _plain_value(value: Any, levels: int = MOST_LEVELS // 2) -> Any:
    """Return a value of any kind; ValueError if it is absurd: infinite, or nested deeply."""
    if levels < 0 or (isinstance(value, float) and not isfinite(value)):
        raise ValueError("absurd")
    inner = value.values() if isinstance(value, dict) else value
    for item in inner if isinstance(value, (dict, list)) else ():
        _plain_value(item, levels - 1)
    return value


def _exact(schema: Any, field: str = "") -> Any:
    """Return a schema whose scalars are exact and within LIMITS; a list still makes a tuple."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(_exact(part, field) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    field = schema["name"] if kind == "dataclass-field" else field
    exact = {
        key: part if key in ("default", "keys_schema") else _exact(part, field)
        for key, part in schema.items()
    }
    if kind in ("int", "str", "bool", "float"):
        exact["strict"] = True
    if kind == "any":
        return no_info_after_validator_function(_plain_value, exact)
    if kind == "int":
        exact["ge"], exact["le"] = LIMITS.get(field, INTEGERS)
    if kind == "float":
        exact["allow_inf_nan"] = False
    if kind in ("list", "tuple", "dict") and field in LENGTHS:
        exact["max_length"] = LENGTHS[field]
    if kind == "dict" and field in NUMBERED:
        exact["keys_schema"] = {"type": "str", "strict": True, "pattern": f"^{NUMBER}$"}
    if kind in ("list", "tuple", "dict"):
        exact["fail_fast"] = True  # an error for each item took a hundred times the file
    return exact
