"""``losses``: packets that a trial loses on purpose, each at a stage that the experiment names.

They are sent in addition to the traffic, to separate ports, where a rule, a BPF program or a full
socket drops them. Owns the settings this needs and the packets to send; sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from udpbench.definition.binding.cpu_placement import Unavailable
from udpbench.definition.binding.host_block import DEFAULT_MTU_BYTES, HostBlock, LabContext
from udpbench.definition.endpoints import parse_ports, parse_to
from udpbench.definition.problems import Place, at
from udpbench.errors import Problem
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts, Setting
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import HEADERS_BYTES, Part
from udpbench.model.work import LossSpec, WorkerSpec
from udpbench.ways import way_to_receive

LOSS_PORTS = {
    "tx_netfilter": 64101,
    "tx_qdisc": 64102,
    "tx_device": 64103,
    "rx_xdp": 64106,
    "rx_backlog": 64107,
    "rx_tc": 64108,
    "rx_ip": 64109,
    "rx_netfilter": 64110,
    "udp_checksum": 64111,
    "udp_no_port": 64112,
    "udp_filter": 64113,
    "udp_rcvbuf": 64114,
    "udp_memory": 64115,
    "udp_purged": 64116,
    "app_truncated": 64117,
}
"""Stages at which packets can be lost on purpose, in a packet's order, and the port of each."""
NODE_PORTS = {
    "fwd_bridge": 64118,
    "fwd_encap": 64125,
    "fwd_ip": 64119,
    "fwd_prerouting": 64120,
    "fwd_mtu": 64121,
    "fwd_netfilter": 64122,
    "fwd_neighbour": 64123,
    "fwd_decap": 64126,
    "fwd_device": 64124,
}
"""The same of the only node in the middle of a built-in lab, or of both ends of its tunnel."""
ALL_PORTS = {**LOSS_PORTS, **NODE_PORTS}
OF_FRAMES = ("fwd_bridge", "fwd_device")
"""Stages of a node that forwards frames; one that routes has all but the first."""
OF_TUNNELS = ("fwd_bridge", "fwd_encap", "fwd_decap")
"""Stages of both ends of a tunnel; a node without any has neither of the last two."""
TOO_LONG = ("fwd_mtu", "fwd_device")
"""Stages whose packets are longer than the MTU of the way out, or of the host behind it."""
MOMENTARY = {
    "rx_backlog": ("net.core.netdev_max_backlog", 0),
    "udp_memory": ("net.ipv4.udp_mem", " ".join([str(2**64 - 1)] * 3)),
}
"""Stage → settings of the whole machine, in force only while its packets are sent."""
UNBATCHED = ("tx_device", "rx_ip", "udp_checksum", *NODE_PORTS)
"""Stages whose packets are sent one by one: frames of our own, or datagrams beyond the MTU."""
PROGRAMS = ("rx_xdp", "rx_tc")
"""Stages whose packets a BPF program drops."""
ASTRAY = "02:75:62:ff:ff:fe"
"""A MAC that no host of a built-in lab has, and for which a tunnel has another network."""
OVERSIZE_BYTES = 100
"""How far an MTU exceeds that of the next host, for losses of packets that are too long."""


