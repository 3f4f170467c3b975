"""The counts that frame a ledger: intended, sent, arrived; from workers, without any counter.

A packet to a group is as many as the group has members, each of whom is to get it.
"""

from __future__ import annotations

from udpbench.analysis.readings import CounterView, Readings
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Arrived, total_arrived


def requested_packets(readings: Readings) -> int | None:
    """Return the packets that count and rate request; None where the rate is unlimited."""
    specs = [spec for spec in readings.specs if spec.role == "sender"]
    counts = [spec.count_packets for spec in specs if spec.count_packets is not None]
    if readings.phase.name != "measured" or not specs:
        return None
    if len(counts) == len(specs):
        return sum(counts)
    rates = [spec.rate_pps for spec in specs if spec.rate_pps is not None]
    if len(rates) == len(specs):
        # One packet at each multiple of 1/rate from the start, the end excluded, as in
        # native/sender/pacer.c.
        return sum(-(-rate * readings.record.trial.duration_ns // SECOND_NS) for rate in rates)
    return None


def loss_packets(readings: CounterView) -> int:
    """Return the packets that were attempted in addition to the traffic, to be lost on purpose."""
    senders = (stats for stats in readings.loss_workers if stats.role == "sender")
    return sum(stats.counts.get("attempted_packets", 0) for stats in senders)


def intended_packets(readings: Readings) -> int:
    """Return the intended load in packets: what was requested, else what was attempted."""
    requested = requested_packets(readings)
    if requested is None:
        return readings.sender.count("attempted_packets") * readings.copies
    return (requested + loss_packets(readings)) * readings.copies


def sent_packets(readings: CounterView) -> int:
    """Return the packets that the kernel accepted from the senders."""
    return readings.sender.count("sent_packets") * readings.copies


def arrived(readings: CounterView, workers_alone: bool = False) -> Arrived:
    """Return what arrived; for rates and cost without the packets lost on purpose."""
    others = () if workers_alone else readings.loss_workers
    return total_arrived((*readings.stats, *others))


def answered_packets(readings: CounterView) -> int | None:
    """Return the answers that came back to the senders; None where none are awaited."""
    if readings.traffic.answers is None:
        return None
    return readings.sender.count("answered_packets")


def unanswered_packets(readings: CounterView) -> int:
    """Return the packets that were read and whose answer did not come back; 0 without answers."""
    answered = answered_packets(readings)
    return arrived(readings, workers_alone=True).packets - answered if answered is not None else 0


def kept_packets(readings: CounterView) -> int:
    """Return what was not lost: what arrived and, where answers are awaited, was answered."""
    return arrived(readings).packets - unanswered_packets(readings)


def unsent_packets(readings: Readings) -> int:
    """Return the packets that were intended but never offered to the network."""
    taken = sent_packets(readings) + readings.sender.count("eperm") * readings.copies
    return intended_packets(readings) - taken
