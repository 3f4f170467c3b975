"""The ``ethtool`` program: parses its output and builds its arguments.

Parses text instead of ``--json``: the text has been stable since ethtool 2.6, while JSON was added
option by option (6.1 has it for -a, not for -l -g -c -x -n), so both would have to be parsed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

from udpbench.agent.host import programs
from udpbench.agent.host.files import lines_of
from udpbench.agent.host.reading import ReadingHost as Host

RING_KEYS = ("rx", "rx-mini", "rx-jumbo", "tx")
CHANNEL_KEYS = ("rx", "tx", "other", "combined")
PAUSE_KEYS = {"Autonegotiate": "autoneg", "RX": "rx", "TX": "tx"}
HASH_FIELDS = {
    "L2DA": "m",
    "VLAN tag": "v",
    "L3 proto": "t",
    "IP SA": "s",
    "IP DA": "d",
    "L4 bytes 0 & 1 [TCP/UDP src port]": "f",
    "L4 bytes 2 & 3 [TCP/UDP dst port]": "n",
    "GTP TEID": "e",
}
"""ethtool.c: dump_rxfhash → the letters that -N rx-flow-hash takes."""
_CURRENT = "Current hardware settings:"
_NOTHING_TO_DO = re.compile(r"no .* (?:parameters|settings)? ?(?:changed|specified)|unmodified")


@dataclass(frozen=True)
class NtupleRule:
    """One ntuple rule that matches a destination port only, or ``more``."""

    location: int
    flow: str
    port: Optional[int]
    queue: Optional[int]
    more: bool
    """It matches further fields, so udpbench did not write it."""


def show(host: Host, option: str, interface: str, *words: str) -> str:
    """Return the output of ``ethtool <option> <interface>``; OSError with the kernel's errno."""
    return programs.output(host, "ethtool", option, interface, *words)


def change(host: Host, option: str, interface: str, words: Iterable[str]) -> str:
    """Request a change and return the output; exit status 0 does not prove it, so read it back.

    igb, e1000e and vmxnet3 are known cases (docs/kernel.md, Refused changes that report success).
    """
    try:
        return programs.output(host, "ethtool", option, interface, *words)
    except OSError as error:
        if error.errno == errno.EIO and _NOTHING_TO_DO.search(error.strerror or ""):
            return ""
        raise


def words_of(requested: Mapping[str, int], switches: Iterable[str] = ()) -> list[str]:
    """Return ``rx 4096 tx 512``; ``switches`` are written as ``on`` and ``off``."""
    switched = set(switches)
    return [
        word
        for key, value in requested.items()
        for word in (key, ("on" if value else "off") if key in switched else str(value))
    ]


def differing(requested: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters to change; ValueError if the device lacks one."""
    unknown = [key for key in requested if key not in now]
    if unknown:
        known = ", ".join(now) or "none"
        raise ValueError(f"the device has no {', '.join(unknown)}; it has {known}")
    return {key: value for key, value in requested.items() if value != now[key]}


def parse_current(text: str, keys: Iterable[str]) -> dict[str, int]:
    """Return the current values of ``-g`` or ``-l``, without those that are n/a."""
    return _numbers(text.partition(_CURRENT)[2], keys)


def parse_maximums(text: str, keys: Iterable[str]) -> dict[str, int]:
    """Return the pre-set maximums of ``-g`` or ``-l``."""
    return _numbers(text.partition(_CURRENT)[0], keys)


def _numbers(text: str, keys: Iterable[str]) -> dict[str, int]:
    known = set(keys)
    numbers = {}
    for name, value in _pairs(text):
        key = name.lower().replace(" ", "-")
        if key in known and value.isdigit():
            numbers[key] = int(value)
    return numbers


def _pairs(text: str) -> list[tuple[str, str]]:
    split = [line.partition(":") for line in lines_of(text)]
    return [(name.strip(), value.strip()) for name, colon, value in split if colon]


def parse_coalesce(text: str) -> dict[str, int]:
    """Return the coalescing parameters of ``-c``; adaptive-rx and adaptive-tx are 0 or 1."""
    numbers = {}
    for name, value in _pairs(text):
        adaptive = re.fullmatch(r"(on|off|n/a)\s+TX:\s+(on|off|n/a)", value)
        if name == "Adaptive RX" and adaptive is not None:
            for key, state in zip(("adaptive-rx", "adaptive-tx"), adaptive.groups()):
                if state != "n/a":
                    numbers[key] = int(state == "on")
        elif value.isdigit() and re.fullmatch(r"[a-z-]+", name):
            numbers[name.replace("-frame-", "-frames-")] = int(value)
    return numbers


def parse_pause(text: str) -> dict[str, int]:
    """Return the flow control settings (-a): autoneg, rx, tx, each 0 or 1."""
    return {
        PAUSE_KEYS[name]: int(value == "on")
        for name, value in _pairs(text)
        if name in PAUSE_KEYS and value in ("on", "off")
    }


def parse_flow_hash(text: str) -> str:
    """Return the letters of the fields that ``-n <interface> rx-flow-hash`` lists."""
    lines = {line.strip() for line in lines_of(text)}
    return "".join(letter for name, letter in HASH_FIELDS.items() if name in lines)


def parse_indirection(text: str) -> tuple[int, list[int]]:
    """Return the number of RX rings and the table of ``-x``; ValueError if there is none."""
    rings = re.search(r"indirection table for \S+ with (\d+) RX ring", text)
    rows = re.findall(r"^\s*\d+:((?:\s+\d+)+)\s*$", text, re.MULTILINE)
    if rings is None or not rows:
        raise OSError(errno.EOPNOTSUPP, "the device has no RX indirection table")
    return int(rings.group(1)), [int(word) for row in rows for word in row.split()]


def parse_ntuple(text: str) -> tuple[NtupleRule, ...]:
    """Return the steering rules that ``-n <interface>`` lists."""
    return tuple(_rule(block) for block in re.split(r"(?m)^Filter: ", text)[1:])


def _rule(block: str) -> NtupleRule:
    location, _, body = block.partition("\n")
    fields = [(name, value.partition(" mask: ")) for name, value in _pairs(body)]
    values = {name: value for name, (value, _, _) in fields}
    looked_at = {name for name, (_, masked, mask) in fields if masked and not _is_any(mask)}
    port = values.get("Dest port") if "Dest port" in looked_at else None
    queue = re.search(r"Direct to queue (\d+)", values.get("Action", ""))
    return NtupleRule(
        location=int(location),
        flow=values.get("Rule Type", ""),
        port=int(port) if port is not None else None,
        queue=int(queue.group(1)) if queue is not None else None,
        more=bool(looked_at - {"Dest port"}),
    )


def _is_any(mask: str) -> bool:
    """Return whether a mask is all ones; a 1 bit means ignore."""
    if ":" in mask:
        return set(mask.lower().replace(":", "")) == {"f"}
    return mask in ("255.255.255.255", "0xff", "0xffff", "0xffffffff", "0xffffffffffffffff")
