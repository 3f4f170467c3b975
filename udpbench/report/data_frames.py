"""Runs as tidy pandas frames, and the frames as CSV and Parquet; docs/records.md has every column.

One row is one observation; unknown values are missing, never 0. Derives nothing beyond ``judge``
and the readings.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.motion import intervals
from udpbench.analysis.rates import host_of
from udpbench.analysis.readings import Readings, readings_of
from udpbench.analysis.result_tables import TABLES
from udpbench.errors import RecordError
from udpbench.folder import Folder
from udpbench.metrics import METRICS, SEARCHED
from udpbench.model.limits import SWEPT_MAX
from udpbench.model.record import BYTES_FIELD, PACKETS_FIELD, TrialRecord
from udpbench.printable import printable
from udpbench.records import reader
from udpbench.records.run import Run
from udpbench.report.embedded_data import read_report
from udpbench.report.json_output import as_json

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
"""First columns of every frame except ``definitions``; together they identify a trial."""
_TYPES = {"text": "string", "quotient": "Float64"}
"""Kind of a table's column → type of a frame's; others are integers."""
FINDING = ("severity", "where", "what", "value", "limit", "next_step")
SETTING = ("host", "kind", "target", "path", "before", "after", "refusal")
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
        **dict.fromkeys(("throughput_pps", "lower_pps", "upper_pps"), "Float64"),
        **dict.fromkeys(("trials", "took_ns"), "Int64"),
        **dict.fromkeys(("ended", "stage", "breaks_first"), "string"),
    },
    "ledger": {
        **KEYS,
        "valid": "boolean",
        "stage": "string",
        "node": "string",
        **dict.fromkeys(("packets", "at_most", "others_packets"), "Int64"),
        "source": "string",
    },
    "workers": {
        **KEYS,
        "valid": "boolean",
        **dict.fromkeys(("worker", "host", "role"), "string"),
        **dict.fromkeys(("cpu", "packets"), "Int64"),
        "pps": "Float64",
        "memory_bytes": "Int64",
    },
    "series": {
        **KEYS,
        **dict.fromkeys(("worker", "host", "role"), "string"),
        **dict.fromkeys(("since_start_ns", "packets", "bytes"), "Int64"),
    },
    "counters": {
        **KEYS,
        "host": "string",
        **dict.fromkeys(("from_ns", "to_ns"), "Int64"),
        "counter": "string",
        "difference": "Int64",
    },
    **{
        table.name: {
            **KEYS,
            **{each.name: _TYPES.get(each.kind, "Int64") for each in table.columns},
        }
        for table, _ in TABLES
    },
    "findings": {**KEYS, **dict.fromkeys(FINDING, "string")},
    "definitions": {
        **dict.fromkeys(("run", "experiment", "question", "source"), "string"),
        "repetitions": "Int64",
        **dict.fromkeys(("text", "lab", "lab_text"), "string"),
    },
    "settings": {**KEYS, **dict.fromkeys(SETTING, "string")},
}
"""Frame → column → its pandas type. The frame of trials has a column for each swept key, too."""
FORMULA = re.compile(r"[=@]|[+-](?![0-9.]+\Z)|[\uff1d\uff0b\uff20\uff0d\t\r\n]")
"""The beginning of a text that a spreadsheet would compute; some take full-width signs, too."""
INSIDE = re.compile(
    r"(?<=[;\t\r\n])(?=[=@]|[+-](?![0-9.]+(?:[;\t\r\n]|\Z))|[\uff1d\uff0b\uff20\uff0d])"
)
"""The same within a text, for a spreadsheet that splits at something else than commas: it begins
another cell there, and knows no quotes but those around a cell of its own."""


@dataclass(frozen=True)
class Frames:
    """One or more runs as tidy frames; docs/records.md has each column's meaning and unit."""

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
    """A row per counter that changed in a second of the measured phase."""
    findings: pd.DataFrame
    """A row per finding of each trial."""
    definitions: pd.DataFrame
    """A row per experiment: its definition as YAML, and the lab."""
    settings: pd.DataFrame
    """A row per setting that was in force in each trial."""
    tables: Mapping[str, pd.DataFrame]
    """The tables of results by name, each also an attribute: ``queues``."""

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return a table of the results."""
        known: Mapping[str, pd.DataFrame] = self.__dict__.get("tables", {})
        if name not in known:
            raise AttributeError(f"a run has no frame {name}")
        return known[name]


def read_run(*folders: str | Path) -> Frames:
    """Return runs, given by folder or ``report.html``, as frames.

    A report has no raw records: its settings, series and counters are empty, with a warning that
    names the run folder. Raises RecordError if a run cannot be read.
    """
    sources: list[Run | Plain] = []
    for path in map(Path, folders):
        if path.is_file():
            sources += read_report(path)
        else:
            sources.append(reader.read_run(path))
    try:
        whole = frames(sources)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if all(isinstance(source, Run) for source in sources):
            raise
        what = "the data in a report is damaged; read the run folder"
        raise RecordError(f"{', '.join(map(str, folders))}: {what}") from error
    for source in sources:
        if not isinstance(source, Run):
            missing = "a report has no settings, series or counters"
            folder = printable(str(source["run"]), keep="")
            warnings.warn(f"{missing}; read its run folder: {folder}", stacklevel=2)
    return whole


def frames(sources: Sequence[Run | Plain]) -> Frames:
    """Return runs, or output of ``show --json``, as frames."""
    tables = {name: _Table(columns) for name, columns in COLUMNS.items()}
    for source in sources:
        data = as_json(source) if isinstance(source, Run) else source
        run = held({"run": data["run"]})
        for trial in sorted(data["trials"], key=lambda trial: str(trial["started_at"])):
            keys = {**run, **held({name: trial[name] for name in [*KEYS][1:]})}
            for name, added in _result_rows(trial):
                tables[name].add(keys, added)
        tables["searches"].add(run, _searches(data))
        tables["definitions"].add(run, _definitions(data))
        del data
        for record in source.records if isinstance(source, Run) else ():
            keys = {**run, **_keys(record)}
            for name, added in _raw_rows(record):
                tables[name].add(keys, added)
    whole = {name: table.frame() for name, table in tables.items()}
    own = {table.name: whole.pop(table.name) for table, _ in TABLES}
    return Frames(**whole, tables=own)


class _Table:
    """Rows of a frame, kept by column: a dictionary for each row took four times the memory."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self._columns: dict[str, list[Any]] = {name: [] for name in types}
        self._rows = 0

    def add(self, keys: dict[str, Any], rows: Rows) -> None:
        """Append rows, each with the same keys before its own columns."""
        for row in rows:
            for name, value in {**keys, **held(row)}.items():
                if name not in self._columns:
                    self._columns[self._swept(name)] = [None] * self._rows
                self._columns[name].append(value)
            self._rows += 1
            for column in self._columns.values():
                if len(column) < self._rows:
                    column.append(None)

    def _swept(self, name: str) -> str:
        if len(self._columns) - len(self._types) >= SWEPT_MAX:
            what = f"more than {SWEPT_MAX} different swept keys do not fit into one frame"
            raise RecordError(f"{what}; read fewer runs at once")
        return name

    def frame(self) -> pd.DataFrame:
        """Return the rows as a frame; each column is released once it is converted."""
        import pandas as pd

        # Texts that rows repeat are kept once, which Arrow's strings do not.
        string = pd.StringDtype("python")
        arrays = {}
        for name in [*self._columns]:
            kind = self._types.get(name, "string")
            values = self._columns.pop(name)
            if kind != "string" and any(isinstance(value, str) for value in values):
                raise ValueError(f"{name} is text")  # numpy would give each the room of the longest
            dtype: Any = string if kind == "string" else kind
            arrays[name] = pd.array(values, dtype=dtype)
        return pd.DataFrame(arrays, copy=False)


