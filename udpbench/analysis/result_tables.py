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
from udpbench.analysis.reader_time import reading_threads
from udpbench.analysis.readings import readings_of
from udpbench.model.record import SOCKET, Sample, TrialRecord
from udpbench.model.result import Cell, Column, Result, ResultTable, Row
from udpbench.units import show_percent

MOST_CALLS = 3
"""System calls in which a thread slept that its row names."""


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


def _cpu_time(_: TrialRecord, result: Result) -> Iterator[Row]:
    """Yield what each stage costs a packet of each end."""
    for cost in result.cpu_time.costs if result.cpu_time is not None else ():
        of_packet = cost.ns_per_packet, cost.low_ns, cost.high_ns
        yield (cost.end, cost.stage, *of_packet, cost.share, cost.ns_per_entered)


def _cpu_kinds(_: TrialRecord, result: Result) -> Iterator[Row]:
    """Yield on work of what kind a stage's time went: copies, locks, memory."""
    for cost in result.cpu_time.costs if result.cpu_time is not None else ():
        for kind, share in cost.kinds.items():
            ns = cost.ns_per_packet * share if cost.ns_per_packet is not None else None
            yield cost.end, cost.stage, kind, ns, share


def _cpu_balance(_: TrialRecord, result: Result) -> Iterator[Row]:
    """Yield what each CPU's time was, by part, as sampled and scaled to the kernel's."""
    known = result.cpu_time
    balances = known.balances if known is not None else ()
    entries = known.entries if known is not None else ()
    for cpu in balances:
        mine = [e for e in entries if (e.machine, e.cpu) == (cpu.machine, cpu.cpu)]
        sampled_ns = {"idle": cpu.sampled_idle_ns}
        time_ns = {"idle": float(cpu.idle_ns)}
        for entry in mine:
            sampled_ns[entry.stage] = sampled_ns.get(entry.stage, 0) + entry.sampled_ns
            time_ns[entry.stage] = time_ns.get(entry.stage, 0.0) + entry.time_ns
        for part, ns in sampled_ns.items():
            scaled_ns = None if cpu.struck else round(time_ns[part])
            yield cpu.machine, cpu.cpu, part, ns, scaled_ns, cpu.struck or None


def _thread_time(record: TrialRecord, _: Result) -> Iterator[Row]:
    """Yield how each reader's threads spent their time, and in which calls they slept."""
    measured = readings_of(record)
    for stats in measured.receiver.workers if measured is not None else ():
        for thread in reading_threads(stats.threads):
            elapsed_ns = max(thread.elapsed_ns, 1)
            running, runnable = thread.running_ns / elapsed_ns, thread.runnable_ns / elapsed_ns
            seen = sorted(thread.calls.items(), key=lambda call: -call[1])
            looks = max(sum(thread.calls.values()), 1)
            calls = ", ".join(f"{name} {show_percent(n / looks)}" for name, n in seen[:MOST_CALLS])
            sleeping = max(1 - running - runnable, 0.0)
            yield stats.worker, thread.name, running, runnable, sleeping, calls or None


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
_THREADS = (
    Column("worker"),
    Column("thread"),
    Column("running", "quotient", "ratio"),
    Column("runnable", "quotient", "ratio"),
    Column("sleeping", "quotient", "ratio"),
    Column("sleeps_in"),
)
_PARTS = Column("stage"), Column("part"), Column("packets", "count", "packets")
_CPU_TIME = (
    Column("end"),
    Column("stage"),
    Column("ns_per_packet", "quotient", "ns"),
    Column("low_ns", "quotient", "ns"),
    Column("high_ns", "quotient", "ns"),
    Column("share", "quotient", "ratio"),
    Column("ns_per_entered", "quotient", "ns"),
)
_CPU_KINDS = (
    Column("end"),
    Column("stage"),
    Column("kind"),
    Column("ns_per_packet", "quotient", "ns"),
    Column("share", "quotient", "ratio"),
)
_CPU_BALANCE = (
    Column("machine"),
    Column("cpu", "number"),
    Column("part"),
    Column("sampled_ns", "count", "ns"),
    Column("time_ns", "count", "ns"),
    Column("struck"),
)
TABLES: tuple[tuple[ResultTable, Callable[[TrialRecord, Result], Iterable[Row]]], ...] = (
    (ResultTable("queues", "Queues of the cards", _QUEUES), _queues),
    (ResultTable("ledger_parts", "Where exactly packets ended", _PARTS), _ledger_parts),
    (ResultTable("sockets", "Which sockets dropped packets", _SOCKETS), _sockets),
    (ResultTable("thread_time", "How readers spent the time", _THREADS), _thread_time),
    (ResultTable("cpu_time", "CPU time per packet", _CPU_TIME, always=True), _cpu_time),
    (ResultTable("cpu_kinds", "Kinds of work at each stage", _CPU_KINDS), _cpu_kinds),
    (ResultTable("cpu_balance", "Time of each CPU", _CPU_BALANCE), _cpu_balance),
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
