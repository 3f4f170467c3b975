"""The figure of comparisons: a dot per block in run order, with interval and margin.

Places what the analysis returned; drift of an effect shows as a slope of the dots.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from udpbench.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    SKY,
    WIDTH_INCHES,
    share_legend,
    short_name,
    show_values,
)
from udpbench.units import unbroken

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from udpbench.analysis.comparison.comparisons import Comparison

PANELS_PER_FIGURE = 4
PANEL_INCHES = 1.45
TITLE_LETTERS = 110
"""In a line of the wide figure."""
TITLE_LINES = 2


def draw_comparisons(shown: Sequence[Comparison], width: float = WIDTH_INCHES) -> Figure:
    """Draw a panel for each comparison: the change from a to b in each block."""
    from matplotlib.figure import Figure

    height = PANEL_INCHES * len(shown) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, comparison in zip(panels, shown, strict=True):
        _draw(axes, comparison, round(TITLE_LETTERS * width / WIDTH_INCHES))
    panels[-1].set_xlabel("repetition, in the order of the run: a trial of each, in turn")
    share_legend(figure, panels, 4 if width == WIDTH_INCHES else 2)
    return figure


def _draw(axes: Axes, comparison: Comparison, letters: int) -> None:
    title = unbroken(f"{comparison.b} against {comparison.a}: {comparison.text}")
    lines = wrap(short_name(title, TITLE_LINES * letters), letters, break_on_hyphens=False)
    axes.set_title("\n".join(lines), fontsize=9, loc="left")
    none = 0.0 if comparison.share else 1.0

    def percent(value: float) -> float:
        return 100 * (value - none)

    places = [block for block, _ in comparison.effects]
    dots = [percent(effect) for _, effect in comparison.effects]
    margin = comparison.margin
    least = -margin if comparison.share else 1 / (1 + margin) - 1
    axes.axhspan(
        100 * least,
        100 * margin,
        color=GREEN,
        alpha=0.2,
        hatch="//",
        lw=0,
        label="too small to count",
    )
    if comparison.low is not None and comparison.high is not None:
        ends = percent(comparison.low), percent(comparison.high)
        axes.axhspan(*ends, color=SKY, alpha=0.35, lw=0, label="interval")
    estimate = comparison.difference if comparison.share else comparison.ratio
    if estimate is not None:
        axes.axhline(percent(estimate), color=BLACK, lw=1.3, label="estimate")
    axes.axhline(0, color=GREY, lw=0.8, linestyle="--")
    blocks = axes.scatter(places, dots, s=22, color=BLUE, alpha=0.8, zorder=3, label="repetition")
    unit = "percentage points" if comparison.share else "%"
    show_values(
        blocks,
        [f"repetition {n}: {change:+.2f} {unit}" for n, change in zip(places, dots, strict=True)],
    )
    axes.set_xticks(places)
    axes.grid(axis="y", color=GRID)
    axes.set_ylabel("change\n(percentage points)" if comparison.share else "change (%)")
