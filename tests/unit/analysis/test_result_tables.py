"""The tables of a result: what they are read from, and that every output has each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typst
from report.stored import printed, stored

from analysis import sampled
from analysis.build import MS, START_NS, lossy
from udpbench import Frames, read_run, read_runs, write_runs
from udpbench.analysis.judge import judge
from udpbench.analysis.result_tables import TABLES, named_rows, whole, with_tables
from udpbench.judged_run import chapters_of
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import SOCKET, Sample, Snapshot, ThreadUse, TrialRecord
from udpbench.model.result import Column, ResultTable
from udpbench.report import document
from udpbench.report.json_output import as_json, trial_json
from udpbench.report.pages import chapter_data
from udpbench.report.tables import parts

TAKEN = "ethtool.receive0.rx_queue_0_xdp_packets"
NAMES = [table.name for table, _ in TABLES]


def queued() -> TrialRecord:
    """Return a trial whose only queue took 750 packets, 300 of them in the first second.

    The backlogs of two CPUs had no room for 250; a socket dropped 5, as of a watched host.
    """
    backlogs = {"softnet.cpu0.dropped": 100, "softnet.cpu1.dropped": 150}
    right, left = {TAKEN: 750, "link.receive0.rx_dropped": 250}, {"link.send0.tx_dropped": 250}
    idle = {"cpu.0.idle_ns": 1200 * MS, "cpu.1.idle_ns": 1900 * MS}
    plain = lossy(1000, {"right": right, "left": left, "machine": {**backlogs, **idle}}, 250)
    (phase,) = plain.phases
    thread = ThreadUse("reader", 100, 200, 1000, {"S": 3}, {"recvmmsg": 2, "futex": 1})
    stats = tuple(replace(each, threads=(thread,)) for each in phase.stats)
    seen = {"machine": sampled.samples(sampled.QUIET)}
    plain = replace(plain, phases=(replace(phase, stats=stats, cpu_samples=seen),))
    before = plain.phases[0].before
    taken = {TAKEN: before["right"].counters[TAKEN] + 300}
    half = START_NS + SECOND_NS
    between = tuple(Snapshot(host, half, taken if host == "right" else {}) for host in before)
    dropped = tuple(
        Sample(f"right{SOCKET}dns 1 0.0.0.0:53", at_ns, {"dropped_packets": packets})
        for at_ns, packets in ((START_NS, 0), (half, 5), (half, 5), (half + SECOND_NS, 5))
    )
    return replace(plain, motion=between, series=(*plain.series, *dropped))


def table_of(record: TrialRecord, name: str) -> ResultTable:
    """Return a table of a record's result."""
    (table,) = (t for t in with_tables(judge(record), record).tables if t.name == name)
    return table


def test_queues_have_a_row_for_each_second_and_add_up() -> None:
    """Over the whole phase moments are gone, packets add up, and what nothing counts is unknown."""
    table = table_of(queued(), "queues")
    assert [(0, SECOND_NS, 300), (SECOND_NS, 2 * SECOND_NS, 450)] == [
        (row["from_ns"], row["to_ns"], row["packets"]) for row in named_rows(table)
    ]
    unknown = {"drops": None, "interrupts": None}
    row = {"host": "right", "queue": "rx-0", "packets": 750, **unknown, "cpu": "0"}
    assert [row] == named_rows(whole(table))


def test_parts_of_the_ledger_say_where_exactly_packets_ended() -> None:
    """At a stage that several counters report."""
    table = table_of(queued(), "ledger_parts")
    assert whole(table) is table
    assert [
        ("rx_backlog", "softnet.cpu0.dropped", 100),
        ("rx_backlog", "softnet.cpu1.dropped", 150),
    ] == list(table.rows())


def test_a_watched_socket_has_a_row_for_each_look_at_which_it_dropped() -> None:
    """With process and address, since the first look."""
    rows = list(table_of(queued(), "sockets").rows())
    assert [("right", 0, SECOND_NS, "dns 1 0.0.0.0:53", 5)] == rows


def test_readers_that_do_not_run_wait_or_sleep() -> None:
    """By what the scheduler counted, and in the calls in which they were seen."""
    (row,) = named_rows(table_of(queued(), "thread_time"))
    shares = {"running": 0.1, "runnable": 0.2, "sleeping": pytest.approx(0.7)}
    calls = "recvmmsg 67 %, futex 33 %"
    assert {"worker": "right.receiver0", "thread": "reader", **shares, "sleeps_in": calls} == row


