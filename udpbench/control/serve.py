"""``udpbench serve``: a server for iperf3 clients on a host, and where their packets ended there.

Two processes of the host take part: a server, which has no rights, and an observer, which only
looks. Each test is stored in the form of a trial whose sender is the client. A test begins only
once the host's counters were read, and its client gets its results once they were read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from udpbench.analysis.judge import judge
from udpbench.analysis.watch.host import GONE, LiveHost
from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import LabAgents, Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.phase import WATCHES_MAX, moved_since
from udpbench.control.run import RunOptions, run_name
from udpbench.control.wait import Clock
from udpbench.control.watch import Onlooker, Watched
from udpbench.drivers import driver_of
from udpbench.errors import AgentError, AgentLost, InputError, Problem
from udpbench.model.experiment import Experiment, Needs, Receive, Send, Traffic, Trial
from udpbench.model.host import Facts
from udpbench.model.lab import Lab
from udpbench.model.limits import DAY_NS, INTEGERS, SECOND_NS
from udpbench.model.record import Finding, Phase, Snapshot, TrialRecord, WorkerStats
from udpbench.model.served import QUIET_NS, ServedTest
from udpbench.model.work import WorkerSpec
from udpbench.protocol import ClientEvent, SampleReply
from udpbench.records.run import Ending, new_header, now_utc
from udpbench.records.writer import RunWriter
from udpbench.units import show_bps, show_count

QUESTION = "Where did this host lose the packets of an iperf3 client?"
POLL_NS, CALM_POLL_NS = SECOND_NS // 20, SECOND_NS
"""Between two questions for what happened: each takes time of the process that receives."""
ASKED: Mapping[str, Callable[[int], str]] = {
    "bandwidth": lambda value: f"{show_bps(value)} a stream",
    "len": lambda value: f"{show_count(value)} B",
    "time": lambda value: f"{value} s",
    "num": lambda value: f"{show_count(value)} B",
    "blockcount": show_count,
    "parallel": show_count,
    "window": lambda value: f"{show_count(value)} B",
    "omit": lambda value: f"{value} s",
}
"""Parameters of a client that are shown, by iperf3's names, and how."""
CALM_NS = 5 * SECOND_NS
"""Between two looks while no packet is missing, and between two at all counters."""
REST_NS = SECOND_NS
"""After the last event: clients often come one after the other, and none may wait for a report."""
LISTENING = "listening for iperf3 clients at "
CLIENT_WORDS = "-u -b 1G -t 10 --get-server-output"
PORT = 5201
"""The port that iperf3's clients take by themselves."""
LOOPBACK, LOOPBACK_INTERFACE = ("127.0.0.1", "::1"), "lo"


@dataclass(frozen=True)
class ServeTerms:
    """Where to listen, and for how long."""

    addresses: tuple[str, ...] = LOOPBACK
    port: int = PORT
    duration_ns: int | None = None
    """None: until Ctrl-C."""
    once: bool = False
    """Until the first test has ended."""
    clients: int = 1
    """Served at a time."""

    @property
    def observed(self) -> tuple[str, ...]:
        """What an observer is started with: the kernel's reasons say whose packets it dropped."""
        return f"reasons:{self.port}", "ownerless"

    @property
    def words(self) -> tuple[str, ...]:
        """What the server is started with."""
        return str(self.port), str(self.clients), *self.addresses


def addresses_of(listen: str | None) -> tuple[str, ...]:
    """Return the addresses to listen at; ``::`` is all of both IP versions. Raises InputError."""
    if listen is None:
        return LOOPBACK
    try:
        address = str(ip_address(listen))
    except ValueError:
        step = "write for example 192.0.2.7, or :: for all"
        problem = Problem("not an address", "--listen", listen, "of IPv4 or IPv6", step)
        raise InputError([problem]) from None
    return ("0.0.0.0", "::") if address == "::" else (address,)  # noqa: S104 - as asked for


@dataclass(frozen=True)
class ServeView:
    """What is shown of a server, and what of a test is decided elsewhere."""

    say: Callable[[str], None]
    """A line."""
    live: Callable[[], AbstractContextManager[Callable[[LiveHost], None]]]
    """What shows each second of a test."""
    answer: Callable[[TrialRecord], str]
    """Takes a test that has ended, whose client waits; returns what that is shown."""
    keep: Callable[[TrialRecord], None]
    """Takes it once its client has its results."""
    rest: Callable[[], None] = lambda: None
    """Called again and again while no client is served: does a part of what can wait."""


