"""One reading of every counter in the agent's scopes; read-only.

Files of the network namespace are read below /proc/thread-self: /proc/net follows the main thread,
which may be in another namespace than this thread.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Callable, Optional

from udpbench.agent.counters import parse
from udpbench.agent.host.files import read
from udpbench.agent.host.interrupts import queue_interrupts
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.udp_sockets import open_sockets
from udpbench.cpu_lists import parse_cpu_list
from udpbench.model.limits import Scope
from udpbench.model.record import Snapshot

NET = "/proc/thread-self/net"
REDIRECTS = ("snmp.Icmp.InRedirects", "snmp6.Icmp6InRedirects")
NEIGHBOURS = "/proc/1/net/stat/arp_cache"
"""One table for all namespaces, which the first alone shows (net/core/neighbour.c)."""
TC_ROOT = 0xFFFFFFFF
"""TC_H_ROOT: the parent of an interface's primary qdisc (include/uapi/linux/pkt_sched.h)."""
TC_INGRESS = 0xFFFFFFF1
"""TC_H_INGRESS, also TC_H_CLSACT: the parent of ingress filters."""
VXLAN = "DEVTYPE=vxlan"
QDISC_COUNTERS = ("drops", "requeues", "overlimits")
Parsed = dict[str, tuple[str, dict[str, int]]]
"""File → its text, and the counters in it."""
NET_PARSERS: dict[str, Callable[[str], dict[str, int]]] = {
    "snmp": partial(parse.parse_snmp, prefix="snmp"),
    "snmp6": parse.parse_snmp6,
    "netstat": partial(parse.parse_snmp, prefix="netstat"),
    "nf_conntrack": parse.parse_conntrack,
    "xfrm_stat": parse.parse_xfrm,
}


def snapshot(
    host: Host,
    name: str,
    interface: str,
    scopes: Iterable[Scope],
    inodes: Iterable[int],
    rule_packets: Callable[[], dict[str, int]],
    out: str = "",
    tunnel: str = "",
) -> Snapshot:
    """Return the counters of the agent's scopes.

    ``name`` is the host's name in the lab; ``inodes`` belong to the agent's own sockets;
    ``rule_packets`` returns the packets of each of its own firewall rules; ``out`` is the interface
    by which packets leave a node in the middle, ``tunnel`` that of WireGuard there. OSError if one
    of the former is missing.
    """
    clock_ns = host.clock_ns()
    # CPU times first: they are compared with this clock reading.
    counters = (
        machine_counters(host, card_interrupts(host, interface)) if "machine" in scopes else {}
    )
    if "namespace" in scopes:
        counters.update(namespace_counters(host))
        inner = tunnel if tunnel and host.exists(f"/sys/class/net/{tunnel}") else ""
        devices = (
            *(interface, out, inner),
            *beside(host, interface, out),
            *bridge_ports(host, interface),
        )
        for device in dict.fromkeys(filter(None, devices)):
            counters.update(device_counters(host, device))
        counters.update(socket_drops(host, inodes))
        if host.drops is not None:
            counters.update(host.drops.counts())
        counters.update({f"firewall.{k}": value for k, value in rule_packets().items()})
    return Snapshot(name, clock_ns, counters)


def namespace_counters(
    host: Host, net: str = NET, known: Optional[Parsed] = None
) -> dict[str, int]:
    """Return the counters of IP and UDP of a network namespace, by default this one's.

    ``known`` has what was read before: of a namespace that does nothing, nothing is parsed.
    """
    texts = {
        "snmp": host.read_text(f"{net}/snmp"),
        "snmp6": read(host, f"{net}/snmp6") or "",
        "netstat": host.read_text(f"{net}/netstat"),
        "nf_conntrack": read(host, f"{net}/stat/nf_conntrack") or "",
        "xfrm_stat": read(host, f"{net}/xfrm_stat") or "",
    }
    known = {} if known is None else known
    for name, text in texts.items():
        if name not in known or known[name][0] != text:
            known[name] = text, NET_PARSERS[name](text)
    return {key: value for name in texts for key, value in known[name][1].items()}


def redirects(host: Host) -> int:
    """Return how many ICMP redirects came, from routers or from others in their name.

    What the kernel makes of one, an exception to a route, is notified to nobody.
    """
    known = parse.parse_snmp(read(host, f"{NET}/snmp") or "", "snmp")
    known |= parse.parse_snmp6(read(host, f"{NET}/snmp6") or "")
    return sum(known.get(name, 0) for name in REDIRECTS)


def card_interrupts(host: Host, interface: str) -> set[int]:
    """Return the IRQ numbers of an interface's queues."""
    return {irq for way in queue_interrupts(host, interface).values() for irq in way.values()}


