"""Kinds of an interface itself: whether it is up, its sizes, pairs, bridges and tunnels."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any, Optional

from udpbench.agent.host import files, vxlan
from udpbench.agent.host.system import Host, link_kind
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.kind import Command, Kind
from udpbench.model.host import Setting


class Up(Kind):
    """Whether an interface is up (IFF_UP, not whether it has a carrier).

    The first time that it is up gives it queueing disciplines, which it keeps while down.
    """

    disruptive = True
    alters = ("qdisc_tree",)
    instead: Mapping[int, str] = {
        errno.ENODEV: "see `ip link` there, and correct `interface` in the lab file"
    }

    def read(self, host: Host, target: str) -> bool:
        """Return whether the interface is up."""
        return bool(host.link(target)["flags"] & link_flap.IFF_UP)

    def check(self, host: Host, target: str, value: bool, now: bool) -> None:
        """Refuse to take it up if it would lack neighbours, or its own MTU, when down again."""
        del value, now
        index = host.index(target)
        own = link_flap.listed([*link_flap.own_mtus(host, index)])
        if own:
            what = f"it would replace {own} by its MTU, for good"
            raise OSError(errno.EBUSY, f"{what}; set that to the same first, or take it up by hand")
        neighbours = link_flap.not_recreated(host, index, ("neigh",))
        if neighbours:
            what = f"its neighbours could not be recreated exactly: {link_flap.listed(neighbours)}"
            raise OSError(errno.EBUSY, f"{what}; remove them first, or take it up by hand")

    def write(self, host: Host, target: str, value: bool) -> None:
        """Take the interface up or down; it keeps its IPv6 addresses and neighbours while down."""
        index = host.index(target)
        had = [] if value else link_flap.kept_when_down(host, index)
        host.rtnl("link", "set", index=index, state="up" if value else "down")
        link_flap.restore_missing(host, had, [], at_once=False)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return ["ip", "link", "set", target, "up" if value else "down"]


FOLLOWERS = {"vlan": 0, "macvlan": 0, "macvtap": 0, "macsec": 32}
"""Kind of upper interface whose MTU is lowered with the lower one's (NETDEV_CHANGEMTU), and never
raised → by how much it is less, at most: macsec has a tag of 14 B, a type of 2 B and an ICV of 16 B
(drivers/net/macsec.c: macsec_notify)."""
MIRRORS = {"ipvlan": 0, "ipvtap": 0, "hsr": 6}
"""The same of those whose MTU becomes the lower one's, whatever it was
(drivers/net/ipvlan/ipvlan_main.c: ipvlan_adjust_mtu; net/hsr/hsr_main.c: hsr_netdev_notify)."""


_OF_KERNEL = re.compile(r"ff0[12]::1\Z|ff0[125]::2\Z|ff02::1:ff[0-9a-f]{2}:[0-9a-f]{1,4}\Z")
"""All nodes, all routers, solicited nodes (RFC 4291, 2.7.1)."""


def _ends_ipv6(value: int, now: int) -> bool:
    return value < link_flap.IPV6_MIN_MTU_BYTES <= now


def _own_parameters(host: Host, interface: str) -> dict[str, str]:
    """Return the IPv6 parameters of an interface that it would have otherwise if it were new."""
    own = {}
    for room in ("net/ipv6/conf", "net/ipv6/neigh"):
        for name in files.names(host, f"/proc/sys/{room}/{interface}"):
            value, inherited = (
                files.read(host, f"/proc/sys/{room}/{place}/{name}")
                for place in (interface, "default")
            )
            known = inherited is not None or name == "stable_secret"  # an unset secret: EIO
            if name != "mtu" and known and inherited != value:
                own[f"{room}/{interface}/{name}"] = str(inherited)
    return own


def _following(host: Host, interface: str) -> dict[str, int]:
    """Return an interface, and what may take on its MTU, with by how much that one's is less.

    That is the bridge above it (net/bridge/br_if.c), and each of ``MIRRORS``.
    """
    master = host.link(interface).get_attr("IFLA_MASTER")
    above = host.rtnl("link", "get", index=master) if master else []
    bridges = (bridge for bridge in above if link_kind(bridge) == "bridge")
    return {
        interface: 0,
        **{str(bridge.get_attr("IFLA_IFNAME")): 0 for bridge in bridges},
        **{name: MIRRORS[kind] for name, kind, _ in _uppers(host, interface) if kind in MIRRORS},
    }


def _uppers(host: Host, interface: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, kind and MTU of each interface of this namespace that stands on another."""
    index = host.index(interface)
    linked = files.names(host, f"/sys/class/net/{interface}")
    for upper in host.rtnl("link", "dump"):
        name, local = upper.get_attr("IFLA_IFNAME"), upper.get_attr("IFLA_LINK_NETNSID") is None
        # An hsr names both of its interfaces elsewhere.
        if (upper.get_attr("IFLA_LINK") == index and local) or f"upper_{name}" in linked:
            yield str(name), str(link_kind(upper)), int(upper.get_attr("IFLA_MTU"))


