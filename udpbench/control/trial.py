"""The steps of one trial as an explicit list, and what a failure at each of them means.

Owns the order of the steps and the record they fill. In any case the workers are closed and the
record has the reason; a failure that ends the run is returned with the record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from udpbench.control.agents import MACHINE
from udpbench.control.kept_workers import fits, may_stay, still_stand
from udpbench.control.losses import plan_losses
from udpbench.control.path_check import path_phase, place_at_queues, queues_moved, refuse_down
from udpbench.control.path_proof import PathWatch, SenderWatch, prove_path
from udpbench.control.phase import Plan, by_host, warmup_plan
from udpbench.control.setting_findings import (
    altered,
    desired,
    links,
    refused,
    rounded,
    rules_changed,
)
from udpbench.control.trial_state import Attempt, Bench, Warm, others, run_phase, trial_agents
from udpbench.definition.binding.bind import (
    Unavailable,
    UnmetNeeds,
    bind,
    depends_on_queues,
    published_addresses,
    require_offers,
)
from udpbench.errors import (
    AgentLost,
    DeadlineExceeded,
    HostError,
    Interrupted,
    RestoreError,
    SafetyError,
    UdpbenchError,
)
from udpbench.model.host import FIREWALL_RULES
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding, RecordedError, TrialRecord
from udpbench.model.work import WorkerSpec, replies
from udpbench.ways import way_to_receive, way_to_send

T = TypeVar("T")

WARM_QUIET_NS = 100 * 10**6
"""How long receivers must be quiet after a trial of a search, unless the end of every packet is
known. A straggler is foreign to the next trial, which is then repeated."""
VERIFY_NS = 5 * SECOND_NS
"""Interval of verification in a search: it takes 60 ms on every host."""
LINK_NS = 10 * SECOND_NS
"""Time limit for a link: autonegotiation takes up to 4 s, a switch port longer."""


@dataclass(frozen=True)
class TrialEnd:
    """A trial's record, and an error that must end the run, if any."""

    record: TrialRecord
    fatal: UdpbenchError | None = None


# --- the steps -----------------------------------------------------------------------------------


def read_facts(attempt: Attempt) -> None:
    """Read the facts of every host of the lab, unless the trial before has just read them."""
    bench = attempt.bench
    known, bench.known = bench.known, {}
    attempt.facts = known or bench.ask(bench.agents.hosts, lambda client: client.facts())


def read_facts_again(attempt: Attempt) -> None:
    """Read what settings may have changed."""
    if not attempt.facts_hold:
        read_facts(attempt)


def compare_offers(attempt: Attempt) -> None:
    """Skip a trial that the lab, the machines or the kernels do not support, before any change."""
    bench = attempt.bench
    require_offers(attempt.trial, bench.lab, attempt.facts, bench.agents.capabilities)


def apply_settings(attempt: Attempt) -> None:
    """Put the trial's settings in force: machine, joint, receivers, senders.

    The receiver creates the pair of a built-in lab, the joint creates all pairs, and removing a
    pair removes both ends; so before a pair changes, the other agent undoes its settings on it.
    Real hosts follow each other: a link that flaps at both ends would hide who has an address. So
    do nodes in the middle, whose links are made one after the other.
    """
    bench, agents = attempt.bench, attempt.bench.agents
    settings = desired(attempt.trial, bench.lab, agents, attempt.facts)
    before, bench.in_force = bench.in_force, None
    groups = [agents.setting_up]
    if before is None or links(before) != links(settings):
        groups = [
            tuple(client for client in agents.setting_up if client not in agents.hanging),
            tuple(client for client in agents.setting_up if client in agents.hanging),
        ]
        hanging = [each for each in agents.hanging if before is None or before.get(each.name)]
        for ends in [[each] for each in hanging] if bench.lab.middle else [hanging]:
            bench.ask(ends, lambda client: client.apply(()))
    if not bench.lab.built_in or bench.lab.middle:
        groups = [(client,) for client in agents.setting_up]
    for group in groups:
        answers = bench.ask(group, lambda client: client.apply(settings[client.name]))
        attempt.changes.update(answers)
    for name, changes in attempt.changes.items():
        attempt.findings.extend(refused(name, changes))
        attempt.findings.extend(rounded(name, changes))
    bench.in_force, attempt.facts_hold = settings, before == settings


