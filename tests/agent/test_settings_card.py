"""The kinds that need a real card, against one that only exists in ethtool's words."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from golden import Golden
from hypothesis import example, given, settings
from hypothesis import strategies as st
from network_card import CardHost

from udpbench.agent.host.interrupts import affinity_files
from udpbench.agent.host.system import Done, Host
from udpbench.agent.settings import steering
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.handlers import KINDS
from udpbench.agent.settings.journal import Journal
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model.host import Change, Setting


@pytest.fixture
def card(tmp_path: Path) -> CardHost:
    """Return a host with a card of eight queues."""
    return CardHost(tmp_path)


def engine(card: CardHost, run: str = "run") -> Engine:
    """Return an engine of both scopes."""
    return Engine(card, Journal(card, run), ["namespace", "machine"])


def change(card: CardHost, kind: str, target: str, value: Any) -> tuple[Change, Engine]:
    """Apply one setting."""
    card_engine = engine(card)
    (applied,) = card_engine.apply([Setting(kind, target, value)])
    return applied, card_engine


@pytest.mark.parametrize(
    ("kind", "target", "value", "words", "undone"),
    [
        ("rings", "eth3", {"rx": 4096}, "-G rx 4096", "-G rx 256"),
        (
            "coalesce",
            "eth3",
            {"rx-usecs": 9, "tx-usecs": 7},
            "-C rx-usecs 9 tx-usecs 7",
            "-C rx-usecs 3 tx-usecs 3",
        ),
        ("pause", "eth3", {"rx": False}, "-A rx off", "-A rx on"),
        ("flow_hash", "eth3/udp4", "sdfn", "-N rx-flow-hash udp4 sdfn", "-N rx-flow-hash udp4 sd"),
        ("indirection", "eth3", "equal 2", "-X equal 2", "-X default"),
        ("indirection", "eth3", "weight 6 2", "-X weight 6 2", "-X default"),
        (
            "ntuple",
            "eth3/udp4/4321",
            2,
            "-N flow-type udp4 dst-port 4321 action 2",
            "-N delete 1023",
        ),
    ],
)
def test_a_card_is_asked_in_ethtools_words(
    card: CardHost, kind: str, target: str, value: Any, words: str, undone: str
) -> None:
    """Once for the change and once to undo it; afterwards the card is as it was."""
    before = card.state()
    _, engine = change(card, kind, target, value)
    assert ([words], False) == (card.requests, before == card.state())
    engine.restore()
    assert ([words, undone], before) == (card.requests, card.state())


@pytest.mark.parametrize(
    ("before", "value", "requests", "undone"),
    [
        (
            1,
            {"rx-usecs": 9, "adaptive-rx": 0},
            ["-C adaptive-rx off rx-usecs 9"],
            ["-C rx-usecs 3", "-C adaptive-rx on"],
        ),
        (
            0,
            {"adaptive-rx": 1, "rx-usecs": 9},
            ["-C rx-usecs 9", "-C adaptive-rx on"],
            ["-C adaptive-rx off rx-usecs 3"],
        ),
    ],
)
def test_times_are_set_while_nothing_adapts(
    card: CardHost, before: int, value: Any, requests: list[str], undone: list[str]
) -> None:
    """Intel's drivers refuse another time while it does, and together with the switch to it."""
    card.adaptive = before
    state = card.state()
    _, engine = change(card, "coalesce", "eth3", value)
    assert requests == card.requests
    engine.restore()
    assert (requests + undone, state) == (card.requests, card.state())


def test_a_value_that_the_driver_rounds_is_accepted_and_shown(card: CardHost) -> None:
    """Asked for 1001, got 1008; the same for a timer that counts in twos."""
    applied, engine = change(card, "rings", "eth3", {"rx": 1001})
    assert {"rx": 1008, "tx": 256} == applied.after
    engine.restore()
    applied, engine = change(card, "coalesce", "eth3", {"rx-usecs": 8})
    assert 9 == applied.after["rx-usecs"]
    engine.restore()
    assert ({"rx": 256, "tx": 256}, 3) == (card.rings, card.coalesce["rx-usecs"])


