"""Pairs of hosts side by side: each point's numbers by pair, and differences between the hosts.

Pure. The pair is a factor of each point: the Kruskal-Wallis test decides whether it matters, with
Holm's correction over all points.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from udpbench.differences import flat, written
from udpbench.errors import RecordError
from udpbench.json_lines import parse_json
from udpbench.model.result import Estimate
from udpbench.store.history import StoredTrial, answering, by_point, estimate_of, values_of

if TYPE_CHECKING:
    import pandas as pd

FACTS_SHOWN, FACTS_MAX = 512, 2**14
"""Rows of what pairs differ in; and names of facts that are looked at: each of 100 pairs may have
thousands of its own."""
ALPHA = 0.05
FEWEST_TRIALS = 3
"""Minimum trials per pair for a test."""
OF_ITS_OWN = ("host", "hostname", "boot_id", "mac", "addresses", "queue_irqs", "tx_queue_irqs")
"""Facts that differ between any two hosts."""


@dataclass(frozen=True)
class PointOnPairs:
    """One point on each pair that measured it."""

    experiment: str
    point: str
    metric: str
    pairs: Mapping[str, Estimate]
    p: float | None
    """p-value of the hypothesis that the pair makes no difference; None with too few trials."""
    differ: bool | None
    """Whether the pair makes a difference, at 5 % for all points together."""

    @property
    def span(self) -> tuple[str, str, float | None]:
        """Return the pairs with the least and the greatest median, and least / greatest."""
        ranked = sorted(self.pairs, key=lambda pair: self.pairs[pair].median)
        least, greatest = ranked[0], ranked[-1]
        most = self.pairs[greatest].median
        return least, greatest, self.pairs[least].median / most if most else None


@dataclass(frozen=True)
class FactRow:
    """One fact in which pairs differ: pair → its value as text."""

    name: str
    values: Mapping[str, str]


def beside(trials: pd.DataFrame, metric: str | None = None) -> tuple[PointOnPairs, ...]:
    """Return every measured point, in the order of their first trials."""
    known = []
    for (experiment, point), mine in by_point(trials, ("experiment", "point"), metric).items():
        name = metric if metric is not None else answering(mine)
        pairs: dict[str, list[StoredTrial]] = defaultdict(list)
        for trial in mine:
            pairs[trial.pair].append(trial)
        values = {pair: values_of(each, name) for pair, each in sorted(pairs.items())}
        values = {pair: numbers for pair, numbers in values.items() if numbers}
        if values:
            known.append((experiment, point, name, values))
    chances = [_chance([*values.values()]) for _, _, _, values in known]
    return tuple(
        PointOnPairs(
            experiment,
            point,
            name,
            {pair: estimate_of(numbers, name) for pair, numbers in values.items()},
            p,
            differ,
        )
        for (experiment, point, name, values), p, differ in zip(
            known, chances, holm(chances), strict=True
        )
    )


def _chance(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the p-value of equal groups; None with too few trials."""
    large = [group for group in groups if len(group) >= FEWEST_TRIALS]
    if len(large) < 2:
        return None
    if len({value for group in large for value in group}) == 1:
        return 1.0
    from scipy.stats import kruskal

    return float(kruskal(*large).pvalue)


def holm(chances: Sequence[float | None]) -> list[bool | None]:
    """Return which hypotheses are rejected at ALPHA for all together; None stays None."""
    ranked = sorted((p, place) for place, p in enumerate(chances) if p is not None)
    falls: list[bool | None] = [None if p is None else False for p in chances]
    for rank, (p, place) in enumerate(ranked):
        if p > ALPHA / (len(ranked) - rank):
            break
        falls[place] = True
    return falls


def differing_facts(trials: pd.DataFrame) -> tuple[tuple[FactRow, ...], int]:
    """Return differences between the pairs' hosts, by the newest run of each pair.

    The first ``FACTS_SHOWN`` of them, and how many more there are among ``FACTS_MAX`` facts.
    """
    texts = {str(pair): each.hosts.iloc[-1] for pair, each in trials.groupby("pair")}
    alike = len({tuple(_hosts(text)) for text in texts.values()}) == 1
    missing = written("", None)
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    differing: set[str] = set()
    for text in texts.values():
        for name, value in _facts(_hosts(text), alike):
            if name not in first and len(first) < FACTS_MAX:
                first[name] = written(name, value)
            elif name in first and written(name, value) != first[name]:
                differing.add(name)
            if name in first:
                count[name] += 1
    differing |= {name for name in first if count[name] < len(texts) and first[name] != missing}
    names = [name for name in first if name in differing]
    values = {name: dict.fromkeys(texts, missing) for name in names[:FACTS_SHOWN]}
    for pair, text in texts.items():
        for name, value in _facts(_hosts(text), alike):
            if name in values:
                values[name][pair] = written(name, value)
    rows = tuple(FactRow(name, by_pair) for name, by_pair in values.items())
    return rows, len(names) - len(rows)


def _hosts(text: object) -> dict[str, dict[str, Any]]:
    """Return the facts of a store's row; RecordError if it has none."""
    try:
        hosts = parse_json(str(text).encode())
    except ValueError as error:
        raise RecordError(f"hosts of a stored run: {error}: the store is damaged") from error
    if not isinstance(hosts, dict) or not all(isinstance(each, dict) for each in hosts.values()):
        raise RecordError("hosts of a stored run: not facts by host: the store is damaged")
    return hosts


def _facts(hosts: Mapping[str, Mapping[str, Any]], alike: bool) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a pair's hosts, by host name if the pairs' names are ``alike``."""
    for place, (name, facts) in enumerate(hosts.items(), start=1):
        for path, value in flat(facts, into_lists=False):
            if path.split(".")[0] not in OF_ITS_OWN:
                yield f"{name if alike else f'host {place}'}: {path}", value
