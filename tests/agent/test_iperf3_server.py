"""The server that iperf3 clients talk to: what it counts, whom it serves, and whom it refuses."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Optional

import pytest
from golden import Golden
from iperf3_client import COOKIE, NEW_HELLO, OLD_HELLO, Client
from waiting import wait_until

from udpbench.agent.host.system import Host
from udpbench.agent.iperf3 import ports, talk
from udpbench.agent.iperf3 import server as server_module
from udpbench.agent.iperf3.server import CALLERS_MAX, Iperf3Server
from udpbench.agent.workers.samples import TICK_NS
from udpbench.model.served import ServedTest
from udpbench.protocol import ClientEvent

FIXTURES = Path(__file__).parents[1] / "fixtures"
OUTPUT = "what the client is shown"


class Driven:
    """A server with its loop in a thread, and a controller that lets every test go on."""

    def __init__(self, port: int, addresses: tuple[str, ...], clients: int = 1) -> None:
        self.server = Iperf3Server(Host(), addresses, port, clients)
        self.server.name = "host"
        self.port = port
        self.events: list[ClientEvent] = []
        self.before: Callable[[], None] = lambda: None
        """Called before a test may begin."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due_ns: Optional[int] = None
        while not self._stop.is_set():
            left_s = 0.05 if due_ns is None else min((due_ns - time.monotonic_ns()) / 1e9, 0.05)
            select.select(self.server.fds(), [], [], max(left_s, 0))
            due_ns = self.server.tick(time.monotonic_ns())
            self.server.pools.tick()
            for event in self.server.clients(len(self.events)):
                self.events.append(event)
                if event.event == "prepared":
                    self.before()
                if event.event in ("prepared", "ended"):
                    self.server.proceed(event.test, OUTPUT)
        self.server.close()

    def close(self) -> None:
        """End the server."""
        self._stop.set()
        self._thread.join()

    def wait(self, kind: str) -> ClientEvent:
        """Return the first event of a kind, once it has happened."""
        wait_until(kind, lambda: any(event.event == kind for event in list(self.events)))
        return next(event for event in self.events if event.event == kind)

    def ended(self) -> ServedTest:
        """Return what was counted of the first test."""
        served = self.wait("ended").served
        assert served is not None
        return served


@pytest.fixture
def driven(port: int) -> Iterator[Driven]:
    """Serve at loopback."""
    with closing(Driven(port, ("127.0.0.1", "::1"))) as server:
        yield server


@pytest.fixture
def client(driven: Driven) -> Iterator[Client]:
    """Connect to it."""
    with closing(Client(driven.port)) as connected:
        yield connected


def counted(served: ServedTest) -> list[tuple[Optional[int], int, int, int, int, int]]:
    """Return sent, received, read, highest, late and gaps of each stream."""
    return [
        (
            *(each.sent_packets, each.received_packets, each.read_packets),
            *(each.highest, each.late_packets, each.gap_packets),
        )
        for each in served.streams
    ]


def test_losses_duplicates_and_order_are_counted_for_what_they_are(
    driven: Driven, client: Client
) -> None:
    """100 sent: 10 left out on the way, 5 at the end, one late, two twice; iperf3 counts 8 lost."""
    client.begin()
    lost = range(31, 41)
    order = [n for n in range(1, 96) if n not in (*lost, 50)]
    client.send([*order[:60], 50, *order[60:], 70, 71])
    results = client.end(100)
    assert [(100, 85, 87, 95, 1, 8)] == counted(driven.ended())
    (stream,) = results["streams"]
    assert (1, 15, 100, 87 * 100) == (
        *(stream["id"], stream["errors"], stream["packets"], stream["bytes"]),
    )
    assert 0 <= stream["jitter"] < 1
    kinds = dict.fromkeys(event.event for event in driven.events)
    assert ["listening", "prepared", "started", "missing", "ended"] == [*kinds][:5]


