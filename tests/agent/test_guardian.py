"""The guardian against a real agent process that is killed, on a host that is a folder."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden import Golden
from settings_world import fake_host

import udpbench
from udpbench.agent import install
from udpbench.agent.host.system import Host
from udpbench.agent.settings import guardian as guardian_module
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.guardian import Guardian
from udpbench.agent.settings.journal import Journal
from udpbench.errors import AgentError, RestoreError
from udpbench.model.host import Setting

DEADLINE_S = 20.0
TARGET = "net.core.rmem_max"
FILE = "/proc/sys/net/core/rmem_max"

# What an agent does, up to the moment at which it is killed; it prints its guardian's pid.
AGENT = """
import sys
from pathlib import Path
from udpbench.agent.settings.guardian import Guardian
from udpbench.agent.host.system import Host
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.sysctl import Sysctl
from udpbench.model.host import Setting
host = Host(Path(sys.argv[1]))
if sys.argv[2] == "wait":  # for what is done to this process before it has children
    print(0, flush=True)
    sys.stdin.readline()
    sys.argv[2] = "change"
journal = Journal(host, "run")
guardian = Guardian.start(host, journal, *map(float, sys.argv[3:]))
if sys.argv[2] in ("change", "beat"):
    Engine(host, journal, ["namespace"]).apply([Setting("sysctl", "net.core.rmem_max", 4194304)])
if sys.argv[2] == "open":
    journal._create()
if sys.argv[2] == "touch":
    journal.path.parent.mkdir(parents=True)
    journal.path.touch()
print(guardian.process.pid, flush=True)
if sys.argv[2] == "beat":
    import time
    from udpbench.agent.settings import guardian as module
    module.BEAT_S, end_s = 0.0, time.monotonic() + 2.5 * float(sys.argv[3])
    while guardian.check() and time.monotonic() < end_s:
        time.sleep(0.01)
    print("it lives", flush=True)
if sys.argv[2] == "program":
    class Tool(Sysctl):
        def write(self, host, _, value):
            host.run("tool", str(value))
    engine = Engine(host, journal, ["namespace"], {"sysctl": Tool()})
    engine.apply([Setting("sysctl", "net.core.rmem_max", 4194304)])
sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that is a folder."""
    return fake_host(tmp_path)


@pytest.fixture
def guarded(host: Host) -> Iterator[tuple[Journal, Guardian]]:
    """Yield a journal and the guardian that watches over this very process."""
    journal = Journal(host, "run")
    guardian = Guardian.start(host, journal)
    yield journal, guardian
    guardian.release()
    journal.close()


def ended(pid: int) -> bool:
    """Wait until a process has ended, with a deadline."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], DEADLINE_S)[0])
    finally:
        os.close(process)


