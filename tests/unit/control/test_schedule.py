"""The fixed sweep: blocks, random order within each, the same for the same seed."""

from __future__ import annotations

from control.fake import experiment
from udpbench.control.schedule import fixed_sweep, trial_count

SWEPT = experiment(sweep={"send.batch": [1, 2, 4, 8]}, repetitions=3)


def order(seed: int) -> list[tuple[int, str]]:
    """Return (repetition, point) of every trial."""
    return [(trial.repetition, trial.point) for trial in fixed_sweep([SWEPT], seed)]


def test_every_repetition_is_a_block_of_all_points() -> None:
    """Three blocks, and in each every point once."""
    points = sorted(point.point for point in SWEPT.points)
    found = order(1)
    assert [1] * 4 + [2] * 4 + [3] * 4 == [repetition for repetition, _ in found]
    assert [points] * 3 == [sorted(point for _, point in found[n : n + 4]) for n in (0, 4, 8)]


def test_the_order_is_the_seeds() -> None:
    """One seed gives one order, on every Python; another gives another."""
    assert order(1) == order(1)
    assert order(1) != order(2)
    first = [point for _, point in order(1)[:4]]
    assert ["batch=8", "batch=1", "batch=2", "batch=4"] == first


def test_experiments_follow_each_other() -> None:
    """Their trials are not interleaved, and the order of one depends on no other."""
    other = experiment("other", repetitions=2)
    together = [trial.name for trial in fixed_sweep([SWEPT, other], 1)]
    assert [trial.name for trial in fixed_sweep([SWEPT], 1)] == together[:12]
    assert ["other#1", "other#2"] == together[12:]
    assert 14 == trial_count([SWEPT, other])
