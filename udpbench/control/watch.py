"""``udpbench watch``: reads live hosts once a second, without a run.

Takes no lock and sends no traffic, so a watch neither waits for a run nor delays one. It is stored
in the form of a trial, so that report, frames and figures need no other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from udpbench.analysis.delta import deltas
from udpbench.analysis.watch.history import HostState, after
from udpbench.analysis.watch.host import LiveHost, live_host
from udpbench.control.agent_client import MOST_SOCKETS, AgentClient
from udpbench.control.agents import LabAgents
from udpbench.control.lab_lock import Surroundings
from udpbench.control.phase import moved_since
from udpbench.control.run import RunOptions, run_name
from udpbench.control.trial import described
from udpbench.control.trial_state import KEPT_MAX
from udpbench.control.wait import Clock
from udpbench.errors import (
    AgentError,
    DeadlineExceeded,
    InputError,
    NothingToWatch,
    Problem,
    UdpbenchError,
)
from udpbench.model.experiment import Experiment, Needs, Receive, Send, Traffic, Trial
from udpbench.model.host import Facts
from udpbench.model.lab import SSH_CHARACTERS, SSH_SPEC, Connect, Lab, Node
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.model.record import (
    SOCKET,
    CpuSamples,
    Finding,
    Phase,
    Process,
    Sample,
    Snapshot,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.work import WorkerSpec
from udpbench.records.run import Ending, new_header, now_utc
from udpbench.records.writer import RunWriter
from udpbench.units import format_duration

POLL_NS = SECOND_NS // 4
"""Between two checks for Ctrl-C."""
FACTS_NS = 60 * SECOND_NS
"""For a host to give the facts of the interfaces that are new in one look: it says how many."""
PORTS_NAMED = 12
SOCKETS_KEPT = 16
"""Sockets whose drops are stored at one look, the worst first."""
LOOPBACK = "lo"


@dataclass(frozen=True)
class Watched:
    """What to watch on a host; by default every UDP socket of its namespace."""

    pid: int | None = None
    port: int | None = None
    unit: str | None = None
    exact: bool = False
    cpu_time: bool = False
    """Sample the CPUs meanwhile; what is kept has it."""


def lab_to_watch(destination: str | None, lab: Lab | None) -> Lab:
    """Return the hosts to watch: a destination, this machine, or the receivers of a lab.

    Raises InputError.
    """
    if lab is not None and destination is not None:
        raise InputError([Problem("both are named", "HOST, --lab", next_step="omit one")])
    if lab is not None and lab.built_in:
        what = "a built-in lab exists only during a run"
        step = "omit --lab to watch this machine"
        raise InputError([Problem(what, "--lab", lab.name, "", step)])
    if lab is not None:
        return replace(lab, hosts=lab.receivers)
    if destination is not None and SSH_SPEC.match(destination) is None:
        what, step = "not [user@]host[:port]", "write for example root@left, or omit it"
        raise InputError([Problem(what, "HOST", destination, SSH_CHARACTERS, step)])
    way = Connect("local") if destination is None else Connect("ssh", destination)
    match = SSH_SPEC.match(destination or "")
    name = (match["name"] or match["bracketed"]) if match is not None else None
    name = name or destination or socket.gethostname()
    host = Node(name, "receiver", way, "", (), existing=True)
    return Lab("watch", "", "", (host,))


def watch(
    lab: Lab,
    watched: Watched,
    duration_ns: int | None,
    around: Surroundings,
    tell: Callable[[LiveHost], None],
    kept: KeptLooks | None = None,
) -> list[LiveHost]:
    """Look once a second until the time is over or Ctrl-C; return the last state of each host.

    Raises ConnectError, HelloRefused, AgentLost, NothingToWatch.
    """
    clock = around.clock
    with closing(LabAgents(lab, run_name(), RunOptions.lease_ns, around.reach, clock)) as agents:
        agents.begin()
        with around.interrupt.caught():
            waits = duration_ns is not None
            onlookers = [
                Onlooker(each, watched, kept, clock, waits=waits) for each in agents.onlookers()
            ]
            states = []
            begun_ns = min(each.begun_ns for each in onlookers)
            for _ in _seconds(begun_ns, duration_ns, around):
                states = [onlooker.look() for onlooker in onlookers]
                for state in states:
                    tell(state)
            for onlooker in onlookers:
                onlooker.refuse_free()
            for onlooker in onlookers if watched.cpu_time else ():
                onlooker.end()
    return states


def _seconds(begun_ns: int, duration_ns: int | None, around: Surroundings) -> Iterator[int]:
    """Yield at each second on a fixed grid, and at the end."""
    end_ns = begun_ns + duration_ns if duration_ns is not None else None
    due_ns = begun_ns + SECOND_NS
    while True:
        now_ns = around.clock.now_ns()
        over = around.interrupt.requested or (end_ns is not None and now_ns >= end_ns)
        if over or now_ns >= due_ns:
            yield now_ns
            if over:
                return
            due_ns += SECOND_NS * (1 + (around.clock.now_ns() - due_ns) // SECOND_NS)
        left_ns = min(due_ns, end_ns or due_ns) - around.clock.now_ns()
        around.clock.sleep_ns(min(max(left_ns, 0), POLL_NS))


class Onlooker:
    """One watched host."""

    def __init__(
        self,
        client: AgentClient,
        watched: Watched,
        kept: KeptLooks | None,
        clock: Clock,
        facts: dict[str, Facts] | None = None,
        waits: bool = False,
    ) -> None:
        """``facts`` are by interface: those that are watched; None: all of them are asked for.

        ``waits``: a socket may be bound to the port later.
        """
        self._client = client
        self._clock = clock
        self._watched = watched
        self._kept = kept
        self._facts = {} if facts is None else facts
        self._asks_facts = facts is None
        self.begun_ns = clock.now_ns()
        """When the first look was taken; the facts of many interfaces take seconds more."""
        self._first = self._latest = self._look(None)
        self._said: LiveHost | None = None
        self._free = watched.port is not None and not _is_bound(watched.port, self._first)
        """No socket was bound to the port so far."""
        if not waits:
            self.refuse_free()

    def look(self) -> LiveHost:
        """Return the host's activity between the previous look and this one."""
        now = self._look(self._latest)
        pid, port = self._watched.pid, self._watched.port
        enter = f"nsenter -t {pid} -n " if pid is not None else ""
        self._said = live_host(self._first, self._latest, now, self._facts, self._said, port, enter)
        if self._kept is not None:
            self._kept.add_drops(self._said, self._latest.snapshot, now.snapshot)
        self._latest = now
        self._free = self._free and not _is_bound(self._watched.port, now)
        return self._said

    def refuse_free(self) -> None:
        """Raise NothingToWatch if no socket was bound to the port, and no packet came to it."""
        came = self._said is not None and self._said.unbound_packets > 0
        if self._free and not came:
            text = _free_text(self._watched.port, self._latest)
            step = "nor did any packet come to it" if self._said else "with --for it is waited for"
            raise NothingToWatch(f"{text}; {step}", self._client.name)

    def end(self) -> None:
        """Keep what the CPUs did, and who reads the sockets."""
        if self._kept is not None:
            readers = {each for s in self._latest.sockets.values() for each in s.processes}
            self._kept.add_cpu_samples(self._client.name, self._client.cpu_samples(), readers)

    def _look(self, before: HostState | None) -> HostState:
        watched = self._watched
        look = self._client.look(watched.pid, watched.unit, watched.exact)
        looked_ns = self._clock.now_ns()
        self.begun_ns = looked_ns if before is None else self.begun_ns
        end_ns = looked_ns + FACTS_NS
        there = set(look.interfaces)
        for gone in self._facts.keys() - there:
            del self._facts[gone]
        for interface in look.interfaces if self._asks_facts else ():
            if interface not in self._facts:
                with suppress(AgentError):  # it has just been removed: the next look says so
                    self._facts[interface] = self._client.facts(interface)
            if self._clock.now_ns() >= end_ns:
                what = f"the facts of its {len(look.interfaces)} interfaces"
                step = "find out what slows it down there"
                limit = format_duration(FACTS_NS)
                raise DeadlineExceeded(
                    f"{what} took longer than {limit}; {step}", self._client.name
                )
        if self._kept is not None:
            self._kept.add(look.snapshot, self._facts)
        state = after(before, look)
        if len(state.sockets) > MOST_SOCKETS:
            what = f"{len(state.sockets)} UDP sockets are open, and {MOST_SOCKETS} can be watched"
            raise AgentError(
                f"{what}; name what to watch: --port, --pid or --unit", self._client.name
            )
        return state


