"""What an agent hears of changes in its namespace, and what it says if it cannot hear all of it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from udpbench.agent.host import changes, genetlink
from udpbench.agent.host.changes import CHANGED, MESSAGES_MAX, NETLINK_XFRM, Changes
from udpbench.agent.host.system import Host

NEW_RULE = genetlink.HEADER.pack(28, 32, 0, 0, 0) + bytes(12)


class Heard:
    """A socket on which these datagrams, or errors, are waiting."""

    def __init__(self, waiting: Iterator[Any]) -> None:
        self.waiting = waiting

    def recv(self, *_: int) -> bytes:
        """Return the next; BlockingIOError if there is none."""
        each = next(self.waiting, BlockingIOError())
        if isinstance(each, OSError):
            raise each
        return bytes(each)


def heard(monkeypatch: pytest.MonkeyPatch, *waiting: Any) -> dict[str, int]:
    """Return the counters that moved after these were heard by rtnetlink."""
    routes = Heard(iter(waiting))
    silent = Heard(iter(()))

    def listening(protocol: int, _: int) -> Any:
        return routes if protocol == socket.NETLINK_ROUTE else silent

    monkeypatch.setattr(changes, "_listening", listening)
    counts = Changes(Host()).counts(["lo"])
    counts.pop("changed.firewall", None)
    assert set(counts) == {f"changed.{name}" for name in CHANGED}
    return {name: count for name, count in counts.items() if count}


def test_each_message_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datagram may have several; without any nothing moved."""
    assert {} == heard(monkeypatch)
    assert {"changed.routes": 3} == heard(monkeypatch, NEW_RULE * 2, NEW_RULE)


def test_what_the_kernel_had_no_room_for_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before and after it counts, and a reading never takes more than its share."""
    lost = OSError(errno.ENOBUFS, "No buffer space available")
    counts = heard(monkeypatch, NEW_RULE, lost, NEW_RULE)
    assert {"changed.routes": 2, "changed.unknown": 1} == counts
    counts = heard(monkeypatch, *[NEW_RULE] * (MESSAGES_MAX + 7))
    assert {"changed.routes": MESSAGES_MAX, "changed.unknown": 1} == counts


def test_what_may_not_be_heard_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without privileges says nothing of IPsec, and 0 of what it hears."""

    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            if self.proto == NETLINK_XFRM:
                raise PermissionError(errno.EPERM, "Operation not permitted")
            super().bind(address)

    monkeypatch.setattr(changes.socket, "socket", Refusing)
    counts = Changes(Host()).counts(["lo"])
    assert "changed.policies" not in counts
    assert 0 == counts["changed.routes"]
