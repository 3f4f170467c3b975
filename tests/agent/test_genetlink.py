"""Generic netlink: what kernels answered, as data, and the kernel's own refusals."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from udpbench.agent.counters.parse import parse_mac_statistics, queue_statistics
from udpbench.agent.counters.snapshot import mac_counters, queue_counters
from udpbench.agent.host import genetlink, reading, rtchange, rtstats, udp_diag
from udpbench.agent.host.reading import xdp_feature_names
from udpbench.agent.host.system import Host
from udpbench.agent.settings.addresses import NUD_PERMANENT

FIXTURES = Path(__file__).parents[1] / "fixtures/netlink"

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="recorded on x86-64")


def answer(name: str) -> list[bytes]:
    """Return the attributes of each message of a recorded answer."""
    messages, ended = genetlink.read_messages(bytes.fromhex((FIXTURES / name).read_text()))
    assert ended
    return messages


def test_a_cards_standard_statistics_have_the_names_that_ethtool_prints() -> None:
    """Group rmon has errors and sizes; 64 bits stay 64 bits."""
    assert {
        "eth-mac.eth3.FramesTransmittedOK": 20000,
        "eth-mac.eth3.FramesReceivedOK": 12140,
        "eth-mac.eth3.FrameCheckSequenceErrors": 3,
        "eth-mac.eth3.OctetsTransmittedOK": 2**40,
        "eth-mac.eth3.OctetsReceivedOK": 7,
        "eth-mac.eth3.MulticastFramesReceivedOK": 2,
        "eth-mac.eth3.BroadcastFramesReceivedOK": 3,
        "eth-mac.eth3.FrameTooLongErrors": 1,
        "rmon.eth3.etherStatsUndersizePkts": 1,
        "rmon.eth3.etherStatsJabbers": 2,
    } == parse_mac_statistics("eth3", answer("card-stats")[0])


def test_a_driver_without_standard_statistics_has_none() -> None:
    """The kernel answers with empty groups."""
    assert {} == parse_mac_statistics("eth0", answer("virtio_net-stats-6.18")[0])
    assert {} == parse_mac_statistics("eth0", b"")


def test_a_statistic_of_a_later_kernel_is_left_out() -> None:
    """It has no name here."""
    later = genetlink.nest(4, genetlink.number(2, 1), genetlink.nest(4, genetlink.number(99, 5)))
    assert {} == parse_mac_statistics("eth0", later)


def test_a_dump_has_an_object_in_each_message() -> None:
    """Queues of a virtio card, and the NAPI instance that serves both."""
    assert [{1: 0, 3: 0, 2: 4, 4: 257}, {1: 0, 3: 1, 2: 4}] == [
        genetlink.numbers(message) for message in answer("virtio_net-queue-6.18")
    ]
    assert [257] == [genetlink.numbers(message)[2] for message in answer("virtio_net-napi-6.18")]


def test_statistics_of_queues_are_named_by_way_and_number() -> None:
    """A virtio card on Linux 6.18; a loopback interface has none, and that is no error."""
    queues = [genetlink.numbers(message) for message in answer("virtio_net-qstats-6.18")]
    assert {
        "qstats.eth0.rx-0.packets": 9794,
        "qstats.eth0.rx-0.bytes": 326304331,
        "qstats.eth0.tx-0.packets": 4957,
        "qstats.eth0.tx-0.bytes": 502178,
        "qstats.eth0.tx-0.stop": 0,
        "qstats.eth0.tx-0.wake": 0,
    } == queue_statistics("eth0", queues)
    assert {} == queue_counters(Host(), "lo")
    assert {} == queue_counters(Host(), "none0")


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("veth-dev-6.18", ("basic", "redirect", "rx-sg")),
        ("bridge-dev-6.18", ()),
        ("virtio_net-dev-6.18", ("basic", "redirect", "xsk-zerocopy", "rx-sg")),
    ],
)
def test_what_a_driver_does_for_xdp_has_the_kernels_names(
    name: str, features: tuple[str, ...]
) -> None:
    """Nothing is an answer, too."""
    (device,) = answer(name)
    assert features == xdp_feature_names(device)


def test_xdp_features_that_are_not_said_are_an_error() -> None:
    """Before Linux 6.3; a bit of a later kernel has no name."""
    with pytest.raises(OSError, match="not supported"):
        xdp_feature_names(genetlink.number(1, 7))
    later = genetlink.attribute(3, struct.pack("=Q", 1 << 40 | 1))
    assert ("basic",) == xdp_feature_names(later)
    with pytest.raises(OSError, match="No such device"):
        Host().xdp_features("none0")


def test_a_refusal_is_the_kernels_error() -> None:
    """Also one that comes after a part of the answer, and a header that lies."""
    refusal = genetlink.HEADER.pack(20, genetlink.NLMSG_ERROR, 0, 0, 0) + struct.pack("=i", -95)
    with pytest.raises(OSError, match="Operation not supported"):
        genetlink.read_messages(refusal)
    with pytest.raises(OSError, match="Bad message"):
        genetlink.read_messages(bytes(genetlink.HEADER.size))
    assert [] == list(genetlink.attributes(b"\1\0\1\0"))


def test_a_family_that_the_kernel_does_not_have_is_reported_as_missing() -> None:
    """The real kernel is asked."""
    with pytest.raises(OSError, match="No such file or directory"):
        genetlink.ask("udpbench_none", 1)


def test_an_interface_may_have_a_name_of_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container's namespace, which the host is asked about while it restores."""
    name = genetlink.attribute(reading._IFLA_IFNAME, b"v\xff\0")
    answers = {
        reading._RTM_GETNSID: [genetlink.number(reading._NETNSA_NSID, 1)],
        reading._RTM_GETLINK: [struct.pack("=i8x", 7) + name],
    }
    monkeypatch.setattr(genetlink, "dump", lambda kind, *_: answers[kind])
    assert [False, True] == [Host().is_elsewhere(7, name) for name in ("eth0", "v\udcff")]


