"""The workers of one agent: their state and samples, independent of what sends or receives.

Holds no socket and knows no C loop: a ``WorkerGroup`` counts the packets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Protocol

from udpbench.agent.host.environment import CPU
from udpbench.agent.host.files import read
from udpbench.agent.host.processes import RUNNABLE, STOPPED, any_in, interface_threads
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import open_sockets
from udpbench.agent.workers.attached import Attached
from udpbench.agent.workers.process_client import Limits, Spare, WorkerProcess
from udpbench.agent.workers.program import Program
from udpbench.agent.workers.samples import TICK_NS, Queues, Series
from udpbench.agent.workers.usage import ThreadSampler, Usage, shared_bytes
from udpbench.errors import HostError, SafetyError, WorkerFailed, to_wire
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import PACKETS_FIELD, FlowStats, Sample, WorkerStats
from udpbench.model.work import WorkerSpec
from udpbench.protocol import PhaseOrder, Prepared, SampleReply, WorkersState

USAGE_TICKS = SECOND_NS // TICK_NS
"""Interval between readings of the workers' memory."""


class WorkerGroup(Protocol):
    """What receives, or sends, on this host: ``prepare``, then per phase ``counts`` and ``stop``.

    The C loops (``WorkerProcess``), or a user's program, either started (``Program``) or already
    running (``Attached``).
    """

    prepared: tuple[Prepared, ...]
    """Its workers with their sockets' inodes, once prepared."""
    error: Optional[WorkerFailed]
    final_counts: dict[str, dict[str, int]]
    """Worker → what its thread used and left unread; filled when its loop ends."""

    @property
    def state(self) -> WorkersState:
        """State; ``done`` once all loops have ended, shortly after ``stop``.

        Senders end by themselves; those that await answers are ``listening`` until ``stop``.
        """

    @property
    def fileno(self) -> Optional[int]:
        """Descriptor that becomes readable when ``read`` has something to do."""

    def prepare(self) -> None:
        """Open the sockets; WorkerFailed lists every problem."""

    def start(self, order: PhaseOrder) -> None:
        """Begin a phase with all counts at zero."""

    def read(self) -> object:
        """Process pending events."""

    def counts(self, worker: int) -> dict[str, int]:
        """Return a worker's current counts; callable at any time."""

    def milliseconds(self, worker: int, since: int, ended: bool) -> tuple[int, Sequence[int]]:
        """Return the first available millisecond from ``since`` on, and packets in each."""

    def details(self, worker: int) -> dict[str, Any]:
        """Return further fields of a worker's ``WorkerStats``; only once done."""

    def flows(self) -> tuple[FlowStats, ...]:
        """Return every flow's counts; empty if flows are not distinguished."""

    def pids(self) -> frozenset[int]:
        """Return its processes."""

    def programs(self) -> frozenset[int]:
        """Return the processes of a user's program; none of our loops, whose threads are known."""

    def stop(self) -> None:
        """End the phase."""

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End it and close its sockets; return the output of a user's program."""


