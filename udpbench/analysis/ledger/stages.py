"""The places where a packet can end, in its order: each row beside the expression that reads it.

One primary counter per place, never a sum of counters that see the same packet: the kernel counts a
single lost packet in up to five of them. An expression is None if the host cannot tell. ``packets``
takes the hosts for the traffic's alone; ``most`` holds whatever others send. To add a stage, add
its name to LEDGER_STAGES in ``model`` and its row here; CONTRIBUTING.md has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, ParamSpec

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.intended_load import sent_packets, unanswered_packets, unsent_packets
from udpbench.analysis.ledger.skbs import Segments, Span, exactly
from udpbench.analysis.readings import Readings, known_sum
from udpbench.analysis.remedies import REMEDIES
from udpbench.analysis.worker_use import unlogged_packets
from udpbench.drivers import ALLOWANCES, DRIVERS, TUNNELS, VETH_DROPS, XDP_DROPS, Driver, driver_of
from udpbench.model import LEDGER_STAGES, Role, Scope

BEFORE_SENT = ("unsent", "tx_policy", "tx_netfilter")
"""Stages of packets that the kernel never accepted: they are not part of ``sent``."""

TX_DROPPED = "link.{interface}.tx_dropped"
RX_DROPPED = "link.{interface}.rx_dropped"
OTHER_HOST = "link.{interface}.rx_otherhost_dropped"
RX_PACKETS = "link.{interface}.rx_packets"
PORT_ENTERED = "link.port*.rx_packets"
PORT_LEFT = "link.port*.tx_packets"
PORT_REFUSED = "link.port*.rx_dropped"
NAPI_PACKETS = "ethtool.{interface}.rx_queue_*_xdp_packets"
SOFTNET_DROPPED = "softnet.*.dropped"
INGRESS_DROPS = "qdisc.{interface}.ingress.drops"
RULES_OUT = "firewall.*/output/drop/*"
RULES_IN = ("firewall.*/input/drop/*", "firewall.*/prerouting/drop/*")
RECEIVES = "{ip}InReceives"
DELIVERS = "{ip}InDelivers"
FORWARDED = "{ip}*ForwDatagrams"
"""``ForwDatagrams`` of IPv4, ``OutForwDatagrams`` of IPv6."""
FRAGMENTS = "{ip}ReasmReqds"
REASSEMBLED = "{ip}ReasmOKs"
MULTICASTS = "snmp6.Ip6InMcastPkts"
ICMP6 = "snmp6.Icmp6InMsgs"
CHECKSUM = "{udp}InCsumErrors"
NO_PORTS = "{udp}NoPorts"
RCVBUF = "{udp}RcvbufErrors"
MEMORY = "{udp}MemErrors"
"""Since Linux 5.11."""
ANSWERS_OUT = "{udp}OutDatagrams"
SNDBUF = "{udp}SndbufErrors"
OF_ANSWERS = ("app_unanswered", "answer_lost")
ERRORS = "{udp}InErrors"
SOCKET_DROPS = "socket.*.drops"
POLICY_OUT = "xfrm.XfrmOutPol*"
"""Counted by each look-up of a route that a policy of IPsec refuses, which returns EPERM
(net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid)."""
NO_STATES = "xfrm.XfrmOutNoStates"
POLICY_IN = (
    *("xfrm.XfrmInPol*", "xfrm.XfrmInNoPols", "xfrm.XfrmInTmplMismatch"),
    *("xfrm.XfrmInStateMismatch", "xfrm.XfrmInHdrError", "xfrm.XfrmInBufferError"),
)
"""Of the policy check before a socket (__xfrm_policy_check), each of another packet."""
XSK_RING, XSK_FILL = "xsk_ring_packets", "xsk_fill_packets"
"""What the receiver's AF_XDP sockets refused; a worker asks the kernel (XDP_STATISTICS)."""
IP_REFUSED = (
    "{ip}InHdrErrors",
    "{ip}InAddrErrors",
    "{ip}InDiscards",
    "{ipx}InTruncatedPkts",
    "{ipx}InNoRoutes",
)
"""Disjoint, and all of packets that InReceives has counted (net/ipv4/ip_input.c, ip6_input.c)."""
REVERSE_PATH = "netstat.TcpExt.IPReversePathFilter"
MARTIANS = ("rt_cache.in_martian_src", "rt_cache.in_martian_dst")
VETH_XDP_DROPS = DRIVERS["veth"].xdp_drops[0]
EARLY_CHECKSUM_BYTES = 76
"""UDP header and payload up to which a checksum is verified before the socket (net/core/skbuff.c:
CHECKSUM_BREAK); in longer datagrams it is verified at the read, and the socket counts them too."""
UDP_HEADER_BYTES = 8

P = ParamSpec("P")
Reading = Callable[[Readings], int | None]
Expression = Callable[[Readings], Span | None]


@dataclass(frozen=True)
class Also:
    """A corroborating counter: shown with its stage, and expected between ``low`` and ``high``."""

    name: str
    reads: Reading
    low: Reading
    high: Reading
    next_step: str
    """What explains a value outside of them."""


def _nothing(_: Readings) -> int:
    return 0


def is_program(readings: Readings) -> bool:
    """Return whether a program of the user's received, which counts nothing for us."""
    return readings.record.trial.receive.by_program


def _unknown(_: Readings) -> None:
    return None


