"""Which processes hold which sockets, in this and other network namespaces.

A search reads every descriptor of every process, so it runs only if a socket's owner is unknown,
for a second, and for a small share of the time at most. Between two, those of new processes and
those whose socket was closed are read, of which there are few. Read-only.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from udpbench.agent.host.files import lines_of, names, read, read_beginning
from udpbench.agent.host.processes import TICK_NS, parse_process
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.udp_sockets import parse_udp_sockets, udp_sockets
from udpbench.errors import next_step
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import OtherNamespace
from udpbench.printable import printable

PAUSE = 500
"""Minimum pause between searches, as a multiple of a search's CPU time: at most 0.2 % of a CPU."""
NEAR_PAUSE = 100
"""The same between two readings of few descriptors: at a look a second, one in each."""
VACANT_MAX = 4096
"""Descriptors that are remembered once their socket was closed; each takes 4 us to read."""
SEARCH_NS = SECOND_NS
"""A search ends after this time: any user may keep millions of descriptors, at 20 us each, and
thousands of sockets in namespaces of its own."""
TURN = 100
"""How many descriptors of a user's processes are read before the next user's, of whom there may be
many: a user may own a range of user ids (subuid(5))."""
NEWS_NS = 60 * SECOND_NS
"""Interval of searches if no owner is missing, to detect new namespaces."""
MOST_NAMESPACES = 64
"""Any user may make thousands (user_namespaces(7)), each of which is read and reported."""
TABLE_BYTES = 2**17
"""A thousand sockets."""
CONTAINER = re.compile("-?[0-9a-f]{32,64}")
"""The id of a container in the name of its scope: another for each start."""
UNSEEN = "a process that could not be seen"


