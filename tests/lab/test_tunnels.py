"""Tunnels between two nodes: losses planted within and around them, and where they may lead."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_bridges import frame_rule
from test_path import (
    ASLEEP,
    EACH,
    before_the_proof,
    conducted,
    conducted_each,
    counted,
    entries,
    inside,
    namespace_of,
    rule,
    traffic,
    way_out,
)

from udpbench.control import path_proof
from udpbench.definition.load import lab_of, load_lab
from udpbench.model.lab import Lab
from udpbench.model.result import Progress

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

PLANTS = {
    "dropped-in-output": ("vtep1", "fwd_netfilter", "output", "counter drop"),
    "dropped-in-postrouting": ("vtep1", "fwd_netfilter", "postrouting", "counter drop"),
    "dropped-in-prerouting": ("vtep2", "fwd_prerouting", "prerouting", "counter drop"),
    "dropped-in-input": ("vtep2", "fwd_prerouting", "input", "counter drop"),
    "marked": ("vtep2", "fwd_ecn", "prerouting", "counter ip ecn set ce"),
    "of-another-network": ("vtep2", "fwd_decap", "prerouting", "counter @th,96,32 set 0x6300"),
    "invalid": ("vtep2", "fwd_decap", "prerouting", "counter @th,64,8 set 0x0"),
    "bridged-away": ("vtep1", "fwd_bridge", "", ""),
    "bridged-away-behind": ("vtep2", "fwd_bridge", "", ""),
}
"""Plant → node, stage, hook of its rule for outer packets, and what that does."""
ENDS = {"vtep1": "192.168.252.1/", "vtep2": "192.168.252.2/"}


def vtep(name: str) -> int:
    """Return a process in the namespace of one end of the tunnel."""
    return namespace_of("out0" if name == "vtep1" else "in0", ENDS[name])


def plant(name: str, number: int) -> None:
    """Have packets to one of the receiver's addresses end at a stage of the tunnel."""
    node, _, hook, act = PLANTS[name]
    if not hook:
        frame_rule(vtep(node), "forward", f"192.168.254.{number}")
        return
    inner = f"@th,368,32 0xc0a8fe{number:02x}"  # behind UDP, VXLAN and Ethernet headers
    rule(vtep(node), hook, "udp", "dport", "4789", *inner.split(), *act.split())


def by_stage(names: list[str]) -> dict[str, tuple[int | None, int | None]]:
    """Return the ledger of flows that ended at plants."""
    stages = [".".join(PLANTS[name][:2]) for name in names]
    return {stage: (EACH * stages.count(stage), None) for stage in stages}


def test_a_tunnel_carries_every_packet(tmp_path: Path) -> None:
    """It takes nothing off their time to live, and each end is a node with stages of its own."""
    outcome, record, result = conducted(tmp_path, load_lab("vxlan"), traffic=traffic(4))
    assert (0, "done", 0) == (outcome.exit_code, result.status, result.unaccounted), record.error
    assert {} == entries(result)
    assert 4 * EACH == result.received_packets
    assert {1} == {spec.traffic.ttl for spec in record.workers}
    ports = {"vtep1": ("bridge0", "in0", "vxlan0"), "vtep2": ("bridge0", "vxlan0", "out0")}
    assert ports == record.bridges
    assert record.wired


