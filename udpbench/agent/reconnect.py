"""How a controller reconnects to its agent after losing the connection.

The agent listens on its door, a socket beside its journal, for its own user only. Over the new
connection ``python -m udpbench.agent.reconnect RUN [NETNS]`` is started instead of an agent: it
passes its stdin, stdout and stderr to the agent by SCM_RIGHTS, confirms with one line, and stays
until the agent has ended, because the connection lasts only as long as that process. Time limits
are set elsewhere.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Optional

from udpbench.agent.host.namespace import enter_named
from udpbench.agent.host.system import Host
from udpbench.agent.notes import CREDENTIALS
from udpbench.agent.settings.journal import DOOR_SUFFIX, FOLDER
from udpbench.errors import HostError, in_words
from udpbench.protocol import write_line

HAND_OVER_S = 1.0
"""From connecting to passing the pipes."""
FOUND = write_line({"id": 0})
"""Has request number 0, because it answers no request."""


def door_of(host: Host, run: str) -> Path:
    """Return the path of an agent's door, named by run and network namespace like its journal."""
    return host.path(FOLDER) / f"{run}-{host.netns()}{DOOR_SUFFIX}"


class Door:
    """A listening socket that accepts only the agent's own user."""

    def __init__(self, host: Host, run: str, alone: bool) -> None:
        """Open it; OSError if the folder of journals cannot be used.

        An agent that is alone in its namespace removes doors left by killed agents.
        """
        self.path = door_of(host, run)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if alone:
            for stale in self.path.parent.glob(f"*-{host.netns()}{DOOR_SUFFIX}"):
                stale.unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._client: Optional[socket.socket] = None
        try:
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen()
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a client connects."""
        return self._listener.fileno()

    def accept(self) -> tuple[int, ...]:
        """Return a client's stdin, stdout and stderr; () if it is another user's or has gone."""
        try:
            client, _ = self._listener.accept()
        except OSError:
            return ()
        pipes: list[int] = []
        with suppress(OSError):
            client.settimeout(HAND_OVER_S)
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(peer)[1] == os.getuid():
                pipes = list(socket.recv_fds(client, 1, 3)[1])
        if len(pipes) != 3:
            client.close()
            for pipe in pipes:
                os.close(pipe)
            return ()
        self._dismiss(0)
        self._client = client
        return tuple(pipes)

    def close(self, status: int) -> None:
        """Remove the door; the latest client exits with the agent's exit status."""
        self._dismiss(status)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _dismiss(self, status: int) -> None:
        if self._client is not None:
            with suppress(OSError):
                self._client.send(bytes([status]))
            self._client.close()
            self._client = None


def hand_over(host: Host, run: str) -> int:
    """Pass descriptors 0, 1 and 2 to a run's agent; return its exit status once it has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(door_of(host, run)))
            socket.send_fds(door, [b"\0"], [0, 1, 2])
        except OSError as error:
            text = f"udpbench agent: no agent of run {run} is waiting: {error.strerror or error}"
            print(text, file=sys.stderr)
            return HostError.exit_code
        try:
            os.write(1, FOUND)
            status = door.recv(1)
        except OSError:
            status = b""
    return status[0] if status else HostError.exit_code


def main(run: str, name: str = "") -> int:
    """Return the status of a run's agent; it is in the namespace of that name, if there is one."""
    host = Host()
    if name:
        try:
            enter_named(host, name)
        except OSError as error:
            print(f"udpbench agent: not reached: {in_words(error)}", file=sys.stderr)
            return HostError.exit_code
    return hand_over(host, run)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
