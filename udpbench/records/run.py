"""What a run folder holds: the header, the sessions and the trials of a run.

Derives no number. The schema is ``model.RECORD_SCHEMA``; its history: 1 — the first form;
2 — ``faults`` are called ``losses``. Runs of both are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Literal

from udpbench.model.experiment import Experiment, trial_count
from udpbench.model.lab import Lab
from udpbench.model.limits import ANSWERS_MAX, TRIALS_MAX
from udpbench.model.record import RECORD_SCHEMA, Finding, RecordedError, TrialRecord
from udpbench.printable import printable

RUN_FILE = "run.jsonl"
SERIES_FILE = "series.jsonl"
CAMPAIGN_FILE = "campaign.json"
"""In the folder of a campaign, whose run folders are two folders below it."""
PATH = re.compile(r"[^\x00-\x1f\x7f-\x9f]{0,1000}")
"""What a header says of where definitions are; it is shown in messages of one line."""


@dataclass(frozen=True)
class RunHeader:
    """A run before its first trial: everything needed to repeat it or to judge it later."""

    udpbench: str
    """Version of udpbench that ran it."""
    started_at: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    seed: int
    lab_name: str
    lab_text: str
    """The lab's YAML as read."""
    experiments: tuple[Experiment, ...]
    sets: tuple[str, ...] = ()
    """``--set`` as given; the experiments hold them already."""
    lab_path: str = ""
    """The lab's file; like the experiments' files, relative to the working folder."""
    working_folder: str = ""
    same: str | None = None
    """The point that ``--same`` named; the experiments compare it with itself already."""
    schema: int = RECORD_SCHEMA

    @property
    def watched(self) -> bool:
        """Whether this is a recording of ``watch --out`` or ``serve --out``, not a run."""
        return any(
            trial.watched or trial.served for each in self.experiments for trial in each.points
        )

    @property
    def verb(self) -> Literal["run", "tune"]:
        """The command of udpbench that resumes it."""
        return "tune" if any(each.tune is not None for each in self.experiments) else "run"


@dataclass(frozen=True)
class Begin:
    """The start of a session: the first is in the header, each other has its own line."""

    started_at: str
    udpbench: str
    command: tuple[str, ...]
    cut_bytes: int = 0
    """Bytes of a torn last line that the previous session left and this one cut off."""


@dataclass(frozen=True)
class Ending:
    """How a run ended; without it, the run was killed or is in progress."""

    finished_at: str
    status: Literal["complete", "interrupted", "failed"]
    error: RecordedError | None = None
    """What ended a failed run early."""
    restore_errors: tuple[RecordedError, ...] = ()
    lost: tuple[RecordedError, ...] = ()
    """The same for agents that could not be told to restore."""
    seen_restored: tuple[str, ...] = ()
    """Hosts of lost agents that were seen restored after the lease."""

    @property
    def kind(self) -> str:
        """Return the name of the error's class; empty without an error."""
        return self.error.kind if self.error is not None else ""


@dataclass(frozen=True)
class RunSession:
    """One session of a run; without an ending its process died, or it is in progress."""

    begin: Begin
    trials: int
    ending: Ending | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as read; ``findings`` are about the files, not about the run."""

    folder: Path
    header: RunHeader
    records: tuple[TrialRecord, ...]
    """For each trial, the record of its latest session."""
    ending: Ending | None
    """The ending of the latest session."""
    findings: tuple[Finding, ...] = ()
    sessions: tuple[RunSession, ...] = ()
    replaced: tuple[TrialRecord, ...] = ()
    """Records of trials that a later session repeated."""
    numbers: int = 0
    """One more than the highest number of any record or series."""


def now_utc() -> str:
    """Return a time in the form of records: UTC, ISO 8601, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_header(
    experiments: Sequence[Experiment],
    lab: Lab,
    command: tuple[str, ...],
    sets: Sequence[str] = (),
    seed: int | None = None,
    same: str | None = None,
) -> RunHeader:
    """Return the header of a run that begins now; without a ``seed``, a random one."""
    return RunHeader(
        udpbench=version("udpbench"),
        started_at=now_utc(),
        command=command,
        seed=seed if seed is not None else int.from_bytes(os.urandom(4), "big"),
        lab_name=lab.name,
        lab_text=lab.text,
        experiments=tuple(experiments),
        sets=tuple(sets),
        lab_path=lab.path,
        working_folder=str(Path.cwd()),
        same=same,
    )


def strange_parts(header: RunHeader) -> Iterator[str]:
    """Yield what no run may have: a path that is none, blocks out of order, endless work."""
    files = (experiment.path for experiment in header.experiments)
    for path in (header.working_folder, header.lab_path, *files):
        if PATH.fullmatch(path) is None:
            what = "longer than 1000 characters, or with control characters"
            yield f"the path {printable(path[:60], keep='')}: {what}"
    for pair in chain.from_iterable(experiment.compare for experiment in header.experiments):
        if not pair.blocks or [*pair.blocks] != sorted(pair.blocks):
            yield f"compare: blocks {pair.blocks[:9]!s}: empty, or not in order"
    for each in header.experiments:
        metrics = {pair.metric for pair in each.compare}
        answers = (len(each.expect) + len(metrics)) * len(each.points)
        if answers > ANSWERS_MAX:
            yield f"{answers} expectations and comparisons at all points: at most {ANSWERS_MAX}"
    most = trial_count(header.experiments)[1]
    if most > TRIALS_MAX:
        yield f"{most} trials: at most {TRIALS_MAX}"
