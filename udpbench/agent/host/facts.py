"""Facts about this host at a point in time, read from /proc, /sys and netlink.

A fact that cannot be read is None or missing. Changes and judges nothing.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal, Optional

from udpbench.agent.host import ethtool, native
from udpbench.agent.host.environment import environment
from udpbench.agent.host.files import cpuinfo_value, names, read
from udpbench.agent.host.interrupts import queue_count, queue_interrupts, rx_interrupts
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.reading import link_kind, own_address
from udpbench.cpu_lists import parse_cpu_list, parse_cpu_mask
from udpbench.errors import HostError
from udpbench.model.host import GSO_SEGMENTS, Facts

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
    "net.netfilter.nf_conntrack_max",
)


def facts(
    host: Host, name: str, interface: str, capabilities: dict[str, bool], taken: bool = True
) -> Facts:
    """Return the facts; those of an interface that does not exist yet are None.

    ``name`` is the host's name in the lab, ``capabilities`` come from hello. Only on a ``taken``
    host are facts read that have side effects: the GSO limit is determined by sending datagrams to
    the host's own address, and listing firewall rules may load nf_tables (nfnetlink.c).
    """
    cpuinfo = read(host, "/proc/cpuinfo") or ""
    there = bool(interface) and host.exists(f"/sys/class/net/{interface}")
    device = f"/sys/class/net/{interface}"
    mtu = read(host, f"{device}/mtu") if there else None
    known = addresses(host, interface) if there else ()
    return Facts(
        host=name,
        hostname=host.hostname(),
        kernel=host.kernel()[0],
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
        limits=limits(host, known if taken else ()),
        capabilities=capabilities,
        environment=environment(host, interface if there else None, cpuinfo),
        interface_node=interface_node(host, interface) if there else None,
        link=link(host, interface) if there else None,
        queue_irqs=queue_irqs(host, interface, "rx") if there else {},
        tx_queue_irqs=queue_irqs(host, interface, "tx") if there else {},
        rings=rings(host, interface) if there else {},
        cache_siblings=cache_siblings(host),
        firewall_rules=firewall_rules(host) if taken else None,
        xdp_features=xdp_features(host, interface) if there else None,
    )


def xdp_features(host: Host, interface: str) -> Optional[tuple[str, ...]]:
    """Return what a driver does for XDP natively; None if the kernel does not say."""
    try:
        return tuple(host.xdp_features(interface))
    except OSError:
        return None


def firewall_rules(host: Host) -> Optional[int]:
    """Return the number of firewall rules that packets may pass; None if unknown."""
    try:
        return host.firewall_rules()
    except OSError:
        return None


def numa_nodes(host: Host) -> dict[str, tuple[int, ...]]:
    """Return node number → its CPUs."""
    return {
        name[4:]: parse_cpu_list(read(host, f"{NODE}/{name}/cpulist") or "")
        for name in names(host, NODE)
        if re.fullmatch(r"node\d+", name)
    }


def siblings(host: Host) -> dict[str, tuple[int, ...]]:
    """Return CPU → the CPUs of its core, including itself."""
    cpus = {}
    for name in names(host, CPU):
        text = read(host, f"{CPU}/{name}/topology/thread_siblings_list")
        if re.fullmatch(r"cpu\d+", name) and text is not None:
            cpus[name[3:]] = parse_cpu_list(text)
    return cpus


def cache_siblings(host: Host) -> dict[str, tuple[int, ...]]:
    """Return CPU → the CPUs that share its last-level cache, including itself."""
    cpus = {}
    for cpu in names(host, CPU):
        levels = {
            int(level): shared
            for index in names(host, f"{CPU}/{cpu}/cache")
            if (level := read(host, f"{CPU}/{cpu}/cache/{index}/level")) is not None
            and (shared := read(host, f"{CPU}/{cpu}/cache/{index}/shared_cpu_list")) is not None
        }
        if re.fullmatch(r"cpu\d+", cpu) and levels:
            cpus[cpu[3:]] = parse_cpu_list(levels[max(levels)])
    return cpus


def link(host: Host, interface: str) -> Optional[Literal["up", "no carrier", "down"]]:
    """Return the state of an interface's link; None if unknown."""
    try:
        carrier = host.read_text(f"/sys/class/net/{interface}/carrier").strip()
    except OSError as error:
        return "down" if error.errno == errno.EINVAL else None
    return "up" if carrier == "1" else "no carrier"


