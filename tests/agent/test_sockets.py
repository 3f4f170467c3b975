"""The sockets of workers: options as the kernel has them, groups, and what is left in one."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import pytest
from golden import Golden
from waiting import wait_for_loopback

from udpbench.agent.host import socket_options
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.instructions import EXIT, SET, op
from udpbench.agent.host.capabilities import try_capabilities
from udpbench.agent.host.facts import gso_segments
from udpbench.agent.host.socket_owners import holders_in_words, port_inodes
from udpbench.agent.host.system import Host
from udpbench.agent.workers import filters, sockets
from udpbench.agent.workers.filters import ask_sockets
from udpbench.model.experiment import Answers, Receive, Send, Traffic
from udpbench.model.work import FlowSpec

SOCKET_FILTER, SO_ATTACH_BPF = 1, 50  # enum bpf_prog_type, asm-generic/socket.h
SYS_SETRESUID = {"x86_64": 117, "aarch64": 147}
LOOPBACK = {4: "127.0.0.1", 6: "::1"}


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Close every socket of a test."""
    with ExitStack() as stack:
        yield stack


def split(changed: dict[str, Any]) -> tuple[Traffic, dict[str, Any]]:
    """Return the traffic, and what was not of it."""
    of_traffic = {item.name for item in fields(Traffic)} & set(changed)
    traffic = Traffic(**{"ttl": 3, **{name: changed[name] for name in of_traffic}})
    return traffic, {name: value for name, value in changed.items() if name not in of_traffic}


def receiving(keep: ExitStack, port: int = 0, **changed: Any) -> socket.socket:
    """Return a receiving socket."""
    traffic, others = split(changed)
    receive = Receive(**{"buffer_bytes": None, **others})
    return keep.enter_context(sockets.receiving_socket(traffic, receive, port, "lo"))


def sending(
    keep: ExitStack, port: int, family: int = 4, interface: str = "lo", **changed: Any
) -> socket.socket:
    """Return a sending socket to a port of the loopback interface."""
    traffic, others = split({"family": family, **changed})
    flow = FlowSpec(0, LOOPBACK[family], 0, LOOPBACK[family], port)
    return keep.enter_context(sockets.sending_socket(traffic, Send(**others), flow, interface))


def group(keep: ExitStack, kind: str, members: int) -> list[socket.socket]:
    """Return the members of a reuseport group, in the order in which they were bound."""
    first = receiving(keep, sockets=kind)
    port = first.getsockname()[1]
    return [first, *(receiving(keep, port, sockets=kind) for _ in range(members - 1))]


def drained(receiver: socket.socket) -> sockets.Unread:
    """Return what was sent to a socket, and read it."""
    wait_for_loopback()
    return sockets.drain(receiver)


@pytest.mark.parametrize(
    ("family", "level", "options"),
    [
        (4, socket.IPPROTO_IP, {socket.IP_TTL: 3, socket_options.IP_RECVERR: 0}),
        (6, socket.IPPROTO_IPV6, {socket.IPV6_UNICAST_HOPS: 3, socket_options.IPV6_RECVERR: 0}),
    ],
)
def test_a_sender_has_what_was_asked_for(
    keep: ExitStack, family: int, level: int, options: dict[int, int]
) -> None:
    """Hops, errors and fragments by the names of either family."""
    port = receiving(keep, family=family).getsockname()[1]
    discover = {4: socket_options.IP_MTU_DISCOVER, 6: socket_options.IPV6_MTU_DISCOVER}[family]
    for fragment, expected in (
        (False, socket_options.PMTUDISC_PROBE),
        (True, socket_options.PMTUDISC_DONT),
    ):
        sock = sending(keep, port, family, fragment=fragment, zerocopy=True)
        required = {**options, discover: expected}
        assert required == {option: sock.getsockopt(level, option) for option in required}
        assert 1 == sock.getsockopt(socket.SOL_SOCKET, socket_options.SO_ZEROCOPY)


