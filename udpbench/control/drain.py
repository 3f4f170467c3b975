"""Decides when receivers have drained: how long packets may be in flight after the last send.

Owns how long counts must not change, how long a queue may stall, and which packets cannot be those
of the phase. Pure: ``phase`` polls.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Arrived, total_arrived
from udpbench.protocol import SampleReply

QUIET_NS = 200 * 10**6
POLLING_NS = SECOND_NS
"""How long to wait, after the last packet, for a queue's thread that is runnable but has no CPU.
Until it runs, up to 256 packets are in a veth's ring, where no counter shows them; a thread that
never sleeps looks the same."""
PROBE_QUIET_NS = 20 * 10**6
"""Quiet time of a path phase once all its packets have arrived; else they may still come, and would
count as the next phase's. A guest on a busy host stands still for longer than this."""
KNOWN_QUIET_NS = 30 * 10**6
"""The same of other phases once every packet has arrived or was dropped by a receiving socket. What
still comes are repeated packets."""
FIRST_PACKET_FACTOR = 10
"""How much longer a path phase waits for its first packet: a queue whose CPU is busy may hold it
for longer than a quiet time, and no socket shows that."""
STALL_NS = 5 * SECOND_NS
"""How long a non-empty queue may stall, beyond the work on one batch."""
DRAIN_NS = 600 * SECOND_NS
"""For all of it, beyond twice the work that was asked for: a host that lies about its queue, and
reads a packet now and then, would else be waited for without end."""
FLIGHT_NS = 9 * SECOND_NS
"""How long packets may be in flight, sent and in no receiver's queue yet. With a second to hear who
sends, a stranger is an error after ten."""
SKB_BYTES = 512
"""A queued message takes no less: struct sk_buff and skb_shared_info alone are 552 bytes (Linux
6.1)."""
QUEUE_PACKETS = (2**31 - 1) // SKB_BYTES
"""The most that a socket can hold: its memory is counted by an int."""


