"""Resuming a run: what its folder holds, whether it may continue, and which trials remain.

Reads the run folder and the definitions and touches no host. All options come from the folder;
options given again must be unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from udpbench.control.schedule import lasting, remaining, trial_count
from udpbench.definition.definition_changes import experiment_changes, lab_changes
from udpbench.definition.load import lab_of, load_experiments, load_lab
from udpbench.definition.same_point import against_itself
from udpbench.errors import InputError, Problem
from udpbench.model import Experiment, Lab, Trial
from udpbench.records import Begin, Run, RunHeader, RunWriter, now_utc, read_run
from udpbench.tuning.derived_points import asked, tuned
from udpbench.units import show_range


@dataclass(frozen=True)
class ResumeOptions:
    """Options given along with the run folder; empty or None: as stored."""

    names: Sequence[str] = ()
    lab: str | None = None
    sets: Sequence[str] = ()
    seed: int | None = None


@dataclass(frozen=True)
class ResumedRun:
    """A run that may continue; its writer holds the folder until it is closed."""

    run: Run
    writer: RunWriter
    lab: Lab
    left: tuple[Trial, ...]
    """Trials to run, in order."""
    notes: tuple[str, ...]
    """Notes to print before the run continues."""

    @property
    def complete(self) -> bool:
        """Return whether nothing remains: every trial is stored, and the hosts were restored."""
        ending = self.run.ending
        ended = ending is not None and ending.status == "complete" and not ending.restore_errors
        return ended and not self.left

    def begin_session(self, command: tuple[str, ...]) -> None:
        """Append a session to the run folder."""
        self.writer.resume(self.run, Begin(now_utc(), version("udpbench"), command))

    def summary(self, installed: str) -> str:
        """Return in one line how much is stored; ``installed`` is this udpbench's version."""
        stored = len(lasting(self.run.records, self.run.header.experiments))
        if self.complete:
            return f"{self.run.folder}: complete: all {stored} trials are stored, nothing to run"
        total = stored + len(self.left)
        most = max(total, trial_count(self.run.header.experiments)[1])
        text = f"{self.run.folder}: {stored} of {show_range(total, most)} trials are stored"
        before = self.run.header.udpbench
        return text if before == installed else f"{text}, started by udpbench {before}"


def reopen_run(folder: Path, options: ResumeOptions) -> ResumedRun:
    """Return the run in a folder, ready to continue; writes nothing and contacts no host.

    Raises RecordError if the folder holds no run, or one still in progress, and InputError with
    everything that changed in the definitions.
    """
    writer = RunWriter.reopen(folder)
    try:
        run = read_run(folder)
        lab, notes = _checked(run.header, options)
    except BaseException:
        writer.close()
        raise
    left = remaining(run.header.experiments, run.header.seed, run.records)
    return ResumedRun(run, writer, lab, tuple(left), notes)


def _checked(header: RunHeader, options: ResumeOptions) -> tuple[Lab, tuple[str, ...]]:
    """Return the lab of a run, and notes; InputError if anything changed."""
    if header.watched:
        what, step = "a recording of a watch cannot be resumed", "start another: udpbench watch"
        raise InputError([Problem(what, "--resume", next_step=step)])
    problems = list(_options(header, options))
    gone: list[str] = []
    problems += _gathered(_experiments(header, options, gone))
    path = Path(header.lab_path or f"{header.lab_name}.yaml")
    lab = lab_of(header.lab_text, path)
    problems += _gathered(_lab(header, lab, options, gone))
    if problems:
        raise InputError(problems)
    notes = [f"{path}: deleted; the run continues with its stored copy" for path in gone]
    return lab, tuple(notes)


def _gathered(changes: Iterator[Problem]) -> list[Problem]:
    """Return all problems, including those of a file that is no longer valid."""
    problems = []
    try:
        for problem in changes:
            problems.append(problem)  # noqa: PERF402 - those before an error are kept
    except InputError as error:
        problems += error.problems
    return problems


def _options(header: RunHeader, options: ResumeOptions) -> Iterator[Problem]:
    step = "omit it, or start a new run"
    if options.seed is not None and options.seed != header.seed:
        yield Problem(
            "the seed of a run cannot change",
            "--seed",
            f"{header.seed} → {options.seed}",
            next_step=step,
        )
    if options.sets and sorted(options.sets) != sorted(header.sets):
        change = f"{' '.join(header.sets) or 'none'} → {' '.join(options.sets)}"
        yield Problem("changed since the run began", "--set", change, next_step=step)


def _experiments(header: RunHeader, options: ResumeOptions, gone: list[str]) -> Iterator[Problem]:
    """Yield what changed in the experiments; deleted files are added to ``gone``."""
    stored = {experiment.name: experiment for experiment in header.experiments}
    for now in _current(header, options, gone):
        was = stored.get(now.name)
        if was is None:
            what = "not an experiment of this run"
            step = f"omit it; the run has {', '.join(stored)}"
            yield Problem(what, now.path, now.name, next_step=step)
        else:
            yield from experiment_changes(was, now)


def _current(header: RunHeader, options: ResumeOptions, gone: list[str]) -> Iterator[Experiment]:
    if options.names:
        experiments = _as_run(load_experiments(options.names, header.sets), header)
        missing = {e.name for e in header.experiments} - {e.name for e in experiments}
        if missing:
            what = "experiments of this run are missing"
            value, step = ", ".join(sorted(missing)), "name all of them, or none"
            raise InputError([Problem(what, ", ".join(options.names), value, next_step=step)])
        yield from experiments
        return
    for experiment in header.experiments:
        path = Path(header.working_folder) / experiment.path
        if path.is_file():
            yield from _as_run(load_experiments([str(path)], header.sets), header)
        else:
            gone.append(experiment.path)


def _as_run(experiments: Sequence[Experiment], header: RunHeader) -> list[Experiment]:
    """Return the experiments of a run: all, one point against itself, or the one that is tuned."""
    tune = header.experiments[0].tune
    if tune is None:
        return against_itself(experiments, header.same)
    asked(experiments, tune.point or "all", tune.metric)
    return tuned(experiments, tune)


def _lab(header: RunHeader, was: Lab, options: ResumeOptions, gone: list[str]) -> Iterator[Problem]:
    path = Path(header.working_folder) / header.lab_path
    if options.lab is not None:
        yield from lab_changes(was, load_lab(options.lab))
    elif header.lab_path and path.is_file():
        yield from lab_changes(was, load_lab(str(path)))
    elif header.lab_path:
        gone.append(header.lab_path)
