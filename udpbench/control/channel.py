"""A channel to one agent: requests and replies over a pipe pair, and the ways to open one here.

Owns ids, deadlines, the clock offset, the agent's process, and the return of a connection. Knows no
verb's meaning and decides nothing about a trial. A new way to reach a host is one function that
returns a Channel; the way by SSH is in ``ssh``.
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
from dataclasses import dataclass, field
from functools import partial
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
FIRST_PAUSE_NS = SECOND_NS // 10
LAST_PAUSE_NS = SECOND_NS
"""Between two attempts to make a connection anew: twice as long each time, up to this."""
LATE_NS = 15 * SECOND_NS
"""After the lease, for an attempt that began within it to end; by then the agent has restored."""
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
    broken: Callable[[], bool] = lambda: False
    """Say, at the end of the replies, whether it was the connection that ended, not the agent."""
    again: Callable[[str, int], Pipes] | None = None
    """Run and nanoseconds → the agent of that run by a new connection; raises ConnectError where
    the next attempt may do better, AgentLost where no agent waits there. None: there is no way."""


@dataclass(frozen=True)
class News:
    """What became of the connection, for whoever waits for a reply."""

    text: str
    away: bool
    """The connection is being made anew: that has a limit of its own, and no deadline runs."""


Answer = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """A request as it was written, and where its waiter looks: None there is the agent's loss."""

    line: bytes
    slot: queue.SimpleQueue[Answer | News | None] = field(default_factory=queue.SimpleQueue)


