"""What this host is, at one moment: read from /proc, /sys and netlink, never guessed.

A fact that cannot be read is None or left out. Nothing is changed, and nothing judged.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal, Optional

from udpbench.agent import ethtool
from udpbench.agent.counters import parse_cpu_list, parse_cpu_mask
from udpbench.agent.environment import environment
from udpbench.agent.host import Host
from udpbench.agent.interrupts import rx_interrupts
from udpbench.agent.reading import cpuinfo_value, names, read
from udpbench.model import GSO_SEGMENTS, Facts

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
LIMITS = (
    "net.core.rmem_max",
    "net.core.rmem_default",
    "net.core.wmem_max",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.dev_weight",
    "net.core.optmem_max",
    "net.core.netdev_tstamp_prequeue",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.rps_sock_flow_entries",
    "net.core.skb_defer_max",
    "net.ipv4.udp_rmem_min",
    "net.ipv4.udp_wmem_min",
    "net.ipv4.udp_early_demux",
    "net.ipv4.ip_early_demux",
    "net.ipv4.conf.all.rp_filter",
)


def facts(host: Host, name: str, interface: str, capabilities: dict[str, bool]) -> Facts:
    """Return the facts; an interface that is not there yet has None for what belongs to it.

    ``name`` is the host's in the lab, ``capabilities`` what hello found by trying.
    """
    cpuinfo = read(host, "/proc/cpuinfo") or ""
    there = bool(interface) and host.exists(f"/sys/class/net/{interface}")
    device = f"/sys/class/net/{interface}"
    mtu = read(host, f"{device}/mtu") if there else None
    known = addresses(host, interface) if there else ()
    return Facts(
        host=name,
        hostname=socket.gethostname(),
        kernel=os.uname().release,
        boot_id=host.boot_id(),
        python=".".join(str(part) for part in sys.version_info[:3]),
        cpus=tuple(host.affinity(0)),
        cpu_model=cpuinfo_value(cpuinfo, "model name"),
        numa_nodes=numa_nodes(host),
        siblings=siblings(host),
        interface=interface,
        driver=driver(host, interface) if there else None,
        mac=read(host, f"{device}/address") if there else None,
        mtu=int(mtu) if mtu is not None else None,
        addresses=known,
        rx_queues=queue_count(host, interface, "rx") if there else None,
        tx_queues=queue_count(host, interface, "tx") if there else None,
        queue_cpus=queue_cpus(host, interface) if there else {},
        limits=limits(host, known),
        capabilities=capabilities,
        environment=environment(host, interface if there else None, cpuinfo),
        interface_node=interface_node(host, interface) if there else None,
        link=link(host, interface) if there else None,
        queue_irqs=queue_irqs(host, interface) if there else {},
        rings=rings(host, interface) if there else {},
        cache_siblings=cache_siblings(host),
    )


def numa_nodes(host: Host) -> dict[str, tuple[int, ...]]:
    """Return node number → its CPUs."""
    return {
        name[4:]: parse_cpu_list(read(host, f"{NODE}/{name}/cpulist") or "")
        for name in names(host, NODE)
        if re.fullmatch(r"node\d+", name)
    }


def siblings(host: Host) -> dict[str, tuple[int, ...]]:
    """Return CPU → the CPUs of its core, itself included."""
    found = {}
    for name in names(host, CPU):
        text = read(host, f"{CPU}/{name}/topology/thread_siblings_list")
        if re.fullmatch(r"cpu\d+", name) and text is not None:
            found[name[3:]] = parse_cpu_list(text)
    return found


def cache_siblings(host: Host) -> dict[str, tuple[int, ...]]:
    """Return CPU → the CPUs that share its last level of cache, itself included."""
    found = {}
    for cpu in names(host, CPU):
        levels = {
            int(level): shared
            for index in names(host, f"{CPU}/{cpu}/cache")
            if (level := read(host, f"{CPU}/{cpu}/cache/{index}/level")) is not None
            and (shared := read(host, f"{CPU}/{cpu}/cache/{index}/shared_cpu_list")) is not None
        }
        if re.fullmatch(r"cpu\d+", cpu) and levels:
            found[cpu[3:]] = parse_cpu_list(levels[max(levels)])
    return found


def link(host: Host, interface: str) -> Optional[Literal["up", "no carrier", "down"]]:
    """Return how an interface's link is; None where the kernel does not say."""
    try:
        carrier = host.read_text(f"/sys/class/net/{interface}/carrier").strip()
    except OSError as error:
        return "down" if error.errno == errno.EINVAL else None
    return "up" if carrier == "1" else "no carrier"


