"""What is not undone exactly is refused before anything changes; the kernel decides, in namespaces."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sampled import sampled
from settings_fixture import Inside, Refused, setting, wire

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]


@pytest.fixture
def receiver() -> Iterator[Inside]:
    """Yield a namespace whose receive0 is up, with an address of each family."""
    sender, receiver = Inside(), Inside()
    wire(sender, receiver)
    receiver.shell(f"ip link set receive0 up && {BASE}")
    receiver.call("settled", interface="receive0")
    yield receiver
    receiver.close()
    sender.close()


BASE = "ip address add 10.9.9.9/24 dev receive0 && ip -6 address add fd09::9/64 dev receive0 nodad"
CLEAN = (
    "ip nexthop flush 2>/dev/null; ip neigh flush all nud all dev receive0"
    "; ip -6 neigh show proxy | while read a _; do ip neigh del proxy $a dev receive0; done"
    "; ip -4 neigh show proxy | while read a _; do ip neigh del proxy $a dev receive0; done"
    "; ip route flush table 77; ip -6 route flush table 77; ip address flush dev receive0"
    "; ip link set receive0 down; ip link set receive0 up"
)
STATE = (
    "ip -d -o address show dev receive0; echo; (ip -d route show table all"
    "; ip -d -6 route show table all; ip nexthop"
    "; ip -d neigh show nud permanent; ip -d neigh show nud noarp | grep -v ' 33:33'"
    "; ip -d neigh show proxy; ip -d -6 neigh show proxy) | sort"
)
ADDRESSES = (
    "10.9.8.1/24",
    "10.9.8.2/24",
    "10.9.7.1 peer 10.9.7.2/32",
    "10.9.6.1/24 brd + label receive0:x",
    "fd08::1/64",
    "fd08::2/64",
    "fd08::3/64 nodad",
    "fd07::1 peer fd07::2/128",
    "fe80::9/64",
)
OF_ADDRESS = ("", "", "noprefixroute", "metric 77", "preferred_lft 0", "proto 9", "home mngtmpaddr")
ROUTES = (
    "10.66.{n}.0/24 via 10.9.9.1",
    "10.66.{n}.0/24 dev receive0",
    "local 10.67.{n}.0/24 dev receive0",
    "10.68.{n}.0/24 via inet6 fd09::1 dev receive0",
    "default via 10.9.9.{n}",
    "10.69.{n}.0/24 via 10.77.{n}.1 dev receive0 onlink",
    "10.70.{n}.0/24 nexthop via 10.9.9.1 dev receive0 nexthop via 10.9.9.2 dev receive0",
    "10.71.{n}.0/24 nhid 7",
    "10.72.{n}.0/24 dev receive0 proto kernel scope link src 10.9.9.9",
    "blackhole 10.73.{n}.0/24",
    "fd66:{n}::/64 via fd09::1",
    "fd66:{n}::/64 dev receive0",
    "fd66:{n}::/64 dev receive0 proto kernel",
    "fd67:{n}::/64 via fe80::{n} dev receive0",
    "fd68:{n}::/64 nexthop via fd09::1 nexthop via fd09::2",
    "fd69:{n}::/64 via fd09::1 pref high",
    "default via fe80::{n} dev receive0 proto ra",
)
OF_ROUTE = (
    *("", "", "metric 50", "mtu 1400", "mtu lock 1300 advmss 900", "initcwnd 20 quickack 1"),
    *("table 77", "proto 99", "tos 0x10", "realms 5", "features ecn congctl cubic", "scope link"),
    *("rto_min 200ms window 9000", "ttl-propagate enabled", "fastopen_no_cookie 1", "expires 900"),
    *("from fd09::/64", "encap ip6 dst fd09::5", "src fd09::9", "src 10.9.9.9"),
)
NEIGHBOURS = (
    "neigh replace 10.9.9.{n} lladdr 02:00:00:00:00:{n} dev receive0 nud permanent",
    "neigh replace fd09::{n} lladdr 02:00:00:00:00:{n} dev receive0 nud permanent router",
    "neigh replace 10.9.9.{n} lladdr 02:00:00:00:00:{n} dev receive0 nud noarp",
    "neigh replace 10.9.9.{n} lladdr 02:00:00:00:00:{n} dev receive0 nud permanent proto 9",
    "neigh replace 10.9.9.{n} lladdr 02:00:00:00:00:{n} dev receive0 nud permanent extern_learn",
    "neigh add proxy 10.9.9.{n} dev receive0",
    "neigh add proxy fd09::{n} dev receive0",
    "nexthop add id {n} via 10.9.9.{n} dev receive0",
)


def drawn(chance: random.Random) -> str:
    """Return one command; the kernel refuses some of the combinations."""
    n = chance.randrange(10, 99)
    kind = chance.choice(("address", "route", "route", "neighbour"))
    if kind == "address":
        return f"ip address add {chance.choice(ADDRESSES)} dev receive0 {chance.choice(OF_ADDRESS)}"
    if kind == "neighbour":
        return "ip " + chance.choice(NEIGHBOURS).format(n=n)
    route, more = chance.choice(ROUTES).format(n=n), chance.choice(OF_ROUTE)
    family = "-6" if re.search("fd6|fe80", route) else "-4"
    extra = "ip nexthop add id 7 via 10.9.9.7 dev receive0; " if "nhid" in route else ""
    return f"{extra}ip {family} route {chance.choice(('add', 'append'))} {route} {more}"


def state(receiver: Inside) -> str:
    """Return what an administrator would see, without seconds that go by."""
    receiver.call("settled", interface="receive0")
    wait = "until ! ip -6 address show dev receive0 | grep -q tentative; do :; done"
    receiver.shell(f"timeout 10 sh -c '{wait}'")
    return re.sub(r"expires \d+sec", "expires", receiver.shell(STATE))


@pytest.mark.parametrize(
    ("seed", "rounds"), sampled([(1, 12), *((seed, 60) for seed in range(2, 8))], [(1, 12)])
)
def test_a_flap_leaves_what_there_was_or_is_refused(
    receiver: Inside, seed: int, rounds: int
) -> None:
    """Addresses, neighbours and routes with options at random, and all that ``ip -d`` shows."""
    chance = random.Random(seed)
    refused = 0
    for number in range(rounds):
        receiver.shell(f"{CLEAN}; {BASE}")
        commands = [drawn(chance) for _ in range(chance.randrange(1, 6))]
        for command in commands:
            receiver.shell(f"{command} 2>/dev/null; true")
        before = state(receiver)
        with suppress(Refused):
            receiver.call("flap", interface="receive0")
            refused -= 1
        refused += 1
        assert before.splitlines() == state(receiver).splitlines(), (number, commands)
    assert 0 < refused < rounds


VLANS = (
    "ip link add link receive0 name v5 type vlan id 5; ip link add link v5 name q6 type vlan id 6"
    "; ip link set v5 up; ip link set q6 up"
    "; ip link add link receive0 name v7 type vlan id 7 loose_binding on; ip link set v7 up"
)
OF_VLANS = (
    "ip address add fd05::5/64 dev v5 nodad; ip address add fd06::6/64 dev q6 nodad"
    "; ip address add 10.5.5.5/24 dev v5; ip route add 10.55.0.0/16 via 10.5.5.1 metric 9"
    "; ip -6 route add fd55::/64 via fd06::1; ip neigh add 10.5.5.1 lladdr 02::1 dev v5"
).replace("02::1", "02:00:00:00:00:01")


def test_a_flap_leaves_what_vlans_had(receiver: Inside) -> None:
    """They go down and come up with it; what was down by hand would come up, too."""
    if receiver.shell("ip link add link receive0 name v4 type vlan id 4 && echo yes || true") == "":
        pytest.skip("this kernel has no VLANs (CONFIG_VLAN_8021Q)")
    receiver.shell("ip link del v4")
    receiver.shell(f"{VLANS}; {OF_VLANS}")
    before = receiver.shell("ip -o -br link; ip -br address") + state(receiver)
    receiver.call("flap", interface="receive0")
    after = receiver.shell("ip -o -br link; ip -br address") + state(receiver)
    assert before.splitlines() == after.splitlines()
    receiver.shell("ip link set q6 down")
    with pytest.raises(Refused, match=r"q6 \(down\)"):
        receiver.call("flap", interface="receive0")


def test_every_sysctl_of_a_namespace_is_restored_with_what_it_changes(receiver: Inside) -> None:
    """Each that takes another value; then all of /proc/sys/net is as before, and what ``ip`` shows."""
    taken, differing = receiver.call("sweep", deadline_s=120.0)
    assert [] == differing
    assert taken > 300


IPV6 = "ip -6 address show; ip -6 route show table all | sort; ip -6 neigh show nud permanent"
LINK_LOCAL = (
    "sysctl -qw net.ipv6.conf.receive0.addr_gen_mode=0"
    "; timeout 10 sh -c 'while ip -6 address | grep -q tentative; do :; done'"
    "; ip -6 address del fd09::9/64 dev receive0"
)


JOIN = """
import socket, struct, sys
group = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
joined = socket.inet_pton(socket.AF_INET6, "ff02::99") + struct.pack("@I", int(sys.argv[1]))
group.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, joined)
print(flush=True)
sys.stdin.read()
"""


def test_a_token_and_programs_groups_are_not_lost_by_a_small_mtu(receiver: Inside) -> None:
    """The kernel forgets both with the interface's IPv6; its own groups come back."""
    receiver.shell(f"{LINK_LOCAL}; sysctl -qw net.ipv6.conf.receive0.accept_ra=1")
    receiver.apply(setting("mtu", "receive0", 1200))
    receiver.call("restore")
    number = receiver.shell("ip -o link show receive0").partition(":")[0]
    inside = ("nsenter", f"--target={receiver.process.pid}", "--net")
    words = (*inside, sys.executable, "-c", JOIN, number)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        with pytest.raises(Refused, match="would lose group ff02::99; choose at least"):
            receiver.apply(setting("mtu", "receive0", 1200))
        program.communicate()
    receiver.shell("ip token set ::99 dev receive0")
    with pytest.raises(Refused, match="would lose token ::99; choose at least"):
        receiver.apply(setting("mtu", "receive0", 1200))


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("ip -6 route add 2001:db8::/64 dev receive0", "route 2001:db8::/64"),
        ("ip -6 route add default via fe80::1 dev receive0 proto ra", "route default"),
        ("ip -6 neigh add fe80::7 lladdr 02:00:00:00:00:07 dev receive0", "neigh fe80::7"),
        ("ip -6 neigh add proxy fe80::8 dev receive0", "neigh fe80::8"),
        ("ip nexthop add id 7 via fe80::1 dev receive0", "nexthop 7"),
    ],
)
def test_ipv6_is_not_ended_under_what_would_not_come_back(
    receiver: Inside, command: str, lost: str
) -> None:
    """With nothing but link-local addresses; on one interface, on all, or by a small MTU."""
    receiver.shell(f"{LINK_LOCAL} && {command}")
    before = receiver.shell(IPV6)
    for where in ("receive0", "all"):
        with pytest.raises(Refused, match=f"would permanently remove {lost}; remove them first"):
            receiver.apply(setting("sysctl", f"net.ipv6.conf.{where}.disable_ipv6", 1))
    with pytest.raises(Refused, match=f"below 1280 B receive0 would lose {lost}; choose at least"):
        receiver.apply(setting("mtu", "receive0", 1200))
    assert before == receiver.shell(IPV6)


