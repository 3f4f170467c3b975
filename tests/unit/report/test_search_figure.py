"""The figure of searches: a dot per trial, goals and bounds; and the pages around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from analysis.test_search import bounded, experiment, only, results_of
from control.fake import World, go
from golden import Golden

from udpbench.definition.load import load_experiment_data
from udpbench.judged_run import chapters_of
from udpbench.report.answers import answer
from udpbench.report.document import write
from udpbench.report.figures.experiment_figures import draw
from udpbench.report.figures.search_figure import dots_of, draw_searches
from udpbench.report.pages import chapter_data
from udpbench.report.summary import trust


def test_a_panel_has_a_dot_per_trial_the_goals_and_the_bounds() -> None:
    """Coloured by the stage that lost most, and joined by medians; the sender alone is no dot."""
    search = only(results_of(experiment({"loss": [0, "0.1%"], "precision": "2%", "time": "3s"})))
    dots = dots_of(search)
    assert len(search.trials) - 1 == len(dots)
    assert {"nothing lost", "udp_rcvbuf"} == {stage for _, _, stage in dots}
    (axes,) = draw_searches([search], {"udp_rcvbuf": "#D55E00"}).axes
    placed = np.concatenate([each.get_offsets() for each in axes.collections])
    assert sorted(loss for _, loss, _ in dots) == sorted(placed[:, 1])
    (middle, *goals) = axes.lines
    assert [0, 0.1] == [line.get_ydata()[0] for line in goals]  # type: ignore[index]
    at = {load: [loss for pps, loss, _ in dots if pps == load] for load, _, _ in dots}
    medians = [(load / 1e3, median(losses)) for load, losses in sorted(at.items())]
    assert np.allclose(medians, middle.get_xydata())
    (band,) = axes.patches
    lower, upper = search.headline.lower_pps or 0, search.headline.upper_pps or 0
    assert np.allclose([lower / 1e3, upper / 1e3], [band.get_x(), band.get_x() + band.get_width()])


def test_a_dot_whose_loss_is_only_bounded_names_what_it_may_be() -> None:
    """The stages that share it."""
    search = only(results_of(experiment(), change=bounded))
    assert {"nothing lost", "link or rx_ring"} == {stage for _, _, stage in dots_of(search)}


def test_a_disturbed_trial_that_was_repeated_is_a_dot_and_in_no_median() -> None:
    """Others may have had the time that its packets lacked; what the search counts has its stage."""
    search = only(results_of(experiment()))
    tried = zip(search.trials, search.purposes, strict=True)
    lossy = next(n for n, (t, why) in enumerate(tried) if why == "search" and t.lost_packets)
    disturbed = replace(search, state=replace(search.state, repeated=frozenset({lossy})))
    assert 1 == [stage for _, _, stage in dots_of(disturbed)].count("disturbed, not counted")
    (axes,) = draw_searches([disturbed], {}).axes
    (before,) = draw_searches([search], {}).axes
    assert not np.array_equal(axes.lines[0].get_xydata(), before.lines[0].get_xydata())


def test_the_report_of_a_search(tmp_path: Path) -> None:
    """Its figure, its table and what breaks first, and no figure of single rates."""
    whole = load_experiment_data(
        {"question": "How many?", "search": "quick", "warmup": "0s"}, "one"
    )
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", whole)
    (chapter,) = chapters_of(run)
    drawn = draw(chapter, tmp_path, ["svg"])
    assert ["paths", "searches", "paths_narrow", "searches_narrow"] == list(drawn)
    assert ["searches-1"] == drawn["searches"]
    data = chapter_data(chapter)
    assert ("goal", "0.1% lost") == (data["columns"][1], data["rows"][0]["cells"][1])
    assert data["limits"][0].startswith("Above 297.6 kpps packets are lost at udp_rcvbuf")
    names = {path.name for path in write([run], tmp_path / "report", ["pdf"])}
    assert {"report.pdf"} == names


def test_an_invalid_search_says_why_its_rate_is_unknown(tmp_path: Path) -> None:
    """In its first sentence, and in the second that it is a search that is not valid."""
    whole = load_experiment_data({"question": "?", "search": "quick", "warmup": "0s"}, "found")
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", whole)
    (chapter,) = chapters_of(run)
    search = only(results_of(whole, change=lambda result: replace(result, valid=False)))
    points = (replace(chapter.points[0], results=(search.result,)),)
    assert (
        "No answer: the search gave up: trials at one load were invalid again and again. "
        "The one search is not valid."
    ) == answer(replace(chapter, searches=(search,), points=points))


def test_searches_beside_trials_are_measurements(tmp_path: Path) -> None:
    """What is valid is counted in the word for both."""
    whole = load_experiment_data({"question": "?", "search": "quick", "warmup": "0s"}, "searched")
    plain = load_experiment_data({"question": "?", "repetitions": 1, "warmup": "0s"}, "plain")
    chapters = []
    for name, each in (("searched", whole), ("plain", plain)):
        _, run = go(World(capacity_pps=300_000), tmp_path / name, each)
        chapters += chapters_of(run)
    assert "Both measurements are valid." == trust(chapters)


@pytest.mark.parametrize("sizes", [2, 4])
def test_of_several_searches_each_is_named_or_the_highest_and_the_lowest(
    sizes: int, tmp_path: Path, golden: Golden
) -> None:
    """With what fails first above the rate of the first of them."""
    grid = {"sweep": {"traffic.size": [f"{32 * 2**n}B" for n in range(sizes)]}}
    data = {"question": "?", "search": "quick", "warmup": "0s", **grid}
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", load_experiment_data(data, "sizes"))
    (chapter,) = chapters_of(run)
    golden.check(answer(chapter))


def test_the_answer_of_a_search_without_a_single_rate_is_a_sentence(
    tmp_path: Path, golden: Golden
) -> None:
    """It begins with a capital; a point's name stays as it is written."""
    search = {"rate": {"to": "200kpps"}}
    whole = load_experiment_data({"question": "?", "search": search, "warmup": "0s"}, "slow")
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", whole)
    (chapter,) = chapters_of(run)
    golden.check(answer(chapter))
