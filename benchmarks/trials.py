"""Whole trials of ``udpbench run`` beside bare loops: what a run costs its own measurement.

A short experiment in the built-in lab, in three manners: with the live view on a terminal that is
read, with printed lines, and with ``--quiet``. Each is paired with the bare loops (``bare.c``) in a
lab like it, on the same CPUs and over the same time, in random order. A trial's rate is that of its
record, a bare loop's is of the receiver's ``Udp: InDatagrams``. ``trials.py [ROUNDS]`` prints the
table and leaves with 1 where a bar is missed. Needs root, gcc, and a quiet machine.
"""

from __future__ import annotations

import json
import os
import pty
import random
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from duels.stage import Own, Rival, delivered, playing, rate, stage
from ways import BARE, BARE_MERGED, MERGED, PLAIN, Row, compiled, machine, ratio_row, show

from udpbench.analysis.cpu_use import OWN
from udpbench.analysis.judge import judge
from udpbench.model.result import CpuLoad
from udpbench.records.reader import read_run

ROUNDS = 9
SEED = 20261123
WARMUP_S, MEASURED_S = 1, 4
LINES, COLUMNS = 40, 120
TRIES = 3
DEFINITION: dict[str, Any] = {
    "question": "What does a run cost its own measurement?",
    "warmup": f"{WARMUP_S}s",
    "duration": f"{MEASURED_S}s",
    "repetitions": 1,
}


class Kind(NamedTuple):
    """What is sent, by whom, and how much of the bare loops' rate a trial must reach."""

    what: str
    own: Own
    bare: Rival
    packets: int
    """For each datagram that is read."""
    bar: float


KINDS = (
    Kind("plain 32 B", PLAIN, BARE, 1, 1.0),
    Kind("`gso: 64` × 32 B → `gro`", MERGED, BARE_MERGED, 64, 0.97),
)


# --- the manners of running ----------------------------------------------------------------------


def on_terminal(command: Sequence[str]) -> str:
    """Return what a program writes on a terminal of its own, read as it is written."""
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (LINES, COLUMNS))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    environment = {**os.environ, "TERM": "xterm-256color"}
    program = subprocess.Popen(command, env=environment, **streams)
    os.close(terminal)
    parts = []
    try:
        while part := os.read(ours, 2**16):
            parts.append(part)
    except OSError:  # EIO: the program, and all that it started, has left the terminal
        pass
    os.close(ours)
    program.wait()
    return b"".join(parts).decode(errors="replace")


def in_lines(command: Sequence[str]) -> str:
    """Return what a program writes without a terminal."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


Manner = tuple[tuple[str, ...], Callable[[Sequence[str]], str]]
MANNERS: dict[str, Manner] = {
    "live view": ((), on_terminal),
    "printed lines": ((), in_lines),
    "`--quiet`": (("--quiet",), in_lines),
}


# --- both sides ----------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A trial and the bare loops beside it, in packets per second."""

    own_pps: float
    bare_pps: float
    own_share: float
    """The part of the receiver's CPU that udpbench took beside its workers."""


Pairs = dict[tuple[str, str], list[Pair]]
"""Kind and manner → a pair of each round."""


def trial_of(folder: Path, kind: Kind, manner: Manner) -> tuple[float, float] | None:
    """Return the delivered rate of a whole run, and what udpbench took of the receiver's CPU.

    None if other programs used its CPUs.
    """
    file, stored = folder / "trials.yaml", folder / "run"
    file.write_text(json.dumps({**DEFINITION, **kind.own.keys}))
    options, start = manner
    words = ("run", str(file), "--out", str(stored), "--no-report", "--seed", "1", *options)
    text = start((sys.executable, "-m", "udpbench", *words))
    records = read_run(stored).records if stored.exists() else ()
    if len(records) != 1 or records[0].status != "done":
        raise SystemExit(f"trials: no trial:\n{text}")
    result = judge(records[0])
    if result.delivered_pps is None:
        return None
    return result.delivered_pps, share_of(result.cpus)


def share_of(cpus: Sequence[CpuLoad]) -> float:
    """Return the share of the receiving CPUs that udpbench took beside its workers."""
    return sum(load.uses.get(OWN, 0.0) for load in cpus if load.receives)


def bare_pps(bare: Path, kind: Kind) -> float:
    """Return the rate of the bare loops in a lab with a trial's settings."""
    with stage(bare, first=False) as setup:
        setup.attempt("own", kind.own)
        with playing(setup, kind.bare):
            return kind.packets * rate(lambda: delivered(setup), WARMUP_S, MEASURED_S)


def pair_of(bare: Path, kind: Kind, manner: Manner, own_first: bool) -> Pair:
    """Return both rates, one after the other; again if other programs spoilt the trial."""
    for _ in range(TRIES):
        before = None if own_first else bare_pps(bare, kind)
        with tempfile.TemporaryDirectory() as folder:
            trial = trial_of(Path(folder), kind, manner)
        if trial is not None:
            own_pps, own_share = trial
            return Pair(own_pps, bare_pps(bare, kind) if before is None else before, own_share)
    raise SystemExit(f"trials: {TRIES} trials in a row were spoilt by other programs")


def paired(bare: Path, rounds: int) -> Pairs:
    """Return a pair of every round by kind and manner, all of a round in random order."""
    order = random.Random(SEED)  # noqa: S311 - an order, no secret
    cells = [(kind, name) for kind in KINDS for name in MANNERS]
    pairs: Pairs = {(kind.what, name): [] for kind, name in cells}
    for number in range(rounds):
        for kind, name in order.sample(cells, len(cells)):
            pair = pair_of(bare, kind, MANNERS[name], order.random() < 0.5)
            pairs[kind.what, name].append(pair)
            ratio = pair.own_pps / pair.bare_pps
            print(f"[{number + 1}/{rounds}] {kind.what}, {name}: {ratio:.2f}", file=sys.stderr)
    return pairs


def rows(pairs: Pairs) -> Iterator[Row]:
    """Yield a line for each kind and manner; the median of its ratios must reach the bar."""
    for kind in KINDS:
        for name in MANNERS:
            own, bare, shares = map(list, zip(*pairs[kind.what, name], strict=True))
            row = ratio_row(f"{kind.what}, {name}", own, bare, kind.bar)
            met = median(a / b for a, b in zip(own, bare, strict=True)) >= kind.bar
            yield replace(row, value=f"{row.value}; {median(shares):.1%}", met=met)


def main(rounds: int) -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = paired(compiled(Path(folder)), rounds)
    print(f"{machine()}; {rounds} rounds of {MEASURED_S} s a side, seed {SEED}")
    print("last, what udpbench took of the receiver's CPU beside its workers\n")
    show(rows(pairs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
