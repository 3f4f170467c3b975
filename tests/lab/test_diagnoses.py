"""A planted bottleneck in the real lab: a sample of what ``diagnoses.py`` does ten times with each."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from diagnoses import PLANTS, planted

from udpbench.analysis.judge import judge

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


def test_a_thousand_rules_are_counted(tmp_path: Path) -> None:
    """What they cost depends on the CPU time that this machine has; ``diagnoses.py`` judges that."""
    record = planted("firewall", random.randrange(2**32), tmp_path / "run")
    assert PLANTS["firewall"].rules == record.facts["receiver"].firewall_rules
    assert 0 == judge(record).unaccounted
