"""What is changed in this network namespace, as counters: also what is put back before one looks.

Listens to the kernel's notifications, never waits for one, changes nothing. Nobody is notified of
BPF programs of tcx and of cgroups, nor of rules of the legacy iptables: each look compares these.
What the kernel does by itself, or another interface has for itself, is no change: refreshed
neighbours and addresses, statistics, an XDP program, routes that come with an address, a station
that a bridge learns. Any frame moves one to another port, though: that is a change.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Optional

from udpbench.agent.host import genetlink, ip_tunnels, tun_devices, wireguard_ends
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.cgroups import own_cgroup
from udpbench.agent.host.files import read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.xtables import legacy_tables
from udpbench.model.limits import SECOND_NS

NETLINK_XFRM, NETLINK_NETFILTER = 6, 12
CHANGED = (
    *("routes", "addresses", "neighbours", "links", "queueing", "filters"),
    "stations",
    *("policies", "programs", "unknown"),
)
"""What is counted; filters count as queueing, too, and XDP programs as filters.

Programs are those of BPF at tcx, and of this process's cgroups as a sender's socket passes them."""
# include/uapi/linux/rtnetlink.h: RTNLGRP_* from 1 on, as bits
_GROUPS = {
    "link": 1,
    "neigh": 3,
    "tc": 4,
    "ipv4_ifaddr": 5,
    "ipv4_route": 7,
    "ipv4_rule": 8,
    "ipv6_ifaddr": 9,
    "ipv6_route": 11,
    "ipv6_rule": 19,
    "nexthop": 32,
}
RTNETLINK = sum(1 << number - 1 for number in _GROUPS.values())
XFRM = 1 << 2 | 1 << 3
"""XFRMNLGRP_SA and XFRMNLGRP_POLICY (include/uapi/linux/xfrm.h)."""
NFTABLES = 1 << 6
"""NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h)."""
_LINK, _ADDRESS, _NEIGHBOUR = 16, 20, 28
"""RTM_NEW* of each; RTM_DEL* is the next."""
_RULES_AND_NEXTHOPS = range(32, 34), range(104, 106)
_ROUTES = range(24, 26)
_FILTERS = range(44, 46), range(100, 102)
"""Filters, which may send packets elsewhere, and chains of them."""
_QUEUEING = range(36, 44), *_FILTERS
"""Disciplines and classes, too."""
_GET = 2
_IFLA_ADDRESS, _IFLA_NAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_XDP = 1, 3, 4, 10, 43
_XDP_ATTACHED, _XDP_PROGRAM = 2, 4
_IFF_UP, _IFF_LOWER_UP = 1, 1 << 16
_IFA_ADDRESS, _IFA_LOCAL, _NDA_DST, _NDA_LLADDR, _RTA_DST, _RTA_OIF = 1, 2, 1, 2, 1, 4
_NDA_VLAN, _NDA_MASTER, _NDA_NH_ID = 5, 9, 13
_CLONED, _BY_KERNEL = 0x200, 2
"""RTM_F_CLONED: an entry of the cache. RTPROT_KERNEL: it came with an address or a link."""
_FAILED, _PERMANENT, _VALID = 0x20, 0x80, 0xDE
"""NUD_*: only what root deletes, or what does not answer any more, fails."""
_ANY_BLOCK = -1
"""TCM_IFINDEX_MAGIC_BLOCK: filters of several interfaces."""
_HOOKS = (bpf.TCX_INGRESS, bpf.TCX_EGRESS)
STATIONS_MAX = 16384
"""MAC addresses of bridges that are remembered: frames of strangers make them known."""
LOOK_S = 0.02
"""How long a process may take to answer in a look."""
GONE = (errno.ENOENT, errno.ESRCH, errno.ECONNREFUSED, errno.ENODEV)
"""What a process or a device that has ended answers; others stay where they were."""
WAITING = "/proc/sys/net/{}/conf/{}/ignore_routes_with_linkdown"
"""Whether routes by an interface are used only while its link is up."""
MESSAGES_MAX = 4096
"""Read at a time; the kernel keeps some 280 in a buffer of its default size."""


class Changes:
    """Counts what was changed since its first reading."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._links: dict[socket.socket, str] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[tuple[object, ...], object] = {}
        self._failed: set[tuple[object, ...]] = set()
        """Neighbours that do not answer; whoever answers next is to have the same MAC."""
        self._led: set[tuple[int, int]] = set()
        """Length in bytes and number of each address to which packets are led."""
        self._stations: dict[tuple[Optional[bytes], ...], int] = {}
        self._own: set[int] = set()
        self._passed: set[int] = {_ANY_BLOCK}
        self._cgroup: Optional[int] = None
        self._programs: dict[tuple[int, int], tuple[int, ...]] = {}
        self._legacy: tuple[bytes, ...] = ()
        self._legacy_changes = 0
        self._ends: Any = None
        self._sockets: dict[tuple[str, int], Optional[str]] = {}
        """Tun device → where WireGuard in its process tells of itself."""
        self._forget_ns = 0
        """Not before is that searched again: it reads what all processes have open."""

    def listen(self) -> None:
        """Begin to hear of what only takes a right to begin with, of firewall rules as well.

        Whoever keeps that right asks for the firewall's generation instead, which never overflows.
        """
        self._hear(NETLINK_XFRM, XFRM, ("policies",))
        self._hear(NETLINK_NETFILTER, NFTABLES, ("firewall",))

    def lead(self, addresses: Iterable[str]) -> None:
        """Note where packets are led: from now on what may lead these elsewhere counts.

        A route that comes with an address of another interface, and one that was not used while
        that had no link.
        """
        for packed in (ip_address(address.partition("%")[0]).packed for address in addresses):
            self._led.add((len(packed), int.from_bytes(packed, "big")))

    def counts(self, interfaces: Collection[str], below: Collection[str] = ()) -> dict[str, int]:
        """Return ``changed.routes`` and the like; without those that this user may not hear of.

        Of what belongs to an interface only what belongs to these; of filters and programs also
        what belongs to those ``below``, which their packets pass.
        """
        with suppress(OSError):  # an interface is gone: its snapshot will say so
            self._own.update(self._host.index(name) for name in interfaces)
        with suppress(OSError):
            self._passed.update(self._host.index(name) for name in (*interfaces, *below))
        if "unknown" not in self._counts:
            self._begin()
            self._legacy = legacy_tables(self._host)
            self._ends = self._other_ends(interfaces)
        for link, name in self._links.items():
            self._read(link, name)
        self._look_at_programs()
        ends, self._ends = self._ends, self._other_ends(interfaces)
        if ends != _as_known(ends, self._ends):
            self._counts["links"] = self._counts.get("links", 0) + 1
        counted = {f"changed.{name}": count for name, count in self._counts.items()}
        legacy, self._legacy = self._legacy, legacy_tables(self._host)
        self._legacy_changes += legacy != self._legacy
        with suppress(OSError):  # without nf_tables, or without privileges
            generation = genetlink.firewall_generation()
            counted["changed.firewall"] = generation + self._legacy_changes
        return counted

    def _begin(self) -> None:
        self._counts["unknown"] = 0
        self._hear(socket.NETLINK_ROUTE, RTNETLINK, CHANGED[:7])
        if "policies" not in self._counts:
            self._hear(NETLINK_XFRM, XFRM, ("policies",))
        for kind, asked in ((_LINK, bytes(12)), (_ADDRESS, bytes(4)), (_NEIGHBOUR, bytes(8))):
            with suppress(OSError):
                for rest in genetlink.dump(kind + _GET, socket.NETLINK_ROUTE, asked):
                    self._is_changed(kind, rest)
        with suppress(OSError):  # without bridges in this kernel
            asked = bytes(8)
            for rest in genetlink.dump(
                _NEIGHBOUR + _GET, socket.NETLINK_ROUTE, asked, socket.AF_BRIDGE
            ):
                self._leads_elsewhere(_NEIGHBOUR, rest)
        learnt = {"filters", "links"}.intersection(self._counts)
        self._counts.update(dict.fromkeys(learnt, 0))
        with suppress(OSError):  # without privileges, or without cgroups v2
            self._cgroup = own_cgroup(self._host)
            weakref.finalize(self, os.close, self._cgroup)

    def _hear(self, protocol: int, groups: int, names: tuple[str, ...]) -> None:
        with suppress(OSError):  # without privileges, without IPsec or nf_tables
            self._links[_listening(protocol, groups)] = names[0] if len(names) == 1 else ""
            self._counts.update(dict.fromkeys(names, 0))

    def _other_ends(self, interfaces: Collection[str]) -> Any:
        """Return where tunnels of WireGuard end, of which nobody is notified; None: it has none.

        While its process has no time to answer it has none to change that.
        """
        try:
            if self._host.wireguard is not None:
                return self._host.wireguard.glance()
            there = [name for name in interfaces if wireguard_ends.is_there(self._host, name)]
            with tun_devices.searched_once(self._host):
                by_process = dict(self._by_process(interfaces))
            return {**{name: wireguard_ends.device(name) for name in there}, **by_process}
        except socket.timeout:
            return self._ends
        except OSError as error:
            now_ns = self._host.clock_ns()
            if error.errno in GONE and now_ns >= self._forget_ns:
                self._sockets.clear()
                self._forget_ns = now_ns + SECOND_NS
            return None

    def _by_process(self, interfaces: Collection[str]) -> Iterator[tuple[str, Any]]:
        for name in interfaces:
            if not self._host.exists(f"/sys/class/net/{name}"):
                continue  # its snapshot will say so
            key = name, self._host.index(name)
            if key not in self._sockets:
                self._sockets[key] = tun_devices.wireguard_socket(self._host, name)
            path = self._sockets[key]
            if path is not None:
                yield name, wireguard_ends.listed(wireguard_ends.ask(path, LOOK_S))

    def _look_at_programs(self) -> None:
        """Count hooks whose programs differ from before; only if this user may see them."""
        asked = [(index, hook, 0) for index in self._passed - {_ANY_BLOCK} for hook in _HOOKS]
        if self._cgroup is not None:
            asked += [(self._cgroup, hook, bpf.QUERY_EFFECTIVE) for hook in bpf.CGROUP_SENDING]
        for target, hook, flags in asked:
            there = bpf.attached(target, hook, flags)
            if there is None:
                continue
            before = self._programs.get((target, hook), there)
            self._programs[target, hook] = there
            self._counts["programs"] = self._counts.get("programs", 0) + (there != before)

    def _read(self, link: socket.socket, name: str) -> None:
        for _ in range(MESSAGES_MAX):
            try:
                datagram = link.recv(genetlink.ANSWER_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._counts[name or "unknown"] += 1
                continue
            for kind, payload in _messages(datagram):
                changed = name or self._what(kind, payload)
                if changed:
                    self._counts[changed] += 1
                if changed == "queueing" and any(kind in kinds for kinds in _FILTERS):
                    self._counts["filters"] += 1
        self._counts[name or "unknown"] += 1

    def _what(self, kind: int, payload: bytes) -> str:
        """Return what a message of rtnetlink says was changed; empty for nothing."""
        family, rest = payload[0], payload[4:]
        if any(kind in kinds for kinds in _RULES_AND_NEXTHOPS):
            return "routes"
        if kind in _ROUTES:
            return "routes" if self._is_route(payload[1], rest) else ""
        if any(kind in kinds for kinds in _QUEUEING):
            return "queueing" if struct.unpack_from("=i", rest)[0] in self._passed else ""
        names = {_LINK: "links", _ADDRESS: "addresses", _NEIGHBOUR: "neighbours"}
        name = names.get(kind & ~1, "")
        if name == "neighbours" and family == socket.AF_BRIDGE:
            return name if self._leads_elsewhere(kind, rest) else ""
        if not name or family == socket.AF_BRIDGE:  # a port's state
            return ""
        index = struct.unpack_from("=i", rest)[0]
        joins = name == "links" and (self._is_beside(rest) or self._may_wait(index))
        return name if self._is_changed(kind, rest) and (joins or index in self._own) else ""

    def _leads_elsewhere(self, kind: int, rest: bytes) -> bool:
        """Return whether an entry of a table may lead packets of our interfaces elsewhere.

        A tunnel's does, ours or a port's beside ours, and one that moves a bridge's station.
        """
        index, state = struct.unpack_from("=iH", rest)
        words = dict(genetlink.attributes(rest[8:]))
        above = self._above()
        if _NDA_DST in words or _NDA_NH_ID in words:
            link = self._known.get(("link", index))
            beside = above & ({link[-1]} if isinstance(link, tuple) else set())
            return index in self._own | self._passed or bool(beside)
        master = words.get(_NDA_MASTER)
        own = {struct.pack("=i", each) for each in self._own}
        station = master, words.get(_NDA_LLADDR), words.get(_NDA_VLAN)
        if kind != _NEIGHBOUR or master not in above | own:
            # What is forgotten stays where it was, when it is learned again; until then it is
            # flooded by a bridge that is a way out.
            if station in self._stations and master in own:
                self._counts["stations"] += 1
            return False
        before = self._stations.get(station)
        if before is None and (state & _PERMANENT or len(self._stations) >= STATIONS_MAX):
            return not state & _PERMANENT  # permanent ones are the ports' own
        self._stations[station] = index
        return before not in (None, index)

    def _above(self) -> set[object]:
        """Return the bridges that have ours as ports, as indexes in bytes."""
        states = (self._known.get(("link", index)) for index in self._own)
        return {state[-1] for state in states if isinstance(state, tuple)} - {None}

    def _is_beside(self, rest: bytes) -> bool:
        """Return whether a link becomes a port of the bridge that has one of ours, or is it."""
        above = self._above()
        return bool(above & {rest[:4], dict(genetlink.attributes(rest[12:])).get(_IFLA_MASTER)})

    def _may_wait(self, index: int) -> bool:
        """Return whether packets may take a route by a known interface once its link comes up."""
        name = self._host.name_of(index) if self._led and ("link", index) in self._known else None
        paths = [WAITING.format(ip, each) for ip in ("ipv4", "ipv6") for each in ("all", name)]
        return name is not None and any(read(self._host, path) == "1" for path in paths)

    def _is_route(self, bits: int, rest: bytes) -> bool:
        _, protocol, _, _, flags = struct.unpack_from("=BBBBI", rest)
        words = dict(genetlink.attributes(rest[8:]))
        way_out = int.from_bytes(words.get(_RTA_OIF, b""), sys.byteorder)
        is_others = protocol == _BY_KERNEL and way_out not in self._own
        return not flags & _CLONED and not (is_others and not self._leads(bits, words))

    def _leads(self, bits: int, words: Mapping[int, bytes]) -> bool:
        """Return whether a route is for an address to which packets are led."""
        to = words.get(_RTA_DST, b"")
        number, size = int.from_bytes(to, "big"), len(to)
        if to and ip_address(to).is_link_local:  # of that link alone
            return False
        rest = 8 * size - bits
        return any(
            not to or (size == each and number >> rest == led >> rest) for each, led in self._led
        )

    def _is_changed(self, kind: int, rest: bytes) -> bool:
        """Return whether a link, an address or a neighbour differs from what was known of it."""
        index = struct.unpack_from("=i", rest)[0]
        if kind & ~1 == _NEIGHBOUR:
            return self._is_neighbour_changed(kind == _NEIGHBOUR, index, rest)
        if kind & ~1 == _LINK:
            words = dict(genetlink.attributes(rest[12:]))
            if kind == _LINK and _IFLA_MTU not in words:  # an event of its own, as wireless has
                return False
            key: tuple[object, ...] = ("link", index)
            named = (_IFLA_NAME, _IFLA_MTU, _IFLA_ADDRESS, _IFLA_MASTER)
            parts = (words.get(part) for part in named)
            attached = dict(genetlink.attributes(words.get(_IFLA_XDP, b"")))
            programs = attached.get(_XDP_ATTACHED), attached.get(_XDP_PROGRAM)
            if self._learn(("xdp", index), programs) and index in self._passed:
                self._counts["filters"] = self._counts.get("filters", 0) + 1
            ends = ip_tunnels.watched(words)
            if self._learn(("tunnel", index), ends) and index in self._passed:
                self._counts["links"] = self._counts.get("links", 0) + 1
            flags = struct.unpack_from("=I", rest, 4)[0] & (_IFF_UP | _IFF_LOWER_UP)
            state: object = (flags, *parts)
        else:
            words = dict(genetlink.attributes(rest[4:]))
            key, state = ("address", index, words.get(_IFA_LOCAL, words.get(_IFA_ADDRESS))), True
        return self._learn(key, None if kind & 1 else state)

    def _learn(self, key: tuple[object, ...], state: object) -> bool:
        """Keep the state of something, None if it is gone, and return whether it is another."""
        before = self._known.pop(key, None)
        if state is not None:
            self._known[key] = state
        return before != state

    def _is_neighbour_changed(self, is_there: bool, index: int, rest: bytes) -> bool:
        state = struct.unpack_from("=H", rest, 4)[0]
        words = dict(genetlink.attributes(rest[8:]))
        address = words.get(_NDA_DST, b"")
        key, mac = ("neighbour", index, address), words.get(_NDA_LLADDR)
        known = self._known.get(key)
        led = (len(address), int.from_bytes(address, "big")) in self._led
        if not is_there or state & _FAILED:
            # Unused, silent, or the link lost its carrier: whoever answers then is to have the
            # same MAC. Strangers may make many known, but none of those is forgotten for them.
            is_new = bool(state & _FAILED) and known is not None and key not in self._failed
            if len(self._known) > STATIONS_MAX and not led:
                self._learn(key, None)
            elif is_new:
                self._failed.add(key)
            return is_new
        if mac is None or not state & _VALID:
            return False
        self._failed.discard(key)
        by_hand = bool(state & _PERMANENT)
        return self._learn(key, (mac, by_hand)) and (by_hand or known is not None)


def _as_known(before: Any, now: Any) -> Any:
    """Return where tunnels end without the ends that had no address before: these sent first."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return now
    nowhere = {end["peer"] for _, ends in before.values() for end in ends if not end["remote"]}
    return {
        name: (
            port,
            tuple({**end, "remote": ""} if end["peer"] in nowhere else end for end in ends),
        )
        for name, (port, ends) in now.items()
    }


def _listening(protocol: int, groups: int) -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        link.bind((0, groups))
        link.connect((0, 0))
    except OSError:
        link.close()
        raise
    return link


def _messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the payload of each message."""
    at = 0
    while at + genetlink.HEADER.size <= len(datagram):
        size_bytes, kind = genetlink.HEADER.unpack_from(datagram, at)[:2]
        yield kind, datagram[at + genetlink.HEADER.size : at + size_bytes]
        at += max(-(-size_bytes // 4) * 4, genetlink.HEADER.size)
