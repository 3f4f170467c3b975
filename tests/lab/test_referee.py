"""Two fixed cases of the referee in the real lab: a sample of what ``referee.py`` does 200 times."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "referee"))

from accepted import ACCEPTED
from causes import CAUSES
from planting import build
from referee import planted
from scoring import judge

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
LEAST = {"rule_every_nth": 1 / 11, "xdp_drop": 1 / 10}
"""Cause → the least that it loses, also while other programs use the CPUs."""


@pytest.mark.parametrize("label", LEAST)
def test_a_planted_cause_is_named_first(label: str, tmp_path: Path) -> None:
    """It loses what it was made to lose, and the first answer is right."""
    (cause,) = [cause for cause in CAUSES if cause.label == label]
    record = planted("sample", cause, 0, build(tmp_path), tmp_path / "case")
    assert record["answer"]["planted"]
    assert LEAST[label] * 0.9 <= record["answer"]["loss"]
    judged = judge(record, ACCEPTED)
    assert ("right", False) == (judged.verdict, judged.certain_wrong), judged.said