@pytest.fixture
def rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permit rules that rewrite packets, which the proof refuses: they make outer packets wrong."""
    monkeypatch.setattr(path_proof, "_elsewhere", lambda *_: [])


@pytest.mark.usefixtures("rewriting")
def test_each_stage_of_a_tunnel_counts_what_was_planted_there(tmp_path: Path) -> None:
    """Within and around it: exactly there, and nothing remains."""

    def plants() -> None:
        for number, name in enumerate(PLANTS, 2):
            plant(name, number)

    flows = len(PLANTS) + 1
    _, record, result = conducted(
        tmp_path, load_lab("vxlan"), before_the_proof(plants), traffic=traffic(flows)
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert by_stage(list(PLANTS)) == entries(result)
    assert EACH == result.received_packets


def test_what_is_too_long_for_a_tunnel_is_cut_or_lost_at_its_begin(tmp_path: Path) -> None:
    """The outer header takes 50 B of the MTU; the outer packet leaves in fragments if it may.

    The sender is told of the first, and may send no more.
    """
    loads = [
        {"traffic": traffic(1, size=size, fragment=fragment), "path_check": "explained"}
        for size, fragment in (("1422B", False), ("1472B", True), ("1472B", False))
    ]
    fits, cut, refused = conducted_each(tmp_path, load_lab("vxlan"), *loads)
    for record, result in (fits, cut, refused):
        assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {} == entries(fits[1]) == entries(cut[1])
    lost = {stage: packets for stage, (packets, _) in entries(refused[1]).items()}
    assert {"unsent", "vtep1.fwd_encap"} >= {*lost} >= {"vtep1.fwd_encap"}
    assert EACH == sum(packets or 0 for packets in lost.values())


def test_a_queue_behind_a_tunnel_that_is_full_is_its_cells(tmp_path: Path) -> None:
    """What came out is counted before the queue refuses it: of each burst of 32 it holds 9."""
    burst, limit = 32, 8
    settings = {
        "sender": {"ethtool": {"features": {"tso": False, "tx-udp-segmentation": False}}},
        "middle": {
            "ethtool": {"features": {"rx-gro": True}},
            "sysctl": {"net.core.netdev_max_backlog": limit},
        },
    }
    _, record, result = conducted(
        tmp_path,
        load_lab("vxlan"),
        traffic={"count": str(50 * burst), "rate": "2kpps", "size": "32B"},
        send={"gso": burst},
        settings=settings,
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {"vtep2.fwd_cells"} == {*entries(result)}
    assert 50 * (burst - limit - 1) == entries(result)["vtep2.fwd_cells"][0]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.usefixtures("rewriting")
def test_random_mixtures_through_a_tunnel_balance(tmp_path: Path, seed: int) -> None:
    """Each flow ends at a stage drawn for it, or arrives; nft counted the same, and 0 remains."""
    chance = random.Random(seed)
    fates = [chance.choice([*PLANTS, None, None]) for _ in range(12)]
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def plants() -> None:
        for number, fate in enumerate(fates, 2):
            if fate is not None:
                plant(fate, number)

    def by_rules(at: dict[str, int]) -> None:
        for node in ENDS:
            if any(fate and PLANTS[fate][0] == node and PLANTS[fate][2] for fate in fates):
                at[node] = sum(counted(vtep(node)))

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        if progress.event == "phase" and progress.phase == "measured":
            by_rules(first)
        if progress.event == "step" and progress.text == "verify":
            by_rules(last)

    load = traffic(len(fates) + 1, size=f"{chance.choice((32, 200, 1400))}B")
    _, record, result = conducted(tmp_path, load_lab("vxlan"), tell, traffic=load)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    ended = [fate for fate in fates if fate is not None]
    assert by_stage(ended) == entries(result)
    assert EACH * (1 + fates.count(None)) == result.received_packets
    planted = {
        node: EACH * sum(1 for fate in ended if PLANTS[fate][0] == node and PLANTS[fate][2])
        for node in last
    }
    assert planted == {node: last[node] - first[node] for node in last}


# --- what must not leave the lab -----------------------------------------------------------------

ELSEWHERE = "02:00:00:00:09:09"
REMOTE = "192.168.252.2"


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("node", "words", "why"),
    [
        (
            "vtep1",
            "ip link set vxlan0 type vxlan remote 10.9.9.2",
            "would leave by leak0, not by out0",
        ),
        (
            "vtep1",
            "bridge fdb append 02:75:62:02:00:01 dev vxlan0 dst 10.9.9.2 self",
            "vxlan0, a tunnel (vxlan) with other ends: 10.9.9.2",
        ),
        ("vtep1", "ip link set vxlan0 type vxlan learning", "learnt from packets"),
        ("vtep1", f"ip route add {REMOTE}/32 via 10.9.9.2", "would leave by leak0, not by out0"),
        (
            "vtep1",
            f"nft add rule ip x o ip daddr {REMOTE} dnat to 10.9.9.2",
            "a rule may send packets to 10.9.9.2",
        ),
        (
            "vtep2",
            "nft add rule ip x p udp dport 4789 dnat to 10.9.9.2",
            "a rule may send packets to 10.9.9.2",
        ),
        ("vtep2", f"ip addr del {REMOTE}/24 dev in0", f"{REMOTE} is no address of vtep2"),
        ("vtep1", f"ip neigh replace {REMOTE} lladdr {ELSEWHERE} dev out0", "not that of vtep2"),
    ],
)
def test_a_tunnel_that_may_lead_elsewhere_is_refused(
    tmp_path: Path, node: str, words: str, why: str
) -> None:
    """Its other end is proven as any destination is, and by every way that leads there."""
    left: list[Any] = []

    def leak() -> None:
        pid = vtep(node)
        with way_out(pid) as count:
            left.append(count)
        inside(pid, "nft", "add", "table", "ip", "x")
        for chain, hook in (("o", "output"), ("p", "prerouting")):
            more = f"{{ type nat hook {hook} priority -100 ; }}"
            inside(pid, "nft", "add", "chain", "ip", "x", chain, more)
        inside(pid, *words.split())

    _, record, _ = conducted(
        tmp_path, load_lab("vxlan"), before_the_proof(leak), traffic=traffic(1)
    )
    assert record.error is not None
    assert "SafetyError" == record.error.kind
    assert why in record.error.message
    assert () == record.phases


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "words",
    [
        "bridge fdb append 02:75:62:02:00:01 dev vxlan0 dst 10.9.9.2 self",
        "ip link set vxlan0 type vxlan remote 10.9.9.2",
    ],
)
def test_another_end_of_a_tunnel_stops_the_senders(tmp_path: Path, words: str) -> None:
    """Whoever sets it while packets are sent."""
    changed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not changed:
            changed.append(inside(vtep("vtep1"), *words.split()))

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, load_lab("vxlan"), tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert ("SafetyError", "vtep1") == (record.error.kind, record.error.host)
    assert "neighbours were changed there" in record.error.message


class Overlay:
    """Two hosts that are there already with a tunnel between them, red before and blue behind."""

    names = ("red", "near", "far", "blue")
    carries: Mapping[str, str] = {"bridge": "br0", "tunnel": "vx0"}

    def __init__(self) -> None:
        self.prefix = f"ub{os.getpid()}t"

    def run(self, short: str, *lines: str) -> str:
        """Run programs there; return what they print."""
        shown = ""
        for words in lines:
            enter = ["ip", "netns", "exec", f"{self.prefix}-{short}", *words.split()]
            shown += subprocess.run(enter, check=True, capture_output=True, text=True).stdout
        return shown

    def open(self) -> None:
        """Make them, with the tunnel's ends as an administrator would."""
        quiet = "sysctl -qw net.ipv6.conf.default.disable_ipv6=1"
        for short in self.names:
            subprocess.run(["ip", "netns", "add", f"{self.prefix}-{short}"], check=True)
            self.run(short, "ip link set lo up", quiet)
        for short, name, other, peer in (
            ("red", "eth0", "near", "in0"),
            ("near", "out0", "far", "in0"),
            ("far", "out0", "blue", "eth0"),
        ):
            veth = f"ip link add {name} type veth peer name {peer} netns {self.prefix}-{other}"
            self.run(short, veth, f"ip link set {name} up")
            self.run(other, f"ip link set {peer} up")
        self.tunnel()

    def tunnel(self) -> None:
        """Make both ends of it, and give all addresses."""
        self.run("red", "ip addr add 10.1.0.1/24 dev eth0")
        self.run("blue", "ip addr add 10.1.0.2/24 dev eth0")
        for short, way, port, own, other in (
            ("near", "out0", "in0", "10.2.0.1", "10.2.0.2"),
            ("far", "in0", "out0", "10.2.0.2", "10.2.0.1"),
        ):
            self.run(
                short,
                "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
                f"ip addr add {own}/24 dev {way}",
                f"ip link add vx0 type vxlan id 7 local {own} remote {other} dstport 4789 nolearning",
                "ip link add br0 type bridge mcast_snooping 0",
                f"ip link set {port} master br0",
                "ip link set vx0 master br0",
                "ip link set vx0 up",
                "ip link set br0 up",
            )

    def close(self) -> None:
        """Remove them."""
        for short in self.names:
            subprocess.run(["ip", "netns", "del", f"{self.prefix}-{short}"], check=False)

    def lab(self, **keys: Any) -> Lab:
        """Return the lab of all four, its nodes with further keys; nothing of it is made."""
        cpus = sorted(os.sched_getaffinity(0))

        def at(short: str, **more: Any) -> dict[str, Any]:
            return {"connect": {"netns": f"{self.prefix}-{short}"}, **more}

        def end(short: str, cpu: int) -> dict[str, Any]:
            return at(short, interface="eth0", addresses="existing", cpus=str(cpu))

        def node(short: str) -> dict[str, Any]:
            ports = {"in": "in0", "out": "out0"}
            return at(short, name=short, interfaces=ports, **self.carries, **keys)

        data = {
            "sender": [end("red", cpus[-1])],
            "middle": [node("near"), node("far")],
            "receiver": [end("blue", cpus[0])],
        }
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("overlay.yaml"))


