"""One agent's conversation: hello first, then the verbs; every failure leaves it usable.

Owns the greeting and the way from a request to a verb. Knows nothing of lines, pipes or time.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Optional

from udpbench.agent.capabilities import tried
from udpbench.agent.door import Door
from udpbench.agent.host import Host
from udpbench.agent.journal import abandoned, run_of
from udpbench.agent.locks import Held, Locks
from udpbench.agent.restoring import awaited
from udpbench.agent.verbs import Verbs
from udpbench.errors import AgentError, HelloRefused
from udpbench.model import SECOND_NS, Scope
from udpbench.protocol import PROTOCOL, VERBS, Hello, build_id

UNGREETED_NS = 60 * SECOND_NS
"""For a controller to say hello in; its pipe may stay open although it hangs."""


class Session:
    """An agent from its first request to its last."""

    def __init__(self, host: Host) -> None:
        self.verbs: Optional[Verbs] = None
        self.lease_ns = UNGREETED_NS
        self.door: Optional[Door] = None
        """By which the controller may come back after its connection has ended."""
        self.leaving = False
        """The controller has said that it will not."""
        self._host = host

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        return self.verbs.name if self.verbs is not None else ""

    def serve(self, verb: object, args: object) -> Any:
        """Return the result of one request; raises what it failed with."""
        if verb not in VERBS:
            raise AgentError(f"verb {verb!r} is unknown; this agent knows {', '.join(VERBS)}")
        if verb != "hello" and self.verbs is None:
            raise HelloRefused(f"{verb} before hello: the first request must be hello")
        if not isinstance(args, dict):
            raise AgentError(f"{verb}: args must be an object, not {type(args).__name__}")
        greeting = verb in ("hello", "leave")
        method: Callable[..., Any] = getattr(self if greeting else self.verbs, str(verb))
        try:
            inspect.signature(method).bind(**args)
        except TypeError as error:
            raise AgentError(f"{verb}: {error}") from error
        return method(**args)

    def hello(
        self,
        host: str,
        run: str,
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: list[Scope],
        returns: bool = False,
    ) -> Hello:
        """Greet: prove that both sides are of one build, and take the locks of the scopes."""
        if self.verbs is not None:
            raise HelloRefused(f"this agent serves run {self.verbs.run} already", host)
        own = build_id()
        _prove_same(host, build, protocol, own)
        locks = _locked(self._host, host, run, scopes)
        _await_restored(self._host, host, locks)
        capabilities = tried(self._host)
        try:
            self.verbs = Verbs(self._host, host, run, tuple(scopes), locks, capabilities)
        except ValueError as error:
            locks.close()
            raise HelloRefused(str(error), host) from error
        self.lease_ns = lease_ns
        if returns:
            # Where there can be none, the end of stdin is the end, as it is without.
            with suppress(OSError):
                self.door = Door(self._host, run, alone="namespace" in scopes)
        return Hello(
            pid=os.getpid(),
            netns=self._host.netns(),
            boot_id=self._host.boot_id(),
            build=own,
            python=".".join(str(part) for part in sys.version_info[:3]),
            capabilities=capabilities,
            left_behind=tuple(run_of(path) for path in abandoned(self._host)),
        )

    def leave(self) -> None:
        """Take the end of stdin for the end of the run from now on."""
        self.leaving = True


def _prove_same(host: str, build: str, protocol: int, own: str) -> None:
    """Raise HelloRefused with every way in which controller and agent are not of one make."""
    differences = []
    if protocol != PROTOCOL:
        differences.append(f"the controller speaks protocol {protocol}, the agent {PROTOCOL}")
    if build != own:
        differences.append(f"the controller's build is {build}, the agent's {own}")
    if differences:
        what = "; ".join(differences)
        raise HelloRefused(f"{what}; install the same udpbench on both", host)


def _locked(host: Host, name: str, run: str, scopes: list[Scope]) -> Locks:
    locks = Locks(host, run)
    try:
        if "namespace" in scopes:
            locks.exclude_namespace()
        if "machine" in scopes:
            locks.share_machine()
    except Held as held:
        locks.close()
        raise HelloRefused(f"{held}; let that run end first", name) from held
    return locks


def _await_restored(host: Host, name: str, locks: Locks) -> None:
    """Wait for a dead run's guardian: what is read while it writes would be restored for good."""
    runs = awaited(host, locks)
    if runs:
        locks.close()
        raise HelloRefused(
            f"run {', '.join(runs)} died here, and what it changed is still being put back; "
            "begin again once that has ended",
            name,
        )
