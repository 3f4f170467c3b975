"""Work that a copy of this process does meanwhile, where another CPU has time for it.

What it returns comes back by pickle, from our own code alone. The copy ends with this process, and
where it cannot be, or fails, the work is done here: nothing but the time depends on it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Callable
from typing import Generic, TypeVar

from udpbench.parent_death import end_with_parent

T = TypeVar("T")


class Meanwhile(Generic[T]):
    """Work that has begun, or will be done here when its result is asked for."""

    def __init__(self, work: Callable[[], T], worth_it: bool = True) -> None:
        self._work = work
        self._pid = 0
        if not (worth_it and _has_room()):
            return
        reading, writing = os.pipe()
        self._answer = os.fdopen(reading, "rb")
        try:
            self._pid = os.fork()
        except OSError:  # of a limit of processes or memory
            self._answer.close()
        else:
            if self._pid == 0:
                _be(work, writing)
        finally:
            os.close(writing)

    def result(self) -> T:
        """Return what the work returns, once; raises what it raises."""
        if self._pid:
            answer = self._answer.read()
            if self._ended():
                value: T = pickle.loads(answer)  # noqa: S301 - of a copy of this process
                return value
        return self._work()

    def _ended(self) -> bool:
        """Wait for the end of the copy; return whether it has answered."""
        pid, self._pid = self._pid, 0
        self._answer.close()
        return os.waitpid(pid, 0)[1] == 0

    def __del__(self) -> None:
        """End a copy whose result nobody waits for."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._ended()


def _has_room() -> bool:
    """Return whether there is a second CPU, and no thread that a copy would lack."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - Path has no faster way
    return len(os.sched_getaffinity(0)) > 1 and threads == 1


def _be(work: Callable[[], object], writing: int) -> None:
    """Do the work and exit; an error leaves no answer, and is raised where it is done again."""
    status = 1
    try:
        end_with_parent(signal.SIGKILL)
        gc.disable()  # it would look at all that both have, and so copy it
        answer = pickle.dumps(work(), pickle.HIGHEST_PROTOCOL)
        with open(writing, "wb") as file:
            file.write(answer)
        status = 0
    finally:
        os._exit(status)
