"""A run as something that was begun, ended and gone on with: its rows on the page of the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import pairwise

from udpbench.records import Run, RunHeader, Session
from udpbench.report.story import message


def run_rows(run: Run) -> Iterator[tuple[str, str]]:
    """Yield name and value of each thing to know of a run as a whole."""
    header = run.header
    yield "to repeat it", command(header)
    yield "begun", header.started_at
    for told in resumptions(run):
        yield "resumed", told
    yield "seed", str(header.seed)
    yield "trials", trials_of(run)
    yield "udpbench", header.udpbench


def trials_of(run: Run) -> str:
    """Return how many trials there are, and how many of them were run again."""
    again = len(run.replaced)
    return f"{len(run.records)}" + (
        f", and {again} that failed and were run again" if again else ""
    )


def resumptions(run: Run) -> Iterator[str]:
    """Yield for each session after the first when it began, why, and how much it ran."""
    for before, one in pairwise(run.sessions):
        trials = "1 trial" if one.trials == 1 else f"{one.trials} trials"
        cut = f", a torn line of {one.begin.cut_bytes}B was cut off" if one.begin.cut_bytes else ""
        version = one.begin.udpbench
        by = f", by udpbench {version}" if version != before.begin.udpbench else ""
        yield f"{one.begin.started_at}, {_stopped(before)}{cut}: {trials}{by}"


def _stopped(session: Session) -> str:
    """Return what another session came after."""
    ending = session.ending
    if ending is None:
        return "after its process died"
    if ending.restore_errors:
        return "after hosts were not put back"
    if ending.status == "failed":
        return f"after it failed ({message(ending.error or {})})"
    return "after an interrupt" if ending.status == "interrupted" else "for what had failed"


def command(header: RunHeader) -> str:
    """Return the command that repeats a run: the same, in the same order, into a new folder."""
    words = list(header.command)
    for option in ("--out", "--seed"):
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
        words = [word for word in words if not word.startswith(f"{option}=")]
    return shlex.join([*words, "--seed", str(header.seed)])
