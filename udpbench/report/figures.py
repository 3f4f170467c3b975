"""Figures of the document: rates over time, every trial as a dot, the packet's way as a bar.

What is drawn is computed first, by functions whose numbers tests assert; drawing only places it.
Colours are those of Okabe and Ito, told apart also by colour-blind eyes; the text says it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.analysis.ledger import BEFORE_SENT, ORDER
from udpbench.analysis.points import estimate
from udpbench.analysis.rates import binned_pps
from udpbench.analysis.readings import readings
from udpbench.report.story import Chapter, name_of, representative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 7.0
BIN_NS = 100 * 10**6
"""Width of a rate's bin over time: the interval at which workers are sampled."""
BLUE, SKY, GREEN, YELLOW, ORANGE, RED, PINK, BLACK = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#000000",
)
LINE_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK, YELLOW)
GREY = "#8A8A8A"
RECEIVED_COLOUR, UNACCOUNTED_COLOUR = BLUE, BLACK
STAGE_COLOURS = dict(
    zip(
        (name for name in ORDER if name not in BEFORE_SENT),
        (RED, ORANGE, YELLOW, GREEN, PINK, SKY) * 3,
        strict=False,
    )
)
MOST_LINES = 8
"""Points with a line of their own over time; more could not be told apart."""


@dataclass(frozen=True)
class Dot:
    """One trial in the figure of all trials."""

    point: str
    delivered_pps: float
    valid: bool


@dataclass(frozen=True)
class Bar:
    """One point's way of the packet: what became of each sent packet, as shares of sent."""

    point: str
    sent_packets: int
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Line:
    """One trial's delivered rate over time, in bins of BIN_NS from its first packet on."""

    point: str
    pps: tuple[float, ...]


def dots(chapter: Chapter) -> tuple[Dot, ...]:
    """Return every trial that has a rate, points in order."""
    return tuple(
        Dot(name_of(point), result.delivered_pps, result.valid)
        for point in chapter.points
        for result in point.results
        if result.delivered_pps is not None
    )


def bars(chapter: Chapter) -> tuple[Bar, ...]:
    """Return the packet's way of each point's representative trial, in shares of sent packets."""
    found = []
    for point in chapter.points:
        result = representative(point)
        if result is None or result.ledger is None or not result.sent_packets:
            continue
        counts = [("received", result.received_packets or 0)]
        counts += [
            (entry.stage, entry.packets)
            for entry in result.ledger.entries
            if entry.packets and entry.stage not in BEFORE_SENT
        ]
        if result.ledger.unaccounted:
            counts.append(("unaccounted", result.ledger.unaccounted))
        parts = tuple((name, packets / result.sent_packets) for name, packets in counts)
        found.append(Bar(name_of(point), result.sent_packets, parts))
    return tuple(found)


def lines(chapter: Chapter) -> tuple[Line, ...]:
    """Return the delivered rate over time of every valid trial, points in order."""
    valid = {result.trial.name for result in chapter.results if result.valid}
    by_name = {record.trial.name: record for record in chapter.records}
    found = []
    for point in chapter.points:
        for result in point.results:
            record = by_name[result.trial.name]
            measured = readings(record) if result.trial.name in valid and record.series else None
            if measured is None:
                continue
            pps = tuple(binned_pps(measured, "receiver", BIN_NS))
            if pps:
                found.append(Line(name_of(point), pps))
    return tuple(found)


def scale_of(largest: float) -> tuple[float, str]:
    """Return the divisor and the unit in which a rate reads well."""
    if largest >= 1e6:
        return 1e6, "Mpps"
    return (1e3, "kpps") if largest >= 1e3 else (1.0, "pps")


def draw(chapter: Chapter, folder: Path) -> dict[str, str]:
    """Draw what the chapter has data for into SVG files; returns figure → file name."""
    figures = {
        "dots": draw_dots(chapter),
        "lines": draw_lines(chapter),
        "bars": draw_bars(chapter),
    }
    drawn = {}
    for name, figure in figures.items():
        if figure is not None:
            # Tight: what stands out of the axes, a legend's marker or an end's label, is inside.
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", bbox_inches="tight", pad_inches=0.04)
            drawn[name] = f"{name}.svg"
    return drawn


