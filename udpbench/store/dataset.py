"""The store of many runs: a Parquet dataset by campaign, pair and day, on disk or in S3.

Owns its format: one file per run, one row per trial. Files are written atomically, and a run's file
always has the same name, so that a run written again replaces itself. pyarrow, part of the extra
``store``, is imported on first use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from udpbench.errors import InputError, Problem, RecordError
from udpbench.folder import Folder
from udpbench.json_lines import MOST_BYTES, open_regular
from udpbench.records import RUN_FILE, Run, read_run
from udpbench.report.data_frames import COLUMNS, held
from udpbench.report.json_output import as_json

if TYPE_CHECKING:
    import pandas as pd

PARTITIONS = ("campaign", "pair", "day")
"""Hive partitions ``campaign=…/pair=…/day=2026-11-22/``; the day is the run's start in UTC."""
SEARCHED = "throughput_pps"
"""Columns of a search, repeated in the row of each of its trials."""
TRIAL = {**COLUMNS["trials"], SEARCHED: "Float64"}
RUN = {"question": "string", "lab": "string", "udpbench": "string", "hosts": "string"}
"""Columns of the run, repeated in each row; ``hosts`` is JSON as in ``show --json``."""
MAPS = {"values": "string", "ledger": "Int64"}
"""Swept key → value, stage → packets."""
MOST_ROWS = 2**20
SAID = 300
"""Characters of an error of Arrow, which may name every column."""
IDENTITY = 12
"""Hexadecimal digits of a run's identity in its file name."""


def write_runs(
    folders: Iterable[str | Path], path: str | Path, *, campaign: str, pair: str
) -> list[str]:
    """Write runs to a store, replacing earlier versions of them; return the file names.

    ``path`` is a folder, created if missing, or an address such as ``s3://bucket/store``.
    Unreadable runs are skipped. Raises InputError if nothing can be written; if some runs fail,
    RecordError after all others were written.
    """
    arrow = _pyarrow()
    _refuse_empty({"campaign": campaign, "pair": pair})
    filesystem, base = _place(path)
    written, problems = [], []
    for folder in folders:
        try:
            run = read_run(Path(folder))
            name = _file_of(run, campaign, pair)
            _put(filesystem, base, name, _as_parquet(arrow, run))
        except RecordError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{folder}: cannot be written to {path}: {_said(error)}")
        else:
            written.append(name)
    if problems:
        raise RecordError("\n".join(problems))
    return written


