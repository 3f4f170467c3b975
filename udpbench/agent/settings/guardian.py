"""A child process that restores this host when its agent is killed.

It holds the read end of a pipe whose write end only the agent has: end of file means that the agent
has ended. It does nothing while the agent shows that it lives, and ends when nothing is left to do,
because it keeps the network namespace alive. An agent that shows nothing for longer than a request
may take hangs, as in a system call that another user's file system does not answer, or is stopped:
then the guardian kills it. Where it may, it leaves its agent's cgroup for one of its own, so
that whoever ends that cgroup (``systemctl``, ``loginctl``, ``cgroup.kill``) does not end it, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:  # with the standard library alone the child starts in 20 ms, not 300
    import subprocess

    from udpbench.agent.host.system import Host
    from udpbench.agent.settings.journal import Journal

START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0
HANGS_S = 90
"""Without a sign of life beyond the lease: a request takes 60 s at most (``VERBS``)."""
BEAT_S = 5.0
"""Interval between signs of life."""
STOOD_STILL_S = 10.0
"""So long more is waited for the last, as of an agent that stood still together with its guardian,
in a virtual machine that was paused."""
CGROUPS = ("sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/systemd")
"""Hierarchies by which systemd ends processes: version 2, hybrid, version 1 (cgroups(7))."""
CGROUP_PREFIX = "udpbench-guardian-"
CGROUP_MEMBERS = "cgroup.procs"
_READY = b"r"
_RELEASE = b"q"
_ALIVE = b"."


class Guardian:
    """The agent's end: the child process, and the pipe that shows it that the agent lives."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, answers: int) -> None:
        self.process = process
        self._pipe = pipe
        self._answers = answers
        """Where it says that it is ready; -1 once it has said so."""
        self._beat_s = 0.0

    @classmethod
    def start(cls, host: Host, journal: Journal, hangs_s: float = HANGS_S) -> Guardian:
        """Start a guardian of this journal, whose file need not exist yet; takes 30 ms.

        AgentError if the child does not start: then nothing may be changed.
        """
        guardian = cls.launch(host, journal, hangs_s)
        guardian.await_ready()
        return guardian

    @classmethod
    def launch(cls, host: Host, journal: Journal, hangs_s: float = HANGS_S) -> Guardian:
        """Start a guardian; nothing may be changed before ``await_ready`` has returned.

        It kills this process once ``check`` was not called for ``hangs_s``.
        """
        import subprocess

        from udpbench.agent.host.own_python import build_lock, own_command

        theirs, ours = os.pipe()  # closed in every other child (PEP 446)
        answers, answering = os.pipe()
        os.set_blocking(ours, False)  # a guardian that is stopped reads nothing
        own = str(os.getpid()), f"{hangs_s:g}"
        command = own_command(__name__, str(host.root), str(journal.path), *own)
        try:
            process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=answering,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=build_lock(),
                start_new_session=True,
            )
        except OSError:
            os.close(ours)
            os.close(answers)
            raise
        finally:
            os.close(theirs)
            os.close(answering)
        return cls(process, ours, answers)

    def check(self) -> bool:
        """Return whether the guardian is alive, and show it that the agent is.

        A dead one must be replaced before any change.
        """
        alive = self.process.poll() is None
        if not alive:
            self._hang_up()
        elif (now_s := time.monotonic()) >= self._beat_s + BEAT_S:
            self._beat_s = now_s
            self._say(_ALIVE)
        return alive

    def _say(self, what: bytes) -> None:
        with suppress(BrokenPipeError, BlockingIOError):  # it has just died, or is stopped
            os.write(self._pipe, what)

    def release(self) -> None:
        """Dismiss the guardian without restoring anything, and wait for its end."""
        import subprocess

        if self._pipe < 0:
            return
        self._say(_RELEASE)
        self._hang_up()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _hang_up(self) -> None:
        for file in (self._pipe, self._answers):
            if file >= 0:
                os.close(file)
        self._pipe = self._answers = -1

    def await_ready(self) -> None:
        """Wait until it guards; AgentError if it does not start."""
        from udpbench.errors import AgentError

        answers, self._answers = self._answers, -1
        if answers < 0:
            return
        readable, _, _ = select.select([answers], [], [], START_TIMEOUT_S)
        answer = os.read(answers, 1) if readable else b""
        os.close(answers)
        if answer != _READY:
            self.process.kill()
            self.process.wait()
            self._hang_up()
            raise AgentError(
                f"the guardian did not start within {START_TIMEOUT_S:g} s "
                f"(exit status {self.process.returncode}); nothing was changed; "
                f"try: {sys.executable} -m {__name__}"
            )


