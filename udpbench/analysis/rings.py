"""Where each driver counts the frames for which a receiving device had no descriptor: one row each.

The table alone; ``places`` has the expression. To add a driver, read in its source that it counts
nothing else there, or what else, and add it to docs/ledger.md.
"""

from __future__ import annotations

MISSED = "link.{interface}.rx_missed_errors"
"""Where a driver is to count it (if_link.h); that it stands still proves nothing of others."""
RINGS = {
    "bnxt_en": (MISSED,),
    "ena": ("link.{interface}.rx_dropped",),
    "i40e": (MISSED,),
    "ice": ("ethtool.{interface}.rx_dropped.nic",),
    "igb": (MISSED, "ethtool.{interface}.rx_queue_*_drops"),
    "igc": (MISSED, "ethtool.{interface}.rx_queue_*_drops"),
    "ixgbe": (MISSED, "ethtool.{interface}.rx_no_dma_resources"),
    "mlx5_core": (
        "ethtool.{interface}.rx_out_of_buffer",
        "ethtool.{interface}.rx_discards_phy",
    ),
    "sfc": (
        "ethtool.{interface}.port_rx_nodesc_drops",
        "ethtool.{interface}.rx_nodesc_drop_cnt",
    ),
    "virtio_net": ("ethtool.{interface}.rx[0-9]_drops", "ethtool.{interface}.rx[0-9][0-9]_drops"),
    "vmxnet3": ("ethtool.{interface}.pkts rx OOB",),
}
"""Driver → counters that see different frames (Linux 6.12; kernel-reference 1.2).

``ethtool`` where both have it, because it asks the card: mlx5's rx_missed_errors is one reading
old. What igb, igc and ixgbe drop at a queue is not in rx_missed_errors. sfc has one name or the
other, by its age, and it and ice count for the whole port.
"""
WITH_XDP = ("virtio_net",)
"""Drivers that count there what an XDP program dropped, too (virtio_net.c: receive_small_xdp)."""
WITH_EVERY_DROP = ("ena",)
"""Drivers that count there what an XDP program dropped, and beside which the kernel counts what
its CPU's backlog refused."""
LOOPBACK = "lo"
"""Stands for the driver of the loopback interface, which has none."""
WITHOUT_RING = ("veth", LOOPBACK)
