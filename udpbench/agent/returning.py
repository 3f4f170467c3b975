"""``python -m udpbench.agent.returning RUN``: give a waiting agent this process's pipes.

Started over a new connection in place of an agent. Says in one line that somebody waits, then stays
until that agent has ended, because the connection lasts as long as this process.
"""

from __future__ import annotations

import os
import socket
import sys

from udpbench.agent.door import door_of
from udpbench.agent.host import Host
from udpbench.errors import HostError
from udpbench.protocol import write_line

FOUND = write_line({"id": 0})
"""A reply to nothing; nobody waits for number 0."""


def hand_over(host: Host, run: str) -> int:
    """Hand 0, 1 and 2 to the agent of a run, and return its exit status once it has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(door_of(host, run)))
            socket.send_fds(door, [b"\0"], [0, 1, 2])
        except OSError as error:
            text = f"udpbench agent: no agent of run {run} waits here: {error.strerror or error}"
            print(text, file=sys.stderr)
            return HostError.exit_code
        try:
            os.write(1, FOUND)
            status = door.recv(1)
        except OSError:
            status = b""
    return status[0] if status else HostError.exit_code


if __name__ == "__main__":
    sys.exit(hand_over(Host(), sys.argv[1]))
