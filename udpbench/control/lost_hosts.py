"""Hosts whose agents were lost: looked at once more after the lease, and restored if need be.

No host counts as restored unless it was seen: its agent and guardian may both be dead. A namespace
of a built-in lab ends with the last process in it, and everything set in it does, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from udpbench.control.agent_client import AgentClient, Requests
from udpbench.control.agents import MACHINE, Agents, Reach, restore_command
from udpbench.control.wait import Clock
from udpbench.errors import AgentLost, DeadlineExceeded, HelloRefused, HostError, RestoreError
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.units import format_duration

CHECK_NS = 60 * SECOND_NS
"""For all of a second look: reaching the host, what its guardian still does, and restoring it."""
POLL_NS = SECOND_NS // 2
PROC = Path("/proc")


@dataclass(frozen=True)
class SecondCheck:
    """What was seen of hosts that had been lost."""

    restored: tuple[str, ...]
    """Hosts seen with nothing left to undo."""
    failed: tuple[RestoreError, ...]
    """The others: not reached, or not restored."""


@dataclass(frozen=True)
class _Place:
    """What a check needs of a run."""

    lab: Lab
    reach: Reach
    clock: Clock
    lease_ns: int


def check_again(
    agents: Agents,
    lost: Sequence[AgentLost],
    lab: Lab,
    reach: Reach,
    clock: Clock,
    lease_ns: int,
) -> SecondCheck:
    """Wait for the lease, then look at every lost host at once, for no longer than CHECK_NS.

    Until the lease has expired, an agent that still runs waits for its controller.
    """
    clock.sleep_ns(lease_ns)
    names = {loss.host for loss in lost}
    place = _Place(lab, reach, clock, lease_ns)
    checks = [_Check(client, place) for client in agents.everyone if client.name in names]
    end_ns = clock.now_ns() + CHECK_NS
    for check in checks:
        check.thread.start()
    for check in checks:
        check.thread.join(max(end_ns - clock.now_ns(), 0) / SECOND_NS)
    why = {check.client.name: check.why for check in checks}
    return SecondCheck(
        tuple(name for name, reason in why.items() if reason is None),
        tuple(
            RestoreError(
                f"lost, and not seen restored: {reason}; as soon as it can be reached, type: "
                f"{restore_command(lab)}",
                name,
            )
            for name, reason in why.items()
            if reason is not None
        ),
    )


class _Check:
    """One look, in a thread: whatever the host does, nobody waits for it after the limit."""

    def __init__(self, client: AgentClient, place: _Place) -> None:
        self.client = client
        self.why: str | None = f"no answer within {format_duration(CHECK_NS)}"
        """Why it is not known to be restored; None: it was seen."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._place = place

    def _run(self) -> None:
        try:
            self._check()
        except HostError as error:
            self.why = error.message
        except Exception as error:  # noqa: BLE001 - the host is not known to be restored
            self.why = f"{type(error).__name__}: {error}"
        else:
            self.why = None

    def _check(self) -> None:
        lab, client = self._place.lab, self.client
        if lab.built_in and client.name != MACHINE:
            self._await("its namespace has not ended", self._namespace_ended)
            return
        channel = self._open()
        try:
            # Without a scope it takes no lock: other agents of the run may hold the machine's.
            fresh = AgentClient(channel, client.part, client.interface, (), client.routed)
            fresh.greet(f"{client.run}-look", self._place.lease_ns)
            self._refuse_another(fresh)
            self._await("its agent or its guardian still runs", lambda: self._is_restored(fresh))
        finally:
            channel.close()

    def _open(self) -> Requests:
        lab, reach, name = self._place.lab, self._place.reach, self.client.name
        if lab.built_in:
            return reach.machine(MACHINE)
        (host,) = (host for host in lab.hosts if host.name == name)
        return reach.ways[host.connect.by](name, host.connect)

    def _refuse_another(self, fresh: AgentClient) -> None:
        """Raise HostError if the name of a host's namespace has become another one's."""
        hosts = self._place.lab.hosts
        is_named = any(host.name == self.client.name and host.connect.name for host in hosts)
        if is_named and fresh.netns != self.client.netns:
            was, now = self.client.netns, fresh.netns
            raise HostError(f"its name leads to another network namespace ({now}, not {was})")

    def _is_restored(self, fresh: AgentClient) -> bool:
        """Return whether the run has nothing left to undo there, undoing it if nobody else does."""
        try:
            taken = fresh.take("none")
        except HelloRefused:  # a guardian is restoring
            return False
        if self.client.run in taken.left_behind:
            fresh.restore(left_behind=True)
            return False  # seen by the next look
        return self.client.run not in taken.in_use

    def _namespace_ended(self) -> bool:
        if self.client.channel.pid is None:
            raise HostError("its namespace is on another machine, where nobody can look for it")
        return not namespace_lives(self.client.netns)

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        clock = self._place.clock
        end_ns = clock.now_ns() + CHECK_NS
        while not condition():
            if clock.now_ns() >= end_ns:
                raise DeadlineExceeded(f"{what} after {format_duration(CHECK_NS)}")
            clock.sleep_ns(POLL_NS)


def namespace_lives(netns: int | None) -> bool:
    """Return whether a process of this machine is in a network namespace, given by its inode."""
    for process in PROC.iterdir():
        if process.name.isdecimal():
            try:
                if (process / "ns/net").stat().st_ino == netns:
                    return True
            except OSError:  # it has ended, or is another user's
                continue
    return False
