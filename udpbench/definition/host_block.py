"""One host's blocks of settings put together, and what is known of the host while the lab runs.

Pure; ``wanted`` and ``card`` make settings of it, in the order that ``wanted`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from udpbench.definition.override import merge
from udpbench.definition.placement import host_cpus
from udpbench.definition.problems import Place, Tree
from udpbench.definition.ranges import parse_cpus
from udpbench.model import Facts, Host, Lab, Scope, Setting, Trial

DEFAULT_MTU_BYTES = 1500
"""Of a veth, as of any Ethernet device."""


@dataclass(frozen=True)
class LabContext:
    """What settings need to know of the lab while it runs."""

    pids: Mapping[str, int] = field(default_factory=dict)
    """Host → process id of its agent."""
    facts: Mapping[str, Facts] = field(default_factory=dict)


class HostBlock:
    """One host's blocks put together."""

    def __init__(self, lab: Lab, trial: Trial | None, host: Host, context: LabContext) -> None:
        self.lab = lab
        self.family = trial.traffic.family if trial is not None else 4
        self.faults: Mapping[str, int] = trial.faults if trial is not None else {}
        self.explain = trial is not None and trial.explain
        self.host = host
        self.context = context
        self.block = block_of(lab, trial, host)
        self.optional = set(self.block.get("optional", []))
        receiver = host if host.role == "receiver" else lab.receivers[0]
        receivers = block_of(lab, trial, receiver)
        self.link = receivers.get("link", {})
        self.receiver_mtu_bytes: int = receivers.get("mtu_bytes", DEFAULT_MTU_BYTES)
        self.ethtool: dict[str, Any] = self.block.get("ethtool", {})

    def setting(self, kind: str, target: str, value: Any, path: str) -> Setting:
        """Return a setting on this host; ``target`` is below its interface."""
        interface = self.host.interface
        return self.beyond(kind, f"{interface}/{target}" if target else interface, value, path)

    def beyond(
        self, kind: str, target: str, value: Any, path: str, scope: Scope = "namespace"
    ) -> Setting:
        """Return a setting whose target is the whole one, of this host or of the machine."""
        return Setting(kind, target, value, scope, self.path(path), self.is_optional(path))

    def path(self, path: str) -> str:
        """Return the YAML path of a key of this host's block."""
        return f"settings.{self.host.role}.{path}"

    def is_optional(self, path: str) -> bool:
        """Say whether a refusal below this path is a finding."""
        return any(path == name or path.startswith(f"{name}.") for name in self.optional)

    @property
    def built_in_receiver(self) -> bool:
        """Say whether udpbench makes this host's link and polls it."""
        return self.lab.built_in and self.host.role == "receiver"

    @property
    def receive(self) -> str:
        """Who does the receive work of a built-in lab's link: napi, rps or inline.

        Left out, it is who can: without root NAPI's threads cannot be pinned, and a bridge makes
        its pairs before their ends can be told where to.
        """
        able = "rps" if self.without_root and not self.lab.bridged else "inline"
        return str(self.link.get("receive", able if self.without_root else "napi"))

    @property
    def without_root(self) -> bool:
        """Say whether a built-in lab is one of a user who may not pin the kernel's threads."""
        found = [facts.capabilities.get("kernel_threads") for facts in self.context.facts.values()]
        return self.lab.built_in and False in found

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that serve the receiver's queues: queue k on the k-th, wrapping round."""
        named = self.link.get("cpus", "lab")
        if named != "lab":
            return parse_cpus(named)
        receiver = self.host if self.host.role == "receiver" else self.lab.receivers[0]
        return host_cpus(self.lab, receiver, self.context.facts)

    @property
    def link_queues(self) -> int:
        """Queues that a built-in lab's link is made with."""
        if self.lab.bridged and self.host.role == "sender":
            return 1
        named = self.link.get("queues", "auto")
        return len(self.cpus) if named == "auto" else int(named)

    @property
    def queues(self) -> int:
        """RX queues in use: those asked for, else the link's or those that were found.

        Of channels that may be refused no more are taken than are there: the facts tell the rest.
        """
        facts = self.context.facts.get(self.host.name)
        there = facts.rx_queues or 1 if facts is not None else 1
        if self.lab.built_in:
            there = self.link_queues
        asked = self.ethtool.get("channels")
        if asked is None:
            return there
        return min(asked, there) if self.is_optional("ethtool.channels") else int(asked)


def block_of(lab: Lab, trial: Trial | None, host: Host) -> dict[str, Any]:
    """Return a host's settings: the lab's for its role, its own, then the experiment's on top."""
    blocks = [lab.settings.get(host.role, {}), host.settings]
    if trial is not None:
        blocks.append(trial.settings.get(host.role, {}))
    result: dict[str, Any] = {}
    for block in blocks:
        optional = [*result.get("optional", []), *block.get("optional", [])]
        # A device has one root queue: another kind replaces it instead of joining it.
        if "qdisc" in block:
            result = {key: value for key, value in result.items() if key != "qdisc"}
        result = merge(Tree(result, Place("")), Tree(block, Place(""))).data
        if optional:
            result = {**result, "optional": optional}
    return result
