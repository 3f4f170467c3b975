"""The lock on an open file: one holder, told or waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from udpbench.folder import lock_file


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """Also of a folder; closing it gives it back."""
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert lock_file(first)
    assert not lock_file(second)
    os.close(first)
    assert lock_file(second, wait=True)
    os.close(second)


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the same as a file that somebody has."""

    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="not supported"):
        lock_file(folder)
    os.close(folder)
