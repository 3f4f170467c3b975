"""Switch things off, and see that the CPU time which they took is what the ledger of CPU time says.

``ablation.py [THING]... [--blocks N] [--out FOLDER] [--mutants N]``, as root. Both arms of each thing
run in turn at the same rate, without loss. Printed for each: ``saved``, by which the kernel's busy
time per packet differs, whatever the samples say; ``attributed``, by which the stages differ that the
thing is at; ``elsewhere``, by which scheduling, wake-ups, interrupts and other programs differ. The
95 % interval of attributed + elsewhere − saved is to lie within 10 % of saved, or 20 ns.

With ``--mutants N`` the records are judged again with two anchors swapped, N times: at least nine in
ten are to fail. What the folder has already is read and not run again. Exits 1 if a bar is missed, 5
if nothing could be told. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from udpbench import cpu_stages
from udpbench.analysis.cpu_time import cpu_time_of, stacks
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import Readings, readings_of
from udpbench.control.run import RunOptions, run
from udpbench.cpu_stages import Anchor, anchor_of
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
STUDENT = {4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 14: 2.145, 20: 2.086}
"""Degrees of freedom → Student's t at 97.5 %."""
FEWEST = 5
"""Blocks from which on something is told."""
BESIDE = ("wakeup", "schedule", "interrupts", "own", "others_softirq")
"""Endings of stages that change with how often a CPU sleeps, and programs in brackets."""
PORT, PLANTED = 4321, 4322
HEAVY = 0.03
"""Share of the time from which on an anchor is swapped in a mutant."""
Data = dict[str, Any]


@dataclass(frozen=True)
class Thing:
    """What is switched: two arms of an experiment, and the stages at which it takes its time."""

    stages: tuple[str, ...]
    arms: dict[str, Data]
    """``without`` and ``with``."""
    keys: Data = field(default_factory=dict)
    end: Role = "receiver"
    rules: str = ""
    """A script for nft, in the namespace of that end."""


def chain(hook: str, count: int, family: str = "ip") -> str:
    """Return a table in which the datagrams to one port pass so many rules."""
    rules = "\n".join(f"udp dport {10_000 + n} drop" for n in range(count))
    return (
        f"table {family} planted {{ chain many {{ {rules}\n }}\n"
        f"chain c {{ type filter hook {hook} priority 0; udp dport {PLANTED} jump many; }}\n}}"
    )


TRACKED = f"""\
table ip planted {{
 chain raw {{ type filter hook prerouting priority -300; udp dport {PORT} notrack; }}
 chain c {{ type filter hook input priority 0; ct state invalid drop; }}
}}"""
BY_PORT = {
    "without": {"traffic.flows.to": f"receiver.addresses[1]:{PORT}"},
    "with": {"traffic.flows.to": f"receiver.addresses[1]:{PLANTED}"},
}
LONG = {"traffic": {"size": "1472B", "rate": "60kpps"}}
THINGS: dict[str, Thing] = {
    "rules-100": Thing(("rx_netfilter",), BY_PORT, rules=chain("input", 100)),
    "rules-1000": Thing(
        ("rx_netfilter",), BY_PORT, {"traffic.rate": "40kpps"}, rules=chain("input", 1000)
    ),
    "early-rules": Thing(("rx_netfilter",), BY_PORT, rules=chain("prerouting", 200)),
    "sender-rules": Thing(("tx_netfilter",), BY_PORT, end="sender", rules=chain("output", 300)),
    "conntrack": Thing(("rx_conntrack", "rx_netfilter"), BY_PORT, rules=TRACKED),
    "copy": Thing(
        ("rx_copy",),
        {"without": {"receive.read": "none"}, "with": {"receive.read": "copy"}},
        LONG,
    ),
    "verify": Thing(
        ("rx_application",),
        {"without": {"receive.read": "header"}, "with": {"receive.read": "verify"}},
        LONG,
    ),
    "timestamps": Thing(
        ("rx_read", "rx_core", "rx_poll", "rx_application", "rx_syscall", "rx_copy"),
        {"without": {"receive.timestamps": False}, "with": {"receive.timestamps": True}},
    ),
    "work": Thing(
        ("rx_application",),
        {"without": {"receive.work": "0us"}, "with": {"receive.work": "10us"}},
        {"traffic.rate": "30kpps"},
    ),
}


