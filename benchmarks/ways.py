"""The loops of udpbench beside bare ones, iperf3 and sockperf: ratios of interleaved slices.

Both sides of a duel are pinned to the same CPUs of the same pair of namespaces and alive all the
time; one is stopped (SIGSTOP) while the other runs, in turns of a tenth of a second, because what a
virtual CPU gets done changes within a second by half. Both are judged by the same counter of the
kernel. Prints the table that README.md holds, and fails where a bar is missed. Needs root, gcc,
iperf3 and sockperf: ``ways.py [ROUNDS]``.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from udpbench.control.attempt import Attempt, Bench, crew_of
from udpbench.control.lab import Agents, real, started
from udpbench.control.lease import kept
from udpbench.control.remote import StartOrder
from udpbench.control.run import run_name
from udpbench.control.trial import (
    apply_settings,
    await_links,
    bind_workers,
    close_workers,
    prove_destinations,
    read_facts,
)
from udpbench.control.waiting import Clock, Interrupt, Waiter
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model import SECOND_NS, Sample, Snapshot

ROUNDS = 101
GENERATOR_ROUNDS = 11
SEED = 20261121
SETTLE_S = 0.03
"""Until a side that goes on runs again and its queues are as full as they will be."""
SLICE_S = 0.1
GENERATOR_S = 0.4
PROGRAM_S = 90
"""After so long a side ends by itself, whatever becomes of this program."""
LEASE_NS = 10 * SECOND_NS
START_NS = 50 * 10**6
DEADLINE_S = 5.0
NICE = -20
CONFIDENCE = 0.95
ADDRESS, PORT, RIVAL_PORT = "192.168.254.1", 4321, 4322


def bars_missing() -> list[str]:
    """Return the programs that are not here."""
    return [name for name in ("gcc", "iperf3", "sockperf") if shutil.which(name) is None]


# --- contestants ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """udpbench itself, by the keys of an experiment."""

    keys: dict[str, Any]


@dataclass(frozen=True)
class Rival:
    """Two programs, the receiver first; ``{bare}`` stands for the bare loops."""

    receiver: str
    sender: str


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
PREPARING = (
    read_facts,
    apply_settings,
    read_facts,
    await_links,
    bind_workers,
    prove_destinations,
)
"""The steps of a trial up to its workers, as a run takes them."""
PROCESSES = {
    "send": {"workers_as": "processes", "gso": "max"},
    "receive": {"workers_as": "processes", "gro": True},
}


class Nowhere:
    """Where samples would go; slices run no phase of a trial."""

    def stream(self, _samples: tuple[Sample, ...], _snapshots: tuple[Snapshot, ...]) -> None:
        """Take nothing."""

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return nothing."""
        return (), ()


# --- the lab -------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The lab with one set of settings in force, and what each contestant needs there."""

    agents: Agents
    bench: Bench
    bare: Path
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def pid(self, role: str) -> int:
        """Return the process whose network namespace is the role's."""
        remote = (self.agents.senders if role == "sender" else self.agents.receivers)[0]
        assert remote.channel.pid is not None
        return remote.channel.pid

    def attempt(self, name: str, own: Own) -> Attempt:
        """Return a trial, bound to workers, with its settings in force."""
        if name not in self.attempts:
            duration = f"{PROGRAM_S}s"
            data = {"question": "How fast?", "warmup": "0s", "duration": duration, **own.keys}
            (trial,) = load_experiment_data(data, "ways").points
            attempt = Attempt(self.bench, trial, 1, 1)
            for step in PREPARING:
                step(attempt)
            self.attempts[name] = attempt
        return self.attempts[name]

    def cpu(self, role: str) -> int:
        """Return the CPU of a role's worker; rivals are pinned to it, too."""
        attempt = self.attempt("plain", PLAIN)
        (cpu,) = [spec.cpu for spec in attempt.workers if spec.role == role]
        assert cpu is not None
        return cpu


