"""Exclusive locks on open files (flock(2)); the kernel frees a lock when its last holder ends."""

from __future__ import annotations

import fcntl


def lock_file(fd: int, wait: bool = False) -> bool:
    """Lock an open file or folder; return False if it is held and ``wait`` is not set.

    Raises OSError if the disk has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
