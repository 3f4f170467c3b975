"""The vocabulary: frozen data that every room speaks, and nothing that acts.

Field names are the field's terms (RFC 2285, RFC 2544, RFC 1242, kernel names) and carry their unit.
A YAML key is the field's name without its unit suffix (``size_bytes`` is written ``size: 32B``);
type, default and range of a key stand here once, and the definition reads them from here.
Python 3.9: annotations are evaluated by pydantic on the controller, so they say ``Optional``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, Union

from udpbench.units import Bytes, Count, Nanoseconds, Rate

RECORD_SCHEMA = 1
"""History of stored trial records: 1 — the first form."""

HEADER_BYTES = 18
"""Bytes of the header: tag u32, flow u16, sequence u48, send time u48 (native/udpbench.h)."""

MAX_PAYLOAD_BYTES = 65507
"""Largest UDP payload over IPv4: 65535 − 20 (IP header) − 8 (UDP header)."""

SEND_MESSAGES = 1024
"""UIO_MAXIOV: more sendmmsg(2) does not take."""
RECEIVE_MESSAGES = 512
MERGED_MESSAGES = 16
"""With GRO each has room for 64 KiB; so many stay within the second level of cache."""

GSO_SEGMENTS = "udp.gso_segments"
"""Among a host's limits: datagrams in one GSO message, 64 or since Linux 6.9 128."""

Role = Literal["sender", "receiver"]
Scope = Literal["namespace", "machine"]
PhaseName = Literal["path", "warmup", "measured"]
LEDGER_STAGES = (
    "unsent",
    "tx_netfilter",
    "tx_qdisc",
    "tx_device",
    "link",
    "rx_ring",
    "rx_xdp",
    "rx_backlog",
    "rx_tc",
    "rx_ip",
    "rx_netfilter",
    "udp_checksum",
    "udp_no_port",
    "udp_filter",
    "udp_rcvbuf",
    "udp_memory",
    "udp_purged",
    "app_truncated",
    "app_log",
)
"""Where a packet can end, in its order (docs/ledger.md)."""
SECOND_NS = 10**9
DAY_NS = 86400 * SECOND_NS
SAMPLE_NS = SECOND_NS // 10
"""Between two samples of a worker in a phase that is not long."""
SAMPLES_MAX = 3600
"""Of each worker in a phase: two hours have one every two seconds."""


