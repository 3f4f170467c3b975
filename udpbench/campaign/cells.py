"""The cells of a campaign: each experiment on each pair, with key, folder and result.

A pair is a lab by name. A cell's key is a digest of what would be measured: the resolved
definition, the lab, and the build. Owns the campaign's folder; starts nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import Any

from udpbench.definition.definition_changes import meaning
from udpbench.definition.lab_rules import refuse_together
from udpbench.definition.load import load_lab
from udpbench.errors import CANNOT_TELL, NO, YES, InputError, Problem, RecordError
from udpbench.folder import Folder, lock_file
from udpbench.json_lines import MOST_LINE_BYTES, open_regular, parse_json
from udpbench.model.experiment import Experiment
from udpbench.model.lab import Lab
from udpbench.protocol import build_id
from udpbench.records.run import CAMPAIGN_FILE

CELL_FILE = "cell.json"
SCHEMA = 1
"""Schema of both files. History: 1 — the first form."""
KEY_CHARACTERS = 16
ANSWERS = (YES, NO, CANNOT_TELL)
"""Exit codes of a run that measured everything possible: its cell is done."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\Z")


@dataclass(frozen=True)
class Cell:
    """One experiment on one pair."""

    pair: str
    experiment: Experiment
    lab: Lab
    key: str

    @property
    def folder(self) -> str:
        """Return its run folder, relative to the campaign's."""
        return f"{self.pair}/{self.experiment.name}-{self.key}"


@dataclass(frozen=True)
class CellResult:
    """Result of a cell; stored beside its run once that is complete."""

    exit_code: int
    reason: str = ""
    """Why it failed, or why the pair was not chosen: its unmet needs."""
    chosen: bool = True

    @property
    def done(self) -> bool:
        """Return whether the cell need not be run again."""
        return self.exit_code in ANSWERS


def load_labs(names: Sequence[str]) -> list[Lab]:
    """Return the labs of files, shipped names and patterns, each file once.

    Raises InputError that lists every problem.
    """
    problems: list[Problem] = []
    labs: dict[str, Lab] = {}
    for name in dict.fromkeys(_expanded(names, problems)):
        try:
            lab = load_lab(name)
        except InputError as error:
            problems += error.problems
            continue
        same = labs.setdefault(lab.name, lab)
        if same is not lab and Path(same.path).resolve() != Path(lab.path).resolve():
            step = "pairs are named after their files: rename one"
            problems.append(Problem(f"{same.path} has the same name", lab.path, next_step=step))
    if problems:
        raise InputError(problems)
    return list(labs.values())


def _expanded(names: Sequence[str], problems: list[Problem]) -> Iterator[str]:
    """Yield each name, with patterns expanded that the shell did not expand."""
    for name in names:
        if not set(name) & set("*?[") or Path(name).exists():
            yield name
            continue
        files = sorted(glob(name))  # noqa: PTH207 - as a shell does, also from /
        if not files:
            problems.append(Problem("no file matches", "--labs", name, next_step="name lab files"))
        yield from files


def cells_of(experiments: Sequence[Experiment], labs: Sequence[Lab]) -> list[Cell]:
    """Return every cell, pair by pair, in the order of the experiments.

    Raises InputError with every contradiction to a lab, and names that cannot be folder names.
    """
    problems = [
        Problem("not a folder name", path, name, "letters, digits and . _ + -", "rename it")
        for name, path in [
            *((e.name, e.path) for e in experiments),
            *((x.name, x.path) for x in labs),
        ]
        if _NAME.match(name) is None
    ]
    for lab in labs:
        try:
            refuse_together(experiments, lab)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return [
        Cell(lab.name, experiment, lab, cell_key(experiment, lab))
        for lab in labs
        for experiment in experiments
    ]


def cell_key(experiment: Experiment, lab: Lab) -> str:
    """Return the unique key of a measurement: a digest of definition, lab and build."""
    plain = [meaning(experiment, lab), version("udpbench"), build_id()]
    text = json.dumps(plain, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_CHARACTERS]