class Pool:
    """The workers of one agent: none, or workers of one role."""

    def __init__(self, host: Host, name: str, limits: Optional[Limits] = None) -> None:
        self._host = host
        self._name = name
        self._limits = limits if limits is not None else Limits()
        self._group: Optional[WorkerGroup] = None
        self._spare: Optional[Spare] = None
        self._place: tuple[str, Mapping[str, str]] = "", {}
        """The interface and the MAC addresses with which they were prepared."""
        self.specs: Sequence[WorkerSpec] = ()
        """Those prepared last; kept when they are closed."""
        self._samples: list[Sample] = []
        self._first = 0
        """Number of the first sample still kept."""
        self._queue_threads: Sequence[int] = ()
        self._queues = Queues(host, ())
        self._warms_up = False
        self.tick_ns = TICK_NS
        """The time between two calls of ``tick``."""
        self._reset(Series(0, None), ())

    def _reset(self, series: Series, pids: Sequence[int]) -> None:
        """Discard the state of the previous phase."""
        self._series = series
        self._usage = Usage(self._host, pids)
        self._sampler = ThreadSampler(self._host, {}, {}, (0, 0))
        self._cpus_seen: dict[str, set[int]] = {spec.name: set() for spec in self.specs}
        self._final: dict[str, dict[str, Any]] = {}

    @property
    def running(self) -> bool:
        """True while a loop runs."""
        return self._group is not None and self._group.state in ("running", "listening")

    @property
    def fileno(self) -> Optional[int]:
        """Descriptor that becomes readable when ``read`` has something to do."""
        return self._group.fileno if self._group is not None else None

    def launch(self) -> None:
        """Start the process of workers to come, if there are no workers."""
        if self._group is None and self._spare is None:
            self._spare = Spare()

    def _launched(self) -> Optional[Spare]:
        """Return the process that was launched, unless it has ended."""
        if self._spare is not None and self._spare.child.process.poll() is not None:
            self._end_launched()
        spare, self._spare = self._spare, None
        return spare

    def prepare(
        self,
        specs: Sequence[WorkerSpec],
        interface: str,
        macs: Optional[Mapping[str, str]] = None,
    ) -> tuple[Prepared, ...]:
        """Replace all workers; WorkerFailed lists every problem.

        Packets leave by ``interface`` or not at all; ``macs`` are for AF_XDP frames.
        """
        self.close()
        if not specs:
            return ()
        if len({spec.role for spec in specs}) > 1:
            raise SafetyError(
                "senders and receivers share a network namespace, so packets would go over lo; "
                "give each role its own host",
                self._name,
            )
        self.specs, self._samples, self._first = specs, [], 0
        self._reset(Series(0, None), ())
        self._place = interface, macs or {}
        self._group = self._made(specs, *self._place)
        receives = specs[0].role == "receiver"
        self._queue_threads = interface_threads(self._host, (interface,)) if receives else []
        try:
            self._group.prepare()
        except HostError:
            self.close()
            raise
        self._queues = Queues(self._host, self._group.prepared if receives else ())
        return self._group.prepared

    def stands(self, interface: str, macs: Mapping[str, str]) -> bool:
        """Return whether every worker is at rest, on its CPU, with its sockets open."""
        group = self._group
        if group is None or (interface, macs) != self._place:
            return False
        self.read()
        inodes = {*self.inodes()} if self.specs[0].traffic.protocol == "udp" else set()
        return (
            group.state in ("ready", "done")
            and not any_in(STOPPED, self._host, group.pids())
            and inodes == {*open_sockets(self._host, inodes)}
            and all(self._is_pinned(worker) for worker in group.prepared)
        )

    def _is_pinned(self, worker: Prepared) -> bool:
        if worker.cpu is None or worker.thread is None:
            return True
        try:
            return [worker.cpu] == self._host.affinity(worker.thread)
        except OSError:
            return False

    def _made(
        self, specs: Sequence[WorkerSpec], interface: str, macs: Mapping[str, str]
    ) -> WorkerGroup:
        receive = specs[0].receive
        if receive is not None and receive.command is not None:
            self._end_launched()
            return Program(self._host, self._name, specs, self._limits)
        if receive is not None and receive.attach is not None:
            self._end_launched()
            return Attached(self._host, self._name, specs)
        return WorkerProcess(self._name, specs, interface, self._limits, macs, self._launched)

    def start(self, order: PhaseOrder) -> None:
        """Start a phase; WorkerFailed unless at rest."""
        group = self._group
        if group is None:
            raise WorkerFailed("start: no workers; prepare them first", self._name)
        if group.state not in ("ready", "done"):
            state = group.error.message if group.error is not None else group.state
            raise WorkerFailed(f"start: the workers are not ready: {state}", self._name)
        self._samples, self._first = [], self._first + len(self._samples)
        self._warms_up = order.phase == "warmup"
        milliseconds = group.milliseconds if order.phase == "measured" else None
        pids = [worker.pid for worker in group.prepared]
        self._reset(Series(order.duration_ns, milliseconds, self.tick_ns), pids)
        if order.phase == "measured":
            self._sampler = self._sampler_of(group, order)
        self._queues.begin()
        group.start(order)
        self._tick(group)
        self.read()

    def _sampler_of(self, group: WorkerGroup, order: PhaseOrder) -> ThreadSampler:
        threads = {(w.pid, w.thread): w.worker for w in group.prepared if w.thread is not None}
        programs = dict.fromkeys(group.programs(), self.specs[0].name)
        until_ns = order.at_ns + order.duration_ns if order.count is None else None
        return ThreadSampler(self._host, threads, programs, (order.at_ns, until_ns))

    def leave_out(self, packets: int) -> None:
        """Do not count datagrams that this agent has read itself as read by a program."""
        if isinstance(self._group, (Program, Attached)):
            self._group.leave_out(packets)

    def read(self) -> None:
        """Process the workers' events; when they have ended, collect their final statistics."""
        group = self._group
        if group is None:
            return
        group.read()
        if group.state == "done" and not self._final:
            self._keep_samples(group, ended=True)
            self._note_progress(group)
            self._final = self._final_stats(group)

    def tick(self) -> None:
        """Sample every worker, if they are running."""
        if self._group is not None and self.running:
            self._tick(self._group)

    def _tick(self, group: WorkerGroup) -> None:
        if self._series.ticks % USAGE_TICKS == 0:
            self._usage.read_memory()
        if self._series.due():
            self._keep_samples(group, ended=False)
        self._sampler.sample()
        self._note_progress(group)

    def _note_progress(self, group: WorkerGroup) -> None:
        counts = [self._counts(group, index) for index in range(len(self.specs))]
        self._usage.read_cpu(sum(count[PACKETS_FIELD[self.specs[0].role]] for count in counts))

    def _keep_samples(self, group: WorkerGroup, ended: bool) -> None:
        clock_ns, queues = time.monotonic_ns(), self._queues.read()
        for index, spec in enumerate(self.specs):
            counts = {**self._counts(group, index), **queues.get(spec.name, {})}
            if self._warms_up:
                counts.update(self._clock(group, index))
            so_far = Sample(spec.name, clock_ns, counts)
            self._samples.append(self._series.sample(index, so_far, ended))

    def _clock(self, group: WorkerGroup, index: int) -> dict[str, int]:
        """Return the clock of a worker's CPU; empty if the kernel knows none."""
        cpu = group.prepared[index].cpu
        khz = read(self._host, f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq") or ""
        return {"cpu_khz": int(khz)} if khz.isdigit() else {}

    def _counts(self, group: WorkerGroup, index: int) -> dict[str, int]:
        """Return a worker's counts and record its last CPU."""
        counts = group.counts(index)
        last_cpu = counts.get("last_cpu", 0)  # 0: unknown; else CPU + 1
        if last_cpu != 0:
            self._cpus_seen[self.specs[index].name].add(last_cpu - 1)
        return counts

    def _final_stats(self, group: WorkerGroup) -> dict[str, dict[str, Any]]:
        """Return worker → those fields of its ``WorkerStats`` that only the end of a phase has."""
        pids = [worker.pid for worker in group.prepared]
        memory_bytes = {pid: shared_bytes(self._host, pid) for pid in set(pids)}
        stats, threads = {}, self._sampler.uses()
        for index, (spec, pid) in enumerate(zip(self.specs, pids)):
            cpu_ns, load_ns = self._usage.under_load(pid)
            stats[spec.name] = {
                "memory_bytes": memory_bytes[pid],
                "process_cpu_ns": cpu_ns,
                "process_load_ns": load_ns,
                "process_memory_bytes": self._usage.memory_bytes(pid),
                "threads": threads.get(spec.name, ()),
                **group.details(index),
            }
        return stats

    def sample(self, since: int) -> SampleReply:
        """Return the state, the samples from number ``since`` on, and the current counts.

        Samples below ``since`` have been delivered and are dropped.
        """
        group = self._group
        if group is None:
            return SampleReply("none", None, 0, (), (), (), None)
        self.read()
        queued_bytes, dropped_packets = self._in_sockets(group)
        arrived = min(max(since - self._first, 0), len(self._samples))
        self._samples, self._first = self._samples[arrived:], self._first + arrived
        return SampleReply(
            state=group.state,
            error=to_wire(group.error) if group.error is not None else None,
            next=self._first + len(self._samples),
            samples=tuple(self._samples),
            stats=self._stats(group),
            flows=group.flows(),
            queued_bytes=queued_bytes,
            dropped_packets=dropped_packets,
            polling=any_in(RUNNABLE, self._host, self._queue_threads),
        )

    def _stats(self, group: WorkerGroup) -> tuple[WorkerStats, ...]:
        stats = []
        for index, spec in enumerate(self.specs):
            prepared = group.prepared[index] if group.prepared else None
            final = group.final_counts.get(spec.name, {})
            counts = {**self._counts(group, index), **final}
            fields: dict[str, Any] = dict(self._final.get(spec.name, {}))
            if prepared is not None:
                fields.update(pid=prepared.pid, socket_inodes=prepared.socket_inodes)
                fields.update(zerocopy=prepared.zerocopy)
                fields.setdefault("buffer_bytes", prepared.buffer_bytes)
                fields.setdefault("filtered", prepared.filtered)
            cpu = prepared.cpu if prepared is not None else None
            seen = tuple(sorted(self._cpus_seen[spec.name]))
            stats.append(WorkerStats(spec.name, spec.role, cpu, counts, cpus_seen=seen, **fields))
        return tuple(stats)

    def _in_sockets(self, group: WorkerGroup) -> tuple[Optional[int], Optional[int]]:
        """Return bytes queued in sockets, and packets dropped there in this phase.

        Except those of workers with a planned fault.
        """
        if self.specs[0].role == "sender":
            return None, None
        served = [w for w, spec in zip(group.prepared, self.specs) if spec.fault is None]
        inodes = {inode for worker in served for inode in worker.socket_inodes}
        sockets = open_sockets(self._host, inodes)
        return sum(each.queued_bytes for each in sockets.values()), self._queues.dropped(sockets)

    def inodes(self) -> tuple[int, ...]:
        """Return the inodes of the workers' sockets, without duplicates."""
        workers = self._group.prepared if self._group is not None else ()
        return tuple(sorted({inode for worker in workers for inode in worker.socket_inodes}))

    def pids(self) -> frozenset[int]:
        """Return the processes of the workers."""
        own = self._group.pids() if self._group is not None else frozenset()
        return own if self._spare is None else own | {self._spare.child.process.pid}

    def stop(self) -> None:
        """Stop every loop; ``state`` shows when they have ended."""
        if self._group is not None:
            self._group.stop()

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End the workers and close their sockets; kill workers that do not end by themselves.

        Log files are removed, or renamed with the label ``keep_logs``. Returns the output of a
        user's program.
        """
        if self._group is None:
            return None
        group, self._group = self._group, None
        return group.close(keep_logs)

    def end(self) -> None:
        """End the workers, and the process that was launched for others."""
        try:
            self.close()
        finally:
            self._end_launched()

    def _end_launched(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()