def interface_node(host: Host, interface: str) -> Optional[int]:
    """Return a device's NUMA node; None if it has none. For virtio it is one folder up."""
    device = f"/sys/class/net/{interface}/device"
    node = read(host, f"{device}/numa_node") or read(host, f"{device}/../numa_node")
    return int(node) if node is not None and int(node) >= 0 else None


def queue_irqs(host: Host, interface: str, way: str) -> dict[str, int]:
    """Return RX or TX queue → its IRQ number, if known."""
    return {str(queue): irq for queue, irq in queue_interrupts(host, interface)[way].items()}


def rings(host: Host, interface: str) -> dict[str, int]:
    """Return descriptors per ring: rx, tx, rx-max and tx-max; empty if unknown.

    A virtual interface has none, and to start ethtool takes as long as all other facts.
    """
    if not host.exists(f"/sys/class/net/{interface}/device"):
        return {}
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
    """Return limits: sysctls visible in this namespace, and the GSO limit."""
    segments = gso_segments(known[0].partition("/")[0]) if known else None
    values = {GSO_SEGMENTS: segments} if segments is not None else {}
    for name in LIMITS:
        text = read(host, "/proc/sys/" + name.replace(".", "/"))
        if text is not None and text.isdigit():
            values[name] = int(text)
    return values


def driver(host: Host, interface: str) -> Optional[str]:
    """Return a device's driver, or the kind of a virtual interface: ``veth``, ``bond``."""
    own = host.link_target(f"/sys/class/net/{interface}/device/driver")
    return own if own is not None else link_kind(host.link(interface))


def addresses(host: Host, interface: str) -> tuple[str, ...]:
    """Return an interface's addresses with prefix length, without IPv6 link-local ones."""
    index = host.index(interface)
    prefixes = [
        (own_address(message), message["prefixlen"])
        for family in (socket.AF_INET, socket.AF_INET6)
        for message in host.rtnl("addr", "dump", family=family, index=index)
    ]
    return tuple(f"{own}/{prefix}" for own, prefix in prefixes if not ip_address(own).is_link_local)


def gso_segments(address: str) -> Optional[int]:
    """Return the maximum datagrams per GSO message; None if GSO is not supported.

    Tried with an address of this host, by a socket connected to itself: no packet leaves the host,
    and lo may be down.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            probe.connect(probe.getsockname())
            return native.gso_max(probe.fileno())
    except native.ExtensionError as error:
        raise HostError(str(error.strerror)) from error
    except OSError:
        return None


def queue_cpus(host: Host, interface: str) -> dict[str, tuple[int, ...]]:
    """Return RX queue → the CPUs on which its packets reach the socket, if known.

    RPS acts after NAPI, so its mask wins; then the affinity of a NAPI thread; then that of the
    queue's interrupt.
    """
    cpus = irq_cpus(host, interface)
    cpus.update(napi_cpus(host, interface))
    for name in names(host, f"/sys/class/net/{interface}/queues"):
        mask = read(host, f"/sys/class/net/{interface}/queues/{name}/rps_cpus")
        if name.startswith("rx-") and mask is not None and parse_cpu_mask(mask):
            cpus[name[3:]] = parse_cpu_mask(mask)
    return cpus


def napi_cpus(host: Host, interface: str) -> dict[str, tuple[int, ...]]:
    """Return RX queue → CPUs of its NAPI thread; empty if not threaded or unknown."""
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
    """Return RX queue → CPUs of its interrupt: the effective ones, or those of a pending mask.

    A changed mask may take effect only with the next interrupt (kernel/irq/manage.c:
    irq_set_affinity_locked); until then it does not contain the effective CPU. A kernel without
    CONFIG_GENERIC_IRQ_EFFECTIVE_AFF_MASK shows only the mask.
    """
    by_queue = {}
    for queue, irq in rx_interrupts(host, interface).items():
        effective, asked = (
            parse_cpu_list(read(host, f"/proc/irq/{irq}/{name}_affinity_list") or "")
            for name in ("effective", "smp")
        )
        is_waiting = bool(asked) and not {*effective} <= {*asked}
        cpus = asked if is_waiting or not effective else effective
        if cpus:
            by_queue[str(queue)] = cpus
    return by_queue
