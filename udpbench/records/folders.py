"""Run folders among others: a new one, the last, and whoever else could have written one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from udpbench.errors import RecordError
from udpbench.folder import Folder, other_writers
from udpbench.json_lines import BLOCK_BYTES, open_regular
from udpbench.records.run import RUN_FILE, SERIES_FILE

BEGIN = re.compile(
    rb'\{"kind": ?"header", ?"udpbench": ?"[^"\\]*", ?'
    rb'"started_at": ?"(\d{4}-\d\d-\d\dT[\d:.]+\+00:00)"'
)
"""The beginning of a run's first line, which may be long; as ``now_utc`` has the time."""


def new_folder(base: Path, name: str) -> Path:
    """Create and return ``<base>/<time>-<name>``, a folder of this run only."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        folder = base / f"{stamp}-{plain}{suffix}"
        try:
            with Folder.open(base, make=True) as held:
                held.make(folder.name).close()
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot("make the run folder", folder, error) from error
        return folder
    raise RecordError(f"{base}: 999 runs of the same name within one second; wait and run again")


def last_run(base: Path) -> Path:
    """Return the most recently started run folder in ``base``; raises RecordError."""
    folders = [file.parent for file in base.glob(f"*/{RUN_FILE}")]
    if not folders:
        raise RecordError(f"{base}: contains no run; name a run folder, or run an experiment first")
    return max(folders, key=lambda folder: (*_begun(folder), folder.name))


def _begun(folder: Path) -> tuple[bool, str]:
    """Return whether a run is of nobody else, and when it began; empty if that is damaged."""
    try:
        with open_regular(folder / RUN_FILE, follow=False) as file:
            begin = BEGIN.match(file.read(BLOCK_BYTES))
        own = not strangers_of((folder.resolve(), folder / RUN_FILE))
    except OSError:
        return False, ""
    return own, begin[1].decode() if begin else ""


def writers_of(folder: Path) -> list[str]:
    """Return as ``RunWriter.strangers`` who else could have written a run; OSError if gone."""
    return strangers_of((folder / name).resolve() for name in ("", RUN_FILE, SERIES_FILE))


def strangers_of(files: Iterable[int | Path]) -> list[str]:
    """Return how other users could write files, in words."""
    return sorted({how for file in files for how in other_writers(file)})


def cannot(what: str, folder: Path, error: OSError) -> RecordError:
    """Return the error of a folder in which a run cannot be stored."""
    return RecordError(f"{folder}: cannot {what}: {error.strerror}; name another with --out")


def no_run(path: Path) -> RecordError:
    """Return the error of a file that a run folder has, and this folder lacks."""
    inside = sorted(path.parent.glob(f"*/{RUN_FILE}"))
    step = (
        f"it holds runs: name one, such as {inside[-1].parent}"
        if inside
        else "is this a run folder?"
    )
    return RecordError(f"{path}: no such file; {step}")
