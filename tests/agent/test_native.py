"""The C extension outside of a loop: its system calls, and what an agent does without it."""

from __future__ import annotations

import errno
import re
import sys
from types import SimpleNamespace

import pytest

from udpbench.agent.host import facts, native
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.cpu_clocks import SOFTWARE, TASK_CLOCK, open_counter
from udpbench.errors import HostError

TEXT = r"udpbench's C extension cannot be used: .*; reinstall udpbench on this host"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no extension, as after an installation that failed."""
    monkeypatch.setitem(sys.modules, "udpbench._native", None)


@pytest.mark.usefixtures("missing")
def test_a_missing_extension_is_named() -> None:
    """Every use says what to do; facts are refused, since a limit of GSO would be a guess."""
    with pytest.raises(native.ExtensionError, match=TEXT):
        native.io_priority()
    with pytest.raises(HostError, match=TEXT):
        facts.gso_segments("127.0.0.1")


@pytest.mark.usefixtures("missing")
def test_what_may_be_absent_is_absent_without_the_extension() -> None:
    """An agent answers hello and shows what it has."""
    assert None is bpf.tcx_programs(1)
    assert None is open_counter(SOFTWARE, TASK_CLOCK)


def test_an_extension_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the function."""
    older = SimpleNamespace(ffi=None, lib=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "udpbench._native", older)
    with pytest.raises(native.ExtensionError, match="ub_ioprio_get"):
        native.io_priority()


def test_the_kernels_reason_is_the_error() -> None:
    """A command, an event and a priority that no kernel knows."""
    for call in (
        lambda: native.bpf(2**30, bytearray(8)),
        lambda: native.perf_event_open(bytearray(64), 2**30, -1),
        lambda: native.set_io_priority(7 << 13),
    ):
        with pytest.raises(OSError, match=re.escape("[Errno ")) as refused:
            call()
        assert refused.value.errno not in (0, errno.ENOSYS)
