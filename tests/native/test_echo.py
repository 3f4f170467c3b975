"""Headers that return, and the kernel's stamps: what splits and closes a delay."""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from loops import (
    SECOND_NS,
    TAG,
    TIMEOUT,
    Receiving,
    Sending,
    counts,
    datagram,
    guards,
    receiving_socket,
    refusal,
    sending_socket,
)
from waiting import wait_until

from udpbench._native import ffi, lib

SO_TIMESTAMPNS = 35
IP_PKTINFO = 8


class Listening:
    """One ear at a sender's sockets, in a thread."""

    def __init__(self, sockets: list[socket.socket], epoch_ns: int, **changes: Any) -> None:
        self.fds = ffi.new("int32_t[]", [sock.fileno() for sock in sockets])
        self.control, self.ended = ffi.new("struct ub_control *"), ffi.new("struct ub_control *")
        self.round_trip = ffi.new("struct ub_histogram *")
        self.stats = ffi.new("struct ub_echo_stats *")
        values = {"sockets": self.fds, "socket_count": len(sockets), "tag": TAG}
        values |= {"epoch_ns": epoch_ns, "quiet_ns": SECOND_NS // 20, "ended": self.ended}
        values |= {"longest_ns": 20 * SECOND_NS}
        values |= {"control": self.control, "round_trip": self.round_trip, **changes}
        self.config = ffi.new("struct ub_listen_config *", values)
        self.results: list[int] = []
        self.thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        self.results.append(lib.ub_echo_listen(self.config, self.stats))

    def finish(self) -> dict[str, int]:
        """Tell that the sending loop has left, and return the counts once all is quiet."""
        self.ended.stop = 1
        self.thread.join(20)
        assert [0] == self.results
        return counts(ffi, self.stats)


@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECVMMSG, lib.UB_RECEIVE_RECV])
def test_every_nth_header_returns(call: int) -> None:
    """Every tenth of 1000 packets on each of two flows comes back, and has a round trip."""
    with receiving_socket() as sock:
        sockets = [sending_socket(sock.getsockname()) for _ in range(2)]
        sender = Sending(ffi, lib, sockets, [0, 1])
        ear = Listening(sockets, sender.config.epoch_ns)
        ear.thread.start()
        receiver = Receiving(ffi, lib, sock, flow_count=2)
        receiver.start(echo_every=10, call=call, epoch_ns=sender.config.epoch_ns)
        sender.run(count=1000, rate_pps=20_000, bucket_ns=SECOND_NS)
        wait_until("all read", lambda: receiver.read() == 1000)
        stats, echo_stats = receiver.stop(), ear.finish()
    assert (100, 0) == (stats["echoed_packets"], stats["unechoed_packets"])
    assert (100, 0, 0) == (
        echo_stats["echo_packets"],
        echo_stats["echo_strangers"],
        echo_stats["echo_errors"],
    )
    assert (100, 0) == (sum(ear.round_trip.counts), ear.round_trip.below_zero)


def test_an_echo_is_the_header_alone() -> None:
    """Eighteen bytes return, unchanged, to the port that they came from."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        receiver = Receiving(ffi, lib, sock)
        sender = Sending(ffi, lib, [to])
        receiver.start(echo_every=1, sizes=[64])
        sender.run(count=1, sizes=[64])
        echo = to.recv(64)
        receiver.stop()
    assert len(echo) == 18
    assert (TAG, 0, 0) == struct.unpack(">IHHI", echo[:12])[:3]


@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECVMMSG, lib.UB_RECEIVE_RECV])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_an_echo_leaves_from_the_address_that_was_sent_to(family: int, call: int) -> None:
    """A connected sender hears nobody else; IPv6 sockets tell of IPv4 in their own terms."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104
        addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
        addresses += ["::1"] if family == socket.AF_INET6 else []
        receiver = Receiving(ffi, lib, sock, flow_count=len(addresses))
        receiver.start(echo_every=1, call=call)
        echoes = []
        for number, address in enumerate(addresses):
            with sending_socket((address, sock.getsockname()[1])) as to:
                to.send(datagram(0, flow=number))
                echoes += [readable.recv(64) for readable in select.select([to], [], [], 2)[0]]
        stats = receiver.stop()
    assert [datagram(0, flow=number)[:18] for number in range(len(addresses))] == echoes
    assert (len(addresses), 0) == (stats["echoed_packets"], stats["unechoed_packets"])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_echo_goes_to_the_first_source_of_its_flow_alone(address: str) -> None:
    """Whoever reads datagrams on their way could have theirs sent to anybody, in a name of choice."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        sock.bind((address, 0))
        receiver = Receiving(ffi, lib, sock)
        receiver.start(echo_every=1)
        where = sock.getsockname()[:2]
        with sending_socket(where) as own, sending_socket(where) as other:
            own.send(datagram(0))
            assert datagram(0)[:18] == own.recv(64)
            other.send(datagram(1))
            wait_until("read", lambda: receiver.read() == 2)
            own.send(datagram(2))
            assert datagram(2)[:18] == own.recv(64)
            stats = receiver.stop()
            assert [] == select.select([other], [], [], 0)[0]
    assert (2, 1) == (stats["echoed_packets"], stats["unechoed_packets"])


def test_an_echo_that_the_socket_does_not_take_is_counted(tmp_path: Path) -> None:
    """A source without a name cannot be answered: that costs the echo and nothing else."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless,
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        sock.bind(str(tmp_path / "here"))
        nameless.sendto(datagram(0), str(tmp_path / "here"))
        receiver = Receiving(ffi, lib, sock)
        receiver.start(echo_every=1)
        wait_until("read", lambda: receiver.read() == 1)
        stats = receiver.stop()
    assert (1, 0, 1) == (
        stats["received_packets"],
        stats["echoed_packets"],
        stats["unechoed_packets"],
    )


