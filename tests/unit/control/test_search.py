"""A search from its file to its result: warm workers, points in turn, resumed, and told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, get_args

from golden import Golden

from control.fake import World, go, header, lab
from udpbench.analysis.rate_search import Ended
from udpbench.control.run import RunOptions, run
from udpbench.control.schedule import ENDINGS, remaining
from udpbench.definition.load import load_experiment_data
from udpbench.errors import WorkerFailed
from udpbench.judged_run import Chapter, chapters_of, judged
from udpbench.model.experiment import Experiment
from udpbench.model.limits import SECOND_NS
from udpbench.records.reader import read_run
from udpbench.records.run import Begin
from udpbench.records.writer import RunWriter
from udpbench.report.answers import answer
from udpbench.report.data_frames import frames
from udpbench.report.json_output import as_json
from udpbench.report.tables import print_chapter
from udpbench.report.terminal import Terminal

CAPACITY_PPS = 300_000


def searched(**keys: Any) -> Experiment:
    """Return an experiment with a short search; keys as in YAML."""
    plain = {"question": "How many?", "warmup": "0s", "search": "quick", **keys}
    return load_experiment_data(plain, "one")


def world(**fields: Any) -> World:
    """Return agents of which the receiver takes so many packets a second."""
    return World(capacity_pps=CAPACITY_PPS, **fields)


def test_a_search_finds_what_the_receiver_takes(tmp_path: Path) -> None:
    """The bounds lie around the capacity, as near as the precision."""
    outcome, stored = go(world(), tmp_path / "run", searched())
    (chapter,) = chapters_of(stored)
    (search,) = chapter.searches
    headline = search.headline
    assert None is outcome.error
    assert ("done", "regular") == (search.state.ended, headline.kind)
    assert headline.lower_pps is not None
    assert headline.upper_pps is not None
    assert headline.lower_pps <= CAPACITY_PPS * 1.001
    assert headline.upper_pps > CAPACITY_PPS
    assert headline.upper_pps - headline.lower_pps <= 0.02 * headline.upper_pps
    assert search.breaking is not None
    assert ("udp_rcvbuf", 1.0) == (search.breaking.stage, search.breaking.share)
    assert "sender" == search.purposes[0]


def test_bounds_are_reported_while_a_search_goes_on(tmp_path: Path) -> None:
    """After each trial; at the end nothing of its time is left."""
    around = world()
    _, stored = go(around, tmp_path / "run", searched())
    reports = [progress for progress in around.progress if progress.event == "search"]
    assert len(stored.records) == len(reports)
    assert "regular" == reports[-1].bounds[-1].kind
    assert reports[0].text.startswith("one#1: at most ")
    assert "one#1: done" == reports[-1].text
    left_ns = [progress.left_ns or 0 for progress in reports]
    assert 0 == left_ns[-1]
    assert sorted(left_ns, reverse=True) == left_ns


def test_what_a_program_printed_is_kept(tmp_path: Path) -> None:
    """For a search once, for any other trial by its name; what a terminal would obey is shown."""
    go(world(printed="served \x1b[1m7\n"), tmp_path / "search", searched())
    assert ["one-1-receiver.output"] == [f.name for f in (tmp_path / "search").glob("*.output")]
    plain = load_experiment_data({"question": "x", "repetitions": 2, "fresh": True}, "two")
    go(World(printed="served\n"), tmp_path / "run", plain)
    kept = {file.name: file.read_text() for file in (tmp_path / "run").glob("*.output")}
    assert dict.fromkeys(("two-1-receiver.output", "two-2-receiver.output"), "served\n") == kept
    assert "served \\x1b[1m7\n" == (tmp_path / "search" / "one-1-receiver.output").read_text()


def test_each_end_of_a_search_has_its_word() -> None:
    """No key of the code reaches a reader."""
    assert {None, *get_args(Ended)} == set(ENDINGS)


def test_workers_stay_between_the_trials_of_a_search(tmp_path: Path) -> None:
    """They are prepared once and closed once; the further trials have the steps of a warm one."""
    around = world()
    _, stored = go(around, tmp_path / "run", searched())
    words = around.words
    assert (1, 1) == (words.count("prepare sender"), words.count("apply sender"))
    assert (1, 1) == (words.count("close sender"), words.count("close receiver"))
    assert words.count("start sender path") == 1
    assert words.count("start sender measured") == len(stored.records) > 5
    steps = [tuple(record.overhead_ns) for record in stored.records]
    assert {("take over", "measured", "verify", "close")} == set(steps[1:])


def test_settings_are_verified_now_and_then(tmp_path: Path) -> None:
    """Not after each trial, since that costs as much as a short trial."""
    around = world()
    _, stored = go(around, tmp_path / "run", searched())
    assert 1 < around.words.count("verify sender") < len(stored.records)


def test_points_take_turns(tmp_path: Path) -> None:
    """Each point has trials for ten seconds before another one has its turn."""
    search = {"loss": "0.1%", "precision": "2%", "time": "11s"}
    _, stored = go(world(), tmp_path / "run", searched(search=search, sweep={"send.batch": [1, 2]}))
    order = [record.trial.point for record in stored.records]
    turns = [order[n] for n in range(len(order)) if n == 0 or order[n] != order[n - 1]]
    assert len(turns) > 2
    assert 10 == order.index(turns[1])
    numbers = [r.trial.search_trial for r in stored.records if r.trial.point == turns[0]]
    assert list(range(1, len(numbers) + 1)) == numbers


def test_a_worker_that_dies_costs_one_trial(tmp_path: Path) -> None:
    """The trial is made again, on workers made anew."""
    around = world()
    around.raises("start sender measured", WorkerFailed("it died", "sender"))
    _, stored = go(around, tmp_path / "run", searched())
    (chapter,) = chapters_of(stored)
    statuses = [record.status for record in stored.records]
    assert (1, "failed") == (statuses.count("failed"), statuses[0])
    assert 2 == around.words.count("prepare sender")
    assert "regular" == chapter.searches[0].headline.kind


def resumed(folder: Path, around: World) -> Any:
    """Resume a run as the command line does, and return it as read."""
    writer = RunWriter.reopen(folder)
    before = read_run(folder)
    writer.resume(before, Begin("2026-11-21T01:00:00", "0.1.0", ("udpbench",)))
    surroundings = around.surroundings()
    run(
        before.header.experiments,
        lab(),
        writer,
        around.progress.append,
        RunOptions(seed=1),
        surroundings,
        stored=before.records,
    )
    return read_run(folder)


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """Stored trials are replayed, none is made again, and the end is that of a run in one piece."""
    whole = go(world(), tmp_path / "whole", searched())[1]
    chosen = searched()
    writer = RunWriter.create(tmp_path / "cut", header(chosen))
    for record in whole.records[:4]:
        writer.write(record)
    writer.close()
    assert ["one#1.5"] == [trial.name for trial in remaining([chosen], 1, whole.records[:4])]
    before = judged([chosen], whole.records[:4])[0].searches[0]
    assert (None, "unfinished") == (before.state.ended, before.headline.kind)
    assert not before.result.valid
    around = world()
    again = resumed(tmp_path / "cut", around)
    assert len(whole.records) - 4 == around.words.count("start sender measured")
    ends = [judged([chosen], run.records)[0].searches[0].state.goals for run in (whole, again)]
    assert ends[0] == ends[1]
    assert [] == remaining([chosen], 1, again.records)


def terminal_text(chapter: Chapter) -> str:
    """Return what the terminal shows of an experiment, of the ledger only its title."""
    out = io.StringIO()
    print_chapter(Terminal(file=out, width=100, color_system=None), chapter)
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip()
    before, title, ledger = text.partition("\nledger")
    return before + title + ledger.partition("\n")[0] + ledger.partition("udpbench show --all")[2]


def test_what_is_reported(tmp_path: Path, golden: Golden) -> None:
    """The rate by goal, the loads around it, what breaks first and what helps; also as JSON."""
    expected = ["throughput_pps[loss=0.1%] > 250kpps", "throughput_pps > 400kpps"]
    _, stored = go(world(), tmp_path / "run", searched(expect=expected))
    (chapter,) = chapters_of(stored)
    golden.check([terminal_text(chapter), answer(chapter)])
    assert ["yes", "no"] == [verdict.answer for verdict in chapter.verdicts]
    plain = json.loads(json.dumps(as_json(stored), allow_nan=False))
    assert ["regular"] == [goal["kind"] for goal in plain["searches"][0]["goals"]]
    assert len(stored.records) == len(plain["trials"])
    assert list(range(1, len(stored.records) + 1)) == [t["search_trial"] for t in plain["trials"]]
    rows = frames([stored]).searches
    assert [(0.001, "regular")] == [tuple(row) for row in rows[["loss", "kind"]].to_numpy()]


def test_a_sender_that_offers_no_more(tmp_path: Path, golden: Golden) -> None:
    """All of it is received: the answer is a lower bound, for which expectations hold or not."""
    expected = ["throughput_pps > 150kpps", "throughput_pps > 1Mpps"]
    around = world(offers_pps=200_000)
    _, stored = go(around, tmp_path / "run", searched(expect=expected))
    (chapter,) = chapters_of(stored)
    assert ("at least", None) == (
        chapter.searches[0].headline.kind,
        chapter.searches[0].headline.upper_pps,
    )
    golden.check(terminal_text(chapter))
    assert ["yes", "cannot tell"] == [verdict.answer for verdict in chapter.verdicts]


def test_a_search_that_takes_too_long(tmp_path: Path) -> None:
    """It ends with the bounds that it knows, and says so."""
    keys = {"loss": "0.1%", "precision": "2%", "time": "5s", "within": "9s"}
    _, stored = go(world(), tmp_path / "run", searched(search=keys))
    (search,) = chapters_of(stored)[0].searches
    assert ("within", "unfinished") == (search.state.ended, search.headline.kind)
    assert 9 * SECOND_NS <= search.state.spent_ns < 12 * SECOND_NS
    assert ["search took longer"] == [
        finding.what[4:22] for finding in search.result.findings if finding.severity == "warning"
    ]


def test_a_confirming_trial_is_reported(tmp_path: Path) -> None:
    """One long trial at the lower bound, the last of the search."""
    keys = {"loss": "0.1%", "precision": "2%", "time": "3s", "confirm": "20s"}
    _, stored = go(world(), tmp_path / "run", searched(search=keys))
    (search,) = chapters_of(stored)[0].searches
    assert 20 * SECOND_NS == stored.records[-1].trial.duration_ns
    assert ("confirm", 1) == (search.purposes[-1], search.purposes.count("confirm"))
    assert any("confirms the rate" in finding.what for finding in search.result.findings)
