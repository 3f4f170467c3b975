"""Parsers for kernel counters: text in, counters by dotted name out.

Owns the layout of every counter file and the names in ``model.Snapshot``; opens no file. Returns
only monotonic counters, not queue lengths or configured values.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

from udpbench.agent.host.files import lines_of
from udpbench.agent.host.genetlink import attributes as netlink_attributes
from udpbench.agent.host.genetlink import numbers

SNMP_PROTOCOLS = ("Ip", "Icmp", "Udp", "TcpExt", "IpExt")
"""The first three are in /proc/net/snmp, the others in /proc/net/netstat."""
NOT_COUNTERS = ("Ip.Forwarding", "Ip.DefaultTTL")
SOFTNET_COLUMNS = {
    "processed": 0,
    "dropped": 1,
    "time_squeeze": 2,
    "received_rps": 9,
    "flow_limit_count": 10,
}
SOFTNET_CPU_COLUMN = 12
"""Since Linux 5.10; older kernels do not print the CPU."""
CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of /proc/stat; guest and guest_nice follow and are part of user and nice."""
SOFTIRQS = ("NET_TX", "NET_RX")
NOT_STATISTICS = ("peer_ifindex",)
"""veth lists this index among its statistics."""
SNMP6_PREFIXES = ("Ip6", "Icmp6", "Udp6")
"""The blocks of /proc/net/snmp6; UdpLite6 has its own MIB."""
LINK_STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "rx_compressed",
    "tx_compressed",
    "rx_nohandler",
    "rx_otherhost_dropped",
)
"""struct rtnl_link_stats64 (include/uapi/linux/if_link.h); older kernels end it earlier."""
IFLA_STATS_LINK_64 = 1  # include/uapi/linux/if_link.h
MAC_STATISTICS = {
    1: (
        "eth-mac",
        (
            "FramesTransmittedOK",
            "SingleCollisionFrames",
            "MultipleCollisionFrames",
            "FramesReceivedOK",
            "FrameCheckSequenceErrors",
            "AlignmentErrors",
            "OctetsTransmittedOK",
            "FramesWithDeferredXmissions",
            "LateCollisions",
            "FramesAbortedDueToXSColls",
            "FramesLostDueToIntMACXmitError",
            "CarrierSenseErrors",
            "OctetsReceivedOK",
            "FramesLostDueToIntMACRcvError",
            "MulticastFramesXmittedOK",
            "BroadcastFramesXmittedOK",
            "FramesWithExcessiveDeferral",
            "MulticastFramesReceivedOK",
            "BroadcastFramesReceivedOK",
            "InRangeLengthErrors",
            "OutOfRangeLengthField",
            "FrameTooLongErrors",
        ),
    ),
    3: (
        "rmon",
        (
            "etherStatsUndersizePkts",
            "etherStatsOversizePkts",
            "etherStatsFragments",
            "etherStatsJabbers",
        ),
    ),
}
"""Group number → name and {statistic number: name}
(include/uapi/linux/ethtool_netlink.h: ETHTOOL_A_STATS_ETH_MAC_*, ETHTOOL_A_STATS_RMON_*; names as
printed by ``ethtool --groups``). Of rmon only errors and sizes, because its packets and octets
include errors."""
QUEUE_STATISTICS = {
    8: "packets",
    9: "bytes",
    10: "packets",
    11: "bytes",
    12: "alloc-fail",
    13: "hw-drops",
    14: "hw-drop-overruns",
    24: "hw-drops",
    33: "stop",
    34: "wake",
}
"""NETDEV_A_QSTATS_* → its name without rx or tx (include/uapi/linux/netdev.h, Linux 6.9; drops
since 6.10)."""
QSTATS_QUEUE_TYPE, QSTATS_QUEUE_ID = 2, 3
STATS_GRP, STATS_GRP_ID, STATS_GRP_STAT = 4, 2, 4


