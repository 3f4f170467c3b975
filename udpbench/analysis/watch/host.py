"""A watched host between two looks: what each stage takes, and what each socket loses.

Pure. No sender is known, so nothing is `sent` and nothing balances: a stage has what its counters
say of all traffic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from udpbench.analysis.delta import Deltas, deltas
from udpbench.analysis.ledger.sockets import UNDIVIDED, undivided_packets
from udpbench.analysis.ledger.stages import BEFORE_PROGRAM, STAGES
from udpbench.analysis.motion import (
    SINGLE,
    SKEW_NS,
    CpuShare,
    cpu_shares,
    passing,
    stage_packets,
)
from udpbench.analysis.queue_counters import QueueUse, queue_uses
from udpbench.analysis.readings import FAMILIES, CounterView, Nodes, Readings, known_sum
from udpbench.analysis.remedies import at_each
from udpbench.analysis.watch.history import HostState
from udpbench.analysis.watch.sockets import SocketLoss, losses_by_socket
from udpbench.model.experiment import Receive, Traffic
from udpbench.model.host import Facts
from udpbench.model.limits import LEDGER_STAGES, SECOND_NS, stages_after
from udpbench.model.record import UNBOUND, OtherNamespace, total_arrived
from udpbench.model.result import Ledger, LedgerEntry

DEVICE_STAGES = ("rx_ring", "rx_xdp", "rx_backlog", "rx_tc")
"""Counted by interface."""
LATER_STAGES = stages_after("rx_tc")
"""Counted by IP version."""
WATCHED_STAGES = BEFORE_PROGRAM
"""Those of a host of which it is not known who sends to it, nor what its programs do."""
EITHER = " or ".join(UNDIVIDED)
"""A loss at one of these two, where the kernel counts only their sum."""
SOCKET_STAGES = ("rx_policy", "udp_filter", "udp_rcvbuf", "udp_memory", EITHER)
"""Where packets end that have reached a socket."""
BY_DEVICE = {"fwd_qdisc": "qdisc.{}.drops", "fwd_device": "link.{}.tx_dropped"}
"""Stage of a host that forwards → its counter of an interface, with what the host itself sends."""
ROUTED = tuple(stage for stage in STAGES if stage.name in ("fwd_mtu", "fwd_netfilter"))
"""The same by IP version."""
FORWARDING = (*BY_DEVICE, *(stage.name for stage in ROUTED))
NOT_LOST = tuple(stage.name for stage in STAGES if stage.meant_by == "unbound")
"""What anybody may send to a host, and no socket of it misses."""
GONE = "is gone: its counters end there"
"""What is said of an interface that was removed, or taken down."""
HELPS = {stage.name: stage.helps.replace("receive.buffer", "SO_RCVBUF") for stage in STAGES}
"""For another's application, which has no keys of an experiment."""
HELPS["udp_no_port"] += (
    "; the counter names no port: where the host answers with ICMP, tcpdump -nni any "
    "'icmp[0] = 3 and icmp[1] = 3' shows it, and --port counts a single one"
)
COMMANDS = re.compile(r"\b(?=(?:iptables|ip|nft|tc|tcpdump|wg) [-a-z])")
"""Where a command of such advice begins that shows something of its network namespace alone."""


@dataclass(frozen=True)
class StageLoss:
    """What one stage takes now, and has taken since the first look: at least so many packets."""

    stage: str
    """Or ``EITHER``."""
    pps: float
    packets: int
    where: str = ""
    """The interface, of stages before the IP layer."""


