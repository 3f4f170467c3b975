"""The numbers in the figures: computed here, asserted by tests, placed by ``figures``.

Every number comes from a ``Result``, an ``Estimate`` or the readings of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from udpbench.analysis.ledger.stages import BEFORE_SENT
from udpbench.analysis.motion import intervals, stage_packets
from udpbench.analysis.points import Point, estimate
from udpbench.analysis.queue_counters import by_receiver
from udpbench.analysis.rates import (
    BUSY_TIMES,
    IDLE_TIMES,
    Cpu,
    edges_ns,
    host_of,
    node_cpus,
    pps_by_bin,
    spent_ns,
)
from udpbench.analysis.readings import End, Readings, readings_of
from udpbench.analysis.result_tables import named_rows
from udpbench.definition.published import Bar as PublishedBar
from udpbench.definition.published import published
from udpbench.judged_run import Chapter
from udpbench.model.limits import SECOND_NS, Part
from udpbench.model.record import TrialRecord
from udpbench.model.result import Estimate, Result
from udpbench.report.summary import name_of, represented, timed

BIN_NS = 100 * 10**6
"""Width of a rate's bin over time: the interval at which workers are sampled."""
MOST_BINS = 36_000
"""Most bins of a timeline: an hour; those of a longer one are wider."""
MOST_TIMELINES = 4
"""Maximum points shown over time; beyond it only the extreme ones."""
MOST_SOCKETS = 5
"""Sockets of watched hosts that are drawn over time."""
RECEIVED, UNACCOUNTED = "received", "unaccounted"
UNCERTAIN = "one of those stages"
"""Packets of merged skbs, beyond the minimum that each stage must have dropped."""


@dataclass(frozen=True)
class Dots:
    """One point's row in the figure of all trials."""

    point: str
    valid_pps: tuple[float, ...]
    invalid_pps: tuple[float, ...]
    median: Estimate | None
    published: PublishedBar | None


@dataclass(frozen=True)
class PacketPath:
    """Where the packets of one trial ended, in the packet's order, as shares of sent."""

    point: str
    repetition: int
    sent_packets: int
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """A value and its interval of time, since the common start."""

    from_s: float
    to_s: float
    value: float


@dataclass(frozen=True)
class Timeline:
    """One trial over time, both ends on one axis."""

    point: str
    repetition: int
    offered: tuple[Step, ...]
    delivered: tuple[Step, ...]
    drops: Mapping[str, tuple[Step, ...]]
    """Stage → packets per second that ended there, by its counters; or socket of a watched host."""
    cpus: Mapping[str, tuple[Step, ...]]
    """``sender, CPU 1`` → busy share."""


@dataclass(frozen=True)
class Heat:
    """How the packets of each point's representative trial spread over workers, or over queues."""

    column_kind: str
    points: tuple[str, ...]
    columns: tuple[str, ...]
    shares: tuple[tuple[float | None, ...], ...]
    """Point by point, the share of its packets in each column; None if it has no such column."""


@dataclass(frozen=True)
class QueueTimes:
    """One trial's queues over time."""

    point: str
    repetition: int
    queues: tuple[str, ...]
    edges_s: tuple[float, ...]
    """Edges of the intervals, since the common start: one more than intervals."""
    pps: tuple[tuple[float | None, ...], ...]
    """Queue by queue, in each interval; None where nothing counted it."""
    dropping: tuple[tuple[bool, ...], ...]
    """Likewise, whether the queue dropped packets."""


def dots(chapter: Chapter) -> tuple[Dots, ...]:
    """Return a row per point, even without a rate."""
    sources = {trial.point: trial.source for trial in chapter.experiment.points}
    rows = []
    for point in chapter.points:
        figure = published(sources.get(point.name) or "")
        rates = [(result.delivered_pps, result.valid) for result in point.results]
        rows.append(
            Dots(
                name_of(point),
                tuple(pps for pps, valid in rates if pps is not None and valid),
                tuple(pps for pps, valid in rates if pps is not None and not valid),
                estimate(point, "delivered_pps"),
                figure.bar("pps") if figure is not None else None,
            )
        )
    return tuple(rows)


