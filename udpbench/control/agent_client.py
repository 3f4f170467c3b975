"""One agent's verbs as typed methods: all that control asks of a host.

Owns the translation between plain data and the model. Decides nothing and holds no state of a
trial.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from udpbench.errors import AgentError, AgentLost, ConnectError
from udpbench.model import (
    SECOND_NS,
    Change,
    ClockReading,
    Edge,
    Facts,
    HostLook,
    Inspection,
    LossSpec,
    Part,
    PhaseName,
    Planned,
    Scope,
    Setting,
    Snapshot,
    WorkerSpec,
    WorkerStats,
)
from udpbench.printable import all_printable
from udpbench.protocol import (
    PROTOCOL,
    VERBS,
    HeardArp,
    Hello,
    Interfaces,
    Prepared,
    RecordedTree,
    SampleReply,
    Stranger,
    Taken,
    Use,
    build_id,
    decode,
)

LEASED = ("sample", "snapshot", "ping")
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

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return a verb's result as plain data."""

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


@dataclass(frozen=True)
class StartOrder:
    """The start of a phase, for every agent that has workers."""

    phase: PhaseName
    tag: int
    duration_ns: int
    count: int | None
    """Packets per worker; None leaves it to the worker's own count."""
    flows: Sequence[int] | None = None
    """Numbers of the flows to send; None: all that were prepared."""
    rate_pps: int | None = None
    """Rate of each worker; None: the worker's own."""


