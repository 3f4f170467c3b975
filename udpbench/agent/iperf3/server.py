"""The server that an iperf3 client talks to: listens, lets a test at a time send, and answers it.

Each control connection is a generator that says what it awaits, and until when; nothing here ever
blocks. Owns the order of a test: parameters, streams, the controller's ``proceed``, the load, the
drain, results. Sends nothing but the protocol's replies, and those to an address that has a control
connection.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

from udpbench.agent.host.socket_options import inode
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import open_sockets
from udpbench.agent.iperf3 import talk
from udpbench.agent.iperf3.caller import SLICE_NS, Await, Caller, Gone, Talk
from udpbench.agent.iperf3.ports import (
    HELLOS_MAX,
    Greeting,
    buffer_of,
    discard,
    discard_before,
    listening_sockets,
    plain_address,
    read_hello,
    share_port,
    stream_socket,
)
from udpbench.agent.iperf3.streams import Pools, Stream, StreamGroup, StreamPool, wait_of
from udpbench.agent.iperf3.talk import ClientParameters, Unserved
from udpbench.agent.workers.sockets import endpoint
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.model.served import QUIET_NS, SENT_IN_ANY_CASE, ServedStream, ServedTest
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import ClientEvent, PhaseOrder

NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A host without IPv6."""
CALLERS_MAX = 64
"""Control connections at a time; of more, the one that has said least for longest is closed."""
ACCEPTED_MAX = 32
"""At a time."""
EVENTS_MAX = 1000
"""Kept for the controller; of more, refusals are left out."""
GREETING_NS = 5 * SECOND_NS
"""For a client to send its cookie, and its parameters."""
STREAMS_NS = 30 * SECOND_NS
"""For all its streams to be greeted: a lost greeting is sent again."""
PROCEED_NS = 10 * SECOND_NS
"""For the controller to read counters before a test, and to answer after it."""
LATE_NS = 10 * SECOND_NS
"""For a client to end its test beyond the time that it asked for, and to say its results."""
DRAIN_NS = 2 * SECOND_NS
"""After the end of a test, at most."""
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""A client that is gone without a word is noticed after 11 s."""


@dataclass(eq=False)
class Test:
    """One test of a client."""

    number: int
    caller: Caller
    parameters: ClientParameters
    pool: StreamPool
    streams: list[Stream] = field(default_factory=list)
    interface: str = ""
    group: Optional[StreamGroup] = None
    spec: Optional[WorkerSpec] = None
    begun_ns: int = 0
    proceeds: bool = False
    output: Optional[str] = None
    rival: str = ""  # who else at its address greeted: a greeting does not say whose it is
    results: tuple[talk.ClientStream, ...] = ()
    """The client's own."""

    @property
    def opened(self) -> StreamGroup:
        """The streams, once all are greeted."""
        if self.group is None:
            raise RuntimeError("streams were not greeted")
        return self.group


