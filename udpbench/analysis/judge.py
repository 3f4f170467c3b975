"""The door of the analysis: ``judge`` derives everything from one record, and nothing else does.

Pure: the same record gives the same result at any time, on any machine.
"""

from __future__ import annotations

from dataclasses import replace

from udpbench.analysis import delay, rates, usage
from udpbench.analysis.checks import check
from udpbench.analysis.ledger import intended_packets, make_ledger, received_packets, sent_packets
from udpbench.analysis.queues import carrying, queue_packets, sent_flows
from udpbench.analysis.readings import Readings, readings
from udpbench.model import Finding, Ledger, Result, Stall, TrialRecord, WorkerResult

__all__ = ["carrying", "judge", "path_ledger", "queue_packets", "sent_flows"]

MIB_BYTES = 2**20
COST = (
    "user_ns",
    "system_ns",
    "voluntary_switches",
    "involuntary_switches",
    "cycles",
    "instructions",
    "send_calls",
    "receive_calls",
    "wait_calls",
    "sent_messages",
    "read_messages",
    "zerocopy_messages",
    "zerocopy_copied_messages",
)
"""Counts of a worker that say what its packets cost."""


def judge(record: TrialRecord) -> Result:
    """Return what a record says: validity, findings, counts, rates, ledger and cost.

    Only a trial that ran to its end has numbers; of a failed one the reason is a finding.
    """
    measured = readings(record)
    if record.status != "done" or measured is None:
        return _without_numbers(record)
    # A stream has no packets that could be lost on the way: a baseline, and no ledger.
    datagrams = record.trial.traffic.protocol == "udp"
    ledger = make_ledger(measured) if datagrams else None
    findings = record.findings + check(measured)
    sent, received = sent_packets(measured), received_packets(measured)
    worked = measured.worked("sender", "sent_packets")
    read = measured.worked("receiver", "received_packets")
    bytes_per_s = rates.role_rate(measured, "receiver", "received_bytes")
    result = Result(
        trial=record.trial,
        status=record.status,
        valid=all(finding.severity != "invalid" for finding in findings),
        findings=findings,
        intended_packets=intended_packets(measured),
        sent_packets=sent,
        received_packets=received,
        lost_packets=sent - received if datagrams else None,
        offered_pps=rates.role_rate(measured, "sender", "sent_packets"),
        delivered_pps=rates.role_rate(measured, "receiver", "received_packets"),
        delivered_mib_s=bytes_per_s / MIB_BYTES if bytes_per_s is not None else None,
        delivered_pps_spread=rates.spread(measured),
        loss_ratio=rates.ratio(sent - received, sent) if datagrams else None,
        send_calls_per_packet=rates.ratio(measured.worked("sender", "send_calls"), worked),
        skbs_per_packet=rates.skbs_per_packet(measured) if datagrams else None,
        send_cpu_ns_per_packet=rates.ratio(rates.cpu_ns(measured, "sender"), worked),
        receive_cpu_ns_per_packet=rates.ratio(rates.cpu_ns(measured, "receiver"), read),
        ledger=ledger,
        workers=_workers(measured),
        stalls=_stalls(measured),
    )
    return replace(result, **delay.numbers(measured), **usage.numbers(measured))


def _stalls(measured: Readings) -> tuple[Stall, ...]:
    """Return the stalls of all senders in the order of their time."""
    found = (stall for stats in measured.workers("sender") for stall in stats.stalls)
    return tuple(sorted(found, key=lambda stall: stall.from_ns))


def path_ledger(record: TrialRecord) -> Ledger | None:
    """Return where the packets of the path phase went; None where there was no path phase."""
    path = readings(record, "path")
    return make_ledger(path) if path is not None else None


def _workers(measured: Readings) -> tuple[WorkerResult, ...]:
    found = []
    for stats in measured.phase.stats:
        packets = stats.counts.get(rates.PACKETS_FIELD[stats.role], 0)
        pps = rates.rate(measured, [stats], rates.PACKETS_FIELD[stats.role])
        memory = stats.memory_bytes
        cost = {name: stats.counts[name] for name in COST if name in stats.counts}
        found.append(WorkerResult(stats.worker, stats.role, stats.cpu, packets, pps, memory, cost))
    return tuple(found)


def _without_numbers(record: TrialRecord) -> Result:
    error = record.error or {}
    message = error.get("message", "the record holds no measured phase")
    skipped = record.status == "skipped"
    reason = Finding(
        "note" if skipped else "invalid",
        f"{record.status}: {message}" if record.status != "done" else message,
        error.get("host", ""),
    )
    findings = (*record.findings, reason, *_where_the_path_ended(record))
    status = "failed" if record.status == "done" else record.status
    return Result(trial=record.trial, status=status, valid=False, findings=findings)


def _where_the_path_ended(record: TrialRecord) -> tuple[Finding, ...]:
    """Tell where the packets of a path phase died, where that is what failed the trial."""
    ledger = path_ledger(record)
    datagrams = record.trial.traffic.protocol == "udp"
    if (record.error or {}).get("kind") != "PathError" or ledger is None or not datagrams:
        return ()
    ends = [f"{entry.stage} {entry.packets}" for entry in ledger.entries if entry.packets]
    if ledger.unaccounted:
        ends.append(f"unaccounted {ledger.unaccounted:+d}")
    return (
        Finding(
            "invalid",
            f"path check: of {ledger.intended_packets} packets {ledger.received_packets} arrived",
            "path",
            ", ".join(ends) or None,
            next_step="see docs/ledger.md for what helps at that stage",
        ),
    )
