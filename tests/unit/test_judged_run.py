"""A run is judged once, whoever asks for what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from analysis.build import experiment, record, trial
from report.stored import printed, stored

from udpbench import judged_run
from udpbench.analysis import judge
from udpbench.gate import answer
from udpbench.judged_run import chapters_of, code_of_run, results_of
from udpbench.report.data_frames import frames
from udpbench.report.document import write
from udpbench.report.json_output import as_json
from udpbench.report.tables import parts

JUDGED = {
    judge: ("diagnose", "check"),
    judged_run: (
        *("judge", "folded", "points", "searches_of", "evaluate", "compare_points"),
        *("tuning_of", "answer_of"),
    ),
}
"""Module → what it calls once for each trial, or each experiment."""


def test_a_run_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By exit code, screen, JSON, frames, page and gate of the same run together."""
    calls: Counter[str] = Counter()

    def counted(name: str, does: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls[name] += 1
            return does(*given)

        return call

    for module, names in JUDGED.items():
        for name in names:
            monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    points = [trial("a"), trial("b")]
    run = stored(tmp_path, [record(of=each) for each in points], experiment(points=points))
    assert chapters_of(run) is chapters_of(run)
    assert 0 == code_of_run(run)
    (chapter,) = chapters_of(run)
    assert printed(*parts(chapter, 80, everything=True))
    assert [trial_["name"] for trial_ in as_json(run)["trials"]] == [
        results_of(run)(record).trial.name for record in run.records
    ]
    assert 2 == len(frames([run]).trials)
    assert list(write([run], tmp_path / "out", ["html"]))
    assert "passed" == answer(run, "a", 80).outcome
    each_trial = dict.fromkeys(("judge", "diagnose", "check"), 2)
    each_run = dict.fromkeys(("folded", "points", "searches_of", "evaluate", "compare_points"), 1)
    assert each_trial | each_run == calls
