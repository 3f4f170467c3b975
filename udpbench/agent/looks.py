"""A live host as one who looks on sees it: counters, every UDP socket, and what changed of them.

Owns what the look before knew, and for a process of another network namespace the move there. Sends
no packet, changes no setting, and takes the host from nobody.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

from udpbench.agent.counters import parse
from udpbench.agent.counters.snapshot import device_counters, machine_counters, namespace_counters
from udpbench.agent.host.files import names, read
from udpbench.agent.host.namespace import enter
from udpbench.agent.host.socket_counts import SocketCounts
from udpbench.agent.host.socket_owners import SocketOwners, held_sockets
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import udp_sockets
from udpbench.errors import NothingToWatch, next_step
from udpbench.model import HostLook, Snapshot, SocketCount, UdpSocket

LOOPBACK = "lo"
MOST_INTERFACES = 8
"""Beyond it only those of a device: a host of containers has a virtual one for each."""


class Looks:
    """The looks at one host, one after the other."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._owners = SocketOwners(host)
        self._sockets: dict[int, UdpSocket] = {}
        self._counting: Optional[SocketCounts] = None
        self._counts: dict[int, SocketCount] = {}
        self._closed: set[int] = set()
        """Sockets that were counted and not listed in the look before: nothing more comes."""
        self._begun = False

    def look(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return what is here, and what changed since the look before; raises NothingToWatch."""
        if not self._begun:
            self._begin(pid, unit, exact)
        interfaces = self.interfaces()
        counters = machine_counters(self._host, interfaces)
        clock_ns = self._host.clock_ns()
        # Before the sockets: one that is counted and not listed has been closed.
        counts = self._counting.counts() if self._counting is not None else None
        sockets = {each.cookie: each for each in udp_sockets()}
        counters.update(namespace_counters(self._host))
        for interface in interfaces:
            counters.update(self._device(interface))
        self._owners.learn([each.inode for each in sockets.values()], unit or "")
        sockets = {
            cookie: replace(each, processes=self._owners.processes(each.inode))
            for cookie, each in sockets.items()
        }
        look = HostLook(
            snapshot=Snapshot(self._name, clock_ns, counters),
            interfaces=tuple(interfaces),
            sockets=tuple(
                each for cookie, each in sockets.items() if self._sockets.get(cookie) != each
            ),
            ended=tuple(cookie for cookie in self._sockets if cookie not in sockets),
            watched=self._watched(pid, unit, sockets.values()),
            counts=self._changed(counts, sockets) if counts is not None else None,
            namespaces=self._owners.namespaces if pid is None else (),
            names_reasons=self._counting is not None and self._counting.names_reasons,
        )
        self._sockets = sockets
        return look

    def _begin(self, pid: Optional[int], unit: Optional[str], exact: bool) -> None:
        """Move into the namespace of what is to be watched, and prove that it has a socket."""
        if unit is not None:
            self._owners.learn((), unit)
            pids = self._owners.in_unit(unit)
            if not pids:
                step = "systemctl status names units; as root those of others can be seen, too"
                raise NothingToWatch(f"no process belongs to unit {unit}; {step}", self._name)
            pid = pids[0]
        if pid is not None:
            self._enter(pid)
        if exact:
            try:
                self._counting = SocketCounts(self._host)
            except OSError as error:
                what = f"sockets cannot be counted exactly: {error.strerror or error}"
                root = "run as root, or omit --exact" if os.geteuid() else "omit --exact"
                raise NothingToWatch(f"{what}; {root}", self._name) from error
        if (pid, unit) != (None, None) and not self._watched(pid, unit, udp_sockets()):
            whose = f"unit {unit}" if unit is not None else f"process {pid}"
            text = f"{whose} has no UDP socket; ss -uap lists what has"
            raise NothingToWatch(text, self._name)
        self._begun = True

    def _enter(self, pid: int) -> None:
        try:
            enter(self._host, pid)
            self._host.listdir(f"/proc/{pid}/fd")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                text = f"there is no process {pid}; ps -e lists those that run"
            elif error.errno in (errno.EACCES, errno.EPERM):
                text = f"process {pid} is another user's or another namespace's; run as root"
            else:
                text = f"process {pid}: {error.strerror}; {next_step(error.errno)}"
            raise NothingToWatch(text, self._name) from error

    def _watched(
        self, pid: Optional[int], unit: Optional[str], sockets: Iterable[UdpSocket]
    ) -> Optional[tuple[int, ...]]:
        """Return the cookies of the sockets of a process or unit; None if all are watched."""
        if (pid, unit) == (None, None):
            return None
        pids = self._owners.in_unit(unit) if unit is not None else [pid or 0]
        inodes = {inode for each in pids for inode in held_sockets(self._host, each)}
        return tuple(each.cookie for each in sockets if each.inode in inodes)

    def _changed(
        self, counts: dict[int, SocketCount], sockets: dict[int, UdpSocket]
    ) -> dict[str, SocketCount]:
        """Return the counts that changed, and forget those of sockets that were closed before."""
        changed = {
            str(cookie): count
            for cookie, count in counts.items()
            if self._counts.get(cookie) != count
        }
        if self._counting is not None:
            self._counting.forget(self._closed)
        self._counts = {k: count for k, count in counts.items() if k not in self._closed}
        self._closed = {cookie for cookie in self._counts if cookie not in sockets}
        return changed

    def interfaces(self) -> list[str]:
        """Return the interfaces that are up, of many only those of devices."""
        up = [
            name
            for name in names(self._host, "/sys/class/net")
            if read(self._host, f"/sys/class/net/{name}/operstate") in ("up", "unknown")
        ]
        if len(up) > MOST_INTERFACES:
            of_devices = [n for n in up if self._host.exists(f"/sys/class/net/{n}/device")]
            up = [LOOPBACK, *of_devices[:MOST_INTERFACES]]
        return up

    def _device(self, interface: str) -> dict[str, int]:
        """Return an interface's counters; none if it has just been removed."""
        try:
            if interface != LOOPBACK:
                return device_counters(self._host, interface)
            statistics = parse.parse_link_statistics(self._host.link_statistics(interface))
        except OSError:
            return {}
        return {f"link.{interface}.{name}": value for name, value in statistics.items()}
