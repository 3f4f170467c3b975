"""The measured phase over time: readings between any two moments at which counters were read.

Owns how stored changes of counters become readings again. What a stage or a CPU did in an interval
is what the ledger would say of a phase of that length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.delta import Deltas
from udpbench.analysis.ledger.stages import STAGES, stages_of
from udpbench.analysis.rates import (
    BUSY_TIMES,
    IDLE_TIMES,
    edges_ns,
    host_of,
    series_of,
    totals_at,
)
from udpbench.analysis.readings import CounterView, End, Readings, phase_readings
from udpbench.model.limits import LEDGER_STAGES, SAMPLE_NS, stage_of
from udpbench.model.record import PACKETS_FIELD, Phase, Snapshot, TrialRecord, WorkerStats

SKEW_NS = 20 * 10**6
"""Between the first and the last counter of one reading of a host, at most; measured: 2 ms where it
has a CPU, 9 ms where workers keep every CPU busy."""
MOST_DIFFERENCES = 20 * 10**6
"""Most differences of counters in all intervals of a phase together; they take some ten seconds."""
SINGLE = tuple(stage.name for stage in STAGES if stage.single_counter)

LOSING, LOSING_BETWEEN = 0.005, 0.05
"""Share of an interval's packets that is a loss: counted in it, or read about when it ended."""
LEAST_INTERVALS = 3
"""Intervals of 100 ms; fewer do not tell whether a load lasts."""
MOST_INTERVALS = 3000
"""Intervals of 100 ms; what a load of five minutes does it does for longer, too."""
MS_OF_BIN = SAMPLE_NS // 10**6
LEAST_SENT = 10
"""Packets in an interval, from which on one without any received says something."""
Round = Mapping[str, Snapshot]
"""Host → its counters, all read at about one moment."""


@dataclass(frozen=True)
class CpuShare:
    """Shares of an interval in which a CPU was busy, and busy with packets; tick-sampled."""

    busy: float
    softirq: float


@dataclass(frozen=True)
class Interval:
    """What happened between two rounds, in time since the common start."""

    from_ns: int
    to_ns: int
    readings: Readings


def applied(before: Snapshot, moved: Snapshot) -> Snapshot:
    """Return the whole counters of a moment from those before it and those that moved since."""
    return replace(moved, counters={**before.counters, **moved.counters})


def rounds_of(phase: Phase, motion: tuple[Snapshot, ...]) -> Iterator[Round]:
    """Yield every round of a phase, whole: before it, while it went on, after it.

    One by one: all of them together would take as much memory as each counter at each moment.
    """
    latest = dict(phase.before)
    current = dict(latest)
    for moved in motion if _is_shown(phase, motion) else ():
        host = moved.host
        if host not in latest:
            continue
        if host in current:
            if len(current) == len(latest):
                yield current
            current = {}
        current[host] = latest[host] = applied(latest[host], moved)
    if len(current) == len(latest):
        yield current
    if phase.after:
        yield phase.after


def _is_shown(phase: Phase, motion: tuple[Snapshot, ...]) -> bool:
    """Return whether what moved in between can be told within some seconds."""
    looks = Counter(moved.host for moved in motion)
    counted = (times * len(phase.before[host].counters) for host, times in looks.items()
               if host in phase.before)  # fmt: skip
    return sum(counted) <= MOST_DIFFERENCES


def between(
    record: TrialRecord,
    before: Round,
    after: Round,
    within: Readings | None = None,
    stats: tuple[WorkerStats, ...] = (),
) -> Readings:
    """Return the readings of what lies between two rounds.

    What workers counted meanwhile is in ``stats`` if it is known; otherwise ``within`` says what an
    skb of these rounds holds.
    """
    phase = Phase("measured", 0, {}, dict(before), dict(after), stats, {})
    return phase_readings(record, phase, (host for host in before if host in after), within)


def intervals(measured: Readings) -> Iterator[Interval]:
    """Yield the phase from round to round; one interval if counters were not read in between."""
    phase, record = measured.phase, measured.record
    host = next((host for host in phase.start_ns if host in phase.before), None)
    if host is None:
        return
    first: Round | None = None
    for last in rounds_of(phase, record.motion):  # itertools.tee would keep 57 of them
        if first is not None:
            from_ns, to_ns = (
                since_start_ns(phase, host, each[host].clock_ns) for each in (first, last)
            )
            if to_ns > from_ns:
                inside = between(record, first, last, measured)
                yield Interval(from_ns, to_ns, inside)
                inside.forget()
        first = last


def stage_packets(readings: CounterView, stages: Collection[str] = LEDGER_STAGES) -> dict[str, int]:
    """Return stage → the least number of packets that ended there, for those with counters.

    Counters of one host are not read at one moment, so a difference of two may be off by what came
    in between: a stage below 0 counts as 0.
    """
    ended = {}
    for stage in stages_of(readings):
        counted = stage.scope != "worker" and stage_of(stage.name) in stages
        packets = stage.packets(readings) if counted else None
        if packets is not None:
            ended[stage.name] = max(packets.low, 0)
    return ended


