"""Settings that meet other hosts, other devices and other processes, each in a world of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from settings_fixture import Inside, Refused, setting, wire

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]


WAYS = "ip -4 address show dev receive0; ip -4 route; ip neighbour show nud permanent"
ADVERTISE = """
import socket, sys
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as made:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    # RFC 4861, 4.2: type, code, checksum by the kernel, hop limit, flags, lifetime 1800 s, timers.
    message = bytes((134, 0, 0, 0, 64, 0, 7, 8)) + bytes(8)
    made.sendto(message, ("ff02::1", 0, 0, socket.if_nametoindex(sys.argv[1])))
"""
MTUS = "grep . /sys/class/net/*/mtu"


@pytest.fixture
def pair() -> Iterator[tuple[Inside, Inside]]:
    """Yield the namespaces of a sender and of a receiver whose links are up."""
    sender, receiver = Inside(), Inside()
    wire(sender, receiver)
    receiver.shell("ip link set receive0 up")
    receiver.call("settled", interface="receive0")
    yield sender, receiver
    receiver.close()
    sender.close()


def test_an_address_in_use_on_the_link_is_refused(pair: tuple[Inside, Inside]) -> None:
    """The other end answers for it; nothing is changed, and free ones pass."""
    sender, receiver = pair
    sender.shell("ip address add 192.168.254.7/24 dev send0")
    before = receiver.call("visible")
    with pytest.raises(Refused, match=r"in use on the link: 192.168.254.7 by 02:00:00:00:00:02"):
        receiver.apply(
            setting("address", "receive0/192.168.254.1/24", True),
            setting("unclaimed", "receive0/192.168.254.6,192.168.254.7", {}),
        )
    assert before == receiver.call("visible")
    sender.shell("ip -6 address add fd09::7/64 dev send0 nodad")
    with pytest.raises(Refused, match=r"in use on the link: fd09::7 by 02:00:00:00:00:02"):
        receiver.apply(setting("unclaimed", "receive0/192.168.254.6,fd09::6,fd09::7", {}))
    free = setting("unclaimed", "receive0/192.168.254.6,192.168.254.8,fd09::6", {})
    (change,) = receiver.apply(free)
    assert ({}, {}) == (change["before"], change["after"])


def test_an_own_address_is_not_in_use(pair: tuple[Inside, Inside]) -> None:
    """What is on the interface already is not asked for."""
    _, receiver = pair
    receiver.shell("ip address add 192.168.254.1/24 dev receive0")
    receiver.apply(setting("unclaimed", "receive0/192.168.254.1", {}))


def test_what_a_flapping_link_loses_is_given_back(pair: tuple[Inside, Inside]) -> None:
    """The host's own addresses, neighbours and routes, when a change takes the link down and up."""
    _, receiver = pair
    receiver.shell(
        "ip address add 10.9.9.9/24 dev receive0"
        " && ip -6 address add fd09::9/64 dev receive0 nodad"
        " && ip route add 10.66.0.0/16 via 10.9.9.1"
        " && ip route add 192.0.2.0/24 dev receive0 && ip route add default via 192.0.2.1"
        " && ip -6 route add fd66::/64 via fd09::1"
        " && ip neighbour add 10.9.9.1 lladdr 02:00:00:00:00:02 dev receive0 nud permanent"
    )
    receiver.call("settled", interface="receive0")
    before = receiver.call("visible")
    receiver.call("flap", interface="receive0")
    receiver.call("settled", interface="receive0")
    after = receiver.call("visible")
    assert before["addresses"] == after["addresses"]
    assert before["neighbours"] == after["neighbours"]
    assert sorted(before["routes"].split("},{")) == sorted(after["routes"].split("},{"))


def test_a_carrier_that_stays_away_is_reported(pair: tuple[Inside, Inside]) -> None:
    """The message names the interface and how long was waited."""
    sender, receiver = pair
    with pytest.raises(Refused, match=r"timed out after .* s: receive0 has no carrier"):
        receiver.call("unplugged", interface="receive0", peer_pid=sender.pid, deadline_s=30.0)


