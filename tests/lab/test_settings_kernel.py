"""Every kind of setting against a real kernel, in namespaces that the tests make and lose."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from settings_fixture import DEADLINE_S, Inside, Refused, link, setting, wire

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]


@pytest.fixture
def sender() -> Iterator[Inside]:
    """Yield a namespace for the other end of the pair."""
    inside = Inside()
    yield inside
    inside.close()


@pytest.fixture
def receiver() -> Iterator[Inside]:
    """Yield a namespace with nothing but its lo."""
    inside = Inside()
    yield inside
    inside.close()


@pytest.fixture
def wired(sender: Inside, receiver: Inside) -> Inside:
    """Return a namespace with a veth pair from before, which stands for a network card."""
    wire(sender, receiver)
    return receiver


FIRST_RULE = ("firewall", "ipv4/input/accept/udp/4321")
RULE_OF_IPV6 = ("firewall", "ipv6/output/drop/udp/4321")
EVERY_KIND = (
    setting("mtu", "receive0", 9000),
    setting("channels", "receive0", 2),
    setting("txqueuelen", "receive0", 500),
    setting("feature", "receive0/rx-gro", True),
    setting("feature", "receive0/tx-udp-segmentation", False),
    setting("up", "receive0", True),
    setting("device", "receive0/threaded", 1),
    setting("device", "receive0/napi_defer_hard_irqs", 2),
    setting("device", "receive0/gro_flush_timeout", 200_000),
    setting("napi_cpus", "receive0", [[0], [0]]),
    setting("rps", "receive0/rx-0", [0]),
    setting("rfs", "receive0/rx-0", 4096),
    setting("xps", "receive0/tx-1", [0]),
    setting("address", "receive0/192.168.254.1/24", True),
    setting("address", "receive0/192.168.254.2/24", True),
    setting("address", "receive0/fd00:0:0:0::1/64", True),
    setting("route", "receive0/10.77.0.0/16", "192.168.254.30"),
    setting("route", "receive0/10.78.0.0/16", "link"),
    setting("route", "receive0/fd77::/64", "fd00::30"),
    setting(*FIRST_RULE, True),
    setting("firewall", "ipv4/prerouting/notrack/udp/4321", True),
    setting(*RULE_OF_IPV6, True),
    setting("neighbour", "receive0/192.168.254.30", "02:00:00:00:00:0A"),
    setting("neighbour", "receive0/fd00::30", "02:00:00:00:00:0b"),
    setting(
        "qdisc",
        "receive0",
        {"tbf": {"rate_bps": 10**9, "burst_bytes": 65_530, "limit_bytes": 2**20}},
    ),
    setting("sysctl", "net.ipv4.conf.receive0.rp_filter", 2),
    setting("sysctl", "net.ipv4.ip_local_port_range", "20000 30000"),
)


def test_every_kind_is_applied_and_the_visible_state_restored(wired: Inside) -> None:
    """Each value reads back as asked; afterwards nothing that can be seen differs."""
    before = wired.call("visible")
    changes = wired.apply(*EVERY_KIND)
    changed = [change["before"] != change["after"] for change in changes]
    assert [True] * len(EVERY_KIND) == changed
    during = wired.call("visible")
    assert set() == {name for name in before if before[name] == during[name]}
    undone = wired.call("restore")
    targets = [(kind["kind"], kind["target"]) for kind in reversed(EVERY_KIND)]
    restored = [(item["setting"]["kind"], item["setting"]["target"]) for item in undone]
    # The first rule of each family made its tables, which go after it.
    assert ("firewall_tables", "ipv6") == restored.pop(targets.index(RULE_OF_IPV6) + 1)
    assert ("firewall_tables", "ipv4") == restored.pop(targets.index(FIRST_RULE) + 1)
    assert targets == restored
    after = wired.call("visible")
    # The threads are gone with the interface's NAPI, as before it.
    assert before == after


def test_a_lab_pair_comes_and_goes(sender: Inside, receiver: Inside) -> None:
    """The pair is made across two namespaces, and taken away with all that was on it."""
    states = [sender.call("visible"), receiver.call("visible")]
    pair = link(sender.pid)
    changes = receiver.apply(
        pair,
        setting("feature", "receive0/rx-gro", True),
        setting("up", "receive0", True),
        *(setting("address", f"receive0/192.168.254.{k}/24", True) for k in range(1, 21)),
        setting("neighbour", "receive0/192.168.254.30", "02:00:00:00:00:02"),
    )
    visible_value = {key: value for key, value in pair["value"].items() if key != "peer_pid"}
    assert [None, visible_value] == [changes[0]["before"], changes[0]["after"]]
    assert "send0" in sender.call("visible")["links"]
    # The same pair is asked for again: nothing is done, although its peer_pid cannot be read back.
    assert changes == receiver.apply(*(change["setting"] for change in changes))
    receiver.call("restore")
    assert states == [sender.call("visible"), receiver.call("visible")]


def test_a_pair_whose_other_namespace_ended_counts_as_restored(
    sender: Inside, receiver: Inside
) -> None:
    """The veth goes with its peer; restoring what was on it is a success."""
    receiver.apply(link(sender.pid), setting("mtu", "receive0", 9000))
    sender.apply(setting("up", "send0", True))
    receiver.shell("ip link del receive0")
    undone = receiver.call("restore")
    assert ["mtu", "link"] == [change["setting"]["kind"] for change in undone]
    assert [None, None] == [change["after"] for change in undone]


LINK = "ip -d link show receive0"


@pytest.fixture(scope="module")
def refusing() -> Iterator[Inside]:
    """Yield one namespace for all refusals, in which nothing has changed at the end."""
    sender, receiver = Inside(), Inside()
    wire(sender, receiver)
    before = receiver.call("visible")
    yield receiver
    after = receiver.call("visible")
    receiver.close()
    sender.close()
    assert before == after


@pytest.mark.parametrize(
    ("requested", "parts"),
    [
        (
            setting("mtu", "receive0", 70_000),
            ["asked for 70000", "mtu greater than device maximum"],
        ),
        (setting("mtu", "receive0", -(2**40)), ["mtu receive0: asked for -1099511627776"]),
        (setting("mtu", "absent0", 1500), ["No such device"]),
        (setting("feature", "receive0/rx-lro", True), ["not supported", "[fixed]"]),
        (setting("feature", "receive0/no-such", True), ["receive0 has no feature no-such"]),
        (setting("feature", "absent0/rx-gro", True), ["No such device"]),
        (setting("xps", "receive0/tx-9", [0]), ["No such file or directory", "more queues"]),
        (setting("qdisc", "receive0", {"fq": {}}), ["fq is not one of tbf, pfifo"]),
        (
            setting(
                "qdisc",
                "receive0",
                {"tbf": {"rate_bps": 10**12, "burst_bytes": 1, "limit_bytes": 1}},
            ),
            ["1000000000000 bps is above 34359738360 bps"],
        ),
        (setting("device", "receive0/threaded", 1), ["not supported", "set rx-gro on"]),
        (setting("napi_cpus", "receive0", [[0]]), ["receive0 has no NAPI threads", "threaded"]),
        (setting("address", "receive0/300.0.0.1/24", True), ["300.0.0.1/24"]),
        (setting("neighbour", "receive0/10.0.0.1", "nonsense"), ["neighbour receive0/10.0.0.1"]),
        (setting("link", "receive0", {"peer": "send9"}), ["the value lacks"]),
        (
            setting("sysctl", "net.core.no_such", 1),
            ["No such file", "this kernel has no such parameter"],
        ),
    ],
    ids=lambda value: f"{value['kind']} {value['value']}" if isinstance(value, dict) else "",
)
def test_what_the_kernel_refuses_is_reported_and_undone(
    refusing: Inside, requested: dict[str, Any], parts: list[str]
) -> None:
    """A refusal names the setting and the kernel's reason; what came before it is undone."""
    before = refusing.shell(LINK)
    with pytest.raises(Refused) as refused:
        refusing.apply(setting("txqueuelen", "receive0", 77), requested)
    assert "SettingRefused" == refused.value.kind
    assert [] == [part for part in parts if part not in str(refused.value)]
    assert before == refusing.shell(LINK)


