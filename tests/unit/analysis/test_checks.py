"""Validity checks: for each a record that makes it fire, and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from analysis import build
from udpbench.analysis import checks, delay, surroundings, usage
from udpbench.analysis.readings import readings
from udpbench.model import (
    Change,
    ClockReading,
    Finding,
    Flows,
    Histogram,
    PhaseName,
    Setting,
    Traffic,
    TrialRecord,
)


def findings(check: checks.Check, record: TrialRecord) -> list[Finding]:
    """Return what one check says of a record."""
    measured = readings(record)
    assert measured is not None
    return list(check(measured))


def with_counts(sender: Mapping[str, int] = {}, receiver: Mapping[str, int] = {}) -> TrialRecord:
    """Return a good record with some counts of its workers changed."""
    workers = (
        build.worker("sender", build.sender_counts(1000, **sender)),
        build.worker("receiver", build.receiver_counts(1000, **receiver)),
    )
    return build.record(workers=workers)


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


def cut_off(phase: PhaseName, name: str) -> TrialRecord:
    """Return a record in which a counter of the receiver moved in an earlier phase."""
    earlier = build.record(phase=phase, moves={"right": {name: 1}}).phases[0]
    measured = build.record().phases[0]
    still = {name: earlier.after["right"].counters[name]}
    before, after = (
        {**one, "right": replace(one["right"], counters={**one["right"].counters, **still})}
        for one in (measured.before, measured.after)
    )
    return build.record(phases=(earlier, replace(measured, before=before, after=after)))


def stolen(share_ns: int) -> TrialRecord:
    """Return a record of 2 × 2 s of CPU time of which some was taken."""
    moves = {"cpu.0.idle_ns": 4 * 10**9 - share_ns, "cpu.0.steal_ns": share_ns}
    return build.record(moves={"machine": moves})


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
    facts = {name: replace(one, capabilities=lacking) for name, one in good.facts.items()}
    return replace(good, facts=facts)


def backwards(name: str) -> TrialRecord:
    """Return a good record in which one counter of the receiver shrank."""
    return build.record(moves={"right": {"snmp.Udp.InDatagrams": 1000, name: -1}})


def ring_backwards(driver: str) -> TrialRecord:
    """Return a good record in which the counter of a virtual NIC's ring shrank."""
    record = backwards("ethtool.receive0.rx0_drops")
    right = replace(record.facts["right"], driver=driver)
    return replace(record, facts={**record.facts, "right": right})


HEADER_ERRORS = ("snmp.Ip.InReceives", "snmp.Ip.InHdrErrors")


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


FULL_BUFFER = {"snmp.Udp.RcvbufErrors": 60, "snmp.Udp.InErrors": 60}

ON_TWO_QUEUES = build.trial(traffic=Traffic(flows=Flows(queues=2)))
TO_QUEUE_0 = Change(
    Setting("ntuple", "receive0/udp4/4321", 0, path="settings.receiver.ethtool.ntuple"), None, 0
)