def agent(host: Host, does: str, *limits: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start an agent and return it with its guardian's pid, once it has done its work."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(host.root), does, *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE_S)[0], "the agent said nothing"
    return process, int(process.stdout.readline())


def finish(process: subprocess.Popen[bytes]) -> None:
    """Kill an agent and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_a_killed_agent_is_restored(host: Host) -> None:
    """The value is back, the journal is gone, and the guardian is, too."""
    process, guardian = agent(host, "change")
    assert "4194304" == host.read_text(FILE)
    finish(process)
    assert ended(guardian)
    assert ("212992", []) == (host.read_text(FILE), host.listdir("/run/udpbench"))


def test_signals_to_the_guardian_do_not_stop_it(host: Host) -> None:
    """It has its own session, and outlives whatever ends its agent politely."""
    process, guardian = agent(host, "change")
    assert guardian == os.getsid(guardian)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    finish(process)
    assert ended(guardian)
    assert "212992" == host.read_text(FILE)


def trees() -> list[Path]:
    """Return the hierarchies of cgroups in which this user may make one."""
    named = [Path("/", name) for name in guardian_module.CGROUPS]
    return [tree for tree in named if os.access(tree / "cgroup.procs", os.W_OK)]


@pytest.mark.skipif(not trees(), reason="needs cgroups that this user may make: root")
def test_whoever_ends_the_agents_cgroup_misses_the_guardian(host: Host) -> None:
    """Everybody in it is killed at once, as systemctl kill does; of the cgroups nothing stays."""
    tree = trees()[0]
    link = host.path("/sys/fs/cgroup")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tree)
    process, _ = agent(host, "wait")
    group = tree / f"udpbench-test-{process.pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout is not None
        guardian = int(process.stdout.readline())
        members = list(map(int, (group / "cgroup.procs").read_text().split()))
        assert [process.pid] == members
        for member in members:
            os.kill(member, signal.SIGKILL)
        finish(process)
        assert ended(guardian)
        assert ("212992", []) == (host.read_text(FILE), host.listdir("/run/udpbench"))
    finally:
        host.wait_for(
            "an empty cgroup", lambda: not (group / "cgroup.procs").read_text(), DEADLINE_S
        )
        group.rmdir()
    # Not what else is there by now: other runs have guardians, too.
    own = tree / f"{guardian_module.CGROUP_PREFIX}{guardian}"
    assert (False, False) == (own.exists(), group.exists())


@pytest.fixture
def tree(host: Host) -> Path:
    """Return a hierarchy that is a folder."""
    tree = host.path("/sys/fs/cgroup")
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "cgroup.procs").touch()
    return tree


def test_a_guardian_that_may_make_no_cgroup_stays_where_it_is(
    host: Host, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any user but root, or in a container: it restores all the same."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert () == guardian_module.enter_own_cgroups(host.root)
    assert ["cgroup.procs"] == [file.name for file in tree.iterdir()]


def test_cgroups_of_killed_guardians_are_removed(host: Host, tree: Path) -> None:
    """Not that of one that lives; where there are no cgroups, nothing is made."""
    (tree / "udpbench-guardian-77").mkdir()
    (tree / "udpbench-guardian-78").mkdir()
    (host.root / "proc" / "78").mkdir(parents=True)
    (own,) = guardian_module.enter_own_cgroups(host.root)
    assert {"cgroup.procs", "udpbench-guardian-78", own.name} == {
        file.name for file in tree.iterdir()
    }
    assert "0" == (own / "cgroup.procs").read_text()
    (own / "cgroup.procs").unlink()  # the kernel's own go with the folder
    guardian_module.leave([own])
    assert ("0", False) == ((tree / "cgroup.procs").read_text(), own.exists())


def test_without_a_change_there_is_nothing_to_restore(host: Host) -> None:
    """The guardian of an agent that changed nothing just ends."""
    process, guardian = agent(host, "nothing")
    finish(process)
    assert ended(guardian)
    assert not host.exists("/run/udpbench")


@pytest.mark.parametrize("does", ["open", "touch"])
def test_a_journal_without_a_change_is_removed(host: Host, does: str) -> None:
    """An agent that is killed between its journal's first byte and its first change left nothing."""
    process, guardian = agent(host, does)
    assert 1 == len(host.listdir("/run/udpbench"))
    finish(process)
    assert ended(guardian)
    assert [] == host.listdir("/run/udpbench")


def test_what_it_cannot_restore_stays_in_the_journal(host: Host, golden: Golden) -> None:
    """Somebody else's value is left alone, and the next restore tells."""
    process, guardian = agent(host, "change")
    host.write_text(FILE, "7")
    finish(process)
    assert ended(guardian)
    (name,) = host.listdir("/run/udpbench")
    with golden.raises(RestoreError):
        Engine(host, Journal.open(host, host.path(f"/run/udpbench/{name}")), ()).restore()
    assert "7" == host.read_text(FILE)


def test_a_released_guardian_restores_nothing(
    host: Host, guarded: tuple[Journal, Guardian]
) -> None:
    """It ends with status 0 and leaves the settings and the journal to the agent."""
    journal, guardian = guarded
    Engine(host, journal, ["namespace"]).apply([Setting("sysctl", TARGET, 4194304)])
    assert guardian.check()
    guardian.release()
    guardian.release()
    assert (0, "4194304", True) == (
        guardian.process.returncode,
        host.read_text(FILE),
        journal.path.exists(),
    )


def test_a_dead_guardian_is_noticed(guarded: tuple[Journal, Guardian]) -> None:
    """Without one nothing may be changed: the agent asks before it does."""
    _, guardian = guarded
    guardian.process.kill()
    assert ended(guardian.process.pid)
    assert not guardian.check()


def test_a_child_of_the_agent_does_not_keep_the_pipe_open(host: Host) -> None:
    """Workers outlive their agent by a moment; the guardian must not wait for them."""
    reader, writer = os.pipe()
    journal = Journal(host, "run")
    guardian = Guardian.start(host, journal)
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=reader)
    try:
        guardian._hang_up()
        assert ended(guardian.process.pid)
    finally:
        worker.kill()
        worker.wait()
        os.close(reader)
        os.close(writer)
        guardian.process.wait()


