"""A run for reading: per experiment its points, its verdicts and the answer in words.

Owns the wording that terminal, document and JSON share; every number comes from ``judge``. Long,
because each sentence is here once, with the choice between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from udpbench.analysis.checks.cpu_checks import STRUCK_OUT
from udpbench.analysis.comparison.comparisons import RESOLVED, Comparison, resolution
from udpbench.analysis.cpu_use import OF_CPU
from udpbench.analysis.ledger.between import AHEAD
from udpbench.analysis.ledger.ledger import lost_by_place, worst_place
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.points import Point, but_lossy, estimate, metric
from udpbench.analysis.search import NOT_FIRST
from udpbench.analysis.verdicts import Verdict, nothing_measured
from udpbench.errors import HostLacks
from udpbench.judged_run import Chapter
from udpbench.model.experiment import Experiment
from udpbench.model.host import Facts
from udpbench.model.record import Finding, RecordedError, TrialRecord
from udpbench.model.result import Bottleneck, Estimate, Progress, Result, rest_of
from udpbench.records.run import Run
from udpbench.report.search import search_line
from udpbench.units import plural, rate_scale, show_count, show_pps, show_ratio

SCALES = {
    "ns": ((10**9, "s"), (10**6, "ms"), (10**3, "µs")),
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}
COUNTED = ("packets", "calls", "skbs", "files", "CPUs")
"""Units of which there can be a single one."""
MANY = 1000
"""From here on all digits of a number are shown, in groups."""
LOGGING = "app_log"
"""The only stage whose packets were received: those that could not be logged."""
FEW_POINTS = 3
"""Maximum points that are described one by one; beyond it only the extreme ones."""
MOST_NAMED = 100
"""Maximum characters of the names of points that share a diagnosis; beyond it they are counted."""
FEW_TRIALS = 3
"""Maximum trials that are named; beyond it they are counted."""
MEANT = {stage.name: stage for stage in (AHEAD, *STAGES)}
"""Stage by name; records of another version may have others."""
QUANTITY = re.compile(r"[+-]?\d+(\.\d+)?")
SHARES = re.compile(r"(\d+(?:\.\d+)?)(?: – (\d+(?:\.\d+)?))? %")
BEFORE_QUANTITY = ("", "by", "of", "to", "in", "dropped", "packets,")
MOST_FINDINGS = 2000
"""Most findings listed of an experiment; a host, or a file, may say any number."""
Names = tuple[str, ...]
LAB_LABEL = "built-in lab: namespaces of one machine, no hardware"


def ended(run: Run) -> list[str]:
    """Return the lines that say how a run ended; empty if it ended well."""
    ending = run.ending
    if ending is None:
        return ["the run did not end: it was killed, or is still running"]
    lines = [f"not restored: {message(error)}" for error in ending.restore_errors]
    if ending.status == "interrupted":
        lines.append("the run was interrupted")
    if ending.status == "failed":
        what = "nothing was measured" if ending.kind == HostLacks.__name__ else "the run failed"
        lines.append(f"{what}: {message(ending.error or RecordedError())}")
    return lines


def message(error: RecordedError) -> str:
    """Return a recorded error's message in one line, behind the name of its host."""
    text = "; ".join(error.message.splitlines())
    return f"{error.host}: {text}" if error.host else text


def hosts_of(records: Sequence[TrialRecord]) -> dict[str, Facts]:
    """Return every host with its facts from the latest trial."""
    return {host: facts for record in records for host, facts in record.facts.items()}


