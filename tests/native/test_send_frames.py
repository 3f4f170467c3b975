"""Sending frames by AF_XDP: over a kernel of our own, whose rings are this test's."""

from __future__ import annotations

import errno
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from loops import SECOND_NS, TAG, Sending, change, guards, refusal, sending_socket
from test_relay import COUNT, HARMS, SIZE_BYTES, Harm, arrived

from udpbench._native import ffi, lib
from udpbench.agent.host.frames import headers, ones_complement, packed_addresses

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
ADDRESSES = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
HEADER_BYTES = {4: 42, 6: 62}
FRAMES = lib.UB_XSK_FRAMES
NONE = 2**64 - 1
BUDGET = 32
"""Frames of a call before Linux 6.17."""


@dataclass(frozen=True)
class Step:
    """What the kernel does at one call: frames it takes, drops of the last, completes; its errno.

    None: all that there are.
    """

    error: int = 0
    takes: int | None = None
    completes: int | None = None


ALL = Step()


class Queue:
    """A TX queue as ``__xsk_generic_xmit`` serves it (net/xdp/xsk.c), and the frames it took."""

    def __init__(
        self,
        scripted: tuple[Any, Any],
        steps: Sequence[Step] = (),
        *,
        flows: int = 1,
        family: int = 4,
        size_bytes: int = 32,
        repeat: bool = False,
        first_port: int = 1000,
        **more: Any,
    ) -> None:
        fake_ffi, fake_lib = scripted
        self.steps, self.repeat, self.calls = list(steps), repeat, 0
        self.frames: list[bytes] = []
        self.invalid = 0
        self.taken: list[tuple[int, bytes]] = []
        self.taken_index = 0
        stride = 64
        while stride < HEADER_BYTES[family] + size_bytes:
            stride *= 2
        self.memory = fake_ffi.new("uint8_t[]", FRAMES * stride)
        new = fake_ffi.new
        self.send = [new("uint32_t[1]"), new("uint32_t[1]"), new("uint32_t[1]", [1])]
        self.completion = [new("uint32_t[1]"), new("uint32_t[1]"), new("uint32_t[1]")]
        self.descriptors = new("uint64_t[]", 2 * FRAMES)
        self.completed = new("uint64_t[]", FRAMES)
        self.xsk = new("struct ub_xsk *", {"stride_bytes": stride, "memory": self.memory})
        for ring, (producer, consumer, flags), entries in (
            (self.xsk.send, self.send, self.descriptors),
            (self.xsk.completion, self.completion, self.completed),
        ):
            ring.producer, ring.consumer, ring.flags = producer, consumer, flags
            ring.entries = entries
        self.callback = fake_ffi.callback("int(void)", self.call)
        fake_lib.fake_kick(self.callback)
        own = [
            headers(MACS, ADDRESSES[family], (first_port + flow, 4321), size_bytes, 1)
            for flow in range(flows)
        ]
        sockets = [sending_socket(("127.0.0.1", 9)) for _ in range(flows)]
        self.sender = Sending(fake_ffi, fake_lib, sockets, list(range(flows)), **more)
        self.headers = new("uint8_t[]", b"".join(own))
        self.values = {"call": lib.UB_SEND_AF_XDP, "xsk": self.xsk, "headers": self.headers}
        self.values |= {"header_bytes": HEADER_BYTES[family], "sizes": [size_bytes]}

    def run(self, **changes: Any) -> dict[str, int]:
        """Send, and return the counts."""
        return self.sender.run(**self.values, **changes)

    def call(self) -> int:
        """Serve one call; 0 or -errno."""
        step = self.steps[min(self.calls, len(self.steps) - 1)] if self.steps else ALL
        if not self.repeat and self.calls >= len(self.steps):
            step = ALL
        self.calls += 1
        producer, consumer = self.send[0][0], self.send[1]
        if self.taken_index == producer:
            consumer[0] = producer  # xskq_cons_peek_desc tells what was taken before
        takes = 2**32 if step.takes is None else step.takes
        took = 0
        while took < takes and self.taken_index != producer:
            took += self._take()
        # After a drop the kernel leaves at once, and tells what it took only if some were sent.
        if took > (step.error == errno.EBUSY) or (step.error == 0 and took == 0):
            consumer[0] = self.taken_index
        completes = len(self.taken) if step.completes is None else step.completes
        for address, frame in self.taken[:completes]:
            assert frame == self._bytes(address, len(frame)), "filled before its completion"
            place = self.completion[0][0]
            self.completed[place % FRAMES] = address
            self.completion[0][0] = (place + 1) % 2**32
        self.taken = self.taken[completes:]
        return -step.error

    def _take(self) -> int:
        """Take a frame; 0 of a descriptor that is not valid."""
        place = self.taken_index % FRAMES
        self.taken_index = (self.taken_index + 1) % 2**32
        address, length = self.descriptors[2 * place], self.descriptors[2 * place + 1]
        if address == NONE:
            self.invalid += 1
            return 0
        frame = self._bytes(address, length)
        self.frames.append(frame)
        self.taken.append((address, frame))
        return 1

    def _bytes(self, address: int, length: int) -> bytes:
        return bytes(self.memory[address : address + length])


