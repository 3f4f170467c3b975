"""The figures of one experiment: places what ``figure_data`` computed, and computes nothing itself.

Every axis has its unit and number of trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.judged_run import Chapter
from udpbench.model.limits import LEDGER_STAGES, stage_of
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
from udpbench.report.figures.delay_curves import draw_times, times
from udpbench.report.figures.heat_maps import draw_heat, draw_queue_times
from udpbench.report.figures.matrix import draw_matrix, matrix
from udpbench.report.figures.search_figure import PANELS_PER_PAGE, dots_of, draw_searches
from udpbench.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    LINE_STYLES,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    WIDTH_INCHES,
    YELLOW,
    empty_figure,
    height_of,
    save,
    short_name,
    show_values,
    styled,
)
from udpbench.report.figures.sweep import draw_sweeps, sweep
from udpbench.report.summary import in_groups
from udpbench.units import n_text, rate_scale, show_pps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS_PER_FIGURE = 26
"""Points per figure; further points go into further figures."""
STAGE_STYLES = {
    "tx_ipsec": (SKY, "\\\\"),
    "tx_qdisc": (RED, ""),
    "tx_device": (ORANGE, "//"),
    "link": (YELLOW, "||"),
    "fwd_ring": (SKY, "--"),
    "fwd_xdp": (PINK, "//"),
    "fwd_backlog": (RED, "||"),
    "fwd_tc": (GREEN, "//"),
    "fwd_ip": (ORANGE, "--"),
    "fwd_prerouting": (YELLOW, "xx"),
    "fwd_conntrack": (SKY, "xx"),
    "fwd_rp_filter": (PINK, "\\\\"),
    "fwd_route": (RED, "--"),
    "fwd_mtu": (GREEN, "||"),
    "fwd_netfilter": (ORANGE, "\\\\"),
    "fwd_neighbour": (SKY, ""),
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
"""Of the sockets of a watched host, in turn."""


def draw(chapter: Chapter, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    """Draw the figures for which a chapter has data; return kind → file names without suffix.

    Kinds: comparisons, dots, sweeps, matrices, ways, timelines, radars, times, heats, queues; of
    searches comparisons and searches.
    """
    drawn: dict[str, list[str]] = {}
    kinds: dict[str, Callable[[Chapter], Iterator[Figure]]] = {
        "comparisons": _all_comparisons,
        "dots": _all_dots,
        "sweeps": _all_sweeps,
        "matrices": _all_matrices,
        "ways": lambda chapter: map(draw_ways, in_groups(ways(chapter), ROWS_PER_FIGURE)),
        "timelines": lambda chapter: map(draw_timeline, timelines(chapter)),
        "radars": _all_radars,
        "times": lambda chapter: map(draw_times, times(chapter)),
        "heats": _all_heats,
        "queues": _all_queues,
    }
    if chapter.searches:  # its points have no rate of one trial
        kinds = {"comparisons": _all_comparisons, "searches": _all_searches}
    with styled():
        for kind, drawing in kinds.items():
            for number, figure in enumerate(drawing(chapter), start=1):
                name = f"{kind}-{number}"
                save(figure, [folder / f"{name}.{suffix}" for suffix in suffixes])
                drawn.setdefault(kind, []).append(name)
    return drawn


def _all_comparisons(chapter: Chapter) -> Iterator[Figure]:
    shown = [comparison for comparison in chapter.comparisons if comparison.effects]
    for group in in_groups(shown, PANELS_PER_FIGURE):
        yield draw_comparisons(group)


def _all_searches(chapter: Chapter) -> Iterator[Figure]:
    colours = {stage: colour for stage, (colour, _) in STAGE_STYLES.items()}
    shown = [search for search in chapter.searches if dots_of(search)]
    for group in in_groups(shown, PANELS_PER_PAGE):
        yield draw_searches(group, colours)


def _all_dots(chapter: Chapter) -> Iterator[Figure]:
    rows = dots(chapter)
    if any(row.valid_pps or row.invalid_pps for row in rows):
        largest = max(largest_of(row) for row in rows)
        for group in in_groups(rows, ROWS_PER_FIGURE):
            yield draw_dots(group, largest)


def _all_sweeps(chapter: Chapter) -> Iterator[Figure]:
    swept = sweep(chapter)
    if swept is not None:
        yield from draw_sweeps(swept)


def _all_matrices(chapter: Chapter) -> Iterator[Figure]:
    combined = matrix(chapter)
    if combined is not None:
        yield draw_matrix(combined)


def _all_radars(chapter: Chapter) -> Iterator[Figure]:
    shown = turns(chapter)
    if shown:
        yield draw_turns(shown)


def _all_heats(chapter: Chapter) -> Iterator[Figure]:
    for heat in heats(chapter):
        rows = list(zip(heat.points, heat.shares, strict=True))
        for group in in_groups(rows, ROWS_PER_FIGURE):
            names, shares = zip(*group, strict=True)
            yield draw_heat(Heat(heat.column_kind, names, heat.columns, shares))


def _all_queues(chapter: Chapter) -> Iterator[Figure]:
    for shown in queue_times(chapter):
        rows = list(zip(shown.queues, shown.pps, shown.dropping, strict=True))
        for group in in_groups(rows, ROWS_PER_FIGURE):
            names, pps, dropping = zip(*group, strict=True)
            yield draw_queue_times(replace(shown, queues=names, pps=pps, dropping=dropping))


# --- every trial ---------------------------------------------------------------------------------


def largest_of(row: Dots) -> float:
    """Return the largest rate of a row, measured or published."""
    bar = [row.published.high] if row.published is not None else []
    return max([*row.valid_pps, *row.invalid_pps, *bar], default=0.0)


def draw_dots(rows: Sequence[Dots], largest: float) -> Figure:
    """Draw delivered rates: a dot per trial, median and interval, published bars behind.

    ``largest`` ends the axis, so that further figures are comparable.
    """
    figure, axes = empty_figure(height_of(len(rows)))
    scale, unit, _ = rate_scale(largest)
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
    axes.set_xlim(0, 1.04 * largest / scale)
    valid, invalid = (sum(map(len, each)) for each in zip(*map(_both, rows), strict=True))
    axes.set_xlabel(f"delivered ({unit}), {n_text(valid, valid + invalid)}")
    axes.grid(axis="x", color=GRID)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
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
    order = [RECEIVED, *sorted(lossy, key=lambda name: LEDGER_STAGES.index(stage_of(name)))]
    order += [name for name in (UNCERTAIN, UNACCOUNTED) if name in present]
    ends = {RECEIVED: (BLUE, ""), UNCERTAIN: (PALE, ".."), UNACCOUNTED: (BLACK, "++")}
    styles = {**STAGE_STYLES, **ends}
    figure, axes = empty_figure(height_of(len(rows)) + 0.15)
    left = [0.0] * len(rows)
    for name in order:
        widths = [100 * dict(row.parts).get(name, 0.0) for row in rows]
        shown = [y for y, width in enumerate(widths) if width]
        if not shown:
            continue
        colour, hatch = styles[stage_of(name)]
        bars = axes.barh(
            shown,
            [widths[y] for y in shown],
            left=[left[y] for y in shown],
            color=colour,
            label=name,
            height=0.62,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.4,
        )
        for bar, y in zip(bars, shown, strict=True):
            row = rows[y]
            bar.set_url(f"{row.point} #{row.repetition}: {name} {widths[y]:.2f} %")
        left = [start + max(width, 0.0) for start, width in zip(left, widths, strict=True)]
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
