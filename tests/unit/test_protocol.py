"""What an agent says as plain data: what is taken, and what is refused as no reply of ours."""

from __future__ import annotations

from typing import Any

import pytest
from golden import Golden

from udpbench.model import Facts, Sample, WorkerSpec, WorkerStats
from udpbench.protocol import Hello, SampleReply, decode

SAMPLE = {"worker": "left.sender0", "clock_ns": 1, "counts": {"sent_packets": 2}}
REPLY = {
    "state": "running",
    "error": None,
    "next": 1,
    "samples": [{**SAMPLE, "packets_per_ms": [1, 2], "range_per_ms": [1, 2, 3]}],
    "stats": [],
    "flows": [],
    "queued_bytes": None,
}


def test_a_reply_is_taken_as_what_it_is() -> None:
    """Lists of any length, of three items, and what may be missing."""
    reply = decode(SampleReply, REPLY)
    sample = Sample(**SAMPLE, packets_per_ms=(1, 2), range_per_ms=(1, 2, 3))  # type: ignore[arg-type]
    assert (None, (sample,)) == (reply.queued_bytes, reply.samples)
    assert 2**64 - 1 == decode(Sample, {**SAMPLE, "clock_ns": 2**64 - 1}).clock_ns


@pytest.mark.parametrize(
    ("kind", "plain", "why"),
    [
        (Sample, {"clock_ns": "1"}, "Sample.clock_ns: expected int, got '1'"),
        (Sample, {"clock_ns": True}, "Sample.clock_ns: expected int, got True"),
        (Sample, {"clock_ns": 1.5}, "Sample.clock_ns: expected int, got 1.5"),
        (Sample, {"clock_ns": None}, "Sample.clock_ns: expected int, got NoneType"),
        (Sample, {"clock_ns": 2**64}, "Sample.clock_ns: 18446744073709551616 is beyond 64 bits"),
        (Sample, {"worker": ["left"]}, "Sample.worker: expected str, got list"),
        (Sample, {"counts": []}, "Sample.counts: expected an object, got list"),
        (Sample, {"counts": {"a": {}}}, "Sample.counts: expected int, got dict"),
        (Sample, {"counts": {"a": 1, "b": True}}, "Sample.counts: expected int, got True"),
        (Sample, {"counts": {"a": 2**64, "b": 1}}, f"Sample.counts: {2**64} is beyond 64 bits"),
        (Sample, {"counts": {"a": 1, "b": -(2**64)}}, f"Sample.counts: {-(2**64)} is beyond"),
        (Sample, {"packets_per_ms": "123"}, "Sample.packets_per_ms: expected a list, got '123'"),
        (Sample, {"range_per_ms": [1, 2]}, "Sample.range_per_ms: expected 3 items, got 2"),
        (Sample, {"first_ms": 2**62}, f"Sample.first_ms: {2**62} is not within 0 to 172800000"),
        (Sample, {"more": 1}, "Sample: unknown key 'more'"),
        (SampleReply, {"state": "tired"}, "SampleReply.state: 'tired' is not one of none, ready"),
        (SampleReply, {"error": 5}, "SampleReply.error: expected an object, got 5"),
        (SampleReply, {"stats": None}, "SampleReply.stats: expected a list, got NoneType"),
        (SampleReply, {"samples": [5]}, "SampleReply.samples: Sample: expected an object, got int"),
        (Facts, {"rx_queues": 10**9}, "Facts.rx_queues: 1000000000 is not within 0 to 65536"),
        (WorkerStats, {"histograms": {"delay": {"counts": [[1]]}}}, "expected 2 items, got 1"),
        (Hello, {"capabilities": {"a": 1}}, "Hello.capabilities: expected bool, got 1"),
        (WorkerSpec, {"send": 4}, "WorkerSpec.send: Send: expected an object, got int"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    kind: type, plain: dict[str, Any], why: str, golden: Golden
) -> None:
    """Also what would be work without end, and what another type could pass for."""
    good = {Sample: SAMPLE, SampleReply: REPLY}.get(kind, {})
    with golden.raises(ValueError) as caught:
        decode(kind, {**good, **plain})
    assert why in str(caught.value)


def test_one_of_several_kinds_is_taken(golden: Golden) -> None:
    """A number or a word, whichever fits."""
    send = {"role": "sender", "host": "left", "index": 0, "cpu": None, "flows": [], "traffic": {}}
    for gso in ("max", 64):
        assert gso == decode(WorkerSpec, {**send, "send": {"gso": gso}}).send.gso
    with golden.raises(ValueError):
        decode(WorkerSpec, {**send, "send": {"gso": "some"}})
