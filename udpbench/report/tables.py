"""The final tables on the terminal: points, the ledger, findings and expectations.

Every number comes from a ``Result`` or an ``Estimate``; an invalid trial is crossed out with its
reason, never omitted. Colour only repeats what the text says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.analysis.ledger.ledger import OR, lost_at_any, unobserved
from udpbench.analysis.ledger.skbs import exactly
from udpbench.analysis.points import Point, bounds, estimate, metric
from udpbench.analysis.search import PointSearch
from udpbench.judged_run import Chapter, tuning_answer
from udpbench.model import LEDGER_STAGES, Finding, Result
from udpbench.report.search import COLUMNS as SEARCH_COLUMNS
from udpbench.report.search import breaking_lines, search_rows
from udpbench.report.summary import (
    LAB_LABEL,
    accounted,
    compared_name,
    diagnosed,
    findings_of,
    in_groups,
    is_aside,
    left_out,
    merged,
    n_of,
    name_of,
    not_measured,
    not_run,
    resolved,
    show_estimate,
    show_number,
    trials_label,
    word_of,
)
from udpbench.units import plural, show_count, show_pps, show_ratio

POINT_COLUMNS = ("point", "valid", "offered", "delivered [interval]", "lost", "spread")
COMPARISON_COLUMNS = ("compared", "metric", "verdict", "blocks")
LADDER_COLUMNS = ("point", "changed", "gain")
ANSWER_STYLE = {"yes": "green", "no": "red", "cannot tell": "yellow", "skipped": "dim"}
SEVERITY_STYLE = {"invalid": "red", "struck": "red", "warning": "yellow", "note": "dim"}
WIDE_COLUMNS = {
    "delay_p50_ns": "delay p50",
    "delay_p99_ns": "delay p99",
    "round_trip_p99_ns": "trip p99",
    "pacing_p99_ns": "pacing p99",
}
"""Metrics shown on a wide terminal only, if any point has them."""
NARROW, WIDE_WIDTH = 80, 12
"""Terminal columns needed by the standard table, and by each further metric."""
LEAST_NAME = 10
"""Minimum terminal columns of points' names, gaps included."""
NOT_OBSERVABLE = "not observable"
SHOW_ALL = "udpbench show --all"
OMITTED = f"Stages that lost nothing are omitted: {SHOW_ALL}"
LEFT_OUT_BLOCKS = "A block is left out if its trials are invalid, failed or, for rates, struck out."
STAGE_WIDTH, POINT_WIDTH, SOURCE_WIDTH = 17, 14, 24
"""Columns of a ledger on a terminal, gaps included; a point's holds 999 999 999 packets."""


def print_chapter(console: Console, chapter: Chapter, everything: bool = False) -> None:
    """Print one experiment: its question, results, ledger, findings and expectations."""
    console.print()
    console.print(Text(chapter.experiment.question, style="bold"))
    if chapter.built_in_lab:
        console.print(Text(LAB_LABEL, style="dim"))
    for part in parts(chapter, console.width, everything):
        console.print(part)


def parts(chapter: Chapter, width: int, everything: bool = False) -> Iterator[RenderableType]:
    """Yield the parts of an experiment's output, in order, for a terminal of ``width`` columns."""
    for line in filter(None, (not_run(chapter), not_measured(chapter))):
        yield Text(line)
    if not chapter.points:
        return
    yield from tuning_parts(chapter)
    if not chapter.searches and chapter.tuning is None:
        yield from map(Text, diagnosed(chapter))
    if chapter.searches:
        yield search_table(chapter.searches)
    else:
        yield from points_tables(chapter, width)
        yield from (Text(f"left out: {line}", style="dim") for line in left_out(chapter))
    yield from map(Text, breaking_lines(chapter.searches))
    yield from ledger_tables(chapter, width, everything)
    yield from findings_parts(chapter, everything)
    if chapter.comparisons:
        yield from comparison_parts(chapter.comparisons)
    if chapter.verdicts:
        yield verdicts_table(chapter)


def tuning_parts(chapter: Chapter) -> Iterator[Table | Text]:
    """Yield the output of a tune: answer, ladder, recipe, what to type, and what did not help."""
    answer = tuning_answer(chapter)
    if answer is None:
        return
    yield Text(answer.sentence, style="bold")
    table = Table(title="ladder", title_justify="left", title_style="bold", box=None)
    for title in LADDER_COLUMNS:
        table.add_column(title, overflow="fold")
    for rung in answer.rungs:
        table.add_row(*map(Text, rung))
    yield table
    for title, text in (("recipe", answer.recipe), ("what to type", answer.commands)):
        if text:
            yield Text(title, style="bold")
            yield Text(text)
    yield from map(Text, answer.notes)


