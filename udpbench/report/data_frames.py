"""Runs as tidy pandas frames, and the frames as CSV and Parquet; docs/records.md has every column.

One row is one observation; what could not be known is missing, never 0. Derives nothing that
``judge`` and the readings do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from udpbench import records
from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.judge import judge
from udpbench.analysis.motion import intervals
from udpbench.analysis.queue_counters import queue_rows, queue_uses
from udpbench.analysis.rates import host_of
from udpbench.analysis.readings import Readings, readings_of
from udpbench.folder import Folder
from udpbench.metrics import METRICS, SEARCHED
from udpbench.model import BYTES_FIELD, PACKETS_FIELD, Result, TrialRecord
from udpbench.records import Run
from udpbench.report.search_words import breaking_text
from udpbench.report.summary import chapters_of, reasons

if TYPE_CHECKING:
    import pandas as pd

Data = Literal["csv", "parquet"]
DATA: tuple[Data, ...] = ("csv", "parquet")
KEYS = {
    "run": "string",
    "experiment": "string",
    "point": "string",
    "repetition": "Int64",
    "search_trial": "Int64",
}
"""What every frame begins with: together they name a trial."""
COLUMNS: dict[str, dict[str, str]] = {
    "trials": {
        **KEYS,
        "variant": "string",
        "started_at": "string",
        "built_in_lab": "boolean",
        "status": "string",
        "valid": "boolean",
        "struck": "boolean",
        "reason": "string",
        **{
            name: "Int64" if metric.unit == "packets" else "Float64"
            for name, metric in METRICS.items()
            if name not in SEARCHED
        },
    },
    "searches": {
        **KEYS,
        "loss": "Float64",
        "kind": "string",
        "throughput_pps": "Float64",
        "lower_pps": "Float64",
        "upper_pps": "Float64",
        "trials": "Int64",
        "took_ns": "Int64",
        "ended": "string",
        "stage": "string",
        "breaks_first": "string",
    },
    "ledger": {
        **KEYS,
        "valid": "boolean",
        "stage": "string",
        "packets": "Int64",
        "at_most": "Int64",
        "others_packets": "Int64",
        "source": "string",
    },
    "workers": {
        **KEYS,
        "valid": "boolean",
        "worker": "string",
        "host": "string",
        "role": "string",
        "cpu": "Int64",
        "packets": "Int64",
        "pps": "Float64",
        "memory_bytes": "Int64",
    },
    "series": {
        **KEYS,
        "worker": "string",
        "host": "string",
        "role": "string",
        "since_start_ns": "Int64",
        "packets": "Int64",
        "bytes": "Int64",
    },
    "counters": {
        **KEYS,
        "host": "string",
        "from_ns": "Int64",
        "to_ns": "Int64",
        "counter": "string",
        "difference": "Int64",
    },
    "queues": {
        **KEYS,
        "host": "string",
        "from_ns": "Int64",
        "to_ns": "Int64",
        "queue": "string",
        "packets": "Int64",
        "drops": "Int64",
        "interrupts": "Int64",
        "cpu": "Int64",
    },
    "findings": {
        **KEYS,
        "severity": "string",
        "where": "string",
        "what": "string",
        "value": "string",
        "limit": "string",
        "next_step": "string",
    },
    "settings": {
        **KEYS,
        "host": "string",
        "kind": "string",
        "target": "string",
        "path": "string",
        "before": "string",
        "after": "string",
        "refusal": "string",
    },
}
"""Frame → column → its pandas type. The frame of trials has a column for each swept key, too."""


@dataclass(frozen=True)
class Frames:
    """One or more runs as tidy frames; docs/records.md says what each column is, and its unit."""

    trials: pd.DataFrame
    """A row per trial: its validity and its numbers."""
    searches: pd.DataFrame
    """A row per loss goal of each search."""
    ledger: pd.DataFrame
    """A row per stage of each trial."""
    workers: pd.DataFrame
    """A row per worker of each trial."""
    series: pd.DataFrame
    """A row per sample of a worker in the measured phase: totals since it began."""
    counters: pd.DataFrame
    """A row per counter that moved in a second of the measured phase."""
    queues: pd.DataFrame
    """A row per queue of a card in a second of the measured phase."""
    findings: pd.DataFrame
    """A row per finding of each trial."""
    settings: pd.DataFrame
    """A row per setting that was in force in each trial."""


def read_run(*folders: str | Path) -> Frames:
    """Return the runs in some folders as frames; raises RecordError where one cannot be read."""
    return frames([records.read_run(Path(folder)) for folder in folders])


def frames(runs: Sequence[Run]) -> Frames:
    """Return runs as frames."""
    import pandas as pd

    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    for run in runs:
        for record in run.records:
            keys = {
                "run": run.folder.name,
                "experiment": record.trial.experiment,
                "point": record.trial.point,
                "repetition": record.trial.repetition,
                "search_trial": record.trial.search_trial or None,
            }
            for name, added in _rows(record):
                rows[name] += [{**keys, **_held(row)} for row in added]
        rows["searches"] += _searches(run)
    by_name = {}
    for name, columns in COLUMNS.items():
        swept = dict.fromkeys(key for row in rows[name] for key in row if key not in columns)
        frame = pd.DataFrame(rows[name], columns=[*columns, *swept])
        by_name[name] = frame.astype(columns).astype(dict.fromkeys(swept, "string"))
    return Frames(**by_name)


def _searches(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for each goal of each search of a run."""
    for chapter in chapters_of(run.header.experiments, run.records):
        for search in chapter.searches:
            for goal in search.state.goals:
                yield {
                    "run": run.folder.name,
                    "experiment": search.point.experiment,
                    "point": search.point.point,
                    "repetition": search.point.repetition,
                    **asdict(goal),
                    "trials": len(search.trials),
                    "took_ns": search.state.spent_ns,
                    "ended": search.state.ended,
                    "stage": search.breaking.stage if search.breaking is not None else None,
                    "breaks_first": breaking_text(search) or None,
                }


