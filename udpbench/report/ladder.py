"""Several experiments of a run on one axis: a ladder for each study, each point a rung of it.

Computes what is drawn and printed. Judges nothing by a published figure: whether a relation holds
is the answer of ``analysis.verdicts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from udpbench.analysis.points import Point, estimate, metric, trials_with
from udpbench.analysis.verdicts import Verdict, evaluate_at, expected_at
from udpbench.definition.published import Bar, Published, published
from udpbench.judged_run import Chapter
from udpbench.metrics import SEARCHED
from udpbench.model.experiment import Expectation
from udpbench.model.result import Estimate
from udpbench.printable import printable
from udpbench.report.answers import why_of
from udpbench.report.figures.style import short_name
from udpbench.report.search import found_text, limits_text
from udpbench.report.summary import (
    LAB_LABEL,
    name_of,
    reason,
    representative,
    show_estimate,
    show_number,
)
from udpbench.units import show_count, show_pps, show_ratio

MEASURED_AS = {"pps": "delivered_pps", "mib_s": "delivered_mib_s"}
"""Published metric → our equivalent; a ladder has one of them on its axis."""
BESIDE = {
    "pps": ("delivered", "delivered_pps"),
    "mib_s": ("delivered", "delivered_mib_s"),
    "offered_pps": ("offered", "offered_pps"),
    "received_packets": ("received", "received_packets"),
}
"""Published metric → our word and metric; counts compare only for loads of the same length."""
FEW_NAMES = 3
QUESTION = "Which of these points receives most, which least, and what limits them?"
"""What the first page of several experiments answers."""
"""Maximum experiments whose names form the title."""
LEAST_HEAD = 8
"""Minimum length of an experiment's name next to a long point name."""
WORDS = {
    "yes": "holds",
    "no": "does not hold",
    "cannot tell": "cannot be judged",
    "skipped": "cannot be judged here",
}


@dataclass(frozen=True)
class Relation:
    """One relation judged at a rung: the answer, with its numbers or what is missing."""

    expected: str
    answer: str
    why: str


@dataclass(frozen=True)
class Pair:
    """A published and a measured value of the same metric, as text with units."""

    published: str
    measured: str


@dataclass(frozen=True)
class Rung:
    """One point of one experiment."""

    experiment: str
    run: str
    """``run 2`` if the rungs are of several runs; else empty."""
    name: str
    published: Bar | None
    measured: Estimate | None
    trials: tuple[tuple[float, bool], ...]
    """Each trial's value and whether it is valid."""
    pairs: tuple[Pair, ...]
    """Other published metrics of this point."""
    relations: tuple[Relation, ...]
    limits: str
    """What a search says instead of a number, such as ``at least 131.1 kpps``; else empty."""
    why_not: str
    """Why there is no number; empty if there is."""


@dataclass(frozen=True)
class Ladder:
    """All rungs of one study, on one axis."""

    title: str
    metric: str
    steps: tuple[tuple[Rung, ...], ...]
    """The rungs of each chapter."""
    study: Published | None
    """Any figure of the study, for title, source and conditions; None without a study."""
    chapters: tuple[Chapter, ...]

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Return every rung, from the first experiment to the last."""
        return tuple(rung for step in self.steps for rung in step)


def ladders(chapters: Sequence[Chapter]) -> tuple[Ladder, ...]:
    """Return the ladder of each study of a run; none for a single experiment of it.

    An experiment without published figures joins the study of its folder.
    """
    if len(chapters) < 2:
        return ()
    of_folder: dict[str, str] = {}
    for chapter in chapters:
        if _study(chapter):
            of_folder.setdefault(_folder(chapter), _study(chapter))
    groups: dict[str, list[Chapter]] = {}
    for chapter in chapters:
        folder = _folder(chapter)
        key = _study(chapter) or of_folder.get(folder, "") or folder
        groups.setdefault(key, []).append(chapter)
    return tuple(_ladder(group) for group in groups.values() if len(group) > 1)


def _folder(chapter: Chapter) -> str:
    return PurePath(chapter.experiment.path).parent.name


def _figures(chapter: Chapter) -> list[Published]:
    figures = (published(trial.source or "") for trial in chapter.experiment.points)
    return [figure for figure in figures if figure is not None]


def _study(chapter: Chapter) -> str:
    """Return the study of an experiment's first published figure; empty without one."""
    return next((figure.study for figure in _figures(chapter)), "")


