"""The vocabulary: frozen data that every room uses, and no behaviour.

Field names are the field's terms (RFC 2285, RFC 2544, RFC 1242, kernel names) and carry their unit.
A YAML key is the field's name without its unit suffix (``size_bytes`` is written ``size: 32B``);
type, default and range of a key are declared once, here or in ``host_settings``, and the
definition reads them from there.
Python 3.9: annotations are evaluated by pydantic on the controller, so they say ``Optional``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Optional, Union

from udpbench.errors import rest_of_message
from udpbench.host_settings import Settings
from udpbench.metrics import METRICS, unit_of
from udpbench.units import Bytes, Count, Named, Nanoseconds, Rate, show_percent, show_range

RECORD_SCHEMA = 2
"""Of stored runs; ``records`` has its history and reads older ones."""

HEADER_BYTES = 18
"""Bytes of the header: tag u32, flow u16, sequence u48, send time u48 (native/udpbench.h)."""

MAX_PAYLOAD_BYTES = 65507
"""Largest UDP payload over IPv4: 65535 − 20 (IP header) − 8 (UDP header)."""
UDP_HEADER_BYTES = 8
HEADERS_BYTES = {4: 20 + UDP_HEADER_BYTES, 6: 40 + UDP_HEADER_BYTES}
"""IP version → bytes of its header and UDP's, without options and extension headers."""
ETHERNET_BYTES = 14
FRAME_HEADERS_BYTES = {version: ETHERNET_BYTES + own for version, own in HEADERS_BYTES.items()}

IDS = 65536
"""Of a flow's datagrams, by which answers are told apart: 16 bits (native/udpbench.h)."""
ID_BYTES = 2
ID_FLOWS_MAX = 256
"""Flows with ids: each takes half a megabyte of the sender's memory."""

SEND_MESSAGES = 1024
"""UIO_MAXIOV, the most that sendmmsg(2) accepts."""
RECEIVE_MESSAGES = 512
MERGED_MESSAGES = 16
"""With GRO each has room for 64 KiB; 16 of them fit into a second-level cache."""

QUEUES_EVEN_WITHIN = 0.02
"""Relative deviation from an even share allowed to each queue of ``traffic.flows.queues``."""

GSO_SEGMENTS = "udp.gso_segments"
"""Key of ``Facts.limits``: datagrams in one GSO message, 64, or 128 since Linux 6.9."""

KERNEL_BUILD = "kernel_build"
"""Key of ``Facts.environment``: version and instruction set of the kernel, as of uname(2)."""
NOTHING_ATTACHED = "none"
"""Value of ``xdp`` and ``tcx`` there without a program; then none dropped."""
SOCKET_MEMORY = "socket_memory"
"""Key there: what memory a cgroup allows sockets, ``65536 bytes of cgroup /x``, where any does."""
FIREWALL_RULES = "firewall_rules"
"""How many a host has after a trial, beside its environment, as text."""
GENERIC_XDP = "generic"
"""In the value of ``xdp`` of a program in the stack, whose drops the driver does not count."""

