"""What a run says of one of its points, and of those that it is compared with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import LOAD_MS, expectation, experiment, failed, hog, record, shared, trial
from control.fake import World, go
from golden import Golden
from report.stored import COMPLETE, stored

from udpbench.analysis.points import Point
from udpbench.analysis.search import next_search_trial
from udpbench.control.run import Outcome, RunOptions
from udpbench.definition.load import load_experiment_data
from udpbench.errors import CannotTell, InputError, RecordError, StoreError
from udpbench.folder import Folder, lock_file
from udpbench.gate import (
    Answer,
    Baseline,
    Gate,
    _alone,
    _reasons,
    answer,
    restricted,
    stored_results,
)
from udpbench.model.experiment import PointPair, Search
from udpbench.model.record import Finding, RecordedError, TrialRecord
from udpbench.model.result import Result
from udpbench.records.run import Ending, Run
from udpbench.records.writer import RunWriter

ONE, TWO = trial("one"), trial("two")
LOST = RecordedError("AgentLost", "gone", "right")
HELD = expectation("received_packets[two]", ">=", "received_packets[one]")
ALL = expectation("unaccounted", "==", "0")


def answer_for(
    folder: Path,
    first: Sequence[TrialRecord],
    second: Sequence[TrialRecord] = (record(of=TWO),),
    ending: Ending = COMPLETE,
) -> Answer:
    """Return the answer of the point ``two``, which is compared with ``one``."""
    declared = experiment(HELD, ALL, points=[ONE, TWO])
    return answer(stored(folder, [*first, *second], declared, ending=ending), "two", 80)


def test_a_point_passes_where_all_that_it_is_compared_with_is_sound(tmp_path: Path) -> None:
    """Nothing is told then."""
    reply = answer_for(tmp_path, [record(of=ONE)])
    assert ("passed", "", "") == (reply.outcome, reply.why, reply.shown)


def test_a_failed_trial_of_a_point_that_it_is_compared_with_fails_it(tmp_path: Path) -> None:
    """As the whole run fails; a median of fewer trials is not what was asked for."""
    reply = answer_for(tmp_path, [record(of=ONE), failed(of=replace(ONE, repetition=2))])
    assert "failed" == reply.outcome
    assert "compared with one: right: failed: it died [one #2]" == reply.why
    assert "results" in reply.shown


def test_an_invalid_trial_of_a_point_that_it_is_compared_with_fails_it(tmp_path: Path) -> None:
    """The comparison holds over what is left, and is not to be believed."""
    invalid = record(1000, 990, of=replace(ONE, repetition=2))
    reply = answer_for(tmp_path, [record(of=ONE), invalid])
    assert "cannot tell" == reply.outcome
    assert reply.why.startswith("could not be judged on this machine: compared with one: ")


def test_rates_that_are_struck_out_leave_what_is_held_to_them_unjudged(tmp_path: Path) -> None:
    """That is no pass, and no verdict of the program: who took the CPU is told, and what to do."""
    declared = experiment(expectation("delivered_pps", ">", "1"), points=[ONE])
    busy = replace(shared(LOAD_MS + 400, hog(400)), trial=ONE)
    reply = answer(stored(tmp_path, [busy], declared, ending=COMPLETE), "one", 80)
    assert "cannot tell" == reply.outcome
    why = (
        "could not be judged on this machine: machine: CPU 0: other programs used CPUs of the load"
    )
    assert reply.why.startswith(why)
    assert "stop them" in reply.why.splitlines()[0]


def test_a_run_that_ended_before_the_point_to_compare_with_fails_it(tmp_path: Path) -> None:
    """Its own trials alone do not answer."""
    reply = answer_for(tmp_path, [], ending=Ending("then", "failed", LOST))
    assert ("failed", "the run ended early: right: gone") == (reply.outcome, reply.why)


def test_a_comparison_with_a_skipped_point_is_not_a_pass(tmp_path: Path) -> None:
    """Another expectation that holds does not answer it."""
    reply = answer_for(tmp_path, [failed("skipped", "needs 8 CPUs", of=ONE)])
    assert "skipped" == reply.outcome
    assert "cannot be compared with one: skipped: needs 8 CPUs" == reply.why


def test_a_skipped_point_to_compare_with_hides_no_failure(tmp_path: Path) -> None:
    """What the point itself misses is told."""
    skipped = failed("skipped", "needs 8 CPUs", of=ONE)
    reply = answer_for(tmp_path, [skipped], [record(1000, 990, of=TWO)])
    assert "failed" == reply.outcome
    assert "expected: unaccounted == 0" in reply.why


def test_a_point_that_cannot_be_tried_is_skipped_whatever_it_is_compared_with(
    tmp_path: Path,
) -> None:
    """It is not this host's answer to it that the other one failed."""
    reply = answer_for(tmp_path, [failed(of=ONE)], [failed("skipped", "needs 8 CPUs", of=TWO)])
    assert ("skipped", "right: skipped: needs 8 CPUs") == (reply.outcome, reply.why)


