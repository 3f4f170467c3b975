"""Where the time of a trial goes in the built-in lab, beyond what it was asked to measure.

Runs points in turn, one point again and again, and a search; prints each step's median, and fails
where the median trial costs more than its BUDGETS_NS beyond its warm-up and measured time. With
``--against CHECKOUT`` the same is measured with the udpbench of that folder, and the ratios of the
medians are printed. Needs root, as the lab does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

BUDGETS_NS = {"other": 800_000_000, "further": 350_000_000, "search": 300_000_000}
"""What a trial may cost beyond its phases, quiet times included: of another point than the one
before, a further one of its point, a further one of a search."""
PLAIN: dict[str, Any] = {
    "question": "What does a trial cost beyond its phases?",
    "traffic": {"rate": "20kpps"},
    "duration": "1s",
    "warmup": "200ms",
    "repetitions": 7,
}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "other": {
        **PLAIN,
        "variants": {
            "few": {"send.batch": 8},
            "many": {"settings.receiver.sysctl.net.core.netdev_max_backlog": 2000},
        },
    },
    "further": PLAIN,
    "search": {
        "question": "What does a further trial of a search cost beyond its length?",
        "search": {
            "loss": "0.1%",
            "precision": "2%",
            "trial": "500ms",
            "time": "2s",
            "within": "40s",
        },
    },
}


def measure(
    folder: Path, definition: dict[str, Any], name: str = "overhead"
) -> tuple[TrialRecord, ...]:
    """Return the records of a run in the built-in lab; ``name`` is the benchmark's."""
    experiment, lab = load_experiment_data(definition, name), load_lab("local")
    command = (f"benchmarks/{name}.py",)
    header = RunHeader("", now_utc(), command, 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder, header)

    def tell(progress: Progress) -> None:
        if progress.event == "trial":
            print(f"[{progress.index}/{progress.total}] {progress.text}", file=sys.stderr)

    outcome = run([experiment], lab, writer, tell, RunOptions(seed=1))
    if outcome.error is not None:
        raise SystemExit(f"{name}: {outcome.error}")
    return read_run(folder).records


def requested_ns(record: TrialRecord, step: str) -> int:
    """Return what a step was asked to take: the phases with a duration of their own."""
    return {"warmup": record.trial.warmup_ns, "measured": record.trial.duration_ns}.get(step, 0)


def show(name: str, records: Sequence[TrialRecord]) -> float:
    """Print a table of steps, and return what the median trial after the first costs."""
    first, *others = records
    print(
        f"{name + ':':<12} {'first':>9} {'median':>9}   beyond what was asked, ms", file=sys.stderr
    )
    for step in dict.fromkeys(step for record in others for step in record.overhead_ns):
        beyond = [
            (record.overhead_ns.get(step, 0) - requested_ns(record, step)) / 1e6
            for record in (first, *others)
        ]
        print(f"{step:<12} {beyond[0]:>9.1f} {median(beyond[1:]):>9.1f}", file=sys.stderr)
    totals = [
        sum(time_ns - requested_ns(record, step) for step, time_ns in record.overhead_ns.items())
        for record in records
    ]
    cost_ns = median(totals[1:])
    print(f"{'trial':<12} {totals[0] / 1e6:>9.1f} {cost_ns / 1e6:>9.1f}\n", file=sys.stderr)
    return cost_ns


def costs() -> dict[str, float]:
    """Return what the median trial of each kind costs beyond its phases, in ns."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: show(name, measure(Path(folder) / name, definition))
            for name, definition in DEFINITIONS.items()
        }


def costs_of(checkout: Path) -> dict[str, float]:
    """Return the same of another udpbench, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = (sys.executable, __file__, "--json")
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Print what trials cost, and leave with 1 where a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true", help="print the medians alone, in ns")
    options = parser.parse_args()
    own = costs()
    if options.json:
        print(json.dumps(own))
        return
    others = costs_of(options.against.resolve()) if options.against is not None else {}
    for name, cost_ns in own.items():
        ratio = f", {cost_ns / others[name]:.2f} of the other's" if name in others else ""
        print(f"{name}: {cost_ns / 1e6:.0f} ms of {BUDGETS_NS[name] / 1e6:.0f}{ratio}")
    over = [name for name, cost_ns in own.items() if cost_ns > BUDGETS_NS[name]]
    if over:
        raise SystemExit(f"over the budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
