"""Notes of who uses namespace and machine: root's as files, other users' as abstract sockets."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import pytest

from udpbench.agent.host.system import Host
from udpbench.agent.locks import ACCEPTED, Held, Locks
from udpbench.agent.notes import Note
from udpbench.agent.settings.journal import FOLDER
from udpbench.folder import lock_file
from udpbench.model.limits import Scope
from udpbench.protocol import Use

if TYPE_CHECKING:  # a process of its own imports this file, without the fixtures
    from golden import Golden

BOTH: tuple[Scope, ...] = ("namespace", "machine")
MACHINE: tuple[Scope, ...] = ("machine",)
NOBODY = 65534
NUMBERS = itertools.count()
ME = os.getpid()
Make = Callable[..., Locks]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user")


class Elsewhere(Host):
    """A host whose files are a folder, and whose sockets and namespace are this process's."""

    apart = 0
    """Added to the number of the namespace, for one beside that of this process."""

    def read_text(self, path: str) -> str:
        """Return the text of a file of the real machine."""
        return Host().read_text(path)

    def netns(self) -> int:
        """Return the namespace of this process."""
        return Host().netns() + self.apart


@pytest.fixture
def prefix() -> str:
    """Return what abstract names of this test begin with, apart from those of any run."""
    return f"udpbench-test/{ME}/{next(NUMBERS)}/"


