"""The packets that a trial loses on purpose, on the controller: prepared, sent, counted.

Owns the moment for which machine-wide settings are changed. `definition/losses` says which packets
are sent, `agent/losses` sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import Agents
from udpbench.definition.binding.bind import Unavailable
from udpbench.definition.losses import loss_specs, momentary_setting
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts, Setting
from udpbench.model.record import WorkerStats
from udpbench.model.work import LossSpec, WorkerSpec


@dataclass(frozen=True)
class Losses:
    """The losses of one trial, in the packet's order."""

    sender: AgentClient
    receiver: AgentClient
    machine: AgentClient | None
    in_force: tuple[Setting, ...]
    """Machine-wide settings of the whole trial."""
    specs: Sequence[LossSpec]
    may_change: bool = True
    """Whether the machine's agent may write sysctls, as it has tried; planning only reads."""

    def prepare(self) -> None:
        """Open the sockets that wait for packets; Unavailable if the machine cannot lose them."""
        for spec in self.specs:
            setting = momentary_setting(spec.stage)
            if setting is not None:
                self._prove(setting)
        for client in (self.receiver, self.sender):
            client.expect_losses(self.specs)

    def _prove(self, setting: Setting) -> None:
        why: str | None = "no agent may change machine-wide settings"
        if self.machine is not None:
            (planned,) = self.machine.plan([setting])
            why = planned.refusal
            if why is None and not self.may_change:
                why = f"this user may not change {setting.target}; run as root"
        if why is not None:
            raise Unavailable(f"{setting.path}: {why}")

    def send(self) -> tuple[WorkerStats, ...]:
        """Send the packets of every stage, one stage after the other."""
        return tuple(self._send(spec.stage) for spec in self.specs)

    def _send(self, stage: str) -> WorkerStats:
        setting = momentary_setting(stage)
        if setting is None or self.machine is None:
            return self.sender.send_losses(stage)
        self.machine.apply((*self.in_force, setting))
        try:
            return self.sender.send_losses(stage)
        finally:
            self.machine.apply(self.in_force)

    def collect(self) -> tuple[WorkerStats, ...]:
        """Return the counts of the packets that arrived."""
        return self.receiver.collect_losses()


def plan_losses(
    trial: Trial,
    workers: Sequence[WorkerSpec],
    facts: Mapping[str, Facts],
    agents: Agents,
    in_force: tuple[Setting, ...],
) -> Losses | None:
    """Return the losses of a trial, along the addresses of its first flow; None if it has none."""
    if not trial.losses:
        return None
    sender, receiver = agents.senders[0], agents.receivers[0]
    worker = next(spec for spec in workers if spec.host == sender.name)
    specs = loss_specs(trial, worker, facts[sender.name], facts[receiver.name], agents.lab)
    known = agents.capabilities[agents.machine.name] if agents.machine is not None else {}
    may_change = known.get("machine_sysctl") is not False
    return Losses(sender, receiver, agents.machine, in_force, specs, may_change)