def test_the_interface_of_the_ssh_connection_is_left_alone(pair: tuple[Inside, Inside]) -> None:
    """Through a macvlan on a bridge, down to its port; other interfaces may be changed."""
    _, receiver = pair
    receiver.shell(
        "ip link add site0 type bridge && ip link set receive0 master site0"
        " && ip link add name site0.7 link site0 type macvlan && ip link set site0 up"
        " && ip link set site0.7 up && ip address add 10.7.0.1/24 dev site0.7"
        " && ip tuntap add spare0 mode tap"
    )
    agent = Inside(
        ["nsenter", f"--target={receiver.pid}", "--net", "--mount"],
        {"SSH_CONNECTION": "10.7.0.9 50000 10.7.0.1 22"},
    )
    try:
        before = receiver.shell(MTUS)
        for interface in ("site0.7", "site0", "receive0"):
            requested = setting("mtu", interface, 1400)
            with pytest.raises(Refused, match=f"SSH connection uses {interface} "):
                agent.apply(requested)
            (planned,) = agent.call("plan", settings=[requested])
            assert "measure over another interface" in planned["refusal"]
        assert before == receiver.shell(MTUS)
        agent.apply(setting("mtu", "receive0", 1500), setting("mtu", "spare0", 1400))
        agent.call("restore")
        assert before == receiver.shell(MTUS)
    finally:
        agent.close()


def test_nothing_leads_the_ssh_connection_elsewhere(pair: tuple[Inside, Inside]) -> None:
    """A route, an address or a neighbour that would is refused; others are not."""
    _, receiver = pair
    receiver.shell(
        "ip link add site0 type bridge && ip link set site0 up"
        " && ip address add 10.7.0.1/16 dev site0"
    )
    agent = Inside(
        ["nsenter", f"--target={receiver.pid}", "--net", "--mount"],
        {"SSH_CONNECTION": "10.7.0.9 50000 10.7.0.1 22"},
    )
    try:
        before = receiver.shell(WAYS)
        for kind, target, value in (
            ("route", "receive0/10.7.0.0/24", "link"),
            ("address", "receive0/10.7.0.1/16", True),
            ("neighbour", "site0/10.7.0.9", "02:00:00:00:00:09"),
        ):
            requested = setting(kind, target, value)
            with pytest.raises(Refused, match="divert the packets of the SSH connection"):
                agent.apply(requested)
            (planned,) = agent.call("plan", settings=[requested])
            assert "a network without the controller's address" in planned["refusal"]
        agent.apply(
            setting("address", "receive0/10.8.0.1/24", True),
            setting("route", "receive0/10.0.0.0/8", "link"),
            setting("neighbour", "receive0/10.8.0.2", "02:00:00:00:00:09"),
        )
        agent.call("restore")
        assert before == receiver.shell(WAYS)
    finally:
        agent.close()


def test_a_connection_to_another_namespace_protects_nothing(pair: tuple[Inside, Inside]) -> None:
    """A built-in lab that was started from a shell which came by SSH: the peer is not reached."""
    _, receiver = pair
    agent = Inside(
        ["nsenter", f"--target={receiver.pid}", "--net", "--mount"],
        {"SSH_CONNECTION": "203.0.113.9 50000 203.0.113.1 22"},
    )
    try:
        (change,) = agent.apply(setting("mtu", "receive0", 1400))
        assert (1500, 1400) == (change["before"], change["after"])
    finally:
        agent.call("restore")
        agent.close()


