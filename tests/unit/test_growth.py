"""How cost grows with one thing: a sample of ``benchmarks/growth`` on pure code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from control.fake import World
from control.fake import experiment as defined
from control.fake import lab as faked
from report.stored import stored, swept
from test_benchmarks import benchmark

from udpbench.control.plan import rehearse
from udpbench.definition.load import load_experiment_data
from udpbench.judged_run import judged
from udpbench.records.reader import read_run
from udpbench.report.plan import print_rehearsal, print_trials
from udpbench.report.terminal import Terminal, drawn

NUMBERS = (16, 32, 64, 128)
STRAIGHT = 1.4
"""In proportion, on a machine that does other things; what bends has 2."""
TIMES = 2
SYSCTL = "net.core.rmem_default"


@pytest.fixture(scope="module")
def growth() -> Iterator[ModuleType]:
    """Yield benchmarks/growth/slope.py as a module."""
    yield from benchmark("growth/slope")


def many_settings(points: int) -> dict[str, object]:
    """Return keys of so many points, each with a setting of its own."""
    return {"sweep": {f"settings.receiver.sysctl.{SYSCTL}": [*range(4096, 4096 + points)]}}


def loading(points: int, _: Path) -> Callable[[], object]:
    """Read a definition."""
    data = {"question": "How long?", **many_settings(points)}
    return lambda: load_experiment_data(data, "many")


def rehearsing(points: int, _: Path) -> Callable[[], object]:
    """Plan what differs at each point."""
    definition = defined(**many_settings(points))
    return lambda: rehearse([definition], faked(), World().surroundings().reach)


def printing_a_plan(points: int, _: Path) -> Callable[[], object]:
    """Print that."""
    definition = defined(**many_settings(points))
    planned = rehearse([definition], faked(), World().surroundings().reach)

    def work() -> None:
        console = Terminal(file=StringIO(), width=80)
        print_trials(console, [definition])
        print_rehearsal(console, planned)

    return work


def reading(trials: int, folder: Path) -> Callable[[], object]:
    """Read a stored run."""
    definition, records = swept(range(trials // 8), 8)
    stored(folder / str(trials), records, definition)
    return lambda: read_run(folder / str(trials))


def judging(trials: int, _: Path) -> Callable[[], object]:
    """Judge its trials, and what they are compared with."""
    definition, records = swept(range(trials // 8), 8)
    return lambda: judged([definition], records)


def laying_out(rows: int, _: Path) -> Callable[[], object]:
    """Print a table whose cells wrap."""
    cells = [(f"point {n} " * 9, str(n)) for n in range(rows)]
    return lambda: Terminal(file=StringIO(), width=60).print(drawn(("what", "number"), cells))


@pytest.mark.parametrize(
    "prepare", [loading, rehearsing, printing_a_plan, reading, judging, laying_out]
)
def test_cost_grows_in_proportion(
    prepare: Callable[[int, Path], Callable[[], object]], growth: ModuleType, tmp_path: Path
) -> None:
    """Points, trials and rows, over three doublings."""
    costs = []
    for number in NUMBERS:
        work = prepare(number, tmp_path)
        taken = []
        for _ in range(TIMES):
            begun = time.process_time()
            work()
            taken.append(time.process_time() - begun)
        costs.append(min(taken))
    assert growth.slope(NUMBERS, costs) <= STRAIGHT, costs


def test_a_slope_is_that_of_the_logarithms(growth: ModuleType) -> None:
    """In proportion, by the square, and not at all."""
    numbers = growth.doubled(4, 32)
    assert (4, 8, 16, 32) == numbers
    for power in (0, 1, 2):
        costs = [7.0 * number**power for number in numbers]
        assert abs(growth.slope(numbers, costs) - power) < 1e-9
