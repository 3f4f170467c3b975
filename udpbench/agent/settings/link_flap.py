"""Restores what a flapping link loses, after waiting until it is up again.

A driver that changes rings or channels takes the link down; the kernel then drops IPv6 addresses,
neighbours and routes of the interface and of VLANs above it, whether set by the host or by
udpbench. What could not be recreated exactly is refused before the change.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Callable, Optional

from udpbench.agent.host.reading import link_kind
from udpbench.agent.host.system import Host

CARRIER_DEADLINE_S = 15.0
"""10GBASE-T autonegotiation takes up to 6 s; longer with spanning tree on the switch."""
IFF_UP, IFF_LOWER_UP = 1, 0x10000  # include/uapi/linux/if.h
VLAN_FLAG_LOOSE_BINDING = 4  # include/uapi/linux/if_vlan.h
RTN_UNICAST = 1  # include/uapi/linux/rtnetlink.h
RTPROT_KERNEL = 2
RTPROT_RA = 9
RTNH_F_PERVASIVE, RTNH_F_ONLINK = 2, 4
RTAX_MTU = 2
IFA_F_NODAD = 2  # include/uapi/linux/if_addr.h
IFA_F_NOPREFIXROUTE = 0x200
IFA_F_MCAUTOJOIN = 0x400
_FLAGS = IFA_F_NODAD | IFA_F_NOPREFIXROUTE | IFA_F_MCAUTOJOIN
_FLAGS_OF_IPV6 = _FLAGS | 4 | 0x10 | 0x100
"""And IFA_F_OPTIMISTIC, IFA_F_HOMEADDRESS, IFA_F_MANAGETEMPADDR."""
_FLAGS_OF_KERNEL = {1: "temporary", 8: "dadfailed", 0x800: "stable-privacy"}
"""What cannot be set for IPv6 (net/ipv6/addrconf.c: inet6_rtm_newaddr)."""
IFAPROT_KERNEL_RA, IFAPROT_KERNEL_LL = 2, 3
MAC_BYTES = 6
_NEVER_LINK_LOCAL = 0x8 | 0x80 | 0x800  # IFF_LOOPBACK, IFF_NOARP, IFF_SLAVE
RT_SCOPE_LINK = 253
ADDR_GEN_MODE_NONE = 1
IPV6_MIN_MTU_BYTES = 1280  # RFC 8200, section 5
FOREVER_S = 2**32 - 1
NUD_NOARP, NUD_PERMANENT = 0x40, 0x80  # include/uapi/linux/neighbour.h
NTF_PROXY, NTF_EXT_LEARNED, NTF_ROUTER = 0x08, 0x10, 0x80
_ADDRESS = {
    "IFA_ADDRESS": "address",
    "IFA_LOCAL": "local",
    "IFA_BROADCAST": "broadcast",
    "IFA_LABEL": "label",
    "IFA_RT_PRIORITY": "rt_priority",
    "IFA_PROTO": "proto",
}
_ROUTE = {
    "RTA_DST": "dst",
    "RTA_GATEWAY": "gateway",
    "RTA_VIA": "via",
    "RTA_PREFSRC": "prefsrc",
    "RTA_PRIORITY": "priority",
    "RTA_TABLE": "table",
    "RTA_OIF": "oif",
    "RTA_FLOW": "flow",
    "RTA_PREF": "pref",
    "RTA_METRICS": "metrics",
}
_NEIGHBOUR = {"NDA_DST": "dst", "NDA_LLADDR": "lladdr", "NDA_PROTOCOL": "protocol"}
_STATE = ("IFA_FLAGS", "IFA_CACHEINFO", "RTA_CACHEINFO", "NDA_CACHEINFO", "NDA_PROBES")
_UNNAMED = {17: "fastopen_no_cookie", 26: "ttl-propagate", 30: "nhid"}
"""Attributes of routes that pyroute2 0.9.7 does not know."""
ADVERTISED = "advertised by a router"
LISTED_MAX = 5
_VERBS = {"addr": "add", "route": "append", "neigh": "replace"}
"""Another route to the same network may be there, and a neighbour that was learnt meanwhile."""
Request = tuple[str, tuple[tuple[str, Any], ...]]
Recreated = tuple[Request, list[str]]
"""A request, and what the thing has that the request lacks."""


@contextmanager
def restored_link(
    host: Host, interface: str, note: Callable[[Sequence[Request]], None] = lambda _: None
) -> Iterator[None]:
    """Run a change that may take the link down; afterwards the link and its state are restored.

    Calls ``note`` with the state before, and with an empty list once it is restored. ValueError
    beforehand as by ``check_flap``; OSError ETIMEDOUT if the carrier does not return.
    """
    index = host.index(interface)
    had = [request for request, lacks in _recreated(host, interface, False) if not lacks]
    carrier = has_carrier(host, interface)
    note(had)
    try:
        yield
    finally:
        try:
            if carrier:
                what = f"{interface} has no carrier"
                host.wait_for(what, lambda: has_carrier(host, interface), CARRIER_DEADLINE_S)
        finally:
            restore_missing(host, had, attached(host, index))
            note(())


def has_carrier(host: Host, interface: str) -> bool:
    """Return whether an interface has a carrier."""
    return bool(host.link(interface)["flags"] & IFF_LOWER_UP)


def check_flap(host: Host, interface: str, with_advertised: bool = True) -> None:
    """Raise ValueError if an interface has what could not be recreated exactly after a flap.

    Routes advertised by routers, which the kernel learns again, count before a change that was
    asked for, but do not keep it from being undone.
    """
    _recreated(host, interface, with_advertised)


def _recreated(host: Host, interface: str, with_advertised: bool) -> list[Recreated]:
    """Return what an interface has; raise ValueError as ``check_flap`` does."""
    flapping = _flapping(host, host.index(interface))
    things = list(state(host, flapping))
    lost = [
        f"{_named(request)} ({', '.join(lacks)})"
        for request, lacks in things
        if lacks and (with_advertised or lacks != [ADVERTISED])
    ]
    lost += _nexthops(host, flapping)
    lost += filter(None, flapping.values())
    if lost:
        raise ValueError(
            f"a driver may take {interface} down for it, and these could not be recreated exactly: "
            f"{listed(lost)}; remove them before the run, or choose another interface"
        )
    return things


def not_recreated(
    host: Host, index: int, nouns: Collection[str], family: Optional[int] = None
) -> list[str]:
    """Return what of an interface could not be recreated exactly, and what each thing has."""
    return [
        f"{_named((noun, fields))} ({', '.join(lacks)})"
        for (noun, fields), lacks in state(host, (index,))
        if lacks and noun in nouns and family in (None, dict(fields)["family"])
    ]


def listed(things: Sequence[str]) -> str:
    """Return the first of several things, and how many more there are."""
    more = f" and {len(things) - LISTED_MAX} more" if len(things) > LISTED_MAX else ""
    return ", ".join(things[:LISTED_MAX]) + more


def lost_with_ipv6(host: Host, index: Optional[int] = None) -> list[str]:
    """Return what one or all interfaces lose permanently if the kernel stops IPv6 there.

    These are addresses, neighbours and routes that the kernel does not make by itself.
    """
    lost = []
    indexes = None if index is None else (index,)
    macs = {message["index"]: message.get_attr("IFLA_ADDRESS") for message in _links(host, index)}
    for (noun, fields), _ in state(host, indexes):
        own = dict(fields)
        by_kernel = noun == "route" and own.get("proto") == RTPROT_KERNEL
        if own["family"] != socket.AF_INET6 or by_kernel:
            continue
        if noun != "addr":
            lost.append(_named((noun, fields)))
        elif not (_is_kernels(own, macs) or ip_address(own["address"]).is_loopback):
            lost.append(own["address"])
    lost += _without_link_local(host, index)
    lost += own_mtus(host, index)
    return lost + _nexthops(host, indexes)


def _without_link_local(host: Host, index: Optional[int]) -> Iterator[str]:
    """Yield interfaces that would have a link-local address afterwards, and have none."""
    addresses = host.rtnl("addr", "dump", family=socket.AF_INET6)
    having = {each["index"] for each in addresses if each["scope"] == RT_SCOPE_LINK}
    for message in _links(host, index):
        spec = message.get_attr("IFLA_AF_SPEC")
        ipv6 = spec.get_attr("AF_INET6") if spec is not None else None
        if ipv6 is None or message["index"] in having or message["flags"] & _NEVER_LINK_LOCAL:
            continue
        mode, conf = ipv6.get_attr("IFLA_INET6_ADDR_GEN_MODE"), ipv6.get_attr("IFLA_INET6_CONF")
        if message["flags"] & IFF_UP and mode != ADDR_GEN_MODE_NONE and not conf["disable_ipv6"]:
            yield f"the lack of a link-local address of {message.get_attr('IFLA_IFNAME')}"


def own_mtus(host: Host, index: Optional[int] = None) -> Iterator[str]:
    """Yield parameters by which IPv6 has an MTU of its own on one or all interfaces.

    The interface's takes its place when IPv6, or the link, comes up (net/ipv6/addrconf.c:
    addrconf_notify).
    """
    for message in _links(host, index):
        spec, mtu_bytes = message.get_attr("IFLA_AF_SPEC"), message.get_attr("IFLA_MTU")
        ipv6 = spec.get_attr("AF_INET6") if spec is not None else None
        conf = ipv6.get_attr("IFLA_INET6_CONF") if ipv6 is not None else None
        if conf is not None and conf["mtu"] != mtu_bytes >= IPV6_MIN_MTU_BYTES:
            yield f"net/ipv6/conf/{message.get_attr('IFLA_IFNAME')}/mtu"


def _links(host: Host, index: Optional[int]) -> Sequence[Any]:
    links: Sequence[Any] = host.rtnl("link", "dump")
    return [message for message in links if index in (None, message["index"])]


def _is_kernels(own: Mapping[str, Any], macs: Mapping[int, Optional[str]]) -> bool:
    """Return whether the kernel makes a link-local address again, from its key or from the MAC."""
    if own.get("proto") == IFAPROT_KERNEL_LL:
        return True
    octets = bytearray.fromhex((macs.get(own["index"]) or "").replace(":", ""))
    if len(octets) != MAC_BYTES:
        return False
    octets[0] ^= 2  # RFC 4291, appendix A
    text = (b"\xfe\x80" + bytes(6) + octets[:3] + b"\xff\xfe" + octets[3:]).hex()
    return ip_address(own["address"]) == ip_address(int(text, 16))


def _nexthops(host: Host, indexes: Optional[Collection[int]]) -> list[str]:
    return [
        f"nexthop {number}"
        for number, oif, _ in host.nexthops()
        if indexes is None or oif in indexes
    ]


def _flapping(host: Host, index: int) -> dict[int, str]:
    """Return an interface and the VLANs that go down and up with it.

    By index; of VLANs that are down what to say of them, else an empty text.
    """
    links = host.rtnl("link", "dump")
    flapping = {index: ""}
    for below in (waiting := [index]):
        for message in links:
            if _follows(message, below):
                name = f"{message.get_attr('IFLA_IFNAME')} (down)"
                flapping[message["index"]] = "" if message["flags"] & IFF_UP else name
                waiting.append(message["index"])
    return flapping


def _follows(message: Any, index: int) -> bool:
    """Return whether an interface is a VLAN that follows another (net/8021q/vlan.c)."""
    if link_kind(message) != "vlan" or message.get_attr("IFLA_LINK_NETNSID") is not None:
        return False
    data = message.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA")
    flags = (data.get_attr("IFLA_VLAN_FLAGS") if data is not None else None) or {"flags": 0}
    is_loose = flags["flags"] & VLAN_FLAG_LOOSE_BINDING
    return bool(message.get_attr("IFLA_LINK") == index and not is_loose)


def kept_when_down(host: Host, index: int) -> list[Request]:
    """Return requests that recreate the IPv6 addresses and the neighbours of an interface.

    Without link-local addresses, and those that routers advertised (known since Linux 5.18). IPv4
    addresses stay, and routes need an interface that is up.
    """
    return [
        (noun, fields)
        for noun, fields in attached(host, index)
        if noun == "neigh" or (noun, dict(fields)["family"]) == ("addr", socket.AF_INET6)
        if not _is_link_local(dict(fields)) and dict(fields).get("proto") != IFAPROT_KERNEL_RA
    ]


def unlocked_mtu(message: Any) -> Optional[int]:
    """Return the MTU of a route that has one, and may lose it to the interface's."""
    metrics = message.get_attr("RTA_METRICS")
    mtu = None if metrics is None else metrics.get_attr("RTAX_MTU")
    locked = 0 if mtu is None else metrics.get_attr("RTAX_LOCK") or 0
    return None if locked & 1 << RTAX_MTU else mtu


