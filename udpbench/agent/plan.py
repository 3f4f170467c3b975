"""Worker specifications as the plain plan of one worker process; pure, nothing is opened here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from udpbench.errors import WorkerFailed
from udpbench.model import WorkerSpec

WINDOW_WORD_BYTES = 8
WINDOW_WORDS_MIN = 64
WINDOW_WORDS_MAX = 4096
WINDOW_BUDGET_BYTES = 16 * 2**20
"""For the windows of all flows together: some tens of flows still have the longest window."""
ROOM_MIN_BYTES = 64


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
        "workers": [_worker(spec) for spec in specs],
    }


def _worker(spec: WorkerSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "cpu": spec.cpu,
        "flows": [asdict(flow) for flow in spec.flows] if spec.role == "sender" else [],
        "bind_port": spec.bind_port,
        # In the C config 0 stands for unlimited and for no count.
        "rate_pps": spec.rate_pps if spec.rate_pps is not None else 0,
        "count_packets": spec.count_packets if spec.count_packets is not None else 0,
    }


def sender_options(spec: WorkerSpec) -> dict[str, Any]:
    """Return what every sending worker of a host has in common."""
    if spec.send is None:
        raise WorkerFailed(f"{spec.name}: a sender without `send`")
    return {
        "call": spec.send.call,
        "batch": spec.send.batch,
        "pace": spec.send.pace,
        "bucket_ns": spec.send.bucket_ns,
        "buffer_bytes": spec.send.buffer_bytes,
        "force_buffer": spec.send.force_buffer,
        "size_bytes": spec.traffic.size_bytes,
        "ttl": spec.traffic.ttl,
        "fragment": spec.traffic.fragment,
    }


def receiver_options(spec: WorkerSpec) -> dict[str, Any]:
    """Return what every receiving worker of a host has in common.

    ``room: auto`` offers the run's own size and at least 64 B: what is longer is not of this run
    and appears as truncated; a larger room would only spread the batch over more cache lines.
    """
    if spec.receive is None:
        raise WorkerFailed(f"{spec.name}: a receiver without `receive`")
    size_bytes = spec.traffic.size_bytes
    room = spec.receive.room
    return {
        "call": spec.receive.call,
        "batch": spec.receive.batch,
        "room_bytes": max(size_bytes, ROOM_MIN_BYTES) if room == "auto" else room,
        "work_ns": spec.receive.work_ns,
        "buffer_bytes": spec.receive.buffer_bytes,
        "force_buffer": spec.receive.force_buffer,
        "size_bytes": size_bytes,
    }
