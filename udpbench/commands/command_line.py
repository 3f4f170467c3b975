"""The command line: its verbs, each a file of ``verbs``, where they are parsed and printed.

Every import that costs time is inside a verb, so that ``udpbench --help`` answers at once. Errors
are raised; ``__main__`` prints them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from udpbench.commands.verbs import (
    campaign,
    compare,
    deploy,
    doctor,
    facts,
    history,
    init,
    plan,
    report,
    restore,
    run,
    schema,
    selftest,
    show,
    tune,
    watch,
)
from udpbench.commands.verbs.output import own_version

app = typer.Typer(
    help="How many UDP packets per second can this host receive, and where are the rest lost?",
    rich_markup_mode=None,
    add_completion=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"udpbench {own_version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Options before the verb."""


app.command()(init.init)
app.command()(deploy.deploy)
app.command()(plan.plan)
app.command()(doctor.doctor)
app.command()(facts.facts)
app.command()(selftest.selftest)
app.command()(run.run)
app.command()(tune.tune)
app.command()(show.show)
app.command()(compare.compare)
app.command()(history.history)
app.command()(report.report)
app.command(cls=campaign.ManyLabs)(campaign.campaign)
app.command()(restore.restore)
app.command()(watch.watch)
app.command()(schema.schema)
