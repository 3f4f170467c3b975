"""Checks of the offered load: whether it was the intended one, and whether it fits a rate."""

from __future__ import annotations

from collections.abc import Iterator

from udpbench.analysis.cpu_use import OTHERS, cpu_loads
from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.intended_load import (
    arrived,
    intended_packets,
    kept_packets,
    requested_packets,
    sent_packets,
    unsent_packets,
)
from udpbench.analysis.rates import edges_ns, host_of
from udpbench.analysis.readings import Readings
from udpbench.analysis.worker_use import unlogged_packets
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding
from udpbench.units import plural, show_ratio

OFFERED_SHARE = 0.995
"""An offered load below this share of the intended one measures the sender (RFC 2285 3.5)."""
SENDER_BOUND = "sender-bound: the senders did not reach the intended load"
OWN_STEP = "lower traffic.rate, or give the sender more workers or CPUs"
OTHERS_STEP = "stop what else uses the sender's CPUs, then repeat"
MOST = 0.5
"""Share of a CPU."""
MS_NS = 10**6
UNSEEN_NS = 50 * MS_NS
"""Without a look for so long after a load, a search cannot tell its rate: 5 % of a second."""
MADE_UP = "; where others hold it up, send.bucket: 1s lets it make up for that"
FEW_READS = 20
"""A rate spans the first to the last read; with this many, one read is 5 % of it."""


def sender_bound(readings: Readings) -> Iterator[Finding]:
    """Find senders that did not reach the rate or count they were given."""
    intended = intended_packets(readings)
    if requested_packets(readings) is None or intended == 0:
        return
    # A search asks once more, and then ends its range there.
    if readings.record.trial.expects_unsent or readings.record.trial.search_trial:
        return
    offered = 1 - unsent_packets(readings) / intended
    if offered < OFFERED_SHARE:
        yield Finding(
            "invalid",
            SENDER_BOUND,
            "sender",
            show_ratio(offered),
            f"at least {show_ratio(OFFERED_SHARE)} of the intended load",
            (OTHERS_STEP if _is_held_up(readings) else OWN_STEP)
            + (MADE_UP if _may_make_up(readings) else ""),
        )


def _is_held_up(readings: Readings) -> bool:
    """Return whether others took most of a CPU that sends."""
    loads = (load for load in cpu_loads(readings) if not load.receives)
    return any(load.uses.get(OTHERS, 0.0) >= MOST for load in loads)


def _may_make_up(readings: Readings) -> bool:
    """Return whether a sender of a number of packets could send late what it was held up for."""
    trial = readings.record.trial
    counted = trial.traffic.count_packets is not None and trial.traffic.rate is not None
    return counted and trial.send.bucket_ns < SECOND_NS


def receiver_not_saturated(readings: Readings) -> Iterator[Finding]:
    """Find an unlimited load without any loss: the receiver could have taken more."""
    sent, received = sent_packets(readings), kept_packets(readings) - unlogged_packets(readings)
    if readings.record.trial.search_trial:
        return
    if readings.record.trial.traffic.rate is None and sent == received > 0:
        yield Finding(
            "note",
            "lower bound: nothing was lost, so the receiver may take more",
            "receiver",
            next_step="add sending workers, or treat the rate as a minimum",
            kind="bound",
        )


def sender_stalled(readings: Readings) -> Iterator[Finding]:
    """Find a paced sender that stalled for longer than its bucket makes up for.

    With a count, a sender continues until it is reached, so what it gave up may still be sent.
    """
    requested = {spec.name: spec.count_packets for spec in readings.record.workers}
    for stats in readings.sender.workers:
        stalled = unsent = stats.counts.get("stalled_packets", 0)
        count = requested.get(stats.worker)
        if count is not None:
            unsent = min(stalled, max(count - stats.counts.get("attempted_packets", 0), 0))
        fate, value = "the ledger counts its backlog as unsent", plural(stalled, "packet")
        if unsent == 0:
            fate = "its backlog was sent later, to reach count"
        elif unsent < stalled:
            fate = "its backlog was sent later or is unsent in the ledger"
            value = f"{stalled} packets, {unsent} of them unsent"
        if stalled:
            message = f"the sender stalled for longer than send.bucket can make up for; {fate}"
            yield Finding("note", message, stats.worker, value)


def frames_mode(readings: Readings) -> Iterator[Finding]:
    """Say whether frames of AF_XDP were copied, as the kernel said when it was asked."""
    for stats in (*readings.sender.workers, *readings.receiver.workers):
        if stats.zerocopy is not None:
            done = "sent" if stats.role == "sender" else "received"
            value = "without a copy" if stats.zerocopy else "in copy mode"
            yield Finding("note", f"frames {done} by AF_XDP", stats.worker, value)


def few_reads(readings: Readings) -> Iterator[Finding]:
    """Find a delivered rate of so few reads that one batch more or less would change it."""
    received = arrived(readings, workers_alone=True).packets
    reads = readings.receiver.worked("receive_calls")
    reads -= readings.receiver.worked("empty_calls")
    if received < 2 or not 0 < reads < FEW_READS:
        return
    message = "the delivered rate rests on few reads: whole batches fall on the first and the last"
    if reads == 1:
        message = "no delivered rate: everything came in a single read"
    yield Finding(
        "warning",
        message,
        "receiver",
        f"{received} packets in {reads} read{'s' if reads > 1 else ''}",
        f"at least {FEW_READS} reads",
        "rely on counts and loss instead, or send more packets"
        + (", or lower receive.batch" if readings.record.trial.receive.messages > 1 else ""),
    )


def unseen_end(readings: Readings) -> Iterator[Finding]:
    """Find a trial of a search of which nobody saw whether a program read all of it in time.

    An agent that others keep off the CPU looks at it before the load's end, and again long after.
    """
    trial, sent = readings.record.trial, edges_ns(readings, readings.sender.workers)
    goals = trial.search.goals if trial.search is not None and trial.search_trial else ()
    if not goals or readings.receiving.takes != "program" or sent is None:
        return
    if kept_packets(readings) < (1 - max(goals)) * sent_packets(readings):
        return  # it lost too much in any case
    for stats in readings.receiver.workers:
        start_ns = readings.phase.start_ns.get(host_of(stats.worker), 0)
        seen_ns = stats.counts.get("seen_ns", 0) - start_ns - sent[1]
        last_ns = stats.counts.get("last_ns", 0) - start_ns - sent[1]
        # Of a single look with packets the two are the same.
        if seen_ns > UNSEEN_NS and (last_ns <= 0 or last_ns >= seen_ns):
            yield Finding(
                "invalid",
                "when the program had read the last packets is not known",
                stats.worker,
                f"looked at {seen_ns / MS_NS:.0f} ms after the load",
                f"within {UNSEEN_NS / MS_NS:.0f} ms",
                "leave CPU time to udpbench's agent: no receive.priority above it, or another CPU",
            )


def unsegmented_messages(readings: Readings) -> Iterator[Finding]:
    """Find GSO messages that crossed the link whole: their rate is one of skbs, not of packets."""
    each = skbs.sent_skb(readings)
    if each == skbs.ONE or not readings.all_veth:
        return
    yield Finding(
        "note",
        "skbs, not packets: GSO messages crossed the link unsegmented",
        "sender",
        f"{each.most} packets per skb",
        "single packets, as a NIC sends and receives",
        "set ethtool.features: {tx-udp-segmentation: false} on the sender to send packets",
    )
