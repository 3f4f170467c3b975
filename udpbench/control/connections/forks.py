"""Channels to agents of this machine that are forks of one process (``agent/fork_server``).

Python starts and loads an agent's modules once for all agents of a built-in lab. Where a fork
cannot be had, the agent is a process of its own, which says why if it cannot start, either.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from udpbench.control.connections.channel import Channel, Pipes
from udpbench.control.connections.local_agent import (
    AGENT_COMMAND,
    MODULE,
    open_local,
    own_environment,
)
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS

FORK_COMMAND = (*MODULE, "udpbench.agent.fork_server")
START_NS = 10 * SECOND_NS
"""For the process that forks to start and to have forked; measured: 0.2 s."""
_launched: list[ForkClient] = []
"""Those that nobody has taken yet."""


def launch() -> None:
    """Start the process whose forks the next run's agents are; it ends with this one if unused."""
    with suppress(OSError):  # what is started instead says so
        if not _launched:
            _launched.append(ForkClient())


class LocalAgents:
    """Opens the agents of one run that are in namespaces of this machine."""

    def __init__(self) -> None:
        self._server: ForkClient | None = None

    def open_machine(self, host: str) -> Channel:
        """Return a channel to an agent in the namespaces the controller is in; ConnectError."""
        return self.forked(host, private=False) or open_local(host, AGENT_COMMAND)

    def forked(self, host: str, private: bool, namespace: int | None = None) -> Channel | None:
        """Return a channel to a fork; None if there is none.

        In namespaces of its own, or in this network namespace with its own mounts.
        """
        if self._server is None or self._server.left:
            try:
                self._server = _launched.pop() if _launched else ForkClient()
            except OSError:
                return None
        return self._server.open(host, private, namespace)


class ForkClient:
    """The process that forks, until its last agent has ended."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                FORK_COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=own_environment(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._requests = ours
        self._agents = 0
        self._counting = threading.Lock()

    @property
    def left(self) -> bool:
        """Whether it has ended, as it does with the last of its agents."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def open(self, host: str, private: bool, namespace: int | None) -> Channel | None:
        """Return a channel to a new agent; None if it cannot be had, or not where it should be."""
        pipes = [os.pipe() for _ in range(4)]  # the agent writes into the last three
        theirs = [pipes[0][0], *(writing for _, writing in pipes[1:])]
        ours = [pipes[0][1], *(reading for reading, _ in pipes[1:])]
        ends = LinePipe(ours[3])
        order = {"private": private, "environ": own_environment()}
        try:
            theirs.append(os.open(".", os.O_PATH))
            files = theirs if namespace is None else [*theirs, namespace]
            socket.send_fds(self._requests, [json.dumps(order).encode()], files)
            pid, refused = map(int, ends.next(time.monotonic_ns() + START_NS).split())
        except (OSError, EOFError):  # a TimeoutError, too
            pid, refused = 0, -1
        finally:
            _close(theirs)
        if refused:
            _close(ours)
            return None
        with self._counting:
            self._agents += 1
        return Channel(host, _Fork(self, pid, ours, ends).pipes())

    def bury(self) -> None:
        """End it if this was its last agent."""
        with self._counting:
            self._agents -= 1
            is_last = self._agents == 0
        if is_last:
            self.close()

    def close(self) -> None:
        """End it: it holds nothing that must be put back."""
        self._requests.close()
        self._process.kill()
        self._process.wait()


class _Fork:
    """An agent that is a child of a child of this process."""

    def __init__(self, server: ForkClient, pid: int, ours: Sequence[int], ends: LinePipe) -> None:
        self._server: ForkClient | None = server
        self._pid = pid
        self._requests = os.fdopen(ours[0], "wb")
        self._replies, self._errors, self._end = (os.fdopen(file, "rb") for file in ours[1:])
        self._ends = ends
        self._asking = threading.Lock()
        self._status: int | None = None

    def pipes(self) -> Pipes:
        """Return what its channel needs."""
        return Pipes(
            requests=self._requests,
            replies=LinePipe(self._replies.fileno()),
            errors=self._errors,
            pid=self._pid,
            ended=self._ended,
            kill=self._kill,
            release=self._release,
            next_step=lambda _status, _words: "run udpbench as root",
        )

    def _ended(self, limit_ns: int) -> int | None:
        """Return the status that its parent tells; None, too, if that has died before it."""
        with self._asking, suppress(TimeoutError, EOFError):
            if self._status is None:
                self._status = int(self._ends.next(time.monotonic_ns() + limit_ns))
        return self._status

    def _kill(self) -> None:
        if not self._ends.ended:  # so its number is no other process's
            os.kill(self._pid, signal.SIGKILL)

    def _release(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.bury()


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
