"""The wording that terminal, document and gate share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.build import (
    LOAD_MS,
    START_NS,
    expectation,
    experiment,
    failed,
    hog,
    lossy,
    paced,
    receiver_counts,
    record,
    sender_counts,
    shared,
    trial,
    unlogged,
    worker,
)
from analysis.test_diagnosis import stored as planted
from analysis.test_search import experiment as searched_experiment
from analysis.test_search import mostly_robbed, only, results_of
from analysis.test_shared_hosts import Mixture
from golden import Golden

from report.stored import stored, swept
from udpbench.analysis.comparison.blocks import LEFT_OUT
from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.analysis.cpu_use import OTHERS
from udpbench.analysis.judge import judge
from udpbench.analysis.points import Point
from udpbench.judged_run import Chapter, chapters_of, judged
from udpbench.model.experiment import Experiment, PointPair, Traffic
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding, TrialRecord
from udpbench.model.result import UNKNOWN, Bottleneck, CpuLoad, Estimate, Result, rest_of
from udpbench.report.answers import _below, _to_change, answer, next_steps, to_try
from udpbench.report.pages import chapter_data
from udpbench.report.summary import (
    findings_of,
    not_run,
    one_line,
    reason,
    representative,
    show_estimate,
    show_number,
    timed,
    trials_label,
)
from udpbench.units import unbroken

AT_ONCE = (
    worker("sender", sender_counts(2)),
    worker("receiver", receiver_counts(2, last_ns=START_NS + 10**6)),
)
"""Both packets came by one read."""
ALL_LOST = {"right": {"snmp.Udp.RcvbufErrors": 1000, "snmp.Udp.InErrors": 1000}}
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([of if of is not None else experiment()], records)
    return only


def test_a_trial_names_where_it_lost_most_as_far_as_that_is_known() -> None:
    """Several stages that share it; none, if no stage explains most of it, or nothing was lost."""
    shared_ = Mixture(driver="virtio_net").lose("udp_rcvbuf", 400).lose("link", 500)
    assert one_line(shared_.result()).endswith("10.00 % lost, most of it at link or rx_ring")
    mostly = Mixture(driver="virtio_net").lose("udp_rcvbuf", 500).lose("link", 400)
    assert one_line(mostly.result()).endswith("10.00 % lost, most of it at udp_rcvbuf")
    counted = {"right": {"snmp.Udp.RcvbufErrors": 100, "snmp.Udp.InErrors": 100}}
    for lost in (300, 0):
        assert "most of it" not in one_line(judge(lossy(1000, counted, lost)))


def test_one_point_is_answered_without_its_name() -> None:
    """What arrived and what was lost; then where, and why."""
    assert answer(chapter(lossy(1000, LOST, 250))).startswith(
        "750 pps delivered, 25.00 % lost, in 1 trial. Lost at udp_rcvbuf: udpbench does not know"
    )


def test_of_several_points_the_best_and_the_least_are_reported() -> None:
    """Whoever wants them all has the table; those that cannot be told from the best are named."""
    of, records = swept([100, 900, 500, 300, 200], repetitions=1)
    text = answer(chapter(*records, of=of))
    assert text.startswith(
        "Best of 5 points: size=900, 1.9 kpps delivered, 0.00 % lost, in 1 trial. Worst: size=100, "
        "1.1 kpps delivered, 0.00 % lost, in 1 trial."
    )
    of, records = swept([1, 2, 3, 4, 5], repetitions=6)
    text = answer(chapter(*records, of=of))
    assert re.match(
        r"No winner among 5 points: even the lowest, size=1, 1\.0 kpps \[.*, is within the "
        r"interval of the highest, size=5, 1\.0 kpps \[",
        text,
    )
    moves = {"left": {"link.send0.tx_dropped": 250}}
    points = [trial(name) for name in "abcde"]
    alike = [lossy(1250, moves, 250, of=points[0]), *(record(1000, of=each) for each in points[1:])]
    assert answer(chapter(*alike, of=experiment(points=points))).startswith(
        "Best of 5 points: b lost least, 0.00 %, not certainly less than c, d, e. Worst: a lost 20.0"
    )


def test_each_of_a_few_points_is_named() -> None:
    """A question about each size is answered for each size."""
    of, records = swept([100, 900, 500, 300], repetitions=1)
    text = answer(chapter(*records, of=of))
    assert text.startswith(
        "size=100: 1.1 kpps delivered, 0.00 % lost, in 1 trial; size=900: 1.9 kpps delivered, "
        "0.00 % lost, in 1 trial; size=500: "
    )


def test_bursts_are_compared_by_what_they_lost() -> None:
    """A reader that loses most of a burst is done soon: its rate is no merit."""
    moves = {"left": {"link.send0.tx_dropped": 250}}
    points = [trial(name, traffic=Traffic(count_packets=1250)) for name in "abcde"]
    records = [lossy(1250, moves, 250, of=points[0])]
    records += [record(1250, of=each) for each in points[1:]]
    text = answer(chapter(*records, of=experiment(points=points)))
    assert re.match(r"Best of 5 points: . lost least, 0\.00 %, .*\. Worst: a lost 20\.00 %\.", text)


def test_of_bursts_that_lost_alike_the_surest_is_the_best() -> None:
    """An outlier of the first is no reason to name it, nor to leave it out."""
    moves = {"left": {"link.send0.tx_dropped": 250}}
    traffic = Traffic(count_packets=1250)
    points = [trial(name, traffic=traffic) for name in "abcde"]
    lost = {"a": (0, 0, 1), "b": (0, 0, 0), "c": (1, 1, 1), "d": (1, 0, 1), "e": (1, 1, 1)}
    records = [
        lossy(1250, moves, 250, of=of) if bad else record(1250, of=of)
        for point in points
        for number, bad in enumerate(lost[point.point], 1)
        for of in [replace(point, repetition=number)]
    ]
    text = answer(chapter(*records, of=experiment(points=points, repetitions=3)))
    assert text.startswith("Best of 5 points: b lost least, 0.00 %, not certainly less than a, d.")
    assert "Worst: c lost 20.00 %." in text


def test_a_burst_is_told_by_what_it_lost(golden: Golden) -> None:
    """With its interval; rates that are struck out are no doubt about it."""
    of = trial(traffic=Traffic(count_packets=1250))
    records = [
        lossy(1250, {"left": {"link.send0.tx_dropped": lost}}, lost, of=replace(of, repetition=n))
        for n, lost in enumerate((250, 125, 150), 1)
    ]
    golden.check(answer(chapter(*records, of=experiment(points=[of], repetitions=3))))


BUSY = shared(LOAD_MS + 400, hog(400))
"""Another program took a fifth of the reader's CPU."""


