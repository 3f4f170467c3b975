"""What a worker is to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, Optional

from udpbench.frozen import dataclass
from udpbench.model.experiment import Fault, Log, Receive, Send, Traffic
from udpbench.model.limits import Role


@dataclass(frozen=True)
class FlowSpec:
    """One 4-tuple, and the flow number in the header of its packets."""

    flow: int
    source: str
    source_port: int
    destination: str
    destination_port: int


@dataclass(frozen=True)
class WorkerSpec:
    """One worker, fully resolved against the facts of its host.

    A sender's ``flows`` are those it sends; a receiver's are all that may reach its host, because
    with a shared socket any worker may see any flow. A receiver reads ``bind_ports``; its ``send``
    is how the senders send.
    """

    role: Role
    host: str
    index: int
    cpu: Optional[int]
    flows: tuple[FlowSpec, ...]
    traffic: Traffic
    send: Optional[Send] = None
    receive: Optional[Receive] = None
    rate_pps: Optional[int] = None
    count_packets: Optional[int] = None
    bind_ports: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    """CPUs on which a program may run if there are several; empty: ``cpu``, or all."""

    @property
    def own_cpus(self) -> tuple[int, ...]:
        """The CPUs that the worker is pinned to; empty: none in particular."""
        return self.cpus if self.cpu is None else (self.cpu,)

    @property
    def name(self) -> str:
        """``left.sender0``: unique in a trial."""
        return f"{self.host}.{self.role}{self.index}"

    @property
    def fault(self) -> Optional[Fault]:
        """The fault of this worker, which users count from 1; None if it has none."""
        fault = self.receive.fault if self.receive is not None else None
        return fault if fault is not None and fault.worker == self.index + 1 else None

    @property
    def log(self) -> Optional[Log]:
        """The log to which a receiver writes every datagram; None if it writes none."""
        return self.receive.log if self.receive is not None else None


def replies(workers: Iterable[WorkerSpec]) -> tuple[WorkerSpec, ...]:
    """Return receivers as senders of what they send back: echoes, or answers of a program."""
    return tuple(
        replace(
            spec,
            role="sender",
            flows=tuple(
                FlowSpec(
                    each.flow,
                    each.destination,
                    each.destination_port,
                    each.source,
                    each.source_port,
                )
                for each in spec.flows
            ),
        )
        for spec in workers
        if spec.role == "receiver" and (spec.traffic.echo or spec.traffic.answers)
    )


@dataclass(frozen=True)
class LossSpec:
    """Packets sent in addition to the traffic and lost on purpose at one stage of the ledger."""

    stage: str
    packets: int
    """To be lost; a few more may be sent, which arrive and are counted."""
    segments: int
    """Packets per GSO message; 1: no GSO."""
    size_bytes: int
    family: Literal[4, 6]
    source: str
    destination: str
    port: int
    """The port of both ends; nothing else uses it."""
    source_mac: str
    destination_mac: str
    gro: bool
    """Receiving sockets accept merged datagrams."""
    hops: int = 1
    """Their time to live."""
    whole: bool = False
    """They are not fragmented on their way, however long."""
