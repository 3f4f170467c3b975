"""Searches as results: the trials of each folded into one, with bounds and what breaks first.

Owns which trials belong to a search and what they say together; where its rate lies is found by
``rate_search``. A folded result stands for its point like a trial's: its ledger is that of the
trial just above the upper bound. Pure. Long, because what is said of a search, and why, is of one
fold of its trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from udpbench.analysis.ledger.ledger import lost_by_place, packets_at, worst_place
from udpbench.analysis.ledger.stages import BEFORE_SENT
from udpbench.analysis.rate_search import (
    MOSTLY_ROBBED,
    OFFERED_SHARE,
    Purpose,
    Robbed,
    SearchState,
    SearchTrial,
    search_state,
)
from udpbench.analysis.remedies import REMEDIES
from udpbench.metrics import METRICS, SEARCHED, with_goal
from udpbench.model.experiment import Experiment, Search, Trial
from udpbench.model.record import Finding
from udpbench.model.result import Bottleneck, Certainty, CpuLoad, GoalBounds, Result
from udpbench.units import Rate, plural, rate_scale, show_bps, show_pps, show_ratio, show_share

OF_LEDGER = tuple(name for name, metric in METRICS.items() if metric.unit == "packets")
"""Counts that a folded result takes over from the trial whose ledger it shows."""
GIVEN_UP = ("invalid", "robbed", "sender")
"""Ends of a search whose trials tell nothing of the receiver."""
NOT_FIRST = (*BEFORE_SENT, "app_log")
"""Stages that lose no packet on its way to the application."""
NOTHING = "nothing"
"""The bottleneck of a trial that got all through: no words for a search, which goes beyond it."""
OF_SENDER = ("failing_calls", "inline", "sender_queue", "sender_cpu", "stopped_sender")
"""Bottlenecks of the sender, wherever its packets end."""
OF_TIME = (
    *OF_SENDER,
    *("others_cpu", "steal", "firewall", "shared_socket", "unmerged", "remote_node", "one_queue"),
    *("reader_work", "shared_cpu", "reader_system", "receive_cpu", "governor"),
    *("reader_sleeps", "standstill", "cpu_quota"),
)
"""Bottlenecks that make packets late; a small buffer or a rule only loses some."""
UNPROVEN: Mapping[Certainty, Certainty] = {"certain": "likely"}
"""How certain a bottleneck is at a lower load than the one at which it was seen."""
FASTER_SENDER = REMEDIES["sender_cpu"].text
FASTER_LINE = "use a faster line, or smaller datagrams for more of them"
HIGHER_RATES = "raise search.rate.to"


@dataclass(frozen=True)
class Breaking:
    """What loses packets first above the headline's upper bound."""

    pps: float
    """The load at which this was seen."""
    stage: str | None
    """Several where only their sum is known (``link or rx_ring``); None: the receivers fell behind
    by more than was lost."""
    share: float
    """Part of all packets lost there; without a stage of those that came too late."""
    cpu: CpuLoad | None
    """The fullest CPU that receives; None if nothing is known of any."""
    trials: int
    bottleneck: Bottleneck | None = None
    """What limits the trial of the median loss, or another there, if that is what breaks."""
    lost_packets: int = 0
    """At that load, at all stages."""

    @property
    def by_sender(self) -> bool:
        """Return whether it is the sender that falls behind."""
        first = self.bottleneck
        return first is not None and (first.stage == "unsent" or first.name in OF_SENDER)