FIRES: list[tuple[checks.Check, TrialRecord, TrialRecord, str, str]] = [
    (
        checks.sender_bound,
        build.record(990, of=build.paced(1000)),
        build.record(995, of=build.paced(1000)),
        "invalid",
        (
            "sender: sender-bound: the senders offered less than they were asked for (99.00 %); at "
            "least 99.50 % of the intended load; lower traffic.rate, or give the sender more workers "
            "or CPUs"
        ),
    ),
    (
        checks.never_pressed,
        build.record(1000),
        build.record(1000, 999),
        "note",
        (
            "receiver: lower bound: nothing was lost, so the receiver was never pressed; send with "
            "more workers, or read the rate as at least this much"
        ),
    ),
    (
        surroundings.few_reads,
        with_counts(receiver={"receive_calls": 103, "empty_calls": 100}),
        with_counts(receiver={"receive_calls": 120, "empty_calls": 100}),
        "warning",
        (
            "receiver: the delivered rate is of a moment: whole batches lie at its first and its "
            "last read (1000 packets in 3 reads); at least 20 reads; read counts and loss instead, "
            "send more packets, or lower receive.batch"
        ),
    ),
    (
        surroundings.few_reads,
        with_counts(receiver={"receive_calls": 1}),
        with_counts(receiver={"receive_calls": 1, "received_packets": 1}),
        "warning",
        (
            "receiver: no delivered rate: everything was read at once (1000 packets in 1 read); at "
            "least 20 reads; read counts and loss instead, send more packets, or lower receive.batch"
        ),
    ),
    (
        checks.placement_lost,
        with_worker(cpus_seen=(0, 1)),
        with_worker(cpu=None, cpus_seen=(0, 1)),
        "invalid",
        (
            "right.receiver0: placement lost: the worker ran elsewhere (CPU 0, 1); CPU 0 alone; see "
            "whether something else changes affinities on that host"
        ),
    ),
    (
        checks.foreign_traffic,
        with_counts(receiver={"foreign_packets": 80}),
        with_counts(),
        "invalid",
        (
            "right.receiver0: foreign traffic: datagrams that this phase did not send reached the "
            "port (80 packets); none; find who else sends there, or use another port"
        ),
    ),
    (
        checks.odd_packets,
        with_counts(receiver={"duplicate_packets": 1}),
        with_counts(),
        "note",
        "right.receiver0: datagrams arrived more than once; each is counted once (1 packets); none",
    ),
    (
        checks.odd_packets,
        with_counts(receiver={"ancient_packets": 2}),
        with_counts(),
        "warning",
        "right.receiver0: datagrams so late that late or duplicate can't be told (2 packets); none",
    ),
    (
        checks.odd_packets,
        with_counts(receiver={"corrupt_packets": 3}),
        with_counts(),
        "warning",
        "right.receiver0: datagrams of ours with another size than was sent (3 packets); none",
    ),
    (
        checks.worker_errors,
        with_counts(sender={"other_errors": 4, "last_errno": 22}),
        with_counts(),
        "warning",
        "left.sender0: system calls failed (4 times, last errno 22); never",
    ),
    (
        checks.worker_errors,
        with_counts(receiver={"errors": 1, "last_errno": 111}),
        with_counts(),
        "warning",
        "right.receiver0: system calls failed (1 times, last errno 111); never",
    ),
    (
        checks.stalled,
        with_counts(sender={"stalled_packets": 9}),
        with_counts(),
        "note",
        (
            "left.sender0: the sender stood still for longer than send.bucket; the ledger has it as "
            "unsent (9 packets)"
        ),
    ),
    (
        checks.stalled,
        with_count(1000, attempted_packets=1000, stalled_packets=900),
        with_count(1000, attempted_packets=1000),
        "note",
        (
            "left.sender0: the sender stood still for longer than send.bucket; what was due went "
            "later, as count asks for it (900 packets)"
        ),
    ),
    (
        checks.stalled,
        with_count(1000, attempted_packets=600, stalled_packets=900),
        with_count(1000, attempted_packets=600),
        "note",
        (
            "left.sender0: the sender stood still for longer than send.bucket; what was due went "
            "later, or is unsent in the ledger (900 packets, 400 of them unsent)"
        ),
    ),
    (
        checks.stalled,
        with_count(1000, attempted_packets=600, stalled_packets=400),
        with_count(1000, attempted_packets=600),
        "note",
        (
            "left.sender0: the sender stood still for longer than send.bucket; the ledger has it as "
            "unsent (400 packets)"
        ),
    ),
    (
        checks.counter_backwards,
        backwards("snmp.Udp.NoPorts"),
        backwards("snmp.Udp.IgnoredMulti"),
        "invalid",
        (
            "right: a counter of stage udp_no_port went backwards (snmp.Udp.NoPorts: 1000 > 999); "
            "counters only grow; see whether the host rebooted, or its driver was reset"
        ),
    ),
    (
        checks.counter_backwards,
        ring_backwards("virtio_net"),
        ring_backwards("veth"),
        "invalid",
        (
            "right: a counter of stage rx_ring went backwards (ethtool.receive0.rx0_drops: 1000 > "
            "999); counters only grow; see whether the host rebooted, or its driver was reset"
        ),
    ),
    (
        checks.counter_backwards,
        backwards("ethtool.receive0.rx_xdp_drop"),
        backwards("ethtool.receive0.rx_xdp_packets"),
        "invalid",
        (
            "right: a counter of stage rx_xdp went backwards (ethtool.receive0.rx_xdp_drop: 1000 > "
            "999); counters only grow; see whether the host rebooted, or its driver was reset"
        ),
    ),
    (
        checks.unaccounted,
        build.record(1000, 999),
        build.record(1000),
        "invalid",
        (
            "ledger: unaccounted: the ledger does not close (+1 packets); within ±0; see the ledger's "
            "sources; foreign traffic or a place without a counter does this"
        ),
    ),
    (
        checks.unaccounted,
        build.record(5_000_000, 5_000_051, built_in_lab=False),
        build.record(5_000_000, built_in_lab=False),
        "invalid",
        (
            "ledger: unaccounted: the ledger does not close (-51 packets); within ±50; see the "
            "ledger's sources; foreign traffic or a place without a counter does this"
        ),
    ),
    (
        checks.unaccounted,
        build.record(1000, 990, built_in_lab=False),
        build.record(1000, built_in_lab=False),
        "note",
        (
            "ledger: unaccounted: the ledger does not close (+10 packets); within ±10; see the "
            "ledger's sources; foreign traffic or a place without a counter does this"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"right": {**FULL_BUFFER, "socket.77.drops": 50}}, 60),
        build.lossy(1000, {"right": {**FULL_BUFFER, "socket.77.drops": 60}}, 60),
        "warning",
        (
            "udp_rcvbuf: counters disagree (Δ socket.*.drops = 50); 60; another socket of the "
            "namespace drops"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"right": {"link.receive0.rx_dropped": 7}}, 0),
        build.lossy(1000, {"right": {"socket.77.drops": 2, "snmp.Udp.InCsumErrors": 2}}, 2),
        "warning",
        (
            "rx_backlog: counters disagree (Δ link.receive0.rx_dropped = 7); 0; the device drops for "
            "another reason"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"right": {"firewall.ipv4/input/drop/udp/4321": 7}}, 0),
        build.lossy(
            1000,
            {"right": {"firewall.ipv4/input/drop/udp/4321": 7, "snmp.Ip.InReceives": 7}},
            7,
        ),
        "warning",
        (
            "rx_netfilter: counters disagree (Δ firewall.*/drop/* = 7); 0; other traffic of the host "
            "meets the rule"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"left": {"firewall.ipv4/output/drop/udp/4321": 7}}, 0),
        build.lossy(1000, {}, 0),
        "warning",
        (
            "tx_netfilter: counters disagree (Δ firewall.*/output/drop/* = 7); 0; other traffic of "
            "the host meets the rule; or it drops by chance or a limit, and a packet that a call "
            "stopped at was offered again: send.call: send tells of each"
        ),
    ),
    (
        checks.counters_disagree,
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 1003}}),
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 1003}}, built_in_lab=False),
        "warning",
        (
            "receiver: counters disagree (read 1000, InDatagrams 1003); equal; another socket of the "
            "namespace receives, or a worker miscounts"
        ),
    ),
    (
        checks.counters_disagree,
        build.record(1000, moves={"right": {"snmp.Udp.InDatagrams": 999}}, built_in_lab=False),
        build.record(1000, built_in_lab=False),
        "warning",
        (
            "receiver: counters disagree (read 1000, InDatagrams 999); equal; another socket of the "
            "namespace receives, or a worker miscounts"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 7}}, 5),
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 5}}, 5),
        "warning",
        (
            "udp_no_port: counters disagree (the kernel says it dropped 7 skbs for NO_SOCKET); at most "
            "5 packets; other traffic of the namespace is dropped, too, or a counter misses this place"
        ),
    ),
    (
        checks.counters_disagree,
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5, "reason.NO_SOCKET": 0}}, 5),
        build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 5}}, 5),
        "warning",
        (
            "udp_no_port: counters disagree (the kernel says it dropped 0 skbs for NO_SOCKET); 5 "
            "packets; other traffic of the namespace is dropped, too, or a counter misses this place"
        ),
    ),
    (
        surroundings.path_lossy,
        lossy_path(5),
        lossy_path(5, "explained"),
        "warning",
        (
            "path: path check: of 8 packets 5 arrived (rx_ip 3); all "
            "of them: they are few, and nothing else was sent; see docs/ledger.md for what helps at "
            "that stage"
        ),
    ),
    (
        surroundings.skb_generator,
        gso(20),
        gso(1000),
        "note",
        (
            "sender: generator of skbs: messages crossed the link whole, and nothing was segmented "
            "(50 packets in a skb); a card sends and receives packets one by one; set "
            "ethtool.features: {tx-udp-segmentation: false} on the sender to send packets"
        ),
    ),
    (
        surroundings.idle_readers,
        readers(600, 0, 400),
        readers(600, 0, 400, sockets="shared"),
        "warning",
        (
            "right.receiver1: idle sockets: no flow was steered to them (1 of 3 workers read nothing); "
            "every worker reads; send from more ports, or use sockets: reuseport-cpu; a hash spreads few "
            "unevenly"
        ),
    ),
    (
        surroundings.idle_queues,
        queues(1000, 0),
        queues(1000, 0, flows=1),
        "warning",
        (
            "right: idle RX queues: no flow was hashed to them (queue 1 of receive0); 2 flows for 2 "
            "queues; traffic.flows.queues finds flows for every queue; rx-flow-hash may leave ports "
            "out"
        ),
    ),
    (
        surroundings.environment_changed,
        build.record(
            environment_after={"right": {"governor": "powersave", "xdp": "none", "tcx": "none"}}
        ),
        build.record(environment_after={"right": build.record().facts["right"].environment}),
        "invalid",
        (
            "right: environment changed under way (governor: performance → powersave); as it was; find "
            "out what configures that host meanwhile, and repeat"
        ),
    ),
    (
        surroundings.clock_stepped,
        moved_clock(3_100_000),
        moved_clock(2_900_000),
        "invalid",
        (
            "left: clock stepped: starts, series and rates of this host are not comparable (by 3.1 "
            "ms); at most 3.0 ms; see whether the machine was suspended or migrated, and repeat"
        ),
    ),
    (
        surroundings.samples_missed,
        sampled(100, 600, 100),
        sampled(100, 500, 100),
        "warning",
        (
            "right.receiver0: samples missed: its series has a hole (of 600 ms); at most 500 ms; "
            "counts and mean rates hold; leave the agent a CPU that no worker uses"
        ),
    ),
    (
        surroundings.samples_missed,
        sampled(2000, 6000, minutes=120),
        sampled(2100, 4100, minutes=120),
        "warning",
        (
            "right.receiver0: samples missed: its series has a hole (of 6000 ms); at most 5000 ms; "
            "counts and mean rates hold; leave the agent a CPU that no worker uses"
        ),
    ),
    (
        checks.buffer_capped,
        with_worker(buffer_bytes=425984),
        with_worker(buffer_bytes=8 * 2**20),
        "warning",
        (
            "right.receiver0: the socket buffer is smaller than asked for (212992 bytes); asked for "
            "4194304 bytes; raise net.core.rmem_max, or set force_buffer and run with CAP_NET_ADMIN"
        ),
    ),
    (
        checks.carrier_lost,
        cut_off("warmup", "link.receive0.carrier_downs"),
        cut_off("warmup", "link.receive0.rx_errors"),
        "invalid",
        (
            "right: the link went down under way (receive0 lost its carrier 1 times); never; see the "
            "cable, the switch and the kernel's log; then run again"
        ),
    ),
    (
        checks.queues_moved,
        build.queued({0: 4, 1: 4}, {0: 900, 1: 0}, trial=ON_TWO_QUEUES),
        build.queued({0: 4, 1: 4}, {0: 500, 1: 400}, trial=ON_TWO_QUEUES),
        "invalid",
        (
            "right: placement lost: packets came by other RX queues than in the path phase (RX queue "
            "0); 0, 1; see whether something else changes queues, hashing or rules of that interface"
        ),
    ),
    (
        checks.steering_ignored,
        build.queued({0: 4}, {0: 900, 1: 50}, changes={"right": (TO_QUEUE_0,)}),
        build.queued({0: 4}, {0: 900, 1: 1}, changes={"right": (TO_QUEUE_0,)}),
        "invalid",
        (
            "right: the card does not act on settings.receiver.ethtool.ntuple (50 of 950 packets came "
            "by other RX queues); RX queue 0; see the driver's documentation, or take another way to "
            "choose queues"
        ),
    ),
    (
        checks.steal,
        stolen(44 * 10**6),
        stolen(40 * 10**6),
        "warning",
        (
            "machine: the hypervisor took CPU time from this machine (1.10 %); at most 1.00 %; repeat "
            "when the machine is quieter; rates are lower bounds until then"
        ),
    ),
    (
        checks.control_shares_path,
        reached_by("receive0"),
        reached_by("eth0"),
        "warning",
        (
            "right: control traffic shares the path under test (SSH by receive0); an interface of its "
            "own; reach the host by another address: HostName in ~/.ssh/config"
        ),
    ),
    (
        checks.degraded,
        without("kernel_threads", "real_time"),
        build.record(1000),
        "warning",
        (
            "lab: the lab is degraded: its user may not do everything (NAPI's threads cannot be "
            "pinned, so RPS or the sender does the receive work; no priority above the normal one); "
            "run as root for what the machine can do"
        ),
    ),
    (
        checks.clocks_apart,
        clocks(left_ns=6_500_000, right_ns=6 * 10**6),
        clocks(left_ns=4_000_000, right_ns=6 * 10**6),
        "warning",
        (
            "hosts: clocks: starts and series of the hosts may be shifted against each other (by up to "
            "12.5 ms); at most 10 ms, a tenth of the sampling interval; run the controller nearer to "
            "the hosts; counts and rates are not affected"
        ),
    ),
    (
        delay.delay_hidden,
        delayed(bound_ns=10_000),
        delayed(bound_ns=0),
        "note",
        (
            "hosts: one-way delay is not shown: the hosts' clocks are not known well enough (wrong by "
            "up to 20.0 us); a 10th of the median delay, which seems to be 4.1 us; set traffic.echo "
            "for round trips, which need one clock"
        ),
    ),
    (
        delay.echoes_lost,
        with_counts(sender={"echo_packets": 9}, receiver={"echoed_packets": 10}),
        with_counts(sender={"echo_packets": 10}, receiver={"echoed_packets": 10}),
        "warning",
        (
            "sender: echoes were lost, or too late: round trips leave out those, which may be the "
            "longest (9 of 10 came back); all of them; echo fewer headers: raise traffic.echo"
        ),
    ),
    (
        usage.log_errors,
        with_counts(receiver={"log_errors": 2, "log_last_errno": 28}),
        with_counts(receiver={"log_errors": 0, "log_last_errno": 0}),
        "warning",
        (
            "right.receiver0: the log could not be written; what was lost is stage app_log (2 times, "
            "errno 28); never; see to the disk of receive.log.path"
        ),
    ),
]


