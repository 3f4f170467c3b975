"""The loops of udpbench beside bare ones, iperf3 and sockperf: ratios of interleaved slices.

Both sides of a duel are pinned to the same CPUs of the same pair of namespaces and alive all the
time; one is stopped (SIGSTOP) while the other runs, in turns of a tenth of a second, because what a
virtual CPU gets done changes within a second by half. Both are judged by the same counter of the
kernel. Prints the table that README.md holds, and fails where a bar is missed. Needs root, gcc,
iperf3 and sockperf: ``ways.py [ROUNDS]``.
"""

from __future__ import annotations

import math
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from duels.stage import (
    ADDRESS,
    PROGRAM_S,
    RIVAL_PORT,
    Own,
    Rival,
    Stage,
    await_packets,
    brought,
    delivered,
    drop_all,
    offered,
    playing,
    rate,
    running,
    send_signal,
    stage,
)

ROUNDS = 101
GENERATOR_ROUNDS = 11
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
"""Paced, and more than either can."""
LOADS = {
    "sendmmsg": Own({**BEYOND, "send": {"buffer": "64MiB"}}),
    "af_xdp": Own({**BEYOND, "send": {"buffer": "64MiB", "call": "af_xdp"}}),
}
"""What is compared is what reaches the other end of the pair: sent less ``tx_device``.

Its device drops all of it at once, or its CPU is compared: with the receive work there, frames and
messages are both dropped by the pair's full ring.
"""
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


def generated(
    stage: Stage, sides: Mapping[str, Own], counter: Callable[[Stage], int], count: int
) -> dict[str, list[float]]:
    """Return how fast a counter of the sender's device grew, one slice in every round."""
    order = random.Random(SEED)  # noqa: S311 - an order, no secret
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(count):
        for name in order.sample(list(sides), len(sides)):
            with running(stage, name, sides[name]):
                await_packets(stage, offered)
                found[name].append(rate(lambda: counter(stage), SETTLE_S, GENERATOR_S))
    return found


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
    found: str
    bar: str
    met: bool


def ratio_row(what: str, own: list[float], other: list[float], bar: float, unit: int = 1) -> Row:
    """Return the line of a ratio, which its interval's lower bound must reach."""
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    low, high = interval(ratios)
    sides = " against ".join(f"{unit * median(side) / 1000:.0f}" for side in (own, other))
    found = f"{median(ratios):.2f} ({low:.2f}–{high:.2f}); {sides} kpps"
    return Row(what, found, f"≥ {bar}", low >= bar)


def rows(
    duels: dict[str, tuple[Side, Side]],
    made: dict[str, list[float]],
    loads: dict[str, list[float]],
    rss: int,
) -> list[Row]:
    """Return the table."""
    rates = {name: (own.rates, other.rates) for name, (own, other) in duels.items()}
    user_ns = " against ".join(f"{side.user_ns_per_message:.0f}" for side in duels["plain"])
    return [
        ratio_row(
            "`sendmmsg` → `recvmmsg`, 32 B, `read: header`, against the bare loops",
            *rates["plain"],
            0.95,
        ),
        Row(
            "of that, user time of a packet at both ends: headers, windows, counts, clock",
            f"{user_ns} ns",
            "shown",
            True,
        ),
        *(
            ratio_row(f"plain with `wait: nap 100us`, 32 B, against {name}", *rates[name], 1.1)
            for name in ("iperf3", "sockperf")
        ),
        ratio_row(
            "`gso: 64` × 32 B → `gro`, segmentation on, against the bare loops; packets",
            *rates["gso"],
            0.85,
            64,
        ),
        ratio_row(
            "`gso: 64` with `tx-udp-segmentation` off, as a generator, against `sendmmsg`",
            made["gso cut"],
            made["sendmmsg"],
            3,
        ),
        load_row(loads),
        Row(
            "resident memory of a worker process",
            f"{rss / 2**20:.0f} MiB",
            "≤ 64 MiB",
            rss <= 2**26,
        ),
    ]


def load_row(loads: dict[str, list[float]]) -> Row:
    """Return the line of frames against messages of one sending CPU."""
    what = "`send.call: af_xdp`, 32 B, paced, as a generator, against `sendmmsg`; at the peer"
    return ratio_row(what, loads["af_xdp"], loads["sendmmsg"], 1.5)


def resident_bytes(stage: Stage) -> int:
    """Return the most that a worker process has in memory, buffers of all batches in use."""
    with running(stage, "processes", Own(PROCESSES)) as pids:
        await_packets(stage)
        rate(lambda: delivered(stage), SETTLE_S, SLICE_S)
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(re.findall(r"VmRSS:\s+(\d+) kB", text)[0]) * 1024 for text in texts)


def compiled(folder: Path) -> Path:
    """Return the bare loops, built as the product's are."""
    source, program = Path(__file__).with_name("bare.c"), folder / "bare"
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def machine() -> str:
    """Return what the numbers belong to."""
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    model = match.group(1) if match is not None else platform.machine()
    count = len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    return f"{count} CPUs, {model}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"


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
        with stage(bare) as setup:
            generators = generated(setup, GENERATORS, offered, min(count, GENERATOR_ROUNDS))
        with stage(bare) as setup:
            setup.attempt("sendmmsg", LOADS["sendmmsg"])
            drop_all(setup)
            loads = generated(setup, LOADS, brought, min(count, GENERATOR_ROUNDS))
    table = rows(duels, generators, loads, rss)
    print(f"{machine()}; {count} rounds of {SLICE_S} s a side, seed {SEED}\n")
    print("| what | median ratio (95 % interval) | bar | met |\n|---|---|---|---|")
    for row in table:
        print(f"| {row.what} | {row.found} | {row.bar} | {'yes' if row.met else '**no**'} |")
    if not all(row.met for row in table):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
