"""Validity checks: for each a record that makes it fire, and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from golden import Golden

from analysis import build
from analysis import sampled as cpu_sampled
from udpbench.analysis.checks import (
    clock_checks,
    cpu_checks,
    host_checks,
    ledger_checks,
    offered_load,
    placement,
    worker_counts,
)
from udpbench.analysis.checks.checklist import CHECKS, Check
from udpbench.analysis.checks.checklist import check as check_all
from udpbench.analysis.cpu_use import OTHERS
from udpbench.analysis.readings import readings_of
from udpbench.host_settings import Settings, VethPair
from udpbench.model.experiment import Answers, Flows, Receive, Search, Traffic
from udpbench.model.host import Change, Setting
from udpbench.model.limits import SECOND_NS, PhaseName
from udpbench.model.record import ClockReading, Finding, Histogram, Snapshot, TrialRecord
from udpbench.model.result import CpuLoad
from udpbench.model.served import ServedTest


def test_a_sender_of_a_number_of_packets_may_make_up_for_what_holds_it_up() -> None:
    """With a bucket of a second; one that has it is told no more."""
    late = with_count(1100)
    (finding,) = findings(offered_load.sender_bound, late)
    assert str(finding.next_step).endswith("send.bucket: 1s lets it make up for that")
    ample = replace(late.trial, send=replace(late.trial.send, bucket_ns=SECOND_NS))
    (finding,) = findings(offered_load.sender_bound, replace(late, trial=ample))
    assert "bucket" not in str(finding.next_step)


@pytest.mark.parametrize(
    ("share", "receives", "step"),
    [
        (0.4, False, "lower traffic.rate"),
        (0.8, False, "stop what else uses the sender's CPUs"),
        (0.8, True, "lower traffic.rate"),
    ],
)
def test_a_sender_whose_cpu_others_took_need_not_send_less(
    share: float, receives: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 5 kpps beside a compiler a lower rate is no remedy."""
    load = CpuLoad("machine", 1, 1.0, receives, {OTHERS: share})
    monkeypatch.setattr(offered_load, "cpu_loads", lambda _: (load,))
    (finding,) = findings(offered_load.sender_bound, build.record(900, of=build.paced(1000)))
    assert str(finding.next_step).startswith(step)


def test_what_no_stage_explains_of_the_path_check_has_no_stage_to_look_up() -> None:
    """The kernel may tell more."""
    good = build.record(of=build.trial(path_check="arrive"))
    path = build.record(8, 5, phase="path")
    (finding,) = findings(
        ledger_checks.path_check_losses, replace(good, phases=(*path.phases, *good.phases))
    )
    assert "unaccounted +3" == finding.value
    assert str(finding.next_step).startswith("repeat with --set explain=true")


def findings(check: Check, record: TrialRecord) -> list[Finding]:
    """Return what one check says of a record."""
    measured = readings_of(record)
    assert measured is not None
    return list(check(measured))


def with_counts(sender: Mapping[str, int] = {}, receiver: Mapping[str, int] = {}) -> TrialRecord:
    """Return a good record with some counts of its workers changed."""
    workers = (
        build.worker("sender", build.sender_counts(1000, **sender)),
        build.worker("receiver", build.receiver_counts(1000, **receiver)),
    )
    return build.record(workers=workers)


def answered(packets: int, **sender: int) -> TrialRecord:
    """Return a good record of a program that answered 1000 packets so often."""
    of = build.trial(traffic=Traffic(answers=Answers()), receive=Receive(command=("./server",)))
    counts = {"answered_packets": packets, **sender}
    return replace(with_counts(sender=counts), trial=of)


def read_late() -> TrialRecord:
    """Return a record of 1003 answers whose program read the last 3 after its reads were counted."""
    plain = answered(1003)
    moves = {"right": {"snmp.Udp.InDatagrams": 1003}}
    return build.record(of=plain.trial, workers=plain.phases[-1].stats, moves=moves)


def looked_at(seen_ms: int, last_ms: int, lost: int = 0) -> TrialRecord:
    """Return a trial of a search of a program that was looked at so long after a load of 1 s."""
    times = {"last_ns": last_ms, "seen_ns": seen_ms}
    looks = {name: build.START_NS + (1000 + ms) * 10**6 for name, ms in times.items()}
    of = replace(build.trial(receive=Receive(command=("./server",))), search=Search())
    counts = build.receiver_counts(1000 - lost, **looks)
    workers = (build.worker("sender", build.sender_counts(1000)), build.worker("receiver", counts))
    return build.record(1000, 1000 - lost, of=replace(of, search_trial=2), workers=workers)


