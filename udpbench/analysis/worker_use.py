"""What worker processes used over the measured phase, what was logged, and what was answered.

Owns sums over processes, each counted once however many workers run in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpbench.analysis import rates
from udpbench.analysis.ledger.intended_load import answered_packets
from udpbench.analysis.readings import CounterView, End, Readings
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import WorkerStats


def numbers(measured: Readings) -> dict[str, float | None]:
    """Return the metrics of processes and logs."""
    return {
        "send_cpu_load": cpu_load(measured.sender),
        "receive_cpu_load": cpu_load(measured.receiver),
        "send_memory_bytes": memory_bytes(measured.sender),
        "receive_memory_bytes": memory_bytes(measured.receiver),
        **_log(measured),
        **_answers(measured),
    }


def processes(node: End) -> list[WorkerStats]:
    """Return one worker of each process."""
    by_process = {
        (rates.host_of(stats.worker), stats.pid): stats
        for stats in node.workers
        if stats.pid is not None
    }
    return list(by_process.values())


def cpu_load(node: End) -> float | None:
    """Return CPU time per time of processes: 1 is one CPU all the time.

    Both of one interval within the load; None if one is not known, as for a burst.
    """
    workers = processes(node)
    loads = [rates.ratio(stats.process_cpu_ns, stats.process_load_ns or 0) for stats in workers]
    known = [load for load in loads if load is not None]
    return sum(known) if known and len(known) == len(loads) else None


def memory_bytes(node: End) -> int | None:
    """Return the mean resident memory of processes together; None if one is unknown."""
    sizes = [stats.process_memory_bytes for stats in processes(node)]
    known = [size_bytes for size_bytes in sizes if size_bytes is not None]
    return sum(known) if known and len(known) == len(sizes) else None


# --- the log -------------------------------------------------------------------------------------


def unlogged_packets(measured: CounterView) -> int:
    """Return the packets that were read and not logged: no room in the ring, or on the disk."""
    fields = ("unlogged_packets", "failed_packets")
    return sum(measured.receiver.count(field) for field in fields)


def _log(measured: Readings) -> dict[str, float | None]:
    logs = [stats for stats in measured.receiver.workers if stats.log is not None]
    if not logs:
        return {}
    logged = [stats for stats in logs if stats.counts.get("logged_packets")]
    return {
        "logged_packets": sum(stats.counts["logged_packets"] for stats in logged),
        "logged_pps": _stamped_pps(measured, logged, "logged_packets", "log"),
        "log_files": sum(stats.log.files for stats in logs if stats.log is not None),
        "log_bytes": sum(stats.log.size_bytes for stats in logs if stats.log is not None),
    }


def _stamped_pps(
    measured: Readings, workers: Sequence[WorkerStats], field: str, stamps: str
) -> float | None:
    """Return what was counted after the first stamp, per second from there to the last one.

    Stamps of several hosts are compared from each host's own common start. Older records do not say
    how many packets had the first stamp.
    """
    starts = [measured.phase.start_ns.get(rates.host_of(stats.worker), 0) for stats in workers]
    counts = [stats.counts for stats in workers]
    firsts = [c[f"{stamps}_first_ns"] - start for c, start in zip(counts, starts, strict=True)]
    lasts = [c[f"{stamps}_last_ns"] - start for c, start in zip(counts, starts, strict=True)]
    if not workers or max(lasts) <= min(firsts):
        return None
    packets = sum(
        c[field] - (c.get(f"{stamps}_first_packets", 0) if first == min(firsts) else 0)
        for c, first in zip(counts, firsts, strict=True)
    )
    return packets * SECOND_NS / (max(lasts) - min(firsts))


# --- answers -------------------------------------------------------------------------------------


def _answers(measured: Readings) -> dict[str, float | None]:
    answered = answered_packets(measured)
    if answered is None:
        return {}
    workers = [s for s in measured.sender.workers if s.counts.get("answered_packets")]
    return {
        "answered_packets": answered,
        "answered_pps": _stamped_pps(measured, workers, "answered_packets", "answer"),
    }