class SocketOwners:
    """The processes that hold sockets, by inode, as of the latest search."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._owners: dict[int, tuple[int, ...]] = {}
        self._descriptors: dict[int, int] = {}
        """Socket → its descriptor in the first of them."""
        self._vacant: dict[tuple[int, int], None] = {}
        """Processes and descriptors whose socket was closed, the latest last."""
        self._spaces: dict[int, int] = {}
        """Process → its network namespace, if visible; of other namespaces the oldest first."""
        self._labels: dict[int, str] = {}
        self._due_ns = self._news_ns = self._near_ns = 0
        self.searches = 0
        """How often was searched."""
        self.namespaces: tuple[OtherNamespace, ...] = ()
        """Other namespaces with UDP sockets."""

    def learn(self, inodes: Collection[int], unit: str) -> None:
        """Search again if an owner is missing and the pause is over."""
        now_ns, begun_ns = self._host.clock_ns(), time.thread_time_ns()
        missing = {inode for inode in inodes if inode not in self._owners}
        if missing and self._spaces and now_ns >= self._near_ns:
            missing -= self._search_near(missing)
            used_ns = time.thread_time_ns() - begun_ns
            self._near_ns = self._host.clock_ns() + NEAR_PAUSE * used_ns
        if now_ns < (self._due_ns if unit or missing else self._news_ns):
            return
        begun_ns = time.thread_time_ns()
        self._search()
        self.searches += 1
        used_ns = time.thread_time_ns() - begun_ns
        ended_ns = self._host.clock_ns()
        self._due_ns = ended_ns + PAUSE * used_ns
        self._news_ns = max(self._due_ns, ended_ns + NEWS_NS)

    def forget(self, closed: Iterable[int]) -> None:
        """Drop closed sockets, and remember their descriptors: the next to open have these."""
        for inode in closed:
            pids = self._owners.pop(inode, ())
            if inode in self._descriptors:
                self._vacant[pids[0], self._descriptors.pop(inode)] = None
        for place in [*islice(self._vacant, max(len(self._vacant) - VACANT_MAX, 0))]:
            del self._vacant[place]

    def holders(self, inode: int) -> tuple[int, ...]:
        """Return each visible process that holds a socket."""
        return self._owners.get(inode, ())

    def processes(self, inode: int) -> tuple[str, ...]:
        """Return name and pid, ``unbound 1234``, of each process that holds a socket."""
        return tuple([self.label(pid) for pid in self._owners.get(inode, ())])

    def doors(self) -> dict[int, list[int]]:
        """Return the processes in each network namespace that is visible, the oldest first."""
        doors: dict[int, list[int]] = {}
        for pid, space in self._spaces.items():
            if space:
                doors.setdefault(space, []).append(pid)
        return doors

    @property
    def sees_all(self) -> bool:
        """Whether the namespace of every process is visible; one that has ended has none."""
        for pid in [pid for pid, space in self._spaces.items() if not space]:
            try:
                os.readlink(self._host.path(f"/proc/{pid}/ns/net"))  # noqa: PTH115
            except PermissionError:
                return False
            except OSError:
                continue
        return True

    def unit(self, pid: int) -> str:
        """Return the system's unit of a process, ``unbound.service``; empty if it has none."""
        tops = _cgroups(self._host, 1)
        for kind, path in _cgroups(self._host, pid).items():
            named = _units(path, tops.get(kind, ""))
            units = sorted(name for name in named if not name.endswith(".slice"))
            if units:
                return CONTAINER.sub("", units[0])
        return ""

    def in_unit(self, unit: str) -> list[int]:
        """Return the processes of a unit of the system's systemd, by cgroup path."""
        tops = _cgroups(self._host, 1)
        unit_names = {unit, f"{unit}.service"}
        return [
            pid
            for pid in self._spaces
            if any(
                unit_names & _units(path, tops.get(kind, ""))
                for kind, path in _cgroups(self._host, pid).items()
            )
        ]

    def label(self, pid: int) -> str:
        """Return ``unbound 1234``."""
        if pid not in self._labels:
            self._labels[pid] = f"{read(self._host, f'/proc/{pid}/comm') or '?'} {pid}"
        return self._labels[pid]

    def _search(self) -> None:
        owners: dict[int, list[int]] = {}
        self._labels = {}
        end_ns = self._host.clock_ns() + SEARCH_NS
        pids = _processes(self._host)
        spaces, own = {pid: self._space(pid) for pid in pids}, self._host.netns()
        # Not by their numbers, which begin anew.
        ages = {pid: self._started(pid) for pid, space in spaces.items() if space not in (0, own)}

        def order(pid: int) -> tuple[int, int]:
            return ages.get(pid, 0), pid

        self._spaces = {pid: spaces[pid] for pid in sorted(pids, key=order)}
        self._descriptors = {}
        for pid, descriptor, inode in _held(self._host, pids):
            owners.setdefault(inode, []).append(pid)
            self._descriptors.setdefault(inode, descriptor)
        self._owners = {inode: tuple(dict.fromkeys(pids)) for inode, pids in owners.items()}
        self.namespaces = tuple(islice(self._others(end_ns), MOST_NAMESPACES))

    def _search_near(self, missing: set[int]) -> set[int]:
        """Return of which of these sockets an owner was learnt: where sockets open most often.

        In processes that began after the last search, and where a socket was closed: a process
        is given its lowest free descriptor (open(2)).
        """
        young = [pid for pid in _processes(self._host) if pid not in self._spaces]
        held = [each for each in _held(self._host, young) if each[2] in missing]
        for pid, descriptor in tuple(self._vacant):
            target = self._host.link_target(f"/proc/{pid}/fd/{descriptor}")
            if target is not None:
                del self._vacant[pid, descriptor]
                if target[:8] == "socket:[" and inode_of(target) in missing:
                    held.append((pid, descriptor, inode_of(target)))
        owners: dict[int, dict[int, None]] = {}
        for pid, descriptor, inode in held:
            self._labels.pop(pid, None)
            owners.setdefault(inode, {})[pid] = None
            self._descriptors.setdefault(inode, descriptor)
        self._owners.update({inode: tuple(pids) for inode, pids in owners.items()})
        self.searches += bool(held)
        return set(owners)

    def _space(self, pid: int) -> int:
        target = self._host.link_target(f"/proc/{pid}/ns/net") or ""
        return int(target[5:-1]) if target.startswith("net:[") else 0

    def _started(self, pid: int) -> int:
        text = read(self._host, f"/proc/{pid}/stat")
        return parse_process(text, TICK_NS).started if text else 0

    def _others(self, end_ns: int) -> Iterator[OtherNamespace]:
        """Yield the other namespaces with UDP sockets, read through one process of each.

        For a limited time; of many sockets the first, as the kernel begins anew for each page.
        """
        own = self._host.netns()
        # The oldest: who makes many later hides none of them.
        for space, (door, *_) in self.doors().items():
            if space == own:
                continue
            if self._host.clock_ns() > end_ns:
                return
            tables = [
                read_beginning(self._host, f"/proc/{door}/net/{name}", TABLE_BYTES)
                for name in ("udp", "udp6")
            ]
            whole = all(is_all for _, is_all in tables)
            sockets = {
                k: queue for text, _ in tables for k, queue in parse_udp_sockets(text).items()
            }
            holders = [self._owners[inode][0] for inode in sockets if inode in self._owners]
            if sockets:
                pid = min(holders, default=door)
                drops = sum(queue.drops for queue in sockets.values())
                yield OtherNamespace(pid, self.label(pid), len(sockets), drops, whole)


def _cgroups(host: Host, pid: int) -> dict[str, str]:
    """Return a process's paths where systemd has units: ``name=systemd`` of cgroup v1, and v2."""
    rows = (line.split(":", 2) for line in lines_of(read(host, f"/proc/{pid}/cgroup")))
    paths = {row[1]: row[2] for row in rows if len(row) == 3}
    return {kind: paths[kind] for kind in ("name=systemd", "") if kind in paths}