@dataclass(frozen=True)
class PointSearch:
    """One search of one point."""

    point: Trial
    """The point as a whole: ``search_trial`` is 0."""
    search: Search
    state: SearchState
    trials: tuple[Result, ...]
    """Those that the search used, in their order."""
    breaking: Breaking | None
    result: Result
    """All of it as one result."""

    @property
    def headline(self) -> GoalBounds:
        """Return the largest goal."""
        return self.state.goals[-1]

    @property
    def least_pps(self) -> float:
        """Return the lowest load of its range."""
        return float(self.search.rate.span_pps(self.point.traffic.datagrams)[0])

    @property
    def perhaps_pps(self) -> tuple[float | None, float | None]:
        """Return between which loads the rate may lie; a bound that is not decided by one trial.

        By the highest that kept the goal below the lowest that did not, of valid trials that nobody
        disturbed.
        """
        tried = [
            (_pps(trial), _missed(trial) <= self.headline.loss)
            for trial, purpose in zip(self.trials, self.purposes, strict=True)
            if purpose == "search" and trial.valid and not trial.struck and not _is_short(trial)
        ]
        lower, upper = self.headline.lower_pps, self.headline.upper_pps
        if upper is None:
            lossy = (pps for pps, kept in tried if not kept and pps > (lower or 0))
            upper = min(lossy, default=None)
        if lower is None:
            kept_goal = (pps for pps, kept in tried if kept and (upper is None or pps < upper))
            lower = max(kept_goal, default=None)
        return lower, upper

    @property
    def may_lie(self) -> GoalBounds | None:
        """Return the headline with bounds of single trials; None if these say no more."""
        lower, upper = self.perhaps_pps
        known = self.headline.lower_pps, self.headline.upper_pps
        if self.headline.kind != "unfinished" or (lower, upper) == known:
            return None
        return replace(self.headline, lower_pps=lower, upper_pps=upper)

    @property
    def held_up(self) -> bool:
        """Return whether others, who had CPUs of the load, are why bounds are open."""
        disturbed = 2 * sum(map(is_disturbed, self.trials)) > len(self.trials)
        late = self.state.ended == "within" and _is_unfinished(self.state)
        return self.state.ended == "robbed" or (late and disturbed)

    @property
    def full_line_bps(self) -> int | None:
        """Return the rate of the sender's line, if that is what ends the range."""
        rates = [trial.full_line_bps for trial in self.trials if trial.full_line_bps is not None]
        return min(rates, default=None) if self.state.sender_bound else None

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        """Return what each trial was for."""
        return self.state.purposes

    @property
    def confirming(self) -> Result | None:
        """Return the valid longer trial at the found rate; None without one."""
        valid = [
            trial
            for trial, purpose in zip(self.trials, self.purposes, strict=True)
            if purpose == "confirm" and trial.valid
        ]
        return valid[-1] if valid else None

    @property
    def confirmed(self) -> Result | None:
        """Return that trial if the sender offered its rate; None if not, or without one."""
        trial = self.confirming
        return None if trial is None or _is_short(trial) else trial


def state_of(point: Trial, results: Sequence[Result]) -> SearchState:
    """Return where the search of a point stands after some trials, in their order."""
    if point.search is None:
        raise ValueError(f"{point.name} is not searched")
    trials = [_search_trial(result) for result in results]
    return search_state(point.search, point.traffic.datagrams, trials)


def next_search_trial(point: Trial, results: Sequence[Result]) -> Trial | None:
    """Return the next trial of a search; None once it has ended."""
    next_trial = state_of(point, results).next_trial
    if next_trial is None:
        return None
    rate = Rate(packets_per_s=next_trial.pps) if next_trial.pps is not None else None
    return replace(
        point,
        search_trial=len(results) + 1,
        traffic=replace(point.traffic, rate=rate),
        duration_ns=next_trial.duration_ns,
    )


def whole_point(trial: Trial) -> Trial:
    """Return the point that a trial of a search belongs to, in its repetition."""
    search = trial.search
    duration_ns = search.trial_ns if search is not None else trial.duration_ns
    traffic = replace(trial.traffic, rate=None)
    return replace(trial, search_trial=0, traffic=traffic, duration_ns=duration_ns)


def searches_of(results: Sequence[Result]) -> tuple[PointSearch, ...]:
    """Return every search that the results of trials belong to, in the order of their begin."""
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for result in results:
        key = result.trial.search_key
        if key is not None:
            groups.setdefault(key, []).append(result)
    return tuple(_point_search(group) for group in groups.values())


