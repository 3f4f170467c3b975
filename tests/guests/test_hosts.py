"""What only whole hosts have: two nodes with SMT, and programs of others beside the traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import NEEDED, by_queue, measure, measured, on, records, start

from udpbench.analysis.judge import judge
from udpbench.model.record import TrialRecord

pytestmark = NEEDED

IRQ_CPUS = (6, 7)
"""One core on the card's node, so that two more cores are left there."""
CPUS_PER_NODE, CPUS_PER_CORE = 6, 2
RUNG = """
question: Does this rung of the ladder run on hosts with real drivers?
extends: million/{name}.yaml
traffic: {{rate: 2kpps, flows: {{{flows}}}}}
send: {{pace: sleep}}
duration: 1s
warmup: 0s
repetitions: 1
settings: {{receiver: {{irq: {{cpus: 6-7}}}}}}
expect: [unaccounted == 0]
"""
"""Paced, so that guests keep up. What is faster cannot be told at such a load, and is not asked."""
FEWER_FLOWS = {"10-reuseport-aligned": "from: 65400-65403"}
"""Each of 64 flows is probed by itself, which takes a guest five minutes."""


def node_of(cpu: int) -> int:
    """Return the node of a CPU."""
    return cpu // CPUS_PER_NODE


def readers(record: TrialRecord) -> list[int]:
    """Return the CPU of each receiving worker."""
    return [s.cpu for s in record.workers if s.role == "receiver" and s.cpu is not None]


def busy_queues(record: TrialRecord) -> list[int]:
    """Return the RX queues that carried a share of the traffic."""
    packets = by_queue(measured(record))
    return [queue for queue, number in packets.items() if number > sum(packets.values()) / 8]


def relation(record: TrialRecord) -> str:
    """Return where the reader ran, as seen from the CPU of the queue that carried the traffic."""
    (queue,), (read,) = busy_queues(record), readers(record)
    polled = IRQ_CPUS[queue % len(IRQ_CPUS)]
    if read == polled:
        return "same-cpu"
    if read // CPUS_PER_CORE == polled // CPUS_PER_CORE:
        return "smt-sibling"
    return "same-node" if node_of(read) == node_of(polled) else "other-node"


def workers(record: TrialRecord) -> str:
    """Return how many workers there were, each with a CPU of its own."""
    return {1: "one", 2: "two", 4: "four"}[len(set(readers(record)))]


def queues(record: TrialRecord) -> str:
    """Return how many queues carried the traffic."""
    return {1: "one", 2: "two"}[len(busy_queues(record))]


def node(record: TrialRecord) -> str:
    """Return the node of four readers, as seen from four queues."""
    assert (4, 4) == (len(busy_queues(record)), len(set(readers(record))))
    (nodes,) = {node_of(cpu) for cpu in readers(record)}
    return "same-node" if nodes == node_of(IRQ_CPUS[0]) else "other-node"


RUNGS = {
    "04-placement": (relation, {"same-cpu", "smt-sibling", "same-node", "other-node"}),
    "06-two-addresses": (queues, {"one", "two"}),
    "08-threads-one-socket": (workers, {"one", "two", "four"}),
    "09-reuseport": (workers, {"one", "two", "four"}),
    "10-reuseport-aligned": (node, {"same-node", "other-node"}),
}
"""Experiment → what tells its points apart in a record, and the points."""


@pytest.mark.parametrize("name", RUNGS)
def test_rungs_of_the_million_run_on_two_nodes(name: str, tmp_path: Path) -> None:
    """Each point is what its name says, and no packet is without an entry."""
    shown, points = RUNGS[name]
    rung = RUNG.format(name=name, flows=FEWER_FLOWS.get(name, ""))
    done = records(tmp_path, start(tmp_path, "igb", rung))
    assert dict.fromkeys(points, ("done", None)) == {
        record.trial.point: (record.status, record.error) for record in done
    }
    assert {point: point for point in points} == {r.trial.point: shown(r) for r in done}
    assert dict.fromkeys(points, 0) == {r.trial.point: judge(r).unaccounted for r in done}


OTHERS = """
import socket, time
full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
full.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(b"", ("127.0.0.1", 9))
    sender.sendto(b"", ("127.0.0.1", 10))
    sender.sendto(bytes(1000), full.getsockname())
    time.sleep(0.02)
"""
RULES = "add table inet others; add chain inet others in { type filter hook input priority 0; }; "
RULES += "add rule inet others in udp dport 10 drop"


def test_others_packets_at_several_stages_make_no_trial_invalid(tmp_path: Path) -> None:
    """To a closed port, to a full socket of another program, and into a firewall's rule."""
    on("right", f"nft '{RULES}'; echo '{OTHERS}' > /tmp/others.py")
    on("right", "python3 /tmp/others.py </dev/null >/dev/null 2>&1 & echo $! > /tmp/others.pid")
    try:
        result = judge(measure(tmp_path, "igb", count=500))
    finally:
        on("right", "kill $(cat /tmp/others.pid); nft delete table inet others")
    assert result.ledger is not None
    counted = {entry.stage for entry in result.ledger.entries if entry.others_packets}
    assert (True, 0, 500) == (result.valid, result.unaccounted, result.received_packets)
    assert {"udp_no_port", "udp_rcvbuf", "rx_netfilter"} == counted
