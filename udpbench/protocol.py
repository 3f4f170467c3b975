"""The contract between controller and agent: one JSON object a line, both ways, in order.

    request   {"id": 7, "verb": "apply", "args": {...}}
    reply     {"id": 7, "clock_ns": 123, "result": ...}
    failure   {"id": 7, "clock_ns": 123, "error": {"kind": "...", "message": "...", "host": "..."}}

No verb waits for anything but its own work, except ``take``, which waits for the restore of a run
that died; to wait for a condition, the controller polls it. ``clock_ns`` is the agent's
CLOCK_MONOTONIC when it wrote the reply. Every request renews the lease. A request that repeats the
latest number is not served again: it gets the same reply. A request that needs no reply has number
0.

``AgentVerbs`` has every verb with its arguments, its reply and its deadline. The file is long, as
that and the codec that checks what they carry are the whole contract.

``apply`` is declarative: the agent keeps the longest common prefix of the settings in force and
those requested, undoes the rest backwards and applies the remainder. Each ``start`` counts from 0.

``setting_kinds`` lists what a setting's target and value may be.

Long, because it is the whole contract of both sides.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, replace
from functools import cache, cached_property, partial, wraps
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import (
    Any,
    Callable,
    Literal,
    Optional,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from udpbench.frozen import dataclass
from udpbench.json_lines import MOST_LINE_BYTES, parse_json
from udpbench.model.host import Change, Facts, Inspection, Planned, Setting
from udpbench.model.limits import (
    DAY_NS,
    INTEGERS,
    LENGTHS,
    LIMITS,
    NUMBER,
    NUMBERED,
    Edge,
    PhaseName,
    Scope,
)
from udpbench.model.record import (
    CpuSamples,
    FlowStats,
    HostLook,
    Sample,
    Snapshot,
    UdpSocket,
    WorkerStats,
)
from udpbench.model.served import ServedTest
from udpbench.model.survey import MachineLook, MachineRows
from udpbench.model.work import LossSpec, WorkerSpec

# mypy: disable-error-code="empty-body"

PROTOCOL = 1


Lock = Literal["namespace", "machine", "changes"]
"""The locks of a run: its namespace, its machine, and the right to change the machine."""
LOOK_SOCKETS = 2**14
Use = Literal["alone", "shared", "none"]
"""How a run uses its machines; its network namespaces are always exclusive."""


@dataclass(frozen=True)
class Hello:
    """What an agent says about itself."""

    pid: int
    netns: int
    """Inode number of the agent's network namespace."""
    boot_id: str
    build: str
    python: str
    capabilities: dict[str, bool]


@dataclass(frozen=True)
class Taken:
    """The result of taking a host; nothing was taken if another run has it."""

    held_by: Optional[str] = None
    lock: Optional[Lock] = None
    left_behind: tuple[str, ...] = ()
    """Runs that died here and whose changes are not yet undone."""
    in_use: tuple[str, ...] = ()
    """Runs whose changes an agent, a guardian or a restore still has in hand here."""


@dataclass(frozen=True)
class PhaseOrder:
    """The start of a phase, for every worker of a host."""

    phase: PhaseName
    tag: int
    at_ns: int
    """By the clock of who gets it."""
    duration_ns: int = DAY_NS
    """Without one it ends by packet count, or after a day."""
    count: Optional[int] = None
    """Packets per worker; None leaves it to the worker's own count."""
    flows: Optional[tuple[int, ...]] = None
    """Numbers of the flows to send; None: all that were prepared."""
    rate_pps: Optional[int] = None
    """Rate of each worker; None: the worker's own."""


@dataclass(frozen=True)
class Prepared:
    """A worker that has its sockets and memory and waits for ``start``."""

    worker: str
    pid: int
    cpu: Optional[int]
    """The CPU its thread is pinned to, read back; None if it is not pinned."""
    socket_inodes: tuple[int, ...]
    buffer_bytes: Optional[int]
    zerocopy: Optional[bool] = None
    """By AF_XDP: the driver reads or writes its frames without a copy, as read back."""
    thread: Optional[int] = None
    """The kernel's number of its thread; None: a user's program."""
    filtered: Optional[bool] = None
    """A receiving socket has a filter; None: not known yet."""


