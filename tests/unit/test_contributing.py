"""CONTRIBUTING.md says which files a change touches: they and what it names in them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASES = (ROOT, ROOT / "udpbench")


def named(token: str) -> Path | None:
    """Return the file or folder that a token of the text is, of the repository or the package."""
    candidates = [base / name for base in BASES for name in (token, f"{token}.py")]
    return next((path for path in candidates if path.exists()), None)


def missing(text: str) -> list[str]:
    """Return what a text in backticks names and is not there: paths, and words of a row's paths."""
    wrong = []
    for line in text.splitlines():
        tokens = re.findall(r"`([^`]+)`", line)
        paths = [path for path in map(named, tokens) if path is not None]
        for token in tokens:
            is_path = re.fullmatch(r"[\w/]+(/[\w.]*|\.(py|md|c|h|yaml))", token)
            is_word = line.startswith("|") and re.fullmatch(r"\w+", token)
            if named(token) is None and (is_path or (is_word and not mentioned(token, paths))):
                wrong.append(token)
    return wrong


def mentioned(word: str, paths: list[Path]) -> bool:
    """Tell whether a word stands in any of the files, or in a file of the folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return any(re.search(rf"\b{word}\b", file.read_text()) for file in files)


def test_every_file_and_name_that_a_change_touches_exists() -> None:
    """Whoever follows the table finds each place."""
    assert [] == missing((ROOT / "CONTRIBUTING.md").read_text())


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("in `agent/host/system.py`, and `units.py`", []),
        ("in `agent/systems.py` and `agent/nowhere`", ["agent/systems.py", "agent/nowhere"]),
        ("`lint types`, `expected == actual`, `_ns _bytes`", []),
        ("| x | one row of `DRIVERS` in `drivers.py` |", []),
        ("| x | one row of `WAYS` in `control/agents.py` |", ["WAYS"]),
        ("| x | `read` and `weave` in `agent/settings` |", ["weave"]),
    ],
)
def test_what_does_not_exist_is_named(line: str, wrong: list[str]) -> None:
    """The check itself fires, on a path and on a word."""
    assert wrong == missing(line)