def test_a_receiver_has_what_was_asked_for(keep: ExitStack) -> None:
    """Merged datagrams, busy polling in whole microseconds, a group, one family alone."""
    plain = receiving(keep)
    assert (0, 0, 0) == (
        plain.getsockopt(socket_options.SOL_UDP, socket_options.UDP_GRO),
        plain.getsockopt(socket.SOL_SOCKET, socket_options.SO_BUSY_POLL),
        plain.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT),
    )
    keys = {"gro": True, "wait": "busy-poll 1500ns", "sockets": "reuseport"}
    full = receiving(keep, family=6, **keys)
    assert (1, 2, 1, 1) == (
        full.getsockopt(socket_options.SOL_UDP, socket_options.UDP_GRO),
        full.getsockopt(socket.SOL_SOCKET, socket_options.SO_BUSY_POLL),
        full.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT),
        full.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
    )


def test_a_sender_has_room_for_answers(keep: ExitStack) -> None:
    """Twice what is asked for, as the kernel counts it, or as much as it grants an ordinary user."""
    plain, answered = (sending(keep, 9, answers=answers) for answers in (None, Answers()))
    sizes = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for sock in (plain, answered)]
    assert sizes[0] < sizes[1] <= 2 * sockets.ANSWERS_BUFFER_BYTES


def test_what_waits_in_a_socket_is_forgotten(keep: ExitStack) -> None:
    """Datagrams, and an error that nobody has asked for."""
    server = receiving(keep)
    sender = sending(keep, server.getsockname()[1])
    for _ in range(3):
        server.sendto(b"late", sender.getsockname())
    wait_for_loopback()
    server.close()
    sender.send(b"refused")
    wait_for_loopback()
    sockets.discard(sender)
    assert 0 == sockets.drain(sender).messages


@pytest.mark.parametrize("family", [4, 6])
def test_a_receiver_that_echoes_learns_where_it_was_sent_to(keep: ExitStack, family: int) -> None:
    """Bound to every address, it could not tell from which one to answer."""
    option = {
        4: (socket.IPPROTO_IP, socket_options.IP_PKTINFO),
        6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO),
    }[family]
    receivers = [receiving(keep, family=family, echo=n, ttl=1) for n in (None, 10)]
    assert [0, 1] == [sock.getsockopt(*option) for sock in receivers]


def test_whatever_sends_is_bound_to_its_interface(keep: ExitStack) -> None:
    """Senders, and receivers that echo or acknowledge; one that only listens hears all."""
    port = receiving(keep).getsockname()[1]
    bound = [
        sending(keep, port),
        sending(keep, receiving(keep, family=6).getsockname()[1], 6),
        receiving(keep, echo=10, ttl=1),
        receiving(keep, family=6, echo=10, ttl=1),
        receiving(keep, protocol="tcp"),
        receiving(keep),
    ]
    option = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    assert [b"lo\0"] * 5 + [b""] == [sock.getsockopt(*option) for sock in bound]


def test_an_interface_that_is_gone_is_named(keep: ExitStack, golden: Golden) -> None:
    """No socket is left that would send by another one."""
    with golden.raises(OSError):
        sending(keep, 9, interface="gone0")


def test_a_kernel_that_lets_no_ordinary_user_bind_says_who_may(keep: ExitStack) -> None:
    """As Linux before 5.7 did, and still does the second time."""
    twice = receiving(keep)
    with ThreadPoolExecutor() as thread:
        refused = thread.submit(bound_twice_as_nobody, twice).exception()
    assert isinstance(refused, OSError)
    text = "cannot bind to lo: Operation not permitted; it needs root, or Linux 5.7"
    assert (errno.EPERM, text) == (refused.errno, refused.strerror)


