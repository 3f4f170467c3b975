"""Requirements of a compiled extension, read from its ELF file: machine, C library, version.

Owns nothing else of the format. Source: elf(5); symbol versions: Linux Standard Base, "Symbol
Versioning", section .gnu.version_r.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 258: "loongarch64"}
"""e_machine → as ``platform.machine()`` names it."""
LITTLE_64_BIT = b"\x7fELF\x02\x01"
NEEDED_VERSIONS = 0x6FFFFFFE  # SHT_GNU_verneed
GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)")
UNNUMBERED = (3, 0)
"""For a need without a number, such as GLIBC_ABI_DT_RELR: newer than any glibc."""


@dataclass(frozen=True)
class Requirements:
    """What a shared object needs of a host."""

    machine: str
    glibc: tuple[int, int] | None
    """At least this version; None if it uses another C library, which is musl."""

    def __str__(self) -> str:
        """Return it for a message."""
        libc = "musl" if self.glibc is None else "glibc {}.{} or later".format(*self.glibc)
        return f"{self.machine} with {libc}"


def requirements(content: bytes) -> Requirements:
    """Return what a shared object needs; ValueError if it is not 64-bit and little-endian."""
    if not content.startswith(LITTLE_64_BIT):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        (number,) = struct.unpack_from("<H", content, 18)  # Elf64_Ehdr.e_machine
        versions = [_glibc(name) for name in needed_versions(content) if name.startswith("GLIBC_")]
    except struct.error as error:
        raise ValueError("truncated ELF file") from error
    return Requirements(MACHINES.get(number, f"machine {number}"), max(versions, default=None))


def _glibc(name: str) -> tuple[int, int]:
    number = GLIBC.match(name)
    return (int(number[1]), int(number[2])) if number is not None else UNNUMBERED


def needed_versions(content: bytes) -> Iterator[str]:
    """Yield the names of the symbol versions that a 64-bit little-endian ELF file needs."""
    (at,) = struct.unpack_from("<Q", content, 40)  # Elf64_Ehdr.e_shoff
    size, count = struct.unpack_from("<HH", content, 58)  # e_shentsize, e_shnum
    sections = [struct.unpack_from("<IIQQQQI", content, at + size * i) for i in range(count)]
    for _, kind, _, _, need, _, link in sections:
        if kind != NEEDED_VERSIONS:
            continue
        strings = sections[link][4]
        further = 1
        while further:  # Elf64_Verneed, one for each library
            _, versions, _, first, further = struct.unpack_from("<HHIII", content, need)
            version = need + first
            for _ in range(versions):  # Elf64_Vernaux, one for each version
                _, _, _, name, step = struct.unpack_from("<IHHII", content, version)
                start = strings + name
                yield content[start : content.index(b"\0", start)].decode()
                version += step
            need += further
