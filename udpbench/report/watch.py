"""What a run is doing now, as numbers: the state behind the live view, told by ``Progress``.

Owns what is known at a moment; draws nothing. A rate is a difference of two counts over the time
between their stamps, about a second apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from udpbench.analysis.motion import (
    CpuShare,
    applied,
    between,
    cpu_shares,
    queue_packets,
    stage_packets,
)
from udpbench.analysis.rates import PACKETS_FIELD
from udpbench.analysis.readings import Readings
from udpbench.model import (
    SECOND_NS,
    PhaseName,
    Progress,
    Role,
    Sample,
    Snapshot,
    Trial,
    TrialRecord,
    WorkerStats,
)
from udpbench.report.plan import trial_ns

BYTES_FIELD: dict[Role, str] = {"sender": "sent_bytes", "receiver": "received_bytes"}


SKEW_NS = 20 * 10**6
"""Between the first and the last counter of one reading of a host, at most; measured: 2 ms where it
has a CPU, 9 ms where workers keep every CPU busy."""
SINGLE = ("rx_ring", "rx_xdp", "rx_backlog", "rx_tc", "udp_checksum", "udp_no_port", "udp_rcvbuf")
"""Stages that one counter tells; the others are differences, off by what came between two."""


@dataclass(frozen=True)
class WorkerRate:
    """What one worker does now; None before it has two samples."""

    worker: str
    role: Role
    cpu: int | None
    pps: float | None
    bytes_per_s: float | None


@dataclass(frozen=True)
class Drops:
    """What one stage takes now, and took since the phase began: so many packets at least."""

    stage: str
    pps: float
    packets: int


@dataclass(frozen=True)
class Moving:
    """One counter of one host and what it does a second."""

    host: str
    name: str
    per_second: float


@dataclass(frozen=True)
class Counted:
    """What the counters of all hosts say about the last interval between two rounds."""

    drops: tuple[Drops, ...] = ()
    """Every stage that has taken a packet in this phase, in the packet's order."""
    queues: Mapping[str, float] = field(default_factory=dict)
    """``receiver rx-0`` → packets a second."""
    cpus: Mapping[str, CpuShare] = field(default_factory=dict)
    """``machine 0`` → how busy that CPU is."""
    moving: tuple[Moving, ...] = ()
    """Every counter that moved and is no time, the fastest first."""


