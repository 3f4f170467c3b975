"""The plugin from outside: pytest as a process of its own, with workers, in the real lab."""

from __future__ import annotations

import itertools
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from udpbench.records.reader import read_run

pytestmark = [pytest.mark.apart, pytest.mark.lab]

PLUGIN = [] if "udpbench" in entry_points(group="pytest11").names else ["-pudpbench.pytest_plugin"]
SMALL = """
question: How many datagrams of a burst does a small receive buffer lose?
traffic: {size: 32B, count: 200}
receive: {work: 20us, force_buffer: false}
variants:
  small: {receive.buffer: 4KiB}
  large: {receive.buffer: 200KiB}
warmup: 0s
repetitions: 1
expect:
  - udp_rcvbuf == 0
  - unaccounted == 0
"""
TEST = """
BRIEF = {"traffic": {"count": 100}, "warmup": "0s", "repetitions": 1}


def test_nothing_is_lost(udpbench):
    result = udpbench(BRIEF)
    assert (100, 0, 0) == (result.received_packets, result.loss_ratio, result.ledger["udp_rcvbuf"])


def test_sizes(udpbench):
    results = udpbench({**BRIEF, "sweep": {"traffic.size": ["32B", "1kB"]}})
    assert [100, 100] == [results[name].received_packets for name in ("size=32B", "size=1kB")]
"""


def test_workers_of_one_session_take_turns_in_the_lab(tmp_path: Path) -> None:
    """Gates and tests run in one lab, one after the other; the failing gate explains itself."""
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / "buffer.yaml").write_text(SMALL)
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nudpbench_files = gates/*.yaml\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-n2", "--udpbench-out", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout
    assert 1 == done.returncode, output + done.stderr
    assert "1 failed, 3 passed" in output
    assert "expected: udp_rcvbuf == 0" in output
    assert "ledger (packets of the median trial)" in output
    assert "gates/buffer.yaml::large  passed  " in output
    assert ".py:" not in output.partition("FAILURES")[2].partition("udpbench =")[0]
    runs = [read_run(file.parent) for file in (tmp_path / "runs").glob("*/run.jsonl")]
    assert 3 == len(runs)
    # A run's first record may wait for its turn; what has begun ends before the next begins.
    spans = sorted(((r.records[0].started_at, r.ending) for r in runs), key=lambda span: span[0])
    for (_, ending), (begun, _) in itertools.pairwise(spans):
        assert ending is not None
        assert ending.finished_at <= begun
