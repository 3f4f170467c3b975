"""The agents of a lab: which ones there are, in which order they start, and how they end.

Owns everything from a Lab to taken hosts, and back to restored ones. Knows nothing of trials, nor
of waiting for a lab (``lab_lock``). A thread for each agent pings it, so that none restores by
itself: one that takes no ping holds up its own thread alone.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Protocol

from udpbench.control.agent_client import AgentClient, Requests
from udpbench.control.connections.channel import AGENT, OBSERVER, SERVER, Channel
from udpbench.control.connections.forks import LocalAgents
from udpbench.control.connections.local_agent import (
    AGENT_COMMAND,
    OBSERVER_COMMAND,
    open_local,
    open_observer,
    open_server,
)
from udpbench.control.connections.namespaces import Namespaces, open_inside
from udpbench.control.wait import Clock
from udpbench.definition.binding.bind import (
    Unavailable,
    UnmetNeeds,
    require_kernels,
    require_offers,
)
from udpbench.definition.binding.host_block import routed_networks
from udpbench.errors import (
    AgentLost,
    HelloRefused,
    HostError,
    HostLacks,
    NotPermitted,
    RestoreError,
    SafetyError,
    Unseen,
)
from udpbench.model.experiment import Trial
from udpbench.model.host import Change, lost_without
from udpbench.model.lab import Connect, Lab, Node
from udpbench.model.limits import SECOND_NS, Scope
from udpbench.protocol import Hello, Taken, Use

if TYPE_CHECKING:
    from udpbench.control.deployment.deployer import Deployer

MACHINE = "machine"
"""Name of the agent with the machine scope of a built-in lab; it takes no part in trials."""

Open = Callable[[str, Connect], Requests]
END_NS = SECOND_NS // 10
"""For a thread to end; one whose ping is not taken is left to the limit of that write."""


def _open_ssh(
    deployer: Deployer | None, host: str, connect: Connect, module: Sequence[str] = (AGENT,)
) -> Channel:
    """Import paramiko, which takes 0.2 s, only for a host that is reached by it."""
    from udpbench.control.connections.ssh import open_ssh

    return open_ssh(host, connect, deployer=deployer, module=module)


@dataclass(frozen=True)
class Reach:
    """How the agents of one run are reached; the tests' fakes replace it, and nothing else."""

    ways: Mapping[str, Open]
    """By a host's ``connect.by``; a new way is a function that returns a channel, and a row."""
    machine: Callable[[str], Requests]


def real(deployer: Deployer | None = None) -> Reach:
    """Return all ways to reach a host, for one run: its agents on this machine share what they can.

    Without a deployer of the caller's, agents are deployed silently.
    """
    agents = LocalAgents()
    namespaces = Namespaces(agents)
    ways: dict[str, Open] = {
        "namespace": lambda host, _: namespaces.open(host),
        "local": lambda host, _: open_local(host, AGENT_COMMAND),
        "netns": partial(open_inside, command=AGENT_COMMAND, agents=agents),
        "container": partial(open_inside, command=AGENT_COMMAND, agents=agents),
        "ssh": partial(_open_ssh, deployer),
    }
    return Reach(ways, agents.open_machine)


def observing(words: Sequence[str], deployer: Deployer | None = None) -> Reach:
    """Return how observers are reached, which only look; ``words``: agent/observe."""

    def machine(host: str) -> Requests:
        return open_observer(host, words)

    ways: dict[str, Open] = {
        "local": lambda host, _: machine(host),
        "netns": partial(open_inside, command=(*OBSERVER_COMMAND, *words)),
        "container": partial(open_inside, command=(*OBSERVER_COMMAND, *words)),
        "ssh": partial(_open_ssh, deployer, module=(OBSERVER, *words)),
    }
    return Reach(ways, machine)


def serving(words: Sequence[str], deployer: Deployer | None = None) -> Reach:
    """Return how servers of iperf3 clients are reached; ``words``: agent/clients."""

    def machine(host: str) -> Requests:
        return open_server(host, words)

    ways: dict[str, Open] = {
        "local": lambda host, _: machine(host),
        "ssh": partial(_open_ssh, deployer, module=(SERVER, *words)),
    }
    return Reach(ways, machine)