def test_more_lists_than_napi_threads_are_refused(wired: Inside) -> None:
    """A veth of four queues has four threads."""
    with pytest.raises(Refused, match="5 lists of CPUs for 4 NAPI threads"):
        wired.apply(
            setting("feature", "receive0/rx-gro", True),
            setting("up", "receive0", True),
            setting("device", "receive0/threaded", 1),
            setting("napi_cpus", "receive0", [[0], [0], [0], [0], [0]]),
        )


def test_threads_are_put_back_on_a_link_that_was_cut(wired: Inside) -> None:
    """A veth that is down has no NAPI whose threads could be cleared; it is down again at the end."""
    wired.shell("ip link set receive0 up && ip link set receive0 down")
    before = wired.call("visible")
    wired.apply(
        setting("feature", "receive0/rx-gro", True),
        setting("up", "receive0", True),
        setting("device", "receive0/threaded", 1),
    )
    wired.shell("ip link set receive0 down")
    wired.call("restore")
    assert before == wired.call("visible")


def of_napi(inside: Inside) -> dict[str, str]:
    """Return the parts of the state that do not change with the carrier, which may be late."""
    parts = ("threads", "queues", "devices", "features", "channels")
    return {name: text for name, text in inside.call("visible").items() if name in parts}


@pytest.mark.parametrize(
    "changed",
    [
        setting("device", "receive0/threaded", 0),
        setting("device", "receive0/napi_defer_hard_irqs", 2),
        setting("device", "receive0/gro_flush_timeout", 20_000),
        setting("feature", "receive0/rx-gro", False),
        setting("channels", "receive0", 2),
    ],
    ids=lambda value: f"{value['target']} {value['value']}",
)
def test_new_napi_threads_get_what_the_old_ones_had(wired: Inside, changed: dict[str, Any]) -> None:
    """CPUs, policy, priority and nice value; and each instance its own timeouts."""
    wired.shell("ethtool -K receive0 gro on && ip link set receive0 up")
    wired.shell("echo 1 > /sys/class/net/receive0/threaded")
    wired.call("set_napis", interface="receive0")
    wired.shell("echo 4 > /sys/class/net/receive0/queues/tx-3/xps_rxqs")
    before = of_napi(wired)
    wired.apply(changed)
    assert before["threads"] != of_napi(wired)["threads"]
    wired.call("restore")
    assert before == of_napi(wired)


