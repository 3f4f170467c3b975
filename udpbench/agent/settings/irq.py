"""Kind ``irq``: the CPUs that may serve an RX queue's interrupt, ``eth3/rx-0``.

The queue is named and not the interrupt, whose number changes with the channels. What takes effect
follows only with the next interrupt, so the mask that was asked for is what is compared.
"""

from __future__ import annotations

import errno
import re

from udpbench.agent.counters import parse_cpu_list
from udpbench.agent.host import Host
from udpbench.agent.interrupts import rx_interrupts

_TARGET = re.compile(r"([^/]+)/rx-(\d+)")


def read(host: Host, target: str) -> list[int]:
    """Return the CPUs that the interrupt may go to."""
    return list(parse_cpu_list(host.read_text(_path(host, target))))


def write(host: Host, target: str, value: list[int]) -> None:
    """Let it go to these CPUs; EIO or EPERM where the kernel manages it."""
    host.write_text(_path(host, target), ",".join(str(cpu) for cpu in value))


def same(wanted: list[int], got: list[int]) -> bool:
    """Compare as sets."""
    return set(wanted) == set(got)


def _path(host: Host, target: str) -> str:
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(f"{target} is no queue; write for example eth3/rx-0")
    interface, queue = found.group(1), int(found.group(2))
    interrupts = rx_interrupts(host, interface)
    if queue not in interrupts:
        known = ", ".join(f"rx-{number}" for number in sorted(interrupts)) or "none"
        what = f"{interface} shows no interrupt of rx-{queue}; those that it shows: {known}"
        raise OSError(errno.ENXIO, what)
    return f"/proc/irq/{interrupts[queue]}/smp_affinity_list"
