"""Offsets of fields in the running kernel's structures, from its BTF.

Parses /sys/kernel/btf/vmlinux (Documentation/bpf/btf.rst), given as bytes; pure. KeyError names a
type or field that this kernel does not have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PATH = "/sys/kernel/btf/vmlinux"
MAGIC = 0xEB9F
STRUCT, UNION, ENUM, FUNC_PROTO, TYPEDEF, POINTER = 4, 5, 6, 13, 8, 2
MODIFIERS = (TYPEDEF, 9, 10, 11, 18)
"""Typedef, volatile, const, restrict and type tag: resolved to the type that they refer to."""
NAMED = (STRUCT, ENUM, TYPEDEF)
"""Kinds that are looked up by name."""
KINDS = 32
FIXED_WORDS = {1: 1, 3: 3, 14: 1, 17: 1}
PER_ITEM_WORDS = {STRUCT: 3, UNION: 3, ENUM: 2, FUNC_PROTO: 2, 15: 3, 19: 3}
"""Words of 4 B after the three of a type's header, by kind; other kinds have none."""


class Types:
    """The types of one kernel, as words: each begins with its name, its kind and what it refers to.

    A kernel has 100,000 and more, of which a few are asked for: nothing is made for the others.
    """

    def __init__(self, raw: bytes) -> None:
        magic, _, _, header, types_at, types_bytes, names_at, names_bytes = struct.unpack_from(
            "=HBBIIIII", raw
        )
        if magic != MAGIC:
            raise ValueError("not the BTF of a kernel")
        self._names = raw[header + names_at : header + names_at + names_bytes]
        begin = header + types_at
        self._words = words = memoryview(raw[begin : begin + types_bytes]).cast("I")
        self._starts = starts = [0]
        """Where each type begins; 0 is void and stands nowhere."""
        self._by_name: dict[tuple[int, int], int] = {}
        fixed = [3 + FIXED_WORDS.get(kind, 0) for kind in range(KINDS)]
        each = [PER_ITEM_WORDS.get(kind, 0) for kind in range(KINDS)]
        at, end = 0, len(words)
        while at < end:
            info = words[at + 1]
            kind = info >> 24 & 31
            if kind in NAMED:
                self._by_name.setdefault((kind, words[at]), len(starts))
            starts.append(at)
            at += fixed[kind] + each[kind] * (info & 0xFFFF)

    def offset(self, structure: str, path: str) -> int:
        """Return the offset in bytes of a field, ``nd_net.net``, also within anonymous members."""
        number, offset = self._find(STRUCT, structure), 0
        for field in path.split("."):
            member = self._member(number, field)
            if member is None:
                raise KeyError(f"struct {structure} has no {path}")
            offset, number = offset + member[0], self._meant(member[1])
        return offset

    def values(self, enumeration: str) -> dict[int, str]:
        """Return an enumeration as number → name."""
        items = self._items(self._find(ENUM, enumeration), ENUM)
        return {value - (value >> 31 << 32): self._name(name) for name, value in items}

    def parameters(self, typedef: str) -> int:
        """Return the number of parameters of the function type that a typedef points to."""
        number = self._refers(self._find(TYPEDEF, typedef))
        while self._kind(number) in (POINTER, *MODIFIERS):
            number = self._refers(number)
        return self._info(number) & 0xFFFF

    def _info(self, number: int) -> int:
        return self._words[self._starts[number] + 1] if number else 0

    def _kind(self, number: int) -> int:
        return self._info(number) >> 24 & 31

    def _refers(self, number: int) -> int:
        """Return the type that a type refers to."""
        return self._words[self._starts[number] + 2]

    def _items(self, number: int, kind: int) -> Iterator[tuple[int, ...]]:
        """Yield the items of a type of some kind, each its words."""
        at, size = self._starts[number] + 3, PER_ITEM_WORDS[kind]
        for item in range(at, at + size * (self._info(number) & 0xFFFF), size):
            yield tuple(self._words[item : item + size])

    def _find(self, kind: int, name: str) -> int:
        start = self._names.find(b"\0" + name.encode() + b"\0")
        number = self._by_name.get((kind, start + 1)) if start >= 0 else None
        if number is None:
            raise KeyError(f"this kernel has no type {name}")
        return number

    def _name(self, at: int) -> str:
        return self._names[at : self._names.index(b"\0", at)].decode()

    def _meant(self, number: int) -> int:
        while self._kind(number) in MODIFIERS:
            number = self._refers(number)
        return number

    def _member(self, number: int, field: str) -> tuple[int, int] | None:
        """Return offset and type of a field in a structure or its anonymous members."""
        number = self._meant(number)
        if self._kind(number) not in (STRUCT, UNION):
            return None
        bitfields = self._info(number) >> 31
        for name, refers, bits in self._items(number, STRUCT):
            offset = (bits & 0xFFFFFF if bitfields else bits) // 8
            if name == 0 or self._name(name) == "":
                member = self._member(refers, field)
                if member is not None:
                    return offset + member[0], member[1]
            elif self._name(name) == field:
                return offset, refers
        return None
