"""Runs ``udpbench`` as a child that ends, with hosts restored, when its parent dies.

Started by ``cell_run``: ``python -m udpbench.campaign.bound_run PARENT WORD…``.
"""

from __future__ import annotations

import os
import signal
import sys

from udpbench.parent_death import end_with_parent


def main() -> None:
    """Run udpbench, unless its parent has already died."""
    end_with_parent(signal.SIGTERM)
    parent = int(sys.argv[1])
    if os.getppid() != parent:
        sys.exit(f"process {parent} has ended")
    sys.argv = ["udpbench", *sys.argv[2:]]
    from udpbench.__main__ import main as udpbench

    udpbench()


if __name__ == "__main__":
    main()
