"""The verbs of the command line: parsing and printing only.

Every import that costs time is inside a verb, so that ``udpbench --help`` answers at once. Errors
are raised; ``__main__`` prints them.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from udpbench.errors import (
    NO,
    YES,
    HostError,
    InputError,
    Problem,
    RecordError,
    UdpbenchError,
    in_words,
    worst,
)
from udpbench.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from udpbench.analysis.watch import LiveHost
    from udpbench.campaign.cells import CampaignFolder, Cell
    from udpbench.commands.compare import Choice, RunComparison
    from udpbench.commands.resume import ResumedRun, ResumeOptions
    from udpbench.control.agents import Reach
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.control.plan import Rehearsed
    from udpbench.control.run import Outcome, RunOptions
    from udpbench.model import Experiment, Lab, SelfTest, TrialRecord
    from udpbench.records import Run, RunHeader, RunWriter

RESULTS = Path("results")
"""The folder of run folders, in the working directory."""

app = typer.Typer(
    help="How many UDP packets per second can this host receive, and where are the rest lost?",
    rich_markup_mode=None,
    add_completion=False,
)

NAMES_HELP = "files, folders or shipped experiments"
NAME_HELP = "an experiment; if it has several points, name one with --point"
LAB_HELP = "a lab file or a shipped lab"
Names = Annotated[list[str], typer.Argument(metavar="X...", help=NAMES_HELP)]
LabName = Annotated[str, typer.Option("--lab", help=LAB_HELP)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="override a key of every experiment"),
]
AllowRead = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-read",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="let definitions name files in this folder, too; repeatable",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="with --resume: run what only the run folder says"),
]
Everything = Annotated[
    bool, typer.Option("--all", help="show every stage of the ledger, and every note")
]
NoDeploy = Annotated[
    bool, typer.Option("--no-deploy", help="do not install the agent; fail where it is missing")
]
Wheels = Annotated[
    Path | None,
    typer.Option(
        "--wheels",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="take the agent's packages from this folder, not from pip",
    ),
]
RunFolder = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="a run folder (default: the last run)")
]


def _print_version(requested: bool) -> None:
    if requested:
        print(f"udpbench {_version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Options before the verb."""


@app.command()
def init(
    left: Annotated[
        str | None, typer.Argument(metavar="LEFT", help="the sender: [user@]host[:port], or local")
    ] = None,
    right: Annotated[
        str | None, typer.Argument(metavar="RIGHT", help="the receiver, in the same form")
    ] = None,
    left_interface: Annotated[str | None, typer.Option(help="interface of the sender")] = None,
    right_interface: Annotated[str | None, typer.Option(help="interface of the receiver")] = None,
    addresses: Annotated[
        str | None, typer.Option(help="a network for both hosts' addresses, or existing")
    ] = None,
    left_cpus: Annotated[str | None, typer.Option(help="CPUs of the sender")] = None,
    right_cpus: Annotated[str | None, typer.Option(help="CPUs of the receiver")] = None,
    become: Annotated[str | None, typer.Option(help="sudo: become root with sudo")] = None,
    python: Annotated[str | None, typer.Option(help="the hosts' Python")] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="prove links with ARP requests, one at a time")
    ] = False,
    out: Annotated[Path, typer.Option(help="lab file to write")] = Path("lab.yaml"),
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="write the experiment NAME.yaml")
    ] = None,
    wheels: Wheels = None,
) -> None:
    """Write a lab file for two hosts, or an experiment to start from."""
    from udpbench.commands import init as files
    from udpbench.control.agents import real
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.control.lab_lock import Surroundings

    if experiment is not None:
        _say(f"experiment: {files.write_experiment(experiment)}")
    if left is None or right is None:
        if experiment is not None and left is None:
            return
        step = "name two SSH destinations, or write an experiment with --experiment NAME"
        if left is not None:
            step = "name RIGHT: an SSH destination, or local"
        given = [("LEFT", left), ("RIGHT", right)]
        missing = [Problem("missing", name, None, "", step) for name, to in given if to is None]
        raise InputError(missing)
    interfaces, cpus = (left_interface, right_interface), (left_cpus, right_cpus)
    options = files.InitOptions(
        left, right, interfaces, addresses, cpus, become, python, probe, out
    )
    around = Surroundings(real(Deployer(_say_of_host, wheels)))
    path = files.write_lab(options, _Prompts() if sys.stdin.isatty() else None, _say, around)
    _say(f"lab: {path}; next: udpbench doctor --lab {quote(str(path))}")


