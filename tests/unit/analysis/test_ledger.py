"""The ledger: every packet has an entry, in each of the lab's three ways to receive."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from golden import Golden
from hypothesis import given
from hypothesis import strategies as st

from analysis import build
from udpbench.analysis.ledger.ledger import lost_by_place, make_ledger
from udpbench.analysis.ledger.stages import BEFORE_SENT, STAGES
from udpbench.analysis.readings import nodes_of, readings_of
from udpbench.drivers import DRIVERS
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.record import TrialRecord

ROOT = Path(__file__).parents[3]


def entries(record: TrialRecord) -> dict[str, int | None]:
    """Return the stages that are not 0, and the remainder if there is one."""
    measured = readings_of(record)
    assert measured is not None
    ledger = make_ledger(measured)
    packets = {entry.stage: entry.packets for entry in ledger.entries if entry.packets != 0}
    if ledger.unaccounted:
        packets["unaccounted"] = ledger.unaccounted
    return packets


def test_nothing_lost_is_an_empty_ledger() -> None:
    """Every stage is 0, and nothing remains."""
    assert {} == entries(build.record(1000))


@pytest.mark.parametrize(
    ("stage", "moves"),
    [
        ("tx_qdisc", {"left": {"qdisc.send0.drops": 7}}),
        ("tx_device", {"left": {"link.send0.tx_dropped": 7}}),
        ("udp_checksum", {"right": {"snmp.Udp.InCsumErrors": 7, "snmp.Udp.InErrors": 7}}),
        ("udp_no_port", {"right": {"snmp.Udp.NoPorts": 7}}),
        (
            "udp_rcvbuf",
            {"right": {"snmp.Udp.RcvbufErrors": 7, "snmp.Udp.InErrors": 7, "socket.77.drops": 7}},
        ),
    ],
)
def test_a_counter_explains_its_stage(stage: str, moves: dict[str, dict[str, int]]) -> None:
    """Seven packets lost at one place are seven at that stage, and the ledger closes."""
    assert {stage: 7} == entries(build.lossy(1000, moves, 7))


# As observed on real veth pairs: what one dropped packet adds to the counters, by mode.
INLINE_BACKLOG = {
    "left": {"link.send0.tx_dropped": 55},
    "right": {"link.receive0.rx_dropped": 55},
    "machine": {"softnet.cpu1.dropped": 55},
}
NAPI_RPS_BACKLOG = {
    "right": {
        "link.receive0.rx_dropped": 55,
        "ethtool.receive0.rx_queue_0_xdp_packets": 1000,
    },
    "machine": {"softnet.cpu0.dropped": 55},
}


@pytest.mark.parametrize("moves", [INLINE_BACKLOG, NAPI_RPS_BACKLOG])
def test_a_backlog_drop_is_counted_once_in_every_mode(moves: dict[str, dict[str, int]]) -> None:
    """Inline the sender is charged for it as well, with NAPI and RPS it is not."""
    assert {"rx_backlog": 55} == entries(build.lossy(1000, moves, 55))


def test_a_full_ring_is_the_senders_device() -> None:
    """With NAPI only the sender's tx_dropped moves."""
    moves = {
        "left": {"link.send0.tx_dropped": 44},
        "right": {"ethtool.receive0.rx_queue_0_xdp_packets": 956},
    }
    assert {"tx_device": 44} == entries(build.lossy(1000, moves, 44))


def test_mixed_loss_inline_is_told_apart() -> None:
    """Backlog drops and packets above the device's MTU, as observed on a real pair."""
    moves = {
        "left": {"link.send0.tx_dropped": 62, "qdisc.send0.drops": 5},
        "right": {
            "link.receive0.rx_dropped": 62,
            "snmp.Udp.NoPorts": 9,
            "snmp.Udp.RcvbufErrors": 403,
            "socket.77.drops": 403,
            "snmp.Udp.InErrors": 403,
        },
        "machine": {"softnet.cpu0.dropped": 20, "softnet.cpu1.dropped": 35},
    }
    expected = {
        "tx_qdisc": 5,
        "tx_device": 7,
        "rx_backlog": 55,
        "udp_no_port": 9,
        "udp_rcvbuf": 403,
    }
    assert expected == entries(build.lossy(2000, moves, 479))


def test_mixed_loss_with_napi_and_rps_is_told_apart() -> None:
    """The sender's drops are the ring's alone, whatever the backlog loses."""
    moves = {
        "left": {"link.send0.tx_dropped": 30},
        "right": NAPI_RPS_BACKLOG["right"],
        "machine": NAPI_RPS_BACKLOG["machine"],
    }
    assert {"tx_device": 30, "rx_backlog": 55} == entries(build.lossy(1000, moves, 85))


def test_backlog_drops_of_another_device_are_not_ours() -> None:
    """Softnet counts for the whole machine; what the lab's device did not drop stays out."""
    assert {} == entries(build.lossy(1000, {"machine": {"softnet.cpu0.dropped": 9}}, 0))


