"""Quantities as text and as integers: the only parser and the only formatter.

Inside udpbench every quantity is an integer in its base unit: bytes, packets, packets per second,
bits per second, nanoseconds. Text appears only in YAML and on the screen. A quantity without a unit
is refused, so that ``64`` never means KiB to one reader and bytes to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor, log10
from typing import Optional, Union

SI = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
DURATION_NS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # MICRO SIGN, as keyboards have it
    "\u03bcs": 10**3,  # GREEK SMALL LETTER MU
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
UNIT = r"[A-Za-z%\u00b5\u03bc]*"
_QUANTITY = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({UNIT})\s*\Z", re.ASCII)
_BREAKS = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|%|[kMG]?(?:pps|B/s|bit/s)\b|[\u00b5mn]?s\b|[KM]iB)")
RATIO = {"": Decimal(1), "%": Decimal("0.01")}


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
class Named:
    """Text with a grammar of its own: the leaf of this name in ``definition.values.NAMED``."""

    leaf: str


@dataclass(frozen=True)
class Rate:
    """An intended load: either packets per second or bits of UDP payload per second."""

    packets_per_s: Optional[int] = None
    bits_per_s: Optional[int] = None

    def pps(self, mean_bytes: Union[int, Fraction]) -> int:
        """Return packets per second for datagrams of ``mean_bytes`` payload.

        Raises ValueError for a bit rate of datagrams without payload.
        """
        if self.packets_per_s is not None:
            return self.packets_per_s
        if self.bits_per_s is None or mean_bytes == 0:
            raise ValueError("a bit rate needs a payload of at least 1B")
        return self.bits_per_s // (8 * mean_bytes)


def _split(text: str, example: str) -> tuple[Decimal, str]:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"not a quantity; write for example {example}")
    return Decimal(match.group(1)), match.group(2)


def _whole(value: Decimal, text: str, unit: str) -> int:
    if value != value.to_integral_value():
        raise ValueError(f"{text} is not a whole number of {unit}")
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


def parse_ratio(text: str) -> float:
    """Return the ratio that ``1%`` or ``0.01`` stands for."""
    number, unit = _split(text, "1% or 0.01")
    if unit not in RATIO:
        raise ValueError(_bad_unit(unit, "none or %", "1% or 0.01"))
    return float(number * RATIO[unit])


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
    what = f"unit {unit!r} is unknown" if unit else "the unit is missing"
    return f"{what}; known: {known}; write for example {example}"


def _scaled(value: int, scales: list[tuple[int, str]], unit: str) -> str:
    """Return the value in the largest unit in which it is an integer, so that it parses back."""
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


def show_seconds(value_ns: int) -> str:
    """Return a duration for reading, in whole seconds: what has begun counts."""
    return format_duration(-(-value_ns // 10**9) * 10**9)


def format_rate(rate: Rate) -> str:
    """Return for example ``40kpps``; ``parse_rate`` gives the same rate back."""
    scales = [(10**9, "G"), (10**6, "M"), (10**3, "k")]
    if rate.packets_per_s is not None:
        return _scaled(rate.packets_per_s, scales, "pps")
    return _scaled(rate.bits_per_s or 0, scales, "bps")


def rate_scale(pps: float) -> tuple[float, str, int]:
    """Return the divisor, the unit and the decimals with which a rate is shown."""
    if pps >= 1e6:
        return 1e6, "Mpps", 3
    return (1e3, "kpps", 1) if pps >= 1e3 else (1.0, "pps", 0)


def show_pps(value: Optional[float]) -> str:
    """Return a measured rate for reading: ``1.234 Mpps``, ``12.3 kpps``; rounded, never parsed."""
    if value is None:
        return "–"
    scale, unit, digits = rate_scale(value)
    return f"{value / scale:.{digits}f} {unit}"


def show_bps(value: int) -> str:
    """Return the rate of a line for reading: ``1 Gb/s``, ``2.5 Gb/s``, ``20 Mb/s``."""
    scale, prefix = next(pair for pair in ((10**9, "G"), (10**6, "M"), (1, "")) if value >= pair[0])
    return f"{value / scale:.10g} {prefix}b/s"


def show_count(value: float) -> str:
    """Return a whole number for reading, its digits in groups of three: ``1 234 567``."""
    return f"{value:,.0f}".replace(",", " ")


def unbroken(text: str, blank: str = "\u00a0") -> str:
    """Return a text in which no line ends within a number, or between it and its unit."""
    return _BREAKS.sub(blank, text)


def plural(number: int, noun: str) -> str:
    """Return a number of things, as ``1 trial`` or ``7 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number of things, which may be large, as ``1 packet`` or ``1 312 packets``."""
    return f"{show_count(number)} {noun}{'s' * (number != 1)}"


def n_text(number: int, every: int, noun: str = " trial") -> str:
    """Return of how many a median is: ``n = 7 trials``, ``n = 5 of 7 trials`` if 2 are left out."""
    of_all = f" of {every}" if number < every else ""
    return f"n = {number}{of_all}{noun}{'s' if noun and every != 1 else ''}"


def show_range(fewest: int, most: int) -> str:
    """Return a certain number as ``12``, a range as ``14–30``."""
    return f"{fewest}–{most}" if fewest < most else str(fewest)


def show_share(value: float) -> str:
    """Return a share as a user writes it: ``0.1%``; ``parse_ratio`` gives the same back."""
    return f"{value * 100:.10g}%"


def show_ratio(value: Optional[float]) -> str:
    """Return a loss ratio for reading, in percent; a nonzero loss never reads as 0."""
    if value is None:
        return "–"
    if 0 < abs(value) < 0.0001:
        return show_percent(value, f".{1 - floor(log10(abs(value) * 100))}f")
    return show_percent(value, ".2f")


def show_percent(share: float, form: str = ".0f") -> str:
    """Return a share for reading, in whole percent: ``85 %``; or in another form."""
    return f"{share * 100:{form}} %"
