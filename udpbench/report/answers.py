"""The answer of an experiment in one or two sentences: its number, the interval and the reason.

Terminal and report begin and end with it. Every number comes from ``judge``; what is not to be
trusted is a sentence of its own. Long, because each kind of experiment has its sentence here, next
to those of the others.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import TypeGuard

from udpbench.analysis.checks.offered_load import OFFERED_SHARE, SENDER_BOUND
from udpbench.analysis.comparison.blocks import LEFT_OUT
from udpbench.analysis.comparison.comparisons import (
    TOO_NOISY,
    Comparison,
    is_difference,
    more_text,
)
from udpbench.analysis.cpu_use import OTHERS
from udpbench.analysis.points import Point, but_lossy, estimate, metric, trials_with
from udpbench.analysis.remedies import REMEDIES
from udpbench.analysis.search import PointSearch, robbed_text
from udpbench.analysis.verdicts import Verdict
from udpbench.differences import key_of
from udpbench.judged_run import Chapter, chapters_of
from udpbench.metrics import LOSS, SPEED
from udpbench.model.experiment import MOST_BLOCKS
from udpbench.model.record import Finding
from udpbench.model.result import Bottleneck, Estimate, Result, rest_of
from udpbench.records.run import Run
from udpbench.report.figures.sweep import values_of
from udpbench.report.search import breaking_text, found_text, is_only_above, perhaps_text
from udpbench.report.sessions import command, to_type
from udpbench.report.summary import (
    FEW_POINTS,
    accounted,
    compared_name,
    doubts,
    explained,
    name_of,
    reason,
    reasons,
    representative,
    show_estimate,
    show_number,
    where_lost,
)
from udpbench.report.watch import sentences
from udpbench.units import (
    Rate,
    counted,
    format_duration,
    format_rate,
    plural,
    show_count,
    show_pps,
    show_ratio,
    show_seconds,
)

MOST_BESIDE = 2
"""Maximum paths beside an answer."""
LEADING = ("matrices", "sweeps")
"""Figures of what an experiment varies."""
MOST_BELOW = 14
"""Points in a figure that leaves room for another."""
LISTED_POINTS = 4
"""Points that are each named with their numbers; of more the highest and the lowest."""
SHOWN_VERDICTS = 2
"""Maximum expectations that are named with their numbers."""
RATES = (("answered_pps", "answered"), ("delivered_pps", "delivered"))
"""Metric of a point's rate → its word; the first that is known."""
ROUND_TRIPS = ("round_trip_p50_ns", "round_trip_p99_ns")
SAFE = 0.9
"""Share of the rate that a sender reached from which on it may not reach it again."""
LOSSES = ("loss_ratio", "lost_packets")
"""Metrics of which a comparison is told in shares that were lost."""
BLOCKS = "compare.blocks"
MOST_TIMES = 4
"""Maximum factor of longer trials: beyond it something else has to change."""
UNANSWERED = {"no": ("does not hold", "do not hold"), "cannot tell": ("cannot be judged",) * 2}


def answer(chapter: Chapter) -> str:
    """Return the answer: what failed, the number, the reason, and what is not to be trusted."""
    if not chapter.points:
        return "No trial is stored."
    if chapter.tuned is not None:
        body = [chapter.tuned.sentence, _before_and_after(chapter)]
    elif chapter.searches:
        body = [_of_searches(chapter)]
    elif chapter.comparisons:
        body = [_of_comparisons(chapter), _reason(chapter)]
    elif any(result.trial.watched for result in chapter.results):
        body = [_of_watched(result) for result in chapter.results[:1]]
    elif not any(point.valid for point in chapter.points):
        body = [_without_answer(chapter)]
    else:
        body = [_of_points(chapter), _reason(chapter)]
    failed = any(verdict.answer == "no" for verdict in chapter.verdicts)
    body = body[-1:] if failed else body
    uncounted = doubts(chapter, not _is_burst(chapter))
    if uncounted:  # which says why blocks are left out
        body = [text.replace(LEFT_OUT, LEFT_OUT.partition(":")[0]) for text in body]
    against = chapter.against.sentence if chapter.against is not None else ""
    parts = [
        against,
        *_expectations(chapter.verdicts),
        *body,
        uncounted,
    ]
    return " ".join(filter(None, parts))


