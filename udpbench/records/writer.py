"""A run folder written: files of JSON lines, to which a run appends.

A line is on the disk before the next trial begins, so a run killed at any moment is readable.
A resumed run has several sessions in one file. The writing process holds the file's lock.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Self

from udpbench.errors import RecordError, StoreError
from udpbench.folder import Folder, lock_file
from udpbench.host_settings import set_keys
from udpbench.json_lines import append, append_line, cut_torn
from udpbench.judged_trials import (
    JUDGED_FILE,
    JudgedTrial,
    SourceDigest,
    own_key,
    rows_kept,
    sealed,
)
from udpbench.model.record import Sample, Snapshot, TrialRecord
from udpbench.model.result import Result
from udpbench.printable import printable
from udpbench.records.exact import adapter, judged_text
from udpbench.records.folders import cannot, no_run, strangers_of
from udpbench.records.kept_results import places_in
from udpbench.records.lines import SAMPLES, SNAPSHOTS, is_printable
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE, Begin, Ending, Run, RunHeader, strange_parts


class RunWriter:
    """Writes one run; every line is flushed and synced before the call returns."""

    def __init__(self, held: Folder, run_fd: int, series_fd: int) -> None:
        self.folder = held.path
        self.written = 0
        """Records written so far."""
        self._number = 0
        """The next record's sequence number; the incomplete series of a killed run keeps its
        own."""
        self._held = held
        self._run_fd = run_fd
        self._series_fd = series_fd
        self._series_at = 0
        """Offset in the series file at which the parts of the current trial begin."""
        self._streamed = (0, 0)
        """Samples and snapshots of the current trial already written."""
        self._source: SourceDigest | None = SourceDigest()
        """The current trial's series; None if not all its names are printable."""
        self._last: tuple[TrialRecord | None, str, dict[str, tuple[int, int]]] = None, "", {}
        """The record that was written last, the digest of what it will be judged from, and where
        parts of it are."""
        self._judged_fd: int | None = None

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
        """Begin a run in ``folder``, created if missing; a folder that holds a run is refused."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        strange = next(strange_parts(header), None)
        if strange is not None:
            raise RecordError(f"{folder}: {strange}: such a run could not be read again")
        try:
            held = Folder.open(folder, make=True)
            run_fd, series_fd = held.file(RUN_FILE, flags), held.file(SERIES_FILE, flags)
            writer = cls(held, run_fd, series_fd)
            writer._lock(must=False)  # a new folder has no other owner
            plain = _plain(RunHeader, header)
            for point in chain.from_iterable(
                experiment["points"] for experiment in plain["experiments"]
            ):
                point["settings"] = set_keys(point["settings"])
            append(run_fd, {"kind": "header", **plain})
            os.fsync(held.fd)  # sync the directory entry, too (fsync(2))
        except FileExistsError as error:
            raise RecordError(f"{folder}: already holds a run; name another folder") from error
        except OSError as error:
            raise cannot("begin a run", folder, error) from error
        return writer

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Take over a run that has ended or died, changing nothing yet; refuse one in progress."""
        flags = os.O_RDWR | os.O_APPEND
        try:
            held = Folder.open(folder)
            run_fd = held.file(RUN_FILE, flags)
            series_fd = held.file(SERIES_FILE, flags | os.O_CREAT)
        except FileNotFoundError as error:
            raise no_run(folder / RUN_FILE) from error
        except OSError as error:
            what = f"{folder}: cannot continue the run: {error.strerror}"
            raise RecordError(f"{what}; change its owner to you, or copy it") from error
        writer = cls(held, run_fd, series_fd)
        writer._lock()
        return writer

    def _lock(self, must: bool = True) -> None:
        """Lock the folder; the lock ends with this process, however it dies."""
        try:
            locked = lock_file(self._run_fd)
        except OSError as error:
            if not must:
                return
            self.close()
            why = f"this disk has no locks ({error.strerror}); copy the folder to one that has"
            raise RecordError(f"{self.folder}: {why}") from error
        if not locked:
            self.close()
            why = "in use by a run that is still going on; wait until it ends, or interrupt it"
            raise RecordError(f"{self.folder}: {why}")

    def hold(self) -> Folder:
        """Return its folder, which stays open when the run has ended."""
        return Folder(self.folder, os.dup(self._held.fd))

    def read(self) -> Run:
        """Return the run in the folder that is held, wherever its path leads by now."""
        return read_run(self.folder, self._held.fd)

    def strangers(self) -> list[str]:
        """Return how other users could have written this run, in words."""
        return strangers_of((self._held.fd, self._run_fd, self._series_fd))

    def resume(self, run: Run, begin: Begin) -> None:
        """Begin another session of ``run``, which was read from this folder under the lock."""
        cut_bytes = cut_torn(self._run_fd)
        cut_torn(self._series_fd)
        self._series_at = os.fstat(self._series_fd).st_size
        self._number = run.numbers
        line = _plain(Begin, replace(begin, cut_bytes=cut_bytes))
        self._append(self._run_fd, {"kind": "resumed", **line})

    def write(self, record: TrialRecord) -> None:
        """Append one record; its series is written first, so that every record has one.

        Streamed parts of the series are already written. StoreError names the trial.
        """
        try:
            self._write(record)
        except StoreError as error:
            how = "ran" if record.status == "done" else f"ended as {record.status}"
            what = f"{record.trial.name} {how} and could not be stored"
            raise StoreError(f"{what}: {error}") from error

    def _write(self, record: TrialRecord) -> None:
        samples, snapshots = self._streamed
        rest = record.series[samples:], record.motion[snapshots:]
        if any(rest) or any(self._streamed):
            self._append_part(*rest)
        self._series_at, self._streamed = os.fstat(self._series_fd).st_size, (0, 0)
        plain = _plain(TrialRecord, replace(record, series=(), motion=()))
        plain["trial"]["settings"] = set_keys(plain["trial"]["settings"])
        message = {"kind": "trial", "sequence": self._number, "record": plain}
        line, source = self._append(self._run_fd, message), self._source
        self.written, self._number, self._source = (
            self.written + 1,
            self._number + 1,
            SourceDigest(),
        )
        self._last = None, "", {}
        if source is not None and is_printable(line):
            self._last = record, source.with_line(line), places_in(line, plain)

    def keep_result(self, record: TrialRecord, result: Result) -> None:
        """Store how the record that was written last was judged, to be read by the same build.

        Nothing is lost if that fails: the record is judged again where its result is asked for.
        """
        last, digest, parts = self._last
        if last is not record:
            return
        with suppress(OSError, ValueError):  # of a full disk, and of what does not read back alike
            kept = JudgedTrial(
                digest,
                record.status,
                record.built_in_lab,
                record.started_at,
                replace(result, tables=()),
                rows_kept(result.tables),
                parts,
            )
            if self._judged_fd is None:
                self._judged_fd = self._open_judged()
            if self._key is not None:
                append_line(self._judged_fd, sealed(judged_text(kept), self._key))

    def _open_judged(self) -> int:
        fd = self._held.file(JUDGED_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            cut_torn(fd)
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", JUDGED_FILE)

    @cached_property
    def _key(self) -> bytes | None:
        return own_key(make=True)

    def stream(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> None:
        """Append a part of the current trial's series; the trial's record includes it.

        Not synced: a busy disk would disturb the measurement.
        """
        self._append_part(samples, snapshots, sync=False)
        before = self._streamed
        self._streamed = before[0] + len(samples), before[1] + len(snapshots)

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return the streamed parts of the current trial."""
        if not any(self._streamed):
            return (), ()
        with open(self._series_fd, "rb", closefd=False) as file:
            file.seek(self._series_at)
            parts = [json.loads(line) for line in file]
        samples = (adapter(SAMPLES).validate_python(part["samples"]) for part in parts)
        snapshots = (adapter(SNAPSHOTS).validate_python(part["snapshots"]) for part in parts)
        return tuple(chain.from_iterable(samples)), tuple(chain.from_iterable(snapshots))

    def _append_part(
        self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...], sync: bool = True
    ) -> None:
        line = self._append(self._series_fd, self._part(samples, snapshots), sync)
        if self._source is not None and is_printable(line):
            self._source.add(line)
        else:
            self._source = None

    def _part(self, samples: tuple[Sample, ...], snapshots: tuple[Snapshot, ...]) -> dict[str, Any]:
        return {
            "sequence": self._number,
            "samples": adapter(SAMPLES).dump_python(samples, mode="json"),
            "snapshots": adapter(SNAPSHOTS).dump_python(snapshots, mode="json"),
        }

    def keep_output(self, name: str, text: str) -> None:
        """Write the output of a user's program in a trial to a file of its own."""
        plain = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name)
        try:
            self._held.write(f"{plain}.output", printable(text).encode())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot write {plain}: {error.strerror}") from error

    def finish(self, ending: Ending) -> None:
        """Append how the run ended and close the files."""
        try:
            self._append(self._run_fd, {"kind": "ending", **_plain(Ending, ending)})
        finally:
            self.close()

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._run_fd)
        os.close(self._series_fd)
        if self._judged_fd is not None:
            os.close(self._judged_fd)
        self._held.close()

    def _append(self, fd: int, message: dict[str, Any], sync: bool = True) -> bytes:
        self._refuse_gone()
        try:
            return append(fd, message, sync)
        except OSError as error:
            step = f"free space, then: udpbench run --resume {quote(str(self.folder))}"
            what = f"{self.folder}: cannot write to the run: {error.strerror}"
            raise StoreError(f"{what}; {step}") from error

    def _refuse_gone(self) -> None:
        """Raise StoreError if the run folder was removed or replaced."""
        file = os.fstat(self._run_fd)
        with suppress(OSError):
            if os.path.samestat(file, (self.folder / RUN_FILE).stat()):
                return
        how = "moved away" if file.st_nlink else f"deleted, with {self._number} stored trials,"
        step = (
            "find out who deleted it, and run again"
            if not file.st_nlink
            else "resume it where it is now"
        )
        raise StoreError(f"{self.folder}: the run folder was {how} during the run; {step}")


def _plain(kind: Any, value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = adapter(kind).dump_python(value, mode="json")
    return plain