def test_points_without_rates_are_compared_by_what_they_lost() -> None:
    """Those that lost alike have no winner."""
    points = [replace(BUSY.trial, point=name) for name in "abcde"]
    alike = [replace(BUSY, trial=each) for each in points]
    assert re.match(
        r"No winner among 5 points: . lost least, 0\.00 %, and . most, 0\.00 %, but their intervals "
        r"overlap\.",
        answer(chapter(*alike, of=experiment(points=points))),
    )


def test_points_without_a_valid_trial_are_not_among_those_judged() -> None:
    """The best of those that could be judged is not called the best of all."""
    points = [replace(BUSY.trial, point=name) for name in "abcdef"]
    judged_, missing = points[:4], points[4:]
    records = [replace(BUSY, trial=each) for each in judged_]
    records += [replace(failed(), trial=each) for each in missing]
    text = answer(chapter(*records, of=experiment(points=points)))
    assert text.startswith("No winner among 4 of 6 points with a valid trial: ")


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        # A stream has no loss to tell.
        ([record(of=trial(traffic=Traffic(protocol="tcp")))], "1.0 kpps delivered"),
        (
            [record(of=trial(), workers=AT_ONCE)],
            "delivered rate unknown (everything was read at once)",
        ),
        ([record(2), record(2, workers=AT_ONCE)], "2 pps delivered, 0.00 % lost, in 1 of 2 trials"),
        ([lossy(1000, ALL_LOST, 1000)], "nothing delivered, 100.00 % lost, in 1 trial. Lost at"),
        ([unlogged(400)], "0.00 % lost, 40.00 % of it not logged"),
        ([failed()], "No answer: it failed: it died"),
        ([BUSY], "0.00 % lost, in 1 trial. Nothing was lost: other programs took 20 %"),
        ([shared(LOAD_MS), BUSY], "1.0 kpps delivered, 0.00 % lost, in 1 of 2 trials"),
    ],
)
def test_what_a_point_delivered(trials: list[TrialRecord], expected: str) -> None:
    """No number is told that there is not, and none is kept back that there is."""
    numbered = [
        replace(trial_record, trial=replace(trial_record.trial, repetition=n))
        for n, trial_record in enumerate(trials)
    ]
    assert expected in answer(chapter(*numbered, of=experiment(repetitions=len(trials))))


