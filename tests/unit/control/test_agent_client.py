"""How long a verb may take: by its own limit, and over a connection by the lease."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from udpbench.control.agent_client import AgentClient
from udpbench.errors import AgentError, AgentLost, ConnectError
from udpbench.model.host import Setting
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import UdpSocket
from udpbench.protocol import VERBS, encode

SNAPSHOT = {"host": "left", "clock_ns": 1, "counters": {}}
HELLO = {
    "pid": 1,
    "netns": 1,
    "boot_id": "b",
    "build": "b",
    "python": "3.11",
    "capabilities": {},
}


class Noting:
    """A channel that answers at once and notes how long it might have taken."""

    def __init__(self, pid: int | None) -> None:
        self.host = "left"
        self.pid = pid
        self.offset_ns = 0
        self.round_trip_ns: int | None = None
        self.limits: dict[str, int] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.absences_ns: list[int] = []
        self.notice: Callable[[str], None] = lambda _: None
        self.outlasting: tuple[str, int] | None = None
        self.parts: list[Any] = []

    def outlast(self, run: str, lease_ns: int) -> None:
        """Note that the connection is to be made anew."""
        self.outlasting = (run, lease_ns)

    def begin(self, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:
        """Answer when that is waited for."""
        return lambda: self.request(verb, deadline_ns, **args)

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Answer."""
        self.limits[verb] = deadline_ns
        self.requests[verb] = args
        if verb in ("look", "more_sockets"):
            return self.parts.pop(0)
        return {"hello": HELLO, "take": {}, "snapshot": SNAPSHOT}.get(verb)

    def ping(self) -> None:
        """Renew nothing."""

    def close(self) -> int | None:
        """End nothing."""
        return 0

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Say so."""
        return ConnectError(loss.message, self.host)


@pytest.mark.parametrize(
    ("pid", "lease_ns", "expected_ns"),
    [
        (None, 60 * SECOND_NS, 60 * SECOND_NS),
        (None, SECOND_NS, VERBS["snapshot"].limit_s * SECOND_NS),
        (5, 60 * SECOND_NS, VERBS["snapshot"].limit_s * SECOND_NS),
    ],
)
def test_a_silent_connection_is_waited_for_as_long_as_the_lease(
    pid: int | None, lease_ns: int, expected_ns: int
) -> None:
    """Over a connection; an agent of this machine that is silent hangs."""
    channel = Noting(pid)
    remote = AgentClient(channel, "sender", "eth3", ("namespace",))
    remote.greet("run", lease_ns)
    remote.snapshot()
    remote.stop()
    assert expected_ns == channel.limits["snapshot"]
    assert VERBS["stop"].limit_s * SECOND_NS == channel.limits["stop"]


@pytest.mark.parametrize(("trip_s", "slow_s"), [(0.3, 3), (1, 10), (19.9, 10)])
def test_a_host_that_answers_late_is_not_waited_for_ever_longer(trip_s: float, slow_s: int) -> None:
    """A limit grows by ten round trips, as slow as a satellite's link has them."""
    channel = Noting(None)
    channel.round_trip_ns = int(trip_s * SECOND_NS)
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    client.stop()
    assert channel.limits["stop"] == (VERBS["stop"].limit_s + slow_s) * SECOND_NS


