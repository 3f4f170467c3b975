"""The way of one trial, as a visible list of steps, and what a failure at each of them means.

Owns the order of the steps and the record they fill. Whatever happens, the workers are closed and
the record says why; a failure that ends the run is handed on beside the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from udpbench.analysis.judge import path_ledger
from udpbench.control.configured import altered, desired, links, refused, rounded
from udpbench.control.lab import Agents
from udpbench.control.phase import Crew, PhaseRun, Plan, by_host, path_plan, warmup_plan
from udpbench.control.waiting import Waiter
from udpbench.definition.bind import (
    Unavailable,
    bind,
)
from udpbench.errors import (
    AgentLost,
    DeadlineExceeded,
    HostError,
    Interrupted,
    PathError,
    RestoreError,
    SafetyError,
    UdpbenchError,
)
from udpbench.model import (
    SECOND_NS,
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
from udpbench.units import format_duration

LINK_NS = 10 * SECOND_NS
"""For a link to come up: autonegotiation takes up to four seconds, a switch's port some more."""

Tell = Callable[[Progress], None]


@dataclass
class Bench:
    """What stays from trial to trial: the lab, its agents, and what is in force on them."""

    lab: Lab
    agents: Agents
    waiter: Waiter
    tell: Tell
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
    changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    workers: tuple[WorkerSpec, ...] = ()
    phases: list[Phase] = field(default_factory=list)
    series: tuple[Sample, ...] = ()
    motion: tuple[Snapshot, ...] = ()
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

    def record(self, status: str, error: dict[str, str] | None) -> TrialRecord:
        """Return the record of what happened so far."""
        return TrialRecord(
            trial=self.trial,
            status=status,  # type: ignore[arg-type]
            started_at=self.started_at,
            built_in_lab=self.bench.lab.built_in,
            error=error,
            facts=self.facts,
            changes=self.changes,
            workers=self.workers,
            phases=tuple(self.phases),
            series=self.series,
            motion=self.motion,
            findings=tuple(self.findings),
            overhead_ns=self.overhead_ns,
        )


@dataclass(frozen=True)
class TrialEnd:
    """A trial's record, and what must end the run, if anything must."""

    record: TrialRecord
    fatal: UdpbenchError | None = None


# --- the steps -----------------------------------------------------------------------------------


def read_facts(attempt: Attempt) -> None:
    """Ask every host of the lab what it is."""
    for remote in attempt.bench.agents.hosts:
        attempt.facts[remote.name] = remote.facts()


def apply_settings(attempt: Attempt) -> None:
    """Put the trial's settings in force: machine, bridge, receivers, senders.

    A receiver makes the pair of a built-in lab, the bridge all of them, and a pair's removal takes
    the other end along; so before a pair changes, whoever did not make it undoes what hangs on it.
    """
    bench, agents = attempt.bench, attempt.bench.agents
    wanted = desired(attempt.trial, bench.lab, agents, attempt.facts)
    before, bench.in_force = bench.in_force, None
    if before is None or links(before) != links(wanted):
        for remote in agents.hanging:
            if before is None or before.get(remote.name):
                remote.apply(())
    for remote in agents.setting_up:
        attempt.changes[remote.name] = remote.apply(wanted[remote.name])
        attempt.findings.extend(refused(remote.name, attempt.changes[remote.name]))
        attempt.findings.extend(rounded(remote.name, attempt.changes[remote.name]))
    bench.in_force = wanted


def verify_settings(attempt: Attempt) -> None:
    """Look whether what was put in force still is; somebody else may configure the host, too."""
    for remote in attempt.bench.agents.setting_up:
        if attempt.changes.get(remote.name):
            attempt.findings.extend(altered(remote.name, remote.verify()))


