"""A run of several experiments as ladders: one for each study, each point a rung.

What is drawn and told is computed first, by functions whose results tests assert. Judges nothing by
a published figure: whether a relation holds is ``analysis.expect``'s answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from udpbench.analysis.expect import Verdict, evaluate_at, expected_at
from udpbench.analysis.points import Point, estimate, metric
from udpbench.definition.published import Bar, Published, published
from udpbench.model import Estimate, Expectation
from udpbench.report.story import (
    LAB_LABEL,
    Chapter,
    name_of,
    reason,
    show_number,
)
from udpbench.units import show_pps, show_ratio

MEASURED_AS = {"pps": "delivered_pps", "mib_s": "delivered_mib_s"}
"""Published metric → ours that means the same; a ladder has one of them on its axis."""
BESIDE = {
    "pps": ("delivered", "delivered_pps"),
    "mib_s": ("delivered", "delivered_mib_s"),
    "offered_pps": ("offered", "offered_pps"),
    "received_packets": ("received", "received_packets"),
}
"""Published metric → our word for it and ours; a count is one only of a load of the same length."""
WORDS = {
    "yes": "holds",
    "no": "does not hold",
    "cannot tell": "cannot be judged",
    "skipped": "cannot be judged here",
}


@dataclass(frozen=True)
class Relation:
    """One relation that is judged at a rung: the answer, and the numbers or the lack behind it."""

    expected: str
    answer: str
    why: str


@dataclass(frozen=True)
class Pair:
    """What was published and what was measured of the same thing, as texts with units."""

    published: str
    measured: str


@dataclass(frozen=True)
class Rung:
    """One point of one experiment."""

    experiment: str
    name: str
    published: Bar | None
    measured: Estimate | None
    trials: tuple[tuple[float, bool], ...]
    """Each trial's value and whether it is valid."""
    pairs: tuple[Pair, ...]
    """What else was published of it."""
    relations: tuple[Relation, ...]
    why_not: str
    """Why there is nothing measured; empty where there is."""


@dataclass(frozen=True)
class Ladder:
    """All rungs of one study, on one axis."""

    title: str
    metric: str
    steps: tuple[tuple[Rung, ...], ...]
    """The rungs of each chapter."""
    study: Published | None
    """Any figure of the study, for title, source and conditions; None for experiments of none."""
    chapters: tuple[Chapter, ...]

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Return every rung, from the first experiment to the last."""
        return tuple(rung for step in self.steps for rung in step)


def ladders(chapters: Sequence[Chapter]) -> tuple[Ladder, ...]:
    """Return the ladder of each study of a run; none for a single experiment.

    An experiment of which nothing was published climbs with the study of its folder.
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
    return tuple(_ladder(group) for group in groups.values())


def _folder(chapter: Chapter) -> str:
    return PurePath(chapter.experiment.path).parent.name


def _figures(chapter: Chapter) -> list[Published]:
    found = (published(trial.source or "") for trial in chapter.experiment.points)
    return [figure for figure in found if figure is not None]


def _study(chapter: Chapter) -> str:
    """Return the study of an experiment's first published figure; empty without any."""
    return next((figure.study for figure in _figures(chapter)), "")


def _ladder(chapters: Sequence[Chapter]) -> Ladder:
    known = [figure for chapter in chapters for figure in _figures(chapter)]
    in_bytes = sum(
        figure.bar("pps") is None and figure.bar("mib_s") is not None for figure in known
    )
    name = "mib_s" if 2 * in_bytes > len(known) else "pps"
    title = known[0].title if known else _folder(chapters[0]) or "experiments"
    several = len({chapter.run for chapter in chapters}) > 1
    steps = tuple(tuple(_rungs(chapter, name, several)) for chapter in chapters)
    return Ladder(title, name, steps, known[0] if known else None, tuple(chapters))


def _rungs(chapter: Chapter, name: str, several: bool) -> Iterator[Rung]:
    found = {point.name: point for point in chapter.points}
    for trial in chapter.experiment.points:
        point = found.get(trial.point, Point(chapter.experiment.name, trial.point, ()))
        figure = published(trial.source or "")
        values = [(metric(one, MEASURED_AS[name]), one.valid) for one in point.results]
        measured = estimate(point, MEASURED_AS[name])
        yield Rung(
            f"{point.experiment}, {chapter.run}" if several else point.experiment,
            name_of(point) if len(chapter.experiment.points) > 1 else "",
            figure.bar(name) if figure is not None else None,
            measured,
            tuple((value, valid) for value, valid in values if value is not None),
            tuple(_pairs(figure, point, name)) if figure is not None else (),
            tuple(_relations(chapter, point)),
            "" if measured is not None else _why_not(point),
        )


