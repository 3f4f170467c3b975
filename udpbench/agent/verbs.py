"""The verbs of a greeted agent, one method each; ``protocol`` documents them.

Owns one run's settings, guardian and workers on this host, and what has to hold between them:
machine scope is changed by one run alone, nothing is changed without a guardian, nothing is sent
before its route is proven, and what was changed is put back at the end.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Optional

from udpbench.agent.facts import facts
from udpbench.agent.faults import Faults
from udpbench.agent.guardian import Guardian
from udpbench.agent.host import Host
from udpbench.agent.journal import FOLDER, Journal, abandoned, leftovers
from udpbench.agent.locks import Held, Locks
from udpbench.agent.pool import Pool
from udpbench.agent.route import prove
from udpbench.agent.settings.engine import Engine
from udpbench.agent.snapshot import Own, snapshot
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model import (
    DAY_NS,
    Change,
    Facts,
    FaultSpec,
    PhaseName,
    Planned,
    Scope,
    Setting,
    Snapshot,
    WorkerSpec,
    WorkerStats,
)
from udpbench.protocol import Prepared, SampleReply, decode


class Verbs:
    """One run on one host."""

    def __init__(
        self,
        host: Host,
        name: str,
        run: str,
        scopes: tuple[Scope, ...],
        locks: Locks,
        capabilities: dict[str, bool],
    ) -> None:
        self.name = name
        self.run = run
        self.pool = Pool(host, name)
        self._faults = Faults(host, name)
        self._host = host
        self._scopes = scopes
        self._locks = locks
        self._capabilities = capabilities
        self._journal = Journal(host, run)
        self._engine = Engine(host, self._journal, scopes)
        self._guardian: Optional[Guardian] = None

    def facts(self, interface: str) -> Facts:
        """Return what this host is now."""
        return facts(self._host, self.name, interface, self._capabilities)

    def apply(
        self, settings: list[dict[str, Any]], dry_run: bool = False
    ) -> tuple[Change, ...] | tuple[Planned, ...]:
        """Put the settings in force, or say what a dry run of them would meet."""
        wanted = tuple(decode(Setting, plain) for plain in settings)
        if dry_run:
            return self._engine.plan(wanted)
        if wanted:
            self._secure(wanted)
        return self._engine.apply(wanted)

    def _secure(self, wanted: tuple[Setting, ...]) -> None:
        """Before a change: be alone on a machine that is to change, and have a guardian."""
        if "machine" in self._scopes and any(one.scope == "machine" for one in wanted):
            try:
                self._locks.exclude_machine()
            except Held as held:
                text = f"{held}, and a setting of machine scope would disturb it; run one at a time"
                raise SettingRefused(text, self.name) from held
        if self._guardian is None or not self._guardian.check():
            self._guardian = Guardian.start(self._host, self._journal)

    def verify(self) -> tuple[Change, ...]:
        """Return what somebody else has changed since it was put in force."""
        return self._engine.altered()

    def prepare(self, interface: str, workers: list[dict[str, Any]]) -> tuple[Prepared, ...]:
        """Start the workers and open their sockets, once every route is proven."""
        specs = tuple(decode(WorkerSpec, plain) for plain in workers)
        prove(self._host, interface, (spec for spec in specs if spec.role == "sender"))
        return self.pool.prepare(specs)

    def start(
        self,
        phase: PhaseName,
        tag: int,
        at_ns: int,
        duration_ns: Optional[int] = None,
        count: Optional[int] = None,
        flows: Optional[list[int]] = None,
        rate_pps: Optional[int] = None,
    ) -> None:
        """Start a phase; without a duration the count ends it, or else a day."""
        end_ns = duration_ns if duration_ns is not None else DAY_NS
        order = {"phase": phase, "tag": tag, "at_ns": at_ns, "duration_ns": end_ns}
        self.pool.start({**order, "count": count, "flows": flows, "rate_pps": rate_pps})

    def sample(self, since: int) -> SampleReply:
        """Return how the workers stand."""
        return self.pool.sample(since)

    def snapshot(self, interface: str) -> Snapshot:
        """Return every counter of this agent's scopes."""
        rules = any(change.setting.kind == "firewall" for change in self._engine.in_force)
        own = Own(self.pool.inodes() + self._faults.inodes(), rules)
        return snapshot(self._host, self.name, interface, self._scopes, own)

    def expect_faults(self, interface: str, faults: list[dict[str, Any]], role: str) -> None:
        """Open what waits for packets that are to be lost, or fill what must be full."""
        self._faults.prepare([decode(FaultSpec, plain) for plain in faults], role, interface)

    def send_faults(self, stage: str) -> WorkerStats:
        """Send one stage's packets; they are all taken up once this returns."""
        return self._faults.send(stage)

    def take_faults(self) -> tuple[WorkerStats, ...]:
        """Return what arrived of them."""
        return self._faults.take()

    def stop(self) -> None:
        """Tell the loops to leave."""
        self.pool.stop()

    def close(self, keep_logs: Optional[str] = None) -> None:
        """End the workers and remove the files of their logs, or keep them by a label."""
        self._faults.close()
        self.pool.close(keep_logs)

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo every setting in force, or what runs that died here have left behind."""
        if left_behind:
            return self._restore_left_behind(force)
        return self._engine.restore(force)

    def _restore_left_behind(self, force: bool) -> tuple[Change, ...]:
        """Go through every journal found, and on where one fails; stale ones describe nothing."""
        undone: list[Change] = []
        failures: list[str] = []
        found = leftovers(self._host)
        if found.hidden:
            raise RestoreError(
                f"{FOLDER}: what root's runs have left behind is not for this user to see; "
                "as root, type: udpbench restore",
                self.name,
            )
        for path in found.stale:
            path.unlink()
        for path in abandoned(self._host):
            try:
                with closing(Journal.open(self._host, path)) as journal:
                    undone += Engine(self._host, journal, ()).restore(force)
                    journal.discard()
            except RestoreError as error:
                failures.append(error.message)
            except FileNotFoundError:  # its run died before the first line of it
                continue
        if failures:
            raise RestoreError("\n".join(failures), self.name)
        return tuple(undone)

    def ping(self) -> None:
        """Do nothing: that the request came renews the lease."""

    def watch(self) -> None:
        """Replace a guardian that died; raises AgentError where none can be started."""
        if self._guardian is not None and not self._guardian.check():
            self._guardian = Guardian.start(self._host, self._journal)

    def end(self) -> None:
        """End the workers and undo every setting; RestoreError says what remains."""
        try:
            self.pool.close()
        finally:
            self._engine.restore()
        if self._guardian is not None:
            self._guardian.release()