def put_first() -> None:
    """Let this program, all it starts and the lab's NAPI threads go before whatever else runs here.

    All alike, so that they share a CPU among themselves as they would on a machine of their own. A
    session is a group of its own, with a priority of its own (sched(7), autogroup).
    """
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            os.setpriority(os.PRIO_PROCESS, one.pid, NICE)
            Path(f"/proc/{one.pid}/autogroup").write_text(f"{NICE}")
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text().startswith("napi/receive0-"):
                os.setpriority(os.PRIO_PROCESS, int(comm.parent.name), NICE)


@contextmanager
def stage(bare: Path) -> Iterator[Stage]:
    """Yield the built-in lab, and throw it away."""
    put_first()
    lab = load_lab("local")
    with (
        started(lab, run_name(), LEASE_NS, real()) as agents,
        kept([remote.channel for remote in agents.everyone], LEASE_NS),
    ):
        waiter = Waiter(Clock(), Interrupt())
        yield Stage(agents, Bench(lab, agents, waiter, lambda _: None, Nowhere()), bare)


def delivered(made: Stage) -> int:
    """Return the messages that sockets of the receiver's namespace have read."""
    text = Path(f"/proc/{made.pid('receiver')}/net/snmp").read_text()
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("InDatagrams")])


def offered(made: Stage) -> int:
    """Return the packets that the sender's device was given, taken or not."""
    text = Path(f"/proc/{made.pid('sender')}/net/dev").read_text()
    columns = re.findall(r"^ *send0:(.*)$", text, re.MULTILINE)[0].split()
    return int(columns[9]) + int(columns[11])


def rate(counter: Callable[[], int], settle_s: float, slice_s: float) -> float:
    """Return how fast a counter grows over one slice, per second."""
    time.sleep(settle_s)
    before, begun_ns = counter(), time.monotonic_ns()
    time.sleep(slice_s)
    after, ended_ns = counter(), time.monotonic_ns()
    return (after - before) * SECOND_NS / (ended_ns - begun_ns)


@contextmanager
def running(made: Stage, name: str, own: Own) -> Iterator[list[int]]:
    """Yield the processes of udpbench's workers, in their loops."""
    attempt = made.attempt(name, own)
    pids: list[int] = []
    try:
        for remote in crew_of(attempt).working:
            mine = [spec for spec in attempt.workers if spec.host == remote.name]
            pids += {one.pid for one in remote.prepare(mine)}
        put_first()
        at_ns = time.monotonic_ns() + START_NS
        order = StartOrder("measured", 7, PROGRAM_S * SECOND_NS, None)
        for remote in crew_of(attempt).working:
            remote.start(order, at_ns)
        yield pids
    finally:
        for pid in pids:
            send_signal(pid, signal.SIGCONT)
        close_workers(attempt)


@contextmanager
def playing(made: Stage, rival: Rival) -> Iterator[list[int]]:
    """Yield the processes of a rival's two programs, once packets flow."""
    receiver = spawn(made, "receiver", rival.receiver)
    try:
        await_listener(made, receiver, tcp=rival.receiver.startswith("iperf3"))
        sender = spawn(made, "sender", rival.sender)
        try:
            put_first()
            await_packets(made)
            yield [receiver.pid, sender.pid]
        finally:
            end(sender)
    finally:
        end(receiver)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


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

    def turn(self, made: Stage) -> None:
        """Run for one slice."""
        used_ns, read = self._used_ns(), delivered(made)
        self.signal(signal.SIGCONT)
        self.rates.append(rate(lambda: delivered(made), SETTLE_S, SLICE_S))
        self.signal(signal.SIGSTOP)
        self.user_ns += self._used_ns() - used_ns
        self.messages += delivered(made) - read

    def _used_ns(self) -> int:
        return sum(int(psutil.Process(pid).cpu_times().user * 1e9) for pid in self.pids)

    @property
    def user_ns_per_message(self) -> float:
        """Return what of a message's cost is not the kernel's."""
        return self.user_ns / self.messages


