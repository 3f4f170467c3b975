"""What an agent says as plain data: what is taken, and what is refused as no reply of ours."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from analysis.build import facts as facts_of
from analysis.build import record
from golden import Golden

from udpbench.errors import RecordError
from udpbench.model.host import Facts, Inspection, Setting
from udpbench.model.limits import (
    COUNTERS_MAX,
    CPUS_MAX,
    LENGTHS,
    NODES_MAX,
    SEEN_MAX,
    THREADS_MAX,
)
from udpbench.model.record import (
    Process,
    Sample,
    Snapshot,
    ThreadUse,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.work import WorkerSpec
from udpbench.protocol import RUN, Hello, Repeated, SampleReply, decode, encode, write_line
from udpbench.records.exact import validated

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


def test_of_repeated_lists_only_what_differs_is_encoded_and_decoded() -> None:
    """The rest is the very same object, however long the list before was."""
    settings = tuple(Setting("sysctl", f"a.{n}", n) for n in range(3))
    sender, receiver = Repeated(), Repeated()
    first = sender.encode(settings)
    assert encode(settings) == first
    read = receiver.decode(Sequence[Setting], first)
    assert settings == read
    changed = (settings[0], replace(settings[1], value=9), settings[2], settings[0])
    second = sender.encode(changed)
    assert encode(changed) == second
    assert [True, False, True] == [a is b for a, b in zip(first, second, strict=False)]
    again = receiver.decode(Sequence[Setting], second)
    assert changed == again
    assert [True, False, True] == [a is b for a, b in zip(read, again, strict=False)]
    assert read[:1] == receiver.decode(Sequence[Setting], sender.encode(settings[:1]))


def test_what_is_repeated_is_of_the_same_types() -> None:
    """In Python 1, 1.0 and true are equal; and a list that was refused is not remembered."""
    receiver = Repeated()
    plain = encode(Setting("sysctl", "a", 1))
    for value in (1, True, 1.0):
        (read,) = receiver.decode(Sequence[Setting], [{**plain, "value": value}])
        assert type(read.value) is type(value)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Setting\.kind: expected str, got 1"):
            receiver.decode(Sequence[Setting], [{**plain, "kind": 1}])
    with pytest.raises(ValueError, match="expected a list, got dict"):
        receiver.decode(Sequence[Setting], {})


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


THREAD = ThreadUse("a", 1, 2, 3, {"S": 4}, {"recvmmsg": 4})
GOOD: dict[Any, Any] = {
    Facts: encode(facts_of("right", "receive0", "10.0.0.1/24")),
    Process: encode(Process(1, "a", 1, "run")),
    Snapshot: encode(Snapshot("right", 1, {})),
    ThreadUse: encode(THREAD),
    TrialRecord: {**encode(record()), "workers": []},
    WorkerStats: encode(WorkerStats("right.receiver0", "receiver", 0, {})),
}


def refusals(kind: type, plain: dict[str, Any]) -> list[str]:
    """Return how a reply and a record with the same are refused."""
    errors = []
    whole = {**GOOD[kind], **plain}
    try:
        decode(kind, whole)
    except ValueError as error:
        errors.append(str(error))
    try:
        validated(kind, whole, "run.jsonl:2")
    except RecordError as error:
        errors.append(str(error))
    return errors


@pytest.mark.parametrize(
    ("kind", "key", "most"),
    [
        (Snapshot, "counters", {f"a.{n}": 1 for n in range(COUNTERS_MAX)}),
        (Facts, "cpus", [*range(CPUS_MAX)]),
        (Facts, "siblings", {f"{n}": [n] for n in range(CPUS_MAX)}),
        (Facts, "numa_nodes", {"0": [*range(CPUS_MAX)]}),
        (Facts, "queue_cpus", {f"{n}": [1] for n in range(2**16)}),
        (Facts, "queue_irqs", {f"{n}": 4 for n in range(2**16)}),
        (Process, "by_cpu_ns", {f"{n}": 1 for n in range(CPUS_MAX)}),
        (WorkerStats, "cpus_seen", [*range(CPUS_MAX)]),
        (WorkerStats, "threads", [encode(THREAD)] * THREADS_MAX),
        (TrialRecord, "exits", {f"n{n}": "eth0" for n in range(NODES_MAX)}),
        (TrialRecord, "bridges", {f"n{n}": ["br0"] for n in range(NODES_MAX)}),
        (ThreadUse, "looks", {f"{n}": 1 for n in range(SEEN_MAX)}),
        (ThreadUse, "calls", {f"{n}": 1 for n in range(SEEN_MAX)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_replies_and_records_have_the_same_lengths(kind: type, key: str, most: Any) -> None:
    """What is taken of a host can be read again: the longest is both, a longer is neither."""
    assert [] == refusals(kind, {key: most})
    more: Any
    if key == "numa_nodes":
        more = {"0": [*most["0"], 0]}
    else:
        more = (
            {**most, "99999": next(iter(most.values()))}
            if isinstance(most, dict)
            else [*most, most[-1]]
        )
    reply, in_record = refusals(kind, {key: more})
    assert f"{kind.__name__}.{key}: {LENGTHS[key] + 1} entries, at most {LENGTHS[key]}" == reply
    assert in_record.startswith(f"run.jsonl:2: {key}")
    assert f"at most {LENGTHS[key]} items" in in_record


@pytest.mark.parametrize(
    "others", [{"e": ["10.0.0.1/24"] * 4097}, {f"e{n}": ["10.0.0.1/24"] for n in range(4097)}]
)
def test_a_host_has_so_many_other_addresses(others: dict[str, list[str]]) -> None:
    """Also in each list of an object; ``doctor`` looks at each."""
    with pytest.raises(ValueError, match=r"other_addresses: 4097 entries, at most 4096"):
        decode(Inspection, {"other_addresses": others})


@pytest.mark.parametrize("key", ["abc", "-1", "1.5", "", "٣", "9" * 5000, "1\n"])
@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Process, "by_cpu_ns", 5),
        *((Facts, name, [0]) for name in ("numa_nodes", "siblings", "queue_cpus")),
        *((Facts, name, 4) for name in ("queue_irqs", "tx_queue_irqs")),
        (Facts, "cache_siblings", [0]),
    ],
)
def test_keys_that_must_be_numbers_are(kind: type, field: str, value: Any, key: str) -> None:
    """In replies and in records; the error is short."""
    reply, in_record = refusals(kind, {field: {key: value}})
    assert f"{kind.__name__}.{field}: the key " in reply
    assert len(reply) < 120
    assert in_record.startswith(f"run.jsonl:2: {field}")
    assert len(in_record) < 200


@pytest.mark.parametrize("cpu", [-1, CPUS_MAX])
def test_no_machine_has_such_a_cpu(cpu: int) -> None:
    """Its number would be the length of a mask."""
    for kind, plain in (
        (Facts, {"cpus": [cpu]}),
        (Facts, {"numa_nodes": {"0": [0, cpu]}}),
        (Facts, {"queue_cpus": {"0": [cpu]}}),
        (WorkerStats, {"cpu": cpu}),
        (Process, {"cpus": [cpu]}),
    ):
        reply, in_record = refusals(kind, plain)
        assert f": {cpu} is not within 0 to {CPUS_MAX - 1}" in reply
        assert in_record.startswith("run.jsonl:2: ")


@pytest.mark.parametrize("number", [0, 1, RUN, RUN + 1, 3 * RUN])
def test_a_line_is_that_of_json_however_long_its_lists(number: int) -> None:
    """Long lists are written in runs, wherever they are."""
    rows = [{"a": [each], "b": None, "é": "ü\n"} for each in range(number)]
    message = {"id": 1, "result": {"spaces": [{"look": {"rows": rows}}, {"look": None}, [], 2]}}
    for each in (message, {"id": 1, "args": {}}, {"rows": rows, "end": True}):
        assert json.dumps(each, separators=(",", ":")).encode() + b"\n" == write_line(each)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_line({"rows": [*rows, float("nan")]})


def test_a_line_takes_little_more_memory_than_itself() -> None:
    """The json module keeps the text of each key and number until its end: ten times as much."""
    message = {"rows": [{"cookie": each, "drops": each} for each in range(10_000)]}
    tracemalloc.start()
    try:
        size_bytes = len(write_line(message))
        assert tracemalloc.get_traced_memory()[1] < 4 * size_bytes
    finally:
        tracemalloc.stop()
