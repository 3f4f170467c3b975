"""``udpbench selftest``: tries the ledger on this machine's kernel, in a private lab.

Runs the shipped experiments that lose packets on purpose; ``analysis.stage_proofs`` says what they
prove. The run's folder is temporary: what is kept is the proof.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from udpbench.analysis.stage_proofs import selftest_of
from udpbench.control.host_use import Surroundings
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.errors import InputError, Interrupted, Problem
from udpbench.model import Experiment, Lab, Progress, SelfTest, Trial
from udpbench.records import RunWriter, new_header, read_run

NAMES = ("drops/one-by-one", "drops/backlog", "drops/every-stage")
POINTS = {"backlog": ("alone",), "every-stage": ("ipv6",)}
"""Of one-by-one all; over IPv6, whose counters are others, all stages in one trial."""
SETS = ("explain=true", "traffic.count=200", "traffic.rate=1kpps")
"""Fewer than the 256 packets that a veth's ring holds, also in one burst after a stall."""
DISTINCT_PACKETS = 101
"""Lost at the first of several stages of one trial, and one more at each of the others."""


def private_lab(lab: Lab) -> Lab:
    """Return the private lab in which the kernel of a lab's hosts is tried.

    InputError if a host has a kernel of its own, which only that host can try.
    """
    remote = [host.name for host in lab.hosts if host.connect.by == "ssh"]
    if remote:
        what = f"another machine, whose kernel is tried there: {', '.join(dict.fromkeys(remote))}"
        step = "as root there: udpbench selftest"
        raise InputError([Problem(what, "--lab", lab.name, "hosts of this machine", step)])
    return lab if lab.built_in and not lab.bridged else load_lab("local")


def losing_experiments() -> list[Experiment]:
    """Return the experiments to run, each loss of a trial a number of its own."""
    return [
        replace(experiment, points=tuple(_distinct(t) for t in _chosen(experiment)))
        for experiment in load_experiments(NAMES, SETS)
    ]


def _chosen(experiment: Experiment) -> Sequence[Trial]:
    points = POINTS.get(experiment.name)
    return [t for t in experiment.points if points is None or t.point in points]


def _distinct(trial: Trial) -> Trial:
    if len(trial.losses) == 1:
        return trial
    numbered = enumerate(trial.losses, start=DISTINCT_PACKETS)
    return replace(trial, losses={stage: packets for packets, stage in numbered})


def try_ledger(
    lab: Lab, tell: Callable[[Progress], None], around: Surroundings | None = None
) -> SelfTest:
    """Return what a lab's kernel counts of packets lost on purpose.

    Raises whatever ended the run early, RecordError if nothing was tried.
    """
    experiments = losing_experiments()
    header = new_header(experiments, lab, ("udpbench", "selftest"), SETS, seed=0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="udpbench-selftest-")))
        writer = RunWriter.create(folder, header)
        outcome = run(experiments, lab, writer, tell, RunOptions(header.seed), around)
        if outcome.restore_errors:
            raise outcome.restore_errors[0]
        if outcome.error is not None:
            raise outcome.error
        if outcome.interrupted:
            raise Interrupted("interrupted; hosts were restored, and nothing is proven")
        records = read_run(folder).records
    return selftest_of(records, header.started_at, header.udpbench)
