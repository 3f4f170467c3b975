"""The store: what is in it, that a run is in it once, and that a reader never meets half a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as arrow
import pytest
from analysis.build import lossy, record, trial
from control.fake import World, go
from golden import Golden
from pyarrow import parquet
from report.stored import stored

import udpbench
from store.runs import POINTS, run_of
from udpbench import read_runs, write_runs
from udpbench.definition.load import load_experiment_data
from udpbench.errors import InputError, RecordError
from udpbench.records.reader import read_run
from udpbench.records.writer import RunWriter
from udpbench.report.document import write
from udpbench.store import dataset
from udpbench.store.pairs import differing_facts

DOCUMENT = Path(__file__).parents[3] / "docs" / "records.md"
MIB = 2**20
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def files(store: Path) -> list[str]:
    """Return every file in a store, hidden ones, too."""
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def test_a_run_is_a_file_by_campaign_pair_and_day(tmp_path: Path) -> None:
    """With a row for each trial, as the frame of trials has it."""
    run = run_of(tmp_path / "run", 1000)
    (name,) = write_runs([run.folder], tmp_path / "store", campaign="a b/ü", pair="rack=1")
    folder = "campaign=a%20b%2F%C3%BC/pair=rack%3D1/day=2026-11-21"
    assert re.fullmatch(rf"{re.escape(folder)}/[0-9a-f]{{12}}\.parquet", name)
    assert [name] == files(tmp_path / "store")
    frame = read_runs(tmp_path / "store")
    assert {("a b/ü", "rack=1", "2026-11-21")} == {
        *zip(frame.campaign, frame.pair, frame.day, strict=True)
    }
    whole = udpbench.read_run(run.folder).trials
    shared = [name for name in whole if name in frame]
    assert len(shared) > 50
    keys = ["point", "repetition"]
    mine, theirs = (each.sort_values(keys, ignore_index=True)[shared] for each in (frame, whole))
    pd.testing.assert_frame_equal(theirs, mine, check_dtype=False)
    assert {"traffic.size": "64B"} == frame["values"][frame.point == POINTS[1]].iloc[0]


def test_where_packets_ended_is_in_it(tmp_path: Path) -> None:
    """Stage by stage."""
    run = stored(tmp_path / "run", [lossy(1000, LOST, 250)])
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    (ledger,) = read_runs(tmp_path / "store").ledger
    assert 250 == ledger["udp_rcvbuf"]
    assert 0 == ledger["udp_no_port"]


def test_a_search_has_what_it_found_in_each_of_its_trials(tmp_path: Path) -> None:
    """The trials themselves are loads that nobody asked for."""
    plain = {"question": "How many?", "search": "quick", "warmup": "0s"}
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", load_experiment_data(plain, "one"))
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    frame = read_runs(tmp_path / "store")
    assert len(run.records) == len(frame) > 3
    (throughput,) = set(frame.throughput_pps)
    assert 250_000 < throughput <= 300_000


def test_a_run_written_again_is_there_once(tmp_path: Path) -> None:
    """Also resumed, and from a folder of another name; another run is another file."""
    store = tmp_path / "store"
    folder = stored(tmp_path / "run", [record()], ending=None).folder
    first = write_runs([folder], store, campaign="c", pair="p")
    assert first == write_runs([folder], store, campaign="c", pair="p")
    assert 1 == len(read_runs(store))
    writer = RunWriter.reopen(folder)
    writer.write(record(of=trial(repetition=2)))
    writer.close()
    shutil.copytree(folder, tmp_path / "copy")
    assert first == write_runs([tmp_path / "copy"], store, campaign="c", pair="p")
    frame = read_runs(store)
    assert ([1, 2], {"copy"}) == (list(frame.repetition), set(frame.run))
    write_runs([run_of(tmp_path / "other", 1000).folder], store, campaign="c", pair="p")
    assert (2, 8) == (len(files(store)), len(read_runs(store)))


def test_one_point_pair_or_campaign_is_read_alone(tmp_path: Path) -> None:
    """And all of them together in the order in which they were measured."""
    store = tmp_path / "store"
    for number, (campaign, pair) in enumerate((("a", "one"), ("a", "two"), ("b", "one"))):
        run = run_of(tmp_path / f"run{number}", 1000, f"2026-11-{20 - number}")
        write_runs([run.folder], store, campaign=campaign, pair=pair)
    assert 18 == len(read_runs(store))
    assert {POINTS[0]} == set(read_runs(store, point=POINTS[0]).point)
    assert 12 == len(read_runs(store, campaign="a"))
    assert 12 == len(read_runs(store, pair="one"))
    assert 3 == len(read_runs(store, point=POINTS[1], campaign="b", pair="one"))
    assert read_runs(store, point="none").empty


def test_a_torn_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A full disk is an error that names the run; what is beside a file is no part of the store."""
    store = tmp_path / "store"
    good, bad = (run_of(tmp_path / name, 1000) for name in ("good", "bad"))
    (name,) = write_runs([bad.folder], store, campaign="c", pair="p")
    before = (store / name).read_bytes()
    (store / name).with_name(f".{Path(name).name}.0badcafe").write_bytes(before[:100])

    def full(source: str, to: str, **places: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with golden.raises(RecordError, digest=Path(name).stem):
        write_runs([bad.folder], store, campaign="c", pair="p")
    monkeypatch.undo()
    assert before == (store / name).read_bytes()
    assert 6 == len(read_runs(store))
    write_runs([good.folder], store, campaign="c", pair="p")
    assert 6 == len(read_runs(store))  # the two differ in their folder alone


def test_what_cannot_be_read_is_left_out_and_reported(tmp_path: Path, golden: Golden) -> None:
    """All of it at once, after the others were written."""
    run = run_of(tmp_path / "run", 1000)
    (tmp_path / "empty").mkdir()
    folders = [tmp_path / "missing", run.folder, tmp_path / "empty"]
    with golden.raises(RecordError):
        write_runs(folders, tmp_path / "store", campaign="c", pair="p")
    assert 6 == len(read_runs(tmp_path / "store"))


def test_a_store_that_declares_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A small file may hold millions of equal rows."""
    run = run_of(tmp_path / "run", 1000)
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    monkeypatch.setattr(dataset, "MOST_ROWS", 5)
    with golden.raises(RecordError):
        read_runs(tmp_path / "store")


def test_no_link_in_a_store_is_followed(tmp_path: Path, golden: Golden) -> None:
    """It would be read again and again, or lead out of the store."""
    run = run_of(tmp_path / "run", 1000)
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    (tmp_path / "store" / "campaign=c" / "a").symlink_to(".")
    (tmp_path / "link").symlink_to("store")
    assert 6 == len(read_runs(tmp_path / "link"))
    (tmp_path / "store" / "campaign=d").symlink_to("campaign=c")
    with golden.raises(RecordError):
        read_runs(tmp_path / "store")


def test_a_day_that_is_none_is_reported(tmp_path: Path, golden: Golden) -> None:
    """The page of a campaign places it on an axis."""
    (tmp_path / "store" / "campaign=c" / "pair=p" / "day=x").mkdir(parents=True)
    with golden.raises(RecordError):
        read_runs(tmp_path / "store")


@pytest.mark.parametrize("most", [3, 4])
def test_a_store_of_too_many_files_is_not_walked(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, too, which may hold none."""
    run = run_of(tmp_path / "run", 1000)
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    monkeypatch.setattr(dataset, "MOST_ENTRIES", most)
    if most == 4:
        assert 6 == len(read_runs(tmp_path / "store"))
        return
    with pytest.raises(RecordError, match="more than 3 files and folders"):
        read_runs(tmp_path / "store")


def test_a_long_run_is_decoded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its memory does not grow with its trials, of which a run may have 100,000."""
    monkeypatch.setattr(dataset, "GROUP_ROWS", 4)
    run = run_of(tmp_path / "run", 1000)
    (name,) = write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    assert 2 == parquet.read_metadata(tmp_path / "store" / name).num_row_groups
    assert 6 == len(read_runs(tmp_path / "store"))


def _varint(number: int) -> bytes:
    """Return a number as Thrift has it: zigzag, seven bits a byte."""
    left, out = number << 1, b""
    while left > 127:
        left, out = left >> 7, out + bytes([left & 127 | 128])
    return out + bytes([left])


def _with_size(file: Path, size_bytes: int) -> None:
    """Forge the content that the footer of a file declares."""
    data = file.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    declared = _varint(parquet.read_metadata(file).row_group(0).total_byte_size)
    assert declared in data[begin:-8]
    footer = data[begin:-8].replace(declared, _varint(size_bytes))
    file.write_bytes(data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _padded(file: Path, size_bytes: int) -> None:
    """Put zeros before the footer of a file, which nothing refers to."""
    data = file.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[:begin] + bytes(size_bytes) + data[begin:])


def _text(file: Path) -> None:
    table = arrow.table({"question": ["x" * 40 * MIB]})
    parquet.write_table(table, file, compression="zstd", use_dictionary=False)


def _repeated_key(file: Path) -> None:
    """Write a map of one text, 40 thousand times."""
    places = arrow.array(range(40_000))
    same = arrow.DictionaryArray.from_arrays(arrow.repeat(0, 40_000), ["x" * 2000])
    keys = arrow.MapArray.from_arrays([0, 40_000], places.cast(arrow.string()), same)
    parquet.write_table(arrow.table({"values": keys}), file, compression="zstd")


def _entries(file: Path) -> None:
    """Write a map of one trial, with two million entries that are all alike."""
    names = arrow.array(["k"] * 2**21)
    ledger = arrow.MapArray.from_arrays([0, 2**21], names, arrow.nulls(2**21, arrow.int64()))
    parquet.write_table(arrow.table({"ledger": ledger}), file, compression="zstd")


def _list(file: Path) -> None:
    zeros = arrow.ListArray.from_arrays([0, 2**23], arrow.repeat(0.0, 2**23))
    parquet.write_table(arrow.table({"delivered_pps": zeros}), file, compression="zstd")


@pytest.mark.parametrize("declared_bytes", [None, 1, 2**30 - 1000])
@pytest.mark.parametrize("write_file", [_text, _repeated_key, _entries, _list])
def test_a_file_that_stands_for_more_than_its_size_is_refused(
    write_file: Callable[[Path], None],
    declared_bytes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its footer declares; a text, a dictionary, a run of equal values, or a list."""
    day = tmp_path / "store" / "campaign=c" / "pair=p" / "day=2026-11-21"
    day.mkdir(parents=True)
    write_file(day / "x.parquet")
    if declared_bytes is not None:
        _with_size(day / "x.parquet", declared_bytes)
    assert (day / "x.parquet").stat().st_size < 2**18
    monkeypatch.setattr(dataset, "ROOM_BYTES", 24 * MIB)
    with pytest.raises(RecordError, match=r"x\.parquet: it takes more memory than its size allows"):
        read_runs(tmp_path / "store")


def test_a_file_that_takes_no_disk_is_not_read(tmp_path: Path) -> None:
    """A GiB of nothing between the marks of Parquet would be held in memory."""
    day = tmp_path / "store" / "campaign=c" / "pair=p" / "day=2026-11-21"
    day.mkdir(parents=True)
    with (day / "x.parquet").open("wb") as file:
        file.write(b"PAR1")
        file.seek(4 * MIB)
        file.write(b"\1\0\0\0PAR1")
    with pytest.raises(RecordError, match=r"x\.parquet: has holes, so it is no file of a store"):
        read_runs(tmp_path / "store")


@pytest.mark.parametrize("declared", [None, 100])
def test_rows_that_hold_nothing_are_not_read(declared: int | None, tmp_path: Path) -> None:
    """A million took 1.2 GiB; nor if the footer declares less than its row groups."""
    day = tmp_path / "store" / "campaign=c" / "pair=p" / "day=2026-11-21"
    day.mkdir(parents=True)
    file = day / "x.parquet"
    parquet.write_table(arrow.table({"question": arrow.nulls(10**6, arrow.string())}), file)
    assert file.stat().st_size < 2**12
    why = rf"it declares 1000000 trials in {file.stat().st_size} B"
    if declared is not None:
        data = file.read_bytes()
        begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        footer = data[begin:-8].replace(_varint(10**6), _varint(declared), 1)
        file.write_bytes(data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        assert declared == parquet.read_metadata(file).num_rows
        why = "it holds more than the 100 trials that it declares"
    with pytest.raises(RecordError, match=why):
        read_runs(tmp_path / "store")


def test_decoding_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's limit, where memory is no limit before."""
    day = tmp_path / "store" / "campaign=c" / "pair=p" / "day=2026-11-21"
    day.mkdir(parents=True)
    monkeypatch.setattr(dataset, "MOST_ROWS", 2**23)
    empty = arrow.nulls(2**23, arrow.string())
    parquet.write_table(arrow.table({"question": empty}), day / "x.parquet")
    _padded(day / "x.parquet", 2**23)
    monkeypatch.setattr(dataset, "ROOM_BYTES", 2**33)
    monkeypatch.setattr(dataset, "MOST_CPU_S", 1)
    with pytest.raises(RecordError, match=r"x\.parquet: decoding it takes more than 1s of CPU"):
        read_runs(tmp_path / "store", point="none")


def test_what_is_no_stored_trial_is_refused_within_a_file(tmp_path: Path) -> None:
    """After rows that were good; what was decoded until then is no answer."""
    run = run_of(tmp_path / "run", 1000)
    (name,) = write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    file = tmp_path / "store" / name
    table = arrow.concat_tables([parquet.read_table(file, partitioning=None)] * 2000)
    parquet.write_table(table, file, compression="none", row_group_size=6000)
    data = bytearray(file.read_bytes())
    begin = parquet.read_metadata(file).row_group(1).column(0).dictionary_page_offset
    data[begin : begin + 20] = bytes(20)
    file.write_bytes(data)
    with pytest.raises(RecordError, match="the store cannot be read: "):
        read_runs(tmp_path / "store")


@pytest.mark.parametrize("hosts", ["[" * 100, "{", '["a"]', '{"left": 1}'])
def test_hosts_that_are_none_are_reported(hosts: str, golden: Golden) -> None:
    """The column is JSON of whoever wrote the store."""
    trials = pd.DataFrame({"pair": ["p"], "hosts": [hosts]})
    with golden.raises(RecordError):
        differing_facts(trials)


def test_an_object_store_gets_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one stream each, of a file system of pyarrow's; session ``s3`` has a real server."""
    from pyarrow import fs

    memory = fs._MockFileSystem()
    memory.create_dir("bucket/store/campaign=c/pair=p/day=2026-11-21", recursive=True)
    monkeypatch.setattr(dataset, "_place", lambda _: (memory, "bucket/store"))
    run = run_of(tmp_path / "run", 1000)
    for _ in range(2):
        write_runs([run.folder], "s3://bucket/store", campaign="c", pair="p")
    assert 6 == len(read_runs("s3://bucket/store"))


def test_what_is_no_store_is_refused(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name, no such place, nothing in it, a damaged file, no pyarrow."""
    run = run_of(tmp_path / "run", 1000)
    with golden.raises(InputError):
        write_runs([run.folder], tmp_path / "store", campaign="", pair="")
    with golden.raises(InputError):
        read_runs("nowhere://store")
    with golden.raises(InputError):
        read_runs(tmp_path / "store")
    day = tmp_path / "store" / "campaign=c" / "pair=p" / "day=2026-11-21"
    day.mkdir(parents=True)
    (day / "x.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(RecordError, match="the store cannot be read: "):
        read_runs(tmp_path / "store")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with golden.raises(InputError):
        write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    with golden.raises(InputError):
        write([read_run(run.folder)], tmp_path, ["parquet"])


def test_nothing_else_needs_pyarrow(tmp_path: Path) -> None:
    """A base install has none: a report and frames come about without it."""
    run = replace(run_of(tmp_path / "run", 1000))
    program = (
        "import sys; sys.modules['pyarrow'] = None; import udpbench, pathlib\n"
        "from udpbench.records.reader import read_run\n"
        "from udpbench.report.document import write\n"
        f"assert 6 == len(udpbench.read_run({str(run.folder)!r}).trials)\n"
        f"write([read_run(pathlib.Path({str(run.folder)!r}))], pathlib.Path({str(tmp_path)!r}), ['html', 'csv'])\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_page_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/records.md shows of a store runs as it stands, DuckDB's part, too."""
    pytest.importorskip("duckdb", reason="dependency group test")
    for name, day in (
        ("20261121T080000-smoke", "2026-11-21"),
        ("20261122T080000-smoke", "2026-11-22"),
    ):
        run_of(tmp_path / "results" / name, 1000, day)
    section = DOCUMENT.read_text().partition("## Many runs in one store")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert 2 == len(blocks)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    last = [_value_of(block, names) for block in blocks]
    assert [("rack1", "2026-11-21"), ("rack1", "2026-11-22")] == list(last[0].index)
    assert ["size=1472B", "size=64B"] == [point for _, point, _, _ in last[1]]
    listed = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE))
    documented = {name for cell in listed for name in re.findall(r"`(\w+)`", cell)}
    columns = set(names["trials"].columns) - set(dataset.COLUMNS["trials"])  # type: ignore[attr-defined]
    assert columns == documented


def _value_of(block: str, names: dict[str, object]) -> object:
    """Run a block of a page; return the value of its last expression."""
    import ast

    *body, last = ast.parse(block).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), "page", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "page", "eval"), names)  # noqa: S307
