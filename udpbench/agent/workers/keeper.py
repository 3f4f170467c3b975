"""The parent of a user's program: starts it, keeps its output, and ends all its processes.

It lives as long as the pipe from the agent. When the pipe closes, it ends the program by SIGTERM
and after ``GRACE_S`` by SIGKILL, and every process that the program started: these become its own
children. If the keeper itself dies, they are killed too: by the kernel, as it is process 1 of a PID
namespace (pid_namespaces(7)), whose processes can neither see nor signal the agent's; where none
can be made, by its own parent, which waits for nothing else and then inherits them
(PR_SET_CHILD_SUBREAPER).

It gets a ``ProgramOrder`` on stdin and reports each ``ProgramEvent`` on stdout.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, Optional

from udpbench import confinement
from udpbench.json_lines import LinePipe
from udpbench.parent_death import end_with_parent
from udpbench.printable import printable

GRACE_S = 2.0
KILL_S = 2.0
"""Limit for killed processes to end; a process in uninterruptible sleep may remain."""
HEAD_BYTES = TAIL_BYTES = 2**16
"""Limits of the output that is kept: its beginning and its end."""
PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
# include/uapi/linux/sched.h, include/uapi/linux/mount.h
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
CHUNK_BYTES = 2**16
CHUNKS = 64
"""Read before anything else has its turn: more than a pipe holds (1 MiB, fs.pipe-max-size)."""
KILLED = 128
"""Added to the number of a signal in an exit status, as in a shell."""


@dataclass(frozen=True)
class ProgramOrder:
    """The program to start; not decoded by ``protocol``, whose import would delay its start."""

    command: list[str]
    folders: list[str]
    """It starts in the first that its user may enter."""
    env: dict[str, str]
    user: Optional[list[int]]
    """Its uid and gid; None: this process's."""
    kept: list[int]
    """Capabilities."""
    cpus: list[int]
    priority: str


@dataclass(frozen=True)
class ProgramEvent:
    """What happened to the program; pids are those of the keeper's namespace."""

    event: Literal["started", "failed", "ended"]
    pid: int = 0
    folder: str = ""
    """Where it could not be started."""
    problem: str = ""
    status: int = 0
    left: tuple[int, ...] = ()
    """Processes that it started and that still run."""


class Output:
    """The program's output, in a file of bounded size."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._room_bytes = HEAD_BYTES
        self._tail = b""
        self._left_out_bytes = 0

    def append(self, chunk: bytes) -> None:
        """Append a chunk to the beginning, or else to the end that is kept."""
        os.write(self._fd, chunk[: self._room_bytes])
        self._tail += chunk[self._room_bytes :]
        self._room_bytes = max(self._room_bytes - len(chunk), 0)
        extra = max(len(self._tail) - TAIL_BYTES, 0)
        self._left_out_bytes += extra
        self._tail = self._tail[extra:]

    def finish(self) -> None:
        """Write the end of the output to the file."""
        if self._left_out_bytes:
            os.write(self._fd, f"\n[{self._left_out_bytes} B omitted]\n".encode())
        os.write(self._fd, self._tail)
        self._tail, self._left_out_bytes = b"", 0


class Keeper:
    """The program, from its start to the end of its last process."""

    def __init__(self, order: ProgramOrder, output: Output, parent: int) -> None:
        self._output = output
        self._parent = parent
        self._woken = _child_signals()
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            _place_self(order.cpus, order.priority)
            _enter(order.folders, order.user)
            self._program = _start(order, theirs)  # kept, since a dropped Popen is waited for
        finally:
            os.close(theirs)
        _report(ProgramEvent("started", self._program.pid))

    def serve(self) -> None:
        """Keep the output and report the program's end, until the agent or our parent is gone."""
        _family()  # imported while the program starts
        while os.getppid() == self._parent:
            ready = self._wait(None)
            if 0 in ready and not os.read(0, CHUNK_BYTES):
                return

    def _wait(self, seconds: Optional[float]) -> list[int]:
        watched = [0, self._woken] + ([self._pipe] if self._pipe >= 0 else [])
        ready = select.select(watched if seconds is None else watched[1:], [], [], seconds)[0]
        if self._pipe in ready:
            self._copy()
        if self._woken in ready:
            os.read(self._woken, CHUNK_BYTES)
            self._reap()
        return ready

    def _copy(self) -> None:
        """Keep what the pipe holds, of a program that may write faster than it is read."""
        with suppress(BlockingIOError):
            for _ in range(CHUNKS):
                chunk = os.read(self._pipe, CHUNK_BYTES)
                if not chunk:
                    os.close(self._pipe)
                    self._pipe = -1
                    return
                self._output.append(chunk)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._program.pid:
                    self._note_end(os.waitstatus_to_exitcode(status))

    def _note_end(self, status: int) -> None:
        if self._pipe >= 0:
            self._copy()
        self._output.finish()
        with suppress(OSError):  # the agent is gone
            _report(ProgramEvent("ended", status=status, left=tuple(_family())))

    def end(self) -> None:
        """End every process of the program."""
        for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILL_S)):
            _await_end(partial(self._is_last_gone, number, set()), seconds)
        if self._pipe >= 0:
            self._copy()
        self._output.finish()

    def _is_last_gone(self, number: int, alerted: set[int]) -> bool:
        """Send a signal to each process that has not had it; keep the output meanwhile."""
        left = set(_family())
        for pid in left - alerted:
            with suppress(OSError):
                os.kill(pid, number)
        alerted |= left
        self._wait(0)
        self._reap()
        return not left


