"""The report of a campaign as one HTML file: pairs side by side, and changes over time.

Lays out what ``store`` computed; like the report of a run, the page fetches nothing.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from udpbench.errors import InputError, Problem
from udpbench.folder import Folder
from udpbench.printable import all_printable
from udpbench.report.campaign.campaign_answer import answer, newest_of, question
from udpbench.report.campaign.campaign_figures import draw_campaign, over_days
from udpbench.report.campaign.history_output import COLUMNS, change_text, day_rows, shown, title
from udpbench.report.document import refuse_shared
from udpbench.report.figures.inline_svg import InlineFigures
from udpbench.report.html_page import filled
from udpbench.report.summary import LAB_LABEL
from udpbench.store.history import PointHistory, histories, refuse_many
from udpbench.store.pairs import ALPHA, FEWEST_TRIALS, PointOnPairs, beside, differing_facts
from udpbench.units import show_percent, unbroken

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = "campaign.html.jinja"
FILE = "campaign.html"
MOST_DRAWN = 512
"""Points, each on each pair: some 90 figures."""
HEADINGS = {
    "commands": "What to type next",
    "facts": "What differs between the pairs",
    "pairs": "Pairs side by side",
    "factor": "Does the pair matter?",
    "changes": "Changes of level",
    "days": "Over the days",
}
LABELS = {**HEADINGS, "narrow": HEADINGS["pairs"]}
"""Kind of figure → what it is called for those who do not see it."""
NOTES = {
    "history": "each point by day, with its changes",
    "same": "The hosts of all pairs have no known differences.",
    "pairs": "The newest campaign: medians over valid trials with their 95 % interval, minimum to "
    "maximum below six trials.",
    "factor": f"Whether pairs differ, by the Kruskal-Wallis test from {FEWEST_TRIALS} trials per "
    f"pair on, at {show_percent(ALPHA)} for all points together (Holm). Pairs are not interleaved, "
    "so changes between their sessions are part of the difference.",
    "days": "All campaigns in the store: a dot is a day's median with its interval, a vertical "
    "line the first day of a new level, as jumpavg groups the trials. Trials of one day are never "
    "split.",
    "steady": "No point changed its level.",
    "read": "The data is in the store: read it with udpbench.read_runs(), see docs/records.md.",
}
FACTOR_COLUMNS = ("point", "least", "greatest", "least / greatest", "p", "pairs differ")


def write_campaign(trials: pd.DataFrame, path: str, folder: Path, named: bool = True) -> Path:
    """Write the page of the trials of a store, or of run folders, into a folder; return the file.

    InputError if there is no trial, or the folder cannot be created, or was not ``named`` to be
    written to and others write it.
    """
    page = campaign_page(trials, path)
    try:
        with Folder.open(folder, make=True) as out:
            if not named:
                refuse_shared(out)
            return out.write(FILE, page.encode())
    except OSError as error:
        step = "name another with --out"
        problem = Problem(f"cannot write: {error.strerror}", "--out", str(folder), next_step=step)
        raise InputError([problem]) from error


def campaign_page(trials: pd.DataFrame, store: str) -> str:
    """Return the page of the trials in a store."""
    pairs, changed = compared(trials)
    data = all_printable(campaign_data(trials, store, pairs, changed))
    figures = InlineFigures()
    with tempfile.TemporaryDirectory(prefix="udpbench-campaign-") as name:
        drawn = {
            kind: [Markup(figures.inline(file, LABELS[kind])) for file in files]  # noqa: S704 – ours
            for kind, files in draw_campaign(pairs, changed, Path(name)).items()
        }
    return filled(TEMPLATE, figures, {**data, "drawn": drawn})


def compared(trials: pd.DataFrame) -> tuple[Sequence[PointOnPairs], Sequence[PointHistory]]:
    """Return the newest campaign by pair, and all by day; InputError if none, or too many."""
    if trials.empty:
        raise InputError([Problem("holds no trial", "store")])
    changed = histories(trials)
    refuse_many(len(changed), MOST_DRAWN)
    return beside(newest_of(trials)), changed


def campaign_data(
    trials: pd.DataFrame, store: str, pairs: Sequence[PointOnPairs], changed: Sequence[PointHistory]
) -> dict[str, Any]:
    """Return what the template shows, without the figures."""
    newest = newest_of(trials)
    rows, more = differing_facts(newest)
    names = [str(name) for name in newest.pair.drop_duplicates().sort_values()]
    built_in = bool(trials.built_in_lab.fillna(value=False).any())
    return {
        "title": question(trials),
        "campaign": f"Campaign {newest.campaign.iloc[-1]}",
        "store": store,
        "again": shlex.join(["udpbench", "history", store]),
        "lab": LAB_LABEL if built_in else "",
        "answer": unbroken(answer(trials, pairs, changed)),
        "headings": HEADINGS,
        "notes": NOTES,
        "pairs": names,
        "facts": [
            *([row.name, *(row.values.get(name, "–") for name in names)] for row in rows),
            *([[f"and {more} more", *("…" for _ in names)]] if more else []),
        ],
        "factor_columns": FACTOR_COLUMNS,
        "factor": [_factor_cells(point) for point in pairs],
        "changes": [
            [title(each), change.day, change_text(change, each.metric)]
            for each in changed
            for change in each.changes
        ],
        "day_columns": COLUMNS,
        "days": [
            {"title": title(each), "rows": day_rows(each)}
            for of_point in over_days(changed)
            for each in of_point
        ],
    }


def _factor_cells(point: PointOnPairs) -> list[str]:
    least, greatest, ratio = point.span
    name = f"{point.experiment}::{point.point}" if point.point else point.experiment
    return [
        name,
        f"{least}: {shown(point.pairs[least])}",
        f"{greatest}: {shown(point.pairs[greatest])}",
        "–" if ratio is None else f"{ratio:.3f}",
        "–" if point.p is None else f"{point.p:.2g}",
        {None: "cannot tell", True: "yes", False: "not shown"}[point.differ],
    ]