def _is_burst(chapter: Chapter) -> bool:
    """Return whether every point is a burst: its rates are those of emptying a buffer."""
    return all(trial.traffic.is_burst for trial in chapter.experiment.points)


def proven_pair(chapter: Chapter) -> tuple[Point, ...]:
    """Return base and recipe of a tune as they were remeasured; empty without that."""
    ending = chapter.tuning.ending if chapter.tuning is not None else None
    proof = ending.proof if ending is not None else None
    if proof is None:
        return ()
    known = {point.name: point for point in chapter.points}
    pair = tuple(known[name] for name in (proof.a, proof.b) if name in known)
    return pair if len(pair) == 2 else ()


def _before_and_after(chapter: Chapter) -> str:
    """Return what was delivered and lost before the recipe, why, and what with it."""
    pair = proven_pair(chapter)
    if not pair:
        return ""
    texts = []
    for head, point in zip(("Before", "After"), pair, strict=True):
        result = representative(point)
        why = f" {why_of(result)}" if result is not None and result.diagnosis else ""
        if why and result is not None and not result.diagnosis[0].stage:
            why = but_lossy(point.results) or why  # then not all held what came
        texts.append(f"{head}: {_of_point(point, False)}.{why}")
    return " ".join(texts)


def best_points(chapter: Chapter) -> tuple[Point, ...]:
    """Return the points of the highest rate: all whose intervals overlap that of the highest."""
    rated = [(point, rate) for point in chapter.points if (rate := _rate(point)[0]) is not None]
    if not rated:
        return ()
    best, highest = max(rated, key=lambda pair: pair[1].median)
    least = highest.low if highest.low is not None else highest.median
    ends = [(point, rate.high if rate.high is not None else rate.median) for point, rate in rated]
    return (best, *(point for point, end in ends if point is not best and end >= least))


def worst_point(chapter: Chapter) -> Point | None:
    """Return the point that delivered least; None if fewer than two have a rate."""
    rated = [(point, rate) for point in chapter.points if (rate := _rate(point)[0]) is not None]
    return min(rated, key=lambda pair: pair[1].median)[0] if len(rated) > 1 else None


def pictured_points(chapter: Chapter) -> tuple[Point, ...]:
    """Return the points whose paths are beside the answer: both of a pair, else the lossiest."""
    shown = [point for point, _ in accounted(chapter)]
    if pair := [point for point in proven_pair(chapter) if point in shown]:
        return tuple(pair)
    if len(shown) <= MOST_BESIDE:
        return tuple(shown)
    for comparison in chapter.comparisons[:1]:
        return tuple(point for point in shown if point.name in (comparison.a, comparison.b))
    return (max(shown, key=lambda point: _loss(representative(point))),)


def first_kinds(drawn: Collection[str], points: int, tuned: bool = False) -> list[str]:
    """Return the kinds of figures that stand beside the answer: what was varied, and the path.

    Of many points their figure alone, since it fills the page; of a tune both paths do.
    """
    if tuned and "paths" in drawn:
        return ["paths"]
    lead = next((kind for kind in LEADING if kind in drawn), "")
    if not lead and points > MOST_BESIDE and not {"comparisons", "searches"} & set(drawn):
        lead = "dots"
    kinds = ["paths", "comparisons", "searches"]
    if lead:
        kinds = [lead, *(["paths"] if points <= MOST_BELOW else [])]
    return [kind for kind in kinds if kind in drawn] or [
        kind for kind in ("dots",) if kind in drawn
    ]


def _loss(result: Result | None) -> float:
    ledger = result.ledger if result is not None else None
    if ledger is None or not ledger.intended_packets:
        return 0.0
    return 1 - ledger.received_packets / ledger.intended_packets


def _rate(point: Point) -> tuple[Estimate | None, str]:
    """Return the rate that a point is about, and its word."""
    known = ((estimate(point, name), word) for name, word in RATES)
    return next((each for each in known if each[0] is not None), (None, ""))