def test_who_asks_what_happened_hears_each_time_that_more_packets_are_missing(
    driven: Driven, client: Client
) -> None:
    """Nobody has to look at the host as long as there are none."""
    client.begin()
    client.send(range(1, 11))
    client.send([13])
    driven.wait("missing")
    client.send([14])
    client.end(14)
    driven.wait("ended")
    assert 1 == [event.event for event in driven.events].count("missing")
    assert 2 == driven.ended().streams[0].gap_packets


def test_a_millisecond_is_told_once_no_packet_of_it_can_be_read_any_more(
    driven: Driven, client: Client
) -> None:
    """A packet is dated by its arrival, and may be read later than one of another stream."""
    client.begin()
    client.send([1])
    group = driven.server.tests[0].opened
    wait_until("it is read", lambda: group.counts(0)["read_packets"] == 1)
    assert [0, 1] == [sum(group.milliseconds(0, 0, ended)[1]) for ended in (False, True)]
    client.end(1)


def test_its_output_is_shown_to_a_client_that_asks(driven: Driven, client: Client) -> None:
    """And to no other."""
    client.begin(get_server_output=1)
    assert OUTPUT == client.end(0)["server_output_text"]
    driven.wait("closed")
    with closing(Client(driven.port)) as other:
        other.begin()
        assert "server_output_text" not in other.end(0)


@pytest.mark.parametrize("wide", [0, 1])
def test_counters_of_either_width_are_read(driven: Driven, client: Client, wide: int) -> None:
    """One of 32 bits goes on beyond them."""
    client.begin(udp_counters_64bit=wide)
    top = 2**31 - 3
    client.send([1, top, 2 * top, *range(2**32 - 3, 2**32)])
    client.send(n if wide else n % 2**32 for n in range(2**32, 2**32 + 3))
    client.end(2**32 + 2)
    (stream,) = driven.ended().streams
    assert (2**32 + 2, 9) == (stream.highest, stream.received_packets)


def test_streams_are_told_apart(driven: Driven, client: Client) -> None:
    """Three of a client, each with its counters and its number."""
    client.begin(3)
    for stream, packets in enumerate((10, 20, 30)):
        client.send(range(1, packets + 1), stream)
    results = client.end(11, 20, 30)
    assert [(1, 1), (3, 0), (5, 0)] == [(s["id"], s["errors"]) for s in results["streams"]]
    assert [10, 20, 30] == [each.received_packets for each in driven.ended().streams]


def test_what_a_client_leaves_out_is_left_out_of_its_numbers_alone(
    driven: Driven, client: Client
) -> None:
    """The second for which it omits: its packets are counted, and their losses are not its own."""
    client.begin(omit=1, time=5)
    client.send([*range(1, 5), *range(7, 11)])
    begun = driven.wait("started")
    wait_until("a second is over", lambda: time.monotonic_ns() > begun.clock_ns + 1_100_000_000)
    client.send(range(11, 20))
    (stream,) = client.end(20, omitted_packets=10)["streams"]
    assert (3, 2, 20, 10, 900) == (
        *(stream["errors"], stream["omitted_errors"], stream["packets"]),
        *(stream["omitted_packets"], stream["bytes"]),
    )


@pytest.mark.parametrize(
    ("asked", "every_ms"),
    [({"time": 1}, 200), ({"time": 5}, 500), ({"time": 60}, 1000), ({"time": 0, "num": 9}, 1000)],
)
def test_a_test_is_sampled_ten_times_and_seldom(
    driven: Driven, client: Client, asked: dict[str, int], every_ms: int
) -> None:
    """A sample takes CPU time from who receives."""
    assert TICK_NS == driven.server.pools.tick_ns
    client.begin(**asked)
    driven.wait("started")
    assert every_ms * 10**6 == driven.server.pools.tick_ns
    client.end(0)