@dataclass(frozen=True)
class Stage:
    """One place where a packet can end."""

    name: str
    role: Role
    packets: Expression
    """Packets that ended here; None if this kernel or host cannot tell."""
    source: str
    """The expression in words, to check it by hand; placeholders are filled in."""
    means: str
    most: Reading = _unknown
    """At most so many packets of the traffic ended here, whoever else moves the counters; None if
    nothing limits them. Not asked of a worker that counted."""
    least: Reading = _nothing
    """At least so many did, by counters that only the traffic moves."""
    counters: tuple[str, ...] = ()
    """Counters of the role's hosts that the expression reads; a decrease is a finding."""
    unit: Literal["packet", "skb"] = "packet"
    """What the counters count; with GSO or GRO an skb may hold many packets."""
    scope: Scope | Literal["worker"] = "namespace"
    by_driver: Callable[[Readings], tuple[str, ...]] = lambda _: ()
    """Further counters that the expression reads, by the drivers of the role's hosts."""
    parts: str = ""
    """Counters that say where exactly, by queue, CPU or kind: a pattern, ``worker.`` with a
    worker's field, ``machine.`` with a counter of the machine, or ``damaged.`` frames."""
    also: tuple[Also, ...] = ()
    reasons: tuple[str, ...] = ()
    """The kernel's drop reasons for an skb dropped here (``explain``); shown with the stage."""
    no_other_reason: bool = False
    """No skb is dropped here without one of them."""

    def dropped_skbs(self, readings: Readings) -> Span | None:
        """Return how many skbs to the traffic's ports were dropped here, by the kernel's reasons.

        At most those, too, whose ports could not be read. None without ``explain``.
        """
        ours, portless = (self._for_reasons(readings, group) for group in ("", "_portless"))
        return Span(ours, ours + portless) if ours is not None and portless is not None else None

    def others_skbs(self, readings: Readings) -> int:
        """Return how many of others, to other ports, were; 0 without ``explain``."""
        return self._for_reasons(readings, "_others") or 0

    def _for_reasons(self, readings: Readings, group: str) -> int | None:
        return readings.total(self.role, *(f"reason{group}.{name}" for name in self.reasons))

    @property
    def helps(self) -> str:
        """What helps, in the imperative."""
        return REMEDIES[self.name].text


_ROWS: dict[str, Stage] = {}


def _adding(make: Callable[P, Stage]) -> Callable[P, None]:
    """Return a function with the parameters of ``make`` that adds the row to the table."""

    def add(*args: P.args, **kwargs: P.kwargs) -> None:
        row = make(*args, **kwargs)
        _ROWS[row.name] = row

    return add


_stage = _adding(Stage)


def _count(role: Role, field: str) -> Expression:
    return lambda readings: exactly(readings.count(role, field))


def _counter(role: Role, pattern: str) -> Reading:
    return lambda readings: readings.counter(role, pattern)


def _in_packets(stage: str, counted: Reading, each: Callable[[Readings], Segments]) -> Expression:
    """Return an expression for the packets in a number of skbs; None stays unknown."""

    def packets(readings: Readings) -> Span | None:
        lost = counted(readings)
        return (
            skbs.lost_packets(readings, stage, lost, each(readings)) if lost is not None else None
        )

    return packets


def _at_most(
    counted: Reading, packets_per_skb: Callable[[Readings], int] = skbs.most_packets
) -> Reading:
    """Return the most packets in a number of skbs that others' may be among; None stays unknown."""

    def most(readings: Readings) -> int | None:
        number = counted(readings)
        return max(number, 0) * packets_per_skb(readings) if number is not None else None

    return most


# --- on the sender -------------------------------------------------------------------------------


_stage(
    name="unsent",
    role="sender",
    packets=lambda readings: exactly(unsent_packets(readings)),
    source="intended − sent_packets − eperm",
    means="Intended, but never accepted by the kernel: the sender was too slow for the "
    "rate, or the call failed (no listener, too large, another error). This is not loss.",
    scope="worker",
)


def _policy_refusals(readings: Readings) -> int | None:
    """Return how many calls at most a policy refused; None if one failed and IPsec counts none."""
    refused = readings.count("sender", "eperm")
    counted = readings.counter("sender", POLICY_OUT) if refused else 0
    return min(refused, max(counted, 0)) if counted is not None else None


def _tx_policy(readings: Readings) -> Span | None:
    refused = _policy_refusals(readings)
    return exactly(refused) if refused is not None else None


_stage(
    name="tx_policy",
    role="sender",
    packets=_tx_policy,
    source=f"min(eperm, Δ {POLICY_OUT})",
    means="Refused by a policy of the sender's IPsec: the call returned EPERM.",
    most=_policy_refusals,
    counters=(POLICY_OUT,),
)


def _firewall_refusals(readings: Readings) -> Span:
    refused, by_policy = readings.count("sender", "eperm"), _policy_refusals(readings) or 0
    shared = not readings.record.built_in_lab
    return Span(refused - by_policy, refused if shared else refused - by_policy)


def refusals(readings: Readings) -> tuple[tuple[str, ...], Span]:
    """Return the stages that a call with EPERM may mean, and how many there were."""
    refused = readings.count("sender", "eperm")
    return ("tx_policy", "tx_netfilter"), exactly(refused)


_stage(
    name="tx_netfilter",
    role="sender",
    packets=_firewall_refusals,
    source="eperm − tx_policy",
    means="Refused by the sender's firewall: the call returned EPERM.",
    scope="worker",
    parts="worker.eperm",
    also=(
        Also(
            name=f"Δ {RULES_OUT}",
            reads=_counter("sender", RULES_OUT),
            low=_nothing,
            high=lambda readings: _firewall_refusals(readings).high,
            # A call that sent some messages hides the errno of the one at which it stopped.
            next_step="other traffic of the host matches the rule; or it drops at random or beyond "
            "a limit, and refused packets were sent again: send.call: send reports each refusal",
        ),
    ),
    reasons=("NETFILTER_DROP",),
)


def _most_without_state(readings: Readings) -> int:
    """Return at most how many packets were sent into a route of IPsec that leads nowhere.

    Each look-up of such a route counts, and a packet may need several (net/xfrm/xfrm_policy.c:
    make_blackhole). A kernel without the counter has no IPsec as a rule.
    """
    lookups = readings.counter("sender", NO_STATES) or 0
    return min(lookups * skbs.most_packets(readings), sent_packets(readings)) if lookups else 0


_stage(
    name="tx_ipsec",
    role="sender",
    packets=lambda readings: Span(0, _most_without_state(readings)),
    source=f"up to Δ {NO_STATES}",
    means="Accepted, and thrown away, because the sender's IPsec has a policy for it and no state "
    "(no keys) yet.",
    most=_most_without_state,
    counters=(NO_STATES,),
)


def _tx_qdisc(readings: Readings) -> Span | None:
    drops = readings.counter("sender", skbs.QDISC_DROPS)
    return skbs.dropped_by_qdisc(readings).packets(drops) if drops is not None else None