@app.command()
def deploy(
    lab: LabName,
    remove: Annotated[
        bool, typer.Option("--remove", help="remove every build of the agent")
    ] = False,
    wheels: Wheels = None,
) -> None:
    """Bring the agent to a lab's hosts, or remove it."""
    from udpbench.control.deployment import deploy as deployment
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.definition.load import load_lab

    chosen_lab = load_lab(lab)
    hosts = ", ".join(host.name for host in deployment.deployed_hosts(chosen_lab))
    if not hosts:
        limit = "hosts with connect: {ssh: …} and without python need one"
        raise InputError([Problem("no host of this lab needs an agent", "--lab", lab, limit)])
    deployer = Deployer(_say_of_host, wheels)
    if not remove:
        deployment.deploy(chosen_lab, deployer)
        _say(f"deployed: {hosts}")
    elif not deployment.remove(chosen_lab, deployer):
        raise HostError(
            "some files remain; run the same command again once they are no longer in use"
        )


@app.command()
def plan(
    names: Names,
    lab: LabName = "local",
    sets: Sets = None,
    allow_read: AllowRead = None,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Show what would run, be skipped, and change on the hosts."""
    experiments, chosen_lab = _load_definitions(names, lab, sets, allow_read)
    from udpbench.commands.resume import acts_on_receivers
    from udpbench.control.plan import rehearse
    from udpbench.report.plan import print_rehearsal, print_skips, print_trials

    console = _console()
    print_trials(console, experiments, chosen_lab.built_in)
    for act in dict.fromkeys(acts_on_receivers(experiments, chosen_lab)):
        console.print(act, markup=False, highlight=False)
    rehearsals: Sequence[Rehearsed] = rehearse(
        experiments, chosen_lab, _reach(chosen_lab, no_deploy, wheels)
    )
    print_rehearsal(console, [rehearsal for rehearsal in rehearsals if rehearsal.trials])
    print_skips(
        console, {name: why for rehearsal in rehearsals for name, why in rehearsal.skipped.items()}
    )


@app.command()
def doctor(
    lab: LabName = "local",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """List what would distort a measurement on the hosts.

    Changes nothing there except that it installs the agent (not with --no-deploy).
    """
    import json

    from udpbench.analysis.doctor import assess
    from udpbench.control.doctor import examine
    from udpbench.control.lab_lock import Surroundings
    from udpbench.definition.load import load_lab
    from udpbench.report.doctor import is_ready, print_readiness, readiness_json

    chosen_lab = load_lab(lab)
    around = Surroundings(_observers(chosen_lab, no_deploy, wheels, "firewall"))
    results = assess(examine(chosen_lab, around), chosen_lab)
    with _reader_may_leave():
        if as_json:
            print(json.dumps(readiness_json(results, chosen_lab), indent=2, allow_nan=False))
        else:
            print_readiness(_console(), results)
    raise typer.Exit(YES if is_ready(results) else NO)


@app.command()
def facts(
    lab: LabName = "local",
    out: Annotated[Path, typer.Option(help="file to write")] = Path("facts.json"),
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Write what the hosts report about themselves to an anonymized file, for a bug report."""
    from udpbench.commands.recorded_hosts import write_recorded
    from udpbench.control.lab_lock import Surroundings
    from udpbench.definition.load import load_lab

    chosen_lab = load_lab(lab)
    around = Surroundings(_observers(chosen_lab, no_deploy, wheels, "firewall"))
    path = write_recorded(chosen_lab, out, around, _version())
    _say(f"recorded: {path}; names and addresses are replaced; read it before you send it")


@app.command()
def selftest(
    lab: LabName = "local",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Test the ledger on each kernel of a lab: lose packets on purpose at each stage."""
    import json

    from udpbench.analysis.ledger.selftest import exit_code
    from udpbench.commands.selftest import THIS_MACHINE, try_hosts
    from udpbench.definition.load import load_lab
    from udpbench.report.live import tell_wait
    from udpbench.report.selftest import failure_json, print_selftest, selftest_json

    chosen_lab = load_lab(lab)
    by_host, proven, codes = {}, [], []
    deployer = _deployer(chosen_lab, no_deploy, wheels)
    for host, tried in try_hosts(chosen_lab, tell_wait, deployer):
        name = "" if host == THIS_MACHINE else host
        if isinstance(tried, UdpbenchError):
            by_host[host] = failure_json(tried)
            codes.append(tried.exit_code)
            named = not name or str(tried).startswith(f"{name}: ")
            _say(tried if named else f"{name}: {tried}", sys.stderr)
            continue
        by_host[host] = selftest_json(tried)
        codes.append(exit_code(tried))
        if as_json:
            proven.append(tried)
            continue
        with _reader_may_leave():
            print_selftest(_console(), tried, name)
        _keep_proof(tried)
    if as_json:
        shown = by_host.get(THIS_MACHINE) if set(by_host) == {THIS_MACHINE} else by_host
        with _reader_may_leave():
            print(json.dumps(shown, indent=2, allow_nan=False))
        for tried in proven:
            _keep_proof(tried)
    raise typer.Exit(worst(codes))


def _keep_proof(tried: SelfTest) -> None:
    """Keep a complete result for later runs, and say where, or why not."""
    from udpbench.proven_kernels import keep
    from udpbench.report.selftest import not_kept

    why_not = not_kept(tried)
    _say(why_not if why_not is not None else f"kept for later runs: {keep(tried)}", sys.stderr)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="X...", help=NAMES_HELP)] = None,
    lab: Annotated[str | None, typer.Option("--lab", help=f"{LAB_HELP}  [default: local]")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder to create")] = None,
    sets: Sets = None,
    lease: Annotated[
        str, typer.Option(help="hosts restore themselves after this long without contact")
    ] = "10s",
    seed: Annotated[int | None, typer.Option(help="seed for the trial order")] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="keep the files of receive.log on the hosts")
    ] = False,
    report: Annotated[bool, typer.Option(help="write the report (takes seconds)")] = True,
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
    lease_ns = _parse_lease(lease)
    from udpbench.commands.resume import ResumeOptions
    from udpbench.definition.same_point import against_itself
    from udpbench.judged_run import code_of_run
    from udpbench.records import RunWriter, new_folder, new_header

    base = _read_side(against)
    if resume is not None:
        given = ResumeOptions(names or (), lab, sets or (), seed, allow_read or (), trust)
        resumed = _resume(resume, out, given)
        if resumed.complete:
            resumed.writer.close()
            with _reader_may_leave():
                _print_run(resumed.run, everything)
            raise typer.Exit(_compared(resumed.run, base, code_of_run(resumed.run)))
        resumed.begin_session(_command())
        header, records = resumed.run.header, resumed.run.records
        chosen_lab, writer = resumed.lab, resumed.writer
    else:
        if not names:
            step = "name an experiment, or resume a run with --resume"
            raise InputError([Problem("missing", "X...", None, "at least one", step)])
        experiments, chosen_lab = _load_definitions(names, lab or "local", sets, allow_read)
        _refuse_trust(trust)
        experiments = against_itself(experiments, same)
        _refuse_base(base, experiments, chosen_lab)
        header = new_header(experiments, chosen_lab, _command(), sets or (), seed, same)
        records = ()
        writer = RunWriter.create(out or new_folder(RESULTS, experiments[0].name), header)
    from udpbench.control.lab_lock import Terms
    from udpbench.control.run import RunOptions
    from udpbench.proven_kernels import kept

    step = "omit --no-wait to wait for it" + ("" if share else ", or run alongside it with --share")
    terms = Terms("shared" if share else "alone", 0 if no_wait else None, step)
    options = RunOptions(header.seed, lease_ns, keep_logs, terms, kept)
    begun = header, records, chosen_lab, writer
    stored, outcome = _measure(begun, options, quiet, no_deploy, wheels)
    code = _finish(stored, chosen_lab, outcome, report, everything)
    raise typer.Exit(_compared(stored, base, code))


def _measure(
    begun: tuple[RunHeader, Sequence[TrialRecord], Lab, RunWriter],
    options: RunOptions,
    quiet: bool,
    no_deploy: bool,
    wheels: Path | None,
) -> tuple[Run, Outcome]:
    """Run the remaining trials of a run with a live view; return the run as stored."""
    from udpbench.campaign.reservation import reserved
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.run import run as run_trials
    from udpbench.control.schedule import remaining
    from udpbench.model import Progress
    from udpbench.report.live import live_view

    header, records, lab, writer = begun
    trials = remaining(header.experiments, header.seed, records)
    with live_view(sys.stdout, trials, quiet) as tell:

        def say(host: str, text: str) -> None:
            tell(Progress("host", f"{host}: {text}"))

        around = Surroundings(_reach(lab, no_deploy, wheels, say))
        with reserved(lab, tell, around.interrupt, around.clock):
            outcome = run_trials(
                header.experiments, lab, writer, tell, options, around, stored=records
            )
    return _read_back(writer.folder, outcome), outcome


@app.command()
def tune(
    name: Annotated[str | None, typer.Argument(metavar="X", help=NAME_HELP)] = None,
    lab: Annotated[str | None, typer.Option("--lab", help=f"{LAB_HELP}  [default: local]")] = None,
    point: Annotated[
        str | None, typer.Option(metavar="NAME", help="the point to tune, if there are several")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--for", metavar="METRIC", help="the metric to improve")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help="change only: application, host, machine; repeatable"),
    ] = None,
    never: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="never change this key, such as irq; repeatable"),
    ] = None,
    within: Annotated[str, typer.Option(metavar="TIME", help="time for the trials")] = "15min",
    out: Annotated[Path | None, typer.Option(help="run folder to create")] = None,
    sets: Sets = None,
    seed: Annotated[int | None, typer.Option(help="seed for the trial order")] = None,
    report: Annotated[bool, typer.Option(help="write the report (takes seconds)")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the result")] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="fail if another run uses a host")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="resume the tune in this folder")
    ] = None,
    trust: Trust = False,
    allow_read: AllowRead = None,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Try what the diagnosis recommends; keep, and print, what is proven to help."""
    from udpbench.commands.resume import ResumeOptions
    from udpbench.control.lab_lock import Terms
    from udpbench.control.run import RunOptions
    from udpbench.judged_run import code_of_run
    from udpbench.proven_kernels import kept
    from udpbench.records import RunWriter, new_folder, new_header
    from udpbench.tuning.derived_points import asked, tuned

    if resume is not None:
        names = [name] if name is not None else ()
        given = ResumeOptions(names, lab, sets or (), seed, allow_read or (), trust, tune=True)
        resumed = _resume(resume, out, given)
        if resumed.complete:
            resumed.writer.close()
            with _reader_may_leave():
                _print_run(resumed.run, everything=False)
            raise typer.Exit(code_of_run(resumed.run))
        resumed.begin_session(_command())
        header, records = resumed.run.header, resumed.run.records
        chosen_lab, writer = resumed.lab, resumed.writer
    else:
        within_ns = _parse_within(within)
        if name is None:
            step = "name an experiment, or resume a tune with --resume"
            raise InputError([Problem("missing", "X", None, "one", step)])
        experiments, chosen_lab = _load_definitions([name], lab or "local", sets, allow_read)
        _refuse_trust(trust)
        tune = asked(experiments, point, metric, within_ns, only or (), never or ())
        header = new_header(tuned(experiments, tune), chosen_lab, _command(), sets or (), seed)
        records = ()
        folder = out or new_folder(RESULTS, f"tune-{experiments[0].name}")
        writer = RunWriter.create(folder, header)
    terms = Terms("alone", 0 if no_wait else None, "omit --no-wait to wait for it")
    begun = header, records, chosen_lab, writer
    options = RunOptions(header.seed, terms=terms, proven=kept)
    stored, outcome = _measure(begun, options, quiet, no_deploy, wheels)
    raise typer.Exit(_finish(stored, chosen_lab, outcome, report, everything=False))


def _parse_within(text: str) -> int:
    from udpbench.model import DAY_NS, SECOND_NS
    from udpbench.units import parse_duration

    try:
        within_ns = parse_duration(text)
    except ValueError as error:
        raise InputError([Problem(str(error), "--within", text)]) from error
    if not 10 * SECOND_NS <= within_ns <= DAY_NS:
        raise InputError([Problem("out of range", "--within", text, "10s to a day")])
    return within_ns


def _command() -> tuple[str, ...]:
    return ("udpbench", *sys.argv[1:])


def _resume(folder: Path, out: Path | None, options: ResumeOptions) -> ResumedRun:
    """Return the run to resume, after printing how much of it is stored."""
    from udpbench.commands.resume import reopen_run

    if out is not None and _real(out) != _real(folder):
        what = "a run is resumed in its own folder"
        raise InputError([Problem(what, "--out", str(out), f"{folder}", "omit --out")])
    resumed = reopen_run(folder, options)
    for line in (*resumed.notes, resumed.summary(_version())):
        _say(line)
    return resumed


def _read_back(folder: Path, outcome: Outcome) -> Run:
    """Return the run that has just ended; if its folder is gone, print why and exit.

    An unrestored host is more serious, and is printed first.
    """
    from udpbench.records import read_run

    try:
        return read_run(folder)
    except RecordError:
        if outcome.error is None and not outcome.restore_errors:
            raise
        for line in _error_lines(outcome):
            _say(line, sys.stderr)
        raise typer.Exit(outcome.exit_code) from None


def _error_lines(outcome: Outcome) -> list[str]:
    """Return the errors of a run whose folder does not hold them, the most serious first."""
    ended = [str(outcome.error)] if outcome.error is not None else []
    return [*(f"not restored: {error}" for error in outcome.restore_errors), *ended]


def _finish(stored: Run, lab: Lab, outcome: Outcome, report: bool, everything: bool) -> int:
    """Print the result of a run that has just ended, and return its exit code."""
    from udpbench.judged_run import code_of_run
    from udpbench.report.selftest import untried
    from udpbench.report.summary import ended

    code = code_of_run(stored, outcome.exit_code)
    with _reader_may_leave():
        _print_chapters(stored, everything)
        _print_worst(stored, lab)
    for line in ended(stored) if stored.ending is not None else _error_lines(outcome):
        _say(line, sys.stderr)
    with _reader_may_leave():
        if stored.records and report:
            code = _try_report(stored, code)
        _say(f"run folder: {stored.folder}")
        _print_remaining(stored)
        if (hint := untried(stored.records, quote(lab.path))) is not None:
            _say(hint)
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
    with _reader_may_leave():
        _print_comparisons(comparison)
    return worst([code, comparison.exit_code])


def _print_worst(stored: Run, lab: Lab) -> None:
    """Print the most serious readiness findings about the run's hosts."""
    from shlex import quote

    from udpbench.analysis.doctor import worst
    from udpbench.report.doctor import print_worst
    from udpbench.report.summary import hosts_of

    command = "udpbench doctor" if lab.built_in else f"udpbench doctor --lab {quote(lab.path)}"
    print_worst(_console(), worst(hosts_of(stored.records).values(), lab), command)


def _try_report(stored: Run, code: int) -> int:
    """Write the report of a run; return its exit code, or 3 in place of 0 if that failed."""
    try:
        _write_report([stored], stored.folder)
    except OSError as error:
        _say(f"no report: {in_words(error)}", sys.stderr)
        return code or UdpbenchError.exit_code
    return code


@app.command()
def show(
    run: RunFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    everything: Everything = False,
) -> None:
    """Print the result of a stored run; exit with its code."""
    import json

    from udpbench.judged_run import code_of_run

    stored = _read_stored(run)
    code = code_of_run(stored)
    with _reader_may_leave():
        if as_json:
            from udpbench.report.json_output import as_json as to_json

            print(json.dumps(to_json(stored), indent=2, allow_nan=False))
        else:
            _print_run(stored, everything)
            _print_remaining(stored)
    raise typer.Exit(code)


@app.command()
def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="a run (default: the last); or a base and a run"),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="the base run for all RUNs; repeatable"),
    ] = None,
    a: Annotated[
        str | None, typer.Option(metavar="POINT", help="the base point of one run")
    ] = None,
    b: Annotated[
        str | None, typer.Option(metavar="POINT", help="the point to compare with the base")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="the metric to compare")] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="RATIO", help="a change too small to matter, such as 3%")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
) -> None:
    """Compare points of a run, or runs point by point; exit with 1 if any is worse."""
    import json

    from udpbench.commands.compare import compare_runs, compare_within
    from udpbench.report.json_output import comparisons_json

    base, named = _sides(runs or [], against or [])
    choice = _choice((a, b), metric, margin, bool(base))
    if base:
        comparison = compare_runs(
            _read_side(base), _read_side(named) or [_read_stored(None)], choice
        )
    else:
        comparison = compare_within(_read_stored(named[0] if named else None), choice)
    with _reader_may_leave():
        if as_json:
            data = comparisons_json(comparison.comparisons, comparison.runs, comparison.notes)
            print(json.dumps(data, indent=2))
        else:
            _print_comparisons(comparison)
    raise typer.Exit(comparison.exit_code)


