"""How many packets a number of lost skbs held: exactly or as an interval, never a guess.

Below a socket the kernel counts skbs, and one skb may hold many packets: a GSO message crossing a
veth, or what GRO has merged. Owns that arithmetic; knows no stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from udpbench.analysis.readings import CounterView

ECN = ("{ipx}InNoECTPkts", "{ipx}InECT0Pkts", "{ipx}InECT1Pkts", "{ipx}InCEPkts")
"""The only counters of the IP layer that count segments rather than skbs."""
QDISC_DROPS = "qdisc.{interface}.drops"
QDISC_PACKETS = "qdisc.{interface}.packets"
GRO_SEGMENTS_MAX = 64
"""The most datagrams that GRO merges (net/ipv4/udp_offload.c: UDP_GRO_CNT_MAX)."""
GRO_FEATURES = ("rx-gro-list", "rx-udp-gro-forwarding")
GSO_SEGMENTS_MAX = 128
"""The most datagrams of one GSO message (include/linux/udp.h: UDP_MAX_SEGMENTS)."""


@dataclass(frozen=True)
class Span:
    """A number of packets that is known exactly or lies between two numbers."""

    low: int
    high: int

    def __add__(self, other: Span) -> Span:
        """Return the sum of two independent numbers."""
        return Span(self.low + other.low, self.high + other.high)


def exactly(packets: int) -> Span:
    """Return the span of a number that is known."""
    return Span(packets, packets)


def sum_of(parts: Mapping[str, Span]) -> Span:
    """Return the sum of independent numbers."""
    return sum(parts.values(), exactly(0))


def narrowed(total: Span, parts: Mapping[str, Span]) -> dict[str, Span]:
    """Return what each part can be if all of them add up to a total.

    At least what the others leave when all of them are largest, at most what they leave when
    smallest. A total out of their reach is taken as the nearest within it.
    """
    reach = sum_of(parts)
    least, most = (min(max(end, reach.low), reach.high) for end in (total.low, total.high))
    return {
        name: Span(
            max(part.low, least - (reach.high - part.high)),
            min(part.high, most - (reach.low - part.low)),
        )
        for name, part in parts.items()
    }


@dataclass(frozen=True)
class Segments:
    """How many packets each skb of a kind holds.

    All hold ``most``, except for some that together lack ``lacking`` packets: the last message of a
    count, or one that a paced sender had no time to fill. None: that number is unknown.
    """

    most: int
    lacking: int | None = 0
    among: tuple[int, int] | None = None
    """(skbs, packets) of a larger group, to which the skbs in question belong."""

    def packets(self, skbs: int) -> Span:
        """Return how many packets some of these skbs held."""
        if skbs <= 0:
            return exactly(skbs)
        low, high = skbs, skbs * self.most
        if self.lacking is not None:
            low = max(low, high - self.lacking)
        if self.among is not None and skbs <= self.among[0]:
            others, packets = self.among[0] - skbs, self.among[1]
            low, high = max(low, packets - others * self.most), min(high, packets - others)
        return Span(low, high)


ONE = Segments(1)


def lost_packets(readings: CounterView, stage: str, skbs: int, each: Segments) -> Span:
    """Return how many packets were in the skbs that ended at a stage.

    Messages that were lost there on purpose have a known size, whatever the others have, unless GRO
    may have merged them.
    """
    messages, packets = readings.lost_on_purpose(stage)
    if each == ONE or each.lacking is None or not 0 < messages <= skbs:
        return each.packets(skbs)
    return exactly(packets) + each.packets(skbs - messages)


def message(readings: CounterView) -> Segments:
    """Return what an skb holds as a sender's call makes it."""
    readings = readings.whole
    packets = sum(stats.counts.get("sent_packets", 0) for stats in readings.sender.workers)
    messages = sum(
        stats.counts.get("sent_messages", stats.counts.get("sent_packets", 0))
        for stats in readings.sender.workers
    )
    sizes = {spec.send.gso for spec in readings.specs if spec.send is not None}
    # The two counts of a running loop are not read at the same moment.
    if packets == messages or sizes == {"off"}:
        return ONE
    if len(sizes) == 1:
        segments = sizes.pop()
        if isinstance(segments, int):
            return Segments(segments, segments * messages - packets)
    return Segments(GSO_SEGMENTS_MAX, None)


