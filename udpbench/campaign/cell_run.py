"""A cell on the worker: starts or resumes ``udpbench run`` as a process in the cell's folder.

Owns that process and its folder; the run owns the hosts. The holder of the lock in it runs it: the
run inherits the lock, so that it outlives a dead worker until hosts are restored.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from udpbench.campaign.cells import (
    ANSWERS,
    CellResult,
    identity_of,
    refuse_strangers,
    store_result,
    stored_result,
)
from udpbench.errors import FAILED, INTERRUPTED, YES, RecordError, in_words
from udpbench.folder import LOCK_FILE, Folder, holders_of, lock_file
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS
from udpbench.printable import printable
from udpbench.protocol import build_id
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE

POLL_S = 0.1
"""Interval of checks whether the cell is still wanted."""
LOCK_S = 600.0
"""A run that lost its worker is interrupted, and restores its hosts within minutes."""
SAID_EVERY_S = 1.0
COMPLAINT_LINES = 3
COMPLAINT_CHARACTERS = 600
PROGRAM = (sys.executable, "-P", "-m", "udpbench.campaign.bound_run")
Task = Mapping[str, Any]
"""As returned by ``cells.task_of``."""
Say = Callable[[str], None]


def run_cell(task: Task, say: Say, unwanted: Callable[[], bool]) -> dict[str, Any]:
    """Run a cell to its end, or until it is unwanted.

    Returns ``exit_code``, ``reason`` and ``chosen``, and the run's ``files`` if the campaign's
    folder is not accessible here. ``say`` gets the run's output, at most one line per second.
    """
    if task["build"] != build_id():
        step = "install the same udpbench there"
        why = f"the worker has build {build_id()} of udpbench, the campaign {task['build']}; {step}"
        return refused(why)
    folder, shared = _place(task)
    try:
        with Folder.open(folder, make=True) as held:
            for place in (folder.parent.parent, folder.parent, folder):
                with Folder.open(place) as part:
                    refuse_strangers(part)
            lock = held.lock()
            try:
                if not _locked(lock, folder, say, unwanted):
                    return _plain(CellResult(INTERRUPTED))
                result = stored_result(folder) or _run(task, held, lock, say, unwanted)
            finally:
                os.close(lock)
            return _plain(result, {} if shared else _files(held))
    except OSError as error:
        return refused(in_words(error))


def refused(why: str) -> dict[str, Any]:
    """Return what ``run_cell`` does of a cell that this worker cannot run."""
    return _plain(CellResult(FAILED, why))


def _plain(result: CellResult, files: Mapping[str, bytes] | None = None) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "reason": result.reason,
        "chosen": result.chosen,
        "files": dict(files or {}),
    }


def _place(task: Task) -> tuple[Path, bool]:
    """Return the cell's folder, and whether it is in the campaign's own folder."""
    campaign = Path(task["out"])
    if identity_of(campaign) == task["campaign"]:
        return campaign / task["folder"], True
    own = Path.home() / ".cache" / "udpbench" / "campaigns"
    return own / task["campaign"] / task["folder"], False


def _locked(lock: int, folder: Path, say: Say, unwanted: Callable[[], bool]) -> bool:
    """Wait until no other run uses the folder; False if the cell becomes unwanted first.

    Raises OSError if that takes longer than a dead worker's run needs to end.
    """
    begun_s, reported = time.monotonic(), False
    while not lock_file(lock):
        if not reported:
            say("waiting until the run of a dead worker has restored its hosts")
            reported = True
        if time.monotonic() - begun_s > LOCK_S:
            holders = ", ".join(holders_of(lock)) or "a process of another user or machine"
            what = f"in use for {LOCK_S:.0f} s by {holders}; end it, or let it end"
            raise OSError(errno.EBUSY, what, str(folder))
        if unwanted():
            return False
        time.sleep(POLL_S)
    return True


def _run(task: Task, held: Folder, lock: int, say: Say, unwanted: Callable[[], bool]) -> CellResult:
    """Start or resume the run in a locked folder, and store its result."""
    words = [*_words(task, held), "--no-report", *(["--share"] if task["share"] else [])]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [*PROGRAM, str(os.getpid()), "run", *words],
            cwd="/",  # others may have put modules and programs into the campaign's folder
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            pass_fds=(lock,),
            start_new_session=True,
        )
        _follow(process, say, unwanted)
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").strip().split("\n")
    reason = printable("; ".join(lines[-COMPLAINT_LINES:]), keep="")[-COMPLAINT_CHARACTERS:]
    code = process.returncode if process.returncode >= 0 else FAILED
    if code not in ANSWERS:
        return CellResult(code, reason or f"udpbench run exited with {process.returncode}")
    result = _chosen(held, code)
    store_result(held, result)
    return result


def _words(task: Task, held: Folder) -> list[str]:
    """Return the command to run in the folder; an unfinished run is resumed."""
    folder = str(held.path)
    experiment = str(held.write(f"{task['experiment']}.yaml", task["experiment_text"].encode()))
    with Folder.open(held.path / "lab", make=True) as labs:
        lab = str(labs.write(f"{task['lab']}.yaml", task["lab_text"].encode()))
    try:
        with open(held.file(RUN_FILE, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
            begun = file.readline().endswith(b"\n")
    except FileNotFoundError:
        begun = False
    sets = [word for text in task["sets"] for word in ("--set", text)]
    if begun:  # what this worker has just written vouches for it
        return ["--resume", folder, experiment, "--lab", lab, *sets]
    for name in (RUN_FILE, SERIES_FILE):  # killed before its header was whole
        held.remove(name)
    return [experiment, "--lab", lab, "--out", folder, *sets]


def _follow(process: subprocess.Popen[bytes], say: Say, unwanted: Callable[[], bool]) -> None:
    """Forward the run's output until it ends; interrupt it once it is unwanted."""
    assert process.stdout is not None  # noqa: S101 - as asked for above
    said_s, interrupted = 0.0, False
    with process.stdout as out:
        lines = LinePipe(out.fileno())
        while not lines.ended:
            if not interrupted and unwanted():
                process.send_signal(signal.SIGINT)
                interrupted = True
            arrived = lines.read(time.monotonic_ns() + int(POLL_S * SECOND_NS))
            last = arrived[-1] if arrived else None
            if last is not None and time.monotonic() - said_s >= SAID_EVERY_S:
                say(printable(last.decode(errors="replace").strip(), keep=""))
                said_s = time.monotonic()
            elif not arrived and process.poll() is not None:
                break
    process.wait()


def _chosen(held: Folder, code: int) -> CellResult:
    """Return the result of a complete run; not chosen if no point's needs are met."""
    try:
        records = read_run(held.path, held.fd).records if code == YES else ()
    except RecordError as error:
        return CellResult(FAILED, str(error))
    unmet = [
        record.error.message
        for record in records
        if record.status == "skipped" and record.error is not None
    ]
    if records and len(unmet) == len(records):
        return CellResult(code, "; ".join(dict.fromkeys(unmet)), chosen=False)
    return CellResult(code)


def _files(held: Folder) -> dict[str, bytes]:
    """Return the content of the folder's files by name."""
    files = {}
    for name in held.names():
        path = held.path / name
        if name != LOCK_FILE and path.is_file() and not path.is_symlink():
            files[name] = path.read_bytes()
    return files
