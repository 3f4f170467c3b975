"""Kind ``mtu``: an interface's largest packet, in bytes of IP.

Below 1280 the kernel takes IPv6 from an interface, with addresses that nothing would give back, so
that is refused while it has any.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from udpbench.agent.host import Host

IPV6_MIN_MTU_BYTES = 1280  # RFC 8200, section 5


def read(host: Host, target: str) -> int:
    """Return the MTU in bytes."""
    return int(host.link(target).get_attr("IFLA_MTU"))


def write(host: Host, target: str, value: int) -> None:
    """Set the MTU in bytes."""
    index = host.index(target)
    if value < IPV6_MIN_MTU_BYTES:
        messages = host.rtnl("addr", "dump", index=index, family=socket.AF_INET6)
        own = [message.get_attr("IFA_ADDRESS") for message in messages]
        lost = [address for address in own if not ip_address(address).is_link_local]
        if lost:
            what = f"below {IPV6_MIN_MTU_BYTES} B {target} would lose {', '.join(lost)}"
            raise OSError(errno.EBUSY, what)
    host.rtnl("link", "set", index=index, mtu=value)
