"""Relations on a host of two nodes with SMT and four queues: from its files to workers' CPUs.

Nothing between is made up: the files are read into facts, which cross the wire, and are bound.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from definition_fixture import facts as plain_facts
from definition_fixture import trial
from golden import Golden
from two_nodes import FIXTURES, TwoNodes

from udpbench.agent.host import facts
from udpbench.definition import load
from udpbench.definition.binding.bind import Landed, Unavailable, bind
from udpbench.model.host import Facts
from udpbench.protocol import decode, encode

QUEUE = "sys/class/net/eth3/queues/rx-{}/rps_cpus"
IRQ = "proc/irq/{}/{}_affinity_list"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    """Return the host, as files that a test may write; its queues are on CPUs 2, 3, 6 and 7."""
    monkeypatch.setattr(facts, "driver", lambda *_: "sfc")
    root = tmp_path / "two-nodes"
    shutil.copytree(FIXTURES / "hosts/two-nodes", root)
    return TwoNodes(root)


def known(host: TwoNodes) -> Facts:
    """Return its facts as the controller gets them, with the address that the lab would add."""
    read = facts.facts(host, "right", "eth3", {})
    crossed: Facts = decode(Facts, json.loads(json.dumps(encode(read))))
    return replace(crossed, addresses=("192.168.254.1/24",))


def cpus(host: TwoNodes, relation: str, workers: int, queues: tuple[int, ...]) -> list[int | None]:
    """Return the CPUs of the receiver's workers where these queues carry the traffic."""
    both = {"left": plain_facts("left", boot_id="another"), "right": known(host)}
    chosen = trial(
        receive={"cpus": relation, "workers": workers},
        traffic={"flows": {"from": "1-4"}},
    )
    bound = bind(chosen, load.load_lab("two-hosts"), both, Landed({"right": queues}))
    return [worker.cpu for worker in bound.workers if worker.role == "receiver"]


@pytest.mark.parametrize(
    ("relation", "workers", "queues", "expected"),
    [
        ("same-cpu", 1, (0,), [2]),
        ("same-cpu", 2, (0, 3), [2, 7]),
        ("smt-sibling", 1, (0,), [6]),
        ("smt-sibling", 2, (0, 1), [6, 7]),
        ("same-node", 1, (0,), [3]),
        ("same-node", 2, (0, 1), [7, 6]),
        ("other-node", 1, (0,), [0]),
        ("other-node", 4, (0,), [0, 1, 4, 5]),
    ],
)
def test_a_relation_follows_from_the_hosts_files(
    host: TwoNodes, relation: str, workers: int, queues: tuple[int, ...], expected: list[int]
) -> None:
    """The interrupt of the queue leads to its CPU, the topology from there to the worker's."""
    assert expected == cpus(host, relation, workers, queues)


@pytest.mark.parametrize(
    ("relation", "expected"),
    [("same-cpu", 5), ("smt-sibling", 1), ("same-node", 0), ("other-node", 2)],
)
def test_rps_takes_the_packets_to_another_cpu(host: TwoNodes, relation: str, expected: int) -> None:
    """Queue 0 interrupts CPU 2 and hands its packets to CPU 5, on the other node."""
    host.write_text("/" + QUEUE.format(0), "20")
    assert [expected] == cpus(host, relation, 1, (0,))


def test_a_queue_whose_interrupt_may_go_anywhere_is_a_reason_to_skip(
    host: TwoNodes, golden: Golden
) -> None:
    """The kernel of this host does not say where it went."""
    host.path(IRQ.format(121, "effective")).unlink()
    host.write_text("/" + IRQ.format(121, "smp"), "0-7")
    with golden.raises(Unavailable):
        cpus(host, "same-cpu", 1, (0,))


def test_a_queue_without_an_interrupt_is_a_reason_to_skip(host: TwoNodes, golden: Golden) -> None:
    """A name that says no queue leads nowhere."""
    host.write_text("/sys/kernel/irq/121/actions", "something")
    with golden.raises(Unavailable):
        cpus(host, "smt-sibling", 1, (0,))


def test_smt_switched_off_is_a_reason_to_skip(host: TwoNodes, golden: Golden) -> None:
    """Each core lists its one CPU then."""
    for cpu in range(8):
        host.write_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu}")
    with golden.raises(Unavailable):
        cpus(host, "smt-sibling", 1, (0,))
