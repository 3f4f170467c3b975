"""What an iperf3 client asked for, what it and this host counted, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

QUIET_NS = 200 * 10**6
"""After the end of a test: so long nothing may come any more."""
SAMPLED_NS = 10**9
"""Between two samples of a test, at most: each takes CPU time from who receives."""
SENT_IN_ANY_CASE = {"gso_dg_size": "gso", "gso_bf_size": "gso", "gro_bf_size": "gro"}
"""A client's parameter → that which asks for it."""


@dataclass(frozen=True)
class ServedStream:
    """One UDP stream of a client, whose packets carry counters from 1 on."""

    number: int
    """The client's own; its place among the flows is that in ``ServedTest.streams``."""
    sent_packets: Optional[int]
    """As the client says at the end; up to 3.12 a send that failed counts, too."""
    received_packets: int
    """Each once."""
    read_packets: int
    """Also repeated ones."""
    highest: int
    """Counter that arrived."""
    late_packets: int
    """Received below the highest counter (RFC 4737)."""
    gap_packets: int
    """What iperf3's own server calls lost: counters left out, less one for each that came late or
    again; what is missing behind the highest is not in it."""
    jitter_ns: int
    """RFC 3550, by the kernel's times of arrival."""
    omitted_packets: Optional[int] = None
    """Sent in the client's first seconds, which it leaves out (``-O``)."""
    omitted_received: int = 0
    """Those of these packets that were not missing when these seconds were over here."""


@dataclass(frozen=True)
class ServedTest:
    """One test of a client."""

    client: str
    """Its address."""
    port: int
    """To which it sent."""
    interface: str
    """By which its greeting came."""
    asked: dict[str, Union[int, str]]
    """Its parameters by iperf3's names, those that this server knows."""
    ignored: tuple[str, ...]
    """Those that it asked for and that have no effect here."""
    streams: tuple[ServedStream, ...]
    ended: str = ""
    """Why it did not end as agreed; empty if it did."""
    hello_packets: int = 0
    """Greetings that came again during the test: outside of all counts."""

    @property
    def version(self) -> str:
        """The client's release; empty if it does not say."""
        return str(self.asked.get("client_version", ""))

    @property
    def sent_packets(self) -> Optional[int]:
        """What the client counts as sent; None if it did not say."""
        sent = [stream.sent_packets for stream in self.streams]
        return sum(n for n in sent if n is not None) if sent and None not in sent else None

    @property
    def known_sent(self) -> int:
        """What it sent at least: as it says, else up to the highest counters that arrived."""
        return sum(
            max(stream.sent_packets or 0, stream.highest, stream.received_packets)
            for stream in self.streams
        )
