"""Sets of CPUs as the kernel prints them."""

from __future__ import annotations

import pytest

from udpbench.cpu_lists import cpu_mask, format_cpu_list, parse_cpu_list, parse_cpu_mask


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("5", (5,)), ("\n", ()), ("", ())]
)
def test_cpu_lists_are_expanded(text: str, cpus: tuple[int, ...]) -> None:
    """Ranges and single CPUs are spelled out."""
    assert cpus == parse_cpu_list(text)


@pytest.mark.parametrize(
    ("cpus", "text"), [((2, 3, 4, 0), "2-4,0"), ((5,), "5"), ((1, 0), "1,0"), ((), "")]
)
def test_cpus_are_listed_in_their_order(cpus: tuple[int, ...], text: str) -> None:
    """Neighbours as a range."""
    assert text == format_cpu_list(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("3\n", (0, 1)), ("00000000", ()), ("00000001,80000000", (31, 32)), ("", ())],
)
def test_cpu_masks_are_expanded(text: str, cpus: tuple[int, ...]) -> None:
    """Groups of 32 bits are one number."""
    assert cpus == parse_cpu_mask(text)


@pytest.mark.parametrize("cpus", [[], [0], [31], [32], [0, 31, 32, 63, 64, 127]])
def test_a_mask_reads_back(cpus: list[int]) -> None:
    """What is written as a mask is parsed as the same CPUs, in groups of 32 bits."""
    assert cpus == list(parse_cpu_mask(cpu_mask(cpus)))
    assert [True] * len(cpu_mask(cpus).split(",")) == [
        len(group) <= 8 for group in cpu_mask(cpus).split(",")
    ]
