"""The verb ``campaign``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from udpbench.commands.verbs.options import AllowRead, Names, Sets
from udpbench.commands.verbs.output import RESULTS, open_console, reader_may_leave, say
from udpbench.errors import worst_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from udpbench.campaign.cells import CampaignFolder, Cell


def spread(words: Sequence[str], option: str) -> list[str]:
    """Return a command line with an option before each of its values: a shell expands patterns."""
    spread_words: list[str] = []
    within = False
    for word in words:
        if within and not word.startswith("-") and spread_words[-1] != option:
            spread_words.append(option)
        within = word == option or (within and not word.startswith("-"))
        spread_words.append(word)
    return spread_words


class ManyLabs(TyperCommand):
    """A verb whose ``--labs`` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse each further word as if it followed an option of its own."""
        return super().parse_args(ctx, spread(args, "--labs"))


def campaign(
    names: Names,
    labs: Annotated[
        list[str], typer.Option("--labs", metavar="LAB...", help="lab files: the pairs of hosts")
    ],
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="a Dask scheduler (default: workers in this process)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="folder of all runs")] = None,
    sets: Sets = None,
    allow_read: AllowRead = None,
    share: Annotated[
        bool, typer.Option("--share", help="run alongside other runs; every trial gets a finding")
    ] = False,
    store: Annotated[
        str | None, typer.Option(metavar="PATH", help="put the runs into this store at the end")
    ] = None,
) -> None:
    """Run experiments on many pairs of hosts in parallel; the same command continues it."""
    from udpbench.campaign.campaign_view import campaign_view, summary
    from udpbench.campaign.cells import CampaignFolder, cells_of, load_labs
    from udpbench.campaign.conduct import conduct
    from udpbench.campaign.engines import open_engine
    from udpbench.control.wait import Interrupt
    from udpbench.definition.load import load_experiments

    cells = cells_of(load_experiments(names, sets or (), allow_read or ()), load_labs(labs))
    interrupt = Interrupt()
    pairs = len({cell.pair for cell in cells})
    with (
        interrupt.caught(),
        open_engine(scheduler, pairs, lambda text: say(text, sys.stderr)) as engine,
        CampaignFolder.open(out or RESULTS / "campaign") as folder,
        campaign_view(sys.stdout) as tell,
    ):
        states = conduct(cells, folder, engine, tell, interrupt, share)
    with reader_may_leave():
        for line in summary(states):
            say(line)
        say(f"run folders: {folder.path}")
        say_answer([folder.path / c.folder for c in cells if folder.result_of(c) is not None])
    if store is not None:
        _store_campaign(cells, folder, store)
    raise typer.Exit(worst_code(state.exit_code for state in states))


def say_answer(folders: Sequence[Path]) -> None:
    """Print the question and the answer of the runs that are complete."""
    from rich.text import Text

    from udpbench.report.campaign.campaign_answer import answer, question
    from udpbench.store.pairs import beside
    from udpbench.store.run_folders import readable_runs, trials_of

    runs, _ = readable_runs(folders)
    trials, _ = trials_of(runs)
    if not trials.empty:
        console = open_console()
        console.print(Text(question(trials), style="bold"))
        console.print(Text(answer(trials, beside(trials))))


def _store_campaign(cells: Sequence[Cell], folder: CampaignFolder, store: str) -> None:
    """Put all complete runs of a campaign into a store; a run replaces its earlier copy."""
    from udpbench.campaign.cells import pairs_of
    from udpbench.store.dataset import write_runs

    for pair, own in pairs_of(cells).items():
        runs = [folder.path / cell.folder for cell in own if folder.result_of(cell) is not None]
        write_runs(runs, store, campaign=folder.path.name, pair=pair)
    with reader_may_leave():
        say(f"store: {store}")
