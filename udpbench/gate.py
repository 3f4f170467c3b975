"""An experiment as a gate: runs it once, and returns for each point the outcome and the reasons.

Between the test framework and the rooms; does not know pytest. Everything is read from the run
folder, so that a process that did not run the experiment gives the same answer.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from udpbench.analysis.comparison.comparisons import (
    SKIPPED,
    Comparison,
    compare_unpaired,
    without_replaced,
)
from udpbench.analysis.comparison.point_results import PointResult, medians
from udpbench.analysis.points import Point
from udpbench.analysis.verdicts import (
    Verdict,
    compared_with,
    evaluate_at,
    exit_code,
    nothing_measured,
)
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run, run_name
from udpbench.definition.load import load_lab
from udpbench.errors import (
    CANNOT_TELL,
    FAILED,
    YES,
    InputError,
    NotPermitted,
    Problem,
    RecordError,
    StoreError,
)
from udpbench.folder import LOCK_FILE, Folder, lock_file
from udpbench.judged_run import Chapter, chapters_of
from udpbench.metrics import SEARCHED
from udpbench.model.experiment import CompareSpec, Experiment
from udpbench.model.lab import Lab
from udpbench.model.record import Finding
from udpbench.model.result import Progress, Result
from udpbench.printable import printable
from udpbench.proven_kernels import kept
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, Run, new_header
from udpbench.records.writer import RunWriter
from udpbench.report.search import found_text
from udpbench.report.summary import (
    LAB_LABEL,
    findings_in,
    merged,
    message,
    reason,
    trials_label,
)
from udpbench.report.tables import parts
from udpbench.report.terminal import Terminal
from udpbench.units import show_percent, show_pps, show_ratio

UNJUDGED = "could not be judged on this machine"
Outcome = Literal["passed", "failed", "cannot tell", "skipped"]


@dataclass(frozen=True)
class Answer:
    """The outcome of one point."""

    outcome: Outcome
    why: str
    """The reasons, one per line, the most serious first; empty if it passed."""
    shown: str
    """If it did not pass: results, ledger, findings and expectations, as text."""
    result: PointResult
    summary: str
    """One line with rate, loss and valid trials."""


@dataclass(frozen=True)
class Baseline:
    """Stored runs; no point may be worse than them by more than a margin."""

    runs: tuple[Run, ...]
    margin: float

    @cached_property
    def trials(self) -> dict[tuple[bool, str, str], list[Sequence[Result]]]:
        """The trials of each point, run by run, by lab (built-in or not) and question."""
        trials: dict[tuple[bool, str, str], list[Sequence[Result]]] = {}
        for stored in self.runs:
            for chapter in chapters_of(stored):
                for point in chapter.points:
                    trials.setdefault(_place(chapter, point.name), []).append(point.results)
        return trials


@dataclass(frozen=True)
class Gate:
    """Runs experiments for tests: on the first free lab, into run folders in ``folder``."""

    lab_names: tuple[str, ...]
    folder: Path
    session: str
    """Prefix of the run folders of one test session, the same in all of its processes."""
    wait_ns: int
    surroundings: Surroundings | None = None
    baselines: tuple[Path, ...] = ()
    margin: float | None = None

    @cached_property
    def baseline(self) -> Baseline | None:
        """The runs to compare with, read on first use; raises RecordError, InputError."""
        if not self.baselines:
            return None
        if self.margin is None:
            step = "say how much worse a point may be, for example --udpbench-margin 3%"
            raise InputError([Problem("missing", "--udpbench-margin", next_step=step)])
        folders = {folder.resolve(): folder for folder in self.baselines}.values()
        return Baseline(tuple(read_run(folder) for folder in folders), self.margin)

    @cached_property
    def labs(self) -> tuple[Lab, ...]:
        """The labs, read on first use; raises InputError."""
        return tuple(load_lab(name) for name in self.lab_names)

    def folder_of(self, name: str) -> Path:
        """Return the run folder of an experiment's ``name``, the same in every process."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        last = re.sub(r"(\.udpbench)?\.ya?ml$", "", name.rpartition("/")[2])
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:60] or "run"
        return self.folder / f"{self.session}-{plain}-{digest}"

    def run(
        self,
        experiment: Experiment,
        name: str,
        command: tuple[str, ...],
        tell: Callable[[Progress], None],
    ) -> Run:
        """Return the run of an experiment; the stored one if this session has already run it.

        ``command`` goes into its header. Raises InputError, RecordError; with several labs also
        DeadlineExceeded, Interrupted, ConnectError.
        """
        labs = self.labs
        folder = self.folder_of(name)
        with _alone(folder) as held:
            if RUN_FILE not in held.names():
                self._run(experiment, labs, folder, command, tell)
            return read_run(folder, held.fd)

    def _run(
        self,
        experiment: Experiment,
        labs: Sequence[Lab],
        folder: Path,
        command: tuple[str, ...],
        tell: Callable[[Progress], None],
    ) -> None:
        around = self.surroundings or Surroundings()
        terms = Terms(wait_ns=self.wait_ns, next_step="let it end, or raise udpbench_wait")
        with ExitStack() as stack:
            lab, agents = labs[0], None
            if len(labs) > 1:  # the header names the lab, so the lab is taken first
                stack.enter_context(around.interrupt.caught())
                choice = take_lab(labs, run_name(), RunOptions.lease_ns, around, terms, tell)
                lab, agents = stack.enter_context(choice)
            header = new_header([experiment], lab, command)
            options = RunOptions(header.seed, terms=terms, proven=kept)
            writer = RunWriter.create(folder, header)
            outcome = run([experiment], lab, writer, tell, options, around, agents=agents)
        if isinstance(outcome.error, StoreError):  # the folder is gone or incomplete
            raise (*outcome.restore_errors, outcome.error)[0]


