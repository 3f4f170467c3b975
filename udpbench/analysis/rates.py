"""Rates, their spread and CPU cost: quotients of counts and times, each None if undefined.

A rate is a difference of two counts over the time between their stamps, never over the intended
duration. What came before the first stamp took no time of it, and the time that a reader waits
behind the last packet brought none. Owns no count and no verdict.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import NamedTuple

from udpbench.analysis.ledger.intended_load import arrived
from udpbench.analysis.readings import End, Readings, known_sum
from udpbench.model.limits import DAY_NS, SECOND_NS, sampling_ns
from udpbench.model.record import PACKETS_FIELD, Sample, TrialRecord, WorkerStats

FIRST_FIELD = {
    "sent_packets": "first_packets",
    "received_packets": "first_packets",
    "received_bytes": "first_bytes",
}
"""Count → the part of it that came with ``first_ns``; older records do not have it."""
BUSY_TIMES = ("user", "nice", "system", "irq", "softirq", "steal")
"""Columns of /proc/stat that are work; guest time is part of user."""
IDLE_TIMES = ("idle", "iowait")
DRAINED_SHARE = 0.5
"""Needed part of the time from first to last packet between two moments at which a reader had
left nothing; below it the reader was mostly busy, and its rate is how fast it reads."""
SLOWEST_SAMPLING_NS = SECOND_NS // 2
"""For rates of whole seconds: with a sample each half second their spread is up to 13 % too small,
because a second may begin between two samples."""
SETTLE_NS = 10 * SECOND_NS
SMALL = 2**62
FEW_TIMES = 500
"""Times of a worker's counts; more are interpolated together, fifty times as fast."""
MOST_TOTALS = 100 * 10**6
"""Most counts of all workers by bin; they take some ten seconds."""
"""Time after a load, for records without the length of its phase."""
LINE_FULL = 0.97
"""Part of its rate with which a line is full: what a token bucket saved up passes at once, and what
drivers count of a frame differs."""
FRAME_BESIDE_BYTES = 24
"""Preamble, checksum and gap of an Ethernet frame (IEEE 802.3), which cards do not count."""
LEAST_BUSY_SHARE = 0.25
"""Part of the time between snapshots; below it packets cost less than all else that ran then."""


def host_of(worker: str) -> str:
    """Return the host in a worker's name, which is ``host.role0``."""
    return worker.rpartition(".")[0]


def edges_ns(readings: Readings, stats: Iterable[WorkerStats]) -> tuple[int, int] | None:
    """Return the workers' first and last packet after the common start; None without a packet.

    Stamps of several hosts are compared from each host's own common start.
    """
    edges = [_edges_of(readings, worker) for worker in _stamped(stats)]
    return (min(first for first, _ in edges), max(last for _, last in edges)) if edges else None


