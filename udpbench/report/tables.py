"""What a run says on the terminal: tables of points, ledger, findings, and last the answers.

Lays out what ``sheets`` and ``answers`` have; an invalid trial is crossed out with its reason,
never omitted. Colour only repeats what the text says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from udpbench.analysis.comparison.comparisons import Comparison, loss_comparisons
from udpbench.analysis.comparison.stage_costs import StageChange
from udpbench.analysis.points import estimate
from udpbench.analysis.search import PointSearch
from udpbench.judged_run import Chapter, chapters_of
from udpbench.model.record import Finding
from udpbench.records.run import Run
from udpbench.report.answers import answer, proven_pair, to_try
from udpbench.report.path_picture import PathPicture, path_lines, pictures
from udpbench.report.search import COLUMNS as SEARCH_COLUMNS
from udpbench.report.search import breaking_lines, search_rows
from udpbench.report.sheets import (
    CHANGE_COLUMNS,
    COMPARISON_COLUMNS,
    LADDER_COLUMNS,
    POINT_COLUMNS,
    VERDICT_COLUMNS,
    LedgerRow,
    Sheet,
    change_cells,
    changes_of,
    comparison_cells,
    ledger_rows,
    legends,
    point_rows,
    result_sheets,
    trial_name,
)
from udpbench.report.summary import (
    LAB_LABEL,
    accounted,
    asked,
    compared_name,
    diagnosed,
    findings_of,
    is_aside,
    left_out,
    merged,
    not_measured,
    not_run,
    representative,
    resolved,
    trials_label,
)
from udpbench.report.terminal import drawn, listed
from udpbench.report.watch import read_apart
from udpbench.units import plural

ANSWER_STYLE = {"yes": "green", "no": "red", "cannot tell": "yellow", "skipped": "dim"}
SEVERITY_STYLE = {"invalid": "red", "struck": "red", "warning": "yellow", "note": "dim"}
ROW_STYLE = {"": "", "aside": "dim", "struck": "strike"}
WIDE_COLUMNS = {
    "delay_p50_ns": "delay p50",
    "delay_p99_ns": "delay p99",
    "round_trip_p99_ns": "trip p99",
    "pacing_p99_ns": "pacing p99",
}
"""Metrics shown on a wide terminal only, if any point has them."""
FEW_ANSWERS = 3
"""Experiments whose answers leave room for a path on the last screen."""
NARROW, WIDE_WIDTH = 80, 12
"""Terminal columns needed by the standard table, and by each further metric."""
LEFT_OUT_FIRST = ("spread", "offered", "valid")
"""Columns that a narrow terminal leaves out; ``show --json`` has them."""
LEAST_NAME = 10
"""Minimum terminal columns of points' names, gaps included."""
CHANGES = "CPU time by stage: what differs"
SHOW_ALL = "udpbench show --all"
OMITTED = f"Stages that lost nothing are omitted: {SHOW_ALL}"
STAGE_WIDTH, POINT_WIDTH, HEADING_WIDTH = 17, 14, 8
"""Columns of a ledger on a terminal, gaps included; a point's holds 999 999 999 packets."""
ENDS = ("intended", "received")
"""Lines of a ledger that are columns where each point is a row."""


def print_chapter(
    console: Console, chapter: Chapter, everything: bool = False, stored: bool = True
) -> None:
    """Print the tables of one experiment: results, ledger, findings and expectations.

    What is not ``stored`` cannot be shown again, so no command is printed that would.
    """
    console.print()
    console.print(Text(f"details of {chapter.experiment.name}", style="bold"))
    for part in parts(chapter, console.width, everything):
        if stored or not (isinstance(part, Text) and part.plain.endswith(SHOW_ALL)):
            console.print(part)


def print_answers(console: Console, run: Run) -> None:
    """Print what shall stand last: each question with its answer, one path, and what to type."""
    for line in closing(run, console.width):
        console.print(line)


def closing(run: Run, width: int) -> Iterator[Text]:
    """Yield questions and answers; of a few experiments the path that lost most, and what helps."""
    chapters = chapters_of(run)
    few = len(chapters) <= FEW_ANSWERS
    for chapter in chapters:
        yield Text()
        yield Text(asked(chapter.experiment), style="bold")
        yield Text(answer(chapter))
        if chapter.tuned is not None and chapter.tuned.commands:
            yield Text("what to type", style="bold")
            yield Text(chapter.tuned.commands)
    if any(chapter.built_in_lab for chapter in chapters):
        yield Text(LAB_LABEL, style="dim")
    drawn = [picture for chapter in chapters for picture in _closing_pictures(chapter)]
    if few and drawn:
        yield Text()
        yield from path_lines(max(drawn, key=lambda picture: picture.lost_share), width)
        for line in read_apart([result for chapter in chapters for result in chapter.results]):
            yield Text(line, style="dim")
    for does, line in to_try(run):
        yield Text()
        yield Text(does)
        yield Text(f"    {line}", no_wrap=True, overflow="ignore")


