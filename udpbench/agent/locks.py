"""Who may use a network namespace and who a machine: abstract Unix sockets as locks.

The kernel frees an abstract name when its owner dies, however it dies, and each network namespace
has names of its own. So a lock is a bound socket, and never a file that could be left behind.

    udpbench/namespace              exclusive: one run in this namespace
    udpbench/machine                exclusive: one run that changes machine scope
    udpbench/holder/<lock>/<pid>/<run>   who holds or shares a lock, for others to read
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Literal, Optional

from udpbench.agent.host import Host

Lock = Literal["namespace", "machine"]
PREFIX = "udpbench/"
UNIX_SOCKETS = "/proc/thread-self/net/unix"
RUN_NAME_BYTES = 40
"""Longer run names are cut: an abstract name has 107 bytes."""


class Held(Exception):
    """Another run holds the lock; its name where it could be read."""

    def __init__(self, lock: Lock, holder: Optional[str]) -> None:
        self.lock = lock
        self.holder = holder
        super().__init__(f"the {lock} is held by {holder or 'another run'}")


class Locks:
    """The locks of one agent in its own network namespace; they end with the process."""

    def __init__(self, host: Host, run: str, prefix: str = PREFIX) -> None:
        self._host = host
        self.prefix = prefix
        self._run = run
        self._bound: dict[str, socket.socket] = {}

    def exclude_namespace(self) -> None:
        """Take this namespace for the run alone, until the process ends; Held names the holder."""
        if not self._bind("namespace"):
            raise Held("namespace", self._holder("namespace"))
        self._bind(self._note("namespace"))

    def share_machine(self) -> None:
        """Use the machine beside others that change nothing of it; Held names who does."""
        self._bind(self._note("machine"))
        # Seen to be there first, then looked for others: of two that cross, at least one sees.
        if "machine" in self._names():
            self.release(self._note("machine"))
            raise Held("machine", self._holder("machine"))

    def exclude_machine(self) -> None:
        """Become the only run on the machine, so that its scope may be changed; Held else."""
        if "machine" in self._bound:
            return
        taken = self._bind("machine")
        holder = self._holder("machine")
        if not taken or holder is not None:
            self.release("machine")
            raise Held("machine", holder)

    def release(self, name: str) -> None:
        """Give one name back."""
        held = self._bound.pop(name, None)
        if held is not None:
            held.close()

    def runs(self) -> frozenset[str]:
        """Return the runs that have an agent in this namespace, by what ``short`` makes of them."""
        notes = (name.split("/", 3) for name in self._names() if name.startswith("holder/"))
        return frozenset(note[3] for note in notes)

    @staticmethod
    def short(run: str) -> str:
        """Return a run's name as a note of its agent has it."""
        return run.encode()[:RUN_NAME_BYTES].decode(errors="ignore")

    def _note(self, lock: Lock) -> str:
        return f"holder/{lock}/{os.getpid()}/{self.short(self._run)}"

    def _bind(self, name: str) -> bool:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.bind(f"\0{self.prefix}{name}")
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._bound[name] = made
        return True

    def _names(self) -> list[str]:
        """Return the names below the prefix; the kernel prints an abstract name's NUL as ``@``."""
        mark = f"@{self.prefix}"
        lines = self._host.read_text(UNIX_SOCKETS).splitlines()
        return [line.partition(mark)[2] for line in lines if mark in line]

    def _holder(self, lock: Lock) -> Optional[str]:
        own = self._note(lock)
        for name in self._names():
            if name.startswith(f"holder/{lock}/") and name != own:
                pid, _, run = name[len(f"holder/{lock}/") :].partition("/")
                return f"run {run} (pid {pid})"
        return None

    def close(self) -> None:
        """Give everything back."""
        for name in list(self._bound):
            self.release(name)
