"""The C loops as Python calls them: their configs, and what runs beside them.

With ``memory`` the only importer of ``udpbench._native``.
Opens no socket and takes no decision: the plan of ``agent/plan.py`` is complete.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from udpbench._native import ffi, lib
from udpbench.agent import logs
from udpbench.agent.memory import Memory, places

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
SEE_HEADERS = (lib.UB_READ_HEADER, lib.UB_READ_VERIFY)
FAULTS = {"hang": lib.UB_FAULT_HANG, "exit": lib.UB_FAULT_EXIT}
LOG_RING_BYTES = 32 * 2**20
"""All memory that a worker's log may take: 1.5 s of 40,000 datagrams of 512 B a second."""
LOG_DRAIN_NS = 2 * 10**9
"""What is in the ring when the loop has left must be written within this time."""
ECHO_QUIET_NS = 200 * 10**6
"""So long after its last packet does a sender wait for one more echo."""
ECHO_LONGEST_NS = 2 * 10**9
"""And so long for all of them: control waits 3 s for senders (``control/phase.py``)."""


class Sending:
    """One sending worker's loop on the sockets of its flows, one phase after another."""

    def __init__(
        self, memory: Memory, index: int, opened: Sequence[socket.socket], cpus: Iterable[int]
    ) -> None:
        self._memory = memory
        self._index = index
        self._cpus = cpus
        self._worker = memory.plan["workers"][index]
        self._opened = opened
        # Completions are numbered for the life of a socket, whatever is set back between phases.
        self._completions = ffi.new("uint32_t[]", len(opened))

    def run(self, phase: dict[str, Any]) -> int:
        """Send until the phase is over; 0 or a negative errno.

        A worker that has none of the phase's flows has nothing to do.
        """
        chosen = places(self._worker, phase["flows"])
        if not chosen:
            return 0
        values = self._values(phase, chosen)  # keeps alive what the config points to
        config = ffi.new("struct ub_send_config *", values)
        offset = self._memory.layout.stats[self._index]
        stats = self._memory.at("struct ub_send_stats *", offset)
        if self._memory.plan["options"]["protocol"] == "tcp":
            result = int(lib.ub_stream_send(config, stats))
        elif phase["echo_every"]:
            result = self._run_with_ear(config, stats)
        else:
            result = int(lib.ub_send(config, stats))
        for index, place in enumerate(chosen):
            self._completions[place] = values["zerocopy_next"][index]
        return result

    def _values(self, phase: dict[str, Any], chosen: list[int]) -> dict[str, Any]:
        memory, options, counted = self._memory, self._memory.plan["options"], phase["count"]
        numbers = [self._worker["flows"][place]["flow"] for place in chosen]
        return {
            "call": SEND_CALLS[options["call"]],
            "batch": options["batch"],
            "size_bytes": options["size_bytes"],
            "flow_count": len(chosen),
            "sockets": ffi.new("int32_t[]", [self._opened[place].fileno() for place in chosen]),
            "flows": ffi.new("uint16_t[]", numbers),
            "sequences": memory.at("uint64_t *", memory.layout.sequences[self._index]),
            "tag": phase["tag"],
            "pace_sleeps": options["pace"] == "sleep",
            "rate_pps": phase.get("rate_pps") or self._worker["rate_pps"],
            "bucket_ns": options["bucket_ns"],
            "count": counted if counted is not None else self._worker["count_packets"],
            "epoch_ns": phase["at_ns"],
            "start_ns": phase["at_ns"],
            "end_ns": phase["at_ns"] + phase["duration_ns"],
            "control": memory.at("struct ub_control *", 0),
            "gso_segments": options["gso_segments"],
            "tail_bytes": options["tail_bytes"],
            "zerocopy": options["zerocopy"],
            "zerocopy_next": ffi.new("uint32_t[]", [self._completions[p] for p in chosen]),
            "pacing": memory.block(self._index, "pacing"),
            "stalls": memory.block(self._index, "stalls"),
            "milliseconds": memory.block(self._index, "milliseconds"),
        }

    def _run_with_ear(self, config: Any, stats: Any) -> int:
        """Send while another thread listens for echoes; 0 or a negative errno of either."""
        ended = ffi.new("struct ub_control *")
        values = {
            "sockets": config.sockets,
            "socket_count": config.flow_count,
            "tag": config.tag,
            "epoch_ns": config.epoch_ns,
            "quiet_ns": ECHO_QUIET_NS,
            "longest_ns": ECHO_LONGEST_NS,
            "ended": ended,
            "control": config.control,
            "round_trip": self._memory.block(self._index, "round_trip"),
        }
        ear = ffi.new("struct ub_echo_config *", values)
        told = self._memory.block(self._index, "echo")
        listener = Beside(lambda: int(lib.ub_echo_listen(ear, told)), self._cpus)
        result = int(lib.ub_send(config, stats))
        ended.stop = 1
        heard = listener.result()  # waited for in any case: it reads what goes with this call
        return result or heard


