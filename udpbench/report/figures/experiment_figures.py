"""The figures of one experiment: places what ``figure_data`` computed, and computes nothing itself.

Every axis has its unit and number of trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.judged_run import Chapter
from udpbench.model.limits import BEFORE_HOST, LEDGER_STAGES, stage_of
from udpbench.report.answers import first_kinds, pictured_points
from udpbench.report.cpu_figure_data import cost_bars, flames
from udpbench.report.figure_data import (
    RECEIVED,
    UNACCOUNTED,
    UNCERTAIN,
    Dots,
    Heat,
    PacketPath,
    Step,
    Timeline,
    dots,
    heats,
    queue_times,
    timelines,
    ways,
)
from udpbench.report.figures.bursts import draw_turns, turns
from udpbench.report.figures.comparison_figure import PANELS_PER_FIGURE, draw_comparisons
from udpbench.report.figures.cpu_figures import draw_costs, draw_flame
from udpbench.report.figures.delay_curves import draw_times, times
from udpbench.report.figures.heat_maps import draw_heat, draw_queue_times
from udpbench.report.figures.matrix import draw_matrix, matrix
from udpbench.report.figures.path_figure import draw_paths
from udpbench.report.figures.search_figure import PANELS_PER_PAGE, dots_of, draw_searches
from udpbench.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    LINE_STYLES,
    NARROW_INCHES,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    WIDTH_INCHES,
    YELLOW,
    draw_stacked,
    empty_figure,
    height_of,
    save,
    short_name,
    show_values,
    styled,
)
from udpbench.report.figures.sweep import draw_sweeps, sweep
from udpbench.report.path_picture import MOST_PICTURES, PathPicture, pictures
from udpbench.report.summary import in_groups
from udpbench.units import n_text, rate_scale, show_pps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW = "_narrow"
PATHS_PER_FIGURE = 4
NEAR = 0.02
"""Least part of the largest rate that an axis of rates shows."""
Drawing = Callable[[Chapter, float], Iterator["Figure"]]
"""From a chapter and a width in inches to figures."""
ROWS_PER_FIGURE = 26
"""Points per figure; further points go into further figures."""
STAGE_STYLES = {
    BEFORE_HOST: (YELLOW, ""),
    "tx_ipsec": (SKY, "\\\\"),
    "tx_qdisc": (RED, ""),
    "tx_device": (ORANGE, "//"),
    "link": (YELLOW, "||"),
    "fwd_ring": (SKY, ".."),
    "fwd_xdp": (PINK, ".."),
    "fwd_backlog": (RED, "||"),
    "fwd_tc": (GREEN, ".."),
    "fwd_bridge": (RED, ".."),
    "fwd_tun": (PINK, "++"),
    "fwd_encap": (GREEN, "--"),
    "fwd_ip": (ORANGE, "--"),
    "fwd_prerouting": (YELLOW, "xx"),
    "fwd_conntrack": (SKY, "xx"),
    "fwd_rp_filter": (PINK, "\\\\"),
    "fwd_route": (RED, "--"),
    "fwd_local": (RED, "++"),
    "fwd_mtu": (GREEN, "||"),
    "fwd_netfilter": (ORANGE, "\\\\"),
    "fwd_neighbour": (SKY, ""),
    "fwd_rcvbuf": (SKY, "++"),
    "fwd_decap": (ORANGE, ".."),
    "fwd_ecn": (YELLOW, ".."),
    "fwd_cells": (YELLOW, "++"),
    "fwd_qdisc": (PINK, ""),
    "fwd_device": (ORANGE, ""),
    "rx_ring": (GREEN, "\\\\"),
    "rx_xdp": (PINK, "xx"),
    "xsk_ring": (GREEN, "xx"),
    "xsk_fill": (PINK, "--"),
    "rx_backlog": (SKY, "--"),
    "rx_tc": (RED, "//"),
    "rx_ip": (ORANGE, "||"),
    "rx_netfilter": (YELLOW, "\\\\"),
    "udp_checksum": (GREEN, ""),
    "udp_no_port": (PINK, "//"),
    "rx_policy": (YELLOW, "//"),
    "udp_filter": (SKY, "||"),
    "udp_rcvbuf": (RED, "\\\\"),
    "udp_memory": (ORANGE, "xx"),
    "udp_purged": (YELLOW, "--"),
    "app_truncated": (GREEN, "//"),
    "app_log": (PINK, "||"),
    "app_unanswered": (SKY, "//"),
    "answer_lost": (RED, "xx"),
}
"""Stage → its colour everywhere and, where a colour comes again or is seen in grey, its hatch."""
SOCKET_COLOURS = (RED, BLUE, ORANGE, GREEN, PINK)
"""The colours of the sockets of a watched host, in turn."""


def draw(chapter: Chapter, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    """Draw the figures for which a chapter has data; return kind → file names without suffix.

    Kinds: paths, comparisons, dots, sweeps, matrices, ways, costs, flames, timelines, radars,
    times, heats, queues; of searches paths, comparisons and searches. A kind that ends in NARROW
    has the first figure of one that stands beside the answer, for a telephone, as SVG alone.
    """
    drawn: dict[str, list[str]] = {}
    kinds: dict[str, Drawing] = {
        "paths": _paths_beside,
        "comparisons": _all_comparisons,
        "dots": _all_dots,
        "sweeps": _all_sweeps,
        "matrices": _all_matrices,
        "ways": _all_ways,
        "costs": lambda chapter, _: map(draw_costs, in_groups(cost_bars(chapter), ROWS_PER_FIGURE)),
        "flames": lambda chapter, _: map(draw_flame, flames(chapter)),
        "timelines": lambda chapter, _: map(draw_timeline, timelines(chapter)),
        "radars": _all_radars,
        "times": lambda chapter, _: map(draw_times, times(chapter)),
        "heats": _all_heats,
        "queues": _all_queues,
    }
    if chapter.searches:  # its points have no rate of one trial
        kinds = {
            "paths": _paths_beside,
            "comparisons": _all_comparisons,
            "searches": _all_searches,
            "ways": _all_ways,
        }
    with styled():
        for kind, drawing in kinds.items():
            for number, figure in enumerate(drawing(chapter, WIDTH_INCHES), start=1):
                name = f"{kind}-{number}"
                save(figure, [folder / f"{name}.{suffix}" for suffix in suffixes])
                drawn.setdefault(kind, []).append(name)
        for kind in first_kinds(drawn, len(chapter.points), chapter.tuning is not None):
            if kind != "matrices":
                name = kind + NARROW
                save(next(kinds[kind](chapter, NARROW_INCHES)), [folder / f"{name}.svg"])
                drawn[name] = [name]
    return drawn


def _paths_beside(chapter: Chapter, width: float) -> Iterator[Figure]:
    """Yield the paths that stand beside the answer."""
    shown = pictures(chapter, points=pictured_points(chapter))
    if shown:
        yield draw_paths(shown, STAGE_STYLES, width)


def _all_ways(chapter: Chapter, _: float) -> Iterator[Figure]:
    """Yield the paths of all points, if they are few and not beside the answer; else bars."""
    shown: Sequence[PathPicture] = pictures(chapter, MOST_PICTURES + 1)
    if len(shown) > MOST_PICTURES:
        yield from map(draw_ways, in_groups(ways(chapter), ROWS_PER_FIGURE))
    elif len(shown) > len(pictured_points(chapter)):
        for group in in_groups(shown, PATHS_PER_FIGURE):
            yield draw_paths(group, STAGE_STYLES)


def _all_comparisons(chapter: Chapter, width: float) -> Iterator[Figure]:
    shown = [comparison for comparison in chapter.comparisons if comparison.effects]
    for group in in_groups(shown, PANELS_PER_FIGURE):
        yield draw_comparisons(group, width)


def _all_searches(chapter: Chapter, width: float) -> Iterator[Figure]:
    colours = {stage: colour for stage, (colour, _) in STAGE_STYLES.items()}
    shown = [search for search in chapter.searches if dots_of(search)]
    for group in in_groups(shown, PANELS_PER_PAGE):
        yield draw_searches(group, colours, width)


def _all_dots(chapter: Chapter, width: float) -> Iterator[Figure]:
    rows = dots(chapter)
    if any(row.valid_pps or row.invalid_pps for row in rows):
        ends = ends_of(rows)
        for group in in_groups(rows, ROWS_PER_FIGURE):
            yield draw_dots(group, ends, width)


def _all_sweeps(chapter: Chapter, width: float) -> Iterator[Figure]:
    swept = sweep(chapter)
    if swept is not None:
        yield from draw_sweeps(swept, width)


def _all_matrices(chapter: Chapter, _: float) -> Iterator[Figure]:
    combined = matrix(chapter)
    if combined is not None:
        yield draw_matrix(combined)


def _all_radars(chapter: Chapter, _: float) -> Iterator[Figure]:
    shown = turns(chapter)
    if shown:
        yield draw_turns(shown)


def _all_heats(chapter: Chapter, _: float) -> Iterator[Figure]:
    for heat in heats(chapter):
        rows = list(zip(heat.points, heat.shares, strict=True))
        for group in in_groups(rows, ROWS_PER_FIGURE):
            names, shares = zip(*group, strict=True)
            yield draw_heat(Heat(heat.column_kind, names, heat.columns, shares))


def _all_queues(chapter: Chapter, _: float) -> Iterator[Figure]:
    for shown in queue_times(chapter):
        rows = list(zip(shown.queues, shown.pps, shown.dropping, strict=True))
        for group in in_groups(rows, ROWS_PER_FIGURE):
            names, pps, dropping = zip(*group, strict=True)
            yield draw_queue_times(replace(shown, queues=names, pps=pps, dropping=dropping))


# --- every trial ---------------------------------------------------------------------------------


def ends_of(rows: Sequence[Dots]) -> tuple[float, float]:
    """Return the rates between which all are, measured or published: from 0 unless they are near.

    Rates within a half of the largest would not be told apart on an axis from 0.
    """
    rates = [pps for row in rows for pps in (*row.valid_pps, *row.invalid_pps)]
    rates += [
        end for row in rows if (bar := row.published) is not None for end in (bar.low, bar.high)
    ]
    least, most = min(rates, default=0.0), max(rates, default=0.0)
    beside = max(most - least, NEAR * most) / 4
    return (least - beside, most + beside) if least > most / 2 else (0.0, 1.04 * most)


def draw_dots(
    rows: Sequence[Dots], ends: tuple[float, float], width: float = WIDTH_INCHES
) -> Figure:
    """Draw delivered rates: a dot per trial, median and interval, published bars behind.

    ``ends`` are those of the axis, the same for further figures.
    """
    figure, axes = empty_figure(height_of(len(rows)), width)
    scale, unit, _ = rate_scale(ends[1])
    _draw_published(axes, rows, scale)
    for values, marker, colour, label in (
        ([row.valid_pps for row in rows], "o", BLUE, "valid trial"),
        ([row.invalid_pps for row in rows], "x", RED, "invalid trial, left out of medians"),
    ):
        places = [(pps, y) for y, mine in enumerate(values) for pps in mine]
        if places:
            x = [pps / scale for pps, _ in places]
            y = [row for _, row in places]
            drawn = axes.scatter(
                x, y, s=22, marker=marker, color=colour, label=label, alpha=0.7, zorder=3
            )
            show_values(drawn, [f"{rows[y].point}: {show_pps(pps)}" for pps, y in places])
    _draw_medians(axes, rows, scale)
    axes.set_yticks(range(len(rows)), [_with_n(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(ends[0] / scale, ends[1] / scale)
    valid, invalid = (sum(map(len, each)) for each in zip(*map(_both, rows), strict=True))
    begins = f"; the axis begins at {show_pps(ends[0])}" if ends[0] else ""
    axes.set_xlabel(f"delivered ({unit}), {n_text(valid, valid + invalid)}{begins}")
    axes.grid(axis="x", color=GRID)
    columns = 4 if width == WIDTH_INCHES else 1
    figure.legend(loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _with_n(row: Dots) -> str:
    valid, invalid = map(len, _both(row))
    return f"{short_name(row.point)}  ({n_text(valid, valid + invalid, '')})"


def _both(row: Dots) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return row.valid_pps, row.invalid_pps


def _draw_medians(axes: Axes, rows: Sequence[Dots], scale: float) -> None:
    known = [(y, row.median) for y, row in enumerate(rows) if row.median is not None]
    if not known:
        return
    for y, median in known:
        if median.low is not None and median.high is not None:
            x = [median.low / scale, median.high / scale]
            axes.plot(x, [y, y], color=BLACK, lw=1.2, zorder=4)
    axes.scatter(
        [median.median / scale for _, median in known],
        [y for y, _ in known],
        s=180,
        marker="|",
        color=BLACK,
        linewidths=1.8,
        label="median and its interval",
        zorder=5,
    )


def _draw_published(axes: Axes, rows: Sequence[Dots], scale: float) -> None:
    known = [(y, row.published) for y, row in enumerate(rows) if row.published is not None]
    if not known:
        return
    widest = max(bar.high for _, bar in known)
    axes.barh(
        [y for y, _ in known],
        [max(bar.high - bar.low, widest / 250) / scale for _, bar in known],
        left=[bar.low / scale for _, bar in known],
        height=0.7,
        color=PALE,
        edgecolor=GREY,
        linewidth=0.6,
        label="published, on other hardware",
    )


# --- the packet's way ----------------------------------------------------------------------------


def draw_ways(rows: Sequence[PacketPath]) -> Figure:
    """Draw where the sent packets ended: a bar per point, stages from left to right."""
    present = {name for row in rows for name, _ in row.parts}
    lossy = sorted(present - {RECEIVED, UNCERTAIN, UNACCOUNTED})
    places = (BEFORE_HOST, *LEDGER_STAGES)
    order = [RECEIVED, *sorted(lossy, key=lambda name: places.index(stage_of(name)))]
    order += [name for name in (UNCERTAIN, UNACCOUNTED) if name in present]
    ends = {RECEIVED: (BLUE, ""), UNCERTAIN: (PALE, ".."), UNACCOUNTED: (BLACK, "++")}
    styles = {**STAGE_STYLES, **ends}
    figure, axes = empty_figure(height_of(len(rows)) + 0.15)
    left = [0.0] * len(rows)
    for name in order:
        widths = [100 * dict(row.parts).get(name, 0.0) for row in rows]
        texts = [
            f"{row.point} #{row.repetition}: {name} {width:.2f} %"
            for row, width in zip(rows, widths, strict=True)
        ]
        if any(widths):
            draw_stacked(axes, widths, left, styles[stage_of(name)], name, texts)
    labels = [f"{short_name(row.point)} #{row.repetition}" for row in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(100.0, *left))
    axes.set_xlabel("share of the sent packets (%), n = 1 trial each, with median delivery")
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    return figure


# --- over time -----------------------------------------------------------------------------------


def draw_timeline(timeline: Timeline) -> Figure:
    """Draw one trial: rates of both ends, drops by stage, and CPUs, on one axis of time."""
    from matplotlib.figure import Figure

    heights = [2.0, *([1.1] if timeline.drops else []), *([1.1] if timeline.cpus else [])]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    free = iter(panels[:, 0])
    _draw_rates(next(free), timeline)
    if timeline.drops:
        _draw_drops(next(free), timeline)
    if timeline.cpus:
        _draw_cpus(next(free), timeline)
    last = panels[-1, 0]
    last.set_xlim(left=0)
    last.set_xlabel("time since the common start (s), n = 1 trial")
    figure.suptitle(
        f"{short_name(timeline.point, 60)} #{timeline.repetition}", fontsize=9, x=0.01, ha="left"
    )
    for axes in panels[:, 0]:
        axes.grid(color=GRID)
        axes.set_ylim(bottom=0)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    figure.align_ylabels(panels[:, 0])
    return figure


def _draw_rates(axes: Axes, timeline: Timeline) -> None:
    scale, unit, _ = rate_scale(
        max((step.value for step in (*timeline.offered, *timeline.delivered)), default=1.0)
    )
    for steps, colour, style, label in (
        (timeline.offered, ORANGE, "--", "offered"),
        (timeline.delivered, BLUE, "-", "delivered"),
    ):
        if steps:
            x, y = _stairs(steps, 1 / scale)
            axes.plot(x, y, color=colour, linestyle=style, lw=1.3, label=label)
    axes.set_ylabel(unit)


def _draw_drops(axes: Axes, timeline: Timeline) -> None:
    largest = max(step.value for steps in timeline.drops.values() for step in steps)
    scale, unit, _ = rate_scale(largest)
    for number, (stage, steps) in enumerate(timeline.drops.items()):
        x, y = _stairs(steps, 1 / scale)
        other = SOCKET_COLOURS[number % len(SOCKET_COLOURS)], ""
        colour = STAGE_STYLES.get(stage_of(stage), other)[0]
        axes.plot(
            x, y, color=colour, linestyle=_line_style(number), lw=1.3, label=short_name(stage)
        )
    axes.set_ylabel(f"dropped\n({unit})")


def _draw_cpus(axes: Axes, timeline: Timeline) -> None:
    for number, (name, steps) in enumerate(timeline.cpus.items()):
        x, y = _stairs(steps, 100)
        colour = (ORANGE, BLUE, GREEN)[number % 3]
        axes.plot(x, y, color=colour, linestyle=_line_style(number + 1), lw=1.3, label=name)
    axes.set_ylim(top=105)
    axes.set_ylabel("CPU busy\n(%)")


def _line_style(number: int) -> str:
    return LINE_STYLES[number % len(LINE_STYLES)]


def _stairs(steps: Sequence[Step], factor: float) -> tuple[list[float], list[float]]:
    """Return the corners of a line that holds each value for as long as it was measured."""
    x = [edge for step in steps for edge in (step.from_s, step.to_s)]
    return x, [step.value * factor for step in steps for _ in range(2)]
