"""Comparisons of stored runs: which points of which runs, what else differs, and what is refused.

``analysis.comparison.comparisons`` compares. Points of one run are paired by block. Points of two
runs cannot be paired, so anything that changed between the two sessions is part of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from udpbench.analysis.comparison.comparisons import (
    SAME,
    Comparison,
    compare_all_unpaired,
    compare_points,
    is_difference,
    loss_comparisons,
)
from udpbench.analysis.comparison.stage_costs import StageChange, changes_between, stage_changes
from udpbench.analysis.points import estimate
from udpbench.definition.definition_changes import differing, differing_labs
from udpbench.definition.expectations import KNOWN
from udpbench.definition.load import lab_of
from udpbench.definition.problems import did_you_mean
from udpbench.differences import differences, flat
from udpbench.errors import CANNOT_TELL, NO, YES, InputError, Problem, worst_code
from udpbench.judged_run import Against, Chapter, chapters_of
from udpbench.metrics import is_metric, margin_of
from udpbench.model.experiment import FEWEST_BLOCKS, Experiment, PointPair
from udpbench.model.host import Facts
from udpbench.model.result import Result
from udpbench.records.run import Run, RunHeader
from udpbench.report.summary import hosts_of, show_number

BY_LOSS = "loss_ratio"
MOST_NAMED = 4
"""Points that an error names; ``show`` lists all."""
NOT_INTERLEAVED = "not interleaved: the interval does not include changes between sessions"
BETWEEN_RUNS = (
    "not interleaved: of changes between sessions, the interval includes only the scatter between "
    "runs"
)
RESTLESS = ("boot_id", "mac", "queue_irqs", "tx_queue_irqs", "environment.xdp")
"""Facts that differ after each boot, or with each virtual pair."""


@dataclass(frozen=True)
class Choice:
    """What a user asks to compare; None: as the experiments say."""

    a: str | None = None
    b: str | None = None
    metric: str | None = None
    margin: float | None = None


@dataclass(frozen=True)
class RunComparison:
    """The comparisons of one run or of two, and the heading above them."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """The folders of a and b, if they are points of different runs; several with a comma."""
    told_by_loss: tuple[Comparison, ...] = ()
    """For pairs that their own metric does not tell apart, if no other was asked for."""
    changes: tuple[StageChange, ...] = ()
    """The stages that cost a packet more, or less, if both sides sampled their CPUs."""

    @property
    def exit_code(self) -> int:
        """Return NO if anything is worse, else CANNOT_TELL if anything is undecided, else YES."""
        return worst_code(
            NO if comparison.worse else YES if comparison.answered else CANNOT_TELL
            for comparison in self.comparisons
        )


# --- one run --------------------------------------------------------------------------------------


def compare_within(run: Run, choice: Choice) -> RunComparison:
    """Return the comparisons that a run declares, or the one of two named points, by block.

    Raises InputError if there are none, or no such points.
    """
    _refuse(_of_metric(choice))
    comparisons = [
        comparison
        for chapter in chapters_of(run)
        for comparison in _named(
            chapter, compare_points(_asked(chapter.experiment, choice), chapter.results), run
        )
    ]
    if not comparisons:
        _refuse([_no_such(run, choice)])
    changes = [
        change
        for chapter in chapters_of(run)
        for change in changes_between(
            chapter.results,
            [(pair.a, pair.b) for pair in _asked(chapter.experiment, choice).compare],
        )
    ]
    apart = [
        each
        for chapter in (chapters_of(run) if choice.metric is None else ())
        for asked in [_asked(chapter.experiment, choice)]
        for each in loss_comparisons(asked, chapter.results, compare_points(asked, chapter.results))
    ]
    return RunComparison(tuple(comparisons), told_by_loss=tuple(apart), changes=tuple(changes))


def _asked(experiment: Experiment, choice: Choice) -> Experiment:
    """Return an experiment with the requested comparisons in place of its own."""
    pairs, expect = experiment.compare, experiment.expect
    if choice.a is not None and choice.b is not None:
        names = {trial.point for trial in experiment.points}
        metric = experiment.headline
        blocks = experiment.looks or (FEWEST_BLOCKS,)
        chosen = PointPair(choice.a, choice.b, metric, margin_of(metric), blocks)
        pairs, expect = (chosen,) if {choice.a, choice.b} <= names else (), ()
    compare = tuple(_with(pair, choice) for pair in pairs)
    return replace(experiment, compare=compare, expect=expect)


def _with(pair: PointPair, choice: Choice) -> PointPair:
    """Return a pair with another metric or margin; each metric has a margin of its own."""
    if choice.metric is not None and choice.metric != pair.metric:
        pair = replace(pair, metric=choice.metric, margin=margin_of(choice.metric))
    return pair if choice.margin is None else replace(pair, margin=choice.margin)


def _no_such(run: Run, choice: Choice) -> Problem:
    """Return why nothing of a run is compared."""
    names = [trial.point for each in run.header.experiments for trial in each.points]
    for option, point in (("--a", choice.a), ("--b", choice.b)):
        if point is not None and point not in names:
            return Problem("no such point", option, point, next_step=did_you_mean(point, names))
    if choice.a is not None:
        what = "no experiment has both points"
        return Problem(
            what,
            "--a, --b",
            f"{choice.a}, {choice.b}",
            next_step="name two points of one experiment",
        )
    step = f"name two points with --a and --b ({', '.join(names[:MOST_NAMED])}), or a second run"
    return Problem("it has no comparison", str(run.folder), next_step=step)


# --- several runs ---------------------------------------------------------------------------------


def compare_runs(a: Sequence[Run], b: Sequence[Run], choice: Choice) -> RunComparison:
    """Return a comparison of each point that both sides have, and what else differs.

    A side is one run or several, whose trials are pooled. Raises InputError if they do not ask the
    same question.
    """
    first, *others = (*a, *b)
    nonsense = (
        refusals(first, each.header.experiments, _built_in(each), choice) for each in others
    )
    _refuse([*_of_metric(choice), *_on_both_sides(a, b), *chain.from_iterable(nonsense)])
    mine, theirs = (
        [{chapter.experiment.question: chapter for chapter in chapters_of(run)} for run in side]
        for side in (a, b)
    )
    comparisons = [
        comparison
        for question in dict.fromkeys(chain.from_iterable(mine))
        if any(question in chapters for chapters in theirs)
        for sides in [_of_question(mine, theirs, question)]
        for comparison in _named(sides[0][0], _point_by_point(sides, choice), first)
    ]
    changes = [
        change
        for question in dict.fromkeys(chain.from_iterable(mine))
        if any(question in chapters for chapters in theirs)
        for sides in [_of_question(mine, theirs, question)]
        for ours, others in _points_of(sides)
        for change in stage_changes(
            list(chain.from_iterable(ours)), list(chain.from_iterable(others)), paired=False
        )
    ]
    folders = tuple(", ".join(str(run.folder) for run in side) for side in (a, b))
    scattered = [each.between_runs for each in comparisons if each.low is not None]
    apart = BETWEEN_RUNS if scattered and all(scattered) else NOT_INTERLEAVED
    notes = (f"{folders[1]} against {folders[0]}", apart, *_between(first, others))
    undecided = {(each.a, each.b) for each in comparisons if not is_difference(each)}
    other = replace(choice, metric=BY_LOSS, margin=None)
    by_loss = [
        comparison
        for question in dict.fromkeys(chain.from_iterable(mine) if choice.metric is None else ())
        if any(question in chapters for chapters in theirs)
        for sides in [_of_question(mine, theirs, question)]
        if not sides[0][0].experiment.searched
        for comparison in _named(sides[0][0], _point_by_point(sides, other), first)
    ]
    differing_pairs = tuple(
        each for each in by_loss if is_difference(each) and (each.a, each.b) in undecided
    )
    return RunComparison(tuple(comparisons), notes, folders, differing_pairs, tuple(changes))


def beside(base: Sequence[Run], run: Run) -> dict[str, Against]:
    """Return for each experiment of a run what a report says of it beside its base.

    By its own metrics, and by loss, which struck-out trials have, too. Empty if the two cannot be
    compared.
    """
    experiments = run.header.experiments
    if any(True for each in base for _ in refusals(each, experiments, _built_in(run), Choice())):
        return {}
    mine, theirs = (
        [{chapter.experiment.question: chapter for chapter in chapters_of(each)} for each in side]
        for side in (base, [run])
    )
    folders = ", ".join(str(each.folder) for each in base)
    known: dict[str, Against] = {}
    for question, chapter in theirs[0].items():
        sides = _of_question(mine, theirs, question)
        if not sides[0]:
            continue
        asked = sides[0][0].experiment
        loss = [] if asked.searched else [BY_LOSS]
        metrics = dict.fromkeys([*_metrics(asked, Choice()), *loss])
        comparisons = tuple(
            each for name in metrics for each in _point_by_point(sides, Choice(metric=name))
        )
        if comparisons:
            sentence = f"Compared with {folders}: {_in_words(comparisons, sides)}."
            known[chapter.experiment.name] = Against(comparisons, sentence)
    return known


def _in_words(
    comparisons: Sequence[Comparison], sides: tuple[Sequence[Chapter], Sequence[Chapter]]
) -> str:
    """Return verdicts with the medians of both sides; first those that tell a difference."""
    ranked = sorted(comparisons, key=lambda each: (not each.answered, each.verdict == SAME))
    texts = []
    for each in ranked[:MOST_NAMED]:
        name = f"{each.b}: " if each.b else ""
        numbers = [
            show_number(number.median, number.unit)
            for chapters in sides
            for point in [p for chapter in chapters for p in chapter.points if p.name == each.b][:1]
            if (number := estimate(point, each.metric)) is not None
        ]
        change = f" (from {numbers[0]} to {numbers[1]})" if len(numbers) == len(sides) else ""
        texts.append(f"{name}{each.metric} {each.text}{change}")
    more = len(comparisons) - len(texts)
    return "; ".join([*texts, *([f"{more} more below"] if more else [])])


def _of_question(
    a: Sequence[Mapping[str, Chapter]], b: Sequence[Mapping[str, Chapter]], question: str
) -> tuple[list[Chapter], list[Chapter]]:
    mine, theirs = ([each[question] for each in side if question in each] for side in (a, b))
    return mine, theirs


def _point_by_point(
    sides: tuple[Sequence[Chapter], Sequence[Chapter]], choice: Choice
) -> Iterator[Comparison]:
    """Yield a comparison for each point that a run of either side has."""
    points = _points_of(sides)
    for metric in _metrics(sides[0][0].experiment, choice):
        margin = margin_of(metric) if choice.margin is None else choice.margin
        yield from compare_all_unpaired(points, metric, margin)


def _points_of(
    sides: tuple[Sequence[Chapter], Sequence[Chapter]],
) -> list[tuple[list[Sequence[Result]], list[Sequence[Result]]]]:
    """Return the trials of each point that both sides have, run by run."""
    names = dict.fromkeys(point.name for chapter in sides[0] for point in chapter.points)
    return [
        (mine, theirs)
        for name in names
        for mine, theirs in [[_trials_of(chapters, name) for chapters in sides]]
        if mine and theirs
    ]


def _trials_of(chapters: Sequence[Chapter], name: str) -> list[Sequence[Result]]:
    """Return the trials of a point, run by run."""
    return [point.results for each in chapters for point in each.points if point.name == name]


def _on_both_sides(a: Sequence[Run], b: Sequence[Run]) -> Iterator[Problem]:
    mine = {run.folder.resolve() for run in a}
    for run in b:
        if run.folder.resolve() in mine:
            step = "name another; udpbench run --same measures a point against itself"
            yield Problem("the same run twice", str(run.folder), next_step=step)


def _between(first: Run, others: Sequence[Run]) -> Iterator[str]:
    """Yield how each other run differs from the first; several are headed by their folders.

    Anything missing in the first run is compared with the first other run that has it.
    """
    hosts, asked = hosts_of(first.records), _by_question(first.header.experiments)
    for other in others:
        head = f"{other.folder}: " if len(others) > 1 else ""
        yield from (head + line for line in _differences(first, hosts, asked, other))
        hosts = {**hosts_of(other.records), **hosts}
        asked = {**_by_question(other.header.experiments), **asked}


def _differences(
    a: Run, hosts: Mapping[str, Facts], asked: Mapping[str, Experiment], b: Run
) -> Iterator[str]:
    """Yield the differences of a run other than its numbers: hosts, lab, definitions."""
    others, experiments = hosts_of(b.records), _by_question(b.header.experiments)
    for host in hosts:
        if host in others:
            changes = differences(_facts(hosts[host]), _facts(others[host]))
            yield from _line(host, map(str, changes))
    yield from _line("lab", _lab_changes(a.header, b.header))
    for question, experiment in asked.items():
        if question in experiments:
            changed = differing(experiment, experiments[question])
            yield from _line(experiment.name, (f"{key}: {change}" for key, change in changed))
    versions = [run.header.udpbench for run in (a, b)]
    if versions[0] != versions[1]:
        yield f"udpbench: {' → '.join(versions)}"


def _lab_changes(a: RunHeader, b: RunHeader) -> Iterator[str]:
    if a.lab_text != b.lab_text:
        labs = (lab_of(each.lab_text, Path(each.lab_path or each.lab_name)) for each in (a, b))
        yield from (f"{key}: {change}" for key, change in differing_labs(*labs))


def _line(subject: str, changes: Iterable[str]) -> Iterator[str]:
    text = ", ".join(changes)
    if text:
        yield f"{subject}: {text}"


def _facts(facts: Facts) -> dict[str, Any]:
    """Return, by name, the facts that are equal in two runs on an unchanged host."""
    return {
        path: value
        for path, value in flat(facts, into_lists=False)
        if not path.startswith(RESTLESS)
    }


def refusals(
    base: Run, experiments: Sequence[Experiment], built_in: bool | None, choice: Choice
) -> Iterator[Problem]:
    """Yield why a run of some experiments cannot be compared with its base.

    ``built_in``: in a built-in lab; None if it has no trial.
    """
    mine, others = map(_by_question, (base.header.experiments, experiments))
    shared = [question for question in mine if question in others]
    if not shared:
        what, limit = "another question", f"that of {base.folder}: {'; '.join(mine)}"
        yield Problem(what, "", "; ".join(others), limit)
    if None not in (built_in, _built_in(base)) and built_in != _built_in(base):
        what = "one run is of the built-in lab, the other of hardware"
        yield Problem(what, str(base.folder), next_step="compare runs of one lab")
    for question in shared:
        metrics = [_metrics(each[question], choice) for each in (mine, others)]
        names = [{trial.point for trial in each[question].points} for each in (mine, others)]
        if not names[0] & names[1]:
            yield Problem(f"no point in common with {base.folder}", mine[question].name)
        if metrics[0] != metrics[1]:
            value = " → ".join(", ".join(sorted(each)) for each in metrics)
            step = "name one with --metric"
            yield Problem("the runs compare different metrics", question, value, next_step=step)


def _by_question(experiments: Iterable[Experiment]) -> dict[str, Experiment]:
    return {experiment.question: experiment for experiment in experiments}


def _of_metric(choice: Choice) -> Iterator[Problem]:
    if choice.metric is not None and not is_metric(choice.metric) and choice.metric not in KNOWN:
        step = did_you_mean(choice.metric, KNOWN)
        yield Problem("unknown metric", "--metric", choice.metric, next_step=step)


def _refuse(problems: Iterable[Problem]) -> None:
    every = list(problems)
    if every:
        raise InputError(every)


def _metrics(experiment: Experiment, choice: Choice) -> list[str]:
    """Return what is compared at each point of an experiment."""
    if choice.metric is not None:
        return [choice.metric]
    return list(dict.fromkeys(pair.metric for pair in experiment.compare)) or [experiment.headline]


def _built_in(run: Run) -> bool | None:
    """Return whether a run was made in the built-in lab; None if it has no trial."""
    return any(record.built_in_lab for record in run.records) if run.records else None


def _named(chapter: Chapter, comparisons: Iterable[Comparison], run: Run) -> Iterator[Comparison]:
    """Yield comparisons; those of a run of several experiments under ``experiment::point``."""
    head = f"{chapter.experiment.name}::" if len(run.header.experiments) > 1 else ""
    for comparison in comparisons:
        yield replace(
            comparison, a=head + (comparison.a or "all"), b=head + (comparison.b or "all")
        )
