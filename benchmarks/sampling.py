"""What sampling the CPUs costs a trial: the same load with and without ``cpu_time``, in turn.

Both lie in one block, in random order; what counts is the median of the ratios of what was
delivered. ``sampling.py [BLOCKS]`` prints a table and leaves with 1 where a bar is missed. Needs
root, and a quiet machine.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overhead import measure
from ways import Row, machine, ratio_row, show

from udpbench.analysis.judge import judge

BLOCKS = 15
SEED = 20261127
LEAST = 0.98
LOADS: dict[str, dict[str, Any]] = {
    "plain 32 B": {"traffic": {"size": "32B", "rate": "unlimited"}},
    "`gso: 64` × 32 B → `gro`": {
        "traffic": {"size": "32B", "rate": "unlimited"},
        "send": {"gso": 64},
        "receive": {"gro": True},
    },
}
DEFINITION: dict[str, Any] = {
    "question": "What does sampling cost?",
    "warmup": "200ms",
    "duration": "2s",
    "repetitions": 1,
}


def delivered_pps(folder: Path, load: str, sampled: bool) -> float | None:
    """Return what a trial delivered; None if others distorted it, or its sampling failed."""
    definition = {**DEFINITION, **LOADS[load], "cpu_time": sampled}
    (record,) = measure(folder, definition, "sampling")
    result = judge(record)
    if not result.valid or (result.cpu_time is not None) is not sampled:
        return None
    return result.delivered_pps


def rows(folder: Path, blocks: int) -> Iterator[Row]:
    """Yield a line for each load, of the blocks in which both trials count."""
    chance = random.Random(SEED)  # noqa: S311
    for place, load in enumerate(LOADS):
        rates: dict[bool, list[float]] = {False: [], True: []}
        for block in range(blocks):
            order = chance.sample((False, True), 2)
            pair = {s: delivered_pps(folder / f"{place}-{block}-{s}", load, s) for s in order}
            for sampled, pps in pair.items():
                if pps is not None and None not in pair.values():
                    rates[sampled].append(pps)
        if not rates[True]:
            raise SystemExit(f"sampling: {load}: every block has a trial that others distorted")
        what = f"{load}, {len(rates[True])} blocks"
        yield ratio_row(what, rates[True], rates[False], LEAST)


def main() -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS
    print(f"{machine()}; {blocks} blocks\n")
    with tempfile.TemporaryDirectory() as folder:
        show(rows(Path(folder), blocks))


if __name__ == "__main__":
    main()
