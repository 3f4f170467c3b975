"""The verb ``watch``."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import NoDeploy, Wheels
from udpbench.commands.verbs.output import (
    open_console,
    read_stored,
    reader_may_leave,
    say,
    try_report,
)
from udpbench.commands.verbs.reach import reach_observers, watch_words
from udpbench.commands.verbs.run import typed_command
from udpbench.errors import NO, YES, InputError, Problem, UdpbenchError

if TYPE_CHECKING:
    from udpbench.analysis.watch.host import LiveHost


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
    cpu_time: Annotated[
        str | None,
        typer.Option("--cpu-time", metavar="TIME", help="sample the CPUs so long, such as 10s"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object per second")
    ] = False,
    all_sockets: Annotated[
        bool, typer.Option("--all-sockets", help="with --json: list uneventful sockets, too")
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

    duration_ns = _watch_time(pid, unit, duration, cpu_time)
    if all_sockets and not as_json:
        what, step = "a terminal shows the worst of them", "add --json"
        raise InputError([Problem(what, "--all-sockets", next_step=step)])
    chosen_lab = lab_to_watch(host, load_lab(lab) if lab is not None else None)
    words = watch_words(pid, unit, exact, cpu_time is not None, port)
    around = Surroundings(reach_observers(chosen_lab, no_deploy, wheels, *words))
    watched = Watched(pid, port, unit, exact, cpu_time is not None)
    seen: list[LiveHost] = []
    room = tempfile.TemporaryDirectory() if cpu_time is not None and out is None else None
    folder = Path(room.name) / "watch" if room is not None else out
    kept = KeptLooks.create(folder, chosen_lab, typed_command()) if folder is not None else None
    try:
        with reader_may_leave(), watch_view(sys.stdout, as_json, all_sockets) as tell:
            seen = look_on(chosen_lab, watched, duration_ns, around, tell, kept)
    except UdpbenchError as error:
        if kept is not None:
            kept.fail(error)
        raise
    with reader_may_leave():
        if not as_json:
            print_watched(seen)
    if kept is not None:
        kept.finish(losses(seen))
    if kept is not None and cpu_time is not None:
        with reader_may_leave():
            _print_cpu_time(kept.folder, as_json)
    if room is not None:
        room.cleanup()
    elif kept is not None:
        with reader_may_leave(), redirect_stdout(sys.stderr if as_json else sys.stdout):
            try_report(read_stored(kept.folder), YES)
            say(f"run folder: {kept.folder}")
    raise typer.Exit(NO if any(live.lost for live in seen) else YES)


def _print_cpu_time(folder: Path, as_json: bool) -> None:
    """Print where the CPUs' time went, or why that is not known."""
    from udpbench.analysis.result_tables import named_rows
    from udpbench.judged_run import chapters_of
    from udpbench.report.sheets import result_sheets
    from udpbench.report.tables import findings_table, sheet_table

    (chapter,) = chapters_of(read_stored(folder))
    for result in chapter.results if as_json else ():
        rows = {each.name: named_rows(each) for each in result.tables if each.always}
        print(json.dumps(rows, allow_nan=False))
    if as_json:
        return
    console = open_console()
    for sheet in result_sheets(chapter, everything=False):
        console.print(sheet_table(sheet))
    about = [f for result in chapter.results for f in result.findings if f.kind == "cpu_time"]
    if about:
        console.print(findings_table([(finding, ()) for finding in about]))


def _watch_time(
    pid: int | None, unit: str | None, duration: str | None, cpu_time: str | None
) -> int | None:
    """Return how long to watch; raises InputError with everything wrong in the options."""
    from udpbench.model.limits import DAY_NS
    from udpbench.units import parse_duration

    problems: list[Problem] = []
    duration_ns = None
    if pid is not None and unit is not None:
        problems.append(Problem("both are given", "--pid, --unit", next_step="omit one"))
    if duration is not None and cpu_time is not None:
        what, step = "both say how long to watch", "omit --for"
        problems.append(Problem(what, "--for, --cpu-time", next_step=step))
    option, duration = ("--for", duration) if cpu_time is None else ("--cpu-time", cpu_time)
    try:
        duration_ns = parse_duration(duration) if duration is not None else None
    except ValueError as error:
        problems.append(Problem(str(error), option, duration))
    if duration_ns is not None and not 0 < duration_ns <= DAY_NS:
        problems.append(Problem("out of range", option, duration, "above 0, at most a day"))
    if problems:
        raise InputError(problems)
    return duration_ns
