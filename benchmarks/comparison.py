"""How long the comparison of two stored runs takes, against reading them.

Runs one short experiment in the built-in lab and stores its trials again, as two runs of POINTS
points. Then takes the CPU time of ``udpbench compare`` and of a program that only reads both runs,
in turn, each as a whole process: both wait for nothing, and other programs move it less than the
time on the wall. ``comparison.py ROUNDS`` takes the median of so many pairs. Fails above BUDGET.
Needs root.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from report import REPETITIONS, measured, multiplied

POINTS, ROUNDS = 100, 5
BUDGET = 2.0
"""Reading both runs twice."""
READ = "import sys; from pathlib import Path; from udpbench.records.reader import read_run; "
READ += "[read_run(Path(name)) for name in sys.argv[1:]]"
NONE_WORSE_OR_UNTOLD = (0, 5)
"""Both runs hold the same trials; whether that can be told depends on their scatter."""


def seconds(words: Sequence[str], folders: Sequence[Path]) -> float:
    """Return the CPU time of Python with some arguments, from its start to its exit."""
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *words, *map(str, folders)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode not in NONE_WORSE_OR_UNTOLD:
        raise SystemExit(f"comparison: {command} ended with {done.returncode}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


def main(rounds: int) -> None:
    """Print each pair and the median ratio, and leave with 1 where the budget is exceeded."""
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        a, b = (Path(name) / side for side in "ab")
        multiplied(measured(Path(name) / "run", "1s"), a, POINTS)
        shutil.copytree(a, b)
        print(f"two runs of {POINTS} points and {POINTS * REPETITIONS} trials")
        for number in range(rounds):
            ways = [("-m", "udpbench", "compare"), ("-c", READ)]
            taken = {way: seconds(way, (a, b)) for way in ways[:: 1 if number % 2 else -1]}
            compare_s, read_s = (taken[way] for way in ways)
            ratios.append(compare_s / read_s)
            print(f"compare {compare_s:.1f} s, read {read_s:.1f} s: {ratios[-1]:.2f}", flush=True)
    print(f"median {median(ratios):.2f} of {rounds} pairs, at most {BUDGET:.2f}")
    if median(ratios) > BUDGET:
        raise SystemExit("over the budget")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
