"""An agent whose controller is away: it waits as long as its lease, and speaks by other pipes then."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Optional, cast

import pytest
from settings_world import fake_host
from test_serve import DEADLINE_S, SECOND_NS, Agent

from udpbench.agent.host.system import Host
from udpbench.agent.reconnect import FOUND, Door, door_of, hand_over
from udpbench.agent.settings.guardian import Guardian
from udpbench.agent.settings.journal import FOLDER, Journal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone keeps journals in /run")


class Waiting(Agent):
    """An agent that outlives its pipes."""

    def __init__(self) -> None:
        super().__init__()
        self.run = f"return-{self.process.pid}"
        self.door = door_of(Host(), self.run)
        self.fetching: Optional[subprocess.Popen[bytes]] = None

    def greet(self, **changed: Any) -> Any:
        """Say hello as a controller that may come back."""
        return self.hello(run=self.run, returns=True, **changed)

    def fetch(self) -> None:
        """Give it the pipes of a new process, and speak by these from now on."""
        self.fetching = subprocess.Popen(
            [sys.executable, "-m", "udpbench.agent.reconnect", self.run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.requests = cast("IO[bytes]", self.fetching.stdin)
        self.replies = cast("IO[bytes]", self.fetching.stdout)
        ready = select.select([self.replies], [], [], DEADLINE_S)[0]
        assert ready, "nobody says that an agent waits"
        assert FOUND == self.replies.readline()

    def close(self) -> None:
        """End it, however it stands."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.door.unlink(missing_ok=True)
        for process in (self.process, self.fetching):
            if process is not None:
                process.wait(DEADLINE_S)
                for pipe in (process.stdin, process.stdout, process.stderr):
                    with contextlib.suppress(BrokenPipeError):
                        cast("IO[bytes]", pipe).close()


@pytest.fixture
def agent() -> Iterator[Waiting]:
    """Start an agent that is not left behind."""
    agent = Waiting()
    yield agent
    agent.close()


def test_a_number_that_was_answered_has_the_same_answer_again(agent: Waiting) -> None:
    """After the return it is not served twice, and the next number is served."""
    hello = agent.greet()
    agent.requests.close()
    agent.fetch()
    agent._number -= 1
    answer = agent.ask("take", use="alone")
    assert answer == {name: hello[name] for name in answer}
    assert "this agent already serves run" in agent.greet()["message"]


def test_who_comes_back_need_not_wait_for_the_end_of_the_old_pipes(agent: Waiting) -> None:
    """A connection may be dead without a word: the old pipes end once there are others."""
    agent.greet()
    old = agent.replies
    agent.fetch()
    assert agent.ask("ping") is None
    assert select.select([old], [], [], DEADLINE_S)[0]
    assert b"" == old.read()


def test_a_connection_may_be_lost_more_than_once(agent: Waiting) -> None:
    """Who held it then ends."""
    agent.greet()
    agent.fetch()
    first = agent.fetching
    assert first is not None
    agent.fetch()
    assert agent.ask("ping") is None
    assert 0 == first.wait(DEADLINE_S)
    for pipe in (first.stdin, first.stdout, first.stderr):
        cast("IO[bytes]", pipe).close()


