"""Looks at this machine, and whose sockets are whose in a /proc of files."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Optional

import pytest
from golden import Golden

from udpbench.agent import watch as room
from udpbench.agent.host import socket_owners as module
from udpbench.agent.host.files import read_beginning as beginning
from udpbench.agent.host.socket_owners import SocketOwners
from udpbench.agent.host.system import Host
from udpbench.agent.watch import READERS_MAX, Looks
from udpbench.errors import NothingToWatch
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import HostLook, OtherNamespace, Snapshot, UdpSocket

UDP_LINE = (
    "   1: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 {} 2 0 {}"
)


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    """Open a UDP socket on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield opened


def here(look: HostLook, receiver: socket.socket) -> list[tuple[str, ...]]:
    """Return the owners of a socket, if it is among those that are told."""
    port = receiver.getsockname()[1]
    return [each.processes for each in look.sockets if each.port == port]


def test_only_what_changed_is_reported_again(receiver: socket.socket) -> None:
    """The counters are whole each time; a closed socket is told once."""
    looks = Looks(Host(), "here")
    first, second = looks.look(None, None, exact=False), looks.look(None, None, exact=False)
    label = f"{Path('/proc/self/comm').read_text().strip()} {os.getpid()}"
    assert ([(label,)], []) == (here(first, receiver), here(second, receiver))
    assert {"lo"} <= set(first.interfaces)
    names = {"snmp.Udp.NoPorts", "softnet.cpu0.dropped", "link.lo.rx_packets"}
    assert names <= first.snapshot.counters.keys() & second.snapshot.counters.keys()
    (cookie,) = [each.cookie for each in first.sockets if each.processes == (label,)]
    receiver.close()
    assert [cookie] == [
        each for each in looks.look(None, None, exact=False).ended if each == cookie
    ]
    assert cookie not in looks.look(None, None, exact=False).ended


