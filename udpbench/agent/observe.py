"""The observer: ``python -m udpbench.agent.observe [WORD]...`` serves what only looks.

It imports nothing that changes a host, enters the namespace that it is to watch, opens or asks for
what takes a right, gives up all rights but two capabilities to read, and only then answers. Words:

    pid:123, unit:dns   the process, or systemd unit, whose network namespace is watched
    exact               counts each socket's packets by BPF
    cpu-time            samples the CPUs from now on
    changes             hears of changed firewall rules and policies, if it can
    firewall            lists firewall rules, as they are when it starts
    reasons:5201        counts the kernel's drop reasons of datagrams to a port by BPF, if it can
    ownerless           does not search for who holds sockets
"""

from __future__ import annotations

import errno
import gc
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Optional, Union

from udpbench.agent.counters.snapshot import snapshot
from udpbench.agent.host.bpf.kfree_skb import DropReasons
from udpbench.agent.host.bpf.socket_counts import SocketCounts
from udpbench.agent.host.capabilities import try_capabilities
from udpbench.agent.host.changes import Changes
from udpbench.agent.host.cpu_sampler import CpuSampler
from udpbench.agent.host.doctor import inspect_host
from udpbench.agent.host.facts import facts
from udpbench.agent.host.files import names
from udpbench.agent.host.namespace import enter, enter_named, settle
from udpbench.agent.host.privileges import (
    DAC_READ_SEARCH,
    OBSERVER_USER,
    SYS_PTRACE,
    keep_only,
)
from udpbench.agent.host.programs import RULESET
from udpbench.agent.host.reading import Done, ReadingHost, load_libraries
from udpbench.agent.host.socket_owners import SocketOwners
from udpbench.agent.host.unix_names import unix_names
from udpbench.agent.loop import Bystander, greeting, prove_same, stand_by
from udpbench.agent.notes import Note, roots_notes, trusted_notes
from udpbench.agent.recording import record_tree
from udpbench.agent.watch import Looks
from udpbench.errors import AgentError, HelloRefused
from udpbench.heap import TIDIED_LOOKS, tidy
from udpbench.model.host import Facts, Inspection
from udpbench.model.lab import INSIDE
from udpbench.model.limits import CPU_FREQUENCY, Edge, Scope
from udpbench.model.record import CpuSamples, HostLook, Snapshot, UdpSocket
from udpbench.model.survey import MachineLook, MachineRows
from udpbench.protocol import Hello, RecordedTree, Taken, Use, build_id, in_rows

ORDERS = (
    *("hello", "take", "release", "leave", "ping"),
    *("look", "more_sockets", "survey", "facts", "inspect", "snapshot", "record", "cpu_samples"),
)
"""Every verb that an observer serves; none changes anything."""
KEPT = (SYS_PTRACE, DAC_READ_SEARCH)
"""To list the descriptors of others' processes (/proc/PID/fd), and to see their namespaces.

Nothing else: what takes more is opened or asked for before (a kernel with ``--exact`` lets anybody
read a map that it holds, whatever kernel.unprivileged_bpf_disabled says)."""
RULES = (RULESET, ("iptables-save",))
"""They show nothing without CAP_NET_ADMIN, with which a process may write the sysctls of net."""
PLACES = {"exact": "udpbench-exact/", "cpu-time": "udpbench-cpu-time/", "reasons": "udpbench-why/"}
"""What costs the machine time that nobody is charged with: for each UDP packet, a thousand times a
second on each CPU, for each drop."""
PLACES_MAX = 4
COLLECTED = 50_000
"""Objects made before cycles are looked for: a survey makes thousands, hardly one in a cycle."""
EARLY = ("pyroute2.netlink.exceptions", "udpbench._native", "subprocess")
"""Imported while their files may be read: others may not read a folder of root's alone."""


class EarlyHost(ReadingHost):
    """A host that answers what takes CAP_NET_ADMIN as it did while that was held."""

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._answers: dict[tuple[str, ...], Any] = {}

    def learn(self, with_rules: bool) -> None:
        """Ask now: for each interface's tcx programs, and for the rules of the firewall."""
        asked: list[tuple[str, ...]] = [
            ("tcx_programs", name) for name in names(self, "/sys/class/net")
        ]
        if with_rules:
            lists = RULES[0] if self.program("nft") is not None else RULES[1]
            asked += [("firewall_rules",), ("run", *lists)]
        for key in asked:
            try:
                self._answers[key] = getattr(super(), key[0])(*key[1:])
            except OSError as error:
                self._answers[key] = error

    def _answer(self, *key: str) -> Any:
        if isinstance(self._answers[key], OSError):
            raise self._answers[key]
        return self._answers[key]

    def run(self, *command: str, stdin: str = "") -> Done:
        """Return the output of a program that only reads."""
        key = ("run", *command)
        done: Done = (
            self._answer(*key) if key in self._answers else super().run(*command, stdin=stdin)
        )
        return done

    def firewall_rules(self) -> int:
        """Return the number of nf_tables rules in this namespace."""
        key = ("firewall_rules",)
        return int(self._answer(*key) if key in self._answers else super().firewall_rules())

    def tcx_programs(self, interface: str) -> Optional[int]:
        """Return the number of tcx ingress programs; None without permission."""
        key = ("tcx_programs", interface)
        known = key in self._answers
        count: Optional[int] = self._answer(*key) if known else super().tcx_programs(interface)
        return count