def test_the_time_of_a_struck_cpu_is_not_shown() -> None:
    """What was sampled stays, for who wants to know why."""
    record = queued()
    (phase,) = record.phases
    (known,) = phase.cpu_samples.values()
    fewer = replace(known, sampled_ns=tuple(ns // 2 for ns in known.sampled_ns))
    struck = replace(record, phases=(replace(phase, cpu_samples={"machine": fewer}),))
    assert {None} == {row["time_ns"] for row in named_rows(table_of(struck, "cpu_balance"))}
    (row, *_) = named_rows(table_of(struck, "cpu_time"))
    assert [None, None, None] == [row[name] for name in ("ns_per_packet", "low_ns", "high_ns")]


def test_numbers_that_changed_under_way_are_all_named() -> None:
    """A queue whose interrupt moved from CPU 3 to CPU 1 is a row with both."""
    columns = Column("queue"), Column("at", "moment"), Column("n", "count"), Column("cpu", "number")
    rows = [("rx-0", 0, 2, 3), ("rx-0", 1, None, None), ("rx-0", 2, 5, 1), ("rx-1", 0, None, 3)]
    table = ResultTable("moved", "", columns, lambda: rows)
    assert [("rx-0", 7, "3, 1"), ("rx-1", None, "3")] == list(whole(table).rows())


def test_a_table_can_be_shown_anywhere(tmp_path: Path) -> None:
    """Its name is no other key of a trial; shares do not add up; pages have room for 8 columns."""
    (chapter,) = chapters_of(stored(tmp_path, [queued()]))
    (result,) = chapter.results
    assert NAMES == [table.name for table in result.tables]
    assert set(NAMES).isdisjoint(trial_json(replace(result, tables=()), queued()))
    for table, _ in TABLES:
        kinds = [column.kind for column in table.columns]
        assert not ("share" in kinds and "moment" in kinds)
        assert document.MOST_CELLS > len(whole(table).columns)


@dataclass(frozen=True)
class Outputs:
    """All outputs of one run."""

    table: dict[str, ResultTable]
    json: dict[str, list[object]]
    sheets: dict[str, dict[str, Any]]
    screen: str
    whole_screen: str
    page: str
    frames: Frames
    read_back: Frames
    stored: dict[str, list[object]]
    stored_columns: list[str]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Write every output of a run once: each test looks at another table in them."""
    folder = tmp_path_factory.mktemp("outputs")
    run = stored(folder / "run", [queued()])
    (trial,) = as_json(run)["trials"]
    (chapter,) = chapters_of(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "draw", lambda *_: {})  # takes seconds
        patch.setattr(typst, "compile", lambda *_, **__: b"")
        document.write([run], folder, ["html", "pdf"])
    with pytest.warns(UserWarning, match="a report has no settings"):
        read_back = read_run(folder / "report.html")
    write_runs([run.folder], folder / "store", campaign="c", pair="p")
    (kept,) = read_runs(folder / "store", tables=True).tables
    return Outputs(
        {table.name: table for table in with_tables(judge(queued()), queued()).tables},
        trial,
        {sheet["title"]: sheet for sheet in chapter_data(chapter)["sheets"]},
        printed(*parts(chapter, 120), width=120),
        printed(*parts(chapter, 120, everything=True), width=120),
        (folder / "report.html").read_text(),
        read_run(run.folder),
        read_back,
        json.loads(kept),
        [*read_runs(folder / "store")],
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_output_has_every_table(name: str, outputs: Outputs) -> None:
    """Screen, JSON, frames, both forms of the report, also read back, and the store."""
    table = outputs.table[name]
    assert named_rows(table) == outputs.json[name] != []
    sheet = outputs.sheets[table.caption]
    headings = " ".join(sheet["columns"]).split()  # they wrap where cells are narrower
    for text in (table.caption, *headings, *sheet["rows"][0]):
        assert text in outputs.whole_screen
    assert table.always is (table.caption in outputs.screen)
    assert f"<summary>{table.caption}</summary>" in outputs.page
    frame = getattr(outputs.frames, name)
    assert len(outputs.json[name]) == len(frame)
    assert frame.equals(getattr(outputs.read_back, name))
    assert len(named_rows(whole(table))) == len(outputs.stored[name])
    assert "tables" not in outputs.stored_columns
