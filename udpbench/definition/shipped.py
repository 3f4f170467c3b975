"""Where the definitions that ship with udpbench lie, and what a name stands for.

Looks at names and folders only; never reads a file's text.
"""

from __future__ import annotations

from pathlib import Path

import udpbench
from udpbench.definition.problems import Place, at, did_you_mean, shown
from udpbench.errors import InputError

SUFFIXES = (".yaml", ".yml")


def folder() -> Path:
    """Return the folder of shipped definitions: in the installed package, else the checkout's."""
    package = Path(udpbench.__file__).parent
    installed = package / "shipped"
    return installed if installed.is_dir() else package.parent / "experiments"


def shown_as(path: Path) -> str:
    """Return a path as messages name it: below the working folder where it is."""
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
    """Return the file or folder a name stands for; InputError where there is none."""
    path = Path(name)
    if name and _there(path):
        return path
    inside = _below(folder(), name)
    if inside is not None:
        return inside
    step = did_you_mean(name, shipped_names())
    what = "neither a file, a folder nor a shipped experiment"
    raise InputError([at(Place(shown(name)), "", what, "", step)])


def find_lab(name: str) -> Path:
    """Return the file a lab's name stands for; InputError where there is none."""
    path = Path(name)
    if _there(path) and not path.is_dir():
        return path
    inside = _below(folder() / "labs", name)
    if inside is not None and not inside.is_dir():
        return inside
    step = did_you_mean(name, shipped_labs())
    raise InputError([at(Place(shown(name)), "", "neither a file nor a shipped lab", "", step)])


def find_base(name: str, beside: Path) -> Path | None:
    """Return the file that ``extends: name`` means: beside the extending file, else shipped."""
    path = beside.parent / name
    if _there(path) and path.is_file():
        return path
    inside = _below(folder(), name)
    return inside if inside is not None and inside.is_file() else None


def _there(path: Path) -> bool:
    """Return whether a path exists; one that cannot even be looked up does not."""
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def _below(root: Path, name: str) -> Path | None:
    """Return what a shipped name means, never anything outside the folder."""
    if name.startswith("/") or ".." in Path(name).parts or not name.strip("./"):
        return None
    for path in (root / name, *(root / f"{name}{suffix}" for suffix in SUFFIXES)):
        if _there(path):
            return path
    return None
