"""Stored runs compared: block by block within one, point by point between two, or refused."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis import sampled
from analysis.build import experiment, facts, lossy, record, trial
from analysis.sampled import QUIET
from golden import Golden
from report.stored import stored

from udpbench.__main__ import main
from udpbench.commands.compare import (
    BETWEEN_RUNS,
    NOT_INTERLEAVED,
    Choice,
    beside,
    compare_runs,
    compare_within,
)
from udpbench.commands.verbs.run import _compared
from udpbench.definition.load import load_experiments
from udpbench.errors import InputError
from udpbench.metrics import margin_of
from udpbench.model.experiment import PointPair
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import Run
from udpbench.report.document import write

BASE = (2000, 2010, 1990, 2005, 1995, 2015, 1985)
FAST = tuple(round(1.1 * pps) for pps in BASE)
"""A tenth faster in every block."""
SLOW = tuple(round(0.9 * pps) for pps in BASE)
WIDE = (2000, 1500, 2600, 1800, 2500, 1700, 2300)
PAIR = PointPair("a", "b", "delivered_pps", 0.03)
LABS = Path(__file__).parents[2] / "experiments" / "labs"


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give pytest its own handler back."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def trials(rates: dict[str, Sequence[int]], **changes: Any) -> list[TrialRecord]:
    """Return a good trial for each rate of each point."""
    return [
        record(pps, of=trial(point, n), **changes)
        for point, own in rates.items()
        for n, pps in enumerate(own, start=1)
    ]


def run_of(folder: Path, rates: dict[str, Sequence[int]], **changes: Any) -> Run:
    """Return a run of points with these rates, stored in a folder."""
    keys = {key: changes.pop(key) for key in ("compare", "question", "name") if key in changes}
    trial_changes = changes.pop("trials", {})
    points = [trial(point) for point in rates]
    declared = replace(experiment(points=points, repetitions=7), **keys)
    return stored(folder, trials(rates, **trial_changes), declared, **changes)


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Return the exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["udpbench", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


# --- one run --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "verdict", "code"),
    [(FAST, "faster", 0), (BASE, "same", 0), (BASE[::-1], "same", 0), (WIDE, "cannot tell", 5)],
)
def test_what_a_run_declares_is_compared(
    b: Sequence[int], verdict: str, code: int, tmp_path: Path
) -> None:
    """By blocks, and nothing stands above the numbers."""
    result = compare_within(run_of(tmp_path, {"a": BASE, "b": b}, compare=(PAIR,)), Choice())
    assert [(verdict, 7)] == [
        (comparison.verdict, comparison.blocks) for comparison in result.comparisons
    ]
    assert (code, (), ()) == (result.exit_code, result.notes, result.runs)


def test_two_points_of_a_run_are_compared_that_declares_nothing(tmp_path: Path) -> None:
    """Either way round; the base of the one is faster than that of the other."""
    run = run_of(tmp_path, {"a": BASE, "b": FAST})
    answers = [compare_within(run, Choice(*names)) for names in (("a", "b"), ("b", "a"))]
    assert [("faster", 0), ("slower", 1)] == [
        (result.comparisons[0].verdict, result.exit_code) for result in answers
    ]


def test_metric_and_margin_replace_those_of_the_experiment(tmp_path: Path) -> None:
    """Another metric has a margin of its own, unless one is given."""
    run = run_of(tmp_path, {"a": BASE, "b": FAST}, compare=(PAIR,))
    loss = compare_within(run, Choice(metric="loss_ratio")).comparisons[0]
    assert ("same", margin_of("loss_ratio")) == (loss.verdict, loss.margin)
    wide = compare_within(run, Choice(margin=0.2)).comparisons[0]
    assert ("same", 0.2) == (wide.verdict, wide.margin)


def test_points_of_several_experiments_are_told_apart(tmp_path: Path) -> None:
    """By the name of theirs."""
    points = [trial("a"), trial("b")]
    experiments = [
        replace(experiment(points=points), name=name, compare=(PAIR,)) for name in ("x", "y")
    ]
    records = [
        replace(trial, trial=replace(trial.trial, experiment=each.name))
        for each in experiments
        for trial in trials({"a": BASE, "b": FAST})
    ]
    result = compare_within(stored(tmp_path, records, *experiments), Choice())
    assert [("x::a", "x::b"), ("y::a", "y::b")] == [
        (comparison.a, comparison.b) for comparison in result.comparisons
    ]


@pytest.mark.parametrize(
    ("choice", "where"),
    [
        (Choice(), "run"),
        (Choice("a", "c"), "--b"),
        (Choice("bb", "a"), "--a"),
        (Choice("a", "b", metric="delivered"), "--metric"),
    ],
)
def test_what_a_run_does_not_have_cannot_be_compared(
    choice: Choice, where: str, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what there is."""
    monkeypatch.chdir(tmp_path)
    run = run_of(Path("run"), {"a": BASE, "b": FAST})
    with golden.raises(InputError) as refused:
        compare_within(run, choice)
    assert [where] == [problem.where for problem in refused.value.problems]