def test_strangers_are_no_echoes() -> None:
    """What has another tag or length is counted apart and has no round trip."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        ear = Listening([to], time.monotonic_ns())
        ear.thread.start()
        for stranger in (bytes(18), TAG.to_bytes(4, "big") + bytes(15), b""):
            sock.sendto(stranger, to.getsockname())
        wait_until("heard", lambda: ear.stats.echo_strangers == 3)
        assert ear.finish()["echo_packets"] == 0
    assert sum(ear.round_trip.counts) == 0


def test_an_error_is_counted_with_its_number() -> None:
    """A refused connection is told to the ear, too."""
    closed = receiving_socket()
    address = closed.getsockname()
    closed.close()
    with sending_socket(address) as to:
        ear = Listening([to], time.monotonic_ns())
        ear.thread.start()
        to.send(b"anybody?")
        wait_until("an error", lambda: ear.stats.echo_errors > 0)
        assert ear.finish()["echo_last_errno"] == errno.ECONNREFUSED


def test_the_ear_waits_for_late_echoes() -> None:
    """An echo within the quiet time after the sender has left still counts."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        ear = Listening([to], time.monotonic_ns(), quiet_ns=SECOND_NS)
        ear.thread.start()
        ear.ended.stop = 1
        sock.sendto(TAG.to_bytes(4, "big") + bytes(14), to.getsockname())
        wait_until("heard", lambda: ear.stats.echo_packets == 1)
        ear.control.stop = 1
        assert ear.finish()["echo_packets"] == 1


