"""Experiments whose points differ in a quantity: rates and loss along it.

The quantity follows from the points' declarations, whatever its name. Numbers are computed first,
by functions that tests assert, and placed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from udpbench.analysis.points import Point, estimate, metric
from udpbench.definition.published import Bar, Published, published
from udpbench.differences import flat, key_of, written
from udpbench.judged_run import Chapter
from udpbench.metrics import METRICS
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.result import Estimate
from udpbench.report.figures.style import (
    BLACK,
    GREY,
    GRID,
    LINES,
    LOG_FROM,
    WIDTH_INCHES,
    short_name,
    show_values,
    spaced,
)
from udpbench.report.summary import in_groups, show_number
from udpbench.units import (
    parse_bytes,
    parse_count,
    parse_duration,
    parse_rate,
    plural,
    rate_scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3
"""Minimum distinct values for a line; two are clear in the figure of all trials."""
MOST_LINES = 6
"""Lines per figure; further lines go into further figures."""
RATES = ("delivered_pps", "offered_pps")
PUBLISHED_AS = {"delivered_pps": "pps", "delivered_mib_s": "mib_s"}


@dataclass(frozen=True)
class LinePoint:
    """One point on a line."""

    value: float | None
    """None for a word such as ``off``, which is placed before the numbers."""
    text: str
    trials: Mapping[str, tuple[float, ...]]
    """Metric → what each valid trial measured."""
    medians: Mapping[str, Estimate]
    published: Mapping[str, Bar]


@dataclass(frozen=True)
class Line:
    """Points of the same variant and the same values of other swept keys."""

    name: str
    places: tuple[LinePoint, ...]


@dataclass(frozen=True)
class Sweep:
    """Points of one experiment along one quantity."""

    key: str
    lines: tuple[Line, ...]
    bursts: bool = False
    """Its points are compared by loss: how fast a reader was done with a burst is no merit."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metric of each panel, from top to bottom.

        Bytes have their own if size is the quantity, or if only bytes were published; loss has its
        own if there is any. Bursts that lost packets are compared by nothing else.
        """
        shown = [place for line in self.lines for place in line.places]
        bars = {name for place in shown for name in place.published}
        in_bytes = self.key == "traffic.size" or bars == {"delivered_mib_s"}
        lost = any(value for place in shown for value in place.trials.get("loss_ratio", ()))
        if self.bursts and lost:
            return ("loss_ratio",)
        names = ("delivered_pps", *(["delivered_mib_s"] * in_bytes), *(["loss_ratio"] * lost))
        return tuple(name for name in names if any(place.trials.get(name) for place in shown))


def sweep(chapter: Chapter) -> Sweep | None:
    """Return a chapter's points along the quantity with most values; None without one."""
    declared = _declared(chapter.experiment)
    key = _quantity(declared)
    if key is None:
        return None
    measured = {point.name: point for point in chapter.points}
    lines: dict[str, list[LinePoint]] = {}
    for trial in chapter.experiment.points:
        others = {name: value for name, value in declared[trial.point].items() if name != key}
        point = measured.get(trial.point)
        if point is not None and point.valid:
            place = _place(trial, declared[trial.point][key], point)
            lines.setdefault(_name(trial, others), []).append(place)
    if len({place.text for places in lines.values() for place in places}) < FEWEST:
        return None
    in_order = (
        Line(
            name,
            tuple(sorted(places, key=lambda place: (place.value is not None, place.value or 0))),
        )
        for name, places in lines.items()
    )
    bursts = all(trial.traffic.is_burst for trial in chapter.experiment.points)
    return Sweep(key, tuple(in_order), bursts)


# --- which quantity ------------------------------------------------------------------------------