def _held(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the integers that a column of 64 bits with a sign cannot hold.

    Counters have no sign: a driver's that says -1 is the largest of them.
    """
    return {
        key: None if isinstance(value, int) and not -(2**63) <= value < 2**63 else value
        for key, value in row.items()
    }


def write_frames(runs: Sequence[Run], folder: Folder, form: Data) -> list[Path]:
    """Write each frame of some runs into a folder as a file of its own; return the files."""
    whole = frames(runs)
    files = []
    for name in (field.name for field in fields(Frames)):
        frame = getattr(whole, name)
        if form == "csv":
            content = frame.to_csv(index=False).encode()
        else:
            content = frame.to_parquet(index=False)
        files.append(folder.write(f"{name}.{form}", content))
    return files


Rows = Iterator[dict[str, Any]]


def _rows(record: TrialRecord) -> Iterator[tuple[str, Rows]]:
    """Yield what a record adds to each frame."""
    result, measured = judge(record), readings_of(record)
    yield "trials", iter([_trial(record, result)])
    yield "ledger", _ledger(result)
    yield "workers", _workers(result)
    yield "findings", _findings(result)
    yield "settings", _settings(record)
    if measured is not None:
        yield "series", _series(measured)
        yield "counters", _counters(measured)
        yield "queues", iter(queues_over_time(measured))


def _trial(record: TrialRecord, result: Result) -> dict[str, Any]:
    return {
        "variant": record.trial.variant,
        "started_at": record.started_at,
        "built_in_lab": record.built_in_lab,
        "status": result.status,
        "valid": result.valid,
        "struck": bool(result.struck),
        "reason": "; ".join(map(str, reasons(result))) or None,
        **{name: result.numbers.get(name) for name in METRICS if name not in SEARCHED},
        **{key: str(value) for key, value in record.trial.values.items()},
    }


def _ledger(result: Result) -> Rows:
    for entry in result.ledger.entries if result.ledger is not None else ():
        yield {
            "valid": result.valid,
            "stage": entry.stage,
            "packets": entry.packets,
            "at_most": entry.at_most if entry.at_most is not None else entry.packets,
            "others_packets": entry.others_packets,
            "source": entry.source,
        }


def _workers(result: Result) -> Rows:
    for worker in result.workers:
        yield {
            "valid": result.valid,
            "worker": worker.worker,
            "host": host_of(worker.worker),
            "role": worker.role,
            "cpu": worker.cpu,
            "packets": worker.packets,
            "pps": worker.pps,
            "memory_bytes": worker.memory_bytes,
        }


def _findings(result: Result) -> Rows:
    for finding in result.findings:
        yield {
            "severity": finding.severity,
            "where": finding.where,
            "what": finding.what,
            "value": finding.value,
            "limit": finding.limit,
            "next_step": finding.next_step,
        }


def _settings(record: TrialRecord) -> Rows:
    for host, changes in record.changes.items():
        for change in changes:
            yield {
                "host": host,
                "kind": change.setting.kind,
                "target": change.setting.target,
                "path": change.setting.path,
                "before": json.dumps(change.before),
                "after": json.dumps(change.after),
                "refusal": change.refusal,
            }


def _series(measured: Readings) -> Rows:
    roles = {spec.name: spec.role for spec in measured.record.workers}
    for sample in measured.record.series:
        role = roles.get(sample.worker)
        if role is None:
            continue
        host = host_of(sample.worker)
        yield {
            "worker": sample.worker,
            "host": host,
            "role": role,
            "since_start_ns": since_start_ns(measured.phase, host, sample.clock_ns),
            "packets": sample.counts.get(PACKETS_FIELD[role]),
            "bytes": sample.counts.get(BYTES_FIELD[role]),
        }


def queues_over_time(measured: Readings) -> list[dict[str, Any]]:
    """Return what each queue did from one reading of the counters to the next, a row each."""
    return [
        dict(row)
        for interval in intervals(measured)
        for row in queue_rows(queue_uses(interval.readings), interval.from_ns, interval.to_ns)
    ]


def _counters(measured: Readings) -> Rows:
    for interval in intervals(measured):
        for host, delta in interval.readings.deltas.items():
            for name, difference in delta.values.items():
                if difference:
                    yield {
                        "host": host,
                        "from_ns": interval.from_ns,
                        "to_ns": interval.to_ns,
                        "counter": name,
                        "difference": difference,
                    }
