"""The measured phase over time: readings between any two moments at which counters were read.

Owns how stored changes of counters become readings again. What a stage or a CPU did in an interval
is what the ledger would say of a phase of that length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.delta import Deltas
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.rates import BUSY_TIMES, IDLE_TIMES
from udpbench.analysis.readings import CounterView, Readings, phase_readings
from udpbench.model import LEDGER_STAGES, Phase, Snapshot, TrialRecord, WorkerStats

SKEW_NS = 20 * 10**6
"""Between the first and the last counter of one reading of a host, at most; measured: 2 ms where it
has a CPU, 9 ms where workers keep every CPU busy."""
MOST_DIFFERENCES = 20 * 10**6
"""Most differences of counters in all intervals of a phase together; they take some ten seconds."""
SINGLE = ("rx_ring", "rx_xdp", "rx_backlog", "rx_tc", "udp_checksum", "udp_no_port", "udp_rcvbuf")
"""Stages with one counter; the others are differences, off by what arrived between two reads."""

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
    for first, last in pairwise(rounds_of(phase, record.motion)):
        from_ns, to_ns = (
            since_start_ns(phase, host, each[host].clock_ns) for each in (first, last)
        )
        if to_ns > from_ns:
            yield Interval(from_ns, to_ns, between(record, first, last, measured))


def stage_packets(readings: CounterView, stages: Collection[str] = LEDGER_STAGES) -> dict[str, int]:
    """Return stage → the least number of packets that ended there, for those with counters.

    Counters of one host are not read at one moment, so a difference of two may be off by what came
    in between: a stage below 0 counts as 0.
    """
    ended = {}
    for stage in STAGES:
        counted = stage.scope != "worker" and stage.name in stages
        packets = stage.packets(readings) if counted else None
        if packets is not None:
            ended[stage.name] = max(packets.low, 0)
    return ended


def passing(readings: CounterView) -> float:
    """Return the mean number of packets that reach the receivers within SKEW_NS."""
    came = readings.total("receiver", "link.{interface}.rx_packets") or 0
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
