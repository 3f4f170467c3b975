"""A recording holds what a host answers, can be played again, and tells nothing of whose it is."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Optional

import pytest
from recorded_host import RecordedHost, restored

from udpbench.agent import recording
from udpbench.agent.anonymity import Names, bare_iptables, bare_ruleset
from udpbench.agent.counters.snapshot import snapshot
from udpbench.agent.host.doctor import udp_ports
from udpbench.agent.host.facts import facts
from udpbench.agent.host.reading import READING_VERBS, ReadingHost
from udpbench.agent.host.system import Done, Host, NapiInstance
from udpbench.agent.recording import FILES, TAKEN, UNTAKEN, RecordingHost, plain, record_tree
from udpbench.protocol import RecordedTree

MAC = "1c:34:da:4a:33:dd"
FILE = {
    "/proc/cpuinfo": "model name\t: A CPU\nSerial\t\t: 00000000deadbeef\nflags\t: fpu",
    "/sys/class/net/corp-lan0/address": MAC,
    "/sys/class/net/corp-lan0/mtu": "1500",
    "/proc/sys/kernel/random/boot_id": "6ab1c5d0-1234-4000-8000-000000000001",
    "/proc/irq/40/smp_affinity_list": "0-1",
    "/proc/thread-self/net/udp": (
        "sl local\n 905: 1E00090A:FF78 0100090A:10E1 01 0:7C00 x x 4242 0 777001 2 ffff8881 31"
        "\n 906: 1E00090A:0035 00000000:0000 07 0:0 x x 4242 0 777002 2 ffff8882 0"
        "\n 907: 0100007F:0035 00000000:0000 07 0:0 x x 4243 0 777003 2 ffff8883 0"
    ),
    "/proc/thread-self/net/udp6": "sl local",
    "/etc/os-release": 'ID=corpos\nPRETTY_NAME="Debian GNU/Linux 12 (corp)"\nIMAGE_ID="7-x"',
}
HELD = (
    *("/etc/os-release", "/proc/cpuinfo", "/proc/interrupts", "/proc/softirqs", "/proc/stat"),
    "/proc/irq/.*",
    "/proc/1/net/stat/arp_cache",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/net/(core|ipv4|ipv4/conf/(all|lo)|netfilter)/[a-z0-9_]+",
    "/proc/thread-self/net/(netstat|snmp6?|softnet_stat|stat/(nf_conntrack|rt_cache)|udp6?|xfrm_stat)",
    "/sys/class/net/lo/([a-z_]+|(statistics|queues)/.*)",
    "/sys/devices/system/(clocksource|cpu|node)/.*",
    "/sys/kernel/mm/transparent_hugepage/enabled",
)
"""All files that a recording may hold; a further one is added here, and in docs/commands.md."""
ANSWERED = {
    *("affinity", "features", "firewall_rules", "firewall_tables", "hostname", "index"),
    *("is_of_root", "is_stopped", "is_wall_synchronised", "is_xdp_generic", "kernel"),
    *("knows_napis", "link", "link_statistics", "mac_statistics", "name_of", "napis"),
    *("process_names", "program"),
    *("qdiscs", "queue_napis", "queue_statistics", "read_text", "rtnl", "run", "statistics"),
    *("tcx_programs", "xdp_features", "xdp_program"),
}


class SecretHost(Host):
    """A host of a company, whose answers are full of its names."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for name, text in FILE.items():
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        device = self.path("/sys/class/net/corp-lan0/device")
        device.mkdir()
        (device / "driver").symlink_to("../../drivers/igb")
        self.path("/sys/class/net/eth0").mkdir()

    def hostname(self) -> str:
        """Return its name."""
        return "db7.corp.example"

    def index(self, interface: str) -> int:  # noqa: ARG002 - Host's signature
        """Return an index."""
        return 3

    def name_of(self, index: int) -> Optional[str]:  # noqa: ARG002 - Host's signature
        """Return a name that /sys of another namespace has not."""
        return "secret-if1"

    def process_names(self) -> dict[int, str]:
        """Return its processes."""
        return {7: "irqbalance", 8: "secretd"}

    def is_of_root(self, pid: int) -> bool:  # noqa: ARG002 - Host's signature
        """Say that each is."""
        return True

    def is_stopped(self, pid: int) -> bool:  # noqa: ARG002 - Host's signature
        """Say that none is."""
        return False

    def program(self, name: str) -> Optional[Path]:
        """Have nft alone."""
        return Path("/home/corp/bin/nft") if name == "nft" else None

    def run(self, *command: str, stdin: str = "") -> Done:  # noqa: ARG002 - Host's signature
        """Say who this is."""
        if command[:2] == ("nft", "-j"):
            return Done(0, json.dumps({"nftables": RULES}), "")
        if command[0] == "ethtool" and command[1] == "-x":
            return Done(0, f"RSS hash key:\n{MAC}:{MAC}\nRSS", "")
        return Done(0, f"{command[0]} v1.2 of db7.corp.example at 192.0.2.77", "")

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:  # noqa: ARG002 - verb
        """Have one address."""
        mine = noun == "addr" and fields.get("family") != socket.AF_INET6
        return [Attributes("192.0.2.77")] if mine else []

    def link(self, interface: str) -> Any:  # noqa: ARG002 - Host's signature
        """Have a link that somebody has named."""
        return Attributes("192.0.2.77")

    def tcx_programs(self, interface: str) -> Optional[int]:
        """Be asked for what needs a right."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), interface)


RULES = [
    {"chain": {"family": "ip", "table": "corp", "name": "in", "hook": "input", "policy": "drop"}},
    {"rule": {"family": "ip", "table": "corp", "chain": "in", "comment": "secret", "expr": [1]}},
    {"set": {"elem": ["192.0.2.77"]}},
]


class Attributes(dict):  # type: ignore[type-arg]
    """A netlink message as pyroute2 has them."""

    def __init__(self, address: str) -> None:
        attributes = [("IFA_LOCAL", address), ("IFLA_IFALIAS", "secret"), ("RAW", b"\x01")]
        attributes += [("IFA_LABEL", "eth7:secret"), ("IFLA_IFNAME", "secret-if0")]
        super().__init__(index=3, prefixlen=24, attrs=attributes, header={}, value=None)

    def get_attr(self, name: str) -> Any:
        """Return an attribute."""
        return dict(self["attrs"]).get(name)


def test_a_recording_tells_nothing_of_whose_host_it_is(tmp_path: Path) -> None:
    """No name, address, serial number, process, rule or key of hashing is left in it."""
    tree = record_tree(SecretHost(tmp_path), "left", "corp-lan0", {"bpf": False})
    text = json.dumps(asdict(tree))
    secrets = (
        "corp",
        "db7",
        "secret",
        "192.0.2",
        MAC,
        "deadbeef",
        "1E00090A",
        "6ab1c5d0",
        "4242",
        "77700",
    )
    assert [] == [secret for secret in secrets if secret in text]
    assert ("net0", "02:00:00:00:00:01") == (
        tree.interface,
        tree.files["/sys/class/net/net0/address"],
    )
    assert {"bpf": False} == tree.capabilities


def test_of_others_sockets_a_recording_has_the_ports_alone(tmp_path: Path) -> None:
    """Neither users nor inodes, peers, queues or drops, nor how many sockets share a port."""
    files = record_tree(SecretHost(tmp_path), "left", "corp-lan0", {}).files
    row = " 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 0 0 0"
    assert ["sl local", f"0: 00000000:0035{row}", f"0: 00000000:FF78{row}"] == (
        files["/proc/thread-self/net/udp"].splitlines()
    )
    assert (53, 65400) == udp_ports(RecordedHost(RecordedTree("lo", files, {}, {}, {})))


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 13 (trixie)"', "Debian GNU/Linux 13"),
        ("NAME=x\nPRETTY_NAME=Fedora Linux 41 (Corp Edition)\n", "Fedora 41"),
        ('PRETTY_NAME="Ubuntu corp 24.04.1 LTS"', "Ubuntu 24.04.1"),
        ('PRETTY_NAME="Debian"', "Debian"),
        ('PRETTY_NAME="Corp OS 7"', "Linux"),
        ("", "Linux"),
    ],
)
def test_of_a_system_its_name_and_version_are_kept(text: str, anonymous: str) -> None:
    """A site's own image has a name of the site's."""
    assert f'PRETTY_NAME="{anonymous}"' == Names((), ()).file("/etc/os-release", text)


def test_a_name_that_a_user_chose_is_replaced() -> None:
    """However much it begins like one of systemd's."""
    plain = "eth0 eno1 eno1np0 ens1f0np0 ens5 enp3s0f1 enp0s20f0u1u4 enP2p1s0 enp65s0f0np0v3 send0"
    assert plain == Names((), plain.split()).text(plain)
    chosen = ("eno1alice", "enp3s0-carol", "ens5carol", "eth7.100", "eno1_x")
    assert "net0 net1 net2 net3 net4" == Names((), chosen).text(" ".join(chosen))
    linked = Names((), ["vpn-alice"]).path("upper_vpn-alice and lower_vpn-alice")
    assert "upper_net0 and lower_net0" == linked


