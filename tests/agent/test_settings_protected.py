"""Which interfaces carry an SSH connection: links and routes as data, no host."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from proc_files import stat

from udpbench.agent.host.control_path import ssh_connection
from udpbench.agent.host.system import Host
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.link_flap import listed
from udpbench.agent.settings.links import Mtu
from udpbench.agent.settings.protected import (
    KernelLink,
    KernelRoute,
    diverting,
    protected,
    protected_interfaces,
    would_divert,
)
from udpbench.agent.settings.sysctl import Sysctl

SSH = "192.0.2.9 50000 192.0.2.1 22"
ETH0 = KernelLink(2, "eth0", "52:54:00:00:00:02")
ETH1 = KernelLink(3, "eth1", "52:54:00:00:00:03")
ETH3 = KernelLink(5, "eth3", "52:54:00:00:00:05")
LOCAL = KernelRoute("192.0.2.0/24", 2)
GATEWAY = ("0.0.0.0/0", 2, "192.0.2.254")


@pytest.mark.parametrize(
    ("links", "routes", "connection", "expected"),
    [
        pytest.param([ETH0, ETH3], [LOCAL], SSH, {"eth0"}, id="a plain interface"),
        pytest.param([ETH0, ETH3], [LOCAL], None, set(), id="no connection"),
        pytest.param([ETH0, ETH3], [LOCAL], "UNKNOWN 65535 UNKNOWN 65535", set(), id="sshd -i"),
        pytest.param(
            [ETH0, ETH3],
            [LOCAL, KernelRoute("0.0.0.0/0", 5)],
            SSH,
            {"eth0", "eth3"},
            id="default routes, by which it may come back",
        ),
        pytest.param(
            [ETH0, ETH1, ETH3],
            [KernelRoute("0.0.0.0/0", 2), KernelRoute("192.0.2.0/24", 3)],
            SSH,
            {"eth0", "eth1"},
            id="the longest prefix",
        ),
        pytest.param(
            [
                KernelLink(2, "eth0", "52:54:00:00:00:02", master=4),
                KernelLink(3, "eth1", "52:54:00:00:00:02", master=4),
                KernelLink(4, "bond0", "52:54:00:00:00:02", "bond"),
                ETH3,
            ],
            [KernelRoute("192.0.2.0/24", 4)],
            SSH,
            {"bond0", "eth0", "eth1"},
            id="a bond and its ports",
        ),
        pytest.param(
            [ETH0, KernelLink(6, "eth0.7", ETH0.mac, "vlan", lower=2), ETH3],
            [KernelRoute("192.0.2.0/24", 6)],
            SSH,
            {"eth0.7", "eth0"},
            id="a VLAN and what is below it",
        ),
        pytest.param(
            [
                KernelLink(2, "eth0", "52:54:00:00:00:02", master=4),
                KernelLink(4, "bond0", None, "bond"),
                KernelLink(6, "bond0.7", None, "vlan", master=7, lower=4),
                KernelLink(7, "br7", None, "bridge"),
                ETH3,
            ],
            [KernelRoute("192.0.2.0/24", 7)],
            SSH,
            {"br7", "bond0.7", "bond0", "eth0"},
            id="a bridge over a VLAN over a bond",
        ),
        pytest.param(
            [ETH0, KernelLink(8, "vf0", ETH0.mac), ETH3],
            [LOCAL],
            SSH,
            {"eth0", "vf0"},
            id="netvsc and its virtual function share a MAC",
        ),
        pytest.param(
            [ETH0, KernelLink(6, "eth0.7", ETH0.mac, "vlan", lower=2), ETH3],
            [LOCAL],
            SSH,
            {"eth0"},
            id="a VLAN on top is not what it stands on",
        ),
        pytest.param(
            [ETH0, ETH3], [], "fe80::9%eth3 50000 fe80::1%eth3 22", {"eth3"}, id="link-local"
        ),
        pytest.param(
            [ETH0, ETH3],
            [KernelRoute("2001:db8::/64", 5), KernelRoute("0.0.0.0/0", 2)],
            "2001:db8::9 1 2001:db8::1 22",
            {"eth0", "eth3"},
            id="IPv6 beside an IPv4 default route",
        ),
        pytest.param([ETH3], [LOCAL], SSH, set(), id="a route by an interface that is gone"),
        pytest.param(
            [
                KernelLink(2, "a0", None, "veth", lower=3),
                KernelLink(3, "b0", None, "veth", lower=2),
            ],
            [LOCAL],
            SSH,
            {"a0", "b0"},
            id="a ring of lower interfaces ends",
        ),
    ],
)
def test_what_carries_the_connection_is_protected(
    links: list[KernelLink], routes: list[KernelRoute], connection: str | None, expected: set[str]
) -> None:
    """Every interface that the connection stands on, and no other."""
    assert expected == protected_interfaces(links, routes, connection)


@pytest.mark.parametrize(
    ("target", "interface", "ways", "expected"),
    [
        pytest.param("10.0.0.0/8", 3, [("10.1.0.0/16", 2)], False, id="farther"),
        pytest.param("10.1.2.0/24", 3, [("10.1.0.0/16", 2)], True, id="nearer"),
        pytest.param("10.1.0.0/16", 3, [("10.1.0.0/16", 2)], True, id="as near"),
        pytest.param("10.1.0.7/16", 2, [("10.1.0.0/16", 2)], False, id="on this link"),
        pytest.param("10.1.2.1/24", 2, [GATEWAY], True, id="behind a gateway"),
        pytest.param("0.0.0.0/0", 3, [GATEWAY], True, id="a default route"),
        pytest.param("10.1.2.0/24", 3, [], True, id="no way but by policy"),
        pytest.param("10.2.0.0/16", 3, [GATEWAY], False, id="elsewhere"),
        pytest.param("10.1.2.3/8", 2, [("10.1.0.0/16", 2)], True, id="the peer's address"),
        pytest.param("10.1.2.3/32", 2, [("10.1.0.0/16", 2)], True, id="the peer's address alone"),
        pytest.param("10.1.2.3", 2, [("10.1.0.0/16", 2)], True, id="its neighbour entry"),
        pytest.param("192.0.2.254", 2, [GATEWAY], True, id="the gateway's neighbour entry"),
        pytest.param("10.1.2.4", 2, [("10.1.0.0/16", 2)], False, id="another neighbour entry"),
    ],
)
def test_what_leads_the_connection_elsewhere_is_known(
    target: str, interface: int, ways: list[Any], expected: bool
) -> None:
    """The peer is 10.1.2.3; the nearest route wins, and of two as near one cannot be sure."""
    known = [KernelRoute(*route) for route in ways]
    assert expected == would_divert(ip_address("10.1.2.3"), target, interface, known)


def write(root: Path, pid: int, parent: int, environ: str) -> None:
    """Write what /proc has of a process."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "environ").write_text(environ)
    (folder / "stat").write_text(stat(pid, "a) b", parent=parent))


