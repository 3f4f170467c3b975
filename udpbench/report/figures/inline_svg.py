"""A figure's SVG embedded in an HTML page: small, values under the pointer, light or dark.

Changes are invisible: coordinates are rounded to a tenth of a point, and corners closer than UNSEEN
to the line without them are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from math import hypot
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, fromstring, tostring

if TYPE_CHECKING:
    from pathlib import Path

SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
DARK = {
    "0072b2": "4a9fe0",
    "56b4e9": "8fd0f7",
    "009e73": "2fc79b",
    "f0e442": "f0e442",
    "e69f00": "f0b030",
    "d55e00": "ff8040",
    "cc79a7": "e29cc3",
    "000000": "e8e9eb",
    "ffffff": "16181c",
    "8a8a8a": "a0a4aa",
    "777777": "a0a4aa",
    "c00000": "ff6b6b",
    "5f5f5f": "a9aeb6",
    "bbbbbb": "50555e",
    "dddddd": "33373e",
}
"""Colour of a figure on paper → colour on a dark screen; other colours do not change."""
LEFT_OUT = ("metadata", "style")
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
COMMAND = re.compile(r"([A-Za-z])([^A-Za-z]*)")
LONG_PATH = 400
"""Length in characters from which on a path is simplified as a curve."""
MARKER = 36
"""Size in points up to which a path is a marker, where hundredths of a point are visible."""
LONG_CORNERS, DENSE_CORNERS = 120, 400
"""Number of corners from which on whole points suffice, and from which on lines overlap."""
ROUND_CORNERS = 8
"""Number of curves from which on a closed path may be a circle."""
ROUND, NO_LENGTH = 0.1, 0.001
"""In points: how far the ends of a circle's curves may be off it; a curve that leads nowhere."""
BESIDE = 1.1
"""Largest distance of what bends a circle's curves from its centre, in radii."""
UNSEEN = 0.25
"""In points: half a pixel for a figure of the maximum page width."""
UNSEEN_IF_DENSE = 0.5
"""The same where a path's lines overlap."""
AXIS, LEGEND = "matplotlib.axis_", "legend_"
"""matplotlib's ids of the group of an axis with its grid, ticks and labels, and of a legend."""
REFERENCE_LENGTH = 60
"""Length in characters from which on a part of a figure is longer than the references to it."""
PART = re.compile("<!--(end )?(d[0-9]+)-->")
"""Around what a later figure may refer to."""
CLIPPED_VALUE = re.compile('(<title>[^<]*</title>)<g class="([^"]*)">(<use [^<]*/>)</g>')
"""A dot with its value, in a group that only clips it."""
SHARED = ("pattern", "clipPath")
PAPER = "fill: #ffffff"
"""The style of a figure's background, which the page provides."""
Corner = tuple[float, float]