def test_a_recording_holds_nothing_that_is_not_listed() -> None:
    """Each file and each answer of this host is of a kind in these lists."""
    tree = record_tree(Host(), "left", "lo", {})
    held = re.compile("|".join(f"(?:{pattern})" for pattern in HELD))
    assert [] == sorted(path for path in tree.files if held.fullmatch(path) is None)
    assert set() == {key.split()[0] for key in tree.answers} - ANSWERED
    named = tree.answers["process_names"]["value"]["items"]
    assert {"irqbalance"} >= {name for _, name in named}


def test_what_was_recorded_can_be_asked_again(tmp_path: Path) -> None:
    """The same facts, under the names that replaced the others."""
    host = SecretHost(tmp_path)
    played = RecordedHost(record_tree(host, "left", "corp-lan0", {"bpf": False}))
    before, after = facts(host, "left", "corp-lan0", {}), facts(played, "left", "net0", {})
    assert ("igb", 1500, ("10.0.0.1/24",), "host") == (
        after.driver,
        after.mtu,
        after.addresses,
        after.hostname,
    )
    named = ("interface", "hostname", "mac", "addresses", "boot_id", "environment", "limits")
    same = [name for name in asdict(before) if name not in named]
    assert [getattr(before, name) for name in same] == [getattr(after, name) for name in same]
    assert "running" == after.environment["irqbalance"]
    assert 3 == played.link("net0")["index"]
    assert "tcx" not in after.environment


