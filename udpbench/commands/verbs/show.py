"""The verb ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from udpbench.commands.verbs.options import Everything, RunFolder
from udpbench.commands.verbs.output import (
    print_json,
    print_remaining,
    print_run,
    read_stored,
    reader_may_leave,
)


def show(
    run: RunFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    everything: Everything = False,
) -> None:
    """Print the result of a stored run; exit with its code."""
    from udpbench.judged_run import code_of_run

    stored = read_stored(run)
    code = code_of_run(stored)
    with reader_may_leave():
        if as_json:
            from udpbench.report.json_output import as_json as to_json

            print_json(to_json(stored))
        else:
            print_run(stored, everything)
            print_remaining(stored)
    raise typer.Exit(code)
