"""Tests of quantities as people read them."""

from __future__ import annotations

import pytest

from udpbench.units import show_ratio


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "–"),
        (0.0, "0.00 %"),
        (0.4321, "43.21 %"),
        (0.0001, "0.01 %"),
        (0.000081, "0.0081 %"),
        (0.0000999, "0.0100 %"),
        (0.000000001, "0.00000010 %"),
        (-0.00002, "-0.0020 %"),
    ],
)
def test_a_loss_never_reads_as_none(ratio: float | None, text: str) -> None:
    """A few lost packets of millions show two digits, in decimals and without an exponent."""
    assert text == show_ratio(ratio)
