"""The door of the analysis: ``judge`` derives everything from one record, and nothing else does.

Pure: the same record gives the same result at any time, on any machine.
"""

from __future__ import annotations

from dataclasses import replace

from udpbench.analysis import delay, rates, worker_use
from udpbench.analysis.checks.checklist import check
from udpbench.analysis.checks.cpu_checks import cpu_time_unknown
from udpbench.analysis.checks.ledger_checks import path_losses
from udpbench.analysis.cpu_time import cpu_time_of
from udpbench.analysis.cpu_use import cpu_loads
from udpbench.analysis.diagnosis import diagnose
from udpbench.analysis.ledger.intended_load import (
    arrived,
    intended_packets,
    kept_packets,
    sent_packets,
)
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import NO_PHASE, Readings, readings_of
from udpbench.analysis.search import in_search
from udpbench.analysis.served import of_client, served_findings
from udpbench.analysis.watch.host import watched_ledger
from udpbench.cpu_stages import PACKETS_STAGES
from udpbench.metrics import STAGED, at_stage, is_cpu_stage, is_timed
from udpbench.model.record import PACKETS_FIELD, Finding, Stall, TrialRecord
from udpbench.model.result import CpuTime, Ledger, Result, WorkerResult

MIB_BYTES = 2**20
CPU_COST = ("user_ns", "system_ns", "cycles", "instructions")
COST = (
    *CPU_COST,
    "voluntary_switches",
    "involuntary_switches",
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
    measured = readings_of(record)
    if record.status != "done" or measured is None:
        return _without_numbers(record)
    if record.trial.watched:
        return _watched(measured)
    # A stream has no packets that could be lost on the way: a baseline, and no ledger.
    ledger = make_ledger(measured) if record.trial.traffic.protocol == "udp" else None
    cpu_time = cpu_time_of(measured, ledger)
    findings = record.findings + check(measured) + served_findings(record)
    valid = all(finding.severity != "invalid" for finding in findings)
    result = Result(
        trial=record.trial,
        status=record.status,
        valid=valid,
        findings=findings,
        numbers=_numbers(measured, ledger) | _cpu_numbers(cpu_time),
        ledger=ledger,
        workers=_workers(measured),
        stalls=_stalls(measured),
        cpus=cpu_loads(measured),
        diagnosis=of_client(record, in_search(record.trial, diagnose(measured, ledger, valid))),
        cpu_time=cpu_time,
        took_ns=took_ns(record),
        lag=rates.lag(measured),
        lump_share=rates.lump_share(measured),
        full_line_bps=rates.full_line_bps(measured),
    )
    measured.forget()
    return _struck_out(result) if result.struck else result


def _watched(measured: Readings) -> Result:
    """Return what was read at live hosts, and what each stage took; its findings are losses."""
    record, ledger = measured.record, watched_ledger(measured)
    return Result(
        trial=record.trial,
        status=record.status,
        valid=True,
        findings=(*record.findings, *cpu_time_unknown(measured)),
        cpu_time=cpu_time_of(measured, None),
        numbers={
            "received_packets": arrived(measured).packets,
            "delivered_pps": rates.node_rate(measured.receiver, "received_packets"),
            "ledger_received_packets": ledger.received_packets,
        },
        ledger=ledger,
        workers=_workers(measured),
        took_ns=took_ns(record),
    )


def took_ns(record: TrialRecord) -> int:
    """Return how long a trial took with all its steps."""
    return sum(record.overhead_ns.values())


def _numbers(measured: Readings, ledger: Ledger | None) -> dict[str, float | None]:
    sent, received = sent_packets(measured), arrived(measured).packets
    worked = measured.sender.worked("sent_packets")
    read = arrived(measured, workers_alone=True).packets
    bytes_per_s = rates.node_rate(measured.receiver, "received_bytes")
    numbers: dict[str, float | None] = {
        "intended_packets": intended_packets(measured),
        "sent_packets": sent,
        "received_packets": received,
        "offered_pps": rates.node_rate(measured.sender, "sent_packets"),
        "delivered_pps": rates.node_rate(measured.receiver, "received_packets"),
        "delivered_mib_s": bytes_per_s / MIB_BYTES if bytes_per_s is not None else None,
        "delivered_pps_spread": rates.spread(measured),
        "send_calls_per_packet": rates.ratio(measured.sender.worked("send_calls"), worked),
        "send_cpu_ns_per_packet": rates.ratio(rates.cpu_ns(measured.sender), worked),
        "receive_cpu_ns_per_packet": rates.ratio(rates.cpu_ns(measured.receiver), read),
        **delay.numbers(measured),
        **worker_use.numbers(measured),
    }
    if ledger is not None:
        lost = sent - kept_packets(measured)
        numbers |= {
            "lost_packets": lost,
            "loss_ratio": rates.ratio(lost, sent),
            "skbs_per_packet": rates.skbs_per_packet(measured),
            "ledger_received_packets": ledger.received_packets,
            "unaccounted": ledger.unaccounted,
        }
    return numbers


def _cpu_numbers(cpu_time: CpuTime | None) -> dict[str, float | None]:
    """Return the CPU time per packet at each stage, and at all; None if any of it is struck."""
    numbers: dict[str, float | None] = {STAGED: None}
    for cost in cpu_time.costs if cpu_time is not None else ():
        if cost.ns_per_packet is not None:
            name = at_stage(cost.stage)
            numbers[name] = (numbers.get(name) or 0.0) + cost.ns_per_packet
            if is_cpu_stage(own := f"{cost.end}.{cost.stage}"):
                numbers[at_stage(own)] = cost.ns_per_packet
    mine = [c for c in cpu_time.costs if c.stage in PACKETS_STAGES] if cpu_time is not None else []
    known = [cost.ns_per_packet for cost in mine if cost.ns_per_packet is not None]
    return numbers | ({STAGED: sum(known)} if known and len(known) == len(mine) else {})


def _struck_out(result: Result) -> Result:
    """Return a result without its rates, delays and CPU numbers."""
    workers = tuple(
        replace(worker, pps=None, cost={k: v for k, v in worker.cost.items() if k not in CPU_COST})
        for worker in result.workers
    )
    numbers = {name: value for name, value in result.numbers.items() if not is_timed(name)}
    return replace(result, workers=workers, numbers=numbers)


def _stalls(measured: Readings) -> tuple[Stall, ...]:
    """Return the stalls of all senders in the order of their time."""
    stalls = (stall for stats in measured.sender.workers for stall in stats.stalls)
    return tuple(sorted(stalls, key=lambda stall: stall.from_ns))


def path_ledger(record: TrialRecord) -> Ledger | None:
    """Return where the packets of the path phase went; None where there was no path phase."""
    path = readings_of(record, "path")
    return make_ledger(path) if path is not None else None


def _workers(measured: Readings) -> tuple[WorkerResult, ...]:
    results = []
    for stats in measured.phase.stats:
        packets = stats.counts.get(PACKETS_FIELD[stats.role], 0)
        pps = rates.rate(measured, [stats], PACKETS_FIELD[stats.role])
        cost = {name: stats.counts[name] for name in COST if name in stats.counts}
        results.append(
            WorkerResult(
                stats.worker, stats.role, stats.cpu, packets, pps, stats.memory_bytes, cost
            )
        )
    return tuple(results)


def _without_numbers(record: TrialRecord) -> Result:
    error = record.error or NO_PHASE
    skipped = record.status == "skipped"
    reason = Finding(
        "note" if skipped else "invalid",
        f"{record.status}: {error.message}" if record.status != "done" else error.message,
        error.host,
        kind="skipped" if skipped else "",
    )
    findings = (*record.findings, reason, *_path_losses(record))
    status = "failed" if record.status == "done" else record.status
    return Result(
        trial=record.trial,
        status=status,
        valid=False,
        findings=findings,
        unavailable=skipped and error.kind == "unavailable",
        took_ns=took_ns(record),
    )


def _path_losses(record: TrialRecord) -> tuple[Finding, ...]:
    """Return where the packets of the path check ended, if that is what failed the trial."""
    ledger = path_ledger(record)
    datagrams = record.trial.traffic.protocol == "udp"
    if record.error is None or record.error.kind != "PathError" or ledger is None or not datagrams:
        return ()
    return (path_losses("invalid", ledger.received_packets, ledger.intended_packets, ledger),)
