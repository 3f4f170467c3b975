"""Runs as frames: tidy, typed, documented column by column, the same as CSV and Parquet."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from analysis.build import (
    BASE,
    LOAD_MS,
    START_NS,
    experiment,
    failed,
    hog,
    lossy,
    paced,
    record,
    series,
    shared,
    trial,
    unlogged,
)
from golden import Golden

import udpbench
from report.stored import stored
from udpbench.errors import RecordError
from udpbench.folder import Folder
from udpbench.model.host import Change, Setting
from udpbench.model.limits import SECOND_NS, SWEPT_MAX
from udpbench.model.record import Snapshot
from udpbench.report.data_frames import (
    COLUMNS,
    frames,
    read_run,
    unobeyed,
    write_frames,
)

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
DOCUMENT = Path(__file__).parents[3] / "docs" / "records.md"


def test_a_trial_is_a_row_with_the_judges_numbers(tmp_path: Path) -> None:
    """Keys first, and a column for each swept key."""
    swept = trial("batch=4", values={"send.batch": 4})
    run = stored(tmp_path / "one", [lossy(1000, LOST, 250, of=swept)], experiment(points=[swept]))
    (row,) = frames([run]).trials.to_dict("records")
    assert ("one", "example", "batch=4", 1) == tuple(row.values())[:4]
    assert (1000, 750, 250, 0.25) == (
        row["sent_packets"],
        row["received_packets"],
        row["lost_packets"],
        row["loss_ratio"],
    )
    assert ("done", True, 0, "4") == (
        row["status"],
        row["valid"],
        row["unaccounted"],
        row["send.batch"],
    )


def test_a_ledgers_rows_add_up(tmp_path: Path) -> None:
    """Stages and what was received are what was intended; an entry that is exact is at most that."""
    ledger = frames([stored(tmp_path / "one", [lossy(1000, LOST, 250)])]).ledger
    assert 250 == ledger.packets.sum()
    lost = ledger[ledger.stage == "udp_rcvbuf"].iloc[0]
    assert (250, 250) == (lost.packets, lost.at_most)
    both = frames([stored(tmp_path / "log", [unlogged(400)])])
    kept = both.trials.ledger_received_packets.sum()
    assert (600, 1000) == (kept, both.ledger.packets.sum() + kept)


def test_what_could_not_be_known_is_missing(tmp_path: Path) -> None:
    """A failed trial has its row and its reason, and no number is 0."""
    tables = frames([stored(tmp_path / "one", [failed()])])
    row = tables.trials.iloc[0]
    assert pd.isna(row.sent_packets)
    assert (False, "right: failed: it died") == (row.valid, row.reason)
    assert 0 == len(tables.ledger)
    assert ["invalid"] == list(tables.findings.severity)


def test_rates_that_are_struck_out_are_missing_with_their_reason(tmp_path: Path) -> None:
    """Counts and loss of the trial are there: it is valid."""
    run = stored(tmp_path / "one", [shared(LOAD_MS + 400, hog(400))])
    (row,) = frames([run]).trials.to_dict("records")
    assert (True, True, 1000) == (row["valid"], row["struck"], row["received_packets"])
    assert pd.isna(row["delivered_pps"])
    assert row["reason"].startswith("machine: CPU 0: other programs used CPUs of the load")


def test_a_series_is_on_the_axis_of_the_common_start(tmp_path: Path) -> None:
    """Totals of each worker, its packets and bytes."""
    samples = frames([stored(tmp_path / "one", [record(series=series([1000]))])]).series
    assert [0, SECOND_NS] == [samples.since_start_ns.iloc[0], samples.since_start_ns.iloc[-1]]
    assert {("right.receiver0", "right", "receiver")} == {
        (row.worker, row.host, row.role) for row in samples.itertuples()
    }
    assert 1000 == samples.packets.max()


def test_counters_are_what_moved_in_each_second(tmp_path: Path) -> None:
    """RcvbufErrors by 10 in the first, by 240 in the second."""
    name = "snmp.Udp.RcvbufErrors"
    motion = tuple(
        Snapshot(host, START_NS + SECOND_NS, {name: BASE + 10} if host == "right" else {})
        for host in ("left", "right", "machine")
    )
    run = stored(tmp_path / "one", [replace(lossy(1000, LOST, 250), motion=motion)])
    counters = frames([run]).counters
    mine = counters[counters.counter == name]
    assert [(0, SECOND_NS, 10), (SECOND_NS, 2 * SECOND_NS, 240)] == [
        (row.from_ns, row.to_ns, row.difference) for row in mine.itertuples()
    ]


def test_workers_and_settings_have_rows(tmp_path: Path) -> None:
    """Sender and receiver; each setting with what was there before."""
    setting = Setting("mtu", "receive0", 9000, path="settings.receiver.mtu")
    run = stored(
        tmp_path / "one", [replace(record(), changes={"right": (Change(setting, 1500, 9000),)})]
    )
    tables = frames([run])
    assert [("sender", 1, 1000), ("receiver", 0, 1000)] == [
        (row.role, row.cpu, row.packets) for row in tables.workers.itertuples()
    ]
    (row,) = tables.settings.to_dict("records")
    assert ("right", "mtu", "1500", "9000", "settings.receiver.mtu") == (
        row["host"],
        row["kind"],
        row["before"],
        row["after"],
        row["path"],
    )


def test_several_runs_are_read_into_the_same_frames(tmp_path: Path) -> None:
    """Told apart by the first column; the public name is the same function."""
    for name in ("one", "two"):
        stored(tmp_path / name, [record(of=paced())])
    tables = udpbench.read_run(tmp_path / "one", str(tmp_path / "two"))
    assert isinstance(tables, udpbench.Frames)
    assert ["one", "two"] == list(tables.trials.run)


def test_a_folder_that_holds_no_run_is_said_so(tmp_path: Path, golden: Golden) -> None:
    """RecordError names it."""
    with golden.raises(RecordError):
        read_run(tmp_path)


def test_a_name_that_is_not_public_is_not_there(golden: Golden) -> None:
    """As of any module."""
    with golden.raises(AttributeError):
        _ = udpbench.nonsense


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_are_the_frames(form: str, tmp_path: Path) -> None:
    """Every frame is a file, also one without a row, and reads back with the same columns."""
    run = stored(tmp_path / "one", [record(series=series([1000]))])
    with Folder.open(tmp_path) as held:
        files = write_frames([run], held, form)  # type: ignore[arg-type]
    tables = frames([run])
    assert [f"{name}.{form}" for name in COLUMNS] == [file.name for file in files]
    for file in files:
        frame = getattr(tables, file.stem)
        back = pd.read_csv(file) if form == "csv" else pd.read_parquet(file)
        assert (list(frame.columns), len(frame)) == (list(back.columns), len(back))


def test_every_column_is_documented() -> None:
    """With its frame, in docs/records.md."""
    text = DOCUMENT.read_text()
    sections = dict(re.findall(r"^### (\w+): .*\n((?:.*\n)*?)(?=^##|\Z)", text, re.MULTILINE))
    assert list(COLUMNS) == list(sections)
    missing = [
        f"{name}.{column}"
        for name, columns in COLUMNS.items()
        for column in columns
        if f"`{column}`" not in sections[name] and f"| `{column}` |" not in text.split("###")[0]
    ]
    assert [] == missing


def test_a_run_without_a_trial_has_empty_frames(tmp_path: Path) -> None:
    """With their columns, each of its type."""
    tables = frames([stored(tmp_path / "one", [])])
    assert COLUMNS["trials"] == {name: str(kind) for name, kind in tables.trials.dtypes.items()}


def test_a_spreadsheet_computes_nothing(tmp_path: Path) -> None:
    """A text that begins like a formula has an apostrophe before it in CSV; a number has not."""
    of = trial("=1+1", values={"@sum": "-5", "send.batch": "+x", "send.gso": "\uff1d1"})
    whole = experiment(points=[of], question="\t=1+1", source="\r=1+1")
    run = stored(tmp_path / "run", [record(of=of)], whole)
    with Folder.open(tmp_path / "out", make=True) as folder:
        write_frames([run], folder, "csv")
    definitions = (tmp_path / "out" / "definitions.csv").read_bytes()
    assert all(text in definitions for text in (b"'\t'=1+1", b"'\r'=1+1"))
    (row,) = pd.read_csv(tmp_path / "out" / "trials.csv", dtype=str).to_dict("records")
    assert ("'=1+1", "-5", "'+x") == (row["point"], row["'@sum"], row["send.batch"])
    assert "'\uff1d1" == row["send.gso"]


def test_a_spreadsheet_that_splits_elsewhere_computes_nothing() -> None:
    """At semicolons or tabs, where each line of a text is a row; its numbers stay numbers."""
    texts = ["x;=1", "x;;+1;-2", "a\n@b\t=c", "x;\uff1d1", "-1;-2.5", "a; b=1", "a - b"]
    kept = ["x;'=1", "x;;+1;-2", "a\n'@b\t'=c", "x;'\uff1d1", "'-1;-2.5", "a; b=1", "a - b"]
    frame = pd.DataFrame({"text": pd.array(texts, "string")})
    assert kept == unobeyed(frame)["text"].tolist()


def test_a_frame_has_not_any_number_of_columns(tmp_path: Path, golden: Golden) -> None:
    """Each would be in every row."""
    for number in (0, 1):
        of = trial(values={f"key{number}.{place}": 1 for place in range(SWEPT_MAX)})
        stored(tmp_path / f"run{number}", [record(of=of)], experiment(points=[of]))
    with golden.raises(RecordError):
        read_run(tmp_path / "run0", tmp_path / "run1")