def duel(made: Stage, name: str, count: int) -> tuple[Side, Side]:
    """Return udpbench and its rival after so many rounds, in which each has a turn."""
    order = random.Random(f"{SEED}/{name}")  # noqa: S311 - an order, no secret
    own, rival = DUELS[name]
    with playing(made, rival) as theirs:
        other = Side(theirs)
        other.signal(signal.SIGSTOP)
        with running(made, name, own) as mine:
            await_packets(made)
            sides = (Side(mine), other)
            sides[0].signal(signal.SIGSTOP)
            for _ in range(count):
                for side in order.sample(sides, 2):
                    side.turn(made)
    return sides


def generated(made: Stage, count: int) -> dict[str, list[float]]:
    """Return what each generator offers, one slice in every round."""
    order = random.Random(SEED)  # noqa: S311 - an order, no secret
    found: dict[str, list[float]] = {name: [] for name in GENERATORS}
    for _ in range(count):
        for name in order.sample(list(GENERATORS), len(GENERATORS)):
            with running(made, name, GENERATORS[name]):
                await_packets(made)
                found[name].append(rate(lambda: offered(made), SETTLE_S, GENERATOR_S))
    return found


def spawn(made: Stage, role: str, program: str) -> subprocess.Popen[bytes]:
    """Start a program in a role's namespace, on the CPU of its worker."""
    inside = ["nsenter", f"--target={made.pid(role)}", "--net"]
    pinned = ["taskset", "--cpu-list", str(made.cpu(role))]
    words = program.format(bare=made.bare).split()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*inside, *pinned, *words]
    # A session of its own has a priority of its own; that of whoever runs this is left alone.
    return subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload,no-any-return]


def await_listener(made: Stage, receiver: subprocess.Popen[bytes], tcp: bool) -> None:
    """Wait until somebody listens on the port."""
    file = Path(f"/proc/{made.pid('receiver')}/net/{'tcp6' if tcp else 'udp'}")
    deadline = time.monotonic() + DEADLINE_S
    while f":{RIVAL_PORT:04X} " not in file.read_text():
        assert receiver.poll() is None, f"{receiver.args!r} ended"
        assert time.monotonic() < deadline, f"{receiver.args!r} does not listen"
        time.sleep(0.01)


def await_packets(made: Stage) -> None:
    """Wait until packets flow: rivals shake hands first."""
    deadline, before = time.monotonic() + DEADLINE_S, delivered(made)
    while delivered(made) < before + 100:
        assert time.monotonic() < deadline, "no packet arrives"
        time.sleep(0.01)


def end(program: subprocess.Popen[bytes]) -> None:
    """End a program that was started here."""
    program.kill()
    program.wait()


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


def rows(duels: dict[str, tuple[Side, Side]], made: dict[str, list[float]], rss: int) -> list[Row]:
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
        Row(
            "resident memory of a worker process",
            f"{rss / 2**20:.0f} MiB",
            "≤ 64 MiB",
            rss <= 2**26,
        ),
    ]


def resident_bytes(made: Stage) -> int:
    """Return the most that a worker process has in memory, buffers of all batches in use."""
    with running(made, "processes", Own(PROCESSES)) as pids:
        await_packets(made)
        rate(lambda: delivered(made), SETTLE_S, SLICE_S)
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
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    model = found.group(1) if found is not None else platform.machine()
    count = len(re.findall(r"^processor\s*:", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    return f"{count} CPUs, {model}, Linux {platform.release()}, {time.strftime('%Y-%m-%d')}"


def main() -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    missing = bars_missing()
    if missing:
        raise SystemExit(f"ways: needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        bare = compiled(Path(folder))
        with stage(bare) as made:
            duels = {name: duel(made, name, count) for name in DUELS}
            rss = resident_bytes(made)
        with stage(bare) as made:
            generators = generated(made, min(count, GENERATOR_ROUNDS))
    table = rows(duels, generators, rss)
    print(f"{machine()}; {count} rounds of {SLICE_S} s a side, seed {SEED}\n")
    print("| what | median ratio (95 % interval) | bar | met |\n|---|---|---|---|")
    for row in table:
        print(f"| {row.what} | {row.found} | {row.bar} | {'yes' if row.met else '**no**'} |")
    if not all(row.met for row in table):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
