"""What only whole hosts have: two nodes with SMT, and programs of others on the same card."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import NEEDED, measure, measured, moved, on, records, start

from udpbench.analysis.judge import judge
from udpbench.model import TrialRecord

pytestmark = NEEDED

PACED = ("--set", "traffic.rate=1kpps", "--set", "duration=1s", "--set", "warmup=0s")
PINNED = ("--set", "settings.receiver.irq.cpus=4-7", "--set", "repetitions=1")
"""Each queue on one CPU of the card's node."""
RUNGS = {
    "million/04-placement": {"same-cpu", "smt-sibling", "same-node", "other-node"},
    "million/08-threads-one-socket": {"one", "two", "four"},
}
"""Experiment → its points that eight CPUs on two nodes and eight queues can express."""


@pytest.mark.parametrize("name", RUNGS)
def test_rungs_of_the_million_run_on_two_nodes(name: str, tmp_path: Path) -> None:
    """Paced, so that guests keep up: all packets arrive where the point says they are read."""
    done = records(tmp_path, start(tmp_path, "igb", names=(name, *PACED, *PINNED)))
    results = {record.trial.point: judge(record) for record in done if record.status == "done"}
    assert RUNGS[name] == set(results), [(r.trial.point, r.status, r.error) for r in done]
    # Guests may start late, and offer less then; what they sent arrived.
    lost = {p: (r.sent_packets - r.received_packets, r.unaccounted) for p, r in results.items()}
    assert dict.fromkeys(RUNGS[name], (0, 0)) == lost
    if name == "million/04-placement":
        assert {p: p for p in RUNGS[name]} == {r.trial.point: relation(r) for r in done}


def relation(record: TrialRecord) -> str:
    """Return where the reader ran, as seen from the CPU of the queue that carried the traffic."""
    phase = measured(record)
    packets = {n: moved(phase, f"ethtool.igb0.rx_queue_{n}_packets") for n in range(8)}
    polled = 4 + max(packets, key=lambda queue: packets[queue]) % 4
    (read,) = {spec.cpu for spec in record.workers if spec.role == "receiver"}
    assert read is not None
    if read // 4 != polled // 4:
        return "other-node"
    if read // 2 != polled // 2:
        return "same-node"
    return "same-cpu" if read == polled else "smt-sibling"


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
