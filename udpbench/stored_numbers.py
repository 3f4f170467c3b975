"""The numbers of a stored trial, nearly all of its text: cut out of it, and each read once.

Counters before a phase are those after the phase before it, and histograms repeat the same pairs
of a bucket and a count in trial after trial. What is cut out leaves its number in its place, and
only goes back if every number is seen again: whatever is written in another form is not cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain

from udpbench.json_lines import ITEM_BYTES, LIST_BYTES, parsed_bytes
from udpbench.model.record import Phase, Snapshot

PAIRS_KEPT = 2**16
"""From so many different pairs of histograms on no further ones are kept once."""
PAIR_BYTES = LIST_BYTES + 3 * ITEM_BYTES
"""Memory of a pair of a histogram, for which the text has two commas."""
_SNAPSHOT = b'{"host":"","clock_ns":0,"counters":{%b}}'
_PAIR = re.compile(rb"(0|[1-9][0-9]{0,17}),(0|[1-9][0-9]{0,17})")
_MARKER = -1
"""In place of a count, which is never negative."""


class CutTrial:
    """The text of a trial without the numbers of its counters and histograms."""

    def __init__(self, text: bytes) -> None:
        """ValueError if something has no end."""
        uncounted, self._counters = _cut(text, b'"counters":{', b"}", b'"":%d')
        self.rest, self._counts = _cut(uncounted, b'"counts":[[', b"]]", b"%%d,%d" % _MARKER)
        commas, others, left = (each.count(b",") for each in (text, uncounted, self.rest))
        cut_bytes = ITEM_BYTES * (commas - others) + PAIR_BYTES * (others - left) // 2
        characters_bytes = (2 if text.isascii() else 5) * len(text)
        self.cost_bytes = parsed_bytes(self.rest) + characters_bytes + cut_bytes
        """About the most memory that all of it takes as Python's objects."""

    def put_back(
        self,
        phases: Iterable[Phase],
        read: Callable[[bytes], Snapshot],
        known: Pairs,
    ) -> None:
        """Put the numbers back into phases that were read from the rest; ValueError if in vain.

        Counters are read by validating the text of a snapshot.
        """
        places: list[int] = []
        counters: dict[bytes, dict[str, int]] = {}
        pairs: list[int] = []
        for phase in phases:
            for group in (phase.before, phase.after):
                for host, snapshot in group.items():
                    (place,) = snapshot.counters.values()
                    places.append(place)
                    text = self._counters[place]
                    if text not in counters:
                        counters[text] = read(_SNAPSHOT % text).counters
                    group[host] = replace(snapshot, counters=counters[text])
            for stats in chain(phase.stats, phase.losses):
                for name, histogram in stats.histograms.items():
                    if histogram.counts:
                        ((place, _),) = histogram.counts
                        pairs.append(place)
                        counts = tuple(map(known.__getitem__, self._counts[place].split(b"],[")))
                        stats.histograms[name] = replace(histogram, counts=counts)
        if sorted(places) != [*range(len(self._counters))]:
            raise ValueError("counters that are of no snapshot")
        if sorted(pairs) != [*range(len(self._counts))]:
            raise ValueError("counts that are of no histogram")


class Pairs(dict[bytes, tuple[int, int]]):
    """Text of a bucket and its count → both, once of many histograms."""

    def __missing__(self, text: bytes) -> tuple[int, int]:
        match = _PAIR.fullmatch(text)
        if match is None:
            raise ValueError("not a pair of a histogram")
        pair = int(match[1]), int(match[2])
        if len(self) < PAIRS_KEPT:
            self[text] = pair
        return pair


def _cut(text: bytes, opening: bytes, closing: bytes, marker: bytes) -> tuple[bytes, list[bytes]]:
    """Return a text with a marker in place of all that lies between two others, and what lay."""
    first, *parts = text.split(opening)
    rest, within = [first], []
    for place, part in enumerate(parts):
        end = part.index(closing)
        within.append(part[:end])
        rest += (opening, marker % place, part[end:])
    return b"".join(rest), within
