"""Sets of CPUs as the kernel prints them in /proc and /sys: lists and hexadecimal masks."""

from __future__ import annotations

from collections.abc import Iterable


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-3,8``; none of an empty text."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as a list such as ``2-7,0``, in their order."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """Return the CPUs of a hexadecimal mask such as ``00000000,00000003``."""
    mask = int(text.strip().replace(",", "") or "0", 16)
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def cpu_mask(cpus: Iterable[int]) -> str:
    """Return the mask of CPUs; the kernel takes no group above 32 bits."""
    bits = sum(1 << cpu for cpu in set(cpus))
    groups = [f"{bits & 0xFFFFFFFF:x}"]
    while bits := bits >> 32:
        groups.insert(0, f"{bits & 0xFFFFFFFF:x}")
        groups[1] = groups[1].zfill(8)
    return ",".join(groups)
