"""What watching a host with a thousand UDP sockets costs: agent and controller, a look a second.

Prints the CPU time of each as a share of one CPU, without what the first look takes, and fails
beyond BUDGET. Plain lines to a file; nothing is sent. Needs root, to see the owners of sockets.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time

from udpbench.control.lab_lock import Surroundings
from udpbench.control.watch import Watched, lab_to_watch, watch
from udpbench.report.watch import watch_view

SOCKETS = 1000
SECONDS = 20
BUDGET = 0.01


def cpu_s(who: int) -> float:
    """Return user and system time of this process, or of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def children_s() -> float:
    """Return the same of children that run: the agent."""
    ticks = 0
    with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
        for pid in file.read().split():
            with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
                user, system = stat.read().rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the shares and leave with 1 where the budget is exceeded."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * SOCKETS, 2 * SOCKETS))
    kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS)]
    for each in kept:
        each.bind(("127.0.0.1", 0))
    at: list[tuple[float, float, float]] = []
    with open(os.devnull, "w") as out, watch_view(out, as_json=False) as tell:  # noqa: PTH123

        def looked(live: object) -> None:
            tell(live)  # type: ignore[arg-type]
            at.append((time.monotonic(), cpu_s(resource.RUSAGE_SELF), children_s()))

        lab = lab_to_watch(None, None)
        watch(lab, Watched(), SECONDS * 10**9, Surroundings(), looked)
    # The first second has the second look's share of what is learnt once.
    (begun, own, agent), (ended, own_after, agent_after) = at[1], at[-1]
    shares = [(used / (ended - begun)) for used in (own_after - own, agent_after - agent)]
    print(
        f"controller {shares[0]:.2%}, agent {shares[1]:.2%}, together {sum(shares):.2%} of one CPU"
    )
    if sum(shares) > BUDGET:
        sys.exit(f"over the budget of {BUDGET:.0%}")


if __name__ == "__main__":
    main()