def serve(
    lab: Lab, terms: ServeTerms, around: Surroundings, servers: Reach, screen: ServeView
) -> int:
    """Serve iperf3 clients until the time is over or Ctrl-C; return the number of their tests.

    ``around`` reaches observers. Raises ConnectError, HelloRefused, AgentLost.
    """
    run = run_name()
    with ExitStack() as ends:
        parties = [
            LabAgents(lab, run, RunOptions.lease_ns, reach, around.clock)
            for reach in (around.reach, servers)
        ]
        for party in parties:
            ends.enter_context(closing(party))
            party.begin()
        (observer,), (server,) = (party.onlookers() for party in parties)
        with suppress(AgentError):  # what is done once more takes less, when a client waits
            observer.facts(LOOPBACK_INTERFACE)
        served = ServedHost(observer, server, terms, screen, around.clock)
        ends.callback(served.close)
        around.interrupt.doing = "ending the server"
        with around.interrupt.caught():
            begun_ns = around.clock.now_ns()
            end_ns = begun_ns + (terms.duration_ns or 0)
            while not around.interrupt.requested:
                served.step()
                over = terms.duration_ns is not None and around.clock.now_ns() >= end_ns
                if served.idle and (over or (terms.once and served.tests)):
                    break
                if served.rests:
                    screen.rest()
                around.clock.sleep_ns(served.pause_ns)
    return served.tests


@dataclass
class Attended:
    """A client's test that is going on."""

    served: ServedTest
    workers: tuple[WorkerSpec, ...]
    facts: Facts
    before: Snapshot
    latest: Snapshot
    started_at: str
    start_ns: int = 0
    motion: list[Snapshot] = field(default_factory=list)
    gone: bool = False
    """The interface by which its packets came was removed."""
    calm_ns: int = 0
    """Until then it goes on, unless its client breaks it off."""
    beside: bool = False
    """Another client's test has been going on meanwhile."""