_stage(
    name="tx_qdisc",
    role="sender",
    packets=_tx_qdisc,
    source=f"Δ {skbs.QDISC_DROPS}; for GSO messages sent_packets − Δ {skbs.QDISC_PACKETS}",
    means="Dropped by the sender's queueing discipline: its queue was full, or its rate "
    "was exceeded.",
    most=_at_most(_counter("sender", skbs.QDISC_DROPS)),
    counters=(skbs.QDISC_DROPS,),
    unit="skb",
    parts="qdisc.{interface}.tx_queue_*.drops",
    reasons=("QDISC_DROP",),
)


def _tx_device_skbs(readings: Readings) -> int | None:
    """Return what the sender's device itself dropped, without what its peer refused."""
    dropped = readings.counter("sender", TX_DROPPED)
    if dropped is None:
        return None
    if readings.bridge is not None:
        dropped -= readings.bridge.total(PORT_REFUSED) or 0
    elif _backlog_charges_peer(readings):
        dropped -= _backlog_skbs(readings) or 0
    return dropped


def _least_at_sender(readings: Readings) -> int:
    """Return how many packets fewer left the senders' cards as frames than were sent."""
    left = mac_frames.frames_at_macs(readings, "sender")
    if left is None:
        return 0
    return max(sent_packets(readings) - _most_in_qdisc(readings) - left, 0)


def _most_at_sender(readings: Readings) -> int | None:
    """Return at most how many packets a sender's device dropped, or its card never sent."""
    # What the receiver's backlog refused is not known of others' packets, so it stays in.
    dropped = _at_most(_counter("sender", TX_DROPPED))(readings)
    handed = mac_frames.handed_over(readings)
    left = mac_frames.frames_at_macs(readings, "sender")
    if dropped is None or handed is None or left is None:
        return dropped
    return max(dropped, handed - left)


def _most_in_qdisc(readings: Readings) -> int:
    return _at_most(_counter("sender", skbs.QDISC_DROPS))(readings) or 0


def _refused_frames_sent(readings: Readings) -> int | None:
    """Return the frames of which AF_XDP said at once that the device dropped them."""
    send = readings.record.trial.send
    return readings.count("sender", "ebusy") if send.call == "af_xdp" else None


_stage(
    name="tx_device",
    role="sender",
    packets=_in_packets("tx_device", _tx_device_skbs, skbs.sent_skb),
    source=f"Δ {TX_DROPPED} − rx_backlog or a bridge's Δ {PORT_REFUSED}, if charged here; of a "
    "card also what it took and its MAC did not send",
    means="Dropped by the sender's device. In the lab: the ring of the veth pair was "
    "full because the receiving CPU did not poll it in time, or the packet was longer than "
    "the receiver's MTU.",
    most=_most_at_sender,
    least=_least_at_sender,
    counters=(TX_DROPPED,),
    unit="skb",
    also=(
        Also(
            name="ebusy",
            reads=_refused_frames_sent,
            low=_nothing,
            high=_counter("sender", TX_DROPPED),
            next_step="the driver drops frames and counts them elsewhere: ethtool -S",
        ),
    ),
)


def _link_skbs(readings: Readings) -> int | None:
    """Return what a built-in lab's bridge accepted and did not forward.

    Packets in less packets out, because a bridge drops without counting: packets longer than a
    port's MTU, to a port without a carrier, or in a port's queueing discipline. What its backlog
    refused did not come in, and the sender is charged for it (6.18, tests/lab/test_several.py).
    A veth pair loses nothing between its ends; a cable or a switch cannot be observed.
    """
    if readings.bridge is None:
        return 0 if readings.record.built_in_lab else None
    entered, left = readings.bridge.total(PORT_ENTERED), readings.bridge.total(PORT_LEFT)
    refused = readings.bridge.total(PORT_REFUSED)
    if entered is None or left is None or refused is None:
        return None
    charged = _backlog_skbs(readings) or 0 if _backlog_charges_peer(readings) else 0
    return entered - left + refused - charged


def _least_on_link(readings: Readings) -> int:
    """Return how many packets fewer came in at the receivers' cards than left the senders'.

    Others' frames at the receivers hide as many. Those of the senders are no matter: of the
    traffic at least what the earlier stages did not take has left.
    """
    came = mac_frames.received_frames(readings)
    if came is None or readings.record.built_in_lab:
        return 0
    kept = _most_in_qdisc(readings) + (_most_at_sender(readings) or 0)
    return max(sent_packets(readings) - kept - came, 0)


def _at_macs(role: Role) -> Also:
    """Return what a role's MACs counted, for a check by hand."""

    def frames(readings: Readings) -> int | None:
        return mac_frames.frames_at_macs(readings, role)

    return Also(f"frames at the {role}'s MAC", frames, _unknown, _unknown, "")


def _allowances(role: Role) -> Also:
    """Return what the hypervisor of a role's hosts limited, which may have been queued only."""
    limited = _counter(role, ALLOWANCES)
    return Also(f"allowance exceeded at the {role}", limited, _unknown, _unknown, "")


_stage(
    name="link",
    role="receiver",
    packets=_in_packets("link", _link_skbs, skbs.sent_skb),
    source=f"bridge: Δ {PORT_ENTERED} − Δ {PORT_LEFT} + Δ {PORT_REFUSED} − rx_backlog, if "
    "charged here; cards: sent − tx_qdisc − tx_device − frames at the receiver's MAC",
    means="Lost between the hosts: in a cable, a switch, or the host's own emulator. Cards that "
    "count frames at the MAC prove it; otherwise it is what all other stages leave. In a built-in "
    "lab of more than two namespaces: the bridge accepted it but did not forward it, usually "
    "because the ring of the receiver's veth pair was full.",
    least=_least_on_link,
    parts="damaged.frames",
    also=(
        *(_at_macs("sender"), _at_macs("receiver")),
        *(_allowances("sender"), _allowances("receiver")),
    ),
    unit="skb",
)


# --- before the receiver's IP layer --------------------------------------------------------------


def _rx_ring(readings: Readings) -> Span | None:
    """Return the frames for which the receiving device had no descriptor.

    None if drivers differ, or if the driver does not count all of them and its counter is 0.
    """
    drivers = _receiving_drivers(readings)
    if drivers and not any(driver.full_ring for driver in drivers):
        return exactly(0)
    full = _refused_frames(readings)
    if full is None:
        return None
    (driver,) = drivers
    if "rx_backlog" in driver.ring_includes:
        full -= _backlog_skbs(readings) or 0
    return exactly(full) if full or _sees_full_rings(readings) else None


