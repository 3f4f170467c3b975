"""Kind ``irqbalance``: whether the daemon that moves interrupts may work, target ``irqbalance``.

It is paused by SIGSTOP and goes on by SIGCONT, under systemd or not: the same process keeps its
options and its state, which stopping and starting its unit would not give back. Null: none runs.
"""

from __future__ import annotations

import errno
import signal
from typing import Optional

from udpbench.agent.host import Host

NAME = "irqbalance"
STOPPED = ("T", "t")  # proc(5), field 3 of /proc/<pid>/stat
DEADLINE_S = 2.0


def read(host: Host, target: str) -> Optional[bool]:
    """Say whether it works; false while it is paused."""
    states = [state for pid in _pids(host, target) if (state := state_of(host, pid)) is not None]
    return any(state not in STOPPED for state in states) if states else None


def write(host: Host, target: str, value: Optional[bool]) -> None:
    """Pause it or let it go on, and wait until it has stopped or not."""
    pids = _pids(host, target)
    if not pids:
        raise OSError(errno.ESRCH, f"no process is called {NAME}")
    for pid in pids:
        host.signal(pid, signal.SIGCONT if value else signal.SIGSTOP)
    what = f"{NAME} {'going on' if value else 'pausing'}"
    host.wait_for(what, lambda: bool(read(host, target)) == bool(value), DEADLINE_S)


def same(wanted: Optional[bool], got: Optional[bool]) -> bool:
    """Compare; one that does not run does not work either."""
    return bool(wanted) == bool(got)


def _pids(host: Host, target: str) -> list[int]:
    if target != NAME:
        raise ValueError(f"{target} is not {NAME}")
    found = []
    for entry in host.listdir("/proc"):
        try:
            if entry.isdigit() and host.read_text(f"/proc/{entry}/comm") == NAME:
                found.append(int(entry))
        except OSError:  # it ended meanwhile
            continue
    return found


def state_of(host: Host, pid: int) -> Optional[str]:
    """Return a process's state letter, None once it ended; its name may hold spaces."""
    try:
        text = host.read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]
