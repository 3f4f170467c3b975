"""The loops of udpbench beside bare ones, iperf3 and sockperf: ratios of interleaved slices.

Both sides of a duel are pinned to the same CPUs of the same pair of namespaces and alive all the
time; one is stopped (SIGSTOP) while the other runs, in turns of a tenth of a second, because what a
virtual CPU gets done changes within a second by half. Sides that cannot be there together (a queue
has one AF_XDP socket, a device one way of segmenting) are started in turn, each once in every
round. All sides of a ratio are judged by the same counter of the kernel. Prints the table that
README.md holds, and fails where a bar is missed. Needs root, gcc, iperf3 and sockperf:
``ways.py [ROUNDS]``.
"""

from __future__ import annotations

import math
import platform
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
from duels import take
from duels.stage import (
    ADDRESS,
    OWN_PORT,
    PROGRAM_S,
    RIVAL_PORT,
    Half,
    Own,
    Rival,
    Stage,
    await_packets,
    beside,
    brought,
    delivered,
    drop_all,
    offered,
    playing,
    rate,
    running,
    send_signal,
    stage,
    taken,
)

ROUNDS = 101
GENERATOR_ROUNDS, CALL_ROUNDS = 11, 51
SEED = 20261121
SETTLE_S = 0.03
"""Until a side that goes on runs again and its queues are as full as they will be."""
SLICE_S = 0.1
GENERATOR_S = 0.4
CONFIDENCE = 0.95


def missing_programs() -> list[str]:
    """Return the programs that are not here."""
    return [name for name in ("gcc", "iperf3", "sockperf") if shutil.which(name) is None]


# --- contestants ---------------------------------------------------------------------------------


PLAIN, NAP = Own({}), Own({"receive": {"wait": "nap 100us"}})
MERGED = Own({"send": {"gso": 64}, "receive": {"gro": True}})
BARE = Rival(
    f"{{bare}} receive {RIVAL_PORT} 64 0 512 {PROGRAM_S}",
    f"{{bare}} send {ADDRESS} {RIVAL_PORT} 32 1 1024 {PROGRAM_S}",
)
BARE_MERGED = Rival(
    f"{{bare}} receive {RIVAL_PORT} 65535 1 16 {PROGRAM_S}",
    f"{{bare}} send {ADDRESS} {RIVAL_PORT} 32 64 16 {PROGRAM_S}",
)
IPERF3 = Rival(
    f"iperf3 -s -1 -p {RIVAL_PORT}",
    f"iperf3 -c {ADDRESS} -p {RIVAL_PORT} -u -b 0 -l 32 -t {PROGRAM_S}",
)
SOCKPERF = Rival(
    f"sockperf server -i {ADDRESS} -p {RIVAL_PORT}",
    f"sockperf throughput -i {ADDRESS} -p {RIVAL_PORT} -m 32 -t {PROGRAM_S}",
)
DUELS = {
    "plain": (PLAIN, BARE),
    "iperf3": (NAP, IPERF3),
    "sockperf": (NAP, SOCKPERF),
    "gso": (MERGED, BARE_MERGED),
}
"""What is delivered is ``Udp: InDatagrams``, one for each skb that was read."""

CUT = {"settings": {"sender": {"ethtool": {"features": {"tx-udp-segmentation": False}}}}}
GENERATORS = {
    "sendmmsg": Own({**CUT, "send": {"buffer": "64MiB"}}),
    "gso cut": Own({**CUT, "send": {"buffer": "64MiB", "gso": 64}}),
}
"""What is offered is what the sender's device was given: packets, where it cuts no segments.

A packet is charged to its sender until the other end of the pair has taken it up, so that with a
default SO_SNDBUF the receiver is measured: it slept in sock_alloc_send_pskb for most of the time.
"""
BEYOND = {"traffic": {"rate": "4Mpps"}}
"""Paced, and more than any can."""
FRAMES: dict[str, Any] = {"buffer": "64MiB", "call": "af_xdp"}
LOADS = {
    "sendmmsg paced": Own({**BEYOND, "send": {"buffer": "64MiB"}}),
    "af_xdp paced": Own({**BEYOND, "send": FRAMES}),
    "io_uring paced": Own({**BEYOND, "send": {"buffer": "64MiB", "call": "io_uring"}}),
}
"""What is compared is what reaches the other end of the pair: sent less ``tx_device``.

Its device drops all of it at once, or its CPU is compared: with the receive work there, frames and
messages are both dropped by the pair's full ring.
"""
FRAME_SENDERS = {
    "af_xdp": Own({"send": FRAMES}),
    "bare frames": Half("sender", f"{{bare}}_frames send send0 {{frame}} 1024 {PROGRAM_S}"),
}
"""Their peer drops likewise. What is compared is what is offered: together with its drops either
takes up all of the peer's CPU, so that what reaches it is the less the faster a sender is."""
TAKE = f"{shlex.quote(sys.executable)} {shlex.quote(take.__file__)} {ADDRESS} {OWN_PORT}"
NOBODY: dict[str, Any] = {"receive": {"workers": 0}, "path_check": "explained"}
TAKERS = {
    "frames": Own({"send": FRAMES, "receive": {"call": "af_xdp", "wait": "nap 100us"}}),
    "bare taker": Half(
        "receiver",
        f"{TAKE} {{bare}}_frames receive receive0 512 100 {PROGRAM_S}",
        Own({"send": FRAMES, **NOBODY}),
    ),
}
"""What is compared is what came into the sockets' rings.

Both have the same sender, the same program in the driver and the same naps.
"""
LARGE = {"traffic": {"size": "1472B"}}
READERS = {
    "recvmmsg": PLAIN,
    "io_uring": Own({"receive": {"call": "io_uring"}}),
    "verify": Own({"receive": {"read": "verify"}}),
    "recvmmsg large": Own(LARGE),
    "verify large": Own({**LARGE, "receive": {"read": "verify"}}),
}


