"""Every validity check of a trial, in the order in which a reader gets its findings.

A check is one function from the readings of a measured phase to findings. It says what cannot be
trusted, naming the value, the limit and the next step; it never changes or hides a number. To add
one, write the function in the file of its subject and list it here; docs/measurement.md names what
makes a trial invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from udpbench.analysis.checks import (
    clock_checks,
    cpu_checks,
    host_checks,
    ledger_checks,
    offered_load,
    placement,
    worker_counts,
)
from udpbench.analysis.readings import Readings
from udpbench.model.record import Finding

Check = Callable[[Readings], Iterator[Finding]]

ALL = "all"
DATAGRAMS = "datagrams"
"""A TCP stream has no datagrams and no ledger."""
CHECKS: dict[Check, str] = {
    offered_load.sender_bound: ALL,
    offered_load.receiver_not_saturated: DATAGRAMS,
    placement.worker_moved: ALL,
    placement.queues_moved: ALL,
    placement.steering_ignored: ALL,
    worker_counts.foreign_traffic: DATAGRAMS,
    worker_counts.strange_sockets: DATAGRAMS,
    worker_counts.irregular_datagrams: DATAGRAMS,
    worker_counts.others_reads: DATAGRAMS,
    worker_counts.no_reads: DATAGRAMS,
    worker_counts.late_reads: DATAGRAMS,
    worker_counts.failed_calls: ALL,
    offered_load.sender_stalled: ALL,
    ledger_checks.hidden_refusals: DATAGRAMS,
    ledger_checks.counter_backwards: DATAGRAMS,
    ledger_checks.silent_nodes: DATAGRAMS,
    ledger_checks.unaccounted: DATAGRAMS,
    ledger_checks.others_packets: DATAGRAMS,
    ledger_checks.damaged_frames: DATAGRAMS,
    ledger_checks.lost_after_the_link: DATAGRAMS,
    ledger_checks.unknown_driver: DATAGRAMS,
    ledger_checks.counters_disagree: DATAGRAMS,
    ledger_checks.surplus_answers: DATAGRAMS,
    worker_counts.unmatched_answers: DATAGRAMS,
    ledger_checks.path_check_losses: DATAGRAMS,
    offered_load.unsegmented_messages: DATAGRAMS,
    offered_load.frames_mode: DATAGRAMS,
    host_checks.buffer_capped: ALL,
    offered_load.few_reads: ALL,
    offered_load.unseen_end: DATAGRAMS,
    placement.idle_sockets: ALL,
    worker_counts.standstills: ALL,
    cpu_checks.work_not_done: DATAGRAMS,
    placement.idle_queues: ALL,
    host_checks.environment_changed: ALL,
    host_checks.changed_meanwhile: ALL,
    host_checks.programs_changed: ALL,
    host_checks.carrier_lost: ALL,
    host_checks.allowance_exceeded: ALL,
    cpu_checks.other_processes: ALL,
    cpu_checks.hypervisor: ALL,
    cpu_checks.cpu_time_unknown: ALL,
    host_checks.control_shares_path: ALL,
    clock_checks.clock_stepped: ALL,
    clock_checks.clocks_apart: ALL,
    clock_checks.samples_missing: ALL,
    host_checks.degraded: ALL,
    clock_checks.delay_hidden: ALL,
    clock_checks.echoes_lost: ALL,
    worker_counts.log_errors: ALL,
}
"""Check → the traffic that it is for."""


OF_CLIENTS: frozenset[Check] = frozenset(
    (
        placement.worker_moved,
        worker_counts.failed_calls,
        ledger_checks.counter_backwards,
        ledger_checks.unaccounted,
        ledger_checks.damaged_frames,
        ledger_checks.unknown_driver,
        host_checks.buffer_capped,
        worker_counts.standstills,
        host_checks.carrier_lost,
        host_checks.allowance_exceeded,
        cpu_checks.hypervisor,
        clock_checks.samples_missing,
    )
)
"""Those that need to know nothing of a sender, nor who else uses the host: an iperf3 client is
served on a host as it is."""


def check(readings: Readings) -> tuple[Finding, ...]:
    """Return the findings of every check that applies, in the order of CHECKS."""
    applied = (ALL,) if readings.record.trial.traffic.protocol == "tcp" else (ALL, DATAGRAMS)
    checks = (check for check, traffic in CHECKS.items() if traffic in applied)
    if readings.record.trial.served:
        checks = (check for check in CHECKS if check in OF_CLIENTS)
    return tuple(finding for check in checks for finding in check(readings))