def bound_twice_as_nobody(sock: socket.socket) -> None:
    """Bind a socket twice in a thread that has the rights of nobody (setresuid(2), of it alone)."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        assert 0 == libc.syscall(SYS_SETRESUID[os.uname().machine], 65534, 65534, 65534)
    socket_options.bind_to_device(sock, "lo")
    socket_options.bind_to_device(sock, "lo")


def test_errors_name_addresses_of_either_family(keep: ExitStack, golden: Golden) -> None:
    """An IPv6 address stands in brackets before its port."""
    port = receiving(keep, family=6).getsockname()[1]
    own = holders_in_words(Host(), port_inodes(Host(), (port,)))
    assert str(os.getpid()) in own
    with golden.raises(OSError, port=port, own_process=own):
        receiving(keep, port, family=6)
    flow = FlowSpec(0, "fd00::1", 5, "::1", 9)
    with golden.raises(OSError):
        sockets.sending_socket(Traffic(family=6), Send(), flow, "lo")


@pytest.mark.parametrize(
    ("cpus", "program"),
    [
        (
            [2, 5],
            [(0x15, 0, 1, 2), (6, 0, 0, 0), (0x15, 0, 1, 5), (6, 0, 0, 1), (6, 0, 0, 2**32 - 1)],
        ),
        ([2, 2], [(0x15, 0, 1, 2), (6, 0, 0, 0), (6, 0, 0, 2**32 - 1)]),
        ([None, None], [(0x94, 0, 0, 2), (0x16, 0, 0, 0)]),
    ],
)
def test_a_program_names_the_member_for_a_cpu(
    cpus: list[int], program: list[tuple[int, int, int, int]]
) -> None:
    """By a comparison each, the first of a CPU; unpinned members by a remainder."""
    load_cpu = (0x20, 0, 0, 0xFFFFF024)
    instructions = sockets.cpu_program(cpus)  # type: ignore[arg-type]
    assert sorted(program[:-1]) == sorted(instructions[1:-1])
    assert (load_cpu, program[-1]) == (instructions[0], instructions[-1])


@pytest.fixture
def on_cpu() -> Iterator[list[int]]:
    """Yield the CPUs there are, and put this thread back on all of them."""
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("kind", ["reuseport-cpu", "incoming-cpu"])
def test_a_member_gets_what_its_cpu_receives(keep: ExitStack, on_cpu: list[int], kind: str) -> None:
    """On the loopback interface the sender's CPU receives, so that it chooses the socket."""
    if kind == "incoming-cpu" and not try_capabilities(Host())["incoming_cpu"]:
        pytest.skip("this kernel chooses no UDP socket by SO_INCOMING_CPU; Linux 6.2 does")
    members = group(keep, kind, len(on_cpu))
    backwards = list(reversed(on_cpu))
    for member, cpu in zip(members, backwards):
        if kind == "incoming-cpu":
            sockets.prefer_cpu(member, cpu)
    if kind == "reuseport-cpu":
        sockets.steer_by_cpu(members[-1], list(backwards))
    for number, cpu in enumerate(backwards):
        os.sched_setaffinity(0, {cpu})
        for _ in range(8):
            sending(keep, members[0].getsockname()[1]).send(b"x")
        assert [8 * (number == n) for n in range(len(members))] == [
            drained(member).packets for member in members
        ]


def test_a_worker_without_a_cpu_prefers_none(keep: ExitStack, golden: Golden) -> None:
    """It says what is missing."""
    with golden.raises(OSError):
        sockets.prefer_cpu(receiving(keep), None)


def test_what_waits_is_counted_in_packets_and_messages(keep: ExitStack) -> None:
    """A merged message holds several; empty datagrams are packets, too."""
    merged, plain = receiving(keep, gro=True), receiving(keep)
    for receiver in (merged, plain):
        sender = sending(keep, receiver.getsockname()[1])
        sender.setsockopt(socket_options.SOL_UDP, socket_options.UDP_SEGMENT, 10)
        sender.send(b"x" * 35)
        sender.send(b"")
    assert (sockets.Unread(2, 5), sockets.Unread(5, 5)) == (
        drained(merged),
        drained(plain),
    )
    assert sockets.Unread() == drained(plain)


@pytest.mark.parametrize("family", [4, 6])
def test_what_waits_is_counted_whatever_else_is_reported_with_it(
    keep: ExitStack, family: int
) -> None:
    """A stamp and an address beside the size of merged packets leave room for it."""
    keys = {"gro": True, "timestamps": True, "echo": 10, "ttl": 1}
    merged = receiving(keep, family=family, **keys)
    sender = sending(keep, merged.getsockname()[1], family)
    sender.setsockopt(socket_options.SOL_UDP, socket_options.UDP_SEGMENT, 10)
    sender.send(b"x" * 35)
    assert sockets.Unread(1, 4) == drained(merged)


