"""Agents in namespaces of this machine: how this user can create them, or why not.

As root each agent has a network and a mount namespace. Without root all agents of a run share one
user namespace, in which they are root and may join their networks. Changes nothing on the machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from udpbench.control.connections.channel import Channel
from udpbench.control.connections.local_agent import AGENT_COMMAND, open_local
from udpbench.control.wait import Clock, Interrupt, Waiter
from udpbench.errors import ConnectError, NotPermitted
from udpbench.model.limits import SECOND_NS

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

    def __init__(self) -> None:
        self._means: Means | None = None
        self._first: int | None = None
        """Without root: the process whose user namespace all agents share."""

    def open(self, host: str) -> Channel:
        """Return a channel to an agent in a network and mount namespace of its own.

        unshare and nsenter replace themselves by the agent, so the channel's pid is the agent's.
        Raises ConnectError, NotPermitted.
        """
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
