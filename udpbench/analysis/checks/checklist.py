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
from udpbench.model import Finding

Check = Callable[[Readings], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    offered_load.sender_bound,
    offered_load.receiver_not_saturated,
    placement.worker_moved,
    placement.queues_moved,
    placement.steering_ignored,
    worker_counts.foreign_traffic,
    worker_counts.irregular_datagrams,
    worker_counts.failed_calls,
    offered_load.sender_stalled,
    ledger_checks.hidden_refusals,
    ledger_checks.counter_backwards,
    ledger_checks.unaccounted,
    ledger_checks.others_packets,
    ledger_checks.damaged_frames,
    ledger_checks.lost_after_the_link,
    ledger_checks.unknown_driver,
    ledger_checks.counters_disagree,
    ledger_checks.path_check_losses,
    offered_load.unsegmented_messages,
    host_checks.buffer_capped,
    offered_load.few_reads,
    placement.idle_sockets,
    worker_counts.standstills,
    cpu_checks.work_not_done,
    placement.idle_queues,
    host_checks.environment_changed,
    host_checks.carrier_lost,
    cpu_checks.other_processes,
    cpu_checks.hypervisor,
    host_checks.control_shares_path,
    clock_checks.clock_stepped,
    clock_checks.clocks_apart,
    clock_checks.samples_missing,
    host_checks.degraded,
    clock_checks.delay_hidden,
    clock_checks.echoes_lost,
    worker_counts.log_errors,
)

DATAGRAM_CHECKS: tuple[Check, ...] = (
    cpu_checks.work_not_done,
    offered_load.receiver_not_saturated,
    worker_counts.foreign_traffic,
    worker_counts.irregular_datagrams,
    ledger_checks.hidden_refusals,
    ledger_checks.counter_backwards,
    ledger_checks.unaccounted,
    ledger_checks.others_packets,
    ledger_checks.damaged_frames,
    ledger_checks.lost_after_the_link,
    ledger_checks.unknown_driver,
    ledger_checks.counters_disagree,
    ledger_checks.path_check_losses,
    offered_load.unsegmented_messages,
)
"""Checks that a TCP stream skips: it has no datagrams and no ledger."""


def check(readings: Readings) -> tuple[Finding, ...]:
    """Return the findings of every check that applies, in the order of CHECKS."""
    skipped = DATAGRAM_CHECKS if readings.record.trial.traffic.protocol == "tcp" else ()
    checks = (check for check in CHECKS if check not in skipped)
    return tuple(finding for check in checks for finding in check(readings))