def working(cpu_ns: int, **receive: object) -> TrialRecord:
    """Return a record of 1000 datagrams with 1 ms of work and a batch of 10, so 990 ms at least."""
    counts = build.receiver_counts(1000, user_ns=cpu_ns, system_ns=10**6)
    workers = (build.worker("sender", build.sender_counts(1000)), build.worker("receiver", counts))
    slow = Receive(**{"work_ns": 10**6, "batch": 10, **receive})
    return build.record(of=build.trial(receive=slow), workers=workers)


def with_count(count: int, **sender: int) -> TrialRecord:
    """Return a record whose sender was asked for a count at a rate."""
    of = build.paced(1000)
    of = replace(of, traffic=replace(of.traffic, count_packets=count))
    return build.record(
        of=of,
        workers=(
            build.worker("sender", build.sender_counts(1000, **sender)),
            build.worker("receiver", build.receiver_counts(1000)),
        ),
    )


def with_worker(**changes: object) -> TrialRecord:
    """Return a good record whose receiver differs."""
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", build.receiver_counts(1000), **changes),
    )
    return build.record(workers=workers)


def with_strangers(*sockets: str) -> TrialRecord:
    """Return a record with others' sockets at the receiver after its measured phase."""
    record = build.record(moves={"right": {"stranger.9.drops": 3 if sockets else 0}})
    (phase,) = record.phases
    after = {**phase.after, "right": replace(phase.after["right"], strangers=sockets)}
    return replace(record, phases=(replace(phase, after=after),))


def cut_off(phase: PhaseName, name: str) -> TrialRecord:
    """Return a record in which a counter of the receiver moved in an earlier phase."""
    earlier = build.record(phase=phase, moves={"right": {name: 1}}).phases[0]
    measured = build.record().phases[0]
    still = {name: earlier.after["right"].counters[name]}
    before, after = (
        {
            **snapshots,
            "right": replace(snapshots["right"], counters={**snapshots["right"].counters, **still}),
        }
        for snapshots in (measured.before, measured.after)
    )
    return build.record(phases=(earlier, replace(measured, before=before, after=after)))


def delayed(bound_ns: int) -> TrialRecord:
    """Return a record of delays of 4 µs between hosts whose clocks are known to a bound."""
    record = with_worker(histograms={"delay": Histogram(((767, 1000),))})
    readings = {host: (ClockReading(0, 0, bound_ns),) for host in ("left", "right")}
    return replace(record, phases=(replace(record.phases[0], clocks=readings),))


def clocks(left_ns: int, right_ns: int) -> TrialRecord:
    """Return a record of hosts whose clocks are known to so many nanoseconds each."""
    plain = build.record()
    known = {
        "left": (ClockReading(0, 5, left_ns), ClockReading(9, 5, 0)),
        "right": (ClockReading(0, 7, right_ns),),
    }
    return replace(plain, phases=(replace(plain.phases[0], clocks=known),))


def reached_by(interface: str) -> TrialRecord:
    """Return a good record of a receiver to which the controller speaks by an interface."""
    good = build.record()
    right = replace(good.facts["right"], environment={"control_interface": interface})
    return replace(good, facts={**good.facts, "right": right})


def without(*capabilities: str) -> TrialRecord:
    """Return a good record of a lab whose hosts may not do everything."""
    good = build.record(1000)
    lacking = dict.fromkeys(capabilities, False)
    facts = {
        name: replace(host_facts, capabilities=lacking) for name, host_facts in good.facts.items()
    }
    return replace(good, facts=facts)


def steered(record: TrialRecord) -> TrialRecord:
    """Return a record whose experiment asks for RPS."""
    block = Settings(link=VethPair(receive="rps"))
    return replace(record, trial=replace(record.trial, settings={"receiver": block}))


def backwards(name: str) -> TrialRecord:
    """Return a good record in which one counter of the receiver shrank."""
    return build.record(moves={"right": {"snmp.Udp.InDatagrams": 1000, name: -1}})


