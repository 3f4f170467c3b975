"""The UDP sockets of an iperf3 client's streams, and the C loop that reads them in a thread.

Each socket is connected to its stream, so that nobody else's packets reach it. A group of workers
for ``pool``: sampled and counted as every other.
"""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Optional

from udpbench.agent.host.socket_options import inode
from udpbench.agent.workers.loops import LONG_NAP_NS, ClientReceiving
from udpbench.agent.workers.memory import Memory
from udpbench.agent.workers.orders import LoopOrder, loop_order
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.samples import TICK_NS
from udpbench.agent.workers.usage import Cost
from udpbench.errors import WorkerFailed
from udpbench.model.record import FlowStats, Histogram
from udpbench.model.served import SAMPLED_NS, ServedStream
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import PhaseOrder, Prepared, WorkersState

SAMPLED = 10
"""So often a test is sampled, where the time in between is neither too short nor too long."""
LATE_MS = 2 * LONG_NAP_NS // 10**6
"""A packet is dated by its arrival, and may be read so much later than those of other streams."""
NAPS_FROM_PACKETS = 64
"""That a buffer holds."""
OVERHEAD_BYTES = 1024
"""So much more than its payload the kernel charges most packets in a buffer."""


@dataclass
class Stream:
    """One stream of the client that is served."""

    sock: socket.socket
    flow: FlowSpec
    omitted_bytes: int = 0
    omitted_lost: int = 0
    """Read, and missing, when the time was over that the client leaves out."""

    def left_out_bytes(self, own: ServedStream, counts: Mapping[str, int]) -> int:
        """Return what it leaves out: if it does not say how many packets, by the clock here."""
        if own.omitted_packets is None:
            return self.omitted_bytes
        return counts["read_bytes"] * own.omitted_received // max(counts["read_packets"], 1)


def room_packets(streams: Sequence[Stream], size_bytes: int) -> int:
    """Return how many packets the smallest of their buffers holds."""
    rooms = (each.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for each in streams)
    return min(rooms) // (size_bytes + OVERHEAD_BYTES)


def wait_of(streams: Sequence[Stream], size_bytes: int) -> Literal["auto", "block", "epoll"]:
    """Return how to wait for packets: by naps only if what comes meanwhile has ample room."""
    if room_packets(streams, size_bytes) >= NAPS_FROM_PACKETS:
        return "auto"
    return "block" if len(streams) == 1 else "epoll"


