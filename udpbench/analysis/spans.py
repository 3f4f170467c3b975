"""How many packets so many lost skbs were: exactly, or between two numbers, and never a guess.

Before a socket the kernel counts skbs, and one skb may hold many packets: a GSO message on its way
through a veth, or what GRO has merged. Owns that arithmetic; knows no stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from udpbench.analysis.readings import Readings

ECN = ("{ipx}InNoECTPkts", "{ipx}InECT0Pkts", "{ipx}InECT1Pkts", "{ipx}InCEPkts")
"""The only counters of the IP layer that count segments and not skbs."""
QDISC_DROPS = "qdisc.{interface}.drops"
QDISC_PACKETS = "qdisc.{interface}.packets"
GRO_SEGMENTS_MAX = 64
"""Datagrams that GRO merges at most (net/ipv4/udp_offload.c: UDP_GRO_CNT_MAX)."""
GSO_SEGMENTS_MAX = 128
"""Datagrams of one GSO message at most (include/linux/udp.h: UDP_MAX_SEGMENTS)."""


@dataclass(frozen=True)
class Span:
    """A number of packets that is known exactly, or to lie between two numbers."""

    low: int
    high: int

    def __add__(self, other: Span) -> Span:
        """Return the sum of two independent numbers."""
        return Span(self.low + other.low, self.high + other.high)


def exactly(packets: int) -> Span:
    """Return a number that is known."""
    return Span(packets, packets)


@dataclass(frozen=True)
class Segments:
    """How many packets each skb of a kind holds.

    All hold ``most`` but some, which together lack ``lacking`` packets: the last message of a
    count, or one that a paced sender had no more time for. None: nothing is known of them.
    """

    most: int
    lacking: int | None = 0
    among: tuple[int, int] | None = None
    """So many skbs, which held so many packets together, of which some are asked for."""

    def packets(self, skbs: int) -> Span:
        """Return how many packets some of these skbs were."""
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


def lost(readings: Readings, stage: str, skbs: int, each: Segments) -> Span:
    """Return how many packets so many skbs were that ended at a stage.

    The messages that were sent to end there have a known size, whatever the others have; but not
    where GRO may have merged them.
    """
    messages, packets = readings.fault(stage)
    if each == ONE or each.lacking is None or not 0 < messages <= skbs:
        return each.packets(skbs)
    return exactly(packets) + each.packets(skbs - messages)


def message(readings: Readings) -> Segments:
    """Return what a skb holds that a sender's call made."""
    readings = readings.whole
    packets = sum(one.counts.get("sent_packets", 0) for one in readings.workers("sender"))
    messages = sum(
        one.counts.get("sent_messages", one.counts.get("sent_packets", 0))
        for one in readings.workers("sender")
    )
    asked = {s.send.gso for s in readings.record.workers if s.send is not None}
    # The two counts of a loop that still runs are not read in one moment.
    if packets == messages or asked == {"off"}:
        return ONE
    if len(asked) == 1:
        segments = asked.pop()
        if isinstance(segments, int):
            return Segments(segments, segments * messages - packets)
    return Segments(GSO_SEGMENTS_MAX, None)


def sent_skb(readings: Readings) -> Segments:
    """Return what a skb holds that reached the sender's device and the receiver's.

    A device that cannot segment gets every packet in a skb of its own (validate_xmit_skb), and so
    does a veth whose peer has an XDP program; then it was given at least twice as many skbs as
    there were messages. A few more are other traffic, or came after the messages of a running
    sender were counted.
    """
    readings = readings.whole
    whole = message(readings)
    if whole == ONE:
        return ONE
    given = readings.counter("sender", "link.{interface}.tx_packets")
    dropped = readings.counter("sender", "link.{interface}.tx_dropped")
    if given is None or dropped is None or not readings.all_veth:
        return Segments(whole.most, None)
    queued = readings.counter("sender", QDISC_DROPS) or 0
    messages = readings.count("sender", "sent_messages") - queued
    return ONE if 2 * (given + dropped) > 3 * messages else whole


def dropped_by_qdisc(readings: Readings) -> Segments:
    """Return what a skb holds that the sender's queueing discipline dropped.

    It counts a skb that it drops whole as one, and one that it has segmented (tbf) by its segments;
    but what leaves it is counted in packets always.
    """
    readings = readings.whole
    each = message(readings)
    drops = readings.counter("sender", QDISC_DROPS)
    left = readings.counter("sender", QDISC_PACKETS)
    if each == ONE:
        return ONE
    if not drops or left is None:
        return Segments(each.most, None)
    missing = readings.count("sender", "sent_packets") - left
    known = drops <= missing <= drops * each.most
    return Segments(each.most, None, (drops, missing) if known else None)


def received_skb(readings: Readings) -> Segments:
    """Return what a skb holds that came into the receiver's IP layer.

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


def queued_skb(readings: Readings) -> Segments:
    """Return what a skb holds in a receiving socket: only one with UDP_GRO takes merged ones."""
    readings = readings.whole
    if not readings.record.trial.receive.gro:
        return ONE
    each, skbs, segments = (
        received_skb(readings),
        received_skbs(readings),
        received_segments(readings),
    )
    if each.lacking is None and skbs and segments:
        return replace(each, among=(skbs, segments))
    return each


def received_skbs(readings: Readings) -> int | None:
    """Return the skbs that came into the receiver's IP layer."""
    return readings.counter("receiver", "{ip}InReceives")


def received_segments(readings: Readings) -> int | None:
    """Return the packets that came into the receiver's IP layer, segments one by one."""
    return readings.total("receiver", *ECN)
