"""Surveys of this machine at their times, and what of them may fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from analysis.test_sums import DNS
from control.fake import FakeAgent, World, facts

from udpbench.errors import AgentError, AgentLost
from udpbench.export.surveys import LATE_NS, Surveyed, observer, surveys
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import HostLook, Snapshot
from udpbench.model.survey import MachineLook, MachineRows, SpaceLook
from udpbench.protocol import VERBS, encode, in_rows

HERE = SpaceLook(1, "host", HostLook(Snapshot("here", 0, {}), (), ()))
LOOK = encode(MachineLook(0, (HERE,)))


class Surveyor(FakeAgent):
    """An agent whose third survey fails, and which loses an interface."""

    surveys = 0

    def _survey(self, **_: bool) -> MachineRows:
        self.surveys += 1
        if self.surveys == 3:
            raise AgentError("too many sockets", self.host)
        if self.surveys == 5:
            raise AgentLost("gone", self.host)
        names = ("eth2", "gone") if self.surveys < 4 else ("eth2",)
        snapshot = Snapshot(self.host, self.world.clock.now_ns(), {})
        own = HostLook(snapshot, names, (DNS,) if self.surveys == 1 else ())
        return in_rows(MachineLook(0, (SpaceLook(1, "host", own), SpaceLook(2, "blue", None))))

    def _facts(self, interface: str) -> Any:
        self.world.say(f"facts {interface}")
        if interface == "gone":
            raise AgentError("no such interface", self.host)
        return facts(self.host, interface, ())


def surveyed(world: World, every_ns: int) -> Iterator[Surveyed]:
    """Yield what an observer of this world answers."""

    def reach(host: str, _words: Sequence[str]) -> Surveyor:
        return Surveyor(host, world)

    with observer((), reach) as client:
        yield from surveys(client, False, every_ns, world.clock, world.interrupt)


def test_a_survey_each_time_until_the_agent_is_lost() -> None:
    """One that fails is told; facts are asked of interfaces that are new."""
    world = World()
    seen: list[Surveyed] = []
    times: list[int] = []

    def collect() -> None:
        for each in surveyed(world, 5 * SECOND_NS):
            seen.append(each)
            times.append(world.clock.now_ns())

    with pytest.raises(AgentLost):
        collect()
    assert [None, None, "too many sockets", None] == [
        each.error and each.error.message for each in seen
    ]
    assert seen[0].survey is not None
    assert seen[0].survey.spaces[0].look is not None
    assert (DNS,) == seen[0].survey.spaces[0].look.sockets
    assert [["eth2"]] * 4 == [[*each.facts] for each in seen]
    gaps = [b - a for a, b in pairwise(times)]
    assert [5.0] * 3 == [round(gap / SECOND_NS, 1) for gap in gaps]


def test_a_signal_ends_it() -> None:
    """Between two surveys."""
    world = World()
    seen: list[Surveyed] = []
    for each in surveyed(world, SECOND_NS):
        seen.append(each)
        world.interrupt.note()
    assert (1, "ending the latest look") == (len(seen), world.interrupt.doing)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"rows": [], "look": {"spaces": 1}},
        {"rows": [[1]], "look": LOOK},
        {"rows": [[[]]], "look": LOOK},
        {"rows": [[[1, 2, []]]], "look": LOOK},
        {"rows": [], "look": LOOK},
        {"rows": [], "look": {"spaces": [], "wall_ns": "x"}},
    ],
)
def test_an_answer_that_is_none_is_an_error(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is counted, as any other."""
    world = World()
    request = Surveyor.request

    def answer(own: Surveyor, verb: str, deadline_ns: int, **args: Any) -> Any:
        return wrong if verb == "survey" else request(own, verb, deadline_ns, **args)

    monkeypatch.setattr(Surveyor, "request", answer)
    first = next(surveyed(world, SECOND_NS))
    assert first.error is not None
    assert "malformed reply" in first.error.message


def test_a_late_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than a verb may take: without it, what changed would be missing for good."""
    world, limits_ns = World(), []
    request = Surveyor.request

    def answer(own: Surveyor, verb: str, deadline_ns: int, **args: Any) -> Any:
        limits_ns.append(deadline_ns if verb == "survey" else 0)
        return request(own, verb, deadline_ns, **args)

    monkeypatch.setattr(Surveyor, "request", answer)
    next(surveyed(world, SECOND_NS))
    assert LATE_NS == max(limits_ns) > VERBS["survey"].limit_s * SECOND_NS
