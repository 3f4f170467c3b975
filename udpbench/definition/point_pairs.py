"""``compare``: from the points as a file names them to pairs of points, or of a point with itself.

Knows only names; ``analysis`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from udpbench.definition.overrides import PointTree
from udpbench.definition.problems import KeyPath, Tree, did_you_mean
from udpbench.errors import SHOWN_PROBLEMS, InputError, Problem
from udpbench.metrics import margin_of
from udpbench.model.experiment import CompareSpec, Experiment, PointPair, Trial


def resolve(
    tree: Tree, specs: Sequence[CompareSpec], points: Sequence[PointTree]
) -> tuple[tuple[PointPair, ...], list[Problem]]:
    """Return a pair for each combination of the keys that a comparison leaves open."""
    problems: list[Problem] = []
    resolved: list[PointPair] = []
    names = dict.fromkeys([*(part for p in points for part in p.parts), *(p.name for p in points)])
    known = [name for name in names if name]
    for i, spec in enumerate(specs):
        where: KeyPath = (
            ("compare", i) if isinstance(tree.value(("compare",)), list) else ("compare",)
        )
        a, b = (_open_keys(points, name) for name in (spec.a, spec.b))
        near = known if len(problems) < SHOWN_PROBLEMS else []
        problems += _wrong(tree, where, spec, {"a": a, "b": b}, near)
        if spec.blocks != specs[0].blocks:
            what = "the comparisons of an experiment have the same blocks"
            step = "they are decided together: write the same number in each"
            problems.append(tree.problem((*where, "blocks"), what, "", step))
        margin = margin_of(spec.metric) if spec.margin is None else spec.margin
        resolved += [
            PointPair(a[rest], b[rest], spec.metric, margin, spec.blocks) for rest in a if rest in b
        ]
    return tuple(resolved), problems


def _wrong(
    tree: Tree,
    where: KeyPath,
    spec: CompareSpec,
    sides: Mapping[str, Mapping[tuple[str, ...], str]],
    known: Sequence[str],
) -> Iterator[Problem]:
    """Yield what keeps two sides from being compared; without ``known``, not what is meant."""
    for key, side in sides.items():
        if not side:
            step = did_you_mean(getattr(spec, key), known) or "sweep something"
            yield tree.problem((*where, key), "no point has this name", "", step)
    a, b = sides.values()
    if spec.a == spec.b:
        step = "name another point; udpbench run --same measures a point against itself"
        yield tree.problem((*where, "b"), "compares a point with itself", "", step)
    elif a and b and a.keys() != b.keys():
        limit = f"the same; {spec.a} has {_listed(a)}, {spec.b} has {_listed(b)}"
        step = "name the same keys in both"
        yield tree.problem((*where, "b"), "a and b leave different keys open", limit, step)


def _listed(side: Mapping[tuple[str, ...], str]) -> str:
    first, *others = [",".join(rest) or "no other key" for rest in side]
    return f"{first} and {len(others)} more" if others else first


def _open_keys(points: Sequence[PointTree], name: str) -> dict[tuple[str, ...], str]:
    """Return the points that a name means: values of the keys it leaves open → point."""
    meant = ((_rest(point.parts, name), point.name) for point in points)
    return {rest: point for rest, point in meant if rest is not None}


def _rest(parts: Sequence[str], name: str) -> tuple[str, ...] | None:
    """Return the parts that a name leaves out, read in order; None if it names others."""
    rest, left = [], f"{name},"
    for part in parts:
        # No part begins another: each begins with a key of its own.
        if left.startswith(f"{part},"):
            left = left[len(part) + 1 :]
        else:
            rest.append(part)
    return None if left or not name else tuple(rest)


def against_itself(experiments: Sequence[Experiment], point: str | None) -> list[Experiment]:
    """Return the experiments that have a point, each reduced to a comparison of it with its copy.

    ``all`` is the point of a single-point experiment; without a point nothing is changed. Raises
    InputError if none has it.
    """
    if point is None:
        return list(experiments)
    twins = [
        _twice(experiment, trial, point)
        for experiment in experiments
        for trial in experiment.points
        if (trial.point or "all") == point
    ]
    if not twins:
        names = [trial.point or "all" for each in experiments for trial in each.points]
        raise InputError(
            [Problem("no such point", "--same", point, next_step=did_you_mean(point, names))]
        )
    return twins


def _twice(experiment: Experiment, trial: Trial, name: str) -> Experiment:
    again = f"{name} again"
    metric = experiment.headline
    return replace(
        experiment,
        points=tuple(replace(trial, point=each) for each in (name, again)),
        compare=(PointPair(name, again, metric, margin_of(metric)),),
        expect=tuple(e for e in experiment.expect if {e.left.point, e.right.point} == {None}),
    )
