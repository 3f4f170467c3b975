"""The verb ``show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import Everything, RunFolder, Since, Until
from udpbench.commands.verbs.output import (
    print_json,
    print_paths,
    print_remaining,
    print_run,
    read_stored,
    reader_may_leave,
    say,
)
from udpbench.errors import NO, YES

if TYPE_CHECKING:
    from pathlib import Path


def show(
    run: RunFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    everything: Everything = False,
    since: Since = None,
    until: Until = None,
    path: Annotated[
        bool, typer.Option("--path", help="draw the path of the packets, of up to eight points")
    ] = False,
) -> None:
    """Print the result of a stored run, or what a recording lost; exit with its code."""
    from udpbench.commands.flight import flight_folder
    from udpbench.judged_run import code_of_run

    recording = flight_folder(run, since, until)
    if recording is not None:
        raise typer.Exit(_show_flight(recording, since, until, as_json))
    stored = read_stored(run)
    code = code_of_run(stored)
    with reader_may_leave():
        if as_json:
            from udpbench.report.json_output import as_json as to_json

            print_json(to_json(stored))
        elif path:
            print_paths(stored)
        else:
            print_run(stored, everything)
            print_remaining(stored)
    raise typer.Exit(code)


def _show_flight(path: Path, since: str | None, until: str | None, as_json: bool) -> int:
    """Print what a flight recorder's time lost; return NO if packets were lost."""
    from udpbench.commands.flight import read_flight
    from udpbench.report.flight_report import flight_json, text

    course = read_flight(path, since, until)
    with reader_may_leave():
        if as_json:
            print_json(flight_json(course))
        else:
            say(text(course))
    return NO if course.incidents else YES
