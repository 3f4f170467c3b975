"""NIC drivers: the names of their counters and interrupts, and what they prove; one row each.

To add a driver, read its source and add a row here and in docs/ledger.md. Counters are matched by
the names that a host has, never by a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from udpbench.model.host import Facts
from udpbench.model.limits import SECOND_NS, Part

MISSED = "link.{interface}.rx_missed_errors"
"""Where a driver should count a full ring (if_link.h)."""
LOOPBACK = "lo"
"""Key of the loopback interface, which has no driver."""


@dataclass(frozen=True)
class MacFrames:
    """How to count frames at a MAC: patterns to add, patterns to subtract; empty: not counted."""

    plus: tuple[str, ...] = ()
    less: tuple[str, ...] = ()


def _own(plus: str, less: str = "") -> MacFrames:
    """Return a driver's own counters by their names in ``ethtool -S``."""
    return MacFrames(
        tuple(f"ethtool.{{interface}}.{name}" for name in plus.split()),
        tuple(f"ethtool.{{interface}}.{name}" for name in less.split()),
    )


NOT_COUNTED = MacFrames()
STANDARD_MAC: Mapping[Part, MacFrames] = {
    "sender": MacFrames(("eth-mac.{interface}.FramesTransmittedOK",)),
    "receiver": MacFrames(
        ("eth-mac.{interface}.FramesReceivedOK",),
        (
            "eth-mac.{interface}.MulticastFramesReceivedOK",
            "eth-mac.{interface}.BroadcastFramesReceivedOK",
        ),
    ),
}
"""The kernel's standard statistics (IEEE 802.3, 30.3.1.1). For senders all frames, because those
leave the queueing discipline; for receivers unicast only, because every network carries other
hosts' broadcasts."""


@dataclass(frozen=True)
class Driver:
    """One driver (docs/kernel.md, Ring counters); the defaults are what most cards do."""

    full_ring: tuple[str, ...] = (MISSED,)
    """Patterns of counters of frames that found no descriptor or that the driver could not accept;
    no frame is in two of them. Empty without a ring."""
    sees_full_ring: bool = True
    """Whether 0 proves that the ring was never full."""
    ring_wraps: bool = False
    """Whether these counters have so few bits that they start again from 0 within a phase."""
    ring_includes: tuple[str, ...] = ()
    """Ledger stages whose packets ``full_ring`` counts as well; ``xsk_ring`` of a card that writes
    frames without a copy, with ``xsk_fill``."""
    queue_packets: tuple[str, ...] = ()
    """Regular expressions for a counter of each RX queue's packets; the first match is read, and
    the kernel's own statistics (``qstats``) before any."""
    queue_sent: tuple[str, ...] = ()
    """The same for TX queues."""
    queue_drops: tuple[str, ...] = ()
    """The same for packets for which an RX queue had no room."""
    xdp_drops: tuple[str, ...] = ()
    """Patterns of counters of XDP drops; a host has one of these forms."""
    xdp_drops_refused: bool = False
    """Whether they also count what AF_XDP sockets refused, where frames are copied (docs/kernel.md,
    What a card counts of AF_XDP)."""
    queue_packets_late_ns: int = 0
    """How long the RX queues' packets may lag; most drivers count them as they read their rings."""
    queue_bypass: str = ""
    """A counter of packets that no queue counts, by way (``rx``, ``tx``): those of a function
    beneath the interface."""
    late_ns: int | None = 2 * SECOND_NS
    """How long counters may lag behind packets, for example if a NIC updates them once a second. 0:
    reading asks the card, by ``ethtool`` at the latest, so a second reading is current. None:
    counted immediately (docs/kernel.md, Update periods)."""
    irq: str = "-"
    """The text before an RX queue's number in the name of its interrupt."""
    irq_sent: str = "-"
    """The same for a TX queue."""
    mac_sent: MacFrames = NOT_COUNTED
    """Frames that the card sent, if it has no standard statistics (docs/kernel.md, Frames at the
    MAC)."""
    mac_received: MacFrames = NOT_COUNTED
    """Unicast frames that the card received, likewise."""
    ring_at_mac: bool = False
    """Whether these, and the standard statistics, include frames that found no descriptor. If not,
    or if undocumented, ``full_ring`` is added: too many frames only widen the interval of
    ``link``."""
    emulated: bool = False
    """Whether emulators offer this card. Emulators do not count frames that find no descriptor
    (QEMU: igb_core.c, igb_receive_internal), so in a virtual machine 0 proves nothing, unless fewer
    frames came than the ring holds."""


def _by_queue(name: str) -> tuple[str, ...]:
    """Return patterns of a counter of each queue; ``*`` would match ``0_xdp``, too."""
    return tuple("ethtool.{interface}." + name.replace("#", "[0-9]" * n) for n in (1, 2, 3))


