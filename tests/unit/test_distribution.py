"""What the distributions hold: the source to build, test and demonstrate all, the wheel its types."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "experiments", "native", "tests", "udpbench")
FILES = (
    ".clang-format",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "mkdocs.yml",
    "noxfile.py",
    "pyproject.toml",
    "setup.py",
)
BUILT = (".pyc", ".so")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the files of a source distribution, relative to its folder."""
    folder = tmp_path_factory.mktemp("sdist")
    build = (sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder))
    command = (*build, "sdist", "--dist-dir", str(folder))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("udpbench-*.tar.gz")
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2] for member in tar if member.isfile()}


def sources() -> set[str]:
    """Return every source file of the project."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(ROOT)) for file in files if file.suffix not in BUILT}


def test_the_source_distribution_has_every_source_file(packed: set[str]) -> None:
    """``noxfile.py demo`` and ``test`` run from it as they do from a checkout."""
    assert set() == {*sources(), *FILES} - packed


def test_the_source_distribution_has_nothing_that_was_built(packed: set[str]) -> None:
    """Extension modules and bytecode stay behind."""
    assert [] == [name for name in sorted(packed) if name.endswith(BUILT)]


def test_the_package_ships_its_types() -> None:
    """A type checker believes annotations only of a package that has py.typed (PEP 561)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["udpbench"]
    assert (ROOT / "udpbench" / "py.typed").is_file()
