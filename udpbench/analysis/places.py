"""What each place of a packet's way says it lost: expressions over primary counters, and no table.

One primary counter per place, never a sum of counters that see the same packet: a single lost
packet is counted in up to five of them. Every function returns None where the host cannot tell.
"""

from __future__ import annotations

from udpbench.analysis import spans
from udpbench.analysis.readings import Readings
from udpbench.analysis.rings import (
    LOOPBACK,
    MISSED,
    RINGS,
    WITH_EVERY_DROP,
    WITH_XDP,
    WITHOUT_RING,
)
from udpbench.analysis.spans import Span, exactly

TX_DROPPED = "link.{interface}.tx_dropped"
RX_DROPPED = "link.{interface}.rx_dropped"
OTHER_HOST = "link.{interface}.rx_otherhost_dropped"
PORT_ENTERED = "link.port*.rx_packets"
PORT_LEFT = "link.port*.tx_packets"
PORT_REFUSED = "link.port*.rx_dropped"
NAPI_PACKETS = "ethtool.{interface}.rx_queue_*_xdp_packets"
SOFTNET_DROPPED = "softnet.*.dropped"
INGRESS_DROPS = "qdisc.{interface}.ingress.drops"
RECEIVES = "{ip}InReceives"
DELIVERS = "{ip}InDelivers"
FORWARDED = "{ip}*ForwDatagrams"
"""``ForwDatagrams`` of IPv4, ``OutForwDatagrams`` of IPv6."""
CHECKSUM = "{udp}InCsumErrors"
NO_PORTS = "{udp}NoPorts"
RCVBUF = "{udp}RcvbufErrors"
MEMORY = "{udp}MemErrors"
ERRORS = "{udp}InErrors"
SOCKET_DROPS = "socket.*.drops"
IP_REFUSED = (
    "{ip}InHdrErrors",
    "{ip}InAddrErrors",
    "{ip}InDiscards",
    "{ipx}InTruncatedPkts",
    "{ipx}InNoRoutes",
)
"""Disjoint, and all of packets that InReceives has counted (net/ipv4/ip_input.c, ip6_input.c)."""
REVERSE_PATH = "netstat.TcpExt.IPReversePathFilter"
MARTIANS = ("rt_cache.in_martian_src", "rt_cache.in_martian_dst")
XDP_DROPS = (
    "ethtool.{interface}.rx_queue_*_xdp_drops",
    "ethtool.{interface}.rx[0-9]_xdp_drops",
    "ethtool.{interface}.rx[0-9][0-9]_xdp_drops",
    "ethtool.{interface}.rx_xdp_drop",
)
"""As veth, virtio_net and mlx5 name them; a driver has one of the forms."""
EARLY_CHECKSUM_BYTES = 76
"""UDP header and payload up to which a checksum is verified before the socket (net/core/skbuff.c:
CHECKSUM_BREAK); longer ones are when they are read, and the socket counts them as well."""
UDP_HEADER_BYTES = 8


def counted(readings: Readings, *patterns: str) -> Span | None:
    """Return receivers' counters that count packets one by one."""
    value = readings.total("receiver", *patterns)
    return exactly(value) if value is not None else None


def _received(readings: Readings, stage: str, skbs: int | None) -> Span | None:
    """Return what so many skbs were behind the receiver's device; None stays unknown."""
    if skbs is None:
        return None
    return spans.lost(readings, stage, skbs, spans.received_skb(readings))


def _queued(readings: Readings, stage: str, skbs: int | None) -> Span | None:
    """Return what so many skbs were in a receiving socket; None stays unknown."""
    return (
        spans.lost(readings, stage, skbs, spans.queued_skb(readings)) if skbs is not None else None
    )


# --- on the sender -------------------------------------------------------------------------------


def tx_qdisc(readings: Readings) -> Span | None:
    """Return the packets that the sender's queueing discipline dropped."""
    drops = readings.counter("sender", spans.QDISC_DROPS)
    return spans.dropped_by_qdisc(readings).packets(drops) if drops is not None else None


