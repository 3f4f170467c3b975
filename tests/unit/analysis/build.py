"""Records as a test wants them: a good trial in the built-in lab, and what differs from it.

Not a test. Hosts are ``left`` (sends, CPU 1), ``right`` (receives, CPU 0) and ``machine``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from udpbench.model.experiment import (
    Expectation,
    Experiment,
    Needs,
    Receive,
    Send,
    Side,
    Traffic,
    Trial,
)
from udpbench.model.host import Facts
from udpbench.model.limits import SECOND_NS, PhaseName, Role
from udpbench.model.record import (
    Phase,
    Process,
    RecordedError,
    Sample,
    Snapshot,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.units import Rate

START_NS = 5 * SECOND_NS
BASE = 1000
"""What every counter reads before the phase."""
COUNTERS = {
    "left": (
        *("link.send0.tx_dropped", "link.send0.tx_packets", "qdisc.send0.drops"),
        *("xfrm.XfrmOutPolBlock", "xfrm.XfrmOutNoStates"),
    ),
    "right": (
        "link.receive0.rx_dropped",
        "link.receive0.rx_packets",
        "ethtool.receive0.rx_queue_0_xdp_packets",
        "link.receive0.rx_otherhost_dropped",
        "ethtool.receive0.rx_queue_0_xdp_drops",
        "snmp.Ip.InReceives",
        "snmp.Ip.InDelivers",
        "snmp.Ip.InHdrErrors",
        "snmp.Ip.InAddrErrors",
        "netstat.IpExt.InNoECTPkts",
        "netstat.TcpExt.IPReversePathFilter",
        "snmp.Udp.InDatagrams",
        "snmp.Udp.InErrors",
        "snmp.Udp.NoPorts",
        "snmp.Udp.InCsumErrors",
        "snmp.Udp.RcvbufErrors",
        "snmp.Udp.MemErrors",
        "socket.77.drops",
        *("rules.prerouting.drops", "rules.input.drops"),
        *("xfrm.XfrmInPolBlock", "xfrm.XfrmInNoPols", "xfrm.XfrmInTmplMismatch"),
    ),
    "machine": (
        "softnet.cpu0.dropped",
        "softnet.cpu1.dropped",
        "rt_cache.in_martian_src",
        *(
            f"cpu.{cpu}.{time}_ns"
            for cpu in (0, 1)
            for time in ("user", "system", "softirq", "idle", "steal")
        ),
    ),
}

MS = 10**6
READER = Process(20, "python", 500 * MS, "worker")
NAPI = Process(30, "napi/receive0-1", 300 * MS, "interface", (0,))
LOAD_MS = 800
"""What the reader and the NAPI thread need of CPU 0 in the two seconds of a record."""

Moves = Mapping[str, int]


def trial(point: str = "", repetition: int = 1, **changes: Any) -> Trial:
    """Return a trial of one second at an unlimited rate."""
    plain = Trial(
        experiment="example",
        question="Does it arrive?",
        point=point,
        variant=None,
        values={},
        repetition=repetition,
        traffic=Traffic(),
        send=Send(),
        receive=Receive(),
        settings={},
        needs=Needs(),
        duration_ns=SECOND_NS,
        warmup_ns=0,
    )
    return replace(plain, **changes)


def paced(pps: int = 1000, **changes: Any) -> Trial:
    """Return a trial at a rate."""
    return trial(traffic=Traffic(rate=Rate(packets_per_s=pps)), **changes)


def facts(host: str, interface: str, address: str, **changes: Any) -> Facts:
    """Return a host of the built-in lab."""
    plain = Facts(
        host=host,
        hostname="bench",
        kernel="6.18.0",
        boot_id="b",
        python="3.11.7",
        cpus=(0, 1),
        cpu_model="a CPU",
        numa_nodes={"0": (0, 1)},
        siblings={},
        interface=interface,
        driver="veth",
        mac="02:00:00:00:00:01",
        mtu=1500,
        addresses=(address,),
        rx_queues=1,
        tx_queues=1,
        queue_cpus={"0": (0,)} if interface == "receive0" else {},
        limits={"net.core.rmem_max": 212992},
        capabilities={"net_admin": True},
        environment={"governor": "performance", "xdp": "none", "tcx": "none"},
    )
    return replace(plain, **changes)


def specs(of: Trial, *, closed: bool = False) -> tuple[WorkerSpec, ...]:
    """Return one sender and, but for a closed port, one receiver."""
    flow = FlowSpec(0, "10.0.0.30", 65400, "10.0.0.1", 4321)
    sender = WorkerSpec(
        "sender",
        "left",
        0,
        1,
        (flow,),
        of.traffic,
        send=of.send,
        rate_pps=of.traffic.intended_pps,
        count_packets=of.traffic.count_packets,
    )
    receiver = WorkerSpec(
        "receiver", "right", 0, 0, (flow,), of.traffic, receive=of.receive, bind_ports=(4321,)
    )
    return (sender,) if closed else (sender, receiver)


def worker(role: Role, counts: Mapping[str, int], **changes: Any) -> WorkerStats:
    """Return the statistics of the one worker of a role, pinned and where it belongs."""
    host, cpu = ("left", 1) if role == "sender" else ("right", 0)
    stats = WorkerStats(
        worker=f"{host}.{role}0",
        role=role,
        cpu=cpu,
        counts=dict(counts),
        socket_inodes=(77,) if role == "receiver" else (),
        buffer_bytes=8 * 2**20 if role == "receiver" else None,
        cpus_seen=(cpu,),
    )
    return replace(stats, **changes)


def sender_counts(sent: int, **changes: int) -> dict[str, int]:
    """Return the counts of a sender that had a second."""
    counts = {
        "attempted_packets": sent,
        "sent_packets": sent,
        "sent_bytes": sent * 32,
        "send_calls": -(-sent // 10),
        "first_ns": START_NS,
        "last_ns": START_NS + SECOND_NS,
    }
    return {**counts, **changes}


def receiver_counts(received: int, **changes: int) -> dict[str, int]:
    """Return the counts of a receiver that had a second, beginning 1 ms late."""
    counts = {
        "read_packets": received,
        "received_packets": received,
        "received_bytes": received * 32,
        "receive_calls": received,
        "first_ns": START_NS + 10**6 if received else 0,
        "last_ns": START_NS + 10**6 + SECOND_NS if received else 0,
    }
    return {**counts, **changes}


def snapshots(moves: Mapping[str, Moves]) -> tuple[dict[str, Snapshot], dict[str, Snapshot]]:
    """Return every host before and after; what ``moves`` does not name stood still."""
    before, after = {}, {}
    for host, names in COUNTERS.items():
        moved = dict(moves.get(host, {}))
        if "socket.77.drops" in names and "snmp.Udp.RcvbufErrors" in moved:
            moved.setdefault("socket.77.drops", moved["snmp.Udp.RcvbufErrors"])
        first = dict.fromkeys((*names, *moved), BASE)
        last = {name: value + moved.get(name, 0) for name, value in first.items()}
        before[host] = Snapshot(host, START_NS, first)
        after[host] = Snapshot(host, START_NS + 2 * SECOND_NS, last)
    return before, after


def record(
    sent: int = 1000,
    received: int | None = None,
    *,
    of: Trial | None = None,
    moves: Mapping[str, Moves] | None = None,
    workers: Sequence[WorkerStats] | None = None,
    phase: PhaseName = "measured",
    **changes: Any,
) -> TrialRecord:
    """Return a trial that ran to its end; without ``moves`` its receiver read what it received."""
    received_packets = sent if received is None else received
    of = of if of is not None else trial()
    moved: dict[str, Moves] = {"right": {"snmp.Udp.InDatagrams": received_packets}, **(moves or {})}
    before, after = snapshots(moved)
    if workers is None:
        workers = (
            worker("sender", sender_counts(sent)),
            worker("receiver", receiver_counts(received_packets)),
        )
    closed = all(stats.role == "sender" for stats in workers)
    phase_record = Phase(
        phase, 1, {"left": START_NS, "right": START_NS}, before, after, tuple(workers), {}
    )
    plain = TrialRecord(
        trial=of,
        status="done",
        started_at="2026-11-21T08:00:00+00:00",
        built_in_lab=True,
        facts={
            "left": facts("left", "send0", "10.0.0.30/24"),
            "right": facts("right", "receive0", "10.0.0.1/24"),
        },
        workers=specs(of, closed=closed),
        phases=(phase_record,),
    )
    return replace(plain, **changes)


def queued(path: dict[int, int], measured: dict[int, int], **changes: Any) -> TrialRecord:
    """Return a good record in which the receiver's queues moved so in the two phases."""
    trial_record = record(**changes)
    (phase,) = trial_record.phases
    phases = (_with(phase, "path", path), _with(phase, "measured", measured))
    right = replace(trial_record.facts["right"], driver="virtio_net")
    return replace(trial_record, phases=phases, facts={**trial_record.facts, "right": right})


