"""``show --json``: one run as plain data with stable keys, for programs.

A change of a key's name or meaning raises SCHEMA and stands in the changelog.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from udpbench.model import Result
from udpbench.records import Run
from udpbench.report.story import Chapter, hosts_of, tell

SCHEMA = 1
"""History: 1 — the first form."""

NUMBERS = (
    "intended_packets",
    "sent_packets",
    "received_packets",
    "lost_packets",
    "offered_pps",
    "delivered_pps",
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
)
"""Numeric keys of a trial; null is what could not be known."""


def as_json(run: Run) -> dict[str, Any]:
    """Return a run as JSON data: its experiments, lab, hosts and every trial."""
    chapters = tell(run.header.experiments, run.records)
    return {
        "schema": SCHEMA,
        "experiments": [_experiment(chapter) for chapter in chapters],
        "lab": {
            "name": run.header.lab_name,
            "built_in": any(one.built_in_lab for one in run.records),
        },
        "sessions": [
            {
                "started_at": one.begin.started_at,
                "finished_at": one.ending.finished_at if one.ending is not None else None,
                "status": one.ending.status if one.ending is not None else None,
                "udpbench": one.begin.udpbench,
                "trials": one.trials,
            }
            for one in run.sessions
        ],
        "hosts": {host: asdict(facts) for host, facts in hosts_of(run.records).items()},
        "trials": [trial_json(result) for chapter in chapters for result in chapter.results],
    }


def _experiment(chapter: Chapter) -> dict[str, Any]:
    return {
        "name": chapter.experiment.name,
        "question": chapter.experiment.question,
        "source": chapter.experiment.source,
        "points": [trial.point for trial in chapter.experiment.points],
        "repetitions": chapter.experiment.repetitions,
        "expectations": [asdict(verdict) for verdict in chapter.verdicts],
    }


def trial_json(result: Result) -> dict[str, Any]:
    """Return one trial as JSON data, keys in the documented order."""
    trial, ledger = result.trial, result.ledger
    return {
        "experiment": trial.experiment,
        "name": trial.name,
        "point": trial.point,
        "variant": trial.variant,
        "repetition": trial.repetition,
        "status": result.status,
        "valid": result.valid,
        "findings": [asdict(finding) for finding in result.findings],
        **{name: getattr(result, name) for name in NUMBERS},
        "stalls": [asdict(stall) for stall in result.stalls],
        "ledger_received_packets": result.ledger_received_packets,
        "ledger": [asdict(entry) for entry in ledger.entries] if ledger is not None else None,
        "unaccounted": result.unaccounted,
        "workers": [asdict(worker) for worker in result.workers],
    }
