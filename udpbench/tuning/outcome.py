"""The outcome of a tune as text: what it proves, the ladder, the recipe, what did not help.

Owns the wording that terminal, report and exit code share. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.analysis.points import but_lossy
from udpbench.analysis.remedies import BEYOND_SETTINGS, REMEDY_STEPS, TuningStep
from udpbench.differences import differences, flat
from udpbench.errors import CANNOT_TELL, YES
from udpbench.metrics import is_metric
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts
from udpbench.model.limits import Role, stage_of
from udpbench.model.result import Bottleneck
from udpbench.tuning.recipe import Form, Instruction, Ways, as_yaml, instructions
from udpbench.tuning.steps import is_allowed, sets_of, steps_against
from udpbench.tuning.tuner import BASE, ENDINGS, NOTHING, Tuning, is_useless, limiting, refused
from udpbench.units import plural, show_seconds

A_CABLE = "Proven in the built-in lab: with real hosts, cable, card and driver may change it."

UNPLACED = ("bounded_loss", "unaccounted", "unknown", "changed", "stranger", "unseen_rules")
"""Bottlenecks that do not say where packets were lost, so that no step can be against them."""
FORMS: dict[Form, str] = {
    "shell": "# as root",
    "systemd": "# systemctl edit the program's unit\n[Service]",
    "C": "/* in the program, before bind(2) */",
    "program": "# the program",
}
"""Form of an instruction → heading of its group."""


class TuningRung(NamedTuple):
    """One row of the ladder from the base to the recipe."""

    point: str
    changed: str
    """What its step sets, and in which scope; for the base its bottleneck."""
    gain: str
    """Compared with the rung below."""


@dataclass(frozen=True)
class TuningAnswer:
    """The answer of a tune."""

    sentence: str
    rungs: tuple[TuningRung, ...]
    recipe: str
    """As YAML; empty without one."""
    instructions: tuple[Instruction, ...]
    notes: tuple[str, ...]
    """What did not help, refuted diagnoses, and what the recipe replaces."""

    @property
    def commands(self) -> str:
        """Return what to type, below a line that says where; empty without a recipe."""
        parts = (
            (head, [line.text for line in self.instructions if line.form == form])
            for form, head in FORMS.items()
        )
        return "\n".join("\n".join([head, *lines]) for head, lines in parts if lines)


def exit_code(tuning: Tuning) -> int:
    """Return YES if something helped or nothing needs help, else CANNOT_TELL."""
    ending = tuning.ending
    healthy = ending is not None and ending.why == "nothing limits" and not ending.steps
    return YES if healthy or tuning.proven is not None else CANNOT_TELL


def answer_of(
    tuning: Tuning,
    facts: Mapping[Role, Facts],
    built_in_lab: bool,
    nodes: Ways,
) -> TuningAnswer:
    """Return the current answer of a tune; ``facts`` are of one host per role."""
    ending = tuning.ending
    steps = ending.steps if ending is not None else ()
    after = next((trial for trial in reversed(tuning.points)), tuning.base)
    sets = sets_of(steps)
    parts = [_sentence(tuning), A_CABLE if tuning.proven is not None and built_in_lab else ""]
    return TuningAnswer(
        " ".join(filter(None, parts)),
        tuple(_rungs(tuning)),
        as_yaml(sets) if steps else "",
        instructions(sets, after, facts, nodes) if steps else (),
        (*(_replaced(tuning.base, after) if steps else ()), *_notes(tuning)),
    )


def _sentence(tuning: Tuning) -> str:
    """Return the answer as a sentence."""
    ending, metric = tuning.ending, tuning.tune.metric
    if ending is None:
        return "The tune is not complete: some of its trials are missing."
    limits = ending.limits[0] if ending.limits else None
    if ending.steps:
        names = ", ".join(step.name for step in ending.steps)
        verdict = ending.proof.text if ending.proof is not None else "it was not remeasured"
        if tuning.proven is None:
            return f"Not proven: {metric} with {names}, remeasured: {verdict}."
        times = f"in turn with what it replaces, {tuning.proven.blocks} times each"
        head = f"Proven: with {names} {_gain(tuning.proven)}, measured {times}."
        return " ".join(filter(None, [head, _what_now(limits, ending.why)]))
    if limits is None:
        return "Cannot tell: no trial of the base could be diagnosed."
    if ending.why == "nothing limits":
        return f"Nothing needs help. {limits.sentence}{but_lossy(tuning.rounds[0].results)}"
    if ending.why == "unmeasured":
        return f"Cannot tell: {_unmeasured(tuning)}. {limits.sentence}"
    return _without_help(tuning, limits, ending.why)


def _gain(proof: Comparison) -> str:
    """Return what a recipe changes; the shares that were lost before and after follow it."""
    if not proof.share or not is_metric(proof.metric):
        return f"{proof.metric} is {proof.text}"
    return f"{proof.verdict} is lost"


def _without_help(tuning: Tuning, limits: Bottleneck, ended: str) -> str:
    """Return the answer where steps were to be tried, and none was kept."""
    tries = [each for each in tuning.rounds if each.planned.kind == "try"]
    if not tries and limits.name in UNPLACED:
        return f"Cannot tell what would help. {limits.sentence}"
    steps = {step.name: step for each in tries for step in each.planned.tried.values()}
    compared = [each.planned.tried[c.b].name for each in tries for c in each.comparisons]
    unknown = chain.from_iterable(each.undecided for each in tries)
    undecided = ", ".join(_in_full(steps[name]) for name in unknown)
    if undecided:
        why = f": {_too_short(tuning)}" if ended == "time" else ""
        why = f": {ENDINGS[ended]}" if ended == "broken" else why
        return f"Undecided whether {undecided} would help{why}. {_limit(limits)}"
    names = ", ".join(_in_full(steps[name]) for name in compared)
    if names and limits.name not in BEYOND_SETTINGS:
        return f"No tried step helps: {names}. {_limit(limits)}"
    excluded = _excluded(tuning)
    if not names and (
        excluded or stage_of(limits.name) in REMEDY_STEPS.keys() - BEYOND_SETTINGS.keys()
    ):
        return f"No step could be tried{excluded}. {limits.sentence}"
    beyond = BEYOND_SETTINGS.get(limits.name, limits.remedy)
    return f"No setting helps{f' (tried: {names})' if names else ''}: {beyond}. {_limit(limits)}"


def _in_full(step: TuningStep) -> str:
    """Return a step's name with what it sets, unless the name says that."""
    return step.name if "=" in step.name else f"{step.name} ({', '.join(step.sets)})"


