"""judge: one record in, one result out."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from golden import Golden

from analysis import build
from udpbench.analysis.checks.ledger_checks import path_losses
from udpbench.analysis.delta import Deltas, deltas
from udpbench.analysis.judge import judge, path_ledger
from udpbench.analysis.ledger.ledger import UNOBSERVED
from udpbench.analysis.readings import readings_of
from udpbench.errors import Problem
from udpbench.model.experiment import Traffic
from udpbench.model.host import Change, Setting
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding, RecordedError, Snapshot
from udpbench.model.result import Ledger, LedgerEntry, Result


def test_a_lossy_trial_has_its_numbers() -> None:
    """Counts, rates over the time between stamps, ratios and cost follow from the record."""
    moves = {
        "right": {"snmp.Udp.RcvbufErrors": 100, "socket.77.drops": 100},
        "machine": {
            "cpu.0.softirq_ns": 600_000,
            "cpu.0.user_ns": 300_000,
            "cpu.0.idle_ns": 5,
            "cpu.1.system_ns": 2_000_000,
        },
    }
    result = judge(build.lossy(1000, moves, 100))
    assert ("done", True, ()) == (result.status, result.valid, result.findings)
    assert (1000, 1000, 900, 100) == (
        result.intended_packets,
        result.sent_packets,
        result.received_packets,
        result.lost_packets,
    )
    assert (1000.0, 900.0, 0.1) == (result.offered_pps, result.delivered_pps, result.loss_ratio)
    assert 900 * 32 / 2**20 == result.delivered_mib_s
    assert (0.1, 2000.0, 1000.0) == (
        result.send_calls_per_packet,
        result.send_cpu_ns_per_packet,
        result.receive_cpu_ns_per_packet,
    )
    assert 0 == result.unaccounted
    assert [("left.sender0", 1000, 1000.0), ("right.receiver0", 900, 900.0)] == [
        (worker.worker, worker.packets, worker.pps) for worker in result.workers
    ]


def test_judging_leaves_nothing_to_be_collected() -> None:
    """What was derived of a trial refers to itself; of a thousand trials that took gigabytes."""
    lossy = build.lossy(1000, {"right": {"snmp.Udp.RcvbufErrors": 100}}, 100)
    judge(lossy)
    gc.collect()
    gc.disable()
    try:
        judge(lossy)
        left = gc.collect()
    finally:
        gc.enable()
    assert 0 == left


def test_counters_are_subtracted_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host's once, of a phase that is looked at; none for what workers counted."""
    subtracted: list[str] = []

    def count(before: Snapshot, after: Snapshot) -> Deltas:
        subtracted.append(after.host)
        return deltas(before, after)

    monkeypatch.setattr("udpbench.analysis.delta.deltas", count)
    read = readings_of(build.record(1000))
    assert read is not None
    assert 1000 == read.receiver.worked("received_packets")
    assert ("right" in read.deltas, len(read.deltas), subtracted) == (True, len([*read.deltas]), [])
    for _ in range(2):
        read.receiver.counter("snmp.Udp.InErrors")
    assert ["right"] == subtracted


def test_an_invalid_finding_makes_the_trial_invalid_and_keeps_its_numbers() -> None:
    """It is shown struck out, so the numbers are needed."""
    result = judge(build.record(1000, 999))
    assert (False, 999, 1) == (result.valid, result.received_packets, result.unaccounted)


def test_what_control_found_comes_first() -> None:
    """A finding of the run counts like one of the analysis."""
    finding = Finding("invalid", "the clock stepped")
    result = judge(build.lossy(1000, {}, 0, findings=(finding,)))
    assert (False, finding) == (result.valid, result.findings[0])


@pytest.mark.parametrize("received", [0, 1])
def test_fewer_than_two_packets_make_no_rate(received: int) -> None:
    """A rate needs a time between a first and a last packet; missing is None, not 0."""
    result = judge(build.record(1000, received))
    assert (None, None, None) == (
        result.delivered_pps,
        result.delivered_mib_s,
        result.delivered_pps_spread,
    )
    assert result.receive_cpu_ns_per_packet is None or received == 1