def _keys(record: TrialRecord) -> dict[str, Any]:
    trial = record.trial
    names = (trial.experiment, trial.point, trial.repetition, trial.search_trial or None)
    return dict(zip([*KEYS][1:], names, strict=True))


def _searches(data: Plain) -> Rows:
    """Yield a row for each goal of each search of a run."""
    for search in data["searches"]:
        breaking = search["breaking"]
        for goal in search["goals"]:
            yield {
                **{name: search[name] for name in ("experiment", "point", "repetition")},
                **goal,
                **{name: search[name] for name in ("trials", "took_ns", "ended", "breaks_first")},
                "stage": breaking["stage"] if breaking is not None else None,
            }


def _definitions(data: Plain) -> Rows:
    """Yield a row for each experiment of a run."""
    for experiment in data["experiments"]:
        yield {
            "experiment": experiment["name"],
            **{name: experiment[name] for name in ("question", "source", "repetitions", "text")},
            "lab": data["lab"]["name"],
            "lab_text": data["lab"]["text"],
        }


def held(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without integers that do not fit into a signed 64-bit column.

    Counters are unsigned: a driver's -1 becomes the largest value. Lists and maps, which only a
    foreign file has, become text.
    """
    return {key: _held(value) for key, value in row.items()}


def _held(value: Any) -> Any:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    return value if value is None or isinstance(value, (str, float)) else str(value)


def write_frames(runs: Sequence[Run], folder: Folder, form: Data) -> list[Path]:
    """Write each frame of some runs into a file in a folder; return the files."""
    whole = frames(runs)
    files = []
    for name in COLUMNS:
        frame = getattr(whole, name)
        if form == "csv":
            content = unobeyed(frame).to_csv(index=False).encode()
        else:
            content = frame.to_parquet(index=False)
        files.append(folder.write(f"{name}.{form}", content))
    return files


def unobeyed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose texts no spreadsheet computes: an apostrophe is before a formula."""
    safe = {
        name: frame[name].map(_as_text, na_action="ignore")
        for name in frame.columns
        if frame[name].dtype == "string"
    }
    return frame.assign(**safe).rename(columns=_as_text)


def _as_text(text: str) -> str:
    text = INSIDE.sub("'", text)
    return f"'{text}" if FORMULA.match(text) else text


Rows = Iterator[dict[str, Any]]
Plain = Mapping[str, Any]


def _result_rows(trial: Plain) -> Iterator[tuple[str, Rows]]:
    """Yield what a trial's result, as ``show --json`` prints it, adds to each frame."""
    yield "trials", iter([_trial(trial)])
    yield "ledger", _ledger(trial)
    yield "workers", _workers(trial)
    yield "findings", (_known("findings", each) for each in trial["findings"])
    for table, _ in TABLES:
        yield table.name, iter(trial.get(table.name, ()))  # older reports lack newer tables


def _raw_rows(record: TrialRecord) -> Iterator[tuple[str, Rows]]:
    """Yield what only a record has."""
    measured = readings_of(record)
    yield "settings", _settings(record)
    if measured is not None:
        yield "series", _series(measured)
        yield "counters", _counters(measured)


def _known(frame: str, row: Plain) -> dict[str, Any]:
    """Return what a row has in the columns of a frame."""
    return {name: row[name] for name in COLUMNS[frame] if name not in KEYS}


def _trial(trial: Plain) -> dict[str, Any]:
    return {**_known("trials", trial), **trial["values"]}


def _ledger(trial: Plain) -> Rows:
    for entry in trial["ledger"] or ():
        most = entry["packets"] if entry["at_most"] is None else entry["at_most"]
        yield _known("ledger", {**entry, "at_most": most, "valid": trial["valid"]})


def _workers(trial: Plain) -> Rows:
    for worker in trial["workers"]:
        host = host_of(worker["worker"])
        yield _known("workers", {**worker, "host": host, "valid": trial["valid"]})


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
