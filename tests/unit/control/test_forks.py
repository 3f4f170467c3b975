"""Agents that are forks of one process: real ones, on this machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import DEADLINE_S, wait_until

from udpbench.control.connections import forks
from udpbench.control.connections.channel import Channel
from udpbench.control.connections.forks import LocalAgents
from udpbench.errors import AgentLost, HelloRefused
from udpbench.model.limits import SECOND_NS

LIMIT_NS = 10 * SECOND_NS
PATCHED = """
import errno, sys
from udpbench.agent import fork_server
def refuse(host):
    raise OSError(errno.EPERM, "no")
fork_server.enter_own = refuse
sys.exit(fork_server.main())
"""


SPEAKS = """
import os, sys
from udpbench.agent import fork_server, serve
def speak(settled):
    print(ascii(os.environ["UDPBENCH_TEST"]), os.environ.get("UDPBENCH_OLD"), file=sys.stderr)
    return 7
serve.main = speak
sys.exit(fork_server.main())
"""


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAgents]:
    """Yield the agents of a run; no other test has started any of theirs."""
    monkeypatch.setattr(forks, "_launched", [])
    yield LocalAgents()
    for server in forks._launched:
        server.close()


def answers(channel: Channel) -> bool:
    """Return whether an agent is there, who asks to be greeted."""
    with pytest.raises(HelloRefused):
        channel.request("ping", LIMIT_NS)
    return True


def server_of(channel: Channel) -> int:
    """Return the parent of an agent."""
    return int(Path(f"/proc/{channel.pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_all_agents_are_forks_of_the_process_that_was_started_before(local: LocalAgents) -> None:
    """Which ends with the last of them; the next agent has another."""
    forks.launch()
    (server,) = forks._launched
    first, second = local.open_machine("machine"), local.open_machine("again")
    assert [] == forks._launched
    assert {server.pid} == {server_of(each) for each in (first, second)}
    assert answers(first)
    assert (0, False) == (first.close(), server.left)
    assert answers(second)
    assert (0, True) == (second.close(), server.left)
    third = local.open_machine("machine")
    assert server.pid != server_of(third)
    assert 0 == third.close()


def test_a_fork_looks_like_the_agent_that_it_is(local: LocalAgents) -> None:
    """It has its own command and session, and nothing open but what an agent has."""
    channel = local.open_machine("machine")
    assert answers(channel)
    process = Path(f"/proc/{channel.pid}")
    words = (process / "cmdline").read_text().rstrip("\0").split("\0")
    assert [sys.executable, "-P", "-m", "udpbench.agent.serve"] == words
    assert channel.pid == os.getsid(channel.pid or 0)
    files = sorted(str(file.readlink()).partition(":")[0] for file in (process / "fd").iterdir())
    channel.close()
    # stdin, replies, stderr twice, the pipe of its end, and both ends of that of its signals
    assert ["pipe"] * 7 == files


def test_a_fork_has_the_environment_of_who_asks(
    local: LocalAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that in which the process that forks was started; it may be no text."""
    monkeypatch.setattr(forks, "FORK_COMMAND", (sys.executable, "-c", SPEAKS))
    monkeypatch.setenv("UDPBENCH_OLD", "1")
    forks.launch()
    monkeypatch.delenv("UDPBENCH_OLD")
    monkeypatch.setenv("UDPBENCH_TEST", os.fsdecode(b"sp\xc3\xa4t\xff"))
    channel = local.open_machine("machine")
    assert 7 == channel.close()
    assert r"'sp\xe4t\udcff' None" == channel.last_words()


def test_a_fork_has_the_folder_of_who_asks(
    local: LocalAgents, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Though it may be gone by now."""
    forks.launch()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    channel = local.open_machine("machine")
    monkeypatch.chdir(tmp_path)
    again = local.open_machine("again")
    folders = [str(Path(f"/proc/{each.pid}/cwd").readlink()) for each in (channel, again)]
    assert [f"{tmp_path}/gone (deleted)", str(tmp_path)] == folders
    for each in (channel, again):
        assert 0 == each.close()


def test_one_that_is_killed_is_lost_with_its_signal(local: LocalAgents) -> None:
    """As any other child."""
    channel = local.open_machine("machine")
    local.open_machine("again").close()  # until then its parent loads what later ones need
    assert channel.pid is not None
    os.kill(channel.pid, signal.SIGKILL)
    with pytest.raises(AgentLost, match="signal 9"):
        channel.request("ping", LIMIT_NS)
    assert -signal.SIGKILL == channel.close()


def test_one_that_does_not_end_is_killed(local: LocalAgents) -> None:
    """At the deadline of its channel."""
    channel = local.open_machine("machine")
    assert answers(channel)
    assert channel.pid is not None
    os.kill(channel.pid, signal.SIGSTOP)
    assert -signal.SIGKILL == channel.close(limit_ns=SECOND_NS // 10)


def test_agents_outlive_the_process_that_forked_them(local: LocalAgents) -> None:
    """How they end is not known then, but that they do."""
    channel = local.open_machine("machine")
    server = server_of(channel)
    os.kill(server, signal.SIGKILL)
    wait_until("another parent", lambda: server_of(channel) != server)
    assert answers(channel)
    assert channel.close() is None
    wait_until("its end", lambda: not Path(f"/proc/{channel.pid}").exists())


def test_who_has_lost_the_process_that_forks_gets_another(local: LocalAgents) -> None:
    """Its agents, and those to come, do not need it."""
    first = local.open_machine("machine")
    os.kill(server_of(first), signal.SIGKILL)
    assert local._server is not None
    local._server._process.wait()
    second = local.open_machine("again")
    assert os.getpid() != server_of(second)
    assert answers(first)
    assert answers(second)
    assert (0, None) == (second.close(), first.close())


@pytest.mark.parametrize("command", [("no-such-program",), ("false",)])
def test_without_forks_an_agent_is_a_process_of_its_own(
    local: LocalAgents, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Whatever the reason, which it says itself if it has it, too."""
    monkeypatch.setattr(forks, "FORK_COMMAND", command)
    forks.launch()
    channel = local.open_machine("machine")
    assert answers(channel)
    assert (os.getpid(), 0) == (server_of(channel), channel.close())


def test_who_may_have_no_namespaces_gets_no_fork_in_some(
    local: LocalAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's refusal is not the end of the process that forks."""
    monkeypatch.setattr(forks, "FORK_COMMAND", (sys.executable, "-c", PATCHED))
    machine = local.open_machine("machine")
    server = server_of(machine)
    assert local.forked("left", private=True) is None
    again = local.forked("again", private=False)
    assert again is not None
    assert server == server_of(again)
    for channel in (machine, again):
        assert 0 == channel.close()


def test_processes_that_nobody_takes_end_with_who_started_them() -> None:
    """Their stdin ends."""
    starts = "from udpbench.control.connections import forks; forks.launch()"
    program = f"{starts}; print(forks._launched[0].pid)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(int(done.stdout))
        assert select.select([pidfd], [], [], DEADLINE_S)[0]
        os.close(pidfd)
