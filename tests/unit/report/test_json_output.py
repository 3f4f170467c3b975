"""``show --json``: keys that do not change, numbers that are the judge's."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.build import (
    LOAD_MS,
    expectation,
    experiment,
    failed,
    hog,
    lossy,
    series,
    shared,
    trial,
)

from report.stored import stored
from udpbench.model.limits import SECOND_NS
from udpbench.report.json_output import as_json

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def test_a_run_has_its_documented_keys(tmp_path: Path) -> None:
    """Keys of the run, an experiment, a trial and an entry of its ledger."""
    of = experiment(expectation("unaccounted", "==", "0"))
    data = as_json(stored(tmp_path, [lossy(1000, LOST, 250, series=series([1000]))], of))
    assert [
        "schema",
        "run",
        "experiments",
        "lab",
        "sessions",
        "hosts",
        "trials",
        "searches",
    ] == list(data)
    lab = {"name": "local", "text": "sender: []\nreceiver: []\n", "built_in": True}
    assert lab == data["lab"]
    assert ["left", "right"] == list(data["hosts"])
    (experiment_,) = data["experiments"]
    assert set(experiment_) == {
        *(
            "name",
            "question",
            "source",
            "text",
            "points",
            "repetitions",
            "expectations",
            "comparisons",
            "stage_changes",
            "tune",
        )
    }
    (trial_,) = data["trials"]
    assert 1000 == trial_["sent_packets"]
    assert 750 == trial_["received_packets"]
    assert 0.25 == trial_["loss_ratio"]
    assert 0 == trial_["unaccounted"]
    lost = {entry["stage"]: entry["packets"] for entry in trial_["ledger"]}
    assert 250 == lost["udp_rcvbuf"]
    taken = sum(entry["packets"] or 0 for entry in trial_["ledger"])
    assert trial_["intended_packets"] == taken + trial_["ledger_received_packets"]


def test_queues_are_rows_over_time(tmp_path: Path) -> None:
    """As in the frame of queues."""
    moved = {"right": {"ethtool.receive0.rx_queue_0_xdp_packets": 750}}
    (trial_,) = as_json(stored(tmp_path, [lossy(1000, moved, 250)]))["trials"]
    (row,) = trial_["queues"]
    assert {
        "host": "right",
        "from_ns": 0,
        "to_ns": 2 * SECOND_NS,
        "queue": "rx-0",
        "packets": 750,
        "drops": None,
        "interrupts": None,
        "cpu": 0,
    } == row
    assert [] == as_json(stored(tmp_path / "failed", [failed()]))["trials"][0]["queues"]


def test_what_could_not_be_known_is_null(tmp_path: Path) -> None:
    """A failed trial has no numbers and no ledger, and says why."""
    (trial_,) = as_json(stored(tmp_path, [failed()]))["trials"]
    assert ("failed", False, None, None, None) == (
        trial_["status"],
        trial_["valid"],
        trial_["sent_packets"],
        trial_["ledger"],
        trial_["unaccounted"],
    )
    assert ["failed: it died"] == [finding["what"] for finding in trial_["findings"]]


def test_rates_that_are_struck_out_are_null_with_their_reason(tmp_path: Path) -> None:
    """The trial is valid, and its counts are there."""
    (trial_,) = as_json(stored(tmp_path, [shared(LOAD_MS + 400, hog(400))]))["trials"]
    assert (True, True, 1000, None, None) == (
        trial_["valid"],
        trial_["struck"],
        trial_["received_packets"],
        trial_["delivered_pps"],
        trial_["send_cpu_load"],
    )
    assert "struck" in {finding["severity"] for finding in trial_["findings"]}
    keys = {"severity", "what", "where", "value", "limit", "next_step"}
    assert all(keys == finding.keys() for finding in trial_["findings"])


def test_it_is_json(tmp_path: Path) -> None:
    """Nothing in it is a number that JSON does not have."""
    data = as_json(stored(tmp_path, [lossy(1000, LOST, 250)]))
    assert set(data) == set(json.loads(json.dumps(data, allow_nan=False)))


def test_a_run_that_came_to_no_trial_has_its_experiments(tmp_path: Path) -> None:
    """It was killed before, and still says what it was to find out."""
    data = as_json(stored(tmp_path, [], experiment(points=[trial("a")]), ending=None))
    assert ([], {}, ["a"]) == (data["trials"], data["hosts"], data["experiments"][0]["points"])