class Group(NamedTuple):
    """Sides that are started in turn in the same lab, and what judges them."""

    sides: Mapping[str, Own | Half]
    counter: Callable[[Stage], int]
    rounds: int
    dropped: bool = False
    """The receiver's device drops all that comes."""


GROUPS = (
    Group(GENERATORS, offered, GENERATOR_ROUNDS),
    Group(LOADS, brought, GENERATOR_ROUNDS, dropped=True),
    Group(FRAME_SENDERS, offered, CALL_ROUNDS, dropped=True),
    Group(TAKERS, taken, CALL_ROUNDS),
    Group(READERS, delivered, CALL_ROUNDS),
)
PROCESSES = {
    "send": {"workers_as": "processes", "gso": "max"},
    "receive": {"workers_as": "processes", "gro": True},
}


@dataclass
class Side:
    """One side of a duel: its processes, its rates, and what it has used up in its turns."""

    pids: list[int]
    rates: list[float] = field(default_factory=list)
    user_ns: int = 0
    messages: int = 0

    def signal(self, number: signal.Signals) -> None:
        """Stop or go on."""
        for pid in self.pids:
            send_signal(pid, number)

    def turn(self, stage: Stage) -> None:
        """Run for one slice."""
        used_ns, read = self._used_ns(), delivered(stage)
        self.signal(signal.SIGCONT)
        self.rates.append(rate(lambda: delivered(stage), SETTLE_S, SLICE_S))
        self.signal(signal.SIGSTOP)
        self.user_ns += self._used_ns() - used_ns
        self.messages += delivered(stage) - read

    def _used_ns(self) -> int:
        return sum(int(psutil.Process(pid).cpu_times().user * 1e9) for pid in self.pids)

    @property
    def user_ns_per_message(self) -> float:
        """Return what of a message's cost is not the kernel's."""
        return self.user_ns / self.messages


def duel(stage: Stage, name: str, count: int) -> tuple[Side, Side]:
    """Return udpbench and its rival after so many rounds, in which each has a turn."""
    order = random.Random(f"{SEED}/{name}")  # noqa: S311 - an order, no secret
    own, rival = DUELS[name]
    with playing(stage, rival) as theirs:
        other = Side(theirs)
        other.signal(signal.SIGSTOP)
        with running(stage, name, own) as mine:
            await_packets(stage)
            sides = (Side(mine), other)
            sides[0].signal(signal.SIGSTOP)
            for _ in range(count):
                for side in order.sample(sides, 2):
                    side.turn(stage)
    return sides


def launched(stage: Stage, name: str, side: Own | Half) -> AbstractContextManager[object]:
    """Return a side that runs for as long as it is entered."""
    return beside(stage, name, side) if isinstance(side, Half) else running(stage, name, side)


def generated(stage: Stage, group: Group, count: int) -> dict[str, list[float]]:
    """Return how fast each side's counter grew, one slice in every round."""
    order = random.Random(SEED)  # noqa: S311 - an order, no secret
    rates: dict[str, list[float]] = {name: [] for name in group.sides}
    if group.dropped:
        stage.cpu("sender")  # a trial's settings make the pair
        drop_all(stage)
    for _ in range(min(count, group.rounds)):
        for name in order.sample(list(group.sides), len(group.sides)):
            with launched(stage, name, group.sides[name]):
                await_packets(stage, group.counter)
                rates[name].append(rate(lambda: group.counter(stage), SETTLE_S, GENERATOR_S))
    return rates


# --- numbers -------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median by order statistics; smallest to largest of few values."""
    ordered, n = sorted(values), len(values)
    rank = 1
    while rank < n // 2:
        outside = sum(math.comb(n, k) for k in range(rank + 1)) * 2 / 2**n
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    return ordered[rank - 1], ordered[n - rank]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: str
    bar: str
    met: bool


def ratio_row(
    what: str, own: list[float], other: list[float], bar: float | None, unit: int = 1
) -> Row:
    """Return the line of a ratio, which its interval's lower bound must reach."""
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    low, high = interval(ratios)
    sides = " against ".join(f"{unit * median(side) / 1000:.0f}" for side in (own, other))
    value = f"{median(ratios):.2f} ({low:.2f}–{high:.2f}); {sides} kpps"
    if bar is None:
        return Row(what, value, "shown", True)
    return Row(what, value, f"≥ {bar}", low >= bar)