def folded(experiment: Experiment, results: Sequence[Result]) -> list[Result]:
    """Return the results that stand for points: of a search one, of other experiments each."""
    if not experiment.searched:
        return list(results)
    return [each.result for each in searches_of(results)]


def _search_trial(result: Result) -> SearchTrial:
    trial, numbers = result.trial, result.numbers
    rate = trial.traffic.rate
    sent, lost, intended = (
        int(numbers.get(name) or 0) for name in ("sent_packets", "lost_packets", "intended_packets")
    )
    late, line_is_full = late_packets(result), result.full_line_bps is not None
    outcome = SearchTrial(
        rate.packets_per_s if rate is not None else None,
        trial.duration_ns,
        sent - late if line_is_full else sent,
        lost if line_is_full else max(lost, late),
        intended,
        result.valid and sent > 0,
        result.took_ns or 0,
    )
    if not result.struck or rate is None or line_is_full:
        return outcome
    # What others took is neither the sender's limit nor the receiver's.
    lossy = outcome.lost_packets > min(trial.search.goals if trial.search else (0.0,)) * sent
    mostly = any(cpu.taken > MOSTLY_ROBBED for cpu in result.cpus)
    robbed: Robbed | None = ("mostly" if mostly else "partly") if lossy else None
    return replace(outcome, valid=outcome.valid and not outcome.short, robbed=robbed)


def is_disturbed(result: Result) -> bool:
    """Return whether a trial's loss may be due to others' use of its CPUs: a search repeats it."""
    return _search_trial(result).robbed is not None


def late_packets(result: Result) -> int:
    """Return how many packets had to wait until the load was over.

    A queue holds for a while what comes too fast, and a longer trial would have lost it: with 4 MiB
    a socket keeps 11,000 small datagrams. Where the sender's line is full, the queue was its own:
    they were not offered in time. A lag of up to half the precision of the search is in time.
    """
    lag, search = result.lag or 0.0, result.trial.search
    if search is None or lag <= search.precision / 2:
        return 0
    return round((result.numbers.get("received_packets") or 0) * lag / (1 + lag))


def _point_search(results: Sequence[Result]) -> PointSearch:
    ordered = sorted(results, key=lambda result: result.trial.search_trial)
    point = whole_point(ordered[0].trial)
    state = state_of(point, ordered)
    search = point.search or Search()
    trials = tuple(ordered[: len(state.purposes)])
    breaking, shown = _breaking(state, trials)
    plain = PointSearch(point, search, state, trials, breaking, ordered[0])
    return replace(plain, result=_folded(plain, shown))


def _loss(result: Result) -> float:
    return result.numbers.get("loss_ratio") or 0.0


def _missed(result: Result) -> float:
    """Return the share of what was sent that a search counts as lost."""
    trial = _search_trial(result)
    return trial.lost_packets / trial.sent_packets if trial.sent_packets else 0.0


def _is_short(result: Result) -> bool:
    """Return whether the sender did not offer the load, so that it is not that load's loss."""
    return _search_trial(result).short


def _pps(result: Result) -> int:
    rate = result.trial.traffic.rate
    return (rate.packets_per_s or 0) if rate is not None else 0


def _above(state: SearchState, trials: Sequence[Result]) -> list[Result]:
    """Return the lossy trials from the headline's upper bound on; without one, all above none."""
    headline = state.goals[-1]
    lossy = [
        trial
        for trial, purpose in zip(trials, state.purposes, strict=True)
        if purpose == "search"
        and trial.valid
        and not _is_short(trial)
        and _missed(trial) > headline.loss
    ]
    lossy = [trial for trial in lossy if not trial.struck] or lossy
    upper = headline.upper_pps
    at_bound = upper is not None and any(_pps(trial) == round(upper) for trial in lossy)
    if upper is not None and at_bound:
        return [trial for trial in lossy if _pps(trial) >= round(upper)]
    if headline.lower_pps is not None or upper is not None:
        return [trial for trial in lossy if _pps(trial) > (headline.lower_pps or 0)]
    return lossy


