"""A run judged once: of each experiment its trials, points, searches, comparisons and verdicts.

Terminal, JSON, pages, pytest, store and the exit code take all of it from here. Not a part of
``analysis``, since the state of a tune needs the rules of definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

from udpbench.analysis.comparison.comparisons import Comparison, compare_points
from udpbench.analysis.judge import judge
from udpbench.analysis.points import Point, points
from udpbench.analysis.result_tables import with_tables
from udpbench.analysis.search import PointSearch, folded, searches_of
from udpbench.analysis.verdicts import Verdict, evaluate, exit_code
from udpbench.errors import CANNOT_TELL, INTERRUPTED, NOT_RESTORED, YES, code_of, worst_code
from udpbench.judged_trials import kept_result, kept_rows
from udpbench.meanwhile import Meanwhile
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import Facts
from udpbench.model.limits import Role
from udpbench.model.record import TrialRecord
from udpbench.model.result import Result
from udpbench.records.run import Run
from udpbench.tuning.derived_points import derivation
from udpbench.tuning.outcome import TuningAnswer, answer_of
from udpbench.tuning.outcome import exit_code as exit_code_of_tuning
from udpbench.tuning.tuner import Tuning, tuning_of


@dataclass(frozen=True)
class Against:
    """What a run says of an experiment in comparison with another run, its base."""

    comparisons: tuple[Comparison, ...]
    sentence: str
    """The verdicts, with the numbers of both."""


@dataclass(frozen=True)
class Chapter:
    """One experiment of a run."""

    experiment: Experiment
    records: tuple[TrialRecord, ...]
    points: tuple[Point, ...]
    verdicts: tuple[Verdict, ...]
    comparisons: tuple[Comparison, ...] = ()
    run: str = ""
    """Name of its run, if several are reported together."""
    trials: tuple[Result, ...] = ()
    """Every trial's own result; of a search its trials."""
    searches: tuple[PointSearch, ...] = ()
    """In the order of the points, and of each point's repetitions."""
    tuning: Tuning | None = None
    """State of its tune, if it has one."""
    tuned: TuningAnswer | None = None
    """What that says."""
    against: Against | None = None
    """Its comparison with another run, if a report has one."""

    @property
    def results(self) -> tuple[Result, ...]:
        """Return the results of the points, in order: trials, or whole searches."""
        return tuple(result for point in self.points for result in point.results)

    @property
    def every_trial(self) -> tuple[Result, ...]:
        """Return the results of trials, points in order; of searches as they were made."""
        return self.trials if self.searches else self.results

    @property
    def built_in_lab(self) -> bool:
        """Return whether any trial ran in the built-in lab, which is then labelled."""
        return any(record.built_in_lab for record in self.records)


MANY = 100
"""Trials from which on a second process saves more than it takes to begin."""
_JUDGED: WeakKeyDictionary[Run, tuple[Chapter, ...]] = WeakKeyDictionary()
"""Run → its chapters, as long as anybody has the run."""


def chapters_of(run: Run) -> tuple[Chapter, ...]:
    """Return a chapter per experiment of a run, also of an unfinished one; judged on first use."""
    if run not in _JUDGED:
        _JUDGED[run] = judged(run.header.experiments, run.records)
    return _JUDGED[run]


def results_of(run: Run) -> Callable[[TrialRecord], Result]:
    """Return what returns the result of a run's own record, which is not judged again."""
    results = {
        id(record): result
        for chapter in chapters_of(run)
        for record, result in zip(chapter.records, chapter.trials, strict=True)
    }
    return lambda record: results[id(record)]


def judged(
    experiments: Sequence[Experiment], records: Sequence[TrialRecord]
) -> tuple[Chapter, ...]:
    """Return a chapter per experiment, points in declared order."""
    chapters = []
    for experiment in experiments:
        mine = tuple(record for record in records if record.trial.experiment == experiment.name)
        trials = list(map(_with_tables, _judged_each(mine), mine))
        results = folded(experiment, trials)
        tuning = _tuning(experiment, results)
        shown = experiment
        if tuning is not None:
            shown = replace(experiment, points=_every(tuning, results), repetitions=1)
        declared = {trial.point: place for place, trial in enumerate(shown.points)}
        # A foreign run may have a record of a point that its header lacks.
        measured = sorted(
            points(results), key=lambda point: declared.get(point.name, len(declared))
        )
        verdicts, compared = evaluate(experiment, results), compare_points(experiment, results)
        compared = compared if tuning is None else tuning.comparisons
        searches = sorted(
            searches_of(trials),
            key=lambda each: (declared.get(each.point.point, len(declared)), each.point.repetition),
        )
        chapter = Chapter(
            shown,
            mine,
            tuple(measured),
            verdicts,
            compared,
            trials=tuple(trials),
            searches=tuple(searches),
            tuning=tuning,
        )
        chapters.append(replace(chapter, tuned=_tuned(chapter)))
    return tuple(chapters)


