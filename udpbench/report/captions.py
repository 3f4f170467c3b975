"""The headings and captions of the document: every form of it shows these and no others.

Texts that a run has no part in; what depends on the run is in ``pages``.
"""

from __future__ import annotations

from udpbench.report.summary import Chapter, resolved
from udpbench.report.tables import LADDER_COLUMNS

HEADINGS = {
    "limits": "What limits",
    "commands": "What to type",
    "struck": "Struck out",
    "environment": "Measured on",
    "sweeps": "Along one quantity",
    "matrices": "Each against each",
    "results": "Results",
    "verdicts": "Expectations",
    "ways": "Where the packets went",
    "ledger": "Ledger",
    "trials": "Every trial",
    "numbers": "Delay, pacing, cost and memory",
    "timelines": "Over time",
    "radars": "In each millisecond",
    "times": "How late",
    "heats": "Over workers and queues",
    "queues": "Each queue over time",
    "findings": "Findings",
    "published": "Published",
    "settings": "Settings of",
    "yaml": "The experiment",
    "rungs": "Rung by rung",
    "ladder": "From base to recipe",
    "recipe": "The recipe",
    "beside": "Notes",
    "chapters": "The experiments",
    "missing": "Not measured here",
    "run": "The run",
    "hosts": "The environment",
    "lab": "The lab",
    "stages": "How the ledger is read",
}
COLUMNS = {
    "verdicts": ("answer", "expected", "measured"),
    "findings": ("", "finding", "trials"),
    "published": ("figure", "published", "note"),
    "settings": ("host", "setting", "before → in force"),
    "missing": ("rungs", "why"),
    "stages": ("stage", "a packet that ended there", "read from"),
    "ledger": ("packets", "read from"),
    "numbers": ("median over valid trials",),
    "rungs": ("rung", "published", "measured", "relations"),
    "ladder": LADDER_COLUMNS,
}
"""Table → its columns; of a table with a column for each point, those beside them."""
SHAPES = "Published figures are from other hardware: compare shapes, not numbers."
NOTES = {
    "rungs": "Every trial is a dot, the bar its median over valid trials.",
    "missing": "Why rungs were not measured is listed below.",
    "shapes": SHAPES,
    "no_host": "No host was asked before the run ended.",
    "differs": "≠ marks what differs between the hosts.",
    "way": "A packet meets the stages from top to bottom; what ends at none of them is received.",
    "trials": "With its ledger, without the stages that lost nothing, and its findings: those of "
    "several trials by their number above, with the trial's value.",
    "data": "The data of this page, as udpbench show --json prints it",
    "read": 'In Python: udpbench.read_run("report.html"). Raw records are in the run folder.',
    "none_ended": "No packet ended at",
    "helps": "docs/ledger.md says what helps at each stage, and where a counter needs a word.",
}
_CAPTIONS = {
    "comparisons": "Each dot is a block: one trial of both points. The interval is of the level at "
    "which the verdict was reached.",
    "dots": "Every trial is a dot. The bar is the median over valid trials, the line its 95 % "
    "interval, below six trials smallest to largest.",
    "sweeps": "Lines join the medians over valid trials, each dot is a trial, the upright line the "
    "interval of the median.",
    "matrices": "In each cell the median over valid trials, and below it its 95 % interval, below "
    "six trials smallest to largest. Why a cell was skipped is among the findings.",
    "results": "Medians over valid trials; in brackets the 95 % interval of the median, below six "
    "trials smallest to largest. A trial that is struck out is invalid and in no median; its "
    "reason is among the findings.",
    "searches": "Throughput is what arrived of the load at the lower bound. Between: the highest "
    "load that met the goal, and the lowest that did not. In the figure every trial is a dot, "
    "coloured by the stage that lost most.",
    "radars": "Once around is a second: of each trial that with its busiest millisecond, or all of "
    "a shorter load. Of a load beyond a minute all is shown, its medians as a line and least to "
    "most as a band. Below it are the least, the median and the largest number of packets that "
    "were sent in a millisecond of it. Even pacing is a circle.",
    "times": "Of the trial of median delivery. A line ends where fewer than ten of its times are "
    "left above it.",
    "queues": "Packets a second of each RX and TX queue, from one reading of the counters to the "
    "next; a cross where it dropped some.",
}


def captions(chapter: Chapter, published: bool, over_time: str) -> dict[str, str]:
    """Return what stands below each kind of figure or table of a chapter.

    ``over_time`` says which points are shown over time.
    """
    shown = {**_CAPTIONS, "timelines": over_time}
    if chapter.searches:
        shown["results"] = shown["searches"]
    for change in resolved(chapter.comparisons):
        shown["comparisons"] += (
            f" By the scatter of these blocks {change}: changes that are called in 4 of 5 attempts."
        )
    if published:
        shown["dots"] += f" {SHAPES}"
        shown["sweeps"] += " Published figures are from other hardware."
    return shown
