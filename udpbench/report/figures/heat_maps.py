"""Heat maps: how packets spread over workers and queues, and over queues in time; dark is much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from udpbench.report.figure_data import Heat, QueueTimes
from udpbench.report.figures.style import (
    LETTER_INCHES,
    ON_DARK,
    ON_LIGHT,
    RED,
    empty_figure,
    height_of,
    short_name,
)
from udpbench.units import rate_scale, show_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 16
"""Maximum workers or queues for which a heat map shows numbers."""
MOST_NAMES = 64
"""Maximum that are named below it; of more each nth is. 4,000 names took 38 s and 110 MiB."""


def draw_heat(heat: Heat) -> Figure:
    """Draw how packets spread: a row per point, a column per worker or queue, dark is more."""
    import numpy as np

    many = len(heat.columns) > MOST_COLUMNS
    below = LETTER_INCHES * max(map(len, heat.columns)) if many else 0.0
    figure, axes = empty_figure(height_of(len(heat.points)) + below)
    shares = np.array(
        [[100 * share if share is not None else np.nan for share in row] for row in heat.shares]
    )
    axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=100, edgecolors="white", linewidth=1)
    if not many:
        for y, row in enumerate(heat.shares):
            for x, share in enumerate(row):
                text = "–" if share is None else show_percent(share)
                dark = share is not None and share > 0.6
                place = (x + 0.5, y + 0.5)
                colour = ON_DARK if dark else ON_LIGHT
                axes.annotate(text, place, ha="center", va="center", color=colour, fontsize=8)
    named = range(0, len(heat.columns), -(-len(heat.columns) // MOST_NAMES))
    axes.set_xticks([x + 0.5 for x in named], [heat.columns[x] for x in named])
    axes.set_yticks([y + 0.5 for y in range(len(heat.points))], map(short_name, heat.points))
    axes.tick_params(length=0)
    if many:
        axes.tick_params(axis="x", rotation=90)
    axes.invert_yaxis()
    axes.set_xlabel(f"share of the packets by {heat.column_kind} (%), n = 1 trial each")
    return figure


def draw_queue_times(shown: QueueTimes) -> Figure:
    """Draw queues over time: a row per queue, dark is more, a cross marks drops."""
    import numpy as np

    figure, axes = empty_figure(height_of(len(shown.queues)))
    largest = max((pps for row in shown.pps for pps in row if pps is not None), default=0)
    scale, unit, _ = rate_scale(largest)
    rates = np.array([[np.nan if pps is None else pps / scale for pps in row] for row in shown.pps])
    edges = np.array(shown.edges_s)
    rows = np.arange(len(shown.queues) + 1)
    mesh = axes.pcolormesh(edges, rows, rates, cmap="Blues", vmin=0, vmax=max(largest / scale, 1))
    figure.colorbar(mesh, ax=axes, label=f"packets ({unit})")
    crosses = [
        ((edges[x] + edges[x + 1]) / 2, y + 0.5)
        for y, row in enumerate(shown.dropping)
        for x, dropped in enumerate(row)
        if dropped
    ]
    if crosses:
        axes.plot(*zip(*crosses, strict=True), "x", color=RED, markersize=4)
    axes.set_yticks([y + 0.5 for y in range(len(shown.queues))], map(short_name, shown.queues))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(f"{short_name(shown.point)}, repetition {shown.repetition}")
    axes.set_xlabel("time since the start (s), n = 1 trial")
    return figure
