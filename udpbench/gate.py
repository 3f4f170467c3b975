"""An experiment as a gate: run it once, and say of each point whether it holds, and why not.

Between the test framework and the rooms; knows no pytest. Everything it says comes from a run
folder, so a process that did not run the experiment says the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from rich.console import Console

from udpbench.analysis.exits import FAILED, YES, exit_code
from udpbench.analysis.expect import Verdict, compared_with, evaluate_at
from udpbench.analysis.medians import PointResult, medians
from udpbench.analysis.points import Point
from udpbench.control.run import RunOptions, Surroundings, run
from udpbench.control.turns import turn
from udpbench.definition.load import load_lab
from udpbench.errors import NotPermitted
from udpbench.model import Experiment, Lab, Progress
from udpbench.records import RUN_FILE, Run, RunHeader, RunWriter, now_utc, read_run
from udpbench.report.story import LAB_LABEL, Chapter, reason, tell
from udpbench.report.table import parts
from udpbench.units import show_pps, show_ratio

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Answer:
    """What a run says of one point."""

    outcome: Outcome
    why: str
    """The reasons, a line each, the gravest first; empty where it holds."""
    shown: str
    """Where it fails: results, ledger, findings and expectations, as text."""
    result: PointResult
    summary: str
    """One line for reading."""


@dataclass(frozen=True)
class Gate:
    """Runs experiments for tests: on the first lab that is free, into run folders below one."""

    lab_names: tuple[str, ...]
    folder: Path
    session: str
    """What run folders of one test session begin with, in all of its processes."""
    wait_ns: int
    surroundings: Surroundings | None = None

    @cached_property
    def labs(self) -> tuple[Lab, ...]:
        """The labs, read when first needed; raises InputError."""
        return tuple(load_lab(name) for name in self.lab_names)

    def folder_of(self, name: str) -> Path:
        """Return the run folder for what a test calls ``name``, the same in every process."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        last = re.sub(r"(\.udpbench)?\.ya?ml$", "", name.rpartition("/")[2])
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:60] or "run"
        return self.folder / f"{self.session}-{plain}-{digest}"

    def run(self, experiment: Experiment, name: str, tell: Callable[[Progress], None]) -> Run:
        """Return the run of an experiment: the stored one, where this session has run it already.

        Raises InputError, RecordError, and DeadlineExceeded where no lab becomes free.
        """
        labs = self.labs
        folder = self.folder_of(name)
        with _alone(folder):
            if not (folder / RUN_FILE).exists():
                with turn(labs, self.wait_ns) as lab:
                    self._run(experiment, lab, folder, tell)
            return read_run(folder)

    def _run(
        self, experiment: Experiment, lab: Lab, folder: Path, tell: Callable[[Progress], None]
    ) -> None:
        seed = int.from_bytes(os.urandom(4), "big")
        header = RunHeader(
            udpbench=version("udpbench"),
            started_at=now_utc(),
            command=tuple(sys.argv),
            seed=seed,
            lab_name=lab.name,
            lab_text=lab.text,
            experiments=(experiment,),
        )
        writer = RunWriter.create(folder, header)
        run([experiment], lab, writer, tell, RunOptions(seed), self.surroundings)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of a session run what they all read; the lock ends with its owner."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def restricted(experiment: Experiment, chosen: Collection[str]) -> Experiment:
    """Return the part of an experiment that it takes to judge some of its points."""
    needed = {name for point in chosen for name in compared_with(experiment, point)}
    points = tuple(trial for trial in experiment.points if trial.point in needed)
    known = [one for one in experiment.expect if _names(one.left.point, one.right.point) <= needed]
    return replace(experiment, points=points, expect=tuple(known))


def _names(*points: str | None) -> set[str]:
    return {point for point in points if point is not None}


