"""What the sockets of somebody's program have read, as the kernel counts it at the read.

``InDatagrams`` of the network namespace, where only the traffic's own sockets are. Beside others
each socket is counted by itself, as ``udpbench watch --exact`` does; where that cannot be, the
number of others' sockets is among the counts, for a finding. Starts, changes and ends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol, TypeVar, cast

from udpbench.agent.host.bpf.socket_counts import SocketCounts
from udpbench.agent.host.files import read
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_diag import SocketList
from udpbench.agent.host.udp_sockets import udp_sockets
from udpbench.errors import WorkerFailed
from udpbench.model import FlowStats, Receive, WorkerSpec
from udpbench.protocol import Prepared, WorkersState

ANY_ADDRESS = {4: ("0.0.0.0", "::"), 6: ("::",)}  # noqa: S104 - names them, binds nothing
"""In the order in which the kernel prefers them for a packet of an IP version."""


class _Bound(Protocol):
    """A socket with the address and the port to which it is bound."""

    @property
    def address(self) -> str:
        """As text, of the kernel's form."""

    @property
    def port(self) -> int:
        """Its number."""


AnyBound = TypeVar("AnyBound", bound=_Bound)


@dataclass(frozen=True)
class Reading:
    """What had been read at one moment."""

    clock_ns: int
    packets: int


class CountedReader:
    """A receiver that is no loop of ours, by what its sockets have read."""

    def __init__(self, host: Host, name: str, specs: Sequence[WorkerSpec], label: str) -> None:
        self.state: WorkersState = "none"
        self.error: Optional[WorkerFailed] = None
        self.prepared: tuple[Prepared, ...] = ()
        self.final_counts: dict[str, dict[str, int]] = {}
        self._host = host
        self._name = name
        self._label = label
        """What messages call it."""
        self._spec = specs[0]
        self._receive = cast("Receive", specs[0].receive)
        self._targets = {(f.destination, f.destination_port) for f in self._spec.flows}
        self._counting: Optional[SocketCounts] = None
        self._list = SocketList()
        self._own: set[int] = set()
        self._foreign: set[int] = set()
        """Sockets by cookie: those of the traffic, and others."""
        self._others_sockets = 0
        self._forget()

    def _forget(self) -> None:
        """Count from here on."""
        self._base = self._read_so_far()
        self._first: Optional[Reading] = None
        """The first reading with packets."""
        self._under_load: Optional[Reading] = None
        """The last one after which more came."""
        self._latest = Reading(time.monotonic_ns(), 0)

    def _fail(self, text: str) -> None:
        """Keep the first failure: what follows is its consequence."""
        self.state = "failed"
        if self.error is None:
            self.error = WorkerFailed(f"{self._label}: {text}", self._name)

    # --- its sockets -----------------------------------------------------------------------------

    def _taking(self, sockets: Iterable[AnyBound]) -> dict[tuple[str, int], list[AnyBound]]:
        """Return address and port of each destination → the sockets that take what is sent there.

        The kernel prefers a socket of that very address (net/ipv4/udp.c: compute_score).
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
        """Return whether a socket can take the traffic, as far as its own address and port say."""
        anywhere = each.address in ANY_ADDRESS[4]
        ports = self._spec.bind_ports
        return each.port in ports if anywhere else (each.address, each.port) in self._targets

    def _tell_apart(self) -> None:
        """Count each socket by itself if there are others here, whose reads would count, too."""
        others = [
            each for each in udp_sockets(self._host).values() if not self._is_of_traffic(each)
        ]
        if not others:
            return
        try:
            self._counting = SocketCounts(self._host)
            self._sort()
        except OSError:
            self._stop_counting()
            self._others_sockets = len(others)
        self._forget()

    def _sort(self) -> None:
        """List the sockets; this also gives those a cookie that have none yet."""
        listed = self._list.read()
        own = {cookie for cookie, each in listed.items() if self._is_of_traffic(each)}
        self._own |= own
        self._foreign |= listed.keys() - own

    def _stop_counting(self) -> None:
        if self._counting is not None:
            self._counting.close()
            self._counting = None

    def _read_so_far(self) -> int:
        """Return how many datagrams were read; OSError if that is not known any more."""
        if self._counting is None:
            return in_datagrams(self._host, self._spec.traffic.family)
        counts = self._counting.counts()
        opened = counts.keys() - self._own - self._foreign
        if opened:
            self._sort()
            self._foreign |= opened - self._own  # those that are closed by now
        return sum(count.read or 0 for cookie, count in counts.items() if cookie in self._own)

    # --- what it reads ---------------------------------------------------------------------------

    def start(self, _phase: dict[str, Any]) -> None:
        """Begin a phase, with all counts at zero."""
        self._forget()
        self.state = "running"

    def stop(self) -> None:
        """End the phase; the program goes on."""
        if self.state == "running":
            self._look()
        if self.state == "running":
            self.state = "done"

    def counts(self, _worker: int) -> dict[str, int]:
        """Return what was read so far, and when.

        A rate spans two looks under load: ``first_packets`` are those outside of these.
        """
        if self.state == "running":
            self._look()
        packets = self._latest.packets
        counts = {"read_packets": packets, "received_packets": packets}
        if self._others_sockets:
            counts["others_sockets"] = self._others_sockets
        first, last = self._first, self._under_load
        if first is None:
            return counts
        if last is None or last.clock_ns <= first.clock_ns:
            last = first
        outside = packets - (last.packets - first.packets)
        counts.update(first_ns=first.clock_ns, last_ns=last.clock_ns, first_packets=outside)
        if len(self._spec.traffic.sizes_bytes) == 1:
            (size_bytes,) = self._spec.traffic.sizes_bytes
            counts.update(received_bytes=packets * size_bytes, first_bytes=outside * size_bytes)
        return counts

    def _look(self) -> None:
        try:
            read_packets = self._read_so_far() - self._base
        except OSError as error:
            self._fail(f"its sockets cannot be counted any more: {error}; close some of the others")
            return
        now = Reading(time.monotonic_ns(), read_packets)
        if now.packets > self._latest.packets:
            if self._first is None:
                self._first = now
            else:
                self._under_load = self._latest
        self._latest = now

    def milliseconds(self, _worker: int, since: int, _ended: bool) -> tuple[int, Sequence[int]]:
        """Return none: nobody looks that often."""
        return since, ()

    def details(self, _worker: int) -> dict[str, Any]:
        """Return none."""
        return {}

    def flows(self) -> tuple[FlowStats, ...]:
        """Return none: flows are not told apart."""
        return ()


def in_datagrams(host: Host, family: int) -> int:
    """Return how many datagrams the programs of this namespace have read."""
    if family == 6:
        lines = (read(host, "/proc/thread-self/net/snmp6") or "").splitlines()
        fields = dict(line.split() for line in lines)
        return int(fields.get("Udp6InDatagrams", 0))
    text = host.read_text("/proc/thread-self/net/snmp")
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("InDatagrams")])
