"""UDP sockets as sock_diag lists them, and their packets as BPF programs count them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden import Golden

from udpbench.agent.host import udp_diag
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf import socket_counts as room
from udpbench.agent.host.bpf.socket_counts import SocketCounts
from udpbench.agent.host.genetlink import HEADER, NLMSG_DONE, NLMSG_ERROR
from udpbench.agent.host.socket_options import (
    SO_ATTACH_FILTER,
    UDP_GRO,
    UDP_SEGMENT,
    attach_filter,
)
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import open_sockets, udp_sockets
from udpbench.agent.watch import Looks
from udpbench.errors import NothingToWatch
from udpbench.model.record import SocketCount, UdpSocket

PACKETS = 100
SO_COOKIE = 57  # include/uapi/asm-generic/socket.h
Opened = Callable[..., socket.socket]


@pytest.fixture
def counting() -> Iterator[SocketCounts]:
    """Count the sockets of this namespace."""
    try:
        counts = SocketCounts(Host())
    except OSError as error:
        pytest.skip(f"sockets cannot be counted here: {error}")
    yield counts
    counts.close()


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open UDP sockets on loopback."""
    sockets = []

    def receiver(family: int = socket.AF_INET) -> socket.socket:
        sockets.append(socket.socket(family, socket.SOCK_DGRAM))
        sockets[-1].bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        sockets[-1].setblocking(False)
        return sockets[-1]

    yield receiver
    for each in sockets:
        each.close()


def send(to: socket.socket, packets: int, size_bytes: int = 32) -> None:
    """Send one datagram after the other."""
    with socket.socket(to.family, socket.SOCK_DGRAM) as sender:
        for _ in range(packets):
            sender.sendto(bytes(size_bytes), to.getsockname())


def read(receiver: socket.socket, room: int = 2**16) -> int:
    """Return how many datagrams could be read."""
    packets = 0
    while True:
        try:
            receiver.recv(room)
        except BlockingIOError:
            return packets
        packets += 1


def count(counting: SocketCounts, receiver: socket.socket, arrived: int) -> SocketCount:
    """Return a socket's count once so many packets have arrived: delivery may be deferred."""
    cookie = int.from_bytes(receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")
    Host().wait_for("arrival", lambda: counting.counts()[cookie].arrived >= arrived, 5)
    return counting.counts()[cookie]


def listed(receiver: socket.socket) -> UdpSocket:
    """Return what sock_diag says of a socket."""
    inode = os.fstat(receiver.fileno()).st_ino
    return next(each for each in udp_diag.SocketList().read().values() if each.inode == inode)


def test_a_full_buffers_packets_balance(counting: SocketCounts, opened: Opened) -> None:
    """Arrived = read + dropped, and sock_diag has as many drops; others' sockets do not count."""
    receiver = opened()
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    send(receiver, PACKETS)
    arrived = count(counting, receiver, PACKETS)
    drops = PACKETS - read(receiver)
    assert 0 < drops < PACKETS
    assert SocketCount(PACKETS, 0, {"SOCKET_RCVBUFF": drops}) == arrived
    assert SocketCount(PACKETS, PACKETS - drops, {"SOCKET_RCVBUFF": drops}) == count(
        counting, receiver, PACKETS
    )
    assert drops == listed(receiver).drops


def test_what_a_filter_drops_has_arrived(counting: SocketCounts, opened: Opened) -> None:
    """The socket's own program comes after ours."""
    receiver = opened(socket.AF_INET6)
    attach_filter(receiver, SO_ATTACH_FILTER, [(0x06, 0, 0, 0)])
    send(receiver, 10)
    assert SocketCount(10, 0, {"SOCKET_FILTER": 10}) == count(counting, receiver, 10)


def test_a_peek_and_an_empty_queue_are_no_read(counting: SocketCounts, opened: Opened) -> None:
    """Only what leaves the queue counts."""
    receiver = opened()
    send(receiver, 3)
    count(counting, receiver, 3)
    receiver.recv(10, socket.MSG_PEEK)
    assert 3 == read(receiver)
    assert SocketCount(3, 3) == count(counting, receiver, 3)


def test_a_socket_that_is_shut_down_reads_nothing(counting: SocketCounts, opened: Opened) -> None:
    """Then recv(2) returns 0 without a datagram, as of an empty one."""
    receiver = opened()
    send(receiver, 1, 0)
    send(receiver, 2)
    count(counting, receiver, 3)
    assert 0 == len(receiver.recv(10))
    with suppress(OSError):  # not connected, and shut down none the less
        receiver.shutdown(socket.SHUT_RD)
    receiver.setblocking(True)
    assert [32, 32, 0, 0] == [len(receiver.recv(100)) for _ in range(4)]
    assert SocketCount(3, 3) == count(counting, receiver, 3)


def test_every_segment_of_a_merged_skb_arrives(counting: SocketCounts, opened: Opened) -> None:
    """One message of four segments: read as one where the socket asks for UDP_GRO."""
    receiver = opened()
    receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 32)
        sender.sendto(bytes(128), receiver.getsockname())
    count(counting, receiver, 4)
    assert 1 == read(receiver)
    assert SocketCount(4, 1) == count(counting, receiver, 4)


