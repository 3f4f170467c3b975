"""What the native tests share: the loops as Python calls, with sockets on loopback only."""

from __future__ import annotations

import errno
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, wait_until

from udpbench._native import lib as extension

SECOND_NS = 10**9
TAG = 0x1234ABCD
WORDS = 1024
TIMEOUT = struct.pack("ll", 0, 4_000)
"""struct timeval: 4 ms."""
SO_ZEROCOPY = 60
UDP_GRO = 104
HAS_URING = extension.ub_uring_try(1) == 0
NATIVE = Path(__file__).parents[2] / "native"
ICMP = "net/ipv4/icmp.c, icmp_err_convert: pending"
SEND_RETRIED = {
    errno.EAGAIN: "net/core/sock.c, sock_alloc_send_pskb: the socket's buffer is full",
    errno.ENOBUFS: "net/ipv4/ip_output.c, ip_send_skb: the device's queue dropped it",
    errno.EINTR: "net/core/sock.c, sock_wait_for_wmem: a signal",
}
"""errno → where Linux returns it for a datagram."""
SEND_ERRORS = {
    errno.EPERM: "net/netfilter/core.c, nf_hook_slow: a rule drops it",
    errno.ECONNREFUSED: "net/ipv4/udp.c, __udp4_lib_err: an ICMP error is pending",
    errno.EMSGSIZE: "net/ipv4/ip_output.c, __ip_append_data: larger than the MTU",
    errno.EACCES: "net/ipv4/udp.c, udp_sendmsg: a broadcast; security/security.c",
    errno.EADDRNOTAVAIL: "net/ipv6/ip6_output.c, ip6_dst_lookup_tail: the source has gone",
    errno.EDESTADDRREQ: "net/ipv4/udp.c, udp_sendmsg: not connected",
    errno.EFAULT: "net/ipv4/ip_output.c, ip_generic_getfrag: no such memory",
    errno.EHOSTDOWN: ICMP,
    errno.EHOSTUNREACH: "net/ipv4/route.c, ip_error: no neighbour",
    errno.EINVAL: "net/ipv4/udp.c, udp_send_skb: a GSO message of too many segments",
    errno.EIO: "net/ipv4/udp.c, udp_send_skb: GSO without a checksum",
    errno.ENETDOWN: "net/ipv4/route.c, ip_route_output_key_hash_rcu: the device is down",
    errno.ENETUNREACH: "net/ipv4/fib_semantics.c: no route",
    errno.ENODEV: "net/ipv4/route.c, ip_route_output_key_hash_rcu: the device has gone",
    errno.ENOMEM: "net/ipv4/ip_output.c, __ip_append_data: no page",
    errno.ENONET: ICMP,
    errno.ENOPROTOOPT: ICMP,
    errno.ENOTCONN: "net/socket.c: not connected",
    errno.EOPNOTSUPP: "net/ipv4/udp.c, udp_sendmsg: MSG_OOB",
    errno.EPIPE: "net/core/sock.c, sock_alloc_send_pskb: the socket is shut down",
    errno.EPROTO: "net/ipv4/udp.c, __udp4_lib_err: ICMP_PARAMETERPROB is pending",
}
RECEIVE_ERRORS = {
    errno.EACCES: "net/ipv6/icmp.c, icmpv6_err_convert: pending; security/security.c",
    errno.EAGAIN: "net/ipv4/udp.c, __skb_recv_udp: nothing came in time",
    errno.ECONNREFUSED: "net/ipv4/udp.c, __udp4_lib_err: an ICMP error is pending",
    errno.EFAULT: "net/ipv4/udp.c, udp_recvmsg: no such memory",
    errno.EHOSTDOWN: ICMP,
    errno.EHOSTUNREACH: ICMP,
    errno.EINTR: "net/core/datagram.c, __skb_wait_for_more_packets: a signal",
    errno.EMSGSIZE: "net/ipv4/udp.c, __udp4_lib_err: the path's MTU is smaller",
    errno.ENETUNREACH: ICMP,
    errno.ENONET: ICMP,
    errno.ENOPROTOOPT: ICMP,
    errno.EOPNOTSUPP: ICMP,
    errno.EPROTO: "net/ipv4/udp.c, __udp4_lib_err: ICMP_PARAMETERPROB is pending",
}
"""The same for a call that receives."""
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def receiving_socket(
    buffer_bytes: int = 4 * 2**20, *, family: int = socket.AF_INET, gro: bool = False
) -> socket.socket:
    """Return a bound loopback socket whose calls come back after 20 ms."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    if gro:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sock.bind((LOOPBACK[family], 0))
    return sock


def sending_socket(to: tuple[Any, ...], *, zerocopy: bool = False) -> socket.socket:
    """Return a loopback socket connected to an address, whose calls come back after 20 ms."""
    family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
    if zerocopy:
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    sock.connect(to)
    return sock


def closed_port() -> tuple[str, int]:
    """Return a loopback address at which nobody listens: it was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()


