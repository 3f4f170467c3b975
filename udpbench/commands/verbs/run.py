"""The verb ``run``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.compare import print_comparisons, read_side
from udpbench.commands.verbs.options import (
    AllowRead,
    Everything,
    NoDeploy,
    OptionalLab,
    OptionalNames,
    Reported,
    Sets,
    Trust,
    Wheels,
)
from udpbench.commands.verbs.output import (
    RESULTS,
    open_console,
    own_version,
    print_answers,
    print_chapters,
    print_remaining,
    print_run,
    reader_may_leave,
    say,
    try_report,
)
from udpbench.commands.verbs.reach import parse_lease, reach_hosts, real_path
from udpbench.errors import InputError, Problem, RecordError, worst_code
from udpbench.folder import Folder, path_writers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from udpbench.commands.resume import ResumedRun, ResumeOptions
    from udpbench.control.run import Outcome, RunOptions
    from udpbench.model.experiment import Experiment
    from udpbench.model.lab import Lab
    from udpbench.model.record import TrialRecord
    from udpbench.records.run import Run, RunHeader
    from udpbench.records.writer import RunWriter


def run(
    names: OptionalNames = None,
    lab: OptionalLab = None,
    out: Annotated[Path | None, typer.Option(help="run folder to create")] = None,
    sets: Sets = None,
    lease: Annotated[
        str, typer.Option(help="hosts restore themselves after this long without contact")
    ] = "10s",
    seed: Annotated[int | None, typer.Option(help="seed for the trial order")] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="keep the files of receive.log on the hosts")
    ] = False,
    report: Reported = True,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="print only the result, and which run is waited for"),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="fail if another run uses a host")
    ] = False,
    share: Annotated[
        bool, typer.Option("--share", help="run alongside other runs; every trial gets a finding")
    ] = False,
    cpu_time: Annotated[
        bool,
        typer.Option("--cpu-time", help="sample the CPUs; the same as --set cpu_time=true"),
    ] = False,
    everything: Everything = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="resume the run in this folder")
    ] = None,
    trust: Trust = False,
    same: Annotated[
        str | None,
        typer.Option(
            metavar="POINT",
            help="compare one point with itself: how small a difference shows here?",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="compare with this stored run at the end; repeatable"),
    ] = None,
    allow_read: AllowRead = None,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Run experiments; print results and ledger, write the report."""
    lease_ns = parse_lease(lease)
    launch_early(lab, resume)
    from udpbench.commands.resume import ResumeOptions
    from udpbench.definition.point_pairs import against_itself
    from udpbench.judged_run import code_of_run
    from udpbench.records.run import new_header

    base = read_side(against)
    sets = [*(sets or ()), *(["cpu_time=true"] if cpu_time else ())]

    def header_of(experiments: list[Experiment], lab: Lab) -> RunHeader:
        experiments = against_itself(experiments, same)
        _refuse_base(base, experiments, lab)
        return new_header(experiments, lab, typed_command(), sets, seed, same)

    def code_of(stored: Run) -> int:
        return _compared(stored, base, code_of_run(stored))

    given = ResumeOptions(names or (), lab, sets, seed, allow_read or (), trust)
    begun = begin_or_resume(resume, out, given, header_of, code_of, everything)
    from udpbench.control.lab_lock import Terms
    from udpbench.control.run import RunOptions
    from udpbench.proven_kernels import kept

    step = "omit --no-wait to wait for it" + ("" if share else ", or run alongside it with --share")
    terms = Terms("shared" if share else "alone", 0 if no_wait else None, step)
    options = RunOptions(begun.header.seed, lease_ns, keep_logs, terms, kept)
    stored, outcome = run_on_lab(begun, options, quiet, no_deploy, wheels)
    code = finish_run(stored, begun.lab, outcome, report, everything, base)
    raise typer.Exit(_compared(stored, base, code))


