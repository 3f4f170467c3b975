"""A channel to one agent: requests and replies over a pair of pipes.

Owns request numbers, deadlines, the clock offset, the agent's process, and reconnecting. Knows the
meaning of no verb and decides nothing about a trial. A new way to reach a host is one function that
returns a Channel: ``local_agent``, ``namespaces``, ``ssh``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from udpbench.errors import (
    AgentError,
    AgentLost,
    ConnectError,
    DeadlineExceeded,
    HostError,
    from_wire,
)
from udpbench.json_lines import MOST_LINE_BYTES, LinePipe, LineTooLong
from udpbench.model.limits import INTEGERS, SECOND_NS
from udpbench.printable import printable
from udpbench.protocol import decode, encode, read_line, write_line
from udpbench.units import format_bytes, format_duration

AGENT = "udpbench.agent.serve"
OBSERVER = "udpbench.agent.observe"
"""Serves what only looks, with no right to change anything."""
SERVER = "udpbench.agent.clients"
"""Serves iperf3 clients, with no right at all."""
REFUSED = "udpbench server: not started: "
"""Before why it cannot listen, and what to do."""
ENDED = "it ended"
INSTEAD = "find out what runs there instead of its agent"
STDERR_LINES = 8
STDERR_LINE_BYTES = 2000
LOSS_NS = SECOND_NS // 5
"""For a process whose pipe has closed to end, and for the end of its stderr to be read."""
FIRST_PAUSE_NS = SECOND_NS // 10
LAST_PAUSE_NS = SECOND_NS
"""Between two attempts to reconnect: twice as long each time, up to this."""
LATE_NS = 15 * SECOND_NS
"""After the lease, for an attempt that began within it; by then the agent has restored."""
UNASKED_REPLIES = 10
"""More than there were requests: an agent sends none, so whatever sends them is given up."""
UNASKED_BYTES = MOST_LINE_BYTES
"""Unasked replies that are kept, since the last that somebody waited for: answers to pings, and
those that come after their deadline."""
STDERR_BYTES = MOST_LINE_BYTES
"""Kept of one connection's."""
CLOSE_NS = 10 * SECOND_NS
"""For an agent whose stdin was closed to stop its workers (2 s) and restore the host."""


@dataclass(frozen=True)
class Pipes:
    """The pipes and the process of one agent, however it was started."""

    requests: IO[bytes]
    replies: LinePipe
    errors: IO[bytes]
    pid: int | None
    """The agent's process, if it runs on this machine."""
    ended: Callable[[int], int | None]
    """Wait at most so many nanoseconds for the agent's end; exit status, None if still running."""
    kill: Callable[[], None]
    release: Callable[[], None]
    """Close the connection that carried the pipes, once the agent has ended."""
    next_step: Callable[[int | None, str], str]
    """Exit status and last output of an agent that did not start → next step."""
    answered: Callable[[], None] = lambda: None
    """Called with each reply that was waited for: from then on a host's bytes count anew."""
    broken: Callable[[], bool] = lambda: False
    """At the end of the replies: whether the connection ended, not the agent."""
    again: Callable[[str, int], Pipes] | None = None
    """Run and nanoseconds → that run's agent by a new connection; raises ConnectError if a further
    attempt may succeed, AgentLost if no agent waits there. None: reconnecting is impossible."""


@dataclass(frozen=True)
class ConnectionNotice:
    """A change of the connection, for the thread that waits for a reply."""

    text: str
    away: bool
    """The connection is lost for now; deadlines stand still, and reconnecting has its own limit."""


Answer = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class PendingRequest:
    """A request as written, and the queue of its waiter, in which None means a lost agent."""

    line: bytes
    slot: queue.SimpleQueue[Answer | ConnectionNotice | None] = field(
        default_factory=queue.SimpleQueue
    )


