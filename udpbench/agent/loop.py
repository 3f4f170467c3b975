"""The loop of an agent: one thread over requests, workers, signals and timers.

Owns the pipes, the lease and the replies; what a request does is its session's.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import signal
import sys
import time
import traceback
from functools import lru_cache
from typing import Any, Callable, Optional

from udpbench.agent.host.reading import ReadingHost
from udpbench.errors import AgentError, HelloRefused, HostError, in_words, to_wire
from udpbench.json_lines import MOST_LINE_BYTES, LinePipe
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.protocol import (
    PROTOCOL,
    REPEATED,
    VERBS,
    Hello,
    Repeated,
    build_id,
    decode,
    encode,
    read_line,
    write_line,
)

STDIN_ENDED = "stdin ended"


UNGREETED_NS = 60 * SECOND_NS
"""From start to hello; a controller that hangs keeps its pipe open."""
_signature = lru_cache(maxsize=256)(inspect.signature)
"""To look at that of a verb's method took as long as to read its request."""


class Service:
    """What a loop serves: an agent, or an observer, from its first request to its last."""

    watch_ns = SECOND_NS
    """Interval between checks of the guardian."""

    def __init__(self) -> None:
        self.verbs: Any = None
        """The verbs of an agent that was greeted."""
        self.door: Any = None
        """Where the controller may reconnect."""
        self.lease_ns = UNGREETED_NS
        self.leaving = False
        """The controller has announced that it will not reconnect."""
        self.repeated = {verb: Repeated() for verb in REPEATED}

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        raise NotImplementedError

    def method_of(self, verb: str) -> Callable[..., Any]:
        """Return what serves a verb now; raises HelloRefused, AgentError."""
        raise NotImplementedError

    def serve(self, verb: object, args: object) -> Any:
        """Return the result of one request, or raise its error."""
        if not isinstance(verb, str) or verb not in VERBS:
            raise AgentError(f"verb {verb!r} is unknown; this agent knows {', '.join(VERBS)}")
        method = self.method_of(verb)
        if not isinstance(args, dict):
            raise AgentError(f"{verb}: args must be an object, not {type(args).__name__}")
        try:
            _signature(method).bind(**args)
            kinds = VERBS[verb].kinds
            read = self.repeated[verb].decode if verb in self.repeated else decode
            decoded = {name: read(kinds[name], plain) for name, plain in args.items()}
        except (TypeError, ValueError) as error:
            raise AgentError(f"{verb}: {error}") from error
        return method(**decoded)

    def tick(self, now_ns: int) -> Optional[int]:  # noqa: ARG002 - most do nothing by themselves
        """Do what no request asks for; return when there is more to do, None: not now."""
        return None

    def fds(self) -> list[int]:
        """Return further descriptors; when one of them is readable, ``tick`` is called."""
        return []

    def leave(self) -> None:
        """From now on let the end of stdin end the run."""
        self.leaving = True


class Bystander(Service):
    """A service that changes nothing, so that nothing has to be restored when it ends."""

    orders: tuple[str, ...] = ()
    """Every verb that it serves."""
    refusal = ""
    """What is said of another verb, whose name stands for ``{}``."""
    watch_ns = DAY_NS
    """It has no guardian."""

    def method_of(self, verb: str) -> Callable[..., Any]:
        """Return what serves a verb; raises HelloRefused, AgentError."""
        if verb not in self.orders:
            raise AgentError(self.refusal.format(verb), self.name)
        if verb != "hello" and not self.name:
            raise HelloRefused(f"{verb} before hello: the first request must be hello")
        method: Callable[..., Any] = getattr(self, verb)
        return method

    def release(self) -> None:
        """Do nothing: nothing was taken."""

    def ping(self) -> None:
        """Do nothing: every request renews the lease."""

    def end(self) -> None:
        """Do nothing: the kernel closes what is open."""