def test_what_was_set_on_an_interface_that_was_moved_is_not_restored(
    sender: Inside, wired: Inside
) -> None:
    """It is in force in the other namespace, until somebody restores it there and says so."""
    wired.apply(setting("mtu", "receive0", 9000))
    wired.shell(f"ip link set receive0 netns {sender.pid}")
    for _ in range(2):
        with pytest.raises(Refused, match=r"mtu receive0: the interface was moved .* mtu 1500"):
            wired.call("restore")
    assert "mtu 9000" in sender.shell(LINK)
    assert [None] == [change["after"] for change in wired.call("restore", force=True)]


def test_a_foreign_qdisc_is_neither_replaced_nor_removed(wired: Inside) -> None:
    """What could not be put back as it was is left alone."""
    wired.shell("ip link set receive0 up && tc qdisc add dev receive0 root htb")
    wired.call("settled", interface="receive0")
    before = wired.call("visible")
    with pytest.raises(Refused, match="receive0 already has a htb; remove"):
        wired.apply(setting("qdisc", "receive0", {"pfifo": {"limit_packets": 5}}))
    with pytest.raises(Refused, match="receive0 has a htb not set by udpbench"):
        wired.apply(setting("qdisc", "receive0", None))
    assert before == wired.call("visible")


def test_a_foreign_link_is_left_alone(sender: Inside, wired: Inside) -> None:
    """A pair of the same name but other addresses is not taken over."""
    before = wired.call("visible")
    other = link(sender.pid)
    other["value"]["mac"] = "02:00:00:00:00:99"
    with pytest.raises(Refused, match="File exists; remove that interface"):
        wired.apply(other)
    assert before == wired.call("visible")


