"""What a user's program has read, as counted by the kernel when its sockets are read.

``InDatagrams`` of the network namespace, if only the traffic's own sockets are in it. With other
sockets, each socket is counted separately as in ``udpbench watch --exact``; where that is not
possible, the counts include the number of other sockets, for a finding. Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol, TypeVar, cast

from udpbench.agent.host.bpf.socket_counts import SocketCounts
from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import MOST_PORTS, SocketList
from udpbench.agent.host.udp_sockets import udp_sockets
from udpbench.agent.workers.filters import ask_sockets
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Receive
from udpbench.model.record import FlowStats
from udpbench.model.work import WorkerSpec
from udpbench.protocol import PhaseOrder, Prepared, WorkersState

ANY_ADDRESS = {4: ("0.0.0.0", "::"), 6: ("::",)}  # noqa: S104 - names them, binds nothing
"""In the kernel's order of preference for a packet of an IP version."""


class _Bound(Protocol):
    """A socket with its bound address and port."""

    @property
    def address(self) -> str:
        """As text in the kernel's form."""

    @property
    def port(self) -> int:
        """Port number."""


AnyBound = TypeVar("AnyBound", bound=_Bound)


@dataclass(frozen=True)
class Reading:
    """Datagrams read until a point in time."""

    clock_ns: int
    packets: int


