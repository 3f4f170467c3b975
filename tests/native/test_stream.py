"""The TCP baseline: every byte written is read, and both ends say how many there were."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loops import SECOND_NS, TIMEOUT, Receiving, Sending, change, counts, guards, refusal
from waiting import wait_until

from udpbench._native import ffi, lib


@contextlib.contextmanager
def streams(count: int) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """Give connected streams over loopback: the writing ends and the reading ones."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        near, far = [], []
        for _ in range(count):
            near.append(opened.enter_context(socket.create_connection(listener.getsockname())))
            far.append(opened.enter_context(listener.accept()[0]))
        for each in near:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
        for each in far:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        yield near, far


class Reading(Receiving):
    """The receiving loop over streams."""

    def __init__(self, far: list[socket.socket], **changes: Any) -> None:
        super().__init__(ffi, lib, far[0])
        self.descriptors = ffi.new("int32_t[]", [each.fileno() for each in far])
        self.config.sockets, self.config.socket_count = self.descriptors, len(far)
        change(ffi, self.config, changes)

    def _loop(self, stats: Any) -> None:
        self.results.append(lib.ub_stream_receive(self.config, stats))


def writing(near: list[socket.socket], **changes: Any) -> tuple[int, dict[str, int]]:
    """Return what the sending loop returned, and its counts."""
    sender = Sending(ffi, lib, near, list(range(len(near))))
    change(ffi, sender.config, changes)
    result = lib.ub_stream_send(sender.config, sender.stats)
    return result, counts(ffi, sender.stats)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size_bytes", [1, 1000, 65535])
def test_every_byte_written_is_read(size_bytes: int, count: int) -> None:
    """Bytes agree at both ends, over one stream and over several."""
    with streams(count) as (near, far):
        reader = Reading(far, sizes=[size_bytes], room_bytes=65536)
        reader.start()
        result, sent = writing(near, sizes=[size_bytes], count=500)
        wait_until("all read", lambda: reader.stats[0].received_bytes == 500 * size_bytes)
        received = reader.stop()
    assert (result, sent["attempted_packets"], sent["sent_packets"]) == (0, 500, 500)
    assert sent["sent_bytes"] == received["received_bytes"] == 500 * size_bytes
    assert received["received_packets"] == 500
    assert received["wait_calls"] == 0 or count > 1


def test_a_full_stream_is_written_on_where_it_stopped() -> None:
    """A reader that begins late gets every byte in its order, whatever the writes were cut into."""
    with streams(1) as (near, far):
        sender = Sending(ffi, lib, near)
        change(ffi, sender.config, {"sizes": [65535], "count": 300})
        arguments = (sender.config, sender.stats)
        thread = threading.Thread(target=lib.ub_stream_send, args=arguments)
        thread.start()
        wait_until("a write cut off", lambda: sender.stats.partial_calls > 0)
        stream = bytearray()
        while len(stream) < 300 * 65535:
            part = read_when_there(far[0])
            assert part
            stream.extend(part)
        thread.join(20)
    assert (sender.stats.sent_packets, sender.stats.sent_bytes) == (300, 300 * 65535)
    pattern = bytes((at ^ at >> 8) & 255 for at in range(65535))
    assert bytes(stream) == pattern * 300


