"""What a run would change: found out in namespaces that are thrown away, read elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from control.fake import FakeAgent, World, experiment, lab
from udpbench.control.agents import Reach
from udpbench.control.plan import _is_same, _Wanted, rehearse
from udpbench.definition.load import load_lab
from udpbench.errors import ConnectError, InputError
from udpbench.model.host import Facts, Setting
from udpbench.model.lab import Connect

SYSCTL = "net.core.rmem_max"
FAR = """\
sender:
  - {name: sender, connect: {ssh: left}, interface: eth3, addresses: [10.0.0.30/24]}
receiver:
  - {name: receiver, connect: {ssh: right}, interface: eth2, addresses: existing}
"""


def test_points_with_the_same_settings_are_rehearsed_once() -> None:
    """A sweep of what is sent has one set of settings, with every point's name."""
    world = World()
    swept = experiment(sweep={"send.batch": [1, 2]})
    (only,) = rehearse([swept], lab(), world.surroundings().reach)
    assert ("one::batch=1", "one::batch=2") == only.trials
    assert ["machine", "receiver", "sender"] == sorted(only.hosts)


def test_facts_are_asked_once_however_many_points_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is set, and of each set of settings: a sweep of thousands is planned soon."""
    asked, answer = [], FakeAgent._facts

    def count(own: FakeAgent, interface: str) -> Facts:
        asked.append(own.host)
        return answer(own, interface)

    monkeypatch.setattr(FakeAgent, "_facts", count)
    swept = experiment(sweep={"send.batch": [*range(1, 33)]})
    (only,) = rehearse([swept], lab(), World().surroundings().reach)
    assert (32, 2) == (len(only.trials), asked.count("receiver"))


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("sysctl.net.core.rmem_max", 2),
        ("sysctl.net/ipv4/udp_rmem_min", 2),
        ("txqueuelen", 2),
        ("sysctl.net.ipv4.ip_forward", 33),
        ("mtu", 33),
    ],
)
def test_facts_are_asked_again_only_where_a_setting_may_alter_them(
    key: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is set, and where what binding reads may have changed."""
    hosts, answer = [], FakeAgent._facts

    def count(own: FakeAgent, interface: str) -> Facts:
        hosts.append(own.host)
        return answer(own, interface)

    monkeypatch.setattr(FakeAgent, "_facts", count)
    swept = experiment(sweep={f"settings.receiver.{key}": [*range(1000, 1032)]})
    assert 32 == len(rehearse([swept], lab(), World().surroundings().reach))
    assert asked == hosts.count("receiver")


def test_drop_reasons_are_tried_once_for_all_ports() -> None:
    """Points that differ in their ports alone are not applied again, and each shows its own."""
    world = World()
    ports = [f"receiver.addresses[1]:{port}" for port in (4321, 4322, 4323)]
    swept = experiment(explain=True, sweep={"traffic.flows.to": ports})
    sets = rehearse([swept], lab(), world.surroundings().reach)
    assert [[4321], [4322], [4323]] == [
        planned.setting.value
        for each in sets
        for planned in each.hosts["receiver"]
        if planned.setting.kind == "explain"
    ]
    assert 1 == sum(word.startswith("apply receiver") for word in world.words)


def test_sets_of_settings_share_what_is_equal() -> None:
    """In thousands of sets only what differs takes memory."""
    swept = experiment(sweep={f"settings.receiver.sysctl.{SYSCTL}": [1000, 1001, 1002]})
    sets = rehearse([swept], lab(), World().surroundings().reach)
    receivers = [each.hosts["receiver"] for each in sets]
    different = {id(planned) for own in receivers for planned in own}
    assert len(receivers[0]) + 2 >= len(different)


