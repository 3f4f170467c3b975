"""The search for the highest rate: from the trials so far to the next one, or to the bounds.

Pure: the package ``MLRsearch`` is deterministic, so the trials that a search has made are replayed
to it whenever something is asked; nothing is kept between two questions, and a stored search is
continued, or judged, by the same function that ran it. It sees no packet that was not sent: a load
that the sender did not offer ends the range, it is no loss (unlike in RFC 9971).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from udpbench.model.experiment import Datagrams, Search
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Bounded, GoalBounds

OFFERED_SHARE = 0.995
"""An offered load below this share of the intended one is the sender's limit (RFC 2285 3.5)."""
SENDER_SHARE = 0.98
"""Part of what a sender offers by itself: paced, it reaches a little less."""
TRIES = 5
"""Invalid trials of one load, after which a search is given up: in a row, but for trials made again
because others had a part of the CPUs, which are not counted and do not begin the count anew."""
ROBBED_TRIES = 2
"""Trials of one load in a row that are made again because others had a part of the CPUs: on a
machine that is never quiet, the next one counts."""
MOSTLY_ROBBED = 0.2
"""Share of a CPU of the load that others had, above which a trial that lost packets never counts: a
hypervisor that took 25 to 55 % for 40 s made a search look for the rate at a tenth of it."""
ROBBED_PART = 8
"""Part of a search's time, an eighth, after which one load is left of which others had the CPUs in
each trial that lost packets: the rest of the time would only repeat it."""
ROBBED_STEP = 4
"""By how much lower a search then goes on: what loses nothing counts on a busy machine, too."""
NEVER_S = 1e9
"""The package's own time limit, which would depend on the machine: ``within`` is ours."""

Ended = Literal["done", "within", "invalid", "robbed", "sender"]
"""Why nothing more is wanted: bounds found, time used up, no valid trial, others had the CPUs at
all higher loads, or the sender offers less than the lowest rate."""
Robbed = Literal["partly", "mostly"]
Purpose = Literal["sender", "search", "confirm"]


@dataclass(frozen=True)
class SearchTrial:
    """What a search needs to know of one trial."""

    pps: int | None
    """Intended load; None: what the sender offers by itself."""
    duration_ns: int
    sent_packets: int
    lost_packets: int
    intended_packets: int
    valid: bool
    took_ns: int
    robbed: Robbed | None = None
    """It lost more than the strictest goal allows while others had so much of a CPU of the load."""

    @property
    def short(self) -> bool:
        """Return whether the sender did not offer the load, so that nothing is known of it.

        If more was lost than was not sent, the load loses: a stall makes no more packets come late
        than it held up.
        """
        unsent = self.intended_packets - self.sent_packets
        return unsent > (1 - OFFERED_SHARE) * self.intended_packets and self.lost_packets <= unsent

    @property
    def offered_pps(self) -> float:
        """Return what was offered, by exact counts."""
        return self.sent_packets * SECOND_NS / self.duration_ns


@dataclass(frozen=True)
class NextTrial:
    """The next trial of a search."""

    purpose: Purpose
    pps: int | None
    duration_ns: int


@dataclass(frozen=True)
class SearchState:
    """Where a search stands; without a next trial it has ended."""

    next_trial: NextTrial | None
    ended: Ended | None
    goals: tuple[GoalBounds, ...]
    purposes: tuple[Purpose, ...]
    """For each trial so far; those beyond them are of another course, and were not used."""
    most_pps: float | None = None
    """The upper end of the range; None before the sender's own load is known."""
    sender_bound: bool = False
    """The range ends where the sender does, not where the search was told to end."""
    spent_ns: int = 0
    robbed_pps: tuple[float, ...] = ()
    """Loads that were left because others had the CPUs, the highest first."""
    repeated: frozenset[int] = frozenset()
    """Places of trials that do not count, since others may have caused their loss."""


def _package() -> Any:
    """Return MLRsearch, imported only for a search: that takes as long as the rest of udpbench."""
    import MLRsearch

    return MLRsearch


class _Stop(Exception):
    """Raised through the package where the trials so far end, or must not go on."""

    def __init__(self, ended: Ended | None, pps: float = 0.0, duration_ns: int = 0) -> None:
        super().__init__(ended)
        self.ended = ended
        self.pps = pps
        self.duration_ns = duration_ns


