"""Lines of a pipe, however they come, and messages that are none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Optional

import pytest

from udpbench.agent.workers.orders import WorkerEvent, messages, send_message
from udpbench.json_lines import MOST_LINE_BYTES, LinePipe, LineTooLong
from udpbench.protocol import read_message


@pytest.fixture
def pipe() -> Iterator[tuple[LinePipe, int]]:
    """Yield a pipe of lines of at most 8 bytes, and where to write them."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0):
        yield LinePipe(reading, 8), writing


CASES: list[tuple[list[bytes], list[Optional[bytes]]]] = [
    ([b"one\ntwo\nthr", b"ee\n"], [b"one", b"two", b"three"]),
    ([b"x" * 9, b"y" * 9, b"z\nnext\n"], [None, b"next"]),
    ([b"x" * 9, b"\nnext\n"], [None, b"next"]),
    ([b"12345678\n123456789\n\n"], [b"12345678", None, b""]),
    ([], []),
]


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_lines_come_whole_or_are_reported_as_too_long(
    pipe: tuple[LinePipe, int], written: list[bytes], expected: list[Optional[bytes]]
) -> None:
    """A line beyond the limit is told once and skipped to its end; those around it are kept."""
    lines, writing = pipe
    results = []
    for chunk in written:
        os.write(writing, chunk)
        results += lines.read()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, writing)  # the end of the pipe
    os.close(null)
    assert [] == lines.read()
    assert expected == results
    assert lines.ended


def test_the_next_line_is_waited_for_until_a_deadline(pipe: tuple[LinePipe, int]) -> None:
    """What was read so far stays; at the end of the pipe it is a line, too."""
    lines, writing = pipe
    os.write(writing, b"one\ntw")
    assert b"one" == lines.next(time.monotonic_ns() + 10**10)
    assert b"tw" == lines.rest
    with pytest.raises(TimeoutError):
        lines.next(time.monotonic_ns() + 10**6)
    assert [] == lines.read(0)
    os.write(writing, b"o\n" + b"x" * 9 + b"\nend")
    assert b"two" == lines.next()
    with pytest.raises(LineTooLong, match="a line is longer than 8 B"):
        lines.next()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, writing)
    os.close(null)
    assert b"end" == lines.next()
    with pytest.raises(EOFError):
        lines.next()


def test_a_message_is_what_was_sent(pipe: tuple[LinePipe, int]) -> None:
    """With its numbers and names; after the last one the pipe has ended."""
    _, writing = pipe
    lines = LinePipe(pipe[0].fd)
    ended = WorkerEvent("ended", "right.receiver0", errno=5, counts={"read_packets": 7})
    send_message(writing, ended)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, writing)
    os.close(null)
    assert [ended] == list(messages(WorkerEvent, lines))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, f"longer than {MOST_LINE_BYTES} B"),
        (b"ready", "not JSON: b'ready'"),
        (b"[]", "WorkerEvent: expected an object, got list: b'[]'"),
        (b'{"event":"born"}', "WorkerEvent.event: 'born' is not one of "),
        (b'{"event":"died","status":"9"}', "WorkerEvent.status: expected int, got '9': "),
        (b'{"event":"died","age":9}', "WorkerEvent: unknown key 'age': "),
    ],
)
def test_another_message_is_refused_with_its_beginning(line: Optional[bytes], why: str) -> None:
    """By the same codec as a reply's."""
    with pytest.raises(ValueError, match="not a WorkerEvent") as caught:
        read_message(WorkerEvent, line)
    assert str(caught.value).startswith(f"not a WorkerEvent: {why}")
