"""Kind ``coalesce``: when an interface interrupts, {rx-usecs, rx-frames, adaptive-rx, ...}.

Names and units are those of ethtool -C (µs, packets); adaptive-rx and adaptive-tx are 0 or 1. A
driver may round times to what its timer counts in.
"""

from __future__ import annotations

from udpbench.agent import ethtool
from udpbench.agent.host import Host

SWITCHES = ("adaptive-rx", "adaptive-tx")
TIMER_USECS = 8
"""Coarsest timer that is taken for rounding: sfc counts in about 6 µs, i40e in 2."""


def read(host: Host, target: str) -> dict[str, int]:
    """Return every parameter that the driver has."""
    return ethtool.parse_coalesce(ethtool.show(host, "-c", target))


def write(host: Host, target: str, value: dict[str, int]) -> None:
    """Ask for the parameters that are named, in as many commands as they need."""
    for step in steps(ethtool.differing(value, read(host, target))):
        ethtool.change(host, "-C", target, ethtool.words_of(step, SWITCHES))


def steps(value: dict[str, int]) -> list[dict[str, int]]:
    """Return what each command asks for: adaptive ones go off before the numbers, and on after.

    i40e, ice, iavf and idpf refuse (EINVAL) another number while adaptive is on, or goes on.
    """
    first = {key: value[key] for key in SWITCHES if value.get(key) == 0}
    first.update((key, number) for key, number in value.items() if key not in SWITCHES)
    last = {key: value[key] for key in SWITCHES if value.get(key)}
    return [step for step in (first, last) if step]


def same(wanted: dict[str, int], got: dict[str, int]) -> bool:
    """Compare as far as something was asked for; what adapts by itself has no value to compare."""
    adapting = {
        f"{way}-{unit}"
        for way in ("rx", "tx")
        for unit in ("usecs", "frames")
        if wanted.get(f"adaptive-{way}") and got.get(f"adaptive-{way}")
    }
    return all(got.get(key) == value for key, value in wanted.items() if key not in adapting)


def rounded(wanted: dict[str, int], got: dict[str, int]) -> bool:
    """Say whether only times differ, each by no more than the timer's grain; 0 is never rounded."""
    return all(_close(key, value, got.get(key)) for key, value in wanted.items())


def _close(key: str, wanted: int, got: object) -> bool:
    if not isinstance(got, int) or "usecs" not in key:
        return got == wanted
    return bool(wanted) == bool(got) and abs(got - wanted) <= TIMER_USECS
