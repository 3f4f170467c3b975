"""``udpbench`` as a child that ends, hosts restored, when the process that started it dies.

Named by ``cell_run``: ``python -m udpbench.campaign.bound_run PARENT WORD…``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def main() -> None:
    """Run udpbench, unless its parent died before it could be bound to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    parent = int(sys.argv[1])
    if os.getppid() != parent:
        sys.exit(f"process {parent} has ended")
    sys.argv = ["udpbench", *sys.argv[2:]]
    from udpbench.__main__ import main as udpbench

    udpbench()


if __name__ == "__main__":
    main()
