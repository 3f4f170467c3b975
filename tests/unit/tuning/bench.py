"""A bench of paper: what a point delivers and what limits it is a function of its trial."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from udpbench.definition.load import load_experiment_data
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Bottleneck, Result
from udpbench.tuning.derived_points import WITHIN_NS, asked, derivation, tuned
from udpbench.tuning.tuner import Tuning, tuning_of

Model = Callable[[Trial], tuple[float, tuple[Bottleneck, ...]]]
"""Trial → packets per second, and what limits it."""
WORDS = {
    "port": "4321",
    "buffer": "8MiB",
    "large_buffer": "32MiB",
    "backlog": "4096",
    "large_backlog": "32768",
    "udp_pages": "65536",
    "udp_mem": "65536 65536 131072",
    "ring": "4096",
    "late": "receive",
    "cpus": "2",
    "sender_cpus": "2",
    "other_cpus": "1",
    "all_cpus": "0,1",
    "node_port": "4321",
    "rules_port": "4321",
    "untracked_port": "4321",
    "node_backlog": "4096",
    "large_node_backlog": "32768",
    "node_queue": "2048",
    "large_node_queue": "16384",
    "node_ring": "4096",
    "node_cpus": "0,1",
    "irq_cpus": "0,1",
    "node_table": "524288",
}
PROGRAM_WORDS = {
    "default": "16777216",
    "large_default": "67108864",
    "limit": "8388608",
    "large_limit": "33554432",
}
"""For a program of the user's, which leaves the size of its buffer to the host."""


def limit(name: str, **words: str) -> Bottleneck:
    """Return a bottleneck of some name; words are those of ``WORDS`` unless any is given."""
    stage = "" if name == "nothing" else "udp_rcvbuf"
    return Bottleneck(
        name, "certain", stage, 100, f"it is {name}", f"mend {name}", words=words or WORDS
    )


NOTHING = (limit("nothing"),)
MOST_PPS = 9_900
"""Some of a burst that is read more slowly is lost."""


def to_tune(
    metric: str | None = None,
    within_ns: int = WITHIN_NS,
    only: tuple[str, ...] = (),
    never: tuple[str, ...] = (),
    **keys: Any,
) -> Experiment:
    """Return an experiment that is to be tuned; keys as in YAML."""
    traffic = {"rate": "10kpps", "flows": {"from": "65400-65401"}}
    plain = {"question": "What helps?", "warmup": "0s", "traffic": traffic, **keys}
    experiments = [load_experiment_data(plain, "one")]
    tune = asked(experiments, None, metric, within_ns, only, never)
    (experiment,) = tuned(experiments, tune)
    return experiment


def play(
    experiment: Experiment, model: Model, refused: str = "", scatter: float = 0.01
) -> tuple[Tuning, list[Result]]:
    """Return a tune to its end, and the results in their order.

    A trial whose name has ``refused`` in it fails.
    """
    chance, derive = random.Random(7), derivation(experiment)
    results: list[Result] = []
    while block := tuning_of(experiment, results, derive).block:
        for trial in block:
            pps, limits = model(trial)
            rate = pps * (1 + chance.uniform(-scatter, scatter))
            numbers = {"delivered_pps": rate}
            if trial.traffic.is_burst:
                lost = max(1 - rate / MOST_PPS, 0.0)
                numbers |= {"loss_ratio": lost, "sent_packets": 1000, "lost_packets": 1000 * lost}
            if refused and refused in trial.name:
                results.append(Result(trial, "failed", False, (), took_ns=SECOND_NS))
            else:
                results.append(
                    Result(
                        trial,
                        "done",
                        True,
                        (),
                        numbers=numbers,
                        diagnosis=limits,
                        took_ns=2 * SECOND_NS,
                    )
                )
    return tuning_of(experiment, results, derive), results