@dataclass(frozen=True)
class Interface:
    """One network interface of a host, as it is now."""

    name: str
    driver: Optional[str]
    """A device's driver, or the kind of a virtual interface."""
    mac: Optional[str]
    link: Optional[Literal["up", "no carrier", "down"]]
    addresses: tuple[str, ...] = ()
    protected: bool = False
    """It, or an interface stacked on it, carries the SSH connection or a default route."""


@dataclass(frozen=True)
class Interfaces:
    """The interfaces of a host without ``lo``, and who controls it."""

    listed: tuple[Interface, ...]
    controller: Optional[str] = None
    """The source address of the SSH connection; None without SSH."""


@dataclass(frozen=True)
class HeardArp:
    """An ARP probe that arrived."""

    interface: str
    mac: str
    """The address of the interface that sent it."""


@dataclass(frozen=True)
class Stranger:
    """Something other than the senders that sends to a port of the traffic."""

    address: str
    port: int
    packets: int
    """That were heard; of a fast stranger only some are."""


@dataclass(frozen=True)
class RecordedTree:
    """What a host reports about itself and one interface, with names and addresses replaced."""

    interface: str
    files: dict[str, str]
    """Path → text."""
    folders: dict[str, tuple[str, ...]]
    """Path → names in it, without files that were read."""
    links: dict[str, str]
    """Path of a symbolic link → the last component of its target."""
    answers: dict[str, Any]
    """Call with its arguments → ``{value}`` or ``{error}``, an errno."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    """Name → whether it works there; empty in older files."""


@dataclass(frozen=True)
class Hop:
    """What a node does with packets of one source and destination."""

    source: str
    destination: str
    kind: str
    """``unicast`` or another type of route; ``none``: the look-up fails, and no packet leaves."""
    interface: Optional[str] = None
    """By which they leave."""
    gateway: Optional[str] = None
    """None: the destination itself is on the link."""
    mac: Optional[str] = None
    """The MAC of the gateway or the destination, if it is known there."""


@dataclass(frozen=True)
class Tunnel:
    """A VXLAN or WireGuard interface, and the addresses of both ends of its outer packets."""

    name: str
    vni: int
    """0 of WireGuard."""
    local: Optional[str]
    remote: Optional[str]
    port: int
    ttl: int
    """0: any."""
    listens: int = 0
    """The port to which the other end sends; 0: the same."""


EVERY_PORT = "every port"
"""Where a bridge sends frames for a MAC that it does not know."""


@dataclass(frozen=True)
class Passage:
    """The way that packets of the traffic take through a node."""

    hops: tuple[Hop, ...]
    addresses: tuple[str, ...]
    """Addresses of the interface by which they come in; empty where they are sent."""
    out_addresses: tuple[str, ...]
    mac: Optional[str]
    out_mac: Optional[str]
    rewrites: tuple[str, ...]
    """Every destination to which rules may send them instead."""
    unread: tuple[str, ...]
    """What may lead them elsewhere and is not followed, each in words."""
    sources: tuple[str, ...] = ()
    """Every source that rules may give them in place of their own."""
    pair: Optional[tuple[int, int]] = None
    """Index of the interface by which they come in, and of its other end, if it is a veth."""
    out_pair: Optional[tuple[int, int]] = None
    """The same of that by which they leave."""
    bridge: tuple[str, ...] = ()
    """The bridge with the first as its port, then its ports among both: with both it forwards
    frames. Empty: there is none."""
    tunnel: Optional[Tunnel] = None
    """The interface by which they leave, if it puts them into others."""
    stations: tuple[tuple[str, str], ...] = ()
    """MAC of each next hop beyond a bridge by which they leave, and the port that leads there."""
    outer: tuple[Hop, ...] = ()
    """The way of the packets into which the interface puts those that are sent here."""
    ports: tuple[int, ...] = ()
    """Every port that rules may give them in place of their own."""
    listens: tuple[int, ...] = ()
    """Those of their ports at which a socket takes what is for an address of the node itself."""

    def as_now(self, now: Passage) -> Optional[Passage]:
        """Return the same way as it is now, with MACs that are not known any more; None: another.

        What was forgotten is to be where it was.
        """
        before, rest = ((way.rewrites, way.sources, way.unread) for way in (self, now))
        hops, outer = _kept(self.hops, now.hops), _kept(self.outer, now.outer)
        ports = dict(self.stations)
        moved = any(ports.get(mac, port) not in (port, EVERY_PORT) for mac, port in now.stations)
        if before != rest or hops is None or outer is None or moved:
            return None
        stations = tuple({**ports, **dict(now.stations)}.items())
        return replace(now, hops=hops, outer=outer, stations=stations)


def _kept(proven: Sequence[Hop], now: Sequence[Hop]) -> Optional[tuple[Hop, ...]]:
    """Return hops with MACs that nobody asks for and were forgotten; None: they lead elsewhere."""
    if len(proven) != len(now):
        return None
    pairs = [*zip(proven, now)]
    same = all(replace(hop, mac=None) == replace(known, mac=None) for known, hop in pairs)
    if not same or any(
        None not in (known.mac, hop.mac) and known.mac != hop.mac for known, hop in pairs
    ):
        return None
    return tuple(replace(hop, mac=hop.mac or known.mac) for known, hop in pairs)


WorkersState = Literal["none", "ready", "running", "listening", "done", "failed"]


@dataclass(frozen=True)
class SampleReply:
    """State of an agent's workers and its samples from number ``since`` on.

    ``running`` until every loop has ended; senders end by themselves (``done``), receivers when
    stopped. ``queued_bytes`` is the sum over the receiving sockets; None without any. So is
    ``dropped_packets``, since the phase began.
    """

    state: WorkersState
    error: Optional[dict[str, str]]
    next: int
    samples: tuple[Sample, ...]
    stats: tuple[WorkerStats, ...]
    flows: tuple[FlowStats, ...]
    queued_bytes: Optional[int]
    dropped_packets: Optional[int] = None
    polling: bool = False
    """A thread that serves the traffic's RX queues runs, or waits for a CPU."""


