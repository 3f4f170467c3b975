"""The agent's end of the worker process: starts it, sends orders, reads its loops' counts.

Runs in the agent's main thread, because a worker process ends with the thread that started it
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any, Callable, Optional, Union, cast

from udpbench.agent.host.files import lines_of
from udpbench.agent.host.forked import Forked
from udpbench.agent.host.own_python import own_command
from udpbench.agent.workers import logs
from udpbench.agent.workers.orders import Message, WorkerEvent, WorkersOrder, loop_order
from udpbench.errors import DeadlineExceeded, WorkerFailed, next_step
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import FlowStats, Histogram, Stall
from udpbench.model.work import WorkerSpec
from udpbench.protocol import PhaseOrder, Prepared, WorkersState, encode, read_message, write_line
from udpbench.ways import HEADER_COUNTS, UNSEEN_OF_STREAMS, read_named

STDERR_LINES = 5
WORKERS = "udpbench.agent.workers.process"
"""What a worker process is called."""


@dataclass(frozen=True)
class Limits:
    """Time limits of a worker process."""

    prepare_ns: int = 10 * SECOND_NS
    """To start and open its sockets; measured: 0.1 s."""
    answer_ns: int = 2 * SECOND_NS
    """To clear the shared memory and start its threads; measured: 0.5 ms."""
    close_ns: int = 2 * SECOND_NS
    """To see stop (50 ms) and end; then it is killed."""


Start = Callable[[tuple[int, int, int]], Union[subprocess.Popen[bytes], Forked]]
"""Starts a process on its stdin, stdout and stderr."""


def started(module: str, *words: str, fds: Sequence[int]) -> Start:
    """Return what starts a module as a process of its own."""

    def start(stdio: tuple[int, int, int]) -> subprocess.Popen[bytes]:
        stdin, stdout, stderr = stdio
        return subprocess.Popen(
            own_command(module, *words),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=fds,
            cwd="/",
            start_new_session=True,
        )

    return start


class Child:
    """A process of the agent that takes orders and reports events, each a line of a pipe."""

    def __init__(self, start: Start) -> None:
        self.errors: IO[bytes] = os.fdopen(os.memfd_create("udpbench-stderr"), "w+b")
        asking, orders = os.pipe()
        events, answering = os.pipe()
        self._orders, self._events = os.fdopen(orders, "wb"), os.fdopen(events, "rb")
        try:
            self.process = start((asking, answering, self.errors.fileno()))
        except BaseException:
            for file in (self._orders, self._events, self.errors):
                file.close()
            raise
        finally:
            os.close(asking)
            os.close(answering)
        self._lines = LinePipe(events)

    @property
    def ended(self) -> bool:
        """Whether all its events were read."""
        return self._lines.ended

    @property
    def fileno(self) -> Optional[int]:
        """Descriptor that is readable when ``read`` has something to do; None after the end."""
        return None if self.ended else self._lines.fd

    def order(self, order: object) -> None:
        """Send an order; OSError if the process has ended."""
        self._orders.write(write_line(encode(order)))
        self._orders.flush()

    def read(self, kind: type[Message], deadline_ns: int = 0) -> list[Message]:
        """Return the events that have arrived, or wait for some; ValueError if they are none."""
        lines = self._lines.read(deadline_ns) if not self.ended else []
        return [read_message(kind, line) for line in lines]

    def end(self, limit_s: float, kill: Callable[[int, int], None] = os.kill) -> None:
        """Let it end, as its orders have; after a limit kill it, or its group."""
        with suppress(OSError):
            self._orders.close()
        try:
            self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._events.close()
        self.errors.close()


class Spare:
    """A worker process that awaits its first order, and its memory, which has no size yet.

    A fork of the agent: to start Python takes longer than all that it does until its workers are
    ready.
    """

    def __init__(self) -> None:
        self.memory_fd = os.memfd_create("udpbench-workers")
        kept = (self.memory_fd,)
        try:
            self.child = Child(lambda stdio: Forked(_be_workers, stdio, kept, (WORKERS,)))
        except BaseException:
            os.close(self.memory_fd)
            raise

    def end(self) -> None:
        """End it unused."""
        os.close(self.memory_fd)
        self.child.process.kill()
        self.child.end(0)


def load_loops() -> Callable[[], int]:
    """Return what a worker process runs; only an agent with workers needs it, 30 ms of imports."""
    from udpbench.agent.workers.process import main

    return main


def _be_workers() -> int:
    os.chdir("/")
    return load_loops()()


class WorkerProcess:
    """A ``WorkerGroup`` for ``pool`` that runs the C loops: the workers of one role.

    One process; with ``workers_as: processes`` it forks one per worker.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[WorkerSpec],
        interface: str,
        limits: Limits,
        macs: Mapping[str, str],
        launched: Callable[[], Optional[Spare]] = lambda: None,
    ) -> None:
        refuse_impossible(specs)
        self.state: WorkersState = "none"
        self.error: Optional[WorkerFailed] = None
        self.prepared: tuple[Prepared, ...] = ()
        self.final_counts: dict[str, dict[str, int]] = {}
        self._name = name
        self._specs = specs
        self._interface = interface
        self._macs = macs
        self._limits = limits
        self._ended: set[str] = set()
        self._sent: set[str] = set()
        self._unseen: frozenset[str] = frozenset()
        load_loops()  # for the next fork
        from udpbench.agent.workers.memory import Memory

        spare = launched() or Spare()
        self._child, self._memory_fd = spare.child, spare.memory_fd
        try:
            self._memory = Memory(spare.memory_fd, specs)
        except BaseException:
            spare.end()
            raise
        os.close(spare.memory_fd)

    @property
    def fileno(self) -> Optional[int]:
        """Descriptor that is readable when ``read`` has something to do; None after the end."""
        return self._child.fileno

    def prepare(self) -> None:
        """Send the specifications and wait until every worker has its sockets."""
        flows, specs = self._specs[0].flows, tuple(self._specs)
        shared = all(spec.flows == flows for spec in specs)  # as of all receivers of a host
        if shared:
            specs = tuple(replace(spec, flows=()) for spec in specs)
        own = (os.getpid(), self._memory_fd, self._interface, dict(self._macs))
        self._order(WorkersOrder(*own, specs, flows if shared else None))
        self._await("ready", self._limits.prepare_ns)

    def start(self, order: PhaseOrder) -> None:
        """Start every loop on a phase with all counts at zero."""
        loops = loop_order(self._specs[0], order)
        self._ended.clear()
        self._sent.clear()
        self.final_counts.clear()
        self._unseen = unseen(self._specs[0], loops.read)
        self._memory.flows_sent = order.flows
        self._order(loops)
        self._await("started", self._limits.answer_ns)

    def _order(self, order: object) -> None:
        try:
            self._child.order(order)
        except OSError:
            self._note_end()
            raise cast("WorkerFailed", self.error) from None

    def _await(self, event: str, limit_ns: int) -> None:
        """Read answers until the event arrives; raises if the process failed or is too slow."""
        deadline_ns = time.monotonic_ns() + limit_ns
        while event not in self.read(deadline_ns):
            if self.error is not None:
                raise self.error
            if time.monotonic_ns() >= deadline_ns:
                limit_s = limit_ns / SECOND_NS
                text = f"timed out after {limit_s:g} s: the worker process is not {event}"
                raise DeadlineExceeded(text, self._name)

    def read(self, deadline_ns: int = 0) -> list[str]:
        """Process the worker process's events, or wait for some, and return their names."""
        events: list[WorkerEvent] = []
        try:
            events = self._child.read(WorkerEvent, deadline_ns)
        except ValueError as error:
            self._fail(f"the worker process wrote what is {error}; report this bug")
        for event in events:
            self._act(event)
        if self._child.ended and self.error is None:
            self._note_end()
        return [event.event for event in events]

    def _act(self, event: WorkerEvent) -> None:
        if event.event == "ready":
            self.prepared, self.state = event.prepared, "ready"
        elif event.event == "started" and self.error is None:
            self.state = "running"
        elif event.event == "failed":
            self._fail("; ".join(event.problems))
        elif event.event == "sent":
            self._sent.add(event.worker)
            self._note_sent()
        elif event.event == "ended":
            self.final_counts[event.worker] = event.counts
            self._note_loop_end(event.worker, event.errno, event.refused)
        elif event.event == "died":
            self._fail(f"{event.worker}: the process {self._exit_text(event.status)}")

    def _note_loop_end(self, worker: str, errno: int, refused: Optional[str]) -> None:
        self._ended.add(worker)
        if refused is not None:
            self._fail(f"{worker}: the loop refuses its config: {refused}; report this bug")
        elif errno != 0:
            reason = f"{os.strerror(errno)} (errno {errno}); {next_step(errno)}"
            self._fail(f"{worker}: the loop ended with {reason}")
        elif len(self._ended) == len(self._specs) and self.state in ("running", "listening"):
            self.state = "done"
        else:
            self._note_sent()

    def _note_sent(self) -> None:
        """Record when everything is sent and only answers are awaited."""
        sent = len(self._sent | self._ended) == len(self._specs)
        if self._sent and sent and self.state == "running":
            self.state = "listening"

    def _fail(self, text: str) -> None:
        """Keep the first failure; later ones are consequences."""
        self.state = "failed"
        if self.error is None:
            self.error = WorkerFailed(text, self._name)

    def _note_end(self) -> None:
        """Record the end of the process with its status and last output."""
        self._fail(f"the worker process {self._exit_text(self._child.process.wait())}")

    def _exit_text(self, status: int) -> str:
        return exit_text(self._child.errors.fileno(), status)

    def counts(self, worker: int) -> dict[str, int]:
        """Return the counts that a worker, given by index, can see."""
        counts = self._memory.counts(worker)
        return {name: count for name, count in counts.items() if name not in self._unseen}

    def milliseconds(self, worker: int, since: int, ended: bool) -> tuple[int, Sequence[int]]:
        """Return a worker's packets per millisecond, as ``Memory.milliseconds``."""
        return self._memory.milliseconds(worker, since, ended)

    def details(self, worker: int) -> dict[str, Any]:
        """Return further fields of a worker's ``WorkerStats``, once its loop has ended."""
        spec = self._specs[worker]
        stalls = self._memory.stalls(worker) if spec.role == "sender" else ()
        path = logs.path_of(spec.log, spec.name) if spec.log is not None else None
        return {
            "histograms": {
                name: Histogram(tuple(counts), below_zero)
                for name, (counts, below_zero) in self._memory.histograms(worker).items()
            },
            "stalls": tuple(Stall(*stall) for stall in stalls),
            "log": logs.total(path) if path is not None else None,
        }

    def flows(self) -> tuple[FlowStats, ...]:
        """Return every flow's counts; empty if no worker reads headers."""
        if self._unseen.issuperset(HEADER_COUNTS):
            return ()
        return tuple(
            FlowStats(flow, packets, following - 1 if following else None)
            for flow, packets, following in self._memory.flows()
        )

    def pids(self) -> frozenset[int]:
        """Return the worker process and the processes of its workers."""
        return frozenset({self._child.process.pid, *(worker.pid for worker in self.prepared)})

    def programs(self) -> frozenset[int]:
        """Return none."""
        return frozenset()

    def stop(self) -> None:
        """Stop every loop; each ends within 50 ms, at once if it waits."""
        self._memory.stop()
        with suppress(OSError):  # it has ended
            self._child.order(None)

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End the process: stop, end of file, SIGKILL after a deadline; then settle its logs.

        Logs of workers that were never ready may belong to another process, and stay.
        """
        self.stop()
        # The process group, so that worker processes end at the same time.
        self._child.end(self._limits.close_ns / SECOND_NS, os.killpg)
        for spec in self._specs if self.prepared else ():
            if spec.log is not None:
                logs.settle(logs.path_of(spec.log, spec.name), keep_logs)
        return None


def refuse_impossible(specs: Sequence[WorkerSpec]) -> None:
    """Raise WorkerFailed if a worker has no flow or no instructions."""
    idle = [spec.name for spec in specs if not spec.flows]
    if idle:
        raise WorkerFailed(f"{', '.join(idle)}: no flow to send or receive; lower `workers`")
    for spec in specs:
        if spec.role == "sender" and spec.send is None:
            raise WorkerFailed(f"{spec.name}: a sender without `send`")
        if spec.role == "sender" and spec.send is not None and spec.send.gso == "max":
            raise WorkerFailed(f"{spec.name}: gso: max must be a number by now")
        if spec.role == "receiver" and spec.receive is None:
            raise WorkerFailed(f"{spec.name}: a receiver without `receive`")


def unseen(spec: WorkerSpec, read: str) -> frozenset[str]:
    """Return the counts that a receiver's way of reading cannot know, which are not 0."""
    if spec.role == "sender":
        return frozenset()
    of_streams = UNSEEN_OF_STREAMS if spec.traffic.protocol == "tcp" else ()
    return frozenset((*read_named(read).unseen, *of_streams))


def exit_text(stderr: int, status: int) -> str:
    """Return how a process ended, with the last lines of the stderr file that workers share."""
    # pread: running workers still write at the file's own offset.
    text = os.pread(stderr, os.fstat(stderr).st_size, 0).decode(errors="replace")
    lines = lines_of(text)[-STDERR_LINES:]
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    text = f"ended unexpectedly ({how})"
    if not lines:
        return f"{text}; find out what ended it: `dmesg` there shows if memory ran out"
    return f"{text}: {' | '.join(lines)}; report it if it happens again"