def drops(sock: socket.socket) -> int:
    """Return the datagrams this socket dropped: SK_MEMINFO_DROPS of SO_MEMINFO (55)."""
    return struct.unpack("9I", sock.getsockopt(socket.SOL_SOCKET, 55, 36))[8]


@cache
def datagrams(ffi: Any, *entries: int | bytes) -> dict[str, Any]:
    """Return the fields of a config with datagrams of so many bytes, or of the user's; kept."""
    texts = [e if isinstance(e, int) else ffi.from_buffer("uint8_t[]", e) for e in entries]
    rows = [[ffi.NULL, e] if isinstance(e, int) else [e, len(e)] for e in texts]
    return {"datagrams": ffi.new("struct ub_datagram[]", rows), "datagram_count": len(rows)}


def change(ffi: Any, config: Any, changes: dict[str, Any]) -> None:
    """Set fields of a config; ``sizes`` are its datagrams, as ``datagrams`` takes them."""
    table = datagrams(ffi, *changes["sizes"]) if "sizes" in changes else {}
    for name, value in {**table, **changes}.items():
        if name != "sizes":
            setattr(config, name, value)


@dataclass
class Sending:
    """One ub_send, callable in this thread or beside it; fields may be changed before."""

    ffi: Any
    lib: Any
    sockets: list[socket.socket]
    flows: list[int] = field(default_factory=lambda: [0])
    sequences: list[int] = field(default_factory=list)
    duration_ns: int = 5 * SECOND_NS

    def __post_init__(self) -> None:
        count = len(self.sockets)
        self.control = self.ffi.new("struct ub_control *")
        self.stats = self.ffi.new("struct ub_send_stats *")
        descriptors = [sock.fileno() for sock in self.sockets]
        self.next = self.ffi.new("uint64_t[]", self.sequences or [0] * count)
        self.completions = self.ffi.new("uint32_t[]", count)
        self.keep = [
            self.ffi.new("int32_t[]", descriptors),
            self.ffi.new("uint16_t[]", self.flows),
            self.next,
            self.control,
        ]
        now = time.monotonic_ns()
        values = {"sockets": self.keep[0], "flows": self.keep[1], "sequences": self.next}
        values |= {"batch": 64, "flow_count": count, "tag": TAG, **datagrams(self.ffi, 32)}
        values |= {"bucket_ns": 10**7, "epoch_ns": now, "start_ns": now}
        values |= {"end_ns": now + self.duration_ns, "control": self.control}
        values |= {"zerocopy_next": self.completions}
        self.config = self.ffi.new("struct ub_send_config *", values)

    def run(self, **changes: Any) -> dict[str, int]:
        """Send, expecting no error; counts by name."""
        assert self.result(**changes) == 0
        return counts(self.ffi, self.stats)

    def result(self, **changes: Any) -> int:
        """Send and return what C returned."""
        change(self.ffi, self.config, changes)
        return self.lib.ub_send(self.config, self.stats)


