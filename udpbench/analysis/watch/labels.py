"""The labels of sockets in an exporter's counters, and how many there may be.

Whoever may open a socket chooses its process's name and port.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from udpbench.model.limits import is_system
from udpbench.printable import printable

OTHER = "other"
UNKNOWN = "unknown"
"""A process that was not seen, or a stage that no counter tells."""
USER_SETS, GROUP_SETS = 64, 128
"""Most sets of labels of a user's sockets, and of all system users' or of all others'."""


class SocketLabels(NamedTuple):
    """By what sockets are told apart; others of the same are summed."""

    comm: str
    unit: str
    netns: str
    port: str
    family: str
    address: str = ""
    """Empty unless asked for."""


class Budget:
    """Which labels sockets may have."""

    def __init__(self) -> None:
        self.sets: dict[SocketLabels, int] = {}
        """Labels → the user for whom they count."""
        self._taken: Counter[int | str] = Counter()
        """How many of them a user has, and a group of users."""

    def has_room(self, labels: SocketLabels, user: int, loses: bool) -> bool:
        """Return whether these labels may be shown: those of sockets that lose have twice as much.

        Of a user's, who may have many, and of all system users' or all others'.
        """
        if labels in self.sets:
            return True
        group, share = f"system {is_system(user)}", 1 if loses else 2
        taken = self._taken
        if taken[user] >= USER_SETS // share or taken[group] >= GROUP_SETS // share:
            return False
        self.sets[labels] = user
        taken.update((user, group))
        return True


def folded(labels: SocketLabels) -> SocketLabels:
    """Return the labels of all sockets for which there is no room."""
    address = OTHER if labels.address else ""
    return SocketLabels(OTHER, OTHER, OTHER, OTHER, labels.family, address)


# A process may open hundreds of sockets between two looks.
@lru_cache(maxsize=256)
def shown(process: str, unit: str, netns: str) -> tuple[str, str, str]:
    """Return the labels comm, unit and netns of a process's sockets."""
    comm = printable(process.rpartition(" ")[0], keep="") or UNKNOWN
    return comm, printable(unit, keep=""), printable(netns, keep="")
