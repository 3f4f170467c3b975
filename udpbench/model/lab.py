"""What a user declares of hosts: how each is reached, and which make up a lab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Annotated, Literal, Optional

from udpbench.frozen import dataclass
from udpbench.host_settings import Settings
from udpbench.model.limits import DAY_NS, SECOND_NS, Part
from udpbench.units import Named, Nanoseconds

SSH_SPEC = re.compile(
    r"(?:ssh://)?(?:(?P<user>(?!-)[A-Za-z0-9._-]+)@)?"
    r"(?:\[(?P<bracketed>[A-Za-z0-9._%:][A-Za-z0-9._%:-]*)\]|(?P<name>(?!-)[A-Za-z0-9._%-]+"
    r"|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:]*))(?::(?P<port>[0-9]{1,5}))?/?\Z"
)
"""``[user@]host[:port]``. A ProxyCommand and ``Match exec`` pass user and host to a shell, so its
characters are refused, as in OpenSSH since CVE-2023-51385."""
SSH_CHARACTERS = (
    "letters, digits and . _ - in user and host, % and : in a host, no - in front; any other user "
    "as User of an alias in ~/.ssh/config"
)

INSIDE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
"""The name of a namespace in /run/netns or of a container: no path and no option of a command."""


INSIDE = "netns:"
"""Begins the word by which an observer learns that name."""


@dataclass(frozen=True)
class Connect:
    """How a host is reached."""

    by: Literal["namespace", "local", "ssh", "netns", "container"]
    ssh: Optional[str] = None
    become: Optional[Literal["sudo"]] = None
    python: Optional[str] = None
    name: Optional[str] = None
    """The name of the namespace in /run/netns, of the host of ``ssh`` if there is one, or of the
    container."""


@dataclass(frozen=True)
class Node:
    """One node of a lab: a host, or what udpbench makes between hosts; each has its own agent."""

    name: str
    """The name of its agent, and of its counters in records."""
    part: Part
    connect: Connect
    interface: str
    addresses: tuple[str, ...] = ()
    """``192.168.254.1/24`` each, ranges expanded; empty with ``existing``."""
    existing: bool = False
    cpus: Optional[tuple[int, ...]] = None
    settings: Settings = field(default_factory=Settings)
    out: str = ""
    """For a node in the middle: the interface by which packets leave; they come in by the other."""
    out_addresses: tuple[str, ...] = ()
    change: bool = True
    """Whether its settings may be changed; a node in the middle is read only by default."""
    bridge: str = ""
    """For a node in the middle: the bridge with its interfaces as ports, which forwards frames. If
    it has addresses, those of one side are the bridge's, and the node routes."""
    bridged: Literal["in", "out"] = "in"
    """The side on which a bridge with addresses is: its only port is that interface."""
    tunnel: str = ""
    """The bridge's port that is a VXLAN interface: by it frames leave a node where a tunnel begins,
    and come in where it ends. Addresses are then those of the outer packets' interface. Without a
    bridge it is a WireGuard interface, into which the node routes."""

    @property
    def sends(self) -> bool:
        """Whether the path begins here."""
        return self.part == "sender"

    @property
    def receives(self) -> bool:
        """Whether it ends here."""
        return self.part == "receiver"

    @property
    def bridges(self) -> bool:
        """Whether it forwards frames, without IP."""
        return bool(self.bridge) and (bool(self.tunnel) or not self.addresses)

    @property
    def entry(self) -> str:
        """The interface by which IP sees packets come in, if any does."""
        if self.bridges or self.bridged == "out":
            return self.interface
        return self.bridge or self.interface

    @property
    def exit(self) -> str:
        """The interface to which a node in the middle routes packets, if it does."""
        return self.bridge if self.bridged == "out" else self.out


@dataclass(frozen=True)
class Reserve:
    """How a site lends a lab: it is ours from the command's first line until the command ends."""

    command: Annotated[tuple[str, ...], Named("command")]
    within_ns: Optional[Annotated[int, Nanoseconds(SECOND_NS, 7 * DAY_NS)]] = None
    """The longest wait for that line; None: as long as it takes."""


BRIDGE = Node("bridge", "link", Connect("namespace"), "bridge0")
"""The node with a port for each namespace of a built-in lab that has more than two."""
BETWEEN: dict[str, Part] = {BRIDGE.name: BRIDGE.part}


