"""Options of sending and receiving that contradict each other.

Rules over one validated point, before any host is contacted; ``requirements`` checks the hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

from udpbench import units
from udpbench.definition.binding.bind import flow_count
from udpbench.definition.endpoints import PublishedPorts, parse_published, parse_to
from udpbench.definition.problems import Tree
from udpbench.errors import Problem
from udpbench.model.experiment import Answers, Attach, Trial
from udpbench.model.limits import (
    FRAME_HEADERS_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    ID_FLOWS_MAX,
    IDS,
    MAX_PAYLOAD_BYTES,
    SECOND_NS,
)
from udpbench.ways import Refusal, ways_of

PINNED = "/sys/fs/bpf/"
"""Where programs are pinned, so that they outlive the process that loaded them."""
GRO_ROOM_BYTES = 65535
"""The largest merged datagram (net/core/gro.c: GRO_LEGACY_MAX_SIZE is 64 KiB)."""

DATAGRAMS_ONLY = {
    "traffic": ("fragment", "echo", "answers"),
    "send": ("call", "batch", "gso", "tail", "zerocopy"),
    "receive": (
        *("call", "batch", "gro", "wait", "sockets", "steering", "read", "work", "fault", "log"),
        "timestamps",
    ),
}
"""Keys that a TCP stream, the baseline, does not have."""


def way_contradictions(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield every contradiction between the options of one point."""
    yield from _segments(tree, trial)
    yield from _long_frames(tree, trial)
    yield from _tail(tree, trial)
    yield from _merged(tree, trial)
    yield from _group(tree, trial)
    yield from _fault(tree, trial)
    if trial.traffic.protocol == "tcp":
        yield from _stream(tree, trial)
    if trial.traffic.flows.published is not None:
        yield from _published(tree, trial, parse_published(trial.traffic.flows.published))
    yield from _refused(tree, trial)
    if trial.receive.attach is not None:
        yield from _attached(tree, trial.receive.attach, trial)
    if trial.traffic.answers is not None and trial.traffic.answers.id_at is not None:
        yield from _ids(tree, trial, trial.traffic.answers, trial.traffic.answers.id_at)
    if trial.traffic.payload is not None:
        yield from _payload(tree, trial)


def _published(tree: Tree, trial: Trial, published: PublishedPorts) -> Iterator[Problem]:
    """Yield what does not go with packets to an address of a node, whose rules lead them on."""
    where, to = ("traffic", "flows", "published"), parse_to(trial.traffic.flows.to)
    if len(to.members) > 1 or len(published.ports) != len(to.ports):
        what, limit = "each port leads to a single other", f"as many as {trial.traffic.flows.to}"
        yield tree.problem(where, what, limit, "write a single address, and as many ports in both")
    if trial.traffic.protocol != "udp":
        yield tree.problem(where, "streams are not followed there", "protocol: udp", "omit it")
    if trial.receive.workers == 0:
        what = "nothing says where packets arrive"
        yield tree.problem(where, what, "receive.workers: 1 or more", "raise that, or omit it")
    if trial.losses:
        what = "packets that are lost on purpose go to a receiver's own address"
        yield tree.problem(where, what, "", "omit losses, or it")


def _refused(tree: Tree, trial: Trial) -> Iterator[Problem]:
    """Yield what the ways to send and to receive exclude."""
    for way in ways_of(trial):
        for refusal in way.refuses:
            for path in _excluded(tree, trial, refusal):
                step = refusal.step or f"omit {path[-1]}, or use {way.other}"
                yield tree.problem(path, refusal.what, refusal.limit, step)


def _excluded(tree: Tree, trial: Trial, refusal: Refusal) -> Iterator[tuple[str, ...]]:
    """Yield the keys of a trial to which a refusal applies."""
    block, _, key = refusal.key.partition(".")
    options, written = getattr(trial, block), tree.value((block,)) or {}
    if not key:
        yield from ((block, each) for each in written if each not in refusal.beside)
    elif refusal.written:
        yield from ((block, each) for each in written if each == key)
    elif refusal.unless is not None:
        yield from () if refusal.unless(trial) else ((block, key),)
    elif getattr(options, key) != getattr(type(options)(), key):
        yield block, key


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


def _long_frames(tree: Tree, trial: Trial) -> Iterator[Problem]:
    where, family = ("traffic", "size"), trial.traffic.family
    for way in ways_of(trial):
        if way.longest_frame_bytes is None:
            continue
        most = way.longest_frame_bytes - FRAME_HEADERS_BYTES[family]
        if trial.traffic.datagrams.longest_bytes > most:
            what, limit = "the frame is longer than a chunk of AF_XDP", f"{most}B over IPv{family}"
            step = f"lower it, or use {way.other}"
            yield tree.problem(where, what, f"{limit} with {way.key}", step)


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


def _attached(tree: Tree, attach: Attach, trial: Trial) -> Iterator[Problem]:
    """Yield what does not name a single running process to which the traffic goes."""
    where = ("receive", "attach")
    named = [key for key, value in vars(attach).items() if value is not None]
    if len(named) != 1:
        what = f"it names {' and '.join(named) or 'no process'}"
        yield tree.problem(where, what, "one of port, pid and unit", "write for example {port: 53}")
    ports = parse_to(trial.traffic.flows.to).ports
    if attach.port is not None and attach.port not in ports:
        what, limit = "no packet is sent there", f"traffic.flows.to, {trial.traffic.flows.to}"
        step = f"write traffic.flows.to: receiver.addresses[1]:{attach.port}"
        yield tree.problem((*where, "port"), what, limit, step)


def _ids(tree: Tree, trial: Trial, answers: Answers, id_at: int) -> Iterator[Problem]:
    """Yield IDs that cannot identify an answer."""
    where = ("traffic", "answers")
    if trial.traffic.payload is None:
        what = "IDs are written only into your own datagrams"
        yield tree.problem(where, what, "", "write traffic.payload, or answers: count")
    elif id_at > (last := trial.traffic.datagrams.shortest_bytes - ID_BYTES):
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
