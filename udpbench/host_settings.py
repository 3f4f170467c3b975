"""What an experiment or a lab sets on a host, as written in its file.

A key is a field's name without its unit, as in ``model``; None means that it is not set.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Optional, Union

from udpbench.frozen import dataclass
from udpbench.units import Bytes, Count, Named, Nanoseconds

U32_MAX = 2**32 - 1

CpuList = Annotated[str, Named("cpu_list")]
FeatureName = Annotated[str, Named("feature")]
SysctlName = Annotated[str, Named("sysctl_name")]
BitRate = Annotated[int, Named("bit_rate")]


@dataclass(frozen=True)
class VethPair:
    """The veth pair of a built-in lab, created by its receiver."""

    queues: Union[Literal["auto"], Annotated[int, Count(1, 1024)], None] = None
    receive: Optional[Literal["napi", "rps", "inline"]] = None
    cpus: Optional[Annotated[str, Named("link_cpus")]] = None
    rate_bps: Union[Literal["none"], BitRate, None] = None


@dataclass(frozen=True)
class Tbf:
    """A token bucket filter as the device's queue."""

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

    tbf: Optional[Tbf] = None
    pfifo: Optional[Pfifo] = None
    bfifo: Optional[Bfifo] = None


@dataclass(frozen=True)
class Firewall:
    """Rules for one UDP port."""

    udp: Annotated[int, Count(1, 65535)]
    accept: Optional[bool] = None
    notrack: Optional[bool] = None
    drop: Optional[Literal["none", "input", "output", "prerouting", "forward"]] = None
    rules: Optional[Annotated[int, Count(0, 10_000)]] = None
    track: Optional[bool] = None


@dataclass(frozen=True)
class Rings:
    """Descriptors per ring."""

    rx: Optional[Annotated[int, Count(1, 2**20)]] = None
    tx: Optional[Annotated[int, Count(1, 2**20)]] = None


@dataclass(frozen=True)
class Pause:
    """Ethernet flow control."""

    autoneg: Optional[bool] = None
    rx: Optional[bool] = None
    tx: Optional[bool] = None


@dataclass(frozen=True)
class FlowHash:
    """Header fields that choose the RX queue."""

    udp4: Optional[Annotated[str, Named("hash_fields")]] = None
    udp6: Optional[Annotated[str, Named("hash_fields")]] = None


@dataclass(frozen=True)
class Ntuple:
    """One steering rule: UDP packets to a port go to a queue."""

    port: Annotated[int, Count(1, 65535)]
    queue: Annotated[int, Count(0, 4095)]


@dataclass(frozen=True)
class Ethtool:
    """What ethtool sets."""

    channels: Optional[Annotated[int, Count(1, 4096)]] = None
    rings: Optional[Rings] = None
    features: Optional[dict[FeatureName, bool]] = None
    coalesce: Optional[dict[FeatureName, Annotated[int, Count(0, U32_MAX)]]] = None
    pause: Optional[Pause] = None
    rx_flow_hash: Optional[FlowHash] = None
    indirection: Optional[str] = None
    ntuple: Optional[list[Ntuple]] = None


@dataclass(frozen=True)
class QueueCpus:
    """CPUs of the queues: queue k on the k-th CPU."""

    cpus: CpuList


@dataclass(frozen=True)
class Napi:
    """How the receiving device is polled."""

    threaded: Optional[bool] = None
    cpus: Optional[CpuList] = None
    defer_hard_irqs: Optional[Annotated[int, Count(0, 2**31 - 1)]] = None
    gro_flush_timeout_ns: Optional[Annotated[int, Nanoseconds(0, 10**9)]] = None


@dataclass(frozen=True)
class Cpu:
    """Power management of the CPUs."""

    governor: Optional[str] = None
    turbo: Optional[bool] = None
    latency_ns: Optional[Annotated[int, Nanoseconds(0, 2 * 10**9)]] = None


@dataclass(frozen=True)
class Settings:
    """What is changed on each host of one role, and restored."""

    link: Optional[VethPair] = None
    addresses: Optional[list[Annotated[str, Named("address")]]] = None
    neighbours: Optional[list[Annotated[str, Named("neighbour")]]] = None
    routes: Optional[list[Annotated[str, Named("route")]]] = None
    mtu_bytes: Optional[Annotated[int, Count(68, 65535)]] = None
    txqueuelen_packets: Optional[Annotated[int, Count(0, 2**31 - 1)]] = None
    qdisc: Optional[Qdisc] = None
    firewall: Optional[Firewall] = None
    nat: Optional[Literal["masquerade"]] = None
    publish: Optional[list[Annotated[str, Named("published_port")]]] = None
    sysctl: Optional[dict[SysctlName, Annotated[Any, Named("sysctl")]]] = None
    ethtool: Optional[Ethtool] = None
    irq: Optional[QueueCpus] = None
    rps: Optional[QueueCpus] = None
    xps: Optional[QueueCpus] = None
    rfs_flows: Optional[Annotated[int, Count(0, 2**29)]] = None
    napi: Optional[Napi] = None
    cpu: Optional[Cpu] = None
    optional: Optional[list[Annotated[str, Named("optional_path")]]] = None


NOTHING = Settings()


def merged(below: Settings, above: Settings) -> Settings:
    """Return the settings of ``above`` over those of ``below``; ``optional`` is concatenated."""
    if above == NOTHING and below.optional != []:
        return below
    if below == NOTHING and above.optional != []:
        return above
    optional = [*(below.optional or ()), *(above.optional or ())]
    result: Settings = replace(_over(below, above), optional=optional or None)
    return result


def _over(below: Any, above: Any) -> Any:
    """Merge blocks and maps key by key; a device has one root queue, so a Qdisc replaces."""
    if above is None or below is None:
        return below if above is None else above
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **above}
    kind: Any = type(below)
    if is_dataclass(kind) and kind is type(above) and kind is not Qdisc:
        names = [item.name for item in fields(kind)]
        values = [_over(getattr(below, name), getattr(above, name)) for name in names]
        return kind(**dict(zip(names, values)))
    return above


def set_keys(block: Any) -> Any:
    """Return a block as plain data by field name, with only what is set."""
    if is_dataclass(block):
        block = {item.name: getattr(block, item.name) for item in fields(block)}
    if isinstance(block, dict):
        return {key: set_keys(value) for key, value in block.items() if value is not None}
    return [set_keys(item) for item in block] if isinstance(block, list) else block