class Channel:
    """Requests to one agent; safe to use from the lease's thread and the main thread at once."""

    def __init__(self, host: str, pipes: Pipes) -> None:
        self.host = host
        self.offset_ns = 0
        """The agent's clock minus this one's, from the reply with the least round trip."""
        self.round_trip_ns: int | None = None
        """That least round trip; the offset is wrong by at most half of it."""
        self.absences_ns: list[int] = []
        """From the last reply to the return, for each time that the connection came back."""
        self.notice: Callable[[str], None] = lambda _: None
        """Hears what becomes of the connection, in the thread that waits for a reply."""
        self._pipes = pipes
        self._outlasting: tuple[Callable[[int], Pipes], int] | None = None
        """The way to a new connection, and the lease."""
        self._leaving = threading.Event()
        self._news: News | None = None
        self._heard_ns = time.monotonic_ns()
        self._why_gone = ""
        self._writing = threading.Lock()
        self._book = threading.Lock()
        self._waiting: dict[int, Asked] = {}
        self._next_id = 1
        self._lost: str | None = None
        self._words: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [self._begun(self._listen), self._begun(self._collect)]

    def _begun(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"{work.__name__} {self.host}", daemon=True)
        thread.start()
        return thread

    @property
    def pid(self) -> int | None:
        """The agent's process id, where it runs on this machine."""
        return self._pipes.pid

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return the result of a verb, plain data, within ``deadline_ns`` nanoseconds from now.

        Raises what the agent failed with, AgentLost, or DeadlineExceeded; a reply that comes after
        its deadline is dropped, so the channel stays usable. The deadline begins anew when a lost
        connection is back.
        """
        number, asked = self._enter(verb, encode(args))
        try:
            sent_ns = time.monotonic_ns()
            with self._writing:
                self._put(asked.line)
            answer = self._await(asked, deadline_ns)
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

    def outlast(self, run: str, lease_ns: int) -> None:
        """Make a connection that ends anew from now on, as long as the run's agent waits for it."""
        if self._pipes.again is not None:
            self._outlasting = (partial(self._pipes.again, run), lease_ns)

    def close(self, limit_ns: int = CLOSE_NS) -> int | None:
        """End the agent by ending its stdin, by SIGKILL after a deadline; return its exit status.

        A killed agent's guardian restores in its place.
        """
        self._leaving.set()
        with self._writing:
            if self._outlasting is not None:
                self._put(write_line({"id": 0, "verb": "leave", "args": {}}))
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

    def _enter(self, verb: str, args: Any) -> tuple[int, Asked]:
        with self._book:
            number = self._next_id
            self._next_id += 1
            asked = Asked(write_line({"id": number, "verb": verb, "args": args}))
            if self._lost is not None:
                asked.slot.put(None)
            elif self._news is not None:
                asked.slot.put(self._news)
            self._waiting[number] = asked
        return number, asked

    def _await(self, asked: Asked, deadline_ns: int) -> Answer | None:
        """Return what comes of a request; raises queue.Empty at its deadline."""
        limit_ns, away = deadline_ns, False
        while True:
            try:
                item = asked.slot.get(timeout=limit_ns / SECOND_NS)
            except queue.Empty:
                if not away:
                    raise
                self.lose(f"its connection was not made anew within {format_duration(limit_ns)}")
                return None
            if not isinstance(item, News):
                return item
            self.notice(item.text)
            away = item.away
            limit_ns = self._absence_limit_ns() if away else deadline_ns

    def _absence_limit_ns(self) -> int:
        """Return how long a lost connection is waited for, whatever becomes of the attempts."""
        lease_ns = self._outlasting[1] if self._outlasting is not None else 0
        return lease_ns + LATE_NS

    def _put(self, line: bytes) -> None:
        try:
            self._pipes.requests.write(line)
            self._pipes.requests.flush()
        except (OSError, ValueError):
            # EPIPE, or a file that is closed; the reader's end of file tells every waiter.
            if self._outlasting is None:
                self.lose("it no longer reads its stdin")

    def _listen(self) -> None:
        """Take replies until the agent ends, or its connection does for good."""
        try:
            why = self._take_replies()
            while why == ENDED and self._come_back():
                why = self._take_replies()
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody may wait for a reply
            why = f"its replies ended with {type(error).__name__}: {error}"
        self.lose(why)

    def _come_back(self) -> bool:
        """Make a broken connection anew and ask again what is unanswered; False: it is over."""
        old, heard_ns = self._pipes, self._heard_ns
        if self._outlasting is None or self._lost is not None or not old.broken():
            return False
        again, lease_ns = self._outlasting
        limit = format_duration(lease_ns)
        self._tell(News(f"the connection was lost; trying for {limit} to make it anew", away=True))
        pipes = self._try(again, time.monotonic_ns() + lease_ns)
        if pipes is None:
            return False
        with self._writing:
            # Nobody would tell this one that it is the end.
            if self._leaving.is_set() or self._lost is not None:
                pipes.kill()
                pipes.release()
                return False
            self._pipes = pipes
            with self._book:
                asked = [self._waiting[number] for number in sorted(self._waiting)]
            for one in asked:
                self._put(one.line)
        old.release()
        self._threads[1] = self._begun(self._collect)
        self.absences_ns.append(time.monotonic_ns() - heard_ns)
        self._tell(News(f"the connection is back after {shown(self.absences_ns[-1])}", away=False))
        return True

    def _try(self, again: Callable[[int], Pipes], deadline_ns: int) -> Pipes | None:
        """Return the agent's new pipes; None where it is gone, or the lease or the run is over."""
        pause_ns = FIRST_PAUSE_NS
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0 and not self._leaving.is_set():
            try:
                return again(left_ns)
            except AgentLost as error:
                self._why_gone = f"; {error.message}"
                return None
            except ConnectError as error:
                self._why_gone = f"; it was not reached again: {error.message}"
            self._leaving.wait(min(pause_ns, left_ns) / SECOND_NS)
            pause_ns = min(2 * pause_ns, LAST_PAUSE_NS)
        return None

    def _tell(self, news: News) -> None:
        """Let everybody who waits know, and who comes to wait while it lasts."""
        with self._book:
            self._news = news if news.away else None
            for asked in self._waiting.values():
                asked.slot.put(news)

    def _take_replies(self) -> str:
        """Hand every reply to who waits for its id, and return why there are no more."""
        why = ENDED
        while line := self._pipes.replies.readline(MAX_LINE_BYTES + 1):
            self._heard_ns = received_ns = time.monotonic_ns()
            try:
                reply = read_line(line)
            except ValueError:
                why = f"it wrote what is no reply: {line[:80]!r}"
                break
            with self._book:
                asked = self._waiting.pop(reply.get("id", 0), None)
            if asked is not None:
                asked.slot.put((received_ns, reply))
        return why

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
            for asked in self._waiting.values():
                asked.slot.put(None)
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
        how += self._why_gone
        return AgentLost(f"the agent is lost at {verb}: {self._lost}{how}{words}", self.host)

    def _learn_offset(self, sent_ns: int, received_ns: int, clock_ns: Any) -> None:
        round_trip_ns = received_ns - sent_ns
        if not isinstance(clock_ns, int):
            return
        if self.round_trip_ns is None or round_trip_ns < self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.offset_ns = clock_ns - (sent_ns + received_ns) // 2


def shown(absence_ns: int) -> str:
    """Return how long a connection was lost, to a tenth of a second."""
    return f"{absence_ns / SECOND_NS:.1f}s"


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