def test_one_batch_makes_no_rate() -> None:
    """When all packets came with one call there is no time between first and last."""
    counts = build.receiver_counts(500, last_ns=build.START_NS + 10**6)
    workers = (build.worker("sender", build.sender_counts(500)), build.worker("receiver", counts))
    assert judge(build.record(500, workers=workers)).delivered_pps is None


def test_nothing_sent_has_no_ratio() -> None:
    """0 of 0 is not a loss of 0."""
    result = judge(build.record(0))
    assert (0, None, None) == (result.sent_packets, result.loss_ratio, result.send_calls_per_packet)


def test_what_came_with_the_first_stamp_is_not_in_the_time_after_it() -> None:
    """Two calls with 500 packets each, one second apart: 500 came in that second, and 16 kB."""
    sending = build.sender_counts(1000, first_packets=1)
    reading = build.receiver_counts(1000, first_packets=500, first_bytes=500 * 32)
    workers = (build.worker("sender", sending), build.worker("receiver", reading))
    result = judge(build.record(1000, workers=workers))
    assert (999.0, 500.0) == (result.offered_pps, result.delivered_pps)
    assert 500 * 32 / 2**20 == result.delivered_mib_s
    assert [999.0, 500.0] == [worker.pps for worker in result.workers]


def test_only_who_was_first_has_packets_with_the_first_stamp() -> None:
    """What a later worker read by its first call came in the time after the other's."""
    begun = build.START_NS + 10**6
    first = build.receiver_counts(600, first_packets=100)
    late = build.receiver_counts(400, first_packets=100, first_ns=begun + 5 * 10**8)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", first),
        build.worker("receiver", late, worker="right.receiver1"),
    )
    result = judge(build.record(1000, workers=workers))
    assert 900.0 == result.delivered_pps
    assert [1000.0, 500.0, 600.0] == [worker.pps for worker in result.workers]


def test_a_sender_that_was_held_up_in_its_first_call_has_no_rate() -> None:
    """Paced, one call that took all says nothing of packets per second."""
    counts = build.sender_counts(64, first_packets=64)
    workers = (build.worker("sender", counts), build.worker("receiver", build.receiver_counts(64)))
    assert judge(build.record(64, workers=workers)).offered_pps is None


def test_rates_of_two_hosts_share_an_axis() -> None:
    """Clocks of two receivers differ; stamps count from each host's own start."""
    other = 100 * SECOND_NS
    mine = build.worker("receiver", build.receiver_counts(600))
    far = build.worker(
        "receiver",
        build.receiver_counts(
            400, first_ns=other + 501 * 10**6, last_ns=other + 10**6 + 2 * SECOND_NS
        ),
        worker="third.receiver0",
    )
    record = build.record(
        1000, workers=(build.worker("sender", build.sender_counts(1000)), mine, far)
    )
    phase = replace(record.phases[0], start_ns={**record.phases[0].start_ns, "third": other})
    assert 500.0 == judge(replace(record, phases=(phase,))).delivered_pps


@pytest.mark.parametrize(("last_ms", "lag"), [(1001, 0.0), (1201, 0.2), (901, -0.1)])
def test_how_long_the_receiver_needed_more_is_kept_without_rates(last_ms: int, lag: float) -> None:
    """For a second of load; what it needed is a time, whoever used the CPUs."""
    receiver = build.receiver_counts(1000, last_ns=build.START_NS + last_ms * build.MS)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", receiver),
    )
    struck = Finding("struck", "other programs used CPUs of the load")
    result = judge(build.record(1000, workers=workers, findings=(struck,)))
    assert (None, pytest.approx(lag)) == (result.delivered_pps, result.lag)
    assert judge(build.record(0)).lag is None


BUCKET = Change(
    Setting("qdisc", "send0", {"tbf": {"rate_bps": 10**6}}),
    {},
    {"tbf": {"rate_bps": 10**6}},
)