def test_a_closed_member_leaves_its_group(keep: ExitStack) -> None:
    """What it held is counted, and what comes afterwards goes to the others."""
    leaving, staying = group(keep, "reuseport", 2)
    port = leaving.getsockname()[1]
    for _ in range(40):
        sending(keep, port).send(b"x")
    wait_for_loopback()
    left = sockets.drain_and_close(leaving)
    assert 40 == left.packets + drained(staying).packets
    assert 0 < left.packets < 40
    for _ in range(40):
        sending(keep, port).send(b"x")
    assert 40 == drained(staying).packets


def test_streams_are_taken_from_a_listener(
    keep: ExitStack, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as asked for, of no stranger; one that does not come is an error, no endless wait."""
    listener = receiving(keep, protocol="tcp")
    port = listener.getsockname()[1]
    stranger = keep.enter_context(socket.create_connection(("127.0.0.1", port)))
    ends = [sending(keep, port, protocol="tcp") for _ in range(2)]
    own = [end.getsockname() for end in ends]
    streams = sockets.accept_streams(listener, 2, own)
    with pytest.raises(ConnectionResetError):
        stranger.recv(1)
    for stream in streams:
        keep.enter_context(stream)
    assert {end.getsockname() for end in ends} == {stream.getpeername() for stream in streams}
    assert [True, True] == [stream.getblocking() for stream in streams]
    with golden.raises(OSError):
        sockets.accept_streams(listener, 1, own)
    monkeypatch.setattr(sockets, "ACCEPT_S", 0)  # strangers may come without end
    with golden.raises(OSError):
        sockets.accept_streams(listener, 1, own)


@pytest.mark.parametrize("family", [4, 6])
def test_the_limit_of_segments_is_found_at_an_own_address(family: int) -> None:
    """64 or, since Linux 6.9, 128; an address that is not ours has none."""
    assert gso_segments(LOOPBACK[family]) in (64, 128)
    assert None is gso_segments({4: "192.0.2.1", 6: "2001:db8::1"}[family])


def test_a_listener_whose_option_is_refused_is_closed(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The kernel's reason comes with the address."""
    monkeypatch.setattr(sockets, "wait_ns", lambda _: -(10**9))
    with golden.raises(OSError):
        sockets.receiving_socket(Traffic(), Receive(wait="busy-poll 1s"), 0, "lo")


def with_filter(sock: socket.socket, kind: str) -> socket.socket:
    """Attach what takes all packets: in classic BPF, in eBPF, or to the group alone."""
    take_all = (0x06, 0, 0, 2**32 - 1)
    if kind == "classic":
        socket_options.attach_filter(sock, socket_options.SO_ATTACH_FILTER, [take_all] * 3000)
    elif kind == "ebpf":
        program = bpf.load(SOCKET_FILTER, op(SET, 0, value=1) + op(EXIT), "take_all")
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_BPF, program)
        os.close(program)
    elif kind == "group":
        sockets.steer_by_cpu(sock, [None])
    return sock


L2TP = 3
"""UDP_ENCAP_L2TPINUDP (include/uapi/linux/udp.h)."""
FILTERS = [
    ("none", False),
    ("group", False),
    ("classic", True),
    pytest.param(
        "ebpf", True, marks=pytest.mark.skipif(os.geteuid() != 0, reason="loading needs root")
    ),
]


@pytest.mark.parametrize(("kind", "expected"), FILTERS)
def test_a_filter_is_seen_by_its_owner_and_by_others(
    keep: ExitStack, kind: str, expected: bool
) -> None:
    """A process's own socket, or a copy of its descriptor, which is closed again."""
    sock = with_filter(receiving(keep, sockets="reuseport"), kind)
    others = receiving(keep)
    assert expected == socket_options.has_filter(sock)
    known = [socket_options.inode(each) for each in (sock, others)]
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names
    assert (expected, False) == ask_sockets(Host(), [os.getpid()], known)
    assert before == os.listdir("/proc/self/fd")  # noqa: PTH208