def parse_snmp(text: str, prefix: str) -> dict[str, int]:
    """Return ``<prefix>.Udp.NoPorts`` and the like of /proc/net/snmp or /proc/net/netstat.

    Each protocol has a line of names and a line of values (net/ipv4/proc.c).
    """
    counters = {}
    lines = lines_of(text)
    for names, values in zip(lines[::2], lines[1::2]):
        protocol, _, rest = names.partition(":")
        if protocol not in SNMP_PROTOCOLS:
            continue
        for name, value in zip(rest.split(), values.partition(":")[2].split()):
            if f"{protocol}.{name}" not in NOT_COUNTERS:
                counters[f"{prefix}.{protocol}.{name}"] = int(value)
    return counters


def parse_snmp6(text: str) -> dict[str, int]:
    """Return ``snmp6.Udp6NoPorts`` and the like of /proc/net/snmp6: a name and a value per line."""
    counters = {}
    for line in lines_of(text):
        name, _, value = line.partition(" ")
        if name.startswith(SNMP6_PREFIXES):
            counters[f"snmp6.{name}"] = int(value.strip())
    return counters


def parse_softnet(text: str, online: Sequence[int]) -> dict[str, int]:
    """Return ``softnet.cpu0.dropped`` and the like of /proc/net/softnet_stat.

    Each online CPU has a line of 11, 13 or 15 hexadecimal columns, depending on the kernel
    (net/core/net-procfs.c); ``online`` lists the CPUs for kernels that do not print them.
    """
    counters = {}
    for position, line in enumerate(lines_of(text)):
        columns = [int(column, 16) for column in line.split()]
        named = len(columns) > SOFTNET_CPU_COLUMN
        cpu = columns[SOFTNET_CPU_COLUMN] if named else online[position]
        for name, column in SOFTNET_COLUMNS.items():
            if column < len(columns):
                counters[f"softnet.cpu{cpu}.{name}"] = columns[column]
    return counters


def parse_rt_cache(text: str) -> dict[str, int]:
    """Return ``rt_cache.in_martian_src`` and the like, summed over the CPUs' hexadecimal lines.

    ``entries`` is a gauge, equal in every line, and omitted (net/ipv4/route.c).
    """
    return _per_cpu_lines(text, "rt_cache")


def parse_neighbours(text: str) -> dict[str, int]:
    """Return ``arp_cache.unresolved_discards`` and ``arp_cache.res_failed``, over all CPUs."""
    counted = _per_cpu_lines(text, "arp_cache")
    kept = ("arp_cache.unresolved_discards", "arp_cache.res_failed")
    return {name: counted[name] for name in kept if name in counted}


def parse_conntrack(text: str) -> dict[str, int]:
    """Return ``conntrack.drop`` and the like of /proc/net/stat/nf_conntrack, over all CPUs.

    Per network namespace; ``entries``, the current number of connections, is omitted.
    """
    return _per_cpu_lines(text, "conntrack")


def parse_xfrm(text: str) -> dict[str, int]:
    """Return ``xfrm.XfrmInPolBlock`` and the like of /proc/net/xfrm_stat."""
    return {f"xfrm.{name}": int(value) for name, value in map(str.split, lines_of(text))}


def _per_cpu_lines(text: str, prefix: str) -> dict[str, int]:
    """Add up the hexadecimal lines of a /proc/net/stat file, one for each CPU."""
    lines = lines_of(text)
    names = lines[0].split() if lines else []
    counters: dict[str, int] = {}
    for line in lines[1:]:
        for name, value in zip(names, line.split()):
            if name != "entries":
                key = f"{prefix}.{name}"
                counters[key] = counters.get(key, 0) + int(value, 16)
    return counters


def parse_cpu_times(text: str, ticks_per_s: int) -> dict[str, int]:
    """Return ``cpu.0.softirq_ns`` and the like of /proc/stat, in nanoseconds.

    The kernel prints ticks of USER_HZ, so the resolution is 10 ms where that is 100.
    """
    counters = {}
    for line in lines_of(text):
        label, *values = line.split()
        if label.startswith("cpu") and label != "cpu":
            for name, value in zip(CPU_TIMES, values):
                counters[f"cpu.{label[3:]}.{name}_ns"] = int(value) * (10**9 // ticks_per_s)
        elif label == "ctxt":
            counters["machine.context_switches"] = int(values[0])
    return counters


def parse_interrupts(text: str, irqs: Collection[int]) -> dict[str, int]:
    """Return ``interrupt.34.cpu1`` of /proc/interrupts: how often each CPU served these IRQs."""
    lines = lines_of(text)
    cpus = [label.lower() for label in lines[0].split()] if lines else []
    counters = {}
    for line in lines[1:]:
        number, _, rest = line.partition(":")
        if number.strip().isdigit() and int(number) in irqs:
            for cpu, value in zip(cpus, rest.split()):
                counters[f"interrupt.{int(number)}.{cpu}"] = int(value)
    return counters


def parse_link_statistics(attributes: bytes) -> dict[str, int]:
    """Return the fields of IFLA_STATS_LINK_64 that a kernel's rtnl_link_stats64 has."""
    at = 0
    while at + 4 <= len(attributes):
        size_bytes, kind = struct.unpack_from("=HH", attributes, at)
        if kind == IFLA_STATS_LINK_64:
            count = (size_bytes - 4) // 8
            return dict(zip(LINK_STATISTICS, struct.unpack_from(f"={count}Q", attributes, at + 4)))
        at += max(-(-size_bytes // 4) * 4, 4)
    return {}


def parse_mac_statistics(interface: str, attributes: bytes) -> dict[str, int]:
    """Return ``eth-mac.eth3.FramesReceivedOK`` and the like of an ETHTOOL_MSG_STATS_GET answer.

    Statistics that the driver does not count are missing.
    """
    counters = {}
    for kind, group in netlink_attributes(attributes):
        number = numbers(group).get(STATS_GRP_ID, 0) if kind == STATS_GRP else 0
        prefix, names = MAC_STATISTICS.get(number, ("", ()))
        for part, statistic in netlink_attributes(group) if names else ():
            if part == STATS_GRP_STAT:
                for at, value in numbers(statistic).items():
                    if at < len(names):
                        counters[f"{prefix}.{interface}.{names[at]}"] = value
    return counters


def queue_statistics(interface: str, queues: Iterable[Mapping[int, int]]) -> dict[str, int]:
    """Return ``qstats.eth3.rx-0.packets`` and the like of a NETDEV_CMD_QSTATS_GET answer."""
    counters = {}
    for queue in queues:
        direction = "tx" if queue.get(QSTATS_QUEUE_TYPE) else "rx"
        for at, name in QUEUE_STATISTICS.items():
            if at in queue:
                key = f"qstats.{interface}.{direction}-{queue.get(QSTATS_QUEUE_ID, 0)}.{name}"
                counters[key] = queue[at]
    return counters


def parse_softirqs(text: str) -> dict[str, int]:
    """Return ``softirq.cpu0.NET_RX`` and ``NET_TX`` of /proc/softirqs: number of runs."""
    lines = lines_of(text)
    cpus = [label.lower() for label in lines[0].split()] if lines else []
    counters = {}
    for line in lines[1:]:
        name, _, values = line.partition(":")
        if name.strip() in SOFTIRQS:
            for cpu, value in zip(cpus, values.split()):
                counters[f"softirq.{cpu}.{name.strip()}"] = int(value)
    return counters


def device_statistics(interface: str, pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return ``ethtool.receive0.rx_queue_0_drops`` and the like of a driver's own statistics.

    vmxnet3 indents its names and repeats them; statistics of the same name are added.
    """
    counters: dict[str, int] = {}
    for name, value in pairs:
        if name not in NOT_STATISTICS:
            key = f"ethtool.{interface}.{name.strip()}"
            counters[key] = counters.get(key, 0) + value
    return counters
