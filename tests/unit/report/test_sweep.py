"""Points along a quantity: which one it is, and what is drawn at each place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from analysis.build import experiment, lossy, record, trial

from udpbench.host_settings import Settings
from udpbench.judged_run import judged
from udpbench.model.experiment import Receive, Send, Traffic, Trial
from udpbench.report.figures.style import spaced
from udpbench.report.figures.sweep import LinePoint, Sweep, draw_sweeps, number, sweep
from udpbench.units import Rate

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def at(**values: Any) -> Trial:
    """Return a point of a sweep; a key's dots are written as two underscores."""
    swept = {key.replace("__", "."): value for key, value in values.items()}
    return trial(",".join(f"{key}={value}" for key, value in swept.items()), values=swept)


def sweep_of(points: Sequence[Trial]) -> Sweep | None:
    """Return the sweep of an experiment whose points delivered 1000, 1001 and so on."""
    records = [record(1000 + n, of=point) for n, point in enumerate(points)]
    (chapter,) = judged([experiment(points=points)], records)
    return sweep(chapter)


def shape(of: Sweep | None) -> Any:
    """Return a sweep's key, and each line's name with its places' values and texts."""
    if of is None:
        return None
    return of.key, {
        line.name: [(place.value, place.text) for place in line.places] for line in of.lines
    }


# --- which quantity ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (64, (64.0, "")),
        ("1k", (1000.0, "")),
        ("64KiB", (65536.0, "B")),
        ("10us", (10_000.0, "ns")),
        ("40kpps", (40_000.0, "pps")),
        ("1Mbps", (1_000_000.0, "bps")),
        ("off", None),
        (True, None),
        (None, None),
    ],
)
def test_a_declared_value_is_a_number_with_a_unit_or_a_word(value: Any, read: Any) -> None:
    """Whatever its key is called."""
    assert read == number(value)


def test_points_stand_along_what_is_swept() -> None:
    """In order of the number, not of the declaration."""
    points = [at(receive__buffer=text) for text in ("4MiB", "64KiB", "1MiB")]
    places = [(2.0**16, "64KiB"), (2.0**20, "1MiB"), (2.0**22, "4MiB")]
    assert ("receive.buffer", {"": places}) == shape(sweep_of(points))


def test_of_two_swept_keys_the_one_with_more_values_is_the_axis() -> None:
    """The other one sets the lines apart."""
    points = [
        at(send__gso=gso, receive__gro=gro, traffic__size=size)
        for gso in (1, 2)
        for gro in (True, False)
        for size in ("32B", "64B", "128B")
    ]
    key, lines = shape(sweep_of(points))
    assert "traffic.size" == key
    assert ["gso=1, gro=True", "gso=1, gro=False", "gso=2, gro=True", "gso=2, gro=False"] == [
        *lines
    ]


def test_each_variant_of_a_sweep_is_a_line() -> None:
    """Named after the variant."""
    points = [
        replace(at(send__batch=n), point=f"{name},batch={n}", variant=name)
        for name in ("plain", "gro")
        for n in (1, 8, 64)
    ]
    assert ["plain", "gro"] == [*shape(sweep_of(points))[1]]


def test_words_stand_before_the_numbers() -> None:
    """`off` is not a number, and still one of the values."""
    points = [at(send__gso=value) for value in (2, "off", 4, 8)]
    places = [(None, "off"), (2.0, "2"), (4.0, "4"), (8.0, "8")]
    assert ("send.gso", {"": places}) == shape(sweep_of(points))


@pytest.mark.parametrize(
    "points",
    [
        [at(send__batch=1), at(send__batch=8)],
        [at(send__call="send"), at(send__call="sendmmsg"), at(send__call="other")],
        [at(send__batch=1), at(send__batch="8B"), at(send__batch="1us")],
        [trial("a"), trial("b", duration_ns=5), trial("c", duration_ns=7, send=Send(batch=2))],
        [trial("a"), trial("b"), trial("c")],
    ],
    ids=["two values", "words", "different units", "two differences", "no difference"],
)
def test_without_one_quantity_there_is_no_axis(points: list[Trial]) -> None:
    """Two values are read off the figure of all trials."""
    assert sweep_of(points) is None


