"""The C loops as Python calls them: their configs, and the memory that loops and agent share.

Sole importer of ``udpbench._native``, and so the only place that knows the layout of that memory.
Opens nothing and takes no decision: the plan of ``agent/plan.py`` is complete.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from udpbench._native import ffi, lib

LINE_BYTES: int = lib.UB_CACHE_LINE_BYTES
STRUCTS = {"sender": "struct ub_send_stats", "receiver": "struct ub_receive_stats"}
SEND_CALLS = {"sendmmsg": lib.UB_SEND_SENDMMSG, "send": lib.UB_SEND_SEND}
RECEIVE_CALLS = {"recvmmsg": lib.UB_RECEIVE_RECVMMSG, "recv": lib.UB_RECEIVE_RECV}
WAITS = {
    "block": lib.UB_WAIT_BLOCK,
    # The socket has SO_BUSY_POLL; the call itself polls the device before it sleeps.
    "busy-poll": lib.UB_WAIT_BLOCK,
    "epoll": lib.UB_WAIT_EPOLL,
    "spin": lib.UB_WAIT_SPIN,
    "nap": lib.UB_WAIT_NAP,
}
READS = {
    "header": lib.UB_READ_HEADER,
    "copy": lib.UB_READ_COPY,
    "none": lib.UB_READ_NONE,
    "verify": lib.UB_READ_VERIFY,
}
FAULTS = {"hang": lib.UB_FAULT_HANG, "exit": lib.UB_FAULT_EXIT}
FIELDS: dict[str, tuple[str, ...]] = {
    role: tuple(name for name, _ in ffi.typeof(name_in_c).fields)
    for role, name_in_c in STRUCTS.items()
}
"""Role → names of its statistics, in the order in which they lie in memory."""


@dataclass(frozen=True)
class Layout:
    """Where things lie in the memory that a crew and its agent share; offsets in bytes."""

    role: str
    stats: tuple[int, ...]
    """One block of statistics for each worker; the control word lies at 0."""
    sequences: tuple[int, ...]
    """A sender's next sequence numbers, one u64 for each flow of each worker."""
    windows: int
    """A receiver's flow windows, shared by all its workers."""
    total: int


def layout(plan: dict[str, Any]) -> Layout:
    """Return the layout for a plan; the same computation on both sides of the memory."""
    role = plan["role"]
    at = _aligned(ffi.sizeof("struct ub_control"))
    stats, sequences = [], []
    for worker in plan["workers"]:
        stats.append(at)
        at += _aligned(ffi.sizeof(STRUCTS[role]))
        sequences.append(at)
        at += _aligned(8 * len(worker["flows"])) if role == "sender" else 0
    windows = at
    if role == "receiver":
        at += lib.ub_flow_state_bytes(plan["flow_count"], plan["window_words"])
    return Layout(role, tuple(stats), tuple(sequences), windows, _aligned(at))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