@pytest.mark.parametrize(("check", "bad", "good", "severity", "text"), FIRES)
def test_a_check_fires_when_it_must_and_only_then(
    check: checks.Check, bad: TrialRecord, good: TrialRecord, severity: str, text: str
) -> None:
    """The finding says what, where, value, limit and next step; the sound record has none."""
    assert [(severity, text)] == [(one.severity, str(one)) for one in findings(check, bad)]
    assert [] == findings(check, good)


def test_every_check_has_a_record_that_makes_it_fire() -> None:
    """A check without one is no check."""
    tried: set[Callable[..., object]] = {check for check, *_ in FIRES}
    assert set(checks.CHECKS) == tried


def test_an_unlimited_sender_is_never_sender_bound() -> None:
    """Without a rate there is nothing to fall short of."""
    counts = build.sender_counts(10, attempted_packets=1000, econnrefused=990)
    workers = (build.worker("sender", counts), build.worker("receiver", build.receiver_counts(10)))
    assert [] == findings(checks.sender_bound, build.record(10, workers=workers))


def test_whoever_expects_unsent_packets_is_not_sender_bound() -> None:
    """An expectation that names them says that they are meant."""
    short = build.record(990, of=build.paced(1000))
    assert [] != findings(checks.sender_bound, short)
    expected = replace(short, trial=replace(short.trial, expects_unsent=True))
    assert [] == findings(checks.sender_bound, expected)