def _most_in_full_rings(readings: Readings) -> int | None:
    """Return at most how many frames found no descriptor; None if the driver misses some."""
    drivers = _receiving_drivers(readings)
    if drivers and not any(driver.full_ring for driver in drivers):
        return 0
    return _refused_frames(readings) if _sees_full_rings(readings) else None


def _sees_full_rings(readings: Readings) -> bool:
    return all(mac_frames.sees_full_ring(readings, host) for host in readings.roles.receivers)


def _refused_frames(readings: Readings) -> int | None:
    """Return what the drivers' counters of a full ring say, without XDP drops in them."""
    full = readings.total("receiver", *_ring_counters(readings))
    if full is None:
        return None
    (driver,) = _receiving_drivers(readings)
    if "rx_xdp" not in driver.ring_includes:
        return full
    if "xsk_ring" in driver.ring_includes and _without_copy(readings):
        full -= _refused_frames_received(readings)
    xdp_frames = _counted_xdp_drops(readings, driver.xdp_drops)
    return full - xdp_frames if xdp_frames is not None else None


def _ring_counters(readings: Readings) -> tuple[str, ...]:
    """Return the counters of the receivers' full rings; none if drivers differ or have none."""
    drivers = _receiving_drivers(readings)
    return next(iter(drivers)).full_ring if len(drivers) == 1 else ()


def _steady_ring_counters(readings: Readings) -> tuple[str, ...]:
    """Return those that only a reset lets decrease."""
    wraps = any(driver.ring_wraps for driver in _receiving_drivers(readings))
    return () if wraps else _ring_counters(readings)


def _receiving_drivers(readings: Readings) -> set[Driver]:
    return {driver_of(readings.record.facts.get(host)) for host in readings.roles.receivers}


_stage(
    name="rx_ring",
    role="receiver",
    packets=_rx_ring,
    source="Δ of the driver's counter of a full ring; a veth has none",
    means="The receiving NIC had no free descriptor: the host did not poll its ring in "
    "time. A full veth ring is counted by its peer: tx_device.",
    most=_most_in_full_rings,
    by_driver=_steady_ring_counters,
    parts="ethtool.{interface}.rx*_drops",
)


def _counted_xdp_drops(readings: Readings, counters: tuple[str, ...] = XDP_DROPS) -> int | None:
    """Return what the drivers count as drops by XDP; 0 if the interface has no program."""
    dropped = readings.total("receiver", *counters)
    if dropped is None and readings.without("receiver", "xdp"):
        return 0
    return dropped


def _xdp_frames(readings: Readings) -> int | None:
    """Return the frames that an XDP program dropped, without those that AF_XDP sockets refused.

    Nothing counts what a program in the stack drops (net/core/dev.c: do_xdp_generic), so beside one
    a 0 proves nothing.
    """
    dropped = _counted_xdp_drops(readings)
    if not dropped and readings.has_generic_xdp("receiver"):
        return None
    drivers = _receiving_drivers(readings)
    counts_refused = any(driver.xdp_drops_refused for driver in drivers)
    if dropped is None or not counts_refused or _without_copy(readings):
        return dropped
    return max(dropped - _refused_frames_received(readings), 0)


def _most_by_xdp(readings: Readings) -> int | None:
    return None if readings.has_generic_xdp("receiver") else _at_most(_xdp_frames)(readings)


def _without_copy(readings: Readings) -> bool:
    """Return whether cards wrote frames of AF_XDP where they are read."""
    return any(stats.zerocopy for stats in readings.workers("receiver"))


_stage(
    name="rx_xdp",
    role="receiver",
    packets=_in_packets("rx_xdp", _xdp_frames, skbs.sent_skb),
    source=f"Δ {VETH_XDP_DROPS}",
    means="Dropped by an XDP program on the receiving interface, before the kernel made "
    "an skb of it.",
    most=_most_by_xdp,
    counters=XDP_DROPS,
    unit="skb",
    parts=VETH_XDP_DROPS,
)


def takes_frames(readings: Readings) -> bool:
    """Return whether an XDP program took the traffic before the kernel's stack."""
    return readings.record.trial.receive.call == "af_xdp"


def _refused_by_frame_socket(field: str) -> Expression:
    """Return an expression for what AF_XDP sockets refused; None if a worker did not say it."""

    def packets(readings: Readings) -> Span | None:
        workers = readings.workers("receiver")
        if takes_frames(readings) and not all(field in stats.counts for stats in workers):
            return None
        return exactly(readings.count("receiver", field))

    return packets


def _refused_frames_received(readings: Readings) -> int:
    return readings.count("receiver", XSK_RING) + readings.count("receiver", XSK_FILL)


def _veth_drops(readings: Readings) -> int | None:
    """Return the frames that a veth could not redirect, which are those of full AF_XDP sockets."""
    if not (readings.all_veth and takes_frames(readings)):
        return None
    return readings.total("receiver", *VETH_DROPS)


_stage(
    name="xsk_ring",
    role="receiver",
    packets=_refused_by_frame_socket(XSK_RING),
    source=XSK_RING,
    means="The ring of an AF_XDP socket was full: the application did not read fast enough.",
    scope="worker",
    parts=f"worker.{XSK_RING}",
    also=(
        Also(
            name="Δ ethtool.{interface}.rx_queue_N_drops",
            reads=_veth_drops,
            low=_refused_frames_received,
            high=_refused_frames_received,
            next_step="the device drops packets for another reason",
        ),
    ),
)

_stage(
    name="xsk_fill",
    role="receiver",
    packets=_refused_by_frame_socket(XSK_FILL),
    source=XSK_FILL,
    means="The AF_XDP socket had no buffer for the frame, or one that was too short.",
    scope="worker",
    parts=f"worker.{XSK_FILL}",
)


def _backlog_skbs(readings: Readings) -> int | None:
    """Return the skbs that found the CPU's backlog queue full.

    ``enqueue_to_backlog`` counts each of them twice: in softnet_stat, which the whole machine
    shares, and in the receiving device's rx_dropped, which other drops share. The smaller of the
    two includes neither.
    """
    softnet = readings.machine_counter("receiver", SOFTNET_DROPPED)
    device = readings.counter("receiver", RX_DROPPED)
    if has_own_backlog(readings):
        return device
    if softnet is None or device is None:
        return None
    return min(softnet, device)


