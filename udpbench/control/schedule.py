"""The order of trials: a generator that yields each trial and is sent its Result.

Compared points get blocks until their comparisons are decided, and a tune derives points from
results; other experiments ignore results. ``SearchProgress`` says how far its searches are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from udpbench.analysis.comparison.comparisons import wants_block
from udpbench.analysis.judge import judge
from udpbench.analysis.search import (
    folded,
    next_search_trial,
    searches_of,
    state_of,
    whole_point,
)
from udpbench.model.experiment import Experiment, Trial, trial_count
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.tuning.derived_points import derivation
from udpbench.tuning.tuner import AFTER, BASE, BEFORE, tuning_of
from udpbench.units import show_seconds

TURN_NS = 10 * SECOND_NS
"""Duration of a point's turn in a search; a change of point costs some seconds."""
ENDINGS: Mapping[str | None, str] = {
    None: "",
    "done": "done",
    "within": "out of time",
    "invalid": "given up",
    "robbed": "others use the CPUs of the load",
    "sender": "the sender offers too little",
}
"""Text for the state of a search."""
Schedule = Generator[Trial, Result | None, None]
"""Is sent None first, then the Result of each trial, None if there is none yet."""


def trial_order(experiments: Sequence[Experiment], seed: int) -> Schedule:
    """Yield the trials of every experiment, block by block.

    A repetition is a block with its points in random order, so that drift of the machine affects
    all points alike. The same seed and results give the same order. Where results are missing, as
    few blocks follow as are certain.
    """
    for experiment in experiments:
        results: list[Result] = []
        if experiment.tune is not None:
            yield from _tuned(experiment, seed)
            continue
        for repetition in count(1):
            block = _block(experiment, seed, repetition, results)
            if not block:
                break
            if experiment.searched:
                results += yield from _searches(block)
                continue
            for trial in block:
                result = yield trial
                if result is not None:
                    results.append(result)


def _tuned(experiment: Experiment, seed: int) -> Schedule:
    """Yield the trials of a tune, block by block; where one is missing, what follows is unknown."""
    derive, results = derivation(experiment), list[Result]()
    while block := list(tuning_of(experiment, folded(experiment, results), derive).block):
        random.Random(f"{seed}/{experiment.name}/{block[0].repetition}").shuffle(block)  # noqa: S311
        if experiment.searched:
            measured = yield from _searches(block)
        else:
            measured = []
            for trial in block:
                result = yield trial
                measured += [result] if result is not None else []
        results += measured
        if len(folded(experiment, measured)) < len(block):
            return


def _searches(block: Sequence[Trial]) -> Generator[Trial, Result | None, list[Result]]:
    """Yield the trials of the searches of a block, points in turn; return those that ended.

    A turn lasts as long as ``TURN_NS``, since another point needs other workers or settings. If a
    result is missing, what follows in that search is unknown.
    """
    so_far: dict[str, list[Result]] = {point.point: [] for point in block}
    going, ended = list(block), []
    while going:
        for point in tuple(going):
            results, spent_ns = so_far[point.point], 0
            while spent_ns < TURN_NS or len(going) == 1:
                trial = next_search_trial(point, results)
                result = (yield trial) if trial is not None else None
                if trial is None or result is None or result.status == "skipped":
                    going.remove(point)
                    ended += results if result is None and trial is None else []
                    break
                results.append(result)
                spent_ns += trial.duration_ns
    return [each.result for each in searches_of(ended)]


def _block(
    experiment: Experiment, seed: int, repetition: int, results: Sequence[Result]
) -> list[Trial]:
    """Return the trials of a repetition: of compared points while the comparisons want a block."""
    wants_more = wants_block(experiment, results, repetition - 1)
    block = [
        replace(point, repetition=repetition)
        for point in experiment.points
        if (
            wants_more
            if point.point in experiment.compared
            else repetition <= experiment.repetitions
        )
    ]
    # Seeded by experiment: its order does not depend on the others of the run.
    random.Random(f"{seed}/{experiment.name}/{repetition}").shuffle(block)  # noqa: S311
    return block


def next_trial(schedule: Schedule, result: Result | None) -> Trial | None:
    """Return the trial after the one of ``result``, None after the last."""
    try:
        return schedule.send(result)
    except StopIteration:
        return None


