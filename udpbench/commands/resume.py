"""Resuming a run: what its folder holds, whether it may continue, and which trials remain.

Reads the run folder and the definitions and touches no host. All options come from the folder;
options given again must be unchanged. Whoever wrote a run folder chose all that is in it, so it
continues only if the definitions on this disk say the same, or if the user trusts it.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from udpbench.control.schedule import lasting, remaining
from udpbench.definition import shipped
from udpbench.definition.definition_changes import differing, experiment_changes, lab_changes
from udpbench.definition.load import bases_of, experiment_of, lab_of, load_experiments, load_lab
from udpbench.definition.point_pairs import against_itself
from udpbench.differences import differences, flat, written
from udpbench.errors import InputError, Problem, UdpbenchError
from udpbench.folder import other_writers, steps
from udpbench.host_settings import Settings
from udpbench.model.experiment import Experiment, Trial, trial_count
from udpbench.model.lab import Lab, Node
from udpbench.printable import printable
from udpbench.records.folders import writers_of
from udpbench.records.run import RUN_FILE, Begin, Run, RunHeader, now_utc
from udpbench.records.writer import RunWriter
from udpbench.tuning.derived_points import asked, tuned
from udpbench.units import show_range

TRUST = "read what it would run, then add --trust"
LOAD = {
    "traffic": ("size_bytes", "rate", "count_packets"),
    "send": ("batch", "gso", "tail_bytes", "pace", "bucket_ns"),
    "receive": ("batch",),
}
"""Keys of how much is sent and read at a time, which the run folder may say alone: shipped
experiments send without limit, and a folder may name any of them without a ``--set``."""
TIMES = ("duration_ns", "warmup_ns", "search")


@dataclass(frozen=True)
class ResumeOptions:
    """Options given along with the run folder; empty or None: as stored."""

    names: Sequence[str] = ()
    lab: str | None = None
    sets: Sequence[str] = ()
    seed: int | None = None
    allow_read: Sequence[Path] = ()
    trust: bool = False
    tune: bool = False
    """The user asked for a tune, which may take any of its steps."""


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
            all_ = f"all {stored} trials are" if stored != 1 else "its only trial is"
            return f"{self.run.folder}: complete: {all_} stored, nothing to run"
        total = stored + len(self.left)
        planned = trial_count(self.run.header.experiments)[1]
        most = max(total, planned)
        text = f"{self.run.folder}: {stored} of {show_range(total, most)} trials are stored"
        if all(experiment.searched for experiment in self.run.header.experiments):
            done = planned - len({trial.search_key for trial in self.left})
            text = f"{self.run.folder}: {done} of {planned} searches are complete"
        before = self.run.header.udpbench
        return text if before == installed else f"{text}, started by udpbench {before}"


def reopen_run(folder: Path, options: ResumeOptions) -> ResumedRun:
    """Return the run in a folder, ready to continue; writes nothing and contacts no host.

    Raises RecordError if the folder holds no run, or one still in progress, and InputError with
    everything that changed in the definitions, or with what it would run if nothing but the folder
    says so.
    """
    writer = RunWriter.reopen(folder)
    try:
        run = writer.read()
        compared = _compared(run, writer.strangers(), options)
        left = remaining(run.header.experiments, run.header.seed, run.records)
        resumed = ResumedRun(run, writer, compared.lab, tuple(left), ())
        return replace(resumed, notes=_notes(compared, resumed.complete))
    except BaseException:
        writer.close()
        raise


def why_not_resumed(run: Run) -> str:
    """Return why ``--resume`` alone would not continue a stored run; empty if it would."""
    try:
        given = ResumeOptions(tune=run.header.verb == "tune")
        doubtful = _compared(run, writers_of(run.folder), given)
    except (OSError, UdpbenchError) as error:
        return str(error).splitlines()[0]
    return next((str(problem) for problem in (*doubtful.problems, *doubtful.doubts)), "")


@dataclass(frozen=True)
class _Comparison:
    """A stored run beside the definitions on this disk."""

    header: RunHeader
    folder: Path
    options: ResumeOptions
    lab: Lab
    problems: list[Problem] = field(default_factory=list)
    """What has changed."""
    doubts: list[Problem] = field(default_factory=list)
    """What nothing but the run folder says."""

    @property
    def unsaid_sets(self) -> bool:
        """Whether only the folder says with which ``--set`` its run began."""
        return bool(self.header.sets) and not self.options.sets

    def doubt(self, where: object, what: str) -> None:
        """Add a doubt."""
        self.doubts.append(Problem(what, str(where)))


def _notes(compared: _Comparison, complete: bool) -> tuple[str, ...]:
    """Return notes; InputError if anything changed, or if what would run is not trusted."""
    if compared.problems:
        raise InputError(compared.problems)
    doubts = list(dict.fromkeys(compared.doubts))
    if doubts and not compared.options.trust and not complete:
        folder = str(compared.folder)
        last = Problem("nothing else says what to run", "--resume", folder, "", TRUST)
        acts = dict.fromkeys(_acts(compared.header.experiments, compared.lab))
        # Why and what to do come first: of many problems only so many are printed.
        raise InputError([last, *doubts, *(Problem(act, folder) for act in acts)])
    return tuple(f"{doubt}; the run continues with its stored copy" for doubt in doubts)


def _compared(run: Run, strangers: Sequence[str], options: ResumeOptions) -> _Comparison:
    """Return what changed in a run's definitions, and what has to be trusted."""
    header = run.header
    if header.watched:
        what, step = "a recording of a watch cannot be resumed", "start another: udpbench watch"
        raise InputError([Problem(what, "--resume", next_step=step)])
    lab = lab_of(header.lab_text, Path(header.lab_path or f"{header.lab_name}.yaml"))
    compared = _Comparison(header, run.folder, options, lab)
    compared.problems.extend(_options(header, options))
    for how in strangers:
        compared.doubt(run.folder, how)
    compared.problems.extend(_gathered(_experiments(compared)))
    compared.problems.extend(_gathered(_lab(compared)))
    return compared


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


