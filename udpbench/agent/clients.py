"""Serves iperf3 clients: ``python -m udpbench.agent.clients PORT CLIENTS ADDRESS...``.

It listens, gives up root and every right, and only then reads what strangers send: whatever they
make of it could change nothing of the host. Its controller alone tells it when a test may begin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Optional

from udpbench.agent.host.namespace import settle
from udpbench.agent.host.privileges import NOBODY, keep_only
from udpbench.agent.host.system import Host
from udpbench.agent.iperf3.server import Iperf3Server
from udpbench.agent.loop import Bystander, greeting, prove_same, stand_by
from udpbench.agent.observe import EARLY
from udpbench.errors import HelloRefused
from udpbench.frozen import complete_all
from udpbench.model.limits import Scope
from udpbench.protocol import (
    ClientEvent,
    Hello,
    Taken,
    Use,
    build_id,
)

ORDERS = ("hello", "take", "release", "leave", "ping", "clients", "proceed")
"""Every verb that it serves."""


class Server(Bystander):
    """One controller's session with an iperf3 server."""

    orders = ORDERS
    refusal = "an iperf3 server does not serve {}"

    def __init__(self, host: Host, server: Iperf3Server) -> None:
        super().__init__()
        self._host = host
        self._server = server
        self.pool = server.pools
        self.verbs = self

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        return self._server.name

    def hello(
        self,
        host: str,
        run: str,  # noqa: ARG002 - it leaves nothing that would have to be named
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: tuple[Scope, ...],  # noqa: ARG002 - it takes nothing
        returns: bool = False,  # noqa: ARG002 - one that is lost leaves nothing
        private: bool = False,
    ) -> Hello:
        """Check that both sides are the same build and begin the session."""
        if self.name:
            raise HelloRefused("this server already has a controller", host)
        prove_same(host, build, protocol, build_id())
        if private:
            raise HelloRefused("an iperf3 server creates no namespace", host)
        self._server.name = host
        self.lease_ns = lease_ns
        return greeting(self._host, {})

    def take(self, use: Use) -> Taken:  # noqa: ARG002 - it uses no machine
        """Take nothing."""
        return Taken()

    def check_guardian(self) -> None:
        """Do nothing: there is no guardian."""

    def clients(self, since: int) -> tuple[ClientEvent, ...]:
        """Return what happened, from event number ``since`` on."""
        return self._server.clients(since)

    def proceed(self, test: int, output: Optional[str] = None) -> None:
        """Let a client's test begin, or end."""
        self._server.proceed(test, output)

    def end(self) -> None:
        """End every test; its client is told."""
        self._server.close()

    def fds(self) -> list[int]:
        """Return the server's descriptors."""
        return self._server.fds() if self.name else []

    def tick(self, now_ns: int) -> Optional[int]:
        """Do what clients ask for."""
        return self._server.tick(now_ns) if self.name else None


def prepare(host: Host, words: Sequence[str]) -> Server:
    """Listen, then give up all rights, and return what may serve strangers."""
    port, clients, *addresses = words
    build_id()
    for module in EARLY:
        import_module(module)
    complete_all()  # a client's test has the CPU that receives
    server = Iperf3Server(host, addresses, int(port), int(clients))
    if os.geteuid() == 0:
        server.give_to(NOBODY)
    keep_only(host, (), NOBODY)
    return Server(host, server)


def begin() -> Server:
    """Return this process as a server; OSError."""
    host = Host()
    settle(host)
    return prepare(host, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(stand_by("server", begin))