def over_node(moved: dict[str, int]) -> TrialRecord:
    """Return a good record over a node in the middle with some counters alone."""
    record = build.record(built_in_lab=False)
    (phase,) = record.phases
    before, after = (
        {**snapshots, "r": Snapshot("r", time_ns, counters)}
        for snapshots, time_ns, counters in (
            (phase.before, 1, dict.fromkeys(moved, 0)),
            (phase.after, 2, moved),
        )
    )
    return replace(
        record,
        phases=(replace(phase, before=before, after=after),),
        facts={**record.facts, "r": build.facts("r", "in0", "10.0.0.254/24")},
        between={"r": "middle"},
        exits={"r": "out0"},
    )


def ring_backwards(driver: str) -> TrialRecord:
    """Return a good record in which the counter of a virtual NIC's ring shrank."""
    record = backwards("ethtool.receive0.rx0_drops")
    right = replace(record.facts["right"], driver=driver)
    return replace(record, facts={**record.facts, "right": right})


HEADER_ERRORS = ("snmp.Ip.InReceives", "snmp.Ip.InHdrErrors")


LENGTH = "link.receive0.rx_length_errors"
SHORT = {"ethtool.receive0.rx_short_length_errors": 40, LENGTH: 40}
MAC_ERRORS = "eth-mac.receive0.FramesLostDueToIntMACRcvError"


def lossy_path(arrived: int, path_check: str = "arrive") -> TrialRecord:
    """Return a good record whose path phase sent 8 packets, of which some died for their header."""
    good = build.record(of=build.trial(path_check=path_check))
    path = build.record(
        8, arrived, moves={"right": dict.fromkeys(HEADER_ERRORS, 8 - arrived)}, phase="path"
    )
    return replace(good, phases=(*path.phases, *good.phases))


def moved_clock(by_ns: int) -> TrialRecord:
    """Return a record of 2 s in which the offset of a host's clock, known to 1 ms, moved."""
    good = build.record()
    known = (ClockReading(0, 5, 10**6), ClockReading(2 * 10**9, 5 + by_ns, 10**6))
    return replace(good, phases=(replace(good.phases[0], clocks={"left": known}),))


SERVED = ServedTest("192.0.2.9", 5201, "eth0", {"udp": 1}, (), ())


def sampled(*gaps_ms: int, minutes: int = 1) -> TrialRecord:
    """Return a record of a phase so long whose receiver was sampled at these distances."""
    clock, series = build.START_NS, [build.Sample("right.receiver0", build.START_NS, {})]
    for gap_ms in gaps_ms:
        clock += gap_ms * 10**6
        series.append(build.Sample("right.receiver0", clock, {}))
    of = build.trial(duration_ns=minutes * 60 * 10**9)
    return build.record(of=of, series=tuple(series))


def readers(*packets: int, sockets: str = "reuseport") -> TrialRecord:
    """Return a record of several receiving workers of one port."""
    workers = [build.worker("sender", build.sender_counts(sum(packets)))]
    workers += [
        build.worker("receiver", build.receiver_counts(count), worker=f"right.receiver{n}")
        for n, count in enumerate(packets)
    ]
    of = build.trial(receive=build.Receive(sockets=sockets))
    return build.record(sum(packets), of=of, workers=workers)


def queues(*packets: int, flows: int = 2) -> TrialRecord:
    """Return a record whose receiver polled these packets in its queues."""
    moves = {f"ethtool.receive0.rx_queue_{n}_xdp_packets": count for n, count in enumerate(packets)}
    record = build.record(moves={"right": {"snmp.Udp.InDatagrams": 1000, **moves}})
    flow = record.workers[0].flows[0]
    several = tuple(replace(flow, flow=number) for number in range(flows))
    return replace(record, workers=(replace(record.workers[0], flows=several), record.workers[1]))


def gso(crossing: int) -> TrialRecord:
    """Return a record of 20 messages of 50 packets that crossed the link as so many skbs."""
    workers = (
        build.worker("sender", build.sender_counts(1000, sent_messages=20)),
        build.worker("receiver", build.receiver_counts(1000)),
    )
    moves = {"left": {"link.send0.tx_packets": crossing}}
    return build.record(of=build.trial(send=build.Send(gso=50)), workers=workers, moves=moves)


