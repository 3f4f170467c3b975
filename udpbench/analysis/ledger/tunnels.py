"""Nodes that forward frames, and what a tunnel that begins or ends there took and gave.

Owns which of a node's interfaces is which; the rows are with those of ``forwarding``. What is
counted of WireGuard: docs/kernel.md, WireGuard of the kernel; docs/kernel.md, WireGuard in a
process.
"""

from __future__ import annotations

from udpbench.analysis.readings import AnyNode

REQUESTS, ICMP = "{ip}OutRequests", "snmp.Icmp.OutMsgs"
OF_UDP = ("{udp}InDatagrams", "{udp}InErrors", "{udp}NoPorts")
NO_ROOM = ("{udp}RcvbufErrors", "{udp}MemErrors")
SENT_CONTROL, CAME_CONTROL = "rules.output.control", "rules.input.control"
"""Outer packets without an inner one, as rules of WireGuard's own count them."""
SENT_DATA, CAME_DATA = "rules.output.data", "rules.input.data"
"""All others, at hosts that are there already: with rules, which a node that is read only lacks."""
CAME_OUT = "rules.prerouting.inner"
"""What came out of WireGuard of the kernel, whose rx_packets has handshakes and keepalives."""
QUEUED = ("qdisc.{}.packets", "qdisc.{}.drops")
"""What such an interface was given: its tx_packets are outer packets."""


def given_to(*devices: str) -> tuple[str, ...]:
    """Return the counters of what devices were given to send."""
    sent = ("link.{}.tx_packets", "link.{}.tx_dropped", "qdisc.{}.drops")
    return tuple(name.format(device) for device in devices for name in sent)


def bridge_of(node: AnyNode) -> tuple[str, ...]:
    """Return a node's bridge and the ports that the traffic passes."""
    return next((node.view.bridges[host] for host in node.hosts if host in node.view.bridges), ())


def behind_ip(node: AnyNode) -> str:
    """Return the bridge to which a node routes, whose only port is the way out; empty: none."""
    name, *ports = bridge_of(node) or ("",)
    return name if ports == [node.view.named(node.hosts[0], "{out}")] else ""


def forwards_frames(node: AnyNode) -> bool:
    """Return whether its packets never get to IP, but for those that carry them in a tunnel."""
    return bool("".join(bridge_of(node)[:1])) and len(bridge_of(node)) > 2


def tunnel_of(node: AnyNode) -> str:
    """Return the tunnel into which it forwards, or out of which it takes; empty: none."""
    if len(bridge_of(node)) < 3:
        return ""
    _, comes, leaves = bridge_of(node)
    interface, out = (node.view.named(node.hosts[0], word) for word in ("{interface}", "{out}"))
    return leaves if leaves != out else comes if comes != interface else ""


def routed_tunnel_of(node: AnyNode) -> str:
    """Return the tunnel into which it routes (WireGuard); empty: none."""
    return "" if forwards_frames(node) else tunnel_of(node)


def given_by_ip(node: AnyNode) -> tuple[str, ...]:
    """Return the counters of what IP gives devices: at a tunnel of frames the outer packets."""
    tunnel = tunnel_of(node)
    if forwards_frames(node):
        return given_to("{out}" if tunnel == bridge_of(node)[-1] else "{interface}")
    if _in_kernel(node):
        return (*given_to("{interface}", "{out}"), *(name.format(tunnel) for name in QUEUED))
    if behind_ip(node):
        return (*given_to("{interface}"), f"link.{behind_ip(node)}.tx_packets")
    return given_to("{interface}", "{out}", *filter(None, [tunnel]))


def is_uncounted(node: AnyNode) -> bool:
    """Return whether its rules did not count, without which no kind of WireGuard is known.

    That of a host that is there already is the kernel's.
    """
    ours = bool(routed_tunnel_of(node)) and node.view.built_in_lab
    return ours and node.counter(SENT_CONTROL) is None