def empty_figure(height_inches: float) -> tuple[Figure, Axes]:
    """Return a figure of the page's width in the document's style, and its axes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text as paths: the page looks the same wherever it is rendered.
    mpl.rcParams.update({"font.size": 9, "svg.fonttype": "path", "axes.axisbelow": True})
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def height_of(rows: int) -> float:
    """Return the inches that so many rows of a figure need."""
    return min(9.0, 0.9 + 0.34 * rows)


def short_name(name: str) -> str:
    """Return a point's name as an axis has room for it."""
    return name if len(name) <= 34 else name[:32] + "…"


def draw_dots(chapter: Chapter) -> Figure | None:
    """Draw delivered rates: a dot per trial, a bar at each median, a cross for what is invalid."""
    data = dots(chapter)
    if not data:
        return None
    names = list(dict.fromkeys(dot.point for dot in data))
    figure, axes = empty_figure(height_of(len(names)))
    scale, unit = scale_of(max(dot.delivered_pps for dot in data))
    for valid, marker, colour, label in (
        (True, "o", BLUE, "valid trial"),
        (False, "x", RED, "invalid trial, not in the median"),
    ):
        mine = [dot for dot in data if dot.valid is valid]
        if mine:
            x = [dot.delivered_pps / scale for dot in mine]
            y = [names.index(dot.point) for dot in mine]
            axes.scatter(x, y, s=26, marker=marker, color=colour, label=label, alpha=0.75)
    medians = [(name_of(point), estimate(point, "delivered_pps")) for point in chapter.points]
    known = [(name, found.median / scale) for name, found in medians if found is not None]
    x, y = [value for _, value in known], [names.index(name) for name, _ in known]
    axes.scatter(x, y, s=240, marker="|", color=BLACK, label="median", linewidths=2, zorder=3)
    axes.set_yticks(range(len(names)), [short_name(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"delivered ({unit})")
    axes.grid(axis="x", color="#DDDDDD")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def draw_lines(chapter: Chapter) -> Figure | None:
    """Draw delivered rates over time: a thin line per trial, a colour per point."""
    data = lines(chapter)
    if not data:
        return None
    names = list(dict.fromkeys(line.point for line in data))
    figure, axes = empty_figure(2.6)
    scale, unit = scale_of(max(max(line.pps) for line in data))
    told: set[str] = set()
    for line in data:
        place = names.index(line.point)
        colour = LINE_COLOURS[place] if place < MOST_LINES else GREY
        label = short_name(line.point) if place < MOST_LINES else "other points"
        x = [(i + 0.5) * BIN_NS / 1e9 for i in range(len(line.pps))]
        y = [pps / scale for pps in line.pps]
        axes.plot(x, y, color=colour, alpha=0.8, lw=1.1, label="" if label in told else label)
        told.add(label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("time since the start of the measured phase (s)")
    axes.set_ylabel(f"delivered ({unit})")
    axes.grid(color="#DDDDDD")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def draw_bars(chapter: Chapter) -> Figure | None:
    """Draw what became of the sent packets: one bar per point, left to right the packet's way."""
    data = bars(chapter)
    if not data:
        return None
    present = {name for bar in data for name, _ in bar.parts}
    order = [*(name for name in STAGE_COLOURS if name in present)]
    order = ["received", *order, *(["unaccounted"] if "unaccounted" in present else [])]
    colours = {"received": RECEIVED_COLOUR, "unaccounted": UNACCOUNTED_COLOUR, **STAGE_COLOURS}
    figure, axes = empty_figure(height_of(len(data)) + 0.2)
    left = [0.0] * len(data)
    for name in order:
        widths = [100 * dict(bar.parts).get(name, 0.0) for bar in data]
        hatch = None if name == "received" else "///" if name == "unaccounted" else ""
        axes.barh(
            range(len(data)),
            widths,
            left=left,
            color=colours[name],
            label=name,
            height=0.6,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
        )
        left = [start + max(width, 0.0) for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(data)), [short_name(bar.point) for bar in data])
    axes.set_ylim(len(data) - 0.5, -0.5)
    axes.set_xlim(0, max(100.0, *left))
    axes.set_xlabel("of the sent packets (%)")
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    return figure
