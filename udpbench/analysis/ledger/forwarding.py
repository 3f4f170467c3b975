"""Stages of a node in the middle, which forwards: from its ring to the device it sends by.

What Linux does not count is what is missing between two of its counters: in PREROUTING, in FORWARD
and behind it. Their places are those of Linux 6.8 and later, where ForwDatagrams is counted before
the MTU is checked and FORWARD is passed, and OutTransmits behind POSTROUTING (net/ipv4:
ip_forward.c, ip_output.c); tests/lab/test_path.py loses packets at each. Before, ForwDatagrams is
counted behind FORWARD, and nothing behind POSTROUTING. A row is read at one node.

Long, because what one stage counts is missing from another, and all of them add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from udpbench.analysis.ledger import before_ip, ip, skbs, tunnels
from udpbench.analysis.ledger.skbs import Span, exactly, sum_of
from udpbench.analysis.ledger.sockets import NO_PORTS
from udpbench.analysis.ledger.stage import (
    Expression,
    Stage,
    at,
    at_most,
    in_packets,
    spanned,
)
from udpbench.analysis.readings import AnyNode, CounterView

HEADER_ERRORS = ("{ip}InHdrErrors", "{ip}InAddrErrors", "{ip}InDiscards", "{ipx}InTruncatedPkts")
NO_ROUTES = "{ipx}InNoRoutes"
UNROUTED = "rt_cache.in_no_route"
"""Routes of the types unreachable, prohibit and blackhole count here alone, for all namespaces."""
TOO_LONG = "{ip}FragFails"
TRANSMITS, REQUESTS = "{ip}OutTransmits", tunnels.REQUESTS
OWN = {4: tunnels.ICMP, 6: "snmp6.Icmp6OutMsgs"}
"""What a node of a built-in lab sends of its own. Before Linux 6.8 OutRequests has of IPv4 what is
forwarded, too, and of IPv6 only what passed POSTROUTING."""
NOT_INSERTED = "conntrack.insert_failed"
"""At least those of them that were lost behind FORWARD, where entries are confirmed."""
UNRESOLVED, FAILED = "arp_cache.unresolved_discards", "arp_cache.res_failed"
QUEUE_DROPS, DEVICE_DROPS = "qdisc.{out}.drops", "link.{out}.tx_dropped"


T = TypeVar("T")
V = TypeVar("V", bound=CounterView)


def _arriving(read: Callable[[V], T]) -> Callable[[V], T]:
    """Return what is read of an end as the same of a node, to which the one before it sends."""
    return lambda view: read(view.arriving(*view.at("middle").hosts))


def _header_skbs(node: AnyNode) -> int | None:
    refused = node.total(*HEADER_ERRORS)
    return None if refused is None else refused + (node.counter(ip.OTHER_HOST) or 0)


def _told_apart(node: AnyNode) -> dict[str, Span] | None:
    """Return what ended before FORWARD, by causes of which no counter of the node says all.

    A counter that all namespaces of a machine share is an upper limit: a neighbour may move it.
    """
    missing = _missing_before_forward(node)
    if missing is None:
        return None
    hooks = ("prerouting", "input") if tunnels.tunnel_of(node) else ("prerouting",)
    rules = ip.rules_dropped(node, *hooks) if _counts_transmits(node) else None
    tracked, later = _conntrack_skbs(node), node.counter(NOT_INSERTED)
    # A node that begins or ends a tunnel tracks what it sends and takes itself, too.
    known = later is not None and _counts_transmits(node) and not tunnels.tunnel_of(node)
    unrouted = ip.most_counted_by_machine(node, UNROUTED, beyond=NO_ROUTES)
    if unrouted:
        # Packets in a row to an address are received as a list, of which the first alone counts
        # (net/ipv4/ip_input.c: ip_list_rcv_finish).
        unrouted = max(missing, 0)
    if node.view.traffic.family == 6 and not (rules is None and node.view.built_in_lab):
        unrouted = max(missing, 0)  # a route of the type blackhole moves no counter at all
    silent = {
        "martians": ip.martians(node),
        "routes": Span(0, unrouted),
        "tracked": Span(max(tracked - (later or 0), 0) if known else 0, tracked),
    }
    return ip.told_apart(missing, rules, silent)


def undecided_skbs(view: CounterView) -> Span:
    """Return by how much stages of nodes say too little and too much, each by itself.

    What all of them have together is known.
    """
    low = high = 0
    for node in view.middle:
        parts = _told_apart(node)
        if parts is not None and not _is_bridge(node):
            reach, missing = sum_of(parts), _missing_before_forward(node) or 0
            low, high = low + missing - reach.low, high + reach.high - missing
    return Span(low, high)


def _is_bridge(node: AnyNode) -> bool:
    """Return whether none of the traffic gets to its IP layer."""
    return tunnels.forwards_frames(node) and not tunnels.tunnel_of(node)


def _reverse_path_skbs(view: CounterView) -> Span | None:
    """Return what failed the reverse path filter, or had an impossible address; IPv4 alone."""
    node = view.at("middle")
    if view.traffic.family == 6:
        return exactly(0)
    failed, parts = node.counter(ip.REVERSE_PATH), _told_apart(node)
    if failed is None:
        return None
    return exactly(failed) + (parts["martians"] if parts else exactly(0))


def _unrouted_skbs(view: CounterView) -> Span | None:
    node = view.at("middle")
    without, parts = node.counter(NO_ROUTES), _told_apart(node)
    if without is None:
        return None
    return exactly(without) + (parts["routes"] if parts else exactly(0))


def _local_skbs(node: AnyNode) -> int | None:
    """Return what was sent to an address of the node, and no rule led on: no socket is there."""
    published = node.view.traffic.flows.published or ""
    if not any(published.startswith(f"{name}.addresses[") for name in node.hosts):
        return 0
    return node.counter(NO_PORTS)


def _missing_before_forward(node: AnyNode) -> int | None:
    """Return what came in, was not refused, and was neither delivered nor forwarded.

    With what nothing of the node counts. Before Linux 6.8 what FORWARD and the MTU took is in it,
    too.
    """
    missing = ip.missing_skbs(node)
    if missing is None or _counts_transmits(node):
        return missing
    return missing - (node.counter(TOO_LONG) or 0)


def _counts_transmits(node: AnyNode) -> bool:
    return node.counter(TRANSMITS) is not None


def _conntrack_skbs(node: AnyNode) -> int:
    """Return what connection tracking dropped; 0 where it is not loaded."""
    return node.total(*ip.CONNTRACK) or 0


def _prerouting_skbs(view: CounterView) -> Span | None:
    node = view.at("middle")
    parts = _told_apart(node)
    return exactly(0) if _is_bridge(node) else parts["rules"] if parts else None


def _forward_skbs(view: CounterView) -> Span | None:
    """Return what is missing between ForwDatagrams and OutTransmits; None before Linux 6.8."""
    node = view.at("middle")
    forwarded, left, parts = node.total(ip.FORWARDED), _whole_transmits(node), _told_apart(node)
    if _is_bridge(node):
        return exactly(0)
    if forwarded is None or left is None or parts is None:
        return None
    own, too_long = node.counter(REQUESTS) or 0, node.counter(TOO_LONG) or 0
    missing = forwarded - (left - own)
    # What connection tracking dropped, and not before FORWARD, it dropped behind it.
    tracked, first = _conntrack_skbs(node), parts["tracked"]
    last = [tracked - first.low, tracked - first.high]
    if tunnels.tunnel_of(node):
        last = [min(skbs_lost, max(missing, 0)) for skbs_lost in last]
    return Span(missing - too_long - last[0], missing - too_long - last[1])


def _whole_transmits(node: AnyNode) -> int | None:
    """Return the packets that passed POSTROUTING, each once, in however many fragments it left."""
    left = node.counter(TRANSMITS)
    return None if left is None else left - _more_fragments(node)


def _more_fragments(node: AnyNode) -> int:
    """Return how many more packets left as fragments than were cut."""
    return (node.counter("{ip}FragCreates") or 0) - (node.counter("{ip}FragOKs") or 0)


def _sent_behind_forward(node: AnyNode) -> int | None:
    """Return what left IP, fragments one by one; before Linux 6.8 with what POSTROUTING dropped."""
    if _counts_transmits(node):
        return node.counter(TRANSMITS)
    forwarded, own = node.total(ip.FORWARDED), node.counter(OWN[node.view.traffic.family])
    if forwarded is None or own is None or tunnels.tunnel_of(node):
        return None
    return forwarded + own + _more_fragments(node)


def _unresolved_skbs(node: AnyNode) -> int | None:
    """Return what is missing between OutTransmits, or FORWARD before Linux 6.8, and the devices.

    Elsewhere than in the built-in lab, whose nodes have no other way out, 0 is known if no look-up
    of a neighbour failed on the whole machine.
    """
    left, tunnel = _sent_behind_forward(node), tunnels.tunnel_of(node)
    if tunnels.forwards_frames(node) and not tunnel:
        return 0
    if tunnels.is_uncounted(node):
        return None
    if left is not None and node.view.built_in_lab:
        return left - (node.total(*tunnels.given_by_ip(node)) or 0)
    counted = [node.machine_counter(name) for name in (UNRESOLVED, FAILED)]
    return 0 if None not in counted and not any(counted) else None


def _bridge_skbs(node: AnyNode) -> int | None:
    """Return what came in at a bridge, by its ports or from its host, and left by no way.

    A bridge counts no drop of its own: a frame longer than a port's MTU, to nobody that it knows,
    to a port that is blocked or isolated, or a rule of its own tables. Where the node routes what
    comes in by a bridge that has further ports, nothing tells.
    """
    view, bridge, tunnel = node.view, tunnels.bridge_of(node), tunnels.tunnel_of(node)
    if not any(bridge[:1]):
        behind = any(facts.driver == "bridge" for facts in node.facts)
        return None if behind else 0
    name, *ports = bridge
    routed = node.counter(f"link.{name}.tx_packets")
    if tunnels.behind_ip(node):
        left = node.total(*tunnels.given_to("{out}"))
        return None if None in (routed, left) else (routed or 0) - (left or 0)
    forwards_frames = tunnels.forwards_frames(node)
    if not forwards_frames and not view.built_in_lab:
        return None
    # The bridge counts what it takes in before its own rules (net/bridge/br_input.c).
    ways_in = ports if forwards_frames else [*ports, "{out}"]
    entered = node.total(*(f"link.{each}.rx_packets" for each in ways_in))
    if entered is None:
        return None
    own = routed or 0
    if tunnel:
        taken = (tunnels.cell_skbs(node) or 0) + (node.counter(f"link.{tunnel}.tx_errors") or 0)
    else:
        taken = _by_ip_of_bridge(node) if forwards_frames else node.counter(ip.RECEIVES) or 0
    refused = node.total(*(f"qdisc.{each}.ingress.drops" for each in ways_in)) or 0
    return entered - refused + own - (node.total(*tunnels.given_to(*ports)) or 0) - taken


def _by_ip_of_bridge(node: AnyNode) -> int:
    """Return what a bridge that hands frames to the rules for IP refused there, less what it cut.

    Without br_netfilter these counters stand still (net/bridge/br_netfilter_hooks.c).
    """
    refused = (_header_skbs(node) or 0) + (node.counter(TOO_LONG) or 0) + _conntrack_skbs(node)
    whole, pieces = (node.counter(f"{{ip}}Frag{name}") or 0 for name in ("OKs", "Creates"))
    return refused + whole - pieces


def _device_skbs(view: CounterView) -> int | None:
    """Return what the device dropped, without what the next host's backlog refused."""
    node = view.at("middle")
    dropped = node.counter(DEVICE_DROPS)
    if dropped is None:
        return None
    return dropped - charged_by_next(view, *node.hosts)


