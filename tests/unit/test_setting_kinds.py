"""How messages show the values of settings: as ``ethtool`` would, never as Python would."""

from __future__ import annotations

from typing import Any

import pytest

from udpbench.model.host import Setting
from udpbench.setting_kinds import (
    asked_for,
    requested_part,
    show_table,
    show_value,
    show_values,
)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([queue % 4 for queue in range(128)], "equal over queues 0-3"),
        ([4 + queue % 2 for queue in range(128)], "equal over queues 4-5"),
        ([2] * 128, "all on queue 2"),
        ([0] * 96 + [1] * 32, "queues 0 ×96, 1 ×32"),
        ([queue // 32 for queue in range(128)], "queues 0-3 ×32"),
        ([(queue * 7) % 5 % 3 for queue in range(128)], "mixed over queues 0-1 ×51, 2 ×26"),
        ([], "empty"),
    ],
)
def test_an_indirection_table_is_a_few_words(table: list[int], text: str) -> None:
    """However many entries it has."""
    assert text == show_table(table)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("napi_cpus", [[0], [1]], "rx-0=0 rx-1=1"),
        ("napi_cpus", [[0, 1, 2, 3]] * 3, "rx-0-2=0-3"),
        ("napi_cpus", [[0, 1], None], "rx-0=0-1 rx-1=none"),
        ("rps", [3, 0, 1, 2], "0-3"),
        ("rps", [], "none"),
        ("coalesce", {"rx-usecs": 5, "adaptive-rx": 0}, "rx-usecs=5 adaptive-rx=off"),
        ("pause", {"autoneg": 1, "rx": False}, "autoneg=on rx=off"),
        ("rings", {"rx": 1, "tx": 0}, "rx=1 tx=0"),
        ("channels", {"combined": 4, "queues": {"rx-0/rps_cpus": "0"}}, "combined=4"),
        ("indirection", {"rings": 4, "table": [0, 1, 2, 3] * 32}, "equal over queues 0-3"),
        ("indirection", "equal 2", "equal 2"),
        ("governor", {"policy0": "powersave", "policy1": "powersave"}, "powersave"),
        ("irqbalance", {"41/5": False, "42/5": False}, "off"),
        ("governor", {"policy0": "a", "policy1": "b"}, "policy0=a policy1=b"),
        ("qdisc", {"tbf": {"rate_bps": 1, "burst_bytes": 2}}, "tbf rate_bps=1 burst_bytes=2"),
        ("link", {"peer": "s0", "peer_pid": 12527, "queues": 1}, "peer=s0 queues=1"),
        ("sysctl", "4096\t131072\t6291456", "4096 131072 6291456"),
        ("sysctl", "", "empty"),
        ("feature", False, "off"),
        ("bridge", True, "present"),
        ("route", None, "none"),
        ("colour", ["red", 1], "red, 1"),
    ],
)
def test_a_value_is_shown_in_the_tools_words(kind: str, value: Any, text: str) -> None:
    """Never as Python's list, dict, text, True or None."""
    assert text == show_value(kind, value)


def test_only_parts_that_differ_are_shown() -> None:
    """At any depth; of long parts the first few, and all if nothing differs."""
    queues = {f"rx-{n}/rps_cpus": "0" for n in range(8)}
    before = {"combined": 8, "other": 1, "queues": queues}
    after = {"combined": 8, "other": 1, "queues": {**queues, "rx-1/rps_cpus": "3"}}
    assert ["queues=rx-1/rps_cpus=0", "queues=rx-1/rps_cpus=3"] == (
        show_values("channels", before, after)
    )
    gone = show_values("channels", before, {"combined": 4, "other": 1, "queues": {}})[0]
    assert gone.startswith("combined=8 queues=(rx-0/rps_cpus=0 ")
    assert gone.endswith("rx-3/rps_cpus=0 and 4 more)")
    assert ["combined=8 other=1"] * 2 == show_values("channels", before, dict(before))
    tables = ({"rings": 4, "table": [0, 1, 2, 3]}, {"rings": 4, "table": [0, 0, 1, 1]})
    assert ["equal over queues 0-3", "queues 0-1 ×2"] == show_values("indirection", *tables)


def test_of_a_value_in_force_what_was_requested_counts() -> None:
    """A number of channels is compared with those in use."""
    assert {"rx": 256} == requested_part({"rx": 4096}, {"rx": 256, "tx": 256})
    assert {"combined": 8} == requested_part(4, {"combined": 8, "other": 1, "rx": 0})
    assert {"policy0": "a"} == requested_part("b", {"policy0": "a"})
    assert 7 == requested_part(8, 7)


def test_what_exists_or_not_is_asked_to_be_added() -> None:
    """There is no value to name."""
    assert ["asked to add it", "asked for none", "asked for rx=1"] == [
        asked_for(setting)
        for setting in (
            Setting("bridge", "bridge0", True),
            Setting("bridge", "bridge0", None),
            Setting("rings", "eth3", {"rx": 1}),
        )
    ]


def test_indexes_of_interfaces_are_no_part_of_a_parameter() -> None:
    """They are kept for one that is renamed, and mean nothing to a reader."""
    value = {"net/ipv4/ip_forward": 1, "index of eth0": 7}
    assert "net/ipv4/ip_forward=1" == show_value("sysctl", value)
