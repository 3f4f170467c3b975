"""Random mixtures over routers with real drivers: igb and virtio cards, a VLAN, WireGuard and netem.

One guest has the whole chain, each host in a namespace of its own; a hop is two cards and a switch beside
the guest. What ends where is counted by rules of nft that only count, and by netem.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import patient  # noqa: F401 - longer deadlines, also of the agents
import pytest
import yaml
from pair import CARDS, NUMBERS
from runs import nft
from test_path import BEFORE_NAT, COUNTED_AT, HOOKS, Fates, host_of

from udpbench.analysis.judge import judge
from udpbench.control.drain import QUIET_NS
from udpbench.control.phase import Plan
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import lab_of, load_experiment_data
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.timeout(5400),
    pytest.mark.skipif(
        os.environ.get("UDPBENCH_GUEST_NAMES") != "path", reason="python3 noxfile.py middle"
    ),
]
EACH, FLOWS = 25, 12
SOURCE_PORT, PORT, TUNNEL_PORT = 65400, 4321, 4502
DATA = f"udp dport {TUNNEL_PORT} udp length > 40 @th,64,8 4"
OUTER = {
    ("near", "output"): "fwd_netfilter",
    ("near", "postrouting"): "fwd_netfilter",
    ("far", "prerouting"): "fwd_prerouting",
    ("far", "input"): "fwd_prerouting",
}
"""End of the tunnel and hook → the stage of outer packets that a rule drops there."""
STRAYS = 5
"""Packets of a trial on a hop that nobody planted: ARP, neighbour discovery and handshakes that netem
dropped, and frames lost in an emulated card (on Linux 6.1 two of 300 between the counters of two igb)."""
YOUNG_S = 60
"""How old a key of the tunnel may be: packets of a path check that wait for a handshake would be lost by it."""
RECEIVE_RING = 4096
"""Frames; more than come in a trial, so that an igb proves that none was lost in its ring."""


@dataclass(frozen=True)
class Way:
    """A chain of hosts in namespaces, the sender first."""

    nodes: int
    vlan: int | None
    """The hop whose frames have a tag, from 1."""
    pairs: tuple[int, ...] = (1, 2, 3, 4)
    """The pair of cards of each hop: odd ones are igb, even ones virtio (pair.is_igb)."""
    tunnel: int | None = None
    """The node from which WireGuard leads to the next."""
    change: bool = False

    @property
    def hosts(self) -> list[str]:
        """Return the namespaces in order."""
        return ["red", *(f"router{n}" for n in range(1, self.nodes + 1)), "blue"]

    def device(self, hop: int, end: str) -> str:
        """Return the interface of one end of a hop."""
        plain = {"a": "out0", "b": "in0"}[end]
        return f"{plain}.5" if hop == self.vlan else plain

    def address(self, hop: int, end: str, family: int) -> str:
        """Return the address of one end of a hop; the receiver's first."""
        networks = [254, *range(250, 250 - self.nodes + 1, -1), 253]
        first = 30 if hop == 1 else 254 if hop > self.nodes else 1
        second = 1 if hop == 1 or hop > self.nodes else 2
        return host_of(networks[hop - 1], first if end == "a" else second, family)

    def lab(self) -> Lab:
        """Return the lab of all of it; nothing of it is made."""

        def at(host: str, **more: Any) -> dict[str, Any]:
            return {"name": host, "connect": {"ssh": "path", "netns": host}, **more}

        def node(n: int) -> dict[str, Any]:
            ways = {"in": self.device(n, "b"), "out": self.device(n + 1, "a")}
            carries = {"tunnel": "wg0"} if self.tunnel in (n, n - 1) else {}
            return at(f"router{n}", interfaces=ways, change=self.change, **carries)

        red = at("red", interface=self.device(1, "a"), addresses="existing", cpus="1")
        last = self.device(self.nodes + 1, "b")
        data = {
            "sender": [red],
            "middle": [node(n) for n in range(1, self.nodes + 1)],
            "receiver": [at("blue", interface=last, addresses="existing", cpus="0")],
        }
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("path.yaml"))

    def script(self) -> Iterator[str]:
        """Yield what a shell in the guest makes all of it with."""
        for host in self.hosts:
            yield f"ip netns add {host}"
            yield f"ip -n {host} link set lo up"
            for name in ("default", "all"):
                yield f"inside {host} sysctl -qw net.ipv6.conf.{name}.accept_dad=0"
        for hop in range(1, self.nodes + 2):
            for end in "ab":
                yield from self._end(hop, end)
        for n in range(1, self.nodes + 1):
            versions = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
            yield f"inside router{n} sysctl -qw {' '.join(versions)}"
            for family in (4, 6):
                yield from self._routes(n, family)
        for family in (4, 6):
            yield f"ip -n red -{family} route add default via {self.address(1, 'b', family)}"
            back = self.address(self.nodes + 1, "a", family)
            yield f"ip -n blue -{family} route add default via {back}"
        if self.tunnel is not None:
            yield from self._wireguard(self.tunnel)

    def _end(self, hop: int, end: str) -> Iterator[str]:
        host = self.hosts[hop - (end == "a")]
        code = CARDS[f"hop{self.pairs[hop - 1]}{end}"]
        plain, name = {"a": "out0", "b": "in0"}[end], self.device(hop, end)
        yield f"card 52:54:00:00:{code:02x}:{NUMBERS['path']:02x} {host} {plain}"
        if name != plain:
            yield f"ip -n {host} link add link {plain} name {name} type vlan id 5"
            yield f"ip -n {host} link set {name} up"
        for family, bits in ((4, 24), (6, 64)):
            first = self.address(hop, end, family)
            more = range(2, FLOWS + 1) if host == "blue" else ()
            own = [first, *(host_of(253, number, family) for number in more)]
            for address in own:
                yield f"ip -n {host} addr add {address}/{bits} dev {name}"

    def _routes(self, n: int, family: int) -> Iterator[str]:
        to, back = (host_of(network, 0, family) for network in (253, 254))
        bits = 24 if family == 4 else 64
        ways = {
            to: (n < self.nodes, self.address(n + 1, "b", family), n),
            back: (n > 1, self.address(n, "a", family), n - 1),
        }
        for network, (is_further, via, edge) in ways.items():
            if is_further:
                way = "dev wg0" if self.tunnel == edge and family == 4 else f"via {via}"
                if way != "dev wg0":
                    yield f"ip -n router{n} -{family} route add {network}/{bits} {way}"

    def _wireguard(self, near: int) -> Iterator[str]:
        hop, far = near + 1, near + 1
        ends = {near: ("253.0/24", "a", far), far: ("254.0/24", "b", near)}
        for n in ends:
            yield f"wg genkey > /run/key{n}; wg pubkey < /run/key{n} > /run/public{n}"
        for n, (beyond, _, other) in ends.items():
            yield f"ip -n router{n} link add wg0 type wireguard"
            to = self.address(hop, ends[other][1], 4)
            peer = f"peer $(cat /run/public{other}) allowed-ips 192.168.{beyond}"
            end = f"endpoint {to}:{TUNNEL_PORT}"
            yield f"inside router{n} wg set wg0 listen-port {TUNNEL_PORT} private-key /run/key{n} {peer} {end}"
            yield f"ip -n router{n} link set wg0 up"
            yield f"ip -n router{n} route add 192.168.{beyond} dev wg0"


