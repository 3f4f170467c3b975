"""The memory that loops and agent share: where things lie in it, and how they are read.

With ``loops`` the only importer of ``udpbench._native``. Both sides compute the same layout from
the same plan; whoever reads, reads at any time.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Optional

from udpbench._native import ffi, lib

LINE_BYTES: int = lib.UB_CACHE_LINE_BYTES
STRUCTS = {"sender": "struct ub_send_stats", "receiver": "struct ub_receive_stats"}
FIELDS: dict[str, tuple[str, ...]] = {
    role: tuple(name for name, _ in ffi.typeof(name_in_c).fields)
    for role, name_in_c in STRUCTS.items()
}
"""Role → names of its statistics, in the order in which they lie in memory."""
BESIDE = {
    "sender": {
        "pacing": "struct ub_histogram",
        "stalls": "struct ub_stalls",
        "milliseconds": "struct ub_milliseconds",
        "round_trip": "struct ub_histogram",
        "echo": "struct ub_echo_stats",
    },
    "receiver": {
        "delay": "struct ub_histogram",
        "stack": "struct ub_histogram",
        "application": "struct ub_histogram",
        "milliseconds": "struct ub_milliseconds",
        "log": "struct ub_log_stats",
    },
}
"""Role → what each worker leaves beside its statistics, by name."""
HISTOGRAMS = {
    role: tuple(name for name, kind in blocks.items() if kind == "struct ub_histogram")
    for role, blocks in BESIDE.items()
}
MILLISECONDS: int = lib.UB_MILLISECONDS


@dataclass(frozen=True)
class Layout:
    """Where things lie in the memory that a crew and its agent share; offsets in bytes."""

    role: str
    stats: tuple[int, ...]
    """One block of statistics for each worker; the control word lies at 0."""
    sequences: tuple[int, ...]
    """A sender's next sequence numbers, one u64 for each flow of each worker."""
    beside: tuple[dict[str, int], ...]
    """Each worker's blocks of BESIDE."""
    windows: int
    """A receiver's flow windows, shared by all its workers."""
    total: int


def layout(plan: dict[str, Any]) -> Layout:
    """Return the layout for a plan; the same computation on both sides of the memory."""
    role = plan["role"]
    at = _aligned(ffi.sizeof("struct ub_control"))
    stats, sequences, beside = [], [], []
    for worker in plan["workers"]:
        stats.append(at)
        at += _aligned(ffi.sizeof(STRUCTS[role]))
        sequences.append(at)
        at += _aligned(8 * len(worker["flows"])) if role == "sender" else 0
        blocks = {}
        for name, kind in BESIDE[role].items():
            blocks[name] = at
            at += _aligned(ffi.sizeof(kind))
        beside.append(blocks)
    windows = at
    if role == "receiver":
        at += lib.ub_flow_state_bytes(plan["flow_count"], plan["window_words"])
    return Layout(role, tuple(stats), tuple(sequences), tuple(beside), windows, _aligned(at))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


def places(worker: dict[str, Any], flows: Optional[Collection[int]]) -> list[int]:
    """Return the places in a sending worker's list of the flows that a phase sends; None: all."""
    listed = enumerate(worker["flows"])
    return [place for place, flow in listed if flows is None or flow["flow"] in flows]


class Memory:
    """The shared memory as both sides use it: read at any time, one writer for each word."""

    def __init__(self, fd: int, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.layout = layout(plan)
        self._map = mmap.mmap(fd, self.layout.total)
        self.base = ffi.from_buffer(self._map, require_writable=True)
        self.flows_sent: Optional[Collection[int]] = None
        """Numbers of the flows that the phase sends; None: all. Sequences are counted for these."""

    def at(self, c_type: str, offset: int) -> Any:
        """Return a C pointer of a type into the memory."""
        return ffi.cast(c_type, self.base + offset)

    def stop(self) -> None:
        """Tell every loop to leave; each sees it within 50 ms."""
        self.at("struct ub_control *", 0).stop = 1

    @property
    def stopped(self) -> bool:
        """True once the loops were told to leave."""
        return bool(self.at("struct ub_control *", 0).stop)

    def reset(self) -> None:
        """Count from zero again; only while no loop runs."""
        ffi.memmove(self.base, bytes(self.layout.total), self.layout.total)

    def block(self, worker: int, name: str) -> Any:
        """Return what a worker leaves beside its statistics, by its name in BESIDE."""
        kind = BESIDE[self.layout.role][name]
        return self.at(kind + " *", self.layout.beside[worker][name])

    def counts(self, worker: int) -> dict[str, int]:
        """Return one worker's statistics by their names in C, and those of its log or its ear."""
        stats = self.at(STRUCTS[self.layout.role] + " *", self.layout.stats[worker])
        found = {name: getattr(stats, name) for name in FIELDS[self.layout.role]}
        for name in (*self._in_use("echo", "echo_every"), *self._in_use("log", "log")):
            block = self.block(worker, name)
            found |= {field: getattr(block, field) for field, _ in ffi.typeof(block).item.fields}
        return found

    def _in_use(self, block: str, option: str) -> tuple[str, ...]:
        used = block in BESIDE[self.layout.role] and self.plan["options"].get(option)
        return (block,) if used else ()

    def histograms(self, worker: int) -> dict[str, tuple[list[tuple[int, int]], int]]:
        """Return name → (bucket, count) of the buckets that hold any, and the count below zero."""
        found = {}
        for name in HISTOGRAMS[self.layout.role]:
            block = self.block(worker, name)
            counts = ffi.unpack(block.counts, lib.UB_HISTOGRAM_BUCKETS)
            filled = [(bucket, count) for bucket, count in enumerate(counts) if count]
            if filled or block.below_zero:
                found[name] = filled, int(block.below_zero)
        return found

    def stalls(self, worker: int) -> list[tuple[int, int, int]]:
        """Return a sender's stalls as (from, until, packets); only once its loop has ended."""
        block = self.block(worker, "stalls")
        return [(one.from_ns, one.until_ns, one.packets) for one in block.list[0 : block.count]]

    def milliseconds(self, worker: int, since: int, ended: bool) -> tuple[int, list[int]]:
        """Return the first millisecond from ``since`` on that is there, and packets from it on.

        The one that is being counted belongs to it only once the loop has ``ended``.
        """
        block = self.block(worker, "milliseconds")
        begun = block.begun
        until = begun if ended else max(begun - 1, 0)
        # One place is being written while this reads.
        first = max(since, until - MILLISECONDS + 1, 0)
        return first, [block.packets[at % MILLISECONDS] for at in range(first, until)]

    def flows(self) -> list[tuple[int, int, int]]:
        """Return (flow, packets, highest sequence plus 1) of every flow."""
        if self.layout.role == "receiver":
            return self._received_flows()
        found = []
        for worker, offset in zip(self.plan["workers"], self.layout.sequences):
            following = self.at("uint64_t *", offset)
            for index, place in enumerate(places(worker, self.flows_sent)):
                flow = worker["flows"][place]["flow"]
                found.append((flow, following[index], following[index]))
        return found

    def _received_flows(self) -> list[tuple[int, int, int]]:
        windows = self.at("struct ub_flow_state *", self.layout.windows)
        totals = ffi.new("struct ub_flow_totals *")
        found = []
        for flow in self.plan["flow_numbers"]:
            lib.ub_flow_totals_read(windows, self.plan["window_words"], flow, totals)
            found.append((flow, totals.packets, totals.highest))
        return found