def _excluded(tuning: Tuning) -> str:
    """Return which steps against the bottlenecks the user has excluded; empty if none."""
    tune, limits = tuning.tune, tuning.ending.limits if tuning.ending is not None else ()
    every = steps_against(limits, replace(tune, only=(), never=()), ())
    names = [_in_full(step) for step in every if not is_allowed(step, tune)]
    return f": --only or --never excludes {', '.join(names)}" if names else ""


def _too_short(tuning: Tuning) -> str:
    """Return by how much the time is too short for the round that it cut short."""
    cut = tuning.rounds[-1]
    before_ns = sum(each.took_ns for each in tuning.rounds[:-1])
    needed, spent, within, whole = (
        show_seconds(time_ns)
        for time_ns in (cut.needs_ns, before_ns, tuning.tune.within_ns, before_ns + cut.needs_ns)
    )
    trials = f"{cut.needed_blocks} blocks of {plural(len(cut.planned.points), 'trial')}"
    tried = "the time was up before that" if cut.results else "nothing was tried"
    return (
        f"{tried}. A try takes {trials}, about {needed}, and what comes before it {spent}: "
        f"raise --within from {within} to {whole} or more"
    )


def _unmeasured(tuning: Tuning) -> str:
    """Return why trials of the base have no comparable value."""
    findings = [each for result in tuning.rounds[0].results for each in result.findings]
    grave = [each.brief for each in findings if each.severity in ("invalid", "struck")]
    # A rate that is a bound is no number to compare, and a search says so first.
    searched = [each.brief for each in findings if each.where == "search"]
    return next(iter(grave + searched), f"trials of the base have no {tuning.tune.metric}")


def _limit(limits: Bottleneck) -> str:
    """Return what limits a point, without the remedy."""
    return f"{limits.place}{limits.why}"


def _what_now(limits: Bottleneck | None, why: str) -> str:
    """Return what limits the recipe, if anything does, and why no further step was tried."""
    now = f"Now: {_limit(limits)}" if limits is not None and limits.name != NOTHING else ""
    ended = f"No further step was tried: {ENDINGS[why]}." if why != "nothing limits" else ""
    return " ".join(filter(None, (now, ended)))


def _rungs(tuning: Tuning) -> Iterator[TuningRung]:
    """Yield the base, each kept step, removed steps, and the proof."""
    limits = tuning.first_limits
    yield TuningRung(BASE, _limit(limits[0]) if limits else "", "")
    kept = {step.name for step in tuning.ending.steps} if tuning.ending is not None else set()
    for each in tuning.rounds:
        if each.planned.kind == "try" and not each.block and each.best is not None:
            step = each.planned.tried[each.best.b]
            spared = "" if step.name in kept or tuning.ending is None else "; not needed in the end"
            yield TuningRung(each.best.b, f"{_changed(step)}{spared}", each.best.text)
        if each.planned.kind == "prove" and each.comparisons:
            (proof,) = each.comparisons
            names = ", ".join(step.name for step in each.planned.steps[proof.b])
            yield TuningRung(f"{proof.b} against {proof.a}", f"{names}, remeasured", proof.text)


def _changed(step: TuningStep) -> str:
    return f"{', '.join(step.sets)} ({step.scope})"


def _replaced(base: Trial, after: Trial) -> Iterator[str]:
    """Yield each value that the recipe changes, before and after."""
    plain = replace(after, point=base.point, variant=base.variant)
    before, now = (
        dict(flat({"send": t.send, "receive": t.receive, "settings": t.settings}))
        for t in (base, plain)
    )
    changes = [f"{each.key}: {each.change}" for each in differences(before, now)]
    if changes:
        yield f"changed: {', '.join(changes)}"


def _notes(tuning: Tuning) -> Iterator[str]:
    for comparison in tuning.without_help:
        head = "did not help" if is_useless(comparison) else "undecided"
        yield f"{head}: {comparison.b} against {comparison.a}: {comparison.text}"
    for name, comparisons in tuning.refuted.items():
        steps = "; ".join(f"{each.b}: {each.text}" for each in comparisons)
        yield f"refuted: {name} is not the bottleneck: {steps}"
    for each in tuning.rounds:
        for name, result in refused(each.results).items():
            why = next((finding.brief for finding in reversed(result.findings)), result.status)
            yield f"not tried: {name}: {why}"
        if each.begun and not limiting(each.results):
            yield f"no trial of round {tuning.rounds.index(each) + 1} could be diagnosed"