class Receiving:
    """One receiving worker's loop on its sockets, one phase after another."""

    def __init__(
        self, memory: Memory, index: int, opened: Sequence[socket.socket], cpus: Iterable[int]
    ) -> None:
        self._memory = memory
        self._index = index
        self._cpus = cpus
        self._count = len(opened)
        self._sockets = ffi.new("int32_t[]", [one.fileno() for one in opened])
        options = memory.plan["options"]["log"]
        self._log = LogRing(options) if options is not None else None

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
            **self._beside(phase),
        }
        config = ffi.new("struct ub_receive_config *", values)
        stats = memory.at("struct ub_receive_stats *", memory.layout.stats[self._index])
        if options["protocol"] == "tcp":
            return int(lib.ub_stream_receive(config, stats))
        if self._log is not None:
            return self._run_with_log(self._log, config, stats)
        return int(lib.ub_receive(config, stats))

    def _beside(self, phase: dict[str, Any]) -> dict[str, Any]:
        """Return what the loop is to note beside its counts."""
        blocks = ("delay", "stack", "application", "milliseconds")
        stamps = self._memory.plan["options"]["timestamps"]
        return {
            "epoch_ns": phase["at_ns"],
            "echo_every": phase["echo_every"],
            "timestamps": stamps and READS[phase["read"]] in SEE_HEADERS,
            **{name: self._memory.block(self._index, name) for name in blocks},
        }

    def _run_with_log(self, log: LogRing, config: Any, stats: Any) -> int:
        """Receive while another thread writes the log; 0 or a negative errno of either."""
        path = logs.path_of(log.options, self._memory.plan["workers"][self._index]["name"])
        # The phase before had its own; what is measured shall be alone in them.
        logs.remove(path)
        ended = ffi.new("struct ub_control *")
        # Each name keeps what a struct points to.
        writing, _name = log.begin(path, ended)
        told = self._memory.block(self._index, "log")
        writer = Beside(lambda: int(lib.ub_log_write(writing, told)), self._cpus)
        config.log = log.log
        result = int(lib.ub_receive(config, stats))
        ended.stop = 1
        written = writer.result()  # waited for in any case, as an ear is
        return result or written

    def _fault(self, phase: dict[str, Any]) -> dict[str, int]:
        fault = self._memory.plan["workers"][self._index]["fault"]
        if fault is None or not phase["faulty"]:
            return {}
        return {"fault": FAULTS[fault["does"]], "fault_at_ns": phase["at_ns"] + fault["after_ns"]}


class LogRing:
    """The memory between a receiving loop and the writer of its log."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._bytes = ffi.new("uint8_t[]", LOG_RING_BYTES)
        self.log = ffi.new("struct ub_log *", {"ring": self._bytes, "ring_bytes": LOG_RING_BYTES})

    def begin(self, path: str, ended: Any) -> tuple[Any, Any]:
        """Be empty, and return a writer's config with what it points to; only between phases."""
        self.log.put_bytes = self.log.taken_bytes = 0
        name = ffi.new("char[]", os.fsencode(path))
        values = {
            "log": self.log,
            "path": name,
            "max_file_bytes": self.options["max_file_bytes"],
            "keep": self.options["keep"],
            "drain_ns": LOG_DRAIN_NS,
            "ended": ended,
        }
        return ffi.new("struct ub_log_config *", values), name


class Beside:
    """A thread beside a worker's loop, on any CPU of its crew: not on the loop's own alone."""

    def __init__(self, work: Callable[[], int], cpus: Iterable[int]) -> None:
        self._work = work
        self._cpus = cpus
        self._result = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # A thread begins on the CPUs of the one that made it.
        os.sched_setaffinity(0, self._cpus)
        self._result = self._work()

    def result(self) -> int:
        """Wait for its end; 0 or a negative errno."""
        self._thread.join()
        return self._result


def gso_max(address: str) -> int:
    """Return the most datagrams this kernel takes in one GSO message.

    Tried at an address of this host, by a socket that is connected to itself: no packet leaves, and
    the loopback interface may be down. OSError where the kernel has no GSO for UDP.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        probe.connect(probe.getsockname())
        found = int(lib.ub_gso_max(probe.fileno()))
    if found < 0:
        raise OSError(-found, "the kernel takes no GSO message")
    return found