# --- experiments ---------------------------------------------------------------------------------


def _experiments(compared: _Comparison) -> Iterator[Problem]:
    """Yield what changed in the experiments, and add what has to be trusted."""
    stored = {experiment.name: experiment for experiment in compared.header.experiments}
    yield from _repeated(compared.header.experiments)
    same = set()
    for now, plain in _current(compared):
        was = stored.get(now.name)
        if was is None:
            what = "not an experiment of this run"
            step = f"omit it; the run has {', '.join(stored)}"
            yield Problem(what, now.path, now.name, next_step=step)
            continue
        same.add(now.name)
        yield from experiment_changes(was, now)
        for what in _said_alone(was, now, plain, compared.options.tune):
            compared.doubt(shipped.shown_as(Path(now.path)), what)
    doubtful = {doubt.where for doubt in compared.doubts}
    for name, was in stored.items():
        if name not in same and was.path not in doubtful:
            compared.doubt(was.path, f"does not hold {name}")


def _repeated(experiments: Sequence[Experiment]) -> Iterator[Problem]:
    """Yield names that stand for two things, of which only the last would be compared."""
    names = Counter(experiment.name for experiment in experiments)
    points = Counter(f"{each.name}::{trial.point}" for each in experiments for trial in each.points)
    for name, times in (*names.items(), *points.items()):
        if times > 1:
            yield Problem("two of this name; the file is damaged", "--resume", name)


def _current(compared: _Comparison) -> Iterator[tuple[Experiment, Experiment | None]]:
    """Yield each experiment as run, and as its file has it without ``--set`` of the folder."""
    header, options = compared.header, compared.options
    if options.names:
        experiments = _loaded(options.names, compared)
        missing = {e.name for e in header.experiments} - {e.name for e, _ in experiments}
        if missing:
            what = "experiments of this run are missing"
            value, step = ", ".join(sorted(missing)), "name all of them, or none"
            raise InputError([Problem(what, ", ".join(options.names), value, next_step=step)])
        yield from experiments
        return
    for experiment in header.experiments:
        path = Path(header.working_folder) / experiment.path
        files = chain([path], bases_of(path))  # each is trusted before it is read
        why = next((why for file in files if (why := _distrust(file, compared))), None)
        if why is None:
            yield from _loaded([str(path)], compared)
        else:
            compared.doubt(experiment.path, why)


