"""Which process has a tun device, by what the files of processes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from udpbench.agent.host.system import Host
from udpbench.agent.host.tun_devices import holder, runs_machine, wireguard_socket


def process(root: Path, pid: int, *opened: str, space: int = 1, device: str = "tun0") -> None:
    """Have a process with these files open, in a network namespace."""
    for folder in ("fd", "fdinfo", "ns", "net"):
        (root / f"proc/{pid}/{folder}").mkdir(parents=True)
    (root / f"proc/{pid}/ns/net").symlink_to(f"net:[{space}]")
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