def test_an_answer_has_round_trips_and_what_cost_the_rest() -> None:
    """Where a program answers; and of a loss with several causes each share, or that none is known."""
    small = Bottleneck(
        "small_buffer", "likely", "udp_rcvbuf", 72, "it is too small", "enlarge it", share=0.72
    )
    others = replace(small, name="others_cpu", packets=20, what="others took 9 %", share=0.2)
    others = replace(others, certainty="certain")
    numbers = {"answered_pps": 1e3, "loss_ratio": 0.1}
    numbers |= {"round_trip_p50_ns": 12e3, "round_trip_p99_ns": 2e6}
    result = Result(trial(), "done", True, (), numbers=numbers, diagnosis=(small, others))
    of = experiment()
    text = answer(Chapter(of, (), (Point(of.name, "", (result,)),), ()))
    assert text.startswith(
        "1.0 kpps answered, 10.00 % lost, round trip 12 µs (99 % within 2 ms), in 1 trial. Lost at "
        "udp_rcvbuf; likely cause of 72 % of the loss: it is too small. 20 %: others took 9 %; "
        "8 %: not known why."
    )
    elsewhere = replace(others, stage="rx_ring", share=0.28)
    assert " 28 %: at rx_ring, others took 9 %." == rest_of((small, elsewhere))
    assert " 28 %: at rx_ring, likely because others took 9 %." == rest_of(
        (small, replace(elsewhere, certainty="likely"))
    )
    tested = replace(elsewhere, certainty="to be tested", name="governor")
    assert " 28 %: at rx_ring, possibly because others took 9 %." == rest_of((small, tested))
    assert " 28 %: at rx_ring, nobody knows." == rest_of(
        (small, replace(elsewhere, certainty="likely", name=UNKNOWN, what="nobody knows"))
    )
    assert "" == rest_of((replace(small, share=0.96), others))
    assert "" == rest_of((small, replace(others, share=0.9)))
    assert "" == rest_of(())


def test_a_reader_of_a_report_sees_no_number_without_its_unit() -> None:
    """No line ends between both, nor between the groups of digits."""
    text = "1 312 packets, 37.6 kpps [2 – 3], 81.00 %, 12 µs, 3 MiB/s, in 1 trial"
    shown = "1\u00a0312 packets, 37.6\u00a0kpps [2 – 3], 81.00\u00a0%, 12\u00a0µs, 3\u00a0MiB/s, in 1 trial"
    assert shown == unbroken(text)
    assert "0.00\u00a0% lost" in chapter_data(chapter(record(), of=experiment()))["answer"]


def test_number_and_reason_are_of_the_trials_that_count() -> None:
    """Not of a struck-out one, though it delivered the median."""
    clean = [shared(LOAD_MS), shared(LOAD_MS)]
    numbered = [
        replace(each, trial=replace(each.trial, repetition=n))
        for n, each in enumerate([clean[0], BUSY, clean[1]], 1)
    ]
    of = experiment(expectation("delivered_pps", ">", "0"), repetitions=3)
    (point,) = chapter(*numbered, of=of).points
    chosen = representative(point)
    assert chosen is not None
    assert not chosen.struck
    burst = Traffic(count_packets=1000)
    bursts = [replace(each, trial=replace(each.trial, traffic=burst)) for each in numbered]
    (point,) = chapter(*bursts, of=of).points
    assert sorted(point.valid, key=lambda r: r.received_packets or 0)[1] == representative(point)
    text = answer(chapter(BUSY, of=experiment(expectation("delivered_pps", ">", "0"))))
    assert text.startswith(
        "1 of 1 expectation cannot be judged: delivered_pps > 0 (not counted (struck out): other "
        "programs used CPUs of the load). 0.00 % lost, in 1 trial. "
    )


