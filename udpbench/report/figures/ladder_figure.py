"""The figures of a ladder: its rungs on one axis, published behind measured.

Places what ``ladder`` computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.report.figures.style import (
    BLACK,
    BLUE,
    GREY,
    GRID,
    LOG_FROM,
    NARROW_INCHES,
    PALE,
    RED,
    WIDTH_INCHES,
    empty_figure,
    save,
    show_values,
    styled,
)
from udpbench.report.ladder import Ladder, Rung, label, shown
from udpbench.units import n_text, rate_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 0.2
MOST_RUNGS, UNEVEN = 28, 3
"""Rungs per figure, and the permitted deviation, so that it fits below a summary; further rungs go
into further figures with the same axis."""
LABEL_LETTERS = {WIDTH_INCHES: 44, NARROW_INCHES: 26}
NARROW_NAME = "ladder-narrow"
"""The first figure for a telephone."""
NARROWEST = 0.004
"""Width of a single published number, as a share of the axis."""


def draw_ladder(ladder: Ladder, folder: Path, suffixes: Sequence[str]) -> list[str]:
    """Draw the rungs into files of a folder; return their names without suffix, none drawn empty.

    A rung that was neither published nor measured is not drawn. Beside them is ``NARROW_NAME``, as
    SVG alone.
    """
    shown = [rung for rung in ladder.rungs if rung.published is not None or rung.trials]
    names = []
    with styled():
        for number, part in enumerate(parts(shown), start=1):
            name = f"ladder-{number}"
            figure = _draw(part, ladder.metric, _ends(shown))
            save(figure, [folder / f"{name}.{suffix}" for suffix in suffixes])
            names.append(name)
        for part in parts(shown)[:1]:
            figure = _draw(part, ladder.metric, _ends(shown), NARROW_INCHES)
            save(figure, [folder / f"{NARROW_NAME}.svg"])
    return names


def parts(rungs: Sequence[Rung]) -> list[Sequence[Rung]]:
    """Return the rungs of each figure: about equal numbers, split between experiments.

    An experiment is split only if it is too long.
    """
    if not rungs:
        return []
    begins = [
        place
        for place, (rung, after) in enumerate(pairwise(rungs), start=1)
        if (rung.experiment, rung.run) != (after.experiment, after.run)
    ]
    figures = -(-len(rungs) // MOST_RUNGS)
    cuts = [0]
    for number in range(1, figures):
        even = number * len(rungs) // figures
        near = [place for place in begins if abs(place - even) <= UNEVEN and place > cuts[-1]]
        cuts.append(min(near, key=lambda place: abs(place - even), default=even))
    return [rungs[start:end] for start, end in pairwise([*cuts, len(rungs)])]


def _ends(rungs: Sequence[Rung]) -> tuple[float, float]:
    """Return the smallest and the largest number of all figures, which share their axis."""
    bars = [rung.published for rung in rungs if rung.published is not None]
    every = [end for bar in bars for end in (bar.low, bar.high)]
    every += [value for rung in rungs for value, _ in rung.trials]
    positive = [value for value in every if value > 0]
    return min(positive, default=1.0), max(positive, default=1.0)


def _draw(
    rungs: Sequence[Rung], name: str, ends: tuple[float, float], width: float = WIDTH_INCHES
) -> Figure:
    low, high = ends
    log = high >= LOG_FROM * low
    scale, unit, _ = rate_scale(high) if name == "pps" else (1.0, "MiB/s", 0)
    columns = 4 if width == WIDTH_INCHES else 1
    figure, axes = empty_figure(1.4 - 0.125 * columns + ROW_INCHES * len(rungs), width)
    if log:
        axes.set_xscale("log")
    axes.set_xlim(0.8 * low / scale if log else 0, (1.3 if log else 1.04) * high / scale)
    _draw_experiments(axes, rungs)
    _draw_published(axes, rungs, scale, high, log)
    _draw_trials(axes, rungs, name, scale)
    labels = (_label(rung, LABEL_LETTERS[width]) for rung in rungs)
    axes.set_yticks(range(len(rungs)), labels, fontsize=7.5)
    axes.set_ylim(len(rungs) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    counted = [valid for rung in rungs for _, valid in rung.trials]
    n = n_text(sum(counted), len(counted))
    how = ", logarithmic" if log else ""
    axes.set_xlabel(f"delivered ({unit}{how}), {n}")
    if log:
        from matplotlib.ticker import LogLocator

        # The axis' own labels between decades are formulas, which stand as they are typed.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color=GRID)
    figure.legend(loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _label(rung: Rung, letters: int) -> str:
    note = "" if rung.trials else f" – {rung.limits or 'not measured'}"
    return label(rung, letters) + note


def _draw_experiments(axes: Axes, rungs: Sequence[Rung]) -> None:
    """Draw a line between one experiment's rungs and the next one's."""
    for row, (above, below) in enumerate(pairwise(rungs)):
        if (above.experiment, above.run) != (below.experiment, below.run):
            axes.axhline(row + 0.5, color=GREY, lw=0.4)


def _draw_trials(axes: Axes, rungs: Sequence[Rung], name: str, scale: float) -> None:
    for validity, marker, colour, text in (
        (True, "o", BLUE, "valid trial"),
        (False, "x", RED, "invalid trial, left out of medians"),
    ):
        dots = [
            (value, row)
            for row, rung in enumerate(rungs)
            for value, valid in rung.trials
            if valid is validity
        ]
        if dots:
            places = [value / scale for value, _ in dots], [row for _, row in dots]
            drawn = axes.scatter(
                *places, s=15, marker=marker, color=colour, label=text, alpha=0.7, zorder=3
            )
            show_values(
                drawn, [f"{label(rungs[row])}: {shown(value, name)}" for value, row in dots]
            )
    medians = [
        (rung.measured.median / scale, row) for row, rung in enumerate(rungs) if rung.measured
    ]
    if medians:
        x, y = zip(*medians, strict=True)
        axes.scatter(x, y, s=90, marker="|", color=BLACK, label="median", zorder=4)


def _draw_published(
    axes: Axes, rungs: Sequence[Rung], scale: float, largest: float, log: bool
) -> None:
    bars = [(row, rung.published) for row, rung in enumerate(rungs) if rung.published is not None]
    if not bars:
        return
    # On a logarithmic axis equal width is an equal factor.
    least = [5 * NARROWEST * bar.low if log else NARROWEST * largest for _, bar in bars]
    axes.barh(
        [row for row, _ in bars],
        [max(bar.high - bar.low, wide) / scale for (_, bar), wide in zip(bars, least, strict=True)],
        left=[bar.low / scale for _, bar in bars],
        height=0.75,
        color=PALE,
        edgecolor="#777777",
        linewidth=0.6,
        label="published, on other hardware",
    )