def verify_settings(attempt: Attempt) -> None:
    """Check that settings are still in force, and which other runs used the machines.

    In a search only every ``VERIFY_NS``, since it takes as long as a short trial.
    """
    now_ns, due = attempt.bench.waiter.clock.now_ns(), True
    if attempt.trial.search_key is not None:
        due = attempt.bench.verified_ns is None or now_ns - attempt.bench.verified_ns >= VERIFY_NS
    if not due:
        attempt.bench.known = {}
        return
    bench, agents = attempt.bench, attempt.bench.agents
    bench.verified_ns = now_ns
    changed = [client for client in agents.setting_up if attempt.changes.get(client.name)]
    for name, changes in bench.ask(changed, lambda client: client.verify()).items():
        attempt.findings.extend(altered(name, changes))
    facts = bench.ask(agents.hosts, lambda client: client.facts())
    for client in agents.hosts:
        before, after = attempt.facts[client.name], facts[client.name]
        rules = after.firewall_rules
        counted = {FIREWALL_RULES: str(rules)} if rules is not None else {}
        attempt.environment_after[client.name] = {**after.environment, **counted}
        attempt.findings.extend(rules_changed(before, after))
        if depends_on_queues(attempt.trial) and client in agents.receivers:
            attempt.findings.extend(queues_moved(before, after))
    attempt.findings.extend(others(agents))
    bench.known = facts


def await_links(attempt: Attempt) -> None:
    """Wait until every link is up; a real link takes seconds after its interface is taken up."""
    refuse_down(attempt.facts)
    dark = {name for name, facts in attempt.facts.items() if facts.link == "no carrier"}
    if not dark:
        return
    waiting = [client for client in attempt.bench.agents.hosts if client.name in dark]

    def lit() -> bool:
        attempt.facts.update({client.name: client.facts() for client in waiting})
        return all(attempt.facts[name].link != "no carrier" for name in dark)

    interfaces = ", ".join(client.interface for client in waiting)
    what = f"{interfaces} still without a carrier (check the cable)"
    attempt.bench.waiter.until(what, ", ".join(sorted(dark)), lit, LINK_NS)


def bind_workers(attempt: Attempt) -> None:
    """Resolve the trial against the facts; Unavailable skips it with the reason."""
    bound = bind(attempt.trial, attempt.bench.lab, attempt.facts)
    attempt.workers = bound.workers
    attempt.findings.extend(bound.findings)


def prove_destinations(attempt: Attempt) -> None:
    """Prove that every destination is an address that a lab receiver reports on its interface.

    With nodes in the middle also that each of them leads there, and to nobody else.
    """
    proven = {
        destination
        for host in attempt.bench.lab.receivers
        if attempt.facts[host.name].interface == host.interface
        for destination in attempt.facts[host.name].destinations
    }
    published = published_addresses(attempt.trial, attempt.bench.lab, attempt.facts)
    for spec in attempt.workers:
        known_ends = proven | published if spec.role == "sender" else proven
        wrong = sorted({flow.destination for flow in spec.flows} - known_ends)
        if wrong:
            known = ", ".join(sorted(proven)) or "none"
            raise SafetyError(
                f"{spec.name}: destination {', '.join(wrong)} is not an address of a lab receiver; "
                f"addresses found there: {known}; nothing was sent",
                spec.host,
            )
    bench, back = attempt.bench, replies(attempt.workers)
    sending = (*bench.agents.senders, *(bench.agents.receivers if back else ()))
    attempt.findings.extend(
        Finding(
            "note",
            "rules that may lead packets elsewhere could not be read",
            client.name,
            "an agent without root",
            next_step="run its agent as root, or look at `nft list ruleset` there",
        )
        for client in sending
        if not attempt.facts[client.name].capabilities.get("net_admin", True)
    )
    if bench.lab.middle:
        path = bench.lab, bench.agents, attempt.facts, tuple(attempt.workers)
        # Nobody else is on the links of a built-in lab.
        again = None if bench.lab.built_in else partial(prove_path, *path, "no more")
        bench.watch = PathWatch((*bench.agents.middle, *sending), again)
        bench.watch.begin()
        bench.wired = prove_path(*path)
    elif not bench.lab.built_in:  # whose namespaces lead nowhere else
        bench.watch = SenderWatch(sending, (*attempt.workers, *back))
        bench.watch.begin()