class CountedReader:
    """A receiver other than our loops, measured by what its sockets have read."""

    def __init__(self, host: Host, name: str, specs: Sequence[WorkerSpec], label: str) -> None:
        self.state: WorkersState = "none"
        self.error: Optional[WorkerFailed] = None
        self.prepared: tuple[Prepared, ...] = ()
        self.final_counts: dict[str, dict[str, int]]
        self._host = host
        self._name = name
        self._label = label
        """Its name in messages."""
        self._spec = specs[0]
        self._receive = cast("Receive", specs[0].receive)
        self._targets = {(f.destination, f.destination_port) for f in self._spec.flows}
        self._counting: Optional[SocketCounts] = None
        self._list = SocketList()
        self._ports = {port for _, port in self._targets}.union(self._spec.bind_ports)
        self._at_ports = SocketList(self._ports)
        self._own: set[int] = set()
        self._foreign: set[int] = set()
        """Sockets by cookie: those of the traffic, and others at its ports that still count."""
        self._others_sockets = 0
        self._phase = ""
        self._forget()

    def _forget(self) -> None:
        """Reset the counts."""
        self.final_counts = {}
        self._base = self._read_so_far()
        self._first: Optional[Reading] = None
        """The first reading with packets."""
        self._under_load: Optional[Reading] = None
        """The last reading after which more packets arrived."""
        self._latest = Reading(time.monotonic_ns(), 0)
        self._until_stop = self._seen_ns = 0

    def _fail(self, text: str) -> None:
        """Keep the first failure; later ones are consequences."""
        self.state = "failed"
        if self.error is None:
            self.error = WorkerFailed(f"{self._label}: {text}", self._name)

    # --- its sockets -----------------------------------------------------------------------------

    def _taking(self, sockets: Iterable[AnyBound]) -> dict[tuple[str, int], list[AnyBound]]:
        """Return (address, port) of each destination → the sockets that receive its packets.

        The kernel prefers a socket bound to that address (net/ipv4/udp.c: compute_score).
        """
        bound: dict[tuple[str, int], list[AnyBound]] = {}
        for each in sockets:
            bound.setdefault((each.address, each.port), []).append(each)
        everywhere = ANY_ADDRESS[self._spec.traffic.family]
        return {
            (address, port): next(
                (bound[own, port] for own in (address, *everywhere) if (own, port) in bound), []
            )
            for address, port in sorted(self._targets)
        }

    def _is_of_traffic(self, each: _Bound) -> bool:
        """Return whether a socket's address and port allow it to receive the traffic."""
        anywhere = each.address in ANY_ADDRESS[4]
        ports = self._spec.bind_ports
        return each.port in ports if anywhere else (each.address, each.port) in self._targets

    def _tell_apart(self) -> None:
        """Count each socket separately if other sockets in the namespace would be counted, too.

        Only those at the traffic's ports: however many others use meanwhile, they take no room.
        """
        others = [
            each for each in udp_sockets(self._host).values() if not self._is_of_traffic(each)
        ]
        if not others:
            return
        try:
            ports = self._ports if len(self._ports) <= MOST_PORTS else ()
            self._counting = SocketCounts(self._host, ports)
            self._find_own()
        except OSError:
            self._stop_counting()
            self._others_sockets = len(others)
        self._forget()

    def _find_own(self) -> None:
        """List the traffic's sockets; this also assigns cookies to those without one."""
        listed = self._at_ports.read()
        self._own |= {cookie for cookie, each in listed.items() if self._is_of_traffic(each)}

    def _stop_counting(self) -> None:
        if self._counting is not None:
            self._counting.close()
            self._counting = None

    def _read_so_far(self) -> int:
        """Return how many datagrams were read; OSError if no longer known."""
        if self._counting is None:
            return in_datagrams(self._host, self._spec.traffic.family)
        counts = self._counting.counts()
        if counts.keys() - self._own - self._foreign:
            self._find_own()
        self._foreign = counts.keys() - self._own  # including sockets that have closed
        self._counting.forget(self._foreign)
        return sum(count.read or 0 for cookie, count in counts.items() if cookie in self._own)

    # --- what it reads ---------------------------------------------------------------------------

    def start(self, order: PhaseOrder) -> None:
        """Begin a phase with all counts at zero.

        Counted from the last look on if the senders may have started before this one.
        """
        self._phase = order.phase
        seen = self._base + self._latest.packets
        self._forget()
        if self._latest.clock_ns > order.at_ns:
            self._base = seen
        self.state = "running"

    def stop(self) -> None:
        """End the phase; the program continues."""
        if self.state == "running":
            self._count()
        if self.state == "running":
            self.state, self._until_stop = "done", self._latest.packets

    def leave_out(self, packets: int) -> None:
        """Do not count datagrams that this agent has read itself, if its namespace is counted."""
        if self._counting is None:
            self._base += packets

    def counts(self, _worker: int) -> dict[str, int]:
        """Return what was read so far, with times.

        A rate spans two looks under load; ``first_packets`` are the packets outside them. What is
        read after the stop was sent in the phase, too: ``overdue_packets`` of all. By ``seen_ns``
        all were read, and by ``last_ns`` not yet.
        """
        if self.state in ("running", "done"):
            self._count()
        packets = self._latest.packets
        counts = {"read_packets": packets, "received_packets": packets}
        if self.state == "done" and packets > self._until_stop:
            counts["overdue_packets"] = packets - self._until_stop
        if self._others_sockets:
            counts["others_sockets"] = self._others_sockets
        first, last = self._first, self._under_load
        if first is None:
            return counts
        if last is None or last.clock_ns <= first.clock_ns:
            last = first
        outside = packets - (last.packets - first.packets)
        counts.update(first_ns=first.clock_ns, last_ns=last.clock_ns, first_packets=outside)
        counts["seen_ns"] = self._seen_ns
        each_bytes = self._spec.traffic.datagrams.each_bytes
        if each_bytes is not None:
            counts.update(received_bytes=packets * each_bytes, first_bytes=outside * each_bytes)
        return counts

    def _count(self) -> None:
        try:
            read_packets = self._read_so_far() - self._base
        except OSError as error:
            self._fail(f"its sockets can no longer be counted: {error}; close some other sockets")
            return
        now = Reading(time.monotonic_ns(), read_packets)
        if now.packets > self._latest.packets and self.state == "running":
            self._seen_ns = now.clock_ns
            if self._first is None:
                self._first = now
            else:
                self._under_load = self._latest
        self._latest = now

    def milliseconds(self, _worker: int, since: int, _ended: bool) -> tuple[int, Sequence[int]]:
        """Return none: sockets are not read that often."""
        return since, ()

    def details(self, _worker: int) -> dict[str, Any]:
        """Return whether a socket of the traffic has a filter, and its buffer; count tunnels.

        What the kernel takes from a tunnel for itself is in InDatagrams, too.
        """
        (prepared,) = self.prepared
        inodes = prepared.socket_inodes
        filtered, tunnel = ask_sockets(self._host, self.programs(), inodes)
        kind = "tunnel_sockets" if tunnel else "unknown_tunnels"
        if tunnel or (tunnel is None and self._counting is None):
            self.final_counts[self._spec.name] = {kind: 1}
        return {"filtered": filtered, "buffer_bytes": self._buffer_bytes(inodes)}

    def _buffer_bytes(self, inodes: Collection[int]) -> Optional[int]:
        """Return the size of the smallest receive buffer; None if the kernel does not tell it."""
        try:
            listed = self._at_ports.read().values()
        except OSError:
            return None
        sizes_bytes = (each.buffer_bytes for each in listed if each.inode in inodes)
        return min((size for size in sizes_bytes if size is not None), default=None)

    def programs(self) -> frozenset[int]:
        """Return the processes of the program."""
        raise NotImplementedError

    def flows(self) -> tuple[FlowStats, ...]:
        """Return none: flows are not told apart."""
        return ()


def in_datagrams(host: Host, family: int) -> int:
    """Return how many datagrams all programs of this namespace have read."""
    if family == 6:
        lines = lines_of(read(host, "/proc/thread-self/net/snmp6"))
        fields = dict(line.split() for line in lines)
        return int(fields.get("Udp6InDatagrams", 0))
    text = host.read_text("/proc/thread-self/net/snmp")
    names, values = (line.split() for line in lines_of(text) if line.startswith("Udp:"))
    return int(values[names.index("InDatagrams")])
