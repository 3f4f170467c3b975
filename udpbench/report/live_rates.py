"""The rates of the live view: current numbers of a run, fed by ``Progress``.

Draws nothing. A rate is the difference of two counts divided by that of their time stamps, about a
second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from udpbench.analysis.motion import (
    SINGLE,
    CpuShare,
    applied,
    between,
    cpu_shares,
    passing,
    stage_packets,
)
from udpbench.analysis.queue_counters import QueueUse, queue_uses
from udpbench.model.experiment import Trial, trial_ns
from udpbench.model.limits import SECOND_NS, PhaseName, Role
from udpbench.model.record import (
    BYTES_FIELD,
    PACKETS_FIELD,
    Sample,
    Snapshot,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.result import Progress


@dataclass(frozen=True)
class WorkerRate:
    """Current rates of one worker; None before it has two samples."""

    worker: str
    role: Role
    cpu: int | None
    pps: float | None
    bytes_per_s: float | None


@dataclass(frozen=True)
class Drops:
    """Current drop rate of one stage, and minimum packets dropped since the phase began."""

    stage: str
    pps: float
    packets: int


@dataclass(frozen=True)
class Moving:
    """One counter of one host and its rate."""

    host: str
    name: str
    per_second: float


@dataclass(frozen=True)
class QueueRate:
    """Rates of one queue of a card, per second; None: not counted."""

    name: str
    """``receiver rx-0``"""
    pps: float | None
    drops_per_s: float | None
    interrupts_per_s: float | None
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Counted:
    """Rates from all hosts' counters over the latest interval between two rounds."""

    drops: tuple[Drops, ...] = ()
    """Every stage that has lost a packet in this phase, in the packet's order."""
    queues: tuple[QueueRate, ...] = ()
    """Queues with packets, interrupts or drops, by host."""
    cpus: Mapping[str, CpuShare] = field(default_factory=dict)
    """``machine 0`` → load of that CPU."""
    moving: tuple[Moving, ...] = ()
    """Every counter that changed, except times, fastest first."""