@pytest.mark.parametrize(
    ("sent_bytes", "drops", "driver", "full_bps"),
    [
        (122_000, 0, "veth", 10**6),
        (121_000, 0, "veth", None),
        (130_000, 1, "veth", None),
        (1_220_000, 0, "igb", 10**7),
        (1_150_000, 0, "igb", None),
        (1_220_000, 0, "veth", None),
    ],
    ids=["bucket", "below", "drops", "card", "card below", "a pair has no rate"],
)
def test_a_line_is_full_by_what_left_the_sender(
    sent_bytes: int, drops: int, driver: str, full_bps: int | None
) -> None:
    """In the time of the load; a card's frames are 24 bytes longer on the line."""
    left = {"tx_bytes": sent_bytes, "tx_packets": 1000}
    moves = {f"link.send0.{name}": value for name, value in left.items()}
    record = build.record(moves={"left": {**moves, "qdisc.send0.drops": drops}})
    speed = {"link": "10 Mb/s, full duplex"}
    sender = replace(record.facts["left"], driver=driver, environment=speed)
    bucket = {"left": (BUCKET,)} if sent_bytes < 10**6 else {}
    record = replace(record, facts={**record.facts, "left": sender}, changes=bucket)
    assert full_bps == judge(record).full_line_bps


def test_the_spread_is_that_of_whole_seconds() -> None:
    """Sample standard deviation over mean of the seconds between the first and last packet."""
    counts = build.receiver_counts(
        600, first_ns=build.START_NS, last_ns=build.START_NS + 3 * SECOND_NS
    )
    workers = (build.worker("sender", build.sender_counts(600)), build.worker("receiver", counts))
    record = build.record(600, workers=workers, series=build.series([100, 200, 300]))
    assert 0.5 == judge(record).delivered_pps_spread


@pytest.mark.parametrize(("minutes", "known"), [(30, True), (31, False)])
def test_a_phase_that_is_sampled_slowly_has_no_spread(minutes: int, known: bool) -> None:
    """From half an hour on there is less than a sample each half second."""
    counts = build.receiver_counts(
        600, first_ns=build.START_NS, last_ns=build.START_NS + 3 * SECOND_NS
    )
    workers = (build.worker("sender", build.sender_counts(600)), build.worker("receiver", counts))
    of = build.trial(duration_ns=minutes * 60 * SECOND_NS)
    record = build.record(600, of=of, workers=workers, series=build.series([100, 200, 300]))
    assert (0.5 if known else None) == judge(record).delivered_pps_spread


def test_one_second_has_no_spread() -> None:
    """A single rate does not vary."""
    assert judge(build.record(600, series=build.series([600]))).delivered_pps_spread is None


def test_cpu_time_of_a_shared_cpu_belongs_to_nobody() -> None:
    """Where sender and receiver share a CPU the cost is unknown."""
    workers = (
        build.worker("sender", build.sender_counts(1000), cpu=0, cpus_seen=(0,)),
        build.worker("receiver", build.receiver_counts(1000)),
    )
    result = judge(build.record(1000, workers=workers))
    assert (None, None) == (result.send_cpu_ns_per_packet, result.receive_cpu_ns_per_packet)


CPU_TIMES = ("user", "idle")