def prepare_workers(attempt: Attempt) -> None:
    """Prepare the workers, receivers before senders that need open ports or a receiver's program.

    Streams connect to ports; the two ends of a pair lend each other their queues for frames.
    """
    agents, trial = trial_agents(attempt), attempt.trial
    workers = by_host(attempt.workers)
    ways = way_to_send(trial.send), way_to_receive(trial.receive)
    apart = trial.traffic.protocol == "udp" and "frames" not in [way.takes for way in ways]
    for group in (agents.working,) if apart else (agents.receivers, agents.senders):
        attempt.bench.ask(group, lambda client: client.prepare(workers[client.name]))
    attempt.standing = tuple(attempt.findings)


def warmup_phase(attempt: Attempt) -> None:
    """Let caches, queues and CPU frequencies settle; sends nothing without a warm-up."""
    if attempt.trial.search_key is not None:
        attempt.standing = tuple(attempt.findings)
        pace_workers(attempt, attempt.workers)
    if attempt.trial.warmup_ns > 0:
        trial = attempt.trial
        run_phase(attempt, warmup_plan(attempt.workers, trial.warmup_ns, trial.warmup_auto))


def measured_phase(attempt: Attempt) -> None:
    """Run the measured phase, with the packets lost on purpose."""
    bench, trial = attempt.bench, attempt.trial
    plan = Plan("measured", trial.duration_ns, cpu_time=trial.cpu_time)
    if trial.search_key is not None:
        run_phase(attempt, replace(plan, quiet_ns=WARM_QUIET_NS))
        return
    of_machine = (bench.in_force or {}).get(MACHINE, ())
    losses = plan_losses(attempt.trial, attempt.workers, attempt.facts, bench.agents, of_machine)
    if losses is not None:
        losses.prepare()
    run_phase(attempt, plan, losses)


def close_workers(attempt: Attempt) -> None:
    """Close the workers and their sockets, unless they may serve a further trial."""
    if may_stay(attempt):
        attempt.bench.warm = Warm(
            attempt.trial,
            attempt.facts,
            attempt.changes,
            attempt.workers,
            attempt.flows,
            attempt.standing,
            attempt.rate_pps,
        )
        return
    working = trial_agents(attempt).working
    attempt.bench.close(working, attempt.trial.name, attempt.log_label)


def take_over(attempt: Attempt) -> bool:
    """Take over the idle workers at this trial's rate; return False if they cannot serve it."""
    warm = attempt.bench.warm
    if warm is None or not fits(attempt, warm) or not still_stand(attempt, warm):
        return False
    attempt.facts, attempt.changes = dict(warm.facts), dict(warm.changes)
    attempt.flows, attempt.findings = warm.flows, list(warm.findings)
    attempt.standing = warm.findings
    if attempt.trial.traffic == warm.trial.traffic and attempt.trial.search is None:
        attempt.workers, attempt.rate_pps = warm.workers, warm.rate_pps
    else:
        pace_workers(attempt, warm.workers)
    return True


