"""A process that ends with its parent: the kernel sends it a signal, whatever killed the parent."""

from __future__ import annotations

import ctypes

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def end_with_parent(signal_number: int) -> None:
    """Have the kernel signal this process when the thread that started it ends (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