@pytest.fixture(params=["files", "sockets"])
def make(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Iterator[Make]:
    """Yield what makes a run's locks, of either kind."""
    all_locks: list[Locks] = []

    def open_locks(run: str, apart: int = 0) -> Locks:
        host = Elsewhere(tmp_path)
        host.apart = apart
        all_locks.append(Locks(host, run, request.param == "files", prefix))
        return all_locks[-1]

    yield open_locks
    for locks in all_locks:
        locks.release()


def held(locks: Locks, scopes: Sequence[Scope], use: Use = "alone") -> Optional[str]:
    """Return what is held by whom, where taking is refused."""
    try:
        locks.take(scopes, use)
    except Held as error:
        return str(error)
    return None


def test_a_machine_is_one_runs(make: Make) -> None:
    """The second run is told who has it, and leaves nothing of its own, until the first ends."""
    first, second = make("first"), make("second")
    assert held(first, MACHINE) is None
    assert f"the machine is held by run first (pid {ME})" == held(second, MACHINE)
    assert {"first"} == second.runs()
    first.release()
    assert held(second, MACHINE) is None


def test_a_namespace_is_one_runs_however_the_machine_is_used(make: Make) -> None:
    """Two runs in one namespace would meet in its ports, addresses and settings."""
    first, second = make("first"), make("second")
    assert held(first, BOTH, "shared") is None
    for use in ("alone", "shared", "none"):
        assert f"the namespace is held by run first (pid {ME})" == held(second, BOTH, use)


def test_agents_of_one_run_share_a_machine(make: Make) -> None:
    """A run may have several hosts on it, each in a namespace of its own, and more than one ask."""
    first, second = make("one"), make("one", apart=1)
    assert [None, None] == [held(locks, BOTH) for locks in (first, second)]
    first.release()
    assert f"the machine is held by run one (pid {ME})" == held(make("other", apart=2), BOTH)


def test_a_shared_machine_keeps_others_away_who_would_be_alone(make: Make) -> None:
    """Who shares runs beside anybody; who does not waits for whoever is there."""
    first, second, third = make("first"), make("second"), make("third")
    assert [None, None] == [held(locks, MACHINE, "shared") for locks in (first, second)]
    reason = held(third, MACHINE)
    assert reason in [
        f"the machine is held by run {name} (pid {ME})" for name in ("first", "second")
    ]


def test_one_of_those_who_share_changes_the_machine(make: Make, golden: Golden) -> None:
    """A run that came to be alone may anyway; of others the first that asks."""
    alone, shares = make("alone"), make("shares")
    alone.take(MACHINE, "alone")
    shares.take(MACHINE, "shared")
    with golden.raises(Held):
        shares.change_machine()
    alone.release()
    shares.change_machine()
    shares.change_machine()
    assert f"the machine is held by run shares (pid {ME})" == held(make("late"), MACHINE)


def test_a_rehearsal_uses_no_machine(make: Make) -> None:
    """It changes nothing there; an agent without any scope takes nothing either."""
    first = make("first")
    first.take(MACHINE, "none")
    first.take((), "alone")
    assert frozenset() == first.runs()


def test_others_are_told_once(make: Make) -> None:
    """Whoever was there since the last asking, also one that is gone, and once for all agents."""
    first, second, too = make("first"), make("second"), make("second", apart=1)
    first.take(MACHINE, "alone")
    assert () == first.others()
    second.take(MACHINE, "shared")
    too.take(BOTH, "shared")
    first.watch()
    second.release()
    too.release()
    assert (f"run second (pid {ME})",) == first.others()
    assert () == first.others()


def test_a_long_run_name_is_cut(make: Make) -> None:
    """An abstract name has 107 bytes; of a run's name its first 40 are shown, in whole letters."""
    long = make("x" + "ü" * 100)
    long.take(MACHINE, "alone")
    assert f"the machine is held by run x{'ü' * 19} (pid {ME})" == held(make("y"), MACHINE)
    assert {f"x{'ü' * 19}"} == long.runs() == {Locks.short("x" + "ü" * 100)}


def test_what_is_no_note_is_passed_over(tmp_path: Path, prefix: str, make: Make) -> None:
    """Neither as a file nor as a socket does it keep anybody away."""
    (tmp_path / FOLDER[1:]).mkdir(mode=0o700, parents=True)
    (tmp_path / FOLDER[1:] / "machine-x-1-odd.lock").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as odd:
        odd.bind(f"\0{prefix}0/machine")
        odd.listen()
        assert held(make("first"), MACHINE) is None


def unlisted(_prefix: bytes) -> Iterator[list[tuple[bytes, int, bool]]]:
    """Refuse as a kernel does without unix_diag."""
    raise FileNotFoundError(errno.ENOENT, "no unix_diag")


def test_nobody_can_connect_to_what_a_run_holds(prefix: str, tmp_path: Path) -> None:
    """So nobody keeps its agent busy, or sends it a file whose closing waits; but it is seen."""
    locks = Locks(Elsewhere(tmp_path), "own", False, prefix)
    locks.take(MACHINE, "alone")
    for own in locks._sockets.values():
        with socket.socket(socket.AF_UNIX) as asking, pytest.raises(ConnectionRefusedError):
            asking.connect(own.getsockname())
    assert "the machine is held by" in str(
        held(Locks(Elsewhere(tmp_path), "two", False, prefix), MACHINE)
    )
    locks.release()


class Flood:
    """A listener whose queue somebody fills again as fast as it is emptied, 1000 times."""

    left = 1000

    def accept(self) -> tuple[Flood, str]:
        """Return the next connection."""
        self.left -= 1
        if self.left < 0:
            raise BlockingIOError
        return self, ""

    def close(self) -> None:
        """Close a connection, or the listener."""


def test_those_who_connect_without_end_are_served_for_a_while(prefix: str, tmp_path: Path) -> None:
    """Where sockets have to listen: requests, the lease and signals have their turn."""
    locks = Locks(Elsewhere(tmp_path), "own", False, prefix)
    flood = Flood()
    locks._sockets[Note("machine", 1, ME, "own")] = flood  # type: ignore[assignment]
    locks.watch()
    assert 1000 - ACCEPTED == flood.left
    locks.release()


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_lock_whose_queue_others_filled_is_held(
    is_listed: bool, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whom the kernel says; where it does not, it could be anybody's, and keeps nobody away."""
    note = Note("machine", Host().netns(), ME, "first")
    with ExitStack() as opened:
        listener, *crowd = (opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(9))
        listener.bind(f"\0{prefix}00/{note.name}")
        listener.listen(1)
        for each in crowd:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(listener.getsockname())
        if not is_listed:
            monkeypatch.setattr("udpbench.agent.notes.unix_names", unlisted)
        locks = Locks(Elsewhere(tmp_path), "own", False, prefix)
        assert is_listed is (held(locks, MACHINE) is not None)
        locks.release()


def test_those_who_ask_do_not_fill_a_queue(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asking stays in the queue of the socket until its owner looks after it."""
    monkeypatch.setattr("udpbench.agent.notes.unix_names", unlisted)
    monkeypatch.setattr("udpbench.agent.locks.QUEUE", 4)
    first, second = (Locks(Elsewhere(tmp_path), run, False, prefix) for run in ("one", "two"))
    first.take(MACHINE, "alone")
    for _ in range(3):
        for _ in range(2):
            assert held(second, MACHINE) is not None
        first.watch()
    first.release()


HOLD = """
import sys
from pathlib import Path
from udpbench.agent.locks import Locks
from test_serve_locks import Elsewhere
locks = Locks(Elsewhere(Path(sys.argv[1])), "dead", sys.argv[2] == "files", sys.argv[3])
locks.take(("machine",), "alone")
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["files", "sockets"])
def test_any_death_frees(kind: str, tmp_path: Path, prefix: str) -> None:
    """A killed process holds nothing, and what its file leaves is removed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), kind, prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert "taken\n" == holder.stdout.readline()
        locks = Locks(Elsewhere(tmp_path), "next", kind == "files", prefix)
        assert f"the machine is held by run dead (pid {holder.pid})" == held(locks, MACHINE)
        holder.send_signal(signal.SIGKILL)
    assert held(locks, MACHINE) is None
    assert {"next"} == locks.runs()
    locks.release()
    assert [] == [*tmp_path.rglob("*.lock")]


@contextmanager
def forged(
    prefix: str, user: int, run: str = "forged\x1b[2J", opened_by: int = 0
) -> Iterator[None]:
    """Hold by a socket of another user's what a run would."""
    note = Note("machine", Host().netns(), 1, run)
    os.seteuid(opened_by)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.seteuid(0)
        listener.bind(f"\0{prefix}00/{note.name}")
        os.seteuid(user)  # the kernel notes who listens
        listener.listen()
        os.seteuid(0)
        yield


@as_root
def test_root_believes_no_socket(tmp_path: Path, prefix: str) -> None:
    """Not even root's: but a user's is told, by what the kernel says of it alone."""
    locks = Locks(Elsewhere(tmp_path), "own", True, prefix)
    of_many = forged(prefix, NOBODY, "of many", opened_by=NOBODY)
    with forged(prefix, NOBODY, opened_by=NOBODY), of_many:
        assert held(locks, BOTH) is None
        assert {"own"} == locks.runs()
        assert (f"a run of user {NOBODY}",) == locks.others()
    locks.release()
    with forged(prefix, 0):
        assert held(locks, BOTH) is None
        assert () == locks.others()
    locks.release()


@as_root
@pytest.mark.parametrize(("user", "believed"), [(0, True), (NOBODY, True), (NOBODY - 1, False)])
def test_a_user_believes_root_and_its_own(
    tmp_path: Path, prefix: str, user: int, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's name keeps nobody away, and the process is the kernel's word."""
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    locks = Locks(Elsewhere(tmp_path), "own", False, prefix)
    with forged(prefix, user):
        holder = held(locks, MACHINE)
    assert believed is (holder is not None)
    assert holder is None or holder.endswith(f"(pid {ME})")
    locks.release()


@as_root
def test_a_user_sees_root(tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose files it cannot read."""
    root = Locks(Elsewhere(tmp_path), "roots", True, prefix)
    root.take(MACHINE, "alone")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    user = Locks(Elsewhere(tmp_path), "users", prefix=prefix)
    assert f"the machine is held by run roots (pid {ME})" == held(user, MACHINE)
    monkeypatch.undo()
    root.release()


CROWD = 20_000
CROWDED = f"""
import os, resource, socket, sys, time
from pathlib import Path
from test_serve_locks import Later, Locks
prefix, folder, listed = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "listed"
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
each = min(most, 4096) - 96
ready, done = os.pipe(), os.pipe()
for first in range(0, {CROWD}, each):
    if os.fork() == 0:
        os.close(done[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (each + 96, each + 96))
        os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(min(each, {CROWD} - first))]
        for number, listener in enumerate(crowd, first):
            listener.bind(f"\\0{{prefix}}{{number}}/machine-1-{{number}}-x")
            listener.listen()
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(0)
os.close(done[0])
os.close(ready[1])
for _ in range(0, {CROWD}, each):
    assert os.read(ready[0], 1) == b"."
if not listed:
    import udpbench.agent.notes as module
    def missing(_prefix):
        raise OSError(2, "no unix_diag")
    module.unix_names = missing
host = Later(folder)
locks = Locks(host, "own", True, prefix)
locks.take(("machine",), "alone")
used_ns, longest_ns, reported = 0, 0, []
for _ in range(60):
    host.ahead_ns += 10**9
    begun_ns = time.process_time_ns()
    reported += locks.others()
    spent_ns = time.process_time_ns() - begun_ns
    used_ns, longest_ns = used_ns + spent_ns, max(longest_ns, spent_ns)
print(used_ns / 60e9, longest_ns / 1e9, len(reported) > 0)
locks.release()
"""


class Later(Elsewhere):
    """A host on which a second passes at once."""

    ahead_ns = 0

    def clock_ns(self) -> int:
        """Return the time there."""
        return Host().clock_ns() + self.ahead_ns


@as_root
@pytest.mark.parametrize(("listed", "longest_s"), [("listed", 0.1), ("unlisted", 0.4)])
def test_a_crowd_of_names_costs_no_more_than_two_hundredths_of_the_agents_time(
    tmp_path: Path, prefix: str, listed: str, longest_s: float
) -> None:
    """Another user's 20,000 listeners, looked at every second; the user is reported."""
    done = subprocess.run(
        ("unshare", "--net", sys.executable, "-c", CROWDED, prefix, str(tmp_path), listed),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert "" == done.stderr
    share, longest, reported = done.stdout.split()
    assert 0.02 > float(share)
    assert longest_s > float(longest)
    assert "True" == reported


def test_a_folder_that_others_may_enter_is_refused(
    tmp_path: Path, prefix: str, golden: Golden
) -> None:
    """Whoever may open a file may lock it."""
    folder = tmp_path / FOLDER[1:]
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    with golden.raises(PermissionError):
        Locks(Elsewhere(tmp_path), "own", True, prefix).take(MACHINE, "alone")


def test_a_namesake_of_another_pid_namespace_has_the_file(tmp_path: Path, prefix: str) -> None:
    """There process numbers are others', so one file may be meant by two."""
    host = Elsewhere(tmp_path)
    note = Note("machine", host.netns(), ME, "first")
    path = host.path(FOLDER) / f"{note.name}.lock"
    path.parent.mkdir(mode=0o700, parents=True)
    other = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    assert lock_file(other)
    locks = Locks(host, "first", as_root=True, prefix=prefix)
    assert f"the machine is held by run first (pid {ME})" == held(locks, MACHINE)
    os.close(other)
    assert held(locks, MACHINE) is None
    locks.release()


def test_notes_are_their_users_alone(tmp_path: Path, prefix: str) -> None:
    """Folder 0700, files 0600."""
    locks = Locks(Elsewhere(tmp_path), "own", True, prefix)
    locks.take(MACHINE, "alone")
    files = sorted((tmp_path / FOLDER[1:]).iterdir())
    assert [0o600, 0o600] == [path.stat().st_mode & 0o777 for path in files]
    assert 0o700 == (tmp_path / FOLDER[1:]).stat().st_mode & 0o777
    locks.release()