class InlineFigures:
    """The figures of one page; they share the rules of style."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._figures = 0
        self._values = True
        self._forms: dict[str, str] = {}
        """Hatch or clip without its id → its id in the page."""
        self._parts: dict[str, str] = {}
        """What is drawn of an axis or a legend → its id, if anything refers to it."""
        self._referred: set[str] = set()
        self._marks: dict[str, Element] = {}
        """In the current figure: reference → path that is drawn at several places."""

    def rules(self) -> str:
        """Return the style sheet of the figures so far."""
        return "".join(f".{name}{{{style}}}" for style, name in self._classes.items())

    def inline(self, file: Path, label: str, values: bool = True) -> str:
        """Return a figure as an element of a page; ``label`` describes it.

        Without ``values`` nothing is shown under a pointer, which a telephone has not.
        """
        self._values = values
        root = fromstring(file.read_text())  # noqa: S314 – written by us a moment ago
        self._figures += 1
        ids = _used_ids(root, f"f{self._figures}")
        again = self._shared(root, ids)
        marks = root.iterfind(f".//{SVG}defs/{SVG}path")
        self._marks = {f"#{each.get('id')}": each for each in marks}
        for part, each in again:
            part.remove(each)
        content = "".join(self._written(child, ids) for child in root)
        box = " ".join(_rounded(number, 0) for number in root.attrib["viewBox"].split())
        head = f'<svg role="img" aria-label="{escape(label)}" viewBox="{box}">'
        return f"{head}{content}</svg>"

    def _shared(self, root: Element, ids: dict[str, str]) -> list[tuple[Element, Element]]:
        """Return (hatch or clip, parent) of those that an earlier figure already has.

        They get that figure's id.
        """
        again = []
        for part in root.iter(f"{SVG}defs"):
            for each in part:
                name = each.attrib.pop("id", "")
                form = tostring(each, encoding="unicode")
                each.set("id", name)
                if each.tag.removeprefix(SVG) in SHARED and name in ids:
                    if form in self._forms:
                        again.append((part, each))
                    ids[name] = self._forms.setdefault(form, ids[name])
        return again

    def _written(self, element: Element, ids: dict[str, str]) -> str:
        tag = element.tag.removeprefix(SVG)
        if tag in LEFT_OUT or element.get("style") == PAPER:
            return ""
        if tag == "title" and not self._values:
            return ""
        if element.get("id", "").startswith(AXIS):
            return self._axis(element, ids)
        content = "".join(self._written(child, ids) for child in element)
        if element.get("id", "").startswith(LEGEND):
            return self._once(content)
        if tag in ("text", "tspan", "title"):
            content = escape(element.text or "", quote=False) + content
        attributes = dict(self._attributes(element, ids))
        clipped = CLIPPED_VALUE.fullmatch(content) if tag == "g" and not attributes else None
        if clipped is not None:
            content, attributes = clipped[1] + clipped[3], {"class": clipped[2]}
        titled = self._values and element.find(f"{SVG}title") is not None
        if tag == "g" and not attributes and not titled:
            return content
        if tag == "defs" and not content:
            return ""
        words = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
        return f"<{tag}{words}>{content}</{tag}>" if content else f"<{tag}{words}/>"

    def _axis(self, axis: Element, ids: dict[str, str]) -> str:
        """Return an axis with all lines of a style, grid or ticks, as one path."""
        lines: dict[str, list[str]] = {}
        texts: dict[str, list[str]] = {}
        for each in axis.iter():
            tag = each.tag.removeprefix(SVG)
            if tag == "use":
                tick = self._marks[each.attrib[HREF]]
                place = f"M{_rounded(each.attrib['x'], 1)} {_rounded(each.attrib['y'], 1)}"
                drawn = path(tick.attrib["d"]).replace("M0 0", place, 1)
                lines.setdefault(self._class_of(tick.attrib["style"], ids), []).append(drawn)
            elif tag == "path" and f"#{each.get('id')}" not in self._marks:
                words = dict(self._attributes(each, ids))
                lines.setdefault(words.get("class", ""), []).append(words["d"])
            elif tag == "text":
                name = dict(self._attributes(each, ids)).get("class", "")
                written = self._written(each, ids).replace(f' class="{name}"', "", 1)
                texts.setdefault(name, []).append(written)
        drawn_lines = (f'<path class="{name}" d="{"".join(d)}"/>' for name, d in lines.items())
        labels = (f'<g class="{name}">{"".join(each)}</g>' for name, each in texts.items())
        return self._once(*drawn_lines, *labels)

    def _once(self, *parts: str) -> str:
        """Return parts of a figure, by reference where an earlier one has the same there.

        All of them by one reference if it has all.
        """
        drawn = "".join(parts)
        if len(drawn) < REFERENCE_LENGTH:
            return drawn
        if drawn in self._parts:
            name = self._parts[drawn]
            self._referred.add(name)
            return f'<use href="#{name}"/>'
        name = self._parts[drawn] = f"d{len(self._parts)}"
        inner = "".join(map(self._once, parts)) if len(parts) > 1 else drawn
        return f"<!--{name}-->{inner}<!--end {name}-->"

    def named(self, page: str) -> str:
        """Return a page in which what figures refer to has its name, and nothing else has."""

        def name_or_nothing(mark: re.Match[str]) -> str:
            if mark[2] not in self._referred:
                return ""
            return "</g>" if mark[1] else f'<g id="{mark[2]}">'

        return PART.sub(name_or_nothing, page)

    def _attributes(self, element: Element, ids: dict[str, str]) -> Iterator[tuple[str, str]]:
        mark = self._marks.get(element.get(HREF, ""))
        used = mark.get("style") if mark is not None else None  # what it has needs no class
        classes = [
            self._class_of(f"{name}: {value}" if name == "clip-path" else value, ids)
            for name, value in element.attrib.items()
            if name == "clip-path" or (name == "style" and value != used)
        ]
        if classes:
            yield "class", " ".join(classes)
        for name, value in element.attrib.items():
            if name == "id":
                if value in ids:
                    yield "id", ids[value]
            elif name == HREF:
                yield "href", f"#{ids[value[1:]]}" if value.startswith("#") else value
            elif name in ("clip-path", "style"):
                continue
            elif name == "d":
                yield "d", path(value)
            elif name == "transform":
                if not value.startswith("rotate(-0 "):
                    yield name, value if "scale" in value else _rounded_all(value)
            elif name in ("x", "y", "width", "height"):
                yield name, _rounded_all(value)
            else:
                yield name, value

    def _class_of(self, style: str, ids: dict[str, str]) -> str:
        """Return the class for a style, with colours as variables and text in the page's font."""
        style = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", style)
        style = re.sub(r"font-family: [^;]*(; )?", "", style)
        style = re.sub(r"url\(#([\w-]+)\)", lambda match: f"url(#{ids[match[1]]})", style)
        style = re.sub(
            r"#([0-9a-f]{6})\b",
            lambda match: f"var(--c{match[1]})" if match[1] in DARK else match[0],
            style,
        )
        style = style.replace(": ", ":").replace("; ", ";")
        return self._classes.setdefault(style, f"s{len(self._classes)}")


