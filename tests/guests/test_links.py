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
    GUESTS,
    NEEDED,
    await_words,
    dropped_packets,
    measure,
    measured,
    nft,
    paced,
    records,
    start,
    tap_frames,
)
from waiting import wait_until

from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import occupied_stages
from udpbench.drivers import driver_of
from udpbench.model.result import Result

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
    run = start(tmp_path, kind, paced(ethtool, rate="2kpps", count=8000))
    await_words(run, "#1 measured")
    sender, receiver = f"{kind}-left", f"{kind}-right"
    _, begun = tap_frames(receiver)
    wait_until("traffic at the tap", lambda: tap_frames(receiver)[1] >= begun + 500, 120)
    os.kill(int(GUESTS[1]), signal.SIGSTOP)
    try:
        stopped, _ = tap_frames(sender)
        wait_until("a full tap", lambda: tap_frames(sender)[0] >= stopped + 3000, 60)
    finally:
        os.kill(int(GUESTS[1]), signal.SIGCONT)
    (record,) = records(tmp_path, run)
    result = judge(record)
    assert result.ledger is not None
    entries = {entry.stage: entry for entry in result.ledger.entries}
    lost = result.sent_packets - result.received_packets
    elsewhere = sum(e.packets or 0 for e in entries.values() if e.stage not in ("unsent", "link"))
    assert (True, 0) == (result.valid, result.unaccounted)
    assert lost > 0
    assert f"link or rx_ring {lost} (not observable)" in occupied_stages(result.ledger)
    assert (None, 0) == (entries["rx_ring"].packets, elsewhere)
