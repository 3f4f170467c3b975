"""Kinds ``irq``, ``irqbalance``, ``napi_cpus``, ``napi_state``, ``device``: interrupts and NAPI."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Optional, Union

from udpbench.agent.host.interrupts import IRQBALANCE, irqbalance_pids, rx_interrupts
from udpbench.agent.host.processes import parse_process
from udpbench.agent.host.system import NAPI_NUMBERS, Host, NapiInstance
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
        what = f"{interface} has no known interrupt for rx-{queue}; known queues: {known}"
        raise OSError(errno.ENXIO, what)
    return f"/proc/irq/{interrupts[queue]}/smp_affinity_list"


class Irq(Kind):
    """The affinity of an RX queue's interrupt, ``eth3/rx-0``.

    Named by queue, because interrupt numbers change with the channels. The effective affinity
    changes only with the next interrupt, so the requested mask is compared.
    """

    disruptive = True
    instead: Mapping[int, str] = {
        errno.EIO: _MANAGED,
        errno.EPERM: _MANAGED,
        errno.ENXIO: "a virtual device has none; use rps, or napi: {threaded, cpus}",
    }

    def read(self, host: Host, target: str) -> list[int]:
        """Return the CPUs in the affinity mask."""
        return list(parse_cpu_list(host.read_text(_irq_path(host, target))))

    def write(self, host: Host, target: str, value: list[int]) -> None:
        """Set the affinity; EIO or EPERM if the kernel manages the interrupt."""
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
        raise ValueError(f"{target}: the only target is {IRQBALANCE}")


class Irqbalance(Kind):
    """Whether the irqbalance daemon is active, target ``irqbalance``; null if it is not running.

    Value: bool for every process, or {pid/start in ticks after boot: bool} as they were read.
    Paused by SIGSTOP and resumed by SIGCONT, with or without systemd: the process keeps its
    options and state, which restarting its unit would lose.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, bool]]:
        """Return whether each process is active; false while paused."""
        _check(target)
        running = {}
        for pid in irqbalance_pids(host):
            with suppress(OSError):  # it may have ended
                started = parse_process(host.read_text(f"/proc/{pid}/stat"), 0).started
                running[f"{pid}/{started}"] = not host.is_stopped(pid)
        return running or None

    def write(self, host: Host, target: str, value: Union[Mapping[str, bool], bool, None]) -> None:
        """Pause or resume each process that differs, and wait for the effect."""
        now = self.read(host, target)
        if now is None:
            raise OSError(errno.ESRCH, f"{IRQBALANCE} is not running")
        requested = value if isinstance(value, Mapping) else dict.fromkeys(now, bool(value))
        for process in now:
            if requested.get(process, now[process]) != now[process]:
                number = signal.SIGCONT if requested[process] else signal.SIGSTOP
                host.signal(int(process.partition("/")[0]), number)
        what = f"{IRQBALANCE} is {'still' if value else 'not'} paused"
        host.wait_for(what, lambda: self.same(value, self.read(host, target)), DEADLINE_S)

    def same(self, requested: Any, got: Optional[Mapping[str, bool]]) -> bool:
        """Compare the processes that are still there; without any, it is as if paused."""
        running = got or {}
        if isinstance(requested, Mapping):
            return all(running.get(process, was) == was for process, was in requested.items())
        return bool(running) and all(running.values()) if requested else not any(running.values())

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        if isinstance(value, Mapping):  # those that were paused before still are
            return ["kill", "-CONT", *(name.partition("/")[0] for name in value if value[name])]
        return ["pkill", "-CONT" if value else "-STOP", "-u", "0", "-x", target]


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
    """Affinity of an interface's NAPI threads; the k-th list is for RX queue k.

    The threads exist while the interface is up with NAPI and ``threaded``; queues beyond the list
    stay as they are.
    """

    instead: Mapping[int, str] = {errno.EPERM: "without root, use link: {receive: rps}"}

    def read(self, host: Host, target: str) -> list[list[int]]:
        """Return each thread's CPUs; OSError ESRCH without threads."""
        return [host.affinity(pid) for pid in _napi_threads(host, target)]

    def write(self, host: Host, target: str, value: list[list[int]]) -> None:
        """Pin the threads."""
        threads = _napi_threads(host, target)
        if len(value) > len(threads):
            raise ValueError(f"{len(value)} lists of CPUs for {len(threads)} NAPI threads")
        for pid, cpus in zip(threads, value):
            host.set_affinity(pid, cpus)

    def same(self, requested: Any, got: Any) -> bool:
        """Compare the requested queues only."""
        return len(got) >= len(requested) and all(set(a) == set(b) for a, b in zip(requested, got))

    def by_hand_here(self, host: Host, target: str, value: Any) -> Command:
        """Return taskset commands by pid, since other namespaces may have threads of that name."""
        return "; ".join(
            f"taskset -cp {','.join(map(str, cpus))} {pid}"
            for pid, cpus in zip(_napi_threads(host, target), value)
        )


OF_DEVICE = {
    "threaded": "threaded",
    "defer-hard-irqs": "napi_defer_hard_irqs",
    "gro-flush-timeout": "gro_flush_timeout",
}
"""Number of a NAPI instance → the interface's attribute that sets it for all of them."""
_CHRT = {os.SCHED_OTHER: "-o", os.SCHED_FIFO: "-f", os.SCHED_RR: "-r", os.SCHED_BATCH: "-b"}
_CHRT[os.SCHED_IDLE] = "-i"
"""Policy → chrt's option; sched_setscheduler(2) sets no other one."""


