"""Stages of the receiver before its IP layer: its device, XDP, AF_XDP, the backlog and tc."""

from __future__ import annotations

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import (
    Also,
    Stage,
    at_most,
    counter,
    in_packets,
)
from udpbench.analysis.readings import CounterView
from udpbench.drivers import DRIVERS, TUNNELS, VETH_DROPS, XDP_DROPS, Driver, driver_of

RX_DROPPED = "link.{interface}.rx_dropped"
TX_DROPPED = "link.{out}.tx_dropped"
NAPI_PACKETS = "ethtool.{interface}.rx_queue_*_xdp_packets"
SOFTNET_DROPPED = "softnet.*.dropped"
INGRESS_DROPS = "qdisc.{interface}.ingress.drops"
XSK_RING, XSK_FILL = "xsk_ring_packets", "xsk_fill_packets"
"""What the receiver's AF_XDP sockets refused; a worker asks the kernel (XDP_STATISTICS)."""
VETH_XDP_DROPS = DRIVERS["veth"].xdp_drops[0]


def ring_frames(readings: CounterView) -> Span | None:
    """Return the frames for which the receiving device had no descriptor.

    None if drivers differ, or if the driver does not count all of them and its counter is 0.
    """
    drivers = _receiving_drivers(readings)
    if drivers and not any(driver.full_ring for driver in drivers):
        return exactly(0)
    full = _refused_frames(readings)
    if full is None:
        return None
    (driver,) = drivers
    if "rx_backlog" in driver.ring_includes:
        full -= backlog_skbs(readings) or 0
    return exactly(full) if full or _sees_full_rings(readings) else None


def most_in_full_rings(readings: CounterView) -> int | None:
    """Return at most how many frames found no descriptor; None if the driver misses some."""
    drivers = _receiving_drivers(readings)
    if drivers and not any(driver.full_ring for driver in drivers):
        return 0
    return _refused_frames(readings) if _sees_full_rings(readings) else None


def _sees_full_rings(readings: CounterView) -> bool:
    return all(mac_frames.sees_full_ring(readings, host) for host in readings.receiver.hosts)


def _refused_frames(readings: CounterView) -> int | None:
    """Return what the drivers' counters of a full ring say, without XDP drops in them."""
    full = readings.receiver.total(*_ring_counters(readings))
    if full is None:
        return None
    (driver,) = _receiving_drivers(readings)
    if "rx_xdp" not in driver.ring_includes:
        return full
    if "xsk_ring" in driver.ring_includes and _without_copy(readings):
        full -= _refused_frames_received(readings)
    xdp_frames = _counted_xdp_drops(readings, driver.xdp_drops)
    return full - xdp_frames if xdp_frames is not None else None


def _ring_counters(readings: CounterView) -> tuple[str, ...]:
    """Return the counters of the receivers' full rings; none if drivers differ or have none."""
    drivers = _receiving_drivers(readings)
    return next(iter(drivers)).full_ring if len(drivers) == 1 else ()


def _steady_ring_counters(readings: CounterView) -> tuple[str, ...]:
    """Return those that only a reset lets decrease."""
    wraps = any(driver.ring_wraps for driver in _receiving_drivers(readings))
    return () if wraps else _ring_counters(readings)


def _receiving_drivers(readings: CounterView) -> set[Driver]:
    return {driver_of(readings.facts.get(host)) for host in readings.receiver.hosts}


def _counted_xdp_drops(readings: CounterView, counters: tuple[str, ...] = XDP_DROPS) -> int | None:
    """Return what the drivers count as drops by XDP; 0 if the interface has no program."""
    dropped = readings.receiver.total(*counters)
    if dropped is None and readings.receiver.without("xdp"):
        return 0
    return dropped


def xdp_frames(readings: CounterView) -> int | None:
    """Return the frames that an XDP program dropped, without those that AF_XDP sockets refused.

    Nothing counts what a program in the stack drops (net/core/dev.c: do_xdp_generic), so beside one
    a 0 proves nothing.
    """
    dropped = _counted_xdp_drops(readings)
    if not dropped and readings.receiver.has_generic_xdp:
        return None
    drivers = _receiving_drivers(readings)
    counts_refused = any(driver.xdp_drops_refused for driver in drivers)
    if dropped is None or not counts_refused or _without_copy(readings):
        return dropped
    return max(dropped - _refused_frames_received(readings), 0)


