"""What iperf3's control connection carries: states of a byte, and JSON behind its length; pure.

Written from what is public of the protocol (the project's wiki, and what clients send). Whatever a
client sends is a stranger's: each text has a limit of size and depth, each number a range, and what
is not named here has no effect.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from udpbench.json_lines import parse_json
from udpbench.model.limits import DAY_NS, MAX_PAYLOAD_BYTES, SECOND_NS, STREAMS_MAX
from udpbench.model.served import ServedStream

COOKIE_BYTES = 37
LENGTH_BYTES = 4
PARAMETERS_MAX_BYTES = 8192
"""As iperf3's own."""
RESULTS_MAX_BYTES = 2**16
"""128 streams take some 25 KiB."""
LEVELS_MAX = 4
"""Nested objects and lists; results have 3."""
TEXT_MAX = 200
ALL_STREAMS_MAX = 512
"""Streams of all clients at a time: a process may have 1024 descriptors, and select(2) takes no
more."""
TEST_START, TEST_RUNNING, TEST_END = 1, 2, 4
PARAM_EXCHANGE, CREATE_STREAMS, SERVER_TERMINATE, CLIENT_TERMINATE = 9, 10, 11, 12
EXCHANGE_RESULTS, DISPLAY_RESULTS, IPERF_DONE = 13, 14, 16
ACCESS_DENIED, SERVER_ERROR = -1, -2
UNIMPLEMENTED = 13
"""i_errno of "an option that is not implemented": the same in every release."""
HELLOS = {
    struct.pack(order, hello): struct.pack(order, reply)
    for order in ("<I", ">I")
    for hello, reply in ((0x36373839, 0x39383736), (123456789, 987654321))
}
"""A client's greeting → the reply: of newer and of older releases, in the client's byte order."""
HEADER_BYTES, WIDE_HEADER_BYTES = 12, 16
"""Seconds, microseconds and a counter of 32 or 64 bits."""
DEFAULT_BYTES = MAX_PAYLOAD_BYTES
ENDLESS = 2**63 - 1
PACKETS_MAX = 2**48 - 1
"""In a stream, as native/receiver/iperf3.c counts them: sums of 128 have room in 64 bits."""
NUMBERS: dict[str, tuple[int, int]] = {
    "time": (0, DAY_NS // SECOND_NS),
    "omit": (0, 600),
    "num": (0, ENDLESS),
    "blockcount": (0, ENDLESS),
    "parallel": (1, STREAMS_MAX),
    "len": (HEADER_BYTES, MAX_PAYLOAD_BYTES),
    "window": (0, 2**30),
    "bandwidth": (0, ENDLESS),
    "fqrate": (0, ENDLESS),
    "pacing_timer": (0, ENDLESS),
    "burst": (0, ENDLESS),
    "TOS": (0, 255),
    "server_affinity": (0, 8191),
    "udp_counters_64bit": (0, 1),
    "get_server_output": (0, 1),
    "dont_fragment": (0, 1),
    "repeating_payload": (0, 1),
    "zerocopy": (0, 2),
    "udp": (0, 1),
}
"""Parameter → least and most; the client alone acts on some of them."""
TEXTS = ("client_version", "title", "extra_data")
REFUSED = {
    "tcp": "TCP: this server counts UDP packets; add -u",
    "sctp": "SCTP: this server counts UDP packets; add -u instead",
    "reverse": "-R: this server receives alone, and sends no test traffic",
    "bidirectional": "--bidir: this server receives alone, and sends no test traffic",
    "authtoken": "--username: this server knows no users",
}
"""Parameter → why a test with it is refused."""


class Unserved(ValueError):
    """A client asks for what this server does not do, or does not speak as a client."""


@dataclass(frozen=True)
class ClientParameters:
    """What a client asks for."""

    asked: Mapping[str, Union[int, str]]
    ignored: tuple[str, ...]

    def number(self, name: str) -> int:
        """Return a number; 0 if it is not asked for."""
        value = self.asked.get(name, 0)
        return value if isinstance(value, int) else 0

    @property
    def streams(self) -> int:
        """How many UDP streams there will be."""
        return max(self.number("parallel"), 1)

    @property
    def size_bytes(self) -> int:
        """The payload of each datagram, at most."""
        return self.number("len") or DEFAULT_BYTES

    @property
    def wide(self) -> bool:
        """Whether counters have 64 bits."""
        return self.number("udp_counters_64bit") == 1

    @property
    def omit_ns(self) -> int:
        """How long the client leaves its first packets out of its numbers."""
        return self.number("omit") * SECOND_NS

    @property
    def duration_ns(self) -> Optional[int]:
        """How long it sends, the omitted time included; None: until it has sent a number."""
        if self.number("num") or self.number("blockcount") or not self.number("time"):
            return None
        return self.number("time") * SECOND_NS + self.omit_ns

    @property
    def buffer_bytes(self) -> Optional[int]:
        """SO_RCVBUF that it asks for; None: the host's default."""
        return self.number("window") or None


def parse_object(text: bytes) -> dict[str, Any]:
    """Return a client's JSON object; raises Unserved."""
    if not text.strip().startswith(b"{") or text.count(b"{") + text.count(b"[") > 2 * STREAMS_MAX:
        raise Unserved("not a JSON object of iperf3's")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise Unserved(f"JSON of a client: {error}") from error
    if not isinstance(value, dict) or _levels(value) > LEVELS_MAX:
        raise Unserved(f"JSON of a client: not an object of at most {LEVELS_MAX} levels")
    return value


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(_levels, inner), default=0)