FUNCTIONS = f"""
set -e
inside() {{ host=$1; shift; ip netns exec $host "$@"; }}
card() {{
    for path in /sys/class/net/*; do
        [ $(cat $path/address) != $1 ] || card=${{path##*/}}
    done
    ip link set $card netns $2 name $3
    ip netns exec $2 ethtool -G $3 rx {RECEIVE_RING} || true
    ip -n $2 link set $3 up
}}
has_key() {{
    for second in $(seq 60); do
        ip netns exec red bash -c "echo > /dev/udp/$2/9"
        made=$(ip netns exec $1 wg show wg0 latest-handshakes | cut -f2)
        [ $(($(date +%s) - made)) -ge {YOUNG_S} ] || return 0
        sleep 1
    done
    return 1
}}
"""


def shell(script: str) -> str:
    """Return what a shell in the guest prints; it must succeed."""
    ssh = Path.home() / ".ssh"
    known = f"UserKnownHostsFile={ssh / 'known_hosts'}"
    words = ["ssh", "-F", str(ssh / "config"), "-o", known, "path", "sh"]
    done = subprocess.run(words, input=FUNCTIONS + script, text=True, capture_output=True)
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout


@dataclass
class Mixture:
    """Where flows and outer packets end in a trial, and what was counted of it."""

    way: Way
    seed: int
    edges: list[dict[str, Any]] = field(default_factory=list)
    """What all counters showed when the measured phase began, and behind it."""

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.fates = Fates(chance, self.way.nodes)
        self.emulated = chance.randint(1, self.way.nodes)
        self.netem = f"loss {chance.randint(3, 40)}%"
        self.netem += chance.choice(("", " delay 3ms"))
        self.outer: dict[tuple[str, str], int] = {}
        if self.way.tunnel is not None:
            self.fates.family = 4
            drawn = chance.sample(sorted(OUTER), chance.choice((0, 1, 2)))
            self.outer = {place: chance.randint(2, 9) for place in drawn}
        hops = [h for h in range(1, self.way.nodes + 2) if h not in (self.way.vlan, self.tunnelled)]
        self.link = chance.choice([None, *hops])
        self.share = chance.randint(2, 20)

    @property
    def tunnelled(self) -> int | None:
        """Return the hop of outer packets."""
        return None if self.way.tunnel is None else self.way.tunnel + 1

    @property
    def version(self) -> str:
        """Return the family as nft has it."""
        return "ip" if self.fates.family == 4 else "ip6"

    @property
    def emulator(self) -> tuple[str, str]:
        """Return the namespace and the interface that has netem."""
        return f"router{self.emulated}", self.way.device(self.emulated + 1, "a")

    def experiment(self) -> dict[str, Any]:
        """Return the load: as many packets to each of the receiver's addresses."""
        return {
            "question": "Where does each end?",
            "traffic": {
                "count": str(EACH * FLOWS),
                "rate": "200pps",
                "size": "200B" if self.fates.family == 4 else "1400B",
                "family": self.fates.family,
                # Connection tracking remembers where the rules of a former mixture led a flow.
                "flows": {
                    "from": str(SOURCE_PORT + self.seed),
                    "to": f"receiver.addresses[1-{FLOWS}]:{PORT}",
                },
            },
            "send": {"pace": "sleep", "batch": 1, "bucket": "1s"},
            "duration": "60s",
            "warmup": "0s",
            "repetitions": 1,
            "path_check": "explained",
        }

    def plant(self) -> None:
        """Make all of it in the guest and at the switch, once the tunnel has a key."""
        script = ""
        if self.way.tunnel is not None:
            script += f"has_key router{self.way.tunnel} {host_of(253, 1, 4)}\n"
        for host in self.way.hosts:
            script += f"inside {host} nft -f - <<'END'\n{''.join(self.rules(host))}END\n"
        for number, fate in self.fates.ends.items():
            if fate is not None and fate[1] not in HOOKS:
                script += self.route(f"router{fate[0]}", fate[1], number)
        host, device = self.emulator
        script += f"inside {host} tc qdisc replace dev {device} root netem {self.netem}\n"
        shell(script)
        if self.link is not None:
            tagless = f"ether type {self.version} udp dport {PORT}"
            rule = f"{tagless} numgen inc mod {self.share} == 0 counter drop"
            to = f'oifname "hop{self.way.pairs[self.link - 1]}b-path"'
            chain = "type filter hook forward priority 0;"
            nft(
                "-f", "-", stdin=f"table bridge faulty {{ chain f {{ {chain}\n{to} {rule}\n}}\n}}\n"
            )

    def route(self, host: str, kind: str, number: int) -> str:
        """Return what routes packets to an address to nowhere, or by too small an MTU."""
        to = host_of(253, number, self.fates.family)
        if kind != "fwd_mtu":
            kind = {"fwd_route": "unreachable"}.get(kind, kind)
            return f"ip -n {host} route add {kind} {to}\n"
        least = 100 if self.fates.family == 4 else 1280
        way = f"$(ip -n {host} -o route get {to} | grep -o 'via [^ ]*\\|dev [^ ]*')"
        return f"ip -n {host} route add {to} {way} mtu lock {least}\n"

    def rules(self, host: str) -> Iterator[str]:
        """Yield the rules of a host, as text for nft: those that count first, then those that drop."""
        version, n = self.version, self.way.hosts.index(host)
        last = self.way.hosts[-1]
        chains: dict[tuple[str, str, str], list[str]] = {}
        if host == "red":
            errors = {"ip": "ip protocol icmp", "ip6": "icmpv6 type { 1, 2, 3 }"}
            chains["filter", "input", "0"] = [f"{errors[version]} drop"]
        else:
            chains["filter", "prerouting", "-400"] = [
                f'{version} daddr {host_of(253, number, self.fates.family)} udp dport {PORT} counter comment "came {number}"'
                for number in range(1, FLOWS + 1)
            ]
        for (node, number), backend in self.fates.rewritten.items() if host != last else ():
            if node == n:
                to, other = (host_of(253, each, self.fates.family) for each in (number, backend))
                act = f"{version} daddr {to} udp dport {PORT} dnat to {other}"
                chains.setdefault(("nat", "prerouting", "-100"), []).append(act)
        for number, fate in self.fates.ends.items():
            if fate is not None and fate[0] == n and fate[1] in HOOKS and host != last:
                place = ("filter", HOOKS[fate[1]], BEFORE_NAT.get(fate[1], "0"))
                to = host_of(253, number, self.fates.family)
                act = f"{version} daddr {to} udp dport {PORT} counter drop"
                chains.setdefault(place, []).append(act)
        for (end, hook), share in self.outer.items():
            if self.way.tunnel is not None and n == self.way.tunnel + (end == "far"):
                act = f'{DATA} numgen inc mod {share} == 0 counter drop comment "outer {hook}"'
                chains.setdefault(("filter", hook, "0"), []).append(act)
        yield f"add table {version} plants\n"
        for i, ((kind, hook, order), acts) in enumerate(chains.items()):
            place = f"{version} plants c{i}"
            yield f"add chain {place} {{ type {kind} hook {hook} priority {order} ; }}\n"
            yield from (f"add rule {place} {act}\n" for act in acts)

    def remove(self) -> None:
        """Remove what was planted; routes that end packets have a prefix of one address."""
        script = ""
        for host in self.way.hosts:
            script += f"inside {host} nft delete table {self.version} plants\n"
        for number, fate in self.fates.ends.items():
            if fate is not None and fate[1] not in HOOKS:
                to = host_of(253, number, self.fates.family)
                kind = {"fwd_route": "unreachable ", "blackhole": "blackhole "}.get(fate[1], "")
                script += f"ip -n router{fate[0]} route del {kind}{to}\n"
        host, device = self.emulator
        shell(f"{script}inside {host} tc qdisc del dev {device} root\n")
        if self.link is not None:
            nft("delete", "table", "bridge", "faulty")

    def look(self) -> None:
        """Read what all have counted."""
        host, device = self.emulator
        script = f"inside {host} tc -s -j qdisc show dev {device} root; echo\n"
        for name in self.way.hosts[1:]:
            script += f"echo {name}\ninside {name} nft list table {self.version} plants\n"
        shown = shell(script)
        (queue,) = (q for q in json.loads(shown.splitlines()[0]) if q["kind"] == "netem")
        seen: dict[str, Any] = {"netem": queue["drops"], "link": 0}
        name = ""
        for line in shown.splitlines()[1:]:
            if line in self.way.hosts:
                name = line
            elif match := re.search(r'counter packets (\d+).* comment "(.+)"', line):
                seen[f"{name} {match[2]}"] = int(match[1])
        if self.link is not None:
            listed = nft("list", "table", "bridge", "faulty")
            seen["link"] = int(listed.split("packets ")[1].split()[0])
        self.edges.append(seen)

    def truth(self) -> tuple[dict[str, int], int]:
        """Return stage → packets that ended there in the measured phase, and how many arrived."""
        first, last = self.edges[0], self.edges[-1]
        grown = {name: count - first[name] for name, count in last.items()}
        ended: Counter[str] = Counter()
        left = EACH * FLOWS
        for n, host in enumerate(self.way.hosts[1:], 1):
            came = {d: grown[f"{host} came {d}"] for d in range(1, FLOWS + 1)}
            between = left - sum(came.values())
            ended.update(self._between(n, between, grown))
            left = sum(came.values())
            if host == "blue":
                break
            for number, packets in came.items():
                stage = self._end(n, number)
                if stage is not None:
                    ended[f"{host}.{stage}"] += packets
                    left -= packets
        return {stage: packets for stage, packets in ended.items() if packets}, left

    def _between(self, hop: int, missing: int, grown: Mapping[str, int]) -> dict[str, int]:
        """Return what ended on a hop, which must be what netem, the switch and outer rules counted.

        Netem alone drops what is not of the traffic as well. An emulated card may lose a frame that
        no counter has, which is the link's.
        """
        known: Counter[str] = Counter()
        if hop == self.link:
            known["link"] += grown["link"]
        if hop == self.tunnelled:
            for end, hook in self.outer:
                host = f"router{hop - 1 + (end == 'far')}"
                known[f"{host}.{OUTER[end, hook]}"] += grown[f"{host} outer {hook}"]
        rest, dropped = missing - sum(known.values()), 0
        if hop - 1 == self.emulated:
            dropped = grown["netem"]
            known[f"router{self.emulated}.fwd_qdisc"] += min(rest, dropped)
        assert abs(rest - dropped) <= STRAYS, (hop, missing, known, dropped)
        known["link"] += max(rest - dropped, 0)
        return known

    def _end(self, n: int, number: int) -> str | None:
        """Return the stage of a node at which packets to an address end; None: they pass."""
        if self.fates.ends.get(number) == (n, "raw"):
            return "fwd_prerouting"
        number = self.fates.rewritten.get((n, number), number)
        fate = self.fates.ends.get(number)
        if fate is None or fate[0] != n or fate[1] == "raw":
            return None
        return COUNTED_AT.get(fate[1], fate[1])


