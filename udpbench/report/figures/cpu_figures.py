"""The figures of CPU time: what a packet costs at each stage, and the functions below each stage.

Places what ``cpu_figure_data`` computed, and computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from udpbench.cpu_stages import STAGES
from udpbench.report.cpu_figure_data import OTHER_STAGES, CostBar, Flame
from udpbench.report.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    ON_LIGHT,
    ORANGE,
    PINK,
    RED,
    SKY,
    WIDTH_INCHES,
    YELLOW,
    draw_stacked,
    empty_figure,
    height_of,
    short_name,
)
from udpbench.report.sheets import show_cost
from udpbench.report.summary import show_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (SKY, YELLOW, GREEN, ORANGE, PINK, RED, BLUE)
_HATCHES = ("", "//", "\\\\", "xx", "--", "||", "..")
BOX_INCHES, LETTER_INCHES = 0.16, 0.052
"""Height of a function's box, and width of a letter in it."""


def style_of(stage: str) -> tuple[str, str]:
    """Return the colour and the hatch of a stage, the same in every figure."""
    if stage not in STAGES:
        return GREY, ""
    place = STAGES.index(stage)
    return _COLOURS[place % len(_COLOURS)], _HATCHES[place // len(_COLOURS) % len(_HATCHES)]


def draw_costs(rows: Sequence[CostBar]) -> Figure:
    """Draw what a packet costs: a bar per point and end, its stages from left to right."""
    present = {stage for row in rows for stage, _ in row.parts}
    others = sorted(present - {*STAGES, OTHER_STAGES})
    order = [stage for stage in (*STAGES, *others, OTHER_STAGES) if stage in present]
    figure, axes = empty_figure(height_of(len(rows)) + 0.13 * (len(order) // 5 + 1))
    left = [0.0] * len(rows)
    for stage in order:
        widths = [dict(row.parts).get(stage, 0.0) for row in rows]
        texts = [
            f"{row.name}: {stage} {show_cost(width)} ns"
            for row, width in zip(rows, widths, strict=True)
        ]
        draw_stacked(axes, widths, left, style_of(stage), stage, texts)
    axes.set_yticks(range(len(rows)), [short_name(row.name) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.02 * max(left))
    axes.set_xlabel("CPU time per packet of its end (ns), n = 1 trial each")
    axes.grid(axis="x", color=GRID)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    return figure


def draw_flame(flame: Flame) -> Figure:
    """Draw the functions of one trial: each on its caller, as wide as its share of the time."""
    from matplotlib.patches import Rectangle

    depth = 1 + max(box.depth for box in flame.boxes)
    figure, axes = empty_figure(0.5 + BOX_INCHES * depth)
    for box in flame.boxes:
        colour, hatch = style_of(box.stage)
        patch = Rectangle(
            (box.left, box.depth + 0.03),
            box.width,
            0.94,
            facecolor=colour if box.stage else GRID,
            hatch=hatch if box.depth == 1 else "",
            edgecolor="white",
            linewidth=0.3,
        )
        patch.set_url(f"{box.name}: {100 * box.width:.2f} %, {show_number(box.ns, 'ns')}")
        axes.add_patch(patch)
        room = int(box.width * (WIDTH_INCHES - 0.2) / LETTER_INCHES)
        if room > 3:
            name = short_name(box.name, room)
            axes.text(
                *(box.left + 0.002, box.depth + 0.5, name),
                va="center",
                fontsize=6,
                color=BLACK if not box.stage else ON_LIGHT,
                clip_on=True,
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(depth, 0)
    axes.axis("off")
    axes.set_title(short_name(flame.name, 80), fontsize=9, loc="left")
    return figure