def experiment_of(name: str, blocks: int, seconds: float) -> Any:
    """Return both arms as points that take turns."""
    thing = THINGS[name]
    data: Data = {
        "question": f"What does {name} cost?",
        "traffic": {"size": "64B", "rate": "80kpps"},
        "send": {"pace": "sleep"},
        # Interrupts that wake an idle CPU are busy time for the kernel, idle time for its timer:
        # a CPU that polls while it is idle is woken without them.
        "settings": {"receiver": {"cpu": {"latency": "0us"}}},
        "variants": {arm: {**thing.arms[arm]} for arm in ("without", "with")},
        "compare": {"a": "without", "b": "with", "metric": "cpu_ns", "blocks": blocks},
        "cpu_time": True,
        "duration": f"{round(1000 * seconds)}ms",
        "warmup": "200ms",
    }
    for path, value in thing.keys.items():
        first, _, last = path.partition(".")
        data[first] = {**data[first], **({last: value} if last else value)}
    return load_experiment_data(data, name)


def planting(thing: Thing) -> Callable[[Progress], None]:
    """Return a listener that adds the rules of a thing once the namespace of its end is there."""

    def tell(progress: Progress) -> None:
        name, _, rest = progress.text.partition(": agent ")
        if thing.rules and progress.event == "host" and name == thing.end:
            enter = ["nsenter", f"--target={rest.partition(' ')[0]}", "--net", "nft", "-f", "-"]
            subprocess.run(enter, input=thing.rules, text=True, check=True, timeout=30)

    return tell


def measured(name: str, folder: Path, blocks: int, seconds: float) -> tuple[TrialRecord, ...]:
    """Return the trials of a thing, and run them if the folder has none."""
    if not (folder / RUN_FILE).exists():
        experiment, lab = experiment_of(name, blocks, seconds), load_lab("local")
        header = new_header([experiment], lab, ("ablation.py",))
        writer = RunWriter.create(folder, header)
        outcome = run(
            [experiment], lab, writer, planting(THINGS[name]), RunOptions(seed=header.seed)
        )
        if outcome.error is not None:
            raise outcome.error
        if outcome.interrupted:
            raise KeyboardInterrupt
    return read_run(folder).records


@dataclass(frozen=True)
class Arm:
    """One trial: what a packet of the end costs, by the kernel and by stage."""

    busy_ns: float
    stages: Mapping[str, float]


def arm_of(record: TrialRecord, end: Role) -> Arm | str:
    """Return what a trial says; or why it says nothing."""
    readings = readings_of(record)
    if record.status != "done" or readings is None:
        return record.status
    cpu_time = cpu_time_of(readings, make_ledger(readings))
    if cpu_time is None:
        return next((s.why for s in readings.phase.cpu_samples.values()), "not sampled")
    cpus = {(entry.machine, entry.cpu) for entry in cpu_time.entries if entry.end == end}
    mine = [each for each in cpu_time.balances if (each.machine, each.cpu) in cpus]
    struck = [f"CPU {balance.cpu}: {balance.struck}" for balance in mine if balance.struck]
    if struck:
        return ", ".join(struck)
    packets = sum(
        stats.counts.get("sent_packets" if end == "sender" else "received_packets", 0)
        for stats in readings.phase.stats
        if stats.role == end
    )
    sent = sum(stats.counts.get("sent_packets", 0) for stats in readings.phase.stats)
    received = sum(stats.counts.get("received_packets", 0) for stats in readings.phase.stats)
    if not packets or received < 0.999 * sent:
        return f"{received} of {sent} packets received"
    busy_ns = sum(each.busy_ns for each in mine)
    stages: dict[str, float] = {}
    for entry in cpu_time.entries:
        if entry.end == end:
            stages[entry.stage] = stages.get(entry.stage, 0.0) + entry.time_ns / packets
    return Arm(busy_ns / packets, stages)


@dataclass(frozen=True)
class Outcome:
    """What switching a thing changed, per packet in ns: means over blocks."""

    saved: float
    attributed: float
    elsewhere: float
    error: float
    half: float
    """Half of the 95 % interval of the error."""
    blocks: int

    @property
    def allowed(self) -> float:
        """How far the sum may be off."""
        return max(WITHIN * abs(self.saved), LEAST_NS)

    @property
    def holds(self) -> bool:
        """Whether the whole interval is within what is allowed."""
        return abs(self.error) + self.half <= self.allowed


def outcome_of(name: str, records: Sequence[TrialRecord]) -> Outcome | None:
    """Return what the blocks of a thing say; None of fewer than FEWEST."""
    thing = THINGS[name]
    arms: dict[tuple[str, int], Arm] = {}
    for record in records:
        arm = arm_of(record, thing.end)
        if isinstance(arm, Arm):
            arms[record.trial.point, record.trial.repetition] = arm
    rows = []
    for point, repetition in arms:
        before, after = arms[point, repetition], arms.get(("with", repetition))
        if point == "without" and after is not None:
            rows.append((before, after))
    if len(rows) < FEWEST:
        return None
    saved = [after.busy_ns - before.busy_ns for before, after in rows]
    attributed = [_difference(*row, lambda stage: stage in thing.stages) for row in rows]
    elsewhere = [_difference(*row, lambda stage: is_beside(stage, thing)) for row in rows]
    errors = [a + e - s for a, e, s in zip(attributed, elsewhere, saved, strict=True)]
    freedom = max(each for each in (0, *STUDENT) if each <= len(rows) - 1) or 4
    half = STUDENT[freedom] * stdev(errors) / sqrt(len(errors))
    return Outcome(mean(saved), mean(attributed), mean(elsewhere), mean(errors), half, len(rows))