def _pairs(figure: Published, point: Point, on_axis: str) -> Iterator[Pair]:
    """Yield what else was published that we measure, too; of counts over hours only their ratio."""
    for bar in figure.bars:
        if bar.metric not in BESIDE or bar.metric == on_axis:
            continue
        if bar.unit == "packets" and figure.bar("duration_s") is not None:
            continue
        word, name = BESIDE[bar.metric]
        found = estimate(point, name)
        ours = "–" if found is None else f"{show_number(found.median, found.unit)} {word}"
        yield Pair(f"{show_bar(bar)} {word}", ours)
    lost, sent = figure.bar("lost_packets"), figure.bar("sent_packets")
    if lost is not None and sent is not None and sent.high:
        found = estimate(point, "loss_ratio")
        ours = "–" if found is None else f"{show_ratio(found.median)} lost"
        yield Pair(f"{show_ratio(lost.high / sent.high)} lost", ours)


def _relations(chapter: Chapter, point: Point) -> Iterator[Relation]:
    verdicts = evaluate_at(chapter.experiment, chapter.results, point.name)
    for one, verdict in zip(expected_at(chapter.experiment, point.name), verdicts, strict=True):
        yield Relation(verdict.expected, verdict.answer, _why(one, verdict, point, chapter))


def _why(expectation: Expectation, verdict: Verdict, at: Point, chapter: Chapter) -> str:
    """Return the numbers that were compared; where none were, what is missing elsewhere."""
    if verdict.answer in ("yes", "no"):
        # That what should be 0 is 0 needs no numbers.
        return "" if verdict.answer == "yes" and expectation.op == "==" else verdict.measured
    found = {point.name: point for point in chapter.points}
    missing = []
    for side in (expectation.left, expectation.right):
        name = at.name if side.point is None else side.point
        point = found.get(name, Point(at.experiment, name, ()))
        if side.metric is not None and estimate(point, side.metric) is None:
            missing.append(_missing(side.metric, point, at))
    return "; ".join(dict.fromkeys(filter(None, missing)))


def _missing(name: str, point: Point, at: Point) -> str:
    """Return why a point has no number; of the rung itself that is told with those not measured."""
    if point.valid:
        return f"{name_of(point)}: {name} is not observable there"
    return "" if point.name == at.name else f"{name_of(point)}: {_why_not(point)}"


def _why_not(point: Point) -> str:
    if not point.results:
        return "not run"
    return reason(point) if point.skipped else f"no valid trial: {reason(point)}"


# --- what the document shows ---------------------------------------------------------------------


def ladder_data(found: Ladder) -> dict[str, object]:
    """Return what the template shows of a ladder, its figures apart."""
    chapters = found.chapters
    return {
        "title": found.title,
        "lab": LAB_LABEL if any(one.built_in_lab for one in chapters) else "",
        "source": found.study.source if found.study is not None else "",
        "conditions": found.study.conditions if found.study is not None else "",
        "experiments": [
            {
                "name": chapter.experiment.name,
                "run": chapter.run,
                "question": chapter.experiment.question,
                "rungs": [_rung_data(rung) for rung in rungs],
            }
            for chapter, rungs in zip(chapters, found.steps, strict=True)
        ],
        "missing": list(missing(found.rungs)),
    }


def _rung_data(rung: Rung) -> dict[str, object]:
    bar = "–" if rung.published is None else show_bar(rung.published)
    return {
        "name": rung.name or "all",
        "published": [bar, *(pair.published for pair in rung.pairs)],
        "measured": [_measured(rung), *(pair.measured for pair in rung.pairs if rung.measured)],
        "relations": [
            {
                "expected": one.expected,
                "answer": one.answer,
                "word": WORDS[one.answer],
                "why": one.why,
            }
            for one in rung.relations
        ],
    }


def missing(rungs: Sequence[Rung]) -> Iterator[dict[str, str]]:
    """Yield each reason for which rungs have nothing measured, with those rungs."""
    reasons: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.why_not:
            reasons.setdefault(rung.why_not, []).append(label(rung))
    for why, names in reasons.items():
        yield {"reason": why, "rungs": ", ".join(names)}


def label(rung: Rung) -> str:
    """Return a rung's name: its experiment and, where that has several, its point."""
    return f"{rung.experiment} · {rung.name}" if rung.name else rung.experiment


def show_bar(bar: Bar) -> str:
    """Return a published number as it was printed, with its unit."""
    if bar.unit == "pps":
        low, high = show_pps(bar.low), show_pps(bar.high)
    else:
        low, high = f"{bar.low:,.10g}", f"{bar.high:,.10g} {bar.unit}"
    return (high if bar.low == bar.high else f"{low} – {high}").replace(",", " ")


def _measured(rung: Rung) -> str:
    if rung.measured is None:
        return "not measured"
    median = rung.measured.median
    text = show_pps(median) if rung.measured.unit == "pps" else f"{median:,.0f} MiB/s"
    return f"{text} (n = {rung.measured.n})".replace(",", " ")
