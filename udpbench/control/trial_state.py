"""One trial in progress: its record so far, and how one phase of it runs.

Owns the record that the steps fill; ``trial`` owns the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from udpbench.control.agent_client import AgentClient, ask_all
from udpbench.control.agents import Agents
from udpbench.control.connections.channel import shown
from udpbench.control.losses import Losses
from udpbench.control.path_proof import PathWatch
from udpbench.control.phase import PhaseRun, Plan, TrialAgents, by_host
from udpbench.control.wait import Waiter
from udpbench.drivers import driver_of
from udpbench.errors import AgentLost, HostError
from udpbench.model.experiment import Trial
from udpbench.model.host import Change, Facts, Setting
from udpbench.model.lab import Lab
from udpbench.model.record import (
    Finding,
    Phase,
    RecordedError,
    Sample,
    SelfTest,
    Snapshot,
    Status,
    TrialRecord,
)
from udpbench.model.result import Progress
from udpbench.model.work import WorkerSpec
from udpbench.records.run import now_utc
from udpbench.units import format_count, format_duration

Tell = Callable[[Progress], None]
T = TypeVar("T")

KEPT_MAX = 500
"""Samples and snapshots in memory; each takes some kilobytes."""


class Spool(Protocol):
    """Stores the samples of a long phase until its record is written."""

    def stream(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Store a part."""

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return all parts since the last record."""

    def keep_output(self, name: str, text: str) -> None:
        """Store the output of a user's program."""


@dataclass(frozen=True)
class Warm:
    """What a trial leaves for the next one: its idle workers."""

    trial: Trial
    facts: dict[str, Facts]
    changes: dict[str, tuple[Change, ...]]
    workers: tuple[WorkerSpec, ...]
    flows: tuple[int, ...] | None
    findings: tuple[Finding, ...]
    """Those that are valid for every trial on these workers."""
    rate_pps: int | None = None
    """Rate of each sending worker; None: its own."""


@dataclass
class Bench:
    """What trials share: the lab, its agents, and the settings in force on them."""

    lab: Lab
    agents: Agents
    waiter: Waiter
    tell: Tell
    spool: Spool
    keep_logs: str = ""
    """Run name in the names of kept log files; empty: logs are removed."""
    proven: Callable[[Facts], SelfTest | None] = lambda _: None
    """Results of ``selftest`` by kernel."""
    in_force: dict[str, tuple[Setting, ...]] | None = field(default_factory=dict)
    """Agent → its settings; None if a failure left them unknown."""
    warm: Warm | None = None
    """Idle workers left by the trial before."""
    verified_ns: int | None = None
    """When settings were verified last; None: not yet."""
    watch: PathWatch | None = None
    """The same of ``TrialAgents``; None, too, if nothing was proven yet."""
    wired: bool = False
    """The proof saw veth pairs alone between the hosts of the path."""
    known: dict[str, Facts] = field(default_factory=dict)
    """The hosts' facts at the end of the trial before; empty if it failed or did not read them."""

    def ask(
        self, clients: Sequence[AgentClient], request: Callable[[AgentClient], T]
    ) -> dict[str, T]:
        """Return agent → its answer; all are asked at the same time."""
        return ask_all(self.waiter.clock, clients, request)

    def close(
        self, clients: Sequence[AgentClient], name: str, keep_logs: str | None = None
    ) -> None:
        """End agents' workers; store what programs printed under the trial's name."""
        for host, printed in self.ask(clients, lambda client: client.close(keep_logs)).items():
            if printed is not None:
                self.spool.keep_output(f"{name}-{host}", printed)


