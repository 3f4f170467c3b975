"""Whether the idle workers of one trial may serve the next one, and whether they are as they were.

Owns where points start fresh; docs/measurement.md has the list. Asks agents and changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from udpbench.control.trial_state import Attempt, Warm
from udpbench.definition.binding.bind import depends_on_queues
from udpbench.model.experiment import Trial
from udpbench.ways import way_to_receive


def may_stay(attempt: Attempt) -> bool:
    """Return whether workers may stay for a further trial of their point.

    Not if how they start is a part of what is measured, or what a socket or a thread gets at
    random: it would be the same in all trials, and hide how much these differ.
    """
    trial, receive = attempt.trial, attempt.trial.receive
    if trial.fresh:
        return False
    if trial.search is not None:
        return True
    if trial.warmup_ns == 0 or trial.losses or trial.path_check != "arrive":
        return False
    if attempt.bench.lab.middle:  # the proof of each hop is one of the steps of a fresh trial
        return False
    ours = way_to_receive(receive).takes != "program" and receive.log is None is receive.fault
    # Without a CPU of its own a thread stays where it first ran; a socket's hash, drawn at random
    # (net/core/dev.c: skb_tx_hash), selects its TX queue, and the CPU by RPS.
    pinned = all(spec.own_cpus for spec in attempt.workers)
    returns = trial.traffic.echo or trial.traffic.answers
    sending = {spec.host for spec in attempt.workers if spec.role == "sender" or returns}
    settings = (change.setting for changes in attempt.changes.values() for change in changes)
    spread = (
        depends_on_queues(trial)
        or any(attempt.facts[host].tx_queues != 1 for host in sending)
        or any(each.kind in ("rps", "rps_default") and len(each.value) > 1 for each in settings)
    )
    return trial.traffic.protocol == "udp" and ours and pinned and not spread


def fits(attempt: Attempt, warm: Warm) -> bool:
    """Return whether idle workers are those of a trial, but for its rate and its phases' lengths.

    A phase's start sets a rate, the same for all senders. Workers without one have no pacer.
    """
    trial, other = attempt.trial, warm.trial
    if trial.search is not None or other.search is not None:
        same = trial.search_key == other.search_key
        return same and trial.traffic.rate is not None and not trial.fresh
    if trial.warmup_ns == 0:  # its workers are to be new
        return False
    senders = sum(spec.role == "sender" for spec in warm.workers)
    pps, other_pps = trial.traffic.intended_pps, other.traffic.intended_pps
    shared = None not in (pps, other_pps) and (pps or 0) % max(senders, 1) == 0
    same = pps == other_pps or shared
    return same and _unnamed(trial) == _unnamed(other)


def _unnamed(trial: Trial) -> Trial:
    """Return a trial without its name, its rate, and what is asked of its result."""
    return replace(
        trial,
        experiment="",
        question="",
        point="",
        variant=None,
        values={},
        repetition=1,
        duration_ns=0,
        warmup_ns=0,
        warmup_auto=False,
        source=None,
        expects_unsent=False,
        traffic=replace(trial.traffic, rate=None),
    )


def still_stand(attempt: Attempt, warm: Warm) -> bool:
    """Return whether hosts and workers are as they were when these workers were made.

    Agents prove routes again, and look at each worker's process, CPU and sockets. Settings were
    read back at the end of the trial before.
    """
    bench = attempt.bench
    if bench.known and bench.known != warm.facts:
        return False
    hosts = {spec.host for spec in warm.workers}
    working = [client for client in bench.agents.hosts if client.name in hosts]
    return all(bench.ask(working, lambda client: client.confirm()).values())
