"""The agent's verbs, one function each (``protocol.AgentVerbs``), but those of ``session``.

Owns one run's settings, guardian and workers on this host, and their invariants: only one run
changes machine settings, nothing is changed without a guardian, nothing is sent before its route
is proven, and every change is undone at the end. A failing verb never ends the agent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Callable, Optional

from udpbench.agent.arp import ArpListener, send_arp
from udpbench.agent.counters.rule_drops import rule_drops, tunnel_counts
from udpbench.agent.counters.snapshot import bridge_ports, redirects, snapshot
from udpbench.agent.host.changes import Changes
from udpbench.agent.host.cpu_sampler import CpuSampler
from udpbench.agent.host.doctor import inspect_host
from udpbench.agent.host.environment import socket_memory
from udpbench.agent.host.facts import facts
from udpbench.agent.host.files import beneath
from udpbench.agent.host.processes import Processes, interface_threads, lineage
from udpbench.agent.host.system import Host
from udpbench.agent.host.tun_devices import searched_once
from udpbench.agent.host.wireguard import chosen, lacking
from udpbench.agent.interfaces import interfaces
from udpbench.agent.locks import Held, Locks
from udpbench.agent.losses.inject import LossInjector
from udpbench.agent.neighbours import frame_addresses
from udpbench.agent.own_watch import OwnWatch, Place
from udpbench.agent.passage import led_away, passage
from udpbench.agent.recording import record_tree
from udpbench.agent.route_proof import prove, prove_connected
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.firewall import rule_packets
from udpbench.agent.settings.guardian import HANGS_S, Guardian
from udpbench.agent.settings.journal import (
    FOLDER,
    Journal,
    abandoned,
    leftovers,
    remove_stale,
)
from udpbench.agent.stations import find_stations
from udpbench.agent.strangers import StrangerListener, strange_sockets
from udpbench.agent.watch import Looks
from udpbench.agent.workers.pool import Pool
from udpbench.errors import RestoreError, SafetyError, SettingRefused, Unseen
from udpbench.model.host import SOCKET_MEMORY, Change, Facts, Inspection, Setting
from udpbench.model.limits import Edge, Scope
from udpbench.model.record import Snapshot, Whose, WorkerStats
from udpbench.model.work import LossSpec, WorkerSpec, replies
from udpbench.protocol import Interfaces, Passage, PhaseOrder, Prepared, RecordedTree, Stranger


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
        self._strangers = StrangerListener(host)
        self._changes = Changes(host)
        self._outer: dict[str, None] = {}
        """Interfaces by which the outer packets of tunnels leave, into which workers here send."""
        self._own_watch = OwnWatch(name, self._changed_by_now)
        self._looks = Looks(host, name)
        self._cpus = CpuSampler(host)
        self._processes = Processes(host, all_of_machine="machine" in scopes)
        self._host = host
        self.scopes = scopes
        self.locks = locks
        self.taken = False
        """Required before anything is sent or loaded here; a watched host is not taken."""
        self._capabilities = capabilities
        # Scope namespace alone: a built-in lab, whose namespace was made for this agent.
        self._journal = Journal(host, run, ends_with_run=scopes == ("namespace",))
        self._engine = Engine(host, self._journal, scopes)
        self._guardian: Optional[Guardian] = None
        self.lease_s = 0.0
        """For so long the loop may stand still where a reply is not read."""
        self._closed = False
        """Workers were closed before: this run has several trials."""
        self.elsewhere: dict[str, Callable[..., Any]] = {
            "hear_arp": self._arps.hear,
            "plan": self._engine.plan,
            "verify": self._engine.altered,
            "sample": self.pool.sample,
            "stop": self.pool.stop,
            "sample_cpus": self._cpus.begin,
            "cpu_samples": self._cpus.end,
            "look": self._looks.look_in_parts,
            "more_sockets": self._looks.more_sockets,
            "send_losses": self._losses.send,
            "collect_losses": self._collect_losses,
            "others": locks.others,
        }
        """Verb → what serves it; all others are methods of this class."""

    def facts(self, interface: str) -> Facts:
        """Return the host's current facts."""
        if self.taken:
            # Imported here at all hosts side by side, not where settings go one after the other.
            _ = self._host.netlink
        known = facts(self._host, self.name, interface, self._capabilities, taken=self.taken)
        limit = socket_memory(self._host)  # with a cgroup's name, which no recording may hold
        environment = {**known.environment, **({SOCKET_MEMORY: limit} if limit else {})}
        return replace(known, environment=environment)

    def interfaces(self) -> Interfaces:
        """Return the host's current interfaces."""
        return interfaces(self._host)

    def send_arp(self, interface: str) -> None:
        """Send one ARP probe."""
        send_arp(self._host, interface)

    def inspect(self, interface: str) -> Inspection:
        """Return what ``udpbench doctor`` reads in addition to the facts."""
        return inspect_host(self._host, interface)

    def record(self, interface: str) -> RecordedTree:
        """Return the anonymised answers of this host about itself."""
        return record_tree(self._host, self.name, interface, self._capabilities)

    def apply(self, settings: Sequence[Setting]) -> tuple[Change, ...]:
        """Make these settings, and no others, the ones in force.

        Before the first ones, the end of a pair is asked for none: its guardian starts meanwhile.
        """
        if settings or "machine" not in self.scopes:
            self._launch_guardian()
        if settings:
            if "namespace" in self.scopes:
                self.pool.launch()
            self._prepare_change(settings)
        return self._engine.apply(settings)

    def _prepare_change(self, settings: Sequence[Setting]) -> None:
        """Take the lock on changes if machine settings will change; start a guardian."""
        if "machine" in self.scopes and any(setting.scope == "machine" for setting in settings):
            try:
                self.locks.change_machine()
            except Held as held:
                text = f"{held.holder} is changing this machine's settings; run one at a time"
                raise SettingRefused(text, self.name) from held
        self._launch_guardian().await_ready()

    def _launch_guardian(self) -> Guardian:
        """Return the guardian; a new one if there is none that lives."""
        if self._guardian is None or not self._guardian.check():
            self._guardian = Guardian.launch(self._host, self._journal, HANGS_S + self.lease_s)
        return self._guardian

    def prepare(
        self,
        interface: str,
        workers: Sequence[WorkerSpec],
        routed: Optional[Sequence[str]] = None,
    ) -> tuple[Prepared, ...]:
        """Prove every route, then start the workers and open their sockets."""
        senders = [spec for spec in workers if spec.role == "sender"]
        self._prove(interface, workers, routed)
        macs = frame_addresses(self._host, interface, senders)
        prepared = self.pool.prepare(workers, interface, macs)
        try:
            prove_connected(senders, self.pool.inodes())
        except SafetyError:
            self.pool.close()
            raise
        return prepared

    def confirm(self, interface: str, routed: Optional[Sequence[str]] = None) -> bool:
        """Prove every route again, and look at each worker's process, CPU and sockets."""
        senders = [spec for spec in self.pool.specs if spec.role == "sender"]
        self._prove(interface, self.pool.specs, routed)
        macs = frame_addresses(self._host, interface, senders)
        return self.pool.stands(interface, macs)

    def _prove(
        self, interface: str, workers: Sequence[WorkerSpec], routed: Optional[Sequence[str]]
    ) -> None:
        """Prove the routes of what is sent here, and of what is sent back."""
        senders = [spec for spec in workers if spec.role == "sender"]
        for specs, back in ((senders, False), (replies(workers), True)):
            flows = [flow for spec in specs for flow in spec.flows]
            destinations = tuple(dict.fromkeys(flow.destination for flow in flows))
            ports = tuple({flow.destination_port for flow in flows})
            protocol = next((spec.traffic.protocol for spec in specs), "udp")
            with searched_once(self._host):
                rules = led_away(self._host, interface, destinations, ports, protocol)
            prove(self._host, interface, specs, routed, rules, back=back)
            find_stations(self._host, interface, {(f.source, f.destination) for f in flows})

    def snapshot(
        self,
        interface: str,
        edge: Optional[Edge] = None,
        controller: Optional[int] = None,
        out: str = "",
        tunnel: str = "",
    ) -> Snapshot:
        """Return every counter in this agent's scopes; at the end of a phase also CPU use.

        ``controller`` is the controller's pid if it runs on this machine.
        """
        if edge == "begin":
            self._processes.begin(self._known(interface, controller))
        inodes = self.pool.inodes() + self._losses.inodes()
        taken = snapshot(
            *(self._host, self.name, interface, self.scopes, inodes, self._rule_packets),
            *(out, tunnel),
        )
        self._cpus.mark(edge, taken.clock_ns)
        if "namespace" in self.scopes:
            taken.counters.update(self._changed(interface, out, tunnel))
        if edge == "path" and tunnel:
            taken.counters.update(tunnel_counts(self._host))
        if edge in ("begin", "end"):
            strange = strange_sockets(self._host, self.pool.specs, inodes, self.pool.pids())
            drops = {f"stranger.{s.inode}.drops": s.drops for s in strange if s.drops is not None}
            taken.counters.update(drops)
            taken = replace(taken, strangers=tuple(strange.values()))
            if "machine" not in self.scopes:
                taken.counters.update(rule_drops(self._host, interface))
            elif tunnel:
                taken.counters.update(tunnel_counts(self._host))
        if edge != "end":
            return taken
        return replace(taken, processes=self._processes.end(self._known(interface, controller)))

    def changed(self, interface: str, out: str = "", tunnel: str = "") -> dict[str, int]:
        """Return what was changed in this namespace, without waiting for anything.

        Raises SafetyError if workers were stopped because of that.
        """
        return self._own_watch.answer((interface, out, tunnel))

    def _changed_by_now(self, place: Place) -> dict[str, int]:
        return {**self._changed(*place), "changed.redirects": redirects(self._host)}

    def start(self, order: PhaseOrder) -> None:
        """Start a phase."""
        self._own_watch.begin(order.at_ns)
        self.pool.start(order)

    def look_out(self, now_ns: int) -> Optional[int]:
        """Stop workers whose packets go elsewhere by now; return when to look again."""
        return self._own_watch.look(now_ns, self.pool.stop) if self.pool.running else None

    def _changed(self, interface: str, out: str, tunnel: str) -> dict[str, int]:
        devices = filter(None, (interface, out, tunnel, *bridge_ports(self._host, interface)))
        below = beneath(self._host, interface, out, *self._outer)
        return self._changes.counts((*devices, *self._outer), below)

    def passage(
        self,
        interface: str,
        out: str,
        pairs: Sequence[tuple[str, str]],
        ports: Sequence[int],
        protocol: str = "udp",
    ) -> Passage:
        """Return the way of packets of the traffic through this host."""

        def ask() -> Passage:
            with searched_once(self._host):
                return passage(self._host, interface, out, pairs, ports, protocol)

        is_sent = pairs and not interface
        way = self._own_watch.know(ask) if is_sent else ask()
        self._outer.update((hop.interface, None) for hop in way.outer if hop.interface)
        hops = [each for hop in (*way.hops, *way.outer) for each in (hop.destination, hop.gateway)]
        self._changes.lead(filter(None, (*hops, *way.rewrites, *(to for _, to in pairs))))
        return way

    def tunnel_key(self) -> str:
        """Return this agent's public key, made when it is first asked for."""
        if lacking(self._host):
            raise SettingRefused(f"a WireGuard tunnel: {lacking(self._host)}", self.name)
        if self._host.wireguard is None:
            self._host.wireguard = chosen(self._host)
        return str(self._host.wireguard.public)

    def _rule_packets(self) -> dict[str, int]:
        """Return the packets counted by our firewall rules; runs one or two programs."""
        in_force = any(change.setting.kind == "firewall" for change in self._engine.in_force)
        return rule_packets(self._host) if in_force else {}

    def _known(self, interface: str, controller: Optional[int]) -> dict[int, Whose]:
        """Return the run's processes on this host and the kernel threads of its interfaces."""
        known: dict[int, Whose] = {os.getpid(): "run"}
        if self._guardian is not None:
            known[self._guardian.process.pid] = "run"
        if "machine" in self.scopes:
            known.update(dict.fromkeys(lineage(self._host, os.getpid()), "run"))
            known.update(dict.fromkeys(lineage(self._host, controller or 0), "run"))
        known.update(dict.fromkeys(self.pool.pids(), "worker"))
        if self._host.wireguard is not None and self._host.wireguard.pid is not None:
            known[self._host.wireguard.pid] = "interface"
        if interface:
            devices = (interface, *bridge_ports(self._host, interface))
            known.update(dict.fromkeys(interface_threads(self._host, devices), "interface"))
        return known

    def expect_losses(self, interface: str, losses: Sequence[LossSpec], part: str) -> None:
        """Open the sockets for packets lost on purpose; fill those that must be full."""
        self._losses.prepare(losses, part, interface)

    def _collect_losses(self) -> tuple[WorkerStats, ...]:
        """Return what arrived of packets lost on purpose; a program has not read it."""
        collected = self._losses.collect()
        self.pool.leave_out(sum(stats.counts.get("read_packets", 0) for stats in collected))
        return collected

    def hear_strangers(self, listen: bool) -> tuple[Stranger, ...]:
        """Listen for strangers to the workers' ports; or end it and return who was heard."""
        return self._strangers.hear(self.pool.specs if listen else ())

    def close(self, keep_logs: Optional[str] = None) -> Optional[str]:
        """End the workers; remove their log files, or keep them under a label."""
        self._own_watch.forget()
        self._losses.close()
        self._cpus.close()
        had = bool(self.pool.pids())
        printed = self.pool.close(keep_logs)
        if had and self._closed:  # who has closed workers once may have closed the last ones
            self.pool.launch()
        self._closed |= had
        return printed

    def restore(self, force: bool = False, left_behind: bool = False) -> tuple[Change, ...]:
        """Restore every setting in force, or those that dead runs left behind."""
        if left_behind:
            return self._restore_left_behind(force)
        undone = self._engine.restore(force)
        remove_stale(self._host)  # of a run whose killed processes had not ended as this one began
        return undone

    def _restore_left_behind(self, force: bool) -> tuple[Change, ...]:
        """Replay every journal, even if others fail; delete stale ones."""
        undone: list[Change] = []
        failures: list[str] = []
        journals = leftovers(self._host)
        if journals.hidden:
            raise Unseen(
                f"{FOLDER}: this user cannot read what root's runs left behind; "
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
            except FileNotFoundError:  # the run died before writing its first line
                continue
        if failures:
            raise RestoreError("\n".join(failures), self.name)
        return tuple(undone)

    def ping(self) -> None:
        """Do nothing: every request renews the lease."""

    def check_guardian(self) -> None:
        """Look for other runs and replace a dead guardian; AgentError if none starts."""
        with suppress(OSError):  # `others` reports it
            self.locks.watch()
        if self._guardian is not None and not self._guardian.check():
            self._launch_guardian().await_ready()

    def end(self) -> None:
        """End the workers and restore every setting; RestoreError lists those that remain."""
        try:
            self.pool.end()
        finally:
            self._engine.restore()
        if self._guardian is not None:
            self._guardian.release()
        self.locks.release()