def test_the_sender_of_a_real_nic_is_not_charged_for_the_backlog() -> None:
    """Only a veth hands the drop back to its sender."""
    moves = {**INLINE_BACKLOG, "left": {"link.send0.tx_dropped": 3}}
    record = build.lossy(1000, moves, 58)
    nic = build.facts("right", "receive0", "10.0.0.1/24", driver="mlx5_core")
    record = build.replace(record, facts={**record.facts, "right": nic})
    assert {"tx_device": 3, "rx_ring": None, "rx_backlog": 55} == entries(record)


def test_what_netfilter_refuses_is_no_loss_of_sent_packets() -> None:
    """EPERM is intended and not sent: intended = unsent + tx_netfilter + sent."""
    counts = build.sender_counts(900, attempted_packets=1000, eperm=100)
    workers = (
        build.worker("sender", counts),
        build.worker("receiver", build.receiver_counts(900)),
    )
    record = build.record(900, workers=workers)
    assert {"tx_netfilter": 100} == entries(record)
    moves = {"left": {"xfrm.XfrmOutPolBlock": 60}}
    record = build.record(900, workers=workers, moves=moves)
    assert {"tx_policy": 60, "tx_netfilter": 40} == entries(record)
    # Others' refused calls may be among them, but not more than failed.
    record = build.replace(record, built_in_lab=False)
    measured = readings_of(record)
    assert measured is not None
    ledger = make_ledger(measured)
    spans = {entry.stage: (entry.packets, entry.at_most) for entry in ledger.entries}
    assert ((0, 60), (40, 100)) == (spans["tx_policy"], spans["tx_netfilter"])
    assert 100 == ledger.lost_packets


def test_a_policy_without_keys_may_have_taken_as_many_as_were_looked_up() -> None:
    """Packets are then not unaccounted, and where nothing is missing, none ended there."""
    moves = {"left": {"xfrm.XfrmOutNoStates": 18}}
    for lost in (0, 10):
        measured = readings_of(build.lossy(1000, moves, lost))
        assert measured is not None
        ledger = make_ledger(measured)
        (at,) = (entry for entry in ledger.entries if entry.stage == "tx_ipsec")
        assert (0, 18, 0) == (at.packets, at.at_most, ledger.unaccounted)
        assert ({"tx_ipsec": lost} if lost else {}) == lost_by_place(ledger)


def test_attempts_that_the_kernel_refused_are_unsent() -> None:
    """A refused connection or a size above the MTU transmits nothing."""
    counts = build.sender_counts(
        900, attempted_packets=1000, econnrefused=50, emsgsize=30, other_errors=20
    )
    workers = (
        build.worker("sender", counts),
        build.worker("receiver", build.receiver_counts(900)),
    )
    assert {"unsent": 100} == entries(build.record(900, workers=workers))


def test_a_rate_that_was_not_reached_is_unsent() -> None:
    """Intended is rate × duration, rounded up: a packet at each multiple from the start on."""
    record = build.record(900, of=build.paced(1000, duration_ns=999_500_000))
    measured = readings_of(record)
    assert measured is not None
    assert 1000 == make_ledger(measured).intended_packets
    assert {"unsent": 100} == entries(record)


def test_a_count_is_what_was_intended() -> None:
    """A count outranks the rate, because the duration is then a deadline."""
    of = build.trial(traffic=build.Traffic(count_packets=1200))
    assert {"unsent": 200} == entries(build.record(1000, of=of))


def test_a_truncated_datagram_ends_in_the_application() -> None:
    """It was delivered and read, and still did not arrive whole."""
    counts = build.receiver_counts(990, truncated_packets=10, read_packets=1000)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", counts),
    )
    assert {"app_truncated": 10} == entries(build.record(1000, 990, workers=workers))


@pytest.mark.parametrize(("received", "remainder"), [(997, 3), (1002, -2)])
def test_what_no_stage_explains_is_unaccounted_with_its_sign(received: int, remainder: int) -> None:
    """A remainder is never rounded away, and may be negative."""
    assert {"unaccounted": remainder} == entries(build.record(1000, received))


def test_a_closed_port_is_found_by_its_address() -> None:
    """Without a receiving worker the receiver is the host that has the destination."""
    workers = (build.worker("sender", build.sender_counts(1000)),)
    record = build.record(1000, 0, workers=workers, moves={"right": {"snmp.Udp.NoPorts": 1000}})
    assert ("right",) == nodes_of(record)["receiver"]
    assert {"udp_no_port": 1000} == entries(record)


