"""The path phase: whether anything arrives, on which RX queues, and what follows from that.

The definition decides which flows and CPUs follow; packets are sent here to find out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from udpbench.analysis.delta import deltas
from udpbench.analysis.judge import path_ledger
from udpbench.analysis.ledger.ledger import is_explained
from udpbench.analysis.queue_counters import carrying, queue_packets, sent_flows
from udpbench.control.phase import PhaseRun, Plan, by_host, path_plan, probe_plan
from udpbench.control.trial_state import Attempt, run_phase, trial_agents
from udpbench.definition.binding.bind import (
    Landed,
    Unavailable,
    bind,
    depends_on_queues,
    keep,
)
from udpbench.definition.binding.flow_selection import MAX_FLOWS, Queue
from udpbench.drivers import driver_of
from udpbench.errors import HostError, PathError
from udpbench.model.host import Facts
from udpbench.model.record import Finding, Phase, WorkerStats, total_arrived
from udpbench.model.work import WorkerSpec

Probe = Callable[[Plan], Phase]
PLACING_TRIES = 8
"""To place senders relative to a queue, if each new socket means another queue."""
PROBES_PER_FLOW = 5
"""At most. Others' packets to the interface are counted, too: of IPv6 14 beside a probe's four."""


def path_phase(attempt: Attempt) -> None:
    """Send a few packets per flow, and fail before any load if a receiver gets none."""
    run_phase(attempt, path_plan(attempt.workers))
    silent = unreached(attempt)
    closed = attempt.trial.receive.workers == 0
    if not silent:
        return
    where = f" at {', '.join(silent)}" if len(attempt.bench.lab.receivers) > 1 else ""
    if attempt.trial.path_check == "explained" or closed:
        ledger = path_ledger(attempt.so_far())
        if ledger is not None and ledger.intended_packets > 0 and is_explained(ledger):
            return
        text = f"no packet of the path check arrived{where}, and the ledger does not show why"
        raise PathError(text)
    refuse_unsent(attempt.phases[-1].stats, gso=attempt.trial.send.gso != "off")
    # The facts may be those of the trial before, since when a link was taken down.
    refuse_down(attempt.bench.ask(attempt.bench.agents.hosts, lambda client: client.facts()))
    raise PathError(
        f"no packet of the path check arrived{where}; fix the path, or write "
        "`path_check: explained` if packets are meant to be dropped"
    )


def refuse_unsent(stats: Sequence[WorkerStats], gso: bool) -> None:
    """Raise PathError if senders sent nothing because their system calls failed.

    Before Linux 6.11 GSO ends in EIO where the interface computes no checksums (net/ipv4/udp.c:
    udp_send_skb()).
    """
    counts = [worker.counts for worker in stats if worker.role == "sender"]
    failed = [each["last_errno"] for each in counts if each.get("other_errors")]
    if not failed or any(each.get("sent_packets") for each in counts):
        return
    text = f"no packet could be sent: system calls failed: {os.strerror(failed[-1])}"
    if gso and failed[-1] == errno.EIO:
        text += (
            "; before Linux 6.11 send.gso needs an interface that computes checksums "
            "(ethtool -k: tx-checksumming): switch that on, or omit send.gso"
        )
    raise PathError(text)


def refuse_down(known: Mapping[str, Facts]) -> None:
    """Raise HostError if an interface is down; ``known``: host → its facts."""
    for name, facts in known.items():
        if facts.link == "down":
            text = f"{facts.interface} is down, although it was taken up: find out what did it"
            raise HostError(text, name)


def unreached(attempt: Attempt) -> list[str]:
    """Return the receivers that none of the latest phase's packets reached."""
    stats = attempt.phases[-1].stats
    return [
        host.name
        for host in attempt.bench.lab.receivers
        if total_arrived(s for s in stats if s.worker.rpartition(".")[0] == host.name).packets == 0
    ]


def place_at_queues(attempt: Attempt) -> None:
    """Choose the flows and CPUs that follow from RX queues, and check the path again.

    A virtual link chooses a flow's queue by its socket, not by its packets, so the chosen flows are
    sent on the sockets that were probed; senders that have to move are probed again.
    """
    if not depends_on_queues(attempt.trial):
        return
    prepared = attempt.workers
    for _ in range(PLACING_TRIES):
        landed = _find_queues(attempt, prepared)
        bound = bind(attempt.trial, attempt.bench.lab, attempt.facts, landed)
        moved = _move(attempt, prepared, bound.workers)
        settled = _senders(moved) == _senders(prepared)
        attempt.workers, attempt.flows = moved, None
        if settled:
            attempt.workers = bound.workers
            attempt.flows = tuple(sorted(landed.flows)) if landed.flows is not None else None
            attempt.findings += [f for f in bound.findings if f not in attempt.findings]
        attempt.phases.pop()
        path_phase(attempt)
        if settled:
            return
        prepared = moved
    raise Unavailable(
        f"send.cpus: each of {PLACING_TRIES} new sockets used another RX queue; "
        "write settings.receiver.link: {queues: 1}, or name CPUs"
    )


