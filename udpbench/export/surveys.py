"""Surveys of this machine for ``udpbench export``: every network namespace, again and again.

By an observer, which has no code that changes a host. Takes no lock and sends no traffic.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from udpbench.control.agent_client import AgentClient, Requests
from udpbench.control.connections.local_agent import open_observer
from udpbench.control.wait import Clock, Interrupt
from udpbench.errors import AgentError, AgentLost, HostError
from udpbench.model.host import Facts
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import UdpSocket
from udpbench.model.survey import MachineLook
from udpbench.protocol import decode

POLL_NS = SECOND_NS // 4
"""Between two checks for the end."""
FACTS_NS = 60 * SECOND_NS
"""Between two readings of facts because something was changed; they take programs' time."""
LATE_NS = 60 * SECOND_NS
"""For an answer to come: a host that swaps is late, and what changed is in no other answer."""
LEASE_NS = 300 * SECOND_NS
"""For which an observer that is asked nothing stays; each survey renews it."""


@dataclass(frozen=True)
class Surveyed:
    """One survey, or why there is none this time."""

    survey: MachineLook | None
    facts: Mapping[str, Facts]
    """By interface of the observer's namespace."""
    took_ns: int
    error: AgentError | None = None


@dataclass(frozen=True)
class Own:
    """What an exporter says of itself."""

    version: str
    build: str
    cpu_seconds: float = 0.0
    look_seconds: float = 0.0
    wall_ns: int = 0
    errors: Mapping[str, int] = field(default_factory=lambda: {"look": 0, "file": 0, "record": 0})


@contextmanager
def observer(
    words: Sequence[str], reach: Callable[[str, Sequence[str]], Requests] = open_observer
) -> Iterator[AgentClient]:
    """Yield an observer of this machine, greeted; raises ConnectError, HelloRefused."""
    client = AgentClient(
        reach(socket.gethostname(), words), "receiver", "", ("namespace", "machine")
    )
    try:
        client.greet(f"export-{os.getpid()}", LEASE_NS)
        yield client
    finally:
        client.channel.close()


def surveys(
    client: AgentClient,
    exact: bool,
    every_ns: int,
    clock: Clock,
    interrupt: Interrupt,
    closely: bool = False,
) -> Iterator[Surveyed]:
    """Yield a survey each time, until SIGINT or SIGTERM; raises AgentLost, NothingToWatch."""
    known = _Known()
    due_ns = clock.now_ns()
    interrupt.doing = "ending the latest look"
    with interrupt.caught():
        while not interrupt.requested:
            if clock.now_ns() < due_ns:
                clock.sleep_ns(min(due_ns - clock.now_ns(), POLL_NS))
                continue
            yield known.survey(client, (exact, closely), clock.now_ns)
            due_ns += every_ns * (1 + max(clock.now_ns() - due_ns, 0) // every_ns)


def _asked(client: AgentClient, exact: bool, closely: bool) -> MachineLook:
    """Return what an observer answers; raises AgentError, AgentLost.

    It is a process of this program: of each of hundreds of sockets only the form is looked at,
    which takes a sixth of the time that an answer of another host needs.
    """
    plain = client.channel.begin("survey", LATE_NS, exact=exact, closely=closely)()
    try:
        rows = iter([tuple(map(_socket, each)) for each in plain["rows"]])
        survey: MachineLook = decode(MachineLook, plain["look"])
        spaces = [
            each
            if each.look is None
            else replace(each, look=replace(each.look, sockets=next(rows)))
            for each in survey.spaces
        ]
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise AgentError(f"survey: malformed reply: {error}", client.name) from error
    return replace(survey, spaces=tuple(spaces))


def _socket(row: Sequence[Any]) -> UdpSocket:
    *values, processes = row
    return UdpSocket(*[*values, tuple(processes)])


class _Known:
    """The facts of interfaces, as they were read last."""

    def __init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._without: set[str] = set()
        """Interfaces whose facts could not be read."""
        self._changed: Mapping[str, int] = {}
        self._read_ns = 0

    def survey(
        self, client: AgentClient, how: tuple[bool, bool], now_ns: Callable[[], int]
    ) -> Surveyed:
        """Return a survey with the facts; these are read anew where something was changed."""
        begun_ns = now_ns()
        try:
            survey = _asked(client, *how)
        except AgentError as error:
            return Surveyed(None, dict(self._facts), now_ns() - begun_ns, error)
        took_ns = now_ns() - begun_ns
        is_due = begun_ns - self._read_ns >= FACTS_NS
        if is_due and (survey.changed != self._changed or self._without):
            self._facts, self._changed, self._read_ns = {}, survey.changed, begun_ns
            self._without.clear()
        own = survey.spaces[0].look
        interfaces = own.interfaces if own is not None else ()
        there = frozenset(interfaces)
        self._facts = {name: known for name, known in self._facts.items() if name in there}
        for name in interfaces:
            if name not in self._facts and name not in self._without:
                self._learn(client, name)
        return Surveyed(survey, dict(self._facts), took_ns)

    def _learn(self, client: AgentClient, interface: str) -> None:
        try:
            self._facts[interface] = client.facts(interface)
        except AgentLost:
            raise
        except HostError:  # it was removed in the meantime
            self._without.add(interface)
