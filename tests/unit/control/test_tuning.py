"""A tune from its file to its answer: its blocks, resumed, shown, and the hosts restored."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden

from control.fake import World, go, header, lab
from udpbench.commands.resume import ResumeOptions, reopen_run, why_not_resumed
from udpbench.control.run import RunOptions, run
from udpbench.control.schedule import remaining
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.errors import CANNOT_TELL, InputError, WorkerFailed
from udpbench.judged_run import chapters_of, judged
from udpbench.model.experiment import Experiment
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import Begin
from udpbench.records.writer import RunWriter
from udpbench.report.answers import answer
from udpbench.report.data_frames import frames
from udpbench.report.document import write
from udpbench.report.json_output import as_json
from udpbench.report.sessions import to_type
from udpbench.report.summary import not_run
from udpbench.report.tables import print_chapter
from udpbench.report.terminal import Terminal
from udpbench.tuning.derived_points import WITHIN_NS, asked, tuned
from udpbench.tuning.outcome import exit_code


def to_tune(within_ns: int = WITHIN_NS) -> Experiment:
    """Return an experiment whose loss is to become less."""
    plain = {
        "question": "What helps?",
        "traffic": {"rate": "1kpps"},
        "duration": "1s",
        "warmup": "0s",
    }
    experiments = [load_experiment_data(plain, "one")]
    (experiment,) = tuned(experiments, asked(experiments, None, "lost_packets", within_ns))
    return experiment


def short_of_memory() -> World:
    """Return agents of which the receiver's kernel drops a tenth of all, whatever is set."""
    drops = {"snmp.Udp.MemErrors": 100, "snmp.Udp.InErrors": 100, "snmp.Udp.RcvbufErrors": 0}
    return World(
        arriving=900,
        drop_counters={**drops, "socket.7.drops": 100},
        environment={"net.ipv4.udp_mem": "100\t200\t300"},
    )


def points(records: Sequence[TrialRecord]) -> list[str]:
    """Return the points of trials, in their order."""
    return [record.trial.point for record in records]


def test_a_tune_runs_its_blocks_and_restores_the_hosts(tmp_path: Path) -> None:
    """Three trials of the base, seven blocks with its one candidate, whose setting is applied."""
    world = short_of_memory()
    outcome, stored = go(world, tmp_path / "run", to_tune())
    assert (None, 17) == (outcome.error, len(stored.records))
    (candidate,) = set(points(stored.records)) - {"base"}
    assert ["base"] * 3 == points(stored.records[:3])
    assert (10, 7) == tuple(points(stored.records).count(name) for name in ("base", candidate))
    changes = [record.changes for record in stored.records if record.trial.point == candidate]
    assert all("net.ipv4.udp_mem" in str(each) for each in changes)
    assert "restore receiver" in world.words
    assert [] == remaining(stored.header.experiments, 1, stored.records)


def test_a_tune_is_resumed_where_it_ended(tmp_path: Path) -> None:
    """The same trials follow, in the same order."""
    _, whole = go(short_of_memory(), tmp_path / "whole", to_tune())
    order = [record.trial.name for record in whole.records]
    for stored in (2, 5, 8):
        folder = tmp_path / str(stored)
        writer = RunWriter.create(folder, header(to_tune()))
        for record in whole.records[:stored]:
            writer.write(record)
        writer.close()
        before = read_run(folder)
        writer = RunWriter.reopen(folder)
        writer.resume(before, Begin("2026-11-22T00:00:00", "0.1.0", ("udpbench",)))
        world = short_of_memory()
        run(
            before.header.experiments,
            lab(),
            writer,
            world.progress.append,
            RunOptions(seed=1),
            world.surroundings(),
            before.records,
        )
        assert order == [record.trial.name for record in read_run(folder).records]


def test_a_tune_whose_file_changed_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """As any run; with the file as it was, its first trials remain."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text("question: What helps?\ntraffic: {rate: 1kpps}\n")
    experiments = load_experiments(["one.yaml"])
    tunes = tuned(experiments, asked(experiments, None, "lost_packets"))
    lab = load_lab("local")
    stored_lab = {"lab_text": lab.text, "lab_path": lab.path}
    begun = replace(header(*tunes), working_folder=str(tmp_path), **stored_lab)
    RunWriter.create(tmp_path / "run", begun).close()
    with golden.raises(InputError):
        reopen_run(tmp_path / "run", ResumeOptions())
    resumed = reopen_run(tmp_path / "run", ResumeOptions(tune=True))
    resumed.writer.close()
    assert "" == why_not_resumed(resumed.run)
    typed = dict(to_type(resumed.run))["continue where it stopped"]
    assert f"udpbench tune --resume {tmp_path}/run" == typed
    assert ["one::base#1"] == [trial.name for trial in resumed.left]
    (tmp_path / "one.yaml").write_text("question: What helps?\ntraffic: {rate: 2kpps}\n")
    with golden.raises(InputError):
        reopen_run(tmp_path / "run", ResumeOptions(tune=True))


@pytest.mark.parametrize("sets", [["send.batch=8", "traffic.rate=1kpps"], ["traffic.ttl=9"]])
def test_a_tune_is_resumed_as_it_was_typed(
    sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """With the load of its --set, also if it is no tune without; with all else if typed again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text("question: What helps?\n")
    experiments = load_experiments(["one.yaml"], sets)
    metric = "lost_packets" if "traffic.rate=1kpps" in sets else "delivered_pps"
    tunes = tuned(experiments, asked(experiments, None, metric))
    lab = load_lab("local")
    stored_lab = {"lab_text": lab.text, "lab_path": lab.path}
    begun = replace(header(*tunes), working_folder=str(tmp_path), sets=tuple(sets), **stored_lab)
    RunWriter.create(tmp_path / "run", begun).close()
    if sets == ["traffic.ttl=9"]:
        with golden.raises(InputError):
            reopen_run(Path("run"), ResumeOptions(tune=True))
        reopen_run(Path("run"), ResumeOptions(tune=True, sets=sets)).writer.close()
    else:
        reopen_run(Path("run"), ResumeOptions(tune=True)).writer.close()


