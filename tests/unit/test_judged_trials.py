"""What a run judged is what would be judged anew, and is believed of this user's own runs alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from analysis.build import failed, merged, record, series, trial
from analysis.test_answers import answered
from analysis.test_forwarding import routed
from analysis.test_result_tables import queued
from control.fake import World, experiment, go
from control.test_search import searched, world
from report.stored import COMPLETE, header, printed, swept

from udpbench import judged_trials
from udpbench.analysis.judge import judge
from udpbench.analysis.result_tables import with_tables
from udpbench.errors import RecordError
from udpbench.indented_json import indented
from udpbench.json_lines import Room
from udpbench.judged_run import chapters_of
from udpbench.judged_trials import (
    JUDGED_FILE,
    KEY_BYTES,
    KEY_FILE,
    LaterRecord,
    kept_result,
    kept_rows,
    own_key,
)
from udpbench.model.record import Finding, TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE, Begin, Run
from udpbench.records.writer import RunWriter
from udpbench.report.data_frames import frames
from udpbench.report.document import write
from udpbench.report.json_output import as_json
from udpbench.report.selftest import untried
from udpbench.report.summary import hosts_of
from udpbench.report.tables import closing, parts

INVALID = Finding("invalid", "it was another's")
BEGIN = Begin("2026-11-22T00:00:00", "0.1.0", ("udpbench", "run", "--resume", "r"))


def kept(folder: Path, records: Sequence[TrialRecord] | None = None, *experiments: Any) -> Path:
    """Return a folder with a run that kept what it judged; by default of two trials."""
    two = [record(of=trial("a"), series=series([1000])), record(of=trial("b"))]
    writer = RunWriter.create(folder, header(*experiments))
    for each in two if records is None else records:
        writer.write(each)
        writer.keep_result(each, with_tables(judge(each), each))
    writer.finish(COMPLETE)
    return folder


def known(folder: Path) -> list[bool]:
    """Return of each record of a run whether its kept result is believed."""
    return [kept_result(each) is not None for each in read_run(folder, later=True).records]


def as_csv(frame: Any) -> Any:
    """Return a frame as text, and of several each."""
    if isinstance(frame, dict):
        return {name: as_csv(each) for name, each in frame.items()}
    return frame.to_csv()


def shown(run: Run, out: Path) -> dict[str, Any]:
    """Return all that a run is shown as."""
    chapters = chapters_of(run)
    texts = [
        printed(*parts(each, 100, everything)) for each in chapters for everything in (False, True)
    ]
    texts.append(printed(*closing(run, 100)))
    data, files = as_json(run), list(write([run], out, ["html", "csv"]))
    shutil.rmtree(out / "figures", ignore_errors=True)
    return {
        "screen": texts,
        "json": "".join(indented(data)),
        "frames": {name: as_csv(frame) for name, frame in vars(frames([run])).items()},
        "files": {file.name: file.read_bytes() for file in files},
        "results": repr([result for chapter in chapters for result in chapter.every_trial]),
        "findings": run.findings,
        "numbers": run.numbers,
    }


def forwarded() -> TrialRecord:
    """Return a record of a path with a router that lost packets."""
    moves = {"link.in0.rx_packets": 1000, "snmp.Ip.ForwDatagrams": 993, "snmp.Ip.InHdrErrors": 7}
    return routed({"router": moves}, 7)


KINDS: dict[str, Callable[[Path], object]] = {
    "trials": kept,
    "a failed trial, and one that is invalid": lambda folder: kept(
        folder, [failed(), record(of=trial("b"), findings=(INVALID,))]
    ),
    "a sweep": lambda folder: kept(folder, swept((64, 512))[1], swept((64, 512))[0]),
    "answers": lambda folder: kept(folder, [answered(900)]),
    "merged packets": lambda folder: kept(folder, [merged()]),
    "every table": lambda folder: kept(folder, [queued()]),
    "a node in the middle": lambda folder: kept(folder, [forwarded()]),
    "a search": lambda folder: go(world(), folder, searched()),
    "a comparison": lambda folder: go(
        World(),
        folder,
        experiment(sweep={"send.batch": [1, 2]}, compare=[{"a": "batch=1", "b": "batch=2"}]),
    ),
    "a cut last line": lambda folder: torn(kept(folder)),
    "two sessions": lambda folder: resumed(kept(folder)),
}


def torn(folder: Path) -> None:
    """Leave a run as a death in the middle of a line leaves it."""
    for name in (RUN_FILE, SERIES_FILE, JUDGED_FILE):
        with (folder / name).open("ab") as file:
            file.write(b'{"kind":"trial","sequence":7,"rec')


def resumed(folder: Path) -> None:
    """Repeat a trial of a run in a second session, and add one of which no result was kept."""
    writer = RunWriter.reopen(folder)
    writer.resume(writer.read(), BEGIN)
    again = record(900, of=trial("b"), series=series([900]))
    writer.write(again)
    writer.keep_result(again, judge(again))
    writer.write(record(of=trial("c"), series=series([500])))
    writer.finish(COMPLETE)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_kept_is_shown_as_what_is_judged_anew(kind: str, tmp_path: Path) -> None:
    """On screen, as JSON, as data and as a page, byte for byte."""
    folder = tmp_path / "run"
    KINDS[kind](folder)
    assert any(known(folder))
    by_kept = shown(read_run(folder, later=True), tmp_path / "out")
    (folder / JUDGED_FILE).unlink()
    anew = shown(read_run(folder, later=True), tmp_path / "out")
    assert not any(known(folder))
    assert anew.keys() == by_kept.keys()
    for name, value in anew.items():
        assert value == by_kept[name], name


def test_only_the_result_is_read_at_first(tmp_path: Path) -> None:
    """The rest is read where it is asked for, and is what it would have been."""
    folder = kept(tmp_path / "run")
    first, second = read_run(folder, later=True).records
    assert {"trial", "status", "built_in_lab", "started_at"} < vars(first).keys()
    assert first.facts is second.facts
    assert "phases" not in vars(first)
    (folder / JUDGED_FILE).unlink()
    plain = read_run(folder, later=True).records
    assert first.phases == plain[0].phases
    assert TrialRecord is type(first)
    assert LaterRecord is type(second)
    assert (first, second) == plain
    assert hash(type(first)) == hash(type(second))
    assert replace(read_run(folder, later=True).records[0], status="failed").status == "failed"


def test_what_others_hold_by_then_takes_no_room_of_what_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history reads many runs, and their trials only once it has them all."""
    run = read_run(kept(tmp_path / "run"), later=True)
    rooms: list[Room] = []

    def anew() -> Room:
        rooms.append(Room())
        return rooms[-1]

    monkeypatch.setattr("udpbench.records.kept_results.Room", anew)
    assert all(each.phases for each in run.records)
    assert len(run.records) == len(rooms)
    assert all(room._content_bytes for room in rooms)


