"""What a user declares of a measurement: traffic, sides, trials, searches, experiments.

Long, because each key of an experiment is declared here, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Optional, Union

from udpbench.frozen import dataclass
from udpbench.host_settings import Settings
from udpbench.metrics import unit_of
from udpbench.model.limits import (
    DAY_NS,
    HEADER_BYTES,
    HEADERS_BYTES,
    MAX_PAYLOAD_BYTES,
    MERGED_MESSAGES,
    RECEIVE_MESSAGES,
    SECOND_NS,
    SEND_MESSAGES,
    Part,
)
from udpbench.units import Bytes, Count, Named, Nanoseconds, Rate, show_range


@dataclass(frozen=True)
class Flows:
    """The 4-tuples of the traffic: every combination of source port, address and port."""

    source_ports: str = "65400"
    to: str = "receiver.addresses[1]:4321"
    queues: Union[Literal["any"], Annotated[int, Count(1, 1024)]] = "any"
    spread: Literal["split", "each"] = "split"
    published: Optional[Annotated[str, Named("published")]] = None
    """An address and ports of a node in the middle, whose rules lead from there to ``to``."""


@dataclass(frozen=True)
class Answers:
    """What a program of the user's sends back, as the sender awaits it."""

    id_at: Optional[int] = None
    """Where in each payload, and in its answer, an id of 16 bits stands; None: they are counted."""
    timeout_ns: int = SECOND_NS
    """How long the last answers are awaited once all datagrams were read, and after which an id is
    used again."""


@dataclass(frozen=True)
class Datagrams:
    """What each flow sends in turn, and then again from the first: UDP payloads, as few as can be.

    Whoever needs a size asks for the one that matters: there may be several.
    """

    sizes_bytes: tuple[int, ...]
    contents: tuple[str, ...] = ()
    """Each in hexadecimal, if the user supplies them; else they are ours, with a header."""

    @property
    def longest_bytes(self) -> int:
        """The longest: for buffers, MTU and messages."""
        return max(self.sizes_bytes)

    @property
    def shortest_bytes(self) -> int:
        """The shortest: for what each must have room for."""
        return min(self.sizes_bytes)

    @property
    def mean_bytes(self) -> Fraction:
        """The mean: for rates in bits."""
        return Fraction(sum(self.sizes_bytes), len(self.sizes_bytes))

    @property
    def each_bytes(self) -> Optional[int]:
        """The size of every one; None if they differ."""
        return self.longest_bytes if self.longest_bytes == self.shortest_bytes else None

    @property
    def have_headers(self) -> bool:
        """Whether each has our header, by which packets of a flow are told apart."""
        return not self.contents and self.shortest_bytes >= HEADER_BYTES