def apart(sending: dict[str, str], cpus: dict[str, int], **moves: dict[str, int]) -> Result:
    """Return the result of hosts with counters of their own: sender → boot, all hosts → CPU."""
    senders = [
        build.worker("sender", build.sender_counts(500), worker=f"{host}.sender0", cpu=cpus[host])
        for host in sending
    ]
    receiver = build.worker("receiver", build.receiver_counts(1000), cpu=cpus["right"])
    record = build.record(1000, workers=(*senders, receiver), built_in_lab=False)
    phase = record.phases[0]
    boots = {**sending, "right": "boot of right"}
    for taken, add in ((phase.before, 0), (phase.after, 1)):
        taken.pop("machine")
        for host in boots:
            zero = dict.fromkeys(
                (f"cpu.{cpu}.{time}_ns" for cpu in (0, 1, 2) for time in CPU_TIMES), 0
            )
            own = taken.get(host, replace(taken["left"], host=host))
            moved = {name: value * add for name, value in moves.get(host, {}).items()}
            taken[host] = replace(own, counters={**own.counters, **zero, **moved})
    facts = {
        host: build.facts(host, "receive0", f"10.0.0.{n}/24", boot_id=boot, queue_cpus={})
        for n, (host, boot) in enumerate(boots.items(), start=1)
    }
    specs = tuple(replace(record.workers[0], host=host) for host in sending)
    return judge(replace(record, facts=facts, workers=(*specs, record.workers[1])))


def test_cpu_time_of_several_machines_is_that_of_their_own_cpus() -> None:
    """Left sends on CPU 1 and middle on CPU 2: what the other CPU of each does is not theirs."""
    result = apart(
        {"left": "a", "middle": "b"},
        {"left": 1, "middle": 2, "right": 1},
        left={"cpu.1.user_ns": 1000, "cpu.2.user_ns": 70_000},
        middle={"cpu.2.user_ns": 3000, "cpu.1.user_ns": 70_000},
        right={"cpu.1.user_ns": 5000},
    )
    assert (4.0, 5.0) == (result.send_cpu_ns_per_packet, result.receive_cpu_ns_per_packet)


def test_cpu_time_of_two_hosts_of_one_machine_is_counted_once() -> None:
    """Two namespaces see the same CPUs, each in its own snapshot."""
    busy = {"cpu.1.user_ns": 1000, "cpu.2.user_ns": 3000}
    cpus = {"left": 1, "middle": 2, "right": 1}
    result = apart({"left": "a", "middle": "a"}, cpus, left=busy, middle=busy)
    assert 4.0 == result.send_cpu_ns_per_packet


def test_cpu_time_of_roles_that_share_a_cpu_of_one_machine_belongs_to_nobody() -> None:
    """Wherever the lab is; a CPU of the same number of another machine is no shared one."""
    busy = {"cpu.1.user_ns": 1000}
    shared = apart({"left": "boot of right"}, {"left": 1, "right": 1}, left=busy, right=busy)
    assert (None, None) == (shared.send_cpu_ns_per_packet, shared.receive_cpu_ns_per_packet)
    own = apart({"left": "boot of right"}, {"left": 1, "right": 2}, left=busy, right=busy)
    assert 2.0 == own.send_cpu_ns_per_packet


def test_cpu_time_of_an_unpinned_worker_is_unknown() -> None:
    """It may have been spent anywhere; in one machine that spoils the other role's, too."""
    workers = (
        build.worker("sender", build.sender_counts(1000), cpu=None),
        build.worker("receiver", build.receiver_counts(1000)),
    )
    result = judge(build.record(1000, workers=workers))
    assert (None, None) == (result.send_cpu_ns_per_packet, result.receive_cpu_ns_per_packet)


@pytest.mark.parametrize(("window_ns", "known"), [(5 * 10**8, True), (5 * 10**8 - 1, False)])
def test_cpu_time_of_a_moment_is_not_that_of_its_packets(window_ns: int, known: bool) -> None:
    """Below a quarter of the 2 s between the snapshots whatever else ran would be in it."""
    counts = build.receiver_counts(1000, last_ns=build.START_NS + 10**6 + window_ns)
    workers = (build.worker("sender", build.sender_counts(1000)), build.worker("receiver", counts))
    result = judge(build.record(1000, workers=workers, moves={"machine": {"cpu.0.user_ns": 1000}}))
    assert (1.0 if known else None) == result.receive_cpu_ns_per_packet


def test_a_failed_trial_has_a_reason_and_no_numbers() -> None:
    """The error's message is the finding, and names its host."""
    result = judge(build.failed())
    assert ("failed", False, None) == (result.status, result.valid, result.sent_packets)
    assert ["right: failed: it died"] == [str(finding) for finding in result.findings]