def _ladder(chapters: Sequence[Chapter]) -> Ladder:
    known = [figure for chapter in chapters for figure in _figures(chapter)]
    in_bytes = sum(
        figure.bar("pps") is None and figure.bar("mib_s") is not None for figure in known
    )
    name = "mib_s" if 2 * in_bytes > len(known) else "pps"
    title = known[0].title if known else _title(chapters)
    runs = list(dict.fromkeys(chapter.run for chapter in chapters))
    named = {run: f"run {number}" if len(runs) > 1 else "" for number, run in enumerate(runs, 1)}
    steps = tuple(tuple(_rungs(chapter, name, named[chapter.run])) for chapter in chapters)
    return Ladder(title, name, steps, known[0] if known else None, tuple(chapters))


def _title(chapters: Sequence[Chapter]) -> str:
    """Return a title for experiments without a study; the question if there is only one."""
    names = list(dict.fromkeys(chapter.experiment.name for chapter in chapters))
    if len(names) == 1:
        return chapters[0].experiment.question
    folder = _folder(chapters[0])
    many = f"{len(names)} experiments" + (f" of {folder}" if folder else "")
    return ", ".join(names) if len(names) <= FEW_NAMES else many


def _rungs(chapter: Chapter, name: str, run: str) -> Iterator[Rung]:
    points = {point.name: point for point in chapter.points}
    for trial in chapter.experiment.points:
        point = points.get(trial.point, Point(chapter.experiment.name, trial.point, ()))
        figure = published(trial.source or "")
        ours = SEARCHED[0] if trial.search is not None else MEASURED_AS[name]
        values = [(metric(result, ours), result.valid) for result in point.results]
        # A search may have ended with a lower limit only, which is not a number.
        exact = all(ours not in result.spans for result in point.valid)
        measured = estimate(point, ours) if exact else None
        yield Rung(
            point.experiment,
            run,
            name_of(point) if len(chapter.experiment.points) > 1 else "",
            figure.bar(name) if figure is not None else None,
            measured,
            tuple((value, valid) for value, valid in values if value is not None),
            tuple(_pairs(figure, point, name)) if figure is not None else (),
            tuple(_relations(chapter, point)),
            *(("", "") if measured is not None else _instead(chapter, point)),
        )


def _pairs(figure: Published, point: Point, on_axis: str) -> Iterator[Pair]:
    """Yield the other published metrics that we measure; of counts over hours only their ratio."""
    for bar in figure.bars:
        if bar.metric not in BESIDE or bar.metric == on_axis:
            continue
        if bar.unit == "packets" and figure.bar("duration_s") is not None:
            continue
        word, name = BESIDE[bar.metric]
        measured = estimate(point, name)
        ours = "–" if measured is None else f"{show_number(measured.median, measured.unit)} {word}"
        yield Pair(f"{show_bar(bar)} {word}", ours)
    lost, sent = figure.bar("lost_packets"), figure.bar("sent_packets")
    if lost is not None and sent is not None and sent.high:
        measured = estimate(point, "loss_ratio")
        ours = "–" if measured is None else f"{show_ratio(measured.median)} lost"
        yield Pair(f"{show_ratio(lost.high / sent.high)} lost", ours)


def _relations(chapter: Chapter, point: Point) -> Iterator[Relation]:
    verdicts = evaluate_at(chapter.experiment, chapter.results, point.name)
    for expectation, verdict in zip(
        expected_at(chapter.experiment, point.name), verdicts, strict=True
    ):
        yield Relation(verdict.expected, verdict.answer, _why(expectation, verdict, point, chapter))


def _why(expectation: Expectation, verdict: Verdict, at: Point, chapter: Chapter) -> str:
    """Return the compared numbers; if there are none, what is missing."""
    if verdict.answer in ("yes", "no"):
        # A confirmed 0 needs no numbers.
        return "" if verdict.answer == "yes" and expectation.op == "==" else verdict.measured
    points = {point.name: point for point in chapter.points}
    missing = []
    for side in (expectation.left, expectation.right):
        name = at.name if side.point is None else side.point
        point = points.get(name, Point(at.experiment, name, ()))
        if side.metric is not None and estimate(point, side.metric) is None:
            missing.append(_missing(side.metric, point, at))
    why = "; ".join(dict.fromkeys(filter(None, missing)))
    by_blocks = verdict.answer == "cannot tell" and expectation.by_blocks(at.name) is not None
    return verdict.measured if by_blocks and not why else why


def _missing(name: str, point: Point, at: Point) -> str:
    """Return why a point has no number; empty for the rung itself, whose reason is listed below."""
    if point.valid and not trials_with(point, name):
        return f"{name_of(point)}: {name} is struck out: {reason(point)}"
    if point.valid:
        return f"{name_of(point)}: {name} is not observable there"
    return "" if point.name == at.name else f"{name_of(point)}: {_why_not(point)}"


def _instead(chapter: Chapter, point: Point) -> tuple[str, str]:
    """Return what a point's valid searches say, if any, and why it has no number."""
    searches = [search for search in chapter.searches if search.result in point.valid]
    limits, answers = (
        "; ".join(dict.fromkeys(map(text, searches))) for text in (limits_text, found_text)
    )
    return limits, answers or _why_not(point)


