"""Checks of the ledger: whether it balances, and whether counters of one place agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Literal

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.intended_load import (
    arrived,
    kept_packets,
    sent_packets,
    unanswered_packets,
)
from udpbench.analysis.ledger.ledger import (
    REASON_GROUPS,
    lost_at_any,
    make_ledger,
    occupied_stages,
    unobserved,
)
from udpbench.analysis.ledger.stage import Stage
from udpbench.analysis.ledger.stages import stages_of
from udpbench.analysis.readings import Readings
from udpbench.drivers import UNKNOWN, driver_of
from udpbench.model.limits import Part
from udpbench.model.record import Finding
from udpbench.model.result import Ledger

PASSING = ("{ip}InReceives", "link.{interface}.rx_packets", "link.{out}.tx_packets")


def hidden_refusals(readings: Readings) -> Iterator[Finding]:
    """Find packets that the sender's firewall refused in the middle of a call, which hides it.

    IP counts what a firewall or a queue refused (net/ipv4/ip_output.c, ip_send_skb). It counts a
    GSO message once, where EPERM counts packets, so the two cannot be compared.
    """
    partial = readings.sender.count("partial_calls")
    if not partial or readings.record.trial.send.gso != "off":
        return
    refused = readings.sender.count("eperm")
    queued = readings.sender.counter(skbs.QDISC_DROPS) or 0
    hidden = (readings.sender.counter("{ip}OutDiscards") or 0) - refused - queued
    if hidden > 0:
        yield Finding(
            "note",
            "the sender's firewall refused packets that were then sent again: tx_netfilter counts "
            f"only the {refused} that it refused for good",
            "tx_netfilter",
            f"{min(hidden, partial)} refusals",
            next_step="send.call: send reports each of them",
        )


def counter_backwards(readings: Readings) -> Iterator[Finding]:
    """Find a counter of a stage that decreased during the phase."""
    for stage in stages_of(readings):
        for host in stage.nodes(readings).hosts:
            for pattern in (*stage.counters, *stage.by_driver(readings)):
                if host not in readings.deltas:
                    continue
                for text in readings.deltas[host].went_backwards(readings.named(host, pattern)):
                    yield Finding(
                        "invalid",
                        f"a counter of stage {stage.name} went backwards",
                        host,
                        text,
                        "counters that never decrease",
                        "check whether the host rebooted or its driver was reset",
                    )


def silent_nodes(readings: Readings) -> Iterator[Finding]:
    """Find nodes in the middle that have an agent, and no counter of what passes them."""
    for host in readings.at("middle").hosts:
        if all(readings.of_host(host, pattern) is None for pattern in PASSING):
            yield Finding(
                "warning",
                "the node was reached, and tells nothing: what it loses is not told from what is "
                "lost beside it",
                host,
                "no counters of IP or of its interfaces",
                next_step="see that its agent may read /proc/net and rtnetlink, or leave it out: "
                "all of it is then link",
            )


def unaccounted(readings: Readings) -> Iterator[Finding]:
    """Find packets that no stage explains, or that counters of the traffic's own contradict."""
    remainder = make_ledger(readings).unaccounted
    if not remainder:
        return
    packets = f"{remainder:+d} packet{'s' * (abs(remainder) != 1)}"
    if remainder < 0 and not readings.record.built_in_lab:
        yield Finding(
            "invalid",
            "contradiction: the traffic's own counters report more losses than there were",
            "ledger",
            packets,
            "0",
            "check what else sends to the traffic's ports, and whether packets arrive twice",
        )
        return
    reasons = ", ".join(f"{skbs} × {name}" for name, skbs in unexplained_reasons(readings).items())
    step = "usual causes are foreign traffic and drops without a counter"
    if remainder > 0 and not readings.record.trial.explain:
        step = f"repeat with --set explain=true, which lists the kernel's reasons; {step}"
    else:
        step = f"check the ledger's sources; {step}"
    yield Finding(
        "invalid",
        "unaccounted: the ledger does not balance",
        "ledger",
        packets + (f": {reasons}" if reasons and remainder > 0 else ""),
        "within ±0",
        step,
    )


def unexplained_reasons(readings: Readings) -> dict[str, int]:
    """Return the kernel's drop reasons beyond what the stages have, in skbs, most first."""
    beyond: dict[str, int] = {}
    for end in readings.ends:
        moved = (end.by_name(f"{group}.*").items() for group in REASON_GROUPS)
        for name, skbs_dropped in chain.from_iterable(moved):
            known = sum(
                _most(stage, readings)
                for stage in stages_of(readings)
                if _counts(stage, end.part, name)
            )
            if skbs_dropped > known:
                short = name.rpartition(".")[2]
                beyond[short] = beyond.get(short, 0) + skbs_dropped - known
    return dict(sorted(beyond.items(), key=lambda item: -item[1]))