def test_a_gate_of_which_nothing_was_measured_fails(tmp_path: Path) -> None:
    """Neither point could be tried, and no need of theirs says so."""
    reply = answer_for(
        tmp_path,
        [failed("unavailable", "no such CPU", of=ONE)],
        [failed("unavailable", "no CPU 7", of=TWO)],
    )
    assert "failed" == reply.outcome
    assert ["nothing was measured", "right: skipped: no CPU 7"] == reply.why.splitlines()
    assert "nothing was measured: all trials were skipped: no such CPU" in reply.shown


def test_a_point_that_lacks_something_beside_others_is_skipped(tmp_path: Path) -> None:
    """So is one whose need is not met where the others lack something."""
    reply = answer_for(
        tmp_path / "a", [record(of=ONE)], [failed("unavailable", "no CPU 7", of=TWO)]
    )
    assert ("skipped", "right: skipped: no CPU 7") == (reply.outcome, reply.why)
    unmet = failed("skipped", "needs 8 CPUs", of=TWO)
    reply = answer_for(tmp_path / "b", [failed("unavailable", "no CPU 7", of=ONE)], [unmet])
    assert ("skipped", "right: skipped: needs 8 CPUs") == (reply.outcome, reply.why)


def test_a_gate_whose_folder_cannot_be_made_says_so(tmp_path: Path, golden: Golden) -> None:
    """With the option that names another."""
    (tmp_path / "file").touch()
    gate = Gate(("local",), tmp_path / "file", "session", 1)
    with golden.raises(RecordError):
        gate.run(experiment(), "test", (), lambda _: None)


