"""A channel to one agent: requests and replies over a pipe pair, and the ways to open one here.

Owns ids, deadlines, the clock offset and the agent's process. Knows no verb's meaning and decides
nothing about a trial. A new way to reach a host is one function that returns a Channel; the way by
SSH is in ``ssh``.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import udpbench
from udpbench.errors import AgentLost, ConnectError, DeadlineExceeded, from_wire
from udpbench.model import SECOND_NS
from udpbench.protocol import MAX_LINE_BYTES, encode, read_line, write_line
from udpbench.units import format_duration

AGENT = "udpbench.agent.serve"
# -P: what lies in the current folder must not shadow the agent's imports.
AGENT_COMMAND = (sys.executable, "-P", "-m", AGENT)
ENDED = "it ended"
STDERR_LINES = 8
STDERR_LINE_BYTES = 2000
LOSS_NS = SECOND_NS // 5
"""For a process whose pipe has ended to have an exit status and its last words read."""
CLOSE_NS = 10 * SECOND_NS
"""For an agent whose stdin has ended to stop its workers (2 s) and restore what it changed."""


@dataclass(frozen=True)
class Pipes:
    """One agent as its channel sees it, however it was started."""

    requests: IO[bytes]
    replies: IO[bytes]
    errors: IO[bytes]
    pid: int | None
    """The agent's process, where it runs on this machine."""
    ended: Callable[[int], int | None]
    """Wait at most so many nanoseconds for the agent's end; its exit status, None if it runs."""
    kill: Callable[[], None]
    release: Callable[[], None]
    """Give back what carried the pipes, once the agent has ended."""
    next_step: Callable[[int | None, str], str]
    """Exit status and last words of an agent that did not start → what to do about it."""


