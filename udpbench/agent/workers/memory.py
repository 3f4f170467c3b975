"""The memory that loops and agent share: where things lie in it, and how they are read.

With ``loops`` and ``host/native`` the only importer of ``udpbench._native``. Both sides compute the
same layout from the same specifications; reading is safe at any time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from udpbench._native import ffi, lib
from udpbench.model import WorkerSpec

LINE_BYTES: int = lib.UB_CACHE_LINE_BYTES
STRUCTS = {"sender": "struct ub_send_stats", "receiver": "struct ub_receive_stats"}
FIELDS: dict[str, tuple[str, ...]] = {
    role: tuple(name for name, _ in ffi.typeof(name_in_c).fields)
    for role, name_in_c in STRUCTS.items()
}
"""Role → names of its statistics, in the order in which they lie in memory."""
BLOCKS = {
    "sender": {
        "pacing": "struct ub_histogram",
        "stalls": "struct ub_stalls",
        "milliseconds": "struct ub_milliseconds",
        "round_trip": "struct ub_histogram",
        "echo": "struct ub_echo_stats",
        "answers": "struct ub_answers_stats",
    },
    "receiver": {
        "delay": "struct ub_histogram",
        "stack": "struct ub_histogram",
        "application": "struct ub_histogram",
        "milliseconds": "struct ub_milliseconds",
        "log": "struct ub_log_stats",
    },
}
"""Role → name → C type of the blocks that each worker has besides its statistics."""
HISTOGRAMS = {
    role: tuple(name for name, kind in blocks.items() if kind == "struct ub_histogram")
    for role, blocks in BLOCKS.items()
}
MILLISECONDS: int = lib.UB_MILLISECONDS
WINDOW_WORD_BYTES = 8
WINDOW_WORDS_MIN = 64
WINDOW_WORDS_MAX = 4096
WINDOW_BUDGET_BYTES = 16 * 2**20
"""For the windows of all flows together: some tens of flows still have the longest window."""


def window_words(flow_count: int) -> int:
    """Return words of a flow's window: the largest power of two within the budget.

    A word stands for 32 packets, so 4096 words cover packets that are up to 131,072 out of order.
    """
    share = WINDOW_BUDGET_BYTES // (WINDOW_WORD_BYTES * flow_count)
    words = 1 << max(share.bit_length() - 1, 0)
    return min(max(words, WINDOW_WORDS_MIN), WINDOW_WORDS_MAX)


@dataclass(frozen=True)
class Layout:
    """Where things lie in the memory that workers and agent share; offsets in bytes."""

    role: str
    flows: tuple[int, ...]
    """The numbers of all flows, in order."""
    stats: tuple[int, ...]
    """One block of statistics for each worker; the control word lies at 0."""
    sequences: tuple[int, ...]
    """A sender's next sequence numbers, one u64 for each flow of each worker."""
    blocks: tuple[dict[str, int], ...]
    """Each worker's blocks of BLOCKS."""
    windows: int
    """A receiver's flow windows, shared by all its workers."""
    total: int

    @property
    def flow_count(self) -> int:
        """Flows that the windows are for: one for each number up to the highest."""
        return self.flows[-1] + 1

    @property
    def window_words(self) -> int:
        """Words of each flow's window."""
        return window_words(self.flow_count)


def layout(specs: Sequence[WorkerSpec]) -> Layout:
    """Return the layout for workers of one role; the same on both sides of the memory."""
    role = specs[0].role
    flows = tuple(sorted({flow.flow for spec in specs for flow in spec.flows}))
    at = _aligned(ffi.sizeof("struct ub_control"))
    stats, sequences, blocks = [], [], []
    for spec in specs:
        stats.append(at)
        at += _aligned(ffi.sizeof(STRUCTS[role]))
        sequences.append(at)
        at += _aligned(8 * len(spec.flows)) if role == "sender" else 0
        offset_of = {}
        for name, kind in BLOCKS[role].items():
            offset_of[name] = at
            at += _aligned(ffi.sizeof(kind))
        blocks.append(offset_of)
    windows = at
    if role == "receiver":
        at += lib.ub_flow_state_bytes(flows[-1] + 1, window_words(flows[-1] + 1))
    offsets = tuple(stats), tuple(sequences), tuple(blocks)
    return Layout(role, flows, *offsets, windows, _aligned(at))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


def flow_indices(spec: WorkerSpec, flows: Optional[Collection[int]]) -> list[int]:
    """Return the indices in a sending worker's flows of those that a phase sends; None: all."""
    return [index for index, flow in enumerate(spec.flows) if flows is None or flow.flow in flows]


