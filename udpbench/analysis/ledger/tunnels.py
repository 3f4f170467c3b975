"""Nodes that forward frames, and what a tunnel that begins or ends there took and gave.

Owns which of a node's interfaces is which; the rows are with those of ``forwarding``.
"""

from __future__ import annotations

from udpbench.analysis.readings import AnyNode

REQUESTS = "{ip}OutRequests"
OF_UDP = ("{udp}InDatagrams", "{udp}InErrors", "{udp}NoPorts")


def given_to(*devices: str) -> tuple[str, ...]:
    """Return the counters of what devices were given to send."""
    sent = ("link.{}.tx_packets", "link.{}.tx_dropped", "qdisc.{}.drops")
    return tuple(name.format(device) for device in devices for name in sent)


def bridge_of(node: AnyNode) -> tuple[str, ...]:
    """Return a node's bridge and the ports that the traffic passes."""
    return next((node.view.bridges[host] for host in node.hosts if host in node.view.bridges), ())


def forwards_frames(node: AnyNode) -> bool:
    """Return whether its packets never get to IP, but for those that carry them in a tunnel."""
    return len(bridge_of(node)) > 2


def tunnel_of(node: AnyNode) -> str:
    """Return the port of its bridge that is a tunnel; empty: none is."""
    if not forwards_frames(node):
        return ""
    _, comes, leaves = bridge_of(node)
    interface, out = (node.view.named(node.hosts[0], word) for word in ("{interface}", "{out}"))
    return leaves if leaves != out else comes if comes != interface else ""


def encapsulated_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel was given and made no outer packet of.

    Elsewhere than in the built-in lab what else the host sends hides it.
    """
    tunnel, own = tunnel_of(node), node.counter(REQUESTS)
    if not tunnel:
        return 0
    given = node.total(*given_to(tunnel), f"link.{tunnel}.tx_errors")
    if given is None or own is None or not node.view.built_in_lab:
        return None
    return given - own


def decapsulated_skbs(node: AnyNode) -> int | None:
    """Return the outer packets of which no tunnel took anything.

    A tunnel answers a packet that is too long as if that came out of it: of these nothing came in.
    """
    tunnel = tunnel_of(node)
    if not tunnel:
        return 0
    came, out = node.total(*OF_UDP), node.counter(f"link.{tunnel}.rx_packets")
    if came is None or out is None:
        return None
    return max(came - out - (node.counter(f"link.{tunnel}.rx_errors") or 0), 0)


def cell_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel took out of outer packets and had no room for, or what found it down."""
    tunnel = tunnel_of(node)
    return node.counter(f"link.{tunnel}.rx_dropped") if tunnel else 0


def ecn_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel refused for a mark of congestion that the inner packet cannot have."""
    tunnel = tunnel_of(node)
    return node.counter(f"link.{tunnel}.rx_frame_errors") if tunnel else 0
