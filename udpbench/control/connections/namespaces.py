"""Agents in namespaces of this machine: how this user can create or enter them, or why not.

As root each agent has a network and a mount namespace. Without root all agents of a run share one
user namespace, in which they are root and may join their networks. Changes nothing on the machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from udpbench.control.connections.channel import Channel
from udpbench.control.connections.forks import LocalAgents
from udpbench.control.connections.local_agent import AGENT_COMMAND, open_local
from udpbench.control.wait import Clock, Interrupt, Waiter
from udpbench.errors import ConnectError, NotPermitted
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS

NAMESPACES = "/run/netns"
"""Where ip(8) keeps namespaces by name."""
ENGINES = ("docker", "podman")
ENGINE_S = 10.0
REASON_CHARACTERS = 200
NS_GET_USERNS, NS_GET_NSTYPE, NS_GET_OWNER_UID, CLONE_NEWNET = 0xB701, 0xB703, 0xB704, 0x40000000
"""include/uapi/linux/nsfs.h, Linux 4.11; sched.h"""
UID = struct.Struct("=I")
OWN_NETWORKS = ("/proc/self/ns/net", "/proc/1/ns/net")
"""That of this process and the machine's; their settings are not a container's."""
UNSHARE_MOUNT = ("unshare", "--mount")
UNSHARE = ("unshare", "--net", "--mount")
UNSHARE_USER = ("unshare", "--user", "--map-root-user", "--net", "--mount")
PROOF = ("mount", "-t", "sysfs", "sysfs", "/sys")
"""Run first in a namespace: AppArmor may let unshare succeed but remove its capabilities."""
MAPPED_NS = 5 * SECOND_NS
"""For unshare to map our user in a new user namespace, which takes a few milliseconds."""

# Path → the value that forbids namespaces, and root's remedy.
SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
    "/proc/sys/user/max_net_namespaces": ("0", "sysctl -w user.max_net_namespaces=10000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}

Means = Literal["root", "user"]


class Namespaces:
    """Opens the agents of one run, each in a namespace of its own."""

    def __init__(self, agents: LocalAgents) -> None:
        self._agents = agents
        self._means: Means | None = None
        self._first: int | None = None
        """Without root: the process whose user namespace all agents share."""

    def open(self, host: str) -> Channel:
        """Return a channel to an agent in a network and mount namespace of its own.

        unshare and nsenter replace themselves by the agent, so the channel's pid is the agent's.
        Raises ConnectError, NotPermitted.
        """
        if self._means in (None, "root"):
            forked = self._agents.forked(host, private=True)
            if forked is not None:
                self._means = "root"
                return forked
        if self._means is None:
            self._means = available_means()
        if self._means == "root":
            return open_local(host, (*UNSHARE, *AGENT_COMMAND))
        if self._first is None:
            channel = open_local(host, (*UNSHARE_USER, *AGENT_COMMAND))
            self._first = channel.pid
            return channel
        _await_mapping(self._first, host)
        enter = ("nsenter", "--user", "--preserve-credentials", f"--target={self._first}")
        return open_local(host, (*enter, *UNSHARE, *AGENT_COMMAND))


def open_inside(
    host: str, connect: Connect, command: Sequence[str], agents: LocalAgents | None = None
) -> Channel:
    """Return a channel to an agent in a network namespace that is there, in mounts of its own.

    It is a fork of ``agents`` if there can be one, else a process that runs ``command``.

    The namespace is held open and compared by its inode: another of the same name is not entered.
    A container's is that of its first process. Raises ConnectError, NotPermitted.
    """
    if os.geteuid() != 0:
        raise NotPermitted(
            "to enter a network namespace takes root: run udpbench as root, or reach the host "
            "by ssh",
            host,
        )
    name = connect.name or ""
    is_container = connect.by == "container"
    path, user = _of_container(name, host) if is_container else (f"{NAMESPACES}/{name}", 0)
    try:
        namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        step = "see whether it runs" if is_container else "see `ip netns list`"
        raise ConnectError(f"{path}: {error.strerror}; {step}", host) from error
    try:
        if not _is_namespace(namespace):
            raise ConnectError(f"{path} is no network namespace; see `ip netns list`", host)
        if is_container:
            _prove_its_own(namespace, user, name, host)
        if is_container and _of_container(name, host)[0] != path:
            raise ConnectError(f"container {name} was started anew meanwhile; try again", host)
        forked = agents.forked(host, private=False, namespace=namespace) if agents else None
        if forked is not None:
            return forked
        enter = ("nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}")
        channel = open_local(host, (*enter, *UNSHARE_MOUNT, *command))
        _await_entered(channel.pid, namespace, host)
    finally:
        os.close(namespace)
    return channel


def _of_container(name: str, host: str) -> tuple[str, int]:
    """Return the path of the network namespace of a container's first process.

    And the user whose engine names that process: the owner of its program.
    """
    reasons = []
    for engine in ENGINES:
        asked = (engine, "inspect", "--format", "{{.State.Pid}}", "--", name)
        try:
            done = subprocess.run(
                asked, capture_output=True, text=True, check=False, timeout=ENGINE_S
            )
        except FileNotFoundError:
            reasons.append(f"{engine} is not installed")
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{engine}: {error}")
        else:
            pid = done.stdout.strip()
            if done.returncode == 0 and pid.isascii() and pid.isdecimal() and int(pid) > 0:
                return f"/proc/{pid}/ns/net", Path(shutil.which(engine) or "/").stat().st_uid
            words = " ".join(done.stderr.split())[:REASON_CHARACTERS]
            reasons.append(f"{engine}: {words or 'it does not run'}")
    raise ConnectError(f"container {name}: {'; '.join(reasons)}; start it", host)


def _prove_its_own(namespace: int, user: int, name: str, host: str) -> None:
    """Raise ConnectError if an engine names a process that is in no network of a container's.

    Users make namespaces of their own alone, so that the engine of one of them leads to no other.
    """
    for path in OWN_NETWORKS:
        with suppress(OSError):  # of the machine, in a user namespace
            if os.path.samestat(os.fstat(namespace), Path(path).stat()):
                what = f"container {name} uses this machine's own network"
                raise ConnectError(f"{what}; write connect: local", host)
    if user and owner_of(namespace) != user:
        what = f"container {name}: its network is not of user {user}, who owns the engine in PATH"
        raise ConnectError(f"{what}; put root's engine there", host)


def owner_of(namespace: int) -> int | None:
    """Return the user who owns an open namespace; None if that cannot be seen."""
    try:
        users = fcntl.ioctl(namespace, NS_GET_USERNS)
    except OSError:
        return None
    try:
        owner: int = UID.unpack(fcntl.ioctl(users, NS_GET_OWNER_UID, bytes(UID.size)))[0]
    finally:
        os.close(users)
    return owner


def _is_namespace(file: int) -> bool:
    try:
        return fcntl.ioctl(file, NS_GET_NSTYPE) == CLONE_NEWNET
    except OSError:
        return False


def _await_entered(pid: int | None, namespace: int, host: str) -> None:
    """Wait until the process is in the namespace; its path is used no more."""
    inode = os.fstat(namespace).st_ino

    def entered() -> bool:
        try:
            return Path(f"/proc/{pid}/ns/net").stat().st_ino == inode
        except OSError:
            return True  # it has died, and says why

    what = f"process {pid} is not yet in network namespace {inode}"
    Waiter(Clock(), Interrupt()).until(what, host, entered, MAPPED_NS)


def available_means() -> Means:
    """Return by trying how this user can create namespaces; NotPermitted if it cannot.

    Raises ConnectError if unshare(1) is missing.
    """
    if _tried(UNSHARE) is None:
        return "root"
    words = _tried(UNSHARE_USER)
    if words is None:
        return "user"
    raise NotPermitted(forbidden(words, _read))


def _tried(unshare: tuple[str, ...]) -> str | None:
    """Return unshare's message if no usable namespace can be made; None if one can."""
    try:
        done = subprocess.run((*unshare, *PROOF), capture_output=True, text=True, check=False)
    except OSError as error:
        text = f"{unshare[0]} cannot be started: {error.strerror}; install util-linux or fix PATH"
        raise ConnectError(text) from error
    return None if done.returncode == 0 else " ".join(done.stderr.split()) or "it gives no reason"


def forbidden(words: str, read: Callable[[str], str | None]) -> str:
    """Return why no lab can be made here, with the remedy; ``read`` returns a file's text."""
    causes = [
        (f"{path.removeprefix('/proc/sys/').replace('/', '.')} is {value}", remedy)
        for path, (value, remedy) in SWITCHES.items()
        if read(path) == value
    ]
    why = "; ".join(reason for reason, _ in causes) or words
    as_root = " && ".join(remedy for _, remedy in causes)
    remedy = f", or once as root: {as_root}" if as_root else " (a container must be privileged)"
    return (
        "a built-in lab needs network namespaces, which this user may not create "
        f"({why}); run udpbench as root{remedy}"
    )


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _await_mapping(pid: int, host: str) -> None:
    """Wait until unshare has mapped our user in a new user namespace; it writes gid_map last."""

    def mapped() -> bool:
        try:
            own = Path(f"/proc/{pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
        except OSError:
            return True  # the agent has died; nsenter says so
        return own and _read(f"/proc/{pid}/gid_map") != ""

    what = f"process {pid} has no user namespace yet"
    Waiter(Clock(), Interrupt()).until(what, host, mapped, MAPPED_NS)