def _declared(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return point → its swept values; without a sweep the only key in which variants differ.

    Variants that differ in more than one key have no axis.
    """
    points = experiment.points
    if any(trial.values for trial in points):
        return {trial.point: trial.values for trial in points}
    values = {trial.point: dict(values_of(trial)) for trial in points}
    paths = {path: None for value in values.values() for path in value}
    differing = [path for path in paths if len({str(v.get(path)) for v in values.values()}) > 1]
    if len(differing) != 1:
        return {trial.point: {} for trial in points}
    (path,) = differing
    key = ".".join(key_of(part) for part in path.split("."))
    return {
        point: {key: None if (value := of_point.get(path)) is None else written(path, value)}
        for point, of_point in values.items()
    }


def values_of(trial: Trial) -> Iterator[tuple[str, Any]]:
    """Yield every value that a trial was declared with, by dotted path."""
    for block in ("traffic", "send", "receive", "settings", "duration_ns"):
        yield from flat(getattr(trial, block), block, into_lists=False)


def _quantity(declared: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the key with most different numbers, of equals the first; None below FEWEST."""
    ranked: dict[str, int] = {}
    for key in {key: None for values in declared.values() for key in values}:
        read = {number(values.get(key)) for values in declared.values()}
        known = {unit for unit in read if unit is not None}
        if len({unit for _, unit in known}) == 1:
            ranked[key] = len(known)
    best = max(ranked, key=lambda key: ranked[key], default=None)
    return best if best is not None and ranked[best] >= FEWEST else None


def number(value: Any) -> tuple[float, str] | None:
    """Return a declared scalar as a number in its base unit, and the unit; None for a word."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    for parse, unit in ((parse_count, ""), (parse_bytes, "B"), (parse_duration, "ns")):
        try:
            return float(parse(str(value))), unit
        except ValueError:
            continue
    try:
        rate = parse_rate(str(value))
    except ValueError:
        return None
    if rate.packets_per_s is not None:
        return float(rate.packets_per_s), "pps"
    return float(rate.bits_per_s or 0), "bps"


# --- what was measured there ---------------------------------------------------------------------


def _place(trial: Trial, value: Any, point: Point) -> LinePoint:
    read, known = number(value), published(trial.source or "")
    names = (*RATES, "delivered_mib_s", "loss_ratio")
    every = {name: [metric(result, name) for result in point.valid] for name in names}
    medians = {name: estimate(point, name) for name in names}
    return LinePoint(
        None if read is None else read[0],
        "default" if value is None else str(value),
        {
            name: tuple(value for value in values if value is not None)
            for name, values in every.items()
        },
        {name: median for name, median in medians.items() if median is not None},
        dict(_bars(known)) if known is not None else {},
    )


def _bars(known: Published) -> Iterator[tuple[str, Bar]]:
    for name, metric_name in PUBLISHED_AS.items():
        bar = known.bar(metric_name)
        if bar is not None:
            yield name, bar


def _name(trial: Trial, others: Mapping[str, Any]) -> str:
    """Return a line's name: its variant, and the values of the other swept keys."""
    swept = [f"{key.rpartition('.')[2]}={value}" for key, value in others.items()]
    variant = [trial.variant] if trial.variant is not None and trial.values else []
    return ", ".join((*variant, *swept))


# --- the figure ----------------------------------------------------------------------------------


def draw_sweeps(swept: Sweep, width: float = WIDTH_INCHES) -> Iterator[Figure]:
    """Draw rates and loss along the quantity, with as many lines per figure as are legible.

    Lines whose rates are all struck out, and which lost nothing, have nothing to draw.
    """
    for lines in in_groups(swept.lines, MOST_LINES):
        group = replace(swept, lines=tuple(lines))
        if group.metrics:
            yield _draw(group, width)


def _draw(swept: Sweep, width: float) -> Figure:
    from matplotlib.figure import Figure

    heights = [1.5 if name == "loss_ratio" else 2.3 for name in swept.metrics]
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    axis = _Axis(swept)
    for axes, name in zip(panels[:, 0], swept.metrics, strict=True):
        _draw_panel(axes, swept, name, axis)
        axes.grid(color=GRID)
    axis.label(panels[-1, 0], width)
    places = [place for line in swept.lines for place in line.places]
    n = sum(max(len(place.trials[name]) for name in swept.metrics) for place in places)
    panels[-1, 0].set_xlabel(f"{swept.key}, n = {plural(n, 'trial')}")
    figure.align_ylabels(panels[:, 0])
    known: dict[str, Any] = {}
    for axes in panels[:, 0]:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(text, handle)
    figure.legend(
        known.values(),
        known.keys(),
        loc="outside upper center",
        ncols=1 if width < WIDTH_INCHES else 2 if len(swept.lines) > 1 else 3,
        frameon=False,
    )
    return figure


class _Axis:
    """Positions of values: linear, or logarithmic if they span decades."""

    def __init__(self, swept: Sweep) -> None:
        places = [place for line in swept.lines for place in line.places]
        self.texts = {place.text: place.value for place in places}
        known = sorted({value for value in self.texts.values() if value is not None}) or [0.0]
        self.log = known[0] > 0 and known[-1] / known[0] >= LOG_FROM
        low, high = (self._at(value) for value in (known[0], known[-1]))
        self.words = [text for text, value in self.texts.items() if value is None]
        self._low, self._step = low, max(high - low, 1e-9) / 8

    def _at(self, value: float) -> float:
        from math import log10

        return log10(value) if self.log else value

    def x(self, place: LinePoint) -> float:
        """Return the position of a point; words are before the first number."""
        if place.value is not None:
            return self._at(place.value)
        return self._low - self._step * (len(self.words) - self.words.index(place.text))

    def label(self, axes: Axes, width: float) -> None:
        """Label each value as declared, without overlaps."""
        at = {
            self.x(LinePoint(value, text, {}, {}, {})): text for text, value in self.texts.items()
        }
        ends = min(at), max(at)
        margin = 0.04 * (ends[1] - ends[0])
        axes.set_xlim(ends[0] - margin, ends[1] + margin)
        ordered = dict(sorted(at.items()))
        axes.set_xticks(list(ordered), spaced(list(ordered.items()), width))


def _draw_panel(axes: Axes, swept: Sweep, name: str, axis: _Axis) -> None:
    names = RATES if name == "delivered_pps" else (name,)
    shown = [place for line in swept.lines for place in line.places]
    values = [value for place in shown for value in place.trials.get(name, ())]
    values += [
        place.medians[each].median for place in shown for each in names if each in place.medians
    ]
    bars = [bar.high for place in shown for each, bar in place.published.items() if each == name]
    scale, unit = _scaled(name, max([*values, *bars]))
    _draw_published(axes, shown, name, axis, scale)
    for style, line in zip(LINES, swept.lines, strict=False):
        prefix = f"{short_name(line.name)}: " if line.name else ""
        for each in names:
            # One legend for all panels: a line is called after what the first one shows.
            first = "lost" if swept.metrics[0] == "loss_ratio" else "delivered"
            word = "offered" if each == "offered_pps" else first
            _draw_line(axes, line, each, style, axis, scale, (prefix, word))
    axes.set_ylim(0, 1.08 * max([*values, *bars]) / scale)
    axes.set_ylabel(unit)
    by_loss = swept.bursts and "loss_ratio" in swept.metrics
    if name == ("loss_ratio" if by_loss else swept.metrics[0]) and name in METRICS:
        _mark_best(axes, swept, name, axis, scale)


def _mark_best(axes: Axes, swept: Sweep, name: str, axis: _Axis, scale: float) -> None:
    """Draw a ring around the best median, whose point and value are in the legend."""
    known = [(line, p) for line in swept.lines for p in line.places if name in p.medians]
    pick, word, end = (
        (min, "least lost", "high") if name == "loss_ratio" else (max, "highest", "low")
    )

    def rank(pair: tuple[Line, LinePoint]) -> tuple[float, float]:
        median = pair[1].medians[name]
        return median.median, getattr(median, end) or 0.0

    line, best = pick(known, key=rank)
    median = best.medians[name]
    at = ", ".join(filter(None, (line.name, f"{swept.key.rpartition('.')[2]}={best.text}")))
    axes.scatter(
        [axis.x(best)],
        [median.median / scale],
        s=150,
        facecolor="none",
        edgecolor=BLACK,
        linewidths=1.4,
        zorder=5,
        label=f"{word}: {at}: {show_number(median.median, median.unit)}",
    )


def _scaled(name: str, largest: float) -> tuple[float, str]:
    if name == "loss_ratio":
        return 0.01, "lost (%)"
    return (1.0, "delivered\n(MiB/s)") if name == "delivered_mib_s" else rate_scale(largest)[:2]


def _draw_line(
    axes: Axes,
    line: Line,
    name: str,
    style: tuple[str, Any, str],
    axis: _Axis,
    scale: float,
    label: tuple[str, str],
) -> None:
    """Draw a metric's medians as a line; for delivered and lost packets also the trials."""
    colour, dashes, marker = style
    known = [(axis.x(place), place) for place in line.places if name in place.medians]
    numbers = [(x, place) for x, place in known if place.value is not None]
    offered = name == "offered_pps"
    if offered:
        dashes = ":"
    medians = [place.medians[name].median / scale for _, place in numbers]
    axes.plot(
        [x for x, _ in numbers],
        medians,
        color=colour,
        linestyle=dashes,
        lw=1.0 if offered else 1.4,
        marker=marker,
        ms=3 if offered else 5,
        mfc=colour if offered else "white",
        label="".join(label),
        zorder=2 if offered else 4,
    )
    if not offered:
        _draw_trials(axes, known, name, style, scale, label[0])


def _draw_trials(
    axes: Axes,
    known: Sequence[tuple[float, LinePoint]],
    name: str,
    style: tuple[str, Any, str],
    scale: float,
    prefix: str,
) -> None:
    """Draw every trial, the medians of words, which no line connects, and the intervals."""
    colour, _, marker = style
    words = [(x, place.medians[name].median / scale) for x, place in known if place.value is None]
    axes.plot([x for x, _ in words], [y for _, y in words], color=colour, ls="", marker=marker)
    dots = [(x, value, place.text) for x, place in known for value in place.trials[name]]
    drawn = axes.scatter(
        [x for x, _, _ in dots],
        [value / scale for _, value, _ in dots],
        s=9,
        color=colour,
        alpha=0.6,
        lw=0,
        zorder=3,
    )
    unit = METRICS[name].unit
    show_values(drawn, [f"{prefix}{at}: {show_number(value, unit)}" for _, value, at in dots])
    for x, place in known:
        low, high = place.medians[name].low, place.medians[name].high
        if low is not None and high is not None:
            axes.plot([x, x], [low / scale, high / scale], color=colour, lw=1, zorder=3)


def _draw_published(
    axes: Axes, places: Sequence[LinePoint], name: str, axis: _Axis, scale: float
) -> None:
    """Draw a point's published figure as a grey bar."""
    bars = {axis.x(place): place.published[name] for place in places if name in place.published}
    label = "published, on other hardware"
    for x, bar in bars.items():
        low, high = bar.low / scale, bar.high / scale
        axes.plot([x, x], [low, high], color=GREY, lw=7, solid_capstyle="butt", alpha=0.6)
        axes.plot([x], [high], color=BLACK, ls="", marker="_", ms=11, alpha=0.6, label=label)
        label = ""
