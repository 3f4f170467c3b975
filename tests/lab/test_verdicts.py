"""A point against itself in the real lab: a sample of what ``verdicts.py`` does forty times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verdicts import OutOfTime, Session, same_smoke

from udpbench.model.experiment import FEWEST_BLOCKS

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
SHORT = ("duration=200ms", "warmup=0s")


def test_a_point_is_compared_with_itself(tmp_path: Path) -> None:
    """In as few blocks as have an interval; a false alarm, of 3 in 100, is no fault.

    What is stored is not run again, and nothing is begun once the time is over.
    """
    experiment = same_smoke((FEWEST_BLOCKS,), SHORT)
    comparison = Session(tmp_path).compared("run", experiment)
    assert FEWEST_BLOCKS == comparison.blocks
    assert comparison.low is not None
    assert comparison.ratio is not None
    assert 0.5 < comparison.ratio < 2
    late = Session(tmp_path, until_s=0)
    assert comparison == late.compared("run", experiment)
    with pytest.raises(OutOfTime):
        late.compared("another", experiment)