def test_what_compared_points_lost_is_a_sentence(golden: Golden) -> None:
    """As shares of the packets; how often each was measured is said once."""
    points = [trial("a"), trial("b")]
    compare = (PointPair("a", "b", "loss_ratio", 0.001, (7,)),)
    records = [
        each
        for n in range(1, 8)
        for each in (
            lossy(1000, LOST, 250, of=replace(points[0], repetition=n)),
            record(1000, of=replace(points[1], repetition=n)),
        )
    ]
    of = experiment(points=points, repetitions=7, compare=compare)
    golden.check(answer(chapter(*records, of=of)))


@pytest.mark.parametrize("pairs", ["b c", "b c b c b"])
def test_what_is_compared_is_answered_first(pairs: str, golden: Golden) -> None:
    """By its verdict with the interval, be it a change or none; of many pairs by the first."""
    points = [trial("a"), trial("b"), trial("c")]
    compare = tuple(PointPair("a", b, "delivered_pps", 0.03, (7,)) for b in pairs.split())
    records = [
        record(packets, of=replace(point, repetition=n))
        for n in range(1, 8)
        for point, packets in zip(points, (10_000, 9_000 + 10 * n, 9_960 + 10 * n), strict=True)
    ]
    of = experiment(points=points, repetitions=7, compare=compare)
    golden.check(answer(chapter(*records, of=of)))


def test_what_failed_is_said_first_and_what_not_to_believe_last() -> None:
    """Invalid, skipped and missing trials, and how the expectations stand."""
    of = experiment(
        expectation("received_packets", ">", "5000"),
        expectation("unaccounted", "==", "0"),
        points=[paced(point="a"), paced(point="b")],
        repetitions=2,
    )
    records = [
        record(of=paced(point="a")),
        record(900, of=paced(point="a", repetition=2)),
        failed("skipped", "no such CPU", of=paced(point="b")),
    ]
    text = answer(chapter(*records, of=of))
    assert text.startswith("1 of 2 expectations does not hold: received_packets > 5000 (")
    assert text.endswith(
        "1 of 2 trials is not counted (invalid), because the senders did not reach the intended "
        "load; 1 of 3 trials was skipped; 3 of 4 trials are stored."
    )


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ((), "No trial is stored."),
        ((failed(),), "No answer: it failed: it died. The one trial is not valid."),
        (
            (failed(message="it died; flush its output"),),
            "No answer: it failed: it died. Flush its output. The one trial is not valid.",
        ),
        (
            (failed("skipped", "2 CPUs"),),
            "No answer: it was skipped: 2 CPUs. 1 of 1 trial was skipped.",
        ),
    ],
)
def test_without_a_valid_trial_the_reason_is_the_answer(
    records: tuple[TrialRecord, ...], expected: str
) -> None:
    """Nothing is said to be measured that was not."""
    assert expected == answer(chapter(*records))


def test_a_skipped_trial_is_skipped_for_the_reason_that_was_given() -> None:
    """Not for what else was found before."""
    other = Finding("warning", "optional setting mtu was refused", "right")
    skipped = failed("skipped", "needs 8 CPUs", findings=(other,))
    chapter_ = chapter(skipped)
    assert "skipped: needs 8 CPUs" == reason(chapter_.points[0])
    assert "right: skipped: needs 8 CPUs" == one_line(chapter_.results[0])


def test_the_representative_is_the_valid_trial_of_median_delivery() -> None:
    """Without a valid one it is the first that ran to its end; failed ones stand for nothing."""
    good = [record(sent, of=trial(repetition=n)) for n, sent in enumerate((300, 100, 200), 1)]
    (point,) = chapter(*good).points
    chosen = representative(point)
    assert chosen is not None
    assert 200 == chosen.received_packets
    (short,) = chapter(failed(), record(900, of=paced(repetition=2))).points
    chosen = representative(short)
    assert chosen is not None
    assert 2 == chosen.trial.repetition
    (dead,) = chapter(failed()).points
    assert representative(dead) is None