@dataclass(frozen=True)
class ClientEvent:
    """What happened at an iperf3 server.

    ``listening``, then of each client ``refused`` or, of a test, ``prepared`` (its sockets are
    open, and nothing is sent before ``proceed``), ``started``, ``missing`` (more packets than when
    events were asked for before), ``ended`` (all is counted, and its results wait for ``proceed``),
    ``closed``.
    """

    event: Literal["listening", "refused", "prepared", "started", "missing", "ended", "closed"]
    text: str = ""
    """In words: where it listens, who came, why it was refused."""
    test: int = 0
    """Number of the test, from 1; 0 of no test."""
    served: Optional[ServedTest] = None
    specs: tuple[WorkerSpec, ...] = ()
    clock_ns: int = 0
    """With ``started``: when, on the host's CLOCK_MONOTONIC."""
    sampled: Optional[SampleReply] = None
    """With ``ended``: all that was counted over time, and in the end."""
    drops: dict[str, int] = field(default_factory=dict)
    """With ``ended``: inode of each of its sockets, as text → packets that it dropped."""


Method = TypeVar("Method", bound=Callable[..., Any])
OWN: Any = object()
"""As the default of a verb's argument: the client's attribute of that name."""


@dataclass(frozen=True)
class Verb:
    """One request to an agent: the arguments and the result of a method of ``AgentVerbs``."""

    method: Callable[..., Any]
    limit_s: int
    """Deadline of the reply: ten times the usual, and more if a driver or many settings may be
    slow; the agent's own limits (prepare 10 s, close 2 s) must expire first."""
    doing: str
    """What it does, for error messages: ``while …``."""

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """Argument → type, as ``decode`` takes it; ``return``: that of the result."""
        return get_type_hints(self.method)


VERBS: dict[str, Verb] = {}


