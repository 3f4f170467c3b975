"""Reads files in /proc and /sys that may not exist; never raises."""

from __future__ import annotations

from typing import Optional

from udpbench.agent.host.reading import ReadingHost as Host


def read(host: Host, path: str) -> Optional[str]:
    """Return a file's text; None if it cannot be read."""
    try:
        return host.read_text(path)
    except OSError:
        return None


def names(host: Host, path: str) -> list[str]:
    """Return the names in a folder; empty if there is no such folder."""
    try:
        return host.listdir(path)
    except OSError:
        return []


def cpuinfo_value(cpuinfo: str, key: str) -> Optional[str]:
    """Return the first value of a key in /proc/cpuinfo; ARM has no ``model name``."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
