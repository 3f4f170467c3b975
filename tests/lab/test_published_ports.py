"""Published ports: what is sent to an address of the node itself, whose rules lead it on."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_path import (
    ASLEEP,
    EACH,
    RECEIVER,
    There,
    before_the_proof,
    conducted,
    counted,
    deafen_sender,
    entries,
    inside,
    namespace_of,
    rule,
    traffic,
)

from udpbench.definition.load import load_lab
from udpbench.model.result import Progress

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

RULES = f"""
add table ip nat
add chain ip nat raw {{ type filter hook prerouting priority raw ; }}
add chain ip nat before {{ type filter hook prerouting priority mangle ; }}
add chain ip nat pre {{ type nat hook prerouting priority dstnat ; }}
add chain ip nat docker
add chain ip nat behind {{ type filter hook forward priority 0 ; }}
add rule ip nat pre fib daddr type local counter jump docker
add rule ip nat docker udp dport 8080 dnat to {RECEIVER}.1:4321
add rule ip nat docker udp dport 8081 dnat to {RECEIVER}.1:4322
add rule ip nat raw udp dport 8080 numgen inc mod 5 == 0 counter notrack
add rule ip nat before ct state untracked accept
add rule ip nat before udp dport 8080 numgen inc mod 4 == 0 counter drop
add rule ip nat behind ct status dnat udp dport 4321 numgen inc mod 3 == 0 counter drop
"""
"""As docker publishes ports. Of 100 to the first 20 are not tracked, then 20 dropped, and 20 again."""


def published(node: str, ports: str = "8080", to: str = "4321", **keys: Any) -> dict[str, Any]:
    """Return a load to published ports of a node."""
    flows = {
        "to": f"receiver.addresses[1]:{to}",
        "published": f"{node}.addresses[1]:{ports}",
    }
    return traffic(1) | {"flows": flows} | keys


def test_losses_before_at_and_behind_a_published_port_are_exact(tmp_path: Path) -> None:
    """What rules leave as it is ends at the node, which has no such socket; nothing remains."""
    pids: list[int] = []
    counts: list[list[int]] = []

    def plants() -> None:
        pids.append(namespace_of("in0"))
        deafen_sender()
        for line in RULES.strip().splitlines():
            inside(pids[0], "nft", line)

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            text = inside(pids[0], "nft", "list", "table", "ip", "nat")
            of_rules = [line for line in text.splitlines() if "numgen" in line]
            counts.append([int(line.split("packets ")[1].split()[0]) for line in of_rules])

    load = published("router1", "8080-8081", "4321-4322", count="200")
    _, record, result = conducted(
        *(tmp_path, load_lab("router"), tell),
        traffic=load,
        path_check="explained",
        receive={"workers": 2},
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    untracked, before, behind = (b - a for a, b in zip(counts[0], counts[-1], strict=True))
    assert untracked == 20
    assert {
        "router1.fwd_local": (untracked, None),
        "router1.fwd_prerouting": (before, None),
        "router1.fwd_netfilter": (behind, None),
    } == entries(result)
    assert before in (19, 20, 21)
    assert behind in (19, 20, 21)
    assert 200 - untracked - before - behind == result.received_packets


@pytest.fixture
def there() -> Iterator[There]:
    """Yield namespaces whose gateway publishes ports of blue, as docker does."""
    namespaces = There()
    try:
        namespaces.open()
        for words in (
            "iptables -t nat -N DOCKER",
            "iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
            (
                "iptables -t nat -A DOCKER ! -i eth2 -p udp -m udp --dport 8080 "
                "-j DNAT --to-destination 10.2.0.2:4321"
            ),
        ):
            namespaces.inside("gateway", words)
        yield namespaces
    finally:
        namespaces.close()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("change", [False, True])
def test_a_published_port_of_a_host_that_is_there_answers(
    there: There, tmp_path: Path, change: bool
) -> None:
    """Echoes come back from the address to which packets were sent, and pass the node's guard."""
    before = re.sub("packets .*", "", there.state())
    load = published("gateway", count="100", echo="10")
    _, record, result = conducted(tmp_path, there.lab(change=change), traffic=load)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert 100 == result.received_packets
    ends = {(spec.role, flow.destination) for spec in record.workers for flow in spec.flows}
    assert {("sender", "10.1.0.1"), ("receiver", "10.2.0.2")} == ends
    changed = [each.setting.kind for each in record.changes.get("gateway", ())]
    assert changed == ["path_guard"] * change
    assert before == re.sub("packets .*", "", there.state())


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "iptables -t nat -F DOCKER",
            "gateway: no rule rewrites packets to its own address 10.1.0.1 (DNAT)",
        ),
        (
            "iptables -t nat -A DOCKER -p udp --dport 8080 -j DNAT --to-destination 10.3.0.2",
            "gateway: a rule may send packets to 10.3.0.2, no address of",
        ),
        ("ip route add 10.2.0.2/32 via 10.3.0.2", "would leave by eth3, not by eth2"),
        (
            "iptables -t nat -I PREROUTING -p udp --dport 4321 -j DNAT --to-destination 10.3.0.2",
            "gateway: a rule may send packets to 10.3.0.2, no address of",
        ),
    ],
)
def test_a_published_port_that_leads_elsewhere_gets_nothing(
    there: There, tmp_path: Path, words: str, why: str
) -> None:
    """What rules make of packets is routed and filtered anew; all of it is looked at."""
    there.inside("gateway", words)
    _, record, _ = conducted(tmp_path, there.lab(), traffic=published("gateway"))
    assert record.error is not None
    assert record.error.kind == "SafetyError"
    assert why in record.error.message


