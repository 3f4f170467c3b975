"""WireGuard between two nodes: losses planted within and around it, full queues, and its other end.

Of the kernel, where there is; else of wireguard-go.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import yaml
from test_path import (
    EACH,
    Tell,
    before_the_proof,
    conducted,
    entries,
    inside,
    namespace_of,
    plant,
    traffic,
    way_out,
)
from test_tunnels import Overlay
from waiting import wait_until

from udpbench.agent.host.wireguard import PROGRAM, SOCKET, in_kernel
from udpbench.control import path_proof
from udpbench.definition.load import lab_of, load_lab
from udpbench.model.result import Progress

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
    pytest.mark.skipif(
        not in_kernel() and shutil.which(PROGRAM) is None, reason=f"needs the package {PROGRAM}"
    ),
]
of_process = pytest.mark.skipif(in_kernel(), reason="needs a kernel without WireGuard")
of_kernel = pytest.mark.skipif(not in_kernel(), reason="needs a kernel with WireGuard")

ENDS = {"wg1": ("in0", "192.168.254.1/"), "wg2": ("out0", "192.168.253.254/")}
RECEIVER = "192.168.253"


def node(name: str) -> int:
    """Return a process in the namespace of one end of the tunnel."""
    return namespace_of(*ENDS[name])


def processes() -> list[psutil.Process]:
    """Return the processes of wireguard-go that this one's children started."""
    return [each for each in psutil.Process().children(recursive=True) if each.name() == PROGRAM]


def process_of(name: str) -> psutil.Process:
    """Return that of one end."""
    there = Path(f"/proc/{node(name)}/ns/net").stat().st_ino
    return next(p for p in processes() if Path(f"/proc/{p.pid}/ns/net").stat().st_ino == there)


def ask(name: str, *lines: str) -> str:
    """Return what one end's process answers, as an attacker as root would ask it."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(SOCKET.format(pid=process_of(name).pid, name="wg0"))
        link.sendall("".join(f"{line}\n" for line in (*lines, "")).encode())
        answer = b""
        while not answer.endswith(b"\n\n"):
            answer += link.recv(2**16)
    assert b"errno=0" in answer, answer
    return answer.decode()


OF_KERNEL = """
import os, struct, sys
from udpbench.agent.host import genetlink, wireguard as wg, wireguard_ends as ends
def ask(command, *more, dump=False):
    name = genetlink.attribute(wg.IFNAME, b"wg0\\0")
    return genetlink.ask(wg.FAMILY, command, name, *more, dump=dump)
def peer(key, to):
    end = struct.pack("=H", 2) + struct.pack("!H4s8x", wg.PORT, wg._packed(to))
    known = genetlink.attribute(wg.PEER_KEY, bytes.fromhex(key))
    ask(wg.SET_DEVICE, genetlink.nest(wg.PEERS, genetlink.nest(
        0, known, genetlink.attribute(wg.PEER_ENDPOINT, end))))
def known():
    return dict(genetlink.attributes(ask(ends.GET_DEVICE, dump=True)[0]))
def first():
    (_, first), *_ = genetlink.attributes(known()[wg.PEERS])
    return dict(genetlink.attributes(first))[wg.PEER_KEY].hex()
"""
"""As an attacker as root would ask the kernel."""


def told(name: str, key: str) -> str:
    """Return private_key or public_key: that of this end, or of its other end."""
    if in_kernel():
        asked = "known()[wg.PRIVATE_KEY].hex()" if key == "private_key" else "first()"
        code = f"{OF_KERNEL}print({asked})"
        return inside(node(name), sys.executable, "-c", code).strip()
    lines = ask(name, "get=1").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{key}="))


def move(to: str, key: str = "") -> str:
    """Give the first end's tunnel another end, or a further one."""
    if in_kernel():
        code = f"{OF_KERNEL}peer({key!r} or first(), {to!r})"
        return inside(node("wg1"), sys.executable, "-c", code)
    key = key or told("wg1", "public_key")
    return ask("wg1", "set=1", f"public_key={key}", f"endpoint={to}:51820")


