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
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
CASES = {"rule_every_nth": (1 / 11, 1 / 5), "healthy_rate": (0, 0)}
"""Cause → the least and the most that it loses."""


@pytest.mark.parametrize("label", CASES)
def test_a_planted_cause_is_named_first(label: str, tmp_path: Path) -> None:
    """It loses what it was made to lose, and the first answer is right."""
    (cause,) = [cause for cause in CAUSES if cause.label == label]
    record = planted("sample", cause, 0, build(tmp_path), tmp_path / "case")
    least, most = CASES[label]
    assert record["answer"]["planted"]
    assert least * 0.95 <= record["answer"]["loss"] <= most * 1.05
    judged = judge(record, ACCEPTED)
    assert ("right", False) == (judged.verdict, judged.certain_wrong), judged.said