def tx_device(readings: Readings) -> Span | None:
    """Return the packets that the sender's device dropped, and nobody behind it."""
    dropped = readings.counter("sender", TX_DROPPED)
    if dropped is None:
        return None
    if readings.bridge is not None:
        dropped -= readings.bridge.total(PORT_REFUSED) or 0
    elif backlog_charges_peer(readings):
        dropped -= backlog_skbs(readings) or 0
    return spans.lost(readings, "tx_device", dropped, spans.sent_skb(readings))


def link(readings: Readings) -> Span | None:
    """Return the packets that a built-in lab's bridge took from one host and gave to none.

    What came in less what went out, because a bridge drops without counting: longer than a port's
    MTU, to a port without a carrier, or in a port's queueing discipline. What its backlog refused
    has not come in, and the sender is charged for it (6.18, provoked in tests/lab/test_several.py).
    Between the ends of a pair there is nothing; a cable or a switch cannot be observed.
    """
    if readings.bridge is None:
        return exactly(0) if readings.record.built_in_lab else None
    entered, left = readings.bridge.total(PORT_ENTERED), readings.bridge.total(PORT_LEFT)
    refused = readings.bridge.total(PORT_REFUSED)
    if entered is None or left is None or refused is None:
        return None
    charged = backlog_skbs(readings) or 0 if backlog_charges_peer(readings) else 0
    skbs = entered - left + refused - charged
    return spans.lost(readings, "link", skbs, spans.sent_skb(readings))


# --- before the receiver's IP layer --------------------------------------------------------------


def rx_ring(readings: Readings) -> Span | None:
    """Return the frames for which the receiving device had no descriptor.

    A veth's ring is filled by its peer, which counts what does not fit: stage ``tx_device``. None
    where it is not known how the driver counts them; but what it calls missed is believed.
    """
    drivers = _receiving_drivers(readings)
    if drivers and drivers <= set(WITHOUT_RING):
        return exactly(0)
    full = readings.total("receiver", *ring_counters(readings))
    if full is None or (full == 0 and not drivers <= set(RINGS)):
        return None
    if drivers <= set(WITH_XDP):
        full -= readings.total("receiver", *XDP_DROPS) or 0
    if drivers <= set(WITH_EVERY_DROP):
        if not readings.without("receiver", "xdp"):
            return None
        full -= backlog_skbs(readings) or 0
    return exactly(full)


def ring_counters(readings: Readings) -> tuple[str, ...]:
    """Return the counters of the receivers' full rings; none where drivers differ or have none."""
    drivers = _receiving_drivers(readings)
    known = [RINGS.get(driver or "", (MISSED,)) for driver in drivers - set(WITHOUT_RING)]
    return known[0] if len(known) == len(drivers) == 1 else ()


def _receiving_drivers(readings: Readings) -> set[str | None]:
    """Return the drivers of the receivers' interfaces; the loopback interface is one by itself."""
    return {
        LOOPBACK if readings.named(host, "{interface}") == LOOPBACK else readings.driver(host)
        for host in readings.roles.receivers
    }


def rx_xdp(readings: Readings) -> Span | None:
    """Return the frames that an XDP program dropped; 0 where the interface has none."""
    dropped = readings.total("receiver", *XDP_DROPS)
    if dropped is not None:
        return spans.lost(readings, "rx_xdp", dropped, spans.sent_skb(readings))
    return exactly(0) if readings.without("receiver", "xdp") else None


def backlog_skbs(readings: Readings) -> int | None:
    """Return the skbs that found the CPU's backlog queue full.

    ``enqueue_to_backlog`` counts each of them twice: in softnet_stat, which the whole machine
    shares, and in the receiving device's rx_dropped, which other drops share. The smaller of the
    two is free of both strangers.
    """
    softnet = readings.machine_counter("receiver", SOFTNET_DROPPED)
    device = readings.counter("receiver", RX_DROPPED)
    if softnet is None or device is None:
        return None
    return min(softnet, device)


