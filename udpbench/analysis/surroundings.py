"""Checks of what was around the packets: the path, the clocks, the samples, readers and queues.

As in ``checks``, one function each from readings to findings; none of them repairs a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from udpbench.analysis import spans
from udpbench.analysis.ledger import make_ledger, received_packets, sent_packets
from udpbench.analysis.queues import by_receiver
from udpbench.analysis.readings import Readings
from udpbench.analysis.readings import readings as readings_of
from udpbench.model import Finding, WorkerStats, sampling_ns

GAP_LIMIT_NS = 500 * 10**6
"""Five samples of a phase that is not long: rates within it are straight lines, without a peak."""
FEW_READS = 20
"""A rate is of the time from the first read to the last; of so many, one is 5 % of it."""
DRIFT_PPM = 500
"""What a clock may gain or lose by itself: the kernel slews by no more (adjtimex(2))."""


def path_lossy(readings: Readings) -> Iterator[Finding]:
    """Find packets of the path check that got lost although all were to arrive."""
    path = readings_of(readings.record, "path")
    if path is None or readings.record.trial.path_check != "arrive":
        return
    sent, received = sent_packets(path), received_packets(path)
    if received >= sent or not path.workers("receiver"):
        return
    ledger = make_ledger(path)
    ends = [f"{entry.stage} {entry.packets}" for entry in ledger.entries if entry.packets]
    if ledger.unaccounted:
        ends.append(f"unaccounted {ledger.unaccounted:+d}")
    yield Finding(
        "warning",
        f"path check: of {sent} packets {received} arrived",
        "path",
        ", ".join(ends),
        "all of them: they are few, and nothing else was sent",
        "see docs/ledger.md for what helps at that stage",
    )


def few_reads(readings: Readings) -> Iterator[Finding]:
    """Find a delivered rate of so few reads that a batch more or less would be another rate."""
    received = readings.worked("receiver", "received_packets")
    reads = readings.worked("receiver", "receive_calls")
    reads -= readings.worked("receiver", "empty_calls")
    if received < 2 or not 0 < reads < FEW_READS:
        return
    what = "the delivered rate is of a moment: whole batches lie at its first and its last read"
    if reads == 1:
        what = "no delivered rate: everything was read at once"
    yield Finding(
        "warning",
        what,
        "receiver",
        f"{received} packets in {reads} read{'s' if reads > 1 else ''}",
        f"at least {FEW_READS} reads",
        "read counts and loss instead, send more packets, or lower receive.batch",
    )


def environment_changed(readings: Readings) -> Iterator[Finding]:
    """Find a host that was another one after the trial than before it."""
    for host, after in readings.record.environment_after.items():
        facts = readings.record.facts.get(host)
        before = facts.environment if facts is not None else after
        names = sorted(set(before) | set(after))
        changed = [name for name in names if before.get(name) != after.get(name)]
        for name in changed:
            yield Finding(
                "invalid",
                "environment changed under way",
                host,
                f"{name}: {before.get(name, 'unknown')} → {after.get(name, 'unknown')}",
                "as it was",
                "find out what configures that host meanwhile, and repeat",
            )


def clock_stepped(readings: Readings) -> Iterator[Finding]:
    """Find a host whose clock moved against the controller's by more than clocks drift."""
    for host, known in readings.phase.clocks.items():
        if len(known) < 2:
            continue
        first, last = known[0], known[-1]
        moved_ns = abs(last.offset_ns - first.offset_ns)
        drift_ns = (last.at_ns - first.at_ns) * DRIFT_PPM // 10**6
        allowed_ns = first.bound_ns + last.bound_ns + drift_ns
        if moved_ns > allowed_ns:
            yield Finding(
                "invalid",
                "clock stepped: starts, series and rates of this host are not comparable",
                host,
                f"by {moved_ns / 10**6:.1f} ms",
                f"at most {allowed_ns / 10**6:.1f} ms",
                "see whether the machine was suspended or migrated, and repeat",
            )


def samples_missed(readings: Readings) -> Iterator[Finding]:
    """Find a series with holes: its host had no time to look at its workers."""
    clocks: dict[str, list[int]] = {}
    for sample in readings.record.series:
        clocks.setdefault(sample.worker, []).append(sample.clock_ns)
    holes = {
        worker: max((b - a for a, b in pairwise(times)), default=0)
        for worker, times in clocks.items()
    }
    # A long phase is sampled less often, on purpose.
    limit_ns = max(GAP_LIMIT_NS, sampling_ns(readings.record.trial.duration_ns) * 5 // 2)
    late = {worker: hole for worker, hole in holes.items() if hole > limit_ns}
    for worker, hole_ns in late.items():
        yield Finding(
            "warning",
            "samples missed: its series has a hole",
            worker,
            f"of {hole_ns / 10**6:.0f} ms",
            f"at most {limit_ns // 10**6} ms",
            "counts and mean rates hold; leave the agent a CPU that no worker uses",
        )


def idle_readers(readings: Readings) -> Iterator[Finding]:
    """Find sockets of a group that got nothing while others did: flows hashed past them."""
    if readings.record.trial.receive.sockets == "shared":
        return
    by_host: dict[str, list[WorkerStats]] = {}
    for stats in readings.workers("receiver"):
        by_host.setdefault(stats.worker.rpartition(".")[0], []).append(stats)
    for workers in by_host.values():
        idle = [one.worker for one in workers if not one.counts.get("read_packets")]
        if idle and len(idle) < len(workers):
            yield Finding(
                "warning",
                "idle sockets: no flow was steered to them",
                ", ".join(idle),
                f"{len(idle)} of {len(workers)} workers read nothing",
                "every worker reads",
                "send from more ports, or use sockets: reuseport-cpu; a hash spreads few unevenly",
            )


def idle_queues(readings: Readings) -> Iterator[Finding]:
    """Find RX queues that got no packet while others did, with flows enough for all."""
    flows = {flow.flow for spec in readings.record.workers for flow in spec.flows}
    for host, counts in by_receiver(readings).items():
        idle = [queue for queue, packets in sorted(counts.items()) if packets == 0]
        if not any(counts.values()) or len(flows) < len(counts) or not idle:
            continue
        yield Finding(
            "warning",
            "idle RX queues: no flow was hashed to them",
            host,
            f"queue {', '.join(map(str, idle))} of {readings.record.facts[host].interface}",
            f"{len(flows)} flows for {len(counts)} queues",
            "traffic.flows.queues finds flows for every queue; rx-flow-hash may leave ports out",
        )


def skb_generator(readings: Readings) -> Iterator[Finding]:
    """Find GSO messages that crossed the link whole: their rate is one of skbs, not of packets."""
    each = spans.sent_skb(readings)
    if each == spans.ONE or not readings.all_veth:
        return
    yield Finding(
        "note",
        "generator of skbs: messages crossed the link whole, and nothing was segmented",
        "sender",
        f"{each.most} packets in a skb",
        "a card sends and receives packets one by one",
        "set ethtool.features: {tx-udp-segmentation: false} on the sender to send packets",
    )