def _counts(stage: Stage, part: Part, counter: str) -> bool:
    return stage.part == part and counter.rpartition(".")[2] in stage.reasons


def _most(stage: Stage, readings: Readings) -> int:
    packets = stage.packets(readings)
    return packets.high if packets is not None else 0


def others_packets(readings: Readings) -> Iterator[Finding]:
    """Find stages whose counters moved for packets that were not the traffic's."""
    entries = make_ledger(readings).entries
    counted = [f"{entry.stage} {entry.others_packets}" for entry in entries if entry.others_packets]
    if counted:
        yield Finding(
            "note",
            "others' packets: counters of the hosts moved further than the traffic's losses "
            "explain",
            "ledger",
            ", ".join(counted),
            next_step="the affected stages are intervals; for exact values stop other traffic to "
            "these hosts",
        )


CABLE = "check cable, connectors and transceivers"
DAMAGES: dict[mac_frames.Damage, tuple[str, str]] = {
    "bits": ("with a wrong CRC, or cut", CABLE),
    "long": ("longer than it accepts", "check the MTU of every host and switch"),
    "length": ("of a wrong length", "check the MTU of every host and switch"),
    "internal": ("for an error of its MAC", "look for messages of the driver in dmesg"),
}
"""How frames were damaged → its words, and what helps."""


def damaged_frames(readings: Readings) -> Iterator[Finding]:
    """Find frames that came in damaged or too short, by the receivers' cards."""
    for host in readings.receiver.hosts:
        for damage, counters in mac_frames.damage_of(readings, host).items():
            value = _counted_by(readings, host, counters)
            if damage == "short":
                yield _short_frames(readings, value)
                continue
            how, step = DAMAGES[damage]
            what = f"the receiver's card dropped frames {how}; the traffic's are in stage link"
            yield Finding("warning", what, "link", value, "none", step)


def _counted_by(readings: Readings, host: str, counters: Mapping[str, int]) -> str:
    """Return how many frames which counters counted: ``7: rx_crc_errors of right's eth1``."""
    facts = readings.record.facts.get(host)
    whose = f"{host}'s {facts.interface}" if facts is not None else host
    names = ", ".join(name.rpartition(".")[2] for name in counters)
    return f"{sum(counters.values())} frames: {names} of {whose}"


def _short_frames(readings: Readings, value: str) -> Finding:
    """Return what frames below 64 B mean: they are intact, and may be the traffic's or not."""
    least, own = mac_frames.LEAST_FRAME_BYTES, mac_frames.least_frame_bytes(readings)
    what = f"the receiver's card counted frames shorter than {least} B"
    if own < least:
        return Finding(
            "warning",
            f"{what}; the traffic's, of {own} B if nobody pads them, may be among them",
            "link",
            value,
            "none",
            f"raise traffic.size by {least - own} B: a card may drop frames that a virtual switch "
            "did not pad",
        )
    return Finding(
        "note",
        f"{what}; none is the traffic's, whose shortest frames have {own} B",
        "link",
        value,
        next_step="they are usually ARP and the like that a virtual switch did not pad, which an "
        "emulated card counts and delivers",
    )


def lost_after_the_link(readings: Readings) -> Iterator[Finding]:
    """Find a loss that is the link's because no counter saw it, although everything came in."""
    if readings.record.built_in_lab:
        return
    ledger, sent = make_ledger(readings), sent_packets(readings)
    lost = lost_at_any(ledger, ("link", "rx_ring"))
    received = mac_frames.received_frames(readings)
    if received is None:
        received = readings.receiver.counter("link.{interface}.rx_packets")
    if "link" in unobserved(ledger) and lost.low and received is not None and received >= sent:
        yield Finding(
            "warning",
            "no counter explains the loss, so it is attributed to the link; but the receiver's "
            "card received as many packets as were sent",
            "link",
            f"{received} received, {lost.low} lost",
            f"fewer than {sent}",
            "look for something that drops packets before IP without counting them: nftables' "
            "netdev ingress, a generic XDP program; explain: true lists the kernel's reasons",
        )


def unknown_driver(readings: Readings) -> Iterator[Finding]:
    """Find a card whose own counters nobody has looked up, where a loss may be the card's."""
    if readings.record.built_in_lab:
        return
    ledger = make_ledger(readings)
    if not lost_at_any(ledger, ("link", "rx_ring")).high:
        return
    for facts in readings.receiver.facts:
        if driver_of(facts) is UNKNOWN:
            yield Finding(
                "note",
                "the driver is unknown: only the kernel's standard statistics are read, and a full "
                "ring cannot be observed",
                facts.host,
                facts.driver or "no driver",
                next_step="CONTRIBUTING.md says how to add a NIC driver",
            )