def test_ipv6_without_more_than_the_kernels_own_is_ended_and_comes_back(receiver: Inside) -> None:
    """By both ways; a parameter of the interface would be reset by the second."""
    receiver.shell(LINK_LOCAL)
    before = state(receiver)
    for requested in (
        setting("sysctl", "net.ipv6.conf.receive0.disable_ipv6", 1),
        setting("mtu", "receive0", 1200),
    ):
        receiver.apply(requested)
        assert "fe80" not in receiver.shell(IPV6)
        receiver.call("restore")
        assert before == state(receiver)
    receiver.shell("sysctl -qw net.ipv6.conf.receive0.accept_ra=0")
    with pytest.raises(Refused, match="would reset net/ipv6/conf/receive0/accept_ra, for"):
        receiver.apply(setting("mtu", "receive0", 1200))
    receiver.shell("sysctl -qw net.ipv6.conf.receive0.accept_ra=1")
    receiver.apply(
        setting("sysctl", "net.ipv6.conf.receive0.accept_ra", 0),
        setting("mtu", "receive0", 1200),
    )
    receiver.call("restore")
    assert before == state(receiver)


def test_a_mode_adds_no_address_that_stays(receiver: Inside) -> None:
    """None can be set, and nothing is made when it is put back; others make addresses."""
    receiver.shell("sysctl -qw net.ipv6.conf.receive0.addr_gen_mode=0")
    receiver.shell("ip link set receive0 down")
    before = receiver.shell(IPV6)
    for where in ("receive0", "all"):
        name = f"net.ipv6.conf.{where}.addr_gen_mode"
        for mode in (2, 3):
            with pytest.raises(Refused, match="permanently add link-local addresses; only 1"):
                receiver.apply(setting("sysctl", name, mode))
        receiver.apply(setting("sysctl", name, 1))
        receiver.call("restore")
        assert before == receiver.shell(IPV6)


