"""Settings of real drivers: each takes hold, has its effect, and is undone; or the refusal says why."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from host_state import EVERYTHING, ROWS, differences, experiment, parse, script
from runs import NEEDED, PATIENT, await_words, by_queue, measure, measured, on, paced, start
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
for irq in $(ls /sys/class/net/igb0/device/msi_irqs); do
    echo $(cat /sys/kernel/irq/$irq/actions) $(cat /proc/irq/$irq/smp_affinity_list)
done | sort
ip route
ip neighbour show nud permanent
tc qdisc show
nft list ruleset
sysctl -a 2>/dev/null | grep -E '^net.(core|ipv4.udp|ipv4.conf)'
pgrep -af '[u]dpbench.agent'
true
"""
"""All that a run may set on a guest, as it says itself; IPv6 addresses come by themselves."""


def state(*guests: str) -> list[list[str]]:
    """Return the state of guests, by line; of both unless some are named."""
    return [on(guest, STATE).splitlines() for guest in guests or ("left", "right")]


def await_state(before: list[list[str]]) -> None:
    """Wait until both guests are as before; a carrier takes a moment to come back."""
    wait_until("both guests are as before", lambda: before == state(), 120)


@pytest.mark.parametrize(("hashed", "spread"), [("sd", False), ("sdfn", True)])
def test_ports_spread_flows_over_queues_where_the_card_hashes_them(
    hashed: str, spread: bool, tmp_path: Path
) -> None:
    """Sixteen flows between two addresses differ in their ports alone."""
    record = measure(tmp_path, "igb", f"{{rx-flow-hash: {{udp4: {hashed}}}}}", count=800)
    packets = by_queue(measured(record)).values()
    busy = [number for number in packets if number >= 800 // 16]
    assert (spread, True) == (len(busy) > 1, sum(packets) >= 800)


IGB = "{channels: 2, rings: {rx: 512}, coalesce: {rx-usecs: 50}, rx-flow-hash: {udp4: sdfn}, indirection: equal 1}"


@pytest.mark.parametrize(
    ("kind", "ethtool", "kinds"),
    [
        ("igb", IGB, {"channels", "rings", "coalesce", "flow_hash", "indirection"}),
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
    changes = [change for change in record.changes["right"] if change.setting.kind in kinds]
    assert kinds == {change.setting.kind for change in changes}
    assert [] == [change for change in changes if change.refusal or change.rounded]
    if kind == "igb":
        packets = by_queue(measured(record))
        # Both queues that are left, and the table names the first of them alone.
        assert ({0, 1}, True) == (set(packets), packets[0] >= 500 > packets[1])
    await_state(before)


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
    assert judge(record).valid
    await_state(before)


AGENT, GUARDIAN, WORKER = (
    f"$(pgrep -f 'udpbench[.]agent[.]{module}')"
    for module in ("serve", "settings[.]guardian", "workers[.]process")
)
"""The brackets keep the shell that looks for them from being found."""
ITS_SSHD = """
pid=$(pgrep -n -f 'udpbench[.]agent[.]serve')
until grep -q '^sshd' /proc/$pid/comm; do pid=$(cut -d' ' -f4 /proc/$pid/stat); done
kill -9 $pid
"""
DEEDS = {
    "controller": ("", -signal.SIGKILL),
    "agent": (f"kill -9 {AGENT}", 3),
    "guardian": (f"kill -9 {GUARDIAN}", 0),
    "agent and guardian": (f"kill -9 {GUARDIAN} {AGENT}", 3),
    "worker": (f"kill -9 {WORKER}", 3),
    "connection": (ITS_SSHD, 0),
    "network": ("", 3),
}
"""Who dies → how that is done on the receiver, and how the run ends."""
UNTRUSTED = {0: 5}
"""How it may end, too: whether a guest of an emulator can be trusted is not asked here."""


def cut_network(run: subprocess.Popen[str]) -> None:
    """Take the receiver's control network away until the run has ended."""
    link = ("ip", "link", "set", "control-right")
    subprocess.run([*link, "down"], check=True)
    try:
        wait_until("the run has ended", lambda: run.poll() is not None, 300)
    finally:
        subprocess.run([*link, "up"], check=True)


@pytest.mark.parametrize("who", DEEDS)
def test_whoever_dies_the_guests_end_as_they_began(who: str, tmp_path: Path) -> None:
    """Settings that were in force are undone; after two deaths at once by ``udpbench restore``."""
    before = state()
    run = start(tmp_path, "igb", paced(IGB, count=30_000), lease="20s")
    await_words(run, "#1 measured")
    assert before[1:] != state("right")
    command, code = DEEDS[who]
    if who == "controller":
        run.kill()
    elif who == "network":
        cut_network(run)
    else:
        on("right", command)
    output, _ = run.communicate()
    assert run.returncode in (code, UNTRUSTED.get(code)), output
    if who == "agent and guardian":
        restore = [sys.executable, PATIENT, "restore", "--lab", "lab.yaml"]
        subprocess.run(restore, cwd=tmp_path, check=True)
    await_state(before)


CARDS = ("igb", "virtio")
OF_BOTH = script(*(f"{card}0" for card in CARDS))
PAIRS = [(card, groups, "end") for card in CARDS for groups in ROWS]
PAIRS += [(card, EVERYTHING, who) for card in CARDS for who in ("controller", "agent")]


def await_all_as_before(before: list[dict[str, list[str]]]) -> None:
    """Wait until all that programs show of both guests is as before; or fail with what differs."""

    def differing() -> list[list[str]]:
        states = [parse(on(guest, OF_BOTH)) for guest in ("left", "right")]
        return [differences(*both) for both in zip(before, states, strict=True)]

    try:
        wait_until("both guests are as before", lambda: differing() == [[], []], 120)
    except AssertionError:
        assert [[], []] == differing()
        raise


@pytest.mark.parametrize(
    ("card", "groups", "ending"),
    PAIRS,
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_all_that_programs_show_of_the_guests_is_as_before(
    card: str, groups: tuple[str, ...], ending: str, tmp_path: Path
) -> None:
    """After settings in pairs, of which each two mechanisms meet in a run, and after deaths."""
    before = [parse(on(guest, OF_BOTH)) for guest in ("left", "right")]
    died = ending != "end"
    # Paced slowly enough that a guest is hit before its trial has ended.
    traffic = {"rate": "1kpps", "count": 30_000 if died else 10}
    run = start(tmp_path, card, json.dumps(experiment(groups, traffic=traffic)), lease="20s")
    if died:
        await_words(run, "#1 measured")
        assert [] != differences(before[1], parse(on("right", OF_BOTH)))
    if ending == "controller":
        run.kill()
    elif died:
        on("right", DEEDS[ending][0])
    output, _ = run.communicate()
    code = DEEDS[ending][1] if died else 0
    assert run.returncode in (code, UNTRUSTED.get(code)), output
    await_all_as_before(before)
