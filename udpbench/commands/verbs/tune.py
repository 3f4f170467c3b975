"""The verb ``tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import (
    NAME_HELP,
    AllowRead,
    NoDeploy,
    OptionalLab,
    Sets,
    Trust,
    Wheels,
    experiments_like,
)
from udpbench.commands.verbs.output import RESULTS, print_run, reader_may_leave
from udpbench.commands.verbs.run import (
    finish_run,
    load_definitions,
    refuse_trust,
    resume_run,
    run_on_lab,
    typed_command,
)
from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    pass


def tune(
    name: Annotated[
        str | None, typer.Argument(metavar="X", help=NAME_HELP, autocompletion=experiments_like)
    ] = None,
    lab: OptionalLab = None,
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
        resumed = resume_run(resume, out, given)
        if resumed.complete:
            resumed.writer.close()
            with reader_may_leave():
                print_run(resumed.run, everything=False)
            raise typer.Exit(code_of_run(resumed.run))
        resumed.begin_session(typed_command())
        header, records = resumed.run.header, resumed.run.records
        chosen_lab, writer = resumed.lab, resumed.writer
    else:
        within_ns = _parse_within(within)
        if name is None:
            step = "name an experiment, or resume a tune with --resume"
            raise InputError([Problem("missing", "X", None, "one", step)])
        experiments, chosen_lab = load_definitions([name], lab or "local", sets, allow_read)
        refuse_trust(trust)
        tune = asked(experiments, point, metric, within_ns, only or (), never or ())
        header = new_header(tuned(experiments, tune), chosen_lab, typed_command(), sets or (), seed)
        records = ()
        folder = out or new_folder(RESULTS, f"tune-{experiments[0].name}")
        writer = RunWriter.create(folder, header)
    terms = Terms("alone", 0 if no_wait else None, "omit --no-wait to wait for it")
    begun = header, records, chosen_lab, writer
    options = RunOptions(header.seed, terms=terms, proven=kept)
    stored, outcome = run_on_lab(begun, options, quiet, no_deploy, wheels)
    raise typer.Exit(finish_run(stored, chosen_lab, outcome, report, everything=False))


def _parse_within(text: str) -> int:
    from udpbench.model.limits import DAY_NS, SECOND_NS
    from udpbench.units import parse_duration

    try:
        within_ns = parse_duration(text)
    except ValueError as error:
        raise InputError([Problem(str(error), "--within", text)]) from error
    if not 10 * SECOND_NS <= within_ns <= DAY_NS:
        raise InputError([Problem("out of range", "--within", text, "10s to a day")])
    return within_ns
