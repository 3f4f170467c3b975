"""Trials of which only the result is read, as ``run`` kept it, until more is asked for."""

from __future__ import annotations

import os
import re
import weakref
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_type_hints

from pydantic_core import SchemaValidator

from udpbench.errors import RecordError
from udpbench.json_lines import Room, compact, open_regular
from udpbench.judged_trials import (
    JUDGED_FILE,
    PARTS,
    JudgedTrial,
    LaterRecord,
    SourceDigest,
    own_key,
    unsealed,
)
from udpbench.model.record import RECORD_SCHEMA, Finding, TrialRecord
from udpbench.records.exact import as_judged, exactly
from udpbench.records.lines import LineReader, TrialLine, trial_of, uncollected
from udpbench.records.run import RUN_FILE, SERIES_FILE
from udpbench.records.series import StoredSeries

OWN_TRIAL = re.compile(rb'\{"kind":"trial","sequence":([0-9]{1,18}),"record":\{')
OWN_SERIES = re.compile(rb'\{"sequence":([0-9]{1,18}),"samples":\[')
"""How udpbench begins these lines, which others may write in another way."""


def places_in(line: bytes, plain: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return where the texts of PARTS are in the line of a record, which ``plain`` holds."""
    places = {}
    for name in PARTS:
        text = compact(plain[name])
        begin = line.index(b'"%b":%b' % (name.encode(), text)) + len(f'"{name}":')
        places[name] = begin, begin + len(text)
    return places


@cache
def _as_part(name: str) -> SchemaValidator:
    return exactly(get_type_hints(TrialRecord)[name])


class KeptResults:
    """What a run kept of its trials' results, and where the rest of these trials is."""

    def __init__(self, folder: Path, reading: LineReader, texts: dict[str, bytes]) -> None:
        self.findings: list[Finding] = []
        self.offset = 0
        """At which the next line of the run begins."""
        self._folder = folder
        self._reading = replace(reading, findings=self.findings)
        self._texts = texts
        self._series: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        """Sequence number → where, offset and bytes of each line of its series."""
        self._sources: dict[int, SourceDigest] = defaultdict(SourceDigest)
        self._alike: dict[bytes, bytes] = {}
        """Each text of a part once."""
        self._parts: dict[tuple[str, bytes], Any] = {}
        """What such texts mean, as far as it was asked for."""
        if reading.folder_fd is not None:  # whoever gave it closes it
            self._reading.folder_fd = os.dup(reading.folder_fd)
            weakref.finalize(self, os.close, self._reading.folder_fd)

    @classmethod
    def of_run(cls, folder: Path, reading: LineReader) -> KeptResults | None:
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

    def trial(self, where: str, text: bytes) -> TrialLine | None:
        """Return the trial of a run's next line, of which only the result is read; else None."""
        place = where, self.offset, len(text)
        self.offset += len(text)
        match = OWN_TRIAL.match(text)
        number = int(match[1]) if match is not None else -1
        digest = self._sources.get(number, SourceDigest()).with_line(text)
        content = self._texts.pop(digest, None)
        with suppress(ValueError):
            if content is not None:
                judged: JudgedTrial = as_judged().validate_json(content)
                own = {name: text[slice(*judged.parts[name])] for name in PARTS}
                part = partial(
                    self._part, {k: self._alike.setdefault(t, t) for k, t in own.items()}
                )
                read = partial(self._read, digest, number, place)
                return TrialLine("trial", LaterRecord(judged, part, read), number)
        return None

    def _part(self, texts: dict[str, bytes], name: str) -> Any:
        """Return a field of a record of which only parts are read."""
        key = name, texts[name]
        if key not in self._parts:
            self._parts[key] = _as_part(name).validate_json(texts[name])
        return self._parts[key]

    def join(self, record: TrialRecord, number: int, where: str) -> TrialRecord:
        """Return a record with its series, which a record that is read later gets then."""
        if isinstance(record, LaterRecord):
            return record
        return self._joined(record, number, where, self._series_texts(number), self._reading)

    def _read(self, digest: str, number: int, place: tuple[str, int, int]) -> TrialRecord:
        """Return the record of a trial of which the result is known; raises RecordError."""
        where, text = self._text(RUN_FILE, place)
        source, series = SourceDigest(), self._series_texts(number)
        for _, part in series:
            source.add(part)
        if source.with_line(text) != digest:
            raise RecordError(f"{where}: changed since it was read; try again")
        # What others of the process hold by now is no part of this trial.
        reading = replace(self._reading, room=Room())
        with uncollected():
            record, _ = trial_of(reading.line(where, text), where)
            return self._joined(record, number, where, series, reading)

    def _joined(
        self,
        record: TrialRecord,
        number: int,
        where: str,
        series: Iterable[tuple[str, bytes]],
        reading: LineReader,
    ) -> TrialRecord:
        lines = [reading.series_line(*each) for each in series]
        samples = {number: [sample for line in lines for sample in line.samples]}
        moved = {number: [snapshot for line in lines for snapshot in line.snapshots]}
        return StoredSeries(samples, moved, []).join(record, number, where)

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
