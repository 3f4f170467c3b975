"""What was counted: workers, samples, snapshots, phases, and the record of a trial.

Long, because all that a record holds is in one file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from typing import Literal, Optional

from udpbench.errors import rest_of_message
from udpbench.frozen import dataclass
from udpbench.model.experiment import Trial
from udpbench.model.host import Change, Facts, Inspection
from udpbench.model.lab import BETWEEN
from udpbench.model.limits import DRIVER_STAGES, Part, PhaseName, Role
from udpbench.model.served import ServedTest
from udpbench.model.work import WorkerSpec

RECORD_SCHEMA = 2
"""The schema of stored runs; ``records`` has its history and reads older ones."""


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
        counts = [count for _, count in self.counts]
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
class RecordedError:
    """An error as records keep it."""

    kind: str = ""
    """The name of its class; ``skipped`` or ``unavailable`` if a trial was not possible."""
    message: str = "no reason known"
    host: str = ""


OTHER_CALL = "other"
"""A system call that is not known by name."""


@dataclass(frozen=True)
class ThreadUse:
    """One thread of a receiver or sender between two looks at it during a phase."""

    name: str
    running_ns: int
    runnable_ns: int
    """It waited for a CPU: the second number of its schedstat, and a wait that has not ended."""
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
    """SO_RCVBUF or SO_SNDBUF as read back (the kernel's doubled value); of a user's program that of
    its smallest, after a phase."""
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
    """Stalls of a paced sender whose loop has ended; if there were many, neighbours are merged."""
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
    """Packets of this phase, each once."""
    own_packets: int
    """Packets of this phase, also repeated and damaged ones; all of a size that the run sends where
    headers are not read, and whatever a program has read."""
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
    """CPU time of children that ended meanwhile, if it waited for them."""
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
    """The peer of a connected socket."""
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
    """The number of a process that has one of them."""
    process: str
    sockets: int
    drops: int
    """Drops of those sockets since they were opened."""
    all_read: bool = True
    """Else both numbers are the least."""


UNBOUND = "port.no_socket"
"""The counter of datagrams that came to the watched port while no socket took them; only where the
kernel's drop reasons are counted."""


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
    by_root: bool = False
    """More rights would show the agent no more processes: it is root, or sees all of them."""


SOCKET = " socket "
"""Between host, and process and address, of a watched socket in place of a worker."""


@dataclass(frozen=True)
class Sample:
    """One worker's counts during a phase, as totals since it began.

    Of a watched host, also a socket's ``dropped_packets`` before and after each look with drops.

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
class CpuSamples:
    """What the CPUs of a machine did in a phase, sampled with the kernel's chains of calls.

    Functions form a tree: node *k* is ``functions[called[k]]``, called by the node ``callers[k]``
    before it; -1: by none. The columns ``sampled_…`` have a row for each CPU, process and node.
    """

    why: str = ""
    """Nothing was sampled, because of this."""
    clock: Optional[Literal["cpu-clock"]] = None
    """What samples are taken by: the kernel's own timer, which waits while interrupts are off."""
    period_ns: int = 0
    functions: tuple[str, ...] = ()
    callers: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    sampled_cpus: tuple[int, ...] = ()
    sampled_pids: tuple[int, ...] = ()
    """0: the idle task."""
    sampled_nodes: tuple[int, ...] = ()
    """-1: a program's own code; -2: a virtual machine's."""
    sampled_counts: tuple[int, ...] = ()
    sampled_ns: tuple[int, ...] = ()
    """The time that these samples stand for."""
    programs: dict[str, str] = field(default_factory=dict)
    """Process (text) → its name."""
    lost_samples: dict[str, int] = field(default_factory=dict)
    """CPU (text) → samples for which its ring had no room."""
    missing_anchors: tuple[str, ...] = ()
    """Anchors that this kernel does not have."""
    exact_idle: Optional[bool] = None
    """The kernel counts idle time in nanoseconds; False: in ticks; None: not known."""


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
    cpu_samples: dict[str, CpuSamples] = field(default_factory=dict)
    """Host that sees its machine → what its CPUs did, of a measured phase with ``cpu_time``."""

    @property
    def strangers(self) -> dict[str, tuple[str, ...]]:
        """Host → sockets of others that may have taken the traffic's packets, where there are."""
        edges = (self.before, self.after)
        seen = {
            host: dict.fromkeys(s for at in edges if host in at for s in at[host].strangers)
            for host in self.after
        }
        return {host: tuple(those) for host, those in seen.items() if those}


Status = Literal["done", "failed", "skipped"]
"""How a trial ended."""
ENDED = {"failed": "it failed", "skipped": "it was skipped"}
"""How a trial ended that was not done → the same in a sentence."""
FindingKind = Literal["", "timing", "bound", "skipped", "cpu_time"]
"""What is told apart of findings: series and starts alone, not counts, rates or the ledger; a rate
that is only a bound; why a trial was skipped; how CPU time was read."""


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
    kind: FindingKind = ""

    @property
    def clause(self) -> str:
        """Within a sentence: without the name of its kind, and what it strikes out."""
        kind, _, text = self.what.partition("; ")[0].partition(": ")
        return f"{ENDED[kind]}: {text}" if kind in ENDED else text or kind

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
    """The remainder of the whole trial."""
    counters: tuple[str, ...] = ()
    """Counters that moved by exactly that number, each with its host; drop reasons among them."""
    driver: Optional[str] = None
    """The driver of the interface at which it was tried."""
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

    def is_disproven(self, stage: str, family: int) -> bool:
        """Return whether another number than was lost at a stage was counted there."""
        return any(
            (proof.stage, proof.family) == (stage, family) and proof.packets != proof.counted
            for proof in self.proofs
            if proof.packets
        )


@dataclass(frozen=True)
class TrialRecord:
    """The unit of storage: raw data from which everything else can be derived at any time."""

    trial: Trial
    status: Status
    started_at: str
    """UTC, ISO 8601."""
    built_in_lab: bool
    between: dict[str, Part] = field(default_factory=BETWEEN.copy)
    """Node between the ends of the path → its part; before they were recorded, there was a bridge
    at most."""
    exits: dict[str, str] = field(default_factory=dict)
    """Node in the middle → the interface by which packets leave it."""
    bridges: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Node in the middle → its bridge, then the ports by which the traffic comes in and leaves; one
    alone of a node that routes what comes in there."""
    read_only: tuple[str, ...] = ()
    """Nodes in the middle whose settings may not be changed."""
    wired: bool = False
    """Each two hosts of the path are joined by a veth pair alone, which loses nothing."""
    error: Optional[RecordedError] = None
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
    served: Optional[ServedTest] = None
    """The iperf3 client that sent, if one did."""
    schema: int = RECORD_SCHEMA