def test_this_host_can_be_recorded() -> None:
    """Its loopback interface, with counters; a few things are of the moment."""
    tree = record_tree(Host(), "left", "lo", {"bpf": False})
    played = RecordedHost(tree)
    known = facts(Host(), "left", "lo", {})
    expected = replace(known, hostname="host", boot_id=played.boot_id())
    again = facts(played, "left", "lo", {})
    moved = ("environment", "limits")
    assert [v for k, v in asdict(expected).items() if k not in moved] == [
        v for k, v in asdict(again).items() if k not in moved
    ]
    taken = snapshot(played, "left", "lo", ("namespace",), (), dict)
    assert {"snmp.Udp.NoPorts", "link.lo.rx_packets"} <= set(taken.counters)
    assert socket.gethostname() not in [known for known in tree.files.values() if len(known) < 99]


def test_a_machine_is_recorded_without_an_interface(tmp_path: Path) -> None:
    """As of a built-in lab; its texts stay whole."""
    tree = record_tree(SecretHost(tmp_path), "machine", "", {"bpf": False})
    assert ("", "model name\t: A CPU\nflags\t: fpu") == (
        tree.interface,
        tree.files["/proc/cpuinfo"],
    )


def test_what_a_host_has_not_or_was_not_asked_fails_as_it_did(tmp_path: Path) -> None:
    """An error of the kernel's, a file that is not there, and what nobody recorded."""
    played = RecordedHost(record_tree(SecretHost(tmp_path), "left", "corp-lan0", {"bpf": False}))
    for ask, code in (
        (lambda: played.tcx_programs("net0"), errno.EPERM),
        (lambda: played.read_text("/proc/nothing"), errno.ENOENT),
        (lambda: played.listdir("/nowhere"), errno.ENOENT),
        (lambda: played.features("other"), errno.EOPNOTSUPP),
        (lambda: played.environ(1), errno.ESRCH),
        (lambda: played.parent(1), errno.ESRCH),
    ):
        with pytest.raises(OSError, match=r".") as failed:
            ask()
        assert code == failed.value.errno


def test_every_method_of_the_seam_is_taken_or_left_on_purpose() -> None:
    """One that is new is taken; nothing that changes anything can be asked."""
    public = {
        name
        for name, its in vars(ReadingHost).items()
        if name[0] != "_" and its is not READING_VERBS
    }
    assert public == {*FILES, *TAKEN, *UNTAKEN}
    assert all(hasattr(RecordingHost, name) for name in TAKEN)


