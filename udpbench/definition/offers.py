"""What the kernel of a host must offer for the ways of a trial, and since when Linux has it.

Pure: an agent has tried each (agent/capabilities.py); what it could not try counts as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from udpbench.definition.faults import PROGRAMS
from udpbench.model import Lab, Role, Trial


@dataclass(frozen=True)
class Offer:
    """Something a host may lack."""

    role: Role
    needed: Callable[[Trial], bool]
    key: str
    what: str
    since: str


OFFERS: Mapping[str, Offer] = {
    "udp_gso": Offer(
        "sender",
        lambda trial: trial.send.gso != "off",
        "send.gso",
        "segmentation of UDP messages (UDP_SEGMENT)",
        "Linux has it since 4.18",
    ),
    "udp_zerocopy": Offer(
        "sender",
        lambda trial: trial.send.zerocopy,
        "send.zerocopy",
        "zero copy for UDP (SO_ZEROCOPY)",
        "Linux has it since 5.0",
    ),
    "udp_gro": Offer(
        "receiver",
        lambda trial: trial.receive.gro,
        "receive.gro",
        "merged datagrams (UDP_GRO)",
        "Linux has it since 5.0",
    ),
    "reuseport_cbpf": Offer(
        "receiver",
        lambda trial: trial.receive.sockets == "reuseport-cpu",
        "receive.sockets: reuseport-cpu",
        "programs that choose a socket (SO_ATTACH_REUSEPORT_CBPF)",
        "Linux has it since 4.5",
    ),
    "incoming_cpu": Offer(
        "receiver",
        lambda trial: trial.receive.sockets == "incoming-cpu",
        "receive.sockets: incoming-cpu",
        "a choice of UDP sockets by SO_INCOMING_CPU",
        "Linux has it since 6.2",
    ),
    "busy_poll": Offer(
        "receiver",
        lambda trial: trial.receive.wait.startswith("busy-poll"),
        "receive.wait: busy-poll",
        "busy polling (SO_BUSY_POLL)",
        "Linux has it since 3.11, built with CONFIG_NET_RX_BUSY_POLL; it needs CAP_NET_ADMIN",
    ),
    "bpf": Offer(
        "receiver",
        lambda trial: bool(set(PROGRAMS) & set(trial.faults)),
        f"faults: {', '.join(PROGRAMS)}",
        "BPF program for this user (bpf(2))",
        "Linux has it since 4.8, and takes root or CAP_BPF; run as root",
    ),
}
"""Capability → what asks for it."""


def lacking(
    trials: Iterable[Trial], lab: Lab, capabilities: Mapping[str, Mapping[str, bool]]
) -> Iterator[str]:
    """Yield, once each, what hosts lack for any of the trials; ``capabilities`` are by host."""
    wanted = {
        name: offer
        for trial in trials
        for name, offer in OFFERS.items()
        if offer.needed(trial) and (offer.role == "sender" or trial.receive.workers > 0)
    }
    for host in lab.hosts:
        known = capabilities[host.name]
        for name, offer in wanted.items():
            if offer.role == host.role and known.get(name) is False:
                yield f"{host.name}: {offer.key}: this kernel has no {offer.what}; {offer.since}"