def interface_node(host: Host, interface: str) -> Optional[int]:
    """Return the NUMA node of a device; None where it has none. virtio keeps it one folder up."""
    device = f"/sys/class/net/{interface}/device"
    node = read(host, f"{device}/numa_node") or read(host, f"{device}/../numa_node")
    return int(node) if node is not None and int(node) >= 0 else None


def queue_irqs(host: Host, interface: str) -> dict[str, int]:
    """Return RX queue → number of its interrupt, where known."""
    return {str(queue): irq for queue, irq in rx_interrupts(host, interface).items()}


def rings(host: Host, interface: str) -> dict[str, int]:
    """Return descriptors per ring, rx and tx, and rx-max and tx-max; empty where there are none."""
    try:
        text = ethtool.show(host, "-g", interface)
    except OSError:
        return {}
    largest = ethtool.parse_maximums(text, ethtool.RING_KEYS)
    return {
        **ethtool.parse_current(text, ethtool.RING_KEYS),
        **{f"{key}-max": value for key, value in largest.items()},
    }


def limits(host: Host, known: Sequence[str]) -> dict[str, int]:
    """Return what bounds a run: sysctls where this namespace shows them, and GSO's limit."""
    segments = gso_segments(known[0].partition("/")[0]) if known else None
    found = {GSO_SEGMENTS: segments} if segments is not None else {}
    for name in LIMITS:
        text = read(host, "/proc/sys/" + name.replace(".", "/"))
        if text is not None and text.isdigit():
            found[name] = int(text)
    return found


def driver(host: Host, interface: str) -> Optional[str]:
    """Return a device's driver, or the kind of a virtual interface: ``veth``, ``bond``."""
    target = host.path(f"/sys/class/net/{interface}/device/driver")
    if target.is_symlink():
        return target.resolve().name
    info = host.link(interface).get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info is not None else None
    return str(kind) if kind is not None else None


def addresses(host: Host, interface: str) -> tuple[str, ...]:
    """Return an interface's addresses, each with its prefix length; of IPv6 no link-local one."""
    index = host.index(interface)
    found = [
        (message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"), message["prefixlen"])
        for family in (socket.AF_INET, socket.AF_INET6)
        for message in host.rtnl("addr", "dump", family=family, index=index)
    ]
    return tuple(f"{own}/{prefix}" for own, prefix in found if not ip_address(own).is_link_local)


def gso_segments(address: str) -> Optional[int]:
    """Return how many datagrams the kernel takes in one GSO message; None where it takes none.

    Asked by a socket that is connected to itself, at an address of this host.
    """
    # Late, because only an agent of a host that sends and receives needs the loops.
    from udpbench.agent.loops import gso_max

    try:
        return gso_max(address)
    except OSError:
        return None


def queue_count(host: Host, interface: str, way: str) -> Optional[int]:
    """Return how many RX or TX queues are in use; None where sysfs does not show the interface."""
    found = [q for q in names(host, f"/sys/class/net/{interface}/queues") if q.startswith(way)]
    return len(found) or None


def queue_cpus(host: Host, interface: str) -> dict[str, tuple[int, ...]]:
    """Return RX queue → the CPUs on which its packets reach the socket, where known.

    Receive packet steering moves them after NAPI, so its mask wins; then the affinity of a
    threaded NAPI's thread; then that of the queue's interrupt.
    """
    found = irq_cpus(host, interface)
    found.update(napi_cpus(host, interface))
    for name in names(host, f"/sys/class/net/{interface}/queues"):
        mask = read(host, f"/sys/class/net/{interface}/queues/{name}/rps_cpus")
        if name.startswith("rx-") and mask is not None and parse_cpu_mask(mask):
            found[name[3:]] = parse_cpu_mask(mask)
    return found


def napi_cpus(host: Host, interface: str) -> dict[str, tuple[int, ...]]:
    """Return RX queue → CPUs of its NAPI thread; none where NAPI is not threaded or unknown."""
    try:
        napis = host.queue_napis(interface)
        return {
            str(queue): tuple(host.affinity(napi.pid))
            for queue, napi in napis.items()
            if napi.pid is not None
        }
    except OSError:
        return {}


def irq_cpus(host: Host, interface: str) -> dict[str, tuple[int, ...]]:
    """Return RX queue → CPUs of its interrupt; what is in effect, and else what was asked for.

    A kernel without CONFIG_GENERIC_IRQ_EFFECTIVE_AFF_MASK shows only the latter.
    """
    found = {}
    for queue, irq in rx_interrupts(host, interface).items():
        cpus = read(host, f"/proc/irq/{irq}/effective_affinity_list")
        cpus = cpus or read(host, f"/proc/irq/{irq}/smp_affinity_list")
        if cpus:
            found[str(queue)] = parse_cpu_list(cpus)
    return found
