"""The C loops as called from Python: their configs, and the threads that run alongside.

Opens no socket and makes no decision: a worker's specification is complete.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, cast

from udpbench._native import ffi, lib
from udpbench.agent.workers import logs
from udpbench.agent.workers.frame_sender import FrameSender
from udpbench.agent.workers.memory import Memory, flow_indices
from udpbench.agent.workers.orders import LoopOrder
from udpbench.agent.workers.sockets import discard
from udpbench.folder import Folder, calling_user
from udpbench.model.experiment import Answers, Log, Receive, Send, Traffic
from udpbench.model.work import WorkerSpec
from udpbench.ways import read_named, wait_ns, wait_of, way_to_receive, way_to_send

FAULTS = {"hang": lib.UB_FAULT_HANG, "exit": lib.UB_FAULT_EXIT}
ROOM_MIN_BYTES = 64
MESSAGE_BYTES = 65535
"""Room for any datagram, or any number of datagrams merged by UDP_GRO."""
LOG_RING_BYTES = 32 * 2**20
"""Memory of a worker's log: 1.5 s of 40,000 datagrams of 512 B per second."""
LOG_DRAIN_NS = 2 * 10**9
"""Limit for writing what is left in the ring when the loop ends."""
ECHO_QUIET_NS = 200 * 10**6
"""How long a sender waits for each further echo after its last packet."""
ECHO_LONGEST_NS = 2 * 10**9
"""Total for all late echoes: control waits 3 s for senders (``control/phase.py``)."""
ANSWERS_LONGEST_NS = 2 * 10**9
"""How long answers may arrive after their time-out, once the program has read everything."""


LONG_NAP_NS, NAP_SHARE = 20_000_000, 3
"""A reader of a client's streams naps for so long, or for what fills a third of a buffer."""


