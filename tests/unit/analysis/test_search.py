"""Searches as results: what each end says, what breaks first, and what is told of the trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from golden import Golden

from analysis.build import record
from udpbench.analysis.comparison.comparisons import compare_points
from udpbench.analysis.points import bounds, points
from udpbench.analysis.rate_search import ROBBED_TRIES
from udpbench.analysis.search import (
    Breaking,
    PointSearch,
    folded,
    in_search,
    next_search_trial,
    searches_of,
)
from udpbench.analysis.verdicts import evaluate, exit_code
from udpbench.definition.load import load_experiment_data
from udpbench.judged_run import Chapter
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding
from udpbench.model.result import (
    Bottleneck,
    CpuLoad,
    GoalBounds,
    Ledger,
    LedgerEntry,
    Progress,
    Result,
)
from udpbench.report.answers import answer
from udpbench.report.json_output import search_json
from udpbench.report.search import (
    breaking_lines,
    breaking_text,
    found_text,
    limits_text,
    perhaps_text,
    search_line,
    search_rows,
)
from udpbench.report.sheets import packets_cell
from udpbench.report.summary import not_run
from udpbench.units import show_pps

CAPACITY_PPS, OFFERS_PPS = 300_000, 800_000
NAPI = CpuLoad("machine", 0, 0.98, True, {"NAPI thread": 0.6, "right.receiver0": 0.3})
IDLE = CpuLoad("machine", 2, 0.4, True, {"softirq": 0.3})
SENDER = CpuLoad("machine", 1, 1.0, False, {"left.sender0": 1.0})
FULL = Bottleneck("shared_cpu", "certain", "udp_rcvbuf", 9, "CPU 0 is full", "move the reader")
STRUCK = Finding("struck", "other programs used CPUs of the load", "machine: CPU 0", "7.00 %")
Change = Callable[[Result], Result]


def experiment(search: object = "quick", **keys: object) -> Experiment:
    """Return an experiment that is searched; keys as in YAML."""
    return load_experiment_data({"question": "How many?", "search": search, **keys}, "found")


def measured(trial: Trial, capacity_pps: int, stage: str = "udp_rcvbuf") -> Result:
    """Return the result of a trial on a host that takes so many packets a second."""
    rate = trial.traffic.rate
    seconds = trial.duration_ns / SECOND_NS
    intended = int((rate.packets_per_s or 0 if rate is not None else OFFERS_PPS) * seconds)
    sent = min(intended, int(OFFERS_PPS * seconds))
    lost = max(0, sent - int(capacity_pps * seconds))
    return Result(
        trial,
        "done",
        True,
        (),
        numbers={
            "intended_packets": intended,
            "sent_packets": sent,
            "received_packets": sent - lost,
            "lost_packets": lost,
            "loss_ratio": lost / sent,
            "unaccounted": 0,
        },
        ledger=Ledger(intended, sent - lost, (LedgerEntry(stage, lost, "Δ x"),), 0),
        cpus=(NAPI, IDLE, SENDER),
        diagnosis=(FULL,),
        took_ns=trial.duration_ns + 3 * 10**8,
    )


def results_of(
    whole: Experiment,
    capacity_pps: Callable[[Trial], int] = lambda _: CAPACITY_PPS,
    change: Change = lambda result: result,
    most: int = 200,
) -> list[Result]:
    """Return the trials of every search of an experiment, point by point."""
    results: list[Result] = []
    for point in whole.points:
        for repetition in range(1, whole.trials_of(point.point)[0] + 1):
            own: list[Result] = []
            here = replace(point, repetition=repetition)
            while len(own) < most and (trial := next_search_trial(here, own)) is not None:
                own.append(change(measured(trial, capacity_pps(trial))))
            results += own
    return results


def only(results: list[Result]) -> PointSearch:
    """Return the one search that results belong to."""
    (search,) = searches_of(results)
    return search


def answer_of(search: PointSearch) -> str:
    """Return the answer of a search with its findings."""
    return "\n".join([found_text(search), *map(str, search.result.findings)])


def test_what_breaks_first_is_the_stage_and_what_limits_it(golden: Golden) -> None:
    """As the first diagnosis of the trial just above says; its CPU is the fullest that receives."""
    search = only(results_of(experiment()))
    assert search.breaking is not None
    assert ("udp_rcvbuf", NAPI) == (search.breaking.stage, search.breaking.cpu)
    assert (FULL, (FULL,)) == (search.breaking.bottleneck, search.result.diagnosis)
    golden.check(breaking_lines([search]))


def bounded(result: Result) -> Result:
    """Return a result whose loss may have been the cable's or the ring's."""
    ledger, lost = result.ledger, int(result.numbers["lost_packets"] or 0)
    assert ledger is not None
    stages = ("link", "rx_ring")
    entries = tuple(LedgerEntry(s, None, "not observable", at_most=lost) for s in stages)
    return replace(result, ledger=replace(ledger, entries=entries), diagnosis=())


def test_a_loss_above_the_bound_that_is_only_bounded_is_named(golden: Golden) -> None:
    """By the stages that share it, with what helps at each."""
    search = only(results_of(experiment(), change=bounded))
    assert search.breaking is not None
    assert ("link or rx_ring", 1.0) == (search.breaking.stage, search.breaking.share)
    golden.check(breaking_lines([search]))


def test_a_receiver_that_falls_behind_may_have_lost_packets(golden: Golden) -> None:
    """Fewer than it took too late: not before anything is lost."""
    search = only(results_of(experiment()))
    assert search.breaking is not None
    late = replace(search.breaking, stage=None, share=0.2, bottleneck=None)
    lines = [breaking_lines([replace(search, breaking=each)])[0]
             for each in (late, replace(late, lost_packets=0))]  # fmt: skip
    golden.check(lines)


def test_a_stage_without_a_diagnosis_is_told(golden: Golden) -> None:
    """With its own remedy; and nothing of a trial without a ledger."""
    idle = only(results_of(experiment(), change=lambda r: replace(r, diagnosis=())))
    unknown = only(results_of(experiment(), change=lambda r: replace(r, cpus=(), ledger=None)))
    assert unknown.breaking is None
    golden.check([*breaking_lines([idle]), *breaking_lines([unknown])])


def test_each_end_of_a_search_is_told(golden: Golden) -> None:
    """Regular, none, at least, out of time, given up, a sender below the range, interrupted."""
    whole = experiment({"loss": [0, "0.1%"], "precision": "2%", "time": "3s", "confirm": "10s"})
    ends = [
        only(results_of(whole)),
        only(results_of(whole, lambda _: 100)),
        only(results_of(whole, lambda _: 10**7)),
        only(results_of(experiment({"rate": {"to": "100kpps"}, "time": "2s"}))),
        only(results_of(experiment({"within": "12s"}))),
        only(results_of(whole, change=lambda result: replace(result, valid=False))),
        only(results_of(experiment({"rate": {"from": "900kpps"}}))),
        only(results_of(whole, most=4)),
        only(results_of(whole, most=1)),
    ]
    golden.check([answer_of(search) for search in ends])
    kinds = ["regular", "none", "at least", "at least", *["unfinished"] * 5]
    assert kinds == [search.headline.kind for search in ends]
    says = [limits_text(ends[1]), limits_text(ends[-1])]
    assert ["no rate meets the goal", "not found in time: no load is decided"] == says
    ended = [finding for finding in ends[4].result.findings if finding.where == "search"]
    single = "299.1 – 302.1 kpps by single trials, not confirmed"
    assert ([single], f"not found in time: {single}") == (
        [f.value for f in ended],
        limits_text(ends[4]),
    )
    assert [False] * 4 + [True] * 5 == [search.result.unfinished for search in ends]
    goals = (GoalBounds(0.001, "unfinished", None, None, 500e3),)
    lossy = only(results_of(experiment({"within": "12s"}), lambda _: 100))
    above = replace(lossy, state=replace(lossy.state, goals=goals))
    assert "not found in time: below 500.0 kpps" == limits_text(above)
    assert "less than 500.0 kpps with at most 0.1% lost" == found_text(above)
    ended_above = replace(above, state=replace(above.state, ended="within"))
    (point,) = points([ended_above.result])
    whole = Chapter(experiment(), (), (point,), (), searches=(ended_above,))
    text = answer(whole)
    assert text.startswith("Less than 500.0 kpps with at most 0.1% lost. Even that load loses ")
    assert "before any load had held for long enough" in text
    assert "Above it packets are lost" not in text
    assert above.breaking is not None
    open_goals = (replace(goals[0], upper_pps=None),)
    undecided = replace(above, state=replace(above.state, goals=open_goals))
    text = answer(replace(whole, searches=(undecided,)))
    load = show_pps(above.breaking.pps)
    unsure = (
        f"Less than {load} with at most 0.1% lost, not confirmed. At {load} packets are lost at "
    )
    assert text.startswith(unsure)
    assert breaking_lines([undecided])[0].startswith(f"At {load} packets are lost")
    valid = [True, True, True, True, True, False, False, False, False]
    assert valid == [search.result.valid for search in ends]


def test_a_search_that_was_skipped_is_not_unfinished() -> None:
    """Nothing was looked for, so nothing is left open."""
    trial = next_search_trial(experiment().points[0], [])
    assert trial is not None
    skipped = Result(trial, "skipped", False, ())
    assert ("skipped", False) == (only([skipped]).result.status, only([skipped]).result.unfinished)


def test_a_confirming_trial_that_loses_is_told(golden: Golden) -> None:
    """Its loss is not hidden: the rate stays, with a warning."""
    whole = experiment({"loss": "0.1%", "precision": "2%", "time": "3s", "confirm": "10s"})

    def capacity_pps(trial: Trial) -> int:
        return 250_000 if trial.duration_ns == 10 * SECOND_NS else CAPACITY_PPS

    search = only(results_of(whole, capacity_pps))
    assert (search.confirmed is not None, True) == (True, search.result.valid)
    golden.check(answer_of(search))


CONFIRMED = {"loss": "0.1%", "precision": "2%", "time": "3s", "confirm": "10s"}


def is_confirming(result: Result) -> bool:
    """Return whether a result is that of the longer trial."""
    return result.trial.duration_ns == 10 * SECOND_NS


def test_a_trial_that_confirms_nothing_is_told(golden: Golden) -> None:
    """The sender fell short in it, each was invalid, or no time was left for it."""

    def shorten(result: Result) -> Result:
        sent = (result.numbers["intended_packets"] or 0) // 2
        numbers = {**result.numbers, "sent_packets": sent, "lost_packets": 0, "loss_ratio": 0.0}
        return replace(result, numbers=numbers) if is_confirming(result) else result

    def spoil(result: Result) -> Result:
        bad = Finding("invalid", "foreign traffic reached the port", "right")
        invalid = replace(result, valid=False, findings=(bad,))
        return invalid if is_confirming(result) else result

    whole = experiment(CONFIRMED)
    late = sum(result.took_ns or 0 for result in results_of(whole) if not is_confirming(result))
    hurried = experiment({**CONFIRMED, "within": f"{late // SECOND_NS}s"})
    ends = [
        only(results_of(whole, change=shorten)),
        only(results_of(whole, change=spoil)),
        only(results_of(hurried)),
    ]
    assert ["done", "done", "within"] == [search.state.ended for search in ends]
    assert ["regular"] * 3 == [search.headline.kind for search in ends]
    assert [None] * 3 == [search_json(search)["confirm_loss_ratio"] for search in ends]
    golden.check([answer_of(search) for search in ends])


def test_what_waits_until_the_load_is_over_is_not_received(golden: Golden) -> None:
    """A buffer that holds all that a trial brings too much loses nothing, and hides no capacity."""

    def keep(result: Result) -> Result:
        numbers, sent = result.numbers, result.numbers["sent_packets"] or 0
        lag = max(0.0, sent * SECOND_NS / result.trial.duration_ns / CAPACITY_PPS - 1)
        kept = {**numbers, "received_packets": sent, "lost_packets": 0, "loss_ratio": 0.0}
        ledger = Ledger(int(sent), int(sent), (LedgerEntry("udp_rcvbuf", 0, "Δ x"),), 0)
        return replace(result, numbers=kept, ledger=ledger, lag=lag)

    search = only(results_of(experiment(), change=keep))
    assert 0.98 * CAPACITY_PPS < (search.headline.throughput_pps or 0) < 1.03 * CAPACITY_PPS
    assert ("regular", None) == (search.headline.kind, search.breaking and search.breaking.stage)
    golden.check([answer_of(search), *breaking_lines([search])])


def of_all(name: str, stage: str, what: str, helps: str) -> Bottleneck:
    """Return a bottleneck that is certain."""
    return Bottleneck(name, "certain", stage, 9, what, helps)


NOTHING = of_all(
    "nothing", "", "the receiver keeps up with this load, and may take more", "raise the load"
)
BUFFER = of_all("small_buffer", "udp_rcvbuf", "the receive buffer is too small", "raise it")
SENDING = of_all("sender_cpu", "unsent", "the sender's CPU 1 is full", "give it more CPUs")
BEHIND = of_all("reader_work", "", "the receiver falls behind: CPU 0 is full", "do less")


def late(*limits: Bottleneck, lost: int = 0) -> Change:
    """Return what makes a receiver late beyond its capacity, with a diagnosis of each trial."""

    def change(result: Result) -> Result:
        sent = int(result.numbers["sent_packets"] or 0)
        lag = max(0.0, sent * SECOND_NS / result.trial.duration_ns / CAPACITY_PPS - 1)
        gone = lost if lag else 0
        numbers = {"received_packets": sent - gone, "lost_packets": gone, "loss_ratio": gone / sent}
        ledger = Ledger(sent, sent - gone, (LedgerEntry("udp_rcvbuf", gone, "Δ x"),), 0)
        return replace(
            result,
            numbers={**result.numbers, **numbers},
            ledger=ledger,
            lag=lag,
            diagnosis=limits,
        )

    return change


def test_a_search_that_knows_its_bound_is_not_described_as_without_loss(golden: Golden) -> None:
    """Whoever falls behind is the limit: the words of a trial that got all through do not hold."""
    for limits, lost, name in (
        ((NOTHING,), 0, "late_readers"),
        ((BEHIND,), 0, "reader_work"),
        ((SENDING,), 0, "sender_cpu"),
        ((BUFFER,), 3, "late_readers"),
    ):
        search = only(results_of(experiment(), change=late(*limits, lost=lost)))
        assert ("regular", None) == (
            search.headline.kind,
            search.breaking and search.breaking.stage,
        )
        assert name == search.result.diagnosis[0].name
        assert "nothing" not in {each.name for each in search.result.diagnosis}
        golden.check(breaking_lines([search]))


SLEEPS = of_all("reader_sleeps", "udp_rcvbuf", "300 of 600 kpps: the program sleeps", "read")


def test_what_a_buffer_hides_at_the_bound_is_said_by_higher_loads(golden: Golden) -> None:
    """Likely, since it was seen there; never what they say of the sender, or of a buffer."""
    for above, name in ((SLEEPS, "reader_sleeps"), (SENDING, None), (BUFFER, None)):

        def change(result: Result, above: Bottleneck = above) -> Result:
            sent = result.numbers["sent_packets"] or 0
            if sent * SECOND_NS / result.trial.duration_ns < 1.2 * CAPACITY_PPS:
                return late(NOTHING)(result)
            return replace(result, diagnosis=(above,))

        search = only(results_of(experiment(), change=change))
        assert search.breaking is not None
        first = search.breaking.bottleneck
        assert (None, name) == (search.breaking.stage, first and first.name)
        if first is not None:
            assert "likely" == first.certainty
            assert first == search.result.diagnosis[0]
        golden.check(breaking_lines([search]))


def test_a_trial_of_a_search_does_not_advise_to_search() -> None:
    """What nothing limits is one load of many."""
    trial = next_search_trial(experiment().points[0], [])
    assert trial is not None
    (nothing, full) = in_search(trial, (NOTHING, FULL))
    assert (
        "Nothing was lost: the receiver keeps up with this load of the search. See what its search "
        "says."
    ) == nothing.sentence
    assert FULL == full
    assert (NOTHING,) == in_search(replace(trial, search_trial=0), (NOTHING,))


def test_goals_with_the_same_answer_share_it() -> None:
    """A lower bound holds for all of them, and is said once; different answers stay apart."""
    same = only(results_of(experiment({"rate": {"to": "100kpps"}, "time": "2s"})))
    assert "at least 100.0 kpps with at most 0.1% and 0% lost" == found_text(same)
    assert [["all", "0.1% and 0% lost", "at least 100.0 kpps"]] == [
        row[:3] for row in search_rows([same])
    ]
    goals = (replace(same.headline, loss=0.0, throughput_pps=1e3), same.headline)
    apart = replace(same, state=replace(same.state, goals=goals))
    assert ["0.1% lost", "0% lost"] == [row[1] for row in search_rows([apart])]


def test_a_diagnosis_of_another_stage_is_not_the_reason() -> None:
    """What breaks is the stage that lost most in all trials; another trial there may speak of it."""
    for limits in ((NOTHING,), (SENDING,), (replace(BUFFER, stage="rx_backlog"),)):
        search = only(
            results_of(experiment(), change=lambda r, limits=limits: replace(r, diagnosis=limits))
        )
        assert search.breaking is not None
        assert ("udp_rcvbuf", None) == (search.breaking.stage, search.breaking.bottleneck)
        assert search.result.diagnosis == tuple(each for each in limits if each != NOTHING)

    def change(result: Result) -> Result:
        number = result.trial.search_trial
        return replace(result, diagnosis=(FULL if number % 2 else SENDING,))

    search = only(results_of(experiment(), change=change))
    assert search.breaking is not None
    assert FULL == search.breaking.bottleneck


def test_what_limits_a_search_without_loss_is_the_sender_or_its_range(golden: Golden) -> None:
    """Its line, what its own trials say, or that it offers no more; else the end of the range."""

    def sends(result: Result) -> Result:
        own = result.trial.traffic.rate is None
        return replace(result, diagnosis=(SENDING if own else NOTHING,))

    def fill(result: Result) -> Result:
        pps = (result.numbers["sent_packets"] or 0) * SECOND_NS / result.trial.duration_ns
        lag = pps / 400_000 - 1
        full = {} if lag < 0 else {"lag": lag, "full_line_bps": 10**9}
        return replace(result, diagnosis=(NOTHING,), **full)

    def silent(result: Result) -> Result:
        return replace(result, diagnosis=(NOTHING,))

    ranged = experiment({"rate": {"to": "100kpps"}, "time": "2s"})
    high = experiment({"rate": {"from": "900kpps"}})
    for whole, change, name in (
        (experiment(), sends, "sender_cpu"),
        (experiment(), silent, "unsent"),
        (experiment(), fill, "unsent"),
        (high, sends, "sender_cpu"),
        (ranged, silent, "nothing"),
    ):
        search = only(results_of(whole, lambda _: 10**7, change))
        assert (None, name) == (search.breaking, search.result.diagnosis[0].name)
        golden.check(search.result.diagnosis[0].sentence)
    unfinished = only(results_of(experiment({"within": "12s"}), change=silent))
    assert ("within", ()) == (unfinished.state.ended, unfinished.result.diagnosis)


def test_a_full_line_ends_the_range(golden: Golden) -> None:
    """The sender's own queue holds what it brings too much: it was not offered in time."""
    line_pps = 400_000

    def fill(result: Result) -> Result:
        sent = result.numbers["sent_packets"] or 0
        lag = sent * SECOND_NS / result.trial.duration_ns / line_pps - 1
        if lag < 0:
            return result
        return replace(result, lag=lag, full_line_bps=10**9)

    search = only(results_of(experiment(), lambda _: 10**7, fill))
    assert ("at least", 10**9) == (search.headline.kind, search.full_line_bps)
    assert 0.97 * line_pps < (search.headline.throughput_pps or 0) < 1.01 * line_pps
    golden.check(answer_of(search))


