"""Looking at live hosts: their agents without a run, and a look a second until the end.

Takes no host and sends nothing to any, so a watch neither waits for a run nor delays one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from udpbench.analysis.live_host import HostState, LiveHost, after, live_host
from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import LabAgents
from udpbench.control.host_use import Surroundings
from udpbench.control.run import RunOptions, run_name
from udpbench.errors import InputError, NothingToWatch, Problem
from udpbench.model import SECOND_NS, SSH_CHARACTERS, SSH_SPEC, Connect, Facts, Lab, LabHost

POLL_NS = SECOND_NS // 4
"""Between two checks for Ctrl-C."""
PORTS_NAMED = 12


@dataclass(frozen=True)
class Watched:
    """What is to be watched of a host; nothing named: every UDP socket of its namespace."""

    pid: int | None = None
    port: int | None = None
    unit: str | None = None
    exact: bool = False


def lab_to_watch(destination: str | None, lab: Lab | None) -> Lab:
    """Return the hosts to look at: a destination, this machine, or the receivers of a lab.

    Raises InputError.
    """
    if lab is not None and destination is not None:
        raise InputError([Problem("both are named", "HOST, --lab", next_step="omit one")])
    if lab is not None and lab.built_in:
        what = "a built-in lab has no process before a run makes it"
        step = "omit --lab to watch this machine"
        raise InputError([Problem(what, "--lab", lab.name, "", step)])
    if lab is not None:
        return replace(lab, senders=())
    if destination is not None and SSH_SPEC.match(destination) is None:
        what, step = "not [user@]host[:port]", "write for example root@left, or omit it"
        raise InputError([Problem(what, "HOST", destination, SSH_CHARACTERS, step)])
    way = Connect("local") if destination is None else Connect("ssh", destination)
    match = SSH_SPEC.match(destination or "")
    name = (match["name"] or match["bracketed"]) if match is not None else None
    name = name or destination or socket.gethostname()
    host = LabHost(name, "receiver", way, "", (), existing=True)
    return Lab("watch", "", "", (), (host,))


def watch(
    lab: Lab,
    watched: Watched,
    duration_ns: int | None,
    around: Surroundings,
    tell: Callable[[LiveHost], None],
) -> list[LiveHost]:
    """Look once a second until the time is over or Ctrl-C; return the last state of each host.

    Raises ConnectError, HelloRefused, AgentLost, NothingToWatch.
    """
    with closing(LabAgents(lab, run_name(), RunOptions.lease_ns, around.reach)) as agents:
        agents.begin()
        with around.interrupt.caught():
            onlookers = [_Onlooker(client, watched) for client in agents.onlookers()]
            states = []
            for _ in _seconds(duration_ns, around):
                states = [onlooker.look() for onlooker in onlookers]
                for state in states:
                    tell(state)
    return states


def _seconds(duration_ns: int | None, around: Surroundings) -> Iterator[int]:
    """Yield at each second on a fixed grid, and at the end, whoever made it."""
    begun_ns = around.clock.now_ns()
    end_ns = begun_ns + duration_ns if duration_ns is not None else None
    due_ns = begun_ns + SECOND_NS
    while True:
        now_ns = around.clock.now_ns()
        over = around.interrupt.requested or (end_ns is not None and now_ns >= end_ns)
        if over or now_ns >= due_ns:
            yield now_ns
            if over:
                return
            due_ns += SECOND_NS * (1 + (around.clock.now_ns() - due_ns) // SECOND_NS)
        left_ns = min(due_ns, end_ns or due_ns) - around.clock.now_ns()
        around.clock.sleep_ns(min(max(left_ns, 0), POLL_NS))


class _Onlooker:
    """One host from the first look on."""

    def __init__(self, client: AgentClient, watched: Watched) -> None:
        self._client = client
        self._watched = watched
        self._facts: dict[str, Facts] = {}
        self._first = self._latest = self._look(None)
        self._said: LiveHost | None = None
        if watched.port is not None:
            _refuse_free(watched.port, self._first, client.name)

    def look(self) -> LiveHost:
        """Return the host between the latest look and this one."""
        now = self._look(self._latest)
        self._said = live_host(
            self._first, self._latest, now, self._facts, self._said, self._watched.port
        )
        self._latest = now
        return self._said

    def _look(self, before: HostState | None) -> HostState:
        watched = self._watched
        look = self._client.look(watched.pid, watched.unit, watched.exact)
        for interface in look.interfaces:
            if interface not in self._facts:
                self._facts[interface] = self._client.facts_of(interface)
        return after(before, look)


def _refuse_free(port: int, state: HostState, host: str) -> None:
    """Refuse a port that no socket is bound to."""
    ports = sorted({each.port for each in state.sockets.values()})
    if port not in ports:
        shown = ", ".join(map(str, ports[:PORTS_NAMED])) or "none"
        more = f" and {len(ports) - PORTS_NAMED} more" if len(ports) > PORTS_NAMED else ""
        raise NothingToWatch(
            f"no UDP socket is bound to port {port}; bound are {shown}{more}", host
        )
