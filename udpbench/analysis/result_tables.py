"""The tables of a result: each beside what reads its rows from the trial's record.

JSON and frames have every row, all other outputs what ``whole`` leaves of them. A further table is
a function and a row of TABLES; its name is a key of JSON for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.motion import intervals
from udpbench.analysis.queue_counters import queue_uses
from udpbench.analysis.readings import readings_of
from udpbench.model.record import SOCKET, Sample, TrialRecord
from udpbench.model.result import Cell, Column, Result, ResultTable, Row


def _queues(record: TrialRecord, _: Result) -> Iterator[Row]:
    """Yield what each queue did between two readings of the counters."""
    measured = readings_of(record)
    for interval in intervals(measured) if measured is not None else ():
        for use in queue_uses(interval.readings):
            cpu = use.cpus[0] if use.cpus else None
            counts = use.packets, use.drops, use.interrupts
            yield (use.host, interval.from_ns, interval.to_ns, use.queue, *counts, cpu)


def _ledger_parts(_: TrialRecord, result: Result) -> Iterator[Row]:
    """Yield what each counted of a stage that several counted, or that answers' stages explain."""
    for entry in result.ledger.entries if result.ledger is not None else ():
        if entry.packets and (len(entry.parts) > 1 or entry.stage == "answer_lost"):
            yield from ((entry.stage, part, packets) for part, packets in entry.parts.items())


def _sockets(record: TrialRecord, _result: Result) -> Iterator[Row]:
    """Yield what each socket of a watched host dropped between two looks."""
    measured = readings_of(record)
    if measured is None:
        return
    series: dict[str, list[Sample]] = {}
    for sample in record.series:
        if SOCKET in sample.worker:
            series.setdefault(sample.worker, []).append(sample)
    for name, samples in series.items():
        host, _, owner = name.partition(SOCKET)
        for before, after in pairwise(samples):
            both = before, after
            times = (since_start_ns(measured.phase, host, each.clock_ns) for each in both)
            first, last = (each.counts.get("dropped_packets", 0) for each in both)
            if last > first:
                yield (host, *times, owner, last - first)


_QUEUES = (
    Column("host"),
    Column("from_ns", "moment", "ns"),
    Column("to_ns", "moment", "ns"),
    Column("queue"),
    Column("packets", "count", "packets"),
    Column("drops", "count", "packets"),
    Column("interrupts", "count"),
    Column("cpu", "number"),
)
_SOCKETS = (
    Column("host"),
    Column("from_ns", "moment", "ns"),
    Column("to_ns", "moment", "ns"),
    Column("socket"),
    Column("dropped", "count", "packets"),
)
_PARTS = Column("stage"), Column("part"), Column("packets", "count", "packets")
TABLES: tuple[tuple[ResultTable, Callable[[TrialRecord, Result], Iterable[Row]]], ...] = (
    (ResultTable("queues", "Queues of the cards", _QUEUES), _queues),
    (ResultTable("ledger_parts", "Where exactly packets ended", _PARTS), _ledger_parts),
    (ResultTable("sockets", "Which sockets dropped packets", _SOCKETS), _sockets),
)


def with_tables(result: Result, record: TrialRecord) -> Result:
    """Return the result of a record with its tables, whose rows are read when asked for."""
    tables = (replace(table, rows=partial(rows, record, result)) for table, rows in TABLES)
    return replace(result, tables=tuple(tables))


def named_rows(table: ResultTable) -> list[dict[str, Any]]:
    """Return the rows of a table as plain data."""
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows()]


def whole(table: ResultTable) -> ResultTable:
    """Return a table over the whole phase: a row for each thing, with all its numbers named.

    A table without moments is that already.
    """
    if all(column.kind != "moment" for column in table.columns):
        return table
    kept = tuple(column for column in table.columns if column.kind != "moment")
    columns = tuple(replace(c, kind="text") if c.kind == "number" else c for c in kept)
    return replace(table, columns=columns, rows=partial(_summed, table, kept))


def _summed(table: ResultTable, kept: tuple[Column, ...]) -> Iterator[Row]:
    things: dict[Row, list[dict[Column, Cell]]] = {}
    for row in table.rows():
        cells = dict(zip(table.columns, row, strict=True))
        thing = tuple(cells[column] for column in kept if column.kind == "text")
        things.setdefault(thing, []).append(cells)
    for rows in things.values():
        yield tuple(_together(column, [cells[column] for cells in rows]) for column in kept)


def _together(column: Column, cells: list[Cell]) -> Cell:
    known = dict.fromkeys(cell for cell in cells if cell is not None)
    if column.kind == "text" or not known:
        return cells[0]
    if column.kind == "number":
        return ", ".join(map(str, known))
    return sum(cell for cell in cells if isinstance(cell, (int, float)))
