"""Progress of the searches of a run: current bounds, and maximum remaining time.

Sees results only as they arrive; decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from udpbench.analysis.search import state_of, whole_point
from udpbench.model import Experiment, Progress, Result
from udpbench.units import format_duration

Key = tuple[str, str, int]
"""Experiment, point and repetition."""

ENDINGS: Mapping[str | None, str] = {
    None: "",
    "done": "done",
    "within": "out of time",
    "invalid": "given up",
    "sender": "the sender offers too little",
}
"""Text for the state of a search."""


class SearchProgress:
    """The searches of a run, fed with each result in the order of the run."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._results: dict[Key, list[Result]] = {}
        self._left_ns: dict[Key, int] = {
            (experiment.name, trial.point, repetition): trial.search.within_ns
            for experiment in experiments
            for trial in experiment.points
            if trial.search is not None
            for repetition in range(1, experiment.trials_of(trial.point)[0] + 1)
        }

    def add(self, result: Result) -> Progress | None:
        """Add a result; return the progress of its search, None if it belongs to none."""
        trial = result.trial
        if trial.search is None:
            return None
        key = trial.experiment, trial.point, trial.repetition
        results = self._results.setdefault(key, [])
        results.append(result)
        state = state_of(whole_point(trial), results)
        ended = state.next_trial is None
        self._left_ns[key] = 0 if ended else max(trial.search.within_ns - state.spent_ns, 0)
        left_ns = sum(self._left_ns.values())
        text = whole_point(trial).name
        left = f"at most {format_duration(-(-left_ns // 10**9) * 10**9)} left" if left_ns else ""
        least_pps = trial.search.rate.least_pps(trial.traffic.size_bytes)
        return Progress(
            event="search",
            text=f"{text}: {', '.join(filter(None, [ENDINGS[state.ended], left]))}",
            trial=trial,
            bounds=state.goals,
            left_ns=left_ns,
            ended=ended,
            range_pps=None if state.most_pps is None else (float(least_pps), state.most_pps),
        )