class Loop:
    """The agent's loop; ``requests`` and ``replies`` are pipe descriptors."""

    def __init__(self, session: Service, requests: int, replies: int) -> None:
        self._session = session
        self._lines = LinePipe(requests)
        self._replies = replies
        self._away = False
        """The controller is disconnected and may reconnect through the door."""
        self._latest_reply: dict[str, Any] = {}
        """Reply to a numbered request: a reconnecting controller repeats unanswered requests."""
        self._signals = catch_signals()
        self._deadline_ns = 0
        self._tick_ns = 0
        self._watch_ns = 0
        self._own_ns: Optional[int] = None
        """When the service has something to do by itself."""

    def run(self) -> str:
        """Serve until something ends the loop; return the reason."""
        self._renew()
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= self._deadline_ns:
                return f"the lease of {self._session.lease_ns / SECOND_NS:g} s expired"
            self._do_what_is_due(now_ns)
            ready = self._wait(now_ns)
            if self._signals in ready:
                number = os.read(self._signals, 1)[0]
                return f"received {signal.Signals(number).name}"
            verbs = self._session.verbs
            if verbs is not None and verbs.pool.fileno in ready:
                verbs.pool.read()
            door = self._session.door
            if door is not None and door.fileno() in ready:
                self._use_pipes(door.accept())
            elif self._lines.fd in ready:
                ended = self._serve_lines()
                if ended is not None:
                    return ended

    def _wait(self, now_ns: int) -> list[int]:
        """Wait until a descriptor is ready or a timer is due; return the ready descriptors."""
        due_ns = min(self._deadline_ns, self._watch_ns)
        if self._own_ns is not None:
            due_ns = min(due_ns, self._own_ns)
        watched = [self._signals, *self._door_fd(), *self._session.fds()]
        if not self._away:
            watched.append(self._lines.fd)
        verbs = self._session.verbs
        if verbs is not None and verbs.pool.running:
            due_ns = min(due_ns, self._tick_ns)
        if verbs is not None and verbs.pool.fileno is not None:
            watched.append(verbs.pool.fileno)
        return select.select(watched, [], [], max(due_ns - now_ns, 0) / SECOND_NS)[0]

    def _do_what_is_due(self, now_ns: int) -> None:
        """Sample on a fixed grid, and check the guardian."""
        verbs = self._session.verbs
        self._own_ns = self._session.tick(now_ns)
        if verbs is not None and now_ns >= self._tick_ns:
            self._tick_ns = (now_ns // verbs.pool.tick_ns + 1) * verbs.pool.tick_ns
            verbs.pool.tick()
        if now_ns >= self._watch_ns:
            self._watch_ns = now_ns + self._session.watch_ns
            if verbs is not None:
                verbs.check_guardian()

    def _serve_lines(self) -> Optional[str]:
        """Serve every complete request; return why the loop ends, None if it continues."""
        for line in self._lines.read():
            reply = self._answer(line)
            self._renew()
            if not self._write_reply(write_line({**reply, "clock_ns": time.monotonic_ns()})):
                return self._disconnect("the controller stopped reading")
            self._renew()
        return self._disconnect(STDIN_ENDED) if self._lines.ended else None

    def _door_fd(self) -> list[int]:
        """Return the door's descriptor, if there is a door."""
        return [] if self._session.door is None else [self._session.door.fileno()]

    def _disconnect(self, why: str) -> Optional[str]:
        """Return why the loop ends; None if the controller may reconnect."""
        if self._session.door is None or self._session.leaving:
            return why
        self._away = True
        null = os.open(os.devnull, os.O_RDWR)
        self._use_pipes((null, os.dup(null), os.dup(null)), away=True)
        return None

    def _use_pipes(self, pipes: tuple[int, ...], away: bool = False) -> None:
        """Switch to other pipes and close the old ones."""
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
        self._lines = LinePipe(self._lines.fd)
        self._away = away
        if not away:
            self._renew()

    def _renew(self) -> None:
        """Restart the lease, before and after each request: it does not run while one is served."""
        self._deadline_ns = time.monotonic_ns() + self._session.lease_ns

    def _answer(self, line: Optional[bytes]) -> dict[str, Any]:
        """Return the reply to a line; a repeated request gets the same reply."""
        number, request = None, {}
        try:
            request = parse(line)
            number = request.get("id")
            if number and number == self._latest_reply.get("id"):
                return self._latest_reply
            result = self._session.serve(request.get("verb"), request.get("args", {}))
            repeated = self._session.repeated.get(request["verb"])
            plain = encode(result) if repeated is None else repeated.encode(result)
            reply = {"id": number, "result": plain}
        except HostError as error:
            reply = {"id": number, "error": to_wire(error, self._session.name)}
        except Exception as error:  # noqa: BLE001 - a bug in one verb must not end the agent
            with contextlib.suppress(OSError):  # the reader of stderr may be gone
                traceback.print_exc()
            reply = {"id": number, "error": unexpected(error, request, self._session.name)}
        if number and self._session.door is not None:
            self._latest_reply = reply
        return reply

    def _write_reply(self, reply: bytes) -> bool:
        """Write a whole reply; False if unread for the lease or if the controller reconnects."""
        rest = memoryview(reply)
        while rest:
            left_s = max(self._deadline_ns - time.monotonic_ns(), 0) / SECOND_NS
            if not select.select(self._door_fd(), [self._replies], [], left_s)[1]:
                return False
            try:
                rest = rest[os.write(self._replies, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True


def unexpected(error: Exception, request: dict[str, Any], host: str) -> dict[str, str]:
    """Return the error of a request that failed unexpectedly, e.g. as an interface disappeared."""
    verb, args = str(request.get("verb")), request.get("args", {})
    interface = str(args.get("interface", "")) if isinstance(args, dict) else ""
    doing = VERBS[verb].doing if verb in VERBS else f"serving {verb}"
    return to_wire(error, host, doing, interface)


def parse(line: Optional[bytes]) -> dict[str, Any]:
    """Return the request in a line; AgentError if it is not a request."""
    if line is None:
        raise AgentError(f"a line is longer than {MOST_LINE_BYTES} B; split the request")
    try:
        return read_line(line)
    except ValueError as error:
        raise AgentError(f"not a request: {error}; each line must be a JSON object") from error


def catch_signals() -> int:
    """Return a descriptor that yields the numbers of SIGTERM and SIGHUP; ignore SIGINT.

    Ctrl-C is handled by the controller alone.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reading


def prove_same(host: str, build: str, protocol: int, own: str) -> None:
    """Raise HelloRefused that lists every difference between controller and agent."""
    differences = []
    if protocol != PROTOCOL:
        differences.append(f"the controller speaks protocol {protocol}, the agent {PROTOCOL}")
    if build != own:
        differences.append(f"the controller's build is {build}, the agent's {own}")
    if differences:
        what = "; ".join(differences)
        raise HelloRefused(f"{what}; install the same udpbench on both", host)


def greeting(host: ReadingHost, capabilities: dict[str, bool]) -> Hello:
    """Return what a process of this build says of itself and its host."""
    return Hello(
        pid=os.getpid(),
        netns=host.netns(),
        boot_id=host.boot_id(),
        build=build_id(),
        python=".".join(str(part) for part in sys.version_info[:3]),
        capabilities=capabilities,
    )


def stand_by(what: str, prepare: Callable[[], Bystander]) -> int:
    """Serve what ``prepare`` returns until something ends it; return the exit status."""
    replies = open_pipes()
    try:
        service = prepare()
    except OSError as error:
        print(f"udpbench {what}: not started: {in_words(error)}", file=sys.stderr)
        return HostError.exit_code
    try:
        Loop(service, 0, replies).run()
    finally:
        service.end()
    return 0


def open_pipes() -> int:
    """Return a descriptor for replies, on a session of its own; stray prints go to stderr."""
    replies = os.dup(1)
    os.set_blocking(replies, False)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if os.getsid(0) != os.getpid():
        os.setsid()
    return replies