def has_own_backlog(readings: Readings) -> bool:
    """Return whether a receiver is a tunnel, whose backlog softnet_stat and reasons do not have."""
    drivers = (
        readings.record.facts[h].driver
        for h in readings.roles.receivers
        if h in readings.record.facts
    )
    return any(driver in TUNNELS for driver in drivers)


def _backlog_and_device_skbs(readings: Readings) -> int | None:
    """Return those and what rx_dropped also counts: of the pair's MTU, and of AF_XDP sockets."""
    refused = _backlog_skbs(readings)
    if refused is not None:
        refused += _refused_frames_received(readings)
    sent = readings.counter("sender", TX_DROPPED)
    if refused is None or sent is None or not readings.all_veth:
        return refused
    return max(refused, sent) if _backlog_charges_peer(readings) else refused + sent


def _backlog_charges_peer(readings: Readings) -> bool:
    """Return whether a backlog drop is also counted at the other end of the pair.

    It is if a veth without NAPI passes the packet to the backlog within the other end's own call
    (drivers/net/veth.c:veth_xmit sees NET_RX_DROP). A veth with NAPI puts the packet into its ring
    first and counts it in ``rx_queue_N_xdp_packets``, so the other end is not charged. No other
    driver charges it. The other end is the sender, or the receiver's port of a bridge.
    """
    polled = readings.counter("receiver", NAPI_PACKETS)
    return _receiving_drivers(readings) == {DRIVERS["veth"]} and not polled


_stage(
    name="rx_backlog",
    role="receiver",
    packets=_in_packets("rx_backlog", _backlog_skbs, skbs.received_skb),
    source=f"min(Δ {SOFTNET_DROPPED}, Δ {RX_DROPPED}); of a tunnel the latter",
    means="The backlog queue of a receiving CPU was full (RPS, or a veth without NAPI).",
    most=_at_most(_backlog_skbs),
    counters=(RX_DROPPED, NAPI_PACKETS),
    unit="skb",
    scope="machine",
    parts=f"machine.{SOFTNET_DROPPED}",
    also=(
        Also(
            name=f"Δ {SOFTNET_DROPPED}",
            reads=lambda readings: readings.machine_counter("receiver", SOFTNET_DROPPED),
            low=_backlog_skbs,
            high=_backlog_skbs,
            next_step="another device of the machine drops packets",
        ),
        Also(
            name=f"Δ {RX_DROPPED}",
            reads=_counter("receiver", RX_DROPPED),
            low=_backlog_skbs,
            high=_backlog_and_device_skbs,
            next_step="the device drops packets for another reason",
        ),
    ),
    reasons=("CPU_BACKLOG",),
    no_other_reason=True,
)


def _tc_skbs(readings: Readings) -> int | None:
    """Return what a filter before the IP layer dropped; 0 if there is none.

    A TCX program drops before the qdisc that counts (net/core/dev.c: sch_handle_ingress), so beside
    one a 0 proves nothing.
    """
    dropped = readings.counter("receiver", INGRESS_DROPS)
    if not dropped:
        return 0 if readings.without("receiver", "tcx") else None
    return dropped


def _most_by_tc(readings: Readings) -> int | None:
    return _at_most(_tc_skbs)(readings) if readings.without("receiver", "tcx") else None


_stage(
    name="rx_tc",
    role="receiver",
    packets=_in_packets("rx_tc", _tc_skbs, skbs.received_skb),
    source=f"Δ {INGRESS_DROPS}",
    means="Dropped by a tc filter on receipt. Only filters of an ingress or clsact qdisc "
    "are counted; what a TCX program drops is not.",
    most=_most_by_tc,
    counters=(INGRESS_DROPS,),
    unit="skb",
    reasons=("TC_INGRESS",),
)


# --- in the receiver's IP layer ------------------------------------------------------------------


def _gap_skbs(readings: Readings) -> int | None:
    """Return the skbs that entered the IP layer and neither left it nor were refused.

    Fragments enter one by one and leave as one datagram. What the host forwards is counted as it
    enters and as it leaves, and is never delivered (net/ipv4/ip_forward.c: ip_forward).
    """
    missing = _missing_skbs(readings)
    return missing - _undelivered_multicasts(readings) if missing is not None else None


def _missing_skbs(readings: Readings) -> int | None:
    """Return those and others' multicasts that nobody listens to."""
    receives, delivers = readings.total("receiver", RECEIVES), readings.total("receiver", DELIVERS)
    if receives is None or delivers is None:
        return None
    fragments = readings.total("receiver", FRAGMENTS) or 0
    whole = readings.total("receiver", REASSEMBLED) or 0
    forwarded = readings.total("receiver", FORWARDED) or 0
    return receives - fragments + whole - delivers - forwarded - _refused_skbs(readings)


def _most_missing_skbs(readings: Readings) -> int | None:
    """Return at most how many of the traffic are missing.

    None where more left the IP layer than entered it: a packet that IPsec decrypts is delivered
    twice, and may hide a missing one.
    """
    missing = _missing_skbs(readings)
    return None if missing is not None and missing < 0 else missing


def _undelivered_multicasts(readings: Readings) -> int:
    """Return the least number of IPv6 multicasts that came in without a listener on the host.

    Hosts announce groups and look for routers, and most of that is not delivered. What is delivered
    counts as ICMPv6, as do neighbours' unicasts, so the difference is a lower bound.
    """
    if readings.record.trial.traffic.family == 4:
        return 0
    multicasts = readings.counter("receiver", MULTICASTS) or 0
    delivered = readings.counter("receiver", ICMP6) or 0
    return max(multicasts - delivered, 0)


def _refused_skbs(readings: Readings) -> int:
    refused = readings.total("receiver", *IP_REFUSED) or 0
    if readings.record.trial.traffic.family == 6:
        return refused
    return refused + (readings.counter("receiver", REVERSE_PATH) or 0)


def _martian_skbs(readings: Readings) -> int:
    """Return the packets refused for an impossible address.

    Only rt_cache counts them, for all namespaces of the machine together, so at most what is
    missing here is ours.
    """
    return _martians_among(_gap_skbs(readings) or 0, readings)


