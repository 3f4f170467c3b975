"""The rule by which the lab tests are skipped, as one who is not root meets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
A_LAB_TEST = """
import pytest

@pytest.mark.lab
def test_in_the_lab():
    pass
"""
SETTINGS = "[pytest]\nmarkers = lab\n"


def as_nobody(folder: Path, required: str) -> subprocess.CompletedProcess[str]:
    """Run a lab test in a user namespace without a user, which may read what we may."""
    shutil.copy(CONFTEST, folder)
    (folder / "test_it.py").write_text(A_LAB_TEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    return subprocess.run(
        ["unshare", "--user", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs"],
        cwd=folder,
        env={**os.environ, "UDPBENCH_REQUIRE_LAB": required},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.apart
@pytest.mark.lab
def test_without_root_the_lab_is_skipped_with_the_command_to_use(tmp_path: Path) -> None:
    """A skip says what to type."""
    done = as_nobody(tmp_path, required="")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert "need root: sudo python3 noxfile.py lab" in done.stdout


@pytest.mark.apart
@pytest.mark.lab
def test_where_the_lab_is_required_a_skip_is_a_failure(tmp_path: Path) -> None:
    """Nobody takes a run without the lab for a whole one."""
    done = as_nobody(tmp_path, required="1")
    assert 0 != done.returncode
    assert "UDPBENCH_REQUIRE_LAB is set" in done.stdout + done.stderr