class Memory:
    """The shared memory as both sides use it: read at any time, one writer for each word."""

    def __init__(self, fd: int, specs: Sequence[WorkerSpec]) -> None:
        """Map the memory of a descriptor, which is made as large as both sides need it."""
        self.specs = specs
        self.layout = layout(specs)
        os.ftruncate(fd, self.layout.total)
        self._map = mmap.mmap(fd, self.layout.total)
        self.base = ffi.from_buffer(self._map, require_writable=True)
        self.flows_sent: Optional[Collection[int]] = None
        """Numbers of the flows that the phase sends; None: all. Sequences are counted for these."""

    def at(self, c_type: str, offset: int) -> Any:
        """Return a C pointer of a type into the memory."""
        return ffi.cast(c_type, self.base + offset)

    def stop(self) -> None:
        """Have every loop leave; each sees it within 50 ms."""
        self.at("struct ub_control *", 0).stop = 1

    @property
    def stopped(self) -> bool:
        """True once ``stop`` was called."""
        return bool(self.at("struct ub_control *", 0).stop)

    def reset(self) -> None:
        """Count from zero again; only while no loop runs."""
        ffi.memmove(self.base, bytes(self.layout.total), self.layout.total)

    def block(self, worker: int, name: str) -> Any:
        """Return a worker's block by its name in BLOCKS."""
        kind = BLOCKS[self.layout.role][name]
        return self.at(kind + " *", self.layout.blocks[worker][name])

    def counts(self, worker: int) -> dict[str, int]:
        """Return a worker's statistics by their names in C, with those of its log or listener."""
        stats = self.at(STRUCTS[self.layout.role] + " *", self.layout.stats[worker])
        counts = {name: getattr(stats, name) for name in FIELDS[self.layout.role]}
        for name in self._in_use(self.specs[worker]):
            block = self.block(worker, name)
            counts |= {field: getattr(block, field) for field, _ in ffi.typeof(block).item.fields}
        return counts

    def _in_use(self, spec: WorkerSpec) -> tuple[str, ...]:
        """Return the names of a worker's blocks with counts of their own."""
        if self.layout.role == "sender":
            traffic = spec.traffic
            listens = {"echo": traffic.echo, "answers": traffic.answers}
            return tuple(name for name, asked in listens.items() if asked is not None)
        return ("log",) if spec.log is not None else ()

    def histograms(self, worker: int) -> dict[str, tuple[list[tuple[int, int]], int]]:
        """Return name → (bucket, count) of the buckets that hold any, and the count below zero."""
        histograms = {}
        for name in HISTOGRAMS[self.layout.role]:
            block = self.block(worker, name)
            counts = ffi.unpack(block.counts, lib.UB_HISTOGRAM_BUCKETS)
            filled = [(bucket, count) for bucket, count in enumerate(counts) if count]
            if filled or block.below_zero:
                histograms[name] = filled, int(block.below_zero)
        return histograms

    def stalls(self, worker: int) -> list[tuple[int, int, int]]:
        """Return a sender's stalls as (from, until, packets); only once its loop has ended."""
        block = self.block(worker, "stalls")
        return [
            (stall.from_ns, stall.until_ns, stall.packets) for stall in block.list[0 : block.count]
        ]

    def milliseconds(self, worker: int, since: int, ended: bool) -> tuple[int, list[int]]:
        """Return the first millisecond from ``since`` on that is there, and packets from it on.

        The millisecond being counted is included only once the loop has ``ended``.
        """
        block = self.block(worker, "milliseconds")
        begun = block.begun
        until = begun if ended else max(begun - 1, 0)
        # One slot is being written while this reads.
        first = max(since, until - MILLISECONDS + 1, 0)
        return first, [block.packets[at % MILLISECONDS] for at in range(first, until)]

    def flows(self) -> list[tuple[int, int, int]]:
        """Return (flow, packets, highest sequence plus 1) of every flow."""
        if self.layout.role == "receiver":
            return self._received_flows()
        totals = []
        for spec, offset in zip(self.specs, self.layout.sequences):
            following = self.at("uint64_t *", offset)
            for number, index in enumerate(flow_indices(spec, self.flows_sent)):
                flow = spec.flows[index].flow
                totals.append((flow, following[number], following[number]))
        return totals

    def _received_flows(self) -> list[tuple[int, int, int]]:
        windows = self.at("struct ub_flow_state *", self.layout.windows)
        totals = ffi.new("struct ub_flow_totals *")
        received = []
        for flow in self.layout.flows:
            lib.ub_flow_totals_read(windows, self.layout.window_words, flow, totals)
            received.append((flow, totals.packets, totals.highest))
        return received
