"""Options of sending and receiving that contradict each other.

Rules over one validated point, before any host is contacted; ``requirements`` checks the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from udpbench import units
from udpbench.definition.binding.bind import flow_count
from udpbench.definition.endpoints import parse_to
from udpbench.definition.problems import KeyPath, Tree
from udpbench.errors import Problem
from udpbench.model import (
    FRAME_HEADERS_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    ID_FLOWS_MAX,
    IDS,
    MAX_PAYLOAD_BYTES,
    SECOND_NS,
    Attach,
    Receive,
    Trial,
)

FRAME_BYTES = 4096
"""The longest frame of AF_XDP: a chunk is at most a page (net/xdp/xdp_umem.c)."""
FRAME_ROOM_BYTES = 256
"""Bytes of a chunk that the kernel reserves before a received frame (XDP_PACKET_HEADROOM)."""
PINNED = "/sys/fs/bpf/"
"""Where programs are pinned, so that they outlive the process that loaded them."""
RING_WAITS = ("block", "spin", "nap", "auto")
FRAME_WAITS = ("epoll", "spin", "nap", "auto")
OF_SOCKETS = ("gro", "sockets", "timestamps", "buffer", "force_buffer", "room")
"""Keys of ``receive`` that describe UDP sockets."""
GRO_ROOM_BYTES = 65535
"""The largest merged datagram (net/core/gro.c: GRO_LEGACY_MAX_SIZE is 64 KiB)."""

DATAGRAMS_ONLY = {
    "traffic": ("fragment", "echo", "answers"),
    "send": ("call", "batch", "gso", "tail", "zerocopy"),
    "receive": (
        "call",
        "batch",
        "gro",
        "wait",
        "sockets",
        "steering",
        "read",
        "work",
        "fault",
        "log",
        "timestamps",
    ),
}
"""Keys that a TCP stream, the baseline, does not have."""
OF_PROGRAMS = ("command", "ready", "user", "folder")
BESIDE_PROGRAMS = (*OF_PROGRAMS, "cpus", "priority")
"""Keys of ``receive`` for a program; all others but ``attach`` describe udpbench's own loops."""


class Unfit(NamedTuple):
    """What a call excludes: where it is set, whether it is set, and why it is excluded."""

    block: Literal["send", "receive"]
    call: str
    key: KeyPath
    is_set: Callable[[Trial], bool]
    what: str
    limit: str = ""


BESIDE_CALLS = (
    Unfit(
        "send",
        "io_uring",
        ("send", "zerocopy"),
        lambda trial: trial.send.zerocopy,
        "io_uring reports its zero copy in another way, which udpbench does not read",
    ),
    Unfit(
        "receive",
        "io_uring",
        ("receive", "gro"),
        lambda trial: trial.receive.gro,
        "io_uring's buffers do not say where merged datagrams begin",
    ),
    Unfit(
        "receive",
        "io_uring",
        ("receive", "timestamps"),
        lambda trial: trial.receive.timestamps,
        "io_uring's buffers have no arrival times",
    ),
    Unfit(
        "receive",
        "io_uring",
        ("traffic", "echo"),
        lambda trial: trial.traffic.echo is not None,
        "io_uring's buffers do not have the sender's address",
    ),
    Unfit(
        "receive",
        "io_uring",
        ("receive", "wait"),
        lambda trial: trial.receive.wait.partition(" ")[0] not in RING_WAITS,
        "io_uring waits in its own system call",
        "block, spin, nap or auto with call: io_uring",
    ),
)
"""The options that the C loops refuse, too (native/sender/sender.c, native/receiver/receiver.c)."""


def takes_turns(receive: Receive) -> bool:
    """Return whether a worker can read several sockets: it does not block in a call on one."""
    return receive.wait.partition(" ")[0] in ("epoll", "spin", "nap", "auto")