@app.command()
def history(
    store: Annotated[str, typer.Argument(metavar="DIR", help="a store: a folder, or s3://…")],
    point: Annotated[str | None, typer.Option(help="only one point")] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="the metric (default: throughput_pps of a search, else delivered_pps)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
) -> None:
    """Print each point's medians by day and pair, and the days on which its level changed."""
    import json

    from udpbench.report.campaign.history_output import history_json, print_histories
    from udpbench.store.dataset import read_runs
    from udpbench.store.history import histories

    _refuse_metric(metric)
    changed = histories(read_runs(store, point=point), metric)
    with _reader_may_leave():
        if as_json:
            print(json.dumps(history_json(store, changed), indent=2, allow_nan=False))
        else:
            print_histories(_console(), changed)


@app.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="run folders (default: the last run), or a store"),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="html, pdf, png, csv, parquet; comma-separated")
    ] = "html,pdf,png",
    out: Annotated[
        Path | None, typer.Option(help="folder to write to (default: the run's)")
    ] = None,
) -> None:
    """Write the report of stored runs, or their data as files; for a store, its campaign's."""
    if len(runs or ()) == 1 and _report_store((runs or [""])[0], out):
        return
    folders = {_real(folder): Path(folder) for folder in runs or ()}.values()
    stored = [_read_stored(folder) for folder in folders or (None,)]
    if out is None and len(stored) > 1:
        raise InputError([Problem("missing", "--out", None, f"one folder for {len(stored)} runs")])
    folder = out if out is not None else stored[0].folder
    _write_report(stored, folder, form.split(","), named=out is not None)


