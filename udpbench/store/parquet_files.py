"""Decodes Parquet files of anybody, as a program of its own: the kernel holds its memory and time.

Self-contained: imports no other file of udpbench, and writes none. A footer, a page or a run of
equal values may stand for any amount of memory, so no declared size is a limit; RLIMIT_DATA is.

Reads from stdin a line of JSON, ``ReadLimits``, and the schema; then of each file a line and its
content. Answers each with a stream of Arrow (IPC) and END, or ends with a line on stderr.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":
    sys.modules["numpy"] = None  # type: ignore[assignment]  # a third of pyarrow's start, unused

import pyarrow as pa
from pyarrow import compute, parquet

END = b"\n"
BATCH_ROWS = 4096
UNPACKED_TIMES = 32
"""Content per byte of a file that is believed; snappy, as ``write_runs`` has it, reaches 21."""
TEXT_TIMES = 4
"""Python's bytes per byte of text that is not ASCII."""
ENTRY_BYTES = 160
"""An entry of a map, as a dict: 19 stages took 85 each, a dict of one entry 232 and its objects."""
MIB = 2**20


@dataclass(frozen=True)
class ReadLimits:
    """What all files together may take; ``point`` selects rows."""

    rows: int
    content_bytes: int
    room_times: int
    room_bytes: int
    row_bytes: int
    cpu_s: int
    schema_bytes: int
    point: str | None


class Files:
    """What was read so far, which each further file adds to."""

    def __init__(self, limits: ReadLimits, schema: Any) -> None:
        self._limits = limits
        self._schema = schema
        self._begin_bytes = _data_bytes()
        self._rows = self._declared_bytes = self._content_bytes = self._frame_bytes = 0

    def batches(self, data: bytes, parts: dict[str, str]) -> Iterator[Any]:
        """Yield the rows of a file in the schema, ``parts`` among their columns."""
        self._hold(len(data))
        known = parquet.read_metadata(pa.BufferReader(data))
        self._hold(self._count(known, len(data)))
        paths = {known.schema.column(number).path for number in range(known.num_columns)}
        texts = {field.name for field in self._schema if pa.types.is_dictionary(field.type)}
        file = parquet.ParquetFile(
            pa.BufferReader(data),
            metadata=known,
            read_dictionary=[*(texts & paths)],
        )
        there = {*file.schema_arrow.names}  # made anew by each look
        columns = [name for name in self._schema.names if name in there]
        left = known.num_rows
        for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
            left -= len(batch)
            if left < 0:  # its row groups have a number of their own
                raise ValueError(f"it holds more than the {known.num_rows} trials that it declares")
            rows = self._conformed(batch, parts)
            if self._limits.point is not None:
                rows = rows.filter(compute.equal(rows["point"], self._limits.point))
            self._keep(rows)
            yield rows

    def _hold(self, content_bytes: int) -> None:
        """Limit the memory of this process to that of some content."""
        room_bytes = self._limits.room_times * content_bytes + self._limits.room_bytes
        _limit(resource.RLIMIT_DATA, self._begin_bytes + room_bytes)

    def _count(self, known: Any, size_bytes: int) -> int:
        """Return the content of a file; ValueError if all together hold more than is read.

        A row without content takes 1.2 KiB as a frame. Rows of a run take 15 B at least, for they
        differ in their time; a million that do not take 2 KB.
        """
        if known.num_rows > size_bytes:
            raise ValueError(f"it declares {known.num_rows} trials in {size_bytes} B")
        groups = (known.row_group(number) for number in range(known.num_row_groups))
        declared_bytes = sum(group.total_byte_size for group in groups)
        content_bytes: int = max(size_bytes, min(declared_bytes, UNPACKED_TIMES * size_bytes))
        self._content_bytes += content_bytes
        self._declared_bytes += max(declared_bytes, size_bytes)
        self._rows += known.num_rows
        if self._rows > self._limits.rows or self._declared_bytes > self._limits.content_bytes:
            limit = f"at most {self._limits.rows} trials and {self._limits.content_bytes // MIB}MiB"
            raise ValueError(f"the files up to this hold more than is read, {limit}")
        return content_bytes

    def _conformed(self, batch: Any, parts: dict[str, str]) -> Any:
        columns = []
        for field in self._schema:
            if field.name in parts:
                same = pa.DictionaryArray.from_arrays(
                    pa.repeat(pa.scalar(0, pa.int32()), len(batch)), [parts[field.name]]
                )
                columns.append(same)
            elif field.name in batch.schema.names:
                columns.append(batch[field.name].cast(field.type))
            else:
                columns.append(pa.nulls(len(batch), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _keep(self, rows: Any) -> None:
        """Count what rows will take as a frame; MemoryError if there is no room for it."""
        self._frame_bytes += 2 * rows.nbytes - self._limits.row_bytes * len(rows)
        for column in rows.columns:
            if pa.types.is_dictionary(column.type):
                self._frame_bytes += TEXT_TIMES * column.dictionary.nbytes
            if pa.types.is_map(column.type):
                self._frame_bytes += ENTRY_BYTES * len(column.items)
                self._frame_bytes += TEXT_TIMES * (column.keys.nbytes + column.items.nbytes)
        most_bytes = self._limits.room_times * self._content_bytes + self._limits.room_bytes
        if self._frame_bytes > most_bytes:
            raise MemoryError


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process (proc(5), statm: data and stack)."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - self-contained
        return int(file.read().split()[5]) * os.sysconf("SC_PAGESIZE")


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, hard))


def main() -> None:
    """Answer until stdin ends."""
    asked, answers = sys.stdin.buffer, pa.PythonFile(sys.stdout.buffer, "w")
    limits = ReadLimits(**json.loads(asked.readline()))
    schema = pa.ipc.read_schema(pa.py_buffer(asked.read(limits.schema_bytes)))
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_CORE, 0)
    files = Files(limits, schema)
    while line := asked.readline():
        given = json.loads(line)
        stream = pa.ipc.new_stream(answers, schema)
        for batch in files.batches(asked.read(given["bytes"]), given["parts"]):
            stream.write_batch(batch)
        stream.close()
        sys.stdout.buffer.write(END)  # a stream may also end where the program did
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main()
    except (MemoryError, SystemError):  # the latter where there is no memory for an exception
        sys.exit("it takes more memory than its size allows")
    except Exception as error:  # noqa: BLE001 - Arrow raises any kind for what is damaged
        sys.exit(" ".join(str(error).split())[:1000])