def verb(limit_s: int, doing: str) -> Callable[[Method], Method]:
    """Make a method the row of a verb: to call it is to ask the agent."""

    def row(method: Method) -> Method:
        name, signature = method.__name__, inspect.signature(method)
        VERBS[name] = Verb(method, limit_s, doing)

        @wraps(method)
        def ask(client: AgentVerbs, *args: Any, **named: Any) -> Any:
            given = signature.bind(client, *args, **named)
            given.apply_defaults()
            _, *values = given.arguments.items()
            own = {key: getattr(client, key) for key, value in values if value is OWN}
            return client.ask(name, {**dict(values), **own})

        return cast("Method", ask)

    return row


class AgentVerbs:
    """The verbs, as who asks an agent calls them."""

    def ask(self, name: str, args: dict[str, Any]) -> Any:
        """Return the agent's reply to a verb."""
        raise NotImplementedError

    @verb(20, "greeting")
    def hello(
        self,
        host: str,
        run: str,
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: tuple[Scope, ...],
        returns: bool,
        private: bool,
    ) -> Hello:
        """Begin the session; raises HelloRefused. Scopes not named are never changed.

        ``returns``: not the end of stdin ends it, but its lease; ``private``: in namespaces of its
        own.
        """

    @verb(20, "taking the host for a run")
    def take(self, use: Use) -> Taken:
        """Take the host, unless another run has it; before all verbs but ping and leave."""

    @verb(5, "letting other runs have the host")
    def release(self) -> None:
        """Undo ``take``, before anything was changed."""

    @verb(5, "looking for other runs on the machine")
    def others(self) -> tuple[str, ...]:
        """Return the other runs that used the machine since the last request."""

    @verb(10, "looking at the host")
    def facts(self, interface: str = OWN) -> Facts:
        """Return the facts of the host as it is now."""

    @verb(10, "listing interfaces")
    def interfaces(self) -> Interfaces:
        """Return the host's interfaces as they are now, without lo."""

    @verb(5, "listening for ARP requests")
    def hear_arp(self, interfaces: Sequence[str]) -> tuple[HeardArp, ...]:
        """Return the requests heard since the last call, and listen; without interfaces no more."""

    @verb(5, "sending an ARP request")
    def send_arp(self, interface: str) -> None:
        """Send one, to prove a link; raises SafetyError."""

    @verb(20, "inspecting the host")
    def inspect(self, interface: str = OWN) -> Inspection:
        """Return what is too costly for the facts of each trial; takes up to a second."""

    @verb(60, "recording the host")
    def record(self, interface: str = OWN) -> RecordedTree:
        """Return what the host reports about itself, with names and addresses replaced."""

    @verb(5, "making a key")
    def tunnel_key(self) -> str:
        """Return the public key of the host's end of a WireGuard tunnel, the same for a run.

        Raises SettingRefused if it cannot have one.
        """

    @verb(60, "putting settings in force")
    def apply(self, settings: Sequence[Setting]) -> tuple[Change, ...]:
        """Put exactly these in force, and return those in force; raises SettingRefused."""

    @verb(60, "looking at what settings would change")
    def plan(self, settings: Sequence[Setting]) -> tuple[Planned, ...]:
        """Return what applying these would change or be refused, changing nothing."""

    @verb(20, "checking whether settings are still in force")
    def verify(self) -> tuple[Change, ...]:
        """Return those changed by another process: the value applied, and the value now."""

    @verb(20, "preparing workers")
    def prepare(
        self,
        workers: Sequence[WorkerSpec],
        interface: str = OWN,
        routed: Optional[Sequence[str]] = OWN,
    ) -> tuple[Prepared, ...]:
        """Prove senders' routes, then make workers; raises SafetyError, WorkerFailed.

        ``routed``: networks allowed behind a gateway; None: all.
        """

    @verb(20, "following the path")
    def passage(
        self,
        interface: str,
        out: str,
        pairs: Sequence[tuple[str, str]],
        ports: Sequence[int],
        protocol: str = "udp",
    ) -> Passage:
        """Return the way of packets of these sources and destinations through the host.

        ``interface`` is where they come in; empty: they are sent there.
        """

    @verb(5, "looking for changes")
    def changed(self, interface: str = OWN, out: str = OWN, tunnel: str = OWN) -> dict[str, int]:
        """Return how often routes, rules and the like were changed since the first look."""

    @verb(10, "looking at idle workers")
    def confirm(self, interface: str = OWN, routed: Optional[Sequence[str]] = OWN) -> bool:
        """Return whether workers are as they were prepared, having proven their routes again."""

    @verb(5, "starting workers")
    def start(self, order: PhaseOrder) -> None:
        """Start every worker on a phase."""

    @verb(5, "sampling the workers")
    def sample(self, since: int) -> SampleReply:
        """Return the workers' state, counts, and the samples from number ``since`` on."""

    @verb(5, "reading counters")
    def snapshot(
        self,
        edge: Optional[Edge] = None,
        interface: str = OWN,
        controller: Optional[int] = OWN,
        out: str = OWN,
        tunnel: str = OWN,
    ) -> Snapshot:
        """Return the host's counters; at edge ``end`` also processes' CPU use since ``begin``.

        ``controller`` is its pid, if it runs on this machine.
        """

    @verb(10, "beginning to sample CPUs")
    def sample_cpus(self, frequency: int) -> None:
        """Sample every CPU so many times a second, from the next snapshot at edge ``begin`` on."""

    @verb(60, "reading samples of CPUs")
    def cpu_samples(self) -> CpuSamples:
        """End that; return what was seen until the snapshot at edge ``end``, or why nothing was."""

    @verb(20, "looking at the host")
    def look(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return all traffic of a process's namespace and sockets, of a unit's, or of all.

        And what changed since the previous look; ``exact``: by BPF's counts.
        """

    @verb(20, "looking at the host")
    def more_sockets(self) -> tuple[UdpSocket, ...]:
        """Return more sockets of the latest look, of which each answer has LOOK_SOCKETS at most.

        Fewer are the last: those of a hundred thousand would be too long for one.
        """

    @verb(20, "looking at the host")
    def survey(self, exact: bool, closely: bool = False) -> MachineRows:
        """Return all traffic and sockets of every network namespace; ``exact``: this one's.

        ``closely``: also settings, changes, and what processes use.
        """

    @verb(10, "preparing to lose packets on purpose")
    def expect_losses(
        self, losses: Sequence[LossSpec], part: str = OWN, interface: str = OWN
    ) -> None:
        """Open the sockets that receive them, or fill those that must be full."""

    @verb(30, "losing packets on purpose")
    def send_losses(self, stage: str) -> WorkerStats:
        """Send one stage's packets; return what was sent."""

    @verb(10, "counting packets lost on purpose")
    def collect_losses(self) -> tuple[WorkerStats, ...]:
        """Return which of the packets lost on purpose arrived after all."""

    @verb(5, "listening for strangers")
    def hear_strangers(self, listen: bool) -> tuple[Stranger, ...]:
        """Listen for others that send to the traffic's ports, or end it and return who was heard.

        AgentError without the right to.
        """

    @verb(5, "stopping workers")
    def stop(self) -> None:
        """Tell the loops to end; sockets stay open, and later samples show when they have ended."""

    @verb(15, "ending workers")
    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End the workers and return what a program printed.

        ``keep_logs``: label for their log files; None: remove them.
        """

    @verb(60, "restoring")
    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo every setting, and return them in order; raises RestoreError.

        ``left_behind``: of runs that died here, not of this run.
        """

    @verb(5, "serving iperf3 clients")
    def clients(self, since: int) -> tuple[ClientEvent, ...]:
        """Return what happened at an iperf3 server, from event number ``since`` on."""

    @verb(5, "letting an iperf3 client go on")
    def proceed(self, test: int, output: Optional[str] = None) -> None:
        """Let a client's test begin, or end with its results and what it is to be shown."""

    @verb(5, "answering")
    def ping(self) -> None:
        """Renew the lease, like every request."""

    @verb(5, "answering")
    def leave(self) -> None:
        """From now on let the end of stdin end the agent."""


AGENT_LEAVES = (
    "confinement",
    "cpu_lists",
    "cpu_stages",
    "drivers",
    "errors",
    "folder",
    "frozen",
    "heap",
    "host_settings",
    "json_lines",
    "metrics",
    "model",
    *(
        f"model.{name}"
        for name in (
            *("experiment", "host", "lab", "limits"),
            *("record", "served", "survey", "work"),
        )
    ),
    "parent_death",
    "printable",
    "protocol",
    "setting_kinds",
    "text_tables",
    "units",
    "ways",
)
"""Modules beside ``agent`` that the agent runs."""


def agent_files() -> list[Path]:
    """Return the files that an agent runs: those of its room, and of the modules beside it."""
    package = Path(__file__).parent
    beside = [package.joinpath(*name.split(".")) for name in AGENT_LEAVES]
    files = [each / "__init__.py" if each.is_dir() else each.with_suffix(".py") for each in beside]
    return [*files, *sorted((package / "agent").rglob("*.py"))]


@cache
def build_id() -> str:
    """Return a digest of the agent's code as first read here; it must be equal at both ends."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    for file in agent_files():
        digest.update(file.relative_to(package).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Encoded(list[Any]):
    """A list that is plain JSON data already."""

    text = ""
    """How it is written, if that is known."""


def encode(value: Any) -> Any:
    """Return plain JSON data for a dataclass, or for a list, tuple or dict of them."""
    # dataclasses.asdict took three times as long for a record, because it copies every number.
    if isinstance(value, (str, int, float, Encoded)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [item if type(item) in PLAIN else encode(item) for item in value]
    known = _fields(value.__class__)
    if known is not None:
        names, values = known
        parts = zip(names, values(value))
        return {k: part if type(part) in PLAIN else encode(part) for k, part in parts}
    if isinstance(value, dict):
        return {
            str(key): item if type(item) in PLAIN else encode(item) for key, item in value.items()
        }
    return value


PLAIN = frozenset({str, int, float, bool, type(None)})


# Asking a class for its fields took half of the time of a look with 700 sockets.
@cache
def _fields(kind: type) -> Optional[tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]:
    """Return the fields of a dataclass, and what reads them; None of another class."""
    if not is_dataclass(kind):
        return None
    names = tuple(item.name for item in fields(kind))
    if len(names) < 2:  # attrgetter returns a tuple of two or more
        return names, lambda value: tuple(getattr(value, name) for name in names)
    return names, attrgetter(*names)


def in_rows(look: MachineLook) -> MachineRows:
    """Return a look as an observer answers it."""
    values = attrgetter(*(item.name for item in fields(UdpSocket)))
    looks = [each.look for each in look.spaces if each.look is not None]
    rows: Any = Encoded([*map(values, each.sockets)] for each in looks)
    bare = [
        each if each.look is None else replace(each, look=replace(each.look, sockets=()))
        for each in look.spaces
    ]
    return MachineRows(replace(look, spaces=tuple(bare)), rows)


REPEATED = ("apply", "plan")
"""Verbs that take a list of dataclasses and return a list, each much like that of the request
before."""


class Repeated:
    """Encodes and decodes lists of which most items are as in the list before: a host's settings.

    What is as before is the very same object; of a thousand lists each took milliseconds.
    """

    def __init__(self) -> None:
        self._encoded: list[tuple[Any, Any, str]] = []
        self._decoded: list[tuple[str, Any]] = []

    def encode(self, items: Sequence[Any]) -> Encoded:
        """Return the plain JSON data of a list, as ``encode`` does."""
        nothing: tuple[Any, Any, str] = (None, None, "")
        known = zip_longest(items, self._encoded[: len(items)], fillvalue=nothing)
        self._encoded = [
            before if item is before[0] else (item, plain := encode(item), _text(plain))
            for item, before in known
        ]
        encoded = Encoded(plain for _, plain, _ in self._encoded)
        encoded.text = f"[{','.join(text for *_, text in self._encoded)}]"
        return encoded

    def decode(
        self, kind: Any, plain: Any, cleaned: Callable[[Any], Any] = lambda part: part
    ) -> Any:
        """Return plain JSON data, once it is cleaned, as a tuple, as ``decode`` does."""
        if not isinstance(plain, list):
            return decode(kind, cleaned(plain))
        item = get_args(kind)[0]
        known = zip_longest(plain, self._decoded[: len(plain)], fillvalue=("", None))
        # Equal data may be of other types: 1, 1.0 and true.
        self._decoded = [
            (text, value if text == before else decode(item, cleaned(part)))
            for part, (before, value) in known
            for text in (repr(part),)
        ]
        return tuple(value for _, value in self._decoded)


def decode(kind: Any, plain: Any) -> Any:
    """Return plain JSON data as an instance of ``kind``, a dataclass or a typing form of them.

    Raises ValueError naming the type and key if the data does not fit.
    """
    if kind in SCALARS:
        return _scalar(kind, plain)
    origin = get_origin(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, plain)
    if origin is Union:
        return _decode_union(kind, plain)
    if origin is Literal:
        if not any(plain == value and type(plain) is type(value) for value in get_args(kind)):
            raise ValueError(f"{_shown(plain)} is not one of {', '.join(map(str, get_args(kind)))}")
        return plain
    if origin in (tuple, list, Sequence):
        return (list if origin is list else tuple)(_decode_items(kind, plain))
    if origin is dict:
        if not isinstance(plain, dict):
            raise ValueError(f"expected an object, got {_shown(plain)}")
        item = get_args(kind)[1]
        if item is int and _in_range(plain.values()):
            return plain
        return {key: decode(item, part) for key, part in plain.items()}
    return plain


SCALARS: tuple[Any, ...] = (int, bool, str)


def _scalar(kind: Any, plain: Any) -> Any:
    if type(plain) is not kind:  # bool is a subclass of int
        raise ValueError(f"expected {kind.__name__}, got {_shown(plain)}")
    if kind is int and not INTEGERS[0] <= plain <= INTEGERS[1]:
        raise ValueError(f"{_shown(plain)} is beyond 64 bits")
    return plain


def _in_range(numbers: Collection[Any]) -> bool:
    """Return whether all are integers of 64 bits; one by one took a third of a reply's time."""
    integers = all(type(number) is int for number in numbers)
    return (
        integers
        and INTEGERS[0] <= min(numbers, default=0) <= max(numbers, default=0) <= INTEGERS[1]
    )


def _shown(plain: Any) -> str:
    return repr(plain)[:40] if isinstance(plain, (bool, int, str, float)) else type(plain).__name__


def _decode_items(kind: Any, plain: Any) -> Iterable[Any]:
    if not isinstance(plain, (list, tuple)):
        raise ValueError(f"expected a list, got {_shown(plain)}")
    items = get_args(kind)
    if get_origin(kind) is not tuple or items[1:] == (...,):
        if items[0] is int and _in_range(plain):
            return plain
        return (decode(items[0], part) for part in plain)
    if len(plain) != len(items):
        raise ValueError(f"expected {len(items)} items, got {len(plain)}")
    return (decode(item, part) for item, part in zip(items, plain))


# Evaluating annotations took 0.7 ms of the 1.2 ms that a sample's reply took to decode.
@cache
def _kinds(kind: type) -> dict[str, Any]:
    """Return field → type of a dataclass."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


# Asking a type for its parts took half of the time of a look with 700 sockets.
@cache
def _decoders(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Return field → what decodes it, of a dataclass."""
    return {name: _decoder(own) for name, own in _kinds(kind).items()}


def _decoder(kind: Any) -> Callable[[Any], Any]:
    if kind in SCALARS:
        return partial(_scalar, kind)
    options = [option for option in get_args(kind) if option is not type(None)]
    if get_origin(kind) is Union and len(options) == 1:
        own = _decoder(options[0])
        return lambda plain: None if plain is None else own(plain)
    return partial(decode, kind)


def _decode_dataclass(kind: type, plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise ValueError(f"{kind.__name__}: expected an object, got {type(plain).__name__}")
    decoders = _decoders(kind)
    unknown = sorted(plain.keys() - decoders.keys())
    if unknown:
        raise ValueError(f"{kind.__name__}: unknown key {unknown[0]!r}")
    values = {}
    for key, part in plain.items():
        try:
            if type(part) is not str:
                _refuse_endless(key, part)
            values[key] = decoders[key](part)
        except ValueError as error:
            raise ValueError(f"{kind.__name__}.{key}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _refuse_endless(key: str, part: Any) -> None:
    """Raise ValueError for what a record could not have in a field, either (``records``)."""
    low, high = LIMITS.get(key, INTEGERS)
    if isinstance(part, int) and not low <= part <= high:
        beyond = "beyond 64 bits" if key not in LIMITS else f"not within {low} to {high}"
        raise ValueError(f"{_shown(part)} is {beyond}")
    if not isinstance(part, (list, tuple, dict)):
        return
    most = LENGTHS.get(key, len(part))
    if len(part) > most:
        raise ValueError(f"{len(part)} entries, at most {most}")
    if key in NUMBERED and isinstance(part, dict):
        strange = next((name for name in part if not re.fullmatch(NUMBER, name)), None)
        if strange is not None:
            raise ValueError(f"the key {_shown(strange)} is not a number of at most 6 digits")
    for item in part.values() if isinstance(part, dict) else part:
        if key in LIMITS or (key in LENGTHS and isinstance(item, (list, tuple))):
            _refuse_endless(key, item)


def _decode_union(kind: Any, plain: Any) -> Any:
    *first, last = (option for option in get_args(kind) if option is not type(None))
    if plain is None and len(first) + 1 < len(get_args(kind)):
        return None
    for option in first:
        with suppress(ValueError):
            return decode(option, plain)
    return decode(last, plain)


RUN = 64
"""Items of a long list that are written at once: json keeps the text of each key and number until
its end, ten times as much as the line."""
NESTED = (dict, list)


def write_line(message: dict[str, Any]) -> bytes:
    """Return one message as a line, newline included."""
    line = bytearray()
    for piece in _pieces(message):
        line += piece.encode()
    return bytes(line) + b"\n"


def _pieces(plain: Any) -> Iterator[str]:
    """Yield the text of plain JSON data, that of long lists in runs."""
    if isinstance(plain, Encoded) and plain.text:
        yield plain.text
    elif not _has_long(plain):
        yield _text(plain)
    elif isinstance(plain, dict):
        for place, (key, part) in enumerate(plain.items()):
            yield f"{',' if place else '{'}{_text(key)}:"
            yield from _pieces(part)
        yield "}"
    elif len(plain) <= RUN:
        for place, part in enumerate(plain):
            yield "," if place else "["
            yield from _pieces(part)
        yield "]"
    else:
        for place in range(0, len(plain), RUN):
            yield "," if place else "["
            yield _text(plain[place : place + RUN])[1:-1]
        yield "]"


def _has_long(plain: Any) -> bool:
    """Return whether any list is long, or its text is known."""
    if isinstance(plain, Encoded) and plain.text:
        return True
    if isinstance(plain, list) and len(plain) > RUN:
        return True
    parts = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    for part in parts:
        if type(part) not in PLAIN and isinstance(part, NESTED) and _has_long(part):
            return True
    return False


def _text(plain: Any) -> str:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def read_line(line: bytes) -> dict[str, Any]:
    """Return the message of one line; ValueError if it is not a JSON object."""
    message = parse_json(line)
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message


Message = TypeVar("Message")


def read_message(kind: type[Message], line: Optional[bytes]) -> Message:
    """Return the message of one line; ValueError if it is none of that kind, or no whole line."""
    if line is None:
        raise ValueError(f"not a {kind.__name__}: longer than {MOST_LINE_BYTES} B")
    try:
        message: Message = decode(kind, parse_json(line))
    except ValueError as error:
        raise ValueError(f"not a {kind.__name__}: {error}: {line[:80]!r}") from error
    return message