class Observer(Bystander):
    """One controller's session, from its first request to its last."""

    orders = ORDERS
    refusal = "an observer does not serve {}: it only looks"

    def __init__(
        self,
        host: ReadingHost,
        capabilities: dict[str, bool],
        counting: Union[SocketCounts, OSError, None] = None,
        cpus: Optional[CpuSampler] = None,
        owners: bool = True,
        changes: Optional[Changes] = None,
    ) -> None:
        super().__init__()
        self._changes = changes
        self._owners = owners
        self._host = host
        self._counting = counting
        self._cpus = cpus
        self._looked_ns: Optional[int] = None
        self._surveys = 0
        self._capabilities = capabilities
        """As tried before they were given up: what an agent would have here."""
        self._looks: Optional[Looks] = None
        self._name = self._run = ""
        self._scopes: tuple[Scope, ...] = ()

    @property
    def name(self) -> str:
        """The host's name in the lab; empty before hello."""
        return self._name

    def hello(
        self,
        host: str,
        run: str,
        build: str,
        protocol: int,
        lease_ns: int,
        scopes: tuple[Scope, ...],
        returns: bool = False,  # noqa: ARG002 - an observer that is lost leaves nothing
        private: bool = False,
    ) -> Hello:
        """Check that both sides are the same build and begin the session."""
        if self._looks is not None:
            raise HelloRefused(f"this observer already serves {self._run}", host)
        prove_same(host, build, protocol, build_id())
        if private:
            raise HelloRefused("an observer creates no namespace", host)
        self._name, self._run, self._scopes = host, run, scopes
        self._looks = Looks(self._host, host, self._counting, self._owners, self._changes)
        self.lease_ns = lease_ns
        return greeting(self._host, self._capabilities)

    def take(self, use: Use) -> Taken:  # noqa: ARG002 - it uses no machine
        """Return which run has this namespace; nothing is taken."""
        notes = roots_notes if os.geteuid() == OBSERVER_USER else trusted_notes
        for note in notes(self._host):
            if self._is_in_the_way(note):
                return Taken(str(note), "namespace")
        return Taken()

    def _is_in_the_way(self, note: Note) -> bool:
        here = note.lock == "namespace" and note.netns == self._host.netns()
        return here and "namespace" in self._scopes

    def look(self, pid: Optional[int], unit: Optional[str], exact: bool) -> HostLook:
        """Return the host's state and what changed since the previous look."""
        looks: Any = self._looks
        result: HostLook = looks.look_in_parts(pid, unit, exact)
        if self._cpus is not None:
            self._cpus.mark("begin" if self._looked_ns is None else None, result.snapshot.clock_ns)
        self._looked_ns = result.snapshot.clock_ns
        return result

    def more_sockets(self) -> tuple[UdpSocket, ...]:
        """Return the next sockets of the latest look."""
        return self._looks.more_sockets() if self._looks is not None else ()

    def survey(self, exact: bool, closely: bool = False) -> MachineRows:
        """Return the state of every network namespace, and what changed since the last survey."""
        gc.set_threshold(COLLECTED)
        self._surveys += 1
        if self._surveys % TIDIED_LOOKS == 0:
            tidy()
        looks: Any = self._looks
        result: MachineLook = looks.survey(exact, closely)
        if self._cpus is not None and closely:
            time = self._cpus.lately()
            result = replace(result, cpu_time=time, cpu_time_why=self._cpus.why)
        return in_rows(result)

    def cpu_samples(self) -> CpuSamples:
        """Return what the CPUs did between the first look and the latest."""
        if self._cpus is None:
            return CpuSamples(why="it was not asked for")
        self._cpus.mark("end", self._looked_ns or self._host.clock_ns())
        return self._cpus.end()

    def tick(self, now_ns: int) -> Optional[int]:
        """Look at the threads of readers; return when the next look is due."""
        return self._looks.tick(now_ns) if self._looks is not None else None

    def facts(self, interface: str) -> Facts:
        """Return the host's facts, but for those that take a datagram or load a module."""
        own = self._interface(interface)
        return facts(self._host, self._name, own, self._capabilities, taken=False)

    def inspect(self, interface: str) -> Inspection:
        """Return what ``udpbench doctor`` reads in addition to the facts."""
        return inspect_host(self._host, self._interface(interface))

    def snapshot(
        self,
        interface: str,
        edge: Optional[Edge] = None,
        controller: Optional[int] = None,  # noqa: ARG002 - of a phase
        out: str = "",
        tunnel: str = "",  # noqa: ARG002 - a lab's
    ) -> Snapshot:
        """Return every counter in the session's scopes; no phase begins or ends here."""
        if edge is not None:
            raise AgentError("an observer sees no phase", self._name)
        own = self._interface(interface)
        further = self._interface(out)
        return snapshot(self._host, self._name, own, self._scopes, (), dict, further)

    def record(self, interface: str) -> RecordedTree:
        """Return the anonymised answers of this host about itself."""
        own = self._interface(interface)
        return record_tree(self._host, self._name, own, self._capabilities)

    def _interface(self, name: str) -> str:
        """Refuse a name that would lead to another file: this process may read any."""
        if "/" in name or name in (".", ".."):
            raise AgentError(f"{name!r} is not the name of an interface", self._name)
        return name


