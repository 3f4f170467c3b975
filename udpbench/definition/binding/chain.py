"""The links of a built-in lab with nodes in the middle: interfaces, addresses, neighbours, routes.

Pure. The first node makes the pair to the sender, and each node that to the next host; two hosts of
a link know each other's MAC, also beyond bridges, and a host knows which gateway leads to each end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from udpbench.model.lab import Lab, Node


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


def links(lab: Lab) -> tuple[tuple[LinkEnd, LinkEnd], ...]:
    """Return both ends of each link of IP: of a pair, or of several that bridges join.

    A bridge has the MAC of its only port.
    """
    both = pairs(lab)
    leaves = [left for left, _ in both if not left.host.bridges]
    comes = [_above(right) for _, right in both if not right.host.bridges]
    return tuple(zip(leaves, comes, strict=True))


def _above(port: LinkEnd) -> LinkEnd:
    return replace(port, interface=port.host.bridge or port.interface)


def ports(lab: Lab, node: Node) -> Iterator[tuple[str, str]]:
    """Yield each port of a node's bridge, with the MAC of the only station behind it."""
    at = lab.middle.index(node)
    both = pairs(lab)
    before = [left for left, _ in both[: at + 1] if not left.host.bridges][-1]
    behind = next(right for _, right in both[at + 1 :] if not right.host.bridges)
    yield node.interface, before.mac
    if node.bridges:
        yield node.out, behind.mac


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
    for left, right in links(lab):
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
    chain = links(lab)
    for at, (left, right) in enumerate(chain):
        if left.host == host:
            beyond = [end for _, end in chain[at + 1 :]]
            yield from _through(left, right, beyond, family)
        if right.host == host:
            beyond = [end for end, _ in chain[:at]]
            yield from _through(right, left, beyond, family)


def _through(
    own: LinkEnd, other: LinkEnd, beyond: list[LinkEnd], family: int
) -> Iterator[tuple[str, str, str]]:
    gateway = other.gateway(family)
    networks = {
        str(ip_interface(text).network): None for end in beyond for text in end.of_family(family)
    }
    for network in networks if gateway is not None else ():
        yield own.interface, network, str(gateway)
