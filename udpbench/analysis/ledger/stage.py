"""What a ledger stage is: how its packets are counted, shown, explained and limited.

One primary counter per place, never a sum of counters that see the same packet: the kernel counts a
single lost packet in up to five of them. An expression is None if the host cannot tell. ``packets``
takes the hosts for the traffic's alone; ``most`` holds whatever others send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Optional, TypeVar

from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.skbs import Segments, Span
from udpbench.analysis.readings import AnyNode, CounterView, NodeView, Readings
from udpbench.analysis.remedies import REMEDIES
from udpbench.model.limits import Part, Scope, stage_of

W = TypeVar("W", bound=CounterView)
Reading = Callable[[CounterView], Optional[int]]
Expression = Callable[[CounterView], Optional[Span]]
Limit = Callable[[Readings], Optional[int]]


@dataclass(frozen=True)
class Also:
    """A corroborating counter: shown with its stage, and expected between ``low`` and ``high``."""

    name: str
    reads: Limit
    low: Limit
    high: Limit
    next_step: str
    """What explains a value outside of them."""


@dataclass(frozen=True)
class Stage:
    """One place where a packet can end."""

    name: str
    part: Part
    """The part of the path: its nodes have the counters."""
    packets: Expression
    """Packets that ended here; None if this kernel or host cannot tell."""
    source: str
    """The expression in words, to check it by hand; placeholders are filled in."""
    means: str
    most: Limit = lambda _: None
    """At most so many packets of the traffic ended here, whoever else moves the counters; None if
    nothing limits them. Not asked of a worker that counted."""
    least: Limit = lambda _: 0
    """At least so many did, by counters that only the traffic moves."""
    counters: tuple[str, ...] = ()
    """Counters of the part's nodes that the expression reads; a decrease is a finding."""
    unit: Literal["packet", "skb"] = "packet"
    """What the counters count; with GSO or GRO an skb may hold many packets."""
    scope: Scope | Literal["worker"] = "namespace"
    by_driver: Callable[[Readings], tuple[str, ...]] = lambda _: ()
    """Further counters that the expression reads, by the drivers of the part's nodes."""
    parts: str = ""
    """Counters that say where exactly, by queue, CPU or kind: a pattern, ``worker.`` with a
    worker's field, ``machine.`` with a counter of the machine, or ``damaged.`` frames."""
    also: tuple[Also, ...] = ()
    reasons: tuple[str, ...] = ()
    """The kernel's drop reasons for an skb dropped here (``explain``); shown with the stage."""
    unprovoked: str = ""
    """Why a lab of namespaces cannot lose packets here on purpose; empty if it can."""
    no_other_reason: Callable[[CounterView], bool] = lambda _: False
    """Whether no skb is dropped here without one of them."""
    refuses: bool = False
    """Whether its counter alone says why packets end here: no CPU would be fast enough."""
    single_counter: bool = False
    """Whether one counter has all of it; others are differences, off by what arrived between two
    reads."""
    is_difference: bool = False
    """It is what is missing between two counters: not observable where a self-test did not see in
    it what was lost there on purpose."""
    meant_by: Literal["", "rules", "filter", "unbound"] = ""
    """Who refuses packets of a watched host here, as is meant: its rules, a socket's filter, or
    nobody, as no socket of it misses them."""
    changed_by: tuple[str, ...] = ()
    """What others may change so that packets end here."""
    node: str = ""
    """The node in the middle that counts it; empty: all nodes of the part."""

    def nodes(self, view: W) -> NodeView[W]:
        """Return the nodes that count it."""
        return (view.only(self.node) if self.node else view).at(self.part)

    def bounds(self, readings: Readings) -> tuple[int, int | None]:
        """Return the least and the most packets of the traffic that ended here, None if any may.

        Whoever else moves the counters: by workers' counts, by counters that only the traffic
        moves, and by the kernel's reasons, of which each skb holds a packet.
        """
        packets = self.packets(readings) if self.scope == "worker" else None
        if packets is not None:
            return packets.low, packets.high
        least, most = self.least(readings) or 0, self.most(readings)
        dropped = self.dropped_skbs(readings)
        if dropped is None:
            return least, most
        if most is not None:
            most = max(most, dropped.high)  # a counter may be gone, with its rule
            if self.no_other_reason(readings):
                most = min(most, dropped.high * skbs.most_packets(readings))
        return max(least, dropped.low), most

    def dropped_skbs(self, readings: CounterView) -> Span | None:
        """Return how many skbs to the traffic's ports were dropped here, by the kernel's reasons.

        At most those, too, whose ports could not be read. None without ``explain``.
        """
        ours, portless = (self._for_reasons(readings, group) for group in ("", "_portless"))
        return Span(ours, ours + portless) if ours is not None and portless is not None else None

    def others_skbs(self, readings: CounterView) -> int:
        """Return how many of others, to other ports, were; 0 without ``explain``."""
        return self._for_reasons(readings, "_others") or 0

    def _for_reasons(self, readings: CounterView, group: str) -> int | None:
        node = self.nodes(readings)
        if not node.has(f"reason{group}"):
            return None
        return node.total(*(f"reason{group}.{name}" for name in self.reasons))

    @property
    def helps(self) -> str:
        """What helps, in the imperative."""
        return REMEDIES[stage_of(self.name)].text


def of_workers(expression: Callable[[Readings], Span | None]) -> Expression:
    """Return an expression of what workers counted; None where there is no trial with any."""
    return lambda view: expression(view) if isinstance(view, Readings) else None


def at(part: Part, reads: Callable[[AnyNode], int | None]) -> Reading:
    """Return what is read of the nodes of one part as an expression."""
    return lambda readings: reads(readings.at(part))


def counter(part: Part, pattern: str) -> Reading:
    """Return the difference of counters as an expression."""
    return lambda readings: readings.at(part).counter(pattern)


def in_packets(stage: str, counted: Reading, each: Callable[[CounterView], Segments]) -> Expression:
    """Return an expression for the packets in a number of skbs; None stays unknown."""

    def known(readings: CounterView) -> Span | None:
        lost = counted(readings)
        return skbs.exactly(lost) if lost is not None else None

    return spanned(stage, known, each)


def spanned(stage: str, lost: Expression, each: Callable[[CounterView], Segments]) -> Expression:
    """Return the same of a number that may lie between two."""

    def packets(readings: CounterView) -> Span | None:
        span = lost(readings)
        if span is None:
            return None
        least, most = (
            skbs.lost_packets(readings, stage, number, each(readings))
            for number in (span.low, span.high)
        )
        return Span(least.low, most.high)

    return packets


def at_most(
    counted: Reading, packets_per_skb: Callable[[CounterView], int] = skbs.most_packets
) -> Reading:
    """Return the most packets in a number of skbs that others' may be among; None stays unknown."""

    def most(readings: CounterView) -> int | None:
        number = counted(readings)
        return max(number, 0) * packets_per_skb(readings) if number is not None else None

    return most
