"""Every test of definitions runs in a folder of its own: messages name files relative to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from udpbench.definition import load
from udpbench.model.lab import Lab


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's own folder the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lab() -> Lab:
    """Return the built-in lab with two receive addresses only, so that lists stay short."""
    shipped = load.load_lab("local")
    receiver = replace(shipped.receivers[0], addresses=("10.0.0.1/24", "10.0.0.2/24"))
    sender = replace(shipped.senders[0], addresses=("10.0.0.30/24",))
    return replace(shipped, hosts=(sender, receiver))