def _martians_among(missing: int, readings: Readings) -> int:
    counted = [readings.machine_counter("receiver", name) or 0 for name in MARTIANS]
    return min(max(missing, 0), sum(counted)) if readings.record.trial.traffic.family == 4 else 0


def _ip_skbs(readings: Readings) -> int | None:
    """Return what is counted; None if that is 0 and frames to another MAC are not (before 5.19)."""
    refused = _ip_refused(readings, _martian_skbs(readings))
    return refused if refused or _sees_other_hosts_frames(readings) else None


def _most_refused_by_ip(readings: Readings) -> int | None:
    if not _sees_other_hosts_frames(readings):
        return None
    return _ip_refused(readings, _martians_among(_missing_skbs(readings) or 0, readings))


def _sees_other_hosts_frames(readings: Readings) -> bool:
    return readings.counter("receiver", OTHER_HOST) is not None


def _ip_refused(readings: Readings, martians: int) -> int | None:
    if readings.total("receiver", RECEIVES) is None:
        return None
    other_host = readings.counter("receiver", OTHER_HOST) or 0
    return _refused_skbs(readings) + martians + other_host


_stage(
    name="rx_ip",
    role="receiver",
    packets=_in_packets("rx_ip", _ip_skbs, skbs.received_skb),
    source=f"Δ {' + '.join((*IP_REFUSED, REVERSE_PATH, OTHER_HOST))} + martians of rt_cache",
    means="Refused by the IP layer: a bad header, an address that is not the host's, a "
    "source that fails the reverse path filter, or a frame to another MAC address.",
    most=_at_most(_most_refused_by_ip),
    counters=(*IP_REFUSED, REVERSE_PATH, OTHER_HOST),
    unit="skb",
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
)


def _netfilter_skbs(readings: Readings) -> int | None:
    """Return what is missing within the IP layer and was not refused by it."""
    gap = _gap_skbs(readings)
    return gap - _martian_skbs(readings) if gap is not None else None


def _own_rules(readings: Readings) -> int:
    """Return what udpbench's own rules dropped on the ports of the traffic."""
    ports = {flow.destination_port for spec in readings.record.workers for flow in spec.flows}
    counted = (
        readings.total("receiver", *(f"{pattern[:-1]}udp/{port}" for pattern in RULES_IN))
        for port in sorted(ports)
    )
    return known_sum(counted) or 0


_stage(
    name="rx_netfilter",
    role="receiver",
    packets=_in_packets("rx_netfilter", _netfilter_skbs, skbs.received_skb),
    source=f"Δ {RECEIVES} − Δ {FRAGMENTS} + Δ {REASSEMBLED} − Δ {DELIVERS} − Δ {FORWARDED} − what "
    f"rx_ip counts after {RECEIVES}; over IPv6 also − (Δ {MULTICASTS} − Δ {ICMP6}), if above 0",
    means="Dropped by the receiver's firewall, in PREROUTING or INPUT: it entered the IP "
    "layer, was not refused there, and did not leave it.",
    most=_at_most(_most_missing_skbs),
    least=_own_rules,
    counters=(RECEIVES, DELIVERS, FORWARDED),
    unit="skb",
    parts="firewall.*/drop/*",
    also=(
        Also(
            name="Δ firewall.*/drop/*",
            reads=lambda readings: readings.total("receiver", *RULES_IN),
            low=_nothing,
            high=_netfilter_skbs,
            next_step="other traffic of the host matches the rule",
        ),
    ),
    reasons=("NETFILTER_DROP",),
)


# --- at UDP and its sockets ----------------------------------------------------------------------


def _udp_checksum(readings: Readings) -> Span | None:
    """Return what UDP refused; None of frames, which are taken before anybody verifies them."""
    wrong = readings.counter("receiver", CHECKSUM)
    return None if wrong is None or (wrong == 0 and takes_frames(readings)) else exactly(wrong)


_stage(
    name="udp_checksum",
    role="receiver",
    packets=_udp_checksum,
    source=f"Δ {CHECKSUM}",
    means="The UDP checksum was wrong.",
    most=_counter("receiver", CHECKSUM),
    counters=(CHECKSUM,),
    reasons=("UDP_CSUM",),
)

_stage(
    name="udp_no_port",
    role="receiver",
    packets=_in_packets("udp_no_port", _counter("receiver", NO_PORTS), skbs.received_skb),
    source=f"Δ {NO_PORTS}",
    means="No socket was bound to that address and port.",
    most=_at_most(_counter("receiver", NO_PORTS)),
    counters=(NO_PORTS,),
    unit="skb",
    reasons=("NO_SOCKET",),
    no_other_reason=True,
)


def _other_errors(readings: Readings) -> int | None:
    """Return the receive errors other than full buffer, bad checksum and full memory.

    Without MemErrors those for full memory are among them.
    """
    errors, rcvbuf = readings.counter("receiver", ERRORS), readings.counter("receiver", RCVBUF)
    if errors is None or rcvbuf is None:
        return None
    others = readings.total("receiver", CHECKSUM, MEMORY) or 0
    return errors - rcvbuf - others


def _policy_skbs(readings: Readings) -> int | None:
    """Return those of them that IPsec may have refused; None if there are and it counts none.

    Its counters are of the whole namespace, and of other protocols.
    """
    errors = _other_errors(readings)
    if not errors:
        return errors
    counted = readings.total("receiver", *POLICY_IN)
    return min(max(errors, 0), max(counted, 0)) if counted is not None else None


_stage(
    name="rx_policy",
    role="receiver",
    packets=_in_packets("rx_policy", _policy_skbs, skbs.queued_skb),
    source=f"Δ {' + '.join(POLICY_IN)}, up to Δ {ERRORS} − Δ {RCVBUF} − Δ {CHECKSUM} − Δ {MEMORY}",
    means="Refused by a policy of the receiver's IPsec.",
    most=_at_most(_policy_skbs, skbs.most_queued),
    counters=(ERRORS, *POLICY_IN),
    unit="skb",
    parts="xfrm.XfrmIn*",
    reasons=("XFRM_POLICY",),
)


def _filter_skbs(readings: Readings) -> int | None:
    """Return the errors that also IPsec does not explain."""
    errors = _other_errors(readings)
    return errors - (_policy_skbs(readings) or 0) if errors is not None else None


