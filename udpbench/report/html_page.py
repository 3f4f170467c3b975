"""The document as one HTML file: places what ``pages`` and ``figures`` computed, computes nothing.

It has no script and fetches nothing, and its content security policy forbids both. The template
escapes all text; only our own figures and style sheets are markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udpbench.report.embedded_data import LINK
from udpbench.report.figures.experiment_figures import NARROW
from udpbench.report.figures.inline_svg import InlineFigures, palettes

TEMPLATES = Path(__file__).with_name("templates")
TEMPLATE, STYLE = "report.html.jinja", TEMPLATES / "report.css"
LABELS = {
    "paths": "The path of the packets: what each stage lost",
    "comparisons": "Change of each compared pair, block by block",
    "searches": "Loss over load, a dot for each trial",
    "dots": "Delivered rate, a dot for each trial",
    "matrices": "Each against each",
}
"""Descriptions of figures without a heading."""


def html_page(data: Mapping[str, Any], room: Path, stored: str) -> str:
    """Return the page of what ``document`` laid out: its data, and figures below ``room``.

    ``stored`` is what readers without udpbench download.
    """
    from markupsafe import Markup

    figures = InlineFigures()
    labels = {**data["headings"], **LABELS}
    drawn: dict[str, Markup] = {}
    for chapter in data["chapters"]:
        for kind, files in chapter["figures"].items():
            for file in files:
                label = f"{labels[kind.removesuffix(NARROW)]}: {chapter['name']}"
                wide = not kind.endswith(NARROW)
                drawn[file] = Markup(figures.inline(room / file, label, wide))  # noqa: S704 – ours
    for study in data["ladders"]:
        for file in filter(None, (*study["figures"], study["narrow"])):
            wide = file != study["narrow"]
            drawn[file] = Markup(figures.inline(room / file, study["title"], wide))  # noqa: S704
    return filled(TEMPLATE, figures, {**data, "drawn": drawn, "link": LINK, "packed": stored})


def filled(template: str, figures: InlineFigures, data: Mapping[str, Any]) -> str:
    """Return a page: a template of this room with its data, and the style of it and its figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    light, dark = palettes()
    style = STYLE.read_text().replace("/* light */", light).replace("/* dark */", dark)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup(style + figures.rules())  # noqa: S704 – ours
    return figures.named(environment.get_template(template).render(**data, style=style))
