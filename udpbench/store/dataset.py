"""The store of many runs: a Parquet dataset by campaign, pair and day, on disk or in S3.

Owns its format: one file per run, one row per trial. Files are written atomically, and a run's file
always has the same name, so that a run written again replaces itself. pyarrow, part of the extra
``store``, is imported on first use.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import chain
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from udpbench.analysis.result_tables import TABLES, named_rows, whole
from udpbench.errors import InputError, Problem, RecordError
from udpbench.folder import Folder
from udpbench.installation import how_to_add
from udpbench.json_lines import MOST_BYTES, ROOM_BYTES, ROOM_TIMES, open_regular
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, Run
from udpbench.report.data_frames import COLUMNS, held
from udpbench.report.json_output import as_json

if TYPE_CHECKING:
    import pandas as pd

PARTITIONS = ("campaign", "pair", "day")
"""Hive partitions ``campaign=…/pair=…/day=2026-11-22/``; the day is the run's start in UTC."""
ORDER = ["started_at", *PARTITIONS, "experiment", "point", "repetition"]
DAY = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
SEARCHED = "throughput_pps"
"""Columns of a search, repeated in the row of each of its trials."""
LIMITS = "limits"
"""Column of what limits a trial first, as a sentence; null if nothing is known."""
TRIAL = {**COLUMNS["trials"], SEARCHED: "Float64", LIMITS: "string"}
RUN = {"question": "string", "lab": "string", "udpbench": "string", "hosts": "string"}
"""Columns of the run, repeated in each row; ``hosts`` is JSON as in ``show --json``."""
MAPS = {"values": "string", "ledger": "Int64"}
"""Swept key → value, stage → packets."""
ALL_TABLES = "tables"
"""Column of a trial's tables over the whole phase, as JSON: table → rows."""
MOST_ROWS = 2**20
MOST_ENTRIES = 2**17
"""Files and folders of a store that are looked at."""
MOST_CPU_S = 600
"""Limit of decoding a store; a run of 100 trials takes 10 ms."""
ROW_BYTES = 2**13
"""A trial's share of a frame, beside the content: its stages and swept values are dicts."""
GROUP_ROWS = 2**13
"""Rows that are decoded at once: of 100,000 in one group, texts and numbers took 64 MiB."""
DAMAGED = "it takes more memory than its size allows, or is damaged"
"""Said of a file whose decoder died: C++ ends a process that gets no memory."""
SAID = 300
"""Characters of an error of Arrow, which may name every column."""
IDENTITY = 12
"""Hexadecimal digits of a run's identity in its file name."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class StoredFile:
    """A file of a store, and the values of its partitions."""

    place: str
    parts: Mapping[str, str]
    open: Callable[[], Any]


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
    tables: bool = False,
) -> pd.DataFrame:
    """Return the trials in a store, of all or some runs, ordered by start time.

    docs/records.md describes each column; ``tables`` adds that of trials' tables. InputError or
    RecordError if there is no store, or if a file in it cannot be read.
    """
    arrow = _pyarrow()
    filesystem, base = _place(path)
    chosen = {"campaign": campaign, "pair": pair}
    try:
        files = _files(filesystem, base, path)
        selected = (each for each in files if _is_chosen(each, chosen))
        return _as_frame(_decoded(arrow, selected, point, tables))
    except (OSError, arrow.ArrowException, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: the store cannot be read: {_said(error)[:SAID]}") from error


def _is_chosen(file: StoredFile, chosen: Mapping[str, str | None]) -> bool:
    return all(value in (None, file.parts[name]) for name, value in chosen.items())


def _decoded(arrow: Any, files: Iterable[StoredFile], point: str | None, tables: bool) -> Any:
    """Return the rows of some files; texts that rows repeat are kept once."""
    text = arrow.dictionary(arrow.int32(), arrow.string())
    plain = [*((name, arrow.string()) for name in PARTITIONS), *_schema(arrow, tables)]
    fields = [arrow.field(*each) if isinstance(each, tuple) else each for each in plain]
    schema = arrow.schema(
        [field.with_type(text) if field.type == arrow.string() else field for field in fields]
    )
    batches: list[Any] = []
    with Decoder(arrow, schema, point) as decoder:
        for each in files:
            batches += decoder.batches(each)
    return arrow.Table.from_batches(batches, schema)


class Decoder:
    """The program ``parquet_files``, which decodes one file after the other."""

    def __init__(self, arrow: Any, schema: Any, point: str | None) -> None:
        self._arrow = arrow
        asked = schema.serialize().to_pybytes()
        limits = {
            "rows": MOST_ROWS,
            "content_bytes": MOST_BYTES,
            "room_times": ROOM_TIMES,
            "room_bytes": ROOM_BYTES,
            "row_bytes": ROW_BYTES,
            "cpu_s": MOST_CPU_S,
            "schema_bytes": len(asked),
            "point": point,
        }
        program = Path(__file__).with_name("parquet_files.py")
        # Other allocators reserve memory that they may never use, which would count.
        alone = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **alone},
        )
        self._requests: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self._first = json.dumps(limits).encode() + b"\n" + asked

    def __enter__(self) -> Decoder:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(OSError), self._process:  # what it was not sent is lost
            pass

    def batches(self, file: StoredFile) -> list[Any]:
        """Return the rows of a file; ValueError, with its place, if it cannot be decoded."""
        with file.open() as source:
            size_bytes = source.seek(0, os.SEEK_END)
            if size_bytes > MOST_BYTES:
                raise ValueError(f"{file.place}: larger than {MOST_BYTES // 2**20}MiB")
            source.seek(0)
            data = source.read(size_bytes)
        header = json.dumps({"bytes": len(data), "parts": file.parts}).encode()
        rows, ended = [], b""
        with suppress(OSError, self._arrow.ArrowException):
            for part in (self._first, header, b"\n", data):
                self._requests.write(part)
            self._requests.flush()
            self._first = b""  # sent
            with self._arrow.ipc.open_stream(self._answers) as stream:
                rows = [*stream]
            ended = self._answers.read(1)
        if not ended:
            raise ValueError(f"{file.place}: {self._why()}")
        return rows

    def _why(self) -> str:
        """Return why the program ended."""
        with suppress(OSError):
            self._requests.close()
        self._process.stdin = None
        _, errors = self._process.communicate()
        if self._process.returncode == -signal.SIGXCPU:
            return f"decoding it takes more than {MOST_CPU_S}s of CPU"
        return errors.decode(errors="replace") if self._process.returncode == 1 else DAMAGED


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
    return frame.sort_values(ORDER, ignore_index=True)


def is_store(path: str | Path) -> bool:
    """Return whether a path is an address, or a folder with a store in it."""
    return "://" in str(path) or any(Path(path).glob("campaign=*"))


# --- its form ------------------------------------------------------------------------------------


def _file_of(run: Run, campaign: str, pair: str) -> str:
    """Return the name of a run's file below the store.

    The first line identifies a run, even if it was copied, moved or resumed.
    """
    with open_regular(run.folder / RUN_FILE, follow=False) as file:
        identity = sha256(file.readline()).hexdigest()[:IDENTITY]
    values = (campaign, pair, run.header.started_at[:10])
    folders = [
        f"{name}={quote(value, safe='')}" for name, value in zip(PARTITIONS, values, strict=True)
    ]
    return "/".join([*folders, f"{identity}.parquet"])


def _as_parquet(arrow: Any, run: Run) -> bytes:
    from pyarrow import parquet

    content = BytesIO()
    table = arrow.Table.from_pylist(list(trial_rows(run)), _schema(arrow, tables=True))
    parquet.write_table(table, content, row_group_size=GROUP_ROWS)
    return content.getvalue()


def _schema(arrow: Any, tables: bool) -> Any:
    types = {
        "string": arrow.string(),
        "boolean": arrow.bool_(),
        "Int64": arrow.int64(),
        "Float64": arrow.float64(),
    }
    plain = [(name, types[kind]) for name, kind in {**TRIAL, **RUN}.items()]
    maps = [(name, arrow.map_(arrow.string(), types[kind])) for name, kind in MAPS.items()]
    return arrow.schema(plain + maps + [(ALL_TABLES, arrow.string())] * tables)


def trial_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a row for each trial of a run: its columns, those of the run, and its tables."""
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
        limits = trial["diagnosis"][0]["sentence"] if trial["diagnosis"] else None
        yield {
            **held({name: trial.get(name) for name in TRIAL}),
            **same,
            "question": questions[trial["experiment"]],
            SEARCHED: searched.get(_key(trial)),
            LIMITS: limits,
            "values": [*trial["values"].items()],
            "ledger": [*held(ledger).items()],
            ALL_TABLES: json.dumps(_tables(trial)),
        }