def test_points_of_two_experiments_are_not_compared(tmp_path: Path, golden: Golden) -> None:
    """They share no blocks."""
    experiments = [
        replace(experiment(points=[replace(trial(point), experiment=name)]), name=name)
        for name, point in (("x", "a"), ("y", "b"))
    ]
    with golden.raises(InputError):
        compare_within(stored(tmp_path, [], *experiments), Choice("a", "b"))


# --- two runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "verdict", "code"), [(FAST, "faster", 0), (WIDE, "cannot tell", 5), (BASE, "same", 0)]
)
def test_two_runs_are_compared_point_by_point(
    b: Sequence[int], verdict: str, code: int, tmp_path: Path
) -> None:
    """Marked as not interleaved."""
    runs = run_of(tmp_path / "x", {"a": BASE}), run_of(tmp_path / "y", {"a": b, "more": BASE})
    result = compare_runs([runs[0]], [runs[1]], Choice())
    assert [(verdict, False)] == [
        (comparison.verdict, comparison.paired) for comparison in result.comparisons
    ]
    assert (code, str(tmp_path / "x")) == (result.exit_code, result.runs[0])
    assert result.notes[1].startswith("not interleaved: ")


def test_what_else_differs_stands_above_the_numbers(tmp_path: Path) -> None:
    """Hosts, lab, definition and version; what differs after each boot does not."""
    left = facts("left", "send0", "10.0.0.30/24")
    newer = {"facts": {"left": replace(left, kernel="6.19.1", boot_id="c", mac="02::2")}}
    labs = [(LABS / f"{name}.yaml").read_text() for name in ("local", "two-cpus")]
    runs = [
        run_of(tmp_path / "x", {"a": BASE}, lab_text=labs[0]),
        run_of(tmp_path / "y", {"a": BASE}, lab_text=labs[1], trials=newer, udpbench="0.2.0"),
    ]
    faster = replace(trial("a"), duration_ns=2 * 10**9)
    header = replace(runs[1].header, experiments=(experiment(points=[faster], repetitions=7),))
    comparisons = compare_runs([runs[0]], [replace(runs[1], header=header)], Choice())
    assert "left: kernel: 6.18.0 → 6.19.1" in comparisons.notes
    assert "example: duration: 1s → 2s" in comparisons.notes
    assert "udpbench: 0.1.0 → 0.2.0" in comparisons.notes
    assert [True] == [
        "settings.receiver.link" in n for n in comparisons.notes if n.startswith("lab: ")
    ]
    assert 6 == len(comparisons.notes)


def pair(folder: Path, **changes: Any) -> tuple[Run, Run]:
    """Return a run and another that differs so."""
    return run_of(folder / "x", {"a": BASE}), run_of(folder / "y", {"a": BASE}, **changes)


