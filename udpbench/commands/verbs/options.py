"""Arguments and options that several verbs have."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from udpbench.commands.verbs.output import RESULTS

NAMES_HELP = "files, folders or shipped experiments"


NAME_HELP = "an experiment; if it has several points, name one with --point"


LAB_HELP = "a lab file or a shipped lab"


def experiments_like(incomplete: str) -> list[str]:
    """Return what shell completion offers for experiments: shipped ones, and files."""
    from udpbench.definition.shipped import shipped_names

    return [name for name in (*shipped_names(), *_paths(incomplete)) if name.startswith(incomplete)]


def labs_like(incomplete: str) -> list[str]:
    """Return what shell completion offers for labs: shipped ones, and files."""
    from udpbench.definition.shipped import shipped_labs

    return [name for name in (*shipped_labs(), *_paths(incomplete)) if name.startswith(incomplete)]


def runs_like(incomplete: str) -> list[str]:
    """Return what shell completion offers for runs: those in results/, newest first, and paths."""
    runs = sorted(filter(PLAIN.match, map(str, RESULTS.glob("*/"))), reverse=True)
    elsewhere = _paths(incomplete, "*/") if incomplete else []
    return list(dict.fromkeys([*(run for run in runs if run.startswith(incomplete)), *elsewhere]))


def _paths(incomplete: str, *patterns: str) -> list[str]:
    """Return the YAML files and folders, or what else is asked for, of which a path begins so."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    with suppress(OSError):
        paths = {path for each in patterns or YAML for path in folder.glob(each)}
        shown = [str(path) for path in paths if not path.name.startswith(".")]
        return sorted(filter(PLAIN.match, shown))
    return []


PLAIN = re.compile(r"[\w./+@=,-]+\Z")
"""Paths that are offered: zsh evaluates what completion prints, and anybody may name a file."""
YAML = ("*.yaml", "*.yml", "*/")
Names = Annotated[
    list[str],
    typer.Argument(metavar="X...", help=NAMES_HELP, autocompletion=experiments_like),
]


OptionalNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="X...", help=NAMES_HELP, autocompletion=experiments_like),
]


LabName = Annotated[str, typer.Option("--lab", help=LAB_HELP, autocompletion=labs_like)]


OptionalLab = Annotated[
    str | None,
    typer.Option("--lab", help=f"{LAB_HELP}  [default: local]", autocompletion=labs_like),
]


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


Reported = Annotated[
    bool, typer.Option("--report/--no-report", help="write the report (takes seconds)")
]


Everything = Annotated[
    bool, typer.Option("--all", help="show every stage of the ledger, and every note")
]


Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="of a recording: from 03:00 on (default: its last hour)"),
]


Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="of a recording: to 03:20 (default: its end)")
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
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="a run folder (default: the last run)",
        autocompletion=runs_like,
    ),
]
