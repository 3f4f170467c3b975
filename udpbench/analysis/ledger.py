"""The ledger: an ordered table of the places where a packet can end, and the counter of each.

One primary counter per place, never a sum of counters that see the same packet: a single lost
packet is counted in up to five of them. What no stage explains is ``unaccounted``, sign included.
To add a stage, add a row to STAGES; ORDER holds every name that is known, in the packet's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from udpbench.analysis.readings import Readings
from udpbench.model import SECOND_NS, Entry, Ledger, Role, Scope

ORDER = (
    "unsent",
    "tx_netfilter",
    "tx_qdisc",
    "tx_device",
    "link",
    "rx_ring",
    "rx_xdp",
    "rx_backlog",
    "rx_tc",
    "rx_ip",
    "rx_netfilter",
    "udp_checksum",
    "udp_no_port",
    "udp_filter",
    "udp_rcvbuf",
    "udp_memory",
    "udp_purged",
    "app_truncated",
    "app_log",
)
"""Every stage name, in the packet's order; expectations may name those of STAGES."""

BEFORE_SENT = ("unsent", "tx_netfilter")
"""Stages that take packets the kernel never accepted: they are not part of ``sent``."""

QDISC_DROPS = "qdisc.{interface}.drops"
TX_DROPPED = "link.{interface}.tx_dropped"
RX_DROPPED = "link.{interface}.rx_dropped"
PORT_ENTERED = "link.port*.rx_packets"
PORT_LEFT = "link.port*.tx_packets"
PORT_REFUSED = "link.port*.rx_dropped"
NAPI_PACKETS = "ethtool.{interface}.rx_queue_*_xdp_packets"
SOFTNET_DROPPED = "softnet.*.dropped"
CHECKSUM = "snmp.Udp.InCsumErrors"
NO_PORTS = "snmp.Udp.NoPorts"
RCVBUF = "snmp.Udp.RcvbufErrors"


@dataclass(frozen=True)
class Stage:
    """One place where a packet can end."""

    name: str
    role: Role
    packets: Callable[[Readings], int | None]
    """Packets that ended here; None where this kernel or host cannot tell."""
    source: str
    """The expression as a reader can check it by hand; ``{interface}`` is filled in."""
    counters: tuple[str, ...] = ()
    """Counters of the role's hosts that the expression reads; none of them may go backwards."""
    unit: Literal["packet", "skb"] = "packet"
    """What the counters count; ``skb`` equals packets while neither GSO nor GRO is in use."""
    scope: Scope | Literal["worker"] = "namespace"