class _RangeEnds(Exception):
    """Raised through the package where the sender offered less twice."""

    def __init__(self, offered_pps: float) -> None:
        super().__init__(offered_pps)
        self.offered_pps = offered_pps


class _Replay:
    """Answers the package from the trials so far, as its AbstractMeasurer."""

    def __init__(self, trials: Sequence[SearchTrial], within_ns: int) -> None:
        self.trials = trials
        self.robbed_ns = within_ns // ROBBED_PART
        self.next = 0
        self.repeated: set[int] = set()

    def measure(self, intended_duration: float, intended_load: float) -> Any:
        """Return the trial that was made for this question; raises _Stop, _RangeEnds."""
        pps, duration_ns = max(1, round(intended_load)), round(intended_duration * SECOND_NS)
        trial = self.next_trial(pps, duration_ns)
        if trial.short:
            again = self.next_trial(pps, duration_ns)
            if again.short:
                best = max(trial.offered_pps, again.offered_pps)
                raise _RangeEnds(min(best, SENDER_SHARE * intended_load))
            trial = again
        # Without an intended count what was not sent is no loss.
        return _package().MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            offered_count=trial.sent_packets,
            loss_count=max(trial.lost_packets, 0),
        )

    def next_trial(self, pps: int | None, duration_ns: int) -> SearchTrial:
        """Return the next valid trial, which must be one of this load."""
        invalid = robbed = mostly_ns = 0
        while invalid < TRIES:
            if mostly_ns > self.robbed_ns:
                raise _Stop("robbed", pps or 0)
            trial = self.trials[self.next] if self.next < len(self.trials) else None
            # A trial that failed may have been made again: what followed it then is out of date.
            if trial is None or (trial.pps, trial.duration_ns) != (pps, duration_ns):
                raise _Stop(None, pps or 0, duration_ns)
            self.next += 1
            if not trial.valid:
                invalid += 1
            elif trial.robbed == "mostly":
                mostly_ns += trial.took_ns
            elif trial.robbed and robbed < ROBBED_TRIES:
                robbed += 1
            else:
                return trial
            if trial.valid:
                self.repeated.add(self.next - 1)
        raise _Stop("invalid")


def search_state(
    search: Search, datagrams: Datagrams, trials: Sequence[SearchTrial]
) -> SearchState:
    """Return what the trials of a search say, and which one it wants next, if any.

    ``trials`` are all of it in their order, invalid ones included; ``datagrams`` give the meaning
    of a bit rate.
    """
    replay = _Replay(trials, search.within_ns)
    state = _replayed(search, datagrams, replay)
    return replace(state, repeated=frozenset(replay.repeated))


def _replayed(search: Search, datagrams: Datagrams, replay: _Replay) -> SearchState:
    spent_ns = sum(trial.took_ns for trial in replay.trials)
    blank = tuple(GoalBounds(loss) for loss in search.goals)
    purposes: list[Purpose] = []
    state = SearchState(None, None, blank, (), spent_ns=spent_ns)
    (least, most), bound = search.rate.span_pps(datagrams), False
    if most is None:
        try:
            own = replay.next_trial(None, search.trial_ns)
        except _Stop as stop:
            return _ended(search, state, stop, "sender", ["sender"] * replay.next)
        purposes = ["sender"] * replay.next
        most, bound = SENDER_SHARE * own.offered_pps, True
    if most <= least:
        state = replace(state, most_pps=most, sender_bound=bound)
        return _ended(search, state, _Stop("sender"), "search", purposes)
    state = _searched(search, replace(state, sender_bound=bound), replay, float(least), most)
    purposes += ["search"] * (replay.next - len(purposes))
    state = replace(state, purposes=tuple(purposes))
    if state.ended != "done" or search.confirm_ns is None:
        return state
    return _confirmed(search, state, replay, purposes)


