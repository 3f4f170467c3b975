"""A connection that is lost and made anew: what is asked again, who hears of it, and when it is over."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control.fake import World, only
from udpbench.control.connections import channel as channel_module
from udpbench.control.connections.channel import Channel, Pipes
from udpbench.errors import AgentLost, ConnectError, DeadlineExceeded
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS
from udpbench.protocol import read_line, write_line

LEASE_NS = 60 * SECOND_NS
LIMIT_NS = 10 * SECOND_NS


@dataclass
class Line:
    """One connection, and the agent's end of it."""

    broken: bool = True
    """At the end of its replies: not the agent ended."""
    killed: bool = False
    released: bool = False
    received: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        theirs, ours = os.pipe()
        self.requests, self._in = os.fdopen(ours, "wb"), os.fdopen(theirs, "rb")
        theirs, ours = os.pipe()
        self._out, self.replies = os.fdopen(ours, "wb"), os.fdopen(theirs, "rb")

    def hear(self) -> int:
        """Take one request and return its number."""
        request = read_line(self._in.readline())
        self.received.append((request["id"], request["verb"]))
        return int(request["id"])

    def say(self, number: int, result: object = None) -> None:
        """Answer a number."""
        self._out.write(write_line({"id": number, "clock_ns": 0, "result": result}))
        self._out.flush()

    def cut(self) -> None:
        """End it."""
        self._in.close()
        self._out.close()

    def release(self) -> None:
        """Give back what carried it."""
        self.released = True
        self.replies.close()

    def kill(self) -> None:
        """End it from the controller's side."""
        self.killed = True
        self._out.close()

    def pipes(self, again: Callable[[str, int], Pipes] | None = None) -> Pipes:
        """Return the controller's end."""
        return Pipes(
            requests=self.requests,
            replies=LinePipe(self.replies.fileno()),
            errors=io.BytesIO(),
            pid=None,
            ended=lambda _: None,
            kill=self.kill,
            release=self.release,
            next_step=lambda _status, _words: "",
            broken=lambda: self.broken,
            again=again,
        )


@dataclass
class Way:
    """The way to the agent: what comes of each attempt to make the connection anew."""

    attempts: list[Line | ConnectError | AgentLost | Callable[[], Line]] = field(
        default_factory=list
    )
    runs: list[str] = field(default_factory=list)

    def again(self, run: str, _limit_ns: int) -> Pipes:
        """Take the next one."""
        self.runs.append(run)
        attempt = self.attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        line = attempt if isinstance(attempt, Line) else attempt()
        return line.pipes(self.again)


