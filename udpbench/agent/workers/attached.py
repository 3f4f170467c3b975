"""A running process as the receiver: selected, counted at its sockets, otherwise left alone.

Nothing of it is changed or ended; whether its sockets have filters is asked through copies of their
descriptors. It is identified by the sockets that receive the traffic:
once one of them closes, the process has ended or was restarted, and the measurement is void.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Optional, cast

from udpbench.agent.host.socket_owners import (
    SocketOwners,
    all_held,
    no_process_of,
    why_unseen,
)
from udpbench.agent.host.system import Host
from udpbench.agent.host.udp_sockets import open_sockets
from udpbench.agent.workers.reads import CountedReader
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Attach, Receive
from udpbench.model.record import UdpSocket
from udpbench.model.work import WorkerSpec
from udpbench.printable import printable
from udpbench.protocol import PhaseOrder, Prepared

PORTS_NAMED = 12
AS_ROOT = "log in as root, or write become: sudo in the lab file"


class Attached(CountedReader):
    """A ``WorkerGroup`` for ``pool``: a process that is already running."""

    fileno = None
    """None: this receiver is only polled."""

    def __init__(self, host: Host, name: str, specs: Sequence[WorkerSpec]) -> None:
        named = cast("Attach", cast("Receive", specs[0].receive).attach)
        (label,) = (f"{k} {v}" for k, v in vars(named).items() if v is not None)
        super().__init__(host, name, specs, f"receive.attach: {label}")
        self._named = named
        self._owners = SocketOwners(host)
        self._holders: frozenset[int] = frozenset()

    def prepare(self) -> None:
        """Find the process and the sockets of the traffic; WorkerFailed names what is missing."""
        listed = [each for each in self._list.read().values() if each.peer is None]
        self._owners.learn([each.inode for each in listed], self._named.unit or "")
        taking = self._taking(listed)
        pids = self._chosen(listed, taking)
        held: dict[int, set[int]] = {pid: set() for pid in pids}
        for pid, inode in all_held(self._host, pids):
            held[pid].add(inode)
        own = [each for each in listed if any(each.inode in inodes for inodes in held.values())]
        self._refuse_elsewhere(own, self._taking(own))
        inodes = {each.inode for sockets in taking.values() for each in sockets}
        self._refuse_shared(inodes - {each.inode for each in own})
        self._holders = frozenset(pid for pid in pids if held[pid] & inodes)
        self._tell_apart()
        first = min(self._holders)
        self.prepared = (Prepared(self._spec.name, first, None, tuple(sorted(inodes)), None),)
        self.state = "ready"

    # --- which process ---------------------------------------------------------------------------

    def _chosen(
        self, listed: Sequence[UdpSocket], taking: dict[tuple[str, int], list[UdpSocket]]
    ) -> list[int]:
        """Return the selected processes; WorkerFailed if one is not visible."""
        if self._named.port is not None:
            return self._at_port(self._named.port, listed, taking)
        if self._named.unit is not None:
            pids = self._owners.in_unit(self._named.unit)
            if not pids:
                raise WorkerFailed(no_process_of(self._named.unit), self._name)
        else:
            pids = [cast("int", self._named.pid)]
        for pid in pids:
            try:
                self._host.listdir(f"/proc/{pid}/fd")
                space = self._host.path(f"/proc/{pid}/ns/net").stat().st_ino
            except OSError as error:
                raise WorkerFailed(why_unseen(pid, error), self._name) from error
            if space != self._host.netns():
                what = "is in another network namespace, which the lab's packets do not reach"
                raise self._failure(f"process {pid} {what}; name one that is not in a container")
        return pids

    def _at_port(
        self,
        port: int,
        listed: Sequence[UdpSocket],
        taking: dict[tuple[str, int], list[UdpSocket]],
    ) -> list[int]:
        """Return the processes whose sockets receive what is sent to a port."""
        if all(each.port != port for each in listed):
            raise self._failure(
                f"no UDP socket is bound to port {port}; bound ports: {_ports(listed)}"
            )
        at_port = [
            each for (_, its_port), own in taking.items() if its_port == port for each in own
        ]
        for each in at_port:
            if not self._owners.holders(each.inode):
                whose = f"user {each.uid}, whose processes this user cannot see; {AS_ROOT}"
                if os.geteuid() == 0:
                    whose = "the kernel or a process that is not visible; name another port"
                raise self._failure(f"the socket on port {port} belongs to {whose}")
        return sorted({pid for each in at_port for pid in self._owners.holders(each.inode)})

    def _refuse_elsewhere(
        self, own: Sequence[UdpSocket], taking: dict[tuple[str, int], list[UdpSocket]]
    ) -> None:
        """Refuse a process without a socket that receives the traffic."""
        missing = [where for where, sockets in taking.items() if not sockets]
        if not missing:
            return
        address, port = missing[0]
        if self._named.port is not None:
            own = [each for each in self._list.read().values() if each.port == port]
        bound = sorted({f"{each.address} port {each.port}" for each in own})
        has = (
            f"it is bound to {', '.join(bound[:PORTS_NAMED])}" if bound else "it has no UDP socket"
        )
        step = "bind it to that address or to all addresses, or change traffic.flows.to"
        raise self._failure(f"not bound to {address} port {port}; {has}; {step}")

    def _refuse_shared(self, others: Iterable[int]) -> None:
        """Refuse to measure one of several processes that share the traffic."""
        labels = sorted({label for inode in others for label in self._owners.processes(inode)})
        if others:
            whose = ", ".join(printable(label, keep="") for label in labels) or "of another user"
            step = "name the port instead to measure all of them"
            raise self._failure(f"other processes receive the traffic, too: {whose}; {step}")

    def _failure(self, text: str) -> WorkerFailed:
        return WorkerFailed(f"{self._label}: {text}", self._name)

    # --- whether it is still there ---------------------------------------------------------------

    def read(self) -> None:
        """Fail if a socket that receives the traffic was closed."""
        own = set(self.prepared[0].socket_inodes) if self.prepared else set()
        if (
            self.state in ("ready", "running", "done")
            and own - open_sockets(self._host, own).keys()
        ):
            what = "a receiving socket was closed: the process ended or was restarted"
            self._fail(f"{what}; check its log and run again")

    def start(self, order: PhaseOrder) -> None:
        """Begin a phase with all counts at zero; WorkerFailed if the process has gone."""
        self.read()
        if self.error is not None:
            raise self.error
        super().start(order)

    def close(self, _keep_logs: Optional[str] = None) -> Optional[str]:
        """Stop counting; the process continues."""
        self._stop_counting()
        return None

    def pids(self) -> frozenset[int]:
        """Return the processes that hold its sockets."""
        return self._holders

    programs = pids


def _ports(listed: Iterable[UdpSocket]) -> str:
    """Return the bound ports as text."""
    ports = sorted({each.port for each in listed})
    more = f" and {len(ports) - PORTS_NAMED} more" if len(ports) > PORTS_NAMED else ""
    return (", ".join(map(str, ports[:PORTS_NAMED])) or "none") + more
