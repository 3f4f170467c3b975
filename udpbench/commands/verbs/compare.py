"""The verb ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import runs_like
from udpbench.commands.verbs.output import open_console, print_json, read_stored, reader_may_leave
from udpbench.commands.verbs.reach import real_path
from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from udpbench.commands.compare import Choice, RunComparison
    from udpbench.records.run import Run


def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="a run (default: the last); or a base and a run",
            autocompletion=runs_like,
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="the base run for all RUNs; repeatable"),
    ] = None,
    a: Annotated[
        str | None, typer.Option(metavar="POINT", help="the base point of one run")
    ] = None,
    b: Annotated[
        str | None, typer.Option(metavar="POINT", help="the point to compare with the base")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="the metric to compare")] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="RATIO", help="a change too small to matter, such as 3%")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
) -> None:
    """Compare points of a run, or runs point by point; exit with 1 if any is worse."""
    from udpbench.commands.compare import compare_runs, compare_within
    from udpbench.report.json_output import comparisons_json

    base, named = _sides(runs or [], against or [])
    choice = _choice((a, b), metric, margin, bool(base))
    if base:
        comparison = compare_runs(read_side(base), read_side(named) or [read_stored(None)], choice)
    else:
        comparison = compare_within(read_stored(named[0] if named else None), choice)
    with reader_may_leave():
        if as_json:
            data = comparisons_json(
                *(comparison.comparisons, comparison.runs, comparison.notes, comparison.changes)
            )
            print_json(data)
        else:
            print_comparisons(comparison)
    raise typer.Exit(comparison.exit_code)


def refuse_metric(metric: str | None) -> None:
    """Raise InputError if there is no such metric, nor stage of the ledger."""
    from udpbench.definition.expectations import KNOWN
    from udpbench.definition.problems import did_you_mean

    if metric is not None and metric not in KNOWN:
        step = did_you_mean(metric, KNOWN)
        raise InputError([Problem("unknown metric", "--metric", metric, next_step=step)])


def _sides(runs: list[Path], against: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the base runs and the runs to compare with them; the base may be empty."""
    if against:
        return against, runs
    if len(runs) > 2:
        step = "name those of the base with --against"
        raise InputError(
            [Problem("more than two runs", "RUN", limit="RUN_A RUN_B", next_step=step)]
        )
    return (runs[:1], runs[1:]) if len(runs) == 2 else ([], runs)


def read_side(folders: Sequence[Path] | None) -> list[Run]:
    """Return the runs of one side, each once."""
    each = {real_path(folder): folder for folder in folders or ()}
    return [read_stored(folder) for folder in each.values()]


def _choice(
    points: tuple[str | None, str | None], metric: str | None, margin: str | None, several: bool
) -> Choice:
    """Return the requested comparison; raises InputError."""
    from udpbench.commands.compare import Choice
    from udpbench.units import parse_ratio

    problems, ratio = [], None
    if (points[0] is None) != (points[1] is None):
        problems.append(Problem("only one point", "--a, --b", limit="name both, or neither"))
    if points[0] is not None and points[0] == points[1]:
        what, step = (
            "the same point twice",
            "udpbench run --same measures a point against itself",
        )
        problems.append(Problem(what, "--a, --b", points[0], next_step=step))
    if points != (None, None) and several:
        what = "two runs are compared point by point"
        problems.append(Problem(what, "--a, --b", next_step="omit them, or name one run"))
    try:
        ratio = parse_ratio(margin) if margin is not None else None
    except ValueError as error:
        problems.append(Problem(str(error), "--margin", margin))
    if ratio is not None and not 0 < ratio < 1:
        problems.append(Problem("out of range", "--margin", margin, "above 0 and below 100%"))
    if problems:
        raise InputError(problems)
    return Choice(*points, metric, ratio)


def print_comparisons(comparison: RunComparison) -> None:
    """Print comparisons, and what they rest on."""
    from udpbench.report.tables import changes_parts, comparison_parts, hints

    console = open_console()
    compared = comparison_parts(comparison.comparisons)
    apart = hints(comparison.told_by_loss)
    for part in (*comparison.notes, *compared, *apart, *changes_parts(comparison.changes)):
        console.print(part)
