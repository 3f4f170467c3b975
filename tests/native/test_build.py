"""The extension as built: what Python and C must agree on."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from udpbench import _native
from udpbench._native import ffi, lib
from udpbench.control.deployment.elf import Requirements
from udpbench.model.limits import HEADER_BYTES

NATIVE = Path(__file__).parents[2] / "native"


def test_the_extension_is_built_as_asked() -> None:
    """A run that names the address sanitizer tests an extension that has it, and no other does."""
    sanitized = "address" in os.environ.get("UDPBENCH_SANITIZE", "")
    assert sanitized == (b"__asan_init" in Path(_native.__file__).read_bytes())


def test_one_extension_serves_every_python() -> None:
    """The extension is built against the stable ABI."""
    assert Path(_native.__file__).name.endswith(".abi3.so")


def test_the_header_is_as_long_in_python_as_in_c() -> None:
    """The model's header size is the loops'."""
    assert lib.UB_HEADER_BYTES == HEADER_BYTES


@pytest.mark.parametrize("name", ["ub_send_stats", "ub_receive_stats"])
def test_stats_are_counters_without_gaps(name: str) -> None:
    """Every field is an u64 right behind the one before, so that the agent may read it as such."""
    fields = ffi.typeof(f"struct {name}").fields
    assert [8 * place for place in range(len(fields))] == [field.offset for _, field in fields]
    assert {"uint64_t"} == {field.type.cname for _, field in fields}
    assert ffi.sizeof(f"struct {name}") == 8 * len(fields)


def test_stop_is_the_first_word_of_a_line_of_its_own() -> None:
    """What the steering thread writes shares its cache line with nothing."""
    assert ffi.offsetof("struct ub_control", "stop") == 0
    assert ffi.sizeof("struct ub_control") == lib.UB_CACHE_LINE_BYTES


def test_a_portable_build_that_needs_too_much_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's word is not enough: what it wrote is read."""
    monkeypatch.chdir(NATIVE.parent)
    monkeypatch.syspath_prepend(str(NATIVE))
    portable = import_module("portable")
    built = tmp_path / "x86_64-linux-musl.so"
    monkeypatch.setattr(portable, "PORTABLE", tmp_path)
    monkeypatch.setattr(portable, "requirements", lambda _: Requirements("x86_64", (2, 34)))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: built.write_bytes(b""))
    with pytest.raises(SystemExit, match=r"needs x86_64 with glibc 2\.34"):
        portable.build("x86_64-linux-musl", tmp_path / "_native.c")
    assert not built.exists()
