"""What workers need to receive frames by AF_XDP: one socket per RX queue, and one program.

The kernel detaches the program when the process that holds its link ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable
from typing import Any

from udpbench._native import ffi, lib
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.port_taker import takes
from udpbench.agent.workers.sockets import TIMEOUT, bound_to_queue
from udpbench.model.limits import ETHERNET_BYTES
from udpbench.model.work import WorkerSpec

PROGRAM_NAME = "udpb_take"
SOL_XDP, XDP_STATISTICS = 283, 7  # include/uapi/linux/if_xdp.h
STATISTICS = struct.Struct("=6Q")
"""rx_dropped, rx_invalid_descs, tx_invalid_descs, rx_ring_full and two more (Linux 5.9)."""


class Taker:
    """The XDP program that redirects the traffic's ports, and the sockets that get the frames."""

    def __init__(self, queues: int) -> None:
        self.sockets = bpf.create_sockets(queues)

    def attach(self, interface: str, specs: Iterable[WorkerSpec]) -> None:
        """Attach the program until this process ends; OSError if the kernel refuses it."""
        flows = [flow for spec in specs for flow in spec.flows]
        ports = {flow.destination_port for flow in flows}
        addresses = {flow.destination for flow in flows}
        family = 6 if any(":" in address for address in addresses) else 4
        code = takes(self.sockets, family, ports, addresses)
        program = bpf.load(bpf.XDP, code, PROGRAM_NAME)
        try:
            # Held by this process alone, so its end undoes it.
            self.link = bpf.link_xdp(program, socket.if_nametoindex(interface))
        except OSError as error:
            raise OSError(error.errno, f"XDP program on {interface}: {_why(error)}") from error
        finally:
            os.close(program)


def _why(error: OSError) -> str:
    text = os.strerror(error.errno or 0)
    if error.errno in (errno.EBUSY, errno.EEXIST):
        return f"{text}: another program is attached; detach it (ip link show names it)"
    if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
        return f"{text}: the driver takes no XDP program, or none at this MTU; use recvmmsg"
    return text


class FrameReceiver:
    """An AF_XDP socket bound to the RX queue with the worker's number."""

    def __init__(self, own: socket.socket, shared: Any) -> None:
        self.socket = own
        self.shared = shared
        self.zerocopy = bool(shared.zerocopy)
        self._before = self._statistics()

    @classmethod
    def open(cls, spec: WorkerSpec, interface: str, taker: Taker) -> FrameReceiver:
        """Return the receiver of a worker; OSError if the kernel or the driver refuses it."""
        longest = ETHERNET_BYTES + spec.traffic.longest_packet_bytes
        shared, index = ffi.new("struct ub_xsk *"), socket.if_nametoindex(interface)

        def bind(own: socket.socket) -> int:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)
            opened = lib.ub_xsk_open_receiver(shared, own.fileno(), index, spec.index, longest)
            return -int(opened)

        own = bound_to_queue(f"RX queue {spec.index} of {interface}", bind)
        bpf.put_socket(taker.sockets, spec.index, own.fileno())
        return cls(own, shared)

    def left(self) -> dict[str, int]:
        """Return a phase's frames that were never read: left in the ring, refused by the kernel.

        Counted from the end of the previous phase: frames may arrive before a loop starts late.
        """
        unread, now = int(lib.ub_xsk_purge(self.shared)), self._statistics()
        counts = {name: after - before for name, before, after in zip(REFUSED, self._before, now)}
        self._before = now
        return {"purged_messages": unread, "purged_packets": unread, **counts}

    def _statistics(self) -> tuple[int, int]:
        """Return frames refused so far: no buffer, and no space in the ring.

        The kernel drops these counters with the socket.
        """
        raw = self.socket.getsockopt(SOL_XDP, XDP_STATISTICS, STATISTICS.size)
        dropped, _, _, ring_full, *_ = STATISTICS.unpack(raw)
        return dropped, ring_full


REFUSED = ("xsk_fill_packets", "xsk_ring_packets")
"""Fields of ``WorkerStats.counts``, in the order of ``_statistics``."""
