"""A figure's SVG as a part of an HTML page: small, its values under the pointer, light or dark.

Changes form, never a number beyond what can be seen: coordinates are rounded to a tenth of a point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, fromstring

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
    "bbbbbb": "50555e",
    "dddddd": "33373e",
}
"""Colour of a figure on paper → the same on a dark screen; any other is the same on both."""
LEFT_OUT = ("metadata", "style")
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
LONG_PATH = 400
"""Letters from which on a path is a curve whose corners need no hundredth of a point."""


class InlineFigures:
    """The figures of one page; they share the rules of style."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._figures = 0

    def rules(self) -> str:
        """Return the style sheet of the figures so far."""
        return "".join(f".{name}{{{style}}}" for style, name in self._classes.items())

    def inline(self, file: Path, label: str) -> str:
        """Return a figure as an element of a page; ``label`` says what it shows."""
        root = fromstring(file.read_text())  # noqa: S314 – written by us a moment ago
        self._figures += 1
        ids = _used_ids(root, f"f{self._figures}")
        content = "".join(self._written(child, ids) for child in root)
        box = " ".join(_rounded(number, 0) for number in root.attrib["viewBox"].split())
        head = f'<svg role="img" aria-label="{escape(label)}" viewBox="{box}">'
        return f"{head}{content}</svg>"

    def _written(self, element: Element, ids: dict[str, str]) -> str:
        tag = element.tag.removeprefix(SVG)
        if tag in LEFT_OUT:
            return ""
        content = "".join(self._written(child, ids) for child in element)
        if tag in ("text", "tspan", "title"):
            content = escape(element.text or "", quote=False) + content
        attributes = dict(self._attributes(element, ids))
        if tag == "g" and not attributes and element.find(f"{SVG}title") is None:
            return content
        if tag == "defs" and not content:
            return ""
        words = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
        return f"<{tag}{words}>{content}</{tag}>" if content else f"<{tag}{words}/>"

    def _attributes(self, element: Element, ids: dict[str, str]) -> Iterator[tuple[str, str]]:
        for name, value in element.attrib.items():
            if name == "id":
                if value in ids:
                    yield "id", ids[value]
            elif name == HREF:
                yield "href", f"#{ids[value[1:]]}" if value.startswith("#") else value
            elif name == "clip-path":
                yield name, f"url(#{ids[value[5:-1]]})"
            elif name == "style":
                yield "class", self._class_of(value, ids)
            elif name == "d":
                yield "d", path(value)
            elif name == "transform":
                if not value.startswith("rotate(-0 "):
                    yield name, value
            elif name in ("x", "y", "width", "height"):
                yield name, NUMBER.sub(lambda number: _rounded(number[0], 2), value)
            else:
                yield name, value

    def _class_of(self, style: str, ids: dict[str, str]) -> str:
        """Return the class of a style: its colours as variables, its text in the page's font."""
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
    """Return an SVG of matplotlib with a value under the pointer where it has a link."""
    svg = re.sub(r"<a xlink:href=(['\"])(.*?)\1[^>]*>", r"<g><title>\2</title>", svg)
    return svg.replace("</a>", "</g>")


def palettes() -> tuple[str, str]:
    """Return the variables of the figures' colours on paper, and on a dark screen."""
    light = "".join(f"--c{colour}:#{colour};" for colour in DARK)
    return light, "".join(f"--c{colour}:#{dark};" for colour, dark in DARK.items())


def _used_ids(root: Element, prefix: str) -> dict[str, str]:
    """Return the ids that something refers to, and what they are called in the page."""
    values = (value for element in root.iter() for value in element.attrib.values())
    used = dict.fromkeys(
        name for value in values for name in re.findall(r"(?:^|url\()#([\w-]+)", value)
    )
    return {name: f"{prefix}-{number}" for number, name in enumerate(used)}


def path(data: str) -> str:
    """Return a path in relative coordinates, rounded, without the corners that do not move."""
    digits = 1 if len(data) > LONG_PATH else 2
    out: list[str] = []
    at = (0.0, 0.0)
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", data):
        values = [float(number) for number in numbers.split()]
        corners = [
            (round(x, digits), round(y, digits))
            for x, y in zip(values[::2], values[1::2], strict=True)
        ]
        if command == "L" and corners == [at]:
            continue
        letter = command if command in "Mz" else command.lower()
        begin = (0.0, 0.0) if command == "M" else at
        steps = [
            end - start for corner in corners for end, start in zip(corner, begin, strict=True)
        ]
        if letter == "l" and 0 in steps:
            letter = "h" if steps[1] == 0 else "v"
            steps = [sum(steps)]
        out.append(letter + _joined(steps, digits))
        at = corners[-1] if corners else at
    return "".join(out)


def _joined(numbers: Sequence[float], digits: int) -> str:
    """Return numbers with a blank only where they would run together."""
    text = ""
    for number in numbers:
        word = _rounded(str(number), digits)
        text += word if not text or word.startswith("-") else f" {word}"
    return text


def _rounded(number: str, digits: int) -> str:
    """Return a number as short as it can be written: ``-.5``, ``3``."""
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    text = re.sub(r"^(-?)0\.", r"\1.", text)
    return "0" if text in ("-0", "") else text
