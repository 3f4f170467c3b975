"""Every test of campaigns runs in a folder of its own, with two experiments and two labs."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_fixture import write_files


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's own folder the working folder."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