def numbers(frames: Sequence[bytes], flow: int = 0, head: int = 42) -> list[int]:
    """Return the sequence numbers of a flow's frames, in their order."""
    own = [frame[head:] for frame in frames]
    return [
        int.from_bytes(payload[6:12], "big")
        for payload in own
        if int.from_bytes(payload[4:6], "big") == flow
    ]


# --- what is on the wire -------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 17, 18, 19, 32, 1471, 4000])
@pytest.mark.parametrize("family", [4, 6])
def test_every_frame_is_whole(scripted: tuple[Any, Any], family: int, size_bytes: int) -> None:
    """Headers, payload and UDP checksum are right, for any size and over several flows."""
    queue = Queue(scripted, family=family, size_bytes=size_bytes, flows=3)
    stats = queue.run(count=100, batch=7)
    assert (100, 100, 100 * size_bytes) == (
        len(queue.frames),
        stats["sent_packets"],
        stats["sent_bytes"],
    )
    head = HEADER_BYTES[family]
    for frame in queue.frames:
        flow = struct.unpack("!H", frame[head - 8 : head - 6])[0] - 1000
        expected = headers(MACS, ADDRESSES[family], (1000 + flow, 4321), size_bytes, 1)
        assert expected[:-2] == frame[: head - 2]
        udp = frame[head - 8 :]
        pseudo = packed_addresses(*ADDRESSES[family]) + struct.pack("!HH", 17, len(udp))
        assert (0, True) == (ones_complement(pseudo + udp), udp[6:8] != bytes(2))
        pattern = bytes((at ^ at >> 8) & 0xFF for at in range(size_bytes))
        header_bytes = 18 if size_bytes >= 18 else 0
        assert pattern[header_bytes:] == udp[8 + header_bytes :]
        if header_bytes:
            assert (TAG, flow) == struct.unpack("!IH", udp[8:14])
    if size_bytes >= 18:
        expected_numbers = [list(range(34)), list(range(33)), list(range(33))]
        assert expected_numbers == [numbers(queue.frames, flow, head) for flow in range(3)]


def test_a_checksum_of_zero_is_written_as_its_other_zero(scripted: tuple[Any, Any]) -> None:
    """From the port that makes the sum 0, which would mean: no checksum (RFC 768)."""
    udp = struct.pack("!HHHH", 0, 4321, 8, 0)
    pseudo = packed_addresses(*ADDRESSES[4]) + struct.pack("!HH", 17, len(udp))
    queue = Queue(scripted, size_bytes=0, first_port=ones_complement(pseudo + udp))
    queue.run(count=1)
    assert b"\xff\xff" == queue.frames[0][40:42]


# --- conservation --------------------------------------------------------------------------------