@contextmanager
def _alone(folder: Path) -> Iterator[Folder]:
    """Let one process of a session at a time use a run folder; the lock ends with its process.

    Raises RecordError if others may have written it: its name can be guessed.
    """
    step = "name another with --udpbench-out"
    try:
        held = Folder.open(folder, make=True)
    except OSError as error:
        raise RecordError(f"{folder}: cannot be made: {error.strerror}; {step}") from error
    with held:
        try:
            lock = held.lock()
        except OSError as error:
            raise RecordError(
                f"{folder}: its {LOCK_FILE} {error.strerror}, so a run in it may be forged; {step}"
            ) from error
        with os.fdopen(lock):
            lock_file(lock, wait=True)  # of a process of this user, which may measure for hours
            is_new = held.names() == [LOCK_FILE]
            if is_new:
                held.close_to_others()  # umask(2) may let a group write it
            already = (
                f"holds {name} of somebody else"
                for name in held.names()
                if is_new and name != LOCK_FILE
            )
            for how in (*held.other_writers(), *already):
                raise RecordError(f"{folder}: {how}, so a run in it may be forged; {step}")
            yield held


def restricted(experiment: Experiment, chosen: Collection[str]) -> Experiment:
    """Return the part of an experiment that is needed to judge some of its points."""
    needed = {name for point in chosen for name in compared_with(experiment, point)}
    points = tuple(trial for trial in experiment.points if trial.point in needed)
    expectations = [e for e in experiment.expect if _names(e.left.point, e.right.point) <= needed]
    pairs = tuple(pair for pair in experiment.compare if {pair.a, pair.b} <= needed)
    return replace(experiment, points=points, expect=tuple(expectations), compare=pairs)


def _names(*points: str | None) -> set[str]:
    return {point for point in points if point is not None}


def _place(chapter: Chapter, point: str) -> tuple[bool, str, str]:
    return chapter.built_in_lab, chapter.experiment.question, point


