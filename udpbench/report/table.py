"""The final tables on the terminal: points, the ledger, findings and expectations.

Every number comes from a ``Result`` or an ``Estimate``; an invalid trial is struck out with its
reason, never left out. Colour only repeats what a word says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from udpbench.analysis.points import Point, bounds, estimate, metric
from udpbench.model import Result
from udpbench.report.story import (
    LAB_LABEL,
    Chapter,
    accounted,
    findings_of,
    in_groups,
    n_of,
    name_of,
    not_run,
    show_estimate,
    show_number,
    trials_label,
)
from udpbench.units import show_pps, show_ratio

POINT_COLUMNS = ("point", "valid", "offered", "delivered [interval]", "lost", "spread")
ANSWER_STYLE = {"yes": "green", "no": "red", "cannot tell": "yellow", "skipped": "dim"}
SEVERITY_STYLE = {"invalid": "red", "warning": "yellow", "note": "dim"}
WIDE_COLUMNS = {
    "delay_p50_ns": "delay p50",
    "delay_p99_ns": "delay p99",
    "round_trip_p99_ns": "trip p99",
    "pacing_p99_ns": "pacing p99",
}
"""What a wide terminal shows as well, of points that know it."""
NARROW, WIDE_WIDTH = 80, 12
"""The columns that every table has need so many; each further one so many more."""
STAGE_WIDTH, POINT_WIDTH, SOURCE_WIDTH = 17, 14, 24
"""Columns of a ledger on a terminal, gaps included; a point's holds 999 999 999 packets."""


def print_chapter(console: Console, chapter: Chapter) -> None:
    """Print one experiment: its question, results, ledger, findings and expectations."""
    console.print()
    console.print(Text(chapter.experiment.question, style="bold"))
    if chapter.built_in_lab:
        console.print(Text(LAB_LABEL, style="dim"))
    for part in parts(chapter, console.width):
        console.print(part)


def parts(chapter: Chapter, width: int) -> Iterator[RenderableType]:
    """Yield what is printed of an experiment, in order, for a terminal of so many columns."""
    missing = not_run(chapter)
    if missing:
        yield Text(missing)
    if not chapter.points:
        return
    yield points_table(chapter, width)
    yield from ledger_tables(chapter, width)
    yield findings_table(chapter)
    if chapter.verdicts:
        yield verdicts_table(chapter)