@dataclass
class Attempt:
    """One trial in progress."""

    bench: Bench
    trial: Trial
    index: int
    total: int
    total_at_most: int
    started_at: str = field(default_factory=now_utc)
    facts: dict[str, Facts] = field(default_factory=dict)
    facts_hold: bool = False
    """No setting was changed since they were read."""
    environment_after: dict[str, dict[str, str]] = field(default_factory=dict)
    changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    workers: tuple[WorkerSpec, ...] = ()
    flows: tuple[int, ...] | None = None
    """Numbers of the flows to send; None: all that were prepared."""
    phases: list[Phase] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """Samples of the measured phase; earlier ones may already be in the run folder."""
    motion: list[Snapshot] = field(default_factory=list)
    """Counters over time, likewise."""
    findings: list[Finding] = field(default_factory=list)
    overhead_ns: dict[str, int] = field(default_factory=dict)
    standing: tuple[Finding, ...] = ()
    """The findings on settings and binding; of a search all before the first load."""
    rate_pps: int | None = None
    """Rate of each sending worker; None: its own."""

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Report progress of this trial; ``fields`` are further fields of Progress."""
        self.bench.tell(
            Progress(
                event=event,  # type: ignore[arg-type]
                text=text,
                trial=self.trial,
                index=self.index,
                total=self.total,
                total_at_most=self.total_at_most,
                **fields,
            )
        )

    @property
    def log_label(self) -> str | None:
        """The label of this trial's log files; None if they are removed."""
        return f"{self.bench.keep_logs}-{self.index}" if self.bench.keep_logs else None

    def keep(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Keep samples and snapshots of the measured phase, on disk once there are many."""
        self.samples.extend(samples)
        self.motion.extend(snapshots)
        if len(self.samples) + len(self.motion) >= KEPT_MAX:
            self.bench.spool.stream(tuple(self.samples), tuple(self.motion))
            self.samples.clear()
            self.motion.clear()

    def note_absences(self) -> None:
        """Take the findings of connections that were lost and restored since the last call."""
        self.findings.extend(absences(self.bench.agents))

    def finish(self, status: Status, error: RecordedError | None = None) -> TrialRecord:
        """Return the record of a trial that has ended."""
        self.note_absences()
        return replace(self.so_far(), status=status, error=error)

    def so_far(self) -> TrialRecord:
        """Return the record so far, as if the trial ended well here; changes nothing."""
        samples, motion = self.bench.spool.streamed()
        return TrialRecord(
            trial=self.trial,
            status="done",
            started_at=self.started_at,
            built_in_lab=self.bench.lab.built_in,
            between={node.name: node.part for node in self.bench.lab.between},
            exits={node.name: node.out for node in self.bench.lab.middle},
            bridges={
                node.name: (node.bridge, *ports)
                for node in self.bench.lab.middle
                if (ports := self.bench.lab.ports(node))
            },
            read_only=tuple(node.name for node in self.bench.lab.middle if not node.change),
            wired=self.bench.wired,
            facts=self.facts,
            environment_after=self.environment_after,
            changes=self.changes,
            workers=self.workers,
            phases=tuple(self.phases),
            series=(*samples, *self.samples),
            motion=(*motion, *self.motion),
            findings=tuple(self.findings),
            selftests=self._selftests(),
            overhead_ns=self.overhead_ns,
        )

    def _selftests(self) -> dict[str, SelfTest]:
        """Return the selftest results for the hosts' kernels, if any."""
        proven = {name: self.bench.proven(facts) for name, facts in self.facts.items()}
        return {name: selftest for name, selftest in proven.items() if selftest is not None}


def trial_agents(attempt: Attempt) -> TrialAgents:
    """Return the agents of the trial by their part in it."""
    agents, working = attempt.bench.agents, by_host(attempt.workers)
    return TrialAgents(
        senders=[client for client in agents.senders if client.name in working],
        receivers=[client for client in agents.receivers if client.name in working],
        everyone=agents.everyone,
        workers=attempt.workers,
        watch=attempt.bench.watch,
        cards={
            client: late_ns
            for client in (*agents.receivers, *agents.middle, *agents.senders)
            if client.name in attempt.facts
            and (late_ns := driver_of(attempt.facts[client.name]).late_ns) is not None
        },
    )


def _length(trial: Trial, plan: Plan) -> str:
    """Return how much a phase sends; with a count the duration is the deadline."""
    if plan.name == "path":
        return ""
    duration = format_duration(plan.duration_ns)
    packets = trial.traffic.count_packets
    if packets is None:
        return f" {duration}"
    return f" {format_count(packets)} packets, at most {duration}"


def run_phase(attempt: Attempt, plan: Plan, losses: Losses | None = None) -> None:
    """Run one phase and keep it; keep what can be read of a failed one."""

    def show(samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        attempt.say("sample", plan.name, samples=samples, snapshots=snapshots)

    text = f"{attempt.trial.name} {plan.name}{_length(attempt.trial, plan)}"
    attempt.note_absences()
    attempt.say("phase", text, phase=plan.name, record=attempt.so_far())
    plan = replace(plan, flows=attempt.flows, rate_pps=plan.rate_pps or attempt.rate_pps)

    def close(client: AgentClient) -> None:
        attempt.bench.close([client], attempt.trial.name, attempt.log_label)

    agents, waiter = trial_agents(attempt), attempt.bench.waiter
    phase = PhaseRun(plan, agents, waiter, show, attempt.keep, close=close, losses=losses)
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
    if plan.until_steady:
        attempt.findings.append(warmed_up(plan, phase))


def absences(agents: Agents) -> Iterator[Finding]:
    """Yield, once, a finding for each time that a connection was lost and restored.

    Severity note: workers, counts and samples are on the hosts, and control traffic is not on the
    path under test, or another finding reports it.
    """
    for client in agents.everyone:
        while client.channel.absences_ns:
            yield Finding(
                "note",
                "the connection was lost and restored; workers continued, and no sample is missing",
                client.name,
                shown(client.channel.absences_ns.pop(0)),
            )


def others(agents: Agents) -> Iterator[Finding]:
    """Yield a finding for each other run that has used a machine of the lab since the last call.

    Of a built-in lab only the machine's agent is asked, which sees the whole machine.
    """
    for client in agents.hosts if agents.machine is None else (agents.machine,):
        for other in client.others():
            yield Finding(
                "warning",
                "another run used this machine",
                client.name,
                other,
                "no other run",
                "the results include the load of both; run one after the other: a run "
                "waits for others that were started without --share",
            )


def warmed_up(plan: Plan, phase: PhaseRun) -> Finding:
    """Return the finding that says how long a warm-up took that ends with steady rates."""
    if phase.steady_ns is None:
        return Finding(
            "warning",
            "rates or CPU clocks were not steady at the end of the warm-up",
            "phase warmup",
            f"after {format_duration(plan.duration_ns)}",
            next_step="write a longer `warmup`",
        )
    steady_ms = phase.steady_ns // 10**6
    what = "rates and CPU clocks were steady" if phase.knows_clocks else "rates were steady"
    known = "" if phase.knows_clocks else "; the kernel knows no CPU clocks"
    return Finding(
        "note", f"the warm-up ended when {what}", "phase warmup", f"{steady_ms}ms{known}"
    )


def late(plan: Plan, late_ns: int) -> Finding:
    """Return the finding of a phase whose last loop started after the common time."""
    return Finding(
        "warning",
        "the controller was slow: a loop started after the common start",
        f"phase {plan.name}",
        f"{late_ns // 1000}us late",
        next_step="leave the controller a CPU that no worker uses",
        kind="timing",
    )
