"""The headings and captions of the document, the same in every format.

Only text that does not depend on the run; the rest is in ``pages``.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpbench.judged_run import Chapter
from udpbench.report.answers import pictured_points
from udpbench.report.path_picture import PathPicture, pictures
from udpbench.report.sheets import LADDER_COLUMNS, VERDICT_COLUMNS, legends
from udpbench.report.summary import accounted, resolved
from udpbench.report.watch import read_apart

HEADINGS = {
    "limits": "What limits",
    "commands": "What to type next",
    "struck": "Left out of medians",
    "environment": "Measured on",
    "sweeps": "Along one quantity",
    "results": "Results",
    "verdicts": "Expectations",
    "ways": "Where the packets went",
    "ledger": "Ledger",
    "trials": "Every trial",
    "numbers": "Delay, pacing, cost and memory",
    "costs": "What a packet costs",
    "flames": "What the CPUs did",
    "timelines": "Over time",
    "radars": "In each millisecond",
    "times": "How late",
    "heats": "Over workers and queues",
    "queues": "Each queue over time",
    "findings": "Findings",
    "published": "Published",
    "settings": "Settings of",
    "yaml": "The experiment",
    "points": "Point by point",
    "ladder": "From base to recipe",
    "recipe": "The recipe",
    "beside": "Notes",
    "chapters": "The experiments",
    "missing": "Without a number here",
    "run": "The run",
    "hosts": "The environment",
    "lab": "The lab",
    "stages": "How the ledger is read",
}
COLUMNS = {
    "verdicts": VERDICT_COLUMNS,
    "findings": ("", "finding", "trials"),
    "published": ("figure", "published", "note"),
    "settings": ("host", "setting", "before → in force"),
    "missing": ("points", "why"),
    "stages": ("stage", "a packet that ended there", "read from"),
    "ledger": ("packets", "read from"),
    "numbers": ("median over valid trials",),
    "points": ("point", "published", "measured", "relations"),
    "ladder": LADDER_COLUMNS,
}
"""Table → its columns; of a table with a column for each point, those beside them."""
SHAPES = "Published figures are from other hardware: compare shapes, not numbers."
NOTES = {
    "points": "Every trial is a dot, the bar its median over valid trials.",
    "missing": "Why points have no number is listed below.",
    "shapes": SHAPES,
    "no_host": "No host was asked before the run ended.",
    "differs": "≠ marks differences between the hosts.",
    "way": "Packets pass the stages from top to bottom; those that end at none are received.",
    "trials": "Each with its ledger, without stages that lost nothing, and its findings: those of "
    "several trials by their number above, with the trial's value.",
    "data": "The data of this page, as udpbench show --json prints it",
    "read": 'In Python: udpbench.read_run("report.html"). Raw records are in the run folder.',
    "none_ended": "No packet ended at",
    "cut": "These pages leave out what they have no room for, and say where: the report as HTML "
    "and the run folder have all of it.",
    "more": "more, in the report as HTML and in the run folder",
    "lines": "{} more lines, in the report as HTML and in the run folder",
    "helps": "docs/ledger.md has remedies for each stage, and explains the counters.",
}
_CAPTIONS = {
    "comparisons": "Each dot is a block: one trial of each point. The interval has the confidence "
    "level of the verdict.",
    "dots": "Every trial is a dot. The bar is the median over valid trials, the line its 95 % "
    "interval, minimum to maximum below six trials.",
    "sweeps": "Lines join the medians over valid trials, each dot is a trial, the vertical line "
    "the interval of the median.",
    "matrices": "Each cell has the median over valid trials, and below it the 95 % interval, "
    "minimum to maximum below six trials. The findings say why a cell was skipped.",
    "results": "Medians over valid trials; in brackets the 95 % interval of the median, minimum to "
    "maximum below six trials. An invalid trial is left out of every median, and a "
    "struck-out trial of those of rates, delays and CPU numbers; the findings give the reason.",
    "searches": "How much of each load was lost in each trial, and in the median one.",
    "radars": "One turn is one second: the one with the trial's busiest millisecond, or all of "
    "a shorter load. A load of more than a minute is shown whole, medians as a line, minimum to "
    "maximum as a band. Below: the minimum, median and maximum number of packets "
    "sent in a millisecond. Even pacing is a circle.",
    "times": "The trial with median delivery. A line ends where fewer than ten values lie beyond "
    "it.",
    "costs": "CPU time per packet sent, on the sender's CPUs, and per packet received, on the "
    "receiver's; it adds up to the busy time of these CPUs. Of the trial with median delivery.",
    "flames": "Below each end and stage, the functions of the kernel from the one that begins the "
    "stage: each is as wide as its share of the busy time, below the one that called it.",
    "queues": "Packets per second of each RX and TX queue, between readings of the counters; "
    "a cross marks drops.",
}


RESULTS_OF_SEARCHES = (
    "Throughput is the delivered rate at the lower bound. Between: the highest load that met the "
    "goal, and the lowest that did not."
)
HIGHEST_RATE = (
    "The highest rate lies where more and more trials lose more than is allowed, the dashed line."
)
NO_RATE = "The dashed line is what may be lost. No highest rate is known."
TRIALS_OF_PATHS = {
    "search": "The path is that of a trial just above the highest rate.",
    "highest": "The path is that of the trial with the highest load: none above it was tried.",
    "unrated": "The path is that of one of the trials: no highest rate is known.",
    "point": "The path is that of the trial with median delivery.",
    "worst": "The path is that of the point that lost most: of its trial with median delivery.",
    "missed": "A path is that of the trial by which an expectation does not hold; else of the one "
    "with median delivery.",
    "points": "Each path is that of the point's trial with median delivery.",
}
UNOBSERVED_PART = "What is grey and hatched has no counter."


def _is_rated(chapter: Chapter) -> bool:
    """Return whether a search knows a load that meets its goal."""
    return any(search.headline.lower_pps is not None for search in chapter.searches)


def _paths(chapter: Chapter, shown: Sequence[PathPicture]) -> str:
    """Return whose the paths that are shown are, and what hatches mean if there are any."""
    several = any(len(point.results) > 1 for point in chapter.points)
    kind = "points" if len(shown) > 1 else "worst" if len(accounted(chapter)) > 1 else "point"
    kind = "missed" if any(verdict.missed for verdict in chapter.verdicts) else kind
    if chapter.searches:
        kind = "search" if _is_rated(chapter) else "unrated"
        if kind == "search" and all(search.breaking is None for search in chapter.searches):
            kind = "highest"
    parts = [TRIALS_OF_PATHS[kind]] if chapter.searches or several else []
    if any(not stop.observable for picture in shown for stop in picture.stops):
        parts.append(UNOBSERVED_PART)
    parts += read_apart(chapter.results)
    return " ".join(parts)


def captions(chapter: Chapter, published: bool, over_time: str) -> dict[str, str]:
    """Return the caption of each kind of figure or table of a chapter.

    ``over_time`` says which points are shown over time.
    """
    paths = _paths(chapter, pictures(chapter, points=pictured_points(chapter)))
    ways = _paths(chapter, pictures(chapter))
    shown = {**_CAPTIONS, "timelines": over_time, "paths": paths, "ways": ways}
    if chapter.searches:
        shown["results"] = RESULTS_OF_SEARCHES
        shown["searches"] += f" {HIGHEST_RATE if _is_rated(chapter) else NO_RATE}"
    shown["comparisons"] = " ".join(
        [shown["comparisons"], *legends(chapter.comparisons, chapter.tuning is None)]
    )
    for change in resolved(chapter.comparisons):
        shown["comparisons"] += (
            f" By the scatter of these blocks {change}: changes that are called in 4 of 5 attempts."
        )
    if published:
        shown["dots"] += f" {SHAPES}"
        shown["sweeps"] += " Published figures are from other hardware."
    return shown
