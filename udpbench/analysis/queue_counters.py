"""What each queue of a card did: packets, drops, interrupts, and the CPU that served them.

By the kernel's statistics of queues where a driver offers them, else by the names that it gives its
own. Pure; ``checks.placement`` says if packets arrived on other queues than intended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from udpbench.analysis.delta import Deltas, number_of
from udpbench.analysis.ledger.skbs import QDISC_DROPS, QDISC_PACKETS
from udpbench.analysis.readings import CounterView, Readings
from udpbench.drivers import driver_of
from udpbench.model.experiment import Traffic
from udpbench.model.host import Facts
from udpbench.model.work import WorkerSpec

CARRYING = 0.01
"""A queue with less than this share of the packets carries only foreign traffic."""
EVEN = 0.5
"""A flow sends at least this part of its even share."""
FRAGMENT_BYTES = 1280
"""Hardly any link has smaller fragments: it is the smallest MTU of IPv6."""
ON_CPU = re.compile(r"cpu(\d+)")
"""The end of the name of a counter of interrupts."""

Direction = Literal["rx", "tx"]


@dataclass(frozen=True)
class QueueUse:
    """What one queue did between two readings; None: not counted."""

    host: str
    queue: str
    """``rx-0`` or ``tx-3``."""
    packets: int | None
    drops: int | None
    """What RX had no room for; what of TX its queueing discipline or the card refused."""
    interrupts: int | None
    cpus: tuple[int, ...]
    """CPUs that took its interrupts, most first; without interrupts those of its NAPI thread or
    RPS; empty if unknown."""


def queue_packets(facts: Facts, delta: Deltas) -> dict[int, int] | None:
    """Return RX queue → packets it took; None if they are not counted by queue."""
    packets = _by_queue(facts, delta, "rx", "packets", driver_of(facts).queue_packets)
    # A veth without NAPI has these counters and never moves them.
    return packets if any(packets.values()) and not _is_bypassed(facts, delta, "rx") else None


def _is_bypassed(facts: Facts, delta: Deltas, direction: Direction) -> bool:
    """Return whether packets went by a function beneath the interface, past its queues."""
    name = driver_of(facts).queue_bypass
    return bool(name and delta.total(name.format(interface=facts.interface, way=direction)))


def queue_uses(readings: CounterView) -> tuple[QueueUse, ...]:
    """Return what every queue of the senders and the receivers did, where anything counts it."""
    uses: list[QueueUse] = []
    for facts in (*readings.sender.facts, *readings.receiver.facts):
        delta = readings.deltas.get(facts.host)
        if delta is not None:
            machine = readings.deltas.get(readings.machine_of(facts.host), delta)
            whole = readings.whole.deltas.get(facts.host, delta)
            uses += _received_uses(facts, delta, whole, machine)
            uses += _sent_uses(facts, delta, whole, machine)
    return tuple(uses)


def _received_uses(
    facts: Facts, delta: Deltas, whole: Deltas, machine: Deltas
) -> Iterator[QueueUse]:
    """Yield the RX queues' uses; ``whole`` are the differences of the whole phase."""
    names = driver_of(facts)
    moving = queue_packets(facts, whole) is not None
    packets = _by_queue(facts, delta, "rx", "packets", names.queue_packets) if moving else {}
    drops = _by_queue(facts, delta, "rx", "hw-drops", names.queue_drops) if moving else {}
    irqs = {int(queue): irq for queue, irq in facts.queue_irqs.items()}
    interrupts = _interrupts(machine, irqs.values())
    for queue in sorted({*packets, *irqs}):
        served = interrupts.get(irqs.get(queue))
        polled = facts.queue_cpus.get(str(queue), ())
        yield _use(facts, f"rx-{queue}", packets.get(queue), drops.get(queue), served, polled)


def _sent_uses(facts: Facts, delta: Deltas, whole: Deltas, machine: Deltas) -> Iterator[QueueUse]:
    """Yield the TX queues' uses."""
    counted = not _is_bypassed(facts, whole, "tx")
    packets = _sent(facts, delta, whole) if counted else {}
    drops = _refused(facts, delta, whole)
    irqs = {int(queue): irq for queue, irq in facts.tx_queue_irqs.items()}
    interrupts = _interrupts(machine, irqs.values())
    for queue in sorted({*packets, *irqs}):
        served = interrupts.get(irqs.get(queue))
        yield _use(facts, f"tx-{queue}", packets.get(queue), drops.get(queue), served, ())


def _use(
    facts: Facts,
    queue: str,
    packets: int | None,
    drops: int | None,
    served: tuple[int, tuple[int, ...]] | None,
    polled: tuple[int, ...],
) -> QueueUse:
    interrupts, taking = served if served is not None else (None, ())
    return QueueUse(facts.host, queue, packets, drops, interrupts, taking or polled)


