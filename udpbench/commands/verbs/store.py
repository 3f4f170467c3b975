"""The verb ``store``, and how other verbs read a store or run folders in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udpbench.commands.verbs.options import runs_like
from udpbench.commands.verbs.output import say
from udpbench.errors import RecordError
from udpbench.units import plural

if TYPE_CHECKING:
    from udpbench.records.run import Run

store = typer.Typer(help="Put stored runs into a store of many runs.", no_args_is_help=True)
STORE_HELP = "a store (a folder, or s3://…), or a folder of run folders"


@store.command()
def add(
    path: Annotated[
        str, typer.Argument(metavar="STORE", help="a folder, created if missing, or s3://…")
    ],
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="run folders, or folders of them",
            autocompletion=runs_like,
        ),
    ],
    campaign: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="what they belong to (default: the folder they are in)"),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the hosts (default: the lab of each run)"),
    ] = None,
) -> None:
    """Put runs into a store; a run that is there already replaces itself."""
    from udpbench.store.dataset import write_runs
    from udpbench.store.run_folders import campaign_of

    groups: dict[tuple[str, str], list[Path]] = {}
    for run in _read(runs):
        names = (campaign or campaign_of(run), pair or run.header.lab_name)
        groups.setdefault(names, []).append(run.folder)
    written = sum(
        len(write_runs(folders, path, campaign=name, pair=hosts))
        for (name, hosts), folders in groups.items()
    )
    say(f"store: {path}: {plural(written, 'run')} added")


def _read(paths: list[Path]) -> list[Run]:
    """Return the runs of some folders; says which are unreadable, RecordError if all are."""
    from udpbench.store.run_folders import readable_runs, run_folders

    empty = [path for path in paths if not run_folders(path)]
    if empty:
        where = ", ".join(map(str, empty))
        raise RecordError(f"{where}: neither a store nor a folder with run folders; name one")
    runs, problems = readable_runs(folder for path in paths for folder in run_folders(path))
    _say_left_out(problems, len(runs))
    return runs


def _say_left_out(problems: Sequence[str], readable: int) -> None:
    """Say which runs are unreadable; raises RecordError if no other is left."""
    if problems and not readable:
        raise RecordError("\n".join(problems))
    for problem in problems:
        say(f"left out: {problem}", sys.stderr)


def read_trials(path: str, point: str | None = None) -> tuple[Any, str]:
    """Return a frame with the trials of a store or of run folders, and in words which of both."""
    from udpbench.store.dataset import is_store, read_runs
    from udpbench.store.run_folders import trials_of

    if is_store(path):
        return read_runs(path, point=point), "store"
    runs = _read([Path(path)])
    trials, problems = trials_of(runs, point)
    left = len(runs) - len(problems)
    _say_left_out(problems, left)
    return trials, plural(left, "run folder")