def test_what_was_on_its_way_when_a_clients_first_seconds_were_over_is_not_lost(
    driven: Driven, client: Client
) -> None:
    """They end a little later there: by then 14 were sent, of which 10 have arrived here."""
    client.begin(omit=1, time=5)
    client.send(range(1, 11))
    begun = driven.wait("started")
    wait_until("a second is over", lambda: time.monotonic_ns() > begun.clock_ns + 1_100_000_000)
    client.send(range(11, 20))
    (stream,) = client.end(20, omitted_packets=14)["streams"]
    assert (1, 0, 14, 500) == (
        *(stream["errors"], stream["omitted_errors"]),
        *(stream["omitted_packets"], stream["bytes"]),
    )


def test_a_client_leaves_out_no_more_than_came(driven: Driven, client: Client) -> None:
    """Whatever it says: bytes are not below 0."""
    client.begin()
    client.send(range(1, 10))
    (stream,) = client.end(10, omitted_packets=2**40)["streams"]
    assert (0, 1, 1, 10) == (
        *(stream["bytes"], stream["errors"], stream["omitted_errors"], stream["omitted_packets"]),
    )
    assert 9 == driven.ended().streams[0].omitted_received


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("hello", [OLD_HELLO, NEW_HELLO])
def test_either_greeting_is_answered_over_either_version(
    driven: Driven, address: str, hello: bytes
) -> None:
    """And the interface that it came by is known."""
    with closing(Client(driven.port, address)) as client:
        assert talk.CREATE_STREAMS == client.ask()
        assert talk.HELLOS[hello] == client.greet(hello)
        assert (talk.TEST_START, talk.TEST_RUNNING) == (client.state(), client.state())
        client.send([1, 2])
        client.end(2)
    served = driven.ended()
    assert ("lo", address, 2) == (
        *(served.interface, served.client, served.streams[0].received_packets),
    )


def test_the_bytes_of_an_older_client_are_answered_byte_by_byte(
    driven: Driven, client: Client
) -> None:
    """A conversation as of 3.1, which names neither its end nor what it left out."""
    steps = json.loads((FIXTURES / "iperf3_3.1.json").read_text())["steps"]
    results: Any = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        stream.settimeout(5)
        stream.connect(client.where)
        for step in steps:
            data = bytes.fromhex(step["hex"])
            if step["by"] == "client tcp":
                client.control.sendall(data)
            elif step["by"] == "client udp":
                stream.send(data)
            elif step["by"] == "server udp":
                assert data == stream.recv(64), step["is"]
            elif step["by"] == "server tcp":
                assert data == client.read(len(data)), step["is"]
            else:
                results = client.read_json()
    assert [(10, 8, 8, 9, 0, 1)] == counted(driven.ended())
    needed = {"cpu_util_total", "cpu_util_user", "cpu_util_system", "sender_has_retransmits"}
    assert needed < results.keys()
    (answered,) = results["streams"]
    assert {"id": 1, "bytes": 8 * 64, "errors": 2, "packets": 10}.items() <= answered.items()
    assert {"retransmits", "jitter"} < answered.keys()
    driven.wait("closed")
    assert "refused" not in [event.event for event in driven.events]


def test_a_greeting_that_comes_again_is_answered_again_and_not_counted(
    driven: Driven, client: Client
) -> None:
    """Before the test by a reply, during it by nothing; no packet either way."""
    assert talk.CREATE_STREAMS == client.ask(parallel=2)
    client.greet()
    client.streams[0].send(NEW_HELLO)
    assert talk.HELLOS[NEW_HELLO] == client.streams[0].recv(64)
    client.greet()
    assert (talk.TEST_START, talk.TEST_RUNNING) == (client.state(), client.state())
    client.streams[0].send(NEW_HELLO)
    client.send([1])
    client.end(1, 0)
    served = driven.ended()
    assert (1, [1, 0]) == (served.hello_packets, [s.read_packets for s in served.streams])


