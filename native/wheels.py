"""Builds what can be published into dist/: the source, and a wheel for each portable build.

A wheel is the one of this machine with the C extension of another target, under the tag of what
that build needs. Run by ``python3 noxfile.py wheels``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from portable import PORTABLE, TARGETS

DIST = Path("dist")
EXTENSION = Path("udpbench") / "_native.abi3.so"


def tag(machine: str, glibc: tuple[int, ...] | None) -> str:
    """Return the platform of a build as pip knows it (PEP 600, PEP 656)."""
    libc = "musllinux_1_1" if glibc is None else "manylinux_{}_{}".format(*glibc)
    return f"{libc}_{machine}"


def python(*words: str) -> None:
    """Run a module of Python; CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Build all."""
    shutil.rmtree(DIST, ignore_errors=True)
    python("build", "--sdist", "--outdir", str(DIST))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python("build", "--wheel", "--outdir", str(folder / "own"))
        (own,) = (folder / "own").glob("*.whl")
        python("wheel", "unpack", str(own), "--dest", str(folder / "open"))
        (unpacked,) = (folder / "open").iterdir()
        for target, needed in TARGETS.items():
            (folder / target).mkdir()
            shutil.copy(PORTABLE / f"{target}.so", unpacked / EXTENSION)
            python("wheel", "pack", str(unpacked), "--dest-dir", str(folder / target))
            (packed,) = (folder / target).glob("*.whl")
            platform = tag(needed.machine, needed.glibc)
            python("wheel", "tags", "--remove", "--platform-tag", platform, str(packed))
            (tagged,) = (folder / target).glob("*.whl")
            print(shutil.move(tagged, DIST / tagged.name), flush=True)


if __name__ == "__main__":
    main()
