"""The memory that loops and agent share: its layout follows from the specifications alone."""

from __future__ import annotations

import pytest

from udpbench.agent.workers.memory import layout, window_words
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.work import FlowSpec, WorkerSpec

FLOWS = (
    FlowSpec(3, "10.0.0.30", 65400, "10.0.0.1", 4321),
    FlowSpec(5, "10.0.0.30", 65401, "10.0.0.1", 4321),
)
SENDER = WorkerSpec("sender", "left", 0, 1, FLOWS, Traffic(), send=Send())
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


@pytest.mark.parametrize("spec", [SENDER, RECEIVER])
def test_windows_are_numbered_as_flows_are(spec: WorkerSpec) -> None:
    """There is one for each number up to the highest, and only flows that are there are told of."""
    drawn = layout([spec, spec])
    assert ((3, 5), 6, 4096) == (drawn.flows, drawn.flow_count, drawn.window_words)
    assert 2 == len(drawn.stats) == len(set(drawn.stats))