def frames(zerocopy: bool | None, ebusy: int = 0, dropped: int = 0) -> TrialRecord:
    """Return a record of frames by AF_XDP, of which the device dropped some."""
    lost = max(ebusy, dropped)
    workers = (
        build.worker("sender", build.sender_counts(1000, ebusy=ebusy), zerocopy=zerocopy),
        build.worker("receiver", build.receiver_counts(1000 - lost)),
    )
    moves = {"left": {"link.send0.tx_dropped": dropped}}
    of = build.trial(send=build.Send(call="af_xdp"))
    return build.lossy(1000, moves, lost, of=of, workers=workers)


def refusing(eperm: int, partial: int, discards: int) -> TrialRecord:
    """Return a record whose IP refused so many, 20 of them in the sender's queue."""
    counts = {"eperm": eperm, "attempted_packets": 1000 + eperm, "partial_calls": partial}
    workers = (
        build.worker("sender", build.sender_counts(1000, **counts)),
        build.worker("receiver", build.receiver_counts(980)),
    )
    left = {"snmp.Ip.OutDiscards": discards, "qdisc.send0.drops": 20}
    return build.record(1000, 980, workers=workers, moves={"left": left})


FULL_BUFFER = {"snmp.Udp.RcvbufErrors": 60, "snmp.Udp.InErrors": 60}

ON_TWO_QUEUES = build.trial(traffic=Traffic(flows=Flows(queues=2)))
TO_QUEUE_0 = Change(
    Setting("ntuple", "receive0/udp4/4321", 0, path="settings.receiver.ethtool.ntuple"), None, 0
)

CRC, CAME_IN = "link.receive0.rx_crc_errors", "link.receive0.rx_packets"