@dataclass(frozen=True)
class Traffic:
    """What is sent on the wire."""

    protocol: Literal["udp", "tcp"] = "udp"
    family: Literal[4, 6] = 4
    size_bytes: Annotated[int, Bytes(0, MAX_PAYLOAD_BYTES)] = 32
    flows: Flows = field(default_factory=Flows)
    rate: Optional[Rate] = None
    """Intended load over all workers of all senders; None is ``unlimited``."""
    count_packets: Optional[Annotated[int, Count(1, 2**48 - 1)]] = None
    ttl: Optional[Annotated[int, Count(1, 255)]] = None
    """None: as many hops as the lab's path has, and no more."""
    fragment: bool = False
    echo: Optional[Annotated[int, Count(1, 2**31)]] = None
    answers: Optional[Annotated[Answers, Named("answers")]] = None
    """Each datagram is to have an answer, and counts as lost without one."""
    payload: Optional[Annotated[tuple[str, ...], Named("payload")]] = None
    """Datagrams in hexadecimal, which each flow sends in turn, in place of ours with a header."""

    @property
    def is_burst(self) -> bool:
        """Whether packets are sent as fast as possible until there are enough of them."""
        return self.count_packets is not None and self.rate is None

    @property
    def hops(self) -> int:
        """The TTL or hop limit with which packets are sent; unless bound to a lab, 1."""
        return 1 if self.ttl is None else self.ttl

    @cached_property
    def datagrams(self) -> Datagrams:
        """What each flow sends; of several sizes ``size_bytes`` is the largest."""
        if not self.payload:
            return Datagrams((self.size_bytes,))
        return Datagrams(tuple(len(text) // 2 for text in self.payload), self.payload)

    @property
    def longest_packet_bytes(self) -> int:
        """The MTU that the longest datagram needs."""
        return HEADERS_BYTES[self.family] + self.datagrams.longest_bytes

    @property
    def intended_pps(self) -> Optional[int]:
        """The rate in packets; None: unlimited. ValueError: in bits, of datagrams without any."""
        return None if self.rate is None else self.rate.pps(self.datagrams.mean_bytes)


@dataclass(frozen=True)
class Send:
    """How the sending workers send."""

    workers: Annotated[int, Count(1, 1024)] = 1
    workers_as: Literal["threads", "processes"] = "threads"
    cpus: str = "lab"
    call: Literal["send", "sendmmsg", "af_xdp", "io_uring"] = "sendmmsg"
    batch: Union[Literal["auto"], Annotated[int, Count(1, SEND_MESSAGES)]] = "auto"
    gso: Union[Literal["off", "max"], Annotated[int, Count(1, 128)]] = "off"
    tail_bytes: Optional[Annotated[int, Bytes(1, MAX_PAYLOAD_BYTES)]] = None
    zerocopy: bool = False
    pace: Literal["spin", "sleep"] = "spin"
    bucket_ns: Annotated[int, Nanoseconds(1, 10 * SECOND_NS)] = 10 * 10**6
    buffer_bytes: Optional[Annotated[int, Bytes(1, 2**30)]] = None
    force_buffer: bool = True
    priority: str = "normal"

    @property
    def messages(self) -> int:
        """Maximum messages per call; ``auto`` offers as many datagrams with GSO as without."""
        if self.batch != "auto":
            return self.batch
        return max(SEND_MESSAGES // self.gso, 1) if isinstance(self.gso, int) else SEND_MESSAGES


@dataclass(frozen=True)
class Fault:
    """A receiving worker that stops serving its socket on purpose."""

    worker: Annotated[int, Count(1, 1024)]
    after_ns: Annotated[int, Nanoseconds(0, DAY_NS)]
    does: Literal["hang", "exit"]


@dataclass(frozen=True)
class Log:
    """The files to which a receiver writes every datagram."""

    path: str
    max_file_bytes: Annotated[int, Bytes(2**20, 2**40)] = 512 * 2**20
    keep: Annotated[int, Count(1, 10**6)] = 2


@dataclass(frozen=True)
class Attach:
    """A process that runs already, named in one of three ways."""

    port: Optional[Annotated[int, Count(1, 65535)]] = None
    pid: Optional[Annotated[int, Count(1, 2**22)]] = None
    unit: Optional[str] = None
    """A unit of systemd."""


ReadName = Literal["none", "copy", "header", "verify"]


@dataclass(frozen=True)
class Receive:
    """How the receiving workers receive; ``workers: 0`` leaves the port closed."""

    workers: Annotated[int, Count(0, 1024)] = 1
    workers_as: Literal["threads", "processes"] = "threads"
    cpus: str = "lab"
    call: Literal["recv", "recvmmsg", "io_uring", "af_xdp"] = "recvmmsg"
    batch: Union[Literal["auto"], Annotated[int, Count(1, 1024)]] = "auto"
    gro: bool = False
    wait: str = "block"
    sockets: Literal["shared", "reuseport", "reuseport-cpu", "reuseport-ebpf", "incoming-cpu"] = (
        "shared"
    )
    steering: Optional[str] = None
    """For ``reuseport-ebpf``: the pinned program of the user's that chooses among the sockets."""
    read: ReadName = "header"
    buffer_bytes: Optional[Annotated[int, Bytes(1, 2**30)]] = 4 * 2**20
    force_buffer: bool = True
    room: Union[Literal["auto"], Annotated[int, Bytes(1, 65536)]] = "auto"
    """Bytes offered per datagram; a longer datagram is truncated, and counted as such."""
    work_ns: Annotated[int, Nanoseconds(0, SECOND_NS)] = 0
    """CPU time spent on each datagram: a slow reader."""
    priority: str = "normal"
    io_priority: str = "normal"
    timestamps: bool = False
    """SO_TIMESTAMPNS: the kernel's arrival times split the delay into stack and application."""
    fault: Optional[Fault] = None
    log: Optional[Log] = None
    command: Optional[Annotated[tuple[str, ...], Named("command")]] = None
    """A program that receives in place of our loops, which the keys above describe."""
    ready: Optional[str] = None
    """Part of the line by which the program says that it serves; None: bound is enough."""
    user: Optional[str] = None
    """Who runs the program; None: whoever called, of root and of sudo over SSH ``nobody``."""
    folder: Optional[str] = None
    """In which the program starts; where its user cannot enter one on the host, in its home."""
    attach: Optional[Attach] = None
    """A process that receives in place of our loops, and runs before and after the trial."""

    @property
    def messages(self) -> int:
        """Maximum messages per call."""
        if self.batch != "auto":
            return self.batch
        return MERGED_MESSAGES if self.gro else RECEIVE_MESSAGES


@dataclass(frozen=True)
class HostNeeds:
    """What one host must offer; otherwise the trial is skipped, with the reason."""

    cpus: Optional[Annotated[int, Count(1, 4096)]] = None
    rx_queues: Optional[Annotated[int, Count(1, 4096)]] = None
    nodes: Optional[Annotated[int, Count(1, 1024)]] = None
    smt: Optional[bool] = None
    rings: Optional[bool] = None
    driver: Optional[str] = None
    """The driver of the interface under test, as ``ethtool -i`` names it."""
    kernel: Optional[str] = None
    """``6.1+``: this version or a later one."""


@dataclass(frozen=True)
class Needs:
    """Preconditions of a trial."""

    lab: Optional[bool] = None
    sender: HostNeeds = field(default_factory=HostNeeds)
    receiver: HostNeeds = field(default_factory=HostNeeds)


@dataclass(frozen=True)
class Side:
    """One side of an expectation: ``factor * metric[point]``; a bare number if ``metric`` is None.

    A bare number is in the metric's base unit (pps, packets, ns, a ratio).
    """

    factor: float
    metric: Optional[str] = None
    point: Optional[str] = None


@dataclass(frozen=True)
class Expectation:
    """``left op right``, and its text as written."""

    text: str
    left: Side
    op: Literal["<", "<=", "==", "!=", ">=", ">"]
    right: Side

    def by_blocks(self, point: str) -> Optional[tuple[Side, Side]]:
        """Return both sides with the points they mean at ``point`` if blocks are compared there.

        None for one point, for a bare number, and for counts, which must hold in every trial.
        """
        sides = [replace(s, point=point) if s.point is None else s for s in (self.left, self.right)]
        metrics = [side.metric for side in sides]
        if None in metrics or sides[0].point == sides[1].point:
            return None
        counted = all(unit_of(metric or "") == "packets" for metric in metrics)
        return None if counted else (sides[0], sides[1])


AUTO_WARMUP_NS = SECOND_NS
"""The longest that ``warmup: auto`` takes."""
OVERHEAD_NS = 1_500_000_000
"""What a trial costs beyond its phases, at most, in the built-in lab (benchmarks/overhead.py)."""
CARDS_NS = 3 * 2 * SECOND_NS
"""And more on real hosts, at most: what cards count is waited for after each of three phases."""
LOOKS = (7, 11, 15)
"""Blocks after which ``blocks: 7-15`` looks at its comparisons; ``effect`` has their levels."""
FEWEST_BLOCKS = 6
"""Below it no set of blocks reaches 5 %: 2 / 2⁵ is 6.25 %."""
MOST_BLOCKS = 200
"""Beyond it an exact test takes long, and a trial that is longer says more."""


@dataclass(frozen=True)
class CompareSpec:
    """One comparison as written: ``a`` is the base; either may leave keys of a sweep open."""

    a: Annotated[str, Named("point")]
    b: Annotated[str, Named("point")]
    metric: Annotated[str, Named("metric")] = "delivered_pps"
    margin: Optional[Annotated[float, Named("margin")]] = None
    """None: the metric's own (``metrics.margin_of``)."""
    blocks: Annotated[tuple[int, ...], Named("blocks")] = LOOKS


@dataclass(frozen=True)
class PointPair:
    """Two points that an experiment compares block by block; ``a`` is the base."""

    a: str
    b: str
    metric: str
    margin: float
    """A ratio; for loss and drops a share of the packets sent."""
    blocks: tuple[int, ...] = LOOKS
    """After how many blocks it is decided; the same in all pairs of an experiment."""


SENDER_LOAD: Literal["sender"] = "sender"
"""``search.rate.to``: as much as each point's own sender offers by itself."""


@dataclass(frozen=True)
class SearchRange:
    """The loads between which a search looks."""

    least_load: Rate = field(default_factory=lambda: Rate(1000))
    most_load: Union[Literal["sender"], Rate] = SENDER_LOAD

    def span_pps(self, datagrams: Datagrams) -> tuple[int, Optional[float]]:
        """Return the lowest and the highest load of datagrams; None: the sender's own."""
        mean_bytes, most = datagrams.mean_bytes, self.most_load
        least_pps = self.least_load.pps(mean_bytes)
        return least_pps, None if isinstance(most, str) else float(most.pps(mean_bytes))


@dataclass(frozen=True)
class Search:
    """The search for the highest rate at which no more than a share of the packets is lost."""

    loss: Annotated[tuple[float, ...], Named("loss_goals")] = (0.0, 0.001)
    rate: SearchRange = field(default_factory=SearchRange)
    precision: Annotated[float, Named("margin")] = 0.01
    """Between lower and upper bound, at most, as a share of the upper one."""
    trial_ns: Annotated[int, Nanoseconds(10**8, 3600 * SECOND_NS)] = SECOND_NS
    time_ns: Annotated[int, Nanoseconds(10**8, DAY_NS)] = 11 * SECOND_NS
    """Time of trials at one load, before it is taken for a bound."""
    exceed: Annotated[float, Named("share")] = 0.5
    """Share of that time which may lose more, at a lower bound."""
    within_ns: Annotated[int, Nanoseconds(SECOND_NS, DAY_NS)] = 600 * SECOND_NS
    """A search that takes longer ends with the bounds that it knows."""
    confirm_ns: Optional[Annotated[int, Nanoseconds(10**8, DAY_NS)]] = None

    @property
    def goals(self) -> tuple[float, ...]:
        """Return the goals in order; the last is the headline."""
        return tuple(sorted(self.loss))


@dataclass(frozen=True)
class Trial:
    """One repetition of one point of an experiment, still symbolic: not yet bound to hosts."""

    experiment: str
    question: str
    point: str
    """``variant,key=value``; empty if the experiment is a single point."""
    variant: Optional[str]
    values: dict[str, Any]
    """Swept dotted path → its scalar as in the YAML."""
    repetition: int
    traffic: Traffic
    send: Send
    receive: Receive
    settings: dict[Part, Settings]
    """By role, if it has any; ``bind`` turns them into a list of ``Setting``."""
    needs: Needs
    duration_ns: int
    warmup_ns: int
    path_check: Literal["arrive", "explained"] = "arrive"
    explain: bool = False
    cpu_time: bool = False
    losses: dict[str, int] = field(default_factory=dict)
    source: Optional[str] = None
    expects_unsent: bool = False
    """An expectation names ``unsent``, so a sender that falls short does not invalidate a trial."""
    search: Optional[Search] = None
    search_trial: int = 0
    """Number of this trial in its search, from 1; 0 for the point as a whole."""
    fresh: bool = False
    """No worker serves more than one trial."""
    warmup_auto: bool = False
    """The warm-up ends once rates and CPU clocks are steady; ``warmup_ns`` is the longest."""
    served: bool = False
    """An iperf3 client sends; only what it says is known."""

    @property
    def name(self) -> str:
        """``experiment::point#repetition``, as listed and logged; of a search ``…#1.12``."""
        point = f"::{self.point}" if self.point else ""
        number = f".{self.search_trial}" if self.search_trial else ""
        return f"{self.experiment}{point}#{self.repetition}{number}"

    @property
    def search_key(self) -> Optional[tuple[str, str, int]]:
        """Experiment, point and repetition, which trials of one search share; None without one."""
        return (self.experiment, self.point, self.repetition) if self.search is not None else None

    @property
    def watched(self) -> bool:
        """Whether nothing was sent, and live hosts were looked at instead."""
        return self.send.workers == 0


def trial_ns(trial: Trial, built_in: bool = True) -> int:
    """Return how long one trial takes at most; one with a count usually ends earlier.

    Of a point that is searched, how long its search may take; its last trial may begin just before
    its time is up.
    """
    if trial.search is not None and not trial.search_trial:
        last_ns = max(trial.search.confirm_ns or 0, trial.search.trial_ns)
        return trial.search.within_ns + last_ns + trial.warmup_ns + OVERHEAD_NS
    overhead_ns = OVERHEAD_NS if built_in else OVERHEAD_NS + CARDS_NS
    return trial.duration_ns + trial.warmup_ns + overhead_ns


@dataclass(frozen=True)
class Tune:
    """What ``udpbench tune`` is asked: which number of which point should be better, and how."""

    point: str
    """A point of the experiment; its trials are those of the point ``base``."""
    metric: str
    within_ns: int
    """Time of all trials together; what is measured last to prove the result comes on top."""
    only: tuple[str, ...] = ()
    """Scopes of the steps that may be taken; empty: all."""
    never: tuple[str, ...] = ()
    """Keys, or parts of their paths, that no step may touch."""


@dataclass(frozen=True)
class Experiment:
    """One question and the trials that answer it."""

    name: str
    path: str
    text: str
    """The YAML as read, stored so that a run can be repeated from its record alone."""
    question: str
    source: Optional[str]
    points: tuple[Trial, ...]
    """One trial per point, repetition 1, distinguished by ``Trial.point``."""
    repetitions: int
    expect: tuple[Expectation, ...]
    compare: tuple[PointPair, ...] = ()
    tune: Optional[Tune] = None
    """Its one point is to be made better; which points follow depends on what is measured."""

    @property
    def searched(self) -> bool:
        """Return whether points are searched for their highest rate; a repetition is a search."""
        return any(trial.search is not None for trial in self.points)

    @property
    def headline(self) -> str:
        """Return the metric that answers it, unless a comparison names another."""
        return "throughput_pps" if self.searched else "delivered_pps"

    @property
    def looks(self) -> tuple[int, ...]:
        """Return after how many blocks its comparisons are decided; empty if it has none."""
        return self.compare[0].blocks if self.compare else ()

    @cached_property
    def compared(self) -> frozenset[str]:
        """Return the points that are compared, which have blocks in place of repetitions."""
        return frozenset(point for pair in self.compare for point in (pair.a, pair.b))

    def trials_of(self, point: str) -> tuple[int, int]:
        """Return how many trials a point has at least and at most, all of them valid."""
        looks = self.looks if point in self.compared else (self.repetitions,)
        return looks[0], looks[-1]


def trial_count(experiments: Iterable[Experiment]) -> tuple[int, int]:
    """Return how many trials there are at least and at most, all of them valid."""
    counts = [e.trials_of(trial.point) for e in experiments for trial in e.points]
    return sum(fewest for fewest, _ in counts), sum(most for _, most in counts)


def planned_text(experiments: Iterable[Experiment], extra_blocks: int = 0) -> str:
    """Return what is to run: ``14–30 trials``, ``7 trials and 1 search``; a search takes many.

    At most ``extra_blocks`` are added to those of compared points.
    """
    texts, every = [], list(experiments)
    for searched, noun, several in ((False, "trial", "trials"), (True, "search", "searches")):
        mine = [each for each in every if each.searched is searched]
        fewest, most = trial_count(mine)
        compared = sum(trial.point in each.compared for each in mine for trial in each.points)
        most += extra_blocks * compared
        if most:
            texts.append(f"{show_range(fewest, most)} {noun if most == 1 else several}")
    return " and ".join(texts)
