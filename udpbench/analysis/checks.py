"""Validity checks: one function each, from readings to findings; a number that fails is not shown.

A check looks at one trial and says what is wrong in words that name the value, the limit and the
next step. It never repairs a number and never hides one. To add one, add it to CHECKS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from udpbench.analysis import axis, delay, ledger, rates, surroundings, usage
from udpbench.analysis.queues import queues_moved, steering_ignored
from udpbench.analysis.readings import Readings
from udpbench.analysis.stages import STAGES
from udpbench.model import Finding, Role, lost_without
from udpbench.units import show_ratio

OFFERED_SHARE = 0.995
"""An offered load below this share of the intended one measures the sender (RFC 2285 3.5)."""
STEAL_LIMIT = 0.01
"""Share of CPU time that a hypervisor may take before it is worth a word."""
CLOCK_LIMIT_NS = 10 * 10**6
"""By how much two hosts' series may be shifted: a tenth of the 100 ms between two samples."""
UNACCOUNTED_FLOOR_PACKETS = 10
UNACCOUNTED_RATIO = 0.00001

Check = Callable[[Readings], Iterator[Finding]]


def sender_bound(readings: Readings) -> Iterator[Finding]:
    """Find a sender that was asked for a rate or a count, and did not come up to it."""
    intended = ledger.intended_packets(readings)
    if ledger.asked_packets(readings) is None or intended == 0:
        return
    if readings.record.trial.expects_unsent:
        return
    offered = 1 - ledger.unsent_packets(readings) / intended
    if offered < OFFERED_SHARE:
        yield Finding(
            "invalid",
            "sender-bound: the senders offered less than they were asked for",
            "sender",
            show_ratio(offered),
            f"at least {show_ratio(OFFERED_SHARE)} of the intended load",
            "lower traffic.rate, or give the sender more workers or CPUs",
        )


def never_pressed(readings: Readings) -> Iterator[Finding]:
    """Find an unlimited sender without any loss: the receiver could have taken more."""
    sent, received = ledger.sent_packets(readings), ledger.received_packets(readings)
    if readings.record.trial.traffic.rate is None and sent == received > 0:
        yield Finding(
            "note",
            "lower bound: nothing was lost, so the receiver was never pressed",
            "receiver",
            next_step="send with more workers, or read the rate as at least this much",
        )


def placement_lost(readings: Readings) -> Iterator[Finding]:
    """Find a pinned worker that was found on a CPU that is not its own."""
    for stats in readings.phase.stats:
        strangers = [cpu for cpu in stats.cpus_seen if cpu != stats.cpu]
        if stats.cpu is not None and strangers:
            yield Finding(
                "invalid",
                "placement lost: the worker ran elsewhere",
                stats.worker,
                f"CPU {', '.join(map(str, stats.cpus_seen))}",
                f"CPU {stats.cpu} alone",
                "see whether something else changes affinities on that host",
            )


def foreign_traffic(readings: Readings) -> Iterator[Finding]:
    """Find datagrams on the measured port that are not of this phase."""
    for stats in readings.workers("receiver"):
        if stats.counts.get("foreign_packets"):
            yield Finding(
                "invalid",
                "foreign traffic: datagrams that this phase did not send reached the port",
                stats.worker,
                f"{stats.counts['foreign_packets']} packets",
                "none",
                "find who else sends there, or use another port",
            )


def odd_packets(readings: Readings) -> Iterator[Finding]:
    """Find datagrams of ours that arrived twice, too late to tell, or with another size."""
    kinds: tuple[tuple[str, Literal["note", "warning"], str], ...] = (
        ("duplicate_packets", "note", "datagrams arrived more than once; each is counted once"),
        ("ancient_packets", "warning", "datagrams so late that late or duplicate can't be told"),
        ("corrupt_packets", "warning", "datagrams of ours with another size than was sent"),
    )
    for stats in readings.workers("receiver"):
        for field, severity, what in kinds:
            if stats.counts.get(field):
                value = f"{stats.counts[field]} packets"
                yield Finding(severity, what, stats.worker, value, "none")


def worker_errors(readings: Readings) -> Iterator[Finding]:
    """Find system calls that failed in a way that no stage of the ledger stands for."""
    for stats in readings.phase.stats:
        field = "other_errors" if stats.role == "sender" else "errors"
        if stats.counts.get(field):
            yield Finding(
                "warning",
                "system calls failed",
                stats.worker,
                f"{stats.counts[field]} times, last errno {stats.counts.get('last_errno', 0)}",
                "never",
            )


