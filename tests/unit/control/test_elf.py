"""What an extension needs of a host, read from its file."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import pytest

import udpbench
from udpbench.control.deployment.elf import UNNUMBERED, Requirements, requirements

EXTENSION = (Path(udpbench.__file__).parent / "_native.abi3.so").read_bytes()


def with_machine(number: int) -> bytes:
    """Return the extension as if for another machine."""
    return EXTENSION[:18] + struct.pack("<H", number) + EXTENSION[20:]


def test_the_extension_loads_with_glibc_2_17() -> None:
    """Whatever it was built with: RHEL 8, RHEL 9 and Debian 11 have a later one."""
    assert Requirements(platform.machine(), (2, 17)) == requirements(EXTENSION)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (EXTENSION.replace(b"GLIBC_2.17\0", b"GLIBC_2.34\0"), (2, 34)),
        (EXTENSION.replace(b"GLIBC_2.17\0", b"GLIBC_RELR\0"), UNNUMBERED),
        (EXTENSION.replace(b"GLIBC_", b"OTHER_"), None),
    ],
)
def test_the_newest_need_decides(content: bytes, expected: tuple[int, int] | None) -> None:
    """One that has no number is newer than all, and without any it is of another C library."""
    assert expected == requirements(content).glibc


@pytest.mark.parametrize(
    ("number", "machine"), [(62, "x86_64"), (183, "aarch64"), (9, "machine 9")]
)
def test_the_machine_is_named_as_python_names_it(number: int, machine: str) -> None:
    """And one without a name fits no host."""
    assert machine == requirements(with_machine(number)).machine


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01", EXTENSION[:40]])
def test_another_file_is_refused(content: bytes) -> None:
    """A script, a 32-bit file, a file that is cut off."""
    with pytest.raises(ValueError, match="ELF"):
        requirements(content)