def await_links(attempt: Attempt) -> None:
    """Wait until every link is up: a real one takes seconds after its interface was taken up."""
    for name, facts in attempt.facts.items():
        if facts.link == "down":
            text = f"{facts.interface} is down, although it was taken up: see who took it down"
            raise HostError(text, name)
    dark = {name for name, facts in attempt.facts.items() if facts.link == "no carrier"}
    if not dark:
        return
    waiting = [remote for remote in attempt.bench.agents.hosts if remote.name in dark]

    def lit() -> bool:
        attempt.facts.update({remote.name: remote.facts() for remote in waiting})
        return all(attempt.facts[name].link != "no carrier" for name in dark)

    what = f"{', '.join(one.interface for one in waiting)} had a carrier (see the cable)"
    attempt.bench.waiter.until(what, ", ".join(sorted(dark)), lit, LINK_NS)


def bind_workers(attempt: Attempt) -> None:
    """Resolve the trial against the facts; Unavailable skips it with the reason."""
    bound = bind(attempt.trial, attempt.bench.lab, attempt.facts)
    attempt.workers = bound.workers
    attempt.findings.extend(bound.findings)


def prove_destinations(attempt: Attempt) -> None:
    """Prove that every destination is an address that a lab receiver reports on its interface."""
    proven = {
        address.partition("/")[0]
        for host in attempt.bench.lab.receivers
        if attempt.facts[host.name].interface == host.interface
        for address in attempt.facts[host.name].addresses
    }
    for spec in attempt.workers:
        wrong = sorted({flow.destination for flow in spec.flows} - proven)
        if wrong:
            known = ", ".join(sorted(proven)) or "none"
            raise SafetyError(
                f"{spec.name}: destination {', '.join(wrong)} is no address of a lab receiver; "
                f"addresses found there: {known}; nothing was sent",
                spec.host,
            )


def prepare_workers(attempt: Attempt) -> None:
    """Make the workers, receivers before senders: whoever sends must find an open port."""
    crew = crew_of(attempt)
    workers = by_host(attempt.workers)
    for remote in crew.working:
        remote.prepare(workers[remote.name])


def crew_of(attempt: Attempt) -> Crew:
    """Return the agents of the trial by what they do in it."""
    agents, working = attempt.bench.agents, by_host(attempt.workers)
    return Crew(
        senders=[remote for remote in agents.senders if remote.name in working],
        receivers=[remote for remote in agents.receivers if remote.name in working],
        everyone=agents.everyone,
        workers=attempt.workers,
    )


def path_phase(attempt: Attempt) -> None:
    """Send a few packets per flow, and fail before load where a receiver gets none of them."""
    run_phase(attempt, path_plan(attempt.workers))
    silent = unreached(attempt)
    closed = attempt.trial.receive.workers == 0
    if not silent:
        return
    where = f" at {', '.join(silent)}" if len(attempt.bench.lab.receivers) > 1 else ""
    if attempt.trial.path_check == "explained" or closed:
        ledger = path_ledger(attempt.record("done", None))
        if ledger is not None and ledger.intended_packets > 0 and ledger.unaccounted == 0:
            return
        text = f"no packet of the path check arrived{where}, and the ledger does not say why"
        raise PathError(text)
    raise PathError(
        f"no packet of the path check arrived{where}; mend the path, or write "
        "`path_check: explained` if packets are meant to be dropped"
    )


def unreached(attempt: Attempt) -> list[str]:
    """Return the receivers that none of the latest phase's packets reached."""
    arrived = {host.name: 0 for host in attempt.bench.lab.receivers}
    for one in attempt.phases[-1].stats:
        host = one.worker.rpartition(".")[0]
        if one.role == "receiver" and host in arrived:
            arrived[host] += one.counts.get("received_packets", 0)
    return [host for host, packets in arrived.items() if packets == 0]


def warmup_phase(attempt: Attempt) -> None:
    """Let caches, queues and clocks of the CPUs settle; without a warm-up nothing is done."""
    if attempt.trial.warmup_ns > 0:
        run_phase(attempt, warmup_plan(attempt.workers, attempt.trial.warmup_ns))


def measured_phase(attempt: Attempt) -> None:
    """Measure."""
    run_phase(attempt, Plan("measured", attempt.trial.duration_ns))


