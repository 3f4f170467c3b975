"""One reading of every counter that the agent's scopes grant; reads only, judges nothing.

Files of the network namespace are read below /proc/thread-self: /proc/net follows the process's
main thread, and the two differ wherever a thread has changed its namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from udpbench.agent import counters
from udpbench.agent.host import Host
from udpbench.agent.interrupts import rx_interrupts
from udpbench.agent.settings.firewall import rule_packets
from udpbench.model import Scope, Snapshot

NET = "/proc/thread-self/net"
TC_ROOT = 0xFFFFFFFF
"""TC_H_ROOT: the parent of an interface's primary qdisc (include/uapi/linux/pkt_sched.h)."""
TC_INGRESS = 0xFFFFFFF1
"""TC_H_INGRESS, and TC_H_CLSACT alike: what filters before the IP layer hang on."""
QDISC_COUNTERS = ("drops", "requeues", "overlimits")


@dataclass(frozen=True)
class Own:
    """What of an agent's own has counters of its own."""

    inodes: tuple[int, ...] = ()
    """Sockets of its workers."""
    rules: bool = False
    """Rules of udpbench are in the firewall; asking for them costs a program or two."""


def snapshot(host: Host, name: str, interface: str, scopes: Iterable[Scope], own: Own) -> Snapshot:
    """Return the counters of the agent's scopes and of what is its own.

    ``name`` is the host's in the lab. OSError where the interface is not there.
    """
    clock_ns = host.clock_ns()
    found: dict[str, int] = {}
    if "namespace" in scopes:
        found.update(namespace_counters(host))
        for device in (interface, *bridge_ports(host, interface)):
            found.update(device_counters(host, device))
        found.update(socket_drops(host, own.inodes))
        if host.drops is not None:
            found.update(host.drops.counts())
        if own.rules:
            found.update({f"firewall.{k}": value for k, value in rule_packets(host).items()})
    if "machine" in scopes:
        found.update(machine_counters(host, interface))
    return Snapshot(name, clock_ns, found)


def namespace_counters(host: Host) -> dict[str, int]:
    """Return what the network namespace counts at IP and UDP."""
    return {
        **counters.parse_snmp(host.read_text(f"{NET}/snmp"), "snmp"),
        **counters.parse_snmp6(_optional(host, f"{NET}/snmp6")),
        **counters.parse_snmp(host.read_text(f"{NET}/netstat"), "netstat"),
        **counters.parse_conntrack(_optional(host, f"{NET}/stat/nf_conntrack")),
    }


def machine_counters(host: Host, interface: str) -> dict[str, int]:
    """Return what all namespaces of the machine share."""
    online = counters.parse_cpu_list(host.read_text("/sys/devices/system/cpu/online"))
    softnet = host.read_text(f"{NET}/softnet_stat")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    irqs = set(rx_interrupts(host, interface).values())
    interrupts = host.read_text("/proc/interrupts") if irqs else ""
    return {
        **counters.parse_softnet(softnet, online),
        **counters.parse_rt_cache(host.read_text(f"{NET}/stat/rt_cache")),
        **counters.parse_cpu_times(host.read_text("/proc/stat"), ticks_per_s),
        **counters.parse_softirqs(host.read_text("/proc/softirqs")),
        **counters.parse_interrupts(interrupts, irqs),
    }


def _optional(host: Host, path: str) -> str:
    """Return a file's text; empty where the kernel was built without what it counts."""
    return host.read_text(path) if host.exists(path) else ""


def bridge_ports(host: Host, interface: str) -> list[str]:
    """Return the ports of an interface that is a bridge; none of any other."""
    ports = f"/sys/class/net/{interface}/brif"
    return host.listdir(ports) if host.exists(ports) else []


def device_counters(host: Host, interface: str) -> dict[str, int]:
    """Return an interface's stats64, its qdiscs' counters and its driver's own."""
    statistics = counters.parse_link_statistics(host.link_statistics(interface))
    found = {f"link.{interface}.{name}": value for name, value in statistics.items()}
    qdiscs = host.rtnl("tc", "dump", index=host.index(interface))
    found.update(qdisc_counters(interface, qdiscs))
    found.update(counters.device_statistics(interface, host.statistics(interface).items()))
    found.update(carrier_counters(host, interface))
    return found


def carrier_counters(host: Host, interface: str) -> dict[str, int]:
    """Return how often an interface has lost its carrier; nothing before Linux 4.16."""
    path = f"/sys/class/net/{interface}/carrier_down_count"
    if not host.exists(path):
        return {}
    return {f"link.{interface}.carrier_downs": int(host.read_text(path))}


def qdisc_counters(interface: str, messages: Iterable[Any]) -> dict[str, int]:
    """Return ``qdisc.send0.drops`` of the root, and of ``ingress`` and each ``tx_queue_1`` of mq.

    A root sums what is below it, ``mq`` over its queues too (net/sched/sch_mq.c: mq_dump), so
    adding the leaves would count twice. ``packets`` are those that left it; of a GSO skb each
    segment (bstats_update).
    """
    found: dict[str, int] = {}
    for message in messages:
        name = _qdisc_name(interface, message["parent"])
        statistics = message.get_attr("TCA_STATS2")
        if name is None or statistics is None:
            continue
        queue = statistics.get_attr("TCA_STATS_QUEUE") or {}
        basic = statistics.get_attr("TCA_STATS_BASIC") or {}
        found.update({f"{name}.{key}": int(queue[key]) for key in QDISC_COUNTERS if key in queue})
        if "packets" in basic:
            found[f"{name}.packets"] = int(basic["packets"])
    return found


def _qdisc_name(interface: str, parent: int) -> Optional[str]:
    """Return the prefix of a qdisc's counters by its parent; None for one that is not counted."""
    if parent == TC_ROOT:
        return f"qdisc.{interface}"
    if parent == TC_INGRESS:
        return f"qdisc.{interface}.ingress"
    # Below mq, whose handle is 0 where the kernel made it, the minor number is the TX queue.
    major, queue = parent >> 16, parent & 0xFFFF
    return f"qdisc.{interface}.tx_queue_{queue - 1}" if major == 0 and queue else None


def udp_sockets(host: Host) -> dict[int, counters.SocketQueue]:
    """Return the namespace's UDP sockets by inode, those of IPv6 too.

    The text file costs 0.1 ms with few sockets, sock_diag through pyroute2 0.4 ms.
    """
    return {
        **counters.parse_udp_sockets(host.read_text(f"{NET}/udp")),
        **counters.parse_udp_sockets(_optional(host, f"{NET}/udp6")),
    }


def socket_drops(host: Host, inodes: Iterable[int]) -> dict[str, int]:
    """Return ``socket.<inode>.drops`` of those sockets that are still open."""
    sockets = udp_sockets(host)
    return {f"socket.{inode}.drops": sockets[inode].drops for inode in inodes if inode in sockets}
