"""Published figures: what the shipped file holds, and every way in which a file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_fixture import loaded, refused
from golden import Golden

from udpbench.definition import load, shipped
from udpbench.definition.published import Bar, published, read, unknown
from udpbench.errors import InputError

HEAD = "a-study:\n  title: T\n  source: S\n  conditions: C\n  figures:\n"


def all_shipped() -> list[str]:
    """Return every ``study/figure`` that ships."""
    text = (shipped.folder() / "published.yaml").read_text()
    return list(read(text, "published.yaml"))


def test_a_published_figure_comes_with_its_conditions() -> None:
    """Study, figure and range in one."""
    figure = published("cloudflare-2015/naive")
    assert figure is not None
    assert ("cloudflare-2015", "naive") == (figure.study, figure.figure)
    assert "How to receive a million packets per second" == figure.title
    assert (Bar("pps", "pps", 195000, 352000, (), None),) == figure.bars
    assert all((figure.source, figure.conditions, figure.note))
    assert figure.correction is None


def test_every_run_of_a_figure_is_kept() -> None:
    """Where the source gives each, the bar says how many there were."""
    figure = published("udp-loss-2015/burst-unlimited")
    assert figure is not None
    runs = (900000, 1000000, 1000000, 970000, 1000000)
    assert Bar("received_packets", "packets", 900000, 1000000, runs, 5) == figure.bar(
        "received_packets"
    )
    assert Bar("offered_pps", "pps", 216000, 216000, (), 1) == figure.bar("offered_pps")
    assert figure.bar("cycles") is None
    assert figure.correction is not None


def test_the_corrections_follow_from_the_figures() -> None:
    """What a source got wrong is worked out again from what it printed."""

    def value(name: str, metric: str) -> float:
        figure = published(name)
        bar = figure.bar(metric) if figure is not None else None
        assert bar is not None
        return bar.low

    lost = "udp-loss-2015/paced-60k"
    assert 431979753 == value(lost, "sent_packets") - value(lost, "lost_packets")
    assert 431979753 == value(lost, "logged_packets")
    assert 21336 == value(lost, "sent_packets") // value(lost, "lost_packets")
    plain, gso = "udp-gso/2019-client-plain", "udp-gso/2019-client-gso"
    assert 15807 == round(value(plain, "calls_s") / 42)
    assert 34 == round(value(plain, "calls_s") / value(gso, "calls_s"))
    assert 9 == round(value(plain, "user_s") / value(gso, "user_s"))
    assert 1.7 == round(value(plain, "system_s") / value(gso, "system_s"), 1)
    wire = value("udp-loss-2015/burst-unlimited", "offered_pps") * (512 + 66) * 8
    assert 999 == round(wire / 1e6)
    plain, gso = "udp-gso/lpc-2018-plain", "udp-gso/lpc-2018-gso"
    assert 1.62 == round(value(plain, "mcycles_s") / value(gso, "mcycles_s"), 2)


@pytest.mark.parametrize("source", ["cloudflare-2015/none", "none/naive", "none"])
def test_what_nobody_published_is_none(source: str) -> None:
    """A stored run may name a figure that no longer ships."""
    assert published(source) is None
    assert unknown(source) is not None


def test_every_source_of_a_shipped_experiment_is_published() -> None:
    """A report finds what the experiment promises."""
    for experiment in load.load_experiments(shipped.shipped_names()):
        for point in experiment.points:
            assert point.source is None or published(point.source) is not None


def test_every_name_is_one_that_an_experiment_may_write() -> None:
    """Small letters, digits and hyphens, one slash."""
    for name in all_shipped():
        assert name == loaded(f"source: {name}").source


PACED = "did you mean udp-loss-2015/paced-60k or udp-loss-2015/paced-40k?"
FIGURES_OF_LOSS = "figures of udp-loss-2015: burst-unlimited, paced-40k, paced-60k"


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("cloudflare-2015/naif", "did you mean cloudflare-2015/naive?"),
        ("udp-loss-2015/paced", PACED),
        ("udp-loss-2015/zzzz", FIGURES_OF_LOSS),
        ("cloudflare/naive", "did you mean cloudflare-2015/naive?"),
        ("cloudflare/naif", "did you mean cloudflare-2015?"),
        ("q/x", "studies: cloudflare-2015, udp-loss-2015, udp-gso"),
    ],
)
def test_an_unknown_source_names_near_ones(source: str, step: str) -> None:
    """One error with the line, whatever is nearest behind it."""
    message = f"x.yaml:2: source: {source}: unknown published figure; {step}"
    assert [message] == refused(f"source: {source}")


def test_an_unknown_source_of_a_variant_is_on_its_line(golden: Golden) -> None:
    """That of the base is said too, though every variant replaces it."""
    messages = refused(
        "source: cloudflare-2015/naif",
        "variants:",
        "  one: {source: cloudflare-2015/pined}",
    )
    golden.check(messages)


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("    f: {kpps: 3}", "p.yaml:6: a-study.figures.f.kpps: 3: unknown key"),
        ("    f: {note: n}", "p.yaml:6: a-study.figures.f: no number is given; add one of pps, "),
        ("    f: {pps: -1}", "p.yaml:6: a-study.figures.f.pps: -1: input should be greater"),
        ("    f: {pps: [1]}", "p.yaml:6: a-study.figures.f.pps: list should have at least 2"),
        (
            "    f: {pps: {lowest: 2, highest: 1}}",
            "p.yaml:6: a-study.figures.f.pps: lowest must be below highest",
        ),
        ("    f: {pps: fast}", "p.yaml:6: a-study.figures.f.pps: fast: input should be a valid"),
    ],
)
def test_a_figure_that_makes_no_sense_is_refused(figure: str, message: str) -> None:
    """Line, key and reason; nothing is guessed."""
    with pytest.raises(InputError) as caught:
        read(HEAD + figure + "\n", "p.yaml")
    assert any(line.startswith(message) for line in str(caught.value).splitlines()), caught.value


def test_a_study_without_its_conditions_is_refused(golden: Golden) -> None:
    """A number without its conditions says nothing; all that is missing is said at once."""
    with pytest.raises(InputError) as caught:
        read("a-study: {title: T, figures: {f: {pps: 1}}}\n", "p.yaml")
    golden.check(str(caught.value).splitlines())


def test_the_shipped_file_reads_wherever_the_working_folder_is(tmp_path: Path) -> None:
    """The tests of this room run in a folder of their own."""
    assert Path.cwd() == tmp_path
    assert 30 == len(all_shipped())
