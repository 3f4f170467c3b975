"""Every other network namespace, as its processes show it in a /proc of files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_watch import UDP_LINE, process

from udpbench.agent import spaces as module
from udpbench.agent.host.processes import TICK_NS
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.socket_owners import SocketOwners
from udpbench.agent.spaces import OtherSpaces
from udpbench.agent.watch import Looks
from udpbench.model.record import UdpSocket

STAT = "{} ({}) S 1" + " 0" * 9 + " {} 0 0 0 20 0 1 0 {} 0 0"
SNMP = "Udp: InDatagrams RcvbufErrors\nUdp: {} {}\n"


class Machine:
    """A machine of files with a namespace of its own and others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        own = root / "proc/self/ns/net"
        own.parent.mkdir(parents=True)
        own.write_text("")
        self.own = own.stat().st_ino
        process(root, 1, self.own, [])
        self.host = Host(root)
        self.spaces = OtherSpaces(self.host, SocketOwners(self.host))

    def add(self, pid: int, space: int, inodes: list[int], drops: int = 0) -> Path:
        """Make a process with sockets in a namespace."""
        folder = process(self.root, pid, space, inodes)
        self.write(folder, inodes, drops)
        return folder

    def write(self, folder: Path, inodes: list[int], drops: int) -> None:
        """Have its namespace hold these sockets."""
        lines = [UDP_LINE.format(inode, drops) for inode in inodes]
        (folder / "net/udp").write_text("\n".join(["head", *lines, ""]))
        (folder / "net/snmp").write_text(SNMP.format(drops, drops))
        (folder / "net/netstat").write_text("")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Make one."""
    return Machine(tmp_path)


def test_each_namespace_has_its_counters_and_what_changed(machine: Machine) -> None:
    """Its sockets with their processes, as of the first look, and those that changed later."""
    folder = machine.add(50, 7, [4, 5], drops=3)
    (first,) = machine.spaces.look()
    assert (7, "7") == (first.netns, first.name)
    assert first.look is not None
    assert 3 == first.look.snapshot.counters["snmp.Udp.RcvbufErrors"]
    assert [("name50 50",)] * 2 == [each.processes for each in first.look.sockets]
    assert {(53, "0.0.0.0", 3, None, 0)} == {  # noqa: S104
        (s.port, s.address, s.drops, s.buffer_bytes, s.uid) for s in first.look.sockets
    }
    (again,) = machine.spaces.look()
    assert again.look is not None
    assert ((), ()) == (again.look.sockets, again.look.ended)
    machine.write(folder, [4], drops=9)
    (later,) = machine.spaces.look()
    assert later.look is not None
    assert ([9], (5,)) == ([each.drops for each in later.look.sockets], later.look.ended)
    assert [4] == [each.inode for each in machine.spaces.dropping]


def test_a_namespace_has_the_name_that_root_gave_it(machine: Machine) -> None:
    """One without a process cannot be read."""
    named = machine.root / "run/netns"
    named.mkdir(parents=True)
    for name in ("blue", "empty"):
        (named / name).write_text("")
    machine.add(50, (named / "blue").stat().st_ino, [4])
    looks = {each.name: each.look is not None for each in machine.spaces.look()}
    assert {"blue": True, "empty": False} == looks


def test_a_process_that_ended_is_replaced_by_another(machine: Machine) -> None:
    """And so is one whose number somebody else has by now; if all have, it is not readable."""
    machine.add(50, 7, [4])
    machine.add(60, 7, [4])
    machine.spaces.look()
    (machine.root / "proc/50/ns/net").unlink()
    (machine.root / "proc/50/ns/net").symlink_to("net:[9]")
    (look,) = machine.spaces.look()
    assert look.look is not None
    (machine.root / "proc/60/net/udp").unlink()
    (look,) = machine.spaces.look()
    assert None is look.look


def test_of_namespaces_without_end_the_oldest_are_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many are left out is known, and a look ends in time."""
    for number in range(70):
        machine.add(100 + number, 1000 + number, [10 + number])
    looks = machine.spaces.look()
    assert (64, 6) == (len([each for each in looks if each.look]), machine.spaces.left_out)
    assert [*range(1000, 1064)] == [each.netns for each in looks]
    monkeypatch.setattr(module, "LOOK_NS", -1)
    assert [None] * 64 == [each.look for each in machine.spaces.look()]


def test_whatever_numbers_processes_have_the_oldest_namespaces_are_read(machine: Machine) -> None:
    """Numbers begin anew; and who is read once is read as long as the namespace is there."""
    for number in range(70):
        folder = machine.add(100 + number, 1000 + number, [10 + number])
        (folder / "stat").write_text(STAT.format(100 + number, "x", 0, 5000 - number))
    looks = machine.spaces.look()
    assert [*range(1069, 1005, -1)] == [each.netns for each in looks]
    shutil.rmtree(machine.root / "proc/169")
    folder = machine.add(50, 7, [4])
    (folder / "stat").write_text(STAT.format(50, "x", 0, 1))
    machine.spaces._owners._search()
    looks = machine.spaces.look()
    assert [*range(1068, 1005, -1), 7] == [each.netns for each in looks]
    assert 6 == machine.spaces.left_out