@pytest.mark.parametrize(
    "value", [{"pfifo": {"limit_packets": 20}}, {"bfifo": {"limit_bytes": 70000}}]
)
def test_a_fifo_takes_the_place_of_a_tbf(wired: Inside, value: dict[str, Any]) -> None:
    """One declared value follows another by way of the original state."""
    fifo = setting("qdisc", "receive0", value)
    wired.apply(setting("up", "receive0", True), EVERY_KIND[-3])
    (_, change) = wired.apply(setting("up", "receive0", True), fifo)
    assert [None, value] == [change["before"], change["after"]]


@pytest.mark.parametrize(
    "entry", ["noarp", "permanent proto 9", "permanent router", "permanent extern_learn"]
)
def test_a_neighbour_that_could_not_return_whole_is_not_replaced(wired: Inside, entry: str) -> None:
    """Somebody set it for a reason; one that is permanent alone is replaced and put back."""
    words = "ip neighbour replace 192.168.254.30 dev receive0 lladdr 02:00:00:00:00:07 nud "
    wired.shell(words + entry)
    before = wired.shell("ip -d neighbour show dev receive0")
    requested = setting("neighbour", "receive0/192.168.254.30", "02:00:00:00:00:02")
    with pytest.raises(Refused, match="more than permanent; remove it first"):
        wired.apply(requested)
    assert before == wired.shell("ip -d neighbour show dev receive0")
    wired.shell("ip neighbour del 192.168.254.30 dev receive0; " + words + "permanent")
    wired.apply(requested)


def test_a_learnt_neighbour_counts_as_not_there(wired: Inside) -> None:
    """An entry that is not permanent reads as none and is replaced."""
    wired.shell("ip link set receive0 up")
    wired.shell("ip neighbour add 192.168.254.30 dev receive0 lladdr 02:00:00:00:00:07 nud stale")
    (change,) = wired.apply(setting("neighbour", "receive0/192.168.254.30", "02:00:00:00:00:02"))
    assert [None, "02:00:00:00:00:02"] == [change["before"], change["after"]]


def test_the_commands_by_hand_do_what_restoring_does(wired: Inside) -> None:
    """For every kind the printed command really puts the value back."""
    # With chains from before: none of the commands deletes a chain.
    wired.shell("iptables -t raw -I PREROUTING 1 -p icmp -j ACCEPT")
    wired.shell("iptables -I INPUT 1 -p icmp -j ACCEPT")
    wired.shell("ip6tables -I OUTPUT 1 -p icmp -j ACCEPT")
    before = wired.call("visible")
    wired.shell("command -v ethtool taskset tc ip")
    changes = list(reversed(wired.apply(*EVERY_KIND)))
    commands = wired.call(
        "by_hand",
        settings=[change["setting"] for change in changes],
        values=[change["before"] for change in changes],
    )
    for command in commands:
        wired.shell(command)
    assert before == wired.call("visible")


def test_the_guardian_restores_when_its_agent_is_killed(wired: Inside) -> None:
    """After SIGKILL the values are back, the journal is gone, and so is the guardian."""
    before = wired.call("visible")
    enter = ["nsenter", f"--target={wired.pid}", "--net", "--mount"]
    agent = Inside(enter)
    opened = agent.call("open", run="killed", guarded=True)
    guardian = os.pidfd_open(opened["guardian"])
    try:
        agent.apply(*EVERY_KIND)
        assert opened["journal"] in wired.shell("ls /run/udpbench/*")
        os.kill(agent.process.pid, signal.SIGKILL)
        ended, _, _ = select.select([guardian], [], [], DEADLINE_S)
        assert ended, f"the guardian did not end within {DEADLINE_S:g} s"
    finally:
        os.close(guardian)
        agent.close()
    assert before == wired.call("visible")
    assert "" == wired.shell("ls /run/udpbench")
