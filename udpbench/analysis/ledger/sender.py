"""Stages before the receiver: on the sender, and on the way between the hosts."""

from __future__ import annotations

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.before_ip import TX_DROPPED, backlog_charges_peer, backlog_skbs
from udpbench.analysis.ledger.intended_load import sent_packets, unsent_packets
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import Also, Stage, at_most, counter, in_packets, of_workers
from udpbench.analysis.readings import CounterView, Readings
from udpbench.drivers import ALLOWANCES
from udpbench.model import Role

PORT_ENTERED = "link.port*.rx_packets"
PORT_LEFT = "link.port*.tx_packets"
PORT_REFUSED = "link.port*.rx_dropped"
RULES_OUT = "firewall.*/output/drop/*"
POLICY_OUT = "xfrm.XfrmOutPol*"
"""Counted by each look-up of a route that a policy of IPsec refuses, which returns EPERM
(net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid)."""
NO_STATES = "xfrm.XfrmOutNoStates"


def _policy_refusals(readings: CounterView) -> int | None:
    """Return how many calls at most a policy refused; None if one failed and IPsec counts none."""
    refused = readings.count("sender", "eperm")
    counted = readings.counter("sender", POLICY_OUT) if refused else 0
    return min(refused, max(counted, 0)) if counted is not None else None


def _tx_policy(readings: CounterView) -> Span | None:
    refused = _policy_refusals(readings)
    return exactly(refused) if refused is not None else None


def _firewall_refusals(readings: CounterView) -> Span:
    refused, by_policy = readings.count("sender", "eperm"), _policy_refusals(readings) or 0
    shared = not readings.built_in_lab
    return Span(refused - by_policy, refused if shared else refused - by_policy)


def refusals(readings: CounterView) -> tuple[tuple[str, ...], Span]:
    """Return the stages that a call with EPERM may mean, and how many there were."""
    refused = readings.count("sender", "eperm")
    return ("tx_policy", "tx_netfilter"), exactly(refused)


def _most_without_state(readings: CounterView) -> int:
    """Return at most how many packets were sent into a route of IPsec that leads nowhere.

    Each look-up of such a route counts, and a packet may need several (net/xfrm/xfrm_policy.c:
    make_blackhole). A kernel without the counter has no IPsec as a rule.
    """
    lookups = readings.counter("sender", NO_STATES) or 0
    return min(lookups * skbs.most_packets(readings), sent_packets(readings)) if lookups else 0


def _tx_qdisc(readings: CounterView) -> Span | None:
    drops = readings.counter("sender", skbs.QDISC_DROPS)
    return skbs.dropped_by_qdisc(readings).packets(drops) if drops is not None else None


def _tx_device_skbs(readings: CounterView) -> int | None:
    """Return what the sender's device itself dropped, without what its peer refused."""
    dropped = readings.counter("sender", TX_DROPPED)
    if dropped is None:
        return None
    if readings.bridge is not None:
        dropped -= readings.bridge.total(PORT_REFUSED) or 0
    elif backlog_charges_peer(readings):
        dropped -= backlog_skbs(readings) or 0
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
    dropped = at_most(counter("sender", TX_DROPPED))(readings)
    handed = mac_frames.handed_over(readings)
    left = mac_frames.frames_at_macs(readings, "sender")
    if dropped is None or handed is None or left is None:
        return dropped
    return max(dropped, handed - left)


def _most_in_qdisc(readings: CounterView) -> int:
    return at_most(counter("sender", skbs.QDISC_DROPS))(readings) or 0


def _refused_frames_sent(readings: Readings) -> int | None:
    """Return the frames of which AF_XDP said at once that the device dropped them."""
    send = readings.record.trial.send
    return readings.count("sender", "ebusy") if send.call == "af_xdp" else None


def _link_skbs(readings: CounterView) -> int | None:
    """Return what a built-in lab's bridge accepted and did not forward.

    Packets in less packets out, because a bridge drops without counting: packets longer than a
    port's MTU, to a port without a carrier, or in a port's queueing discipline. What its backlog
    refused did not come in, and the sender is charged for it (6.18, tests/lab/test_several.py).
    A veth pair loses nothing between its ends; a cable or a switch cannot be observed.
    """
    if readings.bridge is None:
        return 0 if readings.built_in_lab else None
    entered, left = readings.bridge.total(PORT_ENTERED), readings.bridge.total(PORT_LEFT)
    refused = readings.bridge.total(PORT_REFUSED)
    if entered is None or left is None or refused is None:
        return None
    charged = backlog_skbs(readings) or 0 if backlog_charges_peer(readings) else 0
    return entered - left + refused - charged


