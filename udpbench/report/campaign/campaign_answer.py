"""The question and the answer of a campaign: which pair is best, whether that is certain, and why.

The page and the terminal share them; every number comes from ``store``. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from udpbench.metrics import words_of
from udpbench.report.campaign.history_output import shown
from udpbench.store.history import PointHistory
from udpbench.store.pairs import FEWEST_TRIALS, PointOnPairs, differing_facts
from udpbench.units import plural, show_percent

if TYPE_CHECKING:
    import pandas as pd

NAMED = 2
"""Questions, and facts in which pairs differ, that are named; more are counted."""


def newest_of(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the newest campaign."""
    newest: pd.DataFrame = trials[trials.campaign == trials.campaign.iloc[-1]]
    return newest


def question(trials: pd.DataFrame) -> str:
    """Return what the newest campaign asked; of many experiments how many more questions."""
    asked = [str(text) for text in newest_of(trials).question.dropna().drop_duplicates()]
    more = len(asked) - NAMED
    return " ".join([*asked[:NAMED], *([f"And {plural(more, 'more question')}"] * (more > 0))])


def answer(
    trials: pd.DataFrame, pairs: Sequence[PointOnPairs], changed: Sequence[PointHistory] = ()
) -> str:
    """Return which pair is best where they differ most, why, and how much was measured."""
    newest = newest_of(trials)
    parts = [_best(pairs, newest.pair.unique()), *_reasons(newest, pairs)]
    moved = sum(bool(each.changes) for each in changed)
    if any(len(each.days) > 1 for each in changed):
        parts.append(f"{moved} of {len(changed)} histories changed level.")
    parts += _uncounted(newest)
    where = plural(trials.pair.nunique(), "pair")
    size = f"Measured: {plural(len(trials), 'trial')} on {where} of hosts"
    runs, days = plural(trials.run.nunique(), "run"), plural(trials.day.nunique(), "day")
    parts.append(f"{size}, in {runs} on {days}.")
    return " ".join(filter(None, parts))


def _shown(pairs: Sequence[PointOnPairs]) -> PointOnPairs | None:
    """Return the point at which pairs are farthest apart, first of those where they differ."""
    return min(pairs, key=lambda each: (each.differ is not True, each.span[2] or 0), default=None)


def _best(pairs: Sequence[PointOnPairs], names: Collection[str]) -> str:
    """Return the best and the worst pair with their numbers, and how certain that is.

    ``names`` are those of all pairs, also of one without a number.
    """
    point = _shown(pairs)
    if point is None:
        return "No answer: no trial counts."
    several = len({each.experiment for each in pairs}) > 1
    name = ", ".join(filter(None, (point.experiment * several, point.point)))
    head = f"{name}: " if name else ""
    least, greatest, ratio = point.span
    numbers = {pair: shown(rate) for pair, rate in point.pairs.items()}
    if least == greatest:
        lacking = sorted(set(names) - numbers.keys())
        why = f"Cannot tell which pair is best: no rate on {', '.join(lacking)} counts. "
        return f"{why * bool(lacking)}{head}{numbers[least]} on {least}."
    best, worst = _best_and_worst(point)
    text = f"{head}{best} {numbers[best]}, {worst} {numbers[worst]}"
    by = "" if ratio is None else f" by {show_percent(1 - ratio)}"
    judged = [each for each in pairs if each.differ is not None]
    if point.differ is None:
        few = f"fewer than {FEWEST_TRIALS} valid trials a pair"
        return f"Cannot tell which pair is best ({few}). {text}."
    if not point.differ:
        return f"No pair is best: no difference is shown at {_points(judged)}. {text}."
    differing = sum(each.differ is True for each in judged)
    where = f" Pairs differ at {differing} of {_points(judged)}." if len(judged) > 1 else ""
    return f"{best} is best, {worst} is behind{by}. {text}.{where}"