def _closing_pictures(chapter: Chapter) -> Sequence[PathPicture]:
    """Return the pictures of which one ends the output: of a tune what its recipe changed."""
    return pictures(chapter, points=proven_pair(chapter)[1:] or None)


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
        yield points_table(chapter, width)
        yield from (Text(f"left out of medians: {line}", style="dim") for line in left_out(chapter))
    yield from map(Text, breaking_lines(chapter.searches))
    yield from ledger_tables(chapter, width, everything)
    yield from map(sheet_table, result_sheets(chapter, everything))
    served = any(point.served for point in chapter.experiment.points)
    yield from findings_parts(chapter, everything or served)  # its few notes explain its numbers
    if chapter.comparisons:
        yield from comparison_parts(chapter.comparisons, chapter.tuning is None)
        yield from map(Text, hints(told_by_loss(chapter)))
        yield from changes_parts(changes_of(chapter))
    if chapter.verdicts:
        yield verdicts_table(chapter)


def sheet_table(sheet: Sheet) -> Table:
    """Return a table of a result; only what is long wraps, and headings that are wider than it."""
    table = drawn(sheet.columns, sheet.rows, sheet.title, sheet.numbers)
    for place, column in enumerate(table.columns[1:], start=1):
        widest = max(len(row[place]) for row in sheet.rows)
        column.no_wrap = widest <= STAGE_WIDTH
        lines = wrap(sheet.columns[place], max(widest, HEADING_WIDTH), break_long_words=False)
        column.header = Text("\n".join(lines))
    return table


def tuning_parts(chapter: Chapter) -> Iterator[Table | Text]:
    """Yield the output of a tune: ladder, recipe, and what did not help."""
    tuned = chapter.tuned
    if tuned is None:
        return
    yield drawn(LADDER_COLUMNS, tuned.rungs, "ladder")
    if tuned.recipe:
        yield Text("recipe", style="bold")
        yield Text(tuned.recipe)
    yield from map(Text, tuned.notes)


def search_table(searches: Sequence[PointSearch]) -> Table:
    """Return a row per goal of each search: the rate, the loads around it, and what it cost."""
    return drawn(SEARCH_COLUMNS, search_rows(searches), "results", range(1, len(SEARCH_COLUMNS)))


