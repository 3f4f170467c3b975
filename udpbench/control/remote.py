"""One agent's verbs with their types and deadlines: what the rest of control asks of a host.

Owns the translation between plain data and the model, and how long a verb may take. It takes no
decision and holds no state of a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from udpbench.errors import AgentError, AgentLost, ConnectError
from udpbench.model import (
    SECOND_NS,
    Change,
    ClockReading,
    Facts,
    FaultSpec,
    PhaseName,
    Planned,
    Scope,
    Setting,
    Snapshot,
    WorkerSpec,
    WorkerStats,
)
from udpbench.protocol import PROTOCOL, Hello, Prepared, SampleReply, build_id, decode

LIMIT_NS = {
    "hello": 20 * SECOND_NS,
    "facts": 10 * SECOND_NS,
    "apply": 60 * SECOND_NS,
    "verify": 20 * SECOND_NS,
    "prepare": 20 * SECOND_NS,
    "start": 5 * SECOND_NS,
    "sample": 5 * SECOND_NS,
    "snapshot": 5 * SECOND_NS,
    "expect_faults": 10 * SECOND_NS,
    "send_faults": 30 * SECOND_NS,
    "take_faults": 10 * SECOND_NS,
    "stop": 5 * SECOND_NS,
    "close": 10 * SECOND_NS,
    "restore": 60 * SECOND_NS,
    "ping": 5 * SECOND_NS,
    "leave": 5 * SECOND_NS,
}
"""Verb → how long an agent may take to answer: ten times what it takes, and more where a driver or
many settings may be slow; an agent's own limits (prepare 10 s, close 2 s) must run out first."""
LEASED = ("sample", "snapshot", "ping")
"""Verbs of a phase, which goes on by itself: over a connection that is silent they wait as long as
the agent does, because one that comes back within the lease has lost nothing."""
ROUND_TRIPS = 10
"""Added to each limit, in whole seconds: a long reply takes several by TCP's slow start, and a lost
segment is sent again."""
GREETING_PINGS = 5
"""Replies from which the clock offset is first learnt; the later ones refine it."""


class Requests(Protocol):
    """What control needs of a channel; the tests' fake agent is the other one that has it."""

    host: str
    offset_ns: int
    round_trip_ns: int | None
    absences_ns: list[int]
    notice: Callable[[str], None]

    @property
    def pid(self) -> int | None:
        """The agent's process id, where it runs on this machine."""

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return a verb's result as plain data."""

    def ping(self) -> None:
        """Renew the lease without waiting."""

    def outlast(self, run: str, lease_ns: int) -> None:
        """Make a connection that ends anew as long as the run's agent waits for it."""

    def close(self) -> int | None:
        """End the agent; return its exit status."""

    def lose(self, why: str) -> None:
        """Take the agent for lost: nothing more is asked of it."""

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Return the error of an agent that was lost before it answered its first request."""


@dataclass(frozen=True)
class StartOrder:
    """What a phase tells every agent that has workers."""

    phase: PhaseName
    tag: int
    duration_ns: int
    count: int | None
    """Packets per worker; None leaves it to the worker's own count."""
    flows: Sequence[int] | None = None
    """Numbers of the flows to send; None: all that were prepared."""
    rate_pps: int | None = None
    """Of each worker; None leaves it to the worker's own rate."""


class Remote:
    """One agent, greeted or about to be."""

    def __init__(
        self,
        channel: Requests,
        role: Literal["sender", "receiver", "bridge", "machine"],
        interface: str,
        scopes: tuple[Scope, ...],
    ) -> None:
        self.channel = channel
        self.name = channel.host
        self.role = role
        self.interface = interface
        self.scopes = scopes
        self._lease_ns = 0

    def _ask(self, kind: Any, verb: str, **args: Any) -> Any:
        slow_ns = ROUND_TRIPS * (self.channel.round_trip_ns or 0)
        limit_ns = LIMIT_NS[verb] + slow_ns // SECOND_NS * SECOND_NS
        if verb in LEASED and self.channel.pid is None:
            limit_ns = max(limit_ns, self._lease_ns)
        plain = self.channel.request(verb, limit_ns, **args)
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
            returns=self.channel.pid is None,
        )
        if self.channel.pid is None:
            self.channel.outlast(run, lease_ns)
        for _ in range(GREETING_PINGS):
            self._ask(None, "ping")
        self._lease_ns = lease_ns
        return hello

    def learn_clock(self) -> None:
        """Learn the agent's clock anew: clocks drift, so an old offset is wrong by more and more.

        An agent on this machine has the controller's own clock, and is not asked.
        """
        if self.channel.pid is None:
            self.channel.round_trip_ns = None
            for _ in range(GREETING_PINGS):
                self._ask(None, "ping")

    def clock(self, at_ns: int) -> ClockReading:
        """Return how the agent's clock stands to the controller's; ``at_ns`` is now on that one."""
        if self.channel.pid is not None:
            return ClockReading(at_ns, 0, 0)
        round_trip_ns = self.channel.round_trip_ns or 0
        return ClockReading(at_ns, self.channel.offset_ns, -(-round_trip_ns // 2))

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

    def verify(self) -> tuple[Change, ...]:
        """Return what somebody else has changed since it was put in force."""
        altered: tuple[Change, ...] = self._ask(tuple[Change, ...], "verify")
        return altered

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
            flows=list(order.flows) if order.flows is not None else None,
            rate_pps=order.rate_pps,
        )

    def sample(self, since: int) -> SampleReply:
        """Return the workers' state, counts, and the samples from number ``since`` on."""
        reply: SampleReply = self._ask(SampleReply, "sample", since=since)
        return reply

    def snapshot(self) -> Snapshot:
        """Return the host's counters."""
        snapshot: Snapshot = self._ask(Snapshot, "snapshot", interface=self.interface)
        return snapshot

    def expect_faults(self, faults: Sequence[FaultSpec]) -> None:
        """Open what waits for the packets that are to be lost, or fill what must be full."""
        ready = {"interface": self.interface, "role": self.role, "faults": list(faults)}
        self._ask(None, "expect_faults", **ready)

    def send_faults(self, stage: str) -> WorkerStats:
        """Send one stage's packets to be lost; return what was sent."""
        stats: WorkerStats = self._ask(WorkerStats, "send_faults", stage=stage)
        return stats

    def take_faults(self) -> tuple[WorkerStats, ...]:
        """Return what arrived of the packets that were to be lost."""
        stats: tuple[WorkerStats, ...] = self._ask(tuple[WorkerStats, ...], "take_faults")
        return stats

    def stop(self) -> None:
        """Tell every loop to end; the next samples say when they have."""
        self._ask(None, "stop")

    def close(self, keep_logs: str | None = None) -> None:
        """End the workers and their sockets, and remove their logs, or keep them by a label."""
        self._ask(None, "close", keep_logs=keep_logs)

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo every setting, or what dead runs left behind, and return it; raises RestoreError."""
        undone: tuple[Change, ...] = self._ask(
            tuple[Change, ...], "restore", force=force, left_behind=left_behind
        )
        return undone
