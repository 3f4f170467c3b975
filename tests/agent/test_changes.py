"""What an agent hears of changes in its namespace, and what it says if it cannot hear all of it."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from udpbench.agent.host import changes, genetlink, xtables
from udpbench.agent.host.bpf import bpf
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


def heard(
    monkeypatch: pytest.MonkeyPatch, *waiting: Any, led: Iterable[str] = ()
) -> dict[str, int]:
    """Return the counters that moved after these were heard by rtnetlink.

    ``led``: where packets are led.
    """
    routes = Heard(iter(waiting))
    silent = Heard(iter(()))

    def listening(protocol: int, _: int) -> Any:
        return routes if protocol == socket.NETLINK_ROUTE else silent

    monkeypatch.setattr(changes, "_listening", listening)
    looks = Changes(Host())
    looks.lead(led)
    counts = looks.counts(["lo"])
    counts.pop("changed.firewall", None)
    counts.setdefault("changed.programs", 0)  # without privileges
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


def test_what_overflows_of_a_kind_is_of_that_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of thousands of rules that is loaded anew is the firewall's."""
    waiting = iter([OSError(errno.ENOBUFS, "full"), NEW_RULE * 2])

    def listening(protocol: int, _: int) -> Any:
        return Heard(waiting if protocol == changes.NETLINK_NETFILTER else iter(()))

    def refused() -> int:
        raise PermissionError

    monkeypatch.setattr(changes, "_listening", listening)
    monkeypatch.setattr(genetlink, "firewall_generation", refused)
    own = Changes(Host())
    own.listen()
    counts = own.counts(["lo"])
    assert (3, 0, 0) == tuple(
        counts[f"changed.{name}"] for name in ("firewall", "unknown", "policies")
    )


def test_filters_and_programs_are_told_apart_from_disciplines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both may send packets elsewhere, which a discipline does not."""
    filters, queueing = "changed.filters", "changed.queueing"
    assert {filters: 1, queueing: 1} == heard(monkeypatch, NEW_FILTER)
    moved = heard(monkeypatch, *map(link_with, (0, 7, 7, 0)))
    assert 2 <= moved[filters] <= 3
    assert queueing not in moved


def test_filters_and_programs_below_an_interface_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packets pass them; who else uses that device, is no matter."""
    there = {bpf.TCX_EGRESS: (0, 4)}
    monkeypatch.setattr(bpf, "attached", lambda _, hook, __: there.get(hook, (0, 0)))
    monkeypatch.setattr(changes, "_listening", lambda *_: Heard(iter([NEW_FILTER])))
    looks = Changes(Host())
    looks.counts([], ["lo"])
    there[bpf.TCX_EGRESS] = (0, 6)
    counts = looks.counts([], ["lo"])
    assert (1, 1) == (counts["changed.filters"], counts["changed.programs"])


def link(index: int, master: int = 0, flags: int = 1, name: bytes = b"lo") -> bytes:
    """Return the message of a link, in a bridge if it has a master."""
    header = struct.pack("=BxHiII", 0, 1, index, flags, 0)
    parts = struct.pack("=HHI", 8, 4, 1500)
    parts += struct.pack("=HHi", 8, 10, master) if master else b""
    body = header + parts + genetlink.attribute(3, name + b"\0")
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


def test_another_name_of_an_interface_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules may go by names, as those of a node's guard do."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    lo = Host().index("lo")
    assert 2 == heard(monkeypatch, link(lo), link(lo, name=b"other"))["changed.links"]
    assert 1 == heard(monkeypatch, link(lo), link(lo))["changed.links"]


