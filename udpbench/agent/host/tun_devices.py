"""Which process has a tun or tap device: whatever that does with packets, the kernel knows not.

Changes nothing. A search reads every descriptor of every process, for a limited time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Callable, Optional

from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.socket_owners import SEARCH_NS, by_user, in_turns

TUN, FOLDER = "tun", "/net/tun"
"""The device in any /dev: a container has its own, and anybody a file of the mere name."""
NAMED = "iff:\t"
MACHINE = "anon_inode:kvm-vm"
"""What a process has open that runs a virtual machine. A file may be called /dev/vhost-net."""
SOCKET = "/proc/{pid}/root/run/wireguard/{name}.sock"
"""Where a process of WireGuard tells of itself, in its own file system."""


@contextmanager
def searched_once(host: Host) -> Iterator[None]:
    """Search once for all that is asked meanwhile."""
    host.tuns = {}
    try:
        yield
    finally:
        host.tuns = None


def _once(host: Host, what: object, search: Callable[[], Any]) -> Any:
    kept = host.tuns
    if kept is None:
        return search()
    if what not in kept:
        kept[what] = search()
    return kept[what]


def holder(host: Host, name: str) -> Optional[int]:
    """Return the process that has a device of this namespace open; None: it is not known.

    A device may have been moved here from the namespace of its process. Root's in this namespace
    is known whatever others have open: any user makes devices of any name in namespaces of its own.
    So no user's process is believed to have what one of root's elsewhere may have.
    """
    devices, is_all = _once(host, TUN, lambda: _search(host))
    holders: dict[int, bool] = devices.get(name, {})
    own = host.link_target("/proc/thread-self/ns/net")
    inside = [pid for pid in holders if host.link_target(f"/proc/{pid}/ns/net") == own]
    roots = [pid for pid in holders if holders[pid]]
    known, is_known = [pid for pid in inside if pid in roots], True
    if not known and inside:
        known, is_known = inside, is_all and not roots
    elif not known:
        known, is_known = roots or [*holders], is_all
    return known[0] if len(known) == 1 and is_known else None


def _search(host: Host) -> tuple[dict[str, dict[int, bool]], bool]:
    """Return device → its processes, each with whether it is root's, and whether these are all.

    Root's are read before all others: any user may keep millions of descriptors, and own many ids.
    """
    end_ns = host.clock_ns() + SEARCH_NS
    users = by_user(host, map(int, filter(str.isdigit, names(host, "/proc"))))
    of_root = users.pop("0", [])
    devices: dict[str, dict[int, bool]] = {}
    for pid, number, target in chain(
        in_turns(host, [of_root], end_ns), in_turns(host, users.values(), end_ns)
    ):
        if target != TUN or not _is_device(host, f"/proc/{pid}/fd/{number}"):
            continue
        if host.clock_ns() > end_ns:  # a turn has many, of which each may take long
            break
        for line in lines_of(read(host, f"/proc/{pid}/fdinfo/{number}")):
            if line.startswith(NAMED):
                devices.setdefault(line[len(NAMED) :], {})[pid] = pid in of_root
    return devices, host.clock_ns() <= end_ns


def _is_device(host: Host, descriptor: str) -> bool:
    try:
        return os.readlink(f"{host.root}/{descriptor}").endswith(FOLDER)  # noqa: PTH115
    except OSError:  # closed by now
        return False


def _opened(host: Host, pid: int) -> set[str]:
    """Return where a process's descriptors lead: those that are read in time."""
    end_ns = host.clock_ns() + SEARCH_NS
    return {target for _, _, target in in_turns(host, [[pid]], end_ns)}


def runs_machine(host: Host, pid: int) -> bool:
    """Return whether a process runs a virtual machine, of which a device is a card."""
    return MACHINE in _once(host, pid, lambda: _opened(host, pid))


def wireguard_socket(host: Host, name: str) -> Optional[str]:
    """Return the socket at which WireGuard in a process tells of a device; None: it has none."""
    pid = holder(host, name) if host.exists(f"/sys/class/net/{name}/tun_flags") else None
    if pid is None:
        return None
    listed = lines_of(read(host, f"/proc/{pid}/net/unix"))
    rows = (line.split() for line in listed if line.endswith(f"/wireguard/{name}.sock"))
    # A name may have a line end, and what follows it no columns.
    targets = {f"socket:[{row[6]}]" for row in rows if len(row) > 6}
    opened = _once(host, pid, lambda: _opened(host, pid))
    return SOCKET.format(pid=pid, name=name) if not targets.isdisjoint(opened) else None
