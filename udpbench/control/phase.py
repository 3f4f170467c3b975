"""One phase of a trial: snapshot, start at a common time, senders done, receivers quiet, snapshot.

Owns when packets flow and when the last of them has arrived. Judges no count.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from udpbench.control.losses import Losses
from udpbench.control.remote import Remote, StartOrder
from udpbench.control.waiting import Waiter
from udpbench.errors import AgentLost, DeadlineExceeded, HostError, from_wire
from udpbench.model import (
    SECOND_NS,
    ClockReading,
    FlowStats,
    Phase,
    PhaseName,
    Sample,
    Snapshot,
    WorkerSpec,
    WorkerStats,
)
from udpbench.protocol import SampleReply
from udpbench.units import format_duration

LEAD_NS = 20 * 10**6
"""Per agent, for its start to be answered before the common time; measured: 3 ms."""
SAMPLE_NS = 200 * 10**6
"""Between two requests while senders run: each costs an agent about 1 ms of CPU time, which on a
small machine is the workers' own, so a phase is not watched at the polling interval."""
WATCHES_MAX = 600
"""Of a phase; one of more than ten minutes is read less often."""
WATCH_NS = SECOND_NS
"""Between two readings of all counters in a measured phase: each costs an agent 2.5 ms of CPU time,
so watching costs a quarter of what the samples do; taken always, whether anybody looks or not."""
QUIET_NS = 200 * 10**6
PROBE_QUIET_NS = 20 * 10**6
"""Where a straggler costs no more than a look at one flow."""
CARD_NS = 2 * SECOND_NS
"""For a card to tell what it counted: some do once a second (kernel-reference 0.7, 1.2)."""
CARD_COUNTERS = ("link.", "ethtool.")
STALL_NS = 5 * SECOND_NS
"""So long may a queue that holds packets not move, beyond the work on one batch of them."""
SENDERS_GRACE_NS = 3 * SECOND_NS
"""For senders to leave after the end of a phase: a send may block 50 ms (SO_SNDTIMEO)."""
STOP_NS = 5 * SECOND_NS
"""For receivers to leave their loops: a receive may block 50 ms (SO_RCVTIMEO)."""


Moved = Callable[[tuple[Sample, ...], tuple[Snapshot, ...]], None]


@dataclass(frozen=True)
class Plan:
    """How long and how much one phase sends."""

    name: PhaseName
    duration_ns: int
    count: int | None = None
    """Packets per sending worker; None leaves it to the workers' own count."""
    flows: tuple[int, ...] | None = None
    """Numbers of the flows that are sent; None: all that were prepared."""
    quiet_ns: int = QUIET_NS
    """So long must counts stand still and queues be empty before the tail counts as arrived."""
    rate_pps: int | None = None
    """Of each sending worker; None leaves it to its own rate."""
    card_ns: int = CARD_NS
    """So long are cards waited for, where the crew has any."""


@dataclass
class Crew:
    """The agents of one trial that have workers, those that only watch, and the workers."""

    senders: Sequence[Remote]
    receivers: Sequence[Remote]
    everyone: Sequence[Remote]
    workers: Sequence[WorkerSpec]
    cards: Sequence[Remote] = ()
    """Receivers whose interface is a card that may tell late what it counted."""

    @property
    def working(self) -> tuple[Remote, ...]:
        """Receivers first: the order in which they are started."""
        return (*self.receivers, *self.senders)

    @property
    def batch_work_ns(self) -> int:
        """How long a slow reader may spend on what one call returned."""
        readers = [spec.receive for spec in self.workers if spec.receive is not None]
        return max((receive.work_ns * receive.messages for receive in readers), default=0)


