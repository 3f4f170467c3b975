"""The links of a built-in lab with nodes in the middle: interfaces, addresses, neighbours, routes.

Pure. The first node makes the pair to the sender, and each node that to the next host; two hosts of
a link know each other's MAC, also beyond bridges, and a host knows which gateway leads to each end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from itertools import chain

from udpbench.model.lab import Lab, Node

VNI = 1
"""The identifier of the virtual network in the tunnels of a built-in lab."""


@dataclass(frozen=True)
class LinkEnd:
    """A host's interface on a link."""

    host: Node
    interface: str
    addresses: tuple[str, ...]
    mac: str

    def of_family(self, family: int) -> tuple[str, ...]:
        """Return its addresses of a family."""
        return tuple(text for text in self.addresses if (":" in text) == (family == 6))

    def gateway(self, family: int) -> str | None:
        """Return its first address of a family, without the prefix length."""
        return next((text.partition("/")[0] for text in self.of_family(family)), None)


def pairs(lab: Lab) -> tuple[tuple[LinkEnd, LinkEnd], ...]:
    """Return both ends of each pair, from the sender to the receiver; none without a middle."""
    if not (lab.built_in and lab.middle):
        return ()
    comes = [_entry(host, 2 * n) for n, host in enumerate((*lab.middle, lab.receivers[0]), 1)]
    leaves = [_exit(host, 2 * n + 1) for n, host in enumerate((lab.senders[0], *lab.middle))]
    return tuple(zip(leaves, comes, strict=True))


def chains(lab: Lab) -> Iterator[tuple[tuple[LinkEnd, LinkEnd], ...]]:
    """Yield the links of IP of the path, then those of the outer packets of each tunnel.

    A link has both ends of a pair, or of several that bridges join.
    """
    both = pairs(lab)
    within = [_within(both, first, last) for first, _, last in lab.tunnels if both]
    outside = [pair for pair in both if not any(pair in hidden for hidden in within)]
    return map(_joined, filter(None, (outside, *within)))


Pairs = Sequence[tuple[LinkEnd, LinkEnd]]


def _within(both: Pairs, first: Node, last: Node) -> Pairs:
    """Return the pairs between the two ends of a tunnel."""
    begins = next(n for n, (left, _) in enumerate(both) if left.host == first)
    ends = next(n for n, (_, right) in enumerate(both) if right.host == last)
    return both[begins : ends + 1]


def _joined(both: Pairs) -> tuple[tuple[LinkEnd, LinkEnd], ...]:
    """Return the links of a row of pairs; a bridge has the MAC of its only port."""
    leaves = [
        replace(left, interface=left.host.exit or left.interface)
        for n, (left, _) in enumerate(both)
        if not (n and left.host.bridges)
    ]
    comes = [
        replace(right, interface=right.host.entry)
        for _, right in both[:-1]
        if not right.host.bridges
    ]
    return tuple(zip(leaves, [*comes, both[-1][1]], strict=True))


def ports(lab: Lab, node: Node) -> Iterator[tuple[str, str]]:
    """Yield each port of a node's bridge, with the MAC of the only station behind it."""
    at, both = lab.outside.index(node), pairs(lab)
    stations = [lab.senders[0], *lab.outside, lab.receivers[0]]
    before = next(host for host in stations[at::-1] if not host.bridges)
    behind = next(host for host in stations[at + 2 :] if not host.bridges)
    macs = [next(left.mac for left, _ in both if left.host == before)]
    macs.append(next(right.mac for _, right in both if right.host == behind))
    yield from zip(lab.ports(node), macs[1:] if node.bridged == "out" else macs, strict=False)


def tunnel(lab: Lab, node: Node) -> dict[str, int | str]:
    """Return the identifier, both ends and the time to live of a node's tunnel."""
    for first, between, last in lab.tunnels:
        here = first.out_addresses[0].partition("/")[0]
        there = last.addresses[0].partition("/")[0]
        local, remote = (here, there) if node == first else (there, here)
        hops = 1 + sum(1 for each in between if not each.bridges)
        if node in (first, last):
            return {"vni": VNI, "local": local, "remote": remote, "ttl": hops}
    return {}


def _entry(host: Node, number: int) -> LinkEnd:
    return LinkEnd(host, host.interface, host.addresses, _mac(host, number))


def _exit(host: Node, number: int) -> LinkEnd:
    if not host.out:
        return _entry(host, number)
    return LinkEnd(host, host.out, host.out_addresses, _mac(host, number))


def _mac(host: Node, number: int) -> str:
    """Return a locally administered MAC: those of the ends are as in every built-in lab."""
    kind, own = {"sender": (1, 1), "receiver": (2, 1)}.get(host.part, (3, number))
    return f"02:75:62:{kind:02x}:{own // 256:02x}:{own % 256:02x}"


def own_ends(lab: Lab, host: Node) -> Iterator[tuple[LinkEnd, LinkEnd]]:
    """Yield each end of a link that is a host's own, with the other end."""
    for left, right in chain.from_iterable(chains(lab)):
        if left.host == host:
            yield left, right
        if right.host == host:
            yield right, left


def made_pairs(lab: Lab, node: Node) -> Iterator[tuple[LinkEnd, LinkEnd]]:
    """Yield the ends of the pairs that a node makes, with their other ends."""
    for left, right in pairs(lab):
        if left.host == node and node.out:
            yield left, right
        elif right.host == node and left.host.sends:
            yield right, left


def gateways(lab: Lab, host: Node, family: int) -> Iterator[tuple[str, str, str]]:
    """Yield (interface, network, gateway) of each network that is beyond a host's own links."""
    for links in chains(lab):
        for at, (left, right) in enumerate(links):
            if left.host == host:
                beyond = [end for _, end in links[at + 1 :]]
                yield from _through(left, right, beyond, family)
            if right.host == host:
                beyond = [end for end, _ in links[:at]]
                yield from _through(right, left, beyond, family)
    yield from _by_tunnel(lab, host, family)


def _by_tunnel(lab: Lab, host: Node, family: int) -> Iterator[tuple[str, str, str]]:
    """Yield the networks beyond a tunnel into which a host routes, whose end has no address."""
    links = next(chains(lab), ())
    for first, _, last in lab.tunnels if links else ():
        if host not in (first, last) or host.bridge:
            continue
        at = next(n for n, (left, _) in enumerate(links) if left.host == last)
        beyond = [end for _, end in links[at:]] if host == first else [end for end, _ in links[:at]]
        for network in _networks(beyond, family):
            yield host.tunnel, network, "link"


def _through(
    own: LinkEnd, other: LinkEnd, beyond: list[LinkEnd], family: int
) -> Iterator[tuple[str, str, str]]:
    gateway = other.gateway(family)
    for network in _networks(beyond, family) if gateway is not None else ():
        yield own.interface, network, str(gateway)


def _networks(ends: list[LinkEnd], family: int) -> dict[str, None]:
    return {str(ip_interface(text).network): None for end in ends for text in end.of_family(family)}
