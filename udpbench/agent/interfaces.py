"""The interfaces of this host, for the user to choose from; read-only."""

from __future__ import annotations

from udpbench.agent.host.control_path import ssh_connection
from udpbench.agent.host.facts import addresses, driver, link
from udpbench.agent.host.files import names, read
from udpbench.agent.host.system import Host
from udpbench.agent.settings.protected import protected
from udpbench.protocol import Interface, Interfaces

LOOPBACK = "lo"


def interfaces(host: Host) -> Interfaces:
    """Return every interface except loopback."""
    carrying = protected(host)
    listed = tuple(
        Interface(
            name=name,
            driver=driver(host, name),
            mac=read(host, f"/sys/class/net/{name}/address"),
            link=link(host, name),
            addresses=addresses(host, name),
            protected=name in carrying,
        )
        for name in names(host, "/sys/class/net")
        # The folder also has files such as bonding_masters.
        if name != LOOPBACK and host.exists(f"/sys/class/net/{name}/address")
    )
    connection = ssh_connection(host)
    return Interfaces(listed, connection.split()[0] if connection else None)