def _least_on_link(readings: Readings) -> int:
    """Return how many packets fewer came in at the receivers' cards than left the senders'.

    Others' frames at the receivers hide as many. Those of the senders are no matter: of the
    traffic at least what the earlier stages did not take has left.
    """
    came = mac_frames.received_frames(readings)
    if came is None or readings.built_in_lab:
        return 0
    kept = _most_in_qdisc(readings) + (_most_at_sender(readings) or 0)
    return max(sent_packets(readings) - kept - came, 0)


def _at_macs(role: Role) -> Also:
    """Return what a role's MACs counted, for a check by hand."""

    def frames(readings: Readings) -> int | None:
        return mac_frames.frames_at_macs(readings, role)

    return Also(f"frames at the {role}'s MAC", frames, lambda _: None, lambda _: None, "")


def _allowances(role: Role) -> Also:
    """Return what the hypervisor of a role's hosts limited, which may have been queued only."""
    limited = counter(role, ALLOWANCES)
    return Also(f"allowance exceeded at the {role}", limited, lambda _: None, lambda _: None, "")


ROWS = (
    Stage(
        name="unsent",
        role="sender",
        packets=of_workers(lambda readings: exactly(unsent_packets(readings))),
        source="intended − sent_packets − eperm",
        means="Intended, but never accepted by the kernel: the sender was too slow for the "
        "rate, or the call failed (no listener, too large, another error). This is not loss.",
        scope="worker",
    ),
    Stage(
        name="tx_policy",
        role="sender",
        packets=_tx_policy,
        source=f"min(eperm, Δ {POLICY_OUT})",
        means="Refused by a policy of the sender's IPsec: the call returned EPERM.",
        most=_policy_refusals,
        counters=(POLICY_OUT,),
    ),
    Stage(
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
                reads=counter("sender", RULES_OUT),
                low=lambda _: 0,
                high=lambda readings: _firewall_refusals(readings).high,
                # A call that sent some messages hides the errno of the one at which it stopped.
                next_step="other traffic of the host matches the rule; or it drops at random or "
                "beyond a limit, and refused packets were sent again: send.call: send reports each "
                "refusal",
            ),
        ),
        reasons=("NETFILTER_DROP",),
    ),
    Stage(
        name="tx_ipsec",
        role="sender",
        packets=lambda readings: Span(0, _most_without_state(readings)),
        source=f"up to Δ {NO_STATES}",
        means="Accepted, and thrown away, because the sender's IPsec has a policy for it and no "
        "state (no keys) yet.",
        most=_most_without_state,
        counters=(NO_STATES,),
    ),
    Stage(
        name="tx_qdisc",
        role="sender",
        packets=_tx_qdisc,
        source=f"Δ {skbs.QDISC_DROPS}; for GSO messages sent_packets − Δ {skbs.QDISC_PACKETS}",
        means="Dropped by the sender's queueing discipline: its queue was full, or its rate "
        "was exceeded.",
        most=at_most(counter("sender", skbs.QDISC_DROPS)),
        counters=(skbs.QDISC_DROPS,),
        unit="skb",
        parts="qdisc.{interface}.tx_queue_*.drops",
        reasons=("QDISC_DROP",),
    ),
    Stage(
        name="tx_device",
        role="sender",
        packets=in_packets("tx_device", _tx_device_skbs, skbs.sent_skb),
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
                low=lambda _: 0,
                high=counter("sender", TX_DROPPED),
                next_step="the driver drops frames and counts them elsewhere: ethtool -S",
            ),
        ),
    ),
    Stage(
        name="link",
        role="receiver",
        packets=in_packets("link", _link_skbs, skbs.sent_skb),
        source=f"bridge: Δ {PORT_ENTERED} − Δ {PORT_LEFT} + Δ {PORT_REFUSED} − rx_backlog, if "
        "charged here; cards: sent − tx_qdisc − tx_device − frames at the receiver's MAC",
        means="Lost between the hosts: in a cable, a switch, or the host's own emulator. Cards "
        "that count frames at the MAC prove it; otherwise it is what all other stages leave. In a "
        "built-in lab of more than two namespaces: the bridge accepted it but did not forward it, "
        "usually because the ring of the receiver's veth pair was full.",
        least=_least_on_link,
        parts="damaged.frames",
        also=(
            *(_at_macs("sender"), _at_macs("receiver")),
            *(_allowances("sender"), _allowances("receiver")),
        ),
        unit="skb",
    ),
)