WAYS = {
    "igb": (Way(1, vlan=None, pairs=(1, 3)), (1, 29)),
    "vlan": (Way(1, vlan=1), (0, 12)),
    "tunnel": (Way(2, vlan=2, tunnel=1, change=True), (4, 5, 6)),
    "three": (Way(3, vlan=2, tunnel=2, change=True), (7, 8, 9)),
}
"""Chain → the seeds of its mixtures; ten in all."""


@pytest.fixture(autouse=True)
def _waits_for_what_no_receiver_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait two seconds for packets on their way: a guest on busy CPUs stands still for 200 ms.

    A packet that ends at a node would else be in the counters of one host and not of the other.
    """
    defaults = Plan.__init__.__defaults__ or ()
    longer = tuple(10 * each if each == QUIET_NS else each for each in defaults)
    assert longer != defaults
    monkeypatch.setattr(Plan.__init__, "__defaults__", longer)


@pytest.mark.parametrize("name", WAYS)
def test_random_mixtures_over_real_drivers_balance(tmp_path: Path, name: str) -> None:
    """Each packet is at its stage, or that cannot be observed; none is unaccounted."""
    way, seeds = WAYS[name]
    mixtures = [Mixture(way, seed) for seed in seeds]
    planted: list[Mixture] = []

    def tell(progress: Progress) -> None:
        if progress.trial is None:
            return
        mixture = mixtures[int(progress.trial.experiment) - 1]
        if progress.event == "step" and progress.text == "safety":
            mixture.plant()
            planted.append(mixture)
        if progress.event == "phase" and progress.phase == "measured":
            mixture.look()
        if progress.event == "step" and progress.text == "verify":
            mixture.look()
        if progress.event == "trial" and planted:
            planted.pop().remove()

    shell("\n".join(way.script()))
    try:
        records = measured(way.lab(), mixtures, tmp_path, tell)
    finally:
        shell("".join(f"ip netns del {host}\n" for host in way.hosts))
    assert len(records) == len(seeds)
    wrong = []
    for record in records:
        mixture = mixtures[int(record.trial.experiment) - 1]
        wrong += complaints(record, judge(record), mixture)
    assert [] == wrong


def measured(lab: Lab, mixtures: list[Mixture], folder: Path, tell: Any) -> tuple[TrialRecord, ...]:
    """Return the records of a run with a trial for each mixture."""
    experiments = [
        load_experiment_data(mixture.experiment(), f"{number:03d}")
        for number, mixture in enumerate(mixtures, 1)
    ]
    writer = RunWriter.create(folder / "run", new_header(experiments, lab, ("test_nodes.py",)))
    outcome = run(experiments, lab, writer, tell, RunOptions(seed=1, lease_ns=120 * SECOND_NS))
    assert outcome.error is None, outcome
    assert () == outcome.restore_errors
    return tuple(read_run(folder / "run").records)


def complaints(record: TrialRecord, result: Result, mixture: Mixture) -> Iterator[str]:
    """Yield what is wrong with a trial's ledger; print what it says beside what was planted."""
    seed = f"seed {mixture.seed}"
    if result.ledger is None or len(mixture.edges) < 2:
        yield f"{seed}: {record.status}: {record.error}"
        return
    print(seed, mixture.netem, "at", mixture.emulator, "IPv", mixture.fates.family)
    try:
        truth, arrived = mixture.truth()
    except AssertionError as error:
        yield f"{seed}: counters contradict each other: {error}"
        return
    shown = {
        entry.stage: (entry.packets, entry.at_most)
        for entry in result.ledger.entries
        if entry.packets != 0 or entry.at_most or entry.stage in truth
    }
    print("  planted", truth, "arrived", arrived)
    print("  ledger ", shown)
    if ("done", 0, arrived) != (result.status, result.unaccounted, result.received_packets):
        yield (
            f"{seed}: {result.status} {record.error}: {result.unaccounted} unaccounted, "
            f"{result.received_packets} of {arrived} received; {result.findings}"
        )
    for stage in {*truth, *shown}:
        least, most = shown.get(stage, (0, None))
        high = most if least is None or most is not None else least
        packets = truth.get(stage, 0)
        if packets < (least or 0) or (high is not None and packets > high):
            yield f"{seed}: {stage} {packets}, printed {least} to {most}"
