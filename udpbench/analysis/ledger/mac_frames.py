"""Frames at the cards' MACs: what the senders' sent, the receivers' took, and what was damaged.

The kernel's standard statistics first, else the driver's own, else unknown. Others' frames are
among them, so each number is too high rather than too low: what fewer frames than packets prove is
proven whatever others send. Owns that choice; knows no stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from udpbench.analysis.ledger.skbs import QDISC_PACKETS
from udpbench.analysis.readings import AnyNode, CounterView, End, Readings
from udpbench.drivers import STANDARD_MAC, MacFrames, driver_of
from udpbench.model.limits import FRAME_HEADERS_BYTES

Damage = Literal["bits", "long", "length", "internal", "short"]
"""Wrong bits or a cut frame; longer than accepted; a wrong length, which is unknown; an error of
the MAC itself; below 64 B, which is intact."""
DAMAGED: Mapping[Damage, tuple[str, ...]] = {
    "bits": (
        "eth-mac.{interface}.FrameCheckSequenceErrors",
        "eth-mac.{interface}.AlignmentErrors",
        "rmon.{interface}.etherStatsFragments",
        "rmon.{interface}.etherStatsJabbers",
    ),
    "long": (
        "eth-mac.{interface}.FrameTooLongErrors",
        "rmon.{interface}.etherStatsOversizePkts",
    ),
    "length": (
        "eth-mac.{interface}.InRangeLengthErrors",
        "eth-mac.{interface}.OutOfRangeLengthField",
    ),
    "internal": ("eth-mac.{interface}.FramesLostDueToIntMACRcvError",),
    "short": ("rmon.{interface}.etherStatsUndersizePkts",),
}
DAMAGED_BY_DEVICE: Mapping[Damage, tuple[str, ...]] = {
    "bits": ("link.{interface}.rx_crc_errors",),
    "long": ("ethtool.{interface}.rx_long_length_errors",),
    "length": ("link.{interface}.rx_length_errors",),
    "short": ("ethtool.{interface}.rx_short_length_errors",),
}
"""The same for drivers without standard statistics; rx_length_errors of igb, igc, e1000e and ixgbe
is the sum of the other two."""
LEAST_FRAME_BYTES = 64
CRC_BYTES = 4

DESCRIPTOR_MTU = 1500
"""Up to it a frame takes one descriptor of igb, igc and e1000e."""
READY_SHARE = 7 / 8
"""Part of a ring's descriptors that is ready at least if nothing is waiting in it: these drivers
hand back descriptors in batches of 16 or 32 (IGB_RX_BUFFER_WRITE), and the shortest ring has 80."""


def frames_at_macs(end: End) -> int | None:
    """Return the frames that senders' cards sent, or the unicasts that receivers' cards took.

    None if one of the cards does not count.
    """
    frames = _sum_of_all(_at_mac(end, host) for host in end.hosts)
    read = end.view.receiver.worked("received_packets")
    return frames if frames is None or frames >= read else None


def received_frames(readings: Readings) -> int | None:
    """Return the unicasts that came in at the receivers' cards, with a descriptor or without.

    None if one of the cards does not count, or may not count those without.
    """
    return _sum_of_all(_came_in(readings, host) for host in readings.receiver.hosts)


def _read_packets(end: End, host: str) -> int:
    """Return what the workers of a host read; 0 of a sender's."""
    return sum(
        stats.counts.get("received_packets", 0)
        for stats in end.workers
        if stats.worker.rpartition(".")[0] == host
    )


def sees_full_ring(readings: CounterView, host: str) -> bool:
    """Return whether 0 proves that a receiver's ring was never full in the whole phase.

    An emulated card counts the frames that it wrote to its ring, and none that found it full
    (QEMU: igb_core.c, igb_receive_internal). If fewer came than the ring holds, it was never full.
    """
    facts = readings.facts.get(host)
    driver = driver_of(facts)
    if driver.sees_full_ring or facts is None or not driver.emulated:
        return driver.sees_full_ring
    if facts.mtu is None or facts.mtu > DESCRIPTOR_MTU:
        return False
    frames = readings.whole.of_host(host, *_counters(readings.receiver, host).plus)
    return frames is not None and frames < facts.rings.get("rx", 0) * READY_SHARE