def _refuse_metric(metric: str | None) -> None:
    from udpbench.definition.problems import did_you_mean
    from udpbench.metrics import METRICS

    if metric is not None and metric not in METRICS:
        step = did_you_mean(metric, METRICS)
        raise InputError([Problem("unknown metric", "--metric", metric, next_step=step)])


def _report_store(path: str, out: Path | None) -> bool:
    """Write the page of a store; return whether the path was a store."""
    from udpbench.store.dataset import is_store

    if not is_store(path):
        return False
    from udpbench.report.campaign.campaign_page import write_campaign

    if out is None and "://" in path:
        raise InputError([Problem("missing", "--out", None, "a folder for the page")])
    page = write_campaign(path, out if out is not None else Path(path), out is not None)
    _say(f"report: {page}")
    return True


def spread(words: Sequence[str], option: str) -> list[str]:
    """Return a command line with an option before each of its values: a shell expands patterns."""
    spread_words: list[str] = []
    within = False
    for word in words:
        if within and not word.startswith("-") and spread_words[-1] != option:
            spread_words.append(option)
        within = word == option or (within and not word.startswith("-"))
        spread_words.append(word)
    return spread_words


class _ManyLabs(TyperCommand):
    """A verb whose ``--labs`` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, "--labs"))


@app.command(cls=_ManyLabs)
def campaign(
    names: Names,
    labs: Annotated[
        list[str], typer.Option("--labs", metavar="LAB...", help="lab files: the pairs of hosts")
    ],
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="a Dask scheduler (default: workers in this process)"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="folder of all runs")] = None,
    sets: Sets = None,
    allow_read: AllowRead = None,
    share: Annotated[
        bool, typer.Option("--share", help="run alongside other runs; every trial gets a finding")
    ] = False,
    store: Annotated[
        str | None, typer.Option(metavar="PATH", help="put the runs into this store at the end")
    ] = None,
) -> None:
    """Run experiments on many pairs of hosts in parallel; the same command continues it."""
    from udpbench.campaign.campaign_view import campaign_view, summary
    from udpbench.campaign.cells import CampaignFolder, cells_of, load_labs
    from udpbench.campaign.conduct import conduct
    from udpbench.campaign.engines import open_engine
    from udpbench.control.wait import Interrupt
    from udpbench.definition.load import load_experiments

    cells = cells_of(load_experiments(names, sets or (), allow_read or ()), load_labs(labs))
    interrupt = Interrupt()
    pairs = len({cell.pair for cell in cells})
    with (
        interrupt.caught(),
        open_engine(scheduler, pairs, lambda text: _say(text, sys.stderr)) as engine,
        CampaignFolder.open(out or RESULTS / "campaign") as folder,
        campaign_view(sys.stdout) as tell,
    ):
        states = conduct(cells, folder, engine, tell, interrupt, share)
    with _reader_may_leave():
        for line in summary(states):
            _say(line)
        _say(f"run folders: {folder.path}")
    if store is not None:
        _store_campaign(cells, folder, store)
    raise typer.Exit(worst(state.exit_code for state in states))


def _store_campaign(cells: Sequence[Cell], folder: CampaignFolder, store: str) -> None:
    """Put all complete runs of a campaign into a store; a run replaces its earlier copy."""
    from udpbench.campaign.cells import pairs_of
    from udpbench.store.dataset import write_runs

    for pair, own in pairs_of(cells).items():
        runs = [folder.path / cell.folder for cell in own if folder.result_of(cell) is not None]
        write_runs(runs, store, campaign=folder.path.name, pair=pair)
    with _reader_may_leave():
        _say(f"store: {store}")


@app.command()
def restore(
    lab: LabName = "local",
    force: Annotated[
        bool, typer.Option("--force", help="also overwrite what others have changed since")
    ] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Undo the changes that a killed run left on the hosts."""
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.run import restore_lab
    from udpbench.definition.load import load_lab
    from udpbench.report.live import tell_wait
    from udpbench.setting_kinds import show_values

    chosen_lab = load_lab(lab)
    around = Surroundings(_reach(chosen_lab, no_deploy, wheels))
    restored = restore_lab(chosen_lab, force, around, tell_wait)
    for host, changes in restored.undone.items():
        for change in changes:
            setting = change.setting
            values = " → ".join(show_values(setting.kind, change.before, change.after))
            _say(f"{host}: {setting.kind} {setting.target}: {values}")
    for note in restored.unseen:
        _say(note)
    if not any(restored.undone.values()):
        print(f"nothing {'of this user ' if restored.unseen else ''}was left behind")