def ways(chapter: Chapter) -> tuple[PacketPath, ...]:
    """Return the way of the packets of each point's representative trial."""
    rows = []
    for point, result in represented(chapter):
        if result.ledger is None or not result.sent_packets:
            continue
        sent = int(result.sent_packets)
        counts = [(RECEIVED, result.ledger.received_packets)]
        counts += [
            (entry.stage, entry.packets)
            for entry in result.ledger.entries
            if entry.packets and entry.stage not in BEFORE_SENT
        ]
        if result.ledger.unaccounted:
            counts.append((UNACCOUNTED, result.ledger.unaccounted))
        if any(entry.at_most is not None for entry in result.ledger.entries):
            rest = sent - sum(packets for _, packets in counts)
            counts += [(UNCERTAIN, rest)] if rest > 0 else []
        parts = tuple((name, packets / sent) for name, packets in counts)
        repetition = result.trial.repetition
        rows.append(PacketPath(name_of(point), repetition, sent, parts))
    return tuple(rows)


# --- over time -----------------------------------------------------------------------------------


def shown_over_time(chapter: Chapter) -> tuple[Point, ...]:
    """Return the points shown over time: all if they are few, else the extreme ones.

    Those are the first and the last, and those that delivered most and least.
    """
    known = [point for point in chapter.points if timed(point) is not None]
    if len(known) <= MOST_TIMELINES:
        return tuple(known)
    rated = [(point, estimate(point, "delivered_pps")) for point in known]
    by_rate = sorted((e.median, i) for i, (_, e) in enumerate(rated) if e is not None)
    chosen = {0, len(known) - 1, *(i for _, i in (*by_rate[:1], *by_rate[-1:]))}
    return tuple(known[i] for i in sorted(chosen))


def timelines(chapter: Chapter) -> tuple[Timeline, ...]:
    """Return each shown point's representative trial over time."""
    records = {record.trial.name: record for record in chapter.records}
    lines = []
    for point in shown_over_time(chapter):
        result = timed(point)
        if result is not None:
            line = _timeline(point, result, records[result.trial.name])
            lines += [line] if line is not None else []
    return tuple(lines)


def _timeline(point: Point, result: Result, record: TrialRecord) -> Timeline | None:
    measured = readings_of(record)
    if measured is None:
        return None
    shown = _cpus_shown(measured)
    watched = [
        _Drawn(
            (interval.from_ns, interval.to_ns),
            stage_packets(interval.readings),
            [_busy(interval.readings.at(part), cpus) for part, cpus in shown.values()],
        )
        for interval in intervals(measured)
    ]
    offered, delivered = map(_rates, measured.ends)
    # A load shorter than a bin has one interval, with the numbers of the ledger.
    if not (offered or delivered or len(watched) > 1):
        return None
    return Timeline(
        name_of(point),
        result.trial.repetition,
        offered,
        delivered,
        dict(_by_socket(result)) or dict(_drops(measured, watched, result)),
        dict(_cpus(shown, watched)),
    )


class _Drawn(NamedTuple):
    """What is drawn of one interval between two readings of counters."""

    span_ns: tuple[int, int]
    packets: dict[str, int]
    """By the stage at which they ended."""
    busy: list[float | None]
    """Share, of each of the shown groups of CPUs."""