def _with(phase: Phase, name: Any, moved: dict[int, int]) -> Phase:
    before, after = dict(phase.before), dict(phase.after)
    for snapshots, add in ((before, 0), (after, 1)):
        names = {f"ethtool.receive0.rx_queue_{q}_packets": n * add for q, n in moved.items()}
        own = snapshots["right"]
        snapshots["right"] = replace(own, counters={**own.counters, **names})
    return replace(phase, name=name, before=before, after=after)


def lossy(sent: int, stage_moves: Mapping[str, Moves], lost: int, **changes: Any) -> TrialRecord:
    """Return a trial that lost packets where the moved counters say so."""
    right = {"snmp.Udp.InDatagrams": sent - lost, **stage_moves.get("right", {})}
    return record(sent, sent - lost, moves={**stage_moves, "right": right}, **changes)


def driven(driver: str | None, trial_record: TrialRecord) -> TrialRecord:
    """Return the same trial on a receiver whose interface has another driver."""
    return replace(
        trial_record,
        facts={**trial_record.facts, "right": replace(trial_record.facts["right"], driver=driver)},
    )


def unlogged(packets: int, **changes: Any) -> TrialRecord:
    """Return a trial of 1000 packets, all received, of which a log could not take some."""
    logged = {"logged_packets": 1000 - packets, "log_first_ns": 1, "log_last_ns": 2}
    receiver = receiver_counts(1000, **logged, unlogged_packets=packets, failed_packets=0)
    workers = (worker("sender", sender_counts(1000)), worker("receiver", receiver))
    return record(1000, of=trial(**changes), workers=workers)