TAKING = build.trial(receive=build.Receive(call="af_xdp", wait="spin"))
FIRES: list[tuple[Check, TrialRecord, TrialRecord, str]] = [
    (
        offered_load.sender_bound,
        build.record(990, of=build.paced(1000)),
        build.record(995, of=build.paced(1000)),
        "invalid",
    ),
    (
        offered_load.receiver_not_saturated,
        build.record(1000),
        build.record(1000, 999),
        "note",
    ),
    (
        offered_load.few_reads,
        with_counts(receiver={"receive_calls": 103, "empty_calls": 100}),
        with_counts(receiver={"receive_calls": 120, "empty_calls": 100}),
        "warning",
    ),
    (
        offered_load.few_reads,
        with_counts(receiver={"receive_calls": 1}),
        with_counts(receiver={"receive_calls": 1, "received_packets": 1}),
        "warning",
    ),
    (
        offered_load.few_reads,
        replace(
            with_counts(receiver={"receive_calls": 3}),
            trial=build.trial(receive=build.Receive(batch=1)),
        ),
        with_counts(receiver={"receive_calls": 20}),
        "warning",
    ),
    (
        ledger_checks.hidden_refusals,
        refusing(eperm=5, partial=7, discards=32),
        refusing(eperm=5, partial=7, discards=25),
        "note",
    ),
    (
        ledger_checks.hidden_refusals,
        refusing(eperm=0, partial=30, discards=46),
        refusing(eperm=0, partial=0, discards=46),
        "note",
    ),
    (
        placement.worker_moved,
        with_worker(cpus_seen=(0, 1)),
        with_worker(cpu=None, cpus_seen=(0, 1)),
        "invalid",
    ),
    (
        worker_counts.foreign_traffic,
        with_counts(receiver={"foreign_packets": 80}),
        with_counts(),
        "invalid",
    ),
    (
        worker_counts.foreign_traffic,
        with_counts(receiver={"foreign_size_packets": 80}),
        with_counts(receiver={"foreign_size_packets": 0}),
        "invalid",
    ),
    (
        worker_counts.others_reads,
        with_counts(receiver={"others_sockets": 3}),
        with_counts(),
        "warning",
    ),
    *(
        (worker_counts.no_reads, with_counts(receiver={name: 4}), with_counts(), severity)
        for name, severity in (
            ("tunnel_sockets", "invalid"),
            ("unknown_tunnels", "note"),
        )
    ),
    *(
        (offered_load.unseen_end, looked_at(*late), looked_at(*known), "invalid")
        for late, known in (
            ((300, -40), (20, -40)),
            ((300, 300), (300, 200)),
            ((51, 0), (300, -40, 100)),
        )
    ),
    (
        worker_counts.late_reads,
        with_counts(receiver={"overdue_packets": 11}),
        with_counts(),
        "note",
    ),
    (
        worker_counts.irregular_datagrams,
        with_counts(receiver={"duplicate_packets": 1}),
        with_counts(),
        "note",
    ),
    (
        worker_counts.irregular_datagrams,
        with_counts(receiver={"ancient_packets": 2}),
        with_counts(),
        "warning",
    ),
    (
        worker_counts.irregular_datagrams,
        with_counts(receiver={"corrupt_packets": 3}),
        with_counts(),
        "warning",
    ),
    (
        worker_counts.failed_calls,
        with_counts(sender={"other_errors": 4, "last_errno": 22}),
        with_counts(),
        "warning",
    ),
    (
        worker_counts.failed_calls,
        with_counts(receiver={"errors": 1, "last_errno": 111}),
        with_counts(),
        "warning",
    ),
    (
        worker_counts.failed_calls,
        with_counts(sender={"answer_errors": 2, "answer_last_errno": 111}),
        with_counts(),
        "warning",
    ),
    (
        ledger_checks.surplus_answers,
        answered(1003),
        answered(1000),
        "invalid",
    ),
    (
        ledger_checks.surplus_answers,
        read_late(),
        answered(1000),
        "invalid",
    ),
    (
        worker_counts.unmatched_answers,
        answered(1000, unmatched_packets=3),
        answered(1000, unmatched_packets=0),
        "note",
    ),
    (
        worker_counts.unmatched_answers,
        answered(1000, id_waits=1),
        answered(1000, id_waits=0),
        "note",
    ),
    (
        offered_load.sender_stalled,
        with_counts(sender={"stalled_packets": 9}),
        with_counts(),
        "note",
    ),
    (
        offered_load.sender_stalled,
        with_count(1000, attempted_packets=1000, stalled_packets=900),
        with_count(1000, attempted_packets=1000),
        "note",
    ),
    (
        offered_load.sender_stalled,
        with_count(1000, attempted_packets=600, stalled_packets=900),
        with_count(1000, attempted_packets=600),
        "note",
    ),
    (
        offered_load.sender_stalled,
        with_count(1000, attempted_packets=600, stalled_packets=400),
        with_count(1000, attempted_packets=600),
        "note",
    ),
    (
        ledger_checks.counter_backwards,
        backwards("snmp.Udp.NoPorts"),
        backwards("snmp.Udp.IgnoredMulti"),
        "invalid",
    ),
    (
        ledger_checks.counter_backwards,
        ring_backwards("virtio_net"),
        ring_backwards("veth"),
        "invalid",
    ),
    (
        ledger_checks.counter_backwards,
        backwards("ethtool.receive0.rx_xdp_drop"),
        backwards("ethtool.receive0.rx_xdp_packets"),
        "invalid",
    ),
    (
        ledger_checks.silent_nodes,
        over_node({}),
        over_node({"link.in0.rx_packets": 1000}),
        "warning",
    ),
    (
        ledger_checks.unaccounted,
        build.record(1000, 999),
        build.record(1000),
        "invalid",
    ),
    (
        ledger_checks.unaccounted,
        build.record(5_000_000, 5_000_001, built_in_lab=False),
        build.record(5_000_000, built_in_lab=False),
        "invalid",
    ),
    (
        ledger_checks.damaged_frames,
        build.record(1000, 993, moves={"right": {CRC: 7}}, built_in_lab=False),
        build.record(1000, 993, built_in_lab=False),
        "warning",
    ),
    *(
        (
            ledger_checks.damaged_frames,
            build.record(1000, 993, of=of, moves={"right": moves}, built_in_lab=False),
            build.record(1000, 993, of=of, built_in_lab=False),
            severity,
        )
        for moves, of, severity in (
            (SHORT, build.trial(), "note"),
            (SHORT, build.trial(traffic=Traffic(size_bytes=12)), "warning"),
            ({"ethtool.receive0.rx_long_length_errors": 2, LENGTH: 2}, build.trial(), "warning"),
            ({LENGTH: 3}, build.trial(), "warning"),
            ({MAC_ERRORS: 1}, build.trial(), "warning"),
        )
    ),
    (
        ledger_checks.lost_after_the_link,
        build.record(1000, 993, moves={"right": {CAME_IN: 1000}}, built_in_lab=False),
        build.record(1000, 993, moves={"right": {CAME_IN: 993}}, built_in_lab=False),
        "warning",
    ),
    (
        ledger_checks.unknown_driver,
        build.driven("nobody_knows", build.record(1000, 993, built_in_lab=False)),
        build.driven("igb", build.record(1000, 993, built_in_lab=False)),
        "note",
    ),
    (
        ledger_checks.others_packets,
        build.record(1000, moves={"right": {"snmp.Udp.NoPorts": 190}}, built_in_lab=False),
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 190}}, 190, built_in_lab=False),
        "note",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"right": {**FULL_BUFFER, "socket.77.drops": 50}}, 60),
        build.lossy(1000, {"right": {**FULL_BUFFER, "socket.77.drops": 60}}, 60),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"right": {"link.receive0.rx_dropped": 7}}, 0),
        build.lossy(1000, {"right": {"socket.77.drops": 2, "snmp.Udp.InCsumErrors": 2}}, 2),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"right": {"firewall.ipv4/input/drop/udp/4321": 7}}, 0),
        build.lossy(
            1000,
            {"right": {"firewall.ipv4/input/drop/udp/4321": 7, "snmp.Ip.InReceives": 7}},
            7,
        ),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        frames(False, ebusy=4, dropped=3),
        frames(False, ebusy=3, dropped=3),
        "warning",
    ),
    (
        offered_load.frames_mode,
        frames(False),
        frames(None),
        "note",
    ),
    (
        offered_load.frames_mode,
        frames(True),
        with_counts(),
        "note",
    ),
    (
        offered_load.frames_mode,
        build.record(
            workers=(
                build.worker("sender", build.sender_counts(1000)),
                build.worker("receiver", build.receiver_counts(1000), zerocopy=False),
            )
        ),
        with_counts(),
        "note",
    ),
    (
        worker_counts.failed_calls,
        with_counts(sender={"refused_calls": 4, "last_errno": 100}),
        with_counts(),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"left": {"firewall.ipv4/output/drop/udp/4321": 7}}, 0),
        build.lossy(1000, {}, 0),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 1003}}),
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 1003}}, built_in_lab=False),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 999}}, built_in_lab=False),
        build.record(1000, built_in_lab=False),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 7}}, 5),
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 5}}, 5),
        "warning",
    ),
    (
        ledger_checks.counters_disagree,
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 0}}, 5),
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5}}, 5),
        "warning",
    ),
    (
        ledger_checks.path_check_losses,
        lossy_path(5),
        lossy_path(5, "explained"),
        "warning",
    ),
    (
        offered_load.unsegmented_messages,
        gso(20),
        gso(1000),
        "note",
    ),
    (
        placement.idle_sockets,
        readers(600, 0, 400),
        readers(600, 0, 400, sockets="shared"),
        "warning",
    ),
    (
        placement.idle_queues,
        queues(1000, 0),
        queues(1000, 0, flows=1),
        "warning",
    ),
    (
        host_checks.environment_changed,
        build.record(
            environment_after={"right": {"governor": "powersave", "xdp": "none", "tcx": "none"}}
        ),
        build.record(environment_after={"right": build.record().facts["right"].environment}),
        "invalid",
    ),
    (
        host_checks.environment_changed,
        build.record(
            of=TAKING, environment_after={"right": {"governor": "powersave", "tcx": "none"}}
        ),
        build.record(
            of=TAKING,
            environment_after={
                "right": {"governor": "performance", "xdp": "program 7", "tcx": "none"}
            },
        ),
        "invalid",
    ),
    (
        clock_checks.clock_stepped,
        moved_clock(3_100_000),
        moved_clock(2_900_000),
        "invalid",
    ),
    (
        clock_checks.samples_missing,
        sampled(100, 600, 100),
        sampled(100, 500, 100),
        "warning",
    ),
    (
        clock_checks.samples_missing,
        sampled(2000, 6000, minutes=120),
        sampled(2100, 4100, minutes=120),
        "warning",
    ),
    (
        clock_checks.samples_missing,
        replace(sampled(1000, 2600), served=SERVED),
        replace(sampled(1000, 2400), served=SERVED),
        "warning",
    ),
    (
        host_checks.buffer_capped,
        with_worker(buffer_bytes=425984),
        with_worker(buffer_bytes=8 * 2**20),
        "warning",
    ),
    (
        worker_counts.strange_sockets,
        with_strangers("python3 12 (user 0) at 0.0.0.0:4321"),
        with_strangers(),
        "invalid",
    ),
    *(
        (
            host_checks.changed_meanwhile,
            build.record(moves={"right": {f"changed.{name}": 1}}),
            build.record(moves={"right": {f"changed.{name}": 0}}),
            "struck",
        )
        for name in host_checks.CHANGED
    ),
    *(
        (
            host_checks.changed_meanwhile,
            build.record(moves={"left": {name: 1}}),
            build.record(moves={"right": {name: 1}}),
            "struck",
        )
        for name in host_checks.REDIRECTS
    ),
    (
        host_checks.programs_changed,
        cut_off("path", host_checks.PROGRAMS),
        cut_off("path", "changed.routes"),
        "struck",
    ),
    (
        host_checks.allowance_exceeded,
        build.record(moves={"right": {"ethtool.receive0.pps_allowance_exceeded": 12}}),
        build.record(moves={"right": {"ethtool.receive0.pps_allowance_exceeded": 0}}),
        "warning",
    ),
    (
        host_checks.carrier_lost,
        cut_off("warmup", "link.receive0.carrier_downs"),
        cut_off("warmup", "link.receive0.rx_errors"),
        "invalid",
    ),
    (
        placement.queues_moved,
        build.queued({0: 4, 1: 4}, {0: 900, 1: 0}, trial=ON_TWO_QUEUES),
        build.queued({0: 4, 1: 4}, {0: 500, 1: 400}, trial=ON_TWO_QUEUES),
        "invalid",
    ),
    (
        placement.steering_ignored,
        build.queued({0: 4}, {0: 900, 1: 50}, changes={"right": (TO_QUEUE_0,)}),
        build.queued({0: 4}, {0: 900, 1: 1}, changes={"right": (TO_QUEUE_0,)}),
        "invalid",
    ),
    (
        worker_counts.standstills,
        with_counts(receiver={"standstills": 2, "standstill_ns": 1_204_000_000}),
        with_counts(receiver={"standstills": 0, "standstill_ns": 0}),
        "warning",
    ),
    (
        cpu_checks.work_not_done,
        working(988 * 10**6),
        working(989 * 10**6),
        "invalid",
    ),
    (
        cpu_checks.work_not_done,
        working(0, batch=995),
        working(0, batch=1, gro=True),
        "invalid",
    ),
    (
        cpu_checks.other_processes,
        build.shared(build.LOAD_MS + 660, build.hog(660)),
        build.shared(build.LOAD_MS),
        "struck",
    ),
    (
        cpu_checks.cpu_time_unknown,
        cpu_sampled.record(busy_ms=1800),
        cpu_sampled.record(),
        "warning",
    ),
    (
        cpu_checks.hypervisor,
        build.shared(build.LOAD_MS, steal_ms=22),
        build.shared(build.LOAD_MS, steal_ms=20),
        "warning",
    ),
    (
        host_checks.control_shares_path,
        reached_by("receive0"),
        reached_by("eth0"),
        "warning",
    ),
    (
        host_checks.degraded,
        without("kernel_threads", "real_time"),
        build.record(1000),
        "warning",
    ),
    (
        host_checks.degraded,
        without("napi_threads"),
        steered(without("napi_threads")),
        "warning",
    ),
    (
        host_checks.degraded,
        without("napi_threads", "rps"),
        steered(without("napi_threads", "rps")),
        "warning",
    ),
    (
        clock_checks.clocks_apart,
        clocks(left_ns=6_500_000, right_ns=6 * 10**6),
        clocks(left_ns=4_000_000, right_ns=6 * 10**6),
        "warning",
    ),
    (
        clock_checks.delay_hidden,
        delayed(bound_ns=10_000),
        delayed(bound_ns=0),
        "note",
    ),
    (
        clock_checks.echoes_lost,
        with_counts(sender={"echo_packets": 9}, receiver={"echoed_packets": 10}),
        with_counts(sender={"echo_packets": 10}, receiver={"echoed_packets": 10}),
        "warning",
    ),
    (
        worker_counts.log_errors,
        with_counts(receiver={"log_errors": 2, "log_last_errno": 28}),
        with_counts(receiver={"log_errors": 0, "log_last_errno": 0}),
        "warning",
    ),
]