def backlog_and_device_skbs(readings: Readings) -> int | None:
    """Return the same and what the pair refused for its MTU, which rx_dropped counts as well."""
    skbs = backlog_skbs(readings)
    sent = readings.counter("sender", TX_DROPPED)
    if skbs is None or sent is None or not readings.all_veth:
        return skbs
    return max(skbs, sent) if backlog_charges_peer(readings) else skbs + sent


def backlog_charges_peer(readings: Readings) -> bool:
    """Tell whether a backlog drop is counted as one of the pair's other end, too.

    It is where a veth without NAPI hands the packet to the backlog within the other end's own call
    (drivers/net/veth.c:veth_xmit sees NET_RX_DROP). A veth with NAPI takes the packet into its
    ring first and counts it in ``rx_queue_N_xdp_packets``; then the other end is not charged. Nor
    is that of any other driver. The other end is the sender, or the receiver's port of a bridge.
    """
    polled = readings.counter("receiver", NAPI_PACKETS)
    return _receiving_drivers(readings) == {"veth"} and not polled


def rx_backlog(readings: Readings) -> Span | None:
    """Return the packets that found the CPU's backlog queue full."""
    skbs = backlog_skbs(readings)
    return _received(readings, "rx_backlog", skbs)


def rx_tc(readings: Readings) -> Span | None:
    """Return the packets that a filter before the IP layer dropped; 0 where there is none.

    Only a filter of an ``ingress`` or ``clsact`` discipline is counted; a program that is attached
    without one (TCX) is not.
    """
    dropped = readings.counter("receiver", INGRESS_DROPS)
    if dropped is not None:
        return _received(readings, "rx_tc", dropped)
    return exactly(0) if readings.without("receiver", "tcx") else None


# --- in the receiver's IP layer ------------------------------------------------------------------


def _gap_skbs(readings: Readings) -> int | None:
    """Return the skbs that came into the IP layer, and neither left it nor were refused.

    Fragments come in one by one and leave as one datagram. What the host forwards is counted as it
    comes in and as it leaves, and never delivered (net/ipv4/ip_forward.c: ip_forward).
    """
    receives, delivers = readings.total("receiver", RECEIVES), readings.total("receiver", DELIVERS)
    if receives is None or delivers is None:
        return None
    fragments = readings.total("receiver", "{ip}ReasmReqds") or 0
    whole = readings.total("receiver", "{ip}ReasmOKs") or 0
    forwarded = readings.total("receiver", FORWARDED) or 0
    gap = receives - fragments + whole - delivers - forwarded - _refused_skbs(readings)
    return gap - _unheard_multicasts(readings)


def _unheard_multicasts(readings: Readings) -> int:
    """Return the IPv6 multicasts that came in and that nobody on the host listens to.

    Hosts tell each other of groups and look for routers, and most of that is not delivered. What is
    delivered counts as ICMPv6, and so do neighbours' unicasts: at least so many were not.
    """
    if readings.record.trial.traffic.family == 4:
        return 0
    multicasts = readings.counter("receiver", "{ip}InMcastPkts") or 0
    heard = readings.counter("receiver", "snmp6.Icmp6InMsgs") or 0
    return max(multicasts - heard, 0)


def _refused_skbs(readings: Readings) -> int:
    refused = readings.total("receiver", *IP_REFUSED) or 0
    if readings.record.trial.traffic.family == 6:
        return refused
    return refused + (readings.counter("receiver", REVERSE_PATH) or 0)


def _martian_skbs(readings: Readings) -> int:
    """Return the packets refused for an address that nobody can have.

    The machine counts them for all its namespaces together, and nowhere else (rt_cache): no more of
    them are ours than are missing.
    """
    gap = _gap_skbs(readings) or 0
    found = [readings.machine_counter("receiver", name) or 0 for name in MARTIANS]
    return min(max(gap, 0), sum(found)) if readings.record.trial.traffic.family == 4 else 0


