"""What a host tells about itself, and what is set there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, Optional

from udpbench.frozen import dataclass
from udpbench.model.limits import Scope

GSO_SEGMENTS = "udp.gso_segments"
"""Key of ``Facts.limits``: datagrams in one GSO message, 64, or 128 since Linux 6.9."""

KERNEL_BUILD = "kernel_build"
"""Key of ``Facts.environment``: version and instruction set of the kernel, as of uname(2)."""
NOTHING_ATTACHED = "none"
"""Value of ``xdp`` and ``tcx`` there without a program; then none dropped."""
SOCKET_MEMORY = "socket_memory"
"""Key there: what memory a cgroup allows sockets, ``65536 bytes of cgroup /x``, where any does."""
FIREWALL_RULES = "firewall_rules"
"""How many a host has after a trial, beside its environment, as text."""
FIREWALL_CHANGED = "the firewall was changed during the trial"
"""Said of a host whose number of rules differs after a trial."""
GENERIC_XDP = "generic"
"""In the value of ``xdp`` of a program in the stack, whose drops the driver does not count."""


@dataclass(frozen=True)
class Facts:
    """Facts about one host at one moment; an unknown fact is None or empty, never a guess."""

    host: str
    hostname: str
    kernel: str
    boot_id: str
    python: str
    cpus: tuple[int, ...]
    """CPUs the agent may run on (online and in its affinity)."""
    cpu_model: Optional[str]
    numa_nodes: dict[str, tuple[int, ...]]
    siblings: dict[str, tuple[int, ...]]
    """CPU number as text → the CPUs of its core, itself included."""
    interface: str
    driver: Optional[str]
    mac: Optional[str]
    mtu: Optional[int]
    addresses: tuple[str, ...]
    rx_queues: Optional[int]
    tx_queues: Optional[int]
    queue_cpus: dict[str, tuple[int, ...]]
    """RX queue as text → the CPUs that serve it, if known (NAPI thread, RPS, IRQ affinity)."""
    limits: dict[str, int]
    """``net.core.rmem_max`` and the like, if readable; GSO_SEGMENTS once there is an address."""
    capabilities: dict[str, bool]
    """What the agent may do, each tried rather than guessed: net_admin, rcvbuf_force ..."""
    environment: dict[str, str] = field(default_factory=dict)
    """What must not change during a trial: mitigations, governor, offloads ..."""
    interface_node: Optional[int] = None
    """NUMA node of the interface's device."""
    queue_irqs: dict[str, int] = field(default_factory=dict)
    """RX queue as text → number of its interrupt, if known."""
    tx_queue_irqs: dict[str, int] = field(default_factory=dict)
    """The same of TX queues; the same interrupt where one serves both."""
    rings: dict[str, int] = field(default_factory=dict)
    """Descriptors per ring by ethtool's names: rx, tx, and the largest possible rx-max, tx-max."""
    cache_siblings: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """CPU number as text → the CPUs that share its last level of cache, itself included."""
    link: Optional[Literal["up", "no carrier", "down"]] = None
    """Whether the interface is up and has a carrier."""
    firewall_rules: Optional[int] = None
    """Rules of nf_tables in the network namespace, iptables' among them if it is made on those."""
    xdp_features: Optional[tuple[str, ...]] = None
    """What the interface's driver does for XDP natively, in the kernel's words; empty: nothing.

    None before Linux 6.3, which does not say (netdev-genl).
    """

    @property
    def destinations(self) -> frozenset[str]:
        """To what packets may be sent that are to come to its interface: addresses, no prefix."""
        return frozenset(address.partition("/")[0] for address in self.addresses)


@dataclass(frozen=True)
class Inspection:
    """What a host is besides its facts, read on request alone; None: it cannot be read."""

    clock_ns: int
    """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment."""
    wall_ns: int
    wall_synchronised: Optional[bool]
    """Whether the kernel is told to keep CLOCK_REALTIME (adjtimex(2))."""
    idle_states_us: Optional[dict[str, int]]
    """Enabled C-state → time to wake up from it."""
    pcie: Optional[dict[str, str]]
    """``current_link_speed`` and the like, as in sysfs; empty for a device on another bus."""
    pause: Optional[dict[str, int]]
    """autoneg, rx, tx: 0 or 1; empty without flow control."""
    flow_hash: Optional[str]
    """Letters of the fields of IPv4 UDP, as of ``ethtool -N rx-flow-hash``."""
    tracked_connections: Optional[int]
    firewall: Optional[tuple[str, ...]]
    """Each base chain of filters with rules, or with a policy other than accept."""
    udp_ports: Optional[tuple[int, ...]]
    """Local ports of all UDP sockets of the namespace."""
    arp: Optional[dict[str, int]]
    """arp_ignore and arp_filter in force: the larger of all's and the interface's."""
    other_addresses: Optional[dict[str, tuple[str, ...]]]
    """Other interface → its IPv4 addresses with prefix length."""
    stacked: Optional[tuple[str, ...]]
    """Interfaces above and below, as in sysfs: ``upper_bond0``, ``lower_eth0``."""


WITHOUT = {
    "kernel_threads": "NAPI's threads cannot be pinned, so RPS or the sender does the receive work",
    "rcvbuf_force": "socket buffers end at net.core.rmem_max and wmem_max",
    "real_time": "no priority above the normal one",
}
"""Capability → what it means for a built-in lab to lack it."""


def lost_without(capabilities: Iterable[Mapping[str, bool]]) -> tuple[str, ...]:
    """Return what a built-in lab cannot do, from the capabilities of its hosts."""
    lacking = {name for own in capabilities for name, able in own.items() if not able}
    return tuple(text for name, text in WITHOUT.items() if name in lacking)


@dataclass(frozen=True)
class Setting:
    """One desired value on one host.

    ``kind`` is one of ``setting_kinds``, ``target`` what it applies to (``receive0``,
    ``receive0/rx-0``, ``net.core.rmem_max``); ``path`` is the YAML path it came from.
    """

    kind: str
    target: str
    value: Any
    scope: Scope = "namespace"
    path: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Change:
    """One applied setting: the value before, the requested one, and the one read back."""

    setting: Setting
    before: Any
    after: Any
    refusal: Optional[str] = None
    """Why an optional setting is not in force; then ``after`` equals ``before``."""
    rounded: bool = False
    """The kernel or a driver rounded the requested value, and the rounded one is in force."""


@dataclass(frozen=True)
class Planned:
    """One setting in a dry run: the value now, and why the desired one can't be set, if so."""

    setting: Setting
    now: Any
    refusal: Optional[str] = None
    as_wanted: bool = False
    """Nothing would change, even if ``now`` is written differently from the setting."""