def test_nobody_reads() -> None:
    """A stream that takes no more is retried until the end, and what it took is counted."""
    with streams(1) as (near, far):
        result, sent = writing(near, sizes=[65535], end_ns=time.monotonic_ns() + SECOND_NS // 5)
        assert (result, sent["eagain"] > 0) == (0, True)
        far[0].setblocking(False)
        near[0].shutdown(socket.SHUT_WR)
        total = 0
        while part := read_when_there(far[0]):
            total += len(part)
    assert total == sent["sent_bytes"]
    assert sent["sent_packets"] == total // 65535


def read_when_there(sock: socket.socket) -> bytes:
    """Return the next bytes; none at the end of the stream."""
    sock.settimeout(20)
    return sock.recv(2**20)


def test_writes_are_paced() -> None:
    """The n-th write goes when it is due."""
    with streams(1) as (near, _):
        began_ns = time.monotonic_ns()
        _, sent = writing(near, count=201, rate_pps=2000, bucket_ns=SECOND_NS)
    assert (sent["sent_packets"], sent["stalled_packets"]) == (201, 0)
    assert time.monotonic_ns() - began_ns >= SECOND_NS // 10


@pytest.mark.parametrize(("rate_pps", "first"), [(0, 0), (20, 1)])
def test_what_came_with_the_first_stamps_of_a_stream(rate_pps: int, first: int) -> None:
    """A paced writer tells of its first write, a reader of its first read."""
    with streams(1) as (near, far):
        _, sent = writing(near, count=4, sizes=[100], rate_pps=rate_pps, bucket_ns=SECOND_NS)
        reader = Reading(far, sizes=[100], room_bytes=250)
        reader.start()
        wait_until("all read", lambda: reader.stats[0].received_bytes == 400)
        received = reader.stop()
    assert (4, first) == (sent["sent_packets"], sent["first_packets"])
    assert (4, 2, 250) == tuple(
        received[name] for name in ("received_packets", "first_packets", "first_bytes")
    )


def test_a_paced_stream_leaves_at_its_end() -> None:
    """Without debt the end is kept, and nothing is written before the start."""
    with streams(1) as (near, _):
        start_ns = time.monotonic_ns() + SECOND_NS // 20
        times = {"start_ns": start_ns, "end_ns": start_ns + SECOND_NS // 2}
        _, sent = writing(near, rate_pps=1, **times)
    assert (sent["sent_packets"], sent["first_ns"] >= start_ns) == (1, True)


def test_a_broken_stream_ends_the_writing_loop() -> None:
    """When the far end is gone the loop returns the kernel's error, without a signal."""
    with streams(1) as (near, far):
        far[0].close()
        result, _ = writing(near, sizes=[1000])
    assert result in (-errno.EPIPE, -errno.ECONNRESET)


@pytest.mark.parametrize("count", [1, 2])
def test_the_end_of_a_stream_ends_the_reading_loop(count: int) -> None:
    """The loop returns without an error when a far end was closed."""
    with streams(count) as (near, far):
        reader = Reading(far)
        reader.start()
        near[0].close()
        reader.threads[0].join(20)
        assert not reader.threads[0].is_alive()
        assert reader.stop()["received_bytes"] == 0


def test_a_reset_stream_ends_the_reading_loop() -> None:
    """A stream that was reset is an error."""
    with streams(1) as (near, far):
        near[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        near[0].close()
        reader = Reading(far)
        result = lib.ub_stream_receive(reader.config, reader.stats[0])
    assert result == -errno.ECONNRESET


BAD_SEND = {
    "no control": {"control": ffi.NULL},
    "no sockets": {"sockets": ffi.NULL},
    "writes of nothing": {"sizes": [0]},
    "writes beyond all": {"sizes": [65536]},
    "no flow": {"flow_count": 0},
    "too many flows": {"flow_count": 65537},
    "rate beyond reckoning": {"rate_pps": 10**9 + 1},
    "end at the start": {"start_ns": 5, "end_ns": 5},
}
BAD_RECEIVE = {
    "no control": {"control": ffi.NULL},
    "no sockets": {"sockets": ffi.NULL},
    "writes of nothing": {"sizes": [0]},
    "writes beyond all": {"sizes": [65536]},
    "no room": {"room_bytes": 0},
    "room beyond all": {"room_bytes": 65537},
    "no stream": {"socket_count": 0},
    "too many streams": {"socket_count": 65537},
}


def test_every_guard_names_its_field() -> None:
    """All that C may refuse is refused here, and says of which field."""
    with streams(1) as (near, far):
        writer, reader = Sending(ffi, lib, near), Reading(far)
        near[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
        far[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
        refused = {
            refusal(ffi, check, config, changes)
            for check, config, bad in (
                (lib.ub_stream_send_check, writer.config, BAD_SEND),
                (lib.ub_stream_receive_check, reader.config, BAD_RECEIVE),
            )
            for changes in ({}, *bad.values())
        }
        refused |= {refusal(ffi, lib.ub_stream_send_check, ffi.NULL, {})}
    assert guards("stream.c") == refused


@pytest.mark.parametrize("changes", BAD_SEND.values(), ids=BAD_SEND.keys())
def test_a_bad_config_for_writing_is_refused(changes: dict[str, Any]) -> None:
    """Each guard refuses with -EINVAL and writes nothing."""
    with streams(1) as (near, _):
        result, sent = writing(near, **changes)
    assert (result, sent["send_calls"]) == (-errno.EINVAL, 0)


@pytest.mark.parametrize("changes", BAD_RECEIVE.values(), ids=BAD_RECEIVE.keys())
def test_a_bad_config_for_reading_is_refused(changes: dict[str, Any]) -> None:
    """Each guard refuses with -EINVAL before anything is read."""
    with streams(1) as (_, far):
        reader = Reading(far)
        change(ffi, reader.config, changes)
        assert lib.ub_stream_receive(reader.config, reader.stats[0]) == -errno.EINVAL


def test_nothing_at_all_is_refused() -> None:
    """A missing config or stats struct is refused, not dereferenced."""
    with streams(1) as (near, far):
        sender, reader = Sending(ffi, lib, near), Reading(far)
        assert lib.ub_stream_send(ffi.NULL, sender.stats) == -errno.EINVAL
        assert lib.ub_stream_send(sender.config, ffi.NULL) == -errno.EINVAL
        assert lib.ub_stream_receive(ffi.NULL, reader.stats[0]) == -errno.EINVAL
        assert lib.ub_stream_receive(reader.config, ffi.NULL) == -errno.EINVAL


def test_a_stream_that_could_hang_is_refused() -> None:
    """A stream without a timeout could outlast stop, at either end."""
    with streams(1) as (near, far):
        near[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
        far[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
        assert writing(near)[0] == -errno.EINVAL
        reader = Reading(far)
        assert lib.ub_stream_receive(reader.config, reader.stats[0]) == -errno.EINVAL
    # Closed by now.
    check, config = lib.ub_stream_receive_check, reader.config
    assert "sockets: open ones, with SO_RCVTIMEO set" == refusal(ffi, check, config, {})


@pytest.mark.parametrize("allocations", range(2))
def test_too_little_memory_is_reported(scripted: tuple[Any, Any], allocations: int) -> None:
    """Where a buffer cannot be had both loops say so."""
    fake_ffi, fake_lib = scripted
    with streams(1) as (near, far):
        sender = Sending(fake_ffi, fake_lib, near)
        reader = Receiving(fake_ffi, fake_lib, far[0])
        descriptors = fake_ffi.new("int32_t[]", [far[0].fileno()])
        reader.config.sockets, reader.config.socket_count = descriptors, 1
        fake_lib.fake_memory(allocations)
        results = [fake_lib.ub_stream_send(sender.config, sender.stats)]
        fake_lib.fake_memory(allocations)
        results.append(fake_lib.ub_stream_receive(reader.config, reader.stats[0]))
        fake_lib.fake_memory(2**32 - 1)
    assert results == [-errno.ENOMEM] * 2
