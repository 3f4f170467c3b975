"""The ledger of real losses: each on its own line, in the number that was lost, and nothing over.

Runs the shipped experiments of drops/ that lose a known number of packets; a quirk of the kernel
that a stage relies on has a test of its own in test_ledger_quirks.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from udpbench.analysis.expect import evaluate
from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.model import TrialRecord
from udpbench.records import RunHeader, RunWriter, now_utc, read_run

pytestmark = pytest.mark.lab

EXACT = (
    "drops/one-by-one",
    "drops/in-pairs",
    "drops/every-stage",
    "drops/backlog",
    "drops/firewalled",
)


def records(folder: Path, *names: str, seed: int = 1) -> tuple[TrialRecord, ...]:
    """Run experiments in the built-in lab and return what was recorded."""
    experiments = load_experiments(list(names), ())
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), seed, lab.name, lab.text, tuple(experiments))
    writer = RunWriter.create(folder, header)
    outcome = run(experiments, lab, writer, lambda _: None, RunOptions(seed=seed))
    assert (0, None) == (outcome.exit_code, outcome.error)
    return read_run(folder).records


@pytest.mark.parametrize("name", EXACT)
def test_every_loss_lands_on_its_own_line(name: str, tmp_path: Path) -> None:
    """Each expectation of the file is true: the stages' numbers, and that nothing remains."""
    found = records(tmp_path, name)
    results = [judge(record) for record in found]
    assert [] == [str(f) for one in results for f in one.findings if f.severity == "invalid"]
    (experiment,) = load_experiments([name], ())
    verdicts = evaluate(experiment, results)
    assert [] == [f"{one.expected}: {one.measured}" for one in verdicts if one.answer != "yes"]
    assert {0} == {one.unaccounted for one in results}
    disagree = [f for one in results for f in one.findings if f.what == "counters disagree"]
    assert [] == [str(finding) for finding in disagree]