def _tables(trial: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of a trial, each over the whole phase."""
    rows = {table.name: [tuple(row.values()) for row in trial[table.name]] for table, _ in TABLES}
    given = (replace(table, rows=rows[table.name].copy) for table, _ in TABLES)
    return {table.name: named_rows(whole(table)) for table in given}


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["experiment"], row["point"], row["repetition"]


# --- its place -----------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        step = how_to_add("store")
        raise InputError([Problem("needs pyarrow", "store", next_step=step)]) from error
    return pyarrow


def _refuse_empty(names: Mapping[str, str]) -> None:
    problems = [
        Problem("an empty name", name, repr(value), "a name for a partition of the store")
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


def _files(filesystem: Any, base: str, path: str | Path) -> Iterator[StoredFile]:
    """Yield every file of a store; InputError if there is none, OSError if it cannot be listed."""
    local = filesystem.type_name == "local"
    files = _on_disk(base) if local else _in_objects(filesystem, base)
    first = next(files, None)
    if first is None:
        what = "no run is stored there"
        step = "udpbench.write_runs() writes one"
        raise InputError([Problem(what, "store", str(path), next_step=step)])
    yield from chain([first], files)


def _on_disk(base: str) -> Iterator[StoredFile]:
    """Yield the files at the levels of a store; no link below the store is followed."""
    try:
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        yield from _below(Path(base), fd, {}, [MOST_ENTRIES])
    finally:
        os.close(fd)


def _below(path: Path, fd: int, parts: dict[str, str], left: list[int]) -> Iterator[StoredFile]:
    names = []
    with os.scandir(fd) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(f"{path}: more than {MOST_ENTRIES} files and folders up to this")
            names.append(entry.name)
    if len(parts) == len(PARTITIONS):
        for name in sorted(names):
            if name.endswith(".parquet"):
                place = path / name
                yield StoredFile(str(place), parts, partial(_open_whole, place, fd))
        return
    level = PARTITIONS[len(parts)]
    for name in sorted(names):
        if not name.startswith(f"{level}="):
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=fd)
        except NotADirectoryError as error:
            raise OSError(f"{path / name}: not a folder; a store holds no links") from error
        try:
            yield from _below(path / name, inner, {**parts, **_part(name)}, left)
        finally:
            os.close(inner)


def _open_whole(place: Path, folder_fd: int) -> IO[bytes]:
    """Open a file of a store; ValueError if it has holes, which take no disk but are read."""
    file = open_regular(place, folder_fd, follow=False)
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size_bytes:
        file.close()
        raise ValueError(f"{place}: has holes, so it is no file of a store")
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file


def _part(name: str) -> dict[str, str]:
    """Return the column and value of a partition's folder; ValueError if a day is none."""
    column, _, value = name.partition("=")
    if column == "day" and not DAY.fullmatch(value):
        raise ValueError(f"{name}: not a day, such as 2026-11-22")
    return {column: unquote(value)}


def _in_objects(filesystem: Any, base: str) -> Iterator[StoredFile]:
    from pyarrow import fs

    listed = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    if len(listed) > MOST_ENTRIES:
        raise OSError(f"{base}: more than {MOST_ENTRIES} files and folders")
    for place in sorted(info.path for info in listed if info.is_file):
        *folders, name = place[len(base) :].strip("/").split("/")
        levels = tuple(folder.partition("=")[0] for folder in folders)
        if levels == PARTITIONS and name.endswith(".parquet"):
            parts = {column: value for each in folders for column, value in _part(each).items()}
            yield StoredFile(place, parts, partial(filesystem.open_input_file, place))


def _said(error: BaseException) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())