def watch(root: Path, path: Path, agent: int, hangs_s: float) -> int:
    """Guard this host until the agent has ended; return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own = enter_own_cgroups(root)
    try:
        return _await_end(root, path, agent, hangs_s)
    finally:
        leave(own)


def enter_own_cgroups(root: Path) -> tuple[Path, ...]:
    """Move this process into cgroups of its own; return those that could be made."""
    own = []
    for tree in (root / name for name in CGROUPS):
        if not (tree / CGROUP_MEMBERS).exists():
            continue
        _remove_stale(root, tree)
        group = tree / f"{CGROUP_PREFIX}{os.getpid()}"
        try:
            group.mkdir()
            own.append(group)
            (group / CGROUP_MEMBERS).write_text("0")  # this process
        except OSError:  # not root, or read-only as in a container: it stays with its agent
            leave(own[-1:])
    return tuple(own)


def _remove_stale(root: Path, tree: Path) -> None:
    """Remove the cgroups of guardians that were killed; the kernel keeps those with processes."""
    for group in tree.glob(f"{CGROUP_PREFIX}*"):
        if not (root / "proc" / group.name[len(CGROUP_PREFIX) :]).exists():
            with suppress(OSError):
                group.rmdir()


def leave(groups: Sequence[Path]) -> None:
    """Move this process to the root of each hierarchy and remove its own cgroup."""
    for group in groups:
        with suppress(OSError):
            (group.parent / CGROUP_MEMBERS).write_text("0")
        with suppress(OSError):
            group.rmdir()


def _await_end(root: Path, path: Path, agent: int, hangs_s: float) -> int:
    """Wait for end of file on stdin; then restore from the journal, if it exists."""
    process = _opened(agent)
    os.write(1, _READY)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    while True:
        limits_s = hangs_s, min(hangs_s, STOOD_STILL_S)
        if not any(select.select([0], [], [], limit_s)[0] for limit_s in limits_s):
            _kill(process)
        signs = os.read(0, select.PIPE_BUF)
        if not signs:
            break
        if _RELEASE in signs:
            return 0
    from udpbench.agent.settings.journal import DOOR_SUFFIX

    path.with_suffix(DOOR_SUFFIX).unlink(missing_ok=True)
    return _replay(root, path)


def _opened(agent: int) -> Optional[int]:
    """Return a descriptor of the agent, the parent of this process; None if it has died."""
    with suppress(OSError):
        process = os.pidfd_open(agent)
        if os.getppid() == agent:  # it was open before its number could become another's
            return process
        os.close(process)
    return None


def _kill(process: Optional[int]) -> None:
    """Kill the agent; what it does to a process that has ended, or in a wait, is the kernel's."""
    if process is not None:
        with suppress(OSError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


def _replay(root: Path, path: Path) -> int:
    from udpbench.agent.host.system import Host
    from udpbench.agent.settings.engine import Engine
    from udpbench.agent.settings.journal import Journal
    from udpbench.errors import RestoreError

    host = Host(root)
    try:
        # The lock is free once the agent has ended, even if its pipe closed earlier.
        journal = Journal.open(host, path, wait=True)
    except FileNotFoundError:
        return 0
    try:
        Engine(host, journal, scopes=()).restore()
        journal.discard()
    except RestoreError:
        return RestoreError.exit_code  # the journal stays, and the next restore reports it
    return 0


if __name__ == "__main__":
    sys.exit(watch(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