@pytest.mark.parametrize(("check", "bad", "good", "severity"), FIRES)
def test_a_check_fires_on_a_bad_record_only(
    check: Check, bad: TrialRecord, good: TrialRecord, severity: str
) -> None:
    """One finding of this severity, and none on a sound record."""
    assert [severity] == [finding.severity for finding in findings(check, bad)]
    assert [] == findings(check, good)


def test_findings_say_what_where_value_limit_and_next_step(golden: Golden) -> None:
    """Every finding of the records above, as a user reads it."""
    golden.check([f"{f.severity}: {f}" for check, bad, *_ in FIRES for f in findings(check, bad)])


def test_every_check_has_a_record_that_makes_it_fire() -> None:
    """A check without one is no check."""
    tried: set[Callable[..., object]] = {check for check, *_ in FIRES}
    assert set(CHECKS) == tried


def test_an_unlimited_sender_is_never_sender_bound() -> None:
    """Without a rate there is nothing to fall short of."""
    counts = build.sender_counts(10, attempted_packets=1000, econnrefused=990)
    workers = (build.worker("sender", counts), build.worker("receiver", build.receiver_counts(10)))
    assert [] == findings(offered_load.sender_bound, build.record(10, workers=workers))


def test_whoever_expects_unsent_packets_is_not_sender_bound() -> None:
    """An expectation that names them says that they are meant."""
    short = build.record(990, of=build.paced(1000))
    assert [] != findings(offered_load.sender_bound, short)
    expected = replace(short, trial=replace(short.trial, expects_unsent=True))
    assert [] == findings(offered_load.sender_bound, expected)


