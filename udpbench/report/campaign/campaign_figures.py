"""The figures of a campaign: pairs side by side, and each point over the days.

Places what ``store`` computed, and computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.metrics import unit_of
from udpbench.report.campaign.history_output import change_text, shown
from udpbench.report.figures.style import (
    BLUE,
    GREY,
    GRID,
    LINES,
    NARROW_INCHES,
    WIDTH_INCHES,
    save,
    short_name,
    show_values,
    spaced,
    styled,
)
from udpbench.report.summary import SCALES, in_groups
from udpbench.store.history import PointHistory
from udpbench.store.pairs import PointOnPairs
from udpbench.units import rate_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 6
"""Points per figure; further points go into further figures."""
TITLE_LETTERS = 90
DAY_INCHES = 1.5
"""Height of a point over the days."""


def draw_campaign(
    beside: Sequence[PointOnPairs], histories: Sequence[PointHistory], folder: Path
) -> dict[str, list[Path]]:
    """Draw both kinds of figure as SVG, pairs also for a telephone; returns kind → files.

    A point of a single pair is not compared, and a single day is not a history.
    """
    compared = [point for point in beside if len(point.pairs) > 1]
    drawn: dict[str, list[Path]] = {"pairs": [], "narrow": [], "days": []}
    with styled():
        for number, group in enumerate(in_groups(compared, PANELS)):
            for kind, width in (("pairs", WIDTH_INCHES), ("narrow", NARROW_INCHES)):
                figure = draw_pairs(group, width)
                drawn[kind].append(_saved(figure, folder / f"{kind}-{number}"))
        for points in in_groups(over_days(histories), PANELS):
            drawn["days"].append(_saved(draw_days(points), folder / f"days-{len(drawn['days'])}"))
    return drawn


def _saved(figure: Figure, path: Path) -> Path:
    file = path.with_suffix(".svg")
    save(figure, [file])
    return file


def over_days(histories: Sequence[PointHistory]) -> list[list[PointHistory]]:
    """Return each point's histories, of all its pairs, where any has several days."""
    points: dict[tuple[str, str, str], list[PointHistory]] = {}
    for each in histories:
        points.setdefault((each.experiment, each.point, each.metric), []).append(each)
    return [mine for mine in points.values() if any(len(each.days) > 1 for each in mine)]


def draw_pairs(points: Sequence[PointOnPairs], width: float = WIDTH_INCHES) -> Figure:
    """Draw a panel per point: one pair per row, its median and interval."""
    from matplotlib.figure import Figure

    heights = [0.55 + 0.22 * len(point.pairs) for point in points]
    figure = Figure(figsize=(width, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(points), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, point in zip(panels, points, strict=True):
        _draw_point(axes, point)
    return figure


def _draw_point(axes: Axes, point: PointOnPairs) -> None:
    rates = [*point.pairs.values()]
    scale, unit = scale_of(point.metric, max(rate.high or rate.median for rate in rates))
    for y, rate in enumerate(rates):
        if rate.low is not None and rate.high is not None:
            axes.plot([rate.low / scale, rate.high / scale], [y, y], color=GREY, lw=2.5)
    x = [rate.median / scale for rate in rates]
    dots = axes.scatter(x, range(len(rates)), s=26, color=BLUE, zorder=3)
    show_values(dots, [f"{pair}: {shown(rate)}" for pair, rate in point.pairs.items()])
    labels = [f"{short_name(pair)}  (n = {rate.n})" for pair, rate in point.pairs.items()]
    axes.set_yticks(range(len(rates)), labels)
    axes.set_ylim(len(rates) - 0.5, -0.5)
    axes.set_xlim(left=min(0, *x))
    metric = point.metric.removesuffix("_pps").replace("_", " ")
    axes.set_xlabel(f"{metric} ({unit}): the median as a dot, its interval as a line")
    axes.grid(axis="x", color=GRID)
    axes.set_title(_named(point.experiment, point.point), fontsize=9, loc="left")


def draw_days(points: Sequence[Sequence[PointHistory]]) -> Figure:
    """Draw a panel per point: one line per pair, vertical lines where a level begins."""
    from matplotlib.figure import Figure

    height = DAY_INCHES * len(points) + 0.4
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    panels = figure.subplots(len(points), 1, squeeze=False)[:, 0]
    for axes, histories in zip(panels, points, strict=True):
        _draw_days(axes, histories)
    panels[-1].set_xlabel("day (UTC)")
    figure.align_ylabels(panels)
    return figure


def _draw_days(axes: Axes, histories: Sequence[PointHistory]) -> None:
    first = histories[0]
    largest = max(
        each.rate.high or each.rate.median for history in histories for each in history.days
    )
    scale, unit = scale_of(first.metric, largest)
    for number, history in enumerate(histories):
        colour, dashes, marker = LINES[number % len(LINES)]
        x = [_place(each.day) for each in history.days]
        y = [each.rate.median / scale for each in history.days]
        axes.plot(x, y, color=colour, linestyle=dashes, lw=1)
        for place, each in zip(x, history.days, strict=True):
            if each.rate.low is not None and each.rate.high is not None:
                ends = [each.rate.low / scale, each.rate.high / scale]
                axes.plot([place, place], ends, color=colour, lw=1)
        dots = axes.scatter(x, y, s=18, color=colour, marker=marker, label=history.pair, zorder=3)
        show_values(
            dots, [f"{history.pair}, {each.day}: {shown(each.rate)}" for each in history.days]
        )
        for change in history.changes:
            line = axes.axvline(_place(change.day) - 0.5, color=colour, lw=1.2, linestyle="--")
            line.set_url(f"{history.pair}, {change.day}: {change_text(change, history.metric)}")
    days = sorted({each.day for history in histories for each in history.days})
    axes.set_xticks([_place(day) for day in days], spaced([(_place(day), day) for day in days]))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=GRID)
    axes.set_title(_named(first.experiment, first.point), fontsize=9, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)


def _place(day: str) -> float:
    return float(date.fromisoformat(day).toordinal())


def _named(experiment: str, point: str) -> str:
    return short_name(f"{experiment}::{point}" if point else experiment, TITLE_LETTERS)


def scale_of(metric: str, largest: float) -> tuple[float, str]:
    """Return the divisor of a metric's axis, and its unit."""
    unit = unit_of(metric)
    if unit == "pps":
        scale, name, _ = rate_scale(largest)
        return scale, name
    steps = ((scale, name) for scale, name in SCALES.get(unit, ()) if abs(largest) >= scale)
    return next(steps, (1.0, unit))
