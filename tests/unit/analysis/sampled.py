"""Records whose CPUs were sampled: what each CPU was seen to do, as a chain of functions. Not a test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from analysis.build import MS, NAPI, READER, shared
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import CpuSamples, Process, TrialRecord

SENDER_PID, AGENT_PID, HOG_PID = 21, 10, 77
PERIOD_NS = MS
"""2,000 samples in the two seconds of a record."""
IDLE = ("default_idle", "do_idle", "cpu_startup_entry")
SYSCALL = ("do_syscall_64", "entry_SYSCALL_64_after_hwframe")
READS = ("udp_recvmsg", "inet_recvmsg", "__sys_recvmmsg", *SYSCALL)
SENDS = ("udp_sendmsg", "__sys_sendmmsg", *SYSCALL)
SOFTIRQ = ("net_rx_action", "handle_softirqs")


class Seen(NamedTuple):
    """Samples of a CPU in a process: innermost function first; None: its own code."""

    cpu: int
    pid: int
    chain: tuple[str, ...] | None
    count: int


def samples(seen: Iterable[Seen], **changes: Any) -> CpuSamples:
    """Return samples as an agent gives them."""
    functions: dict[str, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    rows = []
    for cpu, pid, chain, count in seen:
        node = -1
        for name in reversed(chain or ()):
            key = node, functions.setdefault(name, len(functions))
            node = nodes.setdefault(key, len(nodes))
        rows.append((cpu, pid, node, count))
    plain = CpuSamples(
        clock="cpu-clock",
        period_ns=PERIOD_NS,
        functions=tuple(functions),
        callers=tuple(caller for caller, _ in nodes),
        called=tuple(called for _, called in nodes),
        sampled_cpus=tuple(cpu for cpu, _, _, _ in rows),
        sampled_pids=tuple(pid for _, pid, _, _ in rows),
        sampled_nodes=tuple(node for _, _, node, _ in rows),
        sampled_counts=tuple(count for *_, count in rows),
        sampled_ns=tuple(count * PERIOD_NS for *_, count in rows),
        programs={str(HOG_PID): "hog", str(SENDER_PID): "python"},
        exact_idle=True,
    )
    return replace(plain, **changes)


QUIET = (
    Seen(0, NAPI.pid, ("veth_poll", "__napi_poll", "napi_threaded_poll"), 100),
    Seen(0, NAPI.pid, ("ip_rcv", "__napi_poll", "napi_threaded_poll"), 200),
    Seen(0, READER.pid, READS, 300),
    Seen(0, READER.pid, None, 200),
    Seen(0, 0, IDLE, 1200),
    Seen(1, SENDER_PID, SENDS, 100),
    Seen(1, 0, IDLE, 1900),
)
"""800 of the 2,000 ms of CPU 0 are busy, and 100 of CPU 1: as the kernel says in ``record``."""


def record(
    *more: Seen,
    seen: Iterable[Seen] = QUIET,
    busy_ms: int = 800,
    processes: Iterable[Process] = (),
    steal_ms: int = 0,
    changes: dict[str, Any] | None = None,
) -> TrialRecord:
    """Return a trial of 1,000 packets whose CPUs were sampled for two seconds."""
    run = Process(AGENT_PID, "udpbench", 0, "run")
    plain = shared(busy_ms, run, *processes, steal_ms=steal_ms)
    (phase,) = plain.phases
    sampled = {"machine": samples((*seen, *more), **(changes or {}))}
    return replace(plain, phases=(replace(phase, cpu_samples=sampled),))


WALL_NS = 2 * SECOND_NS
