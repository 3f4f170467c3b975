"""Hostile files and answers end in a documented code and a short error, soon and in little memory.

``noxfile.py hostile`` runs the whole corpus, ``unit`` some of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hostile.answers import HOST
from hostile.corpus import CASES, MIB, content_bytes
from hostile.forked import Ended, ended
from udpbench.errors import NO, PRECEDENCE, YES
from udpbench.json_lines import ROOM_BYTES, ROOM_TIMES
from udpbench.store.dataset import ROW_BYTES

APART = """
import sys
sys.path[:] = sys.argv[1:]
from pathlib import Path
from hostile.test_hostile import broken
print(broken(input(), Path(input())))
"""
PAGES_ROOM_BYTES = 512 * 2**20
"""For pages as PDF and PNG, beside the content; a run of 400 points takes 350 MiB."""
LIMIT_S = 60
"""CPU time; several times the slowest."""
SAID_CHARACTERS = 400
"""For a line on stderr, without the folder's name."""
SAID_LINES = 60
UNPACKED = {"report-bomb": 100 * MIB, "answer": 64 * MIB}
"""Beginning of a case → what its compressed content is, or what twenty answers are, at most."""
TRIALS = {"store-points": 100_000, "store-trials": 200_000}
"""Beginning of a case → trials that are read, each of which may take ROW_BYTES."""


def bound_bytes(name: str, folder: Path) -> int:
    """Return what reading a case may take: three times its content, 64 MiB, and its trials."""
    unpacked = [size for begin, size in UNPACKED.items() if name.startswith(begin)]
    trials = [count for begin, count in TRIALS.items() if name.startswith(begin)]
    content = content_bytes(folder) + sum(unpacked)
    room_bytes = PAGES_ROOM_BYTES if name.startswith("pages") else ROOM_BYTES
    return ROOM_TIMES * content + room_bytes + ROW_BYTES * sum(trials)


def wrong_with(name: str, known: Ended, folder: Path, bound: int) -> list[str]:
    """Return every promise that a case broke."""
    lines = known.stderr.replace(str(folder), "").splitlines()
    is_answer = name.startswith("answer")
    answers = {YES, NO} if name.startswith("flight") else {YES}
    broken = {
        "a traceback or a bug": "Traceback" in known.stderr or "this is a bug" in known.stderr,
        "no exit code": not known.codes,
        f"exit codes {known.codes}": not {*known.codes} <= {YES, *PRECEDENCE},
        "silence": bool({*known.codes} - answers) and not known.stderr,
        "no host": is_answer and any(not line.startswith(f"{HOST}: ") for line in lines),
        "a long error": any(len(line) > SAID_CHARACTERS for line in lines),
        "many errors": len(lines) > SAID_LINES,
        "an escape": "\x1b" in known.stderr
        or "\x1b" in (folder / "stdout").read_text(errors="replace"),
        f"{known.grown_bytes / MIB:.0f} of {bound / MIB:.0f} MiB": known.grown_bytes > bound,
        f"{known.took_s:.0f} s": known.took_s > LIMIT_S,
    }
    return [what for what, happened in broken.items() if happened]


def broken(name: str, folder: Path) -> list[str]:
    """Return every promise that a case broke in an empty folder, and what it wrote to stderr."""
    work = CASES[name](folder)
    bound = bound_bytes(name, folder)
    known = ended(work, folder, bound)
    wrong = wrong_with(name, known, folder, bound)
    return [*wrong, known.stderr[:2000]] if wrong else []


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("pages")])
def test_what_is_hostile_is_refused_or_read(name: str, tmp_path: Path) -> None:
    """Nothing that a file or an agent says takes memory, time or a traceback."""
    assert [] == broken(name, tmp_path)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("pages")])
def test_what_is_hostile_becomes_pages_or_is_refused(name: str, tmp_path: Path) -> None:
    """Nor does it as PDF and PNG."""
    # typst waits forever for its threads, if it worked in this process before the fork.
    words = [sys.executable, "-c", APART, *sys.path]
    apart = subprocess.run(
        words, input=f"{name}\n{tmp_path}", capture_output=True, text=True, timeout=600
    )
    assert ("[]\n", 0) == (apart.stdout, apart.returncode), apart.stderr[-2000:]
