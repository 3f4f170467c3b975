"""Checks of the form "a worker counted X": a table of counts that should be 0."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from udpbench.analysis.readings import Readings
from udpbench.analysis.remedies import REMEDIES
from udpbench.model.limits import SECOND_NS, Role
from udpbench.model.record import Finding, WorkerStats
from udpbench.units import plural

Counts = Mapping[str, int]


@dataclass(frozen=True)
class WorkerCount:
    """A count of a worker, and the finding if it is not 0."""

    field: str
    severity: Literal["invalid", "warning", "note"]
    message: str
    limit: str = "none"
    next_step: str = ""
    value: Callable[[Counts, str], str] = lambda counts, field: plural(counts[field], "packet")
    role: Role = "receiver"


def times(number: int) -> str:
    """Return how often something happened, in words."""
    return "once" if number == 1 else f"{number} times"


def named_errno(number: int) -> str:
    """Return an errno with its name: 101 (ENETUNREACH)."""
    name = errno.errorcode.get(number)
    return f"{number} ({name})" if name is not None else str(number)


LAST_ERRNO = {"log_errors": "log_last_errno", "answer_errors": "answer_last_errno"}


def _failures(counts: Counts, field: str) -> str:
    last = counts.get(LAST_ERRNO.get(field, "last_errno"), 0)
    return f"{times(counts[field])}, last errno {named_errno(last)}"


def _standstills(counts: Counts, field: str) -> str:
    return f"{times(counts[field])}, {counts['standstill_ns'] / SECOND_NS:.3f} s in total"


NEXT_STEP_FOREIGN = "find out what else sends to that port, or use another one"
FOREIGN = (
    WorkerCount(
        "foreign_packets",
        "invalid",
        "foreign traffic: the port received datagrams that this phase did not send",
        next_step=NEXT_STEP_FOREIGN,
    ),
    WorkerCount(
        "foreign_size_packets",
        "invalid",
        "foreign traffic: the port received datagrams of another size than this phase sends",
        next_step=NEXT_STEP_FOREIGN,
    ),
)
IRREGULAR = (
    WorkerCount("duplicate_packets", "note", "duplicate datagrams; each is counted once"),
    WorkerCount(
        "ancient_packets", "warning", "datagrams too late to be distinguished from duplicates"
    ),
    WorkerCount(
        "corrupt_packets",
        "warning",
        "datagrams of this run that arrived with another size or content",
    ),
)
FAILED_CALLS = (
    WorkerCount("other_errors", "warning", "system calls failed", "never", "", _failures, "sender"),
    WorkerCount(
        "refused_calls", "warning", "system calls failed", "never", "", _failures, "sender"
    ),
    WorkerCount("errors", "warning", "system calls failed", "never", "", _failures),
    WorkerCount(
        "answer_errors", "warning", "reading answers failed", "never", "", _failures, "sender"
    ),
)
ANSWERS = (
    WorkerCount(
        "unmatched_packets",
        "note",
        "answers with an id that nothing waits for (late or duplicate); they have no round trip",
        role="sender",
    ),
    WorkerCount(
        "id_waits",
        "note",
        "the sender waited for free ids: an id is reused only after its timeout",
        "never",
        "use more flows (traffic.flows.from), or shorten traffic.answers.timeout",
        lambda counts, field: times(counts[field]),
        "sender",
    ),
)
STANDSTILLS = WorkerCount(
    "standstills",
    "warning",
    "the reader stalled while packets waited: it was stopped or had no CPU",
    "never for more than 0.1 s",
    "check what else runs on its CPU; rates, loss and delay include that time",
    _standstills,
)
OTHERS_READS = WorkerCount(
    "others_sockets",
    "warning",
    "other programs have UDP sockets in the network namespace: what they read counts as received",
    next_step="run as root on Linux 6.15 or later, where each socket is counted by itself, or "
    "stop them",
    value=lambda counts, field: f"{counts[field]} sockets",
)
LATE_READS = WorkerCount(
    "overdue_packets",
    "note",
    "the program read its last datagrams after the phase had ended: they are received, not lost",
    next_step="stop what uses CPUs of the load if it should read them in time",
)
SWALLOWED = "what the kernel takes there without the program counts as received"
NO_READS = (
    WorkerCount(
        "tunnel_sockets",
        "invalid",
        f"a receiving socket has UDP_ENCAP: {SWALLOWED}",
        next_step="have the program leave UDP_ENCAP unset",
        value=lambda _counts, _field: "set",
    ),
    WorkerCount(
        "unknown_tunnels",
        "note",
        f"whether a receiving socket has UDP_ENCAP is not known: {SWALLOWED}",
        next_step="run as root, on Linux 5.6 or later",
        value=lambda _counts, _field: "unknown",
    ),
)
LOG_ERRORS = WorkerCount(
    "log_errors",
    "warning",
    "writing the log failed; the lost packets are in stage app_log",
    "never",
    "check the disk of receive.log.path",
    _failures,
)


def _findings(workers: Iterable[WorkerStats], *rows: WorkerCount) -> Iterator[Finding]:
    for stats in workers:
        for row in rows:
            if stats.role == row.role and stats.counts.get(row.field):
                value = row.value(stats.counts, row.field)
                yield Finding(
                    row.severity, row.message, stats.worker, value, row.limit, row.next_step
                )


def foreign_traffic(readings: Readings) -> Iterator[Finding]:
    """Find datagrams on the measured port that are not of this phase, by header or by size."""
    return _findings(readings.phase.stats, *FOREIGN)


def late_reads(readings: Readings) -> Iterator[Finding]:
    """Find a program that read its last datagrams only after the last count of the phase."""
    return _findings(readings.phase.stats, LATE_READS)


def strange_sockets(readings: Readings) -> Iterator[Finding]:
    """Find others' sockets at the traffic's ports that the kernel may have given its packets."""
    for host, sockets in sorted(readings.phase.strangers.items()):
        lost = readings.of_host(host, "stranger.*.drops")
        yield Finding(
            "invalid",
            "another program's socket may have taken packets of the traffic",
            host,
            ", ".join(sockets) + (f"; dropped there: {lost}" if lost else ""),
            "none",
            REMEDIES["listeners"].text,
        )


def irregular_datagrams(readings: Readings) -> Iterator[Finding]:
    """Find datagrams of ours that arrived twice, too late to tell, or with another size or content.

    The content is compared under ``read: verify`` alone.
    """
    return _findings(readings.phase.stats, *IRREGULAR)


def failed_calls(readings: Readings) -> Iterator[Finding]:
    """Find system calls that failed in a way that no stage of the ledger stands for."""
    return _findings((*readings.phase.stats, *readings.phase.losses), *FAILED_CALLS)


def unmatched_answers(readings: Readings) -> Iterator[Finding]:
    """Find answers that belong to no datagram, and ids that a sender had to wait for."""
    return _findings(readings.phase.stats, *ANSWERS)


def standstills(readings: Readings) -> Iterator[Finding]:
    """Find a reader that made no call for a while although packets waited.

    Pauses that ``work``, ``nap`` and ``fault`` ask for do not count; a stop inside a blocking call
    does.
    """
    return _findings(readings.phase.stats, STANDSTILLS)


def others_reads(readings: Readings) -> Iterator[Finding]:
    """Find a program of the user's whose reads could not be told from those of others."""
    return _findings(readings.phase.stats, OTHERS_READS)


def no_reads(readings: Readings) -> Iterator[Finding]:
    """Find a program of the user's for which the kernel may have counted what it never read."""
    return _findings(readings.phase.stats, *NO_READS)


def log_errors(readings: Readings) -> Iterator[Finding]:
    """Find a log writer whose calls failed."""
    return _findings(readings.phase.stats, LOG_ERRORS)
