"""The numbers in the figures of CPU time: what a packet costs by stage, and the functions below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udpbench.analysis.cpu_owners import RECEIVER, SENDER
from udpbench.analysis.cpu_time import Stack, stacks
from udpbench.analysis.readings import readings_of
from udpbench.cpu_stages import STAGES, anchor_of
from udpbench.judged_run import Chapter
from udpbench.report.figure_data import shown_over_time
from udpbench.report.summary import name_of, represented, timed

OTHER_STAGES = "other stages"
LEAST_COST = 0.01
"""Share of a bar, below which a stage is one of those."""
LEAST_BOX = 0.004
"""Share of a trial's time, below which a function has no box."""
MOST_DEPTH = 20


@dataclass(frozen=True)
class CostBar:
    """What a packet of one end or node costs, by stage, in ns."""

    name: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FlameBox:
    """A function below a stage: what it took with all that it called."""

    depth: int
    left: float
    width: float
    """Share of the trial's time, and where it begins."""
    name: str
    stage: str
    ns: int


@dataclass(frozen=True)
class Flame:
    """The functions of one trial's CPU time, below the ends of the path and their stages."""

    name: str
    boxes: tuple[FlameBox, ...]


def cost_bars(chapter: Chapter) -> tuple[CostBar, ...]:
    """Return what a packet costs at each end and node, of each point's representative trial."""
    bars = []
    for point, result in represented(chapter):
        costs = result.cpu_time.costs if result.cpu_time is not None else ()
        for end in dict.fromkeys(cost.end for cost in costs):
            known = [(c.stage, c.ns_per_packet) for c in costs if c.end == end and c.ns_per_packet]
            whole = sum(ns or 0.0 for _, ns in known)
            parts: dict[str, float] = {}
            for stage, ns in known:
                name = stage if (ns or 0.0) >= LEAST_COST * whole else OTHER_STAGES
                parts[name] = parts.get(name, 0.0) + (ns or 0.0)
            name = f"{name_of(point)} #{result.trial.repetition} {end}"
            bars += [CostBar(name, tuple(parts.items()))] if parts else []
    return tuple(bars)


def flames(chapter: Chapter) -> tuple[Flame, ...]:
    """Return the functions of each shown point's representative trial."""
    records = {record.trial.name: record for record in chapter.records}
    drawn = []
    for point in shown_over_time(chapter):
        result = timed(point)
        readings = readings_of(records[result.trial.name]) if result is not None else None
        if result is not None and readings is not None and result.cpu_time is not None:
            boxes = _boxes(stacks(readings))
            name = f"{name_of(point)} #{result.trial.repetition}"
            drawn += [Flame(name, boxes)] if boxes else []
    return tuple(drawn)


def _boxes(times_ns: Mapping[Stack, int]) -> tuple[FlameBox, ...]:
    """Return a box for each end, stage and function behind the anchor that decided it."""
    whole_ns = sum(times_ns.values())
    spent_ns: dict[Stack, int] = {}
    for (end, stage, *chain), ns in times_ns.items():
        path = (end, stage, *_from_anchor(chain))[:MOST_DEPTH]
        for length in range(1, len(path) + 1):
            spent_ns[path[:length]] = spent_ns.get(path[:length], 0) + ns
    ends = {SENDER: 0, RECEIVER: 2}
    order = sorted(
        spent_ns,
        key=lambda p: (
            ends.get(p[0], 1),
            *((STAGES.index(s) if s in STAGES else 99, s) for s in p),
        ),
    )
    begin: dict[Stack, float] = {(): 0.0}
    boxes = []
    for path in order:
        left, width = begin[path[:-1]], spent_ns[path] / whole_ns
        begin[path] = left
        begin[path[:-1]] = left + width
        if width >= LEAST_BOX:
            stage = path[1] if len(path) > 1 else ""
            boxes.append(FlameBox(len(path) - 1, left, width, path[-1], stage, spent_ns[path]))
    return tuple(boxes)


def _from_anchor(chain: Sequence[str]) -> list[str]:
    """Return the functions of a chain from its innermost anchor of a stage on."""
    anchors = (anchor_of(name) for name in reversed(chain))
    behind = next((n for n, a in enumerate(anchors) if a is not None and a.stage is not None), 0)
    return list(chain[-1 - behind :])
