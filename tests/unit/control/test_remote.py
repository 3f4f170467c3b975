"""How long a verb may take: by its own limit, and over a connection by the lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from udpbench.control.remote import LIMIT_NS, Remote
from udpbench.errors import AgentLost, ConnectError
from udpbench.model import SECOND_NS

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
        self.said: dict[str, dict[str, Any]] = {}
        self.absences_ns: list[int] = []
        self.notice: Callable[[str], None] = lambda _: None
        self.outlasting: tuple[str, int] | None = None

    def outlast(self, run: str, lease_ns: int) -> None:
        """Note that the connection is to be made anew."""
        self.outlasting = (run, lease_ns)

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Answer."""
        self.limits[verb] = deadline_ns
        self.said[verb] = args
        return {"hello": HELLO, "snapshot": SNAPSHOT}.get(verb)

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
        (None, SECOND_NS, LIMIT_NS["snapshot"]),
        (5, 60 * SECOND_NS, LIMIT_NS["snapshot"]),
    ],
)
def test_a_silent_connection_is_waited_for_as_long_as_the_lease(
    pid: int | None, lease_ns: int, expected_ns: int
) -> None:
    """Over a connection; an agent of this machine that is silent hangs."""
    channel = Noting(pid)
    remote = Remote(channel, "sender", "eth3", ("namespace",))
    remote.hello("run", lease_ns)
    remote.snapshot()
    remote.stop()
    assert expected_ns == channel.limits["snapshot"]
    assert LIMIT_NS["stop"] == channel.limits["stop"]


@pytest.mark.parametrize(("pid", "expected"), [(None, ("run", SECOND_NS)), (5, None)])
def test_an_agent_behind_a_connection_outlasts_it(
    pid: int | None, expected: tuple[str, int] | None
) -> None:
    """One of this machine ends with its pipes."""
    channel = Noting(pid)
    Remote(channel, "sender", "eth3", ("namespace",)).hello("run", SECOND_NS)
    assert (expected, pid is None) == (channel.outlasting, channel.said["hello"]["returns"])