class ServedHost:
    """The host on which clients are served."""

    def __init__(
        self,
        observer: AgentClient,
        server: AgentClient,
        terms: ServeTerms,
        screen: ServeView,
        clock: Clock,
    ) -> None:
        self.tests = 0
        """That have ended."""
        self._observer = observer
        self._server = server
        self._terms = terms
        self._screen = screen
        self._clock = clock
        self._events = 0
        self._heard_ns = 0
        """When the last event was heard of."""
        self._attended: dict[int, Attended] = {}
        self._views = ExitStack()
        self._tell: Callable[[LiveHost], None] = lambda _: None
        self._onlooker: Onlooker | None = None
        self._facts: dict[str, Facts] = {}
        """By interface, for the view."""
        self._looked_ns = self._all_ns = 0
        """When this host was looked at, and when at all its counters."""
        self._losing = False
        """Packets are missing, or this host loses some."""

    @property
    def idle(self) -> bool:
        """Whether no test is going on."""
        return not self._attended

    @property
    def rests(self) -> bool:
        """Whether nobody has come for a while."""
        return self.idle and self._clock.now_ns() >= self._heard_ns + REST_NS

    @property
    def pause_ns(self) -> int:
        """How long nothing is expected to happen, at most."""
        now_ns = self._clock.now_ns()
        calm_ns = min((each.calm_ns for each in self._attended.values()), default=0) - now_ns
        return min(max(calm_ns, POLL_NS), CALM_POLL_NS)

    def close(self) -> None:
        """End the view."""
        self._views.close()

    def step(self) -> None:
        """Do what events ask for, and look at a test that is going on."""
        for event in self._server.clients(self._events):
            self._events += 1
            self._obey(event)
            self._heard_ns = self._clock.now_ns()
        self._attend()

    def _obey(self, event: ClientEvent) -> None:
        if event.event == "listening":
            self._screen.say(f"{LISTENING}{event.text}")
            port = f" -p {self._terms.port}" if self._terms.port != PORT else ""
            self._screen.say(f"on the client: iperf3 -c ADDRESS{port} {CLIENT_WORDS}")
        elif event.event == "refused":
            self._screen.say(f"refused: {event.text}")
        elif event.event == "prepared" and event.served is not None:
            self._begin(event, event.served)
        elif event.event == "started":
            self._start(self._known(event), event.clock_ns)
        elif event.event == "missing":
            self._losing = True
        elif event.event == "ended" and event.served is not None and event.sampled is not None:
            self._end(event, event.served, event.sampled)
        elif event.event == "closed":
            self._forget(event.test)

    def _begin(self, event: ClientEvent, served: ServedTest) -> None:
        """Read the host before the client may send."""
        if len(self._attended) >= self._terms.clients or event.test in self._attended:
            what = f"test {event.test} begins beside as many as are served at a time"
            raise AgentLost(f"{what} ({self._terms.clients})", self._server.name)
        try:
            facts = self._observer.facts(served.interface)
            before = self._observer.snapshot(interface=served.interface)
        except AgentError:
            served = replace(served, interface="")
            facts, before = self._observer.facts(""), self._observer.snapshot(interface="")
        test = Attended(served, event.specs, facts, before, before, now_utc())
        self._attended[event.test] = test
        for each in self._attended.values():
            each.beside = each.beside or len(self._attended) > 1
        self._screen.say(f"test {event.test}: {described(served)}")
        self._server.proceed(event.test)

    def _known(self, event: ClientEvent) -> Attended:
        """Return a test that is going on."""
        test = self._attended.get(event.test)
        if test is None:
            what = f"test {event.test} has {event.event} and was not prepared"
            raise AgentLost(what, self._server.name)
        return test

    def _start(self, test: Attended, start_ns: int) -> None:
        test.start_ns = start_ns
        now_ns = self._clock.now_ns()
        test.calm_ns = now_ns + self._duration_ns(test) + QUIET_NS
        self._facts[test.served.interface] = test.facts
        if self._onlooker is not None:
            return
        self._looked_ns = self._all_ns = now_ns
        self._losing = False
        self._tell = self._views.enter_context(self._screen.live())
        port = Watched(port=self._terms.port)
        self._onlooker = Onlooker(self._observer, port, None, self._clock, self._facts)

    def _attend(self) -> None:
        """Look at the host, for all tests that are going on, if that is due."""
        tests = [each for each in self._attended.values() if each.start_ns]
        now_ns = self._clock.now_ns()
        if self._onlooker is None or not tests:
            return
        least_ns = max(SECOND_NS, min(map(self._duration_ns, tests)) // WATCHES_MAX)
        calm = now_ns >= self._all_ns + max(CALM_NS, least_ns)
        if not calm and not (self._losing and now_ns >= self._looked_ns + least_ns):
            return
        live = self._onlooker.look()
        self._looked_ns, self._losing = now_ns, live.losing_now
        for test in tests if live.losing_now or calm else ():
            self._all_ns = now_ns
            latest = self._snapshot(test)
            test.motion.append(moved_since(test.latest, latest))
            test.latest = latest
        self._tell(live)

    def _snapshot(self, test: Attended) -> Snapshot:
        """Read the host; of an interface that was removed the counters stay as they were last."""
        try:
            return self._observer.snapshot(interface=test.served.interface)
        except AgentError:
            if not test.gone:
                test.gone = True
                self._screen.say(f"{test.served.interface} {GONE}")
            now = self._observer.snapshot(interface="")
            return replace(now, counters={**test.latest.counters, **now.counters})

    def _duration_ns(self, test: Attended) -> int:
        seconds = [test.served.asked.get(name, 0) for name in ("time", "omit")]
        return sum(each for each in seconds if isinstance(each, int)) * SECOND_NS

    def _end(self, event: ClientEvent, served: ServedTest, reply: SampleReply) -> None:
        """Read the host again, and let the client have its results."""
        test = self._known(event)
        if served.known_sent > INTEGERS[1]:
            raise AgentLost(f"test {event.test} has more packets than 64 bits", self._server.name)
        late_ns = driver_of(test.facts).late_ns
        if late_ns is not None:  # a card's counters of what came last
            self._clock.sleep_ns(late_ns)
        after = self._snapshot(test)
        self._forget(event.test)
        drops = {f"socket.{inode}.drops": number for inode, number in event.drops.items()}
        record = recorded(test, served, reply, after, drops)
        if served.ended:
            record = sent_at_least(record)
        self.tests += 1
        if self._terms.clients > 1:
            self._screen.say(f"test {event.test}, client {served.client}:")
        self._server.proceed(event.test, self._screen.answer(record))
        self._screen.keep(record)

    def _forget(self, test: int) -> None:
        """Attend a test no more."""
        self._attended.pop(test, None)
        if self.idle:
            self._views.close()
            self._onlooker = None


def described(served: ServedTest) -> str:
    """Return who sends what, and what is not honoured."""
    asked = served.asked
    parts = [f"client {served.client}", f"iperf {served.version}" if served.version else "iperf3"]
    for name, show in ASKED.items():
        value = asked.get(name)
        if isinstance(value, int) and value:
            parts.append(f"{name} {show(value)}")
    parts += [f"ignored: {', '.join(served.ignored)}"] if served.ignored else []
    return f"{', '.join(parts)} (by {served.interface or 'an unknown interface'})"


def served_trial(worker: WorkerSpec | None) -> Trial:
    """Return the trial that a client's test is."""
    traffic = worker.traffic if worker is not None else Traffic()
    receive = worker.receive if worker is not None and worker.receive is not None else Receive()
    return Trial(
        experiment="serve",
        question=QUESTION,
        point="",
        variant=None,
        values={},
        repetition=1,
        traffic=traffic,
        send=Send(),
        receive=receive,
        settings={},
        needs=Needs(),
        duration_ns=SECOND_NS,
        warmup_ns=0,
        served=True,
    )


def served_experiment(trial: Trial) -> Experiment:
    """Return the experiment of a run folder that has a client's test."""
    return Experiment("serve", "", f"question: {QUESTION}\n", QUESTION, None, (trial,), 1, ())


def next_folder(folder: Path) -> Path:
    """Return where the next test below a folder is stored: none that is there already."""
    return next(each for number in count(1) if not (each := folder / f"{number:04d}").exists())


def store_test(record: TrialRecord, lab: Lab, folder: Path, command: tuple[str, ...]) -> None:
    """Write a client's test as a run; raises RecordError, StoreError."""
    experiment = served_experiment(record.trial)
    served = replace(lab, name="serve")
    writer = RunWriter.create(folder, new_header([experiment], served, command, seed=0))
    writer.write(record)
    writer.finish(Ending(now_utc(), "complete"))


def recorded(
    test: Attended,
    served: ServedTest,
    reply: SampleReply,
    after: Snapshot,
    drops: Mapping[str, int],
) -> TrialRecord:
    """Return a test as the record of a trial.

    An observer does not know the client's sockets, which were opened for this test: ``drops`` are
    the server's. The client's host has no counters. The kernel's drop reasons know the port alone,
    to which another client may have sent, too.
    """
    host, none = after.host, dict.fromkeys(drops, 0)
    before, motion = test.before, tuple(test.motion)
    if test.beside:
        before, after, *rest = map(_blurred, (before, after, *motion))
        motion = tuple(rest)
    worker = next(iter(test.workers), None)
    sent = {"attempted_packets": served.known_sent, "sent_packets": served.known_sent}
    sender = f"{served.client}.sender0"
    trial = served_trial(worker)
    phase = Phase(
        name="measured",
        tag=1,
        start_ns={host: test.start_ns},
        before={
            host: replace(before, counters={**before.counters, **none}),
            served.client: Snapshot(served.client, before.clock_ns, {}),
        },
        after={
            host: replace(after, counters={**after.counters, **drops}),
            served.client: Snapshot(served.client, after.clock_ns, {}),
        },
        stats=(WorkerStats(sender, "sender", None, sent), *reply.stats),
        flows={host: reply.flows},
    )
    elapsed_ns = after.clock_ns - before.clock_ns
    client = WorkerSpec("sender", served.client, 0, None, (), trial.traffic, send=trial.send)
    explain = any(name.startswith("reason.") for name in after.counters)
    return TrialRecord(
        trial=replace(trial, duration_ns=min(max(elapsed_ns, 1), DAY_NS), explain=explain),
        status="done",
        started_at=test.started_at,
        built_in_lab=False,
        facts={host: test.facts},
        workers=(client, *test.workers),
        phases=(phase,),
        series=reply.samples,
        motion=motion,
        findings=(Finding("struck", f"an interface {GONE}", host, served.interface),) * test.gone,
        served=served,
    )


def sent_at_least(record: TrialRecord) -> TrialRecord:
    """Return the test of a client that vanished with all as sent that came, or was lost here.

    What this host lost behind the highest counter that arrived has none, and was sent, too.
    """
    ledger = judge(record).ledger
    beyond = -(ledger.unaccounted or 0) if ledger is not None else 0
    if beyond <= 0:
        return record
    (phase,) = record.phases
    sender, *others = phase.stats
    counts = {name: packets + beyond for name, packets in sender.counts.items()}
    stats = (replace(sender, counts=counts), *others)
    return replace(record, phases=(replace(phase, stats=stats),))


def _blurred(snapshot: Snapshot) -> Snapshot:
    """Return counters whose drop reasons are of packets that may be another client's."""
    counters = dict(snapshot.counters)
    for name in snapshot.counters:
        group, _, reason = name.partition(".")
        if group == "reason":
            portless = f"reason_portless.{reason}"
            counters[portless] = counters.get(portless, 0) + counters[name]
            counters[name] = 0
    return replace(snapshot, counters=counters)
