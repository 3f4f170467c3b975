"""The figure of the path of the packets: a band from which lost packets fall where they are lost.

Draws ``path_picture`` and decides nothing: a stage that is in the ledger is in the figure. All
lengths are inches, so that a band and what falls from it are equally wide for equally many packets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from udpbench.model.limits import stage_of
from udpbench.report.figures.style import (
    ALARM,
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    GRID,
    NARROW_INCHES,
    PALE,
    WIDTH_INCHES,
    short_name,
)
from udpbench.report.path_picture import UNACCOUNTED, WAY_BACK, PathPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Styles = Mapping[str, tuple[str, str]]
BAND, LOW_BAND = 0.85, 0.5
"""Height of the whole band; where many are below each other."""
TURN = 0.07
"""Radius of the inner edge where what is lost turns downwards."""
FALL = 0.2
"""From the band's lower edge to the end of what falls."""
TIP = 0.1
"""The length of the arrow's head at its end."""
HEAD, NAMES, ZONES, ROW, COSTS = 0.2, 0.74, 0.17, 0.34, 0.17
"""Heights of the lines above and below a band."""
GAUGE_WIDTH, GAUGE = 0.85, 0.07
END = 0.24
"""Room for the arrow's head at the right."""
LETTER = 0.0078
"""Width of a letter, for each point of its size."""
SEAM = 0.01
"""By which neighbours overlap, so that nothing shows between them."""
HAIR = 0.012
"""The least width of a loss: one packet of a billion is to be seen."""
NARROWEST = 0.13
"""Between two stages, below which their names would overlap."""
TEXT, SMALL = 7.5, 6.0
UNKNOWN = (PALE, "..")
"""The style of several stages together, and of those of other versions."""


@dataclass(frozen=True)
class Fallen:
    """What falls from the band: where, how wide, and how it is named."""

    x: float
    """Where its inner edge begins to turn."""
    width: float
    name: str
    number: str
    colour: str
    hatch: str


@dataclass(frozen=True)
class PathLayout:
    """Where a picture's parts are, from left to right, and how high the band is between them."""

    edges: tuple[float, ...]
    """Left edge of each stop, and the right one of the last."""
    levels: tuple[float, ...]
    """Height of the band as it reaches each stop, and behind the last."""
    fallen: tuple[Fallen, ...]


