"""The lines of a run's files, read one by one: trials, series, and what else there is.

Whatever udpbench wrote is parsed and validated at once; the same in another form, or in an older
schema, is looked at closely. Names of others are made printable.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from udpbench.errors import RecordError
from udpbench.json_lines import DamagedLine, Room, object_in, parsed_bytes, whole_lines
from udpbench.model.limits import INTEGERS
from udpbench.model.record import RECORD_SCHEMA, Finding, Sample, Snapshot, TrialRecord
from udpbench.printable import printable
from udpbench.records.exact import exactly, validated
from udpbench.records.folders import no_run
from udpbench.records.run import SERIES_FILE
from udpbench.stored_numbers import CutTrial, Pairs

NAMES = ("name", "experiment", "point", "variant", "values", "host", "worker")
"""Keys of text that is drawn into figures, which cannot show control characters."""
NUMBERS, TEXTS = frozenset((int, float, bool)), frozenset((str, list, dict))
"""Types of what has no name in it, and may have."""
COUNTS, SMALL = 2**15, 256
"""Up to which numbers are kept once: by us, and by Python."""
AT_ONCE_BYTES = 2**24
"""Most memory that a line may take as Python's objects to be parsed and validated at once."""
LONG_BYTES = 2**23
"""Size of a series from which on a second process saves more than it takes to begin."""
ESCAPE = re.compile(rb'\\[^"\\/]')
"""In JSON, of a character that may have to be shown as such an escape."""
TABBED = (b'"value":', b'"before":', b'"after":')
"""Before text that may have tabs, as sysctls do; none of it is a name."""
NAMES_MAX = 2**16
"""Most names that are kept once while a run is read; a trial on a large host has thousands."""


@dataclass(frozen=True)
class TrialLine:
    """A line of a trial, whole."""

    kind: Literal["trial"]
    record: TrialRecord
    sequence: int = -1


@dataclass(frozen=True)
class SeriesLine:
    """A line of a series, whole."""

    samples: tuple[Sample, ...]
    sequence: int = -1
    snapshots: tuple[Snapshot, ...] = ()
    """Older runs have no counters over time."""


SAMPLES: Any = tuple[Sample, ...]
SNAPSHOTS: Any = tuple[Snapshot, ...]


@contextmanager
def uncollected() -> Iterator[None]:
    """Read without garbage collection: there are no cycles, and looking took half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def trial_of(line: TrialLine | dict[str, Any], where: str) -> tuple[TrialRecord, int]:
    """Return record and number of a trial's line."""
    if isinstance(line, TrialLine):
        return line.record, line.sequence
    return validated(TrialRecord, line.get("record"), where), sequence_of(line, where)


class _Names(dict[str, str]):
    """Each text that many lines repeat, once: it is half of what a series takes."""

    def __missing__(self, text: str) -> str:
        name = printable(text, keep="")
        if len(self) < NAMES_MAX:
            self[text] = name
        return name


@dataclass
class LineReader:
    """What the files of a run have in common while they are read, line by line."""

    folder_fd: int | None
    """The run's folder, if it is held open."""
    room: Room = field(default_factory=Room)
    names: _Names = field(default_factory=_Names)
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
            raise no_run(path) from error
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
        except DamagedLine as error:
            raise RecordError(f"{path}:{error.number}: {error}") from error

    def trial(self, text: bytes) -> TrialLine | None:
        """Return the trial of a line; None if it is another line, or one to be looked at closely.

        Parsing and validating at once takes a fifth of the time, and leaves names as they are.
        """
        if self.schema == 1 or not is_printable(text):
            return None
        with suppress(ValueError):  # ValidationError among them
            line = self._cut_trial(text) or self._whole_trial(text)
            return line if line is not None and line.sequence >= -1 else None
        return None

    def line(self, where: str, text: bytes) -> TrialLine | dict[str, Any]:
        """Return the trial of a line, or what else it says."""
        return self.trial(text) or self.shown(self.parsed(where, text))

    def _cut_trial(self, text: bytes) -> TrialLine | None:
        """Return the trial of a line as udpbench writes it."""
        with suppress(ValueError, LookupError):
            trial = CutTrial(text)
            if trial.cost_bytes > AT_ONCE_BYTES:
                return None
            line: TrialLine = exactly(TrialLine).validate_json(trial.rest)
            self.room.hold(text, trial.cost_bytes)
            trial.put_back(line.record.phases, exactly(Snapshot).validate_json, self._pairs)
            return line
        return None

    def _whole_trial(self, text: bytes) -> TrialLine | None:
        """Return the trial of a line as others write it."""
        cost_bytes = parsed_bytes(text)
        if cost_bytes > AT_ONCE_BYTES:
            return None
        self.room.hold(text, cost_bytes)
        line: TrialLine = exactly(TrialLine).validate_json(text)
        return line

    def series(self, text: bytes) -> SeriesLine | None:
        """Return what a line of a series has, as ``trial`` does."""
        cost_bytes = parsed_bytes(text)
        if self.schema == 1 or cost_bytes > AT_ONCE_BYTES or not is_printable(text):
            return None
        with suppress(ValueError):
            self.room.hold(text, cost_bytes)
            line: SeriesLine = exactly(SeriesLine).validate_json(text)
            count_of = self._counts.get
            samples = tuple(
                replace(each, packets_per_ms=tuple(map(count_of, own, own)))
                if max(own := each.packets_per_ms, default=0) > SMALL
                else each
                for each in line.samples
            )
            return replace(line, samples=samples) if line.sequence >= -1 else None
        return None

    def series_line(self, where: str, text: bytes) -> SeriesLine:
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


def is_printable(text: bytes) -> bool:
    """Return whether each name in a line is printable as it is."""
    try:
        plain = b"\x7f" not in text if text.isascii() else text[:-1].decode().isprintable()
    except ValueError:
        return False
    return plain and all(
        escape[0] == b"\\t" and text.endswith(TABBED, 0, text.rfind(b'"', 0, escape.start()))
        for escape in ESCAPE.finditer(text)
    )


def _torn(path: Path, number: int, size_bytes: int) -> Finding:
    return Finding(
        "warning",
        "the last line is torn and was skipped: the run was killed while writing it",
        f"{path}:{number}",
        f"{size_bytes}B",
        next_step="everything before it is complete",
    )


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


def sequence_of(line: dict[str, Any], where: str) -> int:
    """Return the number of a record, which its series has, too."""
    number = line.get("sequence", -1)
    if type(number) is not int or not -1 <= number <= INTEGERS[1]:
        raise RecordError(
            f"{where}: sequence: {str(number)[:20]} is not a sequence number; the file is damaged"
        )
    return number


def _series_line(line: dict[str, Any], where: str) -> SeriesLine:
    sequence = sequence_of(line, where)
    samples: tuple[Sample, ...] = validated(SAMPLES, line.get("samples"), where)
    moved: tuple[Snapshot, ...] = validated(SNAPSHOTS, line.get("snapshots", ()), where)
    return SeriesLine(samples, sequence, moved)