def charged_by_next(view: CounterView, node: str) -> int:
    """Return how many skbs that a device counts as dropped were refused by the next backlog."""
    following = view.leaving(node)
    if not before_ip.backlog_charges_peer(following):
        return 0
    return before_ip.backlog_skbs(following) or 0


def _of_node(read: Callable[[AnyNode], int | None]) -> Callable[[CounterView], int | None]:
    return at("middle", read)


DIFFERENCES = (
    *("fwd_bridge", "fwd_encap", "fwd_prerouting", "fwd_netfilter", "fwd_neighbour"),
    "fwd_decap",
)
UNPROVOKED = {
    "fwd_ring": "a veth has no ring of its own",
    **dict.fromkeys(
        (
            *("fwd_xdp", "fwd_backlog", "fwd_tc", "fwd_conntrack", "fwd_rp_filter", "fwd_route"),
            *("fwd_tun", "fwd_rcvbuf", "fwd_ecn", "fwd_cells", "fwd_local"),
        ),
        "no packet is lost there on purpose at a node in the middle",
    ),
    "fwd_qdisc": "no packet is lost there on purpose at a node in the middle",
}


def _row(name: str, **given: Any) -> Stage:
    unprovoked, missing = UNPROVOKED.get(name, ""), name in DIFFERENCES
    return Stage(name, part="middle", unprovoked=unprovoked, is_difference=missing, **given)