def way_contradictions(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield every contradiction between the options of one point."""
    yield from _unfit(tree, trial)
    yield from _segments(tree, trial)
    yield from _frames(tree, trial)
    yield from _taken_frames(tree, trial)
    yield from _tail(tree, trial)
    yield from _merged(tree, trial)
    yield from _group(tree, trial)
    yield from _fault(tree, trial)
    if trial.traffic.protocol == "tcp":
        yield from _stream(tree, trial)
    if trial.receive.attach is None:
        yield from _program(tree, trial)
    else:
        yield from _attached(tree, trial.receive.attach, trial)
    if trial.receive.by_program:
        yield from _datagrams_without_headers(tree, trial)
    yield from _answers(tree, trial)
    if trial.traffic.payload is not None:
        yield from _payload(tree, trial)


def _unfit(tree: Tree, trial: Trial) -> Iterator[Problem]:
    calls = {"send": trial.send.call, "receive": trial.receive.call}
    others = {"send": "sendmmsg", "receive": "recvmmsg"}
    for unfit in BESIDE_CALLS:
        if calls[unfit.block] == unfit.call and unfit.is_set(trial):
            step = f"omit {unfit.key[-1]}, or use {unfit.block}.call: {others[unfit.block]}"
            yield tree.problem(unfit.key, unfit.what, unfit.limit, step)


def _segments(tree: Tree, trial: Trial) -> Iterator[Problem]:
    gso, size = trial.send.gso, trial.traffic.datagrams.longest_bytes
    where = ("send", "gso")
    if gso == "off":
        return
    if size == 0:
        yield tree.problem(where, "a message of empty datagrams has no segments", "", "set size")
    if isinstance(gso, int) and gso * size > MAX_PAYLOAD_BYTES:
        limit = f"at most {MAX_PAYLOAD_BYTES}B"
        yield tree.problem(where, "the message is too long", limit, "lower one of them")
    if trial.traffic.fragment:
        step = "set only one of them"
        yield tree.problem(where, "segments are never fragmented (udp(7))", "", step)


def _frames(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield what frames cannot have, because they bypass sockets and the IP layer."""
    traffic, send = trial.traffic, trial.send
    if send.call != "af_xdp":
        return
    beside = {
        ("send", "gso"): (
            send.gso != "off",
            "AF_XDP sends frames, which the kernel cannot segment",
        ),
        ("send", "zerocopy"): (send.zerocopy, "AF_XDP copies nothing if the driver supports that"),
        ("traffic", "fragment"): (
            traffic.fragment,
            "AF_XDP bypasses the IP layer, which fragments",
        ),
        ("traffic", "echo"): (
            traffic.echo is not None,
            "AF_XDP sends, so no socket receives echoes",
        ),
        ("traffic", "answers"): (
            traffic.answers is not None,
            "AF_XDP sends, so no socket receives answers",
        ),
        ("traffic", "payload"): (
            traffic.payload is not None,
            "AF_XDP sends frames that are built once, all of one size",
        ),
    }
    for where, (is_set, what) in beside.items():
        if is_set:
            yield tree.problem(where, what, "", f"omit {where[1]}, or use call: sendmmsg")
    most = FRAME_BYTES - FRAME_HEADERS_BYTES[traffic.family]
    if traffic.datagrams.longest_bytes > most:
        limit = f"{most}B over IPv{traffic.family} with call: af_xdp"
        what = "the frame is longer than a chunk of AF_XDP"
        yield tree.problem(("traffic", "size"), what, limit, "lower it, or use call: sendmmsg")


def _taken_frames(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield what frames cannot have if they are taken before the kernel's stack."""
    traffic, receive = trial.traffic, trial.receive
    if receive.call != "af_xdp":
        return
    step = "omit {}, or use call: recvmmsg"
    for key in OF_SOCKETS:
        if tree.value(("receive", key)) is not None:
            what = "AF_XDP takes frames before any UDP socket"
            yield tree.problem(("receive", key), what, "", step.format(key))
    beside = {
        ("traffic", "fragment"): (traffic.fragment, "fragments bypass AF_XDP and go to the stack"),
        ("traffic", "echo"): (traffic.echo is not None, "AF_XDP receives, so no socket answers"),
        ("receive", "fault"): (
            receive.fault is not None and receive.fault.does == "exit",
            "no other worker can take over the queue of a closed socket",
        ),
    }
    for where, (is_set, what) in beside.items():
        if is_set:
            yield tree.problem(where, what, "", step.format(where[1]))
    if receive.wait.partition(" ")[0] not in FRAME_WAITS:
        what = "AF_XDP has no call that waits for frames"
        yield tree.problem(("receive", "wait"), what, ", ".join(FRAME_WAITS), "set one of them")
    most = FRAME_BYTES - FRAME_ROOM_BYTES - FRAME_HEADERS_BYTES[traffic.family]
    if traffic.datagrams.longest_bytes > most:
        limit = f"{most}B over IPv{traffic.family} with receive.call: af_xdp"
        what = "the frame is longer than a chunk of AF_XDP"
        yield tree.problem(("traffic", "size"), what, limit, "lower it, or use call: recvmmsg")


def _tail(tree: Tree, trial: Trial) -> Iterator[Problem]:
    tail, size = trial.send.tail_bytes, trial.traffic.datagrams.longest_bytes
    where = ("send", "tail")
    if tail is None:
        return
    if trial.send.gso == "off":
        yield tree.problem(where, "only a GSO message has a tail", "", "set send.gso")
    if tail > size:
        yield tree.problem(where, "longer than the others", f"at most {size}B", "lower it")
    elif tail < HEADER_BYTES <= size:
        yield tree.problem(where, "no room for the header", f"at least {HEADER_BYTES}B", "raise it")


def _merged(tree: Tree, trial: Trial) -> Iterator[Problem]:
    room = trial.receive.room
    if trial.receive.gro and room != "auto" and room < GRO_ROOM_BYTES:
        limit = f"at least {GRO_ROOM_BYTES}B with gro"
        step = "omit room"
        yield tree.problem(("receive", "room"), "would truncate a merged datagram", limit, step)


def _group(tree: Tree, trial: Trial) -> Iterator[Problem]:
    if trial.receive.sockets == "incoming-cpu" and trial.receive.cpus == "any":
        what = "incoming-cpu needs pinned workers"
        yield tree.problem(("receive", "sockets"), what, "", "set receive.cpus")
    steers, path = trial.receive.sockets == "reuseport-ebpf", trial.receive.steering
    if steers and path is None:
        step = f"name your program: receive.steering: {PINNED}NAME"
        yield tree.problem(("receive", "sockets"), "no program chooses a socket", "", step)
    if path is None:
        return
    if not steers:
        step = "set receive.sockets: reuseport-ebpf"
        yield tree.problem(("receive", "steering"), "it would not be used", "", step)
    if not path.startswith(PINNED) or ".." in path.split("/"):
        step = f"pin it: bpftool prog load FILE.o {PINNED}NAME"
        yield tree.problem(("receive", "steering"), "not pinned", f"below {PINNED}", step)
    if len(parse_to(trial.traffic.flows.to).ports) > 1:
        what = "an array holds the sockets of one port"
        yield tree.problem(("receive", "steering"), what, "", "narrow traffic.flows.to")


def _fault(tree: Tree, trial: Trial) -> Iterator[Problem]:
    receive, fault = trial.receive, trial.receive.fault
    if fault is None:
        return
    if fault.worker > receive.workers:
        limit = f"at most receive.workers, {receive.workers}"
        yield tree.problem(("receive", "fault", "worker"), "no such worker", limit, "lower it")
    if fault.after_ns >= trial.duration_ns:
        limit = f"before duration, {units.format_duration(trial.duration_ns)}"
        yield tree.problem(
            ("receive", "fault", "after"), "the trial ends before the fault", limit, "lower it"
        )


def _stream(tree: Tree, trial: Trial) -> Iterator[Problem]:
    for block, keys in DATAGRAMS_ONLY.items():
        for key in sorted(tree.data.get(block, {})):
            if key in keys:
                what = "a TCP stream has no datagrams"
                yield tree.problem((block, key), what, "", "omit it, or use protocol: udp")
    if trial.traffic.datagrams.shortest_bytes == 0:
        yield tree.problem(("traffic", "size"), "a write of 0B sends nothing", "", "raise it")
    if trial.traffic.flows.spread == "each" and trial.send.workers > 1:
        what = "two streams cannot have the same addresses and ports"
        yield tree.problem(("traffic", "flows", "spread"), what, "", "set spread: split")
    streams = flow_count(trial)
    if trial.receive.workers > streams:
        limit = f"{streams}, a stream for each"
        yield tree.problem(("receive", "workers"), "more workers than streams", limit, "lower it")


def _program(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield keys that exclude a user's program, and a program's keys without a program."""
    written = tree.value(("receive",)) or {}
    program = trial.receive.command is not None
    for key in written:
        if program and key not in BESIDE_PROGRAMS:
            what = "it describes udpbench's own receiver, not a program"
            yield tree.problem(("receive", key), what, "", "omit it if command is set")
        if not program and key in OF_PROGRAMS:
            what = "it belongs to a program"
            yield tree.problem(("receive", key), what, "", "name one: receive.command")


def _attached(tree: Tree, attach: Attach, trial: Trial) -> Iterator[Problem]:
    """Yield keys that exclude a running process, and ``attach`` without a single target."""
    where = ("receive", "attach")
    for key in tree.value(("receive",)) or {}:
        if key != "attach":
            what = "a running process is left unchanged"
            yield tree.problem(("receive", key), what, "", "omit it if attach is set")
    named = [key for key, value in vars(attach).items() if value is not None]
    if len(named) != 1:
        what = f"it names {' and '.join(named) or 'no process'}"
        yield tree.problem(where, what, "one of port, pid and unit", "write for example {port: 53}")
    ports = parse_to(trial.traffic.flows.to).ports
    if attach.port is not None and attach.port not in ports:
        what, limit = "no packet is sent there", f"traffic.flows.to, {trial.traffic.flows.to}"
        step = f"write traffic.flows.to: receiver.addresses[1]:{attach.port}"
        yield tree.problem((*where, "port"), what, limit, step)


def _datagrams_without_headers(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield traffic that a user's program cannot be sent."""
    key = "command" if trial.receive.command is not None else "attach"
    if trial.traffic.protocol == "tcp":
        what = "a program's datagrams are counted, nothing else"
        yield tree.problem(("traffic", "protocol"), what, "", f"omit it if {key} is set")
    if trial.traffic.echo is not None:
        what = "a program returns no headers"
        yield tree.problem(("traffic", "echo"), what, "", f"omit it if receive.{key} is set")


def _answers(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield answers that nobody gives, and IDs that cannot identify an answer."""
    answers, where = trial.traffic.answers, ("traffic", "answers")
    if answers is not None and not trial.receive.by_program:
        what = "udpbench's own receiver answers nothing"
        step = "name a program: receive.command; headers return by traffic.echo"
        yield tree.problem(where, what, "", step)
    if answers is None or answers.id_at is None:
        return
    if trial.traffic.payload is None:
        what = "IDs are written only into your own datagrams"
        yield tree.problem(where, what, "", "write traffic.payload, or answers: count")
    elif answers.id_at > (last := trial.traffic.datagrams.shortest_bytes - ID_BYTES):
        limit = f"0 to {last}, within the shortest payload"
        yield tree.problem(where, "an id beyond the payload", limit, "lower id_at")
    if trial.traffic.flows.spread == "each" and trial.send.workers > 1:
        what = "workers that send the same flow cannot tell their answers apart"
        yield tree.problem(("traffic", "flows", "spread"), what, "", "set spread: split")
    flows, pps = flow_count(trial), trial.traffic.intended_pps or 0
    if flows > ID_FLOWS_MAX:
        yield tree.problem(where, f"ids for {flows} flows", f"{ID_FLOWS_MAX}", "narrow the flows")
    if pps * answers.timeout_ns > flows * IDS * SECOND_NS:
        most = flows * IDS * SECOND_NS // answers.timeout_ns
        what = f"{pps} packets per second use up the ids of {flows} flow{'s' if flows > 1 else ''}"
        limit = f"{IDS} for each flow in timeout: {most} packets per second"
        step = "use more flows (traffic.flows.from), lower rate, or shorten timeout"
        yield tree.problem(where, what, limit, step)


def _payload(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield options that datagrams without our header cannot have."""
    where = ("traffic", "payload")
    if not trial.receive.by_program:
        what = "only your own program can read it: it lacks udpbench's header"
        yield tree.problem(where, what, "", "name one: receive.command")
    if tree.value(("traffic", "size")) is not None:
        what = "the payload has its own size"
        yield tree.problem(("traffic", "size"), what, "", "omit it if payload is set")
    if trial.send.gso != "off":
        what = "a GSO message is cut by size, not by datagram"
        yield tree.problem(("send", "gso"), what, "", "omit it if payload is set")
    rate, each_bytes = trial.traffic.rate, trial.traffic.datagrams.each_bytes
    if rate is not None and rate.bits_per_s is not None and each_bytes is None:
        what = "datagrams of different sizes have no single rate in bits"
        yield tree.problem(("traffic", "rate"), what, "", "give a rate in pps")
