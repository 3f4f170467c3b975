"""What an agent orders its worker process to do, and what that reports: each a line of a pipe.

First a ``WorkersOrder``, which ``ready`` or ``failed`` answers, then a ``LoopOrder`` for each
phase, and null when loops are to see that they were stopped, until the end of the pipe. What a line
means is checked as it is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Optional, TypeVar

from udpbench.json_lines import LinePipe
from udpbench.model.experiment import ReadName
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import PhaseOrder, Prepared, encode, read_message, write_line
from udpbench.ways import read_named

Message = TypeVar("Message")


@dataclass(frozen=True)
class WorkersOrder:
    """The workers of one role to prepare."""

    agent_pid: int
    memory_fd: int
    interface: str
    macs: dict[str, str]
    """Address → MAC, for AF_XDP frames."""
    specs: tuple[WorkerSpec, ...]
    flows: Optional[tuple[FlowSpec, ...]] = None
    """Those of each worker, if they are equal; up to tens of thousands are sent once."""


@dataclass(frozen=True)
class LoopOrder(PhaseOrder):
    """A phase, with what is read and echoed in it."""

    read: ReadName = "header"
    faulty: bool = False
    """Planned faults occur."""
    echo_every: int = 0


@dataclass(frozen=True)
class WorkerEvent:
    """What happened in a worker process."""

    event: Literal["ready", "started", "sent", "ended", "died", "failed"]
    worker: str = ""
    """Name of the worker that has sent everything, whose loop has ended, or that died."""
    prepared: tuple[Prepared, ...] = ()
    problems: tuple[str, ...] = ()
    errno: int = 0
    """With which its loop ended."""
    refused: Optional[str] = None
    """Why its loop refuses its config."""
    counts: dict[str, int] = field(default_factory=dict)
    """What its thread used and left unread."""
    status: int = 0
    """Exit status of a worker that died, negative for a signal."""


def loop_order(spec: WorkerSpec, order: PhaseOrder) -> LoopOrder:
    """Return a phase with what is read and echoed in it, and whether planned faults occur.

    The path check always reads headers, to distinguish flows; datagrams too small for a header are
    only counted. Faults occur in the measured phase only. In the path check every packet is
    echoed: that is the round-trip time at rest.
    """
    traffic, path = spec.traffic, order.phase == "path"
    read = spec.receive.read if spec.receive is not None else "header"
    if path and not read_named(read).sees_header and traffic.datagrams.have_headers:
        read = "header"
    echo_every = traffic.echo if traffic.echo is not None else 0
    if echo_every != 0 and path:
        echo_every = 1
    faulty = order.phase == "measured"
    return LoopOrder(**vars(order), read=read, faulty=faulty, echo_every=echo_every)


def send_message(fd: int, message: object) -> None:
    """Write a message as a line into a pipe.

    Several may write at once: up to PIPE_BUF a write is atomic (pipe(7)).
    """
    line = memoryview(write_line(encode(message)))
    while line:
        line = line[os.write(fd, line) :]


def messages(kind: type[Message], lines: LinePipe) -> Iterator[Message]:
    """Yield the messages of a pipe until it ends; raises ValueError for another one."""
    with suppress(EOFError):
        while True:
            yield read_message(kind, lines.next())
