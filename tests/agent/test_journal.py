"""The journal: what is on disk, when, and what a later process makes of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from golden import Golden
from settings_world import BOOT_ID, fake, fake_host

from udpbench.agent.host.system import Host
from udpbench.agent.settings.journal import Journal, leftovers
from udpbench.errors import RestoreError
from udpbench.model.host import Setting


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that is a folder."""
    return fake_host(tmp_path)


@pytest.fixture
def journal(host: Host) -> Journal:
    """Return a journal that nothing was written to."""
    return Journal(host, "run")


def test_nothing_is_on_disk_before_the_first_change(journal: Journal) -> None:
    """A run that changes nothing leaves nothing."""
    assert not journal.path.exists()


def test_the_file_says_where_it_belongs(host: Host, journal: Journal) -> None:
    """Boot, namespace and run stand in its first line; only root may read it."""
    journal.begin(fake("a", 10), 1)
    assert host.root / f"run/udpbench/run-{host.netns()}.jsonl" == journal.path
    assert (0o600, 0o700) == (
        journal.path.stat().st_mode & 0o777,
        journal.path.parent.stat().st_mode & 0o777,
    )
    head, line = map(json.loads, journal.path.read_text().splitlines())
    assert {
        "journal": 1,
        "run": "run",
        "boot_id": BOOT_ID,
        "netns": host.netns(),
        "netns_cookie": host.netns_cookie(),
        "ends_with_run": False,
    } == head
    assert (1, "a", 10, 1) == (
        line["seq"],
        line["setting"]["target"],
        line["setting"]["value"],
        line["before"],
    )


def test_a_later_process_finds_what_is_pending(host: Host, journal: Journal) -> None:
    """Undone changes are gone, applied ones have their read-back, the last may have none."""
    first = journal.begin(fake("a", 10), 1)
    journal.applied(first, 10)
    second = journal.applied(journal.begin(fake("b", [1, 2]), None), [1, 2])
    journal.undone(first)
    third = journal.begin(fake("c", {"x": 1}), {"x": None})
    journal.close()
    opened = Journal.open(host, journal.path)
    assert (second, third) == opened.pending
    assert (True, False) == (second.applied, third.applied)
    assert 3 == opened.last_seq


