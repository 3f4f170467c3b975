"""What differs between two hosts, definitions or points, and how a value is written.

Pure. None means unknown or not set; both are treated as missing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from udpbench.units import Rate, format_bytes, format_duration, format_rate

WRITTEN_CHARACTERS = 80
_UNIT = re.compile(r"_(bytes|ns|packets|bps|flows)\Z")
# Keys that are no Python names, or that read better than the field.
_SPELLED = {
    "source_ports": "from",
    "least_load": "from",
    "most_load": "to",
    "rx_flow_hash": "rx-flow-hash",
    "defer_hard_irqs": "defer-hard-irqs",
    "gro_flush_timeout_ns": "gro-flush-timeout",
}


def key_of(name: str) -> str:
    """Return the YAML key of a field: its name without the unit."""
    return _SPELLED.get(name) or _UNIT.sub("", name)


class Difference(NamedTuple):
    """One value that differs before and after; None if it is missing."""

    path: str
    before: Any
    after: Any

    @property
    def change(self) -> str:
        """Return both values: ``4MiB → 1MiB``."""
        return f"{written(self.path, self.before)} → {written(self.path, self.after)}"

    @property
    def key(self) -> str:
        """Return the path as a file spells it; names of sysctls are the kernel's own."""
        fields, sysctl, name = self.path.partition(".sysctl.")
        return ".".join(key_of(part) for part in fields.split(".")) + sysctl + name

    def __str__(self) -> str:
        return f"{self.key}: {self.change}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield each value that differs, in the order of ``before`` and then of ``after``."""
    for path in dict.fromkeys([*before, *after]):
        if before.get(path) != after.get(path):
            yield Difference(path, before.get(path), after.get(path))


def flat(value: Any, path: str = "", into_lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield each scalar of nested dataclasses, mappings and lists by its dotted path.

    Items of a list count from 1: ``addresses[2]``; unless ``into_lists``, a list is a scalar.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, (Rate, type)):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from flat(part, f"{path}.{key}" if path else str(key), into_lists)
    elif isinstance(value, (list, tuple)) and into_lists:
        for number, part in enumerate(value, start=1):
            yield from flat(part, f"{path}[{number}]")
    else:
        yield path, value


def written(path: str, value: Any) -> str:
    """Return a value as a definition file spells it, on one line; the path's last word has a unit.

    A text that is too long is cut, with an ellipsis.
    """
    text = " ".join(_written(path, value).split())
    return text if len(text) <= WRITTEN_CHARACTERS else text[: WRITTEN_CHARACTERS - 1] + "…"


def _written(path: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Rate):
        return format_rate(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_written(path, part)}" for key, part in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_written(path, part) for part in value) or "none"
    if ".sysctl." in path:
        return str(value)
    if isinstance(value, int) and path.endswith("_ns"):
        return format_duration(value)
    if isinstance(value, int) and path.endswith("_bytes"):
        return format_bytes(value)
    return str(value)
