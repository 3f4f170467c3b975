"""Memory shared by loops and agent: its layout, and how it is read.

Both sides compute the same layout from the same specifications; reading is safe at any time.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from udpbench._native import ffi, lib
from udpbench.model.work import WorkerSpec

LINE_BYTES: int = lib.UB_CACHE_LINE_BYTES
STRUCTS = {"sender": "struct ub_send_stats", "receiver": "struct ub_receive_stats"}
FIELDS: dict[str, tuple[str, ...]] = {
    role: tuple(name for name, _ in ffi.typeof(name_in_c).fields)
    for role, name_in_c in STRUCTS.items()
}
"""Role → names of its statistics, in memory order."""
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
"""Role → name → C type of each worker's further blocks."""
HISTOGRAMS = {
    role: tuple(name for name, kind in blocks.items() if kind == "struct ub_histogram")
    for role, blocks in BLOCKS.items()
}
MILLISECONDS: int = lib.UB_MILLISECONDS
WINDOW_WORD_BYTES = 8
WINDOW_WORDS_MIN = 64
WINDOW_WORDS_MAX = 4096
WINDOW_BUDGET_BYTES = 16 * 2**20
"""Memory for the windows of all flows; up to some tens of flows get the longest window."""


def window_words(flow_count: int) -> int:
    """Return the words of a flow's window: the largest power of two within the budget.

    A word covers 32 packets, so 4096 words cover packets that are up to 131,072 out of order.
    """
    share = WINDOW_BUDGET_BYTES // (WINDOW_WORD_BYTES * flow_count)
    words = 1 << max(share.bit_length() - 1, 0)
    return min(max(words, WINDOW_WORDS_MIN), WINDOW_WORDS_MAX)


@dataclass(frozen=True)
class Layout:
    """Layout of the memory shared by workers and agent; offsets in bytes."""

    role: str
    flows: tuple[int, ...]
    """Numbers of all flows, ascending."""
    stats: tuple[int, ...]
    """One block of statistics per worker; the control word is at offset 0."""
    sequences: tuple[int, ...]
    """A sender's next sequence numbers, one u64 per flow and worker."""
    blocks: tuple[dict[str, int], ...]
    """Each worker's blocks of BLOCKS."""
    windows: int
    """A receiver's flow windows, shared by its workers."""
    total: int

    @property
    def flow_count(self) -> int:
        """Number of windows: one for each flow number up to the highest."""
        return self.flows[-1] + 1

    @property
    def window_words(self) -> int:
        """Words per flow window."""
        return window_words(self.flow_count)


def layout(specs: Sequence[WorkerSpec]) -> Layout:
    """Return the layout for workers of one role; equal on both sides."""
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
    """Return the indices of a sending worker's flows that a phase sends; ``flows`` None: all."""
    return [index for index, flow in enumerate(spec.flows) if flows is None or flow.flow in flows]


class Memory:
    """The shared memory: readable at any time, one writer per word."""

    def __init__(self, fd: int, specs: Sequence[WorkerSpec]) -> None:
        """Map the memory of a descriptor, after resizing it to the layout."""
        self.specs = specs
        self.layout = layout(specs)
        os.ftruncate(fd, self.layout.total)
        self._map = mmap.mmap(fd, self.layout.total)
        self.base = ffi.from_buffer(self._map, require_writable=True)
        self.flows_sent: Optional[Collection[int]] = None
        """Numbers of the flows that the phase sends; None: all."""

    def at(self, c_type: str, offset: int) -> Any:
        """Return a pointer of a C type into the memory."""
        return ffi.cast(c_type, self.base + offset)

    def stop(self) -> None:
        """Stop every loop; each ends within 50 ms."""
        self.at("struct ub_control *", 0).stop = 1

    @property
    def stopped(self) -> bool:
        """True once ``stop`` was called."""
        return bool(self.at("struct ub_control *", 0).stop)

    def reset(self) -> None:
        """Reset all counts to zero; only while no loop runs."""
        ffi.memmove(self.base, bytes(self.layout.total), self.layout.total)

    def block(self, worker: int, name: str) -> Any:
        """Return a worker's block by name (BLOCKS)."""
        kind = BLOCKS[self.layout.role][name]
        return self.at(kind + " *", self.layout.blocks[worker][name])

    def counts(self, worker: int) -> dict[str, int]:
        """Return a worker's statistics by C name, including those of its log or listener."""
        stats = self.at(STRUCTS[self.layout.role] + " *", self.layout.stats[worker])
        counts = {name: getattr(stats, name) for name in FIELDS[self.layout.role]}
        for name in self._in_use(self.specs[worker]):
            block = self.block(worker, name)
            counts |= {field: getattr(block, field) for field, _ in ffi.typeof(block).item.fields}
        return counts

    def _in_use(self, spec: WorkerSpec) -> tuple[str, ...]:
        """Return the names of a worker's blocks that have counts of their own."""
        if self.layout.role == "sender":
            traffic = spec.traffic
            listens = {"echo": traffic.echo, "answers": traffic.answers}
            return tuple(name for name, asked in listens.items() if asked is not None)
        return ("log",) if spec.log is not None else ()

    def histograms(self, worker: int) -> dict[str, tuple[list[tuple[int, int]], int]]:
        """Return name → ((bucket, count) of non-empty buckets, count below zero)."""
        histograms = {}
        for name in HISTOGRAMS[self.layout.role]:
            block = self.block(worker, name)
            counts = ffi.unpack(block.counts, lib.UB_HISTOGRAM_BUCKETS)
            filled = [(bucket, count) for bucket, count in enumerate(counts) if count]
            if filled or block.below_zero:
                histograms[name] = filled, int(block.below_zero)
        return histograms

    def stalls(self, worker: int) -> list[tuple[int, int, int]]:
        """Return a sender's stalls as (from, until, packets); only after its loop has ended."""
        block = self.block(worker, "stalls")
        return [
            (stall.from_ns, stall.until_ns, stall.packets) for stall in block.list[0 : block.count]
        ]

    def milliseconds(
        self, worker: int, since: int, ended: bool, late_ms: int = 0
    ) -> tuple[int, list[int]]:
        """Return the first available millisecond from ``since`` on, and packets per ms from there.

        The current millisecond, and ``late_ms`` before, which a loop that dates packets by their
        arrival may still fill, are included only once the loop has ``ended``.
        """
        block = self.block(worker, "milliseconds")
        begun = block.begun
        until = begun if ended else max(begun - 1 - late_ms, 0)
        # The loop may be writing one slot during the read.
        first = max(since, until - MILLISECONDS + 1, 0)
        return first, [block.packets[at % MILLISECONDS] for at in range(first, until)]

    def flows(self) -> list[tuple[int, int, int]]:
        """Return (flow, packets, highest sequence + 1) of every flow."""
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