def machine_counters(host: Host, irqs: Collection[int]) -> dict[str, int]:
    """Return the counters shared by all namespaces of the machine; interrupts only for ``irqs``."""
    cpu_times = host.read_text("/proc/stat")
    online = parse_cpu_list(host.read_text("/sys/devices/system/cpu/online"))
    softnet = host.read_text(f"{NET}/softnet_stat")
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    interrupts = host.read_text("/proc/interrupts") if irqs else ""
    return {
        **parse.parse_softnet(softnet, online),
        **parse.parse_rt_cache(host.read_text(f"{NET}/stat/rt_cache")),
        **parse.parse_neighbours(read(host, NEIGHBOURS) or ""),
        **parse.parse_cpu_times(cpu_times, ticks_per_s),
        **parse.parse_softirqs(host.read_text("/proc/softirqs")),
        **parse.parse_interrupts(interrupts, irqs),
    }


def bridge_ports(host: Host, interface: str) -> list[str]:
    """Return a bridge's ports; empty for any other interface."""
    ports = f"/sys/class/net/{interface}/brif"
    return host.listdir(ports) if host.exists(ports) else []


def beside(host: Host, *interfaces: str) -> list[str]:
    """Return the bridges above interfaces, and those of their ports that are tunnels."""
    names = filter(None, interfaces)
    above = [host.link_target(f"/sys/class/net/{name}/brport/bridge") for name in names]
    ports = [port for bridge in filter(None, above) for port in bridge_ports(host, bridge)]
    tunnels = [
        port
        for port in ports
        if VXLAN in (read(host, f"/sys/class/net/{port}/uevent") or "").split()
    ]
    return [*filter(None, above), *tunnels]


def device_counters(host: Host, interface: str) -> dict[str, int]:
    """Return an interface's stats64 and its qdisc, MAC, queue and driver counters."""
    statistics = parse.parse_link_statistics(host.link_statistics(interface))
    counters = {f"link.{interface}.{name}": value for name, value in statistics.items()}
    qdiscs = host.rtnl("tc", "dump", index=host.index(interface))
    counters.update(qdisc_counters(interface, qdiscs))
    counters.update(parse.device_statistics(interface, host.statistics(interface).items()))
    counters.update(mac_counters(host, interface))
    counters.update(queue_counters(host, interface))
    counters.update(carrier_counters(host, interface))
    return counters


def mac_counters(host: Host, interface: str) -> dict[str, int]:
    """Return the kernel's standard MAC statistics; empty if kernel or driver has none."""
    try:
        return parse.parse_mac_statistics(interface, host.mac_statistics(interface))
    except OSError:
        return {}


def queue_counters(host: Host, interface: str) -> dict[str, int]:
    """Return the kernel's per-queue statistics; empty if kernel or driver has none."""
    try:
        return parse.queue_statistics(interface, host.queue_statistics(interface))
    except OSError:
        return {}


def carrier_counters(host: Host, interface: str) -> dict[str, int]:
    """Return how often an interface lost its carrier; empty before Linux 4.16."""
    path = f"/sys/class/net/{interface}/carrier_down_count"
    if not host.exists(path):
        return {}
    return {f"link.{interface}.carrier_downs": int(host.read_text(path))}


def qdisc_counters(interface: str, messages: Iterable[Any]) -> dict[str, int]:
    """Return ``qdisc.send0.drops`` of the root qdisc, of ``ingress`` and of each queue of mq.

    The root includes its leaves, and ``mq`` its queues (net/sched/sch_mq.c: mq_dump), so adding
    leaves would count them twice. ``packets`` are dequeued packets; each segment of a GSO skb
    counts (bstats_update).
    """
    counters: dict[str, int] = {}
    for message in messages:
        name = _qdisc_name(interface, message["parent"])
        statistics = message.get_attr("TCA_STATS2")
        if name is None or statistics is None:
            continue
        queue = statistics.get_attr("TCA_STATS_QUEUE") or {}
        basic = statistics.get_attr("TCA_STATS_BASIC") or {}
        counters.update(
            {f"{name}.{key}": int(queue[key]) for key in QDISC_COUNTERS if key in queue}
        )
        if "packets" in basic:
            counters[f"{name}.packets"] = int(basic["packets"])
    return counters


def _qdisc_name(interface: str, parent: int) -> Optional[str]:
    """Return the prefix of a qdisc's counters by its parent; None if it is not counted."""
    if parent == TC_ROOT:
        return f"qdisc.{interface}"
    if parent == TC_INGRESS:
        return f"qdisc.{interface}.ingress"
    # Below mq (handle 0 if created by the kernel) the minor number is the TX queue.
    major, queue = parent >> 16, parent & 0xFFFF
    return f"qdisc.{interface}.tx_queue_{queue - 1}" if major == 0 and queue else None


def socket_drops(host: Host, inodes: Iterable[int]) -> dict[str, int]:
    """Return ``socket.<inode>.drops`` of the sockets that are still open."""
    own = open_sockets(host, inodes)
    return {f"socket.{inode}.drops": each.drops for inode, each in own.items()}
