"""A pinned program that chooses among workers' sockets: filled, asked, and refused where it cannot."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from golden import Golden
from steering_program import load_and_pin, pin
from test_sockets import drained, group, sending

from udpbench.agent.host.bpf import bpf, instructions
from udpbench.agent.host.bpf.reuseport import join

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which pins programs")


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    """Close every socket of a test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pinned(tmp_path: Path) -> Iterator[str]:
    """Give a name in a BPF file system of the test's own."""
    mounted = subprocess.run(["mount", "-t", "bpf", "bpf", tmp_path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this kernel mounts no BPF file system here")
    yield str(tmp_path / "steering")
    subprocess.run(["umount", tmp_path], check=True)


def datagram(flow: int) -> bytes:
    """Return what the program looks at."""
    return bytes(4) + flow.to_bytes(2, "big") + bytes(12)


def test_a_pinned_program_chooses_among_the_members(keep: ExitStack, pinned: str) -> None:
    """Each gets what the program says, in their order; closed they leave their places."""
    load_and_pin(pinned)
    for _ in range(2):
        members = group(keep, "reuseport-ebpf", 2)
        for number, member in enumerate(members):
            join(pinned, member, number, 2)
        sender = sending(keep, members[0].getsockname()[1])
        for flow in (0, 1, 2, 3, 5, 7):
            sender.send(datagram(flow))
        assert [2, 4] == [drained(member).packets for member in members]
        for member in members:
            member.close()


@pytest.mark.parametrize("what", ["nothing", "a map", "another type", "no array", "two arrays"])
def test_what_is_not_such_a_program_is_refused(
    keep: ExitStack, pinned: str, what: str, golden: Golden
) -> None:
    """With what it is, and how to pin one."""
    if what == "two arrays":
        load_and_pin(pinned, arrays=2)
    elif what != "nothing":
        if what == "a map":
            descriptor = bpf.create_map(bpf.REUSEPORT_SOCKARRAY, 2)
        else:
            kind = bpf.XDP if what == "another type" else bpf.SK_REUSEPORT
            descriptor = bpf.load(kind, instructions.passes(1), "passes")
        pin(descriptor, pinned)
        os.close(descriptor)
    (member,) = group(keep, "reuseport-ebpf", 1)
    with golden.raises(OSError):
        join(pinned, member, 0, 1)


def test_an_array_that_is_too_small_or_in_use_is_refused(
    keep: ExitStack, pinned: str, golden: Golden
) -> None:
    """Whoever uses it keeps its sockets."""
    load_and_pin(pinned)
    mine, others = group(keep, "reuseport-ebpf", 2), group(keep, "reuseport-ebpf", 2)
    with golden.raises(OSError):
        join(pinned, mine[0], 0, 3)
    join(pinned, others[0], 0, 2)
    with golden.raises(OSError):
        join(pinned, mine[0], 0, 2)