def test_a_lease_that_runs_out_while_nobody_comes_ends_the_agent(agent: Waiting) -> None:
    """Restored, with no door left."""
    agent.greet(lease_ns=SECOND_NS // 5)
    assert agent.door.exists()
    agent.requests.close()
    assert 0 == agent.process.wait(DEADLINE_S)
    assert not agent.door.exists()


def test_who_fetches_an_agent_ends_with_its_status_and_words(agent: Waiting) -> None:
    """What it says at its end goes to the new connection."""
    agent.greet()
    agent.requests.close()
    agent.fetch()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.fetching is not None
    assert 0 == agent.fetching.wait(DEADLINE_S)
    words = cast("IO[bytes]", agent.fetching.stderr).read()
    assert b"udpbench agent: received SIGTERM; restored\n" == words


def test_who_fetches_an_agent_that_is_killed_fails(agent: Waiting) -> None:
    """A status that nobody tells is none of success."""
    agent.greet()
    agent.requests.close()
    agent.fetch()
    assert agent.ask("ping") is None
    agent.process.kill()
    assert agent.fetching is not None
    assert 3 == agent.fetching.wait(DEADLINE_S)


def test_after_a_farewell_the_end_of_stdin_is_the_end(agent: Waiting) -> None:
    """A controller that ends its run keeps no host waiting."""
    agent.greet()
    assert agent.ask("leave") is None
    agent.requests.close()
    assert (0, "") == agent.ended()
    assert not agent.door.exists()


def test_a_reply_that_nobody_takes_is_kept(agent: Waiting) -> None:
    """With a door that is no end either."""
    agent.greet()
    agent.replies.close()
    agent.requests.write(b'{"id":9,"verb":"ping"}\n{"id":10,"verb":"ping"}\n')
    agent.requests.flush()
    agent.fetch()
    assert {"id": 9, "result": None} == {
        name: value
        for name, value in agent.raw(b'{"id":9,"verb":"jump"}\n').items()
        if name != "clock_ns"
    }


def test_where_there_can_be_no_door_the_end_of_stdin_is_the_end(agent: Waiting) -> None:
    """A socket's path has a limit; the agent is as usable as without."""
    assert "pid" in agent.hello(run="x" * 120, returns=True)
    agent.requests.close()
    assert (0, "") == agent.ended()


def test_who_fetches_an_agent_that_is_not_there_says_so() -> None:
    """The reason is the kernel's."""
    done = subprocess.run(
        [sys.executable, "-m", "udpbench.agent.reconnect", "nobody"],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    words = b"udpbench agent: no agent of run nobody is waiting: No such file or directory\n"
    assert (3, b"", words) == (done.returncode, done.stdout, done.stderr)


# --- the door ------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[Host]:
    """Yield a host whose /run is a folder; a socket's path has 107 bytes, so it is a short one."""
    with tempfile.TemporaryDirectory(prefix="udpbench-") as root:
        (Path(root) / "proc/self/ns").mkdir(parents=True)
        (Path(root) / "proc/self/ns/net").touch()
        yield Host(Path(root))


@pytest.fixture
def door(host: Host) -> Iterator[Door]:
    """Yield a door."""
    door = Door(host, "run", alone=True)
    yield door
    door.close(0)


@contextlib.contextmanager
def guest(door: Door) -> Iterator[socket.socket]:
    """Yield a connection to a door."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(door.path))
        yield connection


def test_a_door_is_for_its_owner_alone(door: Door) -> None:
    """Folder and socket let nobody else in."""
    modes = (door.path.parent.stat().st_mode & 0o777, door.path.stat().st_mode & 0o777)
    assert (0o700, 0o600) == modes


def test_another_user_is_not_let_in(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got past the file is known by the kernel's word."""
    with guest(door) as other:
        socket.send_fds(other, [b"\0"], [0, 1, 2])
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert () == door.accept()
        with contextlib.suppress(ConnectionResetError):
            assert b"" == other.recv(1)


def test_who_hands_over_too_little_is_not_let_in(door: Door) -> None:
    """Neither what it gave nor its connection stays open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with guest(door) as other:
        socket.send_fds(other, [b"\0"], [0])
        assert () == door.accept()
        assert b"" == other.recv(1)
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_who_is_gone_again_is_not_let_in(door: Door) -> None:
    """Neither is nobody."""
    with guest(door):
        pass
    assert () == door.accept()
    assert () == door.accept()


def test_an_agent_alone_takes_the_doors_of_dead_ones_away(host: Host) -> None:
    """Those of its own namespace."""
    folder = host.path(FOLDER)
    folder.mkdir(parents=True)
    for name in (f"dead-{host.netns()}.sock", "other-1.sock"):
        (folder / name).touch()
    Door(host, "crowd", alone=False).close(0)
    assert 2 == len(list(folder.iterdir()))
    Door(host, "run", alone=True).close(0)
    assert ["other-1.sock"] == [path.name for path in folder.iterdir()]


def test_a_guardian_takes_the_door_of_its_agent_away(tmp_path: Path) -> None:
    """Whether there is a journal or not."""
    host = fake_host(tmp_path)
    journal = Journal(host, "run")
    door = door_of(host, "run")
    door.parent.mkdir(parents=True, exist_ok=True)
    door.touch()
    guardian = Guardian.start(host, journal)
    guardian._hang_up()
    assert 0 == guardian.process.wait(DEADLINE_S)
    assert not door.exists()


def test_a_door_that_closes_while_pipes_are_handed_over_is_a_failure(
    host: Host, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The agent has ended between the two."""
    path = door_of(host, "run")
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        pid = os.fork()
        if pid == 0:
            os._exit(hand_over(host, "run"))
        agent, _ = listener.accept()
        with agent:
            for pipe in socket.recv_fds(agent, 1, 3)[1]:
                os.close(pipe)
    deadline = time.monotonic() + DEADLINE_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() < deadline
    assert (3, FOUND) == (os.waitstatus_to_exitcode(ended[1]), capfdbinary.readouterr().out)