def test_a_skipped_trial_is_no_failure() -> None:
    """The reason is a note."""
    result = judge(build.failed("skipped", "needs 8 CPUs, right has 2"))
    assert [("note", "skipped: needs 8 CPUs, right has 2", "skipped")] == [
        (finding.severity, finding.what, finding.kind) for finding in result.findings
    ]
    assert "skipped" == result.status


def test_a_record_that_ends_before_its_measured_phase_is_failed() -> None:
    """Done without a measured phase cannot be."""
    result = judge(build.record(phases=()))
    assert ("failed", ["the record holds no measured phase"]) == (
        result.status,
        [finding.what for finding in result.findings],
    )


def test_a_failed_path_check_says_where_the_packets_ended() -> None:
    """The ledger of the path phase is the finding's value."""
    record = build.record(
        8,
        0,
        phase="path",
        moves={"right": {"snmp.Udp.NoPorts": 6}},
        status="failed",
        error=RecordedError("PathError", "nothing arrived"),
    )
    ledger = path_ledger(record)
    assert ledger is not None
    assert 8 == ledger.intended_packets
    assert [
        "failed: nothing arrived",
        (
            "path: path check: 0 of 8 packets arrived (udp_no_port 6, unaccounted +2); "
            "see docs/ledger.md for what helps at each stage"
        ),
    ] == [str(finding) for finding in judge(record).findings]


def test_no_part_of_a_path_finding_is_empty(golden: Golden) -> None:
    """Stages that only may have lost packets are named, and a loss that none explains is said."""
    for entries in (
        (),
        (LedgerEntry("udp_rcvbuf", 0, "x", at_most=15),),
        (LedgerEntry("udp_rcvbuf", 3, "x", at_most=15),),
        (
            LedgerEntry("link", None, UNOBSERVED, at_most=15),
            LedgerEntry("udp_rcvbuf", 0, "x", at_most=15),
        ),
    ):
        golden.check(str(path_losses("invalid", 85, 100, Ledger(100, 85, entries, 0))))
    assert "here: nothing" == Finding("note", "nothing", "here", "").brief
    assert "here: nothing" == str(Problem("nothing", "here", ""))


def test_judging_is_pure() -> None:
    """The same record gives the same result."""
    record = build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 3}}, 3)
    assert judge(record) == judge(record)


def test_a_stream_has_rates_and_no_ledger() -> None:
    """Nothing of it can be lost on the way; what is read is what was written, and may be cut."""
    of = build.trial(traffic=Traffic(protocol="tcp"))
    result = judge(build.record(1000, 990, of=of, moves={"right": {"snmp.Udp.InDatagrams": 5}}))
    assert (True, None, None, None, None) == (
        result.valid,
        result.ledger,
        result.lost_packets,
        result.loss_ratio,
        result.skbs_per_packet,
    )
    assert (1000, 990, 1000) == (
        result.sent_packets,
        result.received_packets,
        result.intended_packets,
    )
    assert result.delivered_pps is not None


def test_merged_datagrams_are_fewer_skbs() -> None:
    """Messages over datagrams, as the receivers read them; without a receiver it is unknown."""
    counts = build.receiver_counts(1000, read_messages=20)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", counts),
    )
    assert 0.02 == judge(build.record(1000, workers=workers)).skbs_per_packet
    assert judge(build.record(1000, workers=workers[:1])).skbs_per_packet is None


def test_what_a_worker_cost_is_reported_as_far_as_it_is_known() -> None:
    """Its own time, switches and calls; cycles are absent where nobody counts them."""
    counts = build.receiver_counts(1000, user_ns=5, system_ns=9, voluntary_switches=0)
    workers = (build.worker("receiver", counts),)
    (worker,) = judge(build.record(1000, workers=workers)).workers
    cost = {"user_ns": 5, "system_ns": 9, "voluntary_switches": 0, "receive_calls": 1000}
    assert cost == worker.cost