def test_a_parameter_that_is_not_set_back_is_refused(receiver: Inside) -> None:
    """The kernel takes no 0 for it, for the whole machine."""
    name = "net.netfilter.nf_hooks_lwtunnel"
    if not receiver.shell(f"sysctl -n {name} 2>/dev/null || true"):
        pytest.skip("this kernel has no net.netfilter.nf_hooks_lwtunnel")
    with pytest.raises(Refused, match="the kernel does not set it back; set it by hand"):
        receiver.apply(setting("sysctl", name, 1))


def test_a_flap_is_refused_before_the_change_and_in_a_dry_run(receiver: Inside) -> None:
    """Whatever a driver does, the engine asks first; what routers advertise counts, too."""
    receiver.shell(
        "ip route add 10.70.0.0/16 nexthop via 10.9.9.1 nexthop via 10.9.9.2"
        " && ip -6 route add default via fd09::1 proto ra && ip nexthop add id 7 dev receive0"
    )
    requested = setting("mtu", "receive0", 1400)
    lost = r"route 10.70.0.0/16 \(multipath\), route default \(advertised by a router\), nexthop 7"
    with pytest.raises(Refused, match=f"recreated exactly: {lost}; remove them before the run"):
        receiver.apply(requested)
    (planned,) = receiver.call("plan", settings=[requested])
    assert "a driver may take receive0 down for it" in planned["refusal"]
    receiver.shell("ip route del 10.70.0.0/16 && ip nexthop del id 7 && ip -6 route del default")
    receiver.apply(requested)
    # What routers advertise meanwhile keeps nothing from being undone; other routes do.
    receiver.shell("ip -6 route add default via fd09::1 proto ra")
    receiver.shell("ip route add 10.70.0.0/16 nexthop via 10.9.9.1 nexthop via 10.9.9.2")
    with pytest.raises(Refused, match=r"10.70.0.0/16 \(multipath\); remove .* by hand: ip link"):
        receiver.call("restore")
    receiver.shell("ip route del 10.70.0.0/16")
    receiver.call("restore")


