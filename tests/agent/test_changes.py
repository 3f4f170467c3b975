"""What an agent hears of changes in its namespace, and what it says if it cannot hear all of it."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from udpbench.agent.host import changes, genetlink
from udpbench.agent.host.changes import CHANGED, MESSAGES_MAX, NETLINK_XFRM, Changes
from udpbench.agent.host.system import Host

NEW_FILTER = genetlink.HEADER.pack(36, 44, 0, 0, 0) + struct.pack("=4xi12x", 1)
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


def link_with(program: int) -> bytes:
    """Return what the kernel tells of lo once it has an XDP program, or none (0)."""
    attached = genetlink.attribute(2, bytes([program > 0])) + genetlink.number(4, program)
    words = genetlink.number(4, 65536) + genetlink.nest(43, attached)
    return genetlink.HEADER.pack(32 + len(words), 16, 0, 0, 0) + struct.pack("=4xi8x", 1) + words


def test_filters_and_programs_are_told_apart_from_disciplines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both may send packets elsewhere, which a discipline does not."""
    filters, queueing = "changed.filters", "changed.queueing"
    assert {filters: 1, queueing: 1} == heard(monkeypatch, NEW_FILTER)
    moved = heard(monkeypatch, *map(link_with, (0, 7, 7, 0)))
    assert 2 <= moved[filters] <= 3
    assert queueing not in moved


def link(index: int, master: int = 0, flags: int = 1) -> bytes:
    """Return the message of a link, in a bridge if it has a master."""
    header = struct.pack("=BxHiII", 0, 1, index, flags, 0)
    parts = struct.pack("=HHI", 8, 4, 1500)
    parts += struct.pack("=HHi", 8, 10, master) if master else b""
    body = header + parts
    return genetlink.HEADER.pack(genetlink.HEADER.size + len(body), 16, 0, 0, 0) + body


def test_a_port_that_joins_the_bridge_of_an_interface_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the bridge itself; a link of no bridge, or of another, is no matter."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    lo = Host().index("lo")

    def moved(*messages: bytes) -> int:
        return heard(monkeypatch, *messages)["changed.links"]

    assert 1 == moved(link(lo))
    assert 1 == moved(link(lo), link(97), link(98, master=99))
    assert 3 == moved(link(lo, master=99), link(98, master=99), link(97), link(99))


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
