"""The worker process: a thread or a process for each worker, in a C loop without the GIL.

Long, because what a process does from its start to its end shares its workers.

It gets its ``orders`` on stdin, whose end closes the sockets and ends the process, and reports on
stdout. It makes no decisions: what it gets is complete.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Callable, NoReturn, Optional, Union, cast

from udpbench.agent.host import native
from udpbench.agent.host.bpf.reuseport import join
from udpbench.agent.host.socket_options import any_true, has_filter, inode
from udpbench.agent.workers import logs, sockets
from udpbench.agent.workers.frame_receiver import FrameReceiver, Taker
from udpbench.agent.workers.frame_sender import FrameSender
from udpbench.agent.workers.loops import ConfigRefused, Receiving, Sending
from udpbench.agent.workers.memory import Memory
from udpbench.agent.workers.orders import (
    LoopOrder,
    WorkerEvent,
    WorkersOrder,
    messages,
    send_message,
)
from udpbench.agent.workers.usage import Cost
from udpbench.cpu_lists import format_cpu_list
from udpbench.errors import in_words
from udpbench.json_lines import LinePipe
from udpbench.model.experiment import Receive, Send
from udpbench.model.work import WorkerSpec
from udpbench.parent_death import end_with_parent
from udpbench.protocol import Prepared, read_message
from udpbench.ways import way_of

IO_CLASSES = {"realtime": 1, "best-effort": 2, "idle": 3}
IO_CLASS_SHIFT = 13  # include/uapi/linux/ioprio.h
WAKING = signal.SIGUSR1
"""Ends a call that waits for packets: the loop sees that it was stopped, and not 50 ms later."""
_NEEDS = "a priority above normal needs root or CAP_SYS_NICE; else leave it out"

Report = Callable[[WorkerEvent], None]
"""Takes ``ready`` or ``failed``, once."""
WorkerMain = Callable[[Iterable[LoopOrder], Report], None]
"""Runs a worker, given an iterator of phases and a function that reports on preparing."""


class Worker:
    """One worker: its CPU, its sockets, and its loop."""

    def __init__(self, workers: Workers, index: int) -> None:
        self.workers = workers
        self.index = index
        self.spec = workers.specs[index]
        self.sockets: list[socket.socket] = []
        self._frames: Union[FrameSender, FrameReceiver, None] = None
        self._loop: Optional[Union[Sending, Receiving]] = None

    def run(self, phases: Iterable[LoopOrder], report: Report) -> None:
        """Prepare, report the result, and run phase after phase."""
        spec, workers = self.spec, self.workers
        try:
            # Pinned before anything is allocated or opened, so that memory is local to the CPU.
            self._pin()
            set_priorities(
                workers.work.priority,
                spec.receive.io_priority if spec.receive is not None else "normal",
            )
            if spec.log is not None:
                logs.refuse_existing(logs.path_of(spec.log, spec.name))
            frames = self._frames = workers.open_frames(spec)
            if isinstance(frames, FrameReceiver):
                self.sockets = [frames.socket]
            else:
                self.sockets = workers.open(spec)
            report(WorkerEvent("ready", spec.name, (self._describe(),)))
        except OSError as error:
            problem = f"{spec.name}: {in_words(error)}"
            report(WorkerEvent("failed", spec.name, problems=(problem,)))
            return
        for phase in phases:
            workers.report(self._run_phase(phase))

    def _run_phase(self, phase: LoopOrder) -> WorkerEvent:
        """Run a phase; return the loop's errno, its cost and what it left unread."""
        ended = partial(WorkerEvent, "ended", self.spec.name)
        try:
            loop = self._loop = self._loop or self._new_loop()
        except OSError as error:
            return ended(errno=error.errno or errno.ETIMEDOUT)
        frames = self._frames if isinstance(self._frames, FrameReceiver) else None
        cost = Cost()
        try:
            result = loop.run(phase)
        except ConfigRefused as error:
            return ended(errno=errno.EINVAL, refused=str(error))
        spent = cost.end()
        unread = frames.left() if frames is not None else self._drain(phase)
        return ended(errno=-result, counts={**spent, **unread})

    def _new_loop(self) -> Union[Sending, Receiving]:
        """Return the loop for the sockets; streams exist only after the senders are prepared."""
        if self.workers.role == "sender":
            memory, cpus = self.workers.memory, self.workers.cpus
            frames = cast("Optional[FrameSender]", self._frames)
            sent = partial(self.workers.report, WorkerEvent("sent", self.spec.name))
            return Sending(memory, self.index, self.sockets, cpus, frames, sent)
        if self.spec.traffic.protocol == "tcp":
            sources = {(flow.source, flow.source_port) for flow in self.spec.flows}
            self.sockets = [
                stream
                for port, listener in zip(self.spec.bind_ports, self.sockets)
                for stream in sockets.accept_streams(listener, self._stream_count(port), sources)
            ]
        receiver = cast("Optional[FrameReceiver]", self._frames)
        return Receiving(
            self.workers.memory,
            self.index,
            self.sockets,
            self.workers.cpus,
            receiver.shared if receiver is not None else None,
        )

    def _stream_count(self, port: int) -> int:
        """Return how many TCP connections of a port this worker accepts: an even share."""
        readers = self.workers.readers(port)
        flow_count = sum(flow.destination_port == port for flow in self.spec.flows)
        return len(range(readers.index(self.spec), flow_count, len(readers)))

    def _drain(self, phase: LoopOrder) -> dict[str, int]:
        """Return what a worker with a planned fault left unread; close its sockets if it exits.

        A shared socket keeps its packets for the other readers. Empty without a fault.
        """
        fault = self.spec.fault
        if fault is None or not phase.faulty:
            return {}
        exits = fault.does == "exit" and not self.workers.memory.stopped
        drain = sockets.drain_and_close if exits else sockets.drain
        alone = all(len(self.workers.readers(port)) == 1 for port in self.spec.bind_ports)
        own = self.sockets if alone or not self.workers.shares else []
        unread = sum((drain(sock) for sock in own), sockets.Unread())
        return {"purged_messages": unread.messages, "purged_packets": unread.packets}

    def _pin(self) -> None:
        cpu = self.spec.cpu
        if cpu is None:
            return
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            known = format_cpu_list(sorted(self.workers.cpus))
            text = f"CPU {cpu}: {error.strerror}; the agent may run on {known}"
            raise OSError(error.errno, text) from error

    def _describe(self) -> Prepared:
        allowed = os.sched_getaffinity(0)
        frames = self._frames
        by_frames = isinstance(frames, FrameReceiver)
        buffered = frames.socket if frames is not None else self.sockets[0]
        size_bytes = sockets.buffer_bytes(buffered, self.workers.role)
        return Prepared(
            worker=self.spec.name,
            pid=os.getpid(),
            cpu=min(allowed) if len(allowed) == 1 else None,
            socket_inodes=tuple(map(inode, self.sockets)) if not by_frames else (),
            buffer_bytes=size_bytes if not by_frames else None,
            zerocopy=frames.zerocopy if frames is not None else None,
            thread=threading.get_native_id(),
            filtered=any_true(map(has_filter, self.sockets))
            if self.workers.role == "receiver"
            else None,
        )


