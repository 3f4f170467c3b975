"""Switch things off, and see that the CPU time which they took is what the ledger of CPU time says.

``ablation.py [THING]... [--blocks N] [--out FOLDER] [--mutants N]``, as root. Both arms of each thing
run in turn at the same rate, without loss, beside a program on each CPU that soaks up what nothing
else wants (``soaker.c``). Printed for each: ``saved``, by which the time per packet differs that the
soaker did not get, whatever samples and the kernel's clocks say; ``attributed``, by which the stages
differ that the thing is at; ``elsewhere``, by which scheduling, wake-ups, interrupts and other programs
differ. The 95 % interval of attributed + elsewhere − saved is to lie within 10 % of saved, or 20 ns.

What interrupts took of the soaker itself is the soaker's to say: a timer, which is an interrupt, does
not see them, and a thing that takes CPU time leaves the soaker less of them. The interrupt that has a
task run in the soaker's place nobody sees, so the samples are a smaller ``share`` of what the soaker
lost; it is the same for both arms.

With ``--mutants N`` the records are judged again with two anchors swapped, N times, of which the first
decides most of a thing's time, and the second any of another stage: at least nine in ten are to fail. What the folder has already is read and not run again. Exits 1 if a bar is missed, 5
if nothing could be told. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from udpbench import cpu_stages
from udpbench.analysis.cpu_time import _rows, cpu_time_of, stacks
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import Readings, readings_of
from udpbench.control import phase
from udpbench.control.run import RunOptions, run
from udpbench.cpu_stages import IDLE, Anchor, anchor_of
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.errors import InputError
from udpbench.model.limits import Role
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, new_header
from udpbench.records.writer import RunWriter

WITHIN, LEAST_NS = 0.10, 20.0
"""Part of what was saved, or so many nanoseconds, by which the sum may be off."""
STUDENT = {4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 14: 2.145, 20: 2.086, 30: 2.042}
"""Degrees of freedom → Student's t at 97.5 %."""
FEWEST = 5
"""Blocks from which on something is told."""
BESIDE = ("wakeup", "schedule", "interrupts", "own", "others_softirq")
"""Endings of stages that change with how often a CPU sleeps, and programs in brackets."""
PORT, PLANTED = 4321, 4322
SET_UP = ("step", "facts again")
"""When the settings of a trial are applied."""
HEAVY = 0.005
"""Share of the time that anchors decide, from which on one is swapped in a mutant."""
Data = dict[str, Any]


class Plant(NamedTuple):
    """What is set up in the namespace of an end or a node before its packets come."""

    words: tuple[str, ...]
    """A command."""
    text: str = ""
    """Its input."""
    at: str = "receiver"


@dataclass(frozen=True)
class Thing:
    """What is switched: two arms of an experiment, and the stages at which it takes its time."""

    stages: tuple[str, ...]
    arms: dict[str, Data]
    """``without`` and ``with``."""
    keys: Data = field(default_factory=dict)
    end: Role = "receiver"
    within: float = WITHIN
    plant: Plant | None = None
    blocks: int = 20
    frequency: int = 4987
    """Samples of a CPU in a second."""
    lab: str = "local"


def drops(hook: str, count: int, family: str = "ip", at: str = "receiver") -> Plant:
    """Return a table in which the datagrams to one port pass so many rules."""
    rules = "\n".join(f"udp dport {10_000 + n} drop" for n in range(count))
    text = (
        f"table {family} planted {{ chain many {{ {rules}\n }}\n"
        f"chain c {{ type filter hook {hook} priority 0; udp dport {PLANTED} jump many; }}\n}}"
    )
    return Plant(("nft", "-f", "-"), text, at)


def iptables(count: int) -> Plant:
    """Return the same as a chain of the legacy iptables, whose rules are other functions."""
    rules = [f"-A many -p udp --dport {10_000 + n} -j DROP" for n in range(count)]
    jump = f"-A INPUT -p udp --dport {PLANTED} -j many"
    return Plant(
        ("iptables-legacy-restore",),
        "\n".join(("*filter", ":many -", jump, *rules, "COMMIT", "")),
    )