@dataclass
class PhaseRun:
    """One phase while it happens."""

    plan: Plan
    crew: Crew
    waiter: Waiter
    show: Moved
    """To whoever watches."""
    keep: Moved
    """What belongs to the record: samples, and of each host the counters that moved since it was
    last read. Handed on at once, because a phase may take hours."""
    tag: int = field(default_factory=lambda: secrets.randbelow(2**32 - 1) + 1)
    """Fresh for each phase, so that a straggler of another one is told apart; never 0."""
    late_ns: int | None = None
    """How much after the common time the last loop was set going; None if it was in time."""
    _latest: dict[str, Snapshot] = field(default_factory=dict)
    _watch_ns: int = 0
    losses: Losses | None = None
    """Packets to be lost on purpose, before the traffic begins."""
    _faults: tuple[WorkerStats, ...] = ()
    _clocks: dict[str, list[ClockReading]] = field(default_factory=dict)
    _start_ns: dict[str, int] = field(default_factory=dict)
    _before: dict[str, Snapshot] = field(default_factory=dict)
    _after: dict[str, Snapshot] = field(default_factory=dict)
    _replies: dict[str, SampleReply] = field(default_factory=dict)
    _due_ns: int = 0

    def run(self) -> Phase:
        """Run the phase to its end; raises HostErrors and Interrupted."""
        self._read_clocks()
        self._before = self._latest = self._snapshots()
        if self.losses is not None:
            self._faults = self.losses.send()
        self._start()
        self._await_senders()
        self._await_quiet()
        self._stop()
        if self.losses is not None:
            self._faults += self.losses.take()
        self._after = self._snapshots()
        self._read_clocks()
        self._await_cards()
        return self._phase()

    def salvage(self) -> Phase | None:
        """After a failure: stop the loops and return what can still be read, else None."""
        if not self._start_ns:
            return None
        try:
            for remote in self.crew.working:
                remote.stop()
            for remote in self.crew.working:
                self._replies[remote.name] = remote.sample(self._since(remote))
            self._after = self._snapshots()
        except AgentLost:
            raise
        except HostError:
            return None
        return self._phase()

    def _snapshots(self) -> dict[str, Snapshot]:
        return {remote.name: remote.snapshot() for remote in self.crew.everyone}

    def _watch(self) -> None:
        """Read every counter of a measured phase once a second, and keep what moved."""
        now_ns = self.waiter.clock.now_ns()
        if self.plan.name != "measured" or now_ns < self._watch_ns:
            return
        watch_ns = max(WATCH_NS, self.plan.duration_ns // WATCHES_MAX)
        self._watch_ns += watch_ns * (1 + (now_ns - self._watch_ns) // watch_ns)
        latest = self._snapshots()
        moved = tuple(moved_since(self._latest[name], latest[name]) for name in latest)
        self._latest = latest
        self.keep((), moved)
        self.show((), moved)

    def _read_clocks(self) -> None:
        """Note how each host's clock stands; only for a measured phase it is worth asking anew."""
        for remote in self.crew.working:
            if self.plan.name == "measured":
                remote.learn_clock()
            reading = remote.clock(self.waiter.clock.now_ns())
            self._clocks.setdefault(remote.name, []).append(reading)

    def _start(self) -> None:
        working = self.crew.working
        clock = self.waiter.clock
        # One after the other is told and answers: on a slow link that adds up.
        trips_ns = sum(one.channel.round_trip_ns or 0 for one in working)
        at_ns = clock.now_ns() + LEAD_NS * len(working) + trips_ns
        plan = self.plan
        order = StartOrder(
            plan.name, self.tag, plan.duration_ns, plan.count, plan.flows, plan.rate_pps
        )
        for remote in working:
            self._start_ns[remote.name] = at_ns + self._clocks[remote.name][0].offset_ns
            remote.start(order, self._start_ns[remote.name])
        late_ns = clock.now_ns() - at_ns
        self.late_ns = late_ns if late_ns > 0 else None
        self._due_ns = at_ns + self.plan.duration_ns
        self._watch_ns = at_ns + WATCH_NS
        if self.plan.name == "measured":
            self.show((), tuple(self._before.values()))

    def _await_senders(self) -> None:
        """Poll until every sender's loops have ended by themselves."""
        asked_ns = self.waiter.clock.now_ns()

        def done() -> bool:
            nonlocal asked_ns
            now_ns = self.waiter.clock.now_ns()
            if self.plan.name != "path" and now_ns < min(asked_ns + SAMPLE_NS, self._due_ns):
                return False
            asked_ns = now_ns
            for remote in self.crew.receivers:
                self._sample(remote)
            states = [self._sample(remote).state for remote in self.crew.senders]
            if all(state == "done" for state in states):
                return True
            self._watch()
            return False

        names = ", ".join(remote.name for remote in self.crew.senders)
        left_ns = max(self._due_ns - self.waiter.clock.now_ns(), 0) + SENDERS_GRACE_NS
        self.waiter.until(f"senders were done with phase {self.plan.name}", names, done, left_ns)

    def _await_quiet(self) -> None:
        """Poll until counts stand still and queues are empty for long enough.

        A slow reader behind a long queue may take as long as it likes, while it moves.
        """
        clock = self.waiter.clock
        stall_ns = STALL_NS + self.crew.batch_work_ns
        seen: tuple[int, ...] | None = None
        moved_ns = busy_ns = clock.now_ns()
        while True:
            replies = [self._sample(remote) for remote in self.crew.receivers]
            queued = sum(reply.queued_bytes or 0 for reply in replies)
            counts = tuple(s.counts.get("read_packets", 0) for r in replies for s in r.stats)
            now_ns = clock.now_ns()
            if counts != seen:
                seen, moved_ns, busy_ns = counts, now_ns, now_ns
            if queued > 0:
                busy_ns = now_ns
            if now_ns - busy_ns >= self.plan.quiet_ns:
                return
            if now_ns - moved_ns >= stall_ns:
                names = ", ".join(remote.name for remote in self.crew.receivers)
                text = (
                    f"waited {format_duration(stall_ns)} in vain until receivers were quiet after "
                    f"phase {self.plan.name}: {queued}B are queued and nobody reads them"
                )
                raise DeadlineExceeded(text, names)
            if queued > 0:
                self._watch()
            self.waiter.pause()

    def _stop(self) -> None:
        """End the receivers' loops, and take what everybody counted in the end."""
        for remote in self.crew.receivers:
            remote.stop()
        for remote in self.crew.working:
            self._await_end(remote)

    def _await_end(self, remote: Remote) -> None:
        what = f"loops had ended after phase {self.plan.name}"
        self.waiter.until(what, remote.name, lambda: self._sample(remote).state == "done", STOP_NS)

    def _await_cards(self) -> None:
        """Read once more what cards count, when they have told it.

        Only now, because a reader that spins would spin on; and nothing else, because CPUs' times
        are of the phase.
        """
        waiter, due_ns = self.waiter, self.waiter.clock.now_ns() + self.plan.card_ns
        while self.crew.cards and waiter.clock.now_ns() < due_ns:
            waiter.pause()
        for remote in self.crew.cards:
            before, late = self._after[remote.name], remote.snapshot().counters
            told = {name: late[name] for name in late if name.startswith(CARD_COUNTERS)}
            counters = {**before.counters, **told}
            self._after[remote.name] = replace(before, counters=counters)

    def _since(self, remote: Remote) -> int:
        reply = self._replies.get(remote.name)
        return reply.next if reply is not None else 0

    def _sample(self, remote: Remote) -> SampleReply:
        """Take one reply, pass its new samples on, and raise what failed a worker."""
        reply = remote.sample(self._since(remote))
        self._replies[remote.name] = reply
        if reply.samples and self.plan.name == "measured":
            self.keep(reply.samples, ())
            self.show(reply.samples, ())
        if reply.error is not None:
            raise from_wire(reply.error, remote.name)
        return reply

    def _phase(self) -> Phase:
        stats: list[WorkerStats] = []
        flows: dict[str, tuple[FlowStats, ...]] = {}
        for remote in self.crew.working:
            reply = self._replies.get(remote.name)
            if reply is not None:
                stats.extend(reply.stats)
                flows[remote.name] = reply.flows
        return Phase(
            name=self.plan.name,
            tag=self.tag,
            start_ns=dict(self._start_ns),
            before=self._before,
            after=self._after,
            stats=tuple(stats),
            flows=flows,
            faults=self._faults,
            clocks={name: tuple(readings) for name, readings in self._clocks.items()},
        )


def moved_since(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return a snapshot of the counters alone that are not what they were: few of many are."""
    moved = {
        name: value for name, value in after.counters.items() if before.counters.get(name) != value
    }
    return Snapshot(after.host, after.clock_ns, moved)


PATH_NS = SECOND_NS // 2
"""What the packets of a path phase may cost a slow sender or a slow reader."""
PATH_PACKETS_PER_FLOW = 4
PATH_PACKETS_MIN = 100
"""Per worker: so many delays have a 90th percentile (analysis/delay.py)."""
PATH_PACKETS_MAX = 1000
REST_NS = SECOND_NS // 20
"""Over so long are they spread, so that each finds everything at rest."""
PATH_LIMIT_NS = 2 * SECOND_NS


def path_plan(workers: Sequence[WorkerSpec]) -> Plan:
    """Return the path phase: a few packets per flow, fewer for a low rate or a slow reader.

    They tell the delay at rest, so they go one by one. GSO messages would have to wait for their
    last datagram, and go as they go under load.
    """
    senders = [spec for spec in workers if spec.role == "sender"]
    count = max((PATH_PACKETS_PER_FLOW * len(spec.flows) for spec in senders), default=1)
    count = min(max(count, PATH_PACKETS_MIN), PATH_PACKETS_MAX)
    own = [spec.rate_pps for spec in senders if spec.rate_pps is not None]
    readable = readable_packets(workers, SECOND_NS)
    # A reader that is busy half of its time is near enough to rest.
    rates = [*own, *([] if readable is None else [readable // 2])]
    count = max(1, min([count, *(rate * PATH_NS // SECOND_NS for rate in rates)]))
    merged = any(spec.send is not None and spec.send.gso != "off" for spec in senders)
    rate = None if merged else max(1, min([count * SECOND_NS // REST_NS, *rates]))
    return Plan("path", PATH_LIMIT_NS, count, rate_pps=rate)


def probe_plan(workers: Sequence[WorkerSpec], flow: int) -> Plan:
    """Return the look at one flow: as many packets as of each in a path phase, and little quiet."""
    whole = path_plan(workers)
    count = min(whole.count or 1, PATH_PACKETS_PER_FLOW)
    return Plan("path", PATH_LIMIT_NS, count, (flow,), PROBE_QUIET_NS, card_ns=0)


def warmup_plan(workers: Sequence[WorkerSpec], warmup_ns: int) -> Plan:
    """Return the warm-up: no more packets than a slow reader can read in twice its time.

    What a warm-up leaves in the socket would have to be read before the measured phase.
    """
    limit = readable_packets(workers, 2 * warmup_ns)
    own = [s.count_packets for s in workers if s.role == "sender" and s.count_packets is not None]
    return Plan("warmup", warmup_ns, None if limit is None else max(1, min([limit, *own])))


def readable_packets(workers: Sequence[WorkerSpec], time_ns: int) -> int | None:
    """Return how many packets per sending worker slow readers read in a time; None: no limit."""
    readers = [spec.receive for spec in workers if spec.receive is not None]
    senders = sum(spec.role == "sender" for spec in workers)
    work_ns = max((receive.work_ns for receive in readers), default=0)
    if work_ns == 0 or senders == 0:
        return None
    return time_ns * len(readers) // work_ns // senders


def by_host(workers: Sequence[WorkerSpec]) -> Mapping[str, list[WorkerSpec]]:
    """Return host → its workers, in their order."""
    found: dict[str, list[WorkerSpec]] = {}
    for spec in workers:
        found.setdefault(spec.host, []).append(spec)
    return found
