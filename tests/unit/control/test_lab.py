"""Agents of a lab: how they are reached and greeted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from analysis.build import facts
from golden import Golden

from control.fake import FakeAgent, World, lab
from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import Agents, Reach
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.errors import AgentError, ConnectError, HelloRefused, NotPermitted, SafetyError
from udpbench.model.lab import Connect, Lab
from udpbench.protocol import encode


def far(**ssh: str) -> Lab:
    """Return the lab with both hosts reached by SSH, each by its name or as given."""
    here = lab()
    hosts = (
        replace(host, connect=Connect("ssh", ssh=ssh.get(host.name, host.name)))
        for host in here.hosts
    )
    return replace(here, hosts=tuple(hosts))


@contextmanager
def started(lab: Lab, world: World, open_ssh: Callable[..., FakeAgent]) -> Iterator[Agents]:
    """Yield the agents of a lab whose hosts are reached by a way of the test."""
    reach = Reach({"ssh": open_ssh, "namespace": world.open}, world.open)
    around = Surroundings(reach, world.clock, world.interrupt)
    with take_lab([lab], "run", 10**9, around, Terms()) as (_, agents):
        yield agents


def test_hosts_of_their_own_have_both_scopes_and_no_machine_agent() -> None:
    """Each way is handed how its host is reached, and nobody else is started."""
    world = World()
    reached: list[Connect] = []

    def by_ssh(host: str, connect: Connect) -> FakeAgent:
        reached.append(connect)
        return world.open(host)

    with started(far(sender="bench@left"), world, by_ssh) as all_:
        scopes = {agent.name: agent.scopes for agent in all_.everyone}
    both = ("namespace", "machine")
    assert {"sender": both, "receiver": both} == scopes
    assert ["bench@left", "receiver"] == [connect.ssh for connect in reached]


def test_a_sender_knows_which_networks_may_lie_behind_a_gateway() -> None:
    """None where a receiver names its own addresses, and the lab no route; else any."""
    world, written = World(), far()
    named = tuple(replace(receiver, addresses=(), existing=True) for receiver in written.receivers)
    results = []
    for definition in (written, replace(written, hosts=(*written.senders, *named))):
        with started(definition, world, world.open) as agents:
            results.append(agents.senders[0].routed)
    assert [None, ()] == results


def test_every_host_that_is_not_reached_is_reported_at_once() -> None:
    """One error, a line for each host, of the first one's class; nothing is greeted."""
    world = World()
    world.raises("open sender", ConnectError("no answer", "sender"))
    world.raises("open receiver", ConnectError("its host key is unknown", "receiver"))
    with (
        pytest.raises(ConnectError) as caught,
        started(far(), world, world.open),
    ):
        pass
    expected = "sender: no answer\nreceiver: its host key is unknown"
    assert (expected, ["open sender", "open receiver"]) == (str(caught.value), world.words)


def test_who_may_make_no_lab_is_told_once(golden: Golden) -> None:
    """It is of the machine, and no other host is tried."""
    world = World()
    world.raises("open sender", NotPermitted("needs root"))
    with (
        golden.raises(NotPermitted),
        started(lab(), world, world.open),
    ):
        pass
    assert ["open sender", "end machine"] == world.words[3:]


def test_every_agent_that_refuses_is_reported_at_once(golden: Golden) -> None:
    """Both builds are named, and both agents are ended."""
    world = World()
    world.raises("hello sender", HelloRefused("build 1", "sender"))
    world.raises("hello receiver", HelloRefused("build 2", "receiver"))
    with (
        golden.raises(HelloRefused),
        started(far(), world, world.open),
    ):
        pass
    assert ["end sender", "end receiver"] == world.words[-2:]


@pytest.mark.parametrize("names", [("sender", "receiver"), ("sender", "sender2")])
def test_two_hosts_that_are_one_are_told_so(names: tuple[str, str], golden: Golden) -> None:
    """Whatever they do, and before the first is taken."""
    here = far()
    lab_ = replace(here, hosts=(*here.hosts, replace(here.senders[0], name="sender2")))
    world = World(netns=dict.fromkeys(names, 7))
    with golden.raises(SafetyError), started(lab_, world, world.open):
        pass
    assert not [word for word in world.words if word.startswith("take")]


def test_a_reply_that_does_not_fit_is_an_agent_error(golden: Golden) -> None:
    """It names verb and key, and no traceback of a decoder reaches anybody."""
    world = World()
    agent = world.open("left")
    odd = {"host": "left", "shoe_size": 43}
    agent._facts = lambda **_: odd  # type: ignore[method-assign,assignment,return-value]
    with golden.raises(AgentError):
        AgentClient(agent, "sender", "send0", ("namespace",)).facts()


@pytest.mark.parametrize(
    "odd", [{"addresses": ("10.0.0.1; x/24",)}, {"queue_irqs": {"x": 1}}, {"siblings": {"": (0,)}}]
)
def test_facts_that_are_no_addresses_or_numbers_are_an_agent_error(
    odd: dict[str, Any], golden: Golden
) -> None:
    """All that is planned is worked out from them."""
    world = World()
    agent = world.open("left")
    answer = encode(replace(facts("left", "send0", "10.0.0.1"), **odd))
    agent._facts = lambda **_: answer  # type: ignore[method-assign,assignment,return-value]
    with golden.raises(AgentError):
        AgentClient(agent, "sender", "send0", ("namespace",)).facts()