class Iperf3Server:
    """An iperf3 server on some addresses and a port."""

    def __init__(
        self, host: Host, addresses: Sequence[str], port: int, clients_max: int = 1
    ) -> None:
        self._host = host
        self._clients_max = clients_max
        self.port = port
        self.name = ""
        self.pools = Pools()
        self.tests: list[Test] = []
        """That are going on."""
        self._listeners: list[socket.socket] = []
        self._hellos: list[socket.socket] = []
        self._callers: list[Caller] = []
        self._events: list[ClientEvent] = []
        self._first_event = 0
        self._greeting: Optional[Test] = None
        """The test whose streams are awaited: their greetings do not say whose they are."""
        self._begun = 0
        where = [endpoint(address, port) for address in addresses if self._listens(address)]
        self._tell("listening", " and ".join(where))

    # --- listening --------------------------------------------------------------------------------

    def _listens(self, address: str) -> bool:
        """Listen at an address; return whether this host has it, if another is listened at."""
        try:
            listener, hellos = listening_sockets(self._host, address, self.port)
        except OSError as error:
            if error.errno not in NO_ADDRESS or not self._listeners:
                raise
            return False
        self._listeners.append(listener)
        self._hellos.append(hellos)
        return True

    def give_to(self, user: int) -> None:
        """Have the port shared with the sockets of a user, as whom streams will be opened.

        The kernel asks whose each socket's inode is (SO_REUSEPORT).
        """
        for sock in self._hellos:
            os.fchown(sock.fileno(), user, -1)

    def fds(self) -> list[int]:
        """Return the descriptors on which there may be something to do."""
        fds = [each.fileno() for each in self._listeners]
        fds += [each.sock.fileno() for each in self._callers if each.reads]
        if self._greeting is not None:
            fds += [each.fileno() for each in self._hellos]
            fds += [each.sock.fileno() for each in self._greeting.streams]
        return fds

    def tick(self, now_ns: int) -> Optional[int]:
        """Do all that can be done; return when there may be more, None: when a descriptor says."""
        for listener in self._listeners:
            self._accept(listener)
        if self._greeting is not None:
            self._hear_hellos(self._greeting)
        for caller in self._callers:
            if caller.reads:
                caller.read()
        for caller in list(self._callers):
            if not caller.step(now_ns):
                self._close(caller)
        return min((caller.due_ns(now_ns) for caller in self._callers), default=None)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                sock, source = listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            waiting = [each for each in self._callers if not each.holds]
            if len(waiting) >= CALLERS_MAX:
                self._close(min(waiting, key=lambda each: each.since_ns))
            self._callers.append(Caller(sock, plain_address(source[0]), self._talk))

    def _close(self, caller: Caller) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
        caller.talk.close()
        caller.flush()
        with suppress(OSError):
            caller.sock.shutdown(socket.SHUT_WR)
        caller.sock.close()

    def close(self) -> None:
        """End every test; its client is told."""
        for caller in list(self._callers):
            caller.state(talk.SERVER_TERMINATE)
            self._close(caller)
        for sock in (*self._listeners, *self._hellos):
            sock.close()

    def _tell(self, event: Any, text: str = "", **fields: Any) -> None:
        if event != "refused" or len(self._events) < EVENTS_MAX:
            self._events.append(ClientEvent(event, text, **fields))

    def clients(self, since: int) -> tuple[ClientEvent, ...]:
        """Return what happened, from event number ``since`` on; forget what was before."""
        for test in self.tests:
            if test.group is not None and test.group.loses():
                self._tell("missing", test=test.number)
        known = min(max(since - self._first_event, 0), len(self._events))
        self._events, self._first_event = self._events[known:], self._first_event + known
        return tuple(self._events)

    def proceed(self, test: int, output: Optional[str]) -> None:
        """Let a test go on: begin, or, with what its client is shown, end."""
        for each in self.tests:
            if each.number == test:
                each.proceeds, each.output = True, output

    # --- a control connection ---------------------------------------------------------------------

    def _talk(self, caller: Caller) -> Talk:
        until_ns = time.monotonic_ns() + GREETING_NS
        try:
            yield Await(until_ns, talk.COOKIE_BYTES, late="no cookie")
            if len(self.tests) >= self._clients_max:
                caller.state(talk.ACCESS_DENIED)
                self._tell("refused", f"{caller.address}: a test of another client is going on")
                return
            yield from self._greeted(caller)
        except Gone:
            return
        except Unserved as error:
            caller.say(talk.refusal())
            self._tell("refused", f"{caller.address}: {error}")

    def _greeted(self, caller: Caller) -> Talk:
        """Serve a client that has the server for itself."""
        test = Test(0, caller, ClientParameters({}, ()), StreamPool(self._host, self.name))
        caller.holds = True
        self.tests.append(test)
        try:
            caller.state(talk.PARAM_EXCHANGE)
            text = yield from self._text(talk.PARAMETERS_MAX_BYTES, "no parameters")
            test.parameters = talk.parse_parameters(text)
            talk.refuse_many(sum(each.parameters.streams for each in self.tests))
            self._begun += 1
            test.number = self._begun
            while self._greeting is not None:
                yield Await(time.monotonic_ns() + SLICE_NS)
            yield from self._create_streams(test)
            yield from self._serve(test)
        except OSError as error:
            raise Unserved(f"its streams: {error.strerror}") from error
        except Gone as error:
            self._tell("refused", f"{caller.address}: {error}")
            raise
        finally:
            self._end(test)

    def _text(self, most_bytes: int, late: str) -> Generator[Await, bytes, bytes]:
        until_ns = time.monotonic_ns() + GREETING_NS
        head = yield Await(until_ns, talk.LENGTH_BYTES, late=late)
        text = yield Await(until_ns, talk.length_of(head, most_bytes), late=late)
        return text

    def _create_streams(self, test: Test) -> Talk:
        wanted_streams = test.parameters.streams
        for sock in self._hellos:  # what came while nobody was awaited
            discard(sock)
        self._share_port(True)
        self._greeting = test
        test.caller.state(talk.CREATE_STREAMS)
        try:
            yield Await(
                time.monotonic_ns() + STREAMS_NS,
                met=lambda: len(test.streams) == wanted_streams,
                late=f"fewer than {wanted_streams} streams came by UDP",
            )
            test.spec = self._spec(test)
            test.group = test.pool.open(
                test.spec, test.interface, test.streams, test.parameters.wide
            )
            self.pools.open.append(test.pool)
            self._tell("prepared", test=test.number, served=self._served(test), specs=(test.spec,))
            yield Await(
                time.monotonic_ns() + PROCEED_NS,
                met=lambda: test.proceeds,
                polled=False,
                late="the controller did not read this host's counters",
            )
            if test.rival:
                raise Unserved(f"{test.rival} greeted as well: nobody can tell whose streams are")
        finally:
            self._greeting = None
            self._share_port(False)
        for stream in test.streams:
            discard_before(stream.sock)

    def _share_port(self, shares: bool) -> None:
        """Let this user open streams at the port, beside those of every test; else nobody can."""
        streams = (stream.sock for test in self.tests for stream in test.streams)
        for sock in (*self._hellos, *streams):
            share_port(sock, shares)

    def _serve(self, test: Test) -> Talk:
        caller, parameters = test.caller, test.parameters
        why = ""
        test.proceeds = False
        test.begun_ns = time.monotonic_ns()
        duration_ns = parameters.duration_ns
        test.pool.start(PhaseOrder("measured", test.number, test.begun_ns, duration_ns or DAY_NS))
        caller.state(talk.TEST_START)
        caller.state(talk.TEST_RUNNING)
        self._tell("started", test=test.number, clock_ns=test.begun_ns)
        try:
            yield from self._load(test, duration_ns)
            yield from self._drain(test)
            caller.state(talk.EXCHANGE_RESULTS)
            text = yield from self._text(talk.RESULTS_MAX_BYTES, "no results")
            test.results = talk.parse_results(text)
        except (Gone, Unserved) as error:
            why = str(error)
            yield from self._drain(test)
        yield from self._stop(test)
        ended = {"served": self._served(test, why), "sampled": test.pool.sample(0)}
        self._tell("ended", why, test=test.number, drops=self._drops(test), **ended)
        yield from self._answered(test, why)

    def _load(self, test: Test, duration_ns: Optional[int]) -> Talk:
        """Receive until the client says that it has sent everything."""
        if test.parameters.omit_ns:
            state = yield Await(test.begun_ns + test.parameters.omit_ns, 1)
            if state:
                self._obey(state)
                return
            self._omit(test)
        limit_ns = test.begun_ns + (duration_ns or DAY_NS) + LATE_NS
        state = yield Await(limit_ns, 1, late="it did not end its test")
        self._obey(state)

    def _obey(self, state: bytes) -> None:
        if state == talk.state(talk.CLIENT_TERMINATE):
            raise Gone("it was interrupted")
        if state != talk.state(talk.TEST_END):
            raise Unserved(f"state {state[0]} during a test")

    def _omit(self, test: Test) -> None:
        counts = zip(test.streams, test.opened.streams(), test.opened.flows())
        for stream, count, flow in counts:
            stream.omitted_bytes = count["read_bytes"]
            stream.omitted_lost = max(count["highest"] - flow.packets, 0)

    def _drain(self, test: Test) -> Talk:
        """Receive until nothing has come for a while: what is on its way is not lost."""
        group = test.opened
        limit_ns = time.monotonic_ns() + DRAIN_NS
        latest, since_ns = -1, 0
        while time.monotonic_ns() < limit_ns:
            read = group.counts(0)["read_packets"]
            if read != latest:
                latest, since_ns = read, time.monotonic_ns()
            if time.monotonic_ns() >= since_ns + QUIET_NS:
                return
            yield Await(time.monotonic_ns() + SLICE_NS, deaf=True)

    def _stop(self, test: Test) -> Talk:
        test.pool.stop()
        while test.pool.running:
            yield Await(time.monotonic_ns() + SLICE_NS, deaf=True)
            test.pool.read()

    def _answered(self, test: Test, why: str) -> Talk:
        """Await what the client is to be shown, and send it with the results."""
        until_ns = time.monotonic_ns() + PROCEED_NS
        yield Await(until_ns, met=lambda: test.proceeds, deaf=True, polled=False)
        if why:
            test.caller.state(talk.SERVER_TERMINATE)
            return
        test.caller.say(self._results(test))
        test.caller.state(talk.DISPLAY_RESULTS)
        yield Await(time.monotonic_ns() + LATE_NS, 1, late="it did not end its connection")

    def _end(self, test: Test) -> None:
        test.pool.close()
        if test.pool in self.pools.open:
            self.pools.open.remove(test.pool)
        for stream in test.streams:
            stream.sock.close()
        self.tests.remove(test)
        if test.group is not None:
            self._tell("closed", test=test.number)

    # --- what is said of a test -------------------------------------------------------------------

    def _spec(self, test: Test) -> WorkerSpec:
        asked = test.parameters
        cpu = asked.number("server_affinity") if "server_affinity" in asked.asked else None
        if cpu is not None and cpu not in os.sched_getaffinity(0):
            test.parameters = ClientParameters(asked.asked, (*asked.ignored, "server_affinity"))
            cpu = None
        six = ":" in test.streams[0].flow.destination
        return WorkerSpec(
            role="receiver",
            host=self.name,
            index=0,
            cpu=cpu,
            flows=tuple(stream.flow for stream in test.streams),
            traffic=Traffic(family=6 if six else 4, size_bytes=asked.size_bytes),
            send=Send(),
            receive=Receive(
                wait=wait_of(test.streams, asked.size_bytes),
                buffer_bytes=asked.buffer_bytes,
                force_buffer=False,
                timestamps=True,
            ),
            bind_ports=(self.port,),
        )

    def _served(self, test: Test, why: str = "") -> ServedTest:
        group, results, ignored = test.group, test.results, test.parameters.ignored
        counts = group.streams() if group is not None else []
        flows = group.flows() if group is not None else ()
        known = results if len(results) == len(test.streams) else ()
        streams = tuple(
            ServedStream(
                number=known[place].number if known else place + 1,
                sent_packets=known[place].packets if known else None,
                received_packets=flow.packets,
                read_packets=count["read_packets"],
                highest=count["highest"],
                late_packets=max(count["behind_packets"] - count["read_packets"] + flow.packets, 0),
                gap_packets=count["gap_packets"],
                jitter_ns=count["jitter_16th_ns"] // 16,
                omitted_packets=(omitted := known[place].omitted_packets if known else None),
                omitted_received=min(
                    max((omitted or 0) - test.streams[place].omitted_lost, 0), flow.packets
                ),
            )
            for place, (count, flow) in enumerate(zip(counts, flows))
        )
        return ServedTest(
            client=test.caller.address,
            port=self.port,
            interface=test.interface,
            asked=dict(test.parameters.asked),
            ignored=tuple(n for n in ignored if SENT_IN_ANY_CASE.get(n, n) in ignored),
            streams=streams,
            ended=why,
            hello_packets=sum(count["hellos"] for count in counts),
        )

    def _drops(self, test: Test) -> dict[str, int]:
        known = open_sockets(self._host, [inode(stream.sock) for stream in test.streams])
        return {str(number): each.drops for number, each in known.items()}

    def _results(self, test: Test) -> bytes:
        served, group = self._served(test), test.opened
        elapsed_s = max((stream.end_s for stream in test.results), default=0.0) or (
            (time.monotonic_ns() - test.begun_ns) / SECOND_NS
        )
        bytes_read = [
            count["read_bytes"] - stream.left_out_bytes(own, count)
            for count, stream, own in zip(group.streams(), test.streams, served.streams)
        ]
        used = group.final_counts.get(test.spec.name if test.spec is not None else "", {})
        elapsed_ns = max(used.get("elapsed_ns", 0), 1)
        cpu = used.get("user_ns", 0) / elapsed_ns, used.get("system_ns", 0) / elapsed_ns
        asks = test.parameters.number("get_server_output") == 1
        return talk.results(
            served.streams, bytes_read, elapsed_s, cpu, test.output if asks else None
        )

    # --- greetings by UDP -------------------------------------------------------------------------

    def _hear_hellos(self, test: Test) -> None:
        for sock in self._hellos:
            for _ in range(HELLOS_MAX):
                hello = read_hello(sock)
                if hello is None:
                    break
                if hello.reply and hello.key[0] == test.caller.address:
                    self._meet(test, hello)
        for stream in test.streams:
            discard_before(stream.sock)

    def _meet(self, test: Test, hello: Greeting) -> None:
        """Give a stream its socket, and answer from there."""
        known = {(each.flow.source, each.flow.source_port) for each in test.streams}
        if hello.key in known or len(test.streams) >= test.parameters.streams:
            test.rival = test.rival if hello.key in known else endpoint(*hello.key)
            return
        try:
            sock = stream_socket(hello, self.port, buffer_of(test.parameters))
        except OSError:
            return  # the client greets again, or its time runs out
        flow = FlowSpec(len(test.streams), *hello.key, hello.destination, self.port)
        test.streams.append(Stream(sock, flow))
        test.interface = test.interface or hello.interface
        with suppress(OSError):
            sock.send(hello.reply, socket.MSG_DONTWAIT)
