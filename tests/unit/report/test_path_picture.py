"""The path of the packets: what passes, what leaves where, and what is not seen; as text and drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import experiment, lossy, merged, paced, record, series, trial
from analysis.test_diagnosis import PLANTED
from analysis.test_diagnosis import stored as planted
from control.fake import World, go

from report.stored import swept
from udpbench.definition.load import load_experiment_data
from udpbench.host_settings import Pfifo, Qdisc, Settings
from udpbench.judged_run import Chapter, chapters_of, judged
from udpbench.model.experiment import Answers, Receive, Traffic
from udpbench.model.record import Sample, TrialRecord
from udpbench.model.result import CpuTime, LedgerEntry, StageCost
from udpbench.report.captions import captions
from udpbench.report.figures.experiment_figures import STAGE_STYLES, draw
from udpbench.report.figures.path_figure import draw_paths, lay_out
from udpbench.report.figures.style import ALARM, NARROW_INCHES, styled
from udpbench.report.path_picture import (
    Filling,
    PathPicture,
    path_lines,
    picture_lines,
    pictures,
)

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
BACKLOG = {
    "left": {"link.send0.tx_dropped": 250},
    "right": {"link.receive0.rx_dropped": 250},
    "machine": {"softnet.cpu1.dropped": 250},
}


def chapter(*records: TrialRecord) -> Chapter:
    """Return an experiment of the points of some records."""
    points = {each.trial.point: replace(each.trial, repetition=1) for each in records}
    name = records[0].trial.experiment
    (only_one,) = judged([experiment(points=list(points.values()), name=name)], records)
    return only_one


def picture(of: TrialRecord) -> PathPicture:
    """Return the picture of a trial."""
    (shown,) = pictures(chapter(of))
    return shown


def text(shown: PathPicture, width: int = 80) -> list[str]:
    """Return its lines."""
    return [line.plain for line in path_lines(shown, width)]


def words(shown: PathPicture, **options: float) -> list[str]:
    """Return every text of its figure."""
    with styled():
        figure = draw_paths([shown], STAGE_STYLES, **options)
    return [each.get_text() for each in figure.axes[0].texts]


def test_what_is_lost_leaves_where_it_is_lost() -> None:
    """With its number and its share; what is left is what was received."""
    shown = picture(lossy(1000, LOST, 250))
    assert [("udp_rcvbuf", 250)] == [(loss.name, loss.packets) for loss in shown.losses]
    assert "udp_rcvbuf" == shown.stops[shown.losses[0].stop].stage
    assert (1000, 750) == (shown.remaining[0], shown.remaining[-1])
    lines = text(shown)
    assert lines[0].endswith("1 000 packets intended, 750 received (75.00 %)")
    assert lines[5].strip() == "▼ udp_rcvbuf"
    assert lines[6].strip() == "−250 (25.00 %)"
    assert {"udp_rcvbuf", "−250 (25.00 %)", "750 received (75.00 %)"} <= {*words(shown)}


def test_the_band_is_as_wide_as_there_are_packets() -> None:
    """Also what falls from it; a single packet of many is a hair."""
    shown = picture(lossy(1000, LOST, 250))
    layout = lay_out(shown, STAGE_STYLES, 7.0, 0.8)
    (fallen,) = layout.fallen
    assert pytest.approx(0.2) == fallen.width
    assert pytest.approx(0.6) == layout.levels[-1]
    least = replace(shown, losses=(replace(shown.losses[0], packets=1),), entered=10**9)
    assert 0 < lay_out(least, STAGE_STYLES, 7.0, 0.8).fallen[0].width < 0.02


def test_a_stage_that_is_added_to_the_ledger_is_in_the_picture() -> None:
    """At its place, without a word about it anywhere else."""
    before = chapter(lossy(1000, LOST, 250))
    (point,) = before.points
    ledger = point.results[0].ledger
    assert ledger is not None
    entries = [*ledger.entries]
    entries.insert(8, LedgerEntry("router1.fwd_ip", 50, "Δ fw"))
    wider = replace(ledger, entries=tuple(entries), received_packets=700)
    result = replace(point.results[0], ledger=wider)
    (shown,) = pictures(replace(before, points=(replace(point, results=(result,)),)))
    assert ["router1.fwd_ip", "udp_rcvbuf"] == [loss.name for loss in shown.losses]
    assert "router1" in [zone for zone, _ in shown.zones]
    assert "router1.fwd_ip" in words(shown)
    assert "▼ router1.fwd_ip" in text(shown)[5]


@pytest.mark.parametrize(
    ("received", "number"), [(700, "50 missing (5.00 %)"), (800, "50 too many (5.00 %)")]
)
def test_what_is_unaccounted_is_never_hidden(received: int, number: str) -> None:
    """In red, be it too little or too much."""
    shown = picture(record(1000, received, moves={"right": {
        "snmp.Udp.InDatagrams": received, **LOST["right"]}}))  # fmt: skip
    assert 50 == abs(shown.unaccounted or 0)
    lines = path_lines(shown)
    assert "unaccounted" in lines[5].plain
    assert number in lines[6].plain
    assert any("bold red" == span.style for span in lines[5].spans)
    with styled():
        (axes,) = draw_paths([shown], STAGE_STYLES).axes
    (label,) = [each for each in axes.texts if each.get_text() == "unaccounted"]
    assert ALARM == label.get_color()


def test_the_picture_of_an_invalid_trial_says_so() -> None:
    """It may be the only one of the point that lost most."""
    (shown,) = pictures(chapter(lossy(1000, LOST, 250)))
    assert shown.name.endswith(" #1")
    (short,) = pictures(chapter(record(900, of=paced())))
    assert short.name.endswith(" #1 (invalid)")


def test_a_stage_that_nobody_counts_is_hatched() -> None:
    """It is not drawn as if nothing had been lost there."""
    shown = picture(lossy(1000, LOST, 250))
    stops = list(shown.stops)
    stops[3] = replace(stops[3], observable=False)
    unseen = replace(shown, stops=tuple(stops))
    assert "░" in text(unseen)[4]
    assert text(unseen)[-1].startswith("░ not observable")
    with styled():
        (axes,) = draw_paths([unseen], STAGE_STYLES).axes
    assert ["////"] == [patch.get_hatch() for patch in axes.patches if patch.get_hatch() == "////"]


@pytest.mark.parametrize("plant", sorted(PLANTED))
def test_every_path_is_eight_lines_of_80_columns(plant: str) -> None:
    """And every loss is said: all names, and all numbers."""
    shown = picture(planted()[plant])
    lines = text(shown)
    assert 8 == len(lines)
    assert [] == [line for line in lines if len(line) > 80]
    assert shown.entered == shown.received + (shown.unaccounted or 0) + sum(
        loss.packets for loss in shown.losses
    )


def test_a_load_that_lost_nothing_says_its_limit() -> None:
    """There is nothing else to see in it."""
    shown = picture(paced_record := record(1000, of=paced()))
    assert shown.limit.startswith("Nothing was lost: ")
    assert "Nothing was lost" in text(shown)[5]
    assert any(each.startswith("Nothing was lost") for each in words(shown))
    assert () == picture(paced_record).losses


def test_several_stages_that_share_a_loss_are_one() -> None:
    """Their sum, at the last of them."""
    shown = picture(merged())
    assert sum(loss.packets for loss in shown.losses) == shown.entered - shown.received


def test_more_losses_than_have_room_are_summed_up() -> None:
    """The largest are named, the rest is counted."""
    shown = picture(lossy(1000, LOST, 250))
    losses = tuple(
        replace(shown.losses[0], name=f"a_stage_of_a_long_name_{n}", packets=10 + n, stop=n)
        for n in range(9)
    )
    lines = text(replace(shown, losses=losses))
    assert "more stages" in lines[5]
    assert [] == [line for line in lines if len(line) > 80]


def test_answers_have_a_way_back() -> None:
    """What was answered is the end of the path."""
    of = trial(traffic=Traffic(answers=Answers()), receive=Receive(command=("dns",)))
    plain = picture(record(of=of))
    assert plain.answered
    assert "way back" == plain.zones[-1][0]
    assert "app_unanswered" in [stop.stage for stop in plain.stops]
    assert "answered" in plain.received_text
    assert "way back" not in [zone for zone, _ in picture(record()).zones]
    assert text(plain)[1].endswith("way back")
    assert 80 >= len(text(plain)[1])


def test_what_is_beside_a_picture_has_room_in_80_columns() -> None:
    """A stage that nobody counts, and both CPUs and the buffer, are told with less between them."""
    names = ("sending CPU 1", "receive buffer", "receiving CPU 0")
    fillings = tuple(Filling(name, 1.0, 0) for name in names)
    shown = replace(picture(lossy(1000, LOST, 250)), fillings=fillings)
    assert "sending CPU 1 100 %   receive buffer 100 %   receiving CPU 0 100 %" == text(shown)[7]
    unseen = replace(shown.stops[0], observable=False), *shown.stops[1:]
    last = text(replace(shown, stops=unseen))[7]
    assert last.startswith("░ not observable sending CPU 1")
    assert last.endswith("receiving CPU 0 100 %")


def test_frames_of_af_xdp_pass_no_socket() -> None:
    """Neither the stack: their rings are on the path instead."""
    stages = [
        stop.stage for stop in picture(record(of=trial(receive=Receive(call="af_xdp")))).stops
    ]
    assert {"xsk_ring", "xsk_fill"} <= {*stages}
    assert not {"rx_ip", "udp_rcvbuf", "rx_backlog"} & {*stages}
    assert not {"xsk_ring", "answer_lost"} & {stop.stage for stop in picture(record()).stops}


def test_a_search_shows_the_trial_above_its_rate(tmp_path: Path) -> None:
    """By its load."""
    whole = load_experiment_data({"question": "?", "search": "quick", "warmup": "0s"}, "found")
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", whole)
    (of_search,) = chapters_of(run)
    (shown,) = pictures(of_search)
    (search,) = of_search.searches
    assert shown.name.startswith("at 30")
    assert search.headline.upper_pps is not None
    assert "udp_rcvbuf" in [loss.name for loss in shown.losses]
    of_path = captions(of_search, False, "")["paths"]
    assert of_path.startswith("The path is that of a trial just above the highest rate.")
    goals = tuple(replace(goal, lower_pps=None) for goal in search.state.goals)
    undecided = replace(search, state=replace(search.state, goals=goals))
    without = captions(replace(of_search, searches=(undecided,)), False, "")
    assert without["paths"].startswith("The path is that of one of the trials: no highest rate")
    assert without["searches"].endswith("No highest rate is known.")


def test_buffers_and_cpus_are_as_full_as_they_were() -> None:
    """The most that a sample saw, and a share of the time; what overflowed was full."""
    size = 8 * 2**20
    held = Sample("right.receiver0", 1, {"received_packets": 1, "queued_bytes": size // 2})
    assert "receive buffer 100 %" in [
        each.text for each in picture(lossy(1000, LOST, 250)).fillings
    ]
    shown = picture(replace(record(1000), series=(*series([1000]), held)))
    assert "receive buffer 50 %" in [each.text for each in shown.fillings]
    assert "receive buffer 50 %" in text(shown)[-1]


def test_costs_have_their_row() -> None:
    """Nanoseconds of CPU time per packet, by part of the path; none that are no packet's."""
    plain = chapter(lossy(1000, LOST, 250))
    times = {"rx_udp": 200.0, "rx_copy": 100.0, "rx_ip": 120.0, "tx_udp": 80.0, "own": 9.0}
    costs = [
        StageCost("receiver", stage, ns, None, None, 0.1, None, None, {})
        for stage, ns in times.items()
    ]
    (point,) = plain.points
    sampled = replace(point.results[0], cpu_time=CpuTime("cycles", tuple(costs), (), ()))
    (shown,) = pictures(replace(plain, points=(replace(point, results=(sampled,)),)))
    assert {"sender": 80.0, "IP": 120.0, "socket": 300.0} == shown.costs
    assert {"80 ns/packet", "120 ns/packet", "300 ns/packet"} <= {*words(shown)}
    assert "sender 80 ns" in text(shown)[1]


