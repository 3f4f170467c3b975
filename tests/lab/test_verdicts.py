"""A point against itself in the real lab: a sample of what ``verdicts.py`` does forty times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verdicts import compared, equal

from udpbench.model import FEWEST_BLOCKS

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


def test_a_point_is_compared_with_itself(tmp_path: Path) -> None:
    """In as few blocks as have an interval; a false alarm, of 3 in 100, is no fault."""
    found = compared(equal((FEWEST_BLOCKS,)), tmp_path / "run")
    assert FEWEST_BLOCKS == found.blocks
    assert found.low is not None
    assert found.ratio is not None
    assert 0.5 < found.ratio < 2
