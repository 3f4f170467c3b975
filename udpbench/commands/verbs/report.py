"""The verb ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from udpbench.commands.verbs.options import Since, Until, runs_like
from udpbench.commands.verbs.output import read_stored, say, write_report
from udpbench.commands.verbs.reach import real_path
from udpbench.commands.verbs.store import read_trials
from udpbench.errors import InputError, Problem

DEFAULT_FORMATS = "html,pdf,png"


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="run folders (default: the last run); or a folder of them, or a store",
            autocompletion=runs_like,
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="html, pdf, png, csv, parquet, folded, speedscope; comma-separated",
        ),
    ] = DEFAULT_FORMATS,
    out: Annotated[
        Path | None, typer.Option(help="folder to write to (default: the run's)")
    ] = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Write the report of stored runs, or their data as files; of a store or a recording, too."""
    from udpbench.commands.flight import flight_folder

    recording = flight_folder(runs[0] if runs and len(runs) == 1 else None, since, until)
    if recording is not None:
        _report_flight(recording, since, until, form, out)
        return
    if len(runs or ()) == 1 and _report_store((runs or [""])[0], out):
        return
    folders = {real_path(folder): Path(folder) for folder in runs or ()}.values()
    stored = [read_stored(folder) for folder in folders or (None,)]
    if out is None and len(stored) > 1:
        raise InputError([Problem("missing", "--out", None, f"one folder for {len(stored)} runs")])
    folder = out if out is not None else stored[0].folder
    base = stored[:1] if len(stored) == 2 else ()  # of more, none is the one before
    write_report(stored, folder, form.split(","), named=out is not None, base=base)


def _report_flight(
    path: Path, since: str | None, until: str | None, form: str, out: Path | None
) -> None:
    """Print what a flight recorder's time lost, and write it as a page or as data."""
    from udpbench.commands.flight import read_flight
    from udpbench.report.flight_report import text, write_flight

    course = read_flight(path, since, until)
    say(text(course))
    formats = ["html"] if form == DEFAULT_FORMATS else form.split(",")
    folder = out if out is not None else Path()
    for file in write_flight(course, folder, formats, named=out is not None):
        say(f"report: {file}")


def _report_store(path: str, out: Path | None) -> bool:
    """Write the page of a store, or of run folders; return False for a run folder itself."""
    from udpbench.records.run import RUN_FILE
    from udpbench.store.dataset import is_store

    if not is_store(path) and ((Path(path) / RUN_FILE).exists() or not Path(path).is_dir()):
        return False
    from udpbench.report.campaign.campaign_page import write_campaign

    if out is None and "://" in path:
        raise InputError([Problem("missing", "--out", None, "a folder for the page")])
    trials, source = read_trials(path)
    page = write_campaign(trials, path, out if out is not None else Path(path), out is not None)
    say(f"read: {path}: {source}")
    say(f"report: {page}")
    return True
