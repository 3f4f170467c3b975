"""The wording that terminal, document and gate share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.build import (
    START_NS,
    expectation,
    experiment,
    failed,
    lossy,
    paced,
    receiver_counts,
    record,
    sender_counts,
    trial,
    unlogged,
    worker,
)

from report.stored import swept
from udpbench.model import Estimate, Experiment, Finding, Traffic, TrialRecord
from udpbench.report.story import (
    Chapter,
    answer,
    findings_of,
    not_run,
    one_line,
    reason,
    representative,
    show_estimate,
    show_number,
    tell,
    trials_label,
)

AT_ONCE = (
    worker("sender", sender_counts(2)),
    worker("receiver", receiver_counts(2, last_ns=START_NS + 10**6)),
)
"""Both packets came by one read."""
ALL_LOST = {"right": {"snmp.Udp.RcvbufErrors": 1000, "snmp.Udp.InErrors": 1000}}
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = tell([of if of is not None else experiment()], records)
    return only


def test_one_point_is_answered_without_its_name() -> None:
    """What arrived, what was lost and where; then what to believe."""
    assert (
        "750 pps delivered, 25.00 % lost, most of it at udp_rcvbuf. The one trial is valid."
        == answer(chapter(lossy(1000, LOST, 250)))
    )


def test_a_few_points_are_answered_one_by_one() -> None:
    """In the order in which the experiment declares them."""
    of = experiment(points=[trial("b"), trial("a")])
    told = answer(chapter(record(2000, of=trial("a")), record(of=trial("b")), of=of))
    assert (
        "b: 1.0 kpps delivered, 0.00 % lost; a: 2.0 kpps delivered, 0.00 % lost. "
        "Both trials are valid." == told
    )


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        # A stream has no loss to tell.
        ([record(of=trial(traffic=Traffic(protocol="tcp")))], "1.0 kpps delivered"),
        ([record(of=trial(), workers=AT_ONCE)], "delivered at no rate (all was read at once)"),
        ([record(2), record(2, workers=AT_ONCE)], "2 pps (n = 1) delivered"),
        ([lossy(1000, ALL_LOST, 1000)], "nothing delivered, 100.00 % lost, most of it at"),
        ([unlogged(400)], "0.00 % lost, 40.00 % of what arrived was not logged"),
        ([failed()], "no valid trial, failed: it died"),
    ],
)
def test_what_a_point_delivered(trials: list[TrialRecord], told: str) -> None:
    """No number is told that there is not, and none is kept back that there is."""
    numbered = [
        replace(one, trial=replace(one.trial, repetition=n)) for n, one in enumerate(trials)
    ]
    assert told in answer(chapter(*numbered, of=experiment(repetitions=len(trials))))


def test_of_many_points_the_extreme_ones_are_told() -> None:
    """Whoever wants them all has the table."""
    of, records = swept([100, 900, 500, 300], repetitions=1)
    told = answer(chapter(*records, of=of))
    assert told.startswith(
        "Of 4 points size=900 delivered most (1.9 kpps delivered, 0.00 % lost) and "
        "size=100 least (1.1 kpps delivered, 0.00 % lost). All 4 trials are valid."
    )


def test_what_is_not_to_be_believed_is_in_the_second_sentence() -> None:
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
    assert answer(chapter(*records, of=of)).endswith(
        "1 of 2 trials are valid; 1 was skipped; 3 of 4 trials ran; "
        "1 of 2 expectations holds; 1 of 2 expectations does not hold."
    )


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ((), "No trial ran."),
        ((failed(),), "no valid trial, failed: it died. 0 of 1 trials are valid."),
        ((failed("skipped", "2 CPUs"),), "skipped: 2 CPUs. 1 was skipped."),
    ],
)
def test_without_a_valid_trial_the_reason_is_the_answer(
    records: tuple[TrialRecord, ...], told: str
) -> None:
    """Nothing is said to be measured that was not."""
    assert told == answer(chapter(*records))


def test_a_skipped_trial_is_skipped_for_the_reason_that_was_given() -> None:
    """Not for what else was found before."""
    other = Finding("warning", "optional setting mtu was refused", "right")
    skipped = failed("skipped", "needs 8 CPUs", findings=(other,))
    told = chapter(skipped)
    assert "skipped: needs 8 CPUs" == reason(told.points[0])
    assert "right: skipped: needs 8 CPUs" == one_line(told.results[0])


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
        (None, "ns", "–"),
    ],
)
def test_a_number_reads_well_in_its_unit(value: float | None, unit: str, text: str) -> None:
    """In the largest scale that it reaches; what is not known is no 0."""
    assert text == show_number(value, unit)


def test_equal_findings_are_told_once() -> None:
    """With the trials that have them, what invalidates first."""
    records = [record(900, of=paced(repetition=n)) for n in (1, 2)]
    found = findings_of(chapter(*records, of=experiment(points=[paced()], repetitions=2)))
    assert "invalid" == found[0][0].severity
    assert ("example#1", "example#2") == found[0][1]


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
    assert "no trial ran" == not_run(chapter(of=of))
    assert "1 of 3 trials ran" == not_run(chapter(record(), of=of))
    assert "" == not_run(chapter(record()))


def test_points_stand_in_the_order_declared() -> None:
    """Not in that in which they ran."""
    of = experiment(points=[trial("b"), trial("a")])
    told = chapter(record(of=trial("a")), record(of=trial("b")), of=of)
    assert ["b", "a"] == [point.name for point in told.points]
    assert replace(told, run="x").run == "x"
