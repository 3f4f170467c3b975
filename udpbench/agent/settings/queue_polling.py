"""Kinds of who polls a queue, and when: ``irq``, ``irqbalance``, ``napi_cpus``, ``device``."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping
from typing import Any, Optional

from udpbench.agent.host.interrupts import (
    IRQBALANCE,
    irqbalance_pids,
    is_irqbalance_running,
    rx_interrupts,
)
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind, echo
from udpbench.agent.settings.links import Up
from udpbench.cpu_lists import parse_cpu_list

_MANAGED = "the kernel manages this interrupt; use rps, or napi: {threaded, cpus}"

_RX_QUEUE = re.compile(r"([^/]+)/rx-(\d+)")


def _irq_path(host: Host, target: str) -> str:
    match = _RX_QUEUE.fullmatch(target)
    if match is None:
        raise ValueError(f"{target} is not a queue; write for example eth3/rx-0")
    interface, queue = match.group(1), int(match.group(2))
    interrupts = rx_interrupts(host, interface)
    if queue not in interrupts:
        known = ", ".join(f"rx-{number}" for number in sorted(interrupts)) or "none"
        what = f"{interface} shows no interrupt of rx-{queue}; those that it shows: {known}"
        raise OSError(errno.ENXIO, what)
    return f"/proc/irq/{interrupts[queue]}/smp_affinity_list"


class Irq(Kind):
    """The CPUs that may serve an RX queue's interrupt, ``eth3/rx-0``.

    The queue is named and not the interrupt, whose number changes with the channels. What takes
    effect follows only with the next interrupt, so the mask that was asked for is what is compared.
    """

    disruptive = True
    instead: Mapping[int, str] = {
        errno.EIO: _MANAGED,
        errno.EPERM: _MANAGED,
        errno.ENXIO: "a virtual device has none; use rps, or napi: {threaded, cpus}",
    }

    def read(self, host: Host, target: str) -> list[int]:
        """Return the CPUs that the interrupt may go to."""
        return list(parse_cpu_list(host.read_text(_irq_path(host, target))))

    def write(self, host: Host, target: str, value: list[int]) -> None:
        """Let it go to these CPUs; EIO or EPERM if the kernel manages it."""
        host.write_text(_irq_path(host, target), ",".join(str(cpu) for cpu in value))

    def same(self, requested: list[int], got: list[int]) -> bool:
        """Compare as sets."""
        return set(requested) == set(got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, queue = target.partition("/")
        write = echo(",".join(map(str, value)), "/proc/irq/NUMBER/smp_affinity_list")
        return f"see the number of {interface}'s {queue} in /proc/interrupts, then {write}"


DEADLINE_S = 2.0


def _check(target: str) -> None:
    if target != IRQBALANCE:
        raise ValueError(f"{target} is not {IRQBALANCE}")


class Irqbalance(Kind):
    """Whether the daemon that moves interrupts may work, target ``irqbalance``.

    It is paused by SIGSTOP and goes on by SIGCONT, under systemd or not: the same process keeps its
    options and its state, which stopping and starting its unit would not give back. Null: none
    runs.
    """

    def read(self, host: Host, target: str) -> Optional[bool]:
        """Say whether it works; false while it is paused."""
        _check(target)
        return is_irqbalance_running(host)

    def write(self, host: Host, target: str, value: Optional[bool]) -> None:
        """Pause it or let it go on, and wait until it has stopped or not."""
        _check(target)
        pids = irqbalance_pids(host)
        if not pids:
            raise OSError(errno.ESRCH, f"no process is called {IRQBALANCE}")
        for pid in pids:
            host.signal(pid, signal.SIGCONT if value else signal.SIGSTOP)
        what = f"{IRQBALANCE} {'going on' if value else 'pausing'}"
        host.wait_for(what, lambda: bool(self.read(host, target)) == bool(value), DEADLINE_S)

    def same(self, requested: Optional[bool], got: Optional[bool]) -> bool:
        """Compare; one that does not run does not work either."""
        return bool(requested) == bool(got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return ["pkill", "-CONT" if value else "-STOP", "-x", target]


def _napi_threads(host: Host, interface: str) -> list[int]:
    napis = host.queue_napis(interface)
    threads = [napis[queue].pid for queue in sorted(napis)]
    pids = [pid for pid in threads if pid]
    if not pids or len(pids) < len(threads):
        raise OSError(
            errno.ESRCH,
            f"{interface} has no NAPI threads; it must be up, with rx-gro on and threaded 1",
        )
    return pids


class NapiCpus(Kind):
    """Where an interface's NAPI threads run; the k-th list is RX queue k's.

    The threads are there while the interface is up, with NAPI and ``threaded``; a list shorter than
    the queues leaves the others as they are.
    """

    instead: Mapping[int, str] = {errno.EPERM: "without root, use link: {receive: rps}"}

    def read(self, host: Host, target: str) -> list[list[int]]:
        """Return each thread's CPUs; OSError ESRCH if there are no threads."""
        return [host.affinity(pid) for pid in _napi_threads(host, target)]

    def write(self, host: Host, target: str, value: list[list[int]]) -> None:
        """Pin the threads."""
        threads = _napi_threads(host, target)
        if len(value) > len(threads):
            raise ValueError(f"{len(value)} lists of CPUs for {len(threads)} NAPI threads")
        for pid, cpus in zip(threads, value):
            host.set_affinity(pid, cpus)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare as far as something was asked for."""
        return len(got) >= len(requested) and all(set(a) == set(b) for a, b in zip(requested, got))

    def by_hand_here(self, host: Host, target: str, value: Any) -> Command:
        """Return what pins the threads, by pid: other namespaces may have threads of that name."""
        return "; ".join(
            f"taskset -cp {','.join(map(str, cpus))} {pid}"
            for pid, cpus in zip(_napi_threads(host, target), value)
        )


DEVICE_ATTRIBUTES = ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")


def _device_path(target: str) -> str:
    interface, _, name = target.partition("/")
    if name not in DEVICE_ATTRIBUTES or interface in ("", ".", ".."):
        raise ValueError(f"{target} is not an interface with one of {', '.join(DEVICE_ATTRIBUTES)}")
    return f"/sys/class/net/{interface}/{name}"


class Device(Kind):
    """An integer among an interface's attributes in /sys/class/net."""

    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "threaded needs NAPI: on veth rx-gro on, then up, before it"
    }

    def read(self, host: Host, target: str) -> int:
        """Return the attribute; gro_flush_timeout is in nanoseconds."""
        return int(host.read_text(_device_path(target)))

    def write(self, host: Host, target: str, value: int) -> None:
        """Set the attribute.

        A veth that is down has no NAPI, and Linux 6.18 refuses even to clear ``threaded`` there,
        which would be left behind if another process took the link down: it is up while the
        write takes.
        """
        path = _device_path(target)
        interface = target.partition("/")[0]
        try:
            host.write_text(path, str(value))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or Up().read(host, interface):
                raise
            Up().write(host, interface, True)
            try:
                host.write_text(path, str(value))
            finally:
                Up().write(host, interface, False)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return echo(value, _device_path(target))


KINDS: Mapping[str, Kind] = {
    "irq": Irq(),
    "irqbalance": Irqbalance(),
    "napi_cpus": NapiCpus(),
    "device": Device(),
}
