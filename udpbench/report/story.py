"""A run as a reader meets it: per experiment its points, its verdicts and the answer in words.

Owns the wording that terminal, document and JSON share; derives everything through ``judge``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from udpbench.analysis.exits import CANNOT_TELL, FAILED, INTERRUPTED, NOT_RESTORED, YES
from udpbench.analysis.expect import Verdict, evaluate
from udpbench.analysis.judge import judge
from udpbench.analysis.points import Point, estimate, metric, points
from udpbench.model import Estimate, Experiment, Facts, Finding, Result, TrialRecord
from udpbench.records import Run
from udpbench.units import show_pps, show_ratio

SCALES = {
    "ns": ((10**9, "s"), (10**6, "ms"), (10**3, "µs")),
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
LOGGING = "app_log"
"""The one stage whose packets were received: what a log could not take."""
FEW_POINTS = 3
"""So many points are told one by one; of more the extreme ones."""
FEW_TRIALS = 3
"""So many trials are named one by one."""
LAB_LABEL = "built-in lab: namespaces of one machine, no hardware"


@dataclass(frozen=True)
class Chapter:
    """One experiment of a run."""

    experiment: Experiment
    records: tuple[TrialRecord, ...]
    points: tuple[Point, ...]
    verdicts: tuple[Verdict, ...]
    run: str = ""
    """Which run it is of, where several are told together."""

    @property
    def results(self) -> tuple[Result, ...]:
        """Return every trial's result, points in order."""
        return tuple(result for point in self.points for result in point.results)

    @property
    def built_in_lab(self) -> bool:
        """Return whether any trial ran in the built-in lab, so that it is labelled as such."""
        return any(record.built_in_lab for record in self.records)


def tell(experiments: Sequence[Experiment], records: Sequence[TrialRecord]) -> tuple[Chapter, ...]:
    """Return a chapter per experiment, points in the order in which the experiment declares them.

    A run that was killed before a trial has chapters, too, with the trials it came to.
    """
    chapters = []
    for experiment in experiments:
        mine = tuple(record for record in records if record.trial.experiment == experiment.name)
        results = [judge(record) for record in mine]
        declared = [trial.point for trial in experiment.points]
        found = sorted(points(results), key=lambda point: declared.index(point.name))
        chapters.append(Chapter(experiment, mine, tuple(found), evaluate(experiment, results)))
    return tuple(chapters)


def ended(run: Run) -> list[str]:
    """Return how a run ended, a line each; empty where it ended well."""
    ending = run.ending
    if ending is None:
        return ["the run has no end: it was killed, or still goes on"]
    told = [f"not restored: {message(error)}" for error in ending.restore_errors]
    if ending.status == "interrupted":
        told.append("the run was interrupted")
    if ending.status == "failed":
        told.append(f"the run failed: {message(ending.error or {})}")
    return told


def message(error: Mapping[str, str]) -> str:
    """Return what a recorded error says, after the name of its host."""
    host = error.get("host")
    return f"{host}: {error['message']}" if host else error.get("message", "no reason known")


def ending_code(run: Run) -> int:
    """Return the exit code of how a run ended; of one without an end nothing can be told."""
    ending = run.ending
    if ending is None:
        return CANNOT_TELL
    if ending.restore_errors:
        return NOT_RESTORED
    return {"complete": YES, "interrupted": INTERRUPTED, "failed": FAILED}[ending.status]


def hosts_of(records: Sequence[TrialRecord]) -> dict[str, Facts]:
    """Return every host with its facts as the latest trial found them."""
    return {host: facts for record in records for host, facts in record.facts.items()}