def _why_not(point: Point) -> str:
    if not point.results:
        return "not run"
    if point.skipped:
        return reason(point)
    return f"{'no rate' if point.valid else 'no valid trial'}: {reason(point)}"


def extremes(ladder: Ladder) -> str:
    """Return which points are highest and lowest, and why; empty if fewer than two are known."""
    known = [(rung, rung.measured) for rung in ladder.rungs if rung.measured is not None]
    if len(known) < 2:
        return ""
    ends = (pick(known, key=lambda pair: pair[1].median) for pick in (max, min))
    (most, highest), (least, lowest) = ends
    return (
        f"Of {len(ladder.rungs)} points {label(most)} receives most, {_with_ends(highest)}."
        f"{_limited(ladder, most)} {label(least)} receives least, {_with_ends(lowest)}."
        f"{_limited(ladder, least)}"
    )


def _limited(ladder: Ladder, rung: Rung) -> str:
    """Return what limits a point, as a sentence; empty if that is not known."""
    places = zip(ladder.chapters, ladder.steps, strict=True)
    chapter, name = next(
        (chapter, chapter.experiment.points[rungs.index(rung)].point)
        for chapter, rungs in places
        if rung in rungs
    )
    point = next(point for point in chapter.points if point.name == name)
    result = representative(point)
    if result is None or not result.diagnosis:
        return ""
    return f" {why_of(result)}"


def _with_ends(rate: Estimate) -> str:
    return show_estimate(rate) if rate.unit == "pps" else shown(rate.median, rate.unit)


# --- what the document shows ---------------------------------------------------------------------


def ladder_data(ladder: Ladder) -> dict[str, object]:
    """Return what the template shows of a ladder, without its figures."""
    chapters = ladder.chapters
    return {
        "title": ladder.title,
        "question": QUESTION,
        "lab": LAB_LABEL if any(chapter.built_in_lab for chapter in chapters) else "",
        "source": ladder.study.source if ladder.study is not None else "",
        "conditions": ladder.study.conditions if ladder.study is not None else "",
        "experiments": [
            {
                "name": chapter.experiment.name,
                "run": ": ".join(filter(None, (rungs[0].run, chapter.run))),
                "question": chapter.experiment.question,
                "rungs": [_rung_data(rung) for rung in rungs],
            }
            for chapter, rungs in zip(chapters, ladder.steps, strict=True)
        ],
        "compared": any(rung.published is not None or rung.pairs for rung in ladder.rungs),
        "missing": list(missing(ladder.rungs)),
    }


def _rung_data(rung: Rung) -> dict[str, object]:
    bar = "–" if rung.published is None else show_bar(rung.published)
    return {
        "name": rung.name or "all",
        "published": [bar, *(pair.published for pair in rung.pairs)],
        "measured": [_measured(rung), *(pair.measured for pair in rung.pairs if rung.measured)],
        "relations": [
            {
                "expected": relation.expected,
                "answer": relation.answer,
                "word": WORDS[relation.answer],
                "why": relation.why,
            }
            for relation in rung.relations
        ],
    }


def missing(rungs: Sequence[Rung]) -> Iterator[dict[str, str]]:
    """Yield each reason for rungs without a number, with those rungs."""
    reasons: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.why_not:
            reasons.setdefault(rung.why_not, []).append(label(rung))
    for why, names in reasons.items():
        yield {"reason": why, "rungs": ", ".join(names)}


def label(rung: Rung, most: int = 1000) -> str:
    """Return a rung's name: experiment and, if there are several, run and point.

    If it is too long, the experiment's name is shortened, since its rungs are adjacent.
    """
    tail = "".join((f", {rung.run}" if rung.run else "", f" · {rung.name}" if rung.name else ""))
    head = short_name(rung.experiment, max(most - len(tail), LEAST_HEAD))
    return printable(short_name(head + tail, most))


def show_bar(bar: Bar) -> str:
    """Return a published number as it was printed, with its unit."""
    if bar.unit == "pps":
        low, high = show_pps(bar.low), show_pps(bar.high)
    else:
        low, high = f"{bar.low:,.10g}", f"{bar.high:,.10g} {bar.unit}"
    return (high if bar.low == bar.high else f"{low} – {high}").replace(",", " ")


def _measured(rung: Rung) -> str:
    if rung.measured is None:
        return rung.limits or "not measured"
    return f"{shown(rung.measured.median, rung.measured.unit)} (n = {rung.measured.n})"


def shown(value: float, unit: str) -> str:
    """Return a number of a ladder's axis for reading; the unit is ``pps`` or that of throughput."""
    return show_pps(value) if unit == "pps" else f"{show_count(value)} MiB/s"