def representative(point: Point) -> Result | None:
    """Return the trial whose ledger stands for its point: the median delivered of those that count.

    These are the valid ones whose rates hold, and of bursts all valid ones, so that number, reason
    and picture are of the same trials; without any the valid ones. Without a valid trial it is the
    first complete one, so that its packets can still be traced.
    """
    counted = [r for r in point.valid if not r.struck or r.trial.traffic.is_burst]
    ranked = sorted(counted or point.valid, key=lambda result: result.received_packets or 0)
    if ranked:
        return ranked[(len(ranked) - 1) // 2]
    return point.done[0] if point.done else None


def timed(point: Point) -> Result | None:
    """Return the representative of the trials whose rates and times are not struck out."""
    return representative(replace(point, results=tuple(r for r in point.results if not r.struck)))


def represented(chapter: Chapter) -> list[tuple[Point, Result]]:
    """Return the points that have a representative trial, each with it."""
    shown = ((point, representative(point)) for point in chapter.points)
    return [(point, result) for point, result in shown if result is not None]


def explained(chapter: Chapter) -> list[tuple[Point, Result]]:
    """Return the points with the trial whose loss is explained, if they have one.

    That by which an expectation of several trials does not hold; else the representative one.
    """
    missed: dict[str, str] = {}
    for verdict in chapter.verdicts:
        for name, _, number in (trial.rpartition(" #") for trial in sorted(verdict.missed)):
            missed.setdefault(name, number)
    return [(point, _numbered(point, missed) or result) for point, result in represented(chapter)]


def _numbered(point: Point, numbers: Mapping[str, str]) -> Result | None:
    """Return a point's trial by its repetition; None without one."""
    number = numbers.get(name_of(point))
    done = point.done if number is not None else ()
    return next((result for result in done if str(result.trial.repetition) == number), None)


def accounted(chapter: Chapter) -> list[tuple[Point, Result]]:
    """Return those that have a ledger to show."""
    return [each for each in explained(chapter) if each[1].ledger is not None]


T = TypeVar("T")


def in_groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield items in runs of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def not_run(*chapters: Chapter) -> str:
    """Return how many trials are stored, in words; empty if all are."""
    planned = sum(
        chapter.experiment.trials_of(trial.point)[0]
        for chapter in chapters
        for trial in chapter.experiment.points
    )
    if not any(chapter.searches or chapter.records for chapter in chapters):
        return "no trial is stored"
    # A search of which no trial ran is begun anew by a resumed run.
    ran = sum(
        sum(any(trial.status != "failed" for trial in search.trials) for search in chapter.searches)
        if chapter.searches
        else len(chapter.records)
        for chapter in chapters
    )
    what = "searches" if all(chapter.searches for chapter in chapters) else "trials"
    return f"{ran} of {planned} {what} are stored" if ran < planned else ""


def not_measured(chapter: Chapter) -> str:
    """Return why nothing of an experiment was measured; empty if something was."""
    if not nothing_measured(chapter.results):
        return ""
    (why, *_) = (result for result in chapter.results if result.unavailable)
    return f"nothing was measured: all trials were {reasons(why)[0].what}"


def trials_label(names: Sequence[str]) -> str:
    """Return the trials that a finding concerns: ``small #2``, or a number if they are many."""
    if len(names) > FEW_TRIALS:
        return f"{len(names)} trials"
    short = (name.partition("::")[2] or f"#{name.rpartition('#')[2]}" for name in names)
    return ", ".join(name if name.startswith("#") else name.replace("#", " #") for name in short)


def n_of(median: Estimate, point: Point) -> str:
    """Return of how many trials a median is, if valid ones are left out: ``left_out`` says why."""
    return f" (n = {median.n})" if median.n < len(point.valid) else ""


def show_estimate(rate: Estimate | None) -> str:
    """Return a rate's median and interval for reading: ``352.1 kpps [340.0 – 360.2]``."""
    if rate is None:
        return "–"
    if rate.low is None or rate.high is None:
        return show_pps(rate.median)
    scale, _, digits = rate_scale(rate.median)
    low, high = (f"{value / scale:.{digits}f}" for value in (rate.low, rate.high))
    return f"{show_pps(rate.median)} [{low} – {high}]"


def show_number(value: float | None, unit: str) -> str:
    """Return a measured number for reading, in a scale that suits its unit: ``12.3 µs``, ``4 MiB``.

    Rounded to four digits, never parsed.
    """
    if value is None:
        return "–"
    if unit == "pps":
        return show_pps(value)
    if unit == "ratio":
        return show_ratio(value)
    for scale, name in SCALES.get(unit, ()):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    text = show_count(value) if abs(value) >= MANY else f"{value:.4g}"
    return f"{text} {unit.removesuffix('s') if value == 1 and unit in COUNTED else unit}"


def resolved(comparisons: Sequence[Comparison]) -> list[str]:
    """Return what the scatter of blocks resolves: ``this lab tells 6 % in 7 blocks, 2.7 % in 15``.

    Of several comparisons the best and the worst: ``3 – 6 %``; each as if it were the only one.
    """
    lines = []
    alone = ", for one comparison alone" if len(comparisons) > 1 else ""
    for share, unit in ((False, "%"), (True, "percentage points")):
        known = [
            each
            for comparison in comparisons
            if comparison.share == share and (each := resolution(comparison))
            # Where few blocks are far off, their scatter says less than the interval does.
            if not _is_narrower(comparison, min(each.values()))
        ]
        if known:
            few, many = RESOLVED
            less, more = (_ends([each[blocks] for each in known]) for blocks in RESOLVED)
            line = f"this lab tells {less} {unit} in {few} blocks, {more} {unit} in {many}"
            lines.append(line + alone)
    return lines


def _is_narrower(comparison: Comparison, resolved_change: float) -> bool:
    """Return whether an interval is narrower than what its blocks' scatter is said to resolve."""
    if comparison.low is None or comparison.high is None:
        return False
    return comparison.high - comparison.low < resolved_change


def _ends(changes: Sequence[float]) -> str:
    least, most = (f"{100 * pick(changes):.2g}" for pick in (min, max))
    return least if least == most else f"{least} – {most}"


def name_of(point: Point) -> str:
    """Return a point's name for reading; ``all`` for the point of an experiment without any."""
    return point.name or "all"


def compared_name(comparison: Comparison) -> str:
    """Return what is compared with what."""
    a, b = (point or "all" for point in (comparison.a, comparison.b))
    return b if a == b else f"{b} against {a}"


def where_lost(result: Result) -> Iterator[str]:
    """Yield where a trial lost most, and the share of received packets that was not logged."""
    worst = worst_stage(result)
    if worst:
        yield f"most of it at {worst}"
    unlogged = metric(result, LOGGING)
    if unlogged and result.received_packets:
        yield f"{show_ratio(unlogged / result.received_packets)} of what arrived was not logged"


def trust(chapters: Sequence[Chapter]) -> str:
    """Return how many trials count, and the state of the expectations, as one sentence."""
    tried, name = _tried(chapters)
    parts = _uncounted(chapters)
    if tried and all(result.valid and not result.struck for result in tried):
        alone, both = f"the one {name} is", f"both {_plural(name)} are"
        all_ = {1: alone, 2: both}.get(len(tried), f"all {len(tried)} {_plural(name)} are")
        parts = [f"{all_} valid", *parts]
    parts += _expectations([verdict for chapter in chapters for verdict in chapter.verdicts])
    return _sentence(parts)


def doubts(chapter: Chapter, of_rates: bool = True) -> str:
    """Return which trials do not count, and why, as a sentence; empty if all do.

    Unless ``of_rates``, those whose rates alone are struck out do.
    """
    return _sentence(_uncounted([chapter], of_rates))


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _tried(chapters: Sequence[Chapter]) -> tuple[list[Result], str]:
    """Return the results of what was not skipped, and what each of them is of."""
    tried = [r for chapter in chapters for r in chapter.results if r.status != "skipped"]
    kinds = {bool(chapter.searches) for chapter in chapters}
    return tried, "measurement" if len(kinds) > 1 else "search" if kinds == {True} else "trial"


def _plural(name: str) -> str:
    return "searches" if name == "search" else f"{name}s"


def _uncounted(chapters: Sequence[Chapter], of_rates: bool = True) -> list[str]:
    """Return how many trials do not count or are missing, each kind with the reason."""
    tried, name = _tried(chapters)
    several = _plural(name)
    invalid = [result for result in tried if not result.valid]
    struck = [result for result in tried if result.valid and result.struck and of_rates]
    parts = []
    if invalid and len(invalid) == len(tried):
        none = f"none of the {len(tried)} {several} is valid"
        parts.append(f"the one {name} is not valid" if len(tried) == 1 else none)
    elif invalid:
        verb = "is" if len(invalid) == 1 else "are"
        what = f"{len(invalid)} of {len(tried)} {several} {verb} not counted (invalid)"
        parts.append(_because(what, invalid))
    if struck:
        some = f"{len(struck)} of {len(tried)}" if len(struck) < len(tried) else f"all {len(tried)}"
        whose = f"{some} {several}" if len(tried) > 1 else f"the one {name}"
        parts.append(_because(f"the rates, not the losses, of {whose} are struck out", struck))
    every = sum(len(chapter.results) for chapter in chapters)
    skipped = every - len(tried)
    if skipped:
        what = plural(every, name) if every == 1 else f"{every} {several}"
        parts.append(f"{skipped} of {what} {'was' if skipped == 1 else 'were'} skipped")
    if not_run(*chapters):
        parts.append(not_run(*chapters))
    return parts


def _because(what: str, results: Sequence[Result]) -> str:
    """Return what does not count, and the reason of most trials of which that is so."""
    causes = [reasons(result)[0].clause for result in results]
    often = max(causes, key=causes.count)
    return f"{what}, {'' if len(set(causes)) == 1 else 'mostly '}because {often}"


def worst_stage(result: Result) -> str:
    """Return the place that lost most of a trial's packets; empty without one, or if unknown."""
    if result.ledger is None:
        return ""
    lost = {p: n for p, n in lost_by_place(result.ledger).items() if p not in NOT_FIRST}
    worst = worst_place(lost)
    return worst if lost.get(worst, 0) >= (result.ledger.unaccounted or 0) else ""


def left_out(chapter: Chapter) -> list[str]:
    """Return which trials are left out of medians, those with the same reason together, and why."""
    alike: dict[str, list[str]] = {}
    for point in chapter.points:
        for result in point.results:
            why = _left_out(result, estimate(point, "delivered_pps") is not None)
            if why:
                alike.setdefault(why, []).append(f"{name_of(point)} #{result.trial.repetition}")
    return [
        f"{', '.join(names) if len(names) <= FEW_TRIALS else f'{len(names)} trials'}: {why}"
        for why, names in alike.items()
    ]


def _left_out(result: Result, of_median: bool) -> str:
    """Return why a trial is left out of a median; empty if it is in all, or was never tried."""
    if result.status == "skipped":
        return ""
    if reasons(result):
        word = word_of(result)
        alone = " (rates alone; its loss counts)" if result.valid else ""
        return f"{word}{alone}: {_cause(reasons(result)[0]).removeprefix(f'{word}: ')}"
    lacks = of_median and result.delivered_pps is None
    return "its delivered rate is unknown: everything was read at once" if lacks else ""


def _cause(finding: Finding) -> str:
    """Return a finding's text without what it strikes out, which is said beside it."""
    return finding.what.removesuffix(STRUCK_OUT["struck"])


def word_of(result: Result) -> str:
    """Return what a trial is that is left out, such as ``struck out`` or ``invalid``."""
    if result.valid:
        return "struck out"
    return "invalid" if result.status == "done" else result.status


def diagnosed(chapter: Chapter) -> list[str]:
    """Return a sentence for each cause of a loss at any point, alike points together.

    With the numbers of the shown trial that lost most by it, else of the first one; of an invalid
    trial with the reason.
    """
    limited: dict[str, list[tuple[Point, tuple[Bottleneck, ...]]]] = {}
    for point, result in explained(chapter):
        if result.diagnosis:
            main = [each for each in result.diagnosis[1:] if each.share is not None]
            causes = (result.diagnosis[0], *main)
            key = " ".join(f"{each.name} {each.stage}" for each in causes)
            limited.setdefault(key, []).append((point, causes))
    lines = []
    for alike in limited.values():
        point, causes = max(alike, key=lambda pair: pair[1][0].packets)
        worst_of = causes[0]
        names = [name_of(point) for point, _ in alike]
        head = ", ".join(names)
        head = head if len(head) <= MOST_NAMED else f"{len(names)} points"
        if len({_sentences(each) for _, each in alike}) > 1:
            head += f" (numbers of {name_of(point)})"
        but = "" if worst_of.stage else but_lossy([r for point, _ in alike for r in point.results])
        text = _sentences(causes) + but
        if not point.valid:
            text = f"Invalid, {reason(point)}. {text}"
        lines.append(f"{head}: {text}" if len(chapter.points) > 1 else text)
    return lines


def _sentences(causes: Sequence[Bottleneck]) -> str:
    known = sum(each.share or 0.0 for each in causes)
    rest = rest_of([replace(causes[0], share=known)])  # each cause has its own sentence
    return " ".join(each.sentence for each in causes) + rest


def reasons(result: Result) -> tuple[Finding, ...]:
    """Return what invalidates a trial or strikes out its rates, or why it was skipped."""
    if result.status == "skipped":
        return tuple(finding for finding in result.findings if finding.kind == "skipped")
    invalid = tuple(finding for finding in result.findings if finding.severity == "invalid")
    return invalid + result.struck


def reason(point: Point) -> str:
    """Return why a point has no value: the first reason of any trial."""
    texts = [finding.what for result in point.results for finding in reasons(result)]
    return texts[0] if texts else "no reason known"


def _expectations(verdicts: Sequence[Verdict]) -> list[str]:
    """Return for each answer how many expectations have it, in words."""
    lines = []
    for answer, singular, several in (
        ("yes", "holds", "hold"),
        ("no", "does not hold", "do not hold"),
        ("cannot tell", "cannot be judged", "cannot be judged"),
        ("skipped", "was skipped", "were skipped"),
    ):
        n = sum(verdict.answer == answer for verdict in verdicts)
        if n:
            lines.append(f"{n} of {len(verdicts)} expectations {singular if n == 1 else several}")
    return lines


def asked(experiment: Experiment) -> str:
    """Return an experiment's question on one line: another's could imitate what follows it."""
    return " ".join(experiment.question.split())


def first_reason(result: Result) -> str:
    """Return why a trial has no rates, or none that count; empty if it has."""
    findings = reasons(result)
    if not findings:
        return ""
    where = f"{findings[0].where}: " if findings[0].where else ""
    return where + _cause(findings[0])


def one_line(result: Result, known: str = "") -> str:
    """Return one trial as a line: rates and loss, or why it has none; not a ``known`` reason."""
    text = f"{show_pps(result.delivered_pps)} delivered, {show_ratio(result.loss_ratio)} lost"
    text = ", ".join([text, *where_lost(result)])
    why = first_reason(result)
    if not why or result.status != "done":
        return why or text
    return f"{word_of(result)}{' as before' if why == known else f': {why}'} ({text})"


def event_line(progress: Progress, known: str = "") -> str:
    """Return an event as a line: ``[3/12] one#3: done: 350.1 kpps delivered, 0.00 % lost``.

    ``known`` is the reason that the trial before had.
    """
    text = ""
    if progress.event == "search":
        return search_line(progress)
    record, result = progress.record, progress.result
    if record is not None and result is not None and record.error is None:
        load = _load(progress) if result.trial.search_trial else ""
        text = f": {load}{one_line(result, known)}"
    return f"{progress.place} {progress.text}{text}".lstrip()


def _load(progress: Progress) -> str:
    """Return the load of a search's trial."""
    rate = progress.trial.traffic.rate if progress.trial is not None else None
    return f"{show_pps(rate.packets_per_s)} intended, " if rate is not None else "unlimited, "


def findings_of(chapter: Chapter) -> tuple[tuple[Finding, tuple[str, ...]], ...]:
    """Return each distinct finding of an experiment with the names of its trials."""
    return findings_in(chapter.results)


def findings_in(results: Sequence[Result]) -> tuple[tuple[Finding, tuple[str, ...]], ...]:
    """Return each distinct finding with the names of the trials that have it, invalid first.

    Findings that differ only in a quantity are merged into one, with its range. Of more than
    MOST_FINDINGS different ones the last is how many further ones there are.
    """
    every = ((finding, result) for result in results for finding in result.findings)
    rank = {"invalid": 0, "struck": 1, "warning": 2, "note": 3}
    alike: dict[Finding, dict[str | None, dict[str, None]]] = {}
    further = 0
    for finding, result in sorted(every, key=lambda each: rank[each[0].severity]):
        plain = replace(finding, value=None)
        if plain not in alike and len(alike) == MOST_FINDINGS:
            further += 1
            continue
        values = alike.setdefault(plain, {})
        values.setdefault(finding.value, {})[result.trial.name] = None
    if further:
        what = f"{further} further findings are not listed; --json has them"
        alike[Finding("note", what)] = {None: dict.fromkeys(r.trial.name for r in results)}
    return tuple(
        (replace(finding, value=value), names)
        for finding, values in alike.items()
        for value, names in _joined(values)
    )


def merged(
    findings: Sequence[tuple[Finding, Names]],
) -> Iterator[tuple[Finding, Names]]:
    """Yield findings, those joined that differ only in the CPU that they are about."""
    alike: dict[tuple[Finding, Names], list[Finding]] = {}
    for finding, names in findings:
        machine, of_cpu, _ = finding.where.partition(OF_CPU)
        plain = replace(finding, where=machine, value=None) if of_cpu else finding
        alike.setdefault((plain, names), []).append(finding)
    for (plain, names), same in alike.items():
        if len(same) == 1:
            yield same[0], names
            continue
        cpus = ", ".join(each.where.partition(OF_CPU)[2] for each in same)
        texts = [each.value or "" for each in same]
        value = _range(texts) or _range_of_shares(texts) or "; ".join(texts)
        yield replace(plain, where=f"{plain.where}: CPUs {cpus}", value=value), names


def is_aside(finding: Finding) -> bool:
    """Return whether a finding leaves counts, rates and the ledger, and their meaning, alone."""
    if finding.severity == "note":
        return finding.kind != "bound"
    return finding.severity == "warning" and finding.kind == "timing"


def _joined(values: Mapping[str | None, Mapping[str, None]]) -> list[tuple[str | None, Names]]:
    """Return each value with its trials; or one range, if no trial has two values."""
    every = [name for names in values.values() for name in names]
    texts = [value or "" for value in values]
    span = _range(texts) or _range_of_shares(texts)
    if len(values) > 1 and span is not None and len(set(every)) == len(every):
        return [(span, tuple(every))]
    return [(value, tuple(names)) for value, names in values.items()]


def _range_of_shares(texts: Sequence[str]) -> str | None:
    """Return shares, or ranges of some, as one range, with the contributor of the largest, if any.

    ``4 %, most by mypy`` and ``9 %, most by pytest`` become ``4 – 9 %, most by pytest``.
    """
    shares, most, whose = zip(*(text.partition(", most by ") for text in texts), strict=True)
    matches = [SHARES.fullmatch(share) for share in shares]
    known = [match for match in matches if match is not None]
    if len(set(most)) > 1 or len(known) < len(texts):
        return None
    highest = [float(match[2] or match[1]) for match in known]
    low = min((match[1] for match in known), key=float)
    high = max((match[2] or match[1] for match in known), key=float)
    greatest = whose[highest.index(max(highest))]
    return f"{low if low == high else f'{low} – {high}'} %{most[0]}{greatest}"


def _range(texts: Sequence[str]) -> str | None:
    """Return texts that differ only in quantities as a range, ``4.76 – 14.24 %``; else None."""
    columns = list(zip_longest(*(text.split(" ") for text in texts), fillvalue=""))
    words, before = [], ""
    for column in columns:
        if len(set(column)) > 1:
            # A number after another word is an identifier, not a quantity: CPU 3, errno 22.
            if before not in BEFORE_QUANTITY or not all(map(QUANTITY.fullmatch, column)):
                return None
            words.append(" – ".join(pick(column, key=float) for pick in (min, max)))
        else:
            words.append(column[0])
        before = column[0]
    return " ".join(words)