def test_a_load_that_was_not_offered_breaks_nothing() -> None:
    """What a stalling sender's bursts lose is no loss at a load above the lower bound."""

    def stall(result: Result) -> Result:
        intended = result.numbers["intended_packets"] or 0
        if result.trial.traffic.rate is None or intended < 0.9 * OFFERS_PPS:
            return result
        sent, lost = int(0.9 * intended), 5000
        numbers = {"sent_packets": sent, "lost_packets": lost, "loss_ratio": lost / sent}
        entries = (LedgerEntry("udp_rcvbuf", lost, "Δ x"),)
        ledger = Ledger(sent, sent - lost, entries, 0)
        return replace(result, numbers={**result.numbers, **numbers}, ledger=ledger)

    search = only(results_of(experiment(), lambda _: 10**7, stall))
    assert ("at least", None) == (search.headline.kind, search.breaking)
    assert search.result.ledger is not None
    assert [0] == [entry.packets for entry in search.result.ledger.entries]


def test_a_trial_with_several_findings_alike_is_counted_once(golden: Golden) -> None:
    """Each of its CPUs may have been used by others to another extent."""

    def change(result: Result) -> Result:
        struck = (STRUCK, replace(STRUCK, value="8.00 %"))
        return replace(result, findings=struck) if result.trial.search_trial > 5 else result

    search = only(results_of(experiment(), change=change))
    golden.check([str(finding) for finding in search.result.findings])