class StreamGroup:
    """A ``WorkerGroup`` of one worker, a thread of this process, on the streams' sockets."""

    def __init__(
        self, name: str, spec: WorkerSpec, streams: Sequence[Stream], wide_counters: bool
    ) -> None:
        self.state: WorkersState = "none"
        self.error: Optional[WorkerFailed] = None
        self.prepared: tuple[Prepared, ...] = ()
        self.final_counts: dict[str, dict[str, int]] = {}
        self.fileno: Optional[int] = None
        self._name = name
        self._spec = spec
        self._streams = streams
        fd = os.memfd_create("udpbench-streams")
        try:
            self._memory = Memory(fd, [spec])
        finally:
            os.close(fd)
        sockets = [stream.sock for stream in streams]
        cpus = os.sched_getaffinity(0)
        room = room_packets(streams, spec.traffic.datagrams.longest_bytes)
        self._loop = ClientReceiving(self._memory, sockets, cpus, wide_counters, room)
        self._orders: queue.SimpleQueue[Optional[LoopOrder]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._ready = threading.Event()
        self._result: Optional[int] = None
        self._missing_packets = 0

    def _run(self) -> None:
        with suppress(OSError):  # read back as ``prepared.cpu``
            if self._spec.cpu is not None:
                os.sched_setaffinity(0, {self._spec.cpu})
        self._ready.set()
        order = self._orders.get()
        if order is None:
            return
        cost, result = Cost(), -errno.EIO
        try:
            result = self._loop.run(order)
        finally:
            self.final_counts[self._spec.name] = cost.end()
            self._result = result

    def prepare(self) -> None:
        """Start the thread; its sockets are open."""
        self._thread.start()
        self._ready.wait()
        thread = self._thread.native_id
        allowed = os.sched_getaffinity(thread or 0)
        self.prepared = (
            Prepared(
                worker=self._spec.name,
                pid=os.getpid(),
                cpu=min(allowed) if len(allowed) == 1 else None,
                socket_inodes=tuple(inode(stream.sock) for stream in self._streams),
                buffer_bytes=self._streams[0].sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
                thread=thread,
                filtered=False,
            ),
        )
        self.state = "ready"

    def start(self, order: PhaseOrder) -> None:
        """Begin to receive."""
        self.state = "running"
        self._orders.put(loop_order(self._spec, order))

    def read(self) -> object:
        """Notice that the loop has ended."""
        if self.state == "running" and self._result is not None:
            if self._result == 0:
                self.state = "done"
            else:
                reason = os.strerror(-self._result)
                self.state = "failed"
                self.error = WorkerFailed(f"the receiving loop ended with {reason}", self._name)
        return self.state

    def counts(self, worker: int) -> dict[str, int]:
        """Return the current counts."""
        return self._memory.counts(worker)

    def streams(self) -> list[dict[str, int]]:
        """Return the counts of each stream by C name."""
        return self._loop.streams()

    def loses(self) -> bool:
        """Return whether more packets are missing than when this was asked before."""
        before = self._missing_packets
        self._missing_packets = sum(stream["gap_packets"] for stream in self.streams())
        return self._missing_packets > before

    def milliseconds(self, worker: int, since: int, ended: bool) -> tuple[int, Sequence[int]]:
        """Return packets per millisecond, as ``Memory.milliseconds``."""
        return self._memory.milliseconds(worker, since, ended, LATE_MS)

    def details(self, worker: int) -> dict[str, Any]:
        """Return how long packets waited for the loop."""
        histograms = self._memory.histograms(worker)
        return {
            "histograms": {
                name: Histogram(tuple(counts), below_zero)
                for name, (counts, below_zero) in histograms.items()
            }
        }

    def flows(self) -> tuple[FlowStats, ...]:
        """Return every stream's counts."""
        return tuple(
            FlowStats(flow, packets, following - 1 if following else None)
            for flow, packets, following in self._memory.flows()
        )

    def pids(self) -> frozenset[int]:
        """Return this process."""
        return frozenset({os.getpid()})

    def programs(self) -> frozenset[int]:
        """Return none."""
        return frozenset()

    def stop(self) -> None:
        """End the loop, which takes up to 50 ms."""
        self._memory.stop()

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:  # noqa: ARG002 - it has none
        """End the thread and close the sockets."""
        self._memory.stop()
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join()
        for stream in self._streams:
            stream.sock.close()
        return None


class StreamPool(Pool):
    """A pool whose workers are those of a client's streams."""

    def open(
        self, spec: WorkerSpec, interface: str, streams: Sequence[Stream], wide_counters: bool
    ) -> StreamGroup:
        """Make the worker of a client's streams ready to receive."""
        self._next = StreamGroup(self._name, spec, streams, wide_counters)
        self.prepare((spec,), interface)
        return self._next

    def start(self, order: PhaseOrder) -> None:
        """Begin to receive."""
        self.tick_ns = min(max(order.duration_ns // SAMPLED, 2 * TICK_NS), SAMPLED_NS)
        super().start(order)

    def _made(self, *_: Any) -> StreamGroup:
        return self._next


class Pools:
    """The pools of all tests, as a loop needs them."""

    fileno = None

    def __init__(self) -> None:
        self.open: list[StreamPool] = []

    @property
    def running(self) -> bool:
        """Whether a client's packets are received."""
        return any(pool.running for pool in self.open)

    @property
    def tick_ns(self) -> int:
        """The time between two samples."""
        return min((pool.tick_ns for pool in self.open), default=TICK_NS)

    def tick(self) -> None:
        """Sample what runs."""
        for pool in self.open:
            pool.tick()
