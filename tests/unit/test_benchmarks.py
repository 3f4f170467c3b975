"""The statistics of the benchmarks, and that what they use of udpbench is there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ways() -> Iterator[ModuleType]:
    """Yield benchmarks/ways.py as a module."""
    yield from benchmark("ways")


@pytest.fixture(scope="module")
def waiting() -> Iterator[ModuleType]:
    """Yield benchmarks/waiting.py as a module."""
    yield from benchmark("waiting")


def benchmark(name: str) -> Iterator[ModuleType]:
    """Yield a program as a module; as a program it finds what lies beside it."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(FOLDER))
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 1)), (5, (1, 5)), (6, (1, 6)), (9, (2, 8)), (15, (4, 12))]
)
def test_the_interval_of_a_median_is_of_order_statistics(
    ways: ModuleType, count: int, expected: tuple[int, int]
) -> None:
    """With 95 %, as tables of the sign test have it; few values have their range."""
    assert expected == ways.interval(list(range(count, 0, -1)))


def test_a_bar_is_reached_by_the_lower_bound(ways: ModuleType) -> None:
    """A median above it is not enough."""
    own, other = [1800.0, 2000.0, 2200.0], [2000.0] * 3
    rows = [ways.ratio_row("x", own, other, bar, 2) for bar in (0.9, 0.95)]
    assert [True, False] == [row.met for row in rows]
    assert "1.00 (0.90–1.10); 4 against 4 kpps" == rows[0].found


def trials(module: ModuleType, *numbers: tuple[float, float, float]) -> list[object]:
    """Return trials of delivered, CPU time and delay."""
    return [module.Trial(*each) for each in numbers]


@pytest.mark.parametrize(
    ("own", "again", "expected"),
    [
        ((98, 11, 140), 140, [True, True, True]),
        ((96, 12, 160), 160, [False, False, False]),
        ((98, 11, 160), 320, [True, True, True]),
    ],
    ids=["met", "missed", "a delay that itself again does not resolve"],
)
def test_auto_is_held_against_the_best_that_keeps_up(
    waiting: ModuleType, own: tuple[int, int, int], again: int, expected: list[bool]
) -> None:
    """A way that delivers less is neither the cheapest nor the soonest."""
    ways = {name: trials(waiting, *[(100, 20, 200)] * 6) for name in waiting.WAYS}
    ways |= {
        "epoll": trials(waiting, *[(90, 1, 1)] * 6),
        "nap": trials(waiting, *[(99, 10, 150)] * 6),
    }
    ways |= {"spin": trials(waiting, *[(100, 90, 100)] * 6)}
    ways |= {
        "auto": trials(waiting, *[own] * 6),
        "again": trials(waiting, *[(*own[:2], again)] * 6),
    }
    rows = list(waiting.rows(ways))
    assert ["block", "nap", "spin"] == [row.best for row in rows]
    assert expected == [row.met for row in rows]