@pytest.mark.parametrize("way", ["plain", "legs", "objects"])
def test_parameters_of_what_carries_ssh_are_left_alone(receiver: Inside, way: str) -> None:
    """Those of every leg of a default route, and those for every interface; others may be set."""
    receiver.shell(
        "for k in 1 2; do ip link add site$k type bridge && ip link set site$k up"
        " && ip address add 10.7.$k.1/24 dev site$k"
        " && ip nexthop add id $k via 10.7.$k.9 dev site$k; done; ip nexthop add id 3 group 1/2"
    )
    receiver.shell(
        {
            "plain": "ip route add default via 10.7.1.9; ip route add default via 10.7.2.9 metric 9",
            "legs": "ip route add default nexthop via 10.7.1.9 nexthop via 10.7.2.9",
            "objects": "sysctl -qw net.ipv4.nexthop_compat_mode=0; ip route add default nhid 3",
        }[way]
    )
    agent = Inside(
        ["nsenter", f"--target={receiver.pid}", "--net", "--mount"],
        {"SSH_CONNECTION": "192.0.2.9 50000 10.7.1.1 22"},
    )
    try:
        for name in ("ipv4.conf.site1.rp_filter", "ipv4.neigh.site2.app_solicit"):
            interface = name.split(".")[2]
            with pytest.raises(Refused, match=f"SSH connection uses {interface} "):
                agent.apply(setting("sysctl", f"net.{name}", 1))
        for name in (
            *("net.ipv4.conf.all.rp_filter", "net/ipv6/conf/all/disable_ipv6"),
            *("net.ipv4.conf.default.rp_filter", "net.ipv4.conf.default.forwarding"),
        ):
            with pytest.raises(Refused, match="uses site1, site2, and this acts on every interf"):
                agent.apply(setting("sysctl", name, 1))
        with pytest.raises(Refused, match="divert the packets of the SSH connection"):
            agent.apply(setting("neighbour", "site2/10.7.2.9", "02:00:00:00:00:09"))
        agent.apply(
            setting("sysctl", "net.ipv4.conf.receive0.rp_filter", 2),
            setting("sysctl", "net.ipv6.conf.default.accept_ra", 2),
        )
        agent.call("restore")
    finally:
        agent.close()