def elsewhere(connect: Connect, deployer: Deployer | None = None) -> Reach:
    """Return how a built-in lab on another machine, given by ``connect``, is reached."""

    def machine(agent: str) -> Requests:
        return _open_ssh(deployer, agent, connect)

    return Reach({"namespace": lambda agent, _: machine(agent)}, machine)


@dataclass(frozen=True)
class Agents:
    """The greeted agents of a lab."""

    lab: Lab
    nodes: tuple[AgentClient, ...]
    """The nodes of the path, as far as it has agents."""
    machine: AgentClient | None
    capabilities: Mapping[str, Mapping[str, bool]]
    """Agent → its capabilities."""
    left_behind: Mapping[str, tuple[str, ...]]
    """Agent → runs that died on its host and whose settings are still in force there."""

    def of(self, nodes: Iterable[Node]) -> tuple[AgentClient, ...]:
        """Return the agents of some nodes, in their order."""
        by_name = {client.name: client for client in self.nodes}
        return tuple(by_name[node.name] for node in nodes if node.name in by_name)

    @property
    def senders(self) -> tuple[AgentClient, ...]:
        """The agents at which the path begins."""
        return self.of(self.lab.senders)

    @property
    def receivers(self) -> tuple[AgentClient, ...]:
        """The agents at which it ends."""
        return self.of(self.lab.receivers)

    @property
    def hosts(self) -> tuple[AgentClient, ...]:
        """The lab's hosts, senders first."""
        return self.of(self.lab.hosts)

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the hosts lack, in words."""
        return lost_without([self.capabilities[client.name] for client in self.hosts])

    @property
    def everyone(self) -> tuple[AgentClient, ...]:
        """Every agent in the order of restoring: senders first, the machine last."""
        return self.of((*self.lab.ends, *reversed(self.lab.between))) + self._of_machine

    @property
    def setting_up(self) -> tuple[AgentClient, ...]:
        """Every agent in the order in which settings are applied; pairs before their far ends.

        A joint makes all pairs, and without one the receiver makes the only one.
        """
        lab = self.lab
        return self._of_machine + self.of((*lab.between, *lab.receivers, *lab.senders))

    @property
    def hanging(self) -> tuple[AgentClient, ...]:
        """The hosts of a built-in lab whose interface is the far end of a pair."""
        if self.lab.joint is None:
            return self.of(self.lab.senders)
        return self.of((*self.lab.ends, *reversed(self.lab.middle[1:])))

    @property
    def middle(self) -> tuple[AgentClient, ...]:
        """The nodes that only forward, in the order of the path."""
        return self.of(self.lab.middle)

    @property
    def _of_machine(self) -> tuple[AgentClient, ...]:
        return (self.machine,) if self.machine is not None else ()


class LabAgents:
    """The agents of one lab, from the start of the first to the end of all."""

    def __init__(self, lab: Lab, run: str, lease_ns: int, reach: Reach, clock: Clock) -> None:
        self.lab = lab
        self._clock = clock
        self._run = run
        self._lease_ns = lease_ns
        self._reach = reach
        self._opened: list[AgentClient] = []
        self._hellos: dict[AgentClient, Hello] = {}
        self._left_behind: dict[str, tuple[str, ...]] = {}
        self._lease = Lease(lease_ns)
        self._ends = ExitStack()

    def begin(self) -> None:
        """Start and greet the agents that take the lab: a built-in lab's machine, or every host.

        A run that waits for a machine thus disturbs it with a single process. Raises ConnectError,
        HelloRefused, SafetyError, with the failures of all hosts.
        """
        self._ends.callback(self._lease.close)
        self._ends.callback(self._close_channels)  # first: one host may hold up the others' end
        if self.lab.built_in:
            self._opened.append(
                AgentClient(self._reach.machine(MACHINE), "machine", "", ("machine",))
            )
        else:
            self._open(self.lab.hosts)
        self._greet()

    def onlookers(self) -> tuple[AgentClient, ...]:
        """Return the greeted agents of a lab that is not taken and may only be read."""
        return tuple(self._opened)

    def take(self, use: Use) -> tuple[AgentClient, Taken] | None:
        """Take all newly greeted agents, or none; return the agent that is in use, and by what.

        All runs take agents in the same order, so that two runs cannot block each other.
        """
        taken: list[AgentClient] = []
        for client in sorted(self._hellos, key=self._namespace):
            if client.name in self._left_behind:
                continue
            answer = client.take(use)
            if answer.held_by is not None:
                for other in taken:
                    other.release()
                    del self._left_behind[other.name]
                return client, answer
            taken.append(client)
            self._left_behind[client.name] = answer.left_behind
        return None

    def complete(self, use: Use, looks: bool = False) -> Agents:
        """Start the other agents of the lab that was taken, and return all.

        Who only looks at a built-in lab needs its machine alone.

        All are started before the first is greeted, so that their start-ups overlap.
        """
        if self.lab.built_in and not looks:
            self._open((*self.lab.ends, *self.lab.between))
            self._greet()
            held = self.take(use)
            if held is not None:
                raise HelloRefused(f"is used by {held[1].held_by}", held[0].name)
        return Agents(
            lab=self.lab,
            nodes=tuple(client for client in self._opened if client.part != MACHINE),
            machine=next((client for client in self._opened if client.part == MACHINE), None),
            capabilities={
                client.name: hello.capabilities for client, hello in self._hellos.items()
            },
            left_behind=self._left_behind,
        )

    def close(self) -> None:
        """End every agent, in the order of their start."""
        self._ends.close()

    def _close_channels(self) -> None:
        # The machine's agent last: without root it alone keeps other runs away.
        for is_machine in (False, True):
            ending = [each for each in self._opened if (each.part == MACHINE) is is_machine]
            self._clock.together([each.channel.close for each in ending])

    def _open(self, nodes: Sequence[Node]) -> None:
        """Start the agent of each node; hosts that are reached by SSH are logged in at together."""
        failures: list[HostError] = []
        starts = [partial(self._started, node) for node in nodes]
        by_ssh = all(node.connect.by == "ssh" for node in nodes)
        for answer in self._clock.together(starts) if by_ssh else (start() for start in starts):
            if isinstance(answer, NotPermitted):  # true of the machine, so the same for every node
                raise answer
            if isinstance(answer, HostError):
                failures.append(answer)
            else:
                self._opened.append(answer)
        _raise_all(failures)

    def _started(self, node: Node) -> AgentClient | HostError:
        """Return a node's agent; a real host's has both scopes."""
        lab = self.lab
        scopes: tuple[Scope, ...] = ("namespace",) if lab.built_in else ("namespace", "machine")
        try:
            channel = self._reach.ways[node.connect.by](node.name, node.connect)
        except HostError as error:
            return error
        routed = routed_networks(lab, node)
        tunnel = "" if node.bridge else node.tunnel
        return AgentClient(channel, node.part, node.interface, scopes, routed, node.out, tunnel)

    def _namespace(self, client: AgentClient) -> tuple[str, int]:
        hello = self._hellos[client]
        return hello.boot_id, hello.netns

    def _greet(self) -> None:
        failures: list[HostError] = []
        new = [client for client in self._opened if client not in self._hellos]
        answers = self._clock.together([partial(self._greeted, client) for client in new])
        for client, answer in zip(new, answers, strict=True):
            if isinstance(answer, HostError):
                failures.append(answer)
                continue
            self._hellos[client] = answer
            self._lease.keep(client.channel)
        _raise_all(failures)
        self._prove_apart()

    def _greeted(self, client: AgentClient) -> Hello | HostError:
        try:
            return client.greet(self._run, self._lease_ns)
        except AgentLost as error:
            return client.channel.not_started(error)
        except HostError as error:
            return error

    def _prove_apart(self) -> None:
        """Refuse hosts in one namespace: packets would take lo, and settings would collide."""
        for first, second in combinations(self._hellos, 2):
            owned = all("namespace" in client.scopes for client in (first, second))
            if owned and self._namespace(first) == self._namespace(second):
                raise SafetyError(
                    f"shares its network namespace {self._hellos[first].netns} with {second.name}: "
                    "packets would take lo instead of the lab interface; give each host its own",
                    first.name,
                )


def _raise_all(failures: list[HostError]) -> None:
    """Raise a single failure as it is, several as one error of the first one's class."""
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise type(failures[0])("\n".join(map(str, failures)))


