"""The agent's verbs, one method each (``protocol.VERBS``), and the session that dispatches them.

Owns one run's settings, guardian and workers on this host, and their invariants: only one run
changes machine scope, nothing is changed without a guardian, nothing is sent before its route is
proven, and every change is undone at the end. No failure of a verb ends the agent.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Optional, Union

from udpbench.agent.arp import ArpListener, send_arp
from udpbench.agent.counters.snapshot import bridge_ports, snapshot
from udpbench.agent.host.capabilities import try_capabilities
from udpbench.agent.host.facts import facts
from udpbench.agent.host.inspection import inspect_host
from udpbench.agent.host.namespace import enter_own
from udpbench.agent.host.processes import Processes, interface_threads, lineage
from udpbench.agent.host.system import Host
from udpbench.agent.interfaces import interfaces
from udpbench.agent.locks import Held, Locks
from udpbench.agent.looks import Looks
from udpbench.agent.losses.inject import LossInjector
from udpbench.agent.neighbours import frame_addresses
from udpbench.agent.reconnect import Door
from udpbench.agent.recording import record_tree
from udpbench.agent.route_proof import prove
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.firewall import rule_packets
from udpbench.agent.settings.guardian import Guardian
from udpbench.agent.settings.journal import (
    FOLDER,
    Journal,
    abandoned,
    leftovers,
    remove_stale,
    run_of,
)
from udpbench.agent.workers.pool import Pool
from udpbench.errors import AgentError, HelloRefused, RestoreError, SettingRefused, Unseen
from udpbench.model import (
    DAY_NS,
    SECOND_NS,
    Change,
    Edge,
    Facts,
    HostLook,
    Inspection,
    LossSpec,
    PhaseName,
    Planned,
    Scope,
    Setting,
    Snapshot,
    Whose,
    WorkerSpec,
    WorkerStats,
)
from udpbench.protocol import (
    PROTOCOL,
    VERBS,
    HeardArp,
    Hello,
    Interfaces,
    Prepared,
    RecordedTree,
    SampleReply,
    Taken,
    Use,
    build_id,
    decode,
)

UNGREETED_NS = 60 * SECOND_NS
"""From start to hello; the pipe of a controller that hangs stays open."""
GREETING = ("hello", "take", "release", "leave")
UNTAKEN = (*GREETING, "ping", "look", "facts")
"""Verbs that are served before the host is taken: a look disturbs a run no more than ``top`` does,
and waits for none."""


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
        self._losses = LossInjector(host, name)
        self._arps = ArpListener(host)
        self._looks = Looks(host, name)
        self._processes = Processes(host, all_of_machine="machine" in scopes)
        self._host = host
        self.scopes = scopes
        self.locks = locks
        self.taken = False
        """Only then may anything be sent or loaded here; a host that is watched is not taken."""
        self._capabilities = capabilities
        # The namespace alone is a built-in lab's, made for this agent.
        self._journal = Journal(host, run, ends_with_run=scopes == ("namespace",))
        self._engine = Engine(host, self._journal, scopes)
        self._guardian: Optional[Guardian] = None

    def facts(self, interface: str) -> Facts:
        """Return the host's facts of now."""
        return facts(self._host, self.name, interface, self._capabilities, taken=self.taken)

    def interfaces(self) -> Interfaces:
        """Return the host's interfaces of now."""
        return interfaces(self._host)

    def hear_arp(self, interfaces: list[str]) -> tuple[HeardArp, ...]:
        """Return the ARP probes heard since the last request."""
        return self._arps.hear(interfaces)

    def send_arp(self, interface: str) -> None:
        """Send one ARP probe."""
        send_arp(self._host, interface)

    def inspect(self, interface: str) -> Inspection:
        """Return what the host is besides its facts."""
        return inspect_host(self._host, interface)

    def record(self, interface: str) -> RecordedTree:
        """Return what the host answers about itself, anonymous."""
        return record_tree(self._host, self.name, interface)

    def apply(
        self, settings: list[dict[str, Any]], dry_run: bool = False
    ) -> Union[tuple[Change, ...], tuple[Planned, ...]]:
        """Put exactly these settings in force, or return what a dry run of them would meet."""
        decoded = tuple(decode(Setting, plain) for plain in settings)
        if dry_run:
            return self._engine.plan(decoded)
        if decoded:
            self._prepare_change(decoded)
        return self._engine.apply(decoded)

    def _prepare_change(self, settings: tuple[Setting, ...]) -> None:
        """Lock the machine against other runs' changes if it is to change; start a guardian."""
        if "machine" in self.scopes and any(setting.scope == "machine" for setting in settings):
            try:
                self.locks.change_machine()
            except Held as held:
                text = f"{held.holder} has the machine's settings; run one at a time"
                raise SettingRefused(text, self.name) from held
        if self._guardian is None or not self._guardian.check():
            self._guardian = Guardian.start(self._host, self._journal)

    def verify(self) -> tuple[Change, ...]:
        """Return the settings that another process has changed."""
        return self._engine.altered()

    def prepare(
        self, interface: str, workers: list[dict[str, Any]], routed: Optional[list[str]] = None
    ) -> tuple[Prepared, ...]:
        """Prove every route, then start the workers and open their sockets."""
        specs = tuple(decode(WorkerSpec, plain) for plain in workers)
        senders = [spec for spec in specs if spec.role == "sender"]
        prove(self._host, interface, senders, routed)
        return self.pool.prepare(specs, interface, frame_addresses(self._host, interface, senders))

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
        """Start a phase; without a duration its count ends it, or one day."""
        self.pool.start(
            {
                "phase": phase,
                "tag": tag,
                "at_ns": at_ns,
                "duration_ns": duration_ns if duration_ns is not None else DAY_NS,
                "count": count,
                "flows": flows,
                "rate_pps": rate_pps,
            }
        )

    def sample(self, since: int) -> SampleReply:
        """Return state, samples and counts of the workers."""
        return self.pool.sample(since)

    def snapshot(
        self, interface: str, edge: Optional[Edge] = None, controller: Optional[int] = None
    ) -> Snapshot:
        """Return every counter of this agent's scopes; at the end of a phase also CPU use.

        ``controller`` is the controller's process, if on this machine.
        """
        if edge == "begin":
            self._processes.begin(self._known(interface, controller))
        inodes = self.pool.inodes() + self._losses.inodes()
        taken = snapshot(self._host, self.name, interface, self.scopes, inodes, self._rule_packets)
        if edge != "end":
            return taken
        return replace(taken, processes=self._processes.end(self._known(interface, controller)))

    def look(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return what is here, and what changed since the look before."""
        return self._looks.look(pid, unit, exact)

    def _rule_packets(self, host: Host) -> dict[str, int]:
        """Return what the firewall rules in force counted; asking costs a program or two."""
        in_force = any(change.setting.kind == "firewall" for change in self._engine.in_force)
        return rule_packets(host) if in_force else {}

    def _known(self, interface: str, controller: Optional[int]) -> dict[int, Whose]:
        """Return the run's processes on this host, and the kernel threads of its interfaces."""
        known: dict[int, Whose] = {os.getpid(): "run"}
        if self._guardian is not None:
            known[self._guardian.process.pid] = "run"
        if "machine" in self.scopes:
            known.update(dict.fromkeys(lineage(self._host, os.getpid()), "run"))
            known.update(dict.fromkeys(lineage(self._host, controller or 0), "run"))
        known.update(dict.fromkeys(self.pool.pids(), "worker"))
        if interface:
            devices = (interface, *bridge_ports(self._host, interface))
            known.update(dict.fromkeys(interface_threads(self._host, devices), "interface"))
        return known

    def expect_losses(self, interface: str, losses: list[dict[str, Any]], role: str) -> None:
        """Open the sockets for packets to be lost, or fill those that must be full."""
        self._losses.prepare([decode(LossSpec, plain) for plain in losses], role, interface)

    def send_losses(self, stage: str) -> WorkerStats:
        """Send one stage's packets; none is in transit once this returns."""
        return self._losses.send(stage)

    def take_losses(self) -> tuple[WorkerStats, ...]:
        """Return what arrived of the packets to be lost."""
        return self._losses.take()

    def stop(self) -> None:
        """Tell the loops to end."""
        self.pool.stop()

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End the workers and remove their logs' files, or label and keep them."""
        self._losses.close()
        return self.pool.close(keep_logs)

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Undo every setting in force, or those that dead runs left behind."""
        if left_behind:
            return self._restore_left_behind(force)
        return self._engine.restore(force)

    def _restore_left_behind(self, force: bool) -> tuple[Change, ...]:
        """Replay every journal, whether or not others fail; delete stale ones."""
        undone: list[Change] = []
        failures: list[str] = []
        journals = leftovers(self._host)
        if journals.hidden:
            raise Unseen(
                f"{FOLDER}: what root's runs have left behind is not for this user to see; "
                "as root, type: udpbench restore",
                self.name,
            )
        remove_stale(self._host)
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
        """Do nothing: every request renews the lease."""

    def others(self) -> tuple[str, ...]:
        """Return the other runs that used this machine since the last request."""
        return self.locks.others()

    def watch(self) -> None:
        """Look for other runs, and replace a guardian that died; AgentError if none starts."""
        with suppress(OSError):  # `others` reports it
            self.locks.watch()
        if self._guardian is not None and not self._guardian.check():
            self._guardian = Guardian.start(self._host, self._journal)

    def end(self) -> None:
        """End the workers and undo every setting; RestoreError has those that remain."""
        try:
            self.pool.close()
        finally:
            self._engine.restore()
        if self._guardian is not None:
            self._guardian.release()
        self.locks.release()


class Session:
    """An agent from its first request to its last."""

    def __init__(self, host: Host) -> None:
        self.verbs: Optional[Verbs] = None
        self.lease_ns = UNGREETED_NS
        self.door: Optional[Door] = None
        """By which the controller may return after its connection was lost."""
        self.leaving = False
        """The controller has said that it will not return."""
        self._host = host
        self._returns = False
        self._taken = False

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        return self.verbs.name if self.verbs is not None else ""

    def serve(self, verb: object, args: object) -> Any:
        """Return the result of one request, or raise its error."""
        if not isinstance(verb, str) or verb not in VERBS:
            raise AgentError(f"verb {verb!r} is unknown; this agent knows {', '.join(VERBS)}")
        if verb != "hello":
            self._greeted(verb)
        if not self._taken and verb not in UNTAKEN:
            raise HelloRefused(f"{verb} before take: another run may use this host", self.name)
        if not isinstance(args, dict):
            raise AgentError(f"{verb}: args must be an object, not {type(args).__name__}")
        method: Callable[..., Any] = getattr(self if verb in GREETING else self.verbs, verb)
        try:
            inspect.signature(method).bind(**args)
        except TypeError as error:
            raise AgentError(f"{verb}: {error}") from error
        return method(**args)

    def hello(
        self,
        host: str,
        run: str,
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: list[Scope],
        returns: bool = False,
        private: bool = False,
    ) -> Hello:
        """Check that both sides are of one build, and begin the session.

        ``private``: in a network namespace of its own, which ends with this agent.
        """
        if self.verbs is not None:
            raise HelloRefused(f"this agent serves run {self.verbs.run} already", host)
        own = build_id()
        _prove_same(host, build, protocol, own)
        if private:
            self._enter_private(host)
        capabilities, locks = try_capabilities(self._host), Locks(self._host, run)
        try:
            self.verbs = Verbs(self._host, host, run, tuple(scopes), locks, capabilities)
        except ValueError as error:
            raise HelloRefused(str(error), host) from error
        self.lease_ns, self._returns = lease_ns, returns
        return Hello(
            pid=os.getpid(),
            netns=self._host.netns(),
            boot_id=self._host.boot_id(),
            build=own,
            python=".".join(str(part) for part in sys.version_info[:3]),
            capabilities=capabilities,
        )

    def _enter_private(self, name: str) -> None:
        try:
            enter_own(self._host)
        except OSError as error:
            what = f"no private network namespace can be made there: {error.strerror}"
            raise HelloRefused(f"{what}; log in as root, or write become: sudo", name) from error

    def take(self, use: Use) -> Taken:
        """Take this host for the run, unless another one has it."""
        verbs = self._greeted("take")
        locks, scopes = verbs.locks, verbs.scopes
        try:
            locks.take(scopes, use)
        except Held as held:
            return Taken(held.holder, held.lock)
        except OSError as error:
            what = f"{error.filename or FOLDER}: {error.strerror}"
            raise HelloRefused(f"no run can be kept from this host: {what}", self.name) from error
        try:
            self._await_restores(locks)
        except HelloRefused:
            locks.release()
            raise
        self._taken = verbs.taken = True
        remove_stale(self._host)
        if self._returns:
            # Without a door the end of stdin is the end of the run.
            with suppress(OSError):
                self.door = Door(self._host, verbs.run, alone="namespace" in scopes)
        return Taken(left_behind=tuple(run_of(path) for path in abandoned(self._host)))

    def _await_restores(self, locks: Locks) -> None:
        """Wait for a dead run's guardian, whose half-restored values must not be read."""
        runs = locks.await_restores()
        if runs:
            raise HelloRefused(
                f"run {', '.join(runs)} died here, and what it changed is still being put back; "
                "begin again once that has ended",
                self.name,
            )

    def release(self) -> None:
        """Undo ``take``, before anything was changed."""
        verbs = self._greeted("release")
        verbs.locks.release()
        self._taken = verbs.taken = False
        if self.door is not None:
            self.door.close(0)
            self.door = None

    def _greeted(self, verb: object) -> Verbs:
        if self.verbs is None:
            raise HelloRefused(f"{verb} before hello: the first request must be hello")
        return self.verbs

    def leave(self) -> None:
        """Have the end of stdin end the run from now on."""
        self.leaving = True


def _prove_same(host: str, build: str, protocol: int, own: str) -> None:
    """Raise HelloRefused with every difference between controller and agent."""
    differences = []
    if protocol != PROTOCOL:
        differences.append(f"the controller speaks protocol {protocol}, the agent {PROTOCOL}")
    if build != own:
        differences.append(f"the controller's build is {build}, the agent's {own}")
    if differences:
        what = "; ".join(differences)
        raise HelloRefused(f"{what}; install the same udpbench on both", host)
