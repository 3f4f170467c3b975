"""Reading expectations: ``side op side``, without evaluating anything.

Knows which metrics exist and which points an experiment has; judging is for ``analysis``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from typing import Any, get_type_hints

from pydantic_core import PydanticCustomError

from udpbench import units
from udpbench.definition.leaves import refusal
from udpbench.definition.problems import did_you_mean
from udpbench.model import LEDGER_STAGES, Expectation, Result, Side

_SIDE = re.compile(
    r"(?:(?P<factor>-?[0-9.]+)\s*\*\s*)?(?P<metric>[a-z][a-z0-9_]*)\s*(?:\[(?P<point>[^\]\[]*)\])?\Z"
)
_NUMBER = re.compile(r"(?P<sign>-?)(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z%]*)\Z")
_OPERATORS = re.compile(r"(<=|>=|==|!=|<|>)")


def metrics() -> tuple[str, ...]:
    """Return every name an expectation may use: the numbers of a Result and the ledger stages."""
    hints = get_type_hints(Result)
    numeric = [
        item.name
        for item in dataclasses.fields(Result)
        if hints[item.name] in (int | None, float | None)
    ]
    return (*numeric, "unaccounted", *LEDGER_STAGES)


def parse(text: str, known_points: Collection[str]) -> Expectation:
    """Return the expectation of a text; raises the refusal of ``leaves``."""
    parts = _OPERATORS.split(text)
    if len(parts) != 3:
        what = "no expectation" if len(parts) < 3 else "more than one comparison"
        raise refusal(what, "side op side, op one of < <= == != >= >", "write one comparison")
    left, op, right = (part.strip() for part in parts)
    metric = _metric_of(left) or _metric_of(right)
    if metric is None:
        raise refusal("compares two numbers", "", "name a metric, for example delivered_pps")
    sides = [_side(side, metric, known_points) for side in (left, right)]
    operator: Any = op
    return Expectation(text, sides[0], operator, sides[1])


def _metric_of(text: str) -> str | None:
    found = _SIDE.match(text)
    return found.group("metric") if found is not None else None


def _side(text: str, metric: str, known_points: Collection[str]) -> Side:
    number = _NUMBER.match(text)
    if number is not None:
        value = _number(number.group("number"), number.group("unit"), metric)
        return Side(-value if number.group("sign") else value)
    found = _SIDE.match(text)
    if found is None:
        limit = "number[unit] or [number *] metric[point]"
        raise refusal(f"{text or 'nothing'} is no side of an expectation", limit)
    name, point = found.group("metric"), found.group("point")
    if name not in metrics():
        raise refusal(f"unknown metric {name}", "", did_you_mean(name, metrics()))
    if point is not None and point not in known_points:
        step = did_you_mean(point, [p for p in known_points if p]) or "leave the brackets out"
        raise refusal(f"no point is called {point}", "", step)
    return Side(_factor(found.group("factor")), name, point)


def _factor(text: str | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        raise refusal(f"{text} is no number", "", "write for example 1.5 * delivered_pps") from None


def _number(number: str, unit: str, metric: str) -> float:
    """Return a number in the metric's base unit; refuses a unit of another kind."""
    if unit == "":
        return float(number)
    try:
        if metric.endswith("_pps"):
            rate = units.parse_rate(number + unit)
            if rate.packets_per_s is None:
                raise refusal(f"{metric} is in packets", "", "write for example 300kpps")
            return float(rate.packets_per_s)
        if metric.endswith("_ns_per_packet"):
            return float(units.parse_duration(number + unit))
        if metric.endswith(("_ratio", "_spread")) and unit == "%":
            return float(number) / 100
        if metric.endswith("_packets") or metric in (*LEDGER_STAGES, "unaccounted"):
            return float(units.parse_count(number + unit))
    except ValueError as error:
        if isinstance(error, PydanticCustomError):
            raise
        what, _, step = str(error).partition("; ")
        raise refusal(what, f"of {metric}", step) from error
    raise refusal(f"{metric} takes no unit {unit}", "", "write a bare number")