def restore_command(lab: Lab) -> str:
    """Return the command that restores a lab's hosts."""
    return "udpbench restore" if lab.built_in else f"udpbench restore --lab {shlex.quote(lab.path)}"


def refuse_lacking(trials: Iterable[Trial], lab: Lab, agents: Agents) -> None:
    """Raise HostLacks, with all that is missing, if the kernels can run none of the trials."""
    lacking: list[Trial] = []
    for trial in trials:
        try:
            require_kernels(trial, lab, agents.capabilities)
        except UnmetNeeds:
            continue
        except Unavailable:
            lacking.append(trial)
        else:
            return
    facts = {client.name: client.facts() for client in agents.hosts} if lacking else {}
    missing: dict[str, None] = {}
    for trial in lacking:
        try:
            require_offers(trial, lab, facts, agents.capabilities)
        except UnmetNeeds:
            continue
        except Unavailable as why:
            missing.update(dict.fromkeys(str(why).split("; ")))
    if missing:
        raise HostLacks(f"no trial can run here: {'; '.join(missing)}")


def refuse_left_behind(agents: Agents, lab: Lab) -> None:
    """Refuse a host with settings left by a dead run: they may affect every number."""
    for name, runs in agents.left_behind.items():
        if runs:
            what = f"run {', '.join(runs)} died here and left settings"
            raise HelloRefused(f"{what}; undo them: {restore_command(lab)}", name)


