"""What others do to a host of the built-in lab while it is measured, and what a trial says then."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_readers import once_measured
from test_ways import conducted

from udpbench.analysis.judge import judge
from udpbench.model import Ledger, TrialRecord

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

SENDER, RECEIVER = "192.168.254.30/32", "192.168.254.1/32"
KEYS = {"traffic": {"rate": "1kpps", "count": 500}, "duration": "2s"}


def inside(host: str, *commands: str) -> Callable[[dict[str, int]], None]:
    """Return what runs commands in the network namespace of a host's agent."""

    def act(pids: dict[str, int]) -> None:
        for command in commands:
            enter = ["nsenter", f"--target={pids[host]}", "--net", *command.split()]
            subprocess.run(enter, check=True, timeout=10)

    return act


def ledger_of(record: TrialRecord) -> Ledger:
    """Return the ledger of a trial that has one."""
    ledger = judge(record).ledger
    assert ledger is not None, record.error
    return ledger


@pytest.mark.parametrize(
    ("host", "way", "stage"), [("sender", "out", "tx_policy"), ("receiver", "in", "rx_policy")]
)
def test_what_a_policy_of_ipsec_blocks_has_a_stage(
    tmp_path: Path, host: str, way: str, stage: str
) -> None:
    """Neither the firewall nor a filter of the application is blamed for it."""
    policy = f"ip xfrm policy add src {SENDER} dst {RECEIVER} dir {way} action block"
    (record,) = conducted(tmp_path / "run", KEYS, tell=once_measured(inside(host, policy)))
    ledger = ledger_of(record)
    lost = {entry.stage: entry.packets for entry in ledger.entries if entry.packets}
    assert ({stage: ledger.intended_packets}, 0) == (lost, ledger.unaccounted)
    assert ledger.intended_packets > 0