def points_table(chapter: Chapter, width: int = NARROW) -> Table:
    """Return a row per point, and one for each trial that is not valid, or struck out.

    A wide terminal also shows times. On a narrow one the points' names wrap, then the spread and
    the offered rate are left out; numbers are never truncated, and no table is split.
    """
    known = [
        name for name in WIDE_COLUMNS if any(estimate(point, name) for point in chapter.points)
    ]
    more = known[: max(0, width - NARROW) // WIDE_WIDTH]
    rows = list(point_rows(chapter, more))
    titles = (*POINT_COLUMNS, *(WIDE_COLUMNS[name] for name in more))
    widths = {
        title: max(len(cells[place]) for cells in (titles, *(cells for cells, _ in rows))) + 2
        for place, title in enumerate(titles)
    }
    kept = list(titles)
    for title in LEFT_OUT_FIRST:
        if LEAST_NAME + sum(widths[each] for each in kept[1:]) > width:
            kept.remove(title)
    places = [titles.index(title) for title in kept]
    cells = [
        [Text(cells[place], style=ROW_STYLE[mark]) for place in places] for cells, mark in rows
    ]
    return drawn(kept, cells, "results", range(1, len(kept)))


def ledger_tables(chapter: Chapter, width: int, everything: bool = False) -> Iterator[Table | Text]:
    """Yield where the packets of each point went, and below what it was read from.

    A column is the trial that is shown of a point, marked if invalid; if these do not fit side by
    side, each is a row. Stages without losses are omitted unless ``everything``, with a note.
    Sources are shown for stages at which packets ended; docs/ledger.md has all of them.
    """
    shown = accounted(chapter)
    others = [result is not representative(point) for point, result in shown]
    title = "ledger (packets of the median trial"
    if any(others):
        missed = "the trial by which an expectation does not hold"
        title = f"ledger (packets of {missed}" if all(others) else f"{title}, or of {missed}"
    title += ")"
    if any(search.breaking is not None for search in chapter.searches):
        title = "ledger (packets of a trial just above the upper bound)"
        if all(search.headline.upper_pps is None for search in chapter.searches):
            title = "ledger (packets of a trial that lost too much; no upper bound is decided)"
    elif chapter.searches:
        title = "ledger (packets of the trial at the highest load)"
    every = ledger_rows([result for _, result in shown])
    rows = [row for row in every if everything or row.moved or not row.stage]
    if not shown:
        return
    heads = [trial_name(point, result) for point, result in shown]
    if STAGE_WIDTH + POINT_WIDTH * len(shown) <= width:
        yield _beside(rows, heads, title, width)
    else:
        yield _below(rows, heads, title)
    for row in rows:
        if row.source:
            yield Text(f"{row.name}: {row.source}", style="dim")
    if len(rows) < len(every):
        yield Text(OMITTED, style="dim")


def _beside(rows: Sequence[LedgerRow], heads: Sequence[str], title: str, width: int) -> Table:
    """Return a column for each point."""
    styled = [
        [
            Text(cell, style="bold" if row.weighty else "")
            for cell in ("  " * row.stage + row.name, *row.cells)
        ]
        for row in rows
    ]
    table = drawn(["", *heads], styled, title, range(1, len(heads) + 1))
    # Names wrap first.
    least = max([POINT_WIDTH - 2, *(len(cell) for row in rows for cell in row.cells)])
    most = max(least, (width - STAGE_WIDTH) // len(heads) - 2)
    table.columns[0].overflow = "fold"
    for column, head in zip(table.columns[1:], heads, strict=True):
        column.header, column.no_wrap = Text(head, overflow="fold"), False
        column.min_width, column.max_width = least, most
    return table


def _below(rows: Sequence[LedgerRow], heads: Sequence[str], title: str) -> Table:
    """Return a row for each point: what was intended and received, and where the rest went."""
    ends = [row for row in rows if not row.stage and row.name in ENDS]
    others = [row for row in rows if row not in ends and row.name != "sent"]
    lines = []
    for place, head in enumerate(heads):
        went = (f"{row.name} {row.cells[place]}" for row in others if row.cells[place] != "0")
        lines.append([head, *(row.cells[place] for row in ends), ", ".join(went)])
    columns = ["", *(row.name for row in ends), "where the rest went"]
    return drawn(columns, lines, title, range(1, len(ends) + 1))


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
    return listed(
        (
            Text(finding.severity, style=SEVERITY_STYLE[finding.severity]),
            f"{finding} [{trials_label(names)}]",
        )
        for finding, names in findings
    )


def comparison_parts(
    comparisons: Sequence[Comparison], together: bool = True
) -> Iterator[Table | Text]:
    """Yield each comparison with its verdict, and what the scatter of their blocks can resolve."""
    rows = []
    for comparison in comparisons:
        style = "red" if comparison.worse else "green" if comparison.answered else "yellow"
        rows.append([Text(cell, style=style) for cell in comparison_cells(comparison)])
    yield drawn(COMPARISON_COLUMNS, rows, "comparisons")
    yield from (Text(legend, style="dim") for legend in legends(comparisons, together))
    yield from map(Text, resolved(comparisons))


def told_by_loss(chapter: Chapter) -> tuple[Comparison, ...]:
    """Return what loss tells of points that the metric of their comparison does not tell apart."""
    if chapter.tuning is not None:
        return ()
    return loss_comparisons(chapter.experiment, chapter.results, chapter.comparisons)


def hints(apart: Sequence[Comparison]) -> list[str]:
    """Return what another metric tells, and the option that compares by it."""
    return [
        f"by loss they differ: {compared_name(each)}: {each.metric} {each.text} "
        f"(udpbench compare --metric {each.metric})"
        for each in apart
    ]


def changes_parts(changes: Sequence[StageChange]) -> Iterator[Table]:
    """Yield which stages became cheaper or dearer, if CPUs were sampled and any did."""
    if changes:
        yield drawn(CHANGE_COLUMNS, map(change_cells, changes), CHANGES, range(2, 5))


def verdicts_table(chapter: Chapter) -> Table:
    """Return each expectation with its answer and the numbers that gave it."""
    rows = (
        (Text(each.answer, style=ANSWER_STYLE[each.answer]), each.expected, each.measured)
        for each in chapter.verdicts
    )
    return drawn(VERDICT_COLUMNS, rows, "expectations")