@dataclass(frozen=True)
class LiveHost:
    """A host between two looks."""

    host: str
    elapsed_ns: int
    """Since the first look."""
    received_pps: float
    """Packets of every protocol that entered the IP layer."""
    read_pps: float
    """UDP datagrams that applications read (InDatagrams)."""
    stages: tuple[StageLoss, ...]
    """In the packet's order, those that took one since the first look."""
    sockets: tuple[SocketLoss, ...]
    """Those that are watched, the worst first."""
    ended: int
    ended_dropped: int
    unlisted: int
    """Packets that ended at sockets which no look listed; 0 where not all are watched."""
    queues: tuple[QueueUse, ...]
    seconds: float
    """Between the two looks, as those of queues and CPUs are counted."""
    cpus: Mapping[int, CpuShare]
    namespaces: tuple[OtherNamespace, ...]
    exact: bool
    forwarded_pps: float
    """Packets of every protocol that were forwarded."""
    lost: bool
    """A watched socket, or a stage before it, lost a packet since the first look."""
    unwatched: tuple[str, ...] = ()
    """Stages whose packets are no loss of what is watched."""
    gone: tuple[str, ...] = ()
    """Interfaces that were removed or taken down since the first look: their counters end there."""
    unbound_packets: int = 0
    """Packets to the watched port without a socket, if that is counted; else to any such port,
    while the watched one had none at two looks in a row."""
    enter: str = ""
    """What to type before a command so that it runs in the watched network namespace."""

    @cached_property
    def losing(self) -> tuple[SocketLoss, ...]:
        """Return the sockets that dropped packets between the two looks."""
        return tuple(loss for loss in self.sockets if loss.dropped_pps)

    @property
    def losing_now(self) -> bool:
        """Whether any socket, or a stage before it, lost a packet between the two looks."""
        return bool(self.losing) or any(loss.pps for loss in self.stages)

    @property
    def chosen(self) -> bool:
        """Whether only some of the namespace's sockets are watched."""
        return bool({*SOCKET_STAGES} & {*self.unwatched})

    @property
    def others_dropped(self) -> int:
        """Return the packets that ended at sockets which are not watched."""
        if not self.chosen:
            return 0
        return _unlisted(self.stages, self.sockets, self.ended_dropped)

    @property
    def read_apart(self) -> bool:
        """Whether stages and sockets differ by what was lost between the readings of both alone."""
        counted = sum(loss.packets for loss in self.stages if loss.stage in SOCKET_STAGES)
        listed = sum(loss.dropped for loss in self.sockets) + self.ended_dropped
        if not counted or counted == listed or self.unlisted or self.others_dropped:
            return False
        # At the first look, and at this.
        lost_pps = listed * SECOND_NS / max(self.elapsed_ns, 1)
        lost_pps += sum(loss.dropped_pps for loss in self.sockets)
        return abs(counted - listed) <= lost_pps * SKEW_NS / SECOND_NS

    def helps_at(self, stages: Sequence[str]) -> str:
        """Return what helps against a loss at a stage, or at each of which it may be any."""
        return at_each({stage: self.helps[stage] for stage in stages if stage in self.helps})

    @cached_property
    def helps(self) -> dict[str, str]:
        """Return stage → what helps; none where each reader that loses has its own help."""
        named = {stage for loss in self.stages for stage in loss.stage.split(" or ")}
        named |= {stage for loss in self.sockets for stage in loss.stages}
        losing = [loss for loss in self.sockets if loss.dropped]
        own = {stage for loss in losing if loss.reader_helps for stage in loss.stages}
        own -= {stage for loss in losing if not loss.reader_helps for stage in loss.stages}
        lacking = [stage for stage in LEDGER_STAGES if stage in named - own]
        return {stage: COMMANDS.sub(lambda _: self.enter, HELPS[stage]) for stage in lacking}


def live_host(
    first: HostState,
    before: HostState,
    now: HostState,
    facts: Mapping[str, Facts],
    earlier: LiveHost | None = None,
    port: int | None = None,
    enter: str = "",
) -> LiveHost:
    """Return the host between two looks.

    ``facts`` are by interface. ``earlier`` is what was said before of the reasons of sockets;
    ``port`` is the only one that is watched. ``enter`` is what begins a command in its namespace.
    """
    lately, ever = deltas(before.snapshot, now.snapshot), deltas(first.snapshot, now.snapshot)
    seconds = max(lately.elapsed_ns, 1) / SECOND_NS
    known = earlier.sockets if earlier is not None else None
    limits = (each.limits.get("net.core.rmem_max") for each in facts.values())
    limit_bytes = next((limit for limit in limits if limit is not None), None)
    sockets = losses_by_socket(before, now, lately, ever, known, port, limit_bytes)
    stages = stage_losses(lately, ever, now.interfaces, facts, seconds)
    gone = _gone(before, now, earlier)
    went = frozenset(gone)
    stages += tuple(
        replace(loss, pps=0.0)
        for loss in (earlier.stages if earlier is not None else ())
        if loss.where in went
    )
    if "udp_memory" not in [loss.stage for loss in stages]:
        stages += _in_memory(sockets)
    alone = now.watched is not None or port is not None
    unwatched = (*((*SOCKET_STAGES, *FORWARDING) if alone else ()), *NOT_LOST)
    unbound_packets = earlier.unbound_packets if earlier is not None else 0
    if port is not None and UNBOUND in ever.values:
        unbound_packets = ever.values[UNBOUND] or 0
    elif port is not None and not (_is_bound(port, before) or _is_bound(port, now)):
        unbound_packets += round(seconds * sum(e.pps for e in stages if e.stage in NOT_LOST))
    ended, ended_dropped = now.ended, now.ended_dropped
    if port is not None:
        ended, ended_dropped = now.ended_at.get(port, (0, 0))
    return LiveHost(
        host=lately.host,
        elapsed_ns=ever.elapsed_ns,
        received_pps=_sum(lately, "{ip}InReceives") / seconds,
        read_pps=_sum(lately, "{udp}InDatagrams") / seconds,
        stages=stages,
        sockets=sockets,
        ended=ended,
        ended_dropped=ended_dropped,
        unlisted=_unlisted(stages, sockets, ended_dropped) if not alone else 0,
        queues=tuple(_queues(lately, now.interfaces, facts)),
        seconds=seconds,
        cpus=cpu_shares(lately),
        namespaces=now.namespaces,
        exact=now.counts is not None,
        forwarded_pps=_forwarded(lately) / seconds,
        lost=any(loss.packets for loss in stages if loss.stage not in unwatched)
        or ended_dropped > 0
        or unbound_packets > 0
        or any(loss.dropped for loss in sockets),
        unwatched=unwatched,
        gone=gone,
        unbound_packets=unbound_packets,
        enter=enter,
    )


