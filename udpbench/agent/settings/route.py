"""Kind ``route``: a route by an interface, ``receive0/10.1.0.0/16``; its gateway, "link", or null.

Only routes of the main table with the default metric that people or programs have set; what the
kernel adds with an address is not among them.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Optional, Union

from udpbench.agent.host import Host

RT_TABLE_MAIN = 254  # include/uapi/linux/rtnetlink.h
RTPROT_KERNEL = 2
RTPROT_STATIC = 4
IP6_RT_PRIO_USER = 1024  # include/net/ip6_route.h
ON_LINK = "link"
WAY_DEADLINE_S = 3.0


def read(host: Host, target: str) -> Optional[str]:
    """Return the gateway of the route; ``link`` where it has none."""
    index, wanted = _split(host, target)
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    for message in host.rtnl("route", "dump", family=family, table=RT_TABLE_MAIN, oif=index):
        if _is_wanted(message, wanted):
            return str(message.get_attr("RTA_GATEWAY") or ON_LINK)
    return None


def _is_wanted(message: Any, wanted: Union[IPv4Network, IPv6Network]) -> bool:
    any_address = "0.0.0.0" if wanted.version == 4 else "::"  # noqa: S104 - the default route
    where = message.get_attr("RTA_DST") or any_address
    metric = message.get_attr("RTA_PRIORITY") or 0
    return (
        message["proto"] != RTPROT_KERNEL
        and metric == (0 if wanted.version == 4 else IP6_RT_PRIO_USER)
        and ip_network(f"{where}/{message['dst_len']}") == wanted
    )


def write(host: Host, target: str, value: Optional[str]) -> None:
    """Add the route or take it away; another one to the same network is never replaced."""
    index, wanted = _split(host, target)
    now = read(host, target)
    check(host, target, value, now)
    gateway = value if value is not None else now
    fields: dict[str, Any] = {"dst": str(wanted), "oif": index, "table": RT_TABLE_MAIN}
    if gateway not in (None, ON_LINK):
        fields["gateway"] = gateway
        if value is not None:
            _await_way(host, index, str(gateway))
    elif wanted.version == 4:
        fields["scope"] = "link"  # also to delete: a scope that differs finds no route (ESRCH)
    if value is not None:
        fields["proto"] = RTPROT_STATIC
    host.rtnl("route", "add" if value is not None else "del", **fields)


def check(_host: Host, target: str, value: Optional[str], now: Optional[str]) -> None:
    """Refuse to replace a route."""
    if value is not None and now is not None:
        network = target.partition("/")[2]
        raise OSError(errno.EEXIST, f"a route to {network} by {now} is there already")


def _await_way(host: Host, index: int, gateway: str) -> None:
    """Wait until the gateway is on the link: IPv6 has no route to it before the carrier is known.

    The kernel learns of a carrier up to a second after the interface is up (linkwatch).
    """

    def is_there() -> bool:
        try:
            return bool(host.rtnl("route", "get", dst=gateway, oif=index))
        except OSError:
            return False

    host.wait_for(f"a way to the gateway {gateway}", is_there, WAY_DEADLINE_S)


def same(wanted: Any, got: Any) -> bool:
    """Compare gateways; they are spelled as the kernel spells them."""
    return bool((wanted and wanted.lower()) == got)


def _split(host: Host, target: str) -> tuple[int, Union[IPv4Network, IPv6Network]]:
    interface, _, network = target.partition("/")
    return host.index(interface), ip_network(network)
