"""The ledger: where every packet of a phase went; what no stage explains is ``unaccounted``.

Adds up the table of stages, with signs, and rounds nothing away. On hosts that others use, too,
``shared_hosts`` says how far each stage is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

from udpbench.analysis.ledger import ip
from udpbench.analysis.ledger.application import lost_answers
from udpbench.analysis.ledger.between import AHEAD
from udpbench.analysis.ledger.forwarding import undecided_skbs
from udpbench.analysis.ledger.intended_load import intended_packets, kept_packets
from udpbench.analysis.ledger.mac_frames import damaged_frames
from udpbench.analysis.ledger.shared_hosts import divide
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.sockets import full_buffers_of_others, total_packets
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.ledger.stages import BEFORE_SENT, stages_of
from udpbench.analysis.readings import Readings
from udpbench.analysis.worker_use import unlogged_packets
from udpbench.model.result import Ledger, LedgerEntry

REASON_GROUPS = ("reason", "reason_portless")
"""The kernel's drop reasons of the traffic's ports, and of what may be the traffic's."""
OR = " or "
"""Between the stages of a place that is several."""
UNOBSERVED = "not observable: intended − received − all other stages"
"""Source of a stage that has no counter, on hosts that others use, too."""


@lru_cache(maxsize=2)  # several checks ask for that of one phase
def make_ledger(readings: Readings) -> Ledger:
    """Return where every packet of a phase went: intended = Σ entries + received + unaccounted."""
    # A packet that could not be logged ended in app_log, although the application had read it; one
    # whose answer did not come back in app_unanswered or answer_lost.
    received = kept_packets(readings) - unlogged_packets(readings)
    intended = intended_packets(readings)
    if not readings.built_in_lab:
        return _of_shared_hosts(readings, intended, received)
    spans = {stage: stage.packets(readings) for stage in stages_of(readings)}
    entries = tuple(_entry(stage, span, readings) for stage, span in spans.items())
    ended = {stage.name: span for stage, span in spans.items() if span is not None}
    explained = total_packets(ended, readings)
    nodes, end = undecided_skbs(readings), ip.undecided_skbs(readings.receiver)
    explained = Span(explained.low + nodes.low + end, explained.high - nodes.high - end)
    remainder = _nearest_to_0(intended - received, explained)
    return Ledger(intended, received, entries, remainder)


def _of_shared_hosts(readings: Readings, intended: int, received: int) -> Ledger:
    shares, remainder = divide(readings, intended - received)
    entries = []
    for stage, share in shares.items():
        entry = _entry(stage, share.packets, readings)
        if not share.observed:
            packets, most = share.packets.low or None, share.packets.high
            entry = replace(entry, packets=packets, at_most=most, source=UNOBSERVED)
        entries.append(replace(entry, others_packets=share.others_packets))
    ledger = Ledger(intended, received, tuple(entries), remainder)
    return _of_client(ledger, readings) if readings.record.trial.served else ledger


def _of_client(ledger: Ledger, readings: Readings) -> Ledger:
    """Return a ledger in which all that is ahead of the receiver is a single stage."""
    here_too = {stage.name for stage in stages_of(readings) if stage.part == "receiver"}
    ahead = [entry.stage for entry in ledger.entries if entry.stage not in here_too]
    span = lost_at_any(ledger, ahead)
    most = span.high if span.high != span.low else None
    first = LedgerEntry(AHEAD.name, span.low, AHEAD.source, at_most=most)
    here = (entry for entry in ledger.entries if entry.stage not in ahead)
    return replace(ledger, entries=(first, *here))


def lost_at_any(ledger: Ledger, stages: Collection[str]) -> Span:
    """Return how many packets may have ended at any of some stages: what the others leave."""
    inside = sum((_span(entry) for entry in ledger.entries if entry.stage in stages), exactly(0))
    others = sum(
        (_span(entry) for entry in ledger.entries if entry.stage not in stages), exactly(0)
    )
    lost = ledger.lost_packets
    return Span(max(inside.low, lost - others.high), min(inside.high, lost - others.low))


def lost_by_place(ledger: Ledger) -> dict[str, int]:
    """Return place → packets that ended there, in the packet's order; empty if none is missing.

    A place is a stage with what it lost for certain, or the stages that share all the rest, because
    each is an interval: ``link or rx_ring``. What counters say beyond what is missing is no loss.
    """
    before = sum(e.packets or 0 for e in ledger.entries if e.stage in BEFORE_SENT)
    is_lossy = ledger.intended_packets - ledger.received_packets > before
    ended = {
        entry.stage: entry.packets or 0
        for entry in ledger.entries
        if is_lossy or entry.stage in BEFORE_SENT
    }
    shared = ledger.lost_packets - sum(ended.values())
    place = OR.join(entry.stage for entry in ledger.entries if _span(entry).high > _span(entry).low)
    if is_lossy and place and shared > 0:
        ended[place] = ended.get(place, 0) + shared
    return {place: packets for place, packets in ended.items() if packets > 0}