def test_an_interval_has_the_unit_of_its_median() -> None:
    """Millions with three digits, thousands with one, below that whole; without interval alone."""
    assert "1.500 Mpps [1.400 – 1.600]" == show_estimate(Estimate(1.5e6, 1.4e6, 1.6e6, 7, "pps"))
    assert "1.5 kpps [1.4 – 1.6]" == show_estimate(Estimate(1500, 1400, 1600, 7, "pps"))
    assert "15 pps [14 – 16]" == show_estimate(Estimate(15, 14, 16, 7, "pps"))
    assert "15 pps" == show_estimate(Estimate(15, None, None, 1, "pps"))
    assert "–" == show_estimate(None)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12_345, "ns", "12.35 µs"),
        (999, "ns", "999 ns"),
        (2.5e9, "ns", "2.5 s"),
        (4 * 2**20, "B", "4 MiB"),
        (0, "B", "0 B"),
        (0.125, "CPUs", "0.125 CPUs"),
        (0.25, "ratio", "25.00 %"),
        (1500, "pps", "1.5 kpps"),
        (23_350, "packets", "23 350 packets"),
        (1, "packets", "1 packet"),
        (0, "calls", "0 calls"),
        (1, "ns", "1 ns"),
        (None, "ns", "–"),
    ],
)
def test_a_number_reads_well_in_its_unit(value: float | None, unit: str, text: str) -> None:
    """In the largest scale that it reaches; what is not known is no 0."""
    assert text == show_number(value, unit)


def with_findings(*findings: Sequence[Finding]) -> Chapter:
    """Return a chapter whose trials have these findings and no other."""
    records = [record(of=paced(repetition=n)) for n, _ in enumerate(findings, 1)]
    plain = chapter(*records, of=experiment(points=[paced()], repetitions=len(findings)))
    (point,) = plain.points
    pairs = zip(point.results, findings, strict=True)
    results = tuple(replace(result, findings=tuple(own)) for result, own in pairs)
    return replace(plain, points=(replace(point, results=results),))


SHORT = Finding("warning", "short", "a", "4.76 %")


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([[SHORT], [SHORT]], [("4.76 %", 2)]),
        ([[SHORT], [replace(SHORT, value="14.24 %")]], [("4.76 – 14.24 %", 2)]),
        (
            [[replace(SHORT, value=f"{n} packets in {9 * n} reads")] for n in (3, 10, 2)],
            [("2 – 10 packets in 18 – 90 reads", 3)],
        ),
        # One trial that has many of a kind is one trial, and all of them are listed.
        ([[SHORT] * 20], [("4.76 %", 1)]),
        ([[SHORT, replace(SHORT, value="5 %")]], [("4.76 %", 1), ("5 %", 1)]),
        # A number that names something has no range, nor have texts of other words.
        ([[replace(SHORT, value=f"CPU {n}")] for n in (1, 3)], [("CPU 1", 1), ("CPU 3", 1)]),
        (
            [[replace(SHORT, value=f"1 times, errno {n}")] for n in (1, 3)],
            [("1 times, errno 1", 1), ("1 times, errno 3", 1)],
        ),
        (
            [
                [replace(SHORT, value=f"{text} (pid 7)")]
                for text in ("9 %, most by a", "4 %, most by b")
            ],
            [("4 – 9 %, most by a (pid 7)", 2)],
        ),
        ([[SHORT], [replace(SHORT, value=None)]], [("4.76 %", 1), (None, 1)]),
        ([[SHORT], [replace(SHORT, limit="other")]], [("4.76 %", 1), ("4.76 %", 1)]),
    ],
)
def test_findings_are_merged_where_that_hides_nothing(
    findings: Sequence[Sequence[Finding]], expected: Sequence[tuple[str | None, int]]
) -> None:
    """What is equal is told once, what differs in a quantity with its range, the rest one by one."""
    merged = findings_of(with_findings(*findings))
    assert expected == [(finding.value, len(names)) for finding, names in merged]


