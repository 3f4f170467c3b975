"""The worker process: a thread or a process for each worker, in a C loop without the GIL.

A plan comes in as the first line of stdin, then a line for each phase; end of file closes the
sockets and ends the process. It takes no decision: the plan is complete.

The plan: {role, workers_as, agent_pid, memory_fd, options: {...}, workers: [{cpu, ...}]}, see
``plan.plan``. Answers: {event: ready | started | ended | died | failed, ...}, a line each.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any, Callable, Optional, Union

from udpbench.agent import logs, priority, sockets
from udpbench.agent.cost import Cost
from udpbench.agent.loops import Receiving, Sending
from udpbench.agent.memory import Memory
from udpbench.agent.workers_as import WAYS, die_with_parent


class Worker:
    """One worker: its place, its sockets, and the loop it is in."""

    def __init__(self, crew: Crew, index: int) -> None:
        self.crew = crew
        self.index = index
        self.plan: dict[str, Any] = crew.plan["workers"][index]
        self.opened: list[socket.socket] = []
        self._loop: Optional[Union[Sending, Receiving]] = None

    def live(
        self, phases: Iterable[dict[str, Any]], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        """Prepare, tell how that went, and take one phase after another."""
        try:
            # Pinned before anything is allocated or opened, so that memory is local to the CPU.
            self._pin()
            options = self.crew.plan["options"]
            priority.take(options["priority"], options["io_priority"])
            log = self.crew.plan["options"].get("log")
            if log is not None:
                logs.refuse_existing(logs.path_of(log, self.plan["name"]))
            self.opened = self.crew.open(self.plan)
            tell({"ready": self._describe()})
        except OSError as error:
            tell({"problem": f"{self.plan['name']}: {error.strerror}"})
            return
        for phase in phases:
            self.crew.say({"event": "ended", "worker": self.plan["name"], **self._take(phase)})

    def _take(self, phase: dict[str, Any]) -> dict[str, Any]:
        """Go through a phase; return the loop's errno, what it cost and what it left unread."""
        try:
            loop = self._loop = self._loop or self._make_loop()
        except OSError as error:
            return {"errno": error.errno or errno.ETIMEDOUT, "counts": {}}
        cost = Cost()
        result = loop.run(phase)
        spent = cost.end()
        faulty = self.plan["fault"] is not None and phase["faulty"]
        left = self._leave_behind() if faulty else {}
        return {"errno": -result, "counts": {**spent, **left}}

    def _make_loop(self) -> Union[Sending, Receiving]:
        """Return the loop on the sockets; streams are there only once the senders are prepared."""
        if self.crew.role == "sender":
            return Sending(self.crew.memory, self.index, self.opened, self.crew.cpus)
        if self.crew.plan["options"]["protocol"] == "tcp":
            counts = self.plan["streams"].values()
            self.opened = [
                stream
                for listener, count in zip(self.opened, counts)
                for stream in sockets.accepted(listener, count)
            ]
        return Receiving(self.crew.memory, self.index, self.opened, self.crew.cpus)

    def _leave_behind(self) -> dict[str, int]:
        """Return what a worker with a fault left unread; one that exits closes its sockets.

        A socket that others read, too, keeps its packets for them.
        """
        fault = self.plan["fault"]
        exits = fault["does"] == "exit" and not self.crew.memory.stopped
        leave = sockets.closed if exits else sockets.unread
        mine = self.opened if fault["alone"] else []
        left = sum((leave(one) for one in mine), sockets.Unread())
        return {"purged_messages": left.messages, "purged_packets": left.packets}

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
            "socket_inodes": [sockets.inode(one) for one in self.opened],
            "buffer_bytes": sockets.buffer_bytes(first, self.crew.role),
        }


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
        """Return a worker's sockets: one for each flow it sends, or for each port it reads."""
        options = self.plan["options"]
        if self.role == "sender":
            return [sockets.sending_socket(options, flow) for flow in worker["flows"]]
        if options["sockets"] == "shared":
            return [self._shared_socket(port) for port in worker["bind_ports"]]
        made = {port: self._own_socket(worker, port) for port in worker["bind_ports"]}
        for port, cpus in worker["steering"].items():
            sockets.steer_by_cpu(made[int(port)], cpus)
        return list(made.values())

    def _own_socket(self, worker: dict[str, Any], port: int) -> socket.socket:
        made = sockets.receiving_socket(self.plan["options"], port)
        if self.plan["options"]["sockets"] == "incoming-cpu":
            sockets.prefer_cpu(made, worker["cpu"])
        return made

    def _shared_socket(self, port: int) -> socket.socket:
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
        """Start one worker after the other, and return what each told.

        The order in which sockets of one port are bound is their number in its group.
        """
        told = []
        for number, worker in enumerate(self.workers):
            worker.start(self.workers[:number])
            told.append(worker.prepared())
        return told

    def _open_to_inherit(self) -> list[str]:
        """Open what forked workers are to share, and return what went wrong."""
        problems = []
        shared = self.role == "receiver" and self.plan["options"]["sockets"] == "shared"
        for worker in self.plan["workers"] if shared else ():
            try:
                self.open(worker)
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