def merged(point: str = "") -> TrialRecord:
    """Return a trial of 970 packets in messages of 20 or 50 that lost 3 skbs: 120 to 150 of them.

    It received 840, so that what those three were closes the ledger.
    """
    right = {"snmp.Ip.InReceives": 20, "netstat.IpExt.InNoECTPkts": 970}
    right |= {"snmp.Ip.InDelivers": 20, "snmp.Udp.NoPorts": 3}
    sender = sender_counts(970, sent_messages=20)
    workers = (worker("sender", sender), worker("receiver", receiver_counts(840)))
    moves = {"left": {"link.send0.tx_packets": 20}, "right": right}
    return record(970, 840, of=trial(point, send=Send(gso=50)), workers=workers, moves=moves)


def hog(spent_ms: int, *, pinned: bool = True, **changes: object) -> Process:
    """Return a program that nobody asked for."""
    plain = Process(77, "hog", spent_ms * MS, "other", (0,) if pinned else ())
    return replace(plain, **changes)  # type: ignore[arg-type]


def own(spent_ms: int, pid: int = 10) -> Process:
    """Return a process of the run that may run anywhere."""
    return Process(pid, "udpbench", spent_ms * MS, "run")


def shared(
    busy_ms: int, *processes: Process, seconds: int = 2, steal_ms: int = 0, softirq_ms: int = 0
) -> TrialRecord:
    """Return a record in which CPU 0 was busy for so long, and CPU 1 with its sender alone."""
    elapsed_ms = seconds * 1000
    trial_record = record(
        moves={
            "machine": {
                "cpu.0.idle_ns": (elapsed_ms - busy_ms - steal_ms - softirq_ms) * MS,
                "cpu.0.iowait_ns": 0,
                "cpu.0.softirq_ns": softirq_ms * MS,
                "cpu.0.steal_ns": steal_ms * MS,
                "cpu.1.idle_ns": (elapsed_ms - 100) * MS,
            }
        },
        workers=(
            worker("sender", sender_counts(1000, user_ns=60 * MS, system_ns=40 * MS)),
            worker("receiver", receiver_counts(1000, user_ns=200 * MS, system_ns=300 * MS)),
        ),
    )
    (phase,) = trial_record.phases
    sender = Process(21, "python", 100 * MS, "worker")
    by_host = {"left": (sender,), "right": (READER, NAPI), "machine": processes or (own(0),)}
    after = {
        host: replace(
            snapshot,
            processes=by_host[host],
            clock_ns=phase.before[host].clock_ns + seconds * SECOND_NS,
        )
        for host, snapshot in phase.after.items()
    }
    return replace(trial_record, phases=(replace(phase, after=after),))


def series(
    per_second: Sequence[int], of_worker: str = "right.receiver0", field: str = "received_packets"
) -> tuple[Sample, ...]:
    """Return samples each 100 ms of a worker that counts so many packets in each second."""
    samples, total = [Sample(of_worker, START_NS, {field: 0})], 0
    for second, packets in enumerate(per_second):
        for tick in range(1, 11):
            clock = START_NS + second * SECOND_NS + tick * SECOND_NS // 10
            samples.append(Sample(of_worker, clock, {field: total + packets * tick // 10}))
        total += packets
    return tuple(samples)


def failed(kind: str = "WorkerFailed", message: str = "it died", **changes: Any) -> TrialRecord:
    """Return a trial that failed before its measured phase."""
    error = RecordedError(kind, message, "right")
    status: Literal["failed", "skipped"] = (
        "skipped" if kind in ("skipped", "unavailable") else "failed"
    )
    return record(phases=(), status=status, error=error, **changes)


def side(text: str) -> Side:
    """Return one side of an expectation: a number, or ``metric`` or ``metric[point]``."""
    try:
        return Side(float(text))
    except ValueError:
        name, _, point = text.rstrip("]").partition("[")
        return Side(1.0, name, point or None)


def expectation(left: str, op: Any, right: str) -> Expectation:
    """Return ``left op right``."""
    return Expectation(f"{left} {op} {right}", side(left), op, side(right))


def experiment(*expect: Expectation, points: Sequence[Trial] = (), **changes: Any) -> Experiment:
    """Return an experiment of the given points, by default of one."""
    plain = Experiment(
        name="example",
        path="example.yaml",
        text="question: Does it arrive?\n",
        question="Does it arrive?",
        source=None,
        points=tuple(points) or (trial(),),
        repetitions=1,
        expect=expect,
    )
    return replace(plain, **changes)
