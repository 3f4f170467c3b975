"""The verb ``init``."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import Wheels
from udpbench.commands.verbs.output import say
from udpbench.commands.verbs.reach import Prompts, say_of_host
from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    pass


def init(
    left: Annotated[
        str | None, typer.Argument(metavar="LEFT", help="the sender: [user@]host[:port], or local")
    ] = None,
    right: Annotated[
        str | None, typer.Argument(metavar="RIGHT", help="the receiver, in the same form")
    ] = None,
    left_interface: Annotated[str | None, typer.Option(help="interface of the sender")] = None,
    right_interface: Annotated[str | None, typer.Option(help="interface of the receiver")] = None,
    addresses: Annotated[
        str | None, typer.Option(help="a network for both hosts' addresses, or existing")
    ] = None,
    left_cpus: Annotated[str | None, typer.Option(help="CPUs of the sender")] = None,
    right_cpus: Annotated[str | None, typer.Option(help="CPUs of the receiver")] = None,
    become: Annotated[str | None, typer.Option(help="sudo: become root with sudo")] = None,
    python: Annotated[str | None, typer.Option(help="the hosts' Python")] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="prove links with ARP requests, one at a time")
    ] = False,
    out: Annotated[Path, typer.Option(help="lab file to write")] = Path("lab.yaml"),
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="write the experiment NAME.yaml")
    ] = None,
    wheels: Wheels = None,
) -> None:
    """Write a lab file for two hosts, or an experiment to start from."""
    from udpbench.commands import init as files
    from udpbench.control.agents import real
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.control.lab_lock import Surroundings

    if experiment is not None:
        say(f"experiment: {files.write_experiment(experiment)}")
    if left is None or right is None:
        if experiment is not None and left is None:
            return
        step = "name two SSH destinations, or write an experiment with --experiment NAME"
        if left is not None:
            step = "name RIGHT: an SSH destination, or local"
        given = [("LEFT", left), ("RIGHT", right)]
        missing = [Problem("missing", name, None, "", step) for name, to in given if to is None]
        raise InputError(missing)
    interfaces, cpus = (left_interface, right_interface), (left_cpus, right_cpus)
    options = files.InitOptions(
        left, right, interfaces, addresses, cpus, become, python, probe, out
    )
    around = Surroundings(real(Deployer(say_of_host, wheels)))
    path = files.write_lab(options, Prompts() if sys.stdin.isatty() else None, say, around)
    say(f"lab: {path}; next: udpbench doctor --lab {quote(str(path))}")