class Channel:
    """Requests to one agent; safe to use from the lease's thread and the main thread at once."""

    def __init__(self, host: str, pipes: Pipes) -> None:
        self.host = host
        self.offset_ns = 0
        """The agent's clock minus this one's, from the reply with the least round trip."""
        self.round_trip_ns: int | None = None
        """That least round trip; the offset is wrong by at most half of it."""
        self._pipes = pipes
        self._writing = threading.Lock()
        self._book = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[tuple[int, dict[str, Any]] | None]] = {}
        self._next_id = 1
        self._lost: str | None = None
        self._words: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [
            threading.Thread(target=work, name=f"{work.__name__} {host}", daemon=True)
            for work in (self._listen, self._collect)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        """The agent's process id, where it runs on this machine."""
        return self._pipes.pid

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return the result of a verb, plain data, within ``deadline_ns`` nanoseconds from now.

        Raises what the agent failed with, AgentLost, or DeadlineExceeded; a reply that comes after
        its deadline is dropped, so the channel stays usable.
        """
        number, slot = self._enter()
        try:
            sent_ns = time.monotonic_ns()
            self._write({"id": number, "verb": verb, "args": encode(args)})
            answer = slot.get(timeout=deadline_ns / SECOND_NS)
        except queue.Empty:
            text = f"{verb}: no reply within {format_duration(deadline_ns)}"
            raise DeadlineExceeded(text, self.host) from None
        finally:
            with self._book:
                self._waiting.pop(number, None)
        if answer is None:
            raise self._loss(verb)
        received_ns, reply = answer
        self._learn_offset(sent_ns, received_ns, reply.get("clock_ns"))
        if reply.get("error") is not None:
            raise from_wire(reply["error"], self.host)
        return reply.get("result")

    def ping(self) -> None:
        """Renew the lease without waiting for the reply, so that a slow agent delays no other."""
        if not self._writing.acquire(blocking=False):
            return  # A request is being written at this moment, and that renews the lease, too.
        try:
            if self._lost is None:
                self._put(write_line({"id": 0, "verb": "ping", "args": {}}))
        finally:
            self._writing.release()

    def close(self, limit_ns: int = CLOSE_NS) -> int | None:
        """End the agent by ending its stdin, by SIGKILL after a deadline; return its exit status.

        A killed agent's guardian restores in its place.
        """
        with self._writing:
            try:
                self._pipes.requests.close()
            except OSError:
                self._lost = self._lost or "its stdin was gone"
        status = self._pipes.ended(limit_ns)
        if status is None:
            self._pipes.kill()
            status = self._pipes.ended(limit_ns)
        for thread in self._threads:
            thread.join(limit_ns / SECOND_NS)
        self._pipes.release()
        return status

    def last_words(self) -> str:
        """Return the last lines that the agent wrote to stderr."""
        return " | ".join(self._words)

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Return the error of an agent that was lost before it answered its first request."""
        step = self._pipes.next_step(self._pipes.ended(LOSS_NS), self.last_words())
        how = loss.message.partition(": ")[2]
        return ConnectError(f"the agent did not start: {how}; {step}", self.host)

    def _enter(self) -> tuple[int, queue.SimpleQueue[tuple[int, dict[str, Any]] | None]]:
        slot: queue.SimpleQueue[tuple[int, dict[str, Any]] | None] = queue.SimpleQueue()
        with self._book:
            number = self._next_id
            self._next_id += 1
            if self._lost is not None:
                slot.put(None)
            self._waiting[number] = slot
        return number, slot

    def _write(self, message: dict[str, Any]) -> None:
        line = write_line(message)
        with self._writing:
            self._put(line)

    def _put(self, line: bytes) -> None:
        try:
            self._pipes.requests.write(line)
            self._pipes.requests.flush()
        except (OSError, ValueError):
            # EPIPE, or a file that is closed; the reader's end of file tells every waiter.
            self.lose("it no longer reads its stdin")

    def _listen(self) -> None:
        """Hand every reply to who waits for its id, until the agent ends."""
        why = ENDED
        while line := self._pipes.replies.readline(MAX_LINE_BYTES + 1):
            received_ns = time.monotonic_ns()
            try:
                reply = read_line(line)
            except ValueError:
                why = f"it wrote what is no reply: {line[:80]!r}"
                break
            with self._book:
                slot = self._waiting.pop(reply.get("id", 0), None)
            if slot is not None:
                slot.put((received_ns, reply))
        self.lose(why)

    def _collect(self) -> None:
        """Keep the agent's last words."""
        while line := self._pipes.errors.readline(STDERR_LINE_BYTES):
            text = line.decode(errors="replace").strip()
            if text:
                self._words.append(text)

    def lose(self, why: str) -> None:
        """Take the agent for lost: whoever waits for it, or asks it later, is told so at once."""
        with self._book:
            self._lost = self._lost or why
            for slot in self._waiting.values():
                slot.put(None)
            self._waiting.clear()

    def _loss(self, verb: str) -> AgentLost:
        """Return the error of a broken channel, with the exit status and the last words."""
        status = self._pipes.ended(LOSS_NS)
        self._threads[1].join(LOSS_NS / SECOND_NS)
        if status is None:  # over SSH; here a process that ended has a status
            how = ", or the connection to it did" if self._lost == ENDED else ""
        else:
            how = f" (signal {-status})" if status < 0 else f" (exit {status})"
        words = f"; its last words: {self.last_words()}" if self._words else ""
        return AgentLost(f"the agent is lost at {verb}: {self._lost}{how}{words}", self.host)

    def _learn_offset(self, sent_ns: int, received_ns: int, clock_ns: Any) -> None:
        round_trip_ns = received_ns - sent_ns
        if not isinstance(clock_ns, int):
            return
        if self.round_trip_ns is None or round_trip_ns < self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.offset_ns = clock_ns - (sent_ns + received_ns) // 2


def open_local(host: str, command: Sequence[str]) -> Channel:
    """Return a channel to a process of this machine, in a session of its own.

    Ctrl-C in the terminal then reaches the controller alone. Raises ConnectError.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
    except OSError as error:
        text = f"{command[0]} cannot be started: {error.strerror}; install it or mend PATH"
        raise ConnectError(text, host) from error

    def ended(limit_ns: int) -> int | None:
        try:
            return process.wait(limit_ns / SECOND_NS)
        except subprocess.TimeoutExpired:
            return None

    # Popen types its pipes as optional; with PIPE they are there.
    return Channel(
        host,
        Pipes(
            requests=cast("IO[bytes]", process.stdin),
            replies=cast("IO[bytes]", process.stdout),
            errors=cast("IO[bytes]", process.stderr),
            pid=process.pid,
            ended=ended,
            kill=process.kill,
            release=lambda: None,  # the pipes close with the process
            next_step=lambda _status, _words: "run udpbench as root",
        ),
    )


def _python_path() -> str:
    """Return PYTHONPATH with this very udpbench first: the agent must be of the same build."""
    own = str(Path(udpbench.__file__).parent.parent)
    return os.pathsep.join(part for part in (own, os.environ.get("PYTHONPATH")) if part)


def open_machine(host: str) -> Channel:
    """Return a channel to an agent in the namespace the controller is in."""
    return open_local(host, AGENT_COMMAND)