def impossible_losses(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield every loss of a trial that this lab can't produce."""
    if not trial.losses:
        return
    known = [stage for stage in trial.losses if stage in ALL_PORTS]
    for stage in trial.losses:
        if stage not in known:
            what = "packets cannot be lost there on purpose"
            yield at(place, f"losses.{stage}", what, "", f"known: {', '.join(ALL_PORTS)}")
    possible = possible_losses(lab)
    wrong = [stage for stage in known if stage not in possible]
    if wrong:
        there = f": {', '.join(wrong)}" if possible else ""
        what = f"packets cannot be lost on purpose in lab {lab.name}{there}"
        limit = "the built-in lab of one sender and one receiver"
        step = "run it with --lab local"
        if set(wrong) <= set(NODE_PORTS):
            name = "bridge" if "fwd_bridge" in wrong else "router"
            name = "vxlan" if {*wrong} & {*OF_TUNNELS[1:]} else name
            limit, step = "a built-in lab with such a node", f"run it with --lab {name}"
        yield at(place, "losses", what, limit, step)
        return
    if possible == tuple(LOSS_PORTS):
        yield from _in_the_way(place, trial, lab)
    else:
        yield from _in_the_way_at_nodes(place, trial, lab)


def possible_losses(lab: Lab) -> tuple[str, ...]:
    """Return the stages at which packets can be lost on purpose in a lab."""
    if lab.built_in and len(lab.middle) == 2 and all(node.tunnel for node in lab.middle):
        return OF_TUNNELS if lab.middle[0].bridge else OF_TUNNELS[1:]
    if not lab.built_in or len(lab.middle) > 1:
        return ()
    for node in lab.middle:
        return OF_FRAMES if node.bridges else tuple(s for s in NODE_PORTS if s not in OF_TUNNELS)
    return tuple(LOSS_PORTS) if lab.joint is None else ()


def _in_the_way_at_nodes(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield every setting of a trial that conflicts with a loss at a node."""
    blocks = [HostBlock(lab, trial, host, LabContext()) for host in lab.hosts]
    for stage in (stage for stage in TOO_LONG if stage in trial.losses):
        for block in blocks:
            if not block.host.receives and block.settings.mtu_bytes is not None:
                what = f"this loss needs the MTU of {block.host.name}"
                yield at(place, f"losses.{stage}", what, "", f"omit settings.{block.host.part}.mtu")
    silent = silent_address(lab, trial.traffic.family)
    if "fwd_neighbour" in trial.losses and silent == _first_address(lab, trial.traffic.family):
        what = "this loss needs an address of the receiver that the traffic is not sent to"
        yield at(place, "losses.fwd_neighbour", what, "two addresses", "give the receiver another")
    yield from _taken_ports(place, trial)


def _first_address(lab: Lab, family: int) -> str:
    return next(_of_family(lab, family), "")


def silent_address(lab: Lab, family: int) -> str:
    """Return the receiver's address whose MAC a node is not given for ``fwd_neighbour``."""
    return ["", *_of_family(lab, family)][-1]


def unlisted(lab: Lab, stage: str) -> str:
    """Return the address that a WireGuard tunnel does not carry packets to, or from, for a loss."""
    if stage == "fwd_encap":
        return silent_address(lab, 4)
    return [text.partition("/")[0] for text in lab.senders[0].addresses if ":" not in text][-1]


def _routes_into_tunnel(lab: Lab) -> bool:
    """Return whether a node routes the traffic into a tunnel (WireGuard)."""
    return any(node.tunnel and not node.bridge for node in lab.middle)


def is_silent(block: HostBlock, peer: Node, address: str) -> bool:
    """Return whether a node is not given the MAC of an address, for a loss."""
    asked = "fwd_neighbour" in block.losses and block.host.part == "middle" and peer.receives
    return asked and address == silent_address(block.lab, block.family)


def _of_family(lab: Lab, family: int) -> Iterator[str]:
    for text in lab.receivers[0].addresses:
        if (":" in text) == (family == 6):
            yield text.partition("/")[0]


def _in_the_way(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield every setting of a trial that conflicts with one of its losses."""
    sender, receiver = (HostBlock(lab, trial, host, LabContext()) for host in lab.ends)
    losses = trial.losses
    rated = isinstance(sender.link.rate_bps, int)
    if "tx_qdisc" in losses and (sender.settings.qdisc is not None or rated):
        key = "receiver.link.rate" if rated else "sender.qdisc"
        what = "a device has one root queue, and this loss needs it"
        yield at(place, "losses.tx_qdisc", what, "", f"omit settings.{key}")
    if "rx_backlog" in losses and receiver.receive != "inline":
        what = f"settings.receiver.link.receive is {receiver.receive}: no packet waits in a backlog"
        yield at(
            place, "losses.rx_backlog", what, "receive: inline", "write link: {receive: inline}"
        )
    if "rx_backlog" in losses and "rx_xdp" in losses:
        what = "a veth with an XDP program is polled: no packet waits in a backlog"
        yield at(place, "losses.rx_backlog", what, "", "use either rx_backlog or rx_xdp")
    for stage in ("rx_xdp", "rx_backlog"):
        way = way_to_receive(trial.receive)
        if stage in losses and "xdp" in way.changes:
            what = f"the interface has the XDP program of {way.key}"
            yield at(place, f"losses.{stage}", what, "", f"omit it, or use {way.other}")
    if "tx_device" in losses and sender.settings.mtu_bytes is not None:
        what = "this loss needs the sender's MTU"
        yield at(place, "losses.tx_device", what, "", "omit settings.sender.mtu")
    yield from _taken_ports(place, trial)


def _taken_ports(place: Place, trial: Trial) -> Iterator[Problem]:
    """Yield a problem if the traffic has a port of a loss."""
    losses = trial.losses
    used = {*parse_to(trial.traffic.flows.to).ports, *parse_ports(trial.traffic.flows.source_ports)}
    taken = sorted(used & {ALL_PORTS.get(stage, 0) for stage in losses})
    if taken:
        what = f"port {taken[0]} is reserved for losses"
        yield at(place, "traffic.flows", what, "", "use ports below 64101")


def loss_settings(block: HostBlock) -> Iterator[Setting]:
    """Yield the settings of one host for its losses; only those of namespace scope."""
    interface, family = block.host.interface, block.family
    settings: dict[str, tuple[Part, str, str, object]] = {
        "tx_netfilter": ("sender", "firewall", f"ipv{family}/output/drop/udp/", True),
        "tx_qdisc": ("sender", "trap", interface, True),
        "tx_device": ("sender", "mtu", interface, block.receiver_mtu_bytes + OVERSIZE_BYTES),
        "rx_xdp": ("receiver", "xdp", interface, LOSS_PORTS["rx_xdp"]),
        # Messages are segmented before the link, so that single packets meet the backlog's limit.
        "rx_backlog": ("sender", "feature", f"{interface}/tx-udp-segmentation", False),
        "rx_tc": ("receiver", "tc_drop", interface, LOSS_PORTS["rx_tc"]),
        "rx_netfilter": ("receiver", "firewall", f"ipv{family}/input/drop/udp/", True),
    }
    for stage, (part, kind, target, value) in settings.items():
        if stage in block.losses and part == block.host.part:
            port = str(LOSS_PORTS[stage]) if kind == "firewall" else ""
            yield Setting(kind, target + port, value, path=f"losses.{stage}")
    yield from _at_node(block)


def _at_node(block: HostBlock) -> Iterator[Setting]:
    """Yield the settings for losses at a node: its own, and the longer MTU up to it."""
    host, family, losses = block.host, block.family, block.losses
    drops = {"fwd_prerouting": "prerouting", "fwd_netfilter": "forward"}
    longest_bytes = block.receiver_mtu_bytes + 2 * OVERSIZE_BYTES
    for stage in (stage for stage in TOO_LONG if stage in losses):
        if not host.receives:
            yield Setting("mtu", host.interface, longest_bytes, path=f"losses.{stage}")
        if host.out:
            less_bytes = longest_bytes - OVERSIZE_BYTES
            yield Setting("mtu", host.out, less_bytes, path=f"losses.{stage}")
        break
    if not host.out:
        return
    if "fwd_decap" in losses and host.tunnel and host.bridge:
        yield Setting("astray", f"{host.tunnel}/{ASTRAY}", True, path="losses.fwd_decap")
    for stage, hook in drops.items():
        if stage in losses:
            target = f"ipv{family}/{hook}/drop/udp/{NODE_PORTS[stage]}"
            yield Setting("firewall", target, True, path=f"losses.{stage}")
    if "fwd_neighbour" in losses:
        # Without a probe to send a look-up fails at once (net/core/neighbour.c).
        name = f"net.ipv{family}.neigh.{host.exit}.mcast_solicit"
        yield Setting("sysctl", name, 0, path="losses.fwd_neighbour")


def _to_mac(stage: str, receiver: Facts, routed: bool) -> str:
    """Return the MAC of a loss's frames; empty: the host's own choice, as of any datagram."""
    if stage == "fwd_decap":
        return "" if routed else ASTRAY
    return receiver.mac or ""


def momentary_setting(stage: str) -> Setting | None:
    """Return the machine's setting while a stage's packets are sent; None if it needs none."""
    if stage not in MOMENTARY:
        return None
    name, value = MOMENTARY[stage]
    return Setting("sysctl", name, value, "machine", f"losses.{stage}")


def loss_specs(
    trial: Trial, worker: WorkerSpec, sender: Facts, receiver: Facts, lab: Lab
) -> tuple[LossSpec, ...]:
    """Return the packets to send for each loss, along a sending worker's first flow.

    In the order in which a packet meets the stages. Raises Unavailable if the traffic is sent to
    the address that a node is not to know.
    """
    mtu_bytes = receiver.mtu or DEFAULT_MTU_BYTES
    flow, gso = worker.flows[0], worker.send.gso if worker.send is not None else "off"
    segments = gso if isinstance(gso, int) else 1
    longest_bytes = trial.traffic.datagrams.longest_bytes
    oversize_bytes = mtu_bytes + OVERSIZE_BYTES - HEADERS_BYTES[trial.traffic.family]
    sizes = {"tx_device": oversize_bytes, "fwd_device": oversize_bytes}
    sizes["fwd_mtu"] = oversize_bytes + OVERSIZE_BYTES
    routed = _routes_into_tunnel(lab)
    if not routed:
        sizes["fwd_encap"] = oversize_bytes - OVERSIZE_BYTES
    silent = silent_address(lab, trial.traffic.family)
    unknown = "fwd_encap" if routed else "fwd_neighbour"
    if unknown in trial.losses and silent in {each.destination for each in worker.flows}:
        what = f"the node is not to know the MAC of {silent}, to which the traffic is sent"
        if routed:
            what = f"the tunnel is not to carry packets to {silent}, to which the traffic is sent"
        raise Unavailable(f"losses.{unknown}: {what}; leave it out of traffic.flows.to")
    return tuple(
        LossSpec(
            stage=stage,
            packets=trial.losses[stage],
            segments=1 if stage in UNBATCHED else segments,
            size_bytes=sizes.get(stage, longest_bytes),
            family=trial.traffic.family,
            source=unlisted(lab, stage) if routed and stage == "fwd_decap" else flow.source,
            destination=silent if stage == unknown else flow.destination,
            port=port,
            source_mac=sender.mac or "",
            destination_mac=_to_mac(stage, receiver, routed),
            gro=trial.receive.gro,
            hops=1 if stage == "fwd_ip" else lab.longest_ttl,
            whole=stage in TOO_LONG or (stage == "fwd_encap" and not routed),
        )
        for stage, port in ALL_PORTS.items()
        if stage in trial.losses
    )