def other_points(folder: Path) -> tuple[Run, Run]:
    """Return two runs that share no point."""
    return run_of(folder / "x", {"a": BASE}), run_of(folder / "y", {"b": BASE})


@pytest.mark.parametrize(
    "make_runs",
    [
        lambda folder: pair(folder, question="Is it late?"),
        lambda folder: pair(folder, trials={"built_in_lab": False}),
        lambda folder: pair(folder, compare=(PointPair("a", "a", "loss_ratio", 0.01),)),
        other_points,
        lambda folder: (run_of(folder / "x", {"a": BASE}),) * 2,
    ],
    ids=["question", "lab", "metric", "points", "itself"],
)
def test_a_comparison_that_would_be_nonsense_is_refused(
    make_runs: Callable[[Path], tuple[Run, Run]],
    tmp_path: Path,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another question, lab, metric or point answers nothing."""
    monkeypatch.chdir(tmp_path)
    a, b = make_runs(Path())
    with golden.raises(InputError):
        compare_runs([a], [b], Choice())


def test_a_metric_that_is_named_settles_which(tmp_path: Path) -> None:
    """Also where the two experiments compare different ones."""
    runs = pair(tmp_path, compare=(PointPair("a", "a", "loss_ratio", 0.01),))
    result = compare_runs([runs[0]], [runs[1]], Choice(metric="delivered_pps"))
    assert ["delivered_pps"] == [comparison.metric for comparison in result.comparisons]


def times(factor: float) -> list[int]:
    """Return the base's rates times a factor."""
    return [round(factor * pps) for pps in BASE]


@pytest.mark.parametrize(
    ("a", "b", "verdict", "scatter"),
    [
        ((1.0, 1.001), (1.1, 1.101), "faster", False),
        ((1.0, 1.001, 0.999), (1.1,), "faster", True),
        ((1.0, 1.05, 0.95), (1.1,), "cannot tell", True),
        ((1.0,), (0.85, 0.9, 0.8), "cannot tell", True),
        ((1.0, 1.01, 0.99), (0.9, 0.91, 0.89), "slower", True),
    ],
)
def test_several_runs_of_a_side(
    a: Sequence[float], b: Sequence[float], verdict: str, scatter: bool, tmp_path: Path
) -> None:
    """From three on, what they scatter by is in the interval, and the note says so."""
    sides = [
        [run_of(tmp_path / f"{name}{n}", {"x": times(each)}) for n, each in enumerate(factors)]
        for name, factors in (("a", a), ("b", b))
    ]
    result = compare_runs(sides[0], sides[1], Choice())
    assert [(verdict, 7 * min(len(a), len(b)))] == [
        (comparison.verdict, comparison.blocks) for comparison in result.comparisons
    ]
    assert (BETWEEN_RUNS if scatter else NOT_INTERLEAVED) == result.notes[1]


def test_of_several_runs_each_difference_stands_under_its_folder(tmp_path: Path) -> None:
    """Against the first run of the base; and a point that one of them lacks is of the others."""
    newer = {"facts": {"left": replace(facts("left", "send0", "10.0.0.30/24"), kernel="6.19.1")}}
    a = [run_of(tmp_path / "a1", {"x": BASE, "y": BASE}), run_of(tmp_path / "a2", {"x": BASE})]
    b = [run_of(tmp_path / "b1", {"x": BASE, "y": BASE}, trials=newer)]
    result = compare_runs(a, b, Choice())
    assert [("x", 7), ("y", 7)] == [
        (comparison.a, comparison.blocks) for comparison in result.comparisons
    ]
    assert f"{tmp_path / 'b1'}: left: kernel: 6.18.0 → 6.19.1" in result.notes
    assert f"{tmp_path / 'b1'} against {tmp_path / 'a1'}, {tmp_path / 'a2'}" == result.notes[0]


def test_a_point_or_question_that_the_first_run_lacks_is_compared(tmp_path: Path) -> None:
    """Whichever run of a side ended early: it may be the first that is named."""
    a = [run_of(tmp_path / "a1", {"x": BASE}), run_of(tmp_path / "a2", {"x": BASE, "y": BASE})]
    b = [run_of(tmp_path / "b1", {"x": BASE, "y": BASE})]
    result = compare_runs(a, b, Choice())
    assert [("x", 7), ("y", 7)] == [
        (comparison.a, comparison.blocks) for comparison in result.comparisons
    ]


def test_what_the_first_run_lacks_differs_from_the_next_that_has_it(tmp_path: Path) -> None:
    """A question that only later runs ask, and a host that only they have."""
    only_left = {"facts": {"left": facts("left", "send0", "10.0.0.30/24")}}
    newer = {"facts": {"right": facts("right", "receive0", "10.0.0.1/24", kernel="6.19.1")}}
    a1 = run_of(tmp_path / "a1", {"x": BASE}, trials=only_left)
    a2 = run_of(tmp_path / "a2", {"x": BASE})
    b1 = run_of(tmp_path / "b1", {"x": BASE}, trials=newer)
    comparisons = compare_runs([a1, a2], [b1], Choice())
    assert f"{tmp_path / 'b1'}: right: kernel: 6.18.0 → 6.19.1" in comparisons.notes


# --- where loss tells more ----------------------------------------------------------------------


def losing(point: str, packets: int) -> list[TrialRecord]:
    """Return trials of a pace that delivers the same, whatever is lost beside it."""
    moved = {"snmp.Udp.RcvbufErrors": packets, "snmp.Udp.InErrors": packets}
    return [
        lossy(pps + packets, {"right": moved}, packets, of=trial(point, n))
        if packets
        else record(pps, of=trial(point, n))
        for n, pps in enumerate(BASE, start=1)
    ]


def test_loss_that_differs_is_named_where_rates_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option that compares by it; not where that was asked for."""
    both = experiment(points=[trial("a"), trial("b")], repetitions=7, compare=(PAIR,))
    stored(tmp_path / "run", [*losing("a", 0), *losing("b", 250)], both)
    assert 0 == exit_code(monkeypatch, "compare", tmp_path / "run")
    text = " ".join(capsys.readouterr().out.split())
    assert "by loss they differ: b against a: loss_ratio more by 11." in text
    assert "(udpbench compare --metric loss_ratio)" in text
    exit_code(monkeypatch, "compare", tmp_path / "run", "--metric", "loss_ratio")
    assert "by loss they differ" not in capsys.readouterr().out
    exit_code(monkeypatch, "show", tmp_path / "run")
    assert "by loss they differ" in capsys.readouterr().out


def test_the_report_of_two_runs_begins_with_their_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``report A B`` as of ``run --against``: verdict, interval and the numbers of both."""
    asked = experiment(points=[trial("a")], repetitions=7)
    before, after = (
        stored(tmp_path / name, losing("a", packets), asked)
        for name, packets in (("before", 250), ("after", 0))
    )
    assert 0 == exit_code(
        monkeypatch,
        *("report", before.folder, after.folder, "--format", "html", "--out", tmp_path / "out"),
    )
    page = " ".join((tmp_path / "out" / "report.html").read_text().split())
    text = f"Compared with {before.folder}: a: loss_ratio less by 11."
    assert text in page
    assert " to 0.00 %);" in page
    assert page.index(text) < page.index("What to type next") < page.index("Every trial")
    assert "2 runs compared" in page
    against = beside([before], after)["example"]
    assert ["delivered_pps", "loss_ratio"] == [each.metric for each in against.comparisons]
    write([after], tmp_path / "alone", ["html"], against={"example": against})
    assert text in (tmp_path / "alone" / "report.html").read_text()
    other = stored(tmp_path / "other", losing("a", 0), replace(asked, question="Another?"))
    assert {} == beside([other], after)


# --- the verb -------------------------------------------------------------------------------------


def test_the_verb_prints_a_table_and_what_the_lab_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """With the exit code of the worst."""
    slower = {"a": BASE, "b": [round(pps * (0.9 + n / 300)) for n, pps in enumerate(BASE)]}
    run_of(tmp_path / "run", slower, compare=(PAIR,))
    assert 1 == exit_code(monkeypatch, "compare", tmp_path / "run")
    golden.check(capsys.readouterr().out)


def test_stages_that_differ_stand_below_within_a_run_and_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points that were sampled in six blocks; a point against itself differs at no stage."""
    slower = sampled.Seen(0, 20, ("udp_rcv", "__napi_poll"), 30)
    idle = QUIET[4]._replace(count=1170)
    kinds = {
        "a": sampled.record(),
        "b": sampled.record(slower, seen=(*QUIET[:4], idle, *QUIET[5:]), busy_ms=830),
    }
    trials_of = {
        name: [replace(kind, trial=trial(point, n)) for n in range(1, 8)]
        for name, point, kind in (
            *(("a", "a", kinds["a"]), ("b", "b", kinds["b"])),
            ("slow", "a", kinds["b"]),
        )
    }
    pairs = (PAIR, PointPair("a", "a", "delivered_pps", 0.03))
    declared = experiment(points=[trial("a"), trial("b")], compare=pairs, repetitions=7)
    stored(tmp_path / "x", [*trials_of["a"], *trials_of["b"]], declared)
    stored(tmp_path / "y", trials_of["slow"], declared)
    for runs in (["x"], ["x", "y"]):
        exit_code(monkeypatch, "compare", *(tmp_path / run for run in runs), "--json")
        (change,) = json.loads(capsys.readouterr().out)["stage_changes"]
        assert ("rx_udp", pytest.approx(30_000)) == (change["stage"], change["change_ns"])


def test_json_has_each_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict begins with its word; of two runs the points stand behind the folders."""
    monkeypatch.chdir(tmp_path)
    run_of(Path("x"), {"a": BASE, "b": FAST}, compare=(PAIR,))
    run_of(Path("y"), {"a": FAST, "b": FAST}, compare=(PAIR,))
    assert 0 == exit_code(monkeypatch, "compare", "x", "--json")
    data = json.loads(capsys.readouterr().out)
    assert ["comparisons", "stage_changes", "notes"] == list(data)
    assert ([], []) == (data["stage_changes"], data["notes"])
    (comparison,) = data["comparisons"]
    assert ("a", "b", "delivered_pps", 7) == tuple(
        comparison[k] for k in ("a", "b", "metric", "blocks")
    )
    assert comparison["verdict"].startswith("faster by 10")
    assert (0, "") == (comparison["lost"], comparison["why"])
    assert comparison["low"] <= comparison["ratio"] <= comparison["high"]
    assert [str(n) for n in range(1, 8)] == list(comparison["effects"])
    assert {"7", "15"} == set(comparison["resolution"])
    exit_code(monkeypatch, "compare", "x", "y", "--json")
    output = json.loads(capsys.readouterr().out)
    two = output["comparisons"]
    assert ["y against x", NOT_INTERLEAVED] == output["notes"][:2]
    assert [("x::a", "y::a", False), ("x::b", "y::b", False)] == [
        (each["a"], each["b"], each["interleaved"]) for each in two
    ]
    exit_code(monkeypatch, "show", "x", "--json")
    (shown,) = json.loads(capsys.readouterr().out)["experiments"]
    assert data["comparisons"] == shown["comparisons"]


@pytest.mark.parametrize(
    "options",
    [
        ("run", "--a", "a"),
        ("run", "--a", "a", "--b", "a"),
        ("run", "other", "--a", "a", "--b", "b"),
        ("run", "--against", "other", "--a", "a", "--b", "b"),
        ("run", "other", "third"),
        ("run", "--a", "a", "--b", "b", "--margin", "3x"),
        ("run", "--a", "a", "--b", "b", "--margin", "0%"),
    ],
    ids=["one", "itself", "two-runs", "against", "three-runs", "unit", "zero"],
)
def test_options_that_contradict_each_other_are_refused(
    options: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """Before anything is read out of a run."""
    monkeypatch.chdir(tmp_path)
    run_of(Path("run"), {"a": BASE, "b": FAST})
    assert 2 == exit_code(monkeypatch, "compare", *options)
    golden.check(capsys.readouterr().err)


def test_a_comparison_reads_a_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large run takes seconds to read."""
    run_of(tmp_path / "x", {"a": BASE})
    run_of(tmp_path / "y", {"a": BASE})
    read: list[Path] = []

    def reading(folder: Path, later: bool = False) -> Run:
        read.append(folder)
        return read_run(folder, later=later)

    monkeypatch.setattr("udpbench.records.reader.read_run", reading)
    exit_code(monkeypatch, "compare", tmp_path / "x", tmp_path / "y")
    assert [tmp_path / "x", tmp_path / "y"] == read


def test_any_number_of_runs_are_compared_with_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the base stand behind --against; a run that is named twice counts once."""
    monkeypatch.chdir(tmp_path)
    for name, factor in (("a1", 1), ("a2", 1.001), ("a3", 0.999), ("b1", 0.8), ("b2", 0.801)):
        run_of(Path(name), {"x": times(factor)})
    base = [word for name in ("a1", "a2", "a3") for word in ("--against", name)]
    assert 1 == exit_code(monkeypatch, "compare", "b1", "b2", "b1", *base, "--json")
    data = json.loads(capsys.readouterr().out)
    (comparison,) = data["comparisons"]
    assert ("a1, a2, a3::x", "b1, b2::x", 14) == (
        comparison["a"],
        comparison["b"],
        comparison["blocks"],
    )
    assert (True, False) == (comparison["between_runs"], comparison["interleaved"])
    assert ["b1, b2 against a1, a2, a3", BETWEEN_RUNS] == data["notes"]
    exit_code(monkeypatch, "compare", "b1", *base[:4], "--json")
    assert not json.loads(capsys.readouterr().out)["comparisons"][0]["between_runs"]


def test_the_last_run_is_compared_with_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no other is named."""
    monkeypatch.chdir(tmp_path)
    run_of(Path("base"), {"x": BASE})
    run_of(Path("results") / "new", {"x": FAST})
    assert 0 == exit_code(monkeypatch, "compare", "--against", "base")
    assert "results/new against base" in capsys.readouterr().out


# --- run --against --------------------------------------------------------------------------------


def test_a_base_that_cannot_be_compared_is_refused_before_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """No folder is made."""
    monkeypatch.chdir(tmp_path)
    run_of(Path("base"), {"a": BASE})
    run_of(Path("other"), {"": BASE}, question=load_experiments(["smoke"])[0].question)
    against = ("--against", "other", "--against", "base")
    assert 2 == exit_code(monkeypatch, "run", "smoke", *against, "--out", "run")
    assert not Path("run").exists()
    golden.check(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("b", "code", "both"), [(SLOW, 0, 1), (BASE, 0, 0), (WIDE, 0, 5), (WIDE, 3, 3), (SLOW, 5, 1)]
)
def test_a_run_ends_with_the_worse_of_both_codes(
    b: Sequence[int], code: int, both: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own margin, and that of the comparison that it prints."""
    base, run = run_of(tmp_path / "x", {"a": BASE}), run_of(tmp_path / "y", {"a": b})
    assert both == _compared(run, [base], code)
    assert "not interleaved: " in capsys.readouterr().out


def test_a_run_that_measured_nothing_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own code says why."""
    base = run_of(tmp_path / "x", {"a": BASE})
    assert (5, "") == (
        _compared(stored(tmp_path / "y", [], *base.header.experiments), [base], 5),
        capsys.readouterr().out,
    )