@app.command()
def watch(
    host: Annotated[
        str | None, typer.Argument(metavar="[HOST]", help="[user@]host[:port] (default: this one)")
    ] = None,
    lab: Annotated[
        str | None, typer.Option("--lab", help="watch the receivers of a lab file")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(min=1, help="a process's sockets, in its network namespace")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="the sockets of a port")
    ] = None,
    unit: Annotated[str | None, typer.Option(help="the sockets of a systemd unit")] = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="such as 30s (default: until Ctrl-C)"),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="count each socket's packets by BPF (root)")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object per second")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="store it in this run folder, with a report")
    ] = None,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Watch a live host: which socket drops packets, and why? Changes no setting."""
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.watch import KeptLooks, Watched, lab_to_watch
    from udpbench.control.watch import watch as look_on
    from udpbench.definition.load import load_lab
    from udpbench.report.watch import losses, print_watched, watch_view

    duration_ns = _watch_time(pid, unit, duration)
    chosen_lab = lab_to_watch(host, load_lab(lab) if lab is not None else None)
    words = _watch_words(pid, unit, exact)
    around = Surroundings(_observers(chosen_lab, no_deploy, wheels, *words))
    watched = Watched(pid, port, unit, exact)
    seen: list[LiveHost] = []
    kept = KeptLooks.create(out, chosen_lab, _command()) if out is not None else None
    try:
        with _reader_may_leave(), watch_view(sys.stdout, as_json) as tell:
            seen = look_on(chosen_lab, watched, duration_ns, around, tell, kept)
    except UdpbenchError as error:
        if kept is not None:
            kept.fail(error)
        raise
    with _reader_may_leave():
        if not as_json:
            print_watched(seen)
    if kept is not None:
        kept.finish(losses(seen))
        with _reader_may_leave(), redirect_stdout(sys.stderr if as_json else sys.stdout):
            _try_report(_read_stored(kept.folder), YES)
            _say(f"run folder: {kept.folder}")
    raise typer.Exit(NO if any(live.lost for live in seen) else YES)


def _watch_time(pid: int | None, unit: str | None, duration: str | None) -> int | None:
    """Return how long to watch; raises InputError with everything wrong in the options."""
    from udpbench.model import DAY_NS
    from udpbench.units import parse_duration

    problems: list[Problem] = []
    duration_ns = None
    if pid is not None and unit is not None:
        problems.append(Problem("both are given", "--pid, --unit", next_step="omit one"))
    try:
        duration_ns = parse_duration(duration) if duration is not None else None
    except ValueError as error:
        problems.append(Problem(str(error), "--for", duration))
    if duration_ns is not None and not 0 < duration_ns <= DAY_NS:
        problems.append(Problem("out of range", "--for", duration, "above 0, at most a day"))
    if problems:
        raise InputError(problems)
    return duration_ns


@app.command()
def schema() -> None:
    """Print the JSON Schema of experiment and lab files."""
    import json

    from udpbench.definition.load import schema as json_schema

    print(json.dumps(json_schema(), indent=2))


# --- comparisons ---------------------------------------------------------------------------------


def _sides(runs: list[Path], against: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the base runs and the runs to compare with them; the base may be empty."""
    if against:
        return against, runs
    if len(runs) > 2:
        step = "name those of the base with --against"
        raise InputError(
            [Problem("more than two runs", "RUN", limit="RUN_A RUN_B", next_step=step)]
        )
    return (runs[:1], runs[1:]) if len(runs) == 2 else ([], runs)