def _by_queue(
    facts: Facts, delta: Deltas, direction: Direction, statistic: str, own: tuple[str, ...]
) -> dict[int, int]:
    """Return queue → a number of it: the kernel's, else the driver's first that is there."""
    interface = re.escape(facts.interface)
    kernels = ("qstats", rf"{direction}-(\d+)\.{statistic}")
    for block, pattern in (kernels, *(("ethtool", name) for name in own)):
        counter = re.compile(rf"{block}\.{interface}\.{pattern}")
        numbers = _numbers(counter, delta.beginning(f"{block}.{facts.interface}."))
        if numbers:
            return numbers
    return {}


def _sent(facts: Facts, delta: Deltas, whole: Deltas) -> dict[int, int]:
    """Return TX queue → packets; without a count of the card's, what its discipline handed over."""
    packets = _by_queue(facts, delta, "tx", "packets", driver_of(facts).queue_sent)
    return packets or _of_disciplines(facts, delta, whole, QDISC_PACKETS, "tx_packets")


def _refused(facts: Facts, delta: Deltas, whole: Deltas) -> dict[int, int]:
    """Return TX queue → what its discipline dropped, and the card where it says so."""
    drops = Counter(_of_disciplines(facts, delta, whole, QDISC_DROPS, "tx_dropped"))
    drops.update(_by_queue(facts, delta, "tx", "hw-drops", ()))
    return dict(drops)


def _of_disciplines(
    facts: Facts, delta: Deltas, whole: Deltas, counter: str, of_device: str
) -> dict[int, int]:
    """Return TX queue → a counter of its queueing discipline: below mq, or of the only queue.

    ``noqueue``, a veth's, has these counters and never moves them; then the only queue has what the
    device counts, and of several none is known.
    """
    name, sent = (each.replace("{interface}", facts.interface) for each in (counter, QDISC_PACKETS))
    device = f"link.{facts.interface}."
    if not whole.values.get(sent) and whole.values.get(f"{device}tx_packets"):
        alone = delta.values.get(device + of_device) if facts.tx_queues == 1 else None
        return {0: alone} if alone is not None else {}
    head, _, last = name.rpartition(".")
    below = re.compile(rf"{re.escape(head)}\.tx_queue_(\d+)\.{last}")
    numbers = _numbers(below, delta.beginning(f"{head}."))
    if not numbers and facts.tx_queues == 1 and name in delta.values:
        return {0: delta.values[name]}
    return numbers


def _numbers(counter: re.Pattern[str], counters: Mapping[str, int]) -> dict[int, int]:
    """Return number in the name → value of the counters that match, but for absurd numbers."""
    matches = ((counter.fullmatch(name), value) for name, value in counters.items())
    known = ((number_of(match.group(1)), value) for match, value in matches if match is not None)
    return {number: value for number, value in known if number is not None}


def _interrupts(
    machine: Deltas, irqs: Iterable[int]
) -> Mapping[int | None, tuple[int, tuple[int, ...]]]:
    """Return interrupt → how often it came, and the CPUs that served it, most first.

    Without those that are not counted. Each once: a card may have one interrupt for all its queues.
    """
    counted = machine.numbered("interrupt")
    served: dict[int | None, tuple[int, tuple[int, ...]]] = {}
    for irq in {*irqs}:
        by_cpu = Counter(_numbers(ON_CPU, counted.get(irq, {})))
        if by_cpu:
            taking = tuple(cpu for cpu, number in by_cpu.most_common() if number)
            served[irq] = (sum(by_cpu.values()), taking)
    return served


def sent_flows(workers: Iterable[WorkerSpec]) -> int:
    """Return the number of flows sent; one that several workers send counts once for each.

    So does each fragment, because a NIC that hashes ports finds them only in the first.
    """
    return sum(len(spec.flows) * _pieces(spec.traffic) for spec in workers if spec.role == "sender")


def _pieces(traffic: Traffic) -> int:
    return traffic.datagrams.longest_bytes // FRAGMENT_BYTES + 1 if traffic.fragment else 1


def carrying(packets: dict[int, int], flows: int) -> tuple[int, ...]:
    """Return the queues on which any of a number of flows landed in a path phase.

    It sends so few packets that two foreign ones, say ARP or LLDP, exceed ``CARRYING``. But the
    socket or the NIC puts all packets of a flow on one queue, so a queue has a whole flow or none.
    """
    total, fullest = sum(packets.values()), max(packets.values(), default=0)
    least = min(EVEN * total / max(flows, 1), fullest)
    return tuple(
        queue
        for queue in sorted(packets)
        if packets[queue] > CARRYING * total and packets[queue] >= least
    )


def loaded_queues(readings: Readings) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield receiver, RX queue and its CPUs, of each with packets as far as they are counted."""
    packets = by_receiver(readings)
    for facts in readings.receiver.facts:
        for queue, cpus in facts.queue_cpus.items():
            if packets.get(facts.host, {}).get(int(queue), 1):
                yield facts.host, queue, cpus


def by_receiver(phase: Readings) -> dict[str, dict[int, int]]:
    """Return receiver → its queues' packets, if they are counted by queue."""
    by_host = {}
    for facts in phase.receiver.facts:
        if facts.host in phase.deltas:
            counted = queue_packets(facts, phase.deltas[facts.host])
            if counted is not None:
                by_host[facts.host] = counted
    return by_host