@pytest.mark.parametrize(
    ("kind", "target", "value"),
    [
        ("pause", "eth3", {"rx": 0}),
        ("coalesce", "eth3", {"rx-usecs": 5, "adaptive-rx": 1}),
        ("rings", "eth3", {"rx": 4096}),
        ("channels", "eth3", 4),
        ("flow_hash", "eth3/udp4", "sdfn"),
        ("indirection", "eth3", "equal 2"),
        ("ntuple", "eth3/udp4/4321", 2),
        ("feature", "eth3/rx-ntuple-filter", False),
    ],
)
def test_a_refused_value_has_an_alternative(
    card: CardHost, golden: Golden, kind: str, target: str, value: Any
) -> None:
    """The value in force, what cards accept, and how to go on; no Python."""
    card.refusing_changes = "netlink error: Invalid argument"
    before = card.state()
    with golden.raises(SettingRefused) as refused:
        change(card, kind, target, value)
    assert before == card.state()
    for sign in "{}['\"":
        assert sign not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "kind", "target", "value"),
    [
        ("-G", "rings", "eth3", {"rx": 4096}),
        ("-C", "coalesce", "eth3", {"rx-usecs": 60}),
        ("-N", "flow_hash", "eth3/udp4", "sdfn"),
        ("-N", "ntuple", "eth3/udp4/4321", 2),
        ("-A", "pause", "eth3", {"rx": 0}),
        ("-X", "indirection", "eth3", "equal 2"),
        ("-L", "channels", "eth3", 4),
    ],
)
def test_exit_status_0_is_not_believed(
    card: CardHost, option: str, kind: str, target: str, value: Any, golden: Golden
) -> None:
    """A driver that says nothing and changes nothing has refused."""
    card.silent.add(option)
    before = card.state()
    with golden.raises(SettingRefused):
        change(card, kind, target, value)
    assert before == card.state()


@pytest.mark.parametrize(
    ("option", "kind", "target", "value"),
    [
        ("-g", "rings", "eth3", {"rx": 1}),
        ("-c", "coalesce", "eth3", {"rx-usecs": 1}),
        ("-a", "pause", "eth3", {"rx": 0}),
        ("-n", "flow_hash", "eth3/udp4", "sd"),
        ("-x", "indirection", "eth3", "equal 2"),
        ("-n", "ntuple", "eth3/udp4/1", 1),
        ("-l", "channels", "eth3", 2),
    ],
)
def test_what_a_driver_does_not_support_is_reported_with_what_would_do(
    card: CardHost, option: str, kind: str, target: str, value: Any, golden: Golden
) -> None:
    """The kernel's text, and an alternative."""
    card.refusing.add(option)
    with golden.raises(SettingRefused):
        change(card, kind, target, value)
    assert [] == card.requests


@pytest.mark.parametrize(
    ("kind", "target", "value"),
    [
        ("rings", "eth3", {"rx-jumbo": 1}),
        ("flow_hash", "eth3/sctp4", "sd"),
        ("indirection", "eth3", "equal"),
        ("ntuple", "eth3/udp4", 1),
        ("ntuple", "eth3/udp4/80", 1),
        ("irq", "eth3/rx-9", [0]),
        ("irq", "eth3/tx-0", [0]),
        ("irqbalance", "other", False),
        ("governor", "cpu0", "performance"),
        ("turbo", "cpu0", True),
        ("cpu_latency", "cpu0", 0),
        ("rfs", "eth3/tx-0", 1),
        ("firewall", "ipv4/prerouting/accept/udp/1", True),
        ("firewall", "ipv4/input/accept/udp/1", True),
        ("channels", "eth3", {"rx": 2}),
        ("channels", "eth4", 2),
    ],
)
def test_what_is_no_setting_is_refused(
    card: CardHost, kind: str, target: str, value: Any, golden: Golden
) -> None:
    """A target or value that the device cannot have; the card is not asked for a change."""
    card.rules[7] = (80, 3)
    with golden.raises(SettingRefused):
        change(card, kind, target, value)
    assert [] == card.requests


def test_steering_is_not_switched_off_under_rules(card: CardHost, golden: Golden) -> None:
    """The card would forget them, and nothing tells afterwards what they were."""
    card.rules = {7: (80, 3), 9: (81, 2)}
    with golden.raises(SettingRefused):
        change(card, "feature", "eth3/rx-ntuple-filter", False)
    assert {7: (80, 3), 9: (81, 2)} == card.rules


