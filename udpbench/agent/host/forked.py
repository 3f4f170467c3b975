"""A child that runs a function of this program, with what was imported, and nothing else of it.

As much of ``subprocess.Popen`` as is needed of one, for 3 ms in place of a start of Python. Only a
process of a single thread should fork.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Callable, NoReturn, Optional

ARGUMENTS = slice(45, 47)
"""arg_start and arg_end in /proc/PID/stat, behind the process's name (proc(5))."""


class Forked:
    """A child in a session of its own, with the signals' defaults."""

    def __init__(
        self,
        work: Callable[[], int],
        stdio: Sequence[int],
        kept: Collection[int],
        command: Sequence[str],
    ) -> None:
        """``stdio`` becomes 0 to 2; ``kept`` stays open; ``command`` is what ps(1) shows."""
        self.returncode: Optional[int] = None
        self.pid = os.fork()
        if self.pid == 0:
            _be(work, stdio, kept, command)
        self.pidfd = os.pidfd_open(self.pid)
        """Readable once it has ended; closed when that was waited for."""

    def poll(self) -> Optional[int]:
        """Return its exit status, negative for a signal; None while it runs."""
        with suppress(TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Return its exit status; raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self.pidfd], [], [], timeout)[0]:
                raise TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.pidfd)
        return self.returncode

    def kill(self) -> None:
        """Kill it, unless it was waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _be(
    work: Callable[[], int], stdio: Sequence[int], kept: Collection[int], command: Sequence[str]
) -> NoReturn:
    """Run the function and exit; nothing that this process inherits is ever finalised."""
    status = 1
    try:
        gc.freeze()
        for number, file in enumerate(stdio):
            os.dup2(file, number)
        _close_all_but((0, 1, 2, *kept))
        _forget_signals()
        sys.stdout = sys.stderr = os.fdopen(2, "w", 1, closefd=False)
        os.setsid()
        show_command(command)
        status = work()
    except BaseException:  # noqa: BLE001 - a forked process must never return to its caller
        traceback.print_exc()
    finally:
        with suppress(OSError):  # nobody reads it any more
            sys.stderr.flush()
        os._exit(status)


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of which one is that of this list
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _forget_signals() -> None:
    """Give every signal that has a handler its default, as execve(2) does."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def show_command(words: Sequence[str]) -> None:
    """Show these words as this process's command, followed by NULs in place of the rest."""
    columns = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = map(int, columns[ARGUMENTS])
    room = end - start
    text = b"".join(word.encode() + b"\0" for word in words)[: room - 1]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)