class Memory:
    """The shared memory as both sides use it: read at any time, one writer for each word."""

    def __init__(self, fd: int, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.layout = layout(plan)
        self._map = mmap.mmap(fd, self.layout.total)
        self.base = ffi.from_buffer(self._map, require_writable=True)

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

    def counts(self, worker: int) -> dict[str, int]:
        """Return one worker's statistics by their names in C."""
        stats = self.at(STRUCTS[self.layout.role] + " *", self.layout.stats[worker])
        return {name: getattr(stats, name) for name in FIELDS[self.layout.role]}

    def flows(self) -> list[tuple[int, int, int]]:
        """Return (flow, packets, highest sequence plus 1) of every flow."""
        if self.layout.role == "receiver":
            return self._received_flows()
        found = []
        for worker, offset in zip(self.plan["workers"], self.layout.sequences):
            following = self.at("uint64_t *", offset)
            for index, flow in enumerate(worker["flows"]):
                found.append((flow["flow"], following[index], following[index]))
        return found

    def _received_flows(self) -> list[tuple[int, int, int]]:
        windows = self.at("struct ub_flow_state *", self.layout.windows)
        totals = ffi.new("struct ub_flow_totals *")
        found = []
        for flow in self.plan["flow_numbers"]:
            lib.ub_flow_totals_read(windows, self.plan["window_words"], flow, totals)
            found.append((flow, totals.packets, totals.highest))
        return found


class Sending:
    """One sending worker's loop on the sockets of its flows, one phase after another."""

    def __init__(self, memory: Memory, index: int, opened: Sequence[socket.socket]) -> None:
        self._memory = memory
        self._index = index
        self._worker = memory.plan["workers"][index]
        self._sockets = ffi.new("int32_t[]", [one.fileno() for one in opened])
        self._flows = ffi.new("uint16_t[]", [flow["flow"] for flow in self._worker["flows"]])
        # Completions are numbered for the life of a socket, whatever is set back between phases.
        self._completions = ffi.new("uint32_t[]", len(opened))

    def run(self, phase: dict[str, Any]) -> int:
        """Send until the phase is over; 0 or a negative errno."""
        memory, options, counted = self._memory, self._memory.plan["options"], phase["count"]
        end_ns = phase["at_ns"] + phase["duration_ns"]
        values = {
            "call": SEND_CALLS[options["call"]],
            "batch": options["batch"],
            "size_bytes": options["size_bytes"],
            "flow_count": len(self._worker["flows"]),
            "sockets": self._sockets,
            "flows": self._flows,
            "sequences": memory.at("uint64_t *", memory.layout.sequences[self._index]),
            "tag": phase["tag"],
            "pace_sleeps": options["pace"] == "sleep",
            "rate_pps": self._worker["rate_pps"],
            "bucket_ns": options["bucket_ns"],
            "count": counted if counted is not None else self._worker["count_packets"],
            "epoch_ns": phase["at_ns"],
            "start_ns": phase["at_ns"],
            "end_ns": end_ns,
            "control": memory.at("struct ub_control *", 0),
            "gso_segments": options["gso_segments"],
            "tail_bytes": options["tail_bytes"],
            "zerocopy": options["zerocopy"],
            "zerocopy_next": self._completions,
        }
        config = ffi.new("struct ub_send_config *", values)
        stats = memory.at("struct ub_send_stats *", memory.layout.stats[self._index])
        loop = lib.ub_stream_send if options["protocol"] == "tcp" else lib.ub_send
        return int(loop(config, stats))


class Receiving:
    """One receiving worker's loop on its sockets, one phase after another."""

    def __init__(self, memory: Memory, index: int, opened: Sequence[socket.socket]) -> None:
        self._memory = memory
        self._index = index
        self._count = len(opened)
        self._sockets = ffi.new("int32_t[]", [one.fileno() for one in opened])

    def run(self, phase: dict[str, Any]) -> int:
        """Receive until told to stop; 0 or a negative errno."""
        memory, plan = self._memory, self._memory.plan
        options = plan["options"]
        values = {
            "call": RECEIVE_CALLS[options["call"]],
            "batch": options["batch"],
            "room_bytes": options["room_bytes"],
            "size_bytes": options["size_bytes"],
            "sockets": self._sockets,
            "socket_count": self._count,
            "tag": phase["tag"],
            "flow_count": plan["flow_count"],
            "window_words": plan["window_words"],
            "work_ns": options["work_ns"],
            "flows": memory.at("struct ub_flow_state *", memory.layout.windows),
            "control": memory.at("struct ub_control *", 0),
            "wait": WAITS[options["wait"]],
            "read": READS[phase["read"]],
            "gro": options["gro"],
            "tail_bytes": options["tail_bytes"],
            "nap_ns": options["wait_ns"] if options["wait"] == "nap" else 0,
            **self._fault(phase),
        }
        config = ffi.new("struct ub_receive_config *", values)
        stats = memory.at("struct ub_receive_stats *", memory.layout.stats[self._index])
        loop = lib.ub_stream_receive if options["protocol"] == "tcp" else lib.ub_receive
        return int(loop(config, stats))

    def _fault(self, phase: dict[str, Any]) -> dict[str, int]:
        fault = self._memory.plan["workers"][self._index]["fault"]
        if fault is None or not phase["faulty"]:
            return {}
        return {"fault": FAULTS[fault["does"]], "fault_at_ns": phase["at_ns"] + fault["after_ns"]}


def gso_max() -> int:
    """Return the most datagrams this kernel takes in one GSO message.

    Tried on the loopback interface, by a socket that is connected to itself. OSError where the
    kernel has no GSO for UDP, or the interface is down.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        probe.connect(probe.getsockname())
        found = int(lib.ub_gso_max(probe.fileno()))
    if found < 0:
        raise OSError(-found, "the kernel takes no GSO message on lo")
    return found
