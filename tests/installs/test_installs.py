"""What a newcomer types first: one line installs udpbench, and what it advises works there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*.whl")
    return file


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which tools install below a folder, and the programs are found."""
    programs = home / "bin"
    return {
        **os.environ,
        "PIPX_HOME": str(home / "pipx"),
        "PIPX_BIN_DIR": str(programs),
        "PIPX_MAN_DIR": str(home / "man"),
        "UV_TOOL_DIR": str(home / "uv"),
        "UV_TOOL_BIN_DIR": str(programs),
        "PATH": os.pathsep.join([str(programs), str(TOOLS), os.environ["PATH"]]),
    }


def said(command: str, home: Path) -> str:
    """Return what a line of a shell prints; it must succeed."""
    words = ["sh", "-c", command]
    done = subprocess.run(words, cwd=home, env=environment(home), capture_output=True, text=True)
    assert 0 == done.returncode, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("source", ["clone", "wheel"])
@pytest.mark.parametrize("line", ["pipx install {}", "uv tool install {}"])
def test_one_line_installs_it(line: str, source: str, wheel: Path, tmp_path: Path) -> None:
    """It knows its commit, finds what ships, and its advice to add a package is right there."""
    said(line.format(ROOT if source == "clone" else wheel), tmp_path)
    commit = said(f"git -C {ROOT} rev-parse --short HEAD", tmp_path).strip()
    assert said("udpbench --version", tmp_path).endswith(f" ({commit})\n")
    assert "mine.yaml" in said("udpbench init --experiment mine", tmp_path)
    python = next(tmp_path.glob("*/**/bin/python"))
    asking = "from udpbench.installation import how_to_add; print(how_to_add('campaign'))"
    said(said(f'{python} -c "{asking}"', tmp_path), tmp_path)
    said(f'{python} -c "import distributed"', tmp_path)


def test_pipx_installs_the_man_pages(wheel: Path, tmp_path: Path) -> None:
    """``man udpbench-run`` has the texts of ``udpbench help run``."""
    said(f"pipx install {wheel}", tmp_path)
    page = (tmp_path / "man" / "man1" / "udpbench-run.1").read_text()
    assert "Run experiments; print results and ledger" in page
