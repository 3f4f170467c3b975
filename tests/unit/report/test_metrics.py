"""The table of metrics, and what is derived from it: keys and columns that others rely on."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

from analysis.build import failed, unlogged
from golden import Golden

from report.stored import stored
from udpbench.analysis.judge import judge
from udpbench.metrics import METRICS, SEARCHED, TIMED, unit_of
from udpbench.model.experiment import Answers, Traffic
from udpbench.model.record import LogFiles, TrialRecord
from udpbench.report.data_frames import COLUMNS, KEYS
from udpbench.report.json_output import as_json

DOCUMENT = Path(__file__).parents[3] / "docs" / "records.md"
NUMBERS = [
    "intended_packets",
    "sent_packets",
    "received_packets",
    "answered_packets",
    "lost_packets",
    "offered_pps",
    "delivered_pps",
    "answered_pps",
    "delivered_mib_s",
    "delivered_pps_spread",
    "loss_ratio",
    "send_calls_per_packet",
    "skbs_per_packet",
    "send_cpu_ns_per_packet",
    "receive_cpu_ns_per_packet",
    "delay_min_ns",
    "delay_p50_ns",
    "delay_p90_ns",
    "delay_p99_ns",
    "delay_p999_ns",
    "delay_p9999_ns",
    "delay_max_ns",
    "delay_variation_p99_ns",
    "rest_delay_p50_ns",
    "rest_delay_p90_ns",
    "stack_delay_p50_ns",
    "stack_delay_p99_ns",
    "application_delay_p50_ns",
    "application_delay_p99_ns",
    "round_trip_min_ns",
    "round_trip_p50_ns",
    "round_trip_p90_ns",
    "round_trip_p99_ns",
    "round_trip_p999_ns",
    "round_trip_max_ns",
    "rest_round_trip_p50_ns",
    "rest_round_trip_p90_ns",
    "pacing_p50_ns",
    "pacing_p99_ns",
    "pacing_p999_ns",
    "pacing_max_ns",
    "send_cpu_load",
    "receive_cpu_load",
    "send_memory_bytes",
    "receive_memory_bytes",
    "logged_packets",
    "logged_pps",
    "log_files",
    "log_bytes",
    "cpu_ns",
]
"""Programs read these names, and files have them in this order."""
INTEGERS = {name for name in NUMBERS if name.endswith("_packets")}


def logged() -> TrialRecord:
    """Return a trial of 1000 packets, all answered, of which its log could not take 400."""
    trial_record = unlogged(400, traffic=Traffic(answers=Answers()))
    (phase,) = trial_record.phases
    files = LogFiles("/var/log/udp.right.receiver0", 2, 4096)
    answered = {"answered_packets": 1000, "answer_first_ns": 1, "answer_last_ns": 2}
    stats = tuple(
        replace(stats, log=files)
        if stats.role == "receiver"
        else replace(stats, counts={**stats.counts, **answered})
        for stats in phase.stats
    )
    return replace(trial_record, phases=(replace(phase, stats=stats),))


def test_a_trials_keys_in_json_stay(tmp_path: Path) -> None:
    """Name by name and in order, whether the trial has numbers or not."""
    before = [
        "experiment",
        "name",
        "point",
        "variant",
        "values",
        "repetition",
        "search_trial",
        "started_at",
        "built_in_lab",
        "status",
        "valid",
        "struck",
        "reason",
        "diagnosis",
        "findings",
    ]
    after = ["stalls", "ledger_received_packets", "ledger", "unaccounted", "workers"]
    after += ["queues", "ledger_parts", "sockets", "thread_time"]
    after += ["cpu_time", "cpu_kinds", "cpu_balance"]
    run = stored(tmp_path, [unlogged(400), failed()])
    assert [[*before, *NUMBERS, *after]] * 2 == [list(trial_) for trial_ in as_json(run)["trials"]]


def test_a_trials_columns_stay() -> None:
    """Counts of packets are integers, all other numbers floats."""
    before = ["variant", "started_at", "built_in_lab", "status", "valid", "struck", "reason"]
    after = ["ledger_received_packets", "unaccounted"]
    columns = COLUMNS["trials"]
    assert [*KEYS, *before, *NUMBERS, *after] == list(columns)
    kinds = {name: columns[name] for name in (*NUMBERS, *after)}
    assert {*INTEGERS, *after} == {name for name, kind in kinds.items() if kind == "Int64"}
    assert {"Int64", "Float64"} == set(kinds.values())


def test_judge_derives_every_metric_and_nothing_else() -> None:
    """A trial with a log and answers has all of them."""
    assert set(METRICS) - set(SEARCHED) == set(judge(logged()).numbers)


def test_a_result_has_its_metrics_as_attributes(golden: Golden) -> None:
    """Unknown is None; a name that is no metric is refused, and a copy is the same."""
    result = judge(logged())
    assert (1000, 600, 400) == (
        result.received_packets,
        result.logged_packets,
        1000 - (result.ledger_received_packets or 0),
    )
    assert judge(failed()).logged_packets is None
    assert result == copy.copy(result)
    with golden.raises(AttributeError):
        _ = result.recieved_packets


def test_what_may_be_struck_out_depends_on_time() -> None:
    """Counts, ratios of counts, memory and files hold."""
    kept = """
        intended_packets sent_packets received_packets answered_packets lost_packets loss_ratio
        send_calls_per_packet skbs_per_packet send_memory_bytes receive_memory_bytes
        logged_packets log_files log_bytes ledger_received_packets unaccounted
    """
    assert set(kept.split()) == set(METRICS) - TIMED


def test_a_stage_is_in_packets() -> None:
    """A ledger stage is no metric, and has a unit all the same."""
    assert ("packets", "pps") == (unit_of("udp_rcvbuf"), unit_of("delivered_pps"))


def test_the_document_has_the_table() -> None:
    """docs/records.md says of each metric of a trial what the table says, in its order."""
    rows = [
        f"| `{name}` | {metric.unit} | {metric.meaning} |\n"
        for name, metric in METRICS.items()
        if name not in SEARCHED
    ]
    page = DOCUMENT.read_text()
    assert "".join(rows) in page
    trials = page.partition("### trials:")[2].partition("###")[0]
    assert [] == [name for name in SEARCHED if f"\n| `{name}` |" in trials]