def counters_disagree(readings: Readings) -> Iterator[Finding]:
    """Find corroborating counters that contradict the ledger's own.

    Outside the built-in lab others move them, too.
    """
    for stage in stages_of(readings) if readings.record.built_in_lab else ():
        for also in stage.also:
            value = also.reads(readings)
            low, high = also.low(readings), also.high(readings)
            if value is None or low is None or high is None or low <= value <= high:
                continue
            name = stage.nodes(readings).display(also.name)
            limit = f"{low}" if low == high else f"{low} to {high}"
            value_text = f"{name} = {value}"
            yield Finding(
                "warning", "counters disagree", stage.name, value_text, limit, also.next_step
            )
    yield from _reasons_disagree(readings)
    yield from _reads_disagree(readings)


def _reasons_disagree(readings: Readings) -> Iterator[Finding]:
    """Compare a stage with the kernel's drop reasons, which count skbs: no more than packets."""
    for stage in stages_of(readings):
        if not stage.nodes(readings).has("reason"):
            continue
        packets = stage.packets(readings)
        dropped, portless = (
            stage.nodes(readings).total(*(f"{group}.{name}" for name in stage.reasons))
            for group in ("reason", "reason_portless")
        )
        if packets is None or dropped is None:
            continue
        more = dropped > packets.high and readings.record.built_in_lab
        none = not dropped and not portless and packets.low > 0
        if more or none:
            yield Finding(
                "warning",
                "counters disagree",
                stage.name,
                f"drop reason {' or '.join(stage.reasons)}: {dropped} skbs",
                f"{packets.low} packets" if none else f"at most {packets.high} packets",
                "either other traffic in the namespace was dropped, too, or no counter sees this "
                "drop",
            )


def _reads_disagree(readings: Readings) -> Iterator[Finding]:
    """Compare what workers read with InDatagrams, which counts at the read, not at the queue.

    The kernel counts merged datagrams once per skb. A worker that leaves on purpose reads its queue
    to count it, so those reads are added.
    """
    if readings.receiving.takes == "frames":
        return  # UDP sees none of them
    counted = readings.receiver.counter("{udp}InDatagrams")
    arrivals = arrived(readings)
    taken = arrivals.read_messages if readings.record.trial.receive.gro else arrivals.read_packets
    if counted is None or taken is None or not readings.receiver.workers:
        return
    read = taken + readings.receiver.count("purged_messages")
    if read - readings.receiver.count("overdue_packets") <= counted <= read:
        return  # counted before the last of them were read
    if counted < read or (readings.record.built_in_lab and counted != read):
        yield Finding(
            "warning",
            "counters disagree",
            "receiver",
            f"read {read}, InDatagrams {counted}",
            "equal",
            "another socket in the namespace received packets, or a worker miscounted",
        )


def surplus_answers(readings: Readings) -> Iterator[Finding]:
    """Find more answers than datagrams that were read: some has several, and some may have none.

    What the kernel counts as read, but the last count of the reads did not have, was late: packets
    may wait in a ring whose CPU others use.
    """
    surplus = -unanswered_packets(readings)
    if surplus <= 0:
        return
    counted, read = readings.receiver.counter("{udp}InDatagrams"), arrived(readings).read_packets
    if counted is not None and counted - read >= surplus:
        yield Finding(
            "invalid",
            "datagrams were read after the last count, so loss is unknown",
            "receiver",
            f"{counted - read} more",
            "0",
            "stop what uses CPUs of the load, then repeat",
        )
        return
    yield Finding(
        "invalid",
        "more answers came back than datagrams were read, so loss is unknown",
        "receiver",
        f"{surplus} more",
        "one for each datagram",
        "have the program answer each datagram once, or omit traffic.answers",
    )


def path_check_losses(readings: Readings) -> Iterator[Finding]:
    """Find packets of the path check that were lost although all were expected to arrive."""
    path = readings.path
    if path is None or readings.record.trial.path_check != "arrive":
        return
    sent, received = sent_packets(path), kept_packets(path)
    if received >= sent or not path.receiver.workers:
        return
    yield replace(
        path_losses("warning", received, sent, make_ledger(path)),
        limit="all, because they are few and nothing else is sent",
    )


def path_losses(
    severity: Literal["warning", "invalid"], received: int, sent: int, ledger: Ledger
) -> Finding:
    """Return how many packets of the path check arrived, and where the rest ended."""
    stages = occupied_stages(ledger)
    unseen = "repeat with --set explain=true, which lists the kernel's drop reasons"
    placed = bool(stages) and not stages.startswith("unaccounted")
    return Finding(
        severity,
        f"path check: {received} of {sent} packets arrived",
        "path",
        stages or "no counter shows where the rest ended",
        next_step="see docs/ledger.md for what helps at each stage" if placed else unseen,
    )
