"""The files that ``udpbench init`` proposes: a lab of two hosts by their facts, and an experiment.

Pure. Nothing is guessed: what the facts do not determine is None, and the user chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_interface,
    ip_network,
)
from itertools import islice
from json import dumps

from udpbench.cpu_lists import format_cpu_list
from udpbench.definition.endpoints import addresses_of
from udpbench.model.host import Facts
from udpbench.model.lab import Connect
from udpbench.model.limits import Part
from udpbench.printable import printable
from udpbench.protocol import Interface

EXISTING = "existing"
PRIVATE = IPv4Network("192.168.0.0/16")
PRIVATE_NETWORKS = tuple(f"192.168.{third}.0/24" for third in range(254, 0, -1))
"""Networks to propose, in order (RFC 1918)."""
SENDER_NUMBER, RECEIVER_NUMBERS = 30, (1, 20)
"""Host numbers of the addresses in their network; as many receivers' as shipped experiments
need."""
MAX_PREFIX = 27
"""The longest prefix that has room for these addresses."""
PAIRS_MAX = 256
"""Most pairs that are shown, and asked for; a host may have thousands of interfaces."""
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class HostSurvey:
    """One host, and the visible facts of its interfaces."""

    name: str
    role: Part
    connect: Connect
    interfaces: tuple[Interface, ...]

    @property
    def usable(self) -> tuple[Interface, ...]:
        """The interfaces that carry no SSH connection and no default route."""
        return tuple(interface for interface in self.interfaces if not interface.protected)

    def interface(self, name: str) -> Interface:
        """Return an interface by its name; raises KeyError if the host has no such interface."""
        return {interface.name: interface for interface in self.interfaces}[name]


@dataclass(frozen=True)
class CablePair:
    """One interface of each host, and the evidence that they are connected."""

    left: str
    right: str
    network: str | None
    """A network in which both have an address."""
    proven: bool
    """An ARP request from the left interface arrived at the right one."""

    def __str__(self) -> str:
        proof = "link proven by ARP" if self.proven else "link not proven"
        network = f"both in {self.network}" if self.network else "no network in common"
        return f"{self.left} – {self.right}: {proof}, {network}"


def joined_pairs(
    left: HostSurvey, right: HostSurvey, heard: Iterable[tuple[str, str]] = ()
) -> tuple[CablePair, ...]:
    """Return the first pairs of usable interfaces with a proven link, else with a common network.

    ``heard`` has the pairs whose link is proven.
    """
    nears, fars = ({each.name: each for each in host.usable} for host in (left, right))
    places = [{name: place for place, name in enumerate(side)} for side in (nears, fars)]
    proven = sorted(
        {pair for pair in heard if pair[0] in nears and pair[1] in fars},
        key=lambda pair: (places[0][pair[0]], places[1][pair[1]]),
    )
    names = proven or _in_common(nears.values(), fars)
    return tuple(
        CablePair(near, far, common_network(nears[near], fars[far]), bool(proven))
        for near, far in islice(names, PAIRS_MAX)
    )


def common_network(left: Interface, right: Interface) -> str | None:
    """Return a network in which both have an address, each its own; None if there is none."""
    theirs = _by_network(right)
    for network, ips in _by_network(left).items():
        if network in theirs and len(ips | theirs[network]) > 1:
            return str(network)
    return None


def _in_common(
    left: Iterable[Interface], right: Mapping[str, Interface]
) -> Iterator[tuple[str, str]]:
    """Yield the names of each pair with a network in which both have an address, each its own."""
    # Of each network the interfaces by their addresses in it: those that have the same single
    # address, as every Docker bridge has it, are passed at once, however many they are.
    fars: dict[Network, dict[frozenset[Address], list[str]]] = {}
    for far in right.values():
        for network, ips in _by_network(far).items():
            fars.setdefault(network, {}).setdefault(frozenset(ips), []).append(far.name)
    for near in left:
        joined = {
            name
            for network, ips in _by_network(near).items()
            for others, names in fars.get(network, {}).items()
            if len(ips | others) > 1
            for name in names
        }
        yield from ((near.name, name) for name in (right if joined else ()) if name in joined)


def _by_network(interface: Interface) -> dict[Network, set[Address]]:
    known: dict[Network, set[Address]] = {}
    for address in map(ip_interface, interface.addresses):
        known.setdefault(address.network, set()).add(address.ip)
    return known


def free_network(hosts: Iterable[HostSurvey]) -> str:
    """Return a private network that overlaps no address of the hosts.

    If all overlap, the first; a run detects addresses that others use, and ends before it sends.
    """
    taken = {
        network
        for host in hosts
        for interface in host.interfaces
        for network in _by_network(interface)
        if isinstance(network, IPv4Network) and network.overlaps(PRIVATE)
    }
    used = {
        number >> 8 & 255
        for network in taken
        for number in range(
            max(int(network[0]), int(PRIVATE[0])), min(int(network[-1]), int(PRIVATE[-1])) + 1, 256
        )
    }
    free = (text for text in PRIVATE_NETWORKS if int(text.split(".")[2]) not in used)
    return next(free, PRIVATE_NETWORKS[0])


def addresses_in(network: str, role: Part) -> str:
    """Return a host's ``addresses`` in an IPv4 network; ValueError says why not.

    ``existing`` stays as it is.
    """
    if network == EXISTING:
        return EXISTING
    try:
        known = ip_network(network)
    except ValueError as error:
        raise ValueError(f"{error}; write for example {PRIVATE_NETWORKS[0]}, or existing") from None
    if known.version != 4 or known.prefixlen > MAX_PREFIX:
        limit = f"an IPv4 network with a prefix of at most {MAX_PREFIX}"
        raise ValueError(f"no room for the lab's addresses; {limit}, or existing")
    if role == "sender":
        text = f"{known[SENDER_NUMBER]}/{known.prefixlen}"
    else:
        low, high = (known[number] for number in RECEIVER_NUMBERS)
        text = f"{low}-{str(high).rpartition('.')[2]}/{known.prefixlen}"
    addresses_of(text)
    return f"[{text}]"


def proposed_cpus(facts: Facts, role: Part, other: Facts) -> tuple[int, ...]:
    """Return the CPUs of the interface's NUMA node; those that serve none of its RX queues first.

    Hosts on one machine (in containers or namespaces) split them, like those of a built-in lab.
    """
    node = {*facts.numa_nodes.get(str(facts.interface_node), ())}
    cpus = tuple(cpu for cpu in facts.cpus if cpu in node) or facts.cpus
    if facts.boot_id == other.boot_id and len(cpus) > 1:
        half = (len(cpus) + 1) // 2
        cpus = cpus[:half] if role == "receiver" else cpus[half:]
    serving = {cpu for queue in facts.queue_cpus.values() for cpu in queue}
    return (*(c for c in cpus if c not in serving), *(c for c in cpus if c in serving))


@dataclass(frozen=True)
class ProposedHost:
    """One host of the file to write."""

    survey: HostSurvey
    facts: Facts
    """With the interface chosen."""
    addresses: str
    """As in the file."""
    cpus: str


def lab_text(sender: ProposedHost, receiver: ProposedHost, pair: CablePair, path: str) -> str:
    """Return the text of a lab file, with comments; ``path`` is where it is to be written."""
    lines = [
        f"# {sender.survey.name} sends, {receiver.survey.name} receives.",
        f"# {pair}.",
        f"# What would distort a measurement: udpbench doctor --lab {path}",
        f"# What a run would change: udpbench plan smoke --lab {path}",
        "# Every key: docs/experiments.md.",
    ]
    for host in (sender, receiver):
        lines += [f"{host.survey.role}:", *_host_lines(host)]
    return "".join(f"{printable(line, keep='')}\n" for line in lines)


def _host_lines(host: ProposedHost) -> list[str]:
    facts = host.facts
    what = "used as they are" if host.addresses == EXISTING else "added by a run, then removed"
    node = "unknown" if facts.interface_node is None else str(facts.interface_node)
    queues = queues_text(facts)
    return [
        f"  - name: {host.survey.name}",
        f"    connect: {_connect_text(host.survey.connect)}",
        f"    # {described(host.survey.interface(facts.interface))}",
        f"    interface: {facts.interface}",
        f"    # {what}",
        f"    addresses: {host.addresses}",
        f"    # NUMA node of {facts.interface}: {node}; RX queues: {queues}",
        f'    cpus: "{host.cpus}"',
    ]


def _connect_text(connect: Connect) -> str:
    if connect.by == "local":
        return "local"
    keys = {"ssh": connect.ssh, "become": connect.become, "python": connect.python}
    given = ", ".join(f"{key}: {dumps(word)}" for key, word in keys.items() if word is not None)
    return f"{{{given}}}"


def described(interface: Interface) -> str:
    """Return an interface in words."""
    parts = [interface.driver, f"link {interface.link or 'unknown'}", *interface.addresses]
    role = ["carries SSH or a default route"] if interface.protected else []
    return f"{interface.name}: {', '.join([part for part in parts if part] + role)}"


def queues_text(facts: Facts) -> str:
    """Return the CPUs of each RX queue in words."""
    known = sorted(facts.queue_cpus.items(), key=lambda item: int(item[0]))
    return (
        "; ".join(f"{queue} on CPU {format_cpu_list(cpus)}" for queue, cpus in known) or "unknown"
    )


def names_of(interfaces: Sequence[Interface]) -> str:
    """Return the names of interfaces in words."""
    return ", ".join(interface.name for interface in interfaces) or "none"


EXPERIMENT = """\
# Every key: docs/experiments.md. To check it: udpbench plan {path}; to run it: udpbench run {path}

# The question that the run answers; it heads the report.
question: How many 64-byte datagrams per second does one receiving worker take?

# What is sent. Without a rate, the sender sends as fast as it can.
traffic: {{size: 64B}}

# How it is sent and received.
send: {{workers: 1}}
receive: {{workers: 1, buffer: 4MiB}}

# A sweep measures one point per value; this one compares two batch sizes.
sweep:
  receive.batch: [1, 64]

# Trials of each point, in random order; their warm-up and their measured time.
repetitions: 3
warmup: 200ms
duration: 1s

# What must hold; the exit code is 0 if it does, 1 if not.
expect:
  - received_packets > 0
  - unaccounted == 0

# With a server of your own instead, replace all from traffic on. It must bind 0.0.0.0 at port
# 4321, where the traffic goes, and stay in the foreground. answers: it sends one back for each
# datagram; without, it only reads.
#
# traffic: {{size: 64B, answers: count}}
# receive: {{command: [python3, server.py, "4321"]}}
# search: quick
"""