def holds(name: str, records: Sequence[TrialRecord]) -> bool:
    """Return whether what a thing saved is known to be what was attributed."""
    outcome = outcome_of(name, records)
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


def heavy_anchors(records: Sequence[TrialRecord]) -> dict[str, dict[str, float]]:
    """Return stage → the anchors that decide it, with their share of the time."""
    heavy: dict[str, dict[str, float]] = {}
    for record in records:
        readings = readings_of(record)
        for (_, stage, *names), ns in _stacks(readings).items():
            decides = next((n for n in reversed(names) if _decides(n)), None)
            if decides is not None:
                mine = heavy.setdefault(stage, {})
                mine[decides] = mine.get(decides, 0.0) + ns
    return heavy


def _stacks(readings: Readings | None) -> Mapping[tuple[str, ...], int]:
    return stacks(readings) if readings is not None else {}


def _decides(name: str) -> bool:
    anchor = anchor_of(name)
    return anchor is not None and anchor.stage is not None


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


def mutant(
    chance: random.Random, runs: Mapping[str, Sequence[TrialRecord]]
) -> tuple[str, str, list[str]]:
    """Return two anchors of which one is at a thing that is switched, and what fails if swapped."""
    name = chance.choice(sorted(runs))
    heavy = heavy_anchors(runs[name])
    thing = THINGS[name]
    kernel = [s for s in thing.stages if heavy.get(s)]
    if not kernel:
        return "", "", []
    stage = chance.choice(kernel)
    first = max(heavy[stage], key=lambda each: heavy[stage][each])
    whole = sum(sum(mine.values()) for mine in heavy.values())
    others = [
        each
        for other, mine in heavy.items()
        if other not in thing.stages and not is_beside(other, thing)
        for each, ns in mine.items()
        if ns >= HEAVY * whole
    ]
    if not others:
        return first, "", []
    second = chance.choice(sorted(others))
    with swapped(first, second):
        outcomes = {each: outcome_of(each, records) for each, records in runs.items()}
    return first, second, [n for n, each in outcomes.items() if each is not None and not each.holds]


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return an exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("things", nargs="*", metavar="THING", help=", ".join(THINGS))
    parser.add_argument("--blocks", type=int, default=7)
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
    runs: dict[str, tuple[TrialRecord, ...]] = {}
    missed = undecided = 0
    print("thing: saved = attributed + elsewhere, error [interval] in ns per packet")
    for name in options.things or THINGS:
        runs[name] = measured(name, folder / name, options.blocks, options.seconds)
        outcome = outcome_of(name, runs[name])
        if outcome is None:
            undecided += 1
            print(f"{name}: cannot tell: fewer than {FEWEST} blocks count", flush=True)
            for record in runs[name]:
                why = arm_of(record, THINGS[name].end)
                if isinstance(why, str):
                    print(f"  {record.trial.point} #{record.trial.repetition}: {why}", flush=True)
            continue
        missed += not outcome.holds
        low, high = outcome.error - outcome.half, outcome.error + outcome.half
        print(
            f"{name}: {outcome.saved:.0f} = {outcome.attributed:.0f} + {outcome.elsewhere:.0f}, "
            f"{outcome.error:+.0f} [{low:+.0f} – {high:+.0f}] of ±{outcome.allowed:.0f}: "
            f"{'holds' if outcome.holds else 'MISSED'} ({outcome.blocks} blocks)",
            flush=True,
        )
    chance, caught = random.Random(options.seed), 0
    # Of what does not hold as it is, a mutant proves nothing.
    holding = {name: records for name, records in runs.items() if holds(name, records)}
    if options.mutants and not holding:
        print("mutants: cannot tell: nothing holds without them")
        return 1 if missed else 5
    for _ in range(options.mutants):
        first, second, failing = mutant(chance, holding)
        caught += bool(failing)
        print(f"mutant {first} ↔ {second}: {', '.join(failing) or 'NOT SEEN'}", flush=True)
    if options.mutants:
        print(f"mutants: {caught} of {options.mutants} are seen")
    if missed or caught < 0.9 * options.mutants:
        return 1
    return 5 if undecided else 0


if __name__ == "__main__":
    sys.exit(main())
