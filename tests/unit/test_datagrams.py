"""What is sent and where to, as values: sizes, rates, and who gets a packet."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from analysis import build

from udpbench.analysis.ledger.intended_load import sent_packets, unsent_packets
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import readings_of
from udpbench.definition.endpoints import Destinations, parse_to
from udpbench.model.experiment import Datagrams, SearchRange, Traffic
from udpbench.units import Rate


@pytest.mark.parametrize(
    ("datagrams", "sizes", "mean", "each", "have_headers"),
    [
        (Datagrams((64,)), (64, 64), 64, 64, True),
        (Datagrams((17,)), (17, 17), 17, 17, False),
        (Datagrams((64, 64, 1472)), (1472, 64), Fraction(1600, 3), None, True),
        (Traffic(size_bytes=40).datagrams, (40, 40), 40, 40, True),
        (Traffic(size_bytes=20, payload=("00" * 20, "00")).datagrams, (20, 1), 10.5, None, False),
        (Traffic(size_bytes=20, payload=("00" * 20,) * 2).datagrams, (20, 20), 20, 20, False),
    ],
)
def test_each_asks_for_the_size_that_matters(
    datagrams: Datagrams,
    sizes: tuple[int, int],
    mean: Fraction,
    each: int | None,
    have_headers: bool,
) -> None:
    """There may be several sizes, and the user's own datagrams have no header of ours."""
    assert sizes == (datagrams.longest_bytes, datagrams.shortest_bytes)
    assert (mean, each) == (datagrams.mean_bytes, datagrams.each_bytes)
    assert have_headers == datagrams.have_headers


def test_bits_are_those_of_the_mean_datagram() -> None:
    """Three of 64 B and one of 1472 B have 1664 B together."""
    mixed = Datagrams((64, 64, 64, 1472))
    rate = Rate(bits_per_s=8 * 1664 * 1000)
    assert 4000 == rate.pps(mixed.mean_bytes)
    assert (4000, 4000.0) == SearchRange(rate, rate).span_pps(mixed)
    assert 1000 == Traffic(size_bytes=1664, rate=rate).intended_pps
    assert 2048 == Traffic(family=6, size_bytes=2000).longest_packet_bytes


def test_a_destination_knows_who_gets_a_packet() -> None:
    """An address, each of several, or all members of a group."""
    to = parse_to("receiver.addresses[1-2]:7-8")
    assert ("each", (1, 2), (7, 8), 4) == (to.kind, to.members, to.ports, to.count)
    assert "one" == parse_to("receiver.addresses[2]:7").kind
    assert to.reaches("10.0.0.1", {"10.0.0.1"})
    assert not to.reaches("10.0.0.1", {"10.0.1.1"})
    assert Destinations("all", (1,), (7,)).reaches("239.0.0.1", {"10.0.1.1"})


def test_a_packet_to_a_group_is_one_for_each_member() -> None:
    """What two receivers read of each packet balances, and what was not sent lacks at both."""
    record = build.record(1000, of=build.paced())
    *_, receiver = record.workers
    *before, measured = record.phases
    (also,) = (stats for stats in measured.stats if stats.role == "receiver")
    also = replace(also, worker="further.receiver0", socket_inodes=(78,))
    group = replace(
        record,
        workers=(*record.workers, replace(receiver, host="further")),
        phases=(*before, replace(measured, stats=(*measured.stats, also))),
    )
    readings = readings_of(group)
    assert readings is not None
    ledger = make_ledger(readings)
    assert (2000, 2000, 0) == (
        ledger.intended_packets,
        ledger.received_packets,
        ledger.unaccounted,
    )
    assert (2000, 0) == (sent_packets(readings), unsent_packets(readings))
