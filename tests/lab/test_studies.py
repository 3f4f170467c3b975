"""A few rungs of each study on real namespaces, as short as they can be; all of them: nox -s studies.

What they measure in so short a time on a busy machine is judged only where it cannot be close.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from udpbench.analysis.judge import judge
from udpbench.analysis.verdicts import evaluate
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.model.experiment import Experiment
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Result
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

SHORT = ("duration=300ms", "warmup=50ms")


def short(name: str, *points: str, sets: tuple[str, ...] = SHORT) -> Experiment:
    """Return a shipped experiment with tiny durations, once, and some of its points."""
    (experiment,) = load_experiments([name], sets)
    kept = tuple(point for point in experiment.points if not points or point.point in points)
    assert len(kept) == (len(points) or len(experiment.points))
    return replace(experiment, points=kept, repetitions=1)


def conducted(folder: Path, *experiments: Experiment) -> dict[str, dict[str, Result]]:
    """Return experiment → point → result of one run in the default lab."""
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, experiments)
    writer = RunWriter.create(folder, header)
    options = RunOptions(seed=1, lease_ns=5 * SECOND_NS)
    outcome = run(list(experiments), lab, writer, lambda _: None, options)
    assert outcome.error is None, outcome
    results: dict[str, dict[str, Result]] = {}
    for record in read_run(folder).records:
        results.setdefault(record.trial.experiment, {})[record.trial.point] = judge(record)
    return results


def not_balanced(results: dict[str, dict[str, Result]]) -> list[str]:
    """Return every trial that failed, or in whose ledger something is left over."""
    return [
        f"{result.trial.name}: {result.status}, unaccounted {result.unaccounted}, {result.findings}"
        for points in results.values()
        for result in points.values()
        if result.status == "failed" or (result.status == "done" and result.unaccounted != 0)
    ]


def answers(experiment: Experiment, results: dict[str, dict[str, Result]]) -> dict[str, str]:
    """Return expectation → answer."""
    verdicts = evaluate(experiment, list(results[experiment.name].values()))
    return {verdict.expected: verdict.answer for verdict in verdicts}


def test_rungs_of_the_million(tmp_path: Path) -> None:
    """Every ledger balances; what this machine lacks is skipped, with the reason."""
    shorter = [
        short("million/00-preparation"),
        short("million/05-same-cpu-flood", "softirq-flood", "thread-flood"),
        short("million/13-gso-and-gro", "plain", "gso-and-gro"),
    ]
    pinned = short("million/02-steadier")
    results = conducted(tmp_path, *shorter, pinned)
    assert [] == not_balanced(results)
    plain, merged = (results[shorter[2].name][point] for point in ("plain", "gso-and-gro"))
    assert (merged.delivered_pps or 0) > (plain.delivered_pps or 0)
    if os.cpu_count() == 2:
        assert {"skipped"} == {result.status for result in results[pinned.name].values()}
        assert {"skipped"} == set(answers(pinned, results).values())


def test_a_member_that_hangs_loses_more_than_one_that_exits(tmp_path: Path) -> None:
    """The hung one's flows end in its full buffer; the others go on."""
    sets = ("duration=1500ms", "warmup=50ms")
    experiment = short("million/15-member-fails", sets=sets)
    results = conducted(tmp_path, experiment)
    assert [] == not_balanced(results)
    hangs, exits = (results[experiment.name][point] for point in ("hangs", "exits"))
    assert (exits.loss_ratio or 0) < (hangs.loss_ratio or 0)


def test_rungs_of_the_loss_study(tmp_path: Path) -> None:
    """A small buffer loses of a burst what a large one holds, and pacing loses nothing."""
    sets = ("warmup=50ms", "traffic.count=20k")
    caps = [f"buffer={size},rmem_max=67108864" for size in ("64KiB", "32MiB")]
    buffers = short("loss/05-buffer", *caps, sets=sets)
    paced = short("loss/02-paced", "40k")
    results = conducted(tmp_path, buffers, paced)
    assert [] == not_balanced(results)
    lost = [results[buffers.name][cap].lost_packets or 0 for cap in caps]
    assert lost[0] > lost[1]


def test_rungs_of_the_gso_study(tmp_path: Path) -> None:
    """Fewer calls and less CPU time for each datagram, by factors that no noise reaches."""
    experiment = short("gso/01-ways-to-send", "send", "gso", "gso-gro")
    results = conducted(tmp_path, experiment)
    assert [] == not_balanced(results)
    single, gso = (results[experiment.name][point] for point in ("send", "gso"))
    assert (single.send_calls_per_packet or 0) >= 10 * (gso.send_calls_per_packet or 1)
    assert (gso.send_cpu_ns_per_packet or 0) < (single.send_cpu_ns_per_packet or 0)