def titled(svg: str) -> str:
    """Return a matplotlib SVG with its links replaced by titles, shown under the pointer."""
    svg = re.sub(r"<a xlink:href=(['\"])(.*?)\1[^>]*>", r"<g><title>\2</title>", svg)
    return svg.replace("</a>", "</g>")


def palettes() -> tuple[str, str]:
    """Return the CSS variables of the colours on paper, and on a dark screen."""
    light = "".join(f"--c{colour}:#{colour};" for colour in DARK)
    return light, "".join(f"--c{colour}:#{dark};" for colour, dark in DARK.items())


def _used_ids(root: Element, prefix: str) -> dict[str, str]:
    """Return referenced id → id in the page."""
    values = (value for element in root.iter() for value in element.attrib.values())
    used = dict.fromkeys(
        name for value in values for name in re.findall(r"(?:^|url\()#([\w-]+)", value)
    )
    return {name: f"{prefix}-{number}" for number, name in enumerate(used)}


def path(data: str) -> str:
    """Return a path in relative coordinates, rounded, without invisible corners.

    A circle of many curves becomes two arcs.
    """
    parts = [(command, _corners(numbers)) for command, numbers in COMMAND.findall(data)]
    parts = list(_circles(parts))
    parts = list(_smoothed(parts, UNSEEN)) if len(data) > LONG_PATH else parts
    if len(parts) > DENSE_CORNERS:
        parts = list(_smoothed(parts, UNSEEN_IF_DENSE))
    farthest = max((abs(at) for _, corners in parts for each in corners for at in each), default=0)
    digits = 0 if len(parts) > LONG_CORNERS else 1 if farthest > MARKER else 2
    out: list[str] = []
    at, letter = (0.0, 0.0), ""
    for command, exact in parts:
        corners = [(round(x, digits), round(y, digits)) for x, y in exact]
        if command == "L" and corners == [at]:
            continue
        if command == "A":
            far, back = corners
            out += [_arc(at, far, digits), _arc(far, back, digits)]
            at, letter = corners[-1], "a"
            continue
        before, letter = letter, command if command in "Mz" else command.lower()
        begin = (0.0, 0.0) if command == "M" else at
        steps = [
            end - start for corner in corners for end, start in zip(corner, begin, strict=True)
        ]
        if letter == "l" and 0 in steps:
            letter = "h" if steps[1] == 0 else "v"
            steps = [sum(steps)]
        words = _joined(steps, digits)
        if letter == before == "l":  # the letter may be omitted
            words = words if words.startswith("-") else f" {words}"
        else:
            words = letter + words
        out.append(words)
        at = corners[-1] if corners else at
    return "".join(out)


