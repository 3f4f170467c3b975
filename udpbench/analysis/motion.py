"""The measured phase while it happens: readings between any two moments at which it was watched.

Owns how stored changes of counters become readings again; what a stage or a CPU did in an interval
is what the ledger and the judge would say of a phase that was as short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from udpbench.analysis.axis import since_start_ns
from udpbench.analysis.delta import Deltas, deltas
from udpbench.analysis.rates import BUSY_TIMES, IDLE_TIMES
from udpbench.analysis.readings import Readings, roles
from udpbench.analysis.stages import STAGES
from udpbench.model import Phase, Snapshot, TrialRecord, WorkerStats

Round = Mapping[str, Snapshot]
"""Host → its counters, all read at about one moment."""
QUEUE_PACKETS = re.compile(r"rx[-_]?(?:queue_)?(\d+)[-_.](?:rx_)?(?:xdp_)?packets\Z")
"""How drivers name the packets of an RX queue: veth ``rx_queue_0_xdp_packets``, igb and ixgbe
``rx_queue_0_packets``, mlx5 and virtio ``rx0_packets``, i40e ``rx-0.packets``, sfc
``rx-0.rx_packets``. A driver that names none has none to show."""


@dataclass(frozen=True)
class CpuShare:
    """What part of an interval a CPU was busy, and was so with packets; tick-sampled."""

    busy: float
    softirq: float


@dataclass(frozen=True)
class Interval:
    """What happened between two rounds, in time since the common start."""

    from_ns: int
    to_ns: int
    readings: Readings

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.to_ns - self.from_ns) / 1e9


def applied(before: Snapshot, moved: Snapshot) -> Snapshot:
    """Return the whole counters of a moment from those before it and those that moved since."""
    return replace(moved, counters={**before.counters, **moved.counters})


def rounds(phase: Phase, motion: tuple[Snapshot, ...]) -> list[Round]:
    """Return every round of a phase, whole: before it, while it went on, after it."""
    found: list[dict[str, Snapshot]] = [dict(phase.before)]
    for moved in motion:
        host = moved.host
        if host not in phase.before:
            continue
        if host in found[-1]:
            found.append({})
        latest = next(one[host] for one in reversed(found) if host in one)
        found[-1][host] = applied(latest, moved)
    whole = [one for one in found if len(one) == len(phase.before)]
    return [*whole, phase.after] if phase.after else list(whole)


def between(
    record: TrialRecord,
    before: Round,
    after: Round,
    within: Readings | None = None,
    stats: tuple[WorkerStats, ...] = (),
) -> Readings:
    """Return the readings of what lies between two rounds.

    What workers counted meanwhile is in ``stats``, or nobody knows it; then ``within`` tells what
    a skb of these rounds holds.
    """
    taken = {host: deltas(before[host], after[host]) for host in before if host in after}
    phase = Phase("measured", 0, {}, dict(before), dict(after), stats, {})
    return Readings(record, phase, roles(record), taken, within)


def intervals(measured: Readings) -> tuple[Interval, ...]:
    """Return the phase from round to round; one interval where nobody watched it in between."""
    phase, record = measured.phase, measured.record
    watched = rounds(phase, record.motion)
    clocks = [host for host in phase.start_ns if host in phase.before]
    if not clocks:
        return ()
    at_ns = [since_start_ns(phase, clocks[0], one[clocks[0]].clock_ns) for one in watched]
    return tuple(
        Interval(at_ns[i], at_ns[i + 1], between(record, first, last, measured))
        for i, (first, last) in enumerate(pairwise(watched))
        if at_ns[i + 1] > at_ns[i]
    )


def stage_packets(readings: Readings) -> dict[str, int]:
    """Return stage → packets that its counters saw end there, at least; no stage of workers.

    Counters of one host are not read in one moment, so a difference of two may be off by what came
    in between: a stage below 0 took none.
    """
    found = {}
    for stage in STAGES:
        packets = stage.packets(readings) if stage.scope != "worker" else None
        if packets is not None:
            found[stage.name] = max(packets.low, 0)
    return found


def queue_packets(delta: Deltas) -> dict[int, int]:
    """Return RX queue → packets it took; empty where the driver does not say."""
    found: dict[int, int] = {}
    for name, packets in delta.values.items():
        match = QUEUE_PACKETS.search(name) if name.startswith("ethtool.") else None
        if match is not None:
            # A driver with XDP counts the same packet under both names.
            queue = int(match.group(1))
            found[queue] = max(found.get(queue, 0), packets)
    return dict(sorted(found.items()))


def cpu_shares(delta: Deltas) -> dict[int, CpuShare]:
    """Return CPU → how busy it was; empty where the host does not see its machine's CPUs."""
    found = {}
    for cpu in sorted({int(name.split(".")[1]) for name in delta.values if _is_cpu(name)}):
        busy = {time: delta.values.get(f"cpu.{cpu}.{time}_ns", 0) for time in BUSY_TIMES}
        idle = sum(delta.values.get(f"cpu.{cpu}.{time}_ns", 0) for time in IDLE_TIMES)
        whole = sum(busy.values()) + idle
        if whole > 0:
            found[cpu] = CpuShare(sum(busy.values()) / whole, busy["softirq"] / whole)
    return found


def _is_cpu(name: str) -> bool:
    return name.startswith("cpu.") and name.endswith("_ns")
