"""Settings of real drivers: each takes hold, has its effect, and is undone; or the refusal says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from runs import NEEDED, await_words, measure, measured, moved, on, start
from waiting import wait_until

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


@pytest.mark.parametrize(("hashed", "spread"), [("sd", False), ("sdfn", True)])
def test_ports_spread_flows_over_queues_where_the_card_hashes_them(
    hashed: str, spread: bool, tmp_path: Path
) -> None:
    """Sixteen flows between two addresses differ in their ports alone."""
    record = measure(tmp_path, "igb", f"{{rx-flow-hash: {{udp4: {hashed}}}}}", count=800)
    phase = measured(record)
    packets = [moved(phase, f"ethtool.igb0.rx_queue_{n}_packets") for n in range(8)]
    busy = [number for number in packets if number >= 800 // 16]
    assert (spread, True) == (len(busy) > 1, sum(packets) >= 800)


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


def test_a_steering_rule_that_the_card_does_not_take_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    """An igb takes Ethernet rules only; the run goes on without, as the file allows."""
    before = state()
    rule = "{ntuple: [{port: 4321, queue: 1}]}, optional: [ethtool.ntuple]"
    record = measure(tmp_path, "igb", rule, count=200)
    (refusal,) = (c.refusal for c in record.changes["right"] if c.setting.kind == "ntuple")
    assert refusal is not None
    assert "Cannot insert RX class rule" in refusal
    assert (True, before) == (judge(record).valid, state())


DEEDS = {
    "agent": ("right", "kill -9 $(pgrep -f udpbench.agent.serve)", 3),
    "guardian": ("right", "kill -9 $(pgrep -f udpbench.agent.settings.guardian)", 0),
    "connection": ("right", "kill -9 $(pgrep -f sshd-session | tail -1)", 0),
}
"""Who is killed on a guest, how, and how the run ends."""
ALL = "{channels: 2, rings: {rx: 512}, coalesce: {rx-usecs: 50}, rx-flow-hash: {udp4: sdfn}}"


def restored(before: list[list[str]], limit_s: float) -> None:
    """Wait until both guests are as before."""
    wait_until("both guests are as before", lambda: before == state(), limit_s)


@pytest.mark.parametrize("who", ["controller", "link", *DEEDS])
def test_whoever_dies_the_guests_end_as_they_began(who: str, tmp_path: Path) -> None:
    """A controller, an agent, its guardian, a connection, or the network that they use."""
    before = state()
    run = start(tmp_path, "igb", ALL, count=8000, lease="20s")
    await_words(run, "measured")
    assert before != state()
    expected: int | None = None
    if who == "controller":
        run.kill()
    elif who == "link":
        subprocess.run(["ip", "link", "set", "control-right", "down"], check=True)
        wait_until("the run has ended", lambda: run.poll() is not None, 240)
        subprocess.run(["ip", "link", "set", "control-right", "up"], check=True)
        expected = 3
    else:
        guest, command, expected = DEEDS[who]
        on(guest, command)
    said, _ = run.communicate()
    assert expected in (None, run.returncode, 0 if run.returncode == 5 else -1), said
    restored(before, 90)
