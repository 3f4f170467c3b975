"""The verb ``export``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from udpbench.commands.verbs.output import own_version, say
from udpbench.errors import YES, InputError, Problem

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
) -> None:
    """Export this host's losses to Prometheus, by stage and by socket. Changes no setting."""
    if shown is not None:
        say(shipped(shown).rstrip("\n"))
        raise typer.Exit(YES)
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
    )
    run(options, own_version(), partial(say, out=sys.stderr))
    raise typer.Exit(YES)


def shipped(name: str) -> str:
    """Return a file that ships for monitoring; raises InputError."""
    from importlib.resources import files

    if name not in SHIPPED:
        raise InputError(
            [Problem("nothing of that name ships", "--print", name, ", ".join(SHIPPED))]
        )
    return (files("udpbench.export") / "shipped" / SHIPPED[name]).read_text()