@dataclass(frozen=True)
class Begun:
    """A run that is to continue: what its folder says, and its writer, which holds the folder."""

    header: RunHeader
    records: Sequence[TrialRecord]
    """Those of earlier sessions."""
    lab: Lab
    writer: RunWriter


def launch_early(lab: str | None, resume: Path | None) -> None:
    """Start Python for the agents of the built-in lab, while this one imports the rest."""
    if lab is None and resume is None:
        from udpbench.control.connections.forks import launch

        launch()


def begin_or_resume(
    resume: Path | None,
    out: Path | None,
    given: ResumeOptions,
    header_of: Callable[[list[Experiment], Lab], RunHeader],
    code_of: Callable[[Run], int],
    everything: bool = False,
) -> Begun:
    """Return a new run in a folder of its own, or the one to resume.

    A complete one is printed, and the verb ends with what ``code_of`` returns of it.
    """
    from udpbench.records.folders import new_folder
    from udpbench.records.writer import RunWriter

    if resume is not None:
        resumed = _resume_run(resume, out, given)
        if resumed.complete:
            resumed.writer.close()
            with reader_may_leave():
                print_run(resumed.run, everything)
            raise typer.Exit(code_of(resumed.run))
        resumed.begin_session(typed_command())
        return Begun(resumed.run.header, resumed.run.records, resumed.lab, resumed.writer)
    if not given.names:
        verb, names, limit = ("tune", "X", "one") if given.tune else ("run", "X...", "at least one")
        step = f"name an experiment, or resume a {verb} with --resume"
        raise InputError([Problem("missing", names, None, limit, step)])
    lab_name = given.lab or "local"
    experiments, lab = load_definitions(given.names, lab_name, given.sets, given.allow_read)
    if given.trust:
        raise InputError([Problem("needs --resume", "--trust", next_step="omit it")])
    header = header_of(experiments, lab)
    name = ("tune-" if given.tune else "") + header.experiments[0].name
    return Begun(header, (), lab, RunWriter.create(out or new_folder(RESULTS, name), header))


def run_on_lab(
    begun: Begun,
    options: RunOptions,
    quiet: bool,
    no_deploy: bool,
    wheels: Path | None,
) -> tuple[Run, Outcome]:
    """Run the remaining trials of a run with a live view; return the run as stored."""
    from udpbench.control.connections.forks import launch

    header, lab, writer = begun.header, begun.lab, begun.writer
    if lab.built_in:
        launch()
    from udpbench.campaign.reservation import reserved
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.run import run as run_trials
    from udpbench.control.schedule import remaining
    from udpbench.model.result import Progress
    from udpbench.report.live import live_view

    held = writer.hold()  # another run may take its place meanwhile
    trials = remaining(header.experiments, header.seed, begun.records)
    with held, live_view(sys.stdout, trials, quiet) as tell:

        def say(host: str, text: str) -> None:
            tell(Progress("host", f"{host}: {text}"))

        around = Surroundings(reach_hosts(lab, no_deploy, wheels, say))
        with reserved(lab, tell, around.interrupt, around.clock):
            outcome = run_trials(
                header.experiments, lab, writer, tell, options, around, stored=begun.records
            )
        return _read_back(held, outcome), outcome


def typed_command() -> tuple[str, ...]:
    """Return the command as it was typed."""
    return ("udpbench", *sys.argv[1:])


def _resume_run(folder: Path, out: Path | None, options: ResumeOptions) -> ResumedRun:
    """Return the run to resume, after printing how much of it is stored."""
    from udpbench.commands.resume import reopen_run

    if out is not None and real_path(out) != real_path(folder):
        what = "a run is resumed in its own folder"
        raise InputError([Problem(what, "--out", str(out), f"{folder}", "omit --out")])
    resumed = reopen_run(folder, options)
    for line in (*resumed.notes, resumed.summary(own_version())):
        say(line)
    return resumed