def test_loss_at_low_load_is_told_with_its_stage(golden: Golden) -> None:
    """It spoils the goal of 0 %, and leaves the headline."""
    whole = experiment({"loss": [0, "0.1%"], "precision": "2%", "time": "3s"})

    def hiccup(result: Result) -> Result:
        if result.numbers["lost_packets"] or result.trial.search_trial % 7 == 0:
            return result
        sent = result.numbers["sent_packets"] or 0
        entries = (LedgerEntry("rx_backlog", 3, "Δ x"),)
        ledger = Ledger(int(sent), int(sent) - 3, entries, 0)
        numbers = {**result.numbers, "lost_packets": 3, "loss_ratio": 3 / sent}
        return replace(result, ledger=ledger, numbers=numbers)

    search = only(results_of(whole, change=hiccup))
    (low,) = (finding for finding in search.result.findings if "loads below" in finding.what)
    golden.check(str(low))
    assert (search.headline.throughput_pps or 0) > 0.95 * CAPACITY_PPS
    either = only(results_of(whole, change=lambda result: bounded(hiccup(result))))
    (low,) = (finding for finding in either.result.findings if "loads below" in finding.what)
    assert low.what.endswith("most of it at link or rx_ring")


def test_findings_of_trials_are_told_once_and_strike_nothing(golden: Golden) -> None:
    """With how many trials have them; an invalid trial was made again."""

    def change(result: Result) -> Result:
        if result.trial.search_trial == 3:
            bad = Finding("invalid", "foreign traffic reached the port", "right")
            return replace(result, valid=False, findings=(bad,))
        return replace(result, findings=(STRUCK,)) if result.trial.search_trial > 5 else result

    search = only(results_of(experiment(), change=change))
    assert (True, "regular") == (search.result.valid, search.headline.kind)
    golden.check([str(finding) for finding in search.result.findings])