def _breaking(
    state: SearchState, trials: Sequence[Result]
) -> tuple[Breaking | None, Result | None]:
    """Return what breaks first, and the trial whose ledger shows it: that of the median loss."""
    every_above = _above(state, trials) if state.ended not in GIVEN_UP else []
    if not every_above:
        return None, None
    lowest = min(map(_pps, every_above))
    above = sorted((trial for trial in every_above if _pps(trial) == lowest), key=_missed)
    higher = sorted((trial for trial in every_above if _pps(trial) > lowest), key=_pps)
    lost: dict[str, int] = {}
    for trial in above:
        for place, packets in _lost_at(trial).items():
            lost[place] = lost.get(place, 0) + packets
    shown = above[(len(above) - 1) // 2]
    cpus = [cpu for cpu in shown.cpus if cpu.receives]
    fullest = max(cpus, key=lambda cpu: cpu.busy, default=None)
    late, every = sum(map(late_packets, above)), sum(lost.values())
    if late > every:
        sent = sum(trial.numbers.get("sent_packets") or 0 for trial in above)
        first = _why([shown, *above], None) or _likely_why(higher, None)
        return Breaking(lowest, None, late / sent, fullest, len(above), first, every), shown
    if not lost:
        return None, shown
    place = worst_place(lost)
    share = packets_at(lost, place) / every
    first = _why([shown, *above], place) or _likely_why(higher, place)
    return Breaking(lowest, place, share, fullest, len(above), first, every), shown


def _lost_at(trial: Result) -> dict[str, int]:
    """Return place → packets that ended there on their way to the application."""
    ended = lost_by_place(trial.ledger) if trial.ledger is not None else {}
    return {place: packets for place, packets in ended.items() if place not in NOT_FIRST}


def _why(trials: Sequence[Result], stage: str | None) -> Bottleneck | None:
    """Return the first bottleneck of the first trial that speaks of what breaks, if any does.

    That is the stage; without one, what makes packets late.
    """
    firsts = (next(iter(_limits_of(trial)), None) for trial in trials)
    known = (first for first in firsts if first is not None)
    speaking = (b for b in known if (b.name in OF_TIME if stage is None else b.stage == stage))
    return next(speaking, None)


def _likely_why(trials: Sequence[Result], stage: str | None) -> Bottleneck | None:
    """Return what trials at higher loads say of the receiver: what breaks there may break first.

    A buffer keeps what a slow program leaves until the load is over, so that just above the bound
    nothing is lost, and no trial says why it was late.
    """
    first = _why(trials, stage)
    if first is None or first.name in OF_SENDER:
        return None
    return replace(first, certainty=UNPROVEN.get(first.certainty, first.certainty))


def _limits_of(trial: Result) -> list[Bottleneck]:
    return [bottleneck for bottleneck in trial.diagnosis if bottleneck.name != NOTHING]


def in_search(trial: Trial, diagnosis: tuple[Bottleneck, ...]) -> tuple[Bottleneck, ...]:
    """Return a trial's diagnosis; of a search's, without advice to search."""
    if not trial.search_trial:
        return diagnosis
    what, step = "the receiver keeps up with this load of the search", "see what its search says"
    return tuple(
        replace(each, what=what, remedy=step) if each.name == NOTHING else each
        for each in diagnosis
    )


def _diagnosis(whole: PointSearch, shown: Result | None) -> tuple[Bottleneck, ...]:
    """Return what limits a search, in words that hold for all of it."""
    limits, breaking, state = (
        _limits_of(shown) if shown is not None else [],
        whole.breaking,
        whole.state,
    )
    if breaking is not None:
        first = breaking.bottleneck
        if first is None and breaking.stage is None:
            what, helps = "the receiver falls behind", REMEDIES["late_readers"].text
            first = Bottleneck("late_readers", "likely", "", 0, what, helps)
        return (*([first] if first is not None else []), *(b for b in limits if b != first))
    at_least = state.ended == "done" and whole.headline.kind == "at least"
    if state.sender_bound and (at_least or state.ended == "sender"):
        return _of_sender(whole)
    if at_least and shown is not None and len(limits) < len(shown.diagnosis):
        what = "the receiver keeps up with the highest load of the search, and may take more"
        return (Bottleneck(NOTHING, "certain", "", 0, what, HIGHER_RATES), *limits)
    return tuple(limits)


def _of_sender(whole: PointSearch) -> tuple[Bottleneck, ...]:
    """Return what kept the sender from a higher load: its line, or what its own trials say."""
    helps = FASTER_SENDER if whole.full_line_bps is None else FASTER_LINE
    unknown = Bottleneck("unsent", "certain", "unsent", 0, sender_end(whole), helps)
    if whole.full_line_bps is not None:
        return (unknown,)
    own = [
        t for t, purpose in zip(whole.trials, whole.purposes, strict=True) if purpose == "sender"
    ]
    short = sorted((trial for trial in whole.trials if _is_short(trial)), key=_pps)
    limits = (_limits_of(trial) for trial in (*short, *own) if trial.valid)
    of_sender = (tuple(each) for each in limits if each and each[0].stage in ("", "unsent"))
    return next(of_sender, (unknown,))


def _folded(whole: PointSearch, shown: Result | None) -> Result:
    """Return a search as one result."""
    last = whole.trials[-1] if whole.trials else whole.result
    shown = shown if shown is not None else _fullest(whole)
    numbers = {name: shown.numbers.get(name) for name in OF_LEDGER} if shown is not None else {}
    remainders = [r.unaccounted for r in whole.trials if r.unaccounted is not None]
    numbers["unaccounted"] = max(remainders, key=abs, default=None)
    spans: dict[str, tuple[float, float]] = {}
    names = [(with_goal(SEARCHED[0], goal.loss), goal) for goal in whole.state.goals]
    for name, goal in (*names, (SEARCHED[0], whole.headline)):
        numbers[name] = goal.throughput_pps
        if goal.kind != "regular":
            spans[name] = _span(goal, whole)
    skipped = all(trial.status == "skipped" for trial in whole.trials)
    findings = tuple(_findings(whole))
    return Result(
        trial=whole.point,
        status="skipped" if skipped else "done",
        valid=not skipped and all(finding.severity != "invalid" for finding in findings),
        findings=findings if not skipped else last.findings,
        unavailable=last.unavailable,
        numbers=numbers,
        spans=spans,
        unfinished=_is_unfinished(whole.state) and not skipped,
        ledger=shown.ledger if shown is not None else None,
        workers=shown.workers if shown is not None else (),
        diagnosis=_diagnosis(whole, shown),
        took_ns=whole.state.spent_ns,
        tables=shown.tables if shown is not None else (),
    )


def _is_unfinished(state: SearchState) -> bool:
    """Return whether a search ended before it knew the rate of each of its goals."""
    return any(goal.kind == "unfinished" for goal in state.goals)


def _span(goal: GoalBounds, whole: PointSearch) -> tuple[float, float]:
    """Return between which rates a throughput lies that is no single number."""
    least = goal.throughput_pps or 0.0
    if goal.upper_pps is not None:
        return least, goal.upper_pps
    if goal.kind == "none":
        return 0.0, whole.least_pps
    return least, float("inf")


def _fullest(whole: PointSearch) -> Result | None:
    """Return the valid trial of the highest load up to the lower bound, for its ledger."""
    valid = [
        trial
        for trial, purpose in zip(whole.trials, whole.purposes, strict=True)
        if purpose == "search" and trial.valid
    ]
    lower = whole.headline.lower_pps
    most = round(lower) if lower is not None else None
    offered = [t for t in valid if not _is_short(t) and (most is None or _pps(t) <= most)]
    return max(offered or valid, key=_pps, default=None)


# --- what a reader must know ---------------------------------------------------------------------


def _findings(whole: PointSearch) -> list[Finding]:
    """Return how the search ended, loss at low load, and what its trials found, each once."""
    return [*_ending(whole), *_confirming(whole), *_low_loss(whole), *_of_trials(whole)]


def _ending(whole: PointSearch) -> list[Finding]:
    state, headline = whole.state, whole.headline
    where = "search"
    if state.ended == "invalid":
        what = "the search gave up: trials at one load were invalid again and again"
        step = "see the findings of its trials; a busy machine cannot be searched"
        return [Finding("invalid", what, where, known_text(whole), next_step=step)]
    if state.ended == "robbed":
        return [_robbed_of(whole)]
    if state.ended == "sender":
        least = show_pps(whole.least_pps)
        value, limit = show_pps(state.most_pps), f"at least search.rate.from, {least}"
        what = "the sender offers less than the lowest rate of the search"
        step = f"lower search.rate.from, or {FASTER_SENDER}"
        return [Finding("invalid", what, where, value, limit, step)]
    if state.ended == "within" and _is_unfinished(state):
        what = "the search took longer than search.within; these are the bounds known by then"
        step = "raise search.within, or search.precision"
        if whole.held_up:
            what += f"; {disturbed_text(whole)}"
            step = REMEDIES["busy"].text
        return [Finding("warning", what, where, known_text(whole), next_step=step)]
    if state.ended is None:
        what = "the search was interrupted; these are the bounds known by then"
        step = "udpbench run --resume continues it"
        return [Finding("invalid", what, where, known_text(whole), next_step=step)]
    if headline.kind == "none":
        least = show_pps(whole.least_pps)
        what = f"no rate meets the goal of {show_share(headline.loss)}: the lowest load lost more"
        return [Finding("warning", what, where, least, next_step="lower search.rate.from")]
    if headline.kind == "at least":
        what = "lower bound: the highest load met the goal, and no higher one was offered"
        step = HIGHER_RATES
        if state.sender_bound:
            what = f"lower bound: {sender_end(whole)}, and that load met the goal"
            step = FASTER_SENDER if whole.full_line_bps is None else FASTER_LINE
        most = show_pps(state.most_pps)
        return [Finding("note", what, where, most, next_step=step, kind="bound")]
    return []


def _robbed_of(whole: PointSearch) -> Finding:
    """Return that others had the CPUs at higher loads, and what is known."""
    trials = sum(_search_trial(trial).robbed == "mostly" for trial in whole.trials)
    what = f"{robbed_text(whole)} in each of {trials} trials that lost packets"
    known = whole.headline.lower_pps is not None
    severity: Literal["warning", "invalid"] = "warning" if known else "invalid"
    return Finding(severity, what, "search", known_text(whole), next_step=REMEDIES["busy"].text)


def disturbed_text(whole: PointSearch) -> str:
    """Return in how many trials others used CPUs of the load, as a clause."""
    disturbed = sum(map(is_disturbed, whole.trials))
    return f"others used CPUs of the load in {disturbed} of {len(whole.trials)} trials"


def robbed_text(whole: PointSearch) -> str:
    """Return at which loads others had the CPUs, as a clause."""
    highest, *lower = whole.state.robbed_pps
    more = f" and {plural(len(lower), 'lower load')}" if lower else ""
    loads, share = f"{show_pps(highest)}{more}", show_share(MOSTLY_ROBBED)
    return f"at {loads} others had more than {share} of a CPU of the load"


def known_text(whole: PointSearch) -> str:
    """Return between which loads the rate of a search lies, if only by single trials."""
    if whole.may_lie is None:
        return known_bounds(whole.headline)
    return f"{known_bounds(whole.may_lie)} by single trials, not confirmed"


def known_bounds(goal: GoalBounds) -> str:
    """Return between which loads a rate lies, as far as known: ``412.3 – 416.4 kpps``."""
    lower, upper = goal.lower_pps, goal.upper_pps
    if lower is None or upper is None:
        known = lower if lower is not None else upper
        side = "from" if lower is not None else "below"
        return f"{side} {show_pps(known)}" if known is not None else "no load is decided"
    scale, unit, digits = rate_scale(upper)
    return f"{lower / scale:.{digits}f} – {upper / scale:.{digits}f} {unit}"


def sender_end(whole: PointSearch) -> str:
    """Return what ends the range of a search whose sender could offer no more."""
    line_bps = whole.full_line_bps
    if line_bps is None:
        return "the sender offers no more"
    return f"the sender's line is full: {show_bps(line_bps)}"


def _confirming(whole: PointSearch) -> list[Finding]:
    confirmed = whole.confirmed
    if confirmed is None:
        return _unconfirmed(whole)
    lost, goal = _loss(confirmed), whole.headline.loss
    kept = _missed(confirmed) <= goal
    what = f"a long trial {'confirms' if kept else 'does not confirm'} the rate found"
    late = late_packets(confirmed) / (confirmed.numbers.get("sent_packets") or 1)
    value = f"{show_ratio(lost)} lost" + (f", {show_ratio(late)} too late" if late else "")
    limit = f"at most {show_ratio(goal)}"
    return [Finding("note" if kept else "warning", what, "search", value, limit)]


def _unconfirmed(whole: PointSearch) -> list[Finding]:
    """Return why the longer trial that was asked for says nothing, if the search came so far."""
    state = whole.state
    value: str | None = None
    limit = ""
    if whole.confirming is not None:
        what = "the rate is not confirmed: the sender did not sustain it that long"
        trial = _search_trial(whole.confirming)
        value = show_ratio(trial.sent_packets / trial.intended_packets)
        limit = f"at least {show_ratio(OFFERED_SHARE)} of the intended load"
        step = FASTER_SENDER
    elif state.ended == "within" and not _is_unfinished(state):
        what = "the rate is not confirmed: the search took longer than search.within"
        step = "raise search.within"
    elif state.ended == "done" and "confirm" in whole.purposes:
        what = "the rate is not confirmed: each longer trial was invalid"
        step = "see the findings of its trials"
    else:
        return []
    return [Finding("warning", what, "search", value, limit, step)]


def _low_loss(whole: PointSearch) -> list[Finding]:
    """Return loss at loads that the headline's goal allows: it distorts zero-loss figures."""
    lower = whole.headline.lower_pps
    if lower is None:
        return []
    tried = [
        trial
        for trial, purpose in zip(whole.trials, whole.purposes, strict=True)
        if purpose == "search" and trial.valid and _pps(trial) < lower
    ]
    lossy = [trial for trial in tried if _loss(trial) > 0]
    if not lossy:
        return []
    worst = max(lossy, key=_loss)
    place = worst_place(_lost_at(worst)) or "no known stage"
    return [
        Finding(
            "note",
            f"loss at loads below the lower bound, most of it at {place}",
            "search",
            f"in {len(lossy)} of {len(tried)} trials, up to {show_ratio(_loss(worst))}",
            next_step="a goal of 0 % measures these hiccups of the host, not its capacity",
        )
    ]


def _of_trials(whole: PointSearch) -> list[Finding]:
    """Return what the trials found, each once, with how many of them found it."""
    counted: dict[Finding, list[Finding]] = {}
    having: dict[Finding, set[int]] = {}
    for number, trial in enumerate(whole.trials):
        for finding in trial.findings:
            plain = replace(finding, value=None)
            counted.setdefault(plain, []).append(finding)
            having.setdefault(plain, set()).add(number)
    every_again = bool(whole.trials) and whole.trials[-1].valid
    repeated = []
    for plain, same in counted.items():
        severe = plain.severity in ("invalid", "struck")
        trials = len(having[plain])
        what = (
            plain.what
            if trials == len(whole.trials)
            else (f"in {trials} of {len(whole.trials)} trials: {plain.what}")
        )
        severity: Literal["warning", "note"] = "note" if plain.severity == "note" else "warning"
        if plain.severity == "invalid" and every_again:
            what += "; each was repeated"
        elif plain.severity == "struck":
            what += "; those that lost packets were repeated"
        value = same[0].value if len({f.value for f in same}) == 1 else None
        if severe and value is None:
            value = same[-1].value
        repeated.append(replace(plain, severity=severity, what=what, value=value))
    return repeated
