"""What a process that looks for weeks does with memory that is free."""

from __future__ import annotations

import ctypes

import pytest

from udpbench import heap
from udpbench.json_lines import _resident_bytes

BLOCK_BYTES, BLOCKS, EACH = 2**14, 2**12, 64


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_what_is_free_between_what_is_in_use_goes_back() -> None:
    """Nearly all of 64 MiB, though blocks here and there are kept."""
    blocks = [bytes(BLOCK_BYTES) + b"x" for _ in range(BLOCKS)]
    kept = blocks[::EACH]
    before_bytes = _resident_bytes()
    del blocks
    heap.tidy()
    assert BLOCKS * BLOCK_BYTES // 2 < before_bytes - _resident_bytes()
    assert BLOCKS // EACH == len(kept)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of musl has no such function, and keeps less."""
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda _: object())
    heap.tidy()