def _expectations(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield what failed, with its numbers; that all hold, if they do."""
    for kind, (singular, several) in UNANSWERED.items():
        those = [each for each in verdicts if each.answer == kind]
        if those:
            named = "; ".join(
                f"{each.expected} ({each.measured})" if each.measured else each.expected
                for each in those[:SHOWN_VERDICTS]
            )
            more = f"; and {len(those) - SHOWN_VERDICTS} more" * (len(those) > SHOWN_VERDICTS)
            verb = singular if len(those) == 1 else several
            yield f"{len(those)} of {plural(len(verdicts), 'expectation')} {verb}: {named}{more}."


def _of_comparisons(chapter: Chapter) -> str:
    """Return the verdicts with their intervals as one sentence; of many the first ones."""
    shown = chapter.comparisons[:FEW_POINTS]
    texts = [_verdict(each, chapter) for each in shown if each.answered]
    texts += _undecided([each for each in shown if not each.answered])
    more = len(chapter.comparisons) - len(shown)
    texts += [f"{more} more below"] if more else []
    blocks = {each.blocks for each in shown if each.answered and each.paired and each.blocks}
    times = " – ".join(str(pick(blocks)) for pick in (min, max)[: len(blocks)]) if blocks else ""
    return f"{'; '.join(texts)}.{f' Each was measured {times} times, in turn.' * bool(times)}"


def _undecided(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield what lacks for an answer, once for all comparisons that lack the same.

    ``b against a (±4.1 %) and c against a (±3.2 %), offered_pps: cannot tell: too noisy …``.
    """
    alike: dict[tuple[str, str, str], list[Comparison]] = {}
    for each in comparisons:
        alike.setdefault((each.metric, each.verdict, each.lack), []).append(each)
    for (name, verdict, lack), those in alike.items():
        if len(those) == 1:
            yield f"{compared_name(those[0])}, {name}: {those[0].text}"
            continue
        names = [compared_name(e) + (f" ({e.width})" if e.width else "") for e in those]
        text = ": ".join(filter(None, [verdict, lack]))
        yield f"{', '.join(names[:-1])} and {names[-1]}, {name}: {text}"


def _verdict(comparison: Comparison, chapter: Chapter) -> str:
    """Return ``b is faster than a by 4.2 % [1.1 – 7.0] in offered_pps``; else the metric first.

    Of losses what both lost: ``b loses less than a: 0.00 % instead of 81.00 %``.
    """
    a, b = (point or "all" for point in (comparison.a, comparison.b))
    rest = comparison.text.removeprefix(comparison.verdict)
    if comparison.verdict in SPEED[:2]:
        return f"{b} is {comparison.verdict} than {a}{rest} in {comparison.metric}"
    points = {point.name: point for point in chapter.points}
    pair = [points[name] for name in (comparison.b, comparison.a) if name in points]
    lost = [each for point in pair if (each := estimate(point, "loss_ratio")) is not None]
    if comparison.metric in LOSSES and comparison.verdict in LOSS[:2] and len(lost) == len("ab"):
        shares = " instead of ".join(show_ratio(each.median) for each in lost)
        ends = rest.partition("[")[2].rstrip("]")
        by = f"{ends} percentage points {comparison.verdict}"
        return f"{b} loses {comparison.verdict} than {a}: {shares} of the packets, {by}"
    return f"{compared_name(comparison)}, {comparison.metric}: {comparison.text}"


def _of_searches(chapter: Chapter) -> str:
    """Return what searches found; of many the highest and the lowest rate."""
    named = len(chapter.points) > 1
    known = [search for search in chapter.searches if search.headline.throughput_pps is not None]
    shown: Sequence[PointSearch] = chapter.searches
    if len(shown) > FEW_POINTS and len(known) > 1:
        # Two of the same rate are the first and the last.
        ranked = sorted(known, key=lambda each: -(each.headline.throughput_pps or 0))
        shown = (ranked[0], ranked[-1])
    texts = [
        f"{each.point.point or 'all'}: " * named
        + (_why_unknown(each) or found_text(each, largest=True))
        for each in shown
    ]
    broken = [_breaks(each) for each in shown]
    if len(shown) > 1:
        pairs = zip(shown, broken, strict=True)
        broken = [f"{each.point.point or 'all'}: {text}" for each, text in pairs if text]
    text = "; ".join(texts)
    start = text[:1] if named else text[:1].upper()  # a point's name stays as it is written
    ended = [] if len(shown) > 1 else [_open_end(shown[0])]
    return " ".join(filter(None, [f"{start}{text[1:]}.", *broken[:1], *ended]))


def _breaks(search: PointSearch) -> str:
    """Return what fails first above the rate, as a sentence; empty if nothing does."""
    breaking = search.breaking
    if breaking is None or breaking.stage is None:
        return breaking_text(search)
    first = breaking.bottleneck
    why = f"{first.why}{rest_of(search.result.diagnosis)}" if first is not None else "."
    aside = f" ({first.aside})" if first is not None and first.aside else ""
    head = f"At {show_pps(breaking.pps)} packets are lost"  # no load is decided
    if search.headline.lower_pps is not None:
        head = "Above it packets are lost"
    elif is_only_above(search.headline) and not perhaps_text(search):
        head = "Even that load loses packets"
    return f"{head} at {breaking.stage}{aside}{why}"


def _open_end(search: PointSearch) -> str:
    """Return why a search knows one bound alone, and what would help; else nothing."""
    if search.state.ended == "robbed" and search.headline.lower_pps is not None:
        return f"Nothing is known of higher loads: {robbed_text(search)}."
    if not is_only_above(search.headline) or search.state.ended != "within":
        return ""
    within = show_seconds(search.search.within_ns)
    return (
        f"The search ended after {within}, before any load had held for long enough: repeat it on "
        "a quieter machine, or raise search.within."
    )


def _why_unknown(search: PointSearch) -> str:
    """Return why an invalid search has no rate, and what its last trial lacked; else nothing."""
    why = reasons(search.result)
    if not why or search.headline.throughput_pps is not None:
        return ""
    last = _first_reason_of(search.trials[-1:])
    if last is not None and search.trials[-1].status == "failed" and search.state.ended is None:
        step = _step(last).removesuffix(".")
        return ". ".join(filter(None, [f"No answer: {last.clause}", step]))  # it ended the run
    value = f" ({last.value})" if last is not None and last.value else ""
    because = f", because {last.clause}{value}" if last is not None else ""
    perhaps = f". Single trials say {text}" if (text := perhaps_text(search)) else ""
    return f"No answer: {why[0].what}{because}{perhaps}"


def _of_watched(result: Result) -> str:
    """Return what a watched host lost, at which socket, and why, as its watch said at the end."""
    if lost_where := sentences(result.findings):
        return lost_where
    ledger = result.ledger
    lost = ledger.lost_packets if ledger is not None else 0
    came = ledger.intended_packets if ledger is not None else 0
    if not lost:
        return f"Nothing was lost of {counted(came, 'packet')}."
    share = show_ratio(lost / came) if came else "–"
    text = f"{show_count(lost)} of {show_count(came)} packets were lost ({share})"
    return f"{', '.join([text, *where_lost(result)])}."


def _without_answer(chapter: Chapter) -> str:
    """Return why no trial is valid, what limits it, and what would help."""
    finding = _first_reason(chapter)
    if finding is None:
        return "No answer: no valid trial."
    needed = f", needed: {finding.limit}" if finding.limit else ""
    value = f" ({finding.value}{needed})" if finding.value else ""
    cause = _not_offered(chapter) if finding.what == SENDER_BOUND else None
    why = f"{cause.place}{cause.why}" if cause is not None and cause.stage == "unsent" else ""
    step = f"{cause.helps}{_too_fast(chapter)}" if _is_others(cause) else _step(finding)
    return " ".join(filter(None, [f"No answer: {finding.clause}{value}.", why, step]))


def _not_offered(chapter: Chapter) -> Bottleneck | None:
    """Return what held up the sender at the first point of which that is known.

    Else what limits the first trial.
    """
    shown = (representative(point) for point in chapter.points)
    known = (limit(result) for result in (*filter(None, shown), *chapter.results))
    limits = [each for each in known if each is not None]
    return next((each for each in limits if each.stage == "unsent"), next(iter(limits), None))


def _is_others(cause: Bottleneck | None) -> TypeGuard[Bottleneck]:
    """Return whether others, not the load's own work, are the cause."""
    return cause is not None and cause.name in ("others_cpu", "steal")


def _alone(result: Result) -> float | None:
    """Return about which share of its load a trial's sender would reach without other programs."""
    sent, intended = (result.numbers.get(f"{name}_packets") for name in ("sent", "intended"))
    others = (load.uses.get(OTHERS, 0.0) for load in result.cpus if not load.receives)
    taken = max(others, default=0.0)
    return sent / intended / (1 - taken) if sent and intended and 0 < taken < 1 else None


def _too_fast(chapter: Chapter) -> str:
    """Return that a load is more than its sender can offer, whoever stops; else nothing."""
    most = max((_alone(result) or 1.0 for result in chapter.results), default=1.0)
    if most >= OFFERED_SHARE:
        return ""
    return f" Even then only about {show_ratio(most)} of it would be sent: lower traffic.rate, too."


def _first_reason(chapter: Chapter) -> Finding | None:
    """Return why the first trial is not valid; of a search, its last trial."""
    searched = [trial for search in chapter.searches for trial in search.trials[-1:]]
    return _first_reason_of(searched or chapter.results)


def _first_reason_of(results: Sequence[Result]) -> Finding | None:
    return next((finding for result in results for finding in reasons(result)), None)


def _step(finding: Finding) -> str:
    """Return what would help, as a sentence; empty if nobody knows."""
    kind, _, text = finding.what.partition(": ")
    # What a program under test has done, an error of its trial, comes with what would help.
    return _as_sentence(finding.next_step or (text.partition("; ")[2] if kind == "failed" else ""))


def _as_sentence(step: str) -> str:
    return f"{step[:1].upper()}{step[1:]}." if step else ""


def _of_points(chapter: Chapter) -> str:
    """Return each of a few points, or of several the best and the least.

    Bursts are compared by what they lost: their rates depend on how long the reader takes.
    """
    best, least = best_points(chapter), worst_point(chapter)
    few = len(chapter.points) <= LISTED_POINTS
    if not few and not best and (text := _by_loss(chapter) or _lossy_alike(chapter)):
        return text
    if few or not best or least is None:
        named = len(chapter.points) > 1
        shown = chapter.points if few else chapter.points[:FEW_POINTS]
        return "; ".join(_of_point(point, named) for point in shown) + "."
    if (_is_burst(chapter) or least in best) and (by_loss := _by_loss(chapter)):
        return by_loss
    if least in best:
        return (
            f"No winner among {_judged_points(chapter)}: even the lowest, {name_of(least)}, "
            f"{_of_point(least, False)}, is within the interval of the highest, "
            f"{name_of(best[0])}, {_of_point(best[0], False)}."
        )
    alike = [name_of(point) for point in best[1:]]
    more = f" and {len(alike) - FEW_POINTS} more" if len(alike) > FEW_POINTS else ""
    also = f", not certainly more than {', '.join(alike[:FEW_POINTS])}{more}" if alike else ""
    return (
        f"Best of {_judged_points(chapter)}: {name_of(best[0])}, {_of_point(best[0], False)}"
        f"{also}. Worst: {name_of(least)}, {_of_point(least, False)}."
    )


def _losses(chapter: Chapter) -> list[tuple[Point, Estimate]]:
    """Return the points that lost least and most, if any loss is known."""
    known = [(p, loss) for p in chapter.points if (loss := estimate(p, "loss_ratio")) is not None]
    if not known:
        return []
    # Of equal medians the one that is more certainly so.
    least = min(known, key=lambda pair: (pair[1].median, pair[1].high or 0.0))
    return [least, max(known, key=lambda pair: (pair[1].median, pair[1].low or 0.0))]


def _lossy_alike(chapter: Chapter) -> str:
    """Return that no point certainly lost least, and which did; empty if no loss is known."""
    if not (ends := _losses(chapter)):
        return ""
    (least, low), (most, high) = ends
    return (
        f"No winner among {_judged_points(chapter)}: {name_of(least)} lost least, "
        f"{_loss_text(low)}, and {name_of(most)} most, {_loss_text(high)}, but their intervals "
        "overlap."
    )


def _no_more(chapter: Chapter, least: Point, upper: float) -> str:
    """Return which points did not certainly lose more; empty if all did."""
    losses = ((p, estimate(p, "loss_ratio")) for p in chapter.points if p is not least)
    known = ((p, loss) for p, loss in losses if loss is not None)
    alike = [p for p, loss in known if (loss.low if loss.low is not None else loss.median) <= upper]
    more = f" and {len(alike) - FEW_POINTS} more" if len(alike) > FEW_POINTS else ""
    names = ", ".join(map(name_of, alike[:FEW_POINTS]))
    return f", not certainly less than {names}{more}" if alike else ""


def _loss_text(loss: Estimate) -> str:
    """Return a loss with its interval: ``81.00 % [80.00 – 84.50]``."""
    text = show_ratio(loss.median)
    if loss.low is None or loss.high is None or loss.low == loss.high:
        return text
    return f"{text} [{loss.low * 100:.2f} – {loss.high * 100:.2f}]"


def _judged_points(chapter: Chapter) -> str:
    """Return of how many points the best is known: those without a valid trial are not judged."""
    judged, every = sum(bool(point.valid) for point in chapter.points), len(chapter.points)
    return (
        f"{every} points" if judged == every else f"{judged} of {every} points with a valid trial"
    )


def _by_loss(chapter: Chapter) -> str:
    """Return which points lost least and most; empty if their intervals overlap."""
    if not (ends := _losses(chapter)):
        return ""
    (least, low), (most, high) = ends
    upper = low.high if low.high is not None else low.median
    lower = high.low if high.low is not None else high.median
    if lower <= upper:
        return ""
    return (
        f"Best of {_judged_points(chapter)}: {name_of(least)} lost least, {_loss_text(low)}"
        f"{_no_more(chapter, least, upper)}. "
        f"Worst: {name_of(most)} lost {_loss_text(high)}."
    )


def _of_point(point: Point, named: bool) -> str:
    head = f"{name_of(point)}: " if named else ""
    if not point.results:
        return f"{head}not run"
    if point.skipped:
        return head + reason(point)
    result = representative(point)
    if not point.valid or result is None:
        return f"{head}no valid trial, {reason(point)}"
    if result.trial.traffic.is_burst:
        shown, parts = point, []
    else:
        shown = _rated(point)
        parts = [text] if (text := _rate_text(shown)) else []
    loss = estimate(shown, "loss_ratio")
    if loss is not None:
        parts.append(f"{show_ratio(loss.median) if parts else _loss_text(loss)} lost")
    middle, most = (estimate(shown, name) for name in ROUND_TRIPS)
    if middle is not None and most is not None:
        times = (show_number(each.median, each.unit) for each in (middle, most))
        parts.append("round trip {} (99 % within {})".format(*times))
    parts += [] if result.diagnosis else where_lost(result)
    unlogged = metric(result, "app_log")
    if unlogged and result.received_packets:
        parts.append(f"{show_ratio(unlogged / result.received_packets)} of it not logged")
    n, every = len(shown.valid), len(point.valid)
    some = f"in {n} of {every} trials" if n < every else "in 1 trial" if every == 1 else ""
    return head + ", ".join(filter(None, [*parts, some]))


def _rated(point: Point) -> Point:
    """Return a point of those trials whose rate is known, so that its loss is of the same ones."""
    for name, _ in RATES:
        known = tuple(r for r in point.valid if r.numbers.get(name) is not None)
        if known:
            return replace(point, results=known)
    return point


def _rate_text(point: Point) -> str:
    """Return the rate in words, with its interval."""
    rate, word = _rate(point)
    if not trials_with(point, "delivered_pps"):
        return ""  # struck out, which is said of all such trials together
    if rate is not None:
        return f"{show_estimate(rate)} {word}"
    if any(result.received_packets for result in point.valid):
        return "delivered rate unknown (everything was read at once)"
    return "nothing delivered"


def _reason(chapter: Chapter) -> str:
    """Return what limits the point that lost most, or the best one if none lost anything."""
    if (worst := _worst(chapter)) is None:
        return ""
    point, result = worst
    head = f"{name_of(point)}: " if len(chapter.points) > 1 else ""
    but = "" if result.diagnosis[0].stage else but_lossy(point.results)
    return f"{head}{why_of(result)}{but}"


def _worst(chapter: Chapter) -> tuple[Point, Result] | None:
    """Return the point that lost most of those whose limit is known, and its trial."""
    known = [each for each in explained(chapter) if each[0].valid and limit(each[1]) is not None]
    return max(known, key=lambda each: each[1].loss_ratio or 0.0, default=None)


def why_of(result: Result) -> str:
    """Return where a diagnosed trial lost packets and why, with the rest of the loss."""
    first = result.diagnosis[0]
    return f"{first.place}{first.why}{rest_of(result.diagnosis)}"


def limit(result: Result) -> Bottleneck | None:
    """Return what limits a trial first; None if nothing is known."""
    return result.diagnosis[0] if result.diagnosis else None


def next_steps(run: Run) -> list[tuple[str, str]]:
    """Return what a reader may want to do next, each with the command that does it.

    A run without a valid trial is not repeated as it was: it would fail in the same way.
    """
    first, rest = list(to_try(run)), list(to_type(run))
    if any(result.valid for chapter in chapters_of(run) for result in chapter.results):
        return [*first, *rest]
    again = command(run.header)
    return [*first, *(each for each in rest if not first or each[1] != again)]


def to_try(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what would help most, and the command that tries it, where a setting would.

    Nothing where the experiment varies that setting itself. Without a valid trial it is what has
    to change before the run is repeated.
    """
    words = shlex.split(command(run.header, in_order=False))
    chapters = chapters_of(run)
    if not words or run.header.watched:
        return
    if not any(result.valid for chapter in chapters for result in chapter.results):
        yield from _to_change(chapters, words)
        return
    if run.header.verb == "tune":
        yield from _to_decide(chapters, words)
    if run.header.verb != "run":
        return
    for chapter in chapters:
        if (more := _more_blocks(chapter)) is not None:
            does, blocks = more
            sets = [f"{BLOCKS}={blocks}"]
            yield does, shlex.join([*_without(words, sets), *_sets(sets)])
            return
        if any(search.held_up for search in chapter.searches):
            yield f"{_as_sentence(REMEDIES['busy'].text)} Then repeat it:", shlex.join(words)
            return
        worst = _worst(chapter)
        first = limit(worst[1]) if worst is not None else None
        keys = {each.partition("=")[0] for each in first.sets} if first is not None else set()
        of_program = any(trial.receive.command for trial in chapter.experiment.points)
        if first is not None and of_program and not keys and _is_told_apart(chapter, worst):
            continue  # what helps is measured already
        if first is not None and first.stage and of_program and not keys:
            yield f"{first.helps} Then measure it again:", shlex.join(words)
            return
        if first is None or not keys or keys & _varied(chapter):
            continue
        others = {each.experiment.name for each in chapters} - {chapter.experiment.name}
        kept = [word for word in words if PurePath(word).stem not in others]
        yield first.helps, shlex.join([*kept, *_sets(first.sets)])
        return


def _is_told_apart(chapter: Chapter, worst: tuple[Point, Result] | None) -> bool:
    """Return whether another point is known to lose less than the one that lost most."""
    name = worst[0].name if worst is not None else None
    return any(
        is_difference(each) and name == (each.a, each.b)[each.worse] for each in chapter.comparisons
    )


def _more_blocks(chapter: Chapter) -> tuple[str, int] | None:
    """Return that more blocks would decide a comparison, and with how many; None if none would."""
    undecided = [
        (each.blocks + each.lost + (each.blocks_more or 0), more)
        for each in chapter.comparisons
        if not each.answered and (more := more_text(each.blocks_more, each.more_ns)) != TOO_NOISY
        if more
    ]
    blocks, more = max(undecided, default=(0, ""))
    if not more or blocks > MOST_BLOCKS:
        return None
    does = f"{more[:1].upper()}{more[1:]} would decide it: a new run, with {blocks}:"
    return does, blocks


def _to_decide(chapters: Sequence[Chapter], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what would decide a tune that ended before it was known whether a step helps."""
    tuning = next((each.tuning for each in chapters if each.tuning is not None), None)
    if tuning is None or tuning.ending is None or tuning.ending.steps:
        return
    trial, within_ns = tuning.base, tuning.tune.within_ns
    if tuning.ending.why == "time":
        yield "With time for all of its trials:", shlex.join(_within(words, tuning.whole_ns))
        return
    if not tuning.undecided:
        return
    blocks, more = max((each.blocks, each.blocks_more or 0) for each in tuning.undecided)
    times = -(-(blocks + more) // max(blocks, 1))
    has_length = trial.search is None and trial.traffic.count_packets is None
    if not (has_length and 1 < times <= MOST_TIMES):
        yield "On a machine that nothing else uses:", shlex.join(words)
        return
    sets = [f"duration={format_duration(times * trial.duration_ns)}"]
    longer = [*_without(_within(words, times * within_ns), sets), *_sets(sets)]
    yield f"Trials {times} times as long may decide it:", shlex.join(longer)


def _within(words: Sequence[str], time_ns: int) -> list[str]:
    """Return the words of a command with another ``--within``."""
    kept = [
        word
        for before, word in pairwise(["", *words])
        if "--within" not in (before, word.partition("=")[0])
    ]
    return [*kept, "--within", show_seconds(time_ns)]


def _sets(values: Sequence[str]) -> Iterator[str]:
    yield from (word for value in values for word in ("--set", value))


def _to_change(chapters: Sequence[Chapter], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what has to change first, and the command with that change, if a setting makes it."""
    causes = [(each, why) for each in chapters if (why := _first_reason(each)) is not None]
    if not causes or not causes[0][1].next_step:
        return
    chapter, finding = causes[0]
    sets = []
    cause = _not_offered(chapter) if finding.what == SENDER_BOUND else None
    too_fast = _too_fast(chapter) if _is_others(cause) else ""
    slower = finding.what == SENDER_BOUND and "traffic.rate" in (too_fast or finding.next_step)
    if _is_others(cause) and not too_fast:
        yield f"{cause.helps} Then repeat it.", shlex.join(words)
        return
    if slower and "traffic.rate" not in _varied(chapter):
        reached = [pps for result in chapter.results if (pps := _reached(result)) is not None]
        sets = [f"traffic.rate={format_rate(Rate(_below(min(reached))))}"] if reached else []
    does = f"{cause.helps}{too_fast}" if _is_others(cause) else _step(finding)
    if not (sets or too_fast) and "repeat" in finding.next_step:
        value = f" ({finding.value})" if finding.value else ""
        does = f"{finding.clause[:1].upper()}{finding.clause[1:]}{value}: {finding.next_step}."
    elif not sets:
        does += " Only then repeat it."
    yield does, shlex.join([*_without(words, sets), *_sets(sets)])


def _without(words: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the words of a command but for each ``--set`` of a key that is set anew."""
    keys = {each.partition("=")[0] for each in sets}
    anew = {
        place
        for place, (word, value) in enumerate(pairwise(words))
        if word == "--set" and value.partition("=")[0] in keys
    }
    return [word for place, word in enumerate(words) if not anew & {place, place - 1}]


def _reached(result: Result) -> float | None:
    """Return the rate that a trial's sender reached, by what it sent; None if that is unknown."""
    rate, numbers = result.trial.traffic.rate, result.numbers
    sent, intended = numbers.get("sent_packets"), numbers.get("intended_packets")
    if rate is None or rate.packets_per_s is None or not sent or not intended:
        return None
    return rate.packets_per_s * sent / intended


def _below(pps: float) -> int:
    """Return a rate that a sender reaches which reached this one at its best: a round one below."""
    safe_pps = max(pps * SAFE, 1)
    digit: int = 10 ** int(math.log10(safe_pps))
    return int(safe_pps / digit) * digit


def _varied(chapter: Chapter) -> set[str]:
    """Return the keys in which an experiment's points differ, or that it sweeps, as written."""
    values = [
        {".".join(map(key_of, path.split("."))): str(value) for path, value in values_of(trial)}
        for trial in chapter.experiment.points
    ]
    keys = {key for each in values for key in each}
    swept = {key for trial in chapter.experiment.points for key in trial.values}
    return swept | {key for key in keys if len({each.get(key) for each in values}) > 1}
