"""Kind ``route``, and what is lost permanently when forwarding is switched on."""

from __future__ import annotations

import errno
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Optional, Union

from udpbench.agent.host import files
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind

RT_TABLE_MAIN = 254  # include/uapi/linux/rtnetlink.h
RTPROT_KERNEL = 2
RTPROT_STATIC = 4
IP6_RT_PRIO_USER = 1024  # include/net/ip6_route.h
ON_LINK = "link"
WAY_DEADLINE_S = 3.0


def _is_wanted(message: Any, requested: Union[IPv4Network, IPv6Network]) -> bool:
    any_address = "0.0.0.0" if requested.version == 4 else "::"  # noqa: S104 - the default route
    where = message.get_attr("RTA_DST") or any_address
    metric = message.get_attr("RTA_PRIORITY") or 0
    return (
        message["proto"] != RTPROT_KERNEL
        and metric == (0 if requested.version == 4 else IP6_RT_PRIO_USER)
        and ip_network(f"{where}/{message['dst_len']}") == requested
    )


def _await_way(host: Host, index: int, gateway: str) -> None:
    """Wait until the gateway is reachable: IPv6 has no route to it until the carrier is known.

    The kernel notices a carrier up to a second after the interface is up (linkwatch).
    """

    def is_there() -> bool:
        try:
            return bool(host.rtnl("route", "get", dst=gateway, oif=index))
        except OSError:
            return False

    host.wait_for(f"no route to the gateway {gateway}", is_there, WAY_DEADLINE_S)


def _split_route(host: Host, target: str) -> tuple[int, Union[IPv4Network, IPv6Network]]:
    interface, _, network = target.partition("/")
    return host.index(interface), ip_network(network)


class Route(Kind):
    """A route over an interface, ``receive0/10.1.0.0/16``; its gateway, "link", or null.

    Only routes in the main table with the default metric, without those that the kernel adds with
    an address.
    """

    diverts = True
    instead: Mapping[int, str] = {errno.EEXIST: "remove that route, or leave it out"}

    def read(self, host: Host, target: str) -> Optional[str]:
        """Return the route's gateway; ``link`` if it has none."""
        index, requested = _split_route(host, target)
        family = socket.AF_INET if requested.version == 4 else socket.AF_INET6
        for message in host.rtnl("route", "dump", family=family, table=RT_TABLE_MAIN, oif=index):
            if _is_wanted(message, requested):
                return str(message.get_attr("RTA_GATEWAY") or ON_LINK)
        return None

    def write(self, host: Host, target: str, value: Optional[str]) -> None:
        """Add or delete the route; another route to the same network is never replaced."""
        index, requested = _split_route(host, target)
        now = self.read(host, target)
        self.check(host, target, value, now)
        gateway = value if value is not None else now
        fields: dict[str, Any] = {"dst": str(requested), "oif": index, "table": RT_TABLE_MAIN}
        # Also to delete: the kernel takes any protocol, and of IPv6 the lowest metric, without.
        fields["proto"] = RTPROT_STATIC
        if requested.version == 6:
            fields["priority"] = IP6_RT_PRIO_USER
        if gateway not in (None, ON_LINK):
            fields["gateway"] = gateway
            if value is not None:
                _await_way(host, index, str(gateway))
        elif requested.version == 4:
            fields["scope"] = "link"  # also to delete: ESRCH with another scope
        host.rtnl("route", "add" if value is not None else "del", **fields)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare gateways, which are in the kernel's notation."""
        return bool((requested and requested.lower()) == got)

    def check(self, _host: Host, target: str, value: Optional[str], now: Optional[str]) -> None:
        """Refuse to replace a route."""
        if value is not None and now is not None:
            network = target.partition("/")[2]
            raise OSError(errno.EEXIST, f"a route to {network} via {now} already exists")

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, network = target.partition("/")
        gateway = ["via", value] if value not in (None, ON_LINK) else []
        verb = "del" if value is None else "add"
        own = ["proto", "static"]
        if ip_network(network).version == 6:
            own += ["metric", str(IP6_RT_PRIO_USER)]
        return ["ip", "route", verb, network, *gateway, "dev", interface, *own]


# Lost permanently when forwarding is switched on: advertised IPv6 routes, and LRO.
#
# Switching forwarding off restores neither, so switching it on is refused.

ADVERTISED_ROUTES = "/proc/net/ipv6_route"
RTF_DEFAULT = 0x00010000  # include/uapi/linux/ipv6_route.h
RTF_ADDRCONF = 0x00040000
ACCEPTED_ALL_THE_SAME = "2"
"""Value of accept_ra that learns and keeps routes while forwarding."""
LRO = "rx-lro"
_FORWARDING = re.compile(r"net/(?:ipv4/ip_forward|(ipv[46])/conf/([^/]+)/forwarding)")


def check_forwarding(host: Host, name: str) -> None:
    """Raise OSError EBUSY if switching a parameter on would lose something permanently.

    net/ipv6/addrconf.c: addrconf_fixup_forwarding(); net/ipv4/devinet.c: inet_forward_change().
    """
    match = _FORWARDING.fullmatch(name)
    if match is None or match.group(2) == "default":
        return
    version, where = match.group(1) or "ipv4", match.group(2) or "all"
    learnt = sorted(set(_learnt(host))) if version == "ipv6" else []
    if learnt:
        step = shlex.join(f"net/ipv6/conf/{interface}/accept_ra=2" for interface in learnt)
        raise OSError(
            errno.EBUSY,
            f"{name} would permanently remove routes advertised on {', '.join(learnt)}, "
            f"and could cut SSH; to keep them: sysctl -w {step}",
        )
    merging = [interface for interface in _affected(host, where) if _merges(host, interface)]
    if merging:
        step = "; ".join(f"ethtool -K {shlex.quote(interface)} lro off" for interface in merging)
        what = f"{name} would permanently switch off LRO on {', '.join(merging)}"
        raise OSError(errno.EBUSY, f"{what}; switch it off before the run: {step}")


def _learnt(host: Host) -> Iterator[str]:
    """Yield the interfaces of the namespace whose advertised routes the kernel would purge."""
    for line in files.lines_of(files.read(host, ADVERTISED_ROUTES)):
        *_, flags, interface = line.split()
        if int(flags, 16) & (RTF_DEFAULT | RTF_ADDRCONF):
            accept = files.read(host, f"/proc/sys/net/ipv6/conf/{interface}/accept_ra")
            if accept != ACCEPTED_ALL_THE_SAME:
                yield interface


def _affected(host: Host, where: str) -> list[str]:
    """Return an interface and its lower interfaces, or all interfaces."""
    if where == "all":
        return files.names(host, "/sys/class/net")
    return [where, *files.beneath(host, where)]


def _merges(host: Host, interface: str) -> bool:
    try:
        return host.features(interface).get(LRO, False)
    except OSError:  # /sys/class/net/bonding_masters, or an interface without ethtool
        return False


KINDS: Mapping[str, Kind] = {"route": Route()}