class Sending:
    """One sending worker's loop on the sockets of its flows, phase after phase."""

    def __init__(
        self,
        memory: Memory,
        index: int,
        opened: Sequence[socket.socket],
        cpus: Iterable[int],
        frames: Optional[FrameSender] = None,
        sent: Callable[[], object] = lambda: None,
    ) -> None:
        """``sent`` is called once everything is sent and only answers are awaited."""
        self._memory = memory
        self._index = index
        self._cpus = cpus
        self._frames = frames
        self._sent = sent
        self._spec = memory.specs[index]
        self._send = cast("Send", self._spec.send)
        self._opened = opened
        # Completions are numbered over the life of a socket, across phases.
        self._completions = ffi.new("uint32_t[]", len(opened))
        self._datagrams, self._texts = datagrams(self._spec)
        answers = self._spec.traffic.answers
        matched = answers is not None and answers.id_at is not None
        # For the life of the sockets, so that the next phase does not reuse an id too early.
        self._ids = [ffi.new("struct ub_ids *") for _ in opened] if matched else []

    def run(self, phase: LoopOrder) -> int:
        """Send until the phase is over; return 0 or a negative errno.

        A worker without any of the phase's flows returns at once.
        """
        chosen = flow_indices(self._spec, phase.flows)
        if not chosen:
            return 0
        values = self._values(phase, chosen)  # keeps the config's pointers alive
        config = ffi.new("struct ub_send_config *", values)
        offset = self._memory.layout.stats[self._index]
        stats = self._memory.at("struct ub_send_stats *", offset)
        if self._spec.traffic.protocol == "tcp":
            result = run_loop("ub_stream_send", config, stats)
        elif phase.echo_every:
            result = self._run_with_listener(config, stats)
        elif self._spec.traffic.answers is not None:
            for flow in chosen:  # answers of a previous phase
                discard(self._opened[flow])
            result = self._run_with_answers(self._spec.traffic.answers, config, stats)
        else:
            result = run_loop("ub_send", config, stats)
        for position, index in enumerate(chosen):
            self._completions[index] = values["zerocopy_next"][position]
        return result

    def _values(self, phase: LoopOrder, chosen: list[int]) -> dict[str, Any]:
        memory, spec, send, counted = self._memory, self._spec, self._send, phase.count
        numbers = [spec.flows[index].flow for index in chosen]
        return {
            "call": getattr(lib, way_to_send(send).constant),
            "batch": send.messages,
            "datagrams": self._datagrams,
            "datagram_count": len(self._datagrams),
            "flow_count": len(chosen),
            "sockets": ffi.new("int32_t[]", [self._opened[index].fileno() for index in chosen]),
            "flows": ffi.new("uint16_t[]", numbers),
            "sequences": memory.at("uint64_t *", memory.layout.sequences[self._index]),
            "tag": phase.tag,
            **self._id_values(chosen),
            "pace_sleeps": send.pace == "sleep",
            # 0 means unlimited, and no count.
            "rate_pps": phase.rate_pps or spec.rate_pps or 0,
            "bucket_ns": send.bucket_ns,
            "count": counted if counted is not None else spec.count_packets or 0,
            "epoch_ns": phase.at_ns,
            "start_ns": phase.at_ns,
            "end_ns": phase.at_ns + phase.duration_ns,
            "control": memory.at("struct ub_control *", 0),
            "gso_segments": 0 if send.gso == "off" else send.gso,
            "zerocopy": send.zerocopy,
            "zerocopy_next": ffi.new("uint32_t[]", [self._completions[index] for index in chosen]),
            "pacing": memory.block(self._index, "pacing"),
            "stalls": memory.block(self._index, "stalls"),
            "milliseconds": memory.block(self._index, "milliseconds"),
            **(self._frames.config(chosen) if self._frames is not None else {}),
        }

    def _id_values(self, chosen: list[int]) -> dict[str, Any]:
        """Return the position of ids in packets, for sending and for listening."""
        answers = self._spec.traffic.answers
        if answers is None or answers.id_at is None:
            return {}
        ids = ffi.new("struct ub_ids *[]", [self._ids[index] for index in chosen])
        return {"ids": ids, "id_at": answers.id_at, "id_ns": answers.timeout_ns}

    def _listening(self, config: Any, stats: Any, **more: Any) -> Any:
        """Return the config of a listener beside a sending loop."""
        values = {
            "sockets": config.sockets,
            "socket_count": config.flow_count,
            "tag": config.tag,
            "epoch_ns": config.epoch_ns,
            "sent": stats,
            "ids": config.ids,
            "id_at": config.id_at,
            "round_trip": self._memory.block(self._index, "round_trip"),
            **more,
        }
        return ffi.new("struct ub_listen_config *", values)

    def _run_with_listener(self, config: Any, stats: Any) -> int:
        """Send while another thread listens for echoes; return 0 or a negative errno of either."""
        ended = ffi.new("struct ub_control *")
        limits = {"quiet_ns": ECHO_QUIET_NS, "longest_ns": ECHO_LONGEST_NS}
        stops = {"control": config.control, "ended": ended}
        listening = self._listening(config, stats, **limits, **stops)
        echoes = self._memory.block(self._index, "echo")
        listener = SideThread(lambda: run_loop("ub_echo_listen", listening, echoes), self._cpus)
        try:
            result = run_loop("ub_send", config, stats)
        finally:  # it uses memory that is freed after this call
            ended.stop = 1
            listened = listener.result()
        return result or listened

    def _run_with_answers(self, answers: Answers, config: Any, stats: Any) -> int:
        """Send while another thread counts answers until stop; return 0 or a negative errno."""
        failed = ffi.new("struct ub_control *")
        longest_ns = answers.timeout_ns + ANSWERS_LONGEST_NS
        limits = {"quiet_ns": answers.timeout_ns, "longest_ns": longest_ns}
        stops = {"control": failed, "ended": config.control}
        awaiting = self._listening(config, stats, **limits, **stops)
        counted = self._memory.block(self._index, "answers")
        listener = SideThread(lambda: run_loop("ub_answers_listen", awaiting, counted), self._cpus)
        result = -errno.EINVAL
        try:
            result = run_loop("ub_send", config, stats)
        finally:  # it uses memory that is freed after this call
            if result == 0:
                self._sent()
            failed.stop = result != 0
            listened = listener.result()
        return result or listened


