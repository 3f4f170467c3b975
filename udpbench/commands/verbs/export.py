"""The verb ``export``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import Wheels
from udpbench.commands.verbs.output import own_version, say
from udpbench.commands.verbs.reach import say_of_host
from udpbench.errors import YES, HostError, InputError, Problem

if TYPE_CHECKING:
    from udpbench.export.run import Options

LISTEN = "127.0.0.1:10717"
"""Where a service serves its page unless it is to do something else."""

SHIPPED = {
    "rules": "udpbench.rules.yml",
    "dashboard": "udpbench.dashboard.json",
    "unit": "udpbench-export.service",
}


def export(
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS:PORT", help="serve /metrics there, such as 127.0.0.1:10717"),
    ] = None,
    textfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="write FILE.prom for node_exporter")
    ] = None,
    every: Annotated[str, typer.Option(metavar="TIME", help="look so often")] = "5s",
    record: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="record each second into this folder: show it by show"),
    ] = None,
    at_most: Annotated[str, typer.Option(metavar="SIZE", help="of the folder")] = "2GiB",
    exact: Annotated[
        bool, typer.Option("--exact", help="count each socket's packets by BPF (root)")
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a further label of sockets: address"),
    ] = None,
    shown: Annotated[
        str | None,
        typer.Option("--print", metavar="WHAT", help="print what ships: rules, dashboard or unit"),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="certificate of the page")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="its key")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="authority of clients' certificates")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="record what each CPU does, sampled (root)")
    ] = False,
    install: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="run it as a service of [user@]host[:port] by SSH"),
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="HOST", help="remove that service and what it wrote")
    ] = None,
    wheels: Wheels = None,
) -> None:
    """Export this host's losses to Prometheus, by stage and by socket. Changes no setting."""
    from udpbench.export.run import Options, run

    options = Options(
        listen,
        textfile,
        record,
        every,
        at_most,
        exact,
        tuple(label or ()),
        tls_cert,
        tls_key,
        tls_client_ca,
        cpu_time,
    )
    if shown is not None:
        say(shipped(shown).rstrip("\n"))
    elif install is not None and remove is not None:
        raise InputError([Problem("both are named", "--install, --remove", next_step="omit one")])
    elif install is not None:
        install_on(install, options, wheels)
    elif remove is not None:
        remove_from(remove, wheels)
    else:
        run(options, own_version(), partial(say, out=sys.stderr))
    raise typer.Exit(YES)


def install_on(destination: str, options: Options, wheels: Path | None) -> None:
    """Run an exporter on a host, and say what of it lies where; raises InputError, HostError."""
    from udpbench.agent import install
    from udpbench.control.deployment.deploy import install_exporter
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.control.watch import lab_to_watch
    from udpbench.export.service import check_service, unit_of

    if (options.listen, options.textfile, options.record) == (None, None, None):
        options = replace(options, listen=LISTEN)
    check_service(options)
    (host,) = lab_to_watch(destination, None).hosts
    unit = partial(unit_of, shipped("unit"), options)
    deployer = Deployer(say_of_host, wheels)
    folder, failed = install_exporter(host, deployer, own_version(), unit)
    written = [path for path in (options.textfile, options.record) if path is not None]
    units = [
        f"{install.UNITS}/{name}" for name in (install.UNIT, f"{install.WANTS}/{install.UNIT}")
    ]
    say(f"{host.name}: what stays there until --remove: {', '.join([folder, *units, *written])}")
    if failed:
        step = f"journalctl -u {install.UNIT} says why; correct it and install again, or --remove"
        raise HostError(f"installed, but it does not run: {'; '.join(failed)}; {step}", host.name)
    say(f"{host.name}: {install.UNIT} runs")


def remove_from(destination: str, wheels: Path | None) -> None:
    """Remove the exporter from a host; raises InputError, HostError."""
    from udpbench.control.deployment.deploy import remove_exporter
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.control.watch import lab_to_watch

    (host,) = lab_to_watch(destination, None).hosts
    if not remove_exporter(host, Deployer(say_of_host, wheels)):
        raise HostError("not all of it could be removed; remove the rest by hand", host.name)


def shipped(name: str) -> str:
    """Return a file that ships for monitoring; raises InputError."""
    from importlib.resources import files

    if name not in SHIPPED:
        raise InputError(
            [Problem("nothing of that name ships", "--print", name, ", ".join(SHIPPED))]
        )
    return (files("udpbench.export") / "shipped" / SHIPPED[name]).read_text()
