"""Each promise of docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISES = (ROOT / "docs/security.md").read_text().partition("## Promises")[2].partition("\n## ")[0]
NAMED = re.compile(r"`((?:agent|docs|lab|native|unit)/\S+\.py)::(test_\w+)`")


def promises() -> list[str]:
    """Return each promise with its tests."""
    return re.findall(r"^- .*(?:\n  .*)*", PROMISES, re.MULTILINE)


def test_each_promise_names_a_test() -> None:
    """At least one; and the page has some."""
    assert 15 < len(promises())
    assert [] == [promise for promise in promises() if NAMED.search(promise) is None]


def test_each_named_test_exists() -> None:
    """In the file that is named, and is not skipped for good."""
    missing = []
    for file, name in NAMED.findall(PROMISES):
        path = ROOT / "tests" / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        if name not in [test.name for test in tests]:
            missing.append(f"{file}::{name}")
    assert [] == missing


def test_what_looks_like_a_test_is_read_as_one() -> None:
    """So that no promise is held by a name that is not checked."""
    spans = re.findall(r"`([^`]*::[^`]*)`", PROMISES)
    assert len(spans) == len(NAMED.findall(PROMISES))
