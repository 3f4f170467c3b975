"""One reading of every counter that the agent's scopes grant; reads only, judges nothing.

Files of the network namespace are read below /proc/thread-self: /proc/net follows the process's
main thread, and the two differ wherever a thread has changed its namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from udpbench.agent import counters
from udpbench.agent.host import Host
from udpbench.model import Scope, Snapshot

NET = "/proc/thread-self/net"
TC_ROOT = 0xFFFFFFFF
"""TC_H_ROOT: the parent of an interface's primary qdisc (include/uapi/linux/pkt_sched.h)."""
QDISC_COUNTERS = ("drops", "requeues", "overlimits")


def snapshot(
    host: Host, name: str, interface: str, scopes: Iterable[Scope], inodes: Iterable[int]
) -> Snapshot:
    """Return the counters of the agent's scopes, and the drops of the sockets with these inodes.

    ``name`` is the host's in the lab. OSError where the interface is not there.
    """
    clock_ns = host.clock_ns()
    found: dict[str, int] = {}
    if "namespace" in scopes:
        found.update(namespace_counters(host))
        for device in (interface, *bridge_ports(host, interface)):
            found.update(device_counters(host, device))
        found.update(socket_drops(host, inodes))
    if "machine" in scopes:
        found.update(machine_counters(host))
    return Snapshot(name, clock_ns, found)


def namespace_counters(host: Host) -> dict[str, int]:
    """Return what the network namespace counts at IP and UDP."""
    return {
        **counters.parse_snmp(host.read_text(f"{NET}/snmp"), "snmp"),
        **counters.parse_snmp(host.read_text(f"{NET}/netstat"), "netstat"),
    }


def machine_counters(host: Host) -> dict[str, int]:
    """Return what all namespaces of the machine share."""
    online = counters.parse_cpu_list(host.read_text("/sys/devices/system/cpu/online"))
    softnet = host.read_text(f"{NET}/softnet_stat")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return {
        **counters.parse_softnet(softnet, online),
        **counters.parse_rt_cache(host.read_text(f"{NET}/stat/rt_cache")),
        **counters.parse_cpu_times(host.read_text("/proc/stat"), ticks_per_s),
        **counters.parse_softirqs(host.read_text("/proc/softirqs")),
    }


def bridge_ports(host: Host, interface: str) -> list[str]:
    """Return the ports of an interface that is a bridge; none of any other."""
    ports = f"/sys/class/net/{interface}/brif"
    return host.listdir(ports) if host.exists(ports) else []


def device_counters(host: Host, interface: str) -> dict[str, int]:
    """Return an interface's stats64, its primary qdisc's drops and its driver's own counters."""
    link = host.link(interface)
    found = {
        f"link.{interface}.{name}": int(value)
        for name, value in (link.get_attr("IFLA_STATS64") or {}).items()
    }
    found.update(qdisc_counters(interface, host.rtnl("tc", "dump", index=link["index"])))
    found.update(counters.device_statistics(interface, host.statistics(interface).items()))
    return found


def qdisc_counters(interface: str, messages: Iterable[Any]) -> dict[str, int]:
    """Return the primary qdisc's counters.

    A root sums what is below it, ``mq`` over its queues too (net/sched/sch_mq.c: mq_dump), so
    adding the leaves would count twice.
    """
    for message in messages:
        statistics = message.get_attr("TCA_STATS2")
        if message["parent"] == TC_ROOT and statistics is not None:
            queue = statistics.get_attr("TCA_STATS_QUEUE") or {}
            return {
                f"qdisc.{interface}.{name}": int(queue[name])
                for name in QDISC_COUNTERS
                if name in queue
            }
    return {}


def udp_sockets(host: Host) -> dict[int, counters.SocketQueue]:
    """Return the namespace's IPv4 UDP sockets by inode.

    The text file costs 0.1 ms with few sockets, sock_diag through pyroute2 0.4 ms.
    """
    return counters.parse_udp_sockets(host.read_text(f"{NET}/udp"))


def socket_drops(host: Host, inodes: Iterable[int]) -> dict[str, int]:
    """Return ``socket.<inode>.drops`` of those sockets that are still open."""
    sockets = udp_sockets(host)
    return {f"socket.{inode}.drops": sockets[inode].drops for inode in inodes if inode in sockets}