def draw_paths(
    pictures: Sequence[PathPicture], styles: Styles, width: float = WIDTH_INCHES
) -> Figure:
    """Draw the pictures one above the other; ``styles`` are the stages' colours and hatches."""
    from matplotlib.figure import Figure

    band = BAND if len(pictures) <= 2 else LOW_BAND
    laid = [lay_out(picture, styles, width, band) for picture in pictures]
    rows = [_rows(layout, width) for layout in laid]
    named = width > NARROW_INCHES and all(_has_room(layout) for layout in laid)
    heights = [
        _height(picture, labels, band, named and number == 0)
        for number, (picture, labels) in enumerate(zip(pictures, rows, strict=True))
    ]
    figure = Figure(figsize=(width, sum(heights)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, sum(heights))
    axes.set_axis_off()
    top = sum(heights)
    for number, (picture, layout) in enumerate(zip(pictures, laid, strict=True)):
        drawing = _Drawing(axes, picture, layout, width, band)
        drawing.draw(top, rows[number], named and number == 0)
        top -= heights[number]
    return figure


def lay_out(picture: PathPicture, styles: Styles, width: float, band: float) -> PathLayout:
    """Place the stops of a picture: those that lost packets are wide enough for what falls."""
    lost: dict[int, list[tuple[str, int]]] = {}
    for loss in picture.losses:
        lost.setdefault(loss.stop, []).append((loss.name, loss.packets))
    count = len(picture.stops)
    if (picture.unaccounted or 0) > 0:
        lost.setdefault(count, []).append((UNACCOUNTED, picture.unaccounted or 0))
    wide = {
        stop: [max(band * min(picture.share(packets), 1.0), HAIR) for _, packets in each]
        for stop, each in lost.items()
    }
    extra = sum(w + 2 * TURN for each in wide.values() for w in each)
    step = max(width - END - extra, 0.5) / max(count, 1)
    edges, levels, fallen = [0.0], [band], []
    for stop in range(count + (count in lost)):
        end, level = edges[-1] + (step if stop < count else 0.0), levels[-1]
        for (name, packets), fall in zip(lost.get(stop, ()), wide.get(stop, ()), strict=True):
            number = picture.lost_text(packets)
            colour, hatch = styles.get(stage_of(name), UNKNOWN)
            if name == UNACCOUNTED:
                number, colour, hatch = picture.unaccounted_text, ALARM, ""
            fallen.append(Fallen(end, fall, name, number, colour, hatch))
            end += fall + 2 * TURN
            level = max(level - band * picture.share(packets), 0.0)
        edges.append(end)
        levels.append(level)
    return PathLayout(tuple(edges), tuple(levels), tuple(fallen))


def _has_room(layout: PathLayout) -> bool:
    """Return whether the names of all stages can stand above them."""
    pairs = zip(layout.edges, layout.edges[1:], strict=False)
    return min((right - left for left, right in pairs), default=0.0) >= NARROWEST


def _rows(layout: PathLayout, width: float) -> list[list[tuple[float, Fallen]]]:
    """Return the rows of labels below the band: (left end, what fell); neighbours never overlap."""
    rows: list[list[tuple[float, Fallen]]] = []
    ends: list[float] = []
    for fallen in layout.fallen:
        wide = LETTER * TEXT * max(len(fallen.name), len(fallen.number))
        middle = fallen.x + TURN + fallen.width / 2
        left = min(max(middle - wide / 2, 0.0), max(width - wide, 0.0))
        row = next((n for n, end in enumerate(ends) if end <= left), len(ends))
        if row == len(ends):
            ends.append(0.0)
            rows.append([])
        ends[row] = left + wide + 0.1
        rows[row].append((left, fallen))
    return rows


def _height(
    picture: PathPicture, rows: Sequence[Sequence[object]], band: float, named: bool
) -> float:
    below = max(len(rows), 1 if picture.limit else 0) * ROW
    costs = COSTS if picture.costs else 0.0
    fillings = ROW if picture.fillings else 0.1
    return HEAD + ZONES + (NAMES if named else 0.0) + band + FALL + TIP + below + costs + fillings


class _Drawing:
    """One panel being drawn."""

    def __init__(
        self, axes: Axes, picture: PathPicture, layout: PathLayout, width: float, band: float
    ) -> None:
        self._axes, self._picture, self._layout = axes, picture, layout
        self._width, self._band = width, band
        self._y = 0.0
        """Upper edge of the band."""

    def draw(self, top: float, rows: Sequence[Sequence[tuple[float, Fallen]]], named: bool) -> None:
        """Draw it below ``top``: ends, names, band, what falls and its labels, and how full."""
        picture = self._picture
        ends = (picture.entered_text, picture.received_text)
        letters = int(self._width / LETTER / TEXT) - sum(map(len, ends)) - 2
        y = top - HEAD / 2
        self._text(0.0, y, ends[0], TEXT, BLACK, weight="bold")
        self._text(self._width, y, ends[1], TEXT, BLACK, "right", weight="bold")
        if not picture.is_only and letters > 3:
            self._text(self._width / 2, y, short_name(picture.name, letters), TEXT, BLACK, "center")
        self._y = top - HEAD - ZONES - (NAMES if named else 0.0)
        self._zones(top - HEAD - ZONES / 2, named)
        self._band_itself()
        for number, fallen in enumerate(self._layout.fallen):
            self._fall(fallen, number)
        bottom = self._y - self._band - FALL - TIP
        for row, labels in enumerate(rows):
            for left, fallen in labels:
                self._label(left, bottom - ROW * row, fallen)
        if picture.limit:
            most = int(self._width / LETTER / TEXT)
            self._text(0.0, bottom - 0.06, short_name(picture.limit, most), TEXT, BLACK)
        below = bottom - ROW * max(len(rows), 1 if picture.limit else 0)
        if picture.costs:
            self._costs(below - COSTS / 2)
            below -= COSTS
        self._fillings(below)

    def _text(
        self, x: float, y: float, text: str, size: float, colour: str, ha: str = "left",
        weight: str = "normal",
    ) -> None:  # fmt: skip
        self._axes.text(
            x, y, text, fontsize=size, color=colour, ha=ha, va="center", fontweight=weight
        )

    def _zones(self, y: float, named: bool) -> None:
        """Name the parts of the path, and if there is room every stage, above where they are."""
        edges, stops = self._layout.edges, self._picture.stops
        zones = self._picture.zones
        for (zone, first), (_, after) in zip(zones, [*zones[1:], ("", len(stops))], strict=True):
            left, right = edges[first], edges[after]
            if LETTER * TEXT * len(zone) <= right - left:
                self._text((left + right) / 2, y, zone, TEXT, FAINT, "center")
            self._axes.plot(
                [left + 0.02, right - 0.02], [y - ZONES / 2] * 2, color=PALE, linewidth=0.8
            )
        lost = {stage for each in self._layout.fallen for stage in each.name.split(" or ")}
        for number, stop in enumerate(stops) if named else ():
            colour, weight = (BLACK, "bold") if stop.stage in lost else (FAINT, "normal")
            x = edges[number] + min((edges[number + 1] - edges[number]) / 2, 0.14)
            self._axes.text(
                x, self._y + 0.05, stop.stage, fontsize=SMALL, color=colour, fontweight=weight,
                rotation=90, ha="center", va="bottom",
            )  # fmt: skip

    def _band_itself(self) -> None:
        """Draw what passes; hatched where nobody counts, in another colour on the way back."""
        from matplotlib.patches import Polygon, Rectangle

        layout, stops, y = self._layout, self._picture.stops, self._y
        self._axes.add_patch(Polygon(self._outline(0.0), facecolor=BLUE, linewidth=0))
        back = next((n for n, stop in enumerate(stops) if stop.zone == WAY_BACK), None)
        if back is not None:
            outline = self._outline(layout.edges[back])
            self._axes.add_patch(Polygon(outline, facecolor=GREEN, linewidth=0))
        for number, stop in enumerate(stops):
            left, right = layout.edges[number : number + 2]
            right = next((each.x for each in layout.fallen if left <= each.x < right), right)
            height = layout.levels[number]
            if not stop.observable:
                unseen = Rectangle(
                    (left, y - height), right - left + SEAM, height, facecolor=PALE, edgecolor=GREY,
                    hatch="////", linewidth=0,
                )  # fmt: skip
                unseen.set_url(f"{stop.stage}: not observable")
                self._axes.add_patch(unseen)
            if number and stop.zone != stops[number - 1].zone:
                self._axes.plot([left] * 2, [y - height, y], color="white", linewidth=1.0)
        if (self._picture.unaccounted or 0) < 0:
            right, remainder = layout.edges[-1], self._picture.unaccounted_text
            self._text(right, y - self._band, UNACCOUNTED, TEXT, ALARM, "right", "bold")
            self._text(right, y - self._band - 0.13, remainder, TEXT, ALARM, "right")

    def _outline(self, begin: float) -> list[tuple[float, float]]:
        """Return the corners of the band from a place on, with the head of its arrow."""
        edges, y = self._layout.edges, self._y
        steps, level = [(begin, self._band)], self._band
        for each in self._layout.fallen:
            after = max(level - each.width, 0.0)
            if each.x <= begin:
                steps = [(begin, after)]
            else:
                steps += [(each.x, level), (each.x, after)]
            level = after
        level = self._layout.levels[-1]
        if self._picture.received:
            level = max(level, HAIR)
        end, tip = edges[-1], min(END - 0.02, max(level, 0.1) / 2 + 0.04)
        arrow = [(end, y + 0.03), (end + tip, y - level / 2), (end, y - level - 0.03)]
        lower = [*steps, (end, level)]
        corners = [(begin, y), (end, y), *(arrow if level else []), (end, y - level)]
        return [*corners, *((x, y - height) for x, height in reversed(lower))]

    def _fall(self, fallen: Fallen, number: int) -> None:
        """Draw packets that leave: along the band's lower edge, then around a corner, and down."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        before = self._layout.fallen[:number]
        lower = self._y - self._band + sum(each.width for each in before)
        lower = min(lower, self._y)
        x, upper, inner, outer = fallen.x, lower + fallen.width, TURN, TURN + fallen.width
        end = self._y - self._band - FALL
        bend = 0.5523  # of a quarter of a circle by one cubic curve
        corners = [
            (Path.MOVETO, (x, upper)),
            (Path.CURVE4, (x + bend * outer, upper)),
            (Path.CURVE4, (x + outer, upper - outer * (1 - bend))),
            (Path.CURVE4, (x + outer, upper - outer)),
            (Path.LINETO, (x + outer, end)),
            (Path.LINETO, (x + inner + fallen.width / 2, end - min(fallen.width / 2, TIP))),
            (Path.LINETO, (x + inner, end)),
            (Path.LINETO, (x + inner, lower - inner)),
            (Path.CURVE4, (x + inner, lower - inner * (1 - bend))),
            (Path.CURVE4, (x + bend * inner, lower)),
            (Path.CURVE4, (x, lower)),
            (Path.CLOSEPOLY, (x, upper)),
        ]
        codes, points = zip(*corners, strict=True)
        patch = PathPatch(
            Path(points, codes), facecolor=fallen.colour, hatch=fallen.hatch,
            edgecolor="white" if fallen.width > 2 * HAIR else fallen.colour, linewidth=0.4,
        )  # fmt: skip
        patch.set_url(f"{fallen.name}: {fallen.number}")
        self._axes.add_patch(patch)

    def _label(self, left: float, y: float, fallen: Fallen) -> None:
        colour = ALARM if fallen.name == UNACCOUNTED else BLACK
        middle = fallen.x + TURN + fallen.width / 2
        wide = LETTER * TEXT * max(len(fallen.name), len(fallen.number))
        if not left <= middle <= left + wide:
            self._axes.plot([middle, left + wide / 2], [y + 0.02, y], color=PALE, linewidth=0.5)
        x = left + wide / 2
        self._text(x, y - 0.07, fallen.name, TEXT, colour, "center", weight="bold")
        self._text(x, y - 0.2, fallen.number, TEXT, colour, "center")

    def _costs(self, y: float) -> None:
        """Write below each part of the path what it takes of a CPU for each packet."""
        edges, zones = self._layout.edges, self._picture.zones
        ends = [*(number for _, number in zones[1:]), len(self._picture.stops)]
        for (zone, first), after in zip(zones, ends, strict=True):
            ns = self._picture.costs.get(zone)
            if ns is not None:
                middle, text = (edges[first] + edges[after]) / 2, f"{ns:.0f} ns/packet"
                half = LETTER * SMALL * len(text) / 2
                middle = max(min(middle, self._width - half), half)
                self._text(middle, y, text, SMALL, FAINT, "center")

    def _fillings(self, top: float) -> None:
        """Draw how full queues and CPUs were, as bars below where they are."""
        from matplotlib.patches import Rectangle

        free = 0.0
        shown = list(self._picture.fillings)
        wides = [max(LETTER * TEXT * len(each.text), GAUGE_WIDTH) for each in shown]
        while len(shown) > 1 and sum(wides) + 0.12 * (len(wides) - 1) > self._width + 0.05:
            emptiest = shown.index(min(shown, key=lambda each: each.share))
            del shown[emptiest], wides[emptiest]
        for number, each in enumerate(shown):
            rest = sum(wide + 0.12 for wide in wides[number:]) - 0.12
            middle = sum(self._layout.edges[each.stop : each.stop + 2]) / 2
            left = max(min(middle - wides[number] / 2, self._width - rest), free)
            if left + wides[number] > self._width + 0.05:
                break
            self._text(left, top - 0.09, each.text, TEXT, BLACK)
            for share, colour in ((1.0, GRID), (each.share, BLUE)):
                self._axes.add_patch(
                    Rectangle(
                        (left, top - 0.25), GAUGE_WIDTH * share, GAUGE, color=colour, linewidth=0
                    )
                )
            free = left + wides[number] + 0.12