BRIDGED = (
    "ip link add above type bridge; ip link set receive0 master above"
    "; sysctl -qw net.ipv6.conf.above.addr_gen_mode=1; ip link set above up"
)


@pytest.mark.parametrize(
    ("commands", "names"),
    [
        ("ip -6 route add fd66::/64 via fd09::1 mtu 1400", "route fd66::"),
        (f"{BRIDGED}; ip -6 route add fd66::/64 dev above mtu 1400", "route fd66::"),
        (f"{BRIDGED}; ip link add on_it link above type macvlan", "on_it (1500 B) on above"),
        ("echo 1400 > /proc/sys/net/ipv6/conf/receive0/mtu", "net/ipv6/conf/receive0/mtu"),
    ],
)
def test_an_mtu_that_others_would_follow_for_good_is_refused(
    receiver: Inside, commands: str, names: str
) -> None:
    """A route of IPv6 with an MTU of its own, a bridge above, the MTU that IPv6 has."""
    receiver.shell(f"{CLEAN}; {BASE}")
    receiver.shell(commands)
    before = state(receiver)
    with pytest.raises(Refused, match=re.escape(names)):
        receiver.apply(setting("mtu", "receive0", 1450))
    assert before == state(receiver)


def test_a_bridge_goes_on_following_its_ports(receiver: Inside) -> None:
    """It no longer would, once its MTU was set, although it is set back."""
    receiver.shell(BRIDGED)
    with pytest.raises(Refused, match=r"above would never again follow .*; set that of its ports"):
        receiver.apply(setting("mtu", "above", 1400))
    receiver.shell("ip link set receive0 mtu 1300")
    assert "mtu 1300 " in receiver.shell("ip link show above")


