"""What an iperf3 client is told, and how its own numbers differ from what was counted here; pure.

The packets of a client are counted by their counters, each once, so that a loss at the end, a
packet that came late and a packet that came twice are known for what they are. iperf3's own server
knows them by gaps alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from udpbench.analysis.ledger.ledger import OR, intervals, lost_by_place
from udpbench.model.limits import BEFORE_HOST, SECOND_NS
from udpbench.model.record import Finding, TrialRecord
from udpbench.model.result import UNKNOWN, Bottleneck, Result
from udpbench.model.served import ServedTest
from udpbench.units import plural, show_count, show_percent

AHEAD = "before this host, or never sent"
BURST_SHARE = 0.5
"""Part of the packets, in so few of the milliseconds, from which on a client sends in bursts."""
BURST_TIME = 0.1
OLD = re.compile(r"3\.[01]\b")
OWN_WORDS = (
    ("receive.buffer", "the client's -w (SO_RCVBUF, up to net.core.rmem_max)"),
    ("receive.gro true", "UDP_GRO"),
    ("receive.sockets reuseport", "SO_REUSEPORT"),
)
"""Keys of an experiment, which a client does not have → what it has."""


def of_client(record: TrialRecord, diagnosis: tuple[Bottleneck, ...]) -> tuple[Bottleneck, ...]:
    """Return what limits a test in words that its client can act on; others are left as they are.

    It has no keys of an experiment, and nothing is known of who sent.
    """
    if record.served is None:
        return diagnosis
    replaced = []
    for each in diagnosis:
        remedy = each.remedy
        for key, own in OWN_WORDS:
            remedy = remedy.replace(key, own)
        replaced.append(replace(each, remedy=remedy, test="", sets=()))
    return tuple(replaced)


def served_findings(record: TrialRecord) -> tuple[Finding, ...]:
    """Return what a reader must know of a client's test; empty without one."""
    return tuple(_findings(record, record.served)) if record.served is not None else ()


def _findings(record: TrialRecord, served: ServedTest) -> Iterator[Finding]:
    client = f"client {served.client}"
    if served.ended:
        what = f"the client did not end its test: {served.ended}"
        yield Finding("warning", what, client, "", "", "what it sent beyond is not known")
    if served.ignored:
        named = ", ".join(served.ignored)
        yield Finding("note", "the client asked for what has no effect here", client, named)
    granted = [each.buffer_bytes for phase in record.phases[-1:] for each in phase.stats]
    if served.asked.get("window") and any(granted):
        value = f"{show_count(max(each or 0 for each in granted) // 2)} B"
        yield Finding("note", "its -w gave each socket a receive buffer", client, value)
    if served.sent_packets is None and not served.ended:
        yield Finding("warning", "the client does not say how many packets it sent", client)
    own = own_number(served)
    if own:
        yield Finding("note", own, client)
    bursts = burst_text(record)
    if bursts:
        yield Finding("note", bursts, client)


def own_number(served: ServedTest) -> str:
    """Return what iperf3's own server would call lost, if it differs, and why; else empty."""
    streams = served.streams
    sent, highest = served.known_sent, sum(stream.highest for stream in streams)
    lost = sent - sum(stream.received_packets for stream in streams)
    gaps = sum(stream.gap_packets for stream in streams)
    hidden = lost - (sent - highest) - gaps
    causes = []
    if sent > highest:
        causes.append(f"{show_count(sent - highest)} behind the last that arrived are not in it")
    if hidden > 0:
        causes.append(f"packets that came twice hide {show_count(hidden)}")
    omitted = sum(stream.omitted_packets or 0 for stream in streams)
    if omitted:
        causes.append(f"{_packets(omitted)} of the first seconds are left out (-O)")
    if gaps == lost and not omitted:
        return ""
    return (
        f"iperf3's own server would count {show_count(gaps)} of {show_count(highest)} as lost, "
        f"where {show_count(lost)} of {show_count(sent)} are: {'; '.join(causes) or 'by its gaps'}"
    )


def burst_text(record: TrialRecord) -> str:
    """Return how the client's packets came if it was in bursts; empty if not, or not known."""
    per_ms = [n for sample in record.series for n in sample.packets_per_ms]
    while per_ms and not per_ms[-1]:
        per_ms.pop()
    total = sum(per_ms)
    if len(per_ms) < SECOND_NS // 10**7 or total < len(per_ms):
        return ""
    most_first = sorted(per_ms, reverse=True)
    few = most_first[: max(int(len(per_ms) * BURST_TIME), 1)]
    if sum(few) < BURST_SHARE * total:
        return ""
    version = record.served.version if record.served is not None else ""
    why = " (iperf3 before 3.2 sends every 100 ms)" if OLD.match(version) else ""
    return (
        f"it sends in bursts{why}: {show_percent(sum(few) / total)} of the packets came in "
        f"{show_percent(len(few) / len(per_ms))} of the milliseconds, up to "
        f"{show_count(most_first[0])} in one"
    )


def answer(record: TrialRecord, result: Result) -> str:
    """Return where a test's packets ended, in a sentence: what its client is shown."""
    ledger = result.ledger
    if ledger is None or record.served is None:
        return "nothing is known of where packets ended"
    sent, received = ledger.intended_packets, ledger.received_packets
    if not sent:
        return "no packet came, and the client says of none that it sent it"
    known = f"{show_count(sent)}{' that are known' if record.served.ended else ''}"
    if sent == received:
        return f"lost none of {known}"
    places = lost_by_place(ledger)
    causes = {each.stage: each for each in reversed(result.diagnosis)}
    parts = [
        _part(place, packets, causes.get(place), result)
        for place, packets in sorted(places.items(), key=lambda item: -item[1])
    ]
    if ledger.unaccounted:
        parts.append(f"{show_count(ledger.unaccounted)} unaccounted")
    return f"lost {show_count(sent - received)} of {known}: {'; '.join(parts)}"


def _part(place: str, packets: int, cause: Bottleneck | None, result: Result) -> str:
    if place == BEFORE_HOST:
        return f"{show_count(packets)} {AHEAD}"
    at = place.replace(BEFORE_HOST, AHEAD)
    if OR in place and result.ledger is not None:
        spans = intervals(result.ledger, place)
        most = [f"{stage} up to {show_count(s.high)}" for stage, s in spans.items() if s.high]
        at = f"{AHEAD}, or here ({', '.join(m for m in most if BEFORE_HOST not in m)})"
        return f"{show_count(packets)} {at}"
    why = f": {cause.what}" if cause is not None and cause.name != UNKNOWN else ""
    return f"{show_count(packets)} at {at}{why}"


def _packets(number: int) -> str:
    return plural(number, "packet")
