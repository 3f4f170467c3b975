"""What a run says of one of its points, and of those that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.build import expectation, experiment, failed, record, trial
from report.stored import COMPLETE, stored

from udpbench.gate import Answer, answer
from udpbench.model import TrialRecord
from udpbench.records import Ending

ONE, TWO = trial("one"), trial("two")
LOST = {"kind": "AgentLost", "message": "gone", "host": "right"}
HELD = expectation("received_packets[two]", ">=", "received_packets[one]")
ALL = expectation("unaccounted", "==", "0")


def of(
    folder: Path,
    first: Sequence[TrialRecord],
    second: Sequence[TrialRecord] = (record(of=TWO),),
    ending: Ending = COMPLETE,
) -> Answer:
    """Return the answer of the point ``two``, which is compared with ``one``."""
    declared = experiment(HELD, ALL, points=[ONE, TWO])
    return answer(stored(folder, [*first, *second], declared, ending=ending), "two", 80)


def test_a_point_passes_where_all_that_it_is_compared_with_is_sound(tmp_path: Path) -> None:
    """Nothing is told then."""
    said = of(tmp_path, [record(of=ONE)])
    assert ("passed", "", "") == (said.outcome, said.why, said.shown)


def test_a_failed_trial_of_a_point_that_it_is_compared_with_fails_it(tmp_path: Path) -> None:
    """As the whole run fails; a median of fewer trials is not what was asked for."""
    said = of(tmp_path, [record(of=ONE), failed(of=replace(ONE, repetition=2))])
    assert "failed" == said.outcome
    assert "compared with one: right: failed: it died" == said.why
    assert "results" in said.shown


def test_an_invalid_trial_of_a_point_that_it_is_compared_with_fails_it(tmp_path: Path) -> None:
    """The comparison holds over what is left, and is not to be believed."""
    invalid = record(1000, 990, of=replace(ONE, repetition=2))
    said = of(tmp_path, [record(of=ONE), invalid])
    assert "failed" == said.outcome
    assert said.why.startswith("compared with one: ")


def test_a_run_that_ended_before_the_point_to_compare_with_fails_it(tmp_path: Path) -> None:
    """Its own trials alone do not answer."""
    said = of(tmp_path, [], ending=Ending("then", "failed", LOST))
    assert ("failed", "the run ended early: right: gone") == (said.outcome, said.why)


def test_a_comparison_with_a_skipped_point_is_not_a_pass(tmp_path: Path) -> None:
    """Another expectation that holds does not answer it."""
    said = of(tmp_path, [failed("skipped", "needs 8 CPUs", of=ONE)])
    assert "skipped" == said.outcome
    assert "cannot be compared with one: skipped: needs 8 CPUs" == said.why


def test_a_skipped_point_to_compare_with_hides_no_failure(tmp_path: Path) -> None:
    """What the point itself misses is told."""
    skipped = failed("skipped", "needs 8 CPUs", of=ONE)
    said = of(tmp_path, [skipped], [record(1000, 990, of=TWO)])
    assert "failed" == said.outcome
    assert "expected: unaccounted == 0" in said.why


def test_a_point_that_cannot_be_tried_is_skipped_whatever_it_is_compared_with(
    tmp_path: Path,
) -> None:
    """It is not this host's answer to it that the other one failed."""
    said = of(tmp_path, [failed(of=ONE)], [failed("skipped", "needs 8 CPUs", of=TWO)])
    assert ("skipped", "right: skipped: needs 8 CPUs") == (said.outcome, said.why)
