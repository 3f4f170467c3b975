"""Settings of a network card: queues, rings, steering and polling.

Pure generators over one host's block, each one of ``setting_order.PARTS``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from udpbench.definition.binding.host_block import HostBlock
from udpbench.definition.endpoints import parse_cpus
from udpbench.host_settings import Napi, Settings, set_keys
from udpbench.model.host import Setting
from udpbench.model.limits import ETHERNET_BYTES

TSO_FEATURES = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
)
"""All must be off on the sender, or veth takes no UDP into NAPI (veth_skb_is_eligible_for_gro,
6.18)."""

FEATURE_GROUPS = {
    "gro": ("rx-gro",),
    "lro": ("rx-lro",),
    "gso": ("tx-generic-segmentation",),
    "tso": TSO_FEATURES,
    "ntuple": ("rx-ntuple-filter",),
}
"""Names that ethtool has for one or more kernel features."""

GSO_MAX_BYTES = 65536
"""A bucket must hold the largest packet that a device is given (GSO_LEGACY_MAX_SIZE)."""
TXQUEUELEN_PACKETS = 1000
"""A device's default (include/net/pkt_sched.h: DEFAULT_TX_QUEUE_LEN)."""
MTU_BYTES = 1500

RFS_ENTRIES = "net.core.rps_sock_flow_entries"


def flow_control(block: HostBlock) -> Iterator[Setting]:
    """Set Ethernet flow control, in ethtool's 0 and 1."""
    if pause := set_keys(block.ethtool.pause):
        switches = {key: int(on) for key, on in pause.items()}
        yield block.setting("pause", "", switches, "ethtool.pause")


def features(block: HostBlock) -> Iterator[Setting]:
    """Set the link's requirements, then those of rules, then the user's values, which win."""
    switches: dict[str, tuple[bool, str]] = {}
    if block.lab.built_in and block.receive == "napi":
        if block.built_in_receiver:
            switches["rx-gro"] = (True, "link.receive")
        elif block.lab.joint is None:
            switches = dict.fromkeys(TSO_FEATURES, (False, "link.receive"))
    if block.ethtool.ntuple:
        switches["rx-ntuple-filter"] = (True, "ethtool.ntuple")
    for name, value in (block.ethtool.features or {}).items():
        for feature in FEATURE_GROUPS.get(name, (name,)):
            switches[feature] = (value, f"ethtool.features.{name}")
    for feature, (value, path) in switches.items():
        yield block.setting("feature", feature, value, path)


def steering_rules(block: HostBlock) -> Iterator[Setting]:
    """Set the RX queue of packets to a port."""
    for rule in block.ethtool.ntuple or ():
        target = f"udp{block.family}/{rule.port}"
        yield block.setting("ntuple", target, rule.queue, "ethtool.ntuple")


def polling(block: HostBlock) -> Iterator[Setting]:
    """Set who polls; after ``up``, because veth has no NAPI before (EOPNOTSUPP, 6.18)."""
    napi = block.settings.napi or Napi()
    lab_napi = block.built_in_receiver and block.receive == "napi"
    threaded = lab_napi if napi.threaded is None else napi.threaded
    if lab_napi or napi.threaded is not None:
        path = "link.receive" if napi.threaded is None else "napi.threaded"
        yield block.setting("device", "threaded", int(threaded), path)
    for value, file, key in (
        (napi.defer_hard_irqs, "napi_defer_hard_irqs", "defer-hard-irqs"),
        (napi.gro_flush_timeout_ns, "gro_flush_timeout", "gro-flush-timeout"),
    ):
        if value is not None:
            yield block.setting("device", file, value, f"napi.{key}")
    if napi.cpus is not None:
        yield block.setting("napi_cpus", "", one_each(napi.cpus, block.queues), "napi.cpus")
    elif lab_napi and threaded:
        cpus = [[block.cpus[k % len(block.cpus)]] for k in range(block.queues)]
        pinned = block.setting("napi_cpus", "", cpus, "link.cpus")
        # Before Linux 6.8 another lab's threads may have the same names.
        yield replace(pinned, optional=pinned.optional or block.link.cpus is None)


def interrupts(block: HostBlock) -> Iterator[Setting]:
    """Set CPUs of interrupts, which belong to the machine, never to a namespace."""
    if block.settings.irq is None:
        return
    interface = block.host.interface
    for k, cpus in enumerate(one_each(block.settings.irq.cpus, block.queues)):
        yield block.beyond("irq", f"{interface}/rx-{k}", cpus, "irq.cpus")


def flow_table(block: HostBlock) -> Iterator[Setting]:
    """Set the machine's part of RFS; a value the user wrote for the sysctl itself wins."""
    flows = block.settings.rfs_flows
    if flows is not None and RFS_ENTRIES not in (block.settings.sysctl or {}):
        yield block.beyond("sysctl", RFS_ENTRIES, _table_size(flows), "rfs", "machine")


def _table_size(flows: int) -> int:
    """Return the next power of two, to which the kernel rounds (rps_sock_flow_sysctl, 6.18)."""
    return 1 << (flows - 1).bit_length() if flows else 0


def steering(block: HostBlock) -> Iterator[Setting]:
    """Set RPS, XPS and RFS of the queues; a driver forgets them when channels change."""
    lab_rps = block.built_in_receiver and block.receive == "rps" and not block.without_root
    settings = block.settings
    if lab_rps and settings.rps is None:
        # Every queue gets all CPUs and the flow hash chooses: veth hands get_rps_cpu a queue number
        # that is one too high, so that one CPU per queue would apply to the wrong queue (6.18).
        for k in range(block.queues):
            yield block.setting("rps", f"rx-{k}", list(block.cpus), "link.receive")
    for kind, queue, chosen in (("rps", "rx", settings.rps), ("xps", "tx", settings.xps)):
        if chosen is not None:
            for k, mask in enumerate(one_each(chosen.cpus, block.queues)):
                yield block.setting(kind, f"{queue}-{k}", mask, f"{kind}.cpus")
    if settings.rfs_flows is not None:
        # The sum over the queues is the table (Documentation/networking/scaling.rst).
        for k in range(block.queues):
            flows = _table_size(settings.rfs_flows) // block.queues
            yield block.setting("rfs", f"rx-{k}", flows, "rfs")


def one_each(cpus: str, queues: int) -> list[list[int]]:
    """Return the CPUs of each queue: queue k gets the k-th of a list, wrapping round."""
    listed = parse_cpus(cpus)
    return [[listed[k % len(listed)]] for k in range(queues)]


def cable(rate_bps: int, block: Settings) -> dict[str, dict[str, int]]:
    """Return the root queue that limits a virtual link's rate; it counts frames without checksum.

    The bucket holds what passes in 1 ms, a tick of the slowest timer; the queue is as long as a
    device's default of 1000 packets, each of the size of the MTU.
    """
    mtu_bytes = MTU_BYTES if block.mtu_bytes is None else block.mtu_bytes
    frame_bytes = mtu_bytes + ETHERNET_BYTES
    burst_bytes = max(GSO_MAX_BYTES, rate_bps // 8 // 1000)
    limit_bytes = burst_bytes + TXQUEUELEN_PACKETS * frame_bytes
    return {"tbf": {"rate_bps": rate_bps, "burst_bytes": burst_bytes, "limit_bytes": limit_bytes}}