def _check_mirrors(host: Host, interface: str, now: int) -> None:
    """Raise OSError if an upper interface would lose an MTU of its own, in either direction."""
    own = [
        f"{name} ({mtu} B)"
        for name, kind, mtu in _uppers(host, interface)
        if kind in MIRRORS and mtu != now - MIRRORS[kind]
    ]
    if own:
        what = f"it would replace the MTU of {', '.join(own)} on {interface}, for good"
        raise OSError(errno.EBUSY, f"{what}; remove that first, or choose another interface")


def _check_own_mtus(host: Host, interface: str) -> None:
    """Raise OSError if anything of IPv6 has an MTU of its own, which the interface's replaces."""
    index = host.index(interface)
    own = [
        f"route {message.get_attr('RTA_DST') or 'default'}"
        for message in host.rtnl("route", "dump", family=socket.AF_INET6)
        if index in (oif for oif, _ in link_flap.hops(message))
        and link_flap.unlocked_mtu(message) is not None
    ]
    own += link_flap.own_mtus(host, index)
    if own:
        what = f"it would replace the MTU of {link_flap.listed(own)}, for good"
        raise OSError(errno.EBUSY, f"{what}; remove that first, or choose another interface")


def _lost_with_inet6_dev(host: Host, interface: str) -> Iterator[str]:
    """Yield an interface's token, and the groups that programs joined there.

    They end with its IPv6 (net/ipv6/addrconf.c: addrconf_ifdown), but for groups of the kernel's.
    """
    message = host.link(interface)
    ipv6 = (message.get_attr("IFLA_AF_SPEC") or message).get_attr("AF_INET6")
    token = ipv6.get_attr("IFLA_INET6_TOKEN") if ipv6 is not None else None
    if token not in (None, "::"):
        yield f"token {token}"
    for line in files.lines_of(files.read(host, "/proc/net/igmp6")):
        index, _, group = line.split()[:3]
        address = IPv6Address(bytes.fromhex(group))
        if int(index) == message["index"] and not _OF_KERNEL.match(str(address)):
            yield f"group {address}"


def _check_members(host: Host, interface: str, now: int) -> None:
    """Raise OSError if an interface stops following its members, or gives them its own MTU.

    net/bridge/br_device.c: br_change_mtu; drivers/net/bonding/bond_main.c: bond_change_mtu. Others
    do as a bond: team, Hyper-V's netvsc.
    """
    message = host.link(interface)
    kind = link_kind(message)
    if kind == "bridge":
        what = f"{interface} would never again follow the MTU of its ports, as a bridge does"
        raise OSError(errno.EBUSY, f"{what}; set that of its ports")
    changed = [
        f"{member.get_attr('IFLA_IFNAME')} ({member.get_attr('IFLA_MTU')} B)"
        for member in host.rtnl("link", "dump")
        if member.get_attr("IFLA_MASTER") == message["index"] and kind != "vrf"
        if kind in ("bond", "team") or member.get_attr("IFLA_MTU") != now
    ]
    if changed:
        what = f"it would also change {link_flap.listed(changed)} in {interface}"
        raise OSError(errno.EBUSY, f"{what}; set it by hand before the run")


