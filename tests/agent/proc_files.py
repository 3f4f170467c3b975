"""What /proc holds of a process, as the kernel writes it."""

from __future__ import annotations

OF_ROOT = "Uid:\t0\t0\t0\t0\nNSpid:\t41\n"
"""What /proc/PID/status has of a process of root's."""


def stat(
    pid: int,
    name: str,
    *,
    state: str = "S",
    parent: int = 1,
    ticks: int = 0,
    children: int = 0,
    started: int = 5,
) -> str:
    """Return the text of /proc/PID/stat."""
    head = f"{pid} ({name}) {state} {parent} 1 1 0 -1 0 0 0 0 0"
    return f"{head} {ticks} 0 {children} 0 20 0 1 0 {started}{' 0' * 30}\n"