def read_runs(
    path: str | Path,
    *,
    point: str | None = None,
    campaign: str | None = None,
    pair: str | None = None,
) -> pd.DataFrame:
    """Return the trials in a store, of all or some runs, ordered by start time.

    docs/records.md describes each column. InputError or RecordError if there is no store, or if a
    file in it cannot be read.
    """
    arrow = _pyarrow()
    filesystem, base = _place(path)
    filters = {"point": point, "campaign": campaign, "pair": pair}
    try:
        files = _files(filesystem, base, path)
        _refuse_large(filesystem, files)
        return _as_frame(_scanned(arrow, filesystem, base, files, filters))
    except (OSError, arrow.ArrowException, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: the store cannot be read: {_said(error)[:SAID]}") from error


def _scanned(
    arrow: Any, filesystem: Any, base: str, files: list[str], filters: Mapping[str, str | None]
) -> Any:
    """Return the chosen rows of some files; texts that rows repeat are kept once."""
    from pyarrow import dataset

    chosen = [dataset.field(name) == value for name, value in filters.items() if value is not None]
    hive = arrow.schema([(name, arrow.string()) for name in PARTITIONS])
    shared = [field.name for field in _schema(arrow) if field.type == arrow.string()]
    schema = [
        field.with_type(arrow.dictionary(arrow.int32(), arrow.string()))
        if field.name in shared
        else field
        for field in _schema(arrow)
    ]
    form = dataset.ParquetFileFormat(dictionary_columns=shared)
    return dataset.dataset(
        files,
        filesystem=filesystem,
        format=form,
        schema=arrow.schema([*hive, *schema]),
        partitioning=dataset.partitioning(hive, flavor="hive"),
        partition_base_dir=base,
    ).to_table(filter=_all(chosen), use_threads=False)


def _as_frame(table: Any) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as arrow

    types = {
        arrow.string(): pd.StringDtype("python"),
        arrow.bool_(): pd.BooleanDtype(),
        arrow.int64(): pd.Int64Dtype(),
        arrow.float64(): pd.Float64Dtype(),
    }
    frame: pd.DataFrame = table.to_pandas(
        types_mapper=types.get, maps_as_pydicts="strict", deduplicate_objects=True
    )
    for name in frame.columns[frame.dtypes == "Float64"]:
        if frame[name].isin([inf, -inf]).any():
            raise ValueError(f"a value of {name} is infinite")
    shared = frame.select_dtypes("category").columns
    frame = frame.assign(**{name: frame[name].astype(pd.StringDtype("python")) for name in shared})
    order = ["started_at", *PARTITIONS, "experiment", "point", "repetition"]
    return frame.sort_values(order, ignore_index=True)


def _refuse_large(filesystem: Any, files: list[str]) -> None:
    """Raise ValueError if files declare more than is read; nothing of them is unpacked."""
    from pyarrow import parquet

    rows = content_bytes = 0
    for file in files:
        with filesystem.open_input_file(file) as source:
            known = parquet.read_metadata(source)
        rows += known.num_rows
        groups = (known.row_group(number) for number in range(known.num_row_groups))
        content_bytes += sum(group.total_byte_size for group in groups)
        if rows > MOST_ROWS or content_bytes > MOST_BYTES:
            limit = f"at most {MOST_ROWS} trials and {MOST_BYTES // 2**20}MiB"
            raise ValueError(f"{file}: the files up to this hold more than is read, {limit}")


def is_store(path: str | Path) -> bool:
    """Return whether a path is an address, or a folder with a store in it."""
    return "://" in str(path) or any(Path(path).glob("campaign=*"))


# --- its form ------------------------------------------------------------------------------------


def _file_of(run: Run, campaign: str, pair: str) -> str:
    """Return the name of a run's file below the store.

    The first line identifies a run, even if it was copied, moved or resumed.
    """
    with open_regular(run.folder / RUN_FILE) as file:
        identity = sha256(file.readline()).hexdigest()[:IDENTITY]
    values = (campaign, pair, run.header.started_at[:10])
    folders = [
        f"{name}={quote(value, safe='')}" for name, value in zip(PARTITIONS, values, strict=True)
    ]
    return "/".join([*folders, f"{identity}.parquet"])


def _as_parquet(arrow: Any, run: Run) -> bytes:
    from pyarrow import parquet

    content = BytesIO()
    parquet.write_table(arrow.Table.from_pylist(list(_rows(run)), _schema(arrow)), content)
    return content.getvalue()


def _schema(arrow: Any) -> Any:
    types = {
        "string": arrow.string(),
        "boolean": arrow.bool_(),
        "Int64": arrow.int64(),
        "Float64": arrow.float64(),
    }
    plain = [(name, types[kind]) for name, kind in {**TRIAL, **RUN}.items()]
    maps = [(name, arrow.map_(arrow.string(), types[kind])) for name, kind in MAPS.items()]
    return arrow.schema(plain + maps)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    data = as_json(run)
    same = {
        "run": data["run"],
        "lab": data["lab"]["name"],
        "udpbench": run.header.udpbench,
        "hosts": json.dumps(data["hosts"]),
    }
    questions = {each["name"]: each["question"] for each in data["experiments"]}
    searched = {_key(search): search[SEARCHED] for search in data["searches"]}
    for trial in data["trials"]:
        ledger = {entry["stage"]: entry["packets"] for entry in trial["ledger"] or ()}
        yield {
            **held({name: trial.get(name) for name in TRIAL}),
            **same,
            "question": questions[trial["experiment"]],
            SEARCHED: searched.get(_key(trial)),
            "values": [*trial["values"].items()],
            "ledger": [*held(ledger).items()],
        }


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["experiment"], row["point"], row["repetition"]


# --- its place -----------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        step = "pip install 'udpbench[store]'"
        raise InputError([Problem("needs pyarrow", "store", next_step=step)]) from error
    return pyarrow


def _refuse_empty(names: Mapping[str, str]) -> None:
    problems = [
        Problem("an empty name", name, repr(value), "a partition of the store has one")
        for name, value in names.items()
        if not value
    ]
    if problems:
        raise InputError(problems)


def _place(path: str | Path) -> tuple[Any, str]:
    """Return the file system of a path or an address, and the path there."""
    from pyarrow import ArrowException, fs

    if "://" not in str(path):
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        filesystem, base = fs.FileSystem.from_uri(str(path))
    except (ArrowException, OSError) as error:
        step = "name a folder, or s3://bucket/folder"
        problem = Problem(_said(error), "store", str(path), next_step=step)
        raise InputError([problem]) from error
    return filesystem, base


def _put(filesystem: Any, base: str, name: str, content: bytes) -> None:
    """Write a file atomically; OSError if it cannot be written."""
    if filesystem.type_name == "local":
        path = Path(base, name)
        with Folder.open(path.parent, make=True) as folder:
            folder.write(path.name, content)
        return
    # An object appears when its upload ends; ``with`` would also complete a failed write.
    stream = filesystem.open_output_stream(f"{base}/{name}")
    stream.write(content)
    stream.close()


def _files(filesystem: Any, base: str, path: str | Path) -> list[str]:
    from pyarrow import fs

    listed = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    files = sorted(
        info.path
        for info in listed
        if info.is_file
        and info.path.endswith(".parquet")
        and info.path[len(base) :].startswith("/campaign=")
    )
    if not files:
        what = "no run is stored there"
        step = "udpbench.write_runs() writes one"
        raise InputError([Problem(what, "store", str(path), next_step=step)])
    return files


def _all(conditions: list[Any]) -> Any:
    whole = None
    for condition in conditions:
        whole = condition if whole is None else whole & condition
    return whole


def _said(error: BaseException) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())
