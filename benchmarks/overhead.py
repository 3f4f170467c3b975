"""Where the time of a trial goes in the built-in lab, beyond what it was asked to measure.

Runs one short experiment and a search, prints each step's median and share, and fails where the
median trial costs more than BUDGET_NS beyond its warm-up and measured time, or a further trial of
the search more than FURTHER_NS. Needs root, as the lab does.
"""

from __future__ import annotations

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
from udpbench.records import RunHeader, RunWriter, now_utc, read_run

BUDGET_NS = 1_500_000_000
"""What a trial may cost beyond its phases, quiet times included."""
FURTHER_NS = 300_000_000
"""What a trial of a search may cost on the workers of the one before."""
DEFINITION = {
    "question": "What does a trial cost beyond its phases?",
    "traffic": {"rate": "20kpps"},
    "duration": "1s",
    "warmup": "200ms",
    "repetitions": 7,
}
SEARCHED = {
    "question": "What does a further trial of a search cost beyond its length?",
    "search": {"loss": "0.1%", "precision": "2%", "trial": "500ms", "time": "2s", "within": "40s"},
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


def show(records: Sequence[TrialRecord]) -> float:
    """Print a table of steps, and return what the median trial costs."""
    print(f"{'step':<12} {'first':>9} {'median':>9}   beyond what was asked, ms")
    for step in records[0].overhead_ns:
        beyond = [
            (record.overhead_ns[step] - requested_ns(record, step)) / 1e6 for record in records
        ]
        print(f"{step:<12} {beyond[0]:>9.1f} {median(beyond):>9.1f}")
    totals = [
        sum(time_ns - requested_ns(record, step) for step, time_ns in record.overhead_ns.items())
        for record in records
    ]
    print(f"{'trial':<12} {totals[0] / 1e6:>9.1f} {median(totals) / 1e6:>9.1f}\n")
    return median(totals)


def main() -> None:
    """Print both tables and leave with 1 where a budget is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        single = measure(Path(name) / "run", DEFINITION)
        searched = measure(Path(name) / "search", SEARCHED)
    further = [record for record in searched if "prepare" not in record.overhead_ns]
    for records, budget_ns in ((single, BUDGET_NS), (further, FURTHER_NS)):
        if show(records) > budget_ns:
            raise SystemExit(f"over the budget of {budget_ns / 1e6:.0f} ms")


if __name__ == "__main__":
    main()
