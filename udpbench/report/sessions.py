"""A run as something that was begun, ended and gone on with, and whether it put everything back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import pairwise

from udpbench.errors import AgentLost
from udpbench.records import Run, RunHeader, Session
from udpbench.report.story import message

PUT_BACK = "All of it was put back at the end of the run, in reverse order, and read back."
FOUND_CLEAN = "An earlier session was not seen to do so; the one after it found nothing left."


def run_rows(run: Run) -> Iterator[tuple[str, str]]:
    """Yield name and value of each thing to know of a run as a whole."""
    header = run.header
    yield "to repeat it", command(header)
    yield "begun", header.started_at
    for told in resumptions(run):
        yield "resumed", told
    yield "seed", str(header.seed)
    yield "trials", trials_of(run)
    mixed = "; a median may mix their trials, so repeat the run with one of them"
    yield "udpbench", " and ".join(versions(run)) + (mixed if len(versions(run)) > 1 else "")


def versions(run: Run) -> tuple[str, ...]:
    """Return each udpbench that ran trials of a run, in order; without any the one that began."""
    ran = [session.begin.udpbench for session in run.sessions if session.trials]
    return tuple(dict.fromkeys(ran)) or (run.header.udpbench,)


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


def restored(run: Run) -> str:
    """Return whether the hosts were put back as they were, in sentences.

    A session begins only on hosts where nothing is left of another one, so one that began answers
    for those before it.
    """
    doubts: list[str] = []
    told = [PUT_BACK]
    for session in run.sessions:
        if doubts and _began(session):
            doubts, told = [], [PUT_BACK, FOUND_CLEAN]
        last = session is run.sessions[-1]
        doubts += _doubts(session, "run" if last else f"session of {session.begin.started_at}")
    remedy = f"What is left, if anything, is put back by `{_restore(run)}`."
    return " ".join([*doubts, remedy] if doubts else told)


def _began(session: Session) -> bool:
    ending = session.ending
    return session.trials > 0 or (ending is not None and ending.status == "complete")


def _doubts(session: Session, name: str) -> Iterator[str]:
    """Yield why nobody knows, or somebody knows better, that a session put everything back."""
    ending = session.ending
    if ending is None:
        yield f"The {name} has no end, so nobody knows what was put back."
        return
    if ending.restore_errors:
        errors = "; ".join(message(error) for error in ending.restore_errors)
        yield f"Not all of it was put back at the end of the {name}: {errors}."
    error = ending.error
    # Runs from before losses were recorded have only the error that ended them.
    ended_by = (error,) if error is not None and error.get("kind") == AgentLost.__name__ else ()
    for loss in ending.lost or ended_by:
        yield (
            f"An agent was lost ({message(loss)}): it puts back by itself what it changed, and "
            "nobody read that back."
        )


def _restore(run: Run) -> str:
    """Return what a user types to put back what a run has left."""
    path = run.header.lab_path
    built_in = any(record.built_in_lab for record in (*run.records, *run.replaced))
    return shlex.join(["udpbench", "restore", *(["--lab", path] if path and not built_in else [])])


def command(header: RunHeader) -> str:
    """Return the command that repeats a run: the same, in the same order, into a new folder."""
    words = list(header.command)
    for option in ("--out", "--seed"):
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
        words = [word for word in words if not word.startswith(f"{option}=")]
    return shlex.join([*words, "--seed", str(header.seed)])
