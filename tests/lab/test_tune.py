"""A tune as a user starts it: what needs no help is left alone, a small buffer is repaired.

Both are judged by rates, for which other tests leave no CPU time; the unit tests play whole tunes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from program_forks import completed

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LIMIT_S = 300
FEW = """\
question: What helps?
traffic: {count: 200, rate: 2kpps}
send: {bucket: 200ms}
duration: 2s
warmup: 0s
"""
BURST = """\
question: What helps?
traffic: {count: 400, rate: 100kpps}
send: {bucket: 200ms}
receive: {work: 50us, buffer: 8KiB}
duration: 2s
warmup: 0s
"""


def tune(folder: Path, text: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of a tune, and what ``show --json`` says of it."""
    (folder / "x.yaml").write_text(text)
    quietly = ("tune", "x.yaml", "--out", "run", "--quiet", "--no-report", *words)
    done = completed(quietly, LIMIT_S, cwd=folder)
    shown = completed(("show", "--json", "run"), LIMIT_S, cwd=folder)
    assert done.returncode == shown.returncode, shown.stderr
    data: dict[str, Any] = json.loads(shown.stdout)
    return done.returncode, data


@pytest.mark.long
def test_what_needs_no_help_is_left_alone(tmp_path: Path) -> None:
    """After three trials, with 0."""
    code, data = tune(tmp_path, FEW)
    (experiment,) = data["experiments"]
    assert (0, ["base"], 3) == (code, experiment["points"], len(data["trials"]))
    assert experiment["tune"]["sentence"].startswith("Nothing needs help. ")


@pytest.mark.long
def test_a_buffer_too_small_for_a_burst_is_repaired(tmp_path: Path) -> None:
    """By the one step that the diagnosis names; base and recipe are measured anew."""
    code, data = tune(tmp_path, BURST, "--only", "application", "--within", "4min")
    (experiment,) = data["experiments"]
    recipe = experiment["tune"]["recipe"]
    assert (0, True) == (code, experiment["tune"]["proven"])
    assert recipe.startswith("receive:\n  buffer: ")
    lost = {point: [t["lost_packets"] for t in data["trials"] if t["point"] == point]
            for point in ("before", "after")}  # fmt: skip
    assert min(lost["before"]) > 0
    assert {0} == set(lost["after"])