class Workers:
    """All workers of one host: what they share, and their communication with the agent.

    Worker processes are forked from this process, which then has a single thread.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        memory_fd: int,
        interface: str,
        macs: Mapping[str, str],
    ) -> None:
        self.specs = specs
        self.role = specs[0].role
        self.work = cast(
            "Union[Send, Receive]", specs[0].send if self.role == "sender" else specs[0].receive
        )
        """Send or receive options, equal for all workers."""
        self._way = way_of(specs[0])
        self.cpus = os.sched_getaffinity(0)
        self.memory = Memory(memory_fd, specs)
        self._interface = interface
        self._macs = macs
        self._shared: dict[int, socket.socket] = {}
        self._taker: Optional[Taker] = None
        self._opening = threading.Lock()
        self._forked = self.work.workers_as == "processes"
        runner: Callable[[str, WorkerMain], Any] = ForkedWorker if self._forked else ThreadWorker
        workers = [Worker(self, index) for index in range(len(specs))]
        self._workers = [runner(worker.spec.name, worker.run) for worker in workers]

    @property
    def shares(self) -> bool:
        """True if workers of one port share a socket."""
        work = self.work
        by_sockets = self._way.takes == "sockets"
        return by_sockets and isinstance(work, Receive) and work.sockets == "shared"

    def readers(self, port: int) -> list[WorkerSpec]:
        """Return the workers that read a port, in bind order."""
        return [spec for spec in self.specs if port in spec.bind_ports]

    def open(self, spec: WorkerSpec) -> list[socket.socket]:
        """Return a worker's sockets: one per flow that it sends, or per port that it reads."""
        if isinstance(self.work, Send):
            return [
                sockets.sending_socket(spec.traffic, self.work, flow, self._interface)
                for flow in spec.flows
            ]
        if self.shares:
            return [self._shared_socket(spec, port) for port in spec.bind_ports]
        return [self._own_socket(spec, port) for port in spec.bind_ports]

    def open_frames(self, spec: WorkerSpec) -> Union[FrameSender, FrameReceiver, None]:
        """Return a worker's AF_XDP sender or receiver, which has its own queue; None without."""
        if self._taker is not None:
            return FrameReceiver.open(spec, self._interface, self._taker)
        if self._way.takes != "frames":
            return None
        return FrameSender.open(spec, self._interface, self._macs)

    def _own_socket(self, spec: WorkerSpec, port: int) -> socket.socket:
        sock = self._bound(spec, port)
        group, readers = cast("Receive", self.work).sockets, self.readers(port)
        if group == "incoming-cpu":
            sockets.prefer_cpu(sock, spec.cpu)
        # The steering program returns members' numbers, which follow bind order, so the last
        # member attaches it.
        if group == "reuseport-cpu" and readers[-1] is spec:
            sockets.steer_by_cpu(sock, [reader.cpu for reader in readers])
        steering = cast("Receive", self.work).steering
        if steering is not None:
            join(steering, sock, readers.index(spec), len(readers))
        return sock

    def _shared_socket(self, spec: WorkerSpec, port: int) -> socket.socket:
        with self._opening:
            if port not in self._shared:
                self._shared[port] = self._bound(spec, port)
            return self._shared[port]

    def _bound(self, spec: WorkerSpec, port: int) -> socket.socket:
        receive = cast("Receive", self.work)
        return sockets.receiving_socket(spec.traffic, receive, port, self._interface)

    def report(self, event: WorkerEvent) -> None:
        """Report to the agent; only ``ready`` exceeds PIPE_BUF, when no worker writes."""
        send_message(1, event)

    def prepare(self) -> bool:
        """Start every worker; report what each one opened, or every failure."""
        problems = self._open_to_inherit() if self._forked and self.shares else []
        problems = problems or self._refusals(self._share_taker)
        answers = self._start_workers() if not problems else []
        problems += [problem for answer in answers for problem in answer.problems]
        problems = problems or self._refusals(self._take_frames)
        if problems:
            self.report(WorkerEvent("failed", problems=tuple(problems)))
            return False
        # Only the workers keep them, so that a socket closes with its last worker.
        for shared in self._shared.values() if self._forked else ():
            shared.close()
        prepared = tuple(each for answer in answers for each in answer.prepared)
        self.report(WorkerEvent("ready", prepared=prepared))
        return True

    def _start_workers(self) -> list[WorkerEvent]:
        """Start the workers one by one and return their answers.

        Bind order on a port is the socket's number in its reuseport group.
        """
        answers = []
        for number, worker in enumerate(self._workers):
            worker.start(self._workers[:number])
            answers.append(worker.prepared())
        return answers

    def _share_taker(self) -> None:
        if self._way.takes == "frames" and self.role == "receiver":
            self._taker = Taker(len(self.specs))

    def _take_frames(self) -> None:
        """Attach the XDP program once all sockets exist; no forked worker inherits it."""
        if self._taker is not None:
            self._taker.attach(self._interface, self.specs)

    def _refusals(self, step: Callable[[], None]) -> list[str]:
        """Return why the kernel refused a step shared by all workers; empty if it did not."""
        try:
            step()
        except OSError as error:
            return [f"{self.specs[0].host}: {in_words(error)}"]
        return []

    def _open_to_inherit(self) -> list[str]:
        """Open what forked workers share; return the failures."""
        problems = []
        for spec in self.specs:
            try:
                self.open(spec)
            except OSError as error:
                problems.append(f"{spec.name}: {in_words(error)}")
        return problems

    def serve(self, orders: LinePipe) -> None:
        """Start a phase for each order until their pipe ends, and report deaths as they happen.

        Both are waited for at once: a handler of SIGCHLD does not run if the signal comes between
        Python's last look at it and a read that then blocks.
        """
        waiting = select.poll()
        waiting.register(orders.fd, select.POLLIN)
        alive = {worker.end_fd: worker for worker in self._workers if worker.end_fd is not None}
        for end in alive:
            waiting.register(end, 0)  # POLLHUP is always reported
        while not orders.ended:
            for ready, _ in waiting.poll():
                if ready != orders.fd:
                    waiting.unregister(ready)
                    worker = alive[ready]
                    self.report(WorkerEvent("died", worker.name, status=worker.exit_status()))
                    continue
                for line in orders.read():
                    order: Optional[LoopOrder] = read_message(
                        cast("Any", Optional[LoopOrder]), line
                    )
                    if order is not None:
                        self.start(order)
                        continue
                    for each in self._workers:
                        each.wake()

    def start(self, phase: LoopOrder) -> None:
        """Start every worker on a phase with all counts at zero."""
        self.memory.reset()
        # First, so that it precedes what a worker writes at its end.
        self.report(WorkerEvent("started"))
        for worker in self._workers:
            worker.order(phase)

    def close(self) -> None:
        """End every loop and worker; their sockets close with the process."""
        self.memory.stop()
        for worker in self._workers:
            worker.end()


