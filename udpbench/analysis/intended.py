"""The counts that frame a ledger: intended, sent, received; from workers alone, no counter."""

from __future__ import annotations

from udpbench.analysis.readings import Readings
from udpbench.model import SECOND_NS


def asked_packets(readings: Readings) -> int | None:
    """Return what count and rate asked the senders for; None where the rate is unlimited."""
    specs = [spec for spec in readings.record.workers if spec.role == "sender"]
    counts = [spec.count_packets for spec in specs if spec.count_packets is not None]
    if readings.phase.name != "measured" or not specs:
        return None
    if len(counts) == len(specs):
        return sum(counts)
    rates = [spec.rate_pps for spec in specs if spec.rate_pps is not None]
    if len(rates) == len(specs):
        # One packet at each multiple of 1/rate from the start on, the end itself excluded; so
        # native/pacer.c gives them out.
        return sum(-(-rate * readings.record.trial.duration_ns // SECOND_NS) for rate in rates)
    return None


def fault_packets(readings: Readings) -> int:
    """Return the packets that were attempted beside the traffic, to be lost on purpose."""
    mine = [one for one in readings.phase.faults if one.role == "sender"]
    return sum(one.counts.get("attempted_packets", 0) for one in mine)


def intended_packets(readings: Readings) -> int:
    """Return the intended load in packets: what was asked for, else what was attempted."""
    asked = asked_packets(readings)
    if asked is None:
        return readings.count("sender", "attempted_packets")
    return asked + fault_packets(readings)


def sent_packets(readings: Readings) -> int:
    """Return the packets that the kernel took from the senders."""
    return readings.count("sender", "sent_packets")


def received_packets(readings: Readings) -> int:
    """Return the packets of this phase that applications read, each once."""
    return readings.count("receiver", "received_packets")


def unsent_packets(readings: Readings) -> int:
    """Return the packets that were intended and never offered to the network."""
    taken = sent_packets(readings) + readings.count("sender", "eperm")
    return intended_packets(readings) - taken
