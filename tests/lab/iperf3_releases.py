"""Other iperf3 clients than the installed one: the newest of Debian, and one that shares no code.

``iperf3_releases.py FOLDER``: fetches them, each into a folder there with all that it needs, once.
Nothing is installed, and no package's script runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".nox" / "iperf3"
MIRROR = "http://deb.debian.org/debian"
SUITES = ("trixie", "sid")
INDEPENDENT = "uiperf3"
"""In Python alone; of PyPI."""


def fetch(folder: Path) -> None:
    """Fetch what is missing."""
    for suite in SUITES:
        if not (folder / suite).exists():
            _unpack(folder, suite)
    if not (folder / INDEPENDENT).exists():
        words = ("-m", "pip", "install", "--quiet", "--no-deps", "--target")
        subprocess.run((sys.executable, *words, folder / INDEPENDENT, INDEPENDENT), check=True)


def _unpack(folder: Path, suite: str) -> None:
    """Unpack a suite's iperf3 and its libraries in a folder, which appears when it is whole."""
    unfinished = folder / f"{suite}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    for place in ("lists/partial", "cache/archives/partial", "tree"):
        (unfinished / place).mkdir(parents=True)
    (unfinished / "sources.list").write_text(f"deb {MIRROR} {suite} main\n")
    (unfinished / "status").touch()
    own = {
        "Dir::Etc::sourcelist": unfinished / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": unfinished / "lists",
        "Dir::State::status": unfinished / "status",
        "Dir::Cache": unfinished / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Check-Valid-Until": "false",  # a mirror's copy of sid may be old
        "Acquire::Languages": "none",
    }
    options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    _run("apt-get", "-q", *options, "update")
    install = ("install", "--yes", "--no-install-recommends", "--download-only")
    _run("apt-get", "-q", *options, *install, "iperf3")
    for package in (unfinished / "cache" / "archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(unfinished / "tree"))
    (unfinished / "tree").rename(folder / suite)
    shutil.rmtree(unfinished)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr}")


def independent() -> Path:
    """Return the program of the client that shares no code, if it was fetched."""
    return FOLDER / INDEPENDENT / f"{INDEPENDENT}.py"


def clients() -> dict[str, tuple[str, ...]]:
    """Return name → command of each client that is here, that of the system first."""
    known = {"installed": ("iperf3",)}
    for suite in SUITES:
        tree = FOLDER / suite
        for loader in tree.glob("usr/lib*/ld-linux-*.so.*"):
            libraries = f"{tree}/usr/lib/{os.uname().machine}-linux-gnu"
            known[suite] = (str(loader), "--library-path", libraries, f"{tree}/usr/bin/iperf3")
    return known


if __name__ == "__main__":
    fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    for name, command in clients().items():
        print(name, *command)
