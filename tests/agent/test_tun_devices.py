"""Which process has a tun device, by what the files of processes say."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from udpbench.agent.host import tun_devices
from udpbench.agent.host.system import Host
from udpbench.agent.host.tun_devices import (
    holder,
    runs_machine,
    searched_once,
    wireguard_socket,
)


def process(
    root: Path, pid: int, *opened: str, space: int = 1, device: str = "tun0", user: int = 0
) -> None:
    """Have a process with these files open, in a network namespace."""
    for folder in ("fd", "fdinfo", "ns", "net"):
        (root / f"proc/{pid}/{folder}").mkdir(parents=True)
    (root / f"proc/{pid}/ns/net").symlink_to(f"net:[{space}]")
    (root / f"proc/{pid}/status").write_text(f"Uid:\t7\t{user}\t7\t7\n")
    for number, target in enumerate(opened):
        (root / f"proc/{pid}/fd/{number}").symlink_to(target)
        text = f"pos:\t0\niff:\t{device}\n" if target.endswith("tun") else "pos:\t0\n"
        (root / f"proc/{pid}/fdinfo/{number}").write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a file system with this process's namespace."""
    (tmp_path / "proc/thread-self/ns").mkdir(parents=True)
    (tmp_path / "proc/thread-self/ns/net").symlink_to("net:[1]")
    for name in ("tun0", "eth0"):
        (tmp_path / f"sys/class/net/{name}").mkdir(parents=True)
    (tmp_path / "sys/class/net/tun0/tun_flags").write_text("0x1001")
    return tmp_path


TUN = "/dev/net/tun"


def test_a_process_of_this_namespace_has_the_device(root: Path) -> None:
    """Another namespace may have a device of its name."""
    process(root, 7, "/dev/null", TUN)
    process(root, 8, TUN, space=2)
    process(root, 9, TUN, device="tun01")
    assert 7 == holder(Host(root), "tun0")


def test_a_device_may_have_been_moved_here(root: Path) -> None:
    """Among several processes it is not known which one has it."""
    assert holder(Host(root), "tun0") is None
    process(root, 8, TUN, space=2)
    assert 8 == holder(Host(root), "tun0")
    process(root, 9, TUN, space=3)
    assert holder(Host(root), "tun0") is None
    assert wireguard_socket(Host(root), "tun0") is None


def test_no_user_has_what_root_has(root: Path) -> None:
    """Any user makes devices of any name in namespaces of its own, and holds them anywhere."""
    process(root, 20, TUN, user=1000)
    assert 20 == holder(Host(root), "tun0")
    process(root, 8, TUN, space=2)
    assert holder(Host(root), "tun0") is None, "it may be the device of 8, which was moved here"
    process(root, 7, TUN)
    assert 7 == holder(Host(root), "tun0")


def test_a_users_device_elsewhere_keeps_none_of_roots_from_being_known(root: Path) -> None:
    """One that was moved here from the namespace of its process."""
    process(root, 8, TUN, space=2)
    process(root, 20, TUN, space=3, user=1000)
    assert 8 == holder(Host(root), "tun0")


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("anon_inode:kvm-vm", True),
        ("/tmp/anon_inode:kvm-vm", False),
        ("/dev/vhost-net", False),
        ("/dev/null", False),
    ],
)
def test_a_virtual_machine_is_known_by_what_it_has_open(
    root: Path, target: str, runs: bool
) -> None:
    """Its device is a card of that machine. Anybody may have a file of such a name."""
    process(root, 7, TUN, target)
    assert runs is runs_machine(Host(root), 7)


def test_wireguard_in_a_process_has_a_socket_of_the_devices_name(root: Path) -> None:
    """Which that process has open: another's may have the same name."""
    process(root, 7, TUN, "socket:[41]")
    table = root / "proc/7/net/unix"
    table.write_text("0: 2 0 10000 0001 01 41 /run/other.sock\n")
    assert wireguard_socket(Host(root), "tun0") is None
    table.write_text("0: 2 0 10000 0001 01 42 /var/run/wireguard/tun0.sock\n")
    assert wireguard_socket(Host(root), "tun0") is None
    table.write_text("0: 2 0 10000 0001 01 41 /var/run/wireguard/tun0.sock\n")
    assert "/proc/7/root/run/wireguard/tun0.sock" == wireguard_socket(Host(root), "tun0")
    assert wireguard_socket(Host(root), "eth0") is None


def test_a_file_that_is_called_as_a_socket_is_none(root: Path) -> None:
    """Nor has its process the socket."""
    process(root, 7, TUN, "/home/me/socket:[41]")
    (root / "proc/7/net/unix").write_text("0: 2 0 10000 0001 01 41 /run/wireguard/tun0.sock\n")
    assert wireguard_socket(Host(root), "tun0") is None


