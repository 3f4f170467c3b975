"""An agent's own look at the way of what it sends, where its controller is late to ask for it.

The controller asks each 50 ms, and decides; but it may wait for another host, be stopped or be cut
off, while workers send. Reads by what it is given; stops workers, and changes nothing else.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from udpbench.errors import SafetyError
from udpbench.protocol import Passage

LATE_NS = 75 * 10**6
"""After the controller's latest question: then the agent looks itself."""
LOOK_NS = 50 * 10**6
QUEUEING = "changed.queueing"
"""Which queue packets wait in leads them nowhere else."""
GONE = "changed.links"
Place = tuple[str, str, str]
"""The interfaces of which is asked what was changed."""


class OwnWatch:
    """What the controller knows of this host's way, and whether that is still so."""

    def __init__(self, name: str, counts: Callable[[Place], dict[str, int]]) -> None:
        self._name = name
        self._counts = counts
        self._asked: Optional[tuple[Place, dict[str, int]]] = None
        """The interfaces of which the controller asked last, and the answer."""
        self._way: Optional[tuple[Callable[[], Passage], Passage]] = None
        """How to ask for the way of what is sent here, and that which was proven."""
        self._due_ns = 0
        self._moved = ""

    def answer(self, place: Place) -> dict[str, int]:
        """Return what was changed; SafetyError if workers were stopped because of that."""
        moved, self._moved = self._moved, ""
        if moved:
            raise SafetyError(
                f"{moved} were changed there while packets were sent, and nobody asked for it in "
                "time: the path is no longer proven, so the senders were stopped; find out who "
                "changes that host, then repeat",
                self._name,
            )
        counts = self._counts(place)
        self._asked, self._due_ns = (place, counts), time.monotonic_ns() + LATE_NS
        return counts

    def know(self, ask: Callable[[], Passage]) -> Passage:
        """Return the way of what is sent here, and remember it for the controller to judge."""
        way = ask()
        known = self._way[1].as_now(way) if self._way is not None else None
        self._way = ask, known if known is not None else way
        return way

    def begin(self, at_ns: int) -> None:
        """Begin with a phase: the controller asks from then on."""
        self._due_ns = at_ns + LATE_NS

    def forget(self) -> None:
        """Forget what was changed: the workers are no more."""
        self._moved, self._way = "", None

    def look(self, now_ns: int, stop: Callable[[], object]) -> Optional[int]:
        """Look if that is due, and stop what sends if it goes elsewhere; return when to look again.

        What leaves its packets alone does not stop it. None: nobody has asked yet.
        """
        if self._asked is None or self._moved:
            return None
        if now_ns < self._due_ns:
            return self._due_ns
        place, before = self._asked
        try:
            counts = self._counts(place)
            names = [name for name in counts if counts[name] != before.get(name)]
            names = [name for name in names if name != QUEUEING]
            leads_elsewhere = bool(names) and not self._is_as_proven()
        except OSError:  # an interface is gone
            counts, names, leads_elsewhere = before, [GONE], True
        if leads_elsewhere:
            self._moved = ", ".join(name.partition(".")[2] for name in names)
            stop()
            return None
        self._asked, self._due_ns = (place, counts), now_ns + LOOK_NS
        return self._due_ns

    def _is_as_proven(self) -> bool:
        if self._way is None:
            return False
        ask, before = self._way
        known = before.as_now(ask())
        self._way = ask, known if known is not None else before
        return known is not None
