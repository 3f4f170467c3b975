"""The agent: ``python -m udpbench.agent.serve`` speaks ``protocol`` on stdin and stdout.

One thread, one loop over requests, workers, signals and time. Whatever ends it (end of stdin, the
lease, SIGTERM, SIGHUP), it ends its workers and undoes its settings; the exit status is 0 when all
is as it was and 4 when something is not. Stray prints go to stderr. An agent with a door takes the
end of stdin for a lost connection, and goes on until its controller is back or its lease is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Optional

from udpbench.agent.host import Host
from udpbench.agent.namespace import settle
from udpbench.agent.series import TICK_NS
from udpbench.agent.session import Session
from udpbench.errors import AgentError, HostError, RestoreError, to_wire
from udpbench.model import SECOND_NS
from udpbench.protocol import MAX_LINE_BYTES, encode, read_line, write_line

WATCH_NS = SECOND_NS
"""Between two looks at the guardian."""
READ_BYTES = 2**16
STDIN_ENDED = "stdin ended"


class Lines:
    """Whole lines out of a pipe; one that is too long is told once and skipped to its end."""

    def __init__(self, fd: int, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self.fd = fd
        self._limit_bytes = limit_bytes
        self.ended = False
        self._buffer = bytearray()
        self._skipping = False

    def read(self) -> Iterator[Optional[bytes]]:
        """Yield the lines that one read completes, None for one beyond the limit."""
        chunk = os.read(self.fd, READ_BYTES)
        self.ended = not chunk
        self._buffer += chunk
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                break
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if self._skipping:
                self._skipping = False
            else:
                yield line
        if len(self._buffer) > self._limit_bytes:
            self._buffer.clear()
            if not self._skipping:
                yield None
            self._skipping = True


class Loop:
    """The agent's loop; ``requests`` and ``replies`` are descriptors of pipes."""

    def __init__(self, session: Session, requests: int, replies: int) -> None:
        self._session = session
        self._lines = Lines(requests)
        self._replies = replies
        self._away = False
        """The controller is, and may come back by the door."""
        self._kept: dict[str, Any] = {}
        """The latest numbered reply: who comes back asks again what it was not told."""
        self._signals = catch_signals()
        self._deadline_ns = 0
        self._tick_ns = 0
        self._watch_ns = 0

    def run(self) -> str:
        """Serve until something ends it; return what that was."""
        self._renew()
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= self._deadline_ns:
                return f"the lease of {self._session.lease_ns / SECOND_NS} s ran out"
            self._keep_time(now_ns)
            ready = self._wait(now_ns)
            if self._signals in ready:
                number = os.read(self._signals, 1)[0]
                return f"{signal.Signals(number).name} came"
            verbs = self._session.verbs
            if verbs is not None and verbs.pool.fileno in ready:
                verbs.pool.read()
            door = self._session.door
            if door is not None and door.fileno() in ready:
                self._take_over(door.let_in())
            elif self._lines.fd in ready:
                ended = self._serve_lines()
                if ended is not None:
                    return ended

    def _wait(self, now_ns: int) -> list[int]:
        """Return the descriptors that are ready, at the latest when the next thing is due."""
        due_ns = min(self._deadline_ns, self._watch_ns)
        watched = [self._signals, *self._coming()]
        if not self._away:
            watched.append(self._lines.fd)
        verbs = self._session.verbs
        if verbs is not None and verbs.pool.running:
            due_ns = min(due_ns, self._tick_ns)
        if verbs is not None and verbs.pool.fileno is not None:
            watched.append(verbs.pool.fileno)
        return select.select(watched, [], [], max(due_ns - now_ns, 0) / SECOND_NS)[0]

    def _keep_time(self, now_ns: int) -> None:
        """Do what is due: a sample every TICK_NS on a fixed grid, a look at the guardian."""
        verbs = self._session.verbs
        if now_ns >= self._tick_ns:
            self._tick_ns = (now_ns // TICK_NS + 1) * TICK_NS
            if verbs is not None:
                verbs.pool.tick()
        if now_ns >= self._watch_ns:
            self._watch_ns = now_ns + WATCH_NS
            if verbs is not None:
                verbs.watch()

    def _serve_lines(self) -> Optional[str]:
        """Serve every complete request; return why the loop ends, if it does."""
        for line in self._lines.read():
            reply = self._answer(line)
            self._renew()
            if not self._say(write_line({**reply, "clock_ns": time.monotonic_ns()})):
                return self._cut("the controller no longer reads")
            self._renew()
        return self._cut(STDIN_ENDED) if self._lines.ended else None

    def _coming(self) -> list[int]:
        """Return the descriptor of the door, where there is one."""
        return [] if self._session.door is None else [self._session.door.fileno()]

    def _cut(self, why: str) -> Optional[str]:
        """Return why the loop ends, unless the controller may come back."""
        if self._session.door is None or self._session.leaving:
            return why
        self._away = True
        nowhere = os.open(os.devnull, os.O_RDWR)
        self._take_over((nowhere, os.dup(nowhere), os.dup(nowhere)), away=True)
        return None

    def _take_over(self, pipes: tuple[int, ...], away: bool = False) -> None:
        """Speak by other pipes from now on; whoever has the old ones sees them end."""
        if not pipes:
            return
        requests, replies, errors = pipes
        os.dup2(requests, self._lines.fd)
        os.dup2(replies, self._replies, inheritable=False)
        os.set_blocking(self._replies, False)
        for stray in (1, 2):
            os.dup2(errors, stray)
        for pipe in pipes:
            os.close(pipe)
        self._lines = Lines(self._lines.fd)
        self._away = away
        if not away:
            self._renew()

    def _renew(self) -> None:
        """Let the lease run anew from the end of a request: it stands still while one is served."""
        self._deadline_ns = time.monotonic_ns() + self._session.lease_ns

    def _answer(self, line: Optional[bytes]) -> dict[str, Any]:
        """Return the reply to a line: the kept one to a number that was answered already."""
        number = None
        try:
            request = parse(line)
            number = request.get("id")
            if number and number == self._kept.get("id"):
                return self._kept
            result = self._session.serve(request.get("verb"), request.get("args", {}))
            reply = {"id": number, "result": encode(result)}
        except HostError as error:
            reply = {"id": number, "error": to_wire(error, self._session.name)}
        except Exception as error:  # noqa: BLE001 - a bug in one verb must not end the agent
            with contextlib.suppress(OSError):  # who reads stderr may be gone
                traceback.print_exc()
            reply = {"id": number, "error": to_wire(error, self._session.name)}
        if number:
            self._kept = reply
        return reply

    def _say(self, reply: bytes) -> bool:
        """Write a reply whole; False where nobody reads until the lease is over, or it is back."""
        rest = memoryview(reply)
        while rest:
            left_s = max(self._deadline_ns - time.monotonic_ns(), 0) / SECOND_NS
            if not select.select(self._coming(), [self._replies], [], left_s)[1]:
                return False
            try:
                rest = rest[os.write(self._replies, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True


def parse(line: Optional[bytes]) -> dict[str, Any]:
    """Return the request of a line; AgentError where there is none in it."""
    if line is None:
        raise AgentError(f"a line is longer than {MAX_LINE_BYTES} B; split the request")
    try:
        return read_line(line)
    except ValueError as error:
        raise AgentError(f"not a request: {error}; a line is one JSON object") from error


def catch_signals() -> int:
    """Return a descriptor that gets a byte, the number, for SIGTERM and SIGHUP; ignore SIGINT.

    Ctrl-C is for the controller, which then says what is to happen here.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reading


def end(session: Session, why: str) -> int:
    """End the workers, undo the settings, say why on stderr, and return the exit status.

    The end of stdin is how every run ends, and not worth a word.
    """
    status, how = 0, "restored"
    try:
        if session.verbs is not None:
            session.verbs.end()
    except RestoreError as error:
        status, how = RestoreError.exit_code, f"not restored: {error}"
    except Exception as error:  # noqa: BLE001 - a bug, after which something may still be in force
        how = f"not known to be restored: {type(error).__name__}: {error}"
        status = RestoreError.exit_code
    if why != STDIN_ENDED or status != 0:
        # A controller that died has closed the other end of stderr as well.
        with contextlib.suppress(OSError):
            print(f"udpbench agent: {why}; {how}", file=sys.stderr, flush=True)
    return status


def main() -> int:
    """Be the agent until something ends it."""
    replies = os.dup(1)
    os.set_blocking(replies, False)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if os.getsid(0) != os.getpid():
        os.setsid()
    host = Host()
    try:
        settle(host)
    except OSError as error:
        print(f"udpbench agent: not started: {error}", file=sys.stderr)
        return HostError.exit_code
    session = Session(host)
    why = "a bug"
    try:
        why = Loop(session, 0, replies).run()
    except HostError as error:
        why = str(error)
    finally:
        status = end(session, why)
        if session.door is not None:
            session.door.close(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
