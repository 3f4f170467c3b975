"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
