"""A row for each way to send, receive, wait and read: what it needs, excludes, and lets be counted.

Whoever must know asks the row; nobody else compares the name of a way. Pure. The C loops have rows
of their own (``ways`` in native/sender/send.c and in receive.c, wait.c, read.c of native/receiver).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable, Literal, NamedTuple, Optional

from udpbench.model.experiment import Receive, Send, Trial
from udpbench.model.limits import Role
from udpbench.model.work import WorkerSpec
from udpbench.units import parse_duration

CHUNK_BYTES = 4096
"""The longest frame of AF_XDP: a chunk is at most a page (net/xdp/xdp_umem.c)."""
CHUNK_ROOM_BYTES = 256
"""Bytes of a chunk that the kernel reserves before a received frame (XDP_PACKET_HEADROOM)."""


class Need(NamedTuple):
    """What a kernel must have for a way, and may lack."""

    capability: str
    """As the agent tries it (agent/host/capabilities.py)."""
    what: str
    since: str


class Refusal(NamedTuple):
    """A key of the YAML that a way excludes, where it is not at its default, and why."""

    key: str
    """``traffic.echo``, or ``receive`` for all of its keys that are written."""
    what: str
    limit: str = ""
    step: str = ""
    """What helps; empty: omit the key, or use the other call."""
    written: bool = False
    """Wherever it is written, also with its default."""
    beside: tuple[str, ...] = ()
    """Keys that a block may have nevertheless."""
    unless: Optional[Callable[[Trial], bool]] = None
    """Whether the value is permitted; None: only the default is."""


@dataclass(frozen=True)
class Way:
    """A call that sends or receives, or a program in its place."""

    role: Role
    name: str
    """Value of ``call``, or the key that names a program."""
    takes: Literal["sockets", "frames", "program"]
    """What passes its packets: UDP sockets that workers open; frames of an interface's queues, one
    for each worker, which pass neither sockets nor the kernel's stack; or a user's program, whose
    datagrams the kernel alone counts."""
    constant: str = ""
    """Its name in the C loops; none of a program."""
    refuses: tuple[Refusal, ...] = ()
    need: Optional[Need] = None
    xdp_features: tuple[str, ...] = ()
    """What the driver's XDP must be capable of, as the kernel lists it."""
    longest_frame_bytes: Optional[int] = None
    changes: tuple[str, ...] = ()
    """What it changes of the receivers' environment (``Facts.environment``) while it runs."""
    adds: Mapping[str, str] = field(default_factory=dict)
    """Stage of the ledger that only it has → the field of ``WorkerStats.counts`` for it."""
    hides: tuple[str, ...] = ()
    """Stages at which nobody counts its packets, so that 0 proves nothing."""

    @property
    def key(self) -> str:
        """What chooses it: ``send.call: af_xdp``, or ``receive.command``."""
        block = "send" if self.role == "sender" else "receive"
        return f"{block}.call: {self.name}" if self.constant else f"{block}.{self.name}"

    @property
    def other(self) -> str:
        """What to write in its place, for what it excludes."""
        return "send.call: sendmmsg" if self.role == "sender" else "receive.call: recvmmsg"


_URING_SINCE = (
    "available since Linux 6.1; the sysctl kernel.io_uring_disabled or a container's seccomp "
    "profile may forbid it: see `sysctl kernel.io_uring_disabled` there"
)


def _single(key: str, call: str) -> Refusal:
    what, step = f"call {call} moves one message per call", f"remove it, or call {call}mmsg"
    return Refusal(key, what, step=step, written=True)


def _only_waits(what: str, *permitted: str, step: str = "") -> Refusal:
    return Refusal(
        *("receive.wait", what, ", ".join(permitted), step),
        unless=lambda trial: wait_of(trial.receive).name in permitted,
    )


WAYS_TO_SEND = (
    Way("sender", "sendmmsg", "sockets", "UB_SEND_SENDMMSG"),
    Way("sender", "send", "sockets", "UB_SEND_SEND", (_single("send.batch", "send"),)),
    Way(
        *("sender", "io_uring", "sockets", "UB_SEND_URING"),
        (
            Refusal(
                "send.zerocopy",
                "io_uring reports its zero copy in another way, which udpbench does not read",
            ),
        ),
        Need("io_uring_send", "io_uring for this user (io_uring_setup(2))", _URING_SINCE),
    ),
    Way(
        *("sender", "af_xdp", "frames", "UB_SEND_AF_XDP"),
        (
            Refusal("send.gso", "AF_XDP sends frames, which the kernel cannot segment"),
            Refusal("send.zerocopy", "AF_XDP copies nothing if the driver supports that"),
            Refusal("traffic.fragment", "AF_XDP bypasses the IP layer, which fragments"),
            Refusal("traffic.echo", "AF_XDP sends, so no socket receives echoes"),
            Refusal("traffic.answers", "AF_XDP sends, so no socket receives answers"),
            Refusal("traffic.payload", "AF_XDP sends frames that are built once, all of one size"),
        ),
        Need(
            "af_xdp",
            "AF_XDP socket for this user",
            "available since Linux 5.4, with CONFIG_XDP_SOCKETS; it needs root or CAP_NET_RAW",
        ),
        longest_frame_bytes=CHUNK_BYTES,
    ),
)