@pytest.mark.parametrize("of_stranger", ["mode", "owner", "between"])
def test_a_gate_believes_no_run_that_others_may_have_written(
    of_stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be guessed; whoever made it first would say what passes."""
    gate = Gate(("local",), tmp_path, "session", 1)
    forged = gate.folder_of("test")

    def forge(place: Path) -> None:
        stored(place, [record(of=ONE)], experiment(ALL, points=[ONE]), ending=COMPLETE)

    if of_stranger == "between":
        closed = Folder.close_to_others
        monkeypatch.setattr(Folder, "close_to_others", lambda held: (forge(forged), closed(held)))
    else:
        forge(forged)
    if of_stranger == "mode":
        forged.chmod(0o777)
    if of_stranger == "owner":
        monkeypatch.setattr("udpbench.folder.other_writers", lambda _: ["belongs to user 1234"])
    with pytest.raises(RecordError, match="so a run in it may be forged; name another with --udp"):
        gate.run(experiment(), "test", (), lambda _: None)


def test_what_a_gate_makes_is_its_users_whatever_the_umask_is(tmp_path: Path) -> None:
    """So the other processes of the session may believe what is in it."""
    gate = Gate(("local",), tmp_path, "session", 1)
    folder = gate.folder_of("test")
    folder.mkdir()
    folder.chmod(0o777)
    with _alone(folder):
        assert 0 == folder.stat().st_mode & 0o022


def test_who_may_read_a_gates_folder_holds_it_not_up(tmp_path: Path) -> None:
    """Whoever may open it may lock it, too."""
    gate = Gate(("local",), tmp_path, "session", 1)
    folder = gate.folder_of("test")
    stored(folder, [record(of=ONE)], experiment(ALL, points=[ONE]), ending=COMPLETE)
    with Folder.open(folder) as other:
        assert lock_file(other.fd)
        assert 1 == len(gate.run(experiment(), "test", (), lambda _: None).records)


def test_a_gate_reads_the_folder_that_it_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may rename what they do not own, another may take its place meanwhile."""
    gate = Gate(("local",), tmp_path, "session", 1)
    folder = gate.folder_of("test")
    own = experiment(ALL, points=[ONE])
    stored(folder, [record(of=ONE)], own, ending=COMPLETE)

    def lock(*_: object, **__: object) -> None:
        folder.rename(tmp_path / "aside")
        stored(folder, [], own, ending=COMPLETE)

    monkeypatch.setattr("udpbench.gate.lock_file", lock)
    assert 1 == len(gate.run(own, "test", (), lambda _: None).records)


def test_a_gate_tells_what_could_not_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """And not that its folder has no run."""

    def deleted(_: object, __: object, writer: RunWriter, *___: object, **____: object) -> Outcome:
        shutil.rmtree(writer.folder)
        return Outcome(0, StoreError("smoke#1 ran and could not be stored"))

    monkeypatch.setattr("udpbench.gate.run", deleted)
    gate = Gate(("local",), tmp_path, "session", 10**9)
    with golden.raises(StoreError):
        gate._run(experiment(), gate.labs, tmp_path / "run", (), lambda _: None)


def test_a_run_of_a_gate_has_the_header_of_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lab and working folder are there, as `udpbench run` stores them; each has a seed of its own."""
    all_options: list[RunOptions] = []

    def ran(*arguments: object, **_: object) -> Outcome:
        all_options.extend(argument for argument in arguments if isinstance(argument, RunOptions))
        return Outcome(0)

    monkeypatch.setattr("udpbench.gate.run", ran)
    gate = Gate(("local",), tmp_path, "session", 10**9)
    first, second = (
        gate.run(experiment(), name, ("pytest",), lambda _: None).header for name in "ab"
    )
    assert [options.seed for options in all_options] == [first.seed, second.seed]
    assert first.seed != second.seed
    assert str(Path.cwd()) == first.working_folder
    assert gate.labs[0].path == first.lab_path
    assert ("pytest",) == first.command


# --- baselines -----------------------------------------------------------------------------------

RATES = (2000, 2010, 1990, 2005, 1995, 2015, 1985)


def measured(folder: Path, factor: float = 1.0, question: str = "Does it arrive?") -> Run:
    """Return a run of one point with these rates, times a factor."""
    records = [record(round(factor * pps), of=trial("", n)) for n, pps in enumerate(RATES, 1)]
    return stored(folder, records, experiment(question=question, repetitions=7), ending=COMPLETE)


@pytest.mark.parametrize(
    ("factor", "question", "outcome"),
    [
        (1.0, "Does it arrive?", "passed"),
        (1.5, "Does it arrive?", "passed"),
        (0.9, "Does it arrive?", "failed"),
        (0.97, "Does it arrive?", "cannot tell"),
        (0.9, "Is it late?", "passed"),
    ],
)
def test_a_point_is_compared_with_its_baseline(
    factor: float, question: str, outcome: str, tmp_path: Path, golden: Golden
) -> None:
    """It fails if it is proven to be worse, and passes if that is excluded."""
    baseline = Baseline((measured(tmp_path / "base"),), margin=0.03)
    reply = answer(measured(tmp_path / "run", factor, question), "", 80, baseline)
    assert outcome == reply.outcome
    if outcome != "passed":
        golden.check(reply.why)


def test_what_fails_anyway_is_not_compared(tmp_path: Path) -> None:
    """Its own fault is the reason."""
    baseline = Baseline((measured(tmp_path / "base"),), margin=0.03)
    reply = answer(stored(tmp_path / "run", [failed()], experiment()), "", 80, baseline)
    assert ("failed", False) == (reply.outcome, "against" in reply.why)


def test_a_baseline_on_other_hosts_is_none(tmp_path: Path) -> None:
    """The built-in lab says nothing of hardware."""
    base = measured(tmp_path / "base")
    real = replace(base, records=tuple(replace(r, built_in_lab=False) for r in base.records))
    reply = answer(measured(tmp_path / "run", 0.9), "", 80, Baseline((real,), margin=0.03))
    assert "passed" == reply.outcome


def test_several_baselines_are_taken_together(tmp_path: Path) -> None:
    """What lies between them is no worse."""
    runs = measured(tmp_path / "x"), measured(tmp_path / "y", 0.9)
    reply = answer(measured(tmp_path / "run", 0.95), "", 80, Baseline(runs, margin=0.03))
    assert "cannot tell" == reply.outcome


@pytest.mark.parametrize(
    ("bases", "outcome", "scattered"),
    [
        ((1.0, 1.0), "failed", False),
        ((1.0, 1.0, 1.0), "failed", True),
        ((1.0, 0.9, 1.1), "cannot tell", True),
    ],
)
def test_the_scatter_between_three_baselines_counts(
    bases: Sequence[float], outcome: str, scattered: bool, tmp_path: Path
) -> None:
    """Runs that scatter by more than the change say nothing of it; of two nobody knows."""
    runs = tuple(measured(tmp_path / str(n), factor) for n, factor in enumerate(bases))
    reply = answer(measured(tmp_path / "run", 0.85), "", 80, Baseline(runs, margin=0.03))
    assert outcome == reply.outcome
    assert scattered != ("does not include scatter between runs" in reply.why)


def test_a_baseline_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """It would look as if runs did not scatter."""
    measured(tmp_path / "x")
    same = (tmp_path / "x", tmp_path / "y" / ".." / "x")
    gate = Gate(("local",), tmp_path, "session", 1, baselines=same, margin=0.03)
    (tmp_path / "y").mkdir()
    assert gate.baseline is not None
    assert [tmp_path / "x"] == [run.folder.resolve() for run in gate.baseline.runs]


def test_a_baseline_wants_a_margin(tmp_path: Path, golden: Golden) -> None:
    """How much worse is too much is for the user to say."""
    gate = Gate(("local",), tmp_path, "session", 1, baselines=(tmp_path,))
    with golden.raises(InputError):
        _ = gate.baseline


# --- stored results in a test --------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "worse"), [(0.9, True), (1.0, False)])
def test_a_result_may_be_worse_than_a_stored_one(
    factor: float, worse: bool, tmp_path: Path
) -> None:
    """By more than the margin."""
    measured(tmp_path / "base")
    measured(tmp_path / "run", factor)
    base, result = (stored_results(tmp_path / name)[""] for name in ("base", "run"))
    assert worse is result.worse_than(base, margin="3%")


@pytest.mark.parametrize(
    ("bases", "worse"), [((1.0, 1.001, 0.999), True), ((1.0,), True), ((0.9, 0.901, 0.899), False)]
)
def test_a_result_may_be_worse_than_several(
    bases: Sequence[float], worse: bool, tmp_path: Path
) -> None:
    """Taken together, and from three on with what they scatter by."""
    measured(tmp_path / "run", 0.9)
    for n, factor in enumerate(bases):
        measured(tmp_path / str(n), factor)
    result, *stored_bases = (
        stored_results(tmp_path / name)[""] for name in ("run", *map(str, range(len(bases))))
    )
    assert worse is result.worse_than(*stored_bases, margin="3%")


def test_bases_that_scatter_by_more_tell_nothing(tmp_path: Path) -> None:
    """The test is skipped."""
    measured(tmp_path / "run", 0.85)
    for n, factor in enumerate((1.0, 0.9, 1.1)):
        measured(tmp_path / str(n), factor)
    result, *bases = (stored_results(tmp_path / name)[""] for name in ("run", "0", "1", "2"))
    with pytest.raises(CannotTell):
        result.worse_than(*bases, margin="3%")


def test_points_of_one_run_are_compared_by_block(tmp_path: Path) -> None:
    """A drift that would hide a difference between two runs falls on both."""
    drift = [1000, 1500, 2000, 2500, 3000, 3500]
    points = ONE, TWO
    records = [
        record(round(pps * factor), of=replace(point, repetition=n))
        for n, pps in enumerate(drift, 1)
        for point, factor in zip(points, (1.0, 0.9), strict=True)
    ]
    stored(tmp_path, records, experiment(points=points, repetitions=6))
    base, two = stored_results(tmp_path).values()
    assert two.worse_than(base, margin="3%")
    assert not base.worse_than(two, margin="3%")
    with pytest.raises(CannotTell):
        replace(two, run="another").worse_than(base, margin="3%")


def test_a_run_of_two_experiments_is_no_result(tmp_path: Path, golden: Golden) -> None:
    """A point's name alone does not say which is meant."""
    stored(tmp_path, [], *(replace(experiment(), name=name) for name in "xy"))
    with golden.raises(RecordError):
        stored_results(tmp_path)


def test_a_comparison_is_run_with_the_point_that_is_judged_by_it() -> None:
    """Selected alone, the base has its repetitions; the other brings it along, and both have blocks."""
    names = ("one", "two", "three")
    pair = PointPair("one", "two", "delivered_pps", 0.03)
    plain = experiment(points=[trial(name) for name in names], compare=(pair,), repetitions=2)
    assert () == restricted(plain, ["one", "three"]).compare
    assert (2, 2) == restricted(plain, ["one"]).trials_of("one")
    assert (pair,) == restricted(plain, ["two"]).compare


COMPARED = PointPair("one", "two", "delivered_pps", 0.03)


def by_blocks(folder: Path, factor: float, point: str, bad: int = 0, skip: bool = False) -> Answer:
    """Return the answer of a point of two that are compared, the base with invalid trials."""
    records = [
        record(round(pps * by), *[round(pps * by) - 900] * spoilt, of=replace(own, repetition=n))
        for n, pps in enumerate(RATES + RATES[:bad], 1)
        for own, by in ((ONE, 1.0), (TWO, factor))
        for spoilt in [own is ONE and n <= bad]
    ]
    if skip:
        lacking = [failed("skipped", "needs", of=replace(ONE, repetition=n)) for n in range(1, 8)]
        records = [*lacking, *(each for each in records if each.trial.point == "two")]
    declared = experiment(points=[ONE, TWO], compare=(COMPARED,))
    return answer(stored(folder, records, declared, ending=COMPLETE), point, 80)


@pytest.mark.parametrize(
    ("factor", "point", "outcome"),
    [(0.9, "two", "failed"), (0.9, "one", "passed"), (1.1, "two", "passed")],
)
def test_a_point_that_is_worse_than_its_base_fails(
    factor: float, point: str, outcome: str, tmp_path: Path
) -> None:
    """The base does not; the reason has the verdict."""
    reply = by_blocks(tmp_path, factor, point)
    assert (outcome, outcome == "failed") == (reply.outcome, "slower by" in reply.why)


def test_a_point_whose_base_is_skipped_is_skipped(tmp_path: Path) -> None:
    """The comparison was not made."""
    assert "skipped" == by_blocks(tmp_path, 1.1, "two", skip=True).outcome


def test_a_search_without_a_rate_is_summed_up_by_its_bounds(tmp_path: Path) -> None:
    """Not by a dash."""
    point = trial("one", search=Search())
    first = next_search_trial(point, [])
    assert first is not None
    declared = experiment(points=[point])
    reply = answer(stored(tmp_path, [record(of=first)], declared, ending=COMPLETE), "one", 80)
    assert (
        "the rate with at most 0.1% and 0% lost is not known: no load is decided" in reply.summary
    )


def test_a_bound_is_summed_up_as_a_bound(tmp_path: Path) -> None:
    """As a single rate it would look like the answer."""
    plain = {"question": "How many?", "search": "quick", "warmup": "0s"}
    _, run = go(World(capacity_pps=10**9), tmp_path / "run", load_experiment_data(plain, "one"))
    assert answer(run, "", 80).summary.startswith("at least ")


def test_a_search_that_did_not_end_says_why_it_fails() -> None:
    """Its warning is the reason; of a search that knows its rate a warning is none."""
    late = Finding("warning", "the search took longer than search.within", "search")
    results = [
        Result(ONE, "done", True, (late,), unfinished=unfinished) for unfinished in (True, False)
    ]
    reasons = [_reasons(Point("example", "one", (result,))) for result in results]
    assert [[str(late)], []] == reasons


def test_a_reason_of_many_trials_stands_once() -> None:
    """With the range of its values, and the CPUs together; with its trials if not all have it."""
    others = Finding("struck", "other programs used CPUs of the load", "vm: CPU 0", "48.00 %")
    on_both = (others, replace(others, where="vm: CPU 1", value="50.00 %"))
    noted = Finding("note", "the sender stalled", "left")
    short = Finding("invalid", "sender-bound", "left", "98.00 %")
    results = [
        Result(replace(ONE, repetition=1), "done", True, (*on_both, noted)),
        Result(replace(ONE, repetition=2), "done", False, (short, *on_both)),
    ]
    first, second = _reasons(Point("example", "one", tuple(results)))
    assert "left: sender-bound (98.00 %) [one #2]" == first
    assert "vm: CPUs 0, 1: other programs used CPUs of the load (48.00 – 50.00 %)" == second


@pytest.mark.parametrize(("point", "outcome"), [("one", "passed"), ("two", "passed")])
def test_an_invalid_trial_whose_block_was_replaced_fails_nothing(
    point: str, outcome: str, tmp_path: Path
) -> None:
    """As the exit code of the run."""
    assert outcome == by_blocks(tmp_path, 1.1, point, bad=1).outcome