def rows(rates: Mapping[str, list[float]], plain: Sequence[Side], rss: int) -> Iterator[Row]:
    """Yield the table."""
    first, *others = RATIOS
    yield ratio_row(first.what, rates[first.own], rates[first.other], first.bar)
    yield Row(
        "of that, user time of a packet at both ends: headers, windows, counts, clock",
        " against ".join(f"{side.user_ns_per_message:.0f}" for side in plain) + " ns",
        "shown",
        True,
    )
    for each in others:
        yield ratio_row(each.what, rates[each.own], rates[each.other], each.bar, each.unit)
    what = "resident memory of a worker process"
    yield Row(what, f"{rss / 2**20:.0f} MiB", "≤ 64 MiB", rss <= 2**26)


class Ratio(NamedTuple):
    """What is compared, and how much of the other it must reach; without a bar it is shown."""

    what: str
    own: str
    other: str
    bar: float | None
    unit: int = 1
    """Packets of what is counted."""


RATIOS = (
    Ratio(
        "`sendmmsg` → `recvmmsg`, 32 B, `read: header`, against the bare loops",
        "plain",
        "plain rival",
        0.95,
    ),
    Ratio("plain with `wait: nap 100us`, 32 B, against iperf3", "iperf3", "iperf3 rival", 1.1),
    Ratio(
        "plain with `wait: nap 100us`, 32 B, against sockperf", "sockperf", "sockperf rival", 1.1
    ),
    Ratio(
        "`gso: 64` × 32 B → `gro`, segmentation on, against the bare loops; packets",
        "gso",
        "gso rival",
        0.85,
        64,
    ),
    Ratio(
        "`gso: 64` with `tx-udp-segmentation` off, as a generator, against `sendmmsg`",
        "gso cut",
        "sendmmsg",
        3,
    ),
    Ratio(
        "`send.call: af_xdp`, 32 B, paced, as a generator, against `sendmmsg`; at the peer",
        "af_xdp paced",
        "sendmmsg paced",
        1.5,
    ),
    Ratio(
        "`send.call: af_xdp`, 32 B, against the bare loop",
        "af_xdp",
        "bare frames",
        0.95,
    ),
    Ratio(
        "`send.call: io_uring`, 32 B, paced, against `sendmmsg`; at the peer",
        "io_uring paced",
        "sendmmsg paced",
        None,
    ),
    Ratio(
        "`receive.call: af_xdp` with `wait: nap 100us`, 32 B, against the bare loop",
        "frames",
        "bare taker",
        0.95,
    ),
    Ratio("`receive.call: io_uring`, 32 B, against `recvmmsg`", "io_uring", "recvmmsg", None),
    Ratio("`read: verify`, 32 B, against `read: header`", "verify", "recvmmsg", 0.9),
    Ratio("`read: verify`, 1472 B, against `read: header`", "verify large", "recvmmsg large", 0.9),
)
"""Names of DUELS, whose other sides are their rivals, and of the sides of GROUPS."""


def resident_bytes(stage: Stage) -> int:
    """Return the most that a worker process has in memory, buffers of all batches in use."""
    with running(stage, "processes", Own(PROCESSES)) as pids:
        await_packets(stage)
        rate(lambda: delivered(stage), SETTLE_S, SLICE_S)
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) * 1024 for text in texts)


def compiled(folder: Path) -> Path:
    """Return the bare loops, built as the product's are; beside them those of frames."""
    for source in ("bare_frames.c", "bare.c"):
        program = folder / source.removesuffix(".c")
        strict = ["-O2", "-Wall", "-Wextra", "-Werror"]
        command = ["gcc", *strict, str(Path(__file__).with_name(source)), "-o", str(program)]
        subprocess.run(command, check=True)
    return folder / "bare"


def machine() -> str:
    """Return what the numbers belong to."""
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    model = match.group(1) if match is not None else platform.machine()
    count = len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    return f"{count} CPUs, {model}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"


def show(table: Iterable[Row]) -> None:
    """Print a table, and leave with 1 where a bar is missed."""
    missed = False
    print("| what | median ratio (95 % interval) | bar | met |\n|---|---|---|---|")
    for row in table:
        missed |= not row.met
        print(f"| {row.what} | {row.value} | {row.bar} | {'yes' if row.met else '**no**'} |")
    if missed:
        raise SystemExit(1)


def main() -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    missing = missing_programs()
    if missing:
        raise SystemExit(f"ways: needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        bare = compiled(Path(folder))
        with stage(bare) as setup:
            duels = {name: duel(setup, name, count) for name in DUELS}
            rss = resident_bytes(setup)
        rates = {name: own.rates for name, (own, _) in duels.items()}
        rates |= {f"{name} rival": other.rates for name, (_, other) in duels.items()}
        for group in GROUPS:
            with stage(bare) as setup:
                rates |= generated(setup, group, count)
    print(f"{machine()}; {count} rounds of {SLICE_S} s a side, seed {SEED}\n")
    show(rows(rates, duels["plain"], rss))


if __name__ == "__main__":
    main()
