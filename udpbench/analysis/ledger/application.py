"""Stages in the application, and of the answers that it sends."""

from __future__ import annotations

from udpbench.analysis.ledger import before_ip, ip, sender, sockets
from udpbench.analysis.ledger.intended_load import unanswered_packets
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.sockets import total_packets
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.readings import CounterView
from udpbench.analysis.worker_use import unlogged_packets
from udpbench.ways import read_of

ANSWERS_OUT = "{udp}OutDatagrams"
SNDBUF = "{udp}SndbufErrors"


def _app_truncated(readings: CounterView) -> Span | None:
    """Return the packets that were cut off; None if the way of reading cannot tell."""
    packets = readings.receiver.count("truncated_packets")
    unseen = "truncated_packets" in read_of(readings.receive).unseen
    return None if unseen and packets == 0 else exactly(packets)


def _app_unanswered(readings: CounterView) -> Span | None:
    """Return the packets that were read, and for which no answer was sent.

    ``OutDatagrams`` has no datagram that queue or device dropped within the call that sent it:
    those are ``SndbufErrors``, as are calls that found the socket's own buffer full
    (net/ipv4/udp.c, udp_send_skb). 0 where no answer is awaited.
    """
    if readings.traffic.answers is None:
        return exactly(0)
    left = readings.receiver.counter(ANSWERS_OUT)
    if left is None:
        return None
    dropped = lost_answers(readings)
    refused = sum(dropped[name].low for name in ("tx_qdisc", "tx_device") if name in dropped)
    sent = left + min(refused, readings.receiver.counter(SNDBUF) or 0)
    return exactly(max(_read_packets(readings) - sent, 0))


def _read_packets(readings: CounterView) -> int:
    """Return what the receivers read, within a phase by the kernel's count."""
    if readings.stats:
        return readings.receiver.worked("received_packets")
    return readings.receiver.counter("{udp}InDatagrams") or 0


def lost_answers(readings: CounterView) -> dict[str, Span]:
    """Return stage → the answers that ended there on their way back, as far as that is observable.

    The same expressions, with the hosts swapped. What a bridge lost is in ``link``,
    because it does not tell the two ways apart.
    """
    back = readings.way_back
    rows = (*sender.ROWS, *before_ip.ROWS, *ip.ROWS, *sockets.ROWS)
    ended = {row.name: row.packets(back) for row in rows if row.scope != "worker"}
    return {name: span for name, span in ended.items() if span is not None}


def _answer_lost(readings: CounterView) -> Span:
    if readings.traffic.answers is None:
        return exactly(0)
    return total_packets(lost_answers(readings), readings.way_back)


ROWS = (
    Stage(
        name="app_truncated",
        part="receiver",
        packets=_app_truncated,
        source="truncated_packets",
        means="Read, but longer than the application's buffer, so its end was lost.",
        # Read without a look at its length, a datagram that was cut off counts as received.
        most=lambda _: 0,
        scope="worker",
        parts="worker.truncated_packets",
        refuses=True,
    ),
    Stage(
        name="app_log",
        part="receiver",
        unprovoked="the receiving worker counts what its log had no room for",
        packets=lambda readings: exactly(unlogged_packets(readings)),
        # A program's datagrams are received once they are read.
        most=lambda _: 0,
        source="unlogged_packets + failed_packets",
        means="Read, but not written to the log: the disk was too slow for its ring, or a "
        "write failed.",
        scope="worker",
        parts="worker.unlogged_packets",
        refuses=True,
    ),
    Stage(
        name="app_unanswered",
        part="receiver",
        unprovoked="no answer is awaited",
        packets=_app_unanswered,
        source=f"read − Δ {ANSWERS_OUT} − what tx_qdisc and tx_device dropped of answers, up to "
        f"Δ {SNDBUF}",
        means="With traffic.answers: read, but not answered while answers were awaited.",
        most=unanswered_packets,
        counters=(ANSWERS_OUT,),
    ),
    Stage(
        name="answer_lost",
        part="sender",
        unprovoked="no answer is awaited",
        packets=_answer_lost,
        source="Σ stages from tx_qdisc to udp_memory, read with the hosts swapped",
        means="With traffic.answers: answered, but the answer did not reach the sender's worker. "
        "The stages of the return path are listed beside it.",
        most=unanswered_packets,
        unit="skb",
        parts="answers",
    ),
)
