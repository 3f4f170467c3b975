"""Where the time of a trial goes in the built-in lab, beyond what it was asked to measure.

Runs one short experiment, prints each step's median and share, and fails where the median trial
costs more than BUDGET_NS beyond its warm-up and measured time. Needs root, as the lab does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model import Progress, TrialRecord
from udpbench.records import RunHeader, RunWriter, now_utc, read_run

BUDGET_NS = 1_500_000_000
"""What a trial may cost beyond its phases, quiet times included."""
DEFINITION = {
    "question": "What does a trial cost beyond its phases?",
    "traffic": {"rate": "20kpps"},
    "duration": "1s",
    "warmup": "200ms",
    "repetitions": 7,
}


def measure(folder: Path) -> tuple[TrialRecord, ...]:
    """Return the records of a run of DEFINITION in the built-in lab."""
    experiment, lab = load_experiment_data(DEFINITION, "overhead"), load_lab("local")
    command = ("benchmarks/overhead.py",)
    header = RunHeader("", now_utc(), command, 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder, header)

    def tell(progress: Progress) -> None:
        if progress.event == "trial":
            print(f"[{progress.index}/{progress.total}] {progress.text}", file=sys.stderr)

    outcome = run([experiment], lab, writer, tell, RunOptions(seed=1))
    if outcome.error is not None:
        raise SystemExit(f"overhead: {outcome.error}")
    return read_run(folder).records


def asked_ns(record: TrialRecord, step: str) -> int:
    """Return what a step was asked to take: the phases with a duration of their own."""
    return {"warmup": record.trial.warmup_ns, "measured": record.trial.duration_ns}.get(step, 0)


def main() -> None:
    """Print the table and leave with 1 where the budget is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        records = measure(Path(name) / "run")
    print(f"{'step':<12} {'first':>9} {'median':>9}   beyond what was asked, ms")
    for step in records[0].overhead_ns:
        beyond = [(one.overhead_ns[step] - asked_ns(one, step)) / 1e6 for one in records]
        print(f"{step:<12} {beyond[0]:>9.1f} {median(beyond):>9.1f}")
    totals = [
        sum(time_ns - asked_ns(one, step) for step, time_ns in one.overhead_ns.items())
        for one in records
    ]
    print(f"{'trial':<12} {totals[0] / 1e6:>9.1f} {median(totals) / 1e6:>9.1f}")
    if median(totals) > BUDGET_NS:
        raise SystemExit(f"over the budget of {BUDGET_NS / 1e6:.0f} ms")


if __name__ == "__main__":
    main()
