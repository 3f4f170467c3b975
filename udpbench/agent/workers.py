"""The worker process: a thread or a process for each worker, in a C loop without the GIL.

Sole importer of ``udpbench._native``, and so the only place that knows the layout of the memory
that loops and agent share. A plan comes in as the first line of stdin, then a line for each phase;
end of file closes the sockets and ends the process. It takes no decision: the plan is complete.

The plan: {role, workers_as, agent_pid, memory_fd, options: {...}, workers: [{cpu, ...}]}, see
``pool.plan``. Answers: {event: ready | started | ended | died | failed, ...}, a line each.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

from udpbench._native import ffi, lib
from udpbench.agent import sockets
from udpbench.agent.workers_as import WAYS, die_with_parent

LINE_BYTES: int = lib.UB_CACHE_LINE_BYTES
STRUCTS = {"sender": "struct ub_send_stats", "receiver": "struct ub_receive_stats"}
CALLS = {"sendmmsg": lib.UB_SEND_SENDMMSG, "recvmmsg": lib.UB_RECEIVE_RECVMMSG}
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


class Worker:
    """One worker: its place, its sockets, and the loop it is in."""

    def __init__(self, crew: Crew, index: int) -> None:
        self.crew = crew
        self.index = index
        self.plan: dict[str, Any] = crew.plan["workers"][index]
        self.opened: list[socket.socket] = []

    def live(
        self, phases: Iterable[dict[str, Any]], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        """Prepare, tell how that went, and take one phase after another."""
        try:
            # Pinned before anything is allocated or opened, so that memory is local to the CPU.
            self._pin()
            self.opened = self.crew.open(self.plan)
            tell({"ready": self._describe()})
        except OSError as error:
            tell({"problem": f"{self.plan['name']}: {error.strerror}"})
            return
        for phase in phases:
            result = self._send(phase) if self.crew.role == "sender" else self._receive(phase)
            self.crew.say({"event": "ended", "worker": self.plan["name"], "errno": -result})

    def _pin(self) -> None:
        cpu = self.plan["cpu"]
        if cpu is None:
            return
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            text = f"CPU {cpu}: {error.strerror}; the agent may run on {sorted(self.crew.cpus)}"
            raise OSError(error.errno, text) from error

    def _describe(self) -> dict[str, Any]:
        allowed = os.sched_getaffinity(0)
        first = self.opened[0]
        return {
            "worker": self.plan["name"],
            "pid": os.getpid(),
            "cpu": min(allowed) if len(allowed) == 1 else None,
            "socket_inode": sockets.inode(first),
            "buffer_bytes": sockets.buffer_bytes(first, self.crew.role),
        }

    def _send(self, phase: dict[str, Any]) -> int:
        memory, options, flows = self.crew.memory, self.crew.plan["options"], self.plan["flows"]
        at = memory.layout
        fds = ffi.new("int32_t[]", [one.fileno() for one in self.opened])
        numbers = ffi.new("uint16_t[]", [flow["flow"] for flow in flows])
        config = ffi.new("struct ub_send_config *")
        config.call = CALLS[options["call"]]
        config.batch = options["batch"]
        config.size_bytes = options["size_bytes"]
        config.flow_count = len(flows)
        config.sockets, config.flows = fds, numbers
        config.sequences = memory.at("uint64_t *", at.sequences[self.index])
        config.tag = phase["tag"]
        config.pace_sleeps = options["pace"] == "sleep"
        config.rate_pps = self.plan["rate_pps"]
        config.bucket_ns = options["bucket_ns"]
        counted = phase["count"]
        config.count = counted if counted is not None else self.plan["count_packets"]
        config.epoch_ns = config.start_ns = phase["at_ns"]
        config.end_ns = phase["at_ns"] + phase["duration_ns"]
        config.control = memory.at("struct ub_control *", 0)
        stats = memory.at("struct ub_send_stats *", at.stats[self.index])
        return int(lib.ub_send(config, stats))

    def _receive(self, phase: dict[str, Any]) -> int:
        memory, options = self.crew.memory, self.crew.plan["options"]
        config = ffi.new("struct ub_receive_config *")
        config.call = CALLS[options["call"]]
        config.batch = options["batch"]
        config.room_bytes = options["room_bytes"]
        config.size_bytes = options["size_bytes"]
        config.socket = self.opened[0].fileno()
        config.tag = phase["tag"]
        config.flow_count = self.crew.plan["flow_count"]
        config.window_words = self.crew.plan["window_words"]
        config.work_ns = options["work_ns"]
        config.flows = memory.at("struct ub_flow_state *", memory.layout.windows)
        config.control = memory.at("struct ub_control *", 0)
        stats = memory.at("struct ub_receive_stats *", memory.layout.stats[self.index])
        return int(lib.ub_receive(config, stats))


class Crew:
    """All workers of one host: what they share, and the conversation with the agent.

    As processes they are forked from this one, which then has no thread but its own.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.role: str = plan["role"]
        self.cpus = os.sched_getaffinity(0)
        self.memory = Memory(plan["memory_fd"], plan)
        self._shared: dict[int, socket.socket] = {}
        self._opening = threading.Lock()
        made = [Worker(self, index) for index in range(len(plan["workers"]))]
        way = WAYS[plan["workers_as"]]
        self.workers = [way(worker.plan["name"], worker.live) for worker in made]

    def open(self, worker: dict[str, Any]) -> list[socket.socket]:
        """Return a worker's sockets: one for each flow it sends, or its port's shared one."""
        if self.role == "sender":
            options = self.plan["options"]
            return [sockets.sending_socket(options, flow) for flow in worker["flows"]]
        return [self._shared_socket(worker)]

    def _shared_socket(self, worker: dict[str, Any]) -> socket.socket:
        port = worker["bind_port"]
        with self._opening:
            if port not in self._shared:
                self._shared[port] = sockets.receiving_socket(self.plan["options"], port)
            return self._shared[port]

    def say(self, answer: dict[str, Any]) -> None:
        """Write one answer.

        Workers end at the same time; a pipe takes a line up to PIPE_BUF whole (pipe(7)), and only
        ``ready`` is longer, when nobody else has anything to say.
        """
        line = memoryview(json.dumps(answer).encode() + b"\n")
        while line:
            line = line[os.write(1, line) :]

    def prepare(self) -> bool:
        """Start every worker and tell the agent what each got, or everything that failed."""
        inherited = self._open_to_inherit() if self.plan["workers_as"] == "processes" else []
        told = [{"problem": problem} for problem in inherited] or self._start_workers()
        problems = [one["problem"] for one in told if "problem" in one]
        if problems:
            self.say({"event": "failed", "problems": problems})
            return False
        # The workers have them, so that they end with the last of these.
        for shared in self._shared.values() if self.plan["workers_as"] == "processes" else ():
            shared.close()
        self.say({"event": "ready", "workers": [one["ready"] for one in told]})
        self._watch()
        return True

    def _start_workers(self) -> list[dict[str, Any]]:
        """Start every worker, all before the first is waited for; return what each told."""
        for number, worker in enumerate(self.workers):
            worker.start(self.workers[:number])
        return [worker.prepared() for worker in self.workers]

    def _open_to_inherit(self) -> list[str]:
        """Open what forked workers are to share, and return what went wrong."""
        problems = []
        for worker in self.plan["workers"] if self.role == "receiver" else ():
            try:
                self._shared_socket(worker)
            except OSError as error:
                problems.append(f"{worker['name']}: {error.strerror}")
        return problems

    def _watch(self) -> None:
        """Tell of every forked worker that ends, and of those that have ended already."""
        signal.signal(signal.SIGCHLD, lambda *_: self._tell_deaths())
        self._tell_deaths()

    def _tell_deaths(self) -> None:
        for worker in self.workers:
            status = worker.died()
            if status is not None:
                self.say({"event": "died", "worker": worker.name, "status": status})

    def start(self, phase: dict[str, Any]) -> None:
        """Set every worker going on a phase, with all counts at zero."""
        self.memory.reset()
        # Said first: the answer must not race with what a worker says of its end.
        self.say({"event": "started"})
        for worker in self.workers:
            worker.order(phase)

    def close(self) -> None:
        """End every loop and worker; the end of their process closes the sockets."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.memory.stop()
        for worker in self.workers:
            worker.end()


def _end_on_a_bug(what: threading.ExceptHookArgs) -> None:
    """End the whole process when a thread fails unforeseen: the agent reads why from stderr."""
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def main() -> int:
    """Be the worker process until stdin ends; 1 where it could not be prepared."""
    threading.excepthook = _end_on_a_bug
    # The signal comes when the agent's thread that started this process ends: its main thread.
    die_with_parent()
    plan = json.loads(sys.stdin.buffer.readline())
    if os.getppid() != plan["agent_pid"]:
        return 1
    crew = Crew(plan)
    if not crew.prepare():
        return 1
    for line in sys.stdin.buffer:
        crew.start(json.loads(line))
    crew.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
