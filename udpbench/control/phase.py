"""One phase of a trial: snapshot, start at a common time, senders done, receivers quiet, snapshot.

Owns when packets flow; ``drain`` says when the last of them has arrived. Judges no count. Long,
because its moments are in one order, whatever is counted in between.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from udpbench.control.agent_client import AgentClient, ask_all
from udpbench.control.drain import PROBE_QUIET_NS, QUIET_NS, Drain
from udpbench.control.losses import Losses
from udpbench.control.path_proof import PathWatch
from udpbench.control.steadiness import LEAST_NS, Steadiness
from udpbench.control.wait import Waiter
from udpbench.errors import AgentError, AgentLost, DeadlineExceeded, HostError, from_wire
from udpbench.model.limits import CPU_FREQUENCY, SECOND_NS, Edge, PhaseName, Role
from udpbench.model.record import (
    PACKETS_FIELD,
    ClockReading,
    CpuSamples,
    FlowStats,
    Phase,
    Sample,
    Snapshot,
    WorkerStats,
)
from udpbench.model.work import WorkerSpec
from udpbench.protocol import PhaseOrder, SampleReply, Stranger
from udpbench.units import format_duration
from udpbench.ways import way_of

LATE_NS = 10**6
"""How late a loop's start may be acknowledged without a finding: a thousandth of one second of
load, and not more than a reply takes on a slow link."""
LEAD_NS, LEAD_EACH_NS = 10 * 10**6, 5 * 10**6
"""Time to acknowledge the start before the common time, and more for each agent; measured: 3 ms."""
LOAD_SAMPLE_NS = 500 * 10**6
"""Interval of requests while senders run: each costs an agent about 1 ms of CPU time, which small
machines need for the workers, so a phase is polled no oftener than a viewer needs."""
STEADY_SAMPLE_NS = LOAD_SAMPLE_NS // 5
"""The same where a warm-up ends with a steady rate: as often as agents sample."""
COUNT_SAMPLE_NS = 200 * 10**6
"""The same where senders end after a number of packets: only a request tells when."""
WATCHES_MAX = 600
"""Per phase; one of more than ten minutes is read less often."""
WATCH_NS = SECOND_NS
"""Interval of counter readings in a measured phase: each costs an agent 2.5 ms of CPU time, a
quarter of the samples' cost; read with or without a live view."""
CHANGES_NS = 50 * 10**6
"""Interval at which nodes in the middle are asked for changes: an answer takes an agent 0.2 ms."""
CARD_NS = 2 * SECOND_NS
"""For a card to update its counters: some do once a second (docs/kernel.md, Update periods)."""
NUMBERS_PER_WORKER, NUMBERS_PER_HOST = 10**6, 10**7
"""Numbers that a host may send in a phase: more than 3600 samples of a worker, and 600 readings of
100 interrupts on 100 CPUs that all changed."""
CARD_COUNTERS = ("link.", "ethtool.", "eth-mac.", "rmon.", "qstats.")
SENDERS_GRACE_NS = 3 * SECOND_NS
"""For senders to end after a phase: a send may block 50 ms (SO_SNDTIMEO)."""
HEAR_NS = SECOND_NS
"""How long to listen for a stranger: who holds a phase up sends five packets in that time."""
UNREAD_STEP = (
    "; the program has bound its socket and does not read it: have it read, or name in "
    "receive.ready the line that it prints once it does"
)
SLOW_STEP = "find out what slows the reader down there, or use a smaller receive buffer"
NAMED_MAX = 3
"""Strangers that an error names."""
STOP_NS = 5 * SECOND_NS
"""For receivers to end their loops: a receive may block 50 ms (SO_RCVTIMEO)."""
SENT = ("listening", "done")
"""States of senders that have sent everything; listening ones end when stopped."""


T = TypeVar("T")
Moved = Callable[[tuple[Sample, ...], tuple[Snapshot, ...]], None]