def _best_and_worst(point: PointOnPairs) -> tuple[str, str]:
    """Return the pairs with the best and the worst median."""
    least, greatest, _ = point.span
    return (least, greatest) if words_of(point.metric).worse == "more" else (greatest, least)


def _points(judged: Sequence[PointOnPairs]) -> str:
    return plural(len(judged), "point")


def _reasons(newest: pd.DataFrame, pairs: Sequence[PointOnPairs]) -> Iterator[str]:
    """Yield what each lost, what limits the worst pair, and in which facts the hosts differ."""
    point = _shown(pairs)
    if point is None or len(point.pairs) < 2:
        return
    best, worst = _best_and_worst(point)
    places = {pair: _lost(newest, point, pair) for pair in (best, worst)}
    if any(places.values()):
        texts = [place or f"nothing on {pair}" for pair, place in places.items()]
        yield f"Lost: {'; '.join(texts)}."
    limits = [text for text in _of_pair(newest, point, worst).limits.dropna() if text]
    if limits:
        yield f"What limits {worst}: {max(limits, key=limits.count)}"
    rows, more = differing_facts(newest[newest.pair.isin([best, worst])])
    facts = [
        f"{_possessive(row.name)} is {row.values.get(best, '–')} on {best}, "
        f"{row.values.get(worst, '–')} on {worst}"
        for row in rows[:NAMED]
    ]
    rest = len(rows) - len(facts) + more
    facts += [f"and {rest} more"] if rest else []
    yield (
        f"Their hosts differ: {'; '.join(facts)}."
        if facts
        else "Nothing that their hosts report differs; their labs, such as CPUs, are not compared."
    )


def _possessive(fact: str) -> str:
    """Return ``right: kernel`` as ``right's kernel``."""
    host, _, name = fact.partition(": ")
    return f"{host}'s {name}" if name else fact


def _lost(newest: pd.DataFrame, point: PointOnPairs, pair: str) -> str:
    """Return the share that a pair lost at a point, and the stage of most of it; else nothing."""
    mine = _of_pair(newest, point, pair)
    lost: Counter[str] = Counter()
    for stages in mine.ledger:
        lost.update({stage: packets for stage, packets in stages.items() if packets})
    sent = int(mine.intended_packets.fillna(0).sum())
    if not lost or not sent:
        return ""
    stage, _ = lost.most_common(1)[0]
    share = show_percent(sum(lost.values()) / sent, ".2f")
    return f"{share} on {pair}, most at {stage}"


def _uncounted(newest: pd.DataFrame) -> Iterator[str]:
    """Yield how many trials do not count, and why most of them do not."""
    skipped = newest.status == "skipped"
    for away, how in (
        (~newest.valid.fillna(value=False) & ~skipped, "invalid"),
        (newest.valid.fillna(value=False) & newest.struck.fillna(value=False), "struck out"),
    ):
        if away.any():
            whose = "the rates of " * (how == "struck out")
            verb = "is" if away.sum() == 1 and not whose else "are"
            some = "all" if away.all() else f"{away.sum()} of"
            text = f"{whose}{some} {len(newest)} trials {verb} not counted ({how})"
            causes = newest[away].reason.dropna()
            why = f", because {_in_short(causes.mode().iloc[0])}" if len(causes) else ""
            yield f"{text[:1].upper()}{text[1:]}{why}."


def _in_short(reason: str) -> str:
    """Return the first finding of a reason, without its place, its numbers and what follows."""
    return re.split(r" \(|;", reason)[0].rpartition(": ")[2]


def _of_pair(newest: pd.DataFrame, point: PointOnPairs, pair: str) -> pd.DataFrame:
    """Return the trials of a pair at a point that its number is of."""
    is_of = (newest.pair == pair) & (newest.experiment == point.experiment)
    at = is_of & (newest.point.fillna("") == point.point)
    mine: pd.DataFrame = newest[at & newest.valid.fillna(value=False)]
    if point.metric in mine:
        mine = mine[mine[point.metric].notna()]
    return mine
