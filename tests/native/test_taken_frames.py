"""Receiving frames by AF_XDP: out of rings that are this test's, as a kernel fills them."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from loops import Receiving, datagram, guards, receiving_socket, refusal
from test_relay import HARMS, NAMES, SIZE_BYTES, Harm, sent_through
from test_send_frames import ADDRESSES, MACS
from waiting import wait_until

from udpbench._native import ffi, lib
from udpbench.agent.host.frames import headers

CHUNK_BYTES = 2048
RING, FRAMES = lib.UB_XSK_FRAMES, lib.UB_XSK_TAKEN_FRAMES
ETHERNET_MIN_BYTES = 60


def framed(payload: bytes, family: int = 4) -> bytes:
    """Return a datagram's frame, padded as a card pads it."""
    whole = headers(MACS, ADDRESSES[family], (1000, 4321), len(payload), 1) + payload
    return whole.ljust(ETHERNET_MIN_BYTES, b"\xee")


class Queue:
    """An RX queue as ``__xsk_rcv`` serves it (net/xdp/xsk.c)."""

    def __init__(self, sock: socket.socket, start: int = 0, ffi: Any = ffi) -> None:
        self._move = ffi.memmove
        self.memory = ffi.new("uint8_t[]", FRAMES * CHUNK_BYTES)
        self.fill = [ffi.new("uint32_t[1]") for _ in range(3)]
        self.receive = [ffi.new("uint32_t[1]", [start]) for _ in range(3)]
        self.receive[2][0] = self.fill[2][0] = 0
        self.free = ffi.new("uint64_t[]", [n * CHUNK_BYTES for n in range(FRAMES)])
        self.descriptors = ffi.new("uint64_t[]", 2 * RING)
        self.fill[0][0] = FRAMES
        self.xsk = ffi.new(
            "struct ub_xsk *",
            {"socket": sock.fileno(), "stride_bytes": CHUNK_BYTES, "memory": self.memory},
        )
        for ring, (producer, consumer, flags), entries in (
            (self.xsk.fill, self.fill, self.free),
            (self.xsk.receive, self.receive, self.descriptors),
        ):
            ring.producer, ring.consumer, ring.flags = producer, consumer, flags
            ring.entries = entries
        self.ring_full = self.no_buffer = 0

    def put(self, frame: bytes) -> bool:
        """Copy a frame to a buffer that was given back, or count why it cannot be."""
        if self.fill[0][0] == self.fill[1][0]:
            self.no_buffer += 1
            return False
        if (self.receive[0][0] - self.receive[1][0]) % 2**32 == RING:
            self.ring_full += 1
            return False
        chunk = self.free[self.fill[1][0] % FRAMES] & ~(CHUNK_BYTES - 1)
        self.fill[1][0] = (self.fill[1][0] + 1) % 2**32
        at = chunk + lib.UB_XSK_ROOM_BYTES
        self._move(self.memory + at, frame, len(frame))
        place = self.receive[0][0] % RING
        self.descriptors[2 * place], self.descriptors[2 * place + 1] = at, len(frame)
        self.receive[0][0] = (self.receive[0][0] + 1) % 2**32
        return True

    @property
    def ways(self) -> dict[str, Any]:
        """Return what a config needs to receive by it."""
        return {"call": lib.UB_RECEIVE_AF_XDP, "xsk": self.xsk, "wait": lib.UB_WAIT_SPIN}


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    """Stand for the socket of the queue, which nothing is received from."""
    with receiving_socket() as receiving:
        yield receiving


def arrived(sock: socket.socket, frames: Sequence[bytes], **changes: Any) -> dict[str, int]:
    """Return the counts that are not 0 of a worker whose queue gets these frames."""
    queue = Queue(sock, start=2**32 - 5)
    assert all(queue.put(frame) for frame in frames)
    receiver = Receiving(ffi, lib, sock)
    receiver.start(**{"sizes": [SIZE_BYTES], **queue.ways, **changes})
    wait_until("all read", lambda: receiver.read() >= len(frames))
    stats = receiver.stop()
    return {name: stats[f"{name}_packets"] for name in NAMES if stats[f"{name}_packets"]}


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("harm", "expected"), HARMS.values(), ids=HARMS.keys())
def test_harm_to_received_frames_is_counted_exactly(
    sock: socket.socket, harm: Harm, expected: dict[str, int], family: int
) -> None:
    """Loss, duplicates, reordering and foreign datagrams count as by other ways, padding never."""
    frames = [framed(each, family) for each in harm(sent_through({}))]
    assert expected == arrived(sock, frames, read=lib.UB_READ_VERIFY)


