"""What this host is, at one moment: read from /proc, /sys and netlink, never guessed.

A fact that cannot be read is None or left out. Nothing is changed, and nothing judged.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import Optional

from udpbench.agent.counters import parse_cpu_list, parse_cpu_mask
from udpbench.agent.host import Host
from udpbench.model import Facts

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
LIMITS = (
    "net.core.rmem_max",
    "net.core.rmem_default",
    "net.core.wmem_max",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
    "net.core.netdev_budget",
    "net.ipv4.udp_rmem_min",
)
IRQ_QUEUE = re.compile(r"(?:input\.|rx-|rx-tx-|rxtx-|comp|-)(\d+)(?:@.*)?\Z", re.IGNORECASE)
"""Queue number in an interrupt's name: eth0-TxRx-3, virtio1-input.3, mlx5_comp3@pci:..."""
IRQ_NOT_RX = re.compile(r"output|-tx-\d+\Z|config|control|mgmnt", re.IGNORECASE)


def facts(host: Host, name: str, interface: str, capabilities: dict[str, bool]) -> Facts:
    """Return the facts; an interface that is not there yet has None for what belongs to it.

    ``name`` is the host's in the lab, ``capabilities`` what hello found by trying.
    """
    cpuinfo = read(host, "/proc/cpuinfo") or ""
    there = bool(interface) and host.exists(f"/sys/class/net/{interface}")
    device = f"/sys/class/net/{interface}"
    mtu = read(host, f"{device}/mtu") if there else None
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
        addresses=addresses(host, interface) if there else (),
        rx_queues=queue_count(host, interface, "rx") if there else None,
        tx_queues=queue_count(host, interface, "tx") if there else None,
        queue_cpus=queue_cpus(host, interface) if there else {},
        limits=limits(host),
        capabilities=capabilities,
        environment=environment(host, interface if there else None, cpuinfo),
    )


def read(host: Host, path: str) -> Optional[str]:
    """Return a file's text; None where there is none or it cannot be read."""
    try:
        return host.read_text(path)
    except OSError:
        return None


def names(host: Host, path: str) -> list[str]:
    """Return the names in a folder; none where there is no such folder."""
    try:
        return host.listdir(path)
    except OSError:
        return []


def cpuinfo_value(cpuinfo: str, key: str) -> Optional[str]:
    """Return the first value of a key in /proc/cpuinfo; ARM has no ``model name``."""
    for line in cpuinfo.splitlines():
        found, _, value = line.partition(":")
        if found.strip() == key:
            return value.strip()
    return None


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


def limits(host: Host) -> dict[str, int]:
    """Return the sysctls that bound a run, where this namespace shows them."""
    found = {}
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
    """Return an interface's IPv4 addresses, each with its prefix length."""
    index = host.index(interface)
    messages = host.rtnl("addr", "dump", family=socket.AF_INET, index=index)
    return tuple(f"{m.get_attr('IFA_LOCAL')}/{m['prefixlen']}" for m in messages)


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
    """Return RX queue → CPUs of its interrupt; a virtio device keeps its list one folder up."""
    device = f"/sys/class/net/{interface}/device"
    irqs = names(host, f"{device}/msi_irqs") or names(host, f"{device}/../msi_irqs")
    found = {}
    for irq in irqs:
        action = read(host, f"/sys/kernel/irq/{irq}/actions")
        queue = IRQ_QUEUE.search(action) if action is not None else None
        cpus = read(host, f"/proc/irq/{irq}/effective_affinity_list")
        if queue is not None and cpus and not IRQ_NOT_RX.search(action or ""):
            found[queue.group(1)] = parse_cpu_list(cpus)
    return found


def environment(host: Host, interface: Optional[str], cpuinfo: str) -> dict[str, str]:
    """Return what moves a number and must not change under way."""
    governors = {read(host, f"{CPU}/{n}/cpufreq/scaling_governor") for n in names(host, CPU)}
    flags = (cpuinfo_value(cpuinfo, "flags") or "").split()
    found = {
        "mitigations": mitigations(host),
        "governor": ", ".join(sorted(g for g in governors if g is not None)) or None,
        "clocksource": read(host, CLOCKSOURCE),
        "virtual_machine": "yes" if "hypervisor" in flags else "no" if flags else None,
        "irqbalance": "running" if process_runs(host, "irqbalance") else "not running",
        "offloads": offloads(host, interface) if interface is not None else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def mitigations(host: Host) -> Optional[str]:
    """Return the CPU vulnerabilities that concern this machine and what is done about each."""
    folder = f"{CPU}/vulnerabilities"
    states = {name: read(host, f"{folder}/{name}") for name in names(host, folder)}
    return (
        "; ".join(f"{n}: {state}" for n, state in states.items() if state and state != UNAFFECTED)
        or None
    )


UNAFFECTED = "Not affected"


def process_runs(host: Host, name: str) -> bool:
    """Say whether a process of this name runs."""
    return any(
        read(host, f"/proc/{entry}/comm") == name
        for entry in names(host, "/proc")
        if entry.isdigit()
    )


def offloads(host: Host, interface: str) -> Optional[str]:
    """Return the offload features that are on, by the kernel's names."""
    try:
        features = host.features(interface)
    except OSError:
        return None
    return " ".join(sorted(name for name, enabled in features.items() if enabled))
