"""Experiments whose points combine two blocks of keys, as a matrix.

The two blocks follow from the differences of the points, whatever their names. Numbers are computed
first, by a function that tests assert, and placed afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from udpbench.analysis.points import Point, estimate
from udpbench.differences import key_of, written
from udpbench.judged_run import Chapter
from udpbench.model.experiment import Experiment
from udpbench.model.result import Estimate
from udpbench.report.figures.style import (
    ON_DARK,
    ON_LIGHT,
    empty_figure,
    short_name,
)
from udpbench.report.figures.sweep import sweep, values_of
from udpbench.units import plural, rate_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3
"""Minimum ways of either block for a matrix; two are clear in the figure of all trials."""
MOST_COLUMNS = 8
"""Maximum columns whose numbers and intervals fit on a page."""
ROW_INCHES = 0.42
DARK_FROM = 0.6
"""Share of the largest rate from which on text is light."""
Values = tuple[str | None, ...]


@dataclass(frozen=True)
class MatrixCell:
    """One combination; without a median the word shown instead."""

    point: str
    delivered: Estimate | None
    word: str = ""


@dataclass(frozen=True)
class Matrix:
    """The delivered rate of each combination; None where none was declared."""

    row_block: str
    column_block: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[MatrixCell | None, ...], ...]

    @property
    def known(self) -> list[Estimate]:
        """Return every known median."""
        return [cell.delivered for row in self.cells for cell in row if cell and cell.delivered]


def matrix(chapter: Chapter) -> Matrix | None:
    """Return a chapter's points by the two blocks that they differ in; None without such two.

    Points along a quantity have a figure of their own.
    """
    ways = _ways(chapter.experiment)
    if ways is None or sweep(chapter) is not None:
        return None
    (row_block, of_rows), (column_block, of_columns) = ways
    places = {(of_rows[point], of_columns[point]): point for point in of_rows}
    rows, columns = (tuple(dict.fromkeys(each.values())) for each in (of_rows, of_columns))
    if min(len(rows), len(columns)) < FEWEST or len(columns) > MOST_COLUMNS:
        return None
    if len(places) < len(of_rows) or 2 * len(places) < len(rows) * len(columns):
        return None  # two points in a cell, or hardly any combined
    cells = _cells(chapter)
    combined = Matrix(
        row_block,
        column_block,
        rows,
        columns,
        tuple(
            tuple(cells.get(places.get((row, column), "")) for column in columns) for row in rows
        ),
    )
    return combined if combined.known else None


def _ways(experiment: Experiment) -> list[tuple[str, dict[str, str]]] | None:
    """Return both blocks that points differ in, and what each point has there, in words."""
    every = {trial.point: dict(values_of(trial)) for trial in experiment.points}
    paths = dict.fromkeys(path for values in every.values() for path in values)
    blocks: dict[str, list[str]] = {}
    for path in paths:
        if len({str(values.get(path)) for values in every.values()}) > 1:
            blocks.setdefault(path.partition(".")[0], []).append(path)
    if len(blocks) != 2:
        return None
    return [(block, _words(every, differing)) for block, differing in blocks.items()]


def _words(every: Mapping[str, Mapping[str, object]], paths: Sequence[str]) -> dict[str, str]:
    """Return each point's values that differ from the most common ones."""
    texts = {
        point: tuple(
            None if (value := values.get(path)) is None else written(path, value) for path in paths
        )
        for point, values in every.items()
    }
    different = list(dict.fromkeys(texts.values()))
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*different, strict=True)]
    names = [key_of(path.rpartition(".")[2]) for path in paths]
    return {point: _word(names, values, usual) for point, values in texts.items()}


def _word(names: Sequence[str], values: Values, usual: Sequence[str | None]) -> str:
    differing = [place for place, value in enumerate(values) if value != usual[place]] or [0]
    return ", ".join(f"{names[place]}={values[place] or 'default'}" for place in differing)


def _cells(chapter: Chapter) -> dict[str, MatrixCell]:
    measured = {point.name: point for point in chapter.points}
    cells = {}
    for trial in chapter.experiment.points:
        point = measured.get(trial.point)
        if point is None:
            cells[trial.point] = MatrixCell(trial.point, None, "not run")
        elif point.skipped:
            cells[trial.point] = MatrixCell(trial.point, None, "skipped")
        else:
            delivered = estimate(point, "delivered_pps")
            cells[trial.point] = MatrixCell(
                trial.point, delivered, "" if delivered else _without_rates(point)
            )
    return cells


def _without_rates(point: Point) -> str:
    """Return why a tried point has no median, worded as in tables."""
    return "struck out" if point.valid else "invalid" if point.done else "failed"


# --- the figure ----------------------------------------------------------------------------------


def draw_matrix(shown: Matrix) -> Figure:
    """Draw a row and a column per way, dark is fast: in each cell the median and its interval."""
    import numpy as np

    figure, axes = empty_figure(0.9 + ROW_INCHES * len(shown.rows))
    largest = max(each.median for each in shown.known)
    scale, unit, _ = rate_scale(largest)
    rates = [
        [cell.delivered.median / scale if cell and cell.delivered else np.nan for cell in row]
        for row in shown.cells
    ]
    top = largest / scale or 1
    axes.pcolormesh(
        np.array(rates), cmap="Blues", vmin=0, vmax=top, edgecolors="white", linewidth=1
    )
    for y, row in enumerate(shown.cells):
        for x, cell in enumerate(row):
            _write(axes, (x + 0.5, y + 0.5), cell, largest)
    axes.set_xticks([x + 0.5 for x in range(len(shown.columns))], _short(shown.columns, 16))
    axes.set_yticks([y + 0.5 for y in range(len(shown.rows))], _short(shown.rows, 24))
    axes.tick_params(length=0)
    axes.invert_yaxis()
    n = sum(each.n for each in shown.known)
    axes.set_ylabel(shown.row_block)
    axes.set_xlabel(f"{shown.column_block}; delivered ({unit}), n = {plural(n, 'trial')}")
    return figure


def _short(names: Sequence[str], most: int) -> list[str]:
    return [short_name(name, most) for name in names]


def _write(axes: Axes, place: tuple[float, float], cell: MatrixCell | None, largest: float) -> None:
    """Write the median, and smaller below it the interval, in the unit of the largest."""
    x, y = place
    known = cell.delivered if cell is not None else None
    texts = [("–" if cell is None else cell.word, y, 7.0)]
    scale, _, digits = rate_scale(largest)
    if known is not None:
        texts = [(f"{known.median / scale:.{digits}f}", y, 9.0)]
    if known is not None and known.low is not None and known.high is not None:
        between = f"{known.low / scale:.{digits}f} – {known.high / scale:.{digits}f}"
        texts = [(texts[0][0], y - 0.16, 9.0), (between, y + 0.22, 6.5)]
    dark = known is not None and known.median > DARK_FROM * largest
    for text, at, size in texts:
        colour = ON_DARK if dark else ON_LIGHT
        axes.annotate(text, (x, at), ha="center", va="center", color=colour, fontsize=size)