def test_another_end_in_what_describes_a_tunnel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that an interface stands on: no field but this is another then."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    lo = Host().index("lo")

    def tunnel(remote: int, kind: bytes = b"gretap") -> bytes:
        data = genetlink.attribute(7, bytes((10, 1, 0, remote)))
        parts = genetlink.attribute(1, kind + b"\0") + genetlink.attribute(2, data)
        message = link(lo) + genetlink.attribute(18, parts)
        return struct.pack("=I", len(message)) + message[4:]

    for first, second, count in (
        (tunnel(1), tunnel(2), 1),
        (tunnel(1), tunnel(1), 0),
        (tunnel(1, b"bridge"), tunnel(2, b"bridge"), 0),
    ):
        routes, silent = Heard(iter([first])), Heard(iter(()))
        links = {socket.NETLINK_ROUTE: routes}
        monkeypatch.setattr(
            changes,
            "_listening",
            lambda protocol, _, links=links, silent=silent: links.get(protocol, silent),
        )
        looks = Changes(Host())
        before = looks.counts([], ["lo"])["changed.links"]
        routes.waiting = iter([second])
        assert count == looks.counts([], ["lo"])["changed.links"] - before


def entry(index: int, *parts: tuple[int, bytes], state: int = 0x80, kind: int = 28) -> bytes:
    """Return the message of an entry in a bridge's table, or a tunnel's."""
    body = struct.pack("=BxHiHBB", socket.AF_BRIDGE, 0, index, state, 0, 0)
    body += b"".join(genetlink.attribute(kind, value) for kind, value in parts)
    return genetlink.HEADER.pack(genetlink.HEADER.size + len(body), kind, 0, 0, 0) + body


def test_another_end_of_a_tunnel_beside_an_interface_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its address or a nexthop object; not what a bridge learns, nor a tunnel elsewhere."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    mac, to, through = (2, bytes(6)), (1, bytes([10, 9, 9, 2])), (13, bytes(4))
    ports = link(Host().index("lo"), master=99), link(98, master=99), link(97, master=96)

    def moved(*messages: bytes) -> int:
        return heard(monkeypatch, *ports, *messages).get("changed.neighbours", 0)

    assert 1 == moved(entry(98, mac, to))
    assert 1 == moved(entry(98, mac, through))
    assert 0 == moved(entry(98, mac), entry(97, mac, to), entry(95, mac, to))
    assert 2 == moved(
        entry(Host().index("lo"), mac, to), entry(Host().index("lo"), mac, to, kind=29)
    )


def neighbour(mac: int, state: int = 2, kind: int = 28) -> bytes:
    """Return what the kernel says of a neighbour on lo."""
    body = struct.pack("=B3xiHBB", socket.AF_INET, 1, state, 0, 1)
    body += genetlink.attribute(1, bytes((10, 0, 0, 9)))
    body += genetlink.attribute(2, bytes((2, 0, 0, 0, 0, mac)))
    return genetlink.HEADER.pack(16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ((neighbour(1), neighbour(1, kind=29), neighbour(1)), 0),
        ((neighbour(1), neighbour(1, kind=29), neighbour(2)), 1),
        ((neighbour(1), neighbour(2)), 1),
        ((neighbour(1), neighbour(1, state=0x20), neighbour(2)), 2),
        ((neighbour(1), neighbour(1, state=0x20), neighbour(1, state=0x20)), 1),
        ((neighbour(1), neighbour(1, state=0x20), neighbour(1)), 1),
        ((neighbour(1), neighbour(1, state=0x20), neighbour(1, kind=29), neighbour(2)), 2),
    ],
)
def test_a_neighbour_that_was_forgotten_is_to_be_the_same(
    monkeypatch: pytest.MonkeyPatch, messages: tuple[bytes, ...], count: int
) -> None:
    """A link that lost its carrier forgets all; who answers first then may be a stranger."""
    assert ({"changed.neighbours": count} if count else {}) == heard(monkeypatch, *messages)


