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
    Reported,
    Sets,
    Trust,
    Wheels,
    experiments_like,
)
from udpbench.commands.verbs.run import begin_or_resume, finish_run, run_on_lab, typed_command
from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    from udpbench.model.experiment import Experiment
    from udpbench.model.lab import Lab
    from udpbench.records.run import RunHeader


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
    report: Reported = True,
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
    from udpbench.records.run import new_header
    from udpbench.tuning.derived_points import asked, tuned

    within_ns = _parse_within(within) if resume is None else 0

    def header_of(experiments: list[Experiment], lab: Lab) -> RunHeader:
        tune = asked(experiments, point, metric, within_ns, only or (), never or ())
        return new_header(tuned(experiments, tune), lab, typed_command(), sets or (), seed)

    names = [name] if name is not None else ()
    given = ResumeOptions(names, lab, sets or (), seed, allow_read or (), trust, tune=True)
    begun = begin_or_resume(resume, out, given, header_of, code_of_run)
    terms = Terms("alone", 0 if no_wait else None, "omit --no-wait to wait for it")
    options = RunOptions(begun.header.seed, terms=terms, proven=kept)
    stored, outcome = run_on_lab(begun, options, quiet, no_deploy, wheels)
    raise typer.Exit(finish_run(stored, begun.lab, outcome, report, everything=False))


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
