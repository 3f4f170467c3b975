"""What ethtool prints for real drivers, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from udpbench.agent.host import ethtool
from udpbench.agent.host.ethtool import NtupleRule
from udpbench.agent.settings import steering
from udpbench.agent.settings.handlers import KINDS

FIXTURES = Path(__file__).parents[1] / "fixtures/ethtool"


def text(name: str) -> str:
    """Return what was printed."""
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("name", "current", "most"),
    [
        ("virtio_net-l", {"combined": 4}, {"combined": 4}),
        ("igb-l", {"other": 1, "combined": 8}, {"other": 1, "combined": 8}),
        ("veth-l", {"rx": 4, "tx": 2}, {"rx": 4, "tx": 4}),
        (
            "sfc-l",
            {"rx": 0, "tx": 0, "other": 0, "combined": 11},
            {"rx": 0, "tx": 0, "other": 0, "combined": 16},
        ),
    ],
)
def test_channels(name: str, current: dict[str, int], most: dict[str, int]) -> None:
    """What a device has not (n/a) is left out; 0 is a value."""
    assert current == ethtool.parse_current(text(name), ethtool.CHANNEL_KEYS)
    assert most == ethtool.parse_maximums(text(name), ethtool.CHANNEL_KEYS)


@pytest.mark.parametrize(
    ("name", "current"),
    [
        ("igb-g", {"rx": 256, "tx": 256}),
        ("mlx5-g", {"rx": 1024, "rx-mini": 0, "rx-jumbo": 0, "tx": 1024}),
    ],
)
def test_rings(name: str, current: dict[str, int]) -> None:
    """Buffer lengths and push modes below them are no rings."""
    assert current == ethtool.parse_current(text(name), ethtool.RING_KEYS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mlx5-c",
            {
                "adaptive-rx": 1,
                "adaptive-tx": 1,
                "rx-usecs": 8,
                "rx-frames": 128,
                "tx-usecs": 8,
                "tx-frames": 128,
            },
        ),
        (
            "sfc-c",
            {
                "adaptive-rx": 0,
                "rx-usecs": 60,
                "rx-usecs-irq": 60,
                "tx-usecs": 150,
                "tx-usecs-irq": 150,
            },
        ),
    ],
)
def test_coalescing(name: str, expected: dict[str, int]) -> None:
    """Names are those that -C takes."""
    assert expected == ethtool.parse_coalesce(text(name))


def test_coalescing_of_an_old_ethtool() -> None:
    """It prints rx-frame-low where its option is rx-frames-low, and 0 for what is not there."""
    coalescing = ethtool.parse_coalesce(text("bnxt-c-4.19"))
    assert (14, 15, 0, 0) == tuple(
        coalescing[key] for key in ("rx-usecs", "rx-frames", "rx-frames-low", "adaptive-rx")
    )
    assert [] == [key for key in coalescing if "-frame-" in key]


def test_flow_control() -> None:
    """What was negotiated is not what is set."""
    assert {"autoneg": 1, "rx": 1, "tx": 0} == ethtool.parse_pause(text("igb-a"))


@pytest.mark.parametrize(
    ("name", "expected"), [("igb-n-udp4", "sd"), ("virtio_net-n-udp4", "sdfn")]
)
def test_hash_fields(name: str, expected: str) -> None:
    """As the letters that -N takes."""
    assert expected == ethtool.parse_flow_hash(text(name))


@pytest.mark.parametrize(
    ("name", "rings_count", "table", "words"),
    [
        ("virtio_net-x", 4, [0, 1, 2, 3] * 4, "default"),
        ("igb-x-weight", 8, ([0] * 6 + [1] * 2) * 2, None),
    ],
)
def test_indirection(name: str, rings_count: int, table: list[int], words: str | None) -> None:
    """Every row is read; a table that repeats weights is none that ethtool could make."""
    assert (rings_count, table) == ethtool.parse_indirection(text(name))
    assert words == steering.words_for({"rings": rings_count, "table": table})


@pytest.mark.parametrize(
    ("words", "rings_count", "table"),
    [
        ("default", 3, [0, 1, 2, 0, 1, 2, 0, 1]),
        ("equal 2", 4, [0, 1, 0, 1, 0, 1, 0, 1]),
        ("weight 12 4", 4, [0, 0, 0, 0, 0, 0, 1, 1]),
        ("weight 4 0 4", 4, [0, 0, 0, 0, 2, 2, 2, 2]),
    ],
)
def test_a_table_and_its_words(words: str, rings_count: int, table: list[int]) -> None:
    """What is made of a table's own words is that table again."""
    assert table == steering.table_of(words, rings_count, 8)
    again = steering.words_for({"rings": rings_count, "table": table})
    assert again is not None
    assert table == steering.table_of(again, rings_count, 8)


def test_a_device_without_a_table(golden: Golden) -> None:
    """It is not taken for an empty one."""
    with golden.raises(OSError):
        ethtool.parse_indirection("RX flow hash indirection table for eth3 with 1 RX ring(s):\n")


def test_steering_rules() -> None:
    """One that looks at more than a port is seen as such, whatever else its port is."""
    assert (
        NtupleRule(0, "", None, 0, True),
        NtupleRule(1, "UDP over IPv4", 4321, 16, True),
        NtupleRule(1021, "UDP over IPv6", 4321, 5, False),
        NtupleRule(1023, "UDP over IPv4", 4321, 3, False),
    ) == ethtool.parse_ntuple(text("mlx5-n"))


@pytest.mark.parametrize(
    ("rounded", "requested", "actual", "expected"),
    [
        (KINDS["rings"].rounded, {"rx": 1000}, {"rx": 1024, "tx": 1}, True),
        (KINDS["rings"].rounded, {"rx": 1000}, {"rx": 2000}, False),
        (KINDS["rings"].rounded, {"rx": 1000}, {"rx": 512}, False),
        (KINDS["rings"].rounded, {"rx": 1000}, {}, False),
        (KINDS["coalesce"].rounded, {"rx-usecs": 8}, {"rx-usecs": 12}, True),
        (KINDS["coalesce"].rounded, {"rx-usecs": 8}, {"rx-usecs": 0}, False),
        (KINDS["coalesce"].rounded, {"rx-usecs": 8}, {"rx-usecs": 17}, False),
        (KINDS["coalesce"].rounded, {"rx-frames": 8}, {"rx-frames": 9}, False),
        (KINDS["coalesce"].rounded, {"rx-usecs": 8}, {}, False),
        (KINDS["rfs"].rounded, 100, 128, True),
        (KINDS["rfs"].rounded, 100, 256, False),
        (KINDS["rfs"].rounded, 0, 1, False),
    ],
)
def test_what_counts_as_rounded(rounded: Any, requested: Any, actual: Any, expected: bool) -> None:
    """A ring up to the next power of two, a time by a timer's grain, and nothing else."""
    assert expected == rounded(requested, actual)


def test_what_adapts_by_itself_is_not_compared() -> None:
    """With adaptive-rx on, rx-usecs is the driver's to choose."""
    before = {"adaptive-rx": 1, "rx-usecs": 8, "tx-usecs": 8}
    assert KINDS["coalesce"].same(before, {"adaptive-rx": 1, "rx-usecs": 64, "tx-usecs": 8})
    assert not KINDS["coalesce"].same(before, {"adaptive-rx": 1, "rx-usecs": 64, "tx-usecs": 9})
    assert not KINDS["coalesce"].same(before, {"adaptive-rx": 0, "rx-usecs": 64, "tx-usecs": 8})