def filters(interface: str, way: str, count: int, at: Role = "receiver") -> Plant:
    """Return filters of traffic control: the first matches the datagrams to the other port."""
    ports = (PORT, *range(10_000, 10_000 + count))
    each = f"filter add dev {interface} {way} protocol ip prio 1"
    lines = (
        f"{each} handle 800::{number:x} u32 ht 800: match ip dport {port} 0xffff flowid :1"
        for number, port in enumerate(ports, 1)
    )
    text = "\n".join((f"qdisc add dev {interface} clsact", *lines, ""))
    return Plant(("tc", "-batch", "-"), text, at)


TRACKED = f"""\
table ip planted {{
 chain raw {{ type filter hook prerouting priority -300; udp dport {PORT} notrack; }}
 chain c {{ type filter hook input priority 0; ct state invalid drop; }}
}}"""
XDP_TURNS = "700"
XDP = Plant(
    (
        *(sys.executable, str(Path(__file__).with_name("planted_xdp.py"))),
        *("receive0", str(PLANTED), XDP_TURNS),
    )
)
BY_PORT = {
    "without": {"traffic.flows.to": f"receiver.addresses[1]:{PORT}"},
    "with": {"traffic.flows.to": f"receiver.addresses[1]:{PLANTED}"},
}
BURSTS = {
    "send.gso": 32,
    "settings": {"sender": {"ethtool": {"features": {"tx-udp-segmentation": False}}}},
}
"""Messages that are cut before the link: so many packets come at once, and wake their CPU once."""
READING = {"settings": {"receiver": {"link": {"receive": "inline"}}}, "send.pace": "sleep"}
"""The sender's CPU takes the packets to the socket, and nothing but their reader is on the receiver's."""
LONG = {**READING, "traffic": {"size": "1472B", "rate": "80kpps"}}
LONGEST = {
    **READING,
    "settings": {
        "sender": {"mtu": 9000},
        "receiver": {"mtu": 9000, "link": {"receive": "inline"}},
    },
    "traffic": {"size": "8972B", "rate": "50kpps"},
    "receive.buffer": "64MiB",
}
COPIED = {"without": {"receive.read": "none"}, "with": {"receive.read": "copy"}}
SENDING = {**READING, "traffic.rate": "20kpps"}
THINGS: dict[str, Thing] = {
    "work": Thing(
        ("rx_application",),
        {"without": {"receive.work": "0us"}, "with": {"receive.work": "10us"}},
        {**READING, "traffic.rate": "30kpps"},
        within=0.02,
    ),
    "rules-1000": Thing(("rx_netfilter",), BY_PORT, plant=drops("input", 1000)),
    "rules-100": Thing(("rx_netfilter",), BY_PORT, BURSTS, plant=drops("input", 100), blocks=30),
    "early-rules": Thing(
        *(("rx_netfilter",), BY_PORT, {"traffic.rate": "40kpps"}),
        plant=drops("prerouting", 200),
    ),
    "ingress-rules": Thing(
        *(("rx_netfilter",), BY_PORT, BURSTS),
        plant=drops('ingress device "receive0"', 200, "netdev"),
    ),
    "iptables": Thing(("rx_netfilter",), BY_PORT, BURSTS, plant=iptables(300)),
    "conntrack": Thing(
        *(("rx_conntrack", "rx_netfilter"), BY_PORT, {**BURSTS, "traffic.rate": "40kpps"}),
        plant=Plant(("nft", "-f", "-"), TRACKED),
    ),
    "xdp": Thing(("rx_xdp",), BY_PORT, BURSTS, plant=XDP),
    "tc": Thing(("rx_tc",), BY_PORT, BURSTS, plant=filters("receive0", "ingress", 1000)),
    # More samples wake more often who sends: what runs behind one is seen by the other timers alone.
    "sender-rules": Thing(
        *(("tx_netfilter",), BY_PORT, {"traffic.rate": "10kpps", "send.pace": "sleep"}, "sender"),
        plant=drops("output", 1000, at="sender"),
        frequency=1999,
    ),
    "forward-rules": Thing(
        *(("fwd_netfilter",), BY_PORT, SENDING, "sender"),
        plant=drops("forward", 1000, at="router1"),
        frequency=1999,
        lab="router",
    ),
    "sender-post": Thing(
        *(("tx_netfilter",), BY_PORT, SENDING, "sender"),
        plant=drops("postrouting", 500, at="sender"),
        frequency=1999,
    ),
    "sender-egress": Thing(
        *(("tx_netfilter",), BY_PORT, SENDING, "sender"),
        plant=drops('egress device "send0"', 500, "netdev", "sender"),
        frequency=1999,
    ),
    "sender-tc": Thing(
        *(("tx_tc",), BY_PORT, SENDING, "sender"),
        plant=filters("send0", "egress", 1000, "sender"),
        frequency=1999,
    ),
    "copy": Thing(("rx_copy", "rx_read", "rx_syscall"), COPIED, LONG, blocks=40),
    "copy-9k": Thing(("rx_copy", "rx_read", "rx_syscall"), COPIED, LONGEST, blocks=30),
    "verify": Thing(
        ("rx_application",),
        {"without": {"receive.read": "header"}, "with": {"receive.read": "verify"}},
        LONG,
        blocks=40,
    ),
    "timestamps": Thing(
        ("rx_read", "rx_application", "rx_syscall", "rx_copy"),
        {"without": {"receive.timestamps": False}, "with": {"receive.timestamps": True}},
        {**READING, "traffic.rate": "100kpps"},
        blocks=40,
    ),
}