def worst_place(lost: Mapping[str, int]) -> str:
    """Return the place with most lost packets, a stage before several; empty if none."""
    return max(lost, key=lambda place: lost[place], default="")


def packets_at(lost: Mapping[str, int], place: str) -> int:
    """Return how many packets of ``lost_by_place`` ended at the stages of a place."""
    stages = set(place.split(OR))
    return sum(packets for each, packets in lost.items() if stages.issuperset(each.split(OR)))


def intervals(ledger: Ledger, place: str) -> dict[str, Span]:
    """Return each stage of a place with the least and the most that ended there."""
    stages = place.split(OR)
    return {entry.stage: _span(entry) for entry in ledger.entries if entry.stage in stages}


def unobserved(ledger: Ledger) -> tuple[str, ...]:
    """Return the stages without a counter at which packets may have ended."""
    return tuple(
        entry.stage for entry in ledger.entries if entry.source == UNOBSERVED and entry.at_most
    )


def is_explained(ledger: Ledger) -> bool:
    """Return whether counters may explain every loss."""
    hidden = unobserved(ledger)
    return ledger.unaccounted == 0 and not (hidden and lost_at_any(ledger, hidden).low)


def _span(entry: LedgerEntry) -> Span:
    low = entry.packets or 0
    return Span(low, low if entry.at_most is None else entry.at_most)


def _in_words(span: Span) -> str:
    if span.low == span.high:
        return str(span.low)
    return f"{span.low} to {span.high}" if span.low > 0 else f"up to {span.high}"


def occupied_stages(ledger: Ledger) -> str:
    """Return the stages where packets ended, or may have: ``rx_ip 3, udp_rcvbuf up to 2``."""
    hidden = unobserved(ledger)
    stages = [
        f"{entry.stage} {_in_words(_span(entry))}"
        for entry in ledger.entries
        if _span(entry).high and entry.stage not in hidden
    ]
    if hidden and (lost := lost_at_any(ledger, hidden)).high > 0:
        stages.append(f"{OR.join(hidden)} {_in_words(lost)} (not observable)")
    if ledger.unaccounted:
        stages.append(f"unaccounted {ledger.unaccounted:+d}")
    return ", ".join(stages)


def _nearest_to_0(lost: int, explained: Span) -> int:
    """Return the least that remains unexplained: 0 if the stages' numbers may explain it all."""
    if explained.low <= lost <= explained.high:
        return 0
    return lost - (explained.high if lost > explained.high else explained.low)


def _entry(stage: Stage, packets: Span | None, readings: Readings) -> LedgerEntry:
    node = stage.nodes(readings)
    also = {node.display(o.name).removeprefix("Δ "): o.reads(readings) for o in stage.also}
    groups = [group for group in REASON_GROUPS if node.has(group)]
    for name in (f"{group}.{reason}" for reason in stage.reasons for group in groups):
        also[name] = node.counter(name) or None
    return LedgerEntry(
        stage.name,
        packets.low if packets is not None else None,
        node.display(stage.source),
        at_most=packets.high if packets is not None and packets.high != packets.low else None,
        parts=_parts(stage, readings),
        also={name: value for name, value in also.items() if value is not None},
        others_packets=full_buffers_of_others(readings) if stage.name == "udp_rcvbuf" else 0,
        node=stage.node or None,
    )


def _parts(stage: Stage, readings: Readings) -> dict[str, int]:
    """Return where exactly a stage's packets were counted, if its counters say so."""
    kind, _, rest = stage.parts.partition(".")
    if not stage.parts:
        return {}
    if kind == "worker":
        counted = (*readings.stats, *readings.loss_workers)
        return {s.worker: s.counts[rest] for s in counted if s.counts.get(rest)}
    if kind == "machine":
        return stage.nodes(readings).machine_by_name(rest)
    if kind == "damaged":
        return damaged_frames(readings)
    if kind == "socket":
        return _by_socket(readings)
    if kind == "answers":
        return {name: span.low for name, span in lost_answers(readings).items() if span.low}
    return stage.nodes(readings).by_name(stage.parts)


def _by_socket(readings: Readings) -> dict[str, int]:
    """Return the drops of each receiving socket by the workers that read it."""
    readers: dict[int, list[str]] = {}
    for stats in (*readings.receiver.workers, *readings.loss_workers):
        for inode in stats.socket_inodes:
            readers.setdefault(inode, []).append(stats.worker)
    return {
        ", ".join(names): drops
        for inode, names in readers.items()
        if (drops := readings.receiver.counter(f"socket.{inode}.drops"))
    }
