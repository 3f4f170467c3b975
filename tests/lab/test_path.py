"""Nodes in the middle on real namespaces: losses planted at each stage, and what must not leave."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from others_programs import OthersProgram
from waiting import wait_until

from udpbench.agent.rewrites import FlowMarks, of_iptables, of_nft
from udpbench.analysis.judge import judge
from udpbench.control.agent_client import AgentClient
from udpbench.control.run import Outcome, RunOptions, run
from udpbench.definition.load import lab_of, load_experiment_data, load_lab
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.protocol import SampleReply
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

TINY: dict[str, Any] = {
    "question": "Does it pass?",
    "duration": "10s",
    "warmup": "0s",
    "repetitions": 1,
}
EACH = 25
"""Packets of a flow in the measured phase."""
ASLEEP = {"pace": "sleep", "batch": 1, "bucket": "1s"}
"""For seconds of load: a sender that spins would take a CPU for them."""
Tell = Callable[[Progress], None]


def conducted(
    folder: Path, lab: Lab, tell: Tell = lambda _: None, **keys: Any
) -> tuple[Outcome, TrialRecord, Result]:
    """Return how a run of one trial ended, its record and its result."""
    experiment = load_experiment_data({**TINY, **keys}, "tiny")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder / "run", header)
    outcome = run([experiment], lab, writer, tell, RunOptions(seed=1, lease_ns=5 * SECOND_NS))
    records = read_run(folder / "run").records
    assert records, outcome
    return outcome, records[-1], judge(records[-1])


def conducted_each(
    folder: Path, lab: Lab, *each: dict[str, Any]
) -> list[tuple[TrialRecord, Result]]:
    """Return record and result of trials in one lab, as setting it up takes longer than a trial."""
    experiments = [
        load_experiment_data({**TINY, **keys}, f"tiny{n}") for n, keys in enumerate(each)
    ]
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, tuple(experiments))
    writer = RunWriter.create(folder / "run", header)
    run(experiments, lab, writer, lambda _: None, RunOptions(seed=1, lease_ns=5 * SECOND_NS))
    records = {record.trial.experiment: record for record in read_run(folder / "run").records}
    in_order = [records[experiment.name] for experiment in experiments]
    return [(record, judge(record)) for record in in_order]


def traffic(flows: int, **keys: Any) -> dict[str, Any]:
    """Return a load of the same number of packets to each of the receiver's first addresses."""
    to = f"receiver.addresses[1-{flows}]:4321" if flows > 1 else "receiver.addresses[1]:4321"
    return {"count": str(EACH * flows), "rate": "2000pps", "flows": {"to": to}, **keys}


def entries(result: Result) -> dict[str, tuple[int | None, int | None]]:
    """Return the stages of a ledger that are not 0, each with its packets and their upper limit."""
    assert result.ledger is not None, result.findings
    return {
        entry.stage: (entry.packets, entry.at_most)
        for entry in result.ledger.entries
        if entry.packets != 0 or entry.at_most
    }


def namespace_of(interface: str, address: str = "") -> int:
    """Return a process in the namespace of a lab that has an interface, and an address on it."""
    for process in psutil.Process().children(recursive=True):
        try:
            names = Path(f"/proc/{process.pid}/net/dev").read_text().replace(":", " ").split()
            agent = "udpbench.agent.serve" in process.cmdline()
        except (OSError, psutil.Error):
            continue
        if interface in names and agent:
            shown = inside(process.pid, "ip", "addr", "show", "dev", interface)
            if address in shown:
                return process.pid
    raise AssertionError(f"no namespace has {interface}")