def attached(host: Host, index: int) -> list[Request]:
    """Return requests that recreate the addresses, neighbours and routes of an interface.

    And of the VLANs that follow it.
    """
    return [request for request, lacks in state(host, _flapping(host, index)) if not lacks]


def state(host: Host, indexes: Optional[Collection[int]]) -> Iterator[Recreated]:
    """Yield the addresses, neighbours and routes of some or all interfaces.

    Without those that the kernel makes again by itself.
    """

    def concerns(index: int) -> bool:
        return indexes is None or index in indexes

    messages = [message for message in host.rtnl("addr", "dump") if concerns(message["index"])]
    newest_first = [message for message in messages if message["family"] == socket.AF_INET6]
    ipv4 = [message for message in messages if message["family"] != socket.AF_INET6]
    for message in (*ipv4, *reversed(newest_first)):
        request, lacks = _address(message)
        if not (lacks and _is_link_local(dict(request[1]))):
            yield request, lacks
    proxies = host.rtnl("neigh", "dump", dump_filter=is_set, flags=NTF_PROXY)
    for message in (*host.rtnl("neigh", "dump"), *proxies):
        if concerns(message["ifindex"]) and is_set(message):
            yield _neighbour(message)
    for message in host.rtnl("route", "dump"):
        by_kernel = message["proto"] == RTPROT_KERNEL and message["type"] != RTN_UNICAST
        if not by_kernel and (indexes is None or any(concerns(oif) for oif, _ in hops(message))):
            yield _route(message)


