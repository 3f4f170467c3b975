"""The agent's side of its workers: starts their process, reads their memory, knows their state.

Holds no socket and sends no packet itself. Everything here runs in the agent's main thread, because
a worker process must not outlive the thread that started it (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Optional, cast

from udpbench.agent import logs
from udpbench.agent.ending import end_of, how_ended
from udpbench.agent.host import Host
from udpbench.agent.plan import phase_order, plan, unseen
from udpbench.agent.series import TICK_NS, Series
from udpbench.agent.usage import Usage, shared_bytes
from udpbench.errors import DeadlineExceeded, HostError, SafetyError, WorkerFailed, to_wire
from udpbench.model import (
    SECOND_NS,
    FlowStats,
    Sample,
    WorkerSpec,
    WorkerStats,
)
from udpbench.protocol import Prepared, SampleReply, WorkersState, decode

USAGE_TICKS = SECOND_NS // TICK_NS
"""From one look at the workers' memory to the next."""


@dataclass(frozen=True)
class Limits:
    """How long a worker process may take before it counts as stuck."""

    prepare_ns: int = 10 * SECOND_NS
    """To start and open its sockets; measured: 0.1 s."""
    answer_ns: int = 2 * SECOND_NS
    """To clear the shared memory and set its threads going; measured: 0.5 ms."""
    close_ns: int = 2 * SECOND_NS
    """To see its stop (50 ms) and end; then it is killed."""


class Pool:
    """The workers of one agent: none, or one process with all workers of its role."""

    def __init__(self, host: Host, name: str, limits: Limits = Limits()) -> None:
        self._host = host
        self._name = name
        self._limits = limits
        self._crew: Optional[Crew] = None

    @property
    def running(self) -> bool:
        """True while a loop runs."""
        return self._crew is not None and self._crew.state == "running"

    @property
    def fileno(self) -> Optional[int]:
        """The descriptor to select on: readable when ``read`` has something to do."""
        return self._crew.answers if self._crew is not None and not self._crew.gone else None

    def prepare(self, specs: Sequence[WorkerSpec]) -> tuple[Prepared, ...]:
        """Start the workers, whatever was there before; WorkerFailed names all that went wrong."""
        self.close()
        if not specs:
            return ()
        if len({spec.role for spec in specs}) > 1:
            raise SafetyError(
                "senders and receivers in one namespace: the kernel would send by lo; "
                "give each role a host of its own",
                self._name,
            )
        self._crew = Crew(self._host, self._name, specs, self._limits)
        try:
            return self._crew.prepare()
        except HostError:
            self.close()
            raise

    def start(self, phase: dict[str, Any]) -> None:
        """Start every loop on a phase: {phase, tag, at_ns, duration_ns, count}; counts at zero."""
        if self._crew is None:
            raise WorkerFailed("start: there are no workers; prepare them first", self._name)
        self._crew.start(phase)

    def read(self) -> None:
        """Take in what the workers said since."""
        if self._crew is not None:
            self._crew.read()

    def tick(self) -> None:
        """Take one sample of every worker, if they run."""
        if self._crew is not None and self._crew.state == "running":
            self._crew.tick()

    def sample(self, since: int) -> SampleReply:
        """Return the state, the samples from number ``since`` on, and the counts as they are."""
        if self._crew is None:
            return SampleReply("none", None, 0, (), (), (), None)
        self._crew.read()
        return self._crew.reply(since)

    def inodes(self) -> tuple[int, ...]:
        """Return the inode numbers of the workers' sockets."""
        return self._crew.inodes() if self._crew is not None else ()

    def stop(self) -> None:
        """Tell every loop to leave; the state says when they have."""
        if self._crew is not None:
            self._crew.memory.stop()

    def close(self, keep_logs: Optional[str] = None) -> None:
        """End the worker process and with it the sockets; killed if it does not end by itself.

        Files of logs go with them, or get the label ``keep_logs`` into their names.
        """
        if self._crew is not None:
            crew, self._crew = self._crew, None
            crew.close(keep_logs)


