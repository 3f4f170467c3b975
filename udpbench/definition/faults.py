"""``faults``: packets that a trial loses on purpose, each at the stage that was asked for.

They are sent beside the traffic, to ports of their own, and something waits for them there: a rule,
a program, a full socket. Owns what is set for that on which host and what is sent; sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from udpbench.definition.host_block import DEFAULT_MTU_BYTES, HostBlock, LabContext
from udpbench.definition.problems import Place, at, raise_all
from udpbench.definition.ranges import parse_ports, parse_to
from udpbench.errors import Problem
from udpbench.model import Experiment, Facts, FaultSpec, Lab, Setting, Trial, WorkerSpec

FAULT_PORTS = {
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
"""Stages at which packets can be lost on purpose, in the packet's order, and the port of each."""
MOMENTARY = {
    "rx_backlog": ("net.core.netdev_max_backlog", 0),
    "udp_memory": ("net.ipv4.udp_mem", " ".join([str(2**64 - 1)] * 3)),
}
"""Stage → what the whole machine is set to while its packets are sent, and not a moment longer."""
SINGLE = ("tx_device", "rx_ip", "udp_checksum")
"""Stages whose packets are sent one by one: frames of our own, or datagrams beyond the MTU."""
PROGRAMS = ("rx_xdp", "rx_tc")
"""Stages whose packets a BPF program drops."""
OVERSIZE_BYTES = 100
"""By how much the sender's MTU is above the receiver's, where packets die for their length."""
HEADERS_BYTES = {4: 28, 6: 48}


def impossible(experiments: Iterable[Experiment], lab: Lab) -> None:
    """Raise InputError with every fault that this lab can't do, before any host is touched."""
    raise_all(
        problem
        for experiment in experiments
        for trial in experiment.points
        if trial.faults
        for problem in _impossible(experiment, trial, lab)
    )


def _impossible(experiment: Experiment, trial: Trial, lab: Lab) -> Iterator[Problem]:
    place = Place(experiment.path)
    if trial.needs.lab and not lab.built_in:
        return  # it will be skipped, with that reason
    if not lab.built_in or lab.bridged:
        limit = "the built-in lab of one sender and one receiver"
        what = f"packets cannot be lost on purpose in lab {lab.name}"
        yield at(place, "faults", what, limit, "run it with --lab local")
        return
    for stage in trial.faults:
        if stage not in FAULT_PORTS:
            what = "no packets can be lost there on purpose"
            yield at(place, f"faults.{stage}", what, "", f"known: {', '.join(FAULT_PORTS)}")
    yield from _in_the_way(place, trial, lab)


