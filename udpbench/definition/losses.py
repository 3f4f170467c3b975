"""``losses``: packets that a trial loses on purpose, each at a stage that the experiment names.

They are sent in addition to the traffic, to separate ports, where a rule, a BPF program or a full
socket drops them. Owns the settings this needs and the packets to send; sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from udpbench.definition.binding.host_block import DEFAULT_MTU_BYTES, HostBlock, LabContext
from udpbench.definition.endpoints import parse_ports, parse_to
from udpbench.definition.problems import Place, at
from udpbench.errors import Problem
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts, Setting
from udpbench.model.lab import Lab
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
MOMENTARY = {
    "rx_backlog": ("net.core.netdev_max_backlog", 0),
    "udp_memory": ("net.ipv4.udp_mem", " ".join([str(2**64 - 1)] * 3)),
}
"""Stage → settings of the whole machine, in force only while its packets are sent."""
UNBATCHED = ("tx_device", "rx_ip", "udp_checksum")
"""Stages whose packets are sent one by one: frames of our own, or datagrams beyond the MTU."""
PROGRAMS = ("rx_xdp", "rx_tc")
"""Stages whose packets a BPF program drops."""
OVERSIZE_BYTES = 100
"""How far the sender's MTU exceeds the receiver's, for losses of packets that are too long."""


def impossible_losses(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield every loss of a trial that this lab can't produce."""
    if not trial.losses:
        return
    if not lab.built_in or lab.joint is not None:
        limit = "the built-in lab of one sender and one receiver"
        what = f"packets cannot be lost on purpose in lab {lab.name}"
        yield at(place, "losses", what, limit, "run it with --lab local")
        return
    for stage in trial.losses:
        if stage not in LOSS_PORTS:
            what = "packets cannot be lost there on purpose"
            yield at(place, f"losses.{stage}", what, "", f"known: {', '.join(LOSS_PORTS)}")
    yield from _in_the_way(place, trial, lab)


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
    used = {*parse_to(trial.traffic.flows.to).ports, *parse_ports(trial.traffic.flows.source_ports)}
    taken = sorted(used & {LOSS_PORTS.get(stage, 0) for stage in losses})
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


def momentary_setting(stage: str) -> Setting | None:
    """Return the machine's setting while a stage's packets are sent; None if it needs none."""
    if stage not in MOMENTARY:
        return None
    name, value = MOMENTARY[stage]
    return Setting("sysctl", name, value, "machine", f"losses.{stage}")


def loss_specs(
    trial: Trial, worker: WorkerSpec, sender: Facts, receiver: Facts
) -> tuple[LossSpec, ...]:
    """Return the packets to send for each loss, along a sending worker's first flow.

    In the order in which a packet meets the stages.
    """
    mtu_bytes = receiver.mtu or DEFAULT_MTU_BYTES
    flow, gso = worker.flows[0], worker.send.gso if worker.send is not None else "off"
    segments = gso if isinstance(gso, int) else 1
    longest_bytes = trial.traffic.datagrams.longest_bytes
    oversize_bytes = mtu_bytes + OVERSIZE_BYTES - HEADERS_BYTES[trial.traffic.family]
    return tuple(
        LossSpec(
            stage=stage,
            packets=trial.losses[stage],
            segments=1 if stage in UNBATCHED else segments,
            size_bytes=oversize_bytes if stage == "tx_device" else longest_bytes,
            family=trial.traffic.family,
            source=flow.source,
            destination=flow.destination,
            port=port,
            source_mac=sender.mac or "",
            destination_mac=receiver.mac or "",
            gro=trial.receive.gro,
        )
        for stage, port in LOSS_PORTS.items()
        if stage in trial.losses
    )
