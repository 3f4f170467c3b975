"""Starts agents by fork: ``python -m udpbench.agent.fork_server`` loads their modules once for all.

Owns how a forked process becomes an agent; is none itself, and ends with the socket on its stdin,
which no agent has. Only the controller starts it, on its own machine.

A request is a JSON object, ``private`` (in a network and a mount namespace of its own) and
``environ``, with descriptors: the agent's stdin, stdout and stderr, a pipe, its working directory,
and perhaps the network namespace that it is to be in. Into the pipe the agent writes its pid and 0,
or the errno for which it is not where it should be; this process then writes its exit status,
negative for a signal. The agent keeps the pipe open: if this process dies, its end is the agent's.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Optional

from udpbench.agent import serve
from udpbench.agent.host.environment import load_versions
from udpbench.agent.host.forked import Forked
from udpbench.agent.host.namespace import enter_own, join
from udpbench.agent.host.reading import load_libraries
from udpbench.agent.host.system import Host
from udpbench.agent.workers.process_client import load_loops
from udpbench.protocol import VERBS

DESCRIPTORS = 6
MOST_BYTES = 2**20
AGENT = (sys.executable, "-P", "-m", "udpbench.agent.serve")


class ForkServer:
    """The process that forks: its socket, and the pipe of each agent that it has forked."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._agents: dict[int, tuple[Forked, int]] = {}
        """By pidfd: an agent and its pipe."""
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)

    def serve(self) -> None:
        """Fork an agent for each request, until the socket ends; who asks at once waits least."""
        going_on = self._answer(0)
        load_the_rest()
        while going_on:
            going_on = self._answer(None)

    def _answer(self, limit_ms: Optional[int]) -> bool:
        """Do what is to be done within a limit; return False at the end of the requests."""
        for ready, _ in self._poll.poll(limit_ms):
            if ready in self._agents:
                self._bury(ready)
            elif not self._fork():
                return False
        return True

    def _fork(self) -> bool:
        """Serve one request; return False at their end."""
        asked, files, _, _ = socket.recv_fds(
            self._requests, MOST_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not asked:
            return False
        pipe, *places = files[3:]
        work = partial(become, pipe, *places, **json.loads(asked))
        agent = Forked(work, files[:3], files[3:], AGENT)
        for each in (*files[:3], *places):
            os.close(each)
        self._agents[agent.pidfd] = agent, pipe
        self._poll.register(agent.pidfd, select.POLLIN)
        return True

    def _bury(self, pidfd: int) -> None:
        """Say how an agent ended."""
        self._poll.unregister(pidfd)
        agent, pipe = self._agents.pop(pidfd)
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(pipe, b"%d\n" % agent.wait())
        os.close(pipe)


def become(
    pipe: int,
    folder: int,
    namespace: Optional[int] = None,
    *,
    private: bool,
    environ: dict[str, str],
) -> int:
    """Be an agent on descriptors 0 to 2; return the exit status."""
    os.environ.clear()
    os.environ.update(environ)
    os.fchdir(folder)
    os.close(folder)
    refused = 0
    try:
        if namespace is not None:
            join(Host(), namespace)
            os.close(namespace)
        elif private:
            enter_own(Host())
    except OSError as error:
        refused = error.errno or -1
    os.write(pipe, b"%d %d\n" % (os.getpid(), refused))
    return 1 if refused else serve.main(settled=private or namespace is not None)


def load_the_rest() -> None:
    """Load what each agent would load for itself, once its host is taken, and its workers."""
    with suppress(ImportError):  # without the C extension agents do what they can
        load_loops()
    load_libraries()
    load_versions()
    for verb in VERBS.values():
        _ = verb.kinds
    gc.freeze()


def main() -> int:
    """Serve until stdin ends."""
    gc.freeze()
    ForkServer(socket.socket(fileno=0)).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