def sampling_ns(duration_ns: int) -> int:
    """Return the time between two samples of a worker in a phase that lasts so long at most."""
    return SAMPLE_NS * max(1, -(-duration_ns // (SAMPLES_MAX * SAMPLE_NS)))


# --- what a user declares ------------------------------------------------------------------------


@dataclass(frozen=True)
class Flows:
    """Which 4-tuples carry the traffic; every combination of source port, address and port."""

    source_ports: str = "65400"
    to: str = "receiver.addresses[1]:4321"
    queues: Union[Literal["any"], Annotated[int, Count(1, 1024)]] = "any"
    spread: Literal["split", "each"] = "split"


@dataclass(frozen=True)
class Traffic:
    """What is on the wire."""

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


@dataclass(frozen=True)
class Send:
    """How the sending workers send."""

    workers: Annotated[int, Count(1, 1024)] = 1
    workers_as: Literal["threads", "processes"] = "threads"
    cpus: str = "lab"
    call: Literal["send", "sendmmsg"] = "sendmmsg"
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
        """Messages per call at most; ``auto`` offers as many datagrams with GSO as without."""
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
    """Where a receiver writes every datagram."""

    path: str
    max_file_bytes: Annotated[int, Bytes(2**20, 2**40)] = 512 * 2**20
    keep: Annotated[int, Count(1, 10**6)] = 2


@dataclass(frozen=True)
class Receive:
    """How the receiving workers receive; ``workers: 0`` leaves the port closed."""

    workers: Annotated[int, Count(0, 1024)] = 1
    workers_as: Literal["threads", "processes"] = "threads"
    cpus: str = "lab"
    call: Literal["recv", "recvmmsg"] = "recvmmsg"
    batch: Union[Literal["auto"], Annotated[int, Count(1, 1024)]] = "auto"
    gro: bool = False
    wait: str = "block"
    sockets: Literal["shared", "reuseport", "reuseport-cpu", "incoming-cpu"] = "shared"
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
    """SO_TIMESTAMPNS: the kernel's arrival times split the delay in stack and application."""
    fault: Optional[Fault] = None
    log: Optional[Log] = None

    @property
    def messages(self) -> int:
        """Messages per call at most."""
        if self.batch != "auto":
            return self.batch
        return MERGED_MESSAGES if self.gro else RECEIVE_MESSAGES


@dataclass(frozen=True)
class HostNeeds:
    """What one host must offer, or the trial is skipped with the reason."""

    cpus: Optional[Annotated[int, Count(1, 4096)]] = None
    rx_queues: Optional[Annotated[int, Count(1, 4096)]] = None
    nodes: Optional[Annotated[int, Count(1, 1024)]] = None
    smt: Optional[bool] = None
    rings: Optional[bool] = None


@dataclass(frozen=True)
class Needs:
    """Preconditions of a trial."""

    lab: Optional[bool] = None
    sender: HostNeeds = field(default_factory=HostNeeds)
    receiver: HostNeeds = field(default_factory=HostNeeds)


@dataclass(frozen=True)
class Side:
    """One side of an expectation: ``factor * metric[point]``; a bare number where metric is None.

    A bare number is in the metric's base unit (pps, packets, ns, a ratio).
    """

    factor: float
    metric: Optional[str] = None
    point: Optional[str] = None


@dataclass(frozen=True)
class Expectation:
    """``left op right``, with the text it was written as."""

    text: str
    left: Side
    op: Literal["<", "<=", "==", "!=", ">=", ">"]
    right: Side


@dataclass(frozen=True)
class Trial:
    """One repetition of one point of an experiment, still symbolic: no host has been asked yet."""

    experiment: str
    question: str
    point: str
    """``variant,key=value``; empty where the experiment is a single point."""
    variant: Optional[str]
    values: dict[str, Any]
    """Swept dotted path → the scalar as YAML gave it."""
    repetition: int
    traffic: Traffic
    send: Send
    receive: Receive
    settings: dict[str, dict[str, Any]]
    """Role → the validated settings block as plain data; turned into Settings by ``bind``."""
    needs: Needs
    duration_ns: int
    warmup_ns: int
    path_check: Literal["arrive", "explained"] = "arrive"
    explain: bool = False
    faults: dict[str, int] = field(default_factory=dict)
    source: Optional[str] = None
    expects_unsent: bool = False
    """An expectation names ``unsent``: then a sender that falls short makes no trial invalid."""

    @property
    def name(self) -> str:
        """``experiment::point#repetition``, as listed and logged."""
        point = f"::{self.point}" if self.point else ""
        return f"{self.experiment}{point}#{self.repetition}"


@dataclass(frozen=True)
class Experiment:
    """One question and the trials that answer it."""

    name: str
    path: str
    text: str
    """The YAML as read, kept in the record so that a run can be repeated from it alone."""
    question: str
    source: Optional[str]
    points: tuple[Trial, ...]
    """One trial per point, repetition 1; ``Trial.name`` and ``point`` tell them apart."""
    repetitions: int
    expect: tuple[Expectation, ...]


@dataclass(frozen=True)
class Connect:
    """How a host is reached."""

    by: Literal["namespace", "local", "ssh"]
    ssh: Optional[str] = None
    become: Optional[Literal["sudo"]] = None
    python: Optional[str] = None


@dataclass(frozen=True)
class Host:
    """One host of a lab in one role."""

    name: str
    role: Role
    connect: Connect
    interface: str
    addresses: tuple[str, ...]
    """``192.168.254.1/24`` each, ranges spelled out; empty with ``existing``."""
    existing: bool = False
    cpus: Optional[tuple[int, ...]] = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lab:
    """Where an experiment runs."""

    name: str
    path: str
    text: str
    senders: tuple[Host, ...]
    receivers: tuple[Host, ...]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Senders first: a built-in lab starts the sender's agent before the receiver's."""
        return self.senders + self.receivers

    @property
    def built_in(self) -> bool:
        """True where the hosts are namespaces of this machine; labelled wherever results show."""
        return all(host.connect.by == "namespace" for host in self.hosts)

    @property
    def bridged(self) -> bool:
        """True where more than two namespaces meet in a bridge; two are joined by a pair."""
        return self.built_in and len(self.hosts) > 2


# --- what a host is, and what is changed on it ---------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What one host is, at one moment; a missing fact is None or empty, never a guess."""

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
    """RX queue as text → the CPUs that serve it, where known (NAPI thread, RPS, IRQ affinity)."""
    limits: dict[str, int]
    """``net.core.rmem_max`` and the like, where readable; GSO_SEGMENTS once it has an address."""
    capabilities: dict[str, bool]
    """What the agent may do, each tried, not guessed: net_admin, rcvbuf_force ..."""
    environment: dict[str, str] = field(default_factory=dict)
    """What must not change under way and is worth recording: mitigations, governor, offloads ..."""
    interface_node: Optional[int] = None
    """NUMA node of the interface's device."""
    queue_irqs: dict[str, int] = field(default_factory=dict)
    """RX queue as text → number of its interrupt, where known."""
    rings: dict[str, int] = field(default_factory=dict)
    """Descriptors per ring by ethtool's names: rx, tx, and the largest possible rx-max, tx-max."""
    cache_siblings: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """CPU number as text → the CPUs that share its last level of cache, itself included."""
    link: Optional[Literal["up", "no carrier", "down"]] = None
    """Whether the interface has a carrier, and is taken up at all."""


WITHOUT = {
    "kernel_threads": "NAPI's threads cannot be pinned, so RPS or the sender does the receive work",
    "rcvbuf_force": "socket buffers end at net.core.rmem_max and wmem_max",
    "real_time": "no priority above the normal one",
}
"""Capability → what a built-in lab is like without it."""


def lost_without(capabilities: Iterable[Mapping[str, bool]]) -> tuple[str, ...]:
    """Return what a built-in lab lacks where hosts, by their capabilities, may not do it all."""
    lacking = {name for one in capabilities for name, able in one.items() if not able}
    return tuple(text for name, text in WITHOUT.items() if name in lacking)


@dataclass(frozen=True)
class Setting:
    """One desired value on one host.

    ``kind`` names a module of agent/settings, ``target`` what it applies to (``receive0``,
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
    """One applied setting: what was read before, asked for, and read back."""

    setting: Setting
    before: Any
    after: Any
    refusal: Optional[str] = None
    """Why an optional setting is not in force; then ``after`` equals ``before``."""
    rounded: bool = False
    """The kernel or a driver made another value of what was asked for, and that is in force."""


@dataclass(frozen=True)
class Planned:
    """What a dry run found: the value now, and why the wanted one can't be set, if it can't."""

    setting: Setting
    now: Any
    refusal: Optional[str] = None
    as_wanted: bool = False
    """Nothing would change; ``now`` may say the same in other words than the setting does."""


# --- what workers do and count -------------------------------------------------------------------


@dataclass(frozen=True)
class FlowSpec:
    """One 4-tuple with the number that its packets carry in their header."""

    flow: int
    source: str
    source_port: int
    destination: str
    destination_port: int


@dataclass(frozen=True)
class WorkerSpec:
    """One worker, fully resolved: nothing in it depends on anything unknown.

    A sender's ``flows`` are those it sends; a receiver's are all that may reach its host, because
    with a shared socket any worker may see any flow. ``bind_ports`` are those a receiver reads, and
    its ``send`` says what reaches it.
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

    @property
    def name(self) -> str:
        """``left.sender0``: unique in a trial."""
        return f"{self.host}.{self.role}{self.index}"


@dataclass(frozen=True)
class FaultSpec:
    """Packets to be sent beside the traffic and lost at one stage of the ledger on purpose."""

    stage: str
    packets: int
    """To be lost; a few more may be sent, which arrive and are counted."""
    segments: int
    """Packets of each GSO message; 1: none is sent that way."""
    size_bytes: int
    family: Literal[4, 6]
    source: str
    destination: str
    port: int
    """Of both ends: nothing else uses it."""
    source_mac: str
    destination_mac: str
    gro: bool
    """Receiving sockets take merged datagrams."""


@dataclass(frozen=True)
class FlowStats:
    """One flow as one end saw it; sender: sequence numbers burnt; receiver: distinct ones seen."""

    flow: int
    packets: int
    highest_sequence: Optional[int] = None


@dataclass(frozen=True)
class Histogram:
    """Times in nanoseconds as (bucket, count), of buckets that hold any; they add up.

    Buckets are those of ``ub_histogram`` (native/udpbench.h), at most 1/128 wide each.
    """

    counts: tuple[tuple[int, int], ...] = ()
    below_zero: int = 0
    """Times that only a wrong clock offset can make."""


@dataclass(frozen=True)
class Stall:
    """Packets that were due between two times after the common start, and not offered for that.

    They are unsent, or where the sender has a count went later.
    """

    from_ns: int
    until_ns: int
    packets: int


@dataclass(frozen=True)
class LogFiles:
    """The files of one worker's log as they were found once a phase was over."""

    path: str
    """Of all of them, up to their number."""
    files: int
    size_bytes: int


@dataclass(frozen=True)
class WorkerStats:
    """Counts of one worker; keys of ``counts`` are the C field names (native/udpbench.h).

    What its way of reading cannot see is not there. Once its loop has ended there are the thread's
    ``user_ns system_ns voluntary_switches involuntary_switches`` (getrusage(2)) as well, and of one
    with a fault ``purged_packets`` in ``purged_messages``, which nobody read.
    """

    worker: str
    role: Role
    cpu: Optional[int]
    counts: dict[str, int]
    socket_inodes: tuple[int, ...] = ()
    buffer_bytes: Optional[int] = None
    """SO_RCVBUF or SO_SNDBUF as read back (the kernel's doubled value)."""
    cpus_seen: tuple[int, ...] = ()
    """CPUs the worker's thread was found on; placement held where this is its own CPU alone."""
    memory_bytes: Optional[int] = None
    """The share of memory (PSS) of the worker's process once a phase was over; threads share it."""
    pid: Optional[int] = None
    process_cpu_ns: Optional[int] = None
    """User and system time of the worker's process over the phase; threads share it."""
    process_memory_bytes: Optional[int] = None
    """Resident memory of the worker's process, the mean of all samples; threads share it."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """Once the loop has ended. Sender: pacing, round_trip; receiver: delay, stack, application."""
    stalls: tuple[Stall, ...] = ()
    """Of a paced sender whose loop has ended; neighbours are one where there were many."""
    log: Optional[LogFiles] = None


@dataclass(frozen=True)
class Snapshot:
    """Raw counters of one host at one time on its own CLOCK_MONOTONIC, by dotted name.

    Names: ``snmp.Udp.InErrors``, ``netstat.IpExt.InNoECTPkts``, ``softnet.cpu0.dropped``,
    ``link.receive0.rx_packets``, ``qdisc.send0.drops``, ``ethtool.receive0.rx_queue_0_drops``,
    ``cpu.0.softirq_ns``, ``socket.<inode>.drops``, ``rt_cache.in_martian_src``,
    ``reason.NO_SOCKET``, ``snmp6.Udp6NoPorts``, ``conntrack.drop``,
    ``interrupt.34.cpu1``, ``firewall.<target>``.
    """

    host: str
    clock_ns: int
    counters: dict[str, int]


@dataclass(frozen=True)
class Sample:
    """One worker's counts in motion, each total since the phase began.

    In a phase of up to a minute with the packets of each millisecond that has ended since the
    sample before, from ``first_ms`` after the start on; in a longer one with their least, median
    and most. Packets are sent ones, or received ones.
    """

    worker: str
    clock_ns: int
    counts: dict[str, int]
    first_ms: Optional[int] = None
    packets_per_ms: tuple[int, ...] = ()
    range_per_ms: Optional[tuple[int, int, int]] = None


@dataclass(frozen=True)
class ClockReading:
    """How far a host's CLOCK_MONOTONIC was ahead of the controller's, at one moment."""

    at_ns: int
    """On the controller's CLOCK_MONOTONIC."""
    offset_ns: int
    bound_ns: int
    """The offset is wrong by at most so much: half the least round trip; 0 on one machine."""


@dataclass(frozen=True)
class Phase:
    """One phase of a trial as it was: snapshots of every host before and after, final counts."""

    name: PhaseName
    tag: int
    start_ns: dict[str, int]
    """Host → the common start in that host's CLOCK_MONOTONIC."""
    before: dict[str, Snapshot]
    after: dict[str, Snapshot]
    stats: tuple[WorkerStats, ...]
    flows: dict[str, tuple[FlowStats, ...]]
    """Host → its flows' counts."""
    clocks: dict[str, tuple[ClockReading, ...]] = field(default_factory=dict)
    """Host → its clock when the phase was started, and of a measured one when it was over."""
    faults: tuple[WorkerStats, ...] = ()
    """What was sent and read beside the traffic, so that it is lost on purpose."""


@dataclass(frozen=True)
class Finding:
    """Something a reader must know before believing a number."""

    severity: Literal["note", "warning", "invalid"]
    what: str
    where: str = ""
    value: Optional[str] = None
    limit: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        value = f" ({self.value})" if self.value is not None else ""
        tail = "".join(f"; {part}" for part in (self.limit, self.next_step) if part)
        return f"{head}{self.what}{value}{tail}"


@dataclass(frozen=True)
class TrialRecord:
    """The unit of storage: raw, append-only, enough to derive everything else at any time."""

    trial: Trial
    status: Literal["done", "failed", "skipped"]
    started_at: str
    """UTC, ISO 8601."""
    built_in_lab: bool
    error: Optional[dict[str, str]] = None
    """``{kind, message, host}`` of a failed trial; of a skipped one kind is ``skipped``."""
    facts: dict[str, Facts] = field(default_factory=dict)
    changes: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    workers: tuple[WorkerSpec, ...] = ()
    phases: tuple[Phase, ...] = ()
    series: tuple[Sample, ...] = ()
    """The measured phase in motion; stored in series.jsonl and joined by the reader."""
    motion: tuple[Snapshot, ...] = ()
    """Counters of the measured phase each second, of each host those that moved since the one
    before; stored beside the series."""
    environment_after: dict[str, dict[str, str]] = field(default_factory=dict)
    """Host → its environment once the measured phase was over; it should be as in its facts."""
    findings: tuple[Finding, ...] = ()
    """What control noticed; ``judge`` adds its own."""
    overhead_ns: dict[str, int] = field(default_factory=dict)
    """Step of the trial → time it took, phases included."""
    schema: int = RECORD_SCHEMA


# --- what is derived -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One line of a ledger: packets that ended at a stage; None where it cannot be observed."""

    stage: str
    packets: Optional[int]
    source: str
    """The counters it was read from, as an expression a reader can check by hand."""
    at_most: Optional[int] = None
    """Where the kernel counted skbs of unknown size: ``packets`` at least, and so many at most."""
    parts: dict[str, int] = field(default_factory=dict)
    """The same by queue, CPU, worker or counter, where it is counted so; what moved alone."""
    also: dict[str, int] = field(default_factory=dict)
    """Other counters of the same place, by name; they are never added, and must agree."""


@dataclass(frozen=True)
class Ledger:
    """Where every packet went: intended = Σ entries + received + unaccounted.

    Received are those that reached the end of their way: the application, or its log if it has one.
    """

    intended_packets: int
    received_packets: int
    entries: tuple[Entry, ...]
    unaccounted: Optional[int]
    """Nearest to 0 where an entry lies between two numbers."""


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
    machine does not offer, as cycles and instructions often, is not there."""


@dataclass(frozen=True)
class Result:
    """What one trial says; derived from its record by ``judge`` and by nothing else."""

    trial: Trial
    status: Literal["done", "failed", "skipped"]
    valid: bool
    findings: tuple[Finding, ...]
    intended_packets: Optional[int] = None
    sent_packets: Optional[int] = None
    received_packets: Optional[int] = None
    lost_packets: Optional[int] = None
    offered_pps: Optional[float] = None
    delivered_pps: Optional[float] = None
    delivered_mib_s: Optional[float] = None
    delivered_pps_spread: Optional[float] = None
    loss_ratio: Optional[float] = None
    send_calls_per_packet: Optional[float] = None
    skbs_per_packet: Optional[float] = None
    send_cpu_ns_per_packet: Optional[float] = None
    receive_cpu_ns_per_packet: Optional[float] = None
    delay_min_ns: Optional[int] = None
    """From when a packet was due until the call that read it had returned (RFC 1242 latency, RFC
    7679 one-way delay); so all of the delays. None where clocks or the sample do not carry it."""
    delay_p50_ns: Optional[int] = None
    delay_p90_ns: Optional[int] = None
    delay_p99_ns: Optional[int] = None
    delay_p999_ns: Optional[int] = None
    delay_p9999_ns: Optional[int] = None
    delay_max_ns: Optional[int] = None
    delay_variation_p99_ns: Optional[int] = None
    """Above the least delay (RFC 3393, RFC 5481 PDV)."""
    rest_delay_p50_ns: Optional[int] = None
    """At rest: of the path check, before any load."""
    rest_delay_p90_ns: Optional[int] = None
    stack_delay_p50_ns: Optional[int] = None
    """Until the receiving kernel's own stamp; the application's part follows."""
    stack_delay_p99_ns: Optional[int] = None
    application_delay_p50_ns: Optional[int] = None
    application_delay_p99_ns: Optional[int] = None
    round_trip_min_ns: Optional[int] = None
    """From when a packet was due until its echo was read (RFC 2681)."""
    round_trip_p50_ns: Optional[int] = None
    round_trip_p90_ns: Optional[int] = None
    round_trip_p99_ns: Optional[int] = None
    round_trip_p999_ns: Optional[int] = None
    round_trip_max_ns: Optional[int] = None
    rest_round_trip_p50_ns: Optional[int] = None
    rest_round_trip_p90_ns: Optional[int] = None
    pacing_p50_ns: Optional[int] = None
    """From when a message was due until its call began."""
    pacing_p99_ns: Optional[int] = None
    pacing_p999_ns: Optional[int] = None
    pacing_max_ns: Optional[int] = None
    stalls: tuple[Stall, ...] = ()
    """What was due and given up, with its time after the start, over all senders."""
    send_cpu_load: Optional[float] = None
    """CPU time per time of the worker processes; 1 is one CPU all the time."""
    receive_cpu_load: Optional[float] = None
    send_memory_bytes: Optional[int] = None
    """Mean resident memory of the worker processes."""
    receive_memory_bytes: Optional[int] = None
    logged_packets: Optional[int] = None
    logged_pps: Optional[float] = None
    """By the stamps in the log."""
    log_files: Optional[int] = None
    log_bytes: Optional[int] = None
    ledger: Optional[Ledger] = None
    workers: tuple[WorkerResult, ...] = ()

    @property
    def ledger_received_packets(self) -> Optional[int]:
        """Packets that reached the end of their way, as the ledger closes; None without a ledger.

        Received ones, less those that a log could not take.
        """
        return self.ledger.received_packets if self.ledger is not None else None

    @property
    def unaccounted(self) -> Optional[int]:
        """Packets the ledger could not place, with their sign; None where there is no ledger."""
        return self.ledger.unaccounted if self.ledger is not None else None


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
    """What control reports while it works; ``report`` draws it and decides nothing.

    ``event``: run, host, step, phase, sample, trial, restore. ``samples`` of workers or
    ``snapshots`` accompany ``sample``: of each host first all counters as they were before the
    phase, then those that moved. ``record`` accompanies ``trial``, and ``phase`` with what the
    trial has so far.
    """

    event: Literal["run", "host", "step", "phase", "sample", "trial", "restore"]
    text: str
    trial: Optional[Trial] = None
    index: int = 0
    total: int = 0
    phase: Optional[PhaseName] = None
    samples: tuple[Sample, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    record: Optional[TrialRecord] = None