@pytest.mark.parametrize("read", [lib.UB_READ_COPY, lib.UB_READ_NONE], ids=["copy", "none"])
@pytest.mark.parametrize("wait", [lib.UB_WAIT_SPIN, lib.UB_WAIT_NAP], ids=["spin", "nap"])
def test_lengths_are_those_of_the_datagrams(sock: socket.socket, read: int, wait: int) -> None:
    """By the UDP header, not by the frame, which is longer: an empty one is one, too."""
    frames = [framed(bytes(length)) for length in (0, 1, SIZE_BYTES, SIZE_BYTES + 1)]
    expected = {"received": 1, "foreign_size": 3}
    assert expected == arrived(sock, frames, read=read, wait=wait, nap_ns=1000)


@pytest.mark.parametrize("length", [0, 7, 8 + SIZE_BYTES + 1, 65535])
def test_a_length_that_the_frame_contradicts_is_the_frames(
    sock: socket.socket, length: int
) -> None:
    """Nothing is read beyond the frame, whatever its header says."""
    whole = framed(datagram(0, size_bytes=SIZE_BYTES))
    frame = whole[:38] + length.to_bytes(2, "big") + whole[40:]
    assert {"received": 1} == arrived(sock, [frame])


@pytest.mark.parametrize("batch", [1, 7, 512])
def test_frames_are_given_back_once_and_never_before_they_were_read(
    sock: socket.socket, batch: int
) -> None:
    """A kernel that reuses each buffer at once, in bursts, finds all counted and none lost."""
    queue, chance = Queue(sock), random.Random(7)
    receiver = Receiving(ffi, lib, sock)
    receiver.start(**{"sizes": [SIZE_BYTES], "batch": batch, **queue.ways})
    sent = 0
    while sent < 4 * FRAMES:
        for _ in range(chance.choice((1, 50, 1000))):
            queue.put(framed(datagram(sent, size_bytes=SIZE_BYTES)))
            sent += 1
        came = sent - queue.ring_full
        wait_until("read", lambda came=came: receiver.read() == came)
    stats = receiver.stop()
    assert (sent - queue.ring_full, 0) == (stats["received_packets"], stats["corrupt_packets"])
    assert 0 == queue.no_buffer
    # Each buffer is free or was read last.
    assert 0 == lib.ub_xsk_purge(queue.xsk)
    free = (queue.fill[0][0] - queue.fill[1][0]) % 2**32
    chunks = {queue.free[(queue.fill[1][0] + n) % FRAMES] // CHUNK_BYTES for n in range(free)}
    assert (FRAMES, FRAMES) == (free, len(chunks))


def test_what_nobody_read_is_counted_when_it_is_thrown_away(sock: socket.socket) -> None:
    """A ring takes no more than it holds, the rest finds it full, and buffers never run out."""
    queue = Queue(sock)
    assert RING == sum(queue.put(framed(datagram(n))) for n in range(RING + 100))
    assert (100, 0) == (queue.ring_full, queue.no_buffer)
    assert (RING, 0) == (lib.ub_xsk_purge(queue.xsk), lib.ub_xsk_purge(queue.xsk))
    assert FRAMES == queue.fill[0][0] - queue.fill[1][0]


def test_a_driver_without_buffers_is_woken(sock: socket.socket) -> None:
    """It waits for a call; an empty queue is no error."""
    queue = Queue(sock)
    queue.fill[2][0] = 1
    sock.setblocking(False)
    receiver = Receiving(ffi, lib, sock)
    receiver.start(**queue.ways)
    wait_until("calls", lambda: receiver.stats[0].empty_calls > 0)
    stats = receiver.stop()
    assert (0, 0) == (stats["errors"], stats["read_packets"])


WAKE_ERRORS = {
    errno.EACCES: "security/security.c, security_socket_recvmsg",
    errno.EAGAIN: "drivers/net/ethernet/intel/i40e/i40e_xsk.c: the card is being set up",
    errno.EINVAL: "drivers/net/ethernet/intel/ice/ice_xsk.c: its queue has no program or no socket",
    errno.ENETDOWN: "net/xdp/xsk.c, xsk_check_common: the interface is down; drivers: no carrier",
    errno.ENOBUFS: "net/xdp/xsk.c, __xsk_recvmsg: no RX ring",
    errno.ENXIO: "net/xdp/xsk.c, xsk_check_common: bound no more, as its device has gone",
}
"""errno → where Linux returns it for a driver that is woken, besides EOPNOTSUPP."""


class Driver:
    """A driver without memory: it hands over frames when a call to wake it succeeds."""

    def __init__(self, scripted: tuple[Any, Any], sock: socket.socket, answers: list[int]) -> None:
        fake_ffi, self.lib = scripted
        self.none, self.look_error = fake_ffi.NULL, 0
        self.queue = Queue(sock, ffi=fake_ffi)
        self.queue.fill[2][0] = 1
        self.answers, self.calls, self.sent = answers, 0, 0
        self.calls_back = [fake_ffi.callback("int(void)", each) for each in (self.wake, self.look)]
        self.receiver = Receiving(fake_ffi, self.lib, sock)

    def wake(self) -> int:
        """Answer recvfrom(2); the queue may have a frame all the same."""
        error = self.answers[self.calls] if self.calls < len(self.answers) else 0
        self.calls += 1
        if error == 0 or self.calls % 2:
            self._bring(1 if error else 5)
        return -error

    def look(self) -> int:
        """Answer poll(2), which wakes it, too."""
        error, self.look_error = self.look_error, 0
        self._bring(0 if error else 5)
        return -error

    def _bring(self, frames: int) -> None:
        for _ in range(frames if self.sent < 100 else 0):
            self.queue.put(framed(datagram(self.sent, size_bytes=SIZE_BYTES)))
            self.sent += 1

    def run(self) -> dict[str, int]:
        """Return the counts once all frames were read and all errors met."""
        self.lib.fake_wake(*self.calls_back)
        self.receiver.start(**{"sizes": [SIZE_BYTES], "batch": 3, **self.queue.ways})
        try:
            wait_until(
                "all answered and read",
                lambda: self.calls > len(self.answers) and self.receiver.read() == self.sent >= 100,
            )
        finally:
            stats = self.receiver.stop()
            self.lib.fake_wake(self.calls_back[0], self.none)
        assert (self.sent, 0) == (stats["received_packets"], stats["late_packets"])
        return stats


@pytest.mark.parametrize("number", WAKE_ERRORS, ids=errno.errorcode.get)
def test_every_errno_of_a_wake_up_is_counted(
    scripted: tuple[Any, Any], sock: socket.socket, number: int
) -> None:
    """Alone and beside frames, once each; every frame is read once, and the next call tries again."""
    stats = Driver(scripted, sock, [0, number, number, 0, number, 0, 0, number]).run()
    silent = number == errno.EAGAIN
    assert (stats["errors"], stats["last_errno"]) == ((0, 0) if silent else (4, number))


@pytest.mark.parametrize("refused", [0, errno.ENOMEM])
def test_before_linux_5_11_poll_wakes_a_driver(
    scripted: tuple[Any, Any], sock: socket.socket, refused: int
) -> None:
    """Its sockets have no recvmsg, which is no error; what poll(2) says is one."""
    driver = Driver(scripted, sock, [errno.EOPNOTSUPP] * 30)
    driver.look_error = refused
    stats = driver.run()
    assert (stats["errors"], stats["last_errno"]) == (refused != 0, refused)


def test_an_error_of_the_phase_before_is_forgotten(sock: socket.socket) -> None:
    """The next loop begins without it."""
    queue = Queue(sock)
    queue.xsk.wake_error = -errno.ENXIO
    receiver = Receiving(ffi, lib, sock)
    receiver.start(**queue.ways)
    wait_until("calls", lambda: receiver.stats[0].empty_calls > 0)
    assert 0 == receiver.stop()["errors"]


def test_every_guard_of_taken_frames_names_its_field(sock: socket.socket) -> None:
    """All that frames cannot be is refused, and says of which field."""
    queue, receiver = Queue(sock), Receiving(ffi, lib, sock)
    for name, value in queue.ways.items():
        setattr(receiver.config, name, value)
    histogram = ffi.new("struct ub_histogram *")
    bad: list[dict[str, Any]] = [
        {"xsk": ffi.NULL},
        {"socket_count": 2},
        {"gro": 1},
        {"timestamps": 1, "stack": histogram, "application": histogram},
        {"echo_every": 1},
    ]
    config, check = receiver.config, lib.ub_receive_check
    assert "" == refusal(ffi, check, config, {"sizes": [SIZE_BYTES]})
    assert guards("xsk_receive.c") == {refusal(ffi, check, config, each) for each in bad}
    blocking = refusal(ffi, check, config, {"wait": lib.UB_WAIT_BLOCK})
    assert "wait: one that the way of receiving allows" == blocking


@pytest.mark.parametrize("allocations", range(2))
def test_too_little_memory_for_taken_frames(
    scripted: tuple[Any, Any], sock: socket.socket, allocations: int
) -> None:
    """Where any of the buffers cannot be had nothing is received."""
    fake_ffi, fake_lib = scripted
    receiver = Receiving(fake_ffi, fake_lib, sock)
    xsk = fake_ffi.new("struct ub_xsk *")
    for name, value in {"call": lib.UB_RECEIVE_AF_XDP, "xsk": xsk, "wait": 2}.items():
        setattr(receiver.config, name, value)
    fake_lib.fake_memory(allocations)
    result = fake_lib.ub_receive(receiver.config, receiver.stats[0])
    fake_lib.fake_memory(2**32 - 1)
    assert -errno.ENOMEM == result