def test_a_tunnel_carries_every_packet_and_its_key_is_nowhere(tmp_path: Path) -> None:
    """Each end is a node that routes; its key is in no file of the run, and in no command."""
    keys: list[str] = []
    held: list[str] = []
    devices: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "phase" and progress.phase == "measured":
            keys.extend(told(name, "private_key") for name in ENDS)
            devices.extend(inside(node(name), "ip", "-d", "link", "show", "wg0") for name in ENDS)
            asked = [each.info for each in psutil.process_iter(["cmdline", "environ"])]
            held.extend(f"{each['cmdline']} {each['environ']}" for each in asked)
            held.extend(path.read_text("latin-1") for path in Path("/run/udpbench").glob("*.*"))

    outcome, record, result = conducted(tmp_path, load_lab("wireguard"), tell, traffic=traffic(4))
    assert (0, "done", 0) == (outcome.exit_code, result.status, result.unaccounted), record.error
    assert {} == entries(result)
    assert 4 * EACH == result.received_packets
    assert {3} == {spec.traffic.ttl for spec in record.workers}
    assert {"wg1": ("", "in0", "wg0"), "wg2": ("", "wg0", "out0")} == record.bridges
    assert record.wired
    kind = "wireguard" if in_kernel() else "vnet_hdr off"  # each packet is read by itself
    assert 2 == sum(kind in each for each in devices)
    assert [] == processes()
    assert 2 == len({*keys})
    held.extend(
        path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()
    )
    for key in keys:
        for text in (key, base64.b64encode(bytes.fromhex(key)).decode()):
            assert not any(text in each for each in held)


# --- losses, each counted by somebody else ---------------------------------------------------------

INNER = {
    "wg1": {
        "prerouting": "fwd_prerouting",
        "forward": "fwd_netfilter",
        "postrouting": "fwd_netfilter",
    },
    "wg2": {
        "prerouting": "fwd_prerouting",
        "forward": "fwd_netfilter",
        "postrouting": "fwd_netfilter",
    },
}
"""Node → hook → the stage of inner packets that a rule drops there."""
SILENT = {"fwd_route": "fwd_route", "blackhole": "fwd_route", "fwd_mtu": "fwd_mtu"}
"""What ends inner packets at a node, without a rule."""
OUTER = {
    "wg1": {"output": ("fwd_netfilter", "drop"), "postrouting": ("fwd_netfilter", "drop")},
    "wg2": {
        "prerouting": ("fwd_prerouting", "drop"),
        "input": ("fwd_prerouting", "drop"),
        "mangle": ("fwd_decap", "@th,96,32 set 0x1"),
    },
}
"""Node → hook → stage of outer packets, and what a rule does with some of them."""
DATA = "udp dport 51820 udp length > 40 @th,64,8 4"
Planted = dict[str, Counter[str]]


@pytest.fixture
def rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permit rules that rewrite packets, which the proof refuses: they make outer packets wrong."""
    monkeypatch.setattr(path_proof, "_elsewhere", lambda *_: [])


def rule(name: str, hook: str, *words: str) -> None:
    """Add a rule with a counter and, as its comment, its stage."""
    pid, kind, order = node(name), hook, 0
    if hook == "mangle":
        kind, order = "input", 10
    inside(pid, "nft", "add", "table", "ip", "plants")
    chain = f"{{ type filter hook {kind} priority {order} ; }}"
    inside(pid, "nft", "add", "chain", "ip", "plants", hook, chain)
    inside(pid, "nft", "add", "rule", "ip", "plants", hook, *words)


def counted(names: set[str]) -> Counter[str]:
    """Return stage → what the rules that are there counted, by their comments."""
    seen: Counter[str] = Counter()
    for name in names:
        for line in inside(node(name), "nft", "list", "table", "ip", "plants").splitlines():
            if "packets " in line:
                stage = line.split('comment "')[1].split('"')[0]
                seen[stage] += int(line.split("packets ")[1].split()[0])
    return seen


class Mixture:
    """Fates of flows and of outer packets, drawn, and what rules counted of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        inner = [(name, hook) for name in ENDS for hook in (*INNER[name], *SILENT)]
        self.fates = [self.chance.choice([*inner, None, None, None, None]) for _ in range(12)]
        outer = [(name, hook) for name in ENDS for hook in OUTER[name]]
        self.outer = self.chance.sample(outer, self.chance.choice((0, 1, 2)))
        self.losses = {"fwd_encap": self.chance.randint(1, 99)}
        if not self.outer:
            self.losses["fwd_decap"] = self.chance.randint(1, 99)
        self.rules = {f[0] for f in self.fates if f and f[1] in INNER[f[0]]}
        self.rules |= {name for name, _ in self.outer}
        self.first: Counter[str] = Counter()
        self.last: Counter[str] = Counter()

    def plant(self) -> None:
        """Make all that is drawn."""
        rule_in_sender = ("ip", "protocol", "icmp", "drop")
        pid = namespace_of("send0")
        inside(pid, "nft", "add", "table", "ip", "deaf")
        inside(
            pid, "nft", "add", "chain", "ip", "deaf", "i", "{ type filter hook input priority 0 ; }"
        )
        inside(pid, "nft", "add", "rule", "ip", "deaf", "i", *rule_in_sender)
        for number, fate in enumerate(self.fates, 2):
            to = f"{RECEIVER}.{number}"
            if fate is None:
                continue
            name, hook = fate
            if hook in INNER[name]:
                stage = f'"{name}.{INNER[name][hook]}"'
                rule(name, hook, "ip", "daddr", to, "counter", "drop", "comment", stage)
            else:
                plant(node(name), hook, to)
        for name, hook in self.outer:
            stage, act = OUTER[name][hook]
            share = self.chance.randint(2, 9)
            some = f"{DATA} numgen inc mod {share} == 0 counter {act} comment"
            rule(name, hook, *some.split(), f'"{name}.{stage}"')

    def tell(self, progress: Progress) -> None:
        """Plant, and read the rules' counters at both edges of the measured phase."""
        before_the_proof(self.plant)(progress)
        if progress.event == "phase" and progress.phase == "measured":
            self.first = counted(self.rules)
        if progress.event == "step" and progress.text == "verify":
            self.last = counted(self.rules)

    @property
    def silent(self) -> Counter[str]:
        """Stage → the most that ended there without a rule: at the first node just that."""
        ended = [f"{f[0]}.{SILENT[f[1]]}" for f in self.fates if f and f[1] in SILENT]
        return Counter({stage: EACH * ended.count(stage) for stage in ended})


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.usefixtures("rewriting")
def test_random_mixtures_through_a_tunnel_balance(tmp_path: Path, seed: int) -> None:
    """Each flow ends where it is drawn to, some outer packets likewise; nft counted the same."""
    mixture = Mixture(seed)
    size = f"{mixture.chance.choice((100, 200, 1300))}B"
    load = traffic(len(mixture.fates) + 1, size=size)
    _, record, result = conducted(
        tmp_path,
        load_lab("wireguard"),
        mixture.tell,
        traffic=load,
        losses=mixture.losses,
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    by_rules = {stage: n for stage, n in (mixture.last - mixture.first).items() if n}
    assert {None} == {most for _, most in entries(result).values()}
    lost = {stage: packets or 0 for stage, (packets, _) in entries(result).items()}
    assert sum(lost.values()) + result.received_packets == result.intended_packets
    expected = dict(by_rules)
    expected["wg1.fwd_encap"] = mixture.losses["fwd_encap"]
    if "fwd_decap" in mixture.losses:
        expected["wg2.fwd_decap"] = mixture.losses["fwd_decap"]
    for stage, packets in mixture.silent.items():
        at_last = stage.startswith("wg2") and mixture.outer
        share = lost.get(stage, 0) if at_last else packets
        assert share <= packets
        expected[stage] = expected.get(stage, 0) + share
    assert {stage: n for stage, n in expected.items() if n} == lost


def held(name: str, until: str, most: int) -> Tell:
    """Return what stops one end's process in the measured phase until a counter says so much."""
    stopped: list[psutil.Process] = []

    def tell(progress: Progress) -> None:
        if progress.event == "phase" and progress.phase == "measured":
            stopped.append(process_of(name))
            stopped[0].send_signal(signal.SIGSTOP)
        if (
            progress.event == "sample"
            and stopped
            and int(inside(node(name), "sh", "-c", until)) >= most
        ):
            stopped[0].send_signal(signal.SIGCONT)

    return tell


RING, BATCH = 100, 16
"""Packets that a ring is to hold, and how many of them may be marked as read only later."""


@of_process
@pytest.mark.long
def test_a_ring_that_nobody_reads_is_full(tmp_path: Path) -> None:
    """While the first process stands still its ring holds so many, and loses all others."""
    packets = 600
    dropped = "ip -s link show wg0 | awk '/TX:/ {getline; print $4}'"
    hold = held("wg1", dropped, packets - RING)

    def tell(progress: Progress) -> None:
        before_the_proof(lambda: short_ring())(progress)
        hold(progress)

    def short_ring() -> None:
        inside(node("wg1"), "ip", "link", "set", "wg0", "txqueuelen", str(RING))

    _, record, result = conducted(
        tmp_path,
        load_lab("wireguard"),
        tell,
        traffic={**traffic(1), "count": str(packets)},
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {"wg1.fwd_tun": (packets - result.received_packets, None)} == entries(result)
    assert RING - BATCH <= result.received_packets <= RING


@of_process
@pytest.mark.long
def test_a_socket_that_nobody_reads_is_full(tmp_path: Path) -> None:
    """What the last process has no room for while it stands still is what does not arrive."""
    packets = 9000  # the process may ask for 14 MiB
    full = "nstat -asz UdpRcvbufErrors | awk 'END {print $2}'"
    _, record, result = conducted(
        tmp_path,
        load_lab("wireguard"),
        held("wg2", full, 1),
        traffic={**traffic(1), "count": str(packets), "rate": "10kpps", "size": "1300B"},
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    # A large buffer is emptied at once, for which the receiver's ring may be too small.
    lost = {stage: count or 0 for stage, (count, _) in entries(result).items()}
    assert {"wg2.fwd_rcvbuf"} <= {*lost} <= {"wg2.fwd_rcvbuf", "wg2.fwd_device"}
    assert packets - result.received_packets == sum(lost.values())


EDGES = {
    "wg1": {
        "given": ("postrouting", 500, 'oifname "wg0"'),
        "sent": ("output", -450, DATA),
    },
    "wg2": {
        "came": ("input", 450, DATA),
        "out": ("prerouting", -450, 'iifname "wg0"'),
    },
}
"""Node → edge of the tunnel → hook, priority and packets of a counter that is not udpbench's."""


def count_edges() -> None:
    """Count at each edge of a tunnel of the kernel what passes it."""
    for name, edges in EDGES.items():
        for edge, (hook, order, words) in edges.items():
            inside(node(name), "nft", "add", "table", "ip", "edges")
            chain = f"{{ type filter hook {hook} priority {order} ; }}"
            inside(node(name), "nft", "add", "chain", "ip", "edges", edge, chain)
            inside(node(name), "nft", "add", "rule", "ip", "edges", edge, f"{words} counter")


def edges_counted() -> Counter[str]:
    """Return edge → what passed it."""
    seen: Counter[str] = Counter()
    for name, edges in EDGES.items():
        for edge in edges:
            shown = inside(node(name), "nft", "list", "chain", "ip", "edges", edge)
            seen[edge] = int(shown.split("packets ")[1].split()[0])
    return seen


STAGED = 129
"""Packets that wait for a handshake at most."""
EXPIRE = f"{OF_KERNEL}ask(wg.SET_DEVICE, genetlink.attribute(wg.PRIVATE_KEY, os.urandom(32)))"
"""Another key: the other end knows none of it, and no handshake ends."""


@of_kernel
@pytest.mark.long
@pytest.mark.parametrize("full", ["staged", "encrypt", "half"])
def test_a_queue_of_the_kernel_is_full(tmp_path: Path, full: str) -> None:
    """What no counter of the kernel tells is what lies between two edges, counted by nft as well.

    Without a key 129 packets wait, and the oldest are lost; a burst fills what is to be encrypted
    or decrypted, 1024 packets each.
    """
    first: Counter[str] = Counter()
    last: Counter[str] = Counter()

    def tell(progress: Progress) -> None:
        before_the_proof(count_edges)(progress)
        if progress.event == "phase" and progress.phase == "measured":
            first.update(edges_counted())
            if full == "staged":
                inside(node("wg1"), sys.executable, "-c", EXPIRE)
        if progress.event == "step" and progress.text == "verify":
            last.update(edges_counted())

    count, rate = {"staged": ("1500", "300pps"), "half": ("6000", "2kpps")}.get(
        full, ("20000", "unlimited")
    )
    _, record, result = conducted(
        tmp_path,
        load_lab("wireguard"),
        tell,
        traffic={**traffic(1), "count": count, "rate": rate, "size": "300B"},
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    passed = last - first
    lost = {stage: packets or 0 for stage, (packets, _) in entries(result).items()}
    assert {None} >= {most for _, most in entries(result).values()}
    assert sum(lost.values()) + result.received_packets == result.intended_packets
    assert passed["given"] - passed["sent"] == lost.get("wg1.fwd_encap", 0)
    assert passed["came"] - passed["out"] == lost.get("wg2.fwd_decap", 0)
    if full == "staged":
        assert ["wg1.fwd_encap"] == [*lost]
        assert lost["wg1.fwd_encap"] > STAGED
    if full == "encrypt":
        assert {"wg1.fwd_encap", "wg2.fwd_decap"} & {*lost}, passed


# --- what must not leave the lab, and must not stay ------------------------------------------------

REMOTE = "192.168.252.2"
OTHER_KEY = "11" * 32


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("endpoint", "would leave by leak0, not by out0"),
        ("another", "wg0, a tunnel (wireguard) with other ends: 10.9.9.2"),
        (f"ip route add {REMOTE}/32 via 10.9.9.2", "would leave by leak0, not by out0"),
        (f"ip neigh replace {REMOTE} lladdr 02:00:00:00:09:09 dev out0", "not that of wg2"),
        ("ip route replace 192.168.253.0/24 via 10.9.9.2", "would leave by leak0, not by wg0"),
        (f"nft add rule ip x o ip daddr {REMOTE} dnat to 10.9.9.2", "send packets to 10.9.9.2"),
    ],
)
def test_a_tunnel_that_may_lead_elsewhere_is_refused(tmp_path: Path, words: str, why: str) -> None:
    """Its other end is proven as any destination is, and by every way that leads there."""

    def leak() -> None:
        pid = node("wg1")
        with way_out(pid):
            pass
        inside(pid, "nft", "add", "table", "ip", "x")
        chain = "{ type nat hook output priority -100 ; }"
        inside(pid, "nft", "add", "chain", "ip", "x", "o", chain)
        if words == "endpoint":
            move("10.9.9.2")
        elif words == "another":
            move("10.9.9.2", OTHER_KEY)
        else:
            inside(pid, *words.split())

    _, record, _ = conducted(
        tmp_path, load_lab("wireguard"), before_the_proof(leak), traffic=traffic(1)
    )
    assert record.error is not None
    assert "SafetyError" == record.error.kind
    assert why in record.error.message
    assert () == record.phases


@pytest.mark.long
def test_another_end_of_a_tunnel_stops_the_senders(tmp_path: Path) -> None:
    """Nobody is notified of it, so each look asks."""
    changed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not changed:
            changed.append(move("192.168.252.9"))

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path, load_lab("wireguard"), tell, traffic=load)
    assert record.error is not None
    assert ("SafetyError", "wg1") == (record.error.kind, record.error.host)
    assert "links were changed there" in record.error.message


@of_process
@pytest.mark.long
def test_a_process_ends_with_the_agent_that_started_it(tmp_path: Path) -> None:
    """Whatever killed that: the kernel sends it the same."""
    ended: list[psutil.Process] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not ended:
            ended.extend(processes())
            os.kill(node("wg1"), signal.SIGKILL)

    load = traffic(1) | {"rate": "500pps", "count": "2000"}
    _, record, _ = conducted(tmp_path, load_lab("wireguard"), tell, traffic=load)
    assert "failed" == record.status
    assert 2 == len(ended)
    wait_until("both processes ended", lambda: not any(p.is_running() for p in ended))


# --- an interface that is there already ---------------------------------------------------------------


class Vpn(Overlay):
    """Two routers that are there already, whose tunnel an administrator made with wg."""

    carries: Mapping[str, str] = {"tunnel": "wg0"}

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.keys: dict[str, str] = {}
        """Node → its public key."""

    def tunnel(self) -> None:
        """Make both ends: the second learns from packets where the first is."""
        for short, words in (
            ("red", ("ip addr add 10.1.0.1/24 dev eth0", "ip route add default via 10.1.0.254")),
            ("near", ("ip addr add 10.1.0.254/24 dev in0", "ip addr add 10.2.0.1/24 dev out0")),
            ("far", ("ip addr add 10.2.0.2/24 dev in0", "ip addr add 10.3.0.254/24 dev out0")),
            ("blue", ("ip addr add 10.3.0.2/24 dev eth0", "ip addr add 10.3.0.3/24 dev eth0")),
            ("blue", ("ip route add default via 10.3.0.254",)),
        ):
            self.run(short, *words)
        for short, port, beyond in (("near", 4501, "10.3.0.0/24"), ("far", 4502, "10.1.0.0/24")):
            private = subprocess.run(["wg", "genkey"], check=True, capture_output=True).stdout
            path = self.folder / short
            path.write_bytes(private)
            public = subprocess.run(
                ["wg", "pubkey"], input=private, check=True, capture_output=True
            )
            self.keys[short] = public.stdout.decode().strip()
            self.run(
                short,
                "ip link add wg0 type wireguard",
                f"wg set wg0 listen-port {port} private-key {path}",
                "ip link set wg0 up",
                f"ip route add {beyond} dev wg0",
                "sysctl -qw net.ipv4.ip_forward=1",
            )
        self.lead("near", "far", "allowed-ips 10.3.0.0/24 endpoint 10.2.0.2:4502")
        self.lead("far", "near", "allowed-ips 10.1.0.0/24")

    def lead(self, short: str, other: str, words: str) -> None:
        """Set what a node knows of another."""
        self.run(short, f"wg set wg0 peer {self.keys[other]} {words}")

    def state(self) -> str:
        """Return what a run must leave as it was."""
        asked = ("nft -s list ruleset", "tc qdisc show dev wg0", "wg show wg0 allowed-ips")
        return "".join(self.run(short, *asked) for short in ("near", "far"))


@pytest.fixture
def vpn(tmp_path: Path) -> Iterator[Vpn]:
    """Yield routers with a tunnel between them."""
    hosts = Vpn(tmp_path)
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()


@of_kernel
@pytest.mark.usefixtures("rewriting")
def test_losses_at_a_tunnel_that_is_there_are_counted_by_rules(vpn: Vpn, tmp_path: Path) -> None:
    """Where its nodes may be changed, and others send through it as well; all is as it was then."""
    vpn.lead("near", "far", "allowed-ips 10.3.0.2/32")
    data = "udp dport 4502 udp length > 40 @th,64,8 4"
    for short, priority, words in (
        ("far", 10, f"{data} numgen inc mod 5 == 0 counter @th,96,32 set 0x1"),
        ("red", 0, "ip protocol icmp drop"),
    ):
        vpn.run(
            short,
            "nft add table ip plants",
            f"nft add chain ip plants i {{ type filter hook input priority {priority} ; }}",
            f"nft add rule ip plants i {words}",
        )
    counts: list[int] = []

    def tell(progress: Progress) -> None:
        begins = progress.event == "phase" and progress.phase == "measured"
        if begins or (progress.event == "step" and progress.text == "verify"):
            shown = vpn.run("far", "nft list table ip plants")
            counts.append(int(shown.split("packets ")[1].split()[0]))

    before = vpn.state()
    load = {"traffic": traffic(2), "path_check": "explained"}
    _, record, result = conducted(tmp_path / "run", vpn.lab(change=True), tell, **load)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    spoilt = counts[-1] - counts[0]
    assert {
        "near.fwd_encap": (EACH, None),
        "far.fwd_decap": (spoilt, None),
    } == entries(result)
    assert EACH - spoilt == result.received_packets
    assert spoilt == EACH // 5
    assert before == vpn.state()


@of_kernel
def test_a_tunnel_that_is_there_and_read_only_tells_less(vpn: Vpn, tmp_path: Path) -> None:
    """It carries every packet; what it lost of them is not known, or at most so much."""
    before = vpn.state()
    _, record, result = conducted(tmp_path / "1", vpn.lab(), traffic=traffic(2))
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert 2 * EACH == result.received_packets
    assert before == vpn.state()
    assert ((), True) == (record.changes["near"], record.wired)
    vpn.lead("far", "near", "allowed-ips 10.9.0.0/24")
    load = {"traffic": traffic(1), "path_check": "explained"}
    _, record, result = conducted(tmp_path / "2", vpn.lab(), **load)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    lost = entries(result)
    assert {(None, EACH)} == {lost[f"{name}.fwd_encap"] for name in ("near", "far")}
    assert (0, EACH) == lost["far.fwd_decap"]


@of_kernel
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("endpoint 10.9.9.2:4502", "would leave by leak0, not by out0"),
        ("endpoint 10.2.0.2:4503", "far: wg0 does not listen on port 4503, to which wg0 of near"),
        ("remove", "near: wg0 is no WireGuard interface with both ends; without near and far"),
    ],
)
def test_a_tunnel_that_is_there_and_leads_elsewhere_is_refused(
    vpn: Vpn, tmp_path: Path, words: str, why: str
) -> None:
    """Its other end is proven to be a node of the lab; else what is between is `link`, without both."""
    vpn.run(
        "near",
        "ip link add leak0 type veth peer name leak1",
        "ip addr add 10.9.9.1/24 dev leak0",
        "ip link set leak0 up",
        "ip link set leak1 up",
    )
    vpn.lead("near", "far", words)
    _, record, _ = conducted(tmp_path / "run", vpn.lab(), traffic=traffic(1))
    assert record.error is not None
    assert ("SafetyError", ()) == (record.error.kind, record.phases)
    assert why in record.error.message


@of_kernel
def test_an_end_that_moves_stops_the_senders(vpn: Vpn, tmp_path: Path) -> None:
    """Whoever set it, or sent from there: nobody is notified, so each look asks the kernel."""
    changed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not changed:
            vpn.lead("near", "far", "endpoint 10.2.0.9:4502")
            changed.append("moved")

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path / "run", vpn.lab(), tell, traffic=load)
    assert record.error is not None
    assert ("SafetyError", "near") == (record.error.kind, record.error.host)
    assert "links were changed there" in record.error.message


@of_kernel
def test_the_end_of_a_senders_own_interface_that_moves_stops_it(vpn: Vpn, tmp_path: Path) -> None:
    """Where no node is known, too; until then every packet arrives."""
    for short, own, other in (("near", 1, 2), ("far", 2, 1)):
        vpn.run(short, f"ip addr add 10.8.0.{own}/24 dev wg0")
        vpn.lead(short, "far" if short == "near" else "near", f"allowed-ips 10.8.0.{other}/32")
    hosts = [
        {
            "connect": {"netns": f"{vpn.prefix}-{short}"},
            "interface": "wg0",
            "addresses": "existing",
        }
        for short in ("near", "far")
    ]
    data = {"sender": hosts[:1], "receiver": hosts[1:]}
    lab = lab_of(yaml.safe_dump(data, sort_keys=False), Path("pair.yaml"))
    _, record, result = conducted(tmp_path / "1", lab, traffic=traffic(1))
    assert ("done", EACH) == (result.status, result.received_packets), record.error
    changed: list[str] = []

    def tell(progress: Progress) -> None:
        if progress.event == "sample" and not changed:
            vpn.lead("near", "far", "endpoint 10.2.0.9:4502")
            changed.append("moved")

    load = traffic(1) | {"rate": "500pps", "count": "5000"}
    _, record, _ = conducted(tmp_path / "2", lab, tell, traffic=load)
    assert record.error is not None
    assert ("SafetyError", "sender") == (record.error.kind, record.error.host)
    assert "links were changed there" in record.error.message
