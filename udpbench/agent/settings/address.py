"""Kind ``address``: one IP address on an interface, ``send0/10.0.0.1/24``; true, or null."""

from __future__ import annotations

import errno
import socket
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, Optional, Union

from udpbench.agent.host import Host
from udpbench.agent.settings import disruption

# Without duplicate address detection an IPv6 address can be used at once, not a second later.
IFA_F_NODAD = 2  # include/uapi/linux/if_addr.h


def read(host: Host, target: str) -> Optional[bool]:
    """Return true where the interface has the address with this very prefix length."""
    index, wanted = _split(host, target)
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    for message in host.rtnl("addr", "dump", index=index, family=family):
        # IFA_LOCAL is the own end where IFA_ADDRESS is the other end of a point-to-point link.
        own = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        if ip_interface(f"{own}/{message['prefixlen']}") == wanted:
            return True
    return None


def write(host: Host, target: str, value: Optional[bool]) -> None:
    """Add the address or take it away."""
    index, wanted = _split(host, target)
    fields: dict[str, Any] = {"address": str(wanted.ip), "prefixlen": wanted.network.prefixlen}
    if value and wanted.version == 6:
        fields["flags"] = IFA_F_NODAD
    if value or wanted.version == 6:
        host.rtnl("addr", "add" if value else "del", index=index, **fields)
        return
    had = disruption.belongings(host, index)
    host.rtnl("addr", "del", index=index, **fields)
    _give_back(host, index, [one for one in had if dict(one[1]).get("local") != str(wanted.ip)])


def _give_back(host: Host, index: int, had: list[disruption.Request]) -> None:
    """Make again what went with a first IPv4 address: later ones of its network, and routes.

    That is what somebody else has made under way. A route that led by our own address alone has no
    way any more, and stays away.
    """
    have = disruption.belongings(host, index)
    for request in had:
        try:
            disruption.give_back(host, [request], have)
        except OSError as error:
            if request[0] != "route" or error.errno not in (errno.ENETUNREACH, errno.EINVAL):
                raise


def _split(host: Host, target: str) -> tuple[int, Union[IPv4Interface, IPv6Interface]]:
    interface, _, address = target.partition("/")
    return host.index(interface), ip_interface(address)
