"""CPU masks as /sys prints them, and the files of an interface's queues that hold one."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GROUP_BITS = 32
_QUEUE = re.compile(r"([^/]+)/((?:rx|tx)-\d+)")


def parse(mask: str) -> list[int]:
    """Return the CPUs of a mask such as ``00000001,0000000f``."""
    bits = int(mask.replace(",", ""), 16)
    return [cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1]


def text(cpus: Iterable[int]) -> str:
    """Return the mask of CPUs; the kernel takes no group above 32 bits."""
    bits = sum(1 << cpu for cpu in set(cpus))
    groups = [f"{bits & 0xFFFFFFFF:x}"]
    while bits := bits >> _GROUP_BITS:
        groups.insert(0, f"{bits & 0xFFFFFFFF:x}")
        groups[1] = groups[1].zfill(8)
    return ",".join(groups)


def path(target: str, file: str) -> str:
    """Return the path of a queue's file; ValueError where the target names no queue."""
    found = _QUEUE.fullmatch(target)
    if found is None or found.group(1) in (".", ".."):
        raise ValueError(f"{target} is no queue; write for example send0/tx-0")
    return f"/sys/class/net/{found.group(1)}/queues/{found.group(2)}/{file}"