def _check_mtu(host: Host, interface: str, value: int, now: int) -> None:
    index = host.index(interface)
    _check_own_mtus(host, interface)
    lost = []
    if _ends_ipv6(value, now):
        lost = [*link_flap.lost_with_ipv6(host, index), *_lost_with_inet6_dev(host, interface)]
    if lost:
        least = f"{link_flap.IPV6_MIN_MTU_BYTES} B"
        what = f"below {least} {interface} would lose {link_flap.listed(lost)}"
        raise OSError(errno.EBUSY, f"{what}; choose at least {least}")
    _check_mirrors(host, interface, now)
    lowered = {
        f"{name} ({mtu} B)": value - FOLLOWERS[kind]
        for name, kind, mtu in _uppers(host, interface)
        if kind in FOLLOWERS and mtu > value - FOLLOWERS[kind]
    }
    if lowered:
        stays = min(lowered.values())
        what = f"{', '.join(lowered)} on {interface} would stay at {stays} B afterwards"
        raise OSError(errno.EBUSY, f"{what}; lower it by hand first")


class Mtu(Kind):
    """An interface's MTU in bytes.

    Below 1280 the kernel ends IPv6 on it, with addresses, routes, neighbours and parameters that
    nothing would restore; it lowers, but does not raise, the MTU of a VLAN, macvlan or macsec on
    the interface; a bridge follows its ports, and an ipvlan or hsr what it stands on, with all of
    that; and an IPv6 route's own MTU becomes the interface's (net/ipv6/route.c: rt6_mtu_change).
    A bridge keeps the one that is set, and a bond sets it on its members. All of these are refused.
    """

    disruptive = flaps = True
    alters = ("napi_state", "qdisc_tree")
    instead: Mapping[int, str] = {errno.EBUSY: "or choose another interface"}

    def read(self, host: Host, target: str) -> int:
        """Return the MTU in bytes."""
        return int(host.link(target).get_attr("IFLA_MTU"))

    def write(self, host: Host, target: str, value: int) -> None:
        """Set the MTU in bytes."""
        host.rtnl("link", "set", index=host.index(target), mtu=value)

    def check(self, host: Host, target: str, value: int, now: int) -> None:
        """Refuse a change that would end IPv6 in use or change other MTUs for good."""
        _check_members(host, target, now)
        for name, less in _following(host, target).items():
            _check_mtu(host, name, value - less, self.read(host, name))

    def resets(self, host: Host, target: str, value: int, now: int) -> Sequence[Setting]:
        """Return the parameters that are as on a new interface when IPv6 comes back."""
        del now
        return [
            Setting("sysctl", parameter, inherited)
            for name, less in _following(host, target).items()
            if _ends_ipv6(value - less, self.read(host, name))
            for parameter, inherited in _own_parameters(host, name).items()
        ]

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return ["ip", "link", "set", target, "mtu", str(value)]


class Txqueuelen(Kind):
    """An interface's transmit queue length, the default limit of its qdiscs."""

    alters = ("qdisc_tree",)

    def read(self, host: Host, target: str) -> int:
        """Return the length in packets."""
        return int(host.link(target).get_attr("IFLA_TXQLEN"))

    def write(self, host: Host, target: str, value: int) -> None:
        """Set the length in packets."""
        host.rtnl("link", "set", index=host.index(target), txqlen=value)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return ["ip", "link", "set", target, "txqueuelen", str(value)]


def _existing(host: Host, interface: str) -> Any:
    """Return an interface's message; None if there is no such interface."""
    try:
        return host.link(interface)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def _peer(host: Host, message: Any) -> Any:
    """Return the peer's message, queried in its namespace by netnsid (Linux 5.0)."""
    index, namespace = message.get_attr("IFLA_LINK"), message.get_attr("IFLA_LINK_NETNSID")
    if index is None or namespace is None:
        return None
    try:
        return host.rtnl("link", "get", index=index, if_netnsid=namespace)[0]
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL, errno.EPERM):
            return None
        raise


