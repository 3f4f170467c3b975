"""One agent of a lab, and all that control asks of it: ``protocol.AgentVerbs``.

Owns how long an answer may take, and what of it is believed. Decides nothing and holds no state of
a trial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from udpbench.control.wait import Clock
from udpbench.errors import AgentError, AgentLost, ConnectError
from udpbench.model.limits import SECOND_NS, Part, Scope
from udpbench.model.record import ClockReading, HostLook
from udpbench.printable import all_printable
from udpbench.protocol import (
    LOOK_SOCKETS,
    PROTOCOL,
    REPEATED,
    VERBS,
    AgentVerbs,
    Hello,
    Repeated,
    Taken,
    Use,
    build_id,
    decode,
)

T = TypeVar("T")

LEASED = ("sample", "snapshot", "changed", "passage", "ping")
"""Verbs of a phase: on a lost connection they wait as long as the agent does, because the phase
continues and nothing is lost if the connection returns within the lease."""
VERBATIM = ("record", "close")
"""Verbs whose replies have the text of files or of a program, with its line breaks; a line break in
any other reply could imitate output of udpbench."""
ROUND_TRIPS = 10
"""Added to each limit, in whole seconds: TCP's slow start spreads a long reply over several, and
lost segments are sent again."""
SLOWEST_NS = SECOND_NS
"""Round trip, as by satellite, up to which limits grow: a host decides how long its own is."""
REFUSAL_CHARACTERS = 200
MOST_SOCKETS = 2**18
"""Open on a watched host; each takes 1 KiB here as long as it is."""
GREETING_PINGS = 5
"""Pings for a first estimate of the clock offset; later replies refine it."""


class Requests(Protocol):
    """A channel, as control needs it; the tests' fake agent is the other implementation."""

    host: str
    offset_ns: int
    round_trip_ns: int | None
    absences_ns: list[int]
    notice: Callable[[str], None]

    @property
    def pid(self) -> int | None:
        """The agent's process id, if it runs on this machine."""

    def begin(self, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:
        """Send a request; return what waits for the verb's result, plain data, and returns it."""

    def ping(self) -> None:
        """Renew the lease without waiting."""

    def outlast(self, run: str, lease_ns: int) -> None:
        """Reconnect if the connection ends, for as long as the run's agent waits."""

    def close(self) -> int | None:
        """End the agent; return its exit status."""

    def lose(self, why: str) -> None:
        """Give up the agent and send it no more requests."""

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Return the error of an agent that was lost before its first reply."""


TEXTS: dict[str, tuple[Callable[[str], object], Callable[[Any], Iterable[str]]]] = {
    "facts": (ip_interface, lambda facts: facts.addresses),
    "interfaces": (ip_interface, lambda known: chain(*(each.addresses for each in known.listed))),
    "inspect": (ip_interface, lambda known: chain(*(known.other_addresses or {}).values())),
    "hear_strangers": (ip_address, lambda heard: (stranger.address for stranger in heard)),
    "look": (int, lambda look: look.counts or ()),
    "survey": (
        int,
        lambda known: chain(*(each.look.counts or () for each in known.look.spaces if each.look)),
    ),
}
"""Verb → what refuses a text that it cannot be, and such texts of a reply."""


class AgentClient(AgentVerbs):
    """One agent of a lab."""

    def __init__(
        self,
        channel: Requests,
        part: Part | Literal["machine"],
        interface: str,
        scopes: tuple[Scope, ...],
        routed: tuple[str, ...] | None = None,
        out: str = "",
        tunnel: str = "",
    ) -> None:
        self.channel = channel
        self.name = channel.host
        self.part = part
        self.interface = interface
        self.scopes = scopes
        self.out = out
        """For a node in the middle: the interface by which packets leave."""
        self.tunnel = tunnel
        """The interface into which it routes them, or out of which (WireGuard)."""
        self.routed = routed
        """Networks to which a sender may send through a gateway; None: all."""
        self.pid: int | None = None
        """The agent's process id on its machine, once it was greeted."""
        self.netns: int | None = None
        """The inode of its network namespace, likewise."""
        self._private = channel.pid is None and scopes == ("namespace",)
        """In a built-in lab on another machine, where the agent creates its own namespace."""
        self.run = ""
        self._lease_ns = 0
        self.controller: int | None = None
        """This process, if the agent is on the same machine."""
        self._repeated = {name: Repeated() for name in REPEATED}

    def ask(self, name: str, args: dict[str, Any]) -> Any:
        """Return the agent's reply to a verb; raises its error, or AgentError for another reply."""
        return self.begin(name, args)()

    def begin(self, name: str, args: dict[str, Any]) -> Callable[[], Any]:
        """Ask, and return what waits for the reply; of several the first is to be waited for first.

        Not for what must not be served twice: a connection that is lost repeats all that is open.
        """
        slow_ns = ROUND_TRIPS * self.trip_ns
        limit_ns = (VERBS[name].limit_s + slow_ns // SECOND_NS) * SECOND_NS
        if name in LEASED and self.channel.pid is None:
            limit_ns = max(limit_ns, self._lease_ns)
        repeated = self._repeated.get(name)
        if repeated is not None:
            args = {key: repeated.encode(value) for key, value in args.items()}
        return partial(self._reply, name, self.channel.begin(name, limit_ns, **args))

    def _reply(self, name: str, finish: Callable[[], Any]) -> Any:
        plain = finish()
        try:
            return self._decoded(name, plain)
        except (ValueError, TypeError) as error:
            what = str(error)[:REFUSAL_CHARACTERS]
            raise AgentError(f"{name}: malformed reply: {what}", self.name) from error

    def _decoded(self, name: str, plain: Any) -> Any:
        kind, repeated = VERBS[name].kinds["return"], self._repeated.get(name)
        if repeated is not None:
            return repeated.decode(kind, plain, _shown)
        reply = decode(kind, plain if name in VERBATIM else _shown(plain))
        if getattr(reply, "host", self.name) != self.name:
            raise ValueError(f"it speaks for {reply.host[:80]}")
        if name in TEXTS:
            parse, texts = TEXTS[name]
            for text in texts(reply):
                parse(text)
        return reply

    @property
    def trip_ns(self) -> int:
        """The shortest round trip, as far as it is waited for."""
        return min(self.channel.round_trip_ns or 0, SLOWEST_NS)

    def greet(self, run: str, lease_ns: int) -> Hello:
        """Greet the agent and estimate its clock offset; raises HelloRefused."""
        hello = self.hello(
            host=self.name,
            run=run,
            build=build_id(),
            protocol=PROTOCOL,
            lease_ns=lease_ns,
            scopes=self.scopes,
            returns=self._returns,
            private=self._private,
        )
        self.pid, self.netns = hello.pid, hello.netns
        for _ in range(GREETING_PINGS):
            self.ping()
        self.run, self._lease_ns = run, lease_ns
        self.controller = os.getpid() if hello.boot_id == _boot_id() else None
        return hello

    @property
    def _returns(self) -> bool:
        """Whether a lost connection may be re-established; not into a private namespace."""
        return self.channel.pid is None and not self._private

    def take(self, use: Use) -> Taken:
        """Take the host for this run, unless another run has it; raises HelloRefused."""
        taken = super().take(use)
        if taken.held_by is None and self._returns:
            self.channel.outlast(self.run, self._lease_ns)
        return taken

    def look(self, pid: int | None, unit: str | None, exact: bool) -> HostLook:
        """Return the host's state and what changed, with all sockets, or more than MOST_SOCKETS."""
        look = super().look(pid, unit, exact)
        sockets, part = [*look.sockets], look.sockets
        while len(part) == LOOK_SOCKETS and len(sockets) <= MOST_SOCKETS:
            part = self.more_sockets()
            sockets += part
        return replace(look, sockets=tuple(sockets))

    def learn_clock(self) -> None:
        """Estimate the agent's clock offset again, because clocks drift.

        An agent on this machine shares the controller's clock.
        """
        if self.channel.pid is None:
            self.channel.round_trip_ns = None
            for _ in range(GREETING_PINGS):
                self.ping()

    def clock(self, at_ns: int) -> ClockReading:
        """Return the agent's clock offset; ``at_ns`` is the controller's time now."""
        if self.channel.pid is not None:
            return ClockReading(at_ns, 0, 0)
        round_trip_ns = self.channel.round_trip_ns or 0
        return ClockReading(at_ns, self.channel.offset_ns, -(-round_trip_ns // 2))


def _shown(plain: Any) -> Any:
    return all_printable(plain, keep="\t")  # sysctls have tabs


def ask_all(
    clock: Clock, clients: Sequence[AgentClient], request: Callable[[AgentClient], T]
) -> dict[str, T]:
    """Return agent → its answer to a request; all are asked at the same time.

    Raises the error of the first that failed, once all have answered.
    """
    answers = clock.together([partial(request, client) for client in clients])
    return {client.name: answer for client, answer in zip(clients, answers, strict=True)}


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
