"""The verb ``history``."""

from __future__ import annotations

from typing import Annotated

import typer

from udpbench.commands.verbs.compare import refuse_metric
from udpbench.commands.verbs.output import open_console, print_json, reader_may_leave


def history(
    store: Annotated[str, typer.Argument(metavar="DIR", help="a store: a folder, or s3://…")],
    point: Annotated[str | None, typer.Option(help="only one point")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="the metric (default: throughput_pps of a search, else delivered_pps)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
) -> None:
    """Print each point's medians by day and pair, and the days on which its level changed."""
    from udpbench.report.campaign.history_output import history_json, print_histories
    from udpbench.store.dataset import read_runs
    from udpbench.store.history import histories

    refuse_metric(metric)
    changed = histories(read_runs(store, point=point), metric)
    with reader_may_leave():
        if as_json:
            print_json(history_json(store, changed))
        else:
            print_histories(open_console(), changed)