def stalled(readings: Readings) -> Iterator[Finding]:
    """Find a paced sender that stood still for longer than its bucket makes up for.

    One with a count goes on until that is reached, so that what it gave up may go all the same.
    """
    asked = {spec.name: spec.count_packets for spec in readings.record.workers}
    for stats in readings.workers("sender"):
        stalled = unsent = stats.counts.get("stalled_packets", 0)
        count = asked.get(stats.worker)
        if count is not None:
            unsent = min(stalled, max(count - stats.counts["attempted_packets"], 0))
        became, value = "the ledger has it as unsent", f"{stalled} packets"
        if unsent == 0:
            became = "what was due went later, as count asks for it"
        elif unsent < stalled:
            became = "what was due went later, or is unsent in the ledger"
            value = f"{stalled} packets, {unsent} of them unsent"
        if stalled:
            what = f"the sender stood still for longer than send.bucket; {became}"
            yield Finding("note", what, stats.worker, value)


def counter_backwards(readings: Readings) -> Iterator[Finding]:
    """Find a counter that a stage is read from, and that shrank under way."""
    for stage in STAGES:
        hosts = readings.roles.senders if stage.role == "sender" else readings.roles.receivers
        for host in hosts:
            for pattern in (*stage.counters, *stage.by_driver(readings)):
                if host not in readings.deltas:
                    continue
                for text in readings.deltas[host].went_backwards(readings.named(host, pattern)):
                    yield Finding(
                        "invalid",
                        f"a counter of stage {stage.name} went backwards",
                        host,
                        text,
                        "counters only grow",
                        "see whether the host rebooted, or its driver was reset",
                    )


def unaccounted(readings: Readings) -> Iterator[Finding]:
    """Find packets that no stage explains, beyond what this kind of lab tolerates."""
    remainder = ledger.make_ledger(readings).unaccounted
    if not remainder:
        return
    allowed = 0
    if not readings.record.built_in_lab:
        share = int(ledger.sent_packets(readings) * UNACCOUNTED_RATIO)
        allowed = max(UNACCOUNTED_FLOOR_PACKETS, share)
    yield Finding(
        "invalid" if abs(remainder) > allowed else "note",
        "unaccounted: the ledger does not close",
        "ledger",
        f"{remainder:+d} packets",
        f"within ±{allowed}",
        "see the ledger's sources; foreign traffic or a place without a counter does this",
    )


def counters_disagree(readings: Readings) -> Iterator[Finding]:
    """Find other counters of a stage's place that tell another number than the ledger's own."""
    for stage in STAGES:
        for also in stage.also:
            value = also.reads(readings)
            low, high = also.low(readings), also.high(readings)
            if value is None or low is None or high is None or low <= value <= high:
                continue
            name = readings.display(stage.role, also.name)
            limit = f"{low}" if low == high else f"{low} to {high}"
            yield Finding(
                "warning",
                "counters disagree",
                stage.name,
                f"{name} = {value}",
                limit,
                also.next_step,
            )
    yield from _reasons_disagree(readings)
    yield from _reads_disagree(readings)


def _reasons_disagree(readings: Readings) -> Iterator[Finding]:
    """Compare a stage with the kernel's own reasons, which count skbs: no more than packets."""
    for stage in STAGES:
        packets = stage.packets(readings)
        found = readings.total(stage.role, *(f"reason.{name}" for name in stage.reasons))
        if packets is None or found is None:
            continue
        if found > packets.high or (found == 0 and packets.low > 0):
            yield Finding(
                "warning",
                "counters disagree",
                stage.name,
                f"the kernel says it dropped {found} skbs for {' or '.join(stage.reasons)}",
                f"{packets.low} packets" if found == 0 else f"at most {packets.high} packets",
                "other traffic of the namespace is dropped, too, or a counter misses this place",
            )


def _reads_disagree(readings: Readings) -> Iterator[Finding]:
    """Compare what workers read with InDatagrams, which counts at the read, not at the queue.

    Of merged datagrams the kernel counts one for each skb. What a worker with a fault left was read
    to count it.
    """
    counted = readings.counter("receiver", "{udp}InDatagrams")
    field = "read_messages" if readings.record.trial.receive.gro else "read_packets"
    read = readings.count("receiver", field) + readings.count("receiver", "purged_messages")
    if counted is None or not readings.workers("receiver"):
        return
    if counted < read or (readings.record.built_in_lab and counted != read):
        yield Finding(
            "warning",
            "counters disagree",
            "receiver",
            f"read {read}, InDatagrams {counted}",
            "equal",
            "another socket of the namespace receives, or a worker miscounts",
        )