@pytest.mark.parametrize(
    "command",
    [
        "ip link add test0 type bridge",
        "ip tuntap add test0 mode tun",
        "ip link add test0 type ifb",
        "ip link add test0 numtxqueues 4 type ifb",
        "ip tuntap add test0 mode tap multi_queue",
    ],
)
def test_other_devices_are_restored_too(pair: tuple[Inside, Inside], command: str) -> None:
    """A bridge, a tun device and an ifb take what they can, and the rest is said."""
    _, receiver = pair
    receiver.shell(f"{command} && ip link set test0 addrgenmode none")
    before = receiver.call("visible")
    is_bridge = command.endswith("bridge")  # whose MTU would be its own for good
    changes = receiver.apply(
        setting("mtu", "test0", 1400, optional=is_bridge),
        setting("txqueuelen", "test0", 77),
        setting("up", "test0", True),
        setting("address", "test0/10.5.0.1/24", True),
        setting("rps", "test0/rx-0", [0]),
        setting("channels", "test0", 2, optional=True),
        setting("rings", "test0", {"rx": 64}, optional=True),
        setting("coalesce", "test0", {"rx-usecs": 8}, optional=True),
        setting("flow_hash", "test0/udp4", "sdfn", optional=True),
        setting("indirection", "test0", "equal 2", optional=True),
        setting("ntuple", "test0/udp4/4321", 1, optional=True),
        setting("pause", "test0", {"rx": 0}, optional=True),
        setting("irq", "test0/rx-0", [0], optional=True),
    )
    changed = [change["before"] != change["after"] for change in changes[:5]]
    assert [not is_bridge, True, True, True, True] == changed
    refusals = [change["refusal"] for change in changes[5:]]
    if "tun" not in command:
        assert [] == [why for why in refusals if why is None]
    known = ("the kernel says: ", "the device has no ", "read back ")
    assert [] == [why for why in refusals if why is not None and not why.startswith(known)]
    receiver.call("restore")
    after = receiver.call("visible")
    assert before == after


def test_a_renamed_interface_is_restored(pair: tuple[Inside, Inside]) -> None:
    """Somebody gave it another name under way; by its first one it would look as if it were gone."""
    _, receiver = pair
    before = receiver.call("visible")
    parameters = (
        "cd /proc/sys/net && grep -s . ipv4/conf/receive0/rp_filter ipv6/conf/receive0/hop_limit"
        " ipv4/neigh/receive0/*"
    )
    numbers = receiver.shell(parameters)
    receiver.apply(
        setting("mtu", "receive0", 9000),
        setting("address", "receive0/10.7.0.1/24", True),
        setting("sysctl", "net.ipv4.conf.receive0.rp_filter", 2),
        setting("sysctl", "net/ipv6/conf/receive0/hop_limit", 7),
        setting("sysctl", "net.ipv4.neigh.receive0.unres_qlen", 50),
    )
    receiver.shell("ip link set receive0 name other0")
    receiver.call("restore")
    receiver.shell("ip link set other0 name receive0")
    assert before == receiver.call("visible")
    assert numbers == receiver.shell(parameters)


def test_an_mtu_below_that_of_ipv6_is_refused(pair: tuple[Inside, Inside]) -> None:
    """The kernel would take the host's IPv6 addresses, and nothing would give them back."""
    _, receiver = pair
    receiver.shell("ip -6 address add fd09::9/64 dev receive0 nodad")
    receiver.call("settled", interface="receive0")
    before = receiver.call("visible")
    with pytest.raises(Refused, match="below 1280 B receive0 would lose fd09::9; choose at least"):
        receiver.apply(setting("mtu", "receive0", 1000))
    assert before == receiver.call("visible")


def test_an_mtu_that_others_stand_on_is_not_lowered(pair: tuple[Inside, Inside]) -> None:
    """A macvlan would go down with it and not up again; a dry run says so, too."""
    _, receiver = pair
    receiver.shell(
        "ip link set receive0 mtu 9000 && ip link add link receive0 name upper0 type macvlan"
    )
    before = receiver.call("visible")
    requested = setting("mtu", "receive0", 1500)
    reason = r"upper0 (9000 B) on receive0 would stay at 1500 B afterwards; lower it"
    with pytest.raises(Refused, match=re.escape(reason)):
        receiver.apply(requested)
    assert reason in receiver.call("plan", settings=[requested])[0]["refusal"]
    assert before == receiver.call("visible")