@dataclass(frozen=True)
class RestoredLeftovers:
    """The settings of dead runs that were undone."""

    undone: dict[str, tuple[Change, ...]]
    """By host."""
    unseen: tuple[Unseen, ...]
    """Hosts on which root's runs may have left settings, too, which this user cannot see."""


def restore_left_behind(agents: Agents, force: bool) -> RestoredLeftovers:
    """Undo, and return, the settings left by dead runs.

    Continues after a failure, and raises RestoreError at the end, naming what remains.
    """
    undone: dict[str, tuple[Change, ...]] = {}
    unseen: list[Unseen] = []
    failures: list[str] = []
    for client in agents.everyone:
        try:
            undone[client.name] = client.restore(force=force, left_behind=True)
        except Unseen as error:
            unseen.append(error)
        except RestoreError as error:
            failures.append(str(error))
    if failures:
        raise RestoreError("\n".join(failures))
    return RestoredLeftovers(undone, tuple(unseen))


@dataclass(frozen=True)
class Restored:
    """The failures of restoring every host."""

    failed: tuple[RestoreError, ...]
    lost: tuple[AgentLost, ...]
    """To be looked at again: it, or its guardian, may have restored."""


def restore(agents: Agents) -> Restored:
    """Undo the settings of every agent, continuing after one that fails or is lost."""
    failed: list[RestoreError] = []
    lost: list[AgentLost] = []
    for client in agents.everyone:
        try:
            client.restore()
        except AgentLost as error:
            lost.append(error)
        except RestoreError as error:
            failed.append(error)
        except HostError as error:
            failed.append(RestoreError(f"restore: {error.message}", client.name))
    return Restored(tuple(failed), tuple(lost))


class Renewable(Protocol):
    """A channel, as the lease needs it."""

    def ping(self) -> None:
        """Send a request without waiting for the reply."""


class Lease:
    """Pings every channel each third of the lease until it ends."""

    def __init__(self, lease_ns: int) -> None:
        self._interval_s = lease_ns / 3 / SECOND_NS
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def keep(self, channel: Renewable) -> None:
        """Ping a channel from now on."""

        def ping() -> None:
            while not self._ended.wait(self._interval_s):
                channel.ping()

        self._threads.append(threading.Thread(target=ping, name="lease", daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        """End the pings, waiting for no agent."""
        self._ended.set()
        for thread in self._threads:
            thread.join(END_NS / SECOND_NS)