def _loaded(
    names: Sequence[str], compared: _Comparison
) -> list[tuple[Experiment, Experiment | None]]:
    header, allow_read = compared.header, compared.options.allow_read
    files = load_experiments(names, header.sets, allow_read)
    tune = header.experiments[0].tune
    if tune is not None:
        asked(files, tune.point or "all", tune.metric)
    run = _as_run(files, header)
    plain = {experiment.name: experiment for experiment in run}
    if compared.unsaid_sets:
        try:
            without = _as_run(load_experiments(names, (), allow_read), header)
            plain = {each.name: each for each in without}
        except InputError:
            plain = {}  # it needs --set
    return [(each, plain.get(each.name)) for each in run]


def _as_run(experiments: Sequence[Experiment], header: RunHeader) -> list[Experiment]:
    """Return the experiments of a run: all, one point against itself, or the one that is tuned."""
    tune = header.experiments[0].tune
    return against_itself(experiments, header.same) if tune is None else tuned(experiments, tune)


def _said_alone(
    was: Experiment, now: Experiment, plain: Experiment | None, tune: bool
) -> Iterator[str]:
    """Yield what a stored experiment does to hosts that its file, without ``--set``, does not."""
    if plain is None:
        yield "says nothing without --set, which has to be typed again"
        return
    differs = list(differing(_with_load(plain, was), was))
    for where, change in differs:
        yield f"{where}: {change}: only --set says so, which has to be typed again"
    if was.tune != now.tune:
        yield "it is not what is tuned"
    if was.tune is None:
        return
    if not tune:
        yield "is tuned, which tries settings; resume it by udpbench tune --resume"
    try:
        file, text = (experiment_of(replace(each, path=was.path)) for each in (plain, was))
    except InputError:
        yield "it is not what is tuned"
        return
    for where, change in () if differs else differing(_with_load(file, text), text):
        yield f"{where}: {change}: it is not what is tuned"


def _with_load(plain: Experiment, was: Experiment) -> Experiment:
    """Return an experiment with all of ``was`` that acts on no host, and with its load."""
    stored = {trial.point: trial for trial in was.points}
    points = (_loaded_as(trial, stored.get(trial.point, trial)) for trial in plain.points)
    return replace(was, points=tuple(points))


def _loaded_as(trial: Trial, was: Trial) -> Trial:
    parts = {}
    for name, keys in LOAD.items():
        stored = getattr(was, name)
        parts[name] = replace(getattr(trial, name), **{key: getattr(stored, key) for key in keys})
    return replace(trial, **parts, **{name: getattr(was, name) for name in TIMES})


def _distrust(path: Path, compared: _Comparison) -> str | None:
    """Return why a definition that the run folder names does not vouch for it; None if it does.

    Whoever wrote the folder also chose the path.
    """
    working = Path(compared.header.working_folder)
    try:
        if not working.is_absolute() or working.resolve() != working or not path.is_file():
            return "deleted"
    except RuntimeError:  # a loop of links, until Python 3.12
        return "deleted"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    real, proc = path.resolve(), Path("/proc/self").stat().st_dev
    if real.is_relative_to(shipped.folder().resolve()):
        return None
    if real.is_relative_to(compared.folder.resolve()):
        return "lies in the run folder, and may have come with it"
    if real.suffix not in shipped.SUFFIXES:
        return f"is not named {' or '.join(shipped.SUFFIXES)}, and may be another program's"
    if any(os.path.lexists(above / RUN_FILE) for above in real.parents):
        return "lies in another run folder, which holds what was measured"
    for step in steps(path):
        state = step.lstat()
        if state.st_dev == proc:  # to the user's own folder, wherever that is
            return f"{step} leads elsewhere for each process"
        for how in other_writers(step, passed=stat.S_ISDIR(state.st_mode)):
            return f"{step} {how}"
    return None


