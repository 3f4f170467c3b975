"""Differences of counters: the only place where two readings of a host's counter are subtracted.

A u32 counter is taken modulo 2^32; any other counter that went backwards has no difference, and
its name is kept, because a host that rebooted or a reset driver makes the trial invalid.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from operator import sub

from udpbench.model.limits import NUMBER
from udpbench.model.record import Snapshot

U32_BLOCKS = ("interrupt.", "softirq.", "softnet.")
"""Counters that the kernel keeps in 32 bits and that wrap: those of /proc/interrupts and
/proc/softirqs, softnet_stat columns."""
U32_DROPS = re.compile(r"(?:socket|stranger)\..*\.drops", re.DOTALL)
"""As are sk_drops."""


SPECIAL = frozenset("*?[")
LITERAL = re.compile(r"[^*?\[]*")
MOST_KEPT = 2**10
"""Names of counters among which those that match are kept: a trial has those of the one before."""


def is_u32(name: str) -> bool:
    """Return whether the kernel keeps a counter in 32 bits."""
    return name.startswith(U32_BLOCKS) or (
        name.endswith(".drops") and U32_DROPS.fullmatch(name) is not None
    )


@lru_cache(maxsize=MOST_KEPT)
def _is_shell(pattern: str) -> bool:
    return not SPECIAL.isdisjoint(pattern)


@lru_cache(maxsize=64)
def _layout(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Return block → the names that are in it."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(name.partition(".")[0], []).append(name)
    return blocks


@lru_cache(maxsize=MOST_KEPT)
def _matching(names: tuple[str, ...], pattern: str) -> tuple[str, ...]:
    return tuple(name for name in names if fnmatchcase(name, pattern))


@dataclass(frozen=True)
class Deltas:
    """What one host's counters did between two snapshots."""

    host: str
    elapsed_ns: int
    values: dict[str, int]
    backwards: tuple[str, ...]
    """Counters that read less after than before, as ``name: before > after``."""

    def total(self, pattern: str) -> int | None:
        """Return the sum over the counters that match a shell pattern; None if none does."""
        if not _is_shell(pattern):
            return self.values.get(pattern)
        matching = self.matching(pattern)
        return sum(matching.values()) if matching else None

    def matching(self, pattern: str) -> dict[str, int]:
        """Return the counters that match a shell pattern, by name."""
        block = pattern.partition(".")[0]
        among = self.values if _is_shell(block) else self.block(block)
        if len(among) > MOST_KEPT:
            if among is not self.values:
                among = self.beginning(LITERAL.match(pattern)[0])  # type: ignore[index]
            return {name: value for name, value in among.items() if fnmatchcase(name, pattern)}
        return {name: among[name] for name in _matching(tuple(among), pattern)}

    def block(self, name: str) -> dict[str, int]:
        """Return the counters of a block: those whose names begin with ``softnet.``."""
        return self._blocks.get(name, {})

    def beginning(self, prefix: str) -> dict[str, int]:
        """Return the counters of a block whose names begin with ``link.eth0.``; of a small one all.

        A host of a thousand interfaces has some ten thousand, and each asks for its own.
        """
        block = prefix.partition(".")[0]
        counters = self.block(block)
        if len(counters) <= MOST_KEPT:
            return counters
        if block not in self._in_order:
            self._in_order[block] = sorted(counters)
        names = self._in_order[block]
        first = bisect_left(names, prefix)
        last = bisect_right(names, prefix, key=lambda name: name[: len(prefix)])
        return {name: counters[name] for name in names[first:last]}

    @cached_property
    def _in_order(self) -> dict[str, list[str]]:
        """Block → the names of its counters in order, of those that ``beginning`` was asked for."""
        return {}

    def numbered(self, block: str) -> dict[int, dict[str, int]]:
        """Return number → the counters of a block that it is in, by the rest of their names.

        Of ``cpu.0.idle_ns`` it is 0, and ``idle_ns`` the rest; other counters are left out.
        """
        if block not in self._numbered:
            self._numbered[block] = _by_number(self.block(block))
        return self._numbered[block]

    @cached_property
    def _numbered(self) -> dict[str, dict[int, dict[str, int]]]:
        """What ``numbered`` returned: searching all counters for each CPU took their square."""
        return {}

    def has(self, block: str) -> bool:
        """Return whether any counter belongs to a block: ``softnet``, ``cpu``."""
        return block in self._blocks

    @cached_property
    def _blocks(self) -> dict[str, dict[str, int]]:
        """The counters by the part of their name before the first dot.

        Of some hundred counters, few can match one of the seventy patterns of a trial; searching
        only those cut the time to judge a trial from 11 to 4 ms.
        """
        values, names = self.values, tuple(self.values)
        layout = _layout(names) if len(names) <= MOST_KEPT else _layout.__wrapped__(names)
        return {block: {name: values[name] for name in own} for block, own in layout.items()}

    def went_backwards(self, pattern: str) -> tuple[str, ...]:
        """Return those of ``backwards`` whose counter matches a shell pattern."""
        return tuple(
            text for text in self.backwards if fnmatchcase(text.partition(": ")[0], pattern)
        )


def number_of(text: str) -> int | None:
    """Return the number in the name of a counter; None if it is none that a host has."""
    return int(text) if re.fullmatch(NUMBER, text) else None


def _by_number(counters: dict[str, int]) -> dict[int, dict[str, int]]:
    numbers: dict[int, dict[str, int]] = {}
    for name, value in counters.items():
        _, text, rest = (*name.split(".", 2), "", "")[:3]
        number = number_of(text)
        if number is not None and rest:
            numbers.setdefault(number, {})[rest] = value
    return numbers


def since_u32(first: int, last: int) -> int:
    """Return how far a counter of 32 bits went, such as a socket's drops."""
    return (last - first) % 2**32


def deltas(before: Snapshot, after: Snapshot) -> Deltas:
    """Return the differences of every counter that both snapshots of one host hold."""
    values: dict[str, int] = {}
    first_ones, last_ones = before.counters, after.counters
    # The same names in the same order is what nearly all are; then no name needs a look.
    if [*first_ones] == [*last_ones]:
        rises = [*map(sub, last_ones.values(), first_ones.values())]
        if not rises or (min(rises) >= 0 and max(rises) < 2**32):
            values = dict(zip(first_ones, rises))
            return Deltas(after.host, after.clock_ns - before.clock_ns, values, ())
    backwards = []
    for name, first in before.counters.items():
        last = after.counters.get(name)
        if last is None:
            continue
        rise = last - first
        if 0 <= rise < 2**32:  # nearly all: what the kernel keeps in 32 bits needs no question
            values[name] = rise
        elif is_u32(name):
            values[name] = since_u32(first, last)
        elif rise < 0:
            backwards.append(f"{name}: {first} > {last}")
        else:
            values[name] = rise
    return Deltas(after.host, after.clock_ns - before.clock_ns, values, tuple(backwards))


class HostDeltas(Mapping[str, Deltas]):
    """Host → the differences of its counters, made when they are first asked for.

    Whoever asks what workers counted, or of the path phase, needs none.
    """

    def __init__(self, edges: Mapping[str, tuple[Snapshot, Snapshot]]) -> None:
        self._edges = edges
        self._made: dict[str, Deltas] = {}

    def __getitem__(self, host: str) -> Deltas:
        if host not in self._made:
            self._made[host] = deltas(*self._edges[host])
        return self._made[host]

    def __contains__(self, host: object) -> bool:
        return host in self._edges

    def __iter__(self) -> Iterator[str]:
        return iter(self._edges)

    def __len__(self) -> int:
        return len(self._edges)
