"""A point's numbers for whoever asserts on them: medians, with every trial beside them.

Pure. Derives nothing that ``points`` does not; gives it names that a test can read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from udpbench.analysis.points import UNITS, Point, estimate
from udpbench.model import Result


class Stages(dict[str, float | None]):
    """Ledger stage → packets that ended there; None where this kernel cannot observe it."""

    def __missing__(self, stage: str) -> float | None:
        """Refuse a stage that there is not, naming one that is near."""
        raise KeyError(f"no stage is called {stage}; {_near(stage, self)}")


@dataclass(frozen=True)
class PointResult:
    """One point: each number is the median over its valid trials; None where none knows it.

    ``unaccounted`` alone is no median but the one furthest from 0 over every trial that ran to its
    end, valid or not: a median would hide it.
    """

    point: str
    trials: tuple[Result, ...] = field(repr=False)
    """Every trial with its own numbers, findings and ledger, in order of repetition."""
    valid_trials: int
    ledger: Stages = field(repr=False)
    unaccounted: int | None
    intended_packets: float | None
    sent_packets: float | None
    received_packets: float | None
    lost_packets: float | None
    offered_pps: float | None
    delivered_pps: float | None
    delivered_mib_s: float | None
    delivered_pps_spread: float | None
    loss_ratio: float | None
    send_calls_per_packet: float | None
    skbs_per_packet: float | None
    send_cpu_ns_per_packet: float | None
    receive_cpu_ns_per_packet: float | None

    def __getattr__(self, name: str) -> float | None:
        """Return the median of a number that has no field of its own, such as ``delay_p99_ns``."""
        if name not in UNITS:
            near = _near(name, [*UNITS, *PointResult.__dataclass_fields__])
            raise AttributeError(f"a result has no {name}; {near}")
        return _median(Point("", self.point, self.trials), name)


class PointResults(Mapping[str, PointResult]):
    """The points of an experiment by name, in the order in which it declares them."""

    def __init__(self, found: Mapping[str, PointResult]) -> None:
        self._found = dict(found)

    def __getitem__(self, point: str) -> PointResult:
        """Return a point; a KeyError lists the names there are."""
        try:
            return self._found[point]
        except KeyError:
            raise KeyError(f"no point is called {point}; known: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getattr__(self, name: str) -> float:
        """Refuse a number that would be one of several points."""
        known = (*PointResult.__dataclass_fields__, *UNITS)
        if name not in known:
            raise AttributeError(f"a result has no {name}; {_near(name, known)}")
        first = next(iter(self))
        names = ", ".join(self)
        raise AttributeError(
            f"{name} of which point? There are {names}; write for example result[{first!r}].{name}"
        )


def medians(point: Point) -> PointResult:
    """Return a point's medians over its valid trials."""

    def of(name: str) -> float | None:
        return _median(point, name)

    remainders = [r.unaccounted for r in point.done if r.unaccounted is not None]
    return PointResult(
        point=point.name,
        trials=point.results,
        valid_trials=len(point.valid),
        ledger=Stages({stage: of(stage) for stage in _stages(point)}),
        unaccounted=max(remainders, key=abs) if remainders else None,
        intended_packets=of("intended_packets"),
        sent_packets=of("sent_packets"),
        received_packets=of("received_packets"),
        lost_packets=of("lost_packets"),
        offered_pps=of("offered_pps"),
        delivered_pps=of("delivered_pps"),
        delivered_mib_s=of("delivered_mib_s"),
        delivered_pps_spread=of("delivered_pps_spread"),
        loss_ratio=of("loss_ratio"),
        send_calls_per_packet=of("send_calls_per_packet"),
        skbs_per_packet=of("skbs_per_packet"),
        send_cpu_ns_per_packet=of("send_cpu_ns_per_packet"),
        receive_cpu_ns_per_packet=of("receive_cpu_ns_per_packet"),
    )


def numbers(result: PointResult) -> dict[str, float]:
    """Return every number that is known, by name, ledger stages as ``ledger.<stage>``."""
    known = {
        name: value
        for name in dict.fromkeys((*PointResult.__dataclass_fields__, *UNITS))
        if isinstance(value := getattr(result, name), int | float)
    }
    stages = {f"ledger.{name}": value for name, value in result.ledger.items() if value is not None}
    return {**known, **stages}


def _median(point: Point, name: str) -> float | None:
    found = estimate(point, name)
    return found.median if found is not None else None


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
