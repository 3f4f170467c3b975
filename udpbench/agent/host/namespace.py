"""The agent's own view of a namespace it was started in: its sysfs, and a place for its journal.

Mounts only where the process that started the agent is in another network and another mount
namespace, so that nothing is ever mounted over what anybody else sees.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.system import Host

RUN_FOLDER = "/run/udpbench"
KINDS = ("net", "mnt")
INIT_USER_NS = 0xEFFFFFFD  # PROC_USER_INIT_INO, include/linux/proc_ns.h
NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h, Linux 4.9
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC_SLAVE = 1 << 12, 1 << 14 | 1 << 19
PINNED = "/sys/fs/bpf"
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MOUNT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC


def is_own(host: Host) -> bool:
    """Say whether ``unshare --net --mount`` made the namespaces for this process.

    Compared with the parent, because unshare and nsenter replace themselves by the agent. A process
    in a user namespace of its own may not look at a parent outside it: then the namespaces are its
    own if they belong to that user namespace. Without one, as a user who came by SSH, none is.
    """
    try:
        return all(
            _inode(host, f"/proc/self/ns/{kind}") != _inode(host, f"/proc/{os.getppid()}/ns/{kind}")
            for kind in KINDS
        )
    except PermissionError:
        user = _inode(host, "/proc/self/ns/user")
        return user != INIT_USER_NS and all(
            _owner(host, f"/proc/self/ns/{kind}") == user for kind in KINDS
        )
    except OSError:
        return False


def _inode(host: Host, path: str) -> int:
    return host.path(path).stat().st_ino


def _owner(host: Host, path: str) -> Optional[int]:
    """Return the inode of the user namespace that a namespace belongs to; None if out of sight."""
    with host.path(path).open("rb") as namespace:
        try:
            owner = fcntl.ioctl(namespace, NS_GET_USERNS)
        except OSError:
            return None
    try:
        return os.fstat(owner).st_ino
    finally:
        os.close(owner)


def settle(host: Host) -> None:
    """Mount this namespace's sysfs on /sys, and a tmpfs on /run where it cannot be written.

    Without the first, /sys/class/net shows the interfaces of the namespace in which /sys was
    mounted. The second hides the machine's /run from this agent alone. Raises OSError.
    """
    if not is_own(host):
        return
    _mount_sysfs(host)
    try:
        host.path(RUN_FOLDER).mkdir(mode=0o700, exist_ok=True)
    except OSError:
        _mount("tmpfs", "/run")
    else:
        if not os.access(host.path(RUN_FOLDER), os.W_OK):
            _mount("tmpfs", "/run")


def enter(host: Host, pid: int) -> None:
    """Move this process into another's network namespace, with that one's sysfs.

    Before anything else was asked of the host, since netlink sockets stay where they were opened.
    What is mounted is seen by this process alone. Raises OSError.
    """
    if _inode(host, f"/proc/{pid}/ns/net") == host.netns():
        return
    host.close()
    with host.path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
        _call("setns", namespace.fileno(), CLONE_NEWNET)
    _mount("sysfs", "/sys")


def enter_own(host: Host) -> None:
    """Make a network and a mount namespace for this process, as unshare(1) does, and settle there.

    Raises OSError: EPERM without root.
    """
    host.close()
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET)
    _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
    settle(host)


def _mount_sysfs(host: Host) -> None:
    """Mount this namespace's sysfs on /sys, and on it what is pinned in a BPF file system there."""
    pinned = os.open(host.path(PINNED), os.O_PATH) if os.path.ismount(host.path(PINNED)) else None
    _mount("sysfs", "/sys")
    if pinned is None:
        return
    # Refused in a user namespace, which may not use what is pinned either.
    with suppress(OSError):
        source = f"/proc/self/fd/{pinned}".encode()
        _call("mount", source, PINNED.encode(), None, MS_BIND, None)
    os.close(pinned)


def _mount(kind: str, target: str) -> None:
    arguments = (kind.encode(), target.encode(), kind.encode(), MOUNT_FLAGS, None)
    _call("mount", *arguments, what=f"mount of {kind}", where=target)


def _call(name: str, *arguments: object, what: str = "", where: Optional[str] = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what or name}: {os.strerror(code)}", where)