def test_neighbours_that_were_forgotten_take_so_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger may make many known, but has none forgotten to which packets are led."""
    monkeypatch.setattr(changes, "STATIONS_MAX", 0)
    messages = (neighbour(1), neighbour(1, kind=29), neighbour(2))
    assert {} == heard(monkeypatch, *messages)
    assert {"changed.neighbours": 1} == heard(monkeypatch, *messages, led=["10.0.0.9"])


def route(to: str, bits: int, way_out: int = 98, protocol: int = 2, kind: int = 24) -> bytes:
    """Return what the kernel says of a route of its own by another interface."""
    packed = ip_address(to).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = struct.pack("=BBBBBBBBI", family, bits, 0, 0, 254, protocol, 253, 1, 0)
    body += genetlink.attribute(1, packed) if bits else b""
    body += struct.pack("=HHi", 8, 4, way_out)
    return genetlink.HEADER.pack(16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("message", "count"),
    [
        (route("10.2.0.0", 28), 1),
        (route("10.2.0.0", 28, kind=25), 1),
        (route("10.2.0.2", 32), 1),
        (route("10.2.0.0", 0), 1),
        (route("10.2.0.16", 28), 0),
        (route("172.17.0.0", 16), 0),
        (route("2001:db8::", 64), 1),
        (route("2001:db8:1::", 64), 0),
        (route("fe80::", 64), 0),
    ],
)
def test_a_route_that_comes_with_an_address_of_another_interface_counts(
    monkeypatch: pytest.MonkeyPatch, message: bytes, count: int
) -> None:
    """If it is for where packets are led; others' are made with each container that starts."""
    led = ["10.2.0.2", "2001:db8::2", "fe80::1%eth0"]
    counted = heard(monkeypatch, message, led=led).get("changed.routes", 0)
    assert (count, {}) == (counted, heard(monkeypatch, message))


def test_a_link_that_comes_up_counts_where_routes_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is notified of that; a link that is new does not, nor one without such routes."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    monkeypatch.setattr(Host, "name_of", lambda *_: "eth3")
    waits: dict[str, str] = {}
    monkeypatch.setattr(changes, "read", lambda _, path: waits.get(path))
    comes = link(98), link(98, flags=1 | 1 << 16)
    assert {} == heard(monkeypatch, *comes, led=["10.2.0.2"])
    for name in ("all", "eth3"):
        waits = {f"/proc/sys/net/ipv4/conf/{name}/ignore_routes_with_linkdown": "1"}
        assert {"changed.links": 1} == heard(monkeypatch, *comes, led=["10.2.0.2"])
        assert {} == heard(monkeypatch, *comes[1:], led=["10.2.0.2"])
        assert {} == heard(monkeypatch, *comes)


def test_a_station_that_moves_to_another_port_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the bridge above an interface, or which it is; wherever one is learned first is right."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: iter(()))
    lo = Host().index("lo")

    def moved(
        *steps: tuple[int, int, int], master: int = 99, own: int = 99, what: str = "neighbours"
    ) -> int:
        messages = [
            entry(port, (2, bytes([2, 0, 0, 0, 0, mac])), (9, bytes([master, 0, 0, 0])), **how)
            for port, mac, state in steps
            for how in [{"kind": 29} if state < 0 else {"state": state}]
        ]
        ports = link(lo, master=own), link(98, master=99), link(97, master=99)
        return heard(monkeypatch, *ports, *messages).get(f"changed.{what}", 0)

    learned, own, gone = 2, 0x80, -1
    assert 0 == moved((98, 1, learned), (98, 1, learned), (97, 2, learned))
    assert 1 == moved((98, 1, learned), (97, 1, learned))
    assert 1 == moved((98, 1, learned), (98, 1, gone), (97, 1, learned))
    assert 1 == moved((98, 1, learned), (97, 1, own))
    assert 0 == moved((98, 1, own), (97, 1, own), (97, 1, learned))
    assert 0 == moved((98, 1, learned), (97, 1, learned), master=96)
    assert 1 == moved((98, 1, learned), (97, 1, learned), master=lo, own=96)
    forgotten = (98, 1, learned), (98, 1, gone), (98, 2, gone)
    assert 1 == moved(*forgotten, master=lo, own=96, what="stations"), "of our own bridge"
    assert 0 == moved(*forgotten, what="stations")
    monkeypatch.setattr(changes, "STATIONS_MAX", 1)
    assert 1 == moved((98, 1, learned), (98, 2, learned))