@dataclass(frozen=True)
class Plan:
    """How long and how much one phase sends."""

    name: PhaseName
    duration_ns: int
    count: int | None = None
    """Packets per sending worker; None leaves it to the workers' own count."""
    flows: tuple[int, ...] | None = None
    """Numbers of the flows to send; None: all that were prepared."""
    quiet_ns: int = QUIET_NS
    """How long counts must not change, with empty queues, until all packets count as arrived."""
    rate_pps: int | None = None
    """Rate of each sending worker; None: its own."""
    card_ns: int = CARD_NS
    """Maximum wait for cards that update their counters late."""
    until_steady: bool = False
    """Senders are stopped once rates and CPU clocks are steady."""
    cpu_time: bool = False
    """Sample what the CPUs do."""

    @property
    def due_ns(self) -> int:
        """Time after which senders have probably sent everything."""
        if self.count is None or not self.rate_pps:
            return self.duration_ns
        return min(self.duration_ns, self.count * SECOND_NS // self.rate_pps)


@dataclass
class TrialAgents:
    """The agents of one trial, with and without workers, and the workers."""

    senders: Sequence[AgentClient]
    receivers: Sequence[AgentClient]
    everyone: Sequence[AgentClient]
    workers: Sequence[WorkerSpec]
    cards: Mapping[AgentClient, int] = field(default_factory=dict)
    """Agents whose interface is a card → maximum delay of its counters in ns."""
    watch: PathWatch | None = None
    """The watch of nodes in the middle and of senders; None: in a built-in lab without nodes."""

    @property
    def working(self) -> tuple[AgentClient, ...]:
        """Receivers first: the order in which they are started."""
        return (*self.receivers, *self.senders)

    @property
    def batch_work_ns(self) -> int:
        """Maximum time that slow readers on one CPU work on what one call of each returned."""
        readers = [spec.receive for spec in self.workers if spec.receive is not None]
        return sum(receive.work_ns * receive.messages for receive in readers)

    @property
    def work_ns(self) -> int:
        """Maximum time that a slow reader works on one packet."""
        return max((w.receive.work_ns for w in self.workers if w.receive is not None), default=0)

    @property
    def ends_once(self) -> bool:
        """Whether a packet ends at the only receiver: none is copied, and none sent back."""
        traffic = [spec.traffic for spec in self.workers]
        returns = any(each.answers is not None or each.echo for each in traffic)
        return len(self.receivers) == 1 and not returns

    @property
    def answers_ns(self) -> int:
        """How long senders await the last answers."""
        awaited = (spec.traffic.answers for spec in self.workers)
        return max((answers.timeout_ns for answers in awaited if answers is not None), default=0)


@dataclass
class PhaseRun:
    """One phase while it happens."""

    plan: Plan
    agents: TrialAgents
    waiter: Waiter
    show: Moved
    """For the live view."""
    keep: Moved
    """For the record: samples, and each host's counters that changed since the last reading.
    Called immediately, because a phase may take hours."""
    tag: int = field(default_factory=lambda: secrets.randbelow(2**32 - 1) + 1)
    """New in each phase, so that stragglers of another phase are recognised; never 0."""
    late_ns: int | None = None
    """How long after the common time the last loop started; None if within LATE_NS."""
    steady_ns: int | None = None
    """When rates and CPU clocks were steady, after the start; None: not asked for, or never."""
    knows_clocks: bool = False
    """Whether CPU clocks were known then."""
    _latest: dict[str, Snapshot] = field(default_factory=dict)
    _watch_ns: int = 0
    _path_ns: int = 0
    close: Callable[[AgentClient], object] = AgentClient.close
    """Ends the workers of an agent."""
    losses: Losses | None = None
    """Packets lost on purpose, sent before the traffic begins."""
    _loss_stats: tuple[WorkerStats, ...] = ()
    _clocks: dict[str, list[ClockReading]] = field(default_factory=dict)
    _start_ns: dict[str, int] = field(default_factory=dict)
    _before: dict[str, Snapshot] = field(default_factory=dict)
    _after: dict[str, Snapshot] = field(default_factory=dict)
    _replies: dict[str, SampleReply] = field(default_factory=dict)
    _due_ns: int = 0
    _end_ns: int = 0
    _numbers: Counter[str] = field(default_factory=Counter)
    """Host → how many numbers it has sent during the phase."""
    _cpu_samples: dict[str, CpuSamples] = field(default_factory=dict)
    _saved: Phase | None = None
    """What was read before the workers were closed."""

    def run(self) -> Phase:
        """Run the phase to its end; raises HostErrors and Interrupted."""
        if self.agents.watch is not None:
            self.agents.watch.learn()
        self._read_clocks()
        self._ask(self._sampling, lambda client: client.sample_cpus(CPU_FREQUENCY))
        self._before = self._latest = self._snapshots("begin")
        if self.losses is not None:
            self._loss_stats = self.losses.send()
        self._start()
        self._await_senders()
        self._await_quiet()
        self._stop()
        if self.losses is not None:
            self._loss_stats += self.losses.collect()
        self._after = self._snapshots("end")
        self._count_late()
        self._path_ns = 0
        self._watch_path(self.waiter.clock.now_ns())
        self._read_clocks()
        self._await_cards()
        self._cpu_samples = self._ask(self._sampling, lambda client: client.cpu_samples())
        return self._phase()

    @property
    def _sampling(self) -> list[AgentClient]:
        """The agents that sample the CPUs of their machines, if that was asked for."""
        seeing = (client for client in self.agents.everyone if "machine" in client.scopes)
        return list(seeing) if self.plan.cpu_time else []

    def salvage(self) -> Phase | None:
        """After a failure: stop the loops and return what can still be read, else None."""
        if self._saved is not None or not self._start_ns:
            return self._saved
        try:
            self._ask(self.agents.working, lambda client: client.stop())
            for client in self.agents.working:
                self._replies[client.name] = client.sample(self._since(client))
            self._after = self._snapshots()
            self._cpu_samples = self._ask(self._sampling, lambda client: client.cpu_samples())
        except AgentLost:
            raise
        except HostError:
            return None
        return self._phase()

    def _snapshots(self, edge: Edge | None = None) -> dict[str, Snapshot]:
        """Read every host; CPU use of processes only in a measured phase, due to its cost."""
        if self.plan.name != "measured":
            edge = "path" if self.plan.name == "path" and edge is not None else None
        return self._ask(self.agents.everyone, lambda client: client.snapshot(edge))

    def _ask(
        self, clients: Sequence[AgentClient], request: Callable[[AgentClient], T]
    ) -> dict[str, T]:
        return ask_all(self.waiter.clock, clients, request)

    def _read_counters(self) -> None:
        """Read all counters once a second in a measured phase, and keep those that changed."""
        now_ns = self.waiter.clock.now_ns()
        if self.plan.name != "measured" or now_ns < self._watch_ns:
            return
        watch_ns = max(WATCH_NS, self.plan.duration_ns // WATCHES_MAX)
        self._watch_ns += watch_ns * (1 + (now_ns - self._watch_ns) // watch_ns)
        # One after the other, so that they never take all CPUs from the load at once.
        everyone = self.agents.everyone
        latest = {client.name: self._watching(client.snapshot) for client in everyone}
        moved = tuple(moved_since(self._latest[name], latest[name]) for name in latest)
        self._latest = latest
        for name, snapshot in zip(latest, moved, strict=True):
            self._limit_numbers(name, len(snapshot.counters))
        self.keep((), moved)
        self.show((), moved)

    def _watch_path(self, now_ns: int) -> None:
        """Ask nodes and senders, each ``CHANGES_NS``, whether they still are as proven."""
        if self.agents.watch is not None and now_ns >= self._path_ns:
            self._path_ns = now_ns + CHANGES_NS
            self.agents.watch.check()

    def _watching(self, request: Callable[[], T]) -> T:
        """Return a host's answer; while it is slow to answer the path is watched all the same."""
        if self.agents.watch is None:
            return request()
        clock = self.waiter.clock
        return clock.meanwhile(request, CHANGES_NS, lambda: self._watch_path(clock.now_ns()))

    def _read_clocks(self) -> None:
        """Record each host's clock offset; remeasured for a measured phase only."""
        for client in self.agents.working:
            if self.plan.name == "measured":
                client.learn_clock()
            reading = client.clock(self.waiter.clock.now_ns())
            self._clocks.setdefault(client.name, []).append(reading)

    def _start(self) -> None:
        working = self.agents.working
        clock = self.waiter.clock
        trip_ns = max((client.trip_ns for client in working), default=0)
        at_ns = clock.now_ns() + LEAD_NS + LEAD_EACH_NS * len(working) + trip_ns
        plan = self.plan
        limits = (plan.duration_ns, plan.count, plan.flows, plan.rate_pps)
        self._start_ns = {
            client.name: at_ns + self._clocks[client.name][0].offset_ns for client in working
        }

        def start(client: AgentClient) -> None:
            client.start(PhaseOrder(plan.name, self.tag, self._start_ns[client.name], *limits))

        self._ask(working, start)
        late_ns = clock.now_ns() - at_ns
        self.late_ns = late_ns if late_ns > LATE_NS else None
        self._due_ns, self._end_ns = at_ns + plan.due_ns, at_ns + plan.duration_ns
        self._watch_ns = at_ns + WATCH_NS
        if self.plan.name == "measured":
            self.show((), tuple(self._before.values()))

    def _await_senders(self) -> None:
        """Poll until all loops of senders have ended by themselves."""
        asked_ns = self.waiter.clock.now_ns()
        counted = self.plan.count is not None or any(
            spec.count_packets is not None for spec in self.agents.workers
        )
        interval_ns = COUNT_SAMPLE_NS if counted else LOAD_SAMPLE_NS
        steadiness = Steadiness(self._start_ns) if self.plan.until_steady else None
        interval_ns = STEADY_SAMPLE_NS if steadiness is not None else interval_ns

        def done() -> bool:
            nonlocal asked_ns
            now_ns = self.waiter.clock.now_ns()
            self._watch_path(now_ns)
            if self.plan.name != "path" and now_ns < min(asked_ns + interval_ns, self._due_ns):
                return False
            asked_ns = now_ns
            for client in self.agents.receivers:
                self._sample(client, sending=True)
            replies = [self._sample(client, sending=True) for client in self.agents.senders]
            states = [reply.state for reply in replies]
            if all(state in SENT for state in states):
                return True
            if steadiness is not None and self.steady_ns is None:
                self._stop_if_steady(steadiness)
            self._read_counters()
            return False

        names = ", ".join(client.name for client in self.agents.senders)
        left_ns = max(self._end_ns - self.waiter.clock.now_ns(), 0) + SENDERS_GRACE_NS
        what = f"senders still running in phase {self.plan.name}"
        self.waiter.until(what, names, done, left_ns, self._due_ns)

    def _stop_if_steady(self, steadiness: Steadiness) -> None:
        """Let the senders end once rates and CPU clocks are steady."""
        for client in self.agents.working:
            role: Role = "receiver" if client in self.agents.receivers else "sender"
            steadiness.add(client.name, role, self._replies[client.name].samples)
        spent_ns = self.waiter.clock.now_ns() - self._end_ns + self.plan.duration_ns
        names = [spec.name for spec in self.agents.workers]
        if spent_ns >= LEAST_NS and steadiness.is_steady(names):
            self.steady_ns, self.knows_clocks = spent_ns, steadiness.knows_clocks
            self._ask(self.agents.senders, lambda client: client.stop())

    def _await_quiet(self) -> None:
        """Poll until the receivers have drained."""
        agents, clock = self.agents, self.waiter.clock
        begun_ns = clock.now_ns()
        readers = sum(spec.role == "receiver" for spec in agents.workers)
        probes = self.plan.name == "path"
        drain = Drain(
            self.plan.quiet_ns,
            agents.batch_work_ns,
            work_ns=agents.work_ns,
            readers=readers,
            needs_first=readers > 0 and probes,
            now_ns=begun_ns,
            sent_packets=self._sent_packets(),
            probes=probes,
            # A stranger on the port before the measured phase would be in it, too.
            own_alone=self.plan.name == "measured",
            ends_once=agents.ends_once,
        )
        while True:
            replies = [self._sample(client) for client in agents.receivers]
            now_ns = clock.now_ns()
            drain.update(replies, now_ns)
            if now_ns >= drain.quiet_at_ns:
                return
            if now_ns >= drain.stalled_at_ns:
                why = f"{drain.queued_bytes}B still queued and unread"
                why += UNREAD_STEP if any(map(self._runs_program, agents.receivers)) else ""
                raise self._not_quiet(drain.stall_ns, why, agents.receivers)
            if now_ns >= drain.end_ns:
                why = f"{drain.queued_bytes}B still queued, read at {drain.pps(now_ns)}pps"
                raise self._not_quiet(drain.limit_ns, f"{why}; {SLOW_STEP}", agents.receivers)
            if drain.is_strange:
                self._settle_strangers(drain, now_ns - begun_ns)
                drain.wait_on(clock.now_ns())
            if drain.queued_bytes > 0:
                self._read_counters()
            self.waiter.pause(drain.quiet_at_ns)

    def _not_quiet(
        self, limit_ns: int, why: str, receivers: Sequence[AgentClient]
    ) -> DeadlineExceeded:
        names = ", ".join(client.name for client in receivers)
        what = f"receivers not quiet after phase {self.plan.name}"
        return DeadlineExceeded(
            f"timed out after {format_duration(limit_ns)}: {what}: {why}", names
        )

    def _settle_strangers(self, drain: Drain, waited_ns: int) -> None:
        """Raise unless what still arrives can be packets of the phase, or has ended.

        Workers that read by AF_XDP are closed to tell: their counts are saved before.
        """
        receivers, clock = self.agents.receivers, self.waiter.clock
        pps = drain.pps(clock.now_ns())
        reading = (spec for spec in self.agents.workers if spec.role == "receiver")
        if any(way_of(spec).takes == "frames" for spec in reading):
            # No packet socket sees what AF_XDP takes.
            self._saved = self.salvage()
            for client in receivers:
                self.close(client)
        heard, unheard = self._hear_strangers(drain)
        if self._saved is None and clock.now_ns() >= drain.quiet_at_ns:
            return
        blamed = [client for client in receivers if heard.get(client.name)]
        step = "stop it, or use another port (traffic.flows.to)"
        stats = (each for client in receivers for each in self._replies[client.name].stats)
        if not blamed and any(each.counts.get("others_sockets") for each in stats):
            unheard = "other programs have UDP sockets there, and what they read counts, too"
            step = "stop them, or run as root on Linux 6.15 or later"
        if self._saved is None and drain.may_be_own and not blamed and not unheard:
            return
        source = named(heard) if blamed else f"from an unknown source{unheard and f' ({unheard})'}"
        why = f"{pps}pps still arrive {source}; {step}"
        limit_ns = (waited_ns + HEAR_NS) // SECOND_NS * SECOND_NS
        raise self._not_quiet(limit_ns, why, blamed or receivers)

    def _hear_strangers(self, drain: Drain) -> tuple[dict[str, tuple[Stranger, ...]], str]:
        """Return receiver → who else sends to it; or why nobody can be heard."""
        clock, receivers = self.waiter.clock, self.agents.receivers
        try:
            for client in receivers:
                client.hear_strangers(listen=True)
        except AgentError as error:
            return {}, error.message
        due_ns = clock.now_ns() + HEAR_NS
        while clock.now_ns() < due_ns:
            self.waiter.pause(due_ns)
            if self._saved is None:
                drain.update([self._sample(client) for client in receivers], clock.now_ns())
        return {client.name: client.hear_strangers(listen=False) for client in receivers}, ""

    def _sent_packets(self) -> int:
        replies = (self._replies[client.name] for client in self.agents.senders)
        stats = (each for reply in replies for each in reply.stats if each.role == "sender")
        return sum(each.counts.get(PACKETS_FIELD["sender"], 0) for each in stats)

    def _stop(self) -> None:
        """Stop receivers, then senders that await answers; read all final counts."""
        running = [
            client
            for client in self.agents.working
            if client in self.agents.receivers or self._replies[client.name].state == "listening"
        ]
        self._ask(running, lambda client: client.stop())
        for client in self.agents.working:
            self._await_end(client)

    def _count_late(self) -> None:
        """Count what programs have read since the last count: the snapshot has that."""
        for client in self.agents.receivers:
            if self._runs_program(client):
                self._sample(client)

    def _runs_program(self, client: AgentClient) -> bool:
        own = (spec for spec in self.agents.workers if spec.host == client.name)
        return any(spec.role == "receiver" and way_of(spec).takes == "program" for spec in own)

    def _await_end(self, client: AgentClient) -> None:
        what = f"loops still running after phase {self.plan.name}"

        def ended() -> bool:
            return self._sample(client).state == "done"

        limit_ns = STOP_NS + self.agents.answers_ns
        self.waiter.until(what, client.name, ended, limit_ns, due_ns=self.waiter.clock.now_ns())

    def _await_cards(self) -> None:
        """Read the cards' counters once more, after they were updated.

        Only now, because readers that spin have stopped; nothing else, because CPU times belong to
        the phase.
        """
        late_ns = min(self.plan.card_ns, max(self.agents.cards.values(), default=0))
        waiter, due_ns = self.waiter, self.waiter.clock.now_ns() + late_ns
        while waiter.clock.now_ns() < due_ns:
            waiter.pause()
        for client in self.agents.cards:
            before, late = self._after[client.name], client.snapshot().counters
            updated = {name: late[name] for name in late if name.startswith(CARD_COUNTERS)}
            counters = {**before.counters, **updated}
            self._after[client.name] = replace(before, counters=counters)

    def _since(self, client: AgentClient) -> int:
        reply = self._replies.get(client.name)
        return reply.next if reply is not None else 0

    def _sample(self, client: AgentClient, sending: bool = False) -> SampleReply:
        """Request one sample, pass on new samples, and raise a worker's failure."""
        request = partial(client.sample, self._since(client))
        reply = self._watching(request) if sending else request()
        self._replies[client.name] = reply
        if reply.samples and self.plan.name == "measured":
            numbers = sum(len(s.counts) + len(s.packets_per_ms) + 1 for s in reply.samples)
            self._limit_numbers(client.name, numbers)
            self.keep(reply.samples, ())
            self.show(reply.samples, ())
        if reply.error is not None:
            raise from_wire(reply.error, client.name)
        return reply

    def _limit_numbers(self, host: str, numbers: int) -> None:
        """Refuse more numbers than a phase can have, because all are kept."""
        self._numbers[host] += numbers
        most = NUMBERS_PER_WORKER * len(self.agents.workers) + NUMBERS_PER_HOST
        if self._numbers[host] > most:
            text = f"its agent sent {self._numbers[host]} numbers in one phase, at most {most}"
            raise AgentError(f"{text}; find out what runs there instead of udpbench's agent", host)

    def _phase(self) -> Phase:
        stats: list[WorkerStats] = []
        flows: dict[str, tuple[FlowStats, ...]] = {}
        for client in self.agents.working:
            reply = self._replies.get(client.name)
            if reply is not None:
                stats.extend(reply.stats)
                flows[client.name] = reply.flows
        return Phase(
            name=self.plan.name,
            tag=self.tag,
            start_ns=dict(self._start_ns),
            before=self._before,
            after=self._after,
            stats=tuple(stats),
            flows=flows,
            losses=self._loss_stats,
            cpu_samples=self._cpu_samples,
            clocks={name: tuple(readings) for name, readings in self._clocks.items()},
        )


def moved_since(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return a snapshot of those counters that changed, usually few."""
    moved = {
        name: value for name, value in after.counters.items() if before.counters.get(name) != value
    }
    return Snapshot(after.host, after.clock_ns, moved)


def named(heard: Mapping[str, Sequence[Stranger]]) -> str:
    """Return who was heard in words, the loudest first."""
    everyone = sorted((s for each in heard.values() for s in each), key=lambda s: -s.packets)
    names = [f"{stranger.address} port {stranger.port}" for stranger in everyone]
    more = len(names) - NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f"from {', '.join(names[:NAMED_MAX])}{rest} (no flow of this trial)"


PATH_NS = SECOND_NS // 2
"""How long a slow sender or reader may take for a path phase."""
PATH_PACKETS_PER_FLOW = 4
PATH_PACKETS_MIN = 100
"""Per worker: enough delays for a 90th percentile (analysis/delay.py)."""
PATH_PACKETS_MAX = 1000
REST_NS = SECOND_NS // 20
"""Packets are spread over this time, so that each one meets an idle system."""
PATH_LIMIT_NS = 2 * SECOND_NS


def path_plan(workers: Sequence[WorkerSpec]) -> Plan:
    """Return the path phase: a few packets per flow, fewer for a low rate or a slow reader.

    They measure the delay at rest, so they are sent one by one. GSO messages would have to wait for
    their last datagram, and are sent as under load.
    """
    senders = [spec for spec in workers if spec.role == "sender"]
    count = max((PATH_PACKETS_PER_FLOW * len(spec.flows) for spec in senders), default=1)
    count = min(max(count, PATH_PACKETS_MIN), PATH_PACKETS_MAX)
    own = [spec.rate_pps for spec in senders if spec.rate_pps is not None]
    readable = readable_packets(workers, SECOND_NS)
    # A reader that is busy half of the time is close enough to idle.
    rates = [*own, *([] if readable is None else [readable // 2])]
    count = max(1, min([count, *(rate * PATH_NS // SECOND_NS for rate in rates)]))
    merged = any(spec.send is not None and spec.send.gso != "off" for spec in senders)
    rate = None if merged else max(1, min([count * SECOND_NS // REST_NS, *rates]))
    return Plan("path", PATH_LIMIT_NS, count, rate_pps=rate)


def probe_plan(workers: Sequence[WorkerSpec], flow: int, late_ns: int) -> Plan:
    """Return the probe of one flow: packets as in a path phase, and a shorter quiet time.

    ``late_ns``: how long the queues' counters may lag.
    """
    whole = path_plan(workers)
    count = min(whole.count or 1, PATH_PACKETS_PER_FLOW)
    return Plan("path", PATH_LIMIT_NS, count, (flow,), PROBE_QUIET_NS, card_ns=late_ns)


def warmup_plan(workers: Sequence[WorkerSpec], warmup_ns: int, until_steady: bool = False) -> Plan:
    """Return the warm-up: no more packets than a slow reader can read in twice its time.

    What a warm-up leaves in the socket would have to be read before the measured phase.
    """
    limit = readable_packets(workers, 2 * warmup_ns)
    own = [s.count_packets for s in workers if s.role == "sender" and s.count_packets is not None]
    count = None if limit is None else max(1, min([limit, *own]))
    return Plan("warmup", warmup_ns, count, until_steady=until_steady)


def readable_packets(workers: Sequence[WorkerSpec], time_ns: int) -> int | None:
    """Return how many packets per sending worker slow readers read in a time; None: no limit.

    Readers that share a CPU work one at a time.
    """
    readers = {
        (spec.host, spec.name if spec.cpu is None else spec.cpu): spec.receive
        for spec in workers
        if spec.receive is not None
    }
    senders = sum(spec.role == "sender" for spec in workers)
    work_ns = max((receive.work_ns for receive in readers.values()), default=0)
    if work_ns == 0 or senders == 0:
        return None
    return time_ns * len(readers) // work_ns // senders


def by_host(workers: Sequence[WorkerSpec]) -> Mapping[str, list[WorkerSpec]]:
    """Return host → its workers, in their order."""
    workers_of: dict[str, list[WorkerSpec]] = {}
    for spec in workers:
        workers_of.setdefault(spec.host, []).append(spec)
    return workers_of