def _read_side(folders: Sequence[Path] | None) -> list[Run]:
    """Return the runs of one side, each once."""
    each = {_real(folder): folder for folder in folders or ()}
    return [_read_stored(folder) for folder in each.values()]


def _real(path: str | Path) -> str:
    """Return a path without links, as far as there are any; Path.resolve() fails at a loop."""
    return os.path.realpath(path)


def _choice(
    points: tuple[str | None, str | None], metric: str | None, margin: str | None, several: bool
) -> Choice:
    """Return the requested comparison; raises InputError."""
    from udpbench.commands.compare import Choice
    from udpbench.units import parse_ratio

    problems, ratio = [], None
    if (points[0] is None) != (points[1] is None):
        problems.append(Problem("only one point", "--a, --b", limit="name both, or neither"))
    if points[0] is not None and points[0] == points[1]:
        what, step = (
            "the same point twice",
            "udpbench run --same measures a point against itself",
        )
        problems.append(Problem(what, "--a, --b", points[0], next_step=step))
    if points != (None, None) and several:
        what = "two runs are compared point by point"
        problems.append(Problem(what, "--a, --b", next_step="omit them, or name one run"))
    try:
        ratio = parse_ratio(margin) if margin is not None else None
    except ValueError as error:
        problems.append(Problem(str(error), "--margin", margin))
    if ratio is not None and not 0 < ratio < 1:
        problems.append(Problem("out of range", "--margin", margin, "above 0 and below 100%"))
    if problems:
        raise InputError(problems)
    return Choice(*points, metric, ratio)


