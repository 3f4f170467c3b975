"""The points of a tune from an experiment's file: its base, and the base with steps applied.

Each is an ordinary trial, checked as if its keys were in the file. Validates the user's request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache

from udpbench.analysis.remedies import REMEDY_STEPS, SCOPES
from udpbench.definition.expectations import KNOWN
from udpbench.definition.load import derived_trial
from udpbench.definition.problems import did_you_mean
from udpbench.differences import key_of
from udpbench.errors import InputError, Problem
from udpbench.host_settings import Settings
from udpbench.metrics import goal_of, is_metric, words_of
from udpbench.model.experiment import Experiment, Receive, Send, Trial, Tune
from udpbench.model.limits import SECOND_NS, is_stage
from udpbench.tuning.steps import is_part
from udpbench.tuning.tuner import BASE, LOOK_BLOCKS, Derive

WITHIN_NS = 15 * 60 * SECOND_NS


def asked(
    experiments: Sequence[Experiment],
    point: str | None,
    metric: str | None,
    within_ns: int = WITHIN_NS,
    only: Sequence[str] = (),
    never: Sequence[str] = (),
) -> Tune:
    """Return what is to be tuned; InputError lists every problem.

    The default metric is the experiment's own; for a burst, which has no sustained rate, loss.
    """
    problems = list(_of_points(experiments, point))
    problems += [
        Problem("no such scope", "--only", name, next_step=did_you_mean(name, SCOPES))
        for name in only
        if name not in SCOPES
    ]
    problems += [
        Problem("no step sets such a key", "--never", key, next_step=did_you_mean(key, _keys()))
        for key in never
        if not _is_known(key)
    ]
    if problems:
        raise InputError(problems)
    (experiment,) = experiments
    name = experiment.points[0].point if point in (None, "all") else str(point)
    trial = _named(experiment, name)
    chosen = metric if metric is not None else _metric_of(trial)
    problems = list(_of_metric(chosen, trial))
    if problems:
        raise InputError(problems)
    return Tune(name, chosen, within_ns, tuple(only), tuple(never))


def tuned(experiments: Sequence[Experiment], tune: Tune) -> list[Experiment]:
    """Return the experiment to be tuned, reduced to one point: its base."""
    experiment = experiments[0]
    base = replace(_named(experiment, tune.point), point=BASE, variant=BASE, values={})
    return [
        replace(
            experiment,
            points=(base,),
            repetitions=LOOK_BLOCKS,
            expect=(),
            compare=(),
            tune=tune,
        )
    ]


def derivation(experiment: Experiment) -> Derive:
    """Return the function that derives the point for some steps of a tuned experiment."""
    base, tune = experiment.points[0], experiment.tune

    @cache
    def derive(name: str, sets: tuple[str, ...]) -> Trial | None:
        """Return the trial; None if it contradicts itself or the experiment."""
        try:
            trial = derived_trial(experiment, tune.point if tune is not None else "", name, sets)
        except InputError:
            return None
        # A program's folder is relative to where the run began, not to where it is resumed.
        receive = replace(trial.receive, folder=base.receive.folder)
        return replace(trial, receive=receive, expects_unsent=base.expects_unsent)

    return derive


def _named(experiment: Experiment, name: str) -> Trial:
    return next(trial for trial in experiment.points if trial.point == name)


def _metric_of(trial: Trial) -> str:
    if trial.search is not None:
        return "throughput_pps"
    return "delivered_pps" if trial.traffic.count_packets is None else "lost_packets"


def _of_points(experiments: Sequence[Experiment], point: str | None) -> Iterator[Problem]:
    """Yield a problem if the point is ambiguous."""
    names = [trial.point or "all" for each in experiments for trial in each.points]
    if len(experiments) != 1:
        value = ", ".join(each.name for each in experiments)
        yield Problem("more than one experiment", "X", value, "one", "name one")
    elif point is None and len(names) != 1:
        step = f"name one with --point: {', '.join(names)}"
        yield Problem("more than one point", experiments[0].name, str(len(names)), "one", step)
    elif point is not None and point not in names:
        yield Problem("no such point", "--point", point, next_step=did_you_mean(point, names))


def _of_metric(metric: str, trial: Trial) -> Iterator[Problem]:
    """Yield a problem if a point's metric cannot be optimised."""
    where, plain = "--for", goal_of(metric)[0]
    if not is_metric(metric) and not is_stage(metric):
        yield Problem("unknown metric", where, metric, next_step=did_you_mean(metric, KNOWN))
    elif words_of(metric).worse is None:
        yield Problem("neither less nor more is better", where, metric)
    elif (plain == "throughput_pps") != (trial.search is not None):
        step = "name another metric" if trial.search is None else "name throughput_pps"
        what = "only a `search` measures this" if trial.search is None else "the point is searched"
        yield Problem(what, where, metric, next_step=step)
    elif words_of(metric).share and trial.traffic.rate is None and not trial.traffic.count_packets:
        limit = "traffic.rate or traffic.count"
        yield Problem("an unlimited sender always loses packets", where, metric, limit)


def _is_known(key: str) -> bool:
    return key in _keys() or any(is_part(key, path) for path in _paths())


def _keys() -> list[str]:
    """Return the keys of ``send``, ``receive`` and ``settings``."""
    blocks = (Send, Receive, Settings)
    own = [key_of(field.name) for block in blocks for field in fields(block)]
    return list(dict.fromkeys(["send", "receive", "settings", *own]))


def _paths() -> list[str]:
    """Return all paths that steps set, those of whoever is late at both ends."""
    steps = (step for steps in REMEDY_STEPS.values() for step in steps)
    paths = [each.partition("=")[0] for step in steps for each in step.sets]
    return [path.replace("<late>", end) for path in paths for end in ("send", "receive")]
