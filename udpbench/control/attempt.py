"""One trial while it happens: what is known of it so far, and a phase of it.

Owns the record that the steps fill; the order of the steps is ``trial``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from udpbench.control.channel import shown
from udpbench.control.lab import Agents
from udpbench.control.losses import Losses
from udpbench.control.phase import Crew, PhaseRun, Plan, by_host
from udpbench.control.waiting import Waiter
from udpbench.errors import AgentLost, HostError
from udpbench.model import (
    Change,
    Facts,
    Finding,
    Lab,
    Phase,
    Progress,
    Sample,
    Setting,
    Snapshot,
    Trial,
    TrialRecord,
    WorkerSpec,
)
from udpbench.records import now_utc
from udpbench.units import format_count, format_duration

Tell = Callable[[Progress], None]


COUNT_AT_ONCE = ("veth", "virtio_net")
"""Drivers whose counters are all the kernel's own, like those of the loopback interface."""
KEPT_MAX = 500
"""Samples and snapshots in memory; each takes some kilobytes."""


class Spool(Protocol):
    """Where what a long phase tells is kept until its record is written."""

    def stream(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Take a part."""

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return all parts since the last record."""


@dataclass
class Bench:
    """What stays from trial to trial: the lab, its agents, and what is in force on them."""

    lab: Lab
    agents: Agents
    waiter: Waiter
    tell: Tell
    spool: Spool
    keep_logs: str = ""
    """The run's part of the names under which files of logs stay; without it they go."""
    in_force: dict[str, tuple[Setting, ...]] | None = field(default_factory=dict)
    """Agent → its settings; None where a failure left that unknown."""


@dataclass
class Attempt:
    """One trial while it happens."""

    bench: Bench
    trial: Trial
    index: int
    total: int
    started_at: str = field(default_factory=now_utc)
    facts: dict[str, Facts] = field(default_factory=dict)
    environment_after: dict[str, dict[str, str]] = field(default_factory=dict)
    changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    workers: tuple[WorkerSpec, ...] = ()
    flows: tuple[int, ...] | None = None
    """Numbers of the flows that are sent, where only some of those prepared are kept."""
    phases: list[Phase] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """Of the measured phase, the latest: those before are in the run folder."""
    motion: list[Snapshot] = field(default_factory=list)
    """Its counters in motion, in the same way."""
    findings: list[Finding] = field(default_factory=list)
    overhead_ns: dict[str, int] = field(default_factory=dict)

    def say(self, event: str, text: str, **seen: Any) -> None:
        """Report progress of this trial; ``seen`` are further fields of Progress."""
        self.bench.tell(
            Progress(
                event=event,  # type: ignore[arg-type]
                text=text,
                trial=self.trial,
                index=self.index,
                total=self.total,
                **seen,
            )
        )

    @property
    def log_label(self) -> str | None:
        """The label that this trial's log files keep; None where they are removed."""
        return f"{self.bench.keep_logs}-{self.index}" if self.bench.keep_logs else None

    def keep(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Take what moved in the measured phase; what is much goes to the disk at once."""
        self.samples.extend(samples)
        self.motion.extend(snapshots)
        if len(self.samples) + len(self.motion) >= KEPT_MAX:
            self.bench.spool.stream(tuple(self.samples), tuple(self.motion))
            self.samples.clear()
            self.motion.clear()

    def record(self, status: str, error: dict[str, str] | None) -> TrialRecord:
        """Return the record of what happened so far."""
        self.findings.extend(absences(self.bench.agents))
        samples, motion = self.bench.spool.streamed()
        return TrialRecord(
            trial=self.trial,
            status=status,  # type: ignore[arg-type]
            started_at=self.started_at,
            built_in_lab=self.bench.lab.built_in,
            error=error,
            facts=self.facts,
            environment_after=self.environment_after,
            changes=self.changes,
            workers=self.workers,
            phases=tuple(self.phases),
            series=(*samples, *self.samples),
            motion=(*motion, *self.motion),
            findings=tuple(self.findings),
            overhead_ns=self.overhead_ns,
        )


def crew_of(attempt: Attempt) -> Crew:
    """Return the agents of the trial by what they do in it."""
    agents, working = attempt.bench.agents, by_host(attempt.workers)
    return Crew(
        senders=[remote for remote in agents.senders if remote.name in working],
        receivers=[remote for remote in agents.receivers if remote.name in working],
        everyone=agents.everyone,
        workers=attempt.workers,
        cards=[
            remote
            for remote in agents.receivers
            if remote.name in attempt.facts and counts_late(attempt.facts[remote.name])
        ],
    )


def counts_late(facts: Facts) -> bool:
    """Tell whether an interface's counters may lag behind its packets, as those of cards do."""
    return facts.driver not in COUNT_AT_ONCE and facts.interface != "lo"


def _length(trial: Trial, plan: Plan) -> str:
    """Return how much a phase sends: of a count the duration is but the deadline."""
    if plan.name == "path":
        return ""
    duration = format_duration(plan.duration_ns)
    packets = trial.traffic.count_packets
    if packets is None:
        return f" {duration}"
    return f" {format_count(packets)} packets, at most {duration}"


def run_phase(attempt: Attempt, plan: Plan, losses: Losses | None = None) -> None:
    """Run one phase and keep it, also what can be saved of one that failed."""

    def show(samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        attempt.say("sample", plan.name, samples=samples, snapshots=snapshots)

    text = f"{attempt.trial.name} {plan.name}{_length(attempt.trial, plan)}"
    attempt.say("phase", text, phase=plan.name, record=attempt.record("done", None))
    plan = replace(plan, flows=attempt.flows)
    phase = PhaseRun(
        plan, crew_of(attempt), attempt.bench.waiter, show, attempt.keep, losses=losses
    )
    try:
        attempt.phases.append(phase.run())
    except AgentLost:
        raise
    except HostError:
        saved = phase.salvage()
        if saved is not None:
            attempt.phases.append(saved)
        raise
    if phase.late_ns is not None:
        attempt.findings.append(late(plan, phase.late_ns))


def absences(agents: Agents) -> Iterator[Finding]:
    """Yield a finding of each time a connection was lost and came back, and forget it.

    No more than a note: workers, counts and samples are the hosts' own, and control traffic is not
    on the path under test, or there is a finding that it is. Nobody looked at any host meanwhile.
    """
    for remote in agents.everyone:
        while remote.channel.absences_ns:
            yield Finding(
                "note",
                "the connection was lost and came back",
                remote.name,
                shown(remote.channel.absences_ns.pop(0)),
                "its workers ran on, and no sample is missing",
            )


def late(plan: Plan, late_ns: int) -> Finding:
    """Return the finding of a phase whose last loop was set going after the common time."""
    return Finding(
        "warning",
        "the controller was slow: a loop was started after the common start",
        f"phase {plan.name}",
        f"{late_ns // 1000}us late",
        next_step="leave the controller a CPU that no worker uses",
    )
