"""The verb ``history``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from udpbench.commands.verbs.compare import refuse_metric
from udpbench.commands.verbs.options import runs_like
from udpbench.commands.verbs.output import open_console, print_json, reader_may_leave, say
from udpbench.commands.verbs.store import STORE_HELP, read_trials


def history(
    store: Annotated[str, typer.Argument(metavar="DIR", help=STORE_HELP, autocompletion=runs_like)],
    point: Annotated[str | None, typer.Option(help="only one point")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="the metric (default: throughput_pps of a search, else delivered_pps)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
) -> None:
    """Print each point's medians by day and pair, and the days on which its level changed."""
    from udpbench.installation import how_to_add
    from udpbench.report.campaign.history_output import history_json, print_histories
    from udpbench.store.history import histories

    refuse_metric(metric)
    trials, source = read_trials(store, point)
    changed = histories(trials, metric)
    if find_spec("jumpavg") is None:
        say(f"changes of level are missing; to have them: {how_to_add('store')}", sys.stderr)
    with reader_may_leave():
        if as_json:
            print_json({**history_json(store, changed), "read": source})
        else:
            say(f"read: {store}: {source}")
            print_histories(open_console(), changed)
