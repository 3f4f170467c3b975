"""Stages at UDP and its sockets."""

from __future__ import annotations

from collections.abc import Mapping

from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import Also, Stage, at_most, counter, in_packets, of_workers
from udpbench.analysis.readings import CounterView, Readings, known_sum
from udpbench.model.limits import UDP_HEADER_BYTES

CHECKSUM = "{udp}InCsumErrors"
NO_PORTS = "{udp}NoPorts"
RCVBUF = "{udp}RcvbufErrors"
MEMORY = "{udp}MemErrors"
"""Since Linux 5.11."""
ERRORS = "{udp}InErrors"
SOCKET_DROPS = "socket.*.drops"
POLICY_IN = (
    *("xfrm.XfrmInPol*", "xfrm.XfrmInNoPols", "xfrm.XfrmInTmplMismatch"),
    *("xfrm.XfrmInStateMismatch", "xfrm.XfrmInHdrError", "xfrm.XfrmInBufferError"),
)
"""Refusals of the policy check before a socket (__xfrm_policy_check), each of another packet."""
POLICY_REASON = "XFRM_POLICY"
EARLY_CHECKSUM_BYTES = 76
"""UDP header and payload up to which a checksum is verified before the socket (net/core/skbuff.c:
CHECKSUM_BREAK); in longer datagrams it is verified at the read, and the socket counts them too."""
UNDIVIDED = ("udp_filter", "udp_memory")
"""Stages of which a kernel without MemErrors counts only the sum (docs/kernel.md, UDP memory)."""


def _udp_checksum(readings: CounterView) -> Span | None:
    wrong = readings.receiver.counter(CHECKSUM)
    return exactly(wrong) if wrong is not None else None


def _other_errors(readings: CounterView) -> int | None:
    """Return the receive errors other than full buffer, bad checksum and full memory.

    Without MemErrors those for full memory are among them.
    """
    errors, rcvbuf = readings.receiver.counter(ERRORS), readings.receiver.counter(RCVBUF)
    if errors is None or rcvbuf is None:
        return None
    others = readings.receiver.total(CHECKSUM, MEMORY) or 0
    return errors - rcvbuf - others


def _policy_skbs(readings: CounterView) -> int | None:
    """Return those of them that IPsec may have refused; None if there are and it counts none.

    Its counters are of the whole namespace, and of other protocols.
    """
    errors = _other_errors(readings)
    if not errors:
        return errors
    counted = readings.receiver.total(*POLICY_IN)
    return min(max(errors, 0), max(counted, 0)) if counted is not None else None


def _filter_skbs(readings: CounterView) -> int | None:
    """Return the errors that also IPsec does not explain."""
    errors = _other_errors(readings)
    return errors - (_policy_skbs(readings) or 0) if errors is not None else None


def _most_filtered(readings: CounterView) -> int | None:
    """Return the errors that a filter may have made: not those that the kernel says IPsec made."""
    errors = _other_errors(readings)
    refused = readings.receiver.total(f"reason.{POLICY_REASON}") or 0
    return errors - refused if errors is not None else None


_filtered_packets = in_packets("udp_filter", _filter_skbs, skbs.queued_skb)


def undivided_packets(readings: CounterView) -> Span | None:
    """Return how many packets ended at one of these two; None if it is known at which."""
    packets = _filtered_packets(readings)
    known = readings.receiver.counter(MEMORY) is not None
    return None if known or packets is None or packets.high <= 0 else packets


def _udp_filter(readings: CounterView) -> Span | None:
    either = undivided_packets(readings)
    return Span(0, either.high) if either is not None else _filtered_packets(readings)


def total_packets(ended: Mapping[str, Span], readings: CounterView) -> Span:
    """Return how many packets ended at some stages, each of them counted once."""
    each = sum(ended.values(), exactly(0))
    either = undivided_packets(readings)
    if either is None or not ended.keys() >= set(UNDIVIDED):
        return each
    return Span(each.low + either.low, each.high - either.high)


def _sockets_explained(readings: CounterView) -> int | None:
    fault = readings.receive.fault
    if fault is not None and fault.does == "exit":
        return 0  # the drops of the socket that it closed are gone with it
    return readings.receiver.counter(RCVBUF)


def _sockets_possible(readings: CounterView) -> int | None:
    others = readings.receiver.total(RCVBUF, CHECKSUM)
    return known_sum((_memory_skbs(readings), _other_errors(readings), others)) or 0


