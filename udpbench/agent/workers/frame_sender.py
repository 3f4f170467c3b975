"""What a worker needs to send frames by AF_XDP: its queue's socket and its flows' headers.

Opened in the thread or process that sends; makes no decisions.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence
from typing import Any, cast

from udpbench._native import ffi, lib
from udpbench.agent.host.frames import headers
from udpbench.agent.workers.sockets import bound_to_queue, set_send_buffer
from udpbench.model.experiment import Send
from udpbench.model.work import WorkerSpec

WANT_PROGRAM = (errno.EINVAL, errno.ENXIO)
"""Errors of drivers that need an attached XDP program for zero-copy sending."""


class FrameSender:
    """An AF_XDP socket bound to the TX queue with the worker's number."""

    def __init__(self, own: socket.socket, shared: Any, flows: Sequence[bytes]) -> None:
        self.socket = own
        self._shared = shared
        self._headers = flows
        self.zerocopy = bool(shared.zerocopy)

    @classmethod
    def open(cls, spec: WorkerSpec, interface: str, macs: Mapping[str, str]) -> FrameSender:
        """Return the sender of a worker; OSError if the kernel or the driver refuses it."""
        size, hops = spec.traffic.datagrams.longest_bytes, spec.traffic.hops
        flows = [
            headers(
                (macs[flow.source], macs[flow.destination]),
                (flow.source, flow.destination),
                (flow.source_port, flow.destination_port),
                size,
                hops,
            )
            for flow in spec.flows
        ]
        longest = max(map(len, flows), default=0) + size
        shared = ffi.new("struct ub_xsk *")
        index, send = socket.if_nametoindex(interface), cast("Send", spec.send)
        queue = f"TX queue {spec.index} of {interface}"

        def bind(own: socket.socket, copy: bool) -> int:
            set_send_buffer(own, send)
            opened = lib.ub_xsk_open(shared, own.fileno(), index, spec.index, longest, copy)
            return -int(opened)

        try:
            own = bound_to_queue(queue, lambda own: bind(own, False))
        except OSError as error:
            if error.errno not in WANT_PROGRAM:
                raise
            own = bound_to_queue(queue, lambda own: bind(own, True))
        return cls(own, shared, flows)

    def config(self, chosen: Sequence[int]) -> dict[str, Any]:
        """Return the fields of ub_send_config for flows, given by index in the worker's list."""
        flows = [self._headers[place] for place in chosen]
        return {
            "xsk": self._shared,
            "headers": ffi.new("uint8_t[]", b"".join(flows)),
            "header_bytes": len(flows[0]),
        }
