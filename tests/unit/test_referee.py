"""The referee's arithmetic, without a lab: what is right, what is wrong, and what was run already."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from udpbench.definition.load import load_experiment_data

sys.path.append(str(Path(__file__).parents[1] / "referee"))

import planting
import referee
from causes import ANY, BUFFER, CAUSES, data
from scoring import Judged, first_causes, is_disturbed, is_void, judge, shortfalls

WORDS = {
    "reader_sleeps": frozenset({"reader_waits"}),
    "rule_ingress": frozenset({"unseen_drop", "invalid:does not balance"}),
    "reader_stopped": frozenset({"reader_stall"}),
}


def said(name: str, certainty: str = "certain", **more: Any) -> dict[str, Any]:
    """Return an entry of a diagnosis."""
    return {"name": name, "certainty": certainty, "remedy": "", **more}


def record(*answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a case of a sleeping reader with these answers; ``more`` changes its trial."""
    trial = {
        "planted": True,
        "status": "done",
        "valid": True,
        "invalid": [],
        "reason": None,
        "loss": 0.5,
        "others_share": 0.0,
        "answers": list(answers),
    }
    return {
        "label": "reader_sleeps",
        "number": 0,
        "healthy": False,
        "must_not": BUFFER,
        "shares": {"reader_sleeps": 1.0},
        "answer": {**trial, **more},
    }


def verdict(case: dict[str, Any]) -> tuple[str, bool, bool]:
    """Return verdict, whether it was certain and right, and whether anything was certain and wrong."""
    judged = judge(case, WORDS)
    return judged.verdict, judged.certain, judged.certain_wrong


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([said("reader_waits")], ("right", True, False)),
        ([said("reader_waits", "likely")], ("right", False, False)),
        ([said("small_buffer", "likely")], ("wrong", False, False)),
        ([said("small_buffer")], ("wrong", False, True)),
        ([said("unknown", "to be tested")], ("unknown", False, False)),
        ([], ("unknown", False, False)),
        ([said("reader_waits", remedy="Raise receive.buffer.")], ("wrong", False, True)),
        ([said("reader_waits", sets=["receive.buffer=4MiB"])], ("wrong", False, True)),
        ([said("reader_waits", remedy="No buffer helps.")], ("right", True, False)),
        ([said("reader_waits"), said("rules", share=0.3)], ("right", True, True)),
        ([said("reader_waits"), said("rules", share=0.1)], ("right", True, False)),
    ],
)
def test_a_first_answer_is_right_by_name_and_remedy(
    answers: list[dict[str, Any]], expected: tuple[str, bool, bool]
) -> None:
    """A first answer is right by name and remedy."""
    assert expected == verdict(record(*answers))


def test_the_first_answer_to_two_causes_is_the_larger_or_either_of_equals() -> None:
    """The first answer to two causes is the larger or either of equals."""
    case = record(said("reader_stall"))
    case["label"] = "reader_sleeps+reader_stopped"
    answers = []
    for share in (0.9, 0.5):
        case["shares"] = {"reader_sleeps": share, "reader_stopped": 1 - share}
        answers.append(verdict(case)[0])
    assert ["wrong", "right"] == answers


def test_an_invalid_trial_is_right_only_for_the_true_reason() -> None:
    """An invalid trial is right only for the true reason."""
    case = record(said("unknown", ""), valid=False, invalid=["the ledger does not balance"])
    assert "unknown" == verdict(case)[0]
    case["shares"] = {"rule_ingress": 1.0}
    assert ("right", False, False) == verdict(case)
    case["answer"]["answers"] = [said("small_buffer")]
    assert ("right", False, True) == verdict(case)


def test_a_cause_without_words_is_undecided() -> None:
    """A cause without words is undecided."""
    case = record(said("nothing"))
    case["shares"] = {"healthy_rate": 1.0}
    assert "undecided" == verdict(case)[0]


def test_a_plant_that_did_not_take_is_void() -> None:
    """A plant that did not take is void."""
    voids = [
        record(loss=0.001),
        record(planted=False),
        record(status="skipped", loss=None),
        {**record(loss=0.001), "healthy": True},
        {**record(), "without": [{"planted": True, "loss": None}]},
    ]
    assert [True] * 5 == [is_void(case) for case in voids]
    assert not is_void(record())
    assert not is_void(record(status="failed", loss=None))