@dataclass
class Receiving:
    """One host's receiving workers: one socket, one flow window, a thread per worker."""

    ffi: Any
    lib: Any
    sock: socket.socket
    flow_count: int = 1
    workers: int = 1
    words: int = WORDS

    def __post_init__(self) -> None:
        size = self.lib.ub_flow_state_bytes(self.flow_count, self.words)
        self.memory = self.ffi.new("uint8_t[]", size)
        self.flows = self.ffi.cast("struct ub_flow_state *", self.memory)
        self.control = self.ffi.new("struct ub_control *")
        values = {"batch": 64, "room_bytes": 2048, "tag": TAG, **datagrams(self.ffi, 32)}
        self.sockets = self.ffi.new("int32_t[]", [self.sock.fileno()])
        values |= {"sockets": self.sockets, "socket_count": 1, "flow_count": self.flow_count}
        values |= {"window_words": self.words, "flows": self.flows, "control": self.control}
        self.config = self.ffi.new("struct ub_receive_config *", values)
        self.stats = [self.ffi.new("struct ub_receive_stats *") for _ in range(self.workers)]
        self.results: list[int] = []
        self.cpu_ns: list[int] = []
        self.threads: list[threading.Thread] = []

    def start(self, **changes: Any) -> None:
        """Start the workers."""
        change(self.ffi, self.config, changes)
        for stats in self.stats:
            thread = threading.Thread(target=self._loop, args=(stats,))
            thread.start()
            self.threads.append(thread)

    def _loop(self, stats: Any) -> None:
        began_ns = time.thread_time_ns()
        self.results.append(self.lib.ub_receive(self.config, stats))
        self.cpu_ns.append(time.thread_time_ns() - began_ns)

    def read(self) -> int:
        """Return the datagrams that the workers have read so far."""
        return sum(stats.read_packets for stats in self.stats)

    def stop(self) -> dict[str, int]:
        """End the loops and return the sums of their counts."""
        self.control.stop = 1
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a receiving loop did not see stop"
        assert [0] * self.workers == self.results
        each = [counts(self.ffi, stats) for stats in self.stats]
        summed = {name: sum(stats[name] for stats in each) for name in each[0]}
        parts = ("received", "duplicate", "foreign", "foreign_size", "truncated", "corrupt")
        parts += ("ancient",)
        assert summed["read_packets"] == sum(summed[f"{part}_packets"] for part in parts)
        return summed

    def totals(self, flow: int = 0) -> tuple[int, int]:
        """Return the flow's distinct packets and its highest sequence number plus 1."""
        totals = self.ffi.new("struct ub_flow_totals *")
        self.lib.ub_flow_totals_read(self.flows, self.words, flow, totals)
        return totals.packets, totals.highest

    def receive(self, sent: list[bytes], **changes: Any) -> dict[str, int]:
        """Let the workers read these datagrams, no more and no less; the sums of their counts."""
        with sending_socket(self.sock.getsockname()) as sender:
            for each in sent:
                sender.send(each)
        self.start(**changes)
        wait_until(f"{len(sent)} datagrams read", lambda: self.read() >= len(sent))
        return self.stop()


def fake(
    scripted: tuple[Any, Any], script: list[int | tuple[int, int]], *, flows: int = 1, **more: Any
) -> Sending:
    """Return a sender over a kernel that plays ``script``: messages taken, or −errno, a call."""
    fake_ffi, fake_lib = scripted
    steps = [step if isinstance(step, tuple) else (step, 0) for step in script]
    repeat = more.pop("repeat", False)
    fake_lib.fake_script(fake_ffi.new("struct fake_step[]", steps), len(steps), repeat)
    sockets = [sending_socket(("127.0.0.1", 9)) for _ in range(flows)]
    return Sending(fake_ffi, fake_lib, sockets, list(range(flows)), **more)


def offers(scripted: tuple[Any, Any]) -> list[tuple[int, int]]:
    """Return (first sequence number, messages) of every call the fake kernel saw."""
    fake_ffi, fake_lib = scripted
    log = fake_ffi.new("struct fake_call[4096]")
    return [(log[i].first_sequence, log[i].offered) for i in range(fake_lib.fake_calls(log))]


@contextmanager
def slow_sockets(path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a reading and a writing socket whose buffer takes some 20 messages."""
    with ExitStack() as opened:
        reading, writing = (
            opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2)
        )
        reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMEOUT)
        # By its size, wherever net.unix.max_dgram_qlen stands.
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        reading.bind(str(path))
        writing.connect(str(path))
        yield reading, writing


def counts(ffi: Any, stats: Any) -> dict[str, int]:
    """Return a stats struct as a dict."""
    return {name: getattr(stats, name) for name, _ in ffi.typeof(stats).item.fields}


def datagram(sequence: int, flow: int = 0, tag: int = TAG, size_bytes: int = 32) -> bytes:
    """Return a datagram as the header's definition has it, written without any C."""
    header = tag.to_bytes(4, "big") + flow.to_bytes(2, "big") + sequence.to_bytes(6, "big")
    return (header + bytes(6)).ljust(size_bytes, b"\0")


def guards(file: str) -> set[str]:
    """Return all that a C file refuses in a config: the texts of its checks."""
    (source,) = NATIVE.rglob(file)
    text = source.read_text()
    return set(re.findall(r'return (?:[^;"]* : )?"(\w+: [^"]+)";', text))


def refusal(ffi: Any, check: Callable[[Any], Any], config: Any, changes: dict[str, Any]) -> str:
    """Return what a check says of a config with changes, and put the config back as it was."""
    before = ffi.new(ffi.typeof(config), config[0]) if changes else None
    change(ffi, config, changes)
    refused = check(config)
    if before is not None:
        config[0] = before[0]
    return ffi.string(refused).decode() if refused else ""