def test_an_agent_that_hangs_is_killed_and_restored(host: Host) -> None:
    """While it shows that it lives, it is left alone; one that is stopped could not end itself."""
    process, guardian = agent(host, "beat", "1")
    assert process.stdout is not None
    assert b"it lives\n" == process.stdout.readline()
    assert "4194304" == host.read_text(FILE)
    process.send_signal(signal.SIGSTOP)
    assert ended(guardian)
    assert -signal.SIGKILL == process.wait(DEADLINE_S)
    assert "212992" == host.read_text(FILE)
    finish(process)


def test_a_guardian_that_is_stopped_holds_up_no_agent(
    guarded: tuple[Journal, Guardian], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many signs of life wait to be read."""
    _, guardian = guarded
    monkeypatch.setattr(guardian_module, "BEAT_S", 0.0)
    guardian.process.send_signal(signal.SIGSTOP)
    try:
        assert all(guardian.check() for _ in range(2**16 + 1))
    finally:
        guardian.process.send_signal(signal.SIGCONT)


def test_a_guardian_kills_nothing_but_its_agent() -> None:
    """A number that is not its parent's is opened by nobody."""
    assert guardian_module._opened(1) is None
    mine = guardian_module._opened(os.getppid())
    assert mine is not None
    os.close(mine)
    guardian_module._kill(None)


def test_a_guardian_that_does_not_start_is_an_error(
    host: Host, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Nothing is changed then, and the message has the command to try."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with golden.raises(AgentError):
        Guardian.start(host, Journal(host, "run"))


def test_a_guardian_whose_python_is_missing_is_an_error(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no descriptor is left open."""
    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        Guardian.start(host, Journal(host, "run"))
    assert before == set(Path("/proc/self/fd").iterdir())


def test_a_guardian_imports_nothing_from_the_current_folder(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be root's, and the folder anybody's, as /tmp; what its agent imports from stays."""
    ran = tmp_path / "ran"
    (tmp_path / "signal.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", "lib", *sys.path])
    guardian = Guardian.start(host, Journal(host, "run"))
    folder = Path(f"/proc/{guardian.process.pid}/cwd").readlink()
    words = Path(f"/proc/{guardian.process.pid}/cmdline").read_text().split("\0")
    guardian.release()
    assert (Path("/"), False) == (folder, ran.exists())
    assert ["-I", "-S"] == words[1:3]
    own, first, *rest = words[words.index("-c") + 2].split(os.pathsep)
    assert [str(Path(udpbench.__file__).parents[1]), str(tmp_path / "lib")] == [own, first]
    assert "" not in rest


def test_a_guardian_keeps_the_build_it_runs_from(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its agent, and reads its modules only then."""
    (tmp_path / install.LOCK).touch()
    with (tmp_path / install.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        monkeypatch.setenv(install.HELD, str(lock.fileno()))
        guardian = Guardian.start(host, Journal(host, "run"))
    with install.held([str(tmp_path)]) as used:
        assert [str(tmp_path)] == used
    guardian.release()
    with install.held([str(tmp_path)]) as used:
        assert [] == used


def waiting_for_a_lock(pid: int) -> bool:
    """Say whether a process waits for flock(2); proc_locks(5)."""
    lines = map(str.split, Path("/proc/locks").read_text().splitlines())
    return any("->" in words[:2] and str(pid) in words for words in lines)


def test_a_program_that_outlives_its_agent_is_waited_for(host: Host) -> None:
    """It may still change what the guardian would otherwise have put back before."""
    alive, go_on = host.root / "alive", host.root / "go-on"
    for fifo in (alive, go_on):
        os.mkfifo(fifo)
    tool = host.path("/usr/sbin/tool")
    tool.parent.mkdir(parents=True)
    tool.write_text(
        f'#!/bin/sh\nexec 2>{alive}\n: <{go_on}\nprintf "$1" >{host.path(FILE)}\n',
    )
    tool.chmod(0o755)
    process, guardian = agent(host, "program")
    with alive.open("rb") as running:
        finish(process)
        host.wait_for(
            "the guardian waiting, or its end",
            lambda: waiting_for_a_lock(guardian) or not Path(f"/proc/{guardian}/fd/0").exists(),
            DEADLINE_S,
        )
        go_on.open("wb").close()
        running.read()
    assert ended(guardian)
    assert ("212992", []) == (host.read_text(FILE), host.listdir("/run/udpbench"))