def _searched(
    search: Search, state: SearchState, replay: _Replay, least: float, most: float
) -> SearchState:
    """Return the state after a replay.

    A range that the sender does not reach is begun anew, and so is one below a load of which others
    had the CPUs: nothing that is known so far is so close to it.
    """
    state = replace(state, most_pps=most)
    while True:
        goals = _goals_of(search)
        algorithm = _package().MultipleLossRatioSearch(_config(goals, least, most))
        stop = _Stop("done")
        try:
            algorithm.search(replay, debug=_ignore)
        except _RangeEnds as end:
            most = end.offered_pps
            state = replace(state, most_pps=most, sender_bound=True)
            if most <= least:
                return _ended(search, state, _Stop("sender"), "search", [])
            continue
        except _Stop as early:
            stop = early
        known_goals = tuple(
            _bounds(algorithm, goal, loss, stop.ended == "done")
            for goal, loss in zip(goals, search.goals, strict=True)
        )
        if state.robbed_pps:
            known_goals = tuple(map(_below, known_goals, state.goals))
        state = replace(state, goals=known_goals)
        if stop.ended == "robbed":
            state = replace(state, robbed_pps=(*state.robbed_pps, stop.pps))
            below_pps = stop.pps / ROBBED_STEP
            if below_pps > max(least, known_goals[-1].lower_pps or 0.0):
                most = below_pps
                continue
        elif stop.ended == "done" and any(goal.kind == "unfinished" for goal in known_goals):
            stop = _Stop("robbed")
        return _ended(search, state, stop, "search", [])


def _below(goal: GoalBounds, above: GoalBounds) -> GoalBounds:
    """Return what is known of a goal after a search below a load that told nothing."""
    if goal.kind in ("regular", "none"):
        return goal
    lower = above if goal.lower_pps is None else goal
    return replace(lower, kind="unfinished", upper_pps=goal.upper_pps or above.upper_pps)


def _ended(
    search: Search,
    state: SearchState,
    stop: _Stop,
    purpose: Purpose,
    purposes: Sequence[Purpose],
) -> SearchState:
    """Return a state with what is wanted next, unless the search has ended or its time is over."""
    state = replace(state, purposes=tuple(purposes))
    if stop.ended is not None:
        return replace(state, ended=stop.ended)
    if state.spent_ns >= search.within_ns:
        return replace(state, ended="within")
    pps = None if purpose == "sender" else round(stop.pps)
    return replace(state, next_trial=NextTrial(purpose, pps, stop.duration_ns))


def _confirmed(
    search: Search, state: SearchState, replay: _Replay, purposes: Sequence[Purpose]
) -> SearchState:
    """Return the state with the confirming trial wanted, if the search has none yet."""
    lower = state.goals[-1].lower_pps
    if lower is None or search.confirm_ns is None:
        return state
    stop = _Stop("done")
    try:
        replay.next_trial(round(lower), search.confirm_ns)
    except _Stop as early:
        stop = early if early.ended is None else stop
    purposes = [*purposes, *["confirm"] * (replay.next - len(purposes))]  # type: ignore[list-item]
    return _ended(search, replace(state, ended=None), stop, "confirm", purposes)


def _goals_of(search: Search) -> tuple[Any, ...]:
    trial_s, time_s = search.trial_ns / SECOND_NS, search.time_ns / SECOND_NS
    return tuple(
        _package().SearchGoal(
            loss_ratio=loss,
            exceed_ratio=search.exceed,
            relative_width=search.precision,
            initial_trial_duration=trial_s,
            final_trial_duration=trial_s,
            duration_sum=max(time_s, trial_s),
            preceding_targets=2 if time_s > trial_s else 0,
            fail_fast=False,
        )
        for loss in search.goals
    )


def _config(goals: Sequence[Any], least: float, most: float) -> Any:
    config = _package().Config()
    config.max_load = max(most, config.min_load + 1)  # it must always be the larger of the two
    config.min_load = least
    config.max_load = most
    config.goals = goals
    config.warmup_duration = None
    config.search_duration_max = NEVER_S
    return config


def _bounds(algorithm: Any, goal: Any, loss: float, done: bool) -> GoalBounds:
    """Return what the package knows about one goal so far."""
    target = algorithm.scaling.goal_to_final_target[goal]
    known = algorithm.database.get_relevant_bounds(target=target)
    lower = float(known.clo) if known.clo is not None else None
    upper = float(known.chi) if known.chi is not None else None
    kind: Bounded
    if done and lower is not None:
        kind = "regular" if upper is not None else "at least"
    else:
        kind = "none" if done else "unfinished"
    throughput = None
    if known.clo is not None:
        stat = next(iter(known.clo.target_to_stat.values()))
        throughput = lower * (1.0 - stat.pessimistic_loss_ratio) if lower is not None else None
    return GoalBounds(loss, kind, throughput, lower, upper)


def _ignore(_: str) -> None:
    """Take the package's debug texts, which would otherwise go to logging."""