def passing(readings: CounterView) -> float:
    """Return the mean number of packets that reach the receivers within SKEW_NS."""
    came = readings.receiver.total("link.{interface}.rx_packets") or 0
    elapsed_ns = max((delta.elapsed_ns for delta in readings.deltas.values()), default=0)
    return came * SKEW_NS / elapsed_ns if elapsed_ns > 0 else 0.0


def cpu_shares(delta: Deltas) -> dict[int, CpuShare]:
    """Return CPU → how busy it was; empty if the host does not see its machine's CPUs."""
    shares = {}
    for cpu, times in sorted(delta.numbered("cpu").items()):
        busy = {time: times.get(f"{time}_ns", 0) for time in BUSY_TIMES}
        idle = sum(times.get(f"{time}_ns", 0) for time in IDLE_TIMES)
        whole = sum(busy.values()) + idle
        if whole > 0:
            shares[cpu] = CpuShare(sum(busy.values()) / whole, busy["softirq"] / whole)
    return shares


# --- by workers' series --------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """What was lost in each 100 ms from the first packet to the last that was sent."""

    losing: tuple[bool, ...]
    """Whether packets were lost in it."""
    dark: bool = False
    """In one of them, or more, nothing arrived although packets were sent."""

    @property
    def lasting(self) -> float | None:
        """Return in which share of the intervals, from the first with a loss on, packets were lost.

        None of fewer than three: too short to tell.
        """
        after = self.losing[self.losing.index(True) :] if True in self.losing else ()
        return sum(after) / len(after) if len(after) >= LEAST_INTERVALS else None


@lru_cache(maxsize=2)  # each place of a loss asks for it
def course(readings: Readings) -> Course | None:
    """Return the course of a load by its workers' series; None if it was too short, or has none."""
    edges = edges_ns(readings, readings.sender.workers)
    if edges is None:
        return None
    first, last = edges[0] // SAMPLE_NS + 1, edges[1] // SAMPLE_NS
    bins = range(max(first, 0), min(last, MOST_INTERVALS))
    if len(bins) < LEAST_INTERVALS:
        return None
    both = [[_packets(end, bins, by_ms) for end in readings.ends] for by_ms in (True, False)]
    known = next(((a, b) for a, b in both if a is not None and b is not None), None)
    if known is None:
        return None
    pairs = list(zip(*known, strict=True))
    dark = any(sent >= LEAST_SENT and received == 0 for sent, received in pairs)
    dropped = _binned(readings.receiver, "dropped_packets", bins)
    if dropped is not None and any(dropped):
        return Course(tuple(each >= 1 for each in dropped), dark)
    least = LOSING if None not in both[0] else LOSING_BETWEEN
    return Course(tuple(a - b > max(1.0, least * a) for a, b in pairs), dark)


def sent_course(readings: Readings) -> list[float] | None:
    """Return the packets sent in each interval of 100 ms of a load; None if not known."""
    load_ns = readings.record.trial.duration_ns
    bins = range(min(load_ns // SAMPLE_NS, MOST_INTERVALS))
    if len(bins) < LEAST_INTERVALS:
        return None
    return _packets(readings.sender, bins, True) or _packets(readings.sender, bins, False)


def _packets(node: End, bins: range, by_ms: bool) -> list[float] | None:
    """Return what an end sent or received in each interval; None where that is not known."""
    if not by_ms:
        return _binned(node, PACKETS_FIELD[node.part], bins)
    names = {stats.worker for stats in node.workers}
    totals, known = [0.0] * len(bins), set()
    for sample in node.view.record.series:
        if sample.worker in names and sample.first_ms is not None and sample.packets_per_ms:
            known.add(sample.worker)
            last_ms = sample.first_ms + len(sample.packets_per_ms) - 1
            first, last = sample.first_ms // MS_OF_BIN, last_ms // MS_OF_BIN
            for place in range(max(first, bins.start), min(last + 1, bins.stop)):
                begin = place * MS_OF_BIN - sample.first_ms
                of_bin = sample.packets_per_ms[max(begin, 0) : max(begin + MS_OF_BIN, 0)]
                totals[place - bins.start] += sum(of_bin)
    return totals if known == names else None


def _binned(node: End, field: str, bins: range) -> list[float] | None:
    """Return by how much a count of workers rose in each interval; None without it."""
    totals, known, readings = [0.0] * len(bins), False, node.view
    for stats in node.workers:
        start_ns = readings.phase.start_ns.get(host_of(stats.worker), 0)
        own = [s for s in series_of(readings).get(stats.worker, ()) if field in s.counts]
        if not own:
            continue
        known = True
        edges = [start_ns + SAMPLE_NS * k for k in range(bins.start, bins.stop + 1)]
        at = totals_at(own, field, edges)
        totals = [total + b - a for total, a, b in zip(totals, at, at[1:], strict=False)]
    return totals if known else None
