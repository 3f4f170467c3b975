"""Worker specifications as a plan: what the loops are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from udpbench.agent.plan import plan, window_words
from udpbench.errors import WorkerFailed
from udpbench.model import FlowSpec, Receive, Send, Traffic, WorkerSpec

FLOWS = (
    FlowSpec(3, "10.0.0.30", 65400, "10.0.0.1", 4321),
    FlowSpec(5, "10.0.0.30", 65401, "10.0.0.1", 4321),
)
SENDER = WorkerSpec("sender", "left", 0, 1, FLOWS, Traffic(), send=Send(), rate_pps=1000)
RECEIVER = WorkerSpec(
    "receiver", "right", 0, None, FLOWS, Traffic(), receive=Receive(), bind_ports=(4321,)
)


@pytest.mark.parametrize(
    ("flow_count", "words"),
    [(1, 4096), (512, 4096), (513, 2048), (1024, 2048), (32768, 64), (65536, 64)],
)
def test_windows_share_a_budget(flow_count: int, words: int) -> None:
    """Windows are powers of two between their least and longest, 16 MiB together where it fits."""
    assert words == window_words(flow_count)


def test_a_senders_plan_says_all_that_its_loop_needs() -> None:
    """Options are the host's, the rest is each worker's own; 0 stands for no count."""
    made = plan([SENDER], 7, 42)

    assert ("sender", 42, 7, 6, [3, 5]) == (
        made["role"],
        made["agent_pid"],
        made["memory_fd"],
        made["flow_count"],
        made["flow_numbers"],
    )
    assert 32 == made["options"]["size_bytes"]
    assert {
        "name": "left.sender0",
        "cpu": 1,
        "bind_ports": [],
        "rate_pps": 1000,
        "count_packets": 0,
        "steering": {},
        "streams": {},
        "fault": None,
    } == {key: value for key, value in made["workers"][0].items() if key != "flows"}
    assert [65400, 65401] == [flow["source_port"] for flow in made["workers"][0]["flows"]]


@pytest.mark.parametrize(
    ("size_bytes", "room", "expected"),
    [(32, "auto", 64), (1472, "auto", 1472), (1472, 100, 100)],
)
def test_auto_room_fits_the_runs_own_datagrams(
    size_bytes: int, room: object, expected: int
) -> None:
    """``auto`` offers the run's size and at least 64 B; a number is taken as it is."""
    receive = replace(Receive(), room=room)  # type: ignore[arg-type]
    spec = replace(RECEIVER, traffic=Traffic(size_bytes=size_bytes), receive=receive)

    assert expected == plan([spec], 7, 42)["options"]["room_bytes"]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (
            [replace(SENDER, flows=()), replace(SENDER, index=1, flows=())],
            "left.sender0, left.sender1: no flow to send or receive; lower `workers`",
        ),
        ([replace(SENDER, send=None)], "left.sender0: a sender without `send`"),
        ([replace(RECEIVER, receive=None)], "right.receiver0: a receiver without `receive`"),
    ],
)
def test_an_impossible_plan_is_refused(specs: list[WorkerSpec], words: str) -> None:
    """Workers with nothing to do, or without their half of the experiment, name themselves."""
    with pytest.raises(WorkerFailed) as caught:
        plan(specs, 7, 42)

    assert words == caught.value.message