def sent_skb(readings: CounterView) -> Segments:
    """Return what an skb holds at the sender's device and the receiver's.

    A device that cannot segment gets every packet in its own skb (validate_xmit_skb), and so does a
    veth whose peer has an XDP program; it then gets at least twice as many skbs as there were
    messages. A few more are other traffic, or left after a running sender's messages were counted.
    """
    readings = readings.whole
    each = message(readings)
    if each == ONE:
        return ONE
    given = readings.sender.counter("link.{interface}.tx_packets")
    dropped = readings.sender.counter("link.{interface}.tx_dropped")
    if given is None or dropped is None or not readings.all_veth:
        return Segments(each.most, None)
    queued = readings.sender.counter(QDISC_DROPS) or 0
    messages = readings.sender.count("sent_messages") - queued
    return ONE if 2 * (given + dropped) > 3 * messages else each


def dropped_by_qdisc(readings: CounterView) -> Segments:
    """Return what an skb holds that the sender's queueing discipline dropped.

    It counts an skb dropped whole as one, and one that it segmented (tbf) by its segments; what
    leaves it is always counted in packets.
    """
    readings = readings.whole
    each = message(readings)
    drops = readings.sender.counter(QDISC_DROPS)
    left = readings.sender.counter(QDISC_PACKETS)
    if each == ONE:
        return ONE
    if not drops or left is None:
        return Segments(each.most, None)
    missing = readings.sender.count("sent_packets") - left
    known = drops <= missing <= drops * each.most
    return Segments(each.most, None, (drops, missing) if known else None)


def received_skb(readings: CounterView) -> Segments:
    """Return what an skb holds as it enters the receiver's IP layer.

    IP counts skbs and, by the ECN bits of their headers, segments (net/ipv4/ip_input.c).
    """
    readings = readings.whole
    skbs, segments = received_skbs(readings), received_segments(readings)
    sent = sent_skb(readings)
    if not skbs or not segments:
        return sent
    if segments == skbs:
        return ONE
    return sent if sent != ONE else Segments(GRO_SEGMENTS_MAX, None)


def queued_skb(readings: CounterView) -> Segments:
    """Return what an skb holds in a receiving socket: only UDP_GRO keeps packets merged."""
    readings = readings.whole
    if not readings.receive.gro:
        return ONE
    each, skbs, segments = (
        received_skb(readings),
        received_skbs(readings),
        received_segments(readings),
    )
    if each.lacking is None and skbs and segments:
        return replace(each, among=(skbs, segments))
    return each


def most_packets(readings: CounterView) -> int:
    """Return at most how many packets an skb of the traffic holds on its way, whatever others' do.

    Without a socket that asks for it, GRO merges datagrams only if one of two features is on, which
    neither is by default (net/ipv4/udp_offload.c: udp_gro_receive).
    """
    readings = readings.whole
    offloads = [facts.environment.get("offloads", "") for facts in readings.receiver.facts]
    on = {name for names in offloads for name in names.split()}
    merges = readings.receive.gro or not on.isdisjoint(GRO_FEATURES)
    return max(message(readings).most, GRO_SEGMENTS_MAX if merges else 1)


def most_queued(readings: CounterView) -> int:
    """Return at most how many packets an skb holds in a receiving socket."""
    return most_packets(readings) if readings.receive.gro else 1


def received_skbs(readings: CounterView) -> int | None:
    """Return the skbs that entered the receiver's IP layer."""
    return readings.receiver.counter("{ip}InReceives")


def received_segments(readings: CounterView) -> int | None:
    """Return the packets that entered the receiver's IP layer, segments one by one."""
    return readings.receiver.total(*ECN)
