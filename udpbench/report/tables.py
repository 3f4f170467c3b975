"""The final tables on the terminal: points, the ledger, findings and expectations.

Lays out what ``sheets`` has; an invalid trial is crossed out with its reason, never omitted. Colour
only repeats what the text says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.analysis.points import estimate
from udpbench.analysis.search import PointSearch
from udpbench.judged_run import Chapter
from udpbench.model.record import Finding
from udpbench.report.search import COLUMNS as SEARCH_COLUMNS
from udpbench.report.search import breaking_lines, search_rows
from udpbench.report.sheets import (
    COMPARISON_COLUMNS,
    LADDER_COLUMNS,
    LEFT_OUT_BLOCKS,
    POINT_COLUMNS,
    VERDICT_COLUMNS,
    comparison_cells,
    ledger_rows,
    point_rows,
    result_sheets,
    trial_name,
)
from udpbench.report.summary import (
    LAB_LABEL,
    accounted,
    diagnosed,
    findings_of,
    in_groups,
    is_aside,
    left_out,
    merged,
    not_measured,
    not_run,
    resolved,
    trials_label,
)
from udpbench.report.terminal import drawn, listed
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
NARROW, WIDE_WIDTH = 80, 12
"""Terminal columns needed by the standard table, and by each further metric."""
LEAST_NAME = 10
"""Minimum terminal columns of points' names, gaps included."""
SHOW_ALL = "udpbench show --all"
OMITTED = f"Stages that lost nothing are omitted: {SHOW_ALL}"
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
    for sheet in result_sheets(chapter) if everything else ():
        yield drawn(sheet.columns, sheet.rows, sheet.title, sheet.numbers)
    yield from findings_parts(chapter, everything)
    if chapter.comparisons:
        yield from comparison_parts(chapter.comparisons)
    if chapter.verdicts:
        yield verdicts_table(chapter)


def tuning_parts(chapter: Chapter) -> Iterator[Table | Text]:
    """Yield the output of a tune: answer, ladder, recipe, what to type, and what did not help."""
    answer = chapter.tuned
    if answer is None:
        return
    yield Text(answer.sentence, style="bold")
    yield drawn(LADDER_COLUMNS, answer.rungs, "ladder")
    for title, text in (("recipe", answer.recipe), ("what to type", answer.commands)):
        if text:
            yield Text(title, style="bold")
            yield Text(text)
    yield from map(Text, answer.notes)


def search_table(searches: Sequence[PointSearch]) -> Table:
    """Return a row per goal of each search: the rate, the loads around it, and what it cost."""
    return drawn(SEARCH_COLUMNS, search_rows(searches), "results", range(1, len(SEARCH_COLUMNS)))


def points_tables(chapter: Chapter, width: int = NARROW) -> Iterator[Table]:
    """Yield a row per point, and one for each trial that is not valid, or struck out.

    A wide terminal also shows times. On a narrow one first the points' names wrap, then columns
    move to a further table; numbers are never truncated.
    """
    known = [
        name for name in WIDE_COLUMNS if any(estimate(point, name) for point in chapter.points)
    ]
    more = known[: max(0, width - NARROW) // WIDE_WIDTH]
    rows = list(point_rows(chapter, more))
    titles = (*POINT_COLUMNS, *(WIDE_COLUMNS[name] for name in more))
    widths = [
        max(len(cells[place]) for cells in (titles, *(cells for cells, _ in rows))) + 2
        for place in range(len(titles))
    ]
    title = "results"
    for group in _side_by_side(widths, width):
        places = (0, *group)
        cells = [
            [Text(cells[place], style=ROW_STYLE[mark]) for place in places] for cells, mark in rows
        ]
        yield drawn([titles[place] for place in places], cells, title, range(1, len(places)))
        title = "results, continued"


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
        rows = [
            row for row in ledger_rows([result for _, result in group]) if row.name not in hidden
        ]
        styled = [
            [
                *(
                    Text(cell, style="bold" if row.weighty else "")
                    for cell in ("  " * row.stage + row.name, *row.cells)
                ),
                Text(row.source, style="dim"),
            ]
            for row in rows
        ]
        heads = [trial_name(point, result) for point, result in group]
        numbers = range(1, len(group) + 1)
        table = drawn(["", *heads, "read from"], styled, title, numbers)
        # Names wrap first, so that words of sources stay whole.
        least = max([POINT_WIDTH - 2, *(len(cell) for row in rows for cell in row.cells)])
        most = max(least, (width - STAGE_WIDTH - SOURCE_WIDTH - 2) // len(group) - 2)
        table.columns[0].no_wrap = True
        for column, head in zip(table.columns[1:-1], heads, strict=True):
            column.header, column.no_wrap = Text(head, overflow="fold"), False
            column.min_width, column.max_width = least, most
        yield table
        title = "ledger, continued"
    if shown and hidden:
        yield Text(OMITTED, style="dim")


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


def comparison_parts(comparisons: Sequence[Comparison]) -> Iterator[Table | Text]:
    """Yield each comparison with its verdict, and what the scatter of their blocks can resolve."""
    rows = []
    for comparison in comparisons:
        style = "red" if comparison.worse else "green" if comparison.answered else "yellow"
        rows.append([Text(cell, style=style) for cell in comparison_cells(comparison)])
    yield drawn(COMPARISON_COLUMNS, rows, "comparisons")
    if any(comparison.lost for comparison in comparisons):
        yield Text(LEFT_OUT_BLOCKS, style="dim")
    yield from map(Text, resolved(comparisons))


def verdicts_table(chapter: Chapter) -> Table:
    """Return each expectation with its answer and the numbers that gave it."""
    rows = (
        (Text(each.answer, style=ANSWER_STYLE[each.answer]), each.expected, each.measured)
        for each in chapter.verdicts
    )
    return drawn(VERDICT_COLUMNS, rows, "expectations")
