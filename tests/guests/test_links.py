"""What a switch drops between two guests is in their ledgers: exact where the cards prove it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import (
    EVERY,
    FAULTY,
    NEEDED,
    await_words,
    dropped_packets,
    measure,
    measured,
    nft,
    records,
    start,
)
from waiting import wait_until

from udpbench.analysis.judge import judge
from udpbench.analysis.ledger import occupied_stages
from udpbench.drivers import driver_of
from udpbench.model import Result

pytestmark = NEEDED


@pytest.fixture
def faulty_switch() -> Iterator[None]:
    """Drop at every switch of this namespace while a test runs."""
    nft("-f", "-", stdin=FAULTY)
    yield
    nft("delete", "table", "bridge", "faulty")


def verdict(result: Result) -> tuple[bool, int | None, str]:
    """Return whether a trial is valid, its unaccounted packets, and its stages in words."""
    assert result.ledger is not None
    return result.valid, result.unaccounted, occupied_stages(result.ledger)


@pytest.mark.usefixtures("faulty_switch")
def test_what_a_switch_drops_between_igb_cards_is_the_links(tmp_path: Path) -> None:
    """To the packet: the ring holds more frames than came, and the counters are not waited for."""
    record = measure(tmp_path, "igb", "{rings: {rx: 4096}}")
    dropped = dropped_packets(measured(record))
    assert dropped in (3000 // EVERY, 3000 // EVERY + 1)
    assert (True, 0, f"link {dropped}") == verdict(judge(record))
    cards = [(facts.driver, driver_of(facts).late_ns) for facts in record.facts.values()]
    assert [("igb", 0)] * 2 == cards


@pytest.mark.usefixtures("faulty_switch")
def test_between_virtio_cards_the_same_is_not_observable(tmp_path: Path) -> None:
    """Neither has a MAC, and only the hypervisor sees a full ring."""
    record = measure(tmp_path, "virtio")
    dropped = dropped_packets(measured(record))
    assert dropped in (3000 // EVERY, 3000 // EVERY + 1)
    assert (True, 0, f"link or rx_ring {dropped} (not observable)") == verdict(judge(record))


@pytest.mark.parametrize(("kind", "ethtool"), [("igb", "{rings: {rx: 80}}"), ("virtio", "{}")])
def test_a_full_ring_in_a_guest_is_never_0_nor_another_stage(
    kind: str, ethtool: str, tmp_path: Path
) -> None:
    """The guest's CPUs stand still while more is sent than ring and tap hold."""
    run = start(tmp_path, kind, ethtool, rate="2kpps", count=8000)
    await_words(run, "measured")
    tap = Path(f"/sys/class/net/{kind}-right/statistics/tx_packets")
    begun = int(tap.read_text())
    wait_until("traffic at the tap", lambda: int(tap.read_text()) >= begun + 500, 120)
    guest = int(os.environ["UDPBENCH_GUEST_RIGHT"])
    os.kill(guest, signal.SIGSTOP)
    try:
        switch = Path(f"/sys/class/net/{kind}-left/statistics/rx_packets")
        stopped = int(switch.read_text())
        wait_until("a full tap", lambda: int(switch.read_text()) >= stopped + 3000, 60)
    finally:
        os.kill(guest, signal.SIGCONT)
    (record,) = records(tmp_path, run)
    result = judge(record)
    assert result.ledger is not None
    entries = {entry.stage: entry for entry in result.ledger.entries}
    known = sum(entry.packets or 0 for entry in entries.values() if entry.stage != "unsent")
    assert (True, 0) == (result.valid, result.unaccounted)
    assert result.sent_packets - result.received_packets > known
    assert None is entries["rx_ring"].packets