def test_a_closed_socket_counts_until_it_is_forgotten(
    counting: SocketCounts, opened: Opened
) -> None:
    """One that lived between two looks is not lost."""
    receiver = opened()
    send(receiver, 2)
    count(counting, receiver, 2)
    cookie = listed(receiver).cookie
    receiver.close()
    assert SocketCount(2, 0) == counting.counts()[cookie]
    counting.forget([cookie])
    assert cookie not in counting.counts()


def test_too_many_sockets_are_an_error(
    counting: SocketCounts, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A map that is full counts no further socket."""
    monkeypatch.setattr("udpbench.agent.host.bpf.socket_counts.ENTRIES", 1)
    monkeypatch.setattr(bpf, "read_counts", lambda *_: {(1, 1024): 1})
    with golden.raises(OSError):
        counting.counts()


def test_sockets_at_one_port_are_counted_alone(opened: Opened) -> None:
    """So that others take no room: those that arrive, are dropped, and are read."""
    receiver, other = opened(), opened()
    try:
        counting = SocketCounts(Host(), [1, receiver.getsockname()[1]])
    except OSError as error:
        pytest.skip(f"sockets cannot be counted here: {error}")
    own = listed(receiver).cookie
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    listed(other)
    for each in (other, receiver):
        send(each, PACKETS)
        assert 32 == len(each.recv(64))
    counts = counting.counts()
    counting.close()
    assert ({own}, PACKETS, 1) == (set(counts), counts[own].arrived, counts[own].read or 1)
    assert not counting.names_reasons or 0 < sum(counts[own].dropped.values())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_open_sockets_are_as_in_proc(
    family: int, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued bytes and drops, without a look at others' sockets; a closed one has none."""
    receivers = [opened(family) for _ in range(3)]
    others = [opened(family) for _ in range(20)]
    for receiver, packets in zip(receivers, (0, 3, 300)):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(receiver, packets)
    inodes = [os.fstat(each.fileno()).st_ino for each in receivers]
    known = udp_sockets(Host())
    expected = {inode: (known[inode].queued_bytes, known[inode].drops) for inode in inodes}
    assert expected[inodes[2]][1] > 0 < expected[inodes[1]][0]
    open_sockets(Host(), inodes)  # learns their ports
    parsed, parse = [], udp_diag._socket
    monkeypatch.setattr(udp_diag, "_socket", lambda data: parsed.append(data) or parse(data))
    actual = open_sockets(Host(), inodes)
    assert expected == {i: (each.queued_bytes, each.drops) for i, each in actual.items()}
    assert len(inodes) == len(parsed) < len(others)
    receivers[0].close()
    assert set(inodes[1:]) == set(open_sockets(Host(), inodes))
    assert {} == open_sockets(Host(), [1]) == open_sockets(Host(), [])


def test_without_udp_diag_open_sockets_are_read_in_proc(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same numbers."""

    def refuse(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no udp_diag")

    receiver = opened()
    send(receiver, 3)
    inode = os.fstat(receiver.fileno()).st_ino
    monkeypatch.setattr(udp_diag, "_answer", refuse)
    assert {inode: udp_sockets(Host())[inode]} == open_sockets(Host(), [inode])


@pytest.mark.parametrize("count", [2, udp_diag.MOST_PORTS, udp_diag.MOST_PORTS + 1])
def test_sockets_are_listed_by_port(count: int, opened: Opened) -> None:
    """The kernel picks them, the first port and the last; of too many ports all are listed."""
    first, other, last = sorted(opened().getsockname()[1] for _ in range(3))
    ports = [first, *range(1, count - 1), last]
    names = {each.port for each in udp_diag.SocketList(ports).read().values()}
    assert {first, last} <= names
    assert (other in names) is (count > udp_diag.MOST_PORTS)


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),  # noqa: S104
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_socket_is_found_by_its_addresses(family: int, address: str) -> None:
    """As a list of all has it, with what waits there; connected, too; once it is closed no more."""
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        own.bind((address, 0))
        known = listed(own)
        assert listed(own) == udp_diag.as_it_is_now(known)
        with socket.socket(family, socket.SOCK_DGRAM) as other:
            other.connect(("127.0.0.1" if family == socket.AF_INET else "::1", known.port))
            other.send(b"waits")
            connected = listed(other)
            assert connected == udp_diag.as_it_is_now(connected)
        now = udp_diag.as_it_is_now(known)
        assert now is not None
        assert now.queued_bytes > 0
    assert udp_diag.as_it_is_now(known) is None


def test_sockets_of_a_group_and_many_are_picked_by_their_port() -> None:
    """The kernel finds any of a group; each is read nevertheless."""
    with ExitStack() as keep:
        own = [
            keep.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(9)
        ]
        for each in own:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", own[0].getsockname()[1]))
        inodes = [os.fstat(each.fileno()).st_ino for each in own]
        for some in (inodes[:2], inodes):
            assert set(some) == {*open_sockets(Host(), some)}


def test_a_socket_is_listed_with_its_buffer_and_peer(opened: Opened) -> None:
    """As its own process sees it."""
    receiver, peer = opened(), opened(socket.AF_INET6)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 30_000)
    peer.connect(peer.getsockname())
    mine = listed(receiver)
    assert ("127.0.0.1", receiver.getsockname()[1], None) == (mine.address, mine.port, mine.peer)
    assert (4, 60_000, 0, os.getuid()) == (mine.family, mine.buffer_bytes, mine.drops, mine.uid)
    assert (6, "::1", peer.getsockname()[1]) == (
        listed(peer).family,
        listed(peer).peer,
        listed(peer).peer_port,
    )


def test_a_list_that_has_not_changed_is_the_same_object(opened: Opened) -> None:
    """As soon as nobody opens, closes or fills a socket between two readings."""
    sockets = udp_diag.SocketList()
    Host().wait_for("no change", lambda: sockets.read() is sockets.read(), 5)
    before, receiver = sockets.read(), opened()
    inode = os.fstat(receiver.fileno()).st_ino
    assert inode not in {each.inode for each in before.values()}
    assert inode in {each.inode for each in sockets.read().values()}


def test_the_end_of_an_answer_may_follow_its_sockets() -> None:
    """Kernels put it into the last datagram if there is room."""
    end = HEADER.pack(HEADER.size + 4, NLMSG_DONE, 0, 0, 0) + bytes(4)
    socket_message = HEADER.pack(HEADER.size + 72, 20, 0, 0, 0) + bytes([2]) + bytes(71)
    answers = (end, socket_message + end, socket_message)
    assert [True, True, False] == [udp_diag.ends(each) for each in answers]
    assert [0, 1, 1] == [len(udp_diag.parse_sockets(each, {})) for each in answers]


def test_a_kernel_without_udp_diag_is_an_error(golden: Golden) -> None:
    """And any other refusal has its own words."""
    for code in (errno.ENOENT, errno.EPERM):
        refusal = HEADER.pack(HEADER.size + 4, NLMSG_ERROR, 0, 0, 0) + struct.pack("=i", -code)
        with golden.raises(OSError):
            udp_diag.parse_sockets(refusal, {})


@pytest.mark.parametrize(
    "content",
    [bytes(64), struct.pack("=HBBIIIIIB", 0xEB9F, 1, 0, 24, 0, 0, 0, 1, 0)],
    ids=["no BTF", "without a type, as before Linux 5.17"],
)
def test_a_kernel_without_types_is_an_error(content: bytes, golden: Golden, tmp_path: Path) -> None:
    """They say where a socket's fields lie."""
    types = tmp_path / "sys/kernel/btf/vmlinux"
    types.parent.mkdir(parents=True)
    types.write_bytes(content)
    with golden.raises(OSError):
        SocketCounts(Host(tmp_path))


def test_a_kernel_that_describes_no_types_counts_no_sockets(tmp_path: Path) -> None:
    """As one without tracing; the release that it takes is said, too."""
    with pytest.raises(OSError, match=r"needs Linux 6\.15 .* CONFIG_DEBUG_INFO_BTF"):
        SocketCounts(Host(tmp_path))


@pytest.mark.parametrize(
    "log",
    [
        "unknown func bpf_get_netns_cookie#122",
        "program of this type cannot use helper bpf_get_netns_cookie#122",
        "R1 invalid mem access 'scalar'",
    ],
    ids=["Linux 6.1", "Linux 6.14", "another reason"],
)
def test_the_verifiers_text_does_not_reach_the_user(
    log: str, monkeypatch: pytest.MonkeyPatch, golden: Golden, tmp_path: Path
) -> None:
    """Before Linux 6.15 the release that has the helper is named."""

    def refuse(*_: object) -> int:
        rest = "processed 10 insns (limit 1000000) max_states_per_insn 0"
        raise bpf.NotLoaded(OSError(errno.EINVAL, os.strerror(errno.EINVAL)), f"{log}\n{rest}\n")

    types = tmp_path / "sys/kernel/btf/vmlinux"
    types.parent.mkdir(parents=True)
    types.touch()
    fields = SimpleNamespace(offset=lambda *_: 0, values=lambda _: {})
    monkeypatch.setattr(room, "Types", lambda _: fields)
    monkeypatch.setattr(bpf, "create_counts", lambda _: os.open(os.devnull, os.O_RDONLY))
    monkeypatch.setattr(bpf, "load", refuse)
    with golden.raises(NothingToWatch):
        Looks(Host(tmp_path), "here").look(None, None, exact=True)
