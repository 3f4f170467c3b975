"""What drivers call their counters: the rows agree with each other."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from analysis import build

from udpbench.agent.counters.parse import device_statistics
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.ledger.mac_frames import frames_at_macs, received_frames
from udpbench.analysis.queue_counters import queue_uses
from udpbench.analysis.readings import Readings, readings_of
from udpbench.drivers import DRIVERS, LOOPBACK, UNKNOWN, XDP_DROPS
from udpbench.model.record import TrialRecord

FIXTURES = Path(__file__).parents[1] / "fixtures/ethtool"
COUNTED = {
    "atlantic": "sent received ring rx tx",
    "bnxt_en": "rx tx drops",
    "e1000e": "sent received",
    "ena": "rx tx",
    "gve": "ring",
    "hv_netvsc": "ring rx tx",
    "i40e": "sent received ring rx tx",
    "ice": "sent received ring rx tx",
    "igb": "sent received ring rx tx drops",
    "igc": "sent received ring rx tx drops",
    "ixgbe": "sent received ring rx tx",
    "mlx4_core": "rx tx",
    "mlx5_core": "sent received ring rx tx",
    "r8169": "sent received",
    "sfc": "sent received ring rx tx",
    "tg3": "sent received",
    "veth": "rx drops",
    "virtio_net": "ring rx tx drops",
    "vmxnet3": "ring",
}
"""What is read of a driver's own statistics; the ring of the others is the device's counter."""
NUMBERS: dict[str, object] = {
    "sent": 1003,
    "received": 900,
    "ring": 7,
    "rx": {"rx-0": 600, "rx-1": 300},
    "tx": {"tx-0": 700, "tx-1": 303},
    "drops": {"rx-0": 4, "rx-1": 3},
}
"""What every fixture has: all frames sent, unicasts received, those without a descriptor."""


@pytest.mark.parametrize(
    "name", ["rx_queue_0_xdp_drops", "rx_queue_12_xdp_drops", "rx3_xdp_drops", "rx_xdp_drop"]
)
def test_what_a_program_dropped_is_counted_once(name: str) -> None:
    """Every driver's patterns are read on every card."""
    assert 1 == sum(fnmatchcase(f"ethtool.{{interface}}.{name}", pattern) for pattern in XDP_DROPS)


def test_a_driver_that_is_not_known_may_name_its_queues_as_any_card_does() -> None:
    """But what veth calls its packets is elsewhere what an XDP program saw."""
    cards = {name for key, row in DRIVERS.items() if key != "veth" for name in row.queue_packets}
    assert cards == set(UNKNOWN.queue_packets)
    assert not cards & set(DRIVERS["veth"].queue_packets)


def test_every_driver_has_a_fixture() -> None:
    """The loopback interface has no driver."""
    assert set(COUNTED) == set(DRIVERS) - {LOOPBACK}


def lossy(driver: str, fixture: str) -> TrialRecord:
    """Return a trial of 907 packets that lost seven, of cards that count as a fixture has it."""
    lines = (FIXTURES / fixture).read_text().splitlines()[1:]
    named = [line.rpartition(": ") for line in lines]
    # ethtool indents by five; vmxnet3 by more.
    pairs = [(name[5:], int(value)) for name, _, value in named]
    cards = {"left": "send0", "right": "receive0"}
    moves = {host: device_statistics(card, pairs) for host, card in cards.items()}
    moves["right"]["link.receive0.rx_missed_errors"] = 0
    record = build.lossy(907, moves, 7)
    of_cards = {
        host: replace(host_facts, driver=driver, rx_queues=2, tx_queues=2)
        for host, host_facts in record.facts.items()
    }
    return replace(record, facts=of_cards)


def ring(readings: Readings) -> int | None:
    """Return the packets of the stage of a full ring."""
    (entry,) = (entry for entry in make_ledger(readings).entries if entry.stage == "rx_ring")
    return entry.packets


def test_a_card_that_does_not_tell_a_full_ring_from_other_drops_hides_it() -> None:
    """i40e before 6.7, whose rx_missed_errors stand still; nor is it known what came in."""
    old, new = (readings_of(lossy("i40e", name)) for name in ("i40e-S-5.4", "i40e-S"))
    assert old is not None
    assert new is not None
    assert (None, 7) == (ring(old), ring(new))
    assert (None, 907) == (received_frames(old), received_frames(new))


@pytest.mark.parametrize("driver", sorted(COUNTED))
def test_a_drivers_own_statistics_are_read_by_its_names(driver: str) -> None:
    """And nothing else that it counts is taken for them."""
    readings = readings_of(lossy(driver, f"{driver}-S"))
    assert readings is not None
    uses = queue_uses(readings)
    received = [use for use in uses if use.queue.startswith("rx")]
    read: dict[str, object] = {
        "sent": frames_at_macs(readings.sender),
        "received": frames_at_macs(readings.receiver),
        "ring": ring(readings),
        "rx": {use.queue: use.packets for use in received if use.packets is not None},
        "tx": {use.queue: use.packets for use in uses if use not in received},
        "drops": {use.queue: use.drops for use in received if use.drops is not None},
    }
    expected = {name: NUMBERS[name] for name in COUNTED[driver].split()}
    assert expected == {name: value for name, value in read.items() if value}
