"""A point against itself: two copies of it and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden

from udpbench.definition.load import load_experiments
from udpbench.definition.point_pairs import against_itself
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment

TEXT = """
question: What?
sweep: {send.batch: [1, 64]}
expect: [unaccounted == 0, "received_packets[batch=64] > 0"]
"""


@pytest.fixture
def experiments(tmp_path: Path) -> list[Experiment]:
    """Return an experiment of two points and one of one."""
    (tmp_path / "two.yaml").write_text(TEXT)
    (tmp_path / "one.yaml").write_text("question: Why?\n")
    return load_experiments([str(tmp_path / "two.yaml"), str(tmp_path / "one.yaml")])


def test_a_point_is_compared_with_a_copy_of_itself(experiments: list[Experiment]) -> None:
    """Only the name differs; what is expected of named points is left out."""
    (experiment,) = against_itself(experiments, "batch=64")
    first, again = experiment.points
    assert ("batch=64", "batch=64 again") == (first.point, again.point)
    assert first == replace(again, point=first.point)
    assert 64 == first.send.batch
    assert [(first.point, again.point)] == [(pair.a, pair.b) for pair in experiment.compare]
    assert ["unaccounted == 0"] == [expectation.text for expectation in experiment.expect]


def test_the_one_point_of_an_experiment_is_called_all(experiments: list[Experiment]) -> None:
    """As in tables."""
    (experiment,) = against_itself(experiments, "all")
    assert ("one", ["all", "all again"]) == (
        experiment.name,
        [trial.point for trial in experiment.points],
    )


def test_without_a_point_nothing_changes(experiments: list[Experiment]) -> None:
    """Most runs compare nothing with itself."""
    assert experiments == against_itself(experiments, None)


def test_a_point_that_no_experiment_has_is_refused(
    experiments: list[Experiment], golden: Golden
) -> None:
    """With the nearest name."""
    with golden.raises(InputError):
        against_itself(experiments, "batch=63")