@pytest.mark.parametrize(
    ("stage", "counter", "name"),
    [
        ("rx_backlog", BACKLOG, "backlog 100 %"),
        ("tx_device", {"left": {"link.send0.tx_dropped": 250}}, "receiver's ring 100 %"),
    ],
)
def test_a_queue_that_refused_packets_was_full(
    stage: str, counter: dict[str, dict[str, int]], name: str
) -> None:
    """No counter says how full it was at other times."""
    in_lab = replace(lossy(1000, counter, 250), built_in_lab=True)
    shown = picture(in_lab)
    assert [stage] == [loss.name for loss in shown.losses]
    assert name in [each.text for each in shown.fillings]
    assert name not in [each.text for each in picture(record(1000)).fillings]


def test_a_queueing_discipline_was_full_if_only_its_limit_drops() -> None:
    """Which kind it is, the experiment says."""
    counter = {"left": {"qdisc.send0.drops": 250}}
    bounded = {"sender": Settings(qdisc=Qdisc(pfifo=Pfifo(limit_packets=10)))}
    for settings, full in (({}, []), (bounded, ["pfifo queue 100 %"])):
        of = lossy(1000, counter, 250, of=trial(settings=settings))
        shown = picture(of)
        assert ["tx_qdisc"] == [loss.name for loss in shown.losses]
        assert full == [each.text for each in shown.fillings if "queue" in each.text]