_OF_PROGRAMS = ("ready", "user", "folder")
_OF_SOCKETS = ("gro", "sockets", "timestamps", "buffer", "force_buffer", "room")
_NAME_IT = "name one: receive.command"
_OWN_LOOPS = (
    *(
        Refusal(f"receive.{key}", "it belongs to a program", step=_NAME_IT, written=True)
        for key in _OF_PROGRAMS
    ),
    Refusal(
        "traffic.answers",
        "udpbench's own receiver answers nothing",
        step="name a program: receive.command; headers return by traffic.echo",
    ),
    Refusal(
        "traffic.payload",
        "only your own program can read it: it lacks udpbench's header",
        step=_NAME_IT,
    ),
)
"""What none of udpbench's own receivers has."""


def _program(name: str, what: str, *keys: str) -> Way:
    """Return the row of a program; ``what`` is wrong with all keys of ``receive`` but its own."""
    step = f"omit it if {name} is set"
    return Way(
        *("receiver", name, "program"),
        refuses=(
            Refusal("receive", what, step=step, beside=(name, *keys)),
            Refusal(
                "traffic.protocol", "a program's datagrams are counted, nothing else", step=step
            ),
            Refusal(
                *("traffic.echo", "a program returns no headers"),
                step=f"omit it if receive.{name} is set",
            ),
        ),
        # Its log is its own, and what it makes of a datagram's length as well.
        hides=("app_truncated", "app_log"),
    )


WAYS_TO_RECEIVE = (
    Way("receiver", "recvmmsg", "sockets", "UB_RECEIVE_RECVMMSG", _OWN_LOOPS),
    Way(
        *("receiver", "recv", "sockets", "UB_RECEIVE_RECV"),
        (*_OWN_LOOPS, _single("receive.batch", "recv")),
    ),
    Way(
        *("receiver", "io_uring", "sockets", "UB_RECEIVE_URING"),
        (
            *_OWN_LOOPS,
            Refusal("receive.gro", "io_uring's buffers do not say where merged datagrams begin"),
            Refusal("receive.timestamps", "io_uring's buffers have no arrival times"),
            Refusal("traffic.echo", "io_uring's buffers do not have the sender's address"),
            _only_waits("io_uring waits in its own system call", "block", "spin", "nap", "auto"),
        ),
        Need(
            "io_uring_receive",
            "io_uring for this user, with provided buffers (io_uring_setup(2))",
            _URING_SINCE,
        ),
    ),
    Way(
        *("receiver", "af_xdp", "frames", "UB_RECEIVE_AF_XDP"),
        (
            *_OWN_LOOPS,
            *(
                Refusal(f"receive.{k}", "AF_XDP takes frames before any UDP socket", written=True)
                for k in _OF_SOCKETS
            ),
            Refusal("traffic.fragment", "fragments bypass AF_XDP and go to the stack"),
            Refusal("traffic.echo", "AF_XDP receives, so no socket answers"),
            Refusal(
                "receive.fault",
                "no other worker can take over the queue of a closed socket",
                unless=lambda trial: (
                    trial.receive.fault is None or trial.receive.fault.does != "exit"
                ),
            ),
            _only_waits(
                "AF_XDP has no call that waits for frames",
                *("epoll", "spin", "nap", "auto"),
                step="set one of them",
            ),
        ),
        Need(
            "af_xdp_receive",
            "AF_XDP socket and XDP program for this user",
            "available since Linux 5.9, with CONFIG_XDP_SOCKETS; it needs root or CAP_NET_RAW, "
            "CAP_NET_ADMIN and CAP_BPF",
        ),
        ("basic", "redirect"),
        CHUNK_BYTES - CHUNK_ROOM_BYTES,
        # By its program, which is attached only once the workers are prepared, after the facts, and
        # at both ends of a veth pair.
        ("xdp", "offloads"),
        {"xsk_ring": "xsk_ring_packets", "xsk_fill": "xsk_fill_packets"},
        # Frames are taken before anybody verifies them.
        ("udp_checksum",),
    ),
    _program(
        "command",
        "it describes udpbench's own receiver, not a program",
        *(*_OF_PROGRAMS, "cpus", "priority"),
    ),
    _program("attach", "a running process is left unchanged"),
)