def _await_end(is_reached: Callable[[], bool], limit_s: float) -> None:
    from udpbench.agent.host.system import Host

    with suppress(TimeoutError):
        Host().wait_for("processes are left", is_reached, limit_s)


def _family() -> list[int]:
    # Late, so that the program starts earlier.
    from udpbench.agent.host.processes import descendants
    from udpbench.agent.host.system import Host

    return list(descendants(Host(), os.getpid()))


def _child_signals() -> int:
    """Return a descriptor that becomes readable when a child ends; ignore SIGINT and the like."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _place_self(cpus: list[int], priority: str) -> None:
    """Set this process's CPUs and priority, which the program inherits."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    policy, _, level = priority.partition(" ")
    try:
        if policy == "nice":
            os.setpriority(os.PRIO_PROCESS, 0, int(level))
        elif policy == "fifo":
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(level)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"priority {priority}") from error


def _start(order: ProgramOrder, output: int) -> subprocess.Popen[bytes]:
    """Start the program in a new session; OSError if it cannot be started."""
    user = order.user
    return confinement.start(
        order.command,
        confinement.ProgramUser(*user) if user is not None else None,
        signal.SIGKILL,
        order.kept,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=order.env,
        umask=0o022,
    )


def _enter(folders: list[str], user: Optional[list[int]]) -> None:
    """Make the first folder that the user may enter the working folder.

    As that user: root would pass closed folders on the way, and the program would be behind them.
    The real user stays root, so processes of that user can neither signal nor trace this one.
    """
    if user is not None:
        os.setgroups([])
        os.setegid(user[1])
        os.seteuid(user[0])
    try:
        for folder in folders:
            with suppress(OSError):
                os.chdir(folder)
                return
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folders[-1])
    finally:
        if user is not None:
            os.seteuid(0)
            os.setegid(0)


def _report(event: ProgramEvent) -> None:
    os.write(1, json.dumps(asdict(event)).encode() + b"\n")


# --- what is left if the keeper is killed ---------------------------------------------------------


def _isolate() -> bool:
    """Have further children in a new PID namespace; False if this process may not make one."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID) != 0:
        return False
    return bool(libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None) == 0)


def _mount_proc() -> bool:
    """Show the processes of this PID namespace, and only those, in /proc."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    return bool(ctypes.CDLL(None).mount(b"proc", b"/proc", b"proc", flags, None) == 0)


def can_isolate() -> bool:
    """Return by trying whether a keeper can have a PID namespace with its own /proc.

    A container may forbid either. Without that /proc a program would find others' processes under
    its own numbers.
    """

    def attempt() -> int:
        return _status_of(lambda: int(not _mount_proc())) if _isolate() else 1

    return _status_of(attempt) == 0


def _status_of(work: Callable[[], int]) -> int:
    """Return the exit status of a function that runs in a child."""
    return os.waitstatus_to_exitcode(os.waitpid(_forked(work), 0)[1])


def _forked(work: Callable[[], int]) -> int:
    """Return the pid of a child that runs a function and exits with its result."""
    pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        status = work()
    except Exception:  # noqa: BLE001 - it is this child's last
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def keep(output_fd: int, parent: int, isolated: bool) -> int:
    """Run a program until stdin ends; return 1 if it could not be started."""
    if isolated and not _mount_proc():
        return 1
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    order = ProgramOrder(**json.loads(LinePipe(0).next()))
    try:
        keeper = Keeper(order, Output(output_fd), parent)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        problem = printable(f"{where}{error.strerror}", keep="")
        _report(ProgramEvent("failed", folder=os.getcwd(), problem=problem))  # noqa: PTH109
        return 1
    # Last, as a change of user forgets it (prctl(2)). Where this process ends a namespace, all end.
    end_with_parent(signal.SIGKILL if isolated else signal.SIGTERM)
    keeper.serve()
    keeper.end()
    return 0


def main(output_fd: int) -> int:
    """Start the keeper, wait for its end, and kill what it then left."""
    _child_signals()
    isolated = can_isolate() and _isolate()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = 0 if isolated else os.getpid()  # as a child in the namespace sees its parent
    keeper = _forked(lambda: keep(output_fd, own, isolated))
    null = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):  # the keeper's: the agent hears its end at once
        os.dup2(null, pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    if not isolated:
        _await_end(lambda: not _kill_family(), KILL_S)
    return status if status >= 0 else KILLED - status


def _kill_family() -> bool:
    """Kill every child and its children; return whether there were any."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    left = _family()
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(left)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
