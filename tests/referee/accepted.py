"""Which of udpbench's words count as right for each planted cause.

A word is a diagnosis's ``name``; ``invalid:TEXT`` or ``failed:TEXT``, if a trial that udpbench calls
invalid, or that failed, for a reason that contains TEXT is right as well. Left empty, a cause cannot
be scored.
"""

from __future__ import annotations

import re

from causes import CAUSES

_WORK = "reader_work reader_system shared_cpu"
_TABLE = f"""
reader_sleeps | reader_sleeps
reader_spins | {_WORK}
reader_lumps | reader_sleeps small_buffer
reader_locks | reader_sleeps
reader_forks | {_WORK}
reader_syncs | reader_sleeps
reader_never | standstill failed:still queued and unread
reader_closes | udp_no_port udp_purged
program_tiny_buffer | small_buffer
program_filter | udp_filter
quota | cpu_quota
reader_slow | {_WORK}
reader_slow_anywhere | {_WORK}
burst_over_buffer | small_buffer
reader_stopped | standstill
worker_hangs | standstill
sender_stopped | stopped_sender
sender_too_slow | sender_cpu
sender_cpu_taken | others_cpu
reader_cpu_taken | others_cpu
reader_cpu_shared | others_cpu
reader_over_napi | shared_cpu reader_work
stranger_some | stranger invalid:socket
stranger_all | stranger invalid:socket
rule_ingress | changed unseen_rules
rule_egress | changed unseen_rules
rule_receiver | rx_netfilter
rule_sender | tx_netfilter
rule_every_nth | rx_netfilter
rules_by_thousands | firewall
xfrm_in | rx_policy
xfrm_out | tx_policy
tc_drop | rx_tc changed
xdp_drop | rx_xdp
tcx_drop | rx_tc changed unaccounted
token_bucket | sender_queue
mtu_differs | changed
route_refuses | rx_ip
neighbour_wrong | rx_ip
neighbour_gone | changed
checksum_damaged | udp_checksum
reverse_path | rx_ip
address_gone | rx_ip
link_down | changed
backlog_short | small_backlog
udp_memory_short | udp_memory failed:arrived (udp_memory
healthy_rate | nothing
healthy_work | nothing
healthy_program | nothing
healthy_sender_limits | sender_queue
"""
"""Cause | the words that are right for it.

Of tcx no kernel tells who attached a program, and no counter what it drops: that no stage explains
the loss is all that can be said.
"""
_ROWS = dict(line.split(" | ") for line in _TABLE.strip().splitlines())


def _words(text: str) -> frozenset[str]:
    """Return words and reasons; a reason may hold spaces."""
    head, *reasons = re.split(r" (?=invalid:|failed:)", text)
    return frozenset([*head.split(), *reasons])


ACCEPTED: dict[str, frozenset[str]] = {
    part: _words(_ROWS.get(part, "")) for cause in CAUSES for part in cause.label.split("+")
}
