"""The experiments of path/ that expect numbers, each in the labs for which it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from udpbench.analysis.judge import judge
from udpbench.analysis.verdicts import evaluate
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.apart,
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


@pytest.mark.parametrize(
    ("name", "lab"),
    [
        ("path/rules-in-forward", "router"),
        ("path/tunnel-mtu", "vxlan"),
        ("path/tunnel-mtu", "wireguard"),
        ("path/two-routers", "two-routers"),
        ("path/vxlan", "vxlan"),
        ("path/wireguard", "wireguard"),
    ],
)
def test_an_experiment_of_the_path_holds_in_its_lab(tmp_path: Path, name: str, lab: str) -> None:
    """Each expectation is true, of every point."""
    (experiment,) = load_experiments([name], ())
    header = RunHeader("test", now_utc(), (), 1, lab, load_lab(lab).text, (experiment,))
    writer = RunWriter.create(tmp_path / "run", header)
    outcome = run([experiment], load_lab(lab), writer, lambda _: None, RunOptions(seed=1))
    assert (0, None) == (outcome.exit_code, outcome.error)
    results = [judge(record) for record in read_run(tmp_path / "run").records]
    assert {point.point for point in experiment.points} == {each.trial.point for each in results}
    answers = {verdict.expected: verdict.answer for verdict in evaluate(experiment, results)}
    assert dict.fromkeys(answers, "yes") == answers