def _queues(
    lately: Deltas, interfaces: Collection[str], facts: Mapping[str, Facts]
) -> Iterator[QueueUse]:
    """Yield the queues of interfaces that did something."""
    there = frozenset(interfaces)
    for name in facts:
        if name in there:
            with _readings(lately, 4, {lately.host: facts[name]}) as readings:
                for use in queue_uses(readings):
                    if use.packets or use.drops or use.interrupts:
                        yield replace(use, host=facts[name].interface)


def _gone(before: HostState, now: HostState, earlier: LiveHost | None) -> tuple[str, ...]:
    """Return the interfaces that are not there any more, in the order in which they went."""
    known = (*(earlier.gone if earlier is not None else ()), *before.interfaces)
    there = frozenset(now.interfaces)
    return tuple(name for name in dict.fromkeys(known) if name not in there)


def _unlisted(
    stages: Collection[StageLoss], sockets: Collection[SocketLoss], ended_dropped: int
) -> int:
    """Return what sockets dropped that are not listed: of all, those that lived between two looks.

    Their stages were read a moment after those that are listed: a few packets are of these.
    """
    counted = sum(loss.packets for loss in stages if loss.stage in SOCKET_STAGES)
    if not counted:
        return 0
    listed = sum(loss.dropped for loss in sockets) + ended_dropped
    passing_by = sum(loss.dropped_pps for loss in sockets) * SKEW_NS / SECOND_NS
    return counted - listed if counted - listed > passing_by else 0


def _is_bound(port: int, state: HostState) -> bool:
    return any(each.port == port for each in state.sockets.values())


def _sum(delta: Deltas, pattern: str) -> int:
    named = (pattern.replace(*item) for names in FAMILIES.values() for item in names.items())
    return known_sum(delta.values.get(name) for name in named) or 0


def stage_losses(
    lately: Deltas,
    ever: Deltas,
    interfaces: Collection[str],
    facts: Mapping[str, Facts],
    seconds: float,
) -> tuple[StageLoss, ...]:
    """Return the stages that took a packet.

    One read as a difference of counters counts only beyond what came while they were read.
    """
    losses: dict[tuple[str, str], tuple[float, int]] = {}
    places: list[tuple[str, Literal[4, 6], Mapping[str, Facts]]] = [
        (name, 4, {ever.host: facts[name]}) for name in interfaces if name in facts
    ]
    places += [("", family, {}) for family, ip in FAMILIES.items() if _came(ever, ip["{ip}"])]
    for where, family, known in places:
        stages, rates = DEVICE_STAGES if where else LATER_STAGES, {}
        with _readings(ever, family, known) as whole:
            lost = {
                stage: packets
                for stage, packets in _ended(whole, stages).items()
                if packets > (0 if stage in SINGLE else passing(whole))
            }
            if lost:
                with _readings(lately, family, known, whole) as late:
                    rates = _ended(late, lost)
        for stage, packets in lost.items():
            pps, more = losses.get((stage, where), (0.0, 0))
            losses[stage, where] = pps + rates.get(stage, 0) / seconds, more + packets
    if _forwarded(ever):
        for stage, where, pps, packets in _on_the_way_through(lately, ever, interfaces, seconds):
            losses[stage, where] = pps, packets
    order = {stage: place for place, stage in enumerate(LEDGER_STAGES)}
    order[EITHER] = order[UNDIVIDED[0]]
    return tuple(
        StageLoss(stage, pps, packets, where)
        for (stage, where), (pps, packets) in sorted(
            losses.items(), key=lambda item: (order[item[0][0]], item[0][1])
        )
    )


def _forwarded(delta: Deltas) -> int:
    """Return how many packets of every protocol a host has forwarded."""
    return sum(
        delta.values.get(name, 0) for name in ("snmp.Ip.ForwDatagrams", "snmp6.Ip6OutForwDatagrams")
    )


