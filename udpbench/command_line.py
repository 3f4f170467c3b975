"""The verbs of the command line: parsing and printing only.

Every import that costs time is inside a verb, so that ``udpbench --help`` answers at once. What
goes wrong is raised, and said by ``__main__``.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from udpbench.control.rehearsal import Rehearsed
    from udpbench.control.run import Outcome
    from udpbench.model import Experiment, Lab, Trial, TrialRecord
    from udpbench.records import Run, RunHeader, RunWriter
    from udpbench.resume import Asked

RESULTS = Path("results")
"""Where run folders are made, and looked for, below the working directory."""

app = typer.Typer(
    help="How many UDP packets per second can this host receive, and where do the others get lost?",
    rich_markup_mode=None,
    add_completion=False,
)

NAMES_HELP = "files, folders or shipped experiments"
LAB_HELP = "a lab file or a shipped lab"
Names = Annotated[list[str], typer.Argument(metavar="X...", help=NAMES_HELP)]
LabName = Annotated[str, typer.Option("--lab", help=LAB_HELP)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="change the base")
]
RunFolder = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="a run folder; left out: the last run")
]


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"udpbench {_version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="say which")
    ] = False,
) -> None:
    """Take what stands before the verb."""


@app.command()
def plan(names: Names, lab: LabName = "local", sets: Sets = None) -> None:
    """List what would run, and show what would change on the hosts, changing nothing."""
    experiments, place = _definitions(names, lab, sets)
    from udpbench.control.rehearsal import rehearse
    from udpbench.report.plan import print_rehearsal, print_trials

    console = _console()
    print_trials(console, experiments, place.built_in)
    rehearsed: Sequence[Rehearsed] = rehearse(experiments, place)
    print_rehearsal(console, rehearsed)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="X...", help=NAMES_HELP)] = None,
    lab: Annotated[str | None, typer.Option("--lab", help=f"{LAB_HELP}  [default: local]")] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder to make")] = None,
    sets: Sets = None,
    lease: Annotated[str, typer.Option(help="after so long without us, hosts restore")] = "10s",
    seed: Annotated[int | None, typer.Option(help="of the order of trials")] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="leave the files of receive.log on the hosts")
    ] = False,
    report: Annotated[bool, typer.Option(help="write the document, which takes seconds")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="say nothing before the result")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="go on with the run of a folder")
    ] = None,
) -> None:
    """Run experiments, show them live, store them, and print table, ledger and report."""
    lease_ns = _lease(lease)
    if resume is not None:
        from udpbench.resume import Asked

        asked = Asked(names or (), lab, sets or (), seed)
        begun = _taken_up(resume, out, asked)
    else:
        begun = _begun(names or [], lab or "local", out, sets or [], seed)
    from udpbench.control.run import RunOptions
    from udpbench.control.run import run as run_trials
    from udpbench.records import read_run
    from udpbench.report.live import live_view

    header, folder = begun.header, begun.writer.folder
    options = RunOptions(seed=header.seed, lease_ns=lease_ns, keep_logs=keep_logs)
    with live_view(sys.stdout, begun.left, quiet) as tell:
        outcome = run_trials(
            header.experiments, begun.lab, begun.writer, tell, options, stored=begun.stored
        )
    _end(read_run(folder), outcome, report)


@dataclass(frozen=True)
class _Begun:
    """A run with its folder open, before a host is asked."""

    header: RunHeader
    lab: Lab
    writer: RunWriter
    left: Sequence[Trial]
    """What is to be run."""
    stored: Sequence[TrialRecord] = ()
    """What earlier sessions have recorded."""


def _begun(
    names: list[str], lab: str, out: Path | None, sets: list[str], seed: int | None
) -> _Begun:
    """Return a new run."""
    if not names:
        step = "name an experiment, or a run folder behind --resume"
        raise InputError([Problem("missing", "X...", None, "at least one", step)])
    experiments, place = _definitions(names, lab, sets)
    from udpbench.control.schedule import remaining
    from udpbench.records import RunHeader, RunWriter, new_folder, now_utc

    header = RunHeader(
        udpbench=_version(),
        started_at=now_utc(),
        command=("udpbench", *sys.argv[1:]),
        seed=seed if seed is not None else int.from_bytes(os.urandom(4), "big"),
        lab_name=place.name,
        lab_text=place.text,
        experiments=tuple(experiments),
        sets=tuple(sets),
        lab_path=place.path,
        working_folder=str(Path.cwd()),
    )
    folder = out if out is not None else new_folder(RESULTS, experiments[0].name)
    writer = RunWriter.create(folder, header)
    return _Begun(header, place, writer, remaining(experiments, header.seed, ()))


def _taken_up(folder: Path, out: Path | None, asked: Asked) -> _Begun:
    """Return a run that goes on; ends the program where nothing of it remains to be run."""
    from udpbench.records import Begin, now_utc
    from udpbench.resume import taken_up

    if out is not None and out.resolve() != folder.resolve():
        what = "a run goes on in its own folder"
        raise InputError([Problem(what, "--out", str(out), f"{folder}", "leave --out away")])
    found = taken_up(folder, asked)
    for line in (*found.notes, found.told(_version())):
        print(line)
    if found.complete:
        found.writer.close()
        with _reader_may_leave():
            _print_run(found.run)
        raise typer.Exit(_code_of(found.run))
    begin = Begin(now_utc(), _version(), ("udpbench", *sys.argv[1:]))
    found.writer.resume(found.run, begin)
    return _Begun(found.run.header, found.lab, found.writer, found.left, found.run.records)


def _end(stored: Run, outcome: Outcome, report: bool) -> None:
    """Print the result of a run that has just ended, and leave with its exit code."""
    from udpbench.report.story import ended

    code = _code_of(stored, outcome.exit_code)
    with _reader_may_leave():
        _print_chapters(stored)
    for line in ended(stored) if stored.ending is not None else [outcome.error]:
        print(line, file=sys.stderr)
    with _reader_may_leave():
        if stored.records and report:
            _write_report([stored], stored.folder, ("pdf", "png"))
        print(f"run folder: {stored.folder}")
        _print_left(stored)
    raise typer.Exit(code)


@app.command()
def show(
    run: RunFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="as data with stable keys")] = False,
) -> None:
    """Show the result of a stored run."""
    import json

    stored = _stored(run)
    code = _code_of(stored)
    with _reader_may_leave():
        if as_json:
            from udpbench.report.as_json import as_json as to_json

            print(json.dumps(to_json(stored), indent=2, allow_nan=False))
        else:
            _print_run(stored)
            _print_left(stored)
    raise typer.Exit(code)


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="run folders; left out: the last run"),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="pdf, png, csv, parquet; several by comma")
    ] = "pdf,png",
    out: Annotated[Path | None, typer.Option(help="the folder to write to: the run's")] = None,
) -> None:
    """Write the document of stored runs, or their data."""
    once = {one.resolve(): one for one in runs or ()}
    stored = [_stored(one) for one in once.values()] or [_stored(None)]
    if out is None and len(stored) > 1:
        raise InputError([Problem("missing", "--out", None, f"one folder for {len(stored)} runs")])
    _write_report(stored, out if out is not None else stored[0].folder, form.split(","))


@app.command()
def restore(
    lab: LabName = "local",
    force: Annotated[
        bool, typer.Option(help="overwrite also what somebody else has changed since")
    ] = False,
) -> None:
    """Put back what a run that was killed has left changed on the hosts."""
    from udpbench.control.run import mend
    from udpbench.definition.load import load_lab

    undone = mend(load_lab(lab), force)
    for host, changes in undone.items():
        for change in changes:
            setting = change.setting
            print(f"{host}: {setting.kind} {setting.target}: {change.before} → {change.after}")
    if not any(undone.values()):
        print("nothing was left behind")


@app.command()
def schema() -> None:
    """Print the JSON Schema of experiment and lab files."""
    import json

    from udpbench.definition.load import schema as make

    print(json.dumps(make(), indent=2))


# --- what the verbs share ------------------------------------------------------------------------


def _definitions(
    names: list[str], lab: str, sets: list[str] | None
) -> tuple[list[Experiment], Lab]:
    """Return experiments and lab; InputError with what is wrong with either."""
    from udpbench.definition.load import load_experiments, load_lab

    problems: list[Problem] = []
    experiments: list[Experiment] = []
    place = None
    try:
        experiments = load_experiments(names, sets or ())
    except InputError as error:
        problems += error.problems
    try:
        place = load_lab(lab)
    except InputError as error:
        problems += error.problems
    if problems or place is None:
        raise InputError(problems)
    return experiments, place


def _lease(text: str) -> int:
    from udpbench.units import parse_duration

    try:
        lease_ns = parse_duration(text)
    except ValueError as error:
        raise InputError([Problem(str(error), "--lease", text)]) from error
    if not 10**9 <= lease_ns <= 3600 * 10**9:
        raise InputError([Problem("out of range", "--lease", text, "1s to 1h")])
    return lease_ns


def _stored(folder: Path | None) -> Run:
    from udpbench.records import last_run, read_run

    return read_run(folder if folder is not None else last_run(RESULTS))


def _print_run(stored: Run) -> None:
    """Print how a run ended, where it did not end well, and every chapter of it."""
    from udpbench.report.story import ended

    console = _console()
    for line in (*map(str, stored.findings), *ended(stored)):
        console.print(line, markup=False)
    _print_chapters(stored)


def _print_left(stored: Run) -> None:
    """Print how to go on with a run that has trials left, if it has any."""
    from shlex import quote

    from udpbench.control.schedule import remaining

    left = len(remaining(stored.header.experiments, stored.header.seed, stored.records))
    if left:
        trials = "1 trial that failed or is" if left == 1 else f"{left} trials that failed or are"
        print(f"to run the {trials} missing: udpbench run --resume {quote(str(stored.folder))}")


def _print_chapters(stored: Run) -> None:
    from udpbench.report.story import tell
    from udpbench.report.table import print_chapter

    console = _console()
    for chapter in tell(stored.header.experiments, stored.records):
        print_chapter(console, chapter)


def _code_of(stored: Run, outcome_code: int = 0) -> int:
    """Return the exit code of what a run ended as and of what its trials say."""
    from udpbench.analysis.exits import exit_code
    from udpbench.report.story import ending_code, tell

    chapters = tell(stored.header.experiments, stored.records)
    results = [result for chapter in chapters for result in chapter.results]
    verdicts = [verdict for chapter in chapters for verdict in chapter.verdicts]
    return exit_code(results, verdicts, [outcome_code, ending_code(stored)])


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Let whoever reads our output leave early: the exit code stays that of the verb."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # A flush at exit would only fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_report(stored: Sequence[Run], folder: Path, formats: Sequence[str]) -> None:
    from udpbench.report.document import write

    pages = []
    for path in write(stored, folder, formats):
        if path.suffix == ".png":
            pages.append(path)
        else:
            print(f"report: {path}")
    if pages:
        print(f"report: {pages[0]}" + (f" to {pages[-1].name}" if len(pages) > 1 else ""))


def _console() -> Console:
    from rich.console import Console

    class Piped(Console):
        """A console that tells of a reader who left, where rich would end the program."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(highlight=False, soft_wrap=False)


def _version() -> str:
    from importlib.metadata import version

    return version("udpbench")