LISTENS = "import socket, sys; s = socket.socket(2, 2); s.bind(('', 8080)); print(1, flush=True); s.recv(1)"


def test_a_program_at_a_published_port_is_refused(there: There, tmp_path: Path) -> None:
    """Docker's proxy would send what rules leave to it as packets of its own."""
    words = ["ip", "netns", "exec", there.name("gateway"), sys.executable, "-c", LISTENS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        assert proxy.stdout.readline()
        _, record, _ = conducted(tmp_path, there.lab(), traffic=published("gateway"))
        proxy.kill()
    assert record.error is not None
    assert "gateway: a program that listens at port 8080 would get" in record.error.message


def test_senders_stop_when_a_published_port_leads_elsewhere(there: There, tmp_path: Path) -> None:
    """Or nowhere: the rule is gone, and the node's own stack has what comes meanwhile."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.append(there.inside("gateway", "iptables -t nat -F DOCKER"))

    load = published("gateway", rate="500pps", count="1500")
    _, record, _ = conducted(tmp_path, there.lab(), tell, traffic=load, send=ASLEEP)
    assert done, record.error
    assert record.error is not None
    assert "firewall were changed there" in record.error.message


FATES = {
    "untracked": ("fwd_local", "prerouting", "raw", "notrack"),
    "dropped-before": ("fwd_prerouting", "prerouting", "raw", "drop"),
    "dropped-behind": ("fwd_netfilter", "forward", "0", "drop"),
    "dropped-by-the-bridge": ("fwd_bridge", "output", "0", "drop"),
}
"""What becomes of a flow → its stage, and the rule's hook, priority and verdict."""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(40))
def test_random_mixtures_of_a_published_container_balance(tmp_path: Path, seed: int) -> None:
    """Each flow of the built-in lab ends at a stage drawn for it, or arrives; nft counted the same."""
    chance = random.Random(seed)
    fates = [chance.choice([*FATES, None]) for _ in range(10)]
    family = chance.choice((4, 4, 6))
    counts: list[int] = []
    pids: list[int] = []

    def plants() -> None:
        pids.append(namespace_of("veth1"))
        deafen_sender("ip" if family == 4 else "ip6")
        for number, fate in enumerate(fates):
            if fate is not None:
                stage, hook, order, verdict = FATES[fate]
                version = "bridge" if stage == "fwd_bridge" else "ip" if family == 4 else "ip6"
                words = ("udp", "sport", str(1000 + number), "counter", verdict)
                rule(pids[0], hook, *words, version=version, order=order)

    def dropped() -> int:
        versions = {
            "bridge" if FATES[fate][0] == "fwd_bridge" else "ip" if family == 4 else "ip6"
            for fate in fates
            if fate is not None
        }
        return sum(sum(counted(pids[0], version)) for version in versions)

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            counts.append(dropped())

    load = published("docker", count=str(10 * EACH), family=family)
    load["flows"] |= {"from": "1000-1009"}
    _, record, result = conducted(
        tmp_path, load_lab("published-port"), tell, traffic=load, path_check="explained"
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    ended = [fate for fate in fates if fate is not None]
    assert {
        f"docker.{FATES[fate][0]}": (EACH * ended.count(fate), None) for fate in ended
    } == entries(result)
    assert EACH * fates.count(None) == result.received_packets
    assert EACH * len(ended) == counts[-1] - counts[0]
    assert record.wired


@pytest.mark.long
def test_flows_to_a_published_port_fill_one_queue(tmp_path: Path) -> None:
    """The queue is that of the receiver, to which each flow is led."""

    def plants() -> None:
        pid = namespace_of("in0")
        for line in RULES.strip().splitlines():
            if "numgen" not in line:
                inside(pid, "nft", line)

    load = published("router1", count="100")
    load["flows"] |= {"from": "1000-1007", "queues": 1}
    settings = {"receiver": {"link": {"queues": 2}}}
    _, record, result = conducted(
        tmp_path, load_lab("router"), before_the_proof(plants), traffic=load, settings=settings
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert 100 == result.received_packets
    kept = {flow.flow for spec in record.workers for flow in spec.flows}
    assert 0 < len(kept) < 8
