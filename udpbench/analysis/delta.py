"""Differences of counters: the only place where two readings of one counter are subtracted.

A u32 counter is taken modulo 2^32; any other counter that went backwards has no difference, and
its name is kept, because a host that rebooted or a reset driver makes the trial invalid.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from udpbench.model import Snapshot

U32_COUNTERS = ("softnet.*", "socket.*.drops")
"""Counters that the kernel keeps in 32 bits (softnet_stat columns, sk_drops) and that wrap."""


@dataclass(frozen=True)
class Deltas:
    """What one host's counters did between two snapshots."""

    host: str
    elapsed_ns: int
    values: dict[str, int]
    backwards: tuple[str, ...]
    """Counters that read less after than before, as ``name: before > after``."""

    def total(self, pattern: str) -> int | None:
        """Return the sum over the counters that match a shell pattern; None where none does."""
        if not set(pattern) & set("*?["):
            return self.values.get(pattern)
        found = self.matching(pattern)
        return sum(found.values()) if found else None

    def matching(self, pattern: str) -> dict[str, int]:
        """Return the counters that match a shell pattern, by name."""
        return {name: value for name, value in self.values.items() if fnmatchcase(name, pattern)}

    def went_backwards(self, pattern: str) -> tuple[str, ...]:
        """Return those of ``backwards`` whose counter matches a shell pattern."""
        return tuple(
            text for text in self.backwards if fnmatchcase(text.partition(": ")[0], pattern)
        )


def deltas(before: Snapshot, after: Snapshot) -> Deltas:
    """Return the differences of every counter that both snapshots of one host hold."""
    values: dict[str, int] = {}
    backwards = []
    for name, first in before.counters.items():
        last = after.counters.get(name)
        if last is None:
            continue
        if any(fnmatchcase(name, pattern) for pattern in U32_COUNTERS):
            values[name] = (last - first) % 2**32
        elif last < first:
            backwards.append(f"{name}: {first} > {last}")
        else:
            values[name] = last - first
    return Deltas(after.host, after.clock_ns - before.clock_ns, values, tuple(backwards))
