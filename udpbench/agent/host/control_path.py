"""The interface that carries the controller's connection, where test traffic must be detected."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.processes import lineage
from udpbench.agent.host.reading import ReadingHost as Host


def control_interface(host: Host) -> Optional[str]:
    """Return the interface by which replies leave for the controller; None if not over SSH.

    SSH_CONNECTION starts with the client's address (sshd(8)), or UNKNOWN if sshd does not serve a
    network socket: then the controller connects through a proxy on this host.
    """
    client = (ssh_connection(host) or "").partition(" ")[0].partition("%")[0]
    try:
        route = host.rtnl("route", "get", dst=str(ipaddress.ip_address(client)))[0]
        return socket.if_indextoname(route.get_attr("RTA_OIF"))
    except (ValueError, OSError):
        return None


def ssh_connection(host: Host) -> Optional[str]:
    """Return SSH_CONNECTION of this process or an ancestor, since sudo removes it for its child.

    As it was when it was first asked for: an ancestor may end, and each look takes 3 ms.
    """
    if host.ssh is None:
        host.ssh = os.environ.get("SSH_CONNECTION", "")
        for pid in lineage(host, os.getpid()):
            with suppress(OSError):
                if (connection := host.environ(pid).get("SSH_CONNECTION")) is not None:
                    host.ssh = connection
                    break
    return host.ssh or None
