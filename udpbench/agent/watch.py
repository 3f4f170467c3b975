"""Readings of a live host for ``watch`` and ``export``: counters, UDP sockets, what changed.

Owns the state of the previous look, and moves into the network namespace of a watched process.
Sends no packet, changes no setting, takes no lock.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Optional, Union

from udpbench.agent.counters import parse
from udpbench.agent.counters.snapshot import (
    card_interrupts,
    machine_counters,
    namespace_counters,
    qdisc_counters,
    queue_counters,
)
from udpbench.agent.host.bpf.socket_counts import SocketCounts
from udpbench.agent.host.changes import Changes
from udpbench.agent.host.facts import limits
from udpbench.agent.host.files import names, read
from udpbench.agent.host.namespace import enter
from udpbench.agent.host.processes import TICK_NS, parse_process
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.socket_owners import (
    SocketOwners,
    all_held,
    no_process_of,
    why_unseen,
)
from udpbench.agent.host.udp_diag import SocketList, held_by
from udpbench.agent.spaces import OWN, OtherSpaces
from udpbench.agent.workers.usage import ThreadSampler
from udpbench.errors import NothingToWatch
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    UNBOUND,
    HostLook,
    Snapshot,
    SocketCount,
    ThreadUse,
    UdpSocket,
)
from udpbench.model.survey import MachineLook, SpaceLook
from udpbench.protocol import LOOK_SOCKETS

LOOPBACK = "lo"
NO_SOCKET = "reason.NO_SOCKET"
"""The kernel's reason (SKB_DROP_REASON_NO_SOCKET), of datagrams to the watched port."""
EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"
MOST_INTERFACES = 8
"""Above this number only interfaces of devices: a container host has a veth per container."""
TRIPLES = ("net.ipv4.udp_mem", "net.ipv4.ip_local_port_range")
CLOSE_LOOKS = 60
"""For which processes are read once packets were dropped, and after which in any case."""
SOCKETS_MAX = 2**16
"""Sockets of a survey; any user may open more, which an exporter would have to keep for weeks."""
LEAST_USED_NS = SECOND_NS // 20
"""CPU time after which a process is named: of each CPU no more than 20 a second."""
RARELY = 10
"""Looks between two queries for something that few hosts have."""
READERS_MAX = 8
"""Processes whose threads are looked at."""
SAMPLE_MS = (10, 30)
"""Between two looks at threads, at random: of a reader that sleeps in step with them, they would
see a part alone."""
PATIENCE = 20