ADVERTISED = """
from pyroute2 import IPRoute
with IPRoute() as route:
    (index,) = route.link_lookup(ifname="receive0")
    lasting = {"preferred_lft": 900, "valid_lft": 900, "flags": 2, "proto": 2}
    route.addr("add", index=index, family=10, address="fd0b::9", prefixlen=64, **lasting)
"""
"""An older ``ip`` cannot say that the kernel took an address from a router (proto 2)."""


def test_an_interface_that_was_down_keeps_its_neighbours_and_addresses(receiver: Inside) -> None:
    """Permanent ones, proxies, and an address for a limited time."""
    receiver.shell(f"{CLEAN}; {BASE}")
    receiver.shell(
        "ip link set receive0 down; ip -6 address add fd0a::9/64 dev receive0 valid_lft 90000;"
        "ip neigh replace 10.9.9.5 lladdr 02:00:00:00:00:05 dev receive0 nud permanent;"
        "ip neigh replace fd0a::5 lladdr 02:00:00:00:00:05 dev receive0 nud permanent;"
        "ip neigh add proxy 10.9.9.6 dev receive0; ip neigh add proxy fd0a::6 dev receive0"
    )
    shown = "ip -d address show dev receive0; ip -d neigh show dev receive0 nud permanent; "
    shown += "ip neigh show proxy"
    seconds = re.compile(r"(valid_lft|preferred_lft) \d+sec")
    before = seconds.sub(r"\1", receiver.shell(shown))
    receiver.apply(setting("up", "receive0", True))
    # As the kernel makes of what a router advertises meanwhile, which goes with the link.
    receiver.shell(f"{sys.executable} -c '{ADVERTISED}'")
    assert "fd0b::9" in receiver.shell(shown)
    receiver.call("restore")
    assert before.splitlines() == seconds.sub(r"\1", receiver.shell(shown)).splitlines()


PARAMETERS = "grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv4/neigh 2>/dev/null | sort"


def test_parameters_copied_to_interfaces_return_with_the_default(receiver: Inside) -> None:
    """The kernel copies it to what has no address; the first address keeps the copy for good."""
    receiver.shell("ip address flush dev receive0; ip link set receive0 down")
    before = receiver.shell(PARAMETERS)
    receiver.apply(
        setting("sysctl", "net.ipv4.conf.default.arp_ignore", 8),
        setting("sysctl", "net.ipv4.conf.default.forwarding", 1),
        setting("address", "receive0/10.9.9.9/24", True),
    )
    receiver.call("restore")
    assert before == receiver.shell(PARAMETERS)


@pytest.mark.parametrize("name", ["net.ipv4.tcp_fastopen_key", "net.ipv6.conf.lo.stable_secret"])
def test_secrets_are_neither_set_nor_read(receiver: Inside, name: str) -> None:
    """An unset key reads as zeros, and as such everybody would know it."""
    with pytest.raises(Refused, match="it is a secret, which no record may hold; leave it out"):
        receiver.apply(setting("sysctl", name, "1-2-3-4"))


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        (
            "ip neigh replace 10.7.7.7 lladdr 02::07 dev receive0 nud permanent extern_learn",
            "neigh",
        ),
        ("ip route add 10.7.0.0/16 dev receive0 encap ip6 dst fd09::5", "route"),
        ("ip route add 10.7.0.0/16 nexthop dev receive0 nexthop dev other", "route"),
    ],
)
def test_a_first_address_is_refused_where_the_last_takes_more_along(
    receiver: Inside, command: str, lost: str
) -> None:
    """A second leaves it alone; so does IPv6."""
    receiver.shell(
        "ip link add other type veth peer name far; ip link set other addrgenmode none"
        "; ip link set far addrgenmode none; ip link set far up"
    )
    receiver.shell(
        "ip link set other up; "
        f"ip -4 address flush dev receive0; {command.replace('02::', '02:00:00:00:00:')}"
    )
    before = receiver.shell(STATE)
    with pytest.raises(Refused, match=f"as the last IPv4 address it would take along {lost} 10.7"):
        receiver.apply(setting("address", "receive0/10.9.9.9/24", True))
    receiver.apply(setting("address", "receive0/fd07::7/64", True))
    receiver.call("restore")
    assert before == receiver.shell(STATE)


