"""What verbs print, and which run they read."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TextIO

from udpbench.errors import UdpbenchError, in_words
from udpbench.folder import other_writers
from udpbench.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from udpbench.records.run import Run


RESULTS = Path("results")
"""The folder of run folders, in the working directory."""


def try_report(stored: Run, code: int, base: Sequence[Run] = ()) -> int:
    """Write the report of a run; return its exit code, or 3 in place of 0 if that failed."""
    try:
        write_report([stored], stored.folder, base=base)
    except OSError as error:
        say(f"no report: {in_words(error)}", sys.stderr)
        return code or UdpbenchError.exit_code
    return code


def read_stored(folder: Path | None) -> Run:
    """Return a stored run; the last one if no folder is named."""
    from udpbench.records.folders import last_run
    from udpbench.records.reader import read_run

    if folder is None:
        folder = last_run(RESULTS)
        for how in other_writers(folder.resolve()):
            say(f"the last run is {folder}, which {how}", sys.stderr)
    stored = read_run(folder, later=True)
    gc.freeze()  # a verb keeps it until its end: looking at it again and again took a tenth
    return stored


def say(line: object, out: TextIO | None = None) -> None:
    """Print a line, in which nothing is obeyed by a terminal."""
    print(printable(str(line)), file=out)


def print_json(data: object) -> None:
    """Print data as JSON."""
    from udpbench.indented_json import indented

    print("".join(indented(data)))


def print_run(stored: Run, everything: bool) -> None:
    """Print a run, its answers last, headed by how it ended unless it ended well."""
    from udpbench.report.summary import ended

    console = open_console()
    for line in (*map(str, stored.findings), *ended(stored)):
        console.print(line)
    print_chapters(stored, everything)
    print_answers(stored)


def print_remaining(stored: Run) -> None:
    """Print how to resume a run that has trials left, if it has any."""
    from udpbench.commands.resume import why_not_resumed
    from udpbench.control.schedule import remaining_count
    from udpbench.judged_run import results_of

    left = remaining_count(
        stored.header.experiments, stored.header.seed, stored.records, results_of(stored)
    )
    if left and not stored.header.watched:
        trials = "1 trial that failed or is" if left == 1 else f"{left} trials that failed or are"
        why_not = why_not_resumed(stored)
        if why_not:
            say(f"--resume alone does not run the {trials} missing: {why_not}")
        else:
            command = f"udpbench {stored.header.verb} --resume {quote(str(stored.folder))}"
            say(f"to run the {trials} missing: {command}")


def print_chapters(stored: Run, everything: bool) -> None:
    """Print the tables of a run's experiments."""
    from udpbench.judged_run import chapters_of
    from udpbench.report.tables import print_chapter

    console = open_console()
    for chapter in chapters_of(stored):
        print_chapter(console, chapter, everything)


def print_answers(stored: Run) -> None:
    """Print the questions of a run with their answers."""
    from udpbench.report import tables

    tables.print_answers(open_console(), stored)


def print_paths(stored: Run) -> None:
    """Print the path of the packets of each experiment's points."""
    from udpbench.judged_run import chapters_of
    from udpbench.report.path_picture import picture_lines
    from udpbench.report.summary import asked

    console, chapters = open_console(), chapters_of(stored)
    for chapter in chapters:
        if len(chapters) > 1:
            console.print(f"{chapter.experiment.name}: {asked(chapter.experiment)}")
        for line in picture_lines(chapter, console.width):
            console.print(line)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Ignore a closed pipe: the exit code stays that of the verb."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # A flush at exit would only fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_report(
    stored: Sequence[Run],
    folder: Path,
    formats: Sequence[str] | None = None,
    named: bool = True,
    base: Sequence[Run] = (),
) -> None:
    """Write reports of runs, the last one compared with its base; print where they are."""
    from udpbench.commands.compare import beside
    from udpbench.report.document import DOCUMENTS, write

    pages = []
    against = beside(base, stored[-1]) if base else {}
    for path in write(stored, folder, DOCUMENTS if formats is None else formats, named, against):
        if path.suffix == ".png":
            pages.append(path)
        else:
            say(f"report: {path}")
    if pages:
        say(f"report: {pages[0]}" + (f" to {pages[-1].name}" if len(pages) > 1 else ""))


def open_console() -> Console:
    """Return what prints tables."""
    from udpbench.report.terminal import Terminal

    return Terminal()


def own_version() -> str:
    """Return udpbench's own version."""
    from importlib.metadata import version

    return version("udpbench")