def asked_packets(readings: Readings) -> int | None:
    """Return what count and rate asked the senders for; None where the rate is unlimited."""
    specs = [spec for spec in readings.record.workers if spec.role == "sender"]
    counts = [spec.count_packets for spec in specs if spec.count_packets is not None]
    if readings.phase.name != "measured" or not specs:
        return None
    if len(counts) == len(specs):
        return sum(counts)
    rates = [spec.rate_pps for spec in specs if spec.rate_pps is not None]
    if len(rates) == len(specs):
        # One packet at each multiple of 1/rate from the start on, the end itself excluded; so
        # native/pacer.c gives them out.
        return sum(-(-rate * readings.record.trial.duration_ns // SECOND_NS) for rate in rates)
    return None


def intended_packets(readings: Readings) -> int:
    """Return the intended load in packets: what was asked for, else what was attempted."""
    asked = asked_packets(readings)
    return readings.count("sender", "attempted_packets") if asked is None else asked


def sent_packets(readings: Readings) -> int:
    """Return the packets that the kernel took from the senders."""
    return readings.count("sender", "sent_packets")


def received_packets(readings: Readings) -> int:
    """Return the packets of this phase that applications read, each once."""
    return readings.count("receiver", "received_packets")


def unsent_packets(readings: Readings) -> int:
    """Return the packets that were intended and never offered to the network."""
    taken = sent_packets(readings) + readings.count("sender", "eperm")
    return intended_packets(readings) - taken


def _tx_netfilter(readings: Readings) -> int:
    return readings.count("sender", "eperm")


def backlog_drops(readings: Readings) -> int | None:
    """Return the packets that found the CPU's backlog queue full.

    ``enqueue_to_backlog`` counts each of them twice: in softnet_stat, which the whole machine
    shares, and in the receiving device's rx_dropped, which other drops share. The smaller of the
    two is free of both strangers.
    """
    softnet = readings.machine_counter("receiver", SOFTNET_DROPPED)
    device = readings.counter("receiver", RX_DROPPED)
    if softnet is None or device is None:
        return None
    return min(softnet, device)


def backlog_charges_peer(readings: Readings) -> bool:
    """Tell whether a backlog drop is counted as one of the pair's other end, too.

    It is where a veth without NAPI hands the packet to the backlog within the other end's own call
    (drivers/net/veth.c:veth_xmit sees NET_RX_DROP). A veth with NAPI takes the packet into its
    ring first and counts it in ``rx_queue_N_xdp_packets``; then the other end is not charged. Nor
    is that of any other driver. The other end is the sender, or the receiver's port of a bridge.
    """
    drivers = {
        facts.driver
        for host, facts in readings.record.facts.items()
        if host in readings.roles.receivers
    }
    polled = readings.counter("receiver", NAPI_PACKETS)
    return drivers == {"veth"} and not polled


def _tx_device(readings: Readings) -> int | None:
    dropped = readings.counter("sender", TX_DROPPED)
    if dropped is None:
        return None
    if readings.bridge is not None:
        return dropped - (readings.bridge.total(PORT_REFUSED) or 0)
    return dropped - (backlog_drops(readings) or 0 if backlog_charges_peer(readings) else 0)


def link_drops(readings: Readings) -> int | None:
    """Return the packets that a built-in lab's bridge took from one host and gave to none.

    What came in less what went out, because a bridge drops without counting: longer than a port's
    MTU, to a port without a carrier, or in a port's queueing discipline. What its backlog refused
    has not come in, and the sender is charged for it (6.18, provoked in tests/lab/test_several.py).
    Between the ends of a pair there is nothing; a cable or a switch cannot be observed.
    """
    if readings.bridge is None:
        return 0 if readings.record.built_in_lab else None
    entered, left = readings.bridge.total(PORT_ENTERED), readings.bridge.total(PORT_LEFT)
    refused = readings.bridge.total(PORT_REFUSED)
    if entered is None or left is None or refused is None:
        return None
    charged = backlog_drops(readings) or 0 if backlog_charges_peer(readings) else 0
    return entered - left + refused - charged


def _receiver(pattern: str) -> Callable[[Readings], int | None]:
    return lambda readings: readings.counter("receiver", pattern)


STAGES = (
    Stage(
        "unsent",
        "sender",
        unsent_packets,
        "intended − sent_packets − eperm",
        scope="worker",
    ),
    Stage("tx_netfilter", "sender", _tx_netfilter, "eperm", scope="worker"),
    Stage(
        "tx_qdisc",
        "sender",
        lambda readings: readings.counter("sender", QDISC_DROPS),
        f"Δ {QDISC_DROPS}",
        (QDISC_DROPS,),
        "skb",
    ),
    Stage(
        "tx_device",
        "sender",
        _tx_device,
        f"Δ {TX_DROPPED} − rx_backlog or a bridge's {PORT_REFUSED} where charged for it",
        (TX_DROPPED,),
        "skb",
    ),
    Stage(
        "link",
        "receiver",
        link_drops,
        f"bridge: Δ {PORT_ENTERED} − Δ {PORT_LEFT} + Δ {PORT_REFUSED} − rx_backlog where charged",
        unit="skb",
    ),
    Stage(
        "rx_backlog",
        "receiver",
        backlog_drops,
        f"min(Δ {SOFTNET_DROPPED}, Δ {RX_DROPPED})",
        (RX_DROPPED, NAPI_PACKETS),
        "skb",
        "machine",
    ),
    Stage("udp_checksum", "receiver", _receiver(CHECKSUM), f"Δ {CHECKSUM}", (CHECKSUM,), "skb"),
    Stage("udp_no_port", "receiver", _receiver(NO_PORTS), f"Δ {NO_PORTS}", (NO_PORTS,), "skb"),
    Stage("udp_rcvbuf", "receiver", _receiver(RCVBUF), f"Δ {RCVBUF}", (RCVBUF,)),
    Stage(
        "app_truncated",
        "receiver",
        lambda readings: readings.count("receiver", "truncated_packets"),
        "truncated_packets",
        scope="worker",
    ),
)


def make_ledger(readings: Readings) -> Ledger:
    """Return where every packet of a phase went: intended = Σ entries + received + unaccounted."""
    entries = tuple(
        Entry(
            stage.name,
            stage.packets(readings),
            readings.display(stage.role, stage.source),
        )
        for stage in STAGES
    )
    explained = sum(entry.packets for entry in entries if entry.packets is not None)
    intended = intended_packets(readings)
    received = received_packets(readings)
    return Ledger(intended, received, entries, intended - explained - received)