_RX_QUEUE = (r"rx_queue_(\d+)_packets",)
_RX_DASH = (r"rx-(\d+)\.(?:rx_)?packets",)
_TX_QUEUE = (r"tx_queue_(\d+)_packets",)
_TX_DASH = (r"tx-(\d+)\.(?:tx_)?packets",)
_RX_QUEUE_DROPS = (r"rx_queue_(\d+)_drops",)
# GPTC and GPRC; the latter without what MPC counts.
_INTEL_SENT = _own("tx_packets")
_INTEL_RECEIVED = _own("rx_packets", "rx_multicast rx_broadcast")
_RX_QUEUE_XDP_DROPS = "ethtool.{interface}.rx_queue_*_xdp_drops"
# What igb and igc drop at a queue is not in rx_missed_errors.
_INTEL_GIGABIT = Driver(
    (MISSED, *_by_queue("rx_queue_#_drops")),
    queue_packets=_RX_QUEUE,
    queue_sent=_TX_QUEUE,
    queue_drops=_RX_QUEUE_DROPS,
    late_ns=0,
    mac_sent=_INTEL_SENT,
    mac_received=_INTEL_RECEIVED,
    emulated=True,
)
DRIVERS = {
    LOOPBACK: Driver(full_ring=(), late_ns=None),
    "atlantic": Driver(
        ("ethtool.{interface}.InDroppedDma",),
        queue_packets=(r"Queue\[(\d+)\] InPackets",),
        queue_sent=(r"Queue\[(\d+)\] OutPackets",),
        mac_sent=_own("OutPackets"),
        mac_received=_own("InUCast"),
    ),
    "bnxt_en": Driver(
        queue_packets=(r"\[(\d+)\]: rx_ucast_packets",),
        queue_sent=(r"\[(\d+)\]: tx_ucast_packets",),
        queue_drops=(r"\[(\d+)\]: rx_discards",),
        queue_packets_late_ns=2 * SECOND_NS,
    ),
    "e1000e": Driver(late_ns=0, mac_sent=_INTEL_SENT, mac_received=_INTEL_RECEIVED, emulated=True),
    # ena_netdev.c: ena_get_stats64 adds XDP drops; the kernel adds what a CPU's backlog refused.
    # Its keep-alive event has rx_overruns apart, which Linux does not read.
    "ena": Driver(
        full_ring=("link.{interface}.rx_dropped",),
        sees_full_ring=False,
        ring_includes=("rx_xdp", "rx_backlog"),
        queue_packets=(r"queue_(\d+)_rx_cnt",),
        queue_sent=(r"queue_(\d+)_tx_cnt",),
    ),
    # From a report that the NIC sends at irregular intervals.
    "gve": Driver(
        ("ethtool.{interface}.rx_queue_drop_cnt[[]*]",),
        sees_full_ring=False,
        queue_drops=(r"rx_queue_drop_cnt\[(\d+)\]",),
    ),
    # Its own failures; only the hypervisor sees a full ring, or the function below it (mlx5, mana).
    "hv_netvsc": Driver(
        ("ethtool.{interface}.rx_no_memory",),
        sees_full_ring=False,
        queue_packets=_RX_QUEUE,
        queue_bypass="ethtool.{interface}.vf_{way}_packets",
        queue_sent=_TX_QUEUE,
        late_ns=None,
    ),
    # port.*: of the whole port, other functions' frames among them, as all of ice's .nic. The
    # port's drops are of its own buffer, and are not among the function's.
    # i40e_ethtool.c has rx_missed_errors since 6.7; before, rx_dropped counts these and others, and
    # rx_missed_errors of ``link`` stays 0.
    "i40e": Driver(
        full_ring=("ethtool.{interface}.rx_missed_errors", "ethtool.{interface}.port.rx_discards"),
        queue_packets=_RX_DASH,
        queue_sent=_TX_DASH,
        late_ns=0,
        mac_sent=_own("port.tx_unicast port.tx_multicast port.tx_broadcast"),
        mac_received=_own("port.rx_unicast"),
    ),
    "ice": Driver(
        full_ring=("ethtool.{interface}.rx_dropped", "ethtool.{interface}.rx_dropped.nic"),
        queue_packets=_RX_QUEUE,
        queue_sent=_TX_QUEUE,
        late_ns=0,
        mac_sent=_own("tx_unicast.nic tx_multicast.nic tx_broadcast.nic"),
        mac_received=_own("rx_unicast.nic"),
    ),
    "igb": _INTEL_GIGABIT,
    "igc": _INTEL_GIGABIT,
    "ixgbe": Driver(
        (MISSED, "ethtool.{interface}.rx_no_dma_resources"),
        queue_packets=_RX_QUEUE,
        queue_sent=_TX_QUEUE,
        late_ns=0,
        mac_sent=_own("tx_pkts_nic"),
        mac_received=_own("rx_pkts_nic", "multicast broadcast"),
    ),
    # rx_missed_errors is the port's buffer; that a ring was empty is in rx_dropped, with others.
    "mlx4_core": Driver(
        sees_full_ring=False,
        queue_packets=(r"rx(\d+)_packets",),
        queue_sent=(r"tx(\d+)_packets",),
    ),
    # ``ethtool`` reads the NIC; rx_missed_errors lags by one reading.
    "mlx5_core": Driver(
        full_ring=("ethtool.{interface}.rx_out_of_buffer", "ethtool.{interface}.rx_discards_phy"),
        queue_packets=(r"rx(\d+)_packets",),
        queue_sent=(r"tx(\d+)_packets",),
        # mlx5e_xdp_handle: a refused redirect ends as a drop; without a copy in rx_xsk_xdp_drop.
        xdp_drops=("ethtool.{interface}.rx_xdp_drop",),
        xdp_drops_refused=True,
        late_ns=0,
        irq="comp",
        # Counted at the port, before any ring or the port's own buffer.
        mac_sent=_own("tx_packets_phy"),
        mac_received=_own("rx_packets_phy", "rx_multicast_phy rx_broadcast_phy"),
        ring_at_mac=True,
    ),
    # The card counts in 16 bits, which an overload of a second may exceed.
    "r8169": Driver(
        sees_full_ring=False,
        ring_wraps=True,
        late_ns=0,
        mac_sent=_own("tx_packets"),
        mac_received=_own("unicast"),
    ),
    # Either name, depending on its age; for the whole port.
    "sfc": Driver(
        full_ring=(
            "ethtool.{interface}.port_rx_nodesc_drops",
            "ethtool.{interface}.rx_nodesc_drop_cnt",
        ),
        queue_packets=_RX_DASH,
        queue_sent=_TX_DASH,
        mac_sent=_own("port_tx_packets"),
        mac_received=_own("port_rx_unicast"),
    ),
    "tg3": Driver(
        mac_sent=_own("tx_ucast_packets tx_mcast_packets tx_bcast_packets"),
        mac_received=_own("rx_ucast_packets"),
    ),
    # Its peer fills its ring and counts what does not fit: stage tx_device. The queue counter is
    # what NAPI received; in other drivers that name counts what an XDP program saw.
    "veth": Driver(
        full_ring=(),
        queue_packets=(r"rx_queue_(\d+)_xdp_packets",),
        queue_drops=_RX_QUEUE_DROPS,
        xdp_drops=(_RX_QUEUE_XDP_DROPS,),
        late_ns=None,
    ),
    # Its own failures (virtio_net.c: receive_buf), XDP drops included; only the hypervisor sees a
    # full ring. ``rxN_`` since 6.10, which no longer counts packets by queue.
    "virtio_net": Driver(
        full_ring=(*_by_queue("rx#_drops"), *_by_queue("rx_queue_#_drops")),
        sees_full_ring=False,
        # A refused redirect is an XDP drop (virtnet_xdp_handler), without a copy one of the driver
        # alone (virtnet_receive_xsk_small).
        ring_includes=("rx_xdp", "xsk_ring"),
        queue_packets=_RX_QUEUE,
        queue_sent=_TX_QUEUE,
        xdp_drops=(_RX_QUEUE_XDP_DROPS, *_by_queue("rx#_xdp_drops")),
        xdp_drops_refused=True,
        late_ns=None,
        irq="input.",
        irq_sent="output.",
        queue_drops=(r"rx(\d+)_drops", *_RX_QUEUE_DROPS),
    ),
    "vmxnet3": Driver(("ethtool.{interface}.pkts rx OOB",)),
}
TUNNELS = (
    *("vxlan", "geneve", "bareudp", "macsec", "gre", "gretap", "erspan", "ipip"),
    *("ip6tnl", "ip6gre", "ip6gretap"),
)
"""Whose own queue of a CPU counts what it has no room for in their ``rx_dropped`` alone, above
net.core.netdev_max_backlog (net/core/gro_cells.c: gro_cells_receive)."""
ALLOWANCES = "ethtool.{interface}.*_allowance_exceeded"
"""On ena: packets that the hypervisor queued or dropped, beyond what it allows an instance."""
_CARDS = tuple(row for name, row in DRIVERS.items() if name != "veth")
UNKNOWN = Driver(
    sees_full_ring=False,
    queue_packets=tuple(dict.fromkeys(name for row in _CARDS for name in row.queue_packets)),
    queue_sent=tuple(dict.fromkeys(name for row in _CARDS for name in row.queue_sent)),
    queue_drops=tuple(dict.fromkeys(name for row in _CARDS for name in row.queue_drops)),
)
"""Any other driver: its rx_missed_errors count, but 0 proves nothing."""
VETH_DROPS = _by_queue("rx_queue_#_drops")
"""Frames that an XDP program forwarded through a veth and nobody took (drivers/net/veth.c)."""
XDP_DROPS = tuple(dict.fromkeys(name for row in DRIVERS.values() for name in row.xdp_drops))
"""The patterns of every driver; no counter matches two of them."""


def driver_of(facts: Facts | None) -> Driver:
    """Return the row of the driver of a host's interface."""
    if facts is None:
        return UNKNOWN
    name = LOOPBACK if facts.interface == LOOPBACK else facts.driver or ""
    driver = DRIVERS.get(name, UNKNOWN)
    if driver.emulated and facts.environment.get("virtual_machine") == "yes":
        return replace(driver, sees_full_ring=False)
    return driver
