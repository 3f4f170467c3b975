"""The definitions that ship with udpbench, and the files that names stand for.

Looks at names and folders only; never reads a file.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import udpbench
from udpbench.definition.problems import Place, as_yaml, at, did_you_mean
from udpbench.errors import InputError, Problem

SUFFIXES = (".yaml", ".yml")


def folder() -> Path:
    """Return the folder of shipped definitions: in the installed package, else the checkout's."""
    package = Path(udpbench.__file__).parent
    installed = package / "shipped"
    return installed if installed.is_dir() else package.parent / "experiments"


def shown_as(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder if inside it."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def shipped_names() -> list[str]:
    """Return the names of shipped files that are neither labs nor published figures."""
    root = folder()
    names = [file.relative_to(root).with_suffix("").as_posix() for file in files_in(root)]
    return [name for name in names if not name.startswith("labs/") and name != "published"]


def shipped_labs() -> list[str]:
    """Return the names of shipped labs."""
    return [file.stem for file in files_in(folder() / "labs")]


def files_in(path: Path) -> list[Path]:
    """Return the YAML files of a folder and the folders in it, in the order of their names."""
    return sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())


def find_experiment(name: str) -> Path:
    """Return the file or folder that a name stands for; InputError if there is none."""
    path = Path(name)
    if name and _exists(path):
        return path
    inside = _below(folder(), name)
    if inside is not None:
        return inside
    what = "neither a file, a folder nor a shipped experiment"
    raise InputError([_unknown_name(name, what, shipped_names())])


def find_lab(name: str) -> Path:
    """Return the file that a lab's name stands for; InputError if there is none."""
    path = Path(name)
    if _exists(path) and not path.is_dir():
        return path
    inside = _below(folder() / "labs", name)
    if inside is not None and not inside.is_dir():
        return inside
    raise InputError([_unknown_name(name, "neither a file nor a shipped lab", shipped_labs())])


def _unknown_name(name: str, what: str, known: list[str]) -> Problem:
    """Return the problem with an unknown name; reported as a path if it looks like one."""
    path = Path(name)
    is_path = name.startswith((".", "/", "~")) or path.suffix in SUFFIXES
    if not is_path and (len(path.parts) < 2 or not _exists(path.parent)):
        return at(Place(as_yaml(name)), "", what, "", did_you_mean(name, known))
    try:
        siblings = {file.stem: file.name for file in path.parent.iterdir()}
    except OSError:
        step = f"{as_yaml(path.parent)} is not a readable folder"
    else:
        near = difflib.get_close_matches(path.stem, siblings, n=1)
        step = (
            f"did you mean {path.with_name(siblings[near[0]])}?" if near else "name an existing one"
        )
    return at(Place(as_yaml(name)), "", "no such file or folder", "", step)


def find_base(name: str, beside: Path) -> Path | None:
    """Return the file of ``extends: name``: next to the extending file, else a shipped one."""
    path = beside.parent / name
    if _exists(path) and path.is_file():
        return path
    inside = _below(folder(), name)
    return inside if inside is not None and inside.is_file() else None


def _exists(path: Path) -> bool:
    """Return whether a path exists; False if it cannot be looked up."""
    try:
        return path.exists()
    except OSError:  # name too long, or no permission to enter a folder
        return False


def _below(root: Path, name: str) -> Path | None:
    """Return the file or folder of a shipped name, never anything outside ``root``."""
    if name.startswith("/") or ".." in Path(name).parts or not name.strip("./"):
        return None
    for path in (root / name, *(root / f"{name}{suffix}" for suffix in SUFFIXES)):
        if _exists(path):
            return path
    return None
