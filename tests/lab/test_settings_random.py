"""Whatever is applied in whatever order, and whatever fails under way, the host is as it was."""

from __future__ import annotations

import os
import shutil

import pytest
from sampled import sampled
from settings_fixture import Inside, wire

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]
DEADLINE_S = 120.0


@pytest.mark.parametrize(
    ("seed", "rounds"), sampled([(1, 20), (1, 50), (2, 50), (3, 50), (4, 50)], [(1, 20)])
)
def test_random_settings_with_random_failures_leave_no_trace(seed: int, rounds: int) -> None:
    """Round by round on a host that has rules, CPUs of queues, addresses and routes of its own."""
    missing = [name for name in ("ethtool", "iptables", "nft") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    sender, receiver = Inside(), Inside()
    try:
        wire(sender, receiver)
        receiver.shell(
            "iptables -A INPUT -p icmp -j ACCEPT && ip link set receive0 up"
            " && ip address add 10.9.9.9/24 dev receive0"
            " && ip -6 address add fd09::9/64 dev receive0 nodad"
            " && ip route add 10.66.0.0/16 via 10.9.9.1"
            " && echo 1 > /sys/class/net/receive0/queues/rx-3/rps_cpus"
            " && echo 64 > /sys/class/net/receive0/queues/rx-2/rps_flow_cnt"
            " && echo 2 > /sys/class/net/receive0/queues/tx-2/xps_cpus"
        )
        receiver.call("settled", interface="receive0")
        assert [] == receiver.call("random", deadline_s=DEADLINE_S, seed=seed, rounds=rounds)
    finally:
        receiver.close()
        sender.close()
