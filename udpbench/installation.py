"""How udpbench itself is installed: its version and commit, and what adds a package to it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
COMMIT = PACKAGE / "commit"
"""Written into what is built of a checkout (setup.py)."""
GIT_S = 5.0
_EXTRA = re.compile(r"""(?P<package>[^;]+);.*\bextra\s*==\s*['"](?P<extra>[\w-]+)['"]""")


def named_version() -> str:
    """Return udpbench's version, with its commit if that is known: ``0.2.0 (5779cbe)``."""
    from importlib.metadata import version  # a fifth of the time of --help

    commit = commit_of(PACKAGE.parent)
    return version("udpbench") + (f" ({commit})" if commit else "")


def commit_of(checkout: Path) -> str:
    """Return the commit that a build was made of, or that a checkout is at; empty if unknown."""
    if COMMIT.is_file():
        return COMMIT.read_text(encoding="utf-8").strip()
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def how_to_add(extra: str) -> str:
    """Return the command that adds an extra's packages to this installation, wherever it is."""
    from importlib.metadata import requires

    matches = filter(None, map(_EXTRA.match, requires("udpbench") or ()))
    packages = [match["package"].strip() for match in matches if match["extra"] == extra]
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        words = ["pipx", "inject", prefix.name]
    elif (prefix / "uv-receipt.toml").is_file():
        words = ["uv", "pip", "install", "--python", sys.executable]
    else:
        words = [sys.executable, "-m", "pip", "install"]
    return shlex.join([*words, *packages])
