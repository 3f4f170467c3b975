"""How `wait: auto` does beside the fixed ways: delivered, CPU time and delay at five loads.

Runs whole trials in the built-in lab, block by block: each way once, in random order, and `auto` a
second time, which says how small a difference of delays can be told. What counts are medians of the
ratios within blocks. ``waiting.py [BLOCKS]`` prints a table and leaves with 1 where a bar is
missed. Needs root, and a quiet machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from overhead import measure
from ways import interval, machine

from udpbench.analysis.cpu_use import NAPI_THREAD
from udpbench.analysis.judge import judge
from udpbench.model.result import Result

BLOCKS = 15
LOADS: dict[str, dict[str, object]] = {
    "1kpps": {"traffic.rate": "1kpps"},
    "10kpps": {"traffic.rate": "10kpps"},
    "100kpps": {"traffic.rate": "100kpps"},
    "unlimited": {"traffic.rate": "unlimited"},
    "overload": {"traffic.rate": "unlimited", "send.gso": 64},
}
SENDER_BOUND, SENDERS_LIMIT = "unlimited", "sender's limit"
"""Here no receiver lost a packet: what is delivered is what one sending CPU offers, which a reader
raises by polling the device, since the sender then has no thread to wake. GSO overruns them all."""
FIXED = {
    "block": "block",
    "epoll": "epoll",
    "spin": "spin",
    "nap": "nap 100us",
    "busy-poll": "busy-poll 50us",
}
AUTO, AGAIN = "auto", "again"
WAYS = {**FIXED, AUTO: "auto", AGAIN: "auto"}
DEFINITION: dict[str, Any] = {
    "question": "Which way of waiting serves which rate?",
    "traffic": {"size": "32B"},
    "warmup": "200ms",
    "duration": "1500ms",  # of 1 kpps, ten delays or more lie beyond the 99th percentile
    "variants": {
        f"{name}-{load}": {"receive.wait": wait, **keys}
        for (name, wait), (load, keys) in product(WAYS.items(), LOADS.items())
    },
}
DELIVERED, CPU, DELAY = 0.97, 1.1, 1.5
"""The bars: of the best, of the cheapest that keeps up, of the shortest of those."""


class Trial(NamedTuple):
    """What one trial brought and cost."""

    delivered_pps: float
    cpu: float
    """Time of the receiver and the NAPI threads before it, by their own clocks, for each packet. To
    leave its idle state costs a CPU more, which is charged to nobody."""
    delay_p99_ns: float


Ways = dict[str, list[Trial]]
"""Way → its trials, block by block."""


def trial_of(result: Result) -> Trial | None:
    """Return the numbers of a result; None if others used its CPUs."""
    delivered, delay = result.delivered_pps, result.delay_p99_ns
    if not result.valid or delivered is None or delay is None or not result.received_packets:
        return None
    known = {NAPI_THREAD, *(worker.worker for worker in result.workers)}
    shares = (
        share
        for load in result.cpus
        if load.receives
        for name, share in load.uses.items()
        if name in known
    )
    return Trial(delivered, sum(shares) / result.received_packets, delay)


def measured(folder: Path, blocks: int) -> dict[str, Ways]:
    """Return load → the trials of each way, of the blocks in which all are good."""
    records = measure(folder, {**DEFINITION, "repetitions": blocks}, "waiting")
    return whole_blocks(judge(record) for record in records)


def whole_blocks(results: Iterable[Result]) -> dict[str, Ways]:
    """Return the trials by load and way; a block that lacks one counts nowhere."""
    blocks: dict[tuple[str, int], dict[str, Trial | None]] = defaultdict(dict)
    for result in results:
        way, _, load = result.trial.point.rpartition("-")
        blocks[load, result.trial.repetition][way] = trial_of(result)
    whole: dict[str, Ways] = {load: {way: [] for way in WAYS} for load in LOADS}
    for (load, _), trials in sorted(blocks.items()):
        good = {way: trial for way, trial in trials.items() if trial is not None}
        for way in WAYS if len(good) == len(WAYS) else ():
            whole[load][way].append(good[way])
    return whole


# --- the bars ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table: auto against the fixed way that does best."""

    what: str
    best: str
    ratios: list[float]
    bar: str
    met: bool


def ratios(of: Sequence[Trial], to: Sequence[Trial], field: str) -> list[float]:
    """Return the ratios of a number, block by block."""
    return [getattr(a, field) / getattr(b, field) for a, b in zip(of, to, strict=True)]


def rows(load: str, ways: Ways) -> Iterator[Row]:
    """Yield the three lines of a load."""

    def middle(name: str, field: str) -> float:
        return median(getattr(trial, field) for trial in ways[name])

    most = max(FIXED, key=lambda name: middle(name, "delivered_pps"))
    delivered = {name: ratios(ways[name], ways[most], "delivered_pps") for name in (AUTO, *FIXED)}
    bar = SENDERS_LIMIT if load == SENDER_BOUND else f"≥ {DELIVERED}"
    met = load == SENDER_BOUND or median(delivered[AUTO]) >= DELIVERED
    yield Row("delivered", most, delivered[AUTO], bar, met)
    keep_up = [name for name in FIXED if median(delivered[name]) >= DELIVERED]
    cheapest = min(keep_up, key=lambda name: middle(name, "cpu"))
    cost = ratios(ways[AUTO], ways[cheapest], "cpu")
    yield Row("CPU time", cheapest, cost, f"≤ {CPU}", median(cost) <= CPU)
    soonest = min(keep_up, key=lambda name: middle(name, "delay_p99_ns"))
    late = ratios(ways[AUTO], ways[soonest], "delay_p99_ns")
    low, high = interval(ratios(ways[AGAIN], ways[AUTO], "delay_p99_ns"))
    resolved = 1 / DELAY < low and high < DELAY
    bar = f"≤ {DELAY}" if resolved else f"not resolved: itself again {low:.2f}–{high:.2f}"
    yield Row("p99 delay", soonest, late, bar, not resolved or median(late) <= DELAY)


def shown(load: str, row: Row) -> str:
    """Return one line of the table."""
    low, high = interval(row.ratios)
    ratio = f"{median(row.ratios):.2f} ({low:.2f}–{high:.2f})"
    met = "–" if row.bar == SENDERS_LIMIT else "yes" if row.met else "**no**"
    return f"| {load} | {row.what} | {row.best} | {ratio} | {row.bar} | {met} |"


def main() -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS
    with tempfile.TemporaryDirectory() as folder:
        whole = measured(Path(folder) / "run", blocks)
    print(f"{machine()}; {blocks} blocks\n")
    print("| load | what | best fixed way | `auto` against it (95 % interval) | bar | met |")
    print("|---|---|---|---|---|---|")
    missed = False
    for load, ways in whole.items():
        if not ways[AUTO]:
            raise SystemExit(f"waiting: at {load} every block has a trial that others distorted")
        for row in rows(load, ways):
            missed |= not row.met
            print(shown(load, row))
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
