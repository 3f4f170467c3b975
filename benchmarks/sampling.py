"""What sampling the CPUs costs a load: the rate that is delivered with and without it, in turn.

One load goes on while the agent's sampler is begun and ended beside it, in slices of a tenth of a
second, because what a virtual CPU gets done changes within a second by half; both lie in one block,
in random order, and what counts is the median of the ratios. A third slice has the same timers on
every CPU, and nothing is sampled when they fire: what any sampler by timers costs this machine, in
a virtual one mostly exits to its hypervisor. Whole trials with and without ``cpu_time`` stand
beside it. ``sampling.py [BLOCKS [TRIALS]]`` prints a table and leaves with 1 where a bar is missed.
Needs root, and a quiet machine.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from duels.stage import Own, await_packets, delivered, rate, running, stage
from overhead import measure
from ways import SETTLE_S, SLICE_S, Row, machine, ratio_row, show

from udpbench.agent.host import cpu_sampler, native
from udpbench.agent.host.cpu_sampler import CpuSampler
from udpbench.agent.host.system import Host
from udpbench.analysis.judge import judge
from udpbench.model.limits import CPU_FREQUENCY, SECOND_NS

BLOCKS, TRIALS = 151, 5
"""Blocks of slices, which take less than the 90 s for which a load goes on, and of trials."""
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


@contextmanager
def sampling(sampler: CpuSampler) -> Iterator[None]:
    """Sample every CPU for as long as the block lasts."""
    sampler.begin(CPU_FREQUENCY)
    if sampler.why:
        raise SystemExit(f"sampling: {sampler.why}")
    try:
        yield
    finally:
        sampler.close()


@contextmanager
def timers_alone() -> Iterator[None]:
    """Have the sampler's timers on every CPU, with no ring to which they could write."""
    cpus = os.cpu_count() or 1
    with ExitStack() as events:
        for cpu in range(cpus):
            for period_ns in cpu_sampler.periods_ns(cpu, SECOND_NS // CPU_FREQUENCY, cpus):
                attributes = struct.pack(
                    cpu_sampler.ATTRIBUTES,
                    *(cpu_sampler.SOFTWARE, cpu_sampler.ATTRIBUTES_BYTES, cpu_sampler.CPU_CLOCK),
                    *(period_ns, 0, 0, cpu_sampler.DISABLED, *[0] * 8),
                )
                event = native.perf_event_open(bytearray(attributes), -1, cpu)
                events.callback(os.close, event)
                fcntl.ioctl(event, cpu_sampler.ENABLE, 0)
        yield


def slices(blocks: int) -> Iterator[Row]:
    """Yield two lines for each load, of slices of it."""
    chance, sampler = random.Random(SEED), CpuSampler(Host())  # noqa: S311
    arms: dict[str, Callable[[], AbstractContextManager[None]]]
    arms = {"plain": nullcontext, "sampled": lambda: sampling(sampler), "timers": timers_alone}
    for load, keys in LOADS.items():
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        with stage(Path()) as setup, running(setup, load, Own(keys)):
            await_packets(setup)
            for _ in range(blocks):
                for arm in chance.sample(list(arms), len(arms)):
                    with arms[arm]():
                        pps = rate(lambda: delivered(setup), SETTLE_S, SLICE_S)
                    rates[arm].append(pps)
        yield ratio_row(f"{load}, slices", rates["sampled"], rates["plain"], LEAST)
        yield ratio_row(f"{load}, its timers alone", rates["timers"], rates["plain"], None)


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
        what = f"{load}, {len(rates[True])} pairs of trials"
        yield ratio_row(what, rates[True], rates[False], None)


def main() -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    given = [int(word) for word in sys.argv[1:]]
    blocks, trials = (*given, *(BLOCKS, TRIALS)[len(given) :])
    print(f"{machine()}; {blocks} blocks of slices\n")
    with tempfile.TemporaryDirectory() as folder:
        show(chain(slices(blocks), rows(Path(folder), trials)))


if __name__ == "__main__":
    main()
