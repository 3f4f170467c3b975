"""A run folder read, at any time: during its run, after a kill, or on another machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from udpbench.errors import RecordError
from udpbench.meanwhile import Meanwhile
from udpbench.model.record import RECORD_SCHEMA, TrialRecord
from udpbench.records.exact import validated
from udpbench.records.kept_results import KeptResults
from udpbench.records.lines import LineReader, TrialLine, trial_of, uncollected
from udpbench.records.run import (
    RUN_FILE,
    SERIES_FILE,
    Begin,
    Ending,
    Run,
    RunHeader,
    RunSession,
    strange_parts,
)
from udpbench.records.series import read_series


@uncollected()
def read_run(folder: Path, folder_fd: int | None = None, later: bool = False) -> Run:
    """Return the run stored in ``folder``, even if it was killed or is in progress.

    With ``later`` results that this user's own run kept are taken, and the rest of their records is
    read where it is asked for, as long as the folder is there. With ``folder_fd`` it is that of the
    open folder, wherever the path leads by now. An incomplete last line, left by a kill during a
    write, is skipped with a finding. Raises RecordError if the folder is missing, foreign, of
    another schema, or damaged.
    """
    path = folder / RUN_FILE
    reading = LineReader(folder_fd)
    lines = reading.lines(path)
    first = next(lines, None)
    if first is None:
        raise RecordError(f"{path}: empty: the run was killed before it began; run again")
    header = _read_header(path, reading.parsed(*first), reading)
    kept = KeptResults.of_run(folder, reading) if later else None
    if kept is not None:
        kept.offset = len(first[1])
    aside = replace(reading, findings=[])
    beside = Meanwhile(
        lambda: read_series(folder / SERIES_FILE, aside), kept is None and reading.is_long(folder)
    )
    begins = [Begin(header.started_at, header.udpbench, header.command)]
    trials: list[list[tuple[TrialRecord, int, str]]] = [[]]
    endings: list[Ending | None] = [None]
    for where, text in lines:
        line = (kept and kept.trial(where, text)) or reading.line(where, text)
        kind = "trial" if isinstance(line, TrialLine) else line.get("kind")
        if kind == "trial":
            trials[-1].append((*trial_of(line, where), where))
        elif kind == "ending":
            endings[-1] = validated(Ending, line, where)
        elif kind == "resumed":
            begins.append(validated(Begin, line, where))
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


def _read_header(path: Path, line: dict[str, Any], reading: LineReader) -> RunHeader:
    if line.get("kind") != "header":
        raise RecordError(f"{path}:1: not the header of a run: not a file of udpbench")
    schema = line.get("schema")
    if schema not in (1, RECORD_SCHEMA) or type(schema) is not int:
        raise RecordError(
            f"{path}:1: schema {str(schema)[:20]}: this udpbench reads {RECORD_SCHEMA}; "
            f"use udpbench {str(line.get('udpbench'))[:20]}, which wrote it"
        )
    reading.schema = schema
    header = validated(RunHeader, reading.shown(line), f"{path}:1")
    strange = next(strange_parts(header), None)
    if strange is not None:
        raise RecordError(f"{path}:1: {strange}; the file is damaged")
    return header