@pytest.mark.parametrize(
    ("command", "network", "gateway"),
    [
        ("", "fd09::/64", "link"),
        ("fd77::/64 dev receive0 proto bird metric 100", "fd77::/64", "link"),
        ("fd77::/64 via fd09::1 metric 100", "fd77::/64", "fd09::1"),
        ("fd77::/64 via fd09::1 metric 100", "fd77::/64", "link"),
    ],
)
def test_a_route_is_removed_and_none_beside_it(
    receiver: Inside, command: str, network: str, gateway: str
) -> None:
    """For IPv6 the kernel takes the lowest metric; the command by hand names ours."""
    if command:
        receiver.shell(f"ip -6 route add {command}")
    before, requested = receiver.shell(STATE), setting("route", f"receive0/{network}", gateway)
    receiver.apply(requested)
    receiver.call("restore")
    assert before == receiver.shell(STATE)
    receiver.apply(requested)
    receiver.shell(*receiver.call("by_hand", settings=[requested], values=[None]))
    assert before == receiver.shell(STATE)
    receiver.call("restore")
    assert before == receiver.shell(STATE)


NET = "fd10::/64 dev receive0"


@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    ("before", "during"),
    [
        (f"route add {NET} metric 256 proto bird", ""),
        (f"route add {NET} proto dhcp", ""),
        (f"route add {NET} metric 100", ""),
        (f"route add {NET} proto kernel metric 100", ""),
        (f"route add {NET} proto kernel metric 256", ""),
        (f"route add {NET} proto kernel metric 256 expires 900", ""),
        ("address add fd10::5/64 dev receive0 nodad noprefixroute", ""),
        ("address add fd10::5/64 dev receive0 nodad metric 1024", ""),
        ("address add fd10::5/64 dev receive0 nodad", ""),
        ("address add fd10::5/64 dev receive0 nodad", "address del fd10::5/64 dev receive0"),
        ("address add fd10::5/64 dev receive0 nodad", f"route add {NET} metric 100 proto bird"),
        ("address add fd10::5 peer fd11::6 dev receive0 nodad", ""),
        ("", f"route add {NET} metric 100 proto bird"),
        ("", f"route add {NET} metric 100 proto kernel"),
        ("", "address add fd10::5/64 dev receive0 nodad noprefixroute"),
    ],
)
def test_an_ipv6_address_takes_its_own_route_along_and_no_other(
    receiver: Inside, before: str, during: str
) -> None:
    """Whatever others have to its network, which is reached meanwhile; of two, too."""
    expected = ""
    for is_measured in (False, True):
        receiver.shell(f"{CLEAN}; {BASE}")
        receiver.shell(f"ip -6 {before}" if before else ":")
        if is_measured:
            receiver.apply(
                setting("address", "receive0/fd10::1/64", True),
                setting("address", "receive0/fd10::2/64", True),
            )
            assert " dev receive0 " in receiver.shell("ip -6 route get fd10::99")
        receiver.shell(f"ip -6 {during}" if during else ":")
        if is_measured:
            # Without force the address that somebody removed counts as lost.
            receiver.call("restore", force="address del" in during)
            assert expected.splitlines() == state(receiver).splitlines()
        expected = state(receiver)


