"""Parses expectations, ``side op side``, and evaluates nothing.

Knows which metrics exist and which points an experiment has; ``analysis`` judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from pydantic_core import PydanticCustomError

from udpbench import units
from udpbench.cpu_stages import STAGES
from udpbench.definition.problems import as_yaml, did_you_mean
from udpbench.definition.values import refusal
from udpbench.metrics import (
    METRICS,
    SEARCHED,
    STAGED,
    at_stage,
    goal_of,
    is_cpu_stage,
    is_metric,
    unit_of,
    with_goal,
)
from udpbench.model.experiment import FEWEST_BLOCKS, MOST_BLOCKS, Expectation, Experiment, Side
from udpbench.model.limits import LEDGER_STAGES, is_stage

_SIDE = re.compile(
    r"(?:(?P<factor>-?[0-9.]+)\s*\*\s*)?(?P<metric>(?:[A-Za-z0-9][A-Za-z0-9_-]*\.)?[a-z][a-z0-9_]*)\s*(?:\[(?P<point>[^\]\[]*)\])?\Z"
)
_NUMBER = re.compile(rf"(?P<sign>-?)(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>{units.UNIT})\Z")
_PARSERS: dict[str, Callable[[str], float]] = {
    "ns": units.parse_duration,
    "ratio": units.parse_ratio,
    "B": units.parse_bytes,
    "packets": units.parse_count,
    "files": units.parse_count,
}
"""Unit of a metric → parser of the quantities it is compared with."""
MOST_DIGITS = 40
"""Digits of a number: with its unit it stays a finite one."""
KNOWN = (*METRICS, *LEDGER_STAGES)
"""Every name an expectation may use."""
_OPERATORS = re.compile(r"(<=|>=|==|!=|<|>)")


def parse(text: str, known_points: Collection[str], helpful: bool = True) -> Expectation:
    """Return the expectation that a text describes; raises a Refusal.

    One that is ``helpful`` says what may be meant, which takes longer than all else.
    """
    if re.search(f"[0-9.]{{{MOST_DIGITS + 1}}}", text) is not None:
        raise refusal("a number is too long", f"at most {MOST_DIGITS} digits")
    parts = _OPERATORS.split(text)
    if len(parts) != 3:
        what = "not an expectation" if len(parts) < 3 else "more than one comparison"
        raise refusal(what, "side op side, op one of < <= == != >= >", "write one comparison")
    left, op, right = (part.strip() for part in parts)
    metric = _metric_of(left) or _metric_of(right)
    if metric is None:
        raise refusal("compares two numbers", "", "name a metric, for example delivered_pps")
    sides = [_side(side, metric, known_points, helpful) for side in (left, right)]
    operator: Any = op
    return Expectation(text, sides[0], operator, sides[1])


def refuse_undecidable(expectation: Expectation, experiment: Experiment) -> None:
    """Raise a Refusal for a comparison of two points that no number of blocks could decide."""
    compared = [expectation.by_blocks(trial.point) for trial in experiment.points]
    points = {side.point or "" for sides in compared if sides is not None for side in sides}
    if not points:
        return
    if expectation.op in ("==", "!="):
        step = "write <, <=, >= or >, or compare them with a margin under compare"
        raise refusal("only counts of two points can be equal", "", step)
    fewest = min(experiment.trials_of(point)[0] for point in points)
    most = max(experiment.trials_of(point)[1] for point in points)
    if fewest < FEWEST_BLOCKS:
        what = f"two points cannot be compared in {units.plural(fewest, 'repetition')}"
        raise refusal(what, f"at least {FEWEST_BLOCKS}", "raise repetitions, or use compare")
    if most > MOST_BLOCKS:
        what = f"two points cannot be compared in {units.plural(most, 'repetition')}"
        raise refusal(what, f"at most {MOST_BLOCKS}", "make trials longer instead")


def _metric_of(text: str) -> str | None:
    match = _SIDE.match(text)
    return match.group("metric") if match is not None else None


def _side(text: str, metric: str, known_points: Collection[str], helpful: bool) -> Side:
    number = _NUMBER.match(text)
    if number is not None:
        value = _number(number.group("number"), number.group("unit"), metric)
        return Side(-value if number.group("sign") else value)
    match = _SIDE.match(text)
    if match is None:
        limit = "number[unit] or [number *] metric[point]"
        raise refusal(f"{text or 'nothing'} is not a side of an expectation", limit)
    name, point = _with_goal(match.group("metric"), match.group("point"))
    name, point = _at_stage(name, point, helpful)
    if not is_metric(name) and not is_stage(name):
        step = did_you_mean(name, KNOWN) if helpful else ""
        raise refusal(f"unknown metric {as_yaml(name)}", "", step)
    if point is not None and point not in known_points:
        near = did_you_mean(point, [p for p in known_points if p]) if helpful else ""
        step = near or "leave the brackets out"
        raise refusal(f"no point is called {as_yaml(point)}", "", step)
    return Side(_factor(match.group("factor")), name, point)


def _with_goal(name: str, point: str | None) -> tuple[str, str | None]:
    """Return a metric and its point; ``loss=`` names a goal of a search, not a point."""
    parts = point.split(",") if point is not None and name in SEARCHED else []
    goals = [part for part in parts if part.strip().startswith("loss=")]
    if not goals:
        return name, point
    plain, goal = goal_of(f"{name}[{goals[0].strip()}]")
    if goal is None or len(goals) > 1:
        raise refusal(f"{', '.join(goals)} is not a goal", "", "write for example loss=0.1%")
    return with_goal(plain, goal), ",".join(p for p in parts if p not in goals) or None


def _at_stage(name: str, point: str | None, helpful: bool) -> tuple[str, str | None]:
    """Return a metric and its point; ``stage=`` names a stage of the CPUs, not a point."""
    parts = point.split(",") if point is not None and name == STAGED else []
    stages = [part for part in parts if part.strip().startswith("stage=")]
    if not stages:
        return name, point
    stage = stages[0].strip().removeprefix("stage=")
    if not is_cpu_stage(stage) or len(stages) > 1:
        step = did_you_mean(stage, STAGES) if helpful else ""
        raise refusal(f"{', '.join(stages)} is not a stage", "", step)
    return at_stage(stage), ",".join(part for part in parts if part not in stages) or None


def _factor(text: str | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        raise refusal(
            f"{text} is not a number", "", "write for example 1.5 * delivered_pps"
        ) from None


def _number(number: str, unit: str, metric: str) -> float:
    """Return a number in the metric's base unit; refuses a unit of another kind."""
    if unit == "":
        return float(number)
    try:
        if unit_of(metric) == "pps":
            rate = units.parse_rate(number + unit)
            if rate.packets_per_s is None:
                raise refusal(f"{metric} is in packets", "", "write for example 300kpps")
            return float(rate.packets_per_s)
        parse = _PARSERS.get(unit_of(metric))
        if parse is not None:
            return float(parse(number + unit))
    except ValueError as error:
        if isinstance(error, PydanticCustomError):
            raise
        what, _, step = str(error).partition("; ")
        raise refusal(f"{what} for {metric}", "", step) from error
    raise refusal(f"{metric} takes no unit {unit}", "", "write a bare number")
