"""``udpbench selftest``: tests the ledger on a lab's kernels, each in a private lab there.

Runs the shipped experiments that lose packets on purpose; ``analysis.stage_proofs`` says what they
prove. The run folder is temporary: only the proof is kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from udpbench.analysis.ledger.selftest import is_believable, selftest_of
from udpbench.control.agents import elsewhere
from udpbench.control.lab_lock import Surroundings
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.definition.losses import possible_losses
from udpbench.errors import Interrupted, UdpbenchError
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.lab import Lab
from udpbench.model.record import SelfTest, TrialRecord
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import new_header, now_utc
from udpbench.records.writer import RunWriter

if TYPE_CHECKING:
    from udpbench.control.deployment.deployer import Deployer

NAMES = ("drops/one-by-one", "drops/backlog", "drops/every-stage")
POINTS = {"backlog": ("alone",), "every-stage": ("ipv6",)}
"""One-by-one runs all stages separately; IPv6, which has other counters, all in one trial."""
SETS = ("explain=true", "traffic.count=200", "traffic.rate=1kpps")
"""Fewer than the 256 packets that a veth's ring holds, even in one burst after a stall."""
THIS_MACHINE = "this machine"
AT_NODES: dict[str, dict[str, Any]] = {
    "router": {"variants": {"ipv4": {}, "ipv6": {"traffic.family": 6}}},
    "bridge": {},
    "vxlan": {},
    "wireguard": {},
}
"""Built-in lab with a node in the middle → what differs in its experiment."""
PROGRAMS = {"wireguard": ("wireguard-go",)}
"""Built-in lab → programs without which it is not tried, unless the kernel has it."""
KERNELS_OWN = Path("/sys/module")
TO_NODES = {
    "question": "Does each stage of a node count what was lost there?",
    "traffic": {"size": "32B", "rate": "1kpps", "count": 200},
    "send": {"bucket": "200ms"},
    "duration": "5s",
    "warmup": "0s",
    "repetitions": 1,
    "explain": True,
}
DISTINCT_PACKETS = 101
"""Lost at the first of several stages of a trial; each later stage loses one more."""


def private_labs(
    lab: Lab, deployer: Deployer | None = None
) -> Iterator[tuple[str, Lab, Surroundings | None]]:
    """Yield the private labs in which the kernels of a lab's hosts are tested, each once.

    Each comes with its host's name; this machine is called ``this machine``, and has no
    surroundings to share: an ordinary user's namespaces end with each run.
    """
    if any(host.connect.by != "ssh" for host in lab.hosts):
        own = lab if lab.built_in and lab.joint is None else load_lab("local")
        yield THIS_MACHINE, own, None
    remote = {host.connect.ssh or host.name: host for host in lab.hosts if host.connect.by == "ssh"}
    for destination, host in remote.items():
        connect = replace(host.connect, ssh=destination, name=None)
        yield host.name, load_lab("local"), Surroundings(elsewhere(connect, deployer))


def try_hosts(
    lab: Lab, tell: Callable[[Progress], None], deployer: Deployer | None = None
) -> Iterator[tuple[str, SelfTest | UdpbenchError]]:
    """Yield what is proven on each host, or the error that prevented it: no host costs another's.

    Raises Interrupted.
    """
    for host, private, around in private_labs(lab, deployer):
        try:
            yield host, try_ledger(private, tell, around)
        except Interrupted:
            raise
        except UdpbenchError as error:
            yield host, error


def losing_experiments() -> list[Experiment]:
    """Return the experiments to run; within a trial, each loss has a different number."""
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
    """Return which packets lost on purpose a lab's kernel counts.

    A failed stage is tested once more: a machine rarely stalls twice, while a kernel counts the
    same each time.

    Raises whatever ended the run early, CannotTell if nothing was tried.
    """
    records = _tried(losing_experiments(), lab, tell, around)
    for name in node_labs(here=around is None):
        own = load_lab(name)
        records += _tried([losing_at_nodes(own)], own, tell, around)
    return selftest_of(records, now_utc(), version("udpbench"))


def node_labs(here: bool) -> list[str]:
    """Return the built-in labs with nodes that can be tried; ``here``: on this machine.

    Another host is not known to have the programs that one takes.
    """
    needs = {name: PROGRAMS.get(name, ()) for name in AT_NODES}
    return [
        name
        for name, programs in needs.items()
        if not programs or (here and ((KERNELS_OWN / name).exists() or all(map(which, programs))))
    ]


def losing_at_nodes(lab: Lab) -> Experiment:
    """Return the experiment that loses packets at the node of a lab, all stages in one trial."""
    losses = dict.fromkeys(possible_losses(lab), DISTINCT_PACKETS)
    data = {**TO_NODES, **AT_NODES[lab.name], "losses": losses}
    experiment = load_experiment_data(data, f"at-a-{lab.name}")
    return replace(experiment, points=tuple(map(_distinct, experiment.points)))


def _tried(
    experiments: Sequence[Experiment],
    lab: Lab,
    tell: Callable[[Progress], None],
    around: Surroundings | None,
) -> tuple[TrialRecord, ...]:
    records = _run(experiments, lab, tell, around)
    doubtful = {_point(record.trial) for record in records if not _holds(record)}
    if doubtful:
        records = tuple(record for record in records if _point(record.trial) not in doubtful)
        records += _run(_restricted(experiments, doubtful), lab, tell, around)
    return records


def _point(trial: Trial) -> tuple[str, str]:
    return trial.experiment, trial.point


def _holds(record: TrialRecord) -> bool:
    """Return whether a trial that ran counted every packet; one that was skipped stays so."""
    if record.status != "done":
        return record.status == "skipped"
    return is_believable(selftest_of((record,), "", ""))


def _restricted(
    experiments: Sequence[Experiment], points: Collection[tuple[str, str]]
) -> list[Experiment]:
    chosen = (
        replace(experiment, points=tuple(t for t in experiment.points if _point(t) in points))
        for experiment in experiments
    )
    return [experiment for experiment in chosen if experiment.points]


def _run(
    experiments: Sequence[Experiment],
    lab: Lab,
    tell: Callable[[Progress], None],
    around: Surroundings | None,
) -> tuple[TrialRecord, ...]:
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
        return read_run(folder).records