def test_packets_of_strangers_are_in_no_number(driven: Driven, client: Client) -> None:
    """Neither before nor during a test, and they get no reply."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.2", 0))
        stranger.connect(("127.0.0.1", driven.port))
        stranger.send(NEW_HELLO)
        assert talk.CREATE_STREAMS == client.ask()
        stranger.send(NEW_HELLO)
        client.greet()
        assert (talk.TEST_START, talk.TEST_RUNNING) == (client.state(), client.state())
        stranger.send(struct.pack(">III", 0, 0, 9) + bytes(88))
        client.send([1, 2])
        client.end(2)
        assert [(2, 2, 2, 2, 0, 0)] == counted(driven.ended())
        with pytest.raises(BlockingIOError):
            stranger.recv(64, socket.MSG_DONTWAIT)


def test_who_greets_in_a_clients_place_ends_its_test(
    driven: Driven, client: Client, golden: Golden
) -> None:
    """Another user of its machine, or who shares its address: one of them is not its stream."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
        neighbour.bind(("127.0.0.1", 0))
        neighbour.connect(client.where)
        late = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        late.bind(("127.0.0.1", 0))
        late.connect(client.where)
        driven.before = lambda: late.send(NEW_HELLO) and None
        assert talk.CREATE_STREAMS == client.ask()
        neighbour.send(NEW_HELLO)
        assert talk.SERVER_ERROR == client.state()
        port = str(late.getsockname()[1])
        late.close()
    golden.check(driven.wait("refused").text.replace(port, "PORT"))
    assert "started" not in [event.event for event in driven.events]


def test_what_came_to_a_stream_before_its_test_is_not_counted(
    driven: Driven, client: Client
) -> None:
    """The controller reads the host's counters first."""
    driven.before = lambda: client.send([7, 8, 9])
    client.begin()
    client.send([1])
    client.end(1)
    assert [(1, 1, 1, 1, 0, 0)] == counted(driven.ended())


def test_another_client_is_told_that_the_server_is_busy(
    driven: Driven, client: Client, golden: Golden
) -> None:
    """And is served once the first has left."""
    client.begin()
    with closing(Client(driven.port)) as other:
        other.control.sendall(COOKIE)
        assert talk.ACCESS_DENIED == other.state()
        assert b"" == other.read(1)
    golden.check(driven.wait("refused").text)
    client.end(0)
    driven.wait("closed")
    with closing(Client(driven.port)) as next_client:
        next_client.begin()
        next_client.end(0)


def test_several_clients_are_served_at_a_time(port: int) -> None:
    """Each with its own counts, although their greetings do not say whose they are; no third."""
    with closing(Driven(port, ("127.0.0.1",), clients=2)):
        first, second, third = (Client(port) for _ in range(3))
        for number, client in enumerate((first, second), start=1):
            client.begin()
            client.send(range(1, 10 * number + 1))
        third.control.sendall(COOKIE)
        assert talk.ACCESS_DENIED == third.state()
        ended = [second.end(21), first.end(12)]
        assert [1, 2] == [results["streams"][0]["errors"] for results in ended]
        for client in (first, second, third):
            client.close()