ERRORS = {
    # xsk_sendmsg, __xsk_generic_xmit, xsk_build_skb and sock_alloc_send_pskb of Linux 6.18.
    errno.EAGAIN: "the budget of a call, a full completion ring, NETDEV_TX_BUSY, SO_SNDBUF",
    errno.EBUSY: "NET_XMIT_DROP: completed and not sent",
    errno.ENOBUFS: "no TX ring, no memory for an skb",
    errno.ENOMEM: "no page for a frame's fragment",
    errno.ENETDOWN: "the interface is down",
    errno.ENXIO: "the socket is bound no more: its device is gone",
    errno.EINTR: "a signal",
    errno.EFAULT: "a frame that cannot be copied",
    errno.EINVAL: "a driver's ndo_xsk_wakeup",
    errno.EOPNOTSUPP: "a call that would block",
    errno.EACCES: "security_socket_sendmsg",
}
TAKEN = (errno.EAGAIN, errno.EBUSY)
"""Errors of calls that may have taken frames."""


def closed(queue: Queue, stats: dict[str, int], flows: int = 1) -> None:
    """Assert that sent is what the kernel took, each number once and in order."""
    assert len(queue.frames) == stats["sent_packets"] == stats["attempted_packets"]
    expected = [list(range(queue.sender.next[flow])) for flow in range(flows)]
    assert expected == [numbers(queue.frames, flow) for flow in range(flows)]


