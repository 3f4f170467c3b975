"""How udpbench is installed: its commit, and the command that adds a package to just that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from udpbench import installation
from udpbench.installation import commit_of, how_to_add, named_version

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C")


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    """A folder that is none has no commit, nor has one without any."""
    assert "" == commit_of(tmp_path)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert "" == commit_of(tmp_path)
    commit = (*GIT, str(tmp_path), "commit", "--quiet", "--allow-empty", "-m", "x")
    subprocess.run(commit, check=True)
    show = subprocess.run(
        [*GIT, str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert show.stdout.startswith(commit_of(tmp_path))
    assert len(commit_of(tmp_path)) >= 7


def test_what_was_built_knows_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git."""
    (tmp_path / "commit").write_text("0123abc\n")
    monkeypatch.setattr(installation, "COMMIT", tmp_path / "commit")
    assert named_version().endswith(" (0123abc)")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("pipx_metadata.json", "pipx inject env 'jumpavg>=0.4.2' 'pyarrow>=20'"),
        (
            "uv-receipt.toml",
            f"uv pip install --python {sys.executable} 'jumpavg>=0.4.2' 'pyarrow>=20'",
        ),
        ("other", f"{sys.executable} -m pip install 'jumpavg>=0.4.2' 'pyarrow>=20'"),
    ],
)
def test_a_package_is_added_where_udpbench_is(
    file: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tool that made its environment; no name of udpbench itself, which no index has."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert words == how_to_add("store")
