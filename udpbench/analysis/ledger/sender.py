"""Stages of the sender."""

from __future__ import annotations

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.before_ip import TX_DROPPED, backlog_charges_peer, backlog_skbs
from udpbench.analysis.ledger.intended_load import sent_packets, unsent_packets
from udpbench.analysis.ledger.skbs import Span, exactly
from udpbench.analysis.ledger.stage import Also, Stage, at_most, counter, in_packets, of_workers
from udpbench.analysis.readings import CounterView, Readings
from udpbench.ways import way_to_send

PORT_REFUSED = "link.port*.rx_dropped"
RULES_OUT = "firewall.*/output/drop/*"
POLICY_OUT = "xfrm.XfrmOutPol*"
"""Counted by each look-up of a route that a policy of IPsec refuses, which returns EPERM
(net/xfrm/xfrm_policy.c: xfrm_lookup_with_ifid)."""
NO_STATES = "xfrm.XfrmOutNoStates"


def _policy_refusals(readings: CounterView) -> int | None:
    """Return how many calls at most a policy refused; None if one failed and IPsec counts none."""
    refused = readings.sender.count("eperm")
    counted = readings.sender.counter(POLICY_OUT) if refused else 0
    return min(refused, max(counted, 0)) if counted is not None else None


def _tx_policy(readings: CounterView) -> Span | None:
    refused = _policy_refusals(readings)
    return exactly(refused) if refused is not None else None


def _firewall_refusals(readings: CounterView) -> Span:
    refused, by_policy = readings.sender.count("eperm"), _policy_refusals(readings) or 0
    shared = not readings.built_in_lab
    return Span(refused - by_policy, refused if shared else refused - by_policy)


def refusals(readings: CounterView) -> tuple[tuple[str, ...], Span]:
    """Return the stages that a call with EPERM may mean, and how many there were."""
    refused = readings.sender.count("eperm")
    return ("tx_policy", "tx_netfilter"), exactly(refused)


def _most_without_state(readings: CounterView) -> int:
    """Return at most how many packets were sent into a route of IPsec that leads nowhere.

    Each look-up of such a route counts, and a packet may need several (net/xfrm/xfrm_policy.c:
    make_blackhole). A kernel without the counter has no IPsec as a rule.
    """
    lookups = readings.sender.counter(NO_STATES) or 0
    return min(lookups * skbs.most_packets(readings), sent_packets(readings)) if lookups else 0


def _tx_qdisc(readings: CounterView) -> Span | None:
    drops = readings.sender.counter(skbs.QDISC_DROPS)
    return skbs.dropped_by_qdisc(readings).packets(drops) if drops is not None else None


def _tx_device_skbs(readings: CounterView) -> int | None:
    """Return what the sender's device itself dropped, without what its peer refused."""
    dropped = readings.sender.counter(TX_DROPPED)
    if dropped is None:
        return None
    link = readings.at("link")
    if link.hosts:
        dropped -= link.counter(PORT_REFUSED) or 0
    elif backlog_charges_peer(readings.first_hop):
        dropped -= backlog_skbs(readings.first_hop) or 0
    return dropped


def _least_at_sender(readings: Readings) -> int:
    """Return how many packets fewer left the senders' cards as frames than were sent."""
    left = mac_frames.frames_at_macs(readings.sender)
    if left is None:
        return 0
    return max(sent_packets(readings) - most_in_qdisc(readings) - left, 0)


def most_at_sender(readings: Readings) -> int | None:
    """Return at most how many packets a sender's device dropped, or its card never sent."""
    # What the receiver's backlog refused is not known of others' packets, so it stays in.
    dropped = at_most(counter("sender", TX_DROPPED))(readings)
    handed = mac_frames.handed_over(readings)
    left = mac_frames.frames_at_macs(readings.sender)
    if dropped is None or handed is None or left is None:
        return dropped
    return max(dropped, handed - left)


def most_in_qdisc(readings: CounterView) -> int:
    """Return at most how many packets a sender's queueing discipline dropped."""
    return at_most(counter("sender", skbs.QDISC_DROPS))(readings) or 0


def _refused_frames_sent(readings: Readings) -> int | None:
    """Return the frames of which AF_XDP said at once that the device dropped them."""
    by_frames = way_to_send(readings.record.trial.send).takes == "frames"
    return readings.sender.count("ebusy") if by_frames else None


ROWS = (
    Stage(
        name="unsent",
        part="sender",
        unprovoked="no loss: the sending worker counts what it did not send",
        packets=of_workers(lambda readings: exactly(unsent_packets(readings))),
        source="intended − sent_packets − eperm",
        means="Intended, but never accepted by the kernel: the sender was too slow for the "
        "rate, or the call failed (no listener, too large, another error). This is not loss.",
        scope="worker",
        changed_by=("routes", "neighbours", "addresses", "links", "queueing"),
    ),
    Stage(
        name="tx_policy",
        part="sender",
        unprovoked="no policy of IPsec is made to lose packets",
        packets=_tx_policy,
        source=f"min(eperm, Δ {POLICY_OUT})",
        means="Refused by a policy of the sender's IPsec: the call returned EPERM.",
        most=_policy_refusals,
        counters=(POLICY_OUT,),
        refuses=True,
        changed_by=("policies",),
    ),
    Stage(
        name="tx_netfilter",
        part="sender",
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
        refuses=True,
        changed_by=("firewall",),
    ),
    Stage(
        name="tx_ipsec",
        part="sender",
        unprovoked="no policy of IPsec is made to lose packets",
        packets=lambda readings: Span(0, _most_without_state(readings)),
        source=f"up to Δ {NO_STATES}",
        means="Accepted, and thrown away, because the sender's IPsec has a policy for it and no "
        "state (no keys) yet.",
        most=_most_without_state,
        counters=(NO_STATES,),
        refuses=True,
        changed_by=("policies",),
    ),
    Stage(
        name="tx_qdisc",
        part="sender",
        packets=_tx_qdisc,
        source=f"Δ {skbs.QDISC_DROPS}; for GSO messages sent_packets − Δ {skbs.QDISC_PACKETS}",
        means="Dropped by the sender's queueing discipline: its queue was full, or its rate "
        "was exceeded.",
        most=at_most(counter("sender", skbs.QDISC_DROPS)),
        counters=(skbs.QDISC_DROPS,),
        unit="skb",
        parts="qdisc.{interface}.tx_queue_*.drops",
        reasons=("QDISC_DROP",),
        changed_by=("queueing",),
    ),
    Stage(
        name="tx_device",
        part="sender",
        packets=in_packets("tx_device", _tx_device_skbs, skbs.sent_skb),
        source=f"Δ {TX_DROPPED} − rx_backlog or a bridge's Δ {PORT_REFUSED}, if charged here; of a "
        "card also what it took and its MAC did not send",
        means="Dropped by the sender's device. In the lab: the ring of the veth pair was "
        "full because the receiving CPU did not poll it in time, or the packet was longer than "
        "the receiver's MTU.",
        most=most_at_sender,
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
        changed_by=("links", "neighbours", "queueing"),
    ),
)