@pytest.mark.parametrize("refusing", [set(), {"-n"}])
def test_steering_without_rules_is_switched_off_and_on(card: CardHost, refusing: set[str]) -> None:
    """Also where a driver lists no rules at all."""
    card.refusing = refusing
    applied, engine = change(card, "feature", "eth3/rx-ntuple-filter", False)
    assert (True, False) == (applied.before, applied.after)
    engine.restore()
    assert {"rx-ntuple-filter": True} == card.offloads


def test_steering_whose_rules_cannot_be_looked_at_stays(
    card: CardHost, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Switched on it is always."""

    def run(*command: str, stdin: str = "") -> Done:
        raise OSError(errno.ENOPKG, "ethtool is not installed")

    monkeypatch.setattr(card, "run", run)
    with golden.raises(SettingRefused):
        change(card, "feature", "eth3/rx-ntuple-filter", False)
    card.offloads["rx-ntuple-filter"] = False
    change(card, "feature", "eth3/rx-ntuple-filter", True)
    assert {"rx-ntuple-filter": True} == card.offloads


def test_a_table_that_could_not_be_put_back_is_left_alone(card: CardHost, golden: Golden) -> None:
    """Ethtool has no words for a table of somebody's own making."""
    card.table = [3, 1, 4, 1, 5, 1, 2, 6, 5, 3, 5, 0, 7, 1, 3, 2]
    with golden.raises(SettingRefused):
        change(card, "indirection", "eth3", "equal 2")
    assert [] == card.requests


def test_a_default_table_of_fewer_queues_is_put_back_on_more(card: CardHost) -> None:
    """What was the default with two rings needs other words once the card has eight."""
    of_two = {"rings": 2, "table": [0, 1] * 8}

    steering.Indirection().write(card, "eth3", of_two)

    assert (["-X equal 2"], of_two["table"]) == (card.requests, card.table)


def test_fewer_channels_take_the_table_and_the_cpus_of_queues_along(card: CardHost) -> None:
    """All of it comes back: what an administrator had set on queues that were gone, too."""
    card.table, card.configured = [0] * 12 + [7] * 4, True
    card.write_text("/sys/class/net/eth3/queues/rx-7/rps_cpus", "c")
    card.write_text("/sys/class/net/eth3/queues/tx-0/xps_cpus", "3")
    before = card.state()
    applied, engine = change(card, "channels", "eth3", 4)
    assert (8, 4) == (applied.before["combined"], applied.after["combined"])
    assert ["-X default", "-L combined 4"] == card.requests
    assert "3" == card.read_text("/sys/class/net/eth3/queues/tx-0/xps_cpus")
    assert not card.exists("/sys/class/net/eth3/queues/rx-7")
    engine.restore()
    assert before == card.state()


def cpus_of(card: CardHost, queue: int) -> str:
    """Return the CPUs of a queue's interrupt, whatever its number is."""
    return card.read_text(affinity_files(card, "eth3")[f"eth3-TxRx-{queue}"])


def test_channels_keep_the_cpus_of_interrupts_and_threads(card: CardHost) -> None:
    """A driver spreads them anew; those of queues that stay are kept, and all of them come back."""
    card.threaded = True
    for queue in range(8):
        card.write_text(f"/proc/irq/{40 + queue}/smp_affinity_list", str(queue))
        card.set_affinity(900 + queue, [queue, queue + 8])
        card.set_scheduling(900 + queue, os.SCHED_FIFO, 10 + queue, -5)
    before = card.state()
    _, engine = change(card, "channels", "eth3", 4)
    assert (["0", "1", "2", "3"], 50) == (
        [cpus_of(card, queue) for queue in range(4)],
        card.first_irq,
    )
    assert {900: [0, 8], 901: [1, 9], 902: [2, 10], 903: [3, 11]} == card.threads
    assert [(os.SCHED_FIFO, 10 + queue, -5) for queue in range(4)] == [*card.policies.values()]
    engine.restore()
    assert before == card.state()


def test_a_policy_that_could_not_be_put_back_is_left_alone(card: CardHost, golden: Golden) -> None:
    """sched_setscheduler(2) knows no runtime and period of SCHED_DEADLINE."""
    card.threaded = True
    card.set_scheduling(903, 6, 0, 0)
    with golden.raises(SettingRefused):
        change(card, "channels", "eth3", 4)
    assert [] == card.requests


@pytest.mark.parametrize("threaded", ["0", "1"])
def test_threads_that_are_not_known_are_not_lost(
    card: CardHost, monkeypatch: pytest.MonkeyPatch, threaded: str
) -> None:
    """Before Linux 6.8 a namesake elsewhere hides them; without threads there are none to lose."""

    def queue_napis(_interface: str, _way: str = "rx") -> dict[int, Any]:
        raise OSError(errno.ENOTUNIQ, "2 NAPI threads are named after eth3")

    monkeypatch.setattr(card, "queue_napis", queue_napis)
    card.path("/sys/class/net/eth3/threaded").write_text(threaded)
    if threaded == "0":
        change(card, "rings", "eth3", {"rx": 512})
    else:
        with pytest.raises(SettingRefused, match=r"after eth3; .*; write 0 to /sys/class/net/eth3"):
            change(card, "rings", "eth3", {"rx": 512})
    assert {"0": 512, "1": 256}[threaded] == card.rings["rx"]


def test_channels_of_an_earlier_versions_journal_are_put_back(card: CardHost) -> None:
    """It has the CPUs of threads among them."""
    before = KINDS["channels"].read(card, "eth3")
    assert KINDS["channels"].same({**before, "napi_cpus": [[0]]}, before)


def test_more_channels_leave_what_is_new_as_it_is(card: CardHost) -> None:
    """Nobody has chosen CPUs for it."""
    card.run("ethtool", "-L", "eth3", "combined", "4")
    card.threaded = True
    card.write_text("/proc/irq/51/smp_affinity_list", "1")
    card.set_affinity(901, [1])
    before = card.state()
    _, engine = change(card, "channels", "eth3", 8)
    assert ("1", "0,1,2,3,4,5,6,7") == (cpus_of(card, 1), cpus_of(card, 4))
    assert [[1], list(range(8))] == [card.affinity(pid) for pid in (901, 904)]
    engine.restore()
    assert before == card.state()


def test_interrupts_that_somebody_moves_meanwhile_are_no_matter(card: CardHost) -> None:
    """Irqbalance does it all the time; they go back all the same."""
    card.write_text("/proc/irq/41/smp_affinity_list", "1")
    before = card.state()
    _, engine = change(card, "channels", "eth3", 4)
    card.write_text("/proc/irq/51/smp_affinity_list", "6")
    assert () == engine.altered()
    engine.restore()
    assert before == card.state()


def test_interrupts_that_the_kernel_manages_stay_with_it(card: CardHost) -> None:
    """It takes no CPUs for them; nothing is left to do about that, now or later."""
    card.write_text("/proc/irq/41/smp_affinity_list", "1")
    card.managed = {f"/proc/irq/{number}/smp_affinity_list" for number in (41, 51)}
    _, engine = change(card, "channels", "eth3", 4)
    assert "0,1,2,3,4,5,6,7" == cpus_of(card, 1)
    engine.restore()
    assert (8, "0,1,2,3,4,5,6,7") == (card.combined, cpus_of(card, 1))
    assert () == engine._journal.pending


def test_interrupts_that_were_not_put_back_are_reported(card: CardHost, golden: Golden) -> None:
    """The channels are, so it is no longer what was in force: force goes on from there."""
    card.write_text("/proc/irq/41/smp_affinity_list", "1")
    _, engine = change(card, "channels", "eth3", 4)
    card.failing = {3: False}
    with golden.raises(RestoreError):
        engine.restore()
    with golden.raises(RestoreError):
        engine.restore()
    engine.restore(force=True)
    assert "1" == cpus_of(card, 1)


def test_an_interrupt_that_goes_while_it_is_looked_at_is_no_matter(card: CardHost) -> None:
    """Its file may be gone before its name."""
    card.path("/proc/irq/47/smp_affinity_list").unlink()
    _, engine = change(card, "channels", "eth3", 4)
    engine.restore()
    assert "0,1,2,3,4,5,6,7" == cpus_of(card, 7)


def test_an_interrupt_follows_its_queue(card: CardHost) -> None:
    """The queue is named; its interrupt's number is looked up."""
    applied, engine = change(card, "irq", "eth3/rx-2", [3])
    assert ("3", [0, 1, 2, 3, 4, 5, 6, 7], [3]) == (
        card.read_text("/proc/irq/42/smp_affinity_list"),
        applied.before,
        applied.after,
    )
    engine.restore()
    assert "0,1,2,3,4,5,6,7" == card.read_text("/proc/irq/42/smp_affinity_list")


def test_the_clock_of_the_cpus_is_put_back_policy_by_policy(card: CardHost) -> None:
    """They need not agree before."""
    policies = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"
    card.write_text(policies.format(1), "ondemand")
    applied, engine = change(card, "governor", "cpus", "performance")
    assert {"policy0": "powersave", "policy1": "ondemand"} == applied.before
    assert {"policy0": "performance", "policy1": "performance"} == applied.after
    engine.restore()
    assert ["powersave", "ondemand"] == [card.read_text(policies.format(k)) for k in (0, 1)]


def test_the_energy_preference_that_goes_with_a_governor_comes_back(
    card: CardHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver sets it to performance together with the governor, and does not set it back."""
    policy = "/sys/devices/system/cpu/cpufreq/policy0"
    preference = f"{policy}/energy_performance_preference"
    card.path(preference).write_text("balance_power")
    plain = card.write_text

    def write_text(path: str, text: str) -> None:
        plain(path, text)
        if (path, text) == (f"{policy}/scaling_governor", "performance"):
            plain(preference, "performance")

    monkeypatch.setattr(card, "write_text", write_text)
    applied, engine = change(card, "governor", "cpus", "performance")
    assert ("balance_power", "performance") == tuple(
        value["policy0/energy_performance_preference"] for value in (applied.before, applied.after)
    )
    engine.restore()
    assert ["powersave", "balance_power"] == [
        card.read_text(path) for path in (f"{policy}/scaling_governor", preference)
    ]


@pytest.mark.parametrize(
    ("governor", "file"),
    [
        ("userspace", "policy1/scaling_setspeed"),
        ("ondemand", "policy1/ondemand/up_threshold"),
        ("conservative", "conservative/up_threshold"),
    ],
)
def test_the_tunables_of_a_governor_come_back(
    card: CardHost, monkeypatch: pytest.MonkeyPatch, governor: str, file: str
) -> None:
    """The kernel drops them with the governor, and has its own values when that comes back."""
    folder = "/sys/devices/system/cpu/cpufreq"
    choice, tunable = f"{folder}/policy1/scaling_governor", card.path(f"{folder}/{file}")
    card.write_text(choice, governor)
    tunable.parent.mkdir(exist_ok=True)
    tunable.write_text("77")
    plain = card.write_text

    def write_text(path: str, text: str) -> None:
        plain(path, text)
        if path == choice and text == governor:
            tunable.parent.mkdir(exist_ok=True)
            tunable.write_text("95")
        elif path == choice:
            tunable.unlink()
            if tunable.parent.name == governor:
                tunable.parent.rmdir()

    monkeypatch.setattr(card, "write_text", write_text)
    _, engine = change(card, "governor", "cpus", "performance")
    engine.restore()
    assert "77" == tunable.read_text()


@pytest.mark.parametrize(
    ("there", "file", "on", "off"),
    [
        ("intel_pstate/no_turbo", "intel_pstate/no_turbo", "0", "1"),
        ("cpufreq/boost", "cpufreq/boost", "1", "0"),
    ],
)
def test_turbo_has_two_switches(card: CardHost, there: str, file: str, on: str, off: str) -> None:
    """Intel's own means the opposite."""
    folder = card.root / "sys/devices/system/cpu"
    (folder / "intel_pstate/no_turbo").unlink()
    (folder / there).write_text(on)
    applied, engine = change(card, "turbo", "cpus", False)
    assert (True, False, off) == (applied.before, applied.after, (folder / file).read_text())
    engine.restore()
    assert on == (folder / file).read_text()


@pytest.mark.parametrize(("kind", "value"), [("governor", "performance"), ("turbo", False)])
def test_a_machine_without_the_switch_says_so(
    tmp_path: Path, kind: str, value: Any, golden: Golden
) -> None:
    """A virtual machine has none."""
    bare = CardHost(tmp_path)
    (tmp_path / "sys/devices/system/cpu/intel_pstate/no_turbo").unlink()
    for path in (tmp_path / "sys/devices/system/cpu/cpufreq").glob("policy*/*"):
        path.unlink()
        path.parent.rmdir()
    with golden.raises(SettingRefused):
        change(bare, kind, "cpus", value)


POOL = st.sampled_from(
    [
        Setting("rings", "eth3", {"rx": 4096}),
        Setting("rings", "eth3", {"tx": 1001, "rx": 100}),
        Setting("coalesce", "eth3", {"rx-usecs": 8}),
        Setting("coalesce", "eth3", {"adaptive-rx": 1}),
        Setting("coalesce", "eth3", {"adaptive-rx": 0, "rx-usecs": 20}),
        Setting("pause", "eth3", {"rx": 0, "tx": 0}),
        Setting("flow_hash", "eth3/udp4", "sdfn"),
        Setting("indirection", "eth3", "equal 2"),
        Setting("indirection", "eth3", "weight 1 2 1"),
        Setting("ntuple", "eth3/udp4/4321", 1),
        Setting("ntuple", "eth3/udp4/4322", 0),
        Setting("feature", "eth3/rx-ntuple-filter", False),
        Setting("channels", "eth3", 2),
        Setting("channels", "eth3", {"combined": 5}),
        Setting("irq", "eth3/rx-1", [1]),
        Setting("rps", "eth3/rx-1", [0]),
        Setting("rps", "eth3/rx-7", [0]),
        Setting("rfs", "eth3/rx-0", 4096),
        Setting("xps", "eth3/tx-4", [2]),
        Setting("governor", "cpus", "performance", "machine"),
        Setting("turbo", "cpus", False, "machine"),
        Setting("mtu", "eth3", 1600),
        Setting("txqueuelen", "eth3", 77),
        Setting("up", "eth3", True),
        Setting("up", "eth3", False),
        Setting("qdisc", "eth3", {"pfifo": {"limit_packets": 9}}),
        Setting("qdisc", "eth3", {"bfifo": {"limit_bytes": 9000}}),
    ]
)


@settings(max_examples=200)
@example(
    rounds=[[Setting("qdisc", "eth3", {"pfifo": {"limit_packets": 9}})], []],
    failing={6: False},  # taking it down again, once the kernel has built its qdiscs
    killed=False,
    adaptive=0,
    link="down",
)
@given(
    st.lists(st.lists(POOL, max_size=7), max_size=3),
    st.dictionaries(st.integers(1, 25), st.booleans(), max_size=3),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from(["up", "down", "never up"]),
)
def test_the_card_is_always_restored(
    rounds: list[list[Setting]], failing: dict[int, bool], killed: bool, adaptive: int, link: str
) -> None:
    """Whatever is applied in whatever order, and whatever fails under way, nothing stays."""
    with TemporaryDirectory() as folder:
        card = CardHost(Path(folder))
        card.table, card.configured = [0] * 4 + [1] * 4 + [2] * 4 + [7] * 4, True
        card.write_text("/sys/class/net/eth3/queues/rx-6/rps_cpus", "f0")
        card.rules[7] = (80, 3)
        card.adaptive = adaptive
        for queue in (1, 6):
            card.write_text(f"/proc/irq/{40 + queue}/smp_affinity_list", "3")
            card.set_affinity(900 + queue, [3])
            card.set_scheduling(900 + queue, os.SCHED_RR, 7, 0)
        card.threaded = True
        card.up = link == "up"
        if link == "never up":
            card.root_qdisc, card.leaves = None, []
        before = card.state()
        journal = Journal(card, "run")
        engine = Engine(card, journal, ["namespace", "machine"])
        card.failing = dict(failing)
        for requested in rounds:
            try:
                engine.apply(requested)
            except (SettingRefused, RestoreError):
                continue
        card.failing = {}
        if killed and journal.pending:
            journal.close()
            engine = Engine(card, Journal.open(card, journal.path), ())
        # What failed half way while it was put back is not as it was left: hence force.
        engine.restore(force=True)
        assert before == {
            name: value for name, value in card.state().items() if "udpbench" not in name
        }


@pytest.mark.parametrize(
    ("there", "flaps"),
    [((), True), (("queues",), False), (("queues", "device"), True), (("lower_eth3",), True)],
)
def test_a_feature_of_a_veth_takes_no_link_down(
    tmp_path: Path, there: tuple[str, ...], flaps: bool
) -> None:
    """A card may, or what a card is below; and so may what cannot be read."""
    for name in there:
        (tmp_path / "sys/class/net/eth0" / name).mkdir(parents=True)
    assert flaps is KINDS["feature"].may_flap(Host(tmp_path), "eth0")