def _stamped(stats: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Return the workers with packets, and the times of the first and the last."""
    needed = {"first_ns", "last_ns"}
    return [
        worker
        for worker in stats
        if worker.counts.get(PACKETS_FIELD[worker.role]) and needed <= set(worker.counts)
    ]


def _edges_of(readings: Readings, worker: WorkerStats) -> tuple[int, int]:
    start = readings.phase.start_ns.get(host_of(worker.worker), 0)
    return worker.counts["first_ns"] - start, worker.counts["last_ns"] - start


def window_ns(readings: Readings, stats: Iterable[WorkerStats]) -> int | None:
    """Return the time from the workers' first packet to their last; None where there is none."""
    edges = edges_ns(readings, stats)
    return edges[1] - edges[0] if edges is not None and edges[1] > edges[0] else None


class _Span(NamedTuple):
    """Two moments of a worker, since the common start, and its count around them."""

    from_ns: int
    to_ns: int
    before: int
    """By the first moment."""
    between: int
    after: int

    def inside(self, from_ns: int, to_ns: int) -> float:
        """Return what came from the one time to the other, which lie around both moments.

        Beyond its moments a worker goes on at its rate until it has no more.
        """
        count = float(self.between)
        ends = (self.before, self.from_ns - from_ns), (self.after, to_ns - self.to_ns)
        for packets, time_ns in ends:
            whole = packets * (time_ns > 0)
            length_ns = self.to_ns - self.from_ns
            count += min(whole, self.between * time_ns / length_ns) if self.between else whole
        return count


def _span_of(readings: Readings, worker: WorkerStats, field: str) -> _Span:
    """Return the moments between which a worker's packets belong to the time.

    A reader's are the first and the last but one at which nothing was left to read: what it read
    in between arrived in between, however long it naps. Of one that is always behind, of a sender
    and in older records they are the first stamp and the last.
    """
    counts, (from_ns, to_ns) = worker.counts, _edges_of(readings, worker)
    before, until = counts.get(FIRST_FIELD[field], 0), counts.get(field, 0)
    total = until
    start_ns = counts["first_ns"] - from_ns
    drained_ns = [counts.get(f"drained_{edge}_ns", 0) for edge in ("first", "last")]
    if drained_ns[1] - drained_ns[0] > DRAINED_SHARE * (to_ns - from_ns) >= 0:
        from_ns, to_ns = (time_ns - start_ns for time_ns in drained_ns)
        unit = field.rpartition("_")[2]
        before, until = (counts.get(f"drained_{edge}_{unit}", 0) for edge in ("first", "last"))
    before = before if to_ns > from_ns else total
    return _Span(from_ns, to_ns, before, max(until - before, 0), max(total - until, 0))


def rate(readings: Readings, stats: Iterable[WorkerStats], field: str) -> float | None:
    """Return the sum of one count over workers, per second of their common window.

    The window begins and ends with the outermost of their moments. None for fewer than two packets,
    or where nothing came between these moments.
    """
    workers = _stamped(stats)
    packets = sum(worker.counts[PACKETS_FIELD[worker.role]] for worker in workers)
    if packets < 2:
        return None
    spans = [_span_of(readings, worker, field) for worker in workers]
    from_ns, to_ns = min(span.from_ns for span in spans), max(span.to_ns for span in spans)
    count = sum(span.inside(from_ns, to_ns) for span in spans)
    return count * SECOND_NS / (to_ns - from_ns) if count > 0 and to_ns > from_ns else None


def lump_share(readings: Readings) -> float | None:
    """Return what share of all packets comes at once: with one read of each receiver, on average.

    Or with one call of each sender, if that is more, where a rate makes it wait between them. Rates
    are known no better: what is just inside their time, and what just outside, is chance. None
    where no read is counted.
    """
    paced = readings.record.trial.traffic.rate is not None
    sent = [_lumps(stats, "sent_packets", "send_calls") for stats in readings.sender.workers]
    read = [
        _lumps(stats, "received_packets", "receive_calls") for stats in readings.receiver.workers
    ]
    shares = [_share_of(read), _share_of(sent) if paced else None]
    return max((share for share in shares if share is not None), default=None)


def _lumps(stats: WorkerStats, packets: str, calls: str) -> tuple[int, int]:
    """Return a worker's packets, and how many calls had some."""
    counts = stats.counts
    return counts.get(packets, 0), counts.get(calls, 0) - counts.get("empty_calls", 0)


def _share_of(lumps: Sequence[tuple[int, int]]) -> float | None:
    means = [packets / calls for packets, calls in lumps if packets and calls > 0]
    return sum(means) / sum(packets for packets, _ in lumps) if means else None


def node_rate(node: End, field: str) -> float | None:
    """Return the sum of one count over workers, per second of their common window."""
    return rate(node.view, node.workers, field)


def lag(readings: Readings) -> float | None:
    """Return how much longer the receivers' window is than the senders', as a share of the latter.

    Each by its own clock. None unless both have a window. A program of the user's is looked at now
    and then: its first packet came with the senders', up to a tenth of a second before a look.
    """
    sending, receiving = (window_ns(readings, end.workers) for end in readings.ends)
    if readings.receiving.takes == "program" and receiving is not None:
        sent, read = (edges_ns(readings, end.workers) for end in readings.ends)
        receiving = read[1] - sent[0] if sent is not None and read is not None else None
    return None if sending is None or receiving is None else receiving / sending - 1


def full_line_bps(readings: Readings) -> int | None:
    """Return the rate of the senders' lines if these kept them from sending more, else None.

    The slowest, where they differ. A line is full if as much left it as LINE_FULL of its rate in
    the time of the load; a queue that drops keeps no sender from sending.
    """
    lines = []
    if readings.sender.counter("qdisc.{interface}.drops"):
        return None
    for host in readings.sender.hosts:
        rate_bps, beside_bytes = _line(readings.record, host)
        sent_bytes = readings.of_host(host, "link.{interface}.tx_bytes") or 0
        sent_bytes += beside_bytes * (readings.of_host(host, "link.{interface}.tx_packets") or 0)
        load_s = readings.record.trial.duration_ns / SECOND_NS
        if rate_bps is None or 8 * sent_bytes < LINE_FULL * rate_bps * load_s:
            return None
        lines.append(rate_bps)
    return min(lines, default=None)


def _line(record: TrialRecord, host: str) -> tuple[int | None, int]:
    """Return the rate of a sender's line, and the bytes of a frame that its counters leave out.

    It is that of a token bucket as root queue, else the card's; a virtual pair has none.
    """
    for change in record.changes.get(host, ()):
        if change.setting.kind == "qdisc" and "tbf" in (change.after or {}):
            return change.after["tbf"]["rate_bps"], 0
    facts = record.facts.get(host)
    if facts is None or facts.driver == "veth":
        return None, 0
    megabits = link_megabits(facts.environment.get("link"))
    return (megabits * 10**6 if megabits is not None else None), FRAME_BESIDE_BYTES


def link_megabits(text: str | None) -> int | None:
    """Return the speed in a host's environment, ``10000 Mb/s, full duplex``; None without one."""
    match = re.match(r"([0-9]{1,9}) Mb/s", text or "")
    return int(match.group(1)) if match is not None else None


def ratio(part: int | None, whole: int) -> float | None:
    """Return part / whole; None if either is missing."""
    return part / whole if part is not None and whole > 0 else None


def skbs_per_packet(readings: Readings) -> float | None:
    """Return messages over datagrams as the receivers read them: 1 unless GRO merges.

    Each message that is read is one skb, whatever it holds. None without a receiver.
    """
    read = arrived(readings, workers_alone=True)
    return ratio(read.read_messages, read.read_packets)


# --- in motion -----------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def series_of(readings: Readings) -> dict[str, list[Sample]]:
    """Return the samples of each worker, once: searching all for each of many took their square."""
    series: dict[str, list[Sample]] = {}
    for sample in readings.record.series:
        series.setdefault(sample.worker, []).append(sample)
    return series


def totals_at(samples: Sequence[Sample], field: str, times_ns: Sequence[int]) -> list[float]:
    """Return one worker's count at the given times, interpolated between its samples."""
    clocks = [sample.clock_ns for sample in samples]
    counts = [sample.counts.get(field, 0) for sample in samples]
    if len(times_ns) > FEW_TIMES and samples:
        return _many_totals_at(clocks, counts, times_ns)
    totals = []
    for time_ns in times_ns:
        right = bisect_right(clocks, time_ns)
        if right == 0:
            totals.append(0.0)
        elif right == len(clocks):
            totals.append(float(counts[-1]))
        else:
            span = clocks[right] - clocks[right - 1]
            share = (time_ns - clocks[right - 1]) / span if span else 0.0
            totals.append(counts[right - 1] + share * (counts[right] - counts[right - 1]))
    return totals


def _many_totals_at(
    clocks: Sequence[int], counts: Sequence[int], times_ns: Sequence[int]
) -> list[float]:
    """Return the same for many times; each step rounds as that of ``totals_at``."""
    import numpy as np

    largest = max(max(each, key=abs) for each in (clocks, counts, times_ns))
    kind = np.int64 if abs(largest) < SMALL else np.float64  # larger ones are no clock's
    at, known, times = (np.asarray(each, dtype=kind) for each in (clocks, counts, times_ns))
    right = np.searchsorted(at, times, side="right")
    after = np.clip(right, 1, max(len(at) - 1, 1)) % len(at)
    before = np.maximum(after - 1, 0)
    span = at[after] - at[before]
    share = np.divide(times - at[before], span, out=np.zeros(len(times)), where=span != 0)
    between = known[before] + share * (known[after] - known[before])
    totals = np.where(right == 0, 0.0, np.where(right == len(at), float(counts[-1]), between))
    return [float(total) for total in totals]


def length_ns(record: TrialRecord) -> int:
    """Return the longest time that the measured phase can have taken: later stamps are wrong.

    It is the controller's own time for it, draining after the load included.
    """
    spent_ns = min(record.overhead_ns.get("measured", 0), DAY_NS)
    return record.trial.duration_ns + max(spent_ns, SETTLE_NS)


def pps_by_bin(node: End, bin_ns: int) -> dict[int, float]:
    """Return the begin of each whole bin between an end's first and last packet → its rate.

    Bins count from the common start, so that both ends share their edges. Empty where that would
    take minutes.
    """
    readings = node.view
    workers = {stats.worker: stats for stats in node.workers}
    span = edges_ns(readings, workers.values())
    if span is None:
        return {}
    first_ns, last_ns = max(span[0], 0), min(span[1], length_ns(readings.record))
    edges = [k * bin_ns for k in range(-(-first_ns // bin_ns), last_ns // bin_ns + 1)]
    sums = [0.0] * len(edges)
    series = {name: samples for name, samples in series_of(readings).items() if name in workers}
    if len(edges) * len(series) > MOST_TOTALS:
        return {}
    for name, samples in series.items():
        start = readings.phase.start_ns.get(host_of(name), 0)
        totals = totals_at(samples, PACKETS_FIELD[node.part], [start + edge for edge in edges])
        sums = [total + more for total, more in zip(sums, totals, strict=True)]
    rates = ((b - a) * SECOND_NS / bin_ns for a, b in zip(sums, sums[1:], strict=False))
    return dict(zip(edges, rates, strict=False))


def spread(readings: Readings) -> float | None:
    """Return the coefficient of variation of the delivered per-second rates.

    Sample standard deviation over mean, of whole seconds. None for fewer than two of them, without
    any packet, or for a phase so long that it was sampled less than twice a second: interpolated
    counts vary too little. A client's packets are those that arrived in each second.
    """
    if readings.record.served is not None:
        return _variation(_arrived_by_second(readings.record))
    edges = edges_ns(readings, readings.receiver.workers)
    took_ns = edges[1] - edges[0] if edges is not None else 0
    longest_ns = max(readings.record.trial.duration_ns, min(took_ns, length_ns(readings.record)))
    slow = sampling_ns(longest_ns) > SLOWEST_SAMPLING_NS
    if slow or not readings.record.series:
        return None
    return _variation([*pps_by_bin(readings.receiver, SECOND_NS).values()])


def _variation(rates: Sequence[float]) -> float | None:
    if len(rates) < 2 or fmean(rates) <= 0:
        return None
    return stdev(rates) / fmean(rates)


def _arrived_by_second(record: TrialRecord) -> list[int]:
    """Return the packets of each whole second between a client's first and last.

    Empty if its milliseconds are not kept: it is read, and sampled, too seldom to know by counts.
    """
    seconds: Counter[int] = Counter()
    for sample in record.series:
        for at_ms, packets in enumerate(sample.packets_per_ms, start=sample.first_ms or 0):
            if packets:
                seconds[at_ms // 1000] += packets
    return [seconds[at] for at in range(min(seconds) + 1, max(seconds))] if seconds else []


# --- cost ----------------------------------------------------------------------------------------


Cpu = tuple[str, int]
"""A machine as ``Readings.machine_of`` names it, and a CPU's number there."""


def node_cpus(node: End) -> frozenset[Cpu] | None:
    """Return the CPUs that an end works on: its workers' and, receiving, its queues'.

    None if a worker is not pinned, because its CPU time then belongs to no CPU in particular.
    """
    readings, workers = node.view, node.workers
    groups: set[tuple[str, frozenset[int]]] = set()
    for stats in workers:
        pinned = readings.pinned(stats)
        if not pinned:
            return None
        groups.add((readings.machine_of(host_of(stats.worker)), pinned))
    cpus = {(machine, cpu) for machine, pinned in groups for cpu in pinned}
    for facts in node.facts if node.part == "receiver" else ():
        machine = readings.machine_of(facts.host)
        cpus |= {(machine, cpu) for queue in facts.queue_cpus.values() for cpu in queue}
    return frozenset(cpus) if workers else None


def cpu_ns(node: End) -> int | None:
    """Return the busy time of an end's CPUs over the phase; None if it cannot be attributed.

    If both ends are on one machine and share a CPU, it is unknown whose time it was; so it is if
    packets came for a moment only, since CPU times cover all that ran between the snapshots.
    """
    if _of_a_moment(node):
        return None
    (other,) = (end for end in node.view.ends if end.part != node.part)
    cpus, other_cpus = node_cpus(node), node_cpus(other)
    together = set(node.machines) & set(other.machines)
    if cpus is None or (together and (other_cpus is None or cpus & other_cpus)):
        return None
    return spent_ns(node.view, cpus, BUSY_TIMES)


def spent_ns(readings: Readings, cpus: Iterable[Cpu], times: Iterable[str]) -> int | None:
    """Return the sum of some of the CPUs' times, each of its own machine; None if none is known.

    ``times`` are columns of /proc/stat.
    """
    return known_sum(
        readings.deltas[machine].total(f"cpu.{cpu}.{time}_ns")
        for time in times
        for machine, cpu in cpus
        if machine in readings.deltas
    )


def _of_a_moment(node: End) -> bool:
    """Return whether an end's packets took only a small part of the time that counters cover."""
    window = window_ns(node.view, node.workers) or 0
    elapsed = max((delta.elapsed_ns for delta in node.view.deltas.values()), default=0)
    return window < LEAST_BUSY_SHARE * elapsed