def rx_ip(readings: Readings) -> Span | None:
    """Return the packets that the receiver's IP layer refused."""
    if readings.total("receiver", RECEIVES) is None:
        return None
    strangers = readings.counter("receiver", OTHER_HOST) or 0
    skbs = _refused_skbs(readings) + _martian_skbs(readings) + strangers
    return _received(readings, "rx_ip", skbs)


def rx_netfilter(readings: Readings) -> Span | None:
    """Return the packets that are missing within the IP layer, and that it did not refuse."""
    skbs = netfilter_skbs(readings)
    return _received(readings, "rx_netfilter", skbs)


def netfilter_skbs(readings: Readings) -> int | None:
    """Return the same in skbs, as a rule counts them."""
    gap = _gap_skbs(readings)
    return gap - _martian_skbs(readings) if gap is not None else None


# --- at UDP and its sockets ----------------------------------------------------------------------


def udp_no_port(readings: Readings) -> Span | None:
    """Return the packets that nobody listened for."""
    skbs = readings.counter("receiver", NO_PORTS)
    return _received(readings, "udp_no_port", skbs)


def filter_skbs(readings: Readings) -> int | None:
    """Return the receive errors that are none of full buffer, bad checksum and full memory."""
    errors, rcvbuf = readings.counter("receiver", ERRORS), readings.counter("receiver", RCVBUF)
    if errors is None or rcvbuf is None:
        return None
    others = readings.total("receiver", CHECKSUM, MEMORY) or 0
    return errors - rcvbuf - others


def udp_filter(readings: Readings) -> Span | None:
    """Return the packets that a socket's filter dropped, or that UDP refused for their length."""
    skbs = filter_skbs(readings)
    return _queued(readings, "udp_filter", skbs)


def udp_rcvbuf(readings: Readings) -> Span | None:
    """Return the packets that found the socket's receive buffer full."""
    skbs = readings.counter("receiver", RCVBUF)
    return _queued(readings, "udp_rcvbuf", skbs)


def memory_skbs(readings: Readings) -> int | None:
    """Return the datagrams refused because all UDP sockets together held too much memory.

    Linux 6.18 counts them at the socket alone, without MemErrors or InErrors (kernel-reference
    1.5): what is left there when full buffers, filters and late checksums are taken away.
    """
    counted_ones = readings.counter("receiver", MEMORY) or 0
    drops = readings.counter("receiver", SOCKET_DROPS)
    rcvbuf, filtered = readings.counter("receiver", RCVBUF), filter_skbs(readings)
    if rcvbuf is None or filtered is None:
        return None
    if drops is None:
        return counted_ones
    explained = rcvbuf + filtered + counted_ones + late_checksums(readings)
    return counted_ones + max(drops - explained, 0)


def late_checksums(readings: Readings) -> int:
    """Return the bad checksums that were found when the datagram was read."""
    size_bytes = readings.record.trial.traffic.size_bytes + UDP_HEADER_BYTES
    late = size_bytes > EARLY_CHECKSUM_BYTES
    return (readings.counter("receiver", CHECKSUM) or 0) if late else 0


def udp_memory(readings: Readings) -> Span | None:
    """Return the packets that all UDP sockets together had no memory for."""
    skbs = memory_skbs(readings)
    return _queued(readings, "udp_memory", skbs)


def udp_purged(readings: Readings) -> Span | None:
    """Return the packets that were still queued when their socket was closed.

    No counter of the kernel moves for them; who closes a socket reads its queue before. None where
    a worker was to leave on purpose and did not tell.
    """
    fault = readings.record.trial.receive.fault
    told = any("purged_packets" in one.counts for one in readings.workers("receiver"))
    if fault is not None and readings.phase.name == "measured" and not told:
        return None
    return exactly(readings.count("receiver", "purged_packets"))


def app_truncated(readings: Readings) -> Span | None:
    """Return the packets that were cut off; None where nothing of them was copied."""
    packets = readings.count("receiver", "truncated_packets")
    blind = readings.record.trial.receive.read == "none"
    return None if blind and packets == 0 else exactly(packets)
