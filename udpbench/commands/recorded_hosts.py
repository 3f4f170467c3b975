"""``udpbench facts``: a file to attach to a bug report, one tree per host."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from udpbench.control.doctor import record_hosts
from udpbench.control.lab_lock import Surroundings
from udpbench.errors import InputError, Problem
from udpbench.folder import Folder
from udpbench.model.lab import Lab

SCHEMA = 1
"""Form of the file. History: 1 — the first version."""


def write_recorded(lab: Lab, out: Path, around: Surroundings, version: str) -> Path:
    """Write what each host of a lab reports about itself; return the file.

    Raises InputError if the file exists or cannot be created, ConnectError, HelloRefused.
    """
    _refuse_existing(out)
    trees = record_hosts(lab, around)
    data = {
        "schema": SCHEMA,
        "source": f"recorded by udpbench facts, version {version}",
        "hosts": {place: asdict(tree) for place, tree in trees.items()},
    }
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    try:
        with Folder.open(out.parent) as folder:
            fd = folder.file(out.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "w") as file:
                file.write(text)
    except OSError as error:
        raise _problem(out, f"cannot be written: {error.strerror}") from error
    return out


def _refuse_existing(out: Path) -> None:
    """Refuse an existing file or a missing folder before any host is contacted."""
    try:
        with Folder.open(out.parent) as folder:
            exists = out.name in folder.names()
    except OSError as error:
        raise _problem(out, f"its folder cannot be used: {error.strerror}") from error
    if exists:
        raise _problem(out, "exists and is not overwritten")


def _problem(out: Path, what: str) -> InputError:
    return InputError([Problem(what, "--out", str(out), "", "name another file")])
