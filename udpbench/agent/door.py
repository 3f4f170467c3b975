"""The door of an agent that waits for its controller: a socket beside the journal.

Owns the socket's file and who may pass. Who comes hands over its stdin, stdout and stderr by
SCM_RIGHTS (``returning``), and stays while they are used. How long to wait is not decided here.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Optional

from udpbench.agent.host import Host
from udpbench.agent.journal import FOLDER

SUFFIX = ".sock"
HAND_OVER_S = 1.0
"""For who has connected to hand over its pipes: it does so in the next line."""
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def door_of(host: Host, run: str) -> Path:
    """Return where an agent of a run in this network namespace waits, named as its journal is."""
    return host.path(FOLDER) / f"{run}-{host.netns()}{SUFFIX}"


class Door:
    """A listening socket for the agent's own user alone."""

    def __init__(self, host: Host, run: str, alone: bool) -> None:
        """Open it; OSError where that user keeps no journals either.

        Who is alone in its namespace takes other doors away: agents that were killed left them.
        """
        self.path = door_of(host, run)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if alone:
            for stale in self.path.parent.glob(f"*-{host.netns()}{SUFFIX}"):
                stale.unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._guest: Optional[socket.socket] = None
        try:
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen()
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when somebody is there."""
        return self._listener.fileno()

    def let_in(self) -> tuple[int, ...]:
        """Return stdin, stdout and stderr of who came; nothing where it may not, or has left."""
        try:
            guest, _ = self._listener.accept()
        except OSError:
            return ()
        pipes: list[int] = []
        with suppress(OSError):
            guest.settimeout(HAND_OVER_S)
            peer = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(peer)[1] == os.getuid():
                pipes = list(socket.recv_fds(guest, 1, 3)[1])
        if len(pipes) != 3:
            guest.close()
            for pipe in pipes:
                os.close(pipe)
            return ()
        self._dismiss(0)
        self._guest = guest
        return tuple(pipes)

    def close(self, status: int) -> None:
        """Take the door away, and let the last who came end with the agent's exit status."""
        self._dismiss(status)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _dismiss(self, status: int) -> None:
        if self._guest is not None:
            with suppress(OSError):
                self._guest.send(bytes([status]))
            self._guest.close()
            self._guest = None
