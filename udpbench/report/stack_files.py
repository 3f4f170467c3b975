"""The sampled chains of functions as files for other programs: folded stacks, and speedscope's.

Every trial of a run that sampled its CPUs, by end of the path, stage and function. Computes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from udpbench.analysis.cpu_time import Stack, stacks
from udpbench.analysis.readings import readings_of
from udpbench.errors import InputError, Problem
from udpbench.folder import Folder
from udpbench.printable import all_printable
from udpbench.records.run import Run

Stacks = Literal["folded", "speedscope"]
STACKS: tuple[Stacks, ...] = ("folded", "speedscope")
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
FILES = {"folded": "cpu-time.folded", "speedscope": "cpu-time.speedscope.json"}


def write_stacks(runs: Sequence[Run], folder: Folder, form: Stacks) -> list[Path]:
    """Write one file with the chains of all trials; InputError if none was sampled."""
    trials = [(name, each) for run in runs for name, each in _sampled(run)]
    if not trials:
        step = "repeat the run with --cpu-time"
        raise InputError([Problem("no trial sampled its CPUs", "--format", form, next_step=step)])
    text = _folded(trials) if form == "folded" else _speedscope(trials)
    return [folder.write(FILES[form], text.encode())]


def _sampled(run: Run) -> Iterator[tuple[str, dict[Stack, int]]]:
    for record in run.records:
        readings = readings_of(record)
        times_ns = stacks(readings) if readings is not None else {}
        if times_ns:
            yield record.trial.name, times_ns


def _folded(trials: Sequence[tuple[str, dict[Stack, int]]]) -> str:
    """Return a line for each chain: its frames, and its time in ns (as flamegraph.pl reads it)."""
    lines = [
        f"{';'.join(frame.replace(';', ':') for frame in (name, *stack))} {time_ns}"
        for name, times_ns in trials
        for stack, time_ns in sorted(times_ns.items())
    ]
    return "\n".join(all_printable(lines, keep="")) + "\n"


def _speedscope(trials: Sequence[tuple[str, dict[Stack, int]]]) -> str:
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []
    for name, times_ns in trials:
        for end in sorted({stack[0] for stack in times_ns}):
            mine = {stack[1:]: ns for stack, ns in sorted(times_ns.items()) if stack[0] == end}
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{name} {end}",
                    "unit": "nanoseconds",
                    "startValue": 0,
                    "endValue": sum(mine.values()),
                    "samples": [
                        [frames.setdefault(frame, len(frames)) for frame in stack] for stack in mine
                    ],
                    "weights": list(mine.values()),
                }
            )
    shared = {"frames": [{"name": name} for name in frames]}
    whole = {"$schema": SCHEMA, "exporter": "udpbench", "shared": shared, "profiles": profiles}
    return json.dumps(all_printable(whole), allow_nan=False)