def test_a_missing_family_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each request the kernel runs modprobe; another refusal may be over by the next."""
    refusals = [PermissionError(errno.EPERM, ""), FileNotFoundError(errno.ENOENT, "")]

    def refuse(*_: Any) -> list[bytes]:
        raise refusals.pop(0)

    monkeypatch.setattr(genetlink, "_exchange", refuse)
    for expected in (errno.EPERM, errno.ENOENT, errno.ENOENT):
        with pytest.raises((PermissionError, FileNotFoundError)) as raised:
            genetlink.family_id("of no kernel")
        assert expected == raised.value.errno
    assert [] == refusals


def test_loopback_has_no_standard_statistics_and_that_is_no_error() -> None:
    """Nor has an interface that is not there."""
    assert {} == mac_counters(Host(), "lo")
    assert {} == mac_counters(Host(), "none0")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: genetlink.ask("netdev", 1, dump=True),
        lambda: list(udp_diag.dump(bytes(56))),
        lambda: rtstats.request(1),
        lambda: rtchange.change(0, 0, b""),
    ],
)
def test_nobody_but_the_kernel_is_heard(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object]
) -> None:
    """Whoever is root in the network namespace may send to any socket there, by its port."""
    refused: list[type[BaseException]] = []

    class Watched(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, self.proto) as stranger:
                try:
                    stranger.sendto(b"forged", self.getsockname())
                except OSError as error:
                    refused.append(type(error))
            return super().recv(size, flags)

    monkeypatch.setattr(socket, "socket", Watched)
    with suppress(OSError):
        ask()
    assert {ConnectionRefusedError} == set(refused)


SET_UP = " && ".join(
    f"ip {words}"
    for words in (
        "link set lo up",
        "link add d0 type veth peer name d1",
        "link set d0 addrgenmode none up",
        "address add 10.0.0.1/24 dev d0",
        "address add 10.0.0.2/24 dev d0",
        "address add fd01::1/64 dev d0 nodad metric 7",
        "address add fd00::1/64 dev d0 nodad noprefixroute",
        "neighbour add 10.0.0.9 lladdr 02:00:00:00:00:09 dev d0",
        "neighbour add fd00::9 lladdr 02:00:00:00:00:0a dev d0",
    )
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace")
def test_addresses_and_neighbours_are_as_they_were_set() -> None:
    """The flags of IPv6 need more than a byte; another interface's are left out."""
    script = """
import json, socket
from udpbench.agent.host.system import Host
host = Host()
index = host.index("d0")
print(json.dumps([
    [[str(each.interface), each.flags, each.metric] for each in host.addresses(index, family)]
    for family in (socket.AF_INET, socket.AF_INET6)
] + [host.neighbour(index, text) for text in ("10.0.0.9", "fd00::9", "10.0.0.8")]))
"""
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"{SET_UP} && exec {sys.executable} -c '{script}'"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    lasting, nodad, noprefixroute, secondary = 0x80, 2, 0x200, 1
    assert [
        [["10.0.0.1/24", lasting, None], ["10.0.0.2/24", lasting | secondary, None]],
        [["fd00::1/64", lasting | nodad | noprefixroute, None], ["fd01::1/64", lasting | nodad, 7]],
        [NUD_PERMANENT, "02:00:00:00:00:09"],
        [NUD_PERMANENT, "02:00:00:00:00:0a"],
        None,
    ] == json.loads(done.stdout)