def test_sudo_does_not_hide_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the variable from its child; the shell above it still has it."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr("os.getpid", lambda: 50)
    write(tmp_path, 50, 40, "PATH=/bin\0HOME=/root\0")
    write(tmp_path, 40, 30, f"A=1\0SSH_CONNECTION={SSH}\0B=2\0")
    assert SSH == ssh_connection(Host(tmp_path))


def test_without_ssh_nothing_is_asked_or_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root without processes: the own environment decides."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert (None, frozenset()) == (ssh_connection(Host(tmp_path)), protected(Host(tmp_path)))
    monkeypatch.setenv("SSH_CONNECTION", SSH)
    assert SSH == ssh_connection(Host(tmp_path))


class Message(dict[str, Any]):
    """A message of rtnetlink: header fields by key, attributes by ``get_attr``."""

    def get_attr(self, name: str) -> Any:
        """Return an attribute; None if there is none."""
        return self.get(name)


def unicast(dst_len: int, **attributes: Any) -> Message:
    """Return a unicast route."""
    return Message(type=1, dst_len=dst_len, **attributes)


class Routing(Host):
    """A host with three links, whose routes the test makes."""

    def __init__(self, root: Path, *routes: Message) -> None:
        super().__init__(root)
        self.routes = routes

    def rtnl(self, noun: str, verb: str, **_: Any) -> list[Any]:
        """Return the links or the routes; the way of a packet is the first."""
        if noun == "link":
            return [Message(index=k, IFLA_IFNAME=f"eth{k}") for k in range(1, 4)]
        return [Message(RTA_OIF=1)] if verb == "get" else list(self.routes)

    def nexthops(self) -> list[tuple[int, int, str | None]]:
        """Return two nexthop objects."""
        return [(7, 1, None), (8, 3, "192.0.2.254")]


LEGS = [Message(oif=1), Message(oif=2, RTA_GATEWAY="198.51.100.254")]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (unicast(0, RTA_OIF=2), {"eth1", "eth2"}),
        (unicast(0, RTA_MULTIPATH=LEGS), {"eth1", "eth2"}),
        (unicast(24, RTA_DST="192.0.2.0", RTA_MULTIPATH=LEGS), {"eth1", "eth2"}),
        (unicast(24, RTA_DST="198.51.100.0", RTA_MULTIPATH=LEGS), {"eth1"}),
        (unicast(0), {"eth1", "eth3"}),
        (Message(type=6, dst_len=0, RTA_MULTIPATH=LEGS), {"eth1"}),
    ],
    ids=["one", "legs", "legs to the peer", "legs elsewhere", "nexthop objects", "blackhole"],
)
def test_every_way_of_a_route_is_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: Message, expected: set[str]
) -> None:
    """The kernel names the way of one flow only."""
    monkeypatch.setenv("SSH_CONNECTION", SSH)
    assert expected == protected(Routing(tmp_path, route))


