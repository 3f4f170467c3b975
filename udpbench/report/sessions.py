"""The sessions of a run: how it began, ended and was resumed, and whether it was restored."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from udpbench.errors import AgentLost
from udpbench.model.record import SOCKET, RecordedError
from udpbench.printable import printable
from udpbench.records.run import Run, RunHeader, RunSession
from udpbench.report.summary import message

RESTORED = "All settings were restored at the end of the run, in reverse order, and read back."
UNKNOWN = (
    "unknown: the run folder records a command that does not begin a run, or starts a program by "
    "--set"
)
VERBS = ("run", "tune", "watch", "serve")
"""Verbs of udpbench that begin a run."""
TRUSTING = ("--resume", "--trust")
"""Options that none of them begins a run with, and that would trust another folder."""
STARTING = ("command", "steering", "log", "\\")
"""Parts of a ``--set`` that starts a program or writes a log, or may hide that it does."""
PORT = re.compile(r":(\d+)(?: ← \S+)?$")
"""A watched socket's port, behind its process and address."""
FOUND_CLEAN = "An earlier session did not confirm this; the next one found nothing left to restore."


def run_rows(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the facts about a run as a whole, as (name, value)."""
    header = run.header
    yield "to repeat it", command(header) or UNKNOWN
    yield "begun", header.started_at
    for line in resumptions(run):
        yield "resumed", line
    yield "seed", str(header.seed)
    yield "trials", trials_of(run)
    mixed = "; a median may mix their trials, so repeat the run with one of them"
    yield "udpbench", " and ".join(versions(run)) + (mixed if len(versions(run)) > 1 else "")


def to_type(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what a reader may want to do next, each with the command that does it."""
    folder = str(run.folder)
    watched = run.header.watched
    if watched:
        yield from _watch_again(run)
    elif again := command(run.header):
        yield "repeat it in the same order", again
    if not watched and (run.ending is None or run.ending.status != "complete"):
        words = ["udpbench", run.header.verb, "--resume", folder]
        yield "continue where it stopped", shlex.join(words)
    yield "its tables and ledgers", shlex.join(["udpbench", "show", "--all", folder])
    if watched:
        return
    doctor = shlex.join(["udpbench", "doctor", *_lab_option(run)])
    yield "what would distort a measurement on its hosts", doctor


def _watch_again(run: Run) -> Iterator[tuple[str, str]]:
    """Yield how to repeat what is stored by ``--out``, into a new folder."""
    words = shlex.split(command(run.header))
    does = "repeat it"
    if "--pid" in [word.partition("=")[0] for word in words]:
        names = {each.worker.partition(SOCKET)[2] for each in run.records[0].series}
        ports = {match[1] for name in names if (match := PORT.search(name))}
        named = f"; outside containers --port {max(ports, default='')} needs none"
        by_port = named if len(ports) == 1 else ""
        does += f" (with the pid that its program then has{by_port})"
    out = ["--out", f"{run.folder}-again"] if words[:1] == ["udpbench"] else []
    if words:
        yield does, shlex.join([*words, *out])


def versions(run: Run) -> tuple[str, ...]:
    """Return the udpbench versions that ran trials, in order; without trials the one that began."""
    ran = [session.begin.udpbench for session in run.sessions if session.trials]
    return tuple(dict.fromkeys(ran)) or (run.header.udpbench,)


def trials_of(run: Run) -> str:
    """Return how many trials there are, and how many of them were run again."""
    again = len(run.replaced)
    verb = "was" if again == 1 else "were"
    return f"{len(run.records)}" + (
        f", and {again} that failed and {verb} run again" if again else ""
    )


def resumptions(run: Run) -> Iterator[str]:
    """Yield for each session after the first when it began, why, and how many trials it ran."""
    for before, session in pairwise(run.sessions):
        trials = "1 trial" if session.trials == 1 else f"{session.trials} trials"
        cut = (
            f", an incomplete line of {session.begin.cut_bytes}B was removed"
            if session.begin.cut_bytes
            else ""
        )
        version = session.begin.udpbench
        by = f", by udpbench {version}" if version != before.begin.udpbench else ""
        yield f"{session.begin.started_at}, {_stopped(before)}{cut}: {trials}{by}"


def _stopped(session: RunSession) -> str:
    """Return why a session was followed by another."""
    ending = session.ending
    if ending is None:
        return "after its process died"
    if ending.restore_errors:
        return "after hosts were not restored"
    if ending.status == "failed":
        return f"after it failed ({message(ending.error or RecordedError())})"
    return "after an interrupt" if ending.status == "interrupted" else "to repeat failed trials"


def restored(run: Run) -> str:
    """Return in sentences whether the hosts were restored.

    A session begins only on hosts without leftovers, so it confirms that its predecessors were
    restored.
    """
    doubts: list[str] = []
    statements = [RESTORED]
    for session in run.sessions:
        if doubts and _began(session):
            doubts, statements = [], [RESTORED, FOUND_CLEAN]
        last = session is run.sessions[-1]
        doubts += _doubts(session, "run" if last else f"session of {session.begin.started_at}")
    remedy = f"`{_restore(run)}` restores whatever is left."
    return " ".join([*doubts, remedy] if doubts else statements)


def _began(session: RunSession) -> bool:
    ending = session.ending
    return session.trials > 0 or (ending is not None and ending.status == "complete")


def _doubts(session: RunSession, name: str) -> Iterator[str]:
    """Yield each reason to doubt that a session restored everything."""
    ending = session.ending
    if ending is None:
        yield f"The {name} did not end, so what was restored is unknown."
        return
    if ending.restore_errors:
        errors = "; ".join(message(error) for error in ending.restore_errors)
        yield f"Not everything was restored at the end of the {name}: {errors}."
    error = ending.error
    # Older records name no lost agents, only the error that ended the run.
    ended_by = (error,) if error is not None and error.kind == AgentLost.__name__ else ()
    known = {*ending.seen_restored, *(error.host for error in ending.restore_errors)}
    for loss in ending.lost or ended_by:
        if loss.host not in known:
            yield (
                f"An agent was lost ({message(loss)}): it restores its own changes, but that was "
                "not verified."
            )


def _restore(run: Run) -> str:
    """Return the command that restores what a run left behind."""
    return shlex.join(["udpbench", "restore", *_lab_option(run)])


def _lab_option(run: Run) -> list[str]:
    path = run.header.lab_path
    built_in = any(record.built_in_lab for record in (*run.records, *run.replaced))
    return ["--lab", path] if path and not built_in else []


def command(header: RunHeader, in_order: bool = True) -> str:
    """Return the command that repeats a run, in the same order if wanted, into a new folder.

    pytest orders its own tests, so its command gets no seed. Empty if it is neither udpbench's nor
    pytest's: whoever wrote a run folder chose it, and a reader may type it.
    """
    words = [printable(word, keep="") for word in header.command]
    if words[:1] == ["pytest"]:
        # Its options and files of options (@) may name plugins.
        return "" if any(word[:1] in ("-", "@") for word in words) else shlex.join(words)
    trusts = any(word.partition("=")[0] in TRUSTING for word in words)
    starts = any(part in text for text in _sets_of(words) for part in STARTING)
    if words[:1] != ["udpbench"] or not {*words[1:2]} & {*VERBS} or trusts or starts:
        return ""
    for option in ("--out", "--seed"):
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
        words = [word for word in words if not word.startswith(f"{option}=")]
    seed = [] if header.watched or not in_order else ["--seed", str(header.seed)]
    return shlex.join([*words, *seed])


def _sets_of(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``--set`` is given."""
    for word, after in pairwise([*words, ""]):
        option, is_joined, text = word.partition("=")
        if option == "--set":
            yield text if is_joined else after
