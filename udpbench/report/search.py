"""Searches as text: the rate, its bounds, and what breaks first.

Owns the wording that terminal, document, JSON and live view share; every number comes from
``searches``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from udpbench.analysis.remedies import helps_at
from udpbench.analysis.search import (
    Breaking,
    PointSearch,
    disturbed_text,
    known_bounds,
    known_text,
    sender_end,
)
from udpbench.model.result import ALL, GoalBounds, Progress
from udpbench.units import show_percent, show_pps, show_ratio, show_seconds, show_share
from udpbench.ways import way_to_receive

CELLS = 30
"""Cells of the bar of a search: one is 3 % of the range."""
COLUMNS = ("point", "goal", "throughput", "between", "trials", "took")


def search_rows(searches: Sequence[PointSearch]) -> list[list[str]]:
    """Return a row per goal of each search, largest goal first, by COLUMNS; alike goals share."""
    rows = []
    for search in searches:
        several = sum(other.point.point == search.point.point for other in searches) > 1
        number = f" #{search.point.repetition}" if several else ""
        for place, (shares, goal, sure) in enumerate(_answers(search)):
            used = [str(len(search.trials)), show_seconds(search.state.spent_ns)]
            rows.append(
                [
                    f"{search.point.point or 'all'}{number}" if place == 0 else "",
                    f"{shares} lost",
                    throughput_text(goal) if sure else "not confirmed",
                    bounds_text(goal),
                    *(used if place == 0 else ["", ""]),
                ]
            )
    return rows


def _answers(search: PointSearch) -> Iterator[tuple[str, GoalBounds, bool]]:
    """Yield each different answer with its goals, and whether it is more than of single trials."""
    goals = search.state.goals
    if search.may_lie is not None and search.headline.throughput_pps is None:
        yield show_share(search.headline.loss), search.may_lie, False
        goals = goals[:-1]
    for shares, goal in _distinct(goals):
        yield shares, goal, True


def _distinct(goals: Sequence[GoalBounds]) -> Iterator[tuple[str, GoalBounds]]:
    """Yield each different answer with its goals, largest first: a lower bound often is of all."""
    for answer, alike in groupby(reversed(goals), lambda goal: replace(goal, loss=0)):
        yield " and ".join(show_share(goal.loss) for goal in alike), answer


def throughput_text(goal: GoalBounds) -> str:
    """Return a throughput: ``411.9 kpps``, ``at least 410.0 kpps``, ``less than 89.3 kpps``."""
    if goal.throughput_pps is None:
        if goal.upper_pps is not None:
            return f"less than {show_pps(goal.upper_pps)}"
        return "none" if goal.kind == "none" else "unknown"
    head = "" if goal.kind == "regular" else "at least "
    return head + show_pps(goal.throughput_pps)


def limits_text(search: PointSearch) -> str:
    """Return the throughput of a search's headline for reading, or what it says instead."""
    if search.headline.throughput_pps is not None:
        return throughput_text(search.headline)
    if search.headline.kind == "none":
        return "no rate meets the goal"
    return f"not found in time: {known_text(search)}"


def bounds_text(goal: GoalBounds) -> str:
    """Return the loads that did and did not meet a goal: ``412.3 – 416.4 kpps``."""
    return "–" if (goal.lower_pps, goal.upper_pps) == (None, None) else known_bounds(goal)


def found_text(search: PointSearch, largest: bool = False) -> str:
    """Return a search's answer: ``411.9 kpps with at most 0.1% lost (… offered); … with 0%``.

    Of the ``largest`` goal alone, if that is asked for.
    """
    (shares, headline), *others = _distinct(search.state.goals)
    text = f"{throughput_text(headline)} with at most {shares} lost"
    perhaps = perhaps_text(search)
    if perhaps:
        text = f"{perhaps} with at most {show_share(search.headline.loss)} lost, not confirmed"
    elif headline.kind in ("regular", "unfinished") and not is_only_above(headline):
        bounds = known_bounds(headline)
        text += f" (offered: {bounds})"
        if (headline.lower_pps, headline.upper_pps) == (None, None):
            why = disturbed_text(search) if search.held_up else bounds
            text = f"the rate with at most {shares} lost is not known: {why}"
    if headline.kind == "at least" and search.state.sender_bound:
        text += f": {sender_end(search)}"
    others = [] if largest else others
    rest = [f"{throughput_text(goal)} with {shares}" for shares, goal in others]
    return "; ".join([text, *rest])


