"""The lock on an open file: one holder, told or waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from udpbench.folder import LOCK_FILE, Folder, holders_of, lock_file


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """Also of a folder; closing it gives it back."""
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert lock_file(first)
    assert not lock_file(second)
    os.close(first)
    assert lock_file(second, wait=True)
    os.close(second)


def test_who_may_read_a_folder_holds_nobody_up(tmp_path: Path) -> None:
    """The lock is a file that others cannot open; who holds it is named."""
    with Folder.open(tmp_path) as held:
        first, second = held.lock(), held.lock()
        assert 0o600 == (tmp_path / LOCK_FILE).stat().st_mode & 0o777
        assert [] == holders_of(second)
        assert lock_file(first)
        assert [f"process {os.getpid()}"] == holders_of(second)
        for fd in (first, second):
            os.close(fd)
        (tmp_path / LOCK_FILE).chmod(0o666)
        with pytest.raises(PermissionError, match="can be written by everybody"):
            held.lock()


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the same as a file that somebody has."""

    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="not supported"):
        lock_file(folder)
    os.close(folder)
