"""The parent of a user's program: starts it, keeps its output, and ends all its processes.

It lives as long as the pipe from the agent. When the pipe closes, it ends the program by SIGTERM
and after ``GRACE_S`` by SIGKILL, and every process that the program started: these become its own
children (PR_SET_CHILD_SUBREAPER). If the keeper itself dies, the kernel kills the program.

First line: {command, folder, env, user: [uid, gid, name] or null, cpus, priority}.
Answers, one per line: {event: started, pid} | {event: failed, problem} | {event: ended, status,
left: pids}.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Optional

from udpbench.parent_death import end_with_parent
from udpbench.printable import printable

GRACE_S = 2.0
KILL_S = 2.0
"""Limit for killed processes to end; a process in uninterruptible sleep may remain."""
PAUSE_S = 0.02
HEAD_BYTES = TAIL_BYTES = 2**16
"""Limits of the output that is kept: its beginning and its end."""
PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
CHUNK_BYTES = 2**16


class Output:
    """The program's output, in a file of bounded size."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._room_bytes = HEAD_BYTES
        self._tail = b""
        self._left_out_bytes = 0

    def take(self, chunk: bytes) -> None:
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

    def __init__(self, order: dict[str, Any], output: Output) -> None:
        self._output = output
        self._woken = _child_signals()
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            _take_place(order["cpus"], order["priority"])
            self._program = _start(order, theirs)  # kept, since a dropped Popen is waited for
        finally:
            os.close(theirs)
        _answer({"event": "started", "pid": self._program.pid})

    def serve(self) -> None:
        """Keep the output and report the program's end, until the agent closes its pipe."""
        _family()  # imported while the program starts
        while True:
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
        with suppress(BlockingIOError):
            while chunk := os.read(self._pipe, CHUNK_BYTES):
                self._output.take(chunk)
            os.close(self._pipe)
            self._pipe = -1

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
            _answer({"event": "ended", "status": status, "left": _family()})

    def end(self) -> None:
        """End every process of the program."""
        for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILL_S)):
            deadline = time.monotonic() + seconds
            alerted: set[int] = set()
            while (left := _family()) and time.monotonic() < deadline:
                for pid in set(left) - alerted:
                    with suppress(OSError):
                        os.kill(pid, number)
                alerted |= set(left)
                self._wait(PAUSE_S)
                self._reap()
        if self._pipe >= 0:
            self._copy()
        self._output.finish()


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


def _take_place(cpus: list[int], priority: str) -> None:
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


def _start(order: dict[str, Any], output: int) -> subprocess.Popen[bytes]:
    """Start the program in a new session; OSError if it cannot be started."""
    whose: dict[str, Any] = {}
    if order["user"] is not None:
        uid, gid, name = order["user"]
        whose = {"user": uid, "group": gid, "extra_groups": os.getgrouplist(name, gid)}
    return subprocess.Popen(
        order["command"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=order["folder"],
        env=order["env"],
        start_new_session=True,
        umask=0o022,
        preexec_fn=lambda: end_with_parent(signal.SIGKILL),
        **whose,
    )


def _answer(event: dict[str, Any]) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def main(output_fd: int) -> int:
    """Run a program until stdin ends; return 1 if it could not be started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    order = json.loads(sys.stdin.buffer.readline())
    try:
        keeper = Keeper(order, Output(output_fd))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        problem = printable(f"{where}{error.strerror}", keep="")
        _answer({"event": "failed", "problem": problem, "errno": error.errno})
        return 1
    keeper.serve()
    keeper.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
