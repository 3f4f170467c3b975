"""Rules of ``search``: what contradicts it in a point, and what must be equal at all points.

Generators of problems over validated points, before any host is contacted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from udpbench.definition.problems import KeyPath, Tree
from udpbench.errors import Problem
from udpbench.metrics import SEARCHED, STAGED, goal_of, plain_name, with_goal
from udpbench.model.experiment import CompareSpec, Expectation, Search, Trial
from udpbench.units import format_duration, plural, show_share

GOALS: KeyPath = ("search", "loss")
LENGTH_STEP = "remove it: search.trial is the length of a trial"


def in_search(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield every contradiction between the search of one point and its other keys."""
    search = trial.search
    if search is None:
        return
    yield from _beside(tree, trial)
    yield from _range(tree, trial, search)
    highest = search.goals[-1]
    if highest > search.precision:
        what = f"a goal of {show_share(highest)} is above the precision"
        limit = f"at most search.precision, {show_share(search.precision)}"
        yield tree.problem(GOALS, what, limit, "lower it, or raise search.precision")
    if search.time_ns < search.trial_ns:
        limit = f"at least search.trial, {format_duration(search.trial_ns)}"
        yield tree.problem(("search", "time"), "shorter than one trial", limit, "raise it")
    if search.within_ns < search.time_ns:
        limit = f"at least search.time, {format_duration(search.time_ns)}"
        yield tree.problem(("search", "within"), "too short for one load", limit, "raise it")


def _beside(tree: Tree, trial: Trial) -> Iterator[Problem]:
    taken = (
        (("traffic", "rate"), "the search sets the rate", "remove it: search.rate is the range"),
        (("traffic", "count"), "a search needs trials of one length", LENGTH_STEP),
        (("duration",), "a search has trials of its own length", LENGTH_STEP),
        (("losses",), "a search would find the losses on purpose", "remove them"),
        (("receive", "fault"), "a worker that stops would end the search", "remove it"),
    )
    for path, what, step in taken:
        if tree.value(path) is not None:
            yield tree.problem(path, what, "not with search", step)
    if trial.traffic.protocol == "tcp":
        what = "a TCP stream sets its own rate, which cannot be searched"
        yield tree.problem(("traffic", "protocol"), what, "not with search", "remove search")
    if trial.receive.workers == 0:
        step = "give it a worker, or remove search"
        yield tree.problem(
            ("receive", "workers"), "a closed port receives nothing at any rate", "", step
        )


def _range(tree: Tree, trial: Trial, search: Search) -> Iterator[Problem]:
    where: KeyPath = ("search", "rate")
    try:
        least, most = search.rate.span_pps(trial.traffic.datagrams)
    except ValueError:
        step = "give rates in pps, or a size"
        yield tree.problem(where, "a size of 0B has no bits to count", "", step)
        return
    slow = f"{plural(least, 'packet')} per second"
    if least < trial.send.workers:
        limit = "at least one packet per second for each worker"
        yield tree.problem((*where, "from"), slow, limit, "raise it")
    if most is not None and least >= most:
        limit = f"below search.rate.to, {most:.0f} packets per second"
        yield tree.problem((*where, "from"), slow, limit, "lower it")


def in_whole(tree: Tree, trials: Sequence[Trial]) -> Iterator[Problem]:
    """Yield whatever prevents the points of an experiment from being searched alike."""
    searches = [trial.search for trial in trials]
    if not any(searches):
        return
    unlike = {search.goals if search is not None else None for search in searches}
    if len(unlike) > 1:
        what = "the points have different goals, or some have no search"
        step = "name every goal at once, search: {loss: [0, 0.1%]}: one search finds them all"
        yield tree.problem(_differing(tree), what, "loss= with a goal, which is no point", step)


def _differing(tree: Tree) -> KeyPath:
    """Return where a sweep or a variant sets the search or its goals."""
    for key in ("sweep", "variants"):
        written = tree.data.get(key)
        for name, changes in written.items() if isinstance(written, dict) else ():
            paths = [name] if key == "sweep" else list(changes)
            for path in paths:
                if path in ("search", "search.loss"):
                    return (key, name) if key == "sweep" else (key, name, path)
    return ("search",)


def sampled(
    tree: Tree, trials: Sequence[Trial], expectations: Sequence[Expectation]
) -> Iterator[Problem]:
    """Yield each expectation of CPU time where no CPU is sampled."""
    for i, expected in enumerate(expectations):
        metrics = (plain_name(each.metric or "") for each in (expected.left, expected.right))
        if STAGED in metrics and not all(trial.cpu_time for trial in trials):
            yield tree.problem(("expect", i), f"{STAGED} is not sampled", "", "add cpu_time: true")


def named_goals(
    tree: Tree, goals: Sequence[float] | None, expectations: Sequence[Expectation]
) -> Iterator[Problem]:
    """Yield each expectation with a metric that this experiment does not have."""
    for i, expected in enumerate(expectations):
        for side in (expected.left, expected.right):
            if side.metric is not None:
                yield from _refused(tree, ("expect", i), side.metric, goals)


def _refused(
    tree: Tree, where: KeyPath, metric: str, goals: Sequence[float] | None
) -> Iterator[Problem]:
    name, goal = goal_of(metric)
    if goals is None and name in SEARCHED:
        yield tree.problem(where, f"{name} is found by a search", "", "add search: …")
    elif goals is not None and name not in SEARCHED:
        step = "write throughput_pps; without search the other metrics exist"
        yield tree.problem(where, f"a search has no {name}", ", ".join(SEARCHED), step)
    elif goal is not None and goals is not None and goal not in goals:
        known = ", ".join(map(show_share, goals))
        what = f"{show_share(goal)} is not a goal of this search"
        yield tree.problem(where, what, known, "add it to search.loss")


def with_metric(
    tree: Tree, goals: Sequence[float] | None, specs: Sequence[CompareSpec]
) -> tuple[list[CompareSpec], list[Problem]]:
    """Return comparisons; in a search, one without a metric compares the headline."""
    chosen: list[CompareSpec] = []
    problems: list[Problem] = []
    for i, spec in enumerate(specs):
        listed = isinstance(tree.value(("compare",)), list)
        where: KeyPath = ("compare", i) if listed else ("compare",)
        if goals is not None and tree.value((*where, "metric")) is None:
            spec = replace(spec, metric=with_goal(SEARCHED[0]))
        problems += _refused(tree, (*where, "metric"), spec.metric, goals)
        chosen.append(spec)
    return chosen, problems
