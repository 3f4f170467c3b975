"""The places where a packet can end, in its order: one row each, with what it means and what helps.

The table alone; ``places`` has the expressions. To add a stage, add a row to STAGES and its name to
LEDGER_STAGES in ``model``; docs/ledger.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from udpbench.analysis import places, spans
from udpbench.analysis.intended import unsent_packets
from udpbench.analysis.readings import Readings
from udpbench.analysis.spans import Span, exactly
from udpbench.analysis.usage import unlogged_packets
from udpbench.model import Role, Scope

BEFORE_SENT = ("unsent", "tx_netfilter")
"""Stages that take packets the kernel never accepted: they are not part of ``sent``."""

Reading = Callable[[Readings], int | None]


@dataclass(frozen=True)
class Also:
    """Another counter of a stage's place: shown beside it, and between ``low`` and ``high``."""

    name: str
    reads: Reading
    low: Reading
    high: Reading
    next_step: str
    """What to look for where it is not."""


@dataclass(frozen=True)
class Stage:
    """One place where a packet can end."""

    name: str
    role: Role
    packets: Callable[[Readings], Span | None]
    """Packets that ended here; None where this kernel or host cannot tell."""
    source: str
    """The expression as a reader can check it by hand; placeholders are filled in."""
    means: str
    helps: str
    counters: tuple[str, ...] = ()
    """Counters of the role's hosts that the expression reads; none of them may go backwards."""
    unit: Literal["packet", "skb"] = "packet"
    """What the counters count; a skb may hold many packets, where GSO or GRO is in use."""
    scope: Scope | Literal["worker"] = "namespace"
    by_driver: Callable[[Readings], tuple[str, ...]] = lambda _: ()
    """Counters that the expression reads besides, by the drivers of the role's hosts."""
    parts: str = ""
    """Counters that say where exactly: by queue, CPU or kind; ``worker.`` and a field of workers,
    ``machine.`` and a counter of the machine."""
    also: tuple[Also, ...] = ()
    reasons: tuple[str, ...] = ()
    """The kernel's own words for a skb dropped here (``explain``); they are shown beside it."""


def _count(role: Role, field: str) -> Callable[[Readings], Span | None]:
    return lambda readings: exactly(readings.count(role, field))


def _counter(role: Role, pattern: str) -> Reading:
    return lambda readings: readings.counter(role, pattern)


def _nothing(_: Readings) -> int:
    return 0


RULES_OUT = "firewall.*/output/drop/*"
RULES_IN = ("firewall.*/input/drop/*", "firewall.*/prerouting/drop/*")


def _by_rules(readings: Readings) -> int | None:
    return readings.total("receiver", *RULES_IN)


def _sockets_explained(readings: Readings) -> int | None:
    fault = readings.record.trial.receive.fault
    if fault is not None and fault.does == "exit":
        return 0  # the drops of the socket that it closed are gone with it
    return readings.counter("receiver", places.RCVBUF)


def _sockets_possible(readings: Readings) -> int | None:
    found = (places.memory_skbs(readings), places.filter_skbs(readings))
    others = readings.total("receiver", places.RCVBUF, places.CHECKSUM)
    known = [value for value in (*found, others) if value is not None]
    return sum(known)


