"""The agents of a lab: which there are, the order in which they start, and how they end.

Owns the way from a Lab to greeted agents and back to restored hosts. Knows nothing of trials.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from udpbench.control.channel import Channel, open_machine
from udpbench.control.namespaces import Namespaces
from udpbench.control.remote import Remote, Requests
from udpbench.definition.bind import BRIDGE, BRIDGE_INTERFACE
from udpbench.definition.offers import lacking
from udpbench.errors import (
    AgentLost,
    HelloRefused,
    HostError,
    HostLacks,
    NotPermitted,
    RestoreError,
    SafetyError,
)
from udpbench.model import Change, Connect, Lab, Scope, Trial, lost_without
from udpbench.protocol import Hello

MACHINE = "machine"
"""Name of the agent that has the machine scope of a built-in lab; it plays no role in a trial."""

Open = Callable[[str, Connect], Requests]


def _open_ssh(host: str, connect: Connect) -> Channel:
    """Import paramiko, which takes 0.2 s, only for a host that is reached by it."""
    from udpbench.control.ssh import open_ssh

    return open_ssh(host, connect)


@dataclass(frozen=True)
class Reach:
    """How the agents of one run are reached; the tests' fakes replace it, and nothing else."""

    ways: Mapping[str, Open]
    """By a host's ``connect.by``: a new way is a function that returns a channel, and a row."""
    machine: Callable[[str], Requests]


def real() -> Reach:
    """Return the ways there are; namespaces remember which user namespace a run has."""
    namespaces = Namespaces()
    ways: dict[str, Open] = {
        "namespace": lambda host, _: namespaces.open(host),
        "local": lambda host, _: open_machine(host),
        "ssh": _open_ssh,
    }
    return Reach(ways, open_machine)


@dataclass(frozen=True)
class Agents:
    """The greeted agents of a lab."""

    senders: tuple[Remote, ...]
    receivers: tuple[Remote, ...]
    bridge: Remote | None
    """What joins more than two namespaces; None where two hosts share a pair."""
    machine: Remote | None
    capabilities: Mapping[str, Mapping[str, bool]]
    """Agent → what it may do."""
    left_behind: Mapping[str, tuple[str, ...]]
    """Agent → runs that died on its host and whose settings are still in force there."""

    @property
    def hosts(self) -> tuple[Remote, ...]:
        """The lab's hosts, senders first."""
        return self.senders + self.receivers

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the hosts may not do, in words."""
        return lost_without([self.capabilities[one.name] for one in self.hosts])

    @property
    def everyone(self) -> tuple[Remote, ...]:
        """Every agent; whoever has settings undone in this order undoes them backwards."""
        return self.hosts + tuple(one for one in (self.bridge, self.machine) if one is not None)

    @property
    def setting_up(self) -> tuple[Remote, ...]:
        """Every agent in the order in which settings are applied; pairs before what hangs on them.

        The bridge makes all pairs, and without one the receiver makes the only one.
        """
        first = tuple(one for one in (self.machine, self.bridge) if one is not None)
        return first + self.receivers + self.senders

    @property
    def hanging(self) -> tuple[Remote, ...]:
        """The hosts of a built-in lab whose interface is the far end of a pair."""
        return self.senders if self.bridge is None else self.hosts


@contextmanager
def started(lab: Lab, run: str, lease_ns: int, reach: Reach) -> Iterator[Agents]:
    """Start and greet the agents of a lab, senders first, and end them with the block.

    All are started before the first is greeted, so that their start-up overlaps. Raises
    ConnectError, HelloRefused, SafetyError, with what is wrong on every host.
    """
    opened: list[Remote] = []
    try:
        _open_all(lab, reach, opened)
        hellos = _greet_all(opened, run, lease_ns)
        _prove_apart(hellos)
        yield Agents(
            senders=tuple(one for one in opened if one.role == "sender"),
            receivers=tuple(one for one in opened if one.role == "receiver"),
            bridge=next((one for one in opened if one.role == "bridge"), None),
            machine=next((one for one in opened if one.role == "machine"), None),
            capabilities={one.name: hello.capabilities for one, hello in hellos.items()},
            left_behind={one.name: hello.left_behind for one, hello in hellos.items()},
        )
    finally:
        for remote in opened:
            remote.channel.close()


def _open_all(lab: Lab, reach: Reach, opened: list[Remote]) -> None:
    """Start every agent and add it to ``opened``; a host of its own has both scopes."""
    scopes: tuple[Scope, ...] = ("namespace",) if lab.built_in else ("namespace", "machine")
    failures: list[HostError] = []
    for host in lab.hosts:
        try:
            channel = reach.ways[host.connect.by](host.name, host.connect)
        except NotPermitted:  # of the machine, so it is the same for every host
            raise
        except HostError as error:
            failures.append(error)
        else:
            opened.append(Remote(channel, host.role, host.interface, scopes))
    _raise_all(failures)
    if lab.bridged:
        channel = reach.ways["namespace"](BRIDGE, Connect("namespace"))
        opened.append(Remote(channel, "bridge", BRIDGE_INTERFACE, ("namespace",)))
    if lab.built_in:
        opened.append(Remote(reach.machine(MACHINE), "machine", "", ("machine",)))


def _greet_all(opened: list[Remote], run: str, lease_ns: int) -> dict[Remote, Hello]:
    hellos: dict[Remote, Hello] = {}
    failures: list[HostError] = []
    for remote in opened:
        try:
            hellos[remote] = _greet(remote, run, lease_ns)
        except HostError as error:
            failures.append(error)
    _raise_all(failures)
    return hellos


def _raise_all(failures: list[HostError]) -> None:
    """Raise one failure as it is, and several as one error of the first one's class."""
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise type(failures[0])("\n".join(str(one) for one in failures))


