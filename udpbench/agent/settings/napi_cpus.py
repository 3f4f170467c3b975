"""Kind ``napi_cpus``: where an interface's NAPI threads run; the k-th list is RX queue k's.

The threads are there while the interface is up, with NAPI and ``threaded``; a list shorter than
the queues leaves the others as they are.
"""

from __future__ import annotations

import errno
from typing import Any

from udpbench.agent.host import Host


def read(host: Host, target: str) -> list[list[int]]:
    """Return each thread's CPUs; OSError ESRCH where there are no threads."""
    return [host.affinity(pid) for pid in _threads(host, target)]


def write(host: Host, target: str, value: list[list[int]]) -> None:
    """Pin the threads."""
    threads = _threads(host, target)
    if len(value) > len(threads):
        raise ValueError(f"{len(value)} lists of CPUs for {len(threads)} NAPI threads")
    for pid, cpus in zip(threads, value):
        host.set_affinity(pid, cpus)


def _threads(host: Host, interface: str) -> list[int]:
    napis = host.queue_napis(interface)
    threads = [napis[queue].pid for queue in sorted(napis)]
    found = [pid for pid in threads if pid]
    if not found or len(found) < len(threads):
        raise OSError(
            errno.ESRCH,
            f"{interface} has no NAPI threads; it must be up, with rx-gro on and threaded 1",
        )
    return found


def same(wanted: Any, got: Any) -> bool:
    """Compare as far as something was asked for."""
    return len(got) >= len(wanted) and all(set(a) == set(b) for a, b in zip(wanted, got))
