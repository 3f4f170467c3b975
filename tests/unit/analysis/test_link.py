"""Stage ``link``: what a lab's bridge took from one host and gave to none, as a real one counts."""

from __future__ import annotations

from collections.abc import Mapping

from analysis import build
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import readings_of
from udpbench.model.record import Snapshot, TrialRecord

PORTS = tuple(
    f"link.port{n}.{name}"
    for n in (1, 2, 3)
    for name in ("rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
)


def bridged(record: TrialRecord, moves: Mapping[str, int]) -> TrialRecord:
    """Return the record with the snapshots of a bridge, whose counters moved so far."""
    phase = record.phases[0]
    first = dict.fromkeys(("link.bridge0.rx_packets", *PORTS), 100)
    last = {name: value + moves.get(name, 0) for name, value in first.items()}
    return build.replace(
        record,
        phases=(
            build.replace(
                phase,
                before={**phase.before, "bridge": Snapshot("bridge", 1, first)},
                after={**phase.after, "bridge": Snapshot("bridge", 2, last)},
            ),
        ),
    )


def link(record: TrialRecord) -> tuple[int | None, int | None, int | None]:
    """Return what the ledger says of the sender's device, the link, and what remains."""
    measured = readings_of(record)
    assert measured is not None
    ledger = make_ledger(measured)
    packets = {entry.stage: entry.packets for entry in ledger.entries}
    return packets["tx_device"], packets["link"], ledger.unaccounted


NAPI = {"right": {"ethtool.receive0.rx_queue_0_xdp_packets": 956}}


def test_a_full_ring_behind_the_bridge_is_the_link() -> None:
    """The receiver's port counts it, and the sender's device knows nothing of it."""
    moves = {
        "link.port1.rx_packets": 1000,
        "link.port3.tx_packets": 956,
        "link.port3.tx_dropped": 44,
    }
    assert (0, 44, 0) == link(bridged(build.lossy(1000, NAPI, 44), moves))


def test_what_a_bridge_drops_without_a_counter_is_the_link() -> None:
    """Longer than a port's MTU: it came in by one port and went out by none."""
    moves = {"link.port1.rx_packets": 1000, "link.port3.tx_packets": 990}
    assert (0, 10, 0) == link(bridged(build.lossy(1000, NAPI, 10), moves))


def test_what_a_ports_backlog_refused_is_the_link_and_not_the_senders_device() -> None:
    """The sender is charged for it, as of any veth without NAPI, and it never came in."""
    moves = {
        "link.port1.rx_packets": 980,
        "link.port1.rx_dropped": 20,
        "link.port3.tx_packets": 980,
    }
    counters = {**NAPI, "left": {"link.send0.tx_dropped": 20}}
    counters["machine"] = {"softnet.cpu1.dropped": 20}
    assert (0, 20, 0) == link(bridged(build.lossy(1000, counters, 20), moves))


def test_the_receivers_backlog_is_not_the_links() -> None:
    """Without NAPI at the receiver its port is charged for what the backlog there refused."""
    moves = {
        "link.port1.rx_packets": 1000,
        "link.port3.tx_packets": 945,
        "link.port3.tx_dropped": 55,
    }
    counters = {"right": {"link.receive0.rx_dropped": 55}, "machine": {"softnet.cpu0.dropped": 55}}
    assert (0, 0, 0) == link(bridged(build.lossy(1000, counters, 55), moves))


def test_answers_that_cross_the_bridge_cancel_out() -> None:
    """ICMP from a closed port comes in and goes out as well."""
    moves = {
        "link.port1.rx_packets": 1000,
        "link.port1.tx_packets": 6,
        "link.port3.rx_packets": 6,
        "link.port3.tx_packets": 1000,
    }
    assert (0, 0, 0) == link(bridged(build.record(), moves))


def test_a_bridge_without_ports_that_count_is_not_observable() -> None:
    """A counter that a host does not have is not 0."""
    record = bridged(build.record(), {})
    kept = {"link.bridge0.rx_packets": 1}
    snapshots = [
        {**side, "bridge": Snapshot("bridge", 1, kept)}
        for side in (record.phases[0].before, record.phases[0].after)
    ]
    phase = build.replace(record.phases[0], before=snapshots[0], after=snapshots[1])
    assert (0, None, 0) == link(build.replace(record, phases=(phase,)))


def test_between_two_real_hosts_nothing_is_observable() -> None:
    """A cable or a switch has no counter here; between the ends of a veth pair there is nothing."""
    record = build.record()
    assert (0, 0, 0) == link(record)
    assert (0, None, 0) == link(build.replace(record, built_in_lab=False))
