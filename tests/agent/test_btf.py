"""The kernel's description of its own types, of a kernel made up of a few of them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from golden import Golden

from udpbench.agent.host.bpf.btf import PATH, Types


class TypesBuilder:
    """BTF in the making; types are numbered from 1 in the order in which they are added."""

    def __init__(self) -> None:
        self.names = b"\0"
        self.types = b""

    def name(self, text: str) -> int:
        """Return where a name lies; the empty one lies at 0."""
        if not text:
            return 0
        self.names += text.encode() + b"\0"
        return len(self.names) - len(text) - 1

    def add(self, name: str, kind: int, items: int, refers: int, body: bytes = b"") -> None:
        """Append a type."""
        self.types += struct.pack("=III", self.name(name), kind << 24 | items, refers) + body

    def members(self, *members: tuple[str, int, int]) -> bytes:
        """Return fields of a structure: name, type, offset in bytes."""
        return b"".join(
            struct.pack("=III", self.name(name), kind, 8 * at) for name, kind, at in members
        )

    def raw(self) -> bytes:
        """Return the whole."""
        header = struct.pack(
            "=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.names)
        )
        return header + self.types + self.names


@pytest.fixture
def types() -> Types:
    """Return an int, a structure with a nameless union in it, an enumeration and a function."""
    builder = TypesBuilder()
    builder.add("int", 1, 0, 4, b"\0" * 4)
    builder.add("", 5, 2, 8, builder.members(("dev", 1, 0), ("scratch", 1, 0)))
    builder.add("sk_buff", 4, 2, 24, builder.members(("next", 1, 0), ("", 2, 16)))
    builder.add("alias", 8, 0, 3)
    builder.add("outer", 4, 1, 40, builder.members(("inner", 4, 8)))
    pairs = ((builder.name("WHY_NOT"), 2), (builder.name("MASK"), -65536))
    builder.add("reason", 6, 2, 4, b"".join(struct.pack("=Ii", *pair) for pair in pairs))
    builder.add("", 13, 3, 0, b"\0" * 24)
    builder.add("", 2, 0, 7)
    builder.add("btf_trace_kfree_skb", 8, 0, 8)
    return Types(builder.raw())


def test_a_field_is_found_in_a_nameless_union(types: Types) -> None:
    """At the union's offset and its own."""
    assert (0, 16) == (types.offset("sk_buff", "next"), types.offset("sk_buff", "dev"))


def test_a_path_leads_through_a_typedef(types: Types) -> None:
    """Offsets add up."""
    assert 8 + 16 == types.offset("outer", "inner.scratch")


def test_an_enumeration_is_read_by_number(types: Types) -> None:
    """Negative values are negative."""
    assert {2: "WHY_NOT", -65536: "MASK"} == types.values("reason")


def test_a_tracepoints_parameters_are_counted(types: Types) -> None:
    """Behind a typedef and a pointer."""
    assert 3 == types.parameters("btf_trace_kfree_skb")


def test_what_a_kernel_does_not_have_is_named(types: Types, golden: Golden) -> None:
    """A structure, a field, and the wrong file."""
    with golden.raises(KeyError):
        types.offset("sock", "x")
    with golden.raises(KeyError):
        types.offset("sk_buff", "next.x")
    with golden.raises(ValueError):
        Types(b"\0" * 64)


def test_this_kernels_own_types_are_read() -> None:
    """Where it has them."""
    if not Path(PATH).exists():
        pytest.skip(f"this kernel has no {PATH}")
    own = Types(Path(PATH).read_bytes())
    assert own.offset("sk_buff", "dev") > 0
    assert "SKB_DROP_REASON_NO_SOCKET" in own.values("skb_drop_reason").values()
