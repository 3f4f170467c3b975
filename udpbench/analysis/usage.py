"""What the worker processes of each end used over the measured phase, and what was logged.

Owns sums over processes, each of which is counted once however many workers live in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from udpbench.analysis import rates
from udpbench.analysis.readings import Readings
from udpbench.model import SECOND_NS, Finding, Role, WorkerStats


def numbers(measured: Readings) -> dict[str, Any]:
    """Return the fields of a Result that are about processes and logs, by name."""
    return {
        "send_cpu_load": cpu_load(measured, "sender"),
        "receive_cpu_load": cpu_load(measured, "receiver"),
        "send_memory_bytes": memory_bytes(measured, "sender"),
        "receive_memory_bytes": memory_bytes(measured, "receiver"),
        **_log(measured),
    }


def processes(measured: Readings, role: Role) -> list[WorkerStats]:
    """Return one worker of each process of a role."""
    found = {
        (rates.host_of(stats.worker), stats.pid): stats
        for stats in measured.workers(role)
        if stats.pid is not None
    }
    return list(found.values())


def cpu_load(measured: Readings, role: Role) -> float | None:
    """Return CPU time per time of a role's processes: 1 is one CPU all the time.

    Over the time between the snapshots, which frame the loops' own; None where one is not known.
    """
    every = [stats.process_cpu_ns for stats in processes(measured, role)]
    known = [spent for spent in every if spent is not None]
    hosts = measured.roles.senders if role == "sender" else measured.roles.receivers
    before, after = measured.phase.before, measured.phase.after
    spans = [after[h].clock_ns - before[h].clock_ns for h in hosts if h in before and h in after]
    if not known or len(known) < len(every) or not spans or max(spans) <= 0:
        return None
    return sum(known) / max(spans)


def memory_bytes(measured: Readings, role: Role) -> int | None:
    """Return the mean resident memory of a role's processes together; None where one is unknown."""
    every = [stats.process_memory_bytes for stats in processes(measured, role)]
    known = [found for found in every if found is not None]
    return sum(known) if known and len(known) == len(every) else None


# --- the log -------------------------------------------------------------------------------------


def unlogged_packets(measured: Readings) -> int:
    """Return the packets that were read and not logged: no room in the ring, or on the disk."""
    fields = ("unlogged_packets", "failed_packets")
    return sum(measured.count("receiver", field) for field in fields)


def _log(measured: Readings) -> dict[str, Any]:
    logs = [stats for stats in measured.workers("receiver") if stats.log is not None]
    if not logs:
        return {}
    logged = [stats for stats in logs if stats.counts.get("logged_packets")]
    return {
        "logged_packets": sum(stats.counts["logged_packets"] for stats in logged),
        "logged_pps": _logged_pps(measured, logged),
        "log_files": sum(stats.log.files for stats in logs if stats.log is not None),
        "log_bytes": sum(stats.log.size_bytes for stats in logs if stats.log is not None),
    }


def _logged_pps(measured: Readings, logged: Sequence[WorkerStats]) -> float | None:
    """Return what was logged after the first stamp, per second from there to the last one.

    Stamps of several hosts are compared from each host's own common start. Records of before do
    not tell how many packets had the first stamp.
    """
    starts = [measured.phase.start_ns.get(rates.host_of(one.worker), 0) for one in logged]
    counts = [one.counts for one in logged]
    firsts = [one["log_first_ns"] - start for one, start in zip(counts, starts, strict=True)]
    lasts = [one["log_last_ns"] - start for one, start in zip(counts, starts, strict=True)]
    if not logged or max(lasts) <= min(firsts):
        return None
    packets = sum(
        one["logged_packets"] - (one.get("log_first_packets", 0) if first == min(firsts) else 0)
        for one, first in zip(counts, firsts, strict=True)
    )
    return packets * SECOND_NS / (max(lasts) - min(firsts))


def log_errors(measured: Readings) -> Iterator[Finding]:
    """Find calls of a log's writer that failed."""
    for stats in measured.workers("receiver"):
        if stats.counts.get("log_errors"):
            yield Finding(
                "warning",
                "the log could not be written; what was lost is stage app_log",
                stats.worker,
                f"{stats.counts['log_errors']} times, errno {stats.counts['log_last_errno']}",
                "never",
                "see to the disk of receive.log.path",
            )
