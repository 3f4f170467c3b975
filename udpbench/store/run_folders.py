"""Run folders in place of a store: their trials with the same columns, without pyarrow.

A run's pair is its lab. Its campaign is the folder that holds the run folder, as when they are
added; of a campaign's cells that folder's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from udpbench.errors import RecordError
from udpbench.records.reader import read_run
from udpbench.records.run import CAMPAIGN_FILE, RUN_FILE, Run
from udpbench.store.dataset import MOST_ENTRIES, ORDER, PARTITIONS, RUN, TRIAL, trial_rows

if TYPE_CHECKING:
    import pandas as pd

DEPTH = 3
"""How deep run folders are looked for: those of a campaign are two folders below it."""


def run_folders(path: Path) -> list[Path]:
    """Return the run folders that a path is or holds, in the order of their names.

    No link below the path is followed; RecordError if there are too many files.
    """
    try:
        return sorted(_below(path, DEPTH, [MOST_ENTRIES]))
    except OSError as error:
        raise RecordError(f"{path}: cannot be searched for runs: {error}") from error


def _below(path: Path, depth: int, left: list[int]) -> Iterator[Path]:
    folders = []
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    with entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                what = f"more than {MOST_ENTRIES} files and folders up to {path}"
                raise RecordError(f"{what}; name a folder that holds fewer")
            if entry.name == RUN_FILE:
                yield path
            elif depth and entry.is_dir(follow_symlinks=False):
                folders.append(path / entry.name)
    for folder in folders:
        yield from _below(folder, depth - 1, left)


def readable_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs of some folders, and why others cannot be read; watches are left out."""
    runs, problems = [], []
    for folder in folders:
        try:
            run = read_run(folder, later=True)
        except RecordError as error:
            problems.append(str(error))
        else:
            points = (trial for each in run.header.experiments for trial in each.points)
            runs += [] if any(trial.watched for trial in points) else [run]
    return runs, problems


def trials_of(runs: Sequence[Run], point: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Return the trials of runs as ``read_runs`` returns those of a store.

    And why other runs, of which more is read only now, cannot be read.
    """
    import pandas as pd

    types = dict.fromkeys(PARTITIONS, "string") | TRIAL | RUN
    rows, problems = [], []
    for run in runs:
        try:
            rows += [row for row in _rows(run) if point in (None, row["point"])]
        except RecordError as error:
            problems.append(str(error))
    frame = pd.DataFrame(rows, columns=[*types, "values", "ledger"]).astype(types)
    return frame.sort_values(ORDER, ignore_index=True), problems


def _rows(run: Run) -> Iterator[dict[str, object]]:
    values = (campaign_of(run), run.header.lab_name, run.header.started_at[:10])
    parts = dict(zip(PARTITIONS, values, strict=True))
    for row in trial_rows(run):
        yield {**row, "values": dict(row["values"]), "ledger": dict(row["ledger"]), **parts}


def campaign_of(run: Run) -> str:
    """Return the name under which a run is put into a store if none is named."""
    above = run.folder.resolve().parents
    of_pair = len(above) > 1 and (above[1] / CAMPAIGN_FILE).is_file()
    return above[of_pair].name or "runs"
