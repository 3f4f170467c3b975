"""How long a thousand trials take to be shown, and to be reported as HTML, PDF, pages and figures.

Runs one short experiment in the built-in lab, stores its trials again until there are a thousand
of them at 143 points, and times each command; the whole report fails above BUDGET_S. Needs root.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from udpbench.analysis.judge import judge
from udpbench.analysis.result_tables import with_tables
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.records.reader import read_run
from udpbench.records.run import Run, RunHeader, now_utc
from udpbench.records.writer import RunWriter

BUDGET_S = 30.0
COMMANDS = (("show",), ("report", "--format", "html"), ("report", "--format", "pdf"), ("report",))
POINTS, REPETITIONS = 143, 7
DEFINITION: dict[str, Any] = {
    "question": "How long does a report take?",
    "traffic": {"rate": "20kpps"},
    "duration": "5s",
    "warmup": "200ms",
    "repetitions": 2,
}


def measured(folder: Path, duration: str = DEFINITION["duration"]) -> Run:
    """Return a run of DEFINITION in the built-in lab."""
    data = {**DEFINITION, "duration": duration}
    experiment, lab = load_experiment_data(data, "report"), load_lab("local")
    command = ("benchmarks/report.py",)
    header = RunHeader("", now_utc(), command, 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder, header)
    outcome = run([experiment], lab, writer, lambda _: None, RunOptions(seed=1))
    if outcome.error is not None:
        raise SystemExit(f"report: {outcome.error}")
    return read_run(folder)


def multiplied(
    source: Run, folder: Path, number: int = POINTS, repetitions: int = REPETITIONS
) -> None:
    """Store the trials of a run again, as a number of points of so many trials each.

    Their results are kept, as ``run`` does.
    """
    (experiment,) = source.header.experiments
    points = [replace(experiment.points[0], point=f"size={64 + n}B") for n in range(number)]
    larger = replace(experiment, points=tuple(points), repetitions=repetitions)
    writer = RunWriter.create(folder, replace(source.header, experiments=(larger,)))
    for place, point in enumerate(points):
        for repetition in range(1, repetitions + 1):
            record = source.records[(place + repetition) % len(source.records)]
            record = replace(record, trial=replace(point, repetition=repetition))
            writer.write(record)
            writer.keep_result(record, with_tables(judge(record), record))
    if source.ending is not None:
        writer.finish(source.ending)


def timed(command: Sequence[str]) -> float:
    """Return the seconds that a command takes."""
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def main() -> None:
    """Print the time and leave with 1 where the budget is exceeded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "thousand"
        multiplied(measured(Path(name) / "run"), folder)
        stored = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{POINTS * REPETITIONS} trials, {stored / 1e6:.0f} MB")
        for words in COMMANDS:
            seconds = timed([sys.executable, "-m", "udpbench", *words, str(folder)])
            print(f"{' '.join(words)}: {seconds:.1f} s")
    if seconds > BUDGET_S:
        raise SystemExit(f"over the budget of {BUDGET_S:.0f} s")


if __name__ == "__main__":
    main()