def test_a_stage_whose_counter_is_missing_is_not_observable() -> None:
    """None, not 0; what was lost there shows as unaccounted."""
    record = build.lossy(1000, {}, 5)
    phase = record.phases[0]
    bare = {
        host: build.Snapshot(
            host,
            snapshot.clock_ns,
            {k: v for k, v in snapshot.counters.items() if "softnet" not in k and "qdisc" not in k},
        )
        for host, snapshot in phase.before.items()
    }
    record = build.replace(record, phases=(build.replace(phase, before=bare),))
    assert {"tx_qdisc": None, "rx_backlog": None, "unaccounted": 5} == entries(record)


def test_hosts_of_a_role_are_added_up() -> None:
    """Two receivers' counters are one stage."""
    record = build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 4}, "third": {}}, 9)
    phase = record.phases[0]
    before = {**phase.before, "third": build.Snapshot("third", 0, {"snmp.Udp.NoPorts": 1})}
    after = {**phase.after, "third": build.Snapshot("third", 1, {"snmp.Udp.NoPorts": 6})}
    own = build.FlowSpec(1, "10.0.0.30", 65400, "10.0.0.2", 4321)
    spec = build.replace(record.workers[1], host="third", flows=(own,))
    record = build.replace(
        record,
        workers=(*record.workers, spec),
        phases=(build.replace(phase, before=before, after=after),),
    )
    assert {"rx_ring": None, "udp_no_port": 9} == entries(record)


def test_each_host_with_its_whole_machine_has_its_own_backlog() -> None:
    """On two hosts the sender's softnet drops are not the receiver's."""
    moves = {
        "left": {"softnet.cpu0.dropped": 40},
        "right": {"softnet.cpu0.dropped": 6, "link.receive0.rx_dropped": 6},
    }
    record = build.lossy(1000, moves, 6)
    nic = build.facts("right", "receive0", "10.0.0.1/24", driver="ice")
    record = build.replace(record, facts={**record.facts, "right": nic})
    assert {"rx_ring": None, "rx_backlog": 6} == entries(record)


def test_sources_name_the_interface() -> None:
    """A reader can look the counter up by the name that stands there."""
    measured = readings_of(build.record())
    assert measured is not None
    sources = {entry.stage: entry.source for entry in make_ledger(measured).entries}
    qdisc = "Δ qdisc.send0.drops; for GSO messages sent_packets − Δ qdisc.send0.packets"
    assert qdisc == sources["tx_qdisc"]
    assert "Δ snmp.Udp.NoPorts" == sources["udp_no_port"]
    either = "min(Δ softnet.*.dropped, Δ link.receive0.rx_dropped)"
    assert f"{either}; of a tunnel the latter" == sources["rx_backlog"]


@given(
    sent=st.integers(0, 10**12),
    drops=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    received=st.integers(0, 10**12),
)
def test_the_ledger_closes_by_definition(sent: int, drops: list[int], received: int) -> None:
    """Intended = Σ entries + received + unaccounted, whatever the counters say."""
    moves = {
        "left": {"qdisc.send0.drops": drops[0], "link.send0.tx_dropped": drops[1]},
        "right": {"snmp.Udp.NoPorts": drops[2], "snmp.Udp.RcvbufErrors": drops[3]},
    }
    measured = readings_of(build.record(sent, received, moves=moves))
    assert measured is not None
    ledger = make_ledger(measured)
    explained = sum(entry.packets or 0 for entry in ledger.entries)
    assert ledger.unaccounted is not None
    assert ledger.intended_packets == explained + ledger.received_packets + ledger.unaccounted


def test_stages_stand_in_the_packets_order() -> None:
    """Every name that losses and expectations know has a row, and every row is of such a name."""
    assert LEDGER_STAGES == tuple(stage.name for stage in STAGES)
    assert BEFORE_SENT == LEDGER_STAGES[:3]


def test_the_documentation_has_the_table_of_stages(golden: Golden) -> None:
    """Row by row, as ``STAGES`` has it; ``noxfile.py messages`` writes it."""
    page = ROOT / "docs" / "ledger.md"
    head, title, rest = page.read_text().partition("| stage | what it means |")
    line, rule, tail = rest.split("\n", 2)
    rows = "".join(f"| `{s.name}` | {s.means} | {s.source} | {s.helps} |\n" for s in STAGES)
    table = f"{head}{title}{line}\n{rule}\n{rows}"
    if golden.rewriting:
        page.write_text(f"{table}\n{tail.partition(chr(10) * 2)[2]}")
    assert page.read_text().startswith(f"{table}\n")


def test_every_drivers_ring_is_explained_in_the_documentation() -> None:
    """docs/ledger.md names each driver with its counters, patterns written as people do."""
    text = (ROOT / "docs" / "ledger.md").read_text()
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `")}
    for driver, row in DRIVERS.items():
        for counter in row.full_ring:
            name = counter.partition("{interface}.")[2].replace("[[]", "[")
            name = re.sub(r"(\[0-9\])+|\*", "N", name)
            assert f"`{name}`" in rows[driver]
