"""Sets up the agent's namespace: its sysfs, and a folder for its journal.

Mounts only if the agent's parent is in another network and another mount namespace, so that no
other process sees the mounts.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.reading import ReadingHost as Host

RUN_FOLDER = "/run/udpbench"
KINDS = ("net", "mnt")
INIT_USER_NS = 0xEFFFFFFD  # PROC_USER_INIT_INO, include/linux/proc_ns.h
NS_GET_USERNS = 0xB701  # include/uapi/linux/nsfs.h, Linux 4.9
NS_GET_NSTYPE = 0xB703
NAMED = "/run/netns"
"""Where ip(8) keeps namespaces by name."""
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
KEPT = ("/sys/fs/bpf", "/sys/fs/cgroup")
"""Pinned BPF objects, and the cgroups that a guardian leaves: no network namespace has its own."""
MS_BIND_ALL, MS_REC_SLAVE = 1 << 12 | 1 << 14, 1 << 14 | 1 << 19
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MOUNT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC


def is_own(host: Host) -> bool:
    """Return whether ``unshare --net --mount`` created the namespaces for this process.

    Compares with the parent, because unshare and nsenter replace themselves by the agent. In a user
    namespace the parent outside it is not visible: then the namespaces are the agent's own if they
    belong to that user namespace. In the initial user namespace, as over SSH without root, none is.
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
    """Return the inode of the user namespace that owns a namespace; None if not visible."""
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
    """Mount this namespace's sysfs on /sys, and a tmpfs on /run if it is not writable.

    Otherwise /sys/class/net would show the interfaces of the namespace in which /sys was mounted.
    The tmpfs hides the machine's /run from this agent only. OSError if a mount fails.
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
    """Move this process into another process's network namespace, with its sysfs.

    Must come before any other use of the host, since netlink sockets stay in the namespace where
    they were opened. Mounts are visible to this process only. OSError if it fails.
    """
    if _inode(host, f"/proc/{pid}/ns/net") == host.netns():
        return
    host.close()
    with host.path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
        _call("setns", namespace.fileno(), CLONE_NEWNET)
    _mount_sysfs(host)


def enter_named(host: Host, name: str) -> None:
    """Move this process into a namespace that ``ip netns`` lists, and set it up.

    Replies to the controller leave by its interfaces only if this process was there before.
    OSError if it fails.
    """
    path = f"{NAMED}/{name}"
    before = host.netns()
    with host.path(path).open("rb") as namespace:
        try:
            kind = fcntl.ioctl(namespace, NS_GET_NSTYPE)
        except OSError:
            kind = 0
        if kind != CLONE_NEWNET:
            raise OSError(errno.EINVAL, "no network namespace", path)
        join(host, namespace.fileno())
    if host.netns() != before:
        host.ssh = ""


def enter_own(host: Host) -> None:
    """Create a network and a mount namespace for this process, like unshare(1), and set them up.

    OSError if it fails: EPERM without root.
    """
    host.close()
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET)
    _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
    settle(host)


def enter_own_run() -> None:
    """Give this process an empty /run that no other process sees; OSError if it fails."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
    _mount("tmpfs", "/run")


def join(host: Host, namespace: int) -> None:
    """Move this process into a network namespace, with its own mounts, and set these up.

    Must come before any other use of the host, as with ``enter``. OSError if it fails.
    """
    host.close()
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC_SLAVE, None)
    _call("setns", namespace, CLONE_NEWNET)
    settle(host)


def _mount_sysfs(host: Host) -> None:
    """Mount this namespace's sysfs on /sys, and on top of it what the machine has there."""
    places = [(name, host.path(name)) for name in KEPT]
    mounted = [(n, os.open(path, os.O_PATH)) for n, path in places if os.path.ismount(path)]
    _mount("sysfs", "/sys")
    for name, file in mounted:
        # Refused in a user namespace, which may use neither anyway.
        with suppress(OSError):
            source = f"/proc/self/fd/{file}".encode()
            _call("mount", source, name.encode(), None, MS_BIND_ALL, None)
        os.close(file)


def _mount(kind: str, target: str) -> None:
    arguments = (kind.encode(), target.encode(), kind.encode(), MOUNT_FLAGS, None)
    _call("mount", *arguments, what=f"mount of {kind}", where=target)


def _call(name: str, *arguments: object, what: str = "", where: Optional[str] = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what or name}: {os.strerror(code)}", where)
