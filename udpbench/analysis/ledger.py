"""The ledger: where every packet of a phase went; what no stage explains is ``unaccounted``.

Adds up what the table of stages says, with its sign, and rounds nothing away.
"""

from __future__ import annotations

from udpbench.analysis.intended import (
    asked_packets,
    intended_packets,
    received_packets,
    sent_packets,
    unsent_packets,
)
from udpbench.analysis.readings import Readings
from udpbench.analysis.spans import Span, exactly
from udpbench.analysis.stages import BEFORE_SENT, STAGES, Stage
from udpbench.analysis.usage import unlogged_packets
from udpbench.model import Entry, Ledger

__all__ = [
    "BEFORE_SENT",
    "STAGES",
    "asked_packets",
    "intended_packets",
    "make_ledger",
    "received_packets",
    "sent_packets",
    "unsent_packets",
]


def make_ledger(readings: Readings) -> Ledger:
    """Return where every packet of a phase went: intended = Σ entries + received + unaccounted."""
    found = [(stage, stage.packets(readings)) for stage in STAGES]
    entries = tuple(_entry(stage, packets, readings) for stage, packets in found)
    explained = sum((packets for _, packets in found if packets is not None), exactly(0))
    # A packet that could not be logged ended there, although the application had read it.
    received = received_packets(readings) - unlogged_packets(readings)
    intended = intended_packets(readings)
    remainder = _nearest_to_0(intended - received, explained)
    return Ledger(intended, received, entries, remainder)


def _nearest_to_0(lost: int, explained: Span) -> int:
    """Return what remains unexplained at least: 0 where the stages' numbers may be all of it."""
    if explained.low <= lost <= explained.high:
        return 0
    return lost - (explained.high if lost > explained.high else explained.low)


def _entry(stage: Stage, packets: Span | None, readings: Readings) -> Entry:
    also = {
        readings.display(stage.role, one.name).removeprefix("Δ "): one.reads(readings)
        for one in stage.also
    }
    for reason in stage.reasons:
        also[f"reason.{reason}"] = readings.counter(stage.role, f"reason.{reason}") or None
    return Entry(
        stage.name,
        packets.low if packets is not None else None,
        readings.display(stage.role, stage.source),
        at_most=packets.high if packets is not None and packets.high != packets.low else None,
        parts=_parts(stage, readings),
        also={name: value for name, value in also.items() if value is not None},
    )


def _parts(stage: Stage, readings: Readings) -> dict[str, int]:
    """Return where exactly a stage's packets were counted, as far as its counters say."""
    kind, _, rest = stage.parts.partition(".")
    if not stage.parts:
        return {}
    if kind == "worker":
        counted = (*readings.phase.stats, *readings.phase.faults)
        return {s.worker: s.counts[rest] for s in counted if s.counts.get(rest)}
    if kind == "machine":
        return readings.machine_by_name(stage.role, rest)
    if kind == "socket":
        return _by_socket(readings)
    return readings.by_name(stage.role, stage.parts)


def _by_socket(readings: Readings) -> dict[str, int]:
    """Return the drops of each receiving socket by the workers that read it."""
    readers: dict[int, list[str]] = {}
    for stats in (*readings.workers("receiver"), *readings.phase.faults):
        for inode in stats.socket_inodes:
            readers.setdefault(inode, []).append(stats.worker)
    found = {
        ", ".join(names): readings.counter("receiver", f"socket.{inode}.drops")
        for inode, names in readers.items()
    }
    return {names: drops for names, drops in found.items() if drops}