@pytest.mark.parametrize(
    ("route", "target", "expected"),
    [
        (unicast(24, RTA_DST="192.0.2.0", RTA_MULTIPATH=LEGS), "lo/198.51.100.254", True),
        (unicast(0, RTA_MULTIPATH=LEGS), "lo/198.51.100.9", False),
        (unicast(0), "lo/192.0.2.254", True),
        (unicast(0, RTA_OIF=1, RTA_VIA={"family": 10, "addr": "fe80::1"}), "lo/fe80::1", True),
        (unicast(0, RTA_OIF=1), "lo/fd00::/64", False),
    ],
)
def test_the_neighbour_of_every_way_leads_the_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    route: Message,
    target: str,
    expected: bool,
) -> None:
    """Also that of a gateway of IPv6 on the way to an IPv4 network."""
    monkeypatch.setenv("SSH_CONNECTION", SSH)
    assert expected == diverting(Routing(tmp_path, route), target)


def vlan(index: int, below: int, up: int, flags: int | None = 0, **more: Any) -> Message:
    """Return an interface on another."""
    data = Message(IFLA_VLAN_FLAGS=None if flags is None else {"flags": flags, "mask": ~0})
    info = Message(IFLA_INFO_KIND="vlan", IFLA_INFO_DATA=data)
    name = f"vlan{index}"
    about = {"IFLA_LINK": below, "IFLA_LINKINFO": info, "IFLA_IFNAME": name}
    return Message(index=index, flags=up, **about, **more)


def test_vlans_go_down_and_up_with_what_they_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """But loosely bound ones, and those of another namespace's interface of the same number."""
    links = [
        *(Message(index=1, flags=1, IFLA_IFNAME="eth1"), vlan(2, 1, 1), vlan(3, 2, 0)),
        *(vlan(4, 1, 1, flags=5), vlan(5, 1, 1, flags=None), vlan(6, 1, 1, IFLA_LINK_NETNSID=0)),
    ]
    host = Host()
    monkeypatch.setattr(host, "index", lambda _: 1)
    monkeypatch.setattr(host, "nexthops", list)
    monkeypatch.setattr(host, "rtnl", lambda noun, *_, **__: links if noun == "link" else [])
    assert [1, 2, 5, 3] == list(link_flap._flapping(host, 1))
    with pytest.raises(ValueError, match=r"exactly: vlan3 \(down\); remove"):
        link_flap.check_flap(host, "eth1")


