"""Exclusive locks on open files, by flock(2): one ends with its last holder, however that ends."""

from __future__ import annotations

import fcntl


def lock_file(fd: int, wait: bool = False) -> bool:
    """Lock an open file or folder; False if another process has it and this one is not to wait.

    Raises OSError if the disk has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
