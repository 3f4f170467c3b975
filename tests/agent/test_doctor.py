"""What only readiness asks of a host, read from a fake root and from what programs print."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Optional

import pytest

from udpbench.agent.host import doctor
from udpbench.agent.host.system import Done, Host

ETHTOOL = Path(__file__).parents[1] / "fixtures" / "ethtool"
CARD = {
    "sys/class/net/eth3/ifindex": "3",
    "sys/class/net/eth3/device/current_link_speed": "8.0 GT/s PCIe",
    "sys/class/net/eth3/device/current_link_width": "4",
    "sys/class/net/eth3/device/max_link_speed": "8.0 GT/s PCIe",
    "sys/class/net/eth3/device/max_link_width": "8",
    "sys/class/net/eth3/lower_eth9/ifindex": "9",
}
IDLE = {
    "sys/devices/system/cpu/cpu0/cpuidle/state0/name": "POLL",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/disable": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/name": "C6",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/latency": "133",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/disable": "1",
    "sys/devices/system/cpu/cpu1/cpuidle/state1/name": "C6",
    "sys/devices/system/cpu/cpu1/cpuidle/state1/latency": "133",
    "sys/devices/system/cpu/cpu1/cpuidle/state1/disable": "0",
}
DRIVER = "sys/devices/system/cpu/cpuidle/current_driver"
COUNT = "proc/sys/net/netfilter/nf_conntrack_count"
CONF = "proc/sys/net/ipv4/conf"
ARP = {
    f"{CONF}/all/arp_ignore": "0",
    f"{CONF}/all/arp_filter": "1",
    f"{CONF}/eth3/arp_ignore": "2",
    f"{CONF}/eth3/arp_filter": "0",
}
UDP = "  sl  local_address rem_address   st\n"
PORTS = {
    "proc/thread-self/net/udp": f"{UDP}    1: 0100007F:10E1 00000000:0000 07",
    "proc/thread-self/net/udp6": f"{UDP}    1: 00000000000000000000000000000000:0035 0:0 07",
}
CHAIN = {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": "drop"}
RULESET = {
    "nftables": [
        {"metainfo": {}},
        {"chain": CHAIN},
        {"chain": {**CHAIN, "name": "forward", "hook": "forward"}},
        {"chain": {**CHAIN, "name": "output", "hook": "output", "policy": "accept"}},
        {"chain": {"family": "inet", "table": "filter", "name": "mine"}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": []}},
        {"rule": {"family": "inet", "table": "filter", "chain": "mine", "expr": []}},
    ]
}
SAVED = """\
*nat
:PREROUTING ACCEPT [0:0]
COMMIT
*filter
:INPUT ACCEPT [5:420]
:FORWARD DROP [0:0]
:mine - [0:0]
-A INPUT -p udp -j mine
-A INPUT -j ACCEPT
COMMIT
"""


class PrintingHost(Host):
    """A host whose files lie in a folder and whose programs print what is given."""

    def __init__(self, root: Path, printed: Optional[dict[str, Any]] = None) -> None:
        super().__init__(root)
        self.printed = printed or {}
        """Command, its program alone or with an option → text, or the errno of its refusal."""
        self.kept: Optional[bool] = True

    def program(self, name: str) -> Optional[Path]:
        """Find the programs that print something."""
        is_printed = any(command.split()[0] == name for command in self.printed)
        return Path(name) if is_printed else None

    def run(self, *command: str, stdin: str = "") -> Done:
        """Print, or refuse."""
        del stdin
        text = self.printed.get(" ".join(command[:2]), self.printed.get(command[0], errno.ENOPKG))
        if text == errno.ENOPKG:
            raise OSError(errno.ENOPKG, "not installed")
        return Done(1, "", os.strerror(text)) if isinstance(text, int) else Done(0, text, "")

    def rtnl(self, noun: str, verb: str, **_: Any) -> list[Any]:
        """List two addresses, or refuse."""
        assert (noun, verb) == ("addr", "dump")
        if self.kept is None:
            raise OSError(errno.EPERM, "Operation not permitted")
        return [Message(3, "10.0.0.1"), Message(2, "10.0.0.9"), Message(7, "10.0.0.5")]

    def name_of(self, index: int) -> Optional[str]:
        """Name two of the interfaces: the third is gone."""
        return {2: "eth0", 3: "eth3"}.get(index)

    def is_wall_synchronised(self) -> bool:
        """Say what is given, or that the kernel does not."""
        if self.kept is None:
            raise OSError(errno.EPERM, "Operation not permitted")
        return self.kept


class Message(dict[str, int]):
    """One message of rtnetlink."""

    def __init__(self, index: int, address: str) -> None:
        super().__init__(index=index, prefixlen=24)
        self.address = address

    def get_attr(self, name: str) -> Optional[str]:
        """Return the address of the near end."""
        return self.address if name == "IFA_LOCAL" else None


def host(root: Path, files: dict[str, str], **printed: Any) -> PrintingHost:
    """Return a host with files, and with programs by name."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    commands = {"pause": "ethtool -a", "hash": "ethtool -n", "save": "iptables-save"}
    return PrintingHost(root, {commands.get(name, name): text for name, text in printed.items()})


def fixture(name: str) -> str:
    """Return what ethtool printed of a real card."""
    return (ETHTOOL / name).read_text()