@pytest.mark.parametrize(
    ("kind", "mtu", "value", "refused"),
    [
        ("vlan", 1500, 1450, "on_it (1500 B) on eth1 would stay at 1450 B afterwards"),
        ("vlan", 1500, 1600, None),
        ("macsec", 1468, 1480, "on_it (1468 B) on eth1 would stay at 1448 B afterwards"),
        ("macsec", 1400, 1480, None),
        ("ipvlan", 1500, 1480, None),
        ("ipvlan", 1400, 1480, "replace the MTU of on_it (1400 B) on eth1, for good"),
        ("ipvtap", 1400, 1600, "replace the MTU of on_it (1400 B) on eth1, for good"),
        ("hsr", 1494, 1480, None),
        ("hsr", 1400, 1480, "replace the MTU of on_it (1400 B) on eth1, for good"),
        ("vxlan", 1400, 1300, None),
    ],
)
def test_an_upper_mtu_that_would_not_come_back_keeps_the_lower_one(
    kind: str,
    mtu: int,
    value: int,
    refused: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As each kind follows in the kernel; few kernels have all kinds to try."""
    own = tmp_path / "sys/class/net/eth1"
    own.mkdir(parents=True)
    lower = None if kind == "hsr" else 1  # which has two, and names them elsewhere
    if lower is None:
        (own / "upper_on_it").mkdir()
    info = Message(IFLA_INFO_KIND=kind)
    links = {
        "eth1": Message(index=1, IFLA_IFNAME="eth1", IFLA_MTU=1500),
        "on_it": Message(
            index=2, IFLA_IFNAME="on_it", IFLA_MTU=mtu, IFLA_LINK=lower, IFLA_LINKINFO=info
        ),
    }
    host = Host(tmp_path)
    monkeypatch.setattr(host, "index", lambda name: links[name]["index"])
    monkeypatch.setattr(host, "link", links.__getitem__)
    dump = {"link": links.values()}
    monkeypatch.setattr(host, "rtnl", lambda noun, *_, **__: list(dump.get(noun, ())))
    if refused is None:
        Mtu().check(host, "eth1", value, 1500)
        return
    with pytest.raises(OSError, match=re.escape(refused)):
        Mtu().check(host, "eth1", value, 1500)


@pytest.mark.parametrize(
    ("kind", "mtu", "refused"),
    [
        ("bond", 1500, "it would also change member (1500 B) in eth1; set it by hand before"),
        ("team", 1500, "it would also change member (1500 B) in eth1; set it by hand before"),
        (None, 1400, "it would also change member (1400 B) in eth1; set it by hand before"),
        (None, 1500, None),
        ("vrf", 1400, None),
    ],
)
def test_an_mtu_that_members_take_on_is_refused(
    kind: str | None,
    mtu: int,
    refused: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bond's or a team's, whose members may reset; of others, if a member's is its own."""
    info = Message(IFLA_INFO_KIND=kind)
    own = Message(index=1, IFLA_IFNAME="eth1", IFLA_MTU=1500, IFLA_LINKINFO=info)
    member = Message(index=2, IFLA_IFNAME="member", IFLA_MTU=mtu, IFLA_MASTER=1)
    host = Host(tmp_path)
    monkeypatch.setattr(host, "index", lambda _: 1)
    monkeypatch.setattr(host, "link", lambda _: own)
    monkeypatch.setattr(
        host, "rtnl", lambda noun, *_, **__: [own, member] if noun == "link" else []
    )
    if refused is None:
        Mtu().check(host, "eth1", 1400, 1500)
        return
    with pytest.raises(OSError, match=re.escape(refused)):
        Mtu().check(host, "eth1", 1400, 1500)


def test_a_kernel_without_nexthop_objects_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 5.3; any other failure is reported."""

    def refuse(code: int) -> None:
        def dump(*_: object) -> list[bytes]:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("udpbench.agent.host.genetlink.dump", dump)

    refuse(errno.EOPNOTSUPP)
    assert [] == Host(tmp_path).nexthops()
    refuse(errno.ENOBUFS)
    with pytest.raises(OSError, match=os.strerror(errno.ENOBUFS)):
        Host(tmp_path).nexthops()


@pytest.mark.parametrize(
    ("target", "interface"),
    [
        ("net.ipv4.conf.eth0.rp_filter", "eth0"),
        ("net/ipv6/neigh/eth0.100/retrans_time", "eth0.100"),
        ("net.ipv6.conf.all.disable_ipv6", "all"),
        ("net.ipv4.conf.default.rp_filter", "all"),
        ("net.ipv6.conf.default.accept_ra", ""),
        ("net.ipv4.ip_forward", ""),
        ("net.core.rmem_max", ""),
    ],
)
def test_a_parameter_disturbs_the_interface_in_its_name(target: str, interface: str) -> None:
    """Or every interface, or none."""
    assert interface == Sysctl().disturbed(target)


def test_of_many_things_a_few_are_listed() -> None:
    """And how many more there are."""
    assert ["a, b", "a, b, c, d, e and 2 more"] == [listed("ab"), listed("abcdefg")]


def test_the_connection_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that had it has ended since: it still is the controller's."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr("os.getpid", lambda: 50)
    write(tmp_path, 50, 40, "")
    write(tmp_path, 40, 30, f"SSH_CONNECTION={SSH}\0")
    host = Host(tmp_path)
    assert SSH == ssh_connection(host)
    (tmp_path / "proc/40/environ").write_text("")
    assert SSH == ssh_connection(host)


ENTERS = """if True:
    import sys
    from udpbench.agent.host.control_path import ssh_connection
    from udpbench.agent.host.namespace import enter_named
    from udpbench.agent.host.system import Host
    host = Host()
    enter_named(host, sys.argv[1])
    print(ssh_connection(host))
"""
SHELL = """
mount -t tmpfs none /run && mkdir /run/netns && touch /run/netns/own
mount --bind /proc/self/ns/net /run/netns/own && ip netns add apart && exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone enters a namespace")
@pytest.mark.parametrize(("name", "expected"), [("own", SSH), ("apart", "None")])
def test_what_carries_ssh_is_protected_in_the_namespace_of_sshd(name: str, expected: str) -> None:
    """By whatever name that is entered; in another one nothing carries it."""
    command = ("unshare", "--net", "--mount", "sh", "-c", SHELL, "sh")
    done = subprocess.run(
        (*command, sys.executable, "-c", ENTERS, name),
        env={**os.environ, "SSH_CONNECTION": SSH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (expected, "") == (done.stdout.strip(), done.stderr)
