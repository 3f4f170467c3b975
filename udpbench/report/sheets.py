"""The tables of an experiment as data: columns and cells of text, which terminal and pages lay out.

Every number comes from a ``Result`` or an ``Estimate``; an invalid trial is marked, never omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from udpbench.analysis.comparison.blocks import LEFT_OUT
from udpbench.analysis.comparison.comparisons import EXTRA_BLOCKS, Comparison
from udpbench.analysis.comparison.stage_costs import StageChange, changes_between
from udpbench.analysis.ledger.ledger import OR, lost_at_any, unobserved
from udpbench.analysis.ledger.skbs import exactly
from udpbench.analysis.points import Point, bounds, estimate, metric, named_trial
from udpbench.analysis.result_tables import whole
from udpbench.judged_run import Chapter
from udpbench.model.result import Cell, Column, Result
from udpbench.report.summary import (
    SCALES,
    compared_name,
    n_of,
    name_of,
    represented,
    show_estimate,
    show_number,
    word_of,
)
from udpbench.units import show_count, show_pps, show_ratio

POINT_COLUMNS = ("point", "valid", "offered", "delivered [interval]", "lost", "spread")
CHANGE_COLUMNS = ("compared", "stage", "base", "ns per packet", "change [interval]")
COMPARISON_COLUMNS = ("compared", "metric", "verdict", "blocks")
LADDER_COLUMNS = ("point", "changed", "gain")
VERDICT_COLUMNS = ("answer", "expected", "measured")
FEW_NS = 10
"""Below it a fraction is shown."""
NOT_OBSERVABLE = "not observable"
LEFT_OUT_BLOCKS = "A block is left out if its trials are invalid, failed or, for rates, struck out."
NOT_REPLACED = (
    f"A run has at most {EXTRA_BLOCKS} others in place of such blocks, and none if these are more "
    "than a third of all."
)
TOGETHER = (
    "The intervals of these {} comparisons are decided together: alone, each may be narrower."
)
Mark = Literal["", "aside", "struck"]


@dataclass(frozen=True)
class Sheet:
    """A table of a result as text, with the points one below the other."""

    title: str
    columns: tuple[str, ...]
    numbers: tuple[int, ...]
    """Places of the columns that are to the right."""
    rows: list[list[str]] = field(default_factory=list)


def result_sheets(chapter: Chapter, everything: bool = True) -> list[Sheet]:
    """Return the tables that have rows, of each point's representative trial: all, or few."""
    sheets: dict[str, Sheet] = {}
    for point, result in represented(chapter):
        for table in (whole(each) for each in result.tables if everything or each.always):
            titles = [_in_words(column) for column in table.columns]
            numbers = (n for n, c in enumerate(table.columns, start=1) if c.kind != "text")
            plain = Sheet(table.caption, ("point", *titles), tuple(numbers))
            head = trial_name(point, result)
            for row in table.rows():
                cells = [show_cell(cell, c) for cell, c in zip(row, table.columns, strict=True)]
                sheets.setdefault(table.name, plain).rows.append([head, *cells])
                head = ""
    return list(sheets.values())


def _in_words(column: Column) -> str:
    plain = (
        column.name if column.kind == "quotient" else column.name.removesuffix(f"_{column.unit}")
    )
    return plain.replace("_", " ")


def show_cell(cell: Cell, column: Column) -> str:
    """Return a cell for reading, in a scale that suits its unit."""
    if cell is None or isinstance(cell, str):
        return "–" if cell is None else cell
    if column.kind == "quotient" and column.unit == "ns":
        # In one scale, which the heading has: they stand one below the other, and add up.
        return show_cost(cell)
    if column.unit in (*SCALES, "ratio", "pps"):
        return show_number(cell, column.unit)
    return str(cell) if column.kind == "number" else show_count(cell)


def show_cost(ns: float) -> str:
    """Return nanoseconds of a packet, without their unit: ``1 240``, ``3.5``."""
    return show_count(round(ns)) if ns >= FEW_NS else format(ns, ".1f")


def trial_name(point: Point, result: Result) -> str:
    """Return what stands above a trial's numbers: ``small #2``, marked if it is invalid."""
    return f"{named_trial(point, result)}{'' if result.valid else ' (invalid)'}"


def point_rows(chapter: Chapter, more: Sequence[str] = ()) -> Iterator[tuple[list[str], Mark]]:
    """Yield a row per point, and one for each trial that is not valid, or struck out.

    ``more`` are metrics in further columns.
    """
    for point in chapter.points:
        medians = [estimate(point, name) for name in more]
        times = [
            show_number(median.median if median is not None else None, "ns") for median in medians
        ]
        yield [*point_cells(point), *times], ""
        for result in point.results:
            if not result.valid or result.struck:
                times = [show_number(metric(result, name), "ns") for name in more]
                skipped = result.status == "skipped"
                yield (
                    [*invalid_cells(result), *times],
                    ("aside" if result.valid or skipped else "struck"),
                )


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


