"""The path phase: whether anything arrives, on which RX queues, and what follows from that.

Which flows and CPUs follow is the definition's to decide; here is what is sent to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from udpbench.analysis.judge import carrying, path_ledger, queue_packets, sent_flows
from udpbench.control.attempt import Attempt, crew_of, run_phase
from udpbench.control.phase import PhaseRun, Plan, by_host, path_plan, probe_plan
from udpbench.definition.bind import Landed, Unavailable, bind, depends_on_queues, keep
from udpbench.definition.queues import MAX_FLOWS
from udpbench.errors import PathError
from udpbench.model import Facts, Finding, Phase, WorkerSpec

Probe = Callable[[Plan], Phase]
PLACING_TRIES = 8
"""Of senders placed in relation to a queue, on a link where a new socket means another queue."""


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


def place_workers(attempt: Attempt) -> None:
    """Keep the flows and take the CPUs that follow from RX queues, and prove it by the path again.

    A virtual link chooses the queue of a flow by its socket and not by its packets, so the kept
    ones are sent on the sockets that were looked at; senders that have to move look again.
    """
    if not depends_on_queues(attempt.trial):
        return
    prepared = attempt.workers
    for _ in range(PLACING_TRIES):
        landed = _look_at_queues(attempt, prepared)
        bound = bind(attempt.trial, attempt.bench.lab, attempt.facts, landed)
        moved = _move(attempt, prepared, bound.workers)
        settled = _senders(moved) == _senders(prepared)
        attempt.workers, attempt.flows = moved, None
        if settled:
            attempt.workers = bound.workers
            attempt.flows = tuple(sorted(landed.flows)) if landed.flows is not None else None
            attempt.findings += [one for one in bound.findings if one not in attempt.findings]
        attempt.phases.pop()
        path_phase(attempt)
        if settled:
            return
        prepared = moved
    raise Unavailable(
        f"send.cpus: in {PLACING_TRIES} tries a new socket has led to another RX queue each time; "
        "write settings.receiver.link: {queues: 1}, or name CPUs"
    )


def _look_at_queues(attempt: Attempt, prepared: tuple[WorkerSpec, ...]) -> Landed:
    """Return the queues of the latest path phase, or the flows that fill as many as asked for."""
    facts = {host.name: attempt.facts[host.name] for host in attempt.bench.lab.receivers}
    attempt.workers, attempt.flows = prepared, None
    wanted = attempt.trial.traffic.flows.queues
    if wanted == "any":
        return Landed(landed_queues(facts, prepared, attempt.phases[-1]))
    crew = crew_of(attempt)

    def probe(plan: Plan) -> Phase:
        return PhaseRun(plan, crew, attempt.bench.waiter, lambda *_: None, lambda *_: None).run()

    return kept_flows(facts, prepared, wanted, probe)


def _move(
    attempt: Attempt, prepared: tuple[WorkerSpec, ...], bound: tuple[WorkerSpec, ...]
) -> tuple[WorkerSpec, ...]:
    """Prepare workers anew on hosts where one has another CPU now, with all of their flows."""
    cpus = {spec.name: spec.cpu for spec in bound}
    moved = tuple(replace(spec, cpu=cpus[spec.name]) for spec in prepared)
    before, now = by_host(prepared), by_host(moved)
    for remote in crew_of(attempt).working:
        if before[remote.name] != now[remote.name]:
            remote.close()
            remote.prepare(now[remote.name])
    return moved


def _senders(workers: tuple[WorkerSpec, ...]) -> list[WorkerSpec]:
    return [spec for spec in workers if spec.role == "sender"]


def landed_queues(
    facts: Mapping[str, Facts], workers: Sequence[WorkerSpec], phase: Phase
) -> dict[str, tuple[int, ...]]:
    """Return receiver → the RX queues that carried the packets of a path phase.

    ``facts`` are the receivers'. Raises Unavailable where they are not counted by queue.
    """
    flows = sent_flows(workers)
    return {host: carrying(_packets(one, phase), flows) for host, one in facts.items()}


def _packets(facts: Facts, phase: Phase) -> dict[int, int]:
    packets = queue_packets(facts, phase.before[facts.host], phase.after[facts.host])
    if packets is None:
        raise Unavailable(
            f"{facts.interface} of {facts.host} counts no packets by RX queue, so that a placement "
            "by queue cannot be proven; in a built-in lab write link: {receive: napi}"
        )
    return packets


def queues_moved(before: Facts, now: Facts) -> list[Finding]:
    """Return a finding for each RX queue that other CPUs serve than when workers were placed."""
    return [
        Finding(
            "invalid",
            f"placement lost: other CPUs serve RX queue {queue} of {now.interface} now",
            now.host,
            f"CPU {_listed(cpus)} → {_listed(now.queue_cpus.get(queue, ()))}",
            "none changes under way",
            "pin them (settings.receiver.irq pauses irqbalance), or stop what moves them",
        )
        for queue, cpus in before.queue_cpus.items()
        if cpus != now.queue_cpus.get(queue, ())
    ]


def _listed(cpus: Sequence[int]) -> str:
    return ", ".join(str(cpu) for cpu in cpus) or "unknown"


def kept_flows(
    facts: Mapping[str, Facts], workers: Sequence[WorkerSpec], queues: int, probe: Probe
) -> Landed:
    """Send a few packets of one flow after the other, and return those to keep.

    ``facts`` are the receivers'. Raises Unavailable where no choice fills the queues evenly.
    """
    senders = [spec for spec in workers if spec.role == "sender"]
    total = sum(len(spec.flows) for spec in senders)
    if total > MAX_FLOWS:
        raise Unavailable(
            f"traffic.flows.queues looks at each flow by itself: {total} flows are too many; at "
            f"most {MAX_FLOWS}; narrow traffic.flows.from or to"
        )
    receivers = {
        flow.flow: spec.host for spec in workers if spec.role == "receiver" for flow in spec.flows
    }
    landing: dict[str, dict[int, int]] = {host: {} for host in facts}
    for spec in senders:
        for flow in spec.flows:
            host = receivers.get(flow.flow) or _owner(facts, flow.destination)
            packets = _packets(facts[host], probe(probe_plan(workers, flow.flow)))
            landing[host][flow.flow] = max(packets, key=lambda queue: packets[queue])
    kept = {host: keep(found, senders, queues) for host, found in landing.items()}
    used = {host: _queues(landing[host], flows) for host, flows in kept.items()}
    return Landed(used, frozenset[int]().union(*kept.values()))


def _queues(landing: Mapping[int, int], kept: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted({queue for flow, queue in landing.items() if flow in kept}))


def _owner(facts: Mapping[str, Facts], destination: str) -> str:
    """Return the host that has an address: with ``receive.workers: 0`` no worker tells."""
    return next(
        host
        for host, one in facts.items()
        if destination in {address.partition("/")[0] for address in one.addresses}
    )