def _trial(family: Literal[4, 6]) -> Trial:
    """Return the trial that a watch is: nothing is sent, and nothing of ours receives."""
    return Trial(
        experiment="watch",
        question="Where does this host lose UDP packets?",
        point="",
        variant=None,
        values={},
        repetition=1,
        traffic=Traffic(family=family),
        send=Send(workers=0),
        receive=Receive(),
        settings={},
        needs=Needs(),
        duration_ns=SECOND_NS,
        warmup_ns=0,
    )


class KeptLooks:
    """The looks of a watch, stored as the only trial of a run, without workers."""

    def __init__(self, writer: RunWriter) -> None:
        self.folder = writer.folder
        self._writer = writer
        self._started_at = now_utc()
        self._first: dict[str, Snapshot] = {}
        self._latest: dict[str, Snapshot] = {}
        self._facts: dict[str, Mapping[str, Facts]] = {}
        """Host → the facts of its interfaces by name."""
        self._samples: list[Sample] = []
        self._motion: list[Snapshot] = []
        self._cpu_samples: dict[str, CpuSamples] = {}

    @classmethod
    def create(cls, folder: Path, lab: Lab, command: tuple[str, ...]) -> Self:
        """Begin a run folder; raises RecordError."""
        trial = _trial(4)
        text = f"question: {trial.question}\n"
        watch_alone = Experiment("watch", "", text, trial.question, None, (trial,), 1, ())
        return cls(RunWriter.create(folder, new_header([watch_alone], lab, command, seed=0)))

    def add(self, snapshot: Snapshot, facts: Mapping[str, Facts]) -> None:
        """Keep one look with the counters that changed; written to disk once there are many."""
        host, before = snapshot.host, self._latest.get(snapshot.host)
        self._latest[host], self._facts[host] = snapshot, facts
        self._first.setdefault(host, snapshot)
        if before is not None:
            self._motion.append(moved_since(before, snapshot))
        counts = {"received_packets": self._read_packets(host)}
        self._samples.append(Sample(_reader_of(host), snapshot.clock_ns, counts))
        if len(self._samples) + len(self._motion) >= KEPT_MAX:
            self._writer.stream(tuple(self._samples), tuple(self._motion))
            self._samples.clear()
            self._motion.clear()

    def add_drops(self, live: LiveHost, before: Snapshot, now: Snapshot) -> None:
        """Keep what the sockets that lose most have dropped, before and after one look."""
        seconds = max(now.clock_ns - before.clock_ns, 1) / SECOND_NS
        for loss in live.losing[:SOCKETS_KEPT]:
            name = f"{live.host}{SOCKET}{loss.owner} {loss.address}"
            lately = round(loss.dropped_pps * seconds)
            for clock_ns, dropped in (
                (before.clock_ns, loss.dropped - lately),
                (now.clock_ns, loss.dropped),
            ):
                self._samples.append(Sample(name, clock_ns, {"dropped_packets": dropped}))

    def add_cpu_samples(self, host: str, samples: CpuSamples, readers: Iterable[str]) -> None:
        """Keep what a host's CPUs did; ``readers`` hold its sockets: ``unbound 1234``."""
        parts = (each.rpartition(" ")[::2] for each in readers)
        known = [Process(int(pid), name, 0, "worker") for name, pid in parts if pid.isdecimal()]
        self._cpu_samples[host] = samples
        self._latest[host] = replace(self._latest[host], processes=tuple(known))

    def finish(self, findings: Sequence[Finding]) -> None:
        """Write the looks, with losses as findings, as a completed trial."""
        self._writer.write(self._record(findings))
        self._writer.finish(Ending(now_utc(), "complete"))

    def fail(self, error: UdpbenchError) -> None:
        """Write the looks as a failed trial with the error."""
        self._writer.finish(Ending(now_utc(), "failed", described(error)))

    def _record(self, findings: Sequence[Finding]) -> TrialRecord:
        hosts = list(self._first)
        elapsed_ns = max(self._latest[h].clock_ns - self._first[h].clock_ns for h in hosts)
        trial = _trial(self._busier(hosts))
        samples, motion = self._writer.streamed()
        phase = Phase(
            name="measured",
            tag=0,
            start_ns={host: self._first[host].clock_ns for host in hosts},
            before=self._first,
            after=self._latest,
            stats=tuple(map(self._stats, hosts)),
            flows={},
            cpu_samples=self._cpu_samples,
        )
        return TrialRecord(
            trial=replace(trial, duration_ns=min(elapsed_ns, DAY_NS)),
            status="done",
            started_at=self._started_at,
            built_in_lab=False,
            facts={name: facts for host in hosts for name, facts in self._named_facts(host)},
            workers=tuple(
                WorkerSpec("receiver", host, 0, None, (), trial.traffic, receive=trial.receive)
                for host in hosts
            ),
            phases=(phase,),
            series=(*samples, *self._samples),
            motion=(*motion, *self._motion),
            findings=tuple(findings),
        )

    def _stats(self, host: str) -> WorkerStats:
        read_packets = self._read_packets(host)
        edges_ns = self._first[host].clock_ns, self._latest[host].clock_ns
        counts = {"received_packets": read_packets, "read_packets": read_packets}
        counts.update(zip(("first_ns", "last_ns"), edges_ns, strict=True))
        return WorkerStats(_reader_of(host), "receiver", None, counts)

    def _moved(self, host: str) -> Mapping[str, int]:
        return deltas(self._first[host], self._latest[host]).values

    def _read_packets(self, host: str) -> int:
        """Return what all applications of a host have read."""
        moved = self._moved(host)
        return moved.get("snmp.Udp.InDatagrams", 0) + moved.get("snmp6.Udp6InDatagrams", 0)

    def _busier(self, hosts: Sequence[str]) -> Literal[4, 6]:
        """Return the IP version of most packets, whose counters are shown over time."""
        moved = [self._moved(host) for host in hosts]
        four, six = (
            sum(each.get(name, 0) for each in moved)
            for name in ("snmp.Ip.InReceives", "snmp6.Ip6InReceives")
        )
        return 6 if six > four else 4

    def _named_facts(self, host: str) -> Iterator[tuple[str, Facts]]:
        """Yield a host's facts by interface; the busiest, whose queues are shown, as the host's."""
        facts, moved = self._facts[host], self._moved(host)
        came = {name: moved.get(f"link.{name}.rx_packets", 0) for name in facts}
        busiest_first = sorted(facts, key=lambda name: (-came[name], name == LOOPBACK))
        for place, name in enumerate(busiest_first):
            yield f"{host} {name}" if place else host, facts[name]


def _reader_of(host: str) -> str:
    return f"{host}.receiver0"


def _is_bound(port: int | None, state: HostState) -> bool:
    return any(each.port == port for each in state.sockets.values())


def _free_text(port: int | None, state: HostState) -> str:
    ports = sorted({each.port for each in state.sockets.values()})
    shown = ", ".join(map(str, ports[:PORTS_NAMED])) or "none"
    more = f" and {len(ports) - PORTS_NAMED} more" if len(ports) > PORTS_NAMED else ""
    return f"no UDP socket is bound to port {port}; bound ports: {shown}{more}"