def test_an_interface_that_is_down_is_not_taken_up_over_what_it_would_lose(
    receiver: Inside,
) -> None:
    """A neighbour of somebody else's, which cannot be set as it was."""
    receiver.shell(
        "ip link set receive0 down"
        "; ip neigh replace 10.9.9.7 lladdr 02:00:00:00:00:07 dev receive0 nud permanent extern_learn"
    )
    with pytest.raises(Refused, match=r"recreated exactly: neigh 10\.9\.9\.7 \(extern_learn\)"):
        receiver.apply(setting("up", "receive0", True))


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        ("ip -6 address add fe80::9/64 dev receive0 nodad", "fe80::9"),
        ("ip -6 address flush dev receive0 scope link", "the lack of a link-local address of"),
    ],
)
def test_link_local_addresses_of_an_administrator_are_not_replaced(
    receiver: Inside, command: str, lost: str
) -> None:
    """The kernel makes one from the MAC, and none but that."""
    receiver.shell(f"{LINK_LOCAL}; {command}")
    with pytest.raises(Refused, match=f"would permanently remove {lost}"):
        receiver.apply(setting("sysctl", "net.ipv6.conf.receive0.disable_ipv6", 1))
    with pytest.raises(Refused, match=f"would lose {lost}"):
        receiver.apply(setting("mtu", "receive0", 1200))


def test_an_mtu_that_ipv6_has_for_itself_is_not_replaced(receiver: Inside) -> None:
    """By the interface's: when IPv6 comes back on it, or on all, and when the link comes up."""
    receiver.shell(f"{LINK_LOCAL}; sysctl -qw net.ipv6.conf.receive0.mtu=1400")
    own = "net/ipv6/conf/receive0/mtu"
    for where in ("receive0", "all"):
        with pytest.raises(Refused, match=f"would permanently remove {own}"):
            receiver.apply(setting("sysctl", f"net.ipv6.conf.{where}.disable_ipv6", 1))
    receiver.shell("ip link set receive0 down; sysctl -qw net.ipv6.conf.receive0.mtu=1400")
    with pytest.raises(Refused, match=f"would replace {own} by its MTU, for good"):
        receiver.apply(setting("up", "receive0", True))
    assert "1400" in receiver.shell("sysctl -n net.ipv6.conf.receive0.mtu")


def test_whatever_an_interface_has_lost_is_not_called_restored(receiver: Inside) -> None:
    """Although every setting is as before: it may have been a setting that changed it."""
    receiver.shell("ip route add 10.5.0.0/16 dev receive0")
    receiver.apply(setting("txqueuelen", "receive0", 77))
    receiver.shell(
        "ip route del 10.5.0.0/16; ip -6 address del fd09::9/64 dev receive0"
        "; sysctl -qw net.ipv4.conf.receive0.arp_ignore=8; ip token set ::9 dev receive0"
        "; ip link set receive0 group 7 promisc on"
    )
    lost = (
        *("group: 0 → 7", "flags: 0x1001 → 0x1101", "token: :: → ::9", "arp_ignore: 0 → 8"),
        r"(?:route 10\.5|addr fd09)\S* \(.*\) is missing and 1 more; by a setting or another program",
    )
    for _ in range(2):
        with pytest.raises(Refused, match="not as it was before the run") as refused:
            receiver.call("restore")
        assert re.search(".*".join(lost), str(refused.value)), refused.value
    receiver.call("restore", force=True)
    receiver.call("restore")


def test_what_others_add_or_let_expire_is_theirs(receiver: Inside) -> None:
    """Leases, routes of daemons, what routers advertise, and what comes in addition."""
    receiver.shell(
        "ip address add 10.9.8.8/24 dev receive0 valid_lft 999 preferred_lft 999"
        "; ip route add 10.5.0.0/16 dev receive0 proto bird"
    )
    receiver.apply(setting("txqueuelen", "receive0", 77))
    receiver.shell(
        "ip address del 10.9.8.8/24 dev receive0; ip route del 10.5.0.0/16"
        "; ip address add fd01::1/64 dev receive0; ip route add 10.6.0.0/16 dev receive0"
        "; sysctl -qw net.ipv6.conf.receive0.hop_limit=9"
    )
    receiver.call("restore")