Role = Literal["sender", "receiver"]
"""What a worker does."""
Part = Literal["sender", "link", "receiver"]
"""Of the path of the packets: its ends are the hosts with workers of that name."""
Scope = Literal["namespace", "machine"]
PhaseName = Literal["path", "warmup", "measured"]
Edge = Literal["begin", "end"]
LEDGER_STAGES = (
    "unsent",
    "tx_policy",
    "tx_netfilter",
    "tx_ipsec",
    "tx_qdisc",
    "tx_device",
    "link",
    "rx_ring",
    "rx_xdp",
    "xsk_ring",
    "xsk_fill",
    "rx_backlog",
    "rx_tc",
    "rx_ip",
    "rx_netfilter",
    "udp_checksum",
    "udp_no_port",
    "rx_policy",
    "udp_filter",
    "udp_rcvbuf",
    "udp_memory",
    "udp_purged",
    "app_truncated",
    "app_log",
    "app_unanswered",
    "answer_lost",
)
"""Stages at which a packet can end, in the order it passes them (docs/ledger.md)."""
DRIVER_STAGES = ("tx_device", "rx_ring", "rx_xdp")
"""Those that a card's driver counts; the kernel's own code counts the others."""
SECOND_NS = 10**9
DAY_NS = 86400 * SECOND_NS
CPUS_MAX = 8192
"""Of one machine: the most of any architecture (NR_CPUS in arch/*/Kconfig)."""
LIMITS = {
    "duration_ns": (0, DAY_NS),
    "warmup_ns": (0, DAY_NS),
    "repetitions": (1, 10_000),
    "rx_queues": (0, 65_536),
    "tx_queues": (0, 65_536),
    "workers": (0, 1024),
    "first_ms": (0, 2 * DAY_NS // 10**6),
    "blocks": (1, 200),
    **dict.fromkeys(("cpu", "cpus", "cpus_seen"), (0, CPUS_MAX - 1)),
    **dict.fromkeys(("numa_nodes", "siblings", "cache_siblings", "queue_cpus"), (0, CPUS_MAX - 1)),
}
"""Field of a record or a reply → least and most of its number, or of each in it; values beyond
would mean endless work."""
SWEPT_MAX = 256
"""Of the values of a point, and of the swept keys in one frame, where each is a column."""
TRIALS_MAX = 100_000
"""Of a run: they take two days, and their records, of 9 kB at least, are all that is read of one
(``json_lines.MOST_BYTES``)."""
ANSWERS_MAX = 2**15
"""Of an experiment: expectations and comparisons times points; half a million took 150 s and
428 MB."""
PAIRS_MAX = 2**12
"""Of points that an experiment compares; 32,000 took 75 s and 5 kB each."""
EXPECT_MAX = 256
"""Expectations of an experiment, each of which asks each of its trials: so many take 10 ms of a
trial, as long as judging it."""
COUNTERS_MAX = 2**17
"""Of one host at one time; 64 queues with interrupts on each of 1024 CPUs are half of it."""
THREADS_MAX = 64
"""Of one worker, or of one process that is watched, those that ran most."""
SEEN_MAX = 32
"""Of states and system calls in which a thread was seen."""
STRANGERS_MAX = 16
"""Sockets of others at the traffic's ports that are listed of one host at one time."""
ADDRESSES_MAX = 2**12
"""Of one host, and of each list."""
LENGTHS = {
    "values": SWEPT_MAX,
    "counters": COUNTERS_MAX,
    "threads": THREADS_MAX,
    **dict.fromkeys(("looks", "calls"), SEEN_MAX),
    **dict.fromkeys(("cpus", "cpus_seen", "by_cpu_ns"), CPUS_MAX),
    **dict.fromkeys(("numa_nodes", "siblings", "cache_siblings"), CPUS_MAX),
    **dict.fromkeys(("queue_cpus", "queue_irqs", "tx_queue_irqs", "processes", "stats"), 2**16),
    **dict.fromkeys(("addresses", "other_addresses", "listed"), ADDRESSES_MAX),
    "strangers": STRANGERS_MAX,
    "expect": EXPECT_MAX,
    "compare": PAIRS_MAX,
}
"""Field of a record or a reply → most entries of it, and of each list in it."""
NUMBERED = (
    *("numa_nodes", "siblings", "cache_siblings", "by_cpu_ns"),
    *("queue_cpus", "queue_irqs", "tx_queue_irqs"),
)
"""Fields whose keys are numbers as text: of a CPU, a NUMA node or a queue."""
NUMBER = "[0-9]{1,6}"
"""Such a number, also in the name of a counter."""
INTEGERS = (-(2**63), 2**64 - 1)
"""Least and most of every other number; no counter or clock exceeds it."""
SAMPLE_NS = SECOND_NS // 10
"""Between two samples of a worker, unless that would exceed ``SAMPLES_MAX``."""
SAMPLES_MAX = 3600
"""Per worker and phase; in two hours that is a sample every two seconds."""
RAW_NS = 60 * SECOND_NS
"""The longest phase with packets for every millisecond: 60,000 numbers per worker."""


SYSCTLS = (
    "kernel.nmi_watchdog",
    "kernel.numa_balancing",
    "kernel.sched_autogroup_enabled",
    "kernel.sched_cfs_bandwidth_slice_us",
    "kernel.sched_energy_aware",
    "kernel.sched_latency_ns",
    "kernel.sched_migration_cost_ns",
    "kernel.sched_min_granularity_ns",
    "kernel.sched_nr_migrate",
    "kernel.sched_rt_period_us",
    "kernel.sched_rt_runtime_us",
    "kernel.sched_schedstats",
    "kernel.sched_wakeup_granularity_ns",
    "kernel.soft_watchdog",
    "kernel.timer_migration",
    "kernel.watchdog_thresh",
    "vm.compaction_proactiveness",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_expire_centisecs",
    "vm.dirty_ratio",
    "vm.dirty_writeback_centisecs",
    "vm.stat_interval",
    "vm.swappiness",
    "vm.watermark_scale_factor",
    "vm.zone_reclaim_mode",
)
"""What may be set besides net.*: scheduler, timers, and memory used by packets and logs.
Some of the others name a program that root then runs (kernel.core_pattern, kernel.modprobe)."""


def sysctl_refusal(name: str) -> Optional[str]:
    """Return which sysctls may be set if ``name``, with dots or slashes, may not; else None."""
    dotted = name.replace("/", ".")
    allowed = dotted.startswith("net.") or dotted in SYSCTLS
    return None if allowed else f"net.* and {', '.join(SYSCTLS)}"


def sampling_ns(duration_ns: int) -> int:
    """Return the time between two samples of a worker in a phase of at most ``duration_ns``."""
    return SAMPLE_NS * max(1, -(-duration_ns // (SAMPLES_MAX * SAMPLE_NS)))


# --- what a user declares ------------------------------------------------------------------------


@dataclass(frozen=True)
class Flows:
    """The 4-tuples of the traffic: every combination of source port, address and port."""

    source_ports: str = "65400"
    to: str = "receiver.addresses[1]:4321"
    queues: Union[Literal["any"], Annotated[int, Count(1, 1024)]] = "any"
    spread: Literal["split", "each"] = "split"


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
    ttl: Annotated[int, Count(1, 255)] = 1
    fragment: bool = False
    echo: Optional[Annotated[int, Count(1, 2**31)]] = None
    answers: Optional[Annotated[Answers, Named("answers")]] = None
    """Each datagram is to have an answer, and counts as lost without one."""
    payload: Optional[Annotated[tuple[str, ...], Named("payload")]] = None
    """Datagrams in hexadecimal, which each flow sends in turn, in place of ours with a header."""

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
    """Of systemd."""


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
    """Of ``reuseport-ebpf``: the pinned program of the user's that chooses among the sockets."""
    read: Literal["none", "copy", "header", "verify"] = "header"
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
    """Of the interface under test, as ``ethtool -i`` names it."""
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
    """Of trials at one load, before it is taken for a bound."""
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
    losses: dict[str, int] = field(default_factory=dict)
    source: Optional[str] = None
    expects_unsent: bool = False
    """An expectation names ``unsent``, so a sender that falls short does not invalidate a trial."""
    search: Optional[Search] = None
    search_trial: int = 0
    """Number of this trial in its search, from 1; 0 for the point as a whole."""

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
    """Of the experiment; its trials are those of the point ``base``."""
    metric: str
    within_ns: int
    """Of all trials together; what is measured last to prove the result comes on top."""
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


SSH_SPEC = re.compile(
    r"(?:ssh://)?(?:(?P<user>(?!-)[A-Za-z0-9._-]+)@)?"
    r"(?:\[(?P<bracketed>[A-Za-z0-9._%:][A-Za-z0-9._%:-]*)\]|(?P<name>(?!-)[A-Za-z0-9._%-]+"
    r"|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:]*))(?::(?P<port>[0-9]{1,5}))?/?\Z"
)
"""``[user@]host[:port]``. A ProxyCommand and ``Match exec`` pass user and host to a shell, so its
characters are refused, as in OpenSSH since CVE-2023-51385."""
SSH_CHARACTERS = (
    "letters, digits and . _ - in user and host, % and : in a host, no - in front; any other user "
    "as User of an alias in ~/.ssh/config"
)


@dataclass(frozen=True)
class Connect:
    """How a host is reached."""

    by: Literal["namespace", "local", "ssh"]
    ssh: Optional[str] = None
    become: Optional[Literal["sudo"]] = None
    python: Optional[str] = None


@dataclass(frozen=True)
class Node:
    """One node of a lab: a host, or what udpbench makes between hosts; each has its own agent."""

    name: str
    """Of its agent, and of its counters in records."""
    part: Part
    connect: Connect
    interface: str
    addresses: tuple[str, ...] = ()
    """``192.168.254.1/24`` each, ranges expanded; empty with ``existing``."""
    existing: bool = False
    cpus: Optional[tuple[int, ...]] = None
    settings: Settings = field(default_factory=Settings)

    @property
    def sends(self) -> bool:
        """Whether the path begins here."""
        return self.part == "sender"

    @property
    def receives(self) -> bool:
        """Whether it ends here."""
        return self.part == "receiver"


@dataclass(frozen=True)
class Reserve:
    """How a site lends a lab: it is ours from the command's first line until the command ends."""

    command: Annotated[tuple[str, ...], Named("command")]
    within_ns: Optional[Annotated[int, Nanoseconds(SECOND_NS, 7 * DAY_NS)]] = None
    """The longest wait for that line; None: as long as it takes."""


BRIDGE = Node("bridge", "link", Connect("namespace"), "bridge0")
"""The node with a port for each namespace of a built-in lab that has more than two."""
BETWEEN: dict[str, Part] = {BRIDGE.name: BRIDGE.part}


@dataclass(frozen=True)
class Lab:
    """Where an experiment runs: the nodes that packets pass."""

    name: str
    path: str
    text: str
    hosts: tuple[Node, ...]
    """Of the file, in the order of the path: senders first."""
    settings: dict[Part, Settings] = field(default_factory=dict)
    reserve: Optional[Reserve] = None

    def at(self, part: Part) -> tuple[Node, ...]:
        """Return the hosts of one part of the path."""
        return tuple(host for host in self.hosts if host.part == part)

    @property
    def senders(self) -> tuple[Node, ...]:
        """The hosts at which the path begins."""
        return self.at("sender")

    @property
    def receivers(self) -> tuple[Node, ...]:
        """The hosts at which it ends."""
        return self.at("receiver")

    @property
    def ends(self) -> tuple[Node, ...]:
        """The hosts with workers, senders first."""
        return self.senders + self.receivers

    @property
    def built_in(self) -> bool:
        """True if the hosts are namespaces of this machine; every result says so."""
        return all(host.connect.by == "namespace" for host in self.hosts)

    @property
    def joint(self) -> Optional[Node]:
        """The node that makes a pair to each namespace; None: the receiver makes the only one."""
        return BRIDGE if self.built_in and len(self.hosts) > 2 else None

    @property
    def between(self) -> tuple[Node, ...]:
        """The nodes between the ends."""
        return (self.joint,) if self.joint is not None else ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The whole path."""
        return (*self.senders, *self.between, *self.receivers)


# --- what a host is, and what is changed on it ---------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """Facts about one host at one moment; an unknown fact is None or empty, never a guess."""

    host: str
    hostname: str
    kernel: str
    boot_id: str
    python: str
    cpus: tuple[int, ...]
    """CPUs the agent may run on (online and in its affinity)."""
    cpu_model: Optional[str]
    numa_nodes: dict[str, tuple[int, ...]]
    siblings: dict[str, tuple[int, ...]]
    """CPU number as text → the CPUs of its core, itself included."""
    interface: str
    driver: Optional[str]
    mac: Optional[str]
    mtu: Optional[int]
    addresses: tuple[str, ...]
    rx_queues: Optional[int]
    tx_queues: Optional[int]
    queue_cpus: dict[str, tuple[int, ...]]
    """RX queue as text → the CPUs that serve it, if known (NAPI thread, RPS, IRQ affinity)."""
    limits: dict[str, int]
    """``net.core.rmem_max`` and the like, if readable; GSO_SEGMENTS once there is an address."""
    capabilities: dict[str, bool]
    """What the agent may do, each tried rather than guessed: net_admin, rcvbuf_force ..."""
    environment: dict[str, str] = field(default_factory=dict)
    """What must not change during a trial: mitigations, governor, offloads ..."""
    interface_node: Optional[int] = None
    """NUMA node of the interface's device."""
    queue_irqs: dict[str, int] = field(default_factory=dict)
    """RX queue as text → number of its interrupt, if known."""
    tx_queue_irqs: dict[str, int] = field(default_factory=dict)
    """The same of TX queues; the same interrupt where one serves both."""
    rings: dict[str, int] = field(default_factory=dict)
    """Descriptors per ring by ethtool's names: rx, tx, and the largest possible rx-max, tx-max."""
    cache_siblings: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """CPU number as text → the CPUs that share its last level of cache, itself included."""
    link: Optional[Literal["up", "no carrier", "down"]] = None
    """Whether the interface is up and has a carrier."""
    firewall_rules: Optional[int] = None
    """Rules of nf_tables in the network namespace, iptables' among them if it is made on those."""
    xdp_features: Optional[tuple[str, ...]] = None
    """What the interface's driver does for XDP natively, in the kernel's words; empty: nothing.

    None before Linux 6.3, which does not say (netdev-genl).
    """

    @property
    def destinations(self) -> frozenset[str]:
        """To what packets may be sent that are to come to its interface: addresses, no prefix."""
        return frozenset(address.partition("/")[0] for address in self.addresses)


@dataclass(frozen=True)
class Inspection:
    """What a host is besides its facts, read on request alone; None: it cannot be read."""

    clock_ns: int
    """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment."""
    wall_ns: int
    wall_synchronised: Optional[bool]
    """Whether the kernel is told to keep CLOCK_REALTIME (adjtimex(2))."""
    idle_states_us: Optional[dict[str, int]]
    """Enabled C-state → time to wake up from it."""
    pcie: Optional[dict[str, str]]
    """``current_link_speed`` and the like, as in sysfs; empty for a device on another bus."""
    pause: Optional[dict[str, int]]
    """autoneg, rx, tx: 0 or 1; empty without flow control."""
    flow_hash: Optional[str]
    """Letters of the fields of IPv4 UDP, as of ``ethtool -N rx-flow-hash``."""
    tracked_connections: Optional[int]
    firewall: Optional[tuple[str, ...]]
    """Each base chain of filters with rules, or with a policy other than accept."""
    udp_ports: Optional[tuple[int, ...]]
    """Local ports of all UDP sockets of the namespace."""
    arp: Optional[dict[str, int]]
    """arp_ignore and arp_filter in force: the larger of all's and the interface's."""
    other_addresses: Optional[dict[str, tuple[str, ...]]]
    """Other interface → its IPv4 addresses with prefix length."""
    stacked: Optional[tuple[str, ...]]
    """Interfaces above and below, as in sysfs: ``upper_bond0``, ``lower_eth0``."""


@dataclass(frozen=True)
class Examined:
    """What was read of one host to say if it is ready; None: not read."""

    facts: Facts
    inspection: Optional[Inspection] = None
    before: Optional[Snapshot] = None
    """A short second before ``after``, without load."""
    after: Optional[Snapshot] = None
    wall_offset_ns: Optional[int] = None
    """Its CLOCK_REALTIME less the controller's CLOCK_MONOTONIC, and the largest error."""
    wall_bound_ns: Optional[int] = None


WITHOUT = {
    "kernel_threads": "NAPI's threads cannot be pinned, so RPS or the sender does the receive work",
    "rcvbuf_force": "socket buffers end at net.core.rmem_max and wmem_max",
    "real_time": "no priority above the normal one",
}
"""Capability → what it means for a built-in lab to lack it."""


def lost_without(capabilities: Iterable[Mapping[str, bool]]) -> tuple[str, ...]:
    """Return what a built-in lab cannot do, from the capabilities of its hosts."""
    lacking = {name for own in capabilities for name, able in own.items() if not able}
    return tuple(text for name, text in WITHOUT.items() if name in lacking)


@dataclass(frozen=True)
class Setting:
    """One desired value on one host.

    ``kind`` is one of ``setting_kinds``, ``target`` what it applies to (``receive0``,
    ``receive0/rx-0``, ``net.core.rmem_max``); ``path`` is the YAML path it came from.
    """

    kind: str
    target: str
    value: Any
    scope: Scope = "namespace"
    path: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Change:
    """One applied setting: the value before, the requested one, and the one read back."""

    setting: Setting
    before: Any
    after: Any
    refusal: Optional[str] = None
    """Why an optional setting is not in force; then ``after`` equals ``before``."""
    rounded: bool = False
    """The kernel or a driver rounded the requested value, and the rounded one is in force."""


@dataclass(frozen=True)
class Planned:
    """One setting in a dry run: the value now, and why the desired one can't be set, if so."""

    setting: Setting
    now: Any
    refusal: Optional[str] = None
    as_wanted: bool = False
    """Nothing would change, even if ``now`` is written differently from the setting."""


# --- what workers do and count -------------------------------------------------------------------


@dataclass(frozen=True)
class FlowSpec:
    """One 4-tuple, and the flow number in the header of its packets."""

    flow: int
    source: str
    source_port: int
    destination: str
    destination_port: int


@dataclass(frozen=True)
class WorkerSpec:
    """One worker, fully resolved against the facts of its host.

    A sender's ``flows`` are those it sends; a receiver's are all that may reach its host, because
    with a shared socket any worker may see any flow. A receiver reads ``bind_ports``; its ``send``
    is how the senders send.
    """

    role: Role
    host: str
    index: int
    cpu: Optional[int]
    flows: tuple[FlowSpec, ...]
    traffic: Traffic
    send: Optional[Send] = None
    receive: Optional[Receive] = None
    rate_pps: Optional[int] = None
    count_packets: Optional[int] = None
    bind_ports: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    """CPUs on which a program may run if there are several; empty: ``cpu``, or all."""

    @property
    def own_cpus(self) -> tuple[int, ...]:
        """The CPUs that the worker is pinned to; empty: none in particular."""
        return self.cpus if self.cpu is None else (self.cpu,)

    @property
    def name(self) -> str:
        """``left.sender0``: unique in a trial."""
        return f"{self.host}.{self.role}{self.index}"

    @property
    def fault(self) -> Optional[Fault]:
        """The fault of this worker, which users count from 1; None if it has none."""
        fault = self.receive.fault if self.receive is not None else None
        return fault if fault is not None and fault.worker == self.index + 1 else None

    @property
    def log(self) -> Optional[Log]:
        """The log to which a receiver writes every datagram; None if it writes none."""
        return self.receive.log if self.receive is not None else None


@dataclass(frozen=True)
class LossSpec:
    """Packets sent in addition to the traffic and lost on purpose at one stage of the ledger."""

    stage: str
    packets: int
    """To be lost; a few more may be sent, which arrive and are counted."""
    segments: int
    """Packets per GSO message; 1: no GSO."""
    size_bytes: int
    family: Literal[4, 6]
    source: str
    destination: str
    port: int
    """Of both ends; nothing else uses it."""
    source_mac: str
    destination_mac: str
    gro: bool
    """Receiving sockets accept merged datagrams."""


@dataclass(frozen=True)
class FlowStats:
    """One flow as one end saw it: sequence numbers used by the sender, distinct ones received."""

    flow: int
    packets: int
    highest_sequence: Optional[int] = None


@dataclass(frozen=True)
class Histogram:
    """Times in nanoseconds as (bucket, count) of non-empty buckets; histograms can be added.

    Buckets are those of ``ub_histogram`` (native/udpbench.h), at most 1/128 wide each.
    """

    counts: tuple[tuple[int, int], ...] = ()
    below_zero: int = 0
    """Negative times, which only a wrong clock offset can cause."""

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """How many times lie in each bucket or below it, those below zero included."""
        counts = (count for _, count in self.counts)
        return tuple(accumulate(counts, initial=self.below_zero))[1:]


@dataclass(frozen=True)
class Stall:
    """Packets due between two times after the common start that the sender could not offer.

    They are unsent, or sent later if the sender has a count.
    """

    from_ns: int
    until_ns: int
    packets: int


@dataclass(frozen=True)
class LogFiles:
    """The files of one worker's log after a phase."""

    path: str
    """Common to all of them, without their number."""
    files: int
    size_bytes: int


@dataclass(frozen=True)
class ThreadUse:
    """One thread of a receiver or sender between two looks at it during a phase."""

    name: str
    running_ns: int
    runnable_ns: int
    """It waited for a CPU: the second number of its schedstat."""
    elapsed_ns: int
    """Between the two looks."""
    looks: dict[str, int] = field(default_factory=dict)
    """State, a letter of proc_pid_stat(5) → how many looks saw it so."""
    calls: dict[str, int] = field(default_factory=dict)
    """System call → in how many looks it slept in it; ``other`` for those not known by name."""


@dataclass(frozen=True)
class WorkerStats:
    """Counts of one worker; keys of ``counts`` are the C field names (native/udpbench.h).

    Counts that its way of reading cannot provide are missing. After its loop has ended there are
    also the thread's ``user_ns system_ns voluntary_switches involuntary_switches`` (getrusage(2)),
    ``running_ns elapsed_ns`` and, if the kernel counts it, ``runnable_ns`` (as in ``ThreadUse``),
    and for a worker with a fault the unread ``purged_packets`` in ``purged_messages``.
    """

    worker: str
    role: Role
    cpu: Optional[int]
    counts: dict[str, int]
    socket_inodes: tuple[int, ...] = ()
    buffer_bytes: Optional[int] = None
    """SO_RCVBUF or SO_SNDBUF as read back (the kernel's doubled value)."""
    cpus_seen: tuple[int, ...] = ()
    """CPUs on which the worker's thread was seen; pinning held if this is its own CPU alone."""
    memory_bytes: Optional[int] = None
    """Proportional memory (PSS) of the worker's process after a phase; threads share it."""
    pid: Optional[int] = None
    process_cpu_ns: Optional[int] = None
    """User and system time of the worker's process over ``process_load_ns``; threads share it."""
    process_load_ns: Optional[int] = None
    """A time within the load, between two samples with packets before and after them."""
    process_memory_bytes: Optional[int] = None
    """Resident memory of the worker's process, the mean of all samples; threads share it."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """After the loop has ended. Sender: pacing, round_trip; receiver: delay, stack, application."""
    stalls: tuple[Stall, ...] = ()
    """Of a paced sender whose loop has ended; if there were many, neighbours are merged."""
    log: Optional[LogFiles] = None
    zerocopy: Optional[bool] = None
    """By AF_XDP: the driver reads or writes its frames without a copy, as read back."""
    threads: tuple[ThreadUse, ...] = ()
    """After a measured phase, those looked at twice or more: of a user's program all that it had
    when the phase began, of a worker of our loops its own thread."""
    filtered: Optional[bool] = None
    """A receiver's socket has a filter (SO_ATTACH_FILTER, SO_ATTACH_BPF); None: not known. Of a
    user's program as it is after a phase, if the agent may debug it."""


PACKETS_FIELD: dict[Part, str] = {"sender": "sent_packets", "receiver": "received_packets"}
"""End → the count of ``WorkerStats`` that its packets, rates and first and last times are of."""
OWN_FIELDS = (
    PACKETS_FIELD["receiver"],
    *("duplicate_packets", "ancient_packets", "corrupt_packets", "truncated_packets"),
)
"""The counts of a receiver that only the phase's own packets move, if it reads headers."""
BYTES_FIELD: dict[Role, str] = {"sender": "sent_bytes", "receiver": "received_bytes"}


@dataclass(frozen=True)
class Arrived:
    """What receiving workers read in one phase."""

    packets: int
    """Of this phase, each once."""
    own_packets: int
    """Of this phase, also repeated and damaged ones; all of a size that the run sends where headers
    are not read, and whatever a program has read."""
    read_packets: int
    """All that were read."""
    read_messages: Optional[int]
    """The same as the kernel delivered them, merged or not; None if not counted."""


def total_arrived(workers: Iterable[WorkerStats]) -> Arrived:
    """Return what the receivers among the workers read."""
    counts = [stats.counts for stats in workers if stats.role == "receiver"]
    packets, read_packets, messages = (
        [count[name] for count in counts if name in count]
        for name in (PACKETS_FIELD["receiver"], "read_packets", "read_messages")
    )
    # Not what was read less what is foreign: a loop counts the two one after the other.
    own = sum(count.get(name, 0) for count in counts for name in OWN_FIELDS)
    return Arrived(sum(packets), own, sum(read_packets), sum(messages) if messages else None)


Whose = Literal["run", "worker", "interface", "other"]
"""``run``: controller, agents and their transport; ``interface``: kernel threads of ours."""


@dataclass(frozen=True)
class Process:
    """CPU use of a process between the snapshots before and after a phase."""

    pid: int
    name: str
    cpu_ns: int
    whose: Whose
    cpus: tuple[int, ...] = ()
    """CPUs on which its threads may run; empty: all of the machine."""
    children_cpu_ns: int = 0
    """Of children that ended meanwhile, if it waited for them."""
    by_cpu_ns: dict[str, int] = field(default_factory=dict)
    """CPU number as text → its time there; of threads of the run, if the kernel counts it."""
    runnable_ns: Optional[int] = None
    """How long a thread of an interface waited for its CPU; None if not counted."""


@dataclass(frozen=True)
class Snapshot:
    """Raw counters of one host by dotted name, at one time on its own CLOCK_MONOTONIC.

    Names: ``snmp.Udp.InErrors``, ``netstat.IpExt.InNoECTPkts``, ``softnet.cpu0.dropped``,
    ``link.receive0.rx_packets``, ``qdisc.send0.drops``, ``ethtool.receive0.rx_queue_0_drops``,
    ``cpu.0.softirq_ns``, ``socket.<inode>.drops``, ``rt_cache.in_martian_src``,
    ``reason.NO_SOCKET``, ``snmp6.Udp6NoPorts``, ``conntrack.drop``, ``xfrm.XfrmInPolBlock``,
    ``changed.routes``, ``interrupt.34.cpu1``, ``firewall.<target>``.
    """

    host: str
    clock_ns: int
    counters: dict[str, int]
    processes: tuple[Process, ...] = ()
    """After a measured phase: those of the run; from a machine's agent all that used CPU."""
    strangers: tuple[str, ...] = ()
    """Before and after a measured phase: other programs' sockets that may take the traffic's
    packets, ``python3 12 (user 0) at 0.0.0.0:4321``; their drops are ``stranger.<inode>.drops``."""


@dataclass(frozen=True)
class UdpSocket:
    """One UDP socket of a host, whoever has it, at one moment."""

    cookie: int
    """The kernel's number of it, never used twice in a boot."""
    inode: int
    family: Literal[4, 6]
    address: str
    """``0.0.0.0`` or ``::`` for any."""
    port: int
    peer: Optional[str]
    """Of a connected socket."""
    peer_port: int
    uid: int
    queued_bytes: int
    """Memory charged for datagrams that wait to be read (truesize, not payload)."""
    buffer_bytes: Optional[int]
    """SO_RCVBUF as the kernel has it: twice what was asked for."""
    drops: Optional[int]
    """Datagrams lost at the socket since it was opened; 32 bits in the kernel, it wraps."""
    processes: tuple[str, ...] = ()
    """``unbound 1234``; empty if not known or not to be seen."""


@dataclass(frozen=True)
class SocketCount:
    """What a UDP socket received since counting began, as BPF programs count it."""

    arrived: int = 0
    """Packets before the socket's own filter, each segment of a merged skb."""
    read: Optional[int] = None
    """Datagrams that the application read, one of UDP_GRO as one; None before Linux 6.3."""
    dropped: dict[str, int] = field(default_factory=dict)
    """skbs by the kernel's reason, without those whose checksum was found wrong at the read."""


@dataclass(frozen=True)
class OtherNamespace:
    """A network namespace that is not watched and holds UDP sockets."""

    pid: int
    """Of a process that has one of them."""
    process: str
    sockets: int
    drops: int
    """Of those sockets since they were opened."""
    all_read: bool = True
    """Else both numbers are the least."""


@dataclass(frozen=True)
class HostLook:
    """A host at one moment, as one who looks on sees it; sockets only if anything changed.

    The counters of the first look and of every other are whole.
    """

    snapshot: Snapshot
    interfaces: tuple[str, ...]
    """Whose counters are among them, the loopback one included."""
    sockets: tuple[UdpSocket, ...]
    """Those that are new, or have changed since the look before."""
    ended: tuple[int, ...] = ()
    """Cookies of those that were listed before and are not any more."""
    watched: Optional[tuple[int, ...]] = None
    """Cookies of the process or unit that was asked for; None: all are watched."""
    counts: Optional[dict[str, SocketCount]] = None
    """Cookie as text → its count, of those that changed; None: not counted."""
    namespaces: tuple[OtherNamespace, ...] = ()
    names_reasons: bool = False
    """Counts have the kernel's reasons (Linux 6.11)."""
    threads: dict[str, tuple[ThreadUse, ...]] = field(default_factory=dict)
    """Process, as of ``UdpSocket`` → its threads since the look before, if a socket dropped."""


@dataclass(frozen=True)
class Sample:
    """One worker's counts during a phase, as totals since it began.

    A receiver's also have ``queued_bytes`` and ``dropped_packets`` of its sockets, of one that
    several share the first alone; missing where not read at that moment.
    A phase of up to a minute also has the packets of each millisecond since the sample before,
    beginning ``first_ms`` after the start; a longer one their least, median and most. Packets are
    sent or received, depending on the role.
    """

    worker: str
    clock_ns: int
    counts: dict[str, int]
    first_ms: Optional[int] = None
    packets_per_ms: tuple[int, ...] = ()
    range_per_ms: Optional[tuple[int, int, int]] = None


@dataclass(frozen=True)
class ClockReading:
    """How far a host's CLOCK_MONOTONIC was ahead of the controller's at one moment."""

    at_ns: int
    """On the controller's CLOCK_MONOTONIC."""
    offset_ns: int
    bound_ns: int
    """Largest error of the offset: half the shortest round trip; 0 on one machine."""


@dataclass(frozen=True)
class Phase:
    """One phase of a trial: snapshots of every host before and after it, and final counts."""

    name: PhaseName
    tag: int
    start_ns: dict[str, int]
    """Host → the common start on that host's CLOCK_MONOTONIC."""
    before: dict[str, Snapshot]
    after: dict[str, Snapshot]
    stats: tuple[WorkerStats, ...]
    flows: dict[str, tuple[FlowStats, ...]]
    """Host → its flows' counts."""
    clocks: dict[str, tuple[ClockReading, ...]] = field(default_factory=dict)
    """Host → its clock at the start, and for a measured phase also at the end."""
    losses: tuple[WorkerStats, ...] = ()
    """Packets sent in addition to the traffic, to be lost on purpose, and those that arrived."""

    @property
    def strangers(self) -> dict[str, tuple[str, ...]]:
        """Host → sockets of others that may have taken the traffic's packets, where there are."""
        edges = (self.before, self.after)
        seen = {
            host: dict.fromkeys(s for at in edges if host in at for s in at[host].strangers)
            for host in self.after
        }
        return {host: tuple(those) for host, those in seen.items() if those}


@dataclass(frozen=True)
class Finding:
    """Something a reader must know before trusting a number."""

    severity: Literal["note", "warning", "struck", "invalid"]
    """``struck``: the trial's counts, loss and ledger hold; its rates, delays and CPU numbers do
    not, and are struck out."""
    what: str
    where: str = ""
    value: Optional[str] = None
    limit: str = ""
    next_step: str = ""

    @property
    def brief(self) -> str:
        """Place, text and value, without the next step."""
        head = f"{self.where}: " if self.where else ""
        value = f" ({self.value})" if self.value not in (None, "") else ""
        return f"{head}{self.what}{value}"

    def __str__(self) -> str:
        return self.brief + rest_of_message(self.limit, self.next_step)


@dataclass(frozen=True)
class StageProof:
    """Packets lost on purpose at one stage of the ledger, and what was counted of them."""

    stage: str
    family: Optional[Literal[4, 6]]
    packets: Optional[int]
    """So many were lost; None: they could not be."""
    counted: Optional[int] = None
    """What the ledger said of that stage, of an interval the number nearest to ``packets``.

    None: it has no counter here."""
    unaccounted: Optional[int] = None
    """Of the whole trial."""
    counters: tuple[str, ...] = ()
    """Counters that moved by exactly that number, each with its host; drop reasons among them."""
    driver: Optional[str] = None
    """Of the interface at which it was tried."""
    why: str = ""
    """Why packets could not be lost there."""
    failed: bool = False
    """Its trial failed: whether this kernel counts packets lost there is not known."""

    @property
    def holds(self) -> bool:
        """Return whether the ledger counted every packet there and nothing elsewhere."""
        return self.packets == self.counted and self.unaccounted == 0


@dataclass(frozen=True)
class SelfTest:
    """What losing packets on purpose has proven of the ledger on one build of the kernel."""

    kernel: str
    build: str
    """As in an environment's ``kernel_build``."""
    tested_at: str
    """UTC, ISO 8601."""
    udpbench: str
    """Version that tested it."""
    proofs: tuple[StageProof, ...]
    unexplained: Optional[str] = None
    """Why the kernel's drop reasons could not be counted; None if they were."""

    def is_unmoved(self, stage: str, family: int, driver: Optional[str]) -> bool:
        """Return whether no counter of a stage moved here though packets were lost there.

        Of a stage that the driver counts, a proof holds for its own driver alone.
        """
        proofs = [
            proof
            for proof in self.proofs
            if (proof.stage, proof.family) == (stage, family) and proof.packets
        ]
        return any(
            not proof.counted and (stage not in DRIVER_STAGES or driver == proof.driver)
            for proof in proofs
        )


@dataclass(frozen=True)
class TrialRecord:
    """The unit of storage: raw data from which everything else can be derived at any time."""

    trial: Trial
    status: Literal["done", "failed", "skipped"]
    started_at: str
    """UTC, ISO 8601."""
    built_in_lab: bool
    between: dict[str, Part] = field(default_factory=BETWEEN.copy)
    """Node between the ends of the path → its part; before they were recorded, there was a bridge
    at most."""
    error: Optional[dict[str, str]] = None
    """``{kind, message, host}`` of a failed trial; the kind of a skipped one is ``skipped`` if its
    needs are not met, else ``unavailable``."""
    facts: dict[str, Facts] = field(default_factory=dict)
    changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    workers: tuple[WorkerSpec, ...] = ()
    phases: tuple[Phase, ...] = ()
    series: tuple[Sample, ...] = ()
    """Samples of the measured phase; stored in series.jsonl and joined by the reader."""
    motion: tuple[Snapshot, ...] = ()
    """Counters of the measured phase each second, of each host those that changed since the second
    before; stored with the series."""
    environment_after: dict[str, dict[str, str]] = field(default_factory=dict)
    """Host → its environment after the measured phase; it should equal that in its facts."""
    findings: tuple[Finding, ...] = ()
    """Findings of ``control``; ``judge`` adds its own."""
    selftests: dict[str, SelfTest] = field(default_factory=dict)
    """Host → what was proven of the ledger on its build of the kernel, if it was ever tried."""
    overhead_ns: dict[str, int] = field(default_factory=dict)
    """Step of the trial → its duration, phases included."""
    schema: int = RECORD_SCHEMA


# --- what is derived -----------------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a ledger: packets that ended at a stage; None if it cannot be observed.

    Known without a counter, too, where no other stage can explain them.
    """

    stage: str
    packets: Optional[int]
    source: str
    """The counters it was read from, as an expression that a reader can check."""
    at_most: Optional[int] = None
    """Upper limit if others may have moved the counters, or the kernel counted skbs of unknown
    size; ``packets`` is then the lower one, None if that is 0 and the stage not observable."""
    parts: dict[str, int] = field(default_factory=dict)
    """The same by queue, CPU, worker or counter, if counted that way; only those that changed."""
    also: dict[str, int] = field(default_factory=dict)
    """Other counters of the same stage, by name; never added up, they must agree."""
    others_packets: int = 0
    """By how much its counters moved beyond what the traffic lost."""


@dataclass(frozen=True)
class Ledger:
    """The balance of all packets: intended = Σ entries + received + unaccounted.

    Received are those that reached the application, or its log if it has one.
    """

    intended_packets: int
    received_packets: int
    entries: tuple[LedgerEntry, ...]
    unaccounted: Optional[int]
    """The value nearest to 0 if an entry is an interval."""

    @property
    def lost_packets(self) -> int:
        """Intended and not received, as far as the ledger explains it: the sum of all entries."""
        return self.intended_packets - self.received_packets - (self.unaccounted or 0)


Bounded = Literal["regular", "at least", "none", "unfinished"]
"""What a search knows of a goal: both bounds; a lower one alone, since nothing above could be
tried; none, since the lowest load lost more already; or what it knew when it was ended."""


@dataclass(frozen=True)
class GoalBounds:
    """What a search says about one loss goal."""

    loss: float
    kind: Bounded = "unfinished"
    throughput_pps: Optional[float] = None
    """What arrived of the load at the lower bound (RFC 9971: conditional throughput)."""
    lower_pps: Optional[float] = None
    upper_pps: Optional[float] = None
    """Loads that did, and did not, meet the goal."""


@dataclass(frozen=True)
class CpuLoad:
    """How busy one CPU of the load was in a measured phase, and with what."""

    machine: str
    cpu: int
    busy: float
    """Share of the time; of a sender that spins always near 1."""
    receives: bool
    """It runs a receiving worker, or serves an RX queue."""
    uses: dict[str, float] = field(default_factory=dict)
    """What used it → share of the time; a thread of NAPI is system time in /proc/stat."""
    taken: float = 0.0
    """Share of the time that other programs and the hypervisor took."""


Certainty = Literal["certain", "likely", "to be tested"]


UNKNOWN = "unknown"
"""Name of a loss whose cause the evidence does not tell."""
ALL = 0.95
"""Share of a loss from which on it is called all of it."""


@dataclass(frozen=True)
class Bottleneck:
    """One thing that limits a trial, with the evidence for it."""

    name: str
    """One of ``analysis.remedies``."""
    certainty: Certainty
    stage: str
    """Where most packets ended: several stages, if each is an interval (``link or rx_ring``), or
    ``unaccounted``; empty if none is missing."""
    packets: int
    """That ended there."""
    what: str
    remedy: str
    """What helps, in the imperative."""
    test: str = ""
    """Keys of an experiment that would decide it."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers that speak for it: shares of the time in which packets came, counts, limits."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What fills the <angles> of its remedy, and of the steps that ``udpbench tune`` tries."""
    share: Optional[float] = None
    """Of all packets that were lost; None of what was seen beside the causes of the loss."""
    sets: tuple[str, ...] = ()
    """``path=value`` for ``--set``: the first thing to try; empty if no setting helps."""

    @property
    def sentence(self) -> str:
        """Return where packets ended, why, and what helps."""
        return f"{self.place}{self.why} {self.helps}"

    @property
    def place(self) -> str:
        """Return ``Lost at udp_rcvbuf``, or that nothing was."""
        nowhere = {"": "Nothing was lost", "unsent": "Not offered", "unaccounted": "Unaccounted"}
        share = self.share or 0.0
        part = f" ({show_percent(share)} of the loss)" if 0 < share < ALL else ""
        return nowhere.get(self.stage, f"Lost at {self.stage}") + part

    @property
    def why(self) -> str:
        """Return what limits it, with how certain that is."""
        causes = {"certain": "", "likely": "; likely cause", "to be tested": "; possible cause"}
        sure = "" if self.name == UNKNOWN else causes[self.certainty]
        return f"{sure}: {self.what}."

    @property
    def helps(self) -> str:
        """Return the remedy as a sentence, and the test of what is not certain."""
        test = f" To test it: {self.test}." if self.test and self.certainty != "certain" else ""
        return f"{self.remedy[:1].upper()}{self.remedy[1:]}.{test}"


@dataclass(frozen=True)
class WorkerResult:
    """One worker's share of a result."""

    worker: str
    role: Role
    cpu: Optional[int]
    packets: int
    pps: Optional[float]
    memory_bytes: Optional[int] = None
    cost: dict[str, int] = field(default_factory=dict)
    """Its thread's time, switches and calls, by the names of ``WorkerStats.counts``; what the
    machine does not count, often cycles and instructions, is missing."""


@dataclass(frozen=True)
class Column:
    """A column of a result's table: its key in JSON and frames, and what its cells are."""

    name: str
    kind: Literal["text", "number", "moment", "count", "share"] = "text"
    """A number names something, as CPU 3; moments are left out of the whole phase, where counts of
    the same thing add up."""
    unit: str = ""


Cell = Union[str, int, float, None]
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class ResultTable:
    """A table of a result: every output shows it, and knows none."""

    name: str
    """Its key in JSON, and its frame."""
    caption: str
    columns: tuple[Column, ...]
    rows: Callable[[], Iterable[Row]] = field(default=tuple, compare=False, repr=False)
    """Reads the rows, which may be many, from the trial's record; nothing keeps them."""


@dataclass(frozen=True)
class Result:
    """The result of one trial, derived from its record by ``judge`` alone."""

    trial: Trial
    status: Literal["done", "failed", "skipped"]
    valid: bool
    findings: tuple[Finding, ...]
    unavailable: bool = False
    """Skipped, and not because of the experiment's ``needs``."""
    numbers: Mapping[str, Optional[float]] = field(default_factory=dict)
    """Metric → its value; None or missing if unknown."""
    stalls: tuple[Stall, ...] = ()
    """Stalls of all senders."""
    ledger: Optional[Ledger] = None
    workers: tuple[WorkerResult, ...] = ()
    cpus: tuple[CpuLoad, ...] = ()
    """The CPUs of the load."""
    diagnosis: tuple[Bottleneck, ...] = ()
    """What limits it, what matters most first."""
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Metric → least and most, where a search knows it no better than that."""
    unfinished: bool = False
    """A search ended before it knew the rate of each of its goals."""
    took_ns: Optional[int] = None
    """The whole trial, or search, with all that is beside its measured phase."""
    lag: Optional[float] = None
    """How much longer than the senders' the receivers' time was, as a share of the senders': what
    they could not receive in time waited in queues. Kept where rates are struck out."""
    lump_share: Optional[float] = None
    """What came at once on average, with one read of each receiver or one call of each sender, as a
    share of all: rates are known no better."""
    full_line_bps: Optional[int] = None
    """Rate of the senders' lines, if these kept them from sending more."""
    tables: tuple[ResultTable, ...] = field(default=(), compare=False, repr=False)
    """All that have rows or might; of a result of ``judged_run``."""

    @property
    def struck(self) -> tuple[Finding, ...]:
        """Why rates, delays and CPU numbers are struck out; the counts still hold."""
        return tuple(finding for finding in self.findings if finding.severity == "struck")

    def __getattr__(self, name: str) -> Optional[float]:
        """Return a metric by its name, such as ``delay_p99_ns``; None if unknown."""
        if name not in METRICS:
            raise AttributeError(f"a result has no {name}")
        return self.numbers.get(name)


@dataclass(frozen=True)
class Estimate:
    """A median with its interval over the valid trials of one point."""

    median: float
    low: Optional[float]
    high: Optional[float]
    n: int
    unit: str


@dataclass(frozen=True)
class Progress:
    """What ``control`` reports during a run; ``report`` draws it and decides nothing.

    The event ``sample`` has ``samples`` of workers or ``snapshots``: of each host first all
    counters before the phase, then those that changed. ``trial`` has its ``record`` and its
    ``result``, and ``phase`` the part of the record that exists so far. ``search`` follows each
    trial of a search.
    """

    event: Literal["wait", "run", "host", "step", "phase", "sample", "trial", "search", "restore"]
    text: str
    trial: Optional[Trial] = None
    index: int = 0
    total: int = 0
    """Trials of the run that are certain; comparisons may want more."""
    phase: Optional[PhaseName] = None
    samples: tuple[Sample, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    record: Optional[TrialRecord] = None
    result: Optional[Result] = None
    total_at_most: int = 0
    bounds: tuple[GoalBounds, ...] = ()
    """Of ``search``: what is known of each goal after the trial before."""
    range_pps: Optional[tuple[float, float]] = None
    """Of ``search``: between which rates it looks; None before the upper end is known."""
    left_ns: Optional[int] = None
    """Of ``search``: how long all searches of the run may still take."""
    ended: bool = False
    """Of ``search``: nothing more of it will be tried."""

    @property
    def place(self) -> str:
        """Return ``[3/12]``, where comparisons decide ``[3/14–30]``; empty before any trial.

        Of a search, which takes as many as it takes, ``[3]``.
        """
        if self.trial is not None and self.trial.search_trial:
            return f"[{self.index}]"
        return f"[{self.index}/{show_range(self.total, self.total_at_most)}]" if self.total else ""
