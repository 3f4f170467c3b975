"""Agents of a lab: how they are reached and greeted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.fake import FakeAgent, World, lab
from udpbench.control.lab import Reach, started
from udpbench.control.remote import Remote
from udpbench.errors import AgentError, ConnectError, HelloRefused, NotPermitted, SafetyError
from udpbench.model import Connect, Lab
from udpbench.protocol import Hello


def far(**ssh: str) -> Lab:
    """Return the lab with both hosts reached by SSH, each by its name or as given."""
    here = lab()
    senders, receivers = (
        tuple(
            replace(one, connect=Connect("ssh", ssh=ssh.get(one.name, one.name))) for one in hosts
        )
        for hosts in (here.senders, here.receivers)
    )
    return replace(here, senders=senders, receivers=receivers)


def test_hosts_of_their_own_have_both_scopes_and_no_machine_agent() -> None:
    """Each way is handed how its host is reached, and nobody else is started."""
    world = World()
    reached: list[Connect] = []

    def by_ssh(host: str, connect: Connect) -> FakeAgent:
        reached.append(connect)
        return world.open(host)

    with started(
        far(sender="bench@left"), "run", 10**9, Reach({"ssh": by_ssh}, world.open)
    ) as all_:
        scopes = {one.name: one.scopes for one in all_.everyone}
    both = ("namespace", "machine")
    assert {"sender": both, "receiver": both} == scopes
    assert ["bench@left", "receiver"] == [one.ssh for one in reached]


def test_every_host_that_is_not_reached_is_told_at_once() -> None:
    """One error, a line for each host, of the first one's class; nothing is greeted."""
    world = World()
    world.raises("open sender", ConnectError("no answer", "sender"))
    world.raises("open receiver", ConnectError("its host key is unknown", "receiver"))
    with (
        pytest.raises(ConnectError) as caught,
        started(far(), "run", 10**9, Reach({"ssh": world.open}, world.open)),
    ):
        pass
    expected = "sender: no answer\nreceiver: its host key is unknown"
    assert (expected, ["open sender", "open receiver"]) == (str(caught.value), world.words)


def test_who_may_make_no_lab_is_told_once() -> None:
    """It is of the machine, and no other host is tried."""
    world = World()
    world.raises("open sender", NotPermitted("needs root"))
    with (
        pytest.raises(NotPermitted, match=r"^needs root$"),
        started(lab(), "run", 10**9, Reach({"namespace": world.open}, world.open)),
    ):
        pass
    assert ["open sender"] == world.words


def test_every_agent_that_refuses_is_told_at_once() -> None:
    """Both builds are named, and both agents are ended."""
    world = World()
    world.raises("hello sender", HelloRefused("build 1", "sender"))
    world.raises("hello receiver", HelloRefused("build 2", "receiver"))
    with (
        pytest.raises(HelloRefused, match=r"^sender: build 1\nreceiver: build 2$"),
        started(far(), "run", 10**9, Reach({"ssh": world.open}, world.open)),
    ):
        pass
    assert ["end sender", "end receiver"] == world.words[-2:]


def test_two_hosts_that_are_one_are_told_so() -> None:
    """The holder of the namespace is this very run, so nobody is asked to wait for its end."""
    world = World()
    held = "the namespace is held by run now-7 (pid 8); let that run end first"
    world.raises("hello receiver", HelloRefused(held, "receiver"))
    with (
        pytest.raises(SafetyError, match=r"^receiver: shares its network namespace with another"),
        started(far(), "now-7", 10**9, Reach({"ssh": world.open}, world.open)),
    ):
        pass


def test_a_namespace_that_another_run_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that holds it is named."""
    world = World()
    held = Hello(1, 2, "boot", "b", "3.11", {}, held_by="20261121T080000-17")
    world.hooks["open machine"] = lambda: setattr(
        world.agents["sender"], "_hello", lambda **_: held
    )
    with (
        pytest.raises(HelloRefused, match="held by run 20261121T080000-17; let that run end"),
        started(lab(), "run", 10**9, Reach({"namespace": world.open}, world.open)),
    ):
        pass


def test_a_reply_that_does_not_fit_is_an_agent_error() -> None:
    """It names verb and key, and no traceback of a decoder reaches anybody."""
    world = World()
    agent = world.open("left")
    odd = {"host": "left", "shoe_size": 43}
    agent._facts = lambda **_: odd  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(AgentError, match=r"facts: the reply does not fit: .*shoe_size"):
        Remote(agent, "sender", "send0", ("namespace",)).facts()
