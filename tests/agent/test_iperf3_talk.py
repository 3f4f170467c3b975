"""What a client may say on iperf3's control connection, and what is made of anything else."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from fuzz_talk import OF_3_1, OF_3_12, block
from golden import Golden

from udpbench.agent.iperf3.talk import (
    HELLOS,
    PARAMETERS_MAX_BYTES,
    Unserved,
    length_of,
    parse_parameters,
    parse_results,
    refusal,
    results,
)
from udpbench.model.served import ServedStream

ALLOWED = {"udp": True, "len": 100}


def parsed(**more: Any) -> Any:
    """Return what parameters mean."""
    return parse_parameters(json.dumps({**ALLOWED, **more}).encode())


def test_a_client_of_3_1_is_understood() -> None:
    """It names little."""
    asked = parse_parameters(OF_3_1)
    assert (1, 8192, False, None, 10 * 10**9) == (
        *(asked.streams, asked.size_bytes, asked.wide, asked.buffer_bytes, asked.duration_ns),
    )
    assert "3.1.3" == asked.asked["client_version"]
    assert () == asked.ignored


def test_a_later_client_is_understood_and_what_has_no_effect_is_named() -> None:
    """Numbers may have an exponent; a number of bytes has no duration."""
    asked = parse_parameters(OF_3_12)
    assert (4, 1448, True, 262144, None) == (
        *(asked.streams, asked.size_bytes, asked.wide, asked.buffer_bytes, asked.duration_ns),
    )
    assert (10**6, 10**9, ("gsro", "skip_rx_copy")) == (
        *(asked.asked["num"], asked.omit_ns, asked.ignored),
    )


@pytest.mark.parametrize(
    "more",
    [
        {"tcp": True, "udp": False},
        {"udp": False},
        {"sctp": 1},
        {"reverse": True},
        {"bidirectional": 1},
        {"authtoken": "abc"},
        {"parallel": 129},
        {"parallel": 0},
        {"len": 65508},
        {"len": 8},
        {"len": 12, "udp_counters_64bit": 1},
        {"len": 100.5},
        {"len": "100"},
        {"window": -1},
        {"time": 1e300},
        {"omit": [[]]},
        {"title": [[[[1]]]]},
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_with_the_reason(
    more: dict[str, Any], golden: Golden
) -> None:
    """TCP, both directions, users, and numbers that no client has."""
    with golden.raises(Unserved):
        parsed(**more)


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"[]",
            b"{",
            b"nonsense",
            b"\xff\xfe",
            b'{"udp": NaN}',
            b"[" * 8000,
            b'{"a":' * 1000,
        ),
        b'{"udp":true,"len":' + b"9" * 5000 + b"}",
    ],
    ids=lambda text: text[:12].hex(),
)
def test_what_is_no_json_of_a_client_is_refused(text: bytes) -> None:
    """However deep, and whatever numbers it has."""
    with pytest.raises(Unserved):
        parse_parameters(text)


def test_a_client_chooses_no_length() -> None:
    """More than iperf3's own limit is not read."""
    assert 5 == length_of(struct.pack(">I", 5), PARAMETERS_MAX_BYTES)
    for length in (0, PARAMETERS_MAX_BYTES + 1, 2**32 - 1):
        with pytest.raises(Unserved, match="at most 8192 B"):
            length_of(struct.pack(">I", length), PARAMETERS_MAX_BYTES)


def test_a_greeting_has_a_reply_in_its_own_byte_order() -> None:
    """Newer and older releases."""
    assert {
        b"9876": b"6789",
        b"6789": b"9876",
        struct.pack("<I", 123456789): struct.pack("<I", 987654321),
        struct.pack(">I", 123456789): struct.pack(">I", 987654321),
    } == HELLOS


def test_a_refusal_is_the_error_that_every_release_knows() -> None:
    """State -2, and two numbers, of which the first is 13."""
    assert b"\xfe\0\0\0\x0d\0\0\0\0" == refusal()


def test_results_of_a_client_are_read() -> None:
    """Streams keep their numbers and their order."""
    text = json.dumps(
        {"streams": [{"id": 1, "packets": 5, "end_time": 2.5}, {"id": 3, "packets": 7.0}]}
    ).encode()
    assert [(1, 5, 2.5), (3, 7, 0.0)] == [
        (each.number, each.packets, each.end_s) for each in parse_results(text)
    ]


@pytest.mark.parametrize(
    "value",
    [
        *({}, {"streams": []}, {"streams": {}}, {"streams": [1]}, {"streams": [{}]}),
        *({"streams": [{"id": 1, "packets": -1}]}, {"streams": [{"id": "a"}]}),
        *({"streams": [{"id": 1, name: 2**48}]} for name in ("packets", "omitted_packets")),
        {"streams": [{"id": 1}] * 129},
    ],
    ids=lambda value: str(value)[:40],
)
def test_results_that_are_none_are_refused(value: Any) -> None:
    """Without streams, or with numbers that no client has."""
    with pytest.raises(Unserved):
        parse_results(json.dumps(value).encode())


def test_a_client_gets_exact_losses_and_what_it_leaves_out() -> None:
    """Sent 100, of which 20 in the first second; 90 arrived, 15 of them by then."""
    stream = ServedStream(3, 100, 90, 92, 99, 2, 7, 1_500_000, 20, 15)
    answered = json.loads(results([stream], [9000], 1.5, (0.25, 0.5), "the answer")[4:])
    assert (75.0, "the answer") == (answered["cpu_util_total"], answered["server_output_text"])
    assert {
        "id": 3,
        "bytes": 9000,
        "retransmits": -1,
        "jitter": 0.0015,
        "errors": 10,
        "omitted_errors": 5,
        "packets": 100,
        "omitted_packets": 20,
        "start_time": 0,
        "end_time": 1.5,
    } == answered["streams"][0]
    assert "server_output_text" not in json.loads(results([stream], [0], 1.0, (0, 0), None)[4:])
    whole = ServedStream(3, 90, 90, 90, 90, 9, 0, 0, omitted_packets=20, omitted_received=15)
    (late,) = json.loads(results([whole], [0], 1.0, (0, 0), None)[4:])["streams"]
    assert (0, 0) == (late["errors"], late["omitted_errors"])


def test_whatever_a_client_sends_is_understood_or_refused() -> None:
    """A sample of a fuzzer's inputs: nothing but Unserved comes of them (session ``fuzz``)."""
    counts = block(10_000, 7)
    assert {"refused", "parameters", "results"} <= counts.keys()
    assert min(counts[name] for name in ("parameters", "results")) > 10


def test_a_fault_is_reported_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be repeated."""

    def fail(_: bytes) -> Any:
        raise RecursionError

    monkeypatch.setattr("fuzz_talk.parse_parameters", fail)
    with pytest.raises(AssertionError, match="block 3: RecursionError"):
        block(1, 3)