def test_a_load_that_others_kept_the_sender_from_is_made_again() -> None:
    """It is not the sender's limit: the range stays, and five in a row end the search."""

    def rob(result: Result) -> Result:
        if result.trial.search_trial == 1:
            return result
        numbers = {**result.numbers, "sent_packets": 1000, "lost_packets": 0}
        return replace(result, numbers=numbers, findings=(STRUCK,))

    search = only(results_of(experiment(), change=rob))
    assert ("invalid", 6) == (search.state.ended, len(search.trials))


def test_what_a_robbed_receiver_lost_is_asked_again_and_then_counts() -> None:
    """Twice in a row; what it received all the same counts at once."""

    def rob(result: Result) -> Result:
        return replace(result, findings=(STRUCK,)) if result.trial.search_trial > 1 else result

    quiet, robbed = (only(results_of(experiment(), change=change)) for change in (lambda r: r, rob))
    assert quiet.headline == robbed.headline
    lossy = sum((trial.numbers["lost_packets"] or 0) > 0 for trial in quiet.trials[1:])
    assert len(robbed.trials) == len(quiet.trials) + ROBBED_TRIES * lossy


def test_an_undecided_search_says_what_single_trials_say() -> None:
    """Between the highest load that kept its goal and the lowest that did not; no more than that."""
    whole = experiment({"within": "12s"})
    search = only(results_of(whole))
    lower, upper = search.perhaps_pps
    assert (lower or 0) < CAPACITY_PPS < (upper or 0)
    between = f"between {show_pps(lower)} and {show_pps(upper)}"
    assert f"{between} with at most 0.1% lost, not confirmed" == found_text(search)
    (point,) = points([search.result])
    text = answer(Chapter(whole, (), (point,), (), searches=(search,)))
    assert text.startswith(f"{between[:1].upper()}{between[1:]} with at most")
    assert f" At {show_pps(upper)} packets are lost at udp_rcvbuf" in text
    bounds_ = f"{(lower or 0) / 1000:.1f} – {show_pps(upper)}"
    assert [["all", "0.1% lost", "not confirmed", bounds_], ["", "0% lost", "unknown", "–"]] == [
        row[:4] for row in search_rows([search])
    ]
    goals = (replace(search.headline, lower_pps=lower),)
    held = replace(search, state=replace(search.state, goals=goals), trials=(), breaking=None)
    held = replace(held, state=replace(held.state, purposes=()))
    assert "" == perhaps_text(held)
    lossless = only(results_of(whole, lambda _: 10**7, most=4))
    assert perhaps_text(lossless).startswith("at least ")
    lossy = only(results_of(whole, lambda _: 100, most=4))
    assert perhaps_text(lossy).startswith("less than ")
    given_up = replace(search, result=replace(search.result, valid=False, findings=(STRUCK,)))
    text = answer(Chapter(whole, (), (point,), (), searches=(given_up,)))
    assert f". Single trials say {between}." in text