def parse_parameters(text: bytes) -> ClientParameters:
    """Return what a client asks for; raises Unserved."""
    value = parse_object(text)
    for name, why in REFUSED.items():
        if value.get(name):
            raise Unserved(why)
    if not value.get("udp"):
        raise Unserved(REFUSED["tcp"])
    asked: dict[str, Union[int, str]] = {}
    for name, limits in NUMBERS.items():
        if name in value:
            asked[name] = _number(name, value[name], limits)
    for name in TEXTS:
        if isinstance(value.get(name), str):
            asked[name] = value[name][:TEXT_MAX]
    known = {*NUMBERS, *TEXTS, *REFUSED}
    ignored = tuple(name[:TEXT_MAX] for name in value if name not in known and value[name])
    parameters = ClientParameters(asked, ignored[:STREAMS_MAX])
    least_bytes = WIDE_HEADER_BYTES if parameters.wide else HEADER_BYTES
    if parameters.size_bytes < least_bytes:
        raise Unserved(f"len {parameters.size_bytes}: at least {least_bytes}, for time and counter")
    return parameters


def refuse_many(streams: int) -> None:
    """Raise Unserved if all clients together would have too many streams."""
    if streams > ALL_STREAMS_MAX:
        raise Unserved(f"{streams} streams of all clients together: at most {ALL_STREAMS_MAX}")


def _number(name: str, value: Any, limits: tuple[int, int]) -> int:
    """Return an integer, which clients may write with an exponent; raises Unserved."""
    least, most = limits
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not least <= value <= most:
        raise Unserved(f"{name[:TEXT_MAX]} {str(value)[:20]}: {least} to {most}")
    return int(value)


@dataclass(frozen=True)
class ClientStream:
    """What a client says of a stream of its own."""

    number: int
    packets: Optional[int]
    omitted_packets: Optional[int] = None
    end_s: float = 0.0


def parse_results(text: bytes) -> tuple[ClientStream, ...]:
    """Return a client's streams in their order; raises Unserved."""
    streams = parse_object(text).get("streams")
    if not isinstance(streams, list) or not 0 < len(streams) <= STREAMS_MAX:
        raise Unserved(f"results without 1 to {STREAMS_MAX} streams")
    return tuple(map(_stream, streams))


def _stream(value: Any) -> ClientStream:
    if not isinstance(value, dict):
        raise Unserved("results with a stream that is none")
    counts = {
        name: _number(name, value[name], (0, PACKETS_MAX))
        for name in ("packets", "omitted_packets")
        if name in value
    }
    end = value.get("end_time", 0.0)
    return ClientStream(
        _number("id", value.get("id"), (0, 2**31 - 1)),
        counts.get("packets"),
        counts.get("omitted_packets"),
        float(end) if isinstance(end, (int, float)) and 0 <= end <= DAY_NS else 0.0,
    )


def results(
    streams: Sequence[ServedStream],
    bytes_read: Sequence[int],
    elapsed_s: float,
    cpu: tuple[float, float],
    output: Optional[str],
) -> bytes:
    """Return this server's results for a client, with their length.

    What is lost is exact where the client says what it sent; ``cpu`` is user and system time as a
    share of the time; ``bytes_read`` are without those of omitted packets.
    """
    user, system = (100 * share for share in cpu)
    value: dict[str, Any] = {
        "cpu_util_total": user + system,
        "cpu_util_user": user,
        "cpu_util_system": system,
        "sender_has_retransmits": 0,
        "streams": [
            _result(stream, size_bytes, elapsed_s)
            for stream, size_bytes in zip(streams, bytes_read)
        ],
    }
    if output is not None:
        value["server_output_text"] = output
    return framed(json.dumps(value).encode())


def _result(stream: ServedStream, size_bytes: int, elapsed_s: float) -> dict[str, Any]:
    packets = max(stream.sent_packets or 0, stream.highest, stream.received_packets)
    errors = packets - stream.received_packets
    omitted = min(stream.omitted_packets or 0, packets)
    return {
        "id": stream.number,
        "bytes": size_bytes,
        "retransmits": -1,
        "jitter": stream.jitter_ns / SECOND_NS,
        "errors": errors,
        "omitted_errors": min(max(omitted - stream.omitted_received, 0), errors),
        "packets": packets,
        "omitted_packets": omitted,
        "start_time": 0,
        "end_time": elapsed_s,
    }


def framed(text: bytes) -> bytes:
    """Return JSON behind its length."""
    return struct.pack(">I", len(text)) + text


def length_of(head: bytes, most_bytes: int) -> int:
    """Return the length that a client announces; raises Unserved."""
    (length,) = struct.unpack(">I", head)
    if not 0 < length <= most_bytes:
        raise Unserved(f"JSON of {length} B: at most {most_bytes} B")
    return int(length)


def state(number: int) -> bytes:
    """Return a state as a client reads it."""
    return struct.pack("b", number)


def refusal() -> bytes:
    """Return the state of an error, and that it is a feature which is not there."""
    return state(SERVER_ERROR) + struct.pack(">II", UNIMPLEMENTED, 0)