class AgentClient:
    """One agent of a lab."""

    def __init__(
        self,
        channel: Requests,
        part: Part | Literal["machine"],
        interface: str,
        scopes: tuple[Scope, ...],
        routed: tuple[str, ...] | None = None,
    ) -> None:
        self.channel = channel
        self.name = channel.host
        self.part = part
        self.interface = interface
        self.scopes = scopes
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
        self._controller: int | None = None
        """This process, if the agent is on the same machine."""

    def _ask(self, verb: str, **args: Any) -> Any:
        slow_ns = ROUND_TRIPS * self.trip_ns
        limit_ns = (VERBS[verb].limit_s + slow_ns // SECOND_NS) * SECOND_NS
        if verb in LEASED and self.channel.pid is None:
            limit_ns = max(limit_ns, self._lease_ns)
        plain = self.channel.request(verb, limit_ns, **args)
        if verb not in VERBATIM:
            plain = all_printable(plain, keep="\t")  # sysctls have tabs
        try:
            reply = decode(VERBS[verb].reply, plain)
        except (ValueError, TypeError) as error:
            raise AgentError(f"{verb}: malformed reply: {error}", self.name) from error
        if getattr(reply, "host", self.name) != self.name:
            text = f"{verb}: malformed reply: it speaks for {reply.host[:80]}"
            raise AgentError(text, self.name)
        return reply

    @property
    def trip_ns(self) -> int:
        """The shortest round trip, as far as it is waited for."""
        return min(self.channel.round_trip_ns or 0, SLOWEST_NS)

    def hello(self, run: str, lease_ns: int) -> Hello:
        """Greet the agent and estimate its clock offset; raises HelloRefused."""
        hello: Hello = self._ask(
            "hello",
            host=self.name,
            run=run,
            build=build_id(),
            protocol=PROTOCOL,
            lease_ns=lease_ns,
            scopes=list(self.scopes),
            returns=self._returns,
            private=self._private,
        )
        self.pid, self.netns = hello.pid, hello.netns
        for _ in range(GREETING_PINGS):
            self._ask("ping")
        self.run, self._lease_ns = run, lease_ns
        self._controller = os.getpid() if hello.boot_id == _boot_id() else None
        return hello

    @property
    def _returns(self) -> bool:
        """Whether a lost connection may be re-established; not into a private namespace."""
        return self.channel.pid is None and not self._private

    def take(self, use: Use) -> Taken:
        """Take the host for this run, unless another run has it; raises HelloRefused."""
        taken: Taken = self._ask("take", use=use)
        if taken.held_by is None and self._returns:
            self.channel.outlast(self.run, self._lease_ns)
        return taken

    def release(self) -> None:
        """Release the host for other runs, before anything was changed."""
        self._ask("release")

    def others(self) -> tuple[str, ...]:
        """Return the other runs that have used the host's machine since the last call."""
        others: tuple[str, ...] = self._ask("others")
        return others

    def learn_clock(self) -> None:
        """Estimate the agent's clock offset again, because clocks drift.

        An agent on this machine shares the controller's clock.
        """
        if self.channel.pid is None:
            self.channel.round_trip_ns = None
            for _ in range(GREETING_PINGS):
                self._ask("ping")

    def clock(self, at_ns: int) -> ClockReading:
        """Return the agent's clock offset; ``at_ns`` is the controller's time now."""
        if self.channel.pid is not None:
            return ClockReading(at_ns, 0, 0)
        round_trip_ns = self.channel.round_trip_ns or 0
        return ClockReading(at_ns, self.channel.offset_ns, -(-round_trip_ns // 2))

    def facts(self) -> Facts:
        """Return the facts of the host as it is now."""
        facts: Facts = self._ask("facts", interface=self.interface)
        try:
            for address in facts.addresses:
                ipaddress.ip_interface(address)
        except ValueError as error:
            raise AgentError(f"facts: malformed reply: {error}", self.name) from error
        return facts

    def interfaces(self) -> Interfaces:
        """Return the interfaces of the host as they are now; raises AgentError."""
        known: Interfaces = self._ask("interfaces")
        try:
            for interface in known.listed:
                for address in interface.addresses:
                    ipaddress.ip_interface(address)
        except ValueError as error:
            raise AgentError(f"interfaces: malformed reply: {error}", self.name) from error
        return known

    def hear_arp(self, interfaces: Sequence[str]) -> tuple[HeardArp, ...]:
        """Return the ARP probes heard since the last request; an empty list ends listening."""
        heard: tuple[HeardArp, ...] = self._ask("hear_arp", interfaces=list(interfaces))
        return heard

    def send_arp(self, interface: str) -> None:
        """Send one ARP probe; raises SafetyError, AgentError."""
        self._ask("send_arp", interface=interface)

    def record(self) -> RecordedTree:
        """Return the anonymised answers of the host about itself."""
        tree: RecordedTree = self._ask("record", interface=self.interface)
        return tree

    def inspect(self) -> Inspection:
        """Return what ``udpbench doctor`` reads besides the facts; takes up to a second."""
        inspection: Inspection = self._ask("inspect", interface=self.interface)
        try:
            for address in chain(*(inspection.other_addresses or {}).values()):
                ipaddress.ip_interface(address)
        except ValueError as error:
            raise AgentError(f"inspect: malformed reply: {error}", self.name) from error
        return inspection

    def apply(self, settings: Sequence[Setting]) -> tuple[Change, ...]:
        """Put exactly these settings in force; raises SettingRefused."""
        changes: tuple[Change, ...] = self._ask("apply", settings=list(settings), dry_run=False)
        return changes

    def plan(self, settings: Sequence[Setting]) -> tuple[Planned, ...]:
        """Return what applying these settings would change or be refused, changing nothing."""
        planned: tuple[Planned, ...] = self._ask("apply", settings=list(settings), dry_run=True)
        return planned

    def verify(self) -> tuple[Change, ...]:
        """Return the settings that another process has changed since they were applied."""
        altered: tuple[Change, ...] = self._ask("verify")
        return altered

    def prepare(self, workers: Sequence[WorkerSpec]) -> tuple[Prepared, ...]:
        """Make workers with their sockets; raises SafetyError, WorkerFailed."""
        routed = list(self.routed) if self.routed is not None else None
        prepared: tuple[Prepared, ...] = self._ask(
            "prepare", interface=self.interface, workers=list(workers), routed=routed
        )
        return prepared

    def start(self, order: StartOrder, at_ns: int) -> None:
        """Start the workers at ``at_ns`` of the agent's own clock."""
        self._ask(
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
        reply: SampleReply = self._ask("sample", since=since)
        return reply

    def snapshot(self, edge: Edge | None = None) -> Snapshot:
        """Return the host's counters; at the end of a phase also the CPU use of other processes."""
        snapshot: Snapshot = self._ask(
            "snapshot", interface=self.interface, edge=edge, controller=self._controller
        )
        return snapshot

    def look(self, pid: int | None, unit: str | None, exact: bool) -> HostLook:
        """Return the host's state and what changed since the previous look."""
        look: HostLook = self._ask("look", pid=pid, unit=unit, exact=exact)
        try:
            for cookie in look.counts or ():
                int(cookie)
        except ValueError as error:
            raise AgentError(f"look: malformed reply: {str(error)[:80]}", self.name) from error
        return look

    def facts_of(self, interface: str) -> Facts:
        """Return the facts of the host with another interface."""
        facts: Facts = self._ask("facts", interface=interface)
        return facts

    def expect_losses(self, losses: Sequence[LossSpec]) -> None:
        """Open the sockets for packets lost on purpose; fill those that must be full."""
        ready = {"interface": self.interface, "role": self.part, "losses": list(losses)}
        self._ask("expect_losses", **ready)

    def send_losses(self, stage: str) -> WorkerStats:
        """Send one stage's packets that are lost on purpose; return what was sent."""
        stats: WorkerStats = self._ask("send_losses", stage=stage)
        return stats

    def collect_losses(self) -> tuple[WorkerStats, ...]:
        """Return which of the packets lost on purpose arrived after all."""
        stats: tuple[WorkerStats, ...] = self._ask("collect_losses")
        return stats

    def hear_strangers(self, listen: bool) -> tuple[Stranger, ...]:
        """Listen from now on for others that send to the workers' ports, or return who was heard.

        AgentError without the right to.
        """
        heard: tuple[Stranger, ...] = self._ask("hear_strangers", listen=listen)
        try:
            for stranger in heard:
                ipaddress.ip_address(stranger.address)
        except ValueError as error:
            raise AgentError(f"hear_strangers: malformed reply: {error}", self.name) from error
        return heard

    def stop(self) -> None:
        """Stop every loop; later samples show when they have ended."""
        self._ask("stop")

    def close(self, keep_logs: str | None = None) -> str | None:
        """End the workers, close their sockets, and remove their logs, or keep them by a label.

        Returns the output of a user's program.
        """
        printed: str | None = self._ask("close", keep_logs=keep_logs)
        return printed

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo, and return, every setting, or those left by dead runs; raises RestoreError."""
        undone: tuple[Change, ...] = self._ask("restore", force=force, left_behind=left_behind)
        return undone


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