def test_a_search_of_which_nothing_ran_is_not_stored() -> None:
    """A resumed run begins it anew, and counts it so, too."""

    def fail(result: Result) -> Result:
        return replace(result, status="failed", valid=False)

    whole = experiment()
    search = only(results_of(whole, change=fail, most=1))
    known = Chapter(whole, (record(),), (), (), searches=(search,))
    assert "0 of 1 searches are stored" == not_run(known)


def test_a_search_whose_program_did_not_start_says_that_alone() -> None:
    """Not that it was interrupted: its run ended with that trial."""
    died = Finding("invalid", "failed: ./server: it ended; start it by itself", "receiver")

    def fail(result: Result) -> Result:
        return replace(result, status="failed", valid=False, findings=(died,))

    search = only(results_of(experiment(), change=fail, most=1))
    (point,) = points([search.result])
    text = answer(Chapter(experiment(), (), (point,), (), searches=(search,)))
    assert text.startswith("No answer: it failed: ./server: it ended. Start it by itself. ")


def mostly_robbed(result: Result) -> Result:
    """Return a trial in which others had a quarter of the reader's CPU, but for the sender's own."""
    quarter, searching = replace(NAPI, taken=0.25), result.trial.search_trial > 1
    return replace(result, findings=(STRUCK,), cpus=(quarter,)) if searching else result


