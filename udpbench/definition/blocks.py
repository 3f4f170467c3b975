"""The keys that no type of the model holds: settings, hosts, and the two files themselves.

Declarations only, read by ``grammar`` in the same way as the dataclasses of ``model``: a key is the
field's name without its unit, ``Optional`` with None means that the key may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from udpbench.definition.leaves import Named
from udpbench.model import (
    DAY_NS,
    SECOND_NS,
    Connect,
    Needs,
    Receive,
    Send,
    Traffic,
)
from udpbench.units import Bytes, Count, Nanoseconds

__all__ = ["ExperimentFile", "HostFile", "LabFile", "Settings", "WholeKeys"]

U32_MAX = 2**32 - 1
DURATION_NS = 5 * SECOND_NS
DURATION_WITH_COUNT_NS = 60 * SECOND_NS

CpuList = Annotated[str, Named("cpu_list")]
FeatureName = Annotated[str, Named("feature")]
SysctlName = Annotated[str, Named("sysctl_name")]
BitRate = Annotated[int, Named("bit_rate")]


@dataclass(frozen=True)
class Link:
    """The pair of a built-in lab, as its receiver makes it."""

    queues: Literal["auto"] | Annotated[int, Count(1, 1024)] | None = None
    receive: Literal["napi", "rps", "inline"] | None = None
    cpus: Annotated[str, Named("link_cpus")] | None = None
    rate_bps: BitRate | None = None


@dataclass(frozen=True)
class Tbf:
    """A token bucket as the device's queue."""

    rate_bps: BitRate
    burst_bytes: Annotated[int, Bytes(1, U32_MAX)]
    limit_bytes: Annotated[int, Bytes(1, U32_MAX)]


@dataclass(frozen=True)
class Pfifo:
    """A queue bounded in packets."""

    limit_packets: Annotated[int, Count(1, U32_MAX)]


@dataclass(frozen=True)
class Bfifo:
    """A queue bounded in bytes."""

    limit_bytes: Annotated[int, Bytes(1, U32_MAX)]


@dataclass(frozen=True)
class Qdisc:
    """The device's root queue; exactly one kind."""

    tbf: Tbf | None = None
    pfifo: Pfifo | None = None
    bfifo: Bfifo | None = None


@dataclass(frozen=True)
class Firewall:
    """Rules for one UDP port."""

    udp: Annotated[int, Count(1, 65535)]
    accept: bool | None = None
    notrack: bool | None = None
    drop: Literal["none", "input", "output", "prerouting"] | None = None


@dataclass(frozen=True)
class Rings:
    """Descriptors per ring."""

    rx: Annotated[int, Count(1, 2**20)] | None = None
    tx: Annotated[int, Count(1, 2**20)] | None = None


@dataclass(frozen=True)
class Pause:
    """Ethernet flow control."""

    autoneg: bool | None = None
    rx: bool | None = None
    tx: bool | None = None


@dataclass(frozen=True)
class FlowHash:
    """Header fields that choose the RX queue."""

    udp4: Annotated[str, Named("hash_fields")] | None = None
    udp6: Annotated[str, Named("hash_fields")] | None = None


@dataclass(frozen=True)
class Ntuple:
    """One steering rule: UDP packets to a port go to a queue."""

    port: Annotated[int, Count(1, 65535)]
    queue: Annotated[int, Count(0, 4095)]


@dataclass(frozen=True)
class Ethtool:
    """What a driver lets one set."""

    channels: Annotated[int, Count(1, 4096)] | None = None
    rings: Rings | None = None
    features: dict[FeatureName, bool] | None = None
    coalesce: dict[FeatureName, Annotated[int, Count(0, U32_MAX)]] | None = None
    pause: Pause | None = None
    rx_flow_hash: FlowHash | None = None
    indirection: str | None = None
    ntuple: list[Ntuple] | None = None


@dataclass(frozen=True)
class QueueCpus:
    """CPUs of the queues: queue k on the k-th."""

    cpus: CpuList


@dataclass(frozen=True)
class Napi:
    """How the receiving device is polled."""

    threaded: bool | None = None
    cpus: CpuList | None = None
    defer_hard_irqs: Annotated[int, Count(0, 2**31 - 1)] | None = None
    gro_flush_timeout_ns: Annotated[int, Nanoseconds(0, SECOND_NS)] | None = None


@dataclass(frozen=True)
class Cpu:
    """Power management of the CPUs."""

    governor: str | None = None
    turbo: bool | None = None
    latency_ns: Annotated[int, Nanoseconds(0, 2 * SECOND_NS)] | None = None


@dataclass(frozen=True)
class Settings:
    """What is changed on each host of one role, and changed back."""

    link: Link | None = None
    addresses: list[Annotated[str, Named("address")]] | None = None
    neighbours: list[Annotated[str, Named("neighbour")]] | None = None
    routes: list[Annotated[str, Named("route")]] | None = None
    mtu_bytes: Annotated[int, Count(68, 65535)] | None = None
    txqueuelen_packets: Annotated[int, Count(0, 2**31 - 1)] | None = None
    qdisc: Qdisc | None = None
    firewall: Firewall | None = None
    sysctl: dict[SysctlName, Annotated[Any, Named("sysctl")]] | None = None
    ethtool: Ethtool | None = None
    irq: QueueCpus | None = None
    rps: QueueCpus | None = None
    xps: QueueCpus | None = None
    rfs_flows: Annotated[int, Count(0, 2**29)] | None = None
    napi: Napi | None = None
    cpu: Cpu | None = None
    optional: list[Annotated[str, Named("optional_path")]] | None = None


@dataclass(frozen=True)
class RoleSettings:
    """Settings by role."""

    sender: Settings = field(default_factory=Settings)
    receiver: Settings = field(default_factory=Settings)


@dataclass(frozen=True, kw_only=True)
class WholeKeys:
    """The keys that speak of all points of an experiment at once."""

    sweep: dict[str, list[Any]] | None = None
    variants: dict[str, dict[str, Any]] | None = None
    expect: list[Annotated[str, Named("expectation")]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ExperimentFile(WholeKeys):
    """What to measure: one question."""

    question: str
    source: str | None = None
    extends: str | None = None
    needs: Needs = field(default_factory=Needs)
    traffic: Traffic = field(default_factory=Traffic)
    send: Send = field(default_factory=Send)
    receive: Receive = field(default_factory=Receive)
    settings: RoleSettings = field(default_factory=RoleSettings)
    faults: dict[Annotated[str, Named("stage")], Annotated[int, Count(1, 10**9)]] = field(
        default_factory=dict
    )
    duration_ns: Annotated[int, Nanoseconds(10**8, DAY_NS)] | None = None
    warmup_ns: Annotated[int, Nanoseconds(0, 3600 * SECOND_NS)] = SECOND_NS
    repetitions: Annotated[int, Count(1, 10000)] = 7
    path_check: Literal["arrive", "explained"] = "arrive"
    explain: bool = False


@dataclass(frozen=True)
class HostFile:
    """One host of a lab."""

    connect: Annotated[Connect, Named("connect")]
    interface: str
    addresses: Literal["existing"] | list[Annotated[str, Named("address")]]
    name: str | None = None
    cpus: Annotated[tuple[int, ...], Named("cpu_tuple")] | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class LabFile:
    """Where to measure: the hosts by role."""

    sender: list[HostFile]
    receiver: list[HostFile]
    settings: RoleSettings = field(default_factory=RoleSettings)