def test_what_nearly_every_output_shows_needs_no_record(tmp_path: Path) -> None:
    """Facts of hosts, changes of settings, and the rows of tables are kept with the result."""
    folder = kept(tmp_path / "run", [queued(), record(of=trial("b"))])
    plain = read_run(folder)
    run = read_run(folder, later=True)
    folder.rename(tmp_path / "gone")
    assert as_json(plain) == as_json(run)
    assert hosts_of(plain.records) == hosts_of(run.records)
    assert untried(plain.records, "") == untried(run.records, "") is not None
    assert [each.changes for each in plain.records] == [each.changes for each in run.records]
    assert {LaterRecord} == {*map(type, run.records)}
    with pytest.raises(RecordError, match="cannot be read: No such file or directory"):
        run.records[0].whole()  # type: ignore[attr-defined]


@pytest.mark.parametrize("most", [0, 500])
def test_long_tables_are_read_from_the_record(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a load of hours with many queues would be longer than all else that is kept."""
    monkeypatch.setattr(judged_trials, "MOST_ROWS", most)
    folder = kept(tmp_path / "run", [queued()])
    (plain,) = chapters_of(read_run(folder))[0].every_trial
    run = read_run(folder, later=True)
    assert (kept_rows(run.records[0]) is None) == (most == 0)
    (result,) = chapters_of(run)[0].every_trial
    rows = {table.name: [*table.rows()] for table in plain.tables}
    assert all(rows.values())
    assert rows == {table.name: [*table.rows()] for table in result.tables}


def test_whoever_does_not_ask_for_later_has_all_at_once(tmp_path: Path) -> None:
    """As a test of the ledger, whose run is in a folder that is gone with its end."""
    folder = kept(tmp_path / "run")
    run = read_run(folder)
    shutil.rmtree(folder)
    assert all(type(each) is TrialRecord and each.phases for each in run.records)


def test_a_run_whose_folder_is_held_is_read_later_wherever_it_is(tmp_path: Path) -> None:
    """As ``run`` reads what it has just measured; whoever held the folder has closed it."""
    folder = kept(tmp_path / "run")
    fd = os.open(folder, os.O_RDONLY)
    run = read_run(folder, fd, later=True)
    os.close(fd)
    folder.rename(tmp_path / "elsewhere")
    assert all(each.phases for each in run.records)


def edited(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    """Return what replaces bytes of a file of a run by as many others."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_bytes()
        assert old in text
        (folder / name).write_bytes(text.replace(old, new, 1))

    return edit


def replaced(by: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what puts something else in the place of the judged file."""

    def put(folder: Path) -> None:
        file = folder / JUDGED_FILE
        file.rename(folder / "beside")
        by(file)

    return put


NOT_BELIEVED = {
    "a trial was edited": (
        edited(RUN_FILE, b'"built_in_lab":true', b'"built_in_lab":false'),
        [False, True],
    ),
    "a series was edited": (
        edited(SERIES_FILE, b'"received_packets":1', b'"received_packets":2'),
        [False, True],
    ),
    "a result was edited": (edited(JUDGED_FILE, b'"done"', b'"gone"'), [False, True]),
    "a seal was edited": (edited(JUDGED_FILE, b'["', b'["x'), [False, True]),
    "a link": (replaced(lambda file: file.symlink_to("beside")), [False, False]),
    "a pipe": (replaced(os.mkfifo), [False, False]),
    "a folder": (replaced(Path.mkdir), [False, False]),
    "no lines": (replaced(lambda file: file.write_bytes(b"\n[]\n\xff\n")), [False, False]),
    "a line without end": (replaced(lambda file: file.write_bytes(bytes(2**26 + 2))), [False] * 2),
    "a series of others": (edited(SERIES_FILE, b'{"sequence"', b'{ "sequence"'), [False, False]),
}


@pytest.mark.parametrize("what", NOT_BELIEVED)
def test_what_is_not_this_runs_own_is_judged_anew(what: str, tmp_path: Path) -> None:
    """Whatever is there, the run is read as without it."""
    folder = kept(tmp_path / "run")
    assert [True, True] == known(folder)
    change, left = NOT_BELIEVED[what]
    change(folder)
    assert left == known(folder)
    assert [2] == [
        len(chapter.every_trial) for chapter in chapters_of(read_run(folder, later=True))
    ]


def test_results_of_another_build_are_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout is another, too, whose version stays while its files change."""
    folder = kept(tmp_path / "run")
    monkeypatch.setattr(judged_trials, "_code", lambda: b"another")
    assert [False, False] == known(folder)


def test_the_code_is_all_that_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the analysis that has changed by a byte is another build."""
    package = tmp_path / "udpbench"
    (package / "analysis" / "checks").mkdir(parents=True)
    (package / "model").mkdir()
    (package / "records").mkdir()
    seen = set()
    files = ("analysis/judge.py", "analysis/checks/order.py", "model/result.py", "records/lines.py")
    for name in ("units.py", *files):
        for text in ("a", "b"):
            (package / name).write_text(text)
            monkeypatch.setattr(judged_trials, "__file__", str(package / "judged_trials.py"))
            seen.add(judged_trials._code.__wrapped__())
    assert 10 == len(seen)


def test_results_of_another_user_are_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder from anybody may hold results that no code would return."""
    folder = kept(tmp_path / "run")
    monkeypatch.setattr(judged_trials, "_place", lambda: tmp_path / "other")
    assert [False, False] == known(folder)
    assert not (tmp_path / "other").exists(), "reading makes no key"


BAD_KEYS: dict[str, Callable[[Path], object]] = {
    "others may read it": lambda file: file.chmod(0o644),
    "it is too short": lambda file: os.truncate(file, KEY_BYTES - 1),
    "it is too long": lambda file: file.write_bytes(bytes(KEY_BYTES + 1)),
    "it is a pipe": lambda file: (file.unlink(), os.mkfifo(file, 0o600)),
    "it is a link": lambda file: file.rename(file.parent / "k").symlink_to(file),
    "it is somebody else's": lambda file: os.chown(file, 12345, -1),
}


@pytest.mark.parametrize("what", BAD_KEYS)
def test_a_key_that_others_may_know_is_none(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sealed with it, and nothing that it sealed is believed."""
    if what == "it is somebody else's" and os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.setattr(judged_trials, "_place", lambda: tmp_path / "cache")
    folder = kept(tmp_path / "run")
    assert [True, True] == known(folder)
    file = tmp_path / "cache" / KEY_FILE
    if what == "it is a link":
        file.rename(file.parent / "k")
        file.symlink_to("k")
    else:
        BAD_KEYS[what](file)
    assert None is own_key()
    assert [False, False] == known(folder)
    assert [False, False] == known(kept(tmp_path / "later"))


@pytest.mark.parametrize(
    ("names", "place"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/udpbench"),
        ({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/udpbench"),
        ({"HOME": "h"}, None),
        ({"HOME": "/h", "SUDO_UID": "1"}, "sudo"),
    ],
)
def test_the_key_is_in_the_calling_users_cache(
    names: dict[str, str], place: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sudo in that of who typed it, whose run folders are theirs, too."""
    import pwd

    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    if place == "sudo" and os.geteuid() != 0:
        pytest.skip("needs root")
    user = 1 if place == "sudo" else os.geteuid()
    usual = f"{pwd.getpwuid(user).pw_dir}/.cache/udpbench"
    expected = usual if place in (None, "sudo") else place
    assert expected == str(judged_trials._place())


def test_what_does_not_read_back_is_not_kept(tmp_path: Path) -> None:
    """A number that JSON has not, and one beyond the limits of records."""
    writer = RunWriter.create(tmp_path / "run", header())
    for place, number in enumerate((nan, 2**70, 1.5)):
        each = record(of=trial(f"p{place}"))
        writer.write(each)
        writer.keep_result(each, replace(judge(each), numbers={"sent_packets": number}))
    writer.finish(COMPLETE)
    assert [False, False, True] == known(tmp_path / "run")


def test_names_that_cannot_be_shown_are_not_kept(tmp_path: Path) -> None:
    """A reader shows them as escapes, which the result of the run does not have."""
    odd = record(of=trial("a"), findings=(replace(INVALID, what="a\x07b"),))
    moving = replace(series([1000])[0], worker="receiver 1\x07")
    assert [False, False, True] == known(
        kept(
            tmp_path / "run", [odd, record(of=trial("b"), series=(moving,)), record(of=trial("c"))]
        )
    )


def test_only_the_last_record_can_be_kept(tmp_path: Path) -> None:
    """The digest is that of the line before."""
    first, second = record(of=trial("a")), record(of=trial("b"))
    writer = RunWriter.create(tmp_path / "run", header())
    for each in (first, second):
        writer.write(each)
    writer.keep_result(first, judge(first))
    writer.finish(COMPLETE)
    assert [False, False] == known(tmp_path / "run")


@pytest.mark.parametrize("name", ["a folder", "a pipe"])
def test_a_run_that_cannot_keep_results_measures_on(name: str, tmp_path: Path) -> None:
    """They can be derived again."""
    folder = tmp_path / "run"
    folder.mkdir()
    (Path.mkdir if name == "a folder" else os.mkfifo)(folder / JUDGED_FILE)
    assert [False, False] == known(kept(folder))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            edited(RUN_FILE, b'"built_in_lab":true', b'"built_in_lab":null'),
            "changed since it was read",
        ),
        (lambda folder: (folder / RUN_FILE).unlink(), "No such file"),
    ],
)
def test_a_run_that_changes_while_it_is_read_is_an_error(
    change: Callable[[Path], object], error: str, tmp_path: Path
) -> None:
    """Its parts would be of two runs."""
    folder = kept(tmp_path / "run")
    first = read_run(folder, later=True).records[0]
    change(folder)
    with pytest.raises(RecordError, match=error):
        _ = first.phases


def test_a_run_of_an_older_schema_is_judged_anew(tmp_path: Path) -> None:
    """Its lines are read in other words."""
    folder = kept(tmp_path / "run")
    edited(RUN_FILE, b'"schema":2', b'"schema":1')(folder)
    assert [False, False] == known(folder)