def most_by_xdp(readings: CounterView) -> int | None:
    """Return at most how many frames an XDP program dropped; None beside one in the stack."""
    return None if readings.receiver.has_generic_xdp else at_most(xdp_frames)(readings)


def _without_copy(readings: CounterView) -> bool:
    """Return whether cards wrote frames of AF_XDP where they are read."""
    return any(stats.zerocopy for stats in readings.receiver.workers)


def _refused_frames_received(readings: CounterView) -> int:
    return readings.receiver.count(XSK_RING) + readings.receiver.count(XSK_FILL)


def _veth_drops(readings: CounterView) -> int | None:
    """Return the frames that a veth could not redirect, which are those of full AF_XDP sockets."""
    if not (readings.all_veth and "xsk_ring" in readings.receiving.adds):
        return None
    return readings.receiver.total(*VETH_DROPS)


def backlog_skbs(readings: CounterView) -> int | None:
    """Return the skbs that found the CPU's backlog queue full.

    ``enqueue_to_backlog`` counts each of them twice: in softnet_stat, which the whole machine
    shares, and in the receiving device's rx_dropped, which other drops share. The smaller of the
    two includes neither, unless both moved for another reason: what the device refused for its
    length, and AF_XDP sockets of it, is known, and is none of them.
    """
    softnet = readings.receiver.machine_counter(SOFTNET_DROPPED)
    device = readings.receiver.counter(RX_DROPPED)
    if _has_own_backlog(readings):
        return device
    if softnet is None or device is None:
        return None
    known = _too_long_skbs(readings) + _refused_frames_received(readings)
    return min(softnet, max(device - known, 0))


def _backlogs_of_path(readings: CounterView) -> int | None:
    """Return the same with those of nodes in the middle, which may share the machine."""
    own = backlog_skbs(readings)
    nodes = (backlog_skbs(readings.arriving(name)) or 0 for name in readings.exits)
    return None if own is None else own + sum(nodes)


def _too_long_skbs(readings: CounterView) -> int:
    """Return the skbs that were sent on purpose beyond the MTU of the receiving veth.

    It counts them in rx_dropped (net/core/dev.c: __dev_forward_skb2).
    """
    if not readings.built_in_lab or readings.within is not None or readings.at("link").hosts:
        return 0
    from_node = not readings.exits.keys().isdisjoint(readings.sender.hosts)
    messages, _ = readings.lost_on_purpose("fwd_device" if from_node else "tx_device")
    return messages


def _has_own_backlog(readings: CounterView) -> bool:
    """Return whether a receiver is a tunnel, whose backlog softnet_stat and reasons do not have."""
    return any(facts.driver in TUNNELS for facts in readings.receiver.facts)


def _backlog_and_device_skbs(readings: CounterView) -> int | None:
    """Return those and what rx_dropped also counts: of the pair's MTU, and of AF_XDP sockets."""
    refused = backlog_skbs(readings)
    if refused is not None:
        refused += _refused_frames_received(readings)
    sent = readings.last_hop.sender.counter(TX_DROPPED)
    if refused is None or sent is None or not readings.all_veth:
        return refused
    return max(refused, sent) if backlog_charges_peer(readings) else refused + sent


def backlog_charges_peer(readings: CounterView) -> bool:
    """Return whether a backlog drop is also counted at the other end of the pair.

    It is if a veth without NAPI passes the packet to the backlog within the other end's own call
    (drivers/net/veth.c:veth_xmit sees NET_RX_DROP). A veth with NAPI puts the packet into its ring
    first and counts it in ``rx_queue_N_xdp_packets``, so the other end is not charged. No other
    driver charges it. The other end is the sender, or the receiver's port of a bridge.
    """
    polled = readings.receiver.counter(NAPI_PACKETS)
    return _receiving_drivers(readings) == {DRIVERS["veth"]} and not polled


def tc_skbs(readings: CounterView) -> int | None:
    """Return what a filter before the IP layer dropped; 0 if there is none.

    A TCX program drops before the qdisc that counts (net/core/dev.c: sch_handle_ingress), so beside
    one a 0 proves nothing.
    """
    dropped = readings.receiver.counter(INGRESS_DROPS)
    if not dropped:
        return 0 if readings.receiver.without("tcx") else None
    return dropped


