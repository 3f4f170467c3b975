"""The ladder: published beside measured, rung by rung, and why a rung cannot be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.build import expectation, experiment, failed, record, trial

from report.stored import stored
from udpbench.model import Finding
from udpbench.report.document import write
from udpbench.report.ladder import Ladder, Relation, draw_ladder, ladder, ladder_data
from udpbench.report.story import LAB_LABEL, tell

NAIVE = trial("naive", experiment="01", source="cloudflare-2015/naive")
PINNED = trial("pinned", experiment="01", source="cloudflare-2015/pinned")
OTHER = trial(experiment="02", source="cloudflare-2015/other-node")
FIRST = experiment(
    expectation("delivered_pps[pinned]", ">", "delivered_pps[naive]"),
    expectation("unaccounted", "==", "0"),
    points=[NAIVE, PINNED],
    name="01",
)
SECOND = experiment(points=[OTHER], name="02")
RECORDS = [
    record(1000, of=NAIVE),
    record(3000, of=PINNED),
    failed("skipped", "right has one NUMA node", trial=OTHER),
]


def climbed(records: Any = tuple(RECORDS)) -> Ladder:
    """Return the ladder of two experiments."""
    found = ladder(tell([FIRST, SECOND], list(records)))
    assert found is not None
    return found


def test_a_single_experiment_is_no_ladder() -> None:
    """There is nothing to climb."""
    assert ladder(tell([FIRST], RECORDS[:2])) is None


def test_each_point_is_a_rung_in_the_order_declared() -> None:
    """A point of an experiment with several is named after both."""
    assert ["01 · naive", "01 · pinned", "02"] == [rung.name for rung in climbed().rungs]


def test_a_rung_has_its_own_published_bar_and_its_trials() -> None:
    """Both in packets per second, as delivered."""
    rung = climbed().rungs[0]
    assert rung.published is not None
    assert (195000, 352000) == (rung.published.low, rung.published.high)
    assert rung.measured is not None
    assert (1000.0, 1) == (rung.measured.median, rung.measured.n)
    assert ((1000.0, True),) == rung.trials


def test_a_relation_is_told_where_it_is_judged() -> None:
    """One between two points belongs to the later; one of every point to each."""
    naive, pinned, _ = climbed().rungs
    assert (Relation("unaccounted == 0", "yes"),) == naive.relations
    assert "delivered_pps[pinned] > delivered_pps[naive]" == pinned.relations[0].expected
    assert "yes" == pinned.relations[0].answer


def test_a_rung_that_cannot_be_tried_says_why() -> None:
    """It keeps its place and its published bar; nothing measured is made up."""
    rung = climbed().rungs[2]
    assert (None, (), "skipped: right has one NUMA node") == (
        rung.measured,
        rung.trials,
        rung.why_not,
    )
    assert rung.published is not None


def test_a_skipped_rung_tells_what_skipped_it_and_not_what_was_refused_before() -> None:
    """A refusal that was optional is a warning of its own, and no reason."""
    refusal = Finding("warning", "optional setting was refused")
    one = failed("skipped", "right has one NUMA node", trial=OTHER, findings=(refusal,))
    assert "skipped: right has one NUMA node" == climbed([*RECORDS[:2], one]).rungs[2].why_not


def test_a_rung_without_a_valid_trial_or_any_says_so() -> None:
    """An invalid trial is kept for the figure, struck out; one that never ran is not run."""
    spoilt = record(1000, 900, of=NAIVE)
    naive, pinned, _ = climbed([spoilt]).rungs
    assert (None, ((900.0, False),)) == (naive.measured, naive.trials)
    assert naive.why_not.startswith("no valid trial: ")
    assert "not run" == pinned.why_not


def test_studies_of_bytes_climb_in_bytes() -> None:
    """Where most published figures are in MiB/s, so is the axis."""
    plain = trial(experiment="a", source="udp-gso/commit-2018-plain")
    gso = trial(experiment="b", source="udp-gso/commit-2018-gso")
    experiments = [experiment(points=[one], name=one.experiment) for one in (plain, gso)]
    found = ladder(tell(experiments, [record(2**15, of=plain), record(2**16, of=gso)]))
    assert found is not None
    assert "mib_s" == found.metric
    assert [1.0, 2.0] == [rung.measured.median for rung in found.rungs if rung.measured]
    assert [876.0, 2139.0] == [rung.published.low for rung in found.rungs if rung.published]


def test_what_is_shown_names_lab_and_study() -> None:
    """Numbers come with their n, a relation with its answer, a study with its conditions."""
    shown: Any = ladder_data(climbed())
    assert LAB_LABEL == shown["lab"]
    assert ["How to receive a million packets per second"] == [
        study["title"] for study in shown["studies"]
    ]
    assert [
        ("195.0 kpps – 352.0 kpps", "1.0 kpps (n = 1)"),
        ("360.0 kpps – 374.0 kpps", "3.0 kpps (n = 1)"),
        ("330.0 kpps", "skipped: right has one NUMA node"),
    ] == [(rung["published"], rung["measured"]) for rung in shown["rungs"]]


def test_it_is_drawn_where_there_is_something(tmp_path: Path) -> None:
    """Neither published nor measured: no figure, and no empty axes."""
    file = tmp_path / "ladder.svg"
    assert draw_ladder(climbed(), [file])
    assert file.read_text().lstrip().startswith("<?xml")
    bare = [experiment(points=[trial(experiment=name)], name=name) for name in "ab"]
    nothing = ladder(tell(bare, []))
    assert nothing is not None
    assert not draw_ladder(nothing, [file])


def test_the_document_opens_with_it(tmp_path: Path) -> None:
    """One page more than the experiments alone have."""
    points = [replace(one, repetition=1) for one in (NAIVE, PINNED)]
    records = [record(1000, of=one) for one in points]
    one = write([stored(tmp_path / "one", records, FIRST)], tmp_path / "a", ["png"])
    both = write([stored(tmp_path / "two", records, FIRST, SECOND)], tmp_path / "b", ["png"])
    assert len(one) + 2 == len(both)
