"""Differences: what is compared, and how a value is written."""

from __future__ import annotations

from typing import Any

import pytest

from udpbench.differences import Difference, differences, flat, written
from udpbench.model.experiment import Receive, Traffic
from udpbench.units import Rate


def test_differences_come_in_the_order_of_before_then_after() -> None:
    """What is equal is left out, and None is the same as not there."""
    before, after = {"b": 1, "a": 1, "same": 2, "gone": None}, {"new": 3, "a": 2, "same": 2}
    expected = [Difference("b", 1, None), Difference("a", 1, 2), Difference("new", None, 3)]
    assert expected == list(differences(before, after))


def test_a_difference_reads_like_the_file() -> None:
    """The key has no unit, and the values have theirs."""
    before, after = (dict(flat(Receive(buffer_bytes=size), "receive")) for size in (2**22, 2**20))
    (difference,) = differences(before, after)
    assert "receive.buffer: 4MiB → 1MiB" == str(difference)


def test_a_sysctl_keeps_its_name_and_number() -> None:
    """What ends like a unit is part of the kernel's name."""
    difference = Difference("settings.receiver.sysctl.vm.dirty_bytes", 4096, 8192)
    assert "settings.receiver.sysctl.vm.dirty_bytes: 4096 → 8192" == str(difference)


def test_lists_are_scalars_if_asked_for() -> None:
    """Items count from 1, and a rate is one value."""
    value = {"cpus": (0, 3), "traffic": Traffic(rate=Rate(packets_per_s=1000))}
    items = dict(flat(value))
    assert (0, 3) == (items["cpus[1]"], items["cpus[2]"])
    assert Rate(packets_per_s=1000) == items["traffic.rate"]
    assert (0, 3) == dict(flat(value, into_lists=False))["cpus"]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("x", None, "none"),
        ("x", True, "true"),
        ("x", (), "none"),
        ("x", {"0": (0, 1), "1": ()}, "0: 0, 1; 1: none"),
        ("duration_ns", 10**9, "1s"),
        ("size_bytes", 32, "32B"),
        ("rate", Rate(bits_per_s=10**6), "1Mbps"),
        ("x", "two\nlines", "two lines"),
        ("x", "a" * 81, "a" * 79 + "…"),
    ],
)
def test_a_value_is_written_as_in_a_file(path: str, value: Any, text: str) -> None:
    """On one line, at most 80 characters."""
    assert text == written(path, value)
