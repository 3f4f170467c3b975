"""Stages between the sender and the receiver."""

from __future__ import annotations

from udpbench.analysis.ledger import mac_frames, skbs
from udpbench.analysis.ledger.before_ip import backlog_charges_peer, backlog_skbs
from udpbench.analysis.ledger.intended_load import sent_packets
from udpbench.analysis.ledger.sender import PORT_REFUSED, most_at_sender, most_in_qdisc
from udpbench.analysis.ledger.stage import Also, Stage, counter, in_packets
from udpbench.analysis.readings import CounterView, Readings
from udpbench.drivers import ALLOWANCES
from udpbench.model.limits import BEFORE_HOST, Part

PORT_ENTERED = "link.port*.rx_packets"
PORT_LEFT = "link.port*.tx_packets"


def _link_skbs(readings: CounterView) -> int | None:
    """Return what a built-in lab's bridge accepted and did not forward.

    Packets in less packets out, because a bridge drops without counting: packets longer than a
    port's MTU, to a port without a carrier, or in a port's queueing discipline. What its backlog
    refused did not come in, and the sender is charged for it (6.18, tests/lab/test_several.py).
    A veth pair loses nothing between its ends; a cable or a switch cannot be observed.
    """
    link = readings.at("link")
    if not link.hosts:
        return 0 if readings.built_in_lab or readings.wired else None
    entered, left, refused = map(link.counter, (PORT_ENTERED, PORT_LEFT, PORT_REFUSED))
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
    if came is None or readings.built_in_lab or readings.exits:
        return 0  # nodes in the middle count their own
    kept = most_in_qdisc(readings) + (most_at_sender(readings) or 0)
    return max(sent_packets(readings) - kept - came, 0)


def _at_macs(part: Part) -> Also:
    """Return what an end's MACs counted, for a check by hand."""

    def frames(readings: Readings) -> int | None:
        return mac_frames.frames_at_macs(readings.at(part))

    return Also(f"frames at the {part}'s MAC", frames, lambda _: None, lambda _: None, "")


def _allowances(part: Part) -> Also:
    """Return what the hypervisor of an end's hosts limited, which may have been queued only."""
    limited = counter(part, ALLOWANCES)
    return Also(f"allowance exceeded at the {part}", limited, lambda _: None, lambda _: None, "")


ROWS = (
    Stage(
        name="link",
        part="link",
        unprovoked="a veth pair loses nothing between its ends",
        packets=in_packets("link", _link_skbs, skbs.sent_skb),
        source=f"bridge: Δ {PORT_ENTERED} − Δ {PORT_LEFT} + Δ {PORT_REFUSED} − rx_backlog, if "
        "charged here; cards: sent − tx_qdisc − tx_device − frames at the receiver's MAC",
        means="Lost between the hosts: in a cable, a switch, or the host's own emulator. Cards "
        "that count frames at the MAC prove it; otherwise it is what all other stages leave. In a "
        "built-in lab of more than two namespaces: the bridge accepted it but did not forward it, "
        "usually because the ring of the receiver's veth pair was full.",
        most=lambda readings: 0 if readings.wired else None,
        least=_least_on_link,
        parts="damaged.frames",
        also=(
            *(_at_macs("sender"), _at_macs("receiver")),
            *(_allowances("sender"), _allowances("receiver")),
        ),
        unit="skb",
        changed_by=("links", "neighbours", "queueing"),
    ),
)

AHEAD = Stage(
    name=BEFORE_HOST,
    part="link",
    unprovoked="it is what an iperf3 client says, less what this host can explain",
    packets=lambda _: None,
    source="client's count − received − all stages of this host",
    means="Before this host, or never sent: an iperf3 client counts what it tried to send, and of "
    "its host and of the path nothing is known.",
)
"""In place of all stages before the receiver's, where a client sends."""
