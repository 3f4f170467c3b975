"""Stages in the receiver's IP layer: its own checks, and the firewall; read at any node."""

from __future__ import annotations

from collections.abc import Mapping

from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.skbs import Span, exactly, narrowed, sum_of
from udpbench.analysis.ledger.stage import Also, Stage, at, at_most, spanned
from udpbench.analysis.readings import AnyNode, known_sum

OTHER_HOST = "link.{interface}.rx_otherhost_dropped"
RULES_IN = ("firewall.*/input/drop/*", "firewall.*/prerouting/drop/*")
RECEIVES = "{ip}InReceives"
DELIVERS = "{ip}InDelivers"
FORWARDED = "{ip}*ForwDatagrams"
"""``ForwDatagrams`` of IPv4, ``OutForwDatagrams`` of IPv6."""
FRAGMENTS = "{ip}ReasmReqds"
REASSEMBLED = "{ip}ReasmOKs"
MULTICASTS = "snmp6.Ip6InMcastPkts"
ICMP6 = "snmp6.Icmp6InMsgs"
IP_REFUSED = (
    "{ip}InHdrErrors",
    "{ip}InAddrErrors",
    "{ip}InDiscards",
    "{ipx}InTruncatedPkts",
    "{ipx}InNoRoutes",
)
"""Disjoint, and all of packets that InReceives has counted (net/ipv4/ip_input.c, ip6_input.c)."""
REVERSE_PATH = "netstat.TcpExt.IPReversePathFilter"
CONNTRACK = ("conntrack.drop", "conntrack.chainlength")
"""Packets without an entry: the table or the bucket is full, or two packets made the same one."""
MARTIANS = ("rt_cache.in_martian_src", "rt_cache.in_martian_dst")


def _gap_skbs(node: AnyNode) -> int | None:
    """Return the skbs that entered the IP layer and neither left it nor were refused.

    Fragments enter one by one and leave as one datagram. What the host forwards is counted as it
    enters and as it leaves, and is never delivered (net/ipv4/ip_forward.c: ip_forward).
    """
    missing = missing_skbs(node)
    return missing - _undelivered_multicasts(node) if missing is not None else None


def missing_skbs(node: AnyNode) -> int | None:
    """Return those and others' multicasts that nobody listens to."""
    receives, delivers = node.total(RECEIVES), node.total(DELIVERS)
    if receives is None or delivers is None:
        return None
    fragments = node.total(FRAGMENTS) or 0
    whole = node.total(REASSEMBLED) or 0
    forwarded = node.total(FORWARDED) or 0
    return receives - fragments + whole - delivers - forwarded - _refused_skbs(node)


def most_missing_skbs(node: AnyNode) -> int | None:
    """Return at most how many of the traffic are missing.

    None where more left the IP layer than entered it: a packet that IPsec decrypts is delivered
    twice, and may hide a missing one.
    """
    missing = missing_skbs(node)
    return None if missing is not None and missing < 0 else missing


def _undelivered_multicasts(node: AnyNode) -> int:
    """Return the least number of IPv6 multicasts that came in without a listener on the host.

    Hosts announce groups and look for routers, and most of that is not delivered. What is delivered
    counts as ICMPv6, as do neighbours' unicasts, so the difference is a lower bound.
    """
    if node.view.traffic.family == 4:
        return 0
    multicasts = node.counter(MULTICASTS) or 0
    delivered = node.counter(ICMP6) or 0
    return max(multicasts - delivered, 0)


def _refused_skbs(node: AnyNode) -> int:
    refused = node.total(*IP_REFUSED) or 0
    if node.view.traffic.family == 6:
        return refused
    return refused + (node.counter(REVERSE_PATH) or 0)


def told_apart(missing: int, rules: int | None, silent: Mapping[str, Span]) -> dict[str, Span]:
    """Return how many of the missing skbs each cause took that no counter has alone.

    ``rules`` is what the firewall's own counters say that it dropped; None: they do not. What all
    of them leave is the firewall's.
    """
    if missing < 0:
        return {**dict.fromkeys(silent, exactly(0)), "rules": exactly(missing)}
    least = rules if rules is not None and rules <= missing else 0
    fully = rules == least and least + sum_of(silent).high >= missing
    limits = {
        name: Span(min(span.low, missing - least), min(span.high, missing))
        for name, span in silent.items()
    }
    return narrowed(exactly(missing), {**limits, "rules": Span(least, least if fully else missing)})


def rules_dropped(node: AnyNode, *hooks: str) -> int | None:
    """Return what rules dropped at some hooks, if each that may drop counts it."""
    whose = "rules" if node.view.traffic.family == 4 else "rules6"
    names = [f"{whose}.{hook}.drops" for hook in hooks]
    counted = [node.view.of_host(host, name) for host in node.hosts for name in names]
    return None if None in counted else known_sum(counted)


def martians(node: AnyNode) -> Span:
    """Return at most how many impossible addresses came in, as the machine counts them.

    For all its namespaces: so many were of the traffic only if nothing else explains them.
    """
    return Span(0, most_counted_by_machine(node, *MARTIANS, beyond=REVERSE_PATH))