def _with_tables(result: Result, record: TrialRecord) -> Result:
    """Return a record's result with its tables, whose rows its run kept, or which read them."""
    result, rows = with_tables(result, record), kept_rows(record)
    if rows is None:
        return result
    tables = (replace(table, rows=partial(rows, table.name)) for table in result.tables)
    return replace(result, tables=tuple(tables))


def _judged_each(records: Sequence[TrialRecord]) -> list[Result]:
    """Return the result of each record: that which its run kept, or a new one."""
    kept = list(map(kept_result, records))
    pairs = zip(records, kept, strict=True)
    others = iter(_judged_anew([record for record, result in pairs if result is None]))
    return [next(others) if result is None else result for result in kept]


def _judged_anew(records: Sequence[TrialRecord]) -> list[Result]:
    """Return the result of each record; of many, a second process judges the later half."""
    half = len(records) // 2
    others = Meanwhile(lambda: list(map(judge, records[half:])), len(records) >= MANY)
    first = list(map(judge, records[:half]))
    pairs = zip(others.result(), records[half:], strict=True)
    return first + [replace(result, trial=record.trial) for result, record in pairs]


def _tuning(experiment: Experiment, results: Sequence[Result]) -> Tuning | None:
    """Return the state of an experiment's tune from stored points; None without a tune."""
    if experiment.tune is None:
        return None
    stored = {result.trial.point: replace(result.trial, repetition=1) for result in results}
    tuning = tuning_of(experiment, results, lambda name, _: stored.get(name))
    ending = tuning.ending
    if ending is None or ending.why != "nothing left":
        return tuning
    # Of a round that the time left out, or an interrupt, no point is stored.
    whole = tuning_of(experiment, results, derivation(experiment))
    return tuning if whole.ending is None and ending.steps else whole


def _every(tuning: Tuning, results: Sequence[Result]) -> tuple[Trial, ...]:
    """Return the points of a tune, including those that only the recording version would try."""
    known = {trial.point: trial for trial in tuning.points}
    for result in results:
        known.setdefault(result.trial.point, replace(result.trial, repetition=1))
    return tuple(known.values())


def _tuned(chapter: Chapter) -> TuningAnswer | None:
    """Return the answer of a tune; None if the experiment is not a tune."""
    if chapter.tuning is None:
        return None
    roles: dict[Role, Facts] = {}
    for record in chapter.records:
        if len(roles) == 2:  # both are known: of each the first that there is
            break
        for spec in record.workers:
            if spec.host in record.facts:
                roles.setdefault(spec.role, record.facts[spec.host])
    nodes = {
        name: (record.facts[name].interface, out)
        for record in reversed(chapter.records)
        for name, out in record.exits.items()
        if name in record.facts
    }
    return answer_of(chapter.tuning, roles, chapter.built_in_lab, nodes)


def ending_code(run: Run) -> int:
    """Return the exit code for how a run ended; CANNOT_TELL if it did not."""
    ending = run.ending
    if ending is None:
        return CANNOT_TELL
    how = {"complete": YES, "interrupted": INTERRUPTED, "failed": code_of(ending.kind)}
    return worst_code([how[ending.status], NOT_RESTORED if ending.restore_errors else YES])


def code_of_run(run: Run, outcome_code: int = YES) -> int:
    """Return the exit code of a run, from how it ended and from its results."""
    chapters = chapters_of(run)
    results = [result for chapter in chapters for result in chapter.results]
    verdicts = [verdict for chapter in chapters for verdict in chapter.verdicts]
    comparisons = [each for chapter in chapters for each in chapter.comparisons]
    endings = [outcome_code, ending_code(run)]
    tunes = [chapter.tuning for chapter in chapters if chapter.tuning is not None]
    if tunes:
        return worst_code([*endings, *map(exit_code_of_tuning, tunes)])
    return exit_code(results, verdicts, endings, comparisons)