# --- workers in parallel: threads, or a process each -------------------------------


class ThreadWorker:
    """A worker as a thread."""

    end_fd = None
    """No thread ends without its process."""

    def __init__(self, name: str, main: WorkerMain) -> None:
        self.name = name
        self._phases: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        phases = iter(self._phases.get, None)
        self._thread = threading.Thread(target=main, args=(phases, self._reports.put), daemon=True)

    def start(self, _others: Sequence[ThreadWorker]) -> None:
        """Start the worker, which prepares itself."""
        self._thread.start()

    def prepared(self) -> WorkerEvent:
        """Wait for the worker's report on preparing."""
        return self._reports.get()

    def order(self, phase: LoopOrder) -> None:
        """Order the worker to run a phase."""
        self._phases.put(phase)

    def wake(self) -> None:
        """End the system call in which the worker waits."""
        if self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, WAKING)

    def end(self) -> None:
        """Let the worker end after its last phase."""
        self._phases.put(None)
        self._thread.join()


class ForkedWorker:
    """A worker as a forked process, which inherits memory and open sockets."""

    def __init__(self, name: str, main: WorkerMain) -> None:
        self.name = name
        self._main = main
        self._pid = 0
        self._phases_fd = self._reports_fd = -1
        self._ended = False

    def start(self, others: Sequence[ForkedWorker]) -> None:
        """Fork; close the pipes of ``others``, which were started earlier, in the child."""
        phases_fd, self._phases_fd = os.pipe()
        self._reports_fd, reports_fd = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            for other in (*others, self):
                os.close(other._phases_fd)
                os.close(other._reports_fd)
            self._run_and_exit(parent, phases_fd, reports_fd)
        os.close(phases_fd)
        os.close(reports_fd)

    def _run_and_exit(self, parent: int, phases_fd: int, reports_fd: int) -> NoReturn:
        """Run the worker and exit without flushing the parent's buffers."""
        status = 1
        try:
            end_with_parent(signal.SIGKILL)
            if os.getppid() == parent:
                phases = messages(LoopOrder, LinePipe(phases_fd))
                self._main(phases, partial(send_message, reports_fd))
                status = 0
        except BaseException:  # noqa: BLE001 - a forked process must never return to its caller
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def prepared(self) -> WorkerEvent:
        """Wait for the worker's report on preparing, or for its end."""
        problem = f"{self.name}: the process ended before it was ready"
        ended = WorkerEvent("failed", self.name, problems=(problem,))
        return next(messages(WorkerEvent, LinePipe(self._reports_fd)), ended)

    def order(self, phase: LoopOrder) -> None:
        """Order the worker to run a phase; if it has died, its pipe shows it."""
        with suppress(BrokenPipeError):
            send_message(self._phases_fd, phase)

    def wake(self) -> None:
        """End the system call in which the worker waits."""
        if not self._ended:  # so its number is no other process's
            os.kill(self._pid, WAKING)

    @property
    def end_fd(self) -> int:
        """Descriptor of a pipe that only the worker holds open: it ends with the worker."""
        return self._reports_fd

    def exit_status(self) -> int:
        """Wait for a worker whose pipe has ended; return its exit status, negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        self._ended = True
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Let the worker end after its last phase and wait for it."""
        os.close(self._phases_fd)
        os.close(self._reports_fd)
        if not self._ended:
            os.waitpid(self._pid, 0)
            self._ended = True


