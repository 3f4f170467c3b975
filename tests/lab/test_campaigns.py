"""What a campaign asks of a real run: that it ends with its reservation, and names unmet needs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from test_command_line import LIMIT_S, start_with_phases

from udpbench.campaign import cell_run
from udpbench.campaign.cells import CampaignFolder, cells_of, load_labs, stored_result, task_of
from udpbench.definition.load import load_experiments
from udpbench.records.reader import read_run

pytestmark = [
    pytest.mark.lab,
    pytest.mark.apart,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LAB = """\
sender: [{connect: namespace, interface: send0, addresses: [192.168.254.30/24]}]
receiver: [{connect: namespace, interface: receive0, addresses: [192.168.254.1-20/24]}]
"""
LENT = "reserve: {command: [sh, -c, 'echo $$ > pid; echo ours; exec sleep 600']}\n"
SLOW = "question: Is it ours?\ntraffic: {size: 32B, rate: 100pps}\nwarmup: 0s\nrepetitions: 1\n"


def test_a_run_whose_lab_is_taken_back_restores_its_hosts(tmp_path: Path) -> None:
    """It ends with 3, and the trial under way is the only one that is lost."""
    (tmp_path / "rack1.yaml").write_text(LAB + LENT)
    (tmp_path / "mine.yaml").write_text(f"{SLOW}duration: 60s\n")
    words = ("run", "mine.yaml", "--lab", "rack1.yaml", "--no-report", "--out", "run")
    process = start_with_phases(tmp_path, *words)
    try:
        assert process.stdout is not None
        while "measured" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        _, complaints = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert 3 == process.returncode
    assert "rack1: the reservation ended during the run: sh ended with SIGTERM" in complaints
    ending = read_run(tmp_path / "run").ending
    assert ending is not None
    assert ("interrupted", ()) == (ending.status, ending.restore_errors)


def test_a_pair_that_is_not_what_an_experiment_needs_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell is a real run in a process of its own; the pair itself says what it lacks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rack1.yaml").write_text(LAB)
    (tmp_path / "mine.yaml").write_text(f"{SLOW}needs: {{receiver: {{driver: ice}}}}\n")
    (cell,) = cells_of(load_experiments(["mine.yaml"]), load_labs(["rack1.yaml"]))
    with CampaignFolder.open(tmp_path / "out") as campaign:
        result = cell_run.run_cell(task_of(cell, campaign, share=False), print, lambda: False)
        why = "receiver needs the driver ice and has veth"
        assert (0, why, False) == (result["exit_code"], result["reason"], result["chosen"])
        assert campaign.result_of(cell) == stored_result(tmp_path / "out" / cell.folder)
