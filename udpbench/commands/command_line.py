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
    export,
    facts,
    helping,
    history,
    init,
    plan,
    report,
    restore,
    run,
    schema,
    selftest,
    serve,
    show,
    store,
    tune,
    watch,
)
from udpbench.installation import named_version

FIRST = "First: udpbench run smoke (here), or udpbench watch. Then: udpbench help run"
app = typer.Typer(
    help="How many UDP packets per second can this host receive, and where are the rest lost?",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"udpbench {named_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=FIRST)
def program(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Options before the verb; without a verb, the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


BRIEFLY = {
    facts.facts: "Write what the hosts report about themselves, anonymized.",
    selftest.selftest: "Lose packets on purpose: is the ledger right on these kernels?",
    tune.tune: "Try what the diagnosis recommends; keep and print what helps.",
    compare.compare: "Which point, or run, is better? Exit with 1 if one is worse.",
    history.history: "Print each point's medians by day, and where they changed.",
    report.report: "Write the report of stored runs, or their data as files.",
    campaign.campaign: "Run experiments on many pairs of hosts, in parallel.",
    serve.serve: "Serve any iperf3 client: where did this host lose its packets?",
    watch.watch: "Watch a live host: which socket drops packets, and why?",
    export.export: "Export what this host loses to Prometheus; record it.",
    show.show: "Print the result of a stored run, or what a recording lost.",
}
"""For the list of all verbs, whose line has no room for their own first sentence."""
for verb in (
    init.init,
    deploy.deploy,
    plan.plan,
    doctor.doctor,
    facts.facts,
    selftest.selftest,
    run.run,
    tune.tune,
    show.show,
    compare.compare,
    history.history,
    report.report,
    campaign.campaign,
    restore.restore,
    watch.watch,
    export.export,
    serve.serve,
):
    many = campaign.ManyLabs if verb is campaign.campaign else None
    app.command(cls=many, short_help=BRIEFLY.get(verb))(verb)
app.add_typer(store.store, name="store")
app.command()(schema.schema)
app.command(name="help")(helping.show_help)
