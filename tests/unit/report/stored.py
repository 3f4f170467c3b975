"""Runs as a test wants them: written to a folder and read back, without any host.

Not a test. What differs from a good run is given; see analysis.build for the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from analysis.build import experiment, record, series, trial

from udpbench.model import Experiment, TrialRecord
from udpbench.records import Ending, Run, RunHeader, RunWriter, read_run
from udpbench.report.terminal import Terminal

COMPLETE = Ending("2026-11-21T08:00:09+00:00", "complete")
ODD = r"""$x$ #let *a* _b_ [c] <d> "e" \f 🚀 `g` @h ~i // j"""
"""Everything that means something to typst or rich, and an emoji."""


def header(*experiments: Experiment, **changes: Any) -> RunHeader:
    """Return the header of a run in the built-in lab."""
    plain = RunHeader(
        udpbench="0.1.0",
        started_at="2026-11-21T08:00:00.000+00:00",
        command=("udpbench", "run", "example"),
        seed=7,
        lab_name="local",
        lab_text="sender: []\nreceiver: []\n",
        experiments=experiments or (experiment(),),
    )
    return replace(plain, **changes)


def stored(
    folder: Path,
    records: Sequence[TrialRecord] | None = None,
    *experiments: Experiment,
    ending: Ending | None = COMPLETE,
    **changes: Any,
) -> Run:
    """Return a run that was written to ``folder``; by default one good trial."""
    writer = RunWriter.create(folder, header(*experiments, **changes))
    for one in [record(series=series([1000]))] if records is None else records:
        writer.write(one)
    if ending is not None:
        writer.finish(ending)
    else:
        writer.close()
    return read_run(folder)


def swept(sizes: Sequence[int], repetitions: int = 3) -> tuple[Experiment, list[TrialRecord]]:
    """Return an experiment of a point per size, and its good trials, each with a series."""
    points = [trial(f"size={size}") for size in sizes]
    records = [
        record(
            1000 + size + repetition,
            of=replace(point, repetition=repetition),
            series=series([1000 + size + repetition]),
        )
        for size, point in zip(sizes, points, strict=True)
        for repetition in range(1, repetitions + 1)
    ]
    return experiment(points=points, repetitions=repetitions), records


def printed(*parts: Any, width: int = 80) -> str:
    """Return what a terminal of so many columns shows, without colours."""
    out = StringIO()
    console = Terminal(file=out, width=width)
    for part in parts:
        console.print(part)
    return out.getvalue()