class Receiving:
    """One receiving worker's loop on its sockets, phase after phase."""

    def __init__(
        self,
        memory: Memory,
        index: int,
        opened: Sequence[socket.socket],
        cpus: Iterable[int],
        xsk: Any = None,
    ) -> None:
        self._memory = memory
        self._index = index
        self._cpus = cpus
        self._xsk = xsk if xsk is not None else ffi.NULL
        self._count = len(opened)
        self._sockets = ffi.new("int32_t[]", [own.fileno() for own in opened])
        self._spec = memory.specs[index]
        self._receive = cast("Receive", self._spec.receive)
        self._datagrams, _ = datagrams(self._spec)
        log = self._receive.log
        self._log = LogRing(log) if log is not None else None

    def run(self, phase: LoopOrder) -> int:
        """Receive until stop; return 0 or a negative errno."""
        memory = self._memory
        config = ffi.new("struct ub_receive_config *", self._values(phase))
        stats = memory.at("struct ub_receive_stats *", memory.layout.stats[self._index])
        if self._spec.traffic.protocol == "tcp":
            return run_loop("ub_stream_receive", config, stats)
        if self._log is not None:
            return self._run_with_log(self._log, config, stats)
        return run_loop("ub_receive", config, stats)

    def _values(self, phase: LoopOrder) -> dict[str, Any]:
        memory, spec, receive = self._memory, self._spec, self._receive
        wait = wait_of(receive)
        return {
            "call": getattr(lib, way_to_receive(receive).constant),
            "batch": receive.messages,
            "room_bytes": room_bytes(spec.traffic, receive),
            "datagrams": self._datagrams,
            "datagram_count": len(self._datagrams),
            "sockets": self._sockets,
            "socket_count": self._count,
            "xsk": self._xsk,
            "tag": phase.tag,
            "flow_count": memory.layout.flow_count,
            "window_words": memory.layout.window_words,
            "work_ns": receive.work_ns,
            "flows": memory.at("struct ub_flow_state *", memory.layout.windows),
            "control": memory.at("struct ub_control *", 0),
            "wait": getattr(lib, wait.constant),
            "read": getattr(lib, read_named(phase.read).constant),
            "gro": receive.gro,
            "nap_ns": wait_ns(receive) if wait.naps else wait.nap_ns,
            **self._fault(phase),
            **self._notes(phase),
        }

    def _notes(self, phase: LoopOrder) -> dict[str, Any]:
        """Return what the loop records besides its counts."""
        blocks = ("delay", "stack", "application", "milliseconds")
        return {
            "epoch_ns": phase.at_ns,
            "echo_every": phase.echo_every,
            "timestamps": self._receive.timestamps and read_named(phase.read).sees_header,
            **{name: self._memory.block(self._index, name) for name in blocks},
        }

    def _run_with_log(self, log: LogRing, config: Any, stats: Any) -> int:
        """Receive while another thread writes the log; return 0 or a negative errno of either."""
        path = Path(logs.path_of(log.options, self._spec.name))
        try:
            folder = Folder.open(path.parent)
        except OSError as error:  # the folder existed when the worker was prepared
            return -(error.errno or errno.ENOENT)
        with folder:
            # The files hold the measured phase only.
            logs.clear(folder, path.name)
            ended = ffi.new("struct ub_control *")
            # Each name keeps a struct's pointers alive.
            writing, _name = log.begin(folder.fd, path.name, ended)
            logged = self._memory.block(self._index, "log")
            writer = SideThread(lambda: run_loop("ub_log_write", writing, logged), self._cpus)
            config.log = log.log
            try:
                result = run_loop("ub_receive", config, stats)
            finally:  # it uses a ring and a name that are freed after this call
                ended.stop = 1
                written = writer.result()
        return result or written

    def _fault(self, phase: LoopOrder) -> dict[str, int]:
        fault = self._spec.fault
        if fault is None or not phase.faulty:
            return {}
        return {"fault": FAULTS[fault.does], "fault_at_ns": phase.at_ns + fault.after_ns}