@pytest.fixture
def overlay() -> Iterator[Overlay]:
    """Yield hosts with a tunnel between them."""
    hosts = Overlay()
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()


def test_a_tunnel_that_is_there_is_read_only(overlay: Overlay, tmp_path: Path) -> None:
    """It carries every packet, and what its other end does not know is at most what came there."""
    _, record, result = conducted(tmp_path / "1", overlay.lab(), traffic=traffic(1))
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert EACH == result.received_packets
    assert (True, False) == (record.wired, record.built_in_lab)
    overlay.run("far", "ip link del vx0")
    other = "ip link add vx0 type vxlan id 8 local 10.2.0.2 remote 10.2.0.1 dstport 4789 nolearning"
    overlay.run("far", other, "ip link set vx0 master br0", "ip link set vx0 up")
    load = traffic(1)
    _, record, result = conducted(
        tmp_path / "2", overlay.lab(), traffic=load, path_check="explained"
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    unseen = {f"{name}.fwd_encap": (None, EACH) for name in ("near", "far")}
    assert {**unseen, "far.fwd_decap": (0, EACH)} == entries(result)


def test_a_tunnel_that_the_lab_does_not_name_is_refused(overlay: Overlay, tmp_path: Path) -> None:
    """A node may not send into one whose other end is no node."""
    lab = overlay.lab()
    hosts = tuple(
        replace(host, tunnel="", out="vx0")
        if host.name == "near"
        else replace(host, tunnel="", interface="vx0")
        if host.name == "far"
        else host
        for host in lab.hosts
    )
    _, record, _ = conducted(tmp_path, replace(lab, hosts=hosts), traffic=traffic(1))
    assert record.error is not None
    assert "near: vx0, a tunnel, may lead packets elsewhere" in record.error.message
