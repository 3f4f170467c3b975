"""The order of trials: blocks, random order within each, and no more than comparisons want."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from control.fake import experiment
from udpbench.control.schedule import Total, next_trial, trial_order
from udpbench.model.experiment import Experiment, PointPair, Trial, trial_count
from udpbench.model.result import Result

SWEPT = experiment(sweep={"send.batch": [1, 2, 4, 8]}, repetitions=3)


def order(seed: int) -> list[tuple[int, str]]:
    """Return (repetition, point) of every trial."""
    return [(trial.repetition, trial.point) for trial in trial_order([SWEPT], seed)]


def test_every_repetition_is_a_block_of_all_points() -> None:
    """Three blocks, and in each every point once."""
    points = sorted(point.point for point in SWEPT.points)
    trials = order(1)
    assert [1] * 4 + [2] * 4 + [3] * 4 == [repetition for repetition, _ in trials]
    assert [points] * 3 == [sorted(point for _, point in trials[n : n + 4]) for n in (0, 4, 8)]


def test_the_order_is_the_seeds() -> None:
    """One seed gives one order, on every Python; another gives another."""
    assert order(1) == order(1)
    assert order(1) != order(2)
    first = [point for _, point in order(1)[:4]]
    assert ["batch=8", "batch=1", "batch=2", "batch=4"] == first


def test_experiments_follow_each_other() -> None:
    """Their trials are not interleaved, and the order of one depends on no other."""
    other = experiment("other", repetitions=2)
    together = [trial.name for trial in trial_order([SWEPT, other], 1)]
    assert [trial.name for trial in trial_order([SWEPT], 1)] == together[:12]
    assert ["other#1", "other#2"] == together[12:]
    assert (14, 14) == trial_count([SWEPT, other])


COMPARED = experiment(
    sweep={"send.batch": [1, 2, 4]},
    repetitions=2,
    compare={"a": "batch=1", "b": "batch=2", "blocks": "7-15"},
)


def measured(experiment: Experiment, value: Callable[[Trial], float]) -> list[Trial]:
    """Return the trials that run where each has this value; below 0 it is invalid."""
    schedule, result, trials = trial_order([experiment], 1), None, []
    while (trial := next_trial(schedule, result)) is not None:
        trials.append(trial)
        numbers = {"delivered_pps": abs(value(trial))}
        result = Result(trial, "done", value(trial) >= 0, (), numbers=numbers)
    return trials


def faster(trial: Trial) -> float:
    """Twice as fast with a batch of 2."""
    return 1000.0 * trial.send.messages


def noisy(trial: Trial) -> float:
    """Now the one is faster, now the other."""
    return 1000.0 * trial.send.messages ** (1 if trial.repetition % 2 else -1)


def blocks(trials: list[Trial], point: str) -> int:
    """Return how many trials a point has."""
    return sum(trial.point == point for trial in trials)


def test_a_comparison_stops_at_the_look_that_decides() -> None:
    """Compared points take blocks, the third its two repetitions; what nothing decides, 15."""
    trials = measured(COMPARED, faster)
    assert [7, 7, 2] == [blocks(trials, f"batch={n}") for n in (1, 2, 4)]
    assert 15 == blocks(measured(COMPARED, noisy), "batch=1")


def test_an_invalid_trial_costs_a_further_block() -> None:
    """Two of the first seven blocks are lost, so that there are nine; at most five are added."""
    lost = measured(COMPARED, lambda t: -1.0 if t.repetition in (2, 5) else faster(t))
    assert 9 == blocks(lost, "batch=2")
    late = measured(COMPARED, lambda t: -1.0 if t.repetition in range(5, 11) else noisy(t))
    assert 20 == blocks(late, "batch=2")


def test_a_lab_that_spoils_a_third_is_not_tried_on() -> None:
    """Seven lost blocks are more than a third of the twenty that could be run."""
    assert 7 == blocks(measured(COMPARED, lambda _: -1.0), "batch=2")


def test_results_decide_and_not_the_clock() -> None:
    """The same results give the same order; two points of a block come in the order of the seed."""
    assert measured(COMPARED, noisy) == measured(COMPARED, noisy)
    firsts = {(t.repetition, t.point) for t in measured(COMPARED, noisy)[::2] if t.repetition > 2}
    assert {"batch=1", "batch=2"} == {point for _, point in firsts}


def test_without_results_only_the_first_look_is_certain() -> None:
    """16 trials, and as many as 32; each further block is certain once it begins."""
    assert 16 == len(list(trial_order([COMPARED], 1)))
    assert (16, 32) == trial_count([COMPARED])
    total, known = Total([COMPARED]), []
    for trial in measured(COMPARED, noisy):
        total.count(trial)
        known.append(total.fewest)
    assert list(range(16, 33, 2)) == list(dict.fromkeys(known))
    assert 32 == total.most


def test_one_number_of_blocks_is_run_as_it_is() -> None:
    """Six blocks are six, decided or not."""
    pairs = (replace(COMPARED.compare[0], blocks=(6,)),)
    assert 6 == blocks(measured(replace(COMPARED, compare=pairs), noisy), "batch=1")
    assert PointPair("batch=1", "batch=2", "delivered_pps", 0.03) == COMPARED.compare[0]