def _arc(begin: Corner, end: Corner, digits: int) -> str:
    """Return half a circle; its other half closes it, so that its direction shows nowhere."""
    x, y = end[0] - begin[0], end[1] - begin[1]
    radius = hypot(x, y) / 2
    way = _joined((x, y), digits)
    return f"a{_joined((radius, radius), digits)} 0 1 1{'' if way.startswith('-') else ' '}{way}"


def _circles(parts: Sequence[tuple[str, list[Corner]]]) -> Iterator[tuple[str, list[Corner]]]:
    """Yield a path with each circle as one part, to its far side and back; no curve without length.

    What goes around one point at one distance and ends where it began is a circle.
    """
    run: list[tuple[str, list[Corner]]] = []
    begin: Corner = (0.0, 0.0)
    for command, corners in [*parts, ("", [])]:
        if command == "C":
            run.append((command, corners))
            continue
        ends = [curve[-1] for _, curve in run]
        every = [begin, *(corner for _, curve in run for corner in curve)]
        if not all(hypot(x - begin[0], y - begin[1]) < NO_LENGTH for x, y in every):
            far = max(ends, key=lambda end: hypot(end[0] - begin[0], end[1] - begin[1]))
            middle = (begin[0] + far[0]) / 2, (begin[1] + far[1]) / 2
            away = [hypot(x - middle[0], y - middle[1]) for x, y in (begin, *ends)]
            closed = hypot(ends[-1][0] - begin[0], ends[-1][1] - begin[1]) < ROUND
            out = max(hypot(x - middle[0], y - middle[1]) for x, y in every)
            even = max(away) - min(away) < ROUND and out < BESIDE * max(away)
            if len(run) >= ROUND_CORNERS and closed and even:
                yield "A", [far, begin]
            else:
                yield from run
        run = []
        if command:
            yield command, corners
            begin = corners[-1] if corners else begin


def _corners(numbers: str) -> list[Corner]:
    values = [float(number) for number in numbers.split()]
    return list(zip(values[::2], values[1::2], strict=True))


def _smoothed(
    parts: Sequence[tuple[str, list[Corner]]], unseen: float
) -> Iterator[tuple[str, list[Corner]]]:
    """Yield a path with the fewest straight lines that look the same."""
    run: list[Corner] = []
    for command, corners in [*parts, ("", [])]:
        if command == "L":
            run += corners
            continue
        yield from (("L", [corner]) for corner in fewest(run, unseen)[1:])
        if command:
            yield command, corners
        run = corners[-1:] or run[-1:]


def fewest(run: Sequence[Corner], unseen: float = UNSEEN) -> list[Corner]:
    """Return the corners that a line needs to look the same.

    Douglas and Peucker, The Canadian Cartographer 10 (2), 1973: in each section the corner farthest
    from the straight line stays, unless it is closer than ``unseen`` points.
    """
    if len(run) < 3:
        return list(run)
    kept, left = {0, len(run) - 1}, [(0, len(run) - 1)]
    while left:
        first, last = left.pop()
        apart = [_apart(run[place], run[first], run[last]) for place in range(first + 1, last)]
        most = max(apart, default=0.0)
        if most >= unseen:
            place = first + 1 + apart.index(most)
            kept.add(place)
            left += [(first, place), (place, last)]
    return [run[place] for place in sorted(kept)]


def _apart(corner: Corner, begin: Corner, end: Corner) -> float:
    """Return how far a corner is from the straight line between two others."""
    x, y = corner[0] - begin[0], corner[1] - begin[1]
    across, up = end[0] - begin[0], end[1] - begin[1]
    square = across * across + up * up
    along = min(max((x * across + y * up) / square, 0.0), 1.0) if square else 0.0
    return hypot(x - along * across, y - along * up)


def _joined(numbers: Sequence[float], digits: int) -> str:
    """Return numbers with a space only where needed."""
    text = ""
    for number in numbers:
        word = _rounded(str(number), digits)
        text += word if not text or word.startswith("-") else f" {word}"
    return text


def _rounded_all(text: str) -> str:
    """Return a text whose numbers have one digit."""
    return NUMBER.sub(lambda number: _rounded(number[0], 1), text)


def _rounded(number: str, digits: int) -> str:
    """Return a number in its shortest form: ``-.5``, ``3``."""
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    text = re.sub(r"^(-?)0\.", r"\1.", text)
    return "0" if text in ("-0", "") else text
