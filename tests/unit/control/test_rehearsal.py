"""What a run would change: found out in namespaces that are thrown away, read elsewhere."""

from __future__ import annotations

import pytest

from control.fake import World, experiment, lab
from udpbench.control.rehearsal import rehearse
from udpbench.errors import ConnectError, HostLacks

SYSCTL = "net.core.rmem_max"


def test_points_with_the_same_settings_are_rehearsed_once() -> None:
    """A sweep of what is sent has one set of settings, with every point's name."""
    world = World()
    swept = experiment(sweep={"send.batch": [1, 2]})
    (only,) = rehearse([swept], lab(), world.surroundings().reach)
    assert ("one::batch=1", "one::batch=2") == only.trials
    assert ["machine", "receiver", "sender"] == sorted(only.hosts)


def test_points_with_other_settings_are_rehearsed_apart() -> None:
    """A sweep of a setting has a set for each value, and each shows its own."""
    world = World()
    swept = experiment(sweep={"settings.receiver.mtu": [1400, 9000]})
    first, second = rehearse([swept], lab(), world.surroundings().reach)
    wanted = [
        [one.setting.value for one in each.hosts["receiver"] if one.setting.kind == "mtu"]
        for each in (first, second)
    ]
    assert [[1400], [9000]] == wanted


def test_what_a_kernel_lacks_is_found_in_a_rehearsal() -> None:
    """As in a run, before anything is tried."""
    world = World(capabilities={"udp_zerocopy": False})
    with pytest.raises(HostLacks, match=r"sender: send\.zerocopy: this kernel has no zero copy"):
        rehearse([experiment(send={"zerocopy": True})], lab(), world.surroundings().reach)


def test_the_machine_is_only_read() -> None:
    """What all share is never applied in a rehearsal; what is thrown away is really tried."""
    world = World()
    wanted = experiment(settings={"receiver": {"sysctl": {SYSCTL: 1_000_000}}})
    (only,) = rehearse([wanted], lab(), world.surroundings().reach)
    assert [] == world.agents["machine"].in_force
    assert ["as it was"] == [one.now for one in only.hosts["machine"]]
    assert [] != world.agents["receiver"].in_force


def test_a_refusal_is_told_beside_what_was_asked() -> None:
    """The setting that a namespace would not take stands in the plan with the reason."""
    world = World(refusing="mtu")
    wanted = experiment(settings={"receiver": {"mtu": 9000}})
    (only,) = rehearse([wanted], lab(), world.surroundings().reach)
    told = [one for one in only.hosts["receiver"] if one.refusal is not None]
    assert [("mtu", 9000, 1, "not here")] == [
        (one.setting.kind, one.setting.value, one.now, one.refusal) for one in told
    ]


def test_no_packet_is_sent_and_every_agent_ends() -> None:
    """A rehearsal prepares no worker and starts no phase."""
    world = World()
    rehearse([experiment()], lab(), world.surroundings().reach)
    assert [] == [word for word in world.words if word.split()[0] in ("prepare", "start")]
    assert 3 == sum(word.startswith("end ") for word in world.words)


def test_a_host_that_does_not_answer_ends_the_rehearsal() -> None:
    """ConnectError names it."""
    world = World()
    world.raises("open receiver", ConnectError("no route", "receiver"))
    with pytest.raises(ConnectError, match="receiver: no route"):
        rehearse([experiment()], lab(), world.surroundings().reach)
