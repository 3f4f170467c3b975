"""``show --json``: one run as plain data with stable keys, for programs.

A change of a key's name or meaning raises SCHEMA and is listed in the changelog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from udpbench.analysis.comparison.comparisons import Comparison, resolution
from udpbench.analysis.comparison.stage_costs import StageChange
from udpbench.analysis.result_tables import named_rows
from udpbench.analysis.search import PointSearch
from udpbench.judged_run import Chapter, chapters_of
from udpbench.metrics import METRICS, SEARCHED
from udpbench.model.record import Finding, TrialRecord
from udpbench.model.result import Result
from udpbench.protocol import encode
from udpbench.records.run import Run
from udpbench.report.search import breaking_text
from udpbench.report.sheets import changes_of
from udpbench.report.summary import hosts_of, reasons

SCHEMA = 1
"""History: 1 — the first form."""

COMPARED = (
    *("why", "ratio", "difference", "low", "high", "blocks", "lost", "blocks_more", "margin"),
    "worse",
)
BESIDE = ("ledger_received_packets", "unaccounted", *SEARCHED)
"""Metrics beside the ledger, and of searches; the others are in the order of ``metrics``."""


def as_json(run: Run) -> dict[str, Any]:
    """Return a run as JSON data: its experiments, lab, hosts and every trial."""
    chapters = chapters_of(run)
    records = {(record.trial.experiment, record.trial.name): record for record in run.records}
    return {
        "schema": SCHEMA,
        "run": run.folder.name,
        "experiments": [_experiment(chapter) for chapter in chapters],
        "lab": {
            "name": run.header.lab_name,
            "text": run.header.lab_text,
            "built_in": any(record.built_in_lab for record in run.records),
        },
        "sessions": [
            {
                "started_at": session.begin.started_at,
                "finished_at": session.ending.finished_at if session.ending is not None else None,
                "status": session.ending.status if session.ending is not None else None,
                "udpbench": session.begin.udpbench,
                "trials": session.trials,
            }
            for session in run.sessions
        ],
        "hosts": {host: encode(facts) for host, facts in hosts_of(run.records).items()},
        "trials": [
            trial_json(result, records[result.trial.experiment, result.trial.name])
            for chapter in chapters
            for result in chapter.every_trial
        ],
        "searches": [search_json(search) for chapter in chapters for search in chapter.searches],
    }


def search_json(search: PointSearch) -> dict[str, Any]:
    """Return one search as JSON data."""
    breaking = search.breaking
    confirmed = search.confirmed
    return {
        **{name: getattr(search.point, name) for name in ("experiment", "point", "repetition")},
        "ended": search.state.ended,
        "throughput_pps": search.headline.throughput_pps,
        "goals": [encode(goal) for goal in search.state.goals],
        "most_pps": search.state.most_pps,
        "sender_bound": search.state.sender_bound,
        "full_line_bps": search.full_line_bps,
        "trials": len(search.trials),
        "took_ns": search.state.spent_ns,
        "confirm_loss_ratio": confirmed.loss_ratio if confirmed is not None else None,
        "breaking": encode(breaking) if breaking is not None else None,
        "breaks_first": breaking_text(search) or None,
        "findings": [finding_json(finding) for finding in search.result.findings],
    }


def _experiment(chapter: Chapter) -> dict[str, Any]:
    return {
        "name": chapter.experiment.name,
        "question": chapter.experiment.question,
        "source": chapter.experiment.source,
        "text": chapter.experiment.text,
        "points": [trial.point for trial in chapter.experiment.points],
        "repetitions": chapter.experiment.repetitions,
        "expectations": [
            {"expected": each.expected, "answer": each.answer, "measured": each.measured}
            for each in chapter.verdicts
        ],
        "comparisons": [comparison_json(comparison) for comparison in chapter.comparisons],
        "stage_changes": [encode(change) for change in changes_of(chapter)],
        "tune": _tune(chapter),
    }


def _tune(chapter: Chapter) -> dict[str, Any] | None:
    """Return the request and answer of a tune; None if the experiment is not a tune."""
    answer = chapter.tuned
    if answer is None or chapter.experiment.tune is None:
        return None
    return {
        **encode(chapter.experiment.tune),
        "proven": chapter.tuning is not None and chapter.tuning.proven is not None,
        **encode(answer),
        "rungs": [rung._asdict() for rung in answer.rungs],
        "instructions": [each._asdict() for each in answer.instructions],
    }


def comparisons_json(
    comparisons: Sequence[Comparison],
    runs: Sequence[str] = (),
    notes: Sequence[str] = (),
    changes: Sequence[StageChange] = (),
) -> dict[str, Any]:
    """Return the data of ``compare --json``; ``runs`` are the folders if a and b are of two."""
    listed = [comparison_json(comparison, runs) for comparison in comparisons]
    stages = [encode(change) for change in changes]
    return {"comparisons": listed, "stage_changes": stages, "notes": list(notes)}


def comparison_json(comparison: Comparison, runs: Sequence[str] = ()) -> dict[str, Any]:
    """Return one comparison as JSON data; a and b are points, of two runs prefixed by folder."""
    names = [point or "all" for point in (comparison.a, comparison.b)]
    a, b = [f"{run}::{name}" for run, name in zip(runs, names, strict=True)] if runs else names
    return {
        "a": a,
        "b": b,
        "metric": comparison.metric,
        "verdict": comparison.text,
        **{name: getattr(comparison, name) for name in COMPARED},
        "effects": dict(comparison.effects),
        "resolution": resolution(comparison),
        "interleaved": comparison.paired,
        "between_runs": comparison.between_runs,
    }


def finding_json(finding: Finding) -> dict[str, str | None]:
    """Return a finding as JSON data: what is read, not what tells it apart."""
    return {name: value for name, value in encode(finding).items() if name != "kind"}


def trial_json(result: Result, record: TrialRecord) -> dict[str, Any]:
    """Return one trial as JSON data, keys in the documented order."""
    trial, ledger = result.trial, result.ledger
    return {
        **{name: getattr(trial, name) for name in ("experiment", "name", "point", "variant")},
        "values": {key: str(value) for key, value in trial.values.items()},
        "repetition": trial.repetition,
        "search_trial": trial.search_trial or None,
        "started_at": record.started_at,
        "built_in_lab": record.built_in_lab,
        "status": result.status,
        "valid": result.valid,
        "struck": bool(result.struck),
        "reason": "; ".join(map(str, reasons(result))) or None,
        "diagnosis": [
            {**encode(bottleneck), "sentence": bottleneck.sentence}
            for bottleneck in result.diagnosis
        ],
        "findings": [finding_json(finding) for finding in result.findings],
        **{name: result.numbers.get(name) for name in METRICS if name not in BESIDE},
        "stalls": [encode(stall) for stall in result.stalls],
        "ledger_received_packets": result.ledger_received_packets,
        "ledger": [encode(entry) for entry in ledger.entries] if ledger is not None else None,
        "unaccounted": result.unaccounted,
        "workers": [encode(worker) for worker in result.workers],
        **{table.name: named_rows(table) for table in result.tables},
    }
