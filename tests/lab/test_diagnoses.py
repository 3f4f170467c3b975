"""A planted bottleneck in the real lab: a sample of what ``diagnoses.py`` does ten times with each."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from diagnoses import PLANTS, is_disturbed, planted

from udpbench.analysis.judge import judge

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


def test_a_thousand_rules_are_counted_and_named(tmp_path: Path) -> None:
    """Unless others' programs are the reason, which then comes first."""
    record = planted("firewall", random.randrange(2**32), tmp_path / "run")
    names = [bottleneck.name for bottleneck in judge(record).diagnosis]
    assert PLANTS["firewall"].rules == record.facts["receiver"].firewall_rules
    assert is_disturbed("firewall", names) or "firewall" in names
