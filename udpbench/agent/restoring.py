"""Waiting for somebody else who puts back what a dead run has changed: its guardian, or a restore.

A journal's lock says that somebody is at it, the notes of the locks whether that is its own run.
"""

from __future__ import annotations

from contextlib import suppress

from udpbench.agent.host import Host
from udpbench.agent.journal import in_use, run_of
from udpbench.agent.locks import Locks

DEADLINE_S = 10.0
"""Half of what a controller gives to hello; most settings take milliseconds, a link seconds."""


def awaited(host: Host, locks: Locks) -> tuple[str, ...]:
    """Wait until nobody restores here; return the runs that are still restored at the deadline."""
    with suppress(TimeoutError):
        host.wait_for("restoring", lambda: not _under_way(host, locks), DEADLINE_S)
    return _under_way(host, locks)


def _under_way(host: Host, locks: Locks) -> tuple[str, ...]:
    # In this order: a run that dies in between then counts as dead.
    runs = [run_of(path) for path in in_use(host)]
    living = locks.runs() if runs else ()
    return tuple(run for run in runs if locks.short(run) not in living)