@pytest.mark.parametrize(
    "line",
    [
        "receive: {command: [./evil]}",
        "settings: {receiver: {mtu: 1400}}",
        "send: {batch: 0}",
    ],
)
def test_a_stored_text_that_is_not_the_files_is_not_tuned(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Every point that a tune tries comes from it, and from no point that is compared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text("question: What helps?\ntraffic: {rate: 1kpps}\n")
    experiments = load_experiments(["one.yaml"])
    (tune,) = tuned(experiments, asked(experiments, None, "lost_packets"))
    lab = load_lab("local")
    stored_lab = {"lab_text": lab.text, "lab_path": lab.path}
    evil = replace(tune, text=f"{tune.text}{line}\n")
    begun = replace(header(evil), working_folder=str(tmp_path), **stored_lab)
    RunWriter.create(tmp_path / "run", begun).close()
    with golden.raises(InputError):
        reopen_run(Path("run"), ResumeOptions(tune=True))


def test_a_candidate_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    """That it cannot be is an answer; nothing remains to be run."""
    world = short_of_memory()
    world.refusing = "sysctl"
    outcome, stored = go(world, tmp_path / "run", to_tune())
    assert None is outcome.error
    assert [4, 1] == [
        sum(r.status == status for r in stored.records) for status in ("done", "failed")
    ]
    assert [] == remaining(stored.header.experiments, 1, stored.records)
    (chapter,) = chapters_of(stored)
    assert chapter.tuning is not None
    assert chapter.tuning.ending is not None


def test_a_base_that_fails_is_run_again(tmp_path: Path) -> None:
    """As any trial that fails."""
    world = short_of_memory()
    world.raises("prepare receiver", WorkerFailed("it hangs", "receiver"))
    _, stored = go(world, tmp_path / "run", to_tune())
    assert "one::base#1" == remaining(stored.header.experiments, 1, stored.records)[0].name


def test_a_tune_is_shown(tmp_path: Path, golden: Golden) -> None:
    """In tables, as JSON and as frames: ladder and comparisons, and last its answer."""
    _, stored = go(short_of_memory(), tmp_path / "run", to_tune())
    (chapter,) = chapters_of(stored)
    out = io.StringIO()
    print_chapter(Terminal(file=out, width=100), chapter)
    text = out.getvalue()
    golden.check([line for line in text[: text.index("results")].splitlines() if line])
    assert answer(chapter).startswith(chapter.tuned.sentence if chapter.tuned else "-")
    tune = json.loads(json.dumps(as_json(stored)))["experiments"][0]["tune"]
    assert ("lost_packets", False, "") == (tune["metric"], tune["proven"], tune["recipe"])
    assert ["point", "changed", "gain"] == list(tune["rungs"][0])
    assert 17 == len(frames([stored]).trials)


def test_a_tune_without_time_for_a_try_is_shown_as_such(tmp_path: Path) -> None:
    """A try that was not begun stores no point, and the answer is the same as under way."""
    _, stored = go(short_of_memory(), tmp_path / "run", to_tune(5 * SECOND_NS))
    assert ["base"] * 3 == points(stored.records)
    (chapter,) = chapters_of(stored)
    answer = chapter.tuned
    assert answer is not None
    assert "nothing was tried. A try takes 7 blocks of 2 trials" in answer.sentence
    assert ((), (), "") == (answer.notes, chapter.comparisons, not_run(chapter))
    assert chapter.tuning is not None
    assert CANNOT_TELL == exit_code(chapter.tuning)


def test_a_tune_that_was_interrupted_before_its_first_try_is_not_complete(tmp_path: Path) -> None:
    """That no candidate is stored does not mean that there is none."""
    _, stored = go(short_of_memory(), tmp_path / "run", to_tune())
    (chapter,) = judged(stored.header.experiments, stored.records[:3])
    answer = chapter.tuned
    assert answer is not None
    assert "The tune is not complete: some of its trials are missing." == answer.sentence


def test_a_tune_has_its_chapter_in_the_report(tmp_path: Path) -> None:
    """The page has ladder and notes, and the document is set."""
    _, stored = go(short_of_memory(), tmp_path / "run", to_tune())
    write([stored], tmp_path / "report", ["html", "pdf"])
    page = (tmp_path / "report" / "report.html").read_text()
    assert "From base to recipe" in page
    assert "did not help" in page
    assert (tmp_path / "report" / "report.pdf").stat().st_size > 0