def representative(point: Point) -> Result | None:
    """Return the trial whose ledger stands for its point: of the valid ones the median delivered.

    Without a valid trial it is the first that ran to its end, so that a reader sees where its
    packets went all the same.
    """
    ranked = sorted(point.valid, key=lambda result: result.received_packets or 0)
    if ranked:
        return ranked[(len(ranked) - 1) // 2]
    return point.done[0] if point.done else None


def accounted(chapter: Chapter) -> list[tuple[Point, Result]]:
    """Return the points that have a ledger to show, each with its representative trial."""
    shown = [(point, representative(point)) for point in chapter.points]
    return [(point, one) for point, one in shown if one is not None and one.ledger is not None]


T = TypeVar("T")


def in_groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield items in runs of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def not_run(*chapters: Chapter) -> str:
    """Return how many trials never ran, in words; empty where all did."""
    of = [one.experiment for one in chapters]
    planned = sum(len(one.points) * one.repetitions for one in of)
    ran = sum(len(one.records) for one in chapters)
    if not ran:
        return "no trial ran"
    return f"{ran} of {planned} trials ran" if ran < planned else ""


def trials_label(names: Sequence[str]) -> str:
    """Return the trials a finding concerns: ``small #2`` by name while they are few."""
    if len(names) > FEW_TRIALS:
        return f"{len(names)} trials"
    short = (name.partition("::")[2] or f"#{name.rpartition('#')[2]}" for name in names)
    return ", ".join(one if one.startswith("#") else one.replace("#", " #") for one in short)


def n_of(found: Estimate, point: Point) -> str:
    """Return how many trials a median is of, where others are valid and do not know the number."""
    return f" (n = {found.n})" if found.n < len(point.valid) else ""


def show_estimate(found: Estimate | None) -> str:
    """Return a rate's median and interval for reading: ``352.1 kpps [340.0 – 360.2]``."""
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return show_pps(found.median)
    scale = 1e6 if found.median >= 1e6 else 1e3 if found.median >= 1e3 else 1
    digits = 3 if scale == 1e6 else 1 if scale == 1e3 else 0
    low, high = (f"{value / scale:.{digits}f}" for value in (found.low, found.high))
    return f"{show_pps(found.median)} [{low} – {high}]"


def show_number(value: float | None, unit: str) -> str:
    """Return a measured number for reading, in a scale that suits its unit: ``12.3 µs``, ``4 MiB``.

    Rounded to four digits, never parsed.
    """
    if value is None:
        return "–"
    if unit == "pps":
        return show_pps(value)
    if unit == "ratio":
        return show_ratio(value)
    for scale, name in SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:.4g} {unit}"


def name_of(point: Point) -> str:
    """Return a point's name for reading; an experiment of one point is just ``all``."""
    return point.name or "all"


def answer(chapter: Chapter) -> str:
    """Return the experiment's answer in two sentences: what arrived, and what to believe of it."""
    if not chapter.points:
        return "No trial ran."
    rated = [(one, estimate(one, "delivered_pps")) for one in chapter.points]
    known = [(found.median, one) for one, found in rated if found is not None]
    if len(chapter.points) <= FEW_POINTS or len(known) < 2:
        named = len(chapter.points) > 1
        told = "; ".join(_of_point(one, named) for one in chapter.points[:FEW_POINTS])
    else:
        most, least = (pick(known, key=lambda pair: pair[0])[1] for pick in (max, min))
        told = (
            f"Of {len(chapter.points)} points {name_of(most)} delivered most "
            f"({_of_point(most, False)}) and {name_of(least)} least ({_of_point(least, False)})"
        )
    return f"{told}. {trust([chapter])}"


def _of_point(point: Point, named: bool) -> str:
    head = f"{name_of(point)}: " if named else ""
    if not point.results:
        return f"{head}not run"
    if point.skipped:
        return head + reason(point)
    result = representative(point)
    if not point.valid or result is None:
        return f"{head}no valid trial, {reason(point)}"
    loss = estimate(point, "loss_ratio")
    told = [_delivered(point), *([f"{show_ratio(loss.median)} lost"] if loss is not None else [])]
    return head + ", ".join([*told, *_where(result)])


def _delivered(point: Point) -> str:
    """Return the delivered rate in words; of a few trials alone where the others have none."""
    rate = estimate(point, "delivered_pps")
    if rate is not None:
        return f"{show_pps(rate.median)}{n_of(rate, point)} delivered"
    if any(result.received_packets for result in point.valid):
        return "delivered at no rate (all was read at once)"
    return "nothing delivered"