# --- the priority of the calling thread, for CPU and for disk, read back --------------------------


def set_priorities(priority: str, io_priority: str) -> None:
    """Set the calling thread's priorities, such as ``normal``, ``nice -5`` or ``fifo 10``.

    On Linux they are per thread, although POSIX says per process (sched(7), ioprio_set(2)).
    OSError names the priority that the kernel refuses.
    """
    for text, set_priority in ((priority, _set_cpu_priority), (io_priority, _set_io_priority)):
        if text == "normal":
            continue
        try:
            set_priority(text)
        except OSError as error:
            needs = f"; {_NEEDS}" if error.errno in (errno.EPERM, errno.EACCES) else ""
            raise OSError(error.errno, f"priority {text}: {error.strerror}{needs}") from error


def _set_cpu_priority(text: str) -> None:
    policy, _, level = text.partition(" ")
    thread, priority = threading.get_native_id(), int(level)
    if policy == "nice":
        os.setpriority(os.PRIO_PROCESS, thread, priority)
        got = os.getpriority(os.PRIO_PROCESS, thread)
    else:
        # Threads that it starts, such as the log writer, must not be real-time.
        alone = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, alone, os.sched_param(priority))
        got = os.sched_getparam(0).sched_priority
    if got != priority:
        raise OSError(errno.EINVAL, f"read back {got}")