class Crew:
    """One worker process, or with ``workers_as: processes`` one that has a process per worker."""

    def __init__(self, host: Host, name: str, specs: Sequence[WorkerSpec], limits: Limits) -> None:
        self.state: WorkersState = "none"
        self.gone = False
        self.prepared: tuple[Prepared, ...] = ()
        self._host = host
        self._name = name
        self._specs = specs
        self._limits = limits
        self._error: Optional[WorkerFailed] = None
        self._buffer = b""
        self._started = False
        self._ended: set[str] = set()
        self._samples: list[Sample] = []
        self._first = 0
        self._seen: dict[str, set[int]] = {spec.name: set() for spec in specs}
        self._memory_bytes: dict[int, Optional[int]] = {}
        self._told: dict[str, dict[str, int]] = {}
        self._series = Series(0, None)
        self._usage = Usage(host, ())
        self._ends: dict[str, dict[str, Any]] = {}
        self._unseen: frozenset[str] = frozenset()
        self._open()

    def _open(self) -> None:
        # Late, because only an agent that has workers needs the loops.
        from udpbench.agent.memory import Memory, layout

        fd = os.memfd_create("udpbench-workers")
        self._stderr: IO[bytes] = os.fdopen(os.memfd_create("udpbench-stderr"), "w+b")
        try:
            self.plan = plan(self._specs, fd, os.getpid())
            os.ftruncate(fd, layout(self.plan).total)
            self.memory = Memory(fd, self.plan)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "udpbench.agent.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=(fd,),
                # The very code that the agent runs, whatever lies in its working directory.
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                start_new_session=True,
            )
        finally:
            os.close(fd)
        self._orders = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self.answers = self._answers.fileno()
        os.set_blocking(self.answers, False)

    def prepare(self) -> tuple[Prepared, ...]:
        """Send the plan and wait until every worker has its socket."""
        self._order(self.plan)
        self._await("ready", self._limits.prepare_ns)
        return self.prepared

    def start(self, phase: dict[str, Any]) -> None:
        """Start a phase; raises WorkerFailed unless all loops are at rest."""
        if self.state not in ("ready", "done"):
            state = self._error.message if self._error is not None else self.state
            raise WorkerFailed(f"start: the workers are not at rest but {state}", self._name)
        self._samples, self._first = [], self._first + len(self._samples)
        self._ended.clear()
        self._told.clear()
        for seen in self._seen.values():
            seen.clear()
        order = phase_order(self.plan, phase)
        protocol = self.plan["options"]["protocol"]
        self._unseen = unseen(self.plan["role"], protocol, order["read"])
        self._ends.clear()
        measured = phase["phase"] == "measured"
        self._series = Series(order["duration_ns"], self.memory.milliseconds if measured else None)
        self._usage = Usage(self._host, [one.pid for one in self.prepared])
        self.memory.flows_sent = order["flows"]
        self._order(order)
        self._await("started", self._limits.answer_ns)
        self.tick()

    def _order(self, order: dict[str, Any]) -> None:
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except OSError:
            self._lose()
            raise cast("WorkerFailed", self._error) from None

    def _await(self, event: str, limit_ns: int) -> None:
        """Read answers until the event came; raises where the process failed or is too slow."""
        deadline_ns = time.monotonic_ns() + limit_ns
        while event not in self._take():
            if self._error is not None:
                raise self._error
            left_s = (deadline_ns - time.monotonic_ns()) / SECOND_NS
            if left_s <= 0:
                text = f"the worker process did not say {event!r} within {limit_ns / SECOND_NS} s"
                raise DeadlineExceeded(text, self._name)
            select.select([self.answers], [], [], left_s)

    def read(self) -> None:
        """Take in what the process said."""
        self._take()

    def _take(self) -> list[str]:
        """Return the events read now, having acted on each; on the last words before the end."""
        ended = self.gone
        try:
            while not ended:
                chunk = os.read(self.answers, 65536)
                self._buffer += chunk
                ended = not chunk
        except BlockingIOError:
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        events = [json.loads(line) for line in lines]
        for event in events:
            self._act(event)
        if ended and not self.gone:
            self._lose()
        return [event["event"] for event in events]

    def _act(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self.prepared = tuple(decode(Prepared, one) for one in event["workers"])
            self.state = "ready"
        elif event["event"] == "started" and self._error is None:
            self.state = "running"
        elif event["event"] == "failed":
            self._fail("; ".join(event["problems"]))
        elif event["event"] == "ended":
            self._told[event["worker"]] = event["counts"]
            self._end(event["worker"], event["errno"])
        elif event["event"] == "died":
            self._fail(f"{event['worker']}: its process {self._how_ended(event['status'])}")

    def _end(self, worker: str, errno: int) -> None:
        self._ended.add(worker)
        if errno != 0:
            self._fail(f"{worker}: its loop ended with {os.strerror(errno)} (errno {errno})")
        elif len(self._ended) == len(self._specs) and self.state == "running":
            self._take_samples(ended=True)
            pids = {one.pid for one in self.prepared}
            self._memory_bytes = {pid: shared_bytes(self._host, pid) for pid in pids}
            self.state = "done"
            self._ends = {
                spec.name: end_of(self.memory, index, spec.name, self._usage, own.pid)
                for index, (spec, own) in enumerate(zip(self._specs, self.prepared))
            }

    def _fail(self, text: str) -> None:
        """Keep the first failure: what follows is its consequence."""
        self.state = "failed"
        if self._error is None:
            self._error = WorkerFailed(text, self._name)

    def _lose(self) -> None:
        """Note that the process has ended, with its status and last words."""
        self.gone = True
        self._fail(f"the worker process {self._how_ended(self._process.wait())}")

    def _how_ended(self, status: int) -> str:
        return how_ended(self._stderr.fileno(), status)

    def tick(self) -> None:
        """Look at every worker: on which CPU it is, and if it is time, with a sample."""
        if self._series.ticks % USAGE_TICKS == 0:
            self._usage.tick()
        if self._series.due():
            self._take_samples(ended=False)
        else:
            for index in range(len(self._specs)):
                self._counts(index)

    def _take_samples(self, ended: bool) -> None:
        clock_ns = time.monotonic_ns()
        for index, spec in enumerate(self._specs):
            so_far = Sample(spec.name, clock_ns, self._counts(index))
            self._samples.append(self._series.sample(index, so_far, ended))

    def _counts(self, index: int) -> dict[str, int]:
        """Return what a worker has counted and can see, and note on which CPU it was found."""
        counts = self.memory.counts(index)
        if counts["last_cpu"] != 0:
            self._seen[self._specs[index].name].add(counts["last_cpu"] - 1)
        return {name: count for name, count in counts.items() if name not in self._unseen}

    def reply(self, since: int) -> SampleReply:
        """Return the reply; samples below ``since`` were received before and are let go."""
        gone = min(max(since - self._first, 0), len(self._samples))
        self._samples, self._first = self._samples[gone:], self._first + gone
        return SampleReply(
            state=self.state,
            error=to_wire(self._error) if self._error is not None else None,
            next=self._first + len(self._samples),
            samples=tuple(self._samples),
            stats=self._stats(),
            flows=self._flows(),
            queued_bytes=self._queued_bytes(),
        )

    def _stats(self) -> tuple[WorkerStats, ...]:
        found = []
        for index, spec in enumerate(self._specs):
            counts = {**self._counts(index), **self._told.get(spec.name, {})}
            own = self.prepared[index] if self.prepared else None
            found.append(
                WorkerStats(
                    worker=spec.name,
                    role=spec.role,
                    cpu=own.cpu if own is not None else None,
                    counts=counts,
                    socket_inodes=own.socket_inodes if own is not None else (),
                    buffer_bytes=own.buffer_bytes if own is not None else None,
                    cpus_seen=tuple(sorted(self._seen[spec.name])),
                    memory_bytes=self._memory_bytes.get(own.pid) if own is not None else None,
                    pid=own.pid if own is not None else None,
                    **self._ends.get(spec.name, {}),
                )
            )
        return tuple(found)

    def _flows(self) -> tuple[FlowStats, ...]:
        """Return every flow's counts; none where nobody looks at headers."""
        if self._unseen:
            return ()
        return tuple(
            FlowStats(flow, packets, following - 1 if following else None)
            for flow, packets, following in self.memory.flows()
        )

    def _queued_bytes(self) -> Optional[int]:
        if self.plan["role"] == "sender":
            return None
        from udpbench.agent.snapshot import udp_sockets

        queues = udp_sockets(self._host)
        read = {inode for one in self._served() for inode in one.socket_inodes}
        return sum(queues[inode].queued_bytes for inode in read if inode in queues)

    def _served(self) -> list[Prepared]:
        """Return the workers whose sockets are read to the end: a fault leaves its own as it is."""
        faults = [worker["fault"] for worker in self.plan["workers"]]
        return [one for one, fault in zip(self.prepared, faults) if fault is None]

    def inodes(self) -> tuple[int, ...]:
        """Return the inode numbers of the workers' sockets, each once."""
        return tuple(sorted({inode for one in self.prepared for inode in one.socket_inodes}))

    def close(self, keep_logs: Optional[str] = None) -> None:
        """End the process: stop, end of file, and SIGKILL after a deadline; then see to its logs.

        Logs of a crew that was never ready may be somebody else's, and stay.
        """
        self._end_process()
        options = self.plan["options"].get("log")
        if options is not None and self.prepared:
            for spec in self._specs:
                logs.settle(logs.path_of(options, spec.name), keep_logs)

    def _end_process(self) -> None:
        self.memory.stop()
        with contextlib.suppress(OSError):
            self._orders.close()
        try:
            self._process.wait(timeout=self._limits.close_ns / SECOND_NS)
        except subprocess.TimeoutExpired:
            # The group: processes of workers go at once, not after this one.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._answers.close()
        self._stderr.close()