def run_phase(attempt: Attempt, plan: Plan) -> None:
    """Run one phase and keep it, also what can be saved of one that failed."""

    def show(samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        attempt.say("sample", plan.name, samples=samples, snapshots=snapshots)

    length = "" if plan.name == "path" else f" {format_duration(plan.duration_ns)}"
    text = f"{attempt.trial.name} {plan.name}{length}"
    attempt.say("phase", text, phase=plan.name, record=attempt.record("done", None))
    phase = PhaseRun(plan, crew_of(attempt), attempt.bench.waiter, show)
    try:
        attempt.phases.append(phase.run())
    except AgentLost:
        raise
    except HostError:
        saved = phase.salvage()
        if saved is not None:
            attempt.phases.append(saved)
        raise
    finally:
        attempt.series += tuple(phase.series)
        attempt.motion += tuple(phase.motion)
    if phase.late_ns is not None:
        attempt.findings.append(late(plan, phase.late_ns))


def late(plan: Plan, late_ns: int) -> Finding:
    """Return the finding of a phase whose last loop was set going after the common time."""
    return Finding(
        "warning",
        "the controller was slow: a loop was started after the common start",
        f"phase {plan.name}",
        f"{late_ns // 1000}us late",
        next_step="leave the controller a CPU that no worker uses",
    )


def close_workers(attempt: Attempt) -> None:
    """End the workers and their sockets."""
    for remote in crew_of(attempt).working:
        remote.close()


STEPS: tuple[tuple[str, Callable[[Attempt], None]], ...] = (
    ("facts", read_facts),
    ("apply", apply_settings),
    ("facts again", read_facts),
    ("link", await_links),
    ("needs", bind_workers),
    ("safety", prove_destinations),
    ("prepare", prepare_workers),
    ("path", path_phase),
    ("warmup", warmup_phase),
    ("measured", measured_phase),
    ("verify", verify_settings),
    ("close", close_workers),
)
"""The way of one trial. Needs come after apply: in a built-in lab interface, queues and addresses
exist only then. Recording is the run's, because it belongs to failed trials, too."""


# --- the way -------------------------------------------------------------------------------------


def run_trial(attempt: Attempt) -> TrialEnd:
    """Take every step and return the record; raises Interrupted, with the workers closed."""
    try:
        for name, step in STEPS:
            attempt.bench.waiter.interrupt.check()
            attempt.say("step", name)
            begun_ns = attempt.bench.waiter.clock.now_ns()
            try:
                step(attempt)
            finally:
                spent_ns = attempt.bench.waiter.clock.now_ns() - begun_ns
                attempt.overhead_ns[name] = spent_ns
    except Unavailable as why:
        lost = clean_up(attempt)
        error = {"kind": "skipped", "message": str(why), "host": ""}
        return TrialEnd(attempt.record("skipped", error), lost)
    except Interrupted:
        clean_up(attempt)
        raise
    except (AgentLost, RestoreError) as error:
        clean_up(attempt)
        return TrialEnd(attempt.record("failed", described(error)), error)
    except UdpbenchError as error:
        lost = clean_up(attempt)
        return TrialEnd(attempt.record("failed", described(error)), lost)
    return TrialEnd(attempt.record("done", None))


def clean_up(attempt: Attempt) -> AgentLost | None:
    """Close all workers after a trial that did not end by itself; return a loss found thereby.

    An agent that does not answer this within its deadline answers nothing: it counts as lost.
    """
    lost: AgentLost | None = None
    for remote in attempt.bench.agents.hosts:
        try:
            remote.close()
        except AgentLost as error:
            lost = lost or error
        except DeadlineExceeded as error:
            remote.channel.lose("it does not answer")
            lost = lost or AgentLost(f"the agent does not answer: {error.message}", remote.name)
        except HostError as error:
            attempt.findings.append(
                Finding("warning", f"workers were not closed: {error.message}", remote.name)
            )
    return lost


def described(error: UdpbenchError) -> dict[str, str]:
    """Return ``{kind, message, host}`` of an error, as records keep it."""
    if isinstance(error, HostError):
        return {"kind": type(error).__name__, "message": error.message, "host": error.host}
    return {"kind": type(error).__name__, "message": str(error), "host": ""}
