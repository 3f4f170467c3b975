"""What doctor reads of a lab's hosts: nothing is changed, and every host is let go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from control.fake import WALL_NS, FakeAgent, World, lab
from udpbench.control.agents import Reach
from udpbench.control.doctor import examine
from udpbench.control.lab_lock import Surroundings
from udpbench.definition.load import load_lab
from udpbench.errors import AgentError, ConnectError, HelloRefused
from udpbench.model.host import Inspection
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Snapshot
from udpbench.protocol import Taken

FAR = """\
sender: [{name: left, connect: {ssh: left}, interface: eth3, addresses: [10.0.0.30/24]}]
receiver: [{name: right, connect: {ssh: right}, interface: eth2, addresses: existing}]
"""


class Remote(FakeAgent):
    """An agent of another machine, whose clock is ahead."""

    def __init__(self, host: str, world: World) -> None:
        super().__init__(host, world)
        self.pid, self.offset_ns = None, 7
        world.netns[host] = len(world.agents) + 1

    def _facts(self, interface: str) -> Any:
        self.world.agents.setdefault("receiver", self)
        return replace(super()._facts(interface), interface=interface)

    def _snapshot(self, interface: str, **_: Any) -> Snapshot:
        return Snapshot(self.host, self.world.clock.now_ns(), {f"link.{interface}.rx_packets": 0})


class FarWorld(World):
    """Two hosts that are reached by SSH."""

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to an agent elsewhere."""
        self.say(f"open {host}")
        self.agents[host] = Remote(host, self)
        return self.agents[host]

    def surroundings(self) -> Surroundings:
        """Return what examine() takes in place of the real thing."""
        return Surroundings(Reach({"ssh": self.open}, self.open), self.clock, self.interrupt)


def test_of_a_built_in_lab_the_machine_is_read() -> None:
    """Two snapshots a second apart; nothing is applied, and every agent ends."""
    world = World()
    (machine,) = examine(lab(), world.surroundings())
    assert machine.before is not None
    assert machine.after is not None
    assert "machine" == machine.facts.host
    assert SECOND_NS == machine.after.clock_ns - machine.before.clock_ns
    verbs = {word.split()[0] for word in world.words}
    assert {"open", "hello", "take", "inspect", "facts", "snapshot", "end"} == verbs


def test_of_other_labs_every_host_is_read(tmp_path: Path) -> None:
    """With its clock, as far as the connection lets it be known."""
    (tmp_path / "far.yaml").write_text(FAR)
    left, right = examine(load_lab(str(tmp_path / "far.yaml")), FarWorld().surroundings())
    assert [("left", "eth3"), ("right", "eth2")] == [
        (examined.facts.host, examined.facts.interface) for examined in (left, right)
    ]
    assert (WALL_NS + 7, 50_000) == (left.wall_offset_ns, left.wall_bound_ns)


def test_hosts_that_cannot_be_reached_are_all_named(tmp_path: Path, golden: Golden) -> None:
    """Doctor ends there: what was read of the others alone is half an answer."""
    (tmp_path / "far.yaml").write_text(FAR)
    world = FarWorld()
    for host in ("left", "right"):
        world.raises(f"open {host}", ConnectError("no route to host", host))
    with golden.raises(ConnectError):
        examine(load_lab(str(tmp_path / "far.yaml")), world.surroundings())


def test_a_host_that_another_run_uses_is_not_read(golden: Golden) -> None:
    """Its load would be taken for what spoils a measurement."""
    world = World(held={"machine": [Taken("run 7", "machine")]})
    with golden.raises(HelloRefused):
        examine(lab(), world.surroundings())
    assert not any(word.startswith("inspect") for word in world.words)


def test_a_malformed_reply_is_the_agents_fault(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses are reckoned with later, where nobody could say whose they are."""
    inspect = FakeAgent._inspect

    def lie(agent: FakeAgent, interface: str) -> Inspection:
        return replace(inspect(agent, interface), other_addresses={"eth0": ("here",)})

    monkeypatch.setattr(FakeAgent, "_inspect", lie)
    with golden.raises(AgentError):
        examine(lab(), World().surroundings())
