"""The sequence window against plain models of it, and under threads that share it."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import TAG, Receiving, datagram, guards, receiving_socket

from udpbench._native import ffi, lib

NEW, LATE, DUPLICATE, ANCIENT = range(4)
HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"


class Window:
    """A flow's window in zeroed memory."""

    def __init__(self, words: int, flow_count: int = 1) -> None:
        self.words = words
        self.memory = ffi.new("uint8_t[]", lib.ub_flow_state_bytes(flow_count, words))
        self.flows = ffi.cast("struct ub_flow_state *", self.memory)

    def add(self, sequence: int, flow: int = 0) -> int:
        """Note one sequence number; 0 new, 1 late, 2 duplicate, 3 ancient."""
        return lib.ub_window_add(self.flows, self.words, flow, sequence)

    def totals(self, flow: int = 0) -> tuple[int, int]:
        """Return distinct packets, and the highest plus 1."""
        totals = ffi.new("struct ub_flow_totals *")
        lib.ub_flow_totals_read(self.flows, self.words, flow, totals)
        return totals.packets, totals.highest


class Model:
    """The same in plain Python, over numbers that never wrap."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.laps: dict[int, tuple[int, set[int]]] = {}
        self.highest: int | None = None

    def add(self, position: int) -> int:
        """Say what the window must say of the packet at this position of the flow."""
        lap, place = divmod(position // 32, self.words)
        held, seen = self.laps.get(place, (lap, set()))
        if lap < held:
            return ANCIENT
        if lap == held and position in seen:
            return DUPLICATE
        self.laps[place] = (lap, seen | {position} if lap == held else {position})
        late = self.highest is not None and position < self.highest
        self.highest = position if self.highest is None else max(position, self.highest)
        return LATE if late else NEW


@st.composite
def walks(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Return a window's words and positions that wander on, step back, repeat and leap."""
    words = draw(st.sampled_from([1, 2, 4, 64, 2048, 4096]))
    leap = words * 32 * draw(st.sampled_from([1, 3, 1000]))
    steps = st.one_of(
        st.integers(-3, 5),
        st.integers(-40, 70),
        st.integers(-words * 40, words * 40),
        st.sampled_from([leap, leap - 1, leap + 1, 0]),
    )
    start = draw(st.sampled_from([0, 10, 2**40, 2**47, 2**48 - 50, 2**48 - 1]))
    positions = [start]
    for step in draw(st.lists(steps, max_size=60)):
        positions.append(max(0, positions[-1] + step))
    return words, positions


@settings(max_examples=400)
@given(walks())
def test_window_does_as_its_model(walk: tuple[int, list[int]]) -> None:
    """Every answer is the model's, from any start and over the 48-bit wrap."""
    words, positions = walk
    window, model = Window(words), Model(words)
    expected = [model.add(position) for position in positions]
    assert expected == [window.add(position % 2**48) for position in positions]
    packets = sum(answer in (NEW, LATE) for answer in expected)
    assert window.totals() == (packets, max(positions) + 1)


@settings(max_examples=300)
@given(walks())
def test_window_never_lies(walk: tuple[int, list[int]]) -> None:
    """New is new and a duplicate one; ancient is only said below the last whole window."""
    words, positions = walk
    window = Window(words)
    seen: set[int] = set()
    for position in positions:
        answer = window.add(position % 2**48)
        if answer in (NEW, LATE):
            assert position not in seen
        elif answer == DUPLICATE:
            assert position in seen
        else:
            assert position <= max(seen) - (words - 1) * 32
        seen.add(position)