CHANGES = """
import json, socket
from udpbench.agent.host.reading import ReadingHost
from udpbench.agent.host.system import Host
host = Host()
index, loopback = host.index("d0"), host.index("lo")
STATION = "02:00:00:00:00:0B"
FOUR, SIX = ({"dst": text, "ifindex": index} for text in ("10.0.0.7", "fd00::7"))
ADDRESSES = (
    {"index": index, "address": "10.1.0.1", "prefixlen": 24},
    {"index": index, "address": "fd02::1", "prefixlen": 64, "flags": 0x202},
)
REQUESTS = [("addr", "add", each) for each in ADDRESSES]
REQUESTS += [("neigh", "replace", {**each, "lladdr": STATION}) for each in (FOUR, SIX)]
REQUESTS += [("neigh", "replace", {**FOUR, "lladdr": "02:00:00:00:00:0c", "state": "permanent"})]
REQUESTS += [("neigh", "del", each) for each in (FOUR, SIX)]
REQUESTS += [("addr", "del", each) for each in ADDRESSES]

def seen(make, noun, verb, fields):
    try:
        make(host, noun, verb, **fields)
    except OSError as error:
        return [error.errno, error.strerror]
    owned = [each for family in (2, 10) for each in host.addresses(index, family)]
    has = [[str(each.interface), each.flags, each.metric] for each in owned]
    return has + [host.neighbour(index, each["dst"]) for each in (FOUR, SIX)]

def tried(make):
    return [seen(make, *each) for each in (*REQUESTS[:1], *REQUESTS, *REQUESTS[-3:])]

print(json.dumps([tried(Host.rtnl), host._netlink is None, tried(ReadingHost.rtnl)]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace")
def test_changes_and_refusals_are_those_of_pyroute2() -> None:
    """In the kernel's own words: what is there already, and what is not there any more."""
    words = ("unshare", "--net", "sh", "-c", f'{SET_UP} && exec "$0" -c "$1"')
    done = subprocess.run(
        (*words, sys.executable, CHANGES), capture_output=True, text=True, check=True, timeout=30
    )
    ours, without_pyroute2, theirs = json.loads(done.stdout)
    assert (theirs, True) == (ours, without_pyroute2)
    first, again, *_ = ours
    assert ["10.1.0.1/24", 0x80, None] in first
    assert errno.EEXIST == again[0]
    assert [errno.ENOENT, errno.EADDRNOTAVAIL, errno.EADDRNOTAVAIL] == [e[0] for e in ours[-3:]]


@pytest.mark.parametrize(
    ("noun", "verb", "fields"),
    [
        ("addr", "add", {"index": 2, "address": "10.0.0.1", "prefixlen": 24, "label": "d0:1"}),
        ("addr", "add", {"index": 2, "address": "10.0.0.1"}),
        ("neigh", "replace", {"ifindex": 2, "dst": "10.0.0.1", "state": 0}),
        ("neigh", "get", {"ifindex": 2, "dst": "10.0.0.1"}),
    ],
)
def test_other_requests_are_left_to_pyroute2(noun: str, verb: str, fields: dict[str, Any]) -> None:
    """None of what they ask for is dropped."""
    assert rtchange.packed(noun, verb, fields) is None


@pytest.mark.parametrize(
    ("noun", "fields"), [("addr", {}), ("addr", {"family": socket.AF_INET}), ("tc", {})]
)
def test_an_interfaces_messages_are_as_pyroute2_has_them(noun: str, fields: dict[str, int]) -> None:
    """Those of thousands of others are not parsed."""
    host = Host()
    index = host.index("lo")

    def plain(messages: Iterable[Any]) -> list[str]:
        return [repr({k: v for k, v in each.items() if k in KEYS}) for each in messages]

    of_all = getattr(host.netlink, noun)("dump", index=index, **fields)
    assert plain(of_all) == plain(host.rtnl(noun, "dump", index=index, **fields))
    assert [] == host.rtnl(noun, "dump", index=2**30, **fields)


KEYS = ("family", "prefixlen", "flags", "scope", "index", "handle", "parent", "info", "attrs")


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be as many rules, classes and policies as root of a container likes."""
    monkeypatch.setattr(genetlink, "MOST_BYTES", 2**20)
    assert genetlink.dump_whole(reading._RTM_GETLINK, socket.NETLINK_ROUTE)
    monkeypatch.setattr(genetlink, "MOST_BYTES", 100)
    with pytest.raises(OSError, match="the kernel lists more than the 0 MiB that are r"):
        genetlink.dump_whole(reading._RTM_GETLINK, socket.NETLINK_ROUTE)


@pytest.mark.parametrize(
    ("noun", "fields", "what"),
    [
        ("fdb", {}, "stations of bridges"),
        ("fdb", {"ifindex": 5}, "stations of bridges"),
        ("neigh", {"ifindex": 5}, "neighbours"),
        ("route", {"family": socket.AF_INET, "oif": 5}, "routes"),
    ],
)
def test_a_table_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, noun: str, fields: dict[str, int], what: str
) -> None:
    """Whoever sends frames of ever new addresses fills the table of a bridge."""
    oif = genetlink.number(4, 5)
    entries = [bytes(4) + struct.pack("=i", 5) + bytes(4) + oif] * 4
    others = [bytes(4) + struct.pack("=i", 6) + bytes(4)] * 4
    monkeypatch.setattr(reading, "MESSAGES_MAX", 3)
    monkeypatch.setattr(genetlink, "each_answer", lambda *_: iter([*others, *entries]))
    with pytest.raises(OSError, match=f"more than 3 {what}, and no more are read"):
        Host().rtnl(noun, "dump", **fields)
    monkeypatch.setattr(reading, "MESSAGES_MAX", 4 if fields else 8)
    host = Host()
    host._netlink = type("Link", (), {noun: lambda *_, **__: ()})()
    assert [] == host.rtnl(noun, "dump", **fields)
