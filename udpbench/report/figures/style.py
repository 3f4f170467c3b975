"""The style of all figures: size, font, colours, and how a figure is saved.

Colours are those of Okabe and Ito, which are distinguishable with colour blindness; hatches and
line styles distinguish them in grey. Text stays text, in the document's font, so that it can be
searched.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpbench.report.figures.inline_svg import titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure

WIDTH_INCHES, NARROW_INCHES = 7.0, 3.7
"""The widths of a page, and of a telephone, where letters are then as large as on paper."""
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
GREY, PALE, GRID = "#8A8A8A", "#BBBBBB", "#DDDDDD"
ALARM, FAINT = "#C00000", "#5F5F5F"
"""What must not be overlooked, apart from all stages; and text that names what is beside."""
ON_LIGHT, ON_DARK = "#111111", "#FEFEFE"
"""Colour of text on a coloured area, also on a dark screen."""
LINE_STYLES = ("-", "--", "-.", ":")
LINES: tuple[tuple[str, Any, str], ...] = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    (BLACK, (0, (1, 1)), "D"),
    (PINK, (0, (5, 1)), "v"),
    (RED, (0, (3, 1, 1, 1)), "X"),
)
"""Colour, dashes and marker of lines that are distinguishable in grey."""
LOG_FROM = 30
"""Largest over smallest from which on an axis is logarithmic."""
FONTS = ["Libertinus Serif", "DejaVu Serif"]
"""The document's font, included in typst; a viewer of a single figure may only have the second."""
PNG_DPI = 200
AXIS_INCHES, LETTER_INCHES = 0.9, 0.065
"""Space for an axis label across the page, and the width of a letter."""
STYLE: Any = {
    "font.family": FONTS,
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a name is literal
    "svg.fonttype": "none",
    "svg.hashsalt": "udpbench",  # the same figure is the same file
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}


@contextmanager
def _outside_working_folder() -> Iterator[None]:
    """Work in /, where root alone can put files."""
    try:
        here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    except PermissionError:  # so nothing in it can be read either
        yield
        return
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the document's style without changing that of other code in this process.

    Anything that draws is imported in here: when matplotlib is imported, it obeys ``matplotlibrc``
    of the working folder before any other (``matplotlib_fname``), which is of whoever wrote the
    run that is read there. What another such file says, the user's own, is not drawn either.
    """
    with _outside_working_folder():
        import matplotlib as mpl

    # To set the backend would close the figures of other code.
    plain: Any = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    fonts = logging.getLogger("matplotlib.font_manager")
    before = fonts.level
    fonts.setLevel(logging.ERROR)  # the document's font need not be installed
    try:
        with mpl.rc_context({**plain, **STYLE}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")
            yield
    finally:
        fonts.setLevel(before)


def empty_figure(height_inches: float, width: float = WIDTH_INCHES) -> tuple[Figure, Axes]:
    """Return a figure of the page's width, or another, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def save(figure: Figure, files: Sequence[Path]) -> None:
    """Write a figure as SVG or PNG, by each file's suffix; it is laid out once for all files.

    Tight bounding box: a legend's marker or a label outside of the axes is included.
    """
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine(None)
    inside = figure.get_tightbbox().padded(0.04)
    for file in files:
        figure.savefig(
            file,
            bbox_inches=inside,
            dpi=PNG_DPI,
            metadata={"Date": None} if file.suffix == ".svg" else None,
        )
        if file.suffix == ".svg":
            file.write_text(titled(file.read_text()))


def show_values(drawn: Collection, texts: Sequence[str]) -> None:
    """Show a text for each dot, in order, under the pointer in an SVG."""
    drawn.set_urls(list(texts))


def draw_stacked(
    axes: Axes,
    widths: Sequence[float],
    left: list[float],
    look: tuple[str, str],
    label: str,
    texts: Sequence[str],
) -> None:
    """Draw one part of each row's bar where ``left`` says, and move that to its right end.

    ``look``: colour and hatch; a text for each row is shown under the pointer. A row without width
    has no part.
    """
    shown = [y for y, width in enumerate(widths) if width]
    bars = axes.barh(
        shown,
        [widths[y] for y in shown],
        left=[left[y] for y in shown],
        color=look[0],
        label=label,
        height=0.62,
        hatch=look[1],
        edgecolor="white",
        linewidth=0.4,
    )
    for bar, y in zip(bars, shown, strict=True):
        bar.set_url(texts[y])
        left[y] += max(widths[y], 0.0)


def share_legend(figure: Figure, panels: Iterable[Axes], columns: int = 4) -> None:
    """Add one legend above several panels, and align their axis labels."""
    by_label = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside upper center", ncols=columns, frameon=False
    )
    figure.align_ylabels(panels)


def height_of(rows: int) -> float:
    """Return the height in inches of a figure with so many rows."""
    return 0.9 + 0.27 * rows


def short_name(name: str, most: int = 34) -> str:
    """Return a point's name shortened to fit on an axis."""
    return name if len(name) <= most else name[: most - 1] + "…"


def spaced(labels: Sequence[tuple[float, str]], inches: float = WIDTH_INCHES) -> list[str]:
    """Return the labels of an axis in order of their places, empty where two would overlap."""
    width = inches - AXIS_INCHES
    span = (labels[-1][0] - labels[0][0]) or 1.0
    shown: list[str] = []
    free_from = float("-inf")
    for place, text in labels:
        at, half = (place - labels[0][0]) / span * width, len(text) * LETTER_INCHES / 2
        fits = at - half >= free_from
        shown.append(text if fits else "")
        free_from = at + half + LETTER_INCHES if fits else free_from
    return shown