def test_a_parameter_that_writes_others_is_put_back_with_them(pair: tuple[Inside, Inside]) -> None:
    """Forwarding of one interface stays on although it is switched on and off for all of them."""
    _, receiver = pair
    receiver.shell(
        "sysctl -qw net.ipv4.conf.receive0.forwarding=1 net.ipv4.conf.all.accept_redirects=0"
        " net.ipv6.conf.receive0.forwarding=1"
        " && if [ -e /proc/sys/net/ipv6/conf/all/force_forwarding ];"  # Linux 6.17
        " then sysctl -qw net.ipv6.conf.receive0.force_forwarding=1; fi"
    )
    before = receiver.call("visible")
    receiver.apply(
        setting("sysctl", "net.ipv4.ip_forward", 1),
        setting("sysctl", "net.ipv6.conf.all.forwarding", 1),
    )
    assert before["sysctls"] != receiver.call("visible")["sysctls"]
    receiver.call("restore")
    assert before == receiver.call("visible")


def test_a_parameter_of_every_interface_is_put_back_by_index(pair: tuple[Inside, Inside]) -> None:
    """Two that swapped their names have their own values again; one that is gone has none."""
    _, receiver = pair
    receiver.shell(
        "for name in a0 b0 c0; do ip link add $name type veth peer name p$name; done"
        " && sysctl -qw net.ipv4.conf.a0.forwarding=1 net.ipv4.conf.c0.forwarding=1"
    )
    receiver.apply(setting("sysctl", "net.ipv4.ip_forward", 1))
    receiver.shell("ip link set a0 name x0 && ip link set b0 name a0 && ip link set x0 name b0")
    receiver.shell("ip link delete c0")
    receiver.call("restore")
    values = receiver.shell("sysctl -n net.ipv4.conf.a0.forwarding net.ipv4.conf.b0.forwarding")
    assert ["0", "1"] == values.split()


@pytest.mark.parametrize("where", ["receive0", "all"])
def test_advertised_routes_are_not_given_up(pair: tuple[Inside, Inside], where: str) -> None:
    """They would go with forwarding and not come back; where they may stay, they do."""
    sender, receiver = pair
    name = f"net.ipv6.conf.{where}.forwarding"
    sender.shell("ip -6 address add fe80::9/64 dev send0 nodad")
    advertise = shlex.join((sys.executable, "-c", ADVERTISE, "send0"))
    routes = "ip -6 route | sed 's/expires.*//'"
    learnt = f"until {routes} | grep 'default.*proto ra'; do :; done"

    sender.shell(advertise)
    receiver.shell(f"timeout 10 sh -c {shlex.quote(learnt)}")
    receiver.shell(f"sysctl -qw {name}=1 && sysctl -qw {name}=0")
    assert "proto ra" not in receiver.shell(routes)

    sender.shell(advertise)
    receiver.shell(f"timeout 10 sh -c {shlex.quote(learnt)}")
    before = receiver.shell(routes)
    with pytest.raises(Refused, match="would permanently remove routes advertised on receive0"):
        receiver.apply(setting("sysctl", name, 1))
    assert before == receiver.shell(routes)
    receiver.shell("sysctl -qw net.ipv6.conf.receive0.accept_ra=2")
    receiver.apply(setting("sysctl", name, 1))
    assert before == receiver.shell(routes)
    receiver.call("restore")
    assert before == receiver.shell(routes)


@pytest.mark.parametrize("where", ["receive0", "all"])
def test_ipv6_is_not_switched_off_under_addresses(pair: tuple[Inside, Inside], where: str) -> None:
    """They would not come back with it."""
    _, receiver = pair
    receiver.shell("ip -6 address add fd09::9/64 dev receive0 nodad")
    receiver.call("settled", interface="receive0")
    before = receiver.call("visible")
    with pytest.raises(Refused, match="would permanently remove fd09::9; remove them first"):
        receiver.apply(setting("sysctl", f"net.ipv6.conf.{where}.disable_ipv6", 1))
    assert before == receiver.call("visible")


