"""The stages where a packet can end, in its order; the rows are with the places they belong to.

To add a stage, add its name to LEDGER_STAGES in ``model`` and its row to ``ROWS`` of its place;
CONTRIBUTING.md has the rest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from udpbench.analysis.ledger import (
    application,
    before_ip,
    between,
    forwarding,
    ip,
    sender,
    sockets,
)
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.readings import CounterView, Readings

BEFORE_SENT = ("unsent", "tx_policy", "tx_netfilter")
"""Stages of packets that the kernel never accepted: they are not part of ``sent``."""


def _proven(row: Stage) -> Stage:
    """Return a row that is not observable where its counters are proven not to move, or hidden.

    What moved all the same is counted as ever; only a 0 proves nothing there. A difference between
    counters absorbs the errors of each, so that it is believed only where a known number was seen.
    A count that a worker alone has is unknown where one did not say it.
    """

    def packets(readings: CounterView) -> Span | None:
        kept, key = readings.kept, ("packets", row.name)
        if key not in kept:
            kept[key] = read(readings)
        known: Span | None = kept[key]
        return known

    def read(readings: CounterView) -> Span | None:
        span, way, node = row.packets(readings), readings.receiving, readings.at(row.part)
        if row.is_difference and node.is_disproven(row.name):
            return None
        field = way.adds.get(row.name)
        if field is not None and any(field not in stats.counts for stats in node.workers):
            return None
        hidden = row.name in way.hides or node.is_unmoved(row.name)
        return None if span == exactly(0) and hidden else span

    def most(readings: Readings) -> int | None:
        limit = row.most(readings)
        return None if limit == 0 and readings.at(row.part).is_unmoved(row.name) else limit

    return replace(row, packets=packets, most=most)


PLACES = (sender, between, forwarding, before_ip, ip, sockets, application)
STAGES = tuple(_proven(row) for place in PLACES for row in place.ROWS)
"""Those of a node in the middle once; ``stages_of`` has them for each."""
BEFORE_PROGRAM = tuple(row.name for place in (before_ip, ip, sockets) for row in place.ROWS)
"""Those of a receiving host before a program reads."""


@lru_cache(maxsize=64)
def _for_nodes(nodes: tuple[str, ...]) -> tuple[Stage, ...]:
    first = next(n for n, row in enumerate(STAGES) if row.part == "middle")
    rest = tuple(row for row in STAGES if row.part != "middle")
    rows = tuple(row for row in STAGES if row.part == "middle")
    own = tuple(_at_node(row, node) for node in nodes for row in rows)
    return (*rest[:first], *own, *rest[first:])


def stages_of(readings: CounterView) -> tuple[Stage, ...]:
    """Return the stages of a path: those of each node in the middle by its name."""
    return _for_nodes(tuple(readings.exits))


def _at_node(row: Stage, node: str) -> Stage:
    """Return a row of the middle as that of one node."""
    return replace(
        row,
        name=f"{node}.{row.name}",
        node=node,
        packets=lambda view: row.packets(view.only(node)),
        most=lambda readings: row.most(readings.only(node)),
        least=lambda readings: row.least(readings.only(node)),
        by_driver=lambda readings: row.by_driver(readings.only(node)),
    )
