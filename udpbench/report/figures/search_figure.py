"""The figure of searches: loss over load, a dot per trial, a line of medians, goals and bounds.

Places what ``searches`` returned. A dot has the colour of the stage that lost most; grey if that is
one of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from udpbench.analysis.ledger.ledger import lost_by_place, worst_place
from udpbench.analysis.ledger.stages import BEFORE_SENT
from udpbench.analysis.search import late_packets
from udpbench.report.figures.style import (
    BLACK,
    GREY,
    GRID,
    SKY,
    WIDTH_INCHES,
    share_legend,
    short_name,
    show_values,
)
from udpbench.report.search import throughput_text
from udpbench.units import plural, rate_scale, show_pps, show_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from udpbench.analysis.search import PointSearch
    from udpbench.model.result import Result

PANELS_PER_PAGE = 3
PANEL_INCHES = 2.3
TITLE_LETTERS = 110
NO_LOSS, TOO_LATE, DISTURBED = "nothing lost", "received too late", "disturbed, not counted"
AROUND = 0.4
"""Share of the bounds by which the axis of loads goes beyond them."""
TICKS = (0, 0.01, 0.1, 1, 10, 100)
NEARLY_NONE = 0.01
"""Percent of loss below which the axis is linear, down to none at all."""


def draw_searches(
    shown: Sequence[PointSearch], colours: Mapping[str, str], width: float = WIDTH_INCHES
) -> Figure:
    """Draw a panel for each search; ``colours`` are those of the ledger's stages."""
    from matplotlib.figure import Figure

    height = PANEL_INCHES * len(shown) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, search in zip(panels, shown, strict=True):
        _draw(axes, search, colours, round(TITLE_LETTERS * width / WIDTH_INCHES))
    share_legend(figure, panels, 3 if width == WIDTH_INCHES else 2)
    return figure


def dots_of(search: PointSearch) -> list[tuple[float, float, str]]:
    """Return intended load, loss in percent and the stage that lost most, of each valid trial."""
    places = []
    purposes = zip(search.trials, search.purposes, strict=True)
    for place, (trial, purpose) in enumerate(purposes):
        rate = trial.trial.traffic.rate
        if purpose != "sender" and trial.valid and rate is not None and rate.packets_per_s:
            sent = trial.numbers.get("sent_packets") or 1
            late = late_packets(trial) if trial.full_line_bps is None else 0
            lost = trial.numbers.get("lost_packets") or 0
            stage = TOO_LATE if late > lost else _stage(trial) if lost else NO_LOSS
            stage = DISTURBED if place in search.state.repeated else stage
            places.append((float(rate.packets_per_s), 100 * max(lost, late) / sent, stage))
    return places


def _stage(trial: Result) -> str:
    """Return the place of most packets that were lost; there is none without a ledger."""
    ended = lost_by_place(trial.ledger) if trial.ledger is not None else {}
    lost = {place: packets for place, packets in ended.items() if place not in BEFORE_SENT}
    return worst_place(lost) or "unknown"


def axis_ends(search: PointSearch, loads: Sequence[float]) -> tuple[float, float]:
    """Return the loads between which the answer is seen: around its bounds, not from 0."""
    bounds = search.headline
    known = [pps for pps in (bounds.lower_pps, bounds.upper_pps) if pps is not None]
    if not known:
        return 0.0, 1.05 * max(loads, default=1.0)
    return min(known) * (1 - AROUND), max(known) * (1 + AROUND)


def _draw(axes: Axes, search: PointSearch, colours: Mapping[str, str], letters: int) -> None:
    bounds = search.headline
    head = f"{search.point.point}: " if search.point.point else ""
    answer = f"{throughput_text(bounds)} with at most {show_share(bounds.loss)} lost"
    axes.set_title(short_name(head + answer, letters), fontsize=9, loc="left")
    places = dots_of(search)
    least, most = axis_ends(search, [pps for pps, _, _ in places])
    scale, unit, _ = rate_scale(most)
    if bounds.lower_pps is not None and bounds.upper_pps is not None:
        ends = bounds.lower_pps / scale, bounds.upper_pps / scale
        axes.axvspan(*ends, color=SKY, alpha=0.35, lw=0, label="here lies the answer")
    by_load: dict[float, list[float]] = {}
    for pps, loss, stage in places:
        if stage != DISTURBED:
            by_load.setdefault(pps / scale, []).append(loss)
    loads = sorted(by_load)
    middle = [median(by_load[load]) for load in loads]
    axes.plot(loads, middle, color=GREY, lw=1.2, label="median at a load")
    for stage in dict.fromkeys(stage for _, _, stage in places):
        mine = [(pps / scale, loss) for pps, loss, at in places if at == stage]
        x, y = zip(*mine, strict=True)
        colour = colours.get(stage, GREY)
        marker = "o" if stage == NO_LOSS else "X"
        plain = stage in (NO_LOSS, TOO_LATE, DISTURBED)
        size, alpha = (12, 0.5) if stage == DISTURBED else (22, 0.8)
        label = f"trial: {stage if plain else f'lost at {stage}'}"
        drawn = axes.scatter(
            x, y, s=size, color=colour, marker=marker, alpha=alpha, zorder=3, label=label
        )
        values = [f"{show_pps(pps * scale)}: {loss:.2f} % lost, {stage}" for pps, loss in mine]
        show_values(drawn, values)
    for goal in search.state.goals:
        axes.axhline(100 * goal.loss, color=BLACK, lw=1.0, linestyle="--", label="allowed loss")
    axes.set_yscale("symlog", linthresh=NEARLY_NONE)
    axes.set_ylim(-NEARLY_NONE / 3, 130)
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.grid(axis="y", color=GRID)
    axes.set_xlim(least / scale, most / scale)
    axes.set_xlabel(
        f"load that was sent ({unit})\n{_shown([p for p, _, _ in places], least, most)}"
    )
    axes.set_ylabel("lost (%)")


def _shown(loads: Sequence[float], least: float, most: float) -> str:
    """Return how many trials are drawn, and where those are that are not."""
    below, above = sum(pps < least for pps in loads), sum(pps > most for pps in loads)
    shown = plural(len(loads) - below - above, "trial")
    beyond = [f"{n} with {kind} loads" for n, kind in ((below, "lower"), (above, "higher")) if n]
    return f"{shown}; beyond this axis {' and '.join(beyond)}" if beyond else shown
