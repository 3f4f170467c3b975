"""Which stages became cheaper: in blocks of one run, and between two runs."""

from __future__ import annotations

import random

import pytest

from analysis.build import trial
from udpbench.analysis.comparison.stage_costs import StageChange, stage_changes, student
from udpbench.model.result import Result


def results(point: str, trials: int = 7, seed: int = 1, **costs: float) -> list[Result]:
    """Return trials of a point with these costs per stage, and some scatter."""
    chosen = random.Random(seed)
    every = []
    for repetition in range(1, trials + 1):
        noisy = {f"cpu_ns[stage={s}]": ns * chosen.gauss(1, 0.02) for s, ns in costs.items() if ns}
        numbers = {**noisy, "cpu_ns": sum(noisy.values())}
        of = trial(point, repetition)
        every.append(Result(trial=of, status="done", valid=True, findings=(), numbers=numbers))
    return every


def told(changes: tuple[StageChange, ...]) -> dict[str, bool]:
    """Return stage → whether it became cheaper."""
    return {change.stage: change.cheaper for change in changes}


def test_what_differs_is_told_largest_first() -> None:
    """Also a stage that is gone; what only scatters is not."""
    base = results("rules", rx_conntrack=300.0, rx_ip=100.0, rx_udp=200.0)
    other = results("none", seed=2, rx_conntrack=0.0, rx_ip=150.0, rx_udp=200.0)
    changes = stage_changes(base, other, paired=True)
    assert [("rx_conntrack", True), ("rx_ip", False)] == list(told(changes).items())
    assert changes[0].low_ns <= -300 * 0.98
    assert changes[0].high_ns <= -300 * 0.95
    assert ("rules", "none") == (changes[0].a, changes[0].b)


def test_runs_are_compared_without_blocks() -> None:
    """By all trials of both."""
    base, other = results("", 9, rx_ip=100.0), results("", 6, seed=2, rx_ip=200.0)
    assert {"rx_ip": False} == told(stage_changes(base, other, paired=False))


def test_of_too_little_nothing_is_told() -> None:
    """Fewer than six blocks, trials without CPU time, and such as do not count."""
    base, other = results("a", rx_ip=100.0), results("b", seed=2, rx_ip=200.0)
    assert () == stage_changes(base[:5], other, paired=True)
    assert () == stage_changes(base[:5], other, paired=False)
    assert () == stage_changes(base[:4], other[3:], paired=True)
    silent = [Result(r.trial, "done", True, ()) for r in base]
    assert () == stage_changes(silent, other, paired=True)


def test_equal_points_differ_at_no_stage() -> None:
    """In 19 of 20 pairs of points at least, of twenty stages together."""
    stages = {f"rx_{name}": 100.0 for name in ("ip", "udp", "poll", "gro", "core", "read", "copy")}
    pairs = [
        (results("a", seed=2 * n, **stages), results("b", seed=2 * n + 1, **stages))
        for n in range(200)
    ]
    assert sum(bool(stage_changes(*pair, paired=True)) for pair in pairs) <= 18
    assert sum(bool(stage_changes(*pair, paired=False)) for pair in pairs) <= 18


@pytest.mark.parametrize(
    ("level", "freedom", "t"),
    [(0.05, 5, 2.571), (0.05, 6, 2.447), (0.005, 5, 4.773), (0.002, 6, 5.208), (0.05, 30, 2.042)],
)
def test_quantiles_are_those_of_tables(level: float, freedom: int, t: float) -> None:
    """Quantiles of Student's t, as far out as for twenty stages."""
    assert t == pytest.approx(student(level, freedom), rel=0.01)
