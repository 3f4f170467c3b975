"""Golden messages: what a test says is compared, rewritten when asked, and never left over."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import golden as fixture
import pytest

TESTS = Path(__file__).parents[1]
pytest_plugins = ["pytester"]

SPEAKING = """
import pytest

def test_speaks(golden, tmp_path):
    with golden.raises(ValueError, port=4711):
        raise ValueError(f"{tmp_path}/x: port 4711 of pid 12 is taken\\n\\nnext step")
    golden.check("bye")

@pytest.mark.parametrize("name", ["a", "b"])
def test_names(golden, name):
    golden.check(name)

def test_silent():
    pass
"""
MESSAGES = f"""{fixture.HEAD}test_names[a]
  - a
test_names[b]
  - b
test_speaks
  - TMP/x: port PORT of pid PID is taken

    next step
  - bye
"""
FILE = "messages/test_it.txt"
BARE = [f"-pno:{name}" for name in ("udpbench", "hypothesispytest")]
"""Plugins that this needs no time for."""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the tests of the folder."""
    return pytester.runpytest(*BARE, *options)


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """Return a folder of tests whose messages are written."""
    pytester.makeconftest("from golden import *")
    pytester.makepyfile(test_it=SPEAKING)
    run(pytester, fixture.REWRITE).assert_outcomes(passed=3, deselected=1)
    return pytester.path


def test_messages_are_written_and_compared(pytester: pytest.Pytester, folder: Path) -> None:
    """Without what changes from run to run."""
    assert MESSAGES == (folder / FILE).read_text()
    run(pytester).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  - bye", "  - good bye"),
        ("  - bye\n", ""),
        ("  - bye\n", "  - bye\n  - and more\n"),
        ("    next step", "    another step"),
    ],
)
def test_another_message_fails(pytester: pytest.Pytester, folder: Path, old: str, new: str) -> None:
    """And so do one that is missing and one too many; a rewrite puts them right."""
    (folder / FILE).write_text(MESSAGES.replace(old, new))
    ran = run(pytester)
    ran.assert_outcomes(passed=3, failed=1)
    ran.stdout.fnmatch_lines(["*python3 noxfile.py messages*"])
    run(pytester, fixture.REWRITE)
    assert MESSAGES == (folder / FILE).read_text()


def test_another_kind_fails_and_is_not_written(pytester: pytest.Pytester, folder: Path) -> None:
    """A sentence is only rewritten if the rest of its test holds."""
    pytester.makepyfile(test_it=SPEAKING.replace("raise ValueError", "raise KeyError"))
    run(pytester, fixture.REWRITE).assert_outcomes(passed=2, failed=1, deselected=1)
    assert MESSAGES == (folder / FILE).read_text()


def test_a_rewrite_removes_what_is_gone(pytester: pytest.Pytester, folder: Path) -> None:
    """A test file, a test, its parameters; what did not run keeps its messages."""
    gone = folder / "messages/test_gone.txt"
    gone.write_text(fixture.HEAD + "test_x\n  - x\n")
    run(pytester, fixture.REWRITE, "test_it.py::test_silent")
    assert gone.exists()
    pytester.makepyfile(
        test_it=SPEAKING.replace("test_speaks", "test_talks").replace('"a", ', ""),
        test_other="def test_mute(): pass",
    )
    run(pytester, fixture.REWRITE, "test_other.py")
    assert (MESSAGES, False) == ((folder / FILE).read_text(), gone.exists())
    run(pytester, fixture.REWRITE)
    assert ["test_names[b]", "test_talks"] == list(fixture.read(folder / FILE))
    pytester.makepyfile(test_it="def test_mute(): pass")
    run(pytester, fixture.REWRITE)
    assert not (folder / FILE).exists()


def test_a_rewrite_runs_in_one_process(pytester: pytest.Pytester, folder: Path) -> None:
    """Two would write the same file."""
    ran = run(pytester, "-p", "xdist", "-n1", fixture.REWRITE)
    assert pytest.ExitCode.OK != ran.ret


@cache
def speaking(file: Path) -> set[str]:
    """Return the tests of a file that have messages."""
    functions = (node for node in ast.walk(ast.parse(file.read_text())))
    return {
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef) and "golden" in {arg.arg for arg in node.args.args}
    }


def test_no_message_is_left_over() -> None:
    """Each is of a test that is still there and asks for it."""
    stale = []
    for messages in TESTS.rglob("messages/test_*.txt"):
        file = messages.parents[1] / f"{messages.stem}.py"
        known = speaking(file) if file.exists() else set()
        names = {test.split("[")[0].split("::")[-1] for test in fixture.read(messages)}
        stale += [f"{messages.parent}: {name}" for name in sorted(names - known)]
    assert [] == stale, "python3 noxfile.py messages removes them"
