"""What goes for good when an interface begins to forward, on a host that is a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Optional

import pytest
from golden import Golden
from settings_world import fake_host

from udpbench.agent.host.system import Host
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.sysctl import Sysctl
from udpbench.errors import SettingRefused
from udpbench.model.host import Setting

NOWHERE = "0" * 32
# Of Linux 6.18: by somebody's hand, then by a router that advertises itself and its network.
BY_HAND = (
    f"{NOWHERE} 00 {NOWHERE} 00 {'fd' + '0' * 29 + '1'} 00000400 00000003 00000000 00000003 eth0"
)
DEFAULT = (
    f"{NOWHERE} 00 {NOWHERE} 00 {'fe80' + '0' * 27 + '1'} 00000400 00000001 00000000 00450003 eth1"
)
NETWORK = f"{'fd' + '0' * 30} 40 {NOWHERE} 00 {NOWHERE} 00000100 00000001 00000000 00440001 eth1"
PARAMETERS = (
    "ipv4/ip_forward",
    "ipv4/conf/all/forwarding",
    "ipv4/conf/default/forwarding",
    "ipv4/conf/eth0/forwarding",
    "ipv4/conf/bond0/forwarding",
    "ipv6/conf/all/forwarding",
    "ipv6/conf/default/forwarding",
    "ipv6/conf/eth0/forwarding",
)


class Forwarder(Host):
    """A host with interfaces that merge, or not."""

    merging: frozenset[str] = frozenset()

    def features(self, interface: str) -> dict[str, bool]:
        """Have LRO where the test wants it; bonding_masters is a file beside the interfaces."""
        if interface == "bonding_masters":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
        return {"rx-lro": interface in self.merging}


def forwarder(
    root: Path, routes: Optional[list[str]] = None, accept_ra: str = "1", *merging: str
) -> Forwarder:
    """Return a host: bond0 stands on eth2, and vlan0 on bond0."""
    fake_host(root)
    files = {f"proc/sys/net/{name}": "0" for name in PARAMETERS}
    files |= {f"proc/sys/net/ipv6/conf/eth{k}/accept_ra": accept_ra for k in range(2)}
    files |= {f"sys/class/net/{name}/mtu": "1500" for name in ("eth0", "eth1", "eth2")}
    files |= {"sys/class/net/bonding_masters": "bond0", "sys/class/net/bond0/lower_eth2": ""}
    files["sys/class/net/vlan0/lower_bond0"] = ""
    if routes is not None:
        files["proc/net/ipv6_route"] = "\n".join(routes)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    host = Forwarder(root)
    host.merging = frozenset(merging)
    return host


def refusal(host: Host, target: str) -> Optional[str]:
    """Return why a parameter is not switched on, by a dry run; None where it may be."""
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    (planned,) = engine.plan([Setting("sysctl", target, 1)])
    return planned.refusal


@pytest.mark.parametrize(
    "target", ["net.ipv6.conf.all.forwarding", "net.ipv6.conf.eth0.forwarding"]
)
@pytest.mark.parametrize("routes", [[BY_HAND, DEFAULT], [NETWORK, DEFAULT]])
def test_routes_that_routers_advertise_are_not_given_up(
    tmp_path: Path, target: str, routes: list[str]
) -> None:
    """Those of every interface, whichever begins to forward; what keeps them is told."""
    message = refusal(forwarder(tmp_path, routes), target)
    name = target.replace(".", "/")
    assert (
        f"the kernel says: {name} would permanently remove routes advertised on eth1, "
        "and could cut SSH; to keep them: "
        "sysctl -w net/ipv6/conf/eth1/accept_ra=2"
    ) == message


@pytest.mark.parametrize(
    ("target", "routes", "accept_ra"),
    [
        ("net.ipv6.conf.all.forwarding", [BY_HAND], "1"),
        ("net.ipv6.conf.all.forwarding", None, "1"),
        ("net.ipv6.conf.all.forwarding", [DEFAULT, NETWORK], "2"),
        ("net.ipv6.conf.default.forwarding", [DEFAULT], "1"),
        ("net.ipv4.ip_forward", [DEFAULT], "1"),
        ("net.core.rmem_max", [DEFAULT], "1"),
    ],
)
def test_where_no_advertised_route_goes_nothing_is_refused(
    tmp_path: Path, target: str, routes: Optional[list[str]], accept_ra: str
) -> None:
    """They stay with accept_ra 2, with IPv4, and with what only later interfaces inherit."""
    assert refusal(forwarder(tmp_path, routes, accept_ra), target) is None


@pytest.mark.parametrize(
    ("target", "merging"),
    [
        ("net.ipv4.ip_forward", ("eth1", "eth2")),
        ("net.ipv4.conf.all.forwarding", ("eth1", "eth2")),
        ("net.ipv6.conf.all.forwarding", ("eth1", "eth2")),
        ("net.ipv4.conf.eth0.forwarding", ()),
        ("net.ipv4.conf.bond0.forwarding", ("eth2",)),
        ("net/ipv4/conf/default/forwarding", ()),
    ],
)
def test_lro_is_not_given_up(tmp_path: Path, target: str, merging: tuple[str, ...]) -> None:
    """An interface and what it stands on; the error says what to do first."""
    message = refusal(forwarder(tmp_path, [], "1", "eth1", "eth2"), target)
    name = target.replace(".", "/")
    steps = "; ".join(f"ethtool -K {interface} lro off" for interface in merging)
    expected = (
        f"the kernel says: {name} would permanently switch off LRO on {', '.join(merging)}; "
        f"switch it off before the run: {steps}"
    )
    assert (expected if merging else None) == message


def test_lro_below_what_an_interface_stands_on_counts(tmp_path: Path, golden: Golden) -> None:
    """As far down as it goes."""
    host = forwarder(tmp_path, [], "1", "eth2")
    with golden.raises(OSError):
        Sysctl().check(host, "net.ipv4.conf.vlan0.forwarding", 1, 0)


def test_forwarding_is_switched_off_whatever_there_is(tmp_path: Path) -> None:
    """It takes nothing; and what was on is put back without being asked."""
    host = forwarder(tmp_path, [DEFAULT], "1", "eth0")
    host.write_text("/proc/sys/net/ipv6/conf/eth0/forwarding", "1\n")
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    engine.apply([Setting("sysctl", "net.ipv6.conf.eth0.forwarding", 0)])
    engine.restore()
    assert "1" == host.read_text("/proc/sys/net/ipv6/conf/eth0/forwarding")


def test_what_is_refused_is_not_changed(tmp_path: Path, golden: Golden) -> None:
    """Not even for a moment."""
    host = forwarder(tmp_path, [DEFAULT])
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    with golden.raises(SettingRefused):
        engine.apply([Setting("sysctl", "net.ipv6.conf.all.forwarding", 1)])
    assert "0" == host.read_text("/proc/sys/net/ipv6/conf/all/forwarding")