def lasting(
    records: Iterable[TrialRecord], experiments: Sequence[Experiment]
) -> dict[str, TrialRecord]:
    """Return trial → record of the trials that need not be run again: all that did not fail.

    A failed step of a tune is an answer on which later steps depend.
    """
    tunes = {experiment.name for experiment in experiments if experiment.tune is not None}
    return {
        record.trial.name: record
        for record in records
        if record.status != "failed"
        or (record.trial.experiment in tunes and record.trial.point not in (BASE, BEFORE, AFTER))
    }


def stored_as(known: Mapping[str, TrialRecord], trial: Trial) -> TrialRecord | None:
    """Return the record of a trial; None if there is none, or if the search needs another load."""
    record = known.get(trial.name)
    if record is None or not trial.search_trial:
        return record
    same = (record.trial.traffic.rate, record.trial.duration_ns)
    return record if same == (trial.traffic.rate, trial.duration_ns) else None


def remaining(
    experiments: Sequence[Experiment], seed: int, records: Iterable[TrialRecord]
) -> list[Trial]:
    """Return the trials that have no lasting record, in order; of blocks as few as are certain."""
    known = lasting(records, experiments)
    return [trial for trial, record in _planned(experiments, seed, known) if record is None]


def remaining_count(
    experiments: Sequence[Experiment],
    seed: int,
    records: Iterable[TrialRecord],
    result_of: Callable[[TrialRecord], Result] = judge,
) -> int:
    """Return how many trials have no lasting record, without keeping them."""
    planned = _planned(experiments, seed, lasting(records, experiments), result_of)
    return sum(record is None for _, record in planned)


def _planned(
    experiments: Sequence[Experiment],
    seed: int,
    known: Mapping[str, TrialRecord],
    result_of: Callable[[TrialRecord], Result] = judge,
) -> Iterable[tuple[Trial, TrialRecord | None]]:
    """Yield each trial with its record, None if there is none."""
    for experiment in experiments:
        schedule, result = trial_order([experiment], seed), None
        uses = experiment.compare or experiment.searched or experiment.tune is not None
        while (trial := next_trial(schedule, result)) is not None:
            record = stored_as(known, trial)
            # Only comparisons, searches and tunes use results, and to judge takes time.
            result = result_of(record) if record is not None and uses else None
            yield trial, record


class Total:
    """The number of trials of a run, as far as known."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._blocks = {e.name: e.looks[0] for e in experiments if e.compare}
        self._experiments = {e.name: e for e in experiments}
        self.fewest, self.most = trial_count(experiments)
        self._of_tune = 0

    def count(self, trial: Trial) -> None:
        """Count a trial that is run, and its block."""
        experiment = self._experiments[trial.experiment]
        if experiment.tune is not None:
            self._of_tune += 1
            self.fewest = max(self.fewest, self._of_tune)
            self.most = max(self.fewest, self.most)
            return
        if trial.search_trial > 1:  # the first is counted with its point
            self.fewest += 1
            self.most = max(self.fewest, self.most)
        if trial.search_trial:
            return
        blocks = self._blocks.get(experiment.name, 0)
        if trial.point in experiment.compared and trial.repetition > blocks:
            self._blocks[experiment.name] = trial.repetition
            self.fewest += (trial.repetition - blocks) * len(experiment.compared)
            self.most = max(self.fewest, self.most)


class SearchProgress:
    """The searches of a run, fed with each result in the order of the run."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._results: dict[tuple[str, str, int], list[Result]] = {}
        self._left_ns = {
            (experiment.name, trial.point, repetition): trial.search.within_ns
            for experiment in experiments
            for trial in experiment.points
            if trial.search is not None
            for repetition in range(1, experiment.trials_of(trial.point)[0] + 1)
        }

    def add(self, result: Result) -> Progress | None:
        """Add a result; return the progress of its search, None if it belongs to none."""
        trial, key = result.trial, result.trial.search_key
        if trial.search is None or key is None:
            return None
        results = self._results.setdefault(key, [])
        results.append(result)
        state = state_of(whole_point(trial), results)
        ended = state.next_trial is None
        self._left_ns[key] = 0 if ended else max(trial.search.within_ns - state.spent_ns, 0)
        left_ns = sum(self._left_ns.values())
        text = whole_point(trial).name
        left = f"at most {show_seconds(left_ns)} left" if left_ns else ""
        least_pps, _ = trial.search.rate.span_pps(trial.traffic.datagrams)
        return Progress(
            event="search",
            text=f"{text}: {', '.join(filter(None, [ENDINGS[state.ended], left]))}",
            trial=trial,
            bounds=state.goals,
            left_ns=left_ns,
            ended=ended,
            range_pps=None if state.most_pps is None else (float(least_pps), state.most_pps),
        )