def most_counted_by_machine(node: AnyNode, *names: str, beyond: str) -> int:
    """Return how many packets counters of the machine have that no namespace's own has; of IPv4.

    The machine counts with them what hosts count themselves (net/ipv4/route.c).
    """
    view = node.view
    if view.traffic.family == 6:
        return 0
    counted = sum(node.machine_counter(name) or 0 for name in names)
    there = [host for host in view.deltas if view.machine_of(host) in node.machines]
    return max(counted - sum(view.of_host(host, beyond) or 0 for host in there), 0)


def _martians_of(node: AnyNode) -> Span:
    rules = rules_dropped(node, "prerouting", "input")
    tracked = Span(0, node.total(*CONNTRACK) or 0)
    silent = {"martians": martians(node), "tracked": tracked}
    return told_apart(_gap_skbs(node) or 0, rules, silent)["martians"]


def undecided_skbs(node: AnyNode) -> int:
    """Return how many skbs ended at either of the two stages, as nobody else tells."""
    span = _martians_of(node)
    return span.high - span.low if _ip_skbs(node) is not None else 0


def _ip_skbs(node: AnyNode) -> Span | None:
    """Return what is counted; None if that is 0 and frames to another MAC are not (before 5.19)."""
    refused = _ip_refused(node, _martians_of(node))
    seen = _sees_other_hosts_frames(node) or (refused is not None and refused.high)
    return refused if seen else None


def most_refused_by_ip(node: AnyNode) -> int | None:
    """Return at most how many of the traffic are among them."""
    if not _sees_other_hosts_frames(node):
        return None
    most = min(max(missing_skbs(node) or 0, 0), martians(node).high)
    refused = _ip_refused(node, exactly(most))
    return None if refused is None else refused.high


def _sees_other_hosts_frames(node: AnyNode) -> bool:
    return node.counter(OTHER_HOST) is not None


def _ip_refused(node: AnyNode, martian: Span) -> Span | None:
    if node.total(RECEIVES) is None:
        return None
    other_host = node.counter(OTHER_HOST) or 0
    return exactly(_refused_skbs(node) + other_host) + martian


def _netfilter_skbs(node: AnyNode) -> Span | None:
    """Return what is missing within the IP layer and was not refused by it."""
    gap, martian = _gap_skbs(node), _martians_of(node)
    return None if gap is None else Span(gap - martian.high, gap - martian.low)


def _most_filtered(node: AnyNode) -> int | None:
    span = _netfilter_skbs(node)
    return None if span is None else span.high


def _own_rules(node: AnyNode) -> int:
    """Return what udpbench's own rules dropped on the ports of the traffic."""
    ports = {flow.destination_port for spec in node.view.specs for flow in spec.flows}
    counted = (
        node.total(*(f"{pattern[:-1]}udp/{port}" for pattern in RULES_IN)) for port in sorted(ports)
    )
    return known_sum(counted) or 0


ROWS = (
    Stage(
        name="rx_ip",
        part="receiver",
        packets=spanned("rx_ip", lambda view: _ip_skbs(view.receiver), skbs.received_skb),
        source=f"Δ {' + '.join((*IP_REFUSED, REVERSE_PATH, OTHER_HOST))} + at most the martians of "
        "rt_cache, of what no rule dropped",
        means="Refused by the IP layer: a bad header, an address that is not the host's, a "
        "source that fails the reverse path filter, or a frame to another MAC address.",
        most=at_most(at("receiver", most_refused_by_ip)),
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
        refuses=True,
        changed_by=("addresses", "routes", "neighbours", "links"),
    ),
    Stage(
        name="rx_netfilter",
        part="receiver",
        packets=spanned(
            "rx_netfilter", lambda view: _netfilter_skbs(view.receiver), skbs.received_skb
        ),
        source=f"Δ {RECEIVES} − Δ {FRAGMENTS} + Δ {REASSEMBLED} − Δ {DELIVERS} − Δ {FORWARDED} − "
        f"what rx_ip counts after {RECEIVES}; over IPv6 also − (Δ {MULTICASTS} − Δ {ICMP6}), if "
        "above 0",
        means="Dropped by the receiver's firewall, in PREROUTING or INPUT: it entered the IP "
        "layer, was not refused there, and did not leave it.",
        most=at_most(at("receiver", most_missing_skbs)),
        least=lambda readings: _own_rules(readings.receiver),
        counters=(RECEIVES, DELIVERS, FORWARDED),
        unit="skb",
        parts="firewall.*/drop/*",
        also=(
            Also(
                name="Δ firewall.*/drop/*",
                reads=lambda readings: readings.receiver.total(*RULES_IN),
                low=lambda _: 0,
                high=at("receiver", _most_filtered),
                next_step="other traffic of the host matches the rule",
            ),
        ),
        reasons=("NETFILTER_DROP",),
        refuses=True,
        meant_by="rules",
        changed_by=("firewall",),
    ),
)
