"""A run that goes on: what its folder holds, whether it may, and what remains to be run.

Touches the run folder and the definitions, never a host. Everything a user would have to type
again comes from the folder; what is given all the same must be as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from udpbench.control.schedule import remaining, trial_count
from udpbench.definition.changed import experiment_changes, lab_changes
from udpbench.definition.load import lab_of, load_experiments, load_lab
from udpbench.errors import InputError, Problem
from udpbench.model import Experiment, Lab, Trial
from udpbench.records import Run, RunHeader, RunWriter, read_run


@dataclass(frozen=True)
class Asked:
    """What a user names beside the run folder; empty or None is what the folder says."""

    names: Sequence[str] = ()
    lab: str | None = None
    sets: Sequence[str] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Resumed:
    """A run that may go on; its writer holds the folder until it is closed."""

    run: Run
    writer: RunWriter
    lab: Lab
    left: tuple[Trial, ...]
    """What is to be run, in order."""
    notes: tuple[str, ...]
    """What a user should know before it goes on."""

    @property
    def complete(self) -> bool:
        """Return whether nothing remains: every trial is stored, and the hosts were restored."""
        ending = self.run.ending
        ended = ending is not None and ending.status == "complete" and not ending.restore_errors
        return ended and not self.left

    def told(self, version: str) -> str:
        """Return in a line how much of the run is there, for this ``version`` of udpbench."""
        total = trial_count(self.run.header.experiments)
        if self.complete:
            return f"{self.run.folder}: complete: all {total} trials are stored, nothing is run"
        text = f"{self.run.folder}: {total - len(self.left)} of {total} trials are stored"
        before = self.run.header.udpbench
        return text if before == version else f"{text}, begun by udpbench {before}"


def taken_up(folder: Path, asked: Asked) -> Resumed:
    """Return the run in a folder, ready to go on; nothing is written, no host is asked.

    Raises RecordError where the folder holds no run or one that still goes on, and InputError with
    everything in which definitions are not what they were when it began.
    """
    writer = RunWriter.reopen(folder)
    try:
        run = read_run(folder)
        lab, notes = _checked(run.header, asked)
    except BaseException:
        writer.close()
        raise
    left = remaining(run.header.experiments, run.header.seed, run.records)
    return Resumed(run, writer, lab, tuple(left), notes)


def _checked(header: RunHeader, asked: Asked) -> tuple[Lab, tuple[str, ...]]:
    """Return the lab of a run, and what to tell; InputError where anything changed."""
    problems = list(_options(header, asked))
    gone: list[str] = []
    problems += _gathered(_experiments(header, asked, gone))
    path = Path(header.lab_path or f"{header.lab_name}.yaml")
    lab = lab_of(header.lab_text, path)
    problems += _gathered(_lab(header, lab, asked, gone))
    if problems:
        raise InputError(problems)
    notes = [f"{one}: not there any more; the run goes on with what it stored" for one in gone]
    return lab, tuple(notes)


def _gathered(found: Iterator[Problem]) -> list[Problem]:
    """Return all problems, also those of a file that cannot be read as a definition any more."""
    problems = []
    try:
        for one in found:
            problems.append(one)  # noqa: PERF402 - those before an error are kept
    except InputError as error:
        problems += error.problems
    return problems


def _options(header: RunHeader, asked: Asked) -> Iterator[Problem]:
    step = "leave it out, or begin a new run"
    if asked.seed is not None and asked.seed != header.seed:
        what = "the order of trials is the seed's"
        yield Problem(what, "--seed", f"{header.seed} → {asked.seed}", next_step=step)
    if asked.sets and sorted(asked.sets) != sorted(header.sets):
        change = f"{' '.join(header.sets) or 'none'} → {' '.join(asked.sets)}"
        yield Problem("not as it was when the run began", "--set", change, next_step=step)


def _experiments(header: RunHeader, asked: Asked, gone: list[str]) -> Iterator[Problem]:
    """Yield what changed in the experiments; files that are not there any more go to ``gone``."""
    stored = {one.name: one for one in header.experiments}
    for now in _current(header, asked, gone):
        was = stored.get(now.name)
        if was is None:
            what = "no experiment of this run"
            step = f"leave it out; it has: {', '.join(stored)}"
            yield Problem(what, now.path, now.name, next_step=step)
        else:
            yield from experiment_changes(was, now)


def _current(header: RunHeader, asked: Asked, gone: list[str]) -> Iterator[Experiment]:
    if asked.names:
        found = load_experiments(asked.names, header.sets)
        missing = {one.name for one in header.experiments} - {one.name for one in found}
        if missing:
            what = "experiments of this run were left out"
            value, step = ", ".join(sorted(missing)), "name all of them, or none"
            raise InputError([Problem(what, ", ".join(asked.names), value, next_step=step)])
        yield from found
        return
    for one in header.experiments:
        path = Path(header.working_folder) / one.path
        if path.is_file():
            yield from load_experiments([str(path)], header.sets)
        else:
            gone.append(one.path)


def _lab(header: RunHeader, was: Lab, asked: Asked, gone: list[str]) -> Iterator[Problem]:
    path = Path(header.working_folder) / header.lab_path
    if asked.lab is not None:
        yield from lab_changes(was, load_lab(asked.lab))
    elif header.lab_path and path.is_file():
        yield from lab_changes(was, load_lab(str(path)))
    elif header.lab_path:
        gone.append(header.lab_path)
