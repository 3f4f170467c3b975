"""Run folders in place of a store: the same history and the same page, and how they get into one."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from store.runs import run_of
from udpbench.__main__ import main
from udpbench.commands.verbs.campaign import say_answer
from udpbench.control.watch import KeptLooks
from udpbench.errors import RecordError
from udpbench.model.lab import Lab
from udpbench.records.reader import read_run
from udpbench.records.run import CAMPAIGN_FILE, RUN_FILE, Run
from udpbench.store.dataset import read_runs, trial_rows, write_runs
from udpbench.store.history import histories
from udpbench.store.run_folders import readable_runs, run_folders, trials_of

RATES = (1000, 1004, 998, 1002, 800, 804, 799)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of a week's runs, two of them in a folder of a campaign."""
    monkeypatch.chdir(tmp_path)
    for number, pps in enumerate(RATES, start=1):
        place = Path("results", *(["campaign", "rack"] if number > 5 else []), f"run{number}")
        place.parent.mkdir(parents=True, exist_ok=True)
        run_of(place, pps, f"2026-11-{number:02d}")
    return Path("results")


def run(*words: str) -> int:
    """Return the exit code of a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["udpbench", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_trials_are_those_of_a_store(results: Path, tmp_path: Path) -> None:
    """Column by column, so that everything that reads a store reads them."""
    pytest.importorskip("pyarrow", reason="pip install 'udpbench[store]'")
    runs, problems = readable_runs(run_folders(results))
    assert (7, []) == (len(runs), problems)
    write_runs([each.folder for each in runs], "store", campaign="c", pair="p")
    order = ["run", "point", "repetition"]
    stored, plain = (each.sort_values(order) for each in (read_runs("store"), trials_of(runs)[0]))
    assert set(stored.columns) == set(plain.columns)
    for name in set(stored.columns) - {"campaign", "pair"}:
        assert stored[name].tolist() == plain[name].tolist(), name
    assert {"results", "rack"} == set(plain.campaign)
    assert {runs[0].header.lab_name} == set(plain.pair)


def test_the_runs_of_a_campaign_are_of_one(results: Path) -> None:
    """Its folder holds them by pair."""
    (results / "campaign" / CAMPAIGN_FILE).write_text("{}")
    runs, _ = readable_runs(run_folders(results))
    assert {"results", "campaign"} == set(trials_of(runs)[0].campaign)


def test_links_below_a_folder_are_not_followed(results: Path) -> None:
    """Each to the folder itself would multiply what it holds; a link that is named is followed."""
    whole = run_folders(results)
    for number in range(150):
        (results / f"link{number}").symlink_to(".")
    assert (7, whole) == (len(whole), run_folders(results))
    Path("named").symlink_to(results / "run1")
    assert [Path("named")] == run_folders(Path("named"))
    assert [] == [*run_folders(results / "none"), *run_folders(results / "run1" / RUN_FILE)]


def test_a_folder_of_too_many_files_is_not_searched(
    results: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """At any depth."""
    monkeypatch.setattr("udpbench.store.run_folders.MOST_ENTRIES", 9)
    with golden.raises(RecordError):
        run_folders(results)


def test_a_folder_that_cannot_be_listed_is_said_to_be(
    results: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Its disk may fail."""

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("udpbench.store.run_folders.os.scandir", fail)
    with golden.raises(RecordError):
        run_folders(results)


