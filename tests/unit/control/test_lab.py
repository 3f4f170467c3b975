"""Agents of a lab: how they are reached and greeted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control.fake import World, lab
from udpbench.control.lab import Reach, started
from udpbench.control.remote import Remote
from udpbench.errors import AgentError, ConnectError, HelloRefused
from udpbench.model import Connect
from udpbench.protocol import Hello


def test_a_way_that_does_not_exist_yet_is_told() -> None:
    """The message names the way and those that there are; what was opened is ended."""
    world = World()
    here = lab()
    far = replace(here.receivers[0], connect=Connect("ssh", ssh="right"))
    with (
        pytest.raises(ConnectError, match="ssh: not yet supported; known: namespace"),
        started(
            replace(here, receivers=(far,)),
            "run",
            10**9,
            Reach({"namespace": world.open}, world.open),
        ),
    ):
        pass
    assert ["open sender", "end sender"] == world.words


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
