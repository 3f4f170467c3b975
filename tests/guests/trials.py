"""Run a short trial of one point of every shipped experiment, and of each way, at a low rate.

``trials.py [--lab LAB]``, as root, in the built-in lab; smoke and the ways alone in a named lab. Prints what became of
each trial, and exits with 1 if one failed or has a packet without an entry in the ledger.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import patient  # noqa: F401 - longer deadlines, also of agents on other hosts

from udpbench.analysis.judge import judge
from udpbench.control.agents import real
from udpbench.control.deployment.deployer import Deployer
from udpbench.control.lab_lock import Surroundings
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.definition.shipped import shipped_names
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.lab import Lab
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter
from udpbench.units import Rate

EVERY_SETTING = Path(__file__).parents[1] / "lab/every_setting.yaml"
LOW = Rate(1000)
COUNT, BURST = 300, 1000
"""Packets of a trial, where it has no number of its own, and at most."""
WAYS = {
    "ways/matrix": (
        *("send to recv", "sendmmsg to recvmmsg", "gso to gro", "zerocopy to recv"),
        *("io_uring to io_uring", "af_xdp to af_xdp"),
    ),
    "ways/waiting": tuple(
        f"{wait},rate=1kpps" for wait in ("block", "epoll", "spin", "nap", "busy-poll", "auto")
    ),
}
"""Experiment → the points that together have each way to send, to receive and to wait."""
NO_TABLES = "this kernel has no table"
"""What a kernel that is a program may lack: iptables of either variant (7.2)."""
RECEIVE = ("napi", "rps", "inline")


def slow(trial: Trial) -> Trial:
    """Return a trial for a host some ten times slower than any on which one measures."""
    traffic = trial.traffic
    if traffic.count_packets is None:
        traffic = replace(traffic, rate=LOW, count_packets=COUNT)
    else:
        traffic = replace(traffic, count_packets=min(traffic.count_packets, BURST))
    if traffic.protocol == "tcp":
        traffic = replace(traffic, rate=None, count_packets=None)
    send = replace(trial.send, pace="sleep", bucket_ns=10**9)
    return replace(trial, traffic=traffic, send=send, search=None, warmup_ns=0, duration_ns=10**9)


def of_one_point(experiment: Experiment, trial: Trial, name: str) -> Experiment:
    """Return an experiment that asks nothing but whether one trial runs."""
    point = replace(slow(trial), experiment=name)
    return replace(
        experiment, name=name, points=(point,), repetitions=1, expect=(), compare=(), tune=None
    )


def smoke(lab: Lab) -> Iterator[Experiment]:
    """Yield the smoke test, in a built-in lab with each way in which its link receives."""
    for way in RECEIVE if lab.built_in else ("by a card",):
        sets = (f"settings.receiver.link.receive={way}",) if lab.built_in else ()
        (experiment,) = load_experiments(["smoke"], sets)
        yield of_one_point(experiment, experiment.points[0], f"smoke {way}")


def ways() -> Iterator[Experiment]:
    """Yield each way to send, to receive and to wait."""
    for name, points in WAYS.items():
        (experiment,) = load_experiments([name])
        for trial in experiment.points:
            if trial.point in points:
                yield of_one_point(experiment, trial, f"{name}: {trial.point}")


def one_of_each(skipped: Iterable[str], number: int) -> Iterator[Experiment]:
    """Yield the point of this number, from 0, of each shipped experiment that was skipped so far."""
    for name in skipped:
        (experiment,) = load_experiments([name])
        if number < len(experiment.points):
            yield of_one_point(experiment, experiment.points[number], name)


def say(progress: Progress) -> None:
    """Print which trial runs, since each takes a minute in a guest."""
    if progress.event == "phase" and progress.trial is not None:
        print(progress.trial.experiment, progress.phase, flush=True)


def measure(experiments: Sequence[Experiment], lab: Lab) -> tuple[TrialRecord, ...]:
    """Run experiments and return their records; what ends the run ends this program."""
    header = new_header(experiments, lab, ("trials",), (), seed=0)
    around = Surroundings(real(Deployer(print)))
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter.create(Path(folder) / "run", header)
        outcome = run(experiments, lab, writer, say, RunOptions(header.seed), around)
        for error in (*outcome.restore_errors, outcome.error):
            if error is not None:
                raise SystemExit(str(error))
        return read_run(Path(folder) / "run").records


def complaint(record: TrialRecord) -> str | None:
    """Return what is wrong with a trial; None if it ran and its ledger closes, or was skipped."""
    error = record.error.message if record.error is not None else ""
    if record.status != "done" and NO_TABLES in error:
        return None
    if record.status != "done":
        return None if record.status == "skipped" else f"{record.status}: {error}"
    result = judge(record)
    if result.unaccounted != 0 and record.trial.traffic.protocol == "udp":
        return f"unaccounted {result.unaccounted}"
    return None


def show(record: TrialRecord) -> bool:
    """Print a line about a trial, and return whether nothing is wrong with it."""
    wrong = complaint(record)
    error = record.error.message if record.error is not None else ""
    result = judge(record)
    invalid = [finding.what for finding in result.findings if finding.severity == "invalid"]
    state = f"FAILED: {wrong}" if wrong else f"skipped: {error}" if error else "ran"
    print(f"{record.trial.experiment}: {state}", *(f"; invalid: {what}" for what in invalid))
    sys.stdout.flush()
    return wrong is None


def main(lab: Lab) -> int:
    """Run everything, and say whether all of it ran."""
    first = [*smoke(lab), *ways()]
    if lab.built_in:
        (every,) = load_experiments([str(EVERY_SETTING)])
        first.append(of_one_point(every, every.points[0], "every setting"))
    good = [show(record) for record in measure(first, lab)]
    waiting, number = shipped_names() if lab.built_in else (), 0
    while chosen := list(one_of_each(waiting, number)):
        records = measure(chosen, lab)
        good += map(show, records)
        waiting = [record.trial.experiment for record in records if record.status == "skipped"]
        number += 1
    print(f"{sum(good)} of {len(good)} trials ran or were skipped with a reason")
    return 0 if all(good) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", default="local")
    sys.exit(main(load_lab(parser.parse_args().lab)))