def _print_comparisons(comparison: RunComparison) -> None:
    from udpbench.report.tables import comparison_parts

    console = _console()
    for part in (*comparison.notes, *comparison_parts(comparison.comparisons)):
        console.print(part)


# --- what the verbs share ------------------------------------------------------------------------


def _refuse_trust(trust: bool) -> None:
    if trust:
        raise InputError([Problem("needs --resume", "--trust", next_step="omit it")])


def _load_definitions(
    names: list[str], lab: str, sets: list[str] | None, allow_read: list[Path] | None = None
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


class _Prompts:
    """The dialog of ``init`` at a terminal."""

    def ask(self, text: str, default: str | None, parse: Callable[[str], str]) -> str:
        """Return an answer that ``parse`` accepts."""

        def read(answer: str) -> str:
            try:
                return parse(answer)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error

        with _answered():
            return str(typer.prompt(text, default, value_proc=read))

    def confirm(self, text: str) -> bool:
        """Return whether the user agrees."""
        with _answered():
            return typer.confirm(text)


@contextmanager
def _answered() -> Iterator[None]:
    """Raise InputError where the terminal gives no answer."""
    try:
        yield
    except typer.Abort as error:
        raise InputError([Problem("no answer", "init")]) from error


def _say_of_host(host: str, text: str) -> None:
    _say(f"{host}: {text}", sys.stderr)


def _reach(
    lab: Lab,
    no_deploy: bool,
    wheels: Path | None,
    say: Callable[[str, str], None] = _say_of_host,
) -> Reach:
    """Return the ways to a lab's hosts; ``say`` reports files sent to one."""
    from udpbench.control.agents import real

    return real(_deployer(lab, no_deploy, wheels, say))


def _watch_words(pid: int | None, unit: str | None, exact: bool) -> tuple[str, ...]:
    """Return what an observer is started with; it gives up the right to it before it answers."""
    named = [f"pid:{pid}"] * (pid is not None) + [f"unit:{unit}"] * (unit is not None)
    return (*named, *(["exact"] if exact else []))


def _observers(lab: Lab, no_deploy: bool, wheels: Path | None, *words: str) -> Reach:
    """Return the ways to a lab's hosts for who only looks."""
    from udpbench.control.agents import observing

    return observing(words, _deployer(lab, no_deploy, wheels))


def _deployer(
    lab: Lab,
    no_deploy: bool,
    wheels: Path | None,
    say: Callable[[str, str], None] = _say_of_host,
) -> Deployer:
    from udpbench.control.deployment.deployer import Deployer

    step = f"send it: udpbench deploy --lab {quote(lab.path)}, or omit --no-deploy"
    return Deployer(say, wheels, step if no_deploy else None)


def _parse_lease(text: str) -> int:
    from udpbench.units import parse_duration

    try:
        lease_ns = parse_duration(text)
    except ValueError as error:
        raise InputError([Problem(str(error), "--lease", text)]) from error
    if not 10**9 <= lease_ns <= 3600 * 10**9:
        raise InputError([Problem("out of range", "--lease", text, "1s to 1h")])
    return lease_ns


def _read_stored(folder: Path | None) -> Run:
    from udpbench.records import last_run, read_run

    return read_run(folder if folder is not None else last_run(RESULTS))


def _say(line: object, out: TextIO | None = None) -> None:
    print(printable(str(line)), file=out)


def _print_run(stored: Run, everything: bool) -> None:
    """Print every chapter of a run, headed by how it ended unless it ended well."""
    from udpbench.report.summary import ended

    console = _console()
    for line in (*map(str, stored.findings), *ended(stored)):
        console.print(line)
    _print_chapters(stored, everything)


def _print_remaining(stored: Run) -> None:
    """Print how to resume a run that has trials left, if it has any."""
    from shlex import quote

    from udpbench.commands.resume import why_not_resumed
    from udpbench.control.schedule import remaining_count

    left = remaining_count(stored.header.experiments, stored.header.seed, stored.records)
    if left and not stored.header.watched:
        trials = "1 trial that failed or is" if left == 1 else f"{left} trials that failed or are"
        why_not = why_not_resumed(stored)
        if why_not:
            _say(f"--resume alone does not run the {trials} missing: {why_not}")
        else:
            command = f"udpbench {stored.header.verb} --resume {quote(str(stored.folder))}"
            _say(f"to run the {trials} missing: {command}")


def _print_chapters(stored: Run, everything: bool) -> None:
    from udpbench.judged_run import chapters_of
    from udpbench.report.tables import print_chapter

    console = _console()
    for chapter in chapters_of(stored):
        print_chapter(console, chapter, everything)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Ignore a closed pipe: the exit code stays that of the verb."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # A flush at exit would only fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_report(
    stored: Sequence[Run],
    folder: Path,
    formats: Sequence[str] | None = None,
    named: bool = True,
) -> None:
    from udpbench.report.document import DOCUMENTS, write

    pages = []
    for path in write(stored, folder, DOCUMENTS if formats is None else formats, named):
        if path.suffix == ".png":
            pages.append(path)
        else:
            _say(f"report: {path}")
    if pages:
        _say(f"report: {pages[0]}" + (f" to {pages[-1].name}" if len(pages) > 1 else ""))


def _console() -> Console:
    from udpbench.report.terminal import Terminal

    return Terminal()


def _version() -> str:
    from importlib.metadata import version

    return version("udpbench")