def points_table(chapter: Chapter, width: int = NARROW) -> Table:
    """Return a row per point, and one struck out for each trial that is not valid.

    A terminal wider than most has times as well, where any point knows them.
    """
    known = [
        name for name in WIDE_COLUMNS if any(estimate(point, name) for point in chapter.points)
    ]
    more = known[: max(0, width - NARROW) // WIDE_WIDTH]
    table = Table(title="results", title_justify="left", title_style="bold", box=None)
    table.add_column(POINT_COLUMNS[0], overflow="fold")
    for title in (*POINT_COLUMNS[1:], *(WIDE_COLUMNS[name] for name in more)):
        # Of a narrow terminal the names of the points give way, and never a number.
        table.add_column(title, justify="right", no_wrap=True)
    for point in chapter.points:
        found = [estimate(point, name) for name in more]
        times = [show_number(one.median if one is not None else None, "ns") for one in found]
        table.add_row(*(Text(cell) for cell in (*point_cells(point), *times)))
        for result in point.results:
            if not result.valid:
                style = "dim" if result.status == "skipped" else "strike"
                times = [show_number(metric(result, name), "ns") for name in more]
                cells = (*invalid_cells(result), *times)
                table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def point_cells(point: Point) -> list[str]:
    """Return a point's row: medians over its valid trials."""
    offered, loss = estimate(point, "offered_pps"), estimate(point, "loss_ratio")
    spread = estimate(point, "delivered_pps_spread")
    delivered = estimate(point, "delivered_pps")
    return [
        name_of(point),
        f"{len(point.valid)}/{len(point.results)}",
        show_pps(offered.median if offered is not None else None),
        show_estimate(delivered) + (n_of(delivered, point) if delivered is not None else ""),
        show_ratio(loss.median if loss is not None else None),
        show_ratio(spread.median if spread is not None else None),
    ]


def invalid_cells(result: Result) -> list[str]:
    """Return the row of a trial that is not valid: what it measured, not to be believed."""
    return [
        f"  #{result.trial.repetition}",
        "invalid" if result.status == "done" else result.status,
        show_pps(result.offered_pps),
        show_pps(result.delivered_pps),
        show_ratio(result.loss_ratio),
        show_ratio(result.delivered_pps_spread),
    ]


def ledger_tables(chapter: Chapter, width: int) -> Iterator[Table]:
    """Yield where the packets of each point went: a column per point, as many as fit side by side.

    They are those of the point's representative trial; one that is invalid says so in its column.
    What a line was read from is said where packets ended; docs/ledger.md has it of every stage.
    """
    title = "ledger (packets of the trial of median delivery)"
    fit = max(1, (width - STAGE_WIDTH - SOURCE_WIDTH) // POINT_WIDTH)
    for group in in_groups(accounted(chapter), fit):
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.add_column("", no_wrap=True)
        # Names give way, so that what a line was read from keeps its words.
        rows = ledger_rows([result for _, result in group])
        least = max([POINT_WIDTH - 2, *(len(cell) for row in rows for cell in row.cells)])
        most = max(least, (width - STAGE_WIDTH - SOURCE_WIDTH - 2) // len(group) - 2)
        for point, result in group:
            valid = "" if result.valid else " (invalid)"
            head = Text(f"{name_of(point)} #{result.trial.repetition}{valid}", overflow="fold")
            table.add_column(head, justify="right", min_width=least, max_width=most)
        table.add_column("read from", overflow="fold", style="dim")
        for row in rows:
            indent = "  " if row.stage else ""
            style = "bold" if row.weighty else ""
            source = row.source if row.moved else ""
            table.add_row(indent + row.name, *row.cells, Text(source), style=style)
        yield table
        title = "ledger, continued"


@dataclass(frozen=True)
class LedgerRow:
    """One line of a ledger with the packets of several trials side by side."""

    name: str
    cells: tuple[str, ...]
    source: str
    stage: bool
    weighty: bool
    """What arrived, and what is unaccounted where that is not 0."""
    moved: bool
    """A packet ended there, or nobody can tell."""


def ledger_rows(results: Sequence[Result]) -> list[LedgerRow]:
    """Return the lines of a ledger, from what was intended to what remains."""
    entries = [
        {entry.stage: entry for entry in result.ledger.entries} if result.ledger is not None else {}
        for result in results
    ]
    stages = {stage: entry.source for one in entries for stage, entry in one.items()}
    received = "ledger_received_packets"
    names = ("intended_packets", "sent_packets", *stages, received, "unaccounted")
    return [
        LedgerRow(
            name if name in stages else name.removeprefix("ledger_").removesuffix("_packets"),
            tuple(packets_cell(result, name) for result in results),
            stages.get(name, ""),
            name in stages,
            name == received
            or (name == "unaccounted" and any(result.unaccounted for result in results)),
            any(bounds(result, name) != (0, 0) for result in results),
        )
        for name in names
    ]


def packets_cell(result: Result, name: str) -> str:
    """Return a count of packets for reading; the remainder keeps its sign.

    Where the kernel counted merged packets it is an interval: ``12 to 40``.
    """
    found = bounds(result, name)
    if found is None:
        return "not observable"
    low, high = found
    sign = "+" if name == "unaccounted" and low > 0 else ""
    return f"{sign}{thousands(low)}{'' if low == high else f' to {thousands(high)}'}"


def thousands(value: float) -> str:
    """Return a count with its digits in groups of three."""
    return f"{int(value):,}".replace(",", " ")


def findings_table(chapter: Chapter) -> Table:
    """Return each distinct finding once, with the trials it concerns; what invalidates first."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding, names in findings_of(chapter):
        severity = Text(finding.severity, style=SEVERITY_STYLE[finding.severity])
        table.add_row(severity, Text(f"{finding} [{trials_label(names)}]"))
    return table


def verdicts_table(chapter: Chapter) -> Table:
    """Return each expectation with its answer and the numbers that gave it."""
    table = Table(title="expectations", title_justify="left", title_style="bold", box=None)
    table.add_column("answer")
    table.add_column("expected", overflow="fold")
    table.add_column("measured", overflow="fold")
    for verdict in chapter.verdicts:
        answer = Text(verdict.answer, style=ANSWER_STYLE[verdict.answer])
        table.add_row(answer, Text(verdict.expected), Text(verdict.measured))
    return table
