"""The interface by which the controller talks to this agent: a flood there must be seen."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.processes import lineage
from udpbench.agent.host.system import Host


def control_interface(host: Host) -> Optional[str]:
    """Return the interface by which replies leave for the controller; None if not over SSH.

    The client's address stands first in SSH_CONNECTION (sshd(8)), UNKNOWN if sshd serves no
    socket of the network: then control comes by a proxy on this very host.
    """
    client = (ssh_connection(host) or "").partition(" ")[0].partition("%")[0]
    try:
        route = host.rtnl("route", "get", dst=str(ipaddress.ip_address(client)))[0]
        return socket.if_indextoname(route.get_attr("RTA_OIF"))
    except (ValueError, OSError):
        return None


def ssh_connection(host: Host) -> Optional[str]:
    """Return SSH_CONNECTION of this process or of an ancestor: sudo drops it from its own child."""
    for pid in lineage(host, os.getpid()):
        with suppress(OSError):
            if (connection := host.environ(pid).get("SSH_CONNECTION")) is not None:
                return connection
    return os.environ.get("SSH_CONNECTION")
