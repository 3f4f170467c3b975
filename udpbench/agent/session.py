"""A run's session with this agent: hello, taking the host, and the dispatch of requests to verbs.

Owns who is served what and when: nothing before hello, no other build, and no change of a host that
another run has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Optional

from udpbench.agent.host.capabilities import try_capabilities
from udpbench.agent.host.namespace import enter_own
from udpbench.agent.host.system import Host
from udpbench.agent.locks import Held, Locks
from udpbench.agent.loop import Service, greeting, prove_same
from udpbench.agent.reconnect import Door
from udpbench.agent.settings.journal import FOLDER, abandoned, in_use, remove_stale, run_of
from udpbench.agent.verbs import Verbs
from udpbench.errors import AgentError, HelloRefused
from udpbench.model.limits import SECOND_NS, Scope
from udpbench.protocol import Hello, Taken, Use, build_id

GREETING = ("hello", "take", "release", "leave")
SERVING = ("clients", "proceed")
"""Those of ``clients`` alone."""
UNTAKEN = (*GREETING, "ping", "look", "more_sockets", "facts")
"""Verbs served before the host is taken: a look disturbs a run no more than ``top`` does, so it
waits for no run."""


class Session(Service):
    """An agent from its first request to its last."""

    verbs: Optional[Verbs]
    door: Optional[Door]

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._returns = False
        self._taken = False

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        return self.verbs.name if self.verbs is not None else ""

    def method_of(self, verb: str) -> Callable[..., Any]:
        """Return what serves a verb now; raises HelloRefused, AgentError."""
        if verb != "hello":
            self._greeted(verb)
        if not self._taken and verb not in UNTAKEN:
            raise HelloRefused(f"{verb} before take: another run may use this host", self.name)
        if verb in SERVING:
            raise AgentError(f"an agent does not serve {verb}: an iperf3 server does", self.name)
        elsewhere = self.verbs.elsewhere if self.verbs is not None else {}
        return elsewhere.get(verb) or getattr(self if verb in GREETING else self.verbs, verb)

    def hello(
        self,
        host: str,
        run: str,
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: tuple[Scope, ...],
        returns: bool = False,
        private: bool = False,
    ) -> Hello:
        """Check that both sides are the same build and begin the session.

        ``private``: in a new network namespace that ends with this agent.
        """
        if self.verbs is not None:
            raise HelloRefused(f"this agent already serves run {self.verbs.run}", host)
        prove_same(host, build, protocol, build_id())
        if private:
            self._enter_private(host)
        capabilities, locks = try_capabilities(self._host), Locks(self._host, run)
        try:
            self.verbs = Verbs(self._host, host, run, scopes, locks, capabilities)
        except ValueError as error:
            raise HelloRefused(str(error), host) from error
        self.lease_ns, self._returns = lease_ns, returns
        self.verbs.lease_s = lease_ns / SECOND_NS
        return greeting(self._host, capabilities)

    def _enter_private(self, name: str) -> None:
        try:
            enter_own(self._host)
        except OSError as error:
            what = f"cannot create a private network namespace there: {error.strerror}"
            raise HelloRefused(f"{what}; log in as root, or write become: sudo", name) from error

    def tick(self, now_ns: int) -> Optional[int]:
        """Look at the way of what is sent, where the controller is late to ask for it."""
        return None if self.verbs is None else self.verbs.look_out(now_ns)

    def take(self, use: Use) -> Taken:
        """Lock this host for the run; refused while another run has it."""
        verbs = self._greeted("take")
        locks, scopes = verbs.locks, verbs.scopes
        try:
            locks.take(scopes, use)
        except Held as held:
            return Taken(held.holder, held.lock)
        except OSError as error:
            what = f"{error.filename or FOLDER}: {error.strerror}"
            raise HelloRefused(f"cannot lock this host for the run: {what}", self.name) from error
        try:
            self._await_restores(locks)
        except HelloRefused:
            locks.release()
            raise
        self._taken = verbs.taken = True
        remove_stale(self._host)
        if self._returns:
            # Without a door, the end of stdin ends the run.
            with suppress(OSError):
                self.door = Door(self._host, verbs.run, alone="namespace" in scopes)
        # In this order, a run whose process ends in between is in both, not in none.
        used = tuple(map(run_of, in_use(self._host)))
        return Taken(left_behind=tuple(map(run_of, abandoned(self._host))), in_use=used)

    def _await_restores(self, locks: Locks) -> None:
        """Wait for a dead run's guardian, so that no half-restored value is read."""
        runs = locks.await_restores()
        if runs:
            raise HelloRefused(
                f"run {', '.join(runs)} died here, and its settings are still being restored; "
                "try again when that has finished",
                self.name,
            )

    def release(self) -> None:
        """Undo ``take``; only before anything was changed."""
        verbs = self._greeted("release")
        verbs.locks.release()
        self._taken = verbs.taken = False
        if self.door is not None:
            self.door.close(0)
            self.door = None

    def _greeted(self, verb: object) -> Verbs:
        if self.verbs is None:
            raise HelloRefused(f"{verb} before hello: the first request must be hello")
        return self.verbs