def _in_the_way(place: Place, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield what of a trial's own settings leaves no room for a fault."""
    receiver, sender = _block(lab, trial, "receiver"), _block(lab, trial, "sender")
    faults = trial.faults
    if "tx_qdisc" in faults and ("qdisc" in sender.block or sender.link.get("rate")):
        what = "a device has one root queue, and this fault needs it"
        yield at(place, "faults.tx_qdisc", what, "", "leave settings.sender.qdisc out")
    if "rx_backlog" in faults and receiver.receive != "inline":
        what = f"settings.receiver.link.receive is {receiver.receive}: no packet waits in a backlog"
        yield at(
            place, "faults.rx_backlog", what, "receive: inline", "write link: {receive: inline}"
        )
    if "rx_backlog" in faults and "rx_xdp" in faults:
        what = "a veth with an XDP program is polled: no packet waits in a backlog"
        yield at(place, "faults.rx_backlog", what, "", "take one of rx_backlog and rx_xdp")
    if "tx_device" in faults and "mtu_bytes" in sender.block:
        what = "this fault needs the sender's MTU"
        yield at(place, "faults.tx_device", what, "", "leave settings.sender.mtu out")
    used = {*parse_to(trial.traffic.flows.to)[1], *parse_ports(trial.traffic.flows.source_ports)}
    taken = sorted(used & {FAULT_PORTS.get(stage, 0) for stage in faults})
    if taken:
        what = f"port {taken[0]} is of a fault"
        yield at(place, "traffic.flows", what, "", "use ports below 64101")


def _block(lab: Lab, trial: Trial, role: str) -> HostBlock:
    host = lab.senders[0] if role == "sender" else lab.receivers[0]
    return HostBlock(lab, trial, host, LabContext())


def settings(wanted: HostBlock) -> Iterator[Setting]:
    """Yield what waits on one host for the packets that are to be lost; namespace scope alone."""
    for stage in FAULT_PORTS:
        if stage in wanted.faults and stage in _SETTINGS:
            yield from _SETTINGS[stage](wanted)


def _rule(role: str, chain: str, stage: str) -> Callable[[HostBlock], Iterator[Setting]]:
    def part(wanted: HostBlock) -> Iterator[Setting]:
        if wanted.host.role == role:
            target = f"ipv{wanted.family}/{chain}/drop/udp/{FAULT_PORTS[stage]}"
            yield Setting("firewall", target, True, path=f"faults.{stage}")

    return part


def _on(role: str, kind: str, stage: str) -> Callable[[HostBlock], Iterator[Setting]]:
    def part(wanted: HostBlock) -> Iterator[Setting]:
        if wanted.host.role == role:
            value = True if kind == "trap" else FAULT_PORTS[stage]
            yield Setting(kind, wanted.host.interface, value, path=f"faults.{stage}")

    return part


def _larger_than_the_receiver(wanted: HostBlock) -> Iterator[Setting]:
    if wanted.host.role == "sender":
        mtu_bytes = wanted.receiver_mtu_bytes + OVERSIZE_BYTES
        yield Setting("mtu", wanted.host.interface, mtu_bytes, path="faults.tx_device")


def _packets_one_by_one(wanted: HostBlock) -> Iterator[Setting]:
    """Messages must be segmented before the link: one by one packets meet the backlog's limit."""
    if wanted.host.role == "sender":
        target = f"{wanted.host.interface}/tx-udp-segmentation"
        yield Setting("feature", target, False, path="faults.rx_backlog")


_SETTINGS: Mapping[str, Callable[[HostBlock], Iterator[Setting]]] = {
    "tx_netfilter": _rule("sender", "output", "tx_netfilter"),
    "tx_qdisc": _on("sender", "trap", "tx_qdisc"),
    "tx_device": _larger_than_the_receiver,
    "rx_xdp": _on("receiver", "xdp", "rx_xdp"),
    "rx_backlog": _packets_one_by_one,
    "rx_tc": _on("receiver", "tc_drop", "rx_tc"),
    "rx_netfilter": _rule("receiver", "input", "rx_netfilter"),
}


def momentary(stage: str) -> Setting | None:
    """Return what the machine is set to while a stage's packets are sent; None: nothing."""
    if stage not in MOMENTARY:
        return None
    name, value = MOMENTARY[stage]
    return Setting("sysctl", name, value, "machine", f"faults.{stage}")


def specs(
    trial: Trial, worker: WorkerSpec, sender: Facts, receiver: Facts
) -> tuple[FaultSpec, ...]:
    """Return what is to be sent for each fault, as a sending worker does and along its first flow.

    In the packet's order.
    """
    mtu_bytes = receiver.mtu or DEFAULT_MTU_BYTES
    flow, gso = worker.flows[0], worker.send.gso if worker.send is not None else "off"
    segments = gso if isinstance(gso, int) else 1
    oversize_bytes = mtu_bytes + OVERSIZE_BYTES - HEADERS_BYTES[trial.traffic.family]
    return tuple(
        FaultSpec(
            stage=stage,
            packets=trial.faults[stage],
            segments=1 if stage in SINGLE else segments,
            size_bytes=oversize_bytes if stage == "tx_device" else trial.traffic.size_bytes,
            family=trial.traffic.family,
            source=flow.source,
            destination=flow.destination,
            port=port,
            source_mac=sender.mac or "",
            destination_mac=receiver.mac or "",
            gro=trial.receive.gro,
        )
        for stage, port in FAULT_PORTS.items()
        if stage in trial.faults
    )
