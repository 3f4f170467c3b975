"""Comparisons in the built-in lab as a user makes them: the run, the verb and their exit codes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from test_command_line import await_line, done, result, start

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LIMIT_S = 600.0
"""A comparison is a dozen trials or more."""
BUFFERS = """\
question: Does a small buffer lose more of a burst than a large one?
traffic: {size: 64B, count: 200}
receive: {work: 20us, batch: 1}
variants:
  large: {receive.buffer: 200KiB}
  small: {receive.buffer: 4KiB}
compare: {a: large, b: small, metric: loss_ratio, blocks: 6}
warmup: 0s
"""
"""In packets, which no other load on this machine moves from one buffer to the other."""


def experiment(folder: Path) -> str:
    """Write the experiment, and return its name."""
    (folder / "buffers.yaml").write_text(BUFFERS)
    return "buffers.yaml"


def compared(folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Return exit code and comparisons of ``udpbench compare``."""
    code, out, err = done(folder, "compare", *words, "--json")
    assert err == ""
    return code, json.loads(out)["comparisons"]


def test_what_a_run_compares_ends_it_and_is_reported_again(tmp_path: Path) -> None:
    """The small buffer loses more in every block, and seen from it the large one less."""
    words = ("run", experiment(tmp_path), "--out", "run", "--no-report", "--quiet")
    code, out, err = done(tmp_path, *words)
    assert (1, "") == (code, err), out
    assert "small against large" in out
    assert "more by" in out
    code, (more,) = compared(tmp_path, "run")
    assert (1, True, "more") == (code, more["worse"], more["verdict"].split()[0])
    assert more["blocks"] >= 6
    assert 0 < more["low"] <= more["difference"] <= more["high"] <= 1
    back = ("--a", "small", "--b", "large", "--metric", "loss_ratio")
    code, (less,) = compared(tmp_path, "run", *back)
    assert (0, False, "less") == (code, less["worse"], less["verdict"].split()[0])
    assert more["difference"] == pytest.approx(-less["difference"])


@pytest.mark.long
def test_a_run_is_compared_with_another(tmp_path: Path) -> None:
    """At its end, and by the verb; three of a side have the scatter between them."""
    name = experiment(tmp_path)
    quiet = ("--no-report", "--quiet")
    for n in range(1, 4):
        assert done(tmp_path, "run", name, "--out", f"base-{n}", *quiet)[0] in (1, 5)
    code, out, err = done(tmp_path, "run", name, "--out", "run", "--against", "base-1", *quiet)
    assert (True, "") == (code in (1, 5), err), out
    assert "run against base-1" in out
    code, points = compared(tmp_path, "base-1", "run")
    assert code in (0, 1, 5)
    assert ["base-1::large", "base-1::small"] == [point["a"] for point in points]
    assert not points[0]["worse"]
    base = [word for n in range(1, 4) for word in ("--against", f"base-{n}")]
    _, (large, small) = compared(tmp_path, "run", *base)
    assert (True, True) == (large["between_runs"], small["between_runs"])
    assert not large["worse"]


@pytest.mark.long
def test_a_point_against_itself_says_what_can_be_told(tmp_path: Path) -> None:
    """Whatever the verdict is here, the resolution follows from the scatter of its blocks."""
    words = ("--same", "all", "--set", "duration=200ms", "--set", "warmup=0s")
    code, out, err = done(tmp_path, "run", "smoke", *words, "--out", "run", "--no-report")
    assert (True, "") == (code in (0, 1, 5), err), out
    assert "all again against all" in out
    _, (same,) = compared(tmp_path, "run")
    if same["blocks"] >= 6:
        assert "this lab tells" in out
        assert same["resolution"]["15"] < same["resolution"]["7"]


@pytest.mark.long
def test_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    """Blocks that are stored count, and the verdict is of all."""
    name = experiment(tmp_path)
    process = start(tmp_path, "run", name, "--out", "run", "--no-report")
    try:
        assert process.stdout is not None
        line = await_line(process.stdout, "[4/12]")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert 130 == process.returncode, line + out + err
    stored = len(result(tmp_path, "run")["trials"])
    assert 0 < stored < 12
    code, out, _ = done(tmp_path, "run", "--resume", "run", "--no-report", "--quiet")
    assert code in (1, 5), out
    again, (comparison,) = compared(tmp_path, "run")
    assert code == again
    # Whoever disturbs a trial here costs its block, and another one is run.
    assert min(6 + comparison["lost"], 11) == comparison["blocks"] + comparison["lost"]