def _read_back(held: Folder, outcome: Outcome) -> Run:
    """Return the run that has just ended; if its folder is gone, print why and exit.

    An unrestored host is more serious, and is printed first.
    """
    from udpbench.records.reader import read_run

    try:
        return read_run(held.path, held.fd, later=True)
    except RecordError:
        if outcome.error is None and not outcome.restore_errors:
            raise
        for line in _error_lines(outcome):
            say(line, sys.stderr)
        raise typer.Exit(outcome.exit_code) from None


def _error_lines(outcome: Outcome) -> list[str]:
    """Return the errors of a run whose folder does not hold them, the most serious first."""
    ended = [str(outcome.error)] if outcome.error is not None else []
    return [*(f"not restored: {error}" for error in outcome.restore_errors), *ended]


def finish_run(
    stored: Run,
    lab: Lab,
    outcome: Outcome,
    report: bool,
    everything: bool,
    base: Sequence[Run] = (),
) -> int:
    """Print the result of a run that has just ended, and return its exit code."""
    from udpbench.judged_run import code_of_run
    from udpbench.report.selftest import untried
    from udpbench.report.summary import ended

    code = code_of_run(stored, outcome.exit_code)
    with reader_may_leave():
        print_chapters(stored, everything)
        _print_worst(stored, lab)
        if (hint := untried(stored.records, quote(lab.path))) is not None:
            say(hint)
        print_answers(stored)
    for line in ended(stored) if stored.ending is not None else _error_lines(outcome):
        say(line, sys.stderr)
    with reader_may_leave():
        if stored.records and report:
            code = try_report(stored, code, base)
        say(f"run folder: {stored.folder}")
        for how in path_writers(stored.folder.absolute()):
            say(f"others may put another in its place: {how}")
        print_remaining(stored)
    return code


def _refuse_base(base: Sequence[Run], experiments: Sequence[Experiment], lab: Lab) -> None:
    """Raise InputError if a run, before it begins, could not be compared with its base."""
    from udpbench.commands.compare import Choice, refusals

    problems = [
        problem for each in base for problem in refusals(each, experiments, lab.built_in, Choice())
    ]
    if problems:
        raise InputError(problems)


def _compared(stored: Run, base: Sequence[Run], code: int) -> int:
    """Print the comparison of a run with its base, if it has one; return the exit code of both."""
    from udpbench.commands.compare import Choice, compare_runs

    if not base or not stored.records:
        return code
    comparison = compare_runs(base, [stored], Choice())
    with reader_may_leave():
        print_comparisons(comparison)
    return worst_code([code, comparison.exit_code])


def _print_worst(stored: Run, lab: Lab) -> None:
    """Print the most serious readiness findings about the run's hosts."""
    from shlex import quote

    from udpbench.analysis.doctor import most_distorting
    from udpbench.report.doctor import print_worst
    from udpbench.report.summary import hosts_of

    command = "udpbench doctor" if lab.built_in else f"udpbench doctor --lab {quote(lab.path)}"
    print_worst(open_console(), most_distorting(hosts_of(stored.records).values(), lab), command)


def load_definitions(
    names: Sequence[str],
    lab: str,
    sets: Sequence[str] | None,
    allow_read: Sequence[Path] | None = None,
) -> tuple[list[Experiment], Lab]:
    """Return experiments and lab; raises InputError with the problems of both."""
    from udpbench.definition.lab_rules import refuse_together
    from udpbench.definition.load import load_experiments, load_lab

    problems: list[Problem] = []
    experiments: list[Experiment] = []
    loaded = None
    try:
        experiments = load_experiments(names, sets or (), allow_read or ())
    except InputError as error:
        problems += error.problems
    try:
        loaded = load_lab(lab)
    except InputError as error:
        problems += error.problems
    if problems or loaded is None:
        raise InputError(problems)
    refuse_together(experiments, loaded)
    return experiments, loaded
