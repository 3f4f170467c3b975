"""A run of several experiments as one ladder: each point a rung, published beside measured.

What is drawn and told is computed first, by functions whose results tests assert. Judges nothing by
a published figure: whether a relation holds is ``analysis.expect``'s answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.analysis.expect import evaluate_at
from udpbench.analysis.points import Point, estimate, metric
from udpbench.definition.published import Bar, Published, published
from udpbench.model import Estimate
from udpbench.report.story import LAB_LABEL, Chapter, name_of, reason
from udpbench.report.style import BLUE, GRID, RED, counted, empty_figure, save, scale_of, styled
from udpbench.units import show_pps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED_AS = {"pps": "delivered_pps", "mib_s": "delivered_mib_s"}
"""Published metric → ours that means the same; a ladder has one of them on its axis."""
PUBLISHED_COLOUR = "#BBBBBB"
ROW_INCHES = 0.24
MOST_RUNGS = 40
"""Rungs that one page has room for."""
NARROWEST = 0.004
"""A single published number is drawn this wide, as a share of the axis."""


@dataclass(frozen=True)
class Relation:
    """One relation that is judged at a rung."""

    expected: str
    answer: str


@dataclass(frozen=True)
class Rung:
    """One point of one experiment."""

    name: str
    published: Bar | None
    measured: Estimate | None
    trials: tuple[tuple[float, bool], ...]
    """Each trial's value and whether it is valid."""
    relations: tuple[Relation, ...]
    why_not: str
    """Why there is nothing measured; empty where there is."""


@dataclass(frozen=True)
class Ladder:
    """All rungs of a run, on one axis."""

    metric: str
    rungs: tuple[Rung, ...]
    studies: tuple[Published, ...]
    """One figure of each study that a rung names: for title, source and conditions."""
    built_in_lab: bool


def ladder(chapters: Sequence[Chapter]) -> Ladder | None:
    """Return the ladder of a run; None for a single experiment."""
    if len(chapters) < 2:
        return None
    figures = [published(trial.source or "") for one in chapters for trial in one.experiment.points]
    known = [figure for figure in figures if figure is not None]
    in_bytes = sum(
        figure.bar("pps") is None and figure.bar("mib_s") is not None for figure in known
    )
    name = "mib_s" if 2 * in_bytes > len(known) else "pps"
    studies = {figure.study: figure for figure in known}
    rungs = tuple(rung for chapter in chapters for rung in _rungs(chapter, name))
    built_in_lab = any(chapter.built_in_lab for chapter in chapters)
    return Ladder(name, rungs, tuple(studies.values()), built_in_lab)


def _rungs(chapter: Chapter, name: str) -> Iterator[Rung]:
    found = {point.name: point for point in chapter.points}
    several = len(chapter.experiment.points) > 1
    for trial in chapter.experiment.points:
        point = found.get(trial.point, Point(chapter.experiment.name, trial.point, ()))
        figure = published(trial.source or "")
        values = [(metric(one, MEASURED_AS[name]), one.valid) for one in point.results]
        measured = estimate(point, MEASURED_AS[name])
        yield Rung(
            f"{point.experiment} · {name_of(point)}" if several else point.experiment,
            figure.bar(name) if figure is not None else None,
            measured,
            tuple((value, valid) for value, valid in values if value is not None),
            _relations(chapter, point),
            "" if measured is not None else _why_not(point),
        )


def _relations(chapter: Chapter, point: Point) -> tuple[Relation, ...]:
    verdicts = evaluate_at(chapter.experiment, chapter.results, point.name)
    return tuple(Relation(one.expected, one.answer) for one in verdicts)


def _why_not(point: Point) -> str:
    if not point.results:
        return "not run"
    return reason(point) if point.skipped else f"no valid trial: {reason(point)}"


# --- what the document shows ---------------------------------------------------------------------


def ladder_data(found: Ladder) -> dict[str, object]:
    """Return what the template shows of a ladder, its figure apart."""
    return {
        "lab": LAB_LABEL if found.built_in_lab else "",
        "rungs": [
            {
                "name": rung.name,
                "published": "–" if rung.published is None else show_bar(rung.published),
                "measured": rung.why_not or _measured(rung),
                "relations": [
                    {"expected": one.expected, "answer": one.answer} for one in rung.relations
                ],
            }
            for rung in found.rungs
        ],
        "studies": [
            {"title": one.title, "source": one.source, "conditions": one.conditions}
            for one in found.studies
        ],
    }


def show_bar(bar: Bar) -> str:
    """Return a published number as it was printed, with its unit."""

    def shown(value: float) -> str:
        return show_pps(value) if bar.unit == "pps" else f"{value:,.10g} {bar.unit}"

    return shown(bar.low) if bar.low == bar.high else f"{shown(bar.low)} – {shown(bar.high)}"


def _measured(rung: Rung) -> str:
    if rung.measured is None:
        return "–"
    median = rung.measured.median
    text = show_pps(median) if rung.measured.unit == "pps" else f"{median:,.0f} MiB/s"
    return f"{text} (n = {rung.measured.n})"


# --- the figure ----------------------------------------------------------------------------------


def draw_ladder(found: Ladder, files: Sequence[Path]) -> bool:
    """Draw the rungs into SVG or PNG files, published beside measured; False without any."""
    shown = [rung for rung in found.rungs if rung.published is not None or rung.trials]
    if not shown:
        return False
    with styled():
        save(_figure_of(shown[:MOST_RUNGS], found.metric), files)
    return True


def _figure_of(rungs: Sequence[Rung], name: str) -> Figure:
    largest = max(
        [rung.published.high for rung in rungs if rung.published is not None]
        + [value for rung in rungs for value, _ in rung.trials]
    )
    scale, unit = scale_of(largest) if name == "pps" else (1.0, "MiB/s")
    figure, axes = empty_figure(0.9 + ROW_INCHES * len(rungs))
    _draw_published(axes, rungs, scale, NARROWEST * largest / scale)
    for wanted, marker, colour, label in (
        (True, "o", BLUE, "measured, valid trial"),
        (False, "x", RED, "measured, invalid trial"),
    ):
        dots = [
            (value / scale, row)
            for row, rung in enumerate(rungs)
            for value, valid in rung.trials
            if valid is wanted
        ]
        if dots:
            x, y = zip(*dots, strict=True)
            axes.scatter(x, y, s=18, marker=marker, color=colour, label=label, zorder=3)
    axes.set_yticks(range(len(rungs)), [rung.name for rung in rungs], fontsize=7)
    axes.set_ylim(len(rungs) - 0.5, -0.5)
    axes.set_xlim(left=0)
    trials = sum(len(rung.trials) for rung in rungs)
    axes.set_xlabel(f"delivered ({unit}), n = {counted(trials, 'trial')}")
    axes.grid(axis="x", color=GRID)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw_published(axes: Axes, rungs: Sequence[Rung], scale: float, narrowest: float) -> None:
    bars = [(row, one.published) for row, one in enumerate(rungs) if one.published is not None]
    if not bars:
        return
    axes.barh(
        [row for row, _ in bars],
        [max((bar.high - bar.low) / scale, narrowest) for _, bar in bars],
        left=[bar.low / scale for _, bar in bars],
        height=0.7,
        color=PUBLISHED_COLOUR,
        edgecolor="#777777",
        linewidth=0.6,
        label="published, on other hardware",
    )