def closing_of(*searches: PointSearch) -> str:
    """Return the answer of an experiment with these searches."""
    results = [search.result for search in searches]
    return answer(Chapter(experiment(), (), points(results), (), searches=searches))


def test_where_a_receiver_was_mostly_robbed_a_lower_load_may_count(golden: Golden) -> None:
    """What it lost never counts: such a search would find the rate of the rest of the CPU."""
    search = only(results_of(experiment(), change=mostly_robbed))
    assert ("robbed", None) == (search.state.ended, search.headline.upper_pps)
    assert 0.98 * OFFERS_PPS / 4 == search.headline.lower_pps
    assert search.held_up
    assert (True, True) == (search.result.valid, search.result.unfinished)
    golden.check([closing_of(search), str(search.result.findings[0])])


def test_where_a_receiver_was_mostly_robbed_at_any_load_there_is_no_answer(golden: Golden) -> None:
    """With the loads that were tried."""
    search = only(results_of(experiment(), lambda _: 100, change=mostly_robbed))
    assert ("robbed", None) == (search.state.ended, search.headline.lower_pps)
    assert False is search.result.valid
    golden.check([closing_of(search), str(search.result.findings[0])])


def test_a_load_at_which_packets_are_lost_is_named_once() -> None:
    """Without a bound the sentence begins with it."""
    ring = replace(FULL, stage="tx_device", share=0.45, aside="the ring was full")
    breaking = Breaking(174_600.0, "tx_device", 0.5, None, 1, ring)
    for lower_pps, head in (
        (None, "At 174.6 kpps packets are lost at tx_device (the ring was full); cause of 45 %"),
        (
            9_000.0,
            "Above 9.0 kpps packets are lost at tx_device (the ring was full; at 174.6 kpps); cause",
        ),
    ):
        known = SimpleNamespace(
            breaking=breaking, headline=GoalBounds(0.001, lower_pps=lower_pps), may_lie=None
        )
        assert breaking_text(cast(PointSearch, known)).startswith(head)
    alone = SimpleNamespace(**{**vars(known), "headline": GoalBounds(0.001)})
    alone.breaking = replace(breaking, bottleneck=replace(ring, aside=""))
    text = breaking_text(cast(PointSearch, alone))
    assert text.startswith("At 174.6 kpps packets are lost at tx_device; cause of 45 %")


