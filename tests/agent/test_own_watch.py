"""What an agent does while it sends and the controller is late to ask what was changed."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Optional

import pytest

from udpbench.agent.own_watch import LATE_NS, LOOK_NS, OwnWatch
from udpbench.errors import SafetyError
from udpbench.protocol import EVERY_PORT, Hop, Passage

PLACE = ("eth0", "", "")
HOP = Hop("10.1.0.2", "10.1.0.1", "unicast", "eth0", None, "02:00:00:00:00:01")
WAY = Passage((HOP,), (), (), None, None, (), (), stations=(("02:00:00:00:00:01", "eth1"),))


class Sender:
    """An agent that sends: what was changed there, and the way that its packets take."""

    def __init__(self) -> None:
        self.counts = {"changed.routes": 0, "changed.queueing": 0}
        self.way = WAY
        self.stopped = 0
        self.looks = 0
        self.watch = OwnWatch("left", self._counted)

    def _counted(self, place: tuple[str, str, str]) -> dict[str, int]:
        assert place == PLACE
        self.looks += 1
        return dict(self.counts)

    def proven(self) -> None:
        """Let the controller ask for the way, and what was changed; then a phase begins."""
        assert self.way == self.watch.know(lambda: self.way)
        self.watch.answer(PLACE)
        self.watch.begin(0)

    def look(self, now_ns: int) -> Optional[int]:
        """Look, and count what was stopped."""
        return self.watch.look(now_ns, self.stop)

    def stop(self) -> None:
        """Count it."""
        self.stopped += 1


def test_it_looks_itself_only_where_nobody_asks_in_time() -> None:
    """A host whose changes nobody asks for, as in a built-in lab, is not looked at."""
    sender = Sender()
    assert None is sender.look(10**12)
    sender.proven()
    assert LATE_NS == sender.look(LATE_NS - 1)
    assert 1 == sender.looks
    assert LATE_NS + LOOK_NS == sender.look(LATE_NS)
    assert LATE_NS + LOOK_NS == sender.look(LATE_NS + 1)
    assert (2, 0) == (sender.looks, sender.stopped)


MOVED = replace(WAY, hops=(replace(HOP, mac="02:00:00:00:00:66"),))
FORGOTTEN = replace(WAY, hops=(replace(HOP, mac=None),), stations=())
FLOODED = replace(WAY, stations=(("02:00:00:00:00:01", EVERY_PORT),))


@pytest.mark.parametrize(
    ("counter", "way", "stops"),
    [
        ("changed.routes", MOVED, True),
        ("changed.routes", replace(WAY, hops=()), True),
        ("changed.routes", replace(WAY, unread=("a rule",)), True),
        ("changed.routes", replace(WAY, outer=(HOP,)), True),
        ("changed.routes", FLOODED, True),
        ("changed.routes", WAY, False),
        ("changed.routes", FORGOTTEN, False),
        ("changed.queueing", MOVED, False),
    ],
)
def test_what_leads_packets_elsewhere_stops_them(counter: str, way: Passage, stops: bool) -> None:
    """And the next question of the controller has it as its answer, once."""
    sender = Sender()
    sender.proven()
    sender.counts[counter] += 1
    sender.way = way
    sender.look(LATE_NS)
    assert stops == bool(sender.stopped)
    if stops:
        assert None is sender.look(2 * LATE_NS)
        with pytest.raises(SafetyError, match="routes were changed there while packets were sent"):
            sender.watch.answer(PLACE)
    assert sender.counts == sender.watch.answer(PLACE)


def test_an_interface_that_is_gone_stops_what_sends() -> None:
    """And ends no agent."""
    sender = Sender()

    def gone() -> Passage:
        if sender.counts["changed.routes"]:
            raise OSError(errno.ENODEV, "no such device")
        return WAY

    sender.watch.know(gone)
    sender.watch.answer(PLACE)
    sender.watch.begin(0)
    sender.counts["changed.routes"] += 1
    sender.look(LATE_NS)
    assert 1 == sender.stopped
    with pytest.raises(SafetyError, match="links were changed"):
        sender.watch.answer(PLACE)


def test_who_was_forgotten_is_to_be_the_same() -> None:
    """Whoever answers after a neighbour that was silent, or while the controller proves again."""
    for ask_again in (False, True):
        sender = Sender()
        sender.proven()
        for now_ns, way in ((10**15, FORGOTTEN), (2 * 10**15, MOVED)):
            sender.counts["changed.routes"] += 1
            sender.way = way
            if ask_again and way is FORGOTTEN:
                sender.proven()
            sender.look(now_ns)
        assert 1 == sender.stopped


def test_a_way_that_is_not_known_is_another() -> None:
    """Workers that are closed take with them what they were stopped for."""
    sender = Sender()
    sender.watch.answer(PLACE)
    sender.watch.begin(0)
    sender.counts["changed.routes"] += 1
    sender.look(LATE_NS)
    assert 1 == sender.stopped
    sender.watch.forget()
    assert sender.counts == sender.watch.answer(PLACE)
