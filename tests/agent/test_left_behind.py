"""What a run that died has left on a host, found at hello and put back by a later agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden
from settings_world import fake_host

from udpbench.agent.host.system import Host
from udpbench.agent.locks import Locks
from udpbench.agent.session import Session
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import FOLDER, Journal, abandoned
from udpbench.agent.verbs import Verbs
from udpbench.errors import HelloRefused, RestoreError, Unseen
from udpbench.model.host import Setting
from udpbench.model.limits import SECOND_NS, Scope
from udpbench.protocol import PROTOCOL, Taken, build_id

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone keeps its notes beside journals")
RMEM_MAX = Setting("sysctl", "net.core.rmem_max", 4194304)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that is a folder."""
    return fake_host(tmp_path)


@pytest.fixture
def journal(host: Host) -> Journal:
    """Return the journal of a run that has changed one sysctl and is alive."""
    journal = Journal(host, "dead")
    Engine(host, journal, ["namespace"]).apply([RMEM_MAX])
    return journal


def later(host: Host) -> Verbs:
    """Return the verbs of another run's agent, with no scope of its own."""
    return Verbs(host, "machine", "later", (), Locks(host, "later"), {})


def value(host: Host) -> str:
    """Return the sysctl as it is on the host."""
    return host.read_text("/proc/sys/net/core/rmem_max").strip()


def test_a_living_run_is_left_alone(host: Host, journal: Journal) -> None:
    """What a run that still holds its journal has changed is not called left behind."""
    assert () == abandoned(host)
    assert () == later(host).restore(left_behind=True)
    assert "4194304" == value(host)


class Elsewhere(Host):
    """The same host as another network namespace sees it."""

    def netns(self) -> int:
        """Return another namespace."""
        return 1


def test_a_private_namespace_that_cannot_be_made_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Before anything is looked at, with what would help."""

    def refuse(_host: Host) -> None:
        raise OSError(1, "unshare: Operation not permitted")

    monkeypatch.setattr("udpbench.agent.session.enter_own", refuse)
    with golden.raises(HelloRefused):
        Session(host).hello("left", "later", build_id(), PROTOCOL, SECOND_NS, [], private=True)


def take(host: Host) -> Taken:
    """Return what another run's agent says once it has taken the host."""
    session = Session(host)
    session.hello("left", "later", build_id(), PROTOCOL, SECOND_NS, [])
    return session.take("alone")


@as_root
def test_a_living_run_is_not_waited_for(host: Host, journal: Journal) -> None:
    """Its agent has a note, and its journal stays its own."""
    locks = Locks(host, "dead")
    locks.take(["machine"], "alone")
    assert () == take(host).left_behind
    locks.release()


@as_root
def test_a_run_without_a_place_for_notes_is_refused(host: Host, golden: Golden) -> None:
    """It is said where, why, and what to do, before anything is taken."""
    host.path(FOLDER).mkdir(parents=True, exist_ok=True)
    host.path(FOLDER).chmod(0o755)
    session = Session(host)
    session.hello("left", "later", build_id(), PROTOCOL, SECOND_NS, ["machine"])
    with golden.raises(HelloRefused):
        session.take("alone")