def _seen(value: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    if value is None:
        return None
    return {
        key: item.lower() if key.endswith("mac") and isinstance(item, str) else item
        for key, item in value.items()
        if key != "peer_pid"
    }


class Link(Kind):
    """A veth pair: the target names this end, the other end is in another namespace.

    Value: {peer, peer_pid, peer_mac, mac, queues}, or None without such an interface. An existing
    pair is never changed: the kernel refuses a second one of the same name.
    """

    instead: Mapping[int, str] = {errno.EEXIST: "remove that interface, or choose another name"}

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return the pair without ``peer_pid``, which cannot be read; an invisible peer is None."""
        message = _existing(host, target)
        if message is None:
            return None
        peer = _peer(host, message)
        return {
            "peer": None if peer is None else peer.get_attr("IFLA_IFNAME"),
            "peer_mac": None if peer is None else peer.get_attr("IFLA_ADDRESS"),
            "mac": message.get_attr("IFLA_ADDRESS"),
            # A kernel for one CPU does not show RX queues (CONFIG_RPS); there are as many of both.
            "queues": message.get_attr("IFLA_NUM_RX_QUEUES")
            or message.get_attr("IFLA_NUM_TX_QUEUES"),
        }

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Create the pair with equal queues on both ends, or delete it."""
        if value is None:
            host.rtnl("link", "del", index=host.index(target))
            return
        queues = {"num_tx_queues": value["queues"], "num_rx_queues": value["queues"]}
        peer = {"ifname": value["peer"], "address": value["peer_mac"], **queues}
        peer["net_ns_pid"] = value["peer_pid"]
        own = {"ifname": target, "address": value["mac"], **queues}
        host.rtnl("link", "add", kind="veth", peer=peer, **own)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare without ``peer_pid``."""
        return _seen(requested) == _seen(got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "del", target] if value is None else None


class Bridge(Kind):
    """A bridge with the target's name; true, or null if there is none.

    Plain forwarding without spanning tree and snooping, so that it sends no frames of its own.
    """

    def read(self, host: Host, target: str) -> Optional[bool]:
        """Return true if the interface exists and is a bridge."""
        message = _existing(host, target)
        return True if message is not None and link_kind(message) == "bridge" else None

    def write(self, host: Host, target: str, value: Optional[bool]) -> None:
        """Create or delete the bridge."""
        if value is None:
            host.rtnl("link", "del", index=host.index(target))
            return
        host.rtnl("link", "add", kind="bridge", ifname=target, br_stp_state=0, br_mcast_snooping=0)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "del", target] if value is None else None


# include/uapi/linux/neighbour.h. Both together make an entry static: neither aged nor local; it is
# listed with the first flag only (net/bridge/br_fdb.c: fdb_to_nud).
NUD_NOARP = 0x40
NUD_REACHABLE = 0x02
NTF_MASTER = 0x04


class Port(Kind):
    """An interface as a bridge port, with the single station behind it.

    Value: {bridge, station}, or null if it is in no bridge. Learning and flooding are off: a
    station that only receives would never be learnt, and every frame to it would be flooded.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return the bridge's name and the station's MAC; None without a station."""
        message = host.link(target)
        master = message.get_attr("IFLA_MASTER")
        if master is None:
            return None
        entries = host.rtnl("fdb", "dump", ifindex=message["index"])
        stations = [
            str(entry.get_attr("NDA_LLADDR")).lower()
            for entry in entries
            if entry["ifindex"] == message["index"] and entry["state"] == NUD_NOARP
        ]
        return {
            "bridge": host.rtnl("link", "get", index=master)[0].get_attr("IFLA_IFNAME"),
            "station": stations[0] if stations else None,
        }

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Add the interface to the bridge, or remove it; the kernel then drops its entries."""
        index = host.index(target)
        if value is None:
            host.rtnl("link", "set", index=index, master=0)
            return
        host.rtnl("link", "set", index=index, master=host.index(value["bridge"]))
        flooding = dict.fromkeys(("learning", "unicast_flood", "mcast_flood", "bcast_flood"), 0)
        host.rtnl("brport", "set", index=index, **flooding)
        static = {"state": NUD_NOARP | NUD_REACHABLE, "flags": NTF_MASTER}
        host.rtnl("fdb", "append", ifindex=index, lladdr=value["station"], **static)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "set", target, "nomaster"] if value is None else None


