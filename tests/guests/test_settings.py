"""Settings of real drivers: each takes hold, has its effect, and is undone; or the refusal says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import NEEDED, measure, measured, moved, on

from udpbench.analysis.judge import judge

pytestmark = NEEDED

STATE = """
for card in igb0 virtio0; do
    ip -d address show $card | grep -v inet6 | grep -v valid_lft
    for option in -g -l -c -a -x -k; do ethtool $option $card; done
    ethtool -n $card rx-flow-hash udp4
    ethtool -n $card
    grep . /sys/class/net/$card/queues/*/?ps_cpus /sys/class/net/$card/threaded
done 2>&1
nft list ruleset
sysctl -a 2>/dev/null | grep -E '^net.(core|ipv4.udp|ipv4.conf)'
"""
"""All that a run may set on a card, as the guest itself says it; IPv6 addresses come by themselves."""


def state() -> list[list[str]]:
    """Return the state of both guests, by line."""
    return [on(guest, STATE).splitlines() for guest in ("left", "right")]


@pytest.mark.parametrize(("hashed", "queues"), [("sd", 1), ("sdfn", 2)])
def test_ports_spread_flows_over_queues_where_the_card_hashes_them(
    hashed: str, queues: int, tmp_path: Path
) -> None:
    """Eight flows between two addresses differ in their ports alone."""
    record = measure(tmp_path, "igb", f"{{rx-flow-hash: {{udp4: {hashed}}}}}", count=800)
    phase = measured(record)
    packets = [moved(phase, f"ethtool.igb0.rx_queue_{n}_packets") for n in range(2)]
    busy = [number for number in packets if number >= 100]
    assert (queues, True) == (len(busy), sum(packets) >= 800)


@pytest.mark.parametrize(
    ("kind", "ethtool", "kinds"),
    [
        (
            "igb",
            "{channels: 2, rings: {rx: 512}, coalesce: {rx-usecs: 50}, rx-flow-hash: {udp4: sdfn}, indirection: equal 2}",
            {"rings", "coalesce", "flow_hash"},
        ),
        ("virtio", "{channels: 1}", {"channels"}),
    ],
)
def test_settings_of_a_card_hold_for_the_run_and_are_undone(
    kind: str, ethtool: str, kinds: set[str], tmp_path: Path
) -> None:
    """Both guests are as before in everything that a run may set, and no packet has no entry."""
    before = state()
    record = measure(tmp_path, kind, ethtool, count=500)
    result = judge(record)
    assert (True, 0) == (result.valid, result.unaccounted)
    changed = {change.setting.kind for change in record.changes["right"]}
    assert kinds <= changed
    assert before == state()
