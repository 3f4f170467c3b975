"""A run is judged once, whoever asks for what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analysis.build import experiment, record, trial
from report.stored import COMPLETE, stored

from udpbench import judged_run
from udpbench.analysis.judge import judge
from udpbench.judged_run import chapters_of, code_of_run, results_of
from udpbench.report.document import write
from udpbench.report.json_output import as_json


def test_each_record_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By exit code, JSON and report of the same run together; another run is another."""
    judgements: list[Any] = []

    def counted(of: Any) -> Any:
        judgements.append(of)
        return judge(of)

    monkeypatch.setattr(judged_run, "judge", counted)
    run = stored(tmp_path, [record()], experiment(points=[trial()]), ending=COMPLETE)
    assert chapters_of(run) is chapters_of(run)
    assert 0 == code_of_run(run)
    assert as_json(run)["trials"]
    assert judgements == [record for record in run.records if results_of(run)(record)]
    assert list(write([run], tmp_path / "out", ["html"]))
    assert 1 == len(judgements)