def experiment_of(name: str, blocks: int | None, seconds: float) -> Any:
    """Return both arms as points that take turns."""
    thing = THINGS[name]
    data: Data = {
        "question": f"What does {name} cost?",
        "traffic": {"size": "64B", "rate": "20kpps"},
        "send": {"pace": "spin"},
        "receive": {"wait": "nap 1ms"},
        "variants": {arm: {**thing.arms[arm]} for arm in ("without", "with")},
        "compare": {
            "a": "without",
            "b": "with",
            "metric": "cpu_ns",
            "blocks": blocks or thing.blocks,
        },
        "cpu_time": True,
        "duration": f"{round(1000 * seconds)}ms",
        "warmup": "200ms",
    }
    for path, value in thing.keys.items():
        first, _, last = path.partition(".")
        data[first] = {**data.get(first, {}), **({last: value} if last else value)}
    return load_experiment_data(data, name)


def says_of(folder: Path) -> Path:
    """Return the file of what the command that planted a thing printed."""
    return folder.with_name(f"{folder.name}-says")


def planting(plant: Plant | None, notes: Path) -> Callable[[Progress], None]:
    """Return a listener that plants a thing once the interfaces are there, before packets come."""
    enter: list[str] = []

    def tell(progress: Progress) -> None:
        name, _, rest = progress.text.partition(": agent ")
        if plant is not None and progress.event == "host" and name == plant.at:
            enter[:] = ["nsenter", f"--target={rest.partition(' ')[0]}", "--net"]
        if plant is not None and (progress.event, progress.text) == SET_UP and enter:
            words = {"input": plant.text, "text": True, "check": True, "timeout": 60}
            with notes.open("w") as file:
                subprocess.run([*enter, *plant.words], stdout=file, **words)
            enter.clear()

    return tell


# --- what others took of a CPU ---------------------------------------------------------------------

SOAKER, SCHEDULE = "soaker", "schedule"
LONGEST_S = 1800
"""A soaker ends by itself."""
ROWS, COLUMNS = 1000, 4
"""That a soaker writes in a second."""
CPU_TREES = tuple(t for n in ("cpu", "") if (t := Path("/sys/fs/cgroup", n)).is_dir())
"""Where cgroups of the cpu controller are: version 1, version 2."""


class Lost(NamedTuple):
    """What a soaker did not get of its CPU, in ns."""

    tasks_ns: int
    """While other tasks had the CPU."""
    interrupts_ns: int
    """By interrupts of the soaker itself, and the hypervisor."""
    yields_ns: int
    """By its calls that let others have the CPU, if nobody wanted it: its own time."""