def answer(stored: Run, point: str, width: int) -> Answer:
    """Return what a run says of one point; ``width`` is that of the text in columns."""
    (chapter,) = tell(stored.header.experiments, stored.records)
    experiment = chapter.experiment
    ran = {one.name: one for one in chapter.points}
    own, *others = (
        ran.get(name, Point(experiment.name, name, ()))
        for name in sorted(compared_with(experiment, point), key=lambda name: name != point)
    )
    verdicts = evaluate_at(experiment, chapter.results, point)
    outcome, reasons = _judged(stored, own, others, verdicts)
    shown = ""
    if outcome == "failed":
        needed = {one.name for one in (own, *others)}
        some = tuple(one for one in chapter.points if one.name in needed)
        part = replace(chapter, points=some, verdicts=verdicts)
        shown = f"{_told(part, width)}\n{_where(stored)}"
    result = medians(own)
    return Answer(outcome, "\n".join(reasons), shown, result, _summary(stored, own, result))


def whole(stored: Run, width: int) -> str:
    """Return everything a run says, as text, for a test that asserts on its numbers."""
    (chapter,) = tell(stored.header.experiments, stored.records)
    return f"{_told(chapter, width)}\n{_where(stored)}"


def _where(stored: Run) -> str:
    return f"run folder: {stored.folder}"


def _judged(
    stored: Run, own: Point, others: Sequence[Point], verdicts: Sequence[Verdict]
) -> tuple[Outcome, Sequence[str]]:
    """Return the outcome of a point and the reasons for it, the gravest first.

    ``others`` are those that it is compared with: what is wrong with them is wrong with its answer.
    """
    ended = _ended_early(stored)
    if ended is not None and ended[0] == NotPermitted.__name__:
        return "skipped", [ended[1]]
    repetitions = stored.header.experiments[0].repetitions
    if ended is not None and any(len(one.results) < repetitions for one in (own, *others)):
        return "failed", [f"the run ended early: {ended[1]}"]
    if own.skipped and own.results:
        return "skipped", _reasons(own)
    code = exit_code([result for one in (own, *others) for result in one.results], verdicts)
    if code == YES:
        unjudged = any(one.answer == "skipped" for one in verdicts)
        return ("skipped", _unasked(others)) if unjudged else ("passed", [])
    missed = [
        line
        for one in verdicts
        if one.answer in ("no", "cannot tell")
        for line in (f"expected: {one.expected}", f"measured: {one.measured}")
    ]
    doubts = [*_reasons(own), *(line for one in others for line in _of_other(one))]
    return "failed", [*doubts, *missed] if code == FAILED else [*missed, *doubts]


def _unasked(others: Sequence[Point]) -> list[str]:
    """Return why an expectation could not be judged, a line for each point that was skipped."""
    return [f"cannot be compared with {one.name}: {reason(one)}" for one in others if one.skipped]


def _of_other(point: Point) -> list[str]:
    return [f"compared with {point.name}: {line}" for line in _reasons(point)]


def _ended_early(stored: Run) -> tuple[str, str] | None:
    """Return kind and message of what ended a run before its last trial; None if nothing did."""
    if stored.ending is None:
        return "", "its process died"
    if stored.ending.error is not None:
        error = stored.ending.error
        host = f"{error['host']}: " if error["host"] else ""
        return error["kind"], f"{host}{error['message']}"
    return ("", "it was interrupted") if stored.ending.status == "interrupted" else None


def _reasons(own: Point) -> list[str]:
    """Return why trials of a point are failed, invalid or skipped, each reason once."""
    found: dict[str, None] = {}
    for result in own.results:
        for finding in result.findings:
            if finding.severity == "invalid" or result.status == "skipped":
                found[str(finding)] = None
    return list(found)


def _told(chapter: Chapter, width: int) -> str:
    """Return results, ledger, findings and expectations as plain text."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    if chapter.built_in_lab:
        console.print(LAB_LABEL, markup=False)
    for part in parts(chapter, width):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _summary(stored: Run, own: Point, result: PointResult) -> str:
    told = [
        f"{show_pps(result.delivered_pps)} delivered",
        f"{show_ratio(result.loss_ratio)} lost",
        f"{result.valid_trials}/{len(own.results)} valid",
    ]
    if any(one.built_in_lab for one in stored.records):
        told.append(LAB_LABEL.partition(":")[0])
    return ", ".join(told)