def test_nothing_sent_is_no_lower_bound() -> None:
    """Zero of zero packets says nothing of a receiver."""
    assert [] == findings(checks.never_pressed, build.record(0))


def test_a_paced_trial_without_loss_is_no_lower_bound() -> None:
    """It was asked for that much and delivered it."""
    assert [] == findings(checks.never_pressed, build.record(1000, of=build.paced(1000)))


def test_a_sound_record_has_the_one_note_that_it_deserves() -> None:
    """All checks together find nothing else in a trial without loss."""
    measured = readings(build.record())
    assert measured is not None
    assert ["note"] == [finding.severity for finding in checks.check(measured)]


def test_a_senders_capped_buffer_names_its_own_limit() -> None:
    """wmem_max, not rmem_max, bounds SO_SNDBUF."""
    of = build.trial(send=build.Send(buffer_bytes=2**20))
    workers = (
        build.worker("sender", build.sender_counts(1), buffer_bytes=2**20),
        build.worker("receiver", build.receiver_counts(1)),
    )
    (finding,) = findings(checks.buffer_capped, build.record(1, of=of, workers=workers))
    assert "net.core.wmem_max" in finding.next_step


def test_without_a_second_counter_nothing_can_disagree() -> None:
    """A host that lacks the corroborating counters has no such finding."""
    record = build.record()
    phase = record.phases[0]
    bare = {host: replace(snapshot, counters={}) for host, snapshot in phase.before.items()}
    record = replace(record, phases=(replace(phase, before=bare),))
    assert [] == findings(checks.counters_disagree, record)
