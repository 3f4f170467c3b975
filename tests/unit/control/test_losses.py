"""Packets lost on purpose: when something waits for them, when they are sent, and for how long."""

from __future__ import annotations

from pathlib import Path

from golden import Golden

from control.fake import PACKETS, World, only
from udpbench.analysis.judge import judge
from udpbench.errors import AgentError
from udpbench.model.record import RecordedError

LOSSES = {"udp_no_port": 3, "udp_memory": 2}


def loss_words(world: World) -> list[str]:
    """Return what was said from the first word of losses on, but for what is of no concern."""
    first = next(n for n, word in enumerate(world.words) if "losses" in word)
    aside = ("snapshot", "verify", "restore", "end", "hello", "others", "facts")
    return [word for word in world.words[first:] if not word.startswith(aside)]


def test_losses_are_sent_before_the_traffic_and_read_after_it(tmp_path: Path) -> None:
    """Somebody waits for them before they are sent; the machine is changed for one stage's packets alone."""
    world = World()
    record = only(tmp_path, world, losses=LOSSES, warmup="0s")
    assert "done" == record.status, record.error
    assert [
        "expect_losses receiver",
        "expect_losses sender",
        "send_losses sender udp_no_port",
        "apply machine",
        "send_losses sender udp_memory",
        "apply machine nothing",
        "start receiver measured",
        "start sender measured",
        "stop receiver",
        "collect_losses receiver",
        "close receiver",
        "close sender",
    ] == loss_words(world)
    assert ["sender.loss_udp_no_port", "sender.loss_udp_memory"] == [
        loss.worker for loss in record.phases[-1].losses if loss.role == "sender"
    ]
    assert PACKETS + 5 == judge(record).intended_packets


def test_the_machine_is_put_back_where_sending_failed(tmp_path: Path) -> None:
    """Whatever happened meanwhile, and the trial failed."""
    world = World()
    world.raises("send_losses sender udp_memory", AgentError("no", "sender"))
    record = only(tmp_path, world, losses=LOSSES, warmup="0s")
    assert record.error is not None
    assert ("failed", "AgentError") == (record.status, record.error.kind)
    at = world.words.index("send_losses sender udp_memory")
    assert "apply machine nothing" == world.words[at + 1]


def test_a_machine_that_nobody_may_change_skips_the_trial(tmp_path: Path) -> None:
    """With the setting and the machine's own words."""
    world = World(refusing="sysctl")
    record = only(tmp_path, world, losses=LOSSES)
    assert record.error is not None
    assert ("skipped", "losses.udp_memory: not here") == (
        record.status,
        record.error.message,
    )


def test_a_user_who_may_not_change_the_machine_skips_the_trial(
    golden: Golden, tmp_path: Path
) -> None:
    """The setting can be read, and only a write would be refused: the agent has tried that."""
    record = only(tmp_path, World(capabilities={"machine_sysctl": False}), losses=LOSSES)
    assert ("skipped", "unavailable") == (record.status, (record.error or RecordedError()).kind)
    golden.check((record.error or RecordedError()).message)
    able = only(tmp_path / "able", World(capabilities={"machine_sysctl": True}), losses=LOSSES)
    assert "done" == able.status