def answer(stored: Run, point: str, width: int, baseline: Baseline | None = None) -> Answer:
    """Return the answer of a run for one point; ``width`` is that of its text, in columns.

    If the baseline has the point too, it passes only if it is proven to be no worse.
    """
    (chapter,) = chapters_of(stored)
    experiment = chapter.experiment
    ran = {each.name: each for each in chapter.points}
    own, *others = (
        ran.get(name, Point(experiment.name, name, ()))
        for name in sorted(compared_with(experiment, point), key=lambda name: name != point)
    )
    verdicts = evaluate_at(experiment, chapter.results, point)
    compared = [comparison for comparison in chapter.comparisons if comparison.b == point]
    replaced = chapter.comparisons
    sides = [
        replace(p, results=tuple(without_replaced(p.results, replaced))) for p in (own, *others)
    ]
    outcome, reasons = _judged(stored, sides[0], sides[1:], verdicts, compared)
    if outcome == "skipped" and nothing_measured(chapter.results) and nothing_measured(own.results):
        outcome, reasons = "failed", ["nothing was measured", *reasons]
    base = baseline.trials.get(_place(chapter, point)) if baseline is not None else None
    if outcome == "passed" and baseline is not None and base is not None:
        outcome, reasons = _against(base, own, baseline)
    shown = ""
    if outcome in ("failed", "cannot tell"):
        needed = {each.name for each in (own, *others)}
        some = tuple(each for each in chapter.points if each.name in needed)
        part = replace(chapter, points=some, verdicts=verdicts)
        shown = f"{_chapter_text(part, width)}\n{_where(stored)}"
    result = medians(own, str(stored.folder))
    why, summary = (
        printable(text) for text in ("\n".join(reasons), _summary(chapter, own, result))
    )
    return Answer(outcome, why, shown, result, summary)


def _against(
    base: Sequence[Sequence[Result]], own: Point, baseline: Baseline
) -> tuple[Outcome, Sequence[str]]:
    """Return the outcome of a point that is compared with a baseline, and the reasons."""
    comparison = compare_unpaired(base, [own.results], experiment_metric(own), baseline.margin)
    runs = ", ".join(str(run.folder) for run in baseline.runs)
    text = f"{comparison.metric} against {runs}: {comparison.text}"
    if not comparison.between_runs:
        text += "; the interval does not include scatter between runs"
    if comparison.beyond_margin is None:
        limit = show_percent(baseline.margin, ".3g")
        return "cannot tell", [f"{UNJUDGED}: whether it is worse by more than {limit}: {text}"]
    return ("failed", [f"worse: {text}"]) if comparison.beyond_margin else ("passed", [])


def experiment_metric(own: Point) -> str:
    """Return the metric by which a point is compared with a baseline."""
    searched = any(result.trial.search is not None for result in own.results)
    return SEARCHED[0] if searched else CompareSpec.metric


def stored_results(folder: Path) -> dict[str, PointResult]:
    """Return point → its result of a stored run of one experiment; raises RecordError."""
    stored = read_run(folder)
    chapters = chapters_of(stored)
    if len(chapters) != 1:
        raise RecordError(f"{folder}: holds {len(chapters)} experiments; name a run of one")
    return {point.name: medians(point, str(stored.folder)) for point in chapters[0].points}


def full_text(stored: Run, width: int) -> str:
    """Return results, ledger, findings and expectations of a run, as text."""
    (chapter,) = chapters_of(stored)
    return f"{_chapter_text(chapter, width)}\n{_where(stored)}"


def _where(stored: Run) -> str:
    return printable(f"run folder: {stored.folder}")