def test_a_line_that_a_name_of_a_socket_made_has_no_columns(root: Path) -> None:
    """Any user may bind a socket whose name has a line end."""
    process(root, 7, TUN, "socket:[41]")
    rows = "0: 2 0 10000 0001 01 9 /tmp/x\n/wireguard/tun0.sock\n"
    (root / "proc/7/net/unix").write_text(rows)
    assert wireguard_socket(Host(root), "tun0") is None


class Reads:
    """What is read of the host, of which each is a nanosecond of its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, search_ns: int) -> None:
        self.links: list[str] = []
        self.texts: list[str] = []
        link_target, read_text = Host.link_target, Host.read_text
        monkeypatch.setattr(tun_devices, "SEARCH_NS", search_ns)
        monkeypatch.setattr(
            Host, "link_target", lambda own, path: self.links.append(path) or link_target(own, path)
        )
        monkeypatch.setattr(
            Host, "read_text", lambda own, path: self.texts.append(path) or read_text(own, path)
        )
        monkeypatch.setattr(Host, "clock_ns", lambda _: len(self.links) + len(self.texts))

    def of(self, *folders: str) -> int:
        """Return how many lie in folders of processes of such a name."""
        paths = [*self.links, *self.texts]
        return sum(path.split("/")[3] in folders for path in paths if path.count("/") == 4)


FAKE = "/home/me/tun"
NEARLY = "/home/me/net/tun"


def test_files_of_the_mere_name_are_not_looked_into(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's device has another path."""
    process(root, 7, *[FAKE] * 500, user=1000)
    process(root, 8, "/srv/box/dev/net/tun")
    process(root, 9, TUN)
    reads = Reads(monkeypatch, 10**9)
    assert holder(Host(root), "tun0") is None, "both have it"
    assert (502, 2) == (reads.of("fd"), reads.of("fdinfo"))


def test_a_descriptor_that_is_closed_meanwhile_is_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two readings of where it leads."""
    process(root, 7, TUN)
    link_target = Host.link_target

    def closing(own: Host, path: str) -> Optional[str]:
        target = link_target(own, path)
        if target == "tun":
            own.path(path).unlink()
        return target

    monkeypatch.setattr(Host, "link_target", closing)
    assert holder(Host(root), "tun0") is None


@pytest.mark.parametrize("fake", [FAKE, NEARLY, TUN])
def test_roots_process_is_found_whatever_others_have_open(
    root: Path, monkeypatch: pytest.MonkeyPatch, fake: str
) -> None:
    """The time ends the search of theirs, and of whom none is root's it is not known."""
    for pid in range(10, 20):
        process(root, pid, *[fake] * 500, user=pid, device="")
    process(root, 99, *["/dev/null"] * 150, TUN)
    process(root, 98, TUN, device="tun1", user=1000)
    process(root, 97, TUN, device="tun2", space=2)
    reads = Reads(monkeypatch, 600)
    assert 99 == holder(Host(root), "tun0")
    assert 600 < reads.of("fd", "fdinfo") < 900
    assert holder(Host(root), "tun1") is None
    assert holder(Host(root), "tun2") is None, "another may be in this namespace"
    monkeypatch.setattr(tun_devices, "SEARCH_NS", 10**9)
    assert [99, 98, 97] == [holder(Host(root), f"tun{number}") for number in range(3)]
    monkeypatch.setattr(tun_devices, "SEARCH_NS", -1)
    assert holder(Host(root), "tun0") is None


def test_what_a_process_has_open_is_read_for_so_long(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine behind it is not known then, which is refused."""
    process(root, 7, *["/dev/null"] * 500, "anon_inode:kvm-vm")
    reads = Reads(monkeypatch, 10**9)
    assert runs_machine(Host(root), 7)
    monkeypatch.setattr(tun_devices, "SEARCH_NS", 0)
    before = len(reads.links)
    assert not runs_machine(Host(root), 7)
    assert len(reads.links) - before <= 100


def test_a_question_searches_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked meanwhile; the next question searches again."""
    process(root, 7, TUN, "socket:[41]")
    (root / "proc/7/net/unix").write_text("0: 2 0 10000 0001 01 41 /run/wireguard/tun0.sock\n")
    process(root, 8, *["/dev/null"] * 10, user=1000)
    host = Host(root)
    reads = Reads(monkeypatch, 10**9)
    with searched_once(host):
        for _ in range(3):
            assert 7 == holder(host, "tun0")
            assert holder(host, "tun1") is None
            assert wireguard_socket(host, "tun0") is not None
            assert not runs_machine(host, 7)
    assert 12 + 2 == reads.of("fd")
    process(root, 9, TUN)
    assert holder(host, "tun0") is None
