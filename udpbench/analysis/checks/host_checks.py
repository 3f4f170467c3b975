"""Checks of the hosts: what they granted, and whether they and their links stayed the same."""

from __future__ import annotations

from collections.abc import Iterator

from udpbench.analysis.checks.worker_counts import times
from udpbench.analysis.readings import Readings
from udpbench.analysis.remedies import REMEDIES
from udpbench.differences import differences
from udpbench.drivers import ALLOWANCES
from udpbench.host_settings import Settings, VethPair
from udpbench.model.host import FIREWALL_RULES, lost_without
from udpbench.model.limits import Role
from udpbench.model.record import Finding

BUFFER_LIMIT: dict[Role, str] = {
    "sender": "net.core.wmem_max",
    "receiver": "net.core.rmem_max",
}
SHARED_PATH = (
    "control traffic shares the path under test",
    REMEDIES["control_path"].text,
)
"""What is wrong, and what to do."""


def buffer_capped(readings: Readings) -> Iterator[Finding]:
    """Find a socket buffer that the kernel granted smaller than requested."""
    trial = readings.record.trial
    of_program = readings.receiving.takes == "program"  # its size is its own affair
    received_bytes = None if of_program else trial.receive.buffer_bytes
    sizes_bytes = {"sender": trial.send.buffer_bytes, "receiver": received_bytes}
    for stats in readings.phase.stats:
        size_bytes, granted_bytes = sizes_bytes[stats.role], stats.buffer_bytes
        # The kernel doubles the value for its own overhead (net/core/sock.c).
        if size_bytes is None or granted_bytes is None or granted_bytes >= 2 * size_bytes:
            continue
        limit = BUFFER_LIMIT[stats.role]
        more = ", or set force_buffer and run with CAP_NET_ADMIN" if not trial.served else ""
        yield Finding(
            "warning",
            "the socket buffer is smaller than requested",
            stats.worker,
            f"{granted_bytes // 2} bytes",
            f"{size_bytes} bytes, as requested",
            f"raise {limit}{more}",
        )


def environment_changed(readings: Readings) -> Iterator[Finding]:
    """Find a host whose environment differs after the trial."""
    for host, after in readings.record.environment_after.items():
        facts = readings.record.facts.get(host)
        before = facts.environment if facts is not None else after
        names = sorted({*before, *after} - {*readings.receiving.changes, FIREWALL_RULES})
        known = (
            {name: values.get(name, "unknown") for name in names} for values in (before, after)
        )
        for difference in differences(*known):
            yield Finding(
                "invalid",
                "environment changed during the trial",
                host,
                str(difference),
                "unchanged",
                "find out what reconfigures that host, then repeat",
            )


CHANGED = {
    "firewall": "the firewall was changed",
    "routes": "routes were changed",
    "addresses": "addresses were changed",
    "neighbours": "neighbours were changed",
    "links": "the interface was changed",
    "queueing": "queueing disciplines or filters were changed",
    "policies": "policies or states of IPsec were changed",
    "unknown": "more was changed than the kernel could report",
}
"""Counter of ``changed.`` → what happened."""
PROGRAMS = "changed.programs"
REDIRECTS = ("snmp.Icmp.InRedirects", "snmp6.Icmp6InRedirects")


def changed_meanwhile(readings: Readings) -> Iterator[Finding]:
    """Find what was changed at a host while packets were measured, even if it was put back."""
    for host, moved in sorted(readings.deltas.items()):
        happened = [what for name, what in CHANGED.items() if moved.values.get(f"changed.{name}")]
        if host in readings.sender.hosts and any(map(moved.values.get, REDIRECTS)):
            happened.append("routers, or others in their name, redirected its packets")
        for what in happened:
            yield Finding(
                "struck",
                f"{what} during the measured phase",
                host,
                limit="unchanged",
                next_step="rates are those of neither state; what was lost, and where, is "
                "counted: find out who changes that host, then repeat",
            )


def programs_changed(readings: Readings) -> Iterator[Finding]:
    """Find a host whose BPF programs of tcx or its cgroup changed since the first snapshot."""
    first = readings.record.phases[0].before
    for host, after in sorted(readings.phase.after.items()):
        now = after.counters.get(PROGRAMS, 0)
        if host in first and now != first[host].counters.get(PROGRAMS, now):
            yield Finding(
                "struck",
                "BPF programs of tcx, or of its cgroup, were changed during the trial",
                host,
                limit="unchanged",
                next_step="they may lead packets elsewhere, or drop them: see `bpftool net` and "
                "`bpftool cgroup tree` there, find out who attaches them, then repeat",
            )


def allowance_exceeded(readings: Readings) -> Iterator[Finding]:
    """Find a virtual card whose hypervisor limited what it sends or receives."""
    for end in readings.ends:
        for host in end.hosts:
            limited = readings.deltas[host].matching(readings.named(host, ALLOWANCES))
            over = [f"{name.rpartition('.')[2]} {n}" for name, n in limited.items() if n]
            if over:
                yield Finding(
                    "warning",
                    "the hypervisor queued or dropped packets beyond the instance's allowance",
                    host,
                    ", ".join(over),
                    "0",
                    "what it dropped is in the ledger's link: lower the rate, or use a larger "
                    "instance",
                )


def carrier_lost(readings: Readings) -> Iterator[Finding]:
    """Find an interface whose link went down since the trial's first snapshot."""
    first = readings.record.phases[0].before
    for host, after in readings.phase.after.items():
        before = first[host].counters if host in first else {}
        for name, count in after.counters.items():
            if not name.endswith(".carrier_downs"):
                continue
            losses = count - before.get(name, count)
            if losses > 0:
                yield Finding(
                    "invalid",
                    "the link went down during the trial",
                    host,
                    f"{name.split('.')[1]} lost its carrier {times(losses)}",
                    "never",
                    "check the cable, the switch and the kernel's log, then repeat",
                )


def control_shares_path(readings: Readings) -> Iterator[Finding]:
    """Find a host whose SSH connection to the controller uses the interface under test."""
    for name, facts in sorted(readings.record.facts.items()):
        if facts.environment.get("control_interface") == facts.interface:
            yield Finding(
                "warning",
                SHARED_PATH[0],
                name,
                f"SSH uses {facts.interface}",
                "an interface of its own",
                SHARED_PATH[1],
            )


def degraded(readings: Readings) -> Iterator[Finding]:
    """Find a built-in lab run without full privileges: it is slower and means less."""
    if not readings.record.built_in_lab:
        return
    lost = lost_without([facts.capabilities for facts in readings.record.facts.values()])
    if lost:
        yield Finding(
            "warning",
            "the lab is degraded: its user lacks privileges",
            "lab",
            "; ".join(lost),
            next_step="run as root for the full lab",
        )
    elif steered_instead(readings):
        inline = any(
            facts.capabilities.get("rps") is False for facts in readings.record.facts.values()
        )
        who, way = ("the sender's CPU", "inline") if inline else ("RPS", "rps")
        yield Finding(
            "warning",
            f"{who} does the receive work: this kernel's NAPI threads cannot be told apart",
            "lab",
            "they are known by netlink since Linux 6.8, by their whole names since 5.17",
            next_step=f"compare only with trials of settings.receiver.link: {{receive: {way}}}",
        )


def steered_instead(readings: Readings) -> bool:
    """Return whether a built-in lab does without NAPI's threads only because of its kernel."""
    own = readings.record.trial.settings.get("receiver", Settings()).link or VethPair()
    able = (facts.capabilities.get("napi_threads") for facts in readings.record.facts.values())
    return own.receive is None and False in able
