"""The verb ``deploy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import LabName, Wheels
from udpbench.commands.verbs.output import say
from udpbench.commands.verbs.reach import say_of_host
from udpbench.errors import HostError, InputError, Problem

if TYPE_CHECKING:
    pass


def deploy(
    lab: LabName,
    remove: Annotated[
        bool, typer.Option("--remove", help="remove every build of the agent")
    ] = False,
    wheels: Wheels = None,
) -> None:
    """Bring the agent to a lab's hosts, or remove it."""
    from udpbench.control.deployment import deploy as deployment
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.definition.load import load_lab

    chosen_lab = load_lab(lab)
    hosts = ", ".join(host.name for host in deployment.deployed_hosts(chosen_lab))
    if not hosts:
        limit = "a lab with a host reached by SSH, without a Python named"
        raise InputError([Problem("no host of this lab needs an agent", "--lab", lab, limit)])
    deployer = Deployer(say_of_host, wheels)
    if not remove:
        deployment.deploy(chosen_lab, deployer)
        say(f"deployed: {hosts}")
    elif not deployment.remove(chosen_lab, deployer):
        raise HostError(
            "some files remain; run the same command again once they are no longer in use"
        )
