"""The log of a receiver: its ring, its files, and what becomes of what the disk does not take."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loops import (
    SECOND_NS,
    Receiving,
    counts,
    datagram,
    guards,
    receiving_socket,
    refusal,
)
from waiting import wait_until

from udpbench._native import ffi, lib

HEAD = struct.Struct("=8sQQ")
FRAME = struct.Struct("=QII")


@dataclass
class Logging:
    """One ring with its writer in a thread."""

    path: Path
    ring_bytes: int = 1 << 16
    max_file_bytes: int = 1 << 20
    keep: int = 2
    drain_ns: int = SECOND_NS
    pipes_of: int = field(default_factory=os.geteuid)
    results: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ring = ffi.new("uint8_t[]", self.ring_bytes)
        self.log = ffi.new("struct ub_log *", {"ring": self.ring, "ring_bytes": self.ring_bytes})
        self.ended = ffi.new("struct ub_control *")
        self.stats = ffi.new("struct ub_log_stats *")
        self.name = ffi.new("char[]", os.fsencode(self.path.name))
        self.folder = os.open(self.path.parent, os.O_RDONLY)
        values = {"log": self.log, "name": self.name, "max_file_bytes": self.max_file_bytes}
        values |= {"folder": self.folder, "pipes_of": self.pipes_of}
        values |= {"keep": self.keep, "drain_ns": self.drain_ns, "ended": self.ended}
        self.config = ffi.new("struct ub_log_config *", values)
        self.thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        self.results.append(lib.ub_log_write(self.config, self.stats))

    def finish(self) -> dict[str, int]:
        """Tell the writer that the loop has left, and return its counts."""
        self.ended.stop = 1
        self.thread.join(20)
        assert not self.thread.is_alive()
        os.close(self.folder)
        return counts(ffi, self.stats)


def frames(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (arrival, bytes) of every frame of a file, which must end with a whole one."""
    raw = file.read_bytes()
    magic, monotonic_ns, realtime_ns = HEAD.unpack_from(raw)
    assert magic == b"UBLOG1\0\0"
    assert abs(realtime_ns - monotonic_ns - (time.time_ns() - time.monotonic_ns())) < SECOND_NS
    at = HEAD.size
    while at < len(raw):
        arrived_ns, length, size = FRAME.unpack_from(raw, at)
        at += FRAME.size + size
        assert (length, True) == (size, at <= len(raw))
        yield arrived_ns, raw[at - size : at]


def received(logging: Logging, datagrams: list[bytes], **changes: Any) -> dict[str, int]:
    """Let a receiving loop put datagrams into the ring; its counts."""
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        size = len(datagrams[0])
        return receiver.receive(
            datagrams, log=logging.log, sizes=[size], epoch_ns=time.monotonic_ns(), **changes
        )


@pytest.mark.parametrize("read", [lib.UB_READ_HEADER, lib.UB_READ_COPY])
def test_every_datagram_is_written_with_its_time(tmp_path: Path, read: int) -> None:
    """The file holds what arrived, byte for byte and in order, with rising times."""
    logging = Logging(tmp_path / "log")
    logging.thread.start()
    datagrams = [datagram(number) for number in range(500)]
    began_ns = time.monotonic_ns()
    stats = received(logging, datagrams, read=read)
    summary = logging.finish()
    logged = list(frames(tmp_path / "log.0"))
    assert datagrams == [each for _, each in logged]
    times = [arrived_ns for arrived_ns, _ in logged]
    assert sorted(times) == times
    assert began_ns <= times[0]
    assert (500, 0, 500) == (
        stats["received_packets"],
        stats["unlogged_packets"],
        summary["logged_packets"],
    )
    assert (times[0], times[-1]) == (summary["log_first_ns"], summary["log_last_ns"])
    assert times.count(times[0]) == summary["log_first_packets"] < 500
    assert (tmp_path / "log.0").stat().st_size == summary["logged_bytes"]
    assert [0] == logging.results


def test_strangers_are_not_logged(tmp_path: Path) -> None:
    """What is not of the phase is not in the log."""
    logging = Logging(tmp_path / "log")
    logging.thread.start()
    received(logging, [datagram(0), datagram(1, tag=7), datagram(2)])
    assert logging.finish()["logged_packets"] == 2


