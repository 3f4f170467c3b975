"""Reads files in /proc and /sys that may not exist; never raises."""

from __future__ import annotations

from typing import Optional

from udpbench.agent.host.reading import ReadingHost as Host

LOWER = "lower_"
"""Links of an interface in /sys that lead to what it stands on in this namespace."""


def read(host: Host, path: str) -> Optional[str]:
    """Return a file's text; None if it cannot be read."""
    try:
        return host.read_text(path)
    except OSError:
        return None


def lines_of(text: Optional[str]) -> list[str]:
    """Return the lines of a text, without empty ones.

    Not as ``str.splitlines``: names that users give may contain any line end but this.
    """
    return [line for line in (text or "").split("\n") if line]


def read_beginning(host: Host, path: str, limit_bytes: int) -> tuple[str, bool]:
    """Return the first whole lines of a file, and whether these are all; empty without a file."""
    try:
        with open(f"{host.root}/{path}", "rb") as file:  # noqa: PTH123 - as read_text
            text = file.read(limit_bytes)
    except OSError:
        return "", True
    is_all = len(text) < limit_bytes
    return (text if is_all else text.rpartition(b"\n")[0]).decode("utf-8", "replace"), is_all


def names(host: Host, path: str) -> list[str]:
    """Return the names in a folder; empty if there is no such folder."""
    try:
        return host.listdir(path)
    except OSError:
        return []


def beneath(host: Host, *interfaces: str) -> list[str]:
    """Return what interfaces stand on, and that in turn: VLANs, bridges and bonds have such."""
    known = [name for name in interfaces if name]
    for each in known:  # grows during iteration
        inside = names(host, f"/sys/class/net/{each}")
        lower = [name[len(LOWER) :] for name in inside if name.startswith(LOWER)]
        known += [name for name in lower if name not in known]
    return [name for name in known if name not in interfaces]


def cpuinfo_value(cpuinfo: str, key: str) -> Optional[str]:
    """Return the first value of a key in /proc/cpuinfo; ARM has no ``model name``."""
    for line in lines_of(cpuinfo):
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