def test_the_ear_does_not_wait_for_ever() -> None:
    """Where a slow reader goes on answering, it leaves all the same, some time after the sender."""
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        ear = Listening([to], time.monotonic_ns(), quiet_ns=SECOND_NS, longest_ns=SECOND_NS // 10)
        ear.thread.start()
        echo, address = TAG.to_bytes(4, "big") + bytes(14), to.getsockname()

        def goes_on() -> bool:
            sock.sendto(echo, address)
            return ear.stats.echo_packets > 0

        wait_until("heard", goes_on)
        ear.ended.stop = 1
        ended_ns = time.monotonic_ns()
        wait_until("left", lambda: bool(goes_on() and not ear.thread.is_alive()))
        took_ns = time.monotonic_ns() - ended_ns
        ear.finish()
    assert SECOND_NS // 10 <= took_ns + 10**6 < SECOND_NS


NEEDED = ("sockets", "socket_count", "round_trip", "control", "ended")


def test_every_guard_names_its_field() -> None:
    """All that C may refuse is refused here, and says of which field."""
    with receiving_socket() as sock:
        ear = Listening([sock], 0)
        absent = {name: 0 if name == "socket_count" else ffi.NULL for name in NEEDED}
        check = lib.ub_echo_listen_check
        refused = {name: refusal(ffi, check, ear.config, {name: absent[name]}) for name in NEEDED}
        refused["config"] = refusal(ffi, check, ffi.NULL, {})
    assert list(refused) == [text.partition(":")[0] for text in refused.values()]
    assert set(refused.values()) <= guards("listener.c")


@pytest.mark.parametrize("name", NEEDED)
def test_an_ear_without_what_it_needs(name: str) -> None:
    """A config that makes no sense is refused."""
    with receiving_socket() as sock:
        ear = Listening([sock], 0)
        setattr(ear.config, name, 0 if name == "socket_count" else ffi.NULL)
        assert lib.ub_echo_listen(ear.config, ear.stats) == -errno.EINVAL


def test_a_socket_that_is_none() -> None:
    """A descriptor that cannot be watched is told."""
    with receiving_socket() as sock:
        ear = Listening([sock], 0)
        ear.fds[0] = -1
        assert lib.ub_echo_listen(ear.config, ear.stats) == -errno.EBADF


# --- stamps --------------------------------------------------------------------------------------


def stamped_on_arrival(sock: socket.socket, to: socket.socket) -> bool:
    """Return whether the kernel stamps already; until it does, a datagram is stamped when read.

    The first socket that asks has it switch that on some time later (net_enable_timestamp).
    """
    to.send(b"now?")
    sent_ns = time.time_ns()
    wait_until("5 ms", lambda: time.time_ns() > sent_ns + 5 * 10**6)
    _, ((_, _, stamp),), _, _ = sock.recvmsg(64, 64)
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return bool(seconds * SECOND_NS + nanoseconds < sent_ns + 10**6)


@pytest.mark.parametrize("call", [lib.UB_RECEIVE_RECVMMSG, lib.UB_RECEIVE_RECV])
def test_stamps_split_the_delay(call: int) -> None:
    """A datagram that waited 50 ms in its socket spent them at the application's door."""
    delay, stack, application = (ffi.new("struct ub_histogram *") for _ in range(3))
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        wait_until("stamps on arrival", lambda: stamped_on_arrival(sock, to))
        sender = Sending(ffi, lib, [to])
        sender.run(count=5)
        waited_until = time.monotonic_ns() + SECOND_NS // 20
        wait_until("50 ms", lambda: time.monotonic_ns() >= waited_until)
        receiver = Receiving(ffi, lib, sock)
        receiver.start(
            call=call,
            delay=delay,
            timestamps=1,
            stack=stack,
            application=application,
            epoch_ns=sender.config.epoch_ns,
        )
        wait_until("read", lambda: receiver.read() == 5)
        receiver.stop()
    half = lib.ub_histogram_bucket(SECOND_NS // 25)
    each = [list(histogram.counts) for histogram in (delay, stack, application)]
    halves = [[sum(counted[:half]), sum(counted[half:])] for counted in each]
    assert [[0, 5], [5, 0], [0, 5]] == halves


@pytest.mark.parametrize(("late", "left"), [(0, 0), (1, 0), (4, 0), (9, 4)])
def test_two_clocks_are_read_at_one_time(scripted: tuple[Any, Any], late: int, left: int) -> None:
    """A reading that comes 20 ms late is made again, and not for ever."""
    _, fake_lib = scripted
    fake_lib.fake_late_readings(late)
    ahead_ns = fake_lib.ub_realtime_ahead_ns(time.monotonic_ns())
    assert left == fake_lib.fake_late_readings_left()
    fake_lib.fake_late_readings(0)
    least_ns = min(abs(ahead_ns - (time.time_ns() - time.monotonic_ns())) for _ in range(100))
    assert (least_ns < 5 * 10**6) == (left == 0)


def test_without_a_stamp_nothing_is_split() -> None:
    """A socket that was not asked for stamps leaves both histograms empty."""
    stack, application = ffi.new("struct ub_histogram *"), ffi.new("struct ub_histogram *")
    with receiving_socket() as sock, sending_socket(sock.getsockname()) as to:
        Sending(ffi, lib, [to]).run(count=5)
        receiver = Receiving(ffi, lib, sock)
        receiver.start(timestamps=1, stack=stack, application=application)
        wait_until("read", lambda: receiver.read() == 5)
        receiver.stop()
    assert (0, 0) == (sum(stack.counts), sum(application.counts))


@pytest.mark.parametrize(
    "change",
    [
        {"timestamps": 1},
        {"timestamps": 1, "read": lib.UB_READ_COPY},
        {"echo_every": 1, "read": lib.UB_READ_NONE},
        {"echo_every": 1, "read": lib.UB_READ_COPY},
    ],
)
def test_what_needs_a_header_is_refused_without(change: dict[str, Any]) -> None:
    """Echoes and stamps need headers, stamps their histograms."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        for name, value in change.items():
            setattr(receiver.config, name, value)
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL
