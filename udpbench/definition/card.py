"""Settings of a network card: its queues and rings, what steers packets to them, who polls them.

Generators over one host's block, each a place in the order that ``wanted`` gives; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from udpbench.definition.host_block import HostBlock
from udpbench.definition.ranges import parse_cpus
from udpbench.model import Setting

TSO_FEATURES = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
)
"""All off on the sender, or veth takes no UDP into NAPI (veth_skb_is_eligible_for_gro, 6.18)."""

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
ETHERNET_BYTES = 14

RFS_ENTRIES = "net.core.rps_sock_flow_entries"


def shape(wanted: HostBlock) -> Iterator[Setting]:
    """Set channels first: queues and rings are theirs; then what may take the link down, too."""
    if "channels" in wanted.ethtool:
        yield wanted.setting("channels", "", wanted.ethtool["channels"], "ethtool.channels")
    if wanted.ethtool.get("rings"):
        yield wanted.setting("rings", "", wanted.ethtool["rings"], "ethtool.rings")
    if wanted.ethtool.get("pause"):
        switches = {key: int(on) for key, on in wanted.ethtool["pause"].items()}
        yield wanted.setting("pause", "", switches, "ethtool.pause")


def features(wanted: HostBlock) -> Iterator[Setting]:
    """Set what the link needs, then what rules need, then what was asked for, which wins."""
    found: dict[str, tuple[bool, str]] = {}
    if wanted.lab.built_in and wanted.receive == "napi":
        if wanted.built_in_receiver:
            found["rx-gro"] = (True, "link.receive")
        elif not wanted.lab.bridged:
            found = dict.fromkeys(TSO_FEATURES, (False, "link.receive"))
    if wanted.ethtool.get("ntuple"):
        found["rx-ntuple-filter"] = (True, "ethtool.ntuple")
    for name, value in wanted.ethtool.get("features", {}).items():
        for feature in FEATURE_GROUPS.get(name, (name,)):
            found[feature] = (value, f"ethtool.features.{name}")
    for feature, (value, path) in found.items():
        yield wanted.setting("feature", feature, value, path)


def queue_choice(wanted: HostBlock) -> Iterator[Setting]:
    """Set what chooses the RX queue of a packet: hash, table, rules."""
    for flow, fields in wanted.ethtool.get("rx_flow_hash", {}).items():
        yield wanted.setting("flow_hash", flow, fields, f"ethtool.rx-flow-hash.{flow}")
    if "indirection" in wanted.ethtool:
        words = wanted.ethtool["indirection"]
        yield wanted.setting("indirection", "", words, "ethtool.indirection")
    for rule in wanted.ethtool.get("ntuple", ()):
        target = f"udp{wanted.family}/{rule['port']}"
        yield wanted.setting("ntuple", target, rule["queue"], "ethtool.ntuple")


def polling(wanted: HostBlock) -> Iterator[Setting]:
    """Set who polls; after ``up``, for before it veth has no NAPI to thread (EOPNOTSUPP, 6.18)."""
    napi = wanted.block.get("napi", {})
    lab_napi = wanted.built_in_receiver and wanted.receive == "napi"
    threaded = napi.get("threaded", True if lab_napi else None)
    if threaded is not None:
        path = "napi.threaded" if "threaded" in napi else "link.receive"
        yield wanted.setting("device", "threaded", int(threaded), path)
    for key, file, spelled in (
        ("defer_hard_irqs", "napi_defer_hard_irqs", "defer-hard-irqs"),
        ("gro_flush_timeout_ns", "gro_flush_timeout", "gro-flush-timeout"),
    ):
        if key in napi:
            yield wanted.setting("device", file, napi[key], f"napi.{spelled}")
    if "cpus" in napi:
        yield wanted.setting("napi_cpus", "", one_each(napi["cpus"], wanted.queues), "napi.cpus")
    elif lab_napi and threaded:
        cpus = [[wanted.cpus[k % len(wanted.cpus)]] for k in range(wanted.queues)]
        yield wanted.setting("napi_cpus", "", cpus, "link.cpus")
    if wanted.ethtool.get("coalesce"):
        yield wanted.setting("coalesce", "", wanted.ethtool["coalesce"], "ethtool.coalesce")


def interrupts(wanted: HostBlock) -> Iterator[Setting]:
    """Set CPUs of interrupts; they are the machine's, no namespace has any of its own."""
    if "irq" not in wanted.block:
        return
    interface = wanted.host.interface
    for k, cpus in enumerate(one_each(wanted.block["irq"]["cpus"], wanted.queues)):
        yield wanted.beyond("irq", f"{interface}/rx-{k}", cpus, "irq.cpus", "machine")


def flow_table(wanted: HostBlock) -> Iterator[Setting]:
    """Set the machine's part of RFS; a value that the user gives the sysctl itself wins."""
    if "rfs_flows" in wanted.block and RFS_ENTRIES not in wanted.block.get("sysctl", {}):
        yield wanted.beyond("sysctl", RFS_ENTRIES, _table_size(wanted), "rfs", "machine")


def _table_size(wanted: HostBlock) -> int:
    """Return the next power of two, to which the kernel rounds (rps_sock_flow_sysctl, 6.18)."""
    flows = int(wanted.block["rfs_flows"])
    return 1 << (flows - 1).bit_length() if flows else 0


def steering(wanted: HostBlock) -> Iterator[Setting]:
    """Set what is done with a queue's packets; changing channels makes a driver forget it."""
    lab_rps = wanted.built_in_receiver and wanted.receive == "rps" and not wanted.without_root
    if lab_rps and "rps" not in wanted.block:
        # Every queue gets all CPUs and the flow hash chooses: veth hands get_rps_cpu a queue number
        # that is one too high, so that a CPU for each queue would meet the wrong queue (6.18).
        for k in range(wanted.queues):
            yield wanted.setting("rps", f"rx-{k}", list(wanted.cpus), "link.receive")
    for kind, queue in (("rps", "rx"), ("xps", "tx")):
        if kind in wanted.block:
            cpus = one_each(wanted.block[kind]["cpus"], wanted.queues)
            for k, mask in enumerate(cpus):
                yield wanted.setting(kind, f"{queue}-{k}", mask, f"{kind}.cpus")
    if "rfs_flows" in wanted.block:
        # The sum over the queues is the table (Documentation/networking/scaling.rst).
        for k in range(wanted.queues):
            flows = _table_size(wanted) // wanted.queues
            yield wanted.setting("rfs", f"rx-{k}", flows, "rfs")


def one_each(cpus: str, queues: int) -> list[list[int]]:
    """Return the CPUs of each queue: queue k has the k-th of a list, wrapping round."""
    listed = parse_cpus(cpus)
    return [[listed[k % len(listed)]] for k in range(queues)]


def cable(rate_bps: int, block: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the root queue by which a virtual link has a rate; it counts frames without checksum.

    The bucket holds what passes in 1 ms, a tick of the slowest timer; the queue is as long as that
    of a device with its default of 1000 packets, each as large as the MTU lets it be.
    """
    frame_bytes = int(block.get("mtu_bytes", MTU_BYTES)) + ETHERNET_BYTES
    burst_bytes = max(GSO_MAX_BYTES, rate_bps // 8 // 1000)
    limit_bytes = burst_bytes + TXQUEUELEN_PACKETS * frame_bytes
    return {"tbf": {"rate_bps": rate_bps, "burst_bytes": burst_bytes, "limit_bytes": limit_bytes}}