@pytest.mark.parametrize("ends_with_run", [False, True])
def test_a_change_is_on_disk_before_it_is_made_unless_it_ends_with_the_run(
    host: Host, monkeypatch: pytest.MonkeyPatch, ends_with_run: bool
) -> None:
    """No other line waits for the disk."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    journal = Journal(host, "run", ends_with_run)
    journal.applied(journal.begin(fake("a", 10), 1), 10)
    journal.applied(journal.begin(fake("b", 10), 1), 10)
    assert (0 if ends_with_run else 2) == synced.count(journal.path.stat().st_ino)


ALONG = (("addr", (("address", "fd00::1"), ("index", 7))), ("route", (("dst", "default"),)))


def test_what_goes_with_a_link_is_known_until_it_is_back(host: Host, journal: Journal) -> None:
    """Whoever is killed meanwhile leaves it for the next to make again."""
    first = journal.begin(fake("a", 10), 1)
    journal.record_along(first, ALONG)
    second = journal.begin(fake("b", 20), 2)
    journal.record_along(second, ALONG)
    journal.record_along(second, ())
    second = journal.applied(second, 20)
    journal.close()
    opened = Journal.open(host, journal.path)
    assert (replace(first, along=ALONG), second) == opened.pending
    assert ((), True) == (second.along, second.applied)


def test_what_goes_with_a_link_is_known_without_a_disk(journal: Journal) -> None:
    """A full one keeps no change from being undone."""
    entry = journal.begin(fake("a", 10), 1)
    with largest_file(journal.path.stat().st_size):
        journal.record_along(entry, ALONG)
    assert (replace(entry, along=ALONG),) == journal.pending


def test_the_file_goes_with_the_last_change(host: Host, journal: Journal) -> None:
    """And comes back with the next, whose number goes on."""
    journal.undone(journal.begin(fake("a", 10), 1))
    assert not journal.path.exists()
    assert 2 == journal.begin(fake("a", 10), 1).seq
    assert journal.path.exists()


@pytest.mark.parametrize("torn", [b"{", b'{"seq":2,"undone":true}', b"\xff\xfe"])
def test_a_torn_last_line_is_dropped(host: Host, journal: Journal, torn: bytes) -> None:
    """A line without its end was never acted on; the next line starts on its own."""
    entry = journal.begin(fake("a", 10), 1)
    journal.close()
    with journal.path.open("ab") as file:
        file.write(torn)
    opened = Journal.open(host, journal.path)
    assert (entry,) == opened.pending
    second = opened.begin(fake("b", 20), 2)
    opened.close()
    assert (entry, second) == Journal.open(host, journal.path).pending


@pytest.mark.parametrize(
    "line",
    [
        *(b"nonsense\n", b'{"seq":7,"undone":true}\n', b"[]\n", b'{"seq":1,"setting":{}}\n'),
        *(b'{"seq":1}\n', b'{"seq":1,"undone":false}\n', b'{"seq":1,"redone":true}\n'),
    ],
)
def test_a_damaged_journal_is_reported_with_its_line(
    host: Host, journal: Journal, line: bytes, golden: Golden
) -> None:
    """It is not guessed at: the message has the line and the next step."""
    journal.begin(fake("a", 10), 1)
    journal.close()
    with journal.path.open("ab") as file:
        file.write(line)
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)
    assert (journal.path,) == leftovers(host).here


def test_a_journal_of_an_earlier_build_is_read(host: Host, journal: Journal) -> None:
    """As long as its format is this one: its lines are data, whatever wrote them."""
    head = {"journal": 1, **asdict(journal.identity)}
    lines = (
        head,
        {"seq": 1, "setting": {"kind": "fake", "target": "a", "value": 10}, "before": 1},
        {"seq": 2, "setting": {"kind": "fake", "target": "b", "value": 20}, "before": 2},
        {"seq": 1, "after": 10},
        {"seq": 2, "undone": True},
    )
    journal.path.parent.mkdir(parents=True)
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (entry,) = Journal.open(host, journal.path).pending
    assert (1, 10, True) == (entry.before, entry.after, entry.applied)
    assert ("fake", "a", 10) == (entry.setting.kind, entry.setting.target, entry.setting.value)


@pytest.mark.parametrize("head", [b"{}\n", b'{"journal":2}\n', b'{"journal":1,"odd":1}\n'])
def test_a_file_that_is_no_journal_is_reported(
    host: Host, journal: Journal, head: bytes, golden: Golden
) -> None:
    """Also one of another format, and an empty one."""
    journal.path.parent.mkdir(parents=True)
    journal.path.write_bytes(head)
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)


def test_a_journal_in_use_is_not_opened(host: Host, journal: Journal, golden: Golden) -> None:
    """Its lock belongs to the process that writes it."""
    journal.begin(fake("a", 10), 1)
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)


def test_a_second_journal_of_the_same_run_is_refused(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """What a killed agent of the run has left must be undone first."""
    journal.begin(fake("a", 10), 1)
    with golden.raises(RestoreError):
        Journal(host, "run").begin(fake("b", 20), 2)


def test_a_journal_of_another_boot_is_stale(host: Host, journal: Journal, golden: Golden) -> None:
    """What it describes did not survive; it is listed apart and not opened."""
    journal.begin(fake("a", 10), 1)
    journal.close()
    host.write_text("/proc/sys/kernel/random/boot_id", "another")
    assert ((), (journal.path,)) == (leftovers(host).here, leftovers(host).stale)
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)


def test_a_journal_of_another_namespace_is_not_ours(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """Not even where the kernel has used the inode number again: the cookie tells."""
    journal.identity = replace(journal.identity, netns_cookie=0)
    journal.begin(fake("a", 10), 1)
    journal.close()
    assert ((), ()) == (leftovers(host).here, leftovers(host).stale)
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)


def test_a_card_that_came_back_from_a_namespace_that_ended_is_no_secret(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """It has what a dead run set there: the kernel moves it, and nothing restores it."""
    (lo,) = (name for index, name in socket.if_nameindex() if index == 1)
    mounts, card = host.root / "proc/self/mountinfo", host.root / f"sys/class/net/{lo}/device"
    mounts.write_text("21 1 0:4 net:[7] /run/netns/a rw - nsfs nsfs rw")
    (host.root / "proc/5/ns").mkdir(parents=True)
    journal.identity = replace(journal.identity, netns=7, netns_cookie=0)
    journal.begin(Setting("rings", lo, 4096), 512, index=1)
    journal.begin(Setting("napi_state", lo, None), {}, index=1)
    journal.begin(Setting("rings", "other", 4096), 512, index=1)
    journal.begin(Setting("rps", "proc/sys", 1), 0)
    card.mkdir(parents=True)
    held = leftovers(host).here  # its agent lives
    journal.close()
    here = [held, leftovers(host).here]
    mounts.write_text("")
    (host.root / "proc/5/ns/net").symlink_to("net:[7]")
    here.append(leftovers(host).here)
    (host.root / "proc/5/ns/net").unlink()
    card.rmdir()
    here.append(leftovers(host).here)
    card.mkdir()
    assert [()] * 4 == here
    assert (journal.path,) == leftovers(host).here
    with golden.raises(RestoreError):
        Journal.open(host, journal.path)


def test_leftovers_are_those_of_any_run_here(host: Host) -> None:
    """A new agent finds what earlier runs have left in its namespace, and no other file."""
    assert ((), ()) == (leftovers(host).here, leftovers(host).stale)
    paths = []
    for run in ("one", "two"):
        journal = Journal(host, run)
        journal.begin(fake("a", 10), 1)
        journal.close()
        paths.append(journal.path)
    (host.root / "run/udpbench/note.txt").write_text("x")
    assert tuple(paths) == leftovers(host).here


def test_a_journal_that_is_gone_is_reported(host: Host, journal: Journal) -> None:
    """Nothing is pending then: the caller decides that all is well."""
    with pytest.raises(FileNotFoundError):
        Journal.open(host, journal.path)


@pytest.mark.parametrize("run", ["", "a/b", "../x", "a b"])
def test_a_run_whose_name_is_no_file_name_is_refused(host: Host, run: str, golden: Golden) -> None:
    """The name comes from the controller and becomes a path."""
    with golden.raises(ValueError):
        Journal(host, run)


def test_a_closed_journal_takes_no_line(journal: Journal, golden: Golden) -> None:
    """A change whose journal is closed cannot be recorded as applied."""
    entry = journal.begin(fake("a", 10), 1)
    journal.close()
    with golden.raises(OSError):
        journal.applied(entry, 10)


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size: write(2) then takes a part, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_half_a_line_is_taken_back(host: Host, journal: Journal, golden: Golden) -> None:
    """Where the disk is full the entry is refused, and the next one stands on a line of its own."""
    journal.begin(fake("a", 10), 1)
    with largest_file(journal.path.stat().st_size + 20), golden.raises(OSError):
        journal.begin(fake("b", 20), 2)
    journal.begin(fake("c", 30), 3)
    journal.close()
    opened = Journal.open(host, journal.path)
    assert ["a", "c"] == [entry.setting.target for entry in opened.pending]


@pytest.mark.parametrize("beyond_bytes", [-1000, -20, 20])
def test_a_full_disk_leaves_no_journal_without_its_beginning(
    host: Host, journal: Journal, beyond_bytes: int, golden: Golden
) -> None:
    """Nothing, half a first line, one without a change: it is removed, and the next one is whole."""
    head_bytes = len(json.dumps({"journal": 1, **asdict(journal.identity)}, separators=(",", ":")))
    size_bytes = max(head_bytes + beyond_bytes, 0)
    with largest_file(size_bytes), golden.raises(OSError):
        journal.begin(fake("a", 10), 1)
    assert ((), False) == (journal.pending, journal.path.exists())
    entry = journal.begin(fake("b", 20), 2)
    journal.close()
    assert (entry,) == Journal.open(host, journal.path).pending


def test_a_full_disk_leaves_what_was_journalled_before(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """Only a journal in which nothing is pending goes with a change that was refused."""
    entry = journal.begin(fake("a", 10), 1)
    with largest_file(journal.path.stat().st_size), golden.raises(OSError):
        journal.begin(fake("b", 20), 2)
    journal.close()
    assert (entry,) == Journal.open(host, journal.path).pending


def test_the_journal_of_another_is_not_removed(
    host: Host, journal: Journal, golden: Golden
) -> None:
    """What a killed agent of the run has left stays where a second one is refused."""
    entry = journal.begin(fake("a", 10), 1)
    journal.close()
    with golden.raises(RestoreError):
        Journal(host, "run").begin(fake("b", 20), 2)
    assert (entry,) == Journal.open(host, journal.path).pending


def test_of_a_living_run_in_another_lab_only_the_first_line_is_read(host: Host) -> None:
    """Its agents know the rest, whatever that is; once nobody holds it, all of it counts."""
    living = Journal(host, "run", ends_with_run=True)
    living.identity = replace(living.identity, netns_cookie=0)
    living.begin(fake("a", 10), 1)
    with living.path.open("a") as file:
        file.write("damaged\n")
    assert ((), ()) == (leftovers(host).here, leftovers(host).stale)
    living.close()
    assert ((living.path,), ()) == (leftovers(host).here, leftovers(host).stale)
