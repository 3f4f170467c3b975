"""What is known of workers only at their end: statistics too large for each sample, last words.

Reads what is there and derives nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from udpbench.agent import logs
from udpbench.agent.usage import Usage
from udpbench.model import Histogram, Stall

if TYPE_CHECKING:
    from udpbench.agent.memory import Memory

STDERR_LINES = 5


def end_of(memory: Memory, index: int, name: str, usage: Usage, pid: int) -> dict[str, Any]:
    """Return the fields of a worker's ``WorkerStats`` that its end fills, by name."""
    log = memory.plan["options"].get("log")
    stalls = memory.stalls(index) if memory.layout.role == "sender" else ()
    return {
        "process_cpu_ns": usage.cpu_ns(pid),
        "process_memory_bytes": usage.memory_bytes(pid),
        "histograms": {
            name: Histogram(tuple(counts), below_zero)
            for name, (counts, below_zero) in memory.histograms(index).items()
        },
        "stalls": tuple(Stall(*one) for one in stalls),
        "log": logs.found(logs.path_of(log, name)) if log is not None else None,
    }


def how_ended(stderr: int, status: int) -> str:
    """Return how a process ended, with the last words of all that share its stderr, a file."""
    # At a position of its own: workers that still live write at the file's.
    text = os.pread(stderr, os.fstat(stderr).st_size, 0).decode(errors="replace")
    words = text.splitlines()[-STDERR_LINES:]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    said = f": {' | '.join(words)}" if words else ""
    return f"ended by itself with {how}{said}"