def handed_over(readings: CounterView) -> int | None:
    """Return what the senders' queueing disciplines gave to their cards; None without one."""
    return _sum_of_all(readings.of_host(host, QDISC_PACKETS) for host in readings.sender.hosts)


def damaged_frames(readings: CounterView) -> dict[str, int]:
    """Return the receivers' counters of damaged frames that may be the traffic's, if they moved."""
    hosts = readings.receiver.hosts
    return {
        f"{host} {name}" if len(hosts) > 1 else name: frames
        for host in hosts
        for damage, counters in damage_of(readings, host).items()
        if damage != "short" or least_frame_bytes(readings) < LEAST_FRAME_BYTES
        for name, frames in counters.items()
    }


def damage_of(readings: CounterView, host: str) -> dict[Damage, dict[str, int]]:
    """Return what happened to frames that a host's card received → its counters that moved."""
    moved = _moved(readings, host, DAMAGED)
    if moved:
        return moved
    moved = _moved(readings, host, DAMAGED_BY_DEVICE)
    known = sum(sum(moved.get(damage, {}).values()) for damage in ("long", "short"))
    for name, frames in moved.pop("length", {}).items():
        if frames > known:
            moved["length"] = {name: frames - known}
    return moved


def _moved(
    readings: CounterView, host: str, patterns: Mapping[Damage, tuple[str, ...]]
) -> dict[Damage, dict[str, int]]:
    delta = readings.deltas.get(host)
    counted = {
        damage: {
            name: value
            for pattern in names
            for name, value in (
                delta.matching(readings.named(host, pattern)) if delta else {}
            ).items()
            if value != 0
        }
        for damage, names in patterns.items()
    }
    return {damage: counters for damage, counters in counted.items() if counters}


def least_frame_bytes(readings: CounterView) -> int:
    """Return the length of the traffic's shortest frames, as long as nobody pads them."""
    traffic = readings.traffic
    return FRAME_HEADERS_BYTES[traffic.family] + traffic.datagrams.shortest_bytes + CRC_BYTES


def _at_mac(end: End, host: str) -> int | None:
    """Return the frames at a host's MAC; None if its port does not count, or was not passed.

    A virtual function lists counters of the port that never move (mlx5: en_stats.c returns early
    without access to them), and what two functions of a card exchange need not pass its port. Then
    workers read more packets than there were frames, or the counters are 0 since the host started.
    """
    readings, counters = end.view, _counters(end, host)
    names = [readings.named(host, name) for name in counters.plus]
    plus = _sum_of_all(readings.of_host(host, name) for name in names)
    after = readings.phase.after.get(host)
    if plus is None or (after is not None and not any(map(after.counters.get, names))):
        return None
    frames = plus - (readings.of_host(host, *counters.less) or 0)
    return None if frames < _read_packets(end, host) else frames


def _came_in(readings: Readings, host: str) -> int | None:
    """Return what came in at a host's card; what found no descriptor is added if it is apart."""
    frames = _at_mac(readings.receiver, host)
    driver = driver_of(readings.facts.get(host))
    if frames is None or driver.ring_at_mac:
        return frames
    refused = readings.of_host(host, *driver.full_ring)
    if refused is None or not sees_full_ring(readings, host):
        return None
    return frames + refused


def _counters(end: AnyNode, host: str) -> MacFrames:
    """Return the standard statistics if the card has them, else the driver's own."""
    standard = STANDARD_MAC[end.part]
    if end.view.of_host(host, *standard.plus) is not None:
        return standard
    driver = driver_of(end.view.facts.get(host))
    return driver.mac_received if end.part == "receiver" else driver.mac_sent


def _sum_of_all(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if there are none or one is unknown."""
    listed = tuple(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known and len(known) == len(listed) else None