@pytest.mark.parametrize(
    ("points", "key", "texts"),
    [
        ([Send(batch=n) for n in (1, 8, 16)], "send.batch", ["1", "8", "16"]),
        (
            [Receive(buffer_bytes=n) for n in (4096, None, 8192, 2**20)],
            "receive.buffer",
            ["default", "4KiB", "8KiB", "1MiB"],
        ),
        ([Receive(work_ns=n) for n in (1, 10**4, 10**6)], "receive.work", ["1ns", "10us", "1ms"]),
        (
            [Traffic(rate=Rate(packets_per_s=n)) for n in (500, 40_000, 60_000)],
            "traffic.rate",
            ["500pps", "40kpps", "60kpps"],
        ),
        (
            [Traffic(rate=Rate(bits_per_s=n)) for n in (5000, 10**6, 10**9)],
            "traffic.rate",
            ["5kbps", "1Mbps", "1Gbps"],
        ),
    ],
)
def test_variants_that_differ_in_one_number_stand_along_it(
    points: list[Any], key: str, texts: list[str]
) -> None:
    """Without a sweep the models tell what differs, as YAML would have it written."""
    trials = [
        trial(str(n), expects_unsent=True, **{type(block).__name__.lower(): block})
        for n, block in enumerate(points)
    ]
    axis, lines = shape(sweep_of(trials))
    assert (key, texts) == (axis, [text for _, text in lines[""]])


def test_settings_count_as_well() -> None:
    """They are plain data below their role."""
    points = [
        trial(str(n), settings={"receiver": Settings(sysctl={"net.core.netdev_max_backlog": n})})
        for n in (100, 1000, 20000)
    ]
    assert "settings.receiver.sysctl.net.core.netdev_max_backlog" == shape(sweep_of(points))[0]


# --- what is drawn -------------------------------------------------------------------------------


def test_a_place_has_its_trials_medians_and_published_figures() -> None:
    """The valid trials' median; a point that was not run has no place."""
    points = [replace(at(send__gso=n), source="udp-gso/commit-2018-gso") for n in (1, 2, 4, 8)]
    records = [lossy(1000, LOST, 250, of=points[0])]
    records += [record(1000, 900, of=replace(points[0], repetition=2))]
    records += [record(2000, of=point) for point in points[1:3]]
    (chapter,) = judged([experiment(points=points, repetitions=2)], records)
    of = sweep(chapter)
    assert of is not None
    (line,) = of.lines
    assert ["1", "2", "4"] == [place.text for place in line.places]
    first = line.places[0]
    assert ((750.0,), (0.25,)) == (first.trials["delivered_pps"], first.trials["loss_ratio"])
    assert 1000.0 == first.medians["offered_pps"].median
    assert [2139.0] == [bar.low for bar in first.published.values()]
    assert ("delivered_pps", "delivered_mib_s", "loss_ratio") == of.metrics


def test_loss_and_bytes_have_a_panel_where_they_tell_something() -> None:
    """Bytes where the size is swept, loss where there is any."""
    sizes = [at(traffic__size=text) for text in ("32B", "64B", "128B")]
    batches = [at(send__batch=n) for n in (1, 8, 64)]
    assert [("delivered_pps", "delivered_mib_s"), ("delivered_pps",)] == [
        of.metrics for of in (sweep_of(sizes), sweep_of(batches)) if of is not None
    ]