def _on_the_way_through(
    lately: Deltas, ever: Deltas, interfaces: Collection[str], seconds: float
) -> Iterator[tuple[str, str, float, int]]:
    """Yield what a host lost that it was to send on: stage, place, rate and packets."""
    for name in interfaces:
        for stage, counter in BY_DEVICE.items():
            packets = ever.values.get(counter.format(name), 0)
            if packets > 0:
                yield stage, name, lately.values.get(counter.format(name), 0) / seconds, packets
    for row in ROUTED:
        rate, packets = 0, 0
        for family in FAMILIES:
            with _readings(lately, family, {}) as now, _readings(ever, family, {}) as whole:
                known = [row.packets(view) for view in (now, whole)]
                late, ended = (max(span.low, 0) if span is not None else 0 for span in known)
                if ended > (passing(whole) if row.is_difference else 0):
                    rate, packets = rate + late, packets + ended
        if packets:
            yield row.name, "", rate / seconds, packets


def observable_stages(
    delta: Deltas, interfaces: Collection[str], facts: Mapping[str, Facts]
) -> frozenset[str]:
    """Return the stages of a watched host whose packets its kernel and drivers count."""
    named: set[str] = set()
    for name in interfaces:
        if name in facts:
            with _readings(delta, 4, {delta.host: facts[name]}) as readings:
                named |= stage_packets(readings, DEVICE_STAGES).keys()
    for family in FAMILIES:
        with _readings(delta, family, {}) as readings:
            named |= stage_packets(readings, LATER_STAGES).keys()
    return frozenset(named).intersection(WATCHED_STAGES)


def _ended(readings: CounterView, stages: Collection[str]) -> dict[str, int]:
    """Return stage → packets, and what ended at either of two stages by that name."""
    ended = stage_packets(readings, stages)
    either = undivided_packets(readings)
    if either is not None and {*UNDIVIDED, EITHER} & set(stages):
        ended[EITHER] = either.low
    return ended


def _came(delta: Deltas, ip: str) -> bool:
    """Return whether any counter of an IP version moved."""
    return any(delta.block(ip.partition(".")[0]).values())


def _in_memory(sockets: Collection[SocketLoss]) -> tuple[StageLoss, ...]:
    """Return what sockets alone have counted as refused for memory (Linux 6.18)."""
    refused = [loss for loss in sockets if loss.known and loss.stages == ("udp_memory",)]
    packets = sum(loss.dropped for loss in refused)
    pps = sum(loss.dropped_pps for loss in refused)
    return (StageLoss("udp_memory", pps, packets),) if packets else ()


@contextmanager
def _readings(
    delta: Deltas,
    family: Literal[4, 6],
    facts: Mapping[str, Facts],
    within: CounterView | None = None,
) -> Iterator[CounterView]:
    """Yield differences as stages read them: of a receiver that nobody is known to send to.

    Then forget what was derived: a look each second left 25 MB in such cycles until they were
    collected.
    """
    if not facts and family == 6:
        # Frames to another host are of no IP version, and are counted with the other.
        values = {k: v for k, v in delta.values.items() if not k.startswith("link.")}
        delta = replace(delta, values=values)
    nodes: Nodes = {"receiver": (delta.host,), "middle": (delta.host,)}
    view = CounterView(
        nodes, {delta.host: delta}, facts, Traffic(family=family), Receive(), within=within
    )
    yield view
    view.forget()


def watched_ledger(measured: Readings) -> Ledger:
    """Return what each stage took while hosts were watched, of all traffic, whoever sent it.

    Nothing balances: what came is what was read and what is known to be lost.
    """
    facts = measured.facts.values()
    lost: dict[str, dict[str, int]] = {stage: {} for stage in stage_packets(measured)}
    for host, delta in measured.deltas.items():
        known = {each.interface: each for each in facts if each.host == host}
        for loss in stage_losses(delta, delta, tuple(known), known, 1.0):
            where = " ".join(filter(None, (host * (len(measured.deltas) > 1), loss.where)))
            lost.setdefault(loss.stage, {})[where] = loss.packets
    either = sum(lost.pop(EITHER, {}).values())
    entries = tuple(
        LedgerEntry(
            stage.name,
            packets := sum(lost[stage.name].values()),
            measured.receiver.display(stage.source),
            at_most=packets + either if either and stage.name in UNDIVIDED else None,
            parts=lost[stage.name] if len(lost[stage.name]) > 1 else {},
        )
        for stage in STAGES
        if stage.name in lost and stage.part in ("receiver", "middle")
    )
    received = total_arrived(measured.stats).packets
    ended = sum(entry.packets or 0 for entry in entries) + either
    return Ledger(received + ended, received, entries, None)