def test_processes_without_end_are_not_all_named(tmp_path: Path) -> None:
    """After the first reading only those that used CPU time, or most of all."""

    def run(pid: int, ticks: int) -> None:
        (tmp_path / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"proc/{pid}/stat").write_text(STAT.format(pid, "sh", ticks, 1))

    looks, seen = Looks(Host(tmp_path), "here"), []
    looks._number = looks._close_until = 1
    for ticks in ((1, 1, 1), (2, 3, 2), (6, 3, 4), (6, 3, 5), (6, 3, 0)):
        for pid, spent in enumerate(ticks, 1):
            run(pid, spent)
        seen.append({int(name.split()[1]): ns // TICK_NS for name, ns in looks._busy().items()})
    assert [{1: 1, 2: 1, 3: 1}, {2: 3}, {1: 6}, {3: 5}, {3: 0}] == seen


def test_of_a_table_that_is_cut_off_nothing_has_ended(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond its end may be there again at the next look."""
    folder = machine.add(50, 7, [4, 5])
    machine.spaces.look()
    monkeypatch.setattr(module, "TABLE_BYTES", len((folder / "net/udp").read_bytes()) - 5)
    (look,) = machine.spaces.look()
    assert look.look is not None
    assert ((), ()) == (look.look.sockets, look.look.ended)
    monkeypatch.undo()
    (look,) = machine.spaces.look()
    assert look.look is not None
    assert [5] == [each.inode for each in look.look.sockets]


def test_a_survey_has_so_many_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were there first, then those that have lost packets; a watch has all."""
    looks = Looks(Host(), "here")
    looks._sockets = {9: UdpSocket(9, 9, 4, "", 1, None, 0, 0, 0, 1, 0)}
    listed = {n: UdpSocket(n, n, 4, "", 1, None, 0, 0, 0, 1, n % 2) for n in range(1, 10)}
    monkeypatch.setattr("udpbench.agent.watch.SOCKETS_MAX", 3)
    assert listed is looks._few(listed)
    looks._patience = 10
    assert [9, 1, 3] == [*looks._few(listed)]


def test_a_containers_id_is_no_part_of_its_unit(machine: Machine) -> None:
    """It would be another for each start; a slice is no unit, nor is what a user calls so."""
    owners = SocketOwners(machine.host)
    (machine.root / "proc/1/cgroup").write_text("0::/init.scope\n")
    paths = {
        "system.slice/dns.service": "dns.service",
        f"system.slice/docker-{'ab' * 32}.scope": "docker.scope",
        f"kubepods.slice/kubepods-pod1.slice/cri-containerd-{'0f' * 32}.scope": "cri-containerd.scope",
        "user.slice/user-1000.slice/user@1000.service/app.slice/dns.service": "user@1000.service",
        "user.slice": "",
        "../../system.slice/dns.service": "",
    }
    for pid, path in enumerate(paths, start=200):
        process(machine.root, pid, 7, [], f"/{path}")
    assert [*paths.values()] == [owners.unit(200 + n) for n in range(len(paths))]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_a_survey_sees_this_namespace_and_others() -> None:
    """As the kernel has them; the ports that it gives to clients, too."""
    code = "import socket,sys;s=socket.socket(2,2);s.bind(('',5353));print(flush=True);sys.stdin.read()"
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine,
        subprocess.Popen(
            ("unshare", "--net", sys.executable, "-c", code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other,
    ):
        mine.bind(("127.0.0.1", 0))
        assert other.stdout is not None
        other.stdout.readline()
        survey = Looks(Host(), "here").survey(exact=False)
        own, *others = survey.spaces
        assert own.look is not None
        assert mine.getsockname()[1] in [each.port for each in own.look.sockets]
        inode = Path(f"/proc/{other.pid}/ns/net").stat().st_ino
        (far,) = [each for each in others if each.netns == inode]
        assert far.look is not None
        (there,) = far.look.sockets
        assert 5353 == there.port
        (name,) = there.processes
        assert name.endswith(f" {other.pid}")
        assert name in survey.units
        assert 0 < survey.ephemeral[0] < survey.ephemeral[1] < 65536
        assert "host" == own.name
        other.kill()


def test_a_process_that_may_not_be_seen_is_known(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has ended has no namespace."""
    process(machine.root, 70, 7, [])
    (machine.root / "proc/70/ns/net").unlink()
    owners = SocketOwners(machine.host)
    owners.learn((), "")
    assert owners.sees_all

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "readlink", refuse)
    assert not owners.sees_all