def test_what_somebody_adds_beside_an_address_of_ours_stays(pair: tuple[Inside, Inside]) -> None:
    """The kernel takes later addresses of a network away with the first one, and their routes."""
    _, receiver = pair
    receiver.apply(setting("address", "receive0/10.7.0.1/24", True))
    receiver.shell(
        "ip address add 10.7.0.9/24 brd + dev receive0 noprefixroute valid_lft 3000"
        " preferred_lft 2000"
        " && ip route add 10.77.0.0/16 via 10.7.0.5"
    )
    receiver.call("restore")
    (link,) = json.loads(receiver.shell("ip -j address show dev receive0 scope global"))
    ((flag, *_),) = [(address.pop("noprefixroute", None), address) for address in link["addr_info"]]
    (own,) = link["addr_info"]
    assert ("10.7.0.9", 24, "10.7.0.255", True) == (
        own["local"],
        own["prefixlen"],
        own["broadcast"],
        flag,
    )
    assert (2990 < own["valid_life_time"] <= 3000, True) == (
        True,
        1990 < own["preferred_life_time"] <= 2000,
    )


def test_an_interface_taken_down_keeps_the_addresses_it_had(pair: tuple[Inside, Inside]) -> None:
    """The kernel takes IPv6 addresses from an interface that goes down; it was down with one."""
    _, receiver = pair
    receiver.shell(
        "ip link set receive0 down && ip -6 address add fd09::9/64 dev receive0"
        " && ip address add 10.9.9.9/24 dev receive0"
    )
    before = receiver.call("visible")
    receiver.apply(setting("up", "receive0", True))
    receiver.call("restore")
    assert before["addresses"] == receiver.call("visible")["addresses"]


def test_the_latency_of_idle_cpus_is_held_by_the_agent(pair: tuple[Inside, Inside]) -> None:
    """It is in force until restored; and it goes with the agent."""
    _, receiver = pair
    if not Path("/dev/cpu_dma_latency").exists():
        pytest.skip("this kernel has no /dev/cpu_dma_latency")
    requested = setting("cpu_latency", "cpus", 0, scope="namespace")
    (change,) = receiver.apply(requested)
    assert (None, 0) == (change["before"], change["after"])
    (undone,) = receiver.call("restore")
    assert (0, None) == (undone["before"], undone["after"])


NAMED = (
    "cp $(which sleep) /run/irqbalance; for user in 0 65534; do"
    " setpriv --reuid=$user --clear-groups /run/irqbalance 60 >/dev/null 2>&1 & done"
    "; timeout 10 sh -c 'until [ $(pgrep -xc irqbalance) = 2 ]; do :; done'"
)
"""Two processes of that name, of root and of another user."""


def test_irqbalance_is_paused_and_goes_on() -> None:
    """Root's alone, whatever another user does; in a process namespace of the test's own."""
    new = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    agent, shown = Inside(new), "ps -C irqbalance -o uid=,state= | sort -n"
    try:
        agent.shell(f"mount -t tmpfs t /run; {NAMED}")
        agent.call("open", run="test", scopes=["machine"])
        (change,) = agent.apply(setting("irqbalance", "irqbalance", False, scope="machine"))
        assert ([True], [False]) == tuple(
            list(change[edge].values()) for edge in ("before", "after")
        )
        assert ["0", "T", "65534", "S"] == agent.shell(shown).split()
        agent.shell("pkill -STOP -u 65534 -x irqbalance; pkill -CONT -u 65534 -x irqbalance")
        agent.call("restore")
        assert ["0", "S", "65534", "S"] == agent.shell(shown).split()
    finally:
        agent.close()
