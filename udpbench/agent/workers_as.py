"""How workers live side by side in their crew: as threads of it, or as a process each.

Owns threads, forks and the pipes between a crew and its workers. Knows nothing of what a worker
does: its life is a function that takes orders and tells how it is.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NoReturn, Optional

PR_SET_PDEATHSIG = 1
Life = Callable[[Iterable[Any], Callable[[dict[str, Any]], None]], None]
"""Takes the orders as they come and a function that tells the crew, once, how preparing went."""


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class AsThread:
    """A worker as a thread."""

    def __init__(self, name: str, life: Life) -> None:
        self.name = name
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        orders = iter(self._orders.get, None)
        self._thread = threading.Thread(target=life, args=(orders, self._told.put), daemon=True)

    def start(self, _others: Sequence[AsThread]) -> None:
        """Let the worker prepare itself."""
        self._thread.start()

    def prepared(self) -> dict[str, Any]:
        """Wait for what the worker tells when it is prepared."""
        return self._told.get()

    def order(self, order: dict[str, Any]) -> None:
        """Give an order."""
        self._orders.put(order)

    def died(self) -> Optional[int]:
        """Return None: no thread ends without its process."""
        return None

    def end(self) -> None:
        """Let the worker end after its last order."""
        self._orders.put(None)
        self._thread.join()


class AsProcess:
    """A worker as a process of its own, forked, so that it inherits memory and open sockets."""

    def __init__(self, name: str, life: Life) -> None:
        self.name = name
        self._life = life
        self._pid = 0
        self._orders = self._told = -1
        self._ended = False

    def start(self, others: Sequence[AsProcess]) -> None:
        """Fork; ``others`` are those that were started before, whose pipes are not for this one."""
        orders, self._orders = os.pipe()
        self._told, told = os.pipe()
        crew = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            for one in (*others, self):
                os.close(one._orders)
                os.close(one._told)
            self._be(crew, orders, told)
        os.close(orders)
        os.close(told)

    def _be(self, crew: int, orders: int, told: int) -> NoReturn:
        """Live, and end without a word to what the crew had open."""
        status = 1
        try:
            die_with_parent()
            if os.getppid() == crew:
                with os.fdopen(orders, "rb") as lines:
                    self._life(map(json.loads, lines), lambda what: _write_line(told, what))
                status = 0
        except BaseException:  # noqa: BLE001 - a forked process must never return to its caller
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def prepared(self) -> dict[str, Any]:
        """Wait for what the worker tells when it is prepared, or for its end."""
        with os.fdopen(self._told, "rb", closefd=False) as told:
            line = told.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"problem": f"{self.name}: its process ended before it was ready"}

    def order(self, order: dict[str, Any]) -> None:
        """Give an order; a worker that is dead takes none, which ``died`` tells."""
        try:
            _write_line(self._orders, order)
        except BrokenPipeError:
            return

    def died(self) -> Optional[int]:
        """Return the exit status of a process that has ended, once; a signal is negative."""
        if self._ended:
            return None
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            # A signal handler was interrupted by itself just here; the outer one tells.
            return None
        self._ended = pid != 0
        return os.waitstatus_to_exitcode(status) if self._ended else None

    def end(self) -> None:
        """Let the worker end after its last order, and wait for it."""
        os.close(self._orders)
        os.close(self._told)
        if not self._ended:
            os.waitpid(self._pid, 0)
            self._ended = True


WAYS: dict[str, Callable[[str, Life], Any]] = {"threads": AsThread, "processes": AsProcess}


def _write_line(fd: int, what: dict[str, Any]) -> None:
    os.write(fd, json.dumps(what).encode() + b"\n")