def test_equal_findings_are_reported_once() -> None:
    """With the trials that have them, what invalidates first."""
    records = [record(900, of=paced(repetition=n)) for n in (1, 2)]
    merged = findings_of(chapter(*records, of=experiment(points=[paced()], repetitions=2)))
    assert "invalid" == merged[0][0].severity
    assert ("example#1", "example#2") == merged[0][1]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["one::small#2"], "small #2"),
        (["one#1", "one#2"], "#1, #2"),
        ([f"one#{n}" for n in range(4)], "4 trials"),
    ],
)
def test_few_trials_are_named(names: list[str], label: str) -> None:
    """Many are counted."""
    assert label == trials_label(names)


def test_a_run_that_was_cut_short_says_so() -> None:
    """Nothing where all trials ran."""
    of = experiment(repetitions=3)
    assert "no trial is stored" == not_run(chapter(of=of))
    assert "1 of 3 trials are stored" == not_run(chapter(record(), of=of))
    assert "" == not_run(chapter(record()))


def test_points_stand_in_the_order_declared() -> None:
    """Not in that in which they ran."""
    of = experiment(points=[trial("b"), trial("a")])
    chapter_ = chapter(record(of=trial("a")), record(of=trial("b")), of=of)
    assert ["b", "a"] == [point.name for point in chapter_.points]
    assert replace(chapter_, run="x").run == "x"


def test_struck_out_rates_are_reported_with_their_reason() -> None:
    """In the line of the trial, among what to believe, and nowhere drawn over time."""
    chapter_ = chapter(BUSY)
    assert answer(chapter_).endswith(
        "The rates, not the losses, of the one trial are struck out, because other programs used CPUs "
        "of the load."
    )
    (result,) = chapter_.results
    assert one_line(result).startswith(
        "struck out: machine: CPU 0: other programs used CPUs of the load ("
    )
    assert result == representative(chapter_.points[0])
    assert None is timed(chapter_.points[0])


def test_what_helps_is_tried_where_the_experiment_does_not_vary_it(tmp_path: Path) -> None:
    """By the command of the run, without its other experiments."""
    bursts = [planted()["burst"], planted()["burst"]]
    points = [
        replace(bursts[0].trial, repetition=1, experiment="burst", point=name) for name in "ab"
    ]
    records = [replace(each, trial=of) for each, of in zip(bursts, points, strict=True)]
    other = experiment(points=[trial(experiment="other")], name="other")
    words = ("udpbench", "run", "burst.yaml", "drops/other", "--seed", "3")
    alike = experiment(points=points, name="burst")
    run = stored(tmp_path / "alike", records, alike, other, command=words)
    ((helps, line),) = to_try(run)
    assert helps.startswith("Raise receive.buffer")
    assert "udpbench run burst.yaml --set receive.buffer=128KiB" == line
    larger = replace(points[1], receive=replace(points[1].receive, buffer_bytes=2**20))
    varied = experiment(points=[points[0], larger], name="burst")
    assert [] == list(to_try(stored(tmp_path / "varied", records[:1], varied, command=words)))


def test_the_owner_of_a_program_is_told_last_what_to_change(tmp_path: Path) -> None:
    """No setting does it: the remedy comes with the command that measures it again."""
    slow = planted()["slow-work"]
    own = replace(slow.trial, receive=replace(slow.trial.receive, command=("./server",)))
    of = experiment(points=[own], name=own.experiment)
    words = ("udpbench", "run", "mine.yaml", "--seed", "3")
    run = stored(tmp_path, [replace(slow, trial=own)], of, command=words)
    ((helps, line),) = to_try(run)
    assert helps.endswith(" Then measure it again:")
    assert "udpbench run mine.yaml" == line


