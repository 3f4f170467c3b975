"""The one double of control's tests: agents in this process that append words to a list.

Below them nothing is replaced: trials are bound by the definition, judged by the analysis and
written by the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.run import Outcome, RunOptions, run
from udpbench.control.wait import Clock, Interrupt
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.errors import AgentError, AgentLost, ConnectError, SettingRefused
from udpbench.model.experiment import Experiment
from udpbench.model.host import Change, Facts, Inspection
from udpbench.model.lab import Connect, Lab
from udpbench.model.record import Sample, Snapshot, TrialRecord, WorkerStats
from udpbench.model.result import Progress
from udpbench.protocol import Hello, SampleReply, Stranger, Taken, encode
from udpbench.records.reader import read_run
from udpbench.records.run import Run, RunHeader
from udpbench.records.writer import RunWriter

T = TypeVar("T")
WALL_NS = 10**18
"""CLOCK_REALTIME less CLOCK_MONOTONIC, of every host."""
TX_QUEUES = 1
CAPABILITIES: dict[str, bool] = {}
PACKETS = 1000
"""What a fake sender sends in a phase without a count."""


SENDING = ("attempted_packets", "sent_packets", "first_ns", "last_ns", "last_cpu")
SENDING += ("sent_bytes", "send_calls", "partial_calls", "eagain", "enobufs", "eperm")
SENDING += ("econnrefused", "emsgsize", "other_errors", "last_errno", "stalled_packets")
RECEIVING = ("read_packets", "received_packets", "first_ns", "last_ns", "last_cpu")
RECEIVING += ("received_bytes", "duplicate_packets", "late_packets", "ancient_packets")
RECEIVING += ("foreign_packets", "truncated_packets", "corrupt_packets", "receive_calls")
RECEIVING += ("empty_calls", "errors", "last_errno")
"""Fields of the C structs, in native/udpbench.h."""


class FakeClock(Clock):
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time_ns = 10**15
        self.sleeps = 0

    def now_ns(self) -> int:
        """Return the time."""
        return self.time_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Pass the time at once; a wait without end is a failure, not a hanging test."""
        self.sleeps += 1
        assert self.sleeps < 100_000, "something waits for ever"
        self.time_ns += duration_ns

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls in their order, and return their results once all have ended."""
        results, failures = list[T](), list[Exception]()
        for call in calls:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        if failures:
            raise failures[0]
        return results

    def meanwhile(self, call: Callable[[], T], every_ns: int, work: Callable[[], object]) -> T:
        """Make a call, which takes no time."""
        del every_ns, work
        return call()


@dataclass
class World:
    """Fake agents, their clock, and what is to happen when a word is said."""

    clock: FakeClock = field(default_factory=FakeClock)
    printed: str | None = None
    """What the receiver's program prints, if it has one."""
    interrupt: Interrupt = field(default_factory=Interrupt)
    words: list[str] = field(default_factory=list)
    hooks: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Word → what happens the first time it is said, before its effect."""
    progress: list[Progress] = field(default_factory=list)
    agents: dict[str, FakeAgent] = field(default_factory=dict)
    netns: dict[str, int] = field(default_factory=dict)
    addresses: tuple[str, ...] = ("192.168.254.1/24",)
    arriving: int | None = None
    """Packets that arrive per phase; None: all that were sent."""
    drop_counters: dict[str, int] = field(default_factory=dict)
    """Counters that rise by the given step at every snapshot of the receiver."""
    reading: Callable[[int], tuple[int, int]] | None = None
    """Nanoseconds since the receivers' start → packets read, bytes queued: a slow reader."""
    strangers: Callable[[int], int] | None = None
    """Nanoseconds since the receivers' start → how many of others' packets are read."""
    blind: bool = False
    """The receiver reads no headers: others' packets are received."""
    heard: list[tuple[Stranger, ...] | AgentError] = field(default_factory=list)
    """Who sends to the receiver's port, or why it cannot listen; empty: it is never asked."""
    polling: Callable[[int], bool] | None = None
    """Nanoseconds since the receivers' start → whether the thread of their queue wants a CPU."""
    refusing: str = ""
    """A kind of setting that the next agent which is asked for it will not take."""
    start_takes_ns: int = 0
    altered: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    """Host → what somebody else changes there under way."""
    links: dict[str, list[Any]] = field(default_factory=dict)
    """Host → how its link is, from one asking to the next; the last one stays."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    """What every agent may do or has, beside net_admin."""
    edges: list[str] = field(default_factory=list)
    """Edges of phases at which processes were asked for."""
    left_behind: tuple[str, ...] = ()
    """Runs that died and whose settings are on the machine still."""
    held: dict[str, list[Taken]] = field(default_factory=dict)
    """Host → what it answers to who would take it, one after the other, before it is free."""
    others: tuple[str, ...] = ()
    """Who else uses the machine."""
    environment: dict[str, str] = field(default_factory=dict)
    """What every host reports as its environment."""
    unsteady: tuple[str, ...] = ()
    """Hosts whose workers are not as they were."""
    capacity_pps: int | None = None
    """What the receiver takes; beyond it the socket's buffer overflows."""
    offers_pps: int = 10**6
    """What a sender offers at most, if there is a capacity."""

    def say(self, word: str) -> None:
        """Note a word and let happen what was planned for it."""
        self.words.append(word)
        hook = self.hooks.pop(word, None)
        if hook is not None:
            hook()

    def raises(self, word: str, error: BaseException) -> None:
        """Plan that a word fails."""

        def fail() -> None:
            raise error

        self.hooks[word] = fail

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to a fake agent."""
        self.say(f"open {host}")
        self.agents[host] = FakeAgent(host, self)
        return self.agents[host]

    def surroundings(self) -> Surroundings:
        """Return what run() takes in place of the real thing."""
        reach = Reach({"namespace": self.open}, self.open)
        return Surroundings(reach, self.clock, self.interrupt)


class FakeAgent:
    """A channel with an agent behind it that has workers of paper."""

    def __init__(self, host: str, world: World) -> None:
        self.host = host
        self.world = world
        self.offset_ns = 0
        self.round_trip_ns: int | None = 100_000
        opened = sum(word.startswith("open ") for word in world.words)
        self.pid: int | None = 999 + opened
        self.absences_ns: list[int] = []
        self.notice: Callable[[str], None] = lambda _: None
        self.outlasting: tuple[str, int] | None = None
        self.uses: list[str] = []
        self.in_force: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.losses: dict[str, int] = {}
        self.state = "none"
        self.phase: dict[str, Any] = {}
        self.snapshots = 0
        self.exit_status = 0
        self.kept_logs: str | None = None
        self.lost: str | None = None
        self.run = ""
        self.overflowed = 0

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Serve a verb; what is polled or only renews the lease is no word."""
        assert deadline_ns > 0
        if verb == "start":
            self.world.say(f"start {self.host} {args['order'].phase}")
        elif verb == "send_losses":
            self.world.say(f"send_losses {self.host} {args['stage']}")
        elif verb == "apply" and not args["settings"]:
            self.world.say(f"apply {self.host} nothing")
        elif verb not in ("sample", "ping"):
            self.world.say(f"{verb} {self.host}")
        if self.lost is not None:
            raise AgentLost(self.lost, self.host)
        plain = encode(args)
        return encode(getattr(self, f"_{verb}")(**plain))

    def begin(self, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:
        """Serve a verb at once."""
        answer = self.request(verb, deadline_ns, **args)
        return lambda: answer

    def ping(self) -> None:
        """Renew the lease."""

    def outlast(self, run: str, lease_ns: int) -> None:
        """Note that the connection is to be made anew."""
        self.outlasting = (run, lease_ns)

    def lose(self, why: str) -> None:
        """Answer nothing more."""
        self.lost = why

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Say that this agent did not come up."""
        return ConnectError(f"did not start: {loss.message}", self.host)

    def close(self) -> int | None:
        """End."""
        self.world.say(f"end {self.host}")
        return self.exit_status

    def _hello(self, build: str, run: str, **_args: Any) -> Hello:
        self.run = run
        netns = self.world.netns.get(self.host, self.pid or 0)
        capabilities = {"net_admin": True, **self.world.capabilities}
        return Hello(self.pid or 0, netns, "boot", build, "3.11", capabilities)

    def _take(self, use: str) -> Taken:
        assert use in ("alone", "shared", "none")
        self.uses.append(use)
        left = self.world.left_behind if self.host == "machine" else ()
        held = self.world.held.get(self.host)
        return held.pop(0) if held else Taken(left_behind=left)

    def _release(self) -> None:
        """Be free again."""

    def _others(self) -> tuple[str, ...]:
        return self.world.others

    def _ping(self) -> None:
        self.round_trip_ns = 100_000

    def _facts(self, interface: str) -> Facts:
        receiver = self.world.agents.get("receiver")
        there = receiver and any(setting["kind"] == "link" for setting in receiver.in_force)
        mine = self.world.addresses if self.host == "receiver" else ("192.168.254.30/24",)
        host_facts = facts(self.host, interface, mine if there else ())
        links = self.world.links.get(self.host, []) if there else []
        link = links.pop(0) if len(links) > 1 else next(iter(links), None)
        return replace(host_facts, link=link, environment=self.world.environment)

    def _inspect(self, interface: str) -> Inspection:
        assert interface is not None
        clock_ns = self.world.clock.now_ns()
        return Inspection(
            clock_ns, clock_ns + WALL_NS, *(None for _ in fields(Inspection)[2:-2]), *({}, ())
        )

    def _plan(self, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        why = {"refusal": "not here"}
        return [
            {"setting": setting, "now": "as it was", **(why if self._refuses(setting) else {})}
            for setting in settings
        ]

    def _apply(self, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.in_force = settings
        return [self._changed(setting) for setting in settings]

    def _refuses(self, setting: dict[str, Any]) -> bool:
        return bool(setting["kind"] == self.world.refusing)

    def _changed(self, setting: dict[str, Any]) -> dict[str, Any]:
        if not self._refuses(setting):
            return {"setting": setting, "before": None, "after": setting["value"]}
        if not setting["optional"]:
            raise SettingRefused("not here", self.host)
        return {"setting": setting, "before": 1, "after": 1, "refusal": "not here"}

    def _tunnel_key(self) -> str:
        return "0a" * 32

    def _verify(self) -> list[Any]:
        return encode(self.world.altered.get(self.host, []))

    def _prepare(
        self, interface: str, workers: list[dict[str, Any]], routed: list[str] | None
    ) -> list[dict[str, Any]]:
        assert (interface in ("send0", "receive0"), routed) == (True, None)
        self.workers, self.state = workers, "ready"
        common = {"pid": 5, "cpu": None, "socket_inodes": (7,), "buffer_bytes": 425984}
        return [{"worker": f"{self.host}.w{n}", **common} for n, _ in enumerate(workers)]

    def _confirm(self, interface: str, routed: list[str] | None) -> bool:
        assert (interface in ("send0", "receive0"), routed) == (True, None)
        return self.host not in self.world.unsteady

    def _expect_losses(self, interface: str, part: str, losses: list[dict[str, Any]]) -> None:
        assert (part, interface) in (("sender", "send0"), ("receiver", "receive0"))
        self.losses = {loss["stage"]: loss["packets"] for loss in losses}

    def _send_losses(self, stage: str) -> WorkerStats:
        sent = dict.fromkeys(("attempted_packets", "sent_packets"), self.losses[stage])
        return WorkerStats(f"{self.host}.loss_{stage}", "sender", None, sent)

    def _collect_losses(self) -> list[WorkerStats]:
        return [WorkerStats(f"{self.host}.loss_{s}", "receiver", None, {}) for s in self.losses]

    def _start(self, order: dict[str, Any]) -> None:
        assert self.state in ("ready", "done"), f"start while {self.state}"
        self.phase, self.state = order, "running"
        self.world.clock.time_ns += self.world.start_takes_ns

    def _sent(self) -> int:
        sender = self.world.agents["sender"].phase
        count = sender.get("count")
        if self.world.capacity_pps is not None and sender["phase"] != "path":
            pps = min(self._rate() or self.world.offers_pps, self.world.offers_pps)
            return int(pps * sender["duration_ns"] // 10**9)
        return PACKETS if count is None else int(count)

    def _rate(self) -> int | None:
        """Return the rate of the one sender: the phase's, else its own."""
        agent = self.world.agents["sender"]
        own = agent.workers[0]["rate_pps"] if agent.workers else None
        return agent.phase["rate_pps"] or own

    def _arriving(self) -> int:
        """Return how many of a phase's packets the receiver takes."""
        sent, capacity_pps = self._sent(), self.world.capacity_pps
        if capacity_pps is None or self.phase["phase"] == "path":
            return sent
        return min(sent, capacity_pps * int(self.phase["duration_ns"]) // 10**9)

    def _counts(self) -> tuple[dict[str, int], int]:
        """Return the counts of one worker, and the bytes in its queue."""
        if not self.phase:
            return dict.fromkeys(SENDING + RECEIVING, 0), 0
        since_ns = self.world.clock.now_ns() - self.phase["at_ns"]
        if self.host == "sender":
            over = self.phase["count"] is not None or since_ns >= self.phase["duration_ns"]
            if self.state == "running" and since_ns >= 0 and over:
                listens = self.workers[0]["traffic"].get("answers") is not None
                self.state = "listening" if listens else "done"
            sent = self._sent() if self.state in ("listening", "done") else 0
            return dict.fromkeys(SENDING, 0) | {"attempted_packets": sent, "sent_packets": sent}, 0
        arriving = self._arriving() if self.world.arriving is None else self.world.arriving
        read, queued = arriving, 0
        if self.world.reading is not None:
            read, queued = self.world.reading(since_ns)
        return self._received(read, since_ns), queued

    def _received(self, own: int, since_ns: int) -> dict[str, int]:
        strangers = self.world.strangers
        foreign = strangers(since_ns) if strangers is not None else 0
        counts = dict.fromkeys(RECEIVING, 0) | {"read_packets": own + foreign}
        if self.world.blind:
            del counts["foreign_packets"]
            return counts | {"received_packets": own + foreign}
        return counts | {"received_packets": own, "foreign_packets": foreign}

    def _polling(self) -> bool:
        if self.world.polling is None or not self.phase:
            return False
        return self.world.polling(self.world.clock.now_ns() - self.phase["at_ns"])

    def _sample(self, since: int) -> SampleReply:
        name = f"{self.host}.{self.host}0"
        counts, queued = self._counts()
        role = "sender" if self.host == "sender" else "receiver"
        return SampleReply(
            state=self.state,  # type: ignore[arg-type]
            error=None,
            next=since + 1,
            samples=(Sample(name, self.world.clock.now_ns(), counts),),
            stats=(WorkerStats(name, role, None, counts),),  # type: ignore[arg-type]
            flows=(),
            queued_bytes=queued if role == "receiver" else None,
            polling=role == "receiver" and self._polling(),
        )

    def _snapshot(
        self,
        interface: str,
        edge: str | None = None,
        controller: int | None = None,
        out: str = "",
        tunnel: str = "",
    ) -> Snapshot:
        ends = interface in ("send0", "receive0", "")
        assert (ends, out, tunnel) == (True, "", ""), "no node forwards"
        assert controller is None, "it is on another machine, by its boot id"
        if edge is not None:
            self.world.edges.append(f"{edge} {self.host}")
        self.snapshots += 1
        steps = self.world.drop_counters if self.host == "receiver" else {}
        counters = {name: step * self.snapshots for name, step in steps.items()}
        if self.world.capacity_pps is not None and self.host == "receiver":
            counters["snmp.Udp.RcvbufErrors"] = self.overflowed
        return Snapshot(self.host, self.world.clock.now_ns(), counters)

    def _hear_strangers(self, listen: bool) -> tuple[Stranger, ...]:
        (heard,) = self.world.heard
        if isinstance(heard, AgentError):
            raise heard
        return () if listen else heard

    def _stop(self) -> None:
        if self.host == "receiver" and self.phase:
            self.overflowed += self._sent() - self._arriving()
        self.state = "done"

    def _close(self, keep_logs: str | None) -> str | None:
        self.kept_logs = keep_logs
        printed = self.world.printed if self.host == "receiver" and self.workers else None
        self.workers, self.state = [], "none"
        return printed

    def _restore(self, **_args: Any) -> list[Any]:
        self.in_force = []
        return []


def facts(host: str, interface: str, addresses: tuple[str, ...]) -> Facts:
    """Return plausible facts of a host with two CPUs."""
    there = bool(addresses)
    return Facts(
        host=host,
        hostname="fake",
        kernel="6.18",
        boot_id="boot",
        python="3.11",
        cpus=(0, 1),
        cpu_model=None,
        numa_nodes={"0": (0, 1)},
        siblings={"0": (0,), "1": (1,)},
        interface=interface,
        driver="veth" if there else None,
        mac=None,
        mtu=1500 if there else None,
        addresses=addresses,
        rx_queues=1 if there else None,
        tx_queues=TX_QUEUES if there else None,
        queue_cpus={},
        limits={},
        capabilities=CAPABILITIES,
    )


def experiment(name: str = "one", **keys: Any) -> Experiment:
    """Return an experiment of one short trial; keys as in YAML."""
    data = {"question": "What?", "duration": "1s", "warmup": "200ms", "repetitions": 1, **keys}
    return load_experiment_data(data, name)


@lru_cache
def lab() -> Lab:
    """Return the built-in lab."""
    return load_lab("local")


def header(*experiments: Experiment) -> RunHeader:
    """Return the header of a run of these experiments."""
    here = lab()
    command = ("udpbench", "run")
    return RunHeader("0.1.0", "2026-11-21T00:00:00", command, 1, here.name, here.text, experiments)


def go(world: World, folder: Path, *experiments: Experiment) -> tuple[Outcome, Run]:
    """Run experiments in the fake world; return how it ended and what it left."""
    chosen = experiments or (experiment(),)
    writer = RunWriter.create(folder, header(*chosen))
    outcome = run(
        chosen, lab(), writer, world.progress.append, RunOptions(seed=1), world.surroundings()
    )
    return outcome, read_run(folder)


def only(folder: Path, world: World, **keys: Any) -> TrialRecord:
    """Return the record of a run of one trial; keys as in YAML."""
    return go(world, folder, experiment(**keys))[1].records[0]