# --- lab -----------------------------------------------------------------------------------------


def _lab(compared: _Comparison) -> Iterator[Problem]:
    """Yield what changed in the lab, and add what has to be trusted."""
    header, name = compared.header, compared.options.lab
    path = Path(header.working_folder) / header.lab_path
    if name is None:
        why = _distrust(path, compared) if header.lab_path else "its file is not known"
        if why is not None:
            compared.doubt(header.lab_path or header.lab_name, why)
            return
    now = load_lab(name if name is not None else str(path))
    yield from lab_changes(compared.lab, now)
    if compared.lab.reserve is not None and compared.lab.reserve != now.reserve:
        compared.doubt(shipped.shown_as(Path(now.path)), "it reserves the lab by another command")


# --- what a run would do -------------------------------------------------------------------------


def _acts(experiments: Sequence[Experiment], lab: Lab) -> Iterator[str]:
    """Yield in a line each what a run would start, where, and as whom."""
    me = f"user {os.geteuid()}" if os.geteuid() else "root"
    if lab.reserve is not None:
        yield f"would run on this machine, as {me}: {_shown(lab.reserve.command)}"
    for host in lab.hosts:
        yield f"would start an agent {_where(host, me)}"
    yield from acts_on_receivers(experiments, lab)
    for traffic in (trial.traffic for trial in _trials(experiments)):
        yield f"would send to {_shown([traffic.flows.published or traffic.flows.to])}"
    for host in lab.hosts:
        yield from _set_on(host.name, host.settings)
    for settings in (lab.settings, *(trial.settings for trial in _trials(experiments))):
        for part, block in settings.items():
            yield from _set_on(", ".join(host.name for host in lab.at(part)), block)


def _set_on(hosts: str, settings: Settings) -> Iterator[str]:
    """Yield what settings would change."""
    for each in differences({}, dict(flat(settings))):
        yield f"would set on {hosts}: {each.key}: {_shown([written(each.path, each.after)])}"


def acts_on_receivers(experiments: Sequence[Experiment], lab: Lab) -> Iterator[str]:
    """Yield which commands experiments would run, which logs write, and what they would attach."""
    receivers = ", ".join(host.name for host in lab.receivers)
    for receive in (trial.receive for trial in _trials(experiments)):
        user = receive.user or "you; if that is root, nobody"
        if receive.command is not None:
            command = _shown(receive.command)
            folder = _shown([receive.folder or "~"])
            yield f"would run on {receivers}, as {user}, in {folder}: {command}"
        if receive.log is not None:
            yield f"would write on {receivers}: {_shown([receive.log.path])}.*"
        if receive.steering is not None:
            yield f"would attach on {receivers}: {_shown([receive.steering])}"


def _trials(experiments: Sequence[Experiment]) -> Iterator[Trial]:
    """Yield every point, and those of the texts from which tunes derive others."""
    for experiment in experiments:
        yield from experiment.points
        if experiment.tune is not None:
            with suppress(InputError):  # then nothing can be derived from it
                yield from experiment_of(experiment).points


def _where(host: Node, me: str) -> str:
    connect = host.connect
    if connect.by == "namespace":
        return f"in a namespace of this machine, as {me}"
    if connect.by in ("netns", "container"):
        return f"in {connect.by} {_shown([connect.name or ''])} of this machine, as {me}"
    place = f"on this machine, as {me}" if connect.by == "local" else f"by SSH on {connect.ssh}"
    root = ", as root by sudo" if connect.become is not None else ""
    python = f", by {_shown([connect.python])}" if connect.python is not None else ""
    return f"{place}{root}{python}"


def _shown(words: Sequence[str]) -> str:
    """Return words as typed in a shell, on one line."""
    return printable(shlex.join(words), keep="")