def _in_kernel(node: AnyNode) -> bool:
    """Return whether it routes into a tunnel of the kernel: a process needs no such rule."""
    if not routed_tunnel_of(node):
        return False
    return not node.view.built_in_lab or node.counter(CAME_OUT) is not None


def encapsulated_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel was given and made no outer packet of.

    Elsewhere than in the built-in lab what else the host sends hides it, unless rules count it.
    """
    tunnel, sent = tunnel_of(node), node.counter(REQUESTS)
    if not tunnel:
        return 0
    if routed_tunnel_of(node):
        # The tunnel sends each by itself; ICMP is all else that the node of a lab sends.
        taken = QUEUED[0].format(tunnel) if _in_kernel(node) else f"link.{tunnel}.tx_packets"
        given = node.counter(taken)
        aside = _sum([node.counter(name) for name in (ICMP, SENT_CONTROL)])
        if not node.view.built_in_lab:
            sent, aside = node.counter(SENT_DATA), 0
    else:
        given, aside = node.total(*given_to(tunnel), f"link.{tunnel}.tx_errors"), 0
        sent = sent if node.view.built_in_lab else None
    if given is None or sent is None or aside is None:
        return None
    return given - (sent - aside)


def _sum(counts: list[int | None]) -> int | None:
    """Return a sum of which no part may be missing."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def ring_skbs(node: AnyNode) -> int | None:
    """Return what had no room before a tunnel: in its queue, or the ring that a process reads."""
    tunnel = routed_tunnel_of(node)
    if not tunnel or is_uncounted(node):
        return None if tunnel else 0
    # In the kernel it is also what was dropped of the outer packets.
    ring = () if _in_kernel(node) else (f"link.{tunnel}.tx_dropped",)
    return node.total(*ring, QUEUED[1].format(tunnel))


def _out_of_socket(node: AnyNode) -> tuple[int, int] | None:
    """Return the data messages that did not come out of a tunnel, and of these the unread ones.

    A handshake that its socket had no room for is none of them: it is known by what is missing.
    At a host that is there already all that comes to other sockets is among them without rules.
    """
    inside = _in_kernel(node)
    came, full = node.total(*OF_UDP), 0 if inside else node.total(*NO_ROOM)
    control, by_rule = node.counter(CAME_CONTROL), inside
    if not node.view.built_in_lab:
        data = node.counter(CAME_DATA)
        control, by_rule = 0, data is not None
        came = data if by_rule else came
    out = node.counter(CAME_OUT if by_rule else f"link.{routed_tunnel_of(node)}.rx_packets")
    if came is None or full is None or out is None or control is None:
        return None
    missing = came - control - out
    return missing, min(full, max(missing, 0))


def unread_skbs(node: AnyNode) -> int | None:
    """Return the outer packets that the socket of a tunnel's process had no room for."""
    if not routed_tunnel_of(node):
        return 0
    known = _out_of_socket(node)
    return None if known is None else known[1]


def decapsulated_skbs(node: AnyNode) -> int | None:
    """Return the outer packets of which no tunnel took anything.

    A tunnel answers a packet that is too long as if that came out of it: of these nothing came in.
    """
    tunnel = tunnel_of(node)
    if not tunnel:
        return 0
    if routed_tunnel_of(node):
        known = _out_of_socket(node)
        return None if known is None else known[0] - known[1]
    came, out = node.total(*OF_UDP), node.counter(f"link.{tunnel}.rx_packets")
    if came is None or out is None:
        return None
    return max(came - out - (node.counter(f"link.{tunnel}.rx_errors") or 0), 0)


def cell_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel took out of outer packets and had no room for, or what found it down."""
    tunnel = tunnel_of(node) if forwards_frames(node) else ""
    return node.counter(f"link.{tunnel}.rx_dropped") if tunnel else 0


def ecn_skbs(node: AnyNode) -> int | None:
    """Return what a tunnel refused for a mark of congestion that the inner packet cannot have."""
    tunnel = tunnel_of(node) if forwards_frames(node) else ""
    return node.counter(f"link.{tunnel}.rx_frame_errors") if tunnel else 0
