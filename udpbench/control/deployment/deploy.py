"""``udpbench deploy``: installs the agent on every host of a lab that needs it, or removes it.

And ``udpbench export --install`` and ``--remove``: the exporter of one host.

Every other command installs a missing agent when it connects (``ssh``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from udpbench.control.connections.channel import AGENT
from udpbench.control.connections.ssh import talk
from udpbench.control.deployment.deployer import Conversation, Deployer
from udpbench.errors import ConnectError, HostError
from udpbench.model.lab import Lab, Node


def deploy(lab: Lab, deployer: Deployer) -> None:
    """Install the agent on every host that needs it; ConnectError lists all failures."""

    def act(host: Node, line: Conversation) -> None:
        deployer.bring(line, host.connect.become is not None, "deploy", (AGENT,), None)

    _on_hosts(lab, act)


def remove(lab: Lab, deployer: Deployer) -> bool:
    """Remove the agent from every host; return whether none is left. Raises ConnectError."""
    left: list[bool] = []

    def act(host: Node, line: Conversation) -> None:
        left.append(not deployer.remove(line, host.connect.become is not None))

    _on_hosts(lab, act)
    return not any(left)


def install_exporter(
    host: Node, deployer: Deployer, version: str, unit: Callable[[str, str], str]
) -> tuple[str, list[str]]:
    """Run the exporter on a host; return the folder of its build, and what failed."""

    def act(line: Conversation) -> tuple[str, list[str]]:
        return deployer.bring_exporter(line, version, unit)

    return talk(host.name, host.connect, act)


def remove_exporter(host: Node, deployer: Deployer) -> bool:
    """Remove the exporter from a host; return whether nothing is left. Raises ConnectError."""
    return talk(host.name, host.connect, deployer.remove_exporter)


def deployed_hosts(lab: Lab) -> tuple[Node, ...]:
    """Return the hosts on which udpbench installs the agent: over SSH, without a ``python``."""
    return tuple(
        host for host in lab.hosts if host.connect.by == "ssh" and host.connect.python is None
    )


def _on_hosts(lab: Lab, act: Callable[[Node, Conversation], None]) -> None:
    """Do the same on every host, continuing after one that fails."""
    failures: list[HostError] = []
    for host in deployed_hosts(lab):
        try:
            talk(host.name, host.connect, partial(act, host))
        except HostError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ConnectError("\n".join(map(str, failures)))
