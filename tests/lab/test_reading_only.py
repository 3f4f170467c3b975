"""Verbs that only read: the machine is as before, which no test beside these may change."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from own_namespaces import left_since, own_namespaces
from test_command_line import done

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


def state() -> dict[str, str]:
    """Return what a run could change on this machine."""
    names = ("net/core", "net/ipv4", "kernel/sched_rt_runtime_us")
    files = [
        file
        for name in names
        for file in (Path("/proc/sys") / name).rglob("*")
        if file.is_file() and os.access(file, os.R_OK) and file.stat().st_mode & 0o400
    ]
    by_name = {}
    for file in files:
        try:
            by_name[str(file)] = file.read_text()
        except OSError:
            continue
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True)
    return {**by_name, "addresses": links.stdout}


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    """It says what would change; no setting, address, namespace or file is other than before."""
    before, spaces = state(), own_namespaces()
    code, out, err = done(tmp_path, "plan", "smoke")
    assert (0, "") == (code, err), out
    assert "neighbour send0/192.168.254.1-20" in out
    after = state()
    assert {} == {
        name: (before.get(name), now) for name, now in after.items() if before.get(name) != now
    }
    assert (set(), []) == (left_since(spaces), list(tmp_path.iterdir()))


def test_doctor_reads_the_machine_and_changes_nothing(tmp_path: Path) -> None:
    """Every check of the machine is answered, the exit code says whether all are ready."""
    before = state()
    code, out, err = done(tmp_path, "doctor", "--json")
    assert "" == err
    answer = json.loads(out)
    assert (not answer["ready"]) == bool(code)
    assert {"machine"} == {check["host"] for check in answer["checks"]}
    answers = {check["check"]: check["status"] for check in answer["checks"]}
    read = {"steal", "busy", "irqbalance", "clocksource", "rights", "buffer_limit"}
    assert [] == sorted(name for name in read if answers[name] == "unknown")
    assert (before, []) == (state(), list(tmp_path.iterdir()))
