"""The verb ``serve``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import NoDeploy, Reported, Wheels
from udpbench.commands.verbs.output import (
    open_console,
    read_stored,
    reader_may_leave,
    say,
    try_report,
)
from udpbench.commands.verbs.reach import deployer_of, reach_observers
from udpbench.commands.verbs.run import typed_command
from udpbench.errors import (
    CANNOT_TELL,
    NO,
    YES,
    InputError,
    Problem,
    RecordError,
    worst_code,
)
from udpbench.frozen import complete_all
from udpbench.printable import printable

if TYPE_CHECKING:
    from udpbench.control.serve import ServeTerms
    from udpbench.judged_run import Chapter
    from udpbench.model.lab import Lab
    from udpbench.model.record import TrialRecord


EARLY = ("udpbench.analysis.served", "udpbench.judged_run", "udpbench.report.tables")
"""Imported before a client sends: its CPU may be the one that receives."""
STORED_MAX = 1000
"""Tests that one server stores: anybody who reaches it can have ever more of them."""


def serve(
    host: Annotated[
        str | None, typer.Argument(metavar="[HOST]", help="[user@]host[:port] (default: this one)")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="of the host, :: for all (default: loopback alone)"),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP and UDP")] = 5201,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="such as 10m (default: until Ctrl-C)"),
    ] = None,
    clients: Annotated[
        int, typer.Option("--clients", metavar="N", min=1, max=64, help="served at a time")
    ] = 1,
    once: Annotated[bool, typer.Option("--once", help="end after one test")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="store tests: with --once there, else in folders below"),
    ] = None,
    report: Reported = True,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Serve any iperf3 client that sends UDP, and say where this host lost its packets."""
    from udpbench.control.agents import serving
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.serve import ServeView
    from udpbench.control.serve import serve as serve_clients
    from udpbench.control.watch import lab_to_watch
    from udpbench.report.watch import served_line

    terms = replace(_terms(listen, port, duration), once=once, clients=clients)
    if out is not None:
        _prove_free(out, once)
    lab = lab_to_watch(host, None)
    around = Surroundings(reach_observers(lab, no_deploy, wheels, *terms.observed))
    servers = serving(terms.words, deployer_of(lab, no_deploy, wheels))
    kept = _Kept(lab, out, once, report)

    def tell(text: str) -> None:
        with reader_may_leave():
            say(text)

    for module in EARLY:
        import_module(module)
    complete_all()
    screen = ServeView(
        tell,
        lambda: nullcontext(lambda live: tell(printable(served_line(live, clients), keep=""))),
        kept.answer,
        kept.keep,
        kept.report,
    )
    try:
        serve_clients(lab, terms, around, servers, screen)
    finally:
        while kept.unreported:
            kept.report()
    raise typer.Exit(kept.code)


def _terms(listen: str | None, port: int, duration: str | None) -> ServeTerms:
    """Return how to serve; raises InputError with everything wrong in the options."""
    from udpbench.control.serve import LOOPBACK, ServeTerms, addresses_of
    from udpbench.model.limits import DAY_NS
    from udpbench.units import parse_duration

    problems: list[Problem] = []
    duration_ns: int | None = None
    addresses: tuple[str, ...] = LOOPBACK
    try:
        addresses = addresses_of(listen)
    except InputError as error:
        problems += error.problems
    try:
        duration_ns = parse_duration(duration) if duration is not None else None
    except ValueError as error:
        problems.append(Problem(str(error), "--for", duration))
    if duration_ns is not None and not 0 < duration_ns <= DAY_NS:
        problems.append(Problem("out of range", "--for", duration, "above 0, at most a day"))
    if problems:
        raise InputError(problems)
    return ServeTerms(addresses, port, duration_ns)


def _prove_free(out: Path, once: bool) -> None:
    """Raise InputError if no test could be stored: its client would have sent for nothing."""
    from udpbench.folder import Folder
    from udpbench.records.run import RUN_FILE

    step = "name another folder"
    try:
        with Folder.open(out, make=True) as folder:
            is_taken = once and RUN_FILE in folder.names()
    except OSError as error:
        what = f"cannot be made: {error.strerror}"
        raise InputError([Problem(what, "--out", str(out), next_step=step)]) from error
    if is_taken:
        raise InputError([Problem("already holds a run", "--out", str(out), next_step=step)])


class _Kept:
    """The tests of clients: printed, stored if asked for, and what they say together."""

    def __init__(self, lab: Lab, out: Path | None, once: bool, report: bool = True) -> None:
        self._lab = lab
        self._out = out
        self._once = once
        self._reported = report
        self._tests = self._stored = 0
        self._chapters: tuple[Chapter, ...] = ()
        """What is known of the test that was answered."""
        self._lossy = False
        self.unreported: list[Path] = []
        """Run folders, whose reports wait until no client does: each takes a second of a CPU."""
        self._failed = YES
        """The code of what kept a test from being stored."""

    @property
    def code(self) -> int:
        """Return the exit code: whether a test lost packets, and if there was any, and stored."""
        if not self._tests:
            return CANNOT_TELL
        return worst_code((self._failed, NO if self._lossy else YES))

    def answer(self, record: TrialRecord) -> str:
        """Return where a test's packets ended, which its client is shown."""
        from udpbench.analysis.served import answer
        from udpbench.control.serve import served_experiment
        from udpbench.judged_run import judged

        self._tests += 1
        self._chapters = judged([served_experiment(record.trial)], [record])
        (result,) = self._chapters[0].trials
        text = answer(record, result)
        self._lossy = self._lossy or bool(result.ledger is None or result.ledger.lost_packets)
        with reader_may_leave():
            say(text)
        return text

    def keep(self, record: TrialRecord) -> None:
        """Print a test that was answered, and store it if that is asked for."""
        from udpbench.control.serve import next_folder, store_test
        from udpbench.report.tables import print_chapter

        with reader_may_leave():
            for chapter in self._chapters:
                print_chapter(open_console(), chapter, stored=self._out is not None)
        if self._out is None:
            return
        self._stored += 1
        if self._stored > STORED_MAX:
            with reader_may_leave():
                what = f"not stored: {STORED_MAX} tests are, as many as a server stores"
                say(f"{what}; start it again to store more")
            return
        folder = self._out if self._once else next_folder(self._out)
        with self._failing():
            store_test(record, self._lab, folder, typed_command())
            if self._reported:
                self.unreported.append(folder)
            with reader_may_leave():
                say(f"run folder: {folder}")

    def report(self) -> None:
        """Write the report of the first stored test that has none."""
        if not self.unreported:
            return
        folder = self.unreported.pop(0)
        with self._failing(), reader_may_leave():
            try_report(read_stored(folder), YES)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Say what keeps a test from being stored or read back: those of other clients go on."""
        try:
            yield
        except RecordError as error:
            self._failed = worst_code((self._failed, error.exit_code))
            say(printable(f"not stored: {error}", keep=""), sys.stderr)
