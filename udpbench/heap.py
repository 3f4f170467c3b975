"""The memory of a process that looks for weeks: what is free goes back to the kernel."""

from __future__ import annotations

import ctypes
import gc

TIDIED_LOOKS = 10
"""Between two times that this is done."""


def tidy() -> None:
    """Search what is new for cycles, and give back the free pages that glibc keeps.

    What pyroute2 parses is in cycles, 3,000 objects a minute. Between what stays from look to look,
    large buffers that come and go left 30 % of the heap free after seven minutes.
    """
    gc.collect(0)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