class Watch:
    """One run, from the progress that it reported so far."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        """``trials`` are all of the run, for the time that is left."""
        self.trial: Trial | None = None
        self.index = 0
        self.total = 0
        self.phase: PhaseName | None = None
        self.step = ""
        self.counted = Counted()
        self._record: TrialRecord | None = None
        self._begun: dict[str, int] = {}
        self._samples: dict[str, deque[Sample]] = {}
        self._before: dict[str, Snapshot] = {}
        self._latest: dict[str, Snapshot] = {}
        self._pace = Pace(sum(map(trial_ns, trials)))

    def take(self, progress: Progress, now_ns: int) -> None:
        """Learn what happened; ``now_ns`` is of any clock that does not go backwards."""
        if progress.trial is not None and progress.index != self.index:
            self.trial, self.index, self.total = progress.trial, progress.index, progress.total
            self._pace.begun(now_ns)
            self._forget(None)
        if progress.event == "step":
            self.step = progress.text
        elif progress.event == "phase":
            self.phase = progress.phase
            self._forget(progress.record)
        elif progress.event == "sample":
            self._take_samples(progress.samples)
            self._take_snapshots(progress.snapshots)
        elif progress.event == "trial" and progress.trial is not None:
            self._pace.ended(trial_ns(progress.trial), now_ns)
            self.phase, self.step = None, ""

    def left_ns(self, now_ns: int) -> int:
        """Return how long the run goes on, by its plan and by how trials kept to it so far."""
        return self._pace.left_ns(now_ns)

    @property
    def elapsed_ns(self) -> int:
        """Return the time from the first sample of the phase to the latest."""
        return max(
            (kept[-1].clock_ns - self._begun[name] for name, kept in self._samples.items()),
            default=0,
        )

    @property
    def workers(self) -> tuple[WorkerRate, ...]:
        """Return what each worker does now, senders first."""
        specs = self._record.workers if self._record is not None else ()
        return tuple(
            WorkerRate(
                spec.name,
                spec.role,
                spec.cpu,
                per_second(self._samples[spec.name], PACKETS_FIELD[spec.role]),
                per_second(self._samples[spec.name], BYTES_FIELD[spec.role]),
            )
            for spec in sorted(specs, key=lambda spec: spec.role != "sender")
            if spec.name in self._samples
        )

    def total_of(self, role: Role) -> tuple[float, float] | None:
        """Return packets and bytes a second over a role's workers; None before two samples."""
        mine = [one for one in self.workers if one.role == role and one.pps is not None]
        if not mine:
            return None
        return sum(one.pps or 0 for one in mine), sum(one.bytes_per_s or 0 for one in mine)

    def _forget(self, record: TrialRecord | None) -> None:
        self._record = record
        self._begun, self._samples, self._before, self._latest = {}, {}, {}, {}
        self.counted = Counted()

    def _take_samples(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            kept = self._samples.setdefault(sample.worker, deque())
            self._begun.setdefault(sample.worker, sample.clock_ns)
            kept.append(sample)
            while len(kept) > 2 and sample.clock_ns - kept[1].clock_ns >= SECOND_NS:
                kept.popleft()

    def _take_snapshots(self, moved: Sequence[Snapshot]) -> None:
        """Take a round of counters; the first of a phase has nothing to be compared with."""
        if not moved:
            return
        empty = {one.host: Snapshot(one.host, one.clock_ns, {}) for one in moved}
        before, self._latest = (
            self._latest,
            {one.host: applied((self._latest or empty)[one.host], one) for one in moved},
        )
        if not self._before:
            self._before = self._latest
        elif self._record is not None:
            rounds = self._before, before, self._latest
            self.counted = counted(self._record, *rounds, stats=self._stats(self._record))

    def _stats(self, record: TrialRecord) -> tuple[WorkerStats, ...]:
        """Return what the workers had counted when they were last sampled."""
        return tuple(
            WorkerStats(spec.name, spec.role, spec.cpu, self._samples[spec.name][-1].counts)
            for spec in record.workers
            if spec.name in self._samples
        )


def counted(
    record: TrialRecord,
    first: Mapping[str, Snapshot],
    before: Mapping[str, Snapshot],
    latest: Mapping[str, Snapshot],
    stats: tuple[WorkerStats, ...] = (),
) -> Counted:
    """Return what counters say between two rounds, and since the first one of the phase.

    ``stats`` are the workers' counts so far: they tell how many packets a lost skb was.
    """
    ever = between(record, first, latest, stats=stats)
    now = between(record, before, latest, within=ever)
    rates = stage_packets(now)
    seconds = {host: max(delta.elapsed_ns, 1) / SECOND_NS for host, delta in now.deltas.items()}
    second = max(seconds.values())
    return Counted(
        drops=tuple(
            Drops(stage, rates.get(stage, 0) / second, packets)
            for stage, packets in stage_packets(ever).items()
            if packets > (0 if stage in SINGLE else passing(ever))
        ),
        queues={
            f"{host} rx-{queue}": packets / seconds[host]
            for host in now.roles.receivers
            if host in now.deltas
            for queue, packets in queue_packets(now.deltas[host]).items()
        },
        cpus={
            f"{host} {cpu}": share
            for host, delta in now.deltas.items()
            for cpu, share in cpu_shares(delta).items()
        },
        moving=tuple(
            sorted(
                (
                    Moving(host, name, value / seconds[host])
                    for host, delta in now.deltas.items()
                    for name, value in delta.values.items()
                    if value and not name.endswith(("_ns", "bytes", "Octets"))
                ),
                key=lambda one: -one.per_second,
            )
        ),
    )


def passing(of: Readings) -> float:
    """Return how many packets came to the receivers within SKEW_NS, over a stretch of time."""
    came = of.total("receiver", "link.{interface}.rx_packets") or 0
    elapsed_ns = max((delta.elapsed_ns for delta in of.deltas.values()), default=0)
    return came * SKEW_NS / elapsed_ns if elapsed_ns > 0 else 0.0


def per_second(samples: Sequence[Sample], name: str) -> float | None:
    """Return a count's rate over what is kept of a worker's samples; None where no time passed."""
    first, last = samples[0], samples[-1]
    elapsed_ns = last.clock_ns - first.clock_ns
    if elapsed_ns <= 0:
        return None
    return (last.counts.get(name, 0) - first.counts.get(name, 0)) * SECOND_NS / elapsed_ns


class Pace:
    """How long a run goes on: the plan of what is left, by how trials kept to theirs so far."""

    def __init__(self, planned_ns: int) -> None:
        self._left_ns = planned_ns
        self._begun_ns: int | None = None
        self._planned_ns = 0
        self._spent_ns = 0

    def begun(self, now_ns: int) -> None:
        """Note that a trial began."""
        self._begun_ns = now_ns

    def ended(self, planned_ns: int, now_ns: int) -> None:
        """Note that a trial of so long a plan ended."""
        self._left_ns -= planned_ns
        self._planned_ns += planned_ns
        self._spent_ns += now_ns - (self._begun_ns if self._begun_ns is not None else now_ns)
        self._begun_ns = None

    def left_ns(self, now_ns: int) -> int:
        """Return the time that is left, never below 0."""
        pace = self._spent_ns / self._planned_ns if self._planned_ns else 1.0
        spent_ns = now_ns - self._begun_ns if self._begun_ns is not None else 0
        return max(0, round(self._left_ns * pace) - spent_ns)