def test_no_more_files_are_read_than_is_sensible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond those that the agent itself reads."""
    monkeypatch.setattr(recording, "FILES_MAX", 0)
    tree = record_tree(SecretHost(tmp_path), "left", "corp-lan0", {"bpf": False})
    assert "/proc/irq/40/smp_affinity_list" not in tree.files


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        7,
        "text",
        b"\x00\xff",
        Path("/usr/sbin/nft"),
        {1: "a", "b": [1, 2]},
        Done(1, "out", "err"),
        {0: NapiInstance(8, None, 3)},
    ],
)
def test_an_answer_comes_back_as_it_was(answer: Any) -> None:
    """Through JSON."""
    assert answer == restored(json.loads(json.dumps(plain(answer))))


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        ("corp0 corp0.5 xcorp0 corp0_x", "net0 net0.5 xcorp0 corp0_x"),
        ("eth0 enp3s0f1 lo", "eth0 enp3s0f1 lo"),
        ("enx1c34da4a33dd-TxRx-3", "net1-TxRx-3"),
        ("1C:34:DA:4A:33:DD 1c:34:da:4a:33:dd", "02:00:00:00:00:01 02:00:00:00:00:01"),
        ("ff:ff:ff:ff:ff:ff 00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff 00:00:00:00:00:00"),
        ("192.0.2.7 198.51.100.7 192.0.2.9", "10.0.0.1 10.0.1.1 10.0.0.2"),
        ("192.0.2.7/24 192.0.2.255 192.0.2.7", "10.0.0.1/24 10.0.0.255 10.0.0.1"),
        ("127.0.0.1 255.255.255.0 0.0.0.0 224.0.0.1", "127.0.0.1 255.255.255.0 0.0.0.0 224.0.0.1"),
        ("6.1.0 999.1.1.1 1.2.3.4.5", "6.1.0 999.1.1.1 1.2.3.4.5"),
        ("2001:db8:7::9 fe80::1234 ::1 ff02::1", "2001:db8::1 fe80::2 ::1 ff02::1"),
        ("0000:3b:00.0 12:30:45", "0000:3b:00.0 12:30:45"),
        ("at db7 now, DB7 too", "at host now, host too"),
        (
            "driver: tg3\nversion: 5.3.7.1\nbus-info: 192.0.2.7",
            "driver: tg3\nversion: 5.3.7.1\nbus-info: 10.0.0.1",
        ),
        (":".join(f"{n:02x}" for n in range(20)), "02:00:00:00:00:01"),
    ],
)
def test_names_and_addresses_are_replaced_alike(text: str, anonymous: str) -> None:
    """One network stays one, and what tells nothing stays."""
    names = Names(("db7",), ("corp0", "eth0", "lo", "enp3s0f1", "enx1c34da4a33dd"))
    assert anonymous == names.text(text)


def test_a_host_named_like_a_folder_changes_no_path() -> None:
    """Nor a key of the tree."""
    names = Names(("node", "value"), ("corp0",))
    assert "/sys/devices/system/node/online" == names.path("/sys/devices/system/node/online")
    assert {"value": ["host", "net0"]} == names.data({"value": ["node", "corp0"]})


@pytest.mark.parametrize(("name", "stand_in"), [("corp-lan0", b"net0\0\0\0\0\0"), ("vm", b"ne")])
def test_a_name_in_a_netlink_answer_is_replaced_in_place(name: str, stand_in: bytes) -> None:
    """An attribute keeps its length; the same bytes among counters are no name."""

    def answer(text: bytes) -> dict[str, str]:
        attribute = struct.pack("=HH", 4 + len(text) + 1, 2) + text + b"\0"
        return {"is": "bytes", "hex": (attribute + b"\x2a" + name.encode() + b"\0").hex()}

    assert answer(stand_in) == Names((), (name,)).data(answer(name.encode()))


def test_of_a_firewall_only_chains_and_numbers_of_rules_are_left() -> None:
    """Rules of nft and iptables; what cannot be read is empty."""
    assert {
        "nftables": [
            {
                "chain": {
                    "family": "ip",
                    "hook": "input",
                    "policy": "drop",
                    "table": "name0",
                    "name": "name1",
                }
            },
            {"rule": {"family": "ip", "table": "name0", "chain": "name1"}},
        ]
    } == json.loads(bare_ruleset(json.dumps({"nftables": RULES})))
    assert ["", ""] == [bare_ruleset("no JSON"), bare_ruleset("[]")]
    saved = "# by corp\n*filter\n:INPUT DROP [5:6]\n:corp - [0:0]\n-A INPUT -s 192.0.2.7 -j corp\n"
    assert (
        "*filter\n:INPUT DROP [0:0]\n:chain0 - [0:0]\n-A INPUT -j RETURN\nCOMMIT\n"
        == bare_iptables(f"{saved}COMMIT\n")
    )
