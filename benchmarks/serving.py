"""``udpbench serve`` beside iperf3's own server, with the same iperf3 client: ratios of pairs.

Both run in the built-in lab, in turn, pinned by the client's ``-A`` to the two CPUs of its workers.
``serving.py [ROUNDS]`` prints the rows of the table that README.md holds for each load, and fails
where a bar is missed: what arrives by at least RATE_BAR, or the CPU time of a packet by at most
CPU_BAR, once that of the process that receives, and once that of all processes of a server. Each
interval has to be beyond its bar. Needs root and iperf3. Priorities are left alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from duels.stage import ADDRESS, Stage, stage
from ways import Row, interval, missing_programs, show

ROUNDS, SECONDS = 9, 10
"""A test takes as long as those of iperf3 unless it is asked for another time."""
PORT = 5201
START_S = 30
RATE_BAR, CPU_BAR = 1.3, 0.77
LOADS = {
    "100 Mbit/s, 1,448 B": ("-b", "100M", "-l", "1448"),
    "unlimited, 1,448 B": ("-b", "0", "-l", "1448"),
    "unlimited, 100 B": ("-b", "0", "-l", "100"),
}
"""What is sent → the client's options."""
SERVERS = {
    "serve": (sys.executable, "-m", "udpbench", "serve", "--listen", ADDRESS, "--port", str(PORT)),
    "iperf3": ("iperf3", "-s", "-p", str(PORT)),
}
RECEIVES = {"serve": "udpbench.agent.clients", "iperf3": "iperf3"}
"""A word of the command whose process receives."""


@dataclass(frozen=True)
class Side:
    """What a server made of a client's test."""

    sent: int
    received: int
    seconds: float
    receiving_ns: float
    """CPU time of the receiving process."""
    whole_ns: float
    """That of all its processes."""

    @property
    def rate_pps(self) -> float:
        """Packets that arrived in a second."""
        return self.received / self.seconds

    def each_ns(self, whole: bool = False) -> float:
        """CPU time of a packet that arrived."""
        return (self.whole_ns if whole else self.receiving_ns) / max(self.received, 1)


def inside(of: Stage, role: str, *words: str) -> list[str]:
    """Return a command that runs in a role's namespaces."""
    return ["nsenter", f"--target={of.pid(role)}", "--net", "--mount", *words]


@contextmanager
def served(of: Stage, name: str) -> Iterator[list[psutil.Process]]:
    """Run a server; yield its processes once it listens."""
    server = subprocess.Popen(inside(of, "receiver", *SERVERS[name]), stdout=subprocess.DEVNULL)
    try:
        files = [Path(f"/proc/{of.pid('receiver')}/net/{kind}") for kind in ("tcp", "tcp6")]
        deadline = time.monotonic() + START_S
        while not any(f":{PORT:04X} 0" in file.read_text() for file in files):
            assert server.poll() is None, f"{name} ended"
            assert time.monotonic() < deadline, f"{name} does not listen"
            time.sleep(0.01)
        yield processes_of(server.pid)
    finally:
        server.terminate()
        server.wait()


def processes_of(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def words_of(process: psutil.Process) -> list[str]:
    """Return the command of a process; none of one that has just ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def used_ns(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of processes up to now, with that of their children that have ended."""
    taken_s = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it has just ended: its parent has its time
            taken_s += sum(process.cpu_times()[:4])
    return taken_s * 1e9


def tested(of: Stage, name: str, options: Sequence[str]) -> Side:
    """Run a client against a server."""
    with served(of, name) as processes:
        receiving = [each for each in processes if RECEIVES[name] in words_of(each)]
        assert 1 == len(receiving), processes
        before = used_ns(receiving), used_ns(processes)
        pinned = f"{of.cpu('sender')},{of.cpu('receiver')}"
        words = ("-c", ADDRESS, "-p", str(PORT), "-u", "-J", "-t", str(SECONDS), "-A", pinned)
        command = inside(of, "sender", "iperf3", *words, *options)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        printed = json.loads(done.stdout)
        if "error" in printed:
            raise SystemExit(f"serving: {name}: {printed['error']}")
        after = used_ns(receiving), used_ns(processes_of(processes[0].pid))
    total = printed["end"]["sum"]
    arrived = total["packets"] - total["lost_packets"]
    spent = (late - early for late, early in zip(after, before, strict=True))
    return Side(total["packets"], arrived, float(total["seconds"]), *spent)


def pairs(of: Stage, options: Sequence[str], rounds: int) -> list[tuple[Side, Side]]:
    """Return both sides of each round, which begin in turn."""
    taken = []
    for number in range(rounds):
        order = list(SERVERS)[:: 1 if number % 2 else -1]
        sides = {name: tested(of, name, options) for name in order}
        taken.append((sides["serve"], sides["iperf3"]))
    return taken


def rows(load: str, taken: Sequence[tuple[Side, Side]]) -> Iterator[Row]:
    """Yield the rows of a load; a bar is met by what arrives, or by the CPU time of a packet."""
    rates = [own.rate_pps / other.rate_pps for own, other in taken]
    costs = [own.each_ns() / other.each_ns() for own, other in taken]
    wholes = [own.each_ns(whole=True) / other.each_ns(whole=True) for own, other in taken]
    kpps, each, every, lost = [], [], [], []
    for side in zip(*taken, strict=True):
        kpps.append(f"{median(test.rate_pps for test in side) / 1000:.1f}")
        each.append(f"{median(test.each_ns() for test in side):.0f}")
        every.append(f"{median(test.each_ns(whole=True) for test in side):.0f}")
        lost.append(f"{sum(test.sent - test.received for test in side)}")
    arrived = f"{' against '.join(kpps)} kpps; lost {' against '.join(lost)}"
    yield Row(f"{load}: arrived", f"{shown(rates)}; {arrived}", "shown", True)
    bar = f"≤ {CPU_BAR}, or ≥ {RATE_BAR} arrived"
    for who, ratios, spent in (("who receives", costs, each), ("all", wholes, every)):
        met = interval(rates)[0] >= RATE_BAR or interval(ratios)[1] <= CPU_BAR
        what = f"{load}: CPU time of a packet, {who}"
        yield Row(what, f"{shown(ratios)}; {' against '.join(spent)} ns", bar, met)


def shown(ratios: Sequence[float]) -> str:
    """Return a median with its interval."""
    low, high = interval(ratios)
    return f"{median(ratios):.2f} ({low:.2f}–{high:.2f})"


def main(rounds: int) -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    if "iperf3" in missing_programs():
        raise SystemExit("serving: iperf3 is missing: apt-get install iperf3")
    if os.geteuid() != 0:
        raise SystemExit("serving: needs root")
    with stage(Path(), first=False) as of:
        table = [
            row for load, options in LOADS.items() for row in rows(load, pairs(of, options, rounds))
        ]
    show(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
