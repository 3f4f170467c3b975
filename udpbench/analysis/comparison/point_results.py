"""A point's numbers for tests that assert on them: medians, with every trial.

Pure. Derives nothing that ``medians`` does not; gives it names that read well in a test.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from udpbench.analysis.comparison.comparisons import Comparison, compare_blocks, compare_unpaired
from udpbench.analysis.points import Point, estimate
from udpbench.errors import CannotTell
from udpbench.metrics import METRICS
from udpbench.model.result import Result
from udpbench.units import parse_ratio


class Stages(dict[str, float | None]):
    """Ledger stage → packets that ended there; None if this kernel cannot observe it."""

    def __missing__(self, stage: str) -> float | None:
        """Raise KeyError for an unknown stage, naming the nearest."""
        raise KeyError(f"unknown stage {stage}; {_near(stage, self)}")


@dataclass(frozen=True)
class PointResult:
    """One point: each number is the median over its valid trials; None if none knows it.

    Only ``unaccounted`` is not a median but the value furthest from 0 over every trial that ran to
    its end, valid or not: a median would hide it.
    """

    point: str
    trials: tuple[Result, ...] = field(repr=False)
    """Every trial with its own numbers, findings and ledger, in order of repetition."""
    valid_trials: int
    ledger: Stages = field(repr=False)
    numbers: dict[str, float]
    """Metric → its median; what no trial knows is missing."""
    run: str = ""
    """The folder of its run."""

    def worse_than(
        self, *baselines: PointResult, margin: str, metric: str = "delivered_pps"
    ) -> bool:
        """Return whether a point is worse than others by more than a margin, such as ``3%``.

        Two points of one run are compared block by block, others as trials that share none; those
        of several baselines are taken together. Raises CannotTell, by which a test fails as one
        that could not be judged, if the interval has both.
        """
        comparison = self._compared(baselines, metric, parse_ratio(margin))
        if comparison.beyond_margin is None:
            sides = f"{self.point or 'all'} against {baselines[0].point or 'all'}"
            raise CannotTell(f"{sides}: {metric}: {comparison.text}")
        return comparison.beyond_margin

    def _compared(self, baselines: Sequence[PointResult], metric: str, margin: float) -> Comparison:
        base, *others = baselines
        if not others and self.run and self.run == base.run and self.point != base.point:
            return compare_blocks(base.trials, self.trials, metric, margin)
        return compare_unpaired(
            [baseline.trials for baseline in baselines], [self.trials], metric, margin
        )

    def __getattr__(self, name: str) -> float | None:
        """Return a number by its name, such as ``delay_p99_ns``; None if it is not known."""
        if name not in METRICS:
            near = _near(name, [*METRICS, *PointResult.__dataclass_fields__])
            raise AttributeError(f"a result has no {name}; {near}")
        return self.numbers.get(name)


class PointResults(Mapping[str, PointResult]):
    """The points of an experiment by name, in the order in which it declares them."""

    def __init__(self, points: Mapping[str, PointResult]) -> None:
        self._points = dict(points)

    def __getitem__(self, point: str) -> PointResult:
        """Return a point; a KeyError lists the names there are."""
        try:
            return self._points[point]
        except KeyError:
            raise KeyError(f"unknown point {point}; known: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __getattr__(self, name: str) -> float:
        """Raise AttributeError: a number belongs to one of the points."""
        known = (*PointResult.__dataclass_fields__, *METRICS)
        if name not in known:
            raise AttributeError(f"a result has no {name}; {_near(name, known)}")
        first = next(iter(self))
        names = ", ".join(self)
        raise AttributeError(
            f"{name} of which point? Known: {names}; write for example result[{first!r}].{name}"
        )


def medians(point: Point, run: str = "") -> PointResult:
    """Return a point's medians over its valid trials; ``run`` is the folder of its run."""
    goals = [name for result in point.valid for name in result.numbers if name not in METRICS]
    values = {name: _median(point, name) for name in (*METRICS, *goals)}
    remainders = (r.unaccounted for r in point.done if r.unaccounted is not None)
    values["unaccounted"] = max(remainders, key=abs, default=None)
    return PointResult(
        point=point.name,
        trials=point.results,
        valid_trials=len(point.valid),
        ledger=Stages({stage: _median(point, stage) for stage in _stages(point)}),
        numbers={name: value for name, value in values.items() if value is not None},
        run=run,
    )


def numbers(result: PointResult) -> dict[str, float]:
    """Return every number that is known, by name, ledger stages as ``ledger.<stage>``."""
    stages = {f"ledger.{name}": value for name, value in result.ledger.items() if value is not None}
    return {"valid_trials": result.valid_trials, **result.numbers, **stages}


def _median(point: Point, name: str) -> float | None:
    known = estimate(point, name)
    return known.median if known is not None else None


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else "docs/records.md has every number"


def _stages(point: Point) -> list[str]:
    """Return the ledger's stages in the packet's order."""
    entries = (
        entry.stage
        for result in point.valid
        if result.ledger is not None
        for entry in result.ledger.entries
    )
    return list(dict.fromkeys(entries))
