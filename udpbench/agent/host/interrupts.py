"""Which interrupt serves which queue of an interface: from netlink, else by name in /sys.

Read-only. Interrupt names depend on the driver (``drivers``; docs/kernel.md, Interrupt names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Optional

from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.drivers import DRIVERS

IRQBALANCE = "irqbalance"
"""The daemon that moves interrupts between CPUs."""
IRQ_QUEUE = re.compile(
    "(?:"
    + "|".join(sorted({re.escape(n) for row in DRIVERS.values() for n in (row.irq, row.irq_sent)}))
    + r")(\d+)(?:@.*)?\Z",
    re.IGNORECASE,
)
"""Queue number in an interrupt's name: eth0-TxRx-3, virtio1-input.3, mlx5_comp3@pci:..."""
_NOT_A_QUEUE = r"config|control|mgmnt|async|ptp|:fdir|:ctrl|ceq|aeq"
IRQ_NOT = {
    "rx": re.compile(rf"output|-tx-\d+\Z|{_NOT_A_QUEUE}", re.IGNORECASE),
    "tx": re.compile(rf"input|(?<!-tx)-rx-\d+\Z|{_NOT_A_QUEUE}", re.IGNORECASE),
}
"""Some other interrupts end like a queue's: i40e-0000:04:00.0:fdir-TxRx-0, ice's :ctrl, irdma's
-CEQ-1. ena's -Tx-Rx-0 serves both directions."""


def rx_interrupts(host: Host, interface: str) -> dict[int, int]:
    """Return RX queue → IRQ number; empty if unknown."""
    return queue_interrupts(host, interface)["rx"]


def queue_interrupts(host: Host, interface: str) -> dict[str, dict[int, int]]:
    """Return rx and tx → queue → IRQ number, where known.

    The kernel's own answer (Linux 6.8) wins if the driver supports it; virtio does not. By name,
    only queues that are in use: mlx5 may request more interrupts.
    """
    actions = tuple(_actions(host, interface))
    irqs = {}
    for way in IRQ_NOT:
        count = queue_count(host, interface, way)
        named = _by_name(actions, interface, way)
        irqs[way] = {queue: irq for queue, irq in named.items() if count is None or queue < count}
        with suppress(OSError):
            napis = host.queue_napis(interface, way)
            irqs[way] = {queue: napi.irq for queue, napi in napis.items() if napi.irq} or irqs[way]
    return irqs


def queue_count(host: Host, interface: str, way: str) -> Optional[int]:
    """Return the number of RX or TX queues in use; None if sysfs does not show them."""
    queues = [q for q in _names(host, f"/sys/class/net/{interface}/queues") if q.startswith(way)]
    return len(queues) or None


def _by_name(actions: Iterable[tuple[int, str]], interface: str, way: str) -> dict[int, int]:
    """Return queue → IRQ number, by interrupt name.

    A name with the interface's name wins: other interrupts of the device may look like a queue's.
    tg3 numbers vectors; if number 0 only sends, number 1 is RX queue 0 (tg3.c: tg3_request_irq).
    """
    own_name = re.compile(rf"\b{re.escape(interface)}\b")
    irqs: dict[int, int] = {}
    own: set[int] = set()
    for irq, action in actions:
        ending = IRQ_QUEUE.search(action)
        if ending is None or IRQ_NOT[way].search(own_name.sub("", action)):
            continue
        queue = int(ending.group(1))
        if own_name.search(action):
            own.add(queue)
        elif queue in own:
            continue
        irqs[queue] = irq
    only_sends = any(action == f"{interface}-tx-0" for _, action in actions)
    first = int(way == "rx" and only_sends and 0 not in own)
    return {queue - first: irq for queue, irq in irqs.items() if queue >= first}


def affinity_files(host: Host, interface: str) -> dict[str, str]:
    """Return interrupt name → affinity file, for all interrupts of an interface's device."""
    return {
        action: f"/proc/irq/{irq}/smp_affinity_list" for irq, action in _actions(host, interface)
    }


def _actions(host: Host, interface: str) -> Iterator[tuple[int, str]]:
    """Yield (IRQ number, name) of each interrupt in use; virtio's list is one folder up."""
    device = f"/sys/class/net/{interface}/device"
    for irq in _names(host, f"{device}/msi_irqs") or _names(host, f"{device}/../msi_irqs"):
        try:
            action = host.read_text(f"/sys/kernel/irq/{irq}/actions")
        except OSError:
            continue
        if action:
            yield int(irq), action


def _names(host: Host, folder: str) -> list[str]:
    try:
        return host.listdir(folder)
    except OSError:
        return []


def irqbalance_pids(host: Host) -> list[int]:
    """Return irqbalance's processes: root's alone, since anybody may use that name."""
    named = [pid for pid, name in host.process_names().items() if name == IRQBALANCE]
    pids = []
    for pid in named:
        with suppress(OSError):  # it may have ended
            pids += [pid] if host.is_of_root(pid) else []
    return pids


def is_irqbalance_running(host: Host) -> Optional[bool]:
    """Return whether irqbalance is active; False while paused, None if not running."""
    pids = irqbalance_pids(host)
    return any(not host.is_stopped(pid) for pid in pids) if pids else None