_filtered_packets = _in_packets("udp_filter", _filter_skbs, skbs.queued_skb)
UNDIVIDED = ("udp_filter", "udp_memory")
"""Stages of which a kernel without MemErrors counts only the sum (docs/kernel.md, UDP memory)."""


def undivided_packets(readings: Readings) -> Span | None:
    """Return how many packets ended at one of these two; None if it is known at which."""
    packets = _filtered_packets(readings)
    known = readings.counter("receiver", MEMORY) is not None
    return None if known or packets is None or packets.high <= 0 else packets


def _udp_filter(readings: Readings) -> Span | None:
    either = undivided_packets(readings)
    return Span(0, either.high) if either is not None else _filtered_packets(readings)


def total_packets(ended: Mapping[str, Span], readings: Readings) -> Span:
    """Return how many packets ended at some stages, each of them counted once."""
    each = sum(ended.values(), exactly(0))
    either = undivided_packets(readings)
    if either is None or not ended.keys() >= set(UNDIVIDED):
        return each
    return Span(each.low + either.low, each.high - either.high)


_stage(
    name="udp_filter",
    role="receiver",
    packets=_udp_filter,
    source=f"Δ {ERRORS} − Δ {RCVBUF} − Δ {CHECKSUM} − Δ {MEMORY} − rx_policy; without MemErrors up "
    "to so many",
    means="Dropped by a socket filter (SO_ATTACH_FILTER), or refused by UDP for its length.",
    most=_at_most(_other_errors, skbs.most_queued),
    counters=(ERRORS, MEMORY),
    unit="skb",
    reasons=("SOCKET_FILTER",),
)


def _sockets_explained(readings: Readings) -> int | None:
    fault = readings.record.trial.receive.fault
    if fault is not None and fault.does == "exit":
        return 0  # the drops of the socket that it closed are gone with it
    return readings.counter("receiver", RCVBUF)


def _sockets_possible(readings: Readings) -> int | None:
    others = readings.total("receiver", RCVBUF, CHECKSUM)
    return known_sum((_memory_skbs(readings), _other_errors(readings), others)) or 0


def _full_buffer_skbs(readings: Readings) -> int | None:
    """Return the datagrams for which the traffic's sockets had no room.

    In the built-in lab no more than these dropped without another reason: a stranger may have a
    socket in its namespaces. A program may open sockets that are not known to be its own.
    """
    counted = readings.counter("receiver", RCVBUF)
    drops = readings.counter("receiver", SOCKET_DROPS)
    if counted is None or drops is None or drops >= counted:
        return counted
    if not readings.record.built_in_lab or is_program(readings):
        return counted
    if readings.within is not None and not full_buffers_of_others(readings.within):
        return counted  # the two are read one after the other
    if _own_drops(readings.whole) is None:  # one was closed, and its drops are gone
        return counted
    others = max(_other_errors(readings) or 0, 0) + _late_checksums(readings)
    return max(drops - others, 0)


def full_buffers_of_others(readings: Readings) -> int:
    """Return the datagrams for which other sockets had no room; 0 where that is not known."""
    counted = readings.counter("receiver", RCVBUF) or 0
    return counted - (_full_buffer_skbs(readings) or 0)


_stage(
    name="udp_rcvbuf",
    role="receiver",
    packets=_in_packets("udp_rcvbuf", _full_buffer_skbs, skbs.queued_skb),
    source=f"Δ {RCVBUF}; in the built-in lab up to Δ {SOCKET_DROPS}",
    means="The socket's receive buffer was full: the application did not read fast enough.",
    most=_at_most(_counter("receiver", RCVBUF), skbs.most_queued),
    counters=(RCVBUF,),
    unit="skb",
    parts="socket.",
    also=(
        Also(
            name=f"Δ {SOCKET_DROPS}",
            reads=_counter("receiver", SOCKET_DROPS),
            low=_sockets_explained,
            high=_sockets_possible,
            next_step="another socket in the namespace drops packets",
        ),
    ),
    reasons=("SOCKET_RCVBUFF",),
    no_other_reason=True,
)


def _memory_skbs(readings: Readings) -> int | None:
    """Return the datagrams refused because all UDP sockets together held too much memory.

    Linux 6.18 counts them only at the socket (docs/kernel.md, UDP memory): they are its drops less
    full buffers, filters and late checksums. Without MemErrors those that SNMP counts are left out.
    """
    refused = readings.counter("receiver", MEMORY) or 0
    drops = readings.counter("receiver", SOCKET_DROPS)
    rcvbuf, filtered = readings.counter("receiver", RCVBUF), _other_errors(readings)
    if rcvbuf is None or filtered is None:
        return None
    if drops is None:
        return refused
    explained = rcvbuf + filtered + refused + _late_checksums(readings)
    return refused + max(drops - explained, 0)


def _late_checksums(readings: Readings) -> int:
    return (readings.counter("receiver", CHECKSUM) or 0) if _verified_late(readings) else 0


def _verified_late(readings: Readings) -> bool:
    """Return whether a bad checksum is found only when the datagram is read."""
    size_bytes = readings.record.trial.traffic.size_bytes + UDP_HEADER_BYTES
    return size_bytes > EARLY_CHECKSUM_BYTES


def _most_in_full_memory(readings: Readings) -> int | None:
    """Return at most how many datagrams to the traffic's sockets were refused for their memory.

    SNMP may not count them. Where it and the sockets agree to the packet, it did, or there are
    none; otherwise any drop of the sockets may be one.
    """
    refused, drops = readings.counter("receiver", MEMORY), _own_drops(readings)
    if refused is None:
        refused = max(_other_errors(readings) or 0, 0)
    if drops is None:
        return None if readings.workers("receiver") else refused
    errors = readings.counter("receiver", ERRORS)
    if errors is None:
        return None
    early = 0 if _verified_late(readings) else readings.counter("receiver", CHECKSUM) or 0
    return refused if errors - early == drops else drops


def _own_drops(readings: Readings) -> int | None:
    """Return the drops of the traffic's sockets; None without any, or if one was closed."""
    inodes = [inode for stats in readings.workers("receiver") for inode in stats.socket_inodes]
    drops = [readings.counter("receiver", f"socket.{inode}.drops") for inode in set(inodes)]
    return known_sum(drops) if None not in drops else None


