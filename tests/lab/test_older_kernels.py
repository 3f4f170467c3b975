"""What older kernels lack, hidden from agents that are real otherwise: each has its next best way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_ledger import records

from udpbench.analysis.judge import judge
from udpbench.definition.load import load_experiment_data
from udpbench.model.experiment import Experiment
from udpbench.model.record import TrialRecord

pytestmark = pytest.mark.lab

OLDER = Path(__file__).with_name("older_kernel.py")
LOST = {"rx_ip": 40, "udp_filter": 30, "udp_memory": 20}
"""Stages whose counters are partly younger than Linux 5.10."""


def experiment(name: str, **keys: Any) -> Experiment:
    """Return an experiment of one short trial."""
    data = {
        "question": "What is left of it?",
        "traffic": {"rate": "2kpps", "count": 500},
        "send": {"pace": "sleep", "bucket": "1s"},
        "duration": "20s",
        "warmup": "0s",
        "repetitions": 1,
        **keys,
    }
    return load_experiment_data(data, name)


@pytest.fixture
def older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking_anew: None
) -> dict[str, TrialRecord]:
    """Return the records of a run whose agents take the kernel for one before Linux 5.11."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    shutil.copy(OLDER, hidden / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    run = records(
        tmp_path / "run",
        [
            experiment("plain"),
            experiment("lost", losses=LOST, explain=True, path_check="explained"),
            experiment("by BPF", losses={"rx_xdp": 10}),
        ],
    )
    return {record.trial.experiment: record for record in run}


def test_what_a_kernel_lacks_fails_no_trial(older: dict[str, TrialRecord]) -> None:
    """NAPI by names, two stages of which the sum is known, no reasons, and a skip."""
    plain, lost, by_bpf = older["plain"], older["lost"], older["by BPF"]
    (pinned,) = (c for c in plain.changes["receiver"] if c.setting.kind == "napi_cpus")
    assert (None, pinned.setting.value) == (pinned.refusal, pinned.after)
    queues = plain.facts["receiver"].queue_cpus
    assert pinned.setting.value == [list(queues[str(k)]) for k in range(len(queues))]
    judged = judge(plain)
    invalid = [finding.what for finding in judged.findings if finding.severity == "invalid"]
    assert ([], 0) == (invalid, judged.unaccounted)

    result = judge(lost)
    assert result.ledger is not None
    entries = {e.stage: (e.packets or 0, e.at_most) for e in result.ledger.entries}
    assert (True, 0) == (result.valid, result.unaccounted)
    assert (LOST["rx_ip"], None) == entries["rx_ip"]
    undivided = LOST["udp_filter"] + LOST["udp_memory"]
    for stage in ("udp_filter", "udp_memory"):
        least, most = entries[stage]
        assert least <= LOST[stage] <= (most or least) <= undivided

    (explained,) = (c for c in lost.changes["receiver"] if c.setting.kind == "explain")
    assert explained.refusal is not None

    assert by_bpf.error is not None
    assert ("skipped", "unavailable") == (by_bpf.status, by_bpf.error.kind)