def task_of(cell: Cell, campaign: CampaignFolder, share: bool) -> dict[str, Any]:
    """Return everything that a worker needs to run a cell: names and contents of files."""
    folder = str(Path(cell.experiment.path).resolve().parent)
    programs = {t.receive.folder for t in cell.experiment.points if t.receive.command is not None}
    return {
        "campaign": campaign.identity,
        "out": str(campaign.path),
        "folder": cell.folder,
        "build": build_id(),
        "share": share,
        "experiment": cell.experiment.name,
        "experiment_text": cell.experiment.text,
        "lab": cell.lab.name,
        "lab_text": cell.lab.text,
        # A program starts in the folder of the experiment's file, which differs on the worker.
        "sets": [f"receive.folder={folder}"] if programs == {folder} else [],
    }


class CampaignFolder:
    """The folder of a campaign, held by one controller at a time."""

    def __init__(self, path: Path, identity: str, fd: int) -> None:
        self.path = path.absolute()
        self.identity = identity
        """Identifies the folder for a worker that shares the disk."""
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> CampaignFolder:
        """Return the folder, created if missing; RecordError if another controller has it."""
        try:
            with Folder.open(path, make=True) as held:
                refuse_strangers(held)
                if CAMPAIGN_FILE not in held.names():
                    fresh = {"schema": SCHEMA, "campaign": secrets.token_hex(8)}
                    held.write(CAMPAIGN_FILE, json.dumps(fresh).encode() + b"\n")
                fd = held.lock()
            locked = lock_file(fd)
        except OSError as error:
            what = f"{path}: cannot be used as a campaign folder: {error.strerror}"
            raise RecordError(f"{what}; name another with --out") from error
        if not locked:
            os.close(fd)
            why = "in use by a running campaign; wait until it ends, or interrupt it"
            raise RecordError(f"{path}: {why}")
        return cls(path, identity_of(path) or "", fd)

    def result_of(self, cell: Cell) -> CellResult | None:
        """Return a cell's result; None if it has to be run or resumed."""
        return stored_result(self.path / cell.folder)

    def keep(self, cell: Cell, files: Mapping[str, bytes]) -> None:
        """Store the files of a run sent by a worker; RecordError if that fails."""
        folder = self.path / cell.folder
        last_comes_done = sorted(files, key=lambda name: name == CELL_FILE)
        try:
            with Folder.open(folder, make=True) as held:
                for name in last_comes_done:
                    held.write(Path(name).name, files[name])
        except OSError as error:
            raise RecordError(f"{folder}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> CampaignFolder:  # noqa: PYI034 - nothing is derived from it
        return self

    def __exit__(self, *_: object) -> None:
        """Release the folder."""
        os.close(self._fd)


def refuse_strangers(folder: Folder) -> None:
    """Raise EPERM if others could have put files into a folder of a campaign."""
    for how in folder.other_writers():
        what = f"{how}; chown or chmod it once you know what is in it"
        raise PermissionError(errno.EPERM, what, str(folder.path))


def identity_of(folder: Path) -> str | None:
    """Return the identity of the campaign in a folder; None if there is none."""
    data = _read_json(folder / CAMPAIGN_FILE)
    return None if data is None else str(data.get("campaign"))


def stored_result(folder: Path) -> CellResult | None:
    """Return the result of the run in a folder; None if it is not complete."""
    data = _read_json(folder / CELL_FILE)
    if data is None or not (folder / "run.jsonl").is_file():
        return None
    try:
        return CellResult(int(data["exit_code"]), str(data["reason"]), bool(data["chosen"]))
    except (KeyError, TypeError, ValueError):
        return None


def store_result(folder: Folder, result: CellResult) -> None:
    """Store a cell's result, which marks it as done; OSError if that fails."""
    folder.write(CELL_FILE, json.dumps({"schema": SCHEMA, **asdict(result)}).encode() + b"\n")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path) as file:
            data = parse_json(file.read(MOST_LINE_BYTES))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def pairs_of(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each pair, in their order."""
    pairs: dict[str, list[Cell]] = {}
    for cell in cells:
        pairs.setdefault(cell.pair, []).append(cell)
    return pairs