def _units(cgroup: str, init: str) -> set[str]:
    """Return the units of the system with a cgroup; systemd itself has ``init``, in init.scope.

    That is slices and the first folder in them: what is below belongs to the unit, which may give
    it to a user, as user@1000.service does with that user's own units; only that user is shown
    these.
    """
    top = init.partition("/init.scope")[0].rstrip("/")
    own = f"user@{os.geteuid()}.service"
    if not cgroup.startswith(f"{top}/"):
        return set()
    units = set()
    for name in cgroup[len(top) + 1 :].split("/"):
        units.add(name[1:] if name[:1] == "_" else name)  # escaped (cg_escape of systemd)
        if not name.endswith(".slice") and name != own:
            break
    return units - {"", ".."}  # of what is outside of the namespace of cgroups, no unit is known


def no_process_of(unit: str) -> str:
    """Return the message for a unit without a process."""
    step = "systemctl status lists units; root also sees other users' processes"
    return f"no process belongs to unit {unit}; {step}"


def why_unseen(pid: int, error: OSError) -> str:
    """Return why a process cannot be read, with the next step."""
    if error.errno in (errno.ENOENT, errno.ESRCH):
        return f"there is no process {pid}; ps -e lists running processes"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"process {pid} belongs to another user or namespace; run as root"
    return f"process {pid}: {error.strerror}; {next_step(error.errno)}"


def _processes(host: Host) -> list[int]:
    return [int(name) for name in names(host, "/proc") if name.isdigit()]


def all_held(host: Host, pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield processes and the sockets that they hold: for a limited time, its users in turn."""
    return ((pid, inode) for pid, _, inode in _held(host, pids))


def _held(host: Host, pids: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield processes, descriptors and sockets likewise."""
    end_ns = host.clock_ns() + SEARCH_NS
    for pid, name, target in in_turns(host, by_user(host, pids).values(), end_ns):
        if target[:8] == "socket:[":
            yield pid, int(name), inode_of(target)


def by_user(host: Host, pids: Iterable[int]) -> dict[str, list[int]]:
    """Return the processes of each user."""
    users: dict[str, list[int]] = {}
    for pid in pids:
        users.setdefault(_user(host, pid), []).append(pid)
    return users


def in_turns(
    host: Host, users: Iterable[Iterable[int]], end_ns: int
) -> Iterator[tuple[int, str, str]]:
    """Yield processes, descriptors and where these lead, of each user's processes in turn.

    Not of all of them where the time has ended.
    """
    waiting = deque(_turns(host, own) for own in users)
    while waiting and host.clock_ns() <= end_ns:
        turn = next(waiting[0], None)
        if turn is None:
            waiting.popleft()
        else:
            yield from turn
            waiting.rotate(-1)


def _turns(host: Host, pids: Iterable[int]) -> Iterator[list[tuple[int, str, str]]]:
    """Yield what processes have open, a limited number of descriptors at a time."""
    targets = ((pid, *each) for pid in pids for each in _targets(host, pid))
    while some := list(islice(targets, TURN)):
        yield some


def _targets(host: Host, pid: int) -> Iterator[tuple[str, str]]:
    folder = f"/proc/{pid}/fd"
    return ((name, host.link_target(f"{folder}/{name}") or "") for name in names(host, folder))


def inode_of(target: str) -> int:
    """Return the number in ``socket:[4711]``."""
    return int(target[8:-1])


def port_inodes(host: Host, ports: Collection[int]) -> set[int]:
    """Return the inodes of this namespace's UDP sockets at these ports, on any address."""
    return {inode for inode, known in udp_sockets(host).items() if known.port in ports}


def holders_in_words(host: Host, inodes: Iterable[int]) -> str:
    """Return who holds sockets: ``unbound 1234 (user 105)``; empty without sockets.

    Records contain it, so not the command line, which may hold what is others' alone.
    """
    unseen = set(inodes)
    holders: dict[int, None] = {}
    for pid, inode in all_held(host, _processes(host)) if unseen else ():
        if inode in unseen:
            holders[pid] = None
            unseen.discard(inode)
        if not unseen:
            break
    words = [_in_words(host, pid) for pid in holders]
    return ", ".join([*words, *([UNSEEN] if unseen else [])])


def held_by_others(host: Host, inodes: Collection[int], pids: Collection[int]) -> dict[int, str]:
    """Return socket → who holds it, of those that none of these processes holds."""
    own = {inode for _, inode in all_held(host, pids)} if inodes else set()
    unseen = set(inodes) - own
    holders = dict.fromkeys(unseen, UNSEEN)
    for pid, inode in all_held(host, _processes(host)) if unseen else ():
        if inode in unseen:
            holders[inode] = _in_words(host, pid)
            unseen.discard(inode)
        if not unseen:
            break
    return holders


def _in_words(host: Host, pid: int) -> str:
    comm = read(host, f"/proc/{pid}/comm") or "?"
    return printable(f"{comm} {pid} (user {_user(host, pid)})", keep="")


def _user(host: Host, pid: int) -> str:
    """Return a process's effective user, ``105``; ``?`` if it is gone."""
    rows = lines_of(read(host, f"/proc/{pid}/status"))
    return next((row.split()[2] for row in rows if row.startswith("Uid:")), "?")
