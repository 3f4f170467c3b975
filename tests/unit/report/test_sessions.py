"""The page of the run: when it began, was resumed and why, and what was run again and put back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import experiment, failed, record, trial
from golden import Golden

from report.stored import COMPLETE, stored
from udpbench.model.record import (
    RecordedError,
    TrialRecord,
)
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, Begin, Ending, Run
from udpbench.records.writer import RunWriter
from udpbench.report.document import write
from udpbench.report.json_output import as_json
from udpbench.report.pages import run_data
from udpbench.report.sessions import restored
from udpbench.report.summary import ended
from udpbench.report.tables import closing

AGAIN = Begin("2026-11-22T08:00:00.000+00:00", "0.1.0", ("udpbench", "run", "--resume", "r"))
LOST = RecordedError("AgentLost", "gone", "left")
REFUSED = RecordedError("HelloRefused", "run x died here", "left")


def twice(
    folder: Path,
    end: Ending | None,
    *second: TrialRecord,
    begin: Begin = AGAIN,
    torn: bytes = b"",
    end_again: Ending | None = COMPLETE,
) -> Run:
    """Return a run that ended in some way, or not at all, and went on."""
    stored(folder, [replace(failed(), trial=trial())], ending=end)
    with (folder / RUN_FILE).open("ab") as file:
        file.write(torn)
    writer = RunWriter.reopen(folder)
    writer.resume(read_run(folder), begin)
    for trial_record in second:
        writer.write(trial_record)
    if end_again is not None:
        writer.finish(end_again)
    else:
        writer.close()
    return read_run(folder)


def rows(run: Run) -> dict[str, str]:
    """Return name → value of what is told of the run as a whole."""
    return {row["name"]: row["value"] for row in run_data(run)["run_rows"]}


def test_a_run_that_was_not_resumed_says_nothing_of_it(tmp_path: Path) -> None:
    """Its rows are those of a run from beginning to end."""
    names = ["to repeat it", "begun", "seed", "trials", "udpbench"]
    assert names == list(rows(stored(tmp_path)))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, "after its process died: 0 trials"),
        (Ending("then", "interrupted"), "after an interrupt: 0 trials"),
        (Ending("then", "failed", LOST), "after it failed (left: gone): 0 trials"),
        (COMPLETE, "to repeat failed trials: 0 trials"),
        (replace(COMPLETE, restore_errors=(LOST,)), "after hosts were not restored: 0 trials"),
    ],
)
def test_a_resumption_is_reported_with_what_it_came_after(
    end: Ending | None, expected: str, tmp_path: Path
) -> None:
    """When, why, and how many trials it ran."""
    assert f"{AGAIN.started_at}, {expected}" == rows(twice(tmp_path, end))["resumed"]


def test_what_else_a_session_did_is_reported(tmp_path: Path) -> None:
    """A torn line, another udpbench, and trials that were run again."""
    begin = replace(AGAIN, udpbench="0.2.0")
    session_rows = rows(twice(tmp_path, None, record(), begin=begin, torn=b'{"kind'))
    assert (
        f"{AGAIN.started_at}, after its process died, an incomplete line of 6B was removed: "
        "1 trial, by udpbench 0.2.0"
    ) == session_rows["resumed"]
    assert "1, and 1 that failed and was run again" == session_rows["trials"]


def test_a_run_of_two_versions_names_both(tmp_path: Path) -> None:
    """One median may hold trials of each."""
    begin = replace(AGAIN, udpbench="0.2.0")
    run = twice(tmp_path, None, record(), begin=begin)
    assert (
        "0.1.0 and 0.2.0; a median may mix their trials, so repeat the run with one of them"
        == rows(run)["udpbench"]
    )
    assert "0.1.0 and 0.2.0" == run_data(run)["version"]


@pytest.mark.parametrize(("version", "ran"), [("0.1.0", [record()]), ("0.2.0", [])])
def test_a_version_that_ran_no_other_trials_is_not_named(
    version: str, ran: list[TrialRecord], tmp_path: Path
) -> None:
    """However often the run was resumed."""
    run = twice(tmp_path, None, *ran, begin=replace(AGAIN, udpbench=version))
    assert ("0.1.0", "0.1.0") == (rows(run)["udpbench"], run_data(run)["version"])


STAYS = RecordedError("RestoreError", "mtu stays", "right")


@pytest.mark.parametrize(
    "end",
    [
        COMPLETE,
        Ending("then", "interrupted"),
        None,
        replace(COMPLETE, restore_errors=(STAYS,)),
        Ending("then", "failed", LOST),
        Ending("then", "interrupted", lost=(LOST,)),
        Ending("then", "failed", LOST, lost=(LOST,)),
        Ending("then", "failed", LOST, lost=(LOST,), seen_restored=("left",)),
        Ending("then", "failed", LOST, (STAYS,), lost=(LOST,)),
    ],
)
def test_it_is_said_whether_hosts_were_put_back(
    end: Ending | None, tmp_path: Path, golden: Golden
) -> None:
    """Nothing is claimed that nobody knows."""
    golden.check(run_data(stored(tmp_path, ending=end))["restored"])


def test_a_run_on_hosts_of_their_own_names_their_lab(tmp_path: Path) -> None:
    """A command that a user can type; the built-in lab's needs no lab."""
    real = record(built_in_lab=False)
    run = stored(tmp_path, [real], ending=None, lab_path="my hosts.yaml")
    assert "`udpbench restore --lab 'my hosts.yaml'`" in restored(run)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COMPLETE, COMPLETE),
        (None, COMPLETE),
        (replace(COMPLETE, restore_errors=(STAYS,)), Ending("then", "failed", REFUSED)),
        (None, None),
    ],
)
def test_earlier_sessions_count_until_another_one_has_begun_on_the_hosts(
    first: Ending | None, second: Ending | None, tmp_path: Path, golden: Golden
) -> None:
    """Hosts where something is left refuse a run, so one that began found nothing."""
    golden.check(restored(twice(tmp_path, first, end_again=second)))