def _set_io_priority(text: str) -> None:
    """Set the I/O priority, which new threads inherit (block/ioprio.c)."""
    word, _, level = text.partition(" ")
    priority = IO_CLASSES[word] << IO_CLASS_SHIFT | int(level or 0)
    native.set_io_priority(priority)
    got = native.io_priority()
    if got != priority:
        raise OSError(errno.EINVAL, f"read back {got:#x}")


# --- the process ----------------------------------------------------------------------------------


def _exit_on_bug(bug: threading.ExceptHookArgs) -> None:
    """End the process if a thread fails unexpectedly; the agent reads the reason from stderr."""
    sys.excepthook(bug.exc_type, bug.exc_value or bug.exc_type(), bug.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def main() -> int:
    """Run the worker process until stdin ends; return 1 if it could not be prepared."""
    threading.excepthook = _exit_on_bug
    signal.signal(WAKING, lambda *_: None)
    # The signal is sent when the thread that started this process ends: the agent's main thread.
    end_with_parent(signal.SIGKILL)
    orders = LinePipe(0)
    try:
        order = read_message(WorkersOrder, orders.next())
    except EOFError:  # the agent ended
        return 1
    if os.getppid() != order.agent_pid:
        return 1
    specs, flows = order.specs, order.flows
    if flows is not None:
        specs = tuple(replace(spec, flows=flows) for spec in specs)
    workers = Workers(specs, order.memory_fd, order.interface, order.macs)
    if not workers.prepare():
        return 1
    workers.serve(orders)
    workers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