def test_a_case_in_which_others_used_the_cpus_is_disturbed() -> None:
    """A case in which others used the CPUs is disturbed."""
    assert is_disturbed(record(others_share=0.1))
    assert is_disturbed({**record(), "without": [{"others_share": 0.1}]})
    assert not is_disturbed(record())


def test_the_share_of_a_part_is_what_is_not_lost_without_it() -> None:
    """The share of a part is what is not lost without it; a single cause has all."""
    causes = {cause.label: cause for cause in CAUSES}
    pair = causes["rule_every_nth+reader_slow"]
    rests = [{"loss": 0.4}, {"loss": 0.1}]
    shares = referee.shares_of(pair, 0.5, rests)
    assert {"rule_every_nth": 0.2, "reader_slow": 0.8} == pytest.approx(shares)
    assert {"reader_sleeps": 1.0} == referee.shares_of(causes["reader_sleeps"], 0.5, [])


def test_steps_are_done_and_undone_in_their_order() -> None:
    """Steps are done and undone at their times, those before the traffic as well."""
    happened: list[str] = []

    def action(name: str) -> planting.Action:
        @contextmanager
        def act(site: planting.Site) -> Iterator[None]:
            happened.append(name)
            yield
            happened.append(f"no {name}")

        return act

    site = planting.Site({}, Path())
    plan = [
        planting.Step(action("late"), at_s=0.02, for_s=0.06),
        planting.Step(action("short"), at_s=0.04, for_s=0.02),
        planting.Step(action("lasting"), at_s=0.0),
    ]
    with subprocess.Popen(["sleep", "60"]) as run, ExitStack() as stack:
        steps = [(step, stack.enter_context(ExitStack())) for step in plan]
        planting.follow(steps, site, run, time.monotonic())
        run.kill()
    expected = ["lasting", "late", "short", "no short", "no late", "no lasting"]
    assert expected == happened


def test_a_step_of_a_run_that_has_ended_is_not_done() -> None:
    """A run that ends early is no plant, and what is awaited does not hang."""
    with subprocess.Popen(["true"]) as run, pytest.raises(planting.Ended, match="a step"):
        planting.wait_for("a step", run, lambda: False)
    with subprocess.Popen(["sleep", "60"]) as run:
        with pytest.raises(TimeoutError, match="a step"):
            planting.wait_for("a step", run, lambda: False, limit_s=0)
        run.kill()


@pytest.mark.parametrize(
    ("repeated", "expected"),
    [
        (None, "none"),
        ({"code": 2}, "failed"),
        ({"code": 0, "loss": 0.45}, "failed"),
        ({"code": 0, "loss": 0.1}, "helped"),
    ],
)
def test_a_remedy_fails_if_refused_or_without_effect(
    repeated: dict[str, Any] | None, expected: str
) -> None:
    """A remedy fails if refused or without effect."""
    case = {**record(said("reader_waits")), "repeated": repeated}
    assert expected == judge(case, WORDS).remedy


def test_the_bars_are_those_of_two_hundred_cases() -> None:
    """The bars are those of two hundred cases."""
    right = Judged("a", "right", True, False, "none", "")
    probable = Judged("a", "right", False, False, "none", "")
    wrong = Judged("a", "wrong", False, False, "none", "")
    unknown = Judged("a", "unknown", False, False, "none", "")
    failed = Judged("a", "right", False, False, "failed", "")
    worst = [*[right] * 120, *[wrong] * 10, *[unknown] * 10, *[failed] * 5, *[probable] * 55]
    assert [] == shortfalls(worst)
    more = [
        ("'certain' and wrong", Judged("a", "right", True, True, "none", "")),
        ("first cause wrong", wrong),
        ("does not know", unknown),
        ("remedies that failed", failed),
    ]
    for bar, item in more:
        assert [bar] == [line.split(":")[0] for line in shortfalls([*worst[:-1], item])]
    assert ["certain and right"] == [
        line.split(":")[0] for line in shortfalls([*worst[1:], probable])
    ]