def search_table(searches: Sequence[PointSearch]) -> Table:
    """Return a row per goal of each search: the rate, the loads around it, and what it cost."""
    table = Table(title="results", title_justify="left", title_style="bold", box=None)
    table.add_column(SEARCH_COLUMNS[0], overflow="fold")
    for title in SEARCH_COLUMNS[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for cells in search_rows(searches):
        table.add_row(*map(Text, cells))
    return table


def points_tables(chapter: Chapter, width: int = NARROW) -> Iterator[Table]:
    """Yield a row per point, and one for each trial that is not valid, or struck out.

    A wide terminal also shows times. On a narrow one first the points' names wrap, then columns
    move to a further table; numbers are never truncated.
    """
    known = [
        name for name in WIDE_COLUMNS if any(estimate(point, name) for point in chapter.points)
    ]
    more = known[: max(0, width - NARROW) // WIDE_WIDTH]
    rows = list(_point_rows(chapter, more))
    titles = (*POINT_COLUMNS, *(WIDE_COLUMNS[name] for name in more))
    widths = [
        max(len(cells[place]) for cells in (titles, *(cells for cells, _ in rows))) + 2
        for place in range(len(titles))
    ]
    title = "results"
    for group in _side_by_side(widths, width):
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.add_column(titles[0], overflow="fold")
        for place in group:
            table.add_column(titles[place], justify="right", no_wrap=True)
        for cells, style in rows:
            table.add_row(*(Text(cells[place], style=style) for place in (0, *group)))
        yield table
        title = "results, continued"


def _point_rows(chapter: Chapter, more: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the cells of each row and their style; ``more`` are metrics in further columns."""
    for point in chapter.points:
        medians = [estimate(point, name) for name in more]
        times = [
            show_number(median.median if median is not None else None, "ns") for median in medians
        ]
        yield [*point_cells(point), *times], ""
        for result in point.results:
            if not result.valid or result.struck:
                times = [show_number(metric(result, name), "ns") for name in more]
                style = "strike" if result.status != "skipped" and not result.valid else "dim"
                yield [*invalid_cells(result), *times], style


def _side_by_side(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns after the first in as few groups as fit beside it."""
    if sum(widths[1:]) + min(widths[0], LEAST_NAME) <= width:
        return [list(range(1, len(widths)))]
    room = width - min(widths[0], max(LEAST_NAME, width // 5))
    groups: list[list[int]] = [[]]
    for place in range(1, len(widths)):
        if groups[-1] and sum(widths[column] for column in (*groups[-1], place)) > room:
            groups.append([])
        groups[-1].append(place)
    return groups


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
    """Return the row of a trial that is not valid, or struck out.

    Shows what it measured, for information only.
    """
    return [
        f"  #{result.trial.repetition}",
        word_of(result),
        show_pps(result.offered_pps),
        show_pps(result.delivered_pps),
        show_ratio(result.loss_ratio),
        show_ratio(result.delivered_pps_spread),
    ]


def ledger_tables(chapter: Chapter, width: int, everything: bool = False) -> Iterator[Table | Text]:
    """Yield where the packets of each point went: a column per point, as many as fit side by side.

    A column is the point's representative trial, marked if invalid. Stages without losses are
    omitted unless ``everything``, with a note. Sources are shown for stages at which packets
    ended; docs/ledger.md has all of them.
    """
    title = "ledger (packets of the median trial)"
    if any(search.breaking is not None for search in chapter.searches):
        title = "ledger (packets of a trial just above the upper bound)"
    elif chapter.searches:
        title = "ledger (packets of the trial at the highest load)"
    fit = max(1, (width - STAGE_WIDTH - SOURCE_WIDTH) // POINT_WIDTH)
    shown = accounted(chapter)
    every = ledger_rows([result for _, result in shown])
    hidden = set() if everything else {row.name for row in every if row.stage and not row.moved}
    for group in in_groups(shown, fit):
        # A title is cut to its table, which may be narrower.
        heading = Text(title, no_wrap=True, overflow="ignore")
        table = Table(title=heading, title_justify="left", title_style="bold", box=None)
        table.add_column("", no_wrap=True)
        # Names wrap first, so that words of sources stay whole.
        rows = [
            row for row in ledger_rows([result for _, result in group]) if row.name not in hidden
        ]
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
    if shown and hidden:
        yield Text(OMITTED, style="dim")


@dataclass(frozen=True)
class LedgerRow:
    """One line of a ledger with the packets of several trials side by side."""

    name: str
    cells: tuple[str, ...]
    source: str
    stage: bool
    weighty: bool
    """Received packets, and the unaccounted if not 0."""
    moved: bool
    """Packets ended there, or may have, because the stage is not observable."""


def ledger_rows(results: Sequence[Result]) -> list[LedgerRow]:
    """Return the lines of a ledger, from what was intended to what remains."""
    entries = [
        {entry.stage: entry for entry in result.ledger.entries} if result.ledger is not None else {}
        for result in results
    ]
    stages = {stage: entry.source for ledger in entries for stage, entry in ledger.items()}
    received = "ledger_received_packets"
    hidden = unobserved_together(results)
    names = ("intended_packets", "sent_packets", *stages, received, "unaccounted")
    rows = [
        LedgerRow(
            name if name in stages else name.removeprefix("ledger_").removesuffix("_packets"),
            tuple(packets_cell(result, name) for result in results),
            stages.get(name, ""),
            name in stages,
            name == received
            or (name == "unaccounted" and any(result.unaccounted for result in results)),
            any(_may_have_lost(result, name) for result in results),
        )
        for name in names
        if name not in hidden[1:]
    ]
    if hidden:
        place = [row.name for row in rows].index(hidden[0])
        cells = tuple(_span_cell(*_together(result, hidden)) for result in results)
        rows[place] = replace(rows[place], name=OR.join(hidden), cells=cells)
    others = [_others(result) for result in results]
    if any(others):
        cells = tuple(show_count(packets) for packets in others)
        rows.append(LedgerRow("others' packets", cells, "", False, False, True))
    return rows


def _may_have_lost(result: Result, name: str) -> bool:
    """Return whether packets ended at a stage, or may have: not where all were received."""
    ledger, cell = result.ledger, packets_cell(result, name)
    if cell == NOT_OBSERVABLE and ledger is not None:
        return bool(ledger.lost_packets or ledger.unaccounted)
    return cell != "0"


def unobserved_together(results: Sequence[Result]) -> tuple[str, ...]:
    """Return stages without a counter for which only the sum is known, in order."""
    hidden = [unobserved(result.ledger) for result in results if result.ledger is not None]
    named = {stage for stages in hidden if len(stages) > 1 for stage in stages}
    return tuple(stage for stage in LEDGER_STAGES if stage in named)


def _together(result: Result, stages: Sequence[str]) -> tuple[int, int]:
    span = lost_at_any(result.ledger, stages) if result.ledger is not None else exactly(0)
    return span.low, span.high


def _others(result: Result) -> int:
    entries = result.ledger.entries if result.ledger is not None else ()
    return sum(entry.others_packets for entry in entries)


def packets_cell(result: Result, name: str) -> str:
    """Return a count of packets for reading; the remainder keeps its sign.

    If others' or merged packets were counted it is an interval: ``12 to 40``.
    """
    interval = bounds(result, name)
    entries = result.ledger.entries if result.ledger is not None else ()
    unknown = any(entry.stage == name and entry.packets is None for entry in entries)
    if interval is None or (unknown and interval == (0, 0)):
        return NOT_OBSERVABLE
    sign = "+" if name == "unaccounted" and interval[0] > 0 else ""
    return sign + _span_cell(*interval)


def _span_cell(low: float, high: float) -> str:
    return f"{show_count(low)}{'' if low == high else f' to {show_count(high)}'}"


def findings_parts(chapter: Chapter, everything: bool = False) -> Iterator[Table | Text]:
    """Yield what concerns the numbers, worst first, and how many further findings there are.

    Unless ``everything``, notes and what leaves counts and rates as they are is only counted, if
    that is more than one.
    """
    findings = list(merged(findings_of(chapter)))
    aside = [] if everything else [each for each in findings if is_aside(each[0])]
    aside = aside if len(aside) > 1 else []
    yield findings_table([each for each in findings if not aside or not is_aside(each[0])])
    warnings = sum(finding.severity == "warning" for finding, _ in aside)
    counted = [
        plural(number, f"further {name}")
        for number, name in ((warnings, "warning"), (len(aside) - warnings, "note"))
        if number > 0
    ]
    if counted:
        yield Text(f"{' and '.join(counted)}: {SHOW_ALL}", style="dim")


def findings_table(findings: Sequence[tuple[Finding, Sequence[str]]]) -> Table:
    """Return each finding once, with its trials, in their order."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding, names in findings:
        severity = Text(finding.severity, style=SEVERITY_STYLE[finding.severity])
        table.add_row(severity, Text(f"{finding} [{trials_label(names)}]"))
    return table


def comparison_parts(comparisons: Sequence[Comparison]) -> Iterator[Table | Text]:
    """Yield each comparison with its verdict, and what the scatter of their blocks can resolve."""
    table = Table(title="comparisons", title_justify="left", title_style="bold", box=None)
    for title in COMPARISON_COLUMNS:
        table.add_column(title, overflow="fold")
    for comparison in comparisons:
        style = "red" if comparison.worse else "green" if comparison.answered else "yellow"
        compared, metric, verdict, blocks = map(Text, comparison_cells(comparison))
        table.add_row(compared, metric, verdict, blocks, style=style)
    yield table
    if any(comparison.lost for comparison in comparisons):
        yield Text(LEFT_OUT_BLOCKS, style="dim")
    yield from map(Text, resolved(comparisons))


def comparison_cells(comparison: Comparison) -> list[str]:
    """Return a comparison's row."""
    return [
        compared_name(comparison),
        comparison.metric,
        comparison.text,
        f"{comparison.blocks}{f' ({comparison.lost} left out)' * bool(comparison.lost)}",
    ]


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