class Vxlan(Kind):
    """A VXLAN interface to a single other end, over IPv4.

    Value: {vni, local, remote, ttl}, or null. It learns no other end from what comes in, and stands
    on no interface: its MTU is its own.
    """

    instead: Mapping[int, str] = {
        errno.EEXIST: "remove that interface, or choose another name",
        errno.EOPNOTSUPP: "the kernel lacks CONFIG_VXLAN",
    }

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return its ends; None if it is no such interface."""
        known = vxlan.facts(host, target) if _existing(host, target) is not None else None
        if known is None:
            return None
        ends = {"vni": known.vni, "local": known.local, "remote": known.remote}
        return {**ends, "ttl": known.ttl}

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Create it, or delete it."""
        if value is None:
            host.rtnl("link", "del", index=host.index(target))
            return
        ends = {"vxlan_local": value["local"], "vxlan_group": value["remote"]}
        more = {"vxlan_ttl": value["ttl"], "vxlan_port": vxlan.PORT, "vxlan_learning": 0}
        own = {"ifname": target, "vxlan_id": value["vni"], **ends, **more}
        host.rtnl("link", "add", kind="vxlan", **own)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        return ["ip", "link", "del", target] if value is None else None


NTF_SELF = 0x02
NUD_PERMANENT = 0x80
NO_NETWORK = 0xFFFFFF
"""A VNI that no tunnel of a built-in lab has."""


class Astray(Kind):
    """A MAC to which frames leave a tunnel's bridge for a network that nobody has."""

    def read(self, host: Host, target: str) -> Optional[bool]:
        """Return true if there is such an entry."""
        interface, _, mac = target.partition("/")
        index = host.index(interface)
        entries = host.rtnl("fdb", "dump", ifindex=index)
        return True if (index, mac, NO_NETWORK) in map(_network_of, entries) else None

    def write(self, host: Host, target: str, value: Optional[bool]) -> None:
        """Make the entries of the tunnel and of its bridge, or remove them."""
        interface, _, mac = target.partition("/")
        own = vxlan.facts(host, interface)
        if own is None:
            raise OSError(errno.EINVAL, f"{interface} is no VXLAN interface")
        verb, to = ("del" if value is None else "append"), host.index(interface)
        ends = {"ifindex": to, "lladdr": mac}
        static = {"state": NUD_NOARP | NUD_REACHABLE, "flags": NTF_MASTER}
        host.rtnl("fdb", verb, **ends, **static)
        own_entry = {"state": NUD_PERMANENT, "flags": NTF_SELF, "vni": NO_NETWORK}
        host.rtnl("fdb", verb, dst=own.remote, **ends, **own_entry)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that deletes it."""
        interface, _, mac = target.partition("/")
        return ["bridge", "fdb", "del", mac, "dev", interface] if value is None else None


def _network_of(entry: Any) -> tuple[int, str, Any]:
    """Return the interface, the MAC and the VNI of an entry."""
    return entry["ifindex"], str(entry.get_attr("NDA_LLADDR")), entry.get_attr("NDA_VNI")


KINDS: Mapping[str, Kind] = {
    "up": Up(),
    "mtu": Mtu(),
    "txqueuelen": Txqueuelen(),
    "link": Link(),
    "bridge": Bridge(),
    "vxlan": Vxlan(),
    "port": Port(),
    "astray": Astray(),
}