def test_an_agent_of_this_machine_is_told_who_controls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its boot id: over SSH it cannot see whose process asked for it."""
    snapshots = []
    for boot_id in ("another", HELLO["boot_id"]):
        monkeypatch.setattr("udpbench.control.agent_client._boot_id", lambda known=boot_id: known)
        channel = Noting(None)
        remote = AgentClient(channel, "sender", "eth3", ("namespace",))
        remote.greet("run", SECOND_NS)
        remote.snapshot("begin")
        snapshots.append(
            (channel.requests["snapshot"]["edge"], channel.requests["snapshot"]["controller"])
        )
    assert [("begin", None), ("begin", os.getpid())] == snapshots


@pytest.mark.parametrize(("pid", "expected"), [(None, ("run", SECOND_NS)), (5, None)])
def test_an_agent_behind_a_connection_outlasts_it(
    pid: int | None, expected: tuple[str, int] | None
) -> None:
    """Once it is taken; one of this machine ends with its pipes."""
    channel = Noting(pid)
    remote = AgentClient(channel, "sender", "eth3", ("namespace", "machine"))
    remote.greet("run", SECOND_NS)
    assert channel.outlasting is None
    remote.take("alone")
    hello = channel.requests["hello"]
    assert (expected, pid is None, False) == (
        channel.outlasting,
        hello["returns"],
        hello["private"],
    )


def test_an_agent_of_a_built_in_lab_elsewhere_makes_its_own_namespace() -> None:
    """No new connection leads into it, so that it ends with the one that made it."""
    channel = Noting(None)
    remote = AgentClient(channel, "sender", "eth3", ("namespace",))
    remote.greet("run", SECOND_NS)
    remote.take("alone")
    hello = channel.requests["hello"]
    assert (None, False, True) == (channel.outlasting, hello["returns"], hello["private"])


FORGED = "left: all right\nudpbench: every host is restored\x1b[2J"


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"record", "close"}))
def test_no_text_of_a_host_has_a_line_of_its_own(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a value nor in a key; tabs stay, which sysctls have."""
    channel = Noting(None)
    forged = {FORGED: [FORGED, "4096\t87380"]}
    monkeypatch.setattr(channel, "request", lambda *_, **__: forged)
    for module in ("udpbench.control.agent_client", "udpbench.protocol"):
        monkeypatch.setattr(f"{module}.decode", lambda _, plain: plain)
    monkeypatch.setattr("udpbench.control.agent_client.TEXTS", {})
    shown = r"left: all right\nudpbench: every host is restored\x1b[2J"
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    assert {shown: [shown, "4096\t87380"]} == client.ask(verb, {})


def test_no_setting_of_a_host_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first time nor when it is as before; tabs stay."""
    change = {"setting": encode(Setting("sysctl", "a", 1)), "before": FORGED, "after": "1\t2"}
    channel = Noting(None)
    monkeypatch.setattr(channel, "request", lambda *_, **__: [{**change, "rounded": False}])
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    shown = r"left: all right\nudpbench: every host is restored\x1b[2J"
    first, again = client.apply(()), client.apply(())
    assert [(shown, "1\t2")] == [(each.before, each.after) for each in first]
    assert first[0] is again[0]


def test_what_a_program_printed_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored as it is."""
    channel = Noting(None)
    monkeypatch.setattr(channel, "request", lambda *_, **__: "one\ntwo\n")
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    assert "one\ntwo\n" == client.close()


def test_more_than_a_record_may_hold_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own folder could not be read again; and a cookie is a number."""
    channel = Noting(None)
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    many = {**SNAPSHOT, "host": "left", "counters": {f"a.{n}": 1 for n in range(140_000)}}
    monkeypatch.setattr(channel, "request", lambda *_, **__: many)
    what = "left: snapshot: malformed reply: Snapshot.counters: 140000 entries, at most 131072"
    with pytest.raises(AgentError, match=f"^{what}$"):
        client.snapshot()
    look = {"snapshot": {**many, "counters": {}}, "interfaces": [], "sockets": []}
    monkeypatch.setattr(channel, "request", lambda *_, **__: {**look, "counts": {"abc": {}}})
    with pytest.raises(AgentError, match=r"^left: look: malformed reply: .*'abc'$"):
        client.look(None, None, exact=False)


def test_a_host_speaks_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of another host would be taken for that host's."""
    channel = Noting(None)
    monkeypatch.setattr(channel, "request", lambda *_, **__: {**SNAPSHOT, "host": "right"})
    client = AgentClient(channel, "sender", "eth3", ("namespace",))
    with pytest.raises(AgentError, match=r"^left: snapshot: malformed reply: it speaks for right$"):
        client.snapshot()


@pytest.mark.parametrize(("most", "expected"), [(100, 5), (3, 4)])
def test_a_look_has_all_sockets_of_its_parts(
    most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to one that is not full; of a host that never ends, somewhat more than can be watched."""
    monkeypatch.setattr("udpbench.control.agent_client.LOOK_SOCKETS", 2)
    monkeypatch.setattr("udpbench.control.agent_client.MOST_SOCKETS", most)
    sockets = [
        encode(UdpSocket(n, n, 4, "0.0.0.0", n, None, 0, 0, 0, 1, 0))  # noqa: S104
        for n in range(5)
    ]
    channel = Noting(None)
    look = {"snapshot": SNAPSHOT, "interfaces": [], "sockets": sockets[:2]}
    channel.parts = [look, sockets[2:4], sockets[4:]]
    seen = AgentClient(channel, "sender", "eth3", ("namespace",)).look(None, None, exact=False)
    assert [*range(expected)] == [each.cookie for each in seen.sockets]