class ClientReceiving(Receiving):
    """The loop that reads the streams of an iperf3 client, a socket each."""

    def __init__(
        self,
        memory: Memory,
        opened: Sequence[socket.socket],
        cpus: Iterable[int],
        wide_counters: bool,
        room_packets: int,
    ) -> None:
        """``room_packets`` are what a buffer holds."""
        super().__init__(memory, 0, opened, cpus)
        self._own = {
            "read": lib.UB_READ_IPERF3,
            "wide_counters": wide_counters,
            "timestamps": True,
            "nap_most_ns": LONG_NAP_NS,
            "nap_messages": room_packets // NAP_SHARE,
        }
        self._streams = ffi.new("struct ub_iperf3_stream[]", len(opened))

    def _values(self, phase: LoopOrder) -> dict[str, Any]:
        return {**super()._values(phase), **self._own, "streams": self._streams}

    def streams(self) -> list[dict[str, int]]:
        """Return the counts of each stream by C name; readable at any time."""
        names = [name for name, _ in ffi.typeof("struct ub_iperf3_stream").fields]
        return [{name: getattr(each, name) for name in names} for each in self._streams]


class ConfigRefused(ValueError):
    """A loop refused its config: a bug, since definitions are checked earlier."""


def run_loop(name: str, config: Any, stats: Any) -> int:
    """Run a C loop by name; return 0 or a negative errno.

    ConfigRefused names the field that C refuses, its value and the permitted values.
    """
    result = int(getattr(lib, name)(config, stats))
    refused = getattr(lib, f"{name}_check")(config) if result == -errno.EINVAL else ffi.NULL
    if refused:
        field, _, allowed = ffi.string(refused).decode().partition(": ")
        allowed = re.sub(r"UB_\w+", lambda limit: str(getattr(lib, limit[0])), allowed)
        value = getattr(config, field)
        if field == "datagrams" and value:
            sizes = [str(each.size_bytes) for each in value[0 : config.datagram_count]]
            value = f"{', '.join(sizes)} bytes"
        raise ConfigRefused(f"{name}: {field}: {value}; allowed: {allowed}")
    return result


def datagrams(spec: WorkerSpec) -> tuple[Any, list[Any]]:
    """Return the datagrams of a run as an array for C, and what must live as long."""
    sent = spec.traffic.datagrams
    tail_bytes = spec.send.tail_bytes if spec.send is not None else None
    sizes = [*sent.sizes_bytes, *([tail_bytes] if tail_bytes is not None else [])]
    texts = [ffi.from_buffer("uint8_t[]", bytes.fromhex(text)) for text in sent.contents]
    entries = [[text, len(text)] for text in texts] or [[ffi.NULL, size] for size in sizes]
    return ffi.new("struct ub_datagram[]", entries), texts


def room_bytes(traffic: Traffic, receive: Receive) -> int:
    """Return the buffer size for each message, for a stream for each read.

    ``auto`` is the run's datagram size, at least 64 B: longer datagrams are not from this run and
    show up as truncated; larger buffers would only spread the batch over more cache lines.
    """
    if receive.room != "auto":
        return receive.room
    if receive.gro or traffic.protocol == "tcp":
        return MESSAGE_BYTES
    return max(traffic.datagrams.longest_bytes, ROOM_MIN_BYTES)


class LogRing:
    """The ring between a receiving loop and the writer of its log."""

    def __init__(self, options: Log) -> None:
        self.options = options
        self._bytes = ffi.new("uint8_t[]", LOG_RING_BYTES)
        self.log = ffi.new("struct ub_log *", {"ring": self._bytes, "ring_bytes": LOG_RING_BYTES})

    def begin(self, folder: int, name: str, ended: Any) -> tuple[Any, Any]:
        """Empty the ring between phases; return a writer's config and the name it points to."""
        self.log.put_bytes = self.log.taken_bytes = 0
        file_name = ffi.new("char[]", os.fsencode(name))
        values = {
            "log": self.log,
            "folder": folder,
            "name": file_name,
            "pipes_of": calling_user(),
            "max_file_bytes": self.options.max_file_bytes,
            "keep": self.options.keep,
            "drain_ns": LOG_DRAIN_NS,
            "ended": ended,
        }
        return ffi.new("struct ub_log_config *", values), file_name


class SideThread:
    """A thread alongside a worker's loop, which may run on any CPU of the process."""

    def __init__(self, work: Callable[[], int], cpus: Iterable[int]) -> None:
        self._work = work
        self._cpus = cpus
        self._result = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # A thread inherits the affinity of its creator.
        os.sched_setaffinity(0, self._cpus)
        self._result = self._work()

    def result(self) -> int:
        """Wait for the thread to end; return 0 or a negative errno."""
        self._thread.join()
        return self._result
