"""Offsets of fields in the running kernel's structures, from its BTF.

Parses /sys/kernel/btf/vmlinux (Documentation/bpf/btf.rst), given as bytes; pure. KeyError names a
type or field that this kernel does not have.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PATH = "/sys/kernel/btf/vmlinux"
MAGIC = 0xEB9F
STRUCT, UNION, ENUM, FUNC_PROTO, TYPEDEF, POINTER = 4, 5, 6, 13, 8, 2
MODIFIERS = (TYPEDEF, 9, 10, 11, 18)
"""Typedef, volatile, const, restrict and type tag: resolved to the type that they refer to."""
FIXED_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
PER_ITEM_BYTES = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, 15: 12, 19: 12}
"""Size of the data after a type's 12-byte header, by kind; other kinds have none."""


@dataclass(frozen=True)
class Type:
    """One type: ``refers`` is its size in bytes or the type that it refers to."""

    name: int
    kind: int
    items: int
    bitfields: bool
    refers: int
    at: int
    """Offset of its items."""


class Types:
    """The types of one kernel."""

    def __init__(self, raw: bytes) -> None:
        magic, _, _, header, types_at, types_bytes, names_at, names_bytes = struct.unpack_from(
            "=HBBIIIII", raw
        )
        if magic != MAGIC:
            raise ValueError("not the BTF of a kernel")
        self._raw = raw
        self._names = raw[header + names_at : header + names_at + names_bytes]
        self._types: list[Type] = [Type(0, 0, 0, False, 0, 0)]
        self._by_name: dict[tuple[int, int], int] = {}
        at, end = header + types_at, header + types_at + types_bytes
        while at < end:
            name, info, refers = struct.unpack_from("=III", raw, at)
            kind, items = info >> 24 & 31, info & 0xFFFF
            self._by_name.setdefault((kind, name), len(self._types))
            self._types.append(Type(name, kind, items, bool(info >> 31), refers, at + 12))
            at += 12 + FIXED_BYTES.get(kind, 0) + PER_ITEM_BYTES.get(kind, 0) * items

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
        entry = self._types[self._find(ENUM, enumeration)]
        pairs = (struct.unpack_from("=Ii", self._raw, entry.at + 8 * n) for n in range(entry.items))
        return {value: self._name(name) for name, value in pairs}

    def parameters(self, typedef: str) -> int:
        """Return the number of parameters of the function type that a typedef points to."""
        number = self._types[self._find(TYPEDEF, typedef)].refers
        while self._types[number].kind in (POINTER, *MODIFIERS):
            number = self._types[number].refers
        return self._types[number].items

    def _find(self, kind: int, name: str) -> int:
        start = self._names.find(b"\0" + name.encode() + b"\0")
        number = self._by_name.get((kind, start + 1)) if start >= 0 else None
        if number is None:
            raise KeyError(f"this kernel has no type {name}")
        return number

    def _name(self, at: int) -> str:
        return self._names[at : self._names.index(b"\0", at)].decode()

    def _meant(self, number: int) -> int:
        while self._types[number].kind in MODIFIERS:
            number = self._types[number].refers
        return number

    def _member(self, number: int, field: str) -> tuple[int, int] | None:
        """Return offset and type of a field in a structure or its anonymous members."""
        number = self._meant(number)
        inside = self._types[number]
        if inside.kind not in (STRUCT, UNION):
            return None
        for item in range(inside.items):
            name, refers, bits = struct.unpack_from("=III", self._raw, inside.at + 12 * item)
            offset = (bits & 0xFFFFFF if inside.bitfields else bits) // 8
            if name == 0 or self._name(name) == "":
                member = self._member(refers, field)
                if member is not None:
                    return offset + member[0], member[1]
            elif self._name(name) == field:
                return offset, refers
        return None
