"""The ledger of hosts that others use, too: each stage as narrow as the numbers allow.

What was lost is exact, whatever others do: workers counted what they sent and read. A counter that
others can move says how many packets of the traffic ended at its stage at most. Owns that
arithmetic; knows no counter, and is never used in the built-in lab, where nobody else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from udpbench.analysis.ledger.sender import refusals
from udpbench.analysis.ledger.skbs import Span, exactly, narrowed, sum_of
from udpbench.analysis.ledger.sockets import socket_drops
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.ledger.stages import stages_of
from udpbench.analysis.readings import Readings


@dataclass(frozen=True)
class Share:
    """What one stage may have of what was lost."""

    packets: Span
    observed: bool
    """False if no counter says anything: its packets follow from all other stages alone."""
    others_packets: int
    """By how much its counters moved beyond that."""


def divide(readings: Readings, lost: int) -> tuple[dict[Stage, Share], int]:
    """Return how the lost packets of a phase may be divided, and how many remain.

    Those are above 0 if more was lost than all upper bounds explain, below 0 if counters of the
    traffic's own say that more was lost than was. The drops of the traffic's own sockets are one
    number for several stages, as are its refused calls: such a sum is divided like any stage, and
    then among them.
    """
    counted = {stage: stage.packets(readings) for stage in stages_of(readings)}
    bounds = {stage: stage.bounds(readings) for stage in counted}
    parts = {
        stage.name: Span(least, max(least, lost if most is None else most))
        for stage, (least, most) in bounds.items()
    }
    packets, explained = _solution(parts, (refusals(readings), socket_drops(readings)), lost)
    shares = {}
    for stage, span in counted.items():
        ours = packets[stage.name]
        moved = span.low if span is not None and stage.scope != "worker" else 0
        least, most = bounds[stage]
        observed = (span is not None and most is not None) or bool(least and ours.low)
        theirs = max(moved - ours.high, stage.others_skbs(readings))
        shares[stage] = Share(ours, observed, max(theirs, 0))
    return shares, lost - explained


def _solution(
    parts: dict[str, Span], sums: Iterable[tuple[tuple[str, ...], Span]], lost: int
) -> tuple[dict[str, Span], int]:
    """Return each stage's packets, and how many they are together: nearest to what was lost."""
    groups: dict[str, dict[str, Span]] = {}
    for names, total in sums:
        if members := _limited({name: parts.pop(name) for name in names}, total.high):
            reach, group = sum_of(members), " or ".join(names)
            most = max(total.low, min(reach.high, total.high))
            parts[group], groups[group] = Span(max(reach.low, total.low), most), members
    reach = sum_of(parts)
    explained = min(max(lost, reach.low), reach.high)
    packets = narrowed(exactly(explained), parts)
    for group, members in groups.items():
        packets |= narrowed(packets.pop(group), members)
    return packets, explained


def _limited(parts: Mapping[str, Span], most: int) -> dict[str, Span]:
    """Return parts whose lower bounds together are no more than a number.

    Drop reasons know the port alone, and another socket may have the same one at another address.
    """
    excess = max(sum_of(parts).low - most, 0)
    return {name: Span(max(part.low - excess, 0), part.high) for name, part in parts.items()}
