"""The excuse of a lab test on a busy machine: what it takes, and what it does not."""

from __future__ import annotations

import pytest
from analysis import build
from busy import lacked_a_cpu
from report.stored import stored

from udpbench.model.record import Finding, TrialRecord
from udpbench.report.json_output import as_json

STOLEN = Finding("struck", "other programs used CPUs of the load")
SENT = 990


def short(stalled: int, *findings: Finding) -> TrialRecord:
    """Return a trial whose sender fell short of 1000, by a stall or without one."""
    counts = build.sender_counts(SENT, attempted_packets=1000, stalled_packets=stalled)
    workers = (
        build.worker("sender", counts),
        build.worker("receiver", build.receiver_counts(SENT)),
    )
    return build.record(SENT, of=build.paced(1000), workers=workers, findings=findings)


@pytest.mark.parametrize(
    ("record", "excused"),
    [
        (short(10), True),
        (build.record(findings=(STOLEN,)), True),
        (short(0), False),
        (short(0, STOLEN), False),
        (short(10, Finding("invalid", "placement lost")), False),
        (build.record(1000, 999, findings=(STOLEN,)), False),
        (build.record(), False),
    ],
    ids=["stalled", "robbed", "slow", "slow and robbed", "moved", "unaccounted", "nothing"],
)
def test_only_a_lack_of_cpu_excuses(
    record: TrialRecord, excused: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever else makes a trial invalid is a fault of the run."""
    run = stored(tmp_path_factory.mktemp("run"), [record])
    assert excused == lacked_a_cpu(as_json(run)["trials"])