class Meanwhile(Host):
    """A host on which something happens as soon as somebody waits."""

    def __init__(self, root: Path, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self._happens = happens

    def wait_for(self, what: str, condition: Callable[[], bool], deadline_s: float) -> None:
        """Let it happen, and look again; never wait."""
        assert deadline_s > 0
        assert not condition()
        self._happens()
        super().wait_for(what, condition, 0)


def test_a_guardian_at_work_is_waited_for(host: Host, journal: Journal) -> None:
    """What a new run reads before the guardian has ended would be put back for good."""
    guardian = Engine(host, journal, ())
    assert () == take(Meanwhile(host.root, guardian.restore)).left_behind
    assert "212992" == value(host)


def test_what_a_guardian_could_not_restore_is_left_behind(host: Host, journal: Journal) -> None:
    """It has been waited for, and the journal tells that something remains."""
    assert ("dead",) == take(Meanwhile(host.root, journal.close)).left_behind


def test_a_run_is_refused_while_somebody_restores(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """The run is named whose changes are being put back."""
    with golden.raises(HelloRefused):
        take(Meanwhile(host.root, lambda: None))
    assert "4194304" == value(host)


def test_what_a_dead_run_left_is_put_back_once(host: Host, journal: Journal) -> None:
    """The first restore undoes it, the second finds nothing to do."""
    journal.close()
    assert (journal.path,) == abandoned(host)
    (undone,) = later(host).restore(left_behind=True)
    assert (4194304, 212992) == (undone.before, undone.after)
    assert "212992" == value(host)
    assert () == later(host).restore(left_behind=True)
    assert () == abandoned(host)


@as_root
def test_what_a_dead_run_changed_of_the_machine_is_put_back_from_any_namespace(
    host: Host,
) -> None:
    """Its own namespace may be gone for good; what it changed there waits for it."""
    journal = Journal(host, "dead")
    ttl = Setting("sysctl", "net.ipv4.ip_default_ttl", 44)
    host.path("/proc/sys/net/ipv4").mkdir(parents=True, exist_ok=True)
    host.path("/proc/sys/net/ipv4/ip_default_ttl").write_text("64")
    journal.identity = replace(journal.identity, netns_cookie=0)
    engine = Engine(host, journal, ["namespace", "machine"])
    engine.apply([ttl, replace(RMEM_MAX, scope="machine")])
    assert () == abandoned(host)  # its agent lives
    journal.close()
    assert (journal.path,) == abandoned(host)
    assert ("dead",) == take(host).left_behind
    (undone,) = later(host).restore(left_behind=True)
    assert ("net.core.rmem_max", "212992") == (undone.setting.target, value(host))
    assert ((), True) == (abandoned(host), journal.path.exists())
    assert "44" == host.read_text("/proc/sys/net/ipv4/ip_default_ttl").strip()
    with pytest.raises(RestoreError, match="there is nothing to restore here"):
        Journal.open(host, journal.path)


def test_a_journal_of_the_machine_alone_goes_with_its_last_change(host: Host) -> None:
    """From another namespace, too."""
    journal = Journal(host, "dead")
    journal.identity = replace(journal.identity, netns_cookie=0)
    Engine(host, journal, ["machine"]).apply([replace(RMEM_MAX, scope="machine")])
    journal.close()
    assert 1 == len(later(host).restore(left_behind=True))
    assert not journal.path.exists()


def test_what_somebody_else_changed_since_is_reported_and_kept(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """A value that is no longer the dead run's is only overwritten by force."""
    journal.close()
    host.write_text("/proc/sys/net/core/rmem_max", "1000000")
    with golden.raises(RestoreError):
        later(host).restore(left_behind=True)
    assert "1000000" == value(host)
    later(host).restore(force=True, left_behind=True)
    assert "212992" == value(host)


def test_a_journal_of_another_boot_is_removed(host: Host, journal: Journal) -> None:
    """The settings it describes went with that boot."""
    journal.close()
    host.write_text("/proc/sys/kernel/random/boot_id", "another")
    assert () == later(host).restore(left_behind=True)
    assert not journal.path.exists()
    assert "4194304" == value(host)


def test_what_a_dead_run_changed_in_its_own_namespace_went_with_it(host: Host) -> None:
    """Nobody can undo it, so the next run that takes the host removes its journal."""
    journals = [Journal(host, f"run{private}", private) for private in (True, False)]
    for number, journal in enumerate(journals):
        change = replace(RMEM_MAX, value=RMEM_MAX.value + number)
        Engine(host, journal, ["namespace"]).apply([change])
    elsewhere = Elsewhere(host.root)
    take(elsewhere)
    assert [True, True] == [journal.path.exists() for journal in journals]
    for journal in journals:
        journal.close()
    assert () == take(elsewhere).left_behind
    assert [False, True] == [journal.path.exists() for journal in journals]


def test_only_an_agent_of_a_namespace_alone_has_it_for_itself(host: Host) -> None:
    """That of a built-in lab's host: a real host's namespace outlives its agent."""
    alone: tuple[Scope, ...] = ("namespace",)
    flags = []
    for number, scopes in enumerate((alone, (*alone, "machine"))):
        verbs = Verbs(host, "left", f"run{number}", scopes, Locks(host, "later"), {})
        verbs.apply([RMEM_MAX])
        (line,) = host.path(FOLDER).glob(f"run{number}-*.jsonl")
        flags.append(json.loads(line.read_text().splitlines()[0])["ends_with_run"])
        verbs.end()
    assert [True, False] == flags


@pytest.mark.parametrize("lines", [0, 1])
def test_a_journal_without_a_change_is_removed(host: Host, journal: Journal, lines: int) -> None:
    """Its agent died with its guardian just before the first change: nothing is undone."""
    journal.close()
    whole = journal.path.read_text().splitlines(keepends=True)
    journal.path.write_text("".join(whole[:lines]) + "half a li")
    assert () == later(host).restore(left_behind=True)
    assert not journal.path.exists()
    assert "4194304" == value(host)


def test_what_root_left_is_not_said_to_be_nothing(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """Another user can neither see nor mend it, and hears who can."""

    class Closed(Host):
        """A host whose journals this user may not list."""

        def listdir(self, path: str) -> list[str]:
            raise PermissionError(13, "Permission denied", path)

    closed = Closed(host.root)
    assert () == abandoned(closed)
    with golden.raises(Unseen):
        later(closed).restore(left_behind=True)