@pytest.mark.parametrize(
    ("files", "states"),
    [
        ({}, None),
        ({DRIVER: "none"}, {}),
        ({DRIVER: "intel_idle", **IDLE}, {"POLL": 0, "C6": 133}),
    ],
)
def test_c_states_that_any_cpu_may_enter(
    tmp_path: Path, files: dict[str, str], states: Optional[dict[str, int]]
) -> None:
    """None where the kernel shows none: in a guest its hypervisor may have some."""
    assert states == doctor.idle_states(host(tmp_path, files))


def test_a_card_and_its_slot(tmp_path: Path) -> None:
    """Speed and width as sysfs has them; nothing of a device on another bus."""
    here = host(tmp_path, CARD)
    assert {
        "current_link_speed": "8.0 GT/s PCIe",
        "current_link_width": "4",
        "max_link_speed": "8.0 GT/s PCIe",
        "max_link_width": "8",
    } == doctor.pcie(here, "eth3")
    assert {} == doctor.pcie(here, "eth4")


@pytest.mark.parametrize(
    ("printed", "pause"),
    [
        (fixture("igb-a"), {"autoneg", "rx", "tx"}),
        (errno.EOPNOTSUPP, set()),
        (errno.EPERM, None),
        (errno.ENOPKG, None),
    ],
)
def test_pause_frames(tmp_path: Path, printed: Any, pause: Optional[set[str]]) -> None:
    """A device without flow control has none; without ethtool it is unknown."""
    parameters = doctor.pause(host(tmp_path, {}, pause=printed), "eth3")
    assert pause == (None if parameters is None else set(parameters))


@pytest.mark.parametrize(
    ("printed", "letters"), [(fixture("igb-n-udp4"), "sd"), (errno.EOPNOTSUPP, None)]
)
def test_the_fields_of_the_flow_hash(tmp_path: Path, printed: Any, letters: Optional[str]) -> None:
    """What the driver does not tell is unknown."""
    assert letters == doctor.flow_hash(host(tmp_path, {}, hash=printed), "eth3")


def test_tracked_connections(tmp_path: Path) -> None:
    """None without the kernel's module; unknown where the file does not open."""
    assert 0 == doctor.tracked_connections(host(tmp_path, {}))
    assert 12 == doctor.tracked_connections(host(tmp_path, {COUNT: "12"}))
    (tmp_path / COUNT).unlink()
    (tmp_path / COUNT).mkdir()
    assert doctor.tracked_connections(host(tmp_path, {})) is None


@pytest.mark.parametrize(
    ("printed", "chains"),
    [
        ({"nft": json.dumps(RULESET)}, ("inet filter input: 1 rule, policy drop",)),
        ({"nft": errno.EPERM, "save": SAVED}, None),
        ({"nft": "no JSON"}, None),
        ({"save": SAVED}, ("ip filter INPUT: 2 rules, policy accept",)),
        ({}, None),
    ],
)
def test_chains_that_packets_of_the_host_pass(
    tmp_path: Path, printed: dict[str, Any], chains: Optional[tuple[str, ...]]
) -> None:
    """With rules or a policy that drops; unknown without a program or the right to ask."""
    assert chains == doctor.firewall(host(tmp_path, {}, **printed))


def test_ports_of_udp_sockets(tmp_path: Path) -> None:
    """Both families."""
    assert doctor.udp_ports(host(tmp_path, {})) is None
    assert (53, 4321) == doctor.udp_ports(host(tmp_path, PORTS))


def test_who_answers_arp(tmp_path: Path) -> None:
    """The larger of all's and the interface's is in force; one missing makes it unknown."""
    assert {"arp_ignore": 2, "arp_filter": 1} == doctor.arp(host(tmp_path, ARP), "eth3")
    assert doctor.arp(host(tmp_path, ARP), "eth4") is None


def test_addresses_of_other_interfaces(tmp_path: Path) -> None:
    """Without the own one's, and those of an interface that is gone."""
    here = host(tmp_path, {})
    assert {"eth0": ("10.0.0.9/24",)} == doctor.other_addresses(here, "eth3")
    here.kept = None
    assert doctor.other_addresses(here, "eth3") is None


def test_what_an_interface_is_stacked_on(tmp_path: Path) -> None:
    """Its lower interfaces, and the bond that it is a part of."""
    here = host(tmp_path, {**CARD, "sys/class/net/bond0/ifindex": "4"})
    (tmp_path / "sys/class/net/eth3/master").symlink_to("../bond0")
    assert ("on eth9", "part of bond0") == doctor.stacked(here, "eth3")
    assert () == doctor.stacked(here, "bond0")


@pytest.mark.parametrize("kept", [True, False, None])
def test_whether_the_clock_is_kept(tmp_path: Path, kept: Optional[bool]) -> None:
    """None where the kernel does not say."""
    here = host(tmp_path, {})
    here.kept = kept
    assert kept is doctor.wall_synchronised(here)


def test_this_kernel_says_whether_its_clock_is_kept() -> None:
    """The call itself works, and changes nothing."""
    assert Host().is_wall_synchronised() in (True, False)


def test_an_interface_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    """What belongs to it is unknown, the rest is read."""
    inspected = doctor.inspect_host(host(tmp_path, {**ARP, **PORTS}), "eth3")
    missing = (
        inspected.pcie,
        inspected.pause,
        inspected.flow_hash,
        inspected.arp,
        inspected.stacked,
    )
    assert (None,) * 5 == missing
    assert (53, 4321) == inspected.udp_ports
    there = doctor.inspect_host(host(tmp_path, CARD), "eth3")
    assert ("on eth9",) == there.stacked
