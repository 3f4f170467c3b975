"""One host's merged settings, and the facts about the host while the lab runs.

Pure; ``setting_order`` and ``card`` turn it into a list of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from udpbench.definition.binding.cpu_placement import host_cpus
from udpbench.definition.endpoints import parse_cpus
from udpbench.host_settings import Ethtool, Settings, VethPair, merged
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts, Setting
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import Scope
from udpbench.setting_kinds import SETTING_KINDS, has_trait

OF_IP = ("nat", "neighbour", "route")
"""Kinds of the interface to which IP gives packets, which may be a bridge above the others'."""
DEFAULT_MTU_BYTES = 1500
"""A veth's, as of any Ethernet device."""


@dataclass(frozen=True)
class LabContext:
    """Facts of a running lab that settings depend on."""

    pids: Mapping[str, int] = field(default_factory=dict)
    """Host → process id of its agent."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    """Node at the end of a WireGuard tunnel → its public key."""


class HostBlock:
    """One host's settings, merged from lab, host and experiment, with the lab they apply to."""

    def __init__(self, lab: Lab, trial: Trial | None, host: Node, context: LabContext) -> None:
        self.lab = lab
        self.trial = trial
        self.family = trial.traffic.family if trial is not None else 4
        self.losses: Mapping[str, int] = trial.losses if trial is not None else {}
        self.explained = trial if trial is not None and trial.explain else None
        self.host = host
        self.context = context
        self.settings = block_of(lab, trial, host)
        self.receiver = host if host.receives else lab.receivers[0]
        is_receiver = self.receiver is host
        receivers = self.settings if is_receiver else block_of(lab, trial, self.receiver)
        self.link = receivers.link or VethPair()
        mtu_bytes = receivers.mtu_bytes
        self.receiver_mtu_bytes = DEFAULT_MTU_BYTES if mtu_bytes is None else mtu_bytes
        self.ethtool = self.settings.ethtool or Ethtool()

    def setting(self, kind: str, target: str, value: Any, path: str) -> Setting:
        """Return a setting on this host; ``target`` is below its interface."""
        interface = self.host.interface
        if self.host.out and has_trait(kind, "exit"):
            interface = self.host.exit if kind in OF_IP else self.host.out
        return self.beyond(kind, f"{interface}/{target}" if target else interface, value, path)

    def beyond(
        self, kind: str, target: str, value: Any, path: str, scope: Scope | None = None
    ) -> Setting:
        """Return a setting with its own target, on this host or its machine."""
        scope = scope or SETTING_KINDS[kind].scope
        return Setting(kind, target, value, scope, self.path(path), self.is_optional(path))

    def path(self, path: str) -> str:
        """Return the YAML path of a key of this host's settings."""
        return f"settings.{self.host.part}.{path}"

    def is_optional(self, path: str) -> bool:
        """Return whether a refusal at this path is only a finding."""
        return any(f"{path}.".startswith(f"{name}.") for name in self.settings.optional or ())

    @property
    def built_in_receiver(self) -> bool:
        """Return whether udpbench creates this host's link and polls it."""
        return self.lab.built_in and self.host.receives

    @property
    def receive(self) -> str:
        """Who does the receive work of a built-in lab's link: napi, rps or inline.

        By default NAPI's threads, if they can be pinned and told apart. Only root can set RPS of a
        bridge's pairs, which exist before, or of any pair where the kernel has no default for it;
        a kernel for one CPU has none.
        """
        if self.link.receive is not None:
            return self.link.receive
        if self.without_root:
            return "inline" if self.lab.joint or self._lacks("rps_default") else "rps"
        if not self._lacks("napi_threads"):
            return "napi"
        return "inline" if self._lacks("rps") else "rps"

    @property
    def without_root(self) -> bool:
        """Return whether this is a built-in lab of a user who may not pin kernel threads."""
        return self._lacks("kernel_threads")

    def _lacks(self, capability: str) -> bool:
        """Return whether this is a built-in lab without something that its agents have tried."""
        facts = self.context.facts.values()
        lacking = any(own.capabilities.get(capability) is False for own in facts)
        return self.lab.built_in and lacking

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that serve the receiver's queues: queue k on the k-th, wrapping round."""
        if self.link.cpus is not None and self.link.cpus != "lab":
            return parse_cpus(self.link.cpus)
        return host_cpus(self.lab, self.receiver, self.context.facts)

    @property
    def link_queues(self) -> int:
        """Queues with which a built-in lab's link is created."""
        if self.lab.joint is not None and not self.host.receives:
            return 1
        queues = self.link.queues
        return queues if isinstance(queues, int) else len(self.cpus)

    @property
    def queues(self) -> int:
        """RX queues in use: the configured channels, else the link's queues or those in the facts.

        Optional channels may be refused, so they count only as far as the facts have them.
        """
        facts = self.context.facts.get(self.host.name)
        present = facts.rx_queues or 1 if facts is not None else 1
        if self.lab.built_in:
            present = self.link_queues
        channels = self.ethtool.channels
        if channels is None:
            return present
        return min(channels, present) if self.is_optional("ethtool.channels") else channels


def routed_networks(lab: Lab, host: Node) -> tuple[str, ...] | None:
    """Return the networks to which a host may send through a gateway: those of the lab's routes.

    None, for any network, if the lab file lists all addresses of the other side, or nodes in the
    middle: then the path is proven by them.
    """
    others = lab.senders if host.receives else lab.receivers
    if lab.middle or not any(other.existing for other in others):
        return None
    return routed_to(lab, host)


def routed_to(lab: Lab, host: Node) -> tuple[str, ...]:
    """Return the networks of a host's routes in the lab file."""
    routes = block_of(lab, None, host).routes
    return tuple(text.partition(" via ")[0] for text in routes or ())


def block_of(lab: Lab, trial: Trial | None, host: Node) -> Settings:
    """Return a host's settings: the lab's for its part, its own, then the experiment's on top."""
    block = merged(lab.settings.get(host.part, Settings()), host.settings)
    if trial is None:
        return block
    return merged(block, trial.settings.get(host.part, Settings()))