class Channel:
    """Requests to one agent; safe to use from the lease's thread and the main thread at once."""

    def __init__(self, host: str, pipes: Pipes) -> None:
        self.host = host
        self.offset_ns = 0
        """The agent's clock minus this one's, from the reply with the shortest round trip."""
        self.round_trip_ns: int | None = None
        """That round trip; the offset's error is at most half of it."""
        self.absences_ns: list[int] = []
        """For each time that the connection came back, the time since the last reply."""
        self.notice: Callable[[str], None] = lambda _: None
        """Called with each change of the connection, in the thread that waits for a reply."""
        self._pipes = pipes
        self._outlasting: tuple[Callable[[int], Pipes], int] | None = None
        """How to reconnect, and the lease."""
        self._leaving = threading.Event()
        self._last_notice: ConnectionNotice | None = None
        self._heard_ns = time.monotonic_ns()
        self._why_gone = ""
        self._writing = threading.Lock()
        self._book = threading.Lock()
        self._waiting: dict[int, PendingRequest] = {}
        self._next_id = 1
        self._unasked_replies = 0
        """Replies less requests that were written."""
        self._unasked_bytes = 0
        self._lost: str | None = None
        self._words: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [self._start(self._listen), self._start(self._collect)]

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"{work.__name__} {self.host}", daemon=True)
        thread.start()
        return thread

    @property
    def pid(self) -> int | None:
        """The agent's process id, if it runs on this machine."""
        return self._pipes.pid

    def request(self, verb: str, deadline_ns: int, **args: Any) -> Any:
        """Return the result of a verb, plain data, within ``deadline_ns`` nanoseconds from now."""
        return self.begin(verb, deadline_ns, **args)()

    def begin(self, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:
        """Send a request, and return what waits for its result; the agent serves them in order.

        Raises the agent's error, AgentLost, or DeadlineExceeded; a reply after its deadline is
        dropped, so the channel stays usable. The deadline starts again after a reconnection, but
        reconnecting delays no answer by more than one absence may last.
        """
        exchange = self._exchange(verb, deadline_ns, args)
        next(exchange)
        return partial(next, exchange)

    def _exchange(self, verb: str, deadline_ns: int, args: Any) -> Iterator[Any]:
        """Send a request, yield, then wait for its result and yield that."""
        number, pending = self._enter(verb, encode(args))
        try:
            sent_ns = self._write(pending.line, deadline_ns)
            yield None
            answer = self._await(pending, deadline_ns)
        except queue.Empty:
            limit = format_duration(deadline_ns)
            text = f"{verb}: no reply within {limit}; find out what holds it up there"
            raise DeadlineExceeded(text, self.host) from None
        finally:
            with self._book:
                self._waiting.pop(number, None)
        if answer is None:
            raise self._loss(verb)
        received_ns, reply = answer
        self._learn_offset(sent_ns, received_ns, reply.get("clock_ns"))
        if reply.get("error") is not None:
            raise from_wire(self._described(reply["error"]), self.host)
        yield reply.get("result")

    def _described(self, error: Any) -> dict[str, str]:
        try:
            described: dict[str, str] = decode(dict[str, str], error)
        except ValueError as why:
            raise AgentError(f"its error is malformed: {why}", self.host) from why
        return described

    def ping(self) -> None:
        """Renew the lease without waiting for the reply, so that a slow agent delays no other."""
        if not self._writing.acquire(blocking=False):
            return  # A request is being written, which renews the lease, too.
        try:
            if self._lost is None and not self._leaving.is_set():
                self._put(write_line({"id": 0, "verb": "ping", "args": {}}))
        finally:
            self._writing.release()

    def outlast(self, run: str, lease_ns: int) -> None:
        """Reconnect from now on if the connection ends, for as long as the run's agent waits."""
        if self._pipes.again is not None:
            self._outlasting = (partial(self._pipes.again, run), lease_ns)

    def close(self, limit_ns: int = CLOSE_NS) -> int | None:
        """End the agent by closing its stdin, at a deadline by SIGKILL; return its exit status.

        The guardian of a killed agent restores the host.
        """
        self._leaving.set()
        if not self._writing.acquire(timeout=limit_ns / SECOND_NS):
            self._pipes.kill()  # what is being written, the host does not take
            self._writing.acquire()
        try:
            if self._outlasting is not None:
                self._put(write_line({"id": 0, "verb": "leave", "args": {}}))
            try:
                self._pipes.requests.close()
            except OSError:
                self._lost = self._lost or "its stdin was closed"
        finally:
            self._writing.release()
        status = self._pipes.ended(limit_ns)
        if status is None:
            self._pipes.kill()
            status = self._pipes.ended(max(limit_ns, SECOND_NS))
        for thread in self._threads:
            thread.join(limit_ns / SECOND_NS)
        self._pipes.release()
        return status

    def last_words(self) -> str:
        """Return the last lines of the agent's stderr."""
        return " | ".join(self._words)

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Return the error of an agent that was lost before its first reply."""
        step = self._pipes.next_step(self._pipes.ended(LOSS_NS), self.last_words())
        how = loss.message.partition(": ")[2]
        _, refused, why = how.partition(REFUSED)
        if refused:
            return ConnectError(f"nothing listens: {why}", self.host)
        return ConnectError(f"the agent did not start: {how}; {step}", self.host)

    def _enter(self, verb: str, args: Any) -> tuple[int, PendingRequest]:
        with self._book:
            number = self._next_id
            self._next_id += 1
            pending = PendingRequest(write_line({"id": number, "verb": verb, "args": args}))
            if self._lost is not None:
                pending.slot.put(None)
            elif self._last_notice is not None:
                pending.slot.put(self._last_notice)
            self._waiting[number] = pending
        return number, pending

    def _await(self, pending: PendingRequest, deadline_ns: int) -> Answer | None:
        """Return the answer to a request; raises queue.Empty at its deadline."""
        end_ns = time.monotonic_ns() + deadline_ns + self._absence_limit_ns()
        limit_ns, away = deadline_ns, False
        while True:
            left_ns = max(end_ns - time.monotonic_ns(), 0)
            try:
                item = pending.slot.get(timeout=min(limit_ns, left_ns) / SECOND_NS)
            except queue.Empty:
                if not away or left_ns < limit_ns:
                    raise
                self.lose(f"it could not be reached again within {format_duration(limit_ns)}")
                return None
            if not isinstance(item, ConnectionNotice):
                return item
            self.notice(item.text)
            away = item.away
            limit_ns = self._absence_limit_ns() if away else deadline_ns

    def _absence_limit_ns(self) -> int:
        """Return the limit of the wait for a lost connection, whatever its attempts do."""
        lease_ns = self._outlasting[1] if self._outlasting is not None else 0
        return lease_ns + LATE_NS

    def _write(self, line: bytes, deadline_ns: int) -> int:
        """Write a request, return when; raises queue.Empty if the host takes not even a ping."""
        if not self._writing.acquire(timeout=deadline_ns / SECOND_NS):
            raise queue.Empty
        try:
            sent_ns = time.monotonic_ns()
            self._put(line)
        finally:
            self._writing.release()
        return sent_ns

    def _put(self, line: bytes) -> None:
        with self._book:
            self._unasked_replies -= 1
        try:
            self._pipes.requests.write(line)
            self._pipes.requests.flush()
        except (OSError, ValueError):
            # EPIPE, or a closed file; the listener's end of file then ends every wait.
            if self._outlasting is None:
                self.lose("it no longer reads its stdin")

    def _listen(self) -> None:
        """Read replies until the agent or its connection has ended for good."""
        try:
            why = self._read_replies()
            while why == ENDED and self._come_back():
                why = self._read_replies()
        except HostError as error:
            why = error.message
        except Exception as error:  # noqa: BLE001 - another thread may wait for a reply
            why = f"its replies ended with {type(error).__name__}: {error}"
        self.lose(why)
        if why != ENDED:
            self._pipes.release()  # nobody reads on: what it still sends would fill the memory

    def _come_back(self) -> bool:
        """Reconnect and repeat unanswered requests; return False if the agent is lost."""
        old, heard_ns = self._pipes, self._heard_ns
        if self._outlasting is None or self._lost is not None or not old.broken():
            return False
        again, lease_ns = self._outlasting
        limit = format_duration(lease_ns)
        self._notify(
            ConnectionNotice(f"connection lost; reconnecting for up to {limit}", away=True)
        )
        pipes = self._try(again, time.monotonic_ns() + lease_ns)
        if pipes is None:
            return False
        with self._writing:
            # The run is over, and nothing else would close this connection.
            if self._leaving.is_set() or self._lost is not None:
                pipes.kill()
                pipes.release()
                return False
            self._pipes = pipes
            with self._book:
                unanswered = [self._waiting[number] for number in sorted(self._waiting)]
            for pending in unanswered:
                self._put(pending.line)
        old.release()
        self._threads[1] = self._start(self._collect)
        self.absences_ns.append(time.monotonic_ns() - heard_ns)
        self._notify(
            ConnectionNotice(f"connection restored after {shown(self.absences_ns[-1])}", away=False)
        )
        return True

    def _try(self, again: Callable[[int], Pipes], deadline_ns: int) -> Pipes | None:
        """Return the agent's new pipes; None if it is gone, or the lease or the run is over."""
        pause_ns = FIRST_PAUSE_NS
        while (left_ns := deadline_ns - time.monotonic_ns()) > 0 and not self._leaving.is_set():
            try:
                return again(left_ns)
            except AgentLost as error:
                self._why_gone = f"; {error.message}"
                return None
            except ConnectError as error:
                self._why_gone = f"; reconnecting failed: {error.message}"
            self._leaving.wait(min(pause_ns, left_ns) / SECOND_NS)
            pause_ns = min(2 * pause_ns, LAST_PAUSE_NS)
        return None

    def _notify(self, notice: ConnectionNotice) -> None:
        """Notify every waiter, and every later one while the connection is lost."""
        with self._book:
            self._last_notice = notice if notice.away else None
            for pending in self._waiting.values():
                pending.slot.put(notice)

    def _read_replies(self) -> str:
        """Hand every reply to the waiter for its id; return why there are no more."""
        line, replies = b"", self._pipes.replies
        try:
            while True:
                line = replies.next()
                self._heard_ns = received_ns = time.monotonic_ns()
                if not self._deliver(received_ns, read_line(line), len(line)):
                    most = f"{UNASKED_REPLIES} replies or {format_bytes(UNASKED_BYTES)}"
                    return f"it sent more than {most} that nobody asked for; {INSTEAD}"
        except EOFError:
            return ENDED
        except LineTooLong:
            limit = format_bytes(replies.limit_bytes)
            return f"its answer is longer than {limit}; find out what prints that there"
        except ValueError:
            return f"it wrote something other than a reply: {line[:80]!r}"

    def _deliver(self, received_ns: int, reply: dict[str, Any], size_bytes: int) -> bool:
        """Hand a reply to its waiter; return False if too much came that nobody waits for."""
        with self._book:
            pending = self._waiting.pop(reply.get("id", 0), None)
            self._unasked_replies += 1
            self._unasked_bytes += size_bytes
            if pending is not None:
                self._unasked_bytes = 0
        if pending is not None:
            self._pipes.answered()
            pending.slot.put((received_ns, reply))
        return self._unasked_replies <= UNASKED_REPLIES and self._unasked_bytes <= UNASKED_BYTES

    def _collect(self) -> None:
        """Keep the last lines of the agent's stderr."""
        pipes, read_bytes = self._pipes, 0
        while line := pipes.errors.readline(STDERR_LINE_BYTES):
            read_bytes += len(line)
            if read_bytes > STDERR_BYTES:
                self.lose(f"it sent more than {format_bytes(STDERR_BYTES)} on stderr; {INSTEAD}")
                pipes.release()
                break
            text = printable(line.decode(errors="replace").strip(), keep="")
            if text:
                self._words.append(text)

    def lose(self, why: str) -> None:
        """Give up the agent: every request, waiting or later, fails at once."""
        with self._book:
            self._lost = self._lost or why
            for pending in self._waiting.values():
                pending.slot.put(None)
            self._waiting.clear()

    def _loss(self, verb: str) -> AgentLost:
        """Return the error of a lost agent, with its exit status and last words."""
        status = self._pipes.ended(LOSS_NS)
        self._threads[1].join(LOSS_NS / SECOND_NS)
        if status is None:  # over SSH; a local process that ended has a status
            how = ", or the connection to it did" if self._lost == ENDED else ""
        else:
            how = f" (signal {-status})" if status < 0 else f" (exit {status})"
        words = f"; its last output: {self.last_words()}" if self._words else ""
        how += self._why_gone
        return AgentLost(f"agent lost during {verb}: {self._lost}{how}{words}", self.host)

    def _learn_offset(self, sent_ns: int, received_ns: int, clock_ns: Any) -> None:
        round_trip_ns = received_ns - sent_ns
        if clock_ns is None:
            return
        if type(clock_ns) is not int or not 0 <= clock_ns <= INTEGERS[1]:
            shown_value = printable(str(clock_ns)[:40], keep="")
            text = f"its clock_ns is not a time: {shown_value}"
            raise AgentError(text, self.host)
        if self.round_trip_ns is None or round_trip_ns < self.round_trip_ns:
            self.round_trip_ns = round_trip_ns
            self.offset_ns = clock_ns - (sent_ns + received_ns) // 2


def shown(absence_ns: int) -> str:
    """Return how long a connection was lost, to a tenth of a second."""
    return f"{absence_ns / SECOND_NS:.1f}s"
