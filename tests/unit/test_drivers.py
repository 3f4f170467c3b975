"""What drivers call their counters: the rows agree with each other."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from udpbench.drivers import DRIVERS, UNKNOWN, XDP_DROPS


@pytest.mark.parametrize(
    "name", ["rx_queue_0_xdp_drops", "rx_queue_12_xdp_drops", "rx3_xdp_drops", "rx_xdp_drop"]
)
def test_what_a_program_dropped_is_counted_once(name: str) -> None:
    """Every driver's patterns are read on every card."""
    assert 1 == sum(fnmatchcase(f"ethtool.{{interface}}.{name}", one) for one in XDP_DROPS)


def test_a_driver_that_is_not_known_may_name_its_queues_as_any_card_does() -> None:
    """But what veth calls its packets is elsewhere what an XDP program saw."""
    cards = {name for key, row in DRIVERS.items() if key != "veth" for name in row.queue_packets}
    assert cards == set(UNKNOWN.queue_packets)
    assert not cards & set(DRIVERS["veth"].queue_packets)
