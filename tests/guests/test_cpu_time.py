"""CPU time of hosts with real drivers: by stage, or struck out in words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from runs import NEEDED, await_words, on, records, start

from udpbench.analysis.judge import judge
from udpbench.model.result import CpuTime

pytestmark = NEEDED
CPU = "/sys/devices/system/cpu/cpu1/online"


def experiment(seconds: int) -> str:
    """Return an experiment that samples CPUs for some seconds."""
    keys = {
        "question": "Where does the time go?",
        "traffic": {"size": "64B", "rate": "500pps"},
        "send": {"pace": "sleep"},
        "cpu_time": True,
        "duration": f"{seconds}s",
        "warmup": "1s",
        "repetitions": 1,
    }
    return json.dumps(keys)


def sampled(folder: Path, run: subprocess.Popen[str]) -> CpuTime:
    """Return the CPU time of a run of one trial, and print what it says."""
    (record,) = records(folder, run)
    result = judge(record)
    assert result.cpu_time is not None, result.findings
    for each in (*result.findings, *result.cpu_time.balances, *result.cpu_time.costs):
        print(each)
    return result.cpu_time


@pytest.mark.parametrize("card", ["igb", "virtio"])
def test_cpu_time_of_a_card_has_its_stages(card: str, tmp_path: Path) -> None:
    """Whether the CPUs of an emulator add up is not asked here: their clocks stand at times."""
    cpu_time = sampled(tmp_path, start(tmp_path, card, experiment(20)))
    stages = {cost.stage for cost in cpu_time.costs if cost.end == "receiver"}
    assert {"rx_poll", "rx_udp"} <= stages
    assert {"left", "right"} == {balance.machine for balance in cpu_time.balances}


def test_a_cpu_that_was_offline_is_struck_out(tmp_path: Path) -> None:
    """Its events end when it leaves, and do not come back with it; the host does."""
    run = start(tmp_path, "igb", experiment(40))
    await_words(run, "#1 measured")
    on("right", f"echo 0 > {CPU}; sleep 2; echo 1 > {CPU}")
    cpu_time = sampled(tmp_path, run)
    struck = [each.struck for each in cpu_time.balances if (each.machine, each.cpu) == ("right", 1)]
    assert ["offline" in each for each in struck] == [True]