def _full_buffer_skbs(readings: CounterView) -> int | None:
    """Return the datagrams for which the traffic's sockets had no room.

    In the built-in lab no more than these dropped without another reason: a stranger may have a
    socket in its namespaces. A program may open sockets that are not known to be its own.
    """
    counted = readings.receiver.counter(RCVBUF)
    drops = readings.receiver.counter(SOCKET_DROPS)
    if counted is None or drops is None or drops >= counted:
        return counted
    if not readings.built_in_lab or readings.receiving.takes == "program":
        return counted
    if readings.within is not None and not full_buffers_of_others(readings.within):
        return counted  # the two are read one after the other
    if _own_drops(readings.whole) is None:  # one was closed, and its drops are gone
        return counted
    others = max(_other_errors(readings) or 0, 0) + _late_checksums(readings)
    return max(drops - others, 0)


def full_buffers_of_others(readings: CounterView) -> int:
    """Return the datagrams for which other sockets had no room; 0 where that is not known."""
    counted = readings.receiver.counter(RCVBUF) or 0
    return counted - (_full_buffer_skbs(readings) or 0)


def _memory_skbs(readings: CounterView) -> int | None:
    """Return the datagrams refused because all UDP sockets together held too much memory.

    Linux 6.18 counts them only at the socket (docs/kernel.md, UDP memory): they are its drops less
    full buffers, filters and late checksums. Without MemErrors those that SNMP counts are left out.
    """
    refused = readings.receiver.counter(MEMORY) or 0
    drops = readings.receiver.counter(SOCKET_DROPS)
    rcvbuf, filtered = readings.receiver.counter(RCVBUF), _other_errors(readings)
    if rcvbuf is None or filtered is None:
        return None
    if drops is None:
        return refused
    explained = rcvbuf + filtered + refused + _late_checksums(readings)
    return refused + max(drops - explained, 0)


def _late_checksums(readings: CounterView) -> int:
    return (readings.receiver.counter(CHECKSUM) or 0) if _verified_late(readings) else 0


def _verified_late(readings: CounterView) -> bool:
    """Return whether a bad checksum is found only when the datagram is read."""
    longest_bytes = readings.traffic.datagrams.longest_bytes
    return longest_bytes + UDP_HEADER_BYTES > EARLY_CHECKSUM_BYTES


def _most_in_full_memory(readings: CounterView) -> int | None:
    """Return at most how many datagrams to the traffic's sockets were refused for their memory.

    SNMP may not count them. Where it and the sockets agree to the packet, it did, or there are
    none; otherwise any drop of the sockets may be one.
    """
    refused, drops = readings.receiver.counter(MEMORY), _own_drops(readings)
    if refused is None:
        refused = max(_other_errors(readings) or 0, 0)
    if drops is None:
        return None if readings.receiver.workers else refused
    errors = readings.receiver.counter(ERRORS)
    if errors is None:
        return None
    early = 0 if _verified_late(readings) else readings.receiver.counter(CHECKSUM) or 0
    return refused if errors - early == drops else drops


def _own_drops(readings: CounterView) -> int | None:
    """Return the drops of the traffic's sockets; None without any, or if one was closed."""
    inodes = [inode for stats in readings.receiver.workers for inode in stats.socket_inodes]
    drops = [readings.receiver.counter(f"socket.{inode}.drops") for inode in set(inodes)]
    return known_sum(drops) if None not in drops else None


def socket_drops(readings: CounterView) -> tuple[tuple[str, ...], Span]:
    """Return stages that together are what the traffic's sockets dropped, and that number.

    ``sk_drops`` counts each of them, but a checksum only if it is verified at the read. No stages
    where a socket was closed, and its drops with it.
    """
    drops = _own_drops(readings)
    if drops is None:
        return (), exactly(0)
    stages = ("rx_policy", "udp_filter", "udp_rcvbuf", "udp_memory")
    late = ("udp_checksum",) if _verified_late(readings) else ()
    return (*late, *stages), Span(drops, drops * skbs.most_queued(readings))


def _udp_memory(readings: CounterView) -> Span | None:
    packets, either = _memory_packets(readings), undivided_packets(readings)
    return packets + Span(0, either.high) if packets is not None and either is not None else packets


_memory_packets = in_packets("udp_memory", _memory_skbs, skbs.queued_skb)