def test_what_the_folder_has_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the folder has is not run again."""
    runs: list[str] = []

    def settled(seed: str, cause: Any, number: int, program: Path, busy: bool) -> dict[str, Any]:
        runs.append(cause.label)
        return {"label": cause.label, "number": number, "answer": {}}

    monkeypatch.setattr(referee, "settled", settled)
    monkeypatch.setattr(referee, "build", lambda folder: folder / "program")
    cases, file = referee.drawn("seed", 3), tmp_path / "cases.jsonl"
    begun = {"label": cases[0][0].label, "number": 0}
    file.write_text(json.dumps(begun) + "\n" + '{"label": "cut o')
    list(referee.run_missing("seed", cases, file, time.monotonic() + 60, False))
    assert [case.label for case, _ in cases[1:]] == runs
    assert 3 == len(referee.stored(file))
    list(referee.run_missing("seed", cases, file, time.monotonic() + 60, False))
    assert 2 == len(runs)


def test_no_case_begins_after_the_time_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No case begins after the time that was given."""
    monkeypatch.setattr(referee, "build", lambda folder: folder / "program")
    cases = referee.drawn("seed", 3)
    assert [] == list(referee.run_missing("seed", cases, tmp_path / "f", time.monotonic(), False))


def test_a_seed_draws_the_same_cases_of_every_cause() -> None:
    """A seed draws the same cases of every cause."""
    cases = referee.drawn("seed", 200)
    assert cases == referee.drawn("seed", 200) != referee.drawn("other", 200)
    assert {cause.label for cause in CAUSES} == {cause.label for cause, _ in cases}
    assert len(CAUSES) >= 25
    assert ["reader_sleeps"] * 2 == [c.label for c, _ in referee.drawn("s", 2, ["reader_sleeps"])]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.label)
def test_every_plan_is_an_experiment_that_udpbench_accepts(cause: Any) -> None:
    """Every plan is an experiment that udpbench accepts."""
    for number in range(4):
        chance = Random(f"{cause.label} {number}")
        load_experiment_data(dict(cause.draw(chance).data), cause.label)


def test_a_pair_without_a_part_is_the_other_with_the_same_numbers() -> None:
    """A pair without a part is the other with the same numbers."""
    (cause,) = [cause for cause in CAUSES if cause.label == "rule_every_nth+reader_slow"]
    whole, no_rule, no_work = (
        referee.plan_of("seed", cause, 0, leave=leave) for leave in (None, 0, 1)
    )
    assert (1, 0, 1) == tuple(len(plan.steps) for plan in (whole, no_rule, no_work))
    assert whole.data == no_rule.data
    assert whole.data["traffic"] == no_work.data["traffic"]
    assert "receive" not in no_work.data


def test_keys_of_several_parts_are_merged() -> None:
    """Keys of several parts are merged."""
    merged = data({"send": {"call": "send"}}, {"send": {"batch": 1}, "warmup": "1s"})
    assert {"call": "send", "batch": 1} == merged["send"]
    assert "1s" == merged["warmup"]
    assert ANY


def test_a_disturbed_case_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is run again by the next command, unless nobody minds."""

    def settled(seed: str, cause: Any, number: int, program: Path, busy: bool) -> dict[str, Any]:
        return {"label": cause.label, "number": number, "answer": {"others_share": 0.5}}

    monkeypatch.setattr(referee, "settled", settled)
    monkeypatch.setattr(referee, "build", lambda folder: folder / "program")
    cases, file = referee.drawn("seed", 2), tmp_path / "cases.jsonl"
    end_s = time.monotonic() + 60
    assert [] == list(referee.run_missing("seed", cases, file, end_s, False))
    assert "others used 50.0% of all CPUs" in capsys.readouterr().out
    assert 2 == len(list(referee.run_missing("seed", cases, file, end_s, True)))


def test_what_either_of_two_causes_would_drop_may_make_either_the_first() -> None:
    """With two in a row, the second drops a part of what the first no longer does."""
    assert ["a"] == first_causes({"shares": {"a": 0.7, "b": 0.3}})
    assert ["a", "b"] == first_causes({"shares": {"a": 0.5, "b": 0.4}})
    assert ["a", "b"] == first_causes({"shares": {"a": 0.45, "b": 0.27}})
    assert ["a"] == first_causes({"shares": {"a": 0.7, "b": 0.2}})
