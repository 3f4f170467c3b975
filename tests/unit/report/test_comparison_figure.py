"""The figure of comparisons: what it places where, and that it comes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analysis.build import experiment, record, trial
from golden import Golden

from report.stored import stored
from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.judged_run import chapters_of
from udpbench.model.experiment import PointPair
from udpbench.report.figures.comparison_figure import draw_comparisons
from udpbench.report.figures.experiment_figures import draw
from udpbench.report.figures.style import NARROW_INCHES
from udpbench.report.pages import chapter_data
from udpbench.report.summary import resolved

EFFECTS = ((1, 1.05), (2, 1.04), (4, 1.06))
FASTER = Comparison(
    *("a", "b", "delivered_pps", 0.03, "faster"), ratio=1.05, low=1.04, high=1.06, effects=EFFECTS
)
MORE = Comparison(
    *("a", "b", "loss_ratio", 0.01, "more"),
    difference=0.02,
    low=0.01,
    high=0.03,
    effects=((1, 0.02),),
)


@pytest.mark.parametrize(
    ("comparison", "dots", "bands"),
    [
        (FASTER, [[1, 5], [2, 4], [4, 6]], [(-2.9126, 3), (4, 6)]),
        (MORE, [[1, 2]], [(-1, 1), (1, 3)]),
    ],
)
def test_a_panel_has_a_dot_per_block_margin_and_interval(
    comparison: Comparison, dots: list[list[float]], bands: list[tuple[float, float]]
) -> None:
    """In percent; a block that counts nowhere leaves its place empty."""
    (axes,) = draw_comparisons([comparison]).axes
    assert np.allclose(dots, axes.collections[0].get_offsets())
    spans = [(p.get_y(), p.get_y() + p.get_height()) for p in axes.patches]
    assert bands == [pytest.approx(band, abs=1e-3) for band in spans]
    assert axes.get_title(loc="left").startswith(f"b against a: {comparison.verdict} by ")


def test_a_title_has_its_interval_on_a_telephone_too() -> None:
    """In two lines, none of which ends between a number and its unit."""
    long = replace(MORE, a="small-buffer", b="large-buffer", low=0.001, high=0.4)
    (wide,) = draw_comparisons([long]).axes
    (narrow,) = draw_comparisons([long], NARROW_INCHES).axes
    title = narrow.get_title(loc="left")
    assert wide.get_title(loc="left") == title.replace("\n", " ")
    assert "\n" in title
    assert title.endswith("]")


def test_an_experiment_that_compares_shows_it_first(tmp_path: Path) -> None:
    """As a figure and a table; a comparison without a block has no figure."""
    points = [trial("a"), trial("b"), trial("c")]
    pairs = tuple(PointPair("a", b, "delivered_pps", 0.03) for b in ("b", "c"))
    of = replace(experiment(points=points), compare=pairs)
    records = [
        record(1000 + n + 100 * (name == "b"), of=trial(name, n))
        for n in range(1, 8)
        for name in ("a", "b")
    ]
    run = stored(tmp_path / "run", records, of)
    (chapter,) = chapters_of(run)
    drawn = draw(chapter, tmp_path, ["svg"])
    assert ["comparisons-1"] == drawn["comparisons"]
    assert ["comparisons_narrow"] == drawn["comparisons_narrow"]
    assert (tmp_path / "comparisons-1.svg").read_text().count("against a: ") == 1
    shown = chapter_data(chapter)["comparisons"]
    assert [("b against a", "7"), ("c against a", "0")] == [(row[0], row[3]) for row in shown]
    assert 1 == chapter_data(chapter)["captions"]["comparisons"].count("this lab tells")


def test_what_the_lab_tells_is_a_span_over_several_comparisons(golden: Golden) -> None:
    """Ratios and shares each for themselves."""
    blocks = tuple(enumerate((1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01), start=1))
    wide = tuple((n, value**3) for n, value in blocks)
    shares = tuple((n, value - 1) for n, value in blocks)
    comparisons = [replace(FASTER, effects=blocks), replace(FASTER, effects=wide, high=1.12)]
    golden.check(resolved([*comparisons, replace(MORE, effects=shares)]))
