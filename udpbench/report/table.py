"""The final tables on the terminal: points, the ledger, findings and expectations.

Every number comes from a ``Result`` or an ``Estimate``; an invalid trial is struck out with its
reason, never left out. Colour only repeats what a word says.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from udpbench.analysis.points import Point, estimate, metric
from udpbench.model import Result
from udpbench.report.story import (
    LAB_LABEL,
    Chapter,
    findings_of,
    name_of,
    representative,
    show_estimate,
)
from udpbench.units import show_pps, show_ratio

POINT_COLUMNS = ("point", "valid", "offered", "delivered [interval]", "lost", "spread")
ANSWER_STYLE = {"yes": "green", "no": "red", "cannot tell": "yellow", "skipped": "dim"}
SEVERITY_STYLE = {"invalid": "red", "warning": "yellow", "note": "dim"}


def print_chapter(console: Console, chapter: Chapter) -> None:
    """Print one experiment: its question, results, ledger, findings and expectations."""
    console.print()
    console.print(Text(chapter.experiment.question, style="bold"))
    if chapter.built_in_lab:
        console.print(Text(LAB_LABEL, style="dim"))
    for part in parts(chapter):
        console.print(part)


def parts(chapter: Chapter) -> Iterator[RenderableType]:
    """Yield what is printed of an experiment, in order."""
    if not chapter.points:
        yield Text("no trial ran")
        return
    yield points_table(chapter)
    if any(representative(point) is not None for point in chapter.points):
        yield ledger_table(chapter)
    yield findings_text(chapter)
    if chapter.verdicts:
        yield verdicts_table(chapter)


def points_table(chapter: Chapter) -> Table:
    """Return a row per point, and one struck out for each trial that is not valid."""
    table = Table(title="results", title_justify="left", title_style="bold", box=None)
    table.add_column(POINT_COLUMNS[0], overflow="fold")
    for title in POINT_COLUMNS[1:]:
        table.add_column(title, justify="right")
    for point in chapter.points:
        table.add_row(*(Text(cell) for cell in point_cells(point)))
        for result in point.results:
            if not result.valid:
                style = "dim" if result.status == "skipped" else "strike"
                table.add_row(*(Text(cell, style=style) for cell in invalid_cells(result)))
    return table


def point_cells(point: Point) -> list[str]:
    """Return a point's row: medians over its valid trials."""
    offered, loss = estimate(point, "offered_pps"), estimate(point, "loss_ratio")
    spread = estimate(point, "delivered_pps_spread")
    return [
        name_of(point),
        f"{len(point.valid)}/{len(point.results)}",
        show_pps(offered.median if offered is not None else None),
        show_estimate(estimate(point, "delivered_pps")),
        show_ratio(loss.median if loss is not None else None),
        show_ratio(spread.median if spread is not None else None),
    ]


def invalid_cells(result: Result) -> list[str]:
    """Return the row of a trial that is not valid: what it measured, not to be believed."""
    return [
        f"  #{result.trial.repetition}",
        "skipped" if result.status == "skipped" else "invalid",
        show_pps(result.offered_pps),
        show_pps(result.delivered_pps),
        show_ratio(result.loss_ratio),
        show_ratio(result.delivered_pps_spread),
    ]


def ledger_table(chapter: Chapter) -> Table:
    """Return where the packets of each point went: one column per point, one row per stage."""
    shown = [(point, representative(point)) for point in chapter.points]
    columns = [(point, result) for point, result in shown if result is not None and result.ledger]
    table = Table(
        title="ledger (packets of the trial of median delivery)",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    table.add_column("")
    for point, result in columns:
        valid = "" if result.valid else " (invalid)"
        table.add_column(f"{name_of(point)} #{result.trial.repetition}{valid}", justify="right")
    table.add_column("read from", overflow="fold", style="dim")
    results = [result for _, result in columns]
    for name in ("intended_packets", "sent_packets"):
        table.add_row(name.partition("_")[0], *(packets_cell(r, name) for r in results), "")
    for entry in results[0].ledger.entries if results[0].ledger is not None else ():
        table.add_row(
            f"  {entry.stage}", *(packets_cell(r, entry.stage) for r in results), entry.source
        )
    for name in ("received_packets", "unaccounted"):
        style = "bold" if name == "received_packets" or any(r.unaccounted for r in results) else ""
        cells = [packets_cell(r, name) for r in results]
        table.add_row(name.partition("_")[0], *cells, "", style=style)
    return table


def packets_cell(result: Result, name: str) -> str:
    """Return a count of packets for reading; the remainder keeps its sign."""
    value = metric(result, name)
    if value is None:
        return "not observable"
    sign = "+" if name == "unaccounted" and value > 0 else ""
    return sign + f"{int(value):,}".replace(",", " ")


def findings_text(chapter: Chapter) -> RenderableType:
    """Return each distinct finding once, with the trials it concerns."""
    lines = []
    for finding, names in findings_of(chapter):
        trials = names[0] if len(names) == 1 else f"{len(names)} trials"
        head = Text(f"{finding.severity:8}", style=SEVERITY_STYLE[finding.severity])
        lines.append(head + Text(f"{finding} [{trials}]", style="default"))
    return Group(*lines)


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
