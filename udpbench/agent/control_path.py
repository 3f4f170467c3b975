"""By which interface the controller talks to this agent: a flood there must not go unseen."""

from __future__ import annotations

import ipaddress
import socket
from typing import Optional

from udpbench.agent.host import Host
from udpbench.agent.settings.protected import ssh_connection


def control_interface(host: Host) -> Optional[str]:
    """Return the interface by which replies leave for the controller; None if not over SSH.

    The client's address stands first in SSH_CONNECTION (sshd(8)), UNKNOWN where sshd serves no
    socket of the network: then control comes by a proxy on this very host.
    """
    client = (ssh_connection(host) or "").partition(" ")[0].partition("%")[0]
    try:
        route = host.rtnl("route", "get", dst=str(ipaddress.ip_address(client)))[0]
        return socket.if_indextoname(route.get_attr("RTA_OIF"))
    except (ValueError, OSError):
        return None