def test_a_campaign_ends_with_its_question_and_its_answer(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as any run is complete."""
    say_answer(run_folders(results)[:1])
    first, *rest = capsys.readouterr().out.splitlines()
    assert "Does it arrive?" == first
    assert "6 trials on 1 pair of hosts, in 1 run on 1 day." in " ".join(
        line.strip() for line in rest
    )
    say_answer([])
    assert "" == capsys.readouterr().out


def test_history_reads_them_and_says_so(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the first line, and in JSON; a point is selected as of a store."""
    assert 0 == run("history", str(results), "--point", "size=64B")
    lines = capsys.readouterr().out.splitlines()
    assert "read: results: 7 run folders" == lines[0]
    assert 7 == sum(line.split()[0].startswith("2026-11-0") for line in lines if line.split())
    assert not [line for line in lines if "size=1472B" in line]
    assert 0 == run("history", str(results), "--json")
    data = json.loads(capsys.readouterr().out)
    assert ("results", "7 run folders") == (data["store"], data["read"])
    assert 2 == len(data["points"])


def test_without_jumpavg_there_are_days_and_how_to_have_changes(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The medians need no package that is not installed anyway."""
    monkeypatch.setitem(sys.modules, "jumpavg", None)
    monkeypatch.setattr("udpbench.commands.verbs.history.find_spec", lambda _: None)
    assert 0 == run("history", str(results))
    printed = capsys.readouterr()
    assert "slower" not in printed.out
    assert "2026-11-07" in printed.out
    assert printed.err.startswith("changes of level are missing; to have them: ")


def test_a_report_of_a_folder_of_runs_is_their_page(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a store; that of a run's own folder is the run's."""
    assert 0 == run("report", str(results))
    assert ["read: results: 7 run folders", f"report: {results / 'campaign.html'}"] == (
        capsys.readouterr().out.splitlines()
    )
    assert "Over the days" in (results / "campaign.html").read_text()
    assert 0 == run("report", str(results / "run1"), "--format", "csv")
    assert "read:" not in capsys.readouterr().out


def test_runs_are_added_to_a_store(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the folder that holds them and their lab, or as named; again replaces them."""
    pytest.importorskip("pyarrow", reason="pip install 'udpbench[store]'")
    for _ in range(2):
        assert 0 == run("store", "add", "store", str(results))
        assert "store: store: 7 runs added\n" == capsys.readouterr().out
    assert {("results", "run5"), ("rack", "run6")} <= {
        (row.campaign, row.run) for row in read_runs("store").itertuples()
    }
    assert 7 * 6 == len(read_runs("store"))
    words = ("--campaign", "mine", "--pair", "left-right")
    assert 0 == run("store", "add", "other", str(results / "run1"), *words)
    frame = read_runs("other")
    assert ({"mine"}, {"left-right"}) == (set(frame.campaign), set(frame.pair))
    assert [*histories(frame)]


def test_what_cannot_be_read_is_left_out_and_named(
    results: Path, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing readable, or nothing at all, is an error; a watch is no run to compare."""
    (results / "run1" / "run.jsonl").write_text("{}\n")
    watched = KeptLooks.create(results / "watch", Lab("watch", "", "", ()), ("udpbench", "watch"))
    assert read_run(watched.folder).header.watched
    assert 0 == run("history", str(results))
    printed = capsys.readouterr()
    assert printed.out.startswith("read: results: 6 run folders\n")
    golden.check(printed.err.splitlines())
    assert 2 == run("history", str(results / "run1"))
    golden.check(capsys.readouterr().err.splitlines())
    Path("empty").mkdir()
    for words in (("history", "empty"), ("report", "empty"), ("store", "add", "store", "nowhere")):
        assert 2 == run(*words)
        golden.check(capsys.readouterr().err.splitlines())


def test_a_run_of_which_the_rest_cannot_be_read_hides_no_other(
    results: Path, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of what a run kept is read for its row alone: by then it may be changed."""
    runs, _ = readable_runs(run_folders(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("udpbench.store.run_folders.trial_rows", rows_but_of("run3"))
        trials, problems = trials_of(runs)
        assert 6 * 6 == len(trials)
        golden.check(problems)
        assert 0 == run("history", str(results))
        printed = capsys.readouterr()
        assert printed.out.startswith("read: results: 6 run folders\n")
        assert f"left out: {problems[0]}" in printed.err.splitlines()
        assert 2 == run("history", str(results / "run3"))
        assert "left out: " not in capsys.readouterr().err


def rows_but_of(name: str) -> Callable[[Run], Iterator[dict[str, Any]]]:
    """Return what yields the rows of runs, but of the one of that name."""

    def rows(of_run: Run) -> Iterator[dict[str, Any]]:
        if of_run.folder.name == name:
            raise RecordError(f"{of_run.folder}/run.jsonl:2: changed since it was read; try again")
        yield from trial_rows(of_run)

    return rows