def test_nothing_sent_is_no_lower_bound() -> None:
    """Zero of zero packets says nothing of a receiver."""
    assert [] == findings(offered_load.receiver_not_saturated, build.record(0))


def test_what_a_log_could_not_take_is_lost() -> None:
    """The log is what limits, and more senders would not help."""
    assert [] == findings(offered_load.receiver_not_saturated, build.unlogged(70))
    assert 1 == len(findings(offered_load.receiver_not_saturated, build.unlogged(0)))


def test_a_paced_trial_without_loss_is_no_lower_bound() -> None:
    """It was asked for that much and delivered it."""
    assert [] == findings(
        offered_load.receiver_not_saturated, build.record(1000, of=build.paced(1000))
    )


def test_a_sound_record_has_the_one_note_that_it_deserves() -> None:
    """All checks together find nothing else in a trial without loss."""
    measured = readings_of(build.record())
    assert measured is not None
    assert ["note"] == [finding.severity for finding in check_all(measured)]


def test_a_senders_capped_buffer_names_its_own_limit() -> None:
    """wmem_max, not rmem_max, bounds SO_SNDBUF."""
    of = build.trial(send=build.Send(buffer_bytes=2**20))
    workers = (
        build.worker("sender", build.sender_counts(1), buffer_bytes=2**20),
        build.worker("receiver", build.receiver_counts(1)),
    )
    (finding,) = findings(host_checks.buffer_capped, build.record(1, of=of, workers=workers))
    assert "net.core.wmem_max" in finding.next_step