def test_a_socket_in_the_place_of_a_closed_one_has_its_owner_at_once(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search, which would wait for its pause."""
    looks = Looks(Host(), "here")
    (before,) = here(looks.look(None, None, exact=False), receiver)
    monkeypatch.setattr(SocketOwners, "_search", lambda _: None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(("127.0.0.1", 0))
        os.dup2(again.fileno(), receiver.fileno())
        assert [before] == here(looks.look(None, None, exact=False), again)


def test_without_owners_nobody_is_searched_for(receiver: socket.socket) -> None:
    """Nor are threads looked at, though packets are dropped; sockets are listed as ever."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    looks = Looks(Host(), "here", owners=False)
    assert [()] == here(looks.look(None, None, exact=False), receiver)
    lose(receiver)
    look = looks.look(None, None, exact=False)
    assert ([()], {}, (), None) == (
        *(here(look, receiver), look.threads, look.namespaces, looks.tick(0)),
    )


@pytest.mark.parametrize("owners", [False, True])
def test_who_sees_every_process_needs_no_root(
    owners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer has given root up, and kept the right to see; if nobody searches, none is seen."""
    monkeypatch.setattr(SocketOwners, "sees_all", property(lambda _: True))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    look = Looks(Host(), "here", owners=owners).look(None, None, exact=False)
    assert owners is look.by_root
    monkeypatch.setattr(SocketOwners, "sees_all", property(lambda _: False))
    assert not Looks(Host(), "here").look(None, None, exact=False).by_root


def test_a_process_is_watched_by_its_own_sockets(receiver: socket.socket) -> None:
    """For this namespace nothing has to be entered."""
    look = Looks(Host(), "here").look(os.getpid(), None, exact=False)
    assert look.watched is not None
    assert 1 <= len(look.watched)
    assert set(look.watched) <= {each.cookie for each in look.sockets}


def lose(receiver: socket.socket) -> None:
    """Have datagrams dropped at a socket that nobody reads."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(100):
            sender.sendto(bytes(200), receiver.getsockname())


@pytest.mark.parametrize("pid", [None, os.getpid()], ids=["all", "own"])
def test_what_the_readers_of_dropping_sockets_did_is_told(
    receiver: socket.socket, pid: Optional[int]
) -> None:
    """Their threads are looked at between two requests, at times of its own; others' are not told."""
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    looks = Looks(Host(), "here")
    assert None is looks.tick(0)
    assert {} == looks.look(pid, None, exact=False).threads
    assert (due := looks.tick(0)) is not None
    assert due == looks.tick(due - 1)
    for _ in range(3):
        assert (due := looks.tick(time.monotonic_ns() + SECOND_NS)) is not None
    label = f"{Path('/proc/self/comm').read_text().strip()} {os.getpid()}"
    assert label not in looks.look(pid, None, exact=False).threads
    lose(receiver)
    end_ns = time.monotonic_ns() + 5 * SECOND_NS
    while (uses := looks.look(pid, None, exact=False).threads) == {}:
        assert time.monotonic_ns() < end_ns
        looks.tick(time.monotonic_ns() + SECOND_NS)
        lose(receiver)
    assert {label} == uses.keys()
    assert any(each.running_ns for each in uses[label])


def test_threads_of_a_few_processes_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets that drop come first, then those before them; those that have ended make room."""
    looks = Looks(Host(tmp_path), "here")
    monkeypatch.setattr(looks._owners, "holders", lambda inode: (inode,))
    for pid in range(1, 3 * READERS_MAX):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
    many = [UdpSocket(n, n, 4, "", 1, None, 0, 0, 0, 1, 0) for n in range(1, 3 * READERS_MAX)]
    looks._uses([], many, None)
    assert [*range(1, READERS_MAX + 1)] == [*looks._readers]
    (tmp_path / "proc/1").rmdir()
    looks._uses([many[-1]], [], None)
    assert [len(many), *range(2, READERS_MAX + 1)] == [*looks._readers]
    looks._uses([many[9], many[10]], many, (11,))
    assert [11, len(many), *range(2, READERS_MAX)] == [*looks._readers]


def test_what_is_not_there_is_an_error(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process, a socket of it, a unit, a process of another user, and exact counts."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    def look(pid: int | None, unit: str | None = None, *, exact: bool = False) -> None:
        with golden.raises(NothingToWatch):
            Looks(Host(), "here").look(pid, unit, exact)

    look(2**30)
    with subprocess.Popen(("sleep", "60")) as sleeper:
        look(sleeper.pid)
        sleeper.kill()
    look(None, "no-such-unit")
    monkeypatch.setattr(room, "SocketCounts", refuse)
    for user in (0, 1000):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        look(None, exact=True)
    for error in (PermissionError(1, "no"), OSError(22, "Invalid argument")):
        monkeypatch.setattr(room, "enter", lambda *_, error=error: raising(error))
        look(1)


def raising(error: BaseException) -> None:
    """Raise it."""
    raise error


def process(root: Path, pid: int, space: int, inodes: list[int], cgroup: str = "/") -> Path:
    """Make a process of files and return its folder."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "ns").mkdir()
    (folder / "net").mkdir()
    (folder / "comm").write_text(f"name{pid}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "ns/net").symlink_to(f"net:[{space}]")
    (folder / "fd/0").symlink_to("/dev/null")
    for number, inode in enumerate(inodes):
        (folder / f"fd/{number + 3}").symlink_to(f"socket:[{inode}]")
    return folder


@pytest.fixture
def owners(tmp_path: Path) -> SocketOwners:
    """Know three processes, the last of which has a namespace of its own."""
    own = tmp_path / "proc/self/ns/net"
    own.parent.mkdir(parents=True)
    own.write_text("")
    space = own.stat().st_ino
    process(tmp_path, 20, space, [1, 2], "/system.slice/dns.service")
    process(tmp_path, 30, space, [2], "/user.slice")
    process(tmp_path, 40, space + 1, [])
    far = process(tmp_path, 50, space + 1, [7])
    for folder in (far, tmp_path / "proc/40"):
        lines = ("head", UDP_LINE.format(7, 12), UDP_LINE.format(8, 1))
        (folder / "net/udp").write_text("\n".join(lines) + "\n")
    known = SocketOwners(Host(tmp_path))
    known.learn([1], "")
    return known


def test_a_socket_may_have_several_owners(owners: SocketOwners) -> None:
    """Or none that can be seen."""
    assert [("name20 20",), ("name20 20", "name30 30"), ()] == [
        owners.processes(inode) for inode in (1, 2, 9)
    ]


def test_a_unit_is_its_folder_of_cgroups(owners: SocketOwners) -> None:
    """With its suffix or without."""
    assert [[20], [20], []] == [
        owners.in_unit(name) for name in ("dns", "dns.service", "system.slice.dns")
    ]


IMPOSTOR = "user.slice/user-1234.slice/user@1234.service/app.slice/dns.service"
OWN = IMPOSTOR.replace("1234", str(os.geteuid()))


@pytest.mark.parametrize(
    ("lines", "init", "belongs"),
    [
        ("0::/system.slice/dns.service", "0::/init.scope", True),
        ("0::/system.slice/dns.service/workers/1", "0::/init.scope", True),
        ("0::/system.slice/system-dns.slice/dns.service", "0::/init.scope", True),
        ("0::/machine.slice/machine-a.slice/_dns.service", "0::/init.scope", True),
        ("0::/dns.service", "0::/init.scope", True),
        ("1:name=systemd:/system.slice/dns.service\n0::/", "1:name=systemd:/init.scope", True),
        ("0::/a/b/system.slice/dns.service", "0::/a/b/init.scope", True),
        (f"0::/{OWN}", "0::/init.scope", True),
        (f"0::/{IMPOSTOR}", "0::/init.scope", False),
        (f"1:name=systemd:/{IMPOSTOR}\n0::/", "1:name=systemd:/init.scope", False),
        ("0::/system.slice/docker-1.scope/system.slice/dns.service", "0::/init.scope", False),
        ("1:name=systemd:/\n0::/dns.service", "1:name=systemd:/\n0::/", True),
        ("1:name=systemd:/user.slice\n2:cpu:/dns.service", "1:name=systemd:/init.scope", False),
        ("0::/../../system.slice/dns.service", "0::/init.scope", False),
        ("0::/system.slice/dns.service", "0::/a/b/init.scope", False),
        ("0::/user.slice/a\r0::/system.slice/dns.service", "0::/init.scope", False),
        ("0::/user.slice/a\u2028b", "0::/init.scope", False),
        ("a\n0::/system.slice/dns.service", "0::/init.scope", True),
    ],
)
def test_a_unit_is_one_of_the_system(lines: str, init: str, belongs: bool, tmp_path: Path) -> None:
    """In any slice, by cgroup v1 and v2; none that a user or a container named the same."""
    own = tmp_path / "proc/self/ns/net"
    own.parent.mkdir(parents=True)
    own.write_text("")
    for pid, text in ((1, init), (20, lines)):
        (process(tmp_path, pid, 1, []) / "cgroup").write_text(f"{text}\n")
    known = SocketOwners(Host(tmp_path))
    known.learn((), "dns")
    assert ([20] if belongs else []) == known.in_unit("dns")
    assert belongs == (known.unit(20) == "dns.service")


def test_another_namespace_is_named_by_a_process_with_a_socket(owners: SocketOwners) -> None:
    """Not by the first process there."""
    assert (OtherNamespace(50, "name50 50", 2, 13),) == owners.namespaces


def test_of_many_namespaces_the_oldest_are_listed(
    owners: SocketOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may make thousands, with sockets in them; no more are read than that."""
    read = []
    monkeypatch.setattr(
        module,
        "read_beginning",
        lambda host, path, size: read.append(path) or beginning(host, path, size),
    )
    for number in range(100):
        folder = process(tmp_path, 1000 + number, 10**6 + number, [])
        (folder / "net/udp").write_text(f"head\n{UDP_LINE.format(10**6 + number, 0)}\n")
    owners._search()
    assert [50, *range(1000, 1063)] == [each.pid for each in owners.namespaces]
    assert 2 * 64 == len([path for path in read if "/net/udp" in path])


def test_of_a_namespace_with_sockets_without_end_the_first_are_counted(
    owners: SocketOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is said; once the time is over no further one is read."""
    lines = [UDP_LINE.format(n, 1) for n in range(10_000, 13_000)]
    (process(tmp_path, 60, 60, []) / "net/udp").write_text("\n".join(["head", *lines, ""]))
    owners._search()
    (many,) = [each for each in owners.namespaces if each.pid == 60]
    assert (False, many.sockets) == (many.all_read, many.drops)
    assert 500 < many.sockets < 3000
    monkeypatch.setattr(module, "SEARCH_NS", -1)
    owners._search()
    assert () == owners.namespaces


def test_a_user_with_sockets_without_end_hides_no_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes are read in turn, and the rest of a long list is not."""
    for pid, user in ((20, 1000), (30, 1000), (40, 0)):
        folder = process(tmp_path, pid, 1, list(range(pid, pid + 10)))
        (folder / "status").write_text(f"Name:\tx\nUid:\t7\t{user}\t7\t7\n")
    ticks = count()
    monkeypatch.setattr(Host, "clock_ns", lambda _: next(ticks))
    monkeypatch.setattr(module, "SEARCH_NS", 4)
    monkeypatch.setattr(module, "TURN", 5)
    host = Host(tmp_path)
    held = {pid for pid, _ in module.all_held(host, [20, 30, 40])}
    assert held == {20, 40}
    words = "name40 40 (user 0), a process that could not be seen"
    assert words == module.holders_in_words(host, [39, 41])


def test_a_process_of_any_name_is_its_users(tmp_path: Path) -> None:
    """The kernel escapes in it the one line end that counts (proc_pid_status(5))."""
    for pid, name in ((20, "\rUid:"), (30, "\rUid:\t0\t0\t0\t0"), (40, "\x1cUid:\t0\t0")):
        folder = process(tmp_path, pid, 1, [pid])
        (folder / "status").write_bytes(f"Name:\t{name}\nUid:\t7\t1000\t7\t7\n".encode())
    host = Host(tmp_path)
    assert {(20, 20), (30, 30), (40, 40)} == {*module.all_held(host, [20, 30, 40])}
    assert "name30 30 (user 1000)" == module.holders_in_words(host, [30])
    assert not host.is_of_root(30)


def test_a_search_of_many_users_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first round, too: a user may own thousands of user ids."""
    for pid in range(100, 200):
        folder = process(tmp_path, pid, 1, [pid])
        (folder / "status").write_text(f"Uid:\t7\t{pid}\t7\t7\n")
    read: list[str] = []
    link_target = Host.link_target
    monkeypatch.setattr(
        Host, "link_target", lambda own, path: read.append(path) or link_target(own, path)
    )
    monkeypatch.setattr(Host, "clock_ns", lambda _: len(read))
    monkeypatch.setattr(module, "SEARCH_NS", 20)
    assert 11 == len([*module.all_held(Host(tmp_path), range(100, 200))])
    assert 22 == len(read)


def test_a_search_is_not_repeated_at_once(
    owners: SocketOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after many times what it took, and where no owner is missing after a minute."""
    searches: list[str] = []
    monkeypatch.setattr(SocketOwners, "_search", lambda _: searches.append("search"))
    now_ns = Host().clock_ns()
    monkeypatch.setattr(Host, "clock_ns", lambda _: now_ns)
    owners.learn([99], "")
    assert [] == searches
    now_ns += 59 * 10**9
    owners.learn([1], "")
    assert [] == searches
    owners.learn([99], "")
    now_ns += 61 * 10**9
    owners.learn([1], "")
    assert ["search", "search"] == searches


def test_a_process_that_began_after_a_search_is_known_at_the_next_look(
    owners: SocketOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another search; what older processes opened waits for that."""
    searches = owners.searches
    now_ns = Host().clock_ns()
    monkeypatch.setattr(Host, "clock_ns", lambda _: now_ns)
    monkeypatch.setattr(SocketOwners, "_search", lambda _: pytest.fail("searched"))
    owners._due_ns = now_ns + 10**12
    (tmp_path / "proc/30/fd/9").symlink_to("socket:[98]")
    process(tmp_path, 60, 1, [98, 99, 2])
    owners.learn([98, 99], "")
    assert [("name60 60",)] * 2 == [owners.processes(inode) for inode in (98, 99)]
    assert ("name20 20", "name30 30") == owners.processes(2)
    assert searches + 1 == owners.searches
    owners.learn([97], "")
    assert searches + 1 == owners.searches


def test_a_pause_follows_the_cpu_time_of_a_search(
    owners: SocketOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not how long others kept the CPUs from it."""
    clock, cpu = iter([10**18, 10**18 + 10**10]), iter([0, 10**7, 11 * 10**6])
    owners._near_ns = 10**19
    monkeypatch.setattr(Host, "clock_ns", lambda _: next(clock))
    monkeypatch.setattr(module.time, "thread_time_ns", lambda: next(cpu))
    monkeypatch.setattr(SocketOwners, "_search", lambda _: None)
    owners.learn([99], "")
    assert 10**18 + 10**10 + module.PAUSE * 10**6 == owners._due_ns


def test_what_opens_where_a_socket_was_closed_is_known_at_the_next_look(
    owners: SocketOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is given its lowest free descriptor: no search has to wait for its pause."""
    monkeypatch.setattr(SocketOwners, "_search", lambda _: pytest.fail("searched"))
    owners._due_ns = 10**19
    monkeypatch.setattr(module, "NEAR_PAUSE", 0)
    places = [tmp_path / "proc/20/fd/3", tmp_path / "proc/50/fd/3"]
    for place in places:
        place.unlink()
    owners.forget([1, 7, 99])
    owners.learn([98], "")
    assert () == owners.processes(1) == owners.processes(98)
    for place, target in zip(places, ("socket:[98]", "/dev/null")):
        place.symlink_to(target)
    owners.learn([98], "")
    assert ("name20 20",) == owners.processes(98)
    monkeypatch.setattr(Host, "link_target", lambda *_: pytest.fail("read"))
    owners.learn([97], "")
    owners.forget([98])
    assert [(20, 3)] == [*owners._vacant]


def test_so_many_closed_sockets_leave_a_trace(
    owners: SocketOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest: reading those of a host that closes all it has would take long."""
    monkeypatch.setattr(module, "VACANT_MAX", 2)
    owners.forget([1, 2, 7])
    assert [(20, 4), (50, 3)] == [*owners._vacant]


def test_young_processes_are_read_for_a_small_share_of_the_time(
    owners: SocketOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may begin ever more of them."""
    read: list[int] = []
    clock = iter([0, 10**9, 10**9 + 99 * 10**6, 10**9 + 10**8, 10**10])
    cpu = iter([0, 10**6, 10**6, 10**6, 2 * 10**6])
    owners._due_ns, owners._near_ns = 10**12, 0
    monkeypatch.setattr(SocketOwners, "_search_near", lambda *_: read.append(1) or set())
    monkeypatch.setattr(Host, "clock_ns", lambda _: next(clock))
    monkeypatch.setattr(module.time, "thread_time_ns", lambda: next(cpu))
    for number in (1, 1, 2):
        owners.learn([99], "")
        assert number == len(read)


def test_many_sockets_are_returned_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a hundred thousand would be a line that no reader takes."""
    monkeypatch.setattr(room, "LOOK_SOCKETS", 2)
    looks = Looks(Host(tmp_path), "here")
    sockets = tuple(UdpSocket(n, n, 4, "0.0.0.0", n, None, 0, 0, 0, 1, 0) for n in range(5))  # noqa: S104
    whole = HostLook(Snapshot("here", 1, {}), (), sockets)
    monkeypatch.setattr(looks, "look", lambda *_: whole)
    first = looks.look_in_parts(None, None, exact=False)
    parts = [first.sockets, *(looks.more_sockets() for _ in range(3))]
    assert [(0, 1), (2, 3), (4,), ()] == [tuple(each.cookie for each in part) for part in parts]


def test_of_many_interfaces_those_of_devices_are_read(tmp_path: Path) -> None:
    """A host of containers has a virtual one for each of them; one that is down counts nothing."""
    for name in ("lo", "eth0", "down", *(f"veth{n}" for n in range(9))):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text("down\n" if name == "down" else "up\n")
    (tmp_path / "sys/class/net/eth0/device").mkdir()
    looks = Looks(Host(tmp_path), "here")
    assert ["lo", "eth0"] == looks.interfaces()
    (tmp_path / "sys/class/net/eth1/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth1/operstate").write_text("up\n")
    (tmp_path / "sys/class/net/eth0/operstate").write_text("down\n")
    assert ["lo", "eth1"] == looks.interfaces()
