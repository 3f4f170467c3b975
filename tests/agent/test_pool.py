"""The pool with an application in place of the C loops: all it asks of what receives."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from test_workers import phase, receiver

from udpbench.agent.host.system import Host
from udpbench.agent.workers import pool as pool_module
from udpbench.agent.workers.pool import Pool
from udpbench.errors import WorkerFailed
from udpbench.model.record import FlowStats, total_arrived
from udpbench.protocol import PhaseOrder, Prepared, WorkersState


class Application:
    """Receives by no loop of udpbench: it knows its sockets, and how much it has read."""

    fileno = None

    def __init__(self, *_: Any) -> None:
        self.state: WorkersState = "none"
        self.error: Optional[WorkerFailed] = None
        self.prepared: tuple[Prepared, ...] = ()
        self.final_counts: dict[str, dict[str, int]] = {}
        self.read_packets = 0

    def prepare(self) -> None:
        """Name a socket."""
        self.prepared = (Prepared("right.receiver0", 1, None, (4711,), None),)
        self.state = "ready"

    def start(self, _order: PhaseOrder) -> None:
        """Receive from now on."""
        self.state = "running"

    def read(self) -> None:
        """Say nothing."""

    def counts(self, _worker: int) -> dict[str, int]:
        """Return what was read, and nothing that only a C loop counts."""
        return {"received_packets": self.read_packets, "read_packets": self.read_packets}

    def milliseconds(self, _worker: int, since: int, _ended: bool) -> tuple[int, list[int]]:
        """Return none."""
        return since, []

    def details(self, _worker: int) -> dict[str, Any]:
        """Return none."""
        return {}

    def flows(self) -> tuple[FlowStats, ...]:
        """Return none."""
        return ()

    def pids(self) -> frozenset[int]:
        """Return none."""
        return frozenset()

    def programs(self) -> frozenset[int]:
        """Return none."""
        return frozenset()

    def stop(self) -> None:
        """End at once."""
        self.state = "done"

    def close(self, _keep_logs: Optional[str] = None) -> None:
        """Leave nothing behind."""


def test_an_application_receives_in_place_of_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its sockets to what arrived, the pool needs ``prepare``, ``counts`` and ``stop``."""
    application = Application()
    monkeypatch.setattr(pool_module, "WorkerProcess", lambda *_: application)
    pool = Pool(Host(), "right")
    pool.prepare([receiver(4000)], "lo")
    pool.start(phase())
    application.read_packets = 7
    pool.stop()
    reply = pool.sample(0)
    pool.close()

    assert (4711,) == reply.stats[0].socket_inodes
    assert ("done", 0) == (reply.state, reply.queued_bytes)
    assert [0, 7] == [sample.counts["received_packets"] for sample in reply.samples]
    assert 7 == total_arrived(reply.stats).packets
    assert None is total_arrived(reply.stats).read_messages