def _by_queue(host: Host, interface: str) -> dict[str, NapiInstance]:
    """Return queue → NAPI instance, by its RX queue if it serves both."""
    served = {
        napi.id: (f"{direction}-{queue}", napi)
        for direction in ("tx", "rx")
        for queue, napi in host.queue_napis(interface, direction).items()
    }
    return dict(served.values())


def _numbers(host: Host, interface: str, napi: NapiInstance) -> dict[str, int]:
    """Return the numbers in which an instance differs from its interface."""
    own = dict(napi.numbers)
    for name, attribute in OF_DEVICE.items():
        if name in own and own[name] == Device().read(host, f"{interface}/{attribute}"):
            del own[name]
    return own


def _thread(host: Host, pid: int) -> dict[str, Any]:
    policy, priority, nice = host.scheduling(pid)
    if policy & ~os.SCHED_RESET_ON_FORK not in _CHRT:
        raise ValueError(
            f"NAPI thread {pid} has scheduling policy {policy}, which could not be put back; give "
            f"it another one before the run, such as by chrt -f -p 10 {pid}"
        )
    return {"cpus": host.affinity(pid), "policy": policy, "priority": priority, "nice": nice}


class NapiState(Kind):
    """What NAPI instances and their threads have of their own; lost with them.

    Value: queue → {cpus, policy, priority, nice} if there is a thread, and those numbers of
    netlink's napi-set that differ from the interface's. A driver makes new instances when channels,
    rings, MTU or features change, and the kernel new threads when ``threaded`` does.
    """

    def read(self, host: Host, target: str) -> dict[str, dict[str, Any]]:
        """Return the state; empty if there is no NAPI instance that the kernel names."""
        try:
            napis = _by_queue(host, target)
        except OSError as error:
            # Before Linux 6.8 threads may be ambiguous, if there are any.
            path = _device_path(f"{target}/threaded")
            if host.exists(path) and host.read_text(path) != "0":
                step = f"they could not be set again; write 0 to {path} before the run"
                raise OSError(error.errno, f"{error.strerror}; {step}") from error
            return {}
        return {
            queue: _numbers(host, target, napi) | (_thread(host, napi.pid) if napi.pid else {})
            for queue, napi in sorted(napis.items())
        }

    def write(self, host: Host, target: str, value: dict[str, dict[str, Any]]) -> None:
        """Set what differs on the queues that exist."""
        if not value:
            return
        for queue, napi in _by_queue(host, target).items():
            own = value.get(queue, {})
            numbers = {name: own[name] for name in napi.numbers if name in own}
            if numbers != {name: napi.numbers[name] for name in numbers}:
                host.set_napi(napi.id, numbers)
        for queue, napi in _by_queue(host, target).items():  # ``threaded`` may have made threads
            own = value.get(queue, {})
            if napi.pid and "cpus" in own and not _within(_thread(host, napi.pid), own):
                host.set_affinity(napi.pid, own["cpus"])
                host.set_scheduling(napi.pid, own["policy"], own["priority"], own["nice"])

    def same(self, requested: dict[str, Any], got: dict[str, Any]) -> bool:
        """Compare what each queue had of its own."""
        return all(_within(own, got.get(queue, {})) for queue, own in requested.items())

    def by_hand_here(self, host: Host, target: str, value: Any) -> Command:
        """Return commands by the numbers of instances and threads, which change with them."""
        commands = []
        for queue, napi in _by_queue(host, target).items():
            own = value.get(queue, {})
            numbers = {name: own[name] for name in NAPI_NUMBERS if name in own}
            if numbers:
                words = shlex.quote(json.dumps({"id": napi.id, **numbers}))
                commands.append(f"ynl --family netdev --do napi-set --json {words}")
            if napi.pid and "cpus" in own:
                option = _CHRT[own["policy"] & ~os.SCHED_RESET_ON_FORK]
                commands += [
                    f"taskset -cp {','.join(map(str, own['cpus']))} {napi.pid}",
                    f"chrt {option} -p {own['priority']} {napi.pid}",
                    f"renice -n {own['nice']} -p {napi.pid}",
                ]
        return "; ".join(commands) or None


def _within(own: dict[str, Any], there: dict[str, Any]) -> bool:
    return own.items() <= there.items()


DEVICE_ATTRIBUTES = ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")


def _device_path(target: str) -> str:
    interface, _, name = target.partition("/")
    if name not in DEVICE_ATTRIBUTES or interface in ("", ".", ".."):
        raise ValueError(f"{target} is not an interface with one of {', '.join(DEVICE_ATTRIBUTES)}")
    return f"/sys/class/net/{interface}/{name}"


class Device(Kind):
    """An integer attribute of an interface in /sys/class/net, set for all its NAPI instances."""

    alters = ("napi_state",)
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "threaded needs NAPI: on veth, set rx-gro on and the link up first"
    }

    def read(self, host: Host, target: str) -> int:
        """Return the attribute; gro_flush_timeout is in nanoseconds."""
        return int(host.read_text(_device_path(target)))

    def write(self, host: Host, target: str, value: int) -> None:
        """Set the attribute.

        A veth that is down has no NAPI, and Linux 6.18 then refuses even to clear ``threaded``. So
        if another process took the link down, it is taken up for the write.
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
    "napi_state": NapiState(),
    "device": Device(),
}
