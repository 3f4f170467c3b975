"""Decides when receivers have drained: how long packets may be in flight after the last send.

Owns how long counts must not change, and how long a queue may stall. Pure: ``phase`` polls.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpbench.model import SECOND_NS, total_arrived
from udpbench.protocol import SampleReply

QUIET_NS = 200 * 10**6
POLLING_NS = SECOND_NS
"""How long to wait, after the last packet, for a queue's thread that is runnable but has no CPU.
Until it runs, up to 256 packets are in a veth's ring, where no counter shows them; a thread that
never sleeps looks the same."""
PROBE_QUIET_NS = 20 * 10**6
"""Quiet time of a probe of one flow once all its packets have arrived; else they may still come,
and would count as the next flow's. A guest on a busy host stands still for longer than this."""
FIRST_PACKET_FACTOR = 10
"""How much longer a path phase waits for its first packet: a queue whose CPU is busy may hold it
for longer than a quiet time, and no socket shows that."""
STALL_NS = 5 * SECOND_NS
"""How long a non-empty queue may stall, beyond the work on one batch."""


class Drain:
    """State of the receivers between polls, until counts stop changing and queues are empty.

    A slow reader with a long queue may take any time, as long as its counts grow.
    """

    def __init__(
        self,
        quiet_ns: int,
        batch_work_ns: int,
        *,
        needs_first: bool,
        now_ns: int,
        probed_packets: int = 0,
    ) -> None:
        self.stall_ns = STALL_NS + batch_work_ns
        self.queued_bytes = 0
        self._quiet_ns = quiet_ns
        self._needs_first = needs_first
        """Whether a first packet must come."""
        self._probed_packets = probed_packets
        self._all_arrived = probed_packets == 0
        self._read_packets: int | None = None
        self._moved_ns = self._busy_ns = now_ns

    def update(self, replies: Sequence[SampleReply], now_ns: int) -> None:
        """Process the replies of all receivers."""
        self.queued_bytes = sum(reply.queued_bytes or 0 for reply in replies)
        arrived = total_arrived(stats for reply in replies for stats in reply.stats)
        self._all_arrived = arrived.packets >= self._probed_packets
        if arrived.read_packets != self._read_packets:
            self._read_packets, self._moved_ns, self._busy_ns = arrived.read_packets, now_ns, now_ns
        polling = any(reply.polling for reply in replies)
        if self.queued_bytes > 0 or (polling and now_ns - self._moved_ns < POLLING_NS):
            self._busy_ns = now_ns

    @property
    def quiet_at_ns(self) -> int:
        """Time at which they have drained if nothing changes until then."""
        awaited = self._needs_first and self._read_packets == 0
        quiet_ns = self._quiet_ns * (FIRST_PACKET_FACTOR if awaited else 1)
        return self._busy_ns + (quiet_ns if self._all_arrived else max(quiet_ns, QUIET_NS))

    @property
    def stalled_at_ns(self) -> int:
        """Time at which they are given up if nothing changes until then."""
        return self._moved_ns + self.stall_ns
