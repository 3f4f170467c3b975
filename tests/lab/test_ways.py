"""Every way to send with every way to receive, in one run of the built-in lab: nothing is lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model import SECOND_NS, Result, TrialRecord
from udpbench.records import RunHeader, RunWriter, now_utc, read_run

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

PACKETS = 2000
BASE = {
    "question": "Is every packet accounted for?",
    "traffic": {
        "count": PACKETS,
        "rate": "20kpps",
        "size": "64B",
        "flows": {"from": "65400-65403"},
    },
    "send": {"workers": 2},
    "receive": {"workers": 2},
    "duration": "5s",
    "warmup": "0s",
    "repetitions": 1,
}

Choice = dict[str, Any]
WAYS: dict[str, dict[str, Choice]] = {
    "send": {
        "send": {"send.call": "send"},
        "sendmmsg": {"send.batch": 64},
        "gso": {"send.gso": 8},
        "gso-send": {"send.gso": "max", "send.call": "send"},
        "tail": {"send.gso": 4, "send.tail": "20B"},
        "zerocopy": {"send.zerocopy": True, "send.batch": 16},
        "fragment": {"traffic.fragment": True, "traffic.size": "4000B", "send.batch": 4},
    },
    "receive": {
        "recv": {"receive.call": "recv"},
        "recvmmsg": {"receive.batch": 32},
        "gro": {"receive.gro": True},
        "gro-recv": {"receive.gro": True, "receive.call": "recv"},
    },
    "wait": {
        wait.partition(" ")[0]: {"receive.wait": wait}
        for wait in ("block", "epoll", "spin", "nap 100us", "busy-poll 50us")
    },
    "read": {read: {"receive.read": read} for read in ("none", "copy", "header", "verify")},
    "sockets": {
        sockets: {"receive.sockets": sockets}
        for sockets in ("shared", "reuseport", "reuseport-cpu", "incoming-cpu")
    },
    "family": {"v4": {"traffic.family": 4}, "v6": {"traffic.family": 6}},
    "workers": {
        "threads": {"receive.workers_as": "threads"},
        "processes": {"receive.workers_as": "processes"},
    },
}


def pairs_of(chosen: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Return every two choices that stand together."""
    return set(itertools.combinations(sorted(chosen.items()), 2))


def all_pairs() -> Iterator[dict[str, str]]:
    """Yield combinations until every two choices of different kinds have stood together once."""
    missing = {
        tuple(sorted(((a, x), (b, y))))
        for a, b in itertools.combinations(WAYS, 2)
        for x in WAYS[a]
        for y in WAYS[b]
    }
    every = [dict(zip(WAYS, values)) for values in itertools.product(*WAYS.values())]  # noqa: B905
    while missing:
        best = max(every, key=lambda one: len(pairs_of(one) & missing))
        missing -= pairs_of(best)
        yield best


def conducted(folder: Path, *experiments: dict[str, Any]) -> tuple[TrialRecord, ...]:
    """Return the records of a run in the built-in lab."""
    loaded = tuple(
        load_experiment_data({**BASE, **keys}, f"ways{n}") for n, keys in enumerate(experiments)
    )
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, loaded)
    writer = RunWriter.create(folder, header)
    options = RunOptions(seed=1, lease_ns=5 * SECOND_NS)
    outcome = run(loaded, lab, writer, lambda _: None, options)
    assert (None, ()) == (outcome.error, outcome.restore_errors)
    return read_run(folder).records


def told(result: Result) -> dict[str, Any]:
    """Return what a result says of its packets, and why it is not to be trusted."""
    wrong = [str(finding) for finding in result.findings if finding.severity == "invalid"]
    return {
        "status": result.status,
        "sent": result.sent_packets,
        "unaccounted": result.unaccounted,
        "wrong": wrong,
    }


def test_every_pair_of_ways_accounts_for_every_packet(tmp_path: Path) -> None:
    """Whatever two ways stand together, the ledger closes: received, or lost where it says."""
    variants = {
        " ".join(chosen.values()): {
            key: value for kind, way in chosen.items() for key, value in WAYS[kind][way].items()
        }
        for chosen in all_pairs()
    }
    # The pair of the lab is made anew for each family; so it is for each once.
    families = [
        {"variants": {name: way for name, way in variants.items() if way["traffic.family"] == one}}
        for one in (4, 6)
    ]
    results = [judge(one) for one in conducted(tmp_path / "run", *families)]
    good = {"status": "done", "sent": PACKETS, "unaccounted": 0, "wrong": []}
    found = {str(result.trial.variant): told(result) for result in results}
    assert {} == {name: one for name, one in found.items() if one != good}
    assert set(variants) == set(found)