def test_a_full_ring_costs_datagrams_and_no_time(tmp_path: Path) -> None:
    """Without a writer the ring fills, the rest is counted, and the loop goes on."""
    logging = Logging(tmp_path / "log", ring_bytes=1 << 10)
    stats = received(logging, [datagram(number) for number in range(100)])
    fit = (1 << 10) // (FRAME.size + 32)
    assert (100, 100 - fit) == (stats["received_packets"], stats["unlogged_packets"])
    logging.thread.start()
    assert logging.finish()["logged_packets"] == fit


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    """A file ends before the frame that would exceed its size, and so many are kept."""
    size = HEAD.size + 10 * (FRAME.size + 32)
    logging = Logging(tmp_path / "log", max_file_bytes=size, keep=3)
    logging.thread.start()
    received(logging, [datagram(number) for number in range(95)])
    summary = logging.finish()
    kept = sorted(tmp_path.iterdir())
    assert ["log.7", "log.8", "log.9"] == [file.name for file in kept]
    assert (95, 10) == (summary["logged_packets"], summary["log_files"])
    assert [size, size] == [file.stat().st_size for file in kept[:2]]
    assert [datagram(number) for number in range(70, 95)] == [
        each for file in kept for _, each in frames(file)
    ]


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """Somebody's file is not written over, nor one behind a link."""
    (tmp_path / "log.0").write_text("mine")
    (tmp_path / "other.0").symlink_to(tmp_path / "log.0")
    for name, expected in (("log", errno.EEXIST), ("other", errno.ELOOP)):
        logging = Logging(tmp_path / name)
        logging.thread.start()
        logging.finish()
        assert [-expected] == logging.results
    assert (tmp_path / "log.0").read_text() == "mine"


def test_no_folder(tmp_path: Path) -> None:
    """One that has gone is told at once."""
    (tmp_path / "none").mkdir()
    logging = Logging(tmp_path / "none" / "log")
    (tmp_path / "none").rmdir()
    logging.thread.start()
    logging.finish()
    assert [-errno.ENOENT] == logging.results


def test_a_name_that_is_too_long() -> None:
    """A path that leaves no room for a number is refused."""
    logging = Logging(Path("/" + "x" * 4094))
    logging.thread.start()
    logging.finish()
    assert [-errno.ENAMETOOLONG] == logging.results


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize(("pipes_of", "result"), [(0, -errno.EEXIST), (54321, 0)])
def test_only_a_pipe_of_ones_own_is_written_to(tmp_path: Path, pipes_of: int, result: int) -> None:
    """The caller's own folder, too; another user's would be handed every datagram."""
    os.mkfifo(tmp_path / "log.0")
    os.chown(tmp_path / "log.0", 54321, -1)
    reading = os.open(tmp_path / "log.0", os.O_RDONLY | os.O_NONBLOCK)
    logging = Logging(tmp_path / "log", pipes_of=pipes_of)
    logging.thread.start()
    logging.finish()
    os.close(reading)
    assert [result] == logging.results


def test_files_stay_in_the_folder_that_was_opened(tmp_path: Path) -> None:
    """Whatever its path leads to when the writer comes to make one."""
    (tmp_path / "a").mkdir()
    logging = Logging(tmp_path / "a" / "log")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    logging.thread.start()
    logging.finish()
    assert (["log.0"], []) == tuple(
        [file.name for file in (tmp_path / name).iterdir()] for name in ("b", "a")
    )


def test_a_pipe_that_nobody_empties_is_given_up(tmp_path: Path) -> None:
    """A slow disk: what it does not take is counted, to the last datagram, within its time."""
    os.mkfifo(tmp_path / "log.0")
    reading = os.open(tmp_path / "log.0", os.O_RDONLY | os.O_NONBLOCK)
    logging = Logging(tmp_path / "log", ring_bytes=1 << 19, drain_ns=SECOND_NS // 20)
    logging.thread.start()
    try:
        stats = received(logging, [datagram(number) for number in range(4000)])
        summary = logging.finish()
        raw = os.read(reading, 1 << 20)
    finally:
        os.close(reading)
    whole = (len(raw) - HEAD.size) // (FRAME.size + 32)
    assert (4000, 0) == (stats["received_packets"], stats["unlogged_packets"])
    assert (whole, 4000 - whole) == (summary["logged_packets"], summary["failed_packets"])
    assert 0 < whole < 4000
    assert (0, 0) == (summary["log_errors"], logging.results[0])


def test_a_pipe_that_is_emptied_slowly_gets_all(tmp_path: Path) -> None:
    """A writer that has to wait for a pipe goes on where it stopped."""
    os.mkfifo(tmp_path / "log.0")
    reading = os.open(tmp_path / "log.0", os.O_RDONLY | os.O_NONBLOCK)
    logging = Logging(tmp_path / "log", ring_bytes=1 << 18, drain_ns=20 * SECOND_NS)
    logging.thread.start()
    try:
        received(logging, [datagram(number) for number in range(3000)])
        logging.ended.stop = 1
        raw = bytearray()
        whole = HEAD.size + 3000 * (FRAME.size + 32)
        wait_until("all bytes", lambda: emptied(reading, raw) == whole)
    finally:
        os.close(reading)
    assert logging.finish()["logged_packets"] == 3000
    assert datagram(2999) == raw[-32:]


def emptied(reading: int, into: bytearray) -> int:
    """Take a little out of a pipe; return the bytes so far."""
    with contextlib.suppress(BlockingIOError):
        into += os.read(reading, 4096)
    return len(into)


def test_a_disk_that_is_full_costs_datagrams_and_tears_none(tmp_path: Path) -> None:
    """A file that must not grow ends with a whole frame; the errno is kept; nothing is lost."""
    logging = Logging(tmp_path / "log")
    limit = HEAD.size + 10 * (FRAME.size + 32) + 20
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        logging.thread.start()
        received(logging, [datagram(number) for number in range(50)])
        summary = logging.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert summary["logged_packets"] + summary["failed_packets"] == 50
    assert len(list(frames(tmp_path / "log.0"))) == summary["logged_packets"] == 10
    assert summary["log_last_errno"] == errno.EFBIG
    assert summary["log_errors"] >= 1


def test_a_next_file_without_room_for_its_head_is_none(tmp_path: Path) -> None:
    """A full disk leaves the files that are kept; the number is used where there is room again."""
    logging = Logging(tmp_path / "log", max_file_bytes=HEAD.size + 10 * (FRAME.size + 32))
    logging.thread.start()
    received(logging, [datagram(number) for number in range(20)])
    wait_until("two files", lambda: logging.stats.logged_packets == 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEAD.size - 1, before[1]))
    try:
        for first in (20, 25):
            received(logging, [datagram(number) for number in range(first, first + 5)])
            wait_until("tried", lambda: logging.stats.failed_packets == first - 15)  # noqa: B023
        there = sorted(file.name for file in tmp_path.iterdir())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    received(logging, [datagram(number) for number in range(30, 35)])
    summary = logging.finish()
    assert ["log.0", "log.1"] == there
    assert ["log.1", "log.2"] == sorted(file.name for file in tmp_path.iterdir())
    assert [datagram(number) for number in range(30, 35)] == [
        each for _, each in frames(tmp_path / "log.2")
    ]
    assert (25, 10, 3) == (
        summary["logged_packets"],
        summary["failed_packets"],
        summary["log_files"],
    )
    assert summary["logged_bytes"] == 3 * HEAD.size + 25 * (FRAME.size + 32)
    assert summary["log_last_errno"] == errno.EFBIG