class Watch:
    """One run, from its progress so far."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        """``trials`` are all trials of the run, for the remaining time."""
        self.trial: Trial | None = None
        self.index = 0
        self.total = 0
        self.place = ""
        self.open_ended = False
        """Comparisons may want further trials."""
        self.phase: PhaseName | None = None
        self.step = ""
        self.counted = Counted()
        self.search: Progress | None = None
        """How far the search is that the trial belongs to."""
        self._searches_until_ns: int | None = None
        self._record: TrialRecord | None = None
        self._begun: dict[str, int] = {}
        self._samples: dict[str, deque[Sample]] = {}
        self._before: dict[str, Snapshot] = {}
        self._latest: dict[str, Snapshot] = {}
        self._pace = Pace(sum(map(trial_ns, trials)))

    def add(self, progress: Progress, now_ns: int) -> None:
        """Process progress; ``now_ns`` is from any monotonic clock."""
        if progress.trial is not None and progress.index not in (0, self.index):
            grown = progress.total - self.total if self.total else 0
            self.trial, self.index, self.total = progress.trial, progress.index, progress.total
            self.place, self.open_ended = progress.place, progress.total_at_most > progress.total
            self._pace.begun(now_ns, grown * trial_ns(progress.trial))
            self._forget(None)
            if self.search is not None and _search_of(self.search) != _search_of(progress):
                self.search = None
        if progress.event == "search" and progress.left_ns is not None:
            self._searches_until_ns = now_ns + progress.left_ns
            self.search = progress
        if progress.event == "step":
            self.step = progress.text
        elif progress.event == "phase":
            self.phase = progress.phase
            self._forget(progress.record)
        elif progress.event == "sample":
            self._add_samples(progress.samples)
            self._add_snapshots(progress.snapshots)
        elif progress.event == "trial" and progress.trial is not None:
            self._pace.ended(trial_ns(progress.trial), now_ns)
            self.phase, self.step = None, ""

    def left_ns(self, now_ns: int) -> int:
        """Return the remaining time: the plan, scaled by the trials so far; of searches at most."""
        if self._searches_until_ns is not None:
            return max(self._searches_until_ns - now_ns, 0)
        return self._pace.left_ns(now_ns)

    @property
    def searched(self) -> bool:
        """Return whether the remaining time is that of searches, which may end earlier."""
        return self._searches_until_ns is not None

    @property
    def elapsed_ns(self) -> int:
        """Return the time from the first sample of the phase to the latest."""
        return max(
            (kept[-1].clock_ns - self._begun[name] for name, kept in self._samples.items()),
            default=0,
        )

    @property
    def workers(self) -> tuple[WorkerRate, ...]:
        """Return each worker's rates, senders first."""
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

    def _forget(self, record: TrialRecord | None) -> None:
        self._record = record
        self._begun, self._samples, self._before, self._latest = {}, {}, {}, {}
        self.counted = Counted()

    def _add_samples(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            kept = self._samples.setdefault(sample.worker, deque())
            self._begun.setdefault(sample.worker, sample.clock_ns)
            kept.append(sample)
            while len(kept) > 2 and sample.clock_ns - kept[1].clock_ns >= SECOND_NS:
                kept.popleft()

    def _add_snapshots(self, moved: Sequence[Snapshot]) -> None:
        """Take a round of counters; the first of a phase is the baseline."""
        if not moved:
            return
        empty = {
            snapshot.host: Snapshot(snapshot.host, snapshot.clock_ns, {}) for snapshot in moved
        }
        before, self._latest = (
            self._latest,
            {
                snapshot.host: applied((self._latest or empty)[snapshot.host], snapshot)
                for snapshot in moved
            },
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


def _search_of(progress: Progress) -> tuple[str, str, int] | None:
    return progress.trial.search_key if progress.trial is not None else None


def counted(
    record: TrialRecord,
    first: Mapping[str, Snapshot],
    before: Mapping[str, Snapshot],
    latest: Mapping[str, Snapshot],
    stats: tuple[WorkerStats, ...] = (),
) -> Counted:
    """Return rates between the last two rounds, and drops since the first of the phase.

    ``stats`` are the workers' counts so far: they give the packets per lost skb.
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
        queues=tuple(
            queue_rate(use, seconds[use.host])
            for use in queue_uses(now)
            if use.packets is not None or use.interrupts
        ),
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
                key=lambda counter: -counter.per_second,
            )
        ),
    )


def queue_rate(use: QueueUse, seconds: float) -> QueueRate:
    """Return what a queue did in these seconds, each of them."""
    pps, drops, interrupts = (
        number / seconds if number is not None else None
        for number in (use.packets, use.drops, use.interrupts)
    )
    return QueueRate(f"{use.host} {use.queue}", pps, drops, interrupts, use.cpus)


def per_second(samples: Sequence[Sample], name: str) -> float | None:
    """Return a count's rate over a worker's kept samples; None if no time passed."""
    first, last = samples[0], samples[-1]
    # Before its first packet a worker is waiting for the load.
    elapsed_ns = last.clock_ns - max(first.clock_ns, last.counts.get("first_ns", 0))
    if elapsed_ns <= 0:
        return None
    return (last.counts.get(name, 0) - first.counts.get(name, 0)) * SECOND_NS / elapsed_ns


class Pace:
    """The remaining time of a run: its plan, scaled by how long trials took so far."""

    def __init__(self, planned_ns: int) -> None:
        self._left_ns = planned_ns
        self._begun_ns: int | None = None
        self._planned_ns = 0
        self._spent_ns = 0

    def begun(self, now_ns: int, further_ns: int = 0) -> None:
        """Record that a trial began, and an addition to the plan."""
        self._begun_ns = now_ns
        self._left_ns += further_ns

    def ended(self, planned_ns: int, now_ns: int) -> None:
        """Record that a trial planned for ``planned_ns`` ended."""
        self._left_ns -= planned_ns
        self._planned_ns += planned_ns
        self._spent_ns += now_ns - (self._begun_ns if self._begun_ns is not None else now_ns)
        self._begun_ns = None

    def left_ns(self, now_ns: int) -> int:
        """Return the remaining time, never below 0."""
        pace = self._spent_ns / self._planned_ns if self._planned_ns else 1.0
        spent_ns = now_ns - self._begun_ns if self._begun_ns is not None else 0
        return max(0, round(self._left_ns * pace) - spent_ns)