def hops(message: Any) -> Iterator[tuple[int, Optional[str]]]:
    """Yield the interface and the gateway of each way that a route's message names."""
    legs = message.get_attr("RTA_MULTIPATH")
    for leg in (message,) if legs is None else legs:
        index = leg.get_attr("RTA_OIF") if legs is None else leg["oif"]
        if index is not None:
            yield index, leg.get_attr("RTA_GATEWAY") or (leg.get_attr("RTA_VIA") or {}).get("addr")


def is_set(message: Any) -> bool:
    """Return whether a program set a neighbour, or learnt it in place of the kernel."""
    if message["flags"] & (NTF_PROXY | NTF_EXT_LEARNED) or message.get_attr("NDA_FLAGS_EXT"):
        return True
    if message["state"] & NUD_NOARP:
        # The kernel makes those of multicast addresses, and all of a device without MACs (tun).
        is_multicast = ip_address(message.get_attr("NDA_DST")).is_multicast
        return message.get_attr("NDA_LLADDR") != "" and not is_multicast
    return bool(message["state"] & NUD_PERMANENT)


def _split(message: Any, names: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return attributes under the names that a request has for them, and the names of others."""
    own: dict[str, Any] = {}
    lacks: list[str] = []
    for name, value in message["attrs"]:
        if name in names:
            own[names[name]] = value
        elif name == "UNKNOWN":
            number = value["header"]["type"]
            lacks.append(_UNNAMED.get(number, f"attribute {number}"))
        elif name not in _STATE:
            lacks.append(name.partition("_")[2].lower())
    return own, lacks


def _address(message: Any) -> Recreated:
    own, lacks = _split(message, _ADDRESS)
    own.update((key, message[key]) for key in ("index", "prefixlen", "family"))
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    if message["family"] == socket.AF_INET6:
        own["flags"] = flags & _FLAGS_OF_IPV6
        lacks += [name for flag, name in _FLAGS_OF_KERNEL.items() if flags & flag]
    else:
        own["scope"] = message["scope"]
        own |= {"flags": flags & _FLAGS} if flags & _FLAGS else {}
    # A leased address must not become permanent. Equal requests may differ in the remaining
    # seconds; the kernel then returns EEXIST.
    times = message.get_attr("IFA_CACHEINFO") or {}
    lasting = {"preferred_lft": "ifa_preferred", "valid_lft": "ifa_valid"}
    if any(times.get(name, FOREVER_S) != FOREVER_S for name in lasting.values()):
        own.update((key, times[name]) for key, name in lasting.items())
    return ("addr", tuple(own.items())), lacks


def _neighbour(message: Any) -> Recreated:
    own, lacks = _split(message, _NEIGHBOUR)
    own.update((key, message[key]) for key in ("ifindex", "state", "family"))
    kept = message["flags"] & (NTF_PROXY | NTF_ROUTER)
    if kept:
        own["flags"] = kept
    if message["flags"] & NTF_EXT_LEARNED:
        lacks.append("extern_learn")
    return ("neigh", tuple(own.items())), lacks


def _route(message: Any) -> Recreated:
    own, lacks = _split(message, _ROUTE)
    length = message["dst_len"]
    own["dst"] = f"{own['dst']}/{length}" if length else "default"
    if "metrics" in own:
        known = [name for name, _ in own["metrics"]["attrs"] if name != "UNKNOWN"]
        names = {name: name.partition("_")[2].lower() for name in known}
        own["metrics"], unknown = _split(own["metrics"], names)
        lacks += unknown
    own.update((key, message[key]) for key in ("family", "proto", "type", "tos"))
    if message["family"] == socket.AF_INET:
        own["scope"] = message["scope"]
    kept = message["flags"] & (RTNH_F_ONLINK | RTNH_F_PERVASIVE)
    if kept:
        own["flags"] = kept
    if message["proto"] == RTPROT_RA:
        lacks = [ADVERTISED]
    elif (message.get_attr("RTA_CACHEINFO") or {}).get("rta_expires"):
        lacks.append("expires")
    return ("route", tuple(own.items())), lacks


def restore_missing(
    host: Host, had: Sequence[Request], have: Sequence[Request], at_once: bool = True
) -> None:
    """Recreate what is missing; additions by other processes stay.

    IPv6 addresses can be used ``at_once``, without a second of duplicate address detection.
    Continues after a refusal; OSError at the end lists every refusal.
    """
    missing = [request for request in had if request not in have]
    while missing:
        refusals = [
            (request, error)
            for request in missing
            if (error := _refusal(host, *request, at_once)) is not None
        ]
        if len(refusals) == len(missing):
            words = "; ".join(f"{_named(request)}: {error.strerror}" for request, error in refusals)
            raise OSError(refusals[0][1].errno, f"could not be recreated: {words}")
        # A request may depend on a later one: a default route on its gateway's network.
        missing = [request for request, _ in refusals]


def _refusal(
    host: Host, noun: str, fields: tuple[tuple[str, Any], ...], at_once: bool
) -> Optional[OSError]:
    own = dict(fields)
    flags = own.get("flags", 0)
    is_hurried = at_once and own.get("family") == socket.AF_INET6 and not flags & IFA_F_NODAD
    try:
        if noun == "addr" and is_hurried:
            host.rtnl(noun, "add", **{**own, "flags": flags | IFA_F_NODAD})
            host.rtnl(noun, "replace", **own)
        else:
            host.rtnl(noun, _VERBS[noun], **own)
    except OSError as error:
        # The kernel recreates link-local addresses and their route.
        if error.errno != errno.EEXIST and not _is_link_local(own):
            return error
    return None


def _named(request: Request) -> str:
    noun, fields = request[0], dict(request[1])
    return f"{noun} {fields.get('dst') or fields.get('address')}"


def _is_link_local(fields: dict[str, Any]) -> bool:
    if fields.get("proto") == RTPROT_KERNEL and fields.get("dst") == "fe80::/64":
        return True
    return "address" in fields and ip_address(fields["address"]).is_link_local