def _stage(
    name: str,
    counted: Callable[[CounterView], int | None],
    source: str,
    means: str,
    counters: tuple[str, ...] = (),
    reasons: tuple[str, ...] = (),
    parts: str = "",
    refuses: bool = False,
) -> Stage:
    return _row(
        name=name,
        packets=in_packets(name, counted, skbs.sent_skb),
        source=source,
        means=means,
        most=at_most(counted),
        counters=counters,
        unit="skb",
        parts=parts,
        reasons=reasons,
        refuses=refuses,
    )


def _spanned(name: str, lost: Expression, source: str, means: str, **more: Any) -> Stage:
    """Return a stage of which an interval of skbs may be known."""
    packets = spanned(name, lost, skbs.sent_skb)
    most = at_most(_high(lost))
    return _row(
        name=name, packets=packets, most=most, source=source, means=means, unit="skb", **more
    )


def _high(lost: Expression) -> Callable[[CounterView], int | None]:
    def high(view: CounterView) -> int | None:
        span = lost(view)
        return span.high if span is not None else None

    return high


ROWS = (
    _row(
        name="fwd_ring",
        packets=_arriving(before_ip.ring_frames),
        source="Δ of the driver's counter of a full ring; a veth has none",
        means="The node's NIC had no free descriptor: it did not poll its ring in time.",
        most=_arriving(before_ip.most_in_full_rings),
        parts="ethtool.{interface}.rx*_drops",
    ),
    _row(
        name="fwd_xdp",
        packets=in_packets("fwd_xdp", _arriving(before_ip.xdp_frames), skbs.sent_skb),
        source="Δ of the driver's counter of drops by XDP",
        means="Dropped by an XDP program on the interface by which packets come in.",
        most=_arriving(before_ip.most_by_xdp),
        unit="skb",
        refuses=True,
    ),
    _row(
        name="fwd_backlog",
        packets=in_packets("fwd_backlog", _arriving(before_ip.backlog_skbs), skbs.sent_skb),
        source=f"min(Δ {before_ip.SOFTNET_DROPPED}, Δ {before_ip.RX_DROPPED}); of a tunnel the "
        "latter",
        means="The backlog queue of a CPU that forwards was full (RPS, a veth without NAPI, or the "
        "cells of a tunnel).",
        most=_arriving(at_most(before_ip.backlog_skbs)),
        counters=(before_ip.RX_DROPPED,),
        unit="skb",
        parts=f"machine.{before_ip.SOFTNET_DROPPED}",
        reasons=("CPU_BACKLOG",),
    ),
    _row(
        name="fwd_tc",
        packets=in_packets("fwd_tc", _arriving(before_ip.tc_skbs), skbs.sent_skb),
        source=f"Δ {before_ip.INGRESS_DROPS}",
        means="Dropped by a tc filter of the node on receipt.",
        most=_arriving(before_ip.most_by_tc),
        counters=(before_ip.INGRESS_DROPS,),
        unit="skb",
        reasons=("TC_INGRESS",),
        refuses=True,
    ),
    _stage(
        "fwd_bridge",
        _of_node(_bridge_skbs),
        "Δ rx_packets of the ports − their ingress drops − what they were given to send, or IP "
        "took in",
        "Dropped by the node's bridge: longer than a port's MTU, no port for its MAC, a port that "
        "is blocked or isolated, a rule for frames, or one in PREROUTING if br_netfilter calls it.",
        refuses=True,
    ),
    _stage(
        "fwd_tun",
        _of_node(tunnels.ring_skbs),
        "Δ tx_dropped and qdisc drops of the tunnel; of WireGuard in the kernel of its qdisc alone",
        "The ring of a tun device was full: the process of the tunnel did not read it in time.",
    ),
    _stage(
        "fwd_encap",
        _of_node(tunnels.encapsulated_skbs),
        f"built-in lab: what the tunnel was given, or its process read − Δ {REQUESTS} that carry "
        f"such packets; of WireGuard elsewhere of its qdisc − Δ {tunnels.SENT_DATA}",
        "Not put into an outer packet: longer than the tunnel's way allows and not to be "
        "fragmented, without a way to the tunnel's other end, or lost in WireGuard: no peer, no "
        "key yet, or a full queue.",
        reasons=("VXLAN_NO_REMOTE",),
        refuses=True,
    ),
    _stage(
        "fwd_ip",
        _of_node(_header_skbs),
        f"Δ {' + '.join((*HEADER_ERRORS, ip.OTHER_HOST))}",
        "Refused by the node's IP layer: its time to live was over, a bad header, or a frame to "
        "another MAC address.",
        counters=(*HEADER_ERRORS, ip.OTHER_HOST),
        reasons=("IP_INHDR", "IP_CSUM", "PKT_TOO_SMALL", "OTHERHOST"),
        parts="{ip}In*Errors",
        refuses=True,
    ),
    _spanned(
        "fwd_prerouting",
        _prerouting_skbs,
        f"Δ {ip.RECEIVES} − Δ {ip.FRAGMENTS} + Δ {ip.REASSEMBLED} − Δ {ip.DELIVERS} − "
        f"Δ {ip.FORWARDED} − what fwd_ip, fwd_rp_filter, fwd_route and fwd_conntrack count; before "
        "Linux 6.8 with what FORWARD dropped",
        "Dropped by the node's firewall in PREROUTING.",
        counters=(ip.RECEIVES, ip.DELIVERS, ip.FORWARDED),
        refuses=True,
    ),
    _stage(
        "fwd_conntrack",
        _of_node(_conntrack_skbs),
        f"Δ {' + '.join(ip.CONNTRACK)}",
        "Connection tracking had no entry for it: its table was full, or two packets made the same "
        "entry.",
        counters=ip.CONNTRACK,
        parts="conntrack.*",
        refuses=True,
    ),
    _spanned(
        "fwd_rp_filter",
        _reverse_path_skbs,
        f"Δ {ip.REVERSE_PATH} + at most the martians of rt_cache, of what no rule dropped",
        "The way back to its source does not lead through the interface it came in by (rp_filter), "
        "or its address is impossible there (a martian).",
        counters=(ip.REVERSE_PATH,),
        reasons=("IP_RPFILTER", "IP_LOCALNET", "IP_LOCAL_SOURCE"),
        refuses=True,
    ),
    _spanned(
        "fwd_route",
        _unrouted_skbs,
        f"Δ {NO_ROUTES} + at most what is missing and no rule dropped, if Δ {UNROUTED} or of IPv6",
        "No route, or one of the types unreachable, prohibit or blackhole.",
        counters=(NO_ROUTES,),
        reasons=("IP_INNOROUTES", "IP_INADDRERRORS"),
        refuses=True,
    ),
    _stage(
        "fwd_local",
        _of_node(_local_skbs),
        f"Δ {NO_PORTS} of a node to whose address packets are sent (traffic.flows.published), else "
        "0",
        "Sent to a published port of the node, and not led on: its rules left it as it was, or "
        "conntrack does not track it.",
        counters=(NO_PORTS,),
        reasons=("NO_SOCKET",),
        refuses=True,
    ),
    _stage(
        "fwd_mtu",
        _of_node(lambda node: node.counter(TOO_LONG)),
        f"Δ {TOO_LONG}",
        "Longer than the MTU of the way out, and not to be fragmented.",
        counters=(TOO_LONG,),
        reasons=("PKT_TOO_BIG",),
        refuses=True,
    ),
    _spanned(
        "fwd_netfilter",
        _forward_skbs,
        f"Δ {ip.FORWARDED} + Δ {REQUESTS} − Δ {TRANSMITS} − Δ {TOO_LONG} − what fwd_conntrack has "
        "of it",
        "Dropped by the node's firewall in FORWARD or POSTROUTING, between which nothing counts.",
        counters=(ip.FORWARDED, TRANSMITS, REQUESTS),
        reasons=("NETFILTER_DROP",),
        parts="firewall.*/forward/drop/*",
        refuses=True,
    ),
    _stage(
        "fwd_neighbour",
        _of_node(_unresolved_skbs),
        f"built-in lab: Δ {TRANSMITS} − what the devices were given, before Linux 6.8 with what "
        f"POSTROUTING dropped; elsewhere 0 if Δ {UNRESOLVED} and Δ {FAILED} are",
        "The next hop did not answer for its MAC, or too many packets waited for that.",
        reasons=("NEIGH_QUEUEFULL", "NEIGH_FAILED"),
    ),
    _stage(
        "fwd_rcvbuf",
        _of_node(tunnels.unread_skbs),
        f"of WireGuard in a process: Δ {' + '.join(tunnels.NO_ROOM)}",
        "The socket of the tunnel's process was full of outer packets.",
        counters=tunnels.NO_ROOM,
    ),
    _stage(
        "fwd_decap",
        _of_node(tunnels.decapsulated_skbs),
        f"Δ {' + '.join(tunnels.OF_UDP)} − Δ rx_packets and rx_errors of the tunnel; of WireGuard "
        f"− fwd_rcvbuf and Δ {tunnels.CAME_CONTROL}, in the kernel − Δ {tunnels.CAME_OUT}, "
        f"elsewhere Δ {tunnels.CAME_DATA} − that",
        "An outer packet of a network (VNI) or a key that the tunnel does not have, with an "
        "invalid header, from a source that is not allowed there, to a port that no tunnel has, or "
        "for which WireGuard had no room.",
        counters=tunnels.OF_UDP,
        reasons=("VXLAN_INVALID_HDR", "VXLAN_VNI_NOT_FOUND", "MAC_INVALID_SOURCE"),
        refuses=True,
    ),
    _stage(
        "fwd_ecn",
        _of_node(tunnels.ecn_skbs),
        "Δ rx_frame_errors of the tunnel",
        "The outer packet was marked as congested (CE), which the inner one cannot say (ECN).",
        reasons=("IP_TUNNEL_ECN",),
        refuses=True,
    ),
    _stage(
        "fwd_cells",
        _of_node(tunnels.cell_skbs),
        "Δ rx_dropped of the tunnel",
        "The queue of what comes out of a tunnel was full (gro_cells), or the tunnel down.",
    ),
    _stage(
        "fwd_qdisc",
        _of_node(lambda node: node.counter(QUEUE_DROPS)),
        f"Δ {QUEUE_DROPS}",
        "Dropped by the queueing discipline of the interface by which packets leave.",
        counters=(QUEUE_DROPS,),
        reasons=("QDISC_DROP",),
        parts="qdisc.{out}.tx_queue_*.drops",
    ),
    _stage(
        "fwd_device",
        _device_skbs,
        f"Δ {DEVICE_DROPS} − the next host's backlog, if charged here",
        "Dropped by the device by which packets leave. Of a veth: the ring of its other end was "
        "full, or the packet longer than the MTU there.",
        counters=(DEVICE_DROPS,),
    ),
)
"""In the order of ``FORWARDING_STAGES``."""