def pace_workers(attempt: Attempt, workers: tuple[WorkerSpec, ...]) -> None:
    """Set one rate for all senders, which ``start`` carries; rounded down to whole pps per sender.

    Without a rate they keep their own.
    """
    traffic, pps = attempt.trial.traffic, attempt.trial.traffic.intended_pps
    senders = sum(spec.role == "sender" for spec in workers)
    if pps is not None and senders:
        attempt.rate_pps = max(1, pps // senders)
    attempt.workers = tuple(
        replace(
            spec,
            traffic=replace(traffic, ttl=spec.traffic.ttl),
            rate_pps=attempt.rate_pps if spec.role == "sender" else None,
        )
        for spec in workers
    )


def release_warm(bench: Bench) -> None:
    """Close workers that a trial left idle, if there are any."""
    warm, bench.warm = bench.warm, None
    hosts = {spec.host for spec in warm.workers} if warm is not None else set()
    if warm is not None:
        both = (*bench.agents.receivers, *bench.agents.senders)
        idle = [client for client in both if client.name in hosts]
        trial = warm.trial
        name = f"{trial.experiment}::{trial.point}#{trial.repetition}"
        bench.close(idle, name if trial.search is not None else trial.name)


STEPS: tuple[tuple[str, Callable[[Attempt], None]], ...] = (
    ("facts", read_facts),
    ("offers", compare_offers),
    ("apply", apply_settings),
    ("facts again", read_facts_again),
    ("link", await_links),
    ("needs", bind_workers),
    ("safety", prove_destinations),
    ("prepare", prepare_workers),
    ("path", path_phase),
    ("place", place_at_queues),
    ("warmup", warmup_phase),
    ("measured", measured_phase),
    ("verify", verify_settings),
    ("close", close_workers),
)
"""The steps of one trial. Needs come after apply, because interface, queues and addresses of a
built-in lab exist only then. Recording is done by the run, because failed trials need it, too."""


def _named(*names: str) -> tuple[tuple[str, Callable[[Attempt], None]], ...]:
    return tuple((name, step) for name, step in STEPS if name in names)


WARM_STEPS = _named("path", "warmup", "measured", "verify", "close")
"""The steps of a further trial of a point, whose workers were taken over."""
SEARCH_STEPS = _named("measured", "verify", "close")
"""The same of a search, which repeats a trial that is not valid."""


# --- the way -------------------------------------------------------------------------------------


def run_trial(attempt: Attempt) -> TrialEnd:
    """Run every step and return the record; raises Interrupted with the workers closed."""
    try:
        steps = STEPS
        if attempt.bench.warm is not None and timed(attempt, "take over", take_over):
            steps = WARM_STEPS if attempt.trial.search is None else SEARCH_STEPS
        else:
            release_warm(attempt.bench)
        for name, step in steps:
            timed(attempt, name, step)
    except Unavailable as why:
        lost = clean_up(attempt)
        kind = "skipped" if isinstance(why, UnmetNeeds) else "unavailable"
        return TrialEnd(attempt.finish("skipped", RecordedError(kind, str(why))), lost)
    except Interrupted:
        clean_up(attempt)
        raise
    except (AgentLost, RestoreError) as error:
        clean_up(attempt)
        return TrialEnd(attempt.finish("failed", described(error)), error)
    except UdpbenchError as error:
        lost = clean_up(attempt)
        return TrialEnd(attempt.finish("failed", described(error)), lost)
    return TrialEnd(attempt.finish("done"))


def timed(attempt: Attempt, name: str, step: Callable[[Attempt], T]) -> T:
    """Take one step, and note what it takes."""
    clock = attempt.bench.waiter.clock
    attempt.bench.waiter.interrupt.check()
    attempt.say("step", name)
    begun_ns = clock.now_ns()
    try:
        return step(attempt)
    finally:
        attempt.overhead_ns[name] = clock.now_ns() - begun_ns


def clean_up(attempt: Attempt) -> AgentLost | None:
    """Close all workers after a trial that failed; return an agent lost while doing so.

    An agent that does not answer within the deadline counts as lost.
    """
    lost: AgentLost | None = None
    attempt.bench.warm, attempt.bench.known = None, {}
    with suppress(HostError):  # the trial's own failure is reported
        attempt.findings.extend(others(attempt.bench.agents))
    for client in attempt.bench.agents.hosts:
        try:
            attempt.bench.close([client], attempt.trial.name, attempt.log_label)
        except AgentLost as error:
            lost = lost or error
        except DeadlineExceeded as error:
            client.channel.lose("it does not answer")
            lost = lost or AgentLost(f"the agent does not answer: {error.message}", client.name)
        except HostError as error:
            attempt.findings.append(
                Finding("warning", f"workers were not closed: {error.message}", client.name)
            )
    return lost


def described(error: UdpbenchError) -> RecordedError:
    """Return an error as records keep it."""
    if isinstance(error, HostError):
        return RecordedError(type(error).__name__, error.message, error.host)
    return RecordedError(type(error).__name__, str(error))
