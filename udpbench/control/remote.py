"""One agent's verbs with their types and deadlines: what the rest of control asks of a host.

Owns the translation between plain data and the model, and how long a verb may take. It takes no
decision and holds no state of a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from udpbench.errors import AgentError
from udpbench.model import (
    SECOND_NS,
    Change,
    Facts,
    PhaseName,
    Planned,
    Scope,
    Setting,
    Snapshot,
    WorkerSpec,
)
from udpbench.protocol import PROTOCOL, Hello, Prepared, SampleReply, build_id, decode

LIMIT_NS = {
    "hello": 20 * SECOND_NS,
    "facts": 10 * SECOND_NS,
    "apply": 60 * SECOND_NS,
    "prepare": 20 * SECOND_NS,
    "start": 5 * SECOND_NS,
    "sample": 5 * SECOND_NS,
    "snapshot": 5 * SECOND_NS,
    "stop": 5 * SECOND_NS,
    "close": 10 * SECOND_NS,
    "restore": 60 * SECOND_NS,
    "ping": 5 * SECOND_NS,
}
"""Verb → how long an agent may take to answer: ten times what it takes, and more where a driver or
many settings may be slow; an agent's own limits (prepare 10 s, close 2 s) must run out first."""
GREETING_PINGS = 5
"""Replies from which the clock offset is first learnt; the later ones refine it."""


class Requests(Protocol):
    """What control needs of a channel; the tests' fake agent is the other one that has it."""

    host: str
    offset_ns: int
    round_trip_ns: int | None

    @property
    def pid(self) -> int | None:
        """The agent's process id, where it runs on this machine."""

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return a verb's result as plain data."""

    def ping(self) -> None:
        """Renew the lease without waiting."""

    def close(self) -> int | None:
        """End the agent; return its exit status."""


@dataclass(frozen=True)
class StartOrder:
    """What a phase tells every agent that has workers."""

    phase: PhaseName
    tag: int
    duration_ns: int
    count: int | None
    """Packets per worker; None leaves it to the worker's own count."""


class Remote:
    """One agent, greeted or about to be."""

    def __init__(
        self,
        channel: Requests,
        role: Literal["sender", "receiver", "machine"],
        interface: str,
        scopes: tuple[Scope, ...],
    ) -> None:
        self.channel = channel
        self.name = channel.host
        self.role = role
        self.interface = interface
        self.scopes = scopes

    def _ask(self, kind: Any, verb: str, **args: Any) -> Any:
        plain = self.channel.request(verb, LIMIT_NS[verb], **args)
        try:
            return decode(kind, plain)
        except (ValueError, TypeError) as error:
            raise AgentError(f"{verb}: the reply does not fit: {error}", self.name) from error

    def hello(self, run: str, lease_ns: int) -> Hello:
        """Greet the agent and learn its clock; raises HelloRefused."""
        hello: Hello = self._ask(
            Hello,
            "hello",
            host=self.name,
            run=run,
            build=build_id(),
            protocol=PROTOCOL,
            lease_ns=lease_ns,
            scopes=list(self.scopes),
        )
        for _ in range(GREETING_PINGS):
            self._ask(None, "ping")
        return hello

    def facts(self) -> Facts:
        """Return what the host is now."""
        facts: Facts = self._ask(Facts, "facts", interface=self.interface)
        return facts

    def apply(self, settings: Sequence[Setting]) -> tuple[Change, ...]:
        """Put exactly these settings in force; raises SettingRefused."""
        changes: tuple[Change, ...] = self._ask(
            tuple[Change, ...], "apply", settings=list(settings), dry_run=False
        )
        return changes

    def plan(self, settings: Sequence[Setting]) -> tuple[Planned, ...]:
        """Return what putting these settings in force would meet, changing nothing."""
        planned: tuple[Planned, ...] = self._ask(
            tuple[Planned, ...], "apply", settings=list(settings), dry_run=True
        )
        return planned

    def prepare(self, workers: Sequence[WorkerSpec]) -> tuple[Prepared, ...]:
        """Make workers with their sockets; raises SafetyError, WorkerFailed."""
        prepared: tuple[Prepared, ...] = self._ask(
            tuple[Prepared, ...], "prepare", interface=self.interface, workers=list(workers)
        )
        return prepared

    def start(self, order: StartOrder, at_ns: int) -> None:
        """Set the workers going at ``at_ns`` of the agent's own clock."""
        self._ask(
            None,
            "start",
            phase=order.phase,
            tag=order.tag,
            at_ns=at_ns,
            duration_ns=order.duration_ns,
            count=order.count,
        )

    def sample(self, since: int) -> SampleReply:
        """Return the workers' state, counts, and the samples from number ``since`` on."""
        reply: SampleReply = self._ask(SampleReply, "sample", since=since)
        return reply

    def snapshot(self) -> Snapshot:
        """Return the host's counters."""
        snapshot: Snapshot = self._ask(Snapshot, "snapshot", interface=self.interface)
        return snapshot

    def stop(self) -> None:
        """Tell every loop to end; the next samples say when they have."""
        self._ask(None, "stop")

    def close(self) -> None:
        """End the workers and their sockets."""
        self._ask(None, "close")

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo every setting, or what dead runs left behind, and return it; raises RestoreError."""
        undone: tuple[Change, ...] = self._ask(
            tuple[Change, ...], "restore", force=force, left_behind=left_behind
        )
        return undone