def test_all_clients_together_have_so_many_streams(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a descriptor, without which the server would end; who has some goes on."""
    monkeypatch.setattr(talk, "ALL_STREAMS_MAX", 3)
    with closing(Driven(port, ("127.0.0.1",), clients=2)) as driven:
        first, second, third = (Client(port) for _ in range(3))
        first.begin(2)
        assert talk.SERVER_ERROR == second.ask(parallel=2)
        text = "127.0.0.1: 4 streams of all clients together: at most 3"
        assert text == driven.wait("refused").text
        third.begin(1)
        first.send(range(1, 11))
        assert 0 == first.end(10, 0)["streams"][0]["errors"]
        for client in (first, second, third):
            client.close()


def test_what_is_not_served_is_refused_as_every_release_understands_it(
    driven: Driven, client: Client
) -> None:
    """State -2 and two numbers, of which the first is 13."""
    assert talk.SERVER_ERROR == client.ask({"tcp": True, "time": 1})
    assert struct.pack(">II", 13, 0) == client.read(9)
    assert "TCP" in driven.wait("refused").text
    with closing(Client(driven.port)) as other:
        other.begin()


@pytest.mark.parametrize("length", [0, 8193, 2**32 - 1])
def test_a_length_beyond_the_limit_is_not_read(driven: Driven, length: int) -> None:
    """The client is refused at once, and the server serves on."""
    with closing(Client(driven.port)) as client:
        client.control.sendall(COOKIE)
        assert talk.PARAM_EXCHANGE == client.state()
        client.control.sendall(struct.pack(">I", length))
        assert talk.SERVER_ERROR == client.state()
    with closing(Client(driven.port)) as other:
        other.begin()


@pytest.mark.parametrize("last", [talk.IPERF_DONE, talk.CLIENT_TERMINATE])
def test_a_client_that_cannot_go_on_makes_room_for_the_next(
    driven: Driven, client: Client, last: int
) -> None:
    """As one does whose system does not give it its ``-w``: before its streams, with a word."""
    assert talk.CREATE_STREAMS == client.ask()
    client.say(last)
    with closing(Client(driven.port)) as other:
        other.begin()
    assert [f"{client.where[0]}: it broke off its test"] == [
        each.text for each in driven.events if each.event == "refused"
    ]


def leave(client: Client) -> None:
    """Close the control connection."""
    client.control.close()


def interrupt(client: Client) -> None:
    """Say that the user ended it."""
    client.say(talk.CLIENT_TERMINATE)


def babble(client: Client) -> None:
    """Say what is no state of a client's."""
    client.say(77)


def send_nonsense(client: Client) -> None:
    """Send results that are none."""
    client.say(talk.TEST_END)
    assert talk.EXCHANGE_RESULTS == client.state()
    client.send_json(b"[1]")


@pytest.mark.parametrize("depart", [leave, interrupt, babble, send_nonsense])
def test_of_a_client_that_vanishes_is_known_what_came(
    driven: Driven, client: Client, depart: Callable[[Client], None], golden: Golden
) -> None:
    """Up to the highest counter; the next one is served."""
    client.begin()
    client.send([1, 2, 4])
    wait_until(
        "all came",
        lambda: driven.server.tests[0].pool.sample(0).stats[0].counts["read_packets"] == 3,
    )
    depart(client)
    served = driven.ended()
    golden.check(served.ended)
    assert [(None, 3, 3, 4, 0, 1)] == counted(served)
    driven.wait("closed")
    with closing(Client(driven.port)) as other:
        other.begin()
        other.end(0)


def test_what_is_on_its_way_as_a_client_leaves_is_counted(
    driven: Driven, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the end of a test."""
    monkeypatch.setattr(server_module, "QUIET_NS", server_module.DRAIN_NS)
    client.begin()
    client.send([1])
    caller = driven.server.tests[0].caller
    client.control.close()
    wait_until("the server knows", lambda: caller.ended)
    client.send([2, 3])
    assert [(None, 3, 3, 3, 0, 0)] == counted(driven.ended())


def test_a_client_that_is_late_is_left(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cookie, its parameters, its streams, or the end of its test."""
    monkeypatch.setattr(server_module, "GREETING_NS", 10**8)
    monkeypatch.setattr(server_module, "STREAMS_NS", 10**8)
    monkeypatch.setattr(server_module, "LATE_NS", 10**8)
    with closing(Client(driven.port)) as client:
        assert b"" == client.read(1)
    with closing(Client(driven.port)) as client:
        client.control.sendall(COOKIE)
        assert talk.PARAM_EXCHANGE == client.state()
        assert b"" == client.read(1)
    with closing(Client(driven.port)) as client:
        assert talk.CREATE_STREAMS == client.ask()
        assert b"" == client.read(1)
    with closing(Client(driven.port)) as client:
        client.begin(time=1)
        assert talk.SERVER_TERMINATE == client.state()


def test_half_open_connections_hold_nobody_up(driven: Driven, client: Client) -> None:
    """More than the server keeps: the oldest are closed, and neither a test nor a new client is."""
    client.begin()
    idle = [socket.create_connection(client.where, 5) for _ in range(3 * CALLERS_MAX)]
    client.send([1])
    client.end(1)
    driven.wait("closed")
    with closing(Client(driven.port)) as other:
        other.begin()
        other.end(0)
    for each in idle:
        each.close()
    assert [1, 0] == [
        event.served.streams[0].received_packets
        for event in driven.events
        if event.event == "ended" and event.served is not None
    ]


def test_a_buffer_is_set_up_to_the_hosts_limit(driven: Driven, client: Client) -> None:
    """And what it became is said: the kernel's number is twice what was asked for."""
    client.begin(window=65536)
    (stats,) = driven.server.tests[0].pool.sample(0).stats
    assert 131072 == stats.buffer_bytes
    client.end(0)


@pytest.mark.parametrize(("wide_bytes", "widened"), [(2**30, True), (4096, False)])
def test_a_client_that_asks_for_no_buffer_gets_at_least_the_hosts_default(
    driven: Driven, client: Client, monkeypatch: pytest.MonkeyPatch, wide_bytes: int, widened: bool
) -> None:
    """What naps let wait has room beside it, as far as the host allows."""
    monkeypatch.setattr(ports, "WIDE_BYTES", wide_bytes)
    monkeypatch.setattr(ports, "ALL_BYTES", 2**30)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        default_bytes = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**30)
        most_bytes = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    client.begin()
    (stats,) = driven.server.tests[0].pool.sample(0).stats
    assert (max(most_bytes, default_bytes) if widened else default_bytes) == stats.buffer_bytes
    client.end(0)


@pytest.mark.parametrize(
    ("streams", "asked", "wait"),
    [(1, {"window": 4096}, "block"), (2, {"window": 4096}, "epoll"), (2, {"len": 100}, "auto")],
)
def test_a_reader_naps_only_if_its_buffer_has_room_for_what_comes_meanwhile(
    driven: Driven, client: Client, streams: int, asked: dict[str, int], wait: str
) -> None:
    """A nap loses nothing."""
    client.begin(streams, **asked)
    client.end(*[0] * streams)
    (spec,) = driven.wait("prepared").specs
    assert spec.receive is not None
    assert wait == spec.receive.wait


def test_a_cpu_that_there_is_not_is_named_as_ignored(driven: Driven, client: Client) -> None:
    """The receiver runs where it may."""
    client.begin(server_affinity=8000)
    client.end(0)
    assert ("server_affinity",) == driven.ended().ignored


@pytest.mark.parametrize(
    ("asked", "ignored"), [({}, ()), ({"gso": 1, "gro": 0}, ("gso", "gso_bf_size"))]
)
def test_sizes_that_a_client_sends_in_any_case_are_not_asked_for(
    driven: Driven, client: Client, asked: dict[str, int], ignored: tuple[str, ...]
) -> None:
    """3.22 says how large its buffers for GSO and GRO are, used or not."""
    client.begin(**asked, gso_bf_size=65507, gro_bf_size=65507)
    client.end(0)
    assert ignored == driven.ended().ignored


def test_datagrams_that_are_cut_off_are_not_received(driven: Driven, client: Client) -> None:
    """Those that are longer than the client has said."""
    client.begin(len=100)
    client.send([1, 2], size_bytes=100)
    client.send([3], size_bytes=101)
    client.end(3)
    assert [2] == [each.received_packets for each in driven.ended().streams]


def test_a_port_that_is_taken_is_named_with_its_holder(port: int) -> None:
    """Nothing is left open."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(OSError, match="in use by"):
            Iperf3Server(Host(), ("127.0.0.1",), port)


def test_the_port_is_shared_with_nobody(driven: Driven, client: Client) -> None:
    """Neither before a test nor in it, nor as streams come: who could would get its greetings."""

    def bound() -> Any:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with closing(sock), pytest.raises(OSError, match="in use"):
            sock.bind(("127.0.0.1", driven.port))

    bound()
    assert talk.CREATE_STREAMS == client.ask(parallel=2)
    client.greet()
    bound()
    client.greet()
    assert (talk.TEST_START, talk.TEST_RUNNING) == (client.state(), client.state())
    bound()
    client.end(0, 0)