WAYS = (*WAYS_TO_SEND, *WAYS_TO_RECEIVE)
_BY_NAME = {(way.role, way.name): way for way in WAYS}


def way_to_send(send: Send) -> Way:
    """Return the row of a sender."""
    return _BY_NAME["sender", send.call]


def way_to_receive(receive: Receive) -> Way:
    """Return the row of a receiver."""
    programs = (key for key in ("attach", "command") if getattr(receive, key) is not None)
    return _BY_NAME["receiver", next(programs, receive.call)]


def ways_of(trial: Trial) -> tuple[Way, Way]:
    """Return the rows of a trial's sender and receiver."""
    return way_to_send(trial.send), way_to_receive(trial.receive)


def way_of(spec: WorkerSpec) -> Way:
    """Return the row of a worker; that of the default call if it has no instructions."""
    if spec.role == "sender":
        return way_to_send(spec.send if spec.send is not None else Send())
    return way_to_receive(spec.receive if spec.receive is not None else Receive())


# --- waiting and reading, of udpbench's own receivers --------------------------------------------


@dataclass(frozen=True)
class Wait:
    """How a receiver waits for datagrams."""

    name: str
    """First word of ``receive.wait``."""
    constant: str
    """Its name in the C loops."""
    example: str = ""
    """The time that is written after the name; empty: none is."""
    takes_turns: bool = False
    """A worker can read several sockets: it does not block in a call on one."""
    busy_polls: bool = False
    """The socket has SO_BUSY_POLL: for that time its call polls the device before it sleeps."""
    naps: bool = False
    """It sleeps for that time where it has nothing to read."""
    nap_ns: int = 0
    """How long it sleeps of its own accord, where that pays."""
    sleepless: bool = False
    """A CPU is busy, or not, whether datagrams come or not: only calls tell if it was for some."""
    need: Optional[Need] = None


WAITS = (
    Wait("block", "UB_WAIT_BLOCK"),
    Wait("epoll", "UB_WAIT_EPOLL", takes_turns=True),
    Wait("spin", "UB_WAIT_SPIN", takes_turns=True, sleepless=True),
    Wait("nap", "UB_WAIT_NAP", "100us", takes_turns=True, naps=True, sleepless=True),
    Wait(
        *("busy-poll", "UB_WAIT_BLOCK", "50us"),
        busy_polls=True,
        sleepless=True,
        need=Need(
            "busy_poll",
            "busy polling (SO_BUSY_POLL)",
            "available since Linux 3.11, with CONFIG_NET_RX_BUSY_POLL; it needs CAP_NET_ADMIN",
        ),
    ),
    # Not sleepless: where naps bring few datagrams it sleeps in a call until the next one comes.
    # With a thread's default timer slack of 50 µs a nap takes 100 µs.
    Wait("auto", "UB_WAIT_AUTO", takes_turns=True, nap_ns=50_000),
)

HEADER_COUNTS = tuple(
    f"{kind}_packets" for kind in ("duplicate", "late", "ancient", "foreign", "corrupt")
)
"""Counts that only headers tell."""


@dataclass(frozen=True)
class Read:
    """What a receiver looks at of a datagram."""

    name: str
    """Value of ``receive.read``."""
    constant: str
    """Its name in the C loops."""
    unseen: tuple[str, ...]
    """Counts that it cannot know, which are not 0."""
    sees_header: bool = False
    copies: bool = True
    """The payload is there to be logged."""


READS = (
    # Foreign datagrams may have any size.
    Read("header", "UB_READ_HEADER", ("foreign_size_packets",), sees_header=True),
    Read("verify", "UB_READ_VERIFY", ("foreign_size_packets",), sees_header=True),
    Read("copy", "UB_READ_COPY", HEADER_COUNTS),
    Read("none", "UB_READ_NONE", (*HEADER_COUNTS, "truncated_packets"), copies=False),
)
UNSEEN_OF_STREAMS = (*HEADER_COUNTS, "foreign_size_packets", "standstills", "standstill_ns")
"""Counts that no reader of TCP knows."""

_WAITS = {wait.name: wait for wait in WAITS}
_READS = {read.name: read for read in READS}


def wait_of(receive: Receive) -> Wait:
    """Return the row of a receiver's way to wait."""
    return _WAITS[receive.wait.partition(" ")[0]]


def wait_ns(receive: Receive) -> int:
    """Return the nanoseconds of ``nap 100us``; 0 without a duration."""
    duration = receive.wait.partition(" ")[2]
    return parse_duration(duration) if duration else 0


def read_of(receive: Receive) -> Read:
    """Return the row of a receiver's way to read."""
    return _READS[receive.read]


def read_named(name: str) -> Read:
    """Return the row of a way to read."""
    return _READS[name]