STAGES = (
    Stage(
        "unsent",
        "sender",
        lambda readings: exactly(unsent_packets(readings)),
        "intended − sent_packets − eperm",
        "Intended, but the kernel never took it: the sender was too slow for the rate, or the call "
        "was refused (no listener, too large, another error). Not loss.",
        "more sending workers or CPUs, a larger batch, a lower rate",
        scope="worker",
    ),
    Stage(
        "tx_netfilter",
        "sender",
        _count("sender", "eperm"),
        "eperm",
        "The sender's firewall refused it: the call returned EPERM.",
        "the OUTPUT rules of the sending host",
        scope="worker",
        parts="worker.eperm",
        also=(
            Also(
                f"Δ {RULES_OUT}",
                _counter("sender", RULES_OUT),
                _nothing,
                lambda readings: readings.count("sender", "eperm"),
                # A call that took some messages hides the errno of the one that it stopped at.
                "other traffic of the host meets the rule; or it drops by chance or a limit, and a "
                "packet that a call stopped at was offered again: send.call: send tells of each",
            ),
        ),
        reasons=("NETFILTER_DROP",),
    ),
    Stage(
        "tx_qdisc",
        "sender",
        places.tx_qdisc,
        f"Δ {spans.QDISC_DROPS}; of GSO messages sent_packets − Δ {spans.QDISC_PACKETS}",
        "The sender's queueing discipline dropped it: its queue was full, or its rate was "
        "exceeded.",
        "a longer queue, a higher limit, a lower rate",
        (spans.QDISC_DROPS,),
        "skb",
        parts="qdisc.{interface}.tx_queue_*.drops",
        reasons=("QDISC_DROP",),
    ),
    Stage(
        "tx_device",
        "sender",
        places.tx_device,
        f"Δ {places.TX_DROPPED} − rx_backlog or a bridge's {places.PORT_REFUSED} where charged "
        f"for it",
        "The sender's device dropped it. In the lab: the ring of the veth pair was full, "
        "because the "
        "receiving CPU did not poll it in time, or the packet was longer than the receiver's MTU.",
        "faster receive processing: more queues and CPUs, no reader on the CPU that polls",
        (places.TX_DROPPED,),
        "skb",
    ),
    Stage(
        "link",
        "receiver",
        places.link,
        f"bridge: Δ {places.PORT_ENTERED} − Δ {places.PORT_LEFT} + Δ {places.PORT_REFUSED} "
        "− rx_backlog where charged",
        "Lost between the hosts: the built-in lab's bridge took it from one host and gave it to "
        "none, "
        "mostly because the ring of the receiver's pair was full. Only a lab of more than two "
        "namespaces has a bridge; a cable and a switch cannot be observed.",
        "as for tx_device; the same mtu on every host",
        unit="skb",
    ),
    Stage(
        "rx_ring",
        "receiver",
        places.rx_ring,
        "Δ of the driver's counter of a full ring; a veth has none of its own",
        "The receiving NIC had no free descriptor: the host did not poll its ring in time. The "
        "full "
        "ring of a veth is its peer's drop: tx_device.",
        "a longer ring, more queues, more CPU time for the queue's interrupt",
        unit="packet",
        by_driver=places.ring_counters,
        parts="ethtool.{interface}.rx*_drops",
    ),
    Stage(
        "rx_xdp",
        "receiver",
        places.rx_xdp,
        f"Δ {places.XDP_DROPS[0]}",
        "An XDP program on the receiving interface dropped it, before the kernel made a packet "
        "of it.",
        "the program: ip link show names it",
        places.XDP_DROPS,
        "skb",
        parts=places.XDP_DROPS[0],
    ),
    Stage(
        "rx_backlog",
        "receiver",
        places.rx_backlog,
        f"min(Δ {places.SOFTNET_DROPPED}, Δ {places.RX_DROPPED})",
        "The backlog queue of a receiving CPU was full (RPS, or a veth without NAPI).",
        "net.core.netdev_max_backlog; spreading packets over CPUs",
        (places.RX_DROPPED, places.NAPI_PACKETS),
        "skb",
        "machine",
        parts=f"machine.{places.SOFTNET_DROPPED}",
        also=(
            Also(
                f"Δ {places.SOFTNET_DROPPED}",
                lambda readings: readings.machine_counter("receiver", places.SOFTNET_DROPPED),
                places.backlog_skbs,
                places.backlog_skbs,
                "another device of the machine drops",
            ),
            Also(
                f"Δ {places.RX_DROPPED}",
                _counter("receiver", places.RX_DROPPED),
                places.backlog_skbs,
                places.backlog_and_device_skbs,
                "the device drops for another reason",
            ),
        ),
        reasons=("CPU_BACKLOG",),
    ),
    Stage(
        "rx_tc",
        "receiver",
        places.rx_tc,
        f"Δ {places.INGRESS_DROPS}",
        "A tc filter dropped it on receipt. Only filters of an ingress or clsact discipline are "
        "counted; a program attached without one (TCX) is not.",
        "tc filter show dev <interface> ingress",
        (places.INGRESS_DROPS,),
        "skb",
        reasons=("TC_INGRESS",),
    ),
    Stage(
        "rx_ip",
        "receiver",
        places.rx_ip,
        f"Δ {' + '.join((*places.IP_REFUSED, places.REVERSE_PATH, places.OTHER_HOST))} "
        "+ martians of rt_cache",
        "The IP layer refused it: a bad header, an address that is not the host's, a source "
        "that the "
        "reverse path filter does not believe, or a frame to another MAC address.",
        "addresses, routes, net.ipv4.conf.*.rp_filter; a damaged path",
        (*places.IP_REFUSED, places.REVERSE_PATH, places.OTHER_HOST),
        "skb",
        parts="{ip}In*Errors",
        reasons=(
            "IP_INHDR",
            "IP_CSUM",
            "IP_RPFILTER",
            "IP_LOCALNET",
            "IP_LOCAL_SOURCE",
            "IP_INADDRERRORS",
            "IP_INNOROUTES",
            "PKT_TOO_SMALL",
            "OTHERHOST",
        ),
    ),
    Stage(
        "rx_netfilter",
        "receiver",
        places.rx_netfilter,
        f"Δ {places.RECEIVES} − Δ {places.DELIVERS} − Δ {places.FORWARDED} − what rx_ip counts "
        f"behind {places.RECEIVES}",
        "The receiver's firewall dropped it, in PREROUTING or INPUT: it came into the IP layer, "
        "was "
        "not refused there, and did not leave it.",
        "iptables -vnL, nft list ruleset: see which rule counts; conntrack's table may be full",
        (places.RECEIVES, places.DELIVERS, places.FORWARDED),
        "skb",
        parts="firewall.*/drop/*",
        also=(
            Also(
                "Δ firewall.*/drop/*",
                _by_rules,
                _nothing,
                places.netfilter_skbs,
                "other traffic of the host meets the rule",
            ),
        ),
        reasons=("NETFILTER_DROP",),
    ),
    Stage(
        "udp_checksum",
        "receiver",
        lambda readings: places.counted(readings, places.CHECKSUM),
        f"Δ {places.CHECKSUM}",
        "The UDP checksum was wrong.",
        "the path: a bad cable, NIC or offload",
        (places.CHECKSUM,),
        reasons=("UDP_CSUM",),
    ),
    Stage(
        "udp_no_port",
        "receiver",
        places.udp_no_port,
        f"Δ {places.NO_PORTS}",
        "Nobody listened on that port and address.",
        "start the receiver; check address and port",
        (places.NO_PORTS,),
        "skb",
        reasons=("NO_SOCKET",),
    ),
    Stage(
        "udp_filter",
        "receiver",
        places.udp_filter,
        f"Δ {places.ERRORS} − Δ {places.RCVBUF} − Δ {places.CHECKSUM} − Δ {places.MEMORY}",
        "A socket filter dropped it (SO_ATTACH_FILTER), or UDP refused it for its length.",
        "the application's own filter",
        (places.ERRORS, places.MEMORY),
        "skb",
        reasons=("SOCKET_FILTER",),
    ),
    Stage(
        "udp_rcvbuf",
        "receiver",
        places.udp_rcvbuf,
        f"Δ {places.RCVBUF}",
        "The socket's receive buffer was full: the application did not read fast enough.",
        "a larger receive.buffer (for bursts), faster or more readers (for a lasting load)",
        (places.RCVBUF,),
        "skb",
        parts="socket.",
        also=(
            Also(
                f"Δ {places.SOCKET_DROPS}",
                _counter("receiver", places.SOCKET_DROPS),
                _sockets_explained,
                _sockets_possible,
                "another socket of the namespace drops",
            ),
        ),
        reasons=("SOCKET_RCVBUFF",),
    ),
    Stage(
        "udp_memory",
        "receiver",
        places.udp_memory,
        f"Δ {places.MEMORY}, and of Δ {places.SOCKET_DROPS} what no other stage explains",
        "All UDP sockets of the machine together exceeded net.ipv4.udp_mem.",
        "a higher net.ipv4.udp_mem, smaller receive buffers",
        (places.MEMORY,),
        "skb",
        reasons=("PROTO_MEM",),
    ),
    Stage(
        "udp_purged",
        "receiver",
        places.udp_purged,
        "purged_packets",
        "Still queued when the socket was closed. No counter of the kernel moves for it: whoever "
        "closes a socket counts its queue before.",
        "close a socket when nothing is sent to it any more, or read it to its end",
        scope="worker",
    ),
    Stage(
        "app_truncated",
        "receiver",
        places.app_truncated,
        "truncated_packets",
        "Read, but longer than the room that the application offered, so its end is lost.",
        "a larger receive.room",
        scope="worker",
        parts="worker.truncated_packets",
    ),
    Stage(
        "app_log",
        "receiver",
        lambda readings: exactly(unlogged_packets(readings)),
        "unlogged_packets + failed_packets",
        "Read, but not written to the log: the disk was too slow for its ring, or refused it.",
        "a faster disk for receive.log, a lower rate",
        scope="worker",
        parts="worker.unlogged_packets",
    ),
)