def test_without_a_second_counter_nothing_can_disagree() -> None:
    """A host that lacks the corroborating counters has no such finding."""
    record = build.record()
    phase = record.phases[0]
    bare = {host: replace(snapshot, counters={}) for host, snapshot in phase.before.items()}
    record = replace(record, phases=(replace(phase, before=bare),))
    assert [] == findings(ledger_checks.counters_disagree, record)


def with_flow_queues(queues: int, record: TrialRecord) -> TrialRecord:
    """Return the trial as one that asked for flows on so many queues."""
    traffic = replace(record.trial.traffic, flows=Flows(queues=queues))
    return replace(record, trial=replace(record.trial, traffic=traffic))


def test_queues_that_a_trial_leaves_idle_on_purpose_are_no_finding() -> None:
    """It asks for fewer than there are, or its tables and rules lead past some."""
    idle = queues(1000, 0)
    assert [] == findings(placement.idle_queues, with_flow_queues(1, idle))
    assert 1 == len(findings(placement.idle_queues, with_flow_queues(2, idle)))
    steered = replace(idle, changes={"right": (TO_QUEUE_0,)})
    assert [] == findings(placement.idle_queues, steered)
    refused = replace(TO_QUEUE_0, refusal="not supported")
    assert 1 == len(findings(placement.idle_queues, replace(idle, changes={"right": (refused,)})))