@dataclass(frozen=True)
class Lab:
    """Where an experiment runs: the nodes that packets pass."""

    name: str
    path: str
    text: str
    hosts: tuple[Node, ...]
    """The hosts of the file, in the order of the path: senders first."""
    settings: dict[Part, Settings] = field(default_factory=dict)
    reserve: Optional[Reserve] = None

    def at(self, part: Part) -> tuple[Node, ...]:
        """Return the hosts of one part of the path."""
        return self._parts.get(part, ())

    @cached_property
    def _parts(self) -> dict[Part, tuple[Node, ...]]:
        parts = dict.fromkeys(host.part for host in self.hosts)
        return {part: tuple(host for host in self.hosts if host.part == part) for part in parts}

    @property
    def senders(self) -> tuple[Node, ...]:
        """The hosts at which the path begins."""
        return self.at("sender")

    @property
    def receivers(self) -> tuple[Node, ...]:
        """The hosts at which it ends."""
        return self.at("receiver")

    @property
    def middle(self) -> tuple[Node, ...]:
        """The hosts that only forward, in the order of the path."""
        return self.at("middle")

    @property
    def tunnels(self) -> Iterator[tuple[Node, tuple[Node, ...], Node]]:
        """The node where each tunnel begins, those that outer packets pass, and where it ends."""
        ends = [n for n, node in enumerate(self.middle) if node.tunnel]
        for first, last in zip(ends[::2], ends[1::2]):
            yield self.middle[first], self.middle[first + 1 : last], self.middle[last]

    def ports(self, node: Node) -> tuple[str, ...]:
        """Return the ports of a node's bridge that the traffic passes: two if it forwards frames.

        Of a node that routes into a tunnel, or out of it, both interfaces of the inner packets.
        """
        if not node.tunnel:
            if node.bridges:
                return node.interface, node.out
            port = node.out if node.bridged == "out" else node.interface
            return (port,) if node.bridge else ()
        begins = any(node == first for first, _, _ in self.tunnels)
        return (node.interface, node.tunnel) if begins else (node.tunnel, node.out)

    @property
    def outside(self) -> tuple[Node, ...]:
        """The nodes in the middle that see packets as they were sent, not within outer ones."""
        hidden = {node.name for _, between, _ in self.tunnels for node in between}
        return tuple(node for node in self.middle if node.name not in hidden)

    @property
    def routers(self) -> tuple[Node, ...]:
        """Those of them that route, which take 1 off a packet's time to live."""
        return tuple(node for node in self.outside if not node.bridges)

    @property
    def links(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], tuple[str, str]]]:
        """The addresses of both ends of each link of a chain, and which nodes these are."""
        chains = [(self.senders[0], *self.routers, self.receivers[0])]
        within = {(first.name, last.name) for first, _, last in self.tunnels}
        for first, between, last in self.tunnels:
            chains.append((first, *(node for node in between if not node.bridges), last))
        for n, chain in enumerate(chains):
            for before, after in zip(chain, chain[1:]):
                if n == 0 and (before.name, after.name) in within:
                    continue
                leaving = before.out_addresses if before.out else before.addresses
                yield leaving, after.addresses, (before.name, after.name)

    @property
    def longest_ttl(self) -> int:
        """The TTL with which packets reach the receivers and come no further."""
        return 1 + len(self.routers)

    @property
    def ends(self) -> tuple[Node, ...]:
        """The hosts with workers, senders first."""
        return self.senders + self.receivers

    @cached_property
    def built_in(self) -> bool:
        """True if the hosts are namespaces made on this machine; every result says so."""
        return all(host.connect.by == "namespace" for host in self.hosts)

    @property
    def joint(self) -> Optional[Node]:
        """The node that makes a pair to each namespace; None: the receiver makes the only one."""
        if not self.built_in or len(self.hosts) <= 2:
            return None
        return next(iter(self.middle), BRIDGE)

    @property
    def between(self) -> tuple[Node, ...]:
        """The nodes between the ends."""
        return (BRIDGE,) if self.joint is BRIDGE else self.middle

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The whole path."""
        return (*self.senders, *self.between, *self.receivers)
