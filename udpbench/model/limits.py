"""Bounds, units and names that every subject of the vocabulary shares.

The rooms share frozen data without behaviour. Field names are the field's terms (RFC 2285, RFC
2544, RFC 1242, kernel names) and carry their unit. A YAML key is the field's name without its unit
suffix (``size_bytes`` is written ``size: 32B``); type, default and range of a key are declared
once, here or in ``host_settings``, and the definition reads them from there.
Python 3.9: annotations are evaluated by pydantic on the controller, so they say ``Optional``.
"""

from __future__ import annotations

import re
from typing import Literal, Optional

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
"""Numbers of a flow's datagrams, by which answers are told apart: 16 bits (native/udpbench.h)."""
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

Role = Literal["sender", "receiver"]
"""What a worker does."""
Part = Literal["sender", "link", "middle", "receiver"]
"""The part of the path of the packets: its ends are the hosts with workers of that name."""
Scope = Literal["namespace", "machine"]
PhaseName = Literal["path", "warmup", "measured"]
Edge = Literal["begin", "end", "path"]
"""Where a measured phase begins and ends; ``path``: either end of a path phase."""
LEDGER_STAGES = (
    "unsent",
    "tx_policy",
    "tx_netfilter",
    "tx_ipsec",
    "tx_qdisc",
    "tx_device",
    "link",
    "fwd_ring",
    "fwd_xdp",
    "fwd_backlog",
    "fwd_tc",
    "fwd_bridge",
    "fwd_tun",
    "fwd_encap",
    "fwd_ip",
    "fwd_prerouting",
    "fwd_conntrack",
    "fwd_rp_filter",
    "fwd_route",
    "fwd_local",
    "fwd_mtu",
    "fwd_netfilter",
    "fwd_neighbour",
    "fwd_rcvbuf",
    "fwd_decap",
    "fwd_ecn",
    "fwd_cells",
    "fwd_qdisc",
    "fwd_device",
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
FORWARDING_STAGES = tuple(stage for stage in LEDGER_STAGES if stage.startswith("fwd_"))
"""Those of each node that forwards: ``router1.fwd_netfilter``; the bare name sums all nodes."""
BEFORE_HOST = "before_host"
"""Where an iperf3 client's packets ended that did not reach this host, or that it never sent: of
all stages before the receiver's one, as nothing tells them apart."""
DRIVER_STAGES = ("tx_device", "fwd_ring", "fwd_xdp", "fwd_device", "rx_ring", "rx_xdp")
"""Those that a card's driver counts; the kernel's own code counts the others."""
_NODE_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\.(fwd_[a-z_]+)")
CPU_FREQUENCY = 999
"""Samples of each CPU a second: not in step with timers of whole milliseconds."""
SECOND_NS = 10**9
DAY_NS = 86400 * SECOND_NS
CPUS_MAX = 8192
"""CPUs of one machine: the most of any architecture (NR_CPUS in arch/*/Kconfig)."""
STACKS_MAX = 2**18
"""Rows of a machine's samples, and nodes of their tree."""
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
    "sampled_cpus": (0, CPUS_MAX - 1),
    **dict.fromkeys(("callers", "sampled_nodes"), (-2, STACKS_MAX)),
    **dict.fromkeys(("called", "sampled_pids"), (0, 2**22)),
}
"""Field of a record or a reply → least and most of its number, or of each in it; values beyond
would mean endless work."""
SWEPT_MAX = 256
"""Values of a point, and swept keys in one frame, where each is a column."""
TRIALS_MAX = 100_000
"""Trials of a run: they take two days, and their records, of 9 kB at least, are all that is read of
one (``json_lines.MOST_BYTES``)."""
ANSWERS_MAX = 2**15
"""Answers of an experiment: expectations and comparisons times points; half a million took 150 s
and 428 MB."""
PAIRS_MAX = 2**12
"""Pairs of points that an experiment compares; 32,000 took 75 s and 5 kB each."""
EXPECT_MAX = 256
"""Expectations of an experiment, each of which asks each of its trials: so many take 10 ms of a
trial, as long as judging it."""
COUNTERS_MAX = 2**17
"""Counters of a host at one time; 64 queues with interrupts on each of 1024 CPUs are half of it."""
THREADS_MAX = 64
"""Threads of one worker, or of one process that is watched, those that ran most."""
SEEN_MAX = 32
"""States and system calls in which a thread was seen."""
STRANGERS_MAX = 16
"""Sockets of others at the traffic's ports that are listed of one host at one time."""
STREAMS_MAX = 128
"""Streams of an iperf3 client: as many as iperf3 itself allows."""
ADDRESSES_MAX = 2**12
"""Addresses of one host, and of each list."""
NODES_MAX = 255
"""Nodes in the middle of a path: no packet lives longer (TTL)."""
SAMPLED = ("cpus", "pids", "nodes", "counts", "ns")
"""Columns of a machine's samples."""
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
    **dict.fromkeys(("functions", "callers", "called", "programs"), STACKS_MAX),
    **dict.fromkeys((f"sampled_{each}" for each in SAMPLED), STACKS_MAX),
    "lost_samples": CPUS_MAX,
    **dict.fromkeys(("exits", "bridges", "read_only"), NODES_MAX),
    "missing_anchors": 2**10,
    "expect": EXPECT_MAX,
    "compare": PAIRS_MAX,
    **dict.fromkeys(("streams", "asked", "ignored"), STREAMS_MAX),
}
"""Field of a record or a reply → most entries of it, and of each list in it."""
NUMBERED = (
    "lost_samples",
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


def stage_of(name: str) -> str:
    """Return the stage that a name is of: ``router1.fwd_netfilter`` is ``fwd_netfilter`` there."""
    return name.rpartition(".")[2]


def stages_after(name: str) -> tuple[str, ...]:
    """Return the stages that a packet passes later than this one."""
    return LEDGER_STAGES[LEDGER_STAGES.index(name) + 1 :]


def is_stage(name: str) -> bool:
    """Return whether a name is that of a stage, or of a stage at a node in the middle."""
    of_node = _NODE_STAGE.fullmatch(name)
    return name in LEDGER_STAGES if of_node is None else of_node.group(1) in FORWARDING_STAGES


SYSTEM_USERS = 1000, 61184, 65519
"""Users below the first are the system's (login.defs(5)), and those from the second to the third
are its services' (DynamicUser of systemd)."""


def is_system(user: int) -> bool:
    """Return whether a user is the system's, or one of its services'."""
    first, low, high = SYSTEM_USERS
    return user < first or low <= user <= high
