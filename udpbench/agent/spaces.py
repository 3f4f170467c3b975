"""Readings of every other network namespace of this machine, through a process in each.

Nothing is entered: /proc/PID/net shows the namespace of that process to whoever may see it. It has
no size of a socket's buffer. Owns what was read of each before. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Optional

from udpbench.agent.counters.snapshot import Parsed, namespace_counters
from udpbench.agent.host.files import lines_of, names, read_beginning
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.socket_owners import MOST_NAMESPACES, SocketOwners
from udpbench.agent.host.udp_diag import held_by
from udpbench.agent.host.udp_sockets import SocketQueue
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import HostLook, Snapshot, UdpSocket
from udpbench.model.survey import SpaceLook

TABLE_BYTES = 2**21
"""The table of one namespace and IP version: some 16,000 sockets."""
DOORS = 3
"""Processes that are tried; the others of a namespace have then ended, too."""
LOOK_NS = SECOND_NS
"""For all of them in one look; each further one is not read in it."""
NAMED = "/run/netns"
"""Where ``ip netns`` keeps its namespaces; only root writes there."""
OWN = "host"
"""The name of the observer's namespace."""
NOBODY = (-1,)
"""The inode of no socket: its owner is always searched for."""


class OtherSpaces:
    """Successive looks at the other network namespaces."""

    def __init__(self, host: Host, owners: SocketOwners) -> None:
        self._host = host
        self._owners = owners
        self._spaces: dict[int, _Space] = {}
        self._unread = False
        """A namespace could not be read, so that other processes in it are searched for."""
        self.left_out = 0
        """Namespaces that the latest look did not read, because there are too many."""
        self.dropping: list[UdpSocket] = []
        """The sockets of the latest look that had dropped packets since the look before."""

    def look(self) -> list[SpaceLook]:
        """Return what each has, and what changed there: those read before, then the oldest."""
        self._owners.learn(NOBODY if self._unread else (), "")
        doors = self._owners.doors()
        doors.pop(self._host.netns(), None)
        named = _named(self._host)
        self.dropping = []
        end_ns = self._host.clock_ns() + LOOK_NS
        # Who makes many later hides none of those that are read, whatever numbers processes have.
        chosen = sorted(doors, key=lambda space: space not in self._spaces)[:MOST_NAMESPACES]
        closed = [space for space in named if space not in doors and space != self._host.netns()]
        looks = [self._look(space, doors[space], named, end_ns) for space in chosen]
        self._unread = any(each.look is None for each in looks)
        self._spaces = {space: self._spaces[space] for space in chosen if space in self._spaces}
        looks += [SpaceLook(space, named[space], None) for space in closed]
        self.left_out = len(doors) + len(closed) - len(looks[:MOST_NAMESPACES])
        return looks[:MOST_NAMESPACES]

    def _look(
        self, space: int, doors: Iterable[int], named: dict[int, str], end_ns: int
    ) -> SpaceLook:
        name = named.get(space, str(space))
        known = self._spaces.get(space) or _Space()
        for pid in islice(doors, DOORS) if self._host.clock_ns() < end_ns else ():
            listed, is_all = _sockets(self._host, pid, known)
            if listed is None or not _is_in(self._host, pid, space):
                continue
            self._spaces[space] = known
            look = self._changes(pid, name, known, listed)
            # What is beyond the end of a table that is cut off may be there again at the next look.
            return SpaceLook(space, name, look if is_all else replace(look, ended=()))
        return SpaceLook(space, name, None)

    def _changes(
        self, pid: int, name: str, known: _Space, listed: dict[int, UdpSocket]
    ) -> HostLook:
        before, known.sockets = known.sockets, {}
        ended = tuple(inode for inode in before if inode not in listed)
        self._owners.forget(ended)
        self._owners.learn([inode for inode in listed if inode not in before], "")
        changed = []
        for inode, each in listed.items():
            earlier = before.get(inode)
            processes = self._owners.processes(inode)
            owned = held_by(each, processes) if processes else each
            if earlier != owned:
                changed.append(owned)
                if earlier is not None and earlier.drops != owned.drops:
                    self.dropping.append(owned)
            known.sockets[inode] = owned if earlier != owned else earlier
        clock_ns = self._host.clock_ns()
        try:
            counters = namespace_counters(self._host, f"/proc/{pid}/net", known.parsed)
        except OSError:  # it has just ended
            counters = {}
        return HostLook(Snapshot(name, clock_ns, counters), (), tuple(changed), ended)


class _Space:
    """What was read of a namespace before."""

    def __init__(self) -> None:
        self.sockets: dict[int, UdpSocket] = {}
        """By inode, with their processes."""
        self.parsed: Parsed = {}
        self.lines: dict[str, UdpSocket] = {}
        """By the line that was parsed: most are those of the look before."""


def _named(host: Host) -> dict[int, str]:
    """Return namespace → its name; one without a process cannot be read."""
    named = {}
    for name in names(host, NAMED):
        try:
            named[host.path(f"{NAMED}/{name}").stat().st_ino] = name
        except OSError:
            continue
    return named


def _is_in(host: Host, pid: int, space: int) -> bool:
    """Return whether a process is in a namespace: its number may be another's by now."""
    return host.link_target(f"/proc/{pid}/ns/net") == f"net:[{space}]"


def _sockets(host: Host, pid: int, known: _Space) -> tuple[Optional[dict[int, UdpSocket]], bool]:
    """Return the bound sockets of a process's namespace by inode, and whether these are all.

    None if the process has ended.
    """
    lines: dict[str, UdpSocket] = {}
    whole = True
    for name in ("udp", "udp6"):
        text, is_all = read_beginning(host, f"/proc/{pid}/net/{name}", TABLE_BYTES)
        whole &= is_all
        if name == "udp" and not text:
            return None, True
        for line in lines_of(text)[1:]:
            lines[line] = known.lines.get(line) or _socket(line, 4 if name == "udp" else 6)
    known.lines = lines
    return {each.inode: each for each in lines.values() if each.inode}, whole


def _socket(line: str, family: int) -> UdpSocket:
    columns = line.split()
    inode = int(columns[9])
    local, peer = (SocketQueue(0, 0, text) for text in columns[1:3])
    return UdpSocket(
        cookie=inode,
        inode=inode,
        family=4 if family == 4 else 6,
        address=local.address,
        port=local.port,
        peer=peer.address if peer.port else None,
        peer_port=peer.port,
        uid=int(columns[7]),
        queued_bytes=int(columns[4].partition(":")[2], 16),
        buffer_bytes=None,
        drops=int(columns[-1]),
    )
