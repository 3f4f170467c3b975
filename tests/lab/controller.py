"""A controller as a process of its own, so that tests can kill, stop and interrupt it.

``controller.py FOLDER LEASE_NS JSON [LAB]``: runs the experiment of the JSON in a lab, the built-in
one if none is named, prints a line per event, and exits as its outcome says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.result import Progress
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter


def say(progress: Progress) -> None:
    """Print an event."""
    if progress.event != "sample":
        print(progress.event, progress.index, progress.text, flush=True)


def main(folder: str, lease_ns: str, data: str, lab_name: str = "local") -> int:
    """Run one experiment."""
    experiment = load_experiment_data(json.loads(data), "tiny")
    lab = load_lab(lab_name)
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(Path(folder), header)
    outcome = run([experiment], lab, writer, say, RunOptions(seed=1, lease_ns=int(lease_ns)))
    if outcome.error is not None:
        print("error", outcome.error, flush=True)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