def test_a_session_that_ran_a_trial_had_begun(tmp_path: Path, golden: Golden) -> None:
    """What became of it later is its own affair."""
    run = twice(tmp_path, None, record(), end_again=Ending("then", "failed", LOST))
    golden.check(restored(run))


def test_json_has_every_session(tmp_path: Path) -> None:
    """One without an end has neither a time nor a status of it."""
    first, second = as_json(twice(tmp_path, None, record()))["sessions"]
    assert {
        "started_at": "2026-11-21T08:00:00.000+00:00",
        "finished_at": None,
        "status": None,
        "udpbench": "0.1.0",
        "trials": 1,
    } == first
    assert (AGAIN.started_at, COMPLETE.finished_at, "complete", 1) == (
        second["started_at"],
        second["finished_at"],
        second["status"],
        second["trials"],
    )


def test_a_document_of_a_resumed_run_is_made(tmp_path: Path) -> None:
    """Its trials are those of one run, and its rows fit the page."""
    run = twice(tmp_path / "run", None, record())
    (page,) = write([run], tmp_path, ["pdf"])
    assert page.read_bytes().startswith(b"%PDF")


def test_a_question_has_no_line_of_its_own(tmp_path: Path) -> None:
    """It stands before its answer, and what to type."""
    question = "Is it fast?\nwhat to type\n\n    curl x | sh"
    run = stored(tmp_path, [record()], experiment(points=[trial()], question=question))
    lines = [line.plain for line in closing(run, 80)]
    assert "Is it fast? what to type curl x | sh" in lines


def test_a_recorded_error_has_no_line_of_its_own(tmp_path: Path) -> None:
    """Whoever wrote the run folder could have something typed."""
    error = RecordedError("AgentLost", "gone\nto repeat it: curl x | sh", "left")
    run = stored(tmp_path, ending=Ending("", "failed", error, (error,)))
    assert 2 == len([line for line in ended(run) if "; to repeat it: curl" in line])
    assert not [line for line in ended(run) if "\n" in line]