@pytest.mark.parametrize("worse", [False, True])
def test_a_remedy_that_a_comparison_has_shown_is_not_advised(
    worse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point that loses most loses more than one that has it."""
    slow = planted()["slow-work"]
    receive = replace(slow.trial.receive, command=("./server",))
    of = experiment(points=[replace(slow.trial, receive=receive, point=name) for name in "ab"])
    of = replace(of, name=slow.trial.experiment)
    records = [replace(slow, trial=each) for each in of.points]
    run = stored(tmp_path, records, of, command=("udpbench", "run", "mine.yaml"))
    compared = Comparison("a", "b", "loss_ratio", 0.001, "more" if worse else "less", worse)
    known = replace(chapters_of(run)[0], comparisons=(compared,))
    monkeypatch.setattr("udpbench.report.answers.chapters_of", lambda _: (known,))
    assert worse is any("measure it again" in does for does, _ in to_try(run))


def test_what_several_comparisons_lack_is_said_once() -> None:
    """With the interval of each; why blocks are left out only where nothing else says it."""
    tells = Comparison("a", "b", "offered_pps", 0.03, "cannot tell", low=0.97, high=1.05, blocks=15)
    noisy = replace(tells, blocks_more=150)
    other = replace(noisy, b="c", low=0.98, high=1.03)
    text = answer(replace(chapter(record()), comparisons=(noisy, other)))
    assert text.startswith(
        "b against a (±4.0 %) and c against a (±2.5 %), offered_pps: cannot tell: too noisy to tell "
        "in reasonable time; longer trials or a quieter machine would help."
    )
    assert 1 == text.count("cannot tell")
    away = replace(tells, why=f"7 of 7 blocks {LEFT_OUT}", low=None, high=None)
    both = (away, replace(away, b="c"))
    text = answer(replace(chapter(BUSY), comparisons=both))
    assert text.startswith(
        "b against a and c against a, offered_pps: cannot tell: 7 of 7 blocks are left out. "
    )
    assert "are struck out, because other programs used CPUs of the load" in text
    assert f"7 of 7 blocks {LEFT_OUT}." in answer(replace(chapter(record()), comparisons=both))


def test_more_blocks_are_asked_for_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the comparison that needs most; not where none, or too many, would decide."""
    words = ("udpbench", "run", "ab.yaml", "--set", "compare.blocks=12", "--seed", "3")
    run = stored(tmp_path, command=words)
    (chapter_,) = chapters_of(run)
    tells = Comparison("a", "b", "delivered_pps", 0.03, "cannot tell", blocks=15, blocks_more=4)
    more = replace(tells, blocks_more=16, more_ns=89 * SECOND_NS, lost=1)
    far = replace(tells, blocks_more=150)
    for compared, expected in (((tells, more), "compare.blocks=32"), ((far,), "")):
        known = replace(chapter_, comparisons=compared)
        monkeypatch.setattr("udpbench.report.answers.chapters_of", lambda _, c=known: (c,))
        lines = [line for does, line in to_try(run) if "more blocks" in does]
        assert ([f"udpbench run ab.yaml --set {expected}"] if expected else []) == lines


def test_a_search_that_others_held_up_is_repeated_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they are stopped; its bounds are no limit of what is measured."""
    search = only(results_of(searched_experiment(), change=mostly_robbed))
    run = stored(tmp_path, command=("udpbench", "run", "max.yaml", "--seed", "3"))
    known = replace(chapters_of(run)[0], searches=(search,))
    monkeypatch.setattr("udpbench.report.answers.chapters_of", lambda _: (known,))
    ((does, line),) = to_try(run)
    assert does.startswith("Stop what uses CPUs of the load")
    assert does.endswith(" Then repeat it:")
    assert "udpbench run max.yaml" == line


def short_of(pps: int, **changes: Any) -> TrialRecord:
    """Return a trial whose sender reached half of the rate that was asked for."""
    return record(pps // 2, of=paced(pps, **changes))


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # The rate that its sender reaches is known.
        (
            [short_of(2000)],
            [
                "Lower traffic.rate, or give the sender more workers or CPUs.",
                "udpbench run fast.yaml --set traffic.rate=900pps",
            ],
        ),
        # The experiment says itself at which rates it asks.
        (
            [short_of(2000, point="a"), short_of(4000, point="b")],
            [
                "Lower traffic.rate, or give the sender more workers or CPUs. Only then repeat it.",
                "udpbench run fast.yaml",
            ],
        ),
        # Nobody knows what would help: it can only be repeated.
        ([failed()], ["repeat it in the same order", "udpbench run fast.yaml --seed 7"]),
    ],
)
def test_a_run_without_a_valid_trial_says_what_to_change_first(
    records: list[TrialRecord], expected: list[str], tmp_path: Path
) -> None:
    """It does not advise to repeat what failed."""
    of = experiment(points=[each.trial for each in records], name="fast")
    of = replace(of, points=tuple(replace(each, experiment="example") for each in of.points))
    words = ("udpbench", "run", "fast.yaml")
    steps = next_steps(
        stored(tmp_path / "run", records, replace(of, name="example"), command=words)
    )
    assert expected == list(steps[0])
    assert 1 == sum("udpbench run" in line for _, line in steps)


def test_advice_to_repeat_stands_once_and_names_who_has_to_stop() -> None:
    """It stands alone below the results, far from the finding."""
    ((does, line),) = _to_change([chapter(BUSY)], ["udpbench", "run", "fast.yaml"])
    assert does.startswith("Other programs used CPUs of the load (20")
    assert does.endswith(": stop them, then repeat.")
    assert 1 == does.count("repeat")
    assert "udpbench run fast.yaml" == line


@pytest.mark.parametrize("name", ["others_cpu", "steal", "sender_cpu"])
def test_a_sender_that_others_held_up_need_not_send_less(name: str) -> None:
    """What helps follows the cause that is named, not what was intended."""
    short = chapter(short_of(2000))
    (point,) = short.points
    late = Bottleneck(name, "certain", "unsent", 1000, "others took 78 %", "stop them")
    held_up = replace(point, results=(replace(point.results[0], diagnosis=(late,)),))
    words = ["udpbench", "run", "fast.yaml"]
    ((does, line),) = _to_change([replace(short, points=(held_up,))], words)
    text = answer(replace(short, points=(held_up,)))
    assert "thers took 78 %" in text
    if name == "sender_cpu":
        assert does.startswith("Lower traffic.rate")
        assert "Lower traffic.rate" in text
    else:
        assert ("Stop them. Then repeat it.", "udpbench run fast.yaml") == (does, line)
        assert "Stop them." in text
        assert "Lower traffic.rate" not in text


@pytest.mark.parametrize(("taken", "too_fast"), [(0.3, True), (0.8, False)])
def test_a_load_that_no_sender_offers_is_too_fast_whoever_stops(
    taken: float, too_fast: bool
) -> None:
    """What it sent beside others says what it would have sent alone."""
    short = chapter(short_of(2000))
    (point,) = short.points
    late = Bottleneck("others_cpu", "certain", "unsent", 1000, "others took some", "stop them")
    cpu = CpuLoad("machine", 1, 1.0, receives=False, uses={OTHERS: taken})
    held_up = replace(point, results=(replace(point.results[0], diagnosis=(late,), cpus=(cpu,)),))
    short = replace(short, points=(held_up,))
    ((does, line),) = _to_change([short], ["udpbench", "run", "fast.yaml"])
    more = "Stop them. Even then only about 71.43 % of it would be sent: lower traffic.rate, too."
    assert (more in does, more in answer(short)) == (too_fast, too_fast)
    assert ("--set traffic.rate=900pps" in line) is too_fast
    assert "Stop them." in does


def test_a_rate_that_was_set_is_set_anew() -> None:
    """The command has it once, whatever else it sets."""
    before = [
        "udpbench",
        "run",
        "fast.yaml",
        "--set",
        "traffic.rate=2kpps",
        "--set",
        "send.batch=1",
    ]
    ((_, line),) = _to_change([chapter(short_of(2000))], before)
    assert "udpbench run fast.yaml --set send.batch=1 --set traffic.rate=900pps" == line


def test_a_swept_rate_is_not_set_from_outside() -> None:
    """``--set`` of a path that a sweep sets is refused, also if the sweep has a single value."""
    swept = replace(short_of(2000).trial, values={"traffic.rate": "2000pps"})
    of = experiment(points=[swept], name=swept.experiment)
    short = chapter(replace(short_of(2000), trial=swept), of=of)
    ((_, line),) = _to_change([short], ["udpbench", "run", "fast.yaml"])
    assert "udpbench run fast.yaml" == line


def test_a_rate_below_what_a_sender_reached_is_round() -> None:
    """So that it is reached again."""
    assert [1, 1, 7, 90, 400_000] == [_below(pps) for pps in (0.5, 1.2, 8.4, 105, 529_261)]