def inside(pid: int, *words: str) -> str:
    """Run a program in the network namespace of a process."""
    enter = ["nsenter", "-t", str(pid), "-n", *words]
    done = subprocess.run(enter, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def before_the_proof(plant: Callable[[], None]) -> Tell:
    """Return what plants once the lab is set up, and before the path is proven."""

    def tell(progress: Progress) -> None:
        if progress.event == "step" and progress.text == "safety":
            plant()

    return tell


HOOKS = {
    "raw": "prerouting",
    "fwd_prerouting": "prerouting",
    "fwd_netfilter": "forward",
    "postrouting": "postrouting",
}
COUNTED_AT = {
    "raw": "fwd_prerouting",
    "postrouting": "fwd_netfilter",
    "blackhole": "fwd_route",
}
"""Plant → the stage that has it, if of another name: FORWARD and POSTROUTING share one."""
BEFORE_NAT = {"raw": "raw"}
"""Plant → the priority of its rule, if not 0, which is behind a translated destination."""
RECEIVER = "192.168.253"


def rule(
    pid: int, hook: str, *words: str, version: str = "ip", kind: str = "filter", order: str = "0"
) -> None:
    """Add a rule of a firewall of our own to a hook."""
    place = (version, "plants", f"{hook}-{order}")
    inside(pid, "nft", "add", "table", *place[:2])
    chain = f"{{ type {kind} hook {hook} priority {order} ; }}"
    inside(pid, "nft", "add", "chain", *place, chain)
    inside(pid, "nft", "add", "rule", *place, *words)


def counted(pid: int, version: str = "ip") -> list[int]:
    """Return the packets of each rule of ours, by its own counter."""
    text = inside(pid, "nft", "list", "table", version, "plants")
    return [
        int(line.split("packets ")[1].split()[0])
        for line in text.splitlines()
        if "packets " in line
    ]


ERRORS = "{ destination-unreachable, packet-too-big, time-exceeded }"


def deafen_sender(version: str = "ip") -> None:
    """Keep answers of routers from the sender's sockets, which would then refuse to send."""
    errors = ("ip", "protocol", "icmp") if version == "ip" else ("icmpv6", "type", ERRORS)
    rule(namespace_of("send0"), "input", *errors, "drop", version=version)


def plant(pid: int, stage: str, to: str, *counter: str) -> None:
    """Have packets to an address end at a stage of a node; a rule counts them unless asked not to."""
    version = "ip6" if ":" in to else "ip"
    if stage in HOOKS:
        does = (*(counter or ("counter",)), "drop")
        order = BEFORE_NAT.get(stage, "0")
        rule(pid, HOOKS[stage], version, "daddr", to, *does, version=version, order=order)
    elif stage == "fwd_route":
        inside(pid, "ip", "route", "add", "unreachable", to)
    elif stage == "blackhole":
        inside(pid, "ip", "route", "add", "blackhole", to)
    elif stage == "fwd_mtu":
        way = inside(pid, "ip", "-o", "route", "get", to).split()
        via = ["via", way[way.index("via") + 1]] if "via" in way else []
        dev = way[way.index("dev") + 1]
        least = "100" if version == "ip" else "1280"
        inside(pid, "ip", "route", "add", to, *via, "dev", dev, "mtu", "lock", least)
    else:
        raise AssertionError(stage)


def test_a_router_forwards_every_packet(tmp_path: Path) -> None:
    """Its agent is one of the path, it lost nothing, and packets had just the hops they need."""
    outcome, record, result = conducted(tmp_path, load_lab("router"), traffic=traffic(4))
    assert (0, "done", 0) == (outcome.exit_code, result.status, result.unaccounted), record.error
    assert {} == entries(result)
    assert 4 * EACH == result.received_packets
    assert {"router1": "middle"} == record.between
    assert {"router1": "out0"} == record.exits
    assert {2} == {spec.traffic.ttl for spec in record.workers}
    assert record.wired
    names = [entry.stage for entry in result.ledger.entries] if result.ledger else []
    assert "router1.fwd_netfilter" in names
    assert {"router1"} == {e.node for e in result.ledger.entries if e.node} if result.ledger else ()


PLANTS = ("fwd_prerouting", "fwd_netfilter", "postrouting", "fwd_route", "fwd_mtu")


NO_ROUTE_TO, MARTIAN_FROM, BESIDE = "10.8.0.1", "127.0.0.5", "10.7.0.2"
MOVE = f"""
import socket, struct
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
ends = (socket.inet_aton(address) for address in ("{MARTIAN_FROM}", "{BESIDE}"))
header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20, 0, 0, 64, 17, 0, *ends)
for _ in range(3):
    plain.sendto(b"x", ("{NO_ROUTE_TO}", 9))
for _ in range(2):
    raw.sendto(header, ("{BESIDE}", 0))
"""
"""Three packets without a route and two martians."""


@contextmanager
def neighbours() -> Iterator[Callable[[], None]]:
    """Make two namespaces that are no part of the lab; yield what moves the machine's counters."""
    hold = ("unshare", "--net", "sh", "-c", "echo; exec cat")
    with ExitStack() as held:
        holders = [
            held.enter_context(
                subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(2)
        ]
        for holder in holders:
            assert holder.stdout is not None
            holder.stdout.readline()
        sending, refusing = (holder.pid for holder in holders)
        for pid, words in (
            (sending, f"ip link add side0 type veth peer name side1 netns {refusing}"),
            (sending, "ip addr add 10.7.0.1/24 dev side0"),
            (sending, "ip link set side0 up"),
            (refusing, f"ip addr add {BESIDE}/24 dev side1"),
            (refusing, "sysctl -qw net.ipv4.ip_forward=1"),
            (refusing, "ip link set side1 up"),
            (sending, f"ip route add 10.8.0.0/16 via {BESIDE}"),
        ):
            inside(pid, *words.split())

        def received() -> int:
            shown = Path(f"/proc/{refusing}/net/snmp").read_text().splitlines()
            names, values = (line.split() for line in shown if line.startswith("Ip:"))
            return int(values[names.index("InReceives")])

        def move() -> None:
            first = received()
            inside(sending, sys.executable, "-c", MOVE)
            wait_until("the neighbour has what was sent", lambda: received() == first + 5)

        yield move
        for holder in holders:
            assert holder.stdin is not None
            holder.stdin.close()


@pytest.mark.parametrize("counter", ["counter", "continue"])
def test_each_stage_of_a_router_counts_what_was_planted_there(tmp_path: Path, counter: str) -> None:
    """Every flow but the first ends at a stage of its own: exactly there, and nothing remains.

    A neighbour's packets move what the machine counts for all namespaces. Where rules do not count
    what they drop, nothing tells those apart: the stages together have what was planted there.
    """
    moved: list[int] = []

    def plants() -> None:
        deafen_sender()
        router, receiver = namespace_of("out0"), namespace_of("receive0")
        for number, stage in enumerate(PLANTS, 2):
            plant(router, stage, f"{RECEIVER}.{number}", counter)
        plant(receiver, "fwd_prerouting", f"{RECEIVER}.{len(PLANTS) + 2}", counter)

    flows = len(PLANTS) + 2
    with neighbours() as move:

        def tell(progress: Progress) -> None:
            before_the_proof(plants)(progress)
            if progress.event == "sample" and progress.text == "measured" and not moved:
                move()
                moved.append(1)

        load = traffic(flows, size="200B", rate="200pps")
        _, record, result = conducted(tmp_path, load_lab("router"), tell, traffic=load)
    assert [1] == moved
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    planted = {
        "router1.fwd_mtu": EACH,
        "router1.fwd_netfilter": 2 * EACH,
        "router1.fwd_prerouting": EACH,
        "rx_netfilter": EACH,
        "router1.fwd_route": EACH,
        "router1.fwd_rp_filter": 0,
        "rx_ip": 0,
    }
    by_machine = {"router1.fwd_route", "router1.fwd_rp_filter"}
    if counter != "counter":
        by_machine |= {"router1.fwd_prerouting", "rx_netfilter", "rx_ip"}
    assert_spans(entries(result), planted, by_machine)
    assert EACH == result.received_packets


def assert_spans(
    counted_here: Mapping[str, tuple[int | None, int | None]],
    planted: Mapping[str, int],
    by_machine: Collection[str],
) -> None:
    """Assert that what was planted is at its stage: exactly, or within an interval if it may be."""
    for name in {*planted, *counted_here}:
        least, most = counted_here.get(name, (0, None))
        exact = most is None
        assert exact or name in by_machine, (name, counted_here)
        assert (least or 0) <= planted.get(name, 0) <= (least or 0 if most is None else most), (
            name,
            counted_here,
        )


def test_a_bare_name_is_the_sum_over_all_nodes(tmp_path: Path) -> None:
    """Two routers drop in FORWARD; an expectation may name either, or both at once."""

    def plants() -> None:
        plant(namespace_of("in0", "192.168.254.1"), "fwd_netfilter", f"{RECEIVER}.2")
        plant(namespace_of("in0", "192.168.252.2"), "fwd_netfilter", f"{RECEIVER}.3")

    expect = [
        f"router1.fwd_netfilter == {EACH}",
        f"router2.fwd_netfilter == {EACH}",
        f"fwd_netfilter == {2 * EACH}",
        "unaccounted == 0",
    ]
    outcome, record, result = conducted(
        tmp_path,
        load_lab("two-routers"),
        before_the_proof(plants),
        traffic=traffic(3),
        expect=expect,
    )
    assert (0, "done", 0) == (outcome.exit_code, result.status, result.unaccounted), record.error
    both = {f"router{n}.fwd_netfilter": (EACH, None) for n in (1, 2)}
    assert both == entries(result)


def test_a_time_to_live_that_is_too_short_ends_at_the_router(tmp_path: Path) -> None:
    """It is counted where it ends, by IPv4 and by IPv6."""
    loads = [
        {"traffic": traffic(1, ttl=1, family=family), "path_check": "explained"}
        for family in (4, 6)
    ]
    for record, result in conducted_each(tmp_path, load_lab("router"), *loads):
        assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
        assert {"router1.fwd_ip": (EACH, None)} == entries(result)


def test_the_ring_of_the_receiver_is_the_routers_device(tmp_path: Path) -> None:
    """Under overload what the receiver's veth has no room for is counted by the router."""
    _, record, result = conducted(
        tmp_path,
        load_lab("router"),
        send={"workers": 1},
        traffic={"flows": {"from": "65400-65403"}},
        duration="500ms",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert (result.sent_packets or 0) > 1000
    assert "tx_device" not in entries(result)


def test_full_sockets_of_frames_behind_a_full_backlog_are_told_apart(tmp_path: Path) -> None:
    """The receiver's veth counts the one, the machine the other; of each burst the router takes 9."""
    burst, limit, bursts = 32, 8, 1000
    settings = {
        "sender": {"ethtool": {"features": {"tso": False, "tx-udp-segmentation": False}}},
        "middle": {"sysctl": {"net.core.netdev_max_backlog": limit}},
    }
    _, record, result = conducted(
        tmp_path,
        load_lab("router"),
        traffic={"count": str(bursts * burst), "rate": "64kpps", "size": "32B"},
        send={"gso": burst},
        receive={"call": "af_xdp", "wait": "epoll", "work": "1ms"},
        settings=settings,
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    lost = entries(result)
    assert {"router1.fwd_backlog", "xsk_ring"} <= {*lost}
    assert "rx_backlog" not in lost
    assert (bursts * (burst - limit - 1), None) == lost["router1.fwd_backlog"]


def host_of(network: int, number: int, family: int) -> str:
    """Return an address in one of a chain's networks."""
    return f"192.168.{network}.{number}" if family == 4 else f"fd75:{network}::{number:x}"


def chain(nodes: int) -> Lab:
    """Return a built-in lab with so many routers in a row."""
    networks = [254, *range(250, 250 - nodes + 1, -1), 253]

    def both(network: int, number: int, last: str = "") -> list[str]:
        ipv4, ipv6 = (host_of(network, number, family) for family in (4, 6))
        return [f"{ipv4}{last and '-20'}/24", f"{ipv6}{last}/64"]

    middle = [
        {
            "name": f"router{n}",
            "connect": "namespace",
            "interfaces": {"in": "in0", "out": "out0"},
            "addresses": {
                "in": both(networks[n - 1], 1 if n == 1 else 2),
                "out": both(networks[n], 254 if n == nodes else 1),
            },
        }
        for n in range(1, nodes + 1)
    ]
    import yaml

    sender = {"connect": "namespace", "interface": "send0", "addresses": both(254, 30)}
    receiver = {"connect": "namespace", "interface": "receive0", "addresses": both(253, 1, "-14")}
    data = {"sender": [sender], "middle": middle, "receiver": [receiver]}
    return lab_of(yaml.safe_dump(data, sort_keys=False), Path(f"chain{nodes}.yaml"))


Fate = tuple[int, str]
"""The node at which packets to an address end, and what ends them there."""


class Fates:
    """Where packets to each of a chain's addresses end, and which of these rules rewrite."""

    def __init__(self, chance: random.Random, nodes: int) -> None:
        kinds = (*PLANTS, "blackhole")
        self.ends: dict[int, Fate | None] = {
            number: (chance.randint(1, nodes), chance.choice(kinds))
            if chance.random() < 0.7
            else None
            for number in range(2, 13)
        }
        self.nodes, self.family = nodes, chance.choice((4, 4, 6))
        self.rewritten: dict[tuple[int, int], int] = {}
        """Node and address → the backend."""
        for number in range(2, 13) if chance.random() < 0.6 else ():
            if chance.random() < 0.4:
                node, fate = chance.randint(1, nodes), self.ends[number]
                self.rewritten[node, number] = chance.choice(
                    [n for n in range(1, 13) if n != number]
                )
                if fate is not None and chance.random() < 0.5:
                    self.ends[number] = fate[0], "raw"

    def of(self, number: int) -> Fate | None:
        """Return where packets end that are sent to an address; None: they arrive."""
        for node in range(1, self.nodes + 1):
            if self.ends.get(number) == (node, "raw"):
                return node, "raw"
            number = self.rewritten.get((node, number), number)
            fate = self.ends.get(number)
            if fate is not None and fate[0] == node and fate[1] != "raw":
                return fate
        return None

    def plant(self, pids: Mapping[int, int]) -> None:
        """Make all of it at nodes."""
        version = "ip" if self.family == 4 else "ip6"
        deafen_sender(version)
        for (node, number), backend in self.rewritten.items():
            to, other = (host_of(253, each, self.family) for each in (number, backend))
            words = (version, "daddr", to, "udp", "dport", "4321", "dnat", "to", other)
            nat = {"version": version, "kind": "nat", "order": "-100"}
            rule(pids[node], "prerouting", *words, **nat)
        for number, fate in self.ends.items():
            if fate is not None:
                plant(pids[fate[0]], fate[1], host_of(253, number, self.family))

    def counted(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Return node → what its rules have dropped, of those that have any."""
        version = "ip" if self.family == 4 else "ip6"
        dropping = {fate[0] for fate in self.ends.values() if fate is not None and fate[1] in HOOKS}
        return {node: sum(counted(pids[node], version)) for node in sorted(dropping)}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(100))
def test_random_mixtures_over_chains_balance(tmp_path: Path, seed: int) -> None:
    """Each flow ends at a stage drawn for it, or arrives; nft counted the same, and 0 remains.

    Some go to addresses that a node's rules rewrite: they end as whoever has their backend does.
    """
    nodes = seed % 3 + 1
    drawn = Fates(random.Random(seed), nodes)
    pids: dict[int, int] = {}
    seen: list[dict[int, int]] = []

    def plants() -> None:
        for n in range(1, nodes + 1):
            network = 254 if n == 1 else 252 - n
            own = host_of(network, 1 if n == 1 else 2, drawn.family)
            pids[n] = namespace_of("in0", f"{own}/")
        drawn.plant(pids)

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            seen.append(drawn.counted(pids))

    size = "200B" if drawn.family == 4 else "1400B"
    load = traffic(12, size=size, family=drawn.family)
    _, record, result = conducted(
        tmp_path, chain(nodes), tell, traffic=load, path_check="explained"
    )
    nodes_counted = {
        (phase.name, edge, name): dict(each.counters)
        for phase in record.phases
        for edge, snapshots in (("before", phase.before), ("after", phase.after))
        for name, each in snapshots.items()
        if name.startswith("router")
    }
    assert ("done", 0) == (result.status, result.unaccounted), (
        *(record.error, entries(result), drawn.__dict__, seen, result.received_packets),
        nodes_counted,
    )
    ended = [drawn.of(number) for number in range(1, 13)]
    expected: dict[str, int] = {}
    for fate in filter(None, ended):
        name = f"router{fate[0]}.{COUNTED_AT.get(fate[1], fate[1])}"
        expected[name] = expected.get(name, 0) + EACH
    silent = ("fwd_route", "fwd_rp_filter")
    by_machine = {f"router{n}.{stage}" for n in pids for stage in silent}
    assert_spans(entries(result), expected, by_machine)
    counts = {node: packets - seen[0][node] for node, packets in seen[-1].items()}
    by_rules = {
        node: EACH * sum(fate[0] == node and fate[1] in HOOKS for fate in filter(None, ended))
        for node in counts
    }
    assert by_rules == counts
    assert EACH * ended.count(None) == result.received_packets


@pytest.mark.long
def test_what_netem_drops_behind_a_vlan_is_the_queue_of_the_node(
    there: There, tmp_path: Path
) -> None:
    """The sender's packets have a tag up to the node, whose emulator draws which get no further."""
    for short, end, own in (("red", "eth0", 2), ("gateway", "eth1", 1)):
        try:
            there.inside(short, f"ip link add link {end} name vlan5 type vlan id 5")
        except AssertionError:
            pytest.skip("no VLAN in this kernel")
        there.inside(short, f"ip addr add 10.5.0.{own}/24 dev vlan5")
        there.inside(short, "ip link set vlan5 up")
    there.inside("red", "ip route replace default via 10.5.0.1")
    there.inside("gateway", "tc qdisc add dev eth2 root netem loss 20%")
    drops: list[int] = []

    def tell(progress: Progress) -> None:
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            (queue,) = json.loads(there.inside("gateway", "tc -s -j qdisc show dev eth2"))
            drops.append(queue["drops"])

    node = {
        "name": "gateway",
        "connect": {"netns": there.name("gateway")},
        "interfaces": {"in": "vlan5", "out": "eth2"},
    }
    lab = there.lab_of(there.end("blue"), "vlan5", middle=[node])
    load = traffic(1) | {"count": "200"}
    _, record, result = conducted(tmp_path, lab, tell, traffic=load, path_check="explained")
    lost = drops[-1] - drops[0]
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert 200 - lost == result.received_packets
    assert lost > 0
    assert (0, lost) == entries(result)["gateway.fwd_qdisc"], (
        "other users' packets may be among them"
    )


# --- what must not leave the lab -----------------------------------------------------------------


@contextmanager
def way_out(pid: int) -> Iterator[Callable[[], int]]:
    """Give a node another interface with a carrier; yield how many packets have left by it."""
    for words in (
        "ip link add leak0 type veth peer name leak1",
        "ip addr add 10.9.9.1/24 dev leak0",
        "ip neigh add 10.9.9.2 lladdr 02:00:00:00:09:09 dev leak0",
        "ip link set leak0 up",
        "ip link set leak1 up",
    ):
        inside(pid, *words.split())

    def left() -> int:
        path = "/sys/class/net/leak0/statistics/tx_packets"
        return int(inside(pid, "nsenter", "-t", str(pid), "-m", "cat", path))

    yield left


def quiet(pid: int) -> None:
    """Keep IPv6's own packets off every interface that is made from now on."""
    Path(f"/proc/{pid}/root/proc/sys/net/ipv6/conf/default/disable_ipv6")
    inside(pid, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (f"ip route add {RECEIVER}.2/32 via 10.9.9.2", "would leave by leak0, not by out0"),
        (
            "nft add rule ip nat p udp dport 4321 dnat to 10.9.9.2",
            "a rule may send packets to 10.9.9.2",
        ),
        (
            "nft add rule ip nat p dnat to numgen inc mod 2 map { 0 : 192.168.253.1, 1 : 10.9.9.2 }",
            "10.9.9.2",
        ),
        (
            (
                f"nft add rule ip nat p dnat to {RECEIVER}.9 "
                f"&& ip route add {RECEIVER}.9/32 via 10.9.9.2"
            ),
            "would leave by leak0, not by out0",
        ),
        ("ip rule add fwmark 7 table 77", "a mark"),
        (
            f"ip route add {RECEIVER}.2/32 nexthop via 192.168.253.1 nexthop via 10.9.9.2",
            "several next hops",
        ),
        (f"ip route add {RECEIVER}.2/32 via 192.168.253.99", "no address of receiver"),
        (
            f"ip route add {RECEIVER}.2/32 encap seg6 mode encap segs fc00:9::2 dev out0",
            "a route that encapsulates",
        ),
        (
            "nft add rule ip nat p iifname @ifs dnat to 10.9.9.2",
            "a rule may send packets to 10.9.9.2",
        ),
        ("nft add rule ip nat p ip daddr set 10.9.9.2", "mangle may lead packets elsewhere"),
        (
            (
                "sysctl -qw net.ipv4.nexthop_compat_mode=0 && ip nexthop add id 1 via 10.9.9.2 dev leak0 "
                "&& ip nexthop add id 2 via 192.168.253.2 dev out0 && ip nexthop add id 3 group 1/2 "
                f"&& ip route add {RECEIVER}.2/32 nhid 3"
            ),
            "several next hops",
        ),
        (
            (
                "iptables -t mangle -A PREROUTING -j TOS --set-tos 0x10 "
                f"&& ip route add {RECEIVER}.2/32 tos 0x10 via 10.9.9.2"
            ),
            f"a route to {RECEIVER}.2 by the type of service",
        ),
        (
            (
                "iptables -t mangle -A POSTROUTING -m comment --comment --notrack "
                "-j TEE --gateway 10.9.9.2"
            ),
            "-j TEE",
        ),
    ],
)
def test_what_a_node_would_send_elsewhere_is_refused(tmp_path: Path, words: str, why: str) -> None:
    """Routes, next hops, marks and every backend of a rule are looked at before anything is sent."""
    seen: list[int] = []

    def plants() -> None:
        pid = namespace_of("out0")
        quiet(pid)
        with way_out(pid) as left:
            if "nft" in words:
                inside(pid, "nft", "add", "table", "ip", "nat")
                hook = "{ type nat hook prerouting priority dstnat ; }"
                inside(pid, "nft", "add", "chain", "ip", "nat", "p", hook)
                of_names = "{ type ifname ; elements = { in0 } ; }"
                inside(pid, "nft", "add", "set", "ip", "nat", "ifs", of_names)
            for each in words.split(" && "):
                inside(pid, *each.split())
            seen.append(left())

    def tell(progress: Progress) -> None:
        before_the_proof(plants)(progress)
        if progress.event == "step" and progress.text != "safety" and seen:
            seen.append(-1)

    _, record, _ = conducted(tmp_path, load_lab("router"), tell, traffic=traffic(3))
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.kind == "SafetyError", record.error
    assert why in record.error.message
    assert [0] == seen, "nothing left, and no step followed"


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "words",
    [
        "ip route add 10.77.0.0/16 via 192.168.253.1",
        "nft add table ip attack",
        "ip neigh replace 192.168.253.2 lladdr 02:00:00:00:00:07 dev out0",
        (
            "tc qdisc add dev in0 clsact && tc filter add dev in0 ingress protocol ip u32 match u32 0 0 "
            "action mirred egress mirror dev lo"
        ),
        "iptables -t mangle -A PREROUTING -p udp -j TEE --gateway 192.168.253.77",
        "iptables-legacy -t mangle -A PREROUTING -p udp -j TEE --gateway 192.168.253.77",
        (
            "nft add table ip dups && nft add chain ip dups p { type filter hook prerouting "
            "priority 0 ; } && nft add rule ip dups p dup to 192.168.253.77"
        ),
    ],
)
def test_a_change_on_the_path_stops_the_senders(tmp_path: Path, words: str) -> None:
    """Whoever changes a route, a rule or a neighbour of a node ends the trial within its time."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not done:
            pid = namespace_of("out0")
            done.extend(inside(pid, *each.split()) for each in words.split(" && "))

    load = traffic(2) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, load_lab("router"), tell, traffic=load, send=ASLEEP)
    assert record.status == "failed"
    assert record.error is not None
    assert ("SafetyError", "router1") == (record.error.kind, record.error.host)
    assert "the senders were stopped" in record.error.message
    sent = sum(stats.counts.get("sent_packets", 0) for stats in record.phases[-1].stats)
    assert sent < 5000


def is_sent(progress: Progress) -> bool:
    """Return whether packets of the load have been sent by a sample."""
    sent = sum(sample.counts.get("sent_packets", 0) for sample in progress.samples)
    return progress.event == "sample" and progress.text == "measured" and sent > 0


def test_a_rule_of_legacy_iptables_that_is_exchanged_stops_the_senders(tmp_path: Path) -> None:
    """There are as many as before, and nf_tables knows nothing of them."""
    done: list[str] = []
    rule = "iptables-legacy -t raw -{} PREROUTING {} -d 192.0.2.{} -j DROP"

    def tell(progress: Progress) -> None:
        before_the_proof(lambda: change("A", "", 1))(progress)
        if is_sent(progress) and len(done) == 1:
            change("R", "1", 2)

    def change(*words: object) -> None:
        done.append(inside(namespace_of("out0"), *rule.format(*words).split()))

    load = traffic(2) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, load_lab("router"), tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert ("SafetyError", "router1") == (record.error.kind, record.error.host)
    assert "firewall were changed there" in record.error.message
    sent = sum(stats.counts.get("sent_packets", 0) for stats in record.phases[-1].stats)
    assert (2, True) == (len(done), 0 < sent < 5000)


def test_a_program_of_tcx_on_the_path_stops_the_senders(tmp_path: Path) -> None:
    """Although the kernel notifies nobody of it."""
    attached: list[OthersProgram] = []

    def tell(progress: Progress) -> None:
        if is_sent(progress) and not attached:
            attached.append(OthersProgram(namespace_of("out0"), "in0"))
        if progress.event == "trial":
            attached[0].end()

    load = traffic(2) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, load_lab("router"), tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert ("SafetyError", "router1") == (record.error.kind, record.error.host)
    assert "programs were changed there" in record.error.message
    sent = sum(stats.counts.get("sent_packets", 0) for stats in record.phases[-1].stats)
    assert 0 < sent < 5000


TRANSPORT = {
    "udp dport": ["4321", "53", "!= 53", "1-9", "4000-5000", "{ 53, 4321 }", "{ 1-9 }", "@ports"],
    "meta l4proto": ["udp", "tcp", "{ tcp, udp }", "!= tcp", "@protocols", "17"],
    "tcp dport": ["4321"],
    "ip protocol": ["udp", "!= udp"],
    "@th,16,16": ["4321", "53"],
    "udp dport & 1": ["1", "0"],
}
NETWORK = {
    "ip daddr": [
        *("127.0.0.2", "127.0.0.3", "!= 127.0.0.3", "127.0.0.0/8", "10.0.0.0/8", "@addresses"),
        *("127.0.0.1-127.0.0.9", "{ 127.0.0.2, 10.0.0.1 }", "!= @addresses"),
    ],
}
INTERFACES = {
    "output": {"oifname": ["lo", "!= eth9"]},
    "prerouting": {"iifname": ["lo", "eth9", '"l*"', "@names", "{ eth9, lo }", "!= eth9"]},
}
ALONE = {
    "ip6 daddr": ["::1"],
    "ip daddr . udp dport": [
        *("{ 127.0.0.2 . 4321 }", "@services"),
        "{ 127.0.0.2 . 53, 127.0.0.3 . 4321 }",
    ],
    "meta mark": ["0", "!= 7"],
}
"""What a rule of nft compares → with what; a packet goes by lo to 127.0.0.2, port 4321."""
SETS = """
set ports { type inet_service ; elements = { 4321 } ; }
set addresses { type ipv4_addr ; elements = { 127.0.0.2 } ; }
set protocols { type inet_proto ; elements = { udp } ; }
set names { type ifname ; elements = { lo } ; }
set services { type ipv4_addr . inet_service ; elements = { 127.0.0.2 . 4321 } ; }
"""
BY_IPTABLES = (
    ["", "-d 127.0.0.2/32", "! -d 10.0.0.0/8", "-d 10.0.0.0/8", "-s 127.0.0.0/8"],
    [
        *("", "-p udp", "! -p tcp", "-p tcp", "-p udp --dport 4321", "-p udp ! --dport 53"),
        *("-p udp --dport 4000:5000", "-p udp --dport :53"),
        "-p udp -m multiport --dports 53,4321",
    ],
    ["", *(f"-m comment --comment {option}" for option in ("-p", "-i", "-d", "--dport"))],
)
SEND = "import socket; socket.socket(2, 2).sendto(b'', ('127.0.0.2', 4321))"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(20))
def test_a_rule_that_packets_pass_is_never_taken_for_others(seed: int) -> None:
    """Random rules of nft and iptables count a packet that is sent; each that did is read."""
    chance = random.Random(seed)
    hooks = ("output", "prerouting")

    def drawn(hook: str) -> str:
        groups = chance.choice(([TRANSPORT, NETWORK, INTERFACES[hook]], [ALONE]))
        picked = chance.sample(groups, chance.randint(1, len(groups)))
        keys = [(group, chance.choice([*group])) for group in picked]
        return " ".join(f"{key} {chance.choice(group[key])}" for group, key in keys)

    chains = {hook: "\n".join(f"{drawn(hook)} counter" for _ in range(60)) for hook in hooks}
    lines = (
        f"chain {hook} {{ type filter hook {hook} priority 0 ;\n{rules}\n}}"
        for hook, rules in chains.items()
    )
    ruleset = f"table inet t {{ {SETS}\n" + "\n".join(lines) + "\n}\n"
    written = [
        " ".join(["-A", hook.upper(), *map(chance.choice, BY_IPTABLES)])
        + (chance.choice((" -i lo", " ! -i eth9", " -i l+", "")) if hook == "prerouting" else "")
        for hook in hooks
        for _ in range(30)
    ]
    restored = "*raw\n" + "\n".join(written) + "\nCOMMIT\n"
    script = (
        'ip link set lo up; nft -f - <<<"$1" || exit 1; iptables-restore <<<"$2" || exit 1\n'
        f'{sys.executable} -c "$3"; nft -j list table inet t; iptables-save -c -t raw'
    )
    words = ["unshare", "-n", "bash", "-c", script, "bash", ruleset, restored, SEND]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed, _, saved = done.stdout.partition("\n")
    ours = {
        "output": FlowMarks((), ("127.0.0.2",), (4321,)),
        "prerouting": FlowMarks(("lo",), ("127.0.0.2",), (4321,)),
    }
    read = {True: 0, False: 0}
    for rule in (item["rule"] for item in json.loads(listed)["nftables"] if "rule" in item):
        passed = any(each.get("counter", {}).get("packets") for each in rule["expr"])
        shown = of_nft(
            [{"rule": {**rule, "expr": [*rule["expr"], {"redirect": None}]}}], ours[rule["chain"]]
        )
        assert shown.unread or not passed, rule
        read[passed or not shown.unread] += 1
    for line in (each for each in saved.splitlines() if each.startswith("[")):
        counter, _, rest = line.partition(" ")
        passed = not counter.startswith("[0:")
        shown = of_iptables(f"{rest} -j REDIRECT", ours[rest.split()[1].lower()])
        assert shown.unread or not passed, line
        read[passed or not shown.unread] += 1
    assert read[True] > 2 * read[False], "most are judged as the kernel does"


# --- namespaces that are there already -----------------------------------------------------------


class There:
    """Four namespaces that exist before the run: red, a gateway, blue, and what lies beyond."""

    names = ("red", "gateway", "blue", "beyond")

    def __init__(self) -> None:
        self.prefix = f"ub{os.getpid()}"

    def name(self, short: str) -> str:
        """Return a namespace's name."""
        return f"{self.prefix}-{short}"

    def inside(self, short: str, words: str) -> str:
        """Run a program there."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name(short), *words.split()],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (short, words, done.stderr)
        return done.stdout

    def open(self) -> None:
        """Make them, with a link from each to the gateway."""
        for short in self.names:
            subprocess.run(["ip", "netns", "add", self.name(short)], check=True)
            self.inside(short, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
            self.inside(short, "ip link set lo up")
        for n, short in enumerate(("red", "blue", "beyond"), 1):
            peer = self.name(short)
            self.inside("gateway", f"ip link add eth{n} type veth peer name eth0 netns {peer}")
            self.inside("gateway", f"ip addr add 10.{n}.0.1/24 dev eth{n}")
            self.inside(short, f"ip addr add 10.{n}.0.2/24 dev eth0")
            self.inside("gateway", f"ip link set eth{n} up")
            self.inside(short, "ip link set eth0 up")
            self.inside(short, f"ip route add default via 10.{n}.0.1")
        self.inside("blue", "ip addr add 10.2.0.3/24 dev eth0")
        self.inside("gateway", "sysctl -qw net.ipv4.ip_forward=1")

    def close(self) -> None:
        """Remove them."""
        for short in self.names:
            subprocess.run(["ip", "netns", "del", self.name(short)], check=False)

    def lab(self, receiver: str = "", **node: Any) -> Lab:
        """Return the lab of red, the gateway and blue; nothing of it is made."""
        middle = {
            "name": "gateway",
            "connect": {"netns": self.name("gateway")},
            "interfaces": {"in": "eth1", "out": "eth2"},
            **node,
        }
        blue = self.end("blue") | ({"connect": {"container": receiver}} if receiver else {})
        return self.lab_of(blue, middle=[middle])

    def pair(self) -> Lab:
        """Return the lab of red and the gateway, without a node between them."""
        return self.lab_of(self.end("gateway", "eth1"))

    def end(self, short: str, interface: str = "eth0") -> dict[str, Any]:
        """Return a host as a lab file has it."""
        place = {"netns": self.name(short)}
        return {"connect": place, "interface": interface, "addresses": "existing"}

    def lab_of(self, receiver: dict[str, Any], interface: str = "eth0", **nodes: Any) -> Lab:
        """Return the lab in which red sends."""
        import yaml

        cpus = sorted(os.sched_getaffinity(0))
        red, to = (
            self.end("red", interface) | {"cpus": str(cpus[-1])},
            receiver | {"cpus": str(cpus[0])},
        )
        data = {"sender": [red], **nodes, "receiver": [to]}
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("there.yaml"))

    def state(self) -> str:
        """Return what a run must leave as it was."""
        asked = ("ip -o addr", "ip route", "nft list ruleset", "sysctl -n net.ipv4.ip_forward")
        return "\n".join(self.inside(short, words) for short in self.names for words in asked)


@pytest.fixture
def there() -> Iterator[There]:
    """Yield namespaces that were made as an administrator makes them."""
    namespaces = There()
    try:
        namespaces.open()
        yield namespaces
    finally:
        namespaces.close()


def test_namespaces_that_are_there_are_measured_and_left_as_they_were(
    there: There, tmp_path: Path
) -> None:
    """The gateway is read only, its losses are counted at their stage, and it keeps its settings."""
    there.inside("gateway", "nft add table ip own")
    there.inside("gateway", "nft add chain ip own f { type filter hook forward priority 0 ; }")
    there.inside("gateway", "nft add rule ip own f ip daddr 10.2.0.3 udp dport 4321 drop")
    before = there.state()
    outcome, record, result = conducted(tmp_path, there.lab(), traffic=traffic(2))
    assert (0, "done", 0) == (outcome.exit_code, result.status, result.unaccounted), record.error
    assert {"gateway.fwd_netfilter": (EACH, None)} == entries(result), result.ledger
    assert (False, True) == (record.built_in_lab, record.wired)
    assert () == record.changes["gateway"]
    assert before == there.state()


def test_a_lost_namespace_is_not_called_restored_for_another_of_its_name(
    there: There, tmp_path: Path
) -> None:
    """Its agent and its guardian were killed, and what their name leads to now has nothing to undo."""
    first = (Path("/run/netns") / there.name("red")).stat().st_ino
    with subprocess.Popen(["ip", "netns", "exec", there.name("red"), "sleep", "1000"]) as inside:
        changed: list[str] = []

        def tell(progress: Progress) -> None:
            if progress.event == "sample" and not changed:
                changed.append(there.inside("red", "ip link show eth0"))
                exchange(there, "red", inside.pid)

        try:
            load = traffic(1) | {"rate": "500pps", "count": "1500"}
            settings = {"sender": {"txqueuelen": 77}}
            outcome, _, _ = conducted(
                tmp_path, there.pair(), tell, traffic=load, send=ASLEEP, settings=settings
            )
            assert "qlen 77" in changed[0]
            (why,) = outcome.restore_errors
            assert "its name leads to another network namespace" in str(why)
            assert 4 == outcome.exit_code
        finally:
            inside.kill()
    for journal in Path("/run/udpbench").glob(f"*-{first}.jsonl"):  # of what has ended by now
        journal.unlink()


def exchange(there: There, short: str, kept: int) -> None:
    """Give a namespace's name to another with the same interface, and kill what is in the first."""
    was = Path(f"/proc/{kept}/ns/net").stat().st_ino
    name, path = there.name(short), Path("/run/netns") / there.name(short)
    subprocess.run(["umount", path], check=True)
    path.unlink()
    subprocess.run(["ip", "netns", "add", name], check=True)
    there.inside(short, "ip link add eth0 type veth peer name away")
    there.inside(short, "ip addr add 10.1.0.2/24 dev eth0")
    there.inside(short, "ip link set eth0 up")
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == was and process.pid != kept:
                process.kill()


def test_a_container_is_the_namespace_of_its_first_process(
    there: There, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pid that the engine tells; one that does not run is named, and nothing is started."""
    enter = ["ip", "netns", "exec", there.name("blue"), "sleep", "1000"]
    with subprocess.Popen(enter) as process:
        engine = tmp_path / "bin" / "docker"
        engine.parent.mkdir()
        engine.write_text(
            f'#!/bin/sh\n[ "$5" = web ] && echo {process.pid} && exit\necho no such object >&2; exit 1\n'
        )
        engine.chmod(0o755)
        monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
        try:
            _, record, result = conducted(tmp_path, there.lab("web"), traffic=traffic(1))
            assert ("done", 0) == (result.status, result.unaccounted), record.error
            assert EACH == result.received_packets
            gone = run_error(tmp_path / "gone", there.lab("gone"))
            assert "container gone: docker: no such object" in gone
        finally:
            process.kill()


def has_ipv6(there: There) -> None:
    """Give every link but that to what lies beyond addresses of IPv6, too, and routes over them."""
    for short, name, address in (
        *(("red", "eth0", "fc00:1::2"), ("gateway", "eth1", "fc00:1::1")),
        *(("blue", "eth0", "fc00:2::2"), ("gateway", "eth2", "fc00:2::1")),
    ):
        own = f"net.ipv6.conf.{name}"
        there.inside(short, f"sysctl -qw {own}.accept_dad=0 {own}.disable_ipv6=0")
        there.inside(short, f"ip addr add {address}/64 dev {name} nodad")
    there.inside("red", "ip route add default via fc00:1::1")
    there.inside("blue", "ip route add default via fc00:2::1")


def leads_through_ipv6(there: There) -> None:
    """Give the gateway a way of IPv6, too, to what lies beyond, which counts what comes."""
    for short, words in (
        ("gateway", "sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.seg6_enabled=1"),
        (
            "gateway",
            # What an address' check for duplicates brings, comes later, and is a change of routes.
            "sysctl -qw net.ipv6.conf.eth1.accept_dad=0 net.ipv6.conf.eth3.accept_dad=0",
        ),
        (
            "gateway",
            "sysctl -qw net.ipv6.conf.eth3.disable_ipv6=0 net.ipv6.conf.eth1.disable_ipv6=0",
        ),
        ("gateway", "ip addr add fc00:3::1/64 dev eth3 nodad"),
        ("gateway", "ip neigh add fc00:3::2 lladdr 02:00:00:00:00:03 dev eth3"),
        ("beyond", "nft add table netdev counts"),
        (
            "beyond",
            "nft add chain netdev counts i { type filter hook ingress device eth0 priority 0 ; }",
        ),
        ("beyond", "nft add rule netdev counts i meta l4proto != icmpv6 counter"),
    ):
        there.inside(short, words)


def run_error(folder: Path, lab: Lab) -> str:
    """Return the error of a run that does not begin."""
    experiment = load_experiment_data({**TINY, "traffic": traffic(1)}, "tiny")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder / "run", header)
    outcome = run([experiment], lab, writer, lambda _: None, RunOptions(seed=1))
    return str(outcome.error)


REDIRECT = """
import socket, struct

def summed(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~(total % 65535) & 65535

sender, receiver, other = map(socket.inet_aton, ("10.1.0.2", "10.2.0.2", "10.1.0.66"))
inside = struct.pack("!BBHHHBBH4s4s", 69, 0, 28, 1, 0, 64, 1, 0, sender, receiver)
inside = inside[:10] + struct.pack("!H", summed(inside)) + inside[12:] + bytes(8)
text = struct.pack("!BBH4s", 5, 1, 0, other) + inside
text = text[:2] + struct.pack("!H", summed(text)) + text[4:]
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(text, ("10.1.0.2", 0))
"""


def test_who_redirects_packets_stops_the_senders(there: There, tmp_path: Path) -> None:
    """Anybody on the link may, in the name of a router; the kernel tells nobody of it."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not done:
            namespace = there.name("gateway")
            words = ["ip", "netns", "exec", namespace, sys.executable, "-c", REDIRECT]
            done.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, there.lab(), tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert "redirects were changed there" in record.error.message


def changed_meanwhile(there: There, folder: Path, words: str) -> tuple[TrialRecord, Result]:
    """Return what comes of a trial without nodes in which a change is made at the sender."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.extend(there.inside("red", each) for each in words.split(" && "))

    load = traffic(1) | {"rate": "500pps", "count": "1500"}
    _, record, result = conducted(folder, there.pair(), tell, traffic=load, send=ASLEEP)
    assert done, record.error
    return record, result


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("ip route add 10.1.0.1/32 via 10.1.0.66", "routes"),
        ("ip route add 10.1.0.1/32 dev eth0 table 7 && ip rule add dport 4321 lookup 7", "routes"),
        ("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:07 dev eth0", "neighbours"),
        (
            (
                "tc qdisc add dev eth0 clsact && tc filter add dev eth0 egress protocol ip "
                "u32 match u32 0 0 action mirred egress mirror dev lo"
            ),
            "filters",
        ),
    ],
)
def test_without_nodes_senders_stop_when_their_way_is_another(
    there: There, tmp_path: Path, words: str, what: str
) -> None:
    """Nobody in between has a guard, and a neighbour on the link may answer in a receiver's place."""
    record, _ = changed_meanwhile(there, tmp_path, words)
    assert record.error is not None
    assert ("SafetyError", "sender") == (record.error.kind, record.error.host)
    assert f"{what} were changed there" in record.error.message
    sent = sum(stats.counts.get("sent_packets", 0) for stats in record.phases[-1].stats)
    assert sent < 1500


@pytest.mark.parametrize("late", ["receiver", "controller"])
def test_senders_stop_whoever_does_not_answer(
    there: There, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """A receiver that its load overruns holds the controller up, or that is stopped itself."""
    done: list[str] = []
    ask = AgentClient.sample
    counter = "cat /sys/class/net/eth0/statistics/tx_packets"
    known = {"packets": 0, "since_ns": 0}

    def is_silent() -> bool:
        packets, now_ns = int(there.inside("red", counter)), time.monotonic_ns()
        if packets != known["packets"]:
            known.update(packets=packets, since_ns=now_ns)
        return now_ns - known["since_ns"] > SECOND_NS // 10

    def change() -> None:
        words = "ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:07 dev eth0"
        done.append(there.inside("red", words))
        wait_until("the sender sends no more", is_silent, 10)

    def sample(client: AgentClient, since: int) -> SampleReply:
        if late == client.part == "receiver" and begun and not done:
            change()
        return ask(client, since)

    begun: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured":
            begun.append(progress.text)
            if late == "controller" and not done:
                change()

    monkeypatch.setattr(AgentClient, "sample", sample)
    load = traffic(1) | {"rate": "500pps", "count": "10000"}
    keys = {"send": ASLEEP, "duration": "20s"}
    _, record, _ = conducted(tmp_path, there.pair(), tell, traffic=load, **keys)
    assert done, record.error
    assert record.error is not None
    assert ("SafetyError", "sender") == (record.error.kind, record.error.host)
    assert "neighbours were changed there" in record.error.message
    assert ("nobody asked" in record.error.message) or late == "receiver"


ANSWERS_LATER = r"""
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
link.bind(("eth1", 0))
own, asked = bytes.fromhex("020000000066"), 0
print("hears", flush=True)
while True:
    frame = link.recv(2000)
    if frame[20:22] == b"\0\1" and frame[38:42] == socket.inet_aton("10.1.0.1"):
        asked += frame[:6] == b"\xff" * 6
        # By then nobody has answered for several looks.
        if asked > 3 or frame[:6] == own:
            ends = own + frame[38:42] + frame[22:32]
            link.send(frame[6:12] + own + frame[12:20] + b"\0\2" + ends)
"""


def test_who_answers_once_a_receiver_was_silent_stops_its_sender(
    there: There, tmp_path: Path
) -> None:
    """Its load may keep a receiver from answering; the next who does may be anybody."""
    own = "/proc/sys/net/ipv4/neigh/eth0"
    times = {"base_reachable_time_ms": 200, "delay_first_probe_time": 1, "retrans_time_ms": 200}
    for name, value in {**times, "mcast_solicit": 1, "ucast_solicit": 1}.items():
        there.inside("red", f"sysctl -qw {own[10:].replace('/', '.')}.{name}={value}")
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            there.inside("gateway", "nft add table arp x")
            there.inside(
                "gateway", "nft add chain arp x o { type filter hook output priority 0 ; }"
            )
            silent = "nft add rule arp x o arp saddr ether != 02:00:00:00:00:66 drop"
            done.append(there.inside("gateway", silent))

    load = traffic(1) | {"rate": "500pps", "count": "10000"}
    keys = {"send": ASLEEP, "duration": "20s"}
    with held(there, "gateway", sys.executable, "-c", ANSWERS_LATER, says="hears"):
        _, record, _ = conducted(tmp_path, there.pair(), tell, traffic=load, **keys)
    assert done, record.error
    assert record.error is not None
    assert "neighbours were changed there" in record.error.message


@pytest.mark.parametrize("change", ["address", "link"])
def test_a_route_of_the_kernels_by_another_interface_stops_the_senders(
    there: There, tmp_path: Path, change: str
) -> None:
    """As a DHCP server of another network may cause, or whoever plugs in a cable."""
    if change == "link":
        waits = "net.ipv4.conf.eth3.ignore_routes_with_linkdown=1"
        there.inside("gateway", f"sysctl -qw {waits}")
        there.inside("beyond", "ip link set eth0 down")
        there.inside("gateway", "ip route add 10.2.0.2/32 dev eth3")
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            short, words = {
                "address": ("gateway", "ip addr add 10.2.0.9/28 dev eth3"),
                "link": ("beyond", "ip link set eth0 up"),
            }[change]
            done.append(there.inside(short, words))

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, there.lab(), tell, traffic=load, send=ASLEEP)
    assert done, record.error
    assert record.error is not None
    assert ("SafetyError", "gateway") == (record.error.kind, record.error.host)
    assert "were changed there" in record.error.message


ECHOED = {"traffic": {"echo": 1}}
ANSWERED = {
    "traffic": {"payload": {"hex": "0000beef"}, "answers": "count"},
    "receive": {"command": ["true"]},
}
DUPLICATES = (
    "nft add table ip x && nft add chain ip x o { type filter hook output priority 0 ; } && "
    "nft add rule ip x o udp sport 4321 dup to 10.1.0.66 device eth1"
)


@pytest.mark.parametrize(
    ("nodes", "place", "words", "why"),
    [
        (1, "blue", "ip route replace default via 10.2.0.66", "10.2.0.66 is no address of gateway"),
        (1, "gateway", "ip route add 10.1.0.2/32 via 10.3.0.2", "leave by eth3, not by eth1"),
        (0, "gateway", "ip route add 10.1.0.2/32 via 10.1.0.66", "goes through gateway 10.1.0.66"),
        (0, "gateway", DUPLICATES, "nft rule 2 of ip x o: dup may lead packets elsewhere"),
    ],
)
def test_nothing_is_sent_whose_replies_would_be_led_elsewhere(
    there: There, tmp_path: Path, nodes: int, place: str, words: str, why: str
) -> None:
    """A receiver's own default route, or a rule that was there, sends packets as a sender's do.

    Echoes as well as a program's answers.
    """
    for each in words.split(" && "):
        there.inside(place, each)
    lab = there.lab() if nodes else there.pair()
    loads = [keys | {"traffic": traffic(1) | keys["traffic"]} for keys in (ECHOED, ANSWERED)]
    for record, _ in conducted_each(tmp_path, lab, *loads):
        assert record.error is not None
        assert "nothing was sent, as replies might leave the lab: " in record.error.message
        assert why in record.error.message
        assert () == record.phases


@pytest.mark.parametrize(
    ("nodes", "place", "words", "what"),
    [
        (1, "blue", "ip route add 10.1.0.2/32 via 10.2.0.66", "routes"),
        (1, "blue", "ip neigh replace 10.2.0.1 lladdr 02:00:00:00:00:07 dev eth0", "neighbours"),
        (0, "gateway", "ip neigh replace 10.1.0.2 lladdr 02:00:00:00:00:07 dev eth1", "neighbours"),
    ],
)
def test_senders_stop_when_replies_are_led_elsewhere_meanwhile(
    there: There, tmp_path: Path, nodes: int, place: str, words: str, what: str
) -> None:
    """Whoever answers ARP in the sender's place gets its echoes until then."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.append(there.inside(place, words))

    lab = there.lab() if nodes else there.pair()
    load = traffic(1) | {"rate": "500pps", "count": "1500", "echo": 1}
    _, record, _ = conducted(tmp_path, lab, tell, traffic=load, send=ASLEEP)
    assert record.error is not None
    assert ("SafetyError", "receiver") == (record.error.kind, record.error.host)
    assert f"{what} were changed there" in record.error.message
    sent = sum(stats.counts.get("sent_packets", 0) for stats in record.phases[-1].stats)
    assert sent < 1500


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name",
    ["nat", "two-routers", "containers", "published-port", "bridge", "vxlan", "wireguard"],
)
def test_replies_come_back_over_every_kind_of_node(tmp_path: Path, name: str) -> None:
    """Each is proven backwards as well, and nothing in it is taken for another way."""
    # Slowly: echoes of what a starved receiver reads late come after the phase.
    load = traffic(1, rate="50pps", echo=1)
    if name == "published-port":
        load["flows"] |= {"published": "docker.addresses[1]:8080"}
    _, record, result = conducted(tmp_path, load_lab(name), traffic=load)
    assert ("done", EACH) == (record.status, result.received_packets), record.error
    echoed, came = (
        sum(stats.counts.get(name, 0) for stats in record.phases[-1].stats)
        for name in ("echoed_packets", "echo_packets")
    )
    assert 0 < came <= echoed == EACH


@pytest.fixture
def bridged(there: There) -> None:
    """Let red send by a bridge that has its interface as a port."""
    for words in (
        "ip link add br0 type bridge",
        "ip addr flush dev eth0",
        "ip link set eth0 master br0",
        "ip addr add 10.1.0.2/24 dev br0",
        "ip link set br0 up",
    ):
        there.inside("red", words)


@pytest.mark.usefixtures("bridged")
def test_nothing_is_sent_past_a_filter_below_the_senders_interface(
    there: There, tmp_path: Path
) -> None:
    """A port of its bridge, or the device of its VLAN, may have one; also if it comes meanwhile."""
    there.inside("red", "tc qdisc add dev eth0 clsact")
    leads_away = "dev eth0 egress protocol ip u32 match u32 0 0 action mirred egress mirror dev lo"
    lab = there.lab_of(there.end("gateway", "eth1"), "br0")
    there.inside("red", f"tc filter add {leads_away}")
    _, record, _ = conducted(tmp_path / "before", lab, traffic=traffic(1))
    assert record.error is not None
    assert "a tc filter on eth0 may lead packets elsewhere" in record.error.message
    there.inside("red", "tc filter del dev eth0 egress")
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.append(there.inside("red", f"tc filter add {leads_away}"))

    load = traffic(1) | {"rate": "500pps", "count": "1500"}
    _, record, _ = conducted(tmp_path, lab, tell, traffic=load)
    assert record.error is not None
    assert "filters were changed there" in record.error.message


MOVES_A_STATION = """
import socket, sys
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
frames.bind(("stray0", 0))
station = bytes.fromhex(sys.argv[1].replace(":", ""))
frames.send(bytes([255]) * 6 + station + bytes([0x88, 0xB5]) + bytes(50))
"""


@pytest.fixture
def further_port(there: There, bridged: None) -> None:
    """Give the sender's bridge another port, as another container has one."""
    del bridged
    for words in (
        "ip link add port1 type veth peer name stray0",
        "ip link set port1 master br0 up",
        "ip link set stray0 up",
    ):
        there.inside("red", words)


@pytest.mark.usefixtures("further_port")
def test_a_frame_of_another_port_of_the_senders_bridge_stops_it(
    there: There, tmp_path: Path
) -> None:
    """Another container's may have the receiver's MAC, and the bridge believes it."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            mac = json.loads(there.inside("red", "ip -j neigh show 10.1.0.1 dev br0"))[0]["lladdr"]
            words = ["ip", "netns", "exec", there.name("red"), sys.executable, "-c"]
            subprocess.run([*words, MOVES_A_STATION, mac], check=True)
            done.append(mac)

    lab = there.lab_of(there.end("gateway", "eth1"), "br0")
    load = traffic(1) | {"rate": "500pps", "count": "1500"}
    _, record, _ = conducted(tmp_path, lab, tell, traffic=load, send=ASLEEP)
    assert done, record.error
    assert record.error is not None
    assert "neighbours were changed there" in record.error.message


def behind_its_bridge(there: There, nodes: int) -> Lab:
    """Return the lab in which red sends by br0, over the gateway or to it."""
    lab = there.lab() if nodes else there.pair()
    hosts = [replace(h, interface="br0") if h.part == "sender" else h for h in lab.hosts]
    return replace(lab, hosts=tuple(hosts))


@pytest.mark.parametrize("nodes", [0, 1])
@pytest.mark.usefixtures("further_port")
def test_a_bridge_that_forgets_where_the_next_one_is_stops_its_sender(
    there: There, tmp_path: Path, nodes: int
) -> None:
    """As after a change of topology: it floods every packet to its other ports, until ARP asks."""
    done: list[str] = []
    if nodes:
        there.inside("red", "ip route add default via 10.1.0.1")

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.append(there.inside("red", "ip link set br0 type bridge fdb_flush"))

    load = traffic(1) | {"rate": "500pps", "count": "1500"}
    lab = behind_its_bridge(there, nodes)
    _, record, _ = conducted(tmp_path, lab, tell, traffic=load, send=ASLEEP)
    assert done, record.error
    assert record.error is not None
    why = "does not know where" if nodes else "stations were changed there"
    assert why in record.error.message


@pytest.mark.parametrize("nodes", [0, 1])
@pytest.mark.usefixtures("further_port")
def test_a_bridge_that_never_learnt_where_the_next_one_is_gets_no_load(
    there: There, tmp_path: Path, nodes: int
) -> None:
    """An entry by hand has nobody asked, and who only receives never speaks: it would flood all."""
    if nodes:
        there.inside("red", "ip route add default via 10.1.0.1")
    mac = json.loads(there.inside("gateway", "ip -j link show eth1"))[0]["address"]
    there.inside("red", f"ip neigh replace 10.1.0.1 lladdr {mac} dev br0 nud permanent")
    there.inside("red", "ip link set br0 type bridge fdb_flush")
    _, record, _ = conducted(tmp_path, behind_its_bridge(there, nodes), traffic=traffic(1))
    assert record.error is not None
    assert "no more was sent, as packets might leave the lab: " in record.error.message
    assert f"a bridge on the way out does not know where {mac} is" in record.error.message


@pytest.mark.usefixtures("further_port")
def test_a_bridge_that_has_forgotten_a_neighbour_learns_it_before_the_load(
    there: There, tmp_path: Path
) -> None:
    """The neighbour is known for longer than its port, and is asked: the next run is not refused."""
    mac = json.loads(there.inside("gateway", "ip -j link show eth1"))[0]["address"]
    there.inside("red", f"ip neigh replace 10.1.0.1 lladdr {mac} dev br0 nud stale")
    there.inside("red", "ip link set br0 type bridge fdb_flush")
    _, record, result = conducted(tmp_path, behind_its_bridge(there, 0), traffic=traffic(1))
    assert ("done", EACH) == (record.status, result.received_packets), record.error


def test_nothing_is_sent_into_a_tunnel_with_several_ends(there: There, tmp_path: Path) -> None:
    """Whoever is at one of them gets all packets for a MAC that no entry has."""
    for words in (
        "ip link add vx0 type vxlan id 7 dstport 4789 local 10.1.0.2 remote 10.1.0.1",
        "bridge fdb append 00:00:00:00:00:00 dev vx0 dst 10.1.0.66",
        "ip addr add 10.7.0.2/24 dev vx0",
        "ip link set vx0 up",
    ):
        there.inside("red", words)
    lab = there.lab_of(there.end("gateway", "eth1"), "vx0")
    _, record, _ = conducted(tmp_path, lab, traffic=traffic(1))
    assert record.error is not None
    assert "vx0, a tunnel (vxlan) with several ends for 10.1.0.1: 10.1.0.1, 10.1.0.66" in (
        record.error.message
    )


@pytest.mark.parametrize("short", ["red", "gateway"])
def test_what_conntrack_remembers_of_a_rule_that_is_gone_is_refused(
    there: There, tmp_path: Path, short: str
) -> None:
    """Each packet renews it, and a load has the same ports as the one before."""
    hook = {"red": "output", "gateway": "prerouting"}[short]
    for words in (
        "nft add table ip nat",
        f"nft add chain ip nat way {{ type nat hook {hook} priority -100 ; }}",
        "nft add rule ip nat way ip daddr 10.2.0.2 udp dport 4321 dnat to 10.3.0.2",
    ):
        there.inside(short, words)
    packet = (
        "import socket; s = socket.socket(2, 2); s.bind(('10.1.0.2', 65400)); "
        "s.sendto(b'', ('10.2.0.2', 4321))"
    )
    words = ["ip", "netns", "exec", there.name("red"), sys.executable, "-c", packet]
    subprocess.run(words, check=True)
    there.inside(short, "nft flush chain ip nat way")
    _, record, _ = conducted(tmp_path, there.lab(), traffic=traffic(1))
    assert record.error is not None
    assert "10.3.0.2" in record.error.message


def test_who_answers_in_a_nodes_place_gets_no_load(there: There, tmp_path: Path) -> None:
    """The path check's packets make known who that is; here another MAC of the node hands them on."""
    for words in (
        "ip link add link eth1 name mv0 type macvlan mode bridge",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
        "sysctl -qw net.ipv4.conf.mv0.rp_filter=0",
        "ip link set mv0 address 02:00:00:00:00:66 up",
        "nft add table arp late",
        "nft add chain arp late o { type filter hook output priority 0 ; }",
        "nft add rule arp late o oifname eth1 drop",
    ):
        there.inside("gateway", words)
    _, record, _ = conducted(tmp_path, there.lab(), traffic=traffic(1))
    assert record.error is not None
    assert "no more was sent" in record.error.message
    assert (
        "10.1.0.1 has the MAC 02:00:00:00:00:66 there, not that of gateway" in record.error.message
    )


def by_vxlan(there: There) -> Lab:
    """Return the lab of a tunnel between red and the gateway, which needs no device of its own."""
    for short, own, other in (("red", 2, 1), ("gateway", 1, 2)):
        ends = f"local 10.1.0.{own} remote 10.1.0.{other}"
        there.inside(short, f"ip link add vx0 type vxlan id 7 dstport 4789 {ends}")
        there.inside(short, f"ip addr add 10.7.0.{own}/24 dev vx0")
        there.inside(short, "ip link set vx0 up")
    return there.lab_of(there.end("gateway", "vx0"), "vx0")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("ip neigh replace 10.1.0.1 lladdr 02:00:00:00:00:07 dev eth0", "neighbours"),
        ("ip addr add 10.1.0.6/29 dev other0", "routes"),
    ],
)
def test_senders_stop_when_the_outer_packets_of_their_tunnel_go_elsewhere(
    there: There, tmp_path: Path, words: str, what: str
) -> None:
    """Whoever answers ARP in its other end's place gets all packets; outer ones have a TTL of 64.

    They are bound to no interface, so an address of another one may lead them there.
    """
    lab = by_vxlan(there)
    there.inside("red", "ip link add other0 type veth peer name other1")
    for name in ("other0", "other1"):
        there.inside("red", f"ip link set {name} up")
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            done.append(there.inside("red", words))

    load = traffic(1) | {"rate": "500pps", "count": "1500"}
    _, record, _ = conducted(tmp_path, lab, tell, traffic=load, send=ASLEEP)
    assert done, record.error
    assert record.error is not None
    assert f"{what} were changed there" in record.error.message


HOLDS_A_TUN = """
import fcntl, struct, sys
tun = open("/dev/net/tun", "r+b", buffering=0)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1001))
print("open", flush=True)
sys.stdin.read()
"""
SPEAKS = "import socket; socket.socket(2, 2).sendto(b'', ('10.7.0.2', 9))"


@contextmanager
def held(there: There, short: str, *words: str, says: str = "") -> Iterator[None]:
    """Have a process in a namespace, until it has said this; yields while it runs."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", there.name(short), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert not says or says == process.stdout.readline().strip()
        yield
    finally:
        process.terminate()
        process.communicate()


def test_nothing_is_sent_into_a_tunnel_of_a_process_that_says_nothing(
    there: There, tmp_path: Path
) -> None:
    """Such as openvpn: only its process knows where the other end is, which may move unseen."""
    words = sys.executable, "-c", HOLDS_A_TUN, "tun0"
    with held(there, "red", *words, says="open"):
        there.inside("red", "ip addr add 10.7.0.2/24 dev tun0")
        there.inside("red", "ip link set tun0 up")
        there.inside("gateway", "ip addr add 10.7.0.1/24 dev eth1")
        lab = there.lab_of(there.end("gateway", "eth1"), "tun0")
        _, record, _ = conducted(tmp_path, lab, traffic=traffic(1))
    assert record.error is not None
    assert ("SafetyError", ()) == (record.error.kind, record.phases)
    assert "nothing was sent" in record.error.message
    assert "tun0, a tunnel of a process (python" in record.error.message
    assert "that does not tell where its other end is" in record.error.message


@contextmanager
def by_wireguard_go(there: There, folder: Path) -> Iterator[Lab]:
    """Yield the lab of a tunnel between red and the gateway that processes of WireGuard have."""
    names = {short: f"wg{os.getpid()}{n}" for n, short in enumerate(("red", "gateway"))}
    with ExitStack() as stack:
        for short, name in names.items():
            stack.enter_context(held(there, short, "wireguard-go", "--foreground", name))
            wait_until(name, lambda name=name: Path(f"/run/wireguard/{name}.sock").exists(), 10)
        keys: dict[str, str] = {}
        for short, name in names.items():
            private = subprocess.run(["wg", "genkey"], check=True, capture_output=True).stdout
            (folder / short).write_bytes(private)
            there.inside(short, f"wg set {name} listen-port 51820 private-key {folder / short}")
            keys[short] = there.inside(short, f"wg show {name} public-key").strip()
        for short, other, own, end in (("red", "gateway", 2, 1), ("gateway", "red", 1, 2)):
            peer = f"peer {keys[other]} allowed-ips 10.7.0.{end}/32 endpoint 10.1.0.{end}:51820"
            there.inside(short, f"wg set {names[short]} {peer}")
            there.inside(short, f"ip addr add 10.7.0.{own}/24 dev {names[short]}")
            there.inside(short, f"ip link set {names[short]} up")
        yield there.lab_of(there.end("gateway", names["gateway"]), names["red"])


def test_an_end_of_wireguard_in_a_process_that_moves_stops_its_sender(
    there: There, tmp_path: Path
) -> None:
    """Its receiver forges the source of a packet; until then every packet arrives."""
    done: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and progress.text == "measured" and not done:
            there.inside("gateway", "nft add table ip roam")
            there.inside(
                "gateway", "nft add chain ip roam o { type filter hook output priority 0 ; }"
            )
            forged = "udp sport 51820 ip saddr set 10.1.0.66"
            there.inside("gateway", f"nft add rule ip roam o {forged}")
            words = ["ip", "netns", "exec", there.name("gateway"), sys.executable, "-c", SPEAKS]
            subprocess.run(words, check=True)
            done.append("moved")

    with by_wireguard_go(there, tmp_path) as lab:
        _, record, result = conducted(tmp_path / "1", lab, traffic=traffic(1))
        assert ("done", EACH) == (record.status, result.received_packets), record.error
        load = traffic(1) | {"rate": "500pps", "count": "1500"}
        _, record, _ = conducted(tmp_path / "2", lab, tell, traffic=load, send=ASLEEP)
        assert done, record.error
        assert record.error is not None
        assert ("SafetyError", "sender") == (record.error.kind, record.error.host)
        assert "links were changed there" in record.error.message
        name = lab.senders[0].interface
        there.inside("red", "nft add table ip t")
        there.inside("red", "nft add chain ip t o { type filter hook output priority 0 ; }")
        duplicates = "udp dport 51820 dup to 10.1.0.66 device eth0"
        there.inside("red", f"nft add rule ip t o {duplicates}")
        _, record, _ = conducted(tmp_path / "3", lab, traffic=traffic(1))
        assert record.error is not None
        assert f"dup, of the outer packets of {name} to 10.1.0." in record.error.message


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            (
                "nft add table ip t && nft add chain ip t o { type filter hook output priority 0 ; } "
                "&& nft add rule ip t o udp dport 4789 dup to 10.1.0.66 device eth0"
            ),
            "dup, of the outer packets of vx0 to 10.1.0.1, may lead",
        ),
        (
            (
                "tc qdisc add dev eth0 clsact && tc filter add dev eth0 egress protocol ip "
                "u32 match u32 0 0 action mirred egress mirror dev lo"
            ),
            "a tc filter on eth0, of the outer packets of vx0 to 10.1.0.1, may lead",
        ),
    ],
)
def test_nothing_is_sent_into_a_tunnel_whose_outer_packets_are_led_away(
    there: There, tmp_path: Path, words: str, why: str
) -> None:
    """By rules for their port, or a filter where they leave."""
    lab = by_vxlan(there)
    for each in words.split(" && "):
        there.inside("red", each)
    _, record, _ = conducted(tmp_path, lab, traffic=traffic(1))
    assert record.error is not None
    assert why in record.error.message


def test_without_nodes_what_leaves_their_packets_alone_stops_no_senders(
    there: There, tmp_path: Path
) -> None:
    """Routes to others, a table of a firewall, a further neighbour, and a MAC that was forgotten."""
    words = (
        "ip route add 10.77.0.0/16 via 10.1.0.1 && nft add table ip others && "
        "ip neigh add 10.1.0.77 lladdr 02:00:00:00:00:07 dev eth0 && ip neigh flush dev eth0"
    )
    record, result = changed_meanwhile(there, tmp_path, words)
    assert ("done", 1500) == (record.status, result.received_packets), record.error
    assert any("routes were changed" in each.what for each in result.findings)


def test_a_namespace_of_another_name_is_not_entered(there: There, tmp_path: Path) -> None:
    """What is missing, and a file that is no namespace, are named."""
    lab = there.lab()
    there.close()
    assert "No such file or directory; see `ip netns list`" in run_error(tmp_path / "gone", lab)
    files = [Path("/run/netns") / there.name(short) for short in There.names]
    for file in files:
        file.write_text("")
    try:
        assert "is no network namespace" in run_error(tmp_path / "file", lab)
    finally:
        for file in files:
            file.unlink()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "attack",
    [
        "ip route add 10.2.0.2/32 via 10.3.0.2",
        "ip route replace 10.2.0.0/24 via 10.3.0.2",
        "nft add rule ip nat pre udp dport 4321 dnat to 10.3.0.2",
        (
            "nft delete element ip nat backends { 4321 } ; "
            "add element ip nat backends { 4321 : 10.3.0.2 }"
        ),
        (
            "nft add chain ip nat now { type filter hook prerouting priority -50 ; } ; "
            "add rule ip nat now udp dport 4321 ip daddr set 10.3.0.2"
        ),
        (
            "nft add chain ip nat now { type filter hook prerouting priority -50 ; } ; add rule ip "
            "nat now udp dport 4321 ip saddr set 10.1.0.99 ip daddr set 10.3.0.2"
        ),
        (
            "nft add chain ip nat now { type filter hook prerouting priority -50 ; } ; add rule ip "
            "nat now udp dport 4321 ip saddr set 10.1.0.99 && ip route add 10.2.0.2/32 via 10.3.0.2"
        ),
        "ip link set eth1 name in9 && ip route add 10.2.0.2/32 via 10.3.0.2",
        (
            "ip link set eth2 name old2 && ip link set eth3 name eth2 && "
            "ip route add 10.2.0.2/32 via 10.3.0.2"
        ),
        "ip route add 10.2.0.2/32 encap seg6 mode encap segs fc00:3::2 dev eth2",
        "ip route add 10.2.0.2/32 encap seg6 mode encap.red segs fc00:3::2 dev eth2",
        "ip route add 10.2.0.2/32 encap seg6 mode l2encap segs fc00:3::2 dev eth2",
    ],
)
def test_whoever_changes_the_path_nothing_leaves_a_node_by_another_way(
    there: There, tmp_path: Path, attack: str
) -> None:
    """A route or a backend is changed under load: what lies beyond gets no packet of the lab."""
    there.inside("gateway", "nft add table ip nat")
    there.inside("gateway", "nft add chain ip nat pre { type nat hook prerouting priority -100 ; }")
    backends = "{ type inet_service : ipv4_addr ; elements = { 4321 : 10.2.0.2 } ; }"
    there.inside("gateway", f"nft add map ip nat backends {backends}")
    there.inside("gateway", "nft add rule ip nat pre dnat to udp dport map @backends")
    there.inside("gateway", "ip neigh add 10.3.0.2 lladdr 02:00:00:00:00:03 dev eth3")
    leads_through_ipv6(there)
    attacked: list[str] = []

    def beyond() -> int:
        text = there.inside("beyond", "nft list table netdev counts")
        return int(text.split("packets ")[1].split()[0])

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and is_sent(progress) and not attacked:
            attacked.extend(there.inside("gateway", each) for each in attack.split(" && "))

    first = beyond()
    before = there.state()
    load = traffic(1) | {"rate": "5000pps", "count": "20000"}
    _, record, _ = conducted(tmp_path, there.lab(change=True), tell, traffic=load)
    assert record.error is not None
    assert ("failed", "SafetyError", "gateway") == (
        record.status,
        record.error.kind,
        record.error.host,
    )
    assert ["path_guard"] == [change.setting.kind for change in record.changes["gateway"]]
    assert first == beyond()
    if "name in9" not in attack:  # a guard of an interface that is gone is said to be left
        assert "udpbench" not in there.state()
    assert before != there.state(), "what the attacker changed is the attacker's"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("family", "mode", "protocol"),
    [
        (4, "encap", 4),
        (4, "l2encap", 143),
        (6, "encap", 41),
        (6, "encap.red", 41),
        (6, "l2encap", 143),
    ],
)
def test_the_guard_drops_what_a_route_puts_inside_other_packets(
    there: There, tmp_path: Path, family: int, mode: str, protocol: int
) -> None:
    """In those of either version, or as whole frames: its rule counts them, none gets beyond."""
    there.inside("gateway", "ip neigh add 10.3.0.2 lladdr 02:00:00:00:00:03 dev eth3")
    leads_through_ipv6(there)
    has_ipv6(there)
    to = "10.2.0.2/32" if family == 4 else "fc00:2::2/128"
    attack = f"ip route add {to} encap seg6 mode {mode} segs fc00:3::2 dev eth2"
    attacked: list[str] = []

    def dropped() -> int:
        listed = json.loads(there.inside("gateway", "nft -j list table inet udpbench_path"))
        return guarded(listed["nftables"], protocol)

    def tell(progress: Progress) -> None:
        measured = progress.event == "sample" and progress.text == "measured"
        if measured and not attacked:
            attacked.append(there.inside("gateway", attack))
            wait_until("a packet that the guard drops", lambda: dropped() > 0, 2)

    load = traffic(1) | {"rate": "5000pps", "count": "20000", "family": family}
    _, record, _ = conducted(tmp_path, there.lab(change=True), tell, traffic=load)
    assert record.error is not None
    assert ("SafetyError", 1) == (record.error.kind, len(attacked)), record.error
    text = there.inside("beyond", "nft list table netdev counts")
    assert 0 == int(text.split("packets ")[1].split()[0])


PROTOCOLS = {4: "ipencap", 41: "ipv6", 143: "ethernet"}
"""As nft lists them."""


def guarded(items: list[dict[str, Any]], protocol: int) -> int:
    """Return the packets that the guard's rules for what a protocol carries have dropped."""
    return sum(
        part["counter"]["packets"]
        for item in items
        if f'"{PROTOCOLS[protocol]}"' in json.dumps(item)
        for part in item.get("rule", {}).get("expr", ())
        if "counter" in part
    )
