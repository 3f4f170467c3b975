"""Worker specifications as the plain plan of one worker process; pure, nothing is opened here.

Owns what a plan holds and what its ways of reading leave unknown; resolves no symbol and asks no
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Optional

from udpbench.errors import WorkerFailed
from udpbench.model import HEADER_BYTES, Receive, WorkerSpec
from udpbench.units import parse_duration

WINDOW_WORD_BYTES = 8
WINDOW_WORDS_MIN = 64
WINDOW_WORDS_MAX = 4096
WINDOW_BUDGET_BYTES = 16 * 2**20
"""For the windows of all flows together: some tens of flows still have the longest window."""
ROOM_MIN_BYTES = 64
MESSAGE_BYTES = 65535
"""Room for any datagram, and for any number of them that UDP_GRO merged."""
BLIND = ("copy", "none")
"""Ways of reading that see no header."""
SEQUENCE_COUNTS = frozenset(
    ("duplicate_packets", "late_packets", "ancient_packets", "foreign_packets")
)
TRUNCATED = frozenset(("truncated_packets",))


def window_words(flow_count: int) -> int:
    """Return words of a flow's window: the largest power of two within the budget.

    A word stands for 32 packets, so 4096 words tell packets apart that are 131,072 out of order.
    """
    share = WINDOW_BUDGET_BYTES // (WINDOW_WORD_BYTES * flow_count)
    words = 1 << max(share.bit_length() - 1, 0)
    return min(max(words, WINDOW_WORDS_MIN), WINDOW_WORDS_MAX)


def plan(specs: Sequence[WorkerSpec], memory_fd: int, agent_pid: int) -> dict[str, Any]:
    """Return the plan for workers of one role; WorkerFailed where a worker has nothing to do."""
    idle = [spec.name for spec in specs if not spec.flows]
    if idle:
        raise WorkerFailed(f"{', '.join(idle)}: no flow to send or receive; lower `workers`")
    role = specs[0].role
    how = specs[0].send if role == "sender" else specs[0].receive
    numbers = sorted({flow.flow for spec in specs for flow in spec.flows})
    flow_count = numbers[-1] + 1
    return {
        "role": role,
        "workers_as": how.workers_as if how is not None else "threads",
        "agent_pid": agent_pid,
        "memory_fd": memory_fd,
        "flow_numbers": numbers,
        "flow_count": flow_count,
        "window_words": window_words(flow_count),
        "options": sender_options(specs[0]) if role == "sender" else receiver_options(specs[0]),
        "workers": [_worker(spec, specs) for spec in specs],
    }


def _worker(spec: WorkerSpec, specs: Sequence[WorkerSpec]) -> dict[str, Any]:
    return {
        "name": spec.name,
        "cpu": spec.cpu,
        "flows": [asdict(flow) for flow in spec.flows] if spec.role == "sender" else [],
        "bind_ports": list(spec.bind_ports),
        # In the C config 0 stands for unlimited and for no count.
        "rate_pps": spec.rate_pps if spec.rate_pps is not None else 0,
        "count_packets": spec.count_packets if spec.count_packets is not None else 0,
        "steering": _steering(spec, specs),
        "streams": _streams(spec, specs),
        "fault": _fault(spec, specs),
    }


def _fault(spec: WorkerSpec, specs: Sequence[WorkerSpec]) -> Optional[dict[str, Any]]:
    """Return the fault of a worker, which users count from 1; ``alone``: nobody shares its sockets.

    ``None`` where it has none.
    """
    receive = spec.receive
    if receive is None or receive.fault is None or receive.fault.worker != spec.index + 1:
        return None
    shared = receive.sockets == "shared"
    readers = [_readers(port, specs) for port in spec.bind_ports]
    return {**asdict(receive.fault), "alone": not shared or all(len(r) == 1 for r in readers)}


def _steering(spec: WorkerSpec, specs: Sequence[WorkerSpec]) -> dict[str, list[Optional[int]]]:
    """Return port → CPUs of its group's members in order, for the last of them alone.

    The kernel numbers members in the order in which they are bound, and the program that steers
    by CPU speaks of those numbers, so that whoever is bound last attaches it.
    """
    if spec.receive is None or spec.receive.sockets != "reuseport-cpu":
        return {}
    groups = {port: _readers(port, specs) for port in spec.bind_ports}
    return {
        str(port): [one.cpu for one in members]
        for port, members in groups.items()
        if members[-1] == spec
    }


def _streams(spec: WorkerSpec, specs: Sequence[WorkerSpec]) -> dict[str, int]:
    """Return port → TCP connections that a receiving worker takes: an even share of the flows."""
    if spec.role == "sender" or spec.traffic.protocol != "tcp":
        return {}
    found = {}
    for port in spec.bind_ports:
        readers = _readers(port, specs)
        flows = sum(flow.destination_port == port for flow in spec.flows)
        found[str(port)] = len(range(readers.index(spec), flows, len(readers)))
    return found


def _readers(port: int, specs: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    return [one for one in specs if port in one.bind_ports]


def sender_options(spec: WorkerSpec) -> dict[str, Any]:
    """Return what every sending worker of a host has in common."""
    if spec.send is None:
        raise WorkerFailed(f"{spec.name}: a sender without `send`")
    if spec.send.gso == "max":
        raise WorkerFailed(f"{spec.name}: gso: max must be a number by now")
    return {
        "protocol": spec.traffic.protocol,
        "family": spec.traffic.family,
        "call": spec.send.call,
        "batch": spec.send.messages,
        "gso_segments": 0 if spec.send.gso == "off" else spec.send.gso,
        "tail_bytes": spec.send.tail_bytes if spec.send.tail_bytes is not None else 0,
        "zerocopy": spec.send.zerocopy,
        "pace": spec.send.pace,
        "echo_every": spec.traffic.echo,
        "bucket_ns": spec.send.bucket_ns,
        "buffer_bytes": spec.send.buffer_bytes,
        "force_buffer": spec.send.force_buffer,
        "size_bytes": spec.traffic.size_bytes,
        "ttl": spec.traffic.ttl,
        "fragment": spec.traffic.fragment,
        "priority": spec.send.priority,
        "io_priority": "normal",
    }


def receiver_options(spec: WorkerSpec) -> dict[str, Any]:
    """Return what every receiving worker of a host has in common."""
    if spec.receive is None:
        raise WorkerFailed(f"{spec.name}: a receiver without `receive`")
    wait, wait_ns = waiting(spec.receive.wait)
    tail = spec.send.tail_bytes if spec.send is not None else None
    return {
        "protocol": spec.traffic.protocol,
        "family": spec.traffic.family,
        "call": spec.receive.call,
        "batch": spec.receive.messages,
        "gro": spec.receive.gro,
        "wait": wait,
        "wait_ns": wait_ns,
        "sockets": spec.receive.sockets,
        "read": spec.receive.read,
        "room_bytes": _room_bytes(spec, spec.receive),
        "work_ns": spec.receive.work_ns,
        "buffer_bytes": spec.receive.buffer_bytes,
        "force_buffer": spec.receive.force_buffer,
        "size_bytes": spec.traffic.size_bytes,
        "tail_bytes": tail if tail is not None else 0,
        "ttl": spec.traffic.ttl,
        "echo_every": spec.traffic.echo,
        "timestamps": spec.receive.timestamps,
        "priority": spec.receive.priority,
        "io_priority": spec.receive.io_priority,
        "log": asdict(spec.receive.log) if spec.receive.log is not None else None,
    }


def _room_bytes(spec: WorkerSpec, receive: Receive) -> int:
    """Return the room offered to each message, of a stream to each read.

    ``auto`` offers the run's own size and at least 64 B: what is longer is not of this run and
    appears as truncated; a larger room would only spread the batch over more cache lines.
    """
    if receive.room != "auto":
        return receive.room
    if receive.gro or spec.traffic.protocol == "tcp":
        return MESSAGE_BYTES
    return max(spec.traffic.size_bytes, ROOM_MIN_BYTES)


def waiting(text: str) -> tuple[str, int]:
    """Return the word and the nanoseconds of ``nap 100us``; 0 where a way of waiting has none."""
    word, _, duration = text.partition(" ")
    return word, parse_duration(duration) if duration else 0


def phase_order(plan: dict[str, Any], phase: dict[str, Any]) -> dict[str, Any]:
    """Return a phase with what is read and echoed in it, and whether faults happen.

    The path check reads headers whatever the trial does, because it tells flows apart; datagrams
    that are too small for one are counted. Faults are of the measured phase. Of the few packets of
    the path check each is echoed: that is the round trip at rest.
    """
    options, name = plan["options"], phase["phase"]
    read = options.get("read", "header")
    if name == "path" and read in BLIND and options["size_bytes"] >= HEADER_BYTES:
        read = "header"
    echo = options["echo_every"] or 0
    every = 1 if echo and name == "path" else echo
    told = {"read": read, "faulty": name == "measured", "echo_every": every}
    return {"flows": None, **phase, **told}


def unseen(role: str, protocol: str, read: str) -> frozenset[str]:
    """Return the counts of a receiver that its way of reading leaves unknown, not 0."""
    if role == "sender" or (protocol == "udp" and read not in BLIND):
        return frozenset()
    return SEQUENCE_COUNTS | (TRUNCATED if read == "none" else frozenset())