@dataclass
class Scene:
    """A channel over the first connection, and what it said of it."""

    way: Way
    first: Line
    channel: Channel
    notices: list[str] = field(default_factory=list)

    def ask(self, verb: str = "echo", limit_ns: int = LIMIT_NS) -> tuple[threading.Thread, list]:
        """Ask in a thread of its own; what comes of it is put into the list."""
        outcomes: list = []

        def asking() -> None:
            try:
                outcomes.append(self.channel.request(verb, limit_ns))
            except (AgentLost, DeadlineExceeded) as error:
                outcomes.append(error.message)

        thread = threading.Thread(target=asking, daemon=True)
        thread.start()
        return thread, outcomes


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Yield a channel whose connection is to be made anew, without pauses."""
    monkeypatch.setattr(channel_module, "FIRST_PAUSE_NS", 1)
    way, first = Way(), Line()
    scene = Scene(way, first, Channel("left", first.pipes(way.again)))
    scene.channel.notice = scene.notices.append
    scene.channel.outlast("run", LEASE_NS)
    yield scene
    scene.channel.close(SECOND_NS // 100)


def test_what_was_not_answered_is_asked_again_by_its_number(scene: Scene) -> None:
    """The agent that knows the number already will say what it said; all is told."""
    second = Line()
    scene.way.attempts = [second]
    thread, outcomes = scene.ask()
    number = scene.first.hear()
    scene.first.cut()
    assert number == second.hear()
    second.say(number, "once")
    thread.join()
    assert (["once"], ["run"], True) == (outcomes, scene.way.runs, scene.first.released)
    (absence_ns,) = scene.channel.absences_ns
    assert [
        "connection lost; reconnecting for up to 1min",
        f"connection restored after {absence_ns / SECOND_NS:.1f}s",
    ] == scene.notices
    thread, outcomes = scene.ask("more")
    second.say(second.hear(), "twice")
    thread.join()
    assert (["twice"], [(1, "echo"), (2, "more")]) == (outcomes, second.received)


def test_who_asks_while_the_connection_is_lost_waits_for_it(scene: Scene) -> None:
    """Longer than its deadline, which begins anew with the connection."""
    second, reconnecting = Line(), threading.Event()

    def late() -> Line:
        assert reconnecting.wait(LIMIT_NS / SECOND_NS)
        begun_ns = time.monotonic_ns()
        while time.monotonic_ns() < begun_ns + 2 * limit_ns:
            threading.Event().wait(limit_ns / SECOND_NS)
        return second

    limit_ns = SECOND_NS // 20
    scene.way.attempts = [late]
    scene.channel.notice = lambda text: (scene.notices.append(text), reconnecting.set())[0]
    scene.first.cut()
    thread, outcomes = scene.ask(limit_ns=limit_ns)
    second.say(second.hear(), "late")
    thread.join()
    assert ["late"] == outcomes


def test_a_way_that_is_closed_is_tried_again(scene: Scene) -> None:
    """Until it is open."""
    second = Line()
    scene.way.attempts = [ConnectError("no route"), ConnectError("no route"), second]
    thread, outcomes = scene.ask()
    scene.first.hear()
    scene.first.cut()
    second.say(second.hear(), "back")
    thread.join()
    assert (["back"], 3) == (outcomes, len(scene.way.runs))


def test_an_agent_that_does_not_wait_there_is_lost(scene: Scene) -> None:
    """No further attempt is made."""
    scene.way.attempts = [ConnectError("no route"), AgentLost("it is no longer waiting there")]
    thread, outcomes = scene.ask()
    scene.first.hear()
    scene.first.cut()
    thread.join()
    assert [
        (
            "agent lost during echo: it ended, or the connection to it did; "
            "it is no longer waiting there"
        )
    ] == outcomes
    assert [] == scene.channel.absences_ns


def test_the_lease_is_the_limit(scene: Scene) -> None:
    """The loss says what the last attempt met."""
    scene.channel.outlast("run", SECOND_NS // 20)
    scene.way.attempts = [ConnectError("no route")] * 10_000
    thread, outcomes = scene.ask()
    scene.first.hear()
    scene.first.cut()
    thread.join()
    assert [
        (
            "agent lost during echo: it ended, or the connection to it did; "
            "reconnecting failed: no route"
        )
    ] == outcomes


def test_a_host_that_only_ever_comes_back_puts_off_no_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each return begins its deadline anew, up to one end of all."""
    monkeypatch.setattr(channel_module, "LATE_NS", SECOND_NS // 20)
    scene.channel.outlast("run", SECOND_NS // 20)
    line, over = scene.first, threading.Event()
    thread, outcomes = scene.ask(limit_ns=2 * SECOND_NS // 10)

    def fresh() -> Line:
        nonlocal line
        line = Line()
        return line

    scene.way.attempts = [fresh] * 100
    begun_ns = time.monotonic_ns()
    while thread.is_alive() and time.monotonic_ns() < begun_ns + LIMIT_NS:
        now = line
        now.hear()
        over.wait(0.1)  # less than the deadline
        now.cut()
        while line is now and thread.is_alive():
            over.wait(0.001)
    thread.join(LIMIT_NS / SECOND_NS)
    assert ["echo: no reply within 200ms; find out what holds it up there"] == outcomes
    assert time.monotonic_ns() - begun_ns < 2 * SECOND_NS


def test_an_attempt_that_does_not_end_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is lost a while after its lease; what comes of the attempt later is given back."""
    monkeypatch.setattr(channel_module, "LATE_NS", SECOND_NS // 20)
    scene.channel.outlast("run", SECOND_NS // 20)
    second, over = Line(), threading.Event()

    def stuck() -> Line:
        assert over.wait(LIMIT_NS / SECOND_NS)
        return second

    scene.way.attempts = [stuck]
    thread, outcomes = scene.ask(limit_ns=LIMIT_NS * 100)
    scene.first.hear()
    scene.first.cut()
    thread.join(LIMIT_NS / SECOND_NS)
    assert ["agent lost during echo: it could not be reached again within 100ms"] == outcomes
    over.set()
    scene.channel._threads[0].join()
    assert (True, True) == (second.killed, second.released)


def test_an_error_that_nobody_foresaw_is_reported(scene: Scene) -> None:
    """Whoever waits would else wait for ever."""

    def odd() -> Line:
        raise KeyError("odd")

    scene.way.attempts = [odd]
    thread, outcomes = scene.ask()
    scene.first.hear()
    scene.first.cut()
    thread.join(LIMIT_NS / SECOND_NS)
    assert ["agent lost during echo: its replies ended with KeyError: 'odd'"] == outcomes


def test_an_agent_that_ended_is_not_looked_for(scene: Scene) -> None:
    """Its end was told over a connection that lives."""
    scene.first.broken = False
    thread, outcomes = scene.ask()
    scene.first.hear()
    scene.first.cut()
    thread.join()
    assert (1, []) == (len(outcomes), scene.way.runs)


@pytest.mark.parametrize("way", [None, Way()])
def test_a_connection_that_is_not_to_be_outlasted_is_lost_at_once(way: Way | None) -> None:
    """Before the greeting, and where there is no way back."""
    first = Line()
    scene = Scene(Way(), first, Channel("left", first.pipes(way.again if way else None)))
    if way is None:
        scene.channel.outlast("run", LEASE_NS)
    first.cut()
    thread, outcomes = scene.ask()
    thread.join()
    assert 1 == len(outcomes)
    scene.channel.close(SECOND_NS // 100)


def test_a_channel_that_closes_says_farewell(scene: Scene) -> None:
    """Else the agent would wait for as long as its lease."""
    scene.channel.close(SECOND_NS // 100)
    scene.first.hear()
    assert [(0, "leave")] == scene.first.received


def test_a_channel_that_closes_while_the_connection_is_lost_takes_none(scene: Scene) -> None:
    """One that is made in the meantime is given back."""
    second, begun, closing = Line(), threading.Event(), threading.Event()

    def late() -> Line:
        begun.set()
        assert closing.wait(LIMIT_NS / SECOND_NS)
        return second

    scene.way.attempts = [late]
    scene.first.cut()
    assert begun.wait(LIMIT_NS / SECOND_NS)
    scene.channel._leaving.set()
    closing.set()
    scene.channel.close()
    assert (True, True) == (second.killed, second.released)


def test_a_trial_notes_that_a_connection_was_lost(tmp_path: Path) -> None:
    """No more than a note, once, with the host and the time."""
    world = World()
    world.hooks["start sender measured"] = lambda: world.agents["receiver"].absences_ns.append(
        2 * SECOND_NS + 140_000_000
    )
    record = only(tmp_path, world)
    assert [
        (
            "note",
            (
                "receiver: the connection was lost and restored; "
                "workers continued, and no sample is missing (2.1s)"
            ),
        )
    ] == [(finding.severity, str(finding)) for finding in record.findings]


def test_a_run_shows_what_becomes_of_a_connection(tmp_path: Path) -> None:
    """As an event of its host."""
    world = World()
    world.hooks["start sender measured"] = lambda: world.agents["receiver"].notice("it is lost")
    only(tmp_path, world)
    assert ["receiver: it is lost"] == [
        progress.text
        for progress in world.progress
        if progress.event == "host" and "lost" in progress.text
    ]