def _greet(remote: Remote, run: str, lease_ns: int) -> Hello:
    try:
        hello = remote.hello(run, lease_ns)
    except AgentLost as error:
        raise remote.channel.not_started(error) from error
    except HelloRefused as error:
        if f"run {run} (pid " not in error.message:
            raise
        text = "shares its network namespace with another host of this lab; give each its own"
        raise SafetyError(text, remote.name) from error
    if hello.held_by is not None:
        text = f"its namespace is held by run {hello.held_by}; let that run end first"
        raise HelloRefused(text, remote.name)
    return hello


def _prove_apart(hellos: Mapping[Remote, Hello]) -> None:
    """Refuse a sender and a receiver in one namespace: the kernel would send by lo."""
    for one, other in product(hellos, hellos):
        if (one.role, other.role) != ("sender", "receiver"):
            continue
        same_boot = hellos[one].boot_id == hellos[other].boot_id
        if same_boot and hellos[one].netns == hellos[other].netns:
            raise SafetyError(
                f"shares its network namespace {hellos[one].netns} with {other.name}: packets "
                "would take lo instead of the lab interface; give each role a namespace or host",
                one.name,
            )


def restore_command(lab: Lab) -> str:
    """Return what a user types to put back what a run has left on a lab's hosts."""
    return "udpbench restore" if lab.built_in else f"udpbench restore --lab {shlex.quote(lab.path)}"


def refuse_lacking(trials: Iterable[Trial], lab: Lab, agents: Agents) -> None:
    """Raise HostLacks with everything that hosts lack for any of the trials."""
    missing = list(lacking(trials, lab, agents.capabilities))
    if missing:
        raise HostLacks("; ".join(missing))


def refuse_left_behind(agents: Agents, lab: Lab) -> None:
    """Refuse a host on which a run died and left settings: they may move every number."""
    for name, runs in agents.left_behind.items():
        if runs:
            what = f"run {', '.join(runs)} died here and left settings"
            raise HelloRefused(f"{what}; undo them: {restore_command(lab)}", name)


def restore_left_behind(agents: Agents, force: bool) -> dict[str, tuple[Change, ...]]:
    """Undo what runs that died have left, and return host → what was undone.

    Goes on where one fails, and raises RestoreError at the end, naming what remains.
    """
    undone: dict[str, tuple[Change, ...]] = {}
    failures: list[str] = []
    for remote in agents.everyone:
        try:
            undone[remote.name] = remote.restore(force=force, left_behind=True)
        except RestoreError as error:
            failures.append(str(error))
    if failures:
        raise RestoreError("\n".join(failures))
    return undone


@dataclass(frozen=True)
class Restored:
    """What an attempt to restore every host has met."""

    failed: tuple[RestoreError, ...]
    lost: tuple[AgentLost, ...]
    """No failure: a lost agent or its guardian restores, or its namespace is gone."""


def restore(agents: Agents) -> Restored:
    """Undo the settings of every agent, and go on where one fails or is lost."""
    failed: list[RestoreError] = []
    lost: list[AgentLost] = []
    for remote in agents.everyone:
        try:
            remote.restore()
        except AgentLost as error:
            lost.append(error)
        except RestoreError as error:
            failed.append(error)
        except HostError as error:
            failed.append(RestoreError(f"restore: {error.message}", remote.name))
    return Restored(tuple(failed), tuple(lost))
