"""The ladder: published beside measured, rung by rung, and why a rung cannot be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.build import (
    LOAD_MS,
    expectation,
    experiment,
    failed,
    hog,
    lossy,
    record,
    shared,
    trial,
)
from control.fake import World, go

from report.stored import stored
from udpbench.definition.load import load_experiment_data
from udpbench.judged_run import chapters_of, judged
from udpbench.model.record import Finding
from udpbench.report.document import write
from udpbench.report.figures.ladder_figure import draw_ladder, parts
from udpbench.report.ladder import Ladder, Pair, Relation, label, ladder_data, ladders
from udpbench.report.pages import overview
from udpbench.report.search import found_text
from udpbench.report.summary import LAB_LABEL

NAIVE = trial("naive", experiment="01", source="cloudflare-2015/naive")
PINNED = trial("pinned", experiment="01", source="cloudflare-2015/pinned")
OTHER = trial(experiment="02", source="cloudflare-2015/other-node")
FIRST = experiment(
    expectation("received_packets[pinned]", ">", "received_packets[naive]"),
    expectation("unaccounted", "==", "0"),
    points=[NAIVE, PINNED],
    name="01",
)
SECOND = experiment(points=[OTHER], name="02")
PLAIN = experiment(points=[trial(experiment="02")], name="02")
"""Belongs to no study: it joins that of its folder."""
RECORDS = [
    record(1000, of=NAIVE),
    record(3000, of=PINNED),
    failed("skipped", "right has one NUMA node", trial=OTHER),
]


def climbed(records: Any = tuple(RECORDS)) -> Ladder:
    """Return the ladder of two experiments."""
    (ladder,) = ladders(judged([FIRST, SECOND], list(records)))
    return ladder


def test_a_single_experiment_is_no_ladder() -> None:
    """There is nothing to climb."""
    assert () == ladders(judged([FIRST], RECORDS[:2]))


def test_each_point_is_a_rung_in_the_order_declared() -> None:
    """A point of an experiment with several is named after both."""
    assert ["01 · naive", "01 · pinned", "02"] == [label(rung) for rung in climbed().rungs]


def test_a_rung_has_its_own_published_bar_and_its_trials() -> None:
    """Both in packets per second, as delivered."""
    rung = climbed().rungs[0]
    assert rung.published is not None
    assert (195000, 352000) == (rung.published.low, rung.published.high)
    assert rung.measured is not None
    assert (1000.0, 1) == (rung.measured.median, rung.measured.n)
    assert ((1000.0, True),) == rung.trials


def test_a_relation_is_reported_where_it_is_judged() -> None:
    """One between two points belongs to the later; one of every point to each."""
    naive, pinned, _ = climbed().rungs
    assert (Relation("unaccounted == 0", "yes", ""),) == naive.relations
    assert "received_packets[pinned] > received_packets[naive]" == pinned.relations[0].expected
    why = "3 000 [pinned #1] is > 1 000 [naive #1]"
    assert ("yes", why) == (pinned.relations[0].answer, pinned.relations[0].why)


def test_a_relation_that_blocks_do_not_decide_says_what_is_missing() -> None:
    """One block is none; its medians are shown all the same."""
    of = replace(FIRST, expect=(expectation("delivered_pps[pinned]", ">", "delivered_pps[naive]"),))
    (ladder,) = ladders(judged([of, SECOND], list(RECORDS)))
    relation = ladder.rungs[1].relations[0]
    assert "cannot tell" == relation.answer
    assert "1 block;" in relation.why


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
    skipped = failed("skipped", "right has one NUMA node", trial=OTHER, findings=(refusal,))
    assert "skipped: right has one NUMA node" == climbed([*RECORDS[:2], skipped]).rungs[2].why_not


def test_a_rung_without_a_valid_trial_or_any_says_so() -> None:
    """An invalid trial is kept for the figure, struck out; one that never ran is not run."""
    spoilt = record(1000, 900, of=NAIVE)
    naive, pinned, _ = climbed([spoilt]).rungs
    assert (None, ((900.0, False),)) == (naive.measured, naive.trials)
    assert naive.why_not.startswith("no valid trial: ")
    assert "not run" == pinned.why_not


def test_a_rung_whose_rates_are_struck_out_says_so() -> None:
    """There is nothing measured to show, and what is held to it cannot be judged."""
    busy = shared(LOAD_MS + 400, hog(400))
    naive, *_ = climbed([replace(busy, trial=NAIVE)]).rungs
    assert None is naive.measured
    assert naive.why_not.startswith("no rate: other programs used CPUs of the load")


def test_studies_of_bytes_climb_in_bytes() -> None:
    """Where most published figures are in MiB/s, so is the axis."""
    plain = trial(experiment="a", source="udp-gso/commit-2018-plain")
    gso = trial(experiment="b", source="udp-gso/commit-2018-gso")
    experiments = [experiment(points=[point], name=point.experiment) for point in (plain, gso)]
    (ladder,) = ladders(judged(experiments, [record(2**15, of=plain), record(2**16, of=gso)]))
    assert "mib_s" == ladder.metric
    assert [1.0, 2.0] == [rung.measured.median for rung in ladder.rungs if rung.measured]
    assert [876.0, 2139.0] == [rung.published.low for rung in ladder.rungs if rung.published]


def test_what_is_shown_names_lab_and_study() -> None:
    """Numbers come with their n, a relation with its answer, a study with its conditions."""
    shown: Any = ladder_data(climbed())
    assert LAB_LABEL == shown["lab"]
    assert "How to receive a million packets per second" == shown["title"]
    assert shown["conditions"].startswith("Two hosts")
    naive, pinned, other = (rung for part in shown["experiments"] for rung in part["rungs"])
    assert (["195.0 kpps – 352.0 kpps"], ["1.0 kpps (n = 1)"]) == (
        naive["published"],
        naive["measured"],
    )
    assert ["3.0 kpps (n = 1)"] == pinned["measured"]
    assert (["330.0 kpps"], ["not measured"]) == (other["published"], other["measured"])
    assert ["holds", "holds"] == [relation["word"] for relation in pinned["relations"]]


def test_what_is_not_measured_is_listed_with_its_reason() -> None:
    """Rungs that lack the same thing stand together."""
    shown: Any = ladder_data(climbed(RECORDS[2:]))
    assert [
        {"reason": "not run", "rungs": "01 · naive, 01 · pinned"},
        {"reason": "skipped: right has one NUMA node", "rungs": "02"},
    ] == shown["missing"]


def test_a_relation_that_cannot_be_judged_says_what_is_missing() -> None:
    """The point without a number and why it has none; or that nobody can observe the metric."""
    skipped = failed("skipped", "right has one CPU", trial=NAIVE)
    _, pinned, _ = climbed([skipped, RECORDS[1]]).rungs
    assert ("skipped", "naive: skipped: right has one CPU") == (
        pinned.relations[0].answer,
        pinned.relations[0].why,
    )
    _, pinned, _ = climbed(RECORDS[1:2]).rungs
    assert ("cannot tell", "naive: not run") == (
        pinned.relations[0].answer,
        pinned.relations[0].why,
    )
    _, pinned, _ = climbed(RECORDS[:1]).rungs
    assert ["", ""] == [relation.why for relation in pinned.relations]
    unseen = experiment(expectation("stack_delay_p99_ns", "<", "5"), points=[NAIVE], name="01")
    (ladder,) = ladders(judged([unseen, SECOND], RECORDS[:1]))
    assert "naive: stack_delay_p99_ns is not observable there" == ladder.rungs[0].relations[0].why


def test_each_study_has_a_ladder_of_its_own() -> None:
    """In its own metric; what has no published figure climbs with its folder, or not at all."""
    points = {
        "gso/01": "udp-gso/commit-2018-plain",
        "gso/02": "udp-gso/commit-2018-plain",
        "million/00": None,
        "million/01": "cloudflare-2015/naive",
        "mine/1": None,
    }
    of = [
        experiment(points=[trial(experiment=name, source=source)], name=name, path=f"{name}.yaml")
        for name, source in points.items()
    ]
    study_ladders = ladders(judged(of, [record(of=experiment_.points[0]) for experiment_ in of]))
    assert [("mib_s", ["gso/01", "gso/02"]), ("pps", ["million/00", "million/01"])] == [
        (ladder.metric, [label(rung) for rung in ladder.rungs]) for ladder in study_ladders
    ]
    assert "How to receive a million packets per second" == study_ladders[1].title


def test_the_same_experiment_of_two_runs_is_two_steps() -> None:
    """Each is named after its run."""
    (chapter,) = judged([FIRST], RECORDS[:2])
    runs = [replace(chapter, run=f"20261122T072025-{run}") for run in ("old", "new")]
    (ladder,) = ladders(runs)
    assert ["01, run 1 · naive", "01, run 2 · naive"] == [label(step[0]) for step in ladder.steps]
    shown = ladder_data(ladder)["experiments"]
    assert isinstance(shown, list)
    assert ["run 1: 20261122T072025-old", "run 2: 20261122T072025-new"] == [
        part["run"] for part in shown
    ]
    assert 2 == len(parts([rung for step in ladder.steps for rung in step * 10]))
    assert (
        overview(ladder)["answer"]
        .replace("\u00a0", " ")
        .startswith(
            "Of 4 points 01, run 1 · pinned receives most, 3.0 kpps. 01, run 1 · naive receives least, 1.0 "
            "kpps. "
        )
    )


@pytest.mark.parametrize("capacity_pps", [300_000, None])
def test_a_rung_that_is_searched_has_its_throughput(
    capacity_pps: int | None, tmp_path: Path
) -> None:
    """A least rate is no number: it stands in its place, with its reason beneath."""
    quick = load_experiment_data({"question": "?", "search": "quick", "warmup": "0s"}, "quick")
    _, run = go(World(capacity_pps=capacity_pps), tmp_path / "run", quick)
    chapters = chapters_of(run)
    ((search,),) = (chapter.searches for chapter in chapters)
    (ladder,) = ladders([replace(chapters[0], run=name) for name in ("a", "b")])
    rung = ladder.rungs[0]
    if capacity_pps is None:
        assert (None, (), found_text(search)) == (rung.measured, rung.trials, rung.why_not)
        shown: Any = ladder_data(ladder)
        (measured,) = shown["experiments"][0]["rungs"][0]["measured"]
        assert rung.limits == measured
        assert measured.startswith("at least ")
    else:
        assert rung.measured is not None
        assert search.headline.throughput_pps == rung.measured.median
        assert ("", ((rung.measured.median, True),)) == (rung.why_not, rung.trials)


def test_of_a_long_label_the_experiment_gives_way() -> None:
    """Rungs of one experiment stand together; what tells them apart stays whole."""
    rung = replace(climbed().rungs[0], experiment="small-buffers-and-slow-readers", run="run 2")
    rung = replace(rung, name="buffer=default,work=20us")
    assert "small-buff…, run 2 · buffer=default,work=20us" == label(rung, 45)
    assert "small-b…, run 2 · buffer=defau…" == label(rung, 31)


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["one"], "Does it arrive?"),
        (["one", "two", "three"], "one, two, three"),
        (["one", "two", "three", "four"], "4 experiments of drops"),
    ],
)
def test_experiments_of_no_study_are_called_by_their_names(names: list[str], title: str) -> None:
    """One in several runs by its question; nothing was published, so that nothing is compared."""
    of = [
        experiment(points=[trial(experiment=name)], name=name, path=f"drops/{name}.yaml")
        for name in names
    ]
    chapters = judged(of, [record(of=experiment_.points[0]) for experiment_ in of])
    (ladder,) = ladders([replace(chapter, run=run) for chapter in chapters for run in ("a", "b")])
    assert title == ladder.title
    assert False is ladder_data(ladder)["compared"]
    assert True is ladder_data(climbed())["compared"]


def test_whatever_else_was_published_stands_beside_ours() -> None:
    """Counts of a load of the same length; of one of hours only how much of it was lost."""
    burst = trial("burst", experiment="01", source="udp-loss-2015/burst-unlimited")
    hours = trial("hours", experiment="01", source="udp-loss-2015/paced-60k")
    of = experiment(points=[burst, hours], name="01")
    lost = {"right": {"snmp.Udp.RcvbufErrors": 10, "snmp.Udp.InErrors": 10}}
    chapters = judged([of, PLAIN], [record(of=burst), lossy(1000, lost, 10, of=hours)])
    first, second = ladders(chapters)[0].rungs[:2]
    assert (
        Pair("216.0 kpps offered", "1.0 kpps offered"),
        Pair("900 000 – 1 000 000 packets received", "1 000 packets received"),
    ) == first.pairs
    assert (
        Pair("60.0 kpps offered", "1.0 kpps offered"),
        Pair("0.0047 % lost", "1.00 % lost"),
    ) == second.pairs


def test_what_was_published_beside_stays_where_nothing_is_measured() -> None:
    """Ours is a dash."""
    burst = trial("burst", experiment="01", source="udp-loss-2015/burst-unlimited")
    chapters = judged([experiment(points=[burst], name="01"), PLAIN], [])
    assert ["–", "–"] == [pair.measured for pair in ladders(chapters)[0].rungs[0].pairs]


def test_it_is_drawn_where_there_is_something(tmp_path: Path) -> None:
    """Neither published nor measured: no figure, and no empty axes."""
    assert ["ladder-1"] == draw_ladder(climbed(), tmp_path, ["svg"])
    drawn = (tmp_path / "ladder-1.svg").read_text()
    assert "02 – not measured" in drawn
    assert "02 – not measured" in (tmp_path / "ladder-narrow.svg").read_text()
    assert "delivered (kpps, logarithmic), n = 2 trials" in drawn
    bare = [experiment(points=[trial(experiment=name)], name=name) for name in "ab"]
    (nothing,) = ladders(judged(bare, []))
    assert [] == draw_ladder(nothing, tmp_path, ["svg"])


def test_a_logarithmic_axis_is_labelled_with_numbers(tmp_path: Path) -> None:
    """From 20 to 800 kpps: one whole decade within, whose parts get labels of their own."""
    ladder = climbed()
    rungs = tuple(
        replace(rung, published=None, trials=((pps, True),))
        for rung, pps in zip(ladder.rungs, (20e3, 100e3, 800e3), strict=True)
    )
    assert ["ladder-1"] == draw_ladder(replace(ladder, steps=(rungs,)), tmp_path, ["svg"])
    drawn = (tmp_path / "ladder-1.svg").read_text()
    assert "mathdefault" not in drawn
    assert all(f">{number}<" in drawn for number in (20, 50, 100, 200, 500))


@pytest.mark.parametrize(
    ("experiments", "figures"),
    [
        ("", []),
        ("a" * 28, [28]),
        ("a" * 15 + "b" * 15, [15, 15]),
        ("a" * 17 + "b" * 13, [17, 13]),
        ("a" * 4 + "b" * 26, [15, 15]),
        ("a" * 19 + "b" * 20 + "c" * 20, [19, 20, 20]),
    ],
)
def test_a_long_ladder_has_several_figures(experiments: str, figures: list[int]) -> None:
    """About as many rungs in each; an experiment is divided only where it is too long."""
    rung = climbed().rungs[0]
    ladder_parts = parts([replace(rung, experiment=name) for name in experiments])
    assert figures == [len(part) for part in ladder_parts]


def test_the_document_opens_with_it(tmp_path: Path) -> None:
    """On a page of its own, before those of the experiments."""
    points = [replace(point, repetition=1) for point in (NAIVE, PINNED)]
    records = [record(1000, of=point) for point in points]
    alone = write([stored(tmp_path / "one", records, FIRST)], tmp_path / "a", ["png"])
    both = write([stored(tmp_path / "two", records, FIRST, SECOND)], tmp_path / "b", ["png"])
    assert len(alone) < len(both)