@pytest.mark.parametrize("number", ERRORS, ids=[errno.errorcode[number] for number in ERRORS])
def test_no_error_loses_or_makes_up_a_frame(scripted: tuple[Any, Any], number: int) -> None:
    """Wherever an error comes in, and whatever was taken before it, all of a count is sent once."""
    takes = (0, 1, 7, 64) if number in TAKEN else (0,)
    steps = [Step(number, max(took, number == errno.EBUSY)) for took in takes for _ in range(3)]
    queue = Queue(scripted, [ALL, *steps, Step(takes=5), *steps], flows=2)
    stats = queue.run(count=1000, batch=64)
    closed(queue, stats, flows=2)
    times = 2 * len(steps)
    assert 1000 == stats["sent_packets"]
    assert (times if number == errno.EBUSY else 0) == stats["ebusy"]
    refused = number not in (*TAKEN, errno.ENOBUFS, errno.EINTR)
    assert (times, number) == (stats["refused_calls"], stats["last_errno"]) if refused else True
    assert (0 if refused else stats["refused_calls"]) == 0


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENETDOWN, errno.ENXIO])
def test_what_the_kernel_never_took_is_not_sent(scripted: tuple[Any, Any], number: int) -> None:
    """An error that lasts leaves frames unsent, and none of them comes in a later phase."""
    steps = [Step(takes=10), Step(number, 0)]
    queue = Queue(scripted, steps, repeat=True, duration_ns=SECOND_NS // 50)
    stats = queue.run(count=1000, batch=64)
    assert (10, 10) == (stats["sent_packets"], queue.sender.next[0])
    closed(queue, stats)
    queue.steps = [ALL]
    again = queue.run(count=100, batch=64, end_ns=time.monotonic_ns() + 5 * SECOND_NS)
    assert 110 == again["sent_packets"] == len(queue.frames)
    assert list(range(110)) == numbers(queue.frames)
    assert queue.invalid > 0


def test_a_device_that_drops_everything_has_taken_everything(scripted: tuple[Any, Any]) -> None:
    """The kernel tells of no frame that it took, and completes each: all are sent, and dropped."""
    queue = Queue(scripted, [Step(errno.EBUSY, 1)], repeat=True, duration_ns=SECOND_NS // 50)
    stats = queue.run(count=50, batch=64)
    closed(queue, stats)
    assert (50, 50) == (stats["sent_packets"], stats["ebusy"])


def test_no_frame_is_filled_before_its_completion(scripted: tuple[Any, Any]) -> None:
    """Completions that come late, and few at once, hold the loop and change no frame."""
    chance = random.Random(7)
    steps = [
        Step(chance.choice((0, errno.EAGAIN)), BUDGET, chance.choice((0, 0, 1, 3, 50)))
        for _ in range(400)
    ]
    queue = Queue(scripted, steps, flows=3)
    stats = queue.run(count=5000, batch=100)
    closed(queue, stats, flows=3)
    assert (5000, 0, 0) == (stats["sent_packets"], queue.xsk.in_flight, len(queue.taken))


def test_frames_that_never_complete_end_with_the_time(scripted: tuple[Any, Any]) -> None:
    """A full ring of frames on their way holds the loop until its end, and a second more."""
    queue = Queue(scripted, [Step(completes=0)], repeat=True, duration_ns=SECOND_NS // 2)
    began = time.monotonic()
    stats = queue.run(batch=64)
    closed(queue, stats)
    assert stats["sent_packets"] == queue.xsk.in_flight
    assert FRAMES - 2 * 64 <= queue.xsk.in_flight <= FRAMES
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("pace_sleeps", [0, 1])
def test_frames_are_paced_as_messages_are(scripted: tuple[Any, Any], pace_sleeps: int) -> None:
    """A tenth of a second at 10,000 a second is 1,000 frames, also by budgets of a call."""
    queue = Queue(scripted, [Step(errno.EAGAIN, BUDGET)], repeat=True, duration_ns=SECOND_NS // 10)
    stats = queue.run(rate_pps=10_000, bucket_ns=SECOND_NS, pace_sleeps=pace_sleeps)
    closed(queue, stats)
    assert 1000 == stats["sent_packets"] + stats["stalled_packets"]
    assert stats["stalled_packets"] == 0


def test_a_driver_that_wants_no_calls_gets_none(scripted: tuple[Any, Any]) -> None:
    """Without XDP_RING_NEED_WAKEUP the driver looks at the ring by itself."""
    queue = Queue(scripted, duration_ns=SECOND_NS // 50)
    queue.send[2][0] = 0
    stats = queue.run(count=10)
    assert (0, 0) == (queue.calls, stats["sent_packets"])


@pytest.mark.parametrize(("harm", "expected"), HARMS.values(), ids=HARMS.keys())
def test_harm_to_frames_is_counted_exactly(
    scripted: tuple[Any, Any], harm: Harm, expected: dict[str, int]
) -> None:
    """Loss, duplicates, reordering and foreign datagrams are counted as those of other ways are."""
    steps = [Step(errno.EAGAIN, BUDGET), Step(takes=7), Step(errno.ENETDOWN, 0)] * 5
    queue = Queue(scripted, steps, size_bytes=SIZE_BYTES)
    queue.run(count=COUNT)
    datagrams = [frame[HEADER_BYTES[4] :] for frame in queue.frames]
    assert expected == arrived(harm(datagrams), read=lib.UB_READ_VERIFY)


# --- guards --------------------------------------------------------------------------------------


def test_every_guard_of_frames_names_its_field(scripted: tuple[Any, Any]) -> None:
    """All that frames cannot be is refused, and says of which field."""
    fake_ffi, fake_lib = scripted
    queue = Queue(scripted)
    change(fake_ffi, queue.sender.config, queue.values)
    bad: list[dict[str, Any]] = [
        {"xsk": fake_ffi.NULL},
        {"headers": fake_ffi.NULL},
        {"header_bytes": 43},
        {"sizes": [128 - 42 + 1]},
        {"gso_segments": 2},
        {"zerocopy": 1},
        {"sizes": [32, 32]},
        {"sizes": [b"own"]},
    ]
    config, check = queue.sender.config, fake_lib.ub_send_check
    assert "" == refusal(fake_ffi, check, config, {"sizes": [128 - 42]})
    assert guards("xsk_send.c") == {refusal(fake_ffi, check, config, each) for each in bad}


@pytest.mark.parametrize("allocations", range(4))
def test_too_little_memory_for_frames(scripted: tuple[Any, Any], allocations: int) -> None:
    """Where any of the buffers cannot be had nothing is sent."""
    queue = Queue(scripted)
    scripted[1].fake_memory(allocations)
    result = queue.sender.result(count=1, **queue.values)
    scripted[1].fake_memory(2**32 - 1)
    assert (-errno.ENOMEM, 0) == (result, queue.calls)


def test_a_socket_that_is_none_is_not_opened() -> None:
    """What the kernel refuses is returned, and nothing stays mapped."""
    xsk = ffi.new("struct ub_xsk *")
    assert -errno.EMSGSIZE == lib.ub_xsk_open(xsk, -1, 1, 0, lib.UB_XSK_FRAME_BYTES_MAX + 1, 0)
    assert -errno.EBADF == lib.ub_xsk_open(xsk, -1, 1, 0, 74, 0)
    assert (-1, ffi.NULL) == (xsk.socket, xsk.memory)