@dataclass(frozen=True)
class LedgerRow:
    """One line of a ledger with the packets of several trials side by side."""

    name: str
    cells: tuple[str, ...]
    source: str
    """Where packets ended."""
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
    if all(result.trial.watched for result in results):
        names = (*stages, received)  # whoever sent is unknown, so nothing can balance
    unbalanced = any(each.ledger and each.ledger.unaccounted for each in results)
    cells = {name: tuple(packets_cell(result, name) for result in results) for name in names}
    moved = {name for name in names if any(map(_may_have_lost, results, cells[name]))}
    rows = [
        LedgerRow(
            name if name in stages else name.removeprefix("ledger_").removesuffix("_packets"),
            cells[name],
            stages.get(name, "") if name in moved else "",
            name in stages,
            name == received or (name == "unaccounted" and unbalanced),
            name in moved,
        )
        for name in names
        if name not in hidden[1:]
    ]
    if hidden:
        place = [row.name for row in rows].index(hidden[0])
        sums = tuple(_span_cell(*_together(result, hidden)) for result in results)
        rows[place] = replace(rows[place], name=OR.join(hidden), cells=sums)
    others = [_others(result) for result in results]
    if any(others):
        counts = tuple(show_count(packets) for packets in others)
        rows.append(LedgerRow("others' packets", counts, "", False, False, True))
    return rows


def _may_have_lost(result: Result, cell: str) -> bool:
    """Return whether packets ended at a stage, or may have: not where all were received."""
    ledger = result.ledger
    if cell == NOT_OBSERVABLE and ledger is not None:
        return bool(ledger.lost_packets or ledger.unaccounted)
    return cell != "0"


def unobserved_together(results: Sequence[Result]) -> tuple[str, ...]:
    """Return stages without a counter for which only the sum is known, in order."""
    hidden = [unobserved(result.ledger) for result in results if result.ledger is not None]
    named = {stage for stages in hidden if len(stages) > 1 for stage in stages}
    ledgers = (result.ledger for result in results if result.ledger is not None)
    ordered = dict.fromkeys(entry.stage for ledger in ledgers for entry in ledger.entries)
    return tuple(stage for stage in ordered if stage in named)


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
    if name == "unaccounted" and result.ledger is not None:
        # Of a search the number is the largest of all its trials; the column has those of one.
        own = result.ledger.unaccounted
        interval = None if own is None else (own, own)
    entries = result.ledger.named(name) if result.ledger is not None else ()
    unknown = any(entry.stage == name and entry.packets is None for entry in entries)
    if interval is None or (unknown and interval == (0, 0)):
        return NOT_OBSERVABLE
    sign = "+" if name == "unaccounted" and interval[0] > 0 else ""
    return sign + _span_cell(*interval)


def _span_cell(low: float, high: float) -> str:
    return f"{show_count(low)}{'' if low == high else f' to {show_count(high)}'}"


def changes_of(chapter: Chapter) -> tuple[StageChange, ...]:
    """Return the stages that cost a packet more, or less, at one point of a pair."""
    pairs = [(each.a, each.b) for each in chapter.comparisons]
    return changes_between(chapter.results, pairs)


def change_cells(change: StageChange) -> list[str]:
    """Return the row of a stage that became cheaper or dearer."""
    a, b = (point or "all" for point in (change.a, change.b))
    before, after, *rest = (
        f"{ns:+,.0f}" if signed else f"{ns:,.0f}"
        for ns, signed in (
            *((change.a_ns, False), (change.b_ns, False), (change.change_ns, True)),
            *((change.low_ns, True), (change.high_ns, True)),
        )
    )
    moved, low, high = (text.replace("-", "−") for text in rest)
    name = b if a == b else f"{b} against {a}"
    return [name, change.stage, f"{before} ns", f"{after} ns", f"{moved} ns [{low} – {high}]"]


def legends(comparisons: Sequence[Comparison], together: bool = True) -> Iterator[str]:
    """Yield what explains a table of comparisons, where it has what is explained.

    Those of a tune are not decided ``together``.
    """
    if any(each.lost for each in comparisons):
        yield LEFT_OUT_BLOCKS
    if any(each.paired and each.lost > EXTRA_BLOCKS for each in comparisons):
        yield NOT_REPLACED
    bounded = sum(each.low is not None and each.high is not None for each in comparisons)
    if together and bounded > 1:
        yield TOGETHER.format(bounded)


def comparison_cells(comparison: Comparison) -> list[str]:
    """Return a comparison's row; why blocks are left out is said once, by ``legends``."""
    return [
        compared_name(comparison),
        comparison.metric,
        comparison.text.replace(LEFT_OUT, LEFT_OUT.partition(":")[0]),
        f"{comparison.blocks}{f' ({comparison.lost} left out)' * bool(comparison.lost)}",
    ]