def test_a_setting_is_made_ready_once_for_all_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand sets that differ in one setting took as long as the first."""
    ready: list[str] = []

    def wanted(setting: Setting) -> _Wanted:
        ready.append(setting.target)
        return _Wanted(setting)

    monkeypatch.setattr("udpbench.control.plan._Wanted", wanted)
    swept = experiment(sweep={f"settings.receiver.sysctl.{SYSCTL}": [*range(4096, 4160)]})
    sets = rehearse([swept], lab(), World().surroundings().reach)
    assert 64 == len(sets) == ready.count(SYSCTL)
    assert [SYSCTL] * 63 == ready[-63:]


def test_the_next_set_is_asked_for_before_an_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent looks while the next set is laid out; no two agents do at the same time."""
    words: list[str] = []
    begin = FakeAgent.begin

    def noted(own: FakeAgent, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:
        finish = begin(own, verb, deadline_ns, **args)
        if verb != "apply" or not args["settings"]:
            return finish
        words.append(f"ask {own.host}")

        def waited() -> Any:
            words.append(f"wait {own.host}")
            return finish()

        return waited

    monkeypatch.setattr(FakeAgent, "begin", noted)
    key = "settings.receiver.sysctl.net.ipv4.udp_rmem_min"
    swept = experiment(sweep={key: [4096, 4097, 4098]})
    assert 3 == len(rehearse([swept], lab(), World().surroundings().reach))
    first = ["ask receiver", "wait receiver", "ask sender", "wait sender"]
    rest = ["ask receiver", "ask receiver", "wait receiver", "wait receiver"]
    assert [*first, *rest] == words


def test_hosts_that_disagree_are_refused_with_their_values(golden: Golden) -> None:
    """A machine has one value of a parameter; the outline has blanks for both."""
    settings = {
        part: {"sysctl": {SYSCTL: value}} for part, value in (("sender", 1), ("receiver", 2))
    }
    with golden.raises(InputError):
        rehearse([experiment(settings=settings)], lab(), World().surroundings().reach)
    settings["sender"] = settings["receiver"]
    (only,) = rehearse([experiment(settings=settings)], lab(), World().surroundings().reach)
    assert [2] == [planned.setting.value for planned in only.hosts["machine"]]


def test_values_that_python_calls_equal_are_rehearsed_apart() -> None:
    """A parameter is 1, or true, as it was written."""
    for values in ((1, True), ([1], [True])):
        both = [Setting("sysctl", SYSCTL, value) for value in values]
        assert [True, False] == [_is_same(both[0], each) for each in both]


def test_points_with_other_settings_are_rehearsed_apart() -> None:
    """A sweep of a setting has a set for each value, and each shows its own."""
    world = World()
    swept = experiment(sweep={"settings.receiver.mtu": [1400, 9000]})
    first, second = rehearse([swept], lab(), world.surroundings().reach)
    mtus = [
        [
            planned.setting.value
            for planned in each.hosts["receiver"]
            if planned.setting.kind == "mtu"
        ]
        for each in (first, second)
    ]
    assert [[1400], [9000]] == mtus


def test_each_skip_is_predicted_with_its_reason() -> None:
    """What a kernel lacks, a need, and what the hosts have not once settings are in force."""
    world = World(capabilities={"udp_zerocopy": False})
    definition = experiment(
        variants={
            "plain": {},
            "other-kernel": {"send.zerocopy": True},
            "other-lab": {"needs.lab": False, "send.zerocopy": True},
            "other-cpus": {"receive.cpus": "77"},
            "more-cpus": {"needs": {"receiver": {"cpus": 64}}},
        }
    )
    tried, untried = rehearse([definition], lab(), world.surroundings().reach)
    assert ("one::plain", "one::other-cpus") == tried.trials
    assert ["one::other-cpus"] == list(tried.skipped)
    assert tried.skipped["one::other-cpus"].startswith("receiver has no CPU 77; its agent may use")
    assert "needs 64 CPUs and has" in untried.skipped["one::more-cpus"]
    assert ((), {}) == (untried.trials, untried.hosts)
    assert untried.skipped["one::other-kernel"].startswith("sender: send.zerocopy: this kernel has")
    assert "needs real hosts" in untried.skipped["one::other-lab"]


class Card(FakeAgent):
    """An agent of a host that has a card before anything is set there."""

    def _facts(self, interface: str) -> Facts:
        return replace(
            super()._facts(interface),
            interface=interface,
            mtu=1500,
            rx_queues=1,
            addresses=("10.0.0.1/24",),
        )


class TwoHosts(World):
    """Hosts of their own."""

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to an agent with a card."""
        self.say(f"open {host}")
        self.agents[host] = Card(host, self)
        return self.agents[host]


@pytest.mark.parametrize(
    ("receiver", "keys", "reason"),
    [
        ({}, {}, None),
        ({}, {"traffic": {"size": "4000B"}}, "a datagram of 4000B needs an MTU of 4028"),
        ({"mtu": 9000}, {"traffic": {"size": "4000B"}}, "eth3 of sender has 1500"),
        ({}, {"needs": {"receiver": {"rx_queues": 2}}}, "receiver needs 2 RX queues and has 1"),
        ({"ethtool": {"channels": 2}}, {"needs": {"receiver": {"rx_queues": 2}}}, None),
        ({}, {"traffic": {"flows": {"to": "receiver.addresses[2]:9"}}}, "which has 1"),
        (
            {"addresses": ["10.0.0.2/24"]},
            {"traffic": {"flows": {"to": "receiver.addresses[2]:9"}}},
            None,
        ),
    ],
)
def test_real_hosts_are_bound_as_they_would_be(
    tmp_path: Path, receiver: dict[str, Any], keys: dict[str, Any], reason: str | None
) -> None:
    """Nothing is set there, so what would be is reckoned with."""
    world = TwoHosts()
    (tmp_path / "far.yaml").write_text(FAR)
    definition = experiment(settings={"receiver": receiver}, **keys)
    reach = Reach({"ssh": world.open}, world.open)
    (only,) = rehearse([definition], load_lab(str(tmp_path / "far.yaml")), reach)
    assert (reason is not None) == bool(only.skipped)
    assert reason is None or reason in only.skipped["one"]


def test_the_machine_is_only_read() -> None:
    """What all share is never applied in a rehearsal; what is thrown away is really tried."""
    world = World()
    definition = experiment(settings={"receiver": {"sysctl": {SYSCTL: 1_000_000}}})
    (only,) = rehearse([definition], lab(), world.surroundings().reach)
    assert [] == world.agents["machine"].in_force
    assert ["as it was"] == [planned.now for planned in only.hosts["machine"]]
    assert [] != world.agents["receiver"].in_force


def test_a_refusal_is_reported_beside_what_was_asked() -> None:
    """The setting that a namespace would not take stands in the plan with the reason."""
    world = World(refusing="mtu")
    definition = experiment(settings={"receiver": {"mtu": 9000}})
    (only,) = rehearse([definition], lab(), world.surroundings().reach)
    refused = [planned for planned in only.hosts["receiver"] if planned.refusal is not None]
    assert [("mtu", 9000, 1, "not here")] == [
        (planned.setting.kind, planned.setting.value, planned.now, planned.refusal)
        for planned in refused
    ]


def test_no_packet_is_sent_and_every_agent_ends() -> None:
    """A rehearsal prepares no worker and starts no phase."""
    world = World()
    rehearse([experiment()], lab(), world.surroundings().reach)
    assert [] == [word for word in world.words if word.split()[0] in ("prepare", "start")]
    assert 3 == sum(word.startswith("end ") for word in world.words)


def test_a_host_that_does_not_answer_ends_the_rehearsal(golden: Golden) -> None:
    """ConnectError names it."""
    world = World()
    world.raises("open receiver", ConnectError("no route", "receiver"))
    with golden.raises(ConnectError):
        rehearse([experiment()], lab(), world.surroundings().reach)
