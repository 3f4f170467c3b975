"""Quantities as people write them and as integers: the only parser and the only formatter.

Inside udpbench every quantity is an integer in its base unit: bytes, packets, packets per second,
bits per second, nanoseconds. Text appears in YAML and on the screen alone. A quantity without its
unit is refused, so that ``64`` never means KiB to one reader and bytes to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Optional

SI = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
DURATION_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z", re.ASCII)


# Markers for ``typing.Annotated``: what a model field's integer means, and its inclusive range.
# The definition reads them to parse the text of a YAML file and to write the JSON Schema.
@dataclass(frozen=True)
class Bytes:
    """A size in bytes, written ``32B``, ``64KiB``, ``4MiB`` or ``1kB``."""

    low: int
    high: int


@dataclass(frozen=True)
class Nanoseconds:
    """A duration in nanoseconds, written ``10s``, ``100us``, ``2h``."""

    low: int
    high: int


@dataclass(frozen=True)
class Count:
    """A number of things, written ``1000``, ``100k`` or ``1M``."""

    low: int
    high: int


@dataclass(frozen=True)
class Rate:
    """An intended load: packets per second, or bits of UDP payload per second; one of the two."""

    packets_per_s: Optional[int] = None
    bits_per_s: Optional[int] = None

    def pps(self, size_bytes: int) -> int:
        """Return packets per second for datagrams of ``size_bytes`` payload.

        Raises ValueError where a bit rate is asked of datagrams without payload.
        """
        if self.packets_per_s is not None:
            return self.packets_per_s
        if self.bits_per_s is None or size_bytes == 0:
            raise ValueError("a bit rate needs a payload of at least 1B")
        return self.bits_per_s // (8 * size_bytes)


def _split(text: str, example: str) -> tuple[Decimal, str]:
    found = _QUANTITY.match(text)
    if found is None:
        raise ValueError(f"not a quantity; write for example {example}")
    return Decimal(found.group(1)), found.group(2)


def _whole(value: Decimal, text: str, unit: str) -> int:
    if value != value.to_integral_value():
        raise ValueError(f"{text} is no whole number of {unit}")
    return int(value)


def parse_bytes(text: str) -> int:
    """Return the bytes that ``32B``, ``1.5KiB`` or ``1kB`` stand for; ValueError says why not."""
    number, unit = _split(text, "32B or 4MiB")
    scales = {prefix + "B": scale for prefix, scale in {**SI, **BINARY}.items()}
    if unit not in scales:
        raise ValueError(_bad_unit(unit, "B, kB, KiB, MB, MiB, GB or GiB", "32B or 4MiB"))
    return _whole(number * scales[unit], text, "bytes")


def parse_duration(text: str) -> int:
    """Return the nanoseconds that ``10s``, ``200us`` or ``2h`` stand for."""
    number, unit = _split(text, "10s or 200us")
    if unit not in DURATION_NS:
        raise ValueError(_bad_unit(unit, "ns, us, ms, s, min or h", "10s or 200us"))
    return _whole(number * DURATION_NS[unit], text, "nanoseconds")


def parse_count(text: str) -> int:
    """Return the integer that ``1000``, ``100k`` or ``1M`` stands for."""
    number, unit = _split(text, "1000 or 1M")
    if unit not in SI:
        raise ValueError(_bad_unit(unit, "none, k, M or G", "1000 or 1M"))
    return _whole(number * SI[unit], text, "packets")


def parse_rate(text: str) -> Rate:
    """Return the rate that ``40kpps`` (packets) or ``100Mbps`` (bits of payload) stands for."""
    number, unit = _split(text, "40kpps or 100Mbps")
    for suffix in ("pps", "bps"):
        prefix = unit[: -len(suffix)]
        if unit.endswith(suffix) and prefix in SI:
            value = _whole(number * SI[prefix], text, suffix)
            return Rate(packets_per_s=value) if suffix == "pps" else Rate(bits_per_s=value)
    raise ValueError(_bad_unit(unit, "pps, kpps, Mpps, kbps, Mbps or Gbps", "40kpps or 100Mbps"))


def _bad_unit(unit: str, known: str, example: str) -> str:
    said = f"unit {unit!r} is unknown" if unit else "the unit is missing"
    return f"{said}; known: {known}; write for example {example}"


def _scaled(value: int, scales: list[tuple[int, str]], unit: str) -> str:
    """Return the value in the largest scale that keeps it exact, so that parsing gives it back."""
    for scale, prefix in scales:
        if value and value % scale == 0:
            return f"{value // scale}{prefix}{unit}"
    return f"{value}{unit}"


def format_bytes(value: int) -> str:
    """Return for example ``4MiB``; ``parse_bytes`` gives the same integer back."""
    return _scaled(value, [(2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")], "B")


def format_count(value: int) -> str:
    """Return for example ``1M``; ``parse_count`` gives the same integer back."""
    return _scaled(value, [(10**9, "G"), (10**6, "M"), (10**3, "k")], "")


def format_duration(value_ns: int) -> str:
    """Return for example ``10s``; ``parse_duration`` gives the same integer back."""
    for unit in ("h", "min", "s", "ms", "us"):
        if value_ns and value_ns % DURATION_NS[unit] == 0:
            return f"{value_ns // DURATION_NS[unit]}{unit}"
    return "0s" if value_ns == 0 else f"{value_ns}ns"


def format_rate(rate: Rate) -> str:
    """Return for example ``40kpps``; ``parse_rate`` gives the same rate back."""
    scales = [(10**9, "G"), (10**6, "M"), (10**3, "k")]
    if rate.packets_per_s is not None:
        return _scaled(rate.packets_per_s, scales, "pps")
    return _scaled(rate.bits_per_s or 0, scales, "bps")


def show_pps(value: Optional[float]) -> str:
    """Return a measured rate for reading: ``1.234 Mpps``, ``12.3 kpps``; rounded, never parsed."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.3f} Mpps"
    if value >= 1e3:
        return f"{value / 1e3:.1f} kpps"
    return f"{value:.0f} pps"


def show_ratio(value: Optional[float]) -> str:
    """Return a loss ratio for reading, in percent; a loss that is not 0 never reads as 0."""
    if value is None:
        return "–"
    if 0 < abs(value) < 0.0001:
        return f"{value * 100:.1e} %"
    return f"{value * 100:.2f} %"