def test_what_the_kernel_had_no_room_for_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before and after it counts, and a reading never takes more than its share."""
    lost = OSError(errno.ENOBUFS, "No buffer space available")
    counts = heard(monkeypatch, NEW_RULE, lost, NEW_RULE)
    assert {"changed.routes": 2, "changed.unknown": 1} == counts
    counts = heard(monkeypatch, *[NEW_RULE] * (MESSAGES_MAX + 7))
    assert {"changed.routes": MESSAGES_MAX, "changed.unknown": 1} == counts


def test_programs_that_come_go_or_are_exchanged_between_two_looks_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each hook of tcx and of the cgroup; also if as many stay, and if they went again."""
    there = {bpf.TCX_EGRESS: (0, 4), 10: (2, 0, 7, 8)}
    monkeypatch.setattr(bpf, "attached", lambda _, hook, __: there.get(hook, (0, 0)))
    monkeypatch.setattr(changes, "own_cgroup", lambda _: os.open("/", os.O_RDONLY))
    looks = Changes(Host())
    seen = [looks.counts(["lo"])["changed.programs"] for _ in range(2)]
    for hook, now in ((10, (2, 0, 7, 9)), (bpf.TCX_EGRESS, (0, 6)), (bpf.TCX_EGRESS, (1, 7, 3))):
        there[hook] = now
        seen.append(looks.counts(["lo"])["changed.programs"])
    assert [0, 0, 1, 2, 3] == seen


def test_a_change_of_legacy_rules_counts_as_one_of_the_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside those of nf_tables, which have a generation of their own."""
    tables = iter([(b"a",), (b"a",), (b"b",), (b"b", b"c"), ()])
    monkeypatch.setattr(changes, "legacy_tables", lambda _: next(tables))
    monkeypatch.setattr(genetlink, "firewall_generation", lambda: 5)
    looks = Changes(Host())
    assert [5, 6, 7, 8] == [looks.counts(["lo"])["changed.firewall"] for _ in range(4)]


class Kernel:
    """Answers to getsockopt(2) about one table: rules of a size, each with its counters."""

    def __init__(self, *rules: tuple[int, int, int]) -> None:
        self.rules = rules

    def __call__(self, _: Any, level: int, option: int, asked: bytes) -> bytearray:
        """Return the rules, or what is known of their table."""
        size_at, counters_at = (90, 96) if level == socket.IPPROTO_IP else (142, 152)
        blob = bytearray()
        for size, what, packets in self.rules:
            rule = bytearray(size)
            rule[0] = what
            struct.pack_into("=H", rule, size_at, size)
            struct.pack_into("=QQ", rule, counters_at, packets, 64 * packets)
            blob += rule
        if option == xtables.GET_INFO:
            return bytearray(xtables.INFO.pack(asked[:32], len(self.rules), len(blob)))
        return bytearray(asked[: xtables.HEAD_BYTES]) + blob


def test_what_legacy_rules_have_counted_is_no_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rule that another takes the place of is, also if that has the same size."""
    host = Host(tmp_path)
    assert () == xtables.legacy_tables(host)
    for family in ("ip", "ip6"):
        names = tmp_path / xtables.TABLES.format(family)[1:]
        names.parent.mkdir(parents=True, exist_ok=True)
        names.write_text("raw\n")

    def tables(*rules: tuple[int, int, int]) -> tuple[bytes, ...]:
        monkeypatch.setattr(xtables, "_ask", Kernel(*rules))
        monkeypatch.setattr(xtables.socket, "socket", lambda *_: nullcontext())
        return xtables.legacy_tables(host)

    first = tables((200, 1, 5), (300, 2, 0))
    assert 2 == len(first)
    assert first == tables((200, 1, 9), (300, 2, 7))
    assert first != tables((200, 1, 5), (300, 3, 0))
    many = [(300, 1, 0)] * 60
    assert tables(*many) == tables(*[(300, 2, 0)] * 60) != tables(*many, (300, 1, 0))


def test_tables_that_may_not_be_read_are_no_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without privileges, or as one is exchanged at this very moment."""
    names = tmp_path / xtables.TABLES.format("ip")[1:]
    names.parent.mkdir(parents=True)
    names.write_text("raw\n")

    def refused(*_: Any) -> bytearray:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(xtables, "_ask", refused)
    assert () == xtables.legacy_tables(Host(tmp_path))


def test_programs_that_may_not_be_seen_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that nothing was attached by who could not see it."""
    monkeypatch.setattr(bpf, "attached", lambda *_: None)
    assert "changed.programs" not in Changes(Host()).counts(["lo"])


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