def _caller() -> int:
    """Return the user who called sudo, or who runs this."""
    caller = os.environ.get("SUDO_UID", "")
    return int(caller) if caller.isdecimal() else os.geteuid()


Refusals = Mapping[str, Optional[OSError]]
"""What an observer is to do, by its key of ``PLACES`` → why it may not; None: it may."""


def prepare(
    host: EarlyHost, words: Sequence[str], places: Refusals = MappingProxyType({})
) -> Observer:
    """Do what takes rights, then give them up, and return what may answer."""
    capabilities = try_capabilities(host)
    build_id()
    load_libraries()
    load_libraries()
    for module in EARLY:
        import_module(module)
    _enter(host, words)
    host.learn("firewall" in words)
    counting = (places.get("exact") or _count(host)) if "exact" in words else None
    if places.get("reasons") is None:
        _count_reasons(host, words)
    cpus = CpuSampler(host) if "cpu-time" in words else None
    if cpus is not None:
        cpus.begin_early(CPU_FREQUENCY, places.get("cpu-time"))
    changes = Changes(host)
    if "changes" in words:
        changes.listen()
    keep_only(host, KEPT)
    _prove_readable(host)
    owners = "ownerless" not in words
    return Observer(host, capabilities, counting, cpus, owners, changes)


def take_places(words: Sequence[str]) -> Refusals:
    """Take what an observer needs of the few places of who called sudo, until this process ends.

    A place is a name that root has bound, in the namespace where observers start, and nobody knows
    before: others could bind it first. It is not one that the caller names: there are more of
    those. Root has as many as it likes.
    """
    kinds = {word.partition(":")[0] for word in words} if _caller() else set()
    return {kind: _take_place(place) for kind, place in PLACES.items() if kind in kinds}


def _take_place(kind: str) -> Optional[OSError]:
    """Take a place, or say who has them."""
    prefix = f"{kind}{_caller()}/"
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place.bind(f"\0{prefix}{secrets.token_hex()}")
    with suppress(OSError):  # without unix_diag they are not counted
        users = [user for names in unix_names(prefix.encode()) for _, user, _ in names]
        if users.count(os.geteuid()) > PLACES_MAX:
            place.close()
            text = f"user {_caller()} has {PLACES_MAX} observers that do"
            return OSError(errno.EUSERS, text)
    place.detach()
    return None


def _count(host: ReadingHost) -> Union[SocketCounts, OSError]:
    """Return programs that count each socket's packets, or why there are none."""
    try:
        return SocketCounts(host)
    except OSError as error:
        return error


def _count_reasons(host: ReadingHost, words: Sequence[str]) -> None:
    """Count drop reasons of a port, where this kernel and these rights allow it."""
    ports = [int(word[8:]) for word in words if word.startswith("reasons:") and word[8:].isdigit()]
    if ports:
        # Without BTF, or without reasons in it (before Linux 5.17).
        with suppress(OSError, KeyError, ValueError):
            host.drops = DropReasons(host, ports)


def _prove_readable(host: ReadingHost) -> None:
    """Give up counts that an older kernel shows to root alone."""
    try:
        if host.drops is not None:
            host.drops.counts()
    except OSError:
        host.drops.close()
        host.drops = None


def _enter(host: ReadingHost, words: Sequence[str]) -> None:
    """Move into the namespace to watch; why that failed is reported by the first look."""
    kinds = dict(word.partition(":")[::2] for word in words)
    pids = [int(kinds["pid"])] if kinds.get("pid", "").isdecimal() else []
    if kinds.get("unit"):
        owners = SocketOwners(host)
        owners.learn((), kinds["unit"])
        pids += owners.in_unit(kinds["unit"])
    for pid in pids[:1]:
        with suppress(OSError):
            enter(host, pid)


def begin() -> Observer:
    """Return this process as an observer; OSError."""
    host, words = EarlyHost(), sys.argv[1:]
    places = take_places(words)
    names = [word[len(INSIDE) :] for word in words if word.startswith(INSIDE)]
    enter_named(host, names[0]) if names else settle(host)
    return prepare(host, words, places)


if __name__ == "__main__":
    sys.exit(stand_by("observer", begin))