def most_by_tc(readings: CounterView) -> int | None:
    """Return at most how many of the traffic filters dropped; None beside a TCX program."""
    return at_most(tc_skbs)(readings) if readings.receiver.without("tcx") else None


ROWS = (
    Stage(
        name="rx_ring",
        part="receiver",
        unprovoked="a veth has no ring of its own: its peer's tx_device counts it",
        packets=ring_frames,
        source="Δ of the driver's counter of a full ring; a veth has none",
        means="The receiving NIC had no free descriptor: the host did not poll its ring in "
        "time. A full veth ring is counted by its peer: tx_device.",
        most=most_in_full_rings,
        by_driver=_steady_ring_counters,
        parts="ethtool.{interface}.rx*_drops",
        single_counter=True,
    ),
    Stage(
        name="rx_xdp",
        part="receiver",
        packets=in_packets("rx_xdp", xdp_frames, skbs.sent_skb),
        source=f"Δ {VETH_XDP_DROPS}",
        means="Dropped by an XDP program on the receiving interface, before the kernel made "
        "an skb of it.",
        most=most_by_xdp,
        counters=XDP_DROPS,
        unit="skb",
        parts=VETH_XDP_DROPS,
        refuses=True,
        single_counter=True,
        meant_by="rules",
    ),
    Stage(
        name="xsk_ring",
        part="receiver",
        unprovoked="the socket of receive.call: af_xdp counts what its ring had no room for",
        packets=lambda readings: exactly(readings.receiver.count(XSK_RING)),
        source=XSK_RING,
        means="The ring of an AF_XDP socket was full: the application did not read fast enough.",
        scope="worker",
        parts=f"worker.{XSK_RING}",
        also=(
            Also(
                name="Δ ethtool.{interface}.rx_queue_N_drops",
                reads=_veth_drops,
                low=_refused_frames_received,
                high=_refused_frames_received,
                next_step="the device drops packets for another reason",
            ),
        ),
    ),
    Stage(
        name="xsk_fill",
        part="receiver",
        unprovoked="the socket of receive.call: af_xdp counts what it had no buffer for",
        packets=lambda readings: exactly(readings.receiver.count(XSK_FILL)),
        source=XSK_FILL,
        means="The AF_XDP socket had no buffer for the frame, or one that was too short.",
        scope="worker",
        parts=f"worker.{XSK_FILL}",
        refuses=True,
    ),
    Stage(
        name="rx_backlog",
        part="receiver",
        packets=in_packets("rx_backlog", backlog_skbs, skbs.received_skb),
        source=f"min(Δ {SOFTNET_DROPPED}, Δ {RX_DROPPED}); of a tunnel the latter",
        means="The backlog queue of a receiving CPU was full (RPS, or a veth without NAPI).",
        most=at_most(backlog_skbs),
        counters=(RX_DROPPED, NAPI_PACKETS),
        unit="skb",
        scope="machine",
        parts=f"machine.{SOFTNET_DROPPED}",
        also=(
            Also(
                name=f"Δ {SOFTNET_DROPPED}",
                reads=lambda readings: readings.receiver.machine_counter(SOFTNET_DROPPED),
                low=backlog_skbs,
                high=_backlogs_of_path,
                next_step="another device of the machine drops packets",
            ),
            Also(
                name=f"Δ {RX_DROPPED}",
                reads=counter("receiver", RX_DROPPED),
                low=backlog_skbs,
                high=_backlog_and_device_skbs,
                next_step="the device drops packets for another reason",
            ),
        ),
        reasons=("CPU_BACKLOG",),
        no_other_reason=lambda readings: not _has_own_backlog(readings),
        single_counter=True,
    ),
    Stage(
        name="rx_tc",
        part="receiver",
        packets=in_packets("rx_tc", tc_skbs, skbs.received_skb),
        source=f"Δ {INGRESS_DROPS}",
        means="Dropped by a tc filter on receipt. Only filters of an ingress or clsact qdisc "
        "are counted; what a TCX program drops is not.",
        most=most_by_tc,
        counters=(INGRESS_DROPS,),
        unit="skb",
        reasons=("TC_INGRESS",),
        refuses=True,
        single_counter=True,
        meant_by="rules",
        changed_by=("queueing",),
    ),
)