def test_up_to_eight_points_are_below_each_other(tmp_path: Path) -> None:
    """More are bars, and the terminal says how many are not shown."""
    for count, kind in ((3, "ways-1"), (9, "ways-1")):
        of, records = swept(range(count), repetitions=1)
        (whole,) = judged([of], records)
        folder = tmp_path / str(count)
        folder.mkdir()
        assert [kind] == draw(whole, folder, ["svg"])["ways"]
        shown = pictures(whole)
        assert min(count, 8) == len(shown)
        lines = [line.plain for line in picture_lines(whole, 80)]
        assert ("and 1 more points" in lines) == (count == 9)


def test_a_caption_says_what_the_picture_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose path it is, unless there is one trial alone; and what hatches mean, if there are any."""
    lone = lossy(1000, LOST, 250)
    again = replace(lone, trial=replace(lone.trial, repetition=2))
    assert "" == captions(chapter(lone), False, "")["paths"]
    point = "The path is that of the trial with median delivery."
    assert point == captions(chapter(lone, again), False, "")["paths"]
    other = replace(lone, trial=replace(lone.trial, point="other"))
    two = captions(chapter(lone, again, other), False, "")["paths"]
    assert "Each path is that of the point's trial with median delivery." == two
    trials = [
        replace(lone.trial, point=name, repetition=number) for name in "abc" for number in (1, 2)
    ]
    worst = captions(chapter(*(replace(lone, trial=each) for each in trials)), False, "")
    most = "The path is that of the point that lost most: of its trial with median delivery."
    assert most == worst["paths"]
    assert worst["ways"] == two
    shown = picture(lone)
    unseen = replace(shown, stops=(replace(shown.stops[0], observable=False), *shown.stops[1:]))
    monkeypatch.setattr("udpbench.report.captions.pictures", lambda *_, **__: [unseen])
    hatched = "What is grey and hatched has no counter."
    assert hatched == captions(chapter(lone), False, "")["paths"]


def test_a_telephone_has_a_figure_of_its_own() -> None:
    """Narrow, with every number, and without the names of stages that lost nothing."""
    shown = picture(lossy(1000, LOST, 250))
    narrow = words(shown, width=NARROW_INCHES)
    assert {"udp_rcvbuf", "−250 (25.00 %)", "750 received (75.00 %)"} <= {*narrow}
    assert "rx_ip" not in narrow
    assert "rx_ip" in words(shown)