def _where(result: Result) -> Iterator[str]:
    """Yield where most of a trial's loss was, and how much of what arrived no log could take."""
    worst = worst_stage(result)
    if worst:
        yield f"most of it at {worst}"
    unlogged = metric(result, LOGGING)
    if unlogged and result.received_packets:
        yield f"{show_ratio(unlogged / result.received_packets)} of what arrived was not logged"


def trust(chapters: Sequence[Chapter]) -> str:
    """Return how many trials are valid and how the expectations stand, as one sentence."""
    told = [one for chapter in chapters for one in chapter.results]
    results = [one for one in told if one.status != "skipped"]
    valid = sum(one.valid for one in results)
    parts = []
    if results and valid == len(results):
        all_ = {1: "the one trial is", 2: "both trials are"}.get(valid, f"all {valid} trials are")
        parts.append(f"{all_} valid")
    elif results:
        parts.append(f"{valid} of {len(results)} trials are valid")
    skipped = len(told) - len(results)
    if skipped:
        parts.append("1 was skipped" if skipped == 1 else f"{skipped} were skipped")
    if not_run(*chapters):
        parts.append(not_run(*chapters))
    parts += _expectations([one for chapter in chapters for one in chapter.verdicts])
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def worst_stage(result: Result) -> str:
    """Return the stage that took most of what a trial sent and nobody received; empty for none."""
    if result.ledger is None:
        return ""
    lost = [
        (entry.packets, entry.stage)
        for entry in result.ledger.entries
        if entry.packets and entry.stage not in ("unsent", "tx_netfilter", LOGGING)
    ]
    return max(lost)[1] if lost else ""


def reasons(result: Result) -> tuple[Finding, ...]:
    """Return what keeps a trial from counting: all that makes it invalid, or why it was skipped."""
    if result.status == "skipped":
        return tuple(one for one in result.findings if one.what.startswith("skipped: "))
    return tuple(one for one in result.findings if one.severity == "invalid")


def reason(point: Point) -> str:
    """Return why a point has no number to show: the first thing that kept a trial from counting."""
    found = [one.what for result in point.results for one in reasons(result)]
    return found[0] if found else "no reason known"


def _expectations(verdicts: Sequence[Verdict]) -> list[str]:
    """Return for each answer how many expectations have it, in words."""
    told = []
    for wanted, one, several in (
        ("yes", "holds", "hold"),
        ("no", "does not hold", "do not hold"),
        ("cannot tell", "cannot be judged", "cannot be judged"),
        ("skipped", "was skipped", "were skipped"),
    ):
        n = sum(verdict.answer == wanted for verdict in verdicts)
        if n:
            told.append(f"{n} of {len(verdicts)} expectations {one if n == 1 else several}")
    return told


def one_line(result: Result) -> str:
    """Return what one trial says in a line: rates and loss, or why it says nothing."""
    found = reasons(result)
    told = f"{show_pps(result.delivered_pps)} delivered, {show_ratio(result.loss_ratio)} lost"
    told = ", ".join([told, *_where(result)])
    if not found:
        return told
    why = f"{found[0].where}: {found[0].what}" if found[0].where else found[0].what
    return f"invalid: {why} ({told})" if result.status == "done" else why


def findings_of(chapter: Chapter) -> tuple[tuple[Finding, tuple[str, ...]], ...]:
    """Return each distinct finding with the names of the trials that have it, invalid first."""
    found: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    for result in chapter.results:
        for finding in result.findings:
            key = (finding.severity, finding.what, finding.where)
            found.setdefault(key, (finding, []))[1].append(result.trial.name)
    rank = {"invalid": 0, "warning": 1, "note": 2}
    ordered = sorted(found.values(), key=lambda pair: rank[pair[0].severity])
    return tuple((finding, tuple(names)) for finding, names in ordered)