def _rates(end: End) -> tuple[Step, ...]:
    if not end.view.record.series:
        return ()
    edges = edges_ns(end.view, end.workers)
    length_ns = edges[1] - edges[0] if edges is not None else 0
    bin_ns = BIN_NS * max(-(-length_ns // (BIN_NS * MOST_BINS)), 1)
    bins = pps_by_bin(end, bin_ns)
    return tuple(
        Step(begin / SECOND_NS, (begin + bin_ns) / SECOND_NS, pps) for begin, pps in bins.items()
    )


def _drops(
    measured: Readings, watched: Sequence[_Drawn], result: Result
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """Yield every stage that dropped packets during the load, in the packet's order.

    The ledger decides which, since its counters were at rest. Under load, a stage computed as a
    difference of counters may seem to drop packets that arrived between two reads.
    """
    entries = result.ledger.entries if result.ledger is not None else ()
    taking = [entry.stage for entry in entries if entry.packets]
    load = edges_ns(measured, measured.sender.workers)
    spans = [_within(each.span_ns, load) for each in watched]
    for stage in taking:
        if any(each.packets.get(stage) for each in watched):
            yield (
                stage,
                tuple(
                    Step(begin_s, end_s, each.packets.get(stage, 0) / (end_s - begin_s))
                    for (begin_s, end_s), each in zip(spans, watched, strict=True)
                ),
            )


def _by_socket(result: Result) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """Yield the sockets of watched hosts that dropped most, with their rates of drops over time."""
    table = next((table for table in result.tables if table.name == "sockets"), None)
    sockets: dict[str, list[tuple[int, int, int]]] = {}
    for row in named_rows(table) if table is not None else ():
        sockets.setdefault(row["socket"], []).append((row["from_ns"], row["to_ns"], row["dropped"]))
    worst_first = sorted(sockets, key=lambda name: -sum(row[2] for row in sockets[name]))
    for name in worst_first[:MOST_SOCKETS]:
        steps, end_ns = [], 0
        for from_ns, to_ns, dropped in sockets[name]:
            if from_ns > end_ns:
                steps.append(Step(*_seconds((end_ns, from_ns)), 0.0))
            begin_s, end_s = _seconds((from_ns, to_ns))
            steps.append(Step(begin_s, end_s, dropped / (end_s - begin_s)))
            end_ns = to_ns
        yield name, tuple(steps)


def _within(span_ns: tuple[int, int], load: tuple[int, int] | None) -> tuple[float, float]:
    """Return the part of an interval in which packets were sent; all of it if none were.

    At least one bin, because counters are not read simultaneously.
    """
    (from_ns, to_ns), (first_ns, last_ns) = span_ns, load if load is not None else span_ns
    begin_ns = max(from_ns, first_ns)
    end_ns = min(to_ns, max(last_ns, begin_ns + BIN_NS))
    sent = begin_ns < to_ns and last_ns > from_ns
    return _seconds((begin_ns, end_ns) if sent else span_ns)


def _seconds(span_ns: tuple[int, int]) -> tuple[float, float]:
    return span_ns[0] / SECOND_NS, span_ns[1] / SECOND_NS


def _cpus_shown(measured: Readings) -> dict[str, tuple[Part, frozenset[Cpu] | None]]:
    """Return name → end and its CPUs; None, all of its machine, if no worker is pinned."""
    shown: dict[str, tuple[Part, frozenset[Cpu] | None]] = {}
    for end in measured.ends:
        cpus = node_cpus(end)
        if cpus is None:
            name = "all CPUs" if measured.record.built_in_lab else f"{end.part}, all CPUs"
        else:
            name = f"{end.part}, CPU {_listed(cpus)}"
        shown.setdefault(name, (end.part, cpus))
    return shown


def _cpus(
    names: Iterable[str], watched: Sequence[_Drawn]
) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """Yield how busy each group of CPUs is."""
    for number, name in enumerate(names):
        steps = [(each.span_ns, each.busy[number]) for each in watched]
        known = tuple(Step(*_seconds(ns), share) for ns, share in steps if share is not None)
        if known:
            yield name, known


def _listed(cpus: frozenset[Cpu]) -> str:
    """Return the CPUs' numbers, with the machine before each where they are of several."""
    alone = len({machine for machine, _ in cpus}) == 1
    return ", ".join(str(cpu) if alone else f"{machine} {cpu}" for machine, cpu in sorted(cpus))


def _busy(end: End, cpus: frozenset[Cpu] | None) -> float | None:
    """Return the busy share of some CPUs of an end's machines, or of all of them."""

    def total(times: Sequence[str]) -> int:
        if cpus is None:
            return sum(end.machine_counter(f"cpu.*.{time}_ns") or 0 for time in times)
        return spent_ns(end.view, cpus, times) or 0

    busy, idle = total(BUSY_TIMES), total(IDLE_TIMES)
    return busy / (busy + idle) if busy + idle > 0 else None


# --- over workers and queues ---------------------------------------------------------------------


def heats(chapter: Chapter) -> tuple[Heat, ...]:
    """Return how packets spread over receiving workers and RX queues, where there are several."""
    records = {record.trial.name: record for record in chapter.records}
    known = represented(chapter)
    names = tuple(name_of(point) for point, _ in known)
    workers = [_workers(result) for _, result in known]
    queues = [_queues(records[result.trial.name]) for _, result in known]
    both = (_heat("worker", names, workers), _heat("RX queue", names, queues))
    return tuple(heat for heat in both if heat is not None)


def _workers(result: Result) -> dict[str, int]:
    return {worker.worker: worker.packets for worker in result.workers if worker.role == "receiver"}


def _queues(record: TrialRecord) -> dict[str, int]:
    measured = readings_of(record)
    if measured is None:
        return {}
    return {
        f"{host} rx-{queue}" if len(measured.receiver.hosts) > 1 else f"rx-{queue}": packets
        for host, counts in by_receiver(measured).items()
        for queue, packets in sorted(counts.items())
    }


def queue_times(chapter: Chapter) -> tuple[QueueTimes, ...]:
    """Return each shown point's queues over time, where several are counted in several seconds."""
    shown = [(name_of(point), timed(point)) for point in shown_over_time(chapter)]
    times = (_queue_times(name, result) for name, result in shown if result is not None)
    return tuple(shown for shown in times if shown is not None)


def _queue_times(point: str, result: Result) -> QueueTimes | None:
    queues: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for table in result.tables:
        for row in named_rows(table) if table.name == "queues" else ():
            span_ns = row["from_ns"], row["to_ns"]
            queues.setdefault(f"{row['host']} {row['queue']}", {})[span_ns] = row
    spans_ns = sorted({span_ns for rows in queues.values() for span_ns in rows})
    moved = {
        name: [rows.get(span_ns, {}) for span_ns in spans_ns]
        for name, rows in queues.items()
        if any(row["packets"] or row["drops"] for row in rows.values())
    }
    if len(moved) < 2 or len(spans_ns) < 2:
        return None
    edges_s = (spans_ns[0][0] / SECOND_NS, *(to_ns / SECOND_NS for _, to_ns in spans_ns))
    pps = (
        tuple(
            row["packets"] * SECOND_NS / (row["to_ns"] - row["from_ns"])
            if row.get("packets") is not None
            else None
            for row in rows
        )
        for rows in moved.values()
    )
    dropping = (tuple(bool(row.get("drops")) for row in rows) for rows in moved.values())
    repetition = result.trial.repetition
    return QueueTimes(point, repetition, tuple(moved), edges_s, tuple(pps), tuple(dropping))


def _heat(subject: str, names: tuple[str, ...], counts: Sequence[Mapping[str, int]]) -> Heat | None:
    """Return the shares, or None if there is only one column."""
    columns = tuple(dict.fromkeys(column for packets in counts for column in packets))
    if len(columns) < 2:
        return None
    shares = []
    for packets in counts:
        whole = sum(packets.values())
        shares.append(
            tuple(packets[name] / whole if name in packets and whole else None for name in columns)
        )
    hosts = {host_of(name) for name in columns} if subject == "worker" else set()
    short = tuple(name.rpartition(".")[2] for name in columns) if len(hosts) == 1 else columns
    return Heat(subject, names, short, tuple(shares))
