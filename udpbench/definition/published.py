"""Figures that others published for what our experiments measure: shown beside, never a target.

Reads experiments/published.yaml alone; never judges anything by it.
"""

from __future__ import annotations

import functools
from typing import Any

from udpbench.definition import document, shipped

FILE = "published.yaml"


def published(source: str) -> dict[str, Any] | None:
    """Return what ``study/figure`` was published as, or None where nobody published it.

    Keys of the study: title, source, conditions; of the figure: pps as [lowest, highest], and note
    or correction where there is one. ``study`` and ``figure`` name both.
    """
    study, _, figure = source.partition("/")
    known = _studies().get(study)
    found = known["figures"].get(figure) if known is not None else None
    if known is None or found is None:
        return None
    of_study = {key: known[key] for key in ("title", "source", "conditions")}
    return {"study": study, "figure": figure, **of_study, **found}


@functools.cache
def _studies() -> dict[str, Any]:
    path = shipped.folder() / FILE
    shown_as = shipped.shown_as(path)
    return document.parse(document.read_text(path, shown_as), shown_as).data