def test_a_filter_that_cannot_be_asked_for_is_not_known(
    keep: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed socket, a socket that is not held, no such call, or a change by a copy."""
    sock = receiving(keep)
    known, own = [socket_options.inode(sock)], [os.getpid()]
    with socket.socket() as closed:
        pass
    assert None is socket_options.has_filter(closed)
    assert filters.UNKNOWN == ask_sockets(Host(), own, [])
    assert filters.UNKNOWN == ask_sockets(Host(), own, [*known, 1])
    assert filters.UNKNOWN == ask_sockets(Host(), [], known)
    for call in ("SYS_PIDFD_OPEN", "SYS_PIDFD_GETFD"):
        with monkeypatch.context() as patch:
            patch.setattr(filters, call, 10**6)
            assert filters.UNKNOWN == ask_sockets(Host(), own, known)
    reused = with_filter(receiving(keep), "classic").fileno()
    assert filters.UNKNOWN == filters._answers(own[0], reused, known[0])
    classes = {"/proc/self/cgroup": "5:net_cls:/a", f"/proc/{own[0]}/cgroup": "5:net_cls:/b"}
    monkeypatch.setattr(filters, "read", lambda _, path: classes[path])
    assert filters.UNKNOWN == ask_sockets(Host(), own, known)


def test_a_tunnel_is_seen_among_others(keep: ExitStack) -> None:
    """An unprivileged program can make one of its socket, of which others' answers say nothing."""
    tunnel, others = receiving(keep), receiving(keep)
    tunnel.setsockopt(socket_options.SOL_UDP, socket_options.UDP_ENCAP, L2TP)
    known = [socket_options.inode(each) for each in (others, tunnel)]
    assert (False, True) == ask_sockets(Host(), [os.getpid()], known)
    with socket.socket() as closed:
        pass
    assert None is socket_options.is_tunnel(closed.fileno())


def test_a_cgroup_of_ones_own_name_is_no_class(
    keep: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the controllers' names count: a user may call a cgroup of its own as it likes."""
    known, own = [socket_options.inode(receiving(keep))], os.getpid()
    rows = {"/proc/self/cgroup": "0::/a", f"/proc/{own}/cgroup": "0::/b/net_\r5:net_cls:/c"}
    monkeypatch.setattr(filters, "read", lambda _, path: rows[path])
    assert (False, False) == ask_sockets(Host(), [own], known)


@pytest.mark.skipif(os.geteuid() != 0, reason="others' descriptors are copied apart by root alone")
def test_who_copies_a_descriptor_may_hang_for_ever(
    keep: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds nothing of the agent's, whose end others wait for, and is given up after a while."""
    sock = receiving(keep)
    read_end, write_end = os.pipe()
    monkeypatch.setattr(filters, "_ask", lambda *_: signal.pause())
    monkeypatch.setattr(filters, "COPY_S", 0.1)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    assert filters.UNKNOWN == ask_sockets(Host(), [os.getpid()], [socket_options.inode(sock)])
    os.close(write_end)
    assert b"" == os.read(read_end, 1)
    monkeypatch.undo()
    os.close(read_end)
    os.kill(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)


def test_a_refusal_to_read_any_option_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """EACCES of a security module, which refuses the socket's type as well."""

    class Refusing:
        @staticmethod
        def getsockopt(*_: Any) -> int:
            ctypes.set_errno(errno.EACCES)
            return -1

    monkeypatch.setattr(socket_options.ctypes, "CDLL", lambda *_, **__: Refusing)
    assert None is socket_options.has_filter(0)


class Marked(socket.socket):
    """A socket as a program of a cgroup makes it, which marks it as it is connected."""

    mark = 7
    permitted = True

    def getsockopt(self, *what: int) -> Any:
        """Return its mark."""
        return self.mark if socket.SO_MARK in what else super().getsockopt(*what)

    def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]
        """Have another mark, if this user may set it."""
        if option != socket.SO_MARK:
            super().setsockopt(level, option, value)
        elif self.permitted:
            self.mark = value
        else:
            raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_mark_that_a_program_gave_to_a_socket_is_taken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Policy rules go by it, and routes were proven without; who may not take it off sends nothing."""
    monkeypatch.setattr(sockets, "_new_socket", lambda _: Marked(socket.AF_INET, socket.SOCK_DGRAM))
    flow = FlowSpec(0, "127.0.0.1", 0, "127.0.0.1", 4321)
    with sockets.sending_socket(Traffic(), Send(), flow, "lo") as sock:
        assert 0 == sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
    monkeypatch.setattr(Marked, "permitted", False)
    with pytest.raises(OSError, match="a program of its cgroup gives it the mark 0x7; run"):
        sockets.sending_socket(Traffic(), Send(), flow, "lo")
