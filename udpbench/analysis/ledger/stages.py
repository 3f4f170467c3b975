"""The stages where a packet can end, in its order; the rows are with the places they belong to.

To add a stage, add its name to LEDGER_STAGES in ``model`` and its row to ``ROWS`` of its place;
CONTRIBUTING.md has the rest.
"""

from __future__ import annotations

from dataclasses import replace

from udpbench.analysis.ledger import application, before_ip, between, ip, sender, sockets
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.readings import CounterView, Readings

BEFORE_SENT = ("unsent", "tx_policy", "tx_netfilter")
"""Stages of packets that the kernel never accepted: they are not part of ``sent``."""


def _proven(row: Stage) -> Stage:
    """Return a row that is not observable where its counters are proven not to move, or hidden.

    What moved all the same is counted as ever; only a 0 proves nothing there. A count that a worker
    alone has is unknown where one did not say it.
    """

    def packets(readings: CounterView) -> Span | None:
        kept, key = readings.kept, ("packets", row.name)
        if key not in kept:
            kept[key] = read(readings)
        known: Span | None = kept[key]
        return known

    def read(readings: CounterView) -> Span | None:
        span, way, node = row.packets(readings), readings.receiving, readings.at(row.part)
        field = way.adds.get(row.name)
        if field is not None and any(field not in stats.counts for stats in node.workers):
            return None
        hidden = row.name in way.hides or node.is_unmoved(row.name)
        return None if span == exactly(0) and hidden else span

    def most(readings: Readings) -> int | None:
        limit = row.most(readings)
        return None if limit == 0 and readings.at(row.part).is_unmoved(row.name) else limit

    return replace(row, packets=packets, most=most)


PLACES = (sender, between, before_ip, ip, sockets, application)
STAGES = tuple(_proven(row) for place in PLACES for row in place.ROWS)
