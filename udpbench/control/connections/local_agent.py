"""Channels to agents on this machine: a process whose pipes they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import udpbench
from udpbench.control.connections.channel import AGENT, OBSERVER, SERVER, Channel, Pipes
from udpbench.errors import ConnectError
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS

# -P: files in the current folder must not shadow the agent's imports. Before Python 3.11, which is
# the first that has it, only the exporter's service starts one, from the folder /.
MODULE = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-m")
AGENT_COMMAND = (*MODULE, AGENT)
OBSERVER_COMMAND = (*MODULE, OBSERVER)
SERVER_COMMAND = (*MODULE, SERVER)


def open_local(host: str, command: Sequence[str]) -> Channel:
    """Return a channel to a process of this machine, in a session of its own.

    Ctrl-C in the terminal then reaches the controller alone. Raises ConnectError.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=own_environment(),
        )
    except OSError as error:
        text = f"{command[0]} cannot be started: {error.strerror}; install it or fix PATH"
        raise ConnectError(text, host) from error

    def ended(limit_ns: int) -> int | None:
        try:
            return process.wait(limit_ns / SECOND_NS)
        except subprocess.TimeoutExpired:
            return None

    # Popen types its pipes as optional; with PIPE they are present.
    return Channel(
        host,
        Pipes(
            requests=cast("IO[bytes]", process.stdin),
            replies=LinePipe(cast("IO[bytes]", process.stdout).fileno()),
            errors=cast("IO[bytes]", process.stderr),
            pid=process.pid,
            ended=ended,
            kill=process.kill,
            release=lambda: None,  # the pipes close with the process
            next_step=lambda _status, _words: "run udpbench as root",
        ),
    )


def own_environment() -> dict[str, str]:
    """Return the environment of a process that must be of the same build: this udpbench is first.

    PYTHONPATH has no empty parts, each of which would be the current folder.
    """
    own = str(Path(udpbench.__file__).parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([own, *filter(None, given)])}


def open_observer(host: str, words: Sequence[str]) -> Channel:
    """Return a channel to an observer there; ``words``: agent/observe."""
    return open_local(host, (*OBSERVER_COMMAND, *words))


def open_server(host: str, words: Sequence[str]) -> Channel:
    """Return a channel to a server of iperf3 clients there; ``words``: agent/clients."""
    return open_local(host, (*SERVER_COMMAND, *words))