def socket_losses(readings: Readings) -> tuple[tuple[str, ...], Span]:
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


def _udp_memory(readings: Readings) -> Span | None:
    packets, either = _memory_packets(readings), undivided_packets(readings)
    return packets + Span(0, either.high) if packets is not None and either is not None else packets


_memory_packets = _in_packets("udp_memory", _memory_skbs, skbs.queued_skb)
_stage(
    name="udp_memory",
    role="receiver",
    packets=_udp_memory,
    source=f"Δ {MEMORY} + the part of Δ {SOCKET_DROPS} that no other stage explains; without the "
    "first also up to what udp_filter has",
    means="All UDP sockets of the machine together exceeded net.ipv4.udp_mem.",
    most=_at_most(_most_in_full_memory, skbs.most_queued),
    counters=(MEMORY,),
    unit="skb",
    reasons=("PROTO_MEM",),
    no_other_reason=True,
)


def _udp_purged(readings: Readings) -> Span | None:
    """Return the packets that were still queued when their socket was closed.

    None if a worker was to leave on purpose and did not count its queue, or if a program closed one
    of its sockets.
    """
    if is_program(readings) and _own_drops(readings) is None:
        return None
    fault = readings.record.trial.receive.fault
    counted = any("purged_packets" in stats.counts for stats in readings.workers("receiver"))
    if fault is not None and readings.phase.name == "measured" and not counted:
        return None
    return exactly(readings.count("receiver", "purged_packets"))


_stage(
    name="udp_purged",
    role="receiver",
    packets=_udp_purged,
    source="purged_packets",
    means="Still queued when the socket was closed. No kernel counter shows that, so the "
    "process that closes a socket counts its queue first.",
    scope="worker",
)


# --- in the application --------------------------------------------------------------------------


def _app_truncated(readings: Readings) -> Span | None:
    """Return the packets that were cut off; None if the way of reading cannot tell."""
    packets = readings.count("receiver", "truncated_packets")
    blind = is_program(readings) or readings.record.trial.receive.read == "none"
    return None if blind and packets == 0 else exactly(packets)


_stage(
    name="app_truncated",
    role="receiver",
    packets=_app_truncated,
    source="truncated_packets",
    means="Read, but longer than the buffer that the application passed, so its end was lost.",
    # Read without a look at its length, a datagram that was cut off counts as received.
    most=_nothing,
    scope="worker",
    parts="worker.truncated_packets",
)


def _app_log(readings: Readings) -> Span | None:
    """Return the packets that were not logged; None of a program, whose log is its own."""
    return None if is_program(readings) else exactly(unlogged_packets(readings))


_stage(
    name="app_log",
    role="receiver",
    packets=_app_log,
    # A program's datagrams are received once they are read.
    most=_nothing,
    source="unlogged_packets + failed_packets",
    means="Read, but not written to the log: the disk was too slow for its ring, or a "
    "write failed.",
    scope="worker",
    parts="worker.unlogged_packets",
)


# --- answers of a program ------------------------------------------------------------------------


def _app_unanswered(readings: Readings) -> Span | None:
    """Return the packets that were read, and for which no answer was sent.

    ``OutDatagrams`` has no datagram that queue or device dropped within the call that sent it:
    those are ``SndbufErrors``, as are calls that found the socket's own buffer full
    (net/ipv4/udp.c, udp_send_skb). 0 where no answer is awaited.
    """
    if readings.record.trial.traffic.answers is None:
        return exactly(0)
    left = readings.counter("receiver", ANSWERS_OUT)
    if left is None:
        return None
    dropped = lost_answers(readings)
    refused = sum(dropped[name].low for name in ("tx_qdisc", "tx_device") if name in dropped)
    sent = left + min(refused, readings.counter("receiver", SNDBUF) or 0)
    return exactly(max(_read_packets(readings) - sent, 0))


def _read_packets(readings: Readings) -> int:
    """Return what the receivers read, within a phase by the kernel's count."""
    if readings.phase.stats:
        return readings.worked("receiver", "received_packets")
    return readings.counter("receiver", "{udp}InDatagrams") or 0


_stage(
    name="app_unanswered",
    role="receiver",
    packets=_app_unanswered,
    source=f"read − Δ {ANSWERS_OUT} − what tx_qdisc and tx_device dropped of answers, up to "
    f"Δ {SNDBUF}",
    means="With traffic.answers: read, but not answered while answers were awaited.",
    most=unanswered_packets,
    counters=(ANSWERS_OUT,),
)


def lost_answers(readings: Readings) -> dict[str, Span]:
    """Return stage → the answers that ended there on their way back, as far as that is observable.

    The same expressions, with the hosts swapped. What a bridge lost is in ``link``,
    because it does not tell the two ways apart.
    """
    back = readings.way_back
    counted = (name for name in LEDGER_STAGES if _ROWS[name].scope != "worker")
    ended = {name: _ROWS[name].packets(back) for name in counted if name not in OF_ANSWERS}
    return {name: span for name, span in ended.items() if span is not None}


def _answer_lost(readings: Readings) -> Span:
    if readings.record.trial.traffic.answers is None:
        return exactly(0)
    return total_packets(lost_answers(readings), readings.way_back)


_stage(
    name="answer_lost",
    role="sender",
    packets=_answer_lost,
    source="Σ stages from tx_qdisc to udp_memory, read with the hosts swapped",
    means="With traffic.answers: answered, but the answer did not reach the sender's worker. The "
    "stages of the return path are listed beside it.",
    most=unanswered_packets,
    unit="skb",
    parts="answers",
)


def _proven(row: Stage) -> Stage:
    """Return a row that is not observable where its counters are proven not to move.

    What moved all the same is counted as ever; only a 0 proves nothing there.
    """

    def packets(readings: Readings) -> Span | None:
        span = row.packets(readings)
        if span == exactly(0) and readings.is_unmoved(row.role, row.name):
            return None
        return span

    def most(readings: Readings) -> int | None:
        limit = row.most(readings)
        return None if limit == 0 and readings.is_unmoved(row.role, row.name) else limit

    return replace(row, packets=packets, most=most)


STAGES = tuple(_proven(_ROWS[name]) for name in LEDGER_STAGES)