class Looks:
    """Successive looks at one host."""

    def __init__(
        self,
        host: Host,
        name: str,
        counting: Union[SocketCounts, OSError, None] = None,
        owners: bool = True,
        changes: Optional[Changes] = None,
    ) -> None:
        """Without ``owners`` nobody searches for who holds sockets, nor looks at their threads.

        ``changes``: that hear already of what takes a right.
        """
        self._names_owners = owners
        self._opened = counting
        """Opened, or why not, while that was permitted."""
        self._host = host
        self._name = name
        self._owners = SocketOwners(host)
        self._others = OtherSpaces(host, self._owners)
        self._list = SocketList()
        self._listed: dict[int, UdpSocket] = {}
        self._sockets: dict[int, UdpSocket] = {}
        """By cookie, with the processes that hold them."""
        self._counting: Optional[SocketCounts] = None
        self._counts: dict[int, SocketCount] = {}
        self._closed: set[int] = set()
        """Counted but not listed in the previous look: closed, so their counts are final."""
        self._filtering: set[str] = set()
        """Counters of interfaces that have an ingress qdisc."""
        self._rest: tuple[UdpSocket, ...] = ()
        """Sockets of the latest look that were not yet returned."""
        self._named: list[str] = []
        """All interfaces, when those of devices were last looked for."""
        self._of_devices: list[str] = []
        self._irqs: set[int] = set()
        self._readers: dict[int, str] = {}
        """Processes whose threads are looked at, by name."""
        self._threads = ThreadSampler(host, {}, {}, (0, None))
        self._tick_ns = 0
        self._number = 0
        self._begun = False
        self._searches = 0
        """As many had been made of owners at the look before."""
        self._patience = 1
        """How many times as long it is between two looks at threads, for who looks for weeks."""
        self._dropping = False
        """A socket had dropped packets since the look before."""
        self._changes = changes or Changes(host)
        self._cpu_ns: dict[str, int] = {}
        """Process → what it had used when it was last named."""
        self._close_until = 0

    def look(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return the host's state and what changed since the last look; raises NothingToWatch."""
        if not self._begun:
            self._begin(pid, unit, exact)
        interfaces = self.interfaces()
        if self._number % RARELY == 0:
            self._irqs = {irq for name in interfaces for irq in card_interrupts(self._host, name)}
        counters = machine_counters(self._host, self._irqs)
        clock_ns = self._host.clock_ns()
        # Before the sockets are listed: a socket counted but not listed has been closed.
        counts = self._counting.counts() if self._counting is not None else None
        listed = self._few(self._list.read())
        self._number += 1
        counters.update(namespace_counters(self._host))
        if self._host.drops is not None:
            counters[UNBOUND] = self._host.drops.counts().get(NO_SOCKET, 0)
        for interface in interfaces:
            counters.update(self._device(interface))
        ended = self._sockets.keys() - listed.keys()
        self._owners.forget(self._sockets[cookie].inode for cookie in ended)
        changed = self._changed_sockets(listed, unit or "")
        dropping = [
            each
            for cookie, each in changed.items()
            if cookie in self._sockets and each.drops != self._sockets[cookie].drops
        ]
        self._dropping = bool(dropping or self._others.dropping)
        self._sockets.update(changed)
        for cookie in ended:
            del self._sockets[cookie]
        self._listed = listed
        watched = self._watched(pid, unit, self._sockets.values())
        return HostLook(
            snapshot=Snapshot(self._name, clock_ns, counters),
            interfaces=tuple(interfaces),
            sockets=tuple(changed.values()),
            ended=tuple(sorted(ended)),
            watched=watched,
            counts=self._changed(counts) if counts is not None else None,
            namespaces=self._owners.namespaces if pid is None else (),
            names_reasons=self._counting is not None and self._counting.names_reasons,
            threads=self._uses([*self._others.dropping, *dropping], changed.values(), watched),
            by_root=os.geteuid() == 0 or (self._names_owners and self._owners.sees_all),
        )

    def look_in_parts(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return a look with the first of its sockets; ``more_sockets`` returns the others."""
        look = self.look(pid, unit, exact)
        self._rest = look.sockets[LOOK_SOCKETS:]
        return replace(look, sockets=look.sockets[:LOOK_SOCKETS])

    def more_sockets(self) -> tuple[UdpSocket, ...]:
        """Return the next sockets of the latest look."""
        part, self._rest = self._rest[:LOOK_SOCKETS], self._rest[LOOK_SOCKETS:]
        return part

    def survey(self, exact: bool, closely: bool = False) -> MachineLook:
        """Return this namespace's state and every other's, and what changed there.

        ``closely``: also settings, what was changed here, and what processes use while packets are
        lost, or now and then.
        """
        self._patience = PATIENCE
        others = self._others.look()
        own = self.look(None, None, exact)
        space = self._host.netns()
        looks = [each.look for each in others if each.look is not None]
        processes = {
            process for look in (own, *looks) for each in look.sockets for process in each.processes
        }
        ports = read(self._host, EPHEMERAL) or ""
        return MachineLook(
            wall_ns=self._host.wall_ns(),
            spaces=(SpaceLook(space, OWN, own), *others),
            units={name: self._unit(name) for name in processes},
            ephemeral=tuple(int(port) for port in ports.split()),
            left_out=self._others.left_out,
            sees_all=self._owners.sees_all,
            cpu_ns=time.process_time_ns(),
            settings=self._settings() if closely else {},
            changed=self._changes.counts(own.interfaces) if closely else {},
            processes=self._busy() if closely else {},
        )

    def _settings(self) -> dict[str, str]:
        settings = {name: str(value) for name, value in limits(self._host, ()).items()}
        for name in TRIPLES:
            text = read(self._host, "/proc/sys/" + name.replace(".", "/"))
            settings.update({name: " ".join(text.split())} if text is not None else {})
        return settings

    def _busy(self) -> dict[str, int]:
        """Return the processes that ran since they were last named; empty if it is not due.

        Those that used so much, after the first time, so that no recording is filled by processes
        that are started without end; and the one that used most, or nobody could tell of this time.
        """
        if self._dropping:
            self._close_until = self._number + CLOSE_LOOKS
        if self._number > self._close_until and self._number % CLOSE_LOOKS != 1:
            return {}
        before, now = self._cpu_ns, self._times_ns()
        # Less than before: it is another of this name and number.
        used_ns = {name: abs(ns - before.get(name, 0)) for name, ns in now.items()}
        most = max(used_ns, key=used_ns.__getitem__, default="")
        named = {
            name: now[name]
            for name, ns in used_ns.items()
            if ns >= LEAST_USED_NS or name == most or not before
        }
        self._cpu_ns = {**{name: ns for name, ns in before.items() if name in now}, **named}
        return named

    def _times_ns(self) -> dict[str, int]:
        paths = [f"/proc/{name}/stat" for name in names(self._host, "/proc") if name.isdigit()]
        texts = (read(self._host, path) for path in paths)
        known = (parse_process(text, TICK_NS) for text in texts if text)
        return {f"{each.name} {each.pid}": each.cpu_ns for each in known}

    def _few(self, listed: dict[int, UdpSocket]) -> dict[int, UdpSocket]:
        """Return the sockets of a survey: where a user opens too many, those that were there first.

        Then those that have lost packets.
        """
        if self._patience == 1 or len(listed) <= SOCKETS_MAX:
            return listed
        known = self._sockets.keys()
        order = sorted(listed, key=lambda cookie: (cookie not in known, not listed[cookie].drops))
        return {cookie: listed[cookie] for cookie in order[:SOCKETS_MAX]}

    def _unit(self, process: str) -> str:
        return self._owners.unit(int(process.rpartition(" ")[2]))

    def tick(self, now_ns: int) -> Optional[int]:
        """Look at the threads of readers if that is due; return when the next look is."""
        if not self._readers:
            return None
        if now_ns >= self._tick_ns:
            self._threads.sample()
            pause_ms = random.randint(*SAMPLE_MS) * self._patience  # noqa: S311
            self._tick_ns = max(self._threads.due_ns, now_ns + pause_ms * 10**6)
        return self._tick_ns

    def _uses(
        self,
        dropping: Collection[UdpSocket],
        changed: Iterable[UdpSocket],
        watched: Optional[Collection[int]],
    ) -> dict[str, tuple[ThreadUse, ...]]:
        """Return what the holders of sockets that drop did since the look before.

        From now on their threads are looked at, then those looked at before, then those of others.
        """
        ours = {*watched} if watched is not None else None
        late, others = (
            [
                pid
                for each in some
                if ours is None or each.cookie in ours
                for pid in self._owners.holders(each.inode)
            ]
            for some in (dropping, changed)
        )
        uses = self._threads.uses()
        self._threads.restart()
        before = [pid for pid in self._readers if self._host.exists(f"/proc/{pid}")]
        pids = [*dict.fromkeys((*late, *before, *others))][:READERS_MAX]
        readers = {pid: self._owners.label(pid) for pid in pids}
        if readers != self._readers:
            during = self._threads.due_ns, None
            self._readers = readers
            self._threads = ThreadSampler(self._host, {}, readers, during)
        late_names = {self._owners.label(pid) for pid in late}
        return {name: threads for name, threads in uses.items() if name in late_names}

    def _changed_sockets(self, listed: dict[int, UdpSocket], unit: str) -> dict[int, UdpSocket]:
        """Return the sockets that are new, have changed, or whose owner has just become known."""
        before = self._listed
        new = listed.items() if listed is not before else ()
        changed = {cookie: each for cookie, each in new if each is not before.get(cookie)}
        if not self._names_owners:
            return changed
        ownerless = {cookie: each for cookie, each in self._sockets.items() if not each.processes}
        inodes = [each.inode for each in (*changed.values(), *ownerless.values())]
        self._owners.learn(inodes, unit)
        if self._owners.searches != self._searches:
            self._searches = self._owners.searches
            for cookie, each in ownerless.items():
                if self._owners.holders(each.inode):
                    changed.setdefault(cookie, each)
        return {
            cookie: held_by(each, self._owners.processes(each.inode))
            for cookie, each in changed.items()
        }

    def _begin(self, pid: Optional[int], unit: Optional[str], exact: bool) -> None:
        """Move into the target's network namespace and check that the target has a UDP socket."""
        if unit is not None:
            self._owners.learn((), unit)
            pids = self._owners.in_unit(unit)
            if not pids:
                raise NothingToWatch(no_process_of(unit), self._name)
            pid = pids[0]
        if pid is not None:
            self._enter(pid)
        if exact:
            try:
                self._counting = self._count_exactly()
            except OSError as error:
                raise NothingToWatch(_why_inexact(error), self._name) from error
        if (pid, unit) != (None, None) and not self._watched(pid, unit, self._list.read().values()):
            whose = f"unit {unit}" if unit is not None else f"process {pid}"
            text = f"{whose} has no UDP socket; ss -uap lists the processes that do"
            raise NothingToWatch(text, self._name)
        self._begun = True

    def _count_exactly(self) -> SocketCounts:
        if isinstance(self._opened, OSError):
            raise self._opened
        return self._opened if self._opened is not None else SocketCounts(self._host)

    def _enter(self, pid: int) -> None:
        try:
            enter(self._host, pid)
            self._host.listdir(f"/proc/{pid}/fd")
        except OSError as error:
            raise NothingToWatch(why_unseen(pid, error), self._name) from error

    def _watched(
        self, pid: Optional[int], unit: Optional[str], sockets: Iterable[UdpSocket]
    ) -> Optional[tuple[int, ...]]:
        """Return the socket cookies of a process or unit; None if all sockets are watched."""
        if (pid, unit) == (None, None):
            return None
        pids = self._owners.in_unit(unit) if unit is not None else [pid or 0]
        inodes = {inode for _, inode in all_held(self._host, pids)}
        return tuple(each.cookie for each in sockets if each.inode in inodes)

    def _changed(self, counts: dict[int, SocketCount]) -> dict[str, SocketCount]:
        """Return the counts that changed; drop those of sockets that closed earlier."""
        changed = {
            str(cookie): count
            for cookie, count in counts.items()
            if self._counts.get(cookie) != count
        }
        if self._counting is not None:
            self._counting.forget(self._closed)
        self._counts = {k: count for k, count in counts.items() if k not in self._closed}
        self._closed = {cookie for cookie in self._counts if cookie not in self._sockets}
        return changed

    def interfaces(self) -> list[str]:
        """Return the interfaces that are up; only those of devices if there are many."""
        named = names(self._host, "/sys/class/net")
        few = list(islice(filter(self._is_up, named), MOST_INTERFACES + 1))
        if len(few) <= MOST_INTERFACES:
            return few
        # Of 5,000 interfaces to ask each anew took 70 ms a look.
        if named != self._named or self._number % RARELY == 0:
            self._named = named
            self._of_devices = [
                name for name in named if self._host.exists(f"/sys/class/net/{name}/device")
            ]
        return [LOOPBACK, *islice(filter(self._is_up, self._of_devices), MOST_INTERFACES)]

    def _is_up(self, interface: str) -> bool:
        return read(self._host, f"/sys/class/net/{interface}/operstate") in ("up", "unknown")

    def _device(self, interface: str) -> dict[str, int]:
        """Return an interface's counters; empty if it has just been removed."""
        try:
            statistics = parse.parse_link_statistics(self._host.link_statistics(interface))
            counters = {f"link.{interface}.{name}": value for name, value in statistics.items()}
            if interface != LOOPBACK:
                own = self._host.statistics(interface)
                counters.update(parse.device_statistics(interface, own.items()))
                counters.update(queue_counters(self._host, interface))
                counters.update(self._ingress(interface))
        except OSError:
            return {}
        return counters

    def _ingress(self, interface: str) -> dict[str, int]:
        """Return the drops of the ingress qdisc.

        A query takes 2 ms, so interfaces without one are queried only occasionally.
        """
        name = f"qdisc.{interface}.ingress.drops"
        if name not in self._filtering and self._number % RARELY != 1:
            return {}
        qdiscs = self._host.rtnl("tc", "dump", index=self._host.index(interface))
        drops = {k: n for k, n in qdisc_counters(interface, qdiscs).items() if k == name}
        self._filtering.update(drops)
        return drops


def _why_inexact(error: OSError) -> str:
    """Return why sockets cannot be counted exactly, and what to do instead."""
    refused = error.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0
    step = "run as root, or omit --exact" if refused else "omit --exact"
    step = "end one of them, or omit --exact" if error.errno == errno.EUSERS else step
    why = f"sockets cannot be counted exactly: {error.strerror or error}"
    return f"{why}; {step}: each socket's drops are counted without it"