@dataclass(frozen=True)
class Soaked:
    """What the soaker of each CPU wrote down: CPU → moments, and what it had lost by then, in ns."""

    cpus: Mapping[int, tuple[Sequence[int], ...]]

    def lost(self, cpu: int, start_ns: int, end_ns: int) -> Lost:
        """Return what was lost between two moments; between rows as a straight line."""
        moments, *columns = self.cpus[cpu]
        ends = []
        for at_ns in (start_ns, end_ns):
            after = bisect_left(moments, at_ns)
            if not 0 < after < len(moments):
                raise ValueError(f"the soaker of CPU {cpu} did not run at {at_ns}")
            part = (at_ns - moments[after - 1]) / (moments[after] - moments[after - 1])
            ends.append([c[after - 1] + round(part * (c[after] - c[after - 1])) for c in columns])
        return Lost(*(later - sooner for sooner, later in zip(*ends, strict=True)))


def read_soaked(folder: Path) -> Soaked:
    """Return what soakers left in a folder; behind their last row a file is empty."""
    cpus = {}
    for path in folder.glob("cpu*"):
        numbers = array("Q")
        with path.open("rb") as file, suppress(EOFError):
            while not numbers or numbers[-COLUMNS]:
                numbers.fromfile(file, COLUMNS * ROWS)
        rows = range(len(numbers) // COLUMNS)
        end = COLUMNS * bisect_left(rows, True, key=lambda row: not numbers[COLUMNS * row])
        cpus[int(path.name.removeprefix("cpu"))] = tuple(
            numbers[column:end:COLUMNS] for column in range(COLUMNS)
        )
    return Soaked(cpus)


@contextmanager
def idle_group() -> Iterator[Path]:
    """Yield a cgroup whose tasks run when no task of others wants the CPU, however many these are.

    Of a session's own group (sched(7), autogroup) the scheduler sees no policy: who is woken beside
    it waits for the end of its slice, 3 ms, in which a veth's ring overflows.
    """
    for tree in CPU_TREES:
        group = tree / f"{SOAKER}-{os.getpid()}"
        group.mkdir()
        try:
            if (group / "cpu.idle").exists():
                (group / "cpu.idle").write_text("1")
                yield group
                return
        finally:
            group.rmdir()
    raise SystemExit("ablation: no cgroup has cpu.idle; it needs Linux 5.15 and the cpu controller")


@contextmanager
def soaking(folder: Path) -> Iterator[None]:
    """Soak up the idle time of each CPU."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as room, idle_group() as group:
        program = Path(room, SOAKER)
        source = Path(__file__).with_name("soaker.c")
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", program, source], check=True)
        soakers = [
            subprocess.Popen(
                [program, str(cpu), folder / f"cpu{cpu}", str(LONGEST_S)], stdout=subprocess.PIPE
            )
            for cpu in sorted(os.sched_getaffinity(0))
        ]
        try:
            for soaker in soakers:
                assert soaker.stdout is not None
                if not soaker.stdout.readline():
                    raise SystemExit(f"ablation: a soaker ended with {soaker.wait()}")
                (group / "cgroup.procs").write_text(str(soaker.pid))
            yield
        finally:
            for soaker in soakers:
                soaker.kill()
                soaker.communicate()


@dataclass(frozen=True)
class Run:
    """The trials of a thing, and what their CPUs lost to others meanwhile."""

    records: tuple[TrialRecord, ...]
    soaked: Soaked


def measured(name: str, folder: Path, blocks: int | None, seconds: float) -> Run:
    """Return the trials of a thing, and run them if the folder has none."""
    soaked = folder.with_name(f"{name}-{SOAKER}")
    if not (folder / RUN_FILE).exists():
        phase.CPU_FREQUENCY = THINGS[name].frequency
        experiment, lab = experiment_of(name, blocks, seconds), load_lab(THINGS[name].lab)
        header = new_header([experiment], lab, ("ablation.py",))
        writer = RunWriter.create(folder, header)
        options = RunOptions(seed=header.seed)
        with soaking(soaked):
            outcome = run(
                [experiment],
                lab,
                writer,
                planting(THINGS[name].plant, says_of(folder)),
                options,
            )
        if outcome.error is not None:
            raise outcome.error
        if outcome.interrupted:
            raise KeyboardInterrupt
    return Run(read_run(folder).records, read_soaked(soaked))


@dataclass(frozen=True)
class Arm:
    """One trial: what a packet of the end costs, by the soaker and by stage, in ns."""

    taken_ns: float
    stages: Mapping[str, float]
    share: float
    """The time at stages as a part of ``taken_ns``."""


def arm_of(record: TrialRecord, soaked: Soaked, end: Role) -> Arm | str:
    """Return what a trial says; or why it says nothing."""
    readings = readings_of(record)
    if record.status != "done" or readings is None:
        return record.status
    cpu_time = cpu_time_of(readings, make_ledger(readings))
    if cpu_time is None:
        return next((s.why for s in readings.phase.cpu_samples.values()), "not sampled")
    ends = {(e.machine, e.cpu, e.stage): e.end for e in cpu_time.entries}
    cpus = {(machine, cpu) for (machine, cpu, _), its in ends.items() if its == end}
    mine = [each for each in cpu_time.balances if (each.machine, each.cpu) in cpus]
    struck = [f"CPU {balance.cpu}: {balance.struck}" for balance in mine if balance.struck]
    if struck:
        return ", ".join(struck)
    counts = [(stats.role, stats.counts) for stats in readings.phase.stats]
    sent, received = (
        sum(each.get(f"{word}_packets", 0) for _, each in counts) for word in ("sent", "received")
    )
    packets, other = (sent, "receiver") if end == "sender" else (received, "sender")
    if not packets or received < 0.999 * sent:
        return f"{received} of {sent} packets received"
    stages: Counter[str] = Counter()
    taken_ns = 0
    for each in mine:
        phase = readings.phase
        try:
            lost = soaked.lost(
                each.cpu, *(edge[each.machine].clock_ns for edge in (phase.before, phase.after))
            )
        except ValueError as error:  # others wanted the whole CPU
            return str(error)
        tasks, interrupts = sampled_beside(readings, each.machine, each.cpu, each.wall_ns)
        # Entries of a CPU that both ends share are of the end of their stage; a node's are of it, too.
        for stage, ns in tasks.items():
            stages[stage] += ns * (ends.get((each.machine, each.cpu, stage), end) != other)
        stages += interrupts
        stages["interrupts"] += lost.interrupts_ns - interrupts.total()
        stages[SCHEDULE] -= lost.yields_ns
        taken_ns += lost.tasks_ns + lost.interrupts_ns
    per_packet = {stage: ns / packets for stage, ns in stages.items()}
    return Arm(taken_ns / packets, per_packet, stages.total() / max(taken_ns, 1))


def sampled_beside(
    readings: Readings, machine: str, cpu: int, wall_ns: int
) -> tuple[Counter[str], Counter[str]]:
    """Return stage → ns of tasks other than the soaker, and of what interrupted it, by samples.

    The switch to another task and back is seen in the soaker, and is time that it did not get. Each
    sample stands for the same part of all time: the hypervisor takes some of both, and lets none be
    taken meanwhile.
    """
    tasks: Counter[str] = Counter()
    interrupts: Counter[str] = Counter()
    samples = readings.phase.cpu_samples[machine]
    rows = [each for each in _rows(readings, machine, samples) if each[0].cpu == cpu]
    sampled_ns = sum(row.time_ns for row, _, _ in rows)
    for row, stage, kind in rows:
        time_ns = round(row.time_ns * wall_ns / sampled_ns)
        if samples.programs.get(str(row.pid)) != SOAKER:
            tasks[stage] += time_ns * (stage != IDLE)
        elif kind == SCHEDULE:
            tasks[SCHEDULE] += time_ns
        elif stage != f"[{SOAKER}]":
            interrupts[stage] += time_ns
    return tasks, interrupts


@dataclass(frozen=True)
class Outcome:
    """What switching a thing changed, per packet in ns: means over blocks."""

    saved: float
    attributed: float
    elsewhere: float
    error: float
    half: float
    """Half of the 95 % interval of the error."""
    within: float
    """Part of what was saved by which the sum may be off."""
    share: float
    """The time at stages as a part of all that the soaker lost."""
    blocks: int

    @property
    def allowed(self) -> float:
        """How far the sum may be off."""
        return max(self.within * abs(self.saved), LEAST_NS)

    @property
    def holds(self) -> bool:
        """Whether the whole interval is within what is allowed."""
        return abs(self.error) + self.half <= self.allowed


def outcome_of(name: str, measured: Run) -> Outcome | None:
    """Return what the blocks of a thing say; None of fewer than FEWEST."""
    thing = THINGS[name]
    arms: dict[tuple[str, int], Arm] = {}
    for record in measured.records:
        arm = arm_of(record, measured.soaked, thing.end)
        if isinstance(arm, Arm):
            arms[record.trial.point, record.trial.repetition] = arm
    rows = []
    for point, repetition in arms:
        before, after = arms[point, repetition], arms.get(("with", repetition))
        if point == "without" and after is not None:
            rows.append((before, after))
    if len(rows) < FEWEST:
        return None
    saved = [after.taken_ns - before.taken_ns for before, after in rows]
    attributed = [_difference(*row, lambda stage: stage in thing.stages) for row in rows]
    elsewhere = [_difference(*row, lambda stage: is_beside(stage, thing)) for row in rows]
    errors = [a + e - s for a, e, s in zip(attributed, elsewhere, saved, strict=True)]
    freedom = max(each for each in (0, *STUDENT) if each <= len(rows) - 1) or 4
    half = STUDENT[freedom] * stdev(errors) / sqrt(len(errors))
    means = (mean(each) for each in (saved, attributed, elsewhere, errors))
    share = mean(arm.share for row in rows for arm in row)
    return Outcome(*means, half, thing.within, share, len(rows))


def holds(name: str, measured: Run) -> bool:
    """Return whether what a thing saved is known to be what was attributed."""
    outcome = outcome_of(name, measured)
    return outcome is not None and outcome.holds


def is_beside(stage: str, thing: Thing) -> bool:
    """Return whether a stage changes with how often a CPU sleeps, or is no packet's."""
    return stage not in thing.stages and (stage.endswith(BESIDE) or stage.startswith("["))


def _difference(before: Arm, after: Arm, takes: Callable[[str], bool]) -> float:
    stages = {*before.stages, *after.stages}
    return sum(
        after.stages.get(stage, 0.0) - before.stages.get(stage, 0.0)
        for stage in stages
        if takes(stage)
    )


# --- mutants -------------------------------------------------------------------------------------


def deciding_anchors(records: Sequence[TrialRecord]) -> dict[str, Counter[str]]:
    """Return stage → the anchors that decide it, and their time; without a name what none decides."""
    heavy: dict[str, Counter[str]] = {}
    for record in records:
        for (_, stage, *names), ns in _stacks(readings_of(record)).items():
            decides = next((n for n in reversed(names) if _decides(n)), "")
            heavy.setdefault(stage, Counter())[decides] += ns
    return heavy


def swaps_of(name: str, measured: Run) -> list[tuple[str, str]]:
    """Return the pairs of anchors whose swap moves the time of a thing to a stage beside it.

    None of what the thing takes outside of the kernel, where no anchor decides.
    """
    thing, heavy = THINGS[name], deciding_anchors(measured.records)
    mine = sum((heavy.get(stage, Counter()) for stage in thing.stages), Counter[str]())
    first = max(mine, key=lambda each: mine[each], default="")
    anchor = anchor_of(first)
    if anchor is None:
        return []
    whole = sum(ns for each in heavy.values() for anchor, ns in each.items() if anchor)
    others = {
        each
        for stage, theirs in heavy.items()
        if stage not in thing.stages and not is_beside(stage, thing)
        for each, ns in theirs.items()
        if each and ns >= HEAVY * whole
    }
    return [(first, each) for each in sorted(others) if _stage(each) != anchor.stage]


def _stacks(readings: Readings | None) -> Mapping[tuple[str, ...], int]:
    return stacks(readings) if readings is not None else {}


def _decides(name: str) -> bool:
    return _stage(name) is not None


def _stage(name: str) -> str | None:
    anchor = anchor_of(name)
    return None if anchor is None else anchor.stage


@contextmanager
def swapped(first: str, second: str) -> Iterator[None]:
    """Let each of two functions be the anchor of the other's stage."""
    table = cpu_stages._EXACT
    mine, other = anchor_of(first), anchor_of(second)
    assert mine is not None
    assert other is not None
    kept = {name: table.get(name) for name in (first, second)}
    table[first], table[second] = (
        Anchor(other.stage, mine.kind),
        Anchor(mine.stage, other.kind),
    )
    anchor_of.cache_clear()
    try:
        yield
    finally:
        for name, anchor in kept.items():
            if anchor is None:
                del table[name]
            else:
                table[name] = anchor
        anchor_of.cache_clear()


def failing_of(name: str, first: str, second: str, runs: Mapping[str, Run]) -> str:
    """Return a thing that fails with two anchors swapped, that of the swap before others; or none."""
    with swapped(first, second):
        outcomes = ((each, outcome_of(each, runs[each])) for each in (name, *runs))
        return next((n for n, each in outcomes if each is not None and not each.holds), "")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return an exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("things", nargs="*", metavar="THING", help=", ".join(THINGS))
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--mutants", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    options = parser.parse_args(words)
    unknown = [name for name in options.things if name not in THINGS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(THINGS)}")
    try:
        for name in options.things or THINGS:
            experiment_of(name, options.blocks, options.seconds)
    except InputError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as room:
        return measure(options, options.out or Path(room))


def measure(options: argparse.Namespace, folder: Path) -> int:
    """Measure each thing, then its mutants."""
    runs: dict[str, Run] = {}
    missed = undecided = 0
    print("thing: saved = attributed + elsewhere, error [interval] in ns per packet")
    for name in options.things or THINGS:
        runs[name] = measured(name, folder / name, options.blocks, options.seconds)
        outcome = outcome_of(name, runs[name])
        if outcome is None:
            undecided += 1
            print(f"{name}: cannot tell: fewer than {FEWEST} blocks count", flush=True)
            for record in runs[name].records:
                why = arm_of(record, runs[name].soaked, THINGS[name].end)
                if isinstance(why, str):
                    print(f"  {record.trial.point} #{record.trial.repetition}: {why}", flush=True)
            continue
        missed += not outcome.holds
        low, high = outcome.error - outcome.half, outcome.error + outcome.half
        print(
            f"{name}: {outcome.saved:.0f} = {outcome.attributed:.0f} + {outcome.elsewhere:.0f}, "
            f"{outcome.error:+.0f} [{low:+.0f} – {high:+.0f}] of ±{outcome.allowed:.0f}: "
            f"{'holds' if outcome.holds else 'MISSED'} ({outcome.blocks} blocks, share "
            f"{outcome.share:.3f})",
            flush=True,
        )
        says = says_of(folder / name)
        if says.exists() and (text := says.read_text().strip()):
            print(f"  {text}", flush=True)
    # Of what does not hold as it is, a mutant proves nothing.
    holding = {name: mine for name, mine in runs.items() if holds(name, mine)}
    mutating = holding if options.mutants else {}
    swaps = [(name, *pair) for name in mutating for pair in swaps_of(name, holding[name])]
    drawn = random.Random(options.seed).sample(swaps, min(options.mutants, len(swaps)))
    if options.mutants and not drawn:
        print("mutants: cannot tell: nothing holds whose time a swap moves")
        return 1 if missed else 5
    caught = 0
    for name, first, second in drawn:
        failing = failing_of(name, first, second, holding)
        caught += bool(failing)
        print(f"mutant {first} ↔ {second} ({name}): {failing or 'NOT SEEN'}", flush=True)
    if drawn:
        print(f"mutants: {caught} of {len(drawn)} are seen")
    if missed or caught < 0.9 * len(drawn):
        return 1
    return 5 if undecided else 0


if __name__ == "__main__":
    sys.exit(main())