def _udp_purged(readings: Readings) -> Span | None:
    """Return the packets that were still queued when their socket was closed.

    None if a worker was to leave on purpose and did not count its queue, or if a program closed one
    of its sockets.
    """
    if readings.receiving.takes == "program" and _own_drops(readings) is None:
        return None
    fault = readings.receive.fault
    counted = any("purged_packets" in stats.counts for stats in readings.receiver.workers)
    if fault is not None and readings.phase.name == "measured" and not counted:
        return None
    return exactly(readings.receiver.count("purged_packets"))


ROWS = (
    Stage(
        name="udp_checksum",
        part="receiver",
        packets=_udp_checksum,
        source=f"Δ {CHECKSUM}",
        means="The UDP checksum was wrong.",
        most=counter("receiver", CHECKSUM),
        counters=(CHECKSUM,),
        reasons=("UDP_CSUM",),
        refuses=True,
        single_counter=True,
    ),
    Stage(
        name="udp_no_port",
        part="receiver",
        packets=in_packets("udp_no_port", counter("receiver", NO_PORTS), skbs.received_skb),
        source=f"Δ {NO_PORTS}",
        means="No socket was bound to that address and port.",
        most=at_most(counter("receiver", NO_PORTS)),
        counters=(NO_PORTS,),
        unit="skb",
        reasons=("NO_SOCKET",),
        no_other_reason=lambda _: True,
        refuses=True,
        single_counter=True,
        meant_by="unbound",
        changed_by=("addresses",),
    ),
    Stage(
        name="rx_policy",
        part="receiver",
        unprovoked="no policy of IPsec is made to lose packets",
        packets=in_packets("rx_policy", _policy_skbs, skbs.queued_skb),
        source=f"Δ {' + '.join(POLICY_IN)}, up to Δ {ERRORS} − Δ {RCVBUF} − Δ {CHECKSUM} − "
        f"Δ {MEMORY}",
        means="Refused by a policy of the receiver's IPsec.",
        most=at_most(_policy_skbs, skbs.most_queued),
        counters=(ERRORS, *POLICY_IN),
        unit="skb",
        parts="xfrm.XfrmIn*",
        reasons=(POLICY_REASON,),
        refuses=True,
        meant_by="rules",
        changed_by=("policies",),
    ),
    Stage(
        name="udp_filter",
        part="receiver",
        packets=_udp_filter,
        source=f"Δ {ERRORS} − Δ {RCVBUF} − Δ {CHECKSUM} − Δ {MEMORY} − rx_policy; without "
        "MemErrors up to so many",
        means="Dropped by a socket filter (SO_ATTACH_FILTER), or refused by UDP for its length.",
        most=at_most(_most_filtered, skbs.most_queued),
        counters=(ERRORS, MEMORY),
        unit="skb",
        reasons=("SOCKET_FILTER",),
        refuses=True,
        meant_by="filter",
    ),
    Stage(
        name="udp_rcvbuf",
        part="receiver",
        packets=in_packets("udp_rcvbuf", _full_buffer_skbs, skbs.queued_skb),
        source=f"Δ {RCVBUF}; in the built-in lab up to Δ {SOCKET_DROPS}",
        means="The socket's receive buffer was full: the application did not read fast enough.",
        most=at_most(counter("receiver", RCVBUF), skbs.most_queued),
        counters=(RCVBUF,),
        unit="skb",
        parts="socket.",
        also=(
            Also(
                name=f"Δ {SOCKET_DROPS}",
                reads=counter("receiver", SOCKET_DROPS),
                low=_sockets_explained,
                high=_sockets_possible,
                next_step="another socket in the namespace drops packets",
            ),
        ),
        reasons=("SOCKET_RCVBUFF",),
        no_other_reason=lambda _: True,
        single_counter=True,
    ),
    Stage(
        name="udp_memory",
        part="receiver",
        packets=_udp_memory,
        source=f"Δ {MEMORY} + the part of Δ {SOCKET_DROPS} that no other stage explains; without "
        "the first also up to what udp_filter has",
        means="All UDP sockets of the machine together exceeded net.ipv4.udp_mem.",
        most=at_most(_most_in_full_memory, skbs.most_queued),
        counters=(MEMORY,),
        unit="skb",
        reasons=("PROTO_MEM",),
        no_other_reason=lambda _: True,
        refuses=True,
    ),
    Stage(
        name="udp_purged",
        part="receiver",
        packets=of_workers(_udp_purged),
        source="purged_packets",
        means="Still queued when the socket was closed. No kernel counter shows that, so the "
        "process that closes a socket counts its queue first.",
        scope="worker",
        refuses=True,
    ),
)