def perhaps_text(search: PointSearch) -> str:
    """Return what single trials say where a bound is not decided: ``between 21.0 and 32.0 kpps``.

    Empty if nothing, or no more than is decided.
    """
    if search.may_lie is None:
        return ""
    lower, upper = search.may_lie.lower_pps, search.may_lie.upper_pps
    if lower is None:
        return f"less than {show_pps(upper)}"
    if upper is None:
        return f"at least {show_pps(lower)}"
    return f"between {show_pps(lower)} and {show_pps(upper)}"


def is_only_above(goal: GoalBounds) -> bool:
    """Return whether only a load is known that does not meet a goal, and none that does."""
    return goal.lower_pps is None and goal.upper_pps is not None


def search_line(progress: Progress) -> str:
    """Return the progress of a search: ``one#1 |------=---| 0.1% lost: 396.0 – 412.3 kpps; …``."""
    name, _, rest = progress.text.partition(": ")
    goals = [f"{shares} lost: {bounds_text(goal)}" for shares, goal in _distinct(progress.bounds)]
    bracket = bracket_text(progress.bounds[-1], progress.range_pps) if progress.bounds else ""
    return f"{name} {bracket}{'; '.join(filter(None, [*goals, rest]))}"


def bracket_text(goal: GoalBounds, range_pps: tuple[float, float] | None) -> str:
    """Return the range of a search as a bar: ``=`` where the rate may still lie.

    Empty while the range, or the rate's position in it, is unknown.
    """
    if range_pps is None or range_pps[0] >= range_pps[1] or goal.kind == "none":
        return ""
    least, most = range_pps
    lower, upper = (
        min(max((pps - least) / (most - least), 0.0), 1.0) * CELLS
        for pps in (
            least if goal.lower_pps is None else goal.lower_pps,
            most if goal.upper_pps is None else goal.upper_pps,
        )
    )
    first = min(int(lower), CELLS - 1)
    beyond = max(math.ceil(upper), first + 1)
    return f"|{'-' * first}{'=' * (beyond - first)}{'-' * (CELLS - beyond)}| "


def breaking_text(search: PointSearch) -> str:
    """Return what breaks first, as a sentence; empty if nothing does."""
    breaking = search.breaking
    if breaking is None:
        return ""
    bound = search.headline.lower_pps
    above = show_pps(bound if bound is not None else breaking.pps)
    even = is_only_above(search.headline) and not perhaps_text(search)
    head = "Above" if bound is not None else "Even at" if even else "At"
    what = f"packets are lost at {breaking.stage}" if breaking.stage else _late_text(breaking)
    first = breaking.bottleneck
    if first is not None and breaking.stage is None:
        # A diagnosis of such a trial begins with it, too.
        first = replace(first, what=first.what.removeprefix("the receiver falls behind: "))
    why = first.why if first is not None else "."
    aside = first.aside if first is not None else ""
    share = _share_text(breaking)
    if breaking.stage and first is not None and 0 < (first.share or 0.0) < ALL:
        # The cause has a share of its own, of one trial.
        share = f"at {show_pps(breaking.pps)}" * (bound is not None)
    beside = "; ".join(filter(None, (aside, share)))
    return f"{head} {above} {what}{f' ({beside})' if beside else ''}{why}"


def helps_text(search: PointSearch) -> str:
    """Return the remedy for what breaks first; empty if nothing does."""
    breaking = search.breaking
    if breaking is None:
        return ""
    if breaking.bottleneck is not None:
        return breaking.bottleneck.helps
    of_program = way_to_receive(search.point.receive).takes == "program"
    return f"What helps: {helps_at(breaking.stage or 'late_readers', of_program)}."


def breaking_lines(searches: Sequence[PointSearch]) -> list[str]:
    """Return for each point what breaks first and the remedy; equal remedies once."""
    lines: list[str] = []
    latest = {search.point.point: search for search in searches if search.breaking is not None}
    for point, search in latest.items():
        head = f"{point}: " if len(latest) > 1 else ""
        lines.append(head + breaking_text(search))
    helps = dict.fromkeys(filter(None, map(helps_text, latest.values())))
    return [*lines, *helps]


def _late_text(breaking: Breaking) -> str:
    """Return who falls behind, and that nothing is lost before, if so."""
    who = "sender" if breaking.by_sender else "receiver"
    return f"the {who} falls behind{'' if breaking.lost_packets else ' before anything is lost'}"


def _share_text(breaking: Breaking) -> str:
    if breaking.stage is None:
        late = show_ratio(breaking.share)
        return f"at {show_pps(breaking.pps)} {late} of the packets were received only afterwards"
    return f"{show_percent(breaking.share)} of what is lost at {show_pps(breaking.pps)}"
