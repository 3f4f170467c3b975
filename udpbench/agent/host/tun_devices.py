"""Which process has a tun or tap device: whatever that does with packets, the kernel knows not.

Changes nothing.
"""

from __future__ import annotations

from typing import Optional

from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.reading import ReadingHost as Host

TUN = "tun"
MACHINE = "anon_inode:kvm-vm"
"""What a process has open that runs a virtual machine. A file may be called /dev/vhost-net."""
SOCKET = "/proc/{pid}/root/run/wireguard/{name}.sock"
"""Where a process of WireGuard tells of itself, in its own file system."""


def holder(host: Host, name: str) -> Optional[int]:
    """Return the process that has a device of this namespace open; None: it is not known.

    A device may have been moved here from the namespace of its process.
    """
    pids = map(int, filter(str.isdigit, names(host, "/proc")))
    holders = [pid for pid in pids if _holds(host, pid, name)]
    own = host.link_target("/proc/thread-self/ns/net")
    inside = [pid for pid in holders if host.link_target(f"/proc/{pid}/ns/net") == own]
    known = inside or holders
    return known[0] if len(known) == 1 else None


def _holds(host: Host, pid: int, name: str) -> bool:
    return any(
        f"iff:\t{name}" in lines_of(read(host, f"/proc/{pid}/fdinfo/{number}"))
        for number in names(host, f"/proc/{pid}/fd")
        if host.link_target(f"/proc/{pid}/fd/{number}") == TUN
    )


def runs_machine(host: Host, pid: int) -> bool:
    """Return whether a process runs a virtual machine, of which a device is a card."""
    opened = names(host, f"/proc/{pid}/fd")
    return any(host.link_target(f"/proc/{pid}/fd/{number}") == MACHINE for number in opened)


def wireguard_socket(host: Host, name: str) -> Optional[str]:
    """Return the socket at which WireGuard in a process tells of a device; None: it has none."""
    pid = holder(host, name) if host.exists(f"/sys/class/net/{name}/tun_flags") else None
    if pid is None:
        return None
    listed = lines_of(read(host, f"/proc/{pid}/net/unix"))
    inodes = {line.split()[6] for line in listed if line.endswith(f"/wireguard/{name}.sock")}
    targets = {f"socket:[{inode}]" for inode in inodes}
    opened = (host.link_target(f"/proc/{pid}/fd/{n}") for n in names(host, f"/proc/{pid}/fd"))
    return SOCKET.format(pid=pid, name=name) if not targets.isdisjoint(opened) else None