def _find_queues(attempt: Attempt, prepared: tuple[WorkerSpec, ...]) -> Landed:
    """Return the queues of the latest path phase, or the flows that fill as many as requested."""
    facts = {host.name: attempt.facts[host.name] for host in attempt.bench.lab.receivers}
    attempt.workers, attempt.flows = prepared, None
    landed = landed_queues(facts, prepared, attempt.phases[-1])
    queues = attempt.trial.traffic.flows.queues
    if queues == "any":
        return Landed(landed)
    agents = trial_agents(attempt)

    def probe(plan: Plan) -> Phase:
        return PhaseRun(plan, agents, attempt.bench.waiter, lambda *_: None, lambda *_: None).run()

    return kept_flows(facts, prepared, queues, probe)


def _move(
    attempt: Attempt, prepared: tuple[WorkerSpec, ...], bound: tuple[WorkerSpec, ...]
) -> tuple[WorkerSpec, ...]:
    """Prepare all workers of a host again if one of them has another CPU now."""
    cpus = {spec.name: spec.cpu for spec in bound}
    moved = tuple(replace(spec, cpu=cpus[spec.name]) for spec in prepared)
    before, now = by_host(prepared), by_host(moved)
    for client in trial_agents(attempt).working:
        if before[client.name] != now[client.name]:
            client.close()
            client.prepare(now[client.name])
    return moved


def _senders(workers: tuple[WorkerSpec, ...]) -> list[WorkerSpec]:
    return [spec for spec in workers if spec.role == "sender"]


def landed_queues(
    facts: Mapping[str, Facts], workers: Sequence[WorkerSpec], phase: Phase
) -> dict[str, tuple[int, ...]]:
    """Return receiver → the RX queues that carried the packets of a path phase.

    ``facts`` are the receivers'. Raises Unavailable if packets are not counted by queue.
    """
    flows = sent_flows(workers)
    landed = {}
    for host, known in facts.items():
        packets = _packets(known, phase)
        if not packets:
            raise Unavailable(
                f"{known.interface} of {host} counts no packets by RX queue, so placement by "
                "queue cannot be verified; in a built-in lab write link: {receive: napi}"
            )
        landed[host] = carrying(packets, flows)
    return landed


def _packets(facts: Facts, phase: Phase) -> dict[int, int]:
    """Return RX queue → packets it took in a phase; empty if no queue counted any."""
    delta = deltas(phase.before[facts.host], phase.after[facts.host])
    return queue_packets(facts, delta) or {}


def queues_moved(before: Facts, now: Facts) -> list[Finding]:
    """Return a finding for each RX queue whose CPUs changed since workers were placed."""
    return [
        Finding(
            "invalid",
            f"placement lost: other CPUs now serve RX queue {queue} of {now.interface}",
            now.host,
            f"CPU {_listed(cpus)} → {_listed(now.queue_cpus.get(queue, ()))}",
            "the same CPUs throughout a trial",
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
    """Probe one flow after the other, and return those to keep.

    ``facts`` are the receivers', which count packets by RX queue. Raises Unavailable if no choice
    fills the queues evenly.
    """
    senders = [spec for spec in workers if spec.role == "sender"]
    total = sum(len(spec.flows) for spec in senders)
    if total > MAX_FLOWS:
        raise Unavailable(
            f"traffic.flows.queues probes each flow separately: {total} flows are too many; at "
            f"most {MAX_FLOWS}; narrow traffic.flows.from or to"
        )
    landing: dict[int, Queue] = {}
    ends = {
        flow.flow: flow.destination
        for spec in (*senders, *(spec for spec in workers if spec.role == "receiver"))
        for flow in spec.flows
    }
    for spec in senders:
        for flow in spec.flows:
            host = next(host for host in facts if ends[flow.flow] in facts[host].destinations)
            late_ns = driver_of(facts[host]).queue_packets_late_ns
            plan = probe_plan(workers, flow.flow, late_ns)
            gso = spec.send is not None and spec.send.gso != "off"
            queue = _landing(facts[host], plan, gso, probe)
            if queue is not None:
                landing[flow.flow] = host, queue
    kept = keep(landing, senders, queues)
    used = {landing[flow] for flow in kept}
    return Landed({host: tuple(sorted(q for h, q in used if h == host)) for host in facts}, kept)


def _landing(facts: Facts, plan: Plan, gso: bool, probe: Probe) -> int | None:
    """Return the RX queue that counts the packets of each probe of a flow; None if no queue does.

    It is probed again while several queues count as many, or while none does although packets
    arrived. In the end it is the queue that counts just those packets, else the one that counts
    the most regularly: others' packets vary.
    """
    common: dict[int, list[tuple[int, int]]] = {}
    for _ in range(PROBES_PER_FLOW):
        phase = probe(plan)
        arrived = total_arrived(phase.stats).packets
        # A veth counts a GSO message once.
        least = 1 if gso else max(arrived, 1)
        counted = {q: (n, arrived) for q, n in _packets(facts, phase).items() if n >= least}
        both = common.keys() & counted.keys()
        if both or counted:
            common = {queue: [*common.get(queue, []), counted[queue]] for queue in both or counted}
        if len(common) == 1 or not (common or arrived):
            break

    def likeness(queue: int) -> tuple[bool, int, int]:
        counts = [count for count, _ in common[queue]]
        differs = any(count != arrived for count, arrived in common[queue])
        return differs, max(counts) - min(counts), min(counts)

    return min(common, key=likeness, default=None)
