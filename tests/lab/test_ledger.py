"""The ledger of real losses: each on its own line, in the number that was lost, and nothing over.

Runs the shipped experiments of drops/ that lose a known number of packets; a quirk of the kernel
that a stage relies on has a test of its own in test_ledger_quirks.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.selftest import is_believable
from udpbench.analysis.verdicts import evaluate
from udpbench.commands import selftest
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.model.experiment import Experiment
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = pytest.mark.lab

EXACT = (
    "drops/one-by-one",
    "drops/in-pairs",
    "drops/every-stage",
    "drops/backlog",
    "drops/firewalled",
)
SAMPLE = {
    "drops/every-stage": ("sendmmsg", "ipv6-gso-and-gro"),
    "drops/in-pairs": ("rx_xdp-and-rx_tc",),
    "drops/backlog": ("with-the-device",),
}
"""Experiment → points that together lose packets at every stage, over both IP versions."""


def records(folder: Path, experiments: list[Experiment], seed: int = 1) -> tuple[TrialRecord, ...]:
    """Run experiments in the built-in lab and return what was recorded."""
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), seed, lab.name, lab.text, tuple(experiments))
    writer = RunWriter.create(folder, header)
    outcome = run(experiments, lab, writer, lambda _: None, RunOptions(seed=seed))
    assert (0, None) == (outcome.exit_code, outcome.error)
    return read_run(folder).records


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
def test_every_loss_lands_on_its_own_line(name: str, tmp_path: Path) -> None:
    """Each expectation of the file is true: the stages' numbers, and that nothing remains."""
    assert_exact(tmp_path, load_experiments([name], ()))


def test_a_loss_at_every_stage_lands_on_its_own_line(tmp_path: Path) -> None:
    """Every stage at which this lab can lose packets, in four trials of one run."""
    experiments = [
        replace(
            experiment,
            points=tuple(point for point in experiment.points if point.point in SAMPLE[name]),
            expect=tuple(
                expectation
                for expectation in experiment.expect
                if expectation.left.point in (None, *SAMPLE[name])
            ),
        )
        for name in SAMPLE
        for experiment in load_experiments([name], ())
    ]
    assert_exact(tmp_path, experiments)


def assert_exact(folder: Path, experiments: list[Experiment]) -> None:
    """Run experiments; assert that each expectation is true and that no packet is unexplained."""
    results = [judge(record) for record in records(folder, experiments)]
    assert [] == [str(f) for result in results for f in result.findings if f.severity == "invalid"]
    for experiment in experiments:
        own = [result for result in results if result.trial.experiment == experiment.name]
        verdicts = evaluate(experiment, own)
        assert [] == [
            f"{verdict.expected}: {verdict.measured}"
            for verdict in verdicts
            if verdict.answer != "yes"
        ]
    assert {0} == {result.unaccounted for result in results}
    disagree = [f for result in results for f in result.findings if f.what == "counters disagree"]
    assert [] == [str(finding) for finding in disagree]


def test_the_ledger_of_this_kernel_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a private lab, with the counters that moved; one experiment of those that try it."""
    monkeypatch.setattr(selftest, "NAMES", ("drops/backlog",))
    monkeypatch.setattr(selftest, "AT_NODES", {})
    proven = selftest.try_ledger(load_lab("local"), lambda _: None)
    (proof,) = (proof for proof in proven.proofs if proof.packets is not None)
    assert (("rx_backlog", 124, 124, 0), True) == (
        (proof.stage, proof.packets, proof.counted, proof.unaccounted),
        is_believable(proven),
    )
    assert {"receiver link.receive0.rx_dropped"} <= set(proof.counters)


@pytest.mark.long
def test_every_stage_of_this_kernel_is_tried() -> None:
    """All of them count every packet that was lost there."""
    proven = selftest.try_ledger(load_lab("local"), lambda _: None)
    assert [] == [proof for proof in proven.proofs if proof.packets is not None and not proof.holds]
    of_one_way_alone = {"xsk_ring", "xsk_fill", "app_log", "app_unanswered", "answer_lost"}
    assert {"unsent", "link", "rx_ring", *of_one_way_alone} == {
        proof.stage for proof in proven.proofs if proof.packets is None
    }
