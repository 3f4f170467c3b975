"""Which interrupt serves which RX queue of an interface: from netlink, else by its name in /sys.

Reads only. Drivers name interrupts each in their own way (kernel-reference 5.2).
"""

from __future__ import annotations

import re

from udpbench.agent.host import Host

IRQ_QUEUE = re.compile(r"(?:input\.|rx-|rx-tx-|rxtx-|comp|-)(\d+)(?:@.*)?\Z", re.IGNORECASE)
"""Queue number in an interrupt's name: eth0-TxRx-3, virtio1-input.3, mlx5_comp3@pci:..."""
IRQ_NOT_RX = re.compile(r"output|-tx-\d+\Z|config|control|mgmnt|async|ptp", re.IGNORECASE)


def rx_interrupts(host: Host, interface: str) -> dict[int, int]:
    """Return RX queue → number of its interrupt; empty where none is known.

    The kernel's own answer (Linux 6.8) wins where the driver gives it; virtio gives none.
    """
    found = _by_name(host, interface)
    try:
        napis = host.queue_napis(interface)
    except OSError:
        return found
    return {**found, **{queue: napi.irq for queue, napi in napis.items() if napi.irq}}


def _by_name(host: Host, interface: str) -> dict[int, int]:
    """Return RX queue → interrupt by name; a virtio device keeps its list one folder up."""
    device = f"/sys/class/net/{interface}/device"
    found: dict[int, int] = {}
    for irq in _names(host, f"{device}/msi_irqs") or _names(host, f"{device}/../msi_irqs"):
        try:
            action = host.read_text(f"/sys/kernel/irq/{irq}/actions")
        except OSError:
            continue
        queue = IRQ_QUEUE.search(action)
        if queue is not None and not IRQ_NOT_RX.search(action):
            found[int(queue.group(1))] = int(irq)
    return found


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.listdir(folder)
    except OSError:
        return []
