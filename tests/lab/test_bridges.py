"""Nodes that forward frames, and what a bridge takes in for its host: losses planted at each."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_path import (
    ASLEEP,
    EACH,
    RECEIVER,
    assert_spans,
    before_the_proof,
    conducted,
    conducted_each,
    counted,
    deafen_sender,
    entries,
    inside,
    namespace_of,
    plant,
    rule,
    traffic,
)

from udpbench.definition.load import lab_of, load_lab
from udpbench.model.lab import Lab
from udpbench.model.result import Progress

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]


def frame_rule(pid: int, hook: str, to: str) -> None:
    """Drop frames to an address at a hook of the bridges in the namespace of a process."""
    chain = f"{{ type filter hook {hook} priority 0 ; }}"
    inside(pid, "nft", "add", "table", "bridge", "plants")
    inside(pid, "nft", "add", "chain", "bridge", "plants", hook, chain)
    words = ("ip", "daddr", to, "counter", "drop")
    inside(pid, "nft", "add", "rule", "bridge", "plants", hook, *words)


def dropped_frames(pid: int) -> int:
    """Return the packets of those rules, by their own counters."""
    text = inside(pid, "nft", "list", "table", "bridge", "plants")
    return sum(
        int(line.split("packets ")[1].split()[0])
        for line in text.splitlines()
        if "packets " in line
    )


def test_a_bridge_forwards_every_packet(tmp_path: Path) -> None:
    """As frames: it takes nothing off the time to live, of IPv4 and of IPv6."""
    loads = [{"traffic": traffic(4, family=family)} for family in (4, 6)]
    for record, result in conducted_each(tmp_path, load_lab("bridge"), *loads):
        assert ("done", 0) == (result.status, result.unaccounted), record.error
        assert {} == entries(result)
        assert 4 * EACH == result.received_packets
        assert {1} == {spec.traffic.ttl for spec in record.workers}
        assert {"bridge1": ("bridge0", "in0", "out0")} == record.bridges
        assert record.wired


def test_what_a_rule_for_frames_drops_is_the_bridges(tmp_path: Path) -> None:
    """At each hook: the rules' own counters have the same number, and nothing remains."""
    hooks = ("prerouting", "forward", "postrouting")
    pids: list[int] = []
    drops: list[list[int]] = []

    def plants() -> None:
        pids.append(namespace_of("out0"))
        for number, hook in enumerate(hooks, 2):
            frame_rule(pids[0], hook, f"192.168.254.{number}")

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            drops.append(counted(pids[0], "bridge"))

    _, record, result = conducted(tmp_path, load_lab("bridge"), tell, traffic=traffic(4))
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {"bridge1.fwd_bridge": (3 * EACH, None)} == entries(result)
    assert [EACH] * 3 == [last - first for first, last in zip(drops[0], drops[-1], strict=True)]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "words",
    [
        "bridge fdb del 02:75:62:02:00:01 dev out0 master",
        "ip link set out0 type bridge_slave isolated on",
        "ip link set in0 type bridge_slave isolated on",
    ],
)
def test_a_bridge_that_knows_no_port_for_a_frame_drops_it(tmp_path: Path, words: str) -> None:
    """Without a counter of its own; a port that is isolated alone still takes frames."""

    def plants() -> None:
        inside(namespace_of("out0"), *words.split())

    _, record, result = conducted(
        tmp_path,
        load_lab("bridge"),
        before_the_proof(plants),
        traffic=traffic(1),
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    lost = {} if "isolated" in words else {"bridge1.fwd_bridge": (EACH, None)}
    assert lost == entries(result)


def test_a_container_sends_through_its_hosts_bridge(tmp_path: Path) -> None:
    """With the address of the host; what the bridge does not take in is a stage of its own.

    PREROUTING belongs to it, which br_netfilter calls before the bridge hands a packet to IP.
    """

    def plants() -> None:
        pid = namespace_of("veth1")
        deafen_container()
        frame_rule(pid, "input", f"{RECEIVER}.2")
        plant(pid, "fwd_prerouting", f"{RECEIVER}.3")
        plant(pid, "fwd_netfilter", f"{RECEIVER}.4")

    _, record, result = conducted(
        tmp_path, load_lab("containers"), before_the_proof(plants), traffic=traffic(5)
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {
        "docker.fwd_bridge": (2 * EACH, None),
        "docker.fwd_netfilter": (EACH, None),
    } == entries(result)
    assert 2 * EACH == result.received_packets
    assert {2} == {spec.traffic.ttl for spec in record.workers}


def deafen_container() -> None:
    """Keep answers of the host from the container's sockets."""
    rule(namespace_of("eth0", "172.17.0.2/"), "input", "ip", "protocol", "icmp", "drop")


PUBLISHED = f"""
add table ip plants
add chain ip plants before {{ type filter hook prerouting priority raw ; }}
add chain ip plants published {{ type nat hook prerouting priority dstnat ; }}
add chain ip plants behind {{ type filter hook forward priority 0 ; }}
add rule ip plants before ip daddr {RECEIVER}.2 numgen inc mod 5 == 0 counter drop
add rule ip plants published ip daddr {RECEIVER}.2-{RECEIVER}.5 udp dport 4321 dnat to numgen inc \
mod 2 map {{ 0 : {RECEIVER}.1, 1 : {RECEIVER}.6 }}
add rule ip plants published ip daddr {RECEIVER}.7 dnat to {RECEIVER}.20
add rule ip plants behind ct original ip daddr {RECEIVER}.3 numgen inc mod 5 < 2 counter drop
add rule ip plants behind ct status dnat ip daddr {{ {RECEIVER}.1, {RECEIVER}.6 }} counter accept
"""
"""Addresses whose flows get one of two backends each, and .7, whose backend has no route."""


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("lab", "node"), [("router", "router1"), ("containers", "docker")])
def test_losses_before_and_behind_a_translated_destination_are_told_apart(
    tmp_path: Path, lab: str, node: str
) -> None:
    """The load goes to addresses that rules rewrite: each loss is exact, and nothing remains."""
    pids: list[int] = []
    counts: list[list[int]] = []

    def plants() -> None:
        pids.append(namespace_of("in0" if lab == "router" else "veth1"))
        (deafen_sender if lab == "router" else deafen_container)()
        for line in PUBLISHED.strip().splitlines():
            inside(pids[0], "nft", line)
        inside(pids[0], "ip", "route", "add", "unreachable", f"{RECEIVER}.20")

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            counts.append(counted(pids[0]))

    _, record, result = conducted(
        tmp_path, load_lab(lab), tell, traffic=traffic(7), path_check="explained"
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    before, behind, passed = (
        last - first for first, last in zip(counts[0], counts[-1], strict=True)
    )
    assert (EACH // 5, 2 * EACH // 5) == (before, behind)
    assert 4 * EACH - before - behind == passed
    assert 6 * EACH - before - behind == result.received_packets
    stage = "fwd_prerouting" if lab == "router" else "fwd_bridge"
    assert {
        f"{node}.{stage}": (before, None),
        f"{node}.fwd_netfilter": (behind, None),
        f"{node}.fwd_route": (EACH, None),
    } == entries(result)


class Switched:
    """A bridge in a namespace that is there, between red and blue; beyond has a link to its host."""

    names = ("red", "switch", "blue", "beyond")

    def __init__(self) -> None:
        self.prefix = f"ub{os.getpid()}b"

    def inside(self, short: str, words: str) -> str:
        """Run a program there."""
        enter = ["ip", "netns", "exec", f"{self.prefix}-{short}", *words.split()]
        done = subprocess.run(enter, check=False, capture_output=True, text=True)
        assert done.returncode == 0, (short, words, done.stderr)
        return done.stdout

    def open(self) -> None:
        """Make them: only red and blue have ports of the bridge."""
        for short in self.names:
            subprocess.run(["ip", "netns", "add", f"{self.prefix}-{short}"], check=True)
            self.inside(short, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
            self.inside(short, "ip link set lo up")
        self.inside("switch", "ip link add br0 type bridge mcast_snooping 0")
        for n, short in enumerate(("red", "blue", "beyond"), 1):
            peer = f"{self.prefix}-{short}"
            self.inside("switch", f"ip link add port{n} type veth peer name eth0 netns {peer}")
            self.inside("switch", f"ip link set port{n} up")
            self.inside(short, f"ip addr add 10.1.0.{n}/24 dev eth0")
            self.inside(short, "ip link set eth0 up")
        for n in (1, 2):
            self.inside("switch", f"ip link set port{n} master br0")
        self.inside("switch", "ip link set br0 up")

    def close(self) -> None:
        """Remove them."""
        for short in self.names:
            subprocess.run(["ip", "netns", "del", f"{self.prefix}-{short}"], check=False)

    def lab(self, **node: Any) -> Lab:
        """Return the lab of red, the switch and blue; nothing of it is made."""
        cpus = sorted(os.sched_getaffinity(0))

        def end(short: str, cpu: int) -> dict[str, Any]:
            place = {"netns": f"{self.prefix}-{short}"}
            more = {"addresses": "existing", "cpus": str(cpu)}
            return {"connect": place, "interface": "eth0", **more}

        middle = {
            "name": "switch",
            "connect": {"netns": f"{self.prefix}-switch"},
            "interfaces": {"in": "port1", "out": "port2"},
            **node,
        }
        nodes = {"middle": [middle]} if node else {}
        data = {"sender": [end("red", cpus[-1])], **nodes, "receiver": [end("blue", cpus[0])]}
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("switched.yaml"))


@pytest.fixture
def switched() -> Iterator[Switched]:
    """Yield a bridge as an administrator makes it."""
    namespaces = Switched()
    try:
        namespaces.open()
        yield namespaces
    finally:
        namespaces.close()


def test_what_a_host_between_loses_without_an_agent_is_link(
    switched: Switched, tmp_path: Path
) -> None:
    """The lab file does not name it, so nobody asks it: what is missing is between the ends."""
    for words in (
        "nft add table bridge own",
        "nft add chain bridge own f { type filter hook forward priority 0 ; }",
        "nft add rule bridge own f udp dport 4321 numgen inc mod 5 == 0 drop",
    ):
        switched.inside("switch", words)
    _, record, result = conducted(
        tmp_path, switched.lab(), traffic=traffic(1), path_check="explained"
    )
    assert "done" == result.status, (record.error, result.findings)
    assert 4 * EACH // 5 == result.received_packets
    assert {"link": (EACH // 5, EACH // 5)} == entries(result)
    assert 0 == result.unaccounted
    assert {"sender", "receiver"} == record.facts.keys()


def test_a_bridge_that_is_there_is_read_only_and_its_rules_are_seen(
    switched: Switched, tmp_path: Path
) -> None:
    """What its rule drops is at its stage, and it keeps its ports."""
    for words in (
        "nft add table bridge own",
        "nft add chain bridge own f { type filter hook forward priority 0 ; }",
        "nft add rule bridge own f udp dport 4321 drop",
    ):
        switched.inside("switch", words)
    before = switched.inside("switch", "bridge link")
    _, record, result = conducted(
        tmp_path, switched.lab(bridge="br0"), traffic=traffic(1), path_check="explained"
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {"switch.fwd_bridge": (EACH, None)} == entries(result)
    assert (True, False) == (record.wired, record.built_in_lab)
    assert before == switched.inside("switch", "bridge link")


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("words", "node", "why"),
    [
        ("ip link set port3 master br0", {"bridge": "br0"}, "port3, another port of br0, may lead"),
        ("", {"name": "switch"}, "its interfaces are ports of br0; write bridge: br0"),
        ("ip link set port2 nomaster", {"bridge": "br0"}, "are not both ports of br0"),
        (
            "ebtables -t nat -A PREROUTING -j dnat --to-destination 02:00:00:00:00:09",
            {"bridge": "br0"},
            "bridge nat PREROUTING: dnat may lead",
        ),
        (
            "ebtables -t nat -A PREROUTING -p IPv4 -j redirect",
            {"bridge": "br0"},
            "bridge nat PREROUTING: redirect may lead",
        ),
        (
            (
                "sysctl -qw net.bridge.bridge-nf-call-iptables=1 && "
                "iptables -t nat -A PREROUTING -i br0 -p udp -j DNAT --to-destination 10.9.9.9"
            ),
            {"bridge": "br0"},
            "a rule may send packets to 10.9.9.9",
        ),
    ],
)
def test_frames_that_may_leave_the_lab_are_not_sent(
    switched: Switched, tmp_path: Path, words: str, node: dict[str, str], why: str
) -> None:
    """A bridge floods what it knows no port for; and the lab file says what is there."""
    for each in filter(None, words.split(" && ")):
        switched.inside("switch", each)
    _, record, _ = conducted(tmp_path, switched.lab(**node), traffic=traffic(1))
    assert record.error is not None
    assert "SafetyError" == record.error.kind
    assert why in record.error.message
    assert () == record.phases


def test_a_port_that_joins_the_bridge_stops_the_senders(switched: Switched, tmp_path: Path) -> None:
    """Whoever adds it; the bridge may flood to it from then on."""
    joined: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not joined:
            joined.append(switched.inside("switch", "ip link set port3 master br0"))

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, switched.lab(bridge="br0"), tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert ("SafetyError", "switch") == (record.error.kind, record.error.host)
    assert "links were changed there" in record.error.message


CONTAINER_FATES = (
    "input",
    "fwd_prerouting",
    "fwd_netfilter",
    "postrouting",
    "fwd_route",
    "fwd_mtu",
)
"""Each ends a flow at the host of a container; its bridge has what never got to IP."""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(40))
def test_random_mixtures_over_a_bridge_balance(tmp_path: Path, seed: int) -> None:
    """Each flow ends at a hook drawn for it, or arrives; nft counted the same, and 0 remains."""
    chance = random.Random(seed)
    hooks = ("prerouting", "forward", "postrouting", None)
    fates = [chance.choice(hooks) for _ in range(10)]
    seen: list[int] = []

    def plants() -> None:
        for number, hook in enumerate(fates, 2):
            if hook is not None:
                frame_rule(namespace_of("out0"), hook, f"192.168.254.{number}")

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        ends = progress.event == "step" and progress.text == "verify"
        if any(fates) and (begins or ends):
            seen.append(dropped_frames(namespace_of("out0")))

    load = traffic(len(fates) + 1, size=f"{chance.choice((32, 200, 1472))}B")
    _, record, result = conducted(tmp_path, load_lab("bridge"), tell, traffic=load)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    lost = EACH * (len(fates) - fates.count(None))
    assert ({"bridge1.fwd_bridge": (lost, None)} if lost else {}) == entries(result)
    assert EACH * (1 + fates.count(None)) == result.received_packets
    assert not lost or lost == seen[-1] - seen[0]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(40))
def test_random_mixtures_of_a_container_balance(tmp_path: Path, seed: int) -> None:
    """Each flow ends at a stage of the container's host drawn for it, or arrives; 0 remains."""
    chance = random.Random(seed)
    fates = [chance.choice([*CONTAINER_FATES, None, None]) for _ in range(10)]

    def plants() -> None:
        pid = namespace_of("veth1")
        deafen_container()
        for number, fate in enumerate(fates, 2):
            if fate == "input":
                frame_rule(pid, "input", f"{RECEIVER}.{number}")
            elif fate is not None:
                plant(pid, fate, f"{RECEIVER}.{number}")

    load = traffic(len(fates) + 1, size="200B")
    _, record, result = conducted(
        tmp_path, load_lab("containers"), before_the_proof(plants), traffic=load
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    # PREROUTING belongs to the bridge, which br_netfilter calls before it hands a packet to IP.
    stages = {"input": "fwd_bridge", "fwd_prerouting": "fwd_bridge", "postrouting": "fwd_netfilter"}
    ended = [stages.get(fate, fate) for fate in fates if fate is not None]
    expected = {f"docker.{stage}": EACH * ended.count(stage) for stage in ended}
    assert_spans(entries(result), expected, {"docker.fwd_route", "docker.fwd_rp_filter"})
    assert EACH * (1 + fates.count(None)) == result.received_packets
