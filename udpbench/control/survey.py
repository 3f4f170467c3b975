"""The two hosts for ``udpbench init``: their interfaces, and the facts of the selected ones.

Changes no setting and takes no lock. Sends nothing except, on demand, one ARP request at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_interface

from udpbench.control.agent_client import AgentClient
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run_name
from udpbench.control.wait import Waiter
from udpbench.definition.lab_proposal import HostSurvey
from udpbench.errors import DeadlineExceeded
from udpbench.model.host import Facts
from udpbench.model.lab import Connect, Lab, Node
from udpbench.model.limits import SECOND_NS
from udpbench.protocol import Interface, Interfaces

HEARD_NS = SECOND_NS
"""Time limit for the arrival of a request."""


class Survey:
    """The agents of two hosts, and their answers so far."""

    def __init__(
        self, lab: Lab, left: AgentClient, right: AgentClient, around: Surroundings
    ) -> None:
        self._agents = (left, right)
        self._waiter = Waiter(around.clock, around.interrupt)
        known = (left.interfaces(), right.interfaces())
        self.left = _survey(lab.senders[0], known[0], known[1].controller)
        self.right = _survey(lab.receivers[0], known[1], known[0].controller)

    def prove_links(
        self, senders: Sequence[Interface], listeners: Sequence[Interface]
    ) -> Iterator[tuple[str, str]]:
        """Send one ARP request on each left interface in turn; yield the connected pairs.

        Raises SafetyError if an interface may not be used, AgentError without permission.
        """
        left, right = self._agents
        names = [listener.name for listener in listeners]
        heard: set[str] = set()
        right.hear_arp(names)
        for sender in senders:
            heard.clear()

            def arrived(mac: str | None = sender.mac) -> bool:
                heard.update(
                    interface.interface
                    for interface in right.hear_arp(names)
                    if interface.mac == mac
                )
                return bool(heard)

            left.send_arp(sender.name)
            with suppress(DeadlineExceeded):
                self._waiter.until("no ARP request arrived", right.name, arrived, HEARD_NS)
            yield from ((sender.name, name) for name in sorted(heard))
        right.hear_arp(())

    def facts(self, left: str, right: str) -> tuple[Facts, Facts]:
        """Return the facts of both hosts with these interfaces."""
        self._agents[0].interface, self._agents[1].interface = left, right
        return self._agents[0].facts(), self._agents[1].facts()


def _survey(host: Node, known: Interfaces, controller: str | None) -> HostSurvey:
    """Return a host's survey.

    On a ``local`` host the interface with the address from which the other one is controlled
    carries SSH, although its own agent was not reached by it.
    """
    listed = tuple(
        replace(interface, protected=True)
        if host.connect.by == "local"
        and controller in [str(ip_interface(address).ip) for address in interface.addresses]
        else interface
        for interface in known.listed
    )
    return HostSurvey(host.name, host.part, host.connect, listed)


@contextmanager
def surveyed(
    names: tuple[str, str], ways: tuple[Connect, Connect], around: Surroundings
) -> Iterator[Survey]:
    """Yield the survey of two hosts, sender first; their agents end with the block.

    Raises ConnectError, HelloRefused, SafetyError.
    """
    left = Node(names[0], "sender", ways[0], "", (), existing=True)
    right = Node(names[1], "receiver", ways[1], "", (), existing=True)
    lab = Lab("init", "", "", (left, right))
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, Terms("none")) as (_, agents):
        yield Survey(lab, agents.senders[0], agents.receivers[0], around)