def test_the_ledger_of_a_search_balances_as_it_is_printed() -> None:
    """Another trial's remainder is a finding, and no part of this one's column."""

    def unbalance(result: Result) -> Result:
        numbers = {**result.numbers, "unaccounted": 2692 * (result.trial.search_trial == 3)}
        return replace(result, numbers=numbers)

    search = only(results_of(experiment(), change=unbalance))
    assert 2692 == search.result.unaccounted
    assert "0" == packets_cell(search.result, "unaccounted")


def test_what_was_decided_before_others_had_the_cpus_stays_known() -> None:
    """A bound is no less one because a higher load could not be tried."""
    quarter = replace(NAPI, taken=0.25)
    keys = {"trial": "1s", "time": "1s", "precision": "0.2%", "within": "2min"}

    def rob(result: Result) -> Result:
        late = result.trial.search_trial > 3
        return replace(result, findings=(STRUCK,), cpus=(quarter,)) if late else result

    search = only(results_of(experiment(keys), change=rob))
    assert search.headline.lower_pps is not None
    assert ("robbed", True) == (search.state.ended, search.result.valid)
    assert search.result.unfinished


def test_a_search_that_others_held_up_does_not_ask_for_more_time() -> None:
    """More time would not help, but a quieter machine."""

    def rob(result: Result) -> Result:
        return replace(result, findings=(STRUCK,))

    search = only(results_of(experiment({"within": "12s"}), change=rob))
    (finding,) = (each for each in search.result.findings if "within" in each.what)
    assert finding.next_step is not None
    assert finding.next_step.startswith("stop what uses CPUs")
    open_goals = tuple(GoalBounds(goal.loss) for goal in search.state.goals)
    undecided = replace(search, state=replace(search.state, goals=open_goals))
    assert undecided.held_up
    assert closing_of(undecided).startswith(
        "The rate with at most 0.1% and 0% lost is not known: others used CPUs of the load in "
        "8 of 10 trials. At 305.2 kpps packets are lost at udp_rcvbuf: "
    )