class Drain:
    """State of the receivers between polls, until counts stop changing and queues are empty.

    A slow reader with a long queue may take twice its work, and DRAIN_NS, as long as its counts
    grow. Queues are read in order: once as many messages were read as a queue held, none of these
    is left.
    """

    def __init__(
        self,
        quiet_ns: int,
        batch_work_ns: int,
        *,
        work_ns: int = 0,
        readers: int = 1,
        needs_first: bool,
        now_ns: int,
        sent_packets: int,
        probes: bool = False,
        own_alone: bool = False,
        ends_once: bool = True,
    ) -> None:
        self.stall_ns = STALL_NS + batch_work_ns
        queued_packets = min(sent_packets, readers * QUEUE_PACKETS)
        self.limit_ns = DRAIN_NS + 2 * work_ns * queued_packets
        self.end_ns = now_ns + self.limit_ns
        """Time at which they are given up, whatever is read."""
        self.queued_bytes = 0
        self.arrived = Arrived(0, 0, 0, None)
        self.is_strange = False
        """Packets arrive that no queue held when those in flight had arrived."""
        self.told_apart = False
        """Foreign packets are counted by themselves; truncated ones may be anybody's."""
        self._quiet_ns = quiet_ns
        self._needs_first = needs_first
        """Whether a first packet must come."""
        self._sent_packets = sent_packets
        self._probes = probes
        """Whether they are few and all meant to arrive."""
        self._ends_once = ends_once
        """Whether nothing more can come once as many have ended as were sent."""
        self._all_arrived = self._all_known = False
        self._own_alone = own_alone
        """Whether others' packets may still arrive, where they are told apart."""
        self._foreign_packets = 0
        self._awaited_packets: int | None = None
        self._read_packets: int | None = None
        self._read_ns = self._moved_ns = self._busy_ns = now_ns
        self._queue_end: int | None = None
        """Messages read once the queues of when the awaited packets came last have been read."""
        self.wait_on(now_ns)

    def wait_on(self, now_ns: int) -> None:
        """Take what arrives for packets in flight, once more."""
        self.is_strange = False
        self._flight_end_ns = now_ns + FLIGHT_NS
        self._flight_end: int | None = None
        """Messages read once the queues at the end of the flight have been read."""
        self._rated: tuple[int, int] | None = None

    def update(self, replies: Sequence[SampleReply], now_ns: int) -> None:
        """Process the replies of all receivers."""
        self.queued_bytes = sum(reply.queued_bytes or 0 for reply in replies)
        stats = [each for reply in replies for each in reply.stats if each.role == "receiver"]
        self.told_apart = all(
            "foreign_packets" in each.counts and not each.counts.get("truncated_packets")
            for each in stats
        )
        self.arrived = arrived = total_arrived(stats)
        self._all_arrived = arrived.packets >= self._sent_packets
        foreign_packets = arrived.read_packets - arrived.own_packets
        dropped_packets = sum(reply.dropped_packets or 0 for reply in replies)
        known_packets = arrived.packets + (dropped_packets if foreign_packets == 0 else 0)
        self._all_known = self.told_apart and known_packets >= self._sent_packets > 0
        is_foreign = foreign_packets != self._foreign_packets or not self.told_apart
        self._foreign_packets = foreign_packets
        if arrived.read_packets != self._read_packets:
            self._read_packets, self._read_ns = arrived.read_packets, now_ns
        read = arrived.read_packets if arrived.read_messages is None else arrived.read_messages
        # A queue may be read by each of several workers, and be any one's.
        queue_end = read + len(stats) * -(-self.queued_bytes // SKB_BYTES)
        awaited = arrived.own_packets if self._own_alone else arrived.read_packets
        moved = awaited != self._awaited_packets
        if moved:
            self._awaited_packets, self._queue_end = awaited, None
            self._moved_ns = self._busy_ns = now_ns
        elif (
            self._queue_end is None
            # An empty queue has no end: what a starved thread still brings to it is waited for.
            and self.queued_bytes > 0
            and now_ns - self._moved_ns >= self._needed_quiet_ns
        ):
            self._queue_end = queue_end
        is_past = self._queue_end is not None and read >= self._queue_end
        polling = any(reply.polling for reply in replies)
        if (self.queued_bytes > 0 and not is_past) or (
            polling and now_ns - self._moved_ns < POLLING_NS
        ):
            self._busy_ns = now_ns
        self._find_strangers(now_ns, read, queue_end, moved=moved, is_foreign=is_foreign)

    def _find_strangers(
        self, now_ns: int, read: int, queue_end: int, *, moved: bool, is_foreign: bool
    ) -> None:
        if self._rated is None and now_ns >= self._flight_end_ns - SECOND_NS:
            self._rated = now_ns, self.arrived.read_packets
        if now_ns < self._flight_end_ns:
            return
        if self._flight_end is None:
            self._flight_end = queue_end
        elif moved and (read > self._flight_end or (is_foreign and not self.may_be_own)):
            self.is_strange = not (self._own_alone and self.told_apart)

    @property
    def may_be_own(self) -> bool:
        """Whether some of what was sent may still arrive."""
        if self.told_apart:
            return not self._all_arrived
        return self.arrived.own_packets <= self._sent_packets

    def pps(self, now_ns: int) -> int:
        """Return how many packets a second were read lately."""
        if self._rated is None or now_ns <= self._rated[0]:
            return 0
        since_ns, packets = self._rated
        return (self.arrived.read_packets - packets) * SECOND_NS // (now_ns - since_ns)

    @property
    def _needed_quiet_ns(self) -> int:
        if self._ends_once and self._sent_packets > 0:
            if self._probes and self._all_arrived:
                return min(self._quiet_ns, PROBE_QUIET_NS)
            if not self._probes and self._all_known:
                return min(self._quiet_ns, KNOWN_QUIET_NS)
        awaited = self._needs_first and self.arrived.own_packets == 0
        quiet_ns = self._quiet_ns * (FIRST_PACKET_FACTOR if awaited else 1)
        return quiet_ns if self._all_arrived or not self._probes else max(quiet_ns, QUIET_NS)

    @property
    def quiet_at_ns(self) -> int:
        """Time at which they have drained if nothing changes until then."""
        return self._busy_ns + self._needed_quiet_ns

    @property
    def stalled_at_ns(self) -> int:
        """Time at which they are given up if nothing is read until then."""
        return self._read_ns + self.stall_ns