def test_bursts_that_lost_packets_are_shown_by_their_loss_alone() -> None:
    """How fast a buffer was emptied afterwards is no merit; of what lost nothing it is all."""
    points = [
        replace(at(traffic__size=n), traffic=Traffic(size_bytes=n, count_packets=1250))
        for n in (32, 64, 128)
    ]
    for lost, metrics in ((250, ("loss_ratio",)), (0, ("delivered_pps", "delivered_mib_s"))):
        moves = {"left": {"link.send0.tx_dropped": lost}}
        records = [lossy(1250, moves, lost, of=point) for point in points]
        (chapter,) = judged([experiment(points=points)], records)
        of = sweep(chapter)
        assert of is not None
        assert metrics == of.metrics


def test_a_figure_draws_every_trial_and_its_median() -> None:
    """Offered is a line of its own, the axis is logarithmic where values span decades."""
    of = sweep_of([at(send__batch=n) for n in (1, 10, 100)])
    assert of is not None
    (figure,) = draw_sweeps(of)
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert [[0.0, 1.0], [1.0, 1.001], [2.0, 1.002]] == drawn["delivered"]
    assert [[0.0, 1.0], [1.0, 1.001], [2.0, 1.002]] == drawn["offered"]
    assert [[0.0, 1.0], [1.0, 1.001], [2.0, 1.002]] == axes.collections[0].get_offsets().tolist()
    assert "send.batch, n = 3 trials" == axes.get_xlabel()
    assert ["1", "10", "100"] == [label.get_text() for label in axes.get_xticklabels()]


def test_lines_of_losses_alone_are_called_lost() -> None:
    """Bursts that came in a read have no rate, and no panel of it."""
    of = sweep_of([at(send__batch=n) for n in (1, 10, 100)])
    assert of is not None
    lost = replace(of, lines=tuple(replace(e, places=_only_lost(e.places)) for e in of.lines))
    assert ("loss_ratio",) == lost.metrics
    (figure,) = draw_sweeps(lost)
    assert "lost" in [text.get_text() for text in figure.legends[0].get_texts()]


def _only_lost(places: Sequence[LinePoint]) -> tuple[LinePoint, ...]:
    """Return points of which no rate is known, half of whose packets were lost."""
    half = replace(places[0].medians["delivered_pps"], median=0.5, unit="ratio")
    return tuple(
        replace(place, medians={"loss_ratio": half}, trials={"loss_ratio": (0.5,)})
        for place in places
    )


def test_many_lines_go_on_in_a_further_figure() -> None:
    """As many to a figure as can be told apart."""
    points = [at(send__batch=n, send__call=c) for c in "abcdefg" for n in (1, 2, 3)]
    of = sweep_of(points)
    assert of is not None
    assert [6, 1] == [len(figure.legends[0].get_texts()) // 2 for figure in draw_sweeps(of)]


def test_lines_without_a_number_have_no_figure() -> None:
    """Others used the CPUs in every trial, so that no rate holds, and nothing was lost."""
    of = sweep_of([at(send__batch=n, send__call=c) for c in "abcdefg" for n in (1, 2, 3)])
    assert of is not None
    struck = [
        replace(line, places=tuple(replace(e, medians={}, trials={}) for e in line.places))
        for line in of.lines
    ]
    assert [] == [*draw_sweeps(replace(of, lines=tuple(struck)))]
    assert 1 == len([*draw_sweeps(replace(of, lines=(*struck[:6], of.lines[6])))])


def test_lines_of_words_alone_are_drawn() -> None:
    """The numbers may be in another figure of the same sweep."""
    of = sweep_of([at(send__batch=n) for n in (1, 2, 3)])
    assert of is not None
    words = [
        replace(e, value=None, text=name) for e, name in zip(of.lines[0].places, "abc", strict=True)
    ]
    (figure,) = draw_sweeps(replace(of, lines=(replace(of.lines[0], places=tuple(words)),)))
    assert ["a", "b", "c"] == [text.get_text() for text in figure.axes[-1].get_xticklabels()]


def test_no_label_stands_over_another() -> None:
    """Where labels are too near, the first is written."""
    assert ["1000B", "", "9000B"] == spaced([(1.0, "1000B"), (1.1, "1100B"), (9.0, "9000B")])