def test_what_breaks_first_is_seen_in_quiet_trials_where_there_are_any() -> None:
    """The ledger of a trial that others robbed is theirs, too."""

    def rob(result: Result) -> Result:
        if (result.trial.search_trial + 1) % 3 or not result.numbers["lost_packets"]:
            return result
        (entry,) = result.ledger.entries if result.ledger is not None else ()
        elsewhere = (LedgerEntry("rx_backlog", entry.packets, "Δ x"),)
        ledger = replace(result.ledger, entries=elsewhere) if result.ledger is not None else None
        return replace(result, findings=(STRUCK,), ledger=ledger)

    search = only(results_of(experiment(), change=rob))
    assert any(trial.struck for trial in search.trials)
    assert search.breaking is not None
    assert "udp_rcvbuf" == search.breaking.stage


def test_a_span_is_no_number_to_compare(golden: Golden) -> None:
    """At least so much: an expectation may know enough, a comparison does not."""
    whole = experiment(
        sweep={"send.batch": [1, 2]},
        expect=["throughput_pps[loss=0.1%] > 100kpps", "throughput_pps[batch=1] > 900kpps"],
        compare={"a": "batch=1", "b": "batch=2", "blocks": 6},
    )
    results = folded(whole, results_of(whole, lambda _: 10**7))
    assert (OFFERS_PPS * 0.98, float("inf")) == bounds(results[0], "throughput_pps")
    verdicts = evaluate(whole, results)
    assert ["yes", "cannot tell"] == [verdict.answer for verdict in verdicts]
    (comparison,) = compare_points(whole, results)
    golden.check([*(verdict.measured for verdict in verdicts), comparison.text])
    assert 5 == exit_code(results, verdicts, (), [comparison])


def test_searches_are_blocks_of_a_comparison() -> None:
    """Each repetition is one search of each point."""
    whole = experiment(
        sweep={"send.batch": [1, 2]},
        compare={"a": "batch=1", "b": "batch=2", "blocks": 6},
    )
    faster = results_of(whole, lambda t: CAPACITY_PPS * (2 if t.point == "batch=2" else 1))
    results = folded(whole, faster)
    assert [6, 6] == [len(point.results) for point in points(results)]
    (comparison,) = compare_points(whole, results)
    assert ("throughput_pps", "faster", 6) == (
        comparison.metric,
        comparison.verdict,
        comparison.blocks,
    )


def test_a_search_is_told_while_it_goes_on(golden: Golden) -> None:
    """Its bracket, which closes, its bounds, the largest goal first, and the time it may still take."""
    bounds = [
        GoalBounds(0.001, "unfinished"),
        GoalBounds(0.001, "unfinished", None, None, 500e3),
        GoalBounds(0.001, "unfinished", 396e3, 396e3, 500e3),
        GoalBounds(0.001, "regular", 410e3, 410e3, 412e3),
        GoalBounds(0.001, "at least", 784e3, 784e3, None),
        GoalBounds(0.001, "none", None, None, 1e3),
    ]
    progress = Progress("search", "one#1: at most 95s left", range_pps=(1e3, 784e3))
    of = [replace(progress, bounds=(GoalBounds(0.0), goal)) for goal in bounds]
    golden.check([*map(search_line, of), search_line(replace(of[0], range_pps=None))])