def buffer_capped(readings: Readings) -> Iterator[Finding]:
    """Find a socket buffer that the kernel granted smaller than it was asked for."""
    trial = readings.record.trial
    limit = {"sender": "net.core.wmem_max", "receiver": "net.core.rmem_max"}
    wanted: dict[Role, int | None] = {
        "sender": trial.send.buffer_bytes,
        "receiver": trial.receive.buffer_bytes,
    }
    for stats in readings.phase.stats:
        asked = wanted[stats.role]
        # The kernel doubles the value for its own overhead (net/core/sock.c).
        if asked is not None and stats.buffer_bytes is not None and stats.buffer_bytes < 2 * asked:
            yield Finding(
                "warning",
                "the socket buffer is smaller than asked for",
                stats.worker,
                f"{stats.buffer_bytes // 2} bytes",
                f"asked for {asked} bytes",
                f"raise {limit[stats.role]}, or set force_buffer and run with CAP_NET_ADMIN",
            )


def carrier_lost(readings: Readings) -> Iterator[Finding]:
    """Find an interface whose link went down since the trial's first snapshot."""
    first = readings.record.phases[0].before
    for host, after in readings.phase.after.items():
        before = first[host].counters if host in first else {}
        for name, count in after.counters.items():
            losses = count - before.get(name, count)
            if name.endswith(".carrier_downs") and losses > 0:
                yield Finding(
                    "invalid",
                    "the link went down under way",
                    host,
                    f"{name.split('.')[1]} lost its carrier {losses} times",
                    "never",
                    "see the cable, the switch and the kernel's log; then run again",
                )


def steal(readings: Readings) -> Iterator[Finding]:
    """Find a hypervisor that gave the CPU to someone else."""
    share = rates.steal_ratio(readings)
    if share is not None and share > STEAL_LIMIT:
        yield Finding(
            "warning",
            "the hypervisor took CPU time from this machine",
            "machine",
            show_ratio(share),
            f"at most {show_ratio(STEAL_LIMIT)}",
            "repeat when the machine is quieter; rates are lower bounds until then",
        )


def clocks_apart(readings: Readings) -> Iterator[Finding]:
    """Find hosts whose clocks are not known well enough to lay their series on one axis."""
    bound_ns = axis.bound_ns(readings.phase)
    if bound_ns is not None and bound_ns > CLOCK_LIMIT_NS:
        yield Finding(
            "warning",
            "clocks: starts and series of the hosts may be shifted against each other",
            "hosts",
            f"by up to {bound_ns / 10**6:.1f} ms",
            f"at most {CLOCK_LIMIT_NS // 10**6} ms, a tenth of the sampling interval",
            "run the controller nearer to the hosts; counts and rates are not affected",
        )


def control_shares_path(readings: Readings) -> Iterator[Finding]:
    """Find a host whose SSH connection to the controller uses the interface under test."""
    for name, facts in sorted(readings.record.facts.items()):
        if facts.environment.get("control_interface") == facts.interface:
            yield Finding(
                "warning",
                "control traffic shares the path under test",
                name,
                f"SSH by {facts.interface}",
                "an interface of its own",
                "reach the host by another address: HostName in ~/.ssh/config",
            )


def degraded(readings: Readings) -> Iterator[Finding]:
    """Find a built-in lab whose user may not do everything: it is slower, and means less."""
    if not readings.record.built_in_lab:
        return
    lost = lost_without([facts.capabilities for facts in readings.record.facts.values()])
    if lost:
        yield Finding(
            "warning",
            "the lab is degraded: its user may not do everything",
            "lab",
            "; ".join(lost),
            next_step="run as root for what the machine can do",
        )


CHECKS: tuple[Check, ...] = (
    sender_bound,
    never_pressed,
    placement_lost,
    queues_moved,
    steering_ignored,
    foreign_traffic,
    odd_packets,
    worker_errors,
    stalled,
    counter_backwards,
    unaccounted,
    counters_disagree,
    surroundings.path_lossy,
    surroundings.skb_generator,
    buffer_capped,
    surroundings.few_reads,
    surroundings.idle_readers,
    surroundings.idle_queues,
    surroundings.environment_changed,
    carrier_lost,
    steal,
    control_shares_path,
    surroundings.clock_stepped,
    clocks_apart,
    surroundings.samples_missed,
    degraded,
    delay.delay_hidden,
    delay.echoes_lost,
    usage.log_errors,
)


OF_DATAGRAMS: tuple[Check, ...] = (
    never_pressed,
    foreign_traffic,
    odd_packets,
    counter_backwards,
    unaccounted,
    counters_disagree,
    surroundings.path_lossy,
    surroundings.skb_generator,
)
"""What a stream has not, and what a ledger is made of."""


def check(readings: Readings) -> tuple[Finding, ...]:
    """Return what every check found, in the order of CHECKS."""
    streams = readings.record.trial.traffic.protocol == "tcp"
    return tuple(
        finding
        for one in CHECKS
        if not (streams and one in OF_DATAGRAMS)
        for finding in one(readings)
    )