@settings(max_examples=60)
@given(walks(), st.sampled_from([1, 7, 64]))
def test_batches_count_as_single_datagrams_do(walk: tuple[int, list[int]], batch: int) -> None:
    """Runs merged within a batch come to the same counts as one number after the other."""
    words, positions = walk
    model = Model(words)
    answers = [model.add(position) for position in positions]
    with receiving_socket() as sock:
        receiver = Receiving(ffi, lib, sock, words=words)
        stats = receiver.receive([datagram(each % 2**48) for each in positions], batch=batch)
    expected = {
        "received_packets": answers.count(NEW) + answers.count(LATE),
        "late_packets": answers.count(LATE),
        "duplicate_packets": answers.count(DUPLICATE),
        "ancient_packets": answers.count(ANCIENT),
    }
    assert expected == {name: stats[name] for name in expected}
    assert receiver.totals() == (expected["received_packets"], max(positions) + 1)


def test_zeroed_memory_is_an_empty_window() -> None:
    """In fresh memory any number is new, also one whose lap would be behind lap 0."""
    for sequence in (0, 31, 32, 2**47 + 1, 2**48 - 1):
        window = Window(4096)
        assert [NEW, DUPLICATE] == [window.add(sequence), window.add(sequence)]
        assert window.totals() == (1, sequence + 1)


def test_an_old_lap_is_ancient_not_duplicate() -> None:
    """A word that moved on a lap cannot tell late from duplicate, and says so."""
    window = Window(2)
    answers = [window.add(sequence) for sequence in (5, 64 + 5, 5, 6, 64 + 6, 64 + 5)]
    assert answers == [NEW, NEW, ANCIENT, ANCIENT, NEW, DUPLICATE]


def test_flows_do_not_touch() -> None:
    """The last word of one flow is not the first of the next."""
    window = Window(1, flow_count=3)
    assert [NEW] * 3 == [window.add(31, flow) for flow in range(3)]
    assert [window.totals(flow) for flow in range(3)] == [(1, 32)] * 3


@pytest.mark.parametrize(
    ("flows", "words", "expected"),
    [
        (1, 1, 128),
        (1, 8, 128),
        (3, 16, 3 * 192),
        (65536, 2**24, 65536 * (64 + 2**27)),
        (0, 8, 0),
        (65537, 8, 0),
        (1, 0, 0),
        (1, 3, 0),
        (1, 2**25, 0),
    ],
)
def test_memory_of_the_flows(flows: int, words: int, expected: int) -> None:
    """A flow takes one line of counts and whole lines of words; what makes no window takes 0."""
    assert expected == lib.ub_flow_state_bytes(flows, words)


def test_a_bad_window_is_refused() -> None:
    """No memory, or words that are no power of two, are refused, and the field is named."""
    window = Window(2)
    bad = [(ffi.NULL, 2), *((window.flows, words) for words in (0, 3, 2**25))]
    assert [-errno.EINVAL] * 4 == [lib.ub_window_add(*each, 0, 0) for each in bad]
    refused = {ffi.string(lib.ub_window_check(*each)).decode() for each in bad}
    assert guards("window.c") == refused
    assert ffi.NULL == lib.ub_window_check(window.flows, 2)


def test_threads_share_a_window_without_a_race(
    tmp_path: Path, strict_flags: list[str], plain_environment: dict[str, str]
) -> None:
    """Four threads note the same numbers at once: each counts once, and TSan sees no race."""
    program = tmp_path / "window_threads"
    sources = [str(HERE / "window_threads.c"), str(NATIVE / "receiver" / "window.c")]
    build = ["gcc", *strict_flags, "-fsanitize=thread", "-pthread", "-o", str(program), *sources]
    subprocess.run(build, check=True, env=plain_environment)
    # TSan of older compilers cannot live with today's address randomisation; setarch turns it off.
    run = subprocess.run(
        ["setarch", "--addr-no-randomize", str(program)],
        env=plain_environment,
        capture_output=True,
        text=True,
    )
    assert (0, "40000 new or late, 120000 duplicate, 0 ancient\n") == (run.returncode, run.stdout)
    assert run.stderr == ""


def test_tag_is_ours() -> None:
    """The tests' own datagrams are written as the header's definition says."""
    to = ffi.new("uint8_t[18]")
    lib.ub_header_write(to, TAG, 3, 77, 0)
    assert datagram(77, flow=3, size_bytes=18) == bytes(to)