def _judged(
    stored: Run,
    own: Point,
    others: Sequence[Point],
    verdicts: Sequence[Verdict],
    compared: Sequence[Comparison],
) -> tuple[Outcome, Sequence[str]]:
    """Return the outcome of a point and its reasons, the most serious first.

    ``others`` are the points it is compared with; their problems are problems of its answer.
    """
    ended = _ended_early(stored)
    if ended is not None and ended[0] == NotPermitted.__name__:
        return "skipped", [ended[1]]
    trials_of = stored.header.experiments[0].trials_of
    if ended is not None and any(
        len(each.results) < trials_of(each.name)[0] for each in (own, *others)
    ):
        return "failed", [f"the run ended early: {ended[1]}"]
    if own.skipped and own.results:
        return "skipped", _reasons(own)
    results = [result for each in (own, *others) for result in each.results]
    code = exit_code(results, verdicts, comparisons=compared)
    if code == YES:
        unjudged = any(verdict.answer == "skipped" for verdict in verdicts)
        unjudged = unjudged or any(comparison.verdict == SKIPPED for comparison in compared)
        return ("skipped", _unasked(others)) if unjudged else ("passed", [])
    missed = [
        line
        for verdict in verdicts
        if verdict.answer in ("no", "cannot tell")
        for line in (f"expected: {verdict.expected}", f"measured: {verdict.measured}")
    ]
    missed += [
        f"compared: {comparison.b} against {comparison.a}: {comparison.metric}: {comparison.text}"
        for comparison in compared
        if comparison.worse or not comparison.answered
    ]
    doubts = _reasons(own)
    doubts += [f"compared with {p.name}: {line}" for p in others for line in _reasons(p)]
    if code == CANNOT_TELL:
        first, *more = (*doubts, *missed, "no reason known")
        return "cannot tell", [f"{UNJUDGED}: {first}", *more[:-1]]
    return "failed", [*doubts, *missed] if code == FAILED else [*missed, *doubts]


def _unasked(others: Sequence[Point]) -> list[str]:
    """Return why an expectation could not be judged, a line for each point that was skipped."""
    return [
        f"cannot be compared with {other.name}: {reason(other)}"
        for other in others
        if other.skipped
    ]


def _ended_early(stored: Run) -> tuple[str, str] | None:
    """Return kind and message of the error that ended a run early; None if it is complete."""
    if stored.ending is None:
        return "", "its process died"
    if stored.ending.error is not None:
        error = stored.ending.error
        return stored.ending.kind, message(error)
    return ("", "it was interrupted") if stored.ending.status == "interrupted" else None


def _reasons(own: Point) -> list[str]:
    """Return why trials of a point are failed, invalid or skipped, each reason once.

    With the trials that have it, if not all have.
    """
    grave = [
        replace(result, findings=tuple(filter(partial(_is_grave, result), result.findings)))
        for result in own.results
    ]
    return [
        f"{finding}{f' [{trials_label(names)}]' if len(names) < len(own.results) else ''}"
        for finding, names in merged(findings_in(grave))
    ]


def _is_grave(result: Result, finding: Finding) -> bool:
    unfinished = result.unfinished and finding.where == "search"
    grave = finding.severity in ("invalid", "struck")
    return grave or unfinished or result.status == "skipped"


def _chapter_text(chapter: Chapter, width: int) -> str:
    """Return results, ledger, findings and expectations as plain text."""
    out = io.StringIO()
    console = Terminal(file=out, width=width, color_system=None)
    if chapter.built_in_lab:
        console.print(LAB_LABEL)
    for part in parts(chapter, width):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _summary(chapter: Chapter, own: Point, result: PointResult) -> str:
    rate = [f"{show_pps(result.delivered_pps)} delivered", f"{show_ratio(result.loss_ratio)} lost"]
    searches = [each for each in chapter.searches if each.point.point == own.name]
    if searches:
        rate = [f"{show_pps(result.throughput_pps)} throughput"]
        # A median of bounds is none: of such a search its own words.
        if result.throughput_pps is None or any(s.headline.kind != "regular" for s in searches):
            rate = list(dict.fromkeys(found_text(each) for each in searches))
    parts = [
        *rate,
        f"{result.valid_trials}/{len(own.results)} valid",
    ]
    if chapter.built_in_lab:
        parts.append(LAB_LABEL.partition(":")[0])
    return ", ".join(parts)