def test_a_pipe_that_does_not_take_the_head_stays(tmp_path: Path) -> None:
    """Somebody's pipe is not removed, however full it is."""
    os.mkfifo(tmp_path / "log.0")
    reading = os.open(tmp_path / "log.0", os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(reading, bytes(4096)):
            pass
    logging = Logging(tmp_path / "log", drain_ns=1)
    try:
        logging.thread.start()
        summary = logging.finish()
    finally:
        os.close(reading)
    assert [-errno.EAGAIN] == logging.results
    assert 0 == summary["log_files"]
    assert ["log.0"] == [file.name for file in tmp_path.iterdir()]


def test_a_next_file_that_cannot_be_opened_costs_its_datagrams(tmp_path: Path) -> None:
    """A rotation that fails is told, and what it costs is counted."""
    (tmp_path / "log.1").mkdir()
    logging = Logging(tmp_path / "log", max_file_bytes=HEAD.size + 10 * (FRAME.size + 32))
    logging.thread.start()
    received(logging, [datagram(number) for number in range(30)])
    summary = logging.finish()
    assert (10, 20) == (summary["logged_packets"], summary["failed_packets"])
    assert summary["log_last_errno"] == errno.EISDIR
    assert [0] == logging.results


ABSENT: list[dict[str, Any]] = [
    {"log": ffi.NULL},
    {"name": ffi.NULL},
    {"ended": ffi.NULL},
    {"keep": 0},
    {"max_file_bytes": 24},
]


def test_every_guard_names_its_field(tmp_path: Path) -> None:
    """All that C may refuse is refused here, and says of which field."""
    logging = Logging(tmp_path / "log")
    refused = [refusal(ffi, lib.ub_log_write_check, logging.config, change) for change in ABSENT]
    assert [text.partition(":")[0] for text in refused] == [name for (name,) in ABSENT]
    refused.append(refusal(ffi, lib.ub_log_write_check, ffi.NULL, {}))
    assert guards("log.c") == set(refused)


@pytest.mark.parametrize("change", ABSENT)
def test_a_writer_without_what_it_needs(tmp_path: Path, change: dict[str, Any]) -> None:
    """A config that makes no sense is refused before a file is opened."""
    logging = Logging(tmp_path / "log")
    for name, value in change.items():
        setattr(logging.config, name, value)
    assert lib.ub_log_write(logging.config, logging.stats) == -errno.EINVAL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ring_bytes", [0, 3, 2**31])
def test_a_ring_of_no_size(tmp_path: Path, ring_bytes: int) -> None:
    """A ring is a power of two and not endless, for the loop as for the writer."""
    logging = Logging(tmp_path / "log")
    logging.log.ring_bytes = ring_bytes
    assert lib.ub_log_write(logging.config, logging.stats) == -errno.EINVAL
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.config.log = logging.log
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL


def test_nothing_copied_is_nothing_to_log(tmp_path: Path) -> None:
    """With read: none there is nothing that a log could hold."""
    logging = Logging(tmp_path / "log")
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock)
        receiver.config.log, receiver.config.read = logging.log, lib.UB_READ_NONE
        assert lib.ub_receive(receiver.config, receiver.stats[0]) == -errno.EINVAL
